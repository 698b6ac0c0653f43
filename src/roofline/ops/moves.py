"""Copies, gathers and scatters: bytes without arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from roofline.ir.errors import ShapeError
from roofline.ir.graph import Node
from roofline.ir.signature import Shape
from roofline.ir.sizes import Size, prod
from roofline.ops.arrays import Call, fold, indices, mix
from roofline.ops.axes import free, joined_axes, same_places, taken_axes
from roofline.ops.gradients import Tape, runs
from roofline.ops.registry import Array, Work, first, op, per_element, shape_option
from roofline.ops.rowwise import places_gradient

# --- gathers and scatters ---------------------------------------------------------------------------------------------


def _rows(table: Array, ids: Array) -> Array:
    """Look rows up; indices may be any numbers."""
    return np.asarray(table[indices(ids, len(table))])


def _embedding_gradient(t: Tape, node: Node, dy: str) -> None:
    table, ids = node.inputs
    t.give(table, t.op("embedding_grad", dy, ids, name="grad_w", like=table, v=t.shape(table)[0]))


@op("embedding", "v d, ... -> ... d", "move", formula=lambda batch, d: Work(reads={0: batch * d}),
    gradient=_embedding_gradient)  # fmt: skip
def embedding(call: Call, table: Array, ids: Array) -> Array:
    """Rows of a table by index: no arithmetic, and only the rows that are asked for are read."""
    return _rows(table, ids)


@op("embedding_grad", "... d, ... -> v d", "move", options={"v": "v"}, formula=per_element(1))
def embedding_grad(call: Call, grad: Array, ids: Array) -> Array:
    """Add the gradients of rows into a table of ``v`` rows."""
    out = np.zeros(call.shape)
    np.add.at(out, indices(ids, len(out)), grad)
    return out


@op("gather", "v, ... -> ...", "move", formula=lambda batch: Work(reads={0: batch}), gradient=places_gradient)
def gather(call: Call, table: Array, ids: Array) -> Array:
    """Single elements of a vector by index."""
    return _rows(table, ids)


def _gather_gradient(t: Tape, node: Node, dy: str) -> None:
    rows = node.inputs[0]
    t.give(rows, t.op("scatter_add", dy, name="grad", like=rows, t=t.shape(rows)[0]))


@op("gather_rows", "v d, t -> t d", "move", formula=lambda t, d: Work(reads={0: t * d}), gradient=_gather_gradient)
def gather_rows(call: Call, table: Array, ids: Array) -> Array:
    """Rows of an activation by index, each read once for each time it is asked for."""
    return _rows(table, ids)


@op("scatter_add", "u d -> t d", "move", options={"t": "t"}, formula=per_element(1),
    gradient=runs("take", shaped=True))  # fmt: skip
def scatter_add(call: Call, rows: Array) -> Array:
    """Add rows into ``t`` output rows: row ``r`` goes to row ``r mod t``."""
    out = np.zeros(call.shape)
    np.add.at(out, np.arange(len(rows)) % len(out), rows)
    return out


def _places(call: Call, shape: tuple[int, ...], size: int, picks: Sequence[Array]) -> Array:
    """Return places in flat storage: in order, from a start of the node's own, moved on by what index arrays say."""
    start = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape) + round(call.free("start", 0, size))
    return indices(sum((np.rint(fold(pick, shape)) for pick in picks), start.astype(np.float64)), size)


@op("take", None, "move", shape=shape_option, formula=lambda batch: Work(reads={0: batch}), rule=taken_axes,
    gradient=places_gradient)  # fmt: skip
def take(call: Call, x: Array, *picks: Array) -> Array:
    """Any gather: reads as many elements of its first input as it returns."""
    return x.ravel()[_places(call, call.shape, x.size, picks)]


def _put_work(shapes: Sequence[Shape], flops: int = 0) -> Work:
    values = prod(shapes[1])
    return Work(vector=flops * values, reads={0: values if flops else 0}, writes=values)


def _put_gradient(t: Tape, node: Node, dy: str) -> None:
    base, values = node.inputs[:2]
    if t.wants(base):
        t.give(base, dy)
    if t.wants(values):
        t.give(values, t.op("take", dy, name="grad_values", like=values, shape=t.shape(values)))


