"""StableHLO and HLO text as graphs: counts by hand, beside jaxprs, back from our own text; and hostile input."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from command_line import Run, fails
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.frontends.hlo.rules import attributes

TEXTS = Path(__file__).parent / "hlo"


def read(name: str, **options: Any) -> rl.Graph:
    return rl.from_hlo(TEXTS / name, **options)


def by_kernel(graph: rl.Graph) -> list[tuple[float, int]]:
    """Bytes and runs of each kernel."""
    return [(float(row.bytes), row.kernel.count) for row in rl.count(graph).rows]


# --- counts by hand ---------------------------------------------------------------------------------------------------

MLP_FLOPS = 2 * 8 * 64 * 128 + 2 * 8 * 128 * 32


def test_what_xla_made_of_an_mlp_by_hand() -> None:
    """Seven kernels: product, GELU, product, and a softmax in four, with fp32 everywhere."""
    counts = rl.count(read("mlp.txt"))
    rows = [
        8 * 64 + 64 * 128 + 8 * 128,
        2 * 8 * 128,
        8 * 128 + 128 * 32 + 8 * 32,
        8 * 32 + 8,
        2 * 8 * 32 + 8,
        8 * 32 + 8,
    ]
    assert counts.flops == MLP_FLOPS
    # The GELU multiplies 6 times, adds 2 and takes a tanh; the softmax subtracts, takes exp, adds, divides by rows, and
    # multiplies instead of dividing.
    assert counts.vector_flops == 9 * 8 * 128 + 4 * 8 * 32 + 8
    assert by_kernel(read("mlp.txt")) == [(4 * size, 1) for size in [*rows, 2 * 8 * 32 + 8]]


def test_what_xla_made_of_a_convolution_by_hand() -> None:
    """A convolution with stride 2, a ReLU and a pooling, channels last: nothing is transposed."""
    graph = read("conv_net.txt")
    assert rl.count(graph).flops == 2 * (2 * 8 * 8 * 8) * 27
    assert by_kernel(graph) == [(4 * (1536 + 216 + 1024), 1), (4 * (1024 + 1024), 1), (4 * (1024 + 256), 1)]
    assert [node.op for node in graph.nodes if node.op == "copy"] == []


def test_copies_that_xla_left_are_kernels() -> None:
    """Of attention on (B, S, H, D): q, k and v are brought in order before the products, and the result back."""
    graph = read("attention.txt")
    counts = rl.count(graph)
    copies = [row for row in counts.rows if all(node.op == "copy" for node in row.kernel.nodes)]
    assert sum(row.kernel.count for row in copies) == 4
    assert {float(row.bytes) for row in copies} == {2 * 4 * 1024}
    assert (counts.launches, counts.flops) == (10, 2 * 2 * (2 * 4 * 16 * 16 * 8))


def test_loops_run_as_often_as_the_text_says() -> None:
    """Five turns with a product of 8 x 8, and eight turns over rows, before and after XLA's passes."""
    for name in ("loops.mlir", "loops.txt"):
        counts = rl.count(read(name))
        assert counts.flops == 5 * 2 * 8**3, name
        assert counts.vector_flops == 5 * 64 + 8 * 2 * 8, name


def test_arguments_are_called_as_in_the_source() -> None:
    graph = read("mlp.txt", weights=["w1", "w2"])
    assert graph.parameters == 64 * 128 + 128 * 32
    with pytest.raises(rl.errors.UsageError, match="weights='w3': no such argument; there are w1, w2, x"):
        read("mlp.txt", weights="w3")


# --- beside jax -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "attention", "conv_net", "loops"])
def test_text_counts_as_the_function_that_it_was_made_of(name: str) -> None:
    pytest.importorskip("jax")
    from hlo.make import PROGRAMS

    function, args = PROGRAMS[name]
    traced, text = rl.count(rl.from_jax(function, *args, weights=())), rl.count(read(f"{name}.mlir"))
    assert (text.flops, text.vector_flops) == (traced.flops, traced.vector_flops)
    if name in ("attention", "conv_net"):  # of the others, jax lowers x^3 to two products, and scans to counters
        assert (text.bytes, text.launches) == (traced.bytes, traced.launches)
    if name == "mlp":
        assert text.bytes - traced.bytes == 3 * 4 * 8 * 128
        assert text.launches == traced.launches + 1


