"""Boxes in ranks with lines between them: where each part of a drawing lies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

#: Size of a box, of the room that a passing line takes, and the gaps between them.
BOX_WIDTH, BOX_HEIGHT, LINE_WIDTH, GAP_X, GAP_Y = 204, 50, 14, 18, 34
#: Sweeps that put a part below the middle of those above it, and back.
_SWEEPS = 6

Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Layout:
    """Middles of boxes, lines as points to pass, and the size of it all."""

    at: Mapping[int, Point]
    lines: Sequence[tuple[int, int, tuple[Point, ...]]]
    width: float
    height: float


def layout(nodes: Sequence[int], pairs: Iterable[tuple[int, int]]) -> Layout:
    """Place nodes, given in an order in which every line points onwards.

    Args:
        nodes: Their numbers, in order.
        pairs: Lines between them.

    Example:
        >>> found = layout([1, 2, 3], [(1, 2), (2, 3), (1, 3)])
        >>> [found.at[node][1] for node in (1, 2, 3)], len(found.lines[2][2])
        ([25.0, 109.0, 193.0], 3)
    """
    pairs = list(dict.fromkeys(pairs))
    ranks = _ranks(nodes, pairs)
    levels: list[list[object]] = [[] for _ in range(max(ranks.values(), default=0) + 1)]
    for node in nodes:
        levels[ranks[node]].append(node)
    chains = {pair: _chain(pair, ranks, levels) for pair in pairs}
    _order(levels, chains.values())
    places, width = _places(levels)
    lines = [(a, b, tuple(places[part] for part in chain)) for (a, b), chain in chains.items()]
    return Layout({node: places[node] for node in nodes}, lines, width, len(levels) * (BOX_HEIGHT + GAP_Y) - GAP_Y)


def _ranks(nodes: Sequence[int], pairs: Sequence[tuple[int, int]]) -> dict[int, int]:
    """The longest way to each node."""
    above: dict[int, list[int]] = {}
    for source, target in pairs:
        above.setdefault(target, []).append(source)
    ranks: dict[int, int] = {}
    for node in nodes:
        ranks[node] = max((ranks[source] + 1 for source in above.get(node, ())), default=0)
    return ranks


def _chain(pair: tuple[int, int], ranks: Mapping[int, int], levels: list[list[object]]) -> list[object]:
    """A line's ends and, in each rank between them, a place of its own."""
    between: list[object] = []
    for rank in range(ranks[pair[0]] + 1, ranks[pair[1]]):
        part = (pair, rank)
        levels[rank].append(part)
        between.append(part)
    return [pair[0], *between, pair[1]]


def _order(levels: list[list[object]], chains: Iterable[Sequence[object]]) -> None:
    """Sort each rank by the middle of its neighbours in the one before it, down and up."""
    up: dict[object, list[object]] = {}
    down: dict[object, list[object]] = {}
    for chain in chains:
        for a, b in pairwise(chain):
            down.setdefault(a, []).append(b)
            up.setdefault(b, []).append(a)
    for sweep in range(_SWEEPS):
        order = list(range(1, len(levels))) if sweep % 2 == 0 else list(range(len(levels) - 2, -1, -1))
        for rank in order:
            near, step = (up, -1) if sweep % 2 == 0 else (down, 1)
            position = {part: at / len(levels[rank + step]) for at, part in enumerate(levels[rank + step])}
            own = {part: at / len(levels[rank]) for at, part in enumerate(levels[rank])}
            levels[rank].sort(key=lambda part: _middle(near.get(part, []), position, own[part]))


def _middle(near: Sequence[object], position: Mapping[object, float], otherwise: float) -> float:
    return sum(position[part] for part in near) / len(near) if near else otherwise


def _places(levels: list[list[object]]) -> tuple[dict[object, Point], float]:
    def size(part: object) -> float:
        return BOX_WIDTH if isinstance(part, int) else LINE_WIDTH

    widths = [sum(map(size, level)) + GAP_X * (len(level) - 1) for level in levels]
    width = max(widths, default=0.0)
    places: dict[object, Point] = {}
    for rank, level in enumerate(levels):
        x = (width - widths[rank]) / 2
        for part in level:
            places[part] = (x + size(part) / 2, rank * (BOX_HEIGHT + GAP_Y) + BOX_HEIGHT / 2)
            x += size(part) + GAP_X
    return places, width
