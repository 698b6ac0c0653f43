"""Streaming and row-wise kernels: laws of their time formulas."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.cost import GROUPS, compute_seconds, formula, kernel_time, launch, values
from roofline.counting.counts import kernels
from roofline.ops.builder import Builder
from roofline.programs.workload import operator_graph

CHIP = rl.chip("h100-sxm")
#: A chip with other cores, clock and cache, one without any of these, and one with a few large cores.
OTHERS = ("a100-80gb-sxm", "b100", "tpu-v5e")
FLAT = ("copy", "add", "mul_scalar", "relu", "gelu", "silu", "exp", "fill", "cast_fp32")
ROWS = ("softmax", "layernorm", "rmsnorm", "sum", "mean", "argmax", "bias_add", "transpose_copy", "swiglu")
#: Steps that silicon takes itself bound the dip in time when a size grows.
DIP = 0.97

CASES: list[tuple[str, dict[str, Any]]] = [
    *((op, {"n": 3_000_000}) for op in FLAT),
    *((op, {"rows": 3000, "cols": 1536}) for op in ROWS),
    ("layernorm", {"rows": 500, "cols": 1001}),
    ("softmax", {"rows": 64, "cols": 20_000}),
    ("rope", {"batch": 2, "heads": 8, "seq": 300, "head_dim": 64}),
    ("batchnorm2d", {"n": 8, "c": 64, "h": 28, "w": 28}),
    ("maxpool2d", {"n": 8, "c": 64, "h": 28, "w": 28, "r": 2, "stride": 2}),
    ("gather", {"table": 50_000_000, "n": 300_000}),
    ("cat", {"rows": 64, "cols_a": 512, "cols_b": 1024}),
    ("embedding", {"vocab": 32_000, "dim": 1024, "tokens": 8}),
    ("embedding", {"vocab": 32_000, "dim": 1024, "tokens": 800}),
]


def tiled(dtype: str, rows: int, cols: int) -> rl.Graph:
    """A library's transposing copy."""
    b = Builder("copy", dtype)
    return b.graph([b.op("transpose_copy", b.input("x", (rows, cols)), tiled=True)])


def predict(
    op: str, shape: Mapping[str, Any], dtype: str = "bf16", chip: rl.Chip = CHIP, regime: str = "cold",
    changed: Mapping[tuple[str, str], float] | None = None,
) -> float:  # fmt: skip
    """Time of an operator with some parameters changed [s]."""
    graph = tiled(dtype, **shape) if op == "tiled" else operator_graph(op, dtype, shape)
    return timed(graph, chip, regime, changed)


def timed(graph: rl.Graph, chip: rl.Chip, regime: str, changed: Mapping[tuple[str, str], float] | None = None) -> float:
    """Time of a program, kernel by kernel, with some parameters changed [s]."""
    total = 0.0
    for kernel in kernels(graph):
        work = launch(kernel.at({}), chip, False, regime)
        group, seconds = formula(work)
        p = {**values(chip, group), **{key: v for (name, key), v in (changed or {}).items() if name == group}}
        total += kernel.count * float(seconds(work, p))
    return total


def addressed() -> rl.Graph:
    """Kernels that work out where each element lies: of permuted operands, joined, picked in rows, added in places."""
    b = Builder("addressed", "fp32")
    x, y, rows = b.input("x", (9999, 99), "bf16"), b.input("y", (9999, 99)), b.input("rows", (50_000,), "int64")
    return b.graph([
        b.op("add", x, y, access=("mixed", 3, 64)), b.op("cat", y, y, access=("strided", 2, 0)),
        b.op("take", b.input("z", (9999, 96)), rows, shape=(50_000, 96), rows=True),
        b.op("put", y, b.input("more", (50_000, 99)), rows, flops=1),
    ])  # fmt: skip


ADDRESSED = addressed()


