"""Plans: nothing on a front is beaten, answers are within limits and memory, and a search agrees with one by one."""

from __future__ import annotations

import argparse
import json
import re
import shlex
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import roofline as rl
from roofline.cli import main
from roofline.serving.deployment import deployment, transfer_seconds
from roofline.serving.plans.flags import BACKENDS, Server, launch
from roofline.serving.plans.planning import front
from roofline.serving.repeated import depth_of
from tests.profiles import examples

SMALL: dict[str, Any] = {"prompt": 1000, "new_tokens": 100, "counts": [1, 2], "points": 6, "chunks": [2048]}


@pytest.fixture(scope="module")
def small() -> rl.serving.Plan:
    return rl.serving.plan("llama-3-8b", ["h100-sxm", "l40s"], ttft="1 s", tpot="12 ms", weights=["own", "fp8"],
                           cache=["own"], **SMALL)  # fmt: skip


# --- a deep model from shallow ones -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "layout"),
    [
        ("llama-3-8b", {"tp": 2, "weights": "fp8", "cache": "fp8"}), ("gemma-2-2b", {"pp": 2}),
        ("deepseek-v2-lite", {"attention_dp": 2, "weights": "fp8"}), ("gpt-oss-20b", {"tp": 2}),
    ],
)  # fmt: skip
def test_a_deep_model_lies_on_the_line_through_shallow_ones(
    model: str, layout: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    other, whole = (deployment(model, "h100-sxm", **layout) for _ in range(2))
    assert depth_of(model, None, (), whole.pp) is not None
    read, decodes = np.array([0, 0, 1000, 4096, 777.0]), np.array([1, 64, 0, 33, 500.0])

    def figures(one: Any) -> list[Any]:
        memory = [float(one.memory(stage).total) for stage in range(one.pp)]
        return [one.steps().seconds(read, 100, decodes, 3000, 2), memory, one.sequences_that_fit(4500)]

    lined, ranges = figures(other), other.steps().factor(read, decodes)
    monkeypatch.setattr(sys.modules["roofline.serving.deployment"], "depth_of", lambda *_: None)
    for one, built in zip(lined, figures(whole), strict=True):
        np.testing.assert_allclose(one, built, rtol=1e-12)
    np.testing.assert_allclose(ranges, whole.steps().factor(read, decodes), rtol=1e-9)


def test_a_model_whose_layers_do_not_repeat_is_built_as_it_is() -> None:
    assert depth_of("llama-3-8b", None, (("layers", 3),), 1) is None
    assert depth_of("deepseek-v3", None, (), 2) is None  # 61 layers in two stages


# --- the search -------------------------------------------------------------------------------------------------------


def test_the_best_is_that_of_serving_one_by_one(small: rl.serving.Plan) -> None:
    """Every candidate of one kind of server is served by itself: the same figures, and the same optimum."""
    made = rl.serving.plan("llama-3-8b", ["h100-sxm", "l40s"], ttft="1 s", tpot="12 ms", split=False,
                           weights=["fp8"], cache=["own"], **SMALL)  # fmt: skip
    best = 0.0
    for at, one in enumerate(made.rows.arrangements):
        users = made.rows.users[made.rows.which == at].astype(int).tolist()
        each = one.engine
        served = rl.serving.serve(
            "llama-3-8b", each.chip, prompt=1000, new_tokens=100, concurrency=users, tp=each.tp, pp=each.pp,
            weights=each.weights, cache=each.cache, chunk=each.chunk, ttft="1 s", tpot="12 ms",
        )  # fmt: skip
        rows = made.rows.which == at
        np.testing.assert_allclose(made.rows.ttft[rows], served.ttft, rtol=1e-9)
        np.testing.assert_allclose(made.rows.tpot[rows], served.tpot, rtol=1e-9)
        best = max(best, float((served.tokens_per_s_per_chip * served.meets).max()))
    assert made.best is not None
    assert made.best.tokens_per_s_per_chip == pytest.approx(best, rel=1e-9)


def test_split_servers_are_those_of_serve(small: rl.serving.Plan) -> None:
    split = [at for at, one in enumerate(small.rows.arrangements) if one.reading is not None]
    assert split
    one = small.rows.arrangements[split[0]]
    rows = small.rows.which == split[0]
    assert one.reading is not None
    users = small.rows.users[rows].astype(int).tolist()
    served = rl.serving.serve(
        "llama-3-8b", one.engine.chip, prompt=1000, new_tokens=100, concurrency=users,
        tp=one.engine.tp, pp=one.engine.pp, weights=one.engine.weights, cache=one.engine.cache, chunk=one.engine.chunk,
        prefill_chip=one.reading.chip, prefill_tp=one.reading.tp, servers=one.servers,
    )  # fmt: skip
    np.testing.assert_allclose(small.rows.tpot[rows], served.tpot, rtol=1e-9)
    np.testing.assert_allclose(small.rows.rate[rows], served.steady.rate, rtol=1e-9)


def test_flags_admit_what_the_answer_was_worked_out_with() -> None:
    """Users in a closed loop are a limit; of requests at random they are a mean, which half of the time is exceeded."""
    asked: dict[str, Any] = {"prompt": 200, "new_tokens": 50, "counts": [1], "weights": ["own"], "cache": ["own"],
                             "split": False, "backend": "vllm", "chunks": [2048]}  # fmt: skip
    admitted = {}
    for name, load in (("closed", {"tpot": "10 ms"}), ("random", {"qps": 4.0})):
        made = rl.serving.plan("gpt2", "h100-sxm", points=8, **asked, **load)
        assert made.best is not None
        words = made.launches()[0].command
        admitted[name] = (int(words[words.index("--max-num-seqs") + 1]), made.best)
    (closed, users), (random, mean) = admitted["closed"], admitted["random"]
    assert closed == users.users <= users.running
    assert random == int(mean.running) > 10 * mean.users
    again = rl.serving.serve("gpt2", "h100-sxm", prompt=200, new_tokens=50, qps=4.0, backend="vllm", chunk=2048,
                             max_sequences=random)  # fmt: skip
    assert again.ttft[0] == pytest.approx(mean.ttft, rel=1e-9)


@pytest.mark.parametrize("backend", ["vllm", "sglang", "trtllm"])
def test_a_plan_for_a_backend_is_serving_with_it(backend: str) -> None:
    """Times, memory, ranges and flags are those of the stack; alike servers and such that only read prompts."""
    made = rl.serving.plan("llama-3-8b", "h100-sxm", backend=backend, ttft="1 s", tpot="12 ms", weights=["fp8"],
                           cache=["own"], **SMALL)  # fmt: skip
    kinds = {one.reading is None: at for at, one in enumerate(made.rows.arrangements)}
    assert kinds.keys() == {True, False}
    for at in kinds.values():
        arranged, rows = made.rows.arrangements[at], np.flatnonzero(made.rows.which == at)
        one, apart = arranged.engine, {}
        if arranged.reading is not None:
            apart = {"prefill_chip": "h100-sxm", "prefill_tp": arranged.reading.tp, "servers": arranged.servers}
        served = rl.serving.serve(
            "llama-3-8b", "h100-sxm", prompt=1000, new_tokens=100, concurrency=made.rows.users[rows].astype(int),
            tp=one.tp, pp=one.pp, weights=one.weights, chunk=one.chunk, backend=backend, **apart,
        )  # fmt: skip
        assert served.work.running == made.rows.running[rows[0]]
        names = ("ttft_low_s", "ttft_s", "ttft_high_s", "tpot_low_s", "tpot_s", "tpot_high_s", "rate_per_s")
        for i, row in zip(rows.tolist(), served.records(), strict=True):
            record, copies = made.answer(i).record(), int(made.rows.copies[i])
            assert [record[name] for name in names[:-1]] == pytest.approx([row[name] for name in names[:-1]], rel=1e-9)
            assert record["rate_per_s"] == pytest.approx(row["rate_per_s"] * copies, rel=1e-9)
            # the share of a stack may be for weights and cache alone
            need, static = one.memory(), one.stack is not None and one.stack.static
            beside = float(need.total - need.weights) if static else 0.0
            assert made.answer(i).memory - beside <= one.room * (1 + 1e-9)
            assert made.answer(i).memory <= one.chip.capacity
    assert {each.backend for each in made.launches()} == {backend} == {made.record()["backend"]}
    assert not any("server between steps" in text for text in made.record()["not_modelled"])


def test_what_a_backend_has_not_is_no_answer() -> None:
    """int8 is what an A100 multiplies fastest in, and TensorRT-LLM has none; four bits it has."""
    options = {**SMALL, "prompt": 200, "new_tokens": 20, "counts": [1]}
    formats = {
        name: {one.engine.weights for one in rl.serving.plan(
            "gpt2", "a100-80gb-sxm", backend=name, **options).rows.arrangements}
        for name in ("vllm", "trtllm")
    }  # fmt: skip
    assert formats == {"vllm": {None, "int8", "int4-g128"}, "trtllm": {None, "int4-g128"}}
    with pytest.raises(rl.errors.UsageError, match="trtllm has no weights in int8; it has fp8"):
        rl.serving.plan("gpt2", "a100-80gb-sxm", backend="trtllm", weights=["int8"], **options)
    with pytest.raises(rl.errors.UsageError, match="did you mean vllm"):
        rl.serving.plan("gpt2", "a100-80gb-sxm", backend="vlm", **options)


def test_a_format_without_units_names_those_that_have() -> None:
    with pytest.raises(rl.errors.UsageError, match=r"does not multiply in nvfp4; --weights, .*: own, int8, int4-g128$"):
        rl.serving.plan("gpt2", "a100-80gb-sxm", weights=["nvfp4"], **SMALL)


def test_the_answer_does_not_depend_on_the_points() -> None:
    """The most tokens for each chip come from a certain number of users on: whatever else was looked at, from those."""
    options = {**SMALL, "prompt": 4000, "counts": [1], "weights": ["own"], "cache": ["own"], "chunks": [1024, 8192]}
    few, some, many = (
        rl.serving.plan("llama-3.2-1b", "h100-sxm", ttft="2 s", **{**options, "points": points}).best
        for points in (8, 64, 192)
    )
    assert few is not None
    assert some is not None
    assert many is not None
    assert some.tokens_per_s_per_chip == pytest.approx(many.tokens_per_s_per_chip, rel=1e-9)
    assert few.tokens_per_s_per_chip == pytest.approx(many.tokens_per_s_per_chip, rel=1e-9)
    assert max(few.ttft, some.ttft) <= many.ttft * 1.01


@pytest.mark.parametrize(("reading", "decoding"), [(1, 1), (1, 4), (4, 1), (2, 4)])
def test_a_cache_takes_as_long_to_its_decoder_as_in_serve(reading: int, decoding: int) -> None:
    """Each device of the smaller end has a link: 4,000 tokens of 32 layers, 8 heads of 128 keys and values in bf16."""
    ends = [deployment("llama-3-8b", "h100-sxm", tp=tp) for tp in (reading, decoding)]
    whole = 4000 * 32 * 2 * 8 * 128 * 2
    assert transfer_seconds(*ends, 4000, 50e9) == pytest.approx(whole / min(reading, decoding) / 50e9)


def test_answers_have_the_ranges_of_serve(small: rl.serving.Plan) -> None:
    best = small.best
    assert best is not None
    assert best.arrangement.reading is None
    one = best.engine
    served = rl.serving.serve("llama-3-8b", one.chip, prompt=1000, new_tokens=100, concurrency=int(best.users),
                              tp=one.tp, pp=one.pp, weights=one.weights, cache=one.cache, chunk=one.chunk)  # fmt: skip
    record, row = best.record(), served.records()[0]
    for name in ("ttft_low_s", "ttft_s", "ttft_high_s", "tpot_low_s", "tpot_s", "tpot_high_s"):
        assert record[name] == pytest.approx(row[name], rel=1e-9)


def test_what_binds_a_rate_is_what_fewer_chips_do_not_meet() -> None:
    options = {**SMALL, "counts": range(1, 4), "split": False, "weights": ["own"], "cache": ["own"]}
    made = rl.serving.plan("llama-3-8b", "h100-sxm", qps=20, tpot="10 ms", **options)
    assert made.best is not None
    fewer = made.rows.devices < made.best.devices
    assert made.binding.startswith("--tpot: with ")
    assert f"{made.rows.tpot[fewer].min() * 1e3:.3g} ms" in made.binding


def test_requests_that_come_too_fast_name_as_many_servers_as_answer_them() -> None:
    options = {**SMALL, "split": False, "weights": ["own"], "cache": ["own"]}
    made = rl.serving.plan("llama-3.2-1b", "h100-sxm", qps=5000, **options)
    counts = re.search(r"--counts (\d+):", made.nothing)
    assert counts is not None
    enough = rl.serving.plan("llama-3.2-1b", "h100-sxm", qps=5000, **{**options, "counts": [int(counts[1])]})
    assert enough.best is not None


def test_a_single_token_has_no_time_per_token() -> None:
    made = rl.serving.plan("gpt2", "h100-sxm", **{**SMALL, "prompt": 200, "new_tokens": 1})
    assert made.best is not None
    assert made.best.record()["tokens_per_s_per_user"] is None


def test_every_answer_is_within_memory_and_limits(small: rl.serving.Plan) -> None:
    for at in np.flatnonzero(small.meets).tolist():
        one = small.answer(at)
        assert one.ttft <= 1
        assert one.tpot <= 0.012
        assert one.devices in (1, 2)
        assert one.memory <= one.engine.room * (1 + 1e-9)
    best, other = small.best, small.runner_up
    assert best is not None
    assert other is not None
    assert best.tokens_per_s_per_chip == max(
        small.answer(at).tokens_per_s_per_chip for at in np.flatnonzero(small.meets)
    )
    assert other.tokens_per_s_per_chip <= best.tokens_per_s_per_chip
    assert small.binding


def test_no_point_of_the_front_is_beaten(small: rl.serving.Plan) -> None:
    speed, value = 1 / small.rows.tpot, small.value
    for at in small.front:
        assert small.in_time[at]
        more = small.in_time & (speed >= speed[at]) & (value >= value[at]) & ((speed > speed[at]) | (value > value[at]))
        assert not more.any()


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9), st.booleans()), max_size=30))
@settings(max_examples=examples(100))
def test_a_front_has_all_that_is_not_beaten(points: list[tuple[int, int, bool]]) -> None:
    x, y, among = (np.asarray([point[i] for point in points], dtype=float) for i in range(3))
    chosen = set(front(x, y, among.astype(bool)))
    at = [i for i in range(len(points)) if points[i][2]]
    for i in at:
        beaten = any(x[j] >= x[i] and y[j] >= y[i] and (x[j] > x[i] or y[j] > y[i]) for j in at)
        same = any(x[j] == x[i] and y[j] == y[i] and j in chosen for j in at)
        assert (not beaten) == (i in chosen or same)


