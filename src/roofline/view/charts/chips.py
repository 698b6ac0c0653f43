"""Chips side by side on one program: how long each takes, and what better figures of each would buy."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from roofline.analysis.comparison import Candidate, Comparison
from roofline.cost import BOUNDS
from roofline.hardware.figures import figure
from roofline.ir.errors import UsageError
from roofline.ir.report import title
from roofline.ir.units import format_si
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Bars, Drawing, Line, Mark, Panel, Points
from roofline.view.charts.memory import varied
from roofline.view.charts.style import clean, short
from roofline.view.charts.waterfall import height

#: Figures of a chip by the colour of what they set the pace of; peaks of all formats are one.
FIGURE_COLOURS = {
    "peak": "compute", "vector_peak": "other3", "memory_bandwidth": "memory", "cache_bandwidth": "other2",
    "cache_capacity": "sync", "link_bandwidth": "communication", "host_bandwidth": "link", "launch": "launch",
    "host": "host",
}  # fmt: skip
#: An elasticity below this everywhere is not drawn [%/%].
LEAST = 0.005


class _OfComparison(ResultChart[Comparison]):
    """A chart with a row for each chip and point."""

    kind, made_by = Comparison, "rl.compare"

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Names of the rows: the chip, and the size that varies."""
        every = [row.estimate for row in self.result.rows if row.estimate is not None]
        names = varied(self.result.subject())
        return tuple(", ".join([row.chip.name, *(words for words in _sizes(row, names) if every)])
                     for row in self.result.rows)  # fmt: skip


def _sizes(row: Candidate, names: set[str]) -> list[str]:
    if row.estimate is None:
        return []
    return [f"{name} {size:,}" for name, size in row.estimate.subject()["sizes"].items() if name in names]


class ChipTimes(_OfComparison):
    """How long each chip takes, made by :func:`plot_comparison`."""

    schema = "chip_times"

    def records(self) -> list[dict[str, Any]]:
        """Return one row per chip and point: its time, range, floor, bound, throughput, and why it does not run."""
        rate = f"{self.result.graph.item}s_per_s"
        names = {"time_s": "time", "low_s": "low", "high_s": "high", "floor_s": "floor", "bound": "bound"}
        return [
            {"label": label, "chip": row.chip.name,
             **{key: getattr(row.estimate, name, None) for key, name in names.items()},
             rate: None if row.estimate is None else float(row.estimate.throughput), "reason": row.reason}
            for label, row in zip(self.labels, self.result.rows, strict=True)
        ]  # fmt: skip

    def drawing(self) -> Drawing:
        """Return a bar for each, by what bounds it, with its range and the floor; muted where it does not run."""
        rows = list(enumerate(self.result.rows))
        running = [(at, row.estimate) for at, row in rows if row.estimate is not None and not row.reason]
        marks: list[Mark] = []
        for bound in BOUNDS:
            marks += _bars([(at, est) for at, est in running if est.bound == bound], bound, f"{bound}-bound")
        marks += _bars([(at, row.estimate) for at, row in rows if row.estimate is not None and row.reason], "unknown",
                       "does not fit")  # fmt: skip
        known = [(at, row.estimate) for at, row in rows if row.estimate is not None]
        for at, est in known:
            ends = [float(est.low), float(est.high)]
            hover = [f"range {format_si(ends[0], 's')} to {format_si(ends[1], 's')}"] * 2
            marks.append(Line(ends, [at + 0.28] * 2, "ink", "range", width=1.6, hover=hover))
        marks.append(
            Points(
                [float(est.floor) for _, est in known],
                [at for at, _ in known],
                "floor",
                "D",
                6.0,
                "floor",
                hover=[f"datasheet floor {format_si(float(est.floor), 's')}" for _, est in known],
            )
        )
        absent = [at for at, row in rows if row.estimate is None]
        marks.append(Bars(absent, [0.0] * len(absent), texts=[clean(rows[at][1].reason, 70) for at in absent]))
        high = max((float(est.high) for _, est in known), default=1.0)
        panel = Panel(
            tuple(marks), Axis("time of one run", "s", low=0.0, high=1.45 * high), Axis(categories=self.labels)
        )
        head = f"{self.result.graph.name} by chip"
        return Drawing((panel,), head, title(self.subject()), size=(8.0, height(len(self.labels)) + 0.2))


