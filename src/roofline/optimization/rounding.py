"""How far numbers move when they are rounded to a format: the error that a plan is allowed to make.

The figure is the root mean square of the rounding of normally distributed numbers, over theirs (noise over signal;
0.01 is an SQNR of 40 dB). Of a program it is that of its weights, the root mean square over its matrices, each of which
adds noise of its own however large it is, of what its matmuls take in and of its cache, as independent noise: the root
of the sum of squares. It tells formats apart and is no accuracy: that is measured on the task (:mod:`roofline.quant`).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Tensor
from roofline.ops.elements import WIDE, Array
from roofline.optimization.steps import State
from roofline.quant.formats import fake

#: The longest row that shares a scale, and how many of them are drawn.
ROW, ROWS = 4096, 16
#: Classes of error by the most that a plan of the class has, for tables.
CLASSES = {"exact": 0.0, "16-bit": 0.004, "8-bit": 0.05, "4-bit": math.inf}


@lru_cache(maxsize=256)
def format_error(name: str) -> float:
    """Return noise over signal of numbers rounded to a format, as :func:`roofline.quant.round_to` does.

    Args:
        name: As in :data:`~roofline.ir.dtypes.DTYPES`; one without a rounding counts as whole numbers of its bits.

    Example:
        >>> [round(format_error(name), 4) for name in ("bf16", "fp8", "int8-g4096-sym", "int4-g128")]
        [0.0017, 0.0266, 0.0089, 0.1]
    """
    form = DTYPES[name]
    group = form.group if 0 < form.group <= ROW else ROW
    x = np.random.default_rng(0).standard_normal((ROWS, ROW // group * group))
    try:
        rounded = _significant(x, WIDE[name]) if name in WIDE else fake(x, name)
    except UsageError:
        rounded = fake(x, f"int{min(max(round(form.bits), 2), 8)}-g32-sym")
    return float(np.sqrt(np.mean((rounded - x) ** 2) / np.mean(x**2)))


def _significant(x: Array, bits: int) -> Array:
    mantissa, exponent = np.frexp(x)
    return np.asarray(np.ldexp(np.round(np.ldexp(mantissa, bits + 1)), exponent - bits - 1))


def state_error(before: Graph, state: State) -> float:
    """Return the error that the formats of a plan make, against the program that it began with."""
    return math.hypot(
        _stored_error(before, state.graph, "weight"),
        _stored_error(before, state.graph, "cache"),
        _activation_error(state),
    )


def _stored_error(before: Graph, after: Graph, kind: str) -> float:
    """Return the root mean square of the errors of the tensors of a kind: each matmul adds noise of its own."""
    was, now = _by_name(before, kind), _by_name(after, kind)
    usual = max(was.values(), key=_elements).dtype if was else ""  # of what a pass has joined
    errors = [_coarser_error(was[name].dtype if name in was else usual, tensor.dtype)
              for name, tensor in now.items() if len(tensor.shape) > 1]  # fmt: skip
    return math.sqrt(sum(error**2 for error in errors) / (len(errors) or 1))


def _by_name(graph: Graph, kind: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in graph.tensors.items() if tensor.kind == kind}


def _elements(tensor: Tensor) -> int:
    return math.prod(int(size) if isinstance(size, int) else 1 for size in tensor.shape)


def _coarser_error(was: str, now: str) -> float:
    """Return the error of a format where it is coarser than the one before it."""
    return format_error(now) if now != was and format_error(now) > format_error(was) else 0.0


def _activation_error(state: State) -> float:
    """Return the error of what matmuls take in by the steps: activations in another format, or fp32 in tf32."""
    options = [pair for step in state.steps for pair in step.options]
    named = [str(value).rpartition("-")[2] if key == "precision" else str(value) for key, value in options
             if key in ("activations", "dtype", "precision")]  # fmt: skip
    named += ["tf32"] * (("tf32", True) in options)
    by_row = (f"{name}-g{ROW}-sym" if name in ("int8", "int4") else name for name in named)  # as dynamic scales lie
    return max((format_error(name) for name in by_row if name != "fp32"), default=0.0)


def error_class(error: float) -> str:
    """Name the class of an error.

    Example:
        >>> error_class(0), error_class(0.0017), error_class(0.027), error_class(0.11)
        ('exact', '16-bit', '8-bit', '4-bit')
    """
    return next(name for name, most in CLASSES.items() if error <= most)
