"""Events that a profiler recorded, in columns: one row per event, whatever wrote the file."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray


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


# --- while they are read ----------------------------------------------------------------------------------------------

#: Columns in the order of :meth:`Recorder.add`, each with its code of :mod:`array`, which is one of numpy too.
_COLUMNS = {
    "kind": "B", "name": "i", "start": "d", "duration": "d", "process": "q", "thread": "q", "external": "q",
    "correlation": "q", "device": "i", "stream": "q", "bytes": "d", "count": "q", "signature": "i", "detail": "i",
}  # fmt: skip


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
    """

    def __init__(self) -> None:
        self.columns = {name: array(code) for name, code in _COLUMNS.items()}
        self.names = Interned()
        self._append: list[Any] = [column.append for column in self.columns.values()]
        self._details: list[Mapping[str, Any]] = []
        self._signatures: list[Signature] = []
        self._seen: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.columns["kind"])

    def add(
        self, kind: int, name: str, start: float, duration: float, process: int = -1, thread: int = -1,
        external: int = -1, correlation: int = -1, device: int = -1, stream: int = -1, size: float = NAN,
        count: int = 1, signature: int = -1, detail: int = -1,
    ) -> None:  # fmt: skip
        """Append an event; the arguments are those of :class:`Events`."""
        row = (kind, self.names[name], start, duration, process, thread, external, correlation, device, stream, size,
               count, signature, detail)  # fmt: skip
        for append, value in zip(self._append, row):  # noqa: B905 (a tenth of all time; both have 14 by the tables)
            append(value)

    def signature(self, *parts: Any) -> int:
        """Return the number of a signature, given its parts as JSON has them."""
        key = repr(parts)
        number = self._seen.get(key)
        if number is None:
            number = self._seen[key] = len(self._signatures)
            dims, types, strides, concrete = (_frozen(part) if isinstance(part, list | tuple) else () for part in parts)
            self._signatures.append(Signature(dims, _texts(types), strides, _texts(concrete)))
        return number

    def detail(self, record: Mapping[str, Any]) -> int:
        """Return the number of a record of whatever else is known, -1 of an empty one."""
        if not record:
            return -1
        key = f"detail {record!r}"
        number = self._seen.get(key)
        if number is None:
            number = self._seen[key] = len(self._details)
            self._details.append({name: _frozen(value) for name, value in record.items()})
        return number

    def events(self) -> Events:
        """Return all of them, in order of start.

        Each column is let go once it is copied: a trace may fill most of memory.
        """
        start = np.frombuffer(self.columns["start"], np.float64)
        order = np.argsort(start, kind="stable") if len(start) else np.zeros(0, np.int64)
        del start
        self._append.clear()
        sorted_ = {}
        for name, code in _COLUMNS.items():
            column = self.columns.pop(name)
            sorted_[name] = np.frombuffer(column, code)[order] if len(column) else np.zeros(0, code)
            del column
        names = tuple(str(name) for name in self.names)
        return Events(**sorted_, names=names, signatures=tuple(self._signatures), details=tuple(self._details))


def _frozen(value: Any) -> Any:
    return tuple(_frozen(part) for part in value) if isinstance(value, list | tuple) else value


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(value if isinstance(value, str) else "" if value is None else str(value) for value in values)


def notes_of(events: Events) -> list[str]:
    """Say what a reader should know of the events themselves, whatever the format."""
    device = np.isin(events.kind, DEVICE)
    if not device.any():
        return ["CPU-only trace: no device events"]
    devices = np.unique(events.device[device])
    return [f"{len(devices)} devices: {', '.join(map(str, devices[:16]))}"] if len(devices) > 1 else []
