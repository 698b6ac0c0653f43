"""Windows that slide over one, two or three axes: how often they fit, and what each of their taps sees."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from roofline.ir.errors import ShapeError
from roofline.ops.registry import Array


def per_axis(value: Any, axes: int) -> tuple[Any, ...]:
    """Return an option axis by axis: one number for all of them, or one each."""
    return tuple(value[:axes]) if isinstance(value, tuple | list) else (value,) * axes


def window(size: Any, kernel: Any, stride: int, padding: Any, dilation: int = 1) -> Any:
    """Count the positions of a window; ``padding`` is a number, or one before and one behind."""
    added = sum(padding) if isinstance(padding, tuple) else 2 * padding
    return (size + added - dilation * (kernel - 1) - 1) // stride + 1


def positive(size: Any) -> Any:
    """Return a size of an output.

    Raises:
        ShapeError: There is nothing of it.
    """
    if isinstance(size, int) and size < 1:
        raise ShapeError("has a kernel larger than its padded input")
    return size


def positions(*axis: Any) -> Any:
    """Count the positions of a window, of which there is at least one."""
    return positive(window(*axis))


def paddings(value: Any, axes: int) -> list[tuple[int, int]]:
    """Return the padding before and behind each axis."""
    return [each if isinstance(each, tuple) else (each, each) for each in per_axis(value, axes)]


def padded(x: Array, value: Any, outside: float = 0.0) -> Array:
    """Lay a padding around all axes but the first two."""
    return np.pad(x, [(0, 0), (0, 0), *paddings(value, x.ndim - 2)], constant_values=outside)


def taps(
    sizes: Sequence[int], steps: Sequence[int], gaps: Sequence[int], counts: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Yield each tap of a window, with the places that it sees over all positions of the window."""
    for tap in itertools.product(*map(range, sizes)):
        axes = zip(tap, gaps, steps, counts, strict=True)
        yield tap, tuple(slice(at * gap, at * gap + (count - 1) * step + 1, step) for at, gap, step, count in axes)
