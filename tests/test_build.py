"""The builder: names like module paths, shapes from the registry, errors with the node."""

from __future__ import annotations

import pytest

import roofline as rl
from roofline.ir.graph import Info

B = rl.ops.symbol("B")


def test_scopes_prefix_and_repeated_names_get_numbers() -> None:
    b = rl.ops.Builder("g", "bf16")
    x = b.input("x", (4,))
    with b.scope("layers.0"), b.scope("mlp"):
        first, second = b.op("relu", x), b.op("relu", x)
    assert (first, second) == ("layers.0.mlp.relu", "layers.0.mlp.relu_2")
    assert b.input("x", (4,)) == "x_2"


def test_a_kernel_holds_what_is_built_inside_and_ends_with_it() -> None:
    b = rl.ops.Builder("g", "bf16")
    x = b.input("x", (4,))
    with b.scope("a"), b.kernel("both"):
        x = b.op("exp", b.op("relu", x))
    b.op("tanh", x)
    assert [node.label for node in b.graph([x]).nodes] == ["a.both", "a.both", "tanh"]


def test_a_kernel_is_never_mixed_up_with_a_node_or_kernel_of_its_name() -> None:
    b = rl.ops.Builder("g", "bf16")
    x = b.input("x", (4,))
    for _ in range(2):
        with b.kernel("relu"):
            x = b.op("exp", x)
    x = b.op("tanh", b.op("relu", x))
    graph = b.graph([x])
    assert [node.label for node in graph.nodes] == ["relu", "relu_2", "relu_3", "tanh"]
    assert rl.count(graph).launches == 4


@pytest.mark.parametrize("count", [0, -2])
def test_a_node_runs_at_least_once(count: int) -> None:
    b = rl.ops.Builder("g", "bf16")
    with pytest.raises(rl.errors.UsageError, match=f"relu: count={count}; a node runs at least once"):
        b.op("relu", b.input("x", (4,)), count=count)


def test_an_error_inside_a_scope_leaves_the_builder_usable() -> None:
    b = rl.ops.Builder("g", "bf16")
    with pytest.raises(rl.errors.ShapeError), b.scope("a"), b.kernel("k"):
        b.op("linear", b.input("x", (4, 5)), b.weight("w", (4, 4)))
    assert b.op("relu", b.input("x", (4,))) == "relu"


def test_errors_name_the_node_the_operator_and_the_sizes() -> None:
    b = rl.ops.Builder("g", "bf16")
    x, w = b.input("x", (B, 5)), b.weight("w", (4, 6))
    with b.scope("layers.3"):
        with pytest.raises(rl.errors.ShapeError, match=r"layers\.3\.up: linear takes .* axis 'k' is both 5 and 6"):
            b.op("linear", x, w, name="up")
        with pytest.raises(rl.errors.UnknownOp, match=r"layers\.3\.y: unknown operator 'liner'; did you mean linear"):
            b.op("liner", x, w, name="y")
        with pytest.raises(rl.errors.ShapeError, match=r"layers\.3\.top: topk needs the option 'k'"):
            b.op("topk", x, name="top")


@pytest.mark.parametrize("size", [0, -1])
def test_sizes_start_at_one(size: int) -> None:
    with pytest.raises(rl.errors.ShapeError, match=f"x: a size of {size} in"):
        rl.ops.Builder("g", "bf16").input("x", (4, size))


def test_formats_may_be_spelled_in_any_way_and_views_keep_their_own() -> None:
    b = rl.ops.Builder("g", "torch.bfloat16")
    x, y = b.input("x", (4,), dtype="float32"), b.cache("y", (4,))
    assert [b.tensor(name).dtype for name in (x, y)] == ["fp32", "bf16"]
    assert b.tensor(b.op("view", x, shape=(2, 2))).dtype == "fp32"
    assert b.tensor(b.op("relu", x)).dtype == "bf16"
    assert b.tensor(b.op("relu", x, dtype="half")).dtype == "fp16"
    assert rl.count(b.graph(["relu"])).bytes > 0
    with pytest.raises(rl.errors.UnknownDType, match="did you mean bf16"):
        rl.ops.Builder("g", "bf61")
    with pytest.raises(rl.errors.UnknownDType):
        b.weight("w", (4,), dtype="float17")


