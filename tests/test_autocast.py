"""Programs under autocast: which operator runs in which format, and what is cast."""

from __future__ import annotations

import pytest

import roofline as rl


def block() -> rl.Graph:
    """A norm, a linear layer, an activation and a residual, as a layer has them."""
    b = rl.ops.Builder("block", "fp32")
    x = b.input("x", (4, 8))
    y = b.op("layernorm", x, b.weight("g", (8,)), b.weight("s", (8,)), name="norm")
    y = b.op("linear", y, b.weight("w", (8, 8)), b.weight("b", (8,)), name="linear")
    y = b.op("gelu", y, name="act")
    return b.graph([b.op("add", x, y, name="sum")])


def test_products_run_in_sixteen_bits_and_norms_and_sums_in_fp32() -> None:
    graph = rl.passes.autocast(block())
    formats = {node.name: graph.tensors[node.outputs[0]].dtype for node in graph.nodes if node.op != "cast"}
    assert formats == {"norm": "fp32", "linear": "bf16", "act": "bf16", "sum": "fp32"}
    assert [node.name for node in graph.nodes if node.op == "cast"] == ["linear.norm.bf16", "w.bf16", "b.bf16"]


def test_weights_are_cast_once_and_activations_for_each_reader() -> None:
    b = rl.ops.Builder("twice", "fp32")
    x, w = b.input("x", (4, 8)), b.weight("w", (8, 8))
    graph = rl.passes.autocast(b.graph([b.op("linear", x, w, name="one"), b.op("linear", x, w, name="two")]))
    assert [node.name for node in graph.nodes if node.op == "cast"] == ["one.x.bf16", "w.bf16", "two.x.bf16"]


def test_gradients_of_weights_come_back_in_fp32() -> None:
    step = rl.passes.backward(rl.passes.autocast(block(), "fp16"))
    gradients = dict(step.info.training.gradients)
    assert {step.tensors[name].dtype for name in gradients.values()} == {"fp32"}
    product = next(node for node in step.nodes if node.name == "linear.grad_w")
    assert step.tensors[product.outputs[0]].dtype == "fp16"


@pytest.mark.parametrize("name", ["gpt2", "llama-3.2-1b", "bert-base-uncased", "resnet18", "vit-b-16", "mixtral-8x7b"])
def test_flops_stay_and_all_products_run_in_the_lower_format(name: str) -> None:
    graph = rl.passes.cast(rl.model(name, phase="train"), "fp32")
    mixed = rl.passes.autocast(graph)
    sizes = {"B": 2, "S": 32} if "S" in graph.symbols else {"B": 2}
    before, after = rl.count(graph, **sizes), rl.count(mixed, **sizes)
    assert before.flops == after.flops
    assert {dtype for row in after.rows for dtype in row.flops_by} == {"bf16"}
    assert mixed.outputs == graph.outputs


def test_attention_that_is_one_kernel_is_fed_from_outside() -> None:
    graph = rl.passes.autocast(rl.passes.cast(rl.model("gpt2", phase="train", layers=1), "fp32"))
    inside = [node for node in graph.nodes if node.label == "layers.0.attn.sdpa"]
    assert {node.op for node in inside} == {
        "attention_scores", "attention_softmax", "bernoulli", "dropout", "attention_values"
    }  # fmt: skip
    assert {graph.tensors[n.outputs[0]].dtype for n in inside if n.op != "bernoulli"} == {"bf16"}


def test_gelu_of_gpt2_runs_in_fp32_from_its_power_on() -> None:
    """``pow`` is on autocast's fp32 list, and sums with it are promoted; the plain ``gelu`` is on none."""
    graph = rl.passes.autocast(rl.passes.cast(rl.model("gpt2", phase="train", layers=1), "fp32"))
    named = {name.removeprefix("layers.0.mlp.gelu_new."): t.dtype for name, t in graph.tensors.items()}
    assert [named[k] for k in ("cube", "inner", "tanh", "half", "out")] == ["fp32", "fp32", "fp32", "bf16", "fp32"]


def test_a_loss_stays_in_fp32_whatever_the_rest_is_in() -> None:
    graph = rl.model("gpt2", phase="train", layers=1, dtype="bf16")
    assert {graph.tensors[n].dtype for n in ("log_softmax", "picked", "loss")} == {"fp32"}
    assert graph.tensors["head"].dtype == "bf16"
    casts = [node for node in graph.nodes if node.op == "cast"]
    assert len(casts) == 1
    assert not [n for n in rl.passes.cast(graph, "fp32").nodes if n.op == "cast"]


def test_every_fp32_operator_is_registered() -> None:
    from roofline.passes.formats.autocast import FP32

    assert rl.ops.OPS.keys() >= FP32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rl.passes.autocast(block(), "int8"), "allowed: bf16, fp16"),
        (lambda: rl.passes.autocast(rl.passes.backward(block())), "comes before backward"),
    ],
)
def test_what_cannot_be_is_refused(call: object, message: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=message):
        call()  # type: ignore[operator]
