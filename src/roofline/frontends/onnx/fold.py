"""Shapes that a file spells as programs: what follows from the shapes and small constants alone is no work."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from roofline.frontends.onnx.known import ELEMENTWISE, UNKNOWN, Value, array, cast, constant, each
from roofline.frontends.onnx.read import SMALL, elements
from roofline.frontends.onnx.rules.layout import LOOKS
from roofline.frontends.onnx.rules.pointwise import ELEMENTWISE as POINTWISE
from roofline.frontends.onnx.walk import Call, Undetermined
from roofline.ir.sizes import Dim, prod

_Array = np.ndarray[Any, Any]
#: A function of a node and the elements of its first operand; nothing where it has work to do.
_Folder = Callable[[Call, _Array], "_Array | Sequence[_Array] | None"]


def fold(call: Call) -> list[Value] | None:
    """Return the results of a node whose operands are known; ``None`` where it has work to do."""
    if call.what == "Constant":
        return [_constant(call)]
    if call.what == "Shape":
        dims = call.shape()
        arrays: Any = array(list(dims[call.attr("start", 0) : call.attr("end", len(dims))]))
    elif call.what == "Size":
        arrays = array(prod(call.shape()))
    elif any(value is not None and value.data is None for value in call.inputs):
        return None
    else:
        try:
            arrays = _known(call)
        except Undetermined:
            return None
    arrays = [arrays] if isinstance(arrays, np.ndarray) else arrays
    if arrays is None or any(data.size > SMALL for data in arrays):
        return None
    return [constant(name, data, call.dtype) for name, data in zip(call.outputs, arrays, strict=False)]


def _known(call: Call) -> Any:
    operands = [data for at in range(len(call.inputs)) if (data := call.data(at)) is not None]
    if call.what in _STRUCTURE:
        data = call.value(0).data
        assert data is not None
        return _STRUCTURE[call.what](call, data)
    if not call.inputs or (call.what not in ELEMENTWISE and call.what not in POINTWISE):
        return None
    function = ELEMENTWISE.get(call.what, lambda *_: UNKNOWN)
    if call.what not in ("Max", "Min", "Sum"):
        return each(function, *operands)
    total: Any = operands[0]
    for operand in operands[1:]:
        total = None if total is None else each(function, total, operand)
    return total


def _constant(call: Call) -> Value:
    name, file = call.outputs[0], call.walk.file
    for key, value in call.attrs.items():
        if key == "value":
            return file.stored(value, name, from_node=True)
        if key in ("value_int", "value_float", "value_ints", "value_floats"):
            return constant(name, array(value), "int64" if "int" in key else "fp32")
        if key == "sparse_value":
            return file.sparse(value, name, from_node=True)
    raise call.missing("holds no number")


def _reshape(call: Call, data: _Array) -> _Array:
    target, copies = call.integers(1) or [], not call.attr("allowzero", 0)
    return data.reshape([data.shape[at] if n == 0 and copies else n for at, n in enumerate(target)])


def _slice(call: Call, data: _Array) -> _Array:
    starts, ends = call.integers(1, "starts") or [], call.integers(2, "ends") or []
    axes = call.integers(3, "axes") or list(range(len(starts)))
    steps = call.integers(4) or [1] * len(axes)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        window: list[Any] = [slice(None)] * data.ndim
        window[axis] = slice(start, None if end < -(2**31) else end, step)
        data = data[tuple(window)]
    return data


def _gather(call: Call, data: _Array) -> _Array | None:
    index = call.integers(1)
    if index is None:
        return None
    places = np.array(index, dtype=np.int64).reshape([int(n) for n in call.shape(1) if isinstance(n, int)])
    taken = np.take(data, places, axis=call.axis(0, data.ndim))
    return taken if isinstance(taken, np.ndarray) else array(taken)


def _concat(call: Call, data: _Array) -> _Array:
    parts = [part for at in range(len(call.inputs)) if (part := call.data(at)) is not None]
    return np.concatenate(parts, axis=call.number("axis", 0))


def _expand(call: Call, data: _Array) -> _Array | None:
    target = _small(call.sizes(1))
    return None if target is None else np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(target)))


def _small(shape: list[Any] | None) -> list[int] | None:
    """Return a shape of numbers that has few elements."""
    small = shape is not None and all(isinstance(n, int) for n in shape) and math.prod(shape) <= SMALL
    return shape if small else None


def _constant_of_shape(call: Call, data: _Array) -> _Array | None:
    shape, value = _small(call.sizes(0)), call.attr("value")
    if shape is None:
        return None
    filled = call.walk.file.stored(value, "fill").data if value is not None and elements(value) == 1 else None
    element = filled.reshape(-1)[0] if filled is not None else 0
    return array([element] * math.prod(shape), shape)


def _range(call: Call, data: _Array) -> _Array | None:
    bounds = [bound for at in range(3) if (bound := call.data(at)) is not None and bound.size == 1]
    numbers = [bound.reshape(-1)[0] for bound in bounds]
    if len(numbers) < 3 or not all(isinstance(number, int) for number in numbers) or not numbers[2]:
        return None
    values = range(*numbers)
    return array(list(values)) if len(values) <= SMALL else None


def _split(call: Call, data: _Array) -> list[_Array]:
    axis, sizes = call.axis(0, data.ndim), call.integers(1, "split")
    if sizes is None:
        step = max(-(-data.shape[axis] // len(call.outputs)), 1)
        return list(np.split(data, range(step, data.shape[axis], step), axis=axis))
    return list(np.split(data, list(np.cumsum(sizes))[:-1], axis=axis))


def _reduced(total: Callable[[Sequence[Any]], Any], call: Call, data: _Array, symbolic: bool = True) -> _Array | None:
    """Reduce a vector to a number, symbolic sizes too where they add or multiply."""
    if data.ndim > 1:
        return None
    values = list(data.reshape(-1))
    known = not any(value is UNKNOWN or (isinstance(value, Dim) and not symbolic) for value in values)
    return array([total(values) if known else UNKNOWN], [1] * data.ndim if call.attr("keepdims", 1) else [])


def _tile(call: Call, data: _Array) -> _Array | None:
    repeats = call.integers(1)
    return None if repeats is None or data.size * prod(repeats) > SMALL else np.tile(data, repeats)


#: What moves known elements about.
_STRUCTURE: dict[str, _Folder] = {
    **dict.fromkeys(("Squeeze", "Unsqueeze"), lambda call, data: data.reshape(LOOKS[call.what](call, data.shape))),
    "Reshape": _reshape, "Slice": _slice, "Gather": _gather,
    "Concat": _concat, "Expand": _expand, "ConstantOfShape": _constant_of_shape, "Range": _range, "Split": _split,
    "Cast": lambda call, data: each(lambda x: cast(x, call.dtype), data), "CastLike": lambda call, data: data,
    "Transpose": lambda call, data: np.transpose(data, call.attr("perm")), "Tile": _tile,
    "Dropout": lambda call, data: data,
    "ReduceProd": partial(_reduced, prod), "ReduceSum": partial(_reduced, sum),
    "ReduceMax": partial(_reduced, max, symbolic=False), "ReduceMin": partial(_reduced, min, symbolic=False),
}  # fmt: skip
