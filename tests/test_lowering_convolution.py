"""Convolutions as PyTorch runs them on CUDA: which kernels, and how long, against measurements/h100-sxm/zoo/ops.csv."""

from __future__ import annotations

from typing import Any

import pytest

import roofline as rl
from roofline.ops.builder import Builder

CHIP = rl.chip("h100-sxm")
COPY, PADDING = "transpose_copy", "rearrange"
Image = tuple[int, ...]


def convolution(image: Image, weight: Image, op: str = "conv2d", dtype: str = "bf16", **attrs: Any) -> rl.Graph:
    """A convolution of an activation, channels first unless said otherwise."""
    b = Builder("conv", dtype)
    x = b.op("relu", b.input("x", image))
    return b.graph([b.op(op, x, b.weight("w", weight), **{"channels_last": False, **attrs})])


def launched(graph: rl.Graph) -> tuple[list[str], float]:
    """The kernels of the last operator, and microseconds of all of them."""
    *_, (_, time) = rl.estimate(graph, CHIP, mode="graph").timed
    return [part.op for part in time.parts for _ in range(part.count)], float(time.expected) * 1e6


#: Image, weight, options, the layout copies before and after the convolution, and the measured microseconds of all.
MEASURED: list[tuple[Image, Image, dict[str, Any], tuple[int, int], float]] = [
    ((32, 64, 56, 56), (64, 64, 3, 3), {"padding": 1}, (2, 1), 46.9),
    ((32, 64, 56, 56), (64, 64, 3, 3), {"padding": 1, "channels_last": True}, (0, 0), 23.3),
    ((128, 512, 28, 28), (1024, 512, 1, 1), {"stride": 2}, (1, 1), 193.8),
    ((128, 512, 28, 28), (1024, 512, 1, 1), {"stride": 2, "channels_last": True}, (0, 0), 46.1),
    ((128, 256, 56, 56), (64, 256, 1, 1), {}, (0, 0), 94.0),
    ((128, 512, 7, 7), (2048, 512, 1, 1), {}, (1, 1), 65.9),
    ((16, 3, 256, 256), (32, 3, 3, 3), {"padding": 1}, (0, 0), 136.8),
    ((128, 3, 224, 224), (64, 3, 7, 7), {"stride": 2, "padding": 3}, (2, 1), 1257.0),
    ((1, 3, 224, 224), (64, 3, 7, 7), {"stride": 2, "padding": 3}, (0, 0), 18.3),
    ((128, 144, 58, 58), (144, 1, 3, 3), {"groups": 144}, (0, 0), 577.3),
    ((16, 256, 4096), (512, 256, 3), {"padding": 1, "op": "conv1d"}, (2, 1), 183.8),
    ((4, 64, 16, 56, 56), (128, 64, 3, 3, 3), {"op": "conv3d", "stride": 2, "padding": 1}, (2, 1), 60.6),
    ((16, 64, 128, 128), (64, 32, 2, 2), {"op": "conv_transpose2d", "stride": 2, "output_padding": 0}, (2, 1), 195.1),
    ((32, 3, 224, 224), (64, 3, 7, 7), {"stride": 2, "padding": 3, "channels_last": True}, (2, 0), 221.2),
    ((128, 3, 225, 225), (32, 3, 3, 3), {"stride": 2, "channels_last": True}, (0, 0), 252.0),
    (
        (4, 3, 16, 112, 112),
        (64, 3, 3, 7, 7),
        {"op": "conv3d", "stride": (1, 2, 2), "padding": (1, 3, 3)},
        (0, 0),
        804.0,
    ),
    ((128, 96, 113, 113), (96, 1, 3, 3), {"groups": 96, "stride": 2, "channels_last": True}, (0, 0), 173.3),
]

#: Depthwise windows of measurements/h200-sxm/convolutions.csv, channels first, that PyTorch's kernel unrolls and loops
#: over: image, window, microseconds.
DEPTHWISE: list[tuple[Image, Image, float]] = [
    ((16, 512, 56, 56), (3, 3), 253.3), ((16, 160, 112, 112), (5, 5), 563.0), ((64, 64, 56, 56), (7, 7), 448.9),
    ((16, 256, 1, 1000), (1, 3), 44.2), ((4, 80, 1, 16000), (1, 7), 62.9), ((1, 48, 35, 35), (7, 7), 7.1),
]  # fmt: skip


#: Grouped windows of h200-sxm/convolutions.csv and networks.csv: image, weight, channels last, microseconds.
GROUPED: list[tuple[Image, Image, bool, float]] = [
    ((8, 512, 28, 28), (512, 16, 3, 3), True, 14.4), ((8, 512, 28, 28), (512, 16, 3, 3), False, 29.9),
    ((64, 1024, 14, 14), (1024, 32, 3, 3), True, 40.3), ((8, 1024, 14, 14), (1024, 32, 3, 3), False, 21.8),
    ((16, 512, 28, 28), (512, 16, 3, 3), False, 46.2),
    ((8, 256, 56, 56), (256, 8, 3, 3), True, 30.8), ((1, 240, 28, 28), (240, 80, 3, 3), True, 33.7),
]  # fmt: skip


