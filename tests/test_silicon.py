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
EXAMPLES = Path(__file__).parents[1] / "examples" / "chips"
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


@pytest.mark.parametrize(
    ("m", "n", "k", "total"), [(1024, 4800, 1600, 238069), (1024, 1024, 64, 7159), (1024, 1600, 1600, 87709)]
)
def test_without_overlap_an_array_takes_the_cycles_of_scale_sim(m: int, n: int, k: int, total: int) -> None:
    """Layers of a GPT-2 on a weight-stationary array of 256 x 256, as SCALE-Sim v2 printed them.

    https://github.com/HyakunosukeOgata/SCALE_sim_v2_notes/blob/184fd7fd/README.md; it counts from cycle 0.
    """
    array = Engine(shape=(1, 256, 256), dataflow="systolic", overlap=False)
    assert cycles(array, 1, m, n, k) == total + 1
    folds = -(-n // 256) * -(-k // 256)
    assert cycles(array.model_copy(update={"overlap": True}), 1, m, n, k) == folds * m + 512


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


def test_of_ways_that_take_as_long_none_splits_the_depth() -> None:
    product = Product(1, 8, 4096, 4096, 2.0, 2.0, 2.0, 2.0 * (8 * 8192 + 4096**2))
    found = spread(GRID, product, Rates(1e-12, 1e9))  # main memory sets the pace in each
    assert "k over" not in named(int(found.choice), GRID)


def test_channels_of_idle_rows_lie_idle() -> None:
    """One row of tiles keeps one row of cores busy: a quarter of the channels, but for what goes over columns."""
    grid = GRID.model_copy(update={"channels": 8, "channel_bandwidth": 1e9, "channel_serves": "rows"})
    product = Product(1, 32, 32, 32, 2.0, 2.0, 2.0, 6144.0)
    one = spread(grid, product, Rates(1e-12, 1e12)).by_level["DRAM"]
    assert one == pytest.approx(6144 / 2e9)  # one of four rows: two of eight channels
    every = spread(grid.model_copy(update={"channel_serves": "all"}), product, Rates(1e-12, 1e12)).by_level["DRAM"]
    assert every == pytest.approx(6144 / 8e9)


def test_a_convolution_reads_its_image_again_and_not_its_windows() -> None:
    """A layer of VGG on one core of 128 KiB, which Timeloop's mapper for an Eyeriss-like chip gives 237.6 M words.

    132,120,576 + 79,822,848 + 25,690,112 in exercises/timeloop/06-mapper-convlayer-eyeriss/ref-output of
    https://github.com/Accelergy-Project/timeloop-accelergy-exercises @0d5bb488.
    """
    layer = rl.workload([{"op": "conv2d", "n": 16, "c_in": 256, "h": 58, "w": 58, "c_out": 512, "r": 3, "s": 3,
                          "dtype": "fp16"}])  # fmt: skip
    core = {"rows": 1, "columns": 1, "sram": "128 KiB", "engine": {"shape": [16, 16, 1]}}
    chip = rl.Chip(name="one", matrix={"fp16": "512 GFLOP/s"}, memory_bandwidth="1 TB/s", grid=core)
    words = rl.analysis.mapping(rl.estimate(layer, chip)).records()[0]["level_bytes"]["DRAM"] / 2
    nest = rl.tiling.conv(16, 256, (58, 58), 512, (3, 3))
    moved, timeloop = rl.tiling.best(nest, 2**16).traffic, 237_633_536
    best = sum(moved.read.values()) + sum(moved.write.values())
    assert rl.tiling.lower_bound(nest, 2**16) < best < timeloop < words < 1.25 * timeloop


def test_resnet_on_a_core_like_a_tpu_takes_the_cycles_of_zigzag_but_for_the_first_layer() -> None:
    """4,160,591 in tests/main/test_origin/test_tpu_like.py of https://github.com/KULeuven-MICAS/zigzag @20f541c7.

    Its mapping takes channels alone as depth: the first layer's three fill 3 of 32 rows, for each of 49 taps.
    """
    array = {"shape": [1, 32, 32], "dataflow": "systolic"}
    chip = rl.Chip(
        name="tpu-like", matrix={"int8": "2.048 TOPS"}, vector={"fp32": "1 TFLOP/s"}, memory_bandwidth="8 GB/s",
        cores=1, core_name="core", efficiency={"compute": 1.0, "memory": 1.0, "launch": 0.0},
        grid={"rows": 1, "columns": 1, "sram": "2 MiB", "sram_bandwidth": "256 GB/s", "engine": array},
    )  # fmt: skip
    rows = rl.analysis.mapping(rl.estimate("resnet18", chip, mode="graph", batch=1, dtype="int8")).records()
    cycles_of = {row["kernel"]: row["count"] * row["time_s"] * 1e9 for row in rows}
    assert cycles_of["conv1"] == pytest.approx(5 * 2 * 12544 + 64)
    assert sum(cycles_of.values()) == pytest.approx(2_547_290, abs=1)
    assert sum(cycles_of.values()) - cycles_of["conv1"] + 49 * 2 * 12544 == pytest.approx(4_160_591, rel=0.13)


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


@pytest.mark.parametrize(
    ("figure", "values"),
    [("grid.noc_bandwidth", "1..64GB/s"), ("grid.sram_bandwidth", "1..90GB/s"), ("grid.engine.count", "1..4"),
     ("grid.channels", "2..12"), ("grid.channel_bandwidth", "10..90GB/s"), ("grid.lanes", "8..64")],
)  # fmt: skip
def test_each_figure_of_a_grid_is_swept_alone(figure: str, values: str) -> None:
    sketch = rl.chip(str(EXAMPLES / "channels.toml"))
    sizes: dict[str, Any] = {"phase": "prefill", "mode": "graph", "batch": 1, "seq": 64, "dtype": "bf16"}
    swept = rl.sweep_chip("gpt2", sketch, {figure: values}, points=3, **sizes)
    for at in range(len(swept.time)):
        alone = rl.estimate("gpt2", swept.chip_at(at), **sizes)
        assert (swept.time[at], swept.results["high"][at]) == pytest.approx((alone.time, alone.high), rel=1e-12)


def test_what_bounds_is_what_sets_the_pace() -> None:
    """Few channels make a program wait for main memory that has the bandwidth by its file."""
    sizes: dict[str, Any] = {"phase": "prefill", "mode": "graph", "batch": 1, "seq": 512, "dtype": "bf16"}
    swept = rl.sweep_chip("gpt2", EXAMPLES / "channels.toml", {"grid.channels": [1, 16]}, **sizes)
    assert swept.bound.tolist() == ["memory", "compute"]


def test_a_core_whose_memory_holds_no_tile_is_refused() -> None:
    with pytest.raises(rl.errors.ChipDataError, match=r"grid\.sram of 8\.00 KiB: .* take 12\.00 KiB"):
        rl.estimate(gemm(64, 64, 64), with_settings(rl.chip("wormhole-n150"), ["grid.sram=8KiB"]))


def test_sketches_by_hand() -> None:
    """Chips whose main memory is SRAM, and one of channels: invented figures, so what they give is worked out here."""

    def row(name: str, dtype: str, m: int, n: int, k: int) -> dict[str, Any]:
        return rl.analysis.mapping(rl.estimate(gemm(m, n, k, dtype), EXAMPLES / f"{name}.toml")).records()[0]

    arrays = row("streaming", "int8", 512, 4096, 4096)
    assert arrays["engine_s"] == pytest.approx((16 * 16 / 4 * 512 + 512) / 1e9)
    assert row("streaming", "int8", 1, 4096, 4096)["engine_s"] == pytest.approx((16 * 16 / 4 * 16 + 512) / 1e9)
    wafer = row("wafer", "fp16", 4096, 4096, 4096)
    assert wafer["time_s"] == pytest.approx(6 * 7 * 1024 / 1e9)  # rows over 800 columns, depth over 600 rows
    assert wafer["sram_s"] == pytest.approx(6 * 7 * 4096 * 2.5 / 16e9)  # one right element each, four share a left one
    cores = row("channels", "bf16", 64, 64, 8192)
    assert cores["noc_s"] == pytest.approx((8 + 16) * 8192 * 2 / 64e9)
    assert cores["engine_s"] == pytest.approx(512 / 2 * 2 * 8 * 16 * 16 * 2 * 32 / 64e12)  # two engines share the steps
    assert "vector" in rl.estimate(gemm(8, 64, 64, "fp32"), EXAMPLES / "streaming.toml").chip.matmul_runs_as("fp32")


def test_columns_are_padded_to_the_vector_engine() -> None:
    program: dict[str, Any] = {"phase": "prefill", "batch": 1, "seq": 40, "dtype": "bf16", "mode": "graph"}
    est = [rl.estimate("gpt2", with_settings(rl.chip(EXAMPLES / "channels.toml"), [f"grid.lanes={lanes}"]), **program)
           for lanes in (1, 32, 3000)]  # fmt: skip
    scores = [next(row for row in rl.analysis.mapping(each).records() if row["op"] == "attention_scores")
              for each in est]  # fmt: skip
    assert scores[2]["vector_s"] / scores[0]["vector_s"] == pytest.approx(3000 / 21)  # 20.5 pairs a row are unmasked
    assert scores[2]["level"] == "vector"
    assert est[0].time <= est[1].time < est[2].time


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
