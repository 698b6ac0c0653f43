"""A program over figures of a chip: a curve for one figure, a map for two."""

from __future__ import annotations

from typing import Any

import numpy as np

from roofline.analysis.chip_sweep import FigureSweep, Swept, reading
from roofline.ir.report import title
from roofline.ir.units import format_si
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Band, Cells, Drawing, Line, Mark, Panel, Points, Rule

#: Values along an axis of the map at most, and those whose cells say their time.
MOST, WORDY = 24, 12


class FigureSweepChart(ResultChart[FigureSweep]):
    """Times over one figure of a chip or two, made by :func:`plot_figures`."""

    kind, made_by, schema = FigureSweep, "rl.sweep_chip", "chip_sweep_chart"

    def drawing(self) -> Drawing:
        """Return a curve for one figure, a map for two; others are at their last value."""
        varied = [at for at, each in enumerate(self.result.figures) if len(each.values) > 1] or [0]
        panel = self._curve(varied[0]) if len(varied) == 1 else self._map(varied[0], varied[1])
        names = " and ".join(self.result.figures[at].name for at in varied[:2])
        others = [f"{each.name} {each.text(each.values[-1])}" for at, each in enumerate(self.result.figures)
                  if at not in varied[:2] and len(varied) > 2]  # fmt: skip
        buys = "buy" if " and " in names else "buys"
        head = f"What {names} {buys}"
        return Drawing((panel,), head, ", ".join([title(self.subject()), *others]), size=(8.0, 5.4))

    def _along(self, *axes: int) -> tuple[Any, ...]:
        """Index the results along some axes, the others at their last value."""
        return tuple(slice(None) if at in axes else -1 for at in range(len(self.result.figures)))

    def _curve(self, axis: int) -> Panel:
        figure, at = self.result.figures[axis], self._along(axis)
        out = {name: values[at] for name, values in self.result.results.items()}
        hover = [f"{figure.name} {figure.text(value)}\n{format_si(float(time), 's')}, {bound}-bound"
                 for value, time, bound in zip(figure.values, out["time"], out["bound"], strict=True)]  # fmt: skip
        x, times = figure.values, out["time"]
        marks: list[Mark] = [
            Band(x, out["low"], out["high"], "compute"),
            Line(x, out["floor"], "floor", label="floor", dash=True, width=1.3),
            Line(x, times, "ink", label="expected", bold=True, width=1.3),
        ]
        for bound in dict.fromkeys(out["bound"].tolist()):
            some = [i for i, each in enumerate(out["bound"]) if each == bound]
            marks.append(Points(x[some], times[some], bound, size=6.0, name=f"{bound}-bound",
                                hover=[hover[i] for i in some]))  # fmt: skip
        old = None if figure.is_factor else figure.places[0].value(self.result.base.chip)
        if old is not None and x[0] <= old <= x[-1]:
            marks.append(
                Rule(x=old, label=f"{self.result.base.chip.name} {figure.text(old)}", colour="soft", dash=True)
            )
        said = reading(figure, times).partition(";")[0].partition(":")[0]
        return Panel(tuple(marks), _axis(figure), Axis("time of one run", "s", log=10), title=said)

    def _map(self, down: int, across: int) -> Panel:
        first, second = self.result.figures[down], self.result.figures[across]
        rows, columns = (np.unique(np.linspace(0, len(each.values) - 1, MOST).round().astype(int))
                         for each in (first, second))  # fmt: skip
        at = self._along(down, across)
        picked = np.ix_(rows, columns)
        times, bounds = self.result.time[at][picked], self.result.bound[at][picked]
        words = max(times.shape) <= WORDY
        texts = [[format_si(float(each), "s") for each in row] for row in times] if words else ()
        hover = [[f"{first.name} {first.text(first.values[i])}, {second.name} {second.text(second.values[j])}\n"
                  f"{format_si(float(time), 's')}, {bound}-bound"
                  for j, time, bound in zip(columns, line, names, strict=True)]
                 for i, line, names in zip(rows, times, bounds, strict=True)]  # fmt: skip
        names = [tuple(each.text(each.values[i]) for i in some)
                 for each, some in ((first, rows), (second, columns))]  # fmt: skip
        x, y = Axis(second.name, categories=names[1]), Axis(first.name, categories=names[0])
        return Panel((Cells(times, texts, hover, "memory", log=True),), x, y, title="time of one run")


def _axis(figure: Swept) -> Axis:
    return Axis(f"{figure.name}{' (factor)' if figure.is_factor else ''}", figure.unit, log=10 if figure.unit else 2)


def plot_figures(sweep: FigureSweep) -> FigureSweepChart:
    """Describe a chart of a program over figures of a chip.

    Args:
        sweep: From :func:`roofline.sweep_chip`.

    Returns:
        The chart: time, range and floor over one figure, a map of times over two; nothing is drawn before it is shown
        or saved.

    Raises:
        UsageError: No sweep over chips.

    Example:
        >>> import roofline as rl
        >>> swept = rl.sweep_chip("gpt2", "l4", {"memory_bandwidth": "x1,x2"}, phase="decode", batch=1, context=64)
        >>> plot_figures(swept)
        <FigureSweepChart: What memory_bandwidth buys>
    """
    return FigureSweepChart(sweep)
