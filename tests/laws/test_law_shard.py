"""Laws of parallelism, on random decoders: nothing is lost, nothing is done twice but what is said to be."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.counting.memory import memory
from roofline.ops.communication import COLLECTIVES
from roofline.ops.registry import get_op

LAW = settings(deadline=None, max_examples=examples(60), derandomize=True, database=None)
SIZES = {"B": 3, "S": 32, "C": 48}


@st.composite
def decoders(draw: st.DrawFn) -> tuple[rl.Graph, int]:
    """A small decoder and a number of devices that divides its heads and widths, key-value heads or not."""
    tp = draw(st.sampled_from([2, 3, 4, 8]))
    kv = draw(st.sampled_from([1, 2, tp, 2 * tp]))
    assume(kv % tp == 0 or tp % kv == 0)
    heads = kv * max(1, tp // kv) * draw(st.sampled_from([1, 2]))
    options: dict[str, Any] = {
        "layers": draw(st.sampled_from([1, 2])),
        "hidden": 48 * tp,
        "heads": heads,
        "kv_heads": kv,
        "head_dim": 8,
        "intermediate": 24 * tp,
        "vocab": 16 * tp * draw(st.sampled_from([1, 5])),
        "block": draw(st.sampled_from(["serial", "parallel"])),
        "attention": draw(st.sampled_from(["sdpa", "naive"])),
        "tied": draw(st.booleans()),
        "fused_qkv": draw(st.booleans()),
        "mlp_bias": draw(st.booleans()),
        "prefill_logits": "all",
    }
    return rl.model("llama-3.2-1b", phase=draw(st.sampled_from(["forward", "prefill", "decode"])), **options), tp


def copies(graph: rl.Graph, device: rl.Graph, tp: int) -> int:
    """Parameters that all devices hold together beyond one set: those held whole, and key-value heads held twice."""
    return device.parameters * tp - graph.parameters


@LAW
@given(decoders())
def test_products_are_shared_out(drawn: tuple[rl.Graph, int]) -> None:
    """FLOPs add up to the whole program's, but for keys and values that several devices work out."""
    graph, tp = drawn
    device = rl.passes.shard(graph, tp=tp)
    whole, shares = rl.count(graph, **SIZES).flops, tp * rl.count(device, **SIZES).flops
    kv = graph.tensors["layers.0.attn.k_heads"].shape[1]
    if kv % tp == 0:
        assert shares == whole
    else:
        assert whole < shares
        assert any("KV heads" in note and "replicated on" in note for note in device.info.notes)


@LAW
@given(decoders())
def test_weights_are_shared_out(drawn: tuple[rl.Graph, int]) -> None:
    """What devices hold beyond one set of weights is what each holds whole, and copies of key-value heads."""
    graph, tp = drawn
    device = rl.passes.shard(graph, tp=tp)
    whole = sum(
        tensor.numel for name, tensor in device.tensors.items()
        if tensor.kind == "weight" and tensor.shape == graph.tensors[name].shape
    )  # fmt: skip
    kv = graph.tensors["layers.0.attn.k_heads"].shape[1]
    extra = copies(graph, device, tp) - (tp - 1) * whole
    if kv % tp == 0:
        assert extra == 0
        # Norms, biases behind products that sum, and nothing else.
        assert all(len(t.shape) == 1 for n, t in device.tensors.items()
                   if t.kind == "weight" and t.shape == graph.tensors[n].shape)  # fmt: skip
    else:
        assert extra >= 0


@LAW
@given(decoders())
def test_memory_of_a_device_never_grows(drawn: tuple[rl.Graph, int]) -> None:
    graph, tp = drawn
    before, after = memory(graph, SIZES), memory(rl.passes.shard(graph, tp=tp), SIZES)
    assert after.weights <= before.weights
    assert after.kv_cache <= before.kv_cache
    assert after.inputs <= before.inputs


@LAW
@given(decoders())
def test_collectives_by_formula(drawn: tuple[rl.Graph, int]) -> None:
    """``B S h`` elements an all-reduce: two a layer, one in a parallel block, one for the embeddings."""
    graph, tp = drawn
    device = rl.passes.shard(graph, tp=tp)
    layers = graph.info.layers
    serial = any(node.name == "layers.0.attn.residual" for node in graph.nodes)
    reduces = [node for node in device.nodes if node.op == "all_reduce"]
    assert len(reduces) == layers * (2 if serial else 1) + 1
    hidden = graph.tensors["embed"].numel
    assert {device.tensors[node.inputs[0]].shape[0] for node in reduces} == {hidden}
    (gathered,) = (node for node in device.nodes if node.op == "all_gather")
    assert device.tensors[gathered.outputs[0]].shape[0] == graph.tensors[graph.outputs[0]].numel