@pytest.mark.parametrize("name", ["mlp", "attention", "conv_net"])
def test_texts_made_afresh_read_the_same(name: str) -> None:
    jax = pytest.importorskip("jax", minversion="0.10")
    from hlo.make import PROGRAMS

    function, args = PROGRAMS[name]
    lowered = jax.jit(function).lower(*args)
    plain = rl.count(read(f"{name}.mlir"))
    for text in (lowered.as_text(), lowered.as_text(debug_info=True)):
        made = rl.count(rl.from_hlo(text))
        assert (made.flops, made.bytes, made.launches) == (plain.flops, plain.bytes, plain.launches)
    compiled = rl.count(rl.from_hlo(lowered.compile().as_text()))
    assert compiled.flops == plain.flops
    assert compiled.bytes < plain.bytes or name == "conv_net"  # three kernels before and after


# --- our own text -----------------------------------------------------------------------------------------------------


def small(name: str, phase: str, **options: Any) -> rl.Graph:
    return rl.what_if(rl.model(name, phase=phase, layers=1), **options)


OWN = {
    "prefill": (lambda: small("gpt2", "prefill"), {"B": 2, "S": 16}),
    "decode": (lambda: small("llama-3-8b", "decode"), {"B": 2, "C": 64}),
    "fused": (lambda: small("llama-3-8b", "prefill", fuse="chains"), {"B": 1, "S": 16}),
    "int4": (lambda: small("llama-3-8b", "decode", weights="int4"), {"B": 1, "C": 16}),
    "int8": (lambda: small("gpt2", "prefill", weights={"layers.*": "int8"}, activations="int8"), {"B": 1, "S": 16}),
    "experts": (lambda: small("mixtral-8x7b", "prefill"), {"B": 1, "S": 16}),
    "convolutions": (lambda: rl.model("resnet18"), {"B": 2}),
}


@pytest.mark.parametrize("name", OWN)
def test_what_is_lowered_and_read_back_counts_the_same(name: str) -> None:
    build, sizes = OWN[name]
    graph = build()
    low = rl.lower(graph, **sizes)
    before, after = rl.count(graph.bind(**low.sizes)), rl.count(rl.from_hlo(low.text))
    assert (before.flops, before.bytes, before.launches) == (after.flops, after.bytes, after.launches)


def test_operators_of_ours_come_back_by_name() -> None:
    graph = rl.from_hlo(rl.lower(small("gpt2", "prefill"), B=1, S=8).text)
    assert {"attention_scores", "attention_softmax", "layernorm"} <= {node.op for node in graph.nodes}
    scores = next(node for node in graph.nodes if node.op == "attention_scores")
    assert (scores.name, scores.attrs) == ("layers.0.attn.scores", (("causal", True), ("window", 0)))
    assert graph.parameters == small("gpt2", "prefill").parameters


def test_options_of_composites_are_numbers_words_and_lists() -> None:
    text = (
        'composite_attributes = {a = true, b = -3 : i64, c = 1.5e-05 : f64, d = "x \\22y", e = [[1 : i64], [2 : i64]]}'
    )
    assert attributes(text) == {"a": True, "b": -3, "c": 1.5e-05, "d": "x \\22y", "e": ((1,), (2,))}
    with pytest.raises(rl.errors.ShapeError, match="no number, word or list"):
        attributes("composite_attributes = {a = #evil}")


# --- as a program, and beside ours ------------------------------------------------------------------------------------


def test_a_text_is_a_program(run: Run, tmp_path: Path) -> None:
    assert "multiply_multiply_fusion" not in run("graph", str(TEXTS / "mlp.mlir")).out
    assert "21 nodes, 7 kernels" in run("graph", str(TEXTS / "mlp.txt")).out
    row = run("estimate", str(TEXTS / "mlp.mlir"), "h100-sxm", "--json").row
    assert row["flops"] == MLP_FLOPS
    fails(run("estimate", str(TEXTS / "mlp.mlir"), "h100-sxm", "--phase", "decode"), "has no phase")
    assert rl.estimate(TEXTS / "conv_net.txt", "h100-sxm", mode="graph").counts.launches == 3


def test_xlas_kernels_stand_beside_our_policies(run: Run) -> None:
    program = read("attention.mlir")
    table = rl.analysis.fusion(program, "h100-sxm", others={"xla": read("attention.txt")})
    assert table["xla"].kernels == 10
    assert table["ideal"].bytes < table["inductor"].bytes < table["xla"].bytes < table["given"].bytes
    files = [str(TEXTS / f"attention.{suffix}") for suffix in ("mlir", "txt")]
    rows = run("fuse", files[0], "h100-sxm", "--compiled", files[1], "--json").data["rows"]
    assert [row["policy"] for row in rows][-1] == "xla"
    assert rows[-1]["bytes"] == table["xla"].bytes


