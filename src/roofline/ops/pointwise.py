"""Elementwise operators, with broadcasting.

A transcendental counts one operation per element of the result, a comparison, a clip or a move none, equal parts of a
formula once. The gradients of functions of one array stand beside them: what the backward reads, its operations with
the product by the gradient, its formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Any, Literal

import numpy as np

from roofline.ir.graph import Node
from roofline.ir.sizes import maximum, prod
from roofline.ops.arrays import Call, mix, same, updated
from roofline.ops.axes import broadcast_axes, free
from roofline.ops.gradients import Rule, Tape, derived, each_operand, masked, options, runs, unchanged
from roofline.ops.registry import GRADIENTS, Array, Derivative, Op, Reference, Work, broadcast, by_option, declare, op

Unary = Callable[[Array], Array]
Binary = Callable[[Array, Array], Array]

_erf = np.frompyfunc(math.erf, 1, 1)


def sigmoid(x: Array) -> Array:
    """Return ``1 / (1 + exp(-x))`` without overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def erf(x: Array) -> Array:
    return np.positive(_erf(x), dtype=np.float64, casting="unsafe")  # of objects


def relu6(x: Array) -> Array:
    return np.clip(x, 0, 6)


def softplus(x: Array) -> Array:
    return np.logaddexp(0, x)


def _gelu_gradient(dy: Array, x: Array) -> Array:
    density = np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)
    return dy * ((1 + erf(x / np.sqrt(2))) / 2 + x * density)


def _gelu_tanh_gradient(dy: Array, x: Array) -> Array:
    inner, slope = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3), np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
    t = np.tanh(inner)
    return dy * ((1 + t) / 2 + x / 2 * (1 - t * t) * slope)


def _silu_gradient(dy: Array, x: Array, steep: float = 1.0) -> Array:
    s = sigmoid(steep * x)
    return dy * (s + steep * x * s * (1 - s))


def _mish_gradient(dy: Array, x: Array) -> Array:
    t = np.tanh(softplus(x))
    return dy * (t + x * (1 - t * t) * sigmoid(x))


#: Functions of one array: operations, the function; what their backward reads (``x`` the operand, ``y`` the result),
#: its operations, its formula.
UNARY: dict[str, tuple[int, Unary, Literal["x", "y"], int, Binary]] = {
    "abs": (0, np.abs, "x", 1, lambda dy, x: dy * np.sign(x)),
    "square": (1, np.square, "x", 2, lambda dy, x: 2 * x * dy),
    "sqrt": (1, np.sqrt, "y", 2, lambda dy, y: dy / (2 * y)),
    "rsqrt": (1, lambda x: 1 / np.sqrt(x), "y", 4, lambda dy, y: -0.5 * dy * y * y * y),
    "exp": (1, np.exp, "y", 1, lambda dy, y: dy * y),
    "log": (1, np.log, "x", 1, lambda dy, x: dy / x),
    "tanh": (1, np.tanh, "y", 3, lambda dy, y: dy * (1 - y * y)),
    "reciprocal": (1, np.reciprocal, "y", 3, lambda dy, y: -dy * y * y),
    "cos": (1, np.cos, "x", 3, lambda dy, x: -dy * np.sin(x)),
    "sin": (1, np.sin, "x", 2, lambda dy, x: dy * np.cos(x)),
    "erf": (1, erf, "x", 5, lambda dy, x: dy * (2 / np.sqrt(np.pi)) * np.exp(-x * x)),
    "sigmoid": (3, sigmoid, "y", 3, lambda dy, y: dy * y * (1 - y)),
    "silu": (4, lambda x: x * sigmoid(x), "x", 8, _silu_gradient),
    "gelu": (5, lambda x: 0.5 * x * (1 + erf(x / math.sqrt(2))), "x", 11, _gelu_gradient),
    "gelu_tanh": (
        9, lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "x", 18, _gelu_tanh_gradient,
    ),
    "quick_gelu": (5, lambda x: x * sigmoid(1.702 * x), "x", 9, lambda dy, x: _silu_gradient(dy, x, 1.702)),
    "softplus": (3, softplus, "x", 4, lambda dy, x: dy * sigmoid(x)),
    "mish": (5, lambda x: x * np.tanh(softplus(x)), "x", 13, _mish_gradient),
    "hardswish": (
        3, lambda x: x * relu6(x + 3) / 6,
        "x", 4, lambda dy, x: dy * np.where(x < -3, 0, np.where(x > 3, 1, (2 * x + 3) / 6)),
    ),
    "hardsigmoid": (2, lambda x: relu6(x + 3) / 6, "x", 1, lambda dy, x: dy * ((x > -3) & (x < 3)) / 6),
    "relu": (0, lambda x: np.maximum(x, 0), "y", 0, lambda dy, y: dy * (y > 0)),
    "relu6": (0, relu6, "x", 0, lambda dy, x: dy * ((x > 0) & (x < 6))),
}  # fmt: skip


