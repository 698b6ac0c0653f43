"""What copies, gathers, views and exchanges between devices give."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from roofline.ops.reference.calls import Array, Call, fold, indices, means, mix

# --- gathers and scatters ---------------------------------------------------------------------------------------------


@means("embedding", "gather", "gather_rows")
def gather(call: Call, table: Array, ids: Array) -> Array:
    """Indices may be any numbers."""
    return np.asarray(table[indices(ids, len(table))])


@means("embedding_grad")
def embedding_grad(call: Call, grad: Array, ids: Array) -> Array:
    out = np.zeros(call.shape)
    np.add.at(out, indices(ids, len(out)), grad)
    return out


@means("scatter_add")
def scatter_add(call: Call, rows: Array) -> Array:
    """Row ``r`` goes to row ``r mod t``."""
    out = np.zeros(call.shape)
    np.add.at(out, np.arange(len(rows)) % len(out), rows)
    return out


def _places(call: Call, wanted: tuple[int, ...], size: int, picks: Sequence[Array]) -> Array:
    """Places in flat storage: in order, from a start of the node's own, moved on by what index arrays say."""
    start = np.arange(int(np.prod(wanted, dtype=np.int64))).reshape(wanted) + round(call.free("start", 0, size))
    return sum((np.rint(fold(pick, wanted)) for pick in picks), start.astype(np.float64))


@means("take")
def take(call: Call, x: Array, *picks: Array) -> Array:
    return x.ravel()[indices(_places(call, call.shape, x.size, picks), x.size)]


@means("put")
def put(call: Call, x: Array, values: Array, *picks: Array) -> Array:
    """Values over what was there, or added to it where the node counts operations."""
    out = x.flatten()
    places = indices(_places(call, values.shape, out.size, picks), out.size)
    if call.attrs.get("flops"):
        np.add.at(out, places, values)
    else:
        out[places] = values
    return out.reshape(x.shape)


@means("cache_update")
def cache_update(call: Call, cache: Array, new: Array) -> Array:
    """The new positions are the last ones."""
    out = cache.copy()
    out[:, :, cache.shape[2] - new.shape[2] :] = new[:, :, -cache.shape[2] :]
    return out


@means("state_update", "update")
def state_update(call: Call, state: Array, *news: Array) -> Array:
    """Nothing says how: half of what it was, and a fixed function of what is written."""
    return 0.5 * state + mix(call, news, state.shape)


# --- copies -----------------------------------------------------------------------------------------------------------


@means("transpose_copy")
def transpose_copy(call: Call, x: Array) -> Array:
    return x.swapaxes(-1, -2)


@means("cat")
def cat(call: Call, *arrays: Array) -> Array:
    return np.concatenate(arrays, axis=call.attrs.get("axis", -1))


@means("upsample2d")
def upsample(call: Call, x: Array) -> Array:
    scale = call.attrs["scale"]
    return x.repeat(scale, axis=2).repeat(scale, axis=3)


@means("resample", "rearrange", "unknown")
def rewritten(call: Call, *arrays: Array) -> Array:
    """Nothing says how: a fixed function of all that is read."""
    return mix(call, arrays, call.shape)


@means("empty")
def empty(call: Call) -> Array:
    """What was in memory by chance; zeros here."""
    return np.zeros(call.shape)


# --- views ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def reordering(shape: tuple[int, ...], target: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The reshape before, and the order of axes after it, that a view implies; ``None`` for a plain reshape.

    Heads split off the last axis stand before the positions, and are merged behind them again; an image becomes rows
    of channels; the same sizes in another order are those axes in another order.

    Example:
        >>> reordering((2, 5, 12), (2, 3, 5, 4)), reordering((2, 3, 5, 4), (2, 5, 12))
        (((2, 5, 3, 4), (0, 2, 1, 3)), ((2, 3, 5, 4), (0, 2, 1, 3)))
    """
    if shape == target:
        return None
    if len(shape) == 3 and len(target) == 4:
        (b, s, w), (first, heads, length, width) = shape, target
        if (first, length, heads * width) == (b, s, w):
            return ((b, s, heads, width), (0, 2, 1, 3))
    if len(shape) == 4 and len(target) == 3:
        b, heads, s, width = shape
        if target == (b, s, heads * width):
            return (shape, (0, 2, 1, 3))
        if target == (b, s * width, heads):
            return (shape, (0, 2, 3, 1))
    if sorted(shape) == sorted(target) and len(set(shape)) == len(shape):
        return (shape, tuple(map(shape.index, target)))
    return None


@means("view")
def view(call: Call, x: Array) -> Array:
    """In the order of storage, but for :func:`reordering`."""
    order = reordering(x.shape, call.shape)
    return (x.reshape(order[0]).transpose(order[1]) if order else x).reshape(call.shape)


@means("permute")
def permute(call: Call, x: Array) -> Array:
    return x.transpose(call.attrs["axes"])


@means("expand")
def expand(call: Call, x: Array) -> Array:
    return np.broadcast_to(x, call.shape)


@lru_cache(maxsize=4096)
def kept_axes(shape: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...] | None:
    """The axis of ``shape`` that each axis of a part comes from, equal ones where possible; ``None`` if none fits.

    Example:
        >>> kept_axes((2, 7, 4), (2, 4)), kept_axes((2, 7, 4), (2, 7, 2)), kept_axes((2, 3), (4,))
        ((0, 2), (0, 1, 2), None)
    """
    if len(target) > len(shape) or not target:
        return None if target else ()
    best: tuple[int, tuple[int, ...]] | None = None
    for at in range(len(shape) - len(target) + 1):
        rest = kept_axes(shape[at + 1 :], target[1:]) if target[0] <= shape[at] else None
        if rest is not None:
            axes = (at, *(axis + at + 1 for axis in rest))
            equal = sum(shape[axis] == size for axis, size in zip(axes, target, strict=True))
            best = max(best or (-1, ()), (equal, axes), key=lambda found: found[0])
    return best[1] if best else None


@means("slice")
def part(call: Call, x: Array) -> Array:
    """From ``start`` along ``axis``; without them, from places of the node's own."""
    axes = kept_axes(x.shape, call.shape)
    if axes is None:
        return fold(x, call.shape)
    given = int(call.attrs.get("axis", -1)) % x.ndim if "start" in call.attrs else None
    where: list[slice | int] = []
    for axis, size in enumerate(x.shape):
        wanted = call.shape[axes.index(axis)] if axis in axes else 1
        start = int(call.attrs["start"]) if axis == given else int(call.free(f"start {axis}", 0, size - wanted + 1))
        where.append(slice(start, start + wanted) if axis in axes else start)
    return np.asarray(x[tuple(where)])


# --- between devices: one of them stands for all ----------------------------------------------------------------------


@means("parallel_input", "send", "all_reduce", "alltoall", "broadcast", "memcpy_h2d", "memcpy_d2h")
def same(call: Call, x: Array) -> Array:
    return x


@means("all_gather", "reduce_scatter")
def resized(call: Call, x: Array) -> Array:
    """All devices hold the same; a share is the first one."""
    return np.resize(x, call.shape)
