"""Draw a roofline onto axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.ir.units import format_si
from roofline.view.charts.labels import nearest, overlaps, place, spread
from roofline.view.charts.points import Ceiling, Point, Slope
from roofline.view.charts.style import (
    ALERT,
    BOUND_COLOURS,
    BOUND_MARKERS,
    GRID,
    INK,
    MUTED,
    clean,
    fit,
    head,
    log_ticks,
    pixels,
    root,
    short,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

#: Corners (x0, y0, x1, y1) of a box, or ends of a line.
Box = tuple[float, float, float, float]

#: Area of a bubble that is all of the time, and of the smallest one [point²].
LARGEST, SMALLEST = 1100.0, 22.0
#: Width of the strip for kernels without FLOPs, as a share of the axes.
RUG = 0.07
#: Kernels with a label.
LABELLED = 5


@dataclass(frozen=True)
class RoofView:
    """All that a roofline shows.

    Attributes:
        title: First line.
        subtitle: Second line.
        ceilings: Compute roofs, the main one first.
        slopes: Memory roofs, the main memory first.
        points: Kernels by falling time, then the program, then what was measured.
        ridge: Where the main ones meet [FLOP/byte].
        slack: By which factor a measurement may beat the roof.
        shares: Achievable shares of compute and memory, 0 to 1.
    """

    title: str
    subtitle: str
    ceilings: tuple[Ceiling, ...]
    slopes: tuple[Slope, ...]
    points: tuple[Point, ...]
    ridge: float
    slack: float
    shares: tuple[float, float]

    @property
    def rug(self) -> tuple[Point, ...]:
        """Points that a logarithmic axis has no place for."""
        return tuple(point for point in self.points if not point.rate)


def hints(view: RoofView) -> dict[str, str]:
    """What each point is, by the id of its group in an SVG."""
    return {f"point-{i}": _hint(point) for i, point in enumerate(view.points)}


def _hint(point: Point) -> str:
    times = f" x {point.count}" if point.count > 1 else ""
    bound = f", {point.bound}-bound" if point.bound else ""
    share = f", {point.share:.1%} of the time" if point.kind == "kernel" else ""
    return (
        f"{clean(point.name, 200)}: {format_si(point.seconds, 's')}{times}{share}{bound}, "
        f"{format_si(point.rate, 'FLOP/s')} at {short(point.intensity)} FLOP/byte"
    )


def draw_roof(ax: Axes, view: RoofView) -> None:
    """Draw everything; labels last, when the place of all else is known."""
    x0, start, x1, y0, y1 = _limits(view)
    ax.set(xscale="log", yscale="log", xlim=(x0, x1), ylim=(y0, y1))
    ax.set_xlabel("arithmetic intensity [FLOP/byte]")
    ax.set_ylabel("achieved rate [FLOP/s]")
    titles = head(ax, view.title, view.subtitle)
    style_axes(ax)
    log_ticks(ax.xaxis, start, x1, "")
    log_ticks(ax.yaxis, y0, y1, "FLOP/s")
    lines = _draw_lines(ax, view, start, x1)
    spots = [_spot(view, point, x1) for point in view.points]
    for i, spot in enumerate(spots):
        _draw_point(ax, view, i, spot)
    if view.rug:
        _draw_rug(ax, start)
    _draw_legend(ax, view)
    margin = [_margin_label(ax, ceiling, i == 0) for i, ceiling in enumerate(view.ceilings)]
    root(ax).draw_without_rendering()
    fit(ax, titles)
    _spread_margin(ax, margin, [ceiling.flops for ceiling in view.ceilings])
    taken = [_bubble(ax, spot) for spot in spots]
    taken.append(_ridge_label(ax, view, y0, taken))
    for i in range(len(view.slopes)):
        taken += _slope_label(ax, view, i, start, taken)
    _place_labels(ax, view, spots, taken, lines, start)


def _limits(view: RoofView) -> tuple[float, float, float, float, float]:
    """Left edge, left edge of the roof, right edge, bottom, top."""
    shown = [point for point in view.points if point.rate and np.isfinite(point.intensity)]
    xs = [point.intensity for point in shown] + [view.ridge / 30, view.ridge * 10]
    start, x1 = min(xs) / 2, max(xs) * 2.5
    top = max([ceiling.flops for ceiling in view.ceilings] + [point.rate for point in shown])
    low = [view.slopes[0].bandwidth * start, min(ceiling.achievable for ceiling in view.ceilings)]
    y0 = min([point.rate for point in shown] + low) / 1.8
    x0 = start / (x1 / start) ** (RUG / (1 - RUG)) if view.rug else start
    return x0, start, x1, y0, top * 2.2


def _draw_lines(ax: Axes, view: RoofView, start: float, end: float) -> list[Box]:
    """Draw the roofs and return them as segments in data coordinates."""
    drawn: list[Box] = []

    def line(x0: float, x1: float, y0: float, y1: float, **look: Any) -> None:
        if x1 > x0:
            ax.plot([x0, x1], [y0, y1], zorder=2, solid_capstyle="round", **look)
            drawn.append((x0, y0, x1, y1))

    highest = max(ceiling.flops for ceiling in view.ceilings)
    fastest = max(slope.bandwidth for slope in view.slopes)
    main = view.slopes[0]
    for i, ceiling in enumerate(view.ceilings):
        look: dict[str, Any] = {"color": MUTED, "lw": 0.9} if i else {"color": INK, "lw": 2.0}
        line(ceiling.flops / fastest, end, ceiling.flops, ceiling.flops, **look)
        reached = ceiling.achievable
        left = reached / (main.achievable or main.bandwidth)
        line(left, end, reached, reached, **look | {"lw": 0.9, "ls": (0, (5, 3))})
    for i, slope in enumerate(view.slopes):
        look = {"color": MUTED, "lw": 0.9} if i else {"color": INK, "lw": 2.0}
        stop = highest / slope.bandwidth
        line(start, stop, slope.bandwidth * start, highest, **look)
        if slope.achievable:
            peak = max(ceiling.achievable for ceiling in view.ceilings)
            dashed = look | {"lw": 0.9, "ls": (0, (5, 3))}
            line(start, peak / slope.achievable, slope.achievable * start, peak, **dashed)
    y0 = ax.get_ylim()[0]
    ax.plot([view.ridge] * 2, [y0, view.ceilings[0].flops], color=MUTED, lw=0.9, ls=":", zorder=1.5)
    return [*drawn, (view.ridge, y0, view.ridge, view.ceilings[0].flops)]


@dataclass(frozen=True)
class Spot:
    """Where a point is drawn: in data coordinates, or in axes ones on the rug, and its radius [point]."""

    x: float
    y: float
    on_rug: bool
    radius: float

    def pixel(self, ax: Axes) -> tuple[float, float]:
        """Its centre on the screen."""
        x, y = (ax.transAxes if self.on_rug else ax.transData).transform((self.x, self.y))
        return float(x), float(y)


def _spot(view: RoofView, point: Point, end: float) -> Spot:
    area = max(SMALLEST, LARGEST * point.share)
    radius = {"kernel": float(np.sqrt(area)) / 2, "program": 7.0, "measured": 4.0}[point.kind]
    if point.above(view.slack):
        radius = 9.0
    if point.rate:
        return Spot(min(point.intensity, end / 1.2), point.rate, False, radius)
    step = min(0.09, 0.75 / len(view.rug))
    return Spot(RUG / 2, 0.17 + view.rug.index(point) * step, True, radius)


def _draw_point(ax: Axes, view: RoofView, index: int, spot: Spot) -> None:
    point = view.points[index]
    transform = ax.transAxes if spot.on_rug else ax.transData
    look: dict[str, Any] = {"transform": transform, "zorder": 4 + index * 1e-3, "clip_on": False}
    mark = look | {"gid": f"point-{index}"}
    if point.kind == "kernel":
        mark |= {"c": BOUND_COLOURS[point.bound], "marker": BOUND_MARKERS[point.bound], "alpha": 0.8}
        ax.scatter([spot.x], [spot.y], s=(2 * spot.radius) ** 2, edgecolors=INK, linewidths=0.6, **mark)
    elif point.kind == "program":
        ax.scatter([spot.x], [spot.y], s=190, c="white", marker="*", edgecolors=INK, linewidths=1.3, **mark)
    else:
        ax.scatter([spot.x], [spot.y], s=42, c=INK, marker="X", edgecolors="white", linewidths=0.6, **mark)
    if point.above(view.slack):
        ax.scatter([spot.x], [spot.y], s=260, facecolors="none", edgecolors=ALERT, linewidths=2.0, **look)


def _draw_rug(ax: Axes, start: float) -> None:
    ax.axvspan(ax.get_xlim()[0], start, color="#f1f3f5", zorder=0)
    ax.text(RUG / 2, 0.015, "no\nFLOPs", transform=ax.transAxes, ha="center", va="bottom", fontsize=7.5, color=MUTED)


def _draw_legend(ax: Axes, view: RoofView) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.transforms import ScaledTranslation

    def mark(marker: str, face: str, label: str, edge: str = INK, size: float = 8, width: float = 0.6) -> Line2D:
        look: dict[str, Any] = {"marker": marker, "mfc": face, "mec": edge, "ms": size, "mew": width}
        return Line2D([], [], ls="none", label=label, **look)

    bounds = dict.fromkeys(point.bound for point in view.points if point.kind == "kernel")
    entries = [mark(BOUND_MARKERS[bound], BOUND_COLOURS[bound], f"{bound}-bound") for bound in bounds]
    if bounds:
        entries.append(mark("o", GRID, "area: share of time"))
    kinds = {point.kind for point in view.points}
    if "program" in kinds:
        entries.append(mark("*", "white", "whole program", size=12, width=1.3))
    if "measured" in kinds:
        entries.append(mark("X", INK, "measured", edge="white"))
    if any(point.above(view.slack) for point in view.points):
        entries.append(mark("o", "none", "above the roof: check timing or count", ALERT, 12, 2.0))
    compute, memory = view.shares
    dashes = f"achievable: {compute:.0%} of peak, {memory:.0%} of {view.slopes[0].label}"
    entries += [Line2D([], [], color=INK, lw=2.0, label="datasheet")]
    entries += [Line2D([], [], color=INK, lw=0.9, ls=(0, (5, 3)), label=dashes)]
    figure: Any = ax.figure
    below = ax.transAxes + ScaledTranslation(0, -0.56, figure.dpi_scale_trans)
    for columns in range(len(entries), 0, -1):
        legend = ax.legend(
            handles=entries, loc="upper left", bbox_to_anchor=(0.0, 0.0), bbox_transform=below, ncols=columns,
            frameon=False, fontsize=8, handletextpad=0.5, columnspacing=1.4, borderaxespad=0.0, handlelength=1.8,
        )  # fmt: skip
        if legend.get_window_extent().width < 0.8 * figure.bbox.width:
            break


# --- labels ---


def _margin_label(ax: Axes, ceiling: Ceiling, main: bool) -> Text:
    return ax.text(
        1.012, ceiling.flops, f"{ceiling.label}\n{format_si(ceiling.flops, 'FLOP/s', 4)}",
        transform=ax.get_yaxis_transform(), va="center", fontsize=8, color=INK if main else MUTED,
        fontweight="bold" if main else "normal", linespacing=1.1,
    )  # fmt: skip


def _spread_margin(ax: Axes, labels: Sequence[Text], heights: Sequence[float]) -> None:
    """Move the labels right of the axes apart."""
    boxes = [label.get_window_extent() for label in labels]
    centres = [float(ax.transData.transform((1.0, height))[1]) for height in heights]
    frame = ax.get_window_extent()
    placed = spread(centres, [box.height + 4 for box in boxes], frame.y0, frame.y1 + 10)
    for label, centre in zip(labels, placed, strict=True):
        label.set_y(float(ax.transData.inverted().transform((0.0, centre))[1]))


def _slope_label(ax: Axes, view: RoofView, index: int, start: float, bubbles: Sequence[Box]) -> list[Box]:
    """Write along a memory roof, at its first free place from the lower end; return boxes that cover the text."""
    slope, px = view.slopes[index], pixels(ax)
    look: dict[str, Any] = {
        "fontsize": 8,
        "color": MUTED if index else INK,
        "fontweight": "normal" if index else "bold",
    }
    text = ax.text(0, 0, f"{slope.label} {format_si(slope.bandwidth, 'B/s')}", transform=ax.transAxes, **look)
    length = text.get_window_extent().width
    stop = max(ceiling.flops for ceiling in view.ceilings) / slope.bandwidth
    a, b = ax.transData.transform([(start, slope.bandwidth * start), (stop, slope.bandwidth * stop)])
    along = (b - a) / np.hypot(*(b - a))
    across = np.asarray([-along[1], along[0]])

    def covered(at: float) -> list[Box]:
        middles = [a + along * (at + length * t) + across * 8 * px for t in np.linspace(0, 1, 16)]
        return [(x - 6 * px, y - 6 * px, x + 6 * px, y + 6 * px) for x, y in middles]

    room = np.arange(10 * px, max(np.hypot(*(b - a)) - length, 11 * px), 10 * px)
    at = _first_free([(float(at), covered(float(at))) for at in room], bubbles)
    text.set_position(tuple(ax.transAxes.inverted().transform(a + along * at + across * 3 * px)))
    text.set(rotation=float(np.degrees(np.arctan2(along[1], along[0]))), rotation_mode="anchor", ha="left", va="bottom")
    return covered(at)


def _ridge_label(ax: Axes, view: RoofView, y0: float, bubbles: Sequence[Box]) -> Box:
    """Name the ridge beside the foot of its line, or as far above as it is free."""
    text = ax.annotate(
        f"{view.ceilings[0].label.split(',')[0]} ridge\n{short(view.ridge)} FLOP/byte", (view.ridge, y0), (5, 5),
        textcoords="offset points", fontsize=8, color=MUTED, va="bottom", linespacing=1.1, gid="ridge",
    )  # fmt: skip
    x0, low, x1, high = (float(edge) for edge in text.get_window_extent().extents)
    room = np.arange(0.0, ax.get_window_extent().height / 2, 8.0)
    rise = _first_free([(float(up), [(x0, low + up, x1, high + up)]) for up in room], bubbles)
    text.set_position((5, 5 + rise / pixels(ax)))
    return x0, low + rise, x1, high + rise


def _first_free(places: Sequence[tuple[float, list[Box]]], taken: Sequence[Box]) -> float:
    """The first place whose boxes cover nothing; the first at all if there is none."""
    free = (at for at, boxes in places if not overlaps(boxes, list(taken)).any())
    return next(free, places[0][0])


def _labelled(view: RoofView) -> list[int]:
    """Which points get a label: what was measured, the program, the slowest kernels."""
    kernels = [i for i, point in enumerate(view.points) if point.kind == "kernel"]
    others = [i for i, point in enumerate(view.points) if point.kind != "kernel"]
    return others[::-1] + kernels[:LABELLED]


def _label(point: Point) -> str:
    times = f" ×{point.count}" if point.count > 1 else ""
    if point.kind == "kernel":
        return f"{clean(point.name)}{times}, {point.share:.0%}"
    return f"{'whole program' if point.kind == 'program' else clean(point.name)}, {format_si(point.seconds, 's')}"


def _bubble(ax: Axes, spot: Spot) -> Box:
    (x, y), reach = spot.pixel(ax), spot.radius * pixels(ax) + 1.5
    return x - reach, y - reach, x + reach, y + reach


def _place_labels(
    ax: Axes, view: RoofView, spots: Sequence[Spot], taken: Sequence[Box], lines: Sequence[Box], start: float
) -> None:
    chosen = _labelled(view)
    sizes = [_size(ax, view.points[i]) for i in chosen]
    frame = ax.get_window_extent()
    left = float(ax.transData.transform((start, 1.0))[0])
    placed = place(
        [spots[i].pixel(ax) for i in chosen],
        sizes,
        taken,
        ax.transData.transform(np.reshape(lines, (-1, 2))).reshape(-1, 4).tolist(),
        (left + 2, frame.y0 + 2, frame.x1 - 2, frame.y1 - 2),
    )
    for i, size, centre in zip(chosen, sizes, placed, strict=True):
        _write(ax, view, i, spots[i], (*centre, *size))


def _font(point: Point) -> dict[str, Any]:
    return {"fontsize": 8, "fontweight": "normal" if point.kind == "kernel" else "bold"}


def _size(ax: Axes, point: Point) -> tuple[float, float]:
    """Width and height of a label [pixel]."""
    text = ax.text(0.5, 0.5, _label(point), transform=ax.transAxes, **_font(point))
    box = text.get_window_extent()
    text.remove()
    return float(box.width), float(box.height)


def _write(ax: Axes, view: RoofView, index: int, spot: Spot, box: Sequence[float]) -> None:
    """Write a label at its place (centre, size), with a leader from the nearest point of its box."""
    point = view.points[index]
    centre, size = np.asarray(box[:2]), np.asarray(box[2:])
    low = centre - size / 2
    end = nearest(np.concatenate([low, low + size]), spot.pixel(ax))
    leader: dict[str, Any] = {"arrowstyle": "-", "color": MUTED, "lw": 0.7, "shrinkA": 1, "shrinkB": spot.radius}
    leader["relpos"] = tuple((end - low) / size)
    far = np.hypot(*(end - spot.pixel(ax))) > spot.radius * pixels(ax) + 4
    ax.annotate(
        _label(point), (spot.x, spot.y), tuple(ax.transAxes.inverted().transform(centre)),
        xycoords="axes fraction" if spot.on_rug else "data", textcoords="axes fraction",
        ha="center", va="center", color=ALERT if point.above(view.slack) else INK, zorder=6,
        bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.6},
        arrowprops=leader if far else None, gid=f"label-{index}", **_font(point),
    )  # fmt: skip
