"""What tiles move, against a walk of the loops over sets of elements, and against the bounds."""

from __future__ import annotations

import itertools
import re
import timeit
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.tiling import Nest, Operand

#: A shared machine may be so much slower than the one that a time is stated for.
SLOW = 4

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


def simulate(
    nest: Nest, operand: Operand, tile: Mapping[str, int], loops: Sequence[str], depth: int, outer: Any = None
) -> list[float]:
    """Bytes read, written and held, where the buffer keeps what the loops from ``depth`` on touch of an operand.

    It starts empty in each step of the loops around, if there are any.
    """
    whole = {axis: range(size) for axis, size in nest.sizes.items()}
    inside: frozenset[Element] = frozenset()
    before, stored, read, most = None, dict[Element, int](), 0.0, 0
    for ranges in outer or steps(nest, tile, loops):
        box = {axis: ranges[axis] if axis in loops[:depth] else whole[axis] for axis in loops}
        key = (ranges.get("outer"), *(box[axis] for axis in loops if axis in operand.axes))
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
    shape = [nest.sizes[dim] if isinstance(dim, str) else dim.size for dim in operand.dims]
    written = prod(shape) * operand.width if operand.role in ("sum", "write") else 0.0
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
    tile |= dict.fromkeys(nest.single, 1)
    return tile, list(nest.order) or data.draw(st.permutations(list(nest.sizes)), label="order")


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


