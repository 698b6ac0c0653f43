"""Tensor, sequence, expert and vocabulary parallelism: a device's program against one configured by hand."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

import roofline as rl
from roofline.counting.counts import kernels
from roofline.counting.memory import memory
from roofline.hardware.library import data_dir
from roofline.ir.sizes import evaluate, prod, symbol
from roofline.ops.communication import COLLECTIVES

B, S = symbol("B"), symbol("S")


def without_collectives(graph: rl.Graph) -> dict[str, Any]:
    """Everything that is counted, as polynomials, of all kernels but the collectives."""
    own = [kernel for kernel in kernels(graph) if kernel.kind != "network"]
    return {
        "flops": total(kernel.count * total(kernel.flops.values()) for kernel in own),
        "vector": total(kernel.count * total(kernel.vector.values()) for kernel in own),
        "read": total(kernel.count * kernel.read for kernel in own),
        "write": total(kernel.count * kernel.write for kernel in own),
        "launches": sum(kernel.count for kernel in own),
        "parameters": graph.parameters,
        "cache": total(tensor.numel for tensor in graph.tensors.values() if tensor.kind == "cache"),
    }


def total(values: Iterable[Any]) -> Any:
    result: Any = 0
    for value in values:
        result = value + result
    return result


def collectives(graph: rl.Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes if node.op in COLLECTIVES)


def exchanged(graph: rl.Graph, op: str) -> list[Any]:
    """Elements that each collective of a kind is given."""
    return [prod(graph.tensors[node.inputs[0]].shape) for node in graph.nodes if node.op == op]


def given(graph: rl.Graph) -> list[rl.ops.Node]:
    return [node for node in graph.nodes if node.op == "parallel_input"]


#: A model, devices, what is told of it, and the configuration that one device runs.
LOCAL: list[tuple[str, int, dict[str, Any], dict[str, Any]]] = [
    ("llama-3-8b", 2, {}, {"heads": 16, "kv_heads": 4, "head_dim": 128, "intermediate": 7168, "vocab": 64128}),
    ("llama-3-8b", 8, {}, {"heads": 4, "kv_heads": 1, "head_dim": 128, "intermediate": 1792, "vocab": 16032}),
    # More devices than key-value heads: each keeps one of them, and half of its queries.
    ("llama-3-8b", 16, {}, {"heads": 2, "kv_heads": 1, "head_dim": 128, "intermediate": 896, "vocab": 8016}),
    ("llama-3-8b", 2, {"layers": 2, "attention": "naive", "fused_qkv": False},
     {"heads": 16, "kv_heads": 4, "head_dim": 128, "intermediate": 7168, "vocab": 64128}),
    ("gpt2", 2, {}, {"heads": 6, "head_dim": 64, "intermediate": 1536, "vocab": 25129}),
    ("gpt2", 4, {"block": "parallel"}, {"heads": 3, "head_dim": 64, "intermediate": 768, "vocab": 12565}),
    ("opt-125m", 3, {}, {"heads": 4, "head_dim": 64, "intermediate": 1024, "vocab": 16758}),
    ("gpt-3-175b", 8, {"layers": 2}, {"heads": 12, "head_dim": 128, "intermediate": 6144, "vocab": 6283}),
    ("gemma-2-2b", 2, {"layers": 2, "logit_softcap": 0.0},
     {"heads": 4, "kv_heads": 2, "head_dim": 256, "intermediate": 4608, "vocab": 128000}),
    # One key-value head for all queries: it stays whole.
    ("gemma-3-1b", 2, {"layers": 7}, {"heads": 2, "head_dim": 256, "intermediate": 3456, "vocab": 131072}),
    ("mixtral-8x7b", 2, {"layers": 2},
     {"heads": 16, "kv_heads": 4, "head_dim": 128, "expert_intermediate": 7168, "vocab": 16000}),
    ("gpt-oss-20b", 2, {"layers": 2}, {"heads": 32, "kv_heads": 4, "expert_intermediate": 1440, "vocab": 100544}),
    ("deepseek-v3", 2, {"layers": 5}, {"heads": 64, "intermediate": 9216, "expert_intermediate": 1024,
                                       "shared_intermediate": 1024, "vocab": 64640}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "tp", "told", "local"), LOCAL)
@pytest.mark.parametrize("phase", ["forward", "prefill", "decode"])
def test_a_device_runs_the_model_with_its_share_of_the_sizes(
    name: str, tp: int, told: dict[str, Any], local: dict[str, Any], phase: str
) -> None:
    device = rl.passes.shard(rl.model(name, phase=phase, **told), tp=tp)
    assert without_collectives(device) == without_collectives(rl.model(name, phase=phase, **{**told, **local}))


def test_an_encoder_and_decoder_share_both_stacks() -> None:
    device = rl.passes.shard(rl.model("t5-base"), tp=2)
    local = rl.model("t5-base", heads=6, intermediate=1536, vocab=16064)
    assert without_collectives(device) == without_collectives(local)
    # An encoder layer has two branches, a decoder layer three; the table is looked up in both stacks.
    assert collectives(device) == {"all_reduce": 12 * 2 + 12 * 3 + 2, "all_gather": 1}


def test_what_a_program_stores_but_does_not_read_is_shared_too() -> None:
    """The encoder's weights lie in memory while the decoder runs."""
    halves = rl.passes.shard(rl.model("t5-base", phase="decode"), tp=2)
    assert halves.parameters == rl.passes.shard(rl.model("t5-base"), tp=2).parameters


