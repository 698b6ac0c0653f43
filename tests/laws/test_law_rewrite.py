"""Laws of rewriting: random networks compute the same after norms are folded, layers joined and patterns replaced."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples
from test_law_clean import CHOICES, Choices, program

import roofline as rl
from roofline.counting.memory import memory

LAW = settings(deadline=None, max_examples=examples(60), derandomize=True, database=None)

LAYER = st.fixed_dictionaries({
    "op": st.sampled_from(["conv2d", "conv2d", "conv_transpose2d"]), "window": st.sampled_from([1, 2, 3]),
    "stride": st.sampled_from([1, 2, (1, 2)]), "padding": st.sampled_from([0, 1]), "groups": st.sampled_from([1, 2]),
    "bias": st.booleans(), "norm": st.sampled_from(["none", "two", "four", "four", "four"]),
    "after": st.sampled_from(["relu", "silu", "add", "none"]), "eps": st.sampled_from([None, 1e-3, 0.5]),
})  # fmt: skip
CHANNELS = 4


def network(layers: list[dict[str, Any]]) -> rl.Graph:
    """A chain of convolutions of random kinds, most of them normed, some with a residual."""
    b = rl.ops.Builder("network", "fp32")
    x = b.input("x", (2, CHANNELS, 9, 9))
    for at, layer in enumerate(layers):
        with b.scope(str(at)):
            x = _layer(b, x, layer)
    return b.graph([x])


def _layer(b: rl.ops.Builder, x: str, layer: dict[str, Any]) -> str:
    window, groups = layer["window"], layer["groups"]
    weights = [b.weight("w", (CHANNELS, CHANNELS // groups, window, window))]
    if layer["bias"]:
        weights.append(b.weight("b", (CHANNELS,)))
    if layer["padding"] >= window or any(size < 3 for size in b.shape(x)[2:]):  # type: ignore[operator]
        return x
    options = {key: layer[key] for key in ("stride", "padding", "groups")}
    y = b.op(layer["op"], x, *weights, name="conv", **options)
    eps = {} if layer["eps"] is None else {"eps": layer["eps"]}
    if layer["norm"] != "none":
        kinds = ["weight", "weight", "buffer", "buffer"] if layer["norm"] == "four" else ["buffer", "buffer"]
        parts = [b.source(f"p{at}", (CHANNELS,), kind) for at, kind in enumerate(kinds)]  # type: ignore[arg-type]
        y = b.op("batchnorm2d", y, *parts, name="norm", **eps)
    if layer["after"] == "add":
        return b.op("add", y, y if b.shape(x) != b.shape(y) else x)
    return y if layer["after"] == "none" else b.op(layer["after"], y)


@LAW
@given(layers=st.lists(LAYER, min_size=1, max_size=4), join=st.booleans(), fused=st.booleans())
def test_networks_compute_the_same_without_norms(layers: list[dict[str, Any]], join: bool, fused: bool) -> None:
    graph = network(layers)
    graph = rl.passes.fuse(graph) if fused else graph
    try:
        after = rl.passes.fold_batchnorm(graph, join=join)
    except rl.errors.UsageError:
        assert not any(layer["norm"] == "four" and layer["op"] == "conv2d" and layer["padding"] < layer["window"]
                       for layer in layers[:1]), "the first layer can always take its norm"  # fmt: skip
        return
    assert rl.ops.same(graph, after, tolerance=1e-9)
    old, new = rl.count(graph), rl.count(after)
    assert (new.flops, new.bytes < old.bytes, new.launches <= old.launches) == (old.flops, True, True)
    assert memory(after, {}).weights <= memory(graph, {}).weights
    folded = [node.name for node in after.nodes if node.inputs[1:2] and node.inputs[1].endswith(".folded")]
    biased = {node.name for node in graph.nodes if node.name.endswith("conv") and len(node.inputs) == 3}
    gone = sum(2 if name in biased else 1 for name in folded)  # scale and shift of each channel, less a new bias
    assert graph.parameters - after.parameters == CHANNELS * gone > 0
    assert after.outputs == graph.outputs


WIDTHS = st.lists(st.tuples(st.integers(1, 6), st.booleans(), st.integers(0, 1)), min_size=2, max_size=6)


@LAW
@given(widths=WIDTHS, kept=st.booleans())
def test_joined_layers_compute_the_same(widths: list[tuple[int, bool, int]], kept: bool) -> None:
    b = rl.ops.Builder("layers", "fp32")
    inputs = [b.input("x", (3, 4, 8)), b.input("y", (3, 4, 8))]
    results = []
    for at, (width, bias, which) in enumerate(widths):
        weights = [b.weight(f"w{at}", (width, 8)), *([b.weight(f"b{at}", (width,))] if bias else [])]
        results.append(b.op("linear", inputs[which], *weights, name=f"layer{at}"))
    graph = b.graph([b.op("cat", *results), *(results[:1] if kept else [])])
    kin = [(bias, which) for _, bias, which in widths]
    try:
        after = rl.passes.merge_linears(graph)
    except rl.errors.UsageError:
        assert len(set(kin)) == len(kin)
        return
    assert sum(node.op == "linear" for node in after.nodes) == len(set(kin))
    assert rl.ops.same(graph, after, tolerance=1e-12)
    old, new = rl.count(graph), rl.count(after)
    assert (new.flops, after.parameters) == (old.flops, graph.parameters)
    assert new.bytes < old.bytes


@LAW
@given(choices=CHOICES, kept=st.integers(0, 20), fused=st.booleans())
def test_equal_patterns_may_stand_for_each_other(choices: Choices, kept: int, fused: bool) -> None:
    """``tanh(x) = 2 sigmoid(2 x) - 1``; that another function does not agree shows that the comparison can fail."""
    graph = program([*choices, ("tanh", 0, 0)], kept)
    graph = rl.passes.fuse(graph) if fused else graph
    after = rl.passes.rewrite(
        graph,
        lambda p, x: p.op("tanh", x),
        lambda p, x: p.op("add_scalar", p.op("mul_scalar", p.op("sigmoid", p.op("add", x, x)), value=2), value=-1),
    )
    after.validate()
    assert rl.ops.same(graph, after, tolerance=1e-9, B=3)
    assert not rl.ops.same(graph, rl.passes.replace_op(graph, "tanh", "gelu"), tolerance=1e-4, B=3) or not _matters(
        graph
    )
    assert all(node.op != "tanh" for node in after.nodes)


def _matters(graph: rl.Graph) -> bool:
    """Whether an output depends on a ``tanh``."""
    reached = {name for node in graph.nodes if node.op == "tanh" for name in node.outputs}
    for node in graph.nodes:
        if reached.intersection(node.inputs):
            reached.update(node.outputs)
    return not reached.isdisjoint(graph.outputs)