def test_a_rate_takes_the_fewest_chips_or_the_cheapest() -> None:
    options = {**SMALL, "counts": range(1, 5), "split": False, "weights": ["own"], "cache": ["own"]}
    few = rl.serving.plan("llama-3-8b", "h100-sxm", qps=20, ttft="2 s", tpot="30 ms", **options)
    many = rl.serving.plan("llama-3-8b", "h100-sxm", qps=40, ttft="2 s", tpot="30 ms", **options)
    assert few.best is not None
    assert many.best is not None
    assert few.best.rate == pytest.approx(20)
    assert few.best.devices <= many.best.devices
    smaller = few.meets & (few.rows.devices < few.best.devices)
    assert not smaller.any()
    priced = rl.serving.plan("llama-3-8b", ["h100-sxm", "l40s"], qps=5, ttft="2 s", tpot="60 ms",
                             prices={"h100-sxm": 100.0, "l40s": 1.0}, **options)  # fmt: skip
    assert priced.best is not None
    assert priced.best.chips == "l40s"
    assert priced.best.cost_per_million == pytest.approx(priced.best.devices / 3600 / 500 * 1e6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tpot": "0.1 ms"}, r"nearest: .* what would: --tpot [0-9.]+ms"),
        ({"prompt": 9 * 10**6}, r"nothing fits; nearest: .* what would: a context of [0-9,]+ tokens, or --counts"),
        ({"qps": 1e6}, r"^1,000,000 requests/s are more than 2 chips answer; .*: --counts [0-9]+: "),
    ],
)
def test_where_nothing_is_found_the_nearest_is_said(options: dict[str, Any], said: str) -> None:
    made = rl.serving.plan("llama-3-8b", "l40s", **{**SMALL, "split": False, "weights": ["own"], **options})
    assert made.best is None
    assert "\n" not in made.nothing
    assert re.search(said, made.nothing)
    with pytest.raises(rl.errors.UsageError, match="no flags"):
        made.launches("vllm")


