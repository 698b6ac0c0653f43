"""Analytic performance models of machine-learning programs on chips."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roofline.backends import BackendComparison as BackendComparison
    from roofline.backends import PredictedCompile as PredictedCompile
    from roofline.backends import compare_backends as compare_backends
    from roofline.backends import predicted_compile as predicted_compile
    from roofline.batch import BatchChoice as BatchChoice
    from roofline.batch import best_batch as best_batch
    from roofline.build import Builder as Builder
    from roofline.calibrate import calibrate as calibrate
    from roofline.chip import Chip as Chip
    from roofline.cluster import Cluster as Cluster
    from roofline.cluster import cluster as cluster
    from roofline.cluster import clusters as clusters
    from roofline.collective import Collective as Collective
    from roofline.collective import collective as collective
    from roofline.compare import Comparison as Comparison
    from roofline.compare import compare as compare
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
    from roofline.distill import distill as distill
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
    from roofline.execute import Sameness as Sameness
    from roofline.execute import execute as execute
    from roofline.execute import same as same
    from roofline.fastpaths import FastPaths as FastPaths
    from roofline.fastpaths import fast_paths as fast_paths
    from roofline.fusion import Explanation as Explanation
    from roofline.fusion import Fusion as Fusion
    from roofline.fusion import explain_fusion as explain_fusion
    from roofline.fusion import fusion as fusion
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
    from roofline.passes.autocast import autocast as autocast
    from roofline.passes.backward import backward as backward
    from roofline.passes.batchnorm import fold_batchnorm as fold_batchnorm
    from roofline.passes.clean import clean as clean
    from roofline.passes.clean import eliminate_dead as eliminate_dead
    from roofline.passes.clean import fold_constants as fold_constants
    from roofline.passes.clean import merge_equal as merge_equal
    from roofline.passes.linears import merge_linears as merge_linears
    from roofline.passes.megatron import megatron_kernels as megatron_kernels
    from roofline.passes.optimizer import optimizer as optimizer
    from roofline.passes.pipelined import pipelined as pipelined
    from roofline.passes.prune import prune as prune
    from roofline.passes.quantize import quantize as quantize
    from roofline.passes.quantize import widen as widen
    from roofline.passes.rewrite import replace_op as replace_op
    from roofline.passes.rewrite import rewrite as rewrite
    from roofline.passes.shard import shard as shard
    from roofline.passes.stage import stage as stage
    from roofline.passes.stage import stages as stages
    from roofline.passes.training import accumulate as accumulate
    from roofline.passes.training import training_graph as training_graph
    from roofline.plot import BatchSweep as BatchSweep
    from roofline.plot import Roofline as Roofline
    from roofline.plot import plot_batch as plot_batch
    from roofline.plot import plot_roofline as plot_roofline
    from roofline.predict import predict as predict
    from roofline.saved import saved as saved
    from roofline.scaling import Scaling as Scaling
    from roofline.scaling import scaling as scaling
    from roofline.serving import KVCache as KVCache
    from roofline.serving import Largest as Largest
    from roofline.serving import kv_cache as kv_cache
    from roofline.serving import largest_concurrency as largest_concurrency
    from roofline.serving import largest_context as largest_context
    from roofline.serving.request import Request as Request
    from roofline.serving.request import request as request
    from roofline.source import load_program as load_program
    from roofline.traces.events import Trace as Trace
    from roofline.traces.reading import read_trace as read_trace
    from roofline.trail import Trail as Trail
    from roofline.trail import trail as trail
    from roofline.training import TrainingStep as TrainingStep
    from roofline.training import train as train
    from roofline.validate import validate as validate
    from roofline.whatif import what_if as what_if
    from roofline.workload import load_workload as load_workload
    from roofline.workload import workload as workload

__version__ = "0.1.0"

#: Where each public name lives; a name is imported when it is first used, so that ``import roofline`` stays quick.
_HOME = {
    "backends": ("BackendComparison", "PredictedCompile", "compare_backends", "predicted_compile"),
    "batch": ("BatchChoice", "best_batch"),
    "build": ("Builder",),
    "calibrate": ("calibrate",),
    "chip": ("Chip",),
    "cluster": ("Cluster", "cluster", "clusters"),
    "collective": ("Collective", "collective"),
    "compare": ("Comparison", "compare"),
    "count": ("Counts", "count"),
    "data": ("chip", "chips"),
    "diagnosis": ("TraceReport", "Verdict", "check", "trace_report"),
    "diagnosis.breakeven": ("BreakEven", "break_even"),
    "diagnosis.optimes": ("OpVerdicts", "check_ops"),
    "diagnosis.outofmemory": ("OutOfMemory", "explain_oom"),
    "diagnosis.sweep": ("SweepVerdict", "check_sweep", "read_sweep"),
    "distill": ("distill",),
    "dtypes": ("dtype",),
    "errors": (
        "ChipDataError", "DoesNotFit", "MissingExtra", "MissingFigure", "ModelDataError", "RooflineError",
        "ShapeError", "TraceError", "UnboundSize", "UnitError", "UnknownChip", "UnknownDType", "UnknownModel",
        "UnknownOp", "UsageError",
    ),
    "estimate": ("Estimate", "estimate"),
    "execute": ("Sameness", "execute", "same"),
    "fastpaths": ("FastPaths", "fast_paths"),
    "fusion": ("Explanation", "Fusion", "explain_fusion", "fusion"),
    "graph": ("Applied", "Graph", "Node", "Tensor"),
    "importers.huggingface": ("from_config",),
    "importers.jax": ("from_jax",),
    "importers.onnx": ("from_onnx",),
    "importers.torch": ("from_torch",),
    "listing": ("Listing", "listing"),
    "measure": ("Measurement", "measure"),
    "modeldata": ("model", "models"),
    "passes": ("fuse", "inductor", "retype", "unfuse", "unmask"),
    "passes.autocast": ("autocast",),
    "passes.backward": ("backward",),
    "passes.batchnorm": ("fold_batchnorm",),
    "passes.clean": ("clean", "eliminate_dead", "fold_constants", "merge_equal"),
    "passes.linears": ("merge_linears",),
    "passes.megatron": ("megatron_kernels",),
    "passes.optimizer": ("optimizer",),
    "passes.pipelined": ("pipelined",),
    "passes.prune": ("prune",),
    "passes.quantize": ("quantize", "widen"),
    "passes.rewrite": ("replace_op", "rewrite"),
    "passes.shard": ("shard",),
    "passes.stage": ("stage", "stages"),
    "passes.training": ("accumulate", "training_graph"),
    "plot": ("BatchSweep", "Roofline", "plot_batch", "plot_roofline"),
    "predict": ("predict",),
    "saved": ("saved",),
    "scaling": ("Scaling", "scaling"),
    "serving": ("KVCache", "Largest", "kv_cache", "largest_concurrency", "largest_context"),
    "serving.request": ("Request", "request"),
    "source": ("load_program",),
    "traces.events": ("Trace",),
    "traces.reading": ("read_trace",),
    "trail": ("Trail", "trail"),
    "training": ("TrainingStep", "train"),
    "validate": ("validate",),
    "whatif": ("what_if",),
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
