"""Megatron-LM's fused kernels: what they join, and that nothing else changes."""

from __future__ import annotations

import pytest

import roofline as rl

SIZES = {"B": 2, "S": 128}
PLAIN = rl.model("megatron-22b", phase="train", layers=2)


def test_a_layer_runs_its_branches_by_fused_kernels() -> None:
    labels: dict[str, list[str]] = {}
    for node in rl.passes.megatron_kernels(PLAIN).nodes:
        labels.setdefault(node.label, []).append(node.op)
    fused = {label: ops for label, ops in labels.items() if label.startswith("layers.0.") and len(ops) > 1}
    assert fused == {
        "layers.0.attn.softmax.scale_mask_softmax": ["mul_scalar", "mask", "attention_softmax"],
        "layers.0.attn.dropout": ["bernoulli", "dropout"],
        "layers.0.attn.out.bias_dropout_add": ["bias_add", "bernoulli", "dropout", "add"],
        "layers.0.mlp.up.bias_gelu": ["bias_add", "gelu_tanh"],
        "layers.0.mlp.down.bias_dropout_add": ["bias_add", "bernoulli", "dropout", "add"],
    }


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_products_and_what_is_kept_stay_and_traffic_falls(recompute: str) -> None:
    before, after = (
        rl.passes.backward(graph, recompute=recompute) for graph in (PLAIN, rl.passes.megatron_kernels(PLAIN))
    )
    assert rl.count(before, **SIZES).flops == rl.count(after, **SIZES).flops
    assert rl.count(before, **SIZES).bytes > rl.count(after, **SIZES).bytes
    assert rl.count(before, **SIZES).launches > rl.count(after, **SIZES).launches
    assert rl.passes.saved(before, **SIZES) == rl.passes.saved(after, **SIZES)
    assert {w for w, _ in before.info.training.gradients} == {w for w, _ in after.info.training.gradients}


def test_the_backward_of_bias_and_gelu_adds_the_bias_again() -> None:
    step = rl.passes.backward(rl.passes.megatron_kernels(PLAIN))
    kernel = [node.op for node in step.nodes if node.label == "layers.0.mlp.up.bias_gelu.grad"]
    assert kernel == ["bias_add", "elementwise"]


def test_weights_and_outputs_stay() -> None:
    fused = rl.passes.megatron_kernels(PLAIN)
    assert fused.parameters == PLAIN.parameters
    assert fused.outputs == PLAIN.outputs
    assert [step.name for step in fused.history] == ["megatron_kernels"]


def test_a_program_without_these_forms_is_refused() -> None:
    with pytest.raises(rl.errors.UsageError, match="nothing to fuse"):
        rl.passes.megatron_kernels(rl.model("llama-3.2-1b", phase="train", layers=1))