def test_logits_stay_shares_when_told() -> None:
    """Gemma caps its logits: on the share that a device has, where they are not gathered."""
    local = {"heads": 4, "kv_heads": 2, "head_dim": 256, "intermediate": 4608, "vocab": 128000}
    device = rl.passes.shard(rl.model("gemma-2-2b", layers=2), tp=2, gather_logits=False)
    assert without_collectives(device) == without_collectives(rl.model("gemma-2-2b", layers=2, **local))
    assert collectives(device) == {"all_reduce": 5}
    assert device.tensors[device.outputs[0]].shape == (B, 1, 128000)


def test_heads_and_width_of_encoders() -> None:
    """BERT's configuration cannot say a device's share (its head width is hidden over heads): shapes by hand."""
    device = rl.passes.shard(rl.model("bert-base-uncased", layers=1), tp=3)
    shapes = {name: tensor.shape for name, tensor in device.tensors.items()}
    assert shapes["layers.0.attn.q.weight"] == (256, 768)
    assert shapes["layers.0.attn.q.bias"] == (256,)
    assert shapes["layers.0.attn.out.weight"] == (768, 256)
    assert shapes["layers.0.attn.out.bias"] == (768,)
    assert shapes["layers.0.attn.q_heads"] == (B, 4, S, 64)
    assert shapes["layers.0.mlp.up.weight"] == (1024, 768)
    assert shapes["layers.0.mlp.down.weight"] == (768, 1024)
    assert shapes["embed.weight"] == (10174, 768)
    assert shapes["positions.weight"] == (512, 768)
    assert shapes["pooler.weight"] == (768, 768)
    assert collectives(device) == {"all_reduce": 3}


def test_images_have_no_vocabulary() -> None:
    device = rl.passes.shard(rl.model("vit-b-16"), tp=4)
    assert collectives(device) == {"all_reduce": 24}
    assert device.tensors["head.weight"].shape == (1000, 768)
    assert device.tensors["layers.0.mlp.up.weight"].shape == (768, 768)


# --- where devices talk -------------------------------------------------------------------------------------


def test_two_all_reduces_a_layer_and_one_where_branches_are_side_by_side() -> None:
    """Shoeybi et al. 2019, figure 4; GPT-J and Falcon add both branches' partial sums up first."""
    serial = rl.passes.shard(rl.model("gpt2", phase="forward"), tp=2, vocab=False)
    beside = rl.passes.shard(rl.model("gpt2", phase="forward", block="parallel"), tp=2, vocab=False)
    assert collectives(serial) == {"all_reduce": 24}
    assert collectives(beside) == {"all_reduce": 12}
    assert set(exchanged(serial, "all_reduce")) == {768 * B * S}
    # Each layer's input is given to the devices once for both branches.
    assert len(given(serial)) == 24
    assert len(given(beside)) == 12


