"""The cheapest way to part the nodes of a network in two: a minimum cut, by Dinic's algorithm.

Soviet Math. Doklady 11, 1970, 1277-1280: as long as the sink can be reached, shortest paths are filled by levels.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise

#: A capacity that no cut can afford.
FIXED = 2**62


class Network:
    """Nodes with capacities between them, whole numbers.

    Example:
        >>> net = Network()
        >>> for edge in (("first", "a", 3), ("a", "b", 1), ("b", "last", 5), ("first", "b", 1)):
        ...     net.join(*edge)
        >>> sorted(net.side("first", "last"))
        ['a', 'first']
    """

    def __init__(self) -> None:
        self._left: dict[Hashable, dict[Hashable, int]] = {}

    def join(self, a: Hashable, b: Hashable, capacity: int, back: int = 0) -> None:
        """Let a cut with one node on the first side and another on the last cost so much more; ``back`` reversed."""
        one, other = self._left.setdefault(a, {}), self._left.setdefault(b, {})
        one[b] = one.get(b, 0) + capacity
        other[a] = other.get(a, 0) + back

    def side(self, first: Hashable, last: Hashable) -> set[Hashable]:
        """Return the nodes on the side of ``first`` in a cheapest cut, as few as there can be."""
        for node in (first, last):
            self._left.setdefault(node, {})
        while last in (levels := self._levels(first)):
            while path := self._path(first, last, levels):
                least = min(self._left[a][b] for a, b in pairwise(path))
                for a, b in pairwise(path):
                    self._left[a][b] -= least
                    self._left[b][a] += least
        return set(levels)

    def _levels(self, first: Hashable) -> dict[Hashable, int]:
        """Return how far nodes are from the first, over edges with capacity left."""
        levels, waiting = {first: 0}, [first]
        for node in waiting:
            for other, left in self._left[node].items():
                if left > 0 and other not in levels:
                    levels[other] = levels[node] + 1
                    waiting.append(other)
        return levels

    def _path(self, first: Hashable, last: Hashable, levels: dict[Hashable, int]) -> list[Hashable]:
        """Return a shortest path with capacity left, none where there is none; dead ends lose their level."""
        path = [first]
        while path and path[-1] != last:
            node = path[-1]
            onward = (other for other, left in self._left[node].items() if left > 0)
            step = next((other for other in onward if levels.get(other) == levels[node] + 1), None)
            if step is None:
                levels[path.pop()] = -1
            else:
                path.append(step)
        return path
