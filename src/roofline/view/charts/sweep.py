"""Time, throughput and memory of a program over its batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from roofline.analysis.estimates import Estimate
from roofline.analysis.estimates import estimate as evaluate
from roofline.ir.errors import UsageError
from roofline.ir.numbers import as_list, finite_number
from roofline.ir.units import PREFIXES, format_bytes, format_si
from roofline.view.charts.classic import Classic
from roofline.view.charts.labels import margin_label, overlaps, spread_margin
from roofline.view.charts.points import faster_text, quantity
from roofline.view.charts.roof import about
from roofline.view.charts.style import (
    ALERT,
    BACK,
    BOUND_COLOURS,
    INK,
    MUTED,
    PART_COLOURS,
    head,
    lay_out,
    log_ticks,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

BLUE = BOUND_COLOURS["compute"]
GIB = PREFIXES["Gi"]
#: Points drawn at most; a longer sweep is thinned evenly in the logarithm.
DRAWN = 256
#: How many times what is needed a limit may be without leaving the axis.
NEAR = 4.0


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured batch: its time, its throughput, and the datasheet floor there [s, items/s, s]."""

    batch: float
    seconds: float
    rate: float
    floor: float

    def above(self, slack: float) -> bool:
        """Tell whether it was faster than the datasheet allows."""
        return self.seconds * slack < self.floor


@dataclass(frozen=True, eq=False, repr=False)
class BatchSweep(Classic):
    """Time, throughput and memory over the batch, made by :func:`plot_batch`.

    Attributes:
        estimate: Over the batch alone.
        memory_limit: Memory that may be used, the chip's capacity if ``None`` [byte].
        latency_limit: Time that one run may take [s].
        measured: What was measured.
        ridge: Batch at which the program turns compute-bound.
        best: Batch to run.
    """

    schema = "batch_sweep"
    default_size: ClassVar[tuple[float, float]] = (8.0, 8.6)
    panels: ClassVar[tuple[float, ...]] = (1.15, 1.0, 1.15)

    estimate: Estimate
    memory_limit: float | None
    latency_limit: float | None
    measured: tuple[Measured, ...]
    ridge: float | None
    best: float | None

    @cached_property
    def batches(self) -> Array:
        """The batches, rising."""
        return np.sort(np.asarray(self.estimate.grid.values["B"], dtype=np.float64), kind="stable")

    @cached_property
    def memory(self) -> dict[str, Array]:
        """Memory over the rising batch, by part [byte]."""
        return {name: self.along(value) for name, value in self.estimate.memory.parts().items()}

    def along(self, value: Any) -> Any:
        """Return a figure of the estimate over the rising batch."""
        batches = np.asarray(self.estimate.grid.values["B"])
        return np.broadcast_to(np.asarray(value), batches.shape)[np.argsort(batches, kind="stable")]

    @property
    def limit(self) -> float:
        """Memory that may be used [byte]."""
        return self.estimate.chip.capacity if self.memory_limit is None else self.memory_limit

    @property
    def largest(self) -> float | None:
        """The batch that fills the memory, between two of the sweep; ``None`` if there is none within it."""
        over = self.along(self.estimate.memory.total) - self.limit
        at = int(np.argmax(over > 0))
        if not over[at] > 0 or at == 0:
            return None
        return float(np.interp(0.0, over[at - 1 : at + 1], self.batches[at - 1 : at + 1]))

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """One line for each measured batch that is faster than the datasheet allows."""
        chip = self.estimate.chip
        return tuple(
            faster_text(f"batch {point.batch:g}", point.seconds, point.floor, chip)
            for point in self.measured
            if point.above(chip.clock_slack)
        )

    def subject(self) -> dict[str, Any]:
        """Return what the estimate is of."""
        return self.estimate.subject()

    def records(self) -> list[dict[str, Any]]:
        """Return one row per batch, then one for each that was measured."""
        est = self.estimate
        rate, total = f"{est.graph.item}s_per_s", self.along(est.memory.total)
        columns = {
            "batch": self.batches.astype(np.int64),
            **{f"{name}_s": self.along(getattr(est, name)) for name in ("time", "low", "high", "floor")},
            rate: self.along(est.throughput), "bound": self.along(est.bound),
            **{f"{name}_bytes": values for name, values in self.memory.items()},
            "memory_bytes": total, "fits": total <= self.limit,
        }  # fmt: skip
        rows = zip(*(values.tolist() for values in columns.values()), strict=True)
        expected = [{"kind": "expected", **dict(zip(columns, row, strict=True))} for row in rows]
        return expected + [
            {"kind": "measured", "batch": int(m.batch), "time_s": m.seconds, "floor_s": m.floor, rate: m.rate}
            for m in self.measured
        ]

    def draw(self, ax: Sequence[Axes]) -> None:
        """Draw the three panels; labels last, when the layout is known."""
        batch, est = self.batches, self.estimate
        shown = thinned(batch)
        for panel in ax:
            style_axes(panel)
            _batch_axis(panel, self)
        ax[-1].set_xlabel("batch size")
        names = ("time", "low", "high", "floor", "throughput")
        curves = {name: self.along(getattr(est, name))[shown] for name in names}
        _draw_time(ax[0], self, batch[shown], curves)
        _draw_rate(ax[1], self, batch[shown], curves["throughput"])
        _draw_memory(ax[2], self, batch[shown], [values[shown] / GIB for values in self.memory.values()])
        margins = [_time_labels(ax[0], self, curves), _memory_labels(ax[2], self)]
        marks = _draw_marks(ax, self)
        # The title makes room for the marks before the layout is computed.
        title = f"{est.graph.name} on {est.chip.name} by batch size"
        lay_out(ax[0], head(ax[0], title, about(est), lift=27 if marks else 0))
        for panel, labels in zip((ax[0], ax[2]), margins, strict=True):
            spread_margin(panel, labels, gap=2, below=8, above=12)
        _stagger(marks)

    def __repr__(self) -> str:
        name, chip = self.estimate.graph.name, self.estimate.chip.name
        return f"<BatchSweep of {name} on {chip}: batch {self.batches[0]:.0f} to {self.batches[-1]:.0f}>"


