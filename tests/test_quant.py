"""Quantisation carried out, against what others compute: bit patterns, integers, second-order rounding."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.cli import main

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
    assert np.array_equal(element.decode(codes), expected, equal_nan=True)
    stored = np.unique(expected[finite])
    halves = (stored[1:].astype(np.float64) + stored[:-1]) / 2
    spread = numbers(0, 20_000) * 10.0 ** np.random.default_rng(1).uniform(-8, 5, 20_000)
    x = np.clip(np.concatenate([halves, spread, [0.0, -0.0]]), -element.largest, element.largest).astype(np.float32)
    assert (element.encode(x) == torch.from_numpy(x).to(getattr(torch, name)).view(torch.uint8).numpy()).all()
    assert element.decode(element.encode(np.array([1e9, -np.inf]))).tolist() == [element.largest, -element.largest]


@pytest.mark.parametrize("word", ["int4-g32", "int4-g128", "int4-g128-z4", "int8-tensor-asym"])
@pytest.mark.parametrize("value", [1e-3, 0.013, -5.0])
def test_equal_numbers_stay_what_they_are(word: str, value: float) -> None:
    x = np.array([[value] * 128, [0.0] * 128])
    assert np.allclose(rl.quant.fake(x, word), x, rtol=2.0**-8, atol=0)


def test_errors_of_numbers_of_any_size() -> None:
    inf, nan = np.inf, np.nan
    assert rl.quant.deviation([1, inf], [1, -inf]).sqnr_db == -inf
    assert rl.quant.deviation([1, inf, nan], [1, inf, nan]).sqnr_db == inf
    assert np.isnan(rl.quant.deviation([nan], [nan]).cosine)
    for size in (1e-200, 1e200):
        few = rl.quant.deviation([3 * size, 4 * size], [3 * size, 4.5 * size])
        assert (few.sqnr_db, few.largest) == (pytest.approx(20.0), pytest.approx(0.125))


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
    assert str(result).endswith(f"dB, in {min(rows, key=lambda name: rows[name]['sqnr_db'])!r}")
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


@pytest.mark.parametrize("activations", ["int8", "fp8", "mxfp8", "mxfp4", "nvfp4"])
def test_a_module_takes_the_pairs_of_formats_that_the_pass_takes(activations: str) -> None:
    torch = pytest.importorskip("torch")
    net, x = torch.nn.Linear(64, 64, dtype=torch.float32), torch.ones(2, 64)
    graph = rl.from_torch(net, x)

    def refused(call: Callable[..., Any], *args: Any, **words: Any) -> str:
        try:
            call(*args, **words, keep=())
        except rl.errors.UsageError as error:
            return str(error).partition(": ")[2]
        return ""

    def rounded(**words: Any) -> Any:
        return rl.quant.quantize_module(net, (), rl.quant.Recipe(**words))

    pairs = [{"weights": word, "activations": activations}
             for word in ("int8", "fp8", "int4-g32", "mxfp8", "mxfp4", "nvfp4")]  # fmt: skip
    of_pass = [refused(rl.passes.quantize, graph, **pair) for pair in pairs]
    assert [refused(rounded, **pair) for pair in pairs] == of_pass
    assert any("cannot meet" in text for text in of_pass)
    assert "" in of_pass


def test_a_module_rounds_its_convolutions_by_their_windows() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    net = torch.nn.Conv2d(2, 4, 3, padding=1, stride=2)
    x = torch.randn(4, 2, 8, 8)
    small = rl.quant.quantize_module(net, [x], rl.quant.Recipe("int4-g9-sym", method="gptq", keep=()))
    (layer,) = small.layers
    expected = rl.quant.deviation(net(x) - net.bias[:, None, None], small.module(x) - net.bias[:, None, None]).sqnr_db
    assert layer.output_sqnr_db == pytest.approx(expected, abs=0.01)


# --- against what others compute -------------------------------------------------------------------------------------


def test_what_works_its_weight_out_anew_is_refused() -> None:
    nn = pytest.importorskip("torch.nn")
    made = nn.utils.parametrizations
    with pytest.warns(FutureWarning):
        old = nn.utils.weight_norm(nn.Linear(16, 16))
    for layer in (made.weight_norm(nn.Linear(16, 16)), made.spectral_norm(nn.Linear(16, 16)), old):
        with pytest.raises(rl.errors.UsageError, match="worked out anew in each forward"):
            rl.quant.quantize_module(layer, recipe="int4-g16-sym")
    with pytest.raises(rl.errors.UsageError, match="remove_weight_norm takes back"):
        rl.quant.quantize_module(nn.Sequential(old, nn.Linear(16, 16)), recipe=rl.quant.Recipe(keep=["0*"]))


def test_calibration_runs_as_inference_and_leaves_the_module_as_it_is() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    parts = torch.nn.Linear(16, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(), torch.nn.ReLU()
    net, x = torch.nn.Sequential(*parts, torch.nn.Linear(16, 4)), torch.randn(32, 16) * 3 + 1
    net[1].eval()
    net[1].momentum, state = 0.5, {name: each.clone() for name, each in net.state_dict().items()}
    own = {"evaluate": lambda module: (module(x) - net.eval()(x)).square().mean().item()}
    for how in ({}, own):
        costs = rl.quant.sensitivity(net.train(), [x], ["int8"], **how).rows
        assert max(row.error for row in costs) < 1e-4
    net.train()[1].eval()
    seen = rl.quant.observe(net, [x])
    small = rl.quant.prune(net, x, by="activation", channels=8).module
    assert [each.training for each in net] == [True, False, True, True, True] == [each.training for each in small]
    assert all((each == state[name]).all() for name, each in net.state_dict().items())
    assert (small[1].running_var == 1).all()
    assert (seen["4.weight"].moment == rl.quant.observe(net.eval(), [x])["4.weight"].moment).all()


def test_statistics_are_no_weights_to_prune_by() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    with torch.no_grad():
        for each in (net[0].weight, net[0].bias, net[1].weight, net[3].weight.transpose(0, 1)):
            each[:4] *= 1e-4
        net[1].running_var[:4] = 50
    assert rl.quant.prune(net, torch.zeros(1, 3, 12, 12), channels=4).axes[0].indices.tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
@pytest.mark.parametrize("padding", [(1, 2), "same"])
def test_windows_are_padded_as_the_layer_does(mode: str, padding: Any) -> None:
    torch = pytest.importorskip("torch")
    conv, x = (
        torch.nn.Conv2d(3, 4, (3, 5), padding=padding, padding_mode=mode).double(),
        torch.randn(2, 3, 8, 8).double(),
    )
    wide = torch.nn.functional.pad(x, (2, 2, 1, 1), mode="constant" if mode == "zeros" else mode)
    rows = torch.nn.functional.unfold(wide, (3, 5)).transpose(1, 2).reshape(-1, 45).numpy()
    assert np.allclose(rl.quant.observe(conv, [x])["weight"].moment, rl.quant.hessian(rows), atol=1e-12)


def test_layers_called_by_name_and_layers_that_share_a_weight() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)

    class Twice(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = torch.nn.Linear(16, 16), torch.nn.Linear(16, 16)
            self.two.weight = self.one.weight

        def forward(self, x: Any) -> Any:
            return self.two(self.one(input=x))

    net, x = Twice(), torch.randn(32, 16)
    both = np.concatenate([x.numpy(), net.one(x).detach().numpy()])
    assert np.allclose(rl.quant.observe(net, [x])["one.weight"].moment, rl.quant.hessian(both))
    small = rl.quant.quantize_module(net, [x], rl.quant.Recipe("int4-g16-sym", "int8", "gptq", scales="static"))
    assert [layer.method for layer in small.layers] == ["gptq"]
    y = small.module.one(x)
    assert (small.module.one(input=x) == y).all()
    plain = torch.nn.functional.linear(y, small.module.two.weight, small.module.two.bias)
    assert not (small.module.two(y) == plain).all()
    assert small.module(x[:0]).shape == (0, 16)


def test_what_torch_cannot_give_is_refused() -> None:
    torch = pytest.importorskip("torch")
    net, x = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4)), torch.ones(8, 16)
    for tensor in (torch.zeros(2, 4, device="meta"), torch.eye(4).to_sparse()):
        with pytest.raises(rl.RooflineError, match="expected an array of numbers"):
            rl.quant.fake(tensor, "int8")
    assert rl.quant.sensitivity(net, [x], ["int8"], evaluate=lambda _: torch.tensor(3.0)).base == 3.0
    with pytest.raises(rl.RooflineError, match="expected several batches, in a list"):
        rl.quant.sensitivity(net, x)
    with pytest.raises(rl.RooflineError, match="a loss that can be differentiated"):
        rl.quant.prune(net, x, by="taylor", loss=lambda _: 3, channels=8)
    with torch.no_grad():
        net[0].weight[0, 0] = float("nan")
    with pytest.raises(rl.RooflineError, match="1 of 16 numbers are not finite"):
        rl.quant.prune(net, x, channels=8)


def test_what_stays_is_named() -> None:
    torch = pytest.importorskip("torch")
    small = rl.quant.quantize_module(torch.nn.MultiheadAttention(16, 2))
    assert small.unchanged == ("in_proj_weight",)
    assert "unchanged: in_proj_weight" in str(small)


@pytest.mark.parametrize(("groups", "method"), [(1, "gptq"), (2, "nearest")])
def test_convolutions_of_a_program_are_calibrated_as_those_of_a_module(groups: int, method: str) -> None:
    torch = pytest.importorskip("torch")
    conv, x = torch.nn.Conv2d(4, 8, 3, 2, 1, groups=groups, bias=False).double(), numbers(0, 2, 4, 9, 9)
    b = rl.ops.Builder("conv", "fp32")
    options = {"stride": 2, "padding": 1, "groups": groups}
    graph = b.graph([b.op("conv2d", b.input("x", x.shape), b.weight("w", conv.weight.shape), name="y", **options)])
    word = f"int4-g{36 // groups}-sym"
    whole = rl.quant.quantize_weights(graph, {"w": conv.weight}, word, "gptq", batches=[{"x": x}]).layers[0]
    own = rl.quant.quantize_module(conv, [torch.from_numpy(x)], rl.quant.Recipe(word, method="gptq")).layers[0]
    assert (whole.method, whole.output_sqnr_db) == (own.method, own.output_sqnr_db) == (method, own.output_sqnr_db)
    assert (whole.rounded.codes == own.rounded.codes).all()


def test_nvfp4_is_the_published_procedure() -> None:
    torch, ml = pytest.importorskip("torch"), pytest.importorskip("ml_dtypes")
    x = numbers(3, 4, 64) * 10.0 ** numbers(4, 4, 64)
    whole = np.float32(np.abs(x).max() / (6 * 448))  # arXiv:2509.25149: the tensor's scale, then each block's in e4m3
    tops = np.abs(x.reshape(4, 4, 16)).max(axis=2)
    scale = torch.from_numpy(tops / 6 / float(whole)).float().to(torch.float8_e4m3fn).double().numpy()
    scale = np.maximum(scale, 2.0**-9) * float(whole)
    elements = np.clip(x / np.repeat(scale, 16, axis=1), -6, 6).astype(np.float32).astype(ml.float4_e2m1fn)
    assert np.allclose(
        rl.quant.fake(x, "nvfp4"), elements.astype(np.float64) * np.repeat(scale, 16, axis=1), rtol=1e-12
    )


@pytest.mark.parametrize(("word", "kind", "top"), [("mxfp4", "float4_e2m1fn", 2), ("mxfp8", "float8_e4m3fn", 8)])
def test_microscaling_is_the_algorithm_of_the_specification(word: str, kind: str, top: int) -> None:
    ml = pytest.importorskip("ml_dtypes")
    x = numbers(5, 3, 96) * 10.0 ** numbers(6, 3, 96)
    power = np.floor(np.log2(np.abs(x.reshape(3, 3, 32)).max(axis=2))) - top  # OCP MX v1.0, section 6.3
    scale = np.repeat(2.0**power, 32, axis=1)
    limit = {2: 6.0, 8: 448.0}[top]
    elements = np.clip(x / scale, -limit, limit).astype(np.float32).astype(getattr(ml, kind)).astype(np.float64)
    assert (rl.quant.fake(x, word) == elements * scale).all()


def test_integers_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    a, b = rl.quant.round_to(numbers(0, 32, 64), "int8"), rl.quant.round_to(numbers(1, 24, 64), "int8")
    expected = torch._int_mm(torch.from_numpy(a.codes), torch.from_numpy(b.codes).T.contiguous()).numpy()
    product = rl.quant.matmul(a, b)
    assert product.integers.dtype == np.int32
    assert (product.integers[:, 0] == expected).all()


def test_zero_points_are_taken_off_in_integers() -> None:
    x, w = numbers(0, 9, 64) + 3, numbers(1, 7, 64) - 1
    a, b = rl.quant.round_to(x, "int8-tensor-asym"), rl.quant.round_to(w, "int4-g32-z4")
    product = rl.quant.matmul(a, b)
    left = (a.codes.astype(np.int64) - int(a.zero.item())).reshape(9, 2, 32)
    right = b.codes.astype(np.int64).reshape(7, 2, 32) - b.zero.astype(np.int64)[..., None]
    assert (product.integers == np.einsum("mgk,ngk->mgn", left, right)).all()


def test_sums_beyond_int32_are_refused() -> None:
    q = rl.quant.round_to(np.ones((1, 140_000)), "int8-tensor")
    with pytest.raises(rl.RooflineError, match="beyond int32; use groups"):
        rl.quant.matmul(q, q)


def obq(w: Any, moment: Any, scale: float) -> Any:
    """Optimal brain quantisation of each row in the order of its columns (arXiv:2208.11580, equation 3), directly."""
    result = w.copy()
    for at in range(w.shape[1]):
        inverse = np.linalg.inv(moment[at:, at:])
        rounded = np.clip(np.rint(result[:, at] / scale), -8, 7) * scale
        error = (result[:, at] - rounded) / inverse[0, 0]
        result[:, at:] -= np.outer(error, inverse[0])
        result[:, at] = rounded
    return result


def test_gptq_is_optimal_brain_quantisation_in_a_fixed_order() -> None:
    w, x = numbers(0, 5, 12), numbers(1, 60, 12) @ numbers(2, 12, 12)
    moment, nearest = rl.quant.hessian(x), rl.quant.round_to(w, "int4-tensor")
    direct = obq(w, moment, float(nearest.scale.item()))
    errors = [np.einsum("oi,ij,oj->o", v - w, moment, v - w) for v in (direct, nearest.values)]
    expected = np.where((errors[0] < errors[1])[:, None], direct, nearest.values)
    assert (errors[0] < errors[1]).sum() >= 3
    assert np.allclose(rl.quant.gptq(w, x, "int4-tensor", damping=0.0).values, expected, atol=1e-12)


def test_gptq_saves_most_where_inputs_are_correlated() -> None:
    w, mix = numbers(0, 32, 128), numbers(1, 16, 128)
    x = numbers(2, 400, 16) @ mix + 0.1 * numbers(3, 400, 128)
    errors = [((q.values - w) @ x.T).var() for q in (
        rl.quant.round_to(w, "int4-g64-sym"), rl.quant.gptq(w, x, "int4-g64-sym"),
        rl.quant.gptq(w, x, "int4-g64-sym", order="activation"))]  # fmt: skip
    assert max(errors[1:]) < 0.15 * errors[0]


# --- laws ------------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(30))
@given(st.sampled_from(FORMATS), st.integers(0, 1000), st.sampled_from([1e-3, 1.0, 1e3]))
def test_rounding_again_within_the_same_scales_changes_nothing(word: str, seed: int, size: float) -> None:
    q = rl.quant.round_to(numbers(seed, 3, 64) * size, word)
    from roofline.ops.rounding import encoded

    zero = None if q.zero is None else q.spread(q.zero)
    again = encoded(q.format, q.values, q.spread(q.scale * q.tensor_scale), zero)
    same = q.format.element.decode(again) == q.format.element.decode(q.codes)
    assert same.all()


@settings(max_examples=examples(30))
@given(
    st.sampled_from(["int8", "int4-g32-sym", "int4-g32-z4", "int8-tensor-asym", "int3-g32-z3"]), st.integers(0, 1000)
)
def test_whole_numbers_are_off_by_half_a_step_at_most(word: str, seed: int) -> None:
    x = numbers(seed, 3, 64) + 0.3
    q = rl.quant.round_to(x, word)
    step = q.spread(q.scale)
    edge = 1.002 if q.format.scale == "fp16" else 1 + 1e-6  # the rounded scale may end short of the largest number
    assert (np.abs(q.values - x) <= (0.5 + (edge - 1) * q.format.element.largest) * step).all()


@settings(max_examples=examples(20))
@given(st.sampled_from(FORMATS), st.integers(0, 1000))
def test_the_clip_of_least_error_is_no_worse_than_none(word: str, seed: int) -> None:
    x = numbers(seed, 2, 64) ** 3
    clipped, whole = (rl.quant.fake(x, word, within=within) for within in (rl.quant.calibrate(x, word, "mse"), None))
    # nvfp4's scale of the tensor follows the largest clip, so its blocks are not on their own
    assert ((clipped - x) ** 2).sum() <= ((whole - x) ** 2).sum() * (1.05 if word == "nvfp4" else 1 + 1e-9)


def test_ranges_of_batches() -> None:
    batches = [np.array([-4.0, 1.0]), np.array([0.5, 9.0])]
    whole = rl.quant.calibrate(batches, "int8-tensor-asym")
    assert (whole.low.item(), whole.high.item()) == (-4.0, 9.0)
    x = np.append(np.linspace(-1, 1, 999), 1000.0)
    cut = rl.quant.calibrate(x, "int8-tensor", "percentile", percentile=99.0)
    assert cut.high.item() == pytest.approx(np.percentile(np.abs(x), 99.0))
    with pytest.raises(rl.RooflineError, match="several batches have one range for all"):
        rl.quant.calibrate(batches, "int8")
    assert rl.quant.calibrate([np.zeros((0, 4)), np.ones((2, 4))], "int8-tensor").high.item() == 1.0


@pytest.mark.parametrize("word", ["int8-tensor", "int8-tensor-asym"])
def test_a_percentile_is_the_share_of_numbers_within(word: str) -> None:
    x = numbers(0, 100_000)
    cut = rl.quant.calibrate(x, word, "percentile", percentile=99.0)
    assert ((x >= cut.low.item()) & (x <= cut.high.item())).mean() == pytest.approx(0.99, abs=1e-4)
    how = {"ranges": "percentile", "percentile": 99.0}
    small = rl.quant.quantize_arrays({"w": x[None]}, word, **how).layers[0].rounded
    assert (small.codes == rl.quant.round_to(x[None], word, within=cut).codes).all()


@pytest.mark.parametrize("word", ["int4-tensor", "int8-tensor", "fp8-tensor"])
def test_a_program_counts_one_scale_for_all(word: str) -> None:
    w = numbers(0, 32, 64)
    small = rl.quant.quantize_weights(gemm(), {"w": w}, word)
    assert small.program.tensors["w"].dtype == word.removesuffix("-tensor")
    (row,) = rl.quant.sensitivity(gemm(), [{"x": numbers(1, 8, 64)}], word, weights={"w": w}).rows
    assert row.bits * w.size == small.layers[0].rounded.bits - 32


# --- files and the command -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("word", FORMATS)
def test_what_is_written_is_read_as_it_was(tmp_path: Path, suffix: str, word: str) -> None:
    q = rl.quant.round_to(numbers(0, 5, 64), word)
    rl.quant.save({"a.weight": q}, tmp_path / f"small{suffix}")
    back = rl.quant.load(tmp_path / f"small{suffix}")["a.weight"]
    assert (back.codes == q.codes).all()
    assert back.codes.dtype == q.codes.dtype
    assert (back.values == q.values).all()


def test_others_read_what_is_written_and_we_what_others_write(tmp_path: Path) -> None:
    torch, safetensors = pytest.importorskip("torch"), pytest.importorskip("safetensors.torch")
    w = torch.randn(8, 64, dtype=torch.bfloat16)
    safetensors.save_file({"w": w, "e": torch.zeros(0, 4), "f": w.to(torch.float8_e4m3fn)}, tmp_path / "w.safetensors")
    from roofline.quant.files import read_weights

    arrays = read_weights(tmp_path / "w.safetensors")
    assert (arrays["w"] == w.float().numpy()).all()
    assert (arrays["f"] == w.to(torch.float8_e4m3fn).float().numpy()).all()
    rl.quant.save({"w": rl.quant.round_to(w, "int4-g32-sym")}, tmp_path / "q.safetensors")
    read = safetensors.load_file(tmp_path / "q.safetensors")
    assert {name: tuple(each.shape) for name, each in read.items()} == {"w.codes": (256,), "w.scale": (8, 2)}


def test_a_file_that_points_outside_itself_is_refused(tmp_path: Path) -> None:
    from roofline.quant.files import read_weights

    header = b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,80000]}}'
    (tmp_path / "w.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + b"12345678")
    with pytest.raises(rl.RooflineError, match="'w' does not lie in the file"):
        read_weights(tmp_path / "w.safetensors")
    np.savez(tmp_path / "w.npz", w=np.array([{}], dtype=object))
    with pytest.raises(rl.RooflineError, match="'w' is no sound array of numbers"):
        read_weights(tmp_path / "w.npz")["w"]


@pytest.mark.parametrize(("field", "said"), [(10, "'w' is no sound array of numbers"), (6, "no sound npz file")])
def test_zip_files_of_a_later_standard_are_refused(tmp_path: Path, field: int, said: str) -> None:
    """The method of compression or the version that the archive's directory states is one that zipfile has not."""
    from roofline.quant.files import read_weights

    path = tmp_path / "w.npz"
    np.savez(path, w=np.ones((2, 4)))
    data = bytearray(path.read_bytes())
    at = data.index(b"PK\x01\x02") + field
    data[at : at + 2] = (99).to_bytes(2, "little")
    path.write_bytes(data)
    with pytest.raises(rl.RooflineError, match=said):
        read_weights(path)["w"]


