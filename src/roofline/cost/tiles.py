"""The fastest of many tile shapes at many sizes, evaluated no more often than the answer needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

#: Choices times sizes that are evaluated together: larger temporaries leave the core's cache and are paged in anew.
AT_ONCE = 2**12
#: Sizes with the same tiles, on average, from which it pays to look for what cannot be the fastest.
ALIKE = 4

#: Seconds for tile rows, columns and parts of K, each with an axis before that of the sizes, at values that broadcast.
Timed = Callable[[tuple[Any, Any, Any], Sequence[Any]], Any]


def fastest(timed: Timed, choices: Any, values: Sequence[Any], rows: Any = None) -> Any:
    """Time of the fastest choice at each size [s].

    Args:
        timed: The time of choices at values.
        choices: Tile rows, columns and parts of K, one choice a line.
        values: What the time depends on, numbers or arrays that broadcast.
        rows: The rows of the output where no other size varies. Between multiples of the smallest tile's rows no number
            of tiles changes, and a choice then takes no less time for more rows.

    Returns:
        An array of the values' common shape.
    """
    shape = np.broadcast_shapes(*map(np.shape, values))
    flat = [np.broadcast_to(each, shape).ravel() if np.size(each) > 1 else np.ravel(each)[0] for each in values]
    if rows is not None and np.size(rows) > 1:
        fine = float(np.gcd.reduce(choices[:, 0].astype(int)))
        steps = np.diff(np.ceil(np.broadcast_to(rows, shape).ravel() / fine), prepend=0.0)
        first = np.flatnonzero(steps)
        if len(first) * ALIKE <= len(steps) and np.all(steps >= 0):
            return _fastest_of_few(timed, choices, flat, first, len(steps)).reshape(shape)
    sizes = int(np.prod(shape))
    times = [
        np.minimum.reduce([timed(tiles, part).min(axis=0) for tiles in _chunks(choices, count)])
        for part, count in _parts(flat, sizes)
    ]
    whole = times[0] if len(times) == 1 else np.concatenate(times)
    return whole.reshape(shape) if whole.size == sizes else whole  # along chips at one size


def _fastest_of_few(timed: Timed, choices: Any, values: Sequence[Any], first: Any, sizes: int) -> Any:
    """Look only at choices that, for the fewest rows of a group, undercut the best for all of its rows.

    ``first`` are the places at which groups of sizes with the same numbers of tiles begin.
    """
    fewest = _at(values, first)
    least = np.concatenate([timed(tiles, fewest) for tiles in _chunks(choices, len(first))])
    group = np.repeat(np.arange(len(first)), np.diff(first, append=sizes))
    leader = timed(_tiles(choices[least.argmin(axis=0)][None, group]), values)[0]
    few = int((least <= np.maximum.reduceat(leader, first)).sum(axis=0).max())
    if few == 1:
        return leader
    order = np.argpartition(least, few - 1, axis=0)[:few]
    return timed(_tiles(choices[order[:, group]]), values).min(axis=0)


def _parts(values: Sequence[Any], sizes: int) -> Iterator[tuple[Sequence[Any], int]]:
    """Yield the values of a bounded number of sizes at a time, and their number."""
    for start in range(0, sizes, AT_ONCE):
        part = slice(start, start + AT_ONCE)
        yield (values if sizes <= AT_ONCE else _at(values, part)), min(AT_ONCE, sizes - start)


def _chunks(choices: Any, sizes: int) -> Iterator[tuple[Any, Any, Any]]:
    """Yield a bounded number of choices at a time, for so many sizes."""
    at_once = max(1, AT_ONCE // sizes)
    for start in range(0, len(choices), at_once):
        yield _tiles(choices[start : start + at_once, None])


def _tiles(choices: Any) -> tuple[Any, Any, Any]:
    rows, columns, parts = np.moveaxis(choices, -1, 0)
    return rows, columns, parts


def _at(values: Sequence[Any], where: Any) -> list[Any]:
    return [each[where] if np.ndim(each) else each for each in values]
