"""Colours, markers and texts that all charts and pages share."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from roofline.cost import BOUNDS
from roofline.ir.units import format_si

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

#: Colours by what they stand for: in files and light pages, and in dark pages. Bounds are of the Okabe-Ito set, which
#: is safe for the colour-blind. No two light ones are the same, so that a page can tell what a colour stands for.
THEME: dict[str, tuple[str, str]] = {
    "ink": ("#1f2933", "#e4e8ee"), "soft": ("#66727f", "#9aa5b5"), "line": ("#e3e7eb", "#3a4350"),
    "back": ("#ffffff", "#14181e"), "band": ("#f1f3f5", "#1c222b"), "red": ("#c8102e", "#ff8a80"),
    "compute": ("#0072b2", "#4aa3df"), "memory": ("#e69f00", "#e9b13c"), "communication": ("#009e73", "#2fbf95"),
    "launch": ("#56b4e9", "#8fd0f5"), "host": ("#cc79a7", "#df9cc1"), "link": ("#d55e00", "#f0854a"),
    "floor": ("#2e7d32", "#58b368"), "efficiency": ("#7cb583", "#3f7a4a"), "unknown": ("#8d99ab", "#6c788a"),
    "sync": ("#8a5cc4", "#a67fe0"), "other0": ("#b58a14", "#d9ae36"), "other1": ("#1d9a9a", "#45c0c0"),
    "other2": ("#8c5a3c", "#b98462"), "other3": ("#5b6ee1", "#8b9bf5"),
    "weights": ("#0b4f7d", "#3c7fb0"), "kv_cache": ("#3a8cc1", "#6db3e2"), "inputs": ("#a9d0ea", "#c3e0f3"),
    "activations": ("#9a8bc4", "#b3a6da"), "gradients": ("#c98bb0", "#d9a5c4"), "optimizer": ("#7a4a78", "#a470a1"),
    "workspace": ("#b9c1c9", "#7e8894"), "reserve": ("#dde2e6", "#525b66"),
    "pale-blue": ("#dbe9ff", "#1f3554"), "pale-violet": ("#e6dcff", "#37294f"), "pale-yellow": ("#fff6da", "#423715"),
    "pale-red": ("#ffcccc", "#4d2220"),
}  # fmt: skip
COLOURS = {name: light for name, (light, _) in THEME.items()}
INK, MUTED, ALERT = (COLOURS[name] for name in ("ink", "soft", "red"))

#: What bounds a kernel, and the link of a copy; the marker tells them apart in grey as well.
BOUND_COLOURS = {bound: COLOURS[bound] for bound in (*BOUNDS, "link")} | {"": COLOURS["unknown"]}
BOUND_MARKERS = dict(zip(BOUND_COLOURS, ("o", "s", "P", "^", "D", "v", "h"), strict=True))
#: Parts of a time that are called otherwise than their colour.
_SAME = {
    "busy": "floor", "no formula": "unknown", "other": "unknown", "launch_bound": "launch", "launching": "launch",
    "synchronisation": "sync", "host_bound": "host", "host-bound": "host", "host_copy": "link", "copies": "link",
}  # fmt: skip

#: Set while a figure is made and written, so that a user's own settings do not change it. Text stays text in SVG and
#: PDF, and the same chart gives the same bytes.
RC: Any = {
    "font.family": ["sans-serif"],
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial"],
    "font.size": 9.0,
    "text.usetex": False,
    "text.parse_math": False,
    "axes.titlesize": 11.0,
    "axes.labelsize": 9.0,
    "axes.linewidth": 0.8,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "lines.linewidth": 1.5,
    "lines.markersize": 6.0,
    "path.sketch": None,
    "svg.fonttype": "none",
    "svg.hashsalt": "roofline",
    "pdf.fonttype": 42,
    "savefig.facecolor": "auto",
    "savefig.bbox": None,
}


def palette(dark: bool) -> dict[str, str]:
    """Return the colours by what they stand for, on a light ground or on a dark one."""
    return {name: pair[dark] for name, pair in THEME.items()}


def settings(dark: bool) -> Any:
    """Return the settings of matplotlib under which every figure is made and written."""
    colour = palette(dark)
    own = {
        "axes.edgecolor": colour["soft"], "axes.labelcolor": colour["ink"], "text.color": colour["ink"],
        "xtick.color": colour["ink"], "ytick.color": colour["ink"], "grid.color": colour["line"],
        "figure.facecolor": colour["back"], "axes.facecolor": colour["back"],
    }  # fmt: skip
    return RC | own


def part_colours(names: Sequence[str]) -> list[str]:
    """Return the name of a colour for each part of a time: the same for the same thing, the others in turn.

    Example:
        >>> part_colours(["launch_bound", "sync", "launching", "unfused"])
        ['launch', 'sync', 'launch', 'other0']
    """
    keys = [_SAME.get(name, name) for name in names]
    others = [key for key in dict.fromkeys(keys) if key not in COLOURS]
    return [key if key in COLOURS else f"other{others.index(key) % 4}" for key in keys]


def clean(text: str, limit: int = 34) -> str:
    """Make any name fit for a label: printable, on one line, the end of a long one.

    Example:
        >>> clean("a\\tb"), clean("layers.0." + "x" * 40, 12)
        ('a b', '…xxxxxxxxxxx')
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= limit else f"…{line[1 - limit :]}"