def test_the_command_rounds_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    w, x = numbers(0, 16, 64), numbers(1, 200, 64) @ numbers(2, 64, 64)
    np.savez(tmp_path / "w.npz", **{"up.weight": w, "up.bias": w[:, 0], "embed.weight": w})
    np.savez(tmp_path / "x.npz", up=x)
    words = ["quantize", f"{tmp_path}/w.npz", "--weights", "int4-g32-sym", "--json"]
    assert main(words) == 0
    nearest = json.loads(capsys.readouterr().out)["rows"]
    assert main([*words, "--method", "gptq", "--calibration", f"{tmp_path}/x.npz", "-o", f"{tmp_path}/q.npz"]) == 0
    (better,) = json.loads(capsys.readouterr().out)["rows"]
    assert [row["weight"] for row in nearest] == ["up.weight"]
    change = rl.quant.load(tmp_path / "q.npz")["up.weight"].values - w
    assert better["output_sqnr_db"] == pytest.approx(rl.quant.deviation(x @ w.T, x @ (w + change).T).sqnr_db, abs=1e-6)
    assert main([*words, "--method", "gptq"]) == 2
    assert "--calibration FILE" in capsys.readouterr().err
    np.savez(tmp_path / "x.npz", upp=x)
    for more in ([], ["--mixed", "int8", "--memory-limit", "1MB"]):
        assert main([words[0], words[1], *more, "--calibration", f"{tmp_path}/x.npz"]) == 2
        assert "no weight is called 'upp'; did you mean up" in capsys.readouterr().err
    assert main([*words, "--mixed", "int8", "--memory-limit", "1MB"]) == 2
    assert "give it or --weights" in capsys.readouterr().err


