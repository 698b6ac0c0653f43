"""The simulated server against queueing theory, steps by hand, and laws that hold for any requests."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Run
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl

Policy, Speculation, simulate = rl.serving.Policy, rl.serving.Speculation, rl.serving.simulate


@dataclass(frozen=True)
class Linear:
    """Steps that take a fixed time, and more for each token of a prompt, each sequence, each position."""

    step: float = 0.0
    read: float = 0.0
    decode: float = 0.0
    position: float = 0.0

    def seconds(self, prefill_tokens: Any, past: Any, decodes: Any, context: Any, prompts: Any = 1,
                queries: Any = 1) -> Any:  # fmt: skip
        read, decodes, context = (np.asarray(value, dtype=float) for value in (prefill_tokens, decodes, context))
        return self.step + self.read * read + decodes * (self.decode + self.position * context)


def of(trace: Any, times: Linear, **policy: Any) -> Any:
    return simulate(times, trace=trace, policy=Policy(**policy))


# --- queueing theory --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_prompt_at_a_time_is_an_m_d_1_queue(load: float) -> None:
    """Mean time in the system of M/D/1: D + load D / (2 (1 - load)) (Pollaczek and Khinchine)."""
    run = simulate(Linear(step=0.01), prompt=100, new_tokens=1, qps=load / 0.01, requests=20000,
                   policy=Policy(chunk=100), seed=1)  # fmt: skip
    assert run.mean("ttft_s") == pytest.approx(0.01 + load * 0.01 / 2 / (1 - load), rel=0.03)


def test_users_of_a_busy_server_wait_for_all_others() -> None:
    """A closed loop of N users at one server of time D: N D each, 1 / D in all (the law of Little)."""
    run = simulate(Linear(step=0.01), prompt=100, new_tokens=1, concurrency=7, requests=200, policy=Policy(chunk=100))
    assert run.mean("latency_s") == pytest.approx(0.07)
    assert run.requests_per_s == pytest.approx(100, rel=0.01)


def test_tokens_a_second_are_those_of_a_server_that_neither_fills_nor_empties() -> None:
    """20 requests a second of 500 tokens, each of which takes 5 s, are 10,000 tokens/s, however few are sent."""
    for requests in (500, 4000):
        run = simulate(
            Linear(step=0.01), prompt=50, new_tokens=500, qps=20, requests=requests, policy=Policy(chunk=8192)
        )
        came, (start, end) = run.requests["arrival_s"], run.window
        sent = ((came > start - 5) & (came <= end - 5)).sum() / (end - start)  # those that are answered in this time
        assert run.requests_per_s == pytest.approx(sent, rel=0.01)
        assert run.tokens_per_s == pytest.approx(10_000, rel=4 / np.sqrt(requests))


def test_users_that_are_served_together_only_pace_each_other() -> None:
    """Eight users, each with a step for its prompt in nine: steps of 9 tokens, of which the answers take 8."""
    run = simulate(Linear(step=0.002, read=1e-6), prompt=1, new_tokens=9, concurrency=8, requests=400,
                   policy=Policy(chunk=4096))  # fmt: skip
    assert run.mean("tpot_s") == pytest.approx(0.002, rel=0.01)
    assert run.requests_per_s * run.mean("latency_s") == pytest.approx(8, rel=0.02)


# --- by hand ----------------------------------------------------------------------------------------------------------


def test_answers_come_first_and_prompts_share_what_is_left() -> None:
    trace = rl.serving.made_requests([0, 0], [100, 300], [3, 2])
    run = of(trace, Linear(step=1.0), chunk=200)
    steps = run.steps
    assert steps["prefill_tokens"].tolist() == [200, 199, 1, 0]
    assert steps["decodes"].tolist() == [0, 1, 1, 1]
    assert run.requests["first_s"].tolist() == [1, 3]
    assert run.requests["done_s"].tolist() == [3, 4]


def test_a_prompt_waits_until_its_blocks_are_free() -> None:
    """Each request takes 7 blocks of 16 in the end; of 12 the second has to wait for the first to leave."""
    trace = rl.serving.made_requests([0, 0], 100, 12)
    run = of(trace, Linear(step=1.0), chunk=1000, block=16, room=12 * 16)
    assert run.requests["admitted_s"].tolist() == [0, 12]
    assert run.steps["cache_tokens"].max() == 7 * 16


def test_the_last_one_gives_its_blocks_back_and_is_read_again() -> None:
    """Both prompts fill 2 of 5 blocks; the third block of the second has no room until the first has left."""
    trace = rl.serving.made_requests([0, 0], 32, 17)
    run = of(trace, Linear(step=1.0), chunk=1000, block=16, room=5 * 16, reserve=False)
    assert run.requests["preempted"].tolist() == [0, 1]
    assert run.requests["first_s"].tolist() == [1, 1]
    assert run.requests["done_s"].tolist() == [17, 33]  # 1 token before, 16 after the first has left at 17
    assert run.steps["prefill_tokens"].sum() == 64 + 33  # its prompt and the token that it had


def test_a_shared_prefix_is_read_once_and_held_once() -> None:
    trace = rl.serving.made_requests([0, 10, 20], [1100, 1100, 1024], 2, ids=[[1, 2, 3], [1, 2, 4], [1, 2]])
    run = of(trace, Linear(step=1.0), chunk=4096, room=4096)
    assert run.requests["cached"].tolist() == [0, 1024, 512]  # one token at least is computed, so not the last block
    assert run.steps["prefill_tokens"].tolist() == [1100, 0, 76, 0, 512, 0]
    together = of(rl.serving.made_requests([0, 10, 10], 1100, 5, ids=[[1, 2, 3], [1, 2, 4], [1, 2, 5]]),
                  Linear(step=1.0), chunk=4096, room=4096, reserve=False)  # fmt: skip
    assert together.steps["cache_tokens"].max() == 1024 + 2 * (76 + 4)


def test_idle_prefixes_leave_the_least_recent_first() -> None:
    """Room for 3 blocks of 512: the third prompt takes the place of the last block of those before."""
    ids = [[1, 2], [1, 2], [3, 4], [1, 2]]
    run = of(rl.serving.made_requests([0, 10, 20, 30], 1025, 1, ids=ids), Linear(step=1.0), chunk=4096, room=1600)
    assert run.requests["cached"].tolist() == [0, 1024, 0, 512]


def test_tokens_of_a_draft_that_is_right_come_together() -> None:
    """Leviathan et al. 2023, arXiv:2211.17192, equation 1: (1 - a^(k + 1)) / (1 - a) tokens a step."""
    trace = rl.serving.made_requests([0], 10, 4001)
    sure = of(trace, Linear(step=1.0), speculation=Speculation(3, 1.0))
    assert sure.requests["done_s"].tolist() == [1 + 4000 / 4]
    some = of(trace, Linear(step=1.0), speculation=Speculation(3, 0.7))
    assert some.requests["done_s"][0] == pytest.approx(1 + 4000 / ((1 - 0.7**4) / 0.3), rel=0.04)


def test_limits_make_goodput() -> None:
    """In steps of 100 tokens answers take some of the next prompt's, so first tokens come at 10, 30, 40, 50 ms."""
    run = simulate(Linear(step=0.01), trace=rl.serving.made_requests([0, 0, 0, 0], 100, 2), policy=Policy(chunk=100),
                   ttft="35 ms")  # fmt: skip
    assert run.latencies["ttft_s"] == pytest.approx([0.01, 0.03, 0.04, 0.05])
    assert run.good == 0.5
    assert run.goodput == pytest.approx(run.requests_per_s / 2)


