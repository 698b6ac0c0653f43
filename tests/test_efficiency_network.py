"""Collectives and host copies: wire factors, floors, and laws of their time formulas."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.analysis.bulk import group_rows
from roofline.cost import formula, kernel_time, launch, values
from roofline.cost.algorithms import factor
from roofline.cost.network import device_link, floor_seconds, link_rate
from roofline.ops.communication import COLLECTIVES
from roofline.programs.workload import operator_graph

CHIP = rl.chip("h100-sxm")
#: NVLink, a fabric of single peers, and cards that talk through the host.
CHIPS = ("h100-sxm", "mi300x", "l40s", "b100")
SIZES = 2 ** np.arange(9, 34)


def times(op: str, chip: str | rl.Chip = CHIP, regime: str = "warm", **shapes: Any) -> Any:
    """Times of rows with these columns of sizes, as bulk prediction works them out."""
    n = max(np.size(size) for size in shapes.values())
    table = {key: np.broadcast_to(np.asarray(size), n).tolist() for key, size in shapes.items()}
    rows = [(op, "fp16", {key: column[at] for key, column in table.items()}) for at in range(n)]
    groups, errors = group_rows(rows)
    assert not errors
    found = np.zeros(n)
    for group in groups:
        for row in group.counts():
            found[group.index] += kernel_time(
                row, rl.chip(chip) if isinstance(chip, str) else chip, regime=regime
            ).expected
    return found


def one(op: str, **shape: Any) -> Any:
    return rl.count(operator_graph(op, "fp16", shape)).rows[0]


def test_the_wire_factors_of_nccl_tests() -> None:
    assert [factor("all_reduce", n) for n in (2, 8, 64)] == [1.0, 1.75, 1.96875]
    for op in ("all_gather", "reduce_scatter", "alltoall"):
        assert [factor(op, n) for n in (2, 8, 64)] == [0.5, 0.875, 0.984375]
    assert factor("broadcast", 8) == 1


@pytest.mark.parametrize("op", COLLECTIVES)
def test_a_message_is_the_larger_side(op: str) -> None:
    row = one(op, devices=8, elements=2**20)
    assert max(row.read, row.write) == 2**21
    small = 2**18 if op in ("all_gather", "reduce_scatter") else 2**21
    assert min(row.read, row.write) == small
    assert one(op, devices=8, bytes=2**21).bytes == row.bytes


@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
def test_bytes_in_and_out_name_the_two_sides(op: str) -> None:
    given, got = one(op, devices=4, bytes_in=2**20), one(op, devices=4, bytes_out=2**20)
    assert (given.read, got.write) == (2**20, 2**20)


def test_a_collective_needs_one_size() -> None:
    for sizes in ({}, {"elements": 8, "bytes": 8}):
        with pytest.raises(rl.errors.UsageError, match="all_reduce needs one of elements, bytes, bytes_in, bytes_out"):
            operator_graph("all_reduce", "bf16", {"devices": 2, **sizes})


@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("op", COLLECTIVES)
@pytest.mark.parametrize("devices", [2, 4, 8, 72])
def test_time_rises_with_elements_and_stays_over_the_floor(name: str, op: str, devices: int) -> None:
    found = times(op, name, devices=devices, elements=SIZES)
    assert (np.diff(found) >= 0).all()
    chip = rl.chip(name)
    for elements, time in zip(SIZES, found, strict=True):
        work = launch(one(op, devices=devices, elements=int(elements)), chip, False, "warm")
        assert time >= floor_seconds(work) * (1 - 1e-12)


@pytest.mark.parametrize("op", COLLECTIVES)
def test_columns_agree_with_single_rows(op: str) -> None:
    together = times(op, devices=4, elements=SIZES[:6])
    alone = [times(op, devices=4, elements=int(size))[0] for size in SIZES[:6]]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


@pytest.mark.parametrize("op", COLLECTIVES)
def test_more_devices_take_more_steps(op: str) -> None:
    assert (np.diff(times(op, devices=np.array([2, 4, 8, 16]), elements=1024)) >= 0).all()


def test_large_all_reduce_is_wire_over_the_links_share() -> None:
    row = one("all_reduce", devices=2, elements=2**33)
    work = launch(row, CHIP, False, "warm")
    p = values(CHIP, "network")
    wire = 2**34 / (450e9 * p["share"])
    group, seconds = formula(work)
    assert group == "network"
    assert float(seconds(work, p)) == pytest.approx(wire + p["launch"] + 2 * p["hop"] + p["handshake"], rel=0.01)


def test_a_framework_queue_bounds_small_collectives_only() -> None:
    small: dict[str, Any] = {"devices": 2, "elements": 1024}
    p = values(CHIP, "network")
    assert times("all_reduce", regime="cold", **small)[0] == pytest.approx(p["queue"], rel=0.02)
    assert times("all_reduce", regime="warm", **small)[0] < p["queue"] / 2
    large: dict[str, Any] = {"devices": 2, "elements": 2**30}
    assert times("all_reduce", regime="cold", **large)[0] == pytest.approx(times("all_reduce", **large)[0], rel=1e-6)


def test_links_of_peers_add_up_to_the_port() -> None:
    chip = rl.chip("mi300x")
    assert [float(link_rate(chip, n)) for n in (2, 3, 8, 64)] == [64e9, 128e9, 448e9, 448e9]
    assert device_link(rl.chip("l40s")).kind == "host"


def test_a_chip_without_links_is_an_error() -> None:
    bare = rl.Chip(name="bare", matrix={"bf16": "1 TFLOP/s"}, memory_bandwidth="1 TB/s", links=())
    with pytest.raises(rl.errors.MissingFigure, match="no published link"):
        times("all_reduce", bare, devices=2, elements=8)
    with pytest.raises(rl.errors.MissingFigure, match="no published host link"):
        times("memcpy_h2d", bare, bytes=8, pinned=True)


@pytest.mark.parametrize("op", ["memcpy_h2d", "memcpy_d2h"])
@pytest.mark.parametrize("pinned", [True, False])
def test_copies_rise_with_bytes_and_respect_the_host_link(op: str, pinned: bool) -> None:
    found = times(op, bytes=SIZES, pinned=[pinned] * len(SIZES))
    assert (np.diff(found) >= 0).all()
    assert (found >= SIZES / 64e9).all()


def test_pageable_copies_are_slower() -> None:
    sizes = SIZES[SIZES >= 2**17]
    for op in ("memcpy_h2d", "memcpy_d2h"):
        slow, fast = (times(op, bytes=sizes, pinned=[pinned] * len(sizes)) for pinned in (False, True))
        assert (slow > 1.5 * fast).all()
