"""A server's steps and its steady state: against direct estimates, laws of queueing and published examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import roofline as rl
from roofline.serving.steady import Speculation, Steady, Work, closed_loop, largest_rate, open_loop
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
        assert steps.prefill(groups * tokens, prompts=groups) == pytest.approx(exact, rel=0.011)


def test_a_prompt_of_one_group_brings_the_experts_its_own_tokens_alone() -> None:
    """Each of eight groups reads its prompts by itself, and all of them share the experts' matmuls."""
    served = rl.serving.deployment("deepseek-v3", "h200-sxm", attention_dp=8, weights="fp8", layers=4)
    few, all_of = (float(served.steps().prefill(4000 * n, prompts=n)) for n in (1, 8))
    est = rl.estimate(served.prefill_stages[0], served.chip, mode="graph", regime="warm", B=1, S=np.array([500, 4000]))
    rows = [row.kernel.count * time.expected for row, time in est.timed if row.kernel.main.op == "expert_linear"]
    less, experts = np.sum(rows, axis=0)
    assert all_of - few == pytest.approx(experts - less, rel=0.02)


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


# --- the steady state -----------------------------------------------------------------------------------------------

WORK = Work(2000, 300, chunk=8192, running=100)


class Fixed:
    """Steps that take a second for each thousand tokens of prompts, or 10 ms."""

    def seconds(self, prefill_tokens: Any, past: Any, decodes: Any, context: Any, *_: Any, **__: Any) -> Any:
        return np.maximum(np.asarray(prefill_tokens) / 1000, 0.01) + 0 * np.asarray(decodes)


@pytest.mark.parametrize(
    ("accepted", "drafted", "tokens"), [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 10, 6.86)]
)
def test_drafted_tokens_yield_what_leviathan_publishes(accepted: float, drafted: int, tokens: float) -> None:
    """Table 1 of arXiv:2211.17192: speed over the baseline where drafting is free."""
    assert Speculation(drafted, accepted).tokens == pytest.approx(tokens, abs=0.005)


@pytest.mark.parametrize(("load", "queue"), [(0.5, 0.25), (0.8, 1.6), (0.9, 4.05)])
def test_prompts_alone_queue_as_pollaczek_and_khinchine_say(load: float, queue: float) -> None:
    """M/D/1: load^2 / (2 (1 - load)) customers wait (Gross and Harris, Fundamentals of Queueing Theory, 5.1.1)."""
    alone = Work(1000, 1, chunk=1000, running=10)
    assert open_loop(Fixed(), alone, load).first_token - 1 == pytest.approx(queue / load)  # type: ignore[arg-type]
    assert largest_rate(Fixed(), alone) == pytest.approx(1, rel=1e-3)  # type: ignore[arg-type]


def test_one_user_gets_what_a_request_alone_does() -> None:
    steps, one = DENSE.steps(), closed_loop(DENSE.steps(), WORK, 1)
    assert one.first_token == one.first_wave == pytest.approx(float(steps.prefill(2000)))
    assert one.per_token == pytest.approx(float(steps.decode(1, 2000 + np.arange(1, 300)).mean()), rel=1e-3)
    alone = rl.serving.request(prefill=DENSE.prefill_stages[0], decode=DENSE.decode_stages[0], chip=DENSE.chip,
                               prompt=2000, new_tokens=300, mode="graph", regime="warm")  # fmt: skip
    assert one.first_token == pytest.approx(alone.time_to_first_token, rel=0.02)
    assert one.per_token == pytest.approx(alone.time_per_token, rel=0.05)  # which writes the cache apart


