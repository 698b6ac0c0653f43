"""Small programs for the tests of lowering to loops, and what they are held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

import roofline as rl
from roofline.codegen.loops.form import Kernel
from roofline.codegen.loops.interpret import count_operations, interpret
from roofline.codegen.loops.lowering import LoopProgram
from roofline.ops import execute
from roofline.ops.aliases import aliases

Arrays = dict[str, npt.NDArray[np.float64]]


def mlp() -> rl.Graph:
    b = rl.ops.Builder("mlp", "fp32")
    x = b.input("x", (5, 7))
    with b.kernel("up"):
        wide = b.op("linear", x, b.weight("w1", (12, 7)), b.weight("b1", (12,)), name="wide")
        wide = b.op("gelu", wide, name="bent")
    return b.graph([b.op("add", x, b.op("linear", wide, b.weight("w2", (7, 12)), name="down"), name="y")])


def convolution() -> rl.Graph:
    b = rl.ops.Builder("conv", "fp32")
    with b.kernel("conv"):
        x = b.op("conv2d", b.input("x", (1, 3, 7, 7)), b.weight("w", (4, 3, 3, 3)), stride=2, padding=1, name="conv")
        x = b.op("batchnorm2d", x, *(b.weight(name, (4,)) for name in ("scale", "shift", "mean", "var")), name="bn")
        x = b.op("relu", x, name="y")
    return b.graph([x])


def attention() -> rl.Graph:
    b = rl.ops.Builder("attention", "fp32")
    q, k, v = (b.input(name, (2, 6, heads * 2)) for name, heads in (("q", 4), ("k", 2), ("v", 2)))
    q, k, v = (b.op("view", x, shape=(2, heads, 6, 2), name=f"{x}_heads") for x, heads in ((q, 4), (k, 2), (v, 2)))
    with b.kernel("flash"):
        scores = b.op("attention_scores", q, k, causal=True, name="scores")
        weights = b.op("attention_softmax", scores, causal=True, name="weights")
        out = b.op("attention_values", weights, v, causal=True, name="values")
    out = b.op("view", out, shape=(2, 6, 8), name="rows")
    return b.graph([b.op("linear", out, b.weight("w", (8, 8)), name="y")])


def norms() -> rl.Graph:
    b = rl.ops.Builder("norms", "fp32")
    x = b.op("embedding", b.weight("table", (9, 6)), b.input("ids", (2, 3), dtype="int32"), name="x")
    x = b.op("rmsnorm", x, b.weight("r", (6,)), name="rms")
    x = b.op("layernorm", x, b.weight("s", (6,)), b.weight("t", (6,)), name="ln")
    return b.graph([b.op("softmax", b.op("cat", x, x, axis=1, name="both"), name="y")])


PROGRAMS: dict[str, Callable[[], rl.Graph]] = {
    "mlp": mlp, "conv": convolution, "attention": attention, "norms": norms,
}  # fmt: skip


def one(op: str, *shapes: tuple[int, ...], formats: tuple[str, ...] = (), **options: Any) -> rl.Graph:
    b = rl.ops.Builder(op, "fp32")
    formats = formats or ("fp32",) * len(shapes)
    inputs = [b.input(f"x{at}", shape, dtype=own) for at, (shape, own) in enumerate(zip(shapes, formats, strict=True))]
    return b.graph([b.op(op, *inputs, name="y", **options)])


def drawn(graph: rl.Graph) -> Arrays:
    """Positive numbers, so that roots and logarithms are real; every index once."""
    dice = np.random.default_rng(7)
    arrays: Arrays = {}
    for tensor in graph.tensors.values():
        shape = tuple(int(size) for size in tensor.shape)  # type: ignore[arg-type]
        if tensor.dtype.startswith("int"):
            arrays[tensor.name] = dice.permutation(int(np.prod(shape))).reshape(shape).astype(np.float64)
        elif tensor.kind != "activation":
            arrays[tensor.name] = dice.uniform(0.2, 1.5, shape)
    return arrays


def on_kernels(program: LoopProgram, change: Callable[[Kernel], Kernel]) -> LoopProgram:
    return replace(program, calls=tuple(replace(call, kernel=change(call.kernel)) for call in program.calls))


def hold(graph: rl.Graph, program: LoopProgram) -> None:
    """The loops compute the executor's numbers, as many FLOPs, and touch as many bytes as the graph's counts say."""
    arrays, counts = drawn(graph), rl.count(graph)
    results, moved = interpret(program, arrays)
    for name, expected in execute(graph, arrays).items():
        np.testing.assert_allclose(results[aliases(graph).root(name)].ravel(), expected.ravel(), rtol=1e-9)
    work = [count_operations(call.kernel) for call in program.calls]
    assert sum(each.flops for each in work) == counts.flops
    assert sum(each.vector for each in work) == counts.vector_flops
    assert sum(map(sum, moved)) == counts.bytes
