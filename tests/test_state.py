"""Operators and layers with a state of fixed size: counts by hand, caches, both phases on a chip."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

import roofline as rl
from roofline.ops.registry import get_op

SIZES: dict[str, Any] = {
    "model_type": "nemotron_h", "hidden_size": 64, "num_hidden_layers": 8, "hybrid_override_pattern": "M-M*M-M*",
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 8, "mamba_num_heads": 4, "mamba_head_dim": 32,
    "n_groups": 2, "ssm_state_size": 16, "conv_kernel": 4, "intermediate_size": 192, "vocab_size": 1000,
    "mamba_ssm_cache_dtype": "bfloat16", "dtype": "bfloat16",
}  # fmt: skip


def work(op: str, *shapes: tuple[Any, ...], **attrs: Any) -> rl.ops.Work:
    return get_op(op).work(shapes, attrs)


def test_causal_convolution() -> None:
    # Every channel of every position sums its own 4 taps.
    assert work("causal_conv", (2, 5, 8), (8, 4), (8,)).flops == 2 * 2 * 5 * 8 * 4
    with pytest.raises(rl.errors.ShapeError, match="axis 'c' is both 8 and 6"):
        work("causal_conv", (2, 5, 8), (6, 4))


def test_selective_scan() -> None:
    # 9 operations a position, channel and state, and the skip of 2 a channel.
    found = work("selective_scan", (2, 5, 8), (2, 5, 8), (8, 4), (2, 5, 4), (2, 5, 4), (8,))
    assert (found.flops, found.vector) == (0, 9 * 2 * 5 * 8 * 4 + 2 * 2 * 5 * 8)


def test_ssd_scan_in_chunks() -> None:
    # Chunks of 4: C B^T by group, its product with X, states and outputs; 3 operations a pair for the decays.
    shapes = (2, 8, 6, 16), (2, 8, 3, 5), (2, 8, 3, 5)
    found = work("ssd_scan", *shapes, chunk=4)
    assert found.flops == 2 * 2 * 8 * (4 * 3 * 5 + 4 * 6 * 16 + 2 * 6 * 16 * 5)
    assert found.vector == 3 * 2 * 8 * 4 * 6
    assert work("ssd_scan", *shapes, chunk=100).flops == work("ssd_scan", *shapes, chunk=8).flops


def test_ssd_step_is_elementwise() -> None:
    found = work("ssd_scan", (2, 1, 6, 16), (2, 1, 3, 5), (2, 1, 3, 5), recurrent=True)
    assert (found.flops, found.vector) == (0, 5 * 2 * 6 * 16 * 5)


def test_groups_divide_heads() -> None:
    with pytest.raises(rl.errors.ShapeError, match="6 heads, which is not a multiple of 4 groups"):
        work("ssd_scan", (2, 8, 6, 16), (2, 8, 4, 5), (2, 8, 4, 5))


def test_delta_scan() -> None:
    # Chunks of 4 positions, keys of 8 and values of 16 columns: three products of a pair with keys, two with values,
    # a third of q^2 for the triangle's inverse, three with the state.
    shapes = (2, 8, 3, 8), (2, 8, 3, 8), (2, 8, 3, 16)
    products = 4 * (3 * 8 + 2 * 16) + Fraction(16, 3) + 3 * 8 * 16
    assert work("delta_scan", *shapes, chunk=4).flops == 2 * 2 * 8 * 3 * products
    assert get_op("delta_scan").output(shapes, {}) == (2, 8, 3, 16)
    assert work("delta_scan", *shapes, recurrent=True).vector == 7 * 2 * 8 * 3 * 8 * 16


# The hybrid of case C10 (inference-sim#1558): cache on attention layers alone, a state of fixed size on the others.


def caches(**more: Any) -> dict[str, int]:
    graph = rl.from_config(SIZES, phase="decode", **more).bind(B=1, C=1)
    found: dict[str, int] = {}
    for tensor in graph.tensors.values():
        if tensor.kind == "cache":
            name = tensor.name.rpartition(".")[2]
            found[name] = found.get(name, 0) + int(tensor.numel)  # type: ignore[arg-type]
    return found


def test_keys_and_values_only_on_attention_layers() -> None:
    found = caches()
    assert (found["k_cache"] + found["v_cache"]) * 2 == 128  # two layers of two heads of 8 columns, in two bytes


@pytest.mark.parametrize(("kept", "elements"), [("kernel", 2816), ("kernel-1", 2624)])
def test_state_of_a_layer(kept: str, elements: int) -> None:
    found = caches(ssm_conv_kept=kept)
    assert found["conv_state"] + found["state"] == 4 * elements


def test_the_state_does_not_grow_with_the_context() -> None:
    graph = rl.from_config(SIZES, phase="decode")
    short, long = (float(rl.estimate(graph, "h100-sxm", B=1, C=c).memory.kv_cache) for c in (1, 1001))
    assert long - short == 1000 * 128
    assert short == 128 + 4 * 2816 * 2


def test_a_state_may_have_a_format_of_its_own() -> None:
    config = {**SIZES, "mamba_ssm_cache_dtype": "float32"}
    graph = rl.from_config(config, phase="decode")
    assert {t.dtype for t in graph.tensors.values() if t.name.endswith(".state")} == {"fp32"}
    assert {t.dtype for t in graph.tensors.values() if t.name.endswith(".k_cache")} == {"bf16"}


def test_the_feed_forward_layers_have_no_mixer() -> None:
    graph = rl.from_config(SIZES)
    assert not any("layers.1.mixer" in name or "layers.1.attn" in name for name in graph.tensors)
    assert "layers.1.mlp.up.weight" in graph.tensors


MIXERS = {
    "mamba": {"pattern": ["mamba"], "ssm_rank": 4},
    "mamba2": {"pattern": ["mamba2"]},
    "delta": {"pattern": ["delta"]},
    "conv": {"pattern": ["conv"]},
    "linear": {"pattern": ["linear"]},
    "recurrent": {"pattern": ["recurrent"]},
    "both": {"pattern": ["full+mamba2"]},
}


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("phase", ["forward", "prefill", "decode"])
def test_every_mixer_runs_on_a_chip(name: str, phase: str) -> None:
    sizes = {"ssm_inner": 128, "ssm_state": 16, "ssm_heads": 4, "ssm_groups": 2, "delta_keys": 2, "delta_values": 4,
             "delta_key_dim": 16, "delta_value_dim": 32}  # fmt: skip
    graph = rl.model("llama-3-8b", phase=phase, layers=2, hidden=64, heads=4, kv_heads=2, intermediate=96, vocab=100,
                     head_dim=16, **sizes, **MIXERS[name])  # fmt: skip
    found = rl.estimate(graph, "h100-sxm", B=[1, 8], S=512, C=512)
    assert found.time[1] >= found.time[0] > 0
    fused = rl.count(rl.passes.fuse(graph), B=2, S=64, C=64)
    assert fused.flops == rl.count(graph, B=2, S=64, C=64).flops
    assert bool(found.memory.kv_cache[0] > 0) == (phase != "forward")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pattern": ["mamba"], "ssm_inner": 128, "ssm_state": 16}, "a layer of kind mamba needs ssm_rank"),
        ({"pattern": ["mamba2"]}, "needs ssm_inner, ssm_state, ssm_heads"),
        ({"pattern": ["mamba2"], "ssm_inner": 100, "ssm_state": 4, "ssm_heads": 3}, "clash"),
        ({"rotary_dim": 1000}, "more than a head's"),
        ({"feeds": ["moe"]}, "there are no experts"),
        ({"kv_pattern": [2, 3]}, "not a multiple of kv_heads = 3"),
    ],
)
def test_sizes_that_do_not_fit(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=words):
        rl.model("llama-3-8b", **changes)
