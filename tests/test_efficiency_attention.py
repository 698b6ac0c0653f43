"""Fused attention: laws of its time formula."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.cost import GROUPS, formula, kernel_time, launch, values
from roofline.counting.counts import kernels
from roofline.ops.builder import Builder
from roofline.programs.workload import operator_graph

CHIP = rl.chip("h100-sxm")
#: Cores, clock and cache unlike the H100's; without a cache; without cores; with a few large cores.
CHIPS = ("h100-sxm", "a100-80gb-sxm", "b300-sxm", "gb300", "tpu-v5p")
#: Steps of the tiles bound the dip in time when a size grows.
DIP = 0.97

PREFILL = {"batch": 2, "heads": 32, "kv_heads": 8, "q_len": 2000, "kv_len": 2000, "head_dim": 128, "causal": True}
SHORT = {**PREFILL, "batch": 64, "q_len": 20, "kv_len": 20}
DECODE = {**PREFILL, "batch": 4, "q_len": 1, "kv_len": 5000, "causal": False}
WINDOW = {**PREFILL, "window": 512}
CASES: list[dict[str, Any]] = [
    PREFILL, SHORT, DECODE, WINDOW, {**PREFILL, "head_dim": 64, "causal": False}, {**PREFILL, "head_dim": 256},
    {**DECODE, "batch": 1, "kv_heads": 1}, {**DECODE, "kv_heads": 32}, {**DECODE, "batch": 512, "window": 128},
    {**DECODE, "kv_dtype": "fp8"}, {**WINDOW, "kv_dtype": "fp8"}, {**SHORT, "kv_dtype": "fp8", "head_dim": 192},
    {**PREFILL, "q_len": 300, "kv_len": 9000},
]  # fmt: skip


def predict(
    shape: Mapping[str, Any], chip: rl.Chip = CHIP, regime: str = "cold", changed: Mapping[str, float] | None = None
) -> float:
    """Time of fused attention with some parameters changed [s]."""
    (kernel,) = kernels(operator_graph("attention_sdpa", "bf16", shape))
    work = launch(kernel.at({}), chip, False, regime)
    group, seconds = formula(work)
    assert group == "attention"
    return float(seconds(work, {**values(chip, group), **(changed or {})}))


@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("axis", ["batch", "groups", "queries", "keys", "both", "head_dim"])
def test_grows_along_every_axis(axis: str, name: str) -> None:
    chip = rl.chip(name)
    for shape in CASES:
        times = np.array([predict({**shape, **change}, chip) for change in changes(shape)[axis]])
        assert (times[1:] >= DIP * times[:-1]).all(), shape


def changes(shape: dict[str, Any]) -> dict[str, list[dict[str, int]]]:
    powers = [int(1.3**power) + 1 for power in range(0, 36)]
    return {
        "batch": [{"batch": size} for size in powers],
        "groups": [{"heads": 4 * size, "kv_heads": size} for size in range(1, 70)],
        "queries": [{"q_len": size} for size in powers if size <= shape["kv_len"]],
        "keys": [{"kv_len": size} for size in powers if size >= shape["q_len"]],
        "both": [{"q_len": size, "kv_len": size} for size in range(2, 3000, 37)],
        "head_dim": [{"head_dim": size} for size in (64, 128, 256, 512)],
    }


def test_query_heads_on_shared_keys_never_help() -> None:
    for shape in (PREFILL, SHORT, DECODE):
        times = np.array([predict({**shape, "heads": 8 * size}) for size in range(1, 17)])
        assert (times[1:] >= DIP * times[:-1]).all()


@pytest.mark.parametrize("name", CHIPS)
def test_never_under_floor_and_warm_never_slower(name: str) -> None:
    chip = rl.chip(name)
    for shape in CASES:
        (kernel,) = kernels(operator_graph("attention_sdpa", "bf16", shape))
        found = kernel_time(kernel.at({}), chip, regime="cold")
        assert np.isfinite(found.expected), shape
        assert found.expected >= found.floor, shape
        warm, program, cold = (predict(shape, chip, regime) for regime in ("warm", "program", "cold"))
        assert warm <= program <= cold, shape


@pytest.mark.parametrize("sequence", [1024, 2048, 4096, 8192])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_flash_is_never_slower_than_naive(sequence: int, head_dim: int, causal: bool) -> None:
    for batch, heads in ((1, 8), (1, 32), (8, 32)):
        shape = {"batch": batch, "heads": heads, "q_len": sequence, "kv_len": sequence, "head_dim": head_dim}
        naive = 0.0
        for kernel in kernels(operator_graph("attention_naive", "bf16", {**shape, "causal": causal})):
            naive += kernel.count * float(kernel_time(kernel.at({}), CHIP, regime="cold").expected)
        assert predict({**shape, "causal": causal}) <= naive


def test_causal_halves_long_sequences_and_a_window_makes_them_linear() -> None:
    long = {**PREFILL, "q_len": 16_384, "kv_len": 16_384}
    causal, full, window = predict(long), predict({**long, "causal": False}), predict({**long, "window": 1024})
    assert 0.45 < causal / full < 0.6
    assert window < 0.3 * causal


def test_splitting_keys_feeds_idle_cores() -> None:
    lonely = {**DECODE, "batch": 1, "kv_heads": 1, "kv_len": 200_000}
    assert predict(lonely) < 0.5 * predict(lonely, changed={"parts": 1.0})


def test_eight_bit_keys_move_half_the_bytes() -> None:
    wide = {**DECODE, "batch": 64, "kv_heads": 32, "kv_len": 20_000}
    assert 0.45 < predict({**wide, "kv_dtype": "fp8"}) / predict(wide) < 0.7


def test_arrays_are_scalars() -> None:
    for fixed in ({"causal": True}, {"causal": False}, {"causal": True, "window": 256}):
        shapes = [(1, 1, 1, 900), (3, 2, 70, 70), (4, 8, 1, 40_000), (2, 4, 1500, 1500), (64, 1, 200, 4000)]
        names = ("batch", "kv_heads", "q_len", "kv_len")
        alone = [
            predict({**dict(zip(names, sizes, strict=True)), "heads": 4 * sizes[1], "head_dim": 128, **fixed})
            for sizes in shapes
        ]
        columns = {name: np.array(column, float) for name, column in zip(names, zip(*shapes, strict=True), strict=True)}
        columns["heads"] = 4 * columns["kv_heads"]
        graph = operator_graph(
            "attention_sdpa", "bf16", {**{k: rl.ops.symbol(k) for k in columns}, "head_dim": 128, **fixed}
        )
        (kernel,) = kernels(graph)
        work = launch(kernel.at(columns), CHIP, False, "cold")
        np.testing.assert_allclose(formula(work)[1](work, values(CHIP, "attention")), alone, rtol=1e-9)


@pytest.mark.parametrize("key", GROUPS["attention"])
def test_every_parameter_counts(key: str) -> None:
    parameter, used = GROUPS["attention"][key], values(CHIP, "attention")
    other = parameter.low if used[key] > (parameter.low * parameter.high) ** 0.5 else parameter.high
    # Some count only where the call caches new keys, others only where it does not.
    assert any(
        predict(shape, CHIP, regime, {**base, key: other}) != predict(shape, CHIP, regime, base)
        for shape in CASES
        for regime in ("cold", "warm")
        for base in (used, {**used, "append": 2.0})
    )


def test_every_parameter_says_what_it_is() -> None:
    assert len(GROUPS["attention"]) <= 18
    for key, parameter in GROUPS["attention"].items():
        assert parameter.low <= parameter.prior <= parameter.high, key
        assert parameter.unit in ("s", "share", "ratio", "queries", "keys", "parts"), key


def masked(image: tuple[int, ...], mask: tuple[int, ...] | None) -> float:
    """Microseconds of fused attention on an H200 with what is added to its scores."""
    b = Builder("masked", "bf16")
    q, k, v = (b.op("relu", b.input(name, image)) for name in "qkv")
    added = b.op("relu", b.input("mask", mask)) if mask else ""
    with b.kernel("sdpa"):
        scores = b.op("attention_scores", q, k, causal=False, window=0)
        scores = b.op("add", scores, added) if mask else scores
        weights = b.op("attention_softmax", scores, causal=False, window=0)
        b.op("attention_values", weights, v, causal=False, window=0)
    *_, (_, time) = rl.estimate(b.graph(), "h200-sxm", mode="graph").timed
    return float(time.expected) * 1e6


#: Queries, mask and microseconds of kernels in measurements/h200-sxm/zoo/ops.csv.
MASKED = [
    ((2048, 3, 49, 32), (1, 3, 49, 49), 319.8), ((128, 12, 49, 32), (128, 12, 49, 49), 83.1),
    ((32, 12, 256, 64), (32, 1, 256, 256), 41.4), ((32, 12, 256, 64), None, 22.9),
]  # fmt: skip


@pytest.mark.parametrize(("image", "mask", "measured"), MASKED)
def test_masks_take_time_most_where_their_rows_are_odd(
    image: tuple[int, ...], mask: tuple[int, ...] | None, measured: float
) -> None:
    assert masked(image, mask) == pytest.approx(measured, rel=0.3)


#: Calls in fp32 of measurements/h200-sxm/networks.csv, which the memory efficient kernel runs: batch, heads, positions,
#: width, whether causal, microseconds.
FP32 = [(8, 12, 197, 64, False, 53.8), (4, 8, 2048, 128, False, 1505.8), (4, 8, 2048, 128, True, 893.4),
        (1, 12, 512, 64, False, 55.6), (1, 12, 512, 64, True, 55.3)]  # fmt: skip


@pytest.mark.parametrize(("batch", "heads", "positions", "width", "causal", "measured"), FP32)
def test_fp32_is_three_products_of_tf32(
    batch: int, heads: int, positions: int, width: int, causal: bool, measured: float
) -> None:
    shape = {"batch": batch, "heads": heads, "kv_heads": heads, "q_len": positions, "kv_len": positions,
             "head_dim": width, "causal": causal}  # fmt: skip
    (kernel,) = kernels(operator_graph("attention_sdpa", "fp32", shape))
    time = kernel_time(kernel.at({}), rl.chip("h200-sxm"), regime="cold")
    assert float(time.expected) * 1e6 == pytest.approx(measured, rel=0.08)
