"""StableHLO of programs: JAX's parser and verifier take it, and XLA runs it on a CPU to the executor's numbers."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Run, fails
from laws.test_law_evaluation import COLLECTIVES, SAMPLES, bound

import roofline as rl
from roofline.codegen.stablehlo import SCALE, ZERO
from roofline.codegen.stablehlo.xla import run as execute
from roofline.ops.arrays import mix, updated

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    jax = pytest.importorskip("jax")
    import jax.numpy as jnp

jax.config.update("jax_platforms", "cpu")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
#: XLA in fp32 beside the executor in double precision, over the largest magnitude of a result: a sum of a thousand
#: products of about 1 loses a few units of 2^-24 each.
FP32 = 3e-6
DTYPES = {
    "fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int64": "int64", "int32": "int32", "bool": "bool",
    "fp64": "float64",
}  # fmt: skip


def arrays(graph: rl.Graph, low: Any, values: dict[str, Any]) -> list[Any]:
    """Arguments of a lowered program in its number formats."""
    return [np.asarray(values[name]).astype(jnp.dtype(DTYPES[graph.tensors[name].dtype])) for name in low.arguments]


def drawn(graph: rl.Graph, top: int = 5, seed: int = 0) -> dict[str, Any]:
    """Arrays for everything that nothing computes; indices below ``top``."""
    dice, made = np.random.default_rng(seed), dict[str, Any]()
    for name, tensor in graph.tensors.items():
        shape = tuple(int(size) for size in tensor.shape)
        if tensor.kind != "activation" and tensor.dtype.startswith("int"):
            made[name] = dice.integers(0, top, shape)
        elif tensor.kind != "activation":
            fan_in = np.prod(shape[1:]) if tensor.kind == "weight" and len(shape) > 1 else 1
            values = dice.uniform(0.5, 1.5, shape) if len(shape) < 2 else dice.standard_normal(shape) / np.sqrt(fan_in)
            made[name] = np.float64(values.astype(np.float32))
    return made


def differences(graph: rl.Graph, values: dict[str, Any] | None = None, **sizes: int) -> dict[str, float]:
    """Run a program by XLA and by the executor: how far each output is from the latter, over its largest magnitude."""
    low = rl.lower(graph, **sizes)
    whole = graph.bind(**low.sizes) if low.sizes else graph
    values = drawn(whole) if values is None else values
    expected = rl.ops.execute(whole, {name: values[name] for name in low.arguments})
    results = dict(zip(low.results, execute(low.text, arrays(whole, low, values)), strict=True))
    assert all(results[name].shape == expected[name].shape for name in low.results)
    return {
        name: float(np.abs(results[name] - expected[name]).max() / (np.abs(expected[name]).max() or 1))
        for name in low.results
    }  # fmt: skip


# --- operator by operator ---------------------------------------------------------------------------------------------

POINT = {"B": 2, "S": 3, "C": 5}
#: Operators of which the graph does not say what they compute, and those that several devices do together.
SILENT = {name for name, op in rl.ops.OPS.items() if op.reference in (mix, updated)}
INDICES = ("embedding", "gather", "gather_rows", "cross_entropy", "cross_entropy_grad")


def sampled(names: list[str]) -> tuple[rl.Graph, dict[str, Any]]:
    """One program with a node of each operator, and what it reads; numbers away from 0, where some have no value."""
    b, values, dice = rl.ops.Builder("samples", "fp32"), dict[str, Any](), np.random.default_rng(1)
    outputs = []
    for name in names:
        shapes, attrs = SAMPLES[name]
        with b.scope(name):
            inputs = []
            for at, shape in enumerate(shapes):
                index = name in INDICES and at == 1
                inputs.append(b.input(f"x{at}", bound(shape, POINT), "int32" if index else None))
                size = b.shape(inputs[-1])
                positive = dice.uniform(0.5, 1.5, size).astype(np.float32)
                signed = positive * np.sign(
                    dice.uniform(-1, 1, size) + (2 * (name in ("log", "sqrt", "rsqrt", "pow", "batchnorm2d")))
                )
                values[inputs[-1]] = dice.integers(0, 5, size) if index else np.float64(signed)
            outputs.append(b.op(name, *inputs, name="y", **{key: bound(each, POINT) for key, each in attrs.items()}))
    return b.graph(outputs), values


def test_xla_computes_what_the_executor_computes_operator_by_operator() -> None:
    names = [name for name in SAMPLES if name not in {*SILENT, *COLLECTIVES, "send"}]
    assert len(names) > 100
    off = {name: each for name, each in differences(*sampled(names)).items() if not each < FP32}
    assert not off


@pytest.mark.parametrize("name", sorted({*SILENT, *COLLECTIVES, "send"}))
def test_what_has_no_rule_is_refused_by_name(name: str) -> None:
    with pytest.raises(rl.errors.UnknownOp, match=f"{name}.y: no rule lowers {name} to StableHLO"):
        rl.lower(sampled([name])[0])


# --- programs ---------------------------------------------------------------------------------------------------------


def mlp(dtype: str = "fp32") -> rl.Graph:
    b = rl.ops.Builder("mlp", dtype)
    x = b.input("x", (rl.ops.symbol("B"), 64))
    for at, width in enumerate((128, 128, 16)):
        with b.scope(f"layers.{at}"):
            x = b.op("linear", x, b.weight("w", (width, int(b.shape(x)[1]))), b.weight("b", (width,)), name="up")
            x = b.op("gelu", x) if at < 2 else x
    return b.graph([x])


def conv_net() -> rl.Graph:
    b = rl.ops.Builder("conv-relu", "fp32")
    x = b.op("conv2d", b.input("x", (2, 3, 8, 8)), b.weight("conv.w", (16, 3, 3, 3)), padding=1, name="conv")
    x = b.op(
        "batchnorm2d", x, *(b.weight(f"bn.{part}", (16,)) for part in ("scale", "shift", "mean", "var")), name="bn"
    )
    x = b.op("relu", x)
    x = b.op("conv2d", x, b.weight("down.w", (32, 4, 3, 3)), groups=4, stride=2, padding=((0, 1), (1, 0)), name="down")
    return b.graph([b.op("maxpool2d", x, r=2, name="pool")])


def attention(causal: bool, window: int = 0, dtype: str = "fp32") -> rl.Graph:
    b = rl.ops.Builder("attention", dtype)
    q, k, v = (b.input(name, (2, heads, 12, 16)) for name, heads in (("q", 8), ("k", 2), ("v", 2)))
    mask = {"causal": causal, "window": window}
    scores = b.op("attention_scores", q, k, name="scores", **mask)
    weights = b.op("attention_softmax", scores, name="softmax", scale=0.25, **mask)
    return b.graph([b.op("attention_values", weights, v, name="values", **mask)])


@pytest.mark.parametrize("build", [mlp, conv_net, lambda: attention(True), lambda: attention(False, 5)])
def test_xla_runs_a_program_to_the_executors_numbers(build: Callable[[], rl.Graph]) -> None:
    graph = build()
    assert max(differences(graph, **dict.fromkeys(graph.symbols, 5)).values()) < FP32


def test_a_model_runs_to_the_executors_numbers() -> None:
    graph = rl.model("gpt2", phase="prefill", layers=2, hidden=64, heads=4, vocab=50, positions=16)
    assert max(differences(graph, B=2, S=6).values()) < FP32


def test_a_backward_runs_to_the_executors_numbers() -> None:
    off = differences(rl.passes.backward(mlp()), B=5)
    assert {"layers.0.up.grad_w", "layers.2.up.grad_b"} <= off.keys()
    assert max(off.values()) < FP32


def test_numbers_of_16_bits_are_multiplied_as_such() -> None:
    low = rl.lower(mlp("bf16"), B=3)
    assert "(tensor<3x64xbf16>, tensor<128x64xbf16>) -> tensor<3x128xbf16>" in low.text
    # Three layers, each rounded to 8 bits of mantissa twice.
    assert max(differences(mlp("bf16"), B=3).values()) < 6 * 2**-8


def test_whole_numbers_of_8_bits_are_added_up_in_32_and_scaled() -> None:
    graph = rl.what_if(mlp(), weights={"*": "int8"}, activations="int8").bind(B=4)
    low = rl.lower(graph)
    assert "(tensor<4x64xi8>, tensor<128x64xi8>) -> tensor<4x128xi32>" in low.text
    dice, arguments, values = np.random.default_rng(2), [], dict[str, Any]()
    plain = drawn(graph)
    for name in low.arguments:  # weights as they are stored: whole numbers and a scale per row
        base = name.removesuffix(SCALE).removesuffix(ZERO)
        if name.endswith(SCALE):
            scale = jnp.asarray(dice.uniform(0.5, 1, (*graph.tensors[base].shape[:-1], 1)) / 800, "bfloat16")
            values[base] = values[base] * np.asarray(scale, np.float64)
            arguments.append(scale)
        elif graph.tensors[name].dtype.startswith("int8"):
            values[name] = dice.integers(-127, 128, graph.tensors[name].shape)
            arguments.append(jnp.asarray(values[name], "int8"))
        else:
            values[name] = plain[name]
            arguments.append(jnp.asarray(plain[name], "float32"))
    (result,) = execute(low.text, arguments)
    expected = rl.ops.execute(graph, values)[graph.outputs[0]]
    # Rounding each activation to a 254th of its row's largest: about 1 % of a sum, less as the errors are independent.
    error = np.abs(result - expected).max() / np.abs(expected).max()
    assert 1e-6 < error < 0.02


def test_weights_of_4_bits_are_dequantised_by_group() -> None:
    graph = rl.what_if(mlp(), weights={"*.0.*": "int4"}).bind(B=2)
    low = rl.lower(graph)
    assert low.arguments[:4] == ("x", "layers.0.w", "layers.0.w.scale", "layers.0.w.zero")
    values, dice = drawn(graph), np.random.default_rng(3)
    q, scale, zero = dice.integers(-8, 8, (128, 64)), dice.integers(1, 5, (128, 1)) / 64, dice.integers(-3, 3, (128, 1))
    values["layers.0.w"] = (q - zero) * scale
    stored = {
        "layers.0.w": jnp.asarray(q, "int4"), "layers.0.w.scale": jnp.asarray(scale, "bfloat16"),
        "layers.0.w.zero": jnp.asarray(zero, "bfloat16"),
    }  # fmt: skip
    arguments = [stored.get(name) if name in stored else jnp.asarray(values[name], "float32") for name in low.arguments]
    (result,) = execute(low.text, arguments)
    expected = rl.ops.execute(graph, values)[graph.outputs[0]]
    assert np.abs(result - expected).max() / np.abs(expected).max() < FP32


@pytest.mark.parametrize(("dtype", "shape", "block", "element", "scale"), [
    ("mxfp4", (4, 64), (1, 32), "float4_e2m1fn", "float8_e8m0fnu"),
    ("fp8-block", (200, 256), (128, 128), "float8_e4m3fn", "float32"),
])  # fmt: skip
def test_weights_in_blocks_are_dequantised(
    dtype: str, shape: tuple[int, int], block: tuple[int, int], element: str, scale: str
) -> None:
    """Blocks of a row with a power of two each, and blocks of a matrix, of which the last may be cut."""
    b = rl.ops.Builder("blocks", "fp32")
    graph = b.graph([b.op("dequantize", b.weight("w", shape, dtype), name="y")])
    low, dice = rl.lower(graph), np.random.default_rng(4)
    q = np.asarray(jnp.asarray(dice.integers(-4, 5, shape), element), np.float64)
    scales = 2.0 ** dice.integers(-3, 3, [-(-size // each) for size, each in zip(shape, block, strict=True)])
    (result,) = execute(low.text, [jnp.asarray(q, element), jnp.asarray(scales, scale)])
    expected = q * scales.repeat(block[0], 0).repeat(block[1], 1)[: shape[0], : shape[1]]
    assert (result == expected).all()


# --- what it says -----------------------------------------------------------------------------------------------------


def test_a_convolution_and_its_relu() -> None:
    lines = rl.lower(conv_net()).text.splitlines()
    assert "stablehlo.convolution(%x, %conv.w) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]" in lines[2]
    assert sum("stablehlo.maximum" in line for line in lines) == 2  # the ReLU, and the pooling


def test_equal_layers_share_their_functions() -> None:
    text = rl.lower("gpt2", phase="prefill", B=1, S=8).text
    assert text.count("func.func private @layernorm") == 1
    assert text.count('composite "roofline.layernorm"') == 25


def test_a_language_or_size_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(rl.errors.UsageError, match=r"target='stablehl'; allowed: stablehlo.*did you mean stablehlo"):
        rl.lower(conv_net(), "stablehl")
    with pytest.raises(rl.errors.UnboundSize, match="mlp needs a value for"):
        rl.lower(mlp())
    with pytest.raises(rl.errors.UsageError, match="layers"):
        rl.lower(mlp(), B=1, layers=2)
    with pytest.raises(rl.errors.UnknownDType, match="no type for the number format 'nf4'"):
        rl.lower(rl.what_if(mlp(), weights="nf4"), B=1)
    low = rl.lower(mlp(), B=1)
    low.save(tmp_path / "mlp.mlir")
    assert (tmp_path / "mlp.mlir").read_text() == str(low) == low.text
    assert "<Lowered mlp to stablehlo: " in repr(low)


def test_the_command_writes_a_file_or_prints(run: Run, tmp_path: Path) -> None:
    at = tmp_path / "gpt2.mlir"
    assert run("lower", "gpt2", "--to", "stablehlo", "-o", str(at), "-B", "1", "-S", "8").code == 0
    assert at.read_text() == rl.lower("gpt2", B=1, S=8).text
    assert run("lower", "gpt2", "-S", "8").out == at.read_text()
    fails(run("lower", "gpt2", "-S", "8", "--to", "hlo"), "allowed: stablehlo")
    fails(run("lower", "gpt2"), "gpt2", "-S")


@pytest.mark.skipif(os.environ.get("ROOFLINE_TESTS") != "long", reason="every shipped model: a minute")
@pytest.mark.parametrize("name", rl.models())
def test_every_shipped_model_lowers_and_verifies(name: str) -> None:
    from roofline.codegen.stablehlo.xla import verify

    graph = rl.model(name)
    sizes = {size: {"B": 1, "S": 8, "C": 8}.get(size, 8) for size in graph.symbols}
    if any(node.op == "state_update" for node in graph.nodes):  # the graph does not say what becomes of a state
        with pytest.raises(rl.errors.UnknownOp, match="no rule lowers state_update"):
            rl.lower(graph, **sizes)
        return
    verify(rl.lower(graph, **sizes).text)
