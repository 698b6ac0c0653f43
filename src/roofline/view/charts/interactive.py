"""Marks drawn by Plotly: the same content with hover texts; names in the legend switch their marks on and off."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import pairwise
from typing import Any

import numpy as np

from roofline.view.charts.labels import Box, clear, crosses, first_free, nearest, overlaps, place, spread
from roofline.view.charts.marks import (
    CROWD,
    Arrow,
    Axis,
    Band,
    Bars,
    Cells,
    Drawing,
    Line,
    Note,
    Panel,
    Points,
    Region,
    Rule,
    Strip,
)
from roofline.view.charts.spans import LONGEST, NAMES, Span, shares_x, spans, ticks
from roofline.view.charts.style import clean, palette, readable

#: Markers of matplotlib by their name in Plotly.
SYMBOLS = {
    "o": "circle", "s": "square", "P": "cross", "^": "triangle-up", "D": "diamond", "v": "triangle-down",
    "h": "hexagon", "*": "star", "X": "x",
}  # fmt: skip
#: Fonts in which pages write, whichever the reader has.
FONTS = "system-ui, 'DejaVu Sans', Verdana, Arial, sans-serif"
#: Pixels of a typographic point, and those of an average letter and of a line of a label.
POINT, LETTER, LEADING = 96 / 72, 6.4, 14.0
#: Width of a figure as labels are placed in it, its margins (left, right, top, bottom), and height of an inch [pixel].
WIDTH, MARGINS, INCH = 900.0, (80.0, 24.0, 58.0, 60.0), 110.0
#: Width below which a page is scrolled sideways [pixel].
NARROWEST = 860


@dataclass(frozen=True, slots=True)
class _Label:
    """A label that waits for its place: of where, what it says, how far from the middle, and of which entry."""

    at: tuple[float, float]
    text: str
    reach: float
    bold: bool
    colour: str
    group: str


@dataclass(slots=True)
class _Sheet:
    """One panel while it is drawn."""

    figure: Any
    panel: Panel
    x: Span
    y: Span
    colours: dict[str, str]
    number: int
    frame: Box
    names: set[str]
    margin: list[tuple[float, str, str, str]] = field(default_factory=list)
    tops: list[tuple[float, str, str]] = field(default_factory=list)
    labels: list[_Label] = field(default_factory=list)
    bubbles: list[Box] = field(default_factory=list)
    lines: list[Box] = field(default_factory=list)
    bars: list[Box] = field(default_factory=list)
    texts: list[tuple[Box, str, bool, str]] = field(default_factory=list)

    def axes(self, paper_x: bool = False, paper_y: bool = False) -> dict[str, str]:
        """Return which axes something refers to."""
        at = "" if self.number == 1 else str(self.number)
        return {
            "xref": f"x{at} domain" if paper_x else f"x{at}", "yref": f"y{at} domain" if paper_y else f"y{at}",
        }  # fmt: skip

    def pixel(self, x: float, y: float) -> tuple[float, float]:
        """Return about where a place is drawn, upwards from the lower left [pixel]."""
        x0, y0, x1, y1 = self.frame
        return (
            x0 + (x1 - x0) * _part(self.panel.x, self.x, x),
            y0 + (y1 - y0) * _part(self.panel.y, self.y, y, bool(self.panel.y.categories)),
        )

    def data(self, left: float, low: float) -> tuple[float, float]:
        """Return what is drawn at a pixel."""
        x0, y0, x1, y1 = self.frame
        down = bool(self.panel.y.categories)
        part = (low - y0) / (y1 - y0)
        return (
            _along_log(self.panel.x, self.x, (left - x0) / (x1 - x0)),
            _along_log(self.panel.y, self.y, 1 - part if down else part),
        )

    def trace(self, kind: str, name: str, shown: bool = True, **values: Any) -> None:
        """Add a trace, the first of its name with an entry in the legend."""
        import plotly.graph_objects as go

        shown = shown and bool(name) and name not in self.names
        if shown:
            self.names.add(name)
        legend = {"name": _safe(name, 80), "legendgroup": _safe(name), "showlegend": shown}
        self.figure.add_trace(getattr(go, kind)(**legend, **values), row=self.number, col=1)

    def write(self, x: float, y: float, text: str, colour: str, side: str, group: str = "") -> None:
        """Write at a place; the text comes and goes with what has the same entry in the legend."""
        self.trace(
            "Scatter", group, x=[x], y=[y], mode="text", text=[text], textposition=side, hoverinfo="skip",
            textfont={"color": self.colour(colour), "size": 11}, cliponaxis=False, shown=False,
        )  # fmt: skip

    def colour(self, name: str, opacity: float = 1.0) -> str:
        """Return a colour by its name."""
        value = self.colours[name]
        if opacity >= 1:
            return value
        return f"rgba({int(value[1:3], 16)},{int(value[3:5], 16)},{int(value[5:7], 16)},{opacity:g})"

    def say(self, x: float, y: float) -> str:
        """Say what is at a place."""
        said = [_valued(axis, value) for axis, value in ((self.panel.x, x), (self.panel.y, y)) if axis.ticks]
        return "<br>".join(_safe(text) for text in said if text)

    def hover(self, mark: Line | Points, name: str) -> list[str]:
        """Return a safe text for each point of a mark."""
        if mark.hover:
            return [_safe(text) for text in mark.hover]
        head = f"<b>{_safe(name)}</b><br>" if name else ""
        return [head + self.say(x, y) for x, y in zip(mark.x, mark.y, strict=True)]


def figure(drawing: Drawing, dark: bool = False) -> Any:
    """Draw a figure of Plotly.

    Returns:
        A ``plotly.graph_objects.Figure``.
    """
    from plotly.subplots import make_subplots

    heights = [panel.height for panel in drawing.panels]
    margins = _margins(drawing)
    between = _between(drawing)
    height = drawing.size[1] * INCH + margins[2] - MARGINS[2] + between * (len(heights) - 1)
    fig = make_subplots(
        len(heights), 1, shared_xaxes=shares_x(drawing), row_heights=heights,
        vertical_spacing=(30 + between) / (height - margins[2] - margins[3]),
    )  # fmt: skip
    names: set[str] = set()
    colours = palette(dark)
    for number, (panel, (x, y)) in enumerate(zip(drawing.panels, spans(drawing), strict=True), 1):
        sheet = _Sheet(fig, panel, x, y, colours, number, _frame(fig, number, height, margins), names)
        _set_axes(sheet, number == len(heights) or not shares_x(drawing))
        for mark in panel.marks:
            _PAINTERS[type(mark)](sheet, mark)
        _write_labels(sheet)
    _set_page(fig, drawing, colours, height, margins)
    return fig


def html(drawing: Drawing, dark: bool = False) -> str:
    """Return a page of its own that loads nothing."""
    fig = figure(drawing, dark)
    fig.update_layout(width=None, autosize=True)
    page: str = fig.to_html(
        include_plotlyjs=True, include_mathjax=False, div_id="chart", default_width="100%",
        config={"displaylogo": False, "responsive": True},
    )  # fmt: skip
    back = palette(dark)["back"]
    title = f"<title>{escape(clean(drawing.title or 'chart', 200))}</title>"
    narrow = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    style = f"<style>body{{margin:0;background:{back}}}#chart{{min-width:{NARROWEST}px}}</style>"
    return page.replace("<head>", f"<head>{title}{narrow}{style}", 1)


def _margins(drawing: Drawing) -> Box:
    """Return the room around the panels for what stands there: left, right, top, bottom [pixel]."""
    marks = [mark for panel in drawing.panels for mark in panel.marks]
    strips = sum(isinstance(mark, Strip) for mark in marks)
    texts = [mark.label for mark in marks if isinstance(mark, Line | Band) and not getattr(mark, "along", False)]
    texts += [f"{mark.label}, above the axis" for mark in marks if isinstance(mark, Rule) and mark.y and mark.label]
    above = sum(isinstance(mark, Rule) and mark.x is not None and bool(mark.label) for mark in drawing.panels[0].marks)
    left, right, top, bottom = MARGINS
    titled = 16 * bool(drawing.panels[0].title) + LEADING * (len(_subtitle(drawing)) - 1)
    return (
        left,
        right + max((_extent(text)[0] for text in texts), default=0),
        top + titled + 13 * min(3, above),
        bottom + 26 * strips + _drop(drawing.panels[-1].x),
    )


def _between(drawing: Drawing) -> float:
    """Return the room between two panels for what stands there besides ticks [pixel]."""
    titled = any(panel.title for panel in drawing.panels[1:])
    above = any(isinstance(mark, Rule) and mark.x is not None for panel in drawing.panels[1:] for mark in panel.marks)
    return 14.0 * titled + 13.0 * above + (0.0 if shares_x(drawing) else 28.0)


def _subtitle(drawing: Drawing) -> list[str]:
    """Return the second line of the title as lines that the page has room for."""
    return textwrap.wrap(clean(drawing.subtitle, 500), 135, max_lines=3, placeholder="…") or [""]


def _drop(axis: Axis) -> float:
    """Return how far names below an axis reach down that are turned because they are too wide; 0 for others [pixel]."""
    widest = max((len(clean(name, LONGEST)) for name in axis.categories), default=0) * LETTER
    return 0.85 * widest if widest * min(len(axis.categories), NAMES) > WIDTH - 160 else 0.0


def _frame(fig: Any, number: int, height: float, margins: Box) -> Box:
    """Return about where a panel is on the screen, from the lower left [pixel]."""
    left, right, top, bottom = margins
    low, high = fig.layout["yaxis" if number == 1 else f"yaxis{number}"].domain
    room = height - top - bottom
    return left, bottom + low * room, WIDTH - right, bottom + high * room


def _part(axis: Axis, span: Span, value: float, down: bool = False) -> float:
    """Return how far along an axis a value is, 0 to 1."""
    low, high = span
    if axis.log:
        part = math.log(value / low) / math.log(high / low) if value > 0 else -1.0
    else:
        part = (value - low) / (high - low)
    return 1 - part if down else part


def _safe(text: str, limit: int = 300) -> str:
    """Make any text fit for Plotly, which reads some HTML; line breaks stay."""
    return "<br>".join(escape(clean(line, limit), quote=False) for line in text.split("\n"))


def _valued(axis: Axis, value: float) -> str:
    text = axis.text(float(value))
    return f"{axis.label}: {text}" if axis.label and text else text


# --- axes and page ----------------------------------------------------------------------------------------------------


def _set_axes(sheet: _Sheet, last: bool) -> None:
    row: dict[str, Any] = {"row": sheet.number, "col": 1}
    panel = sheet.panel
    sheet.figure.update_xaxes(**_axis(sheet, panel.x, sheet.x, False), **row)
    sheet.figure.update_yaxes(**_axis(sheet, panel.y, sheet.y, bool(panel.y.categories)), **row)
    if last:
        sheet.figure.update_xaxes(title_text=_safe(panel.x.label), **row)
    sheet.figure.update_yaxes(title_text=_safe(panel.y.label), **row)
    if panel.title:
        tops = any(isinstance(mark, Rule) and mark.x is not None and mark.label for mark in panel.marks)
        sheet.figure.add_annotation(
            text=_safe(panel.title), x=0, y=1, xanchor="left", yanchor="bottom", showarrow=False,
            yshift=15 if tops else 2, font={"color": sheet.colour("soft"), "size": 12}, **sheet.axes(True, True),
        )  # fmt: skip


def _axis(sheet: _Sheet, axis: Axis, span: Span, down: bool) -> dict[str, Any]:
    places, texts = ticks(axis, span)
    ends = [math.log10(end) for end in span] if axis.log else list(span)
    line = {"gridcolor": sheet.colour("line"), "linecolor": sheet.colour("soft"), "showline": True, "zeroline": False}
    if axis.categories or axis.log or axis.unit == "B" or not axis.ticks:
        turned = not down and _drop(axis)
        said: dict[str, Any] = {
            "tickvals": places,
            "ticktext": [_safe(text, LONGEST if turned else 42) for text in texts],
        }
        said |= {"tickangle": -55} if turned else {}
    elif axis.unit == "%":
        said = {"tickformat": ".3~%"}
    else:  # ticks of its own, so that there are some however far the reader zooms in
        said = {"exponentformat": "SI" if axis.unit else "none", "minexponent": 0, "ticksuffix": _safe(axis.unit)}
    return line | said | {
        "type": "log" if axis.log else "linear", "range": ends[::-1] if down else ends, "automargin": True,
        "showgrid": not axis.categories,
    }  # fmt: skip


def _set_page(fig: Any, drawing: Drawing, colours: dict[str, str], height: float, margins: Box) -> None:
    left, right, top, bottom = margins
    second = "<br>".join(f"<sup>{_safe(line)}</sup>" for line in _subtitle(drawing))
    title = f"<b>{_safe(drawing.title, 120)}</b><br>{second}" if drawing.title else ""
    # At the bottom, below the axis' name; the page grows by what it needs.
    entries = sum(bool(trace.showlegend) for trace in fig.data)
    fig.update_layout(
        title={"text": title, "x": 0.01, "xanchor": "left", "y": 1 - 18 / height, "yanchor": "top", "font_size": 16},
        paper_bgcolor=colours["back"], plot_bgcolor=colours["back"], width=WIDTH,
        height=height + 12 * (entries // 3), font={"color": colours["ink"], "family": FONTS, "size": 12},
        margin={"l": left, "r": right, "t": top, "b": bottom}, hovermode="closest", barmode="overlay",
        showlegend=drawing.legend and entries > 0,
        legend={"orientation": "h", "yanchor": "top", "x": 0, "y": -(bottom - 8) / (height - top - bottom)},
        hoverlabel={"bgcolor": colours["band"], "font": {"color": colours["ink"]}, "align": "left"},
    )  # fmt: skip


# --- marks ------------------------------------------------------------------------------------------------------------


def _line(sheet: _Sheet, mark: Line) -> None:
    look = {"color": sheet.colour(mark.colour), "width": mark.width, "dash": "dash" if mark.dash else "solid"}
    x, y = [float(v) for v in mark.x], [float(v) for v in mark.y]
    said, group = sheet.hover(mark, mark.toggle or mark.name or mark.label), mark.toggle or mark.name
    places = [sheet.pixel(*at) for at in zip(x, y, strict=True)]
    sheet.lines += [(*a, *b) for a, b in pairwise(places)] if mark.solid else []
    long = _filled(sheet, x, y) if len(x) == 2 and not mark.hover else (x, y)
    if len(long[0]) > len(x):
        said = sheet.hover(replace(mark, x=long[0], y=long[1]), group or mark.label)
    sheet.trace(
        "Scatter", group, x=long[0], y=long[1], line=look, mode="lines" if len(x) > 1 else "markers",
        hoverinfo="text", hovertext=said, legendrank=1100 if mark.toggle else 1000,
    )  # fmt: skip
    if mark.label and mark.along and len(x) > 1:
        _along(sheet, mark, places)
    elif mark.label:
        sheet.margin.append((y[-1], mark.label, mark.colour, group))


def _filled(sheet: _Sheet, x: list[float], y: list[float]) -> tuple[list[float], list[float]]:
    """Return a straight line with places to hover over all along."""
    made = [
        (np.geomspace if axis.log and min(ends) > 0 else np.linspace)(ends[0], ends[1], 40).tolist()
        for axis, ends in ((sheet.panel.x, x), (sheet.panel.y, y))
    ]
    return made[0], made[1]


def _along(sheet: _Sheet, mark: Line, places: Sequence[tuple[float, float]]) -> None:
    """Write along a straight line, at its first free place from its start."""
    (x0, y0), (x1, y1) = places[0], places[-1]
    angle, length = math.atan2(y1 - y0, x1 - x0), math.hypot(x1 - x0, y1 - y0)
    half = _extent(mark.label)[0] / 2
    along, across = np.asarray([math.cos(angle), math.sin(angle)]), np.asarray([-math.sin(angle), math.cos(angle)])
    spots = []
    for to in np.arange(half + 12, max(length - half, half + 13), 12.0):
        middles = [np.asarray([x0, y0]) + along * (to + half * t) + across * 9 for t in np.linspace(-1, 1, 12)]
        spots.append((float(to), [(float(x) - 6, float(y) - 6, float(x) + 6, float(y) + 6) for x, y in middles]))
    to = first_free(spots, sheet.bubbles)
    sheet.bubbles += dict(spots)[to]
    logs = [math.log10(value) if axis.log else value
            for axis, value in zip((sheet.panel.x, sheet.panel.y), sheet.data(*(np.asarray([x0, y0]) + along * to)),
                                   strict=True)]  # fmt: skip
    sheet.figure.add_annotation(
        text=_safe(mark.label), textangle=-math.degrees(angle), showarrow=False, x=logs[0], y=logs[1],
        xshift=float(across[0] * 9), yshift=float(across[1] * 9), xanchor="center", yanchor="middle",
        font={"color": sheet.colour(mark.colour), "size": 11}, **sheet.axes(),
    )  # fmt: skip


def _along_log(axis: Axis, ends: Any, part: float) -> float:
    """Return a place between the ends of a line, as the axis counts."""
    a, b = float(ends[0]), float(ends[-1])
    return float(a * (b / a) ** part) if axis.log else a + (b - a) * part


def _band(sheet: _Sheet, mark: Band) -> None:
    x, name = [float(v) for v in mark.x], mark.toggle or mark.name
    low, high = [float(v) for v in mark.low], [float(v) for v in mark.high]
    head = f"<b>{_safe(name)}</b><br>" if name else ""
    y, stacked = sheet.panel.y.text, mark.strength >= 1
    said = [
        f"{head}{_safe(_valued(sheet.panel.x, at))}<br>{_safe(y(b - a) if stacked else f'{y(a)} to {y(b)}')}"
        for at, a, b in zip(x, low, high, strict=True)
    ]
    sheet.trace(
        "Scatter", name, x=[*x, *x[::-1]], y=[*high, *low[::-1]], fill="toself", mode="lines", hoverinfo="text",
        fillcolor=sheet.colour(mark.colour, mark.strength), line={"width": 0}, hovertext=said + said[::-1],
        hoveron="points",
    )  # fmt: skip
    if mark.label:
        sheet.margin.append(((low[-1] + high[-1]) / 2, f"■ {mark.label}", mark.colour, name))


def _points(sheet: _Sheet, mark: Points) -> None:
    if not len(mark.x):  # an entry of the legend alone
        sheet.trace("Scatter", mark.name, x=[None], y=[None], mode="markers", marker=_symbol(sheet, mark, np.array(9)))
        return
    sizes = np.broadcast_to(np.asarray(mark.size, dtype=np.float64), np.shape(mark.x)) * POINT
    group = mark.toggle or mark.name
    sheet.trace(
        "Scatter", group, x=[float(v) for v in mark.x], y=[float(v) for v in mark.y], mode="markers",
        marker=_symbol(sheet, mark, sizes), hoverinfo="text", hovertext=sheet.hover(mark, mark.name),
        cliponaxis=False, legendrank=1100 if mark.toggle else 1000, **_ranges(sheet, mark),
    )  # fmt: skip
    for at, (x, y) in enumerate(zip(mark.x, mark.y, strict=True)):
        left, low = sheet.pixel(x, y)
        reach = float(sizes[at]) / 2 + 2
        sheet.bubbles.append((left - reach, low - reach, left + reach, low + reach))
        if mark.labels and mark.labels[at]:
            colour = "red" if mark.colour == "red" else "ink"
            sheet.labels.append(_Label((left, low), mark.labels[at], reach, mark.bold, colour, group))


def _ranges(sheet: _Sheet, mark: Points) -> dict[str, Any]:
    if not len(mark.low):
        return {}
    up, down = np.asarray(mark.high) - np.asarray(mark.y), np.asarray(mark.y) - np.asarray(mark.low)
    look = {"color": sheet.colour(mark.colour, 0.35), "thickness": 1, "width": 0, "symmetric": False}
    return {"error_y": look | {"array": up.tolist(), "arrayminus": down.tolist()}}


def _symbol(sheet: _Sheet, mark: Points, sizes: Any) -> dict[str, Any]:
    edge = {"color": sheet.colour(mark.edge), "width": 0.8} if mark.filled else {"width": 2}
    symbol = SYMBOLS[mark.marker] + ("" if mark.filled else "-open")
    return {"symbol": symbol, "size": sizes.tolist(), "color": sheet.colour(mark.colour), "line": edge, "opacity": 0.9}


def _bars(sheet: _Sheet, mark: Bars) -> None:
    at, length = [float(v) for v in mark.at], [float(v) for v in mark.length]
    start = np.broadcast_to(np.asarray(mark.start, dtype=np.float64), len(at)).tolist()
    colour = [sheet.colour(mark.colour if isinstance(mark.colour, str) else mark.colour[i]) for i in range(len(at))]
    across, along = (sheet.panel.y, sheet.panel.x) if mark.horizontal else (sheet.panel.x, sheet.panel.y)
    head = f"<b>{_safe(mark.name)}</b><br>" if mark.name else ""
    said = [_safe(text) for text in mark.hover] or [
        f"{head}{_safe(_valued(across, a))}<br>{_safe(along.text(value))}" for a, value in zip(at, length, strict=True)
    ]
    places = {"x": length, "y": at, "orientation": "h"} if mark.horizontal else {"x": at, "y": length}
    sheet.trace(
        "Bar", mark.name, **places, base=start, width=mark.width, hoverinfo="text", hovertext=said,
        marker={"color": colour, "line": {"color": sheet.colour("back"), "width": 0.6 if len(at) < CROWD else 0.0}},
        text=_bar_texts(sheet, mark, start), textposition="inside", textangle=0, cliponaxis=False,
        insidetextanchor="middle", constraintext="none",
        insidetextfont={"size": 11, "color": [readable(each) for each in colour]},
    )  # fmt: skip


def _bar_texts(sheet: _Sheet, mark: Bars, start: Sequence[float]) -> list[str] | None:
    """Return what bars say that have room for it; what the others say waits until all of them are known."""
    boxes, texts = [], []
    widths = np.broadcast_to(np.asarray(mark.width, dtype=np.float64), len(mark.at)).tolist()
    for at, begin, length, width in zip(mark.at, start, mark.length, widths, strict=True):
        across, along = (float(at) - width / 2, float(at) + width / 2), (begin, begin + float(length))
        ends = zip(along, across, strict=True) if mark.horizontal else zip(across, along, strict=True)
        (x0, y0), (x1, y1) = (sheet.pixel(*end) for end in ends)
        boxes.append((min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)))
    sheet.bars += boxes
    for box, text in zip(boxes, mark.texts, strict=False):
        width, height = _extent(text)
        inside = width + 6 < box[2] - box[0] and height < box[3] - box[1] + 2
        texts.append(_safe(text, 60) if inside else "")
        if text and not inside:
            sheet.texts.append((box, text, mark.horizontal, mark.name))
    return texts or None


def _write_beside(sheet: _Sheet) -> None:
    """Write what bars say that have no room for it: behind or before them, where nothing stands."""
    for (x0, y0, x1, y1), text, horizontal, group in sheet.texts:
        half = np.asarray(_extent(text)) / 2
        middle = np.asarray([x0 + x1, y0 + y1]) / 2
        step = np.asarray([(x1 - x0) / 2 + half[0] + 5, 0.0] if horizontal else [0.0, (y1 - y0) / 2 + half[1] + 4])
        far = np.asarray([2 * half[0] + 10, 0.0] if horizontal else [0.0, 2 * half[1] + 8])
        ends = ((x1, middle[1]), (x0, middle[1])) if horizontal else ((middle[0], y1), (middle[0], y0))
        sides = ("middle right", "middle left") if horizontal else ("top center", "bottom center")
        first, second = zip(ends, sides, strict=True)  # where they stay in any width
        beyond = middle + step + far
        third = (beyond - half * np.sign(step), first[1])
        for spot, (end, side) in ((middle + step, first), (middle - step, second), (beyond, third)):
            box = (*(spot - half), *(spot + half))
            within = sheet.frame[0] < box[0] and box[2] < sheet.frame[2] + 8
            taken = sheet.bars + sheet.bubbles
            if within and not overlaps([box], taken).any() and not crosses(sheet.lines, [box]).any():
                sheet.bubbles.append(box)
                said = f"&nbsp;{_safe(text, 60)}&nbsp;" if horizontal else _safe(text, 60)
                sheet.write(*sheet.data(*end), said, "ink", side, group)
                break


def _cells(sheet: _Sheet, mark: Cells) -> None:
    values = np.asarray(mark.values, dtype=np.float64)
    shown = np.log10(values) if mark.log else values
    z = [[float(v) if math.isfinite(v) else None for v in row] for row in shown]
    hover = [[_safe(text) for text in row] for row in (mark.hover or mark.texts)] or None
    sheet.trace(
        "Heatmap", "", z=z, text=[[_safe(text, 20) for text in row] for row in mark.texts] or None,
        texttemplate="%{text}", hovertext=hover, hoverinfo="text", showscale=False, xgap=1, ygap=1,
        colorscale=[[0, sheet.colour("band")], [1, sheet.colour(mark.colour)]],
    )  # fmt: skip


def _region(sheet: _Sheet, mark: Region) -> None:
    x0, x1 = sheet.x[0] if mark.x0 is None else mark.x0, sheet.x[1] if mark.x1 is None else mark.x1
    y0, y1 = sheet.y[0] if mark.y0 is None else mark.y0, sheet.y[1] if mark.y1 is None else mark.y1
    sheet.trace(
        "Scatter", mark.name, x=[x0, x1, x1, x0], y=[y0, y0, y1, y1], fill="toself", mode="lines", line={"width": 0},
        fillcolor=sheet.colour(mark.colour, mark.strength), hoverinfo="skip",
    )  # fmt: skip
    if mark.label:
        (left, _), (right, top) = sheet.pixel(x0, y0), sheet.pixel(x1, y1)
        a, low, b, high = sheet.frame
        sheet.figure.add_annotation(
            text=f"<i>{_safe(mark.label)}</i>", showarrow=False, x=((left + right) / 2 - a) / (b - a),
            y=(top - low) / (high - low), yanchor="top", font={"color": sheet.colour("soft"), "size": 11},
            **sheet.axes(True, True),
        )  # fmt: skip


def _rule(sheet: _Sheet, mark: Rule) -> None:
    upright = mark.x is not None
    at, (low, high) = (mark.x, sheet.x) if mark.x is not None else (mark.y or 0.0, sheet.y)
    beyond = ", above the axis" if at > high else ", below the axis" if at < low else ""
    if not beyond:
        x, y = ([at, at], [sheet.y[0], mark.top or sheet.y[1]]) if upright else (list(sheet.x), [at, at])
        dash = "dot" if mark.dotted else "dash" if mark.dash else "solid"
        look = {"color": sheet.colour(mark.colour), "width": 1.2, "dash": dash}
        said = _safe(mark.label or mark.name)
        sheet.trace("Scatter", mark.name, x=x, y=y, mode="lines", line=look, hoverinfo="text", hovertext=[said] * 2)
        sheet.lines.append((*sheet.pixel(x[0], y[0]), *sheet.pixel(x[1], y[1])))
    if mark.label and not upright:
        sheet.margin.append((min(max(at, low), high), mark.label + beyond, mark.colour, mark.name))
    elif mark.label and not beyond:
        sheet.tops.append((at, mark.label, mark.colour))


def _arrow(sheet: _Sheet, mark: Arrow) -> None:
    look = {"color": sheet.colour(mark.colour), "width": 1.4}
    sheet.trace(
        "Scatter", mark.name, x=[mark.x0, mark.x1], y=[mark.y0, mark.y1], mode="lines+markers", line=look,
        marker={"symbol": "arrow", "angleref": "previous", "size": [0, 10], "color": look["color"]},
        hoverinfo="text" if mark.hover else "skip", hovertext=[_safe(mark.hover)] * 2,
    )  # fmt: skip
    sheet.lines.append((*sheet.pixel(mark.x0, mark.y0), *sheet.pixel(mark.x1, mark.y1)))


def _note(sheet: _Sheet, mark: Note) -> None:
    sheet.labels.append(_Label(sheet.pixel(mark.x, mark.y), mark.text, 3.0, True, mark.colour, ""))


def _strip(sheet: _Sheet, mark: Strip) -> None:
    """Draw a row below the axes: its caption, and a marker for each point, with its hover text."""
    row = sum(1 for text in sheet.figure.layout.annotations if text.name == "strip")
    shift = -58 - 26 * row
    left, _, right, _ = sheet.frame
    caption = _safe(mark.caption)
    common = {"showarrow": False, "yanchor": "middle", "y": 0, "yshift": shift, **sheet.axes(True, True)}
    sheet.figure.add_annotation(
        text=caption, x=0, xanchor="left", name="strip", font={"color": sheet.colour("soft"), "size": 11}, **common
    )
    at = (len(mark.caption) * LETTER + 16) / (right - left)
    for points in mark.points:
        for i in range(len(points.x)):
            size = float(np.broadcast_to(points.size, np.shape(points.x))[i])
            step = (size * POINT + 5) / (right - left)
            sheet.figure.add_annotation(
                text="●", x=at + step / 2, xanchor="center", hovertext=_safe(points.hover[i]) if points.hover else "",
                font={"color": sheet.colour(points.colour), "size": max(8.0, size * POINT)}, **common,
            )  # fmt: skip
            at += step


_PAINTERS: dict[type, Callable[[_Sheet, Any], None]] = {
    Line: _line, Band: _band, Points: _points, Bars: _bars, Cells: _cells, Region: _region, Rule: _rule,
    Arrow: _arrow, Note: _note, Strip: _strip,
}  # fmt: skip


# --- labels -----------------------------------------------------------------------------------------------------------


def _write_labels(sheet: _Sheet) -> None:
    """Write labels where they cover nothing in a figure of its first size, with leaders; they move with the axes."""
    _write_margin(sheet)
    _write_tops(sheet)
    _write_beside(sheet)
    labels = sorted(sheet.labels, key=lambda label: (not label.bold, -label.reach))
    x0, y0, x1, y1 = sheet.frame
    sizes = [_extent(label.text) for label in labels]
    spots = place([label.at for label in labels], sizes, sheet.bubbles, sheet.lines, (x0 + 2, y0 + 2, x1 - 2, y1 - 2))
    free = clear(spots, sizes, sheet.bubbles, sheet.lines)
    for label, spot, size, is_clear in zip(labels, spots, sizes, free, strict=True):
        if not is_clear:
            continue
        half = np.asarray(size) / 2
        end = nearest(np.concatenate([spot - half, spot + half]), label.at)
        if np.hypot(*(end - label.at)) > label.reach + 6:
            (xa, ya), (xb, yb) = sheet.data(*label.at), sheet.data(*end)
            look = {"color": sheet.colour("soft"), "width": 0.7}
            sheet.trace("Scatter", label.group, x=[xa, xb], y=[ya, yb], mode="lines", line=look, hoverinfo="skip",
                        shown=False)  # fmt: skip
        text = f"<b>{_safe(label.text)}</b>" if label.bold else _safe(label.text)
        sheet.write(*sheet.data(*spot), text, label.colour, "middle center", label.group)


def _extent(text: str) -> tuple[float, float]:
    """Return about how large a text is [pixel]."""
    lines = text.split("\n")
    return max(map(len, lines)) * LETTER, len(lines) * LEADING


def _write_margin(sheet: _Sheet) -> None:
    heights = [_extent(text)[1] + 2 for _, text, *_ in sheet.margin]
    centres = [sheet.pixel(sheet.x[1], y)[1] for y, *_ in sheet.margin]
    low, high = sheet.frame[1], sheet.frame[3]
    for (_, text, colour, group), at in zip(sheet.margin, spread(centres, heights, low, high), strict=True):
        y = _along_log(sheet.panel.y, sheet.y, (at - low) / (high - low))
        indented = "<br>".join(f"&nbsp;{line}" for line in _safe(text).split("<br>"))
        if text.startswith("■"):  # in ink, behind a swatch of the colour
            indented = indented.replace("■", f'<span style="color:{sheet.colour(colour)}">■</span>', 1)
            colour = "ink"
        sheet.write(sheet.x[1], y, indented, colour, "middle right", group)


def _write_tops(sheet: _Sheet) -> None:
    ends: list[float] = []
    for at, text, colour in sorted(sheet.tops):
        x, half = sheet.pixel(at, sheet.y[0])[0], _extent(text)[0] / 2
        level = next((i for i, end in enumerate(ends) if end < x - half), len(ends))
        ends[level : level + 1] = [x + half + 4]
        left, _, right, _ = sheet.frame
        sheet.figure.add_annotation(
            text=_safe(text), x=(x - left) / (right - left), y=1, yanchor="bottom", yshift=13 * level, showarrow=False,
            font={"color": sheet.colour(colour), "size": 11}, **sheet.axes(True, True),
        )  # fmt: skip
