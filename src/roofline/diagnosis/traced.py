"""A trace beside the program that was meant: causes as measured time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from roofline.diagnosis import iterations
from roofline.diagnosis.attribution import needed, summed, take_apart
from roofline.diagnosis.context import Scene
from roofline.diagnosis.groups import Group, group, role
from roofline.diagnosis.idle import Idle, cover, idle, length
from roofline.diagnosis.iterations import Iterations
from roofline.diagnosis.reference import Meant
from roofline.hardware.chip import Chip
from roofline.ir.errors import TraceError
from roofline.traces.events import DEVICE, Events, Kind, Trace
from roofline.traces.link import Launch, launches


@dataclass(frozen=True)
class Run:
    """A trace taken apart; all figures are of one iteration.

    Attributes:
        trace: The file.
        chip: Where it ran.
        iterations: How often it ran.
        launches: What ran, of whole iterations.
        groups: Equal calls together.
        busy: Time in which the device did something [s].
        idle: What it waited for between.
        seconds: From one iteration to the next [s].
    """

    trace: Trace
    chip: Chip
    iterations: Iterations
    launches: tuple[Launch, ...]
    groups: tuple[Group, ...]
    busy: float
    idle: Idle
    seconds: float


def run(trace: Trace, chip: Chip, measured: float | None = None) -> Run:
    """Take a trace apart; of several devices the one that worked most.

    Args:
        trace: The file.
        chip: Where it ran.
        measured: What an iteration takes without a profiler [s], which helps to find iterations.

    Raises:
        TraceError: Nothing ran in it.
    """
    ran = launches(trace)
    if not ran:
        kinds = sorted({Kind(int(kind)).name.lower() for kind in np.unique(trace.events.kind)})
        raise TraceError(f"{trace.path}: neither operators nor device events, only {', '.join(kinds) or 'nothing'}")
    if not trace.timed:
        groups = group(ran, 1, chip)
        busy = sum(one.seconds for one in groups)
        return Run(
            trace, chip, Iterations(1, (0,), float("nan"), "sums, taken as one run"), ran, groups, busy, IDLE, busy
        )
    found = iterations.find(trace, ran, measured)
    ran = ran[found.first[0] :]
    if on_processor(trace):
        busy = _open(trace.events, ran[0].start) / found.count
        return Run(trace, chip, found, ran, group(ran, found.count, chip), busy, IDLE, busy)
    covered, exposed = length(cover([(one.start, one.end) for one in ran])), _without_hidden_copies(ran)
    total = sum(one.duration for one in exposed)
    groups = group(exposed, found.count, chip, covered / total if total > covered > 0 else 1.0)
    waits = idle(trace, ran, [at - found.first[0] for at in found.first])
    busy = covered / found.count
    return Run(trace, chip, found, ran, groups, busy, waits, busy + sum(waits.seconds.values()))


#: No gaps.
IDLE = Idle({}, {}, {})


def on_processor(trace: Trace) -> bool:
    """Whether nothing ran on a device."""
    return not bool(np.isin(trace.events.kind, DEVICE).any())


_LAUNCH = re.compile(r"^(cuda|hip|cu)\w*LaunchKernel")


def launched(trace: Trace) -> bool:
    """Whether the host launched kernels, wherever they are."""
    events = trace.events
    wanted = [at for at, name in enumerate(events.names) if _LAUNCH.match(name)]
    return bool(np.any((events.kind == Kind.RUNTIME) & np.isin(events.name, wanted)))


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


def _open(events: Events, since: float) -> float:
    """Time in which any operator was open [s]."""
    rows = np.flatnonzero((events.kind == Kind.OP) & (events.start >= since))
    return length(cover(zip(events.start[rows], (events.start + events.duration)[rows], strict=True)))


def _without_hidden_copies(ran: Sequence[Launch]) -> list[Launch]:
    """Copies and collectives that run beside kernels cost only what they stick out."""
    beside = [role(one) in ("copy_in", "copy_out", "communication") for one in ran]
    if not any(beside) or len({one.stream for one in ran}) < 2:
        return list(ran)
    kernels = cover([(one.start, one.end) for one, aside in zip(ran, beside, strict=True) if not aside])
    return [
        replace(one, duration=max(one.duration - kernels.within(one.start, one.end), 0.0)) if aside else one
        for one, aside in zip(ran, beside, strict=True)
    ]


def causes(meant: Meant | None, ran: Run, seconds: float) -> tuple[float, list[tuple[str, float, str]]]:
    """What of a measured time was needed and what was lost to what; no more than it together [s].

    Args:
        meant: The program, ``None`` where only the trace is known.
        ran: Its trace.
        seconds: The measured time [s]; where the device alone was busy for longer in the trace, all shrinks alike.
    """
    parts = take_apart(Scene(meant, ran.groups, _scaled(ran.idle, max(seconds - ran.busy, 0.0))))
    share = min(seconds / ran.busy, 1.0) if ran.busy else 1.0
    return needed(parts) * share, [(label, part * share, why) for label, part, why in summed(parts)]


def _scaled(waits: Idle, seconds: float) -> Idle:
    """The same reasons for another idle time: a profiler slows the host down and not the device."""
    total = sum(waits.seconds.values())
    if not total:
        return waits
    factor = min(seconds / total, 1.0)
    return Idle(
        {label: part * factor for label, part in waits.seconds.items()},
        waits.evidence,
        {name: part * factor for name, part in waits.heavy.items()},
    )
