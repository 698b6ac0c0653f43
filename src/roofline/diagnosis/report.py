"""A trace on its own: iterations, busy and idle time, operators against roofs, and causes that need no program."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from roofline.cost.cpu import is_cpu
from roofline.diagnosis.causes import Cause, cause
from roofline.diagnosis.groups import Group, short
from roofline.diagnosis.idle import RESOLUTION, Overlap, heavy_on_host, overlap, unknown_fix, without_host
from roofline.diagnosis.iteration import Run, on_cpu, one_device, run_of
from roofline.diagnosis.kernels import KernelTable, kernel_table
from roofline.diagnosis.memory import MemoryTimeline, memory_timeline
from roofline.diagnosis.op_summary import OpSummary, judged, summaries
from roofline.diagnosis.trace_causes import TraceContext, attribute
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import UnknownChip, UsageError
from roofline.ir.excelfile import about
from roofline.ir.report import Report
from roofline.ir.units import format_si
from roofline.traces.events import DEVICE, Trace
from roofline.traces.reading import read_trace

#: Stands for a chip that nobody knows: it has no figure, so that whatever needs one is not known either.
NO_CHIP = Chip(name="unknown", memory=({"name": "memory", "source": "unknown"},))

#: Reasons to be idle, and the labels of gaps that each stands for.
REASONS: Mapping[str, tuple[str, ...]] = {
    "launches": ("launch_bound",),
    "host": ("host_bound", "host_compute", "wrong_device"),
    "sync": ("sync",),
    "copies": ("host_copy",),
    "unknown": ("unknown",),
    "other": ("reallocation",),
}
#: Those reasons in words.
REASON_WORDS: Mapping[str, str] = {
    "launches": "launching", "host": "host-bound", "sync": "synchronisation", "copies": "copies",
    "unknown": "of unknown origin", "other": "other",
}  # fmt: skip
#: How a chip is given.
_HOW = "--chip; chip= in Python"
#: Roles of what computes.
_COMPUTE = ("kernel", "host")
#: Causes of less than this share are left out.
SMALL = 0.001
#: A single gap or launch of more than this share of the trace, and of this long [s], may be a mistake of the record.
LONELY, LONG = 0.9, 1.0
#: A part of less than this share is what is left of sums that should cancel.
ROUNDING = 1e-9


@dataclass(frozen=True, repr=False)
class TraceReport(Report):
    """What a trace says by itself; all figures are per iteration, nan where they are not known.

    From :func:`roofline.diagnosis.trace_report`.

    Attributes:
        source: The file.
        format: Which profiler wrote it.
        chip: Where it ran, ``None`` where that is not known.
        devices: Names of the devices, as the profiler spells them.
        timed: Whether the file has starts, so that there are gaps.
        partial: Whether only a part of the file could be read.
        on_cpu: Whether the operators ran on the CPU.
        iterations: How many were averaged.
        found_by: How they were found, in words.
        seconds: From one to the next: ``busy`` and all of ``idle`` [s].
        busy: Time in which at least one launch ran [s].
        idle: Time in which none did, by reason [s].
        communication: Collectives.
        copies: Copies between host and device.
        ops: The operators, the slowest first.
        host_ops: Operators that took long on the CPU beside a device: name, calls, time [s].
        causes: What time was lost to, as far as that shows without a program to compare with.
        needed_s: Time of the device that no cause explains [s].
        notes: What limits this report, a sentence each.
        memory: Memory over the whole trace, ``None`` where it was not recorded.
        groups: The calls that ``ops`` summarizes, with what is around each on the host.
        kernels: The kernels by name, or the operators of a CPU.
    """

    schema = "trace"

    source: str
    format: str
    chip: Chip | None
    devices: tuple[str, ...]
    timed: bool
    partial: bool
    on_cpu: bool
    iterations: int
    found_by: str
    seconds: float
    busy: float
    idle: Mapping[str, float]
    communication: Overlap
    copies: Overlap
    ops: tuple[OpSummary, ...]
    host_ops: tuple[tuple[str, float, float], ...]
    causes: tuple[Cause, ...]
    needed_s: float
    notes: tuple[str, ...]
    memory: MemoryTimeline | None
    groups: tuple[Group, ...]
    kernels: KernelTable

    @property
    def unknown(self) -> tuple[OpSummary, ...]:
        """Operators and kernels that have no formula, the slowest first."""
        return tuple(op for op in self.ops if op.formula == "none" and op.role in _COMPUTE)

    @property
    def waterfall(self) -> tuple[tuple[str, float], ...]:
        """Parts by name, from the datasheet's floor up; they add up to ``seconds`` [s].

        Without a chip there is no floor: what no cause explains is ``busy``.
        """
        floors = (min(op.floor_s, op.seconds - op.lost_s) for op in self.ops if op.floor_s == op.floor_s)
        floor = min(sum(floors), self.needed_s)
        without = min(sum(op.seconds - op.lost_s for op in self.unknown), self.needed_s - floor)
        known = self.needed_s - without
        made = (("floor", floor), ("efficiency", known - floor)) if self.chip is not None else (("busy", known),)
        parts = (*made, ("no formula", without))
        lost = [(cause.label, cause.explains_s) for cause in self.causes]
        rest = self.seconds - self.needed_s - sum(part for _, part in lost)
        return tuple((name, part) for name, part in (*parts, *lost, ("other", rest)) if part > ROUNDING * self.seconds)

    def subject(self) -> dict[str, Any]:
        """Return the file, its format, and where it ran."""
        chip = self.chip.name if self.chip is not None else None
        return {"source": self.source, "format": self.format, "chip": chip, "devices": list(self.devices)}

    def summary(self) -> dict[str, Any]:
        """Return the times per iteration [s], causes and notes; times are ``None`` where the file has no starts."""
        timed = {
            "time_s": self.seconds,
            "idle_s": sum(self.idle.values()),
            "idle": dict(self.idle),
            "communication": self.communication.record(),
            "copies": self.copies.record(),
        }
        return {
            **{name: getattr(self, name) for name in ("partial", "timed", "on_cpu", "iterations")},
            "iterations_found_by": self.found_by,
            "busy_s": self.busy,
            **(timed if self.timed else dict.fromkeys(timed)),
            "unknown": [{"op": op.op, "kernels": op.kernels, "time_s": op.seconds} for op in self.unknown],
            "host_ops": [{"op": op, "calls": calls, "time_s": seconds} for op, calls, seconds in self.host_ops],
            "causes": [asdict(cause) for cause in self.causes],
            "waterfall": [{"part": part, "time_s": seconds} for part, seconds in self.waterfall],
            "memory_peak": self.memory.summary() if self.memory is not None else None,
            "notes": list(self.notes),
        }

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per operator, the slowest first."""
        return [op.record() for op in self.ops]

    def sheets(self) -> dict[str, list[dict[str, Any]]]:
        """Return the sheets of a workbook: operators, kernels, causes, idle time, memory, the whole and its notes."""
        memory = self.memory
        held = memory.summary()["held"] if memory is not None else []
        why = {cause.label: {"evidence": cause.evidence, "fix": cause.fix} for cause in self.causes}
        parts = [{"part": part, "time_s": time, "share": time / self.seconds} for part, time in self.waterfall]
        return {
            "operators": self.records(),
            "kernels": self.kernels.records(),
            "causes": [row | why.get(str(row["part"]), {}) for row in parts],
            "idle": [{"idle": REASON_WORDS[name], "time_s": part} for name, part in self.idle.items()],
            "memory at the peak": [dict(row) for row in held],
            "memory": memory.records() if memory is not None else [],
            "about": [*about(self.record()), *({"figure": "note", "value": note, "unit": ""} for note in self.notes)],
        }

    def __str__(self) -> str:
        where = self.chip.name if self.chip is not None else "an unknown chip"
        busy = f", busy {self.busy / self.seconds:.0%}" if self.timed and self.seconds else ""
        time = format_si(self.seconds, "s")
        return f"{self.source} on {where}: {time} per iteration{busy}, {len(self.ops)} operators"

    def __repr__(self) -> str:
        return f"<TraceReport {self}>"


