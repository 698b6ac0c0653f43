"""Shapes that a file spells as programs: what follows from the shapes and small constants alone is no work."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from roofline.frontends.onnx.call import Call, Undetermined
from roofline.frontends.onnx.known import ELEMENTWISE, UNKNOWN, Value, array, cast, constant, each
from roofline.frontends.onnx.read import SMALL, elements
from roofline.frontends.onnx.rules import ELEMENT_FLOPS
from roofline.ir.sizes import Dim, prod

_Array = np.ndarray[Any, Any]
_Folder = Callable[[Call], "_Array | Sequence[_Array] | None"]


def fold(call: Call) -> list[Value] | None:
    """The results of a node whose operands are known; ``None`` where it has work to do."""
    if call.what == "Constant":
        return [_constant(call)]
    if call.what not in _SHAPES and any(value is not None and value.data is None for value in call.inputs):
        return None
    try:
        found = _SHAPES[call.what](call) if call.what in _SHAPES else _known(call)
    except Undetermined:
        return None
    if found is None:
        return None
    arrays = [found] if isinstance(found, np.ndarray) else list(found)
    if any(data.size > SMALL for data in arrays):
        return None
    return [constant(name, data, call.dtype) for name, data in zip(call.outputs, arrays, strict=False)]


def _known(call: Call) -> Any:
    if call.what in _STRUCTURE:
        return _STRUCTURE[call.what](call)
    if not call.inputs or (call.what not in ELEMENTWISE and call.what not in ELEMENT_FLOPS):
        return None
    operands = [data for at in range(len(call.inputs)) if (data := call.data(at)) is not None]
    function = ELEMENTWISE.get(call.what, lambda *_: UNKNOWN)
    if call.what in ("Max", "Min", "Sum"):
        total: Any = operands[0]
        for operand in operands[1:]:
            total = None if total is None else each(function, total, operand)
        return total
    return each(function, *operands)


def _shape(call: Call) -> _Array:
    dims = call.shape(0)
    start, end = call.attr("start", 0), call.attr("end", len(dims))
    return array(list(dims[start:end]))


def _constant(call: Call) -> Value:
    name = call.outputs[0]
    for key, value in call.attrs.items():
        if key == "value":
            return call.program.stored(value, name, from_node=True)
        if key in ("value_int", "value_float", "value_ints", "value_floats"):
            return constant(name, array(value), "int64" if "int" in key else "fp32")
        if key == "sparse_value":
            found = call.program.stored(value.values, name, from_node=True)
            found.shape, found.data = tuple(int(size) for size in value.dims), None
            return found
    raise call.program.missing(call, "holds no number")


def _axes(call: Call, rank: int, at: int = 1) -> list[int]:
    return sorted(axis % rank for axis in call.integers(at, "axes") or [])


def _squeeze(call: Call) -> _Array:
    data = call.value(0).data
    assert data is not None
    axes = _axes(call, max(data.ndim, 1))
    return data.reshape([n for at, n in enumerate(data.shape) if (at not in axes if axes else n != 1)])


def _unsqueeze(call: Call) -> _Array:
    data = call.value(0).data
    assert data is not None
    named = call.integers(1, "axes") or []
    shape = list(data.shape)
    for axis in _axes(call, data.ndim + len(named)):
        shape.insert(axis, 1)
    return data.reshape(shape)


def _reshape(call: Call) -> _Array:
    data = call.value(0).data
    assert data is not None
    target = call.integers(1) or []
    kept = [data.shape[at] if n == 0 and not call.attr("allowzero", 0) else n for at, n in enumerate(target)]
    return data.reshape(kept)


def _slice(call: Call) -> _Array | None:
    data = call.value(0).data
    assert data is not None
    starts, ends = call.integers(1, "starts"), call.integers(2, "ends")
    axes = call.integers(3, "axes") or list(range(len(starts or [])))
    steps = call.integers(4) or [1] * len(axes)
    for start, end, axis, step in zip(starts or [], ends or [], axes, steps, strict=True):
        cut: list[Any] = [slice(None)] * data.ndim
        cut[axis] = slice(start, None if end < -(2**31) else end, step)
        data = data[tuple(cut)]
    return data


def _gather(call: Call) -> _Array | None:
    data, index = call.value(0).data, call.integers(1)
    assert data is not None
    if index is None:
        return None
    places = np.array(index, dtype=np.int64).reshape([int(n) for n in call.shape(1) if isinstance(n, int)])
    taken = np.take(data, places, axis=call.axis(0, data.ndim))
    return taken if isinstance(taken, np.ndarray) else array(taken)


def _concat(call: Call) -> _Array:
    parts = [data for at in range(len(call.inputs)) if (data := call.data(at)) is not None]
    return np.concatenate(parts, axis=call.number("axis", 0))


def _expand(call: Call) -> _Array | None:
    data, target = call.value(0).data, call.sizes(1)
    assert data is not None
    if target is None or any(not isinstance(size, int) for size in target) or prod(target) > SMALL:
        return None
    return np.broadcast_to(data, np.broadcast_shapes(data.shape, tuple(target)))


def _constant_of_shape(call: Call) -> _Array | None:
    shape = call.sizes(0)
    if shape is None or any(not isinstance(size, int) for size in shape) or math.prod(shape) > SMALL:
        return None
    value = call.attr("value")
    filled = call.program.stored(value, "fill").data if value is not None and elements(value) == 1 else None
    element = filled.reshape(-1)[0] if filled is not None else 0
    return array([element] * math.prod(shape), shape)


def _range(call: Call) -> _Array | None:
    start: Any
    end: Any
    step: Any
    bounds = [call.data(at) for at in range(3)]
    start, end, step = (UNKNOWN if data is None or data.size != 1 else data.reshape(-1)[0] for data in bounds)
    if not all(isinstance(bound, int) for bound in (start, end, step)) or not step:
        return None
    found = range(start, end, step)
    return array(list(found)) if len(found) <= SMALL else None


def _split(call: Call) -> list[_Array] | None:
    data = call.value(0).data
    assert data is not None
    axis = call.axis(0, data.ndim)
    sizes = call.integers(1, "split")
    if sizes is None:
        step = max(-(-data.shape[axis] // len(call.outputs)), 1)
        return list(np.split(data, range(step, data.shape[axis], step), axis=axis))
    return list(np.split(data, list(np.cumsum(sizes))[:-1], axis=axis))


def _reduced(total: Callable[[Sequence[Any]], Any]) -> _Folder:
    """A reduction of a vector to a number."""

    def run(call: Call) -> _Array | None:
        data = call.value(0).data
        assert data is not None
        if data.ndim > 1:
            return None
        known = not any(element is UNKNOWN for element in data.reshape(-1))
        result = total(list(data.reshape(-1))) if known else UNKNOWN
        return array([result], [1] * data.ndim if call.attr("keepdims", 1) else [])

    return run


def _cast(call: Call) -> _Array | None:
    data = call.value(0).data
    assert data is not None
    return each(lambda x: cast(x, call.dtype), data)


def _transpose(call: Call) -> _Array:
    data = call.value(0).data
    assert data is not None
    return np.transpose(data, call.attr("perm"))


def _same(call: Call) -> _Array | None:
    return call.value(0).data


def _tile(call: Call) -> _Array | None:
    data, repeats = call.value(0).data, call.integers(1)
    assert data is not None
    if repeats is None or data.size * prod(repeats) > SMALL:
        return None
    return np.tile(data, repeats)


#: What depends on the shapes of operands alone.
_SHAPES: dict[str, _Folder] = {
    "Shape": _shape,
    "Size": lambda call: array(prod(call.shape(0))),
}

#: What moves known elements about.
_STRUCTURE: dict[str, _Folder] = {
    "Squeeze": _squeeze, "Unsqueeze": _unsqueeze, "Reshape": _reshape, "Slice": _slice, "Gather": _gather,
    "Concat": _concat, "Expand": _expand, "ConstantOfShape": _constant_of_shape, "Range": _range, "Split": _split,
    "Cast": _cast, "CastLike": _same, "Transpose": _transpose, "Tile": _tile, "Dropout": _same,
    "ReduceProd": _reduced(prod), "ReduceSum": _reduced(lambda values: sum(values, 0)),
    "ReduceMax": _reduced(lambda values: max(values) if not _symbolic(values) else UNKNOWN),
    "ReduceMin": _reduced(lambda values: min(values) if not _symbolic(values) else UNKNOWN),
}  # fmt: skip


def _symbolic(values: Sequence[Any]) -> bool:
    return any(isinstance(value, Dim) for value in values)
