"""A server's steps and its steady state: against direct estimates, laws of queueing and published examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import roofline as rl
from tests.profiles import examples

DENSE = rl.serving.deployment("llama-3-8b", "h200-sxm", layers=2)
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("llama-3-8b", {}),
    "shared and narrow": ("llama-3-8b", {"tp": 4, "weights": "fp8"}),
    "windows and experts": ("gpt-oss-20b", {}),
    "latents": ("deepseek-v3", {"attention_dp": 8, "weights": "fp8", "layers": 4}),
}


def direct(graph: rl.Graph, chip: rl.Chip, **sizes: int) -> float:
    """Estimate as a whole; the cache is written by the attention's kernel in figures of a serving stack."""
    est = rl.estimate(graph, chip, mode="graph", regime="warm", **sizes)
    apart = (r.kernel.count * t.expected for r, t in est.timed if {n.op for n in r.kernel.nodes} == {"cache_update"})
    return float(est.time - sum(apart))


@pytest.mark.parametrize("name", LAYOUTS)
def test_steps_are_what_estimate_says_of_the_whole_programs(name: str) -> None:
    model, options = LAYOUTS[name]
    served = rl.serving.deployment(model, "h200-sxm", **({"layers": 2} | options))
    steps, groups = served.steps(), served.attention_dp
    for batch, context in ((1, 90), (8, 2048), (37, 3300), (199, 2000), (500, 1500)):
        exact = direct(served.decode_stages[0], served.chip, B=-(-batch // groups), C=context)
        assert steps.decode(batch, context) == pytest.approx(exact, rel=0.01)
    for tokens in (1, 100, 1024, 1025, 2000, 8192, 20000):
        exact = direct(served.prefill_stages[0], served.chip, B=1, S=tokens)
        assert steps.prefill(tokens) == pytest.approx(exact, rel=0.011)


def test_several_prompts_are_a_batch_of_the_prefill() -> None:
    exact = direct(DENSE.prefill_stages[0], DENSE.chip, B=8, S=1000)
    assert DENSE.steps().prefill(8000, prompts=8) == pytest.approx(exact, rel=0.01)


@given(past=st.integers(64, 100_000))
@settings(max_examples=examples(10))
def test_one_query_with_a_past_is_a_decode_step(past: int) -> None:
    steps = DENSE.steps()
    assert steps.prefill(1, past) == pytest.approx(steps.decode(1, past + 1), rel=0.02)


@given(cut=st.integers(1, 7))
@settings(max_examples=examples(7))
def test_chunks_of_a_prompt_compute_as_much_as_the_prompt(cut: int) -> None:
    """Attention of both chunks together is the whole's: (q1, q1) pairs and q2 queries on all keys."""
    steps, whole, first = DENSE.steps(), 16384, cut * 2048
    apart = steps.prefill(first) + steps.prefill(whole - first, past=first)
    assert apart == pytest.approx(steps.prefill(whole), rel=0.05)


def test_a_mixed_step_reads_the_weights_once() -> None:
    steps = DENSE.steps()
    mixed = steps.seconds(512, 0, 32, 2000)
    assert max(steps.prefill(512), steps.decode(32, 2000)) < mixed < steps.prefill(512) + steps.decode(32, 2000)


@given(
    read=st.integers(0, 16384), past=st.integers(0, 65536), decodes=st.integers(1, 1024), context=st.integers(1, 65536)
)
@settings(max_examples=examples(50))
def test_more_work_takes_no_less_time(read: int, past: int, decodes: int, context: int) -> None:
    steps = DENSE.steps()
    now = steps.seconds(read, past, decodes, context)
    for more in ((read * 2, past, decodes, context), (read, past * 2, decodes, context),
                 (read, past, decodes * 2, context), (read, past, decodes, context * 2)):  # fmt: skip
        assert steps.seconds(*more) >= now * 0.999


def test_arrays_are_the_same_as_numbers() -> None:
    steps = DENSE.steps()
    tokens, batch = np.arange(0, 4096, 777)[:, None], np.asarray([1, 30, 300])
    every = steps.seconds(tokens, 100, batch, 3000)
    assert every.shape == (6, 3)
    assert every[2, 1] == steps.seconds(2 * 777, 100, 30, 3000)


def test_stages_of_a_pipeline_take_turns() -> None:
    one, two = (rl.serving.deployment("llama-3-8b", "h200-sxm", pp=pp, layers=8) for pp in (1, 2))
    assert two.steps().decode(1, 2000) == pytest.approx(one.steps().decode(1, 2000), rel=0.25)
    assert two.steps().decode(256, 2000) < 1.3 * one.steps().decode(256, 2000)


def test_sequences_that_fit_are_those_of_largest_concurrency() -> None:
    served = rl.serving.deployment("llama-3-8b", "h200-sxm", chunk=2048)
    largest = rl.serving.largest_concurrency(
        served.decode_stages[0], "h200-sxm", context=4500, block=16, chunk=2048, prefill=served.prefill_stages[0],
        memory_limit=served.room,
    )  # fmt: skip
    assert served.sequences_that_fit(4500) == pytest.approx(largest.value, abs=2)
    shared = rl.serving.deployment("llama-3-8b", "h200-sxm", chunk=2048, shared_prefix=4000)
    assert shared.sequences_that_fit(4500) > 7 * served.sequences_that_fit(4500)
    assert list(served.sequences_that_fit(np.asarray([4500, 10**7]))) == [served.sequences_that_fit(4500), 0]


def test_overhead_is_added_to_each_step() -> None:
    slow = rl.serving.deployment("llama-3-8b", "h200-sxm", layers=2, overhead=rl.serving.Overhead(1e-3, 0, 1e-6))
    assert slow.steps().decode(100, 500) == pytest.approx(float(DENSE.steps().decode(100, 500)) + 1.1e-3)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"ep": 3, "tp": 2}, "not a divisor"), ({"regime": "worm"}, "warm"), ({"memory_share": 2}, "memory_share"),
     ({"tp": 0}, "tp")],
)  # fmt: skip
def test_a_layout_that_cannot_be_says_why(options: dict[str, Any], says: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=says):
        rl.serving.deployment("llama-3-8b", "h100-sxm", **options)
