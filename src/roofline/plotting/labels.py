"""Places for labels that touch neither each other nor what they label. Pure geometry, in pixels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

#: Space kept around a label [pixel].
PAD = 2.0
#: What one soft point under a label costs, against one pixel of distance.
SOFT = 25.0
#: The same for a hard box, so that one is covered only if there is no free place at all.
HARD = 1e5


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


def place(
    anchors: Sequence[tuple[float, float]],
    sizes: Sequence[tuple[float, float]],
    hard: Sequence[Sequence[float]],
    soft: Sequence[tuple[float, float]],
    bounds: tuple[float, float, float, float],
) -> list[tuple[float, float]]:
    """Find a place for each label, in order: free of boxes, near its anchor, off the lines.

    Args:
        anchors: What each label belongs to.
        sizes: Width and height of each label.
        hard: Boxes that no label may cover.
        soft: Points that labels had better not cover, such as samples of lines.
        bounds: The box that labels stay in.

    Returns:
        The centre of each label.

    Example:
        >>> place([(50, 50)], [(20, 10)], [(45, 45, 55, 55)], [], (0, 0, 100, 100))
        [(70.0, 50.0)]
    """
    taken = [tuple(box) for box in hard]
    lines = [tuple(point) for point in soft]
    labels: list[tuple[float, ...]] = []
    found = []
    for anchor, size in zip(anchors, sizes, strict=True):
        centres = _candidates(anchor, size, bounds)
        half = np.asarray(size) / 2 + PAD
        boxes = np.hstack([centres - half, centres + half])
        leader = _leaders(np.asarray(anchor, dtype=np.float64), boxes)
        cost = _cost(anchor, boxes, leader, taken, lines, labels)
        best = int(np.argmin(cost))
        found.append((float(centres[best, 0]), float(centres[best, 1])))
        labels.append(tuple(boxes[best]))
        taken.append(tuple(boxes[best]))
        lines += [tuple(point) for point in leader[best]]
    return found


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
    xs, ys = np.arange(x0 + half_w, x1 - half_w, 12.0), np.arange(y0 + half_h, y1 - half_h, 8.0)
    grid = np.stack(np.meshgrid(xs, ys), axis=-1).reshape(-1, 2)
    centres = np.vstack([np.asarray(near[1:]) + anchor, grid])
    inside = (
        (centres[:, 0] >= x0 + half_w) & (centres[:, 0] <= x1 - half_w)
        & (centres[:, 1] >= y0 + half_h) & (centres[:, 1] <= y1 - half_h)
    )  # fmt: skip
    return centres[inside] if inside.any() else np.asarray([[(x0 + x1) / 2, (y0 + y1) / 2]])


def _leaders(anchor: Array, boxes: Array) -> Array:
    """Samples of the line from the anchor to each box, the ends left out: (box, sample, 2)."""
    ends = nearest(boxes, anchor)
    steps = np.linspace(0.15, 0.95, 12).reshape(1, -1, 1)
    samples: Array = anchor + (ends - anchor).reshape(-1, 1, 2) * steps
    return samples


def _cost(
    anchor: Sequence[float], boxes: Array, leader: Array, taken: Any, lines: Any, labels: Any
) -> NDArray[np.float64]:
    cost = np.hypot(*(nearest(boxes, anchor) - np.asarray(anchor)).T)
    if taken:
        cost = cost + HARD * overlaps(boxes, taken).sum(axis=1)
    if lines:
        cost = cost + SOFT * _inside(np.asarray(lines).reshape(1, -1, 2), boxes[:, None, :]).sum(axis=1)
    for label in labels:
        cost = cost + SOFT * _inside(leader, np.asarray(label)).sum(axis=1)
    return np.asarray(cost)


def _inside(points: Array, box: Array) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = np.all((points >= box[..., :2]) & (points <= box[..., 2:]), axis=-1)
    return found
