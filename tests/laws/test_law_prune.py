"""Laws of pruning: nothing that is counted grows, shapes stay consistent, the order of the parts does not matter."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.counting.memory import memory
from roofline.ops.registry import get_op
from roofline.passes.parallel.axes import Axes

LAW = settings(deadline=None, max_examples=examples(60), derandomize=True, database=None)
SIZES = {"B": 2, "S": 32, "C": 48}
#: Models of every family, cut to a few layers where they have them.
PROGRAMS: dict[str, dict[str, Any]] = {
    "llama-3-8b": {"layers": 3}, "gpt2": {"layers": 3}, "opt-125m": {"layers": 3}, "gemma-2-2b": {"layers": 4},
    "gemma-3-1b": {"layers": 6}, "mixtral-8x7b": {"layers": 2}, "deepseek-v2-lite": {"layers": 3},
    "deepseek-v3": {"layers": 4}, "qwen3-0.6b": {"layers": 3}, "gpt-oss-20b": {"layers": 2},
    "phi-3-mini": {"layers": 2}, "qwen1.5-moe-a2.7b": {"layers": 2}, "bert-base-uncased": {"layers": 3},
    "t5-small": {}, "vit-b-16": {"layers": 2}, "resnet18": {}, "resnet50": {}, "resnext50-32x4d": {},
    "mobilenet-v2": {}, "convnext-tiny": {}, "unet": {}, "vgg11": {},
}  # fmt: skip
PHASES = {"decoder": ("forward", "prefill", "decode")}

AMOUNTS = st.one_of(st.sampled_from([0.125, 0.25, 0.5, 0.75]), st.floats(0.01, 0.99), st.integers(1, 64))


@cache
def program(name: str, phase: str | None) -> rl.Graph:
    return rl.model(name, phase, **PROGRAMS[name])


@st.composite
def programs(draw: Any) -> rl.Graph:
    name = draw(st.sampled_from(sorted(PROGRAMS)))
    family = program(name, None).info.family
    return program(name, draw(st.sampled_from(PHASES.get(family, (None,)))))


@st.composite
def parts(draw: Any) -> dict[str, Any]:
    chosen = draw(st.sets(st.sampled_from(["heads", "channels", "hidden", "layers"]), min_size=1, max_size=3))
    options: dict[str, Any] = {what: draw(AMOUNTS) for what in sorted(chosen)}
    return options | draw(st.sampled_from([{}, {"unit": 8}, {"unit": 3}]))


def totals(graph: rl.Graph) -> dict[str, float]:
    at = {name: SIZES[name] for name in graph.symbols}
    counts = rl.count(graph, **at)
    need = memory(graph, at).parts()
    return {"flops": counts.flops, "vector": counts.vector_flops, "bytes": counts.bytes, "kernels": counts.launches,
            "parameters": graph.parameters, **need}  # fmt: skip


def consistent(graph: rl.Graph) -> None:
    graph.validate()
    for node in graph.nodes:
        shapes = [graph.tensors[name].shape for name in node.inputs]
        assert get_op(node.op).output(shapes, dict(node.attrs)) == graph.tensors[node.outputs[0]].shape, node.name


def tried(graph: rl.Graph, **options: Any) -> rl.Graph:
    """The pruned program; a draw that asks for what cannot be says nothing."""
    try:
        return rl.passes.prune(graph, **options)
    except rl.errors.UsageError:
        assume(False)
        raise


@LAW
@given(programs(), parts())
def test_nothing_grows_and_shapes_stay_consistent(graph: rl.Graph, options: dict[str, Any]) -> None:
    pruned = tried(graph, **options)
    consistent(pruned)
    before, after = totals(graph), totals(pruned)
    assert all(after[what] <= before[what] for what in before), options
    assert pruned.symbols == graph.symbols
    assert pruned.items == graph.items
    assert pruned is graph or pruned.history[-1].before is graph


@LAW
@given(programs(), st.sampled_from([("heads", "channels"), ("channels", "hidden"), ("heads", "layers")]))
def test_parts_can_go_in_any_order_or_at_once(graph: rl.Graph, pair: tuple[str, str]) -> None:
    first, second = pair
    at_once = tried(graph, **{first: 0.5, second: 0.5})
    one, other = (tried(tried(graph, **{a: 0.5}), **{b: 0.5}) for a, b in ((first, second), (second, first)))
    assert dict(at_once.tensors) == dict(one.tensors) == dict(other.tensors)
    assert at_once.nodes == one.nodes == other.nodes


@LAW
@given(programs(), st.data())
def test_every_free_size_can_change_alone(graph: rl.Graph, data: st.DataObject) -> None:
    """What the analysis calls free, the operators accept at another size, and back again."""
    axes = Axes(graph)
    atoms = sorted({atom for name in graph.tensors for span in axes.spans(name) for atom in span.atoms
                    if not atom.frozen}, key=lambda atom: atom.number)  # fmt: skip
    atom = data.draw(st.sampled_from(atoms))
    size = data.draw(st.integers(1, 2 * int(str(atom.size))))
    other = axes.resize({atom: size})
    consistent(other)
    kept = {name for name in graph.tensors if all(user != name for user, _ in axes.users(atom))}
    assert all(other.tensors[name] == graph.tensors[name] for name in kept)
    again = Axes(other)
    (user, at), *_ = axes.users(atom)
    back = [each for each in again.atoms(user, at) if each.where == atom.where]
    if len(back) == 1 and size > 1:
        assert dict(again.resize({back[0]: int(str(atom.size))}).tensors) == dict(graph.tensors)


@LAW
@given(programs(), st.sampled_from(["h100-sxm", "a100-80gb-sxm", "v100-sxm-32gb", "rtx-4090", "mi210"]))
def test_two_of_four_stores_less_and_is_never_slower(graph: rl.Graph, chip: str) -> None:
    graph = rl.passes.cast(graph, "fp16")
    sparse = tried(graph, sparsity="2:4")
    at = {name: SIZES[name] for name in graph.symbols}
    before, after = (rl.estimate(each, chip, mode="graph", **at) for each in (graph, sparse))
    assert after.flops == before.flops
    assert after.memory.weights < before.memory.weights
    assert after.floor <= before.floor
    assert after.floor <= after.time <= before.time * (1 + 1e-9)
    if rl.chip(chip).sparse_peak("fp16") is None:
        assert after.time == pytest.approx(before.time, rel=1e-9)


@LAW
@given(
    groups=st.integers(1, 4), queries=st.integers(1, 4), width=st.integers(1, 8).map(lambda n: 2 * n),
    inner=st.integers(1, 50), hidden=st.integers(1, 40), amount=AMOUNTS, fused=st.booleans(),
)  # fmt: skip
def test_small_attention_of_any_sizes(
    groups: int, queries: int, width: int, inner: int, hidden: int, amount: float, fused: bool
) -> None:
    """Sizes that happen to be equal are not taken for the same."""
    graph = attention(groups, queries, width, inner, hidden, fused)
    pruned = tried(graph, heads=amount)
    left = {name: pruned.tensors[name].shape for name in ("up", "down", "residual", "x")}
    assert left == {name: graph.tensors[name].shape for name in left}
    heads, kept = pruned.tensors["q_heads"].shape[1], pruned.tensors["k_heads"].shape[1]
    want = attention(kept, heads // kept, width, inner, hidden, fused)
    assert dict(pruned.tensors) == dict(want.tensors)


def attention(groups: int, queries: int, width: int, inner: int, hidden: int, fused: bool) -> rl.Graph:
    b, batch, length = rl.ops.Builder("small", "bf16"), rl.ops.symbol("B"), rl.ops.symbol("S")
    x = b.input("x", (batch, length, hidden))
    widths = {"q": groups * queries * width, "k": groups * width, "v": groups * width}
    if fused:
        qkv = b.op("linear", x, b.weight("qkv.weight", (sum(widths.values()), hidden)), name="qkv")
        split = {n: b.op("slice", qkv, name=n, shape=(batch, length, size)) for n, size in widths.items()}
    else:
        split = {n: b.op("linear", x, b.weight(f"{n}.weight", (s, hidden)), name=n) for n, s in widths.items()}
    q, k, v = (
        b.op("view", split[n], name=f"{n}_heads", shape=(batch, widths[n] // width, length, width)) for n in "qkv"
    )
    scores = b.op("attention_scores", q, k, name="scores", causal=True)
    y = b.op("attention_values", b.op("attention_softmax", scores, name="softmax"), v, name="values")
    y = b.op("view", y, name="merge", shape=(batch, length, widths["q"]))
    y = b.op("linear", y, b.weight("out.weight", (hidden, widths["q"])), name="out")
    x = b.op("add", x, y, name="residual")
    up = b.op("relu", b.op("linear", x, b.weight("up.weight", (inner, hidden)), name="up"), name="relu")
    return b.graph([b.op("linear", up, b.weight("down.weight", (hidden, inner)), name="down")])
