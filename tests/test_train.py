"""A step of training on many devices: published steps, parts that add up, layouts that cannot be."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import roofline as rl
from roofline.cost.pipelines import bubble

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))
import megatron_table

ROWS = megatron_table.rows()


def step(**layout: object) -> rl.training.TrainingStep:
    """A small GPT on a DGX."""
    given: dict[str, object] = {"batch": 16, "S": 256, "mode": "graph", **layout}
    return rl.training.train(
        rl.model("megatron-22b", phase="train", layers=8, hidden=1024, heads=16), "dgx-a100", **given
    )  # type: ignore[arg-type]


# --- published ---


@pytest.fixture(scope="module")
def steps() -> list[rl.training.TrainingStep]:
    return [megatron_table.step(row) for row in ROWS]


@pytest.fixture(scope="module")
def errors(steps: list[rl.training.TrainingStep]) -> list[float]:
    return [abs(step.time / float(row["time_s"]) - 1) for step, row in zip(steps, ROWS, strict=True)]


def test_megatron_s_steps_are_within_six_per_cent_on_average(errors: list[float]) -> None:
    assert len(errors) == 8
    assert sum(errors) / len(errors) < 0.06


def test_no_step_of_megatron_is_far_off(errors: list[float]) -> None:
    assert max(errors) < 0.10


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}-{row['recompute']}")
def test_activations_kept_are_those_of_the_paper(row: dict[str, str]) -> None:
    ours, paper = megatron_table.kept(row)
    assert ours == pytest.approx(paper, rel=1e-9)


def test_megatron_s_devices_have_room_for_what_they_ran(steps: list[rl.training.TrainingStep]) -> None:
    assert all(step.fits for step in steps)


def test_data_parallel_training_of_gpt3_takes_a_month() -> None:
    """34 days on 1024 A100 at 140 TFLOP/s (Narayanan et al. 2021, section 5.1)."""
    graph = rl.model("gpt-3-175b", phase="train", vocab=51200, attention="naive", dropout=True)
    found = rl.training.train(
        graph, rl.cluster("dgx-a100").replace(nodes=128), batch=1536, micro_batch=1, tp=8, pp=8, dp=16, interleave=1,
        recompute="full", mode="graph", S=2048,
    )  # fmt: skip
    assert found.devices == 1024
    assert found.days(300e9) == pytest.approx(34, rel=0.2)


# --- how a step is made up ---


def test_parts_add_up_and_lie_in_the_range() -> None:
    found = step(tp=2, pp=2, dp=2, micro_batch=1, recompute="selective")
    assert found.time == pytest.approx(sum(found.seconds.values()))
    assert found.low <= found.time <= found.high
    assert all(value >= 0 for value in found.seconds.values())
    assert found.memory.total == pytest.approx(sum(found.memory.parts().values()))
    assert found.record()["time_s"] == found.time
    assert found.frame()["share"].sum() == pytest.approx(1)


def test_one_device_is_the_estimate_of_its_program() -> None:
    whole = rl.passes.training_graph(rl.model("gpt2", phase="train"), precision="amp-bf16")
    est = rl.estimate(whole, "h100-sxm", mode="graph", B=8, S=1024)
    found = rl.training.train("gpt2", "h100-sxm", batch=8, S=1024, precision="amp-bf16", mode="graph")
    assert found.time == pytest.approx(est.time, rel=0.005)
    for part in ("weights", "gradients", "optimizer"):
        assert getattr(found.memory, part) == pytest.approx(getattr(est.memory, part), rel=1e-6)


def test_the_bubble_is_the_formula_s() -> None:
    """Uneven ends (embedding, head) aside: a chain of equal layers with next to no vocabulary."""
    graph = rl.model("megatron-22b", phase="train", layers=16, hidden=1024, heads=16, vocab=8, positions=256)
    found = rl.training.train(graph, "dgx-a100", batch=32, micro_batch=1, pp=4, mode="graph", S=256)
    work = sum(found.seconds[part] for part in ("forward", "backward", "recompute", "communication"))
    assert found.seconds["bubble"] / work == pytest.approx(bubble(4, 32), rel=0.1)


def test_interleaving_shrinks_the_bubble() -> None:
    once, twice = (step(pp=4, micro_batch=1, interleave=v) for v in (1, 2))
    assert twice.seconds["bubble"] == pytest.approx(once.seconds["bubble"] / 2, rel=0.15)


def test_zero_divides_memory_and_changes_no_flops() -> None:
    stages = [step(dp=4, zero=zero) for zero in range(4)]
    need = [found.memory for found in stages]
    assert need[1].optimizer == pytest.approx(need[0].optimizer / 4)
    assert need[2].gradients == pytest.approx(need[0].gradients / 4)
    assert need[3].weights == pytest.approx(need[0].weights / 4)
    assert len({found.model_flops for found in stages}) == 1
    assert stages[1].seconds["optimizer"] < stages[0].seconds["optimizer"]


def test_flops_do_not_depend_on_the_layout() -> None:
    layouts = ({}, {"tp": 4}, {"pp": 4, "micro_batch": 1}, {"dp": 4}, {"tp": 2, "pp": 2, "dp": 2, "micro_batch": 1})
    for layout in layouts:
        assert step(**layout).model_flops == pytest.approx(step().model_flops, rel=1e-9), layout


def test_autocast_is_tensor_parallel_too() -> None:
    alone, shared = (step(precision="amp-fp16", tp=tp) for tp in (1, 4))
    assert shared.hardware_flops == pytest.approx(alone.hardware_flops, rel=1e-9)
    assert shared.memory.gradients == pytest.approx(alone.memory.gradients / 4, rel=0.05)
    graph = shared.virtual_stages[0].estimate.graph
    products = [node for node in graph.nodes if node.op in ("linear", "matmul")]
    assert {graph.tensors[name].dtype for node in products for name in node.inputs[:2]} == {"fp16"}


def test_recomputation_trades_time_for_memory() -> None:
    none, selective, full = (step(recompute=how) for how in ("none", "selective", "full"))
    assert none.memory.activations > selective.memory.activations > full.memory.activations
    assert none.time < selective.time < full.time
    assert none.hfu == pytest.approx(none.mfu, rel=0.01)
    forward = [
        rl.count(rl.model("megatron-22b", phase="train", layers=n, hidden=1024, heads=16), B=1, S=256).flops
        for n in (8, 9)
    ]
    layers = 8 * (forward[1] - forward[0])
    assert full.hardware_flops / full.model_flops == pytest.approx(1 + layers / forward[0] / 3)


def test_optimizers_keep_what_they_keep() -> None:
    parameters = rl.model("megatron-22b", phase="train", layers=8, hidden=1024, heads=16).parameters
    for name, each in (("adamw", 12), ("momentum", 8), ("adam8bit", 6), ("sgd", 4)):
        assert step(optimizer=name).memory.optimizer == pytest.approx(each * parameters, rel=1e-3), name
    assert step(optimizer="adafactor").memory.optimizer < 4.1 * parameters


def test_gradients_travel_beside_the_backward_where_they_may() -> None:
    hidden, open_ = step(dp=8), step(dp=8, overlap=False)
    assert hidden.seconds["data_parallel"] < open_.seconds["data_parallel"]


def test_experts_and_their_groups() -> None:
    graph = rl.model("mixtral-8x7b", phase="train", layers=2)
    found = rl.training.train(graph, "dgx-h100", batch=8, dp=4, ep=4, mode="graph", S=512)
    assert found.seconds["communication"] > 0
    assert (
        found.memory.weights < rl.training.train(graph, "dgx-h100", batch=8, dp=4, mode="graph", S=512).memory.weights
    )


def test_tokens_travel_beside_another_micro_batch_where_they_may() -> None:
    """DualPipe (arXiv 2412.19437, section 3.2.1): all-to-alls hide behind as much computation, nothing else does."""
    graph = rl.model("mixtral-8x7b", phase="train", layers=2)
    how: dict[str, Any] = {"batch": 16, "dp": 4, "ep": 4, "mode": "graph", "S": 512}
    in_turn, beside = (
        rl.training.train(graph, "dgx-h100", **how, micro_batch=1, overlap_experts=each) for each in (False, True)
    )
    hidden = in_turn.seconds["communication"] - beside.seconds["communication"]
    busy = sum(in_turn.seconds[part] for part in ("forward", "backward", "recompute"))
    assert 0 < hidden <= busy
    assert in_turn.time - beside.time == pytest.approx(hidden)
    assert beside.seconds["communication"] == pytest.approx(max(in_turn.seconds["communication"] - busy, 0), abs=1e-9)


def test_gradients_that_are_added_up_apart_take_three_sweeps_a_micro_batch() -> None:
    """deepspeed/runtime/bf16_optimizer.py, ``_update_hp_grad``: sum and gradient are read, the sum is written."""
    fused, apart = (step(batch=16, micro_batch=1, accumulation=way) for way in ("fused", "separate"))
    parameters = rl.model("megatron-22b", phase="train", layers=8, hidden=1024, heads=16).parameters
    least = 16 * parameters * 4 / rl.chip("a100-80gb-sxm").bandwidth  # each matmul reads the sum in both
    assert apart.seconds["backward"] - fused.seconds["backward"] > least
    assert apart.seconds["forward"] == pytest.approx(fused.seconds["forward"])
    once = [step(batch=2, micro_batch=2, accumulation=way).time for way in ("fused", "separate")]
    assert once[0] == once[1]


def test_images_train_too() -> None:
    found = rl.training.train("resnet50", "h100-sxm", batch=128, precision="amp-bf16", optimizer="momentum")
    assert found.item == "image"
    assert found.items == 128
    assert found.throughput == pytest.approx(128 / found.time)


# --- what cannot be ---


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ({"overlap_experts": True}, "give ep=2 or more and two micro-batches or more, not ep=1 and 1"),
        ({"accumulation": "fuse"}, "accumulation='fuse'"),
        ({"batch": 10, "dp": 4, "micro_batch": 1}, "the nearest: 8 or 12"),
        ({"pp": 3, "interleave": 2, "batch": 16, "micro_batch": 1}, "nearest 15 or 18"),
        ({"pp": 16, "micro_batch": 1}, "nearest 8"),
        ({"tp": 3}, "tp=3"),
        ({"zero": 5}, "allowed: 0, 1, 2, 3"),
        ({"zero": 1}, "dp=2 or more"),
        ({"dp": 4, "ep": 3}, "fits: 1, 2, 4"),
        ({"interleave": 2}, "pp=2 or more"),
        ({"recompute": "selectiv"}, "did you mean selective"),
        ({"optimizer": "adam"}, "did you mean adamw"),
        ({"precision": "bf-16"}, "did you mean bf16"),
        ({"tp": 8, "dp": 8}, "64 devices needed"),
        ({"batch": 0}, "a whole number from 1"),
        ({"micro_batch": True}, "a whole number from 1"),
        ({"micro_batch": 0}, "a whole number from 1"),
        ({"tp": 2, "sp": True, "S": 255}, "the nearest: 254 or 256"),
        ({"sp": True}, "give tp=2"),
    ],
)
def test_a_layout_that_cannot_be_names_the_nearest(layout: dict[str, object], words: str) -> None:
    with pytest.raises(rl.RooflineError) as caught:
        step(**layout)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_program_without_a_batch_is_refused() -> None:
    fixed = rl.model("gpt2", phase="train", layers=1).bind(B=4)
    with pytest.raises(rl.errors.UsageError, match="no symbol B"):
        rl.training.train(fixed, "h100-sxm", batch=4, S=128)


def test_a_program_with_a_backward_is_refused() -> None:
    with pytest.raises(rl.errors.UsageError, match="has a backward already"):
        rl.training.train(rl.passes.backward(rl.model("gpt2", phase="train", layers=1)), "h100-sxm", batch=4, S=128)


def test_no_tokens_take_no_time() -> None:
    with pytest.raises(rl.errors.UsageError, match="positive number"):
        step().days(0)


# --- stages of a pipeline ---


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_a_stage_sends_its_output_and_keeps_what_it_was_sent(recompute: str) -> None:
    graph = rl.model("megatron-22b", phase="train", layers=8, hidden=1024, heads=16)
    step = rl.training.train(
        graph, "dgx-a100", batch=8, micro_batch=1, pp=4, recompute=recompute, S=512, mode="compiled"
    )
    whole = 2 * 512 * 1024  # 2 s b h bytes
    first, middle, *_, last = step.virtual_stages
    assert (first.sent, middle.sent, last.sent) == (whole, whole, 0)
    if recompute == "full":
        assert middle.saved == 2 * whole  # of two layers their inputs, one of them from the stage before
    assert middle.inputs == whole + 512**2  # the gradient that comes back, the mask


@pytest.mark.parametrize("mode", ["graph", "compiled"])
def test_full_recomputation_holds_one_layer_at_a_time(mode: str) -> None:
    how = {"batch": 4, "micro_batch": 1, "recompute": "full", "S": 512, "mode": mode}
    few, many = (
        rl.training.train(rl.model("gpt2", phase="train", layers=n), "a100-80gb-sxm", **how).virtual_stages[0]
        for n in (3, 12)
    )
    assert many.transient < 1.02 * few.transient


def test_buckets_grow_with_the_copies() -> None:
    """One bucket of 25 MB among 64 nodes is latency: Megatron-core's are 256 MB there."""
    on = rl.cluster("dgx-h100").replace(nodes=64)
    how = {"batch": 64, "micro_batch": 1, "tp": 8, "sp": True, "dp": 64, "zero": 1, "S": 2048, "mode": "graph"}
    step = rl.training.train(rl.model("llama-3-70b", phase="train", layers=8), on, overlap=False, **how)
    held = step.virtual_stages[0].footprint.dense
    wire = (held.gradients + held.weights) * 63 / 64 / on.device.links[-1].bandwidth
    assert wire < step.seconds["data_parallel"] < 1.5 * wire


