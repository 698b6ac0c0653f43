"""The graph: validated, immutable, bound by substitution."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import pytest

import roofline as rl
from roofline.ir.graph import Info

B, S = rl.ops.symbol("B"), rl.ops.symbol("S")


def tensors(*names: str) -> dict[str, rl.ops.Tensor]:
    found = {name: rl.ops.Tensor(name, (4,), "fp32") for name in names}
    return found | {"x": rl.ops.Tensor("x", (4,), "fp32", "input")}


def relu(name: str, source: str) -> rl.ops.Node:
    return rl.ops.Node(name, "relu", (source,), (name,))


@pytest.mark.parametrize(
    ("nodes", "outputs", "fault"),
    [
        ([relu("b", "a"), relu("a", "x")], (), "g: node 'b' reads 'a' before anything writes it"),
        ([relu("a", "nowhere")], (), "node 'a' reads 'nowhere' before"),
        ([relu("a", "x"), relu("a", "x")], (), "two nodes are called 'a'"),
        ([relu("a", "x"), rl.ops.Node("b", "relu", ("x",), ("a",))], (), "node 'b' writes 'a' a second time"),
        ([rl.ops.Node("b", "relu", ("x",), ("x",))], (), "node 'b' writes 'x' a second time"),
        ([relu("c", "x")], (), "node 'c' writes 'c', which has no shape"),
        ([relu("a", "x")], ("b",), "output 'b' is never written"),
    ],
)
def test_what_is_no_program_is_refused(nodes: list[rl.ops.Node], outputs: tuple[str, ...], fault: str) -> None:
    with pytest.raises(rl.errors.ShapeError, match=fault):
        rl.Graph("g", tensors("a", "b"), tuple(nodes), outputs).validate()


def program() -> rl.Graph:
    b = rl.ops.Builder("g", "bf16")
    x = b.op("linear", b.input("x", (B, S, 64)), b.weight("w", (32, 64)), name="up")
    return b.graph(
        [b.op("view", x, shape=(B * S, 32), name="rows")], items=B * S, item="token", info=Info(phase="forward")
    )


def test_symbols_parameters_and_consumers() -> None:
    graph = program()
    assert graph.symbols == {"B", "S"}
    assert graph.parameters == 32 * 64
    assert [node.name for node in graph.consumers["up"]] == ["rows"]
    assert repr(graph) == "<Graph g: 2 nodes, 2,048 parameters, sizes B, S>"


def test_binding_replaces_symbols_everywhere_and_keeps_the_rest() -> None:
    graph = program()
    half = graph.bind(B=2)
    assert (half.symbols, half.items) == ({"S"}, 2 * S)
    assert dict(half.nodes[1].attrs)["shape"] == (2 * S, 32)
    whole = half.bind(S=3)
    assert (whole.symbols, whole.items, whole.tensors["rows"].shape) == (set(), 6, (6, 32))
    assert rl.count(whole).flops == rl.count(graph, B=2, S=3).flops == 2 * (2 * 3) * 64 * 32
    assert graph.symbols == {"B", "S"}, "binding makes a copy"


def test_a_tensor_shared_by_name_is_counted_once() -> None:
    b = rl.ops.Builder("tied", "fp32")
    table = b.weight("table", (100, 8))
    x = b.op("embedding", table, b.input("ids", (5,), "int64"))
    assert b.graph([b.op("linear", x, table)]).parameters == 800


def test_a_graph_cannot_be_changed_in_place() -> None:
    graph = program()
    with pytest.raises(TypeError):
        graph.tensors["x"] = graph.tensors["w"]  # type: ignore[index]
    with pytest.raises(FrozenInstanceError):
        graph.info.phase = "decode"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        graph.name = "h"  # type: ignore[misc]
    with pytest.raises(FrozenInstanceError):
        graph.nodes[0].op = "relu"  # type: ignore[misc]


def test_other_nodes_are_validated_and_tensors_replaced_by_name() -> None:
    graph = program()
    with pytest.raises(rl.errors.ShapeError):
        graph.with_nodes(reversed(graph.nodes))
    wide = graph.with_tensors([replace(graph.tensors["w"], dtype="fp32")])
    assert (wide.tensors["w"].dtype, graph.tensors["w"].dtype) == ("fp32", "bf16")


def test_a_node_runs_in_its_own_kernel_unless_told() -> None:
    assert relu("a", "x").label == "a"
    assert replace(relu("a", "x"), kernel="k").label == "k"


def test_a_graph_knows_who_writes_and_who_reads_a_tensor() -> None:
    graph = program()
    node = graph.nodes[0]
    assert graph.producer[node.outputs[0]] is node
    assert all(node in graph.consumers[name] for name in node.inputs)
    assert [n for nodes in graph.kernels.values() for n in nodes] == list(graph.nodes)
    assert graph.backward_start is None


def test_what_is_known_of_a_graph_is_replaced_by_name() -> None:
    graph = program()
    both = graph.with_info(phase="train", tp=2, optimizer="adamw")
    assert (both.info.phase, both.info.devices.tp, both.info.training.optimizer) == ("train", 2, "adamw")
    assert graph.info.devices.tp == 1
    assert graph.with_notes("a", "", "a").info.notes == ("a",)
    assert not Info()
    assert Info(phase="forward")
    with pytest.raises(TypeError):
        graph.with_info(fase="train")


def test_a_node_knows_its_place_in_the_tree_of_modules() -> None:
    b = rl.ops.Builder("tree", "fp32")
    with b.scope("layers.3"), b.scope("mlp"):
        b.op("relu", b.input("x", (4,)), name="act")
    [node] = b.nodes
    assert (node.scope, node.layer) == ("layers.3.mlp", "layers.3")
