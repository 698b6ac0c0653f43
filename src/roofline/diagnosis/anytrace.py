"""Any trace taken apart: of a device, of a processor, or a table of times; several devices are one at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from roofline.chip import Chip
from roofline.diagnosis import iterations
from roofline.diagnosis.gaps import Idle, Spans, cover, host
from roofline.diagnosis.groups import group, role
from roofline.diagnosis.iterations import Iterations
from roofline.diagnosis.traced import Run, run
from roofline.errors import TraceError
from roofline.graph import Graph
from roofline.traces.events import DEVICE, Events, Kind, Trace
from roofline.traces.link import Launch, launches

#: Stands for a chip that nobody knows: it has no figure, so that whatever needs one is not known either.
NO_CHIP = Chip(name="unknown", memory=({"name": "memory", "source": "unknown"},))


@dataclass(frozen=True, slots=True)
class Beside:
    """Launches that may run beside kernels: collectives or copies.

    Attributes:
        seconds: In all [s].
        exposed: While no kernel ran [s].
        overlapped: While one ran [s].
    """

    seconds: float
    exposed: float
    overlapped: float


def on_processor(trace: Trace) -> bool:
    """Whether nothing ran on a device."""
    return not bool(np.isin(trace.events.kind, DEVICE).any())


def one_device(trace: Trace) -> tuple[Trace, str]:
    """The trace with the device alone that worked most, and a note on the others.

    Launches of several devices would fill each other's gaps and hide each other's time.
    """
    events = trace.events
    device = np.isin(events.kind, DEVICE)
    numbers = np.unique(events.device[device])
    if len(numbers) < 2:
        return trace, ""
    worked = [float(events.duration[device & (events.device == number)].sum()) for number in numbers]
    most = int(numbers[int(np.argmax(worked))])
    kept = ~device | (events.device == most)
    columns = {
        field.name: getattr(events, field.name)[kept]
        for field in fields(Events)
        if isinstance(getattr(events, field.name), np.ndarray)
    }
    others = ", ".join(str(number) for number in numbers if number != most)
    return replace(trace, events=replace(events, **columns)), f"figures are of device {most}; left out: {others}"


def taken(trace: Trace, chip: Chip) -> Run:
    """A trace taken apart; operators on the processor that only call others compute nothing themselves.

    Raises:
        TraceError: Nothing ran in it.
    """
    if trace.timed and not on_processor(trace):
        return run(trace, chip)
    ran = launches(trace)
    if not ran:
        kinds = sorted({Kind(int(kind)).name.lower() for kind in np.unique(trace.events.kind)})
        raise TraceError(f"{trace.path}: neither operators nor device events, only {', '.join(kinds) or 'nothing'}")
    found = iterations.find(trace, ran) if trace.timed else Iterations(1, (0,), float("nan"), "sums, taken as one run")
    ran = ran[found.first[0] :]
    wrappers = _wrappers(trace.events, ran)
    groups = tuple(
        replace(one, graph=Graph(one.op, {}, ())) if (one.op, one.signature) in wrappers else one
        for one in group(ran, found.count, chip)
    )
    if not trace.timed:
        busy = sum(one.seconds for one in groups)
        return Run(trace, chip, found, ran, groups, busy, Idle({}, {}, {}), busy)
    busy = _open(trace.events, ran[0].start) / found.count
    return Run(trace, chip, found, ran, groups, busy, Idle({}, {}, {}), busy)


def _open(events: Events, since: float) -> float:
    """Time in which any operator was open [s]."""
    rows = np.flatnonzero((events.kind == Kind.OP) & (events.start >= since))
    return _length(cover(zip(events.start[rows], (events.start + events.duration)[rows], strict=True)))


def _length(spans: Spans) -> float:
    return float((spans.end - spans.start).sum())


def _wrappers(events: Events, ran: Sequence[Launch]) -> frozenset[object]:
    """Operators on the processor that leave most of their time to operators inside: those have the formula."""
    own: dict[object, float] = {}
    whole: dict[object, float] = {}
    outer = {one.inside for one in ran}
    for one in ran:
        if one.kind == Kind.OP and one.call in outer:
            key = (one.op, one.signature)
            own[key] = own.get(key, 0.0) + one.duration
            whole[key] = whole.get(key, 0.0) + float(events.duration[one.call])
    return frozenset(key for key, seconds in own.items() if seconds < 0.5 * whole[key])


def beside(ran: Sequence[Launch], count: int, *roles: str) -> Beside:
    """How much of some launches kernels cover, of one iteration.

    Args:
        ran: Launches of whole iterations.
        count: How many.
        roles: Of the launches that are looked at.
    """
    kernels = cover([(one.start, one.end) for one in ran if role(one) == "kernel"])
    looked_at = cover([(one.start, one.end) for one in ran if role(one) in roles])
    total = _length(looked_at)
    pairs = zip(looked_at.start.tolist(), looked_at.end.tolist(), strict=True)
    overlapped = sum(kernels.within(low, high) for low, high in pairs)
    return Beside(total / count, (total - overlapped) / count, overlapped / count)


def heavy_on_host(trace: Trace, ran: Sequence[Launch], count: int) -> tuple[tuple[str, float, float], ...]:
    """Operators that computed on the processor beside a device: name, calls and time of one iteration, most first."""
    since = min((one.issued for one in ran if one.issued == one.issued), default=ran[0].start)
    found: dict[str, list[float]] = {}
    for name, start, duration in host(trace, ran).heavy_names:
        if start + duration >= since or count == 1:
            found.setdefault(name, []).append(duration)
    rows = ((name, len(times) / count, sum(times) / count) for name, times in found.items())
    return tuple(sorted(rows, key=lambda row: -row[2]))
