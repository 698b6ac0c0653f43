"""Why the device waited: each gap between launches by what the host did in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roofline.diagnosis.groups import role
from roofline.traces.events import Events, Kind, Trace
from roofline.traces.link import Launch

#: A pause of the host between two operators that is longer is no dispatch any more [s].
PAUSE = 100e-6
#: An operator that launches nothing and takes longer computes on the processor [s].
HEAVY = 100e-6
#: A launch that was issued no later than this after the device ran dry was on its way [s].
ON_ITS_WAY = 2e-6
#: So many launches after a wait of the host, the device still runs dry because of it: the lead is not made up.
REACH = 16
#: Copies of fewer bytes are values that are read back, not data.
VALUE_BYTES = 64 * 1024

_SYNC = re.compile(r"(Stream|Device|Event|Context|Ctx)Synchronize|hipStreamWait$|^cu(da)?Memcpy$", re.I)
_ALLOCATE = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|MallocHost|FreeHost)|^cuMem(Alloc|Free|Create|Map|Unmap)", re.I
)
_OVERHEAD = re.compile(
    r"Activity Buffer Request|ModuleLoad|LibraryLoad|Lazy Function|Kernel(Get|Set)|GetProcAddress", re.I
)
_COPYING = re.compile(r"aten::(copy_|to|_to_copy|cpu|cuda|pin_memory|_pin_memory|_local_scalar_dense|empty_strided)$")
#: Operators that only look at tensors or move them; all others that take long on the processor compute there.
_LIGHT = re.compile(
    r"aten::(empty|view|reshape|as_strided|transpose|permute|expand|slice|select|split|t|unsqueeze|squeeze|detach|item"
    r"|is_nonzero|set_|resize_|result_type|lift|alias|unbind|chunk|narrow|record_stream|_local_scalar_dense)"
)


@dataclass(frozen=True)
class Idle:
    """What the device waited for in one iteration.

    Attributes:
        seconds: By label [s].
        evidence: By label, what was seen.
        heavy: Operators that computed on the processor meanwhile, each with its time [s].
    """

    seconds: dict[str, float]
    evidence: dict[str, str]
    heavy: dict[str, float]


@dataclass(frozen=True)
class Spans:
    """Intervals of the host in order of start, for sums over a window."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]

    def within(self, low: float, high: float) -> float:
        """Time of the window that they cover [s]."""
        first = int(np.searchsorted(self.end, low))
        total = 0.0
        for at in range(first, len(self.start)):
            if self.start[at] >= high:
                break
            total += min(float(self.end[at]), high) - max(float(self.start[at]), low)
        return max(total, 0.0)

    def ends_in(self, low: float, high: float) -> bool:
        """Whether one of them ends in the window."""
        at = int(np.searchsorted(self.end, low))
        return at < len(self.end) and float(self.end[at]) <= high

    def pauses(self, low: float, high: float, least: float) -> float:
        """Time of the window in pauses between them that are at least so long [s]."""
        first = int(np.searchsorted(self.end, low))
        total, at = 0.0, low
        for index in range(first, len(self.start) + 1):
            until = min(float(self.start[index]), high) if index < len(self.start) else high
            if until - at >= least:
                total += until - at
            if index == len(self.start) or self.start[index] >= high:
                break
            at = max(at, float(self.end[index]))
        return total


def _spans(events: Events, rows: NDArray[np.intp]) -> Spans:
    """Disjoint intervals that cover the given events."""
    return cover(zip(events.start[rows].tolist(), (events.start + events.duration)[rows].tolist(), strict=True))


def cover(intervals: Iterable[tuple[float, float]]) -> Spans:
    """Disjoint intervals that cover the given ones."""
    starts: list[float] = []
    ends: list[float] = []
    for start, end in sorted(intervals):
        if ends and start <= ends[-1]:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return Spans(np.array(starts), np.array(ends))


def length(spans: Spans) -> float:
    """Time that they cover in all [s]."""
    return float((spans.end - spans.start).sum())


@dataclass(frozen=True)
class Host:
    """What the host did, by kind; ``names`` are those of ``heavy``, in order."""

    busy: Spans
    sync: Spans
    allocating: Spans
    overhead: Spans
    heavy: Spans
    names: tuple[str, ...]


def host(trace: Trace, launches: Sequence[Launch]) -> Host:
    """Sort the host's events, those of all threads that launch or compute."""
    events = trace.events
    ops, calls = events.kind == Kind.OP, events.kind == Kind.RUNTIME

    def named(pattern: re.Pattern[str], kinds: NDArray[np.bool_]) -> NDArray[np.intp]:
        wanted = np.array([bool(pattern.search(name)) for name in events.names] or [False])
        return np.flatnonzero(kinds & wanted[events.name])

    rows = heavy(trace, launches)
    return Host(
        busy=_spans(events, np.flatnonzero(ops | calls)),
        sync=_spans(events, named(_SYNC, calls)),
        allocating=_spans(events, named(_ALLOCATE, calls)),
        overhead=_spans(events, named(_OVERHEAD, calls | (events.kind == Kind.OTHER))),
        heavy=Spans(events.start[rows], (events.start + events.duration)[rows]),
        names=tuple(events.names[at] for at in events.name[rows]),
    )


