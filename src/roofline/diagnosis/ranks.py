"""Traces of several ranks of one program: who comes last to collectives, what is exposed, who computes more.

Collectives of the ranks are put together by process group and sequence number, or by the order in which each rank
issued them. One ends on all its ranks at nearly the same moment, which tells how far the clocks are apart; once they
are set by that, the rank whose kernel begins last is the one that the others waited for.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import fsum
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from roofline.diagnosis.groups import STEP, short
from roofline.diagnosis.idle import RESOLUTION, Spans, cover
from roofline.diagnosis.iteration import Run
from roofline.diagnosis.kernels import KernelTable
from roofline.diagnosis.report import TraceReport, report_and_run
from roofline.diagnosis.sharing import on_device
from roofline.diagnosis.trace_diff import TraceDiff, compare_traces
from roofline.hardware.library import AnyChip
from roofline.ir.errors import UsageError
from roofline.ir.excelfile import about
from roofline.ir.report import Report, flat
from roofline.ir.units import format_si
from roofline.traces.events import Kind, Trace
from roofline.traces.linking import Launch
from roofline.traces.reading import read_trace

#: Files of a folder that are traces.
_FILES = (".json", ".json.gz")
#: Collectives that a rank may leave before the others are done.
_ROOTED = re.compile(r"_?(broadcast|reduce(?!_scatter)|gather|scatter|send|recv)", re.I)
#: Between two ranks only, so that others of the group do not take part, and where the other rank of each is recorded.
_PAIRED = {"send": "Dst Rank", "recv": "Src Rank"}
#: Median deviations from the difference of two clocks by which a rank has to be later: about two standard deviations.
SURE = 3.0
#: From so many collectives on, a clock may run faster than another.
DRIFTS = 8
_GROUP, _RANKS, _NAME = "Process Group Name", "Process Group Ranks", "Collective name"
#: Facts that must be equal on all ranks.
_EQUAL = (_NAME, "In msg nelems", "Out msg nelems", "dtype")


@dataclass(frozen=True)
class Rank:
    """One rank; all times are per iteration.

    Attributes:
        rank: Its number.
        source: Its file.
        time_s: From one iteration to the next [s].
        compute_s: While at least one kernel ran that is no collective [s].
        communication_s: While at least one collective ran [s].
        exposed_s: While a collective ran and no kernel beside it [s].
        idle_s: While nothing ran [s].
        wait_s: In collectives, before the last rank had come [s].
        late_s: How long all others waited for this rank alone [s].
        last: Share of the collectives to which it came last.
        clock_offset_s: How far its clock is ahead of that of the first rank at the beginning [s].
        clock_drift: By how much more it is ahead a second later; 0 where the ends do not show any [s/s].
        clock_spread_s: Median deviation of the collectives from that [s].
        peak_bytes: Most memory that was allocated, ``None`` where not recorded [B].
    """

    rank: int
    source: str
    time_s: float
    compute_s: float
    communication_s: float
    exposed_s: float
    idle_s: float
    wait_s: float
    late_s: float
    last: float
    clock_offset_s: float
    clock_drift: float
    clock_spread_s: float
    peak_bytes: int | None


@dataclass(frozen=True)
class Collective:
    """A collective in its place of the iteration; times are means over iterations, and over ranks where it has many.

    Attributes:
        collective: Its name, or that of its kernel.
        group: Name of its process group.
        ranks: Those that took part and whose traces are here.
        order: Its number among those of its group in an iteration; -1 where iterations differ.
        calls: Calls per iteration.
        elements: Of its input on one rank; -1 where not recorded.
        dtype: Its number format.
        time_s: Of its kernel [s].
        wait_s: Before the last rank had come [s].
        transfer_s: From then to its end [s].
        exposed_s: Without a kernel beside it [s].
        exposed_wait_s: Of that, before the last rank had come [s].
        spread_s: Between the first and the last rank [s].
        late_s: Between the last rank and the one before it [s].
        last_rank: The rank that came last most often; -1 where the clocks do not tell.
        last: In which share of the calls it did.
    """

    collective: str
    group: str
    ranks: tuple[int, ...]
    order: int
    calls: float
    elements: int
    dtype: str
    time_s: float
    wait_s: float
    transfer_s: float
    exposed_s: float
    exposed_wait_s: float
    spread_s: float
    late_s: float
    last_rank: int
    last: float


@dataclass(frozen=True, repr=False)
class RanksReport(Report):
    """What the traces of several ranks say together, per iteration.

    From :func:`roofline.diagnosis.ranks_report`.

    Attributes:
        ranks: The ranks in order.
        rows: Their collectives, those with the most waiting and exposed time first.
        reports: The report of each rank by itself.
        notes: What limits the report, a sentence each.
    """

    schema = "trace_ranks"

    ranks: tuple[Rank, ...]
    rows: tuple[Collective, ...]
    reports: tuple[TraceReport, ...]
    notes: tuple[str, ...]

    @property
    def time_s(self) -> float:
        """Time of the slowest rank [s]."""
        return max(rank.time_s for rank in self.ranks)

    @property
    def imbalance(self) -> float:
        """Share by which the rank with the most compute exceeds the mean; nan without any."""
        mean = fmean(rank.compute_s for rank in self.ranks)
        return max(rank.compute_s for rank in self.ranks) / mean - 1 if mean else float("nan")

    def imbalance_by_operator(self) -> TraceDiff:
        """Compare the rank with the most compute with that with the least."""
        by_compute = sorted(zip(self.ranks, self.reports, strict=True), key=lambda pair: pair[0].compute_s)
        return compare_traces(by_compute[0][1], by_compute[-1][1])

    def subject(self) -> dict[str, Any]:
        """Return the files and where they ran."""
        chips = [report.chip.name if report.chip is not None else None for report in self.reports]
        return {
            "sources": [rank.source for rank in self.ranks],
            "chip": chips[0] if len(set(chips)) == 1 else chips,
        }

    def summary(self) -> dict[str, Any]:
        """Return the ranks and what they differ in."""
        return {
            "time_s": self.time_s,
            "imbalance": self.imbalance,
            "ranks": [asdict(rank) for rank in self.ranks],
            "notes": list(self.notes),
        }

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per collective, those with the most waiting and exposed time first."""
        return [asdict(row) for row in self.rows]

    def sheets(self) -> dict[str, list[dict[str, Any]]]:
        """Return the sheets of a workbook: ranks, collectives, the whole and its notes."""
        rows, notes = [flat(row) for row in self.records()], [{"figure": "note", "value": note} for note in self.notes]
        ranks = [asdict(rank) for rank in self.ranks]
        return {"ranks": ranks, "collectives": rows, "about": [*about(self.record()), *notes]}

    def __str__(self) -> str:
        late = max(self.ranks, key=lambda rank: rank.late_s)
        waits = f", {format_si(late.late_s, 's')} of waiting for rank {late.rank}" if late.late_s else ""
        return f"{len(self.ranks)} ranks: {format_si(self.time_s, 's')} per iteration{waits}"

    def __repr__(self) -> str:
        return f"<RanksReport {self}>"


