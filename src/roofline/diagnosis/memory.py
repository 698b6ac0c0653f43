"""Memory over the time of a trace: the peak, when it was, and which operators made what lay in memory then."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.diagnosis.op_summary import words
from roofline.ir.report import Report
from roofline.ir.units import format_bytes, format_si
from roofline.traces.events import DEVICE, Events, Trace
from roofline.traces.linking import operators_at
from roofline.traces.memory import HOST, Allocations

#: Operators that only make room for the one around them.
_ROOM = re.compile(r"aten::(empty|resize_|new_empty)")
#: What lay in memory before the recording began, and what no operator made.
BEFORE, OUTSIDE = "before the recording", "outside of operators"


@dataclass(frozen=True)
class Held:
    """Blocks in memory at the peak that one operator made.

    Attributes:
        op: The operator; in words where no operator of the trace made them.
        shapes: Shapes of its arguments, in words.
        blocks: How many; 0 where they are not known one by one.
        bytes: Of all of them [B].
        share: Of the peak.
    """

    op: str
    shapes: str
    blocks: int
    bytes: int
    share: float


@dataclass(frozen=True, repr=False)
class MemoryTimeline(Report):
    """Memory of one device over a trace; its rows are the allocator's steps.

    From :func:`roofline.diagnosis.trace_report`, as its ``memory``.

    Attributes:
        source: The file.
        device: Number of the device; -1 for the host.
        time: Of each step, since the first event of the trace [s].
        change: Given, negative where taken back [B].
        allocated: In all, after each step [B].
        reserved: Taken from the device by the allocator, after each step; -1 where not recorded [B].
        op: Of each step, position in ``ops``; -1 outside of operators.
        ops: Names of operators.
        held: What lay in memory at the peak, the most first; together it is the peak.
    """

    schema = "trace_memory"

    source: str
    device: int
    time: NDArray[np.float64]
    change: NDArray[np.int64]
    allocated: NDArray[np.int64]
    reserved: NDArray[np.int64]
    op: NDArray[np.int64]
    ops: tuple[str, ...]
    held: tuple[Held, ...]

    @property
    def at(self) -> int:
        """Position of the step that reaches the peak."""
        return int(np.argmax(self.allocated))

    @property
    def peak(self) -> int:
        """The most that was allocated [B]."""
        return int(self.allocated[self.at])

    @property
    def peak_s(self) -> float:
        """When that was, since the first event of the trace [s]."""
        return float(self.time[self.at])

    @property
    def peak_op(self) -> str:
        """The operator that reached it; empty outside of operators."""
        return self._name(self.at)

    def _name(self, at: int) -> str:
        return self.ops[self.op[at]] if self.op[at] >= 0 else ""

    def subject(self) -> dict[str, Any]:
        """Return the file and the device."""
        return {"source": self.source, "device": self.device}

    def summary(self) -> dict[str, Any]:
        """Return the peak, when it was, and what lay in memory then."""
        reserved = int(self.reserved[self.at])
        return {
            "peak_bytes": self.peak, "peak_at_s": self.peak_s, "peak_op": self.peak_op,
            "reserved_bytes": reserved if reserved >= 0 else None, "held": [asdict(one) for one in self.held],
        }  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per step of the allocator."""
        columns = zip(*(column.tolist() for column in (self.time, self.change, self.allocated, self.reserved)),
                      strict=True)  # fmt: skip
        return [
            {"at_s": time, "change_bytes": change, "allocated_bytes": allocated,
             "reserved_bytes": reserved if reserved >= 0 else None, "op": self._name(at)}
            for at, (time, change, allocated, reserved) in enumerate(columns)
        ]  # fmt: skip

    def __str__(self) -> str:
        during = f" in {self.peak_op}" if self.peak_op else ""
        return f"{format_bytes(self.peak)} at the peak, {format_si(self.peak_s, 's')} after the start{during}"

    def __repr__(self) -> str:
        return f"<MemoryTimeline {self}>"


def memory_timeline(trace: Trace) -> MemoryTimeline | None:
    """Return the memory of the device that worked, or of the one with the most; ``None`` where none was recorded."""
    recorded = trace.memory
    if recorded is None:
        return None
    device = _device(trace.events, recorded)
    rows = np.flatnonzero(recorded.device == device)
    time, change, address = recorded.time[rows], recorded.bytes[rows], recorded.address[rows]
    by = operators_at(trace.events, time, (recorded.process[rows], recorded.thread[rows]), _ROOM)
    allocated = recorded.allocated[rows]
    if (allocated < 0).any():  # not recorded before PyTorch 1.12: as if nothing had been there
        sums = np.cumsum(change)
        allocated = sums - min(int(sums.min()), 0)
    return MemoryTimeline(
        source=trace.path,
        device=device,
        time=time,
        change=change,
        allocated=allocated,
        reserved=recorded.reserved[rows],
        op=np.where(by >= 0, trace.events.name[by], -1),
        ops=trace.events.names,
        held=_held(trace.events, change, address, by, allocated),
    )


def _device(events: Events, recorded: Allocations) -> int:
    """Return the device to look at: where kernels ran, else the one with the highest peak."""
    numbers = [int(number) for number in np.unique(recorded.device)]
    worked = set(events.device[np.isin(events.kind, DEVICE)].tolist())
    usable = [number for number in numbers if number in worked] or [n for n in numbers if n != HOST] or numbers
    return max(usable, key=lambda number: int(recorded.allocated[recorded.device == number].max()))


def _held(
    events: Events, change: NDArray[Any], address: NDArray[Any], by: NDArray[Any], allocated: NDArray[Any]
) -> tuple[Held, ...]:
    """Return what lay in memory at the peak, by what made it; what is not among the steps was there before."""
    peak = int(np.argmax(allocated))
    blocks: dict[int, int] = {}
    for at, (size, where) in enumerate(zip(change[: peak + 1].tolist(), address[: peak + 1].tolist(), strict=True)):
        if size > 0:
            blocks[where] = at
        else:
            blocks.pop(where, None)
    made: dict[tuple[str, str], list[int]] = defaultdict(list)
    signatures = (*events.signatures, None)
    for at in blocks.values():
        row = int(by[at])
        key = (events.names[events.name[row]], words(signatures[events.signature[row]])) if row >= 0 else (OUTSIDE, "")
        made[key].append(int(change[at]))
    total = int(allocated[peak])
    whole = max(total, 1)
    rest = total - sum(map(sum, made.values()))
    lines = [Held(*key, len(sizes), sum(sizes), sum(sizes) / whole) for key, sizes in made.items()]
    lines += [Held(BEFORE, "", 0, rest, rest / whole)] if rest else []
    return tuple(sorted(lines, key=lambda line: -line.bytes))
