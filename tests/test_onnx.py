"""ONNX files: rules against arithmetic by hand, exports against the models that they came from, and bad files."""

from __future__ import annotations

import doctest
import sys
import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.cli import main
from roofline.counting.memory import memory
from roofline.frontends.onnx.rules import RULES

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper  # noqa: E402

F, I64, I32, U8, I8, BOOL, F16 = (
    TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.UINT8, TensorProto.INT8, TensorProto.BOOL,
    TensorProto.FLOAT16,
)  # fmt: skip
MS = "com.microsoft"
B, S = rl.ops.symbol("B"), rl.ops.symbol("S")


def hollow(name: str, shape: Sequence[int], kind: int = F) -> Any:
    """A weight of which only the shape is there, as if its data lay beside the file."""
    tensor = TensorProto(name=name, dims=shape, data_type=kind, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="../../etc/passwd")
    return tensor


def small(name: str, values: Any, kind: int = I64) -> Any:
    """A constant whose elements are there."""
    numbers = np.array(values)
    return helper.make_tensor(name, kind, numbers.shape, numbers.reshape(-1).tolist())


def node(op: str, inputs: str, outputs: str = "y", domain: str = "", **attrs: Any) -> Any:
    """A node; ``_`` leaves an operand out."""
    names = ["" if each == "_" else each for each in inputs.split()]
    return helper.make_node(op, names, outputs.split(), domain=domain, name="", **attrs)


def proto(
    nodes: Sequence[Any], inputs: Mapping[str, Any], stored: Sequence[Any] = (), outputs: str = "y", opset: int = 21,
    **more: Any,
) -> Any:  # fmt: skip
    """A model; an input is a shape, or a shape and an element type."""
    given = []
    for name, entry in inputs.items():
        shape, kind = entry if isinstance(entry, tuple) else (entry, F)
        given.append(helper.make_tensor_value_info(name, kind, shape))
    ends = [helper.make_tensor_value_info(name, F, None) for name in outputs.split()]
    graph = helper.make_graph(nodes, "tiny", given, ends, stored)
    sets = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=sets, **more)


def read(*args: Any, sizes: Any = None, unknown: str = "error", dtype: str | None = None, **more: Any) -> rl.Graph:
    content = proto(*args, **more).SerializeToString()
    return rl.from_onnx(content, sizes, unknown=unknown, dtype=dtype)


def shape_of(graph: rl.Graph) -> tuple[Any, ...]:
    return graph.tensors[graph.outputs[0]].shape


def flops(graph: rl.Graph, **sizes: int) -> tuple[int, int]:
    totals = rl.count(graph, **sizes)
    return totals.flops, totals.vector_flops


def test_the_example_of_the_docstring() -> None:
    """Skipped among the others, which run without the package onnx."""
    text = (rl.from_onnx.__doc__ or "").replace("# doctest: +SKIP", "")
    example = doctest.DocTestParser().get_doctest(text, {}, "from_onnx", None, 0)
    assert len(example.examples) == 8
    assert doctest.DocTestRunner().run(example).failed == 0


# --- contractions: flops by hand, two a multiply-add -----------------------------------------------------------------

