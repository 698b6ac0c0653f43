"""Laws of fusion, on random programs with views, diamonds, concatenations, broadcasts and kernels given by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.counting.counts import kernel_boundaries
from roofline.counting.memory import memory

LAW = settings(deadline=None, max_examples=examples(150), derandomize=True, database=None)
B = rl.ops.symbol("B")
WIDTH = 8

#: A chip simple enough to see every effect: nothing hides behind a launch cost.
CHIP = rl.Chip(
    name="law",
    matrix={"fp32": "10 TFLOP/s"},
    vector={"fp32": "1 TFLOP/s"},
    memory_bandwidth="1 TB/s",
    memory_capacity="1 TB",
    efficiency={"compute": 0.5, "memory": 0.8, "launch": 0.0, "host": 1e-6},
)

#: Steps by name: which tensors they want, and how to build them. ``full`` are (B, 8), ``flat`` (B*8,), ``row`` (B, 1).
STEPS: dict[str, tuple[tuple[str, ...], str, Callable[..., str]]] = {
    "relu": (("full",), "full", lambda b, x, n: b.op("relu", x, count=n)),
    "gelu": (("full",), "full", lambda b, x, n: b.op("gelu", x, count=n)),
    "add": (("full", "full"), "full", lambda b, x, y, n: b.op("add", x, y, count=n)),
    "scale": (("full", "row"), "full", lambda b, x, r, n: b.op("mul", x, r, count=n)),
    "bias": (("full",), "full", lambda b, x, n: b.op("bias_add", x, b.weight("bias", (WIDTH,)), count=n)),
    "softmax": (("full",), "full", lambda b, x, n: b.op("softmax", x, count=n)),
    "rmsnorm": (("full",), "full", lambda b, x, n: b.op("rmsnorm", x, b.weight("g", (WIDTH,)), count=n)),
    "linear": (("full",), "full", lambda b, x, n: b.op("linear", x, b.weight("w", (WIDTH, WIDTH)), count=n)),
    "copy": (("full",), "full", lambda b, x, n: b.op("copy", x, count=n)),
    "sum": (("full",), "row", lambda b, x, n: b.op("view", b.op("sum", x, count=n), shape=(B, 1))),
    "flatten": (("full",), "flat", lambda b, x, n: b.op("view", x, shape=(B * WIDTH,))),
    "unflatten": (("flat",), "full", lambda b, x, n: b.op("view", x, shape=(B, WIDTH))),
    "flat exp": (("flat",), "flat", lambda b, x, n: b.op("exp", x, count=n)),
    "flat add": (("flat", "flat"), "flat", lambda b, x, y, n: b.op("add", x, y, count=n)),
    "spread": (("row",), "full", lambda b, x, n: b.op("expand", x, shape=(B, WIDTH))),
    "narrow": (("full",), "row", lambda b, x, n: b.op("slice", x, shape=(B, 1))),
    "cat": (("full", "full"), "wide", lambda b, x, y, n: b.op("cat", x, y, axis=-1, count=n)),
    "wide silu": (("wide",), "wide", lambda b, x, n: b.op("silu", x, count=n)),
    "half": (("wide",), "full", lambda b, x, n: b.op("slice", x, shape=(B, WIDTH))),
    "transpose": (("wide",), "turned", lambda b, x, n: b.op("transpose_copy", x, count=n)),
    "turned add": (("turned", "turned"), "turned", lambda b, x, y, n: b.op("add", x, y, count=n)),
    "fused pair": (("full", "full"), "full", lambda b, x, y, n: _pair(b, x, y, n)),
}


def _pair(b: rl.ops.Builder, x: str, y: str, n: int) -> str:
    """A kernel that the program already fused by hand."""
    with b.kernel(f"hand{len(b.nodes)}"):
        return b.op("relu", b.op("add", x, y, count=n), count=n)


#: Which step, which of the tensors at hand (counted from the newest), and how often.
Choices = list[tuple[str, int, int, bool]]
PLACES = st.integers(0, 5)
CHOICES = st.lists(
    st.tuples(st.sampled_from(sorted(STEPS)), PLACES, PLACES, st.integers(0, 9).map(lambda n: n == 9)),
    min_size=1,
    max_size=14,
)


def program(choices: Choices, kept: int = 0) -> rl.Graph:
    """Build what the choices say; steps whose tensors do not exist yet are left out."""
    b = rl.ops.Builder("random", "fp32")
    pools: dict[str, list[str]] = {"full": [b.input("x", (B, WIDTH)), b.input("y", (B, WIDTH))]}
    made = []
    for name, first, second, twice in choices:
        wanted, kind, build = STEPS[name]
        if all(pools.get(want) for want in wanted):
            given = [pools[want][-1 - at % len(pools[want])] for want, at in zip(wanted, (first, second), strict=False)]
            made.append(build(b, *given, 2 if twice else 1))
            pools.setdefault(kind, []).append(made[-1])
    made.append(b.op("relu", pools["full"][-1]))  # a program of views alone has nothing to run
    return b.graph(list(dict.fromkeys([made[-1], made[kept % len(made)]])))


def assert_runs_in_some_order(graph: rl.Graph) -> None:
    """The kernels can be put in an order in which each starts after those that it waits for have ended."""
    scope = kernel_boundaries(graph)
    waits: dict[str, set[str]] = {label: set() for label in graph.kernels}
    for node in graph.nodes:
        for name in node.inputs:
            producer = graph.producer.get(scope.base(name))
            if producer is not None and producer.label != node.label:
                waits[node.label].add(producer.label)
    while waits:
        ready = {label for label, before in waits.items() if not before & waits.keys()}
        assert ready, f"kernels wait for each other: {waits}"
        waits = {label: before for label, before in waits.items() if label not in ready}


DIAMOND: Choices = [("relu", 0, 0, False), ("linear", 0, 0, False), ("add", 0, 1, False), ("softmax", 0, 0, False)]


@LAW
@given(choices=CHOICES, kept=st.integers(0, 20), batch=st.integers(1, 100))
@example(choices=DIAMOND, kept=0, batch=3)
@example(choices=[("relu", 0, 0, True), ("gelu", 0, 0, False)], kept=0, batch=3)
def test_fusion_keeps_the_work_and_never_adds_traffic(choices: Choices, kept: int, batch: int) -> None:
    graph = program(choices, kept)
    fused = rl.passes.fuse(graph)
    before, after = rl.count(graph, B=batch), rl.count(fused, B=batch)
    assert (after.flops, after.vector_flops) == (before.flops, before.vector_flops)
    assert after.bytes <= before.bytes
    assert after.launches <= before.launches
    assert (fused.outputs, fused.tensors, fused.items) == (graph.outputs, graph.tensors, graph.items)
    assert [(n.name, n.op, n.inputs, n.outputs, n.attrs, n.count) for n in fused.nodes] == [
        (n.name, n.op, n.inputs, n.outputs, n.attrs, n.count) for n in graph.nodes
    ]
    fused.validate()


@LAW
@given(choices=CHOICES, kept=st.integers(0, 20))
@example(choices=DIAMOND, kept=0)
@example(choices=[("relu", 0, 0, False), ("linear", 0, 0, False), ("cat", 0, 1, False)], kept=0)
def test_fused_kernels_never_wait_for_each_other(choices: Choices, kept: int) -> None:
    graph = program(choices, kept)
    assert_runs_in_some_order(graph)
    assert_runs_in_some_order(rl.passes.fuse(graph))


@LAW
@given(choices=CHOICES, kept=st.integers(0, 20))
def test_fusing_twice_is_fusing_once(choices: Choices, kept: int) -> None:
    once = rl.passes.fuse(program(choices, kept))
    assert rl.passes.fuse(once).nodes == once.nodes


@LAW
@given(choices=CHOICES, kept=st.integers(0, 20), batch=st.integers(1, 100))
def test_unfusing_keeps_the_work_and_never_removes_traffic(choices: Choices, kept: int, batch: int) -> None:
    graph = program(choices, kept)
    for fused in (graph, rl.passes.fuse(graph)):
        before, after = rl.count(fused, B=batch), rl.count(rl.passes.unfuse(fused), B=batch)
        assert (after.flops, after.vector_flops) == (before.flops, before.vector_flops)
        assert after.bytes >= before.bytes
        assert after.launches >= before.launches


@settings(LAW, max_examples=examples(50))
@given(choices=CHOICES, kept=st.integers(0, 20), batch=st.integers(1, 10**6))
def test_compiled_is_never_predicted_slower(choices: Choices, kept: int, batch: int) -> None:
    graph = program(choices, kept)
    times = {mode: rl.estimate(graph, CHIP, B=batch, mode=mode).time for mode in ("eager", "graph", "compiled")}
    assert times["compiled"] <= times["graph"] * (1 + 1e-12)
    assert times["graph"] <= times["eager"]


@settings(LAW, max_examples=examples(50))
@given(choices=CHOICES, kept=st.integers(0, 20), batches=st.lists(st.integers(1, 10**6), min_size=1, max_size=4))
def test_random_programs_count_the_same_on_numbers_and_arrays(choices: Choices, kept: int, batches: list[int]) -> None:
    graph = rl.passes.fuse(program(choices, kept))

    def all_counts(graph: rl.Graph, **sizes: Any) -> list[Any]:
        totals = rl.count(graph, **sizes)
        return [totals.flops, totals.vector_flops, totals.bytes, *memory(graph, sizes).parts().values()]

    by_array = all_counts(graph, B=np.array(batches, dtype=float))
    for at, batch in enumerate(batches):
        numbers = all_counts(graph.bind(B=batch))
        assert all_counts(graph, B=batch) == numbers
        assert [np.broadcast_to(value, len(batches))[at] for value in by_array] == pytest.approx(numbers, rel=1e-12)


@settings(LAW, max_examples=examples(50))
@given(choices=CHOICES, kept=st.integers(0, 20), batch=st.integers(1, 100))
def test_memory_holds_the_outputs_and_no_more_than_everything(choices: Choices, kept: int, batch: int) -> None:
    graph = program(choices, kept).bind(B=batch)
    scope = kernel_boundaries(graph)
    written = {scope.root(name) for node in graph.nodes for name in node.outputs}
    of = {name: 4 * graph.tensors[name].numel for name in written if graph.tensors[name].kind == "activation"}
    kept_bytes = sum(of.get(name, 0) for name in {scope.root(name) for name in graph.outputs})
    assert kept_bytes <= memory(graph, {}).activations <= sum(of.values())


MODELS = [
    ("llama-3-8b", "decode", {"layers": 2}),
    ("gpt2", "forward", {"layers": 2}),
    ("mixtral-8x7b", "prefill", {"layers": 1}),
    ("deepseek-v2-lite", "prefill", {"layers": 2}),
    ("resnet18", None, {}),
    ("vit-b-16", None, {}),
    ("mobilenet-v2", None, {}),
    ("unet", None, {}),
]


@pytest.mark.parametrize(("name", "phase", "options"), MODELS)
def test_models_obey_the_laws_of_fusion(name: str, phase: str | None, options: dict[str, Any]) -> None:
    graph = rl.model(name, phase=phase, **options)
    sizes = dict.fromkeys(graph.symbols, 4) | ({"C": 64} if "C" in graph.symbols else {})
    fused = rl.passes.fuse(graph)
    before, after, apart = (
        rl.count(graph, **sizes),
        rl.count(fused, **sizes),
        rl.count(rl.passes.unfuse(graph), **sizes),
    )
    assert (after.flops, after.vector_flops) == (before.flops, before.vector_flops) == (apart.flops, apart.vector_flops)
    assert after.bytes < before.bytes <= apart.bytes
    assert after.launches < before.launches <= apart.launches
    assert rl.passes.fuse(fused).nodes == fused.nodes
    assert fused.outputs == graph.outputs
    assert_runs_in_some_order(fused)
