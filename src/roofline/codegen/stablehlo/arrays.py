"""Arrays that record what numpy does to them: the numpy meaning of an operator, run on these, is its StableHLO.

Two protocols of numpy hand every function of arrays to :class:`Recorded`:
https://numpy.org/doc/stable/user/basics.interoperability.html
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from roofline.codegen.stablehlo import body as hlo
from roofline.codegen.stablehlo.body import Body, Value
from roofline.ir.errors import UnknownOp
from roofline.ops.registry import axes_of

Axes = int | Sequence[int] | None


class Recorded(NDArrayOperatorsMixin):
    """A tensor of a function that numpy takes for an array.

    Args:
        body: The function.
        value: The tensor.
    """

    def __init__(self, body: Body, value: Value) -> None:
        self.body, self.value = body, value

    # --- as arrays are ---

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return self.value.shape

    @property
    def ndim(self) -> int:
        """The number of its axes."""
        return len(self.value.shape)

    @property
    def size(self) -> int:
        """The number of its elements."""
        return math.prod(self.value.shape)

    def __len__(self) -> int:
        return self.value.shape[0]

    def __array__(self, *args: Any, **options: Any) -> Any:
        raise TypeError("a tensor that is recorded has no numbers")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        """Record an elementwise function."""
        name = ufunc.__name__.partition(" ")[0]
        if method != "__call__" or name not in ELEMENTWISE:
            raise UnknownOp(f"no rule for numpy's {name}{'' if method == '__call__' else f'.{method}'}")
        values = [self.operand(each, inputs) for each in inputs]
        return Recorded(self.body, ELEMENTWISE[name](self.body, *values))

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Record a function of arrays."""
        rule = FUNCTIONS.get(function.__name__)
        if rule is None:
            raise UnknownOp(f"no rule for numpy's {function.__name__}")
        return rule(self, *args, **kwargs)

    def __getitem__(self, key: Any) -> Recorded:
        if isinstance(key, Recorded):
            return self.made(hlo.rows(self.body, self.value, key.value))
        return self.made(_part(self.body, self.value, key if isinstance(key, tuple) else (key,)))

    def reshape(self, *shape: Any) -> Recorded:
        """Return the same elements in another shape."""
        sizes = list(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        if -1 in sizes:
            sizes[sizes.index(-1)] = self.size // math.prod(size for size in sizes if size != -1)
        return self.made(hlo.reshape(self.body, self.value, sizes))

    def ravel(self) -> Recorded:
        """Return all elements in a row."""
        return self.reshape(-1)

    def transpose(self, *axes: Any) -> Recorded:
        """Return the axes in another order."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes or range(self.ndim)[::-1]
        return self.made(hlo.transpose(self.body, self.value, [at % self.ndim for at in order]))

    def swapaxes(self, one: int, other: int) -> Recorded:
        """Exchange two axes."""
        order = list(range(self.ndim))
        order[one], order[other] = order[other], order[one]
        return self.transpose(order)

    def repeat(self, times: int, axis: int) -> Recorded:
        """Repeat every element along an axis."""
        at = axis % self.ndim
        before, size, behind = self.shape[:at], self.shape[at], self.shape[at + 1 :]
        axes = [each for each in range(self.ndim + 1) if each != at + 1]
        wide = hlo.broadcast(self.body, self.value, (*before, size, times, *behind), axes)
        return self.made(hlo.reshape(self.body, wide, (*before, size * times, *behind)))

    def astype(self, dtype: Any) -> Recorded:
        """Return other elements: whole numbers, flags, or floating-point numbers as wide as they are computed in."""
        kind = np.dtype(dtype).kind
        if (kind == "f") == hlo.is_float(self.value.element):
            return self
        return self.made(hlo.convert(self.body, self.value, {"i": "i64", "b": "i1"}.get(kind, "f32")))

    def sum(self, axis: Axes = None, keepdims: bool = False) -> Recorded:
        """Add up some axes."""
        return self.reduced("add", 0, axis, keepdims)

    def mean(self, axis: Axes = None, keepdims: bool = False) -> Recorded:
        """Average some axes."""
        total = self.sum(axis, keepdims)
        return total / (self.size / max(total.size, 1)) if self.size else total

    def max(self, axis: Axes = None, keepdims: bool = False) -> Recorded:
        """Return the largest along some axes."""
        return self.reduced("maximum", -math.inf, axis, keepdims)

    # --- as rules use them ---

    def made(self, value: Value) -> Recorded:
        """Return another tensor of the same function."""
        return Recorded(self.body, value)

    def reduced(self, op: str, start: float, axis: Axes, keepdims: bool = False) -> Recorded:
        """Reduce some axes."""
        return self.made(hlo.reduce(self.body, self.value, op, start, axes_of(self.ndim, axis), keepdims))

    def operand(self, x: Any, among: Sequence[Any] = ()) -> Value:
        """Return an operand as a tensor; a number has the type of the tensors that it meets."""
        if isinstance(x, Recorded):
            return x.value
        elements = [each.value.element for each in among if isinstance(each, Recorded)] or [self.value.element]
        array = np.asarray(x)
        if array.dtype.kind == "b":
            return hlo.constant(self.body, array, "i1")
        element = hlo.wider(*elements)
        if element == "i1":
            element = "i32"
        if array.dtype.kind == "f" and not hlo.is_float(element):
            element = "f32"
        return hlo.constant(self.body, array, element)


def _part(body: Body, x: Value, key: tuple[Any, ...]) -> Value:
    """Return what numbers, slices, ``None`` and ``...`` say, of which ``None`` adds an axis and a number drops one."""
    real = sum(each is not None and each is not Ellipsis for each in key)
    fill = (slice(None),) * (len(x.shape) - real)
    at = next((at for at, each in enumerate(key) if each is Ellipsis), len(key))
    full = (*key[:at], *fill, *key[at + 1 :])
    ranges: list[range] = []
    shape: list[int] = []
    for each in full:
        if each is None:
            shape.append(1)
            continue
        size = x.shape[len(ranges)]
        if isinstance(each, slice):
            ranges.append(range(*each.indices(size)))
            shape.append(len(ranges[-1]))
        else:
            ranges.append(range(int(each) % size, int(each) % size + 1))
    starts, ends, steps = ([getattr(each, part) for each in ranges] for part in ("start", "stop", "step"))
    return hlo.reshape(body, hlo.cut(body, x, starts, ends, steps), shape)


# --- elementwise functions of numpy -----------------------------------------------------------------------------------

Elementwise = Callable[..., Value]


def _one(op: str) -> Elementwise:
    return lambda body, x: hlo.simple(body, op, _real(body, x))


def _real(body: Body, x: Value) -> Value:
    return x if hlo.is_float(x.element) else hlo.convert(body, x, "f32")


def _two(op: str) -> Elementwise:
    """Record arithmetic, in which flags are the numbers 0 and 1."""

    def rule(body: Body, x: Value, y: Value) -> Value:
        if x.element == y.element == "i1":
            x = hlo.convert(body, x, "i32")
        return hlo.binary(body, op, x, y)

    return rule


def _compared(how: str) -> Elementwise:
    return lambda body, x, y: hlo.compare(body, how, x, y)


def _divide(body: Body, x: Value, y: Value) -> Value:
    return hlo.binary(body, "divide", _real(body, x), _real(body, y))


def _flags(op: str) -> Elementwise:
    return lambda body, x, y: hlo.binary(body, op, x, y)


def _power(body: Body, x: Value, y: Value) -> Value:
    return hlo.binary(body, "power", _real(body, x), _real(body, y))


def _remainder(body: Body, x: Value, y: Value) -> Value:
    """Return the remainder with the sign of the divisor, as numpy defines it; StableHLO's has that of the dividend."""
    rest = hlo.binary(body, "remainder", x, y)
    zero = hlo.constant(body, 0, rest.element, rest.shape)
    signs = [hlo.compare(body, "LT", each, hlo.constant(body, 0, each.element, each.shape)) for each in (rest, y)]
    turned = hlo.binary(body, "and", hlo.binary(body, "xor", *signs), hlo.compare(body, "NE", rest, zero))
    return hlo.select(body, turned, hlo.binary(body, "add", rest, y), rest)


def _logaddexp(body: Body, x: Value, y: Value) -> Value:
    """Return ``max + log(1 + exp(-|x - y|))``."""
    x, y = _real(body, x), _real(body, y)
    apart = hlo.simple(body, "abs", hlo.binary(body, "subtract", x, y))
    tail = hlo.simple(body, "log_plus_one", hlo.simple(body, "exponential", hlo.simple(body, "negate", apart)))
    return hlo.binary(body, "add", hlo.binary(body, "maximum", x, y), tail)


def _clip(body: Body, x: Value, low: Value, high: Value) -> Value:
    return hlo.binary(body, "minimum", hlo.binary(body, "maximum", x, low), high)


def _rounded(body: Body, x: Value) -> Value:
    return hlo.simple(body, "round_nearest_even", x) if hlo.is_float(x.element) else x


#: Elementwise functions by numpy's names.
ELEMENTWISE: dict[str, Elementwise] = {
    **{name: _two(op) for name, op in {
        "add": "add", "subtract": "subtract", "multiply": "multiply", "maximum": "maximum", "minimum": "minimum",
    }.items()},
    **{name: _one(op) for name, op in {
        "exp": "exponential", "log": "log", "tanh": "tanh", "sqrt": "sqrt", "sin": "sine", "cos": "cosine",
        "expm1": "exponential_minus_one", "log1p": "log_plus_one", "erf": "chlo.erf",
    }.items()},
    **{name: _compared(how) for name, how in {
        "greater": "GT", "greater_equal": "GE", "less": "LT", "less_equal": "LE", "equal": "EQ", "not_equal": "NE",
    }.items()},
    **{name: _flags(op) for name, op in {
        "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "logical_and": "and", "logical_or": "or",
    }.items()},
    "absolute": lambda body, x: hlo.simple(body, "abs", x),
    "negative": lambda body, x: hlo.simple(body, "negate", x),
    "sign": lambda body, x: hlo.simple(body, "sign", x),
    "positive": lambda body, x: x,
    "square": lambda body, x: hlo.binary(body, "multiply", x, x),
    "reciprocal": lambda body, x: hlo.binary(body, "divide", hlo.constant(body, 1, x.element, x.shape), x),
    "isfinite": lambda body, x: body.add(
        f"stablehlo.is_finite {x.name} : ({x.type}) -> {hlo.tensor(x.shape, 'i1')}", x.shape, "i1"),
    "rint": _rounded, "divide": _divide, "power": _power, "remainder": _remainder, "logaddexp": _logaddexp,
    "clip": _clip,
}  # fmt: skip


# --- functions of arrays ----------------------------------------------------------------------------------------------


def _where(own: Recorded, condition: Any, x: Any, y: Any) -> Recorded:
    values = [own.operand(each, (x, y)) for each in (x, y)]
    return own.made(hlo.select(own.body, own.operand(condition), *values))


def _joined(own: Recorded, arrays: Sequence[Any], axis: int = 0) -> Recorded:
    values = [own.operand(each, arrays) for each in arrays]
    element = hlo.wider(*(each.element for each in values))
    parts = [hlo.convert(own.body, each, element) for each in values if math.prod(each.shape)]
    return own.made(hlo.concatenate(own.body, parts, axis) if len(parts) > 1 else parts[0])


def _stacked(own: Recorded, arrays: Sequence[Any], axis: int = 0) -> Recorded:
    def at(array: Recorded) -> Recorded:
        place = axis % (array.ndim + 1)
        return array.reshape((*array.shape[:place], 1, *array.shape[place:]))

    return _joined(own, [at(each) for each in arrays], axis)


def _broadcast(own: Recorded, x: Any, shape: Sequence[int]) -> Recorded:
    return own.made(hlo.expand(own.body, own.operand(x), shape))


def _padded(own: Recorded, x: Recorded, around: Any, constant_values: float = 0.0, mode: str = "") -> Recorded:
    pairs = [tuple(each) for each in np.broadcast_to(around, (x.ndim, 2)).tolist()]
    return own.made(hlo.pad(own.body, x.value, pairs, constant_values))


def _resized(own: Recorded, x: Recorded, shape: Sequence[int]) -> Recorded:
    size = math.prod(shape)
    turns = -(-size // x.size)
    flat = x.reshape((1, x.size))
    repeated = _broadcast(own, flat, (turns, x.size)).reshape(-1)
    return repeated[:size].reshape(shape)


def _cumulated(own: Recorded, x: Recorded, axis: int) -> Recorded:
    """Return running sums: of windows as long as the axis, over zeros before it."""
    at, ones = axis % x.ndim, [1] * x.ndim
    sizes = [size if each == at else 1 for each, size in enumerate(x.shape)]
    around = [(x.shape[at] - 1, 0) if each == at else (0, 0) for each in range(x.ndim)]
    return own.made(hlo.windows(own.body, x.value, "add", 0, sizes, ones, around))


def _largest(own: Recorded, x: Recorded, axis: int) -> Recorded:
    """Return the first place of the largest number along the last axis."""
    places = hlo.expand(own.body, hlo.iota(own.body, x.shape[axis]), x.shape)
    peak = x.max(axis, keepdims=True)
    none = hlo.constant(own.body, x.shape[axis], "i32", x.shape)
    first = hlo.select(own.body, (x == peak).value, places, none)
    return own.made(first).reduced("minimum", x.shape[axis], axis)


def _variance(own: Recorded, x: Recorded, axis: Axes = None, keepdims: bool = False) -> Any:
    rest: Any = x - x.mean(axis, keepdims=True)
    return (rest * rest).mean(axis, keepdims)


def _sorted(own: Recorded, x: Any, axis: int = -1) -> Any:
    return -own.made(hlo.largest_first(own.body, (-x).value))


def _taken(own: Recorded, x: Recorded, places: Recorded) -> Any:
    """Return an element of each row: what is left of it where all others are zero."""
    row: Any = own.made(hlo.iota(own.body, x.shape[-1], places.value.element))
    return np.sum(np.where(row == places, x, 0.0), axis=-1, keepdims=True)


#: Functions of arrays by numpy's names; the first argument is an array among the arguments.
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "where": _where, "concatenate": _joined, "stack": _stacked, "broadcast_to": _broadcast, "pad": _padded,
    "resize": _resized, "cumsum": _cumulated, "argmax": _largest, "var": _variance, "sort": _sorted,
    "std": lambda own, *args, **options: np.sqrt(_variance(own, *args, **options)),
    "sum": lambda own, x, axis=None, keepdims=False: x.sum(axis, keepdims),
    "mean": lambda own, x, axis=None, keepdims=False: x.mean(axis, keepdims),
    "max": lambda own, x, axis=None, keepdims=False: x.max(axis, keepdims),
    "min": lambda own, x, axis=None, keepdims=False: x.reduced("minimum", math.inf, axis, keepdims),
    "prod": lambda own, x, axis=None, keepdims=False: x.reduced("multiply", 1, axis, keepdims),
    "broadcast_arrays": lambda own, *arrays: [
        _broadcast(own, each, np.broadcast_shapes(*(np.shape(other) for other in arrays))) for each in arrays],
    "clip": lambda own, x, low, high: own.made(_clip(own.body, *(own.operand(each, (x,)) for each in (x, low, high)))),
    "shape": lambda own, x: x.shape,
    "repeat": lambda own, x, times, axis: x.repeat(times, axis),
    "take_along_axis": lambda own, x, places, axis: _taken(own, x, places),
}  # fmt: skip
