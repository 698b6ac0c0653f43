"""Clean-up passes on programs made by hand, on shipped models and on an imported one."""

from __future__ import annotations

from typing import Any

import pytest

import roofline as rl
from roofline.ir.graph import Info
from roofline.passes.rewriting.clean import OPEN, OPERANDS, RANDOM, settled
from roofline.passes.rewriting.options import pad_matmuls

B = rl.ops.symbol("B")


def ops(graph: rl.Graph) -> list[str]:
    return [node.op for node in graph.nodes]


# --- dead code --------------------------------------------------------------------------------------------------------


def test_dead_code_takes_its_weights_along() -> None:
    b = rl.ops.Builder("dead", "fp32")
    x, idle = b.input("x", (B, 8)), b.input("idle", (B, 8))
    y = b.op("linear", x, b.weight("w", (8, 8)))
    b.op("softmax", b.op("linear", y, b.weight("lost", (16, 8))))
    after = rl.passes.eliminate_dead(b.graph([b.op("relu", y)]))
    assert ops(after) == ["linear", "relu"]
    assert after.parameters == 64
    assert idle in after.tensors, "the caller still hands it in"
    assert "2 nodes and 1 weights" in after.info.notes[0]
    assert [step.name for step in after.history] == ["eliminate_dead"]
    assert rl.passes.eliminate_dead(after) is after


def test_what_is_written_into_a_cache_is_no_dead_code() -> None:
    b = rl.ops.Builder("cached", "bf16")
    x, cache = b.input("x", (1, 2, 1, 8)), b.cache("keys", (1, 2, 16, 8))
    b.op("cache_update", cache, b.op("neg", x), name="kept")
    scratch = b.op("exp", x)
    b.op("put", scratch, b.op("cos", x), name="lost")
    after = rl.passes.eliminate_dead(b.graph([b.op("relu", x)]))
    assert ops(after) == ["neg", "cache_update", "relu"]


def test_a_program_without_outputs_is_left_alone() -> None:
    listed = rl.workload([{"op": "gelu", "n": 64}, {"op": "gemm", "m": 8, "n": 8, "k": 8}])
    graph = rl.Graph(listed.name, listed.tensors, listed.nodes)
    assert rl.passes.eliminate_dead(graph) is graph


def test_a_fused_kernel_may_lose_nodes() -> None:
    b = rl.ops.Builder("half", "fp32")
    x = b.input("x", (1024,))
    with b.kernel("both"):
        y = b.op("exp", x)
        b.op("tanh", y)
    graph = b.graph([y])
    after = rl.passes.eliminate_dead(graph)
    assert [node.label for node in after.nodes] == ["both"]
    assert rl.count(graph).bytes - rl.count(after).bytes == 4 * 1024


# --- the same thing twice ---------------------------------------------------------------------------------------------


def twins(op: str, **attrs: Any) -> rl.Graph:
    b = rl.ops.Builder("twins", "fp32")
    x = b.input("x", (4, 8))
    first, second = (b.op(op, x, **attrs) for _ in range(2))
    return b.graph([b.op("add", first, second, name="y")])


@pytest.mark.parametrize(("op", "attrs"), [
    ("relu", {}), ("softmax", {}), ("mul_scalar", {"value": 2.0}), ("pow", {"exponent": 3}),
    ("view", {"shape": (8, 4)}), ("slice", {"shape": (4, 2), "axis": 1, "start": 2}),
    ("clamp", {"low": 0.0, "high": 1.0}),
    ("elementwise", {"what": "swiglu"}), ("reduce", {"how": "max", "axes": (0,)}),
])  # fmt: skip
def test_what_is_said_in_full_is_computed_once(op: str, attrs: dict[str, Any]) -> None:
    graph = twins(op, **attrs)
    after = rl.passes.merge_equal(graph)
    assert len(after.nodes) == 2
    assert after.nodes[1].inputs == (after.nodes[0].outputs * 2)


@pytest.mark.parametrize(("op", "attrs"), [
    ("mul_scalar", {}), ("add_scalar", {}), ("pow", {}), ("clamp", {}), ("mul", {}), ("elementwise", {"flops": 3}),
    ("slice", {"shape": (4, 2)}), ("reduce", {"axes": (0,), "flops": 1}), ("scan", {}), ("dropout", {}),
    ("unknown", {"what": "aten.rand_like", "shape": (4, 8)}), ("rearrange", {"shape": (8, 4)}),
])  # fmt: skip
def test_what_is_left_open_stays_apart(op: str, attrs: dict[str, Any]) -> None:
    graph = twins(op, **attrs)
    assert rl.passes.merge_equal(graph) is graph


