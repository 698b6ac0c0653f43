"""Laws of the fusion policies, on random programs with views, diamonds, loops and kernels given by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_law_fuse import CHIP, CHOICES, DIAMOND, LAW, Choices, assert_runs_in_some_order, program

import roofline as rl
from roofline.passes.fusion.fuse import POLICIES
from roofline.passes.fusion.inline import inline

GROUPED = ("pointwise", "chains", "inductor", "flash")


def what(graph: rl.Graph) -> list[tuple[Any, ...]]:
    """Everything about the nodes but their kernels."""
    return [(n.name, n.op, n.inputs, n.outputs, n.attrs, n.count) for n in graph.nodes]


@LAW
@given(choices=CHOICES, kept=st.integers(0, 20), batch=st.integers(1, 100))
@example(choices=DIAMOND, kept=0, batch=3)
@example(choices=[("relu", 0, 0, False), ("linear", 0, 0, True), ("add", 0, 1, False)], kept=0, batch=3)
def test_every_policy_moves_between_ideal_and_eager(choices: Choices, kept: int, batch: int) -> None:
    graph = program(choices, kept)
    counts = {policy: rl.count(rl.passes.fuse(graph, policy), B=batch) for policy in POLICIES}
    for policy in GROUPED:
        assert counts["ideal"].bytes <= counts[policy].bytes <= counts["eager"].bytes, policy
        assert counts["ideal"].launches <= counts[policy].launches <= counts["eager"].launches, policy
    assert counts["ideal"].bytes <= rl.count(graph, B=batch).bytes <= counts["eager"].bytes


@LAW
@given(choices=CHOICES, kept=st.integers(0, 20), batch=st.integers(1, 100))
def test_no_policy_changes_what_is_computed(choices: Choices, kept: int, batch: int) -> None:
    graph = program(choices, kept)
    before = rl.count(graph, B=batch)
    for policy in POLICIES:
        fused = rl.passes.fuse(graph, policy)
        after = rl.count(fused, B=batch)
        assert (after.flops, after.vector_flops) == (before.flops, before.vector_flops), policy
        assert (fused.outputs, fused.tensors, what(fused)) == (graph.outputs, graph.tensors, what(graph)), policy


@LAW
@given(choices=CHOICES, kept=st.integers(0, 20))
def test_kernels_of_equal_loops_never_wait_for_each_other(choices: Choices, kept: int) -> None:
    # The bound may join what lies between two kernels, but not where that runs another number of times.
    graph = program([(name, first, second, False) for name, first, second, _ in choices], kept)
    for policy in POLICIES:
        assert_runs_in_some_order(rl.passes.fuse(graph, policy))


@LAW
@given(choices=CHOICES, kept=st.integers(0, 20))
def test_only_one_contraction_a_kernel(choices: Choices, kept: int) -> None:
    fused = rl.passes.fuse(program(choices, kept), "ideal")
    products = [node.label for node in fused.nodes if node.op == "linear"]
    assert len(products) == len(set(products))


@LAW
@given(choices=CHOICES, kept=st.integers(0, 20), batch=st.integers(1, 100), picks=st.tuples(*[st.integers(0, 99)] * 2))
def test_an_explanation_agrees_with_the_policies_and_the_counts(
    choices: Choices, kept: int, batch: int, picks: tuple[int, int]
) -> None:
    graph = program(choices, kept)
    labels = list(dict.fromkeys(node.label for node in graph.nodes if rl.ops.OPS[node.op].kind != "view"))
    first, second = (labels[pick % len(labels)] for pick in picks)
    found = rl.analysis.explain_fusion(graph, first, second, CHIP, B=batch)
    assert found.saves_bytes >= 0
    assert found.reasons
    assert (found.saves_s is not None) == found.fusible
    assert found.fusible or not found.policies
    if found.fusible and first != second:
        nodes = [replace(n, kernel=first) if n.label in found.together else n for n in graph.nodes]
        one = replace(graph, nodes=tuple(nodes))
        assert_runs_in_some_order(one)
        assert rl.count(graph, B=batch).bytes - rl.count(one, B=batch).bytes == found.saves_bytes


@LAW
@given(choices=CHOICES, kept=st.integers(0, 20), batch=st.integers(1, 100))
def test_a_result_is_computed_again_for_the_bytes_that_it_moved(choices: Choices, kept: int, batch: int) -> None:
    graph = program(choices, kept)
    outputs = set(graph.outputs)
    for node in graph.nodes:
        readers = {
            n.label for n in graph.nodes if set(node.outputs) & set(n.inputs) and rl.ops.OPS[n.op].kind != "view"
        }
        alone = all(n.count == node.count for n in graph.nodes)
        seen = any(rl.ops.OPS[n.op].kind == "view" for n in graph.consumers.get(node.outputs[0], ()))
        if rl.ops.OPS[node.op].kind == "pointwise" and not node.kernel and readers and alone and not seen:
            again = inline(graph, node.name)
            before, after = rl.count(graph, B=batch), rl.count(again, B=batch)
            kept_too = not outputs.isdisjoint(node.outputs)
            assert after.vector_flops >= before.vector_flops
            assert after.launches == before.launches - (not kept_too)
            assert again.outputs == graph.outputs


def attention(steps: list[str], batch: int, queries: int, keys: int) -> rl.Graph:
    """Attention of separate products, with some steps before its softmax."""
    b = rl.ops.Builder("attention", "bf16")
    q, k = b.input("q", (batch, 4, queries, 64)), b.input("k", (batch, 4, 64, keys))
    v = b.input("v", (batch, 4, keys, 64))
    x = b.op("bmm", q, k)
    for step in steps:
        others = (b.input("mask", (queries, keys)),) if step == "add" else ()
        x = b.op(step, x, *others)
    return b.graph([b.op("bmm", b.op("softmax", x), v)])


@LAW
@given(
    steps=st.lists(st.sampled_from(["mul_scalar", "add", "softcap", "copy"]), max_size=4),
    batch=st.integers(1, 4), queries=st.integers(1, 300), keys=st.integers(1, 300),
)  # fmt: skip
def test_flash_moves_no_scores(steps: list[str], batch: int, queries: int, keys: int) -> None:
    graph = attention(steps, batch, queries, keys)
    counts = rl.count(rl.passes.fuse(graph, "flash"))
    masks = steps.count("add") * queries * keys
    assert counts.launches == 1
    assert counts.bytes == 2 * (batch * 4 * 64 * 2 * (queries + keys) + masks)


MODELS = [
    ("llama-3-8b", "decode", {"layers": 2}), ("gpt2", "forward", {"layers": 2}),
    ("mixtral-8x7b", "prefill", {"layers": 1}), ("deepseek-v2-lite", "prefill", {"layers": 2}),
    ("resnet18", None, {}), ("vit-b-16", None, {}), ("mobilenet-v2", None, {}), ("unet", None, {}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "phase", "options"), MODELS)
def test_models_obey_the_laws(name: str, phase: str | None, options: dict[str, Any]) -> None:
    graph = rl.model(name, phase=phase, **options)
    sizes = dict.fromkeys(graph.symbols, 4) | ({"C": 64} if "C" in graph.symbols else {})
    programs = {policy: rl.passes.fuse(graph, policy) for policy in POLICIES}
    counts = {policy: rl.count(fused, **sizes) for policy, fused in programs.items()}
    assert len({(found.flops, found.vector_flops) for found in counts.values()}) == 1
    for policy in GROUPED:
        assert counts["ideal"].bytes <= counts[policy].bytes <= counts["eager"].bytes
    assert counts["ideal"].bytes < counts["chains"].bytes < counts["eager"].bytes
    for fused in programs.values():
        assert_runs_in_some_order(fused)
