"""Tables of Tenstorrent's tools: ops_perf_results of the profiler, and what tt-perf-report makes of it."""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from roofline.traces.columns import Recorder
from roofline.traces.events import Kind
from roofline.traces.quantities import plural, whole
from roofline.traces.tables import Table

#: Facts of an operation that may help: key, columns.
_FACTS = {
    "math fidelity": ("MATH FIDELITY",),
    "cores": ("CORE COUNT", "Cores"),
    "available cores": ("AVAILABLE WORKER CORE COUNT",),
    "parallelization": ("PARALLELIZATION STRATEGY",),
}
_COUNTS = ("cores", "available cores")
_AXES = "WZYX"


@dataclass
class _Op:
    """A row that ran on a device."""

    name: str
    seconds: float
    facts: dict[str, Any]
    signature: tuple[Any, ...]


def claims(columns: Sequence[str]) -> bool:
    """Whether this is the header of either tool."""
    found = {column.casefold() for column in columns}
    return "op code" in found and any(
        c.startswith(("device kernel duration", "device time", "device fw")) for c in found
    )


def read(table: Table, rows: Recorder, devices: dict[int, str]) -> list[str]:
    """Read the operations into rows, those of several devices merged by the slowest; what was done."""
    queues, host, skipped = _queues(table, rows, devices)
    merged = unequal = 0
    for ops in _aligned(queues):
        slowest = max(ops, key=lambda op: op.seconds)
        merged += len(ops) > 1
        unequal += len(ops) < len(queues)
        facts = slowest.facts | ({"devices": len(ops)} if len(ops) > 1 else {})
        rows.add(
            Kind.KERNEL, slowest.name, 0.0, slowest.seconds, device=min(queues), detail=rows.detail(facts),
            signature=rows.signature(*slowest.signature) if slowest.signature[0] else -1,
        )  # fmt: skip
    notes = [f"{plural(merged, 'operation')} on {len(queues)} devices: the slowest device counts"] if merged else []
    if unequal:
        notes.append(f"{plural(unequal, 'operation')} ran on some of the devices only")
    if host:
        notes.append(f"{plural(host, 'host operation')} without device time")
    return notes + ([f"skipped {plural(skipped, 'row')} without a device duration"] if skipped else [])


def _queues(table: Table, rows: Recorder, devices: dict[int, str]) -> tuple[dict[int, deque[_Op]], int, int]:
    """Operations of each device in their order, how many ran on the host, and how many rows were skipped."""
    duration = _duration(table)
    code, where, chip = table.text("OP CODE"), table.text("DEVICE ID"), table.text("DEVICE ARCH")
    spent, facts, signature = table.reader("HOST DURATION", unit="ns"), _facts(table), _signature(table)
    by_row = table.index("DEVICE ID") < 0
    queues: dict[int, deque[_Op]] = defaultdict(deque)
    host = skipped = 0
    for _, cells in table.rows:
        seconds = duration(cells)
        if (by_row and seconds is None) or (not by_row and not where(cells)):
            host += 1
            if (busy := spent(cells)) is not None and busy >= 0:
                rows.add(Kind.OP, code(cells), 0.0, busy)
        elif seconds is None or seconds < 0:
            skipped += 1
        else:
            device = whole(where(cells), 0)
            if chip(cells):
                devices[device] = chip(cells)
            queues[device].append(_Op(code(cells), seconds, facts(cells), signature(cells)))
    return queues, host, skipped


def _duration(table: Table) -> Callable[[Sequence[str]], float | None]:
    """The best time that there is: of the kernel; as tt-perf-report prints it, in microseconds; of the firmware."""
    for label, unit in (("DEVICE KERNEL DURATION", "ns"), ("Device Time", "us")):
        if table.index(label) >= 0:
            return table.reader(label, unit=unit)
    return table.reader("DEVICE FW DURATION", unit="ns")


def _aligned(queues: dict[int, deque[_Op]]) -> Iterator[list[_Op]]:
    """The same operation of all devices, one after the other; a device that did not run it is passed over."""
    waiting = [queues[device] for device in sorted(queues)]
    while any(waiting):
        name = next(queue[0].name for queue in waiting if queue)
        yield [queue.popleft() for queue in waiting if queue and queue[0].name == name]


def _facts(table: Table) -> Callable[[Sequence[str]], dict[str, Any]]:
    columns = {key: table.text(*spelled) for key, spelled in _FACTS.items()}
    gap = table.reader("OP TO OP LATENCY", unit="ns")
    if table.index("OP TO OP LATENCY") < 0:
        gap = table.reader("Op-to-Op Gap", unit="us")

    def read(cells: Sequence[str]) -> dict[str, Any]:
        found: dict[str, Any] = {key: column(cells) for key, column in columns.items() if column(cells)}
        found |= {key: whole(found[key], 0) for key in _COUNTS if key in found}
        if (waited := gap(cells)) is not None:
            found["gap"] = waited
        return found

    return read


def _signature(table: Table) -> Callable[[Sequence[str]], tuple[Any, ...]]:
    """A function from cells to shapes and types of the inputs, as operators of other profilers have them."""
    inputs = []
    for position in range(16):
        axes = [table.text(f"INPUT_{position}_{axis}_PAD[LOGICAL]", f"INPUT_{position}_{axis}") for axis in _AXES]
        if table.index(f"INPUT_{position}_X_PAD[LOGICAL]", f"INPUT_{position}_X") >= 0:
            inputs.append((axes, table.text(f"INPUT_{position}_DATATYPE")))

    def read(cells: Sequence[str]) -> tuple[Any, ...]:
        given = [(axes, kind) for axes, kind in inputs if axes[-1](cells)]
        dims = tuple(tuple(_logical(axis(cells)) for axis in axes) for axes, _ in given)
        return dims, tuple(kind(cells) for _, kind in given), (), ()

    return read


def _logical(text: str) -> int:
    """Size of an axis such as ``32[1]``, which is 1 padded to 32."""
    match = re.search(r"\[(\d{1,12})\]", text)
    return int(match[1]) if match else whole(text, 1, 2**40)
