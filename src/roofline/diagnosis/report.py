"""A trace on its own: iterations, busy and idle time, operators against roofs, and causes that need no program."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roofline.diagnosis.attribution import needed, summed, take_apart
from roofline.diagnosis.causes import FIXES, Cause
from roofline.diagnosis.context import Scene
from roofline.diagnosis.op_summary import OpLine, judged, lines
from roofline.diagnosis.overlap import Beside, beside, heavy_on_host
from roofline.diagnosis.traced import Run, on_processor, one_device, run
from roofline.hardware.chip import Chip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import UnknownChip, UsageError
from roofline.ir.units import format_si
from roofline.traces.events import Trace
from roofline.traces.reading import read_trace

#: Stands for a chip that nobody knows: it has no figure, so that whatever needs one is not known either.
NO_CHIP = Chip(name="unknown", memory=({"name": "memory", "source": "unknown"},))

#: Reasons to be idle, and the labels of gaps that each stands for.
REASONS: Mapping[str, tuple[str, ...]] = {
    "launches": ("launch_bound",),
    "host": ("host_bound", "host_compute", "wrong_device"),
    "sync": ("sync",),
    "copies": ("host_copy",),
    "other": ("reallocation",),
}
#: Those reasons in words.
REASON_WORDS: Mapping[str, str] = {
    "launches": "launching", "host": "host-bound", "sync": "synchronisation", "copies": "copies", "other": "other",
}  # fmt: skip
#: Roles of what computes.
_COMPUTE = ("kernel", "host")
#: Causes of less than this share are left out.
SMALL = 0.001
#: A part of less than this share is what is left of sums that should cancel.
ROUNDING = 1e-9


@dataclass(frozen=True, repr=False)
class TraceReport:
    """What a trace says by itself; all figures are of one iteration, nan where they are not known.

    Attributes:
        source: The file.
        format: Which profiler wrote it.
        chip: Where it ran, ``None`` where that is not known.
        devices: Names of the devices, as the profiler spells them.
        timed: Whether the file has starts, so that there are gaps.
        partial: Whether only a part of the file could be read.
        processor: Whether the operators ran on the processor.
        iterations: How many were averaged.
        found_by: How they were found, in words.
        seconds: From one to the next: ``busy`` and all of ``idle`` [s].
        busy: Time in which at least one launch ran [s].
        idle: Time in which none did, by reason [s].
        communication: Collectives.
        copies: Copies between host and device.
        ops: The operators, the slowest first.
        host_ops: Operators that took long on the processor beside a device: name, calls, time [s].
        causes: What time was lost to, as far as that shows without the meant program.
        needed_s: Time of the device that no cause explains [s].
        notes: What limits this report, a sentence each.
    """

    source: str
    format: str
    chip: Chip | None
    devices: tuple[str, ...]
    timed: bool
    partial: bool
    processor: bool
    iterations: int
    found_by: str
    seconds: float
    busy: float
    idle: Mapping[str, float]
    communication: Beside
    copies: Beside
    ops: tuple[OpLine, ...]
    host_ops: tuple[tuple[str, float, float], ...]
    causes: tuple[Cause, ...]
    needed_s: float
    notes: tuple[str, ...]

    @property
    def unknown(self) -> tuple[OpLine, ...]:
        """Operators and kernels that have no formula, the slowest first."""
        return tuple(line for line in self.ops if line.formula == "none" and line.role in _COMPUTE)

    @property
    def waterfall(self) -> tuple[tuple[str, float], ...]:
        """Parts by name, from the datasheet's floor up; they add up to ``seconds`` [s].

        Without a chip there is no floor: what no cause explains is ``busy``.
        """
        floors = (min(line.floor_s, line.seconds - line.lost_s) for line in self.ops if line.floor_s == line.floor_s)
        floor = min(sum(floors), self.needed_s)
        without = min(sum(line.seconds - line.lost_s for line in self.unknown), self.needed_s - floor)
        known = self.needed_s - without
        made = (("floor", floor), ("efficiency", known - floor)) if self.chip is not None else (("busy", known),)
        parts = (*made, ("no formula", without))
        lost = [(cause.label, cause.explains_s) for cause in self.causes]
        rest = self.seconds - self.needed_s - sum(part for _, part in lost)
        return tuple((name, part) for name, part in (*parts, *lost, ("other", rest)) if part > ROUNDING * self.seconds)

    def record(self) -> dict[str, Any]:
        """The stable keys of ``roofline trace --json``."""
        timed = self.timed
        return {
            "source": self.source,
            "format": self.format,
            "chip": self.chip.name if self.chip is not None else None,
            "devices": list(self.devices),
            "partial": self.partial,
            "timed": timed,
            "on_processor": self.processor,
            "iterations": self.iterations,
            "iterations_found_by": self.found_by,
            "seconds_per_iteration": self.seconds if timed else None,
            "busy_s": self.busy,
            "idle_s": sum(self.idle.values()) if timed else None,
            "idle": dict(self.idle) if timed else None,
            "communication": _record(self.communication) if timed else None,
            "copies": _record(self.copies) if timed else None,
            "ops": self.rows(),
            "unknown": [{"op": line.op, "kernels": line.kernels, "seconds": line.seconds} for line in self.unknown],
            "host_ops": [{"op": op, "calls": calls, "seconds": seconds} for op, calls, seconds in self.host_ops],
            "causes": [{name: getattr(cause, name) for name in Cause.__slots__} for cause in self.causes],
            "waterfall": [{"part": part, "seconds": seconds} for part, seconds in self.waterfall],
            "notes": list(self.notes),
        }

    def rows(self) -> list[dict[str, Any]]:
        """A row an operator, the slowest first, for CSV."""
        return [line.record() for line in self.ops]

    def __str__(self) -> str:
        where = self.chip.name if self.chip is not None else "an unknown chip"
        busy = f", busy {self.busy / self.seconds:.0%}" if self.timed and self.seconds else ""
        return f"{self.source} on {where}: {format_si(self.seconds, 's')} an iteration{busy}, {len(self.ops)} operators"

    def __repr__(self) -> str:
        return f"<TraceReport {self}>"


def _record(part: Beside) -> dict[str, float]:
    return {"seconds": part.seconds, "exposed_s": part.exposed, "overlapped_s": part.overlapped}


def trace_report(
    trace: Trace | str | os.PathLike[str],
    chip: str | Chip | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TraceReport:
    """Say where the time of a trace went, operator by operator, without knowing what program it is.

    Args:
        trace: A profiler's file, read or not; see :func:`roofline.traces.read_trace`.
        chip: Where it ran; by the device's name in the trace where absent.
        progress: Called while the file is read, with the bytes read so far and the bytes in all.

    Raises:
        TraceError: No profiler's file, or one in which nothing ran.
        UnknownChip: ``chip`` is given and not known. A device that is not known is no error but a note.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "times.csv")
        ...     _ = path.write_text("name,time_us\\nmm,30\\nrelu,10\\n")
        ...     report = trace_report(path)
        >>> [(line.op, line.share) for line in report.ops], report.chip
        ([('mm', 0.75), ('relu', 0.25)], None)
    """
    if not isinstance(trace, Trace):
        if not isinstance(trace, str | os.PathLike):
            raise UsageError(f"wanted a trace or the path of one, not {str(trace)[:60]!r}")
        trace = read_trace(trace, progress)
    found, chip_note = _chip(trace, chip)
    trace, device_note = one_device(trace)
    ran = run(trace, found or NO_CHIP)
    return _report(trace, found, ran, [note for note in (chip_note, device_note) if note])


def _chip(trace: Trace, given: str | Chip | None) -> tuple[Chip | None, str]:
    """The chip, and what is to be said about it."""
    named, why = _named(trace)
    if given is not None:
        chip = find_chip(given)
        wrong = named is not None and named.name != chip.name and not on_processor(trace)
        return chip, f"the trace names {named.name}, and {chip.name} was given" if wrong and named is not None else ""
    if on_processor(trace):
        return None, "chip unknown: operators ran on the processor; give --chip, as roofline calibrate writes one"
    return named, "" if named is not None else f"chip unknown: {why}; give --chip to see bounds and roofs"


def _named(trace: Trace) -> tuple[Chip | None, str]:
    """The chip that a device's name stands for, or why there is none."""
    why = "the file does not name its device"
    for name in dict.fromkeys(trace.devices.values()):
        try:
            return find_chip(name), ""
        except UnknownChip as error:
            why = str(error).partition("; allowed:")[0]
    return None, why


