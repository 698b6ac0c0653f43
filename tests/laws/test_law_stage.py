"""Laws of pipeline stages, on random programs of layers with skips, tied weights and fused kernels."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.counting.counts import nbytes

LAW = settings(deadline=None, max_examples=examples(150), derandomize=True, database=None)


@st.composite
def programs(draw: st.DrawFn) -> rl.Graph:
    """An embedding, layers that read any tensor before them, a head that may share the embedding's table."""
    b = rl.ops.Builder("program", "bf16")
    table = b.weight("table", (32, 8))
    made = [b.op("embedding", table, b.input("ids", (4,), dtype="int64"), name="embed")]
    for at in range(draw(st.integers(1, 8))):
        with b.scope(f"layers.{at}"):
            x = b.op("linear", made[-1], b.weight("w", (8, 8)), name="linear")
            for _ in range(draw(st.integers(0, 2))):
                x = b.op("gelu", x)
            if draw(st.booleans()):
                x = b.op("add", x, draw(st.sampled_from(made)), name="skip")
            made.append(x)
    head = table if draw(st.booleans()) else b.weight("head.weight", (32, 8))
    also = draw(st.lists(st.sampled_from(made), unique=True, max_size=2))
    graph = b.graph([b.op("linear", made[-1], head, name="head"), *also])
    return rl.passes.fuse(graph) if draw(st.booleans()) else graph


def cut(graph: rl.Graph, pp: int) -> tuple[rl.Graph, ...]:
    """As many stages as asked for, or as many as there are."""
    try:
        return rl.passes.stages(graph, pp)
    except rl.errors.UsageError as error:
        return rl.passes.stages(graph, int(str(error).rpartition("nearest ")[2]))


@LAW
@given(programs(), st.integers(1, 9))
def test_flops_and_weights_are_those_of_the_whole(graph: rl.Graph, pp: int) -> None:
    parts = cut(graph, pp)
    assert sum(rl.count(part).flops for part in parts) == rl.count(graph).flops
    assert sum(rl.count(part).vector_flops for part in parts) == rl.count(graph).vector_flops
    weights = {name: tensor for name, tensor in graph.tensors.items() if tensor.kind == "weight"}
    held = [{name for name, tensor in part.tensors.items() if tensor.kind == "weight"} for part in parts]
    assert set().union(*held) == set(weights)
    again = sum(nbytes(weights[name]) * (sum(name in each for each in held) - 1) for name in weights)
    assert sum(nbytes(part.tensors[name]) for part, each in zip(parts, held, strict=True) for name in each) == (
        sum(map(nbytes, weights.values())) + again
    )


@LAW
@given(programs(), st.integers(2, 9))
def test_a_stage_is_given_exactly_what_the_one_before_sends(graph: rl.Graph, pp: int) -> None:
    parts = cut(graph, pp)
    made: set[str] = set()
    for before, after in pairwise(parts):
        sent = {name for node in before.nodes if node.op == "send" for name in node.inputs}
        given_ = {n for n, t in after.tensors.items() if t.kind == "input" and graph.tensors[n].kind == "activation"}
        assert sent == given_
        made |= {name for node in before.nodes if node.op != "send" for name in node.outputs}
        assert sent <= made
    assert not any(node.op == "send" for node in parts[-1].nodes)


@LAW
@given(programs(), st.integers(1, 9))
def test_every_node_and_output_is_in_one_stage_and_in_order(graph: rl.Graph, pp: int) -> None:
    parts = cut(graph, pp)
    own = [node for part in parts for node in part.nodes if node.op != "send"]
    assert tuple(own) == graph.nodes
    outputs = [name for part in parts for name in part.outputs if not name.endswith(".sent")]
    assert sorted(outputs) == sorted(graph.outputs)
    labels = [{node.label for node in part.nodes if node.op != "send"} for part in parts]
    assert sum(map(len, labels)) == len(set().union(*labels))
    for part in parts:
        part.validate()
