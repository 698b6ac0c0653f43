"""Tensor and sequence parallelism of training steps: collectives of both directions, and what stays between them."""

from __future__ import annotations

from collections import Counter

import pytest

import roofline as rl
from roofline.ops.communication import COLLECTIVES

LAYERS = 3


def collectives(graph: rl.Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes if node.op in COLLECTIVES)


def in_layers(graph: rl.Graph) -> list[int]:
    """Elements of each all-reduce of a layer, at one sequence of 2048 tokens."""
    found = [node for node in graph.nodes if node.op == "all_reduce" and node.name.startswith("layers.")]
    return [graph.tensors[node.inputs[0]].shape[0].at({"B": 1, "S": 2048}) for node in found]


def test_golden_all_reduces_of_a_layer_in_both_directions() -> None:
    """golden.yaml, tp-allreduce-per-layer (Shoeybi et al. 2019: 2 and 4) and megatron2021-bubble-and-comm (Narayanan
    et al. 2021, section 3.2: 8 b s h (t-1)/t elements, here h = 12288 and t = 8).
    """
    forward = rl.passes.shard(rl.model("gpt-3-175b", phase="train", layers=LAYERS), tp=8)
    step = rl.passes.backward(forward)
    assert len(in_layers(forward)) == 2 * LAYERS
    assert len(in_layers(step)) == 4 * LAYERS
    sent = [
        rl.analysis.collective("a100-80gb-sxm", "all_reduce", each, 8, algorithm="ring").wire_bytes
        for each in in_layers(step)
    ]
    assert sum(sent) / LAYERS == pytest.approx(176160768, rel=1e-6)


def test_the_loss_exchanges_three_numbers_a_row() -> None:
    """Largest logit, the label's, sum of exponentials; logits themselves stay where they are."""
    step = rl.passes.backward(rl.passes.shard(rl.model("gpt2", phase="train", layers=1), tp=4))
    sizes = [step.tensors[node.inputs[0]].shape[0] for node in step.nodes if node.op == "all_reduce"]
    rows = [size for size in sizes if size.at({"B": 2, "S": 8}) == 16]
    assert len(rows) == 3
    # A sum of embeddings and four of a layer, and that of the gradient that the shares of the head give back.
    assert len(sizes) == 3 + 1 + 4 + 1
    assert "all_gather" not in collectives(step)


@pytest.mark.parametrize("tp", [2, 8])
def test_products_of_a_step_are_shared_out(tp: int) -> None:
    graph = rl.model("llama-3-8b", phase="train", layers=2)
    whole, device = (
        rl.count(rl.passes.backward(each), B=1, S=256).flops for each in (graph, rl.passes.shard(graph, tp=tp))
    )
    assert tp * device == whole


@pytest.mark.parametrize(
    ("name", "heads", "width"), [("megatron-22b", 64, 6144), ("megatron-530b", 128, 20480), ("megatron-1t", 160, 25600)]
)
def test_activations_of_a_layer(name: str, heads: int, width: int) -> None:
    """Korthikanti et al. 2022, equations 2 and 4: tensor parallelism, and sequence parallelism that keeps a share of
    what it gathers and gathers it again (section 4.2.2).
    """
    s, b, t = 2048, 1, 8
    graph = rl.model(name, phase="train", layers=2)
    plain, positions = rl.passes.shard(graph, tp=t), rl.passes.shard(graph, tp=t, sp=True)
    scores = 5 * heads * s / width
    layer = rl.passes.saved(rl.passes.backward(plain), B=b, S=s)["layers.1"]
    assert layer == pytest.approx(s * b * width * (10 + 24 / t + scores / t), rel=1e-6)
    layer = rl.passes.saved(rl.passes.backward(positions), B=b, S=s)["layers.1"]
    assert layer == pytest.approx(s * b * width * (34 + scores) / t, rel=1e-6)


def test_positions_put_the_same_bytes_on_the_wire_in_both_directions() -> None:
    graph = rl.model("gpt2", phase="train", layers=2)
    step = rl.passes.backward(rl.passes.shard(graph, tp=4, sp=True))
    # Five gathers forward and five backward; those of the forward once more instead of being kept (Korthikanti et al.
    # 2022, section 4.2.2).
    assert collectives(step) == {"reduce_scatter": 10, "all_gather": 15, "all_reduce": 3}
