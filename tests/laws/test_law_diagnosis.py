"""Laws of diagnoses: parts add up, none is negative, more time is never better, impossible times have no causes."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from math import isfinite
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.analysis.estimates import MODES

LAW = settings(deadline=None, max_examples=examples(40), derandomize=True, database=None)
#: Room for rounding of float64 sums.
TINY = 1e-9
VERDICTS = ("impossible", "as_expected", "slow", "very_slow")
CHIPS = ("h100-sxm", "v100-sxm-16gb", "t4", "mi300x", "tpu-v4", "grayskull-e75")
HEADS = {"op": "attention", "heads": 16, "kv_heads": 4, "head_dim": 128}

WORK: dict[str, list[dict[str, Any]]] = {
    "square": [{"op": "gemm", "m": 4096, "n": 4096, "k": 4096}],
    "odd": [{"op": "gemm", "m": 1000, "n": 4097, "k": 1023}],
    "one": [{"op": "gemm", "m": 1, "n": 1, "k": 1}],
    "rows": [{"op": "softmax", "rows": 4096, "cols": 4096}],
    "lookup": [{"op": "gather", "table": 2**24, "n": 2**20}],
    "chain": [{"op": "elementwise", "n": 2**22, "inputs": 2, "count": 5}],
    "attention": [{**HEADS, "batch": 4, "q_len": 512, "kv_len": 512, "causal": True}],
    "decode": [{**HEADS, "batch": 8, "q_len": 1, "kv_len": 4096}],
}


@cache
def work(name: str, dtype: str) -> rl.Graph:
    return rl.workload(WORK[name], dtype)


@cache
def expected(name: str, dtype: str, chip: str, mode: str) -> float:
    return float(rl.estimate(work(name, dtype), chip, mode=mode).time)  # type: ignore[arg-type]


@st.composite
def runs(draw: Any) -> tuple[rl.Graph, str, str, float]:
    """A program, where and how it ran, and the time that is expected; only what the chip has figures for."""
    names, formats = st.sampled_from(sorted(WORK)), st.sampled_from(("bf16", "fp16", "fp32"))
    while True:
        name, dtype, chip = draw(names), draw(formats), draw(st.sampled_from(CHIPS))
        mode = draw(st.sampled_from(MODES))
        try:
            return work(name, dtype), chip, mode, expected(name, dtype, chip, mode)
        except rl.errors.MissingFigure:
            continue


FACTORS = st.floats(-4, 8).map(lambda power: 10.0**power)


def judge(run: tuple[rl.Graph, str, str, float], factor: float) -> rl.diagnosis.Verdict:
    graph, chip, mode, time = run
    return rl.check(graph, chip, time * factor, mode=mode)  # type: ignore[arg-type]


@LAW
@given(runs(), FACTORS)
def test_parts_add_up_and_none_is_negative(run: tuple[rl.Graph, str, str, float], factor: float) -> None:
    found = judge(run, factor)
    if found.verdict == "impossible":
        assert (found.causes, found.candidates, found.advice, found.waterfall) == ((), (), (), ())
        assert found.measured < found.lower_bound
        return
    parts = [seconds for _, seconds in found.waterfall]
    assert sum(parts) == pytest.approx(found.measured, rel=TINY)
    assert all(isfinite(part) and part >= 0 for part in parts), found.waterfall
    assert sum(cause.share for cause in found.causes) <= 1 + TINY


@LAW
@given(runs(), FACTORS, FACTORS)
def test_more_time_is_never_better(run: tuple[rl.Graph, str, str, float], one: float, other: float) -> None:
    less, more = (VERDICTS.index(judge(run, factor).verdict) for factor in sorted((one, other)))
    assert less <= more


@LAW
@given(runs(), FACTORS)
def test_equal_questions_have_equal_answers(run: tuple[rl.Graph, str, str, float], factor: float) -> None:
    assert judge(run, factor).record() == judge(run, factor).record()
    json.dumps(judge(run, factor).record(), allow_nan=False)


@LAW
@given(runs(), FACTORS)
def test_candidates_are_sorted_and_none_is_faster_than_good_kernels(
    run: tuple[rl.Graph, str, str, float], factor: float
) -> None:
    found = judge(run, factor)
    scores = [one.score for one in found.candidates]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < one.low_s <= one.high_s and one.gap > 0 for one in found.candidates)
    fits = [one.gap == 1 for one in found.candidates]
    assert fits == sorted(fits, reverse=True), "what does not fit never outranks what does"
    assert found.guesses <= {one.label for one in found.candidates if one.gap == 1}
    assert all(0 <= one.right <= one.named for one in found.candidates)


@LAW
@example((work("odd", "bf16"), "h100-sxm", "eager", expected("odd", "bf16", "h100-sxm", "eager")), 1.0)
@given(runs(), FACTORS)
def test_advice_saves_time_and_is_not_counted_twice(run: tuple[rl.Graph, str, str, float], factor: float) -> None:
    found = judge(run, factor)
    combined = [one for one in found.advice if not one.change.startswith(("prune", "batch "))]
    assert all(one.time_s > 0 and one.saves_s > 0 and one.together_s > 0 for one in combined)
    times = [one.together_s for one in combined]
    assert all(after <= before * (1 + TINY) for before, after in pairwise(times))
    removed = [one for one in combined if one.note.startswith("removes ")]
    if any(tensor.dtype == "fp32" for tensor in run[0].tensors.values()):
        return  # the reference is in tf32, whose limit is another: a padded row is promised its speed as well
    assert all(one.together_s >= found.lower_bound * (1 - TINY) for one in removed)
    assert sum(one.saves_s for one in removed) <= found.measured * (1 + TINY)
