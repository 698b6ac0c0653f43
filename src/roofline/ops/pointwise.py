"""Elementwise operators, with broadcasting."""

from __future__ import annotations

from functools import reduce
from typing import Any

from roofline.ir.sizes import maximum, prod
from roofline.ops.registry import Work, broadcast, op

#: Floating-point operations of one output element; a transcendental counts one, a comparison or a move none.
POINTWISE: dict[str, int] = {
    "add": 1, "sub": 1, "mul": 1, "div": 1, "neg": 1, "mul_scalar": 1, "add_scalar": 1, "bias_add": 1,
    "square": 1, "sqrt": 1, "rsqrt": 1, "exp": 1, "log": 1, "tanh": 1, "pow": 1, "reciprocal": 1, "cos": 1, "sin": 1,
    "erf": 1, "softcap": 3, "sigmoid": 3, "silu": 4, "gelu": 5, "gelu_tanh": 9, "quick_gelu": 5, "xielu": 9,
    "softplus": 3, "mish": 5, "hardswish": 4, "hardsigmoid": 3, "where": 0, "mask": 0, "relu": 0, "relu6": 0,
    "clamp": 0, "abs": 0, "maximum": 0, "minimum": 0, "copy": 0, "cast": 0, "dropout": 1, "identity": 0,
}  # fmt: skip


def _register_pointwise(name: str, cost: int) -> None:
    def formula(batch: Any) -> Work:
        return Work(vector=cost * batch)

    formula.__doc__ = f"Elementwise {name} with broadcasting, {cost} FLOP an element."
    op(name, None, "pointwise", shape=lambda shapes: broadcast(shapes))(formula)


for _name, _cost in POINTWISE.items():
    _register_pointwise(_name, _cost)


@op("elementwise", None, "pointwise", shape=lambda shapes: broadcast(shapes))
def elementwise(batch: Any, flops: int = 1) -> Work:
    """Any elementwise function, ``flops`` operations an element."""
    return Work(vector=flops * batch)


@op("recurrent_cell", "t b x, b x, b h -> t b h", "pointwise")
def recurrent_cell(b: Any, x: Any, h: Any, flops: int) -> Work:
    """One step of a recurrent layer: its gates, from its row of the projected inputs, to its row of the states."""
    return Work(vector=flops * b * h, reads={0: b * x}, writes=b * h)


@op("recurrent_cell_grad", "t b h, t b x -> t b x", "pointwise")
def recurrent_cell_grad(b: Any, x: Any, h: Any, flops: int) -> Work:
    """Backward of one step to its gates: the derivatives take about twice the operations."""
    return Work(vector=2 * flops * b * h, reads={0: b * h, 1: b * x}, writes=b * x)


@op("fill", None, "pointwise", shape=lambda shapes, shape: tuple(shape))
def fill() -> Work:
    """Write a constant."""
    return Work()


@op("bernoulli", None, "pointwise", shape=lambda shapes, shape: tuple(shape))
def bernoulli() -> Work:
    """Draw the mask of a dropout: integer arithmetic of a generator, which is not counted."""
    return Work()


@op("update", None, "pointwise", shape=lambda shapes: shapes[0], alias=0)
def update(shapes: Any, flops: int = 1) -> Work:
    """Write the first operand anew in place, from itself and the others: ``flops`` an element of the largest of them.

    A factored state of an optimizer is smaller than the gradient that it is worked out from.
    """
    return Work(vector=flops * reduce(maximum, map(prod, shapes)), writes=prod(shapes[0]))