def test_autocast_goes_with_tensor_parallelism() -> None:
    how = {"batch": 8, "micro_batch": 2, "S": 256, "mode": "graph", "precision": "amp-bf16"}
    one, two = (rl.training.train("gpt2", "dgx-h100", tp=tp, **how) for tp in (1, 2))
    assert two.memory.total < 0.7 * one.memory.total
    assert {"fp32", "bf16"} <= {t.dtype for t in two.virtual_stages[0].forward_graph.tensors.values()}


@pytest.mark.parametrize(("pp", "interleave"), [(3, 1), (5, 1), (6, 1), (3, 2), (2, 5)])
def test_stages_that_differ_by_a_layer_do_the_work_of_the_model(pp: int, interleave: int) -> None:
    how = {"batch": 30, "micro_batch": 1, "S": 256, "mode": "graph"}
    graph = rl.model("llama-3-8b", phase="train", layers=16)
    whole = rl.training.train(graph, "dgx-h100", **how)
    parts = rl.training.train(graph, "dgx-h100", pp=pp, interleave=interleave, **how)
    assert parts.model_flops == whole.model_flops
    each = rl.training.train(rl.model("llama-3-8b", phase="train", layers=-(-16 // pp)), "dgx-h100", **how)
    busy = sum(parts.seconds[part] for part in ("forward", "backward"))
    assert busy < sum(each.seconds[part] for part in ("forward", "backward"))  # which has both embedding and head
    assert busy > sum(whole.seconds[part] for part in ("forward", "backward")) / pp


def test_uneven_chunks_need_the_memory_of_their_layers() -> None:
    graph = rl.model("llama-3-8b", phase="train", layers=13)
    how = {"batch": 16, "micro_batch": 1, "pp": 4, "S": 256, "mode": "graph"}
    one, three = (rl.training.train(graph, "dgx-h100", interleave=v, **how) for v in (1, 3))
    assert three.memory.weights < 1.01 * one.memory.weights


def test_an_estimate_of_the_phase_train_says_that_it_is_the_forward_alone() -> None:
    forward = rl.estimate("gpt2", "h100-sxm", phase="train", batch=8, seq=128)
    assert any(note.startswith("backward and update") for note in forward.not_modelled)
    whole = rl.passes.training_graph(rl.model("gpt2", phase="train"))
    est = rl.estimate(whole, "h100-sxm", batch=8, seq=128)
    assert not any(note.startswith("backward and update") for note in est.not_modelled)
    step = rl.training.train("gpt2", "h100-sxm", batch=8, seq=128, precision="fp32")
    assert forward.time < step.time
