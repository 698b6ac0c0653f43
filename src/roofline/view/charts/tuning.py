"""How a search for a fast variant of a kernel came along."""

from __future__ import annotations

from roofline.ir.units import format_si
from roofline.measurement.tuning.tune import Tuning
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Drawing, Line, Panel, Points, Rule


class TuningCurve(ResultChart[Tuning]):
    """Each variant that was measured, and the best so far, made by :func:`plot_tuning`."""

    kind, made_by, schema = Tuning, "rl.measurement.tune", "tuning_curve"

    def drawing(self) -> Drawing:
        """Return the times in the order of measuring, and the best so far as a curve."""
        tuning = self.result
        seconds, at = list(tuning.measured.values()), range(1, len(tuning.measured) + 1)
        hover = [f"{number}. {variant}: {format_si(time, 's')}"
                 for number, (variant, time) in enumerate(tuning.measured.items(), start=1)]  # fmt: skip
        marks = (
            Points(at, seconds, "soft", name="measured", hover=hover, size=4.0),
            Line(at, tuning.convergence, "compute", name="best so far", bold=True),
            Rule(y=tuning.library, colour="ink", dash=True, label=f"library, {format_si(tuning.library, 's')}"),
        )
        axes = Axis("measurements"), Axis("time of one run", "s", log=10, low=0.8 * min(*seconds, tuning.library))
        said = f"{tuning.best} in {format_si(tuning.seconds, 's')}"
        head = f"{tuning.problem}: {said}"
        under = f"{len(seconds)} of {tuning.size} variants measured by {tuning.method}, on {tuning.chip}"
        return Drawing((Panel(marks, *axes),), head, under)


def plot_tuning(tuning: Tuning) -> TuningCurve:
    """Describe a chart of a search: the time of each variant in the order of measuring, and the best so far.

    Args:
        tuning: From :func:`roofline.measurement.tune`.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No tuning.

    Example:
        >>> import roofline as rl, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     some = rl.measurement.tune(48, 48, 48, kernels=["numpy"], budget=8, cache=folder)
        >>> len(plot_tuning(some).records()) == len(some.measured)
        True
    """
    return TuningCurve(tuning)