def heavy(trace: Trace, launches: Sequence[Launch]) -> NDArray[np.intp]:
    """Operators that take long without a launch inside: they compute on the processor; of nested ones the outer."""
    events = trace.events
    issued = np.sort(np.array([one.issued for one in launches if one.issued == one.issued]))
    rows = np.flatnonzero((events.kind == Kind.OP) & (events.duration >= HEAVY))
    rows = rows[np.argsort(events.start[rows], kind="stable")]
    kept, end = [], -1.0
    for at in rows.tolist():
        start, stop = float(events.start[at]), float(events.start[at] + events.duration[at])
        launched = len(issued) and np.searchsorted(issued, start) != np.searchsorted(issued, stop)
        name = events.names[events.name[at]]
        if launched or start < end or _LIGHT.match(name) or _COPYING.match(name):
            continue
        kept.append(at)
        end = stop
    return np.array(kept, dtype=np.intp)


def idle(trace: Trace, launches: Sequence[Launch], firsts: Sequence[int]) -> Idle:
    """Split the time between launches, of all iterations, by its reason.

    The gap in front of an iteration is seen once less often than there are iterations, and counts accordingly more.
    """
    did = host(trace, launches)
    total: dict[str, float] = {}
    computed: dict[str, float] = {}
    count = len(firsts)
    starts = frozenset(firsts[1:])
    end = launches[0].start if count > 1 else _begin(trace, launches[0])
    before: Launch | None = None
    waited = -REACH
    for at, launch in enumerate(launches):
        if launch.start > end:
            weight = count / (count - 1) if at in starts else 1.0
            if _waited(did, before, launch, end):
                waited = at
            parts = _reasons(did, before, launch, end, "sync" if at - waited < REACH else "launch_bound")
            if at not in starts and _away(before, launch):
                parts["wrong_device"] = parts.pop("host_bound", 0.0) + parts.pop("host_compute", 0.0)
            for name, part in _computing(did, end, _issued(launch, end)) if parts.get("host_compute") else ():
                computed[name] = computed.get(name, 0.0) + part * weight
            for label, part in parts.items():
                total[label] = total.get(label, 0.0) + part * weight
        if launch.end > end:
            end, before = launch.end, launch
    seconds = {label: value / count for label, value in total.items() if value > 0}
    return Idle(seconds, {label: _EVIDENCE[label] for label in seconds}, {k: v / count for k, v in computed.items()})


def _begin(trace: Trace, first: Launch) -> float:
    """When the host began to work towards the first launch."""
    events = trace.events
    rows = np.flatnonzero((events.kind == Kind.OP) & (events.start <= first.start))
    return float(events.start[rows].min()) if len(rows) else first.start


#: What was seen, by label.
_EVIDENCE = {
    "launch_bound": "the host was still launching when the device had finished",
    "sync": "the host waited for the device before it launched more",
    "host_bound": "the host did something else between operators",
    "wrong_device": "data was copied to the host, computed on there, and copied back",
    "host_compute": "operators computed on the processor",
    "host_copy": "the host was busy copying",
    "reallocation": "the host allocated or freed device memory",
}


def _reasons(did: Host, before: Launch | None, after: Launch, low: float, else_: str) -> dict[str, float]:
    """Parts of one gap by label [s]; what the profiler itself took is left out."""
    gap, issued = after.start - low, _issued(after, low)
    if issued - low <= ON_ITS_WAY:
        return {"launch_bound": gap}
    found: dict[str, float] = {"profiler": did.overhead.within(low, after.start)}
    found["reallocation"] = did.allocating.within(low, issued)
    found["host_compute"] = did.heavy.within(low, issued)
    found["host_bound"] = did.busy.pauses(low, issued, PAUSE)
    rest = max(gap - sum(found.values()), 0.0)
    found["host_copy" if _copied(before) or _copied(after) else else_] = rest
    found.pop("profiler")
    return found


def _issued(after: Launch, low: float) -> float:
    """When the host launched what ended a gap, at the earliest when the gap began [s]."""
    return after.start if after.issued != after.issued else min(max(after.issued, low), after.start)


def _computing(did: Host, low: float, high: float) -> Iterator[tuple[str, float]]:
    """Operators that computed on the processor in a window, each with its time in it [s]."""
    for at in range(int(np.searchsorted(did.heavy.end, low)), int(np.searchsorted(did.heavy.start, high))):
        yield did.names[at], float(min(did.heavy.end[at], high) - max(did.heavy.start[at], low))


def _waited(did: Host, before: Launch | None, after: Launch, low: float) -> bool:
    """Whether the host waited for the device before it launched more."""
    return did.sync.ends_in(low - ON_ITS_WAY, _issued(after, low)) or _read_back(before)


def _copied(launch: Launch | None) -> bool:
    """Whether a launch moves data over the host link."""
    return launch is not None and role(launch) in ("copy_in", "copy_out") and not _small(launch)


def _away(before: Launch | None, after: Launch) -> bool:
    """Whether data went to the host before a gap, and what was made of it came back after."""
    out = before is not None and role(before) == "copy_out" and not _small(before)
    return out and role(after) == "copy_in"


def _read_back(launch: Launch | None) -> bool:
    return launch is not None and role(launch) == "copy_out" and _small(launch)


def _small(launch: Launch) -> bool:
    return launch.bytes == launch.bytes and launch.bytes < VALUE_BYTES
