"""Several passes in one call, pipelines as one program, and the trail that they leave."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import roofline as rl
from roofline.counting.memory import memory

DECODE = rl.model("llama-3-8b", phase="decode", layers=4)
AT = {"B": 4, "C": 512}


def names(graph: rl.Graph) -> list[str]:
    return [step.name for step in graph.history]


# --- one call ---


def test_nothing_asked_for_is_nothing_done() -> None:
    assert rl.what_if(DECODE) is DECODE


def test_passes_run_in_an_order_in_which_they_work() -> None:
    found = rl.what_if(DECODE, fuse="chains", weights="int4", cache="fp8", tp=2, pp=2, prune="heads=0.25")
    assert names(found) == ["prune", "shard", "quantize", "pipelined", "fuse"]
    assert (
        rl.estimate(found, "h100-sxm", mode="graph", **AT).time
        < rl.estimate(DECODE, "h100-sxm", mode="graph", **AT).time
    )


@pytest.mark.parametrize(
    ("change", "passes"),
    [
        ({"weights": "int8"}, rl.passes.quantize(DECODE, weights="int8")),
        ({"cache": "fp8"}, rl.passes.quantize(DECODE, cache="fp8")),
        ({"tp": 4}, rl.passes.shard(DECODE, tp=4)),
        ({"prune": {"heads": 0.5}}, rl.passes.prune(DECODE, heads=0.5)),
        ({"prune": "channels=0.5"}, rl.passes.prune(DECODE, channels=0.5)),
        ({"fuse": "ideal"}, rl.passes.fuse(DECODE, policy="ideal")),
        ({"pp": 2}, rl.passes.pipelined(DECODE, 2)),
    ],
    ids=str,
)
def test_each_change_is_its_pass(change: dict[str, Any], passes: rl.Graph) -> None:
    found = rl.what_if(DECODE, **change)
    assert found == passes
    assert rl.count(found, **AT).bytes == rl.count(passes, **AT).bytes


def test_a_group_larger_than_a_node_is_told_of_it() -> None:
    inside, across = (rl.what_if(rl.model("llama-3-70b", phase="decode", layers=1), tp=8, cluster=where)
                      for where in ("dgx-h100", rl.Cluster(name="pairs", chip="h100-sxm", devices_per_node=2, nodes=4,
                                                          link={"name": "IB", "bandwidth": "50 GB/s"})))  # fmt: skip
    times = [rl.estimate(graph, "h100-sxm", mode="graph", **AT) for graph in (inside,)]
    assert "nodes" not in {key for node in inside.nodes for key, _ in node.attrs}
    assert {dict(node.attrs).get("nodes") for node in across.nodes if node.op == "all_reduce"} == {4}
    assert times[0].time > 0


def test_a_near_word_is_named() -> None:
    with pytest.raises(rl.errors.UsageError, match="did you mean heads"):
        rl.what_if(DECODE, prune="head=0.5")


# --- a pipeline as one program ---


def test_stages_in_a_row_do_the_whole_work() -> None:
    for pp in (2, 3, 4):
        found = rl.passes.pipelined(DECODE, pp)
        assert rl.count(found, **AT).flops == rl.count(DECODE, **AT).flops
        assert sum(node.op == "send" for node in found.nodes) == pp - 1
        assert found.parameters == DECODE.parameters


def test_a_device_holds_its_stage() -> None:
    whole, parts = memory(DECODE, AT), memory(rl.passes.pipelined(DECODE, 4), AT)
    assert parts.weights < whole.weights / 2
    assert parts.kv_cache == whole.kv_cache / 4


def test_one_stage_is_the_program() -> None:
    assert rl.passes.pipelined(DECODE, 1) is DECODE


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(rl.errors.UsageError, match="nearest 4"):
        rl.passes.pipelined(DECODE, 5)


def test_what_passes_through_a_stage_is_sent_on() -> None:
    b = rl.ops.Builder("skip", "bf16")
    x = first = b.op("linear", b.input("x", (8, 64)), b.weight("layers.0.w", (64, 64)), name="layers.0.y")
    for at in (1, 2):
        x = b.op("linear", x, b.weight(f"layers.{at}.w", (64, 64)), name=f"layers.{at}.y")
    graph = b.graph([b.op("add", x, first, name="layers.2.sum")])
    found = rl.passes.pipelined(graph, 3)
    assert sum(node.op == "send" for node in found.nodes) == 3  # one from the first, two from the second
    assert rl.ops.same(graph, found)


@pytest.mark.parametrize(
    "change",
    [
        lambda graph: rl.passes.quantize(graph, weights="int4-g128", cache="int8"),
        lambda graph: rl.passes.cast(graph, weights="int8"),
        lambda graph: rl.passes.prune(graph, channels=0.5),
    ],
)
def test_what_comes_after_a_pipeline_changes_its_memory_too(change: Callable[[rl.Graph], rl.Graph]) -> None:
    late, early = change(rl.passes.pipelined(DECODE, 2)), rl.passes.pipelined(change(DECODE), 2)
    assert memory(late, AT).weights == memory(early, AT).weights
    assert memory(late, AT).kv_cache == memory(early, AT).kv_cache


def test_a_pipeline_can_be_bound_to_numbers() -> None:
    parts = rl.passes.pipelined(DECODE, 2)
    assert memory(parts.bind(B=AT["B"]), {"C": AT["C"]}).total == memory(parts, AT).total


def test_a_pipeline_is_updated_like_any_program() -> None:
    late = rl.passes.optimizer(rl.passes.pipelined(DECODE, 2), "adamw")
    assert memory(late, {}).optimizer < memory(rl.passes.optimizer(DECODE, "adamw"), {}).optimizer


@pytest.mark.parametrize("name", ["gpt2", "bert-base-uncased"])
def test_a_pipeline_is_cut_before_the_backward(name: str) -> None:
    forward = rl.model(name, phase="train", layers=2)
    for whole in (rl.passes.backward(forward), rl.passes.optimizer(forward)):
        with pytest.raises(rl.errors.UsageError, match="cut the forward program"):
            rl.passes.pipelined(whole, 2)
    with pytest.raises(rl.errors.UsageError, match="already cut into 2 stages"):
        rl.passes.pipelined(rl.passes.pipelined(forward, 2), 2)
    with pytest.raises(rl.errors.UsageError, match="shard it first"):
        rl.passes.shard(rl.passes.pipelined(forward, 2), tp=2)
    assert float(rl.estimate(rl.passes.backward(rl.passes.pipelined(forward, 2)), "h100-sxm", B=1, S=64).time) > 0


# --- orders in which passes do not work ---


@pytest.mark.parametrize("late", [{"weights": "int4-g32"}, {"weights": "fp8", "activations": "fp8"}])
def test_what_was_quantised_is_sharded_and_pruned_before_that(late: dict[str, str]) -> None:
    graph = rl.passes.quantize(rl.model("gpt2", phase="train", layers=2), **late)
    with pytest.raises(rl.errors.UsageError, match="went through quantize: shard before that"):
        rl.passes.shard(graph, tp=2)
    for what in ({"channels": 0.5}, {"hidden": 0.5}) if "int4-g32" in late.values() else ():
        with pytest.raises(rl.errors.UsageError, match="went through quantize: prune before that"):
            rl.passes.prune(graph, **what)


def test_a_backward_is_added_after_sharding() -> None:
    forward = rl.model("gpt2", phase="train", layers=2)
    for late in (rl.passes.backward(forward), rl.passes.optimizer(forward)):
        with pytest.raises(rl.errors.UsageError, match="shard the forward program"):
            rl.passes.shard(late, tp=2)


def test_layers_go_before_a_pipeline() -> None:
    with pytest.raises(rl.errors.UsageError, match="prune its layers first"):
        rl.passes.prune(rl.passes.pipelined(DECODE, 2), layers=0.5)


@pytest.mark.parametrize("late", [{"weights": "fp8", "activations": "fp8"}, {"weights": "int4-g128"}])
def test_autocast_leaves_what_is_stored_narrow(late: dict[str, str]) -> None:
    for narrow in (rl.passes.quantize(DECODE, **late), rl.passes.prune(DECODE, sparsity="2:4")):
        before, after = (rl.count(graph, **AT) for graph in (narrow, rl.passes.autocast(narrow)))
        assert after.bytes < 1.02 * before.bytes
        assert memory(rl.passes.autocast(narrow), AT).weights == memory(narrow, AT).weights