def _bars(rows: Any, colour: str, name: str) -> list[Mark]:
    if not rows:
        return []
    times = [float(est.time) for _, est in rows]
    item = rows[0][1].graph.item
    more = f", {name}" if colour == "unknown" else ""
    texts = [f"{format_si(time, 's')}, {short(float(est.throughput))} {item}s/s{more}"
             for time, (_, est) in zip(times, rows, strict=True)]  # fmt: skip
    hover = [f"{est.chip.name}: {text}, {name}" for text, (_, est) in zip(texts, rows, strict=True)]
    at, ends = [at for at, _ in rows], [float(est.high) for _, est in rows]
    return [Bars(at, times, colour=colour, name=name, hover=hover, width=0.5),
            Bars(at, [0.0] * len(at), ends, texts=texts, hover=hover)]  # fmt: skip


class Elasticities(_OfComparison):
    """What one per cent more of each figure of a chip buys, made by :func:`plot_elasticity`."""

    schema = "elasticities"

    @cached_property
    def values(self) -> dict[str, list[float]]:
        """Elasticity of each row by figure, those of the peaks together [%/%]; rows without a time have none."""
        values: dict[str, list[float]] = {name: [0.0] * len(self.result.rows) for name in FIGURE_COLOURS}
        for at, row in enumerate(self.result.rows):
            for name, value in row.elasticity.items():
                values["peak" if name.startswith("peak_") else name][at] += value
        return {name: each for name, each in values.items() if any(abs(value) >= LEAST for value in each)}

    def records(self) -> list[dict[str, Any]]:
        """Return one row per chip, point and figure: per cent less time for one per cent better."""
        return [
            {"label": label, "chip": row.chip.name, "figure": name, "elasticity": value}
            for label, row in zip(self.labels, self.result.rows, strict=True)
            for name, value in row.elasticity.items()
        ]  # fmt: skip

    def drawing(self) -> Drawing:
        """Return the figures of each row end to end."""
        ahead, back = [0.0] * len(self.labels), [0.0] * len(self.labels)
        marks: list[Mark] = []
        for name, values in self.values.items():
            what = figure(name).words if name != "peak" else "matrix peak"
            starts = [back[at] if value < 0 else ahead[at] for at, value in enumerate(values)]
            texts = [f"{value:.2f}" if value >= 0.06 else "" for value in values]
            hover = [f"{label}: 1% better {what} saves {value:.2f}% of the time"
                     for label, value in zip(self.labels, values, strict=True)]  # fmt: skip
            marks.append(Bars(range(len(values)), values, starts, FIGURE_COLOURS[name], what, texts, hover))
            for at, value in enumerate(values):
                (back if value < 0 else ahead)[at] += value
        axis = Axis("time saved by 1 % better [%]", low=min([0.0, *back]) * 1.1, high=max([1.0, *ahead]) * 1.06)
        head = f"What better figures buy {self.result.graph.name}"
        return Drawing((Panel(tuple(marks), axis, Axis(categories=self.labels)),), head, title(self.subject()),
                       size=(8.0, height(len(self.labels)) + 0.4))  # fmt: skip


def plot_comparison(comparison: Comparison) -> ChipTimes:
    """Describe a chart of chips side by side: how long each takes, with its range and its floor.

    Args:
        comparison: From :func:`roofline.compare`.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No comparison.

    Example:
        >>> import roofline as rl
        >>> chips = ["h100-sxm", "l4"]
        >>> chart = plot_comparison(rl.compare("gpt2", chips, phase="decode", batch=8, context=512, what_if={}))
        >>> [row["label"] for row in chart.records()]
        ['h100-sxm', 'l4']
    """
    return ChipTimes(comparison)


def plot_elasticity(comparison: Comparison) -> Elasticities:
    """Describe a chart of what one per cent more of each figure of a chip buys.

    Were all times of a chip set by its rates, they would be together one: what is missing hangs on none of them.

    Args:
        comparison: From :func:`roofline.compare`, of one chip or several.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No comparison, or none of its chips has a time.

    Example:
        >>> import roofline as rl
        >>> one = rl.compare("llama-3-8b", "h100-sxm", phase="decode", mode="graph", batch=1, context=2048, what_if={})
        >>> shares = {row["figure"]: row["elasticity"] for row in plot_elasticity(one).records()}
        >>> max(shares, key=shares.get)
        'memory_bandwidth'
    """
    chart = Elasticities(comparison)
    if not any(row.elasticity for row in comparison.rows):
        raise UsageError(f"no chip of this comparison has a time: {comparison.rows[0].reason}")
    return chart