def plot_batch(
    estimate: Estimate,
    memory_limit: str | float | None = None,
    latency_limit: str | float | None = None,
    measured: Sequence[tuple[float, str | float]] | None = None,
    ridge: float | None = None,
    best: float | None = None,
) -> BatchSweep:
    """Describe a chart of time, throughput and memory over the batch.

    Args:
        estimate: One with the batch ``B`` as its only axis.
        memory_limit: Memory that may be used; the chip's capacity by default [byte].
        latency_limit: Time that one run may take [s].
        measured: Pairs of a batch and its time [s].
        ridge: Batch at which the program turns compute-bound, as :func:`roofline.best_batch` finds it.
        best: Batch to run, as found there.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: The estimate has other axes, or a value that cannot be.

    Example:
        >>> import roofline as rl
        >>> est = rl.estimate(rl.model("gpt2", phase="decode"), "a100-80gb-sxm", B=[1, 8, 64], S=512)
        >>> plot_batch(est, latency_limit="20 ms").latency_limit
        0.02
    """
    if not isinstance(estimate, Estimate):
        raise UsageError(
            f"expected an Estimate over batches, as of rl.estimate(..., batch=[1, 8]), given {repr(estimate)[:60]}"
        )
    if estimate.axis_names != ("B",):
        axes = f"the axes {estimate.axis_names}" if estimate.shape else "no axis"
        raise UsageError(f"a batch sweep needs an estimate with the axis B alone, given {axes}; give B a sequence")
    return BatchSweep(
        estimate,
        None if memory_limit is None else quantity(memory_limit, "B", "memory_limit"),
        None if latency_limit is None else quantity(latency_limit, "s", "latency_limit"),
        _measured_batches(estimate, measured or ()),
        None if ridge is None else _batch(ridge, "ridge"),
        None if best is None else _batch(best, "best"),
    )


def _batch(value: Any, what: str) -> float:
    if (number := finite_number(what, value)) < 1:
        raise UsageError(f"{what}: {repr(value)[:100]} is not a batch from 1")
    return number


