"""The points that something is evaluated at: sizes, each a single number or an axis."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.ir.errors import UnboundSize, UsageError
from roofline.ir.sizes import by_symbol, size_names, unknown_size

#: Order of the axes; other sizes follow alphabetically.
ORDER = ("B", "S", "C")


@dataclass(frozen=True)
class Grid:
    """The outer product of the sizes that were given as arrays.

    Attributes:
        values: For each size a whole number, or a one-dimensional array.
    """

    values: Mapping[str, int | NDArray[np.float64]]

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Names of the sizes that are arrays, outermost first."""
        return tuple(name for name, value in self.values.items() if not isinstance(value, int))

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return tuple(np.size(self.values[name]) for name in self.axes)

    @cached_property
    def sizes(self) -> dict[str, Any]:
        """Values that broadcast against each other: arrays along their own axis, numbers as they are."""
        last = len(self.axes) - 1
        return {
            name: value if isinstance(value, int) else value.reshape((-1,) + (1,) * (last - self.axes.index(name)))
            for name, value in self.values.items()
        }

    def point(self, index: tuple[int, ...]) -> dict[str, int]:
        """The sizes at one index."""
        at = dict(zip(self.axes, index, strict=True))
        return {n: v if isinstance(v, int) else int(v[at[n]]) for n, v in self.values.items()}


@dataclass(frozen=True)
class Points(Grid):
    """Points that are listed one by one: a column for each size.

    Attributes:
        number: How many there are.
    """

    number: int

    axes = ("row",)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of points."""
        return (self.number,)

    @property
    def sizes(self) -> dict[str, Any]:
        """The columns."""
        return dict(self.values)


def one_point(axes: Sequence[str], what: str) -> None:
    """Refuse what spans axes.

    Args:
        axes: Its axes.
        what: What takes one point, such as ``"a batch is chosen for"``.

    Raises:
        UsageError: There are axes; they are named.
    """
    if axes:
        raise UsageError(f"{what} one point; give {size_names(set(axes))} one number, or index the estimate first")


def plain(value: Any) -> Any:
    """A single value as a plain number, whole ones of exact arithmetic as integers; an array as it is.

    Example:
        >>> plain(np.float64(0.5)), plain(Fraction(4, 2)), plain(np.arange(3))
        (0.5, 2, array([0, 1, 2]))
    """
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    array = np.asarray(value)
    return array if array.ndim else array.item()


def added(values: Iterable[Any]) -> Any:
    """Add up numbers and arrays that broadcast, those of one shape first: what spans fewer axes costs less.

    Example:
        >>> added([1, np.arange(3), 2, np.arange(3)])
        array([3, 5, 7])
    """
    sums: dict[tuple[int, ...], Any] = {}
    for value in values:
        shape = getattr(value, "shape", ())
        sums[shape] = sums[shape] + value if shape in sums else value
    return sum(sums.values())


def unbeaten(*figures: Any) -> Any:
    """Return the numbers of the points that no other one beats: the Pareto front, by the first figure.

    Args:
        figures: Of all points, each figure an array; all are to be small. Of points that are equal the first is there.

    Example:
        >>> unbeaten([3.0, 1.0, 2.0], [1.0, 5.0, 5.0]).tolist()
        [1, 0]
    """
    points = np.stack([np.asarray(each, dtype=np.float64) for each in figures])
    order = np.lexsort(points[::-1])
    if len(points) == 2:
        least = np.minimum.accumulate(points[1, order])
        return order[np.concatenate((np.full(least[:1].shape, True), points[1, order[1:]] < least[:-1]))]
    front: list[int] = []
    for at in order:
        if not (points[:, front] <= points[:, at, None]).all(axis=0).any():
            front.append(int(at))
    return np.array(front, dtype=np.int64)


def grid(known: frozenset[str], sizes: Mapping[str, Any]) -> Grid:
    """Check sizes and bind them to the symbols of a graph.

    In a graph without S, such as a decode step, S stands for the context C. Sizes that the graph does not use are
    dropped, since what has no sequence has none to vary.

    Args:
        known: The graph's symbols.
        sizes: Whole numbers, or one-dimensional sequences of them, by symbol or by the words ``batch``, ``seq`` and
            ``context``; ``None`` is no size.

    Raises:
        UsageError: Not a whole number from 1 to 10**12, an unknown size, or one given by word and symbol.
        UnboundSize: A symbol has no value; all of them are named.

    Example:
        >>> grid(frozenset({"B", "C"}), {"B": [1, 2], "S": 2048}).values["C"]
        2048
    """
    values = {}
    for name, value in by_symbol(sizes, known).items():
        if name not in known and name not in ORDER:
            raise unknown_size(name, known)
        if np.ndim(value) > 1:
            raise UsageError(
                f"{size_names({name})} has the shape {value.shape}; give a number or a one-dimensional sequence"
            )
        values[name] = value
    if "C" in known and "C" not in values and "S" in values and "S" not in known:
        values["C"] = values["S"]
    missing = sorted(known - values.keys())
    if missing:
        raise UnboundSize(
            f"needs a value for {size_names(set(missing))} (given: {', '.join(sorted(values)) or 'none'})"
        )
    return Grid({name: values[name] for name in sorted(known, key=_position)})


def _position(name: str) -> tuple[int, str]:
    return (ORDER.index(name) if name in ORDER else len(ORDER), name)
