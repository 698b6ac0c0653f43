"""Drawings of how a time is made up: from the floor to the measured time step by step, and as one stacked bar."""

from __future__ import annotations

from collections.abc import Sequence

from roofline.ir.units import format_si
from roofline.view.pages.style import text

#: Size of a drawing, of its rows, and of the columns left and right of the bars.
WIDTH, ROW, LEFT, RIGHT = 1000, 26, 130, 150
#: Narrowest bar.
THIN = 2.0

#: Names of parts that have the same colour; what is in no row is taken in turn from ``_OTHERS``.
_COLOURS = {
    name: f"var(--c{number})"
    for number, names in (
        (0, ("floor", "busy")), (1, ("efficiency",)), (2, ("no formula", "other", "unknown")),
        (3, ("launch_bound", "launching")), (4, ("sync", "synchronisation")), (5, ("host_bound", "host-bound")),
        (6, ("host_copy", "copies")),
    )
    for name in names
}  # fmt: skip
_OTHERS = tuple(f"var(--c{number})" for number in (7, 8, 9, 10))


def colours(names: Sequence[str]) -> list[str]:
    """A colour for each part, the same for the same name."""
    others = [name for name in dict.fromkeys(names) if name not in _COLOURS]
    return [_COLOURS.get(name) or _OTHERS[others.index(name) % len(_OTHERS)] for name in names]


def waterfall(parts: Sequence[tuple[str, float]], total: str = "measured") -> str:
    """A row a part, each beginning where the one above ends; below all of them together.

    Every part has its name and its time beside its bar, so that there is room for them however short the bar is.

    Args:
        parts: Names and times, in order [s].
        total: Name of the sum.
    """
    whole = sum(part for _, part in parts)
    if not whole > 0:
        return ""
    rows, at = [], 0.0
    paints = colours([name for name, _ in parts])
    for index, ((name, part), paint) in enumerate(zip(parts, paints, strict=True)):
        rows.append(_row(index, name, at / whole, part, whole, paint))
        at += part
    rows.append(_row(len(parts), total, 0.0, whole, whole, "var(--ink)", " strong"))
    height = ROW * (len(parts) + 1) + 4
    label = text(f"{total} {format_si(whole, 's')}: " + ", ".join(f"{name} {part / whole:.1%}" for name, part in parts))
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(rows)}</svg>\n'


def _row(index: int, name: str, start: float, part: float, whole: float, paint: str, strong: str = "") -> str:
    room = WIDTH - LEFT - RIGHT
    y = ROW * index + 2
    x, width = LEFT + room * start, max(room * part / whole, THIN)
    value = f"{format_si(part, 's')} ({part / whole:.1%})"
    return (
        f'<text x="{LEFT - 10}" y="{y + 16}" class="end{strong}">{text(name)}</text>'
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y - 4 if index else y}" y2="{y + ROW - 6}" class="grid"/>'
        f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{ROW - 6}" rx="2" style="fill:{paint}"/>'
        f'<text x="{x + width + 8:.1f}" y="{y + 16}" class="{strong.strip() or "soft"}">{text(value)}</text>'
    )


def stacked(parts: Sequence[tuple[str, float]]) -> str:
    """One bar with a legend, the parts without time left out.

    Args:
        parts: Names and times, in order [s].
    """
    shown = [(name, part) for name, part in parts if part > 0]
    whole = sum(part for _, part in shown)
    if not whole:
        return ""
    bars, legend, at = [], [], 0.0
    for (name, part), paint in zip(shown, colours([name for name, _ in shown]), strict=True):
        width = WIDTH * part / whole
        bars.append(f'<rect x="{at:.1f}" y="0" width="{max(width, 1.0):.1f}" height="24" style="fill:{paint}"/>')
        value = f"{name} {format_si(part, 's')} ({part / whole:.1%})"
        legend.append(f'<li><i style="background:{paint}"></i>{text(value)}</li>')
        at += width
    picture = f'<svg viewBox="0 0 {WIDTH} 24" role="img" aria-label="busy and idle time">{"".join(bars)}</svg>'
    return f'{picture}<ul class="legend">{"".join(legend)}</ul>\n'
