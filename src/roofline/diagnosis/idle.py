"""Why the device waited, each gap between launches by what the host did in it; and what overlaps with kernels."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from roofline.diagnosis.causes import Fix
from roofline.diagnosis.reference import replays
from roofline.hardware.chip import Chip
from roofline.ir.units import format_si
from roofline.traces.events import DEVICE, Events, Kind, Trace
from roofline.traces.linking import Launch

#: A pause of the host between two operators that is longer is no dispatch any more [s].
PAUSE = 100e-6
#: An operator that launches nothing and takes longer computes on the CPU [s].
HEAVY = 100e-6
#: A launch that was issued no later than this after the device ran dry was on its way [s].
ON_ITS_WAY = 2e-6
#: A launch whose call has ended begins within this on a device that is idle: within 62 us in traces of an H100 [s].
LATENCY = 100e-6
#: For this many launches after a wait of the host, the device still runs dry because of it: the lead is not made up.
REACH = 16
#: No profiler tells times that are nearer: a gap of less is a rounding of sums [s].
RESOLUTION = 1e-10
#: Copies of fewer bytes are values that are read back, not data.
VALUE_BYTES = 64 * 1024

_SYNC = re.compile(r"(Stream|Device|Event|Context|Ctx)Synchronize|hipStreamWait$|^cu(da)?Memcpy$", re.I)
_LAUNCH = re.compile(r"^(cuda|hip|cu)\w*LaunchKernel|GraphLaunch")
_ALLOCATE = re.compile(
    r"^(cuda|hip)(Malloc|Free|HostAlloc|MallocHost|FreeHost)|^cuMem(Alloc|Free|Create|Map|Unmap)", re.I
)
_OVERHEAD = re.compile(
    r"Activity Buffer Request|ModuleLoad|LibraryLoad|Lazy Function|Kernel(Get|Set)|GetProcAddress", re.I
)
_COPYING = re.compile(r"aten::(copy_|to|_to_copy|cpu|cuda|pin_memory|_pin_memory|_local_scalar_dense|empty_strided)$")
#: Operators that only look at tensors or move them; all others that take long on the CPU compute there.
_LIGHT = re.compile(
    r"aten::(empty|view|reshape|as_strided|transpose|permute|expand|slice|select|split|t|unsqueeze|squeeze|detach|item"
    r"|is_nonzero|set_|resize_|result_type|lift|alias|unbind|chunk|narrow|record_stream|_local_scalar_dense)"
)


@dataclass(frozen=True)
class Idle:
    """What the device waited for in one iteration.

    Attributes:
        seconds: By label [s].
        heavy: Operators that computed on the CPU meanwhile, each with its time [s].
    """

    seconds: dict[str, float] = field(default_factory=dict)
    heavy: dict[str, float] = field(default_factory=dict)

    def scaled(self, to: float) -> Idle:
        """Return the same reasons for less idle time: a profiler slows the host down and not the device."""
        total = sum(self.seconds.values())
        if not total:
            return self
        factor = min(to / total, 1.0)
        seconds, heavy = ({key: part * factor for key, part in all_.items()} for all_ in (self.seconds, self.heavy))
        return Idle(seconds, heavy)

    def doubted(self, lost: float) -> Idle:
        """Return the same where something ran for some of it [s], nobody knows when: so much of it is not known."""
        total = sum(self.seconds.values())
        share = min(lost / total, 1.0) if total else 0.0
        left = self.scaled(total * (1 - share))
        unknown = left.seconds.get("unknown", 0.0) + total * share
        return Idle({**left.seconds, "unknown": unknown}, left.heavy) if share else self


@dataclass(frozen=True)
class Spans:
    """Disjoint intervals in order of start, for sums over a window."""

    start: NDArray[np.float64]
    end: NDArray[np.float64]

    @property
    def length(self) -> float:
        """Time that they cover in all [s]."""
        return float((self.end - self.start).sum())

    def within(self, low: float, high: float) -> float:
        """Return the time of the window that they cover [s]."""
        first = int(np.searchsorted(self.end, low))
        total = 0.0
        for at in range(first, len(self.start)):
            if self.start[at] >= high:
                break
            total += min(float(self.end[at]), high) - max(float(self.start[at]), low)
        return max(total, 0.0)

    def ends_in(self, low: float, high: float) -> bool:
        """Tell whether one of them ends in the window."""
        at = int(np.searchsorted(self.end, low))
        return at < len(self.end) and float(self.end[at]) <= high

    def pauses(self, low: float, high: float, least: float) -> float:
        """Return the time of the window in pauses between them that are at least this long [s]."""
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
    return cover(zip(events.start[rows].tolist(), (events.start + events.duration)[rows].tolist(), strict=True))


def cover(intervals: Iterable[tuple[float, float]]) -> Spans:
    """Return disjoint intervals that cover the given ones."""
    starts: list[float] = []
    ends: list[float] = []
    for start, end in sorted(intervals):
        if ends and start <= ends[-1] + RESOLUTION:
            ends[-1] = max(ends[-1], end)
        else:
            starts.append(start)
            ends.append(end)
    return Spans(np.array(starts), np.array(ends))


@dataclass(frozen=True)
class Host:
    """What the host did, by kind; ``names`` are those of ``heavy``, in order; ``recorded`` is which kinds there are."""

    busy: Spans
    sync: Spans
    allocating: Spans
    overhead: Spans
    heavy: Spans
    names: tuple[str, ...]
    recorded: frozenset[str]


def host(trace: Trace, launches: Sequence[Launch]) -> Host:
    """Sort the host's events, those of all threads that launch or compute."""
    events = trace.events
    ops, calls = events.kind == Kind.OP, events.kind == Kind.RUNTIME

    def named(pattern: re.Pattern[str], kinds: NDArray[np.bool_]) -> Spans:
        matches = np.array([bool(pattern.search(name)) for name in events.names] or [False])
        return _spans(events, np.flatnonzero(kinds & matches[events.name]))

    rows = heavy_operators(trace, launches)
    return Host(
        busy=_spans(events, np.flatnonzero(ops | calls)),
        sync=named(_SYNC, calls),
        allocating=named(_ALLOCATE, calls),
        overhead=named(_OVERHEAD, calls | (events.kind == Kind.OTHER)),
        heavy=Spans(events.start[rows], (events.start + events.duration)[rows]),
        names=tuple(events.names[at] for at in events.name[rows]),
        recorded=frozenset({"operators"} if ops.any() else ()),
    )


