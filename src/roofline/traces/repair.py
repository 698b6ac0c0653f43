"""What cannot be among recorded times: left out or cut short before anything is made of it, and said with its time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.ir.units import format_si
from roofline.traces.formats.quantities import plural

#: A profiler's file does not span this long, nor does an event [us]: a start or an end that far away is none.
DAY = 86_400e6
#: An event at zero or before has no start where all others begin this much later, and this many times their span [us].
LATER, TIMES = 60e6, 10
#: Clocks of host and device differ by less than this [us].
SKEW = 1e6
#: Ends run over the next start by up to this where both are rounded, or where a kernel is launched before the one that
#: it depends on has ended (programmatic dependent launch): no fault [us].
ROUNDED = 1.001

#: Where a clock that began in 1970 is in the year 5138 [us]: a larger start is one in nanoseconds, of after 1973.
NANOSECONDS = 10**17

Bools = NDArray[np.bool_]


class Repairs:
    """Counts what was repaired or left out, by what it was, with the time of the events that it touches."""

    def __init__(self) -> None:
        self._counts: dict[tuple[str, str, str], tuple[int, float]] = {}

    def add(self, done: str, word: str, reason: str, seconds: float = 0.0, number: int = 1) -> None:
        """Count some events.

        Args:
            done: Such as ``skipped``.
            word: What they are, such as ``kernel``.
            reason: What was wrong, such as ``without a duration``.
            seconds: Their time [s].
            number: How many.
        """
        key = done, word, reason
        count, time = self._counts.get(key, (0, 0.0))
        self._counts[key] = count + number, time + seconds

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each repair."""
        for (done, word, reason), (count, seconds) in self._counts.items():
            time = f" ({format_si(seconds, 's')})" if seconds > 0 else ""
            yield f"{done} {plural(count, word)} {reason}{time}"


def repeated(columns: Sequence[NDArray[Any]]) -> Bools:
    """Return which rows are equal to one before them."""
    order = np.lexsort(tuple(columns))
    same = np.ones(max(len(order) - 1, 0), bool)
    for column in columns:
        same &= np.diff(column[order]) == 0
    rows = np.zeros(len(order), bool)
    rows[order[1:]] = same
    return rows


def too_long(duration: NDArray[np.float64]) -> dict[str, Bools]:
    """Return which rows of a file without starts cannot be: sums of times may be longer than an event."""
    return {"longer than a year": duration > 365 * DAY * 1e-6}


def implausible(
    start: NDArray[np.int64], duration: NDArray[np.float64], call: NDArray[np.int64], device: Bools
) -> dict[str, Bools]:
    """Return which events of a file with starts cannot be, by what is wrong with them.

    Args:
        start: Whole microseconds by the profiler's clock, in any order.
        duration: [s].
        call: Start of the call that launched an event, its own where none is known [us].
        device: Which events ran on a device.
    """
    checks: dict[str, Bools] = {"longer than a day": duration > DAY * 1e-6}
    left = ~checks["longer than a day"]
    checks["starting at zero, long before all others"] = zero = left & _at_zero(start, left)
    left &= ~zero
    checks["starting over a day before or after most others"] = apart = left & _apart(start, left, device)
    left &= ~apart
    early, linked = left & (start < call - SKEW), left & (call != start)
    if 2 * early.sum() < linked.sum():  # else the clocks differ
        checks["starting over a second before the call that launched it"] = early
    return checks


def _at_zero(start: NDArray[np.int64], among: Bools) -> Bools:
    zero, others = start <= 0, start[among & (start > 0)]
    if not len(others) or others.min() < max(LATER, TIMES * float(others.max() - others.min())):
        return np.zeros(len(start), bool)
    return zero


def _apart(start: NDArray[np.int64], among: Bools, device: Bools) -> Bools:
    """Return what is not of the run of events, without a day between two, that has most of the device, then of all.

    Of equal ones the last counts.
    """
    ordered = np.sort(start[among])
    edges = np.flatnonzero(np.diff(ordered) > DAY) + 1
    if not len(edges):
        return np.zeros(len(start), bool)
    runs = np.split(ordered, edges)
    ran = np.sort(start[among & device])

    def size(run: NDArray[np.int64]) -> tuple[int, int]:
        return int(np.diff(np.searchsorted(ran, (run[0], run[-1] + 1)))[0]), len(run)

    most = max(reversed(runs), key=size)
    return np.asarray((start < most[0]) | (start > most[-1]))


def overruns(
    start: NDArray[np.float64], duration: NDArray[np.float64], queue: tuple[NDArray[np.int64], ...]
) -> NDArray[np.float64]:
    """Return how much of each event lies after the start of the next in its queue, which waits for it [s].

    One that took no time has no place of its own and cuts none.

    Args:
        start: [s].
        duration: [s].
        queue: Columns that name the queue of an event, such as its stream.
    """
    order = np.lexsort((duration, start, *queue))
    order = order[duration[order] > 0]
    same = np.ones(max(len(order) - 1, 0), bool)
    for column in queue:
        same &= np.diff(column[order]) == 0
    room = np.where(same, np.diff(start[order]), np.inf)
    over = np.zeros(len(start))
    over[order[:-1]] = np.maximum(duration[order[:-1]] - room, 0.0)
    return over
