"""An order in which kernels can run, kept up to date while kernels are joined.

Whether two kernels can be one without waiting for themselves is asked far more often than kernels are joined. With a
topological order at hand the question only looks at what stands between the two (Pearce and Kelly 2007, A dynamic
topological sort algorithm for directed acyclic graphs).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

#: A slot that a joined item has left.
_EMPTY = -1


def topological_order(waits: Mapping[int, Collection[int]]) -> list[int]:
    """List items after those that they wait for, by number where several may come; those in a circle are left out.

    Example:
        >>> topological_order({0: {2}, 1: set(), 2: set(), 3: {4}, 4: {3}})
        [1, 2, 0]
    """
    after: dict[int, list[int]] = {at: [] for at in waits}
    for at, others in waits.items():
        for other in others:
            after[other].append(at)
    left = {at: len(others) for at, others in waits.items()}
    ready = [at for at, count in left.items() if not count]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        order.append(heapq.heappop(ready))
        for later in after[order[-1]]:
            left[later] -= 1
            if not left[later]:
                heapq.heappush(ready, later)
    return order


class Order:
    """Groups of numbered items, each after those that it waits for.

    Args:
        waits: For each item, the items that it waits for.

    Example:
        >>> order = Order([(), (0,), (1,), (0,)])
        >>> order.between(0, 2), order.between(0, 3)
        ({1}, set())
        >>> order.join({0, 3}), order.waits_for(1, 0)
        (0, True)
    """

    def __init__(self, waits: Sequence[Iterable[int]]) -> None:
        self._above = list(range(len(waits)))
        self.before = [set(sources) - {at} for at, sources in enumerate(waits)]
        self.after: list[set[int]] = [set() for _ in waits]
        for at, sources in enumerate(self.before):
            for other in sources:
                self.after[other].add(at)
        placed = topological_order(dict(enumerate(self.before)))
        self._slots = placed + sorted(set(range(len(waits))) - set(placed))  # those in a circle last
        self._slot = {at: slot for slot, at in enumerate(self._slots)}

    def find(self, at: int) -> int:
        """The group of an item: the number of one of its items."""
        while self._above[at] != at:
            self._above[at] = at = self._above[self._above[at]]
        return at

    def waits_for(self, group: int, other: int) -> bool:
        """Tell whether a group reads what another one writes."""
        return self.find(other) in set(map(self.find, self.before[self.find(group)]))

    def between(self, a: int, b: int) -> set[int]:
        """Groups that wait for one of two groups and that the other waits for."""
        a, b = sorted((self.find(a), self.find(b)), key=self._slot.__getitem__)
        down = self._reach(a, self.after, lambda at: self._slot[at] < self._slot[b])
        return (down & self._up(b, self._slot[a])) if down else set()

    def _up(self, group: int, slot: int) -> set[int]:
        """Return what a group waits for, of what stands behind a slot."""
        return self._reach(group, self.before, lambda at: self._slot[at] > slot)

    def _reach(self, start: int, sides: Sequence[set[int]], near: Callable[[int], bool]) -> set[int]:
        seen: set[int] = set()
        stack = [start]
        while stack:
            for other in map(self.find, sides[stack.pop()]):
                if other not in seen and other != start and near(other):
                    seen.add(other)
                    stack.append(other)
        return seen

    def join(self, groups: Iterable[int]) -> int:
        """Make several groups one and move it behind all that it then waits for.

        Returns:
            The group, the lowest number of them.
        """
        members = set(map(self.find, groups))
        slots = sorted(self._slot[at] for at in members)
        first, last = slots[0], slots[-1]
        ahead = set().union(*(self._up(at, first) for at in members)) - members
        region = [at for at in self._slots[first : last + 1] if at != _EMPTY and at not in members]
        leader = min(members)
        for at in members - {leader}:
            self._above[at] = leader
        for sides in (self.before, self.after):
            sides[leader] = set(map(self.find, set().union(*(sides[at] for at in members)))) - {leader}
        placed = [at for at in region if at in ahead] + [leader] + [at for at in region if at not in ahead]
        self._slots[first : last + 1] = placed + [_EMPTY] * (last + 1 - first - len(placed))
        self._slot.update((at, first + slot) for slot, at in enumerate(placed))
        return leader