@pytest.mark.parametrize(("image", "weight", "attrs", "copies", "measured"), MEASURED)
def test_a_convolution_is_the_kernels_that_run(
    image: Image, weight: Image, attrs: dict[str, Any], copies: tuple[int, int], measured: float
) -> None:
    kernels, time = launched(convolution(image, weight, **attrs))
    op = attrs.get("op", "conv2d")
    assert kernels.count(COPY) + kernels.count(PADDING) == sum(copies)
    assert set(kernels) <= {COPY, PADDING, "fill", op}
    assert kernels.count("fill") == kernels.count(PADDING)
    assert time == pytest.approx(measured, rel=0.3)


@pytest.mark.parametrize(("image", "window", "measured"), DEPTHWISE)
def test_a_depthwise_window_takes_what_its_loop_takes(image: Image, window: Image, measured: float) -> None:
    graph = convolution(image, (image[1], 1, *window), groups=image[1], padding=tuple(size // 2 for size in window))
    *_, (_, time) = rl.estimate(graph, "h200-sxm", mode="graph").timed
    assert float(time.expected) * 1e6 == pytest.approx(measured, rel=0.15)


def test_fp32_points_run_on_the_instructions_of_the_generation_before() -> None:
    graph = convolution((32, 256, 14, 14), (1024, 256, 1, 1), dtype="fp32")
    assert launched(graph)[1] == pytest.approx(31.2, rel=0.2)


def test_groups_that_fill_a_tile_run_one_after_the_other() -> None:
    weight = (256, 64, 3, 3)
    apart, _ = launched(convolution((32, 256, 8, 8), weight, groups=4, padding=1))
    assert apart.count("conv2d") == 4
    assert apart.count(COPY) == 12
    together, _ = launched(convolution((1, 256, 7, 7), (256, 8, 3, 3), groups=32, padding=1))
    assert together.count("conv2d") == 1


def test_groups_whose_channels_lie_last_are_cut_out() -> None:
    cut, _ = launched(convolution((1, 240, 28, 28), (240, 80, 3, 3), groups=3, padding=1, channels_last=True))
    assert cut.count("conv2d") == 3
    assert cut.count(PADDING) == 6
    many, _ = launched(convolution((64, 240, 28, 28), (240, 80, 3, 3), groups=3, padding=1))
    assert many.count("conv2d") == 1


@pytest.mark.parametrize(("image", "weight", "layout", "measured"), GROUPED)
def test_groups_share_the_tiles_that_they_fill(image: Image, weight: Image, layout: bool, measured: float) -> None:
    graph = convolution(image, weight, groups=image[1] // weight[1], padding=1, channels_last=layout)
    time = rl.estimate(graph, "h200-sxm", mode="graph", regime="cold").timed[-1][1]
    assert float(time.expected) * 1e6 == pytest.approx(measured, rel=0.16)


def test_other_chips_and_compilers_have_one_kernel() -> None:
    graph = convolution((32, 64, 56, 56), (64, 64, 3, 3), padding=1)
    assert rl.estimate(graph, "mi300x", mode="graph").launches == 2
    assert rl.estimate(graph, CHIP, mode="compiled").launches == 2


def test_steps_longer_than_the_window_leave_points_unread() -> None:
    whole, part = (rl.count(convolution((8, 64, 56, 56), (64, 64, 1, 1), stride=step)).bytes for step in (1, 2))
    image, weights = 8 * 64 * 56 * 56 * 2, 64 * 64 * 2
    assert whole == 4 * image + weights
    assert part == 2 * image + 2 * image // 4 + weights


#: Gradient, other operand, the image or the window it is for, kernels and measured microseconds.
GRADIENTS: list[tuple[str, Image, Image, dict[str, Any], list[str], float]] = [
    ("conv2d_grad_input", (64, 256, 14, 14), (256, 256, 3, 3), {"image": (256, 14, 14)}, [COPY] * 3, 44.0),
    ("conv2d_grad_weight", (64, 256, 14, 14), (64, 256, 14, 14), {"kernel": (256, 3, 3)}, [COPY] * 3, 56.0),
    ("conv2d_grad_input", (64, 128, 28, 28), (128, 512, 1, 1), {"image": (512, 28, 28)}, [], 23.7),
]


@pytest.mark.parametrize(("op", "first", "second", "attrs", "copies", "measured"), GRADIENTS)
def test_gradients_have_the_copies_of_the_forward(
    op: str, first: Image, second: Image, attrs: dict[str, Any], copies: list[str], measured: float
) -> None:
    b = Builder("back", "bf16")
    operands = [b.op("relu", b.input(f"x{at}", shape)) for at, shape in enumerate((first, second))]
    kernels, time = launched(b.graph([b.op(op, *operands, channels_last=False, groups=1, **attrs)]))
    assert sorted(kernels) == sorted([*copies, op] if copies else [])
    assert time == pytest.approx(measured, rel=0.4)


def test_weights_stored_narrow_spare_no_copy_of_the_images() -> None:
    plain = convolution((32, 256, 14, 14), (256, 256, 3, 3), padding=1)
    narrow = rl.passes.quantize(plain, weights="int8")
    assert launched(narrow)[0] == launched(plain)[0] == [COPY] * 3 + ["conv2d"]
    assert launched(narrow)[1] == pytest.approx(launched(plain)[1], rel=0.02)