def launch_calls(events: Events) -> NDArray[np.float64]:
    """Return when the host launched kernels, whether or not these are linked to their launches [s]."""
    named = np.array([bool(_LAUNCH.search(name)) for name in events.names] or [False])
    return np.asarray(events.start[(events.kind == Kind.RUNTIME) & named[events.name]])


def heavy_operators(trace: Trace, launches: Sequence[Launch]) -> NDArray[np.intp]:
    """Find operators that take long without a launch inside: they compute on the CPU; of nested ones the outer.

    None is claimed where no launch was recorded on the host: any of them may have launched something.
    """
    events = trace.events
    linked = [one.issued for one in launches if one.issued == one.issued]
    issued = np.sort(np.concatenate([launch_calls(events), linked]))
    if not len(issued):
        return np.array([], dtype=np.intp)
    rows = np.flatnonzero((events.kind == Kind.OP) & (events.duration >= HEAVY))
    rows = rows[np.argsort(events.start[rows], kind="stable")]
    outer, end = [], -1.0
    for at in rows.tolist():
        start, stop = float(events.start[at]), float(events.start[at] + events.duration[at])
        launched = np.searchsorted(issued, start) != np.searchsorted(issued, stop)
        name = events.names[events.name[at]]
        if launched or start < end or _LIGHT.match(name) or _COPYING.match(name):
            continue
        outer.append(at)
        end = stop
    return np.array(outer, dtype=np.intp)


