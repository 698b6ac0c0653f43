"""``rl.schedules``: how a matmul may be blocked on a GPU, against hand-worked numbers and measured schedules."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from command_line import Run, fails
from scipy.stats import spearmanr

import roofline as rl
from roofline.analysis.schedules import FIGURES, usual
from roofline.cost.schedules import price, problems
from roofline.tiling import Schedule
from roofline.tiling.waves import ALIGNED

HOME = Path(__file__).parent.parent / "measurements"
SQUARE = "gemm m=4096 n=4096 k=4096 dtype=bf16"


@cache
def measured(chip: str) -> pd.DataFrame:
    rows = pd.read_csv(HOME / chip / "onchip" / "triton_matmul.csv")
    sizes = pd.DataFrame(rows.pop("shape").map(json.loads).tolist())
    return rows.join(sizes)


def priced(rows: pd.DataFrame, chip: str) -> Any:
    schedule = Schedule(*(rows[name].to_numpy() for name in FIGURES))
    return price(schedule, (1, rows.m, rows.n, rows.k), rl.chip(chip))


def judged(chip: str, aligned: bool) -> dict[str, float]:
    """Mean over shapes of what a choice loses, the rank correlation and the mean error."""
    rows = measured(chip)
    loose = (rows.k % ALIGNED > 0) | (rows.n % ALIGNED > 0)
    rows = rows[loose != aligned].reset_index(drop=True)
    seconds = priced(rows, chip).seconds
    found = []
    for _, some in rows.groupby(["m", "n", "k"]):
        time, us = seconds[some.index], some.us.to_numpy()
        order = np.argsort(time, kind="stable")
        found.append((us[order[0]] / us.min(), us[order[:8]].min() / us.min(), spearmanr(time, us)[0],
                      np.abs(time * 1e6 / us - 1).mean()))  # fmt: skip
    return dict(zip(("first", "eight", "rank", "error"), np.mean(found, axis=0), strict=True))


@pytest.mark.parametrize("chip", ["h100-sxm", "h200-sxm"])
def test_measured_schedules_are_ranked(chip: str) -> None:
    found = judged(chip, aligned=True)
    assert found["first"] < 1.06
    assert found["eight"] < 1.01
    assert found["rank"] > 0.93
    assert found["error"] < 0.11


def test_shapes_whose_rows_are_not_aligned_are_slower_and_still_ranked() -> None:
    found = judged("h200-sxm", aligned=False)
    assert found["first"] < 1.15
    assert found["eight"] < 1.08
    assert found["rank"] > 0.85
    odd, even = (rl.schedules(f"gemm m=1024 n={n} k=1024", "h100-sxm", top=1).best.time_s or 0.0 for n in (1000, 1024))
    assert odd > 2 * even


def test_shared_memory_is_what_triton_compiled() -> None:
    """Where rows are not aligned, it turns some results about in more than their operands take."""
    for chip in ("h100-sxm", "h200-sxm"):
        rows = measured(chip)
        same = priced(rows, chip).shared == rows.shared_bytes
        loose = (rows.k % ALIGNED > 0) | (rows.n % ALIGNED > 0)
        assert same[~loose].all()
        assert not loose.any() or same[loose].mean() > 0.9


def test_numbers_by_hand() -> None:
    """4096^3 in blocks of 128 x 256 x 64, eight warps, three stages, on 132 SMs with 227 KB a block."""
    row = rl.schedules(SQUARE, "h100-sxm", Schedule(128, 256, 64, 8, 8, 3)).best
    assert row.blocks == 32 * 16
    assert row.blocks_per_core == 1  # twice 148,480 bytes are more than 233,472
    assert row.waves == pytest.approx(512 / 132)
    assert row.tail == pytest.approx(1 - 512 / (4 * 132))
    assert row.shared_bytes == 3 * (128 + 256) * 64 * 2
    small = rl.schedules(SQUARE, "h100-sxm", Schedule(32, 64, 64, 1, 4, 3)).best
    assert small.shared_bytes == 2 * (32 + 64) * 64 * 2  # one buffer less: its warps multiply from registers
    assert small.blocks == 128 * 64
    two = rl.schedules(SQUARE, "h100-sxm", Schedule(128, 128, 64, 8, 8, 3)).best
    assert two.blocks_per_core == 2  # 233,472 / (98,304 + 1,024) = 2.35; registers: 65,536 / (256 x 128) = 2


def test_the_floor_is_the_matmuls_own() -> None:
    found = rl.schedules(SQUARE, "h100-sxm")
    assert found.floor == pytest.approx(2 * 4096**3 / 989.4e12)
    for row in found.rows:
        low, time, high = (value or 0.0 for value in (row.low_s, row.time_s, row.high_s))
        assert found.floor <= low <= time <= high
    tiny = rl.schedules("gemm m=16 n=16 k=16", "h100-sxm")
    assert tiny.best.bound == "launch"


def test_rows_are_sorted_and_cut() -> None:
    every = rl.schedules(SQUARE, "h100-sxm")
    times = [row.time_s for row in every.rows]
    assert times == sorted(times)
    assert every.searched == len(every.rows) + len(every.refused) == len(usual().bm)
    few = rl.schedules(SQUARE, "h100-sxm", top=3)
    assert few.rows == every.rows[:3]
    assert few.best == every.best
    assert list(every.frame().columns[:7]) == [*FIGURES, "time_s"]


def test_measured_space_is_in_the_usual_one() -> None:
    rows = measured("h100-sxm")[list(FIGURES)].drop_duplicates()
    assert set(map(tuple, rows.to_numpy())) <= set(zip(*(getattr(usual(), name) for name in FIGURES), strict=True))


def test_what_cannot_run_says_why() -> None:
    large, larger = Schedule(256, 256, 128, 8, 8, 4), Schedule(256, 256, 64, 8, 4, 2)
    space = [large, larger, Schedule(8, 64, 64), Schedule(64, 72, 64), Schedule(64, 64, 64)]
    found = rl.schedules(SQUARE, "h100-sxm", space)
    assert len(found.rows) == 1
    assert [row.problem for row in found.refused] == [
        "256 registers a thread for sums of 255", "512 registers a thread for sums of 255",
        "an edge of 8, matrix units take multiples of 16", "an edge of 72, matrix units take multiples of 16",
    ]  # fmt: skip
    assert all(row.time_s is None for row in found.refused)
    none = rl.schedules(SQUARE, "h100-sxm", Schedule(128, 256, 128, 8, 8, 3))
    assert none.refused[0].problem == "294,912 bytes of shared memory of 232,448"
    with pytest.raises(rl.RooflineError, match="none of 1 schedules can run on h100-sxm: 294,912 bytes"):
        _ = none.best
    assert rl.schedules(SQUARE, "a100-80gb-sxm", Schedule(128, 256, 64, 8, 8, 3)).rows
    small = rl.schedules(SQUARE, "l40s", Schedule(128, 256, 64, 8, 8, 4))
    assert "shared memory of 101,376" in small.refused[0].problem


def test_a_space_is_a_schedule_several_or_values() -> None:
    arrays = Schedule(np.array([64, 128]), 128, 64, 8, 4, 3)
    one = rl.schedules(SQUARE, "h100-sxm", arrays)
    two = rl.schedules(SQUARE, "h100-sxm", [Schedule(64, 128, 64, 8, 4, 3), Schedule(128, 128, 64, 8, 4, 3)])
    three = rl.schedules(
        SQUARE, "h100-sxm", {"bm": [64, 128], "bn": 128, "bk": 64, "group": 8, "warps": 4, "stages": 3}
    )
    assert one.rows == two.rows == three.rows


@pytest.mark.parametrize(
    ("space", "why"),
    [
        ({"bq": [1]}, "unknown figure 'bq'"), ({"bm": [0]}, "bm=0: expected a whole number"),
        ({"bm": [64.5]}, "bm=64.5"), ({"bm": ["x"]}, "bm='x'"), ({"bm": [float("nan")]}, "bm=nan"),
        ({"bm": range(16, 20000)}, "a space of"), ([], "expected 1 to"), ([1], "expected 1 to"),
        (Schedule(64, 64, 10**9), "bk=1000000000"), (3, "expected 1 to"), ({"bm": [True]}, "bm=True"),
        (Schedule(np.ones(3), np.ones(4), 64), "arrays have other lengths"),
    ],
)  # fmt: skip
def test_wrong_spaces_are_refused(space: Any, why: str) -> None:
    with pytest.raises(rl.RooflineError, match=why):
        rl.schedules(SQUARE, "h100-sxm", space)


def test_only_one_matmul_on_a_gpu() -> None:
    with pytest.raises(rl.RooflineError, match="schedules are of one matmul"):
        rl.schedules("softmax rows=64 cols=64", "h100-sxm")
    with pytest.raises(rl.RooflineError, match="schedules are of one matmul"):
        rl.schedules(rl.workload([{"op": "gemm", "m": 64, "n": 64, "k": 64}] * 2), "h100-sxm")
    for chip in ("tpu-v5e", "xeon-8480", "mi300x"):
        with pytest.raises(rl.RooflineError, match="schedules are those of NVIDIA's SMs"):
            rl.schedules(SQUARE, chip)
    with pytest.raises(rl.RooflineError, match="h20 has no published clock"):
        rl.schedules(SQUARE, "h20")


def test_a_batch_runs_its_matmuls_side_by_side() -> None:
    one = rl.schedules({"op": "bmm", "b": 8, "m": 512, "n": 512, "k": 512}, "h100-sxm", Schedule(128, 128, 64))
    assert one.sizes == (8, 512, 512, 512)
    assert one.best.blocks == 8 * 16


def test_tf32_is_faster_than_fp32() -> None:
    plain, fast = (
        rl.schedules("gemm m=4096 n=4096 k=4096 dtype=fp32", "h100-sxm", top=1, tf32=on).best.time_s or 0.0
        for on in (None, True)
    )
    assert plain > 3 * fast


def test_more_work_takes_no_less() -> None:
    last = 0.0
    for k in (256, 512, 1024, 2048, 4096, 8192):
        time = rl.schedules(f"gemm m=1024 n=1024 k={k}", "h100-sxm", Schedule(128, 128, 64)).best.time_s or 0.0
        assert time > last
        last = time


def test_numbers_are_those_of_arrays() -> None:
    s = usual()
    together = price(s, (1, 4096, 4096, 4096), rl.chip("h100-sxm"))
    alone = price(Schedule(*(int(getattr(s, name)[7]) for name in FIGURES)), (1, 4096, 4096, 4096), rl.chip("h100-sxm"))
    assert float(alone.seconds) == pytest.approx(float(together.seconds[7]), rel=1e-12)
    assert problems(alone) == [""]


def has_cores(chip: rl.Chip) -> bool:
    return chip.core_name == "SM" and bool(chip.clock) and any(each.shared_by == "core" for each in chip.memory)


@pytest.mark.parametrize("chip", [name for name in rl.chips() if has_cores(rl.chip(name))])
def test_every_nvidia_gpu_prices_its_schedules(chip: str) -> None:
    found = rl.schedules("gemm m=2048 n=2048 k=2048 dtype=fp16", chip, top=1)
    assert found.best.time_s is not None
    assert found.floor < found.best.time_s < 60 * found.floor


def test_tables_take_schedules_by_the_same_formula() -> None:
    shape = {"op": "gemm", "dtype": "bf16", "shape": '{"m": 4096, "n": 4096, "k": 4096}'}
    good = dict(zip(FIGURES, (128, 256, 64, 8, 8, 3), strict=True))
    table = rl.predict([{**shape, **good}, {**shape, **good, "bk": 128}, shape], "h100-sxm")
    best = rl.schedules(SQUARE, "h100-sxm", Schedule(**good)).best
    assert table.predicted_us[0] == pytest.approx((best.time_s or 0.0) * 1e6)
    assert table.bound[0] == best.bound
    assert "294,912 bytes of shared memory" in table.error[1]
    assert table.predicted_us[2] < table.predicted_us[0]


def test_command(run: Run) -> None:
    found = run("schedules", SQUARE, "h100-sxm", "--top", "2", "--json").data
    assert found["schema"] == {"name": "schedules", "version": 1}
    assert len([row for row in found["rows"] if not row["problem"]]) == 2
    shown = run("schedules", SQUARE, "h100-sxm", "--space", "bm=128 bn=256 bk=64,128 group=8 warps=8 stages=3")
    assert "cannot run: bm=128 bn=256 bk=128" in shown.out
    assert run("schedules", SQUARE, "h100-sxm", "--top", "2", "--csv").out.count("\n") > 2


def test_command_draws_all_schedules_and_shows_the_fastest(run: Run, tmp_path: Path) -> None:
    plain, drawn = (run("schedules", SQUARE, "h100-sxm", *more).out for more in ((), ("--plot", tmp_path / "s.csv")))
    assert plain.split() == drawn.split()[: len(plain.split())]
    assert len(pd.read_csv(tmp_path / "s.csv")) == len(usual().bm)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ((SQUARE, "h100-sxm", "--space", "bq=64"), ("--space", "unknown figure 'bq'")),
        ((SQUARE, "h100-sxm", "--space", "bm=64,x"), ("--space bm=64,x", "whole numbers")),
        ((SQUARE, "h100-sxm", "--space", "bm=64 bm=64"), ("bm twice",)),
        ((SQUARE, "h100-sxm", "--dtype", "fp16"), ("has a dtype", "--dtype")),
        (("gemm m=4096 n=4096", "h100-sxm"), ("gemm needs k",)),
        (("gemm m=4096 n=4096 k=-1", "h100-sxm"), ("k='-1'", "whole number")),
        (("gemm m=4096 m=4096 k=1", "h100-sxm"), ("m twice",)),
        (("gem m=4096 n=4096 k=4096", "h100-sxm"), ("unknown op 'gem'", "gemm")),
        (("resnet50", "h100-sxm"), ()),
    ],
)
def test_wrong_input_is_one_line(run: Run, args: tuple[str, ...], words: tuple[str, ...]) -> None:
    fails(run("schedules", *args), *words)


def test_an_operator_in_one_line_is_a_program() -> None:
    text = rl.estimate("gemm m=512 n=512 k=512", "h100-sxm", mode="graph")
    assert float(text.flops) == 2 * 512**3
    assert rl.load_program("attention batch=1 heads=2 q_len=8 kv_len=8 head_dim=64 causal=true").nodes


def test_chart() -> None:
    found = rl.schedules(SQUARE, "h100-sxm", top=40)
    chart = rl.charts.plot(found, "schedules")
    assert len(chart.records()) == len(found.records())
    texts = [label for mark in chart.drawing().panels[0].marks for label in getattr(mark, "labels", ())]
    assert found.best.figures in texts
    with pytest.raises(rl.RooflineError, match="none of 1 schedules can run"):
        rl.charts.plot_schedules(rl.schedules(SQUARE, "h100-sxm", Schedule(128, 256, 128, 8, 8, 3)))
