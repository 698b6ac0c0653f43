"""List scheduling: tasks on engines that work at once, kernels of several streams sharing the chip.

Of the tasks that are ready, an engine that is free takes the one with the longest way to the end (Graham 1969,
"Bounds on multiprocessing timing anomalies", https://doi.org/10.1137/0117039; the longest path first is Hu's and
Coffman's level rule). Tasks that run at the same time share the arithmetic units and the memory: each keeps a share
busy, and where the shares of a resource add up to more than one, all that use it slow down by what they add up to.

So no schedule ends before the longest path, before the busiest engine, or before the arithmetic or the traffic of all
tasks at the rates that they reach alone; and none ends after the tasks one after the other, since at every moment the
rates of what runs add up to one or more.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

#: Resources of the chip that tasks share.
RESOURCES = ("compute", "memory")
#: Below this share of a task, what is left of it is rounding.
ROUNDING = 1e-12


class Runnable(Protocol):
    """What a scheduler needs to know of a task; see :class:`roofline.analysis.engines.tasks.Task`."""

    @property
    def engine(self) -> str: ...
    @property
    def seconds(self) -> float: ...
    @property
    def needs(self) -> tuple[int, ...]: ...
    @property
    def compute(self) -> float: ...
    @property
    def memory(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Placed:
    """When and where a task runs.

    Attributes:
        start: When it starts [s].
        end: When it ends [s].
        lane: Of its engine, from 0.
        after: The task whose end let it start; -1 where it starts at once.
    """

    start: float
    end: float
    lane: int
    after: int


def schedule(tasks: Sequence[Runnable], lanes: Mapping[str, int]) -> tuple[Placed, ...]:
    """Place tasks on engines.

    Args:
        tasks: What runs, each after all that it needs.
        lanes: How many tasks an engine runs at once; 1 of those that are not named.

    Returns:
        One placement per task.

    Example:
        >>> from roofline.analysis.engines.tasks import Task
        >>> work = [Task("a", "", "", "stream", 2.0, compute=1.0), Task("b", "", "", "network", 3.0),
        ...         Task("c", "", "", "stream", 1.0, (1,), compute=1.0)]
        >>> [(each.start, each.end) for each in schedule(work, {})]
        [(0.0, 2.0), (0.0, 3.0), (3.0, 4.0)]
    """
    return _Run(tasks, lanes).places()


class _Run:
    """A simulation from event to event.

    Attributes:
        left: Of each task that runs, what is left of it [s].
    """

    def __init__(self, tasks: Sequence[Runnable], lanes: Mapping[str, int]) -> None:
        self.tasks = tasks
        self.urgency = longest_ways(tasks)
        self.waits = [len(task.needs) for task in tasks]
        self.readers: dict[int, list[int]] = defaultdict(list)
        for at, task in enumerate(tasks):
            for need in task.needs:
                self.readers[need].append(at)
        self.ready: dict[str, list[tuple[float, int]]] = {task.engine: [] for task in tasks}
        self.free = {engine: [(lane, -1) for lane in range(lanes.get(engine, 1))] for engine in self.ready}
        self.left: dict[int, float] = {}
        self.start, self.end = [0.0] * len(tasks), [0.0] * len(tasks)
        self.lane, self.after = [0] * len(tasks), [-1] * len(tasks)

    def places(self) -> tuple[Placed, ...]:
        """Run to the end."""
        now = 0.0
        for at, waits in enumerate(self.waits):
            if not waits:
                self._queue(at)
        while True:
            self._begin(now)
            if not self.left:
                break
            rates = self._rates()
            step = min(left / rates[at] for at, left in self.left.items())
            now += step
            for at in [*self.left]:
                self.left[at] -= step * rates[at]
                if self.left[at] <= ROUNDING * self.tasks[at].seconds:
                    self._finish(at, now)
        rows = zip(self.start, self.end, self.lane, self.after, strict=True)
        return tuple(Placed(*row) for row in rows)

    def _queue(self, at: int) -> None:
        heapq.heappush(self.ready[self.tasks[at].engine], (-self.urgency[at], at))

    def _begin(self, now: float) -> None:
        """Start what is ready where an engine is free."""
        for engine, ready in self.ready.items():
            free = self.free[engine]
            while ready and free:
                at = heapq.heappop(ready)[1]
                self.lane[at], before = heapq.heappop(free)
                self.left[at], self.start[at] = self.tasks[at].seconds, now
                last = max((*self.tasks[at].needs, *((before,) if before >= 0 else ())),
                           key=lambda need: self.end[need], default=-1)  # fmt: skip
                self.after[at] = last

    def _finish(self, at: int, now: float) -> None:
        del self.left[at]
        self.end[at] = now
        heapq.heappush(self.free[self.tasks[at].engine], (self.lane[at], at))
        for reader in self.readers[at]:
            self.waits[reader] -= 1
            if not self.waits[reader]:
                self._queue(reader)

    def _rates(self) -> dict[int, float]:
        """Return how fast each running task goes against alone: at the pace of the fullest resource that it uses."""
        if len(self.left) == 1:
            return dict.fromkeys(self.left, 1.0)
        running = [self.tasks[at] for at in self.left]
        compute = max(1.0, sum(task.compute for task in running))
        memory = max(1.0, sum(task.memory for task in running))
        return {at: 1 / max(compute if task.compute else 1.0, memory if task.memory else 1.0)
                for at, task in zip(self.left, running, strict=True)}  # fmt: skip


def longest_ways(tasks: Sequence[Runnable]) -> list[float]:
    """Return for each task the longest path from its start to the end of all [s].

    Example:
        >>> from roofline.analysis.engines.tasks import Task
        >>> longest_ways([Task("a", "", "", "stream", 2.0), Task("b", "", "", "stream", 1.0, (0,))])
        [3.0, 1.0]
    """
    after = [0.0] * len(tasks)
    ways = [0.0] * len(tasks)
    for at in range(len(tasks) - 1, -1, -1):
        ways[at] = tasks[at].seconds + after[at]
        for need in tasks[at].needs:
            after[need] = max(after[need], ways[at])
    return ways


def loads(tasks: Sequence[Runnable], lanes: Mapping[str, int]) -> dict[str, float]:
    """Return the least time that each engine, and each resource of the chip, needs for its part [s]."""
    busy = dict.fromkeys((task.engine for task in tasks), 0.0) | dict.fromkeys(RESOURCES, 0.0)
    for task in tasks:
        busy[task.engine] += task.seconds / lanes.get(task.engine, 1)
        for name in RESOURCES:
            busy[name] += task.seconds * float(getattr(task, name))
    return busy


def chain(places: Sequence[Placed]) -> list[int]:
    """Return the tasks that the end waits for, each starting when the one before ends: the critical path as it ran."""
    at, backwards = max(range(len(places)), key=lambda place: places[place].end), list[int]()
    while at >= 0:
        backwards.append(at)
        at = places[at].after
    return backwards[::-1]