def idle_time(trace: Trace, launches: Sequence[Launch], firsts: Sequence[int]) -> Idle:
    """Split the time between launches, of all iterations, by its reason.

    The gap in front of an iteration is seen once less often than there are iterations, and counts accordingly more.

    Args:
        trace: The file.
        launches: What ran, of whole iterations.
        firsts: Position of the first launch of each iteration.
    """
    did = host(trace, launches)
    total: dict[str, float] = defaultdict(float)
    computed: dict[str, float] = defaultdict(float)
    count = len(firsts)
    starts = frozenset(firsts[1:])
    end = launches[0].start
    if count == 1:  # the host began to work towards the first launch before
        ops = (trace.events.kind == Kind.OP) & (trace.events.start <= end)
        end = float(trace.events.start[ops].min(initial=end))
    before: Launch | None = None
    waited = -REACH
    for at, launch in enumerate(launches):
        if launch.start > end + RESOLUTION:
            weight = count / (count - 1) if at in starts else 1.0
            issued = _issued(launch, end)
            # The host waited for the device before it launched more.
            if did.sync.ends_in(end - ON_ITS_WAY, issued) or _moves(before, "copy_out", value=True):
                waited = at
            parts = _reasons(did, before, launch, end, "sync" if at - waited < REACH else "launch_bound")
            if at not in starts and _moves(before, "copy_out") and launch.role == "copy_in":
                # Data went to the host before the gap, and what was made of it came back after.
                parts["wrong_device"] = parts.pop("host_bound", 0.0) + parts.pop("host_compute", 0.0)
            parts = _shown(parts, did.recorded | ({"launch"} if launch.issued == launch.issued else set()))
            if parts.get("host_compute"):
                for name, part in _computing(did, end, issued):
                    computed[name] += part * weight
            for label, part in parts.items():
                total[label] += part * weight
        if launch.end > end:
            end, before = launch.end, launch
    seconds = {label: value / count for label, value in total.items() if value > 0}
    return Idle(seconds, {name: value / count for name, value in computed.items()})


#: The records that could show each reason of a gap: the call that launched what ended it, operators of the host. A
#: gap that they are not recorded of is idle for an unknown reason.
SHOWN_BY = {
    "launch_bound": frozenset({"launch"}), "sync": frozenset({"launch"}), "host_copy": frozenset({"launch"}),
    "reallocation": frozenset({"launch"}), "host_bound": frozenset({"launch", "operators"}),
    "host_compute": frozenset({"launch", "operators"}), "wrong_device": frozenset({"launch", "operators"}),
    "unknown": frozenset(),
}  # fmt: skip

#: What was seen, by label.
EVIDENCE = {
    "unknown": "idle, and nothing recorded shows what the device waited for",
    "launch_bound": "the host was still launching when the device had finished",
    "sync": "the host waited for the device before it launched more",
    "host_bound": "the host did something else between operators",
    "wrong_device": "data was copied to the host, computed on there, and copied back",
    "host_compute": "operators computed on the CPU",
    "host_copy": "the host was busy copying",
    "reallocation": "the host allocated or freed device memory",
}


def _reasons(did: Host, before: Launch | None, after: Launch, low: float, else_: str) -> dict[str, float]:
    """Split one gap by label [s]; what the profiler itself took is left out."""
    issued = _issued(after, low)
    # What was launched long ago waits for something else, such as another stream.
    called = did.busy.within(issued, after.start) - did.sync.within(issued, after.start)
    waited = max(after.start - issued - called - LATENCY, 0.0)
    gap = after.start - low - waited
    if issued - low <= ON_ITS_WAY:
        return {"launch_bound": gap, "unknown": waited}
    parts = {
        "reallocation": did.allocating.within(low, issued),
        "host_compute": did.heavy.within(low, issued),
        "host_bound": did.busy.pauses(low, issued, PAUSE),
    }
    rest = max(gap - sum((did.overhead.within(low, after.start), *parts.values())), 0.0)
    copied = any(_moves(launch, "copy_in", "copy_out") for launch in (before, after))
    return {**parts, "unknown": waited, "host_copy" if copied else else_: rest}


def _shown(parts: dict[str, float], recorded: Set[str]) -> dict[str, float]:
    """Return the reasons that the records of a gap could show; what is left is of an unknown one."""
    shown = {label: seconds for label, seconds in parts.items() if recorded >= SHOWN_BY[label]}
    rest = sum(parts.values()) - sum(shown.values())
    return {**shown, "unknown": shown.get("unknown", 0.0) + rest} if rest > 0 else shown


def _issued(after: Launch, low: float) -> float:
    """Return when the host launched what ended a gap, at the earliest when the gap began [s]."""
    return after.start if after.issued != after.issued else min(max(after.issued, low), after.start)


