"""Pipeline stages: whole layers, what crosses a cut, what several stages hold, and requests that cannot be met."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

import roofline as rl
from roofline.counting.counts import nbytes
from roofline.ir.sizes import evaluate

LLAMA, GPT2 = rl.model("llama-3-8b", phase="decode"), rl.model("gpt2", phase="prefill")
T5, RESNET = rl.model("t5-base"), rl.model("resnet50")
SIZES: dict[str, dict[str, int]] = {
    LLAMA.name: {"B": 4, "C": 512}, GPT2.name: {"B": 2, "S": 128}, T5.name: dict.fromkeys(sorted(T5.symbols), 64),
    RESNET.name: {"B": 2},
}  # fmt: skip


def chain(layers: int) -> rl.Graph:
    """Products one after the other, without layer scopes, the last four times as large as the others."""
    b = rl.ops.Builder("chain", "bf16")
    x = b.input("x", (8, 64))
    for at in range(layers):
        x = b.op("linear", x, b.weight(f"w{at}", (256 if at == layers - 1 else 64, 64)), name=f"product{at}")
    return b.graph([x])


def layers(graph: rl.Graph) -> list[str]:
    return list(dict.fromkeys(layer for node in graph.nodes if (layer := node.layer)))


def weight_bytes(graph: rl.Graph) -> Any:
    return sum(nbytes(tensor) for tensor in graph.tensors.values() if tensor.kind == "weight")


@pytest.mark.parametrize("graph", [LLAMA, GPT2, T5, RESNET], ids=lambda graph: graph.name)
@pytest.mark.parametrize("pp", [2, 3, 4, 12])
def test_work_and_weights_add_up_but_for_what_several_stages_hold(graph: rl.Graph, pp: int) -> None:
    cut, sizes = rl.passes.stages(graph, pp), SIZES[graph.name]
    assert sum(rl.count(each, **sizes).flops for each in cut) == rl.count(graph, **sizes).flops
    assert sum(rl.count(each, **sizes).vector_flops for each in cut) == rl.count(graph, **sizes).vector_flops
    holders: dict[str, int] = {}
    for each in cut:
        for tensor in each.tensors.values():
            if tensor.kind == "weight":
                holders[tensor.name] = holders.get(tensor.name, 0) + 1
    again = sum(nbytes(graph.tensors[name]) * (times - 1) for name, times in holders.items())
    assert sum(map(weight_bytes, cut)) == weight_bytes(graph) + again
    noted = {note.split()[0] for each in cut for note in each.info.notes}
    assert noted == {name for name, times in holders.items() if times > 1}


def test_layers_are_shared_out_evenly_and_the_ends_get_no_more() -> None:
    assert [len(layers(each)) for each in rl.passes.stages(LLAMA, 4)] == [8, 8, 8, 8]
    assert [len(layers(each)) for each in rl.passes.stages(LLAMA, 5)] == [6, 7, 7, 6, 6]
    assert layers(rl.passes.stage(LLAMA, 4, 1)) == [f"layers.{at}" for at in range(8, 16)]
    assert [each.info.layers for each in rl.passes.stages(LLAMA, 4)] == [8, 8, 8, 8]


def test_the_first_stage_embeds_and_the_last_has_the_head() -> None:
    first, middle, last = rl.passes.stages(LLAMA, 3)
    assert first.nodes[0].name == "embed"
    assert last.nodes[-1].name == "head"
    assert "head" in last.outputs
    assert {"embed", "head", "norm"}.isdisjoint(node.name for node in middle.nodes)
    assert (first.info.devices.stage, first.info.devices.stages, first.name) == (
        0,
        3,
        "llama-3-8b decode, stage 1 of 3",
    )


def test_one_residual_of_the_batch_crosses_each_cut() -> None:
    cut = rl.passes.stages(LLAMA, 4)
    for before, after in pairwise(cut):
        (send,) = [node for node in before.nodes if node.op == "send"]
        (name,) = send.inputs
        assert after.tensors[name].kind == "input"
        assert before.outputs[-1] == f"{name}.sent"
        assert evaluate(nbytes(before.tensors[name]), {"B": 4}) == 4 * 4096 * 2  # B rows of hidden 4096 in bf16
    assert not [node for node in cut[-1].nodes if node.op == "send"]


def test_what_a_later_stage_reads_is_passed_on_by_those_between() -> None:
    """T5's encoder output goes to every decoder layer."""
    cut = rl.passes.stages(T5, 4)
    carried = [{name for node in each.nodes if node.op == "send" for name in node.inputs} for each in cut]
    assert carried[1] & carried[2], "what the encoder gives goes through the third stage"
    for each in cut:
        each.validate()


