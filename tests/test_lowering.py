"""What a runtime launches for an operator, and what that costs."""

from __future__ import annotations

import numpy as np
import pytest

import roofline as rl
from roofline.cost.lowering import EAGER, RUNTIMES
from roofline.ir.sizes import symbol
from roofline.ops.builder import Builder

CHIP = "h100-sxm"


def convolution(bias: bool, batch: object = 8) -> rl.Graph:
    b = Builder("conv", "bf16")
    image = b.op("relu", b.input("x", (batch, 64, 56, 56)))
    operands = [image, b.weight("w", (128, 64, 3, 3)), *([b.weight("b", (128,))] if bias else [])]
    return b.graph([b.op("conv2d", *operands, padding=1)])


def test_every_rule_names_an_operator_and_a_source() -> None:
    for rules in RUNTIMES.values():
        for op, rule in ((op, rule) for op, each in rules.items() for rule in each):
            assert op in rl.ops.OPS or op in ("sdpa", "sdpa_backward")
            assert rule.launches
            assert rule.source.startswith("https://")


def test_a_bias_is_a_kernel_of_its_own_where_the_framework_adds_it_after() -> None:
    plain, biased = (rl.estimate(convolution(bias), CHIP, mode="graph") for bias in (False, True))
    assert (plain.launches, biased.launches) == (2, 3)
    assert biased.counts.launches == 2  # operators
    assert biased.device_time > plain.device_time
    assert rl.estimate(convolution(True), CHIP, mode="compiled").launches == 2
    (parts,) = (time.parts for _, time in biased.timed if time.parts)
    assert [part.op for part in parts] == ["conv2d", "add"]
    times = [time for _, time in biased.timed]
    assert times[1].expected == pytest.approx(sum(part.count * part.time.expected for part in parts))


def test_the_host_launches_every_kernel() -> None:
    plain, biased = (rl.estimate(convolution(bias, 1), CHIP) for bias in (False, True))
    assert biased.host_time == pytest.approx(1.5 * plain.host_time)


def test_a_grid_is_its_points() -> None:
    graph, sizes = convolution(True, symbol("B")), [1, 3, 64]
    whole = rl.estimate(graph, [CHIP, "a100-80gb-sxm"], B=sizes)
    for at, batch in enumerate(sizes):
        point = rl.estimate(graph, "a100-80gb-sxm", B=batch)
        assert whole.time[1, at] == pytest.approx(point.time)
        assert whole.high[1, at] == pytest.approx(point.high)
    assert np.all(whole.launches == 3)
    assert set(RUNTIMES) >= {"", EAGER}