def test_the_slower_limit_that_is_said_would_do() -> None:
    options = {**SMALL, "split": False, "weights": ["own"]}
    made = rl.serving.plan("llama-3-8b", "l40s", tpot="5 ms", **options)
    slower = made.nothing.split("--tpot ")[1].split(",")[0]
    assert rl.serving.plan("llama-3-8b", "l40s", tpot=slower, **options).best is not None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"prices": {"l4": 1.0}}, "prices have none of h100-sxm"), ({"counts": []}, "0 numbers of chips"),
        ({"counts": [10**12]}, "from 1 to 1,000,000"), ({"weights": []}, "weights: no format given"),
        ({"weights": "fp8"}, "expected a sequence"), ({"prices": {"h100": 2}}, "did you mean h100-sxm"),
        ({"ttft": 0.0}, "limits must be positive"), ({"tpot": "30"}, "has no unit"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(rl.errors.RooflineError, match=said):
        rl.serving.plan("llama-3-8b", "h100-sxm", **{**SMALL, **options})


def test_a_chip_without_a_figure_is_left_out_and_said_and_one_twice_is_one() -> None:
    options = {**SMALL, "split": False, "weights": ["own"], "counts": [1]}
    alone = rl.serving.plan("llama-3.2-1b", "t4", **options)
    made = rl.serving.plan("llama-3.2-1b", ["xeon-8480", "t4", "t4"], **options)
    assert made.rows.size == alone.rows.size
    assert "xeon-8480 has no published memory capacity; give one with --set" in made.left_out["xeon-8480"]
    with pytest.raises(rl.errors.MissingFigure, match="--set memory_capacity"):
        rl.serving.plan("llama-3.2-1b", "xeon-8480", **options)


def test_a_format_that_a_model_has_is_its_own() -> None:
    options = {**SMALL, "split": False, "counts": [1]}
    own, same = (rl.serving.plan("llama-3.2-1b", "t4", weights=[name], **options) for name in ("own", "bf16"))
    assert own.best.record() == same.best.record()


def test_many_chips_are_searched_within_memory() -> None:
    made = rl.serving.plan("llama-3.2-1b", "t4", **{**SMALL, "weights": ["own"], "cache": ["own"], "counts": [10**5]})
    assert made.best.devices == 10**5


# --- launch flags -----------------------------------------------------------------------------------------------------

#: Options and what they take, as each backend's documentation and source list them (links: plans/flags.py).
KNOWN: dict[str, dict[str, Any]] = {
    "vllm": {
        "--tensor-parallel-size": int, "--pipeline-parallel-size": int, "--data-parallel-size": int,
        "--enable-expert-parallel": None, "--max-num-seqs": int, "--max-num-batched-tokens": int,
        "--max-model-len": int, "--block-size": ("1", "8", "16", "32", "64", "128", "256"),
        "--gpu-memory-utilization": float,
        "--quantization": ("awq", "fp8", "gptq", "modelopt", "modelopt_fp4", "compressed-tensors", "mxfp4"),
        "--kv-cache-dtype": ("auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"), "--kv-transfer-config": json.loads,
    },
    "sglang": {
        "--model-path": str, "--tp-size": int, "--pp-size": int, "--ep-size": int, "--dp-size": int,
        "--enable-dp-attention": None, "--max-running-requests": int, "--chunked-prefill-size": int,
        "--context-length": int, "--page-size": int, "--mem-fraction-static": float, "--enable-mixed-chunk": None,
        "--quantization": ("awq", "fp8", "gptq", "modelopt_fp8", "modelopt_fp4", "w8a8_int8", "w8a8_fp8", "mxfp4"),
        "--kv-cache-dtype": ("auto", "fp8_e5m2", "fp8_e4m3", "bf16", "bfloat16", "fp4_e2m1"),
        "--disaggregation-mode": ("null", "prefill", "decode"),
    },
    "trtllm": {
        "--tp_size": int, "--pp_size": int, "--ep_size": int, "--max_batch_size": int, "--max_num_tokens": int,
        "--enable_chunked_prefill": None, "--max_seq_len": int, "--kv_cache_free_gpu_memory_fraction": float,
        "--server_role": ("CONTEXT", "GENERATION"), "--config": str,
    },
}  # fmt: skip
STARTS = {"vllm": ["vllm", "serve"], "sglang": ["python", "-m", "sglang.launch_server"], "trtllm": ["trtllm-serve"]}


def parsed(backend: str, text: str) -> argparse.Namespace:
    """Read a command back with the options that the backend knows, and no others."""
    reader = argparse.ArgumentParser(exit_on_error=False, allow_abbrev=False)
    if backend != "sglang":
        reader.add_argument("model")
    for name, kind in KNOWN[backend].items():
        if kind is None:
            reader.add_argument(name, action="store_true")
        else:
            reader.add_argument(name, **({"choices": kind} if isinstance(kind, tuple) else {"type": kind}))
    words = shlex.split(text[text.index(STARTS[backend][0]) :].replace("\\\n", " "))
    start = STARTS[backend]
    assert words[: len(start)] == start
    return reader.parse_args(words[len(start) :])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "server",
    [
        Server("org/model", tp=4, weights="fp8", cache="fp8", running=100, chunk=4096, context=4500),
        Server("org/model", tp=1, attention_dp=8, ep=8, weights="nvfp4", cache="fp8", running=800, chunk=2048),
        Server("org/model", tp=2, pp=2, weights="int4-g128", role="prefill"), Server("org/model", tp=8, role="decode"),
        Server("org/model", tp=8, ep=8), Server("org/model", weights="int8", cache="int8"),
        Server("org/model", block=24), Server("org/model", block=10**6),
    ],
)  # fmt: skip
def test_flags_are_those_that_the_backend_has(server: Server, backend: str) -> None:
    made = launch(server, backend)
    got = parsed(backend, made.text)
    assert all(len(line) <= 80 for line in made.text.splitlines())
    ranks = server.attention_dp if backend != "sglang" else 1
    tp = {"vllm": "tensor_parallel_size", "sglang": "tp_size", "trtllm": "tp_size"}[backend]
    running = {"vllm": "max_num_seqs", "sglang": "max_running_requests", "trtllm": "max_batch_size"}[backend]
    tokens = {"vllm": "max_num_batched_tokens", "sglang": "chunked_prefill_size", "trtllm": "max_num_tokens"}[backend]
    assert getattr(got, tp) == server.tp * (1 if backend == "vllm" else server.attention_dp)
    assert getattr(got, running) * ranks == server.running
    assert getattr(got, tokens) == server.chunk * (server.attention_dp if backend == "sglang" else 1)


