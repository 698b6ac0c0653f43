"""Events that a profiler recorded, in columns: one row per event, whatever wrote the file."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import IntEnum
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.traces.memory import Allocations
from roofline.traces.repair import DAY, NANOSECONDS, ROUNDED, Repairs, implausible, overruns, repeated, too_long


class Kind(IntEnum):
    """What an event is."""

    OP = 0  # an operator of the framework on the host (cpu_op)
    ANNOTATION = 1  # a range that the user or the profiler named, on the host
    RUNTIME = 2  # a call of the runtime or the driver (launch, copy, synchronise)
    PYTHON = 3  # a Python frame
    KERNEL = 4  # on the device
    MEMCPY = 5  # on the device
    MEMSET = 6  # on the device
    OTHER = 7


#: What a kind is called in notes.
WORDS = {
    Kind.OP: "operator", Kind.ANNOTATION: "annotation", Kind.RUNTIME: "runtime call", Kind.PYTHON: "Python frame",
    Kind.KERNEL: "kernel", Kind.MEMCPY: "copy", Kind.MEMSET: "memset", Kind.OTHER: "event",
}  # fmt: skip
#: Kinds that occupy a device.
DEVICE = (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET)
NAN = float("nan")


@dataclass(frozen=True, slots=True)
class Signature:
    """Recorded arguments of an operator, one entry per argument.

    Attributes:
        dims: Shape of a tensor; ``()`` of a scalar or of nothing; a tuple of shapes for a list of tensors.
        types: Such as ``float``, ``c10::BFloat16``, ``Scalar``, ``TensorList``; empty where none was given.
        strides: Of each tensor, in elements; empty where they were not recorded.
        concrete: Values of arguments that are no tensors, as text; empty where they were not recorded.
    """

    dims: tuple[Any, ...] = ()
    types: tuple[str, ...] = ()
    strides: tuple[Any, ...] = ()
    concrete: tuple[str, ...] = ()


@dataclass(frozen=True)
class Events:
    """All events of a file that have a duration, sorted by start; absent whole numbers are -1, absent bytes are nan.

    Attributes:
        kind: A :class:`Kind` each.
        name: Position in ``names``.
        start: Since the first event of the file [s].
        duration: [s].
        process: Of the host, or the number that the profiler gave the device.
        thread: Of the host, or the stream.
        external: Ties device events and runtime calls to the operator that caused them.
        correlation: Ties device events to the runtime call that launched them.
        device: Number of the device.
        stream: Of the device.
        bytes: Moved by a copy or set by a memset [B].
        count: Events that the row stands for, above 1 in files that hold sums (their ``duration`` is the sum).
        signature: Position in ``signatures``.
        detail: Position in ``details``.
        names: Texts.
        signatures: Recorded arguments of operators.
        details: What else was recorded and may help, such as ``grid``, ``block``, ``Collective name``, counters.
    """

    kind: NDArray[np.uint8]
    name: NDArray[np.int32]
    start: NDArray[np.float64]
    duration: NDArray[np.float64]
    process: NDArray[np.int64]
    thread: NDArray[np.int64]
    external: NDArray[np.int64]
    correlation: NDArray[np.int64]
    device: NDArray[np.int32]
    stream: NDArray[np.int64]
    bytes: NDArray[np.float64]
    count: NDArray[np.int64]
    signature: NDArray[np.int32]
    detail: NDArray[np.int32]
    names: tuple[str, ...]
    signatures: tuple[Signature, ...]
    details: tuple[Mapping[str, Any], ...]

    def __len__(self) -> int:
        return len(self.kind)


@dataclass(frozen=True)
class Trace:
    """A profiler's file.

    From :func:`roofline.traces.read_trace`.

    Attributes:
        path: Where it was read from.
        format: ``torch``, ``nsys-trace``, ``nsys-sum``, ``ncu``, ``tt-perf`` or ``table``.
        events: What it holds.
        devices: Name of each device by its number, as the profiler spells it.
        timed: Whether starts are real, so that gaps mean something; sums and counters have none.
        notes: What was repaired, skipped or is missing, a sentence each.
        partial: Whether the file was cut, so that only a part of it was read.
        processes: Name of each process by its number, where the file gives one.
        threads: Name of each thread by process and thread, where the file gives one.
        lost: Time of device events that were left out since they have no usable start; the device seems idle then [s].
        rank: Of the process among those of its program; -1 where the file does not say.
        world: How many processes that program has, likewise.
        origin: When its first event began, by the clock of its host [ns].
        sequence: Number of a collective in its process group by the external id of its operator, where recorded.
        memory: What allocators gave and took back, where that was recorded.
    """

    path: str
    format: str
    events: Events
    devices: Mapping[int, str] = field(default_factory=dict)
    timed: bool = True
    notes: tuple[str, ...] = ()
    partial: bool = False
    processes: Mapping[int, str] = field(default_factory=dict)
    threads: Mapping[tuple[int, int], str] = field(default_factory=dict)
    lost: float = 0.0
    rank: int = -1
    world: int = -1
    origin: int = 0
    sequence: Mapping[int, int] = field(default_factory=dict)
    memory: Allocations | None = None


# --- while they are read ----------------------------------------------------------------------------------------------

#: Columns in the order of :meth:`Recorder.add`, each with its code of :mod:`array`, which is one of numpy too. Starts
#: are in whole microseconds and the rest, since those of a clock that began in 1970 have more digits than a float.
_COLUMNS = {
    "kind": "B", "name": "i", "whole": "q", "start": "d", "duration": "d", "process": "q", "thread": "q",
    "external": "q", "correlation": "q", "device": "i", "stream": "q", "bytes": "d", "count": "q", "signature": "i",
    "detail": "i",
}  # fmt: skip
_MICRO = 1e-6
#: What may differ between two records of one event: sizes may be nan, which equals nothing.
_LESS = ("bytes", "count", "signature", "detail")

#: More events than any run that somebody looks at; the rest of a larger file is left out.
MAX_EVENTS = 2_000_000
#: Room for distinct names, arguments and other records [B], by what each takes at least and by its text.
MAX_ROOM = 2**31
_NAME_ROOM, _RECORD_ROOM = 150, 1500
#: No size of a tensor, and no number of elements, is larger; no more axes; no more tensors in a list.
_SIZE, _ELEMENTS, _AXES = 2**48, 2**62, 64


class Interned(dict[Hashable, int]):
    """The number of each distinct key, in the order in which they came."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = number = len(self)
        return number