@st.composite
def convolutions(draw: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    rank = draw(st.integers(1, 2))
    image = draw(st.lists(st.integers(1, 5), min_size=rank, max_size=rank))
    kernel = draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
    options = {
        "stride": tuple(draw(st.integers(1, 3)) for _ in range(rank)),
        "dilation": tuple(draw(st.integers(1, 2)) for _ in range(rank)),
        "padding": tuple((draw(st.integers(0, 2)), draw(st.integers(0, 2))) for _ in range(rank)),
    }
    reach = [gap * (wide - 1) + 1 for gap, wide in zip(options["dilation"], kernel, strict=True)]
    image = [max(size, far - sum(pad)) for size, far, pad in zip(image, reach, options["padding"], strict=True)]
    groups = draw(st.integers(1, 2))
    return (draw(st.integers(1, 2)), groups, image, groups * draw(st.integers(1, 2)), kernel), options | {
        "groups": groups
    }


@settings(max_examples=examples(60))
@given(st.data(), convolutions(), WIDTHS)
def test_a_convolution_moves_what_its_windows_see(data: Any, layer: Any, widths: Any) -> None:
    sizes, options = layer
    check_against_walk(data, rl.tiling.conv(*sizes, widths=widths, **options))


@settings(max_examples=examples(20))
@given(st.data(), convolutions())
def test_copied_columns_move_what_they_take(data: Any, layer: Any) -> None:
    sizes, options = layer
    for nest in rl.tiling.im2col(*sizes, **options):
        check_against_walk(data, nest)


@settings(max_examples=examples(40))
@given(st.data(), st.sampled_from(["conv_transpose2d", "conv2d_grad_input", "conv2d_grad_weight"]), SMALL, SMALL)
def test_gradients_of_a_convolution_add_up_in_overlapping_windows(data: Any, op: str, height: int, width: int) -> None:
    stride = data.draw(st.integers(1, 3), label="stride")
    shapes, options = {
        "conv_transpose2d": (((1, 2, height, width), (2, 1, 2, 3)), {}),
        "conv2d_grad_input": (((1, 1, height, width), (1, 2, 2, 3)),
                              {"image": (2, (height - 1) * stride + 2, (width - 1) * stride + 3)}),
        "conv2d_grad_weight": (((1, 2, (height - 1) * stride + 2, (width - 1) * stride + 3), (1, 1, height, width)),
                               {"kernel": (2, 2, 3)}),
    }[op]  # fmt: skip
    check_against_walk(data, rl.tiling.of_operator(op, *shapes, stride=stride, **options))


@settings(max_examples=examples(60))
@given(st.data(), SMALL, SMALL, st.integers(1, 2), st.integers(1, 2), st.booleans(), st.integers(0, 3))
def test_attention_skips_what_its_mask_hides(
    data: Any, q: int, k: int, groups: int, share: int, causal: bool, window: int
) -> None:
    nest = rl.tiling.attention(
        q, k, 2, heads=groups * share, kv_heads=groups, value=3, causal=causal, window=window if causal else 0, width=1,
        scores=1, partial=2,
    )  # fmt: skip
    check_against_walk(data, nest)


@settings(max_examples=examples(20))
@given(st.data(), SMALL, SMALL, st.integers(1, 3))
def test_rows_are_read_again_where_they_do_not_fit(data: Any, rows: int, columns: int, passes: int) -> None:
    check_against_walk(data, rl.tiling.rowwise(rows, columns, passes=passes, widths=(1, 2)))
    check_against_walk(data, rl.tiling.reduction(rows, columns, widths=(1, 2), partial=4))


@settings(max_examples=examples(20))
@given(st.data(), SMALL, SMALL, SMALL)
def test_any_contraction_is_counted_by_its_signature(data: Any, m: int, n: int, k: int) -> None:
    shapes = {"linear": [(2, m, k), (n, k), (n,)], "bmm": [(2, m, k), (2, k, n)],
              "attention_scores": [(1, 4, m, k), (1, 2, n, k)],
              "attention_values": [(1, 4, m, n), (1, 2, n, k)]}  # fmt: skip
    op = data.draw(st.sampled_from(sorted(shapes)), label="op")
    check_against_walk(data, rl.tiling.of_operator(op, *shapes[op]))


# --- tiles within tiles, and blocks at a time -------------------------------------------------------------------------


def within(nest: Nest, tilings: Sequence[tuple[Mapping[str, int], Sequence[str]]]) -> Iterator[dict[str, Any]]:
    """Walk the loops of each level inside the steps of the one around it; the innermost steps, and that they lie in."""
    boxes: list[tuple[Any, Ranges]] = [((), {axis: range(size) for axis, size in nest.sizes.items()})]
    for tile, order in tilings:
        inner: list[tuple[Any, Ranges]] = []
        for number, (_, box) in enumerate(boxes):
            cut = [
                [box[axis][part.start : part.stop] for part in tiles_of(len(box[axis]), tile[axis])] for axis in order
            ]
            each = (dict(zip(order, parts, strict=True)) for parts in itertools.product(*cut))
            inner += [(number, ranges) for ranges in each if seen(nest, ranges)]
        boxes = inner
    return ({**ranges, "outer": number} for number, ranges in boxes)


NESTS = st.sampled_from([
    rl.tiling.matmul(5, 6, 4, batch=2, widths=(2, 1, 2), partial=4),
    rl.tiling.conv(1, 2, (6, 5), 2, (3, 2), padding=1, stride=2),
    rl.tiling.attention(6, 5, 2, heads=2, kv_heads=1, causal=True, width=1), rl.tiling.reduction(5, 7),
    rl.tiling.of_operator("conv2d_grad_input", (1, 2, 3, 3), (2, 1, 2, 2), image=(1, 4, 4)),
])  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), NESTS)
def test_every_level_moves_what_its_loops_move(data: Any, nest: Nest) -> None:
    tilings: list[Any] = []
    for _ in range(data.draw(st.integers(1, 3), label="levels")):
        around = tilings[-1][0] if tilings else nest.sizes
        tile = {axis: data.draw(st.integers(1, size), label=f"tile {axis}") for axis, size in around.items()}
        tilings.append((tile, data.draw(st.permutations(list(nest.sizes)), label="order")))
    moved = rl.tiling.traffic_by_level(nest, {str(at): tiling for at, tiling in enumerate(tilings)})
    for at, (tile, order) in enumerate(tilings):
        for operand in (each for each in nest.operands if each.role != "local"):
            walked = list(within(nest, tilings[: at + 1]))
            read, written, _ = simulate(nest, operand, tile, order, len(order), walked)
            assert float(moved[str(at)].read[operand.name]) == pytest.approx(read)
            assert float(moved[str(at)].write[operand.name]) == pytest.approx(written)


def started(m: list[range], n: list[range], group: int) -> Iterator[tuple[range, range]]:
    """Walk blocks as Triton's tutorial does: ``group`` rows of them, column by column."""
    for start in range(0, len(m), group):
        for column in n:
            for row in m[start : start + group]:
                yield row, column


