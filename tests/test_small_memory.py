"""Memory on the chip that is too small: it costs traffic, in the floor by the bound, in the expected time by tiles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.cost.machine import machine
from roofline.tiling.search import least_contraction

MEGABYTES = (1, 2, 4, 8, 16, 64, 512)
IDEAL = {"compute": 1, "memory": 1, "launch": 0, "low": 1, "high": 1}
LARGE = rl.workload([{"op": "gemm", "m": 8192, "n": 8192, "k": 8192}], dtype="bf16")


def small(sram: Any, **figures: Any) -> rl.Chip:
    """100 TFLOP/s, 100 GB/s, and so much memory on the chip."""
    return rl.Chip(**{"name": "small", "matrix": {"bf16": "100 TFLOP/s"}, "memory_bandwidth": "100 GB/s",
                      "memory_capacity": "64 GB", "sram": sram, "core_name": "tile", **figures})  # fmt: skip


def estimated(graph: rl.Graph, chip: rl.Chip, **sizes: Any) -> rl.Estimate:
    return rl.estimate(graph, chip, mode="graph", **sizes)


def moved(graph: rl.Graph, chip: rl.Chip, **sizes: Any) -> float:
    """Bytes that the floor allows, of a chip that computes at once."""
    quick = chip.replace(bf16="1e20 FLOP/s")
    return float(estimated(graph, quick, **sizes).floor) * chip.bandwidth


def test_a_megabyte_makes_a_large_matmul_wait_for_memory() -> None:
    est = estimated(LARGE, small("1 MB"))
    assert est.floor == pytest.approx(31.1e-3, rel=1e-3), "2 m n k / sqrt(S) elements of two bytes at 100 GB/s"
    assert est.floor == rl.tiling.matmul_lower_bound(8192, 8192, 8192, 1e6, widths=2) / 100e9
    assert est.bound == "memory"


def test_time_falls_with_capacity_until_arithmetic_or_operands_set_it() -> None:
    estimates = [estimated(LARGE, small(f"{size} MB")) for size in MEGABYTES]
    for figures in ([est.floor for est in estimates], [est.time for est in estimates]):
        assert figures == sorted(figures, reverse=True)
        assert figures[0] > 1.5 * figures[2] > 1.5 * figures[-1]
        assert figures[-1] == figures[-2], "enough is enough"
    assert estimates[-1].floor == 2 * 8192**3 / 100e12
    assert all(est.floor <= est.low <= est.time for est in estimates)
    slow = estimated(LARGE, small("512 MB", memory_bandwidth="10 GB/s"))
    assert slow.floor == 3 * 8192**2 * 2 / 10e9, "each operand once"


def test_flat_spellings_and_a_list_of_memories_say_the_same() -> None:
    source = {"source": "stated"}
    listed = [
        {"name": "memory", "bandwidth": "100 GB/s", "capacity": "64 GB", **source},
        {"name": "SRAM", "capacity": "1 MB", **source},
    ]
    chips = [small("1 MB"), small("9 MB").replace(sram="1 MB"),
             rl.Chip(name="l", matrix={"bf16": "100 TFLOP/s"}, memory=listed, core_name="tile"),
             rl.Chip(name="l2", matrix={"bf16": "100 TFLOP/s"}, memory_bandwidth="100 GB/s", l2="1 MB",
                     core_name="tile")]  # fmt: skip
    assert len({estimated(LARGE, chip).floor for chip in chips}) == 1


def test_all_levels_count_together_and_registers_of_gpus_with_them() -> None:
    assert machine(rl.chip("tpu-v4")).on_chip == (128 + 32) * 2**20
    h100 = rl.chip("h100-sxm")
    assert machine(h100).on_chip == 50 * 2**20 + 33 * 2**20 + 132 * 512 * 2**10


@pytest.mark.parametrize("name", ["h20", "gtx-1650", "epyc-9654", "groq-lpu-v1", "ascend-910b2", "m1-max"])
def test_what_is_not_listed_whole_bounds_nothing(name: str) -> None:
    chip = rl.chip(name)
    whole = name == "h20"
    assert bool(machine(chip).on_chip) is whole


def test_no_shipped_chip_has_too_little_for_its_arithmetic() -> None:
    """Intensity at the bound, ``sqrt(S / (x y z))``, against the ridge of every format."""
    for chip in map(rl.chip, rl.chips()):
        room = machine(chip).on_chip
        for peak in chip.matrix.values() if room else ():
            assert 1.6 * peak.flops < chip.bandwidth * (room / 2**3) ** 0.5 * 2, chip.name


def test_a_matmul_of_a_matrix_with_itself_is_not_bounded() -> None:
    b = rl.ops.Builder("gram", "bf16")
    x = b.input("x", (8192, 8192))
    gram = b.graph([b.op("linear", x, x)])
    assert moved(gram, small("1 MB")) == pytest.approx(2 * 8192**2 * 2)


def one_kernel(*after: str) -> rl.Graph:
    """A large matmul and what follows it as one kernel."""
    b = rl.ops.Builder("chain", "bf16")
    y = b.op("linear", b.input("x", (8192, 8192)), b.weight("w", (8192, 8192)))
    for op in after:
        y = b.op(op, y)
    graph = b.graph([y])
    return replace(graph, nodes=tuple(replace(node, kernel="one") for node in graph.nodes))


def test_an_epilogue_changes_nothing_and_a_use_inside_saves_the_result() -> None:
    alone, used = moved(LARGE, small("1 MB")), moved(one_kernel("softmax", "sum"), small("1 MB"))
    assert moved(one_kernel("relu"), small("1 MB")) == pytest.approx(alone)
    assert alone - 2 * 8192**2 <= used < alone - 1.9 * 8192**2


def test_narrow_weights_move_less() -> None:
    narrow = rl.passes.cast(LARGE, weights="int8")
    least = moved(narrow, small("1 MB"))
    assert least < moved(LARGE, small("1 MB"))
    assert least == pytest.approx(
        float(rl.tiling.matmul_lower_bound(8192, 8192, 8192, 1e6, widths=(2, 1, 2))), rel=1e-6
    )


def test_convolutions_and_attention_are_bounded_too() -> None:
    layer = {"op": "conv2d", "n": 16, "c_in": 512, "h": 28, "w": 28, "c_out": 512, "r": 3, "s": 3, "padding": 1}
    conv = rl.workload([layer], dtype="bf16")
    nest = rl.tiling.conv(16, 512, (28, 28), 512, (3, 3), padding=1, widths=2)
    assert moved(conv, small("100 kB")) == pytest.approx(float(rl.tiling.lower_bound(nest, 1e5)))
    assert rl.tiling.lower_bound(nest, 1e5) > 1.5 * rl.tiling.compulsory(nest)
    flash = rl.workload(
        [{"op": "attention", "batch": 1, "heads": 8, "q_len": 32768, "kv_len": 32768, "head_dim": 128}], dtype="bf16"
    )
    nest = rl.tiling.attention(32768, 32768, 128, heads=8)
    few = estimated(flash, small("200 kB")).time
    assert moved(flash, small("200 kB")) == pytest.approx(float(rl.tiling.lower_bound(nest, 2e5)))
    assert few > estimated(flash, small("4 MB")).time
    assert few * 100e9 >= 0.9 * float(rl.tiling.best(nest, 2e5).traffic.bytes)


def test_many_sizes_at_once_are_each_as_alone() -> None:
    b = rl.ops.Builder("rows", "bf16")
    rows = rl.ops.symbol("B")
    graph = b.graph([b.op("linear", b.input("x", (rows, 8192)), b.weight("w", (8192, 8192)))], items=rows)
    batches = [1, 100, 3000, 8192, 20000]
    together = estimated(graph, small("1 MB"), batch=batches)
    for at, batch in enumerate(batches):
        alone = estimated(graph, small("1 MB"), batch=batch)
        assert together.floor[at] == pytest.approx(alone.floor)
        assert together.time[at] == pytest.approx(alone.time, rel=0.01)


@settings(max_examples=examples(60), deadline=None)
@given(*[st.integers(1, 5000)] * 3, st.floats(1e3, 1e8), st.floats(1.0, 4.0))
def test_floor_and_time_stand_between_the_bound_and_the_best_tile(
    m: int, n: int, k: int, room: float, more: float
) -> None:
    graph = rl.workload([{"op": "gemm", "m": m, "n": n, "k": k}], dtype="bf16")
    nest = rl.tiling.matmul(m, n, k, widths=2)
    chip = small(room, efficiency=IDEAL)
    est, best = estimated(graph, chip), float(rl.tiling.best(nest, room).traffic.bytes)
    at_peak = 2 * m * n * k / 100e12
    assert est.floor == pytest.approx(max(float(rl.tiling.lower_bound(nest, room)) / 100e9, at_peak))
    assert est.floor <= max(best / 100e9, at_peak) * (1 + 1e-9)
    assert est.time * 1.05 >= best / 100e9
    assert estimated(graph, small(min(room * more, 1e8), efficiency=IDEAL)).floor <= est.floor
    assert float(np.ravel(least_contraction(nest, room))[0]) == pytest.approx(best, rel=0.08)


@pytest.mark.parametrize("core", ["tile", "core"])
def test_bytes_by_level_say_what_the_time_says(core: str) -> None:
    (row,) = estimated(LARGE, small("1 MB", core_name=core)).kernel_rows()
    main = row["levels"][0]
    best = float(rl.tiling.best(rl.tiling.matmul(8192, 8192, 8192, widths=2), 1e6).traffic.bytes)
    assert (main["level"], row["bound_level"], row["bound"]) == ("memory", "memory", "memory")
    assert main["bytes"] == pytest.approx(best, rel=0.01)


@pytest.mark.parametrize("mode", ["graph", "eager"])
def test_a_time_below_the_bound_is_impossible(mode: Any) -> None:
    verdict = rl.check(LARGE, small("1 MB"), 29e-3, mode=mode)
    assert verdict.verdict == "impossible"
    assert "29 ms is below 29.6 ms, the lower bound" in verdict.reason
    assert rl.check(LARGE, small("8 MB"), 29e-3, mode=mode).verdict != "impossible"


def test_fused_however_far_a_program_reads_its_sources_again() -> None:
    assert rl.check(LARGE, small("1 MB"), 27e-3, mode="compiled").verdict == "impossible"