def test_options_given_as_lists_can_be_hashed() -> None:
    b = rl.ops.Builder("g", "bf16")
    b.op("view", b.input("x", (6,)), shape=[2, [3][0]])
    assert dict(b.graph([]).nodes[0].attrs)["shape"] == (2, 3)
    hash(b.graph([]).nodes[0])


def test_kinds_of_sources() -> None:
    b = rl.ops.Builder("g", "bf16")
    names = [b.input("i", (1,)), b.weight("w", (1,)), b.cache("c", (1,)), b.source("s", (1,), "buffer")]
    assert [b.tensor(name).kind for name in names] == ["input", "weight", "cache", "buffer"]
    assert b.shape("i") == (1,)


def test_a_size_in_quotes_is_refused() -> None:
    with pytest.raises(rl.errors.ShapeError, match=r"x: a size of 'B', which is text; .*symbol\('B'\)"):
        rl.ops.Builder("g", "bf16").input("x", ("B", 4))  # type: ignore[arg-type]


# --- editing ----------------------------------------------------------------------------------------------------------


def chain() -> rl.Graph:
    b = rl.ops.Builder("chain", "fp32")
    x = b.op("exp", b.input("x", (4, 8)), name="a")
    return b.graph([b.op("relu", x, name="y")], items=4, item="token", info=Info(phase="forward"))


def test_a_program_is_edited_in_place() -> None:
    graph = chain()
    a, y = graph.nodes
    b = rl.ops.Builder.of(graph)
    with b.before(y):
        b.change(y, inputs=(b.op("neg", "a"),))
    b.op("tanh", "x", replacing=a)
    after = b.graph()
    assert [(node.name, node.op, node.inputs) for node in after.nodes] == [
        ("a", "tanh", ("x",)), ("neg", "neg", ("a",)), ("y", "relu", ("neg",)),
    ]  # fmt: skip
    assert (after.name, after.outputs, after.items, after.item, after.info) == ("chain", ("y",), 4, "token", graph.info)


def test_what_nothing_writes_any_more_is_gone() -> None:
    graph = chain()
    b = rl.ops.Builder.of(graph)
    b.drop(graph.nodes[0])
    b.change(graph.nodes[1], inputs=("x",))
    assert b.graph().tensors.keys() == {"x", "y"}


def test_a_walk_places_nodes_anew_under_free_names() -> None:
    graph = chain()
    b = rl.ops.Builder.of(graph, nodes=())
    for node in graph.nodes:
        b.place(node)
        with b.inside("shared"):
            b.op("neg", node.outputs[0], name="y")
    after = b.graph()
    assert [node.name for node in after.nodes] == ["a", "y_2", "y", "y_3"]
    assert [node.kernel for node in after.nodes] == ["", "shared", "", "shared"]
    assert {after.tensors[name].dtype for name in after.tensors} == {"fp32"}


def test_a_replacement_has_the_shape_of_what_it_replaces() -> None:
    graph = chain()
    with pytest.raises(rl.errors.ShapeError, match=r"a: reduce gives \[4\] where the program has \[4, 8\]"):
        rl.ops.Builder.of(graph).op("reduce", "x", axes=(-1,), replacing=graph.nodes[0])


def test_nodes_that_a_backward_adds_say_so() -> None:
    b = rl.ops.Builder.of(chain())
    b.phase = "backward"
    b.op("neg", "y")
    assert [node.phase for node in b.graph().nodes] == ["forward", "forward", "backward"]
    assert b.graph().backward_start == 2
