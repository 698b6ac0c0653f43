"""Copies, gathers and scatters: bytes without arithmetic."""

from __future__ import annotations

from typing import Any

from roofline.ir.errors import ShapeError
from roofline.ir.signature import Shape
from roofline.ir.sizes import prod
from roofline.ops.registry import Work, op


@op("embedding", "v d, ... -> ... d", "move")
def embedding(batch: Any, d: Any) -> Work:
    """Rows of a table by index: no arithmetic, and only the rows that are asked for are read."""
    return Work(reads={0: batch * d})


@op("gather", "v, ... -> ...", "move")
def gather(batch: Any) -> Work:
    """Single elements of a vector by index."""
    return Work(reads={0: batch})


@op("gather_rows", "v d, t -> t d", "move")
def gather_rows(t: Any, d: Any) -> Work:
    """Rows of an activation by index, each read once for each time it is asked for."""
    return Work(reads={0: t * d})


@op("scatter_add", "u d -> t d", "move", derive=lambda t: {"t": t})
def scatter_add(u: Any, d: Any) -> Work:
    """Add rows into ``t`` output rows."""
    return Work(vector=u * d)


@op("take", None, "move", shape=lambda shapes, shape: tuple(shape))
def take(batch: Any) -> Work:
    """Any gather: reads as many elements of its first input as it returns."""
    return Work(reads={0: batch})


@op("unknown", None, "move", shape=lambda shapes, shape: tuple(shape))
def unknown() -> Work:
    """An operation of a source that no rule translates: its bytes count, its arithmetic does not; ``what`` names it."""
    return Work()


@op("put", None, "move", shape=lambda shapes: shapes[0], alias=0)
def put(shapes: Any, flops: int = 0) -> Work:
    """Write the second input into some places of the first; the rest is neither read nor written."""
    values = prod(shapes[1])
    return Work(vector=flops * values, reads={0: values if flops else 0}, writes=values)


@op("resample", None, "pointwise", shape=lambda shapes, shape: tuple(shape))
def resample(batch: Any, flops: int = 1) -> Work:
    """Interpolate to ``shape``: ``flops`` operations a point of the result."""
    return Work(vector=flops * batch)


@op("rearrange", None, "move", shape=lambda shapes, shape: tuple(shape))
def rearrange() -> Work:
    """Write an array out in another order, padded, repeated or turned round."""
    return Work()


@op("empty", None, "move", shape=lambda shapes, shape: tuple(shape))
def empty() -> Work:
    """Set memory aside that later nodes write into."""
    return Work(writes=0)


@op("embedding_grad", "... d, ... -> v d", "move", derive=lambda v: {"v": v})
def embedding_grad(batch: Any, d: Any) -> Work:
    """Add the gradients of rows into a table of ``v`` rows."""
    return Work(vector=batch * d)


@op("cache_update", "b g c d, b g n d -> b g c d", "move", alias=0)
def cache_update(b: Any, g: Any, n: Any, d: Any) -> Work:
    """Write the new positions into a cache in place; the rest is neither read nor written."""
    return Work(reads={0: 0}, writes=b * g * n * d)


@op("transpose_copy", "... r c -> ... c r", "move")
def transpose_copy() -> Work:
    """Write the transpose out."""
    return Work()


def _cat_shape(shapes: tuple[Shape, ...], axis: int = -1) -> Shape:
    first = shapes[0]
    if any(len(shape) != len(first) for shape in shapes):
        raise ShapeError("joins arrays of different rank")
    at = axis % len(first)
    for shape in shapes:
        if shape[:at] + shape[at + 1 :] != first[:at] + first[at + 1 :]:
            raise ShapeError(f"joins along axis {at} but another axis differs: {list(shape)} and {list(first)}")
    total: Any = sum((shape[at] for shape in shapes[1:]), first[at])
    return (*first[:at], total, *first[at + 1 :])


@op("cat", None, "move", shape=_cat_shape)
def cat() -> Work:
    """Join along ``axis``."""
    return Work()


@op("upsample2d", "n c h w -> n c p q", "move", derive=lambda h, w, scale: {"p": h * scale, "q": w * scale})
def upsample2d() -> Work:
    """Nearest-neighbour upsampling."""
    return Work()
