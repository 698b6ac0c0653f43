"""Measured times over batches: the shape that fits, the knee, and what the chip should do."""

from __future__ import annotations

import numpy as np

from roofline.diagnosis.sweep import SweepVerdict
from roofline.ir.units import format_si
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Band, Drawing, Line, Mark, Panel, Points, Region, Rule
from roofline.view.charts.style import short

#: Points of the fitted curve.
FINE = 128


class MeasuredSweep(ResultChart[SweepVerdict]):
    """Measured times and throughput over batches, made by :func:`plot_sweep`."""

    kind, made_by, schema = SweepVerdict, "rl.diagnosis.check_sweep", "measured_sweep"

    def drawing(self) -> Drawing:
        """Return time and throughput over the batch: measured, fitted and expected."""
        sweep = self.result
        batches, times = np.asarray(sweep.batches), np.asarray(sweep.times)
        fine = np.geomspace(batches[0], batches[-1], FINE)
        fitted = np.asarray(sweep.fit.at(fine))
        hover = [f"batch {batch:g}: {format_si(time, 's')}, {short(batch / time)} items/s"
                 for batch, time in zip(batches, times, strict=True)]  # fmt: skip
        knee = [Rule(x=sweep.knee, label=f"knee {sweep.knee:.3g}", dash=True, colour="soft")
                for _ in (1,) if sweep.knee is not None and batches[0] <= sweep.knee <= batches[-1]]  # fmt: skip
        low, high = (min(max(batch, batches[0]), batches[-1]) for batch in sweep.recommended)
        run = [Region(x0=low, x1=high, colour="floor", label="run these") for _ in (1,) if low < high]
        x = Axis("batch size", log=2)
        measured = {"colour": "ink", "marker": "X", "size": 7.0, "name": "measured", "hover": hover, "edge": "back"}
        top: list[Mark] = [*run, *knee, *self._expected(), Line(fine, fitted, "soft", label="fitted", width=1.3),
                           Rule(y=sweep.floor_s, colour="floor", dash=True, label="floor"),
                           Points(batches, times, **measured)]  # type: ignore[arg-type]  # fmt: skip
        rate: list[Mark] = [*run, *knee, Line(fine, fine / fitted, "soft", label="fitted", width=1.3),
                Points(batches, batches / times, **measured)]  # type: ignore[arg-type]  # fmt: skip
        panels = (Panel(tuple(top), x, Axis("time of one run", "s", log=10), height=1.2),
                  Panel(tuple(rate), x, Axis("throughput [items/s]", log=10)))  # fmt: skip
        est = sweep.predicted
        head = f"{est.graph.name} on {est.chip.name} measured over batches" if est else "Measured over batches"
        return Drawing(panels, f"{head}: {sweep.verdict}", sweep.reading, size=(8.0, 7.0))

    def _expected(self) -> list[Mark]:
        est, batches = self.result.predicted, np.asarray(self.result.batches)
        if est is None:
            return []
        hover = [f"batch {batch:g}: expected {format_si(float(time), 's')}"
                 for batch, time in zip(batches, est.time, strict=True)]  # fmt: skip
        return [Band(batches, est.low, est.high, "compute"),
                Line(batches, est.time, "compute", label="expected", bold=True, hover=hover)]  # fmt: skip


def plot_sweep(sweep: SweepVerdict) -> MeasuredSweep:
    """Describe a chart of measured times over batches: the fitted shape, its floor and knee, and what was expected.

    Args:
        sweep: From :func:`roofline.diagnosis.check_sweep`.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No verdict on a sweep.

    Example:
        >>> import roofline as rl
        >>> sweep = rl.diagnosis.check_sweep([1, 8, 16, 64, 128], ["5 ms", "5 ms", "5 ms", "16 ms", "32 ms"])
        >>> len(plot_sweep(sweep).records())
        5
    """
    return MeasuredSweep(sweep)
