"""Link what ran on the device to the operator that asked for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.traces.events import DEVICE, Events, Kind, Signature, Trace, matched

#: Roles of launches that are no kernels of an operator, by their names.
_ROLES = (
    ("copy_in", re.compile(r"memcpy.*(htod|host-to-device)|copyhosttodevice", re.I)),
    ("copy_out", re.compile(r"memcpy.*(dtoh|device-to-host)|copydevicetohost", re.I)),
    ("communication", re.compile(r"^(nccl|rccl|msccl|ncclDevKernel)|allreduce.*kernel|all_reduce", re.I)),
    ("layout", re.compile(r"nchwTo|nhwcTo|nchw2nhwc|nhwc2nchw|cudnn.*tensorTransform|convertTensor", re.I)),
)


@lru_cache(maxsize=8192)
def _role(name: str) -> str:
    """Return the role of a kernel by its name, which recurs with every launch."""
    return next((role for role, pattern in _ROLES if pattern.search(name)), "kernel")


@dataclass(frozen=True, slots=True)
class Launch:
    """One device event; in a trace without a device, one operator on the CPU with its own time.

    Attributes:
        kind: ``KERNEL``, ``MEMCPY`` or ``MEMSET``; ``OP`` on a CPU.
        name: The kernel's name; the operator's on a CPU.
        start: Since the trace's first event [s].
        duration: [s]; on a CPU without the operators inside it.
        device: Number of the device, -1 for the CPU.
        stream: Of the device.
        bytes: Moved by a copy [B], nan where not recorded.
        count: Launches that the row stands for.
        op: The innermost operator that caused it, such as ``aten::mm``; empty where none is known.
        signature: Its recorded arguments, ``None`` where shapes were not recorded.
        path: Operators, modules and ranges around it on the host, outermost first, ``op`` last.
        call: Position of the operator among the trace's events, -1 where none is known; launches of one call share it.
        issued: When the host began to launch it [s], nan where not recorded.
        detail: What else was recorded, position in the events' ``details`` or -1.
        inside: On a CPU, the ``call`` of the operator that it runs in, -1 where there is none.
    """

    kind: Kind
    name: str
    start: float
    duration: float
    device: int
    stream: int
    bytes: float
    count: int
    op: str
    signature: Signature | None
    path: tuple[str, ...]
    call: int
    issued: float
    detail: int
    inside: int = -1

    @property
    def end(self) -> float:
        """When it ended [s]."""
        return self.start + self.duration

    @property
    def role(self) -> str:
        """``kernel``, ``copy_in``, ``copy_out``, ``communication`` or ``layout``; ``host`` for one on the CPU."""
        return "host" if self.kind == Kind.OP else _role(self.name)


def launches(trace: Trace) -> tuple[Launch, ...]:
    """Return what ran on the device, in order of start; without a device, the operators on the CPU.

    A device event leads to the runtime call of the same correlation, and to the operator of the same external id;
    where that is not recorded, to the innermost operator that was open on the call's thread. A replayed CUDA graph is
    one call for many kernels, so that they have a time of issue and no operator.
    """
    events = trace.events
    on_device = np.flatnonzero(np.isin(events.kind, DEVICE))
    return tuple(_on_device(events, on_device) if len(on_device) else _on_cpu(events))


# --- device -----------------------------------------------------------------------------------------------------------


def _on_device(events: Events, rows: NDArray[np.intp]) -> Iterator[Launch]:
    hosts = np.flatnonzero(np.isin(events.kind, (Kind.OP, Kind.ANNOTATION)))
    calls = matched(events.correlation, np.flatnonzero(events.kind == Kind.RUNTIME), rows, events.start)
    caller = matched(events.external, hosts, rows, events.start)
    through_call = np.where(calls >= 0, matched(events.external, hosts, calls, events.start), -1)
    caller = np.where(caller >= 0, caller, through_call)
    by_time = np.unique(calls[(caller < 0) & (calls >= 0)])
    nest = _nested(events, by_time)
    around = np.where(calls >= 0, nest.parent[calls], -1)
    caller = np.where(caller >= 0, caller, around)
    op = np.where(caller >= 0, nest.operator[caller], -1)
    # A replayed CUDA or HIP graph has other kernels than those of the operator around the call.
    replays = np.array([*("GraphLaunch" in name for name in events.names), False])
    op = np.where((calls >= 0) & replays[events.name[calls]], -1, op)
    where = np.where(op >= 0, nest.path[op], np.where(caller >= 0, nest.path[caller], 0))
    issued = np.where(calls >= 0, events.start[calls], np.nan)
    bytes_ = np.where(np.isnan(events.bytes[rows]) & (calls >= 0), events.bytes[calls], events.bytes[rows])
    columns = {"call": op, "path": where, "issued": issued, "bytes": bytes_}
    return _built(events, nest.paths, rows, columns)


# --- host -------------------------------------------------------------------------------------------------------------


#: Names of a path; no framework nests deeper, and what a damaged file does has the path of what is around it.
MAX_DEPTH = 256


@dataclass(frozen=True)
class _Nest:
    """How host events lie in one another, by row; -1 where there is nothing around.

    Attributes:
        parent: The innermost operator or range around a row.
        operator: The innermost operator around it, itself included.
        path: Position in ``paths`` of what is around an operator or a range and of itself.
        paths: Each distinct path once, since layers repeat; the first is empty.
    """

    parent: NDArray[np.int64]
    operator: NDArray[np.int64]
    path: NDArray[np.int64]
    paths: list[tuple[str, ...]]


def _nested(events: Events, leaves: NDArray[np.intp]) -> _Nest:
    """Find what encloses each operator and range, and each of some other rows, in one pass over every thread.

    The only Python frames among the events are those of modules, which are ranges as well.
    """
    hosts = np.flatnonzero(np.isin(events.kind, (Kind.OP, Kind.ANNOTATION, Kind.PYTHON)))
    rows = np.concatenate([hosts, leaves])
    # Of two that start together the longer is the outer one; a runtime call, which comes later here, the inner one.
    order = np.lexsort((-events.duration[rows], events.start[rows], events.thread[rows], events.process[rows]))
    rows = rows[order]
    nowhere = np.full(len(events), -1, np.int64)
    nest = _Nest(nowhere, nowhere.copy(), np.zeros(len(events), np.int64), [()])
    edges = np.flatnonzero(np.diff(events.thread[rows]) | np.diff(events.process[rows])) + 1
    known: dict[tuple[int, int], int] = {}
    for one_thread in np.split(rows, edges):
        _nest_thread(events, one_thread, nest, known)
    return nest


def _nest_thread(events: Events, rows: NDArray[np.intp], nest: _Nest, known: dict[tuple[int, int], int]) -> None:
    """Keep a stack of what is open; an event lies in what covers its middle, since rounding moves the ends."""
    start, duration = events.start[rows], events.duration[rows]
    ends = (start + duration).tolist()
    middles = (start + duration / 2).tolist()
    names, kinds = events.name[rows].tolist(), events.kind[rows].tolist()
    open_: list[int] = []
    count = len(rows)
    parent, operator, path = [-1] * count, [-1] * count, [0] * count
    where = rows.tolist()
    for at in range(count):
        while open_ and ends[open_[-1]] <= middles[at]:
            open_.pop()
        outer = open_[-1] if open_ else -1
        if outer >= 0:
            parent[at], operator[at], path[at] = where[outer], operator[outer], path[outer]
        if kinds[at] == Kind.RUNTIME:
            continue
        path[at] = _path(nest, known, path[at], names[at], events)
        if kinds[at] == Kind.OP:
            operator[at] = where[at]
        open_.append(at)
    nest.parent[rows], nest.operator[rows], nest.path[rows] = parent, operator, path


def _path(nest: _Nest, known: dict[tuple[int, int], int], outer: int, name: int, events: Events) -> int:
    if len(nest.paths[outer]) >= MAX_DEPTH:
        return outer
    number = known.get((outer, name))
    if number is None:
        number = known[outer, name] = len(nest.paths)
        nest.paths.append((*nest.paths[outer], events.names[name]))
    return number


def operators_at(
    events: Events, time: NDArray[np.float64], thread: Sequence[NDArray[np.int64]], passed: re.Pattern[str]
) -> NDArray[np.int64]:
    """Return the innermost operator that was open at each moment on its thread, by row; -1 where there was none.

    Args:
        events: Of the trace.
        time: The moments [s].
        thread: Process and thread of each moment.
        passed: Names of operators that say nothing; the one around counts, where there is one.
    """
    rows = np.flatnonzero(events.kind == Kind.OP)
    nest = _nested(events, rows[:0])
    outer = np.append(np.where(nest.parent >= 0, nest.operator[nest.parent], -1), -1)
    end = np.append(events.start + events.duration, np.inf)
    dull = np.append(np.array([bool(passed.match(name)) for name in events.names] or [False])[events.name], False)
    at = np.full(len(time), -1, np.int64)
    for who in set(zip(*(column.tolist() for column in thread), strict=True)):
        mine = (thread[0] == who[0]) & (thread[1] == who[1])
        own = rows[(events.process[rows] == who[0]) & (events.thread[rows] == who[1])]
        own = own[np.lexsort((-events.duration[own], events.start[own]))]
        at[mine] = np.append(own, -1)[np.searchsorted(events.start[own], time[mine], side="right") - 1]
    while (over := (at >= 0) & (end[at] < time)).any():
        at[over] = outer[at[over]]
    while (climbs := (at >= 0) & dull[at] & (outer[at] >= 0)).any():
        at[climbs] = outer[at[climbs]]
    return at


# --- CPU --------------------------------------------------------------------------------------------------------


def _on_cpu(events: Events) -> Iterator[Launch]:
    rows = np.flatnonzero(events.kind == Kind.OP)
    nest = _nested(events, rows[:0])
    parent = nest.parent[rows]
    outer = np.where(parent >= 0, nest.operator[parent], -1)  # a range between two operators takes no time of its own
    inner = np.bincount(outer[outer >= 0], events.duration[rows][outer >= 0], len(events))
    own = np.maximum(events.duration - inner, 0.0)[rows]
    nowhere = np.full(len(rows), -1)
    columns = {"call": rows, "path": nest.path[rows], "duration": own, "inside": outer}
    return _built(events, nest.paths, rows, {**columns, "device": nowhere, "stream": nowhere})


# --- both -------------------------------------------------------------------------------------------------------------

#: Rows that are made at once: columns of numpy become lists, which are quicker to walk and larger.
_CHUNK = 1 << 16

_KINDS = tuple(Kind)


def _built(
    events: Events, paths: list[tuple[str, ...]], rows: NDArray[np.intp], columns: dict[str, NDArray[Any]]
) -> Iterator[Launch]:
    """Yield the launches of some rows, whose columns are the events' where they are not given."""
    names, signatures = events.names, (*events.signatures, None)
    fields = ("kind", "name", "start", "duration", "device", "stream", "bytes", "count", "call", "path", "issued",
              "detail", "inside")  # fmt: skip
    absent = {"issued": np.nan, "inside": -1}
    for first in range(0, len(rows), _CHUNK):
        part = slice(first, first + _CHUNK)
        chunk = rows[part]
        lists = [
            (columns[key][part] if key in columns else np.full(len(chunk), absent[key]) if key in absent
             else getattr(events, key)[chunk]).tolist()
            for key in fields
        ]  # fmt: skip
        calls = columns["call"][part]
        operators = np.where(calls >= 0, events.name[calls], -1).tolist()
        recorded = np.where(calls >= 0, events.signature[calls], events.signature[chunk]).tolist()
        for row, op, signature in zip(zip(*lists, strict=True), operators, recorded, strict=True):
            kind, name, start, duration, device, stream, moved, count, call, path, issued, detail, inside = row
            yield Launch(
                _KINDS[kind], names[name], start, duration, device, stream, moved, count,
                names[op] if op >= 0 else "", signatures[signature], paths[path], call, issued, detail, inside,
            )  # fmt: skip
