"""Tables of measured operators, judged row by row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from command_line import Run, fails

import roofline as rl
from roofline.diagnosis.reference import lower_bound
from roofline.diagnosis.timetable import time_column

GEMM = {"op": "gemm", "dtype": "bf16", "m": 4096, "n": 4096, "k": 4096}
SHAPE = '{"m": 4096, "n": 4096, "k": 4096}'
CHIP = "h100-sxm"


def judged(*rows: dict[str, Any], **options: Any) -> list[Any]:
    return list(rl.diagnosis.check_ops(rows, CHIP, **options).rows)


def expected() -> float:
    return float(rl.predict([{"op": "gemm", "dtype": "bf16", "shape": SHAPE}], CHIP).predicted_us[0])


@pytest.mark.parametrize(
    ("factor", "verdict"),
    [(0.01, "impossible"), (1.0, "as_expected"), (3.0, "slow"), (9.9, "slow"), (10.1, "very_slow"), (1e6, "very_slow")],
)
def test_verdicts(factor: float, verdict: str) -> None:
    (row,) = judged({**GEMM, "time_us": factor * expected()})
    assert row.verdict == verdict
    assert row.ratio == pytest.approx(factor)
    assert row.expected_s == pytest.approx(expected() * 1e-6)
    assert row.low_s <= row.expected_s <= row.high_s
    assert row.floor_s <= row.low_s
    assert row.bound == "compute"
    assert row.lost_s == pytest.approx(max(factor - 1, 0) * row.expected_s, abs=1e-12)
    assert "\n" not in row.reason


def test_the_limit_is_that_of_a_check() -> None:
    graph = rl.workload([GEMM])
    limit = lower_bound(rl.estimate(graph, CHIP, mode="graph"))
    verdicts = [row.verdict for row in judged(*({**GEMM, "time_s": limit * f} for f in (0.999, 1.001)))]
    assert sorted(verdicts) == ["as_expected", "impossible"]
    for factor in (0.999, 1.001):
        alone = rl.check(graph, CHIP, limit * factor, mode="graph").verdict
        assert judged({**GEMM, "time_s": limit * factor})[0].verdict == alone


def test_sizes_as_json_or_as_columns() -> None:
    columns = {**GEMM, "time_us": 500}
    shaped = {"op": "gemm", "dtype": "bf16", "shape": SHAPE, "time_us": 500}
    table = {"op": "gemm", "dtype": "bf16", "shape": json.loads(SHAPE), "time_us": 500}
    found = [judged(row)[0] for row in (columns, shaped, table)]
    assert found[0] == found[1] == found[2]
    text = {key: str(value) for key, value in columns.items()}
    assert judged(text)[0] == found[0]


def test_columns_of_other_operators_stay_empty() -> None:
    rows = [
        {**GEMM, "rows": "", "cols": "", "b": "", "time_us": 500},
        {"op": "softmax", "dtype": "bf16", "m": "", "rows": 4096.0, "cols": 4096, "time_us": 500},
        {"op": "bmm", "dtype": "bf16", "b": 4, "m": 128, "n": 128, "k": 128, "time_us": 500},
        {"op": "attention", "dtype": "bf16", "batch": 1, "heads": 8, "q_len": 512, "kv_len": 512, "head_dim": 64,
         "causal": "True", "time_us": 500},
    ]  # fmt: skip
    found = judged(*rows)
    assert {row.verdict for row in found} <= {"slow", "very_slow"}
    assert dict(next(row for row in found if row.op == "attention").shape)["causal"] is True


def test_rows_that_lose_most_come_first() -> None:
    rows = [{**GEMM, "time_us": t, "count": c} for t, c in ((500, 1), (400, 100), (1000, 1), (-1, 1), (100, 1))]
    found = judged(*rows)
    assert [row.row for row in found] == [2, 3, 1, 5, 4]
    assert found[0].lost_s == pytest.approx(100 * (400 - expected()) * 1e-6)
    assert found[-1].verdict == "unknown"


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ({**GEMM, "time_us": ""}, "no time in"),
        ({**GEMM, "time_us": "0"}, "above zero"),
        ({**GEMM, "time_us": "fast"}, "above zero"),
        ({**GEMM, "op": "gemmm", "time_us": 1}, "unknown op"),
        ({**GEMM, "dtype": "", "time_us": 1}, "no dtype"),
        ({**GEMM, "dtype": "bf17", "time_us": 1}, "bf17"),
        ({**GEMM, "m": "many", "time_us": 1}, "m='many'"),
        ({**GEMM, "k": "", "time_us": 1}, "gemm needs k"),
        ({**GEMM, "chip": "h101", "time_us": 1}, "h101"),
        ({**GEMM, "count": "0", "time_us": 1}, "count='0'"),
        ({"op": "gemm", "dtype": "bf16", "shape": "{m: 1}", "time_us": 1}, "not JSON"),
        ({"op": "", "dtype": "bf16", "time_us": 1}, "neither an op"),
    ],
)
def test_a_row_that_fails_says_why_and_the_others_go_on(row: dict[str, Any], match: str) -> None:
    found = judged(row, {**GEMM, "time_us": 500})
    assert [one.verdict for one in found] == ["slow", "unknown"]
    assert match in found[1].reason
    assert "\n" not in found[1].reason


@pytest.mark.parametrize(
    ("rows", "options", "match"),
    [
        ([], {}, "no rows"),
        ([{"model": "gpt2", "time_us": 1}], {}, "no column 'op'"),
        ([GEMM], {}, "no column of times"),
        ([{**GEMM, "time": 1}], {}, None),
        ([{**GEMM, "time_us": 1}], {"column": "wall_us"}, "no column 'wall_us'"),
        ([{**GEMM, "time_us": 1}], {"regime": "tepid"}, "tepid"),
        (["gemm"], {}, "a row is a dictionary"),
    ],
)
def test_tables_that_are_none(rows: list[Any], options: dict[str, Any], match: str | None) -> None:
    if match is None:  # a unit may stand in the cell, so the row says that it does not
        assert "has no unit" in judged(*rows)[0].reason
        return
    with pytest.raises(rl.errors.UsageError, match=match) as error:
        rl.diagnosis.check_ops(rows, CHIP, **options)
    assert "\n" not in str(error.value)


def test_chips_by_row_and_by_argument() -> None:
    rows = [{**GEMM, "time_us": 500, "chip": name} for name in ("h100-sxm", "a100-80gb-sxm", "")]
    found = sorted(rl.diagnosis.check_ops(rows, "t4").rows, key=lambda row: row.row)
    assert [row.verdict for row in found] == ["slow", "as_expected", "impossible"]
    alone = {row.row: row for row in rl.diagnosis.check_ops(rows).rows}
    assert "no chip" in alone[3].reason
    assert alone[1] == found[0]


def test_formats_by_argument_and_tf32() -> None:
    row = {**GEMM, "dtype": "", "time_us": 400}
    assert judged(row, dtype="bf16")[0].dtype == "bf16"
    fp32, tf32 = (judged({**GEMM, "dtype": dtype, "time_us": 400})[0] for dtype in ("fp32", "tf32"))
    assert (fp32.verdict, tf32.verdict) == ("impossible", "as_expected")


def test_files_and_frames(tmp_path: Path) -> None:
    rows = [{"op": "gemm", "dtype": "bf16", "shape": SHAPE, "kernel_us": t, "p50_us": t + 3} for t in (210, 600)]
    file = tmp_path / "ops.csv"
    pd.DataFrame(rows).to_csv(file, index=False)
    found = [rl.diagnosis.check_ops(source, CHIP) for source in (rows, file, pd.DataFrame(rows))]
    assert found[0].rows == found[1].rows == found[2].rows
    assert found[0].column == "kernel_us"
    assert found[0].regime == "program"
    assert rl.diagnosis.check_ops(rows, CHIP, column="p50_us").regime == "warm"
    assert list(found[0].frame().row) == [row.row for row in found[0].rows]


def test_the_sum_and_the_record() -> None:
    found = rl.diagnosis.check_ops([{**GEMM, "time_us": t} for t in (500, 190, "")], CHIP)
    assert found.counts == {"slow": 1, "as_expected": 1, "unknown": 1}
    assert found.measured_s == pytest.approx(690e-6)
    assert found.lost_s == pytest.approx(sum(row.lost_s for row in found.rows))
    assert json.loads(json.dumps(found.record()))["rows"][0]["verdict"] == "slow"
    assert str(found).startswith("3 rows: 1 slow, 1 as_expected, 1 unknown;")


def test_shipped_measurements_are_possible() -> None:
    """No measured operator is called impossible, and hardly any slow."""
    path = Path(__file__).resolve().parent.parent / "measurements" / "h100-sxm" / "ops.csv"
    found = rl.diagnosis.check_ops(path, CHIP)
    assert "impossible" not in found.counts
    assert "unknown" not in found.counts
    assert found.counts["as_expected"] > 0.9 * len(found.rows)


@pytest.mark.parametrize(
    ("columns", "name", "scale"),
    [
        (["batch", "time_ms"], "time_ms", 1e-3),
        (["op", "p20_us", "p50_us", "p80_us"], "p50_us", 1e-6),
        (["op", "min (us)", "max (us)", "avg (us)"], "avg (us)", 1e-6),
        (["compile_s", "wall_us"], "wall_us", 1e-6),
        (["predicted_us", "low_us", "Duration [ns]"], "Duration [ns]", 1e-9),
        (["n", "s"], "s", 1.0),
        (["latency in ms"], "latency in ms", 1e-3),
        (["Elapsed Time (usec)"], "Elapsed Time (usec)", 1e-6),
        (["time"], "time", 0.0),
        (["time", "device_us"], "device_us", 1e-6),
    ],
)
def test_the_column_of_times(columns: list[str], name: str, scale: float) -> None:
    found = time_column(columns)
    assert (found.name, found.scale) == (name, pytest.approx(scale))


def test_a_row_without_a_format_says_so_in_its_error(tmp_path: Path, run: Run) -> None:
    rows = [{"op": "gemm", "m": 4096, "n": 4096, "k": 4096, "time_us": 190, "dtype": dtype} for dtype in ("bf16", "")]
    good, bad = sorted(rl.diagnosis.check_ops(rows, "h100-sxm").rows, key=lambda row: row.row)
    assert (good.verdict, good.error) == ("as_expected", None)
    assert (bad.verdict, bad.error) == ("unknown", "no dtype")
    file = tmp_path / "ops.csv"
    file.write_text("op,m,n,k,time_us\ngemm,4096,4096,4096,190\n")
    done = run("ops", file, "h100-sxm", "--json")
    assert done.code == 1
    assert done.data["rows"][0]["error"] == "no dtype"
    assert "1 row could not be judged, 1 of them: no dtype" in done.err
    assert run("ops", file, "h100-sxm", "--dtype", "bf16").code == 0
    predicted = tmp_path / "rows.csv"
    predicted.write_text('op,dtype,shape\nrelu,,"{""n"": 8}"\nrelu,bf16,"{""n"": 8}"\n')
    done = run("predict", predicted, "h100-sxm", "--json")
    assert done.code == 1
    assert [row["error"] for row in done.data["rows"]] == ["no dtype", None]


def test_the_chip_is_named_alike_everywhere(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "ops.csv"
    file.write_text("op,dtype,m,n,k,time_us\ngemm,bf16,4096,4096,4096,190\n")
    assert run("ops", file, "h100-sxm").out == run("ops", file, "--chip", "h100-sxm").out
    table = tmp_path / "rows.csv"
    table.write_text('op,dtype,shape\nrelu,bf16,"{""n"": 8}"\n')
    assert run("predict", table, "t4").out == run("predict", table, "--chip", "t4").out
    assert run("compare", "gpt2", "t4,l4", "-S", "8").out == run("compare", "gpt2", "--chips", "t4,l4", "-S", "8").out
    fails(run("ops", file, "t4", "--chip", "l4"), "the chip is given twice")
    fails(run("trace", file, "t4", "--chip", "l4"), "the chip is given twice")
    fails(run("validate", file, "t4", "--chip", "l4"), "the chip is given twice")
    fails(run("compare", "gpt2", "-S", "8"), "no chips given")