def _report(trace: Trace, chip: Chip | None, ran: Run, notes: Sequence[str]) -> TraceReport:
    count = ran.iterations.count
    ops = lines(ran.groups, _facts(trace, ran))
    idle = _idle(trace, ran)
    seconds = ran.busy + sum(idle.values())
    processor = on_processor(trace)
    needed, causes = _causes(ran, seconds)
    return TraceReport(
        source=trace.path,
        format=trace.format,
        chip=chip,
        devices=tuple(dict.fromkeys(trace.devices.values())),
        timed=trace.timed,
        partial=trace.partial,
        processor=processor,
        iterations=count,
        found_by=ran.iterations.how,
        seconds=seconds,
        busy=ran.busy,
        idle=idle,
        communication=beside(ran.launches, count, "communication"),
        copies=beside(ran.launches, count, "copy_in", "copy_out"),
        ops=ops,
        host_ops=heavy_on_host(trace, ran.launches, count) if trace.timed and not processor else (),
        causes=causes,
        needed_s=needed,
        notes=(*trace.notes, *notes, *_limits(trace, ops, chip)),
    )


def _facts(trace: Trace, ran: Run) -> dict[str, Mapping[str, Any]]:
    """What else was recorded of each kernel, of its longest launch."""
    found: dict[str, Mapping[str, Any]] = {}
    for one in sorted(ran.launches, key=lambda one: one.duration):
        if one.detail >= 0:
            found[one.name] = trace.events.details[one.detail]
    return found


