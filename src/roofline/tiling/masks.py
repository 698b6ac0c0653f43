"""Nests that a mask leaves a part of: the steps that are left, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from roofline.ir.errors import UsageError
from roofline.tiling.nest import Band, Nest, Operand

#: Steps of a masked nest that are looked at.
MOST_STEPS = 2**22


def walk(nest: Nest, band: Band, operand: Operand, cut: Mapping[str, Any], loops: Sequence[str]) -> tuple[Any, Any]:
    """Count the elements that are loaded over the steps that a mask leaves, and those that are loaded at all.

    Outer loops that change every operand only repeat the rest.

    Raises:
        UsageError: More steps than are looked at.
    """
    moved, outer = [each for each in nest.operands if each.role != "local"], 0
    while outer < len(loops) and all(loops[outer] in each.axes for each in moved):
        outer += 1
    shape = np.broadcast_shapes(*(np.shape(each) for each in cut.values()))
    tiles = {axis: np.broadcast_to(each, shape).ravel() for axis, each in cut.items()}
    counts = [
        _steps(nest, band, operand, {axis: int(each[at]) for axis, each in tiles.items()}, loops[outer:])
        for at in range(int(np.prod(shape)))
    ]
    loaded, once = np.asarray(counts, dtype=np.float64).T
    return loaded.reshape(shape), once.reshape(shape)


def seen(band: Band, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Count the queries that see a key, and the keys that a query sees."""
    queries, keys = int(sizes[band.queries]), int(sizes[band.keys])
    last, first = np.arange(queries) + band.ahead, np.arange(keys) - band.ahead
    return {
        band.queries: np.count_nonzero((last >= 0) & (last - band.behind < keys - 1)),
        band.keys: np.count_nonzero((first < queries) & (first + band.behind > 0)),
    }


def pairs(nest: Nest) -> float:
    """Count the scores of attention, those that a mask hides left out."""
    sizes = {axis: float(size) for axis, size in nest.sizes.items()}
    if nest.band is None:
        return prod(sizes.values())
    last = np.arange(int(sizes.pop(nest.band.queries))) + nest.band.ahead
    keys = sizes.pop(nest.band.keys)
    seen_keys = np.minimum(last + 1, keys) - np.maximum(last + 1 - nest.band.behind, 0)
    return float(np.maximum(seen_keys, 0).sum()) * prod(sizes.values())


def _steps(nest: Nest, band: Band, operand: Operand, cut: Mapping[str, int], loops: Sequence[str]) -> tuple[int, int]:
    sizes = {axis: int(size) for axis, size in nest.sizes.items()}
    trips = [-(-sizes[axis] // cut[axis]) for axis in loops]
    steps = np.prod(trips, dtype=np.float64)
    if steps > MOST_STEPS:
        raise UsageError(f"{nest.name}: {steps:.3g} steps of tiles {dict(cut)}; allowed: at most {MOST_STEPS} "
                         "under a mask, with larger tiles")  # fmt: skip
    at = dict(zip(loops, np.unravel_index(np.arange(int(steps)), trips or (1,)), strict=False))
    extent = {axis: np.minimum(cut[axis], size - at[axis] * cut[axis]) if axis in at else size
              for axis, size in sizes.items()}  # fmt: skip
    tile: Any = np.zeros(int(steps), dtype=np.int64)
    elements: Any = np.ones(int(steps), dtype=np.int64)
    for axis in operand.axes:
        elements = elements * extent[axis]
    for axis, count in zip(loops, trips, strict=True):
        tile = tile * count + at[axis] if axis in operand.axes else tile
    left = np.broadcast_to(_left(band, at, extent, cut), tile.shape)
    tile, elements = tile[left], elements[left]
    _, once = np.unique(tile, return_index=True)
    return int(elements[np.diff(tile, prepend=-1) != 0].sum()), int(elements[once].sum())


def _left(band: Band, at: Mapping[str, Any], extent: Mapping[str, Any], cut: Mapping[str, int]) -> Any:
    """Tell whether a mask leaves some pair of the tiles of queries and keys of each step."""
    query = at[band.queries] * cut[band.queries] if band.queries in at else 0
    key = at[band.keys] * cut[band.keys] if band.keys in at else 0
    nearest, farthest = key - (query + extent[band.queries] - 1), key + extent[band.keys] - 1 - query
    return (nearest <= band.ahead) & (farthest > band.ahead - band.behind)
