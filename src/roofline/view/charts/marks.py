"""Marks: what a chart consists of, in the terms of its data. Said once, drawn by matplotlib and by Plotly.

A chart is a frozen dataclass that derives from :class:`roofline.view.charts.chart.Chart` and has two methods:
``records()``, the table behind it, and ``drawing()``, which returns a :class:`Drawing`: a title and one
:class:`Panel` or several, from top to bottom, each with two :class:`Axis` and its marks in the order in which they
are painted. From this follow ``.on(ax)``, ``.figure()``, ``.plotly()``, ``.save()`` to every format, the legend,
hover texts, tooltips of an SVG, and labels that cover nothing.

==========  ==========================================================================================================
mark        draws
==========  ==========================================================================================================
`Line`      a curve; ``label`` stands right of its end, or along it (``along=True``)
`Band`      the area between two curves; bands on top of each other make a stacked chart
`Points`    markers, each with its size, and a direct ``label`` where one is given (``""``: none)
`Bars`      bars over categories or numbers, horizontal or upright; ``start`` stacks them or makes a timeline
`Cells`     a heat map: a value per pair of categories
`Region`    a shaded rectangle, open at a side that is ``None``, named in its corner
`Rule`      a line through the whole panel at one ``x`` (named above it) or ``y`` (named right of it)
`Arrow`     an arrow between two places
`Note`      words at a place, which move as far as they have to in order to cover nothing
`Strip`     a row below the axes, for points that have no place on them
==========  ==========================================================================================================

Numbers are in SI units; an axis writes them (:attr:`Axis.unit`). Places on an axis of categories are their numbers
from 0. Colours are names of :data:`roofline.view.charts.style.THEME`. Marks with the same ``name`` are one entry of the
legend, which in Plotly switches them on and off together; a mark without one is in no legend. Hover texts are one
for each point; those that are left out say the values. Any text may hold anything: renderers make it safe.

Example:
    >>> curve = Line([1, 2, 4], [0.1, 0.2, 0.4], "compute", name="expected", label="expected")
    >>> axes = {"x": Axis("batch size", log=2), "y": Axis("time of one run", "s", log=10)}
    >>> Drawing((Panel((curve, Rule(y=0.3, colour="red", label="limit 300 ms")), **axes),), "gpt2 on h100-sxm").title
    'gpt2 on h100-sxm'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from roofline.ir.units import format_bytes, format_si
from roofline.view.charts.style import short

#: So many bars have no rim, which would be all that is seen of them.
CROWD = 80
#: Numbers along a mark: a sequence or an array of numpy.
Numbers = Any


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of a panel.

    Attributes:
        label: What it counts.
        unit: SI unit of its values, written at the ticks; ``"%"`` for shares from 0 to 1, ``""`` for plain numbers.
        log: Base of a logarithmic axis, 0 for a linear one.
        low: Lower end; below the data by default.
        high: Upper end; above the data by default.
        categories: Names in the place of numbers, the first at the left or at the top.
        ticks: False for an axis whose numbers say nothing.
    """

    label: str = ""
    unit: str = ""
    log: int = 0
    low: float | None = None
    high: float | None = None
    categories: tuple[str, ...] = ()
    ticks: bool = True

    def text(self, value: float) -> str:
        """Write a value of this axis.

        Example:
            >>> Axis(unit="s").text(0.0123), Axis(unit="B").text(2**30), Axis(unit="%").text(0.25)
            ('12.3 ms', '1.00 GiB', '25%')
        """
        if self.categories:
            at = round(value)
            return self.categories[at] if 0 <= at < len(self.categories) else ""
        if self.unit == "%":
            return f"{value:.3g}%" if abs(value := 100 * value) < 10 else f"{value:.0f}%"
        if self.unit == "B":
            return format_bytes(value)
        if self.log == 2 or not self.unit:
            return f"{value:,.0f}" if value == round(value) and abs(value) < 1e6 else short(value)
        return format_si(value, self.unit)


