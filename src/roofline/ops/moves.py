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
from roofline.ops.gradients import Tape, back_in_place, runs
from roofline.ops.registry import Array, Op, Work, by_option, declare, op, per_element

# --- gathers and scatters ---------------------------------------------------------------------------------------------


def _rows(call: Call, table: Array, ids: Array) -> Array:
    """Look rows up; indices may be any numbers."""
    return table[indices(ids, len(table))]


declare(Op(
    "embedding", "v d, ... -> ... d", "move",
    "Rows of a table by index: no arithmetic, and only the rows that are asked for are read.",
    lambda batch, d: Work(reads={0: batch * d}), _rows, gradient=runs("embedding_grad", 1, name="grad_w"),
))  # fmt: skip
declare(Op(
    "gather", "v, ... -> ...", "move", "Single elements of a vector by index.", lambda batch: Work(reads={0: batch}),
    _rows, gradient=back_in_place,
))  # fmt: skip
declare(Op(
    "gather_rows", "v d, t -> t d", "move",
    "Rows of an activation by index, each read once for each time it is asked for.",
    lambda t, d: Work(reads={0: t * d}), _rows, gradient=runs("scatter_add"),
))  # fmt: skip


@op("embedding_grad", "... d, ... -> v d", "move", options={"v": "v"}, formula=per_element(1))
def embedding_grad(call: Call, grad: Array, ids: Array) -> Array:
    """Add the gradients of rows into a table of ``v`` rows."""
    out = np.zeros(call.shape)
    np.add.at(out, indices(ids, len(out)), grad)
    return out


@op("scatter_add", "u d -> t d", "move", options={"t": "t"}, formula=per_element(1), gradient=runs("take"))
def scatter_add(call: Call, rows: Array) -> Array:
    """Add rows into ``t`` output rows: row ``r`` goes to row ``r mod t``."""
    return embedding_grad(call, rows, np.arange(len(rows)))


def flat_places(call: Call, shape: tuple[int, ...], size: int, picks: Sequence[Array]) -> Array:
    """Return places in flat storage: in order, from a start of the node's own, moved on by what index arrays say."""
    start = call.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape) + round(call.free("start", 0, size))
    return indices(sum((np.rint(fold(pick, shape)) for pick in picks), start.astype(np.float64)), size)


declare(Op(
    "take", None, "move", "Any gather: reads as many elements of its first input as it returns.",
    lambda batch: Work(reads={0: batch}),
    lambda call, x, *picks: x.ravel()[flat_places(call, call.shape, x.size, picks)], by_option, rule=taken_axes,
    gradient=back_in_place,
))  # fmt: skip


def _put_work(shapes: Sequence[Shape], flops: int = 0) -> Work:
    values = prod(shapes[1])
    return Work(vector=flops * values, reads={0: values if flops else 0}, writes=values)


def _put_gradient(t: Tape, node: Node, dy: str) -> None:
    base, values = node.inputs[:2]
    if t.needs_grad(base):
        t.accumulate(base, dy)
    if t.needs_grad(values):
        t.accumulate(values, t.op("take", dy, name="grad_values", like=values, shape=t.shape(values)))


@op("put", "..., * -> ...", "move", alias=0, formula=_put_work, rule=same_places, gradient=_put_gradient)
def put(call: Call, x: Array, values: Array, *picks: Array) -> Array:
    """Write the second input into some places of the first; the rest is neither read nor written.

    Values are added to what was there where the node counts operations.
    """
    out = x.flatten()
    places = flat_places(call, values.shape, out.size, picks)
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


declare(Op(
    "unknown", None, "move",
    "An operation of a source that no rule translates: its bytes count, its arithmetic does not; ``what`` names it.",
    reference=mix, shape=by_option,
))  # fmt: skip
declare(Op(
    "resample", None, "pointwise", "Interpolate to ``shape``: ``flops`` operations per point of the result.",
    lambda batch, flops=1: Work(vector=flops * batch), mix, by_option, rule=same_places, gradient=runs("resample"),
))  # fmt: skip
declare(Op(
    "rearrange", None, "move", "Write an array out in another order, padded, repeated or reversed.",
    reference=mix, shape=by_option, rule=same_places, gradient=runs("rearrange"),
))  # fmt: skip
declare(Op(
    "empty", None, "move", "Set memory aside that later nodes write into; zeros in numpy.", lambda: Work(writes=0),
    lambda call: np.zeros(call.shape), by_option, rule=free,
))  # fmt: skip
declare(Op(
    "transpose_copy", "... r c -> ... c r", "move", "Write the transpose out.",
    reference=lambda call, x: x.swapaxes(-1, -2), gradient=runs("transpose_copy"),
))  # fmt: skip


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
        if t.needs_grad(name):
            t.accumulate(
                name, t.op("slice", dy, name=f"grad_{at}", like=dy, shape=t.shape(name), axis=axis, start=start)
            )
        start = start + t.shape(name)[axis]


declare(Op(
    "cat", None, "move", "Join along ``axis``.", shape=_cat_shape, rule=joined_axes, gradient=_cat_gradient,
    reference=lambda call, *arrays: np.concatenate(arrays, axis=call.attrs.get("axis", -1)),
))  # fmt: skip


def _upsample_gradient(t: Tape, node: Node, dy: str) -> None:
    runs("pool", flops=dict(node.attrs)["scale"] ** 2)(t, node, dy)


@op("upsample2d", "n c h w -> n c p q", "move", derive=lambda h, w, scale: {"p": h * scale, "q": w * scale},
    fixed="h w p q", gradient=_upsample_gradient)  # fmt: skip
def upsample2d(call: Call, x: Array) -> Array:
    """Nearest-neighbour upsampling."""
    scale = call.attrs["scale"]
    return x.repeat(scale, axis=2).repeat(scale, axis=3)
