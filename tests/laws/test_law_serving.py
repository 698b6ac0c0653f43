"""Laws of serving: reserved holds used holds ideal, more tokens never take less, a request is the sum of its parts."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.counting.memory import memory

LAW = settings(deadline=None, max_examples=examples(25), derandomize=True, database=None)
#: Room for rounding of float64 sums.
TINY = 1e-12

#: Full, windowed and mixed layers, latents, an encoder's keys.
MODELS = ("llama-3-8b", "gemma-2-2b", "gpt-oss-20b", "deepseek-v2-lite")

contexts = st.integers(1, 20_000)
batches = st.integers(1, 300)
blocks = st.one_of(st.none(), st.integers(1, 300))


@cache
def load(name: str, phase: str = "decode", **more: Any) -> rl.Graph:
    return rl.model(name, phase=phase, layers=2, **more)


@pytest.mark.parametrize("name", MODELS)
@LAW
@given(context=contexts, batch=batches, block=blocks, data=st.data())
def test_reserved_holds_used_holds_ideal(name: str, context: int, batch: int, block: int | None, data: Any) -> None:
    prefix = data.draw(st.integers(0, context), label="prefix")
    kept = rl.serving.kv_cache(load(name), context, batch=batch, block=block, shared_prefix=prefix)
    assert kept.reserved >= kept.used >= kept.ideal > 0
    assert 0 <= kept.waste < 1
    if block is None:
        assert kept.reserved == kept.used == kept.ideal
    plain = memory(load(name), {"B": batch, "C": context}).kv_cache
    assert kept.ideal <= plain
    assert rl.serving.kv_cache(load(name), context, batch=batch).ideal == plain


@pytest.mark.parametrize("name", MODELS)
@LAW
@given(context=contexts, batch=batches, block=blocks, data=st.data())
def test_a_token_or_a_sequence_more_never_takes_less(
    name: str, context: int, batch: int, block: int | None, data: Any
) -> None:
    prefix = data.draw(st.integers(0, context), label="prefix")
    steps = np.arange(context, context + 40)
    options: dict[str, Any] = {"block": block, "shared_prefix": prefix}
    growing = rl.serving.kv_cache(load(name), steps, batch=batch, **options)
    wider = rl.serving.kv_cache(load(name), context, batch=np.arange(batch, batch + 40), **options)
    for kept in (growing, wider):
        for values in (kept.ideal, kept.used, kept.reserved):
            assert np.all(np.diff(values) >= 0)


@pytest.mark.parametrize("name", MODELS)
@LAW
@given(context=contexts, batch=batches, block=blocks, data=st.data())
def test_a_longer_prefix_never_takes_more(name: str, context: int, batch: int, block: int | None, data: Any) -> None:
    long = data.draw(st.integers(0, context), label="long")
    short = data.draw(st.integers(0, long), label="short")
    some, more = (
        rl.serving.kv_cache(load(name), context, batch=batch, block=block, shared_prefix=prefix)
        for prefix in (short, long)
    )
    assert more.ideal <= some.ideal
    assert more.reserved <= some.reserved
    assert more.saved >= some.saved >= 0


#: Bytes of a head of 128 with its scale (and zero point, in int4), where bf16 takes 256.
ROWS = {"int8": 128 + 2, "fp8": 128, "int4": 64 + 4}


@LAW
@given(context=contexts, batch=batches, width=st.sampled_from(sorted(ROWS)))
def test_a_narrower_cache_takes_its_share(context: int, batch: int, width: str) -> None:
    wide, narrow = (
        rl.serving.kv_cache(load("llama-3-8b"), context, batch=batch, block=16, cache=fmt) for fmt in ("bf16", width)
    )
    assert narrow.reserved * 256 == wide.reserved * ROWS[width]


@pytest.mark.parametrize("name", MODELS)
@settings(LAW, max_examples=examples(8))
@given(prompt=st.integers(1, 4000), tokens=st.integers(1, 200), batch=st.integers(1, 64), block=blocks, data=st.data())
def test_a_request_is_the_sum_of_its_parts(
    name: str, prompt: int, tokens: int, batch: int, block: int | None, data: Any
) -> None:
    prefix = data.draw(st.integers(0, prompt), label="prefix")
    one = rl.serving.request(
        prefill=load(name, "prefill"), decode=load(name), chip="h100-sxm", prompt=prompt, new_tokens=tokens,
        batch=batch, block=block, shared_prefix=prefix,
    )  # fmt: skip
    least = float(one.steps.min()) if one.steps.size else 0.0
    assert one.time >= (one.time_to_first_token + (tokens - 1) * least) * (1 - TINY)
    assert one.low <= one.time <= one.high
    assert np.all(np.diff(np.asarray(one.memory.kv_cache)) >= 0)
    assert np.all(np.diff(np.asarray(one.memory.total)[1:]) >= 0)
    assert one.peak >= max(one.memory.total) * (1 - TINY)


@settings(LAW, max_examples=examples(10))
@given(prompt=st.integers(1, 4000), tokens=st.integers(1, 100), more=st.integers(1, 100), batch=st.integers(1, 64))
def test_more_tokens_extend_a_request(prompt: int, tokens: int, more: int, batch: int) -> None:
    """The tokens that both have in common are the same."""
    short, long = (
        rl.serving.request(
            prefill=load("llama-3-8b", "prefill"),
            decode=load("llama-3-8b"),
            chip="a100-80gb-sxm",
            prompt=prompt,
            new_tokens=n,
            batch=batch,
            block=16,
        )
        for n in (tokens, tokens + more)
    )
    assert long.time > short.time
    assert long.peak >= short.peak
    assert np.allclose(long.token_times[:tokens], short.token_times, rtol=TINY)


@settings(LAW, max_examples=examples(15))
@given(size=st.integers(1, 50_000), block=blocks, room=st.floats(2.5, 300))
def test_the_most_fits_and_one_more_does_not(size: int, block: int | None, room: float) -> None:
    graph = load("gemma-2-2b")
    options: dict[str, Any] = {"block": block, "memory_limit": f"{room:.3f} GiB"}
    for find, given_ in (
        (rl.serving.largest_context, {"batch": min(size, 3000)}),
        (rl.serving.largest_concurrency, {"context": size}),
    ):
        try:
            found = find(graph, "h100-sxm", **given_, **options)
        except rl.errors.DoesNotFit:
            continue
        sizes = {"B": found.cache.grid.values["B"], "C": found.cache.grid.values["C"]}
        assert found.memory.total <= found.room
        sizes["C" if found.what == "context" else "B"] += 1
        need, kept = memory(graph, sizes), rl.serving.kv_cache(graph, sizes["C"], batch=sizes["B"], block=block)
        assert need.total - need.kv_cache + kept.reserved > found.room