@given(
    users=st.integers(1, 2000), prompt=st.integers(1, 30000), new=st.integers(2, 3000), chunk=st.integers(512, 16384),
    running=st.integers(1, 500), mixed=st.booleans(), drafted=st.integers(0, 5),
)  # fmt: skip
@settings(max_examples=examples(100))
def test_all_users_are_somewhere(
    users: int, prompt: int, new: int, chunk: int, running: int, mixed: bool, drafted: int
) -> None:
    """Little's law, and more users never have more to themselves."""
    work = Work(prompt, new, chunk, min(running, chunk // 8), mixed=mixed, speculation=Speculation(drafted, 0.7))
    now, more = (closed_loop(DENSE.steps(), work, n) for n in (users, 2 * users))
    assert now.rate * (now.first_token + (new - 1) * now.per_token) == pytest.approx(users, rel=1e-6)
    assert 0 < now.decoding <= now.running <= users
    assert 0 < now.mixed_share <= 1
    assert more.rate >= 0.97 * now.rate


@given(share=st.floats(0.01, 0.9), prompt=st.integers(100, 20000), new=st.integers(2, 1000))
@settings(max_examples=examples(30))
def test_what_arrives_at_random_leaves_at_the_same_rate(share: float, prompt: int, new: int) -> None:
    work = Work(prompt, new, chunk=8192, running=200)
    most = largest_rate(DENSE.steps(), work)
    low, high = (open_loop(DENSE.steps(), work, most * part) for part in (share / 2, share))
    assert high.rate == most * share
    assert low.first_token <= high.first_token < np.inf
    assert low.per_token <= high.per_token < np.inf
    assert open_loop(DENSE.steps(), work, 1.05 * most).first_token == np.inf


@given(
    prompt=st.integers(50, 5000), new=st.integers(20, 1000), chunk=st.integers(64, 4096), running=st.integers(1, 1000),
    drafted=st.integers(0, 5), spread=st.sampled_from([0.0, 0.2]),
)  # fmt: skip
@settings(max_examples=examples(20))
def test_more_users_are_answered_no_slower_whatever_a_step_holds(
    prompt: int, new: int, chunk: int, running: int, drafted: int, spread: float
) -> None:
    """Users beyond what fills the steps only wait; and no closed loop has more than what random arrivals may have.

    A tile of rows more, or a step more of a short life, is a loss of some per cent to a server that admits all it can.
    """
    work = Work(prompt, new, chunk, running, speculation=Speculation(drafted, 0.7), spread=spread)
    some = chunk / (drafted + 1)  # as many sequences fill a step
    users = np.unique(np.maximum(np.round([1, some / 4, some / 2, some - 1, some, some + 1, 2 * some, 8 * some]), 1))
    rates = closed_loop(DENSE.steps(), work, users, waves=False).rate
    assert (rates >= 0.9 * np.maximum.accumulate(rates)).all()
    assert largest_rate(DENSE.steps(), work) >= 0.9 * rates.max()


def test_prompts_in_turns_stop_those_that_decode() -> None:
    beside, apart = (closed_loop(DENSE.steps(), Work(4000, 500, 8192, 128, mixed=mixed), 64) for mixed in (True, False))
    assert apart.first_token == apart.first_wave > 5 * beside.first_token


def test_a_cached_prefix_is_not_read_again() -> None:
    users = np.asarray([1, 16])
    cold, warm = (closed_loop(DENSE.steps(), Work(4000, 50, 8192, 128, cached=cached), users) for cached in (0, 3000))
    assert warm.first_token[0] < 0.5 * cold.first_token[0]
    assert warm.rate[1] > 1.3 * cold.rate[1]


def test_those_without_blocks_wait() -> None:
    users = np.asarray([100, 200])
    few: Steady = closed_loop(DENSE.steps(), WORK, users)
    assert list(few.running) == [100, 100]
    assert few.rate[0] == few.rate[1]
    assert few.first_token[1] > few.first_token[0] + 50 * few.per_token[0]


# --- what users get -------------------------------------------------------------------------------------------------


def served(**options: Any) -> rl.serving.Service:
    """Two layers of a model under some load."""
    return rl.serving.serve("llama-3-8b", "h200-sxm", **({"prompt": 2000, "new_tokens": 300, "layers": 2} | options))


def test_a_service_is_its_steady_state_with_what_follows() -> None:
    between = float(served(concurrency=[8, 64], tp=2).tpot.mean())
    some = served(concurrency=[1, 8, 64], price=3.0, tpot=between, tp=2)
    rows = some.records()
    one = closed_loop(some.deployment.steps(), some.work, 8)
    assert (rows[1]["ttft_s"], rows[1]["tpot_s"]) == (one.first_token, one.per_token)
    assert rows[1]["tokens_per_s_per_chip"] == pytest.approx(300 * float(one.rate) / 2)
    # Dollars an hour over tokens an hour, and watts over tokens a second (an H200's limit is 700 W).
    assert rows[2]["cost_per_million"] == pytest.approx(3.0 * 2 / (rows[2]["tokens_per_s"] * 3600) * 1e6)
    assert rows[2]["energy_per_million_j"] == pytest.approx(2 * 700 / rows[2]["tokens_per_s"] * 1e6)
    stated = served(concurrency=[64], tp=2, watts=500, prefill_chip="l4")  # of the four chips, as price is
    assert stated.energy_per_million == pytest.approx(4 * 500 / stated.tokens_per_s * 1e6)
    assert (stated.record()["watts_per_chip"], some.record()["watts_per_chip"]) == (500, 700)
    assert [row["meets"] for row in rows] == [row["tpot_s"] <= between for row in rows] == [True, True, False]
    assert some.best == 1
    assert some.record()["best"] == rows[1]
    assert all(row["tpot_low_s"] < row["tpot_s"] < row["tpot_high_s"] for row in rows)


def test_drafting_takes_its_share_of_a_step() -> None:
    free, share = served(concurrency=1, spec="3:0.8"), served(concurrency=1, spec="3:0.8", draft=0.1)
    step = free.deployment.steps().seconds(0, 0, 1, free.work.context, queries=4)
    plain = free.deployment.steps().decode(1, free.work.context)
    assert free.tpot[0] == pytest.approx(step / 2.952, rel=1e-3)  # (1 - 0.8^4) / 0.2 tokens a step
    assert share.tpot[0] == pytest.approx((step + 0.3 * plain) / 2.952, rel=1e-3)
    assert "time and memory of the draft" in free.not_modelled


def test_prompts_elsewhere_leave_the_decode_steps_alone() -> None:
    apart = served(concurrency=[1, 64], prefill_chip="h100-sxm", servers=(2, 1), link="10 GB/s")
    # 2,000 tokens x 2 layers x 2 x 8 heads x 128 x 2 bytes, in whole blocks of 16.
    assert apart.apart is not None
    assert apart.apart.transfer == pytest.approx(2000 * 8192 / 10e9)
    steps = apart.deployment.steps()
    assert apart.tpot[0] == pytest.approx((299 * steps.decode(1, 2150) + apart.apart.transfer) / 299, rel=1e-3)
    assert apart.devices == 3
    assert apart.tpot[1] < served(concurrency=64).tpot[0]
    users = apart.steady.rate * (apart.ttft + 299 * apart.tpot)
    assert users.tolist() == pytest.approx([1, 64])


def test_groups_of_a_model_without_experts_are_servers_of_their_own() -> None:
    one, two = served(concurrency=[1, 32, 33]), served(attention_dp=2, concurrency=[1, 2, 64, 65])
    assert two.largest_rate == pytest.approx(2 * one.largest_rate)
    alone, fewer, more = one.steady.rate
    assert two.steady.rate.tolist() == pytest.approx([alone, 2 * alone, 2 * fewer, fewer + more])
    assert two.ttft[:3].tolist() == pytest.approx(one.ttft[[0, 0, 1]].tolist())
    assert fewer + more == pytest.approx(65 / (two.ttft[3] + 299 * two.tpot[3]))  # Little's law
    qps = 0.5 * one.largest_rate
    assert served(attention_dp=2, qps=2 * qps).ttft[0] == pytest.approx(served(qps=qps).ttft[0])
    apart = served(attention_dp=2, concurrency=8, prefill_chip="h100-sxm")
    assert (apart.devices, apart.steady.rate[0]) == (4, served(concurrency=8, prefill_chip="h100-sxm",
                                                               servers=(2, 2)).steady.rate[0])  # fmt: skip


def test_arrivals_beyond_the_largest_rate_never_end() -> None:
    most = served(qps=1).largest_rate
    some = served(qps=[0.5 * most, 1.1 * most])
    assert some.records()[1]["ttft_s"] is None
    assert some.goodput.tolist() == [0.5 * most, 0]
    apart = served(qps=1, prefill_chip="h100-sxm").largest_rate
    assert served(qps=[0.9 * apart, 1.1 * apart], prefill_chip="h100-sxm").goodput[1] == 0


def test_a_model_that_does_not_fit_says_what_would() -> None:
    with pytest.raises(rl.errors.DoesNotFit, match=r"what would fit: .*--tp 2"):
        served(layers=4, memory_share=0.025, chunk=512)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"concurrency": 0}, "concurrency"), ({"qps": -1}, "qps"), ({"qps": 1, "concurrency": 1}, "exclude"),
     ({"spec": "3"}, "K:ACCEPT"), ({"draft": 0.1}, "without spec"), ({"servers": (2, 1)}, "prefill_chip"),
     ({"servers": (1, 1)}, "prefill_chip"), ({"link": "10GB/s"}, "prefill_chip"),
     ({"prefix": 3000}, "longer than the prompt"), ({"ttft": "-1 s"}, "ttft"),
     ({"spec": "2:0.5", "draft": 7}, "share")],
)  # fmt: skip
def test_a_load_that_cannot_be_says_why(options: dict[str, Any], says: str) -> None:
    with pytest.raises(rl.errors.RooflineError, match=says):
        served(**options)


