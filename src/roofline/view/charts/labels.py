"""Places for labels that touch neither each other nor what they label. Pure geometry, in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Space kept around a label [pixel].
PAD = 2.0
#: What a line under a label costs, a label under a leader, and a bubble under one, against one pixel of distance.
SOFT, CROSSED, PASSED = 45.0, 800.0, 20.0
#: Distance that counts double [pixel].
FAR = 150.0
#: The same for a hard box, so that one is covered only if there is no free place at all.
HARD = 1e5
#: Orders that are tried; labels that come first get the better places.
ORDERS = 32


def spread(centres: Sequence[float], heights: Sequence[float], low: float, high: float) -> list[float]:
    """Move intervals apart, each as little as a single pass down and up allows, in their order.

    Args:
        centres: Where each would like to be.
        heights: Extent of each.
        low: Lower end of the room.
        high: Upper end of the room.

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
    """Which boxes (x0, y0, x1, y1), one a row, share area with which others.

    Example:
        >>> overlaps([[0, 0, 2, 2]], [[1, 1, 3, 3], [2, 0, 3, 1]]).tolist()
        [[True, False]]
    """
    a = np.asarray(boxes, dtype=np.float64).reshape(-1, 1, 4)
    b = np.asarray(other, dtype=np.float64).reshape(1, -1, 4)
    found: NDArray[np.bool_] = np.all((a[..., :2] < b[..., 2:]) & (b[..., :2] < a[..., 2:]), axis=-1)
    return found


def crosses(lines: Any, boxes: Any) -> NDArray[np.bool_]:
    """Which line segments (x0, y0, x1, y1) touch which boxes (x0, y0, x1, y1): (segment, box), or pairwise broadcast.

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
    found: NDArray[np.bool_] = (enter <= leave) & (leave >= 0) & (enter <= 1)
    return found


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
    bounds: tuple[float, float, float, float],
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
    orders = [numbers, numbers[::-1], *(rng.permutation(numbers) for _ in range(ORDERS - 2))]
    _, best = min((_arranged(choices, order) for order in orders), key=lambda found: found[0])
    return [(float(x), float(y)) for x, y in (c.centres[best[i]] for i, c in enumerate(choices))]


def _choice(
    anchor: tuple[float, float], size: tuple[float, float], hard: Any, lines: Any, bounds: Sequence[float]
) -> _Choice:
    centres = _candidates(anchor, size, bounds)
    half = np.asarray(size) / 2 + PAD
    boxes = np.hstack([centres - half, centres + half])
    ends = nearest(boxes, anchor)
    leaders = np.hstack([np.broadcast_to(np.asarray(anchor, dtype=np.float64), ends.shape), ends])
    away = np.hypot(*(ends - np.asarray(anchor)).T)
    cost = away * (1 + away / FAR) + HARD * overlaps(boxes, hard).sum(axis=1)
    cost = cost + SOFT * crosses(lines, boxes).sum(axis=0) + PASSED * crosses(leaders, hard).sum(axis=1)
    return _Choice(centres, boxes, leaders, cost)


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


def nearest(box: Any, point: Any) -> Array:
    """The point of a box (or of each box) that is nearest to a point."""
    corners = np.asarray(box, dtype=np.float64)
    inside: Array = np.clip(np.asarray(point, dtype=np.float64), corners[..., :2], corners[..., 2:])
    return inside


def _candidates(anchor: tuple[float, float], size: tuple[float, float], bounds: Sequence[float]) -> Array:
    """Centres around the anchor at rising distance, then all over the room."""
    half_w, half_h = size[0] / 2 + PAD, size[1] / 2 + PAD
    near = [(0.0, 0.0)]
    for gap in (8.0, 14.0, 22.0):
        near += [(gap + half_w, 0), (-gap - half_w, 0), (0, gap + half_h), (0, -gap - half_h)]
        near += [(sx * (gap + half_w), sy * (gap + half_h)) for sx in (1, -1) for sy in (1, -1)]
    x0, y0, x1, y1 = bounds
    xs, ys = np.arange(x0 + half_w, x1 - half_w, 20.0), np.arange(y0 + half_h, y1 - half_h, 9.0)
    grid = np.stack(np.meshgrid(xs, ys), axis=-1).reshape(-1, 2)
    centres = np.vstack([np.asarray(near[1:]) + anchor, grid])
    inside = (
        (centres[:, 0] >= x0 + half_w) & (centres[:, 0] <= x1 - half_w)
        & (centres[:, 1] >= y0 + half_h) & (centres[:, 1] <= y1 - half_h)
    )  # fmt: skip
    return centres[inside] if inside.any() else np.asarray([[(x0 + x1) / 2, (y0 + y1) / 2]])