def test_xlas_buffers_are_read() -> None:
    """w1, w2 and x are 64 x 128, 128 x 32 and 8 x 64 numbers; two (8, 128) share the temporary block."""
    buffers = rl.frontends.read_buffers(TEXTS / "mlp-buffer-assignment.txt")
    assert buffers.arguments == 4 * (64 * 128 + 128 * 32 + 8 * 64)
    assert (buffers.outputs, buffers.temporaries, buffers.constants) == (4 * 8 * 32, 4 * 8 * 128, 4)
    with pytest.raises(rl.errors.ModelDataError, match="no line 'allocation N"):
        rl.frontends.read_buffers(TEXTS / "mlp.txt")


# --- operations -------------------------------------------------------------------------------------------------------


def shlo(*lines: str, arguments: str = "%x: tensor<8x8xf32>", result: str = "tensor<8x8xf32>") -> str:
    return "\n".join([f"func.func @main({arguments}) -> {result} {{", *lines, "}", ""])


@pytest.mark.parametrize(("line", "op"), [
    ("%0 = stablehlo.tanh %x : tensor<8x8xf32>", "tanh"),
    ('%0 = "stablehlo.tanh"(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>', "tanh"),
    ("%0 = chlo.erf %x : tensor<8x8xf32> -> tensor<8x8xf32>", "erf"),
    ("%0 = stablehlo.transpose %x, dims = [1, 0] : (tensor<8x8xf32>) -> tensor<8x8xf32>", "permute"),
    ('%0 = "stablehlo.dot_general"(%x, %x) <{dot_dimension_numbers = #stablehlo.dot<lhs_contracting_dimensions = [1], '
     "rhs_contracting_dimensions = [0]>}> : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>", "matmul"),
    ("%0 = stablehlo.custom_call @Sharding(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>\n"
     "%1 = stablehlo.abs %0 : tensor<8x8xf32>", "abs"),
])  # fmt: skip
def test_an_operation_in_any_of_its_spellings(line: str, op: str) -> None:
    last = re.findall(r"(%\d+) =", line)[-1]
    graph = rl.from_hlo(shlo(line, f"return {last} : tensor<8x8xf32>"))
    assert graph.nodes[-1].op == op


def test_a_barrier_of_hlo_passes_on_what_it_is_given() -> None:
    text = """HloModule m
ENTRY e {
  x = f32[8] parameter(0)
  y = f32[8] exponential(x)
  t = (f32[8], f32[8]) tuple(x, y)
  b = (f32[8], f32[8]) opt-barrier(t)
  a = f32[8] get-tuple-element(b), index=1
  ROOT z = f32[8] exponential(a)
}"""
    assert [node.op for node in rl.from_hlo(text).nodes] == ["exp", "exp"]


def test_a_product_that_a_library_computes() -> None:
    text = """HloModule m
ENTRY %main (a: f32[4,8], b: f32[8,2]) -> f32[4,2] {
  %a = f32[4,8]{1,0} parameter(0)
  %b = f32[8,2]{1,0} parameter(1)
  %gemm = (f32[4,2]{1,0}, s8[4096]{0}) custom-call(%a, %b), custom_call_target="__cublas$gemm", CONFIG
  ROOT %out = f32[4,2]{1,0} get-tuple-element(%gemm), index=0
}
"""
    dims = '"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"],"lhs_batch_dimensions":[]'
    text = text.replace("CONFIG", 'backend_config={"gemm_backend_config":{"dot_dimension_numbers":{' + dims + "}}}")
    assert rl.count(rl.from_hlo(text)).flops == 2 * 4 * 8 * 2


def test_what_has_no_rule_is_refused_or_reported() -> None:
    text = shlo("%0 = stablehlo.custom_call @mystery(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>",
                "return %0 : tensor<8x8xf32>")  # fmt: skip
    with pytest.raises(rl.errors.UnknownOp, match="line 2: no rule for custom call mystery"):
        rl.from_hlo(text)
    assert rl.from_hlo(text, unknown="report").nodes[0].op == "unknown"


# --- input that is wrong, or means harm -------------------------------------------------------------------------------