def _computing(did: Host, low: float, high: float) -> Iterator[tuple[str, float]]:
    """Name the operators that computed on the CPU in a window, each with its time in it [s]."""
    for at in range(int(np.searchsorted(did.heavy.end, low)), int(np.searchsorted(did.heavy.start, high))):
        yield did.names[at], float(min(did.heavy.end[at], high) - max(did.heavy.start[at], low))


def _moves(launch: Launch | None, *roles: str, value: bool = False) -> bool:
    """Tell whether a launch copies data over the host link, or only a ``value`` that is read back."""
    return launch is not None and launch.role in roles and (launch.bytes < VALUE_BYTES) == value


# --- what was not recorded --------------------------------------------------------------------------------------------

#: What to do about time that a trace with all records does not explain.
TRACED_UNKNOWN = Fix("compare the measured time with the trace's own: is it of the same run?",
                     "roofline trace FILE", "rl.diagnosis.trace_report(FILE)")  # fmt: skip
#: What may not have been recorded, and how it is.
_GPU = " (torch.profiler with ProfilerActivity.CUDA)"
_HOST = "the calls of the host (torch.profiler with ProfilerActivity.CPU)"
_SHAPES = "shapes (torch.profiler with record_shapes=True)"


def without_host(trace: Trace) -> list[str]:
    """Return a note where no call of the host was recorded that could show why a device waits."""
    kinds = set(trace.events.kind.tolist())
    lacks = trace.timed and not kinds.isdisjoint(DEVICE) and Kind.RUNTIME not in kinds
    return [f"idle time is of unknown origin: record {_HOST}, which show why the device waits"] if lacks else []


def unknown_fix(trace: Trace, chip: Chip | None = None) -> Fix:
    """Return what to do about time that a trace does not explain: record what it lacks.

    Args:
        trace: The file.
        chip: The device that should have worked, ``None`` where none should.
    """
    shapeless = bool((trace.events.kind == Kind.OP).any()) and not trace.events.signatures
    idle_device = chip is not None and not np.isin(trace.events.kind, DEVICE).any()
    device = f"the device{_GPU if chip is not None and replays(chip) else ''}"
    checks = ((device, idle_device), (_HOST, bool(without_host(trace))), (_SHAPES, shapeless))
    lacking = [what for what, lacks in checks if lacks]
    return Fix(f"record {' and '.join(lacking)} as well") if lacking else TRACED_UNKNOWN


# --- what overlaps with kernels ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Overlap:
    """Launches that may run at the same time as kernels: collectives or copies.

    Attributes:
        seconds: In all [s].
        exposed: While no kernel ran [s].
        overlapped: While one ran [s].
    """

    seconds: float
    exposed: float
    overlapped: float

    def record(self) -> dict[str, float]:
        """Return those times by stable keys."""
        return {"time_s": self.seconds, "exposed_s": self.exposed, "overlapped_s": self.overlapped}

    def __str__(self) -> str:
        whole, exposed, hidden = (format_si(part, "s") for part in (self.seconds, self.exposed, self.overlapped))
        return f"{whole}: {exposed} exposed, {hidden} overlapped" if self.seconds else ""


def overlap(ran: Sequence[Launch], count: int, *roles: str) -> Overlap:
    """Measure how much of some launches kernels cover, per iteration."""
    kernels = cover((one.start, one.end) for one in ran if one.role == "kernel")
    others = cover((one.start, one.end) for one in ran if one.role in roles)
    total = others.length
    pairs = zip(others.start.tolist(), others.end.tolist(), strict=True)
    overlapped = sum(kernels.within(low, high) for low, high in pairs)
    return Overlap(total / count, (total - overlapped) / count, overlapped / count)


def heavy_on_host(trace: Trace, ran: Sequence[Launch], count: int) -> tuple[tuple[str, float, float], ...]:
    """List operators that computed on the CPU beside a device: name, calls and time per iteration, most first."""
    since = min((one.issued for one in ran if one.issued == one.issued), default=ran[0].start)
    events = trace.events
    times: dict[str, list[float]] = defaultdict(list)
    for at in heavy_operators(trace, ran):
        if events.start[at] + events.duration[at] >= since or count == 1:
            times[events.names[events.name[at]]].append(float(events.duration[at]))
    rows = ((name, len(each) / count, sum(each) / count) for name, each in times.items())
    return tuple(sorted(rows, key=lambda row: -row[2]))
