"""Time by layer, and what bounds it."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import Any

from roofline.analysis.estimates import Estimate
from roofline.analysis.timeline import KernelRun, kernel_runs
from roofline.cost import BOUNDS
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Bars, Drawing, Panel
from roofline.view.charts.roof import about


class LayerTimes(ResultChart[Estimate]):
    """Time by layer and bound, made by :func:`plot_layers`."""

    kind, made_by, schema = Estimate, "rl.estimate", "layers"

    @cached_property
    def runs(self) -> tuple[KernelRun, ...]:
        """Kernels in their order."""
        return kernel_runs(self.result)

    @cached_property
    def seconds(self) -> dict[tuple[str, str], dict[str, float]]:
        """Time by phase and layer, then by bound [s]."""
        times: dict[tuple[str, str], dict[str, float]] = defaultdict(lambda: dict.fromkeys(BOUNDS, 0.0))
        for run in self.runs:
            times[run.phase, run.layer][run.bound] += run.seconds
        return dict(times)

    def records(self) -> list[dict[str, Any]]:
        """Return one row per layer and phase: its time, share, and time by bound."""
        total = float(self.result.device_time)
        return [
            {"layer": layer, "phase": phase, "time_s": sum(parts.values()), "share": sum(parts.values()) / total,
             **{f"{bound}_s": seconds for bound, seconds in parts.items() if bound != "host"}}
            for (phase, layer), parts in self.seconds.items()
        ]  # fmt: skip

    def drawing(self) -> Drawing:
        """Return a column for each layer, stacked by what bounds its kernels; a panel for each phase."""
        phases = list(dict.fromkeys(run.phase for run in self.runs))
        layers = tuple(dict.fromkeys(run.layer for run in self.runs))
        panels = tuple(self._panel(phase, layers, phase if len(phases) > 1 else "") for phase in phases)
        est = self.result
        head = f"Time by layer of {est.graph.name} on {est.chip.name}"
        return Drawing(panels, head, about(est), size=(8.0, 1.8 + 2.4 * len(panels)))

    def _panel(self, phase: str, layers: tuple[str, ...], title: str) -> Panel:
        at = [i for i, layer in enumerate(layers) if (phase, layer) in self.seconds]
        times = [self.seconds[phase, layers[i]] for i in at]
        starts, bars = [0.0] * len(at), []
        axis = Axis("time on the device", "s")
        for bound in BOUNDS:
            length = [each[bound] for each in times]
            if any(length):
                hover = [f"{layers[i]}: {axis.text(part)} {bound}-bound of {axis.text(sum(each.values()))}"
                         for i, part, each in zip(at, length, times, strict=True)]  # fmt: skip
                bars.append(Bars(at, length, starts, bound, f"{bound}-bound", hover=hover, horizontal=False, width=0.8))
                starts = [start + part for start, part in zip(starts, length, strict=True)]
        return Panel(tuple(bars), Axis("layer", categories=layers), axis, title=title)


def plot_layers(estimate: Estimate) -> LayerTimes:
    """Describe a chart of the time of each layer, by what bounds its kernels.

    Layers are those of the module tree: the path up to its first number, or the first module where none is numbered.

    Args:
        estimate: Of one point on one chip.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: The estimate is not one point.

    Example:
        >>> import roofline as rl
        >>> est = rl.estimate("gpt2", "h100-sxm", phase="decode", batch=1, context=512)
        >>> [row["layer"] for row in plot_layers(est).records()][-2:]
        ['norm', 'head']
    """
    chart = LayerTimes(estimate)
    assert chart.runs  # raises where there are several points
    return chart