# --- laws -------------------------------------------------------------------------------------------------------------

REQUESTS = st.lists(st.tuples(st.floats(0, 3), st.integers(1, 300), st.integers(1, 40)), min_size=1, max_size=25)


@given(
    rows=REQUESTS, chunk=st.integers(40, 400), block=st.sampled_from([1, 16]), room=st.integers(400, 3000),
    sequences=st.integers(1, 30), drafts=st.integers(0, 3), shared=st.booleans(),
    reserve=st.booleans(), mixed=st.booleans(),
)  # fmt: skip
@settings(max_examples=examples(60), deadline=None)
def test_every_request_is_answered_and_nothing_is_lost(
    rows: list[tuple[float, int, int]],
    chunk: int,
    block: int,
    room: int,
    sequences: int,
    drafts: int,
    shared: bool,
    reserve: bool,
    mixed: bool,
) -> None:
    arrival, prompt, output = (list(column) for column in zip(*rows, strict=True))
    ids = [list(range(n // 64)) for n in prompt] if shared else []
    trace = rl.serving.made_requests(arrival, prompt, output, ids=ids, block=64)
    policy = Policy(chunk, block, room, sequences, Speculation(drafts, 0.6), 64, reserve, mixed)
    run = simulate(Linear(0.01, 1e-5, 1e-4, 1e-7), trace=trace, policy=policy)
    ours, steps = run.requests, run.steps
    assert len(ours["done_s"]) == len(rows)
    assert steps["emitted"].sum() == sum(output)
    for earlier, later in (("arrival_s", "admitted_s"), ("admitted_s", "first_s"), ("first_s", "done_s")):
        assert (ours[earlier] <= ours[later]).all()
    ends = steps["start_s"] + steps["step_s"]
    assert (steps["start_s"][1:] >= ends[:-1] - 1e-9).all()
    assert steps["cache_tokens"].max() <= room
    assert (steps["prefill_tokens"] + steps["decodes"] <= np.maximum(chunk, steps["decodes"])).all()
    read = steps["prefill_tokens"].sum()
    first = (ours["prompt"] - ours["cached"]).sum()
    assert read == first if not ours["preempted"].any() else read > 0


@given(users=st.integers(1, 12), new=st.integers(1, 30), seed=st.integers(0, 5))
@settings(max_examples=examples(20), deadline=None)
def test_little_holds_for_users_that_never_pause(users: int, new: int, seed: int) -> None:
    """The law of Little: requests in the system = their rate x their time in it."""
    run = simulate(Linear(0.01, 1e-5, 1e-4), prompt=50, new_tokens=new, concurrency=users, requests=40 * users,
                   seed=seed, policy=Policy(chunk=128))  # fmt: skip
    assert run.requests_per_s * run.mean("latency_s") == pytest.approx(users, rel=0.05)


def test_the_same_seed_draws_the_same() -> None:
    runs = [simulate(Linear(0.01), prompt=50, new_tokens=5, qps=20, requests=50, seed=seed) for seed in (1, 1, 2)]
    assert runs[0].record() == runs[1].record() != runs[2].record()


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"prompt": 10, "new_tokens": 2}, "concurrency (users) or qps"),
        ({"prompt": 10, "new_tokens": 2, "qps": 1, "concurrency": 1}, "concurrency (users) or qps"),
        ({"prompt": 10, "new_tokens": 2, "qps": 0}, "qps=0: expected a number above 0"),
        ({"prompt": 10, "new_tokens": 2, "qps": 1, "seconds": "3 s"}, "too few to count"),
        ({"prompt": 0, "new_tokens": 2, "concurrency": 1}, "prompt=0: expected a whole number from 1"),
        ({"trace": "no such file"}, "no such file: cannot be read"),
        ({"trace": rl.serving.made_requests([0], 5, 5), "prompt": 3}, "prompt=3: a trace says itself"),
    ],
)
def test_what_cannot_be_simulated_is_said(options: dict[str, Any], says: str) -> None:
    with pytest.raises(rl.errors.UsageError) as problem:
        simulate(Linear(0.01), **options)
    assert says in str(problem.value)


