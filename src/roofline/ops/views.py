"""The same storage seen otherwise: nothing moves."""

from __future__ import annotations

from typing import Any

from roofline.ir.errors import ShapeError
from roofline.ir.signature import Shape
from roofline.ir.sizes import prod
from roofline.ops.registry import Work, op


def _view_shape(shapes: tuple[Shape, ...], shape: Any) -> Shape:
    target = tuple(shape)
    if prod(target) != prod(shapes[0]):
        raise ShapeError(f"cannot view {list(shapes[0])} as {list(target)}: the element counts differ")
    return target


@op("view", None, "view", shape=_view_shape, alias=0)
def view() -> Work:
    """The same elements under another shape or order: nothing moves."""
    return Work()


@op("permute", None, "view", shape=lambda shapes, axes: tuple(shapes[0][at] for at in axes), alias=0)
def permute() -> Work:
    """The axes in another order: nothing moves."""
    return Work()


@op("slice", None, "view", shape=lambda shapes, shape: tuple(shape), alias=0)
def slice_() -> Work:
    """A part of a tensor: nothing moves."""
    return Work()


@op("expand", None, "view", shape=lambda shapes, shape: _expand_shape(shapes[0], tuple(shape)), alias=0)
def expand() -> Work:
    """Axes of size 1 repeated without a copy: a reader touches no more than the base tensor."""
    return Work()


def _expand_shape(base: Shape, target: Shape) -> Shape:
    if len(base) != len(target) or any(b not in (1, t) for b, t in zip(base, target, strict=False)):
        raise ShapeError(f"cannot expand {list(base)} to {list(target)}: only axes of size 1 repeat")
    return target


@op("parallel_input", None, "view", shape=lambda shapes: shapes[0], alias=0)
def parallel_input() -> Work:
    """What each of ``devices`` is given whole before it computes its share: nothing moves.

    Its backward adds up the devices' gradients (Shoeybi et al. 2019, figure 3, the operator f).
    """
    return Work()