HOSTILE = {
    "nothing": "\n\n",
    "prose": "this is no program\nat all\n",
    "binary": "ML\x00\x01\x02" * 50 + "\n",
    "truncated": (TEXTS / "mlp.mlir").read_text()[:900],
    "truncated hlo": (TEXTS / "mlp.txt").read_text()[:3000],
    "no such value": shlo("%0 = stablehlo.add %x, %y : tensor<8x8xf32>", "return %0 : tensor<8x8xf32>"),
    "no such function": shlo("%0 = call @f(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>", "return %0 : tensor<8x8xf32>"),
    "huge": shlo("return %x : tensor<8xf32>", arguments="%x: tensor<99999999999x99999999999xf32>"),
    "dynamic": shlo("return %x : tensor<?xf32>", arguments="%x: tensor<?xf32>"),
    "wrong type": shlo("return %x : tensor<8xf32>", arguments="%x: tensor<8xi7>"),
    "deep types": shlo("return %x : tensor<8xf32>", arguments="%x: " + "tuple<" * 5000),
    "deep tuples": "HloModule m\nENTRY %e (a: f32[]) -> f32[] {\n  %a = " + "(" * 5000 + "f32[] parameter(0)\n}\n",
    "deep regions": shlo(*["%0 = \"stablehlo.if\"(%x) ({"] * 3000),
    "itself": shlo("%0 = call @main(%x) : (tensor<8x8xf32>) -> tensor<8x8xf32>", "return %0 : tensor<8x8xf32>"),
    "bad root": "HloModule m\nENTRY %e (a: f32[2]) -> f32[2] {\n}\n",
    "parameter": "HloModule m\nENTRY %e (a: f32[2]) -> f32[2] {\n  %a = f32[2] parameter(999999999999)\n}\n",
    "unlike shapes": shlo("%0 = stablehlo.dot_general %x, %x, contracting_dims = [7] x [0] : (tensor<8x8xf32>, "
                          "tensor<8x8xf32>) -> tensor<8x8xf32>", "return %0 : tensor<8x8xf32>"),
    "a string without an end": shlo('%0 = "stablehlo.add' + '\\"' * 100_000),
    "comments without an end": "HloModule m\nENTRY e {\n  y = f32[8] add(x, x) " + "/*" * 100_000 + "\n}\n",
    "names without an end": shlo("%0" + " " * 100_000 + "%"),
    "a location without an end": shlo('%0 = stablehlo.tanh %x : tensor<8x8xf32> loc("' + '\\"' * 100_000),
    "reshape": shlo("%0 = stablehlo.reshape %x : (tensor<8x8xf32>) -> tensor<9xf32>", "return %0 : tensor<9xf32>"),
    "composite": shlo('%0 = stablehlo.composite "roofline.linear" %x {composite_attributes = {scale = #a}, '
                      "decomposition = @f} : (tensor<8x8xf32>) -> tensor<8x8xf32>", "return %0 : tensor<8x8xf32>"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_hostile_text_is_one_line_of_error_at_once(what: str) -> None:
    start = time.process_time()
    with pytest.raises(rl.RooflineError) as caught:
        rl.from_hlo(HOSTILE[what])
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    assert time.process_time() - start < 5


MARKS = ("}", "{", "(", ")", "[", "<", ">", '"', ",", "%0", "999999999999999", "-1", "tensor<f32>", "->", "=", "\0")


@settings(deadline=None, max_examples=examples(40), derandomize=True, database=None)
@given(
    name=st.sampled_from(["mlp.mlir", "mlp.txt", "loops.mlir", "loops.txt", "attention.mlir"]),
    edits=st.lists(
        st.tuples(st.integers(0, 10**6), st.sampled_from(MARKS), st.integers(0, 30)), min_size=1, max_size=3
    ),
)
def test_a_damaged_text_is_read_or_refused(name: str, edits: list[tuple[int, str, int]]) -> None:
    text = (TEXTS / name).read_text()
    for place, mark, gone in edits:
        at = place % len(text)
        text = text[:at] + mark + text[at + gone :]
    with suppress(rl.RooflineError):
        rl.count(rl.from_hlo(text))


def test_functions_that_double_are_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Thirty functions that call the one before them twice: a thousand million operations, were they written out."""
    lines = ["func.func @f0(%x: tensor<8xf32>) -> tensor<8xf32> {", "  return %x : tensor<8xf32>", "}"]
    for at in range(1, 31):
        name = "main" if at == 30 else f"f{at}"
        call = f"call @f{at - 1}(%{{}}) : (tensor<8xf32>) -> tensor<8xf32>"
        lines += [f"func.func @{name}(%x: tensor<8xf32>) -> tensor<8xf32> {{", f"  %0 = {call.format('x')}",
                  f"  %1 = {call.format('0')}", "  return %1 : tensor<8xf32>", "}"]  # fmt: skip
    monkeypatch.setattr("roofline.frontends.hlo.rules.MOST_WRITTEN", 2000)
    with pytest.raises(rl.errors.ShapeError, match="more than 2000 operations in all"):
        rl.from_hlo("\n".join(lines))


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "long.mlir"
    with path.open("wb") as file:
        file.truncate(100 * 2**20)
    with pytest.raises(rl.errors.ModelDataError, match="104857600 bytes; allowed: at most 67108864"):
        rl.from_hlo(path)
    with pytest.raises(rl.errors.ModelDataError, match="no such file"):
        rl.from_hlo(tmp_path / "none.mlir")
    with pytest.raises(rl.errors.UsageError, match="not list"):
        rl.from_hlo([])  # type: ignore[arg-type]