def _measured_batches(estimate: Estimate, measured: Sequence[Any]) -> tuple[Measured, ...]:
    """Return pairs of batch and seconds, with the floor and the throughput there."""
    for pair in as_list("measured", measured):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise UsageError(f"measured: allowed are pairs of batch and seconds, given {repr(pair)[:100]}")
    if not measured:
        return ()
    batches = [_batch(batch, "measured") for batch, _ in measured]
    seconds = [quantity(value, "s", "measured") for _, value in measured]
    sizes: dict[str, Any] = {**estimate.grid.values, "B": batches}
    there = evaluate(estimate.graph, estimate.chip, mode="graph", tf32=estimate.tf32, **sizes)
    rows = zip(batches, seconds, there.throughput * there.time, there.floor, strict=True)
    return tuple(Measured(batch, time, float(items) / time, float(floor)) for batch, time, items, floor in rows)


def thinned(batch: Array) -> NDArray[np.intp]:
    """Return indices of at most about :data:`DRAWN` batches, the ends among them."""
    if batch.size <= DRAWN:
        return np.arange(batch.size)
    even = np.geomspace(batch[0], batch[-1], DRAWN)
    return np.unique(np.clip(np.searchsorted(batch, even), 0, batch.size - 1))


# --- panels -----------------------------------------------------------------------------------------------------------


def _batch_axis(ax: Axes, chart: BatchSweep) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ends = [chart.batches[0], chart.batches[-1], *(point.batch for point in chart.measured)]
    ax.set_xscale("log", base=2)
    ax.set_xlim(min(ends) / 1.12, max(ends) * 1.12)
    ax.xaxis.set_major_locator(LogLocator(base=2, numticks=14))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.xaxis.set_minor_locator(NullLocator())


def _log_y(ax: Axes, values: Sequence[Any], unit: str) -> None:
    """Make a logarithmic axis around the positive values, wide enough to hold ticks."""
    flat = np.concatenate([np.ravel(value) for value in values])
    flat = flat[flat > 0] if (flat > 0).any() else np.ones(1)
    low, high = float(flat.min()) / 1.25, float(flat.max()) * 1.25
    widen = max(1.0, np.sqrt(6 / (high / low)))
    ax.set_yscale("log")
    ax.set_ylim(low / widen, high * widen)
    log_ticks(ax.yaxis, low / widen, high * widen, unit)


def _curve(ax: Axes, batch: Array, values: Array) -> None:
    """Draw a curve, with a marker where it would have no length."""
    ax.plot(batch, values, color=BLUE, lw=2.0, marker="o" if batch.size == 1 else None)


def _draw_time(ax: Axes, chart: BatchSweep, batch: Array, curves: dict[str, Array]) -> None:
    ax.fill_between(batch, curves["low"], curves["high"], color=BLUE, alpha=0.16, lw=0)
    _curve(ax, batch, curves["time"])
    ax.plot(batch, curves["floor"], color=MUTED, lw=1.1, ls=(0, (5, 3)))
    seconds = [point.seconds for point in chart.measured]
    limits = [chart.latency_limit] if chart.latency_limit is not None else []
    for limit in limits:
        ax.axhline(limit, color=ALERT, lw=1.1)
    near = [limit for limit in limits if 1 / NEAR < limit / curves["high"].max() < NEAR]
    _log_y(ax, [curves["low"], curves["high"], curves["floor"], seconds, near], "s")
    _draw_measured(ax, chart, seconds, legend=True)
    ax.set_ylabel("time of one run")


def _draw_rate(ax: Axes, chart: BatchSweep, batch: Array, rate: Array) -> None:
    _curve(ax, batch, rate)
    measured = [point.rate for point in chart.measured]
    _log_y(ax, [rate, measured], "")
    _draw_measured(ax, chart, measured)
    ax.set_ylabel(f"throughput [{chart.estimate.graph.item}s/s]")


def _draw_measured(ax: Axes, chart: BatchSweep, values: Sequence[float], legend: bool = False) -> None:
    if not values:
        return
    at = [point.batch for point in chart.measured]
    ax.plot(at, values, ls="none", marker="X", ms=7, mfc=INK, mec=BACK, mew=0.7, label="measured", zorder=5)
    slack = chart.estimate.chip.clock_slack
    above = [(x, y) for x, y, point in zip(at, values, chart.measured, strict=True) if point.above(slack)]
    if above:
        text = "faster than the datasheet: check timing or count"
        look: dict[str, Any] = {
            "marker": "o",
            "ms": 13,
            "mfc": "none",
            "mec": ALERT,
            "mew": 2.0,
            "zorder": 6,
            "clip_on": False,
        }
        ax.plot(*zip(*above, strict=True), ls="none", label=text, **look)
    if legend:
        ax.legend(loc="upper left", frameon=False, fontsize=8, handletextpad=0.4)


