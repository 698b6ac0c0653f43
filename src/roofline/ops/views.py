"""The same storage seen otherwise: nothing moves."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from roofline.ir.errors import ShapeError
from roofline.ir.graph import Node
from roofline.ir.signature import Shape
from roofline.ir.sizes import prod
from roofline.ops.arrays import Call, fold
from roofline.ops.axes import expanded_axes, permuted_axes, reshaped_axes, sliced_axes
from roofline.ops.gradients import Tape, unchanged
from roofline.ops.registry import Array, Op, by_option, declare, op


def _view_shape(shapes: Sequence[Shape], shape: Any) -> Shape:
    target = tuple(shape)
    if prod(target) != prod(shapes[0]):
        raise ShapeError(f"cannot view {list(shapes[0])} as {list(target)}: the element counts differ")
    return target


@lru_cache(maxsize=4096)
def reordering(shape: tuple[int, ...], target: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the reshape before, and the order of axes after it, that a view implies; ``None`` for a plain reshape.

    Heads split off the last axis stand before the positions, and are merged behind them again; an image becomes rows
    of channels; the same sizes in another order are those axes in another order.

    Example:
        >>> reordering((2, 5, 12), (2, 3, 5, 4)), reordering((2, 3, 5, 4), (2, 5, 12))
        (((2, 5, 3, 4), (0, 2, 1, 3)), ((2, 3, 5, 4), (0, 2, 1, 3)))
    """
    if shape == target:
        return None
    if len(shape) == 3 and len(target) == 4:
        (b, s, w), (lead, heads, length, width) = shape, target
        if (lead, length, heads * width) == (b, s, w):
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


def _view_gradient(t: Tape, node: Node, dy: str) -> None:
    t.accumulate(node.inputs[0], t.reshaped(dy, t.shape(node.inputs[0]), "grad"))


@op("view", None, "view", shape=_view_shape, alias=0, rule=reshaped_axes, gradient=_view_gradient)
def view(call: Call, x: Array) -> Array:
    """The same elements under another shape or order: nothing moves.

    In the order of storage, but for :func:`reordering`.
    """
    order = reordering(x.shape, call.shape)
    return (x.reshape(order[0]).transpose(order[1]) if order else x).reshape(call.shape)


def _permute_gradient(t: Tape, node: Node, dy: str) -> None:
    axes = dict(node.attrs)["axes"]
    t.accumulate(
        node.inputs[0], t.op("permute", dy, name="grad", like=dy, axes=tuple(map(axes.index, range(len(axes)))))
    )


declare(Op(
    "permute", None, "view", "The axes in another order: nothing moves.", alias=0, rule=permuted_axes,
    shape=lambda shapes, axes: tuple(shapes[0][at] for at in axes), gradient=_permute_gradient,
    reference=lambda call, x: x.transpose(call.attrs["axes"]),
))  # fmt: skip


@lru_cache(maxsize=4096)
def kept_axes(shape: tuple[int, ...], target: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the axis of ``shape`` that each axis of a part comes from, equal ones where possible.

    ``None`` where none fits.

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
            best = max(best or (-1, ()), (equal, axes), key=lambda each: each[0])
    return best[1] if best else None


def part_axes(shape: tuple[int, ...], target: tuple[int, ...], along: int | None) -> tuple[int, ...] | None:
    """Return :func:`kept_axes`; of a part with one axis fewer, the one along which it starts is what goes."""
    if along is not None and len(target) == len(shape) - 1:
        return tuple(at for at in range(len(shape)) if at != along)
    return kept_axes(shape, target)


@op("slice", None, "view", shape=by_option, alias=0, rule=sliced_axes,
    gradient=lambda t, node, dy: t.accumulate_part(node.inputs[0], dy, dict(node.attrs).get("start")))  # fmt: skip
def slice_(call: Call, x: Array) -> Array:
    """A part of a tensor: nothing moves. From ``start`` along ``axis``; without them, from places of the node's own."""
    along = int(call.attrs.get("axis", -1)) % x.ndim if "start" in call.attrs else None
    axes = part_axes(x.shape, call.shape, along)
    if axes is None:
        return fold(x, call.shape)
    where: list[slice | int] = []
    for axis, size in enumerate(x.shape):
        length = call.shape[axes.index(axis)] if axis in axes else 1
        start = int(call.attrs["start"]) if axis == along else int(call.free(f"start {axis}", 0, size - length + 1))
        where.append(slice(start, start + length) if axis in axes else start)
    return x[tuple(where)]


def _expand_shape(shapes: Sequence[Shape], shape: Any) -> Shape:
    base, target = shapes[0], tuple(shape)
    if len(base) != len(target) or any(b not in (1, t) for b, t in zip(base, target, strict=False)):
        raise ShapeError(f"cannot expand {list(base)} to {list(target)}: only axes of size 1 repeat")
    return target


declare(Op(
    "expand", None, "view", "Axes of size 1 repeated without a copy: a reader touches no more than the base tensor.",
    reference=lambda call, x: np.broadcast_to(x, call.shape), shape=_expand_shape, alias=0, gradient=unchanged,
    rule=expanded_axes,
))  # fmt: skip
