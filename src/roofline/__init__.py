"""Analytic performance models of machine-learning programs on chips."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from roofline.batch import BatchChoice, best_batch
    from roofline.build import Builder
    from roofline.check import Verdict, check
    from roofline.chip import Chip
    from roofline.count import Counts, count
    from roofline.data import chip, chips
    from roofline.dtypes import dtype
    from roofline.errors import (
        ChipDataError,
        DoesNotFit,
        MissingExtra,
        MissingFigure,
        ModelDataError,
        RooflineError,
        ShapeError,
        UnboundSize,
        UnitError,
        UnknownChip,
        UnknownDType,
        UnknownModel,
        UnknownOp,
        UsageError,
    )
    from roofline.estimate import Estimate, estimate
    from roofline.graph import Graph, Node, Tensor
    from roofline.modeldata import model, models
    from roofline.passes import fuse, retype
    from roofline.plot import BatchSweep, Roofline, plot_batch, plot_roofline
    from roofline.workload import load_workload, workload

__version__ = "0.1.0"

#: Where each public name lives; a name is imported when it is first used, so that ``import roofline`` stays quick.
_HOME = {
    "batch": ("BatchChoice", "best_batch"),
    "build": ("Builder",),
    "check": ("Verdict", "check"),
    "chip": ("Chip",),
    "count": ("Counts", "count"),
    "data": ("chip", "chips"),
    "dtypes": ("dtype",),
    "errors": (
        "ChipDataError", "DoesNotFit", "MissingExtra", "MissingFigure", "ModelDataError", "RooflineError",
        "ShapeError", "UnboundSize", "UnitError", "UnknownChip", "UnknownDType", "UnknownModel", "UnknownOp",
        "UsageError",
    ),
    "estimate": ("Estimate", "estimate"),
    "graph": ("Graph", "Node", "Tensor"),
    "modeldata": ("model", "models"),
    "passes": ("fuse", "retype"),
    "plot": ("BatchSweep", "Roofline", "plot_batch", "plot_roofline"),
    "workload": ("load_workload", "workload"),
}  # fmt: skip
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted([*_MODULE, "__version__"])  # noqa: PLE0605


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
