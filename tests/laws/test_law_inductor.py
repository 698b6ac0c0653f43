"""Laws of grouping kernels as torch.compile does: those of fusion, on the same random programs and on models."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from profiles import examples
from test_law_fuse import CHIP, CHOICES, DIAMOND, LAW, MODELS, Choices, assert_runs_in_some_order, program

import roofline as rl
from roofline.counting.memory import memory

#: Read again after a product: the second reader must not pull the first's kernel behind the product.
REUSED: Choices = [
    ("relu", 0, 0, False), ("gelu", 0, 0, False), ("linear", 0, 0, False), ("add", 0, 2, False), ("sum", 0, 0, False),
    ("scale", 1, 0, False), ("add", 0, 4, False),
]  # fmt: skip


@LAW
@given(choices=CHOICES, kept=st.integers(0, 20), batch=st.integers(1, 100))
@example(choices=DIAMOND, kept=0, batch=3)
@example(choices=REUSED, kept=1, batch=3)
@example(choices=[("relu", 0, 0, True), ("gelu", 0, 0, False)], kept=0, batch=3)
def test_grouping_keeps_the_work_and_never_adds_traffic(choices: Choices, kept: int, batch: int) -> None:
    graph = program(choices, kept)
    grouped = rl.passes.inductor(graph)
    before, after = rl.count(graph, B=batch), rl.count(grouped, B=batch)
    assert (after.flops, after.vector_flops) == (before.flops, before.vector_flops)
    assert after.bytes <= before.bytes
    assert after.launches <= before.launches
    assert (grouped.outputs, grouped.tensors, grouped.items) == (graph.outputs, graph.tensors, graph.items)
    assert [(n.name, n.op, n.inputs, n.outputs, n.attrs, n.count) for n in grouped.nodes] == [
        (n.name, n.op, n.inputs, n.outputs, n.attrs, n.count) for n in graph.nodes
    ]
    grouped.validate()
    # What one kernel leaves is there at once, so the peak may rise; never above all that is written.
    written = {name for node in graph.nodes for name in node.outputs if rl.ops.OPS[node.op].kind != "view"}
    everything = sum(4 * tensor.numel for name, tensor in graph.bind(B=batch).tensors.items() if name in written)
    assert 0 < memory(grouped, {"B": batch}).activations <= everything


@LAW
@given(choices=CHOICES, kept=st.integers(0, 20))
@example(choices=DIAMOND, kept=0)
@example(choices=REUSED, kept=1)
def test_grouped_kernels_never_wait_for_each_other(choices: Choices, kept: int) -> None:
    assert_runs_in_some_order(rl.passes.inductor(program(choices, kept)))


@LAW
@given(choices=CHOICES, kept=st.integers(0, 20), batch=st.integers(1, 100))
def test_kernels_given_by_hand_stay_together(choices: Choices, kept: int, batch: int) -> None:
    graph = program(choices, kept)
    grouped = {node.name: node.label for node in rl.passes.inductor(graph).nodes}
    by_hand: dict[str, set[str]] = {}
    for node in graph.nodes:
        by_hand.setdefault(node.label, set()).add(grouped[node.name])
    assert all(len(labels) == 1 for labels in by_hand.values())
    assert rl.passes.inductor(rl.passes.inductor(graph)).nodes == rl.passes.inductor(graph).nodes
    assert (
        rl.count(rl.passes.unfuse(rl.passes.inductor(graph)), B=batch).bytes
        == rl.count(rl.passes.unfuse(graph), B=batch).bytes
    )


@settings(LAW, max_examples=examples(50))
@given(choices=CHOICES, kept=st.integers(0, 20), batch=st.integers(1, 10**6))
def test_grouped_is_never_predicted_slower(choices: Choices, kept: int, batch: int) -> None:
    graph = program(choices, kept)
    apart = rl.estimate(graph, CHIP, B=batch, mode="graph").time
    assert rl.estimate(rl.passes.inductor(graph), CHIP, B=batch, mode="compiled").time <= apart * (1 + 1e-12)


@pytest.mark.parametrize(("name", "phase", "options"), MODELS)
def test_models_obey_the_laws_of_grouping(name: str, phase: str | None, options: dict[str, Any]) -> None:
    graph = rl.model(name, phase=phase, **options)
    sizes = dict.fromkeys(graph.symbols, 4) | ({"C": 64} if "C" in graph.symbols else {})
    grouped = rl.passes.inductor(graph)
    before, after = rl.count(graph, **sizes), rl.count(grouped, **sizes)
    assert (after.flops, after.vector_flops) == (before.flops, before.vector_flops)
    assert after.bytes < before.bytes
    assert after.launches < before.launches
    assert_runs_in_some_order(grouped)
