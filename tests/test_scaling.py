"""The same program on more and more devices."""

from __future__ import annotations

import json

import pytest

import roofline as rl
from roofline.analysis.scale_out import communication_time, with_topology
from roofline.ops.communication import COLLECTIVES

DECODE = rl.model("llama-3-8b", phase="decode", layers=4)


def test_points_are_estimates_of_what_a_device_runs() -> None:
    found = rl.scaling(DECODE, "h100-sxm", (4, 1, 2), mode="graph", B=16, C=2048)
    alone = rl.estimate(DECODE, "h100-sxm", mode="graph", B=16, C=2048)
    device = rl.estimate(rl.passes.shard(DECODE, tp=4), "h100-sxm", mode="graph", B=16, C=2048)
    assert [point.devices for point in found.points] == [1, 2, 4]
    assert found[1].time == alone.time
    assert found[1].communication == found[1].share == 0
    assert found[4].time == device.time
    assert found[4].speed_up == pytest.approx(alone.time / device.time)
    assert found[4].efficiency == pytest.approx(alone.time / device.time / 4)
    assert found[4].memory.total == device.memory.total


def test_communication_is_the_time_of_the_collectives() -> None:
    """What the device takes more than the same program without them."""
    found = rl.scaling(DECODE, "h100-sxm", (2,), mode="graph", B=16, C=2048)[2]
    local = rl.model("llama-3-8b", phase="decode", layers=4, heads=16, kv_heads=4, head_dim=128, intermediate=7168,
                     vocab=64128)  # fmt: skip
    rest = rl.estimate(local, "h100-sxm", mode="graph", B=16, C=2048).time
    assert found.communication == pytest.approx(found.time - rest, rel=1e-6)
    assert 0 < found.share < 0.5


def test_a_framework_takes_long_to_queue_a_collective() -> None:
    """46 us each on an H100 (the small messages of the measured collectives), where a kernel takes 6."""
    found = rl.scaling(DECODE, "h100-sxm", (1, 2), mode="eager", B=1, C=128)
    alone, device = (point.estimate for point in found.points)
    collectives = 2 * 4 + 2
    assert device.launches == alone.launches + collectives
    assert (device.host_time - alone.host_time) / collectives == pytest.approx(46e-6, rel=0.02)
    assert device.bound == "host"


def test_what_cannot_share_is_skipped_with_its_reason() -> None:
    found = rl.scaling(DECODE, "h100-sxm", (1, 3, 16), mode="graph", B=1, C=128)
    assert [point.devices for point in found.points] == [1]
    assert "which 3 devices cannot share; tp that fit: 1, 2, 4, 8, 16, 32" in found.skipped[3]
    assert "16 devices needed" in found.skipped[16]
    with pytest.raises(rl.errors.UsageError, match=r"which 3 devices cannot share.*; there are 1$"):
        found[3]
    with pytest.raises(rl.errors.UsageError, match="devices=5 was not evaluated"):
        found[5]


def test_more_devices_stop_paying() -> None:
    """A step of one token is soon all latency; a long prompt still gains from eight devices."""
    step = rl.scaling(DECODE, "h100-sxm", (1, 2, 4, 8), mode="graph", B=1, C=128, least_gain=0.25)
    prompt = rl.scaling(rl.model("llama-3-8b", phase="prefill", layers=4), "h100-sxm", mode="graph", B=4, S=4096)
    assert step.stops_paying is not None
    assert step.stops_paying < 8
    assert prompt.stops_paying is None
    at = step.stops_paying
    assert step[2 * at].time > 0.75 * step[at].time
    assert all(step[2 * n].time <= 0.75 * step[n].time for n in (1, 2, 4) if n < at)
    assert rl.scaling(DECODE, "h100-sxm", (1, 2), mode="graph", B=1, C=128, least_gain=0.0).stops_paying is None


def test_a_cluster_has_slower_links_between_its_nodes() -> None:
    found = rl.scaling(DECODE, "dgx-h100", (8, 16), mode="graph", B=64, C=2048)
    inside, across = (dict(node.attrs) for point in found.points for node in point.estimate.graph.nodes
                      if node.name == "layers.0.attn.out.all_reduce")  # fmt: skip
    assert "nodes" not in inside
    assert across["nodes"] == 2
    assert found[16].communication > found[8].communication


def test_groups_of_experts_have_a_batch_each() -> None:
    graph = rl.model("mixtral-8x7b", phase="decode", layers=2)
    found = rl.scaling(graph, "h100-sxm", (1, 4), experts=True, mode="graph", B=32, C=1024)
    assert found[4].throughput == pytest.approx(4 * 32 / found[4].time)
    assert found[4].speed_up == pytest.approx(4 * found[1].time / found[4].time)


def test_experts_of_other_nodes_are_reached_through_the_network() -> None:
    device = with_topology(
        rl.passes.shard(rl.model("mixtral-8x7b", phase="decode", layers=1), tp=4, ep=4), rl.cluster("dgx-h100"), 4
    )
    spans = {node.op: dict(node.attrs).get("nodes", 1) for node in device.nodes if node.op in COLLECTIVES}
    assert spans == {"all_reduce": 1, "alltoall": 2, "all_gather": 1}


def test_positions_that_do_not_divide() -> None:
    graph = rl.model("gpt2", phase="forward", layers=1)
    found = rl.scaling(graph, "h100-sxm", (1, 2, 4), sp=True, mode="graph", B=1, S=1022)
    assert [point.devices for point in found.points] == [1, 2]
    assert found.skipped[4] == "sp=True: 4 devices cannot share S=1022 positions; the next that fit: 1024"


def test_records_and_frames() -> None:
    found = rl.scaling(DECODE, "h100-sxm", (1, 2, 3), mode="graph", B=16, C=2048)
    record = json.loads(json.dumps(found.record()))
    assert [point["devices"] for point in record["rows"]] == [1, 2]
    assert record["skipped"]["3"].startswith("tp=3")
    assert record["rows"][1]["tokens_per_s_per_device"] == pytest.approx(16 / found[2].time / 2)
    parts = record["rows"][1]["memory_bytes"]
    assert parts["total"] == pytest.approx(sum(value for name, value in parts.items() if name != "total"))
    frame = found.frame()
    assert list(frame["devices"]) == [1, 2]
    assert frame["memory_bytes_total"][1] < frame["memory_bytes_total"][0]
    lines = repr(found).splitlines()
    assert lines[1].split() == ["devices", "time", "speed-up", "efficient", "comm.", "memory", "fits"]
    assert len(lines) == 6


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": (3,)}, "which 3 devices cannot share"),
        ({"devices": ()}, "name at least one number"),
        ({"devices": (0,)}, "devices=0: expected a whole number from 1"),
        ({"devices": (2,), "B": [1, 2]}, "scaling is shown at one point; give batch"),
        ({"devices": (2,), "least_gain": 1}, "least_gain=1: expected a share"),
    ],
)
def test_refusals(options: dict[str, object], message: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=message):
        rl.scaling(DECODE, "h100-sxm", **{"mode": "graph", "B": 1, "C": 128, **options})  # type: ignore[arg-type]


def test_communication_of_one_point_only() -> None:
    with pytest.raises(rl.errors.UsageError, match="summed for one point; give batch"):
        communication_time(rl.estimate(DECODE, "h100-sxm", B=[1, 2], C=128))
