"""What tiles move, against a walk of the loops over sets of elements, and against the bounds."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.tiling import Nest, Operand

# --- the simulator: walk every tile of every loop, and keep a set of elements for each operand ------------------------

Element = tuple[int, ...]
Ranges = Mapping[str, range]


def tiles_of(size: int, tile: int) -> list[range]:
    return [range(start, min(size, start + tile)) for start in range(0, size, tile)]


def elements(operand: Operand, ranges: Ranges) -> frozenset[Element]:
    """Walk all points of a box of the nest and collect what they touch."""
    axes, touched = sorted(operand.axes), set()
    for point in itertools.product(*(ranges[axis] for axis in axes)):
        at, place = dict(zip(axes, point, strict=True)), []
        for dim in operand.dims:
            if isinstance(dim, str):
                place.append(at[dim])
                continue
            pixel = at[dim.position] * dim.stride + at[dim.tap] * dim.dilation - dim.before
            if not 0 <= pixel < dim.size:
                break
            place.append(pixel)
        else:
            touched.add(tuple(place))
    return frozenset(touched)


def seen(nest: Nest, ranges: Ranges) -> bool:
    """Whether a mask leaves some pair of a box."""
    if nest.band is None:
        return True
    pairs = itertools.product(ranges[nest.band.queries], ranges[nest.band.keys])
    return any(i + nest.band.ahead - nest.band.behind < j <= i + nest.band.ahead for i, j in pairs)


def steps(nest: Nest, tile: Mapping[str, int], loops: Sequence[str]) -> Iterator[dict[str, range]]:
    for boxes in itertools.product(*(tiles_of(nest.sizes[axis], tile.get(axis, nest.sizes[axis])) for axis in loops)):
        ranges = dict(zip(loops, boxes, strict=True))
        if seen(nest, ranges):
            yield ranges


def simulate(nest: Nest, operand: Operand, tile: Mapping[str, int], loops: Sequence[str], depth: int) -> list[float]:
    """Bytes read, written and held, where the buffer keeps what the loops from ``depth`` on touch of an operand."""
    whole = {axis: range(size) for axis, size in nest.sizes.items()}
    inside: frozenset[Element] = frozenset()
    before, stored, read, most = None, dict[Element, int](), 0.0, 0
    for ranges in steps(nest, tile, loops):
        box = {axis: ranges[axis] if axis in loops[:depth] else whole[axis] for axis in loops}
        key = tuple(box[axis] for axis in loops if axis in operand.axes)
        if key == before:
            continue
        for each in inside if operand.role == "sum" else ():
            stored[each] = stored.get(each, 0) + 1
        before, inside = key, elements(operand, box)
        most = max(most, len(inside))
        if operand.role == "read":
            read += len(inside) * operand.width
        elif operand.role == "sum":
            read += sum(each in stored for each in inside) * operand.held
    for each in inside if operand.role == "sum" else ():
        stored[each] = stored.get(each, 0) + 1
    written = len(elements(operand, whole)) * operand.width if operand.role in ("sum", "write") else 0.0
    unfinished = sum(count - 1 for count in stored.values()) * operand.held
    return (
        [0.0, 0.0, most * operand.held]
        if operand.role == "local"
        else [read, written + unfinished, most * operand.held]
    )


def simulated(nest: Nest, tile: Mapping[str, int], order: Sequence[str], capacity: float | None = None) -> float | None:
    """The fewest bytes of all ways to keep operands that fit; ``None`` where none does."""
    loops = [*order, *(axis for axis in nest.sizes if axis not in order)]
    depths = range(len(loops) + 1) if capacity is not None else [len(loops)]
    ways = [[simulate(nest, operand, tile, loops, depth) for depth in depths] for operand in nest.operands]
    fits = (each for each in itertools.product(*ways) if capacity is None or sum(way[2] for way in each) <= capacity)
    return min((sum(way[0] + way[1] for way in each) for each in fits), default=None)


def moved(nest: Nest, tile: Mapping[str, int], order: Sequence[str], capacity: float | None = None) -> float | None:
    try:
        return float(rl.tiling.traffic(nest, tile, order, capacity).bytes)
    except rl.errors.UsageError:
        return None


def draw_tiling(data: st.DataObject, nest: Nest) -> tuple[dict[str, int], list[str]]:
    tile = {axis: data.draw(st.integers(1, size + 1), label=f"tile {axis}") for axis, size in nest.sizes.items()}
    return tile, data.draw(st.permutations(list(nest.sizes)), label="order")


def check_against_walk(data: st.DataObject, nest: Nest) -> None:
    tile, order = draw_tiling(data, nest)
    capacity = data.draw(st.none() | st.integers(1, 200), label="capacity")
    assert moved(nest, tile, order, capacity) == pytest.approx(simulated(nest, tile, order, capacity))


# --- every operator class ---------------------------------------------------------------------------------------------

SMALL = st.integers(1, 6)
WIDTHS = st.sampled_from([1, 2, (2, 0.5, 4), (1, 1, 2)])


@settings(max_examples=examples(60))
@given(st.data(), SMALL, SMALL, SMALL, st.integers(1, 2), WIDTHS, st.sampled_from([None, 4.0]))
def test_a_matmul_moves_what_its_loops_move(
    data: Any, m: int, n: int, k: int, batch: int, widths: Any, partial: Any
) -> None:
    check_against_walk(data, rl.tiling.matmul(m, n, k, batch=batch, widths=widths, partial=partial))