def test_merging_goes_up_the_chain() -> None:
    b = rl.ops.Builder("chains", "fp32")
    ends = []
    x, w = b.input("x", (4, 8)), b.weight("w", (8, 8))
    for _ in range(3):
        ends.append(b.op("tanh", b.op("linear", b.op("view", x, shape=(2, 2, 8)), w)))
    graph = b.graph([b.op("add", b.op("add", ends[0], ends[1]), ends[2])])
    after = rl.passes.merge_equal(graph)
    assert ops(after) == ["view", "linear", "tanh", "add", "add"]
    assert rl.count(graph).flops == 3 * rl.count(after).flops
    assert rl.ops.same(graph, after, tolerance=1e-12)


def test_other_formats_and_counts_are_other_things() -> None:
    b = rl.ops.Builder("casts", "fp32")
    x = b.input("x", (4, 8))
    casts = [b.op("cast", x, dtype=dtype) for dtype in ("bf16", "fp16")]
    often = [b.op("relu", x, count=count) for count in (1, 2)]
    graph = b.graph([b.op("add", *casts), b.op("add", *often)])
    assert rl.passes.merge_equal(graph) is graph


def test_what_is_written_in_place_stays_apart() -> None:
    b = rl.ops.Builder("in place", "fp32")
    x = b.input("x", (4, 8))
    first, second = b.op("relu", x), b.op("relu", x)
    written = b.op("put", b.op("view", second, shape=(32,)), b.op("view", x, shape=(32,)))
    graph = b.graph([written, b.op("tanh", first)])
    assert ops(rl.passes.merge_equal(graph)).count("relu") == 2


def test_fused_kernels_keep_what_they_compute_for_themselves() -> None:
    """To write the shared sum out and read it back would cost more than to add twice: 4 accesses against 5."""
    b = rl.ops.Builder("recompute", "fp32")
    x = b.input("x", (1024,))
    outputs = []
    for op in ("tanh", "exp"):
        with b.kernel(op):
            outputs.append(b.op(op, b.op("add", x, x)))
    graph = b.graph(outputs)
    assert rl.count(graph).bytes == 4 * 4096
    assert rl.passes.merge_equal(graph) is graph


def test_a_recomputation_of_training_stays() -> None:
    b = rl.ops.Builder("recomputed", "fp32")
    x = b.input("x", (8,))
    y = b.op("mul", b.op("tanh", x), b.op("tanh", x))
    assert len(rl.passes.merge_equal(b.graph([y], info=Info(phase="forward"))).nodes) == 2
    trained = b.graph([y], info=Info(phase="train"))
    assert rl.passes.merge_equal(trained) is trained


def test_outputs_keep_their_names() -> None:
    b = rl.ops.Builder("outputs", "fp32")
    x = b.input("x", (8,))
    graph = b.graph([b.op("relu", x, name="a"), b.op("relu", x, name="b")])
    assert rl.passes.merge_equal(graph).outputs == ("a", "b")


def test_the_word_of_an_imported_program_counts() -> None:
    torch = pytest.importorskip("torch")

    def entropy(x: Any) -> Any:
        return -(torch.softmax(x, -1) * torch.log_softmax(x, -1)).sum(-1)

    graph = rl.from_torch(entropy, torch.zeros(4, 8))
    assert ops(graph).count("softmax") == 2, "the logarithm is part of the same kernel and counted with it"
    assert ops(rl.passes.clean(graph)).count("softmax") == 2


def test_every_open_operator_has_a_meaning() -> None:
    assert all(rl.ops.OPS[name].reference for name in OPEN.keys() | OPERANDS.keys() | RANDOM)
    assert settled(rl.ops.Node("a", "add", ("x", "y"), ("z",)))
    assert not settled(rl.ops.Node("a", "add", ("x",), ("z",)))


# --- constants --------------------------------------------------------------------------------------------------------


