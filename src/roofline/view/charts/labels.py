"""Labels that touch neither each other nor what they label: where they go [pixel], and how they are written there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from roofline.view.charts.style import INK, pixels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.text import Text

Array = NDArray[np.float64]
#: Corners (x0, y0, x1, y1) of a box, or ends of a line.
Box = tuple[float, float, float, float]

#: Space around a label [pixel].
PAD = 2.0
#: What it costs that a label is on a line, each such line, a label under a leader, and a bubble under one, against one
#: pixel of distance.
SOFT, LINE, CROSSED, PASSED = 1e4, 45.0, 800.0, 20.0
#: Distance that counts double [pixel].
FAR = 150.0
#: The same for a hard box, so that one is covered only if there is no free place at all.
HARD = 1e5
#: Orders that are tried for up to eight labels, fewer for more; labels that come first get the better places.
ORDERS = 32
#: Places that are considered for one label: those that cost least by themselves.
PLACES = 400
#: Directions in which a label may stand from its anchor: beside, above and below, then across a corner.
_AROUND = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1))


# --- geometry ---------------------------------------------------------------------------------------------------------


def spread(centres: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[float]:
    """Move intervals apart, each as little as a single pass down and up allows, in their order.

    Example:
        >>> spread([10.0, 11.0, 40.0], [10.0, 10.0, 10.0], 0.0, 100.0)
        [10.0, 20.0, 40.0]
        >>> spread([99.0, 98.0], [10.0, 10.0], 0.0, 100.0)
        [95.0, 85.0]
    """
    order = sorted(range(len(centres)), key=lambda i: centres[i])
    placed = list(centres)
    edge = low
    for i in order:
        placed[i] = max(placed[i], edge + heights[i] / 2)
        edge = placed[i] + heights[i] / 2
    edge = high
    for i in reversed(order):
        placed[i] = min(placed[i], edge - heights[i] / 2)
        edge = placed[i] - heights[i] / 2
    return placed


def overlaps(boxes: Any, other: Any) -> NDArray[np.bool_]:
    """Tell which boxes (x0, y0, x1, y1), one per row, share area with which others.

    Example:
        >>> overlaps([[0, 0, 2, 2]], [[1, 1, 3, 3], [2, 0, 3, 1]]).tolist()
        [[True, False]]
    """
    a = np.asarray(boxes, dtype=np.float64).reshape(-1, 1, 4)
    b = np.asarray(other, dtype=np.float64).reshape(1, -1, 4)
    return np.asarray(np.all((a[..., :2] < b[..., 2:]) & (b[..., :2] < a[..., 2:]), axis=-1))


def crosses(lines: Any, boxes: Any) -> NDArray[np.bool_]:
    """Tell which line segments (x0, y0, x1, y1) touch which boxes (x0, y0, x1, y1).

    Returns:
        A row per segment, a column per box.

    Example:
        >>> crosses([[0, 0, 4, 4], [0, 0, 4, 0]], [[1, 1, 2, 2]]).tolist()
        [[True], [False]]
    """
    a = np.asarray(lines, dtype=np.float64).reshape(-1, 1, 4)
    box = np.asarray(boxes, dtype=np.float64).reshape(1, -1, 4)
    start, step = a[..., :2], a[..., 2:] - a[..., :2]
    step = np.where(step == 0, 1e-9, step)
    one, two = (box[..., :2] - start) / step, (box[..., 2:] - start) / step
    enter = np.minimum(one, two).max(axis=-1)
    leave = np.maximum(one, two).min(axis=-1)
    return np.asarray((enter <= leave) & (leave >= 0) & (enter <= 1))


def nearest(box: Any, point: Any) -> Array:
    """Return the point of a box (or of each box) that is nearest to a point."""
    corners = np.asarray(box, dtype=np.float64)
    return np.asarray(np.clip(np.asarray(point, dtype=np.float64), corners[..., :2], corners[..., 2:]))


@dataclass(frozen=True)
class _Choice:
    """The places that one label could take, and what each costs by itself."""

    centres: Array
    boxes: Array
    leaders: Array
    cost: Array


def place(
    anchors: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    hard: Sequence[Sequence[float]],
    lines: Sequence[Sequence[float]],
    bounds: Box,
) -> list[tuple[float, float]]:
    """Find a place for each label: free of boxes, near its anchor, off the lines and off the leaders of others.

    Labels are placed one by one, in several orders of which the cheapest wins; the same input gives the same places.

    Args:
        anchors: What each label belongs to.
        sizes: Width and height of each label.
        hard: Boxes that no label may cover.
        lines: Segments (x0, y0, x1, y1) that labels had better not cover.
        bounds: The box that labels stay in.

    Returns:
        The centre of each label.

    Example:
        >>> place([(50, 50)], [(20, 10)], [(45, 45, 55, 55)], [], (0, 0, 100, 100))
        [(32.0, 43.0)]
    """
    choices = [_choice(*label, hard, lines, bounds) for label in zip(anchors, sizes, strict=True)]
    numbers = np.arange(len(choices))
    rng = np.random.default_rng(0)
    tries = ORDERS * 8 // max(8, len(choices))
    orders = [numbers, numbers[::-1], *(rng.permutation(numbers) for _ in range(tries - 2))]
    _, best = min((_arranged(choices, order) for order in orders), key=lambda arranged: arranged[0])
    return [(float(x), float(y)) for x, y in (c.centres[best[i]] for i, c in enumerate(choices))]


def _choice(anchor: tuple[float, float], size: tuple[float, float], hard: Any, lines: Any, bounds: Box) -> _Choice:
    centres = _candidates(anchor, size, bounds)
    half = np.asarray(size) / 2 + PAD
    boxes = np.hstack([centres - half, centres + half])
    ends = nearest(boxes, anchor)
    leaders = np.hstack([np.broadcast_to(np.asarray(anchor, dtype=np.float64), ends.shape), ends])
    away = np.hypot(*(ends - np.asarray(anchor)).T)
    cost = away * (1 + away / FAR) + HARD * overlaps(boxes, hard).sum(axis=1)
    crossed = crosses(lines, boxes).sum(axis=0)
    cost += SOFT * (crossed > 0) + LINE * crossed
    best = np.sort(np.argsort(cost, kind="stable")[:PLACES])
    passed = PASSED * crosses(leaders[best], hard).sum(axis=1)
    return _Choice(centres[best], boxes[best], leaders[best], cost[best] + passed)


def _candidates(anchor: tuple[float, float], size: tuple[float, float], bounds: Box) -> Array:
    """Return centres around the anchor at rising distance, then all over the room."""
    half = np.asarray(size) / 2 + PAD
    low, high = np.asarray(bounds[:2]) + half, np.asarray(bounds[2:]) - half
    near = [np.asarray(anchor) + _AROUND * (gap + half) for gap in (8.0, 14.0, 22.0)]
    grid = np.meshgrid(np.arange(low[0], high[0], 20.0), np.arange(low[1], high[1], 9.0))
    centres = np.vstack([*near, np.stack(grid, axis=-1).reshape(-1, 2)])
    inside = ((centres >= low) & (centres <= high)).all(axis=1)
    return centres[inside] if inside.any() else ((low + high) / 2).reshape(1, 2)


def _arranged(choices: Sequence[_Choice], order: Sequence[int] | NDArray[np.int_]) -> tuple[float, dict[int, int]]:
    """Give each label in turn its cheapest place; return the total cost and the places."""
    boxes: list[Array] = []
    leaders: list[Array] = []
    total, taken = 0.0, {}
    for i in order:
        choice = choices[i]
        cost = choice.cost
        if boxes:
            cost = cost + HARD * overlaps(choice.boxes, boxes).sum(axis=1)
            cost = cost + CROSSED * crosses(choice.leaders, boxes).sum(axis=1)
            cost = cost + CROSSED * crosses(leaders, choice.boxes).sum(axis=0)
        best = int(np.argmin(cost))
        total += float(cost[best])
        taken[int(i)] = best
        boxes.append(choice.boxes[best])
        leaders.append(choice.leaders[best])
    return total, taken


def clear(
    centres: Sequence[tuple[float, float]], sizes: Sequence[tuple[float, float]], hard: Any, lines: Any
) -> list[bool]:
    """Tell of each placed label whether it covers nothing: no box, no line, and no clear label before it.

    Example:
        >>> clear([(50, 50), (55, 52), (90, 50)], [(20, 10)] * 3, [], [(95, 0, 95, 99)])
        [True, False, False]
    """
    taken, free = [tuple(box) for box in hard], []
    for centre, size in zip(centres, sizes, strict=True):
        x, y = np.asarray(size) / 2
        box = (centre[0] - x, centre[1] - y, centre[0] + x, centre[1] + y)
        free.append(not overlaps([box], taken).any() and not crosses(lines, [box]).any())
        taken += [box] if free[-1] else []
    return free


def first_free(places: Sequence[tuple[float, list[Box]]], taken: Sequence[Box]) -> float:
    """Return the first place whose boxes cover nothing; the first at all if there is none."""
    free = (at for at, boxes in places if not overlaps(boxes, list(taken)).any())
    return next(free, places[0][0])


# --- labels of points -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Label:
    """The label of something round.

    Attributes:
        text: What it says.
        at: Middle of what it belongs to, in data coordinates.
        radius: Of what it belongs to [point].
        name: Of its group in an SVG.
        look: How its text is written.
    """

    text: str
    at: tuple[float, float]
    radius: float
    name: str
    look: dict[str, Any]

    def pixel(self, ax: Axes) -> tuple[float, float]:
        """Return the middle on the screen."""
        x, y = ax.transData.transform(self.at)
        return float(x), float(y)


def write_labels(ax: Axes, labels: Sequence[Label], hard: Sequence[Box], lines: Sequence[Box], bounds: Box) -> None:
    """Write labels where they cover nothing, with leaders, and leave out those that would; the layout has to be known.

    Args:
        ax: Axes to write on.
        labels: Those first in line get the better places.
        hard: Boxes that no label may cover [pixel].
        lines: Segments that labels had better not cover, in data coordinates.
        bounds: The box that labels stay in [pixel].
    """
    sizes = []
    for label in labels:
        text = ax.text(0.5, 0.5, label.text, transform=ax.transAxes, fontsize=8, **label.look)
        box = text.get_window_extent()
        sizes.append((float(box.width), float(box.height)))
        text.remove()
    segments = ax.transData.transform(np.reshape(lines, (-1, 2))).reshape(-1, 4).tolist()
    centres = place([label.pixel(ax) for label in labels], sizes, hard, segments, bounds)
    free = clear(centres, sizes, hard, segments)
    for label, centre, size, is_clear in zip(labels, centres, sizes, free, strict=True):
        if is_clear:
            _write(ax, label, np.asarray(centre), np.asarray(size))


def _write(ax: Axes, label: Label, centre: Array, size: Array) -> None:
    """Write a label at its place, with a leader from the nearest point of its box."""
    low = centre - size / 2
    end = nearest(np.concatenate([low, low + size]), label.pixel(ax))
    leader: dict[str, Any] = {
        "arrowstyle": "-",
        "color": ax.spines["left"].get_edgecolor(),
        "lw": 0.7,
        "shrinkA": 1,
        "shrinkB": label.radius,
    }
    leader["relpos"] = tuple((end - low) / size)
    is_far = np.hypot(*(end - label.pixel(ax))) > label.radius * pixels(ax) + 4
    ax.annotate(
        label.text, label.at, tuple(ax.transAxes.inverted().transform(centre)),
        xycoords="data", textcoords="axes fraction", ha="center", va="center",
        zorder=6, bbox={"facecolor": ax.get_facecolor(), "alpha": 0.75, "linewidth": 0, "pad": 0.6},
        arrowprops=leader if is_far else None, gid=label.name, fontsize=8, **label.look,
    )  # fmt: skip


# --- labels right of the axes -----------------------------------------------------------------------------------------


def margin_label(ax: Axes, y: float, text: str, colour: str = INK, weight: str = "normal") -> Text:
    """Write right of the axes, at a height in data coordinates."""
    return ax.text(
        1.012, y, text, transform=ax.get_yaxis_transform(), va="center", fontsize=8, color=colour, fontweight=weight,
        linespacing=1.1, gid="margin",
    )  # fmt: skip


def spread_margin(ax: Axes, labels: Sequence[Text], gap: float, below: float, above: float) -> None:
    """Move the labels right of axes apart; the layout has to be known.

    Args:
        ax: The axes.
        labels: Those of :func:`margin_label`, each at its height; a ``swatch`` of one moves with it.
        gap: Between two of them [pixel].
        below: How far they may go below the axes [pixel].
        above: The same above them.
    """
    boxes = [label.get_window_extent() for label in labels]
    centres = [float(ax.transData.transform((1.0, label.get_position()[1]))[1]) for label in labels]
    frame = ax.get_window_extent()
    placed = spread(centres, [box.height + gap for box in boxes], frame.y0 - below, frame.y1 + above)
    for label, centre in zip(labels, placed, strict=True):
        y = float(ax.transData.inverted().transform((0.0, centre))[1])
        for text in (label, getattr(label, "swatch", label)):
            text.set_y(y)


def stagger(labels: Sequence[Any]) -> None:
    """Lift each label above the axes until it is clear of those to its left."""
    order = sorted(labels, key=lambda label: label.xy[0])
    for i, label in enumerate(order):
        for level in range(3):
            label.set_position((0, 3 + 10 * level))
            before = [other.get_window_extent().extents for other in order[:i]]
            if not before or not overlaps([label.get_window_extent().extents], before).any():
                break
