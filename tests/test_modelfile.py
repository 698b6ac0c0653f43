"""Model files that people write: layer by layer, or a family with its sizes; and what is wrong with bad ones."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutators import refused
from profiles import examples

import roofline as rl
from roofline.ir.sizes import evaluate
from roofline.ops.registry import OPS as REGISTRY
from roofline.ops.registry import node_work

HEAD = 'name = "mine"\ndtype = "bf16"\n[sizes]\nhidden = 64\n[inputs]\nx = ["B", "S", "hidden"]\n'

MLP = """
name = "my-mlp"
dtype = "bf16"
[sizes]
hidden = 1024
inner = "4 * hidden"
[inputs]
x = ["B", "hidden"]
[[layer]]
name = "block"
repeat = 4
  [[layer.layer]]
  op = "linear"
  out = "inner"
  [[layer.layer]]
  op = "relu"
  [[layer.layer]]
  op = "linear"
  out = "hidden"
  bias = true
  [[layer.layer]]
  op = "add"
  from = "input"
[[layer]]
name = "head"
op = "linear"
weights = [["10", "hidden"]]
"""

LM = """
name = "tiny-lm"
dtype = "bf16"
outputs = ["head"]
[sizes]
hidden = 256
[inputs]
ids = { shape = ["B", "S"], dtype = "int64" }
[[layer]]
op = "embedding"
vocab = 1000
dim = "hidden"
[[layer]]
name = "block"
repeat = 2
layer = [
  { op = "rmsnorm" },
  { op = "attention", heads = 4, kv_heads = 2, causal = true },
  { op = "add", from = "input", name = "mid" },
  { op = "layernorm" },
  { op = "mlp", hidden = "4 * hidden", gated = true, activation = "silu" },
  { op = "add", from = "mid" },
]
[[layer]]
op = "linear"
name = "head"
out = 1000
"""

CNN = """
name = "cnn"
dtype = "fp32"
item = "image"
[inputs]
image = ["B", 3, 32, 32]
[[layer]]
op = "conv2d"
out = 16
kernel = 3
padding = 1
[[layer]]
op = "batchnorm"
[[layer]]
op = "relu"
[[layer]]
op = "pool"
kernel = 2
[[layer]]
op = "flatten"
[[layer]]
op = "linear"
out = 10
bias = true
"""


@pytest.fixture
def build(tmp_path: Path) -> Any:
    def make(text: str, **overrides: Any) -> rl.Graph:
        path = tmp_path / "mine.toml"
        path.write_text(text)
        return rl.model(path, **overrides)

    return make


def flops(graph: rl.Graph, **sizes: int) -> Any:
    work = [node_work(node, [graph.tensors[name].shape for name in node.inputs]) for node in graph.nodes]
    return sum(evaluate(one.flops, sizes) for one in work)


# --- what works -----------------------------------------------------------------------------------------------------


def test_an_mlp(build: Any) -> None:
    graph = build(MLP)
    assert graph.parameters == 4 * (2 * 1024 * 4096 + 1024) + 10 * 1024
    assert flops(graph, B=8) == 2 * 8 * (4 * 2 * 1024 * 4096 + 10 * 1024)
    assert [node.name for node in graph.nodes[:4]] == [
        "block.0.linear",
        "block.0.relu",
        "block.0.linear_2",
        "block.0.add",
    ]
    assert (str(graph.items), graph.item) == ("B", "sample")
    add = graph.nodes[7]
    assert add.inputs == ("block.1.linear_2", "block.0.add")


def test_overrides_reach_expressions(build: Any) -> None:
    assert build(MLP, hidden=16).parameters == 4 * (2 * 16 * 64 + 16) + 10 * 16
    assert build(MLP, inner=32, hidden=16).parameters == 4 * (2 * 16 * 32 + 16) + 10 * 16


def test_a_language_model(build: Any) -> None:
    graph = build(LM)
    block = 256 * (4 + 2 * 2) * 64 + 256 * 256 + 3 * 256 * 1024 + 3 * 256
    assert graph.parameters == 2 * 1000 * 256 + 2 * block
    assert graph.item == "token"
    kernels = {node.label for node in graph.nodes if node.op == "attention_scores"}
    assert kernels == {"block.0.attention.sdpa", "block.1.attention.sdpa"}


def test_two_attentions_in_one_block_are_two_kernels(build: Any) -> None:
    layer = '[[layer]]\nop = "attention"\nheads = 4\n'
    graph = build(HEAD + 2 * layer)
    assert len({node.label for node in graph.nodes if node.op == "attention_scores"}) == 2


def test_a_convolutional_network(build: Any) -> None:
    graph = build(CNN)
    assert graph.parameters == 16 * 27 + 32 + 10 * 16 * 16 * 16 + 10
    assert sum(tensor.kind == "buffer" for tensor in graph.tensors.values()) == 2
    assert graph.item == "image"


def test_a_cache(build: Any) -> None:
    text = HEAD.replace('"S"', "1") + '[[layer]]\nop = "attention"\nheads = 4\nkv_heads = 2\ncache = "C"\n'
    graph = build(text)
    held = [tensor for tensor in graph.tensors.values() if tensor.kind == "cache"]
    assert [str(tensor.shape) for tensor in held] == ["(B, 2, C, 16)"] * 2


def test_any_operator_of_the_registry(build: Any) -> None:
    layers = '[[layer]]\nop = "softmax"\n[[layer]]\nop = "topk"\nk = "hidden // 8"\n[[layer]]\nop = "sum"\n'
    graph = build(HEAD + layers)
    assert [str(graph.tensors[node.outputs[0]].shape) for node in graph.nodes] == ["(B, S, 64)", "(B, S, 8)", "(B, S)"]


def test_inputs_by_name(build: Any) -> None:
    layers = '[[layer]]\nop = "relu"\nname = "a"\n[[layer]]\nop = "cat"\ninputs = ["a", "x"]\naxis = -1\n'
    graph = build(HEAD + layers)
    assert graph.nodes[-1].inputs == ("a", "x")
    assert graph.tensors["cat"].shape[-1] == 128


def test_experts(build: Any) -> None:
    graph = build(HEAD + '[[layer]]\nop = "moe"\nexperts = 8\ntop_k = 2\nhidden = 32\n')
    assert graph.parameters == 8 * 64 + 8 * 3 * 64 * 32
    assert graph.info.active_parameters == 8 * 64 + 2 * 3 * 64 * 32


def test_a_family_file_with_expressions(build: Any) -> None:
    text = 'name = "m"\nfamily = "decoder"\ndtype = "bf16"\n[sizes]\nhidden = 64\nlayers = 2\nheads = 4\n'
    graph = build(text + 'intermediate = "3 * hidden"\nvocab = 100\n')
    layer = 4 * 64 * 64 + 3 * 64 * 192 + 2 * 64
    assert graph.parameters == 2 * 100 * 64 + 2 * layer + 64


# --- what does not --------------------------------------------------------------------------------------------------

LAYER = "[[layer]]\n"
BAD: list[tuple[str, type[rl.RooflineError], str]] = [
    ("name = \n", rl.errors.ModelDataError, "line 1"),
    (HEAD + "layer = {", rl.errors.ModelDataError, "not valid TOML"),
    ("", rl.errors.ModelDataError, "missing"),
    ('name = "m"\ndtype = "bf16"\n', rl.errors.ModelDataError, "family = .* or .*layer.*neither"),
    ('name = "m"\ndtype = "bf17"\nfamily = "decoder"\n', rl.errors.ModelDataError, "bf17.*bf16"),
    ('name = "m"\ndtype = "bf16"\nfamily = "decodr"\n', rl.errors.ModelDataError, "did you mean decoder"),
    ('name = "m"\ndtyp = "bf16"\n', rl.errors.ModelDataError, "dtyp.*did you mean dtype|dtype: missing"),
    ('name = "m"\ndtype = "bf16"\nfamily = "decoder"\n[sizes]\nhiden = 3\n', rl.errors.ModelDataError, "mine.toml: "),
    ('name = "m"\ndtype = "bf16"\nfamily = "decoder"\n[sizes]\nhidden = 3\n', rl.errors.ModelDataError, "missing"),
    ('name = "m"\ndtype = "bf16"\n[[layer]]\nop = "relu"\n', rl.errors.ModelDataError, "inputs.* missing"),
    (HEAD + LAYER, rl.errors.ModelDataError, "layer 1"),
    (HEAD + LAYER + 'op = "reluu"\n', rl.errors.UnknownOp, r"layer 1 \(reluu\): unknown operator.*did you mean relu"),
    (HEAD + LAYER + 'op = "linear"\n', rl.errors.ModelDataError, "out is missing"),
    (HEAD + LAYER + 'op = "linear"\noutt = 3\nout = 3', rl.errors.ModelDataError, "'outt'.*did you mean out"),
    (
        HEAD + LAYER + 'op = "linear"\nout = "4 * hiden"\n',
        rl.errors.ModelDataError,
        "layer 1 .*hiden.*did you mean hidden",
    ),
    (HEAD + LAYER + 'op = "linear"\nout = 0\n', rl.errors.ShapeError, "layer 1 .*sizes start at 1"),
    (HEAD + LAYER + 'op = "linear"\nout = "hidden - 100"\n', rl.errors.ShapeError, "sizes start at 1"),
    (HEAD + LAYER + 'op = "linear"\nout = 3\nbias = 1\n', rl.errors.ModelDataError, "true or false"),
    (HEAD + LAYER + 'op = "linear"\nweights = [[3, 65]]\n', rl.errors.ShapeError, "layer 1 .*65"),
    (HEAD + LAYER + 'op = "linear"\nweights = 3\n', rl.errors.ModelDataError, "weights"),
    (HEAD + LAYER + 'op = "conv2d"\nout = 3\nkernel = 3\n', rl.errors.ShapeError, "layer 1 .*conv2d takes"),
    (HEAD + LAYER + 'op = "attention"\nheads = 5\n', rl.errors.ShapeError, "64 / heads = 5"),
    (
        HEAD + LAYER + 'op = "attention"\nheads = 4\nkv_heads = 3\n',
        rl.errors.ShapeError,
        "not a multiple of kv_heads = 3",
    ),
    (HEAD + LAYER + 'op = "attention"\nheads = 4\nhead_dim = -2\n', rl.errors.ModelDataError, "whole number"),
    (HEAD + LAYER + 'op = "moe"\nexperts = 2\ntop_k = 3\nhidden = 4\n', rl.errors.ShapeError, "top_k"),
    (HEAD + LAYER + 'op = "norm"\nkind = "rmsnrm"\n', rl.errors.ModelDataError, "did you mean rmsnorm"),
    (HEAD + LAYER + 'op = "relu"\nrepeat = 0\n', rl.errors.ModelDataError, "repeat"),
    (HEAD + LAYER + 'op = "relu"\nrepeat = 200001\n', rl.errors.ModelDataError, "at most 200000"),
    (HEAD + LAYER + 'op = "relu"\nrepeat = 1000000000000\n', rl.errors.ModelDataError, "at most 200000"),
    (HEAD + LAYER + 'op = "attention"\nheads = 4\nrepeat = 20000\n', rl.errors.ModelDataError, "at most 200000"),
    (HEAD + LAYER + 'op = "relu"\nfrom = "y"\n', rl.errors.ModelDataError, "called 'y'"),
    (HEAD + LAYER + 'op = "relu"\nname = "a"\n[[layer]]\nop = "relu"\nname = "a"\n', rl.errors.ModelDataError, "taken"),
    (HEAD + LAYER + 'op = "linear"\nout = 3\ninputs = ["x", "x"]\n', rl.errors.ModelDataError, "takes 1 input"),
    (HEAD + LAYER + 'op = "relu"\ninputs = "x"\n', rl.errors.ModelDataError, "list of names"),
    (HEAD + LAYER + 'op = "relu"\nlayer = [{op = "relu"}]\n', rl.errors.ModelDataError, "a block takes"),
    (HEAD + LAYER + "layer = 3\n", rl.errors.ModelDataError, "expected tables"),
    (HEAD + LAYER + 'op = "topk"\n', rl.errors.ShapeError, "option 'k'"),
    (HEAD + LAYER + 'op = ["relu"]\n', rl.errors.ModelDataError, "layer 1"),
    (HEAD.replace('"S"', '"T"') + LAYER + 'op = "relu"\n', rl.errors.ModelDataError, "inputs.x: unknown size 'T'"),
    (HEAD.replace("hidden = 64", "hidden = 0") + LAYER + 'op = "relu"\n', rl.errors.UsageError, "start at 1"),
    (HEAD.replace("hidden = 64", "hidden = 1.5") + LAYER + 'op = "relu"\n', rl.errors.UsageError, "whole number"),
    (HEAD + "y = 3\n" + LAYER + 'op = "relu"\n', rl.errors.ModelDataError, "inputs.y"),
    (HEAD + 'y = {shape = [1], dtype = "i"}\n' + LAYER + 'op = "relu"\n', rl.errors.ModelDataError, "inputs.y"),
    ('outputs = ["z"]\n' + HEAD + LAYER + 'op = "relu"\n', rl.errors.ModelDataError, "outputs.*'z'"),
    ('phase = "train"\n' + HEAD + LAYER + 'op = "relu"\n', rl.errors.ModelDataError, "allowed: forward"),
    (HEAD + "a = " + "[" * 5000, rl.errors.ModelDataError, "not valid TOML"),
    (HEAD + LAYER + "layer = [{" * 20 + 'op = "relu"' + "}]" * 20, rl.errors.ModelDataError, "nested more than"),
    ("#" * 2**20 + "\n" + HEAD, rl.errors.ModelDataError, "at most"),
    (
        HEAD + LAYER + 'op = "put"\n',
        rl.errors.ModelDataError,
        r"layer 1 \(put\): put takes more inputs than the 1 given",
    ),
    (HEAD + LAYER + 'op = "linear"\nout = "B"\n', rl.errors.ModelDataError, r"linear.weight: a weight of \[B, 64\]"),
    (HEAD + LAYER + 'op = "linear"\nweights = [["S", 64]]\n', rl.errors.ModelDataError, "its sizes are whole numbers"),
    (
        HEAD + LAYER + 'op = "reduce_scatter"\ndevices = -1\n',
        rl.errors.ModelDataError,
        "devices: expected a whole number",
    ),
    (HEAD + LAYER + 'op = "reduce_scatter"\ndevices = 10000000000000\n', rl.errors.ModelDataError, "from 1 to 10"),
    (HEAD + LAYER + 'op = "topk"\nk = []\n', rl.errors.ModelDataError, "k: expected one size"),
    (
        HEAD + LAYER + 'op = "dequantize"\nelements = [1, 2]\nflops = 1000000000000\n',
        rl.errors.ModelDataError,
        "one size",
    ),
    (HEAD + LAYER + 'op = "update"\nflops = 1.5\n', rl.errors.ModelDataError, "neither a whole number nor"),
    (
        HEAD + LAYER + 'op = "softmax"\n[[layer]]\nop = "cat"\nfrom = "x"\naxis = "B"\n',
        rl.errors.ModelDataError,
        "an axis",
    ),
    (
        HEAD + LAYER + 'op = "state_update"\n',
        rl.errors.ModelDataError,
        "state_update cannot take these inputs or options",
    ),
    (HEAD + LAYER + 'op = "unknown"\nshape = [1]\n', rl.errors.UnknownOp, "unknown operator 'unknown'"),
    (
        'name = "c"\ndtype = "fp32"\n[inputs]\nx = ["B", 3, "S", "S"]\n[[layer]]\nrepeat = 100\n[[layer.layer]]\n'
        'op = "conv2d"\nout = 3\nkernel = 3\nstride = 2\npadding = 1\n',
        rl.errors.ShapeError,
        "floordiv inside each other",
    ),
]


#: What an option of an operator may be given.
VALUES = ("1", "0", "2", "-1", "1000000000000", '"B"', '"x"', "1.5", "true", "[1, 2]", "[]", '["B"]', "[[1]]", "inf")
SHAPES = ('["B", 8]', '["B", 3, 16, 16]', "[8]", '["B", "S", 8]', "[8, 8]", '["B", 8, "S", 8]')


@pytest.mark.parametrize("op", sorted(REGISTRY))
def test_any_operator_with_any_options_is_built_or_refused(build: Any, op: str) -> None:
    """What is built is counted, timed and fused without an error of another kind."""
    rng = random.Random(op)
    for _ in range(examples(4)):
        names = [f"x{at}" for at in range(rng.choice((1, 1, 2, 3)))]
        lines = ['name = "mine"', 'dtype = "bf16"', "[inputs]", *(f"{name} = {rng.choice(SHAPES)}" for name in names),
                 "[[layer]]", f'op = "{op}"', f"inputs = {json.dumps(names)}"]  # fmt: skip
        lines += [f"{key} = {rng.choice(VALUES)}" for key in sorted(REGISTRY[op].parameters) if rng.random() < 0.75]
        graph = refused(lambda lines=lines: build("\n".join(lines)))
        if graph is not None:
            at = dict.fromkeys(graph.symbols, 4)
            refused(lambda graph=graph, at=at: rl.estimate(graph, "h100-sxm", mode="compiled", **at).record())
            refused(lambda graph=graph: rl.passes.shard(graph, tp=2))


@pytest.mark.parametrize(("text", "error", "says"), BAD)
def test_bad_files_name_the_file_and_the_layer(build: Any, text: str, error: type[rl.RooflineError], says: str) -> None:
    with pytest.raises(error, match=says) as caught:
        build(text)
    assert "mine.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_directories_and_bytes(tmp_path: Path) -> None:
    with pytest.raises(rl.errors.ModelDataError, match="directory"):
        rl.model(tmp_path)
    path = tmp_path / "m.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(rl.errors.ModelDataError, match="not valid TOML"):
        rl.model(path)


def test_overrides_of_a_layer_file(build: Any) -> None:
    with pytest.raises(rl.errors.UsageError, match="did you mean hidden"):
        build(MLP, hiden=3)
    with pytest.raises(rl.errors.UsageError, match="phase 'decode'"):
        build(MLP, phase="decode")


OPS = ["linear", "conv2d", "attention", "pool", "flatten", "view", "cat", "topk", "slice", "norm", "moe", "expand"]
KEYS = ["out", "kernel", "stride", "heads", "axis", "shape", "k", "kind", "from", "inputs", "weights", "repeat"]
VALUES = ["0", "-1", "3", '"S"', '"x"', "true", "[1]", "[]", "1.5", '["x"]', '"B * 2"', "[[2]]", '"max"', "{a = 1}"]


@settings(max_examples=examples(150), deadline=None)
@given(
    op=st.sampled_from(OPS),
    keys=st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES), max_size=4),
)
def test_any_layer_is_a_graph_or_one_known_error(
    op: str, keys: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "mine.toml"
    path.write_text(HEAD + LAYER + f'op = "{op}"\n' + "\n".join(f"{key} = {value}" for key, value in keys.items()))
    said = "mine.toml"
    try:
        rl.model(path)
    except rl.RooflineError as error:
        said = str(error)
    assert "mine.toml" in said
    assert "\n" not in said
