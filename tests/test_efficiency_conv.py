"""Convolutions: laws of their time formula."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.cost import GROUPS, formula, kernel_time, launch, values
from roofline.counting.counts import kernels
from roofline.ops.builder import Builder
from roofline.programs.workload import operator_graph

CHIP = rl.chip("h100-sxm")
#: Cores, clock and cache unlike the H100's; without a vector peak; with a few large cores.
CHIPS = ("h100-sxm", "a100-80gb-sxm", "rtx-pro-6000-server", "tpu-v5p")
#: Steps of the tiles bound the dip in time when a size grows.
DIP = 0.97


def conv(n: int, c_in: int, size: int, c_out: int, r: int, **options: Any) -> dict[str, Any]:
    """A convolution of square images with square windows."""
    shape = {"n": n, "c_in": c_in, "h": size, "w": size, "c_out": c_out, "r": r, "s": r}
    return {**shape, "padding": r // 2, **options}


DENSE, POINT, FIRST = conv(8, 128, 28, 128, 3), conv(8, 64, 56, 256, 1), conv(4, 3, 224, 64, 7, stride=2)
DEPTHWISE = conv(16, 144, 56, 144, 3, groups=144)
GROUPED = conv(8, 128, 28, 256, 3, groups=32)
CASES: list[dict[str, Any]] = [
    DENSE, POINT, FIRST, DEPTHWISE, GROUPED, {**DENSE, "stride": 2}, {**DEPTHWISE, "stride": 2},
    *({**each, "channels_last": False} for each in (DENSE, POINT, DEPTHWISE)),
    conv(8, 64, 7, 64, 1, channels_last=False),
    conv(32, 1024, 7, 16, 5), conv(2, 512, 14, 128, 7), conv(256, 64, 56, 64, 3), {**DENSE, "dilation": 2},
]  # fmt: skip
DTYPES = ("bf16", "fp32")


def predict(
    shape: Mapping[str, Any], dtype: str = "bf16", chip: rl.Chip = CHIP, regime: str = "cold",
    changed: Mapping[str, float] | None = None, tf32: bool = False,
) -> float:  # fmt: skip
    """Time of a convolution with some parameters changed [s]."""
    (kernel,) = kernels(operator_graph("conv2d", dtype, shape))
    work = launch(kernel.at({}), chip, tf32, regime)
    group, seconds = formula(work)
    assert group == "conv"
    return float(seconds(work, {**values(chip, group), **(changed or {})}))


def in_eager(shape: Mapping[str, Any]) -> float:
    """Time of the kernels that PyTorch launches for a convolution in bf16 [s]."""
    (kernel,) = kernels(operator_graph("conv2d", "bf16", shape))
    return float(kernel_time(kernel.at({}), CHIP, regime="cold", runtime="pytorch").expected)


def supported(name: str, dtype: str) -> rl.Chip | None:
    """The chip, if it runs contractions in the format at all."""
    chip = rl.chip(name)
    return chip if dtype in chip.matrix or dtype in chip.vector else None


@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("axis", ["n", "image", "c_in", "c_out"])
def test_grows_along_every_axis(axis: str, dtype: str, name: str) -> None:
    chip = supported(name, dtype)
    if chip is None:
        return
    changes: dict[str, list[dict[str, int]]] = {
        "n": [{"n": int(1.4**power) + 1} for power in range(0, 20)],
        "image": [{"h": 8 * size, "w": 8 * size} for size in range(2, 30)],
        "c_in": [{"c_in": 16 * size} for size in range(1, 50)],
        "c_out": [{"c_out": 16 * size} for size in range(1, 50)],
    }
    for shape in CASES:
        if "groups" in shape and axis.startswith("c_"):
            continue
        times = np.array([predict({**shape, **change}, dtype, chip) for change in changes[axis]])
        assert (times[1:] >= DIP * times[:-1]).all(), shape


@pytest.mark.parametrize("dtype", DTYPES)
def test_depthwise_grows_with_channels_and_window(dtype: str) -> None:
    times = [predict(conv(16, size, 56, size, 3, groups=size), dtype) for size in range(16, 800, 16)]
    assert all(after >= DIP * before for before, after in pairwise(times))
    times = [predict(conv(16, 256, 56, 256, r, groups=256), dtype) for r in (3, 5, 7, 9)]
    assert times == sorted(times)


@pytest.mark.parametrize("name", CHIPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_never_under_floor_and_warm_never_slower(dtype: str, name: str) -> None:
    chip = supported(name, dtype)
    for shape in CASES if chip is not None else ():
        (kernel,) = kernels(operator_graph("conv2d", dtype, shape))
        found = kernel_time(kernel.at({}), chip, regime="cold")
        assert np.isfinite(found.expected), shape
        assert found.expected >= found.floor, shape
        warm, program, cold = (predict(shape, dtype, chip, regime) for regime in ("warm", "program", "cold"))
        assert warm <= program <= cold, shape


def test_formats_and_layouts_rank_as_they_do_on_silicon() -> None:
    large = {**DENSE, "n": 128}
    assert predict(large) < predict(large, "fp32", tf32=True) < predict(large, "fp32")
    assert in_eager(large) < in_eager({**large, "channels_last": False})
    assert in_eager({**POINT, "channels_last": False}) == pytest.approx(in_eager(POINT), rel=0.1)


def test_depthwise_is_far_from_its_flops_and_first_layers_from_the_peak() -> None:
    (kernel,) = kernels(operator_graph("conv2d", "bf16", {**FIRST, "n": 256}))
    row = kernel.at({})
    assert row.flops / predict({**FIRST, "n": 256}) < 0.1 * CHIP.matmul_peak("bf16")
    depthwise = {**DEPTHWISE, "n": 256}
    (kernel,) = kernels(operator_graph("conv2d", "bf16", depthwise))
    assert predict(depthwise) < 5 * kernel.at({}).bytes / CHIP.bandwidth


@pytest.mark.parametrize("dtype", DTYPES)
def test_arrays_are_scalars(dtype: str) -> None:
    shapes = [(1, 3, 40, 64), (8, 64, 56, 256), (64, 128, 28, 100), (128, 1024, 7, 16), (256, 64, 56, 64)]
    for r in (1, 3):
        fixed = {"r": r, "s": r, "padding": r // 2}
        alone = [predict(conv(n, c, size, o, r), dtype) for n, c, size, o in shapes]
        n, c, size, o = (np.array(column, float) for column in zip(*shapes, strict=True))
        columns = {"n": n, "c_in": c, "h": size, "w": size, "c_out": o}
        (kernel,) = kernels(operator_graph("conv2d", dtype, {**{key: rl.ops.symbol(key) for key in columns}, **fixed}))
        work = launch(kernel.at(columns), CHIP, False, "cold")
        np.testing.assert_allclose(formula(work)[1](work, values(CHIP, "conv")), alone, rtol=1e-9)


@pytest.mark.parametrize("key", GROUPS["conv"])
def test_every_parameter_counts(key: str) -> None:
    parameter, used = GROUPS["conv"][key], values(CHIP, "conv")[key]
    other = parameter.low if used > (parameter.low * parameter.high) ** 0.5 else parameter.high
    assert any(
        predict(shape, dtype, CHIP, "cold", {key: other}, tf32) != predict(shape, dtype, tf32=tf32)
        for shape in CASES
        for dtype, tf32 in (("bf16", False), ("fp32", False), ("fp16", False), ("fp32", True))
    ) or spread_out({key: other}) != spread_out({})


def spread_out(changed: Mapping[str, float]) -> float:
    """Time of a transposed convolution with some parameters changed [s]."""
    b = Builder("up", "bf16")
    out = b.op("conv_transpose2d", b.input("x", (16, 64, 128, 128)), b.weight("w", (64, 32, 2, 2)), stride=2)
    (kernel,) = kernels(b.graph([out]))
    work = launch(kernel.at({}), CHIP, None, "program")
    return float(formula(work)[1](work, {**values(CHIP, "conv"), **changed}))


def test_every_parameter_says_what_it_is() -> None:
    assert len(GROUPS["conv"]) <= 18
    for key, parameter in GROUPS["conv"].items():
        assert parameter.low <= parameter.prior <= parameter.high, key
        assert parameter.unit in ("s", "share", "ratio", "channels", "cycles"), key


def test_a_chip_without_a_vector_peak_runs_images_of_few_channels() -> None:
    chip = rl.Chip(name="bare", matrix={"bf16": "100 TFLOP/s"}, memory_bandwidth="1 TB/s", memory_capacity="16 GB")
    b = rl.ops.Builder("stem", "bf16")
    image, weight = b.input("x", (8, 3, 64, 64)), b.weight("w", (64, 3, 3, 3))
    graph = b.graph([b.op("conv2d", image, weight, padding=1, channels_last=False)])
    estimate = rl.estimate(graph, chip, mode="graph")
    assert estimate.floor <= estimate.time < 100 * estimate.floor
