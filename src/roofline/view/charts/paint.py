"""Marks drawn by matplotlib; labels last, when the place of all else is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.view.charts import labels as place
from roofline.view.charts.labels import Box, Label
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
from roofline.view.charts.spans import LONGEST, Span, shares_x, spans, ticks
from roofline.view.charts.strip import Row, below
from roofline.view.charts.style import clean, clean_lines, head, lay_out, palette, pixels, readable, root, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: So many points without names of their own are drawn at once.
CLOUD = 100
#: Dashes of what is possible but was not found.
DASHES = (0, (5, 3))


@dataclass(slots=True)
class _Canvas:
    """One panel while it is drawn: where, in which colours, and the labels that wait for the layout."""

    ax: Axes
    panel: Panel
    x: Span
    y: Span
    colours: dict[str, str]
    order: float = 2.0
    drop: float = 0.0
    entries: dict[str, Any] = field(default_factory=dict)
    margin: list[Any] = field(default_factory=list)
    tops: list[Any] = field(default_factory=list)
    labels: list[Label] = field(default_factory=list)
    bubbles: list[Label] = field(default_factory=list)
    lines: list[Box] = field(default_factory=list)
    boxes: list[Any] = field(default_factory=list)
    late: list[Callable[[_Canvas, list[Box]], list[Box]]] = field(default_factory=list)
    rows: list[tuple[Row, Strip]] = field(default_factory=list)

    def next(self) -> dict[str, Any]:
        """Return the place in the order of painting."""
        self.order += 0.01
        return {"zorder": self.order}

    def named(self, name: str, **look: Any) -> None:
        """List a name in the legend."""
        from matplotlib.lines import Line2D

        if name:
            self.entries[name] = Line2D([], [], label=clean(name, 80), **look)

    def margin_label(self, y: float, text: str, colour: str, bold: bool, swatch: str = "") -> None:
        """Write right of the axes."""
        weight = "bold" if bold else "normal"
        # Browsers take spaces away that begin a text.
        said = "\N{NO-BREAK SPACE}" * 4 * bool(swatch) + clean_lines(text)
        self.margin.append(place.margin_label(self.ax, y, said, self.colours[colour], weight))
        if swatch:
            self.margin[-1].swatch = place.margin_label(self.ax, y, "■", self.colours[swatch])
            self.margin[-1].swatch.set_gid("swatch")


def paint(axes: Sequence[Axes], drawing: Drawing, dark: bool = False) -> None:
    """Draw onto axes of matplotlib, one for each panel."""
    colours = palette(dark)
    canvases = [
        _Canvas(ax, panel, x, y, colours)
        for ax, panel, (x, y) in zip(axes, drawing.panels, spans(drawing), strict=True)
    ]
    for at, canvas in enumerate(canvases):
        last = at == len(canvases) - 1 or not shares_x(drawing)
        _draw_axes(canvas, last)
        for mark in canvas.panel.marks:
            _PAINTERS[type(mark)](canvas, mark)
    if drawing.legend:
        _draw_legend(canvases)
    # The title makes room for what stands above the first panel before the layout is computed.
    lift = 10.0 * min(3, len(canvases[0].tops)) + (14.0 if canvases[0].panel.title else 0.0)
    titles = head(axes[0], drawing.title, drawing.subtitle, lift, colours["soft"]) if drawing.title else ()
    lay_out(axes[0], titles)
    for canvas in canvases:
        _write_labels(canvas)


# --- axes -------------------------------------------------------------------------------------------------------------


def _draw_axes(canvas: _Canvas, last: bool) -> None:
    ax, panel = canvas.ax, canvas.panel
    style_axes(ax)
    _draw_axis(ax.xaxis, panel.x, canvas.x, ax.set_xscale, ax.set_xlim)
    _draw_axis(ax.yaxis, panel.y, canvas.y, ax.set_yscale, ax.set_ylim)
    ax.set_ylabel(clean(panel.y.label, 80))
    if last:
        ax.set_xlabel(clean(panel.x.label, 80))
    if panel.x.categories:
        _turn_names(canvas)
    if panel.title:  # above what stands at the ends of rules
        tops = any(isinstance(mark, Rule) and mark.x is not None and mark.label for mark in panel.marks)
        ax.annotate(
            clean(panel.title, 120), (0, 1), (0, 16 if tops else 4), xycoords="axes fraction", va="bottom",
            textcoords="offset points", fontsize=9, color=canvas.colours["soft"], gid="panel",
        )  # fmt: skip


def _draw_axis(axis: Any, spec: Axis, span: Span, scale: Callable[..., Any], limit: Callable[..., Any]) -> None:
    from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

    if spec.log:
        scale("log", base=spec.log)
    limit(span[::-1] if spec.categories and axis.axis_name == "y" else span)
    places, texts = ticks(spec, span)
    axis.set_major_locator(FixedLocator(places))
    axis.set_major_formatter(FixedFormatter([clean(text, 42) for text in texts]))
    axis.set_minor_locator(NullLocator())
    if spec.categories:
        axis.grid(False)


def _turn_names(canvas: _Canvas) -> None:
    """Turn names below the axes that are too wide for their place; what is below them moves down."""
    names, axis = ticks(canvas.panel.x, canvas.x)[1], canvas.ax.xaxis
    room = 72 * 0.8 * float(root(canvas.ax).get_size_inches()[0]) / max(len(names), 1)
    longest = max((len(clean(name, LONGEST)) for name in names), default=0) * 5.2
    if longest <= room:
        return
    steep = room < 14
    axis.set_tick_params(rotation=90 if steep else 55, labelsize=min(8.5, max(room, 6.0)))
    for label in axis.get_ticklabels():
        label.set(
            text=clean(label.get_text(), LONGEST),
            ha="center" if steep else "right",
            rotation_mode="anchor" if not steep else "default",
        )
    canvas.drop = longest * (1.0 if steep else 0.85)


# --- marks ------------------------------------------------------------------------------------------------------------


def _line(canvas: _Canvas, mark: Line) -> None:
    x, y = np.asarray(mark.x, dtype=np.float64), np.asarray(mark.y, dtype=np.float64)
    look: dict[str, Any] = {"color": canvas.colours[mark.colour], "lw": mark.width, "ls": DASHES if mark.dash else "-"}
    lone: dict[str, Any] = {"marker": "o"} if x.size == 1 else {}
    canvas.ax.plot(x, y, solid_capstyle="round", **look, **lone, **canvas.next())
    canvas.named(mark.name, **look)
    if mark.solid:
        canvas.lines += [(x[i], y[i], x[i + 1], y[i + 1]) for i in range(x.size - 1)]
    if mark.label and mark.along:
        canvas.late.append(lambda canvas, taken: _along(canvas, mark, taken))
    elif mark.label:
        canvas.margin_label(float(y[-1]), mark.label, mark.colour, mark.bold)


def _band(canvas: _Canvas, mark: Band) -> None:
    colour = canvas.colours[mark.colour]
    full = mark.strength >= 1
    edge = {"edgecolor": canvas.colours["back"], "lw": 0.5} if full else {"lw": 0}
    low, high = np.asarray(mark.low, dtype=np.float64), np.asarray(mark.high, dtype=np.float64)
    canvas.ax.fill_between(mark.x, low, high, facecolor=colour, alpha=mark.strength, **edge, **canvas.next())
    canvas.named(mark.name, marker="s", ls="none", color=colour, alpha=max(mark.strength, 0.3))
    if mark.label:
        canvas.margin_label(float(low[-1] + high[-1]) / 2, mark.label, "ink", False, swatch=mark.colour)


def _points(canvas: _Canvas, mark: Points) -> None:
    if len(mark.low):
        look: dict[str, Any] = {"color": canvas.colours[mark.colour], "lw": 0.8, "alpha": 0.35}
        canvas.ax.vlines(mark.x, mark.low, mark.high, **look, **canvas.next())
    cloud = len(mark.x) > CLOUD and not mark.ids
    if cloud:  # markers one by one take a millisecond each
        area = np.square(np.asarray(mark.size, dtype=np.float64))
        canvas.ax.scatter(mark.x, mark.y, s=area, c=canvas.colours[mark.colour], marker=mark.marker, alpha=0.85,
                          edgecolors=canvas.colours[mark.edge], linewidths=0.3, **canvas.next())  # fmt: skip
    for at, (x, y) in enumerate(zip(mark.x, mark.y, strict=True)):
        if not cloud:
            _marker(canvas, mark, at, (x, y), canvas.ax.transData)
        radius = float(_each(mark.size, at)) / 2
        text = clean_lines(mark.labels[at]) if mark.labels else ""
        label = Label(
            text, (x, y), radius, f"label-{(_id(mark, at) or '').partition('-')[2]}", _label_look(canvas, mark)
        )
        canvas.bubbles.append(label)
        if text:
            canvas.labels.append(label)
    _named_points(canvas, mark)


def _named_points(canvas: _Canvas, mark: Points) -> None:
    colour, edge = canvas.colours[mark.colour], canvas.colours[mark.edge]
    face = colour if mark.filled else "none"
    rim = edge if mark.filled else colour
    size = float(np.clip(np.max(mark.size) if np.size(mark.size) else 6, 6, 9))
    width = 0.6 if mark.filled else 2.0
    if mark.name not in canvas.entries:  # points of several colours share a name, and what explains it comes first
        canvas.named(mark.name, marker=mark.marker, ls="none", mfc=face, mec=rim, ms=size, mew=width)


def _marker(canvas: _Canvas, mark: Points, at: int, place: tuple[float, float], transform: Any) -> None:
    colour = canvas.colours[mark.colour]
    look: dict[str, Any] = {"facecolors": colour, "edgecolors": canvas.colours[mark.edge], "linewidths": 0.6}
    if not mark.filled:
        look = {"facecolors": "none", "edgecolors": colour, "linewidths": 2.0}
    size = float(_each(mark.size, at))
    canvas.ax.scatter(
        [place[0]], [place[1]], s=size**2, marker=mark.marker, alpha=0.85 if mark.filled else 1, clip_on=False,
        transform=transform, gid=_id(mark, at), zorder=5 - size * 1e-3, **look,
    )  # fmt: skip


def _id(mark: Points | Bars, at: int) -> str | None:
    return mark.ids[at] if mark.ids else None


def _each(value: Any, at: int) -> Any:
    """Return what holds for one of several: its own, or that of all."""
    return value if isinstance(value, str) or np.ndim(value) == 0 else value[at]


def _label_look(canvas: _Canvas, mark: Points) -> dict[str, Any]:
    colour = canvas.colours["red" if mark.colour == "red" else "ink"]
    return {"fontweight": "bold" if mark.bold else "normal", "color": colour}


def _bars(canvas: _Canvas, mark: Bars) -> None:
    names = mark.colour if isinstance(mark.colour, str) else list(mark.colour)
    fill = canvas.colours[names] if isinstance(names, str) else [canvas.colours[name] for name in names]
    look: dict[str, Any] = {"color": fill, "edgecolor": canvas.colours["back"]}
    look["linewidth"] = 0.6 if len(mark.at) < CROWD else 0.0
    draw, width = (canvas.ax.barh, "height") if mark.horizontal else (canvas.ax.bar, "width")
    start: dict[str, Any] = {"left" if mark.horizontal else "bottom": mark.start, width: mark.width}
    drawn = draw(mark.at, mark.length, **start, **look, **canvas.next())
    for at, patch in enumerate(drawn):
        patch.set_gid(_id(mark, at))
    first = canvas.colours[_each(names, 0)] if len(np.atleast_1d(names)) else "none"
    canvas.named(mark.name, marker="s", ls="none", color=first)
    if mark.texts:
        canvas.late.append(lambda canvas, taken: _bar_texts(canvas, mark, drawn, taken))


def _bar_texts(canvas: _Canvas, mark: Bars, drawn: Any, taken: list[Box]) -> list[Box]:
    """Write in each bar where it fits, else behind or before it where nothing stands there, else not at all."""
    boxes: list[Box] = []
    patches = [patch for bars in canvas.ax.containers for patch in bars]
    edges = [tuple(patch.get_window_extent().extents) for patch in patches]
    for at, patch in enumerate(drawn):
        if mark.texts[at]:
            boxes += _bar_text(canvas, mark.texts[at], patch, mark.horizontal, edges + taken + boxes)
    return boxes


def _bar_text(canvas: _Canvas, said: str, patch: Any, horizontal: bool, taken: Sequence[Box]) -> list[Box]:
    from matplotlib.colors import to_hex

    look: dict[str, Any] = {"transform": canvas.ax.transAxes, "fontsize": 8, "ha": "center", "va": "center"}
    text = canvas.ax.text(0.5, 0.5, clean(said, 60), gid="bar", **look)
    bar, size = patch.get_window_extent(), text.get_window_extent()
    middle = np.asarray([(bar.x0 + bar.x1) / 2, (bar.y0 + bar.y1) / 2])
    if size.width + 6 < bar.width and size.height < bar.height + 2:
        text.set_color(readable(to_hex(patch.get_facecolor())))
        spots = [middle]
    else:
        step = np.asarray([size.width + 10, 0.0] if horizontal else [0.0, size.height + 8])
        far = np.asarray([bar.width, 0.0] if horizontal else [0.0, bar.height])
        spots = [middle + (far + step) / 2, middle - (far + step) / 2, middle + far / 2 + step * 1.5]
    half = np.asarray([size.width, size.height]) / 2
    boxes = [tuple(map(float, (*(spot - half), *(spot + half)))) for spot in spots]
    free = 0 if len(spots) == 1 else _free(canvas, boxes, taken, inside=True)  # type: ignore[arg-type]
    if free is None:
        text.remove()
        return []
    text.set_position(tuple(canvas.ax.transAxes.inverted().transform(spots[free])))
    return [boxes[free]]  # type: ignore[list-item]


def _cells(canvas: _Canvas, mark: Cells) -> None:
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_hex

    values = np.ma.masked_invalid(np.asarray(mark.values, dtype=np.float64))
    shades = LinearSegmentedColormap.from_list("cells", [canvas.colours["band"], canvas.colours[mark.colour]])
    look: dict[str, Any] = {"norm": LogNorm()} if mark.log else {}
    drawn = canvas.ax.pcolormesh(values, cmap=shades, edgecolors=canvas.colours["back"], linewidth=1, **look)
    drawn.set_transform(_shifted(canvas.ax))
    canvas.ax.grid(False)
    for row, texts in enumerate(mark.texts):
        for column, text in enumerate(texts):
            if text and not np.ma.is_masked(values[row, column]):
                colour = readable(to_hex(shades(float(np.ravel(drawn.norm(values[row, column]))[0]))))
                canvas.ax.text(column, row, clean(text, 20), ha="center", va="center", fontsize=8, color=colour)


def _shifted(ax: Axes) -> Any:
    """Move cells so that the middle of the first is at zero."""
    from matplotlib.transforms import Affine2D

    return Affine2D().translate(-0.5, -0.5) + ax.transData


def _region(canvas: _Canvas, mark: Region) -> None:
    from matplotlib.patches import Rectangle

    x0, x1, y0, y1 = (
        end if own is None else own
        for own, end in zip((mark.x0, mark.x1, mark.y0, mark.y1), (*canvas.x, *canvas.y), strict=True)
    )
    colour = canvas.colours[mark.colour]
    look: dict[str, Any] = {"facecolor": colour, "alpha": mark.strength, "linewidth": 0, "zorder": 0.5}
    canvas.ax.add_patch(Rectangle((x0, y0), x1 - x0, y1 - y0, **look))
    canvas.named(mark.name, marker="s", ls="none", color=colour, alpha=max(mark.strength, 0.3))
    if mark.label:
        canvas.late.append(lambda canvas, taken: _region_label(canvas, mark, (x0, y0, x1, y1), taken))


def _region_label(canvas: _Canvas, mark: Region, area: Box, taken: list[Box]) -> list[Box]:
    """Name a region at its upper edge, or as far below as it is free."""
    (left, low), (right, high) = canvas.ax.transData.transform([area[:2], area[2:]])
    text = canvas.ax.text(
        0, 0, clean(mark.label, 80), transform=canvas.ax.transAxes, fontsize=8, style="italic",
        color=canvas.colours["soft"], ha="center", va="center", gid="region",
    )  # fmt: skip
    size = text.get_window_extent()
    half = np.asarray([size.width, size.height]) / 2 + 2
    frame = canvas.ax.get_window_extent()
    heights = np.arange(min(high, frame.y1) - half[1] - 3, max(low, frame.y0) + half[1], -6.0)
    middles = np.linspace(max(left, frame.x0) + half[0] + 2, min(right, frame.x1) - half[0] - 2, 9)
    order = np.argsort(np.abs(np.arange(9) - 4), kind="stable")
    spots = [(x, y) for y in heights for x in middles[order]]
    boxes = [(float(x - half[0]), float(y - half[1]), float(x + half[0]), float(y + half[1])) for x, y in spots]
    free = _free(canvas, boxes, taken)
    if free is None or right - left < 2 * half[0]:
        text.remove()
        return []
    text.set_position(tuple(canvas.ax.transAxes.inverted().transform(spots[free])))
    return [boxes[free]]


def _free(canvas: _Canvas, boxes: Sequence[Box], taken: Sequence[Box], inside: bool = False) -> int | None:
    """Return the first box that covers no line and nothing that is taken, and is ``inside`` of the axes."""
    if not boxes:
        return None
    covers = place.overlaps(boxes, list(taken)).any(axis=1) | place.crosses(_segments(canvas), boxes).any(axis=0)
    if inside:
        frame, edges = canvas.ax.get_window_extent(), np.asarray(boxes)
        covers |= (edges[:, 0] < frame.x0) | (edges[:, 2] > frame.x1 + 2)
    at = np.flatnonzero(~covers)
    return int(at[0]) if at.size else None


def _segments(canvas: _Canvas) -> Any:
    """Return the solid lines on the screen."""
    return canvas.ax.transData.transform(np.reshape(canvas.lines, (-1, 2))).reshape(-1, 4)


def _rule(canvas: _Canvas, mark: Rule) -> None:
    style: Any = ":" if mark.dotted else DASHES if mark.dash else "-"
    look: dict[str, Any] = {"color": canvas.colours[mark.colour], "lw": 1.1, "ls": style}
    canvas.named(mark.name, **look)
    (low, high), at = (canvas.x, mark.x) if mark.x is not None else (canvas.y, mark.y or 0.0)
    beyond = ", above the axis" if at > high else ", below the axis" if at < low else ""
    if not beyond:
        (y0, y1), (x0, x1) = canvas.y, canvas.x
        ends = (at, y0, at, mark.top or y1) if mark.x is not None else (x0, at, x1, at)
        canvas.ax.plot(ends[::2], ends[1::2], **look, **canvas.next())
        canvas.lines.append(ends)
    if not mark.label:
        return
    if mark.x is None:
        canvas.margin_label(min(max(at, low), high), mark.label + beyond, mark.colour, mark.bold)
    elif not beyond:
        canvas.tops.append(_top(canvas, at, mark))


def _top(canvas: _Canvas, at: float, mark: Rule) -> Any:
    return canvas.ax.annotate(
        clean(mark.label, 80), (at, 1), (0, 3), xycoords=canvas.ax.get_xaxis_transform(), textcoords="offset points",
        ha="center", va="bottom", fontsize=8, gid="mark", color=canvas.colours[mark.colour],
    )  # fmt: skip


def _arrow(canvas: _Canvas, mark: Arrow) -> None:
    look: dict[str, Any] = {"arrowstyle": "-|>", "color": canvas.colours[mark.colour], "lw": 1.0, "mutation_scale": 9}
    canvas.ax.annotate(
        "", (mark.x1, mark.y1), (mark.x0, mark.y0), arrowprops=look | {"shrinkA": 6, "shrinkB": 6},
        annotation_clip=False, **canvas.next(),
    )  # fmt: skip
    canvas.lines.append((mark.x0, mark.y0, mark.x1, mark.y1))
    canvas.named(mark.name, color=look["color"], lw=1.0, marker=">")


def _note(canvas: _Canvas, mark: Note) -> None:
    look = {"color": canvas.colours[mark.colour]}
    canvas.labels.append(Label(clean_lines(mark.text), (mark.x, mark.y), 2.0, mark.id, look))


def _strip(canvas: _Canvas, mark: Strip) -> None:
    """Begin a row below the axes."""
    radii = [float(_each(points.size, i)) / 2 for points in mark.points for i in range(len(points.x))]
    above = sum(row.height for row, _ in canvas.rows)
    row = Row.begin(canvas.ax, clean(mark.caption, 120), range(len(radii)), radii, above)
    row.caption.set_color(canvas.colours["soft"])
    canvas.rows.append((row, mark))
    for points in mark.points:
        _named_points(canvas, points)


def _fill(canvas: _Canvas, row: Row, mark: Strip) -> None:
    """Draw the points of a row; the layout has to be known."""
    members = [(points, i) for points in mark.points for i in range(len(points.x))]
    texts = {
        at: (clean_lines(points.labels[i]), _label_look(canvas, points))
        for at, (points, i) in enumerate(members)
        if points.labels and points.labels[i]
    }
    for at, spot in row.places(canvas.ax, texts):
        points, i = members[at]
        _marker(canvas, points, i, spot, row.transform(canvas.ax))


_PAINTERS: dict[type, Callable[[_Canvas, Any], None]] = {
    Line: _line, Band: _band, Points: _points, Bars: _bars, Cells: _cells, Region: _region, Rule: _rule,
    Arrow: _arrow, Note: _note, Strip: _strip,
}  # fmt: skip


# --- legend and labels ------------------------------------------------------------------------------------------------


def _draw_legend(canvases: Sequence[_Canvas]) -> None:
    """List what has a name below the last panel, in as many columns as the page is wide."""
    from matplotlib.transforms import blended_transform_factory

    entries = {name: entry for canvas in canvases for name, entry in canvas.entries.items()}
    if not entries:
        return
    last = canvases[-1]
    figure: Any = last.ax.figure
    lower = below(last.ax, last.drop + sum(row.height for row, _ in last.rows))
    under = blended_transform_factory(figure.transSubfigure, lower)
    for columns in range(len(entries), 0, -1):
        legend = last.ax.legend(
            handles=list(entries.values()), loc="upper left", bbox_to_anchor=(0.015, 0.0), bbox_transform=under,
            ncols=columns, frameon=False, fontsize=8, handletextpad=0.5, columnspacing=1.4, borderaxespad=0.0,
            handlelength=1.8,
        )  # fmt: skip
        if legend.get_window_extent().width < 0.96 * figure.bbox.width:
            break


def _write_labels(canvas: _Canvas) -> None:
    """Write what waited for the layout."""
    ax = canvas.ax
    place.spread_margin(ax, canvas.margin, gap=3, below=8, above=12)
    place.stagger(canvas.tops)
    for row, strip in canvas.rows:
        _fill(canvas, row, strip)
    taken = [_bubble(ax, label) for label in canvas.bubbles]
    for write in canvas.late:
        taken += write(canvas, taken)
    x0, y0, x1, y1 = ax.get_window_extent().extents
    first = sorted(canvas.labels, key=lambda label: (label.look.get("fontweight") != "bold", -label.radius))
    place.write_labels(ax, first, taken, canvas.lines, (x0 + 2, y0 + 2, x1 - 2, y1 - 2))


def _bubble(ax: Axes, label: Label) -> Box:
    (x, y), reach = label.pixel(ax), label.radius * pixels(ax) + 1.5
    return x - reach, y - reach, x + reach, y + reach


def _same_line(a: Any, b: Any, start: Any, end: Any) -> bool:
    """Tell whether a segment lies upon a line."""
    way = (b - a) / np.hypot(*(b - a))
    return all(abs(way[0] * (p - a)[1] - way[1] * (p - a)[0]) < 1 for p in (start, end))


def _along(canvas: _Canvas, mark: Line, taken: list[Box]) -> list[Box]:
    """Write along a straight line, at its first free place from its start; return boxes that cover the text."""
    ax, px = canvas.ax, pixels(canvas.ax)
    weight = "bold" if mark.bold else "normal"
    text = ax.text(0, 0, clean(mark.label, 80), transform=ax.transAxes, fontsize=8, color=canvas.colours[mark.colour],
                   fontweight=weight, gid="along")  # fmt: skip
    length = text.get_window_extent().width
    a, b = ax.transData.transform([(mark.x[0], mark.y[0]), (mark.x[-1], mark.y[-1])])
    along = (b - a) / np.hypot(*(b - a))
    across = np.asarray([-along[1], along[0]])

    def covered(at: float) -> Iterator[Box]:
        for t in np.linspace(0, 1, 16):
            x, y = a + along * (at + length * t) + across * 8 * px
            yield x - 6 * px, y - 6 * px, x + 6 * px, y + 6 * px

    room = np.arange(10 * px, max(np.hypot(*(b - a)) - length, 11 * px), 10 * px)
    spots = [(float(at), list(covered(float(at)))) for at in room]
    # Boxes on the other lines; those of its own begin just beside it.
    lines = [(*end, *start) for end, start in _segments(canvas).reshape(-1, 2, 2) if not _same_line(a, b, end, start)]
    clear = [(at, boxes) for at, boxes in spots if not place.crosses(lines, boxes).any()]
    at = place.first_free(clear or spots, taken)
    text.set_position(tuple(ax.transAxes.inverted().transform(a + along * at + across * 3 * px)))
    text.set(rotation=float(np.degrees(np.arctan2(along[1], along[0]))), rotation_mode="anchor", ha="left", va="bottom")
    return list(covered(at))