def ranks_report(
    traces: str | os.PathLike[str] | Iterable[Trace | str | os.PathLike[str]], chip: AnyChip | None = None
) -> RanksReport:
    """Put the traces of several ranks of one program together.

    Args:
        traces: A folder with a file per rank, or files, read or not, one at a time in memory.
        chip: Where they ran; by the device's name in each trace where absent.

    Returns:
        Who came last to which collective and by how much, exposed communication by collective, and compute by rank.

    Raises:
        TraceError: No profiler's file, or one in which nothing ran.
        UsageError: Fewer than two traces, or two of the same rank.

    Example:
        >>> import roofline as rl
        >>> found = rl.diagnosis.ranks_report("examples/two_ranks")  # doctest: +SKIP
        >>> [(rank.rank, rank.last) for rank in found.ranks]  # doctest: +SKIP
        [(0, 0.0), (1, 0.75)]
    """
    if isinstance(traces, str | os.PathLike):
        traces = rank_files(traces)
    sides: list[_Side] = []
    for trace in traces:
        sides.append(_side(trace if isinstance(trace, Trace) else read_trace(trace), chip, sides))
    if len(sides) < 2:
        raise UsageError(f"{len(sides)} trace; ranks are compared from two on")
    sides.sort(key=lambda side: side.rank)
    return _report(sides)


