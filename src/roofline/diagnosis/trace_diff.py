"""Two traces of the same program, or of one that was changed: what grew, what shrank, what came and what went.

Operators are put together by name, shapes and what is around them on the host, then by ever less of that, so that
another kernel for the same operator, another batch or another way to compute attention is a change and not a loss and
a gain. Operators and idle time of each trace add up to its iteration, so the differences add up to the difference.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import fsum
from typing import Any

from roofline.diagnosis.groups import Group, kind_of, short
from roofline.diagnosis.op_summary import words
from roofline.diagnosis.report import REASON_WORDS, TraceReport, trace_report
from roofline.hardware.library import AnyChip
from roofline.ir.excelfile import about
from roofline.ir.report import Report, flat
from roofline.ir.units import format_si
from roofline.traces.events import Trace

AnyTrace = TraceReport | Trace | str | os.PathLike[str]
#: The role of a row that is no operator.
IDLE = "idle"
#: Traces that share less of their time are hardly of the same program.
ALIKE = 0.5


@dataclass(frozen=True)
class OpChange:
    """What became of an operator, or of a reason to be idle; per iteration.

    Attributes:
        op: The operator, or the kernel where none is known; the reason where the device was idle.
        place: What is around it on the host, from the outermost; empty where that differs.
        shapes: Shapes of its arguments, ``before -> after`` where they differ.
        role: ``kernel``, ``copy_in``, ``copy_out``, ``communication``, ``layout``, ``host`` or ``idle``.
        outcome: ``same``, ``other kernel``, ``other shapes``, ``replaced`` (other operators below the same one),
            ``new`` or ``gone``.
        calls_before: Calls.
        calls_after: Calls.
        time_before_s: Its part of the time [s].
        time_after_s: Its part of the time [s].
        kernels_before: Names of its kernels, shortened.
        kernels_after: Names of its kernels, shortened.
    """

    op: str
    place: str
    shapes: str
    role: str
    outcome: str
    calls_before: float
    calls_after: float
    time_before_s: float
    time_after_s: float
    kernels_before: tuple[str, ...]
    kernels_after: tuple[str, ...]

    @property
    def change_s(self) -> float:
        """Time that it takes more [s]."""
        return self.time_after_s - self.time_before_s

    def record(self) -> dict[str, Any]:
        """Return all figures by name."""
        return asdict(self) | {"change_s": self.change_s}


@dataclass(frozen=True)
class PartChange:
    """What became of one part of an iteration: what was needed, or a cause [s]."""

    part: str
    time_before_s: float
    time_after_s: float

    @property
    def change_s(self) -> float:
        """Time that it takes more [s]."""
        return self.time_after_s - self.time_before_s


def _together(rows: Sequence[OpChange]) -> OpChange:
    """Return the sum of equal operators in several places."""
    names = ("calls_before", "calls_after", "time_before_s", "time_after_s")
    sums: dict[str, Any] = {name: fsum(getattr(row, name) for row in rows) for name in names}
    return replace(rows[0], place=rows[0].place if len(rows) == 1 else "", **sums)


@dataclass(frozen=True, repr=False)
class TraceDiff(Report):
    """The difference of two traces, per iteration.

    From :func:`roofline.diagnosis.compare_traces`.

    Attributes:
        before: The first.
        after: The second.
        rows: Operators and idle time, the largest change first; they add up to ``change_s``.
        parts: What was needed and what was lost to each cause; they add up to ``change_s`` as well.
        notes: What limits the comparison, a sentence each.
    """

    schema = "trace_diff"

    before: TraceReport
    after: TraceReport
    rows: tuple[OpChange, ...]
    parts: tuple[PartChange, ...]
    notes: tuple[str, ...]

    @property
    def change_s(self) -> float:
        """Time that an iteration takes more, the sum of that of its rows [s]."""
        return fsum(row.change_s for row in self.rows)

    @property
    def ratio(self) -> float:
        """Time after over time before; nan where that is none."""
        return self.after.seconds / self.before.seconds if self.before.seconds else float("nan")

    @property
    def operators(self) -> tuple[OpChange, ...]:
        """The rows with equal operators together, wherever they are; the largest change first."""
        same: dict[tuple[str, ...], list[OpChange]] = defaultdict(list)
        for row in self.rows:
            same[row.op, row.shapes, row.role, row.outcome].append(row)
        return tuple(sorted(map(_together, same.values()), key=lambda row: -abs(row.change_s)))

    def subject(self) -> dict[str, Any]:
        """Return both files and where they ran."""
        both = self.before, self.after
        names = [one.chip.name if one.chip is not None else None for one in both]
        return {
            "source_before": self.before.source, "source_after": self.after.source,
            "chip": names[0] if names[0] == names[1] else names,
        }  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """Return the times of an iteration, their difference by part, and notes."""
        return {
            "time_before_s": self.before.seconds, "time_after_s": self.after.seconds, "change_s": self.change_s,
            "ratio": self.ratio, "iterations_before": self.before.iterations, "iterations_after": self.after.iterations,
            "parts": [asdict(part) | {"change_s": part.change_s} for part in self.parts], "notes": list(self.notes),
        }  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per operator or reason to be idle, the largest change first."""
        return [row.record() for row in self.rows]

    def sheets(self) -> dict[str, list[dict[str, Any]]]:
        """Return the sheets of a workbook: operators, parts, the whole and its notes."""
        rows, summary = [flat(row) for row in self.records()], self.summary()
        notes = [{"figure": "note", "value": note, "unit": ""} for note in self.notes]
        return {"operators": rows, "parts": summary["parts"], "about": [*about(self.record()), *notes]}

    def __str__(self) -> str:
        before, after = (format_si(one.seconds, "s") for one in (self.before, self.after))
        return f"{self.before.source} -> {self.after.source}: {before} -> {after} per iteration"

    def __repr__(self) -> str:
        return f"<TraceDiff {self}>"