def _operand(at: int) -> str:
    return "ab"[at] if at < 2 else str(at)


def _sub(t: Tape, node: Node, dy: str) -> None:
    for at, name in enumerate(node.inputs):
        if t.needs_grad(name):
            t.accumulate(name, t.op("neg", dy, name=f"grad_{_operand(at)}", like=name) if at else dy)


def _mul(t: Tape, node: Node, dy: str) -> None:
    for at, own in enumerate(node.inputs):
        if t.needs_grad(own):
            others = [t.saved(name) for name in (*node.inputs[:at], *node.inputs[at + 1 :])]
            number = options(node, "value")  # that stands for an operand, where there is one alone
            t.accumulate(own, t.op("mul", dy, *others, name=f"grad_{_operand(at)}", like=own, **number))


def _div(t: Tape, node: Node, dy: str) -> None:
    a, *divisors = node.inputs
    if t.needs_grad(a):
        number = options(node, "value")
        t.accumulate(a, t.op("div", dy, *map(t.saved, divisors), name="grad_a", like=a, **number))
    for at, b in enumerate(divisors, start=1):
        if t.needs_grad(b):
            saved, name = (t.saved(node.outputs[0]), t.saved(b)), f"grad_{_operand(at)}"
            t.accumulate(b, t.op("elementwise", dy, *saved, name=name, like=b, flops=3, what="div_grad"))


#: Functions of two arrays, and of more from the first to the last; a number that the graph does not list is the second:
#: operations, the function, the backward, the formulas that its elementwise operators name.
BINARY: dict[str, tuple[int, Binary, Rule | None, dict[str, Reference]]] = {
    "add": (1, np.add, unchanged, {}),
    "bias_add": (1, np.add, unchanged, {}),
    "add_scalar": (1, np.add, unchanged, {}),
    "sub": (1, np.subtract, _sub, {}),
    "mul": (1, np.multiply, _mul, {}),
    "mul_scalar": (1, np.multiply, runs("mul_scalar", carried=("value",)), {}),
    "div": (1, np.divide, _div, {"div_grad": lambda call, dy, y, b: -dy * y / b}),
    "maximum": (0, np.maximum, each_operand(0, "maximum_grad_{}"), {
        "maximum_grad_0": lambda call, dy, a, b=0: dy * (a > b), "maximum_grad_1": lambda call, dy, a, b: dy * (b >= a),
    }),
    "minimum": (0, np.minimum, each_operand(0, "minimum_grad_{}"), {
        "minimum_grad_0": lambda call, dy, a, b=0: dy * (a < b), "minimum_grad_1": lambda call, dy, a, b: dy * (b <= a),
    }),
}  # fmt: skip

#: Operations per element of the result of each elementwise operator by name.
POINTWISE: dict[str, int] = {}


