"""What the tiles of a loop nest move: exact counts, ragged edges, halos and masks included.

A tiling cuts every axis into tiles and walks the tiles in an order. A buffer holds, of every operand, what the
innermost loops touch: one tile at least, or all tiles that the loops from some depth on walk over. Whatever is not
there is loaded anew; sums that are not finished when they leave are written and read back. What stays is chosen so
that the least is moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import product
from math import prod
from typing import Any

import numpy as np

from roofline.counting.grid import plain
from roofline.ir.errors import UsageError
from roofline.tiling.masks import seen, walk
from roofline.tiling.nest import Nest, Operand, Window, checked_order, checked_tile, positive_number


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes between a buffer and the memory behind it; numbers, or arrays over tiles and sizes.

    From :func:`roofline.tiling.traffic`.

    Attributes:
        read: Into the buffer, by operand [byte].
        write: Out of it, by operand [byte].
        held: Bytes that the buffer holds at once [byte].
    """

    read: Mapping[str, Any]
    write: Mapping[str, Any]
    held: Any

    @property
    def bytes(self) -> Any:
        """Read and written [byte]."""
        return sum(self.read.values()) + sum(self.write.values())


def traffic(nest: Nest, tile: Mapping[str, Any], order: Sequence[str] | str = (), capacity: Any = None) -> Traffic:
    """Count what a tiled nest moves between a buffer and the memory behind it.

    Args:
        nest: What is computed.
        tile: Elements of a tile along each axis, numbers or arrays that broadcast; an axis without one is not cut.
        order: Axes from the outermost loop inwards; those that are not named lie innermost, in the nest's own order.
        capacity: Of the buffer [byte]. Without one it holds one tile of each operand and no more.

    Returns:
        Bytes read and written by operand, and what the buffer holds.

    Raises:
        UsageError: An axis that the nest has not, a tile that is no whole number from 1 on, or a capacity that cannot
            hold one tile of each operand.

    Example:
        >>> from roofline.tiling.operators import matmul
        >>> moved = traffic(matmul(512, 512, 512, widths=2), {"m": 128, "n": 128, "k": 64}, "mnk")
        >>> {name: int(each) for name, each in moved.read.items()}, int(moved.bytes)
        ({'a': 2097152, 'b': 2097152, 'c': 0}, 4718592)
    """
    tiles, loops = checked_tile(nest, tile), checked_order(nest, order)
    ways = [_ways(nest, operand, tiles, loops) for operand in nest.operands]
    if capacity is None:
        chosen = [each[0] for each in ways]
    else:
        chosen = _fitting(nest, ways, positive_number("capacity", capacity, "bytes"))
    names = [operand.name for operand in nest.operands if operand.role != "local"]
    moved = [way for way, operand in zip(chosen, nest.operands, strict=True) if operand.role != "local"]
    return Traffic(
        {name: plain(way.read) for name, way in zip(names, moved, strict=True)},
        {name: plain(way.write) for name, way in zip(names, moved, strict=True)},
        plain(sum(way.held for way in chosen)),
    )


def compulsory(nest: Nest) -> Any:
    """Count what every schedule moves: each operand once.

    Args:
        nest: What is computed.

    Returns:
        Bytes read and written [byte].

    Raises:
        UsageError: A nest without operands that move.

    Example:
        >>> from roofline.tiling.operators import matmul
        >>> int(compulsory(matmul(512, 512, 512, widths=2)))
        1572864
    """
    moved = [operand for operand in nest.operands if operand.role != "local"]
    if not moved:
        raise UsageError(f"{nest.name}: no operand that moves; allowed: at least one that is no local")
    elements = (touched_elements if operand.role == "read" else stored_elements for operand in moved)
    return plain(sum(each(nest, operand) * operand.width for each, operand in zip(elements, moved, strict=True)))


def held_bytes(nest: Nest, tile: Mapping[str, Any]) -> Any:
    """Bytes that one tile of each operand takes; ``tile`` names all axes."""
    return sum(_footprint(nest, operand, tile, largest=True) * operand.held for operand in nest.operands)


def traffic_by_level(nest: Nest, tilings: Mapping[str, tuple[Mapping[str, int], Sequence[str]]]) -> dict[str, Traffic]:
    """Count what moves at each of several memories, tiles within tiles.

    Args:
        nest: What is computed, with sizes that are numbers.
        tilings: By the memory's name, from the outside in, the tiles that the buffer in front of it holds and the order
            of the loops over them. Each level's loops run inside a tile of the one around it.

    Returns:
        By the same names, the traffic over the whole nest. Buffers start empty in every tile of the level around them.

    Raises:
        UsageError: A tile or order that :func:`traffic` refuses, or a nest with steps that follow from each other.

    Example:
        >>> from roofline.tiling import matmul
        >>> outer, inner = {"m": 1024, "n": 1024, "k": 1024}, {"m": 128, "n": 128, "k": 64}
        >>> moved = traffic_by_level(matmul(1024, 4096, 1024, widths=2), {"HBM": (outer, "mnk"), "L2": (inner, "mnk")})
        >>> {name: int(each.bytes) // 2**20 for name, each in moved.items()}
        {'HBM': 18, 'L2': 136}
    """
    if nest.single:
        raise UsageError(f"{nest.name}: tiles within tiles; allowed: nests whose loops may change places")
    moved, boxes = {}, [(1, nest)]
    for name, (tile, order) in tilings.items():
        moved[name] = _together(nest, [(count, box, traffic(box, tile, order)) for count, box in boxes])
        boxes = [(count * times, part) for count, box in boxes for times, part in _cut(box, checked_tile(box, tile))]
    return moved