class Recorder:
    """Collects events row by row in compact columns; texts and records are kept once each.

    Attributes:
        columns: An array per column.
        names: Number of each name.
        repairs: What was repaired or left out.
        lost: Time of device events that ran at a time that is not known [s].
        zero: When the first event began by its own clock, in whole microseconds and the rest; once :meth:`events` ran.
        scale: What that clock counts in a microsecond.
    """

    def __init__(self) -> None:
        self.columns = {name: array(code) for name, code in _COLUMNS.items()}
        self.names: dict[str, int] = {}
        self.repairs = Repairs()
        self.lost = 0.0
        self.zero = 0, 0.0
        self.scale = 1
        self._append: list[Any] = [column.append for column in self.columns.values()]
        self._details: list[Mapping[str, Any]] = []
        self._signatures: list[Signature] = []
        self._seen: dict[str, tuple[int, int]] = {}
        self._room = 0

    def __len__(self) -> int:
        return len(self.columns["kind"])

    @property
    def limit(self) -> str:
        """Say what stops reading; empty while nothing does."""
        if len(self) >= MAX_EVENTS:
            return f"stopped after {MAX_EVENTS:,} events"
        if self._room > MAX_ROOM:
            return f"stopped after {len(self):,} events, whose names and arguments take more than {MAX_ROOM:,} bytes"
        return ""

    def add(
        self, kind: int, name: str, start: float | Decimal, duration: float, process: int = -1, thread: int = -1,
        external: int = -1, correlation: int = -1, device: int = -1, stream: int = -1, size: float = NAN,
        count: int = 1, signature: int = -1, detail: int = -1,
    ) -> None:  # fmt: skip
        """Append an event; the arguments are those of :class:`Events`, but ``start`` is by its own clock [us]."""
        whole = int(start)
        if not 0 <= size < _ELEMENTS:
            size = NAN
        number = self.names.get(name)
        if number is None:
            number = self.names[name] = len(self.names)
            self._room += len(name) + _NAME_ROOM
        row = (kind, number, whole, float(start - whole), duration, process, thread, external, correlation, device,
               stream, size, count, signature, detail)  # fmt: skip
        for append, value in zip(self._append, row):  # noqa: B905 (a tenth of all time; both have 15 by the tables)
            append(value)

    def signature(self, *parts: Any, seconds: float = 0.0) -> int:
        """Return the number of an operator's arguments, -1 where they are no shapes and types.

        Args:
            parts: Those of :class:`Signature`, as JSON has them.
            seconds: What the operator took, for the note where they are left out [s].
        """
        key = repr(parts)
        known = self._seen.get(key)
        if known is None:
            signature = _signature(parts)
            known = self._seen[key] = (len(self._signatures) if signature is not None else -1, 0)
            self._signatures += [signature] if signature is not None else []
            self._room += len(key) + _RECORD_ROOM
        if known[0] < 0:
            self.repairs.add("left out the arguments of", "operator", "that are no shapes and types", seconds)
        return known[0]

    def detail(self, record: Mapping[str, Any], seconds: float = 0.0) -> int:
        """Return the number of a record of whatever else is known, -1 of an empty one.

        Args:
            record: Texts, numbers and lists of whole numbers; anything else is left out.
            seconds: What the event took, for the note where anything is [s].
        """
        if not record:
            return -1
        key = f"detail {record!r}"
        known = self._seen.get(key)
        if known is None:
            facts = {name: fact for name, value in record.items() if (fact := _fact(value)) is not None}
            lost = sum(name not in facts for name, value in record.items() if value is not None and value == value)
            known = self._seen[key] = (len(self._details) if facts else -1, lost)
            self._details += [facts] if facts else []
            self._room += len(key) + _RECORD_ROOM
        if known[1]:
            self.repairs.add("left out", "fact", "that is no text, number or list of them", seconds, known[1])
        return known[0]

    def record(self, detail: int) -> Mapping[str, Any]:
        """Return a record by its number."""
        return self._details[detail] if detail >= 0 else {}

    def events(self, *, timed: bool = True) -> Events:
        """Return all of them, in order of start from zero on, without what cannot be; see ``repairs``.

        Each column is let go once it is copied: a trace may fill most of memory.
        """
        view = {name: np.frombuffer(column, code) if len(column := self.columns[name]) else np.zeros(0, code)
                for name, code in _COLUMNS.items()}  # fmt: skip
        if timed:
            self._to_microseconds(view)
        rows = self._plausible(view, timed)
        rows = rows[np.lexsort((view["start"][rows], view["whole"][rows]))]
        since = [view[name][rows] - view[name][rows[:1]] for name in ("whole", "start")]
        if len(rows):
            self.zero = int(view["whole"][rows[0]]), float(view["start"][rows[0]])
        view.clear()
        self._append.clear()
        sorted_ = {}
        for name, code in _COLUMNS.items():
            column = self.columns.pop(name)
            sorted_[name] = np.frombuffer(column, code)[rows] if len(column) else np.zeros(0, code)
            del column
        del sorted_["whole"]
        sorted_["start"] = (since[0] + since[1]) * _MICRO
        names = tuple(self.names)
        events = Events(**sorted_, names=names, signatures=tuple(self._signatures), details=tuple(self._details))
        if timed:
            self._cut(events)
        return events

    def _to_microseconds(self, view: Mapping[str, NDArray[Any]]) -> None:
        """Scale times in nanoseconds, which only a clock that began in 1970 shows to be such."""
        whole, start, duration = (view[name] for name in ("whole", "start", "duration"))
        if not len(whole) or np.median(whole) < NANOSECONDS:
            return
        start[:] = (whole % 1000 + start) / 1000
        whole[:] = whole // 1000
        duration[:] /= 1000
        self.scale = 1000
        self.repairs.add("read", "event", "whose times are in nanoseconds", float(duration.sum()), len(whole))

    def _plausible(self, view: Mapping[str, NDArray[Any]], timed: bool) -> NDArray[np.intp]:
        """Return the rows whose times can be."""
        device = np.isin(view["kind"], DEVICE)
        rows, calls = np.flatnonzero(device), np.flatnonzero(view["kind"] == Kind.RUNTIME)
        launched = view["whole"].copy()
        by = matched(view["correlation"], calls, rows, view["whole"])
        launched[rows[by >= 0]] = view["whole"][by[by >= 0]]
        bad = np.zeros(len(device), bool)
        if timed:  # what has a number of its own: equal operators may lie in one another
            own = np.flatnonzero((view["correlation"] > 0) | (view["external"] > 0))
            bad[own] = repeated([view[name][own] for name in _COLUMNS if name not in _LESS])
            self._left_out(view, bad, "recorded twice")
        checks = implausible(view["whole"], view["duration"], launched, device) if timed else too_long(view["duration"])
        for reason, which in checks.items():
            self._left_out(view, which & ~bad, reason)
            self.lost += float(view["duration"][which & ~bad & device & (view["duration"] < DAY * _MICRO)].sum())
            bad |= which
        return np.flatnonzero(~bad)

    def _left_out(self, view: Mapping[str, NDArray[Any]], which: NDArray[np.bool_], reason: str) -> None:
        for kind in np.unique(view["kind"][which]):
            these = view["duration"][which & (view["kind"] == kind)]
            self.repairs.add("skipped", WORDS[Kind(int(kind))], reason, float(these.sum()), len(these))

    def _cut(self, events: Events) -> None:
        """Cut what runs into the next of its stream, which starts when it has ended."""
        rows = np.flatnonzero(np.isin(events.kind, DEVICE) & (events.stream != -1))
        queue = events.stream[rows], events.device[rows].astype(np.int64), events.process[rows]
        over = overruns(events.start[rows], events.duration[rows], queue)
        events.duration[rows] = np.maximum(events.duration[rows] - over, 0.0)
        much = over > ROUNDED * _MICRO
        if much.any():
            self.repairs.add("cut", "duration", "at the start of the next on the stream", float(over[much].sum()),
                             int(much.sum()))  # fmt: skip


