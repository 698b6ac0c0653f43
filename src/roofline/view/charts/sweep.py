"""Draw time, throughput and memory over the batch onto three axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from roofline.ir.units import PREFIXES, format_bytes, format_si
from roofline.view.charts.labels import overlaps, spread
from roofline.view.charts.style import (
    ALERT,
    BOUND_COLOURS,
    INK,
    MUTED,
    PART_COLOURS,
    fit,
    head,
    log_ticks,
    root,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

BLUE = BOUND_COLOURS["compute"]
GIB = PREFIXES["Gi"]
#: Points drawn at most; a longer sweep is thinned evenly in the logarithm.
DRAWN = 256


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured batch: its time, its throughput, and the datasheet floor there [s, items/s, s]."""

    batch: float
    seconds: float
    rate: float
    floor: float

    def above(self, slack: float) -> bool:
        """Whether it was faster than the datasheet allows."""
        return self.seconds * slack < self.floor


@dataclass(frozen=True)
class SweepView:
    """All that a batch sweep shows; arrays over the rising batch.

    Attributes:
        title: First line.
        subtitle: Second line.
        item: What the throughput counts.
        batch: The batches.
        time: Expected [s].
        low: Fast end of its range [s].
        high: Slow end [s].
        floor: Datasheet speed of light [s].
        rate: Throughput [items/s].
        parts: Memory by part [byte].
        limit: Memory that may be used [byte].
        limit_label: What that is.
        latency: Time that one run may take [s].
        measured: What was measured.
        marks: Batches to mark, and what they are called.
        slack: By which factor a measurement may beat the floor.
    """

    title: str
    subtitle: str
    item: str
    batch: Array
    time: Array
    low: Array
    high: Array
    floor: Array
    rate: Array
    parts: dict[str, Array]
    limit: float
    limit_label: str
    latency: float | None
    measured: tuple[Measured, ...]
    marks: tuple[tuple[float, str], ...]
    slack: float


def thinned(batch: Array) -> NDArray[np.intp]:
    """Indices of at most about :data:`DRAWN` batches, the ends among them."""
    if batch.size <= DRAWN:
        return np.arange(batch.size)
    wanted = np.geomspace(batch[0], batch[-1], DRAWN)
    return np.unique(np.clip(np.searchsorted(batch, wanted), 0, batch.size - 1))


def draw_sweep(axes: Sequence[Axes], view: SweepView) -> None:
    """Draw the three panels; labels last, when the layout is known."""
    for ax in axes:
        style_axes(ax)
        _batch_axis(ax, view)
    axes[-1].set_xlabel("batch size")
    _draw_time(axes[0], view)
    _draw_rate(axes[1], view)
    _draw_memory(axes[2], view)
    margins = [_time_labels(axes[0], view), [], _memory_labels(axes[2], view)]
    marks = _draw_marks(axes, view)
    # The title makes room for the marks before the layout is computed.
    lines = head(axes[0], view.title, view.subtitle, lift=27 if marks else 0)
    root(axes[0]).draw_without_rendering()
    fit(axes[0], lines)
    for ax, labels in zip(axes, margins, strict=True):
        _spread_right(ax, labels)
    _stagger(marks)


def _batch_axis(ax: Axes, view: SweepView) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    ends = [view.batch[0], view.batch[-1], *(point.batch for point in view.measured)]
    ax.set_xscale("log", base=2)
    ax.set_xlim(min(ends) / 1.12, max(ends) * 1.12)
    ax.xaxis.set_major_locator(LogLocator(base=2, numticks=14))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    ax.xaxis.set_minor_locator(NullLocator())


def _log_y(ax: Axes, values: Sequence[Any], unit: str) -> None:
    """A logarithmic axis around the values, wide enough to hold ticks."""
    flat = np.concatenate([np.ravel(value) for value in values])
    low, high = float(flat.min()) / 1.25, float(flat.max()) * 1.25
    widen = max(1.0, np.sqrt(6 / (high / low)))
    ax.set_yscale("log")
    ax.set_ylim(low / widen, high * widen)
    log_ticks(ax.yaxis, low / widen, high * widen, unit)


def _draw_time(ax: Axes, view: SweepView) -> None:
    ax.fill_between(view.batch, view.low, view.high, color=BLUE, alpha=0.16, lw=0)
    ax.plot(view.batch, view.time, color=BLUE, lw=2.0, **_dot(view))
    ax.plot(view.batch, view.floor, color=MUTED, lw=1.1, ls=(0, (5, 3)))
    values: list[Any] = [view.low, view.high, view.floor, [point.seconds for point in view.measured]]
    if view.latency is not None:
        values.append([view.latency])
        ax.axhline(view.latency, color=ALERT, lw=1.1)
    _log_y(ax, [value for value in values if np.size(value)], "s")
    _draw_measured(ax, view, [point.seconds for point in view.measured], legend=True)
    ax.set_ylabel("time of one run")