@settings(max_examples=examples(60))
@given(st.data(), SMALL, SMALL, SMALL, st.integers(1, 4), st.integers(1, 5))
def test_a_wave_reads_what_its_blocks_share_once(data: Any, m: int, n: int, k: int, group: int, cores: int) -> None:
    rows, columns = (data.draw(st.integers(1, max(1, size - 1)), label="tile") for size in (m, n))
    nest = rl.tiling.matmul(m, n, k, batch=2, widths=(2, 1, 2))
    pairs = list(started(tiles_of(m, rows), tiles_of(n, columns), group))
    blocks = [
        {"batch": range(at, at + 1), "m": row, "n": column, "k": range(k)} for at in range(2) for row, column in pairs
    ]
    moved = rl.tiling.concurrent(nest, {"batch": 1, "m": rows, "n": columns}, cores, group=group)
    for operand in nest.operands[:2]:
        waves = (blocks[start : start + cores] for start in range(0, len(blocks), cores))
        touched = (frozenset().union(*(elements(operand, ranges) for ranges in wave)) for wave in waves)
        assert moved.read[operand.name] == sum(len(each) for each in touched) * operand.width
    assert moved.write["c"] == 2 * 2 * m * n


def test_neighbouring_blocks_of_a_convolution_share_filters() -> None:
    nest = rl.tiling.conv(2, 3, (8, 8), 6, (3, 3), padding=1)
    moved = rl.tiling.concurrent(nest, {"n": 1, "p": 4, "u": 3}, 4, order=("n", "p", "u"))
    ranges = {axis: range(size) for axis, size in nest.sizes.items()}
    image, filters, _ = nest.operands
    rows = [elements(image, {**ranges, "n": range(1), "p": range(start, start + 4)}) for start in (0, 4)]
    assert moved.read == {"a": 2.0 * sum(map(len, rows)), "b": 2.0 * len(elements(filters, ranges)), "c": 0.0}


# --- the best tiles and the bounds ------------------------------------------------------------------------------------

SHAPES = st.tuples(*[st.integers(1, 300)] * 3)
CAPACITY = st.integers(3, 100_000)


def least(nest: Nest, capacity: float) -> float:
    return float(rl.tiling.best(nest, capacity).traffic.bytes)


@settings(max_examples=examples(100), deadline=None)
@given(st.data(), SHAPES, CAPACITY, st.integers(1, 2))
def test_bound_best_tile_and_any_tile_stand_in_this_order(data: Any, shape: Any, capacity: int, batch: int) -> None:
    nest = rl.tiling.matmul(*shape, batch=batch)
    bound, best = float(rl.tiling.lower_bound(nest, capacity)), rl.tiling.best(nest, capacity)
    moved = float(best.traffic.bytes)
    assert float(rl.tiling.compulsory(nest)) <= bound <= moved
    assert float(best.traffic.held) <= capacity
    assert float(rl.tiling.traffic(nest, best.tile, best.order).bytes) == moved
    assert least(nest, capacity * 1.3) <= moved, "more capacity costs traffic"
    tile = {axis: data.draw(st.integers(1, min(size, 60)), label=axis) for axis, size in nest.sizes.items()}
    order = data.draw(st.permutations(list(nest.sizes)), label="order")
    if rl.tiling.traffic(nest, tile).held <= capacity:
        assert moved <= float(rl.tiling.traffic(nest, tile, order).bytes)


@settings(max_examples=examples(40), deadline=None)
@given(convolutions(), st.integers(60, 3000))
def test_no_tile_of_a_convolution_goes_below_its_bound(layer: Any, capacity: int) -> None:
    sizes, options = layer
    nest = rl.tiling.conv(*sizes, **options)
    assert float(rl.tiling.lower_bound(nest, capacity)) <= least(nest, capacity)


@pytest.mark.parametrize("capacity", [100, 400, 2e3, 1e4])
@pytest.mark.parametrize("stride", [1, 2])
def test_the_bound_of_a_convolution_is_near_its_best_tile(stride: int, capacity: float) -> None:
    nest = rl.tiling.conv(2, 16, (28, 28), 32, (3, 3), padding=1, stride=stride)
    bound, moved = float(rl.tiling.lower_bound(nest, capacity)), least(nest, capacity)
    assert bound <= moved <= 4 * bound


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(1, 200), st.integers(1, 200), st.sampled_from([1, 4, 16]), st.booleans(), st.integers(300, 50_000))
def test_no_tile_of_attention_goes_below_its_bound(q: int, k: int, d: int, causal: bool, capacity: int) -> None:
    nest = rl.tiling.attention(q, k, d, heads=2, kv_heads=1, causal=causal, width=1, scores=1, partial=1)
    moved = least(nest, capacity)
    assert float(rl.tiling.compulsory(nest)) <= float(rl.tiling.lower_bound(nest, capacity)) <= moved
    if not causal:
        assert least(nest, capacity * 1.5) <= moved