def test_activations_that_come_quantised_are_not_quantised_again() -> None:
    """A stack's lone fp8 matmul quantises its input first; norms and gates before it do that in a program."""
    graph = rl.serving.deployment("llama-3-8b", "b200-sxm", weights="fp8", layers=2).decode_stages[0]
    est = rl.estimate(graph, "b200-sxm", mode="graph", regime="warm", B=8, C=2000)
    inside = next(float(time.expected) for row, time in est.timed if row.kernel.name.endswith("mlp.gate_up"))
    rows = [{"op": "gemm", "dtype": "fp8", "shape": {"m": 8, "n": 2 * 14336, "k": 4096}}]
    alone = float(rl.predict(rows, "b200-sxm", regime="warm")["predicted_us"][0]) / 1e6
    assert alone - 1e-5 < inside < alone - 1e-6


def test_a_backend_brings_its_policy_its_overhead_and_its_range() -> None:
    load: dict[str, Any] = {"prompt": 1000, "new_tokens": 200, "concurrency": 16}
    plain = rl.serving.serve("llama-3-8b", "h100-sxm", **load)
    for name, (mixed, evicts) in {"vllm": (True, True), "sglang": (False, True), "trtllm": (True, False)}.items():
        one = rl.serving.serve("llama-3-8b", "h100-sxm", **load, backend=name)
        assert (one.deployment.mixed, one.deployment.evicts) == (mixed, evicts)
        assert one.work.running > plain.work.running if evicts else one.work.running == plain.work.running
        low, high = one.tpot_range
        row = one.records()[0]
        assert (row["tpot_low_s"], row["tpot_high_s"]) == (one.tpot[0] * low, one.tpot[0] * high)
        assert one.ttft[0] > plain.ttft[0] + one.deployment.overhead.request / 2
        assert one.subject()["server"]["backend"] == name
        assert not any("server between steps" in text for text in one.not_modelled)
    with pytest.raises(rl.errors.UsageError, match="allowed: trtllm, vllm, sglang; did you mean vllm"):
        rl.serving.deployment("llama-3-8b", "h100-sxm", backend="vlm")
    with pytest.raises(rl.errors.UsageError, match="watts=-1: expected a number from 0"):
        rl.serving.serve("llama-3-8b", "h100-sxm", **load, watts=-1)
    with pytest.raises(rl.errors.UsageError, match="spread=1"):
        rl.serving.serve("llama-3-8b", "h100-sxm", **load, spread=1)
