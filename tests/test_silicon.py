"""Chips that are a grid of cores: engines, mappings, and published figures."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.cli import main
from roofline.cost.silicon.engines import cycles, granularity, reads, utilisation
from roofline.cost.silicon.mapping import LEVELS, Product, Rates, named, spread
from roofline.hardware.grid import CoreGrid, Engine
from roofline.hardware.settings import with_settings

TENSIX = Engine(shape=(8, 16, 16), tile=(32, 32, 32))
MXU = Engine(shape=(1, 128, 128), dataflow="systolic", load=128)
GRID = CoreGrid(rows=4, columns=3, sram=2**18, sram_bandwidth=64e9, noc_bandwidth=32e9, engine=TENSIX)
SIZES = st.integers(1, 5000)


def gemm(m: int, n: int, k: int, dtype: str = "bf16") -> rl.Graph:
    return rl.workload([{"op": "gemm", "m": m, "n": n, "k": k, "dtype": dtype}])


# Engines


@settings(max_examples=examples(60))
@given(m=SIZES, n=SIZES, k=SIZES, b=st.integers(1, 9), engine=st.sampled_from([TENSIX, MXU]), count=st.integers(1, 5))
def test_an_engine_is_used_whole_only_by_sizes_that_fill_it(
    m: int, n: int, k: int, b: int, engine: Engine, count: int
) -> None:
    engine = engine.model_copy(update={"count": count})
    share = float(utilisation(engine, b, m, n, k))
    assert 0 < share <= 1
    whole = all(size % unit == 0 for size, unit in zip((m, n, k), granularity(engine), strict=True))
    if not whole or engine.dataflow == "systolic":
        assert share < 1
    elif b * m * n * k % (8 * 16 * 16 * count) == 0:
        assert share == 1
    assert cycles(engine, b, m + 1, n, k) >= cycles(engine, b, m, n, k)
    compulsory = b * (m * k * 2 + k * n * 2)
    assert reads(engine, b, m, n, k, 2.0, 2.0) >= compulsory * (1 if engine.dataflow == "tile" or n > 128 else 0.5)


def test_cycles_by_hand() -> None:
    assert cycles(TENSIX, 1, 512, 512, 512) == 16**3 * 16  # 16 cycles for a product of two tiles in one phase
    assert utilisation(TENSIX, 1, 1, 32, 32) == 1 / 32
    assert cycles(MXU, 1, 200, 2000, 2000) == 16 * 16 * 200 + 256
    assert cycles(MXU, 1, 8, 128, 128) == 128 + 256  # it waits for the next tile of weights
    assert cycles(MXU.model_copy(update={"load": None}), 1, 8, 128, 128) == 8 + 256
    assert cycles(MXU.model_copy(update={"count": 4}), 1, 1024, 128, 128) == 256 + 256  # arrays share the rows
    # two tiles of 32 x 32 in 16 bits for each product of tiles
    assert reads(TENSIX, 1, 64, 64, 64, 2.0, 2.0) == 8 * 2 * 32 * 32 * 2


# Mappings


@settings(max_examples=examples(40))
@given(m=SIZES, n=SIZES, k=SIZES, b=st.integers(1, 20), sram=st.sampled_from([2**15, 2**18, None]))
def test_a_mapping_takes_no_less_than_the_engines_and_moves_no_less_than_compulsory(
    m: int, n: int, k: int, b: int, sram: Any
) -> None:
    grid = GRID.model_copy(update={"sram": sram})
    moved = 2.0 * b * (m * k + k * n + m * n)
    found = spread(grid, Product(b, m, n, k, 2.0, 2.0, 2.0, moved), Rates(1e-9, 1e11))
    assert found.seconds >= b * m * n * k / (8 * 16 * 16 * grid.cores) * 1e-9 * (1 - 1e-12)
    assert found.seconds >= moved / 1e11
    assert found.seconds == max(found.by_level[level] for level in LEVELS)
    assert found.bytes["DRAM"] >= moved * (1 - 1e-12)
    assert found.bytes["SRAM"] >= 2.0 * b * (m * k + k * n) * (1 - 1e-12)
    assert named(int(found.choice), grid)


@settings(max_examples=examples(20))
@given(m=SIZES, n=SIZES, k=SIZES, sram=st.integers(15, 22))
def test_more_of_anything_never_takes_longer(m: int, n: int, k: int, sram: int) -> None:
    product = Product(1, m, n, k, 2.0, 2.0, 2.0, 2.0 * (m * k + k * n + m * n))

    def seconds(**figures: Any) -> float:
        grid = GRID.model_copy(update={"sram": 2.0**sram} | figures)
        return float(spread(grid, product, Rates(1e-9, 1e11)).seconds)

    one = seconds()
    assert seconds(sram=2.0 ** (sram + 1)) <= one * (1 + 1e-9)
    assert seconds(noc_bandwidth=64e9) <= one * (1 + 1e-9)
    assert seconds(sram_bandwidth=128e9) <= one * (1 + 1e-9)
    assert seconds(multicast=False) >= one * (1 - 1e-9)


def test_sizes_are_worked_out_together_as_alone() -> None:
    m, n = np.array([1.0, 33, 512, 4000])[:, None], np.array([7.0, 4096])[None]
    together = spread(GRID, Product(1, m, n, 777.0, 2.0, 2.0, 2.0, 2 * m * n), Rates(1e-9, 1e11)).seconds
    alone = [[float(spread(GRID, Product(1, a, b, 777.0, 2.0, 2.0, 2.0, 2 * a * b), Rates(1e-9, 1e11)).seconds)
              for b in n.ravel()] for a in m.ravel()]  # fmt: skip
    assert together.tolist() == alone


def test_a_small_memory_of_a_core_costs_traffic() -> None:
    """An output-stationary block of 4 x 3 cores re-reads an operand for each block of the other."""
    product = Product(1, 2048, 2048, 2048, 2.0, 2.0, 2.0, 2.0 * 3 * 2048**2)
    large = spread(GRID.model_copy(update={"sram": 2.0**24}), product, Rates(1e-12, 1e9))
    small = spread(GRID.model_copy(update={"sram": 2.0**15}), product, Rates(1e-12, 1e9))
    assert large.bytes["DRAM"] == product.moved
    # 12 cores of 32 KiB hold a block whose traffic is no less than the bound for all of their memory
    bound = rl.tiling.matmul_lower_bound(2048, 2048, 2048, 12 * 2**15, widths=2)
    assert small.bytes["DRAM"] >= max(bound, 2 * product.moved)


# Chips


def test_grids_of_shipped_chips() -> None:
    wormhole, tpu = rl.chip("wormhole-n150"), rl.chip("tpu-v6e")
    assert wormhole.grid is not None
    assert (wormhole.grid.cores, wormhole.grid.sram, wormhole.grid.engine.shape) == (64, 1464 * 1024, (8, 16, 16))
    assert tpu.grid is not None
    assert (tpu.grid.engine.shape, tpu.grid.engine.dataflow, tpu.grid.engine.count) == ((1, 256, 256), "systolic", 2)
    for name in rl.chips():
        grid = rl.chip(name).grid
        if grid is not None:
            assert "http" in grid.source, name
            assert "http" in grid.engine.source, name
    assert rl.chip("h100-sxm").grid is None


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"rows": 0, "columns": 8, "engine": {"shape": [8, 16, 16]}}, "grid.rows"),
        ({"rows": 8, "columns": 8}, "grid.engine: missing"),
        ({"rows": 8, "columns": 8, "engine": {"shape": [8, 16]}}, "grid.engine.shape"),
        ({"rows": 8, "columns": 8, "engine": {"shape": [8, 16, 16], "dataflow": "sys"}}, "systolic"),
        ({"rows": 8, "columns": 8, "sram": "1 MB/s", "engine": {"shape": [8, 16, 16]}}, "grid.sram"),
        ({"rows": 8, "columns": 8, "srams": "1 MB", "engine": {"shape": [8, 16, 16]}}, "did you mean sram"),
    ],
)
def test_a_grid_that_cannot_be_is_refused_in_one_line(table: dict[str, Any], says: str) -> None:
    with pytest.raises(rl.errors.ChipDataError) as caught:
        rl.Chip(name="mine", matrix={"bf16": "1 TFLOP/s"}, memory_bandwidth="1 TB/s", grid=table)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_chip_with_a_grid_is_written_and_read_back(tmp_path: Path) -> None:
    chip = rl.chip("wormhole-n150")
    assert chip.grid is not None
    again = rl.chip(chip.save(tmp_path / "mine.toml")).grid
    assert again == chip.grid.model_copy(update={"sram": 1.49914e6})  # figures are written with six digits


def test_figures_of_a_grid_are_set_and_swept() -> None:
    chip = with_settings(rl.chip("wormhole-n150"), ["grid.sram=512KiB", "grid.rows=7", "grid.noc_bandwidth=x2"])
    assert chip.grid is not None
    assert (chip.grid.sram, chip.grid.rows, chip.grid.noc_bandwidth) == (2**19, 7, 128e9)
    with pytest.raises(rl.errors.ChipDataError, match=r"grid\.sram"):
        with_settings(chip, ["grid.sram=1B"])
    with pytest.raises(rl.errors.UsageError, match=r"did you mean grid\.sram"):
        with_settings(chip, ["grid.srm=1MiB"])
    figures = {"grid.sram": "32..2048KiB", "grid.noc_bandwidth": "0.5..64GB/s", "grid.rows": "2,8"}
    swept = rl.sweep_chip(gemm(3000, 2000, 1000), "wormhole-n150", figures, points=3, mode="graph")
    assert (np.diff(swept.time, axis=0) <= 1e-12).all()
    for index in ((0, 0, 0), (2, 1, 1), (1, 2, 0)):
        alone = rl.estimate(gemm(3000, 2000, 1000), swept.chip_at(*index), mode="graph").time
        assert swept.time[index] == pytest.approx(alone, rel=1e-12)


def test_no_prediction_is_below_the_engines_peak() -> None:
    for chip in ("wormhole-n150", "blackhole-p150", "tpu-v4", "tpu-v6e"):
        for size in (1, 31, 128, 4096):
            est = rl.estimate(gemm(size, 4096, 4096), chip, mode="graph")
            assert est.time >= est.floor
            assert est.time >= est.flops / rl.chip(chip).matmul_peak("bf16")


def test_half_an_array_is_half_as_fast() -> None:
    full, half = (rl.estimate(gemm(8192, 8192, 128 * parts), "tpu-v5e", mode="graph").time for parts in (1, 0.5))
    assert half == pytest.approx(full, rel=0.05)  # 64 deep takes the time of 128


def test_the_report_names_the_way_and_the_level() -> None:
    rows = rl.analysis.mapping(rl.estimate(gemm(4096, 4096, 4096), "wormhole-n150")).records()
    assert rows[0]["mapping"].startswith("m over rows, n over columns; ")
    assert rows[0]["level"] == "engine"
    assert rows[0]["engine_share"] == pytest.approx(0.82)
    assert rows[0]["time_s"] == max(rows[0][f"{level.lower()}_s"] for level in LEVELS)
    few = rl.analysis.mapping(rl.estimate("llama-3-8b", "wormhole-n150", phase="decode", batch=1, context=64)).records()
    assert few[0]["level"] == "DRAM"
    net = rl.analysis.mapping(rl.estimate("resnet18", "tpu-v4", batch=1, dtype="bf16"))
    assert {row["op"] for row in net.records()} == {"conv2d", "linear"}
    assert "sets the pace" in repr(net)
    with pytest.raises(rl.errors.MissingFigure, match="describes no grid"):
        rl.analysis.mapping(rl.estimate("resnet18", "h100-sxm", batch=1))


def test_attention_is_two_products() -> None:
    rows = rl.analysis.mapping(
        rl.estimate("gpt2", "tpu-v4", phase="prefill", batch=1, seq=1024, dtype="bf16")
    ).records()
    sdpa = [row for row in rows if row["op"] == "attention_scores"]
    assert {(row["n"], row["k"]) for row in sdpa} == {(512.5, 64.0), (64.0, 512.5)}  # half of the pairs are masked


# Published figures


def test_published_matmuls_of_tenstorrent() -> None:
    """87 matmuls of two chips, of which one figure each went into the chips' files."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    try:
        import silicon_table
    finally:
        sys.path.pop(0)
    rows = list(silicon_table.rows())
    errors = [abs(predicted / published - 1) for _, published, predicted in rows]
    assert len(rows) == 87
    assert mean(errors) < 0.10
    assert median(errors) < 0.07
    # what bounds them: two-phase bf16 waits for the core's memory, four-phase for the engine
    large = {(row["chip"], row["format"], row["phases"]): predicted for row, _, predicted in rows if row["m"] == "8192"}
    assert large["wormhole-n150", "bf16", "4"] > 0.9
    assert large["wormhole-n150", "bf16", "2"] == pytest.approx(80 / 128, rel=0.01)  # 32 cycles, 4096 B at 80 B a cycle