def test_what_a_backend_cannot_do_is_said() -> None:
    mixed = Server("m", tp=2, attention_dp=4, ep=2)
    assert any("not 4 of 2" in note for note in launch(mixed, "trtllm").notes)
    assert any("not over 2" in note for note in launch(mixed, "vllm").notes)
    assert any("no cache in int8" in note for note in launch(Server("m", cache="int8"), "sglang").notes)
    assert any("no weights in int8" in note for note in launch(Server("m", weights="int8"), "trtllm").notes)
    with pytest.raises(rl.errors.UsageError, match="did you mean vllm"):
        launch(mixed, "vlm")


# --- the command ------------------------------------------------------------------------------------------------------

CALL = shlex.split(
    "plan llama-3-8b --chips h100-sxm,l40s --prompt 1000 --new-tokens 100 --tpot 12ms --counts 1 --chunk 2048 "
    "--cache own --weights own,fp8"
)


def test_the_command_prints_the_best_and_its_flags(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CALL, "--prices", "h100-sxm=2.5,l40s=0.9"]) == 0
    out = capsys.readouterr().out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert "bound by" in out
    assert "vllm serve meta-llama/" in out
    assert main([*CALL, "--flags", "sglang"]) == 0
    flags = capsys.readouterr().out
    parsed("sglang", flags[flags.index("python") :].split("\n#")[0].strip())
    assert "vllm" not in flags
    assert main([*CALL, "--backend", "trtllm"]) == 0
    out = capsys.readouterr().out
    assert "trtllm-serve" in out
    assert "vllm" not in out
    assert "sglang" not in out


def test_the_only_token_has_no_rate(capsys: pytest.CaptureFixture[str]) -> None:
    words = "plan gpt2 --chips h100-sxm --prompt 200 --new-tokens 1 --counts 1 --weights own --chunk 2048 --no-split"
    assert main(words.split()) == 0
    assert "inf" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--flags", "vlm"], "--flags vlm: allowed"), (["--prices", "h100-sxm"], "expected a chip and a price"),
        (["--ttft", "2"], "--ttft"), (["--counts", "0"], "--counts"),
        (["--chips", "h100-sxm,,"], "a comma with no name beside it"),
    ],
)  # fmt: skip
def test_the_command_refuses_in_a_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*CALL, *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