def test_short_sums_go_below_a_bound_that_adds_the_results() -> None:
    """Why the bound is not ``2 m n k / sqrt(S) + m n``: an outer product whose column stays moves less."""
    moved = rl.tiling.matmul_traffic(100, 100, 1, (100, 1, 1), order="nmk")
    assert moved.held == 201, "a column of the result at a time"
    fewer = float(rl.tiling.matmul_traffic(100, 100, 1, (1, 1, 1), order="nmk", capacity=102).bytes)
    assert fewer == 10_200
    assert float(rl.tiling.matmul_lower_bound(100, 100, 1, 102)) <= fewer < 2 * 100 * 100 / 102**0.5 + 100 * 100


def test_the_search_is_quick() -> None:
    nest = rl.tiling.matmul(8192, 8192, 8192, widths=2)
    rl.tiling.best(nest, 1e6)
    assert min(timeit.repeat(lambda: rl.tiling.best(nest, 1e6), number=1, repeat=5)) < 5e-3 * SLOW


def test_levels_are_searched_from_the_outside_in() -> None:
    nest = rl.tiling.matmul(4096, 4096, 4096, widths=2)
    levels = rl.tiling.best_by_level(nest, {"HBM": 50e6, "L2": 200e3})
    assert all(levels["L2"].tile[axis] <= size for axis, size in levels["HBM"].tile.items())
    assert levels["HBM"].traffic.bytes <= 1.05 * least(nest, 50e6)
    assert least(nest, 200e3) <= levels["L2"].traffic.bytes <= 1.15 * least(nest, 200e3)


# --- nonsense ---------------------------------------------------------------------------------------------------------