X = {"x": [2, 5, 8]}
IMAGE = {"x": [2, 4, 9, 9]}
W = [hollow("w", (8, 6))]
KERNEL = [hollow("w", (6, 4, 3, 3)), hollow("c", (6,))]
CONTRACTIONS: dict[str, tuple[Any, Any, Any, int, tuple[int, ...]]] = {
    # name: node, inputs, stored, multiply-adds, shape
    "matmul": (node("MatMul", "x w"), X, W, 2 * 5 * 8 * 6, (2, 5, 6)),
    "matmul batched": (node("MatMul", "x v"), {**X, "v": [2, 8, 3]}, [], 2 * 5 * 8 * 3, (2, 5, 3)),
    "matmul broadcast": (node("MatMul", "x v"), {"x": [3, 1, 5, 8], "v": [2, 8, 3]}, [], 6 * 5 * 8 * 3, (3, 2, 5, 3)),
    "matmul vector": (node("MatMul", "x v"), {**X, "v": [8]}, [], 2 * 5 * 8, (2, 5)),
    "gemm": (node("Gemm", "x w c"), {"x": [5, 8]}, [*W, hollow("c", (6,))], 5 * 8 * 6, (5, 6)),
    "gemm trans": (
        node("Gemm", "x w", transA=1, transB=1), {"x": [8, 5]}, [hollow("w", (6, 8))], 5 * 8 * 6, (5, 6)),
    "gemm of a matrix bias": (node("Gemm", "x w c"), {"x": [5, 8], "c": [5, 6]}, W, 5 * 8 * 6, (5, 6)),
    "fused matmul": (
        node("FusedMatMul", "x v", domain=MS, transB=1), {**X, "v": [2, 3, 8]}, [], 2 * 5 * 8 * 3, (2, 5, 3)),
    "einsum": (node("Einsum", "x v", equation="bik,bjk->bij"), {**X, "v": [2, 3, 8]}, [], 2 * 5 * 8 * 3, (2, 5, 3)),
    "einsum heads": (
        node("Einsum", "x v", equation="bqhd,bkhd->bhqk"), {"x": [2, 5, 4, 8], "v": [2, 7, 4, 8]}, [],
        2 * 4 * 5 * 7 * 8, (2, 4, 5, 7)),
    "einsum implicit": (node("Einsum", "x v", equation="...k,kn"), {**X, "v": [8, 3]}, [], 2 * 5 * 8 * 3, (2, 5, 3)),
    "einsum of three": (
        node("Einsum", "x v u", equation="ij,jk,kl->il"), {"x": [2, 3], "v": [3, 4], "u": [4, 5]}, [],
        2 * 3 * 4 + 2 * 4 * 5, (2, 5)),
    "conv": (node("Conv", "x w c", pads=[1] * 4), IMAGE, KERNEL, 2 * 6 * 9 * 9 * 4 * 9, (2, 6, 9, 9)),
    "conv strided": (node("Conv", "x w", strides=[2, 2]), IMAGE, KERNEL, 2 * 6 * 4 * 4 * 4 * 9, (2, 6, 4, 4)),
    "conv same": (
        node("Conv", "x w", strides=[2, 2], auto_pad="SAME_UPPER"), IMAGE, KERNEL, 2 * 6 * 5 * 5 * 4 * 9, (2, 6, 5, 5)),
    "conv uneven": (
        node("Conv", "x w", strides=[2, 2], pads=[0, 0, 1, 1]), {"x": [2, 4, 8, 8]}, KERNEL, 2 * 6 * 4 * 4 * 4 * 9,
        (2, 6, 4, 4)),
    "conv uneven, padded": (
        node("Conv", "x w", pads=[0, 0, 1, 1]), IMAGE, KERNEL, 2 * 6 * 8 * 8 * 4 * 9, (2, 6, 8, 8)),
    "conv grouped": (
        node("Conv", "x w", group=4), IMAGE, [hollow("w", (4, 1, 3, 3))], 2 * 4 * 7 * 7 * 9, (2, 4, 7, 7)),
    "conv 1d": (node("Conv", "x w"), {"x": [2, 4, 9]}, [hollow("w", (6, 4, 3))], 2 * 6 * 7 * 4 * 3, (2, 6, 7)),
    "conv 3d": (
        node("Conv", "x w"), {"x": [1, 4, 5, 5, 5]}, [hollow("w", (6, 4, 3, 3, 3))], 6 * 27 * 4 * 27, (1, 6, 3, 3, 3)),
    "conv dilated": (node("Conv", "x w", dilations=[2, 2]), IMAGE, KERNEL, 2 * 6 * 5 * 5 * 4 * 9, (2, 6, 5, 5)),
    "conv transposed": (
        node("ConvTranspose", "x w", strides=[2, 2], pads=[1] * 4, output_padding=[1, 1]), IMAGE,
        [hollow("w", (4, 6, 3, 3))], 2 * 4 * 9 * 9 * 6 * 9, (2, 6, 18, 18)),
    "conv transposed, odd": (
        node("ConvTranspose", "x w", strides=[2, 2], pads=[0, 0, 1, 1]), IMAGE,
        [hollow("w", (4, 6, 3, 3))], 2 * 4 * 9 * 9 * 6 * 9, (2, 6, 18, 18)),
    "fused conv": (
        node("FusedConv", "x w c", domain=MS, activation="Relu"), IMAGE, KERNEL, 2 * 6 * 7 * 7 * 4 * 9, (2, 6, 7, 7)),
    "attention": (
        node("Attention", "q k v"), {"q": [2, 4, 5, 8], "k": [2, 2, 7, 8], "v": [2, 2, 7, 6]}, [],
        2 * 4 * 5 * 7 * (8 + 6), (2, 4, 5, 6)),
    "attention flat": (
        node("Attention", "q k v", q_num_heads=4, kv_num_heads=4),
        {"q": [2, 5, 32], "k": [2, 7, 32], "v": [2, 7, 32]}, [], 2 * 4 * 5 * 7 * 16, (2, 5, 32)),
    "attention causal": (
        node("Attention", "q k v", is_causal=1), {each: [2, 4, 5, 8] for each in "qkv"}, [], 2 * 4 * 15 * 16,
        (2, 4, 5, 8)),
    "attention with a past": (
        node("Attention", "q k v _ pk pv"),
        {**{e: [2, 4, 1, 8] for e in "qkv"}, "pk": [2, 4, 6, 8], "pv": [2, 4, 6, 8]},
        [], 2 * 4 * 7 * 16, (2, 4, 1, 8)),
    "packed attention": (
        node("Attention", "x w c", domain=MS, num_heads=4), {"x": [2, 5, 8]},
        [hollow("w", (8, 24)), hollow("c", (24,))], 2 * 5 * 8 * 24 + 2 * 5 * 5 * 16, (2, 5, 8)),
    "multi-head attention": (
        node("MultiHeadAttention", "q k v", domain=MS, num_heads=4),
        {"q": [2, 5, 32], "k": [2, 7, 32], "v": [2, 7, 32]}, [], 2 * 4 * 5 * 7 * 16, (2, 5, 32)),
    "grouped attention": (
        node("GroupQueryAttention", "q k v pk pv n t", domain=MS, num_heads=4, kv_num_heads=2),
        {"q": [2, 1, 32], "k": [2, 1, 16], "v": [2, 1, 16], "pk": [2, 2, 6, 8], "pv": [2, 2, 6, 8],
         "n": ([2], I32), "t": ([1], I32)}, [], 2 * 4 * 7 * 16, (2, 1, 32)),
    "grouped attention, packed": (
        node("GroupQueryAttention", "q _ _ _ _ n t", domain=MS, num_heads=4, kv_num_heads=2, do_rotary=1),
        {"q": [2, 5, 64], "n": ([2], I32), "t": ([1], I32)}, [], 2 * 4 * 15 * 16, (2, 5, 32)),
    "gemm and gelu": (node("GemmFastGelu", "x w c", domain=MS), {"x": [5, 8]}, [*W, hollow("c", (6,))], 240, (5, 6)),
    "fused gemm": (node("FusedGemm", "x w", domain=MS, activation="Relu"), {"x": [5, 8]}, W, 240, (5, 6)),
    "qgemm": (
        node("QGemm", "x s z w s z", domain=MS, transB=1), {"x": ([5, 8], U8)},
        [hollow("w", (6, 8), I8), small("s", 0.5, F), small("z", 3, U8)], 240, (5, 6)),
    "nbits": (
        node("MatMulNBits", "x w s", domain=MS, K=64, N=6, bits=4, block_size=32), {"x": [2, 64]},
        [hollow("w", (6, 2, 16), U8), hollow("s", (12,))], 2 * 64 * 6, (2, 6)),
    "integers": (node("MatMulInteger", "x w"), {"x": ([2, 5, 8], U8)}, [hollow("w", (8, 6), I8)], 480, (2, 5, 6)),
    "qlinear": (
        node("QLinearMatMul", "x s z w s z s z"), {"x": ([2, 5, 8], U8)},
        [hollow("w", (8, 6), U8), small("s", 0.5, F), small("z", 3, U8)], 480, (2, 5, 6)),
    "qlinear conv": (
        node("QLinearConv", "x s z w s z s z c"), {"x": ([2, 4, 9, 9], U8)},
        [hollow("w", (6, 4, 3, 3), U8), small("s", 0.5, F), small("z", 3, U8), hollow("c", (6,), I32)],
        2 * 6 * 49 * 36, (2, 6, 7, 7)),
    "conv of integers": (
        node("ConvInteger", "x w"), {"x": ([2, 4, 9, 9], U8)}, [hollow("w", (6, 4, 3, 3), U8)], 2 * 6 * 49 * 36,
        (2, 6, 7, 7)),
    "lstm": (
        node("LSTM", "x w r c", hidden_size=6), {"x": [7, 2, 8]},
        [hollow("w", (1, 24, 8)), hollow("r", (1, 24, 6)), hollow("c", (1, 48))], 7 * 2 * 24 * (8 + 6), (7, 1, 2, 6)),
    "gru both ways": (
        node("GRU", "x w r", hidden_size=6, direction="bidirectional"), {"x": [7, 2, 8]},
        [hollow("w", (2, 18, 8)), hollow("r", (2, 18, 6))], 2 * 7 * 2 * 18 * (8 + 6), (7, 2, 2, 6)),
    "rnn": (
        node("RNN", "x w r", hidden_size=6), {"x": [7, 2, 8]}, [hollow("w", (1, 6, 8)), hollow("r", (1, 6, 6))],
        7 * 2 * 6 * (8 + 6), (7, 1, 2, 6)),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTRACTIONS)
def test_a_contraction_counts_two_per_multiply_add(name: str) -> None:
    call, inputs, stored, products, shape = CONTRACTIONS[name]
    graph = read([call], inputs, stored, opset=23 if name.startswith("attention") else 21)
    assert flops(graph)[0] == 2 * products
    assert shape_of(graph) == shape
    assert rl.estimate(graph, "h100-sxm").time > 0


