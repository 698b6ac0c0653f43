"""Collects events row by row in compact columns; texts and records are kept once each."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from roofline.traces.events import Events, Kind, Signature

NAN = float("nan")

#: Columns in the order of :meth:`Recorder.add`: code of :mod:`array`, type in :class:`Events`.
_COLUMNS: dict[str, tuple[str, Any]] = {
    "kind": ("B", np.uint8),
    "name": ("i", np.int32),
    "start": ("d", np.float64),
    "duration": ("d", np.float64),
    "process": ("q", np.int64),
    "thread": ("q", np.int64),
    "external": ("q", np.int64),
    "correlation": ("q", np.int64),
    "device": ("i", np.int32),
    "stream": ("q", np.int64),
    "bytes": ("d", np.float64),
    "count": ("q", np.int64),
    "signature": ("i", np.int32),
    "detail": ("i", np.int32),
}


class Interned(dict[Hashable, int]):
    """Number of each distinct key, in the order in which they came."""

    def __missing__(self, key: Hashable) -> int:
        self[key] = number = len(self)
        return number


class Recorder:
    """Events that are being read.

    Attributes:
        columns: An array each.
        names: Number of each name.
    """

    def __init__(self) -> None:
        self.columns = {name: array(code) for name, (code, _) in _COLUMNS.items()}
        self.names = Interned()
        self._append: list[Any] = [column.append for column in self.columns.values()]
        self._details: list[Mapping[str, Any]] = []
        self._signatures: list[Signature] = []
        self._seen = Interned()

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
        """Number of a signature, given its parts as JSON has them."""
        key = repr(parts)
        number = self._seen.get(key)
        if number is None:
            number = self._seen[key] = len(self._signatures)
            dims, types, strides, concrete = (_frozen(part) if isinstance(part, list | tuple) else () for part in parts)
            self._signatures.append(Signature(dims, _texts(types), strides, _texts(concrete)))
        return number

    def detail(self, record: Mapping[str, Any]) -> int:
        """Number of a record of further facts, -1 of an empty one."""
        if not record:
            return -1
        key = ("detail", repr(record))
        number = self._seen.get(key)
        if number is None:
            number = self._seen[key] = len(self._details)
            self._details.append({name: _frozen(value) for name, value in record.items()})
        return number

    def events(self) -> Events:
        """All of them, in order of start. Each column is let go once it is copied: a trace may fill most of memory."""
        start = np.frombuffer(self.columns["start"], np.float64)
        order = np.argsort(start, kind="stable") if len(start) else np.zeros(0, np.int64)
        del start
        self._append.clear()
        done = {}
        for name, (_, dtype) in _COLUMNS.items():
            column = self.columns.pop(name)
            done[name] = np.frombuffer(column, dtype)[order] if len(column) else np.zeros(0, dtype)
            del column
        names = tuple(str(name) for name in self.names)
        return Events(**done, names=names, signatures=tuple(self._signatures), details=tuple(self._details))


def _frozen(value: Any) -> Any:
    return tuple(_frozen(part) for part in value) if isinstance(value, list | tuple) else value


def _texts(values: Any) -> tuple[str, ...]:
    return tuple(value if isinstance(value, str) else "" if value is None else str(value) for value in values)


def notes_of(events: Events) -> list[str]:
    """What a reader should know of the events themselves, whatever the format."""
    device = np.isin(events.kind, (Kind.KERNEL, Kind.MEMCPY, Kind.MEMSET))
    if not device.any():
        return ["CPU-only trace: no device events"]
    devices = np.unique(events.device[device])
    return [f"{len(devices)} devices: {', '.join(map(str, devices[:16]))}"] if len(devices) > 1 else []