@op("put", None, "move", shape=first, alias=0, formula=_put_work, rule=same_places, gradient=_put_gradient)
def put(call: Call, x: Array, values: Array, *picks: Array) -> Array:
    """Write the second input into some places of the first; the rest is neither read nor written.

    Values are added to what was there where the node counts operations.
    """
    out = x.flatten()
    places = _places(call, values.shape, out.size, picks)
    if call.attrs.get("flops"):
        np.add.at(out, places, values)
    else:
        out[places] = values
    return out.reshape(x.shape)


@op("cache_update", "b g c d, b g n d -> b g c d", "move", alias=0,
    formula=lambda b, g, n, d: Work(reads={0: 0}, writes=b * g * n * d))  # fmt: skip
def cache_update(call: Call, cache: Array, new: Array) -> Array:
    """Write the new positions, which are the last ones, into a cache in place; the rest is neither read nor written."""
    out = cache.copy()
    out[:, :, cache.shape[2] - new.shape[2] :] = new[:, :, -cache.shape[2] :]
    return out


# --- copies -----------------------------------------------------------------------------------------------------------


@op("unknown", None, "move", shape=shape_option)
def unknown(call: Call, *arrays: Array) -> Array:
    """An operation of a source that no rule translates: its bytes count, its arithmetic does not; ``what`` names it."""
    return mix(call, *arrays)


@op("resample", None, "pointwise", shape=shape_option, formula=lambda batch, flops=1: Work(vector=flops * batch),
    rule=same_places, gradient=runs("resample", carried=("flops",), shaped=True))  # fmt: skip
def resample(call: Call, *arrays: Array) -> Array:
    """Interpolate to ``shape``: ``flops`` operations per point of the result."""
    return mix(call, *arrays)


@op("rearrange", None, "move", shape=shape_option, rule=same_places, gradient=runs("rearrange", shaped=True))
def rearrange(call: Call, *arrays: Array) -> Array:
    """Write an array out in another order, padded, repeated or reversed."""
    return mix(call, *arrays)


@op("empty", None, "move", shape=shape_option, formula=lambda: Work(writes=0), rule=free)
def empty(call: Call) -> Array:
    """Set memory aside that later nodes write into; zeros in numpy."""
    return np.zeros(call.shape)


@op("transpose_copy", "... r c -> ... c r", "move", gradient=runs("transpose_copy"))
def transpose_copy(call: Call, x: Array) -> Array:
    """Write the transpose out."""
    return x.swapaxes(-1, -2)


def _cat_shape(shapes: Sequence[Shape], axis: int = -1) -> Shape:
    head = shapes[0]
    if any(len(shape) != len(head) for shape in shapes):
        raise ShapeError("joins arrays of different rank")
    at = axis % len(head)
    for shape in shapes:
        if shape[:at] + shape[at + 1 :] != head[:at] + head[at + 1 :]:
            raise ShapeError(f"joins along axis {at} but another axis differs: {list(shape)} and {list(head)}")
    total: Any = sum((shape[at] for shape in shapes[1:]), head[at])
    return (*head[:at], total, *head[at + 1 :])


def _cat_gradient(t: Tape, node: Node, dy: str) -> None:
    axis = dict(node.attrs).get("axis", -1) % len(t.shape(dy))
    start: Size = 0
    for at, name in enumerate(node.inputs):
        if t.wants(name):
            t.give(name, t.op("slice", dy, name=f"grad_{at}", like=dy, shape=t.shape(name), axis=axis, start=start))
        start = start + t.shape(name)[axis]


@op("cat", None, "move", shape=_cat_shape, rule=joined_axes, gradient=_cat_gradient)
def cat(call: Call, *arrays: Array) -> Array:
    """Join along ``axis``."""
    return np.concatenate(arrays, axis=call.attrs.get("axis", -1))


def _upsample_gradient(t: Tape, node: Node, dy: str) -> None:
    x, scale = node.inputs[0], dict(node.attrs)["scale"]
    t.give(x, t.op("pool", dy, name="grad", like=x, shape=t.shape(x), flops=scale**2))


@op("upsample2d", "n c h w -> n c p q", "move", derive=lambda h, w, scale: {"p": h * scale, "q": w * scale},
    fixed="h w p q", gradient=_upsample_gradient)  # fmt: skip
def upsample2d(call: Call, x: Array) -> Array:
    """Nearest-neighbour upsampling."""
    scale = call.attrs["scale"]
    return x.repeat(scale, axis=2).repeat(scale, axis=3)
