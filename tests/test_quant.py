"""Quantisation carried out, against what others compute: bit patterns, integers, second-order rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl

#: OCP Microscaling v1.0, table 5: e2m1 by code.
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
FORMATS = (
    "int8",
    "int4-g32",
    "int4-g32-sym",
    "int3-g32-z3",
    "fp8",
    "fp8-e5m2",
    "mxfp8",
    "mxfp4",
    "nvfp4",
    "int8-tensor-asym",
)

#: Formats whose products are whole numbers that int64 holds.
EXACT = tuple(word for word in FORMATS if "e5m2" not in word)


def numbers(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize(("word", "name"), [("fp8-tensor", "float8_e4m3fn"), ("fp8-tensor-e5m2", "float8_e5m2")])
def test_floats_of_8_bits_have_the_bit_patterns_of_torch(word: str, name: str) -> None:
    torch = pytest.importorskip("torch")
    element = rl.quant.number_format(word).element
    codes = np.arange(256, dtype=np.uint8)
    expected = torch.from_numpy(codes).view(getattr(torch, name)).float().numpy()
    finite = np.isfinite(expected)
    assert (element.decode(codes)[finite] == expected[finite]).all()
    stored = np.unique(expected[finite])
    halves = (stored[1:].astype(np.float64) + stored[:-1]) / 2
    spread = numbers(0, 20_000) * 10.0 ** np.random.default_rng(1).uniform(-8, 5, 20_000)
    x = np.clip(np.concatenate([halves, spread, [0.0, -0.0]]), -element.largest, element.largest).astype(np.float32)
    assert (element.encode(x) == torch.from_numpy(x).to(getattr(torch, name)).view(torch.uint8).numpy()).all()
    assert element.decode(element.encode(np.array([1e9, -np.inf]))).tolist() == [element.largest, -element.largest]


def test_floats_of_4_bits_are_those_of_the_specification() -> None:
    element = rl.quant.number_format("mxfp4").element
    assert element.decode(np.arange(16)).tolist() == [*FP4, *(-each for each in FP4)]
    middles = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    assert element.decode(element.encode(np.array(middles))).tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]


def test_matmul_is_exact_in_its_integers() -> None:
    a, b = rl.quant.round_to(numbers(0, 5, 96), "int8"), rl.quant.round_to(numbers(1, 7, 96), "int8")
    assert (rl.quant.matmul(a, b).integers[:, 0] == a.codes.astype(np.int64) @ b.codes.T.astype(np.int64)).all()


@pytest.mark.parametrize("right", EXACT)
@pytest.mark.parametrize("left", ["int8", "int8-tensor-asym", "fp8", "mxfp8", "nvfp4"])
def test_matmul_of_any_two_formats_is_that_of_their_numbers(left: str, right: str) -> None:
    a, b = rl.quant.round_to(numbers(0, 2, 3, 64), left), rl.quant.round_to(numbers(1, 5, 64) + 0.5, right)
    assert np.allclose(rl.quant.matmul(a, b).values, a.values @ b.values.T, rtol=1e-12, atol=1e-12)


@settings(max_examples=examples(20))
@given(st.sampled_from(FORMATS), st.integers(0, 1000))
def test_gptq_is_never_worse_than_the_nearest(word: str, seed: int) -> None:
    w, x = numbers(seed, 6, 32), numbers(seed + 1, 40, 32) @ numbers(seed + 2, 32, 32)
    nearest, better = rl.quant.round_to(w, word), rl.quant.gptq(w, x, word)
    errors = [(((each.values - w) @ x.T) ** 2).sum() for each in (better, nearest)]
    assert errors[0] <= errors[1] * (1 + 1e-12)


# --- the executor ----------------------------------------------------------------------------------------------------


def gemm(k: int = 64, n: int = 32) -> Any:
    b = rl.ops.Builder("gemm", "bf16")
    y = b.op("linear", b.input("x", (8, k)), b.weight("w", (n, k)), name="y")
    return b.graph([b.op("relu", y, name="z")])


def test_a_program_rounds_only_when_asked() -> None:
    graph = gemm()
    narrow = rl.passes.quantize(graph, weights="int8")
    assert rl.ops.same(graph, narrow)
    w, x = numbers(0, 32, 64), numbers(1, 8, 64)
    rounded = rl.ops.execute(narrow, {"x": x, "w": w}, rounding=True)["z"]
    scale = (np.abs(w).max(axis=1, keepdims=True) / 127).astype(np.float16).astype(np.float64)
    assert np.allclose(rounded, np.maximum(x @ (np.rint(w / scale) * scale).T, 0), rtol=1e-12, atol=1e-12)


def test_activations_round_by_row_where_a_node_quantises_them() -> None:
    torch = pytest.importorskip("torch")
    narrow = rl.passes.quantize(gemm(), activations="fp8")
    w, x = numbers(0, 32, 64), numbers(1, 8, 64)

    def fp8(a: Any) -> Any:
        scale = (np.abs(a).max(axis=1, keepdims=True) / 448).astype(np.float32).astype(np.float64)
        return torch.from_numpy(a / scale).to(torch.float8_e4m3fn).double().numpy() * scale

    rounded = rl.ops.execute(narrow, {"x": x, "w": w}, rounding=True)["z"]
    assert np.allclose(rounded, np.maximum(fp8(x) @ fp8(w).T, 0), rtol=1e-9, atol=1e-9)


def test_comparing_reports_the_error_of_each_layer() -> None:
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "vocab_size": 100,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    graph = rl.from_config(config, phase="decode")
    result = rl.ops.same(graph, rl.passes.quantize(graph, cache="int8"), rounding=True, B=1, C=8)
    rows = {row["name"]: row for row in result.records()}
    name = next(name for name in rows if "values" in name or "attn" in name)
    assert {"sqnr_db", "cosine", "largest_error"} <= rows[name].keys()
    assert not result
    assert 30 < min(row["sqnr_db"] for row in rows.values()) < 60
    assert rl.ops.same(graph, graph, rounding=True, B=1, C=8).records()[-1]["sqnr_db"] == float("inf")


# --- programs, modules, smoothing ------------------------------------------------------------------------------------


def test_weights_of_a_program_keep_their_own_rounding() -> None:
    graph, w, x = gemm(), numbers(0, 32, 64), numbers(1, 256, 64) @ numbers(2, 64, 64)
    small = rl.quant.quantize_weights(graph, {"w": w}, "int4-g32-sym", "gptq", {"w": x})
    before = {"w": w, "x": x[:8]}
    sameness = rl.ops.same(graph, small.program, rounding=True, inputs=before, instead=small.arrays)
    expected = rl.quant.deviation(x[:8] @ w.T, x[:8] @ small.weights["w"].values.T)
    assert sameness.layers["y"].sqnr_db == pytest.approx(expected.sqnr_db, rel=1e-9)
    assert small.program.tensors["w"].dtype == "int4-g32-sym"
    nearest = rl.quant.quantize_weights(graph, {"w": w}, "int4-g32-sym", inputs={"w": x})
    assert small.layers[0].output_sqnr_db > nearest.layers[0].output_sqnr_db + 1  # type: ignore[operator]


def test_smoothing_leaves_the_function_and_helps_int8() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.LayerNorm(32), torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    with torch.no_grad():
        net[0].weight[3] *= 60  # an outlier channel
    x = torch.randn(64, 32)
    graph, state = rl.from_torch(net, x), net.state_dict()
    weights = {name: state[name] for name in state if name in graph.tensors}
    new = rl.quant.smooth(graph, weights, {name: each.largest for name, each in rl.quant.observe(net, [x]).items()})
    entry = next(tensor.name for tensor in graph.tensors.values() if tensor.kind == "input")
    runs = [rl.ops.execute(graph, {**{n: np.asarray(a, float) for n, a in each.items()}, entry: x.numpy()})
            for each in (weights, new)]  # fmt: skip
    (before,), (after,) = (list(run.values()) for run in runs)
    assert np.abs(before - after).max() <= 1e-12 * np.abs(before).max()
    plain, smoothed = (
        rl.quant.quantize_module(net, [x], rl.quant.Recipe("int8", "int8", scales="static", smooth=strength))
        for strength in (None, 0.5)
    )
    errors = [rl.quant.deviation(net(x), each.module(x)).sqnr_db for each in (plain, smoothed)]
    assert errors[1] > errors[0] + 3


def test_a_module_rounds_its_convolutions_by_their_windows() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    net = torch.nn.Conv2d(2, 4, 3, padding=1, stride=2)
    x = torch.randn(4, 2, 8, 8)
    small = rl.quant.quantize_module(net, [x], rl.quant.Recipe("int4-g9-sym", method="gptq", keep=()))
    (layer,) = small.layers
    expected = rl.quant.deviation(net(x) - net.bias[:, None, None], small.module(x) - net.bias[:, None, None]).sqnr_db
    assert layer.output_sqnr_db == pytest.approx(expected, abs=0.01)
