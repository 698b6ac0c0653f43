"""One choice for each of many items so that two sums are least: the front of a multiple-choice knapsack.

The sets that no other beats are merged item by item (Nemhauser and Ullmann 1969, doi:10.1287/mnsc.15.9.494; Kellerer,
Pferschy and Pisinger 2004, "Knapsack Problems", chapter 11). That is exact. Where a set grows beyond what is asked for,
it is thinned so that every point that goes is replaced by one with no more error at a cost that is higher by a step at
most; the steps add up to the gap that the result states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from roofline.counting.grid import unbeaten
from roofline.ir.errors import UsageError
from roofline.ops.registry import Array

#: Points that a set may have before it is thinned.
MOST_POINTS = 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Front:
    """Choices that no other ones beat in both sums, from the cheapest to the one with the least error.

    From :func:`front`.

    Attributes:
        costs: Sum of costs, ascending.
        errors: Sum of errors, descending.
        choices: The option of each item, a row per point.
        gap: How far the cost of a point may lie above the least that its error allows; 0 where the front is exact.
    """

    costs: Array
    errors: Array
    choices: Array
    gap: float


def front(costs: Sequence[Sequence[float]], errors: Sequence[Sequence[float]], most: int = MOST_POINTS) -> Front:
    """Choose an option for each item so that no other choice is better in the sums of cost and of error.

    Args:
        costs: Of each option, item by item.
        errors: Of the same options.
        most: Points to carry from item to item before they are thinned.

    Returns:
        The front, with its gap.

    Raises:
        UsageError: Not as many errors as costs, an item without an option, or a number that is not finite.

    Example:
        >>> best = front([[1, 3], [1, 4]], [[5, 0], [2, 0]])
        >>> best.costs.tolist(), best.errors.tolist(), best.choices.tolist(), best.gap
        ([2.0, 4.0, 7.0], [7.0, 2.0, 0.0], [[0, 0], [1, 0], [1, 1]], 0.0)
    """
    sums = np.zeros((2, 1))
    history: list[tuple[Array, Array]] = []
    gap = 0.0
    for at, (cost, error) in enumerate(zip(costs, errors, strict=True)):
        options = _checked(at, cost, error)
        every = (sums[:, :, None] + options[:, None, :]).reshape(2, -1)
        order, step = _thinned(every, unbeaten(*every), most)
        gap += step
        sums = every[:, order]
        history.append(np.divmod(order, options.shape[1]))
    return Front(sums[0], sums[1], _choices(history, sums.shape[1]), gap)


def _checked(at: int, cost: Sequence[float], error: Sequence[float]) -> Array:
    if len(cost) != len(error) or not len(cost):
        raise UsageError(f"item {at}: {len(cost)} costs and {len(error)} errors; expected one of each per option")
    options = np.array([cost, error], dtype=np.float64)
    if not np.isfinite(options).all():
        raise UsageError(f"item {at}: costs and errors must be finite, given {list(cost)} and {list(error)}")
    return options


def _thinned(every: Array, order: Array, most: int) -> tuple[Array, float]:
    """The cheapest point and the last of each of equal steps of the cost, and how wide such a step is."""
    if len(order) <= most:
        return order, 0.0
    costs = every[0, order]
    step = float(costs[-1] - costs[0]) / most
    bins = np.minimum(((costs - costs[0]) / step).astype(np.int64), most - 1)
    last = np.concatenate((bins[1:] != bins[:-1], [True]))
    last[0] = True
    return order[last], step


def _choices(history: Sequence[tuple[Array, Array]], points: int) -> Array:
    """Follow each point back to the option of every item."""
    at, columns = np.arange(points), list[Array]()
    for before, option in reversed(history):
        columns.append(option[at])
        at = before[at]
    return np.stack(columns[::-1], axis=1) if columns else np.zeros((points, 0), dtype=np.int64)
