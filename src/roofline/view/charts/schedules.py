"""Schedules of a matmul: the time of each over the results of its tile, and what sets its pace."""

from __future__ import annotations

from typing import Any

from roofline.analysis.schedules import Row, Schedules
from roofline.ir.report import title
from roofline.ir.units import format_si
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Drawing, Mark, Panel, Points, Rule

#: Colour and marker of what sets the pace.
BY_BOUND = {
    "compute": ("compute", "o"), "shared": ("sync", "D"), "latency": ("link", "^"), "cache": ("communication", "P"),
    "memory": ("memory", "s"), "launch": ("launch", "v"),
}  # fmt: skip


class ScheduleTimes(ResultChart[Schedules]):
    """Times of schedules over the results of their tiles, made by :func:`plot_schedules`."""

    kind, made_by, schema = Schedules, "rl.schedules", "schedules_chart"

    def drawing(self) -> Drawing:
        """Return a point for each schedule that can run, the fastest named, above the floor."""
        result = self.result
        marks: list[Mark] = [
            Rule(y=result.floor, label=f"floor {format_si(result.floor, 's')}", colour="floor", dash=True),
            Rule(y=result.library, label=f"library {format_si(result.library, 's')}", colour="soft", dash=True),
            self._points("ink", "o", "", [result.best], labels=[result.best.figures], size=9.0),
        ]
        for bound, (colour, marker) in BY_BOUND.items():
            if rows := [row for row in result.rows if row.bound == bound]:
                marks.append(self._points(colour, marker, f"{bound}-bound", rows))
        panel = Panel(
            tuple(marks),
            Axis("results of a tile", log=2),
            Axis("time of the launch", "s", log=10, low=result.floor * 0.95),
        )
        b, m, n, k = result.sizes
        head = f"{f'{b} x ' if b > 1 else ''}{m} x {n} x {k} on {result.chip.name}: {len(result.rows)} schedules"
        return Drawing((panel,), head, title(self.subject()), size=(8.0, 5.4))

    def _points(self, colour: str, marker: str, name: str, rows: list[Row], **more: Any) -> Points:
        hover = [f"{row.figures}\n{format_si(row.time_s or 0.0, 's')}, {row.bound}-bound" for row in rows]
        x, y = [row.bm * row.bn for row in rows], [row.time_s or 0.0 for row in rows]
        return Points(x, y, colour, marker, name=name, hover=hover, **{"size": 5.0, **more})


def plot_schedules(schedules: Schedules) -> ScheduleTimes:
    """Describe a chart of schedules.

    Args:
        schedules: From :func:`roofline.schedules`.

    Returns:
        The chart: the time of each over the results of its tile, coloured by what sets the pace; nothing is drawn
        before it is shown or saved.

    Raises:
        UsageError: No schedules, or none that can run.

    Example:
        >>> import roofline as rl
        >>> plot_schedules(rl.schedules("gemm m=4096 n=4096 k=4096", "h100-sxm", top=50))
        <ScheduleTimes: 4096 x 4096 x 4096 on h100-sxm: 50 schedules>
    """
    chart = ScheduleTimes(schedules)
    assert schedules.best  # raises where none can run
    return chart
