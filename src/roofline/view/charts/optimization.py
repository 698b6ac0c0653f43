"""What each step of a plan saves, and the plans that no other beats in time, memory and error."""

from __future__ import annotations

from roofline.ir.report import title
from roofline.ir.units import format_bytes, format_si
from roofline.optimization.optimize import Optimization
from roofline.optimization.rounding import CLASSES, error_class
from roofline.optimization.search import Point
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Bars, Drawing, Panel, Points
from roofline.view.charts.style import clean

#: Colours of the classes of error, from exact.
_COLOURS = dict(zip(CLASSES, ("compute", "communication", "memory", "host"), strict=True))


class PlanChart(ResultChart[Optimization]):
    """The steps of a plan and the front it is from, made by :func:`plot_optimization`."""

    kind, made_by, schema = Optimization, "rl.optimize", "plan_chart"

    def drawing(self) -> Drawing:
        """Return a bar for the time after each step, and below it a point for each plan of the front."""
        size = (8.0, 4.4 + 0.4 * len(self.result.stages))
        return Drawing((self._steps(), self._front()), "What the plan saves", title(self.subject()), size=size)

    def _steps(self) -> Panel:
        stages = self.result.stages
        texts = [format_si(each.time_s, "s") for each in stages]
        hover = [f"{text}, {format_bytes(each.memory_bytes)}" for text, each in zip(texts, stages, strict=True)]
        names = ("as given", *(clean(move.name, 36) for move in self.result.moves))
        seconds = [each.time_s for each in stages]
        bars = Bars(list(range(len(stages))), seconds, 0.0, "memory", "time of a run", texts, hover)
        return Panel((bars,), Axis("time of a run", "s", low=0.0, high=1.16 * max(seconds)), Axis(categories=names))

    def _front(self) -> Panel:
        points = [self._of(name, colour) for name, colour in _COLOURS.items()]
        return Panel(tuple(each for each in points if len(each.x)), Axis("time of a run", "s", log=10),
                     Axis("memory of a device", "B", low=0.0))  # fmt: skip

    def _of(self, name: str, colour: str) -> Points:
        points = [point for point in self.result.front if error_class(point.figures.noise) == name]
        seconds, sizes = ([getattr(point.figures, key) for point in points] for key in ("time_s", "memory_bytes"))
        labels, hover = [""] * len(points), [_words(point) for point in points]
        return Points(seconds, sizes, colour, "o", 6.0, f"{name} formats", labels, hover)


def _words(point: Point) -> str:
    moves = ", ".join(move.name for move in point.moves) or "as given"
    return f"{moves}\n{format_si(point.figures.time_s, 's')}, {format_bytes(point.figures.memory_bytes)}"


def plot_optimization(result: Optimization) -> PlanChart:
    """Describe a chart of the time after each step of a plan, and of the front of time against memory.

    Args:
        result: From :func:`roofline.optimize`.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: Another result.

    Example:
        >>> import roofline as rl
        >>> chart = plot_optimization(rl.optimize("gpt2", "h100-sxm", seq=128, without=("kernels", "formats", "cache")))
        >>> chart.records()[0]["step"]
        "run(mode='graph')"
    """
    return PlanChart(result)