def rank_files(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the traces in a folder, in the order of the numbers in their names.

    Raises:
        UsageError: There are none.
    """
    files = [path for path in Path(folder).iterdir() if path.name.endswith(_FILES)] if os.path.isdir(folder) else []
    if not files:
        raise UsageError(f"{os.fspath(folder)}: no folder with traces ({', '.join(_FILES)})")
    return sorted(files, key=lambda path: [part.zfill(20) for part in re.split(r"(\d+)", path.name)])


# --- one rank ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Call:
    """A collective of one rank.

    Attributes:
        name: Its name, or that of its kernel.
        group: What its process group is known by; of a pair, the two ranks as well.
        facts: What was recorded of it.
        order: Number among those of the group.
        step: Number of the step that the profiler marked, and its number in it; ``None`` where none is marked.
        sequence: Number that the process group gave it; -1 where not recorded.
        start: Since the first event of its trace [s].
        end: Likewise [s].
        exposed: Without a kernel beside it [s].
    """

    name: str
    group: tuple[Hashable, ...]
    facts: Mapping[str, Any]
    order: int
    step: tuple[int, int] | None
    sequence: int
    start: float
    end: float
    exposed: float

    @property
    def what(self) -> tuple[Any, ...]:
        """Return what is equal on all ranks; of a pair, each of which has another name and another tensor, little."""
        return tuple(self.facts.get(key) for key in (_EQUAL[-1:] if self.name in _PAIRED else _EQUAL))


@dataclass(frozen=True)
class _Side:
    """A rank whose trace was read: what is left of it; ``since`` is when its first event was by its own clock [ns]."""

    rank: int
    trace_says: bool
    world: int
    since: int
    report: TraceReport
    peak: int | None
    calls: tuple[_Call, ...]
    kernels: Spans


def _side(trace: Trace, chip: AnyChip | None, before: Sequence[_Side]) -> _Side:
    taken = {side.rank: side.report.source for side in before}
    rank = trace.rank if trace.rank >= 0 else next(n for n in range(len(before) + 1) if n not in taken)
    if rank in taken:
        raise UsageError(
            f"{taken[rank]} and {trace.path} are both of rank {rank}; --diff compares two traces of one rank "
            "(rl.diagnosis.compare_traces in Python)"
        )
    report, run = report_and_run(trace, chip)
    ran = [one for one in run.launches if one.role in ("kernel", "layout", "communication")]
    return _Side(
        rank=rank,
        trace_says=trace.rank >= 0,
        world=trace.world,
        since=trace.origin,
        report=replace(report, memory=None, kernels=KernelTable(report.source, ())),
        peak=report.memory.peak if report.memory is not None else None,
        calls=tuple(_calls(run, ran, rank)),
        kernels=cover((one.start, one.end) for one in ran if one.role != "communication"),
    )


def _calls(run: Run, ran: Sequence[Launch], rank: int) -> Iterator[_Call]:
    """Yield the collectives of a rank in the order in which it issued them."""
    events, marks = run.trace.events, _marks(run)
    starts = [start for start, _ in marks]
    counts: Counter[Hashable] = Counter()
    spoken = [
        (launch, part) for launch, part in zip(ran, on_device(ran), strict=True) if launch.role == "communication"
    ]
    for launch, exposed in sorted(spoken, key=lambda pair: _issued(pair[0])):
        facts = _facts(run, launch)
        name = str(facts.get(_NAME) or short(launch.name))
        group = _group(name, facts, rank)
        at = bisect_right(starts, _issued(launch)) - 1
        number = marks[at][1] if at >= 0 else -1
        external = int(events.external[launch.call]) if launch.call >= 0 else -1
        yield _Call(
            name=name,
            group=group,
            facts=facts,
            order=counts[group],
            step=(number, counts[group, number]) if marks else None,
            sequence=-1 if name in _PAIRED else run.trace.sequence.get(external, -1),
            start=launch.start,
            end=launch.end,
            exposed=exposed,
        )
        counts.update((group, (group, number)))


def _issued(launch: Launch) -> float:
    return launch.start if launch.issued != launch.issued else launch.issued


def _facts(run: Run, launch: Launch) -> Mapping[str, Any]:
    """Return what was recorded of a collective, at its kernel or at the operator that launched it."""
    events = run.trace.events
    numbers = (launch.detail, int(events.detail[launch.call]) if launch.call >= 0 else -1)
    records = (events.details[number] for number in numbers if number >= 0)
    return next((record for record in records if _NAME in record), {})


def _group(name: str, facts: Mapping[str, Any], rank: int) -> tuple[Hashable, ...]:
    group = (facts.get(_GROUP, ""), facts.get(_RANKS, "")) if facts else (name, "")
    if name not in _PAIRED:
        return group
    other = facts.get(_PAIRED[name], -1)
    return (*group, (rank, other) if name == "send" else (other, rank))


def _marks(run: Run) -> list[tuple[float, int]]:
    """Return when each step that the profiler marked began, and its number."""
    events = run.trace.events
    rows = np.flatnonzero((events.kind == Kind.ANNOTATION) & (events.device < 0))
    names = ((float(events.start[row]), events.names[events.name[row]]) for row in rows)
    return sorted((start, int(name[len(STEP) :])) for start, name in names
                  if name.startswith(STEP) and name[len(STEP) :].isdecimal())  # fmt: skip


# --- all of them ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Meeting:
    """One collective on all ranks; positions of ranks are those among the sides.

    Attributes:
        calls: That of each rank.
        starts: Of each, by the clock of the first rank [s].
        waits: Before the last rank had come [s].
        exposed: Of that, without a kernel beside it [s].
        end: Its end on the rank in the middle [s].
        last: Position of the rank that came last; -1 where the clocks do not tell.
    """

    calls: Mapping[int, _Call]
    starts: Mapping[int, float]
    waits: Mapping[int, float]
    exposed: Mapping[int, float]
    end: float
    last: int

    @property
    def arrivals(self) -> list[float]:
        """Return the starts in order [s]."""
        return sorted(self.starts.values())

    @property
    def late(self) -> float:
        """Return the time between the last two to come [s]."""
        return self.arrivals[-1] - self.arrivals[-2]


def _report(sides: Sequence[_Side]) -> RanksReport:
    matches, notes = _matches(sides)
    clocks = _clocks(sides, matches)
    meetings = [_meeting(sides, clocks, calls) for calls in matches]
    ranks = tuple(_rank(at, side, clocks, meetings) for at, side in enumerate(sides))
    rows = sorted(_rows(sides, meetings), key=lambda row: -row.calls * (row.wait_s + row.exposed_s))
    return RanksReport(ranks, tuple(rows), tuple(side.report for side in sides), (*_notes(sides, clocks), *notes))


def _matches(sides: Sequence[_Side]) -> tuple[list[dict[int, _Call]], list[str]]:
    """Put the collectives of all ranks together; what has no counterpart is left out and said."""
    every = [call for side in sides for call in side.calls]
    by_sequence = all(call.sequence >= 0 for call in every if call.name not in _PAIRED)
    by_step = all(call.step is not None for call in every)
    together: dict[Hashable, dict[int, _Call]] = defaultdict(dict)
    for at, side in enumerate(sides):
        seen: Counter[Hashable] = Counter()
        for call in side.calls:
            place = call.sequence if by_sequence and call.sequence >= 0 else call.step if by_step else call.order
            key = call.group, place, seen[call.group, place]
            seen[call.group, place] += 1
            together[key][at] = call
    matches = [
        calls for calls in together.values() if len(calls) > 1 and len({call.what for call in calls.values()}) == 1
    ]
    matched = sum(map(len, matches))
    notes = [f"{len(every) - matched} of {len(every)} collectives have no counterpart on another rank"]
    bare = [call for call in every if not call.facts]
    unnamed = [f"{len(bare)} collectives are known by their kernel only, and matched by its name and order"]
    return matches, [*(notes if matched < len(every) else ()), *(unnamed if bare else ())]


@dataclass(frozen=True)
class _Clock:
    """A clock against that of the first rank; fields as of :class:`Rank`, and when its trace begins by itself [s]."""

    offset: float
    drift: float
    spread: float
    begin: float = 0.0

    def common(self, time: float) -> float:
        """Return a time of its trace by the clock of the first rank [s]."""
        return (self.begin + time - self.offset) / (1 + self.drift)

    def after(self, other: _Clock) -> _Clock:
        """Return the clock against the first rank, where this is against another rank's, which is known."""
        return _Clock(self.offset + other.offset, self.drift + other.drift, self.spread + other.spread)


def _clocks(sides: Sequence[_Side], matches: Sequence[Mapping[int, _Call]]) -> list[_Clock]:
    """Tell the clocks apart by the ends of collectives, which all ranks see at nearly the same moment.

    Ranks that share none with the first one are reached over others; one that is not is taken as recorded.
    """
    first = min(side.since for side in sides)
    begins = [(side.since - first) * 1e-9 for side in sides]
    apart: dict[int, dict[int, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    usable = [calls for calls in matches if not any(_ROOTED.match(call.name) for call in calls.values())] or matches
    for calls in usable:
        (one, call), *others = sorted(calls.items())
        for other, its in others:
            end, ahead = call.end + begins[one], its.end + begins[other] - call.end - begins[one]
            apart[one][other].append((end, ahead))
            apart[other][one].append((end, -ahead))
    known = {0: _Clock(0.0, 0.0, 0.0)}
    queue = [0]
    for at in queue:
        for other, ends in sorted(apart[at].items()):
            if other not in known:
                known[other] = _clock(sorted(ends)).after(known[at])
                queue.append(other)
    unset = _Clock(0.0, 0.0, float("nan"))
    return [replace(known.get(at, unset), begin=begin) for at, begin in enumerate(begins)]


def _clock(ends: Sequence[tuple[float, float]]) -> _Clock:
    """Return the line through differences of ends by their medians; level where both halves differ by noise only.

    Args:
        ends: Time and difference of each collective, in order [s].
    """
    level = median(ahead for _, ahead in ends)
    flat_ = _Clock(level, 0.0, median(abs(ahead - level) for _, ahead in ends))
    if len(ends) < DRIFTS:
        return flat_
    halves = ends[: len(ends) // 2], ends[len(ends) // 2 :]
    (start, low), (end, high) = ((median(t for t, _ in half), median(a for _, a in half)) for half in halves)
    drift = (high - low) / (end - start) if end > start else 0.0
    offset = median(ahead - drift * time for time, ahead in ends)
    spread = median(abs(ahead - offset - drift * time) for time, ahead in ends)
    return _Clock(offset, drift, spread) if abs(high - low) > SURE * spread else flat_


def _meeting(sides: Sequence[_Side], clocks: Sequence[_Clock], calls: Mapping[int, _Call]) -> _Meeting:
    starts = {at: clocks[at].common(call.start) for at, call in calls.items()}
    order = sorted(starts, key=lambda at: starts[at])
    last = starts[order[-1]]
    waits = {at: last - start for at, start in starts.items()}
    bare = {
        at: min(waits[at] - sides[at].kernels.within(call.start, call.start + waits[at]), call.exposed)
        for at, call in calls.items()
    }
    unsure = max(SURE * clocks[at].spread for at in order)
    sure = last - starts[order[-2]] > max(unsure, RESOLUTION) if unsure == unsure else False
    end = median(clocks[at].common(call.end) for at, call in calls.items())
    return _Meeting(calls, starts, waits, bare, end, order[-1] if sure else -1)


def _rank(at: int, side: _Side, clocks: Sequence[_Clock], meetings: Sequence[_Meeting]) -> Rank:
    report, count = side.report, side.report.iterations
    mine = [one for one in meetings if at in one.calls]
    last = [one for one in mine if one.last == at]
    return Rank(
        rank=side.rank,
        source=report.source,
        time_s=report.seconds,
        compute_s=report.busy if report.on_cpu else side.kernels.length / count,
        communication_s=report.communication.seconds,
        exposed_s=report.communication.exposed,
        idle_s=fsum(report.idle.values()),
        wait_s=fsum(one.waits[at] for one in mine) / count,
        late_s=fsum(one.late for one in last) / count,
        last=len(last) / len(mine) if mine else 0.0,
        clock_offset_s=clocks[at].offset,
        clock_drift=clocks[at].drift,
        clock_spread_s=clocks[at].spread,
        peak_bytes=side.peak,
    )


def _rows(sides: Sequence[_Side], meetings: Sequence[_Meeting]) -> Iterator[Collective]:
    """Yield the collectives by their place in an iteration, or by what they are where iterations differ."""
    counts = [Counter(call.group for call in side.calls) for side in sides]
    places: dict[tuple[tuple[Hashable, ...], int, str, tuple[Any, ...]], list[_Meeting]] = defaultdict(list)
    for meeting in meetings:
        call = next(iter(meeting.calls.values()))
        each = {counts[at][call.group] / sides[at].report.iterations for at in meeting.calls}
        number = each.pop()
        place = call.order % int(number) if not each and number.is_integer() else -1
        places[call.group, place, call.name, call.what].append(meeting)
    for (group, place, *_), same in places.items():
        yield _row(sides, str(group[0]), place, same)


def _row(sides: Sequence[_Side], group: str, place: int, same: Sequence[_Meeting]) -> Collective:
    calls = [call for one in same for call in one.calls.values()]
    first = calls[0]
    present = sorted({at for one in same for at in one.calls})
    last, often = Counter(one.last for one in same).most_common(1)[0]
    return Collective(
        collective=first.name,
        group=group if first.facts else "",
        ranks=tuple(sides[at].rank for at in present),
        order=place,
        calls=len(same) / sides[present[0]].report.iterations,
        elements=int(first.facts.get("In msg nelems", -1)),
        dtype=str(first.facts.get("dtype", "")),
        time_s=fmean(call.end - call.start for call in calls),
        wait_s=fmean(wait for one in same for wait in one.waits.values()),
        transfer_s=fmean(max(one.end - one.arrivals[-1], 0.0) for one in same),
        exposed_s=fmean(call.exposed for call in calls),
        exposed_wait_s=fmean(part for one in same for part in one.exposed.values()),
        spread_s=fmean(one.arrivals[-1] - one.arrivals[0] for one in same),
        late_s=fmean(one.late for one in same),
        last_rank=sides[last].rank if last >= 0 else -1,
        last=often / len(same) if last >= 0 else 0.0,
    )


def _notes(sides: Sequence[_Side], clocks: Sequence[_Clock]) -> Iterator[str]:
    """Say what a reader should know before believing the rest."""
    unnumbered = [side.rank for side in sides if not side.trace_says]
    if unnumbered:
        yield f"{len(unnumbered)} traces do not say their rank, and are numbered as they come"
    world = max(side.world for side in sides)
    if world > len(sides):
        yield f"{len(sides)} of {world} ranks are here: who comes last is known among these"
    counts = sorted({side.report.iterations for side in sides})
    if len(counts) > 1:
        yield f"ranks differ in their number of iterations ({', '.join(map(str, counts))}): all is per iteration"
    lonely = [str(side.rank) for side, clock in zip(sides, clocks, strict=True) if clock.spread != clock.spread]
    if lonely and any(side.calls for side in sides):
        yield f"no collective leads to rank {sides[0].rank}: the clocks of these are not set: {', '.join(lonely)}"
    if not any(side.calls for side in sides):
        yield "no collective ran on a device: nothing tells how far the clocks are apart, or who waited"
    for side in sides:
        if side.report.partial:
            yield f"partial: only a part of the trace of rank {side.rank} could be read"
    chips = dict.fromkeys(side.report.chip.name for side in sides if side.report.chip is not None)
    if len(chips) > 1:
        yield f"different chips: {', '.join(chips)}"
