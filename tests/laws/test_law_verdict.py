"""Laws of the verdict: parts add up, more time is never better, the impossible has no causes."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.diagnosis.causes import LABELS
from roofline.diagnosis.reference import lower_bound

ORDER = ("impossible", "as_expected", "slow", "very_slow")
WORK: dict[str, tuple[list[dict[str, Any]], str]] = {
    "gemm": ([{"op": "gemm", "m": 1024, "n": 4096, "k": 4096}], "bf16"),
    "odd": ([{"op": "gemm", "m": 1021, "n": 1021, "k": 1021, "count": 12}], "fp16"),
    "fp32": ([{"op": "gemm", "m": 2048, "n": 2048, "k": 2048}], "fp32"),
    "fp64": ([{"op": "bmm", "b": 4, "m": 512, "n": 512, "k": 512}], "fp64"),
    "chain": ([{"op": "elementwise", "n": 2**20, "inputs": 2, "count": 30}], "fp32"),
    "attention": ([{"op": "attention", "batch": 2, "heads": 8, "q_len": 512, "kv_len": 512, "head_dim": 64}], "bf16"),
    "decode": ([{"op": "attention", "batch": 8, "heads": 8, "q_len": 1, "kv_len": 2048, "head_dim": 64}], "fp16"),
    "lookup": ([{"op": "embedding", "vocab": 1000, "dim": 8, "tokens": 5000}, {"op": "gather", "table": 99, "n": 7}],
               "fp32"),
    "moves": ([{"op": "copy", "n": 10**6}, {"op": "cat", "rows": 8, "cols_a": 100, "cols_b": 3}], "bf16"),
    "conv": ([{"op": "conv2d", "n": 8, "c_in": 64, "h": 56, "w": 56, "c_out": 64, "r": 3, "s": 3, "padding": 1}],
             "fp32"),
    "reduce": ([{"op": "all_reduce", "devices": 2, "elements": 10**6}], "bf16"),
    "upload": ([{"op": "memcpy_h2d", "bytes": 10**7}, {"op": "softmax", "rows": 64, "cols": 999}], "fp32"),
    "model": ([{"model": "resnet50", "batch": 2}], "bf16"),
    "norms": ([{"op": "rmsnorm", "rows": 4096, "cols": 1000}, {"op": "gelu", "n": 10**6}], "bf16"),
}  # fmt: skip
CHIPS = ("h100-sxm", "a100-80gb-sxm", "t4", "v100-sxm-16gb", "mi300x", "l40s", "tpu-v5e", "wormhole-n150", "m2-max",
         "epyc-9654")  # fmt: skip
MODES = ("eager", "graph", "compiled")


@cache
def program(name: str) -> rl.Graph:
    work, dtype = WORK[name]
    return rl.workload(work, dtype, name)


@cache
def scale(name: str, chip: str, mode: str) -> float | None:
    """The expected time; ``None`` where the chip cannot run it."""
    try:
        return float(rl.estimate(program(name), chip, mode=mode).time)  # type: ignore[arg-type]
    except rl.RooflineError:
        return None


POINTS = st.tuples(st.sampled_from(sorted(WORK)), st.sampled_from(CHIPS), st.sampled_from(MODES))
FACTORS = st.floats(-4, 6).map(lambda power: 10.0**power)


@settings(max_examples=examples(150), deadline=None, derandomize=True, database=None)
@given(POINTS, FACTORS)
def test_parts_add_up_and_labels_are_known(point: tuple[str, str, str], factor: float) -> None:
    name, chip, mode = point
    if (time := scale(*point)) is None:
        return
    found = rl.check(program(name), chip, time * factor, mode=mode)  # type: ignore[arg-type]
    assert found.verdict in ORDER
    if found.verdict == "impossible":
        assert found.causes == found.candidates == found.advice == found.waterfall == ()
        return
    assert sum(seconds for _, seconds in found.waterfall) == pytest.approx(found.measured)
    assert all(seconds >= 0 for _, seconds in found.waterfall)
    assert all(cause.label in LABELS and cause.evidence and cause.fix for cause in found.causes)
    scores = [candidate.score for candidate in found.candidates]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= one.together_s <= found.measured * 1.000001 for one in found.advice)
    assert all(one.saves_s >= 0 for one in found.advice)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", WORK)
def test_no_run_is_faster_than_the_limit_and_the_expected_time_is_possible(name: str, chip: str) -> None:
    if (time := scale(name, chip, "graph")) is None:
        pytest.skip("the chip has no figure for it")
    assert lower_bound(rl.estimate(program(name), chip, mode="graph")) <= time
    expected = rl.check(program(name), chip, time, mode="graph").estimate  # chains fused, rows aligned
    assert rl.check(program(name), chip, expected.time, mode="graph").verdict == "as_expected"
    assert rl.check(program(name), chip, lower_bound(expected) / 20, mode="graph").verdict == "impossible"
