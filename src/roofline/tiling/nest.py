"""Loop nests and what their tiles move: exact counts, ragged edges, halos and masks included.

A nest has axes and operands; an operand is indexed by some of the axes. A tiling cuts every axis into tiles and walks
the tiles in an order. A buffer holds, of every operand, what the innermost loops touch: one tile at least, or all tiles
that the loops from some depth on walk over. Whatever is not there is loaded anew; sums that are not finished when they
leave are written and read back. What stays is chosen so that the least is moved.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product
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
    """

    name: str
    sizes: Mapping[str, Any]
    operands: tuple[Operand, ...]
    band: Band | None = field(default=None)


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes between a buffer and the memory behind it; numbers, or arrays over tiles and sizes.

    From :func:`roofline.tiling.traffic`.

    Attributes:
        read: Into the buffer, by operand [byte].
        write: Out of it, by operand [byte].
        held: Bytes that the buffer holds at once [byte].
    """

    read: Mapping[str, Any]
    write: Mapping[str, Any]
    held: Any

    @property
    def bytes(self) -> Any:
        """Read and written [byte]."""
        return sum(self.read.values()) + sum(self.write.values())


def traffic(nest: Nest, tile: Mapping[str, Any], order: Sequence[str] | str = (), capacity: Any = None) -> Traffic:
    """Count what a tiled nest moves between a buffer and the memory behind it.

    Args:
        nest: What is computed.
        tile: Elements of a tile along each axis, numbers or arrays that broadcast; an axis without one is not cut.
        order: Axes from the outermost loop inwards; those that are not named lie innermost, in the nest's own order.
        capacity: Of the buffer [byte]. Without one it holds one tile of each operand and no more.

    Returns:
        Bytes read and written by operand, and what the buffer holds.

    Raises:
        UsageError: An axis that the nest has not, a tile that is no whole number from 1 on, or a capacity that cannot
            hold one tile of each operand.

    Example:
        >>> from roofline.tiling.operators import matmul
        >>> moved = traffic(matmul(512, 512, 512, widths=2), {"m": 128, "n": 128, "k": 64}, "mnk")
        >>> {name: int(each) for name, each in moved.read.items()}, int(moved.bytes)
        ({'a': 2097152, 'b': 2097152, 'c': 0}, 4718592)
    """
    tiles, loops = checked_tile(nest, tile), checked_order(nest, order)
    ways = [_ways(nest, operand, tiles, loops) for operand in nest.operands]
    if capacity is None:
        chosen = [each[0] for each in ways]
    else:
        chosen = _fitting(nest, ways, positive_number("capacity", capacity, "bytes"))
    names = [operand.name for operand in nest.operands if operand.role != "local"]
    moved = [way for way, operand in zip(chosen, nest.operands, strict=True) if operand.role != "local"]
    return Traffic(
        {name: way.read for name, way in zip(names, moved, strict=True)},
        {name: way.write for name, way in zip(names, moved, strict=True)},
        sum(way.held for way in chosen),
    )


def compulsory(nest: Nest) -> Any:
    """Count what every schedule moves: each operand once.

    Args:
        nest: What is computed.

    Returns:
        Bytes read and written [byte].

    Raises:
        UsageError: A nest without operands that move.

    Example:
        >>> from roofline.tiling.operators import matmul
        >>> int(compulsory(matmul(512, 512, 512, widths=2)))
        1572864
    """
    whole = {axis: np.asarray(size, dtype=np.float64) for axis, size in nest.sizes.items()}
    moved = [operand for operand in nest.operands if operand.role != "local"]
    if not moved:
        raise UsageError(f"{nest.name}: no operand that moves; allowed: at least one that is no local")
    return sum(_footprint(nest, operand, whole, largest=True) * operand.width for operand in moved)


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
    return {
        axis: np.minimum(size, whole_number(f"tile of {nest.name} along {axis}", tile[axis])) if axis in tile else size
        for axis, size in sizes.items()
    }


def checked_order(nest: Nest, order: Sequence[str] | str) -> tuple[str, ...]:
    """Return all axes, those of an order first.

    Raises:
        UsageError: An axis that the nest has not, or one twice.
    """
    named = tuple(order)
    for axis in named:
        _known(nest, axis, "order")
    if len(set(named)) < len(named):
        raise UsageError(f"order of {nest.name}: {order!r} names an axis twice; axes: {', '.join(nest.sizes)}")
    return named + tuple(axis for axis in nest.sizes if axis not in named)


def _known(nest: Nest, axis: object, what: str) -> None:
    if axis not in nest.sizes:
        near = did_you_mean(str(axis), nest.sizes)
        raise UsageError(f"{what} of {nest.name}: no axis {axis!r}; axes: {', '.join(nest.sizes)}{near}")


# --- one operand ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Way:
    """What an operand moves when the buffer holds what the loops from some depth on touch of it [byte]."""

    held: Any
    read: Any
    write: Any


def _ways(nest: Nest, operand: Operand, tile: Mapping[str, Any], loops: Sequence[str]) -> list[_Way]:
    """Return the ways to hold an operand that differ in what they move, from a single tile outwards."""
    used = [axis in operand.axes for axis in loops]
    depths = [len(loops)]
    if operand.role in ("read", "sum"):
        outside = [at for at, own in enumerate(used) if not own and any(used[at:])]
        depths += [at + 1 for at in reversed(outside) if used[at + 1]]
    return [_way(nest, operand, tile, loops, depth) for depth in depths]


def _way(nest: Nest, operand: Operand, tile: Mapping[str, Any], loops: Sequence[str], depth: int) -> _Way:
    cut = {axis: tile[axis] if axis in loops[:depth] else np.float64(nest.sizes[axis]) for axis in loops}
    whole = {axis: np.asarray(size, dtype=np.float64) for axis, size in nest.sizes.items()}
    held = _footprint(nest, operand, cut, largest=True) * operand.held
    if operand.role == "local":
        return _Way(held, 0.0, 0.0)
    distinct = _footprint(nest, operand, whole, largest=True)
    if operand.role == "write":
        return _Way(held, 0.0, distinct * operand.width)
    if nest.band is not None and operand.axes & {nest.band.queries, nest.band.keys}:
        loaded, first = _walk(nest, operand, cut, loops[:depth])
    else:
        loaded, first = _visits(nest, operand, cut, loops[:depth]) * _footprint(nest, operand, cut), distinct
    if operand.role == "read":
        return _Way(held, loaded * operand.width, np.zeros(np.shape(loaded)))
    unfinished = (loaded - first) * operand.held
    return _Way(held, unfinished, distinct * operand.width + unfinished)


def _visits(nest: Nest, operand: Operand, cut: Mapping[str, Any], loops: Sequence[str]) -> Any:
    """Count how often each tile is loaded: once per step of the loops around the innermost one that changes it."""
    visits: Any = np.float64(1)
    around: Any = np.float64(1)
    for axis in loops:
        trips = np.ceil(nest.sizes[axis] / cut[axis])
        if axis in operand.axes:
            visits = np.where(trips > 1, around, visits)
        else:
            around = around * trips
    return visits


def _footprint(nest: Nest, operand: Operand, cut: Mapping[str, Any], largest: bool = False) -> Any:
    """Elements of all tiles together, or of the largest one."""
    total: Any = np.float64(1)
    for dim in operand.dims:
        if isinstance(dim, str):
            total = total * (cut[dim] if largest else nest.sizes[dim])
        else:
            total = total * _window(nest, dim, cut, largest)
    return total


def _window(nest: Nest, dim: Window, cut: Mapping[str, Any], largest: bool) -> Any:
    sizes = int(nest.sizes[dim.position]), int(nest.sizes[dim.tap])

    def of(positions: Any, taps: Any) -> int:
        sums, most = _extents(dim, *sizes, int(positions), int(taps))
        return most if largest else sums

    return np.vectorize(of, otypes=[np.float64])(cut[dim.position], cut[dim.tap])


@lru_cache(maxsize=2**14)
def _extents(dim: Window, positions: int, taps: int, some: int, few: int) -> tuple[int, int]:
    """Points of an image that tiles of so many positions and taps touch: of all tiles together, and of the largest."""
    touched = np.arange(positions)[:, None] * dim.stride + np.arange(taps)[None, :] * dim.dilation - dim.before
    sizes = []
    for left, top in product(range(0, positions, some), range(0, taps, few)):
        points = np.unique(touched[left : left + some, top : top + few])
        sizes.append(int(np.count_nonzero((points >= 0) & (points < dim.size))))
    return sum(sizes), max(sizes)


# --- masks: the steps that are left, one after the other --------------------------------------------------------------

#: Steps of a masked nest that are looked at.
MOST_STEPS = 2**24


def _walk(nest: Nest, operand: Operand, cut: Mapping[str, Any], loops: Sequence[str]) -> tuple[Any, Any]:
    """Elements that are loaded over the steps that a mask leaves, and those of them that are loaded the first time.

    Outer loops that change every operand only repeat the rest.
    """
    moved = [each for each in nest.operands if each.role != "local"]
    outer = 0
    while outer < len(loops) and all(loops[outer] in each.axes for each in moved):
        outer += 1
    repeated = {axis for axis in loops[:outer] if axis not in (nest.band.queries, nest.band.keys)}  # type: ignore[union-attr]
    inner = [axis for axis in loops if axis not in repeated]
    shapes = np.broadcast_shapes(*(np.shape(each) for each in cut.values()))
    tiles = {axis: np.broadcast_to(each, shapes).ravel() for axis, each in cut.items()}
    counts = [
        _steps(nest, operand, {axis: int(each[at]) for axis, each in tiles.items()}, inner, repeated)
        for at in range(max(1, int(np.prod(shapes))))
    ]
    loaded, first = np.asarray(counts, dtype=np.float64).T
    return loaded.reshape(shapes), first.reshape(shapes)


def _steps(
    nest: Nest, operand: Operand, cut: Mapping[str, int], loops: Sequence[str], repeated: set[str]
) -> tuple[int, int]:
    sizes = {axis: int(size) for axis, size in nest.sizes.items()}
    trips = [-(-sizes[axis] // cut[axis]) for axis in loops]
    if np.prod(trips, dtype=np.float64) > MOST_STEPS:
        raise UsageError(f"{nest.name}: {np.prod(trips, dtype=np.float64):.3g} masked steps of {dict(cut)}; allowed: "
                         f"at most {MOST_STEPS}, with larger tiles")  # fmt: skip
    at = dict(zip(loops, np.unravel_index(np.arange(int(np.prod(trips))), trips), strict=True)) if loops else {}
    extent = {axis: np.minimum(cut[axis], sizes[axis] - at[axis] * cut[axis]) if axis in at else sizes[axis]
              for axis in sizes}  # fmt: skip
    left = _left(nest.band, at, extent, cut)  # type: ignore[arg-type]
    own = [axis for axis in loops if axis in operand.axes]
    tile: Any = np.zeros(np.shape(left), dtype=np.int64)
    for axis in own:
        tile = tile * trips[loops.index(axis)] + at[axis]
    elements: Any = np.ones(np.shape(left), dtype=np.int64)
    for axis in operand.axes:
        elements = elements * extent[axis]
    tile, elements = np.atleast_1d(tile)[np.atleast_1d(left)], np.atleast_1d(elements)[np.atleast_1d(left)]
    new = np.diff(tile, prepend=-1) != 0
    _, once = np.unique(tile, return_index=True)
    return int(elements[new].sum()), int(elements[once].sum())


def _left(band: Band, at: Mapping[str, Any], extent: Mapping[str, Any], cut: Mapping[str, int]) -> Any:
    """Tell whether some pair of the tiles of queries and keys at each step is left by a mask."""
    first = at[band.queries] * cut[band.queries] if band.queries in at else 0
    key = at[band.keys] * cut[band.keys] if band.keys in at else 0
    nearest = key - (first + extent[band.queries] - 1)
    farthest = key + extent[band.keys] - 1 - first
    return np.asarray((nearest <= band.ahead) & (farthest > band.ahead - band.behind))


# --- what stays -------------------------------------------------------------------------------------------------------


def _fitting(nest: Nest, ways: Sequence[Sequence[_Way]], capacity: Any) -> list[_Way]:
    """Choose, of each operand, what the buffer holds, so that all fits and the least is moved."""
    combinations = list(product(*ways))
    held = np.stack(np.broadcast_arrays(*(sum(way.held for way in each) for each in combinations), capacity)[:-1])
    moved = np.stack(
        np.broadcast_arrays(*(sum(way.read + way.write for way in each) for each in combinations), held[0])[:-1]
    )
    if np.any(held[0] > capacity):
        raise UsageError(f"{nest.name}: one tile of each operand takes {np.max(held[0]):g} bytes; "
                         f"capacity: {np.min(capacity):g} bytes; allowed: smaller tiles")  # fmt: skip
    best = np.argmin(np.where(held <= capacity, moved, np.inf), axis=0)

    def chosen(at: int, figure: str) -> Any:
        each = np.broadcast_arrays(*(getattr(way[at], figure) for way in combinations), held[0])[:-1]
        return np.take_along_axis(np.stack(each), best[None], axis=0)[0]

    return [_Way(*(chosen(at, figure) for figure in ("held", "read", "write"))) for at in range(len(ways))]