@LAW
@given(decoders())
def test_every_shape_follows_from_its_inputs(drawn: tuple[rl.Graph, int]) -> None:
    graph, tp = drawn
    positions = "S" in graph.symbols
    for device in [rl.passes.shard(graph, tp=tp), *([rl.passes.shard(graph, tp=tp, sp=True)] if positions else [])]:
        device.validate()
        for node in device.nodes:
            shapes = [device.tensors[name].shape for name in node.inputs]
            assert get_op(node.op).output(shapes, dict(node.attrs)) == device.tensors[node.outputs[0]].shape, node
        outputs = [graph.tensors[name].shape for name in graph.outputs]
        assert device.tensors[device.outputs[0]].shape == outputs[0]


@LAW
@given(decoders())
def test_positions_shared_put_the_same_bytes_on_the_wire(drawn: tuple[rl.Graph, int]) -> None:
    """A reduce-scatter and an all-gather are an all-reduce (Korthikanti et al. 2022, section 4.2.2)."""
    graph, tp = drawn
    assume("S" in graph.symbols)
    plain, device = (rl.passes.shard(graph, tp=tp, sp=sp, gather_logits=False) for sp in (False, True))
    reduced, scattered = (_elements(each, op) for each, op in ((plain, "all_reduce"), (device, "reduce_scatter")))
    gathered = _elements(device, "all_gather")
    assert scattered == reduced
    # One gathering a branch's input; the branches of a parallel block share theirs. A key and a value that all heads
    # share, with a product of their own, are worked out on shares of the positions and gathered too.
    shared = [node for node in device.nodes if node.name in (f"layers.{i}.attn.{w}" for i in (0, 1) for w in "kv")
              and node.op == "linear" and device.tensors[node.inputs[1]] == graph.tensors[node.inputs[1]]]  # fmt: skip
    assert gathered * tp == reduced + sum(SIZES["B"] * SIZES["S"] * 8 for _ in shared)
    hidden = graph.tensors["embed"].shape[-1]
    saved = sum(2 * SIZES["B"] * SIZES["S"] * hidden * 8 * (tp - 1) // tp for _ in shared)
    assert rl.count(device, **SIZES).flops == rl.count(plain, **SIZES).flops - saved
    assert rl.count(device, **SIZES).vector_flops < rl.count(plain, **SIZES).vector_flops


def _elements(graph: rl.Graph, op: str) -> Any:
    found = [graph.tensors[node.inputs[0]].shape[0] for node in graph.nodes if node.op == op]
    return sum((size.at(SIZES) for size in found), start=0)


@LAW
@given(decoders(), st.integers(2, 40))
def test_any_number_of_devices_is_served_or_refused_in_a_line(drawn: tuple[rl.Graph, int], tp: int) -> None:
    graph, _ = drawn
    try:
        refused, device = "", rl.passes.shard(graph, tp=tp)
    except rl.errors.UsageError as error:
        refused = str(error)
    if not refused:
        assert device.parameters < graph.parameters
        return
    line, _, allowed = refused.rpartition("tp that fit: ")
    assert line
    assert "\n" not in refused
    assert str(tp) not in allowed.split(", ")
    for fits in allowed.split(", ")[:2]:
        if fits != "none":
            rl.passes.shard(graph, tp=int(fits))


@LAW
@given(st.sampled_from([2, 4, 8]), st.sampled_from([1, 2, 3]), st.sampled_from(["prefill", "decode"]), st.booleans())
def test_experts_are_shared_out(ep: int, top_k: int, phase: str, both: bool) -> None:
    graph = rl.model("mixtral-8x7b", phase=phase, layers=1, hidden=64, heads=4, kv_heads=2, head_dim=16,
                     expert_intermediate=32, experts=8, top_k=top_k, vocab=128)  # fmt: skip
    device = rl.passes.shard(graph, ep=ep, tp=2 if both else 1)
    share = 2 if both else 1
    names = [name for name in graph.tensors if name.endswith(("moe.gate_up.weight", "moe.down.weight"))]
    assert names
    for name in names:
        assert device.tensors[name].numel * ep * share == graph.tensors[name].numel
    # A group sends away as many rows as it gets, so it computes as much as without sharing; all run the router.
    tokens = SIZES["B"] * (SIZES["S"] if phase == "prefill" else 1)
    router = (share - 1) * 2 * tokens * 64 * 8
    assert rl.count(device, **SIZES).flops * share == rl.count(graph, **SIZES).flops + router
    sent = [device.tensors[node.inputs[0]].shape[0] for node in device.nodes if node.op == "alltoall"]
    assert [size.at(SIZES) for size in sent] == [tokens * top_k * 64] * 2


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_collectives_come_from_the_registry(tp: int) -> None:
    device = rl.passes.shard(rl.model("llama-3-8b", phase="decode", layers=1), tp=tp)
    found = [node for node in device.nodes if node.op in COLLECTIVES]
    assert {dict(node.attrs)["devices"] for node in found} == {tp}
