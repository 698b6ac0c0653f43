"""Rewriting: patterns by hand, operators replaced, batch norms folded, linear layers joined; each run in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

import roofline as rl
from roofline.counting.memory import memory
from roofline.programs.layers.convolution import batchnorm, conv

B = rl.ops.symbol("B")
Function = Callable[..., Any]


def ops(graph: rl.Graph) -> list[str]:
    return [node.op for node in graph.nodes]


def swiglu(kernel: bool = False) -> rl.Graph:
    b = rl.ops.Builder("swiglu", "bf16")
    x, y = b.input("x", (B, 8)), b.input("y", (B, 8))
    if kernel:
        with b.kernel("together"):
            return b.graph([b.op("mul", y, b.op("silu", x), name="out")])
    return b.graph([b.op("mul", y, b.op("silu", x), name="out")])


# --- patterns ---------------------------------------------------------------------------------------------------------

SILU: tuple[Function, Function] = (lambda p, x: p.op("silu", x), lambda p, x: p.op("mul", x, p.op("sigmoid", x)))


def test_a_pattern_is_replaced_and_verified() -> None:
    after = rl.passes.rewrite(swiglu(), *SILU, verify=True)
    assert ops(after) == ["sigmoid", "mul", "mul"]
    assert after.outputs == ("out",)
    assert [node.name for node in after.nodes] == ["silu.sigmoid", "silu", "out"]
    assert [step.name for step in after.history] == ["rewrite"]
    assert after.info.notes == ("rewritten: silu(x) to mul(x, sigmoid(x)) in 1 place",)
    assert rl.ops.same(swiglu(), after, tolerance=1e-12, B=3)


def test_and_back() -> None:
    graph = swiglu()
    back = rl.passes.rewrite(rl.passes.rewrite(graph, *SILU), *reversed(SILU), verify={"B": 2})
    assert [(n.op, n.inputs, n.outputs) for n in back.nodes] == [(n.op, n.inputs, n.outputs) for n in graph.nodes]
    assert back.tensors == graph.tensors


def test_a_wrong_replacement_is_caught() -> None:
    with pytest.raises(rl.errors.UsageError, match="computes something else: 1 outputs differ: 'out'"):
        rl.passes.rewrite(swiglu(), SILU[0], lambda p, x: p.op("gelu", x), verify=True)
    assert ops(rl.passes.rewrite(swiglu(), SILU[0], lambda p, x: p.op("gelu", x))) == ["gelu", "mul"], (
        "as the user wants"
    )


@pytest.mark.parametrize("pattern", [
    lambda p, x, y: p.op("mul", p.op("silu", x), y),
    lambda p, x, y: p.op("mul", y, p.op("silu", x)),
])  # fmt: skip
def test_operands_of_a_product_may_change_places(pattern: Function) -> None:
    after = rl.passes.rewrite(swiglu(), pattern, lambda p, x, y: p.op("elementwise", x, y, what="swiglu", flops=5))
    assert [(node.op, node.inputs) for node in after.nodes] == [("elementwise", ("x", "y"))]


def test_an_input_named_twice_is_the_same_tensor() -> None:
    b = rl.ops.Builder("squares", "fp32")
    x, y = b.input("x", (8,)), b.input("y", (8,))
    graph = b.graph([b.op("add", b.op("mul", x, x), b.op("mul", x, y))])
    after = rl.passes.rewrite(graph, lambda p, a: p.op("mul", a, a), lambda p, a: p.op("square", a), verify=True)
    assert ops(after) == ["square", "mul", "add"]


def test_options_match_where_they_are_given() -> None:
    b = rl.ops.Builder("scaled", "fp32")
    x = b.input("x", (8,))
    for value in (1.0, 2.0, 1.0):
        x = b.op("mul_scalar", x, value=value)
    after = rl.passes.rewrite(
        b.graph([x]), lambda p, x: p.op("mul_scalar", x, value=1.0), lambda p, x: p.op("identity", x), verify=True
    )
    assert ops(after) == ["identity", "mul_scalar", "identity"]
    assert (
        ops(rl.passes.rewrite(b.graph([x]), lambda p, x: p.op("mul_scalar", x), lambda p, x: p.op("exp", x)))
        == ["exp"] * 3
    )


def test_places_do_not_overlap() -> None:
    b = rl.ops.Builder("chain", "fp32")
    x = b.input("x", (8,))
    for _ in range(5):
        x = b.op("relu", x)
    after = rl.passes.rewrite(
        b.graph([x]), lambda p, x: p.op("relu", p.op("relu", x)), lambda p, x: p.op("relu", x), verify=True
    )
    assert ops(after) == ["relu"] * 3


@pytest.mark.parametrize("why", ["other readers", "an output"])
def test_what_others_need_stays(why: str) -> None:
    b = rl.ops.Builder("shared", "fp32")
    x, y = b.input("x", (8,)), b.input("y", (8,))
    inner = b.op("silu", x)
    outer = b.op("mul", inner, y)
    graph = b.graph([outer, b.op("exp", inner) if why == "other readers" else inner])
    with pytest.raises(
        rl.errors.UsageError, match=r"mul\(silu\(x\), y\) is nowhere; the program has 1 silu, 1 mul, connected diff"
    ):
        rl.passes.rewrite(graph, lambda p, x, y: p.op("mul", p.op("silu", x), y), lambda p, x, y: p.op("add", x, y))


def test_an_open_input_is_not_a_result_of_the_pattern() -> None:
    b = rl.ops.Builder("itself", "fp32")
    e = b.op("silu", b.input("x", (8,)))
    graph = b.graph([b.op("mul", e, e)])
    with pytest.raises(rl.errors.UsageError, match="is nowhere"):
        rl.passes.rewrite(graph, "swiglu")


def test_one_operator_may_be_read_twice_within_the_pattern() -> None:
    b = rl.ops.Builder("diamond", "fp32")
    e = b.op("sigmoid", b.input("x", (8,)))
    graph = b.graph([b.op("mul", e, b.op("tanh", e))])

    def pattern(p: Any, x: Any) -> Any:
        inner = p.op("sigmoid", x)
        return p.op("mul", inner, p.op("tanh", inner))

    assert ops(rl.passes.rewrite(graph, pattern, lambda p, x: p.op("elementwise", x, what="both"))) == ["elementwise"]


def test_options_of_what_was_found_may_be_used() -> None:
    b = rl.ops.Builder("pooled", "fp32")
    x = b.input("x", (1, 4, 8, 8))
    graph = b.graph([b.op("relu", b.op("maxpool2d", x, r=3, stride=2, padding=1))])
    after = rl.passes.rewrite(graph, lambda p, x: p.op("relu", p.op("maxpool2d", x)),
                    lambda p, x: p.op("maxpool2d", p.op("relu", x), **p.attrs("maxpool2d")), verify=True)  # fmt: skip
    assert ops(after) == ["relu", "maxpool2d"]
    assert dict(after.nodes[1].attrs) == {"r": 3, "stride": 2, "padding": 1}


def test_a_replacement_stays_in_its_kernel() -> None:
    after = rl.passes.rewrite(swiglu(kernel=True), *SILU)
    assert {node.label for node in after.nodes} == {"together"}
    assert rl.count(after, B=4).bytes == rl.count(swiglu(kernel=True), B=4).bytes
    fused = rl.passes.fuse(swiglu())
    assert rl.count(rl.passes.rewrite(fused, *SILU), B=4).launches == 1


def test_formats_follow_the_result() -> None:
    after = rl.passes.rewrite(swiglu(), *SILU)
    assert {tensor.dtype for tensor in after.tensors.values()} == {"bf16"}


BAD = [
    (lambda p, x: p.op("silo", x), lambda p, x: x, rl.errors.UnknownOp, "silu"),
    (lambda p, x: p.op("gelu", x), lambda p, x: x, rl.errors.UsageError, "the program has no gelu; it has mul, silu"),
    (lambda p, x: x, lambda p, x: x, rl.errors.UsageError, "it returns an input"),
    (lambda p, x, y: p.op("silu", x), lambda p, x, y: x, rl.errors.UsageError, "nothing reads the input 'y'"),
    (lambda p: p.op("silu"), lambda p: None, rl.errors.UsageError, "at least one input"),
    (lambda p, x: None, lambda p, x: x, rl.errors.UsageError, "given NoneType"),
    (
        lambda p, x: p.op("silu", x),
        lambda p, x: x,
        rl.errors.UsageError,
        "expected at least one operator, such as identity",
    ),
    (
        lambda p, x: p.op("silu", x),
        lambda p, x: p.op("sum", x),
        rl.errors.ShapeError,
        "silu: sum gives .* where the program has",
    ),
    (lambda p, x: p.op("silu", x), lambda p, x: p.op("linear", x), rl.errors.ShapeError, "silu: linear takes"),
    (
        lambda p, x: p.op("silu", x),
        lambda p, x: p.op("copy", x, **p.attrs("relu")),
        rl.errors.UsageError,
        "has no relu",
    ),
]


@pytest.mark.parametrize(("pattern", "replacement", "error", "text"), BAD)
def test_what_cannot_be_rewritten_says_why(pattern: Any, replacement: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        rl.passes.rewrite(swiglu(), pattern, replacement)


def test_llama_with_fused_swiglu() -> None:
    graph = rl.model("llama-3-8b", phase="decode", layers=4)
    after = rl.passes.rewrite(graph, lambda p, x, y: p.op("mul", p.op("silu", x), y),
                    lambda p, x, y: p.op("elementwise", x, y, what="swiglu", flops=5))  # fmt: skip
    old, new = rl.count(graph, B=2, C=64), rl.count(after, B=2, C=64)
    assert old.launches - new.launches == 4
    assert old.bytes - new.bytes == 4 * 2 * (2 * 14336 * 2), "one tensor less to write and to read, of 2 tokens"
    assert (new.flops, new.vector_flops) == (old.flops, old.vector_flops)


def test_gpt2_with_its_activation_as_one_kernel() -> None:
    graph = rl.model("gpt2", layers=2)
    after = rl.passes.rewrite(graph, "gelu_tanh")
    assert ops(after).count("gelu_tanh") == 2
    assert rl.count(graph, B=1, S=8).launches - rl.count(after, B=1, S=8).launches == 2 * 7
    assert repr(after.history[0]).startswith("rewrite(pattern='mul(mul_scalar(x), add_scalar(tanh(")


def test_the_written_out_gelu_is_a_gelu() -> None:
    b = rl.ops.Builder("gelu", "fp32")
    x = b.input("x", (64,))
    cube = b.op("mul_scalar", b.op("pow", x, exponent=3), value=0.044715)
    inner = b.op("mul_scalar", b.op("add", x, cube), value=(2 / math.pi) ** 0.5)
    outer = b.op("add_scalar", b.op("tanh", inner), value=1.0)
    graph = b.graph([b.op("mul", b.op("mul_scalar", x, value=0.5), outer)])
    assert ops(rl.passes.rewrite(graph, "gelu_tanh", verify=True)) == ["gelu_tanh"]


def test_only_in_some_layers() -> None:
    graph = rl.model("llama-3-8b", layers=3)
    after = rl.passes.rewrite(graph, "swiglu", where="layers.[02].*")
    assert [node.name for node in after.nodes if node.op == "elementwise"] == [
        "layers.0.mlp.gated",
        "layers.2.mlp.gated",
    ]
    assert dict(after.history[0].options)["where"] == "layers.[02].*"
    with pytest.raises(rl.errors.UsageError, match=r"called 'layers\.7\.\*' is nowhere; the program has 3 silu"):
        rl.passes.rewrite(graph, "swiglu", where="layers.7.*")


def test_named_rewritings_are_exact() -> None:
    b = rl.ops.Builder("named", "fp32")
    x = b.input("x", (64,))
    y = b.op("mul", b.op("sigmoid", x), x)
    graph = b.graph([b.op("mul", y, y)])
    after = rl.passes.rewrite(rl.passes.rewrite(graph, "silu", verify=True), "square", verify=True)
    assert ops(after) == ["silu", "square"]
    assert [step.name for step in after.history] == ["rewrite", "rewrite"]


def test_names_and_missing_replacements() -> None:
    with pytest.raises(rl.errors.UsageError, match=r"rewriting 'swigl' is not known; .*did you mean swiglu"):
        rl.passes.rewrite(swiglu(), "swigl")
    with pytest.raises(rl.errors.UsageError, match="needs a replacement"):
        rl.passes.rewrite(swiglu(), lambda p, x: p.op("silu", x))


# --- one operator for another -----------------------------------------------------------------------------------------


def test_gelu_for_relu() -> None:
    graph = rl.model("opt-1.3b", layers=2)
    after = rl.passes.replace_op(graph, "relu", "gelu")
    old, new = rl.count(graph, B=1, S=4), rl.count(after, B=1, S=4)
    assert new.vector_flops - old.vector_flops == 2 * 4 * 8192 * 5, "a GELU counts five, a ReLU nothing"
    assert (new.flops, new.bytes) == (old.flops, old.bytes)
    assert dict(after.history[0].options) == {"old": "relu", "new": "gelu"}


def test_only_where_wanted() -> None:
    after = rl.passes.replace_op(rl.model("resnet18"), "relu", "gelu", where="stage4.1.*")
    assert [node.name for node in after.nodes if node.op == "gelu"] == ["stage4.1.relu1", "stage4.1.relu_out"]


@pytest.mark.parametrize(("old", "new", "where", "error", "text"), [
    ("relu", "gleu", "*", rl.errors.UnknownOp, "did you mean gelu"),
    ("silu", "gelu", "*", rl.errors.UsageError, "resnet18 forward has no silu; it has add, batchnorm2d"),
    ("relu", "gelu", "stage9.*", rl.errors.UsageError, "no relu is called 'stage9.*'"),
    ("relu", "sum", "*", rl.errors.ShapeError, "sum gives .* where relu gave"),
    ("relu", "linear", "*", rl.errors.ShapeError, "linear cannot stand for relu: it takes"),
    ("batchnorm2d", "layernorm2d", "*", rl.errors.ShapeError, "layernorm2d cannot stand for batchnorm2d: it takes"),
])  # fmt: skip
def test_what_cannot_be_replaced_says_why(old: str, new: str, where: str, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        rl.passes.replace_op(rl.model("resnet18"), old, new, where)


# --- batch norms into weights -----------------------------------------------------------------------------------------


def normed(
    layer: str, shape: tuple[Any, ...], weight: tuple[int, ...], *, bias: bool = False, **attrs: Any
) -> rl.Graph:
    b = rl.ops.Builder(layer, "fp32")
    weights = [b.weight("w", weight)]
    channels = weight[1] if "transpose" in layer else weight[0]
    if bias:
        weights.append(b.weight("b", (channels,)))
    y = b.op(layer, b.input("x", shape), *weights, name="layer", **attrs)
    return b.graph([b.op("relu", batchnorm(b, y, "bn"), name="out")])


LAYERS = [
    normed("conv2d", (2, 4, 7, 7), (6, 4, 3, 3), stride=2, padding=1),
    normed("conv2d", (2, 4, 7, 7), (6, 4, 3, 3), bias=True),
    normed("conv2d", (2, 4, 7, 7), (8, 1, 3, 3), groups=4, padding=1),
    normed("conv1d", (2, 4, 9), (6, 4, 3), bias=True),
    normed("conv3d", (1, 2, 4, 5, 5), (3, 2, 2, 2, 2)),
    normed("conv_transpose2d", (2, 4, 5, 5), (4, 6, 2, 2), stride=2, bias=True),
    normed("linear", (5, 4), (6, 4), bias=True),
]


@pytest.mark.parametrize("graph", LAYERS, ids=lambda graph: f"{graph.name} {len(graph.tensors)}")
@pytest.mark.parametrize("join", [False, True])
def test_a_norm_goes_into_the_weights_before_it(graph: rl.Graph, join: bool) -> None:
    after = rl.passes.fold_batchnorm(graph, join=join)
    assert ops(after) == [graph.name, "relu"]
    assert rl.ops.same(graph, after, tolerance=1e-12)
    assert rl.count(after).launches == (1 if join else 2)
    assert {tensor.kind for tensor in after.tensors.values()} == {"input", "weight", "activation"}, "no statistics left"
    assert [step.name for step in after.history] == ["fold_batchnorm"]


def test_the_epsilon_of_the_norm_is_used() -> None:
    graph = LAYERS[0]
    nodes = [node if node.op != "batchnorm2d" else rl.ops.Node(node.name, node.op, node.inputs, node.outputs,
                                                           (("eps", 0.5),)) for node in graph.nodes]  # fmt: skip
    other = graph.with_nodes(nodes)
    assert rl.ops.same(other, rl.passes.fold_batchnorm(other), tolerance=1e-12)
    assert not rl.ops.same(other, rl.passes.fold_batchnorm(graph), tolerance=1e-3)


def test_resnet50_loses_53_norms_and_their_parameters() -> None:
    """Scale and shift of 26,560 channels become one bias each: 25,557,032 parameters less 26,560."""
    graph = rl.model("resnet50")
    after = rl.passes.fold_batchnorm(graph, join=True)
    assert ops(graph).count("batchnorm2d") == ops(after).count("conv2d") == 53
    assert "batchnorm2d" not in ops(after)
    assert graph.parameters - after.parameters == 26560
    assert after.parameters == 25_530_472
    assert rl.count(graph, B=1).launches - rl.count(after, B=1).launches == 53 + 33
    assert rl.count(after, B=1).flops == rl.count(graph, B=1).flops
    stored = memory(graph, {"B": 1}).weights - memory(after, {"B": 1}).weights
    width = 2 if graph.tensors["conv1.weight"].dtype == "bf16" else 4
    assert stored == 3 * 26560 * width, "mean and variance go as well"


@pytest.mark.parametrize("name", ["resnet50", "mobilenet-v2", "resnext50-32x4d"])
def test_networks_compute_the_same_without_their_norms(name: str) -> None:
    graph = rl.model(name, image=32)
    after = rl.passes.fold_batchnorm(graph, join=True)
    assert rl.ops.same(graph, after, tolerance=1e-9, B=1)
    folded, weights = after.info.folded, {n for n, t in after.tensors.items() if t.kind == "weight"}
    assert set(folded.outputs) <= weights


def test_a_pytorch_network_computes_the_same_without_its_norms() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    module = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 8, 3, groups=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5), nn.BatchNorm1d(5),
    ).double()  # fmt: skip
    with torch.no_grad():
        for _ in range(3):
            module(3 * torch.randn(16, 3, 8, 8, dtype=torch.float64) + 1)
    module.eval()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    after = rl.passes.fold_batchnorm(rl.from_torch(module, x))
    assert ops(after) == ["conv2d", "relu", "conv2d", "relu", "view", "linear"]
    given = {name: value.detach().numpy() for name, value in (*module.named_parameters(), *module.named_buffers())}
    known = after.tensors.keys() | after.info.folded.tensors.keys()
    given = {name: value for name, value in given.items() if name in known}
    name = next(name for name, tensor in after.tensors.items() if tensor.kind == "input")
    result = next(iter(rl.ops.execute(after, {**given, name: x.numpy()}).values()))
    assert abs(result - module(x).detach().numpy()).max() < 1e-9


def test_norms_that_cannot_go_stay() -> None:
    b = rl.ops.Builder("mixed", "fp32")
    x = b.input("x", (1, 4, 8, 8))
    first = conv(b, x, 4, 3, "first", padding=1)
    kept = batchnorm(b, first, "kept")
    folded = batchnorm(b, conv(b, b.op("add", kept, first), 4, 1, "second"), "folded")
    after = rl.passes.fold_batchnorm(b.graph([folded]))
    assert ops(after) == ["conv2d", "batchnorm2d", "add", "conv2d"]
    assert any("1 batch norms stay" in note for note in after.info.notes)


def test_a_kernel_that_two_layers_share_cannot_take_a_norm() -> None:
    b = rl.ops.Builder("shared", "fp32")
    x, w = b.input("x", (1, 4, 8, 8)), b.weight("w", (4, 4, 1, 1))
    y = batchnorm(b, b.op("conv2d", x, w), "bn")
    with pytest.raises(rl.errors.UsageError, match="none of its 1 batch norms follows"):
        rl.passes.fold_batchnorm(b.graph([b.op("conv2d", y, w)]))


def test_a_program_without_norms_says_so() -> None:
    with pytest.raises(rl.errors.UsageError, match="it has no batch norm; expected batchnorm2d behind"):
        rl.passes.fold_batchnorm(rl.model("gpt2", layers=1))
    b = rl.ops.Builder("trained", "fp32")
    y = b.op("batchnorm_train", conv(b, b.input("x", (1, 4, 8, 8)), 4, 1, "c"), b.weight("g", (4,)))
    with pytest.raises(rl.errors.UsageError, match="statistics of the batch"):
        rl.passes.fold_batchnorm(b.graph([y]))


# --- linear layers of one input ---------------------------------------------------------------------------------------


def test_query_key_and_value_in_one_product() -> None:
    graph = rl.model("bert-base-uncased", layers=2)
    after = rl.passes.merge_linears(graph)
    old, new = rl.count(graph, B=1, S=128), rl.count(after, B=1, S=128)
    assert new.flops == old.flops
    assert old.launches - new.launches == 2 * 2
    width = 4 if graph.tensors["layers.0.attn.q.weight"].dtype == "fp32" else 2
    assert old.bytes - new.bytes == 2 * 2 * 128 * 768 * width, "the input is read once instead of three times"
    assert after.parameters == graph.parameters
    assert next(node.name for node in after.nodes if node.op == "linear") == "layers.0.attn.q_k_v"


@pytest.mark.parametrize("name", ["bert-base-uncased"])
def test_joined_layers_compute_the_same(name: str) -> None:
    graph = rl.model(name, layers=2, hidden=48, heads=4, intermediate=96, vocab=101)
    assert rl.ops.same(graph, rl.passes.merge_linears(graph), tolerance=1e-12, B=2, S=5)


def test_layers_of_other_widths_and_with_bias_join_too() -> None:
    b = rl.ops.Builder("grouped", "bf16")
    x = b.input("x", (B, 3, 8))
    parts = [b.op("linear", x, b.weight(f"{n}.w", (w, 8)), b.weight(f"{n}.b", (w,)), name=n) for n, w in
             (("q", 8), ("k", 2), ("v", 2))]  # fmt: skip
    apart = b.op("linear", x, b.weight("gate", (8, 8)), name="no_bias")
    graph = b.graph([b.op("cat", *parts, apart, name="y")])
    after = rl.passes.merge_linears(graph)
    assert ops(after) == ["linear", "slice", "slice", "slice", "linear", "cat"]
    assert [dict(node.attrs)["start"] for node in after.nodes if node.op == "slice"] == [0, 8, 10]
    assert rl.ops.same(graph, after, tolerance=1e-12, B=2)
    only = rl.passes.merge_linears(graph, where="[kv]")
    assert ops(only).count("linear") == 3
    assert rl.ops.same(graph, only, tolerance=1e-12, B=2)


def test_nothing_to_join_says_so() -> None:
    with pytest.raises(rl.errors.UsageError, match=r"no two linear layers called '\*' read the same tensor"):
        rl.passes.merge_linears(rl.model("gpt2", layers=1))


def test_passes_after_each_other() -> None:
    graph = rl.model("resnet18", image=32)
    after = rl.passes.clean(rl.passes.fuse(rl.passes.fold_batchnorm(rl.passes.replace_op(graph, "relu", "silu"))))
    assert [step.name for step in after.history] == ["replace_op", "fold_batchnorm", "fuse"]
    assert rl.ops.same(rl.passes.replace_op(graph, "relu", "silu"), after, tolerance=1e-9, B=1)