def _together(nest: Nest, parts: Sequence[tuple[int, Nest, Traffic]]) -> Traffic:
    """Add up the traffic of boxes of a nest, each so often; sums that several of them add to come back."""
    read, write = {}, {}
    for operand in (each for each in nest.operands if each.role != "local"):
        name = operand.name
        read[name] = sum(count * moved.read[name] for count, _, moved in parts)
        write[name] = 0.0 if operand.role == "read" else stored_elements(nest, operand) * operand.width
        if operand.role == "sum":
            visits = sum(count * touched_elements(box, operand) for count, box, _ in parts)
            read[name] += (visits - touched_elements(nest, operand)) * operand.held
            write[name] += read[name]
    held = np.maximum.reduce([moved.held for _, _, moved in parts])
    return Traffic({name: plain(each) for name, each in read.items()},
                   {name: plain(each) for name, each in write.items()}, plain(held))  # fmt: skip


def _cut(nest: Nest, tile: Mapping[str, Any]) -> list[tuple[int, Nest]]:
    """Return the boxes that tiles cut a nest into, equal ones together with their number."""
    placed = {axis for operand in nest.operands for dim in operand.dims if isinstance(dim, Window)
              for axis in (dim.position, dim.tap)}  # fmt: skip
    placed |= {nest.band.queries, nest.band.keys} if nest.band else set()
    spans = []
    for axis, size in nest.sizes.items():
        starts = range(0, int(size), int(tile[axis]))
        each = [(1, start, min(int(tile[axis]), int(size) - start)) for start in starts]
        last = each[-1:] if axis in placed or each[-1][2] < tile[axis] else []
        same = [(len(each) - 1 if last else len(each), 0, int(tile[axis]))]
        spans.append(each if axis in placed else [span for span in same if span[0]] + last)
    return [
        (prod(span[0] for span in box), _box(nest, dict(zip(nest.sizes, box, strict=True)))) for box in product(*spans)
    ]


def _box(nest: Nest, spans: Mapping[str, tuple[int, int, int]]) -> Nest:
    """Return a box of a nest, with its windows and its mask where it lies."""
    operands = tuple(
        replace(operand, dims=tuple(
            dim if isinstance(dim, str) else replace(
                dim, before=dim.before - spans[dim.position][1] * dim.stride - spans[dim.tap][1] * dim.dilation
            ) for dim in operand.dims
        )) for operand in nest.operands
    )  # fmt: skip
    band = nest.band and replace(
        nest.band, ahead=nest.band.ahead + spans[nest.band.queries][1] - spans[nest.band.keys][1]
    )
    return replace(nest, sizes={axis: span[2] for axis, span in spans.items()}, operands=operands, band=band)


def touched_elements(nest: Nest, operand: Operand) -> Any:
    """Elements of an operand that some step touches."""
    whole = {axis: np.asarray(size, dtype=np.float64) for axis, size in nest.sizes.items()}
    whole |= seen(nest.band, whole) if nest.band is not None else {}
    return _footprint(nest, operand, whole, largest=True)


# --- one operand ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Way:
    """What an operand moves when the buffer holds what the loops from some depth on touch of it [byte]."""

    held: Any
    read: Any
    write: Any


def _ways(nest: Nest, operand: Operand, tile: Mapping[str, Any], loops: Sequence[str]) -> list[_Way]:
    """Return the ways to hold an operand that differ in what they move, from a single tile outwards.

    Whole tiles come again only with loops around that do not change them; windows overlap, and any loop over them
    loads some points again.
    """
    used = [axis in operand.axes for axis in loops]
    depths = [len(loops)]
    if operand.role in ("read", "sum"):
        outside = [at for at, own in enumerate(used) if not own and any(used[at:])]
        depths += [at + 1 for at in reversed(outside) if used[at + 1]]
    if not all(isinstance(dim, str) for dim in operand.dims):
        depths = list(range(len(loops), -1, -1))
    return [_way(nest, operand, tile, loops, depth) for depth in depths]


def _way(nest: Nest, operand: Operand, tile: Mapping[str, Any], loops: Sequence[str], depth: int) -> _Way:
    cut = {axis: tile[axis] if axis in loops[:depth] else np.float64(nest.sizes[axis]) for axis in loops}
    held = _footprint(nest, operand, cut, largest=True) * operand.held
    if operand.role == "local":
        return _Way(held, 0.0, 0.0)
    stored = stored_elements(nest, operand) * operand.width
    if operand.role == "write":
        return _Way(held, 0.0, stored)
    if nest.band is not None and operand.axes & {nest.band.queries, nest.band.keys}:
        loaded, once = walk(nest, nest.band, operand, cut, loops[:depth])
    else:
        loaded = _visits(nest, operand, cut, loops[:depth]) * _footprint(nest, operand, cut)
        once = touched_elements(nest, operand)
    if operand.role == "read":
        return _Way(held, loaded * operand.width, 0.0)
    unfinished = (loaded - once) * operand.held
    return _Way(held, unfinished, stored + unfinished)