def compare_traces(before: AnyTrace, after: AnyTrace, chip: AnyChip | None = None) -> TraceDiff:
    """Say what became of each operator, and where the difference of two traces comes from.

    Args:
        before: A profiler's file, read or not, or its report.
        after: Another of the same program, or of one that was changed.
        chip: Where both ran; by the device's name in each trace where absent, and as in a report that is given.

    Returns:
        Operators, reasons to be idle and causes, each with what it takes more or less. All is per iteration, so that
        traces of different numbers of iterations compare.

    Raises:
        TraceError: No profiler's file, or one in which nothing ran.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     paths = [pathlib.Path(folder, name) for name in ("before.csv", "after.csv")]
        ...     for path, time in zip(paths, (30, 20)):
        ...         _ = path.write_text(f"name,time_us\\nmm,{time}\\nrelu,10\\n")
        ...     diff = compare_traces(*paths)
        >>> [(row.op, row.outcome, round(row.change_s * 1e6)) for row in diff.rows]
        [('mm', 'same', -10), ('relu', 'same', 0)]
    """
    first, second = (one if isinstance(one, TraceReport) else trace_report(one, chip) for one in (before, after))
    rows = [*_operators(first, second), *_idle(first, second)]
    rows.sort(key=lambda row: (-abs(row.change_s), row.op, row.shapes, row.place))
    return TraceDiff(first, second, tuple(rows), tuple(_parts(first, second)), tuple(_notes(first, second, rows)))


# --- operators --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Unit:
    """Calls of one operator with equal arguments in one place of a trace."""

    group: Group
    path: tuple[str, ...]
    order: int
    calls: float
    seconds: float

    @property
    def name(self) -> str:
        return self.group.op or self.group.kernel

    @property
    def key(self) -> tuple[Hashable, ...]:
        """Return what tells calls apart, wherever they are and whatever kernels run them."""
        group = self.group
        facts = tuple(group.facts.get(name) for name in ("Collective name", "In msg nelems", "shape"))
        return group.op or group.kernels, group.signature, group.role, facts


Key = Callable[[_Unit], Hashable]


def _units(report: TraceReport) -> list[_Unit]:
    units = [
        _Unit(group, place.path, place.order, place.calls if group.op else place.calls * group.launches / group.calls,
              place.seconds)
        for group in report.groups
        for place in group.places
    ]  # fmt: skip
    return sorted(units, key=lambda unit: unit.order)


def _outer(unit: _Unit) -> Hashable:
    """Return the outermost operator around one; ``None`` where there is none."""
    return next((name for name in unit.path[:-1] if "::" in name), None)


def _alike(unit: _Unit) -> Hashable:
    """Return a kernel's name without what tells tiles apart, where no operator is known."""
    return None if unit.group.op else (unit.group.role, re.sub(r"\d+", "", unit.group.kernel))


def _class(unit: _Unit) -> Hashable:
    kind = kind_of(*unit.group.kernels)
    return (unit.group.role, kind) if kind and not unit.group.op else None


#: By what operators of two traces are put together, in order; units of no key (``None``) are not. Those of equal keys
#: are one row (``all``), or pairs in the order in which they ran.
_LEVELS: tuple[tuple[Key, bool], ...] = (
    (lambda unit: (unit.key, unit.path), True),
    (lambda unit: unit.key, True),
    (lambda unit: (unit.group.op, unit.group.role, unit.path) if unit.group.op else None, False),
    (_outer, True),
    (lambda unit: (unit.group.op, unit.group.role) if unit.group.op else None, False),
    (_alike, False),
    (_class, False),
)


def _operators(before: TraceReport, after: TraceReport) -> Iterator[OpChange]:
    """Put the operators of two traces together."""
    left, right = _units(before), _units(after)
    for key, all_ in _LEVELS:
        olds, news = _by_key(left, key), _by_key(right, key)
        done: set[int] = set()
        for same in olds.keys() & news.keys():
            pairs = [(olds[same], news[same])] if all_ else _in_order(olds[same], news[same])
            for pair in pairs:
                done |= {id(unit) for part in pair for unit in part}
                yield _change(*pair)
        left, right = ([unit for unit in units if id(unit) not in done] for units in (left, right))
    for units, is_new in ((left, False), (right, True)):
        for rest in _by_key(units, lambda unit: unit.key).values():
            yield _change([], rest) if is_new else _change(rest, [])


