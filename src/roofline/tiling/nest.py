"""Loop nests: axes with their sizes, and the operands that they index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from roofline.ir.errors import UsageError, did_you_mean

#: What a nest does with an operand. ``read``: loads it. ``sum``: adds to it, so that what leaves unfinished comes back.
#: ``write``: stores it once, in the last pass over it. ``local``: keeps it in the buffer, and never moves it.
Role = Literal["read", "sum", "write", "local"]


@dataclass(frozen=True, slots=True)
class Window:
    """A dimension of an image that a kernel slides over: ``position * stride + tap * dilation - before``.

    From :func:`roofline.tiling.conv`; a dimension of a :class:`roofline.tiling.Operand`.

    Attributes:
        position: Axis of the positions of the kernel.
        tap: Axis of the points of the kernel.
        stride: Points between positions.
        dilation: Points between taps.
        before: Padding before the first point.
        size: Points of the image; what lies outside of them is padding and is never loaded.
    """

    position: str
    tap: str
    stride: int
    dilation: int
    before: int
    size: int


@dataclass(frozen=True, slots=True)
class Band:
    """The pairs that a mask leaves: key ``j`` for query ``i`` where ``i + ahead - behind < j <= i + ahead``.

    From :func:`roofline.tiling.attention`.

    Attributes:
        queries: Axis of the queries.
        keys: Axis of the keys.
        ahead: Place of the last key that the first query sees.
        behind: Keys that a query sees at most; infinite without a window.
    """

    queries: str
    keys: str
    ahead: int
    behind: float = float("inf")


@dataclass(frozen=True, slots=True)
class Operand:
    """What a nest reads or writes.

    Part of a nest, from :func:`roofline.tiling.matmul` and the like.

    Attributes:
        name: What it is called.
        dims: Axes that index it, or windows over them.
        width: Bytes of an element where it is stored [byte].
        role: What is done with it.
        partial: Bytes of an unfinished sum, in the buffer and on the way; ``width`` by default [byte].
    """

    name: str
    dims: tuple[str | Window, ...]
    width: float = 1.0
    role: Role = "read"
    partial: float | None = None

    @property
    def axes(self) -> frozenset[str]:
        """All axes that its elements depend on."""
        return frozenset(
            axis for dim in self.dims for axis in ((dim,) if isinstance(dim, str) else (dim.position, dim.tap))
        )

    @property
    def held(self) -> float:
        """Bytes of an element in the buffer [byte]."""
        return self.width if self.partial is None else self.partial


@dataclass(frozen=True)
class Nest:
    """Axes with their sizes, and the operands that they index.

    From :func:`roofline.tiling.matmul` and the like.

    Attributes:
        name: What is computed.
        sizes: Of the axes; numbers, or arrays that broadcast where no operand has a window and no mask is there.
        operands: Those that it reads, and what it writes.
        band: The mask that leaves whole tiles out.
        order: The only order of its loops, where the steps depend on each other.
        single: Axes that are walked one by one, such as the passes over a row.
    """

    name: str
    sizes: Mapping[str, Any]
    operands: tuple[Operand, ...]
    band: Band | None = None
    order: tuple[str, ...] = ()
    single: tuple[str, ...] = ()


# --- what is given ----------------------------------------------------------------------------------------------------


def positive_number(what: str, value: Any, unit: str = "", least: float = 0.0) -> Any:
    """Return numbers above a least one as an array of doubles.

    Raises:
        UsageError: Something else.
    """
    try:
        if isinstance(value, str | bool):
            raise ValueError
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        numbers = np.asarray(np.nan)
    if not np.all(np.isfinite(numbers)) or not np.all(numbers > least if least == 0 else numbers >= least):
        bound = "above 0" if least == 0 else f"from {least:g} on"
        raise UsageError(f"{what}: {value!r}; allowed: finite numbers {bound}" + (f" ({unit})" if unit else ""))
    return numbers


def whole_number(what: str, value: Any) -> Any:
    """Return whole numbers from 1 on as an array of doubles.

    Raises:
        UsageError: Something else.
    """
    numbers = positive_number(what, value, least=1.0)
    if np.any(numbers != np.floor(numbers)):
        raise UsageError(f"{what}: {value!r}; allowed: whole numbers from 1 on")
    return numbers


def checked_tile(nest: Nest, tile: Mapping[str, Any]) -> dict[str, Any]:
    """Return tile sizes of all axes, none larger than its axis.

    Raises:
        UsageError: An axis that the nest has not, or a tile that is no whole number from 1 on.
    """
    if not isinstance(tile, Mapping):
        raise UsageError(f"tile of {nest.name}: {tile!r}; allowed: a size for each of {', '.join(nest.sizes)}")
    for axis in tile:
        _known(nest, axis, "tile")
    sizes = {axis: np.asarray(size, dtype=np.float64) for axis, size in nest.sizes.items()}
    tile = {**tile, **dict.fromkeys(nest.single, 1)}
    return {
        axis: np.minimum(size, whole_number(f"tile of {nest.name} along {axis}", tile[axis])) if axis in tile else size
        for axis, size in sizes.items()
    }


def checked_order(nest: Nest, order: Sequence[str] | str) -> tuple[str, ...]:
    """Return all axes, those of an order first.

    Raises:
        UsageError: An axis that the nest has not, or one twice.
    """
    if not isinstance(order, Sequence):
        raise UsageError(f"order of {nest.name}: {order!r}; allowed: a sequence of {', '.join(nest.sizes)}")
    named = tuple(order or nest.order)
    if nest.order and named != nest.order:
        raise UsageError(
            f"order of {nest.name}: {order!r}; allowed: {', '.join(nest.order)}, since steps follow from each other"
        )
    for axis in named:
        _known(nest, axis, "order")
    if len(set(named)) < len(named):
        raise UsageError(f"order of {nest.name}: {order!r} names an axis twice; axes: {', '.join(nest.sizes)}")
    return named + tuple(axis for axis in nest.sizes if axis not in named)


def _known(nest: Nest, axis: object, what: str) -> None:
    if axis not in nest.sizes:
        near = did_you_mean(str(axis), nest.sizes)
        raise UsageError(f"{what} of {nest.name}: no axis {axis!r}; axes: {', '.join(nest.sizes)}{near}")
