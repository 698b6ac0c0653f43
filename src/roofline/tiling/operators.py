"""The loop nests of operators: matmuls, convolutions, attention, reductions, and any contraction by its signature."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from roofline.ir.errors import UsageError
from roofline.tiling.nest import Nest, Operand, Traffic, positive_number, traffic, whole_number

#: Bytes of the running maximum and sum of a row of an online softmax, both in fp32 (arXiv 2205.14135, algorithm 1).
STATISTICS = 8.0


def matmul(m: Any, n: Any, k: Any, *, batch: Any = 1, widths: Any = 1, partial: float | None = None) -> Nest:
    """Describe ``c = a b`` of ``m x k`` by ``k x n``, or a batch of them.

    Args:
        m: Rows of the result.
        n: Columns of it.
        k: Products that are summed in an element.
        batch: Matmuls, each with operands of its own.
        widths: Bytes of an element, one number, or one each of a, b and c; 1 counts elements [byte].
        partial: Bytes of an unfinished sum; that of c's elements by default [byte].

    Returns:
        The nest, whose operands are a, b and c.

    Raises:
        UsageError: A size that is no whole number from 1 on, or a width that is not above 0.

    Example:
        >>> matmul(4096, 4096, 64).sizes
        {'batch': 1, 'm': 4096, 'n': 4096, 'k': 64}
    """
    a, b, c = checked_widths(widths, 3)
    sizes = {"batch": batch, "m": m, "n": n, "k": k}
    for axis, size in sizes.items():
        whole_number(f"matmul: size along {axis}", size)
    return Nest("matmul", sizes, (
        Operand("a", ("batch", "m", "k"), a), Operand("b", ("batch", "k", "n"), b),
        Operand("c", ("batch", "m", "n"), c, "sum", partial),
    ))  # fmt: skip


def matmul_traffic(
    m: Any, n: Any, k: Any, tile: Sequence[Any], *, order: str = "mnk", capacity: Any = None, batch: Any = 1,
    widths: Any = 1, partial: float | None = None,
) -> Traffic:  # fmt: skip
    """Count what a tiled matmul moves between a buffer and the memory behind it.

    Args:
        m: Rows of the result; all sizes and tiles are numbers, or arrays that broadcast.
        n: Columns of it.
        k: Products that are summed in an element.
        tile: Elements of a tile along m, n and k.
        order: Loops from the outermost inwards; ``mnk`` finishes a tile of c before it goes to the next.
        capacity: Of the buffer [byte]; without one it holds one tile of a, b and c.
        batch: Matmuls, each with operands of its own, one after the other.
        widths: Bytes of an element, one number, or one each of a, b and c; 1 counts elements [byte].
        partial: Bytes of an unfinished sum; that of c's elements by default [byte].

    Returns:
        Bytes read and written by operand, and what the buffer holds.

    Raises:
        UsageError: A size or tile that is no whole number from 1 on, or a buffer too small for the tile.

    Example:
        >>> moved = matmul_traffic(4096, 4096, 4096, (128, 128, 64), widths=2)
        >>> float(moved.bytes) / 1e9
        2.18103808
    """
    nest = matmul(m, n, k, batch=batch, widths=widths, partial=partial)
    if isinstance(tile, str) or len(tile) != 3:
        raise UsageError(f"matmul: tile {tile!r}; allowed: three sizes, along m, n and k")
    return traffic(nest, dict(zip("mnk", tile, strict=True)), ("batch", *order), capacity)


def checked_widths(widths: Any, count: int) -> tuple[float, ...]:
    """Return bytes of an element of each of so many operands.

    Raises:
        UsageError: Another number of them, or one that is not above 0.
    """
    each = np.atleast_1d(positive_number("widths", widths, "bytes"))
    if each.shape not in ((1,), (count,)):
        raise UsageError(f"widths: {widths!r}; allowed: one number, or {count}")
    return tuple(float(width) for width in np.broadcast_to(each, (count,)))
