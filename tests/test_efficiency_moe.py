"""Blocks of experts: routing by hand, and laws of the time formula."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.analysis.bulk import group_rows
from roofline.cost import formula, kernel_time, launch
from roofline.cost.experts import routed
from roofline.ops.contraction import routing_exponent
from roofline.programs.workload import checked_entry, operator_graph

SHAPE: dict[str, Any] = {"hidden": 4096, "intermediate": 1536, "top_k": 8, "experts": 128, "tp": 1, "ep": 1}
TOKENS = np.unique(np.round(2 ** np.arange(0, 17, 0.25)).astype(int))
ROUTINGS = ("balanced", "uniform", "power_law_1.01", "power_law_1.2")


def times(tokens: Any, dtype: str = "bf16", chip: str = "h100-sxm", **changes: Any) -> Any:
    rows = [("moe", dtype, {**SHAPE, **changes, "tokens": int(t)}) for t in np.atleast_1d(tokens)]
    groups, errors = group_rows(rows)
    assert not errors
    found = np.zeros(len(rows))
    for group in groups:
        for row in group.counts():
            time = kernel_time(row, rl.chip(chip), regime="warm")
            assert np.all(time.expected >= time.floor)
            found[group.index] += time.expected
    return found


def row(dtype: str = "bf16", **changes: Any) -> Any:
    return rl.count(operator_graph("moe", dtype, {**SHAPE, "tokens": 64, **changes})).rows[0]


def test_counts_by_hand() -> None:
    one = row(distribution="balanced")
    assert one.flops == 2 * 64 * 8 * 4096 * 3 * 1536
    assert one.bytes == 2 * 128 * 4096 * 3 * 1536 + 2 * 2 * 64 * 4096
    assert row(distribution="balanced", gated=False).flops == one.flops * 2 / 3
    assert row(distribution="balanced", tp=8).flops == one.flops / 8
    assert row(distribution="balanced", ep=16).flops == one.flops / 16
    assert row("fp8", distribution="balanced").read == 128 * 4096 * 3 * 1536 + 2 * 64 * 4096


def test_formats_multiply_in_their_own_or_in_16_bits() -> None:
    found = {name: next(iter(row(name).flops_by)) for name in ("bf16", "fp8", "fp8_block", "nvfp4", "int4", "fp16")}
    assert found == {"bf16": "bf16", "fp8": "fp8", "fp8_block": "fp8", "nvfp4": "fp4", "int4": "bf16", "fp16": "fp16"}


def test_balanced_routing_by_hand() -> None:
    load = routed("balanced", 16.0, 8, 128, 16)
    assert (load.pairs, load.touched) == (8, 8)
    load = routed("balanced", 1.0, 8, 128, 64)
    assert (load.pairs, load.touched) == (1, 1)


def test_uniform_routing_touches_the_distinct_experts() -> None:
    load = routed("uniform", 16.0, 8, 128, 1)
    assert load.touched == pytest.approx(128 * (1 - (1 - 8 / 128) ** 16))


def test_the_busiest_rank_of_a_skewed_routing_gets_more_than_its_share() -> None:
    shares = [
        float(routed("power_law_1.2", 4096.0, 8, 256, ranks).pairs) / (4096 * 8 / ranks) for ranks in (1, 4, 16, 64)
    ]
    assert shares[0] == pytest.approx(1)
    assert np.all(np.diff(shares) > 0)
    assert routed("power_law_1.2", 4096.0, 8, 256, 256).pairs <= 4096


@pytest.mark.parametrize("distribution", ROUTINGS)
@pytest.mark.parametrize("ranks", [1, 8, 64])
def test_loads_stay_within_what_there_is(distribution: str, ranks: int) -> None:
    tokens = TOKENS.astype(float)
    load = routed(distribution, tokens, 8.0, 128.0, float(ranks), 0.3)
    assert np.all(load.touched <= np.minimum(128 / ranks, load.pairs) * (1 + 1e-12))
    assert np.all(load.pairs <= tokens * min(8, 128 / ranks) * (1 + 1e-12))
    assert np.all(load.touched > 0)


@pytest.mark.parametrize("distribution", ROUTINGS)
@pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp8_block", "int4"])
@pytest.mark.parametrize("ep", [1, 8, 64])
def test_time_rises_with_tokens(distribution: str, dtype: str, ep: int) -> None:
    assert np.all(np.diff(times(TOKENS, dtype, distribution=distribution, ep=ep)) >= 0)


@pytest.mark.parametrize("key", ["hidden", "intermediate"])
def test_time_rises_with_widths(key: str) -> None:
    changes: list[dict[str, Any]] = [{key: size} for size in (512, 1024, 1536, 2048, 4096, 8192)]
    found = [times(64, **change)[0] for change in changes]
    assert np.all(np.diff(found) > 0)


def test_columns_agree_with_single_rows() -> None:
    for distribution in ROUTINGS:
        together = times(TOKENS[:12], distribution=distribution)
        alone = [times(int(t), distribution=distribution)[0] for t in TOKENS[:12]]
        np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_splitting_experts_or_widths_saves_time() -> None:
    assert times(512)[0] > times(512, ep=8)[0]
    assert times(512)[0] > times(512, tp=8)[0]


def test_scalars_and_group() -> None:
    work = launch(row(), rl.chip("h100-sxm"), False, "warm")
    assert formula(work)[0] == "moe"


def test_what_cannot_be() -> None:
    with pytest.raises(rl.errors.MissingFigure, match="fp8"):
        times(64, "fp8", "a100-80gb-sxm")
    with pytest.raises(rl.errors.ShapeError, match="allowed: balanced, uniform, power_law_X"):
        operator_graph("moe", "bf16", {**SHAPE, "tokens": 4, "distribution": "zipf"})
    with pytest.raises(rl.errors.ShapeError, match="chooses 8 of 4 experts"):
        checked_entry("moe", {**SHAPE, "tokens": 4, "experts": 4})
    assert [routing_exponent(name) for name in ROUTINGS] == [0, 0, 1.01, 1.2]


@pytest.mark.parametrize(
    ("shape", "pairs", "touched"),
    [((16, 8, 256, 1), 128, 97), ((32, 6, 384, 1), 192, 145), ((16, 8, 256, 4), 37.7, 27.5),
     ((8, 6, 128, 16), 6.2, 4.6),
     ((32, 8, 256, 32), 17.6, 6.3)],
)  # fmt: skip
def test_few_skewed_picks_fall_as_they_are_drawn(shape: tuple[int, ...], pairs: float, touched: float) -> None:
    """Means of 30 draws of ``_generate_power_law_distribution`` (aiconfigurator, collector/helper.py)."""
    load = routed("power_law_1.01", *map(float, shape))
    assert load.pairs == pytest.approx(pairs, rel=0.25)
    assert load.touched == pytest.approx(touched, rel=0.25)


MIXTRAL = {"hidden": 4096, "intermediate": 14336, "top_k": 2, "experts": 8}
SMALL = {"hidden": 2048, "intermediate": 512, "top_k": 8, "experts": 256, "tp": 16, "distribution": "balanced"}


@pytest.mark.parametrize(
    ("chip", "dtype", "tokens", "changes", "measured"),
    [("l40s", "fp8", 16, {**MIXTRAL, "tp": 32, "distribution": "power_law_1.01"}, 29e-6),
     ("h200-sxm", "fp8", 256, SMALL, 475e-6)],
    ids=["weights that a cache of 96 MB keeps", "the turn from expert to expert"],
)  # fmt: skip
def test_kernels_of_serving_stacks(
    chip: str, dtype: str, tokens: int, changes: dict[str, Any], measured: float
) -> None:
    """Rows of measurements/*/serving_stack.csv that a form without these effects missed by a factor of two or more."""
    assert times(tokens, dtype, chip, **changes)[0] == pytest.approx(measured, rel=0.4)
