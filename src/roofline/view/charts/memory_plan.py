"""Where tensors lie while a program runs: offsets against time, a rectangle each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from roofline.ir.report import title
from roofline.ir.units import format_bytes
from roofline.planning.memory import LOADED, LevelUse, MemoryPlan, Placed
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Bars, Drawing, Panel, Rule
from roofline.view.charts.style import clean
from roofline.view.charts.waterfall import NEAR

#: Two colours of each group of tensors, in turn where many stand close together, and what a reader calls it.
GROUPS = {
    "handed": (("activations", "sync"), "handed from kernel to kernel, in two shades"),
    "spilled": (("red", "red"), "spilled"),
    "outside": (("inputs", "inputs"), "a result of the run"),
    LOADED: (("weights", "weights"), "weights that come ahead"),
}  # fmt: skip
#: Rectangles of a level at most, the largest; tensors whose bytes a reader would not see are left out first.
MOST = 1500


class MemoryPlaces(ResultChart[MemoryPlan]):
    """Places of tensors over a run, made by :func:`plot_memory_plan`."""

    kind, made_by, schema = MemoryPlan, "rl.memory_plan", "memory_places"

    def records(self) -> list[dict[str, Any]]:
        """Return one row per rectangle: the tensor, where it lies, and when."""
        ends = np.concatenate([[0.0], np.cumsum(self.result.seconds)])
        return [
            {**row, "start_s": float(ends[row["first"]]), "end_s": float(ends[row["last"] + 1])}
            for row in self.result.records()
        ]

    def drawing(self) -> Drawing:
        """Return a panel for each memory, that on chip first; main memory where it has spills, from the end of what
        is stored there."""
        shown = [use for use in reversed(self.result.levels) if use.arena_bytes]
        shown = shown if self.result.spilled_bytes else shown[:1]
        panels = tuple(map(self._panel, shown))
        head = f"Memory plan of {self.result.graph.name} on {self.result.chip.name}"
        return Drawing(panels, head, title(self.subject()), size=(8.0, 1.4 + 2.9 * len(panels)))

    def _panel(self, use: LevelUse) -> Panel:
        ends = np.concatenate([[0.0], np.cumsum(self.result.seconds)])
        here = [
            each for each in self.result.placed if each.level == use.level and each.offset_bytes >= use.stored_bytes
        ]
        here = sorted(here, key=lambda each: -each.size_bytes)[:MOST]
        groups = {name: [each for each in here if _group(each, self.result) == name] for name in GROUPS}
        marks = [_rectangles(of, ends, use.stored_bytes, *GROUPS[name]) for name, of in groups.items() if of]
        x = Axis("time, kernels one after the other", "s", low=0.0, high=float(ends[-1]))
        room = (use.capacity_bytes or np.inf) - use.stored_bytes
        rules = [Rule(y=room, label=f"capacity {format_bytes(use.capacity_bytes or 0)}", colour="red")]
        limits = rules if room < NEAR * use.arena_bytes else []
        high = 1.06 * max(use.arena_bytes, room if limits else 0.0)
        behind = f", behind {format_bytes(use.stored_bytes)} that are stored" if use.stored_bytes else ""
        said = f"{use.level}: {format_bytes(use.arena_bytes)} for {format_bytes(use.live_bytes)} at once{behind}"
        return Panel((*marks, *limits), x, Axis("offset", "B", low=0.0, high=high), title=said)


def _group(each: Placed, plan: MemoryPlan) -> str:
    if each.kind == LOADED:
        return LOADED
    if each.level != plan.chip.main.name:
        return "handed"
    return "spilled" if each.spilled else "outside"


def _rectangles(every: Sequence[Placed], ends: Any, base: int, colours: tuple[str, str], name: str) -> Bars:
    every = sorted(every, key=lambda each: (each.first, each.offset_bytes))
    starts = [float(ends[each.first]) for each in every]
    hover = [
        f"{clean(each.tensor, 60)}: {format_bytes(each.size_bytes)} at {each.offset_bytes:,}, kernels {each.first} to "
        f"{each.last}" for each in every
    ]  # fmt: skip
    return Bars(
        [each.offset_bytes - base + each.size_bytes / 2 for each in every],
        [float(ends[each.last + 1]) - start for each, start in zip(every, starts, strict=True)], starts,
        [colours[at % 2] for at in range(len(every))], name,
        hover=hover, width=[float(each.size_bytes) for each in every],
    )  # fmt: skip


def plot_memory_plan(plan: MemoryPlan) -> MemoryPlaces:
    """Describe a chart of where tensors lie over a run: offsets against time, on chip and in main memory.

    Args:
        plan: From :func:`roofline.memory_plan`.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No memory plan.

    Example:
        >>> import roofline as rl
        >>> plot_memory_plan(rl.memory_plan("mobilenet-v2", "tpu-v5e", batch=1)).result.levels[1].fits
        True
    """
    return MemoryPlaces(plan)