def _idle(trace: Trace, ran: Run) -> dict[str, float]:
    """Idle time by reason; what the profiler itself took and what is not explained is ``other``."""
    if not trace.timed:
        return {}
    found = {name: sum(ran.idle.seconds.get(label, 0.0) for label in labels) for name, labels in REASONS.items()}
    period = ran.iterations.period
    if ran.iterations.count < 2 or period != period:
        period = max(one.end for one in ran.launches) - ran.launches[0].start
    found["other"] += max(period - ran.busy - sum(found.values()), 0.0)
    return found


def _causes(ran: Run, seconds: float) -> tuple[float, tuple[Cause, ...]]:
    """What was needed of the device's time, and what the rest was lost to."""
    parts = take_apart(Scene(None, [one for one in ran.groups if judged(one)], ran.idle))
    kept = needed(parts) + sum(one.seconds for one in ran.groups if not judged(one))
    made = []
    for label, lost, evidence in summed(parts):
        if label and lost > SMALL * seconds:
            made.append(Cause(label, lost, lost / seconds, evidence, FIXES.get(label, ""), max(seconds - lost, 0.0)))
    return kept, tuple(made)


def _limits(trace: Trace, ops: Sequence[OpLine], chip: Chip | None) -> list[str]:
    """What a reader should know before believing the rest."""
    total = sum(line.seconds for line in ops)
    kernels = [line for line in ops if line.role in _COMPUTE]
    bare = sum(line.seconds for line in kernels if line.formula == "none")
    above = [line.op for line in ops if line.above]
    notes = []
    if trace.partial:
        notes.append("partial: the file was cut, and everything here is of the part that could be read")
    if not trace.timed:
        notes.append("no starts in this format: no gaps, no iterations, times only")
    if trace.format == "torch" and bare > 0.2 * total:
        shapeless = not any(line.shapes for line in kernels)
        hint = "; shapes were not recorded: use record_shapes=True" if shapeless else ""
        notes.append(f"no formula for {bare / total:.0%} of the time{hint}")
    if above and chip is not None:
        notes.append(f"above the roof of {chip.name}: {', '.join(dict.fromkeys(above))[:200]}")
    return notes