def clean_lines(text: str, limit: int = 120) -> str:
    """Make a text of several lines fit for a label.

    Example:
        >>> clean_lines("one  word\\ntwo")
        'one word\\ntwo'
    """
    return "\n".join(clean(line, limit) for line in text.split("\n"))


def short(value: float) -> str:
    """Write a tick's number with an SI prefix and no unit.

    Example:
        >>> short(0.1), short(20000.0)
        ('0.1', '20k')
    """
    return format_si(value, "").replace(" ", "") if value >= 1 else f"{value:.3g}"


def root(ax: Axes) -> Any:
    """Return the whole figure that axes are in."""
    return ax.figure.canvas.figure


def readable(colour: str) -> str:
    """Return black or white, what is better read on a colour.

    Example:
        >>> readable("#ffffff"), readable("#0b4f7d")
        ('#111111', '#ffffff')
    """
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#111111" if 0.299 * red + 0.587 * green + 0.114 * blue > 128 else "#ffffff"


def pixels(ax: Axes) -> float:
    """Return the pixels of a typographic point."""
    return float(root(ax).dpi) / 72


def style_axes(ax: Axes) -> None:
    """Draw a light grid and only the left and bottom edges."""
    ax.grid(True, linewidth=0.7)
    ax.set_axisbelow(True)
    ax.tick_params(which="both", length=0)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)


def head(ax: Axes, title: str, subtitle: str, lift: float = 0.0, colour: str = MUTED) -> tuple[Text, Text]:
    """Write two lines above axes, with room for something else between them and the axes [point]."""
    inches = float(root(ax).get_size_inches()[0])
    lines = textwrap.wrap(clean(subtitle, 400), int(11.4 * inches), max_lines=2, placeholder="…")
    # A longer one would make the axes narrow before it is cut to the page.
    fitting = textwrap.shorten(clean(title, 200), int(11 * inches), placeholder="…")
    first = ax.set_title(fitting, loc="left", fontweight="bold", pad=10 + 11 * max(len(lines), 1) + lift)
    second = ax.annotate(
        "\n".join(lines), (0, 1), (0, 7 + lift), xycoords="axes fraction", textcoords="offset points",
        color=colour, fontsize=8.5, in_layout=False,
    )  # fmt: skip
    return first, second


def lay_out(ax: Axes, titles: tuple[Text, ...]) -> None:
    """Compute the layout of the whole figure, and cut titles off where the page ends."""
    figure = root(ax)
    engine = figure.get_layout_engine()
    if engine is None:
        figure.draw_without_rendering()
    else:  # what drawing does first, without the rest
        engine.execute(figure)
    for line in titles:
        while line.get_window_extent().x1 > root(ax).bbox.x1 - 4 and len(line.get_text()) > 10:
            line.set_text(f"{line.get_text()[:-2]}…")
