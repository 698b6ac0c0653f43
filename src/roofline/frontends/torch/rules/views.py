"""Views: the same memory under another shape."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from roofline.frontends.torch.walk import Call, Result, Row, rows


def _part(call: Call) -> Result:
    """The results look at parts of the input."""
    source = call.tensor()
    shapes = [value.shape for value in call.outs]
    if shapes == [call.b.shape(source)]:
        return source
    return tuple(
        call.b.op("slice", source, name=call.name, shape=shape, **where)
        for shape, where in zip(shapes, _places(call, len(shapes)), strict=True)
    )


def _places(call: Call, parts: int) -> list[dict[str, Any]]:
    """Return where each part starts, and along which axis, as options of ``slice``; none where that is no number."""
    shape = call.shape()
    axis = int(call.get("dim", 0)) % len(shape) if shape else 0
    starts: Sequence[Any] = ()
    match call.what:
        case "slice" if call.get("step", 1) == 1:
            starts = [call.get("start", 0)]
        case "narrow" | "select":
            starts = [call.get("start" if call.what == "narrow" else "index")]
        case "split":
            starts = [at * call.get("split_size") for at in range(parts)]
        case "split_with_sizes":
            starts = [0, *accumulate(call.get("split_sizes"))][:parts]
        case "unbind":
            starts = range(parts)
    starts = [at + shape[axis] if type(at) is int and at < 0 and type(shape[axis]) is int else at for at in starts]
    if len(starts) < parts or any(type(at) is not int or at < 0 for at in starts):
        return [{}] * parts
    return [{"axis": axis, "start": at} for at in starts]


def _permuted(call: Call, axes: list[int]) -> Result:
    source, rank = call.tensor(), len(axes)
    name = call.permute(source, axes, call.name)
    if rank >= 2 and axes == [*range(rank - 2), rank - 1, rank - 2]:
        call.walk.transposed[name] = source
    return name


def _transpose(call: Call) -> Result:
    axes = list(range(len(call.shape())))
    if len(axes) < 2:
        return call.tensor()
    first, second = (call.get(key, default) for key, default in (("dim0", -2), ("dim1", -1)))
    axes[first], axes[second] = axes[second], axes[first]
    return _permuted(call, axes)


ROWS: dict[str, Row] = {
    **rows("view reshape _unsafe_view unsqueeze squeeze flatten unflatten _reshape_alias view_as ravel _reshape_copy",
           lambda call: call.view(call.tensor(), call.out.shape, call.name)),
    **rows("slice select narrow split split_with_sizes chunk unbind diagonal as_strided unfold view_as_real "
           "view_as_complex real imag _conj tensor_split unsafe_split unsafe_chunk hsplit vsplit", _part),
    **rows("t transpose numpy_T mT", _transpose),
    **rows("permute", lambda call: _permuted(call, [axis % len(call.shape()) for axis in call.get("dims")])),
    **rows("movedim", lambda call: call.b.op("slice", call.tensor(), name=call.name, shape=call.out.shape)),
    **rows("expand expand_as broadcast_to", lambda call: call.expand(call.tensor(), call.out.shape, call.name)),
}  # fmt: skip