SQUARE = rl.tiling.matmul(8, 8, 8)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: rl.tiling.traffic(SQUARE, {"m": 0}), "tile of matmul along m: 0; allowed: finite numbers from 1 on"),
    (lambda: rl.tiling.traffic(SQUARE, {"m": 2.5}), "tile of matmul along m: 2.5; allowed: whole numbers from 1 on"),
    (lambda: rl.tiling.traffic(SQUARE, {"m": float("nan")}), "along m: nan; allowed: finite"),
    (lambda: rl.tiling.traffic(SQUARE, {"m": -4}), "along m: -4; allowed"),
    (lambda: rl.tiling.traffic(SQUARE, {"m": "eight"}), "along m: 'eight'; allowed"),
    (lambda: rl.tiling.traffic(SQUARE, {"rows": 4}), "tile of matmul: no axis 'rows'; axes: batch, m, n, k"),
    (lambda: rl.tiling.traffic(SQUARE, 4), "tile of matmul: 4; allowed: a size for each of batch, m, n, k"),
    (lambda: rl.tiling.traffic(SQUARE, {}, "mnx"), "order of matmul: no axis 'x'; axes"),
    (lambda: rl.tiling.traffic(SQUARE, {}, "mm"), "names an axis twice"),
    (lambda: rl.tiling.traffic(SQUARE, {"m": 4}, capacity=10), "takes 128 bytes; capacity: 10 bytes; allowed: smaller"),
    (lambda: rl.tiling.traffic(SQUARE, {"m": 4}, capacity=-1), "capacity: -1; allowed: finite numbers above 0 (bytes)"),
    (lambda: rl.tiling.best(SQUARE, 2), "matmul: capacity: 2 bytes; allowed: from 3 bytes on"),
    (lambda: rl.tiling.best(SQUARE, "1 MB"), "capacity: '1 MB'; allowed: finite numbers above 0 (bytes)"),
    (lambda: rl.tiling.best(SQUARE, 100, -1), "slack=-1; allowed"),
    (lambda: rl.tiling.lower_bound(SQUARE, float("inf")), "capacity: inf; allowed: finite"),
    (lambda: rl.tiling.matmul(0, 8, 8), "matmul: size along m: 0; allowed"),
    (lambda: rl.tiling.matmul(8, 8, 8, widths=(1, 2)), "widths: (1, 2); allowed: one number, or 3"),
    (lambda: rl.tiling.matmul(8, 8, 8, widths=0), "widths: 0; allowed: finite numbers above 0 (bytes)"),
    (lambda: rl.tiling.matmul_traffic(8, 8, 8, (4, 4)), "matmul: tile (4, 4); allowed: three sizes"),
    (lambda: rl.tiling.conv(1, 3, (8, 8), 4, (3,)), "allowed: one to three axes, of both as many"),
    (lambda: rl.tiling.conv(1, 3, (8, 8), 4, (3, 3), groups=2), "3 channels in 2 groups; allowed"),
    (lambda: rl.tiling.conv(1, 3, (2, 2), 4, (3, 3)), "has a kernel larger than its padded input"),
    (lambda: rl.tiling.conv(1, 3, (8, 8), 4, (3, 3), stride=0), "conv2d: stride: 0; allowed"),
    (lambda: rl.tiling.conv(1, 3, (8, 8), 4, (3, 3), padding=-1), "conv2d: padding -1; allowed: whole numbers from 0"),
    (lambda: rl.tiling.conv(1, 3, (8, 8), 4, (3, 3), padding="same"), "padding 'same'; allowed: whole numbers"),
    (lambda: rl.tiling.of_operator("conv2d", (1, 1, 4, 4), (1, 1, 3, 3), stride="z"), "conv2d: stride: 'z'; allowed"),
    (lambda: rl.tiling.matmul(8, 8, 8, partial=-1), "matmul: partial: -1; allowed: finite numbers above 0"),
    (lambda: rl.tiling.matmul_traffic([8, 9], [8, 9, 10], 8, (1, 1, 1)), "arrays of shapes (), (2,), (3,); allowed"),
    (lambda: rl.tiling.attention(8, 8, 4, causal="no"), "causal='no'; allowed: True or False"),
    (lambda: rl.tiling.attention(8, 8, 4, causal=True, window=-1), "attention: window: -1; allowed"),
    (lambda: rl.tiling.attention(8, 8, 4, kv_heads=0), "attention: kv_heads: 0; allowed"),
    (lambda: rl.tiling.conv(1, 3, (8, 8), 4, (3, 3), pad=1), "unknown option 'pad'; allowed: stride, padding"),
    (lambda: rl.tiling.attention(8, 8, 4, width="2"), "attention: width: '2'; allowed: finite numbers above 0 (bytes)"),
    (lambda: rl.tiling.best(SQUARE, [100, 200]), "arrays of sizes or capacities; allowed: one of each"),
    (lambda: rl.tiling.traffic(SQUARE, {}, 5), "order of matmul: 5; allowed: a sequence of batch, m, n, k"),
    (lambda: rl.tiling.concurrent(rl.tiling.matmul(2**13, 2**13, 8), {"m": 1, "n": 1}, 2), "6.71e+07 blocks; allowed"),
    (lambda: rl.tiling.attention(8, 8, 4, heads=3, kv_heads=2), "3 heads and kv_heads=2; allowed"),
    (lambda: rl.tiling.attention(8, 8, 4, window=2), "window=2 without a mask; allowed: with causal=True"),
    (lambda: rl.tiling.of_operator("softmax", (8, 8)), "softmax: no contraction with a signature; allowed: att"),
    (lambda: rl.tiling.traffic(rl.tiling.rowwise(8, 8), {}, ("column", "row")), "since steps follow from each other"),
    (lambda: rl.tiling.concurrent(SQUARE, {"m": 4}, 0), "cores: 0; allowed"),
    (lambda: rl.tiling.concurrent(rl.tiling.attention(8, 8, 4, causal=True), {}, 2), "allowed: nests without a mask"),
    (lambda: rl.tiling.traffic_by_level(rl.tiling.rowwise(8, 8), {}), "allowed: nests whose loops may change places"),
])  # fmt: skip
def test_nonsense_is_refused_with_what_is_allowed(call: Any, message: str) -> None:
    with pytest.raises(rl.RooflineError, match=re.escape(message)):
        call()


def test_a_tile_larger_than_its_axis_is_the_whole_axis() -> None:
    assert rl.tiling.traffic(SQUARE, {"m": 99}).bytes == rl.tiling.compulsory(SQUARE)