def pointwise(name: str, flops: int, reference: Reference, gradient: Rule | None = None, **fields: Any) -> None:
    """Declare an elementwise operator with so many operations per element of the result."""
    POINTWISE[name] = flops
    doc = f"Elementwise {name} with broadcasting, {flops} FLOP per element."
    declare(Op(name, None, "pointwise", doc, lambda batch: Work(vector=flops * batch), reference, broadcast,
               gradient=gradient, rule=broadcast_axes, **fields))  # fmt: skip


def _of_one(function: Unary) -> Reference:
    return lambda call, x, *more: function(sum(more, x))


def _of_two(function: Binary) -> Reference:
    return lambda call, x, *more: reduce(function, more or (call.free("value"),), x)


def _of_gradient(function: Binary) -> Reference:
    return lambda call, dy, saved: function(dy, saved)


for _name, (_flops, _function, _reads, _cost, _gradient) in UNARY.items():
    pointwise(_name, _flops, _of_one(_function), derived, derivative=Derivative(_reads, _cost, _of_gradient(_gradient)))
for _name, (_flops, _function2, _rule, _formulas) in BINARY.items():
    pointwise(_name, _flops, _of_two(_function2), _rule, gradients=_formulas)
for _name in ("copy", "cast", "identity"):
    pointwise(_name, 0, same, unchanged)
pointwise("neg", 1, _of_one(np.negative), runs("neg"))


def _softcap(call: Call, x: Array, *more: Array) -> Array:
    cap = call.free("cap", 1, 30)
    return cap * np.tanh(sum(more, x) / cap)


def _clamp(call: Call, *arrays: Array) -> Array:
    """Return the middle one of three arrays, whichever are the bounds; of one array, what lies between two numbers."""
    if len(arrays) > 2:
        low, x, high = np.broadcast_arrays(*arrays[:3])
        return np.maximum(np.minimum(low, x), np.minimum(np.maximum(low, x), high))
    if len(arrays) == 2:
        return np.minimum(*arrays)
    return np.clip(arrays[0], call.free("low", -2, -1), call.free("high", 1, 2))


def _inside(call: Call, dy: Array, x: Array) -> Array:
    return dy * ((x > call.free("low", -2, -1)) & (x < call.free("high", 1, 2)))


def _power(call: Call, x: Array, *exponent: Array) -> Array:
    """Raise to a power; one of the node's own is even, so that roots may follow as in a norm."""
    own = call.attrs.get("exponent", 2 * round(call.free("half of the exponent", 1, 2)))
    return np.power(x, exponent[0] if exponent else float(own))


def _power_gradient(t: Tape, node: Node, dy: str) -> None:
    """``dy * (n * x^(n-1))``, three kernels."""
    x = node.inputs[0]
    power = t.op("pow", t.saved(x), name="grad_power", like=x)
    t.accumulate(x, t.op("mul", dy, t.op("mul_scalar", power, name="grad_slope", like=x), name="grad", like=x))


def _where(call: Call, condition: Array, *values: Array) -> Array:
    """Choose where a condition of any number format is above zero; values that are not listed are numbers."""
    rest = [call.free(f"value {at}") for at in range(len(values), 2)]
    first_value, second_value = [*values, *rest][:2]
    return np.where(condition > 0, first_value, second_value)


def _mask(call: Call, x: Array, *masks: Array) -> Array:
    """Put a number in the places where the mask is above zero."""
    return np.where(masks[0] > 0, call.free("value"), x) if masks else x


def _xielu(call: Call, x: Array, *alphas: Array) -> Array:
    """``a x^2 + x/2`` above zero, ``b (exp(x) - 1 - x) + x/2`` below (xIELU, arXiv 2411.13010)."""
    positive, negative = [*(softplus(alpha) for alpha in alphas), 1.0, 1.0][:2]
    below = np.minimum(x, 0)
    return np.where(x > 0, positive * x * x, (negative + 0.5) * (np.expm1(below) - below)) + 0.5 * x


def _xielu_gradient(t: Tape, node: Node, dy: str) -> None:
    x, *alphas = node.inputs
    t.accumulate(x, t.op("elementwise", dy, t.saved(x), *alphas, name="grad_x", like=x, flops=10))
    for at, name in enumerate(alphas):
        if t.needs_grad(name):
            t.accumulate(name, t.op("elementwise", dy, t.saved(x), name=f"grad_alpha{at}", like=name, flops=4))


