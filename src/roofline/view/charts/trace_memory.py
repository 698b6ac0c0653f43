"""The memory of the device that a trace recorded: over time, and what lay in it at the peak."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from roofline.diagnosis.memory import MemoryTimeline as Recorded
from roofline.diagnosis.report import TraceReport
from roofline.ir.errors import UsageError
from roofline.ir.text import shown
from roofline.ir.units import format_bytes
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Band, Drawing, Line, Mark, Panel, Points
from roofline.view.charts.sweep import DRAWN
from roofline.view.charts.waterfall import BAR, waterfall

#: What has a bar of its own among what lay in memory at the peak.
MOST = 8


@dataclass(frozen=True, eq=False, repr=False)
class TraceMemory(ResultChart[Recorded]):
    """Memory over a trace, made by :func:`plot_trace_memory`.

    Attributes:
        capacity: Of the device; ``None`` where it is not known [B].
    """

    kind, made_by, schema = Recorded, "rl.diagnosis.trace_report", "trace_memory_chart"
    capacity: float | None = None

    def summary(self) -> dict[str, Any]:
        """Return the peak, when it was, what lay in memory then, and the capacity."""
        return self.result.summary() | {"capacity_bytes": self.capacity}

    def drawing(self) -> Drawing:
        """Return what was allocated and reserved over time, the peak, and what lay in memory then."""
        memory = self.result
        held = self._held()
        time = Axis("time since the trace began", "s", low=0.0)
        most = max(memory.peak, int(memory.reserved.max()))
        panels = (
            Panel(tuple(self._curves()), time, Axis("memory", "B", low=0.0, high=1.25 * most), 5.5, "over the trace"),
            waterfall(held, ["activations"] * len(held), Axis("at the peak, by what made it", "B", low=0.0), "peak",
                      written=str, height=len(held) + 1.0),
        )  # fmt: skip
        where = "the host" if memory.device < 0 else f"device {memory.device}"
        room = f" of {format_bytes(self.capacity)}" if self.capacity is not None else ""
        title = f"Memory of {where} over {os.path.basename(memory.source)}"
        return Drawing(panels, title, str(memory).replace(" at the peak", f"{room} at the peak", 1),
                       size=(8.6, 4.4 + BAR * (len(held) + 1)))  # fmt: skip

    def _curves(self) -> list[Mark]:
        memory = self.result
        steps = self._steps()
        time = np.append(np.repeat(memory.time[steps], 2)[1:], memory.time[-1])
        level = np.repeat(memory.allocated[steps], 2)
        hover = [f"{format_bytes(int(memory.allocated[at]))} allocated" + (f"\n{op}" if (op := self._op(at)) else "")
                 for at in steps for _ in range(2)]  # fmt: skip
        marks: list[Mark] = [
            Band(time, np.zeros(len(time)), level, "activations", strength=0.35),
            Line(time, level, "activations", "allocated", hover=hover),
        ]
        if (memory.reserved >= 0).all():
            marks.append(
                Line(time, np.repeat(memory.reserved[steps], 2), "soft", "reserved by the allocator", dash=True)
            )
        during = f" in {memory.peak_op}" if memory.peak_op else ""
        label = f"peak {format_bytes(memory.peak)}{during}"
        marks.append(Points([memory.peak_s], [memory.peak], "red", labels=[label], hover=[label]))
        return marks

    def _steps(self) -> list[int]:
        """Return the steps that are drawn: all, or the fullest of some that follow each other."""
        every = np.array_split(np.arange(len(self.result.time)), min(len(self.result.time), DRAWN))
        return [int(part[int(np.argmax(self.result.allocated[part]))]) for part in every]

    def _op(self, at: int) -> str:
        row = int(self.result.op[at])
        return self.result.ops[row] if row >= 0 else ""

    def _held(self) -> dict[str, float]:
        """Return what lay in memory at the peak, by operator; the small ones together."""
        by: dict[str, float] = {}
        for one in self.result.held:
            by[one.op] = by.get(one.op, 0.0) + one.bytes
        ranked = sorted(by.items(), key=lambda pair: -pair[1])
        most, rest = (ranked[:MOST], ranked[MOST:]) if len(ranked) > MOST + 1 else (ranked, [])
        return dict(most) | ({f"{len(rest)} others": sum(size for _, size in rest)} if rest else {})


def plot_trace_memory(report: TraceReport) -> TraceMemory:
    """Describe a chart of the device's memory over a trace: allocated, reserved, the peak and what lay in it then.

    Args:
        report: From :func:`roofline.diagnosis.trace_report`, of a trace with ``profile_memory=True``.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No report of a trace, or one that recorded no memory.

    Example:
        >>> import roofline as rl
        >>> chart = plot_trace_memory(rl.diagnosis.trace_report("examples/block_before.json.gz"))
        >>> max(row["allocated_bytes"] for row in chart.records()) == chart.result.peak
        True
    """
    if not isinstance(report, TraceReport):
        raise UsageError(f"expected a TraceReport of rl.diagnosis.trace_report, given {shown(report)}")
    if report.memory is None:
        raise UsageError(f"{report.source} records no memory; profile with profile_memory=True")
    on_chip = report.chip is not None and report.memory.device >= 0
    return TraceMemory(report.memory, report.chip.main.capacity if on_chip and report.chip is not None else None)
