"""Norms over channels: which kernels run, and how long, against the H100 of measurements/h100-sxm/zoo/ops.csv."""

from __future__ import annotations

from typing import Any

import pytest

import roofline as rl
from roofline.cost import GROUPS, formula, kernel_time, launch, values
from roofline.counting.counts import kernels
from roofline.ir.sizes import Size, symbol
from roofline.ops.builder import Builder

CHIP = rl.chip("h100-sxm")
US = 1e-6


def norm(op: str, image: tuple[Size, ...], dtype: str = "bf16", **attrs: Any) -> rl.Graph:
    """A norm of an activation."""
    b = Builder("norm", dtype)
    vectors = {"batchnorm2d": 4, "channelnorm_grad": 1}.get(op, 2)
    images = [b.op("relu", b.input(f"x{at}", image)) for at in range(1 + (op == "channelnorm_grad"))]
    return b.graph([b.op(op, *images, *(b.weight(f"v{at}", image[1:2]) for at in range(vectors)), **attrs)])


def parts(graph: rl.Graph) -> dict[str, float]:
    """Seconds of the kernels of a norm, by what they do."""
    *_, (_, time) = rl.estimate(graph, CHIP, mode="graph").timed
    return {part.name: part.count * float(part.time.expected) for part in time.parts}


#: Operator, image, whether channels lie last, and the measured microseconds of its longer kernels.
MEASURED = [
    ("groupnorm", (1, 512, 128, 128), False, {"statistics": 231.1, "norm": 21.8}),
    ("groupnorm", (4, 512, 256, 256), False, {"statistics": 1672.0, "norm": 354.9}),
    ("batchnorm_train", (64, 64, 112, 112), False, {"statistics": 667.6, "norm": 115.8}),
    ("batchnorm_train", (64, 256, 56, 56), False, {"statistics": 199.5, "norm": 132.1}),
    ("batchnorm_train", (64, 2048, 7, 7), False, {"statistics": 26.1, "norm": 80.4}),
    ("batchnorm_train", (64, 256, 56, 56), True, {"statistics": 155.4, "norm": 90.5}),
    ("batchnorm2d", (32, 2048, 7, 7), False, {"batchnorm2d": 41.1}),
    ("batchnorm2d", (128, 256, 56, 56), True, {"batchnorm2d": 189.5}),
    ("channelnorm_grad", (64, 64, 112, 112), False, {"channelnorm_grad": 1447.3}),
    ("channelnorm_grad", (64, 512, 28, 28), False, {"channelnorm_grad": 162.6}),
    ("channelnorm_grad", (64, 512, 28, 28), True, {"sums": 65.2, "by_element": 61.7}),
]


@pytest.mark.parametrize(("op", "image", "last", "measured"), MEASURED)
def test_kernels_take_what_they_took(op: str, image: tuple[int, ...], last: bool, measured: dict[str, float]) -> None:
    attrs = {"groupnorm": {"groups": 16}, "channelnorm_grad": {"batch_norm": True}}.get(op, {})
    found = parts(norm(op, image, channels_last=last, **attrs))
    for name, time in measured.items():
        assert found[name] == pytest.approx(time * US, rel=0.3), name


def test_how_many_kernels_run() -> None:
    image = (4, 64, 28, 28)
    assert len(parts(norm("batchnorm2d", image))) == 3
    assert len(parts(norm("batchnorm_train", image))) == 3
    assert len(parts(norm("groupnorm", image, channels_last=False))) == 3
    assert len(parts(norm("groupnorm", image, channels_last=True))) == 4
    assert not parts(norm("batchnorm2d", image, dtype="fp32")), "cuDNN has one kernel for it"


@pytest.mark.parametrize("last", [False, True])
def test_groups_of_channels_are_timed_at_symbolic_sizes(last: bool) -> None:
    batch, height = symbol("B"), symbol("H")
    graph = norm("groupnorm", (batch, 64, height, 2 * height), channels_last=last, groups=8)
    for n, size in ((1, 8), (3, 28)):
        fixed = norm("groupnorm", (n, 64, size, 2 * size), channels_last=last, groups=8)
        expected = rl.estimate(fixed, CHIP, mode="graph").device_time
        assert rl.estimate(graph, CHIP, mode="graph", B=n, H=size).device_time == pytest.approx(expected)


