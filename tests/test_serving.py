"""The cache of keys and values, whole requests, and the most that fits, against published and hand-made figures."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.counting.memory import memory

GIB = 2**30


@cache
def decoder(name: str, **more: Any) -> rl.Graph:
    return rl.model(name, phase="decode", **more)


# --- kinds of layers --------------------------------------------------------------------------------------------------


def test_windows_stop_growing() -> None:
    kept = rl.serving.kv_cache(decoder("gpt-oss-20b"), [64, 128, 129, 5000])
    full, window = (12 * 2 * 8 * 64 * 2,) * 2
    assert kept.bytes_per_token == full + window
    assert list(kept.ideal) == [(full * c + window * min(c, 128)) for c in (64, 128, 129, 5000)]
    assert list(kept.growth) == [full + window, full, full, full]
    assert {part.kind: part.window for part in kept.parts} == {"window": 128, "full": None}


def test_a_window_over_blocks_touches_one_more() -> None:
    kept = rl.serving.kv_cache(decoder("gemma-2-2b", layers=1), [4096, 4097, 8192], block=16)
    one = float(kept.bytes_per_token)
    assert list(np.asarray(kept.reserved) / one / 16) == [256, 257, 257]
    assert list(np.asarray(kept.used) / one) == [4096, 4096, 4096]


def test_any_model_can_be_given_a_window() -> None:
    kept = rl.serving.kv_cache(decoder("llama-3-8b"), [100, 5000], window=1024)
    assert list(kept.ideal) == [100 * 131072, 1024 * 131072]


def test_states_do_not_grow_and_are_never_shared() -> None:
    b = rl.ops.Builder("recurrent", "bf16")
    batch = rl.ops.symbol("B")
    state = b.cache("state", (batch, 8, 64))
    keys = b.cache("k_cache", (batch, 2, rl.ops.symbol("C"), 64))
    x = b.op("add", b.op("mul_scalar", state), b.op("mul_scalar", state))
    graph = b.graph([x, b.op("mul_scalar", keys)], items=batch, item="token")
    kept = rl.serving.kv_cache(graph, [16, 1600], batch=4, shared_prefix=16, block=16)
    assert kept.bytes_per_sequence[0] == 8 * 64 * 2
    assert list(kept.reserved) == [4 * 1024 + 256 * 16, 4 * 1024 + 256 * (16 + 4 * 1584)]


def test_an_encoders_keys_depend_on_its_input() -> None:
    kept = rl.serving.kv_cache(decoder("t5-small"), [10, 20], batch=2, S=512)
    assert list(kept.bytes_per_sequence) == [24576 * 512] * 2
    assert list(kept.ideal) == [2 * 24576 * (512 + c) for c in (10, 20)]


def test_a_prefill_counts_its_own_positions() -> None:
    ours = rl.serving.kv_cache(rl.model("gpt-oss-20b", phase="prefill"), [64, 4096], batch=2).ideal
    assert list(ours) == list(rl.serving.kv_cache(decoder("gpt-oss-20b"), [64, 4096], batch=2).ideal)


@pytest.mark.parametrize("name", ["llama-3-8b", "gemma-2-2b", "gpt-oss-20b", "deepseek-v2-lite", "gpt2"])
def test_the_ideal_is_what_memory_counts(name: str) -> None:
    contexts = np.array([1, 100, 1000 if name == "gpt2" else 5000])  # no step of gpt2 reads more than 1,024
    ours = rl.serving.kv_cache(decoder(name), contexts, batch=3).ideal
    assert ours == pytest.approx(memory(decoder(name), {"B": 3, "C": contexts}).kv_cache)


# --- blocks and prefixes, by hand -------------------------------------------------------------------------------------


def by_hand(context: int, batch: int, block: int, prefix: int) -> tuple[int, int, int]:
    """Tokens ideal, used and reserved, one block at a time."""
    shared = prefix // block
    own = [min(block, context - start) for start in range(shared * block, context, block)]
    return prefix + batch * (context - prefix), shared * block + batch * sum(own), block * (shared + batch * len(own))


@pytest.mark.parametrize("context", [1, 15, 16, 17, 1000, 2048])
@pytest.mark.parametrize(("batch", "prefix"), [(1, 0), (1, 1), (7, 0), (7, 1), (7, 15), (7, 17), (7, 1000)])
def test_blocks_by_hand(context: int, batch: int, prefix: int) -> None:
    prefix = min(prefix, context)
    kept = rl.serving.kv_cache(decoder("llama-3-8b"), context, batch=batch, block=16, shared_prefix=prefix)
    tokens = [value / 131072 for value in (kept.ideal, kept.used, kept.reserved)]
    assert tuple(tokens) == by_hand(context, batch, 16, prefix)
    assert kept.waste == pytest.approx(1 - tokens[1] / tokens[2])


def test_sharing_saves_whole_blocks() -> None:
    kept = rl.serving.kv_cache(decoder("llama-3-8b"), 1000, batch=8, block=16, shared_prefix=500)
    assert kept.saved == 7 * (500 // 16) * 16 * 131072
    assert rl.serving.kv_cache(decoder("llama-3-8b"), 1000, batch=8, block=16).saved == 0


def test_a_vector_is_the_points_one_by_one() -> None:
    graph, contexts, batches = decoder("gemma-2-2b"), [500, 4097, 9000], [1, 6]
    kept = rl.serving.kv_cache(graph, contexts, batch=batches, block=32, shared_prefix=450)
    assert np.shape(kept.reserved) == (2, 3)
    for i, batch in enumerate(batches):
        for j, context in enumerate(contexts):
            one = rl.serving.kv_cache(graph, context, batch=batch, block=32, shared_prefix=450)
            assert (kept.ideal[i, j], kept.used[i, j], kept.reserved[i, j]) == (one.ideal, one.used, one.reserved)


def test_records_and_frames() -> None:
    kept = rl.serving.kv_cache(decoder("llama-3-8b"), [100, 200], batch=[1, 2], block=16)
    frame = kept.frame()
    assert len(frame) == 4
    assert list(frame["context"]) == [100, 200, 100, 200]
    record = json.loads(json.dumps(kept.record()))
    assert record["bytes_per_token"] == 131072
    assert len(record["rows"]) == 4
    assert "128.00 KiB per token" in repr(kept)
    assert "blocks of 16" in repr(rl.serving.kv_cache(decoder("llama-3-8b"), 9, block=16))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"block": 0}, "block=0: expected a whole number from 1"),
        ({"block": 1.5}, "block=1.5"),
        ({"shared_prefix": -1}, "shared_prefix=-1"),
        ({"shared_prefix": 101}, "longer than the context of 100"),
        ({"window": 0}, "window=0"),
        ({"batch": 0}, r"batch \(B\)=0"),
        ({"context": 0}, r"context \(C\)=0"),
        ({"Q": 3}, "unknown size 'Q'"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=says):
        rl.serving.kv_cache(decoder("llama-3-8b"), **{"context": 100, **options})


def test_a_program_without_a_cache_is_refused() -> None:
    with pytest.raises(rl.errors.UsageError, match=r"keeps no cache.*decode"):
        rl.serving.kv_cache(rl.model("llama-3-8b", phase="forward"))
    with pytest.raises(rl.errors.UsageError, match="expected a program: a Graph, a shipped name"):
        rl.serving.kv_cache(7)  # type: ignore[arg-type]


# --- requests ---------------------------------------------------------------------------------------------------------


@cache
def answer(**more: Any) -> Any:
    return rl.serving.request(
        "llama-3-8b", "h100-sxm", **{"prompt": 1000, "new_tokens": 100, "batch": 4, "block": 16, **more}
    )


def test_a_request_is_a_prefill_and_its_decode_steps() -> None:
    one = answer()
    prefill = rl.estimate(rl.model("llama-3-8b", phase="prefill"), "h100-sxm", mode="graph", B=4, S=1000)
    steps = [rl.estimate(decoder("llama-3-8b"), "h100-sxm", mode="graph", B=4, C=c) for c in (1001, 1050, 1099)]
    assert one.time_to_first_token == prefill.time
    assert [one.steps[i] for i in (0, 49, 98)] == pytest.approx([step.time for step in steps])
    assert one.time == pytest.approx(prefill.time + one.steps.sum())
    assert len(one.steps) == 99
    assert one.tokens_per_s == pytest.approx(4 * 100 / one.time)
    assert one.low == pytest.approx(prefill.low + one.decode.low.sum())
    assert one.low < one.time < one.high


def test_memory_grows_by_the_cache() -> None:
    one = answer()
    kept = np.asarray(one.memory.kv_cache)
    assert kept[0] == 4 * 63 * 16 * 131072
    assert kept[-1] == 4 * 69 * 16 * 131072
    step = memory(decoder("llama-3-8b"), {"B": 4, "C": 1099})
    assert one.memory.total[-1] == pytest.approx(step.total - step.kv_cache + kept[-1])
    assert one.peak == max(one.memory.total)
    assert one.fits


def test_one_token_is_a_prefill() -> None:
    one = answer(new_tokens=1)
    assert one.decode is None
    assert one.time == one.time_to_first_token
    assert one.time_per_token is None
    assert one.percentile(99) is None
    assert json.loads(json.dumps(one.record()))["time_per_token_s"] is None


def test_percentiles_are_those_of_the_steps() -> None:
    one = answer()
    assert one.percentile(0) == one.steps.min()
    assert one.percentile(100) == one.steps.max()
    assert one.percentile(50) == pytest.approx(np.median(one.steps))
    with pytest.raises(rl.errors.UsageError, match="percentile"):
        one.percentile(101)


def test_programs_of_ones_own_are_taken() -> None:
    first, then = (
        rl.passes.cast(rl.model("llama-3-8b", phase=phase), weights="int8") for phase in ("prefill", "decode")
    )
    ours = rl.serving.request(
        prefill=first, decode=then, chip="h100-sxm", prompt=1000, new_tokens=100, batch=4, block=16
    )
    assert ours.time == answer(weights="int8").time
    assert ours.time < answer().time
    assert ours.memory.weights[0] < answer().memory.weights[0]


def test_a_shared_prefix_saves_memory_only() -> None:
    shared = answer(shared_prefix=512)
    assert shared.time == answer().time
    assert shared.peak == answer().peak - 3 * 512 * 131072
    assert any("shared prefix" in note for note in shared.not_modelled)


def test_a_request_as_data() -> None:
    one = answer()
    frame = one.frame()
    assert len(frame) == 100
    assert frame["done_s"].iloc[-1] == pytest.approx(one.time)
    parts = [name for name in frame if name.endswith("_bytes") and not name.startswith(("cache_", "total"))]
    assert list(frame[parts].sum(axis=1) + frame["cache_reserved_bytes"]) == pytest.approx(list(frame["total_bytes"]))
    record = json.loads(json.dumps(one.record(), allow_nan=False))
    assert record["decode_steps"] == 99
    assert len(record["rows"]) == 64
    assert record["rows"][-1]["token"] == 100
    assert sum(record["memory_bytes"].values()) == record["peak_bytes"]
    assert "to the first of 100 tokens" in repr(one)


def test_a_request_that_does_not_fit_says_so() -> None:
    large = rl.serving.request("llama-3-70b", "h100-sxm", prompt=100, new_tokens=2)
    assert not large.fits
    assert "does not fit" in repr(large)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"prompt": 0}, "prompt=0: expected a whole number from 1"),
        ({"new_tokens": 0}, "new_tokens=0"),
        ({"new_tokens": 10**9}, "131,072"),
        ({"batch": [1, 2]}, "batch="),
        ({"shared_prefix": 1001}, "longer than the prompt of 1000"),
        ({"shared_prefix": None}, "shared_prefix=None: expected a whole number"),
        ({"block": "x"}, "block='x'"),
        ({"program": None}, "a program by name, with both phases, or both"),
        ({"chip": None}, "no chip given"),
        ({"prefill": 1}, "a program by name, with both phases, or both"),
    ],
)
def test_requests_that_cannot_be_are_refused(options: dict[str, Any], says: str) -> None:
    told = {"program": "llama-3-8b", "chip": "h100-sxm", "prompt": 1000, "new_tokens": 8, **options}
    with pytest.raises(rl.errors.UsageError, match=says):
        rl.serving.request(**told)


def test_programs_that_do_not_belong_together_are_refused() -> None:
    first, then = rl.model("llama-3-8b", phase="prefill"), decoder("gpt2")
    with pytest.raises(rl.errors.UsageError, match="llama-3-8b and decode of gpt2 are not the same model"):
        rl.serving.request(prefill=first, decode=then, chip="h100-sxm", prompt=10, new_tokens=2)
    with pytest.raises(rl.errors.UsageError, match="no symbol S"):
        rl.serving.request(prefill=decoder("gpt2"), decode=decoder("gpt2"), chip="h100-sxm", prompt=10, new_tokens=2)
    with pytest.raises(rl.errors.UsageError, match="layers=8 belongs to a program given by name"):
        rl.serving.request(
            prefill=first, decode=decoder("llama-3-8b"), chip="h100-sxm", prompt=9, new_tokens=2, layers=8
        )


# --- the most that fits -----------------------------------------------------------------------------------------------


def room_for(kept: rl.serving.KVCache, graph: rl.Graph, batch: int) -> float:
    sizes = kept.grid.values
    plain = memory(graph, {"B": batch, "C": sizes["C"]})
    return float(plain.total - plain.kv_cache + kept.reserved)


@pytest.mark.parametrize("block", [None, 16])
@pytest.mark.parametrize("prefix", [0, 1000])
def test_one_more_would_not_fit(block: int | None, prefix: int) -> None:
    graph, capacity = decoder("llama-3-8b"), rl.chip("h100-sxm").capacity
    most = rl.serving.largest_concurrency(graph, "h100-sxm", context=5000, block=block, shared_prefix=prefix)
    longest = rl.serving.largest_context(graph, "h100-sxm", batch=20, block=block, shared_prefix=prefix)
    for found, context, batch in ((most, 5000, most.value + 1), (longest, longest.value + 1, 20)):
        assert found.memory.total <= capacity
        assert found.limit == "memory"
        more = rl.serving.kv_cache(graph, context, batch=batch, block=block, shared_prefix=prefix)
        assert room_for(more, graph, batch) > capacity


def test_limits_of_memory_and_formats() -> None:
    plain = rl.serving.largest_context("llama-3-8b", "h100-sxm", batch=8)
    assert rl.serving.largest_context("llama-3-8b", "h100-sxm", batch=8, memory_limit="40 GiB").value < plain.value
    assert rl.serving.largest_context("llama-3-8b", "h100-sxm", batch=8, cache="int8").value > 1.9 * plain.value
    assert rl.serving.largest_context("llama-3-8b", "h100-sxm", batch=8, weights="int8").value > plain.value


def test_a_window_makes_contexts_endless() -> None:
    windows = decoder("gemma-2-2b", layers=1)
    assert {part.kind for part in rl.serving.kv_cache(windows).parts} == {"window"}
    found = rl.serving.largest_context(windows, "h100-sxm")
    assert found.limit == "size"
    assert found.value == 2**30


def test_a_chunk_of_a_prompt_takes_activations() -> None:
    plain, more = (rl.serving.largest_concurrency("llama-3-8b", "h100-sxm", context=8192, chunk=c) for c in (0, 8192))
    need = memory(rl.model("llama-3-8b", phase="prefill"), {"B": 1, "S": 8192})
    assert more.memory.activations == need.activations > plain.memory.activations
    assert more.value == plain.value - 1
    pair = rl.model("llama-3-8b", phase="prefill")
    same = rl.serving.largest_concurrency(decoder("llama-3-8b"), "h100-sxm", context=8192, chunk=8192, prefill=pair)
    assert same.value == more.value
    with pytest.raises(rl.errors.UsageError, match="which program reads it"):
        rl.serving.largest_context(decoder("llama-3-8b"), "h100-sxm", chunk=2048)
    with pytest.raises(rl.errors.UsageError, match="chunk=-1"):
        rl.serving.largest_context("llama-3-8b", "h100-sxm", chunk=-1)


def test_the_most_as_data() -> None:
    found = rl.serving.largest_concurrency("llama-3-8b", "h100-sxm", context=8192, block=16)
    (record,) = json.loads(json.dumps(found.record()))["rows"]
    assert record["batch"] == record["value"] == found.value
    assert record["memory_bytes"]["total"] <= record["room_bytes"]
    assert "sequences at a context of 8,192" in repr(found)
    assert "positions at batch 8" in repr(rl.serving.largest_context("llama-3-8b", "h100-sxm", batch=8))


def test_what_does_not_fit_says_what_would() -> None:
    with pytest.raises(
        rl.errors.DoesNotFit, match=r"kv_cache 122\.07.*what would fit: --cache int8 .*, or --tp 2 .*, or -C 5"
    ):
        rl.serving.largest_concurrency("llama-3-8b", "h100-sxm", context=10**6)
    with pytest.raises(
        rl.errors.DoesNotFit, match=r"--weights int8 .*--tp 2 .*in Python keywords of rl.what_if"
    ) as caught:
        rl.serving.largest_context("llama-3-70b", "h100-sxm")
    assert "\n" not in str(caught.value)
    with pytest.raises(rl.errors.DoesNotFit, match="what would fit: -B "):
        rl.serving.largest_context("llama-3-8b", "h100-sxm", batch=10**6)


def test_the_context_that_is_said_to_fit_does() -> None:
    with pytest.raises(rl.errors.DoesNotFit) as caught:
        rl.serving.largest_concurrency("llama-3-8b", "h100-sxm", context=10**6, block=16)
    said = int(str(caught.value).split("-C ")[1].split(" ")[0])
    assert rl.serving.largest_context("llama-3-8b", "h100-sxm", block=16).value == said


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: rl.serving.largest_context("llama-3-8b", "h100-sxm", batch=0), "batch=0"),
        (lambda: rl.serving.largest_context("llama-3-8b", "h100-sxm", shared_prefix="x"), "shared_prefix='x'"),
        (lambda: rl.serving.largest_context(7, "h100-sxm"), "expected a program: a Graph, a shipped name.*; given 7"),  # type: ignore[arg-type]
        (lambda: rl.serving.largest_concurrency("llama-3-8b", "h100-sxm", context=1.5), "context=1.5"),
        (
            lambda: rl.serving.largest_concurrency("llama-3-8b", "h100-sxm", context=8, shared_prefix=9),
            "longer than the context",
        ),
        (lambda: rl.serving.largest_concurrency(decoder("gpt2").bind(B=1), "h100-sxm", context=8), "no symbol B"),
        (lambda: rl.serving.largest_context("llama-3-8b", "h100-sxm", memory_limit="0 GiB"), "limits must be positive"),
    ],
)
def test_limits_that_cannot_be_are_refused(call: Any, says: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=says):
        call()


# --- one mechanism for formats ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["int8", "fp8", "int4"])
def test_a_narrow_cache_counts_its_scales_however_it_is_asked_for(cache: str) -> None:
    changed = rl.what_if("llama-3-8b", phase="decode", cache=cache)
    by_name = rl.serving.kv_cache("llama-3-8b", 1000, cache=cache)
    assert by_name.ideal == rl.serving.kv_cache(changed, 1000).ideal
    most = rl.serving.largest_context("llama-3-8b", "h100-sxm", batch=8, cache=cache)
    assert most.value == rl.serving.largest_context(changed, "h100-sxm", batch=8).value


def test_a_cache_in_int8_by_hand() -> None:
    # Llama-3-8B: 32 layers, keys and values of 8 heads, 128 bytes and a 16-bit scale each.
    assert rl.serving.kv_cache("llama-3-8b", 1000, cache="int8").ideal == 1000 * 32 * 2 * 8 * (128 + 2) == 66_560_000
