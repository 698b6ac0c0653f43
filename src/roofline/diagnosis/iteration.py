"""One iteration of a trace: which launches repeat, how long it takes, what ran in it and what was waited for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from roofline.diagnosis.groups import CONTRACTIONS, STEP, Group, grouped, kind_of, told_apart
from roofline.diagnosis.idle import Idle, idle_time, launch_calls
from roofline.diagnosis.sharing import on_device, on_host
from roofline.hardware.chip import Chip
from roofline.ir.errors import TraceError
from roofline.traces.events import DEVICE, Events, Kind, Trace
from roofline.traces.linking import Launch, launches

#: A profiler slows a program down and hardly ever speeds it up: an iteration of a trace takes at least this share of
#: the measured time; where nothing else repeats, runs that differ this much are believed.
FASTEST, DIFFERENT = 0.9, 0.5
#: An iteration has at least this share of the program's contractions, some of which may have become one.
FEWER = 0.6
#: More equal pieces than this are pieces of an iteration.
MAX_ITERATIONS = 1000


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


@dataclass(frozen=True)
class Run:
    """A trace taken apart; all figures are per iteration.

    Attributes:
        trace: The file.
        chip: Where it ran.
        iterations: How often it ran.
        launches: What ran, of whole iterations.
        groups: Equal calls together.
        busy: Time in which the device did something [s].
        idle: What it waited for between.
    """

    trace: Trace
    chip: Chip
    iterations: Iterations
    launches: tuple[Launch, ...]
    groups: tuple[Group, ...]
    busy: float
    idle: Idle = field(default_factory=Idle)

    @property
    def seconds(self) -> float:
        """From one iteration to the next [s]."""
        return self.busy + sum(self.idle.seconds.values())

    @property
    def calls(self) -> bool:
        """True if calls of the runtime were recorded."""
        return bool((self.trace.events.kind == Kind.RUNTIME).any())

    @property
    def on_cpu(self) -> bool:
        """True if nothing ran on a device."""
        return on_cpu(self.trace)


def run_of(trace: Trace, chip: Chip, measured: float | None = None, contractions: int = 0) -> Run:
    """Take a trace apart.

    Args:
        trace: The file.
        chip: Where it ran.
        measured: What an iteration takes without a profiler [s], which helps to find iterations.
        contractions: Launches of the program that multiply matrices, which help where no time was measured.

    Raises:
        TraceError: Nothing ran in it.
    """
    ran = launches(trace)
    if not ran:
        kinds = sorted({Kind(int(kind)).name.lower() for kind in np.unique(trace.events.kind)})
        raise TraceError(f"{trace.path}: neither operators nor device events, only {', '.join(kinds) or 'nothing'}")
    if not trace.timed:
        iterations, seconds = Iterations(1, (0,), float("nan"), "sums, taken as one run"), [one.duration for one in ran]
    else:
        iterations = find_iterations(trace, ran, measured, contractions)
        ran = ran[iterations.first[0] :]
        seconds = on_host(trace.events, ran) if on_cpu(trace) else on_device(ran)
    count = iterations.count
    groups = grouped(ran, count, chip, seconds, trace.events.details)
    waits = Idle()
    if trace.timed and not on_cpu(trace):
        waits = idle_time(trace, ran, [at - iterations.first[0] for at in iterations.first]).doubted(
            trace.lost / max(count - 1, 1)
        )
    return Run(trace, chip, iterations, ran, groups, sum(seconds) / count, waits)


def find_iterations(
    trace: Trace, launches: Sequence[Launch], measured: float | None = None, contractions: int = 0
) -> Iterations:
    """Find the iterations.

    Steps that the profiler marked count; else the launches are cut into as many equal sequences as there are, or, with
    a measured time, as leave each at least that long. Launches of several streams are taken in the order of issue.

    Args:
        trace: The file.
        launches: What ran, in order of start.
        measured: What an iteration takes without a profiler [s].
        contractions: Launches of the program that multiply matrices; where no time was measured, a piece that has far
            fewer of them is a part of an iteration.
    """
    issued = np.array([one.start if np.isnan(one.issued) else one.issued for one in launches])
    marked = _marked(trace, launches, issued)
    if marked is not None:
        return marked
    names: dict[tuple[object, ...], int] = {}
    apart = told_apart(trace.events.details)
    starts = np.array([one.start for one in launches])
    order = np.argsort(issued, kind="stable")
    keys = ((one.op, one.name, apart[one.detail]) for one in launches)
    codes = np.array([names.setdefault(key, len(names)) for key in keys], dtype=np.int64)[order]
    best = Iterations(1, (0,), float("nan"), "one iteration: nothing repeats")
    span = max(one.end for one in launches) - launches[0].start
    multiply = sum(kind_of(one.op, one.name) in CONTRACTIONS for one in launches) if measured is None else 0
    for count in range(2, min(len(codes), MAX_ITERATIONS) + 1):
        length = len(codes) // count
        if len(codes) % count or not np.array_equal(codes[length:], codes[:-length]):
            continue
        first = np.minimum.reduceat(starts[order], np.arange(0, len(codes), length))
        period = float(first[-1] - first[0]) / (count - 1)
        # Equal work side by side, such as that of threads, is one iteration.
        if 2 * period * count < span or 0 < multiply < FEWER * contractions * count:
            continue
        if measured is None or period >= (FASTEST if best.count > 1 else DIFFERENT) * measured:
            begin = tuple(int(at) for at in np.searchsorted(starts, first))
            best = Iterations(count, begin, period, f"{count} equal sequences")
    return best


def _marked(trace: Trace, launches: Sequence[Launch], issued: NDArray[np.float64]) -> Iterations | None:
    """Return the steps that the profiler marked, if at least two have launches."""
    events = trace.events
    steps = [at for at, name in enumerate(events.names) if name.startswith(STEP)]
    rows = np.flatnonzero((events.kind == Kind.ANNOTATION) & np.isin(events.name, steps) & (events.device < 0))
    if len(rows) < 2:
        return None
    step = np.searchsorted(np.sort(events.start[rows]), issued, side="right")
    numbers, positions = np.unique(step, return_index=True)
    first = tuple(int(at) for at in positions[numbers > 0])  # 0 is what ran before the first step
    if len(first) < 2:
        return None
    period = (launches[first[-1]].start - launches[first[0]].start) / (len(first) - 1)
    return Iterations(len(first), first, period, f"{len(first)} steps that the profiler marked")


def on_cpu(trace: Trace) -> bool:
    """Tell whether nothing ran on a device."""
    return not bool(np.isin(trace.events.kind, DEVICE).any())


def launches_kernels(trace: Trace) -> bool:
    """Tell whether the host launched kernels, wherever they are."""
    return bool(len(launch_calls(trace.events)))


def one_device(trace: Trace) -> tuple[Trace, str]:
    """Return the trace with only the device that worked most, and a note on the others.

    Launches of several devices would fill each other's gaps and hide each other's time.
    """
    events = trace.events
    device = np.isin(events.kind, DEVICE)
    numbers = np.unique(events.device[device])
    if len(numbers) < 2:
        return trace, ""
    worked = [float(events.duration[device & (events.device == number)].sum()) for number in numbers]
    most = int(numbers[int(np.argmax(worked))])
    rows = ~device | (events.device == most)
    columns = {
        column.name: getattr(events, column.name)[rows]
        for column in fields(Events)
        if isinstance(getattr(events, column.name), np.ndarray)
    }
    others = ", ".join(str(number) for number in numbers if number != most)
    return replace(trace, events=replace(events, **columns)), f"figures are of device {most}; left out: {others}"