def matched(
    key: NDArray[np.int64], among: NDArray[np.intp], rows: NDArray[np.intp], start: NDArray[Any]
) -> NDArray[np.intp]:
    """Return for each row the last of others with the same key that started before it, else the first with its key.

    Args:
        key: Of all events, from 1 on; smaller ones are none.
        among: Positions of the others.
        rows: Positions of the rows.
        start: Of all events.

    Returns:
        Positions, -1 where none has the key.
    """
    if not len(among):
        return np.full(len(rows), -1, np.intp)
    among = among[np.lexsort((start[among], key[among]))]
    count, every = len(among), np.concatenate([among, rows])
    order = np.lexsort((np.arange(len(every)) >= count, start[every], key[every]))
    before = np.empty(len(every), np.intp)
    before[order] = np.maximum.accumulate(np.where(order < count, order, -1))
    last = before[count:]
    first = np.minimum(np.searchsorted(key[among], key[rows]), count - 1)
    best = np.where((last >= 0) & (key[among[last]] == key[rows]), last, first)
    return np.where((key[among[best]] == key[rows]) & (key[rows] > 0), among[best], -1)


# --- fields of the right type -----------------------------------------------------------------------------------------


def _signature(parts: tuple[Any, ...]) -> Signature | None:
    dims, types, strides, concrete = (part if isinstance(part, list | tuple) else () for part in parts)
    shapes = _shapes(dims, _ELEMENTS)
    if shapes is None or not all(isinstance(word, str | None) for word in (*types, *concrete)):
        return None
    return Signature(shapes, _texts(types), _shapes(strides, inf) or (), _texts(concrete))


