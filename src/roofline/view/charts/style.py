"""Colours, markers, tick texts: what all pictures share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from roofline.cost import BOUNDS
from roofline.ir.units import format_si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.text import Text

INK, MUTED, GRID = "#1f2933", "#66727f", "#e3e7eb"
ALERT = "#c8102e"
#: Of the Okabe-Ito set, safe for the colour-blind; the marker tells them apart in gray as well.
BOUND_COLOURS = dict(zip(BOUNDS, ("#0072b2", "#e69f00", "#009e73", "#56b4e9", "#cc79a7"), strict=True))
BOUND_MARKERS = dict(zip(BOUNDS, ("o", "s", "P", "^", "D"), strict=True))
#: Parts of the memory, in the order of :class:`roofline.counting.memory.Memory`.
PART_COLOURS = ("#0b4f7d", "#3a8cc1", "#a9d0ea", "#e69f00", "#b9c1c9", "#dde2e6")

#: Set while a figure is made and written, so that a user's own settings do not change it. Text stays text in SVG and
#: PDF, and the same picture gives the same bytes.
RC: Any = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 9.0,
    "text.usetex": False,
    "text.parse_math": False,
    "axes.titlesize": 11.0,
    "axes.labelsize": 9.0,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "text.color": INK,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.color": INK,
    "ytick.color": INK,
    "lines.linewidth": 1.5,
    "lines.markersize": 6.0,
    "path.sketch": None,
    "svg.fonttype": "none",
    "svg.hashsalt": "roofline",
    "pdf.fonttype": 42,
    "figure.facecolor": "white",
    "savefig.facecolor": "auto",
    "savefig.bbox": None,
}


def clean(text: str, limit: int = 34) -> str:
    """Make any name fit for a label: printable, on one line, the end of a long one.

    Example:
        >>> clean("a\\tb"), clean("layers.0." + "x" * 40, 12)
        ('a b', '…xxxxxxxxxxx')
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= limit else f"…{line[1 - limit :]}"


def short(value: float) -> str:
    """Write a tick's number with an SI prefix and no unit.

    Example:
        >>> short(0.1), short(20000.0)
        ('0.1', '20k')
    """
    return format_si(value, "").replace(" ", "") if value >= 1 else f"{value:.3g}"


def log_ticks(axis: Axis, low: float, high: float, unit: str) -> None:
    """Give a logarithmic axis ticks at decades, or at 1, 2 and 5 where there are few, with units as text."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    few = high / low < 300
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if few else (1.0,), numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda v, _: format_si(v, unit) if unit else short(v)))
    axis.set_minor_formatter(NullFormatter())


def root(ax: Axes) -> Any:
    """The whole figure that axes are in."""
    return ax.figure.canvas.figure


def pixels(ax: Axes) -> float:
    """Pixels a typographic point."""
    return float(root(ax).dpi) / 72


def head(ax: Axes, title: str, subtitle: str, lift: float = 0.0) -> tuple[Text, Text]:
    """Write two lines above axes, with room for something else between them and the axes [point]."""
    first = ax.set_title(clean(title, 200), loc="left", fontweight="bold", pad=21 + lift)
    second = ax.annotate(
        clean(subtitle, 200), (0, 1), (0, 7 + lift), xycoords="axes fraction", textcoords="offset points",
        color=MUTED, fontsize=8.5, in_layout=False,
    )  # fmt: skip
    return first, second


def fit(ax: Axes, lines: Iterable[Text]) -> None:
    """Cut lines off where the page ends, once the layout is known."""
    for line in lines:
        while line.get_window_extent().x1 > root(ax).bbox.x1 - 4 and len(line.get_text()) > 10:
            line.set_text(f"{line.get_text()[:-2]}…")


def style_axes(ax: Axes) -> None:
    """Draw a light grid and only the left and bottom edges."""
    ax.grid(True, color=GRID, linewidth=0.7)
    ax.set_axisbelow(True)
    ax.tick_params(which="both", length=0)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