def _dropout_gradient(t: Tape, node: Node, dy: str) -> None:
    """``dy * mask / (1 - p)``."""
    x, *mask = node.inputs
    t.accumulate(x, t.op("elementwise", dy, *map(t.saved, mask), name="grad", like=x, flops=2, what="dropout_grad"))


pointwise("softcap", 3, _softcap, derived, derivative=Derivative(
    "y", 4, lambda call, dy, y: dy * (1 - (y / call.free("cap", 1, 30)) ** 2)))  # fmt: skip
pointwise("clamp", 0, _clamp, derived, derivative=Derivative("x", 0, _inside))
pointwise("pow", 1, _power, _power_gradient)
pointwise("xielu", 9, _xielu, _xielu_gradient)
pointwise("where", 0, _where, masked(0))
pointwise("mask", 0, _mask, masked(1))
pointwise("dropout", 1, same, _dropout_gradient,
          gradients={"dropout_grad": lambda call, dy, *mask: dy * (mask[0] if mask else 1)})  # fmt: skip


# --- those that say less, or more -------------------------------------------------------------------------------------


@op("elementwise", None, "pointwise", shape=broadcast, formula=lambda batch, flops=1: Work(vector=flops * batch),
    gradient=each_operand(), rule=broadcast_axes)  # fmt: skip
def elementwise(call: Call, *arrays: Array) -> Array:
    """Any elementwise function, ``flops`` operations per element; ``what`` may name a gradient.

    Of another nothing says which function it is: a smooth one between 0 and 1, or its sign where flags are expected.
    """
    gradient = GRADIENTS.get(str(call.attrs.get("what", "")))
    if gradient is not None:
        return gradient(call, *arrays)
    terms = (call.free(f"weight {at}", -1, 1) * x for at, x in enumerate(arrays))
    total = sum(terms, call.free("offset", -0.5, 0.5))
    return np.greater(total, 0.0).astype(np.float64) if call.dtype == "bool" else sigmoid(total)


declare(Op(
    "recurrent_cell", "t b x, b x, b h -> t b h", "pointwise",
    "One step of a recurrent layer: its gates, from its row of the projected inputs, to its row of the states.",
    lambda b, x, h, flops: Work(vector=flops * b * h, reads={0: b * x}, writes=b * h), mix, fixed="x h",
))  # fmt: skip
declare(Op(
    "recurrent_cell_grad", "t b h, t b x -> t b x", "pointwise",
    "Backward of one step to its gates: the derivatives take about twice the operations.",
    lambda b, x, h, flops: Work(vector=2 * flops * b * h, reads={0: b * h, 1: b * x}, writes=b * x), mix, fixed="x h",
))  # fmt: skip
declare(Op(
    "fill", None, "pointwise", "Write a constant, or numbers a ``step`` apart.", shape=by_option, rule=free,
    reference=lambda call: np.full(call.shape, call.free("value"))
    + call.attrs.get("step", 0) * call.arange(call.shape[-1] if call.shape else 1).reshape(call.shape[-1:]),
))  # fmt: skip
declare(Op(
    "bernoulli", None, "pointwise",
    "Draw the mask of a dropout: integer arithmetic of a generator, which is not counted. All ones in numpy.",
    reference=lambda call: np.ones(call.shape), shape=by_option, rule=free,
))  # fmt: skip
declare(Op(
    "update", "..., * -> ...", "pointwise",
    "Write the first operand anew in place, from itself and the others: ``flops`` per element of the largest of them. "
    "A factored state of an optimizer is smaller than the gradient.",
    lambda shapes, flops=1: Work(vector=flops * reduce(maximum, map(prod, shapes)), writes=prod(shapes[0])),
    updated, alias=0, rule=broadcast_axes,
))  # fmt: skip
