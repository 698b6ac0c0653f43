"""Which launches of a trace make one iteration, and how long an iteration takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roofline.traces.events import Kind, Trace
from roofline.traces.link import Launch

#: A profiler slows a program down and hardly ever speeds it up: an iteration of a trace takes at least this share of
#: the measured time; where nothing else repeats, runs that differ this much are believed.
FASTEST, DIFFERENT = 0.9, 0.5
#: More equal pieces than this are pieces of an iteration.
MOST = 1000
#: Name of the ranges that ``torch.profiler`` puts around a step of its schedule.
STEP = "ProfilerStep#"


@dataclass(frozen=True)
class Iterations:
    """Equal pieces of a trace.

    Attributes:
        count: How many.
        first: Position of the first launch of each.
        period: From the start of one to the start of the next [s]; nan for a single one.
        how: How they were found, in words.
    """

    count: int
    first: tuple[int, ...]
    period: float
    how: str


def find(trace: Trace, launches: Sequence[Launch], measured: float | None = None) -> Iterations:
    """Find the iterations.

    Steps that the profiler marked count; else the launches are cut into as many equal sequences as there are, or, with
    a measured time, as leave each at least that long. Launches of several streams are taken in the order of issue.

    Args:
        trace: The file.
        launches: What ran, in order of start.
        measured: What an iteration takes without a profiler [s].
    """
    marked = _marked(trace, launches)
    if marked is not None:
        return marked
    names: dict[tuple[str, str], int] = {}
    starts = np.array([one.start for one in launches])
    order = np.argsort([one.start if np.isnan(one.issued) else one.issued for one in launches], kind="stable")
    codes = np.array([names.setdefault((one.op, one.name), len(names)) for one in launches], dtype=np.int64)[order]
    best = Iterations(1, (0,), float("nan"), "one iteration: nothing repeats")
    for count in _divisors(len(codes)):
        length = len(codes) // count
        if not np.array_equal(codes[length:], codes[:-length]):
            continue
        first = np.minimum.reduceat(starts[order], np.arange(0, len(codes), length))
        period = float(first[-1] - first[0]) / (count - 1)
        if measured is None or period >= (FASTEST if best.count > 1 else DIFFERENT) * measured:
            begin = tuple(int(at) for at in np.searchsorted(starts, first))
            best = Iterations(count, begin, period, f"{count} equal sequences")
    return best


def _divisors(number: int) -> list[int]:
    return [count for count in range(2, min(number, MOST) + 1) if number % count == 0]


def _marked(trace: Trace, launches: Sequence[Launch]) -> Iterations | None:
    """Steps that the profiler marked, of which at least two have launches."""
    events = trace.events
    steps = [at for at, name in enumerate(events.names) if name.startswith(STEP)]
    rows = np.flatnonzero((events.kind == Kind.ANNOTATION) & np.isin(events.name, steps) & (events.device < 0))
    if len(rows) < 2:
        return None
    bounds: NDArray[np.float64] = np.sort(events.start[rows])
    issued = np.array([one.start if np.isnan(one.issued) else one.issued for one in launches])
    step = np.searchsorted(bounds, issued, side="right")
    found = [int(np.flatnonzero(step == number)[0]) for number in range(1, len(bounds) + 1) if np.any(step == number)]
    if len(found) < 2:
        return None
    starts = [launches[at].start for at in found]
    period = (starts[-1] - starts[0]) / (len(starts) - 1)
    return Iterations(len(found), tuple(found), period, f"{len(found)} steps that the profiler marked")