def test_the_command_does_not_write_over_what_it_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from roofline.quant.files import _write

    monkeypatch.chdir(tmp_path)
    Path("one").mkdir()
    _write(Path("one/w.safetensors"), {"w": np.eye(4, dtype=np.float32)}, {})
    os.link("one/w.safetensors", "other.safetensors")
    before = Path("other.safetensors").read_bytes()
    weights = ["one/w.safetensors", "one", "one"]
    for read, out in zip(weights, ["./one/w.safetensors", "one/new.npz", "other.safetensors"], strict=True):
        assert main(["quantize", read, "-o", out]) == 2
        assert f"lies in {read}, which is read" in capsys.readouterr().err
    assert (Path("other.safetensors").read_bytes(), os.listdir("one")) == (before, ["w.safetensors"])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: rl.quant.round_to(np.zeros((0, 4)), "int8"), "has no numbers to round"),
        (lambda: rl.quant.round_to([[1.0, np.nan]], "int8"), "1 of 2 numbers are not finite"),
        (lambda: rl.quant.round_to(numbers(0, 4, 64) * 1e7, "int8"), "is beyond fp16, which it is stored in"),
        (lambda: rl.quant.round_to(numbers(0, 4, 64) * 1e-9, "int8"), "rounds to 0 in the smallest scale of fp16"),
        (lambda: rl.quant.round_to(np.ones((2, 48)), "int4-g32"), "do not divide rows of 48; nearest that fits"),
        (lambda: rl.quant.round_to(np.ones(256), "q4_k"), "no rounding is defined"),
        (lambda: rl.quant.round_to(np.ones(4), "fp8-block"), "square blocks need a matrix"),
        (lambda: rl.quant.round_to(np.ones((2, 4)), "int8", axis=2), "the array has 2 axes"),
        (lambda: rl.quant.number_format("mxfp4-asym"), "only whole numbers have zero points"),
        (lambda: rl.quant.number_format("int4-g32", per="tensor"), "has a scale per group, not per tensor"),
        (
            lambda: rl.quant.gptq(np.ones((2, 4)), np.ones((3, 5)), "int8"),
            "rows of 4 weights need inputs of",
        ),
        (lambda: rl.quant.gptq(np.ones((2, 4)), None, "int8"), "give calibration inputs"),
        (lambda: rl.quant.quantize_arrays({"w": np.ones((2, 4))}, {"*": "int8", "u": "fp8"}), "no matrix matches 'u'"),
        (lambda: rl.quant.quantize_arrays({"w": np.full((2, 4), np.inf)}), "w: 8 of 8 numbers are not finite"),
        (lambda: rl.quant.quantize_arrays({"w": np.ones(4)}), "no matrix to quantise"),
        (lambda: rl.quant.Recipe(method="gtpq"), "did you mean gptq"),
        (lambda: rl.quant.calibrate([1.0], "int8-tensor", "mean"), "allowed: minmax, percentile, mse"),
        (lambda: rl.quant.calibrate(np.array([1.0, np.inf]), "int8-tensor"), "1 of 2 numbers are not finite"),
        (lambda: rl.quant.round_to(np.ones((2, 4)), None), "expected a format such as int8"),  # type: ignore[arg-type]
        (lambda: rl.quant.round_to([1j], "int8"), "expected an array of numbers"),
        (
            lambda: rl.quant.round_to(np.ones((2, 4)), "int8", within=rl.quant.calibrate(np.ones((3, 4)), "int8")),
            "within: ranges of shape [3, 1]; int8-g4-sym has [2, 1] scales here",
        ),
        (lambda: rl.quant.gptq(np.ones((2, 4)), [], "int8"), "inputs: there are none"),
        (
            lambda: rl.quant.quantize_arrays({"w": np.ones((2, 4))}, inputs={"w": np.ones((3, 2))}),
            "w: rows of 4 weights need inputs of that width, not 2",
        ),
        (lambda: rl.quant.quantize_arrays({"packed": np.ones((2, 4), np.int32)}), "or of whole numbers"),
        (
            lambda: rl.quant.quantize_arrays({"w.codes": np.ones((2, 4)), "w.scale": np.ones((2, 1))}),
            "'w.codes' was rounded already",
        ),
        (lambda: rl.quant.calibrate([1.0], "int8-tensor", percentile=None), "percentile=None: expected"),  # type: ignore[arg-type]
        (lambda: rl.quant.gptq(np.ones((2, 4)), np.ones((2, 4)), "int8", damping="a"), "damping='a': expected"),  # type: ignore[arg-type]
        (lambda: rl.quant.hessian(4.0), "expected batches of one width"),
        (lambda: rl.quant.quantize_arrays({"w": np.ones((2, 4))}, foo=3), "option='foo'; allowed: ranges"),
        (lambda: rl.quant.quantize_arrays([1, 2]), "weights: expected arrays by name"),  # type: ignore[arg-type]
        (lambda: rl.quant.quantize_weights(gemm(), [1]), "weights: expected arrays by name"),  # type: ignore[arg-type]
        (lambda: rl.quant.observe(gemm(), 5), "expected several batches, in a list, not 5"),  # type: ignore[arg-type]
        (lambda: rl.quant.observe(3, [1]), "expected a torch.nn.Module, not 3"),
        (lambda: rl.quant.sensitivity(gemm(), [{}], evaluate=3), "evaluate=3: expected a function"),  # type: ignore[arg-type]
        (lambda: rl.quant.sensitivity(gemm(), [{}], []), "no formats; give some"),
        (lambda: rl.quant.Recipe(activations=3), "activations=3: expected a format"),  # type: ignore[arg-type]
        (lambda: rl.quant.Range(np.nan, np.nan), "1 of 1 numbers are not finite"),
        (lambda: rl.quant.Range(1.0, -1.0), "from low to high"),
        (lambda: rl.quant.Recipe(damping="much"), "damping='much': expected a number from 0"),  # type: ignore[arg-type]
        (lambda: rl.quant.matmul(np.ones((2, 4)), np.ones((2, 4))), "expected what round_to returns"),
        (lambda: rl.quant.observe(rl.model("gpt2"), [{}]), "leaves open what it computes"),
    ],
)
def test_what_cannot_be_rounded_says_why(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(rl.RooflineError, match=re.escape(words)):
        call()
