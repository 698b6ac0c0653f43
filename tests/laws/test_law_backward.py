"""Laws of training: what a backward costs, what recomputation trades, what accumulation shares."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.counting.memory import memory

LAW = settings(deadline=None, max_examples=examples(60), derandomize=True, database=None)
widths = st.lists(st.integers(1, 40), min_size=2, max_size=7)


def chain(sizes: list[int], activation: str = "") -> rl.Graph:
    b = rl.ops.Builder("chain", "bf16")
    x = b.input("x", (rl.ops.symbol("B"), sizes[0]))
    for at, width in enumerate(sizes[1:]):
        with b.scope(f"layers.{at}"):
            x = b.op("linear", x, b.weight("w", (width, b.shape(x)[-1])), name="up")
            x = b.op(activation, x, name="act") if activation else x
    return b.graph([x])


@LAW
@given(widths, st.integers(1, 50))
def test_a_chain_of_layers_costs_twice_its_forward_less_the_first_gradient(sizes: list[int], batch: int) -> None:
    graph = chain(sizes)
    forward = rl.count(graph, B=batch).flops
    assert rl.count(rl.passes.backward(graph), B=batch).flops == 3 * forward - 2 * batch * sizes[0] * sizes[1]


@LAW
@given(widths, st.sampled_from(["", "gelu", "relu", "tanh"]), st.integers(1, 50))
def test_full_recomputation_adds_one_forward(sizes: list[int], activation: str, batch: int) -> None:
    graph = chain(sizes, activation)
    none, full = (rl.count(rl.passes.backward(graph, recompute=r), B=batch) for r in ("none", "full"))
    forward = rl.count(graph, B=batch)
    assert full.flops - none.flops == forward.flops
    assert full.vector_flops - none.vector_flops == forward.vector_flops
    assert full.launches - none.launches == forward.launches


@LAW
@given(widths, st.sampled_from(["none", "full"]), st.sampled_from(["", "silu"]))
def test_outputs_and_forward_are_preserved(sizes: list[int], recompute: str, activation: str) -> None:
    graph = chain(sizes, activation)
    step = rl.passes.backward(graph, recompute=recompute)
    assert step.nodes[: len(graph.nodes)] == graph.nodes
    assert step.outputs[: len(graph.outputs)] == graph.outputs
    for weight, gradient in step.info.training.gradients:
        assert step.tensors[gradient].shape == graph.tensors[weight].shape


models = st.sampled_from(["gpt2", "llama-3.2-1b", "bert-base-uncased", "megatron-22b"])


def tiny(name: str, attention: str) -> rl.Graph:
    small: dict[str, Any] = {"hidden": 32, "heads": 4, "layers": 2, "vocab": 64, "attention": attention}
    if name == "llama-3.2-1b":
        small |= {"kv_heads": 2, "intermediate": 48, "head_dim": 8}
    return rl.model(name, phase="train", **small)


@LAW
@given(models, st.sampled_from(["naive", "sdpa"]), st.integers(1, 8), st.integers(1, 64))
def test_recomputation_trades_time_for_memory(name: str, attention: str, batch: int, seq: int) -> None:
    steps = [rl.passes.backward(tiny(name, attention), recompute=r) for r in ("none", "selective", "full")]
    flops = [rl.count(step, B=batch, S=seq).flops for step in steps]
    kept = [sum(rl.passes.saved(step, B=batch, S=seq).values()) for step in steps]
    assert flops == sorted(flops)
    assert kept == sorted(kept, reverse=True)


@LAW
@given(models, st.sampled_from(["naive", "sdpa"]), st.integers(1, 8), st.integers(1, 64))
def test_what_is_saved_fits_into_the_peak(name: str, attention: str, batch: int, seq: int) -> None:
    step, sizes = rl.passes.backward(tiny(name, attention)), {"B": batch, "S": seq}
    assert sum(rl.passes.saved(step, **sizes).values()) <= memory(step, sizes).activations


@LAW
@given(models, st.integers(1, 6), st.integers(1, 8), st.sampled_from(["none", "full"]))
def test_micro_batches_repeat_forward_and_backward(name: str, times: int, batch: int, recompute: str) -> None:
    graph = tiny(name, "sdpa")
    one, many = (rl.passes.training_graph(graph, micro_batches=n, recompute=recompute) for n in (1, times))
    sizes = {"B": batch, "S": 16}
    assert rl.count(many, **sizes).flops == times * rl.count(one, **sizes).flops
    assert memory(many, sizes).optimizer == memory(one, sizes).optimizer


@LAW
@given(models, st.integers(1, 8), st.sampled_from(["none", "selective", "full"]))
def test_a_fused_step_computes_the_same_and_moves_no_more(name: str, batch: int, recompute: str) -> None:
    step = rl.passes.backward(tiny(name, "naive"), recompute=recompute)
    before, after = (rl.count(graph, B=batch, S=32) for graph in (step, rl.passes.fuse(step)))
    assert (before.flops, before.vector_flops) == (after.flops, after.vector_flops)
    assert after.bytes <= before.bytes


@LAW
@given(models, st.integers(1, 8), st.sampled_from(["bf16", "fp16"]))
def test_autocast_moves_no_products(name: str, batch: int, dtype: str) -> None:
    from roofline.passes.formats.cast import cast

    graph = cast(tiny(name, "sdpa"), "fp32")
    sizes = {"B": batch, "S": 16}
    mixed = rl.passes.autocast(graph, dtype)
    assert rl.count(mixed, **sizes).flops == rl.count(graph, **sizes).flops
    assert rl.count(rl.passes.backward(mixed), **sizes).flops == rl.count(rl.passes.backward(graph), **sizes).flops


@LAW
@given(widths)
def test_numbers_symbols_and_arrays_agree(sizes: list[int]) -> None:
    step = rl.passes.backward(chain(sizes, "gelu"))
    whole = rl.count(step.bind(B=7))
    assert rl.count(step, B=7).flops == whole.flops
    assert rl.count(step, B=7).bytes == whole.bytes
