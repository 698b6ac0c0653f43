"""Loops as MLIR: text that JAX's own parser and verifier accept; as linalg: what IREE compiles and runs."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import numpy as np
import pytest
from loop_cases import PROGRAMS, drawn, one
from mlir_runner import Runner
from test_loops import CHOICES

import roofline as rl
from roofline.codegen.loops import mlir, tensors
from roofline.codegen.loops.choose import Choice, changed
from roofline.codegen.loops.lowering import loop_nests
from roofline.ir.errors import UsageError
from roofline.ops import execute
from roofline.ops.aliases import aliases


@cache
def context() -> Any:
    return pytest.importorskip("jax._src.interpreters.mlir").make_ir_context()


def verified(text: str) -> str:
    """Parse and verify a module; return it as MLIR prints it."""
    ir = pytest.importorskip("jaxlib.mlir.ir")
    with context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        assert module.operation.verify()
        return str(module)


FORMATS = {
    "bf16": one("linear", (4, 8), (6, 8), formats=("bf16", "bf16")),
    "int8": one("linear", (4, 8), (6, 8), formats=("int8", "int8")),
    "fp8": one("gelu", (9,), formats=("fp8",)),
    "embedding": one("embedding", (9, 6), (2, 3), formats=("fp32", "int32")),
    "padded": one("maxpool2d", (1, 2, 6, 6), r=3, stride=2, padding=1),
    "window": one("attention_softmax", (1, 2, 9, 9), window=4),
    "gather": one("gather_rows", (9, 6), (4,), formats=("fp32", "int64")),
    "mask": one("mask", (3, 8), (3, 8), formats=("fp32", "bool")),
    "strided": one("transpose_copy", (8, 8)),
    "fp64": one("layernorm", (3, 8), (8,), (8,), formats=("fp64",) * 3),
}


@pytest.mark.parametrize("choice", ["none", *CHOICES])
@pytest.mark.parametrize("name", [*PROGRAMS, *FORMATS])
def test_jax_parses_and_verifies_the_loops_after_each_pass(name: str, choice: str) -> None:
    program = loop_nests(PROGRAMS[name]() if name in PROGRAMS else FORMATS[name])
    text = verified(mlir.module(changed(program, CHOICES.get(choice, Choice()))))
    assert text.count("func.func") == len(program.kernels) + 1


def test_vectors_and_marks_are_in_the_text() -> None:
    program = loop_nests(one("linear", (8, 16), (8, 16)))
    text = mlir.module(changed(program, Choice(vectorise=8, parallel=True)))
    assert "scf.parallel" in text
    assert "vector.transfer_read" in text
    assert "vector.reduction <add>" in text
    assert "vector<8xf32>" in text
    strided = mlir.module(changed(loop_nests(one("conv1d", (1, 2, 16), (2, 2, 3), stride=2)), Choice(vectorise=4)))
    assert verified(strided)


def test_a_format_without_a_type_is_refused_by_its_name() -> None:
    program = loop_nests(one("dequantize", (8, 16), formats=("int4-g128",)))
    with pytest.raises(UsageError, match="MLIR has no type for int4-g128, only for fp64"):
        mlir.module(program)


def test_lower_writes_loops_and_takes_the_passes() -> None:
    text = rl.lower(PROGRAMS["mlp"](), "loops", fuse_loops=True, tile=(4, 4), vectorise=4, unroll=2, parallel=True)
    assert text.arguments == ("x", "w1", "b1", "w2", "y")
    assert text.results == ("y",)
    assert "scf.parallel" in verified(str(text))
    assert str(rl.lower(PROGRAMS["mlp"](), "loops")).count("scf.for") == 14
    assert "linalg.generic" in str(rl.lower(PROGRAMS["mlp"](), "linalg"))
    with pytest.raises(UsageError, match=r"tile \(--tile\): linalg has no loops of ours; target='loops'"):
        rl.lower(PROGRAMS["mlp"](), "linalg", tile=(4,))
    with pytest.raises(UsageError, match="tile=0"):
        rl.lower(PROGRAMS["mlp"](), "loops", tile=0)


def test_whole_models_become_loops() -> None:
    gpt2 = rl.model("gpt2", phase="prefill", layers=1)
    assert verified(str(rl.lower(gpt2, "loops", fuse_loops=True, batch=1, seq=8)))
    assert verified(str(rl.lower("resnet-18", "loops", fuse_loops=True, batch=1)))


def _tiny() -> rl.Graph:
    b = rl.ops.Builder("tiny", "fp32")
    with b.kernel("k"):
        y = b.op("tanh", b.op("linear", b.input("x", (3, 5)), b.weight("w", (4, 5)), b.weight("b", (4,)), name="h"))
    return b.graph([y])


TINY = {
    "linear": _tiny(),
    "padded": one("maxpool2d", (1, 1, 3, 3), r=2, stride=1, padding=1),
    "masked": one("attention_softmax", (1, 1, 4, 4), causal=True),
    "strided": one("conv1d", (1, 2, 7), (1, 2, 2), stride=2),
}


@pytest.mark.parametrize("choice", [Choice(), Choice(True, (2, 2, 2), 2, 2, True)], ids=["plain", "all"])
@pytest.mark.parametrize("name", TINY)
def test_the_text_computes_the_numbers_of_the_executor(name: str, choice: Choice) -> None:
    """Run what the parser has read, not what was written."""
    ir = pytest.importorskip("jaxlib.mlir.ir")
    graph = TINY[name]
    program, arrays = changed(loop_nests(graph), choice), drawn(graph)
    names = dict.fromkeys((*program.inputs, *program.outputs))
    memory = [
        np.array(arrays[each]) if each in arrays else np.full(program.buffers[each].shape, np.nan) for each in names
    ]
    with context(), ir.Location.unknown():
        Runner(ir.Module.parse(mlir.module(program))).call("main", *memory)
    results = dict(zip(names, memory, strict=True))
    for output, expected in execute(graph, arrays).items():
        np.testing.assert_allclose(results[output], expected, rtol=1e-6)


# --- linalg -----------------------------------------------------------------------------------------------------------

LINALG = {
    **FORMATS,
    "grouped": one("conv2d", (1, 4, 5, 5), (6, 2, 3, 3), (6,), groups=2, padding=1),
    "cat": one("cat", (2, 3), (2, 4)),
    "cache": one("cache_update", (1, 2, 6, 3), (1, 2, 2, 3)),
    "scores": one("attention_scores", (2, 4, 3, 5), (2, 2, 6, 5)),
    "kept": one("reduce", (2, 3, 4), axes=(0, 2), how="max", keepdim=True),
    "sinks": one("attention_softmax", (2, 4, 6, 6), (4,), causal=True, window=2),
}


def test_a_contraction_is_one_generic_with_the_maps_of_its_signature() -> None:
    text = tensors.module(loop_nests(one("linear", (4, 8), (6, 8))))
    maps = re.findall(r"affine_map<\(d0, d1, d2\) -> \((.*?)\)>", text)
    assert maps == ["d0, d2", "d1, d2", "d0, d1"]
    assert 'iterator_types = ["parallel", "parallel", "reduction"]' in text


_ARRAYS = {
    "fp32": np.float32,
    "fp64": np.float64,
    "int32": np.int32,
    "int64": np.int64,
    "int8": np.int8,
    "bool": np.int8,
}


@pytest.mark.parametrize("name", [*PROGRAMS, *sorted(LINALG.keys() - {"bf16", "fp8", "fp64"})])
def test_iree_runs_the_linalg_form_to_the_numbers_of_the_executor(name: str) -> None:
    compiler, runtime = pytest.importorskip("iree.compiler"), pytest.importorskip("iree.runtime")
    graph = PROGRAMS[name]() if name in PROGRAMS else LINALG[name]
    program, arrays = loop_nests(graph), drawn(graph)
    arrays = {
        key: array.round(2) if graph.tensors[key].dtype.startswith("fp") else array.round()
        for key, array in arrays.items()
    }
    binary = compiler.compile_str(tensors.module(program), target_backends=["llvm-cpu"],
                                  extra_args=["--iree-llvmcpu-target-cpu=generic"])  # fmt: skip
    main = runtime.load_vm_flatbuffer(binary, driver="local-task").main
    results = main(*(arrays[key].astype(_ARRAYS[graph.tensors[key].dtype]) for key in program.inputs))
    results = results if isinstance(results, tuple | list) else [results]
    by_name = dict(zip(program.outputs, (each.to_host() for each in results), strict=True))
    for output, expected in execute(graph, arrays).items():
        np.testing.assert_allclose(by_name[aliases(graph).root(output)].ravel(), expected.ravel(), rtol=2e-4, atol=1e-5)
