"""The arithmetic of one element, read off the operators' own meanings in numpy: what they do to an array, traced.

A formula is called with a stand-in for each operand that records ufuncs instead of computing them. A multiplication by
a flag is a choice, ``0.5 (1 + tanh(x / 2))`` is the sigmoid that it was written for: one exponential.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from roofline.codegen.loops.form import Const, Op, Store, Value, values
from roofline.ir.errors import UsageError

#: Scalar functions: operations that each counts as, and what it computes. A sign, a comparison and a choice count none.
SCALARS: dict[str, tuple[int, Callable[..., float]]] = {
    "add": (1, lambda a, b: a + b), "sub": (1, lambda a, b: a - b), "mul": (1, lambda a, b: a * b),
    "div": (1, lambda a, b: a / b if b else math.copysign(math.inf, a) if a else math.nan),
    "exp": (1, lambda a: math.exp(a) if a < 709 else math.inf), "exp2": (1, lambda a: 2.0**a if a < 1023 else math.inf),
    "log": (1, math.log), "log1p": (1, math.log1p), "expm1": (1, math.expm1), "tanh": (1, math.tanh),
    "erf": (1, math.erf), "sqrt": (1, math.sqrt), "rsqrt": (1, lambda a: 1 / math.sqrt(a)),
    "sin": (1, math.sin), "cos": (1, math.cos), "pow": (1, math.pow), "sign": (0, lambda a: (a > 0) - (a < 0)),
    "neg": (0, lambda a: -a), "abs": (0, abs), "max": (0, max), "min": (0, min),
    "gt": (0, lambda a, b: float(a > b)), "ge": (0, lambda a, b: float(a >= b)),
    "select": (0, lambda flag, a, b: a if flag > 0 else b),
}  # fmt: skip
#: numpy's names of them.
_UFUNCS = {
    "add": "add", "subtract": "sub", "multiply": "mul", "divide": "div", "exp": "exp", "log": "log", "expm1": "expm1",
    "tanh": "tanh", "erf": "erf", "sqrt": "sqrt", "sin": "sin", "cos": "cos", "absolute": "abs", "sign": "sign",
    "maximum": "max", "minimum": "min", "greater": "gt", "greater_equal": "ge",
}  # fmt: skip
_HALF, _ONE, _ZERO = Const(0.5), Const(1.0), Const(0.0)


def apply(name: str, *args: Value | float) -> Value:
    """Return arithmetic on values and numbers, written as it is counted."""
    a = tuple(Const(float(each)) if isinstance(each, int | float) else each for each in args)
    if all(isinstance(each, Const) for each in a):
        return Const(float(SCALARS[name][1](*(each.value for each in a if isinstance(each, Const)))))
    return _SIMPLER.get(name, Op)(name, a)


def _is_flag(value: Value) -> bool:
    """Tell whether a value is a comparison, or two of them."""
    both = isinstance(value, Op) and value.name == "select" and value.args[2] == _ZERO
    return isinstance(value, Op) and (value.name in ("gt", "ge") or (both and all(map(_is_flag, value.args[:2]))))


def _product(name: str, a: tuple[Value, ...]) -> Value:
    left, right = a
    for one, other in ((left, right), (right, left)):
        if one == _ONE:
            return other
        if _is_flag(one):
            return Op("select", (one, other, _ZERO))
    if left == _HALF and isinstance(right, Op) and right.name == "add" and right.args[0] == _ONE:
        inner = right.args[1]
        if isinstance(inner, Op) and inner.name == "tanh":
            half = inner.args[0]
            if isinstance(half, Op) and half.name == "mul" and half.args[0] == _HALF:
                return apply("div", 1.0, apply("add", 1.0, apply("exp", Op("neg", (half.args[1],)))))
    return Op(name, a)


def _sum(name: str, a: tuple[Value, ...]) -> Value:
    return a[1] if a[0] == _ZERO else a[0] if a[1] == _ZERO else Op(name, a)


def _quotient(name: str, a: tuple[Value, ...]) -> Value:
    above, below = a
    return Op("rsqrt", below.args) if above == _ONE and isinstance(below, Op) and below.name == "sqrt" else Op(name, a)


_SIMPLER: dict[str, Callable[[str, tuple[Value, ...]], Value]] = {"mul": _product, "add": _sum, "div": _quotient}


@dataclass(frozen=True, eq=False)
class Traced(NDArrayOperatorsMixin):
    """A stand-in for an array in a formula: one element of it."""

    value: Value
    shape: tuple[int, ...] = ()
    ndim: int = 0

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **_: Any) -> Any:
        args = [_value(each) for each in inputs]
        name = ufunc.__name__.removesuffix(" (vectorized)")
        if method != "__call__":
            raise UsageError(f"numpy's {name}.{method} is no arithmetic of one element")
        if name in _SPECIAL:
            return Traced(_SPECIAL[name](*args))
        if name not in _UFUNCS:
            raise UsageError(f"numpy's {name} has no counterpart in a loop")
        return Traced(apply(_UFUNCS[name], *args))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if function is np.where:
            return Traced(Op("select", tuple(map(_value, args))))
        if function is np.clip:
            return Traced(apply("min", apply("max", _value(args[0]), _value(args[1])), _value(args[2])))
        if function is np.broadcast_arrays:
            return args
        raise UsageError(f"numpy's {function.__name__} has no counterpart in a loop")

    def astype(self, *_: Any, **__: Any) -> Traced:
        """Stay as it is: formats belong to buffers."""
        return self


def _value(each: Any) -> Value:
    own = each.item() if isinstance(each, np.ndarray) else each
    return own.value if isinstance(own, Traced) else Const(float(own))


def _power(base: Value, exponent: Value) -> Value:
    """Multiply for a small whole exponent."""
    if isinstance(exponent, Const) and exponent.value in (2, 3, 4):
        square = apply("mul", base, base)
        return {2: square, 3: apply("mul", square, base), 4: apply("mul", square, square)}[int(exponent.value)]
    return apply("pow", base, exponent)


def _softplus(low: Value, x: Value) -> Value:
    """``log(exp(0) + exp(x))`` without overflow."""
    assert low == _ZERO
    small = apply("exp", apply("neg", apply("abs", x)))
    return apply("add", apply("max", x, 0.0), apply("log1p", small))


_SPECIAL: dict[str, Callable[..., Value]] = {
    "negative": lambda x: apply("sub", 0.0, x), "positive": lambda x: x, "square": lambda x: apply("mul", x, x),
    "reciprocal": lambda x: apply("div", 1.0, x), "power": _power, "logaddexp": _softplus,
    "less": lambda a, b: apply("gt", b, a), "less_equal": lambda a, b: apply("ge", b, a),
    "bitwise_and": lambda a, b: Op("select", (a, b, _ZERO)),
}  # fmt: skip


def traced(formula: Callable[..., Any], *operands: Value) -> Value:
    """Return what a formula in numpy does to one element of each operand.

    Example:
        >>> from roofline.codegen.loops.form import Load
        >>> traced(lambda x: np.maximum(x, 0), Load("x", ()))
        Op(name='max', args=(Load(buffer='x', index=()), Const(value=0.0)))
    """
    return _value(formula(*map(Traced, operands)))


def operations(store: Store) -> int:
    """Count what one run of a store computes: equal parts of it once, a reduction one more."""
    distinct = {each for each in values(store.value) if isinstance(each, Op)}
    own = SCALARS[store.how][0] if store.how else 0
    return own + sum(SCALARS[each.name][0] for each in distinct)