@dataclass(frozen=True, slots=True, eq=False)
class Line:
    """A curve through points.

    Attributes:
        x: Where.
        y: How high.
        colour: Name of its colour.
        name: In the legend.
        label: Right of its end, or along it.
        along: Whether its label stands along it, for a straight line.
        dash: Whether it is dashed: something possible, not something that was found.
        width: Of the line [point].
        bold: Whether its label is bold.
        hover: A text for each point.
        solid: False for a line that labels may cross.
        toggle: Its entry in the legend of Plotly, where that switches less than the name.
    """

    x: Numbers
    y: Numbers
    colour: str = "ink"
    name: str = ""
    label: str = ""
    along: bool = False
    dash: bool = False
    width: float = 1.8
    bold: bool = False
    hover: Sequence[str] = ()
    solid: bool = True
    toggle: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """The area between two curves.

    Attributes:
        x: Where.
        low: Its lower edge.
        high: Its upper edge.
        colour: Name of its colour.
        name: In the legend.
        label: Right of its end, with a swatch of its colour.
        strength: Opacity, 0 to 1; a stacked chart has 1.
        toggle: As of a line.
    """

    x: Numbers
    low: Numbers
    high: Numbers
    colour: str
    name: str = ""
    label: str = ""
    strength: float = 0.16
    toggle: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Markers.

    Attributes:
        x: Where.
        y: How high.
        colour: Name of their colour.
        marker: A marker of matplotlib: ``o s P ^ D v h * X``.
        size: Diameter, of all or of each [point].
        name: In the legend.
        labels: A direct label for each, ``""`` for none; those first in a chart get the better places.
        hover: A text for each.
        ids: Of each in an SVG, and the class in a page.
        edge: Name of the colour of the edges.
        filled: False for a ring.
        bold: Whether the labels are bold.
        low: Lower end of the range of each, which an upright line shows.
        high: Upper end.
        toggle: As of a line.
    """

    x: Numbers
    y: Numbers
    colour: str = "compute"
    marker: str = "o"
    size: Numbers = 6.0
    name: str = ""
    labels: Sequence[str] = ()
    hover: Sequence[str] = ()
    ids: Sequence[str] = ()
    edge: str = "ink"
    filled: bool = True
    bold: bool = False
    low: Numbers = ()
    high: Numbers = ()
    toggle: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Bars:
    """Bars of one colour, or of one each.

    Attributes:
        at: Place of each on the axis of categories (their numbers) or of numbers.
        length: Of each, along the other axis; negative goes back.
        start: Where each begins, 0 by default.
        colour: Name of the colour of all, or of each.
        name: In the legend.
        texts: What each says, in it where it fits, else behind it.
        hover: A text for each.
        horizontal: Whether they lie.
        width: Across them, of all or of each, in units of the axis they stand on.
        ids: Of each in an SVG, and the class in a page.
    """

    at: Numbers
    length: Numbers
    start: Numbers = 0.0
    colour: str | Sequence[str] = "compute"
    name: str = ""
    texts: Sequence[str] = ()
    hover: Sequence[str] = ()
    horizontal: bool = True
    width: Numbers = 0.72
    ids: Sequence[str] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """A heat map over two axes of categories.

    Attributes:
        values: A row for each category of y, a column for each of x; nan is left empty.
        texts: What each cell says, of the same shape.
        hover: A text for each cell, of the same shape.
        colour: Name of the colour of the highest value; the lowest is the page's ground.
        log: Whether colours follow the logarithm.
    """

    values: Numbers
    texts: Sequence[Sequence[str]] = ()
    hover: Sequence[Sequence[str]] = ()
    colour: str = "compute"
    log: bool = False


@dataclass(frozen=True, slots=True)
class Region:
    """A shaded rectangle; a side that is ``None`` is the end of the axis."""

    x0: float | None = None
    x1: float | None = None
    y0: float | None = None
    y1: float | None = None
    colour: str = "soft"
    label: str = ""
    name: str = ""
    strength: float = 0.12


@dataclass(frozen=True, slots=True)
class Rule:
    """A line through the whole panel, at an ``x`` or at a ``y``.

    ``dotted`` draws it finely, and ``top`` ends an upright one below the upper edge. One far beyond the data does not
    stretch the axis: its label, at the end of the axis, says that it is beyond.
    """

    x: float | None = None
    y: float | None = None
    label: str = ""
    colour: str = "ink"
    dash: bool = False
    bold: bool = False
    name: str = ""
    dotted: bool = False
    top: float | None = None


@dataclass(frozen=True, slots=True)
class Arrow:
    """An arrow from one place to another."""

    x0: float
    y0: float
    x1: float
    y1: float
    colour: str = "soft"
    name: str = ""
    hover: str = ""


@dataclass(frozen=True, slots=True)
class Note:
    """Words at a place."""

    x: float
    y: float
    text: str
    colour: str = "soft"
    id: str = "note"


@dataclass(frozen=True, slots=True, eq=False)
class Strip:
    """A row below the axes: points whose place says nothing, by falling size.

    Attributes:
        caption: Why they have no place on the axes.
        points: What they are; x and y say nothing.
    """

    caption: str
    points: tuple[Points, ...]


Mark = Line | Band | Points | Bars | Cells | Region | Rule | Arrow | Note | Strip


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """Marks on two axes.

    Attributes:
        marks: In the order in which they are painted.
        x: The axis from left to right.
        y: The axis upwards (of categories: downwards).
        height: Beside the other panels of the chart.
        title: Above it, where a chart has several.
    """

    marks: tuple[Mark, ...]
    x: Axis = field(default_factory=Axis)
    y: Axis = field(default_factory=Axis)
    height: float = 1.0
    title: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """All that a chart shows.

    Attributes:
        panels: From top to bottom; those with equal x axes share it.
        title: First line.
        subtitle: Second line.
        size: Width and height of the figure [inch].
        legend: Whether names of marks are listed below the chart.
    """

    panels: tuple[Panel, ...]
    title: str = ""
    subtitle: str = ""
    size: tuple[float, float] = (8.0, 5.4)
    legend: bool = True

    def hints(self) -> dict[str, str]:
        """Return the hover texts of what has a name of its own in an SVG, by that name."""
        marks = [mark for panel in self.panels for mark in panel.marks]
        points = [part for mark in marks for part in (mark.points if isinstance(mark, Strip) else (mark,))]
        known = [part for part in points if isinstance(part, Points | Bars) and part.ids and part.hover]
        return {name: text for part in known for name, text in zip(part.ids, part.hover, strict=True)}


def stacked(x: Numbers, parts: dict[str, Numbers], colours: Sequence[str], labels: Sequence[str] = ()) -> list[Band]:
    """Return a band for each part, on top of each other, the first at the bottom.

    Example:
        >>> [band.high.tolist() for band in stacked([1, 2], {"a": [1, 1], "b": [2, 4]}, ["compute", "memory"])]
        [[1.0, 1.0], [3.0, 5.0]]
    """
    import numpy as np

    edges = np.cumsum([np.zeros(len(x)), *(np.asarray(part, dtype=float) for part in parts.values())], axis=0)
    said = labels or [""] * len(parts)
    return [Band(x, edges[i], edges[i + 1], colours[i], name, said[i], strength=1.0) for i, name in enumerate(parts)]
