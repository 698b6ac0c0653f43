"""A program on several numbers of devices: how much faster, and what communication takes."""

from __future__ import annotations

from typing import Any

from roofline.analysis.scale_out import Scaling
from roofline.ir.report import title
from roofline.ir.units import format_bytes, format_si
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Bars, Drawing, Line, Mark, Panel, Points


class ScalingCurve(ResultChart[Scaling]):
    """Speed-up and communication by number of devices, made by :func:`plot_scaling`."""

    kind, made_by, schema = Scaling, "rl.scaling", "scaling_curve"

    def records(self) -> list[dict[str, Any]]:
        """Return one row per number of devices: time, its parts, speed-up, the ideal one, memory."""
        return [row | {"ideal": row["devices"] / self.result.points[0].devices, **parts}
                for row, parts in zip(self.result.records(), self._parts(), strict=True)]  # fmt: skip

    def _parts(self) -> list[dict[str, float]]:
        """Return the time by part [s]: kernels that compute, collectives, and what the host takes beyond both."""
        return [
            {"computing_s": float(point.estimate.device_time) - point.communication,
             "communication_s": point.communication,
             "waiting_for_host_s": point.time - float(point.estimate.device_time)}
            for point in self.result.points
        ]  # fmt: skip

    def drawing(self) -> Drawing:
        """Return the speed-up beside the ideal one, and below it the time by part."""
        points, at = self.result.points, range(len(self.result.points))
        x = Axis("devices", categories=tuple(f"{point.devices:,}" for point in points))
        ideal = [point.devices / points[0].devices for point in points]
        gains = [point.speed_up for point in points]
        marks: list[Mark] = [
            Line(at, ideal, "soft", label="ideal", dash=True, width=1.2, solid=False),
            Line(at, gains, "compute", label="expected", bold=True),
        ]
        for fits, colour, name in ((True, "compute", "fits"), (False, "red", "does not fit in memory")):
            some = [i for i in at if (points[i].estimate.fits is not False) == fits]
            if some:
                marks.append(Points(
                    some, [gains[i] for i in some], colour, size=7.0, name="" if fits else name, filled=fits,
                    labels=[f"{points[i].efficiency:.0%}" for i in some], hover=[self._said(i) for i in some],
                ))  # fmt: skip
        top = Panel(tuple(marks), x, Axis("speed-up", log=2, low=min(gains) / 1.3, high=max(ideal) * 1.3),
                    title="throughput over that of the fewest devices, with the efficiency")  # fmt: skip
        panels = (top, Panel(tuple(self._stacked()), x, Axis("time of one run", "s"), title="where the time goes"))
        stop = self.result.stops_paying
        gain = f"{self.result.least_gain:.0%}"
        said = "every step pays" if stop is None else f"beyond {stop:,} the next step saves less than {gain}"
        head = f"{self.result.graph.name} on more and more {self.result.cluster.chip.name}: {said}"
        return Drawing(panels, head, title(self.subject()), size=(8.0, 6.8))

    def _stacked(self) -> list[Mark]:
        looks = {
            "computing_s": ("compute", "kernels that compute"), "communication_s": ("communication", "collectives"),
            "waiting_for_host_s": ("host", "the host beyond both"),
        }  # fmt: skip
        parts, starts, marks = self._parts(), [0.0] * len(self.result.points), list[Mark]()
        for key, (colour, name) in looks.items():
            seconds = [part[key] for part in parts]
            if any(second > 0 for second in seconds):
                shares = [second / point.time for second, point in zip(seconds, self.result.points, strict=True)]
                hover = [f"{name}: {format_si(second, 's')}, {share:.1%}"
                         for second, share in zip(seconds, shares, strict=True)]  # fmt: skip
                texts = [f"{share:.0%}" if share >= 0.08 else "" for share in shares]
                marks.append(Bars(range(len(seconds)), seconds, starts, colour, name, texts, hover, horizontal=False,
                                  width=0.55))  # fmt: skip
                starts = [start + second for start, second in zip(starts, seconds, strict=True)]
        return marks

    def _said(self, at: int) -> str:
        point = self.result.points[at]
        fits = "" if point.estimate.fits is not False else ", does not fit"
        return (f"{point.devices:,} devices: {format_si(point.time, 's')}, {point.speed_up:.3g} times as fast\n"
                f"{point.share:.1%} in collectives, {format_bytes(float(point.memory.total))} each{fits}")  # fmt: skip


def plot_scaling(scaling: Scaling) -> ScalingCurve:
    """Describe a chart of a program on more and more devices: speed-up beside the ideal one, and where the time goes.

    Args:
        scaling: From :func:`roofline.scaling`.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No scaling.

    Example:
        >>> import roofline as rl
        >>> some = rl.scaling("llama-3-8b", "h100-sxm", (1, 2), phase="decode", mode="graph", batch=8, context=2048)
        >>> [row["ideal"] for row in plot_scaling(some).records()]
        [1.0, 2.0]
    """
    return ScalingCurve(scaling)
