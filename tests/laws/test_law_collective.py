"""Laws of collectives, over operators, algorithms, chips, groups and nodes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.analysis.collectives import COLLECTIVE_OPS
from roofline.cost.algorithms import choices

LAW = settings(deadline=None, max_examples=examples(150), derandomize=True, database=None)

#: NVLink with switches that add, without, a fabric of single peers, cards behind a host, a rack, a torus.
CLUSTERS = [
    rl.cluster(name).replace(nodes=4) if rl.cluster(name).link else rl.cluster(name)
    for name in ("dgx-h100", "dgx-a100", "mi300x", "pcie-l40s", "gb200-nvl72", "tpu-v5p-pod")
]
where = st.sampled_from(CLUSTERS)
ops = st.sampled_from([op for op in COLLECTIVE_OPS if op != "send"])
sizes = st.floats(1.0, 1e11)


@st.composite
def groups(draw: st.DrawFn) -> tuple[object, int, int]:
    """A cluster, the devices of a group that fills its nodes evenly, and their stride."""
    on = draw(where)
    stride = draw(st.sampled_from([1, 2, 4, 8]))
    each = draw(st.sampled_from([1, 2, 4, 8]))
    nodes = draw(st.sampled_from([1, 2, 4])) if on.link else 1
    inside = max(1, min(each, on.devices_per_node // stride))
    devices = inside * nodes if nodes == 1 else max(1, on.devices_per_node // stride) * nodes
    return on, max(devices, 2), stride if devices * stride <= on.devices and devices > 1 else 1


@LAW
@given(groups(), ops, sizes)
def test_never_under_the_floor_and_inside_its_range(group: tuple[object, int, int], op: str, size: float) -> None:
    on, devices, stride = group
    found = rl.analysis.collective(on, op, size, devices, stride=stride)  # type: ignore[arg-type]
    assert found.floor * (1 - 1e-12) <= found.seconds
    assert found.low <= found.seconds <= found.high
    assert found.seconds > 0


@LAW
@given(groups(), ops, sizes, st.floats(1.0, 100.0))
def test_a_larger_message_never_takes_less(group: tuple[object, int, int], op: str, size: float, factor: float) -> None:
    on, devices, stride = group
    for policy in ("nccl", "serving", "fastest"):
        small, large = (
            rl.analysis.collective(on, op, each, devices, stride=stride, algorithm=policy).seconds  # type: ignore[arg-type]
            for each in (size, size * factor)
        )
        assert large >= small * (1 - 1e-12)


@LAW
@given(groups(), ops, sizes)
def test_what_is_chosen_is_the_fastest_of_all_there_are(group: tuple[object, int, int], op: str, size: float) -> None:
    on, devices, stride = group
    best = rl.analysis.collective(on, op, size, devices, stride=stride, algorithm="fastest")  # type: ignore[arg-type]
    plain = rl.analysis.collective(on, op, size, devices, stride=stride)  # type: ignore[arg-type]
    assert best.seconds <= plain.seconds
    names = choices(op, "fastest", best.nodes)
    each = {
        name: rl.analysis.collective(on, op, size, devices, stride=stride, algorithm=name).seconds  # type: ignore[arg-type]
        for name in names
    }
    assert best.seconds <= min(each.values()) * (1 + 1e-12)
    if best.algorithm in each:
        assert best.seconds == each[best.algorithm]
    assert plain.seconds == each[plain.algorithm]


@LAW
@given(groups(), sizes, st.booleans())
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather(
    group: tuple[object, int, int], size: float, hierarchical: bool
) -> None:
    on, devices, stride = group
    size = float(np.ceil(size / devices) * devices)  # the same message in all three
    nodes = rl.analysis.collective(on, "all_gather", size, devices, stride=stride).nodes  # type: ignore[arg-type]
    algorithm = "hierarchical" if hierarchical and nodes > 1 else "ring"
    parts = [
        rl.analysis.collective(on, op, size, devices, stride=stride, algorithm=algorithm, ideal=True)  # type: ignore[arg-type]
        for op in ("reduce_scatter", "all_gather")
    ]
    whole = rl.analysis.collective(
        on,
        "all_reduce",
        size,
        devices,
        stride=stride,
        algorithm=algorithm,
        ideal=True,  # type: ignore[arg-type]
    )
    for what in ("wire_bytes", "node_bytes", "steps", "node_steps", "seconds"):
        assert np.isclose(getattr(whole, what), sum(getattr(part, what) for part in parts), rtol=1e-9), what


@LAW
@given(groups(), ops, sizes)
def test_datasheet_rates_are_never_beaten_by_what_the_library_reaches(
    group: tuple[object, int, int], op: str, size: float
) -> None:
    on, devices, stride = group
    real = rl.analysis.collective(on, op, size, devices, stride=stride)  # type: ignore[arg-type]
    free = rl.analysis.collective(on, op, size, devices, stride=stride, algorithm=real.algorithm, ideal=True)  # type: ignore[arg-type]
    assert real.seconds >= free.seconds * (1 - 1e-9)


@LAW
@given(sizes, st.sampled_from([2, 4, 8, 16, 32]))
def test_no_device_sends_less_than_the_floor_says(size: float, devices: int) -> None:
    """The bytes at the rate of their link are no less than the least that any algorithm sends."""
    for op in ("all_reduce", "all_gather", "reduce_scatter"):
        for algorithm in ("nccl", "fastest"):
            found = rl.analysis.collective("dgx-h100", op, size, devices, algorithm=algorithm)
            moving = max(found.wire_bytes / 450e9, found.node_bytes / 50e9)
            assert moving >= found.floor * (1 - 1e-9)