def trace_report(
    trace: Trace | str | os.PathLike[str],
    chip: AnyChip | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TraceReport:
    """Say where the time of a trace went, operator by operator, without knowing what program it is.

    Args:
        trace: A profiler's file, read or not; see :func:`roofline.traces.read_trace`.
        chip: Where it ran; by the device's name in the trace where absent.
        progress: Called while the file is read, with the bytes read so far and the bytes in all.

    Returns:
        Busy and idle time, operators against their roofs, and causes, per iteration.

    Raises:
        TraceError: No profiler's file, or one in which nothing ran.
        UnknownChip: ``chip`` is given and not known. A device that is not known is no error but a note.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = pathlib.Path(folder, "times.csv")
        ...     _ = path.write_text("name,time_us\\nmm,30\\nrelu,10\\n")
        ...     report = trace_report(path)
        >>> [(op.op, op.share) for op in report.ops], report.chip
        ([('mm', 0.75), ('relu', 0.25)], None)
    """
    if not isinstance(trace, Trace):
        if not isinstance(trace, str | os.PathLike):
            raise UsageError(f"expected a trace or the path of one, not {str(trace)[:60]!r}")
        trace = read_trace(trace, progress)
    return report_and_run(trace, chip)[0]


def report_and_run(trace: Trace, chip: AnyChip | None) -> tuple[TraceReport, Run]:
    """Return the report of a trace, and the trace taken apart; arguments as for :func:`trace_report`."""
    trace, device_note = one_device(trace)
    where, chip_note = _chip(trace, chip)
    run = run_of(trace, where or NO_CHIP)
    return _report(run, where, [note for note in (chip_note, device_note) if note]), run


def _chip(trace: Trace, override: AnyChip | None) -> tuple[Chip | None, str]:
    """Return the chip, and a note on it: the one that was given, or that a device's name stands for."""
    named, why = None, "the file does not name its device"
    worked = set(trace.events.device[np.isin(trace.events.kind, DEVICE)].tolist())
    names = [name for number, name in trace.devices.items() if number in worked] or [*trace.devices.values()]
    for name in dict.fromkeys(names):
        try:
            named = find_chip(name)
            break
        except UnknownChip as error:
            why = str(error).partition("; allowed:")[0]
    if override is not None:
        chip = find_chip(override)
        if on_cpu(trace) and chip.vendor and not is_cpu(chip):
            return None, f"operators ran on the CPU, whose roofs are not those of {chip.name}"
        wrong = named is not None and named.name != chip.name and not on_cpu(trace)
        return chip, f"the trace names {named.name}, and {chip.name} was given" if wrong and named is not None else ""
    if on_cpu(trace):
        return None, f"chip unknown: operators ran on the CPU; give a file that roofline calibrate wrote ({_HOW})"
    return named, "" if named is not None else f"chip unknown: {why}; give it to see bounds and roofs ({_HOW})"


def _report(run: Run, chip: Chip | None, notes: Sequence[str]) -> TraceReport:
    trace, count = run.trace, run.iterations.count
    ops, idle = summaries(run.groups), _idle(run)
    seconds = run.busy + sum(idle.values())
    needed, lost = attribute(TraceContext(None, [group for group in run.groups if judged(group)], run.idle))
    return TraceReport(
        source=trace.path,
        format=trace.format,
        chip=chip,
        devices=tuple(dict.fromkeys(trace.devices.values())),
        timed=trace.timed,
        partial=trace.partial,
        on_cpu=run.on_cpu,
        iterations=count,
        found_by=run.iterations.how,
        seconds=seconds,
        busy=run.busy,
        idle=idle,
        communication=overlap(run.launches, count, "communication"),
        copies=overlap(run.launches, count, "copy_in", "copy_out"),
        ops=ops,
        host_ops=heavy_on_host(trace, run.launches, count) if trace.timed and not run.on_cpu else (),
        causes=tuple(_cause(run, chip, *part, seconds) for part in lost if part[1] > SMALL * seconds),
        needed_s=needed + sum(group.seconds for group in run.groups if not judged(group)),
        notes=(*trace.notes, *notes, *_lonely(run), *_limits(trace, ops, chip)),
        memory=memory_timeline(trace),
        groups=run.groups,
        kernels=kernel_table(trace.path, run.launches, count),
    )


def _cause(run: Run, chip: Chip | None, label: str, part: float, why: str, seconds: float) -> Cause:
    fix = unknown_fix(run.trace) if label == "unknown" else None
    return cause(label, part, seconds, why, fix, chip)


def _idle(run: Run) -> dict[str, float]:
    """Sum idle time by reason; what the profiler itself took and what is not explained is ``other``."""
    if not run.trace.timed:
        return {}
    idle = {name: sum(run.idle.seconds.get(label, 0.0) for label in labels) for name, labels in REASONS.items()}
    period = run.iterations.period
    if run.iterations.count < 2 or period != period:
        period = max(launch.end for launch in run.launches) - run.launches[0].start
    rest = period - run.busy - sum(idle.values())
    idle["other"] += rest if rest > RESOLUTION else 0.0
    return idle


def _lonely(run: Run) -> list[str]:
    """Say where nearly all of the time is one gap or one launch on a device, which a single wrong figure could make."""
    ran = run.launches
    if not run.trace.timed or run.on_cpu or len(ran) < 2:
        return []
    ends = list(accumulate((one.end for one in ran), max))
    gap, after = max((after.start - end, after.name) for end, after in zip(ends, ran[1:], strict=False))
    longest = max(ran, key=lambda one: one.duration)
    checks = (
        (gap, "a gap", "before", after, "start"),
        (longest.duration, "one launch", "of", longest.name, "duration"),
    )
    return [f"nearly all of the time is {what} of {format_si(long, 's')} {word} {short(name)}: is its {figure} right?"
            for long, what, word, name, figure in checks
            if long > max(LONG, LONELY * (ends[-1] - ran[0].start))]  # fmt: skip


def _limits(trace: Trace, ops: Sequence[OpSummary], chip: Chip | None) -> list[str]:
    """Say what a reader should know before believing the rest."""
    total = sum(op.seconds for op in ops)
    kernels = [op for op in ops if op.role in _COMPUTE]
    bare = sum(op.seconds for op in kernels if op.formula == "none")
    above = [op.op for op in ops if op.above]
    notes = []
    if trace.partial:
        notes.append("partial: the file was cut, and everything here is of the part that could be read")
    if not trace.timed:
        notes.append("no starts in this format: no gaps, no iterations, times only")
    notes += without_host(trace)
    if trace.format == "torch" and bare > 0.2 * total:
        shapeless = not any(op.shapes for op in kernels) and not any("record_shapes" in note for note in trace.notes)
        hint = "; shapes were not recorded: use record_shapes=True" if shapeless else ""
        notes.append(f"no formula for {bare / total:.0%} of the time{hint}")
    if above and chip is not None:
        notes.append(f"above the roof of {chip.name}: {', '.join(dict.fromkeys(above))[:200]}")
    return notes