def enlarged(op: str, what: str, image: tuple[int, ...], dtype: str, last: bool) -> rl.Graph:
    """An image of twice the height and width."""
    b = Builder("up", dtype)
    shape = (*image[:2], *(2 * size for size in image[2:]))
    return b.graph([b.op(op, b.input("x", image), shape=shape, what=what, channels_last=last)])


#: Operator, PyTorch's kernel, image, format, whether channels lie last, and microseconds on an H200, in a cold cache.
ENLARGED = [
    ("resample", "upsample_bilinear2d", (16, 384, 28, 28), "fp32", False, 2346.0),
    ("resample", "upsample_bilinear2d", (1, 384, 7, 7), "fp32", False, 140.3),
    ("resample", "upsample_bilinear2d", (16, 48, 56, 56), "bf16", False, 311.0),
    ("resample", "upsample_bilinear2d", (16, 384, 14, 14), "bf16", True, 46.2),
    ("rearrange", "upsample_nearest2d", (16, 128, 112, 112), "bf16", False, 269.3),
    ("rearrange", "upsample_nearest2d", (64, 160, 64, 64), "bf16", True, 1054.6),
]


@pytest.mark.parametrize(("op", "what", "image", "dtype", "last", "measured"), ENLARGED)
def test_an_enlarged_image_takes_what_it_took(
    op: str, what: str, image: tuple[int, ...], dtype: str, last: bool, measured: float
) -> None:
    (kernel,) = kernels(enlarged(op, what, image, dtype, last))
    time = kernel_time(kernel.at({}), rl.chip("h200-sxm"), regime="cold", runtime="pytorch")
    assert time.expected == pytest.approx(measured * US, rel=0.2)


def times(key: str, value: float) -> list[float]:
    """Times of all cases' kernels with a parameter changed [s]."""
    seconds = []
    graphs = [
        norm(op, image, channels_last=last, batch_norm=True, statistics=op == "channelnorm_grad")
        for op, image, last, _ in MEASURED
    ]
    for kernel in (each for graph in (*graphs, enlarged(*ENLARGED[0][:-1])) for each in kernels(graph)):
        for one in (kernel, *(part for _, each in lowered(kernel) for part in each)):
            work = launch(one.at({}), CHIP, None, "program")
            if formula(work)[0] == "channels":
                seconds.append(float(formula(work)[1](work, {**values(CHIP, "channels"), key: value})))
    return seconds


def lowered(kernel: Any) -> Any:
    """The kernels that PyTorch launches."""
    from roofline.cost import lowering

    return lowering.lowered(kernel, CHIP, lowering.EAGER, True)


@pytest.mark.parametrize("key", GROUPS["channels"])
def test_every_parameter_counts(key: str) -> None:
    parameter, used = GROUPS["channels"][key], values(CHIP, "channels")[key]
    other = parameter.low if used > (parameter.low * parameter.high) ** 0.5 else parameter.high
    assert times(key, other) != times(key, used)


@pytest.mark.parametrize("op", ["batchnorm_train", "batchnorm2d", "groupnorm", "channelnorm_grad"])
@pytest.mark.parametrize("last", [False, True])
def test_grows_with_images_and_points(op: str, last: bool) -> None:
    def time(n: int, size: int) -> float:
        *_, kernel = kernels(norm(op, (n, 64, size, size), channels_last=last, batch_norm=True))
        found = kernel_time(kernel.at({}), CHIP, runtime="pytorch")
        assert found.expected >= found.floor
        return float(found.expected)

    for sizes in ([time(n, 28) for n in (1, 2, 5, 20, 100)], [time(8, size) for size in (4, 7, 14, 50, 130)]):
        assert sizes == sorted(sizes)


@pytest.mark.parametrize(("shape", "groups"), [((8, 64, 64, 64), 8), ((1, 512, 128, 128), 32), ((2, 1280, 16, 16), 32)])
def test_a_compiled_group_norm_is_no_slower_than_the_kernels_of_an_eager_one(
    shape: tuple[int, ...], groups: int
) -> None:
    b = rl.ops.Builder("g", "bf16")
    scale, shift = (b.weight(name, shape[1:2]) for name in ("scale", "shift"))
    graph = b.graph([b.op("groupnorm", b.input("x", shape), scale, shift, groups=groups)])
    eager, compiled = (rl.estimate(graph, "h100-sxm", mode=mode).device_time for mode in ("graph", "compiled"))  # type: ignore[arg-type]
    assert compiled <= eager
