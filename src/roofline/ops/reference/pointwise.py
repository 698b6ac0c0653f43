"""What elementwise operators compute."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import numpy as np

from roofline.ops.reference.calls import MEANINGS, Array, Call, means, mix

_erf = np.frompyfunc(math.erf, 1, 1)


def sigmoid(x: Array) -> Array:
    """``1 / (1 + exp(-x))`` without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def relu6(x: Array) -> Array:
    return np.clip(x, 0, 6)


def erf(x: Array) -> Array:
    return np.asarray(_erf(x), dtype=np.float64)


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


#: Functions of one array.
UNARY: dict[str, Callable[[Array], Array]] = {
    "neg": np.negative, "square": np.square, "sqrt": np.sqrt, "rsqrt": lambda x: 1 / np.sqrt(x), "exp": np.exp,
    "log": np.log, "tanh": np.tanh, "reciprocal": np.reciprocal, "cos": np.cos, "sin": np.sin, "abs": np.abs,
    "erf": erf, "sigmoid": sigmoid, "silu": lambda x: x * sigmoid(x), "gelu": gelu, "gelu_tanh": gelu_tanh,
    "quick_gelu": lambda x: x * sigmoid(1.702 * x), "softplus": softplus, "mish": lambda x: x * np.tanh(softplus(x)),
    "relu": lambda x: np.maximum(x, 0), "relu6": relu6, "hardswish": lambda x: x * relu6(x + 3) / 6,
    "hardsigmoid": lambda x: relu6(x + 3) / 6, "copy": lambda x: x, "cast": lambda x: x, "identity": lambda x: x,
    "dropout": lambda x: x, "dequantize": lambda x: x, "quantize": lambda x: x, "quantize_rows": lambda x: x,
}  # fmt: skip

#: Functions of two arrays; of more, from the first to the last.
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "bias_add": np.add,
    "maximum": np.maximum, "minimum": np.minimum, "mul_scalar": np.multiply, "add_scalar": np.add, "pow": np.power,
}  # fmt: skip


def _unary(function: Callable[[Array], Array]) -> Callable[..., Array]:
    def meaning(call: Call, x: Array, *more: Array) -> Array:
        return function(sum(more, x))

    return meaning


def _binary(function: Callable[[Array, Array], Array]) -> Callable[..., Array]:
    """An operand that the graph does not list is a number: the option ``value``, or one of the node's own."""

    def meaning(call: Call, x: Array, *more: Array) -> Array:
        return reduce(function, more or (np.asarray(call.free("value")),), x)

    return meaning


MEANINGS.update({name: _unary(function) for name, function in UNARY.items()})
MEANINGS.update({name: _binary(function) for name, function in BINARY.items()})


@means("pow")
def power(call: Call, x: Array, *exponent: Array) -> Array:
    """A power of its own is even, so that roots may follow as in a norm."""
    own = np.asarray(call.attrs.get("exponent", 2 * round(call.free("half of the exponent", 1, 2))))
    return np.asarray(np.power(x, exponent[0] if exponent else own), dtype=np.float64)


@means("softcap")
def softcap(call: Call, x: Array, *more: Array) -> Array:
    cap = call.free("cap", 1, 30)
    return cap * np.tanh(sum(more, x) / cap)


@means("clamp")
def clamp(call: Call, *arrays: Array) -> Array:
    """Of three arrays the middle one, whichever of them are the bounds; of one, between two numbers."""
    if len(arrays) > 2:
        low, x, high = np.broadcast_arrays(*arrays[:3])
        return np.maximum(np.minimum(low, x), np.minimum(np.maximum(low, x), high))
    if len(arrays) == 2:
        return np.minimum(*arrays)
    return np.clip(arrays[0], call.free("low", -2, -1), call.free("high", 1, 2))


@means("where")
def where(call: Call, condition: Array, *values: Array) -> Array:
    """True above zero, so that a condition of any number format chooses; values that are not listed are numbers."""
    rest = [np.asarray(call.free(f"value {at}")) for at in range(len(values), 2)]
    first, second = [*values, *rest][:2]
    return np.where(condition > 0, first, second)


@means("mask")
def mask(call: Call, x: Array, *masks: Array) -> Array:
    """A number in the places where the mask is above zero."""
    return np.where(masks[0] > 0, call.free("value"), x) if masks else x


@means("xielu")
def xielu(call: Call, x: Array, *alphas: Array) -> Array:
    """``a x^2 + x/2`` above zero, ``b (exp(x) - 1 - x) + x/2`` below (xIELU, arXiv 2411.13010)."""
    positive, negative = [*(softplus(alpha) for alpha in alphas), np.asarray(1.0), np.asarray(1.0)][:2]
    below = np.minimum(x, 0)
    return np.where(x > 0, positive * x * x, (negative + 0.5) * (np.expm1(below) - below)) + 0.5 * x


@means("elementwise")
def elementwise(call: Call, *arrays: Array) -> Array:
    """Nothing says which function: a smooth one between 0 and 1, or its sign where flags are wanted."""
    terms = (call.free(f"weight {at}", -1, 1) * x for at, x in enumerate(arrays))
    total = sum(terms, np.asarray(call.free("offset", -0.5, 0.5)))
    return (total > 0).astype(np.float64) if call.dtype == "bool" else sigmoid(total)


@means("bernoulli")
def bernoulli(call: Call) -> Array:
    """All ones: dropout keeps everything here."""
    return np.ones(call.shape)


@means("fill")
def fill(call: Call) -> Array:
    return np.full(call.shape, call.free("value"))


@means("recurrent_cell", "recurrent_cell_grad")
def cell(call: Call, *arrays: Array) -> Array:
    """Nothing says which gates: a fixed function of all that is read."""
    return mix(call, arrays, call.shape)