def test_constants_are_computed_ahead_and_their_values_are_kept() -> None:
    b = rl.ops.Builder("constant", "fp32")
    x, w, s = b.input("x", (B, 8)), b.weight("w", (8, 8)), b.source("s", (8,), "buffer")
    scaled = b.op("mul", b.op("transpose_copy", w), b.op("rsqrt", b.op("add_scalar", s, value=1e-5)))
    graph = b.graph([b.op("linear", x, scaled, name="y")])
    after = rl.passes.fold_constants(graph)
    assert ops(after) == ["linear"]
    assert after.tensors[after.nodes[0].inputs[1]].kind == "weight"
    assert (after.parameters, graph.parameters) == (64, 64)
    assert "s" not in after.tensors
    folded = after.info.folded
    assert ops(folded) == ["transpose_copy", "add_scalar", "rsqrt", "mul"]
    assert rl.ops.same(graph, after, tolerance=1e-12, B=3)
    given = {"w": [[float(i == j) for i in range(8)] for j in range(8)], "s": [3.0] * 8}
    first, second = (rl.ops.execute(each, given, B=3)["y"] for each in (graph, after))
    assert abs(first - second).max() < 1e-12


def test_constants_of_buffers_stay_buffers() -> None:
    b = rl.ops.Builder("positions", "fp32")
    x, freq = b.input("x", (4, 8)), b.source("freq", (8,), "buffer")
    after = rl.passes.fold_constants(b.graph([b.op("mul", x, b.op("cos", freq, name="c"))]))
    assert after.tensors["c"].kind == "buffer"
    assert after.parameters == 0


def test_weights_of_few_bits_stay_so() -> None:
    """Unpacked ahead they would take eight times the room."""
    b = rl.ops.Builder("packed", "fp32")
    x, w = b.input("x", (4, 64)), b.weight("w", (64, 64), dtype="int4")
    graph = b.graph([b.op("linear", x, b.op("cast", w, dtype="fp32"))])
    assert rl.passes.fold_constants(graph) is graph


def test_a_constant_that_others_read_too_would_be_stored_twice() -> None:
    b = rl.ops.Builder("tied", "fp32")
    x, w = b.input("x", (4, 8)), b.weight("w", (8, 8))
    graph = b.graph([b.op("linear", b.op("linear", x, b.op("exp", w)), w)])
    assert rl.passes.fold_constants(graph) is graph


def test_views_of_constants_are_no_work() -> None:
    b = rl.ops.Builder("turned", "fp32")
    x, w = b.input("x", (4, 8)), b.weight("w", (8, 4))
    graph = b.graph([b.op("linear", x, b.op("permute", w, axes=(1, 0)))])
    assert rl.passes.fold_constants(graph) is graph


def test_random_values_and_updated_buffers_are_no_constants() -> None:
    b = rl.ops.Builder("changing", "fp32")
    x, w, seen = b.input("x", (4, 8)), b.weight("w", (8,)), b.source("seen", (8,), "buffer")
    noisy = b.op("mul", x, b.op("dropout", w))
    b.op("put", seen, b.op("mean", b.op("permute", x, axes=(1, 0))), name="updated")
    graph = b.graph([b.op("mul", noisy, b.op("exp", seen))])
    assert rl.passes.fold_constants(graph) is graph


def test_a_result_that_is_written_into_is_no_constant() -> None:
    """Stored as a weight it would keep what the first run wrote."""
    b = rl.ops.Builder("state", "fp32")
    x, w = b.input("x", (8,)), b.weight("w", (8,))
    start = b.op("exp", w)
    graph = b.graph([b.op("put", b.op("view", start, shape=(8,)), b.op("neg", x))])
    assert rl.passes.fold_constants(graph) is graph


def test_loops_work_on_other_data_each_time() -> None:
    b = rl.ops.Builder("loops", "fp32")
    x = b.input("x", (8,))
    graph = b.graph([b.op("add", b.op("relu", x, count=4), b.op("relu", x, count=4))])
    assert rl.passes.merge_equal(graph) is graph


def test_weights_change_in_training() -> None:
    b = rl.ops.Builder("step", "fp32")
    y = b.op("linear", b.input("x", (4, 8)), b.op("transpose_copy", b.weight("w", (8, 8))))
    assert ops(rl.passes.fold_constants(b.graph([y], info=Info(phase="forward")))) == ["linear"]
    trained = b.graph([y], info=Info(phase="train"))
    assert rl.passes.fold_constants(trained) is trained


def test_constants_folded_twice_are_computed_from_the_first() -> None:
    b = rl.ops.Builder("twice", "fp32")
    x, w = b.input("x", (4, 8)), b.weight("w", (8, 8))
    first = rl.passes.fold_constants(b.graph([b.op("linear", x, b.op("tanh", w, name="t"), name="y")]))
    middle = rl.ops.Node("m", "exp", ("t",), ("m",))
    last = rl.ops.Node("y", "linear", ("x", "m"), ("y",))
    grown = first.with_tensors([rl.ops.Tensor("m", (8, 8), "fp32")]).with_nodes([middle, last])
    after = rl.passes.fold_constants(grown)
    assert (ops(after), ops(after.info.folded)) == (["linear"], ["tanh", "exp"])
    assert rl.ops.same(grown, after, tolerance=1e-12)


