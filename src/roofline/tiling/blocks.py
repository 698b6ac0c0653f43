"""Blocks that run at the same time: what several of them read comes from the memory behind once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roofline.ir.errors import UsageError
from roofline.tiling.masks import MOST_STEPS
from roofline.tiling.moves import Traffic, stored_elements, tile_extents
from roofline.tiling.nest import Nest, Operand, checked_order, checked_tile, whole_number


def concurrent(
    nest: Nest, tile: Mapping[str, int], cores: int, *, order: Sequence[str] | str = (), group: int = 1
) -> Traffic:
    """Count what blocks that run in waves read of the memory behind, where a wave reads what it shares once.

    A block computes one tile of the result and walks all of the other axes. ``cores`` blocks run at a time, in step;
    nothing stays from one wave to the next.

    Args:
        nest: What is computed, with sizes that are numbers and no mask.
        tile: Elements of a tile along the axes of the result; an axis without one is not cut.
        cores: Blocks that run at a time.
        order: Axes of the result from the outermost inwards, in which blocks start.
        group: Tiles along the last but one of the cut axes that are walked together before the next ones along the last
            (``GROUP_SIZE_M`` of Triton's matmul tutorial,
            https://triton-lang.org/main/getting-started/tutorials/03-matrix-multiplication.html); 1 for none.

    Returns:
        Bytes read and written by operand, and the most that a wave reads and writes.

    Raises:
        UsageError: A tile, a number of cores or a group that is no whole number from 1 on, or a nest with a mask.

    Example:
        >>> from roofline.tiling import matmul
        >>> large, tile = matmul(4096, 4096, 4096, widths=2), {"m": 128, "n": 128}
        >>> [round(float(concurrent(large, tile, 128, group=group).bytes) / 1e6) for group in (1, 4, 16)]
        [336, 336, 235]
    """
    if nest.band is not None or nest.single:
        raise UsageError(f"{nest.name}: blocks in waves; allowed: nests without a mask, whose loops may change places")
    cores, group = int(whole_number("cores", cores)), int(whole_number("group", group))
    tiles, loops = checked_tile(nest, tile), checked_order(nest, order)
    results = {axis for operand in nest.operands if operand.role in ("sum", "write") for axis in operand.axes}
    cut = {axis: int(tiles[axis]) for axis in loops if axis in results and axis in tile}
    counts = [-(-int(nest.sizes[axis]) // size) for axis, size in cut.items()]
    if (blocks := float(np.prod(counts, dtype=np.float64))) > MOST_STEPS:
        raise UsageError(f"{nest.name}: {blocks:.3g} blocks; allowed: at most {MOST_STEPS}, with larger tiles")
    at = dict(zip(cut, _started(counts, group), strict=True))
    wave = np.arange(int(np.prod(counts))) // cores
    read, write, most = {}, {}, np.zeros(int(wave[-1]) + 1)
    for operand in (each for each in nest.operands if each.role != "local"):
        place, elements = _panels(nest, operand, cut, at, len(wave))
        _, once = np.unique(np.stack([wave, place]), axis=1, return_index=True)
        is_read = operand.role == "read"
        read[operand.name] = float(elements[once].sum()) * operand.width if is_read else 0.0
        write[operand.name] = 0.0 if is_read else float(stored_elements(nest, operand)) * operand.width
        np.add.at(most, wave[once], elements[once] * operand.width)
    return Traffic(read, write, float(most.max()))


def _started(counts: Sequence[int], group: int) -> list[Any]:
    """Return the tile along each axis of each block, in the order in which blocks start."""
    number = np.arange(int(np.prod(counts)))
    if len(counts) < 2:
        return [number] * len(counts)
    *outer, rows, columns = counts
    around, inside = np.divmod(number, rows * columns)
    band, within = np.divmod(inside, group * columns)
    height = np.minimum(rows - band * group, group)
    return [*(np.unravel_index(around, outer) if outer else ()), band * group + within % height, within // height]


def _panels(
    nest: Nest, operand: Operand, cut: Mapping[str, int], at: Mapping[str, Any], blocks: int
) -> tuple[Any, Any]:
    """Return which panel of an operand each block touches, and its elements."""
    place: Any = np.zeros(blocks, dtype=np.int64)
    for axis in (axis for axis in cut if axis in operand.axes):
        place = place * -(-int(nest.sizes[axis]) // cut[axis]) + at[axis]
    elements: Any = np.float64(1)
    for dim in operand.dims:
        axes = (dim,) if isinstance(dim, str) else (dim.position, dim.tap)
        elements = elements * tile_extents(nest, dim, cut)[tuple(at.get(axis, 0) for axis in axes)]
    return place, np.broadcast_to(elements, (blocks,))
