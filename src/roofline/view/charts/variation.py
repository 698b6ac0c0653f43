"""How long a program takes where its sizes differ from run to run: which share of the runs ends within a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from roofline.analysis.varied.variation import PERCENTILES, Variation
from roofline.ir.units import format_si
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Drawing, Line, Panel, Points, Rule

#: Points of the curve at most.
MOST = 401
#: From which ratio of the slowest run to the fastest on the axis is logarithmic.
WIDE = 10.0


class TimeShares(ResultChart[Variation]):
    """The share of runs that end within a time, made by :func:`plot_variation`."""

    kind, made_by, schema = Variation, "rl.analysis.vary", "time_shares"

    def records(self) -> list[dict[str, Any]]:
        """Return one row per point of the curve: a share of the runs, and the time within which they end."""
        shares = np.linspace(0.0, 1.0, min(MOST, len(self.result.times)))
        times = np.quantile(self.result.times, shares)
        return [{"share": float(share), "time_s": float(time)} for share, time in zip(shares, times, strict=True)]

    def drawing(self) -> Drawing:
        """Return the curve with the percentiles on it, and the mean."""
        some, rows = self.result, self.records()
        times, shares = ([row[name] for row in rows] for name in ("time_s", "share"))
        marked = [some.percentile(each) for each in PERCENTILES]
        marks = (
            Line(times, shares, "compute", bold=True),
            Points(marked, [each / 100 for each in PERCENTILES], "compute",
                   labels=[f"p{each}: {format_si(time, 's')}" for each, time in zip(PERCENTILES, marked, strict=True)]),
            Rule(x=some.mean, dash=True, label=f"mean {format_si(some.mean, 's')}"),
        )  # fmt: skip
        axes = Axis("time", "s", log=10 if times[-1] > WIDE * times[0] else 0), Axis("runs that take no longer", "%")
        drawn = ", ".join(f"{name} {text}" for name, text in some.about["drawn"].items())
        head = f"{some.about['model']} on {some.about['chip']}, {len(some.times):,} draws"
        return Drawing((Panel(marks, *axes),), head, drawn)


def plot_variation(variation: Variation) -> TimeShares:
    """Describe a chart of a time that differs from run to run: which share of the runs ends within it.

    Args:
        variation: From :func:`roofline.analysis.vary`.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No variation.

    Example:
        >>> import roofline as rl
        >>> some = rl.analysis.vary("gpt2", "h100-sxm", phase="decode", batch=1, context="uniform:low=1,high=1000")
        >>> [row["share"] for row in plot_variation(some).records()[::100]]
        [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    return TimeShares(variation)
