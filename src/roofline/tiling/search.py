"""The tiles and the order of loops that move the least under a capacity, by search.

Whatever the tiles, one operand stays longest: the loops that do not change it lie innermost. For each of the operands
the search cuts its axes finely, takes the other ones in steps of one, and makes one axis as long as the capacity lets
it be; of all these tiles and all orders of the loops it takes the one that moves the least.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from typing import Any

import numpy as np

from roofline.ir.errors import UsageError
from roofline.tiling.moves import Traffic, held_bytes, stored_elements, traffic, traffic_by_level
from roofline.tiling.nest import Nest, Operand, Window, positive_number

#: Tile sizes that are tried along each of so many axes that a search cuts.
FINE = {0: 1, 1: 512, 2: 40, 3: 12}
COARSE = 8
#: Steps along the other axes that are tried where few large tiles are worth some traffic, and how much of it.
STEPS, SLACK = (1, 16, 64, 256), 0.05
#: Tilings of a masked nest that are counted one by one, the best without the mask.
MASKED = 6


@dataclass(frozen=True, slots=True)
class Best:
    """The tiling that moves the least.

    From :func:`roofline.tiling.best`.

    Attributes:
        tile: Elements along each axis.
        order: Axes from the outermost loop inwards.
        traffic: What it moves.
    """

    tile: Mapping[str, int]
    order: tuple[str, ...]
    traffic: Traffic


def best(nest: Nest, capacity: float, slack: float = 0.0) -> Best:
    """Find the tile and the order of loops that move the least between a buffer and the memory behind it.

    Of a matmul the result is the least of all tiles whose buffers hold one tile of each operand, up to 512 sizes of a
    tile along an axis; of nests with more axes, of a coarser choice of sizes.

    Args:
        nest: What is computed, with sizes that are numbers.
        capacity: Of the buffer [byte].
        slack: Share by which more may move where that takes fewer steps.

    Returns:
        The tiling and its traffic.

    Raises:
        UsageError: A capacity in which no tile fits, or a slack below 0.

    Example:
        >>> from roofline.tiling import matmul
        >>> best(matmul(4096, 4096, 4096), 2**20).tile
        {'batch': 1, 'm': 820, 'n': 1024, 'k': 1}
    """
    if any(np.ndim(size) for size in (*nest.sizes.values(), capacity)):
        raise UsageError(f"best tile of {nest.name}: arrays of sizes or capacities; allowed: one of each")
    room = float(positive_number("capacity", capacity, "bytes"))
    plain = replace(nest, band=None)
    if not 0 <= slack < float("inf"):
        raise UsageError(f"best tile of {nest.name}: slack={slack!r}; allowed: a finite share from 0 on")
    slack = max(slack, 5 * SLACK if nest.band else 0.0)  # whose steps are counted one by one
    tiles, held = _candidates(plain, room, slack > 0)
    if not len(held):
        least = held_bytes(plain, dict.fromkeys(nest.sizes, 1.0))
        raise UsageError(f"{nest.name}: capacity: {capacity:g} bytes; allowed: from {float(least):g} bytes on, "
                         "which the smallest tile takes")  # fmt: skip
    steps = np.prod([np.ceil(size / tiles[axis]) for axis, size in nest.sizes.items()], axis=0)
    moved = [(order, traffic(plain, tiles, order)) for order in _orders(plain)]
    ranked = _ranked(moved, steps, slack)
    tilings = [({axis: int(each[at]) for axis, each in tiles.items()}, order) for order, at in ranked]
    counted = [Best(tile, order, traffic(nest, tile, order)) for tile, order in tilings[: MASKED if nest.band else 1]]
    return min(counted, key=lambda each: float(each.traffic.bytes))


def _ranked(
    moved: Sequence[tuple[tuple[str, ...], Traffic]], steps: Any, slack: float
) -> list[tuple[tuple[str, ...], int]]:
    """Return the first orders and tilings: those within the slack by their steps, else by what they move and hold."""
    least = min(float(each.bytes.min()) for _, each in moved)
    firsts = []
    for order, each in moved:
        near = each.bytes <= least * (1 + slack)
        keys = (each.held, each.bytes, np.where(near, steps, np.inf)) if slack else (steps, each.held, each.bytes)
        at = np.lexsort(keys)[:MASKED]
        firsts += [(tuple(float(key[one]) for key in reversed(keys)), order, int(one)) for one in at]
    return [(order, at) for _, order, at in sorted(firsts, key=lambda each: each[0])]


def best_by_level(nest: Nest, capacities: Mapping[str, float]) -> dict[str, Best]:
    """Find a tiling for each of several memories, each inside the tile of the one around it.

    Args:
        nest: What is computed.
        capacities: Of the buffers in front of memories, by the memory's name, from the outside in [byte]: what lies in
            ``HBM`` is tiled for the ``L2``, and the tile that lies there for the shared memory.

    Returns:
        By the same names, the tiling and what it moves over the whole nest: at most 5 % more than the least at each
        level, where that spares steps, since buffers start empty in every outer tile.

    Raises:
        UsageError: A capacity in which no tile fits, or a nest with steps that follow from each other.

    Example:
        >>> from roofline.tiling import matmul
        >>> levels = best_by_level(matmul(4096, 4096, 4096, widths=2), {"HBM": 50e6, "L2": 200e3})
        >>> [f"{name}: {float(level.traffic.bytes) / 1e9:.2f} GB" for name, level in levels.items()]
        ['HBM: 0.10 GB', 'L2: 0.97 GB']
    """
    tilings: dict[str, Best] = {}
    inner = nest
    for name, capacity in capacities.items():
        tilings[name] = best(inner, capacity, SLACK)
        inner = replace(nest, sizes=tilings[name].tile)
    moved = traffic_by_level(nest, {name: (each.tile, each.order) for name, each in tilings.items()})
    return {name: replace(each, traffic=moved[name]) for name, each in tilings.items()}


# --- what is tried ----------------------------------------------------------------------------------------------------


def _classes(nest: Nest) -> dict[tuple[bool, ...], list[str]]:
    """Group the axes by which of the moving operands they change."""
    moving = [operand.axes for operand in nest.operands if operand.role != "local"]
    classes: dict[tuple[bool, ...], list[str]] = {}
    for axis in nest.sizes:
        classes.setdefault(tuple(axis in each for each in moving), []).append(axis)
    return classes


def _orders(nest: Nest) -> list[tuple[str, ...]]:
    """Return all orders of loops that differ: axes that change all operands lie outside, those of a class together."""
    if nest.order:
        return [nest.order]
    classes = _classes(nest)
    outer = [axis for uses, axes in classes.items() if all(uses) for axis in axes]
    rest = [axes for uses, axes in classes.items() if not all(uses)]
    return [(*outer, *(axis for axes in each for axis in axes)) for each in permutations(rest)]


def _candidates(nest: Nest, room: float, large: bool) -> tuple[dict[str, Any], Any]:
    """Return tiles along each axis, arrays of one length, that fit; and what they hold."""
    parts = [_stationary(nest, operand, room, large) for operand in nest.operands if operand.role != "local"]
    tiles = {axis: np.concatenate([part[axis] for part in parts]) for axis in nest.sizes}
    held = held_bytes(nest, tiles)
    fits = held <= room
    return {axis: each[fits] for axis, each in tiles.items()}, held[fits]


def _stationary(nest: Nest, operand: Operand, room: float, large: bool) -> dict[str, Any]:
    """Return tiles of an operand that stays: its axes and those of windows cut finely, the longest as it fits."""
    windows = [dim for each in nest.operands for dim in each.dims if isinstance(dim, Window)]
    taps, positions = {dim.tap for dim in windows}, {dim.position for dim in windows}
    every = {axis for uses, axes in _classes(nest).items() if all(uses) for axis in axes}
    cut = [axis for axis in nest.sizes if axis in operand.axes | positions and axis not in taps]
    cut = [axis for axis in cut if nest.order or axis not in every]
    plain = sorted((axis for axis in cut if axis not in positions), key=lambda axis: nest.sizes[axis])
    fine = [axis for axis in cut if axis not in plain[-1:]]
    steps = STEPS if large else STEPS[:1]
    choices = {axis: np.unique(np.minimum([*steps, size][: 99 if large else 1], size)) * 1.0
               for axis, size in nest.sizes.items()}  # fmt: skip
    choices |= {axis: np.ones(1) for axis in every.union(nest.single)}
    choices |= {axis: _sizes(int(nest.sizes[axis]), FINE.get(max(len(fine), len(taps) + 1), COARSE)) for axis in fine}
    choices |= {axis: np.unique([1.0, nest.sizes[axis]]) for axis in taps}
    mesh = np.meshgrid(*choices.values(), indexing="ij")
    tiles = {axis: each.ravel() for axis, each in zip(choices, mesh, strict=True)}
    for axis in plain[-1:]:
        one, two = (held_bytes(nest, {**tiles, axis: np.full(tiles[axis].shape, size)}) for size in (1.0, 2.0))
        most = np.clip(np.floor((room - one) / (two - one)) + 1, 1, nest.sizes[axis])
        tiles[axis] = np.ceil(nest.sizes[axis] / np.ceil(nest.sizes[axis] / most))  # no larger than its steps need
    return tiles


def _sizes(size: int, count: int) -> Any:
    """Return at most so many sizes of tiles, each the smallest for its number of steps."""
    if size <= count**2 / 4:
        return np.unique(np.ceil(size / np.arange(1, size + 1)))
    return np.unique(np.ceil(size / np.ceil(size / np.geomspace(1, size, count))))


# --- many sizes at once -----------------------------------------------------------------------------------------------

#: Tile sizes that are tried along one axis of each operand, evenly in their logarithm.
TRIED = 96


def least_contraction(nest: Nest, capacity: Any) -> Any:
    """Return what the best tiles of a contraction move, for arrays of sizes and capacities [byte].

    It is taken as a matmul whose operands are as large as they are: windows of neighbouring tiles are not read twice.
    Where not even one element of each operand fits, tiles of one element are taken.
    """
    uses = [operand.axes for operand in nest.operands if len(operand.dims) > 1]
    size = {key: np.float64(1) for key in ((1, 0, 1), (0, 1, 1), (1, 1, 0), (1, 1, 1))}
    for axis, length in nest.sizes.items():
        key = tuple(int(axis in each) for each in uses)
        size[key] = size[key] * np.asarray(length, dtype=np.float64)  # type: ignore[index, assignment]
    (m, n, k, many) = size.values()
    operands = [operand for operand in nest.operands if len(operand.dims) > 1]
    spread = (many * m * k, many * n * k, many * m * n)
    a, b, c = (operand.width * stored_elements(nest, operand) / points
               for operand, points in zip(operands, spread, strict=True))  # fmt: skip
    tiles = [
        _stays(m, n, k, (c, a, b), capacity, sums=False),
        _stays(m, k, n, (a, c, b), capacity, sums=True),
        _stays(n, k, m, (b, c, a), capacity, sums=True),
    ]
    return many * np.minimum.reduce(tiles)


def _stays(x: Any, y: Any, z: Any, widths: tuple[Any, Any, Any], capacity: Any, sums: bool) -> Any:
    """Return the bytes of a matmul whose operand of ``x`` by ``y`` stays, a tile at a time, and ``z`` passes by.

    ``widths`` are those of this operand, of the one of ``x`` by ``z`` and of the one of ``y`` by ``z``. ``sums``: the
    second one is the result, which is read and written for each tile along ``y``.
    """
    own, first, second = widths
    along = np.geomspace(1.0, np.max(x), TRIED).reshape(-1, *(1,) * np.broadcast(x, y, z, capacity, own).ndim)
    rows = np.ceil(x / np.ceil(x / np.minimum(along, x)))
    columns = np.clip(np.floor((capacity - first * rows) / (own * rows + second)), 1, y)
    down, across = np.ceil(x / rows), np.ceil(y / columns)
    passes = 2 * across - 1 if sums else across
    return (own * x * y + first * x * z * passes + second * y * z * down).min(axis=0)


def least_attention(many: Any, rows: Any, keys: Any, share: Any, widths: tuple[Any, Any, Any], capacity: Any) -> Any:
    """Return what the best tiles of attention move, for arrays of sizes and capacities [byte].

    Queries stay and keys pass by one at a time, or all keys of a head stay.

    Args:
        many: Heads of the keys, of all sequences.
        rows: Queries that share a head's keys.
        keys: Keys.
        share: Scores that a mask leaves.
        widths: Bytes of a query and its output, of what a row in work takes on the chip, of a key and its value [byte].
        capacity: Of the buffer [byte].
    """
    row, working, pair = widths
    tile = np.clip(np.floor((capacity - pair) / working), 1, rows)
    reads = np.maximum(share * np.ceil(rows / tile), 1.0)
    return many * (row * rows + pair * keys * np.where(pair * keys + working <= capacity, 1.0, reads))