def test_a_request_that_is_longer_than_the_cache_does_not_fit() -> None:
    with pytest.raises(rl.errors.DoesNotFit, match="a request of 110 tokens"):
        of(rl.serving.made_requests([0], 100, 10), Linear(0.01), room=100)


# --- against the closed forms -----------------------------------------------------------------------------------------

LLAMA = {"model": "llama-3-8b", "chip": "h100-sxm", "prompt": 4000, "new_tokens": 500, "chunk": 2048}


@pytest.mark.parametrize(
    ("more", "load"),
    [
        ({}, {"concurrency": 8}),
        ({"chunk": 512}, {"concurrency": 64}),  # every step is full of prompts
        ({"chunk": 64, "prompt": 400, "new_tokens": 50}, {"concurrency": 63}),  # sequences alone would fill a step
        ({"chunk": 64, "prompt": 400, "new_tokens": 50}, {"concurrency": 100}),
        ({"chunk": 64, "prompt": 400, "new_tokens": 50}, {"qps": 5.0}),
        ({"prefix": 1000}, {"concurrency": 8}),
        ({"prefix": 3000}, {"concurrency": 64}),  # prompts straddle steps
        ({"chunk": 8192, "spread": 0.2}, {"concurrency": 64}),
        ({"prefill_chip": "h100-sxm"}, {"concurrency": 8}),
        ({"attention_dp": 2}, {"concurrency": 9}),  # two servers, of which one has a user more
        ({}, {"qps": 2.0}),
        ({"prefill_chip": "h100-sxm"}, {"qps": 2.0}),
        ({"prefill_chip": "h100-sxm", "servers": (3, 2)}, {"qps": 12.0}),  # prompts wait for any of three
        ({"model": "deepseek-v3", "chip": "h200-sxm", "layers": 4, "weights": "fp8", "attention_dp": 8}, {"qps": 20.0}),
    ],
)
def test_the_closed_form_is_within_five_percent(more: dict[str, Any], load: dict[str, float]) -> None:
    service = rl.serving.serve(**{**LLAMA, **more}, **load)
    run = simulate(service, requests=8 * load["concurrency"] if "concurrency" in load else 1000)
    assert float(service.tpot[0]) == pytest.approx(run.mean("tpot_s"), rel=0.05)
    assert float(service.ttft[0]) == pytest.approx(run.mean("ttft_s"), rel=0.05)
    assert float(service.steady.rate[0]) == pytest.approx(run.requests_per_s, rel=0.05)