def test_the_vocabulary_costs_a_sum_of_embeddings_and_a_gathering_of_logits() -> None:
    device = rl.passes.shard(rl.model("llama-3-8b", phase="decode", layers=1), tp=4)
    assert collectives(device) == {"all_reduce": 3, "all_gather": 1}
    assert exchanged(device, "all_gather") == [B * 128256 / 4]
    assert device.tensors[device.outputs[0]].shape == (B, 1, 128256)


def test_a_vocabulary_that_does_not_divide_is_padded() -> None:
    device = rl.passes.shard(rl.model("gpt2", phase="decode"), tp=2)
    assert device.tensors["embed.weight"].shape == (25129, 768)
    assert device.tensors[device.outputs[0]].shape == (B, 1, 50257)
    assert "a vocabulary of 50257 is padded to 50258" in device.info.notes


def test_experts_and_the_expert_that_all_share_are_summed_once() -> None:
    device = rl.passes.shard(rl.model("deepseek-v3", phase="prefill", layers=4), tp=8)
    assert collectives(device) == {"all_reduce": 9, "all_gather": 1}
    assert set(exchanged(device, "all_reduce")) == {7168 * B * S}  # rows of tokens, not of chosen experts


def test_latents_are_whole_on_every_device() -> None:
    """DeepSeek-V3: heads are shared, the latent cache of 576 a position is not."""
    device = rl.passes.shard(rl.model("deepseek-v3", phase="decode", layers=1), tp=8)
    caches = [tensor.shape for tensor in device.tensors.values() if tensor.kind == "cache"]
    assert caches == [(B, 1, symbol("C"), 576)]
    assert device.tensors["layers.0.attn.kv_b.weight"].shape == (128 // 8 * 256, 512)
    assert device.tensors["layers.0.attn.q_b.weight"].shape == (128 // 8 * 192, 1536)
    assert device.tensors["layers.0.attn.q_a.weight"].shape == (1536, 7168)


def test_norms_over_all_heads_gather_them() -> None:
    """OLMo 2 norms queries and keys over their whole width; vLLM gathers, norms and splits again."""
    told = {"layers": 1, "qk_norm": True, "qk_norm_over": "width"}
    device = rl.passes.shard(rl.model("llama-3-8b", phase="forward", **told), tp=2, vocab=False)
    assert sorted(exchanged(device, "all_gather"), key=str) == sorted([2048 * B * S, 512 * B * S], key=str)
    assert device.tensors["layers.0.attn.q_norm.weight"].shape == (4096,)
    assert device.tensors["layers.0.attn.q_heads"].shape == (B, 16, S, 128)


@pytest.mark.parametrize("phase", ["forward", "prefill", "decode"])
def test_channels_of_a_selective_scan(phase: str) -> None:
    """Mamba: a device has some of the channels; steps, B and C come from all of them, so two sums a layer."""
    config = {"model_type": "mamba", "num_hidden_layers": 2}
    device = rl.passes.shard(rl.from_config(config, phase=phase), tp=2, vocab=False)
    assert without_collectives(device) == without_collectives(
        rl.from_config({**config, "intermediate_size": 768}, phase=phase)
    )
    assert collectives(device) == {"all_reduce": 4}


def test_heads_of_a_scan() -> None:
    """Mamba-2: heads and their groups, and a norm over all of them, which is gathered."""
    graph = rl.from_config({"model_type": "mamba2", "num_hidden_layers": 2}, phase="decode")
    device = rl.passes.shard(graph, tp=8, vocab=False)
    assert device.tensors["layers.0.mixer.state"].shape == (B, 128 // 8, 64, 128)
    assert device.tensors["layers.0.mixer.conv_state"].shape[1] == (8192 + 2 * 8 * 128) // 8
    assert collectives(device) == {"all_reduce": 2, "all_gather": 2}


def test_golden_all_reduces_of_a_layer() -> None:
    """golden.yaml, tp-allreduce-per-layer: hidden 8192, 80 layers, 8 devices, one token (Shoeybi et al. 2019)."""
    device = rl.passes.shard(rl.model("llama-3-70b", phase="decode"), tp=8, vocab=False)
    assert collectives(device) == {"all_reduce": 2 * 80}
    assert len(given(device)) == 2 * 80  # each an all-reduce in the backward
    sizes = [each.at({"B": 1}) * 2 for each in exchanged(device, "all_reduce")]
    assert set(sizes) == {16384}
    found = [rl.analysis.collective("a100-80gb-sxm", "all_reduce", size, 8, algorithm="ring") for size in sizes]
    assert sum(each.wire_bytes for each in found) == pytest.approx(4587520, rel=1e-6)


def test_golden_elements_of_a_layer_in_training() -> None:
    """golden.yaml, megatron2021-bubble-and-comm: 8 b s h (t-1)/t elements a layer (Narayanan et al. 2021)."""
    device = rl.passes.shard(rl.model("gpt-3-175b", phase="forward"), tp=8, vocab=False)
    forward = [each.at({"B": 1, "S": 2048}) for each in exchanged(device, "all_reduce")]
    backward = [prod(device.tensors[node.outputs[0]].shape).at({"B": 1, "S": 2048}) for node in given(device)]
    found = [
        rl.analysis.collective("a100-80gb-sxm", "all_reduce", each, 8, algorithm="ring") for each in forward + backward
    ]
    assert sum(each.wire_bytes for each in found) / 96 == pytest.approx(176160768, rel=1e-6)


# --- positions ----------------------------------------------------------------------------------------------


def test_sequence_parallelism_scatters_and_gathers() -> None:
    """Korthikanti et al. 2022, figure 5: the same bytes on the wire, and norms on a share of the positions."""
    plain, device = (
        rl.passes.shard(rl.model("gpt2", phase="forward"), tp=4, sp=sp, gather_logits=False) for sp in (False, True)
    )
    assert collectives(plain) == {"all_reduce": 25}
    # Scattered behind the embedding and every branch, gathered before every branch and the head.
    assert collectives(device) == {"reduce_scatter": 25, "all_gather": 25}
    assert set(exchanged(device, "reduce_scatter")) == {768 * B * S}
    assert set(exchanged(device, "all_gather")) == {768 * B * S / 4}
    assert device.tensors["layers.0.mlp.norm"].shape == (B, S / 4, 768)
    assert device.tensors["layers.0.mlp.residual"].shape == (B, S / 4, 768)
    assert device.tensors["layers.0.mlp.up"].shape == (B, S, 768)
    flops, vector = (without_collectives(device)[key] for key in ("flops", "vector"))
    assert flops == without_collectives(plain)["flops"]
    assert vector.at({"B": 1, "S": 1024}) < without_collectives(plain)["vector"].at({"B": 1, "S": 1024})


def test_sequence_parallelism_needs_less_memory() -> None:
    sizes = {"B": 4, "S": 2048}
    graph = rl.model("gpt-3-175b", phase="forward", layers=2, head=False)
    plain, less = (memory(rl.passes.shard(graph, tp=8, sp=sp), sizes).activations for sp in (False, True))
    assert less < plain


@pytest.mark.parametrize("name", ["llama-3.2-1b", "gemma-2-2b", "mixtral-8x7b", "deepseek-v2-lite", "t5-small"])
def test_sequence_parallelism_keeps_the_products(name: str) -> None:
    graph = rl.model(name, phase="forward", **({} if name == "t5-small" else {"layers": 2}))
    plain, device = rl.passes.shard(graph, tp=2), rl.passes.shard(graph, tp=2, sp=True)
    at = {"B": 2, "S": 64}
    whole, less = (rl.count(each, **at).flops for each in (plain, device))
    assert less <= whole  # latents and routers, computed by every device, are shared out
    assert device.tensors[device.outputs[0]].shape == plain.tensors[plain.outputs[0]].shape


# --- experts ------------------------------------------------------------------------------------------------


def test_experts_on_other_devices() -> None:
    """Every group sends its tokens' rows to the experts and gets them back (Lepikhin et al. 2020, section 3.2)."""
    graph = rl.model("mixtral-8x7b", phase="prefill", layers=2)
    device = rl.passes.shard(graph, ep=4)
    assert collectives(device) == {"alltoall": 4}
    assert set(exchanged(device, "alltoall")) == {2 * 4096 * B * S}
    assert device.tensors["layers.0.moe.gate_up.weight"].shape == (2, 28672, 4096)
    assert device.tensors["layers.0.attn.qkv.weight"] == graph.tensors["layers.0.attn.qkv.weight"]
    # A device computes as many rows as it sends away.
    assert without_collectives(device)["flops"] == without_collectives(graph)["flops"]


def test_experts_read_what_the_tokens_of_all_groups_touch() -> None:
    """With one token a group, 8 groups touch E (1 - (1 - k/E)^8) of 8 experts: 1/8 of that on each device."""
    device = rl.passes.shard(rl.model("mixtral-8x7b", phase="decode", layers=1), ep=8)
    (kernel,) = (kernel for kernel in kernels(device) if kernel.name.endswith("gate_up"))
    read = kernel.at({"B": 1, "C": 16}).read
    assert read - 2 * 4096 * 2 == pytest.approx(2 * 28672 * 4096 * (1 - (1 - 2 / 8) ** 8), rel=1e-9)


def test_experts_and_their_widths_both_shared() -> None:
    device = rl.passes.shard(rl.model("mixtral-8x7b", phase="prefill", layers=1), tp=2, ep=4)
    assert collectives(device) == {"alltoall": 2, "all_reduce": 3, "all_gather": 1}
    assert device.tensors["layers.0.moe.gate_up.weight"].shape == (2, 14336, 4096)
    assert device.tensors["layers.0.moe.down.weight"].shape == (2, 4096, 7168)
    by_devices = Counter(dict(node.attrs)["devices"] for node in device.nodes if node.op in COLLECTIVES)
    assert by_devices == {4: 2, 2: 4}


# --- what cannot be -----------------------------------------------------------------------------------------


def test_one_device_runs_the_program_itself() -> None:
    graph = rl.model("gpt2")
    assert rl.passes.shard(graph, tp=1) is graph
    assert not rl.passes.shard(graph).history


def test_the_trail() -> None:
    graph = rl.model("llama-3-8b", phase="decode")
    device = rl.passes.shard(graph, tp=2)
    assert repr(device.history[-1]) == "shard(tp=2)"
    assert device.history[-1].before is graph
    # 65 norms of 4096.
    assert device.history[-1].notes[0].startswith("266,240 of 8,030,261,248 parameters are replicated on every device")


REFUSED = [
    ("gpt2-xl", {"tp": 2}, "25 heads, which 2 devices cannot share; tp that fit: 1, 5, 25"),
    ("llama-3-8b", {"tp": 3}, "on 8 key-value heads, which 3 devices cannot .* tp that fit: 1, 2, 4, 8, 16, 32"),
    ("llama-3-8b", {"tp": 64}, "which 64 devices cannot share; tp that fit: 1, 2, 4, 8, 16, 32"),
    ("resnet50", {"tp": 2}, "nothing that tensor parallelism splits .* (data parallelism)"),
    ("gpt2", {"tp": 0}, "tp=0: expected a whole number of devices from 1"),
    ("gpt2", {"tp": 2.0}, "tp=2.0: expected a whole number of devices from 1"),
    ("gpt2", {"ep": 2}, "ep=2: .* has no experts; allowed: 1"),
    ("mixtral-8x7b", {"ep": 3}, "8 experts, which 3 groups cannot share; fits: 2, 4, 8"),
    ("gpt2", {"sp": True}, "sp=True needs tp > 1"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "message"), REFUSED)
def test_refusals_name_what_fits(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=message.replace("(", r"\(").replace(")", r"\)")) as refused:
        rl.passes.shard(rl.model(name), **options)
    assert "\n" not in str(refused.value)


def test_a_width_that_does_not_divide_is_named() -> None:
    graph = rl.model("gpt2", intermediate=3070)
    with pytest.raises(rl.errors.UsageError, match=r"mlp.up has a width of 3070, which 4 devices .* fit: 1, 2$"):
        rl.passes.shard(graph, tp=4)


def test_a_device_shares_nothing_further() -> None:
    with pytest.raises(rl.errors.UsageError, match="already sharded"):
        rl.passes.shard(rl.passes.shard(rl.model("gpt2"), tp=2), tp=2)


def test_a_decode_step_has_no_positions_to_share() -> None:
    with pytest.raises(rl.errors.UsageError, match="no axis of positions"):
        rl.passes.shard(rl.model("llama-3-8b", phase="decode"), tp=2, sp=True)


# --- against measurements -----------------------------------------------------------------------------------


def measured() -> list[dict[str, Any]]:
    path = data_dir("measurements") / "h100-sxm" / "tensor_parallel.csv"
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def predicted(row: dict[str, Any]) -> rl.Estimate:
    """The measured program: eight layers with neither embedding nor head (its peak memory has no room for them) and
    without rotary embedding, whose kernels alone would be 1.1 of the 13.1 ms.
    """
    shape, decode = json.loads(row["shape"]), "decode" in row["what"]
    graph = rl.model(
        "llama-3-8b", phase="decode" if decode else "prefill", layers=8, vocab=8, head=False, rope=False
    )  # fmt: skip
    device = rl.passes.shard(graph, tp=int(row["world"]), vocab=False)
    sizes = {"B": shape["batch"], "C" if decode else "S": shape["context" if decode else "seq"]}
    return rl.estimate(device, "h100-sxm", mode="graph" if decode else "eager", **sizes)


@pytest.mark.parametrize("row", measured(), ids=lambda row: f"{row['what'][19:]}-{row['world']}-{row['shape']}")
def test_measured_times(row: dict[str, Any]) -> None:
    found = predicted(row)
    assert found.time * 1e6 == pytest.approx(float(row["us"]), rel=0.12)
    assert found.low <= float(row["us"]) / 1e6 <= found.high


@pytest.mark.parametrize("row", measured(), ids=lambda row: f"{row['what'][19:]}-{row['world']}-{row['shape']}")
def test_measured_memory(row: dict[str, Any]) -> None:
    """Peaks of the allocator: our total without driver and framework.

    On two devices it also holds the other half of the fused projections, 8 x 3072 x 4096 bf16, of which the program
    evidently took a view; the last decode rows still hold the caches of the decode rows before them.
    """
    need, world = predicted(row).memory, int(row["world"])
    kept = 8 * 3072 * 4096 * 2 if world == 2 else 0
    before = 8 * 2 * 64 * 2048 * 1024 * 2 / world if '"context": 8192' in row["shape"] else 0
    peak = float(row["note"].removeprefix("peak="))
    assert need.total - need.reserve + kept + before == pytest.approx(peak, rel=0.06)


def test_a_chain_without_residuals_is_cut_where_it_is_wide() -> None:
    b = rl.ops.Builder("mlp", "bf16")
    x = b.input("x", (symbol("B"), 1024))
    for layer in range(3):
        wide = b.op("gelu", b.op("linear", x, b.weight(f"up{layer}", (4096, 1024)), name=f"up.{layer}"))
        x = b.op("linear", wide, b.weight(f"down{layer}", (1024, 4096)), name=f"down.{layer}")
    whole = b.graph([x])
    half = rl.passes.shard(whole, tp=2)
    assert half.parameters == whole.parameters / 2
    sums = [half.tensors[node.inputs[0]].shape for node in half.nodes if node.op == "all_reduce"]
    assert [evaluate(size, {"B": 1}) for (size,) in sums] == [1024, 1024, 1024]