def sweep(op: str, fixed: Mapping[str, Any], axis: str, sizes: list[int], dtype: str) -> np.ndarray:
    """Times along an axis."""
    return np.array([predict(op, {**fixed, axis: size}, dtype) for size in sizes])


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("op", FLAT)
def test_grows_with_elements(op: str, dtype: str) -> None:
    times = sweep(op, {}, "n", [int(1.3**e) for e in range(12, 80)], dtype)
    assert (times[1:] >= times[:-1]).all()


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("columns", [96, 1536, 6000, 40_000])
@pytest.mark.parametrize("op", ROWS)
def test_grows_with_rows(op: str, columns: int, dtype: str) -> None:
    times = sweep(op, {"cols": columns}, "rows", [int(1.2**e) + 1 for e in range(0, 64)], dtype)
    assert (times[1:] >= DIP * times[:-1]).all()


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("rows", [1, 200, 50_000])
@pytest.mark.parametrize("op", ROWS)
def test_grows_with_columns_of_one_scheme(op: str, rows: int, dtype: str) -> None:
    """Between the row lengths at which libraries change kernels: there silicon jumps, down as well."""
    changes = {"softmax": (2048, 10_240), "sum": (2048, 8192), "mean": (2048, 8192), "argmax": (2048, 8192)}.get(op, ())
    bounds = [4, *(change // 4 * 4 for change in changes), 300_000]
    for low, high in pairwise(bounds):
        sizes = [int(size) // 4 * 4 for size in np.geomspace(low + 4, high - 4, 40)]
        times = sweep(op, {"rows": rows}, "cols", sizes, dtype)
        assert (times[1:] >= DIP * times[:-1]).all(), (low, high)


@pytest.mark.parametrize("name", ["h100-sxm", *OTHERS])
@pytest.mark.parametrize(("op", "shape"), CASES)
def test_never_under_floor_and_warm_never_slower(op: str, shape: dict[str, Any], name: str) -> None:
    chip = rl.chip(name)
    for kernel in kernels(operator_graph(op, "fp32", shape)):
        row = kernel.at({})
        cold, program, warm = (kernel_time(row, chip, regime=regime) for regime in ("cold", "program", "warm"))
        assert cold.expected >= cold.floor >= compute_seconds(row, chip)
        assert np.isfinite(cold.expected)
        assert warm.expected <= program.expected <= cold.expected
    times = [predict(op, shape, "fp32", chip, regime) for regime in ("warm", "program", "cold")]
    assert times == sorted(times)


def test_cached_operands_are_faster() -> None:
    for op, shape in (("add", {"n": 1_000_000}), ("rmsnorm", {"rows": 16, "cols": 4096})):
        assert predict(op, shape, regime="warm") < 0.8 * predict(op, shape)


@pytest.mark.parametrize("op", ["softmax", "layernorm", "sum", "bias_add", "transpose_copy", "swiglu"])
def test_arrays_are_scalars(op: str) -> None:
    shapes = [(1, 8), (17, 999), (300, 1024), (5000, 4096), (40, 20_000), (70_000, 512)]
    alone = [predict(op, {"rows": rows, "cols": columns}) for rows, columns in shapes]
    symbolic = operator_graph(op, "bf16", {"rows": rl.ops.symbol("rows"), "cols": rl.ops.symbol("cols")})
    columns = {"rows": np.array([r for r, _ in shapes], float), "cols": np.array([c for _, c in shapes], float)}
    together = np.zeros(len(shapes))
    for kernel in kernels(symbolic):
        work = launch(kernel.at(columns), CHIP, False, "cold")
        group, seconds = formula(work)
        together += kernel.count * seconds(work, values(CHIP, group))
    np.testing.assert_allclose(together, alone, rtol=1e-9)


@pytest.mark.parametrize(("group", "key"), [(g, k) for g in ("stream", "rowwise") for k in GROUPS[g]])
def test_every_parameter_counts(group: str, key: str) -> None:
    parameter = GROUPS[group][key]
    used = values(CHIP, group)[key]
    other = parameter.low if used > (parameter.low * parameter.high) ** 0.5 else parameter.high
    differs = [
        predict(op, shape, dtype, CHIP, regime, {(group, key): other}) != predict(op, shape, dtype, CHIP, regime)
        for op, shape in [*CASES, ("rmsnorm", {"rows": 5000, "cols": 2048}), ("rmsnorm", {"rows": 16, "cols": 4096}),
                          ("tiled", {"rows": 3000, "cols": 1536})]
        for dtype in ("bf16", "fp32")
        for regime in ("cold", "warm")
    ]  # fmt: skip
    assert any([*differs, timed(ADDRESSED, CHIP, "cold", {(group, key): other}) != timed(ADDRESSED, CHIP, "cold")])


def test_every_parameter_says_what_it_is() -> None:
    for group in ("stream", "rowwise"):
        assert len(GROUPS[group]) <= 18
        for key, parameter in GROUPS[group].items():
            assert parameter.low < parameter.prior < parameter.high, key
            assert parameter.unit in ("s", "share", "cycles", "ratio", "exponent"), key
            assert len(parameter.meaning.split()) >= 3, key


def test_what_is_not_contiguous_is_slower() -> None:
    n, size = 8_000_000, {"rows": 4000, "cols": 2000}
    assert predict("bias_add", size) > 1.5 * predict("copy", {"n": n})
    assert predict("transpose_copy", size) > 3 * predict("copy", {"n": n})
    widened, narrowed = predict("cast_fp32", {"n": n}, "bf16"), predict("cast_fp32", {"n": n}, "fp32")
    assert widened > 1.1 * narrowed


def test_unaligned_norm_takes_two_kernels() -> None:
    assert predict("layernorm", {"rows": 4000, "cols": 1001}) > 1.5 * predict("layernorm", {"rows": 4000, "cols": 1000})


def test_few_long_rows_wait_for_their_loads() -> None:
    floor = 2 * 32 * 128_256 * 4 / CHIP.bandwidth
    assert predict("rmsnorm", {"rows": 32, "cols": 128_256}, "fp32") > 8 * floor


@pytest.mark.parametrize(("columns", "measured"), [((4,), 5.5), ((4, 32), 121.6)])
def test_short_rows_are_picked_by_elements(columns: tuple[int, ...], measured: float) -> None:
    b = Builder("picked", "bf16")  # kernels of a graph attention in measurements/h200-sxm/zoo/ops.csv
    table, rows = b.op("relu", b.input("table", (20_000, *columns))), b.input("rows", (200_000,), "int64")
    graph = b.graph([b.op("take", table, rows, shape=(200_000, *columns), rows=True)])
    *_, (_, time) = rl.estimate(graph, "h200-sxm", mode="graph").timed
    assert float(time.expected) * 1e6 == pytest.approx(measured, rel=0.25)


#: Image and microseconds of pooling kernels in measurements/h200-sxm/convolutions.csv, channels first and last: maxima
#: over windows of 3 by steps of 2, means over windows of 2.
POOLS = [
    ("maxpool2d", (1, 64, 28, 28), False, 3.2), ("maxpool2d", (16, 128, 56, 56), False, 29.2),
    ("maxpool2d", (16, 384, 32, 32), True, 40.9), ("avgpool2d", (16, 192, 28, 28), False, 9.5),
    ("avgpool2d", (16, 192, 128, 128), False, 147.1), ("avgpool2d", (64, 80, 64, 64), True, 129.6),
]  # fmt: skip


@pytest.mark.parametrize(("op", "image", "last", "measured"), POOLS)
def test_only_maxima_of_channels_that_lie_last_start_slowly(
    op: str, image: tuple[int, ...], last: bool, measured: float
) -> None:
    b = Builder("pooled", "bf16")
    window = {"r": 3, "stride": 2, "padding": 1} if op == "maxpool2d" else {"r": 2, "stride": 2}
    (kernel,) = kernels(b.graph([b.op(op, b.input("x", image), channels_last=last, **window)]))
    time = kernel_time(kernel.at({}), rl.chip("h200-sxm"), regime="cold")
    assert float(time.expected) * 1e6 == pytest.approx(measured, rel=0.25)


@pytest.mark.parametrize(
    ("rows", "columns", "dtype", "measured"),
    [
        (1_000_000, 8, "fp32", 24.4),
        (400_000, 16, "bf16", 21.2),
        (200_000, 32, "bf16", 22.1),
        (65_536, 49, "fp32", 11.8),
    ],
)
def test_a_warp_has_several_short_rows(rows: int, columns: int, dtype: str, measured: float) -> None:
    """Of measurements/h200-sxm/networks.csv."""
    time = predict("softmax", {"rows": rows, "cols": columns}, dtype, rl.chip("h200-sxm")) * 1e6
    assert time == pytest.approx(measured, rel=0.25)
