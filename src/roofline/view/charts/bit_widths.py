"""Formats per layer: the error of plans that no others beat over their predicted time or their bytes."""

from __future__ import annotations

from collections.abc import Sequence

from roofline.ir.report import title
from roofline.ir.units import format_si
from roofline.quant.bit_widths import BitWidths, Plan, counted
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Drawing, Line, Mark, Panel, Points


class BitWidthsChart(ResultChart[BitWidths]):
    """Plans of formats per layer, made by :func:`plot_bit_widths`."""

    kind, made_by, schema = BitWidths, "rl.quant.mixed", "bit_widths_chart"

    def drawing(self) -> Drawing:
        """Return the sums over layers as a curve, what was measured as points, and the best plan named."""
        widths, best = self.result, self.result.best
        plans = sorted(widths.shown, key=self._cost)
        sums = [(plan.time_sum if widths.against == "time" else plan.weight_bytes) for plan in plans]
        marks: list[Mark] = [
            Line(sums, [plan.error_sum for plan in plans], "soft", name="errors of layers, added up", dash=True),
            self._points(
                plans, "compute", "measured as a whole", ["" if plan is best else self._word(plan) for plan in plans]
            ),
        ]
        if best is not None:
            marks.append(self._points([best], "memory", widths.limit, [self._word(best)], size=9.0))
        what, unit = ("predicted time", "s") if widths.against == "time" else ("all weights", "B")
        panel = Panel(tuple(marks), Axis(what, unit, log=2 if unit == "B" else 0), Axis("error", low=0.0))
        head = f"Formats for each layer on {widths.chip.name}: {widths.points} choices that no others beat"
        return Drawing((panel,), head, title(self.subject()), size=(8.0, 5.2))

    def _cost(self, plan: Plan) -> float:
        return plan.time if self.result.against == "time" else plan.weight_bytes

    def _word(self, plan: Plan) -> str:
        return ", ".join(f"{number} {word}" for word, number in counted(plan, self.result.graph).items())

    def _points(
        self, plans: Sequence[Plan], colour: str, name: str, labels: Sequence[str], size: float = 6.0
    ) -> Points:
        sizes = [f"{format_si(plan.time, 's')}, {format_si(plan.weight_bytes, 'B')}" for plan in plans]
        hover = [f"{self._word(plan)}\n{size}, error {plan.error:.3g}" for plan, size in zip(plans, sizes, strict=True)]
        x, y = [self._cost(plan) for plan in plans], [plan.error for plan in plans]
        return Points(x, y, colour, name=name, labels=labels, hover=hover, size=size)


def plot_bit_widths(widths: BitWidths) -> BitWidthsChart:
    """Describe a chart of formats per layer.

    Args:
        widths: From :func:`roofline.quant.mixed`.

    Returns:
        The chart: errors, added up and measured, over predicted time or bytes; nothing is drawn before it is shown or
        saved.

    Raises:
        UsageError: No bit widths.

    Example:
        >>> import torch, roofline as rl
        >>> net = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(2)))
        >>> costs = rl.quant.sensitivity(net, [torch.randn(8, 64)], ["int8"])
        >>> plot_bit_widths(rl.quant.mixed(costs, "h100-sxm", against="memory", plans=3))
        <BitWidthsChart: Formats for each layer on h100-sxm: 3 choices that no others beat>
    """
    return BitWidthsChart(widths)
