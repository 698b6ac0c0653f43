"""Tables of Tenstorrent's tools: ops_perf_results of the profiler, and what tt-perf-report makes of it."""

from __future__ import annotations

import re
import sys
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from roofline.traces.events import Kind, Recorder
from roofline.traces.formats.quantities import plural, whole
from roofline.traces.formats.tables import Row, Table

EXAMPLE = """\
OP CODE,DEVICE ID,DEVICE ARCH,CORE COUNT,MATH FIDELITY,DEVICE KERNEL DURATION [ns],INPUT_0_X,INPUT_0_DATATYPE
Matmul,0,wormhole_b0,36,HiFi2,41000,32[1],BFLOAT16
Matmul,1,wormhole_b0,36,HiFi2,43000,32[1],BFLOAT16
Softmax,0,wormhole_b0,64,HiFi4,4000,64,BFLOAT16
"""

#: Facts of an operation that may help: key, columns.
_FACTS = {
    "math fidelity": ("MATH FIDELITY",),
    "cores": ("CORE COUNT", "Cores"),
    "available cores": ("AVAILABLE WORKER CORE COUNT",),
    "parallelization": ("PARALLELIZATION STRATEGY",),
}
_COUNTS = ("cores", "available cores")
_AXES = "WZYX"


@dataclass(slots=True)
class _Op:
    """A row that ran on a device."""

    name: str
    seconds: float
    detail: int
    signature: int


def claims(columns: Sequence[str]) -> bool:
    """Tell whether this is the header of either tool."""
    labels = {column.casefold() for column in columns}
    return "op code" in labels and any(
        c.startswith(("device kernel duration", "device time", "device fw")) for c in labels
    )


def read(table: Table, rows: Recorder, devices: dict[int, str]) -> list[str]:
    """Read the operations into rows, those of several devices merged by the slowest; return notes on what was done."""
    queues, host, skipped = _queues(table, rows, devices)
    merged = unequal = 0
    for ops in _aligned(queues):
        slowest = max(ops, key=lambda op: op.seconds)
        merged += len(ops) > 1
        unequal += len(ops) < len(queues)
        detail = slowest.detail
        if len(ops) > 1:
            detail = rows.detail({**rows.record(detail), "devices": len(ops)})
        rows.add(
            Kind.KERNEL, slowest.name, 0.0, slowest.seconds, device=min(queues), detail=detail,
            signature=slowest.signature,
        )  # fmt: skip
    notes = [f"{plural(merged, 'operation')} on {len(queues)} devices: the slowest device counts"] if merged else []
    if unequal:
        notes.append(f"{plural(unequal, 'operation')} ran on some of the devices only")
    if host:
        notes.append(f"{plural(host, 'host operation')} without device time")
    return notes + ([f"skipped {plural(skipped, 'row')} without a device duration"] if skipped else [])


def _queues(table: Table, rows: Recorder, devices: dict[int, str]) -> tuple[dict[int, deque[_Op]], int, int]:
    """Return operations of each device in their order; count those that ran on the host, and rows that were skipped."""
    # The best time that there is: of the kernel; as tt-perf-report prints it; of the firmware.
    label, unit = next(
        (pair for pair in (("DEVICE KERNEL DURATION", "ns"), ("Device Time", "us")) if table.index(pair[0]) >= 0),
        ("DEVICE FW DURATION", "ns"),
    )
    one_device = table.index("DEVICE ID") < 0
    inputs = [at for at in range(16) if table.index(*_axis(at, "X")) >= 0]
    queues: dict[int, deque[_Op]] = defaultdict(deque)
    host = skipped = 0
    for row in table:
        seconds, name = row.number(label, unit=unit), row.text("OP CODE")
        if (one_device and seconds is None) or (not one_device and not row.text("DEVICE ID")):
            host += 1
            if (busy := row.number("HOST DURATION", unit="ns")) is not None and busy >= 0:
                rows.add(Kind.OP, name, 0.0, busy)
        elif seconds is None or seconds < 0:
            skipped += 1
        else:
            device = row.whole("DEVICE ID", default=0)
            if chip := row.text("DEVICE ARCH"):
                devices[device] = chip
            signature = _signature(row, inputs)
            number = rows.signature(*signature, seconds=seconds) if signature[0] else -1
            queues[device].append(_Op(sys.intern(name), seconds, rows.detail(_facts(row), seconds), number))
    return queues, host, skipped


def _aligned(queues: dict[int, deque[_Op]]) -> Iterator[list[_Op]]:
    """Yield the same operation of all devices, one after the other; a device that did not run it is passed over."""
    waiting = [queues[device] for device in sorted(queues)]
    while any(waiting):
        name = next(queue[0].name for queue in waiting if queue)
        yield [queue.popleft() for queue in waiting if queue and queue[0].name == name]


def _facts(row: Row) -> dict[str, Any]:
    facts: dict[str, Any] = {key: text for key, labels in _FACTS.items() if (text := row.text(*labels))}
    facts |= {key: whole(facts[key], 0) for key in _COUNTS if key in facts}
    gap = row.number("OP TO OP LATENCY", unit="ns")
    if gap is None and row.table.index("OP TO OP LATENCY") < 0:
        gap = row.number("Op-to-Op Gap", unit="us")
    return facts if gap is None else facts | {"gap": gap}


def _axis(position: int, axis: str) -> tuple[str, str]:
    """Return the labels of a size of an input."""
    return f"INPUT_{position}_{axis}_PAD[LOGICAL]", f"INPUT_{position}_{axis}"


def _signature(row: Row, inputs: Sequence[int]) -> tuple[Any, ...]:
    """Return shapes and types of the inputs, as operators of other profilers have them."""
    present = [at for at in inputs if row.text(*_axis(at, "X"))]
    dims = tuple(tuple(_logical(row.text(*_axis(at, axis))) for axis in _AXES) for at in present)
    return dims, tuple(row.text(f"INPUT_{at}_DATATYPE") for at in present), (), ()


def _logical(text: str) -> int:
    """Return the size of an axis such as ``32[1]``, which is 1 padded to 32."""
    match = re.search(r"\[(\d{1,12})\]", text)
    return int(match[1]) if match else whole(text, 1, 2**40)
