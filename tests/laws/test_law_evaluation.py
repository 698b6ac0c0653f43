"""Law: a count is the same number by number, over arrays and symbolically, for every operator and for whole models."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.counting.memory import memory
from roofline.ir.sizes import evaluate, substitute, symbol
from roofline.ops.pointwise import POINTWISE

LAW = settings(deadline=None, max_examples=examples(12), derandomize=True, database=None)
B, S, C = (symbol(name) for name in "BSC")
X = (B, S, 64)
IMAGE = (B, 8, S, S + 2)
HEADS = (B, 8, S, 16)
KEYS = (B, 2, S + C, 16)
SCORES = (B, 8, S, S + C)

COLLECTIVES = tuple(name for name, op in rl.ops.OPS.items() if op.kind == "network")

#: Input shapes and options for every operator; a test below fails when one is missing.
SAMPLES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "linear": ((X, (32, 64), (32,)), {}),
    "matmul": (((B, S, 64), (64, 32), (32,)), {}),
    "bmm": (((B, S, 64), (B, 64, C)), {}),
    "moe": (((B * S, 64), (8, 96, 64), (8, 64, 48)), {"top_k": 2, "ranks": 2}),
    "expert_linear": (((B * S * 2, 64), (8, 32, 64), (8, 32)), {"top_k": 2}),
    "triangular_solve": (((B, 8, 8), (B, 8, S)), {}),
    "expert_linear_grad": (((B * S, 32), (B * S, 64)), {"experts": 8}),
    "conv2d": ((IMAGE, (16, 2, 3, 3), (16,)), {"stride": 2, "padding": 2, "dilation": (1, 2), "groups": 4}),
    "conv_transpose2d": ((IMAGE, (8, 4, 3, 2), (8,)), {"stride": 2, "padding": (1, 0), "groups": 2}),
    "conv1d": (((B, 8, S), (16, 4, 3), (16,)), {"stride": 2, "padding": 1, "groups": 2}),
    "attention_scores": ((HEADS, KEYS), {"causal": True, "window": 5}),
    "attention_softmax": ((SCORES, (8,)), {"causal": True}),
    "attention_values": ((SCORES, KEYS), {"window": 7}),
    "elementwise": ((X, (64,)), {"flops": 3}),
    "fill": ((), {"shape": X}),
    "softmax": ((X,), {}),
    "layernorm": ((X, (64,), (64,)), {}),
    "rmsnorm": ((X, (64,)), {}),
    "groupnorm": ((IMAGE, (8,), (8,)), {}),
    "layernorm2d": ((IMAGE, (8,), (8,)), {}),
    "batchnorm2d": ((IMAGE, (8,), (8,), (8,), (8,)), {}),
    "batchnorm_train": ((IMAGE, (8,), (8,)), {}),
    "reduce": ((IMAGE,), {"axes": (0, 2), "keepdim": True, "flops": 2}),
    "scan": ((X,), {"flops": 2}),
    "softmax_grad": ((X, X), {}),
    "cross_entropy": ((X, (B, S)), {}),
    "cross_entropy_grad": ((X, (B, S), (B, S)), {}),
    "bernoulli": ((), {"shape": X}),
    "update": (((64,), X), {"flops": 2}),
    "parallel_input": ((X,), {"devices": 4}),
    "quantize_rows": ((X,), {}),
    "quantize": ((X,), {}),
    "dequantize": (((64, 128),), {"flops": 2}),
    "layernorm_grad": ((X, X, (64,)), {}),
    "rmsnorm_grad": ((X, X, (64,)), {}),
    "channelnorm_grad": ((IMAGE, IMAGE, (8,)), {}),
    "pool_grad": (((B, 8, S, S),), {"shape": (B, 8, 2 * S, 2 * S)}),
    "conv3d": (((B, 4, S, 8, 9), (6, 2, 2, 3, 3), (6,)), {"stride": (1, 2, 2), "padding": 1, "groups": 2}),
    "conv_transpose3d": (((B, 4, S, 8, 9), (4, 3, 2, 3, 3), (6,)), {"stride": (1, 2, 2), "groups": 2}),
    "conv2d_grad_input": (((B, 16, S, S), (16, 4, 3, 3)), {"image": (8, S, S), "groups": 2, "padding": 1}),
    "conv2d_grad_weight": ((IMAGE, (B, 16, S, S)), {"kernel": (4, 3, 3), "groups": 2, "padding": 1}),
    "attention_softmax_grad": ((SCORES, SCORES), {"causal": True}),
    "attention_keys_grad": ((SCORES, HEADS), {"g": 2, "causal": True}),
    "take": ((X, (S,)), {"shape": (B, S)}),
    "recurrent_cell": (((S, B, 64), (B, 64), (B, 16)), {"flops": 19}),
    "recurrent_cell_grad": (((S, B, 16), (S, B, 64)), {"flops": 19}),
    "pool": ((IMAGE,), {"shape": (B, 8, S, S), "flops": 9}),
    "resample": ((IMAGE,), {"shape": (B, 8, 2 * S, 2 * S), "flops": 8}),
    "unknown": ((X,), {"shape": (B, S), "what": "aten.mystery"}),
    "put": ((X, (B, 1, 64), (1,)), {}),
    "rearrange": ((X,), {"shape": (S, B, 64)}),
    "empty": ((), {"shape": X}),
    "embedding_grad": ((X, (B, S)), {"v": 1000}),
    "permute": ((X,), {"axes": (1, 0, 2)}),
    "sum": ((X,), {}),
    "mean": ((X,), {}),
    "argmax": ((X,), {}),
    "topk": ((X,), {"k": 4}),
    "maxpool2d": ((IMAGE,), {"r": 3, "stride": 2, "padding": 1}),
    "avgpool2d": ((IMAGE,), {"r": (1, 2)}),
    "global_avgpool": ((IMAGE,), {}),
    "embedding": (((1000, 64), (B, S)), {}),
    "gather": (((1000,), (B, S)), {}),
    "gather_rows": (((B * S, 64), (B * C,)), {}),
    "scatter_add": (((B * S, 64),), {"t": B}),
    "cache_update": (((B, 2, S + C, 16), (B, 2, S, 16)), {}),
    "transpose_copy": ((X,), {}),
    **{name: (((B * S * 64,),), {"devices": 4}) for name in COLLECTIVES},
    "memcpy_h2d": (((B * S,),), {}),
    "memcpy_d2h": (((B * S,),), {}),
    "cat": ((X, (B, C, 64)), {"axis": 1}),
    "upsample2d": ((IMAGE,), {"scale": 2}),
    "causal_conv": ((X, (64, 4), (64,), (B, 64, 4)), {}),
    "selective_scan": ((X, X, (64, 16), (B, S, 16), (B, S, 16), (64,), (B, 64, 16)), {}),
    "ssd_scan": (((B, S, 8, 32), (B, S, 2, 16), (B, S, 2, 16), (B, S, 8)), {"chunk": 64}),
    "delta_scan": (((B, S, 8, 16), (B, S, 8, 16), (B, S, 8, 32), (B, S, 8)), {"chunk": 64}),
    "linear_recurrence": ((X, X, X, (64,)), {}),
    "mixer_grad": ((X, X), {"shape": X, "products": B * S * 128, "operations": B * S}),
    "state_update": (((B, 64, 16), X), {}),
    "view": ((X,), {"shape": (B * S, 64)}),
    "slice": ((X,), {"shape": (B, 1, 64)}),
    "expand": (((B, 1, S),), {"shape": (B, C, S)}),
    **{name: ((X, (64,)), {}) for name in POINTWISE},
}

SIZES = st.fixed_dictionaries({name: st.integers(1, 5000) for name in "BSC"})


def bound(value: Any, sizes: dict[str, Any]) -> Any:
    """Shapes and options with numbers for symbols."""
    if isinstance(value, tuple):
        return tuple(bound(item, sizes) for item in value)
    return substitute(value, sizes)


def parts(work: rl.ops.Work) -> dict[str, Any]:
    found = {"flops": work.flops, "vector": work.vector} | {f"reads {at}": n for at, n in work.reads.items()}
    return found | ({} if work.writes is None else {"writes": work.writes})


def test_every_operator_has_a_sample() -> None:
    assert rl.ops.OPS.keys() == SAMPLES.keys(), "add shapes and options of a new operator to SAMPLES"


@pytest.mark.parametrize("name", SAMPLES)
@LAW
@given(points=st.lists(SIZES, min_size=1, max_size=3))
def test_an_operator_counts_the_same_on_numbers_arrays_and_symbols(name: str, points: list[dict[str, int]]) -> None:
    op, (shapes, attrs) = rl.ops.OPS[name], SAMPLES[name]
    symbolic = parts(op.work(shapes, attrs))
    arrays = {size: np.array([float(point[size]) for point in points]) for size in "BSC"}
    by_array = {key: np.broadcast_to(evaluate(value, arrays), (len(points),)) for key, value in symbolic.items()}
    for at, point in enumerate(points):
        options = {key: bound(value, point) for key, value in attrs.items()}
        exact = parts(op.work(bound(shapes, point), options))
        floats = {key: np.float64(value) for key, value in point.items()}
        in_float = parts(op.work(bound(shapes, floats), {key: bound(value, floats) for key, value in attrs.items()}))
        assert exact.keys() == symbolic.keys()
        for key, value in exact.items():
            assert value >= 0
            assert evaluate(symbolic[key], point) == pytest.approx(value, rel=1e-12), key
            assert by_array[key][at] == pytest.approx(value, rel=1e-9), key
            assert in_float[key] == pytest.approx(value, rel=1e-9), key


@pytest.mark.parametrize("name", SAMPLES)
@LAW
@given(point=SIZES)
def test_an_operator_shapes_the_same_on_numbers_and_symbols(name: str, point: dict[str, int]) -> None:
    op, (shapes, attrs) = rl.ops.OPS[name], SAMPLES[name]
    numbers = op.output(bound(shapes, point), {key: bound(value, point) for key, value in attrs.items()})
    assert tuple(evaluate(size, point) for size in op.output(shapes, attrs)) == numbers
    assert all(isinstance(size, int) and size >= 1 for size in numbers)


MODELS: dict[str, dict[str, Any]] = {
    "llama-3-8b prefill": {"name": "llama-3-8b", "phase": "prefill", "layers": 2},
    "llama-3-8b decode": {"name": "llama-3-8b", "phase": "decode", "layers": 2},
    "gpt2 forward": {"name": "gpt2", "phase": "forward", "layers": 2, "positions": 10**9},
    "gpt2 naive": {"name": "gpt2", "phase": "prefill", "layers": 2, "attention": "naive", "positions": 10**9},
    "mixtral-8x7b prefill": {"name": "mixtral-8x7b", "phase": "prefill", "layers": 1},
    "mixtral-8x7b decode": {"name": "mixtral-8x7b", "phase": "decode", "layers": 1},
    "gemma-2-2b prefill": {"name": "gemma-2-2b", "phase": "prefill", "layers": 2},
    "deepseek-v2-lite decode": {"name": "deepseek-v2-lite", "phase": "decode", "layers": 2},
    "deepseek-v2-lite prefill": {"name": "deepseek-v2-lite", "phase": "prefill", "layers": 2},
    "resnet18": {"name": "resnet18"},
    "vit-b-16": {"name": "vit-b-16"},
    "t5-small": {"name": "t5-small"},
}


@cache
def load(label: str) -> rl.Graph:
    options = dict(MODELS[label])
    return rl.model(options.pop("name"), **options)


def totals(graph: rl.Graph, sizes: dict[str, Any]) -> dict[str, Any]:
    counts = rl.count(graph, **sizes)
    return {"flops": counts.flops, "vector": counts.vector_flops, "bytes": counts.bytes, **memory(graph, sizes).parts()}


@pytest.mark.parametrize("label", MODELS)
@settings(LAW, max_examples=examples(4))
@given(points=st.lists(SIZES, min_size=1, max_size=2))
def test_a_model_counts_the_same_on_numbers_arrays_and_symbols(label: str, points: list[dict[str, int]]) -> None:
    graph = load(label)
    used = sorted(graph.symbols)
    arrays = {name: np.array([float(point[name]) for point in points]) for name in used}
    by_array = totals(graph, arrays)
    for at, point in enumerate(points):
        sizes = {name: point[name] for name in used}
        symbolic = totals(graph, sizes)
        numbers = totals(graph.bind(**sizes), {})
        for key, value in numbers.items():
            assert symbolic[key] == pytest.approx(value, rel=1e-12), key
            assert np.broadcast_to(by_array[key], (len(points),))[at] == pytest.approx(value, rel=1e-9), key


@pytest.mark.parametrize("label", ["llama-3-8b decode", "gpt2 forward", "resnet18", "vit-b-16"])
def test_dense_models_count_in_exact_integers(label: str) -> None:
    graph = load(label)
    found = totals(graph, dict.fromkeys(graph.symbols, 3))
    assert all(isinstance(value, int) for value in found.values()), found


def test_large_sizes_neither_overflow_nor_go_negative() -> None:
    graph = load("gpt2 naive")
    sizes = {"B": np.array([2.0**30]), "S": np.array([2.0**29])}
    assert rl.count(graph, **sizes).flops[0] > 2.0**63
    assert rl.count(graph, B=2**30, S=2**29).flops == pytest.approx(rl.count(graph, **sizes).flops[0], rel=1e-12)
    integers = {name: value.astype(np.int64) for name, value in sizes.items()}
    assert rl.count(graph, **integers).flops[0] == pytest.approx(rl.count(graph, **sizes).flops[0], rel=1e-12)
