"""Number formats of weights, cache, activations and arithmetic, set apart."""

from __future__ import annotations

import pytest

import roofline as rl
from roofline.counting.memory import memory


def formats(graph: rl.Graph, kind: str) -> dict[str, str]:
    return {name: tensor.dtype for name, tensor in graph.tensors.items() if tensor.kind == kind}


def test_weight_only_quantisation_leaves_the_table_the_norms_and_the_rest() -> None:
    graph = rl.passes.cast(rl.model("llama-3-8b", phase="decode", layers=1), weights="int8")
    found = formats(graph, "weight")
    assert found["embed.weight"] == "bf16", "the table is looked up, not multiplied"
    assert found["head.weight"] == "int8"
    assert {dtype for name, dtype in found.items() if "norm" in name} == {"bf16"}
    assert {dtype for name, dtype in found.items() if name.startswith("layers") and "norm" not in name} == {"int8"}
    assert set(formats(graph, "cache").values()) == {"bf16"}


def test_a_tied_head_changes_with_the_matrices() -> None:
    graph = rl.model("gpt2", phase="decode", layers=1, dtype="bf16")
    assert formats(rl.passes.cast(graph, weights="int8"), "weight")["embed.weight"] == "int8"
    assert formats(rl.passes.cast(graph, weights="int8"), "weight")["positions.weight"] == "bf16"


def test_biases_stay() -> None:
    found = formats(rl.passes.cast(rl.model("gpt2", layers=1, dtype="bf16"), weights="int8"), "weight")
    biases = {dtype for name, dtype in found.items() if name.endswith("bias")}
    assert biases == {"bf16"}


def test_indices_and_masks_keep_their_format() -> None:
    graph = rl.model("gpt2", phase="prefill", layers=1, attention="naive")
    for change in ({"dtype": "fp8"}, {"activations": "fp8"}):
        found = formats(rl.passes.cast(graph, **change), "input")
        assert (found["ids"], found["position_ids"], found["mask"]) == ("int64", "int64", "bool")


def test_the_cache_changes_with_everything_that_shares_its_storage() -> None:
    graph = rl.passes.cast(rl.model("llama-3-8b", phase="decode", layers=1), cache="fp8")
    assert set(formats(graph, "cache").values()) == {"fp8"}
    updated = [node.outputs[0] for node in graph.nodes if node.op == "cache_update"]
    assert {graph.tensors[name].dtype for name in updated} == {"fp8"}
    at = {"B": 4, "C": 1000}
    before = rl.model("llama-3-8b", phase="decode", layers=1)
    assert memory(graph, at).kv_cache * 2 == memory(before, at).kv_cache
    # Attention reads the cache at one byte; activations stay at two.
    saved = rl.count(before, **at).bytes - rl.count(graph, **at).bytes
    assert saved == 4 * 1000 * 2 * 8 * 128 + 4 * 1 * 2 * 8 * 128  # read the cache, write the new position


def test_weights_of_8_bits_multiply_in_the_format_of_the_activations_unless_told() -> None:
    graph = rl.model("llama-3-8b", phase="decode", layers=1)

    def runs(**change: str) -> set[str]:
        return {dtype for row in rl.count(rl.passes.cast(graph, **change), B=1, C=8).rows for dtype in row.flops_by}

    assert runs() == {"bf16"}
    assert runs(weights="int8") == {"bf16"}
    assert runs(weights="fp8", activations="fp8", cache="fp8") == {"fp8"}
    assert runs(weights="int8", compute="int8") == {"int8"}
    assert runs(dtype="fp32") == {"fp32"}


def test_the_whole_model_changes_with_one_word() -> None:
    graph = rl.passes.cast(rl.model("llama-3-8b", phase="decode", layers=1), "fp32")
    kinds = {t.dtype for t in graph.tensors.values() if t.dtype != "int64"}
    assert kinds == {"fp32"}
    assert memory(graph, {"B": 1, "C": 1}).weights == 4 * graph.parameters


def test_flops_never_change() -> None:
    graph = rl.model("mixtral-8x7b", phase="decode", layers=1)
    before = rl.count(graph, B=4, C=64)
    for change in ({"dtype": "fp32"}, {"weights": "int4-g128"}, {"cache": "fp8"}, {"compute": "fp8"}):
        after = rl.count(rl.passes.cast(graph, **change), B=4, C=64)
        assert (after.flops, after.vector_flops) == (before.flops, before.vector_flops)


def test_scales_of_group_wise_weights_take_memory() -> None:
    graph = rl.model("llama-3-8b", phase="decode", layers=1)
    changed = rl.passes.cast(graph, weights="int4-g128")
    stays = sum(t.numel for t in changed.tensors.values() if t.kind == "weight" and t.dtype == "bf16")
    rest = graph.parameters - stays
    assert memory(changed, {"B": 1, "C": 1}).weights == 2 * stays + rest * 4.25 / 8


def test_weights_seen_through_a_view_are_matrices_too() -> None:
    graph = rl.passes.cast(rl.model("deepseek-v2-lite", phase="decode", layers=1), weights="int8")
    found = formats(graph, "weight")
    assert found["layers.0.attn.kv_b.weight"] == "int8"


@pytest.mark.parametrize("spelled", ["torch.bfloat16", "BF16", "bfloat16"])
def test_any_spelling_of_a_format(spelled: str) -> None:
    graph = rl.passes.cast(rl.model("gpt2", layers=1), spelled)
    assert graph.tensors["embed.weight"].dtype == "bf16"


def test_unknown_formats_are_refused() -> None:
    graph = rl.model("gpt2", layers=1)
    for part in ("dtype", "weights", "cache", "activations", "compute"):
        with pytest.raises(rl.errors.UnknownDType, match="did you mean int8"):
            rl.passes.cast(graph, **{part: "int88"})


@pytest.mark.parametrize(
    ("graph", "option"),
    [(rl.model("resnet50"), "cache"), (rl.model("bert-base-uncased"), "cache"),
     (rl.workload([{"op": "relu", "n": 8}]), "weights")],
)  # fmt: skip
def test_a_format_of_what_is_not_there_is_refused(graph: rl.Graph, option: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=f"{option}='int8'.* has no "):
        rl.passes.cast(graph, **{option: "int8"})


def test_the_original_is_left_alone_and_nothing_asked_is_nothing_changed() -> None:
    graph = rl.model("gpt2", layers=1)
    assert rl.passes.cast(graph).tensors == graph.tensors
    rl.passes.cast(graph, "fp8", compute="fp8")
    assert graph.tensors["embed.weight"].dtype != "fp8"


def test_a_captured_kernel_that_reads_one_format_by_now_casts_nothing() -> None:
    torch = pytest.importorskip("torch")
    operands = torch.zeros(8, 64), torch.zeros(8, 64, dtype=torch.bfloat16)
    graph = rl.from_torch(lambda x, y: x * y, *operands)
    same = rl.from_torch(lambda x, y: x * y, operands[1], operands[1])
    assert [node.attrs for node in graph.nodes] != [node.attrs for node in same.nodes]
    assert [node.attrs for node in rl.passes.cast(graph, "bf16").nodes] == [node.attrs for node in same.nodes]
