"""Laws of the clean-up passes and of rewriting, on random programs with dead code, twins, constants and views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.counting.memory import memory

LAW = settings(deadline=None, max_examples=examples(120), derandomize=True, database=None)
B = rl.ops.symbol("B")
WIDTH = 8

Step = tuple[tuple[str, ...], str, Callable[..., str]]
#: Steps by name: which tensors they want, what they give, and how to build them. ``full`` are (B, 8), ``flat`` (B*8,),
#: ``row`` (B, 1), ``matrix`` (8, 8) and ``vector`` (8,) that no input reaches, ``cache`` (B, 1, 4, 8).
STEPS: dict[str, Step] = {
    "relu": (("full",), "full", lambda b, x: b.op("relu", x)),
    "tanh": (("full",), "full", lambda b, x: b.op("tanh", x)),
    "add": (("full", "full"), "full", lambda b, x, y: b.op("add", x, y)),
    "open": (("full",), "full", lambda b, x: b.op("mul_scalar", x)),
    "scaled": (("full",), "full", lambda b, x: b.op("mul_scalar", x, value=0.75)),
    "dropout": (("full",), "full", lambda b, x: b.op("dropout", x)),
    "softmax": (("full",), "full", lambda b, x: b.op("softmax", x)),
    "cast": (("full",), "full", lambda b, x: b.op("cast", x, dtype="bf16")),
    "sum": (("full",), "row", lambda b, x: b.op("view", b.op("sum", x), shape=(B, 1))),
    "spread": (("row",), "full", lambda b, x: b.op("expand", x, shape=(B, WIDTH))),
    "flatten": (("full",), "flat", lambda b, x: b.op("view", x, shape=(B * WIDTH,))),
    "unflatten": (("flat",), "full", lambda b, x: b.op("view", x, shape=(B, WIDTH))),
    "flat exp": (("flat",), "flat", lambda b, x: b.op("sigmoid", x)),
    "narrow": (("full",), "row", lambda b, x: b.op("slice", x, shape=(B, 1))),
    "first": (("full",), "row", lambda b, x: b.op("slice", x, shape=(B, 1), axis=1, start=0)),
    "linear": (("full", "matrix"), "full", lambda b, x, w: b.op("linear", x, w)),
    "bias": (("full", "vector"), "full", lambda b, x, v: b.op("bias_add", x, v)),
    "weight": ((), "matrix", lambda b: b.weight("w", (WIDTH, WIDTH))),
    "vector": ((), "vector", lambda b: b.source("v", (WIDTH,), "buffer")),
    "turned": (("matrix",), "matrix", lambda b, w: b.op("permute", w, axes=(1, 0))),
    "squared": (("matrix", "matrix"), "matrix", lambda b, w, u: b.op("matmul", w, u)),
    "scaled rows": (("matrix", "vector"), "matrix", lambda b, w, v: b.op("mul", w, v)),
    "root": (("vector",), "vector", lambda b, v: b.op("rsqrt", b.op("square", v))),
    "outer": (("vector",), "matrix", lambda b, v: b.op("mul", b.op("view", v, shape=(WIDTH, 1)), v)),
    "packed": ((), "matrix", lambda b: b.op("cast", b.weight("q", (WIDTH, WIDTH), dtype="int4"), dtype="fp32")),
    "update": (("cache", "full"), "cache",
               lambda b, c, x: b.op("cache_update", c, b.op("view", x, shape=(B, 1, 1, WIDTH)))),
    "fused pair": (("full", "full"), "full", lambda b, x, y: _pair(b, x, y)),
    "fused product": (("full",), "full", lambda b, x: _packed(b, x)),
}  # fmt: skip


def _pair(b: rl.ops.Builder, x: str, y: str) -> str:
    with b.kernel(f"hand{len(b.nodes)}"):
        return b.op("relu", b.op("add", x, y))


def _packed(b: rl.ops.Builder, x: str) -> str:
    """Weights of few bits that the kernel of their product unpacks."""
    with b.kernel(f"packed{len(b.nodes)}"):
        return b.op("linear", x, b.op("cast", b.weight("q", (WIDTH, WIDTH), dtype="int4"), dtype="fp32"))


#: Which step, and which of the tensors at hand, counted from the newest.
Choices = list[tuple[str, int, int]]
PLACES = st.integers(0, 4)
CHOICES = st.lists(st.tuples(st.sampled_from(sorted(STEPS)), PLACES, PLACES), min_size=1, max_size=16)


def program(choices: Choices, kept: int = 0) -> rl.Graph:
    """Build what the choices say; the newest result and another one are the outputs, the rest is dead."""
    b = rl.ops.Builder("random", "fp32")
    pools = {
        "full": [b.input("x", (B, WIDTH))], "matrix": [b.weight("w", (WIDTH, WIDTH))],
        "vector": [b.source("v", (WIDTH,), "buffer")], "cache": [b.cache("c", (B, 1, 4, WIDTH))],
    }  # fmt: skip
    made: list[str] = []
    for name, *places in choices:
        wanted, gives, build = STEPS[name]
        if all(kind in pools for kind in wanted):
            given = [pools[kind][-1 - place % len(pools[kind])] for kind, place in zip(wanted, places, strict=False)]
            made.append(build(b, *given))
            pools.setdefault(gives, []).append(made[-1])
    made.append(b.op("relu", pools["full"][-1]))
    return b.graph(list(dict.fromkeys([made[-1], made[kept % len(made)]])))


PASSES = [rl.passes.eliminate_dead, rl.passes.merge_equal, rl.passes.fold_constants, rl.passes.clean]
TWINS: Choices = [("tanh", 0, 0), ("tanh", 1, 0), ("add", 0, 1)]
OPEN_TWINS: Choices = [("open", 0, 0), ("open", 1, 0), ("add", 0, 1), ("narrow", 0, 0), ("narrow", 0, 0)]
CONSTANT: Choices = [("scaled rows", 0, 0), ("turned", 0, 0), ("squared", 0, 1), ("linear", 0, 0)]
UNPACKED: Choices = [("fused product", 0, 0), ("packed", 0, 0), ("linear", 0, 0)]


#: Views of a weight that nothing reads, or that are outputs: what is computed from the weight cannot take its room.
UNREAD_VIEW: Choices = [("squared", 0, 0), ("turned", 0, 0), ("turned", 0, 0), ("outer", 0, 0), ("turned", 4, 0)]


def stored(graph: rl.Graph) -> Any:
    return memory(graph, {"B": 3}).weights


@pytest.mark.parametrize("tidy", PASSES, ids=lambda tidy: tidy.__name__)
@LAW
@given(choices=CHOICES, kept=st.integers(0, 20), fused=st.booleans())
@example(choices=TWINS, kept=0, fused=False)
@example(choices=TWINS, kept=0, fused=True)
@example(choices=OPEN_TWINS, kept=3, fused=False)
@example(choices=CONSTANT, kept=0, fused=False)
@example(choices=UNPACKED, kept=0, fused=False)
@example(choices=UNREAD_VIEW, kept=1, fused=False)
@example(choices=UNREAD_VIEW, kept=4, fused=False)
def test_cleaning_keeps_the_outputs_and_never_adds_anything(
    tidy: Callable[[rl.Graph], rl.Graph], choices: Choices, kept: int, fused: bool
) -> None:
    graph = program(choices, kept)
    graph = rl.passes.fuse(graph) if fused else graph
    after = tidy(graph)
    after.validate()
    assert after.outputs == graph.outputs
    assert rl.ops.same(graph, after, tolerance=1e-9, B=3)
    old, new = rl.count(graph, B=3), rl.count(after, B=3)
    assert new.flops <= old.flops
    assert new.vector_flops <= old.vector_flops
    assert new.bytes <= old.bytes
    assert new.launches <= old.launches
    assert stored(after) <= stored(graph)


@pytest.mark.parametrize("tidy", PASSES, ids=lambda tidy: tidy.__name__)
@LAW
@given(choices=CHOICES, kept=st.integers(0, 20))
def test_cleaning_twice_is_cleaning_once(tidy: Callable[[rl.Graph], rl.Graph], choices: Choices, kept: int) -> None:
    once = tidy(program(choices, kept))
    assert tidy(once) is once


@LAW
@given(choices=CHOICES, kept=st.integers(0, 20))
def test_nothing_dead_is_left(choices: Choices, kept: int) -> None:
    after = rl.passes.eliminate_dead(program(choices, kept))
    needed = set(after.outputs).union(name for node in after.nodes for name in node.inputs)
    for node in after.nodes:
        assert needed.intersection(node.outputs) or node.op == "cache_update"
    assert all(name in needed for name, tensor in after.tensors.items() if tensor.kind in ("weight", "buffer"))
    assert sum(node.op == "cache_update" for node in after.nodes) == sum(
        node.op == "cache_update" for node in program(choices, kept).nodes
    ), "a cache outlives the run"


@LAW
@given(choices=CHOICES, kept=st.integers(0, 20))
def test_other_kernels_are_the_same_program(choices: Choices, kept: int) -> None:
    graph = program(choices, kept)
    for other in (
        rl.passes.fuse(graph),
        rl.passes.unfuse(graph),
        rl.passes.inductor(graph),
        rl.passes.clean(rl.passes.fuse(graph)),
        rl.passes.fuse(rl.passes.clean(graph)),
    ):
        assert rl.ops.same(graph, other, tolerance=1e-9, B=2)


@LAW
@given(choices=CHOICES, kept=st.integers(0, 20))
def test_the_program_without_its_last_operator_is_another_one(choices: Choices, kept: int) -> None:
    """The comparison can fail: a changed operator shows in the outputs."""
    graph = program(choices, kept)
    last = graph.nodes[-1]
    changed = graph.with_nodes((*graph.nodes[:-1], rl.ops.Node(last.name, "gelu", last.inputs, last.outputs)))
    assert rl.ops.OPS[last.op].kind == "pointwise"
    assert not rl.ops.same(graph, changed, tolerance=1e-3, B=3)
