"""Analytic performance models of machine-learning programs on chips."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roofline.analysis.batch import BatchChoice as BatchChoice
    from roofline.analysis.batch import best_batch as best_batch
    from roofline.analysis.collective import Collective as Collective
    from roofline.analysis.collective import collective as collective
    from roofline.analysis.compare import Comparison as Comparison
    from roofline.analysis.compare import compare as compare
    from roofline.analysis.estimate import Estimate as Estimate
    from roofline.analysis.estimate import estimate as estimate
    from roofline.analysis.fastpaths import FastPaths as FastPaths
    from roofline.analysis.fastpaths import fast_paths as fast_paths
    from roofline.analysis.fusion import Explanation as Explanation
    from roofline.analysis.fusion import Fusion as Fusion
    from roofline.analysis.fusion import explain_fusion as explain_fusion
    from roofline.analysis.fusion import fusion as fusion
    from roofline.analysis.predict import predict as predict
    from roofline.analysis.scaling import Scaling as Scaling
    from roofline.analysis.scaling import scaling as scaling
    from roofline.analysis.serving import KVCache as KVCache
    from roofline.analysis.serving import Largest as Largest
    from roofline.analysis.serving import kv_cache as kv_cache
    from roofline.analysis.serving import largest_concurrency as largest_concurrency
    from roofline.analysis.serving import largest_context as largest_context
    from roofline.analysis.serving.requests import Request as Request
    from roofline.analysis.serving.requests import request as request
    from roofline.analysis.trail import Trail as Trail
    from roofline.analysis.trail import trail as trail
    from roofline.analysis.training import TrainingStep as TrainingStep
    from roofline.analysis.training import train as train
    from roofline.analysis.validate import validate as validate
    from roofline.analysis.whatif import what_if as what_if
    from roofline.counting.counts import Counts as Counts
    from roofline.counting.counts import count as count
    from roofline.diagnosis import TraceReport as TraceReport
    from roofline.diagnosis import Verdict as Verdict
    from roofline.diagnosis import check as check
    from roofline.diagnosis import trace_report as trace_report
    from roofline.diagnosis.break_even import BreakEven as BreakEven
    from roofline.diagnosis.break_even import break_even as break_even
    from roofline.diagnosis.op_times import OpVerdicts as OpVerdicts
    from roofline.diagnosis.op_times import check_ops as check_ops
    from roofline.diagnosis.out_of_memory import OutOfMemory as OutOfMemory
    from roofline.diagnosis.out_of_memory import explain_oom as explain_oom
    from roofline.diagnosis.sweep import SweepVerdict as SweepVerdict
    from roofline.diagnosis.sweep import check_sweep as check_sweep
    from roofline.diagnosis.sweep import read_sweep as read_sweep
    from roofline.frontends.jax import from_jax as from_jax
    from roofline.frontends.onnx import from_onnx as from_onnx
    from roofline.frontends.source import load_program as load_program
    from roofline.frontends.torch import from_torch as from_torch
    from roofline.hardware.chip import Chip as Chip
    from roofline.hardware.cluster import Cluster as Cluster
    from roofline.hardware.cluster import cluster as cluster
    from roofline.hardware.cluster import clusters as clusters
    from roofline.hardware.library import chip as chip
    from roofline.hardware.library import chips as chips
    from roofline.ir.dtypes import dtype as dtype
    from roofline.ir.errors import ChipDataError as ChipDataError
    from roofline.ir.errors import DoesNotFit as DoesNotFit
    from roofline.ir.errors import MissingExtra as MissingExtra
    from roofline.ir.errors import MissingFigure as MissingFigure
    from roofline.ir.errors import ModelDataError as ModelDataError
    from roofline.ir.errors import RooflineError as RooflineError
    from roofline.ir.errors import ShapeError as ShapeError
    from roofline.ir.errors import TraceError as TraceError
    from roofline.ir.errors import UnboundSize as UnboundSize
    from roofline.ir.errors import UnitError as UnitError
    from roofline.ir.errors import UnknownChip as UnknownChip
    from roofline.ir.errors import UnknownDType as UnknownDType
    from roofline.ir.errors import UnknownModel as UnknownModel
    from roofline.ir.errors import UnknownOp as UnknownOp
    from roofline.ir.errors import UsageError as UsageError
    from roofline.ir.graph import Applied as Applied
    from roofline.ir.graph import Graph as Graph
    from roofline.ir.graph import Node as Node
    from roofline.ir.graph import Tensor as Tensor
    from roofline.measurement.backends import BackendComparison as BackendComparison
    from roofline.measurement.backends import PredictedCompile as PredictedCompile
    from roofline.measurement.backends import compare_backends as compare_backends
    from roofline.measurement.backends import predicted_compile as predicted_compile
    from roofline.measurement.calibrate import calibrate as calibrate
    from roofline.measurement.measure import Measurement as Measurement
    from roofline.measurement.measure import measure as measure
    from roofline.ops.builder import Builder as Builder
    from roofline.ops.reference import Sameness as Sameness
    from roofline.ops.reference import execute as execute
    from roofline.ops.reference import same as same
    from roofline.passes import fuse as fuse
    from roofline.passes import inductor as inductor
    from roofline.passes import retype as retype
    from roofline.passes import unfuse as unfuse
    from roofline.passes import unmask as unmask
    from roofline.passes.formats.autocast import autocast as autocast
    from roofline.passes.formats.quantize import quantize as quantize
    from roofline.passes.formats.quantize import widen as widen
    from roofline.passes.fusion.megatron import megatron_kernels as megatron_kernels
    from roofline.passes.parallel.pipelined import pipelined as pipelined
    from roofline.passes.parallel.shard import shard as shard
    from roofline.passes.parallel.stage import stage as stage
    from roofline.passes.parallel.stage import stages as stages
    from roofline.passes.rewriting.batchnorm import fold_batchnorm as fold_batchnorm
    from roofline.passes.rewriting.clean import clean as clean
    from roofline.passes.rewriting.clean import eliminate_dead as eliminate_dead
    from roofline.passes.rewriting.clean import fold_constants as fold_constants
    from roofline.passes.rewriting.clean import merge_equal as merge_equal
    from roofline.passes.rewriting.linears import merge_linears as merge_linears
    from roofline.passes.rewriting.prune import prune as prune
    from roofline.passes.rewriting.rewrite import replace_op as replace_op
    from roofline.passes.rewriting.rewrite import rewrite as rewrite
    from roofline.passes.training.backward import backward as backward
    from roofline.passes.training.mixed_precision import accumulate as accumulate
    from roofline.passes.training.mixed_precision import training_graph as training_graph
    from roofline.passes.training.optimizer import optimizer as optimizer
    from roofline.passes.training.saved import saved as saved
    from roofline.programs.distill import distill as distill
    from roofline.programs.huggingface import from_config as from_config
    from roofline.programs.library import model as model
    from roofline.programs.library import models as models
    from roofline.programs.workload import load_workload as load_workload
    from roofline.programs.workload import workload as workload
    from roofline.traces.events import Trace as Trace
    from roofline.traces.reading import read_trace as read_trace
    from roofline.view.listing.listing import Listing as Listing
    from roofline.view.listing.listing import listing as listing
    from roofline.view.plot import BatchSweep as BatchSweep
    from roofline.view.plot import Roofline as Roofline
    from roofline.view.plot import plot_batch as plot_batch
    from roofline.view.plot import plot_roofline as plot_roofline

__version__ = "0.1.0"

#: Where each public name lives; a name is imported when it is first used, so that ``import roofline`` stays quick.
_HOME = {
    "measurement.backends": ("BackendComparison", "PredictedCompile", "compare_backends", "predicted_compile"),
    "analysis.batch": ("BatchChoice", "best_batch"),
    "ops.builder": ("Builder",),
    "measurement.calibrate": ("calibrate",),
    "hardware.chip": ("Chip",),
    "hardware.cluster": ("Cluster", "cluster", "clusters"),
    "analysis.collective": ("Collective", "collective"),
    "analysis.compare": ("Comparison", "compare"),
    "counting.counts": ("Counts", "count"),
    "hardware.library": ("chip", "chips"),
    "diagnosis": ("TraceReport", "Verdict", "check", "trace_report"),
    "diagnosis.break_even": ("BreakEven", "break_even"),
    "diagnosis.op_times": ("OpVerdicts", "check_ops"),
    "diagnosis.out_of_memory": ("OutOfMemory", "explain_oom"),
    "diagnosis.sweep": ("SweepVerdict", "check_sweep", "read_sweep"),
    "programs.distill": ("distill",),
    "ir.dtypes": ("dtype",),
    "ir.errors": (
        "ChipDataError", "DoesNotFit", "MissingExtra", "MissingFigure", "ModelDataError", "RooflineError",
        "ShapeError", "TraceError", "UnboundSize", "UnitError", "UnknownChip", "UnknownDType", "UnknownModel",
        "UnknownOp", "UsageError",
    ),
    "analysis.estimate": ("Estimate", "estimate"),
    "ops.reference": ("Sameness", "execute", "same"),
    "analysis.fastpaths": ("FastPaths", "fast_paths"),
    "analysis.fusion": ("Explanation", "Fusion", "explain_fusion", "fusion"),
    "ir.graph": ("Applied", "Graph", "Node", "Tensor"),
    "programs.huggingface": ("from_config",),
    "frontends.jax": ("from_jax",),
    "frontends.onnx": ("from_onnx",),
    "frontends.torch": ("from_torch",),
    "view.listing.listing": ("Listing", "listing"),
    "measurement.measure": ("Measurement", "measure"),
    "programs.library": ("model", "models"),
    "passes": ("fuse", "inductor", "retype", "unfuse", "unmask"),
    "passes.formats.autocast": ("autocast",),
    "passes.training.backward": ("backward",),
    "passes.rewriting.batchnorm": ("fold_batchnorm",),
    "passes.rewriting.clean": ("clean", "eliminate_dead", "fold_constants", "merge_equal"),
    "passes.rewriting.linears": ("merge_linears",),
    "passes.fusion.megatron": ("megatron_kernels",),
    "passes.training.optimizer": ("optimizer",),
    "passes.parallel.pipelined": ("pipelined",),
    "passes.rewriting.prune": ("prune",),
    "passes.formats.quantize": ("quantize", "widen"),
    "passes.rewriting.rewrite": ("replace_op", "rewrite"),
    "passes.parallel.shard": ("shard",),
    "passes.parallel.stage": ("stage", "stages"),
    "passes.training.mixed_precision": ("accumulate", "training_graph"),
    "view.plot": ("BatchSweep", "Roofline", "plot_batch", "plot_roofline"),
    "analysis.predict": ("predict",),
    "passes.training.saved": ("saved",),
    "analysis.scaling": ("Scaling", "scaling"),
    "analysis.serving": ("KVCache", "Largest", "kv_cache", "largest_concurrency", "largest_context"),
    "analysis.serving.requests": ("Request", "request"),
    "frontends.source": ("load_program",),
    "traces.events": ("Trace",),
    "traces.reading": ("read_trace",),
    "analysis.trail": ("Trail", "trail"),
    "analysis.training": ("TrainingStep", "train"),
    "analysis.validate": ("validate",),
    "analysis.whatif": ("what_if",),
    "programs.workload": ("load_workload", "workload"),
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
