"""A step of training: its time and its memory, part by part."""

from __future__ import annotations

from typing import Any

from roofline.analysis.training import TrainingStep
from roofline.ir.report import size_words
from roofline.ir.units import format_si
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Drawing, Region
from roofline.view.charts.memory import memory_panel, step_need
from roofline.view.charts.waterfall import height, waterfall

#: Colours of the parts of a step's time.
COLOURS = {
    "forward": "compute", "backward": "other3", "recompute": "other1", "communication": "communication",
    "sends": "link", "bubble": "unknown", "data_parallel": "other0", "optimizer": "optimizer",
}  # fmt: skip
#: What each part is, for a reader who hovers over it.
MEANING = {
    "recompute": "activations that were not kept, computed once more",
    "communication": "of tensor, sequence and expert parallelism",
    "sends": "between the stages of the pipeline, what nothing hides",
    "bubble": "filling and draining the pipeline",
    "data_parallel": "gradients and sharded weights, what nothing hides",
}


class StepParts(ResultChart[TrainingStep]):
    """Time and memory of a step of training by part, made by :func:`plot_step`."""

    kind, made_by, schema = TrainingStep, "rl.training.train", "step_parts"

    def records(self) -> list[dict[str, Any]]:
        """Return one row per part: of the time in seconds, of the memory in bytes, with its share."""
        need = step_need(self.result)
        memory = [{"of": "memory", "part": part, "bytes": size, "share": size / need.total}
                  for part, size in need.parts.items()]  # fmt: skip
        return [{"of": "time", **row} for row in self.result.records()] + memory

    def drawing(self) -> Drawing:
        """Return a bar for each part of the time, and below them one for each part of the memory."""
        step, need = self.result, step_need(self.result)
        parts = {name: seconds for name, seconds in step.seconds.items() if seconds > 0}
        axis = Axis("time of a step", "s", low=0.0, high=1.14 * max(step.time, step.high))
        time = waterfall(
            parts, [COLOURS[name] for name in parts], axis, "step", [Region(x0=step.low, x1=step.high, colour="soft")],
            [MEANING.get(name, "") for name in parts], height=len(parts) + 1, title="time on each device",
        )  # fmt: skip
        memory = memory_panel(need, height=len(need.parts) + 1, title="memory of the fullest device")
        rows = len(parts) + len(need.parts) + 2
        said = (f"{format_si(step.time, 's')} ({format_si(step.low, 's')} to {format_si(step.high, 's')}), "
                f"MFU {step.mfu:.1%}, {format_si(step.throughput, f'{step.item}/s')}")  # fmt: skip
        plan = step.plan
        layout = ", ".join(f"{name}={getattr(plan, name)}" for name in ("tp", "pp", "dp", "ep", "zero")
                           if getattr(plan, name) > (name != "zero"))  # fmt: skip
        sizes = ", ".join(size_words(self.subject()))
        head = f"A step of {step.name} on {step.devices} x {step.chip.name}"
        said += f"; {', '.join(filter(None, (layout, sizes, plan.precision, f'recompute {plan.recompute}')))}"
        return Drawing((time, memory), head, said, size=(8.0, height(rows) + 0.9), legend=False)


def plot_step(step: TrainingStep) -> StepParts:
    """Describe a chart of a step of training: where its time goes, and what fills the memory.

    Args:
        step: From :func:`roofline.training.train`.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No step.

    Example:
        >>> import roofline as rl
        >>> chart = plot_step(rl.training.train("gpt2", "h100-sxm", batch=8, seq=1024))
        >>> [row["part"] for row in chart.records()][:2]
        ['forward', 'backward']
    """
    return StepParts(step)
