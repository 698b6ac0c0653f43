"""The time model as a whole: where parameters come from, how many, what a sibling gets, what never happens."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.analysis.bulk import group_rows
from roofline.cost import GROUPS, kernel_time, values
from roofline.cost.spread import TRANSFERRED, TWIN, provenance, spread
from roofline.hardware.library import data_dir

H100 = rl.chip("h100-sxm")
FITTED = [name for name in rl.chips() if rl.chip(name).efficiency.parameters]


def gemm_seconds(chip: rl.Chip, dtype: str, regime: str, **sizes: Any) -> np.ndarray:
    """Expected seconds of one gemm with one size swept."""
    columns = zip(*np.broadcast_arrays(*sizes.values()), strict=True)
    rows = [("gemm", dtype, dict(zip(sizes, map(int, column), strict=True))) for column in columns]
    found = np.zeros(len(rows))
    for group in group_rows(rows)[0]:
        for row in group.counts():
            found[group.index] += np.broadcast_to(kernel_time(row, chip, regime=regime).expected, len(group.index))
    return found


@pytest.mark.parametrize("name", FITTED)
def test_a_chip_has_fewer_than_150_fitted_figures_and_all_are_known(name: str) -> None:
    chip = rl.chip(name)
    shares = ("compute", "memory", "launch", "host", "low", "high")
    assert sum(map(len, chip.efficiency.parameters.values())) + len(shares) < 150
    for table in chip.efficiency.parameters:
        group = table.removesuffix("_warm").removesuffix("_program")
        regime = "warm" if table.endswith("_warm") else "program" if table.endswith("_program") else "cold"
        assert set(values(chip, group, regime)) == set(GROUPS[group])


def test_every_parameter_says_what_it_is() -> None:
    for group in GROUPS.values():
        for parameter in group.values():
            assert parameter.unit
            assert parameter.meaning
            assert parameter.low <= parameter.prior <= parameter.high


def test_an_unknown_parameter_is_named() -> None:
    efficiency = H100.efficiency.model_copy(update={"parameters": {"matmul": {"lunch": 1.0}}})
    with pytest.raises(rl.errors.ChipDataError, match=r"matmul\.lunch is no parameter; did you mean launch"):
        values(H100.model_copy(update={"efficiency": efficiency}), "matmul")


def test_a_sibling_takes_shares_as_they_are_and_seconds_by_the_clocks() -> None:
    h200, own = rl.chip("h200-sxm"), values(H100, "matmul")
    taken = values(h200, "matmul")
    assert taken["tile_half"] == own["tile_half"]
    assert h200.clock is not None
    assert H100.clock is not None
    assert taken["launch"] == pytest.approx(own["launch"] * H100.clock / h200.clock)
    assert provenance(h200, "matmul", "cold") == "transferred"
    assert provenance(h200, "matmul", "warm") == "measured"
    assert spread(h200, "matmul") == pytest.approx(TWIN * spread(H100, "matmul"))  # but for its memory an H100
    assert spread(rl.chip("a100-80gb-sxm"), "matmul") == pytest.approx(TRANSFERRED * spread(H100, "matmul"))


@pytest.mark.parametrize("name", ["mi300x", "mi325x", "rtx-4090", "rtx-3090", "l4", "t4", "m2-max", "tpu-v4", "gaudi2"])
def test_a_chip_without_figures_reaches_its_own_shares(name: str) -> None:
    """``compute`` is what the best lone matmul reaches of the peak: a large square comes near, and none exceeds it."""
    chip, rows = rl.chip(name), np.array([4096, 8192, 16384])
    dtype = "bf16" if "bf16" in chip.matrix else "fp16"
    seconds = gemm_seconds(chip, dtype, "cold", m=rows, n=8192, k=8192)
    reached = 2 * rows * 8192**2 / seconds / chip.matmul_peak(dtype)
    assert max(reached) == pytest.approx(chip.efficiency.compute, rel=0.1)
    assert max(reached) < 1.02 * chip.efficiency.compute
    assert values(chip, "matmul")["dram"] == chip.efficiency.memory
    assert provenance(chip, "matmul", "cold") == "prior"


@pytest.mark.parametrize(
    ("name", "mean"),
    [("h200-sxm", 0.056), ("b200-sxm", 0.065), ("b300-sxm", 0.067), ("gb200", 0.072), ("gb300", 0.065)],
)
def test_products_of_serving_stacks_and_those_of_few_tiles(name: str, mean: float) -> None:
    """bf16 rows of measurements/*/serving_stack.csv; tiles on a few cores start and end sooner than on all of them."""
    with (data_dir("measurements") / name / "serving_stack.csv").open(encoding="utf-8") as file:
        found = [row for row in csv.DictReader(file) if (row["op"], row["dtype"]) == ("gemm", "bf16")]
    m, n, k = np.array([[json.loads(row["shape"])[size] for size in "mnk"] for row in found]).T
    measured = np.array([float(row["p50_us"]) for row in found]) * 1e-6
    error = gemm_seconds(rl.chip(name), "bf16", "warm", m=m, n=n, k=k) / measured - 1
    assert np.abs(error).mean() < mean
    few = (np.ceil(m / 64) * np.ceil(n / 64) <= 10) & (k <= 2048)
    assert abs(error[few].mean()) < 0.05


@pytest.mark.parametrize("name", ["h100-sxm", "h200-sxm", "a100-80gb-sxm", "mi300x", "b200-sxm", "b300-sxm", "gb300"])
@pytest.mark.parametrize("regime", ["cold", "program", "warm"])
@pytest.mark.parametrize("swept", ["m", "n", "k"])
def test_a_larger_product_never_gets_faster_beyond_the_steps_of_tiles(name: str, regime: str, swept: str) -> None:
    for base in ({"m": 64, "n": 4096, "k": 4096}, {"m": 4096, "n": 8192, "k": 1024}, {"m": 512, "n": 512, "k": 512}):
        grown = 64 * np.unique(np.round(2 ** np.linspace(0, 8, 80))).astype(int)  # whole rows: alignment stays
        seconds = gemm_seconds(rl.chip(name), "bf16", regime, **{**base, swept: grown})
        dip = seconds / np.maximum.accumulate(seconds)
        assert dip.min() > 0.97, (base, grown[dip.argmin()])


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8", "int8", "fp32"])
def test_no_product_beats_the_datasheet(dtype: str) -> None:
    sizes = 2 ** np.arange(4, 15)
    seconds = gemm_seconds(H100, dtype, "cold", m=sizes, n=8192, k=8192)
    peak = H100.matmul_peak(dtype)
    assert (seconds >= 2.0 * sizes * 8192 * 8192 / peak).all()


def test_padding_spares_a_compiled_program_the_unaligned_kernels() -> None:
    b = rl.ops.Builder("head", "bf16")
    graph = b.graph([b.op("linear", b.input("x", (4096, 768)), b.weight("w", (50257, 768)))])
    eager = rl.estimate(graph, H100, mode="graph")
    compiled = rl.estimate(graph, H100, mode="compiled")
    assert compiled.time < eager.time / 2
    assert compiled.flops == eager.flops


def test_provenance_is_that_of_the_kernels() -> None:
    graph = rl.model("gpt2", phase="prefill")

    def calibrated(chip: str | rl.Chip) -> str:
        return rl.estimate(graph, chip, B=1, S=8).calibrated

    assert calibrated("h100-sxm") == "measured"
    assert calibrated("a100-80gb-sxm") == calibrated("gh200-96gb") == "transferred"
    assert calibrated(H100.replace(memory_bandwidth="5 TB/s")) == "transferred"
    assert calibrated("mi300x") == "prior"
    shares = {"compute": 0.5, "memory": 0.8, "calibrated": "measured"}
    mine = rl.Chip(name="mine", matrix={"bf16": "1 TFLOP/s"}, vector={"fp32": "1 TFLOP/s"}, memory_bandwidth="1 TB/s")
    assert calibrated(mine) == "prior"
    assert calibrated(mine.replace(efficiency=shares)) == "measured"


def test_every_parameter_is_documented() -> None:
    text = (Path(__file__).parents[1] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    for name, table in GROUPS.items():
        part = text[text.index(f"### {name}\n") :].partition("\n\n")[0]
        for line, (key, known) in zip(part.splitlines()[3:], table.items(), strict=True):
            assert line.startswith(f"| `{key}` | {known.prior:g}")
            assert line.endswith(f"| {known.low:g} to {known.high:g} | {known.unit} | {known.meaning} |")
