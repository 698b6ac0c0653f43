"""Analytic performance models of machine-learning programs on chips."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roofline.batch import BatchChoice as BatchChoice
    from roofline.batch import best_batch as best_batch
    from roofline.build import Builder as Builder
    from roofline.calibrate import calibrate as calibrate
    from roofline.chip import Chip as Chip
    from roofline.count import Counts as Counts
    from roofline.count import count as count
    from roofline.data import chip as chip
    from roofline.data import chips as chips
    from roofline.diagnosis import TraceReport as TraceReport
    from roofline.diagnosis import Verdict as Verdict
    from roofline.diagnosis import check as check
    from roofline.diagnosis import trace_report as trace_report
    from roofline.diagnosis.breakeven import BreakEven as BreakEven
    from roofline.diagnosis.breakeven import break_even as break_even
    from roofline.diagnosis.optimes import OpVerdicts as OpVerdicts
    from roofline.diagnosis.optimes import check_ops as check_ops
    from roofline.diagnosis.outofmemory import OutOfMemory as OutOfMemory
    from roofline.diagnosis.outofmemory import explain_oom as explain_oom
    from roofline.diagnosis.sweep import SweepVerdict as SweepVerdict
    from roofline.diagnosis.sweep import check_sweep as check_sweep
    from roofline.diagnosis.sweep import read_sweep as read_sweep
    from roofline.dtypes import dtype as dtype
    from roofline.errors import ChipDataError as ChipDataError
    from roofline.errors import DoesNotFit as DoesNotFit
    from roofline.errors import MissingExtra as MissingExtra
    from roofline.errors import MissingFigure as MissingFigure
    from roofline.errors import ModelDataError as ModelDataError
    from roofline.errors import RooflineError as RooflineError
    from roofline.errors import ShapeError as ShapeError
    from roofline.errors import TraceError as TraceError
    from roofline.errors import UnboundSize as UnboundSize
    from roofline.errors import UnitError as UnitError
    from roofline.errors import UnknownChip as UnknownChip
    from roofline.errors import UnknownDType as UnknownDType
    from roofline.errors import UnknownModel as UnknownModel
    from roofline.errors import UnknownOp as UnknownOp
    from roofline.errors import UsageError as UsageError
    from roofline.estimate import Estimate as Estimate
    from roofline.estimate import estimate as estimate
    from roofline.graph import Applied as Applied
    from roofline.graph import Graph as Graph
    from roofline.graph import Node as Node
    from roofline.graph import Tensor as Tensor
    from roofline.importers.huggingface import from_config as from_config
    from roofline.importers.jax import from_jax as from_jax
    from roofline.importers.onnx import from_onnx as from_onnx
    from roofline.importers.torch import from_torch as from_torch
    from roofline.listing import Listing as Listing
    from roofline.listing import listing as listing
    from roofline.measure import Measurement as Measurement
    from roofline.measure import measure as measure
    from roofline.modeldata import model as model
    from roofline.modeldata import models as models
    from roofline.passes import fuse as fuse
    from roofline.passes import inductor as inductor
    from roofline.passes import retype as retype
    from roofline.passes import unfuse as unfuse
    from roofline.passes import unmask as unmask
    from roofline.plot import BatchSweep as BatchSweep
    from roofline.plot import Roofline as Roofline
    from roofline.plot import plot_batch as plot_batch
    from roofline.plot import plot_roofline as plot_roofline
    from roofline.predict import predict as predict
    from roofline.source import load_program as load_program
    from roofline.traces.events import Trace as Trace
    from roofline.traces.reading import read_trace as read_trace
    from roofline.trail import Trail as Trail
    from roofline.trail import trail as trail
    from roofline.validate import validate as validate
    from roofline.workload import load_workload as load_workload
    from roofline.workload import workload as workload

__version__ = "0.1.0"

#: Where each public name lives; a name is imported when it is first used, so that ``import roofline`` stays quick.
_HOME = {
    "batch": ("BatchChoice", "best_batch"),
    "build": ("Builder",),
    "diagnosis": ("TraceReport", "Verdict", "check", "trace_report"),
    "diagnosis.breakeven": ("BreakEven", "break_even"),
    "diagnosis.optimes": ("OpVerdicts", "check_ops"),
    "diagnosis.outofmemory": ("OutOfMemory", "explain_oom"),
    "diagnosis.sweep": ("SweepVerdict", "check_sweep", "read_sweep"),
    "chip": ("Chip",),
    "count": ("Counts", "count"),
    "data": ("chip", "chips"),
    "dtypes": ("dtype",),
    "errors": (
        "ChipDataError", "DoesNotFit", "MissingExtra", "MissingFigure", "ModelDataError", "RooflineError",
        "ShapeError", "TraceError", "UnboundSize", "UnitError", "UnknownChip", "UnknownDType", "UnknownModel",
        "UnknownOp", "UsageError",
    ),
    "estimate": ("Estimate", "estimate"),
    "graph": ("Applied", "Graph", "Node", "Tensor"),
    "importers.huggingface": ("from_config",),
    "importers.jax": ("from_jax",),
    "importers.onnx": ("from_onnx",),
    "importers.torch": ("from_torch",),
    "listing": ("Listing", "listing"),
    "measure": ("Measurement", "measure"),
    "modeldata": ("model", "models"),
    "calibrate": ("calibrate",),
    "passes": ("fuse", "inductor", "retype", "unfuse", "unmask"),
    "plot": ("BatchSweep", "Roofline", "plot_batch", "plot_roofline"),
    "source": ("load_program",),
    "predict": ("predict",),
    "traces.events": ("Trace",),
    "traces.reading": ("read_trace",),
    "trail": ("Trail", "trail"),
    "validate": ("validate",),
    "workload": ("load_workload", "workload"),
}  # fmt: skip
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted([*_MODULE, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _MODULE:
        raise AttributeError(f"module 'roofline' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"roofline.{_MODULE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """Importing ``roofline.chip`` binds the submodule as an attribute; the function ``rl.chip`` must win."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in _MODULE and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