def _in_order(before: Sequence[_Unit], after: Sequence[_Unit]) -> list[tuple[list[_Unit], list[_Unit]]]:
    return [([old], [new]) for old, new in zip(before, after, strict=False)]


def _by_key(units: Sequence[_Unit], key: Key) -> Mapping[Hashable, list[_Unit]]:
    by: dict[Hashable, list[_Unit]] = defaultdict(list)
    for unit in units:
        if (value := key(unit)) is not None:
            by[value].append(unit)
    return by


def _change(before: Sequence[_Unit], after: Sequence[_Unit]) -> OpChange:
    every = [*before, *after]
    names = list(dict.fromkeys(unit.name for unit in every))
    outer = _outer(every[0])
    replaced = bool(before and after) and len(names) > 1 and bool(every[0].group.op)
    places = {unit.path[:-1] for unit in every}
    shapes = [", ".join(dict.fromkeys(words(unit.group.signature) for unit in units)) for units in (before, after)]
    kernels = [tuple(dict.fromkeys(short(name) for unit in units for name in unit.group.kernels))
               for units in (before, after)]  # fmt: skip
    return OpChange(
        op=str(outer) if replaced and outer is not None else names[0],
        place=" > ".join(places.pop()) if len(places) == 1 and not replaced else "",
        shapes="" if replaced else " -> ".join(dict.fromkeys(filter(None, shapes))),
        role=every[0].group.role,
        outcome=_outcome(before, after, replaced),
        calls_before=fsum(unit.calls for unit in before),
        calls_after=fsum(unit.calls for unit in after),
        time_before_s=fsum(unit.seconds for unit in before),
        time_after_s=fsum(unit.seconds for unit in after),
        kernels_before=kernels[0],
        kernels_after=kernels[1],
    )


def _outcome(before: Sequence[_Unit], after: Sequence[_Unit], replaced: bool) -> str:
    if not before or not after:
        return "new" if after else "gone"
    if replaced:
        return "replaced"
    if {unit.group.signature for unit in before} != {unit.group.signature for unit in after}:
        return "other shapes"
    names = ({name for unit in units for name in unit.group.kernels} for units in (before, after))
    return "same" if next(names) == next(names) else "other kernel"


# --- the rest of an iteration -----------------------------------------------------------------------------------------


def _idle(before: TraceReport, after: TraceReport) -> Iterator[OpChange]:
    for name, text in REASON_WORDS.items():
        old, new = before.idle.get(name, 0.0), after.idle.get(name, 0.0)
        if old or new:
            outcome = "same" if old and new else "new" if new else "gone"
            yield OpChange(f"idle: {text}", "", "", IDLE, outcome, 0.0, 0.0, old, new, (), ())


def _parts(before: TraceReport, after: TraceReport) -> Iterator[PartChange]:
    """Yield what became of each part of the waterfall; without one of the chips no floor tells what was needed."""
    olds, news = (_waterfall(one, before.chip is None or after.chip is None) for one in (before, after))
    for part in dict.fromkeys((*olds, *news)):
        yield PartChange(part, olds.get(part, 0.0), news.get(part, 0.0))


def _waterfall(report: TraceReport, floorless: bool) -> dict[str, float]:
    parts: dict[str, float] = defaultdict(float)
    for name, seconds in report.waterfall:
        parts["busy" if floorless and name in ("floor", "efficiency", "no formula") else name] += seconds
    rest = report.seconds - fsum(parts.values())
    if abs(rest) > 0:
        parts["other"] += rest
    return dict(parts)


def _notes(before: TraceReport, after: TraceReport, rows: Sequence[OpChange]) -> Iterator[str]:
    """Say what a reader should know before believing the rest."""
    both = (("before", before), ("after", after))
    if before.iterations != after.iterations:
        yield f"{before.iterations} iterations before and {after.iterations} after: all is per iteration"
    single = [word for word, one in both if one.timed and one.iterations == 1]
    if len(single) == 1:
        yield f"nothing repeats {single[0]}, which is taken as one iteration: does it hold as much as one of the other?"
    chips = [one.chip.name if one.chip is not None else "an unknown chip" for _, one in both]
    if chips[0] != chips[1]:
        yield f"different chips: {chips[0]} before, {chips[1]} after"
    if before.on_cpu != after.on_cpu:
        yield f"operators ran on the CPU {'before' if before.on_cpu else 'after'} only"
    for word, one in both:
        if one.partial:
            yield f"partial: only a part of the trace {word} could be read"
    untimed = [word for word, one in both if not one.timed]
    if len(untimed) == 1:
        yield f"no starts {untimed[0]}, so that idle time is known of the other only"
    work = [row for row in rows if row.role != IDLE]
    total = fsum(row.time_before_s + row.time_after_s for row in work)
    alone = fsum(row.time_before_s + row.time_after_s for row in work if row.outcome in ("new", "gone"))
    if total and alone > (1 - ALIKE) * total:
        yield f"operators that both have take {1 - alone / total:.0%} of the time: is it one program?"
