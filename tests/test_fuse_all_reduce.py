"""An all-reduce in the kernel of the sum and norm that follow it."""

from __future__ import annotations

import numpy as np
import pytest

import roofline as rl


@pytest.fixture(scope="module")
def shard() -> rl.Graph:
    return rl.passes.fuse(rl.passes.shard(rl.model("llama-3-8b", phase="decode", layers=4), tp=4), "inductor")


@pytest.fixture(scope="module")
def fused(shard: rl.Graph) -> rl.Graph:
    return rl.passes.fuse_all_reduce(shard)


def test_two_launches_a_layer_less_and_the_sums_stay_on_the_chip(shard: rl.Graph, fused: rl.Graph) -> None:
    before, after = (rl.count(graph, B=8, C=1024) for graph in (shard, fused))
    assert before.launches - after.launches == 2 * 4
    assert before.flops == after.flops
    assert before.bytes - after.bytes == 2 * 4 * 2 * 8 * 4096 * 2  # written and read once less, in 16 bits


def test_only_the_norms_launches_are_saved(shard: rl.Graph, fused: rl.Graph) -> None:
    """The message takes as long as before."""
    before, after = (
        {row["op"]: row for row in rl.estimate(g, "b200-sxm", B=8, C=1024, mode="graph", regime="warm").kernel_rows()}
        for g in (shard, fused)
    )
    assert after["all_reduce"]["each_s"] == pytest.approx(before["all_reduce"]["each_s"], rel=0.05)


def test_large_messages_still_move_the_residual(fused: rl.Graph) -> None:
    prefill = rl.passes.fuse(rl.passes.shard(rl.model("llama-3-8b", phase="prefill", layers=4), tp=4), "inductor")
    before, after = (
        rl.estimate(g, "b200-sxm", B=1, S=[16, 16384], mode="graph", regime="warm").time
        for g in (prefill, rl.passes.fuse_all_reduce(prefill))
    )
    assert np.all(after < before)
    assert before[1] - after[1] < 0.1 * before[1]
    assert before[0] - after[0] > 0.03 * before[0]


def test_a_program_of_one_device_stays() -> None:
    graph = rl.passes.fuse(rl.model("llama-3-8b", phase="decode", layers=1), "inductor")
    assert rl.passes.fuse_all_reduce(graph) is graph