def test_a_step_of_a_recurrent_cell_runs_as_often_as_there_are_steps() -> None:
    call, inputs, stored, *_ = CONTRACTIONS["lstm"]
    graph = read([call], inputs, stored)
    assert [n.count for n in graph.nodes if n.op == "linear"] == [1, 7]
    assert graph.parameters == 24 * 8 + 24 * 6 + 48
    free = read([call], {"x": ["sequence", 2, 8]}, stored)
    assert flops(free, S=7)[0] == flops(graph)[0]
    assert "steps are counted as one kernel" in free.info.notes[-1]


# --- the rest: shapes, arithmetic and formats ------------------------------------------------------------------------

V = {"x": [2, 3, 8]}
OTHERS: dict[str, tuple[Any, Any, Any, int, tuple[int, ...]]] = {
    # name: node, inputs, stored, vector operations, shape
    "add": (node("Add", "x w"), V, [hollow("w", (8,))], 48, (2, 3, 8)),
    "of three": (node("Sum", "x x x"), V, [], 2 * 48, (2, 3, 8)),
    "max of three": (node("Max", "x x x"), V, [], 0, (2, 3, 8)),
    "scaled": (node("Mul", "x w"), V, [small("w", 0.5, F)], 48, (2, 3, 8)),
    "gelu": (node("Gelu", "x"), V, [], 5 * 48, (2, 3, 8)),
    "tanh gelu": (node("Gelu", "x", approximate="tanh"), V, [], 9 * 48, (2, 3, 8)),
    "biased gelu": (node("BiasGelu", "x w", domain=MS), V, [hollow("w", (8,))], 6 * 48, (2, 3, 8)),
    "fast gelu": (node("FastGelu", "x", domain=MS), V, [], 9 * 48, (2, 3, 8)),
    "leaky": (node("LeakyRelu", "x"), V, [], 48, (2, 3, 8)),
    "whole numbers": (node("Mul", "x x"), {"x": ([2, 3, 8], I64)}, [], 0, (2, 3, 8)),
    "clip": (node("Clip", "x lo hi"), V, [small("lo", 0.0, F), small("hi", 6.0, F)], 0, (2, 3, 8)),
    "softmax": (node("Softmax", "x", axis=1), V, [], 5 * 48, (2, 3, 8)),
    "layer norm": (
        node("LayerNormalization", "x w c"), V, [hollow("w", (8,)), hollow("c", (8,))], 7 * 48, (2, 3, 8)),
    "layer norm of two axes": (node("LayerNormalization", "x w", axis=1), V, [hollow("w", (3, 8))], 7 * 48, (2, 3, 8)),
    "rms norm": (node("SimplifiedLayerNormalization", "x w"), V, [hollow("w", (8,))], 4 * 48, (2, 3, 8)),
    "skip norm": (
        node("SkipLayerNormalization", "x x w c", domain=MS), V, [hollow("w", (8,)), hollow("c", (8,))], 8 * 48,
        (2, 3, 8)),
    "skip rms norm": (
        node("SkipSimplifiedLayerNormalization", "x x w", domain=MS), V, [hollow("w", (8,))], 5 * 48, (2, 3, 8)),
    "batch norm": (
        node("BatchNormalization", "x w w w w"), IMAGE, [hollow("w", (4,))], 2 * 2 * 4 * 81, (2, 4, 9, 9)),
    "instance norm": (node("InstanceNormalization", "x w w"), IMAGE, [hollow("w", (4,))], 7 * 648, (2, 4, 9, 9)),
    "group norm": (
        node("GroupNormalization", "x w w", num_groups=2), IMAGE, [hollow("w", (4,))], 7 * 648, (2, 4, 9, 9)),
    "sum": (node("ReduceSum", "x a", keepdims=0), V, [small("a", [1])], 48, (2, 8)),
    "mean kept": (node("ReduceMean", "x a"), V, [small("a", [-1])], 48, (2, 3, 1)),
    "norm of all": (node("ReduceL2", "x", keepdims=0), V, [], 2 * 48, ()),
    "largest": (node("ArgMax", "x", axis=1, keepdims=0), V, [], 0, (2, 8)),
    "running sum": (node("CumSum", "x a"), V, [small("a", 1)], 48, (2, 3, 8)),
    "top": (node("TopK", "x k", "y i"), V, [small("k", [3])], 0, (2, 3, 3)),
    "max pool": (node("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2]), IMAGE, [], 0, (2, 4, 4, 4)),
    "max pool, ceil": (
        node("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1), IMAGE, [], 0, (2, 4, 5, 5)),
    "mean pool": (node("AveragePool", "x", kernel_shape=[3, 3]), IMAGE, [], 2 * 4 * 49 * 9, (2, 4, 7, 7)),
    "mean pool of rows": (node("AveragePool", "x", kernel_shape=[2]), V, [], 2 * 3 * 7 * 2, (2, 3, 7)),
    "mean of all": (node("GlobalAveragePool", "x"), IMAGE, [], 648, (2, 4, 1, 1)),
    "rows": (node("Gather", "w x"), {"x": ([2, 3], I64)}, [hollow("w", (50, 8))], 0, (2, 3, 8)),
    "columns": (node("Gather", "w x", axis=1), {"x": ([3], I64)}, [hollow("w", (50, 8))], 0, (50, 3)),
    "one row": (node("Gather", "x i", axis=1), V, [small("i", 0)], 0, (2, 8)),
    "elements": (node("GatherElements", "x i"), {**V, "i": ([1, 3, 8], I64)}, [], 0, (1, 3, 8)),
    "places": (node("GatherND", "x i"), {**V, "i": ([5, 2], I64)}, [], 0, (5, 8)),
    "scattered": (
        node("ScatterND", "x i u", reduction="add"), {**V, "i": ([1, 1], I64), "u": [1, 3, 8]}, [], 24, (2, 3, 8)),
    "slice": (node("Slice", "x a b c d"), V, [small("a", [1]), small("b", [99]), small("c", [2]), small("d", [3])], 0,
              (2, 3, 3)),
    "backwards": (node("Slice", "x a b c d"), V,
                  [small("a", [-1]), small("b", [-99]), small("c", [2]), small("d", [-1])], 0, (2, 3, 8)),
    "split": (node("Split", "x", "y z", axis=2, num_outputs=2), V, [], 0, (2, 3, 4)),
    "concat": (node("Concat", "x x", axis=-1), V, [], 0, (2, 3, 16)),
    "pad": (node("Pad", "x p"), V, [small("p", [0, 1, 0, 0, 1, 2])], 0, (2, 5, 10)),
    "tile": (node("Tile", "x p"), V, [small("p", [1, 2, 1])], 0, (2, 6, 8)),
    "expand": (node("Expand", "x p"), {"x": [2, 1, 8]}, [small("p", [2, 5, 8])], 0, (2, 5, 8)),
    "reshape": (node("Reshape", "x p"), V, [small("p", [0, -1])], 0, (2, 24)),
    "flatten": (node("Flatten", "x"), V, [], 0, (2, 24)),
    "squeeze": (node("Squeeze", "x p"), {"x": [2, 1, 8]}, [small("p", [1])], 0, (2, 8)),
    "unsqueeze": (node("Unsqueeze", "x p"), V, [small("p", [0, -1])], 0, (1, 2, 3, 8, 1)),
    "transpose": (node("Transpose", "x", perm=[1, 0, 2]), V, [], 0, (3, 2, 8)),
    "resize": (node("Resize", "x _ s"), IMAGE, [small("s", [1.0, 1.0, 2.0, 2.0], F)], 0, (2, 4, 18, 18)),
    "resize, mixing": (
        node("Resize", "x _ _ s", mode="linear"), IMAGE, [small("s", [2, 4, 18, 18])], 9 * 2592, (2, 4, 18, 18)),
    "where": (node("Where", "c x x"), {**V, "c": ([3, 1], BOOL)}, [], 0, (2, 3, 8)),
    "cast": (node("Cast", "x", to=F16), V, [], 0, (2, 3, 8)),
    "one hot": (node("OneHot", "x d v"), {"x": ([2, 3], I64)}, [small("d", 9), small("v", [0.0, 1.0], F)], 0,
                (2, 3, 9)),
    "depth to space": (node("DepthToSpace", "x", blocksize=2), IMAGE, [], 0, (2, 1, 18, 18)),
    "quantise": (node("QuantizeLinear", "x s z"), V, [small("s", 0.5, F), small("z", 3, U8)], 96, (2, 3, 8)),
    "dequantise": (node("DequantizeLinear", "x s"), {"x": ([2, 3, 8], U8)}, [small("s", 0.5, F)], 96, (2, 3, 8)),
    "packed rows": (
        node("GatherBlockQuantized", "w x s", domain=MS, bits=4, block_size=32), {"x": ([2, 3], I64)},
        [hollow("w", (50, 32), U8), hollow("s", (50, 2))], 0, (2, 3, 64)),
    "quantised product": (
        node("QLinearMul", "x s z x s z s z", domain=MS), {"x": ([2, 3, 8], U8)},
        [small("s", 0.5, F), small("z", 3, U8)], 48 * 7, (2, 3, 8)),
    "quantised mean": (
        node("QLinearGlobalAveragePool", "x s z s z", domain=MS), {"x": ([2, 4, 9, 9], U8)},
        [small("s", 0.5, F), small("z", 3, U8)], 648, (2, 4, 1, 1)),
    "split gelu": (node("BiasSplitGelu", "x w", domain=MS), V, [hollow("w", (8,))], 48 + 6 * 24, (2, 3, 4)),
    "rotary": (node("RotaryEmbedding", "x c c"), {"x": [2, 3, 4, 8]}, [hollow("c", (9, 4))], 3 * 192, (2, 3, 4, 8)),
    "noise": (node("RandomNormalLike", "x"), V, [], 0, (2, 3, 8)),
    "dropped": (node("Dropout", "x"), V, [], 0, (2, 3, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_other_operators(name: str) -> None:
    call, inputs, stored, operations, shape = OTHERS[name]
    graph = read([call], inputs, stored)
    assert flops(graph) == (0, operations)
    assert shape_of(graph) == shape
    assert memory(graph, {}).total > 0


def test_formats() -> None:
    def result(name: str) -> str:
        call, inputs, stored, *_ = {**OTHERS, **CONTRACTIONS}[name]
        graph = read([call], inputs, stored)
        return graph.tensors[graph.outputs[0]].dtype

    found = {each: result(each) for each in ("cast", "largest", "quantise", "dequantise", "integers", "qlinear", "add")}
    assert found == {
        "cast": "fp16", "largest": "int64", "quantise": "int8", "dequantise": "fp32", "integers": "int32",
        "qlinear": "int8", "add": "fp32",
    }  # fmt: skip


def test_every_case_here_has_a_rule() -> None:
    tried = {f"{c[0].domain}.{c[0].op_type}".lstrip(".") for c in [*CONTRACTIONS.values(), *OTHERS.values()]}
    assert tried <= RULES.keys()


@pytest.mark.parametrize("op", ["Elu", "Selu", "HardSwish", "Mish", "Softplus", "Erf", "Not", "Sign", "Sqrt", "IsNaN"])
def test_elementwise_operators_keep_the_shape(op: str) -> None:
    assert shape_of(read([node(op, "x")], V)) == (2, 3, 8)


def test_transposes_are_kernels_unless_a_product_undoes_them() -> None:
    turned = node("Transpose", "x", "t", perm=[0, 2, 1])
    product = read([turned, node("MatMul", "v t")], {"x": [2, 3, 8], "v": [2, 5, 8]})
    assert rl.count(product).launches == 1
    both = read([turned, node("MatMul", "v t"), node("Relu", "t", "z")], {"x": [2, 3, 8], "v": [2, 5, 8]})
    assert "transpose_copy" in {n.op for n in both.nodes}
    stored = read([node("Transpose", "w", "t"), node("MatMul", "x t")], X, [hollow("w", (6, 8))])
    assert (rl.count(stored).launches, stored.parameters) == (1, 48)
    ones = read([node("Transpose", "x", perm=[1, 0, 2])], {"x": [1, 3, 8]})
    assert rl.count(ones).launches == 0


# --- what a file computes about its own shapes -----------------------------------------------------------------------

SPELLED = [
    node("Shape", "x", "s"), node("Gather", "s zero", "b"), node("Gather", "s one", "n"),
    node("Unsqueeze", "b axis", "bs"), node("Unsqueeze", "n axis", "ns"),
    node("Concat", "bs ns four minus", "t", axis=0),
    node("Reshape", "x t", "h"), node("Transpose", "h", "p", perm=[0, 2, 1, 3]), node("MatMul", "p v", "y"),
]  # fmt: skip
NUMBERS = [small("zero", 0), small("one", 1), small("axis", [0]), small("four", [4]), small("minus", [-1])]


def test_shapes_that_are_spelled_as_programs() -> None:
    graph = read(SPELLED, {"x": ["batch", "sequence", 32], "v": [8, 3]}, NUMBERS)
    assert shape_of(graph) == (B, 4, S, 3)
    assert [n.op for n in graph.nodes if n.op not in ("view", "permute")] == ["rearrange", "matmul"]
    assert sum(graph.info.ignored.values()) == 6
    assert flops(graph, B=2, S=5)[0] == 2 * 2 * 4 * 5 * 8 * 3


def test_the_where_of_torchscript_and_a_symbolic_expand() -> None:
    nodes = [
        node("Shape", "x", "s"), node("Shape", "s", "r"), node("ConstantOfShape", "r", "o", value=small("", [1])),
        node("Mul", "o minus", "m"), node("Equal", "s m", "e"), node("Where", "e o s", "t"), node("Expand", "w t", "y"),
    ]  # fmt: skip
    graph = read(nodes, {"x": ["batch", 8]}, [small("minus", [-1]), hollow("w", (1, 8))])
    assert shape_of(graph) == (B, 8)


def test_arithmetic_on_sizes() -> None:
    nodes = [
        node("Shape", "x", "s"), node("Slice", "s a b", "n"), node("Mul", "n two", "m"), node("Div", "m two", "d"),
        node("Concat", "d rest", "t", axis=0), node("Reshape", "x t", "y"),
    ]  # fmt: skip
    stored = [small("a", [0]), small("b", [1]), small("two", [2]), small("rest", [-1])]
    assert shape_of(read(nodes, {"x": ["n0", 3, 8]}, stored)) == (rl.ops.symbol("n0"), 24)


def test_a_slice_up_to_a_symbolic_length() -> None:
    nodes = [node("Shape", "x", "s", start=1, end=2), node("Slice", "w a s a", "y")]
    graph = read(nodes, {"x": ["batch", "sequence"]}, [small("a", [0]), hollow("w", (512, 8))])
    assert shape_of(graph) == (S, 8)


def test_a_range_over_a_symbolic_length() -> None:
    nodes = [node("Shape", "x", "s", start=1, end=2), node("Squeeze", "s", "n"), node("Range", "zero n one", "r"),
             node("Gather", "w r", "y")]  # fmt: skip
    graph = read(nodes, {"x": ["batch", "sequence"]}, [*NUMBERS, hollow("w", (512, 8))])
    assert shape_of(graph) == (S, 8)


def test_what_follows_from_weights_alone_is_no_work() -> None:
    nodes = [node("Cast", "w", "h", to=F), node("Mul", "h two", "g"), node("MatMul", "x g", "y")]
    graph = read(nodes, X, [hollow("w", (8, 6), F16), small("two", 2.0, F)])
    assert (rl.count(graph).launches, graph.parameters, graph.tensors["w"].dtype) == (1, 48, "fp32")


def test_quantised_weights_stay_small() -> None:
    nodes = [node("DequantizeLinear", "w s", "h"), node("MatMul", "x h", "y")]
    graph = read(nodes, X, [hollow("w", (8, 6), I8), small("s", 0.5, F)])
    assert (rl.count(graph).launches, graph.parameters, graph.tensors["w"].dtype) == (1, 48, "int8")
    call, inputs, stored, *_ = CONTRACTIONS["nbits"]
    few = read([call], inputs, stored)
    assert (few.parameters, few.tensors["w"].dtype) == (64 * 6, "int4-g32-sym")


def test_a_shared_weight_counts_once() -> None:
    nodes = [node("Gather", "w i", "e"), node("Transpose", "w", "t"), node("MatMul", "e t", "y")]
    graph = read(nodes, {"i": (["batch", "sequence"], I64)}, [hollow("w", (50, 8))])
    assert graph.parameters == 400
    assert flops(graph, B=2, S=3)[0] == 2 * 6 * 8 * 50


def test_a_cache_of_fixed_length_is_written_in_place() -> None:
    """As ONNX Runtime does where past and present are declared alike; else it copies both."""
    call = node("GroupQueryAttention", "q k v pk pv n t", "y a c", domain=MS, num_heads=4, kv_num_heads=2)
    inputs = {
        "q": ["batch", 1, 32],
        "k": ["batch", 1, 16],
        "v": ["batch", 1, 16],
        "n": (["batch"], I32),
        "t": ([1], I32),
    }
    for past, present, ops in (("most", "most", {"cache_update"}), ("past", "total", {"cat"})):
        model = proto([call], {**inputs, **{e: ["batch", 2, past, 8] for e in ("pk", "pv")}}, outputs="y")
        for name in ("a", "c"):
            model.graph.output.append(helper.make_tensor_value_info(name, F, ["batch", 2, present, 8]))
        graph = rl.from_onnx(model.SerializeToString())
        assert {n.op for n in graph.nodes} & {"cache_update", "cat"} == ops
        assert graph.symbols == {"B", past}


def test_running_statistics_are_no_parameters() -> None:
    stored = [hollow(name, (4,)) for name in ("a", "b", "c", "d")]
    assert read([node("BatchNormalization", "x a b c d")], IMAGE, stored).parameters == 8


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_sizes_by_name_number_or_symbol() -> None:
    def free(shape: list[str], **sizes: Any) -> frozenset[str]:
        return read([node("Relu", "x")], {"x": shape}, sizes=sizes).symbols

    assert free(["batch_size", "seq_len"]) == {"B", "S"}
    assert free(["batch_size", "seq_len"], batch_size=4) == {"S"}
    assert free(["batch_size", "seq_len"], B=4) == {"S"}
    assert free(["rows", "cols"], rows="R") == {"R", "cols"}
    assert free(["batch", "past_sequence_length + 1"]) == {"B", "past_sequence_length_1"}
    assert free(["mode", "class"]) == {"mode_size", "class_size"}
    assert free(["batch", "batch_size"]) == {"B", "batch_size"}
    assert free(["encoder_sequence", "7up"]) == {"encoder_sequence", "size_7up"}


def test_unnamed_sizes_get_the_name_of_their_input() -> None:
    graph = read([node("Relu", "x")], {"x": [None, 8]})
    assert graph.symbols == {"x_0"}


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"bach": 2}, "has no size 'bach'; did you mean batch"),
        ({"batch": 0}, "expected a whole number from 1"),
        ({"batch": True}, "expected a whole number from 1"),
        ({"batch": 1.5}, "expected a whole number from 1"),
        ({"batch": "a b"}, "expected a whole number from 1"),
    ],
)
def test_sizes_that_are_none(sizes: Any, words: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=words):
        read([node("Relu", "x")], {"x": ["batch", 8]}, sizes=sizes)


def test_notes_and_provenance() -> None:
    graph = read([node("Relu", "x")], {"x": ["batch_size", 8]})
    assert graph.info.notes == ("size batch_size of the file is B",)
    assert (graph.info.source, graph.info.opset["ai.onnx"], graph.name) == ("onnx", 21, "tiny")
    assert (graph.items, graph.item) == (B, "sample")


# --- branches, loops and functions -----------------------------------------------------------------------------------


def body(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], stored: Sequence[Any] = ()) -> Any:
    def info(entry: Any) -> Any:
        return helper.make_tensor_value_info(entry[0], entry[1], entry[2])

    return helper.make_graph(nodes, "body", [info(e) for e in inputs], [info(e) for e in outputs], stored)


def test_the_larger_branch() -> None:
    heavy = body([node("MatMul", "x w", "t")], [], [("t", F, None)])
    light = body([node("Relu", "x", "e")], [], [("e", F, None)])
    for branches in ({"then_branch": heavy, "else_branch": light}, {"then_branch": light, "else_branch": heavy}):
        graph = read([node("If", "c", **branches)], {**X, "c": ([], BOOL)}, [hollow("w", (8, 8))])
        assert flops(graph)[0] == 2 * 10 * 64
        assert "the larger of the two" in graph.info.notes[0]
        known = read([node("If", "c", **branches)], X, [hollow("w", (8, 8)), small("c", False, BOOL)])
        assert flops(known)[0] == (0 if branches["else_branch"] is light else 2 * 10 * 64)


LOOPED = body(
    [node("MatMul", "h w", "g"), node("Identity", "going", "on")],
    [("i", I64, []), ("going", BOOL, []), ("h", F, None)], [("on", BOOL, []), ("g", F, None), ("g", F, None)],
)  # fmt: skip


def test_a_loop_runs_its_body_as_often_as_the_file_says() -> None:
    stored = [hollow("w", (8, 8)), small("n", 9), small("yes", True, BOOL)]
    graph = read([node("Loop", "n yes x", "y all", body=LOOPED)], X, stored, outputs="y all")
    assert flops(graph)[0] == 9 * 2 * 10 * 64
    assert graph.tensors[graph.outputs[1]].shape == (9, 2, 5, 8)


def test_a_loop_of_unknown_length_wants_to_be_told() -> None:
    inputs = {**X, "n": ([], I64)}
    stored = [hollow("w", (8, 8)), small("yes", True, BOOL)]
    loop = [node("Loop", "n yes x", "y all", body=LOOPED)]
    with pytest.raises(rl.errors.UnknownOp, match=r"how often it runs depends on values; give sizes=\{'trip\.y'"):
        read(loop, inputs, stored)
    for sizes in ({"trip": 9}, {"trip.y": 9}):
        assert flops(read(loop, inputs, stored, sizes=sizes))[0] == 9 * 2 * 10 * 64


def test_a_scan() -> None:
    step = body([node("MatMul", "r w", "p"), node("Add", "h p", "g")],
                [("h", F, None), ("r", F, None)], [("g", F, None), ("p", F, None)])  # fmt: skip
    nodes = [node("Scan", "h x", "f y", body=step, num_scan_inputs=1)]
    graph = read(nodes, {"h": [5, 8], "x": [7, 5, 8]}, [hollow("w", (8, 8))])
    assert flops(graph) == (7 * 2 * 5 * 64, 7 * 40)
    assert shape_of(graph) == (7, 5, 8)


def test_what_nobody_reads_is_dropped() -> None:
    graph = read([node("MatMul", "x w", "z"), node("Relu", "x")], X, W)
    assert ([n.op for n in graph.nodes], graph.parameters) == (["relu"], 0)
    assert len(graph.tensors) == 2


def test_a_loop_of_which_only_the_history_is_read() -> None:
    stored = [hollow("w", (8, 8)), small("n", 9), small("yes", True, BOOL)]
    graph = read([node("Loop", "n yes x", "y all", body=LOOPED)], X, stored, outputs="all")
    assert flops(graph)[0] == 9 * 2 * 10 * 64


def mine(name: str, nodes: Sequence[Any]) -> Any:
    return helper.make_function("mine", name, ["a", "b"], ["c"], nodes, [helper.make_opsetid("", 21)])


def test_functions_of_the_file_are_inlined() -> None:
    twice = mine("Twice", [node("MatMul", "a b", "t"), node("MatMul", "t b", "c")])
    graph = read([node("Twice", "x w", domain="mine")], X, [hollow("w", (8, 8))], functions=[twice])
    assert flops(graph)[0] == 2 * 2 * 10 * 64


def test_functions_that_never_end() -> None:
    endless = helper.make_function(
        "mine", "Twice", ["a", "b"], ["c"], [node("Twice", "a b", "c", domain="mine")], [helper.make_opsetid("mine", 1)]
    )
    with pytest.raises(rl.errors.ModelDataError, match="function 'Twice' calls itself"):
        read([node("Twice", "x w", domain="mine")], X, W, functions=[endless])


# --- bad files -------------------------------------------------------------------------------------------------------

GOOD = proto([node("MatMul", "x w")], {"x": ["batch", 8]}, W).SerializeToString()


def test_the_size_of_the_weights_never_matters() -> None:
    graph = read([node("MatMul", "x w")], {"x": [4, 10**6]}, [hollow("w", (10**6, 10**6))])
    assert graph.parameters == 10**12


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (GOOD[: len(GOOD) // 2], "not an ONNX model, or cut short"),
        (b"PK\x03\x04 no model at all", "not an ONNX model"),
        (b'{"model": 1}', "not an ONNX model"),
        (onnx.ModelProto(ir_version=8).SerializeToString(), "no version, no operator set or no graph"),
    ],
)
def test_no_model(content: bytes, words: str) -> None:
    with pytest.raises(rl.errors.ModelDataError, match=words) as caught:
        rl.from_onnx(content)
    assert "\n" not in str(caught.value)


def test_every_cut_is_noticed() -> None:
    for end in range(1, len(GOOD)):
        try:
            rl.from_onnx(GOOD[:end])
        except rl.RooflineError as error:
            assert "\n" not in str(error)  # noqa: PT017


def test_damaged_files_give_one_line() -> None:
    """Only errors of the library come out, whatever a byte says."""
    content = proto(SPELLED, {"x": ["batch", "sequence", 32], "v": [8, 3]}, NUMBERS).SerializeToString()
    numbers = np.random.default_rng(7)
    for _ in range(300):
        damaged = bytearray(content)
        for at in numbers.integers(0, len(damaged), 3):
            damaged[at] = numbers.integers(0, 256)
        try:
            rl.from_onnx(bytes(damaged))
        except rl.RooflineError as error:
            assert "\n" not in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ("modle.onnx", rl.errors.UnknownModel, "did you mean model.onnx"),
        ("folder.onnx", rl.errors.ModelDataError, "a directory"),
        ("a\0b.onnx", rl.RooflineError, "onnx"),
        ("", rl.errors.UsageError, "expected a path"),
        (b"", rl.errors.UsageError, "expected a path"),
        (7, rl.errors.UsageError, "expected a path"),
    ],
)
def test_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: Any, error: Any, words: str) -> None:
    (tmp_path / "model.onnx").write_bytes(GOOD)
    (tmp_path / "folder.onnx").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=words):
        rl.from_onnx(source)