def test_drafts_come_to_the_tokens_of_the_closed_form() -> None:
    """Those that are drawn let prompts meet by chance, so that so few requests say little of their first tokens."""
    service = rl.serving.serve(**LLAMA, concurrency=8, spec="3:0.7")
    run = simulate(service, requests=100)
    assert float(service.tpot[0]) == pytest.approx(run.mean("tpot_s"), rel=0.05)
    assert float(service.steady.rate[0]) == pytest.approx(run.requests_per_s, rel=0.05)


def test_requests_that_differ_share_the_tokens_of_the_cache() -> None:
    served = rl.serving.deployment("llama-3-8b", "h100-sxm")
    run = simulate(served, trace=rl.serving.made_requests([0, 0], [100, 90000], [10, 10]))
    assert run.room == pytest.approx(served.tokens_that_fit())
    assert run.summary()["cache_most_tokens"] == 112 + 90016


# --- on the command line ----------------------------------------------------------------------------------------------

SERVE = ("serve", "gpt2", "h100-sxm", "--prompt", 64, "--new-tokens", 8)


def test_the_command_simulates_each_load_beside_the_closed_form(run: Run) -> None:
    call = (*SERVE, "--concurrency", "1,4", "--simulate", "--requests", 20, "--ttft", "1s")
    data = json.loads(run(*call, "--json").out)
    assert [each["requests_from"]["users"] for each in data["simulated"]] == [1, 4]
    first = data["simulated"][0]["rows"][0]
    assert first["time"] == "ttft"
    assert first["mean_s"] == pytest.approx(data["rows"][0]["ttft_s"], rel=0.05)
    assert data["simulated"][0]["good"] == 1
    assert "simulated, 20 requests" in run(*call).out


def test_the_command_replays_a_trace(run: Run, tmp_path: Path) -> None:
    (tmp_path / "requests.csv").write_text("arrival,prompt,output\n0,100,5\n1,300,9\n")
    data = json.loads(run("serve", "gpt2", "h100-sxm", "--trace", tmp_path / "requests.csv", "--json").out)
    assert data["sizes"] == {"prompt": 200, "new_tokens": 7}
    assert data["simulated"][0]["requests"] == 2


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((*SERVE, "--requests", 5), "--requests 5 belongs to a simulation"),
        (SERVE[:5], "--prompt and --new-tokens"),
        ((*SERVE, "--trace", "none.csv"), "none.csv: cannot be read"),
    ],
)
def test_what_the_command_cannot_simulate_is_said(run: Run, args: tuple[Any, ...], says: str) -> None:
    result = run(*args)
    assert result.code == 2
    assert says in result.err


@pytest.mark.parametrize("mixed", [True, False])
def test_lengths_that_differ_pull_requests_apart(mixed: bool) -> None:
    """The closed form for a spread of lengths against its simulation; all alike, prompts first come all together."""
    load: dict[str, Any] = {"prompt": 1000, "new_tokens": 200, "concurrency": 32, "mixed": mixed}
    alike, apart = (rl.serving.serve("llama-3-8b", "h100-sxm", **load, spread=spread) for spread in (0.0, 0.2))
    run = rl.serving.simulate(apart, requests=640)
    assert run.mean("tpot_s") == pytest.approx(apart.tpot[0], rel=0.03)
    assert run.requests_per_s == pytest.approx(apart.steady.rate[0], rel=0.05)
    assert run.mean("ttft_s") == pytest.approx(apart.ttft[0], rel=0.25)
    assert mixed or alike.ttft[0] > 5 * apart.ttft[0]
