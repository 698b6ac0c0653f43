"""Failed allocations turned into the size that caused them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import roofline as rl

GIB = 2**30


@given(tokens=st.integers(1, 10**7), vocab=st.integers(1, 10**6), dtype=st.sampled_from(["fp32", "bf16", "int8"]))
def test_the_size_is_found_again(tokens: int, vocab: int, dtype: str) -> None:
    found = rl.diagnosis.explain_oom(tokens * vocab * float(rl.ops.dtype(dtype).bytes), dtype, vocab=vocab)
    assert found.value == pytest.approx(tokens)
    assert found.low == found.value == found.high


@pytest.mark.parametrize(
    ("message", "size"),
    [
        ("CUDA out of memory. Tried to allocate 58.15 GiB (GPU 0; 79.15 GiB total capacity)", 58.15 * GIB),
        ("torch.OutOfMemoryError: HIP out of memory. Tried to allocate 20.00 MiB. GPU 0 has", 20 * 2**20),
        ("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 62438000000 bytes.", 62438000000),
        ("RESOURCE_EXHAUSTED: Attempting to allocate 1.50GiB. That was not possible.", 1.5 * GIB),
        ("Failed to allocate memory of 2,048 MB", None),
        ("failed to allocate 2.5 gib", 2.5 * GIB),
        ("2 GiB", 2 * GIB),
        (4096, 4096),
    ],
)
def test_messages_of_many_makers(message: str | float, size: float | None) -> None:
    assert rl.diagnosis.explain_oom(message).bytes == pytest.approx(size or 2048e6)


def test_the_message_is_rounded_and_the_range_says_so() -> None:
    found = rl.diagnosis.explain_oom("Tried to allocate 58.15 GiB", vocab=76_032)
    assert found.low < found.value < found.high
    assert found.high - found.low == pytest.approx(0.01 * GIB / (76_032 * 4))


@pytest.mark.parametrize(
    ("sizes", "missing", "what"),
    [
        ({"vocab": 32_000}, "tokens", "logits"),
        ({"batch": 8, "heads": 32}, "length", "attention scores"),
        ({"kv_heads": 8, "head_dim": 128, "layers": 32}, "tokens", "KV cache"),
        ({"hidden": 4096}, "tokens", "activations"),
        ({"channels": 3, "height": 224, "width": 224}, "batch", "images"),
        ({"tokens": 512, "hidden": 4096}, "copies", "activations"),
        ({"vocab": 32_000, "tokens": 512}, "copies", "logits"),
        ({}, "elements", "a tensor"),
        ({"rows": 7}, "elements", "a tensor"),
    ],
)
def test_what_it_would_be(sizes: dict[str, int], missing: str, what: str) -> None:
    found = rl.diagnosis.explain_oom("16 GiB", "bf16", **sizes)
    assert found.missing == missing
    assert what in found.what
    assert "\n" not in str(found)
    assert json.loads(json.dumps(found.record()))["rows"][0]["missing"] == missing


def test_attention_scores_are_a_square() -> None:
    assert rl.diagnosis.explain_oom(8 * 32 * 4096**2 * 2, "bf16", batch=8, heads=32).value == pytest.approx(4096)


def test_a_cache_has_keys_and_values() -> None:
    graph = rl.model("llama-3-8b", phase="decode")
    cache = rl.estimate(graph, "h100-sxm", B=1, C=1000).memory.kv_cache
    assert rl.diagnosis.explain_oom(cache, "bf16", layers=32, kv_heads=8, head_dim=128).value == pytest.approx(1000)


@pytest.mark.parametrize(
    ("message", "sizes", "match"),
    [
        ("CUDA error: an illegal memory access was encountered", {}, "Tried to allocate SIZE"),
        ("Tried to allocate . GiB", {}, "no number"),
        ("Tried to allocate 0.00 GiB", {}, "above zero"),
        (0, {}, "above zero"),
        (float("nan"), {}, "finite"),
        ("5 GHz", {}, "unit"),
        ("5 GiB", {"vocab": 0}, "vocab=0"),
        ("5 GiB", {"vocab": float("nan")}, "vocab=nan"),
        ("5 GiB", {"vocab": "many"}, "vocab='many'"),
    ],
)
def test_what_is_no_failed_allocation(message: str | float, sizes: dict[str, float], match: str) -> None:
    with pytest.raises(rl.RooflineError, match=match) as error:
        rl.diagnosis.explain_oom(message, **sizes)
    assert "\n" not in str(error.value)


def test_unknown_formats_are_named() -> None:
    with pytest.raises(rl.errors.UnknownDType):
        rl.diagnosis.explain_oom("5 GiB", "fp33")


#: One allocation each, of a Llama-3-8B at 8 sequences of 4096 positions; all of its sizes are given.
LLAMA = {"batch": 8, "seq": 4096, "vocab": 128_256, "hidden": 4096, "intermediate": 14_336, "heads": 32, "layers": 32,
         "kv_heads": 8, "head_dim": 128, "parameters": 8_030_261_248}  # fmt: skip


@pytest.mark.parametrize(
    ("elements", "what"),
    [
        (8 * 4096 * 128_256, "logits"),
        (8 * 32 * 4096**2, "attention scores"),
        (8 * 4096**2, "an attention mask"),
        (2 * 32 * 8 * 4096 * 8 * 128, "KV cache"),
        (8 * 4096 * 14_336, "activations"),
        (128_256 * 4096, "the token table"),
        (2 * 4096 * 14_336, "a weight matrix"),
        (8_030_261_248, "weights or gradients"),
        (2 * 8_030_261_248, "Adam's two moments (2"),
        (3 * 8_030_261_248, "a copy of the weights"),
    ],
)
def test_of_many_sizes_the_product_that_comes_out(elements: int, what: str) -> None:
    found = rl.diagnosis.explain_oom(elements * 4, "fp32", **LLAMA)
    assert what in found.what
    assert found.value == 1


@pytest.mark.parametrize(
    "sizes",
    [{"heads": 32, "seq": 32_768}, {"heads": 32, "length": 32_768}, {"num_attention_heads": 32, "n_ctx": 32_768},
     {"h": 32, "context": 32_768}, {"x": 32, "y": 32_768}],
)  # fmt: skip
def test_scores_are_recognised_whatever_sizes_are_called(sizes: dict[str, int]) -> None:
    """32 heads x 32,768 x 32,768 positions x 2 bytes = 68,719,476,736."""
    found = rl.diagnosis.explain_oom(68_719_476_736, "bf16", **sizes)
    assert "attention scores" in found.what
    assert found.value == 1
    assert dict(found.powers) == dict(zip(sizes, (1, 2), strict=True))


def test_two_lengths_are_one_factor_each() -> None:
    found = rl.diagnosis.explain_oom(4 * 32 * 1024 * 4096 * 2, "bf16", batch=4, heads=32, seq=1024, context=4096)
    assert ("attention scores" in found.what, found.value) == (True, 1)


def test_a_missing_size_that_would_be_below_one_is_not_believed() -> None:
    """32 heads x 8192 positions x 128 columns: a 64th of the scores of one sequence."""
    found = rl.diagnosis.explain_oom(32 * 8192 * 128 * 2, "bf16", heads=32, seq=8192)
    assert (found.missing, found.value) == ("head_dim", 128)