def test_files_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("roofline.frontends.onnx.read.MAX_BYTES", 10)
    (tmp_path / "model.onnx").write_bytes(GOOD)
    for source in (GOOD, tmp_path / "model.onnx"):
        with pytest.raises(rl.errors.ModelDataError, match="allowed: at most 10, without external data"):
            rl.from_onnx(source)


def test_a_file_and_its_dtype(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(GOOD)
    graph = rl.from_onnx(tmp_path / "model.onnx", dtype="bf16")
    assert (graph.name, graph.tensors["w"].dtype) == ("model", "bf16")
    light = rl.load_program(tmp_path / "model.onnx", weights="int8")
    assert (light.tensors["w"].dtype, light.tensors["x"].dtype) == ("int8", "fp32")
    with pytest.raises(rl.errors.UsageError, match="no phase"):
        rl.load_program(tmp_path / "model.onnx", phase="decode")


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.onnx").write_bytes(GOOD)
    assert main(["estimate", str(tmp_path / "model.onnx"), "h100-sxm", "-B", "8"]) == 0
    shown = capsys.readouterr()
    assert "model on h100-sxm" in shown.out
    assert "note: model: size batch of the file is B" in shown.err
    odd = proto([node("Relu", "x")], {"x": ["rows", 8]}).SerializeToString()
    (tmp_path / "odd.onnx").write_bytes(odd)
    assert main(["estimate", str(tmp_path / "odd.onnx"), "h100-sxm"]) == 2
    assert "odd needs rows, for which there is no option" in capsys.readouterr().err


def test_inputs_without_a_shape() -> None:
    with pytest.raises(rl.errors.ModelDataError, match="input 'x' has no shape"):
        read([node("Relu", "x")], {"x": None})


@pytest.mark.parametrize("size", [0, -3, 2**50])
def test_sizes_that_no_array_has(size: int) -> None:
    with pytest.raises(rl.errors.ModelDataError, match="sizes are"):
        read([node("Relu", "x")], {"x": [size]})
    if size:
        with pytest.raises(rl.errors.ModelDataError, match="sizes are"):
            read([node("Add", "x w")], {"x": [8]}, [hollow("w", (size,))])


def test_circles_and_names_that_nobody_writes() -> None:
    with pytest.raises(rl.errors.ModelDataError, match=r"a \(Relu\) read 'b', which nothing before writes"):
        read([node("Relu", "b", "a"), node("Relu", "a", "b")], {"x": [8]}, outputs="b")
    with pytest.raises(rl.errors.ModelDataError, match="outputs read 'y'"):
        read([], {"x": [8]})


def test_unknown_operators_are_named_with_the_nearest() -> None:
    with pytest.raises(rl.errors.UnknownOp, match=r"no rule for LayerNormalisation; did you mean LayerNormalization"):
        read([node("LayerNormalisation", "x")], V)
    with pytest.raises(rl.errors.UnknownOp, match=r"no rule for mine\.Strange"):
        read([node("Strange", "x", domain="mine")], V)


def test_unknown_operators_can_be_reported() -> None:
    odd = proto([node("Strange", "x", "s", domain="mine"), node("Relu", "s")], V)
    odd.graph.value_info.append(helper.make_tensor_value_info("s", F, [2, 3, 8]))
    graph = rl.from_onnx(odd.SerializeToString(), unknown="report")
    assert any("mine.Strange" in line for line in rl.estimate(graph, "h100-sxm").not_modelled)
    assert rl.count(graph).bytes == 4 * 48 * 4
    del odd.graph.value_info[:]
    with pytest.raises(rl.errors.ModelDataError, match="the shape of its result 's' is not known"):
        rl.from_onnx(odd.SerializeToString(), unknown="report")
    with pytest.raises(rl.errors.UsageError, match="unknown='ignore'; allowed: error, report"):
        rl.from_onnx(GOOD, unknown="ignore")


@pytest.mark.parametrize(
    ("call", "inputs", "error"),
    [
        (node("MatMul", "x x"), {"x": [2, 3]}, "MatMul|matmul"),
        (node("Add", "x v"), {"x": [3], "v": [4]}, "cannot broadcast"),
        (node("Concat", "x v", axis=0), {"x": [3, 2], "v": [4, 5]}, "joins"),
        (node("Reshape", "x v"), {"x": [3, 2], "v": ([2], I64)}, "known only at run time"),
        (node("Softmax", "x", axis=5), {"x": [3]}, "axis 5"),
        (node("Transpose", "x", perm=[0, 0]), {"x": [3, 2]}, "no order"),
        (node("Conv", "x v"), {"x": [1, 3, 8, 8], "v": [4, 5, 3, 3]}, "input"),
        (node("MatMul", "x"), {"x": [2, 3]}, "lacks its input 1"),
        (node("Einsum", "x", equation="ii->i"), {"x": [2, 2]}, "diagonal"),
        (node("Conv", "x v", pads=[1]), {"x": [1, 3, 8, 8], "v": [4, 3, 3, 3]}, "Conv"),
        (node("LSTM", "x v v"), {"x": [1, 3, 8], "v": [1, 4, 3]}, "hidden_size"),
    ],
)
def test_files_that_contradict_themselves(call: Any, inputs: Any, error: str) -> None:
    with pytest.raises(rl.RooflineError, match=error) as caught:
        read([call], inputs)
    assert "\n" not in str(caught.value)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(rl.errors.MissingExtra, match=r"pip install 'roofline\[onnx\]'"):
        rl.from_onnx(GOOD)


# --- models that onnx itself ships -----------------------------------------------------------------------------------

SHIPPED = sorted(Path(onnx.__file__).parent.glob("backend/test/data/*/**/*.onnx"))


@pytest.mark.skipif(not SHIPPED, reason="this build of onnx comes without its test models")
def test_models_of_onnx_itself_have_the_shapes_that_they_declare() -> None:
    read, refused = 0, 0
    for path in SHIPPED:
        try:
            graph = rl.from_onnx(path)
        except rl.RooflineError as error:
            assert "\n" not in str(error)  # noqa: PT017
            refused += 1
            continue
        ends = onnx.load(path, load_external_data=False).graph.output
        wanted = [tuple(size.dim_value for size in end.type.tensor_type.shape.dim) for end in ends]
        assert [graph.tensors[name].shape for name in graph.outputs] == wanted, path
        read += 1
    assert read > 5 * refused


@pytest.mark.skipif(not SHIPPED, reason="this build of onnx comes without its test models")
def test_vgg19_of_onnx_itself() -> None:
    """Sixteen convolutions of 3 x 3 at five resolutions, then three matrices (Simonyan and Zisserman 2014, E)."""
    graph = rl.from_onnx(next(path for path in SHIPPED if path.name == "light_vgg19.onnx"))
    widths = {224: [3, 64, 64], 112: [64, 128, 128], 56: [128, *[256] * 4], 28: [256, *[512] * 4], 14: [*[512] * 5]}
    products = sum(side**2 * 9 * c * o for side, row in widths.items() for c, o in pairwise(row))
    products += 25088 * 4096 + 4096 * 4096 + 4096 * 1000
    assert flops(graph)[0] == 2 * products


# --- exports of torch ------------------------------------------------------------------------------------------------

HIDDEN, HEADS, VOCAB, LAYERS = 64, 4, 1000, 2


def export(model: Any, names: Sequence[str], args: Sequence[Any], free: Any, path: Path, dynamo: bool) -> Path:
    """Write a model, with its parameters distinct: exporters join equal ones."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand_like(parameter))
    more: dict[str, Any] = {"dynamic_shapes" if dynamo else "dynamic_axes": free}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.eval(), tuple(args), str(path), input_names=list(names), dynamo=dynamo, verbose=False,
            external_data=False, **more,
        )  # fmt: skip
    return path


def transformer(kind: str, implementation: str, **config: Any) -> Any:
    """BERT without a head, or GPT-2 with its tied one, randomly initialised."""
    pytest.importorskip("transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import transformers as t
        from torch import nn

        if kind == "bert":
            model = t.BertModel(t.BertConfig(attn_implementation=implementation, **config))
        else:
            model = t.GPT2LMHeadModel(t.GPT2Config(attn_implementation=implementation, **config))

    class Plain(nn.Module):
        """Tensors in, tensors out."""

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any) -> Any:
            more = {} if kind == "bert" else {"use_cache": False}
            found = model(ids, attention_mask=mask, **more)
            return (found[0], found[1]) if kind == "bert" else found[0]

    return Plain()


TINY_BERT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256,
             "vocab_size": 1000}  # fmt: skip
TINY_GPT = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 1000}
TRANSFORMERS: dict[str, tuple[str, str, dict[str, Any], bool]] = {
    "bert": ("bert", "sdpa", {"num_hidden_layers": 2}, True),
    "gpt2": ("gpt2", "sdpa", TINY_GPT, True),
    "bert-torchscript": ("bert", "eager", TINY_BERT, False),
    "gpt2-torchscript": ("gpt2", "eager", TINY_GPT, False),
}


def parameters(model: Any) -> int:
    return sum(p.numel() for p in model.parameters())


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each transformer written once: the graph, and the parameters that torch counts."""
    torch = pytest.importorskip("torch")
    made: dict[str, tuple[rl.Graph, int]] = {}

    def get(name: str) -> tuple[rl.Graph, int]:
        if name not in made:
            kind, implementation, config, dynamo = TRANSFORMERS[name]
            model = transformer(kind, implementation, **config)
            ids = torch.zeros(2, 16, dtype=torch.long)
            free = [{0: "batch", 1: "sequence"}] * 2
            names = ["input_ids", "attention_mask"]
            path = tmp_path_factory.mktemp("onnx") / f"{name}.onnx"
            export(model, names, [ids, torch.ones_like(ids)], free if dynamo else dict(zip(names, free, strict=True)),
                   path, dynamo)  # fmt: skip
            made[name] = rl.from_onnx(path), parameters(model)
        return made[name]

    return get


def transformer_flops(name: str, b: int, s: int) -> int:
    """Products: four projections, two of the feed-forward, scores and values of the full square, head or pooler."""
    kind, _, config, _ = TRANSFORMERS[name]
    tiny = "hidden_size" in config or "n_embd" in config
    d, vocab = (64, 1000) if tiny else (768, 50257)
    layer = b * s * (4 * d * d + 2 * d * 4 * d) + 2 * b * s * s * d
    return 2 * (2 * layer + (b * d * d if kind == "bert" else b * s * d * vocab))


@pytest.mark.parametrize("name", TRANSFORMERS)
@pytest.mark.parametrize(("batch", "length"), [(1, 7), (2, 16), (8, 128)])
def test_exported_transformers(exported: Any, name: str, batch: int, length: int) -> None:
    graph, _ = exported(name)
    assert graph.symbols == {"B", "S"}
    assert rl.count(graph, B=batch, S=length).flops == transformer_flops(name, batch, length)
    assert graph.info.notes == ("size batch of the file is B", "size sequence of the file is S")


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_parameters_of_exported_transformers(exported: Any, name: str) -> None:
    """Torchscript writes the tied head of GPT-2 a second time, transposed: the file is that much larger."""
    graph, true = exported(name)
    assert graph.parameters == true + (64 * 1000 if name == "gpt2-torchscript" else 0)


def test_an_exported_bert_is_the_shipped_one(exported: Any) -> None:
    graph, _ = exported("bert")
    shipped = rl.model("bert-base-uncased", layers=2)
    assert graph.parameters == shipped.parameters
    assert rl.count(graph, B=4, S=64).flops == rl.count(shipped, B=4, S=64).flops


def test_exported_names_are_module_paths(exported: Any) -> None:
    for name, word in (("bert", "model.encoder.layer.0"), ("bert-torchscript", "model.encoder.layer.0")):
        products = [n.name for n in exported(name)[0].nodes if n.op == "matmul"]
        assert any(word in each for each in products), products[:3]
        assert not any("/" in each or ":" in each for each in products)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_exports_work_everywhere(exported: Any, name: str) -> None:
    graph, _ = exported(name)
    result = rl.estimate(graph, "h100-sxm", B=[1, 8], S=128, mode="compiled")
    assert result.time[1] >= result.time[0] > 0
    fused = rl.passes.fuse(graph)
    plain, joined = (rl.count(each, B=2, S=64) for each in (graph, fused))
    assert (joined.flops, joined.vector_flops) == (plain.flops, plain.vector_flops)
    assert joined.bytes < plain.bytes
    assert memory(graph, {"B": 2, "S": 64}).weights >= 4 * graph.parameters
    bound = rl.count(graph.bind(B=2, S=64))
    assert (bound.flops, bound.bytes) == (plain.flops, plain.bytes)


@pytest.mark.parametrize("name", ["bert-torchscript", "gpt2-torchscript"])
def test_sizes_given_early_or_late(exported: Any, tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    late, _ = exported(name)
    path = next(tmp_path_factory.getbasetemp().rglob(f"{name}.onnx"))
    early = rl.from_onnx(path, {"batch": 3, "sequence": 100})
    assert not early.symbols
    assert rl.count(early).flops == rl.count(late, B=3, S=100).flops


# --- convolutional networks ------------------------------------------------------------------------------------------


def resnet50() -> Any:
    from torch import nn

    def conv(c: int, o: int, kernel: int, stride: int = 1) -> list[Any]:
        return [nn.Conv2d(c, o, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(o)]

    class Block(nn.Module):
        def __init__(self, c: int, width: int, stride: int) -> None:
            super().__init__()
            parts = [*conv(c, width, 1), nn.ReLU(), *conv(width, width, 3, stride), nn.ReLU()]
            self.body = nn.Sequential(*parts, *conv(width, 4 * width, 1))
            change = stride != 1 or c != 4 * width
            self.side = nn.Sequential(*conv(c, 4 * width, 1, stride)) if change else nn.Identity()
            self.last = nn.ReLU()

        def forward(self, x: Any) -> Any:
            return self.last(self.body(x) + self.side(x))

    layers: list[Any] = [*conv(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for at in range(depth):
            layers.append(Block(channels, width, stride if at == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


def mobilenet_v2() -> Any:
    from torch import nn

    def conv(c: int, o: int, kernel: int, stride: int = 1, groups: int = 1) -> list[Any]:
        return [nn.Conv2d(c, o, kernel, stride, kernel // 2, groups=groups, bias=False), nn.BatchNorm2d(o)]

    class Block(nn.Module):
        def __init__(self, c: int, o: int, stride: int, wider: int) -> None:
            super().__init__()
            inner = c * wider
            self.skips = stride == 1 and c == o
            head = [*conv(c, inner, 1), nn.ReLU6()] if wider > 1 else []
            self.body = nn.Sequential(*head, *conv(inner, inner, 3, stride, inner), nn.ReLU6(), *conv(inner, o, 1))

        def forward(self, x: Any) -> Any:
            return x + self.body(x) if self.skips else self.body(x)

    layers: list[Any] = [*conv(3, 32, 3, 2), nn.ReLU6()]
    channels = 32
    table = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
    for wider, out, depth, stride in table:
        for at in range(depth):
            layers.append(Block(channels, out, stride if at == 0 else 1, wider))
            channels = out
    tail = [*conv(320, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, *tail, nn.Linear(1280, 1000))


@pytest.mark.parametrize(
    ("name", "build", "normalised", "dynamo"),
    [("resnet50", resnet50, 26_560, False), ("mobilenet-v2", mobilenet_v2, 17_056, False)],
)
def test_exported_convolutional_networks(name: str, build: Any, normalised: int, dynamo: bool, tmp_path: Path) -> None:
    """Exporters fold each norm into its convolution: a shift a channel is left of scale and shift."""
    torch = pytest.importorskip("torch")
    model, free = build(), {0: "batch"}
    path = tmp_path / "model.onnx"
    export(model, ["image"], [torch.zeros(2, 3, 64, 64)], [free] if dynamo else {"image": free}, path, dynamo)
    graph, shipped = rl.from_onnx(path), rl.model(name, image=64)
    assert shipped.parameters == parameters(model)
    assert graph.parameters == shipped.parameters - normalised
    for batch in (1, 2, 64):
        assert rl.count(graph, B=batch).flops == rl.count(shipped, B=batch).flops
    assert rl.estimate(graph, "h100-sxm", B=[1, 64]).time[1] > 0