def stored_elements(nest: Nest, operand: Operand) -> Any:
    """Elements of an operand as it lies in memory, those that no step touches among them."""
    sizes = [nest.sizes[dim] if isinstance(dim, str) else dim.size for dim in operand.dims]
    return reduce(np.multiply, sizes, np.float64(1))


def _visits(nest: Nest, operand: Operand, cut: Mapping[str, Any], loops: Sequence[str]) -> Any:
    """Count how often each tile is loaded: once per step of the loops around the innermost one that changes it."""
    visits: Any = np.float64(1)
    around: Any = np.float64(1)
    for axis in loops:
        trips = np.ceil(nest.sizes[axis] / cut[axis])
        if axis in operand.axes:
            visits = np.where(trips > 1, around, visits)
        else:
            around = around * trips
    return visits


def _footprint(nest: Nest, operand: Operand, cut: Mapping[str, Any], largest: bool = False) -> Any:
    """Elements of all tiles together, or of the largest one."""
    total: Any = np.float64(1)
    for dim in operand.dims:
        if isinstance(dim, str):
            total = total * (cut[dim] if largest else nest.sizes[dim])
        else:
            total = total * _window(nest, dim, cut, largest)
    return total


def _window(nest: Nest, dim: Window, cut: Mapping[str, Any], largest: bool) -> Any:
    sizes = int(nest.sizes[dim.position]), int(nest.sizes[dim.tap])
    some, few = np.broadcast_arrays(cut[dim.position], cut[dim.tap])
    different, at = np.unique(some.ravel() * (sizes[1] + 1) + few.ravel(), return_inverse=True)
    pairs = (divmod(int(code), sizes[1] + 1) for code in different)
    extents = [_extents(dim, *sizes, *pair)[int(largest)] for pair in pairs]
    return np.asarray(extents, dtype=np.float64)[at].reshape(some.shape)


def tile_extents(nest: Nest, dim: str | Window, cut: Mapping[str, int]) -> Any:
    """Return the elements of each tile along a dimension; of a window, by tile of its positions and of its taps."""
    if isinstance(dim, str):
        size, some = int(nest.sizes[dim]), int(cut.get(dim, nest.sizes[dim]))
        return np.minimum(some, size - np.arange(0, size, some))
    sizes = int(nest.sizes[dim.position]), int(nest.sizes[dim.tap])
    return _points(dim, *sizes, int(cut.get(dim.position, sizes[0])), int(cut.get(dim.tap, sizes[1])))


@lru_cache(maxsize=2**14)
def _extents(dim: Window, positions: int, taps: int, some: int, few: int) -> tuple[int, int]:
    """Points of an image that tiles of so many positions and taps touch: of all tiles together, and of the largest."""
    points = _points(dim, positions, taps, some, few)
    return int(points.sum()), int(points.max())


def _points(dim: Window, positions: int, taps: int, some: int, few: int) -> Any:
    """Points of an image that each tile touches."""
    position, tap = np.arange(positions)[:, None], np.arange(taps)
    touched = position * dim.stride + tap * dim.dilation - dim.before
    down, across = -(-positions // some), -(-taps // few)
    tile = position // some * across + tap // few
    each = np.unique((tile * dim.size + touched)[(touched >= 0) & (touched < dim.size)])
    return np.bincount(each // dim.size, minlength=down * across).reshape(down, across)


# --- what stays ----------------------------------------------------------------------------------------------------


def _fitting(nest: Nest, ways: Sequence[Sequence[_Way]], capacity: Any) -> list[_Way]:
    """Choose, of each operand, what the buffer holds, so that all fits and the least is moved."""
    combinations = list(product(*ways))
    held = np.stack(np.broadcast_arrays(*(sum(way.held for way in each) for each in combinations), capacity)[:-1])
    moved = np.stack(
        np.broadcast_arrays(*(sum(way.read + way.write for way in each) for each in combinations), held[0])[:-1]
    )
    if np.any(held[0] > capacity):
        raise UsageError(f"{nest.name}: one tile of each operand takes {np.max(held[0]):g} bytes; "
                         f"capacity: {np.min(capacity):g} bytes; allowed: smaller tiles")  # fmt: skip
    best = np.argmin(np.where(held <= capacity, moved, np.inf), axis=0)

    def chosen(at: int, figure: str) -> Any:
        each = np.broadcast_arrays(*(getattr(way[at], figure) for way in combinations), held[0])[:-1]
        return np.take_along_axis(np.stack(each), best[None], axis=0)[0]

    return [_Way(*(chosen(at, figure) for figure in ("held", "read", "write"))) for at in range(len(ways))]
