"""Law of gradients: what a derived backward computes is the slope of the forward, by finite differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.ops.registry import GRADIENTS

UNARY = [name for name, op in rl.ops.OPS.items() if op.derivative is not None]
STEP = 1e-5
TOLERANCE = 2e-6


def slopes(graph: rl.Graph, seed: int = 0, **options: Any) -> dict[str, tuple[float, float]]:
    """For each weight the slope along a random direction: from the backward, and from the forward at two points."""
    step = rl.passes.backward(graph, **options)
    dice = np.random.default_rng(seed)
    weights = {w: dice.standard_normal(graph.tensors[w].shape) / 2 + 0.1 for w, _ in step.info.training.gradients}
    ahead = {
        name: dice.standard_normal(t.shape)
        for name, t in step.tensors.items()
        if t.kind == "input" and name.endswith("grad_in")
    }
    found = rl.ops.execute(step, {**weights, **ahead}, seed)

    def value(at: dict[str, Any]) -> float:
        outputs = rl.ops.execute(graph, at, seed)
        return float(sum((outputs[o] * ahead.get(f"{o}.grad_in", 1.0)).sum() for o in graph.outputs))

    slopes: dict[str, tuple[float, float]] = {}
    for weight, gradient in step.info.training.gradients:
        way = dice.standard_normal(graph.tensors[weight].shape)
        above, below = (value({**weights, weight: weights[weight] + s * STEP * way}) for s in (1, -1))
        slopes[weight] = (float((found[gradient] * way).sum()), (above - below) / (2 * STEP))
    return slopes


def agree(graph: rl.Graph, **options: Any) -> None:
    found = slopes(graph, **options)
    assert found
    scale = max(abs(slope) for _, slope in found.values())
    for weight, (ours, slope) in found.items():
        assert ours == pytest.approx(slope, rel=TOLERANCE, abs=TOLERANCE * scale), weight


TINY: dict[str, Any] = {"hidden": 16, "layers": 2, "heads": 4, "vocab": 40, "intermediate": 24}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {"activation": "gelu", "positions": 12, "fused_qkv": False}),
    "gpt2, tanh": ("gpt2", {"activation": "gelu_tanh", "positions": 12, "fused_qkv": False, "tied": False}),
    "llama": ("llama-3.2-1b", {"kv_heads": 2, "head_dim": 4, "rope": False, "fused_qkv": False,
                               "fused_gate_up": False}),
    "parallel": ("llama-3.2-1b", {"kv_heads": 1, "head_dim": 4, "rope": False, "fused_qkv": False,
                                  "fused_gate_up": False, "block": "parallel"}),
    "bert": ("bert-base-uncased", {"positions": 12, "pooler": False}),
}  # fmt: skip


def model(name: str, phase: str, **more: Any) -> rl.Graph:
    known, options = MODELS[name]
    return rl.model(known, phase=phase, **TINY, **options, **more).bind(B=2, S=5)


@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, attention: str) -> None:
    agree(model(name, "forward", attention=attention))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("attention", ["naive", "sdpa"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full", "operators"])
def test_computing_again_changes_no_gradient(name: str, attention: str, recompute: Any) -> None:
    graph = model(name, "train", attention=attention)
    named = {"gpt2": ("layernorm", "gelu", "add"), "llama": ("rmsnorm", "silu", "mul")}[name]
    agree(graph, recompute=named if recompute == "operators" else recompute)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_under_autocast(name: str) -> None:
    agree(rl.passes.autocast(rl.passes.cast(model(name, "train"), "fp32")))


def test_megatron_kernels() -> None:
    graph = rl.model("megatron-22b", phase="train", **{**TINY, "positions": 12}, fused_qkv=False).bind(B=2, S=5)
    agree(rl.passes.megatron_kernels(graph), recompute="full")


def one(op: str, *shapes: tuple[int, ...], **attrs: Any) -> rl.Graph:
    b = rl.ops.Builder(op, "fp32")
    made = [b.op("mul", b.input(f"x{i}", s), b.weight(f"w{i}", s), name=f"in{i}") for i, s in enumerate(shapes)]
    return b.graph([b.op(op, *made, name="y", **attrs)])


OPERATORS: dict[str, rl.Graph] = {
    "linear": one("linear", (3, 4, 5), (6, 5), (6,)),
    "matmul": one("matmul", (3, 4, 5), (5, 6), (6,)),
    "bmm": one("bmm", (3, 4, 5), (3, 5, 6)),
    "layernorm": one("layernorm", (4, 6), (6,), (6,)),
    "rmsnorm": one("rmsnorm", (4, 6), (6,)),
    "batchnorm_train": one("batchnorm_train", (4, 3, 2, 2), (3,), (3,)),
    "softmax": one("softmax", (4, 6)),
    "conv2d": one("conv2d", (2, 4, 5, 5), (6, 2, 3, 3), (6,), padding=1, groups=2, stride=2),
    "conv1d": one("conv1d", (2, 3, 7), (4, 3, 5), (4,), padding=1),
    "conv_transpose2d": one("conv_transpose2d", (2, 3, 3, 3), (3, 4, 2, 2), (4,), stride=2),
    "add, broadcast": one("add", (3, 4, 5), (4, 1)),
    "mul, broadcast": one("mul", (3, 4, 5), (5,)),
    "sub": one("sub", (3, 4), (4,)),
    "div": one("div", (3, 4), (3, 4)),
    "maximum": one("maximum", (3, 4), (3, 4)),
    "minimum": one("minimum", (3, 4), (4,)),
    "mul_scalar": one("mul_scalar", (3, 4)),
    "neg": one("neg", (3, 4)),
    "softcap": one("softcap", (3, 4)),
    "clamp": one("clamp", (3, 4)),
    "sum": one("sum", (3, 4)),
    "mean": one("mean", (3, 4)),
    "reduce": one("reduce", (3, 4, 5), axes=(0, 2), how="sum"),
    "cat": one("cat", (3, 4), (3, 2), axis=1),
    "expand": one("expand", (3, 1), shape=(3, 4)),
    "permute": one("permute", (3, 4, 5), axes=(2, 0, 1)),
    "view": one("view", (3, 4, 5), shape=(12, 5)),
    "transpose_copy": one("transpose_copy", (3, 4)),
    "scatter_add": one("scatter_add", (6, 2), t=3),
    "attention_softmax": one("attention_softmax", (2, 3, 4, 5), causal=True),
    **{op: one(op, (3, 4)) for op in UNARY},
}  # fmt: skip


@pytest.mark.parametrize("op", OPERATORS)
def test_operators(op: str) -> None:
    graph = OPERATORS[op]
    if op in ("log", "sqrt", "rsqrt", "reciprocal", "div"):  # of what may be negative or nought
        shapes = {n: t.shape for n, t in graph.tensors.items() if t.kind == "weight"}
        b = rl.ops.Builder(op, "fp32")
        made = [b.op("exp", b.weight(name, shape), name=f"e{name}") for name, shape in shapes.items()]
        graph = b.graph([b.op(op, *made, name="y")])
    agree(graph)


def test_parts_and_picks() -> None:
    b = rl.ops.Builder("parts", "fp32")
    x = b.op("mul", b.input("x", (3, 8)), b.weight("w", (3, 8)), name="in")
    first, rest = (b.op("slice", x, name=n, shape=(3, 4), axis=1, start=s) for n, s in (("first", 0), ("rest", 4)))
    y = b.op("mul", first, b.op("tanh", rest, name="act"), name="gated")
    agree(b.graph([b.op("take", y, b.input("ids", (5,), "int64"), name="picked", shape=(5,))]))


def test_tables() -> None:
    b = rl.ops.Builder("tables", "fp32")
    rows = b.op("embedding", b.weight("table", (7, 4)), b.input("ids", (3, 5), "int64"), name="rows")
    agree(b.graph([b.op("silu", rows, name="y")]))


def test_every_elementwise_gradient_has_a_meaning() -> None:
    assert {f"{op}_grad" for op in UNARY} <= GRADIENTS.keys()