def test_a_stage_holds_its_own_part_of_the_cache() -> None:
    cached = [sum(tensor.kind == "cache" for tensor in each.tensors.values()) for each in rl.passes.stages(LLAMA, 4)]
    assert sum(cached) == sum(tensor.kind == "cache" for tensor in LLAMA.tensors.values())
    assert len(set(cached)) == 1


def test_a_kernel_is_not_cut_in_two() -> None:
    fused = rl.passes.fuse(LLAMA)
    labels = [{node.label for node in each.nodes} for each in rl.passes.stages(fused, 4)]
    for at, mine in enumerate(labels):
        for other in labels[at + 1 :]:
            assert mine.isdisjoint(other)
    assert (
        sum(rl.count(each, B=4, C=512).flops for each in rl.passes.stages(fused, 4))
        == rl.count(LLAMA, B=4, C=512).flops
    )


def test_the_pass_is_remembered_and_one_stage_is_the_graph() -> None:
    cut = rl.passes.stage(GPT2, 2, 1)
    assert repr(cut.history[-1]) == "stage(pp=2, index=1)"
    assert cut.history[-1].notes == ("embed.weight is replicated on stages 1 and 2",)
    assert rl.passes.stages(GPT2, 1) == (GPT2,)


def test_a_stage_can_be_estimated() -> None:
    whole = rl.estimate(GPT2, "h100-sxm", B=8, S=512)
    parts = [rl.estimate(each, "h100-sxm", B=8, S=512) for each in rl.passes.stages(GPT2, 2)]
    assert sum(part.memory.weights for part in parts) > whole.memory.weights
    assert max(part.time for part in parts) < whole.time
    assert sum(part.time for part in parts) > whole.time  # a send more


def test_by_weight_each_stage_gets_its_share() -> None:
    graph = chain(8)
    work = {node.name: 4.0 if node.name == "product7" else 1.0 for node in graph.nodes}
    cut = rl.passes.stages(graph, 2, weights=work)
    assert [[node.name for node in each.nodes if node.op != "send"] for each in cut] == [
        [f"product{at}" for at in range(5)] if first else [f"product{at}" for at in range(5, 8)]
        for first in (True, False)
    ]  # 11 in all: 5 and 6 is as near to half as can be


def test_between_nodes_the_send_says_so() -> None:
    (send,) = [node for node in rl.passes.stage(GPT2, 2, 0, nodes=2).nodes if node.op == "send"]
    assert dict(send.attrs) == {"nodes": 2}


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: rl.passes.stages(GPT2, 13), "13 pipeline stages of 12 layers whose kernels stay whole; nearest 12"),
        (lambda: rl.passes.stages(GPT2, 0), "0 pipeline stages of 12 layers whose kernels stay whole; nearest 1"),
        (
            lambda: rl.passes.stages(chain(4), 2),
            "no layers to cut at (names such as layers.0.mlp); give the work of each node",
        ),
        (lambda: rl.passes.stages(chain(4), 9, weights={"product1": 1.0}), "9 pipeline stages of 4 nodes"),
        (lambda: rl.passes.stages(chain(4), 2, weights={"other": 1.0}), "weights name no node that has any"),
        (lambda: rl.passes.stage(GPT2, 2, 2), "stage 2 of 2; allowed: 0 to 1"),
        (lambda: rl.passes.stage(GPT2, 1, 1), "stage 1 of 1; allowed: 0 to 0"),
        (lambda: rl.passes.stages(chain(3), 3, weights={"product0": 1.0}), "nearest 2"),
    ],
)
def test_what_cannot_be_cut_says_the_nearest_that_can(make: Any, text: str) -> None:
    with pytest.raises(rl.errors.UsageError) as caught:
        make()
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("stages_asked", [[2], 2.0, "2", None])
def test_a_count_that_is_no_whole_number_is_refused_after_one_that_is(stages_asked: Any) -> None:
    rl.passes.stage(GPT2, 2, 0)
    with pytest.raises(rl.errors.UsageError, match="pipeline stages of 12 layers"):
        rl.passes.stage(GPT2, stages_asked, 0)