def test_the_first_tpu_waits_for_weights() -> None:
    """Jouppi et al. 2017: MLP0 has 20M weights in five layers and a batch of 200, and reaches 12.3 of 92 TOPS.

    That is bound by weights from DDR3, 13.6 TOPS; the engine would reach 66, since 200 rows are fewer than the 256
    cycles that a tile of weights takes, and 2000 is no multiple of 256.
    """
    tpu = rl.Chip(
        name="tpu-v1", matrix={"int8": "92 TOPS"}, memory_bandwidth="34 GB/s", cores=1, core_name="TPU",
        efficiency={"compute": 1.0, "memory": 1.0, "launch": 0.0},
        grid={"rows": 1, "columns": 1, "sram": "24 MiB",
              "engine": {"shape": [1, 256, 256], "dataflow": "systolic", "load": 256}},
    )  # fmt: skip
    layer = rl.workload([{"op": "gemm", "m": 200, "n": 2000, "k": 2000, "dtype": "int8"}])
    row = rl.analysis.mapping(rl.estimate(layer, tpu)).records()[0]
    assert row["level"] == "DRAM"
    cycle = 2 * 256 * 256 / 92e12
    assert row["engine_s"] == pytest.approx((8 * 8 * 256 + 512) * cycle)
    assert row["dram_s"] == pytest.approx((2000 * 2000 + 200 * 2000 + 4 * 200 * 2000) / 34e9)  # int8 sums to 32 bits


def test_the_command_shows_how_products_are_spread(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", "gpt2", "wormhole-n150", "-S", "512", "--mode", "graph"]
    assert main(words) == 0
    assert re.search(r"(m|n) over rows, (n|k) over columns; output stays +(DRAM|engine)", capsys.readouterr().out)
    assert main([*words, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["mapping"]
    assert rows[0]["level_bytes"]["DRAM"] >= rows[0]["k"] * rows[0]["n"] * 4
    assert {row["level"] for row in rows} <= set(LEVELS)
