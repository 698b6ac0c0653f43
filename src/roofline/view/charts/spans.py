"""What the axes of a drawing span: the same for every renderer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from roofline.view.charts.marks import Arrow, Axis, Band, Bars, Cells, Drawing, Line, Mark, Note, Panel, Points, Rule

#: How many times what is needed a rule may be without leaving the axis.
NEAR = 4.0
#: Categories that are named at most; of more, every so many.
NAMES = 60
#: Ticks below which a logarithmic axis of less than a decade has those of a linear one.
FEWEST = 3
#: Letters of a name below the axes that is turned, since it is too wide for its place.
LONGEST = 18
Span = tuple[float, float]


def spans(drawing: Drawing) -> list[tuple[Span, Span]]:
    """Return the ends of x and y of each panel; panels with equal x axes share their ends."""
    xs = [_ends(panel.x, [panel], 0) for panel in drawing.panels]
    if shares_x(drawing):
        xs = [_ends(drawing.panels[0].x, drawing.panels, 0)] * len(xs)
    return [(x, _ends(panel.y, [panel], 1)) for x, panel in zip(xs, drawing.panels, strict=True)]


def shares_x(drawing: Drawing) -> bool:
    """Tell whether all panels have the same x axis."""
    return all(panel.x == drawing.panels[0].x for panel in drawing.panels)


def _ends(axis: Axis, panels: Iterable[Panel], which: int) -> Span:
    """Return the ends of an axis around its data."""
    if axis.categories:
        return -0.5, len(axis.categories) - 0.5
    marks = [mark for panel in panels for mark in panel.marks]
    values = _finite([value for mark in marks for value in _values(mark, which)], axis)
    values = values if values.size else np.asarray([1.0, 10.0] if axis.log else [0.0, 1.0])
    rules = [at for mark in marks if isinstance(mark, Rule) and (at := (mark.x, mark.y)[which]) is not None]
    near = [at for at in rules if 1 / NEAR < at / (values.max() or 1.0) < NEAR]
    low, high = float(min([values.min(), *near])), float(max([values.max(), *near]))
    low, high = _widened(axis, low, high, which, any(isinstance(mark, Bars) for mark in marks))
    return low if axis.low is None else axis.low, high if axis.high is None else axis.high


def _finite(values: list[Any], axis: Axis) -> Any:
    flat = np.concatenate([np.ravel(np.asarray(v, dtype=np.float64)) for v in values]) if values else np.empty(0)
    return flat[np.isfinite(flat) & ((flat > 0) | (not axis.log))]


def _widened(axis: Axis, low: float, high: float, which: int, bars: bool) -> Span:
    """Leave some room beyond the data, enough for ticks; what counts from nothing begins there."""
    if axis.log:
        room = 1.12 if which == 0 else 1.25
        widen = max(1.0, np.sqrt(6 / (high / low * room**2))) if which else 1.0
        return low / room / widen, high * room * widen
    if low >= 0 and (bars or low < 0.5 * high):
        return 0.0, high * 1.06 or 1.0
    room = 0.05 * (high - low) or abs(high) * 0.1 or 1.0
    return low - room, high + room


def _values(mark: Mark, which: int) -> Iterator[Any]:
    """Yield what a mark has along an axis: 0 for x, 1 for y."""
    if isinstance(mark, Line | Points):
        yield (mark.x, mark.y)[which]
        yield from (mark.low, mark.high) if which and isinstance(mark, Points) else ()
    elif isinstance(mark, Band):
        yield from ((mark.x,), (mark.low, mark.high))[which]
    elif isinstance(mark, Bars):
        start = np.broadcast_to(np.asarray(mark.start, dtype=np.float64), np.shape(mark.length))
        along = (start, start + np.asarray(mark.length))
        at = np.asarray(mark.at, dtype=np.float64)
        half = np.asarray(mark.width, dtype=np.float64) / 2
        across = (at - half, at + half)
        yield from along if mark.horizontal == (which == 0) else across
    elif isinstance(mark, Arrow):
        yield ((mark.x0, mark.x1), (mark.y0, mark.y1))[which]
    elif isinstance(mark, Note):
        yield [(mark.x, mark.y)[which]]
    elif isinstance(mark, Cells):
        yield [0, np.shape(mark.values)[1 - which] - 1]


def decades(low: float, high: float, base: int) -> list[float]:
    """Return the ticks of a logarithmic axis: powers of its base, or 1, 2 and 5 of each decade where there are few.

    Example:
        >>> decades(0.9, 30.0, 10)
        [1.0, 2.0, 5.0, 10.0, 20.0]
        >>> decades(1, 1e6, 10)[:3], decades(1, 8, 2)
        ([1.0, 10.0, 100.0], [1.0, 2.0, 4.0, 8.0])
    """
    first, last = int(np.floor(np.log(low) / np.log(base))), int(np.ceil(np.log(high) / np.log(base)))
    subs = (1.0, 2.0, 5.0) if base == 10 and high / low < 300 else (1.0,)
    step = max(1, -(-(last - first) // 12))
    # as text, so that 1e-6 is 1e-6
    powers = [float(f"1e{i}") if base == 10 else float(base) ** i for i in range(first, last + 1, step)]
    ticks = [float(f"{sub * power:.12g}") for power in powers for sub in subs]
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def steps(low: float, high: float, unit: str, most: int = 6) -> list[float]:
    """Return round ticks of a linear axis: in binary units for bytes, whole where plain numbers are counts.

    Example:
        >>> steps(0, 0.95, "s")
        [0.0, 0.2, 0.4, 0.6, 0.8]
        >>> [tick / 2**30 for tick in steps(0, 90 * 2**30, "B")]
        [0.0, 20.0, 40.0, 60.0, 80.0]
        >>> steps(0, 15, "")
        [0.0, 5.0, 10.0, 15.0]
    """
    scale = 1024.0 ** max(0, int(np.log(max(abs(low), abs(high), 1.0)) / np.log(1024))) if unit == "B" else 1.0
    raw = (high - low) / scale / most
    power = 10.0 ** np.floor(np.log10(raw))
    halves = () if unit == "" and power == 1 else (2.5,)
    step = next(power * nice for nice in sorted((1, 2, 5, 10, *halves)) if power * nice >= raw * 0.999)
    first = int(np.ceil(low / scale / step - 1e-9))
    return [float(f"{i * step:.12g}") * scale for i in range(first, int(np.floor(high / scale / step + 1e-9)) + 1)]


def ticks(axis: Axis, span: Span) -> tuple[list[float], list[str]]:
    """Return where an axis has ticks, and what they say.

    Example:
        >>> ticks(Axis(unit="s", log=10), (3.6e-3, 8.4e-3))[1]  # only one of 1, 2 and 5
        ['4 ms', '5 ms', '6 ms', '7 ms', '8 ms']
    """
    if not axis.ticks:
        return [], []
    if axis.categories:
        every = -(-len(axis.categories) // NAMES)
        return [float(i) for i in range(0, len(axis.categories), every)], list(axis.categories[::every])
    is_narrow = axis.log == 10 and span[1] < 10 * span[0]
    places = decades(*span, axis.log) if axis.log else []
    if not axis.log or (is_narrow and len(places) < FEWEST):
        places = steps(*span, axis.unit)
    return places, [tick_text(axis, at) for at in places]


def tick_text(axis: Axis, value: float) -> str:
    """Write a tick: as a value of the axis, without digits that say nothing.

    Example:
        >>> tick_text(Axis(unit="B"), 2.5 * 2**30), tick_text(Axis(unit="s"), 0.0)
        ('2.5 GiB', '0')
    """
    if value == 0 and axis.unit != "%":
        return "0"
    text = axis.text(value)
    number, _, unit = text.partition(" ")
    return f"{float(number):g} {unit}" if axis.unit == "B" and unit else text