# --- real programs ----------------------------------------------------------------------------------------------------

MODELS = [
    ("gpt2", {"layers": 2}, {}), ("llama-3-8b", {"layers": 2}, {}), ("bert-base-uncased", {"layers": 2}, {}),
    ("mobilenet-v2", {}, {}), ("resnet50", {}, {}), ("mixtral-8x7b", {"layers": 1}, {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "_"), MODELS)
def test_models_do_nothing_in_vain(name: str, options: dict[str, Any], _: Any) -> None:
    graph = rl.model(name, **options)
    assert rl.passes.clean(graph) is graph
    fused = rl.passes.fuse(graph)
    assert rl.passes.clean(fused) is fused


TINY = {
    "gpt2": {"layers": 2, "hidden": 48, "heads": 4, "intermediate": 96, "vocab": 101, "positions": 32},
    "llama-3-8b": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "intermediate": 96, "vocab": 101},
    "bert-base-uncased": {"layers": 2, "hidden": 48, "heads": 4, "intermediate": 96, "vocab": 101},
    "mobilenet-v2": {"image": 32}, "resnet18": {"image": 32},
    "vit-b-16": {"image": 32, "layers": 1, "hidden": 48, "heads": 4},
}  # fmt: skip


@pytest.mark.parametrize("name", TINY)
def test_relabelled_models_compute_the_same(name: str) -> None:
    graph = rl.model(name, **TINY[name])
    sizes = {size: {"B": 2, "S": 6, "C": 6}[size] for size in graph.symbols}
    for other in (
        rl.passes.fuse(graph),
        pad_matmuls(graph),
        rl.passes.cast(graph, weights="int8"),
        rl.passes.clean(rl.passes.fuse(graph)),
    ):
        assert rl.ops.same(graph, other, tolerance=1e-12, **sizes)


def test_an_imported_module_with_a_dead_branch_and_a_twin() -> None:
    torch = pytest.importorskip("torch")

    class Wasteful(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.dead, self.last = (torch.nn.Linear(8, 8) for _ in range(3))
            self.scale = torch.nn.Parameter(torch.ones(8))

        def forward(self, x: Any) -> Any:
            y = self.first(x)
            self.dead(y).relu()
            once, again = torch.tanh(y), torch.tanh(y)
            return self.last(once * again) * self.scale.exp()

    module = Wasteful().double()
    x = torch.randn(4, 8, dtype=torch.float64)
    graph = rl.from_torch(module, x)
    after = rl.passes.clean(graph)
    assert ops(graph).count("tanh") == 2
    assert ops(after) == ["linear", "tanh", "mul", "linear", "mul"]
    assert graph.parameters - after.parameters == 8 * 8 + 8
    assert rl.ops.same(graph, after, tolerance=1e-12)
    inputs = {name: value.detach().numpy() for name, value in module.named_parameters()}
    inputs = {name: value for name, value in inputs.items() if "dead" not in name}
    name = next(name for name, tensor in after.tensors.items() if tensor.kind == "input")
    result = next(iter(rl.ops.execute(after, {**inputs, name: x.numpy()}).values()))
    assert abs(result - module(x).detach().numpy()).max() < 1e-12


SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100,
         "num_key_value_heads": 2, "intermediate_size": 96}  # fmt: skip


@pytest.mark.parametrize(("family", "options"), [
    ("Llama", {"attn_implementation": "eager"}), ("Gemma2", {"head_dim": 16}),
    ("Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}), ("Bert", {}),
])  # fmt: skip
def test_imported_language_models(family: str, options: dict[str, Any]) -> None:
    """Rotary tables and masks are worked out more than once, the scales of Gemma's norms anew in each run."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    config = getattr(transformers, f"{family}Config")(**SIZES, **options)
    with torch.device("meta"):
        model = getattr(transformers, f"{family}Model")(config).eval()
        graph = rl.from_torch(model, torch.zeros(2, 8, dtype=torch.int64), kwargs={"use_cache": False})
    after = rl.passes.clean(graph)
    assert rl.ops.same(graph, after, tolerance=1e-9)
    assert rl.ops.same(graph, rl.passes.merge_linears(graph), tolerance=1e-9)
    assert rl.count(after).launches < rl.count(graph).launches
    assert rl.count(after).bytes < rl.count(graph).bytes
    assert rl.count(after).flops == rl.count(graph).flops