def _shapes(parts: Any, most: float) -> tuple[Any, ...] | None:
    """Return the shapes, or strides, of arguments, of those in lists too; ``None`` where any is none."""
    shapes: list[Any] = []
    for part in parts:
        nested = isinstance(part, list | tuple) and bool(part) and isinstance(part[0], list | tuple)
        shape = tuple(_shape(each, most) for each in part) if nested else _shape(part, most)
        if shape is None or (nested and None in shape):
            return None
        shapes.append(shape)
    return tuple(shapes)


def _shape(sizes: Any, most: float) -> tuple[int, ...] | None:
    if not isinstance(sizes, list | tuple) or len(sizes) > _AXES:
        return None
    if not all(type(size) is int and 0 <= size < _SIZE for size in sizes) or prod(sizes) >= most:
        return None
    return tuple(sizes)


def _fact(value: Any) -> Any:
    """Return a text, a number or whole numbers; ``None`` of anything else."""
    if isinstance(value, list | tuple):
        return tuple(value) if all(type(part) is int and abs(part) < _ELEMENTS for part in value) else None
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float | Decimal) or not -_ELEMENTS < value < _ELEMENTS:
        return None
    return float(value) if isinstance(value, Decimal) else value


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(value or "" for value in values)


def notes_of(events: Events) -> list[str]:
    """Say what a reader should know of the events themselves, whatever the format."""
    device = np.isin(events.kind, DEVICE)
    if not device.any():
        return ["CPU-only trace: no device events"]
    devices = np.unique(events.device[device])
    return [f"{len(devices)} devices: {', '.join(map(str, devices[:16]))}"] if len(devices) > 1 else []