def _draw_memory(ax: Axes, chart: BatchSweep, batch: Array, parts: list[Array]) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    total, limit = np.sum(parts, axis=0), chart.limit / GIB
    ax.stackplot(batch, *parts, colors=list(PART_COLOURS), edgecolor=BACK, linewidth=0.5)
    if batch.size == 1:
        ax.plot(batch, total, color=INK, marker="o")
    ax.axhline(limit, color=ALERT, lw=1.1)
    most = float(total.max())
    ax.set_ylim(0, (limit if most < limit < NEAR * most else most) * 1.12)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} GiB"))
    ax.set_ylabel("memory")


# --- labels -----------------------------------------------------------------------------------------------------------


def _time_labels(ax: Axes, chart: BatchSweep, curves: dict[str, Array]) -> list[Any]:
    labels = [
        margin_label(ax, float(curves["high"][-1]), "range", MUTED),
        margin_label(ax, float(curves["time"][-1]), "expected", BLUE, "bold"),
        margin_label(ax, float(curves["floor"][-1]), "datasheet floor", MUTED),
    ]
    if chart.latency_limit is not None:
        labels.append(_limit_label(ax, chart.latency_limit, f"limit {format_si(chart.latency_limit, 's')}"))
    return labels


def _memory_labels(ax: Axes, chart: BatchSweep) -> list[Any]:
    """Write the parts at the height of their layer at the right edge, each with a swatch of its colour."""
    labels: list[Any] = []
    below = 0.0
    for (name, values), colour in zip(chart.memory.items(), PART_COLOURS, strict=False):
        size = float(values[-1])
        if size:
            text = f"    {name.replace('_', ' ').replace('kv', 'KV')} {format_bytes(size)}"
            labels.append(margin_label(ax, (below + size / 2) / GIB, text))
            labels[-1].swatch = margin_label(ax, 0, "■", colour)
            labels[-1].swatch.set_gid("swatch")
        below += size
    limit = "capacity" if chart.memory_limit is None else "limit"
    labels.append(margin_label(ax, below / GIB, f"at batch {chart.batches[-1]:,.0f}:", MUTED))
    labels.append(_limit_label(ax, chart.limit / GIB, f"{limit} {format_bytes(chart.limit)}"))
    return labels


def _limit_label(ax: Axes, value: float, text: str) -> Any:
    """Write a limit at its height, or at the end of the axis beyond which it is."""
    low, high = ax.get_ylim()
    beyond = ", above the axis" if value > high else ", below the axis" if value < low else ""
    return margin_label(ax, min(max(value, low), high), text + beyond, ALERT, "bold")


def _draw_marks(axes: Sequence[Axes], chart: BatchSweep) -> list[Any]:
    """Draw vertical lines through all panels, with their names above the first."""
    marks = [(at, f"{name} {at:,.0f}") for at, name in ((chart.ridge, "ridge"), (chart.best, "best")) if at is not None]
    if chart.largest is not None:
        marks.append((chart.largest, f"memory full above {np.floor(chart.largest):,.0f}"))
    low, high = axes[0].get_xlim()
    labels = []
    for at, text in sorted(mark for mark in marks if low <= mark[0] <= high):
        for ax in axes:
            ax.axvline(at, color=INK, lw=0.9, ls=":", zorder=3)
        labels.append(
            axes[0].annotate(
                text, (at, 1), (0, 3), xycoords=axes[0].get_xaxis_transform(), textcoords="offset points",
                ha="center", va="bottom", fontsize=8, gid="mark",
            )
        )  # fmt: skip
    return labels


def _stagger(labels: Sequence[Any]) -> None:
    """Lift each mark's name until it is clear of those to its left."""
    for i, label in enumerate(labels):
        for level in range(3):
            label.set_position((0, 3 + 10 * level))
            before = [other.get_window_extent().extents for other in labels[:i]]
            if not before or not overlaps([label.get_window_extent().extents], before).any():
                break