def _dot(view: SweepView) -> dict[str, Any]:
    """A marker where a line would have no length."""
    return {"marker": "o"} if view.batch.size == 1 else {}


def _draw_rate(ax: Axes, view: SweepView) -> None:
    ax.plot(view.batch, view.rate, color=BLUE, lw=2.0, **_dot(view))
    _log_y(ax, [view.rate, [point.rate for point in view.measured] or view.rate], "")
    _draw_measured(ax, view, [point.rate for point in view.measured])
    ax.set_ylabel(f"throughput [{view.item}s/s]")


def _draw_measured(ax: Axes, view: SweepView, values: Sequence[float], legend: bool = False) -> None:
    if not values:
        return
    at = [point.batch for point in view.measured]
    ax.plot(at, values, ls="none", marker="X", ms=7, mfc=INK, mec="white", mew=0.7, label="measured", zorder=5)
    wrong = [(x, y) for x, y, point in zip(at, values, view.measured, strict=True) if point.above(view.slack)]
    if wrong:
        text = "faster than the datasheet: check timing or count"
        look: dict[str, Any] = {"marker": "o", "ms": 13, "mfc": "none", "mec": ALERT, "mew": 2.0, "zorder": 6}
        ax.plot(*zip(*wrong, strict=True), ls="none", label=text, **look)
    if legend:
        ax.legend(loc="upper left", frameon=False, fontsize=8, handletextpad=0.4)


def _draw_memory(ax: Axes, view: SweepView) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    parts = [values / GIB for values in view.parts.values()]
    total = sum(parts, np.zeros(view.batch.shape))
    ax.stackplot(view.batch, *parts, colors=list(PART_COLOURS), edgecolor="white", linewidth=0.5)
    if view.batch.size == 1:
        ax.plot(view.batch, total, color=INK, marker="o")
    ax.axhline(view.limit / GIB, color=ALERT, lw=1.1)
    ax.set_ylim(0, max(float(total.max()), view.limit / GIB) * 1.12)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} GiB"))
    ax.set_ylabel("memory")


# --- labels ---


def _right(ax: Axes, y: float, text: str, colour: str, weight: str = "normal") -> Any:
    return ax.text(
        1.012, y, text, transform=ax.get_yaxis_transform(), va="center", fontsize=8, color=colour, fontweight=weight,
        gid="margin",
    )  # fmt: skip


def _time_labels(ax: Axes, view: SweepView) -> list[Any]:
    labels = [
        _right(ax, float(view.high[-1]), "range", MUTED),
        _right(ax, float(view.time[-1]), "expected", BLUE, "bold"),
        _right(ax, float(view.floor[-1]), "datasheet floor", MUTED),
    ]
    if view.latency is not None:
        labels.append(_right(ax, view.latency, f"limit {format_si(view.latency, 's')}", ALERT))
    return labels


def _memory_labels(ax: Axes, view: SweepView) -> list[Any]:
    """The parts at the height of their layer at the right edge, each with a swatch of its colour."""
    labels, below = [], 0.0
    for (name, values), colour in zip(view.parts.items(), PART_COLOURS, strict=False):
        size = float(values[-1])
        if size:
            text = f"    {name.replace('_', ' ').replace('kv', 'KV')} {format_bytes(size)}"
            labels.append(_right(ax, (below + size / 2) / GIB, text, INK))
            labels[-1].swatch = ax.text(
                1.012, 0, "■", transform=ax.get_yaxis_transform(), va="center", fontsize=8, color=colour
            )
        below += size
    labels.append(_right(ax, below / GIB, f"at batch {view.batch[-1]:,.0f}:", MUTED))
    labels.append(_right(ax, view.limit / GIB, f"{view.limit_label} {format_bytes(view.limit)}", ALERT, "bold"))
    return labels


def _spread_right(ax: Axes, labels: Sequence[Any]) -> None:
    """Move the labels right of a panel apart."""
    boxes = [label.get_window_extent() for label in labels]
    centres = [float(ax.transData.transform((1.0, label.get_position()[1]))[1]) for label in labels]
    frame = ax.get_window_extent()
    placed = spread(centres, [box.height + 2 for box in boxes], frame.y0 - 8, frame.y1 + 12)
    for label, centre in zip(labels, placed, strict=True):
        y = float(ax.transData.inverted().transform((0.0, centre))[1])
        label.set_y(y)
        if hasattr(label, "swatch"):
            label.swatch.set_y(y)


def _draw_marks(axes: Sequence[Axes], view: SweepView) -> list[Any]:
    """Vertical lines through all panels, and their names above the first."""
    low, high = axes[0].get_xlim()
    shown = sorted((at, text) for at, text in view.marks if low <= at <= high)
    labels = []
    for at, text in shown:
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
