"""One collective: published factors and times, its algorithm, groups on nodes, and requests that cannot be met."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.analysis.collectives import timers
from roofline.cost import kernel_time
from roofline.cost.algorithms import ALGORITHMS, choices, factor
from roofline.cost.pipelines import data_parallel
from roofline.ops.registry import get_op

GIB = 2**30


def textbook(bandwidth: float = 450e9, latency: float | None = None) -> rl.Chip:
    """A device with one link of which no more is said than its rate and latency."""
    link = {"name": "link", "bandwidth": bandwidth, "latency": latency, "source": "the example"}
    return rl.Chip(name="textbook", matrix={"bf16": "1 PFLOP/s"}, memory_bandwidth="1000 TB/s", links=(link,))


def two_nodes(inside: int, nodes: int) -> rl.Cluster:
    link = {"name": "net", "bandwidth": 50e9, "latency": 5e-6, "source": "the example"}
    return rl.Cluster(name="c", chip=textbook(latency=1e-6), devices_per_node=inside, nodes=nodes, link=link)


def ideal(on: Any, op: str, size: float, devices: int, algorithm: str | None = None) -> rl.analysis.Collective:
    return rl.analysis.collective(on, op, size, devices, algorithm=algorithm, ideal=True)


# --- published: NVIDIA nccl-tests PERFORMANCE.md, Patarasuk & Yuan 2009, Shoeybi et al. 2019 (topic 12) ---------------

FACTORS = {
    8: {"all_reduce": 1.75, "all_gather": 0.875, "reduce_scatter": 0.875, "alltoall": 0.875, "broadcast": 1},
    64: {
        **dict.fromkeys(("all_gather", "reduce_scatter", "alltoall"), 0.984375),
        "all_reduce": 1.96875,
        "broadcast": 1,
    },
}


@pytest.mark.parametrize("devices", FACTORS)
def test_factors_are_what_a_device_sends(devices: int) -> None:
    for op, published in FACTORS[devices].items():
        found = ideal(textbook(), op, GIB, devices)
        assert found.wire_bytes == pytest.approx(published * GIB, rel=1e-6), op
        assert found.seconds == pytest.approx(published * GIB / 450e9, rel=1e-6), op
        assert found.busbw == pytest.approx(450e9, rel=1e-6), op


@pytest.mark.parametrize(
    ("devices", "steps", "time", "with_latency"),
    [(8, 14, 0.004175662649, 0.004189662649), (64, 126, 0.00469762048, 0.00482362048)],
)
def test_the_ring_all_reduce_of_a_gibibyte(devices: int, steps: int, time: float, with_latency: float) -> None:
    bare, late = textbook(), textbook(latency=1e-6)
    assert ideal(bare, "all_reduce", GIB, devices).seconds == pytest.approx(time, rel=1e-6)
    found = ideal(late, "all_reduce", GIB, devices)
    assert (found.steps, found.algorithm) == (steps, "ring")
    assert found.seconds == pytest.approx(with_latency, rel=1e-6)


def test_latency_dwarfs_bandwidth_in_a_decode_step_of_tensor_parallel_layers() -> None:
    """80 layers of hidden 8192 among 8, one token: 2 all-reduces a layer."""
    collectives, size = 2 * 80, 8192 * 2
    bare = ideal(textbook(300e9), "all_reduce", size, 8)
    assert bare.bytes == 16384
    assert collectives * bare.wire_bytes == pytest.approx(4587520, rel=1e-6)
    assert collectives * bare.seconds == pytest.approx(1.529173333e-05, rel=1e-6)
    late = ideal(textbook(300e9, 1e-5), "all_reduce", size, 8, "one_shot")
    assert collectives * late.steps * 1e-5 == pytest.approx(0.0016, rel=1e-6)
    assert collectives * late.seconds > 0.0016


# --- algorithms by hand -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("algorithm", "steps", "sent"),
    [("ring", 14, 1.75), ("tree", 6, 2), ("one_shot", 1, 7), ("two_shot", 2, 1.75)],
)
def test_an_all_reduce_among_eight(algorithm: str, steps: int, sent: float) -> None:
    found = ideal(textbook(latency=1e-6), "all_reduce", 8e6, 8, algorithm)
    assert (found.steps, found.wire_bytes, found.node_bytes) == (steps, sent * 8e6, 0)
    assert found.seconds == pytest.approx(steps * 1e-6 + sent * 8e6 / 450e9, rel=1e-12)


@pytest.mark.parametrize(
    ("algorithm", "steps", "across", "here", "there"),
    [
        # 16 devices: 15 steps twice of which 3 leave the node; each card sends 2 * 15/16 of a quarter.
        ("ring", 30, 6, 2 * 15 / 16 * 3 / 4, 2 * 15 / 16 / 4),
        # A chain of 4 in the node, a tree of 4 nodes, up and down; a node with two below it sends twice the message.
        ("tree", 2 * (3 + 2), 4, 2 * 3 / 4, 2 / 4),
        # Reduce-scatter and all-gather of 4 in the node, a ring of a quarter among 4 nodes.
        ("hierarchical", 2 * 3 + 2 * 3, 6, 2 * 3 / 4, 2 * 3 / 4 / 4),
    ],
)
def test_an_all_reduce_on_four_nodes_of_four(
    algorithm: str, steps: int, across: int, here: float, there: float
) -> None:
    size = 16e6
    found = ideal(two_nodes(4, 4), "all_reduce", size, 16, algorithm)
    assert (found.nodes, found.steps, found.node_steps) == (4, steps, across)
    assert (found.wire_bytes, found.node_bytes) == pytest.approx((here * size, there * size))
    bytes_here, bytes_there = here * size / 450e9, there * size / 50e9
    moving = bytes_here + bytes_there if algorithm == "hierarchical" else max(bytes_here, bytes_there)
    assert found.seconds == pytest.approx((steps - across) * 1e-6 + across * 5e-6 + moving)


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
def test_half_an_all_reduce_passes_once(op: str) -> None:
    both, once = (ideal(two_nodes(4, 4), what, 16e6, 16, "ring") for what in ("all_reduce", op))
    assert (once.steps, once.wire_bytes, once.node_bytes) == (
        both.steps / 2, both.wire_bytes / 2, both.node_bytes / 2,
    )  # fmt: skip


def test_an_all_to_all_sends_most_of_it_out_of_the_node() -> None:
    found = ideal(two_nodes(4, 4), "alltoall", 16e6, 16)
    assert (found.wire_bytes, found.node_bytes) == (3e6, 12e6)


def test_a_send_goes_to_the_next_device_or_node() -> None:
    near, far = (
        rl.analysis.collective(two_nodes(4, 4), "send", 16e6, 2, stride=stride, ideal=True) for stride in (1, 4)
    )
    assert (near.nodes, near.seconds) == (1, pytest.approx(1e-6 + 16e6 / 450e9))
    assert (far.nodes, far.seconds) == (2, pytest.approx(5e-6 + 16e6 / 50e9))


def test_a_group_of_one_device_in_each_node_has_its_card_only() -> None:
    found = rl.analysis.collective(two_nodes(4, 4), "all_reduce", 16e6, 4, stride=4, algorithm="ring", ideal=True)
    assert (found.nodes, found.wire_bytes, found.node_bytes) == (4, 0, 1.5 * 16e6)
    assert found.seconds == pytest.approx(6 * 5e-6 + 1.5 * 16e6 / 50e9)


# --- other people's measurements across nodes ------------------------------------------------------------------------


def nodes_of(chip: str, inside: int, nodes: int, adapter: float) -> rl.Cluster:
    link = {"name": "adapter", "bandwidth": adapter, "source": "as measured"}
    return rl.Cluster(name="measured", chip=chip, devices_per_node=inside, nodes=nodes, link=link)


HDR_FOR_TWO, NDR_FOR_TWO, NDR = 200e9 / 8 / 2, 400e9 / 8 / 2, 400e9 / 8

#: All-reduces that users and authors of NCCL report in its issues: where, bytes, devices, what was forced, and seconds
#: or bandwidth on the bus [byte/s].
REPORTED: dict[str, tuple[Any, float, int, str | None, float, float]] = {
    "nccl#652, a tree": (nodes_of("a100-40gb-sxm", 8, 32, HDR_FOR_TWO), 64, 256, None, 63.5e-6, 0),
    "nccl#812": (rl.cluster("dgx-a100").replace(nodes=8), 8 * GIB, 64, None, 0, 192e9),
    "nccl#1368, rings": (nodes_of("h100-sxm", 8, 5, NDR_FOR_TWO), GIB, 40, "ring", 0, 190e9),
    "nccl#1368, trees": (nodes_of("h100-sxm", 8, 5, NDR_FOR_TWO), GIB, 40, "tree", 0, 150e9),
    "nccl-tests#119": (nodes_of("a100-40gb-sxm", 8, 3, HDR_FOR_TWO), 2**27, 24, None, 0, 96e9),
    "nccl#1357, 32 MiB": (nodes_of("h100-sxm", 1, 2, NDR), 2**25, 2, "tree", 812.3e-6, 0),
    "nccl#1357, 2 MiB": (nodes_of("h100-sxm", 1, 2, NDR), 2**21, 2, "tree", 113.2e-6, 0),
    "nccl-tests#290": ("h100-sxm", 8 * GIB, 8, "in_switch", 0, 476e9),
    "coreweave/nccl-tests#43, 1 GiB": ("gb200-nvl72", GIB, 72, None, 2924.7e-6, 0),
    "coreweave/nccl-tests#43, 8 GiB": ("gb200-nvl72", 8 * GIB, 72, None, 20006e-6, 0),
    "nccl-tests#283": (rl.cluster("hgx-h200").replace(nodes=248), 2**29, 1984, None, 0, 350e9),
}


@pytest.mark.parametrize("where", REPORTED)
def test_what_others_measured_lies_in_the_range_and_near_the_expected(where: str) -> None:
    on, size, devices, algorithm, seconds, busbw = REPORTED[where]
    found = rl.analysis.collective(on, "all_reduce", size, devices, algorithm=algorithm)
    measured = seconds or found.seconds * found.busbw / busbw
    assert found.low <= measured <= found.high
    assert found.seconds == pytest.approx(measured, rel=0.3)


def test_most_of_what_others_measured_is_within_ten_percent() -> None:
    errors = []
    for where, (on, size, devices, algorithm, seconds, busbw) in REPORTED.items():
        if where == "nccl-tests#290":  # the share of the link in the switch was taken from it
            continue
        found = rl.analysis.collective(on, "all_reduce", size, devices, algorithm=algorithm)
        errors.append(abs(found.seconds / seconds - 1) if seconds else abs(busbw / found.busbw - 1))
    assert np.median(errors) < 0.07
    assert np.mean(errors) < 0.11


# --- which one is taken -----------------------------------------------------------------------------------------------


def test_small_messages_go_in_one_shot_larger_ones_in_two_and_more_by_what_the_library_has() -> None:
    sizes = np.array([8e3, 1e6, 1e9])
    assert list(rl.analysis.collective("a100-80gb-sxm", "all_reduce", sizes, 8, algorithm="fastest").algorithm) == [
        "one_shot", "two_shot", "two_shot",
    ]  # fmt: skip
    assert set(rl.analysis.collective("a100-80gb-sxm", "all_reduce", sizes, 8).algorithm) == {"ring"}


def test_serving_stacks_read_small_messages_from_all_peers_where_they_reach_them() -> None:
    """vllm-project/vllm, custom_all_reduce.py: up to 8 MiB, among devices that are fully connected, or two."""
    sizes = np.array([8e3, 1e6, 1e9])

    def chosen(chip: str, devices: int) -> list[str]:
        return list(rl.analysis.collective(chip, "all_reduce", sizes, devices, algorithm="serving").algorithm)

    assert chosen("a100-80gb-sxm", 8) == ["one_shot", "two_shot", "ring"]
    assert chosen("l40s", 2)[0] == "one_shot"
    assert set(chosen("l40s", 4)) == {"ring"} == set(chosen("tpu-v5p", 8))
    spans = rl.analysis.collective("dgx-a100", "all_reduce", 8e3, 16, algorithm="serving")
    assert spans.algorithm == rl.analysis.collective("dgx-a100", "all_reduce", 8e3, 16).algorithm


def test_a_decode_step_talks_as_serving_stacks_do_and_a_step_of_training_by_nccl() -> None:
    def ways(phase: str, **options: str) -> set[object]:
        graph = rl.passes.shard(rl.model("llama-3.2-1b", phase=phase, layers=1), tp=2, **options)
        return {dict(node.attrs).get("algorithm") for node in graph.nodes if node.op == "all_reduce"}

    assert ways("decode") == ways("prefill") == {"serving"}
    assert ways("train") == {None}
    assert ways("decode", algorithm="nccl") == {"nccl"}


def test_in_a_graph_as_measured_between_matmuls() -> None:
    """What an all-reduce of two H200 adds to a step, of which nothing was fitted (h200-sxm/collectives.csv)."""
    path = Path(__file__).resolve().parents[1] / "measurements" / "h200-sxm" / "collectives.csv"
    errors: dict[str, list[float]] = {}
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            found = rl.analysis.collective(
                "h200-sxm", "all_reduce", int(row["bytes"]), int(row["devices"]), algorithm=row["algorithm"]
            )
            errors.setdefault(row["algorithm"], []).append(found.seconds * 1e6 / float(row["between_us"]) - 1)
    assert {name: len(each) for name, each in errors.items()} == {"nccl": 7, "one_shot": 7, "two_shot": 7}
    assert max(map(abs, errors["nccl"] + errors["two_shot"])) < 0.17
    assert max(map(abs, errors["one_shot"][:5])) < 0.17  # larger messages go in two shots


def test_switches_that_add_are_used_where_the_chip_has_them_and_the_message_is_large() -> None:
    assert rl.analysis.collective("h100-sxm", "all_reduce", "1 GiB", 8, algorithm="fastest").algorithm == "in_switch"
    assert "in_switch" not in choices("all_reduce", "fastest")
    with pytest.raises(rl.errors.UsageError, match=r"no algorithm 'in_switch' \(no switch of this chip adds\)"):
        rl.analysis.collective("mi300x", "all_reduce", "1 GiB", 8, algorithm="in_switch")


def test_across_nodes_a_tree_takes_small_messages_and_the_rings_large_ones_of_many() -> None:
    selene = rl.cluster("dgx-a100").replace(nodes=64)
    small, large = (rl.analysis.collective(selene, "all_reduce", size, 512) for size in ("64 kB", "8 GB"))
    assert (small.algorithm, large.algorithm) == ("tree", "ring")
    assert small.node_steps == 12  # up and down a tree of 64 nodes


def test_the_plain_time_is_the_time_of_the_kernel_in_a_graph() -> None:
    b = rl.ops.Builder("one", "bf16")
    y = b.op("all_reduce", b.input("x", (2**20,)), devices=16, nodes=2)
    chip = rl.cluster("dgx-h100").device
    row = rl.count(b.graph([y])).rows[0]
    found = rl.analysis.collective("dgx-h100", "all_reduce", 2**21, 16)
    time = kernel_time(row, chip)
    assert found.seconds == float(time.expected)
    assert time.calibrated == "prior"
    assert found.low < found.seconds < found.high


def test_in_a_node_by_the_librarys_choice_is_measured_and_the_rest_is_not() -> None:
    b = rl.ops.Builder("one", "bf16")
    x = b.input("x", (2**20,))
    for algorithm, known in (("", "measured"), ("ring", "measured"), ("one_shot", "prior"), ("fastest", "prior")):
        graph = b.graph([b.op("all_reduce", x, devices=8, algorithm=algorithm, name=f"r_{algorithm}")])
        times = [kernel_time(row, rl.chip("h100-sxm")) for row in rl.count(graph).rows]
        assert times[-1].calibrated == known, algorithm


def test_an_array_of_sizes_is_each_of_them() -> None:
    sizes = np.array([1e3, 1e6, 1e9])
    found = rl.analysis.collective("dgx-h100", "all_reduce", sizes, 32)
    for at, size in enumerate(sizes):
        one = rl.analysis.collective("dgx-h100", "all_reduce", float(size), 32)
        for name in ("seconds", "low", "high", "floor", "wire_bytes", "node_bytes", "steps", "busbw"):
            assert getattr(found, name)[at] == pytest.approx(getattr(one, name), rel=1e-12)
        assert found.algorithm[at] == one.algorithm


def test_what_a_framework_launches_waits_for_its_queue() -> None:
    plain, queued = (
        rl.analysis.collective("h100-sxm", "all_reduce", "4 KiB", 2, queued=queued) for queued in (False, True)
    )
    assert plain.seconds < 10e-6 < 40e-6 < queued.seconds


def test_timers_are_what_a_data_parallel_step_takes() -> None:
    of = timers("dgx-h100", 4, stride=8)
    assert of["all_gather"](1e9) == rl.analysis.collective("dgx-h100", "all_gather", 1e9, 4, stride=8).seconds
    step = data_parallel(16e9, 16e9, 3, forward=0.2, backward=0.4, layers=32, **of)
    assert 0 < step.exposed < step.seconds
    alone = data_parallel(16e9, 16e9, 1, forward=0.2, backward=0.4, **timers("dgx-h100", 1))
    assert (alone.seconds, alone.exposed) == (0.0, 0.0)


def test_it_says_itself() -> None:
    found = rl.analysis.collective("dgx-h100", "all_reduce", "1 GB", 16)
    assert str(found).startswith("all_reduce of 1 GB among 16 on 2 nodes: ")
    assert found.algorithm in ("ring", "tree")
    assert f"by {found.algorithm}" in str(found)


def test_send_is_an_operator_of_any_shape() -> None:
    assert get_op("send").output([(4, 8, 16)], {}) == (4, 8, 16)
    assert get_op("send").work([(4, 8)], {"nodes": 2}).flops == 0
    assert factor("send", 2) == 1


@pytest.mark.parametrize(
    ("build", "error", "text"),
    [
        (
            lambda: rl.analysis.collective("h100-sxm", "allreduce", 1e6, 8),
            rl.errors.UsageError,
            "did you mean all_reduce?",
        ),
        (
            lambda: rl.analysis.collective("h100-sxm", "all_reduce", 1e6, 1),
            rl.errors.UsageError,
            "a group of 1 devices; allowed: 2 or more",
        ),
        (
            lambda: rl.analysis.collective("h100-sxm", "send", 1e6, 4),
            rl.errors.UsageError,
            "a group of 4 devices; allowed: 2",
        ),
        (
            lambda: rl.analysis.collective("h100-sxm", "all_reduce", 0, 8),
            rl.errors.UsageError,
            "a message of 0 bytes; allowed: 1 or more",
        ),
        (
            lambda: rl.analysis.collective("h100-sxm", "all_reduce", float("nan"), 8),
            rl.errors.UsageError,
            "allowed: 1 or more",
        ),
        (
            lambda: rl.analysis.collective("h100-sxm", "all_reduce", 1e6, 8, algorithm="rung"),
            rl.errors.UsageError,
            "all_reduce in one node: no algorithm 'rung'; allowed: ring, tree, one_shot, two_shot, in_switch, nccl, "
            "serving, fastest; did you mean ring?",
        ),
        (
            lambda: rl.analysis.collective("dgx-h100", "all_reduce", 1e6, 16, algorithm="one_shot"),
            rl.errors.UsageError,
            "no algorithm 'one_shot'; allowed: ring, tree, hierarchical, nccl, serving, fastest",
        ),
        (
            lambda: rl.analysis.collective("dgx-h100", "all_reduce", 1e6, 64),
            rl.errors.UsageError,
            "a cluster of 8 nodes",
        ),
        (
            lambda: rl.analysis.collective("cerebras-wse-3", "all_reduce", 1e6, 8),
            rl.errors.MissingFigure,
            "no published link",
        ),
    ],
)
def test_what_cannot_be_is_one_clear_line(build: Any, error: type[rl.RooflineError], text: str) -> None:
    with pytest.raises(error) as caught:
        build()
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_algorithm_is_some_collectives_choice() -> None:
    ops = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "alltoall", "send")
    reach = {name for op in ops for nodes in (1, 2) for name in choices(op, "fastest", nodes, in_switch=True)}
    assert reach == set(ALGORITHMS)
