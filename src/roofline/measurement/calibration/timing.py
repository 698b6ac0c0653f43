"""Timing on a machine that others use too: warm-up, repeats, a budget, and the fastest tenth of what was seen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from roofline.ir.errors import UsageError

Call = Callable[[], object]

#: Repeats of a task: at least, however short the budget, and at most.
LEAST, MOST = 3, 200
#: Calls shorter than this seldom lose the CPU to another program [s].
BRIEF = 1e-3
#: Share of its time that a repeat may wait and still count.
DISTURBED = 0.05
#: Linux' account of each thread of this process.
_TASKS = Path("/proc/self/task")
#: Sets of operands of a task at most, and the largest cache that they are to overflow [byte].
MOST_COPIES, LARGEST = 128, 2**28


@dataclass(frozen=True)
class Task:
    """An operator to measure.

    Attributes:
        op: Its word, as in :data:`roofline.programs.workload.WORDS`.
        dtype: Its number format.
        shape: Its sizes.
        make: Allocates its operands and returns the call to time.
        size: Of its operands [byte].
        software: What runs it: ``numpy`` or ``torch``.
    """

    op: str
    dtype: str
    shape: Mapping[str, Any]
    make: Callable[[], Call]
    size: int
    software: str


@dataclass(frozen=True, slots=True)
class Timing:
    """What repeats of a task took [s].

    Attributes:
        typical: The 10th percentile: others on the machine only ever add time.
        slow: The upper quartile.
    """

    typical: float
    slow: float


def repeat(calls: Sequence[Call], budget: float) -> Timing:
    """Time calls that do the same on other operands, in turn, so that each finds its own in main memory.

    Args:
        calls: What to time; each returns when it is done.
        budget: Time for all of it [s].
    """
    deadline = time.perf_counter() + budget
    start = time.perf_counter()
    calls[-1]()
    timed = _timed if time.perf_counter() - start < BRIEF else timed_alone
    seconds: list[tuple[float, float]] = []
    for call in cycle(calls):
        seconds.append(timed(call))
        if len(seconds) >= MOST or (len(seconds) >= LEAST and time.perf_counter() > deadline):
            break
    return summary(undisturbed(seconds))


def _timed(call: Call) -> tuple[float, float]:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start, 0.0


def timed_alone(call: Call) -> tuple[float, float]:
    """Time of a call, and what its threads waited while other programs had the CPU [s]."""
    before = waits()
    seconds, _ = _timed(call)
    return seconds, max((after - before.get(thread, after) for thread, after in waits().items()), default=0.0)


def undisturbed(timed: Sequence[tuple[float, float]]) -> list[float]:
    """Times of the repeats that did not wait; where those are too few, of all less what they waited [s].

    Example:
        >>> undisturbed([(1.0, 0.0), (3.0, 1.5)])
        [1.0, 1.5]
        >>> undisturbed([(1.0, 0.0), (1.1, 0.0), (1.2, 0.01), (3.0, 1.5)])
        [1.0, 1.1, 1.2]
    """
    calm = [seconds for seconds, waited in timed if waited < DISTURBED * seconds]
    return calm if len(calm) >= LEAST else [max(seconds - waited, seconds / 3) for seconds, waited in timed]


def waits() -> dict[str, float]:
    """For each thread of this process how long it was ready and did not run [s]; empty where Linux does not tell."""
    delays = {}
    for path in _TASKS.glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):
            delays[path.parent.name] = int(path.read_text().split()[1]) * 1e-9
    return delays


def copies(task: Task, cache: int) -> int:
    """Sets of operands that together do not fit a cache."""
    return int(min(max(-(-2 * min(cache, LARGEST) // max(task.size, 1)), 1), MOST_COPIES))


def summary(seconds: Sequence[float]) -> Timing:
    """Summarise what repeats took.

    Raises:
        UsageError: There are none.

    Example:
        >>> summary([3.0, 1.0, 1.0]).typical
        1.0
    """
    if not seconds:
        raise UsageError("nothing was timed")
    low, high = np.quantile(seconds, [0.1, 0.75])
    return Timing(float(low), float(high))


class Budget:
    """Time shared out over tasks: what one leaves goes to the others."""

    def __init__(self, seconds: float, tasks: int) -> None:
        self.end = time.perf_counter() + seconds
        self.left = tasks

    def share(self) -> float:
        """Time for the next task [s]."""
        seconds = max(self.end - time.perf_counter(), 0.0) / max(self.left, 1)
        self.left -= 1
        return seconds
