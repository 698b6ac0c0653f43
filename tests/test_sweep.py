"""Sweeps over batches: the fitted shape, the knee, bad inputs, and the chip beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import roofline as rl
from roofline.diagnosis.sweep import Fit, fit

LADDER = [1, 2, 4, 8, 16, 32, 64, 128, 256]


def flat(batch: float, floor: float = 5e-3, item: float = 1e-4) -> float:
    return max(floor, item * batch)


def test_a_level_and_a_line_are_told_from_a_line() -> None:
    level = rl.diagnosis.check_sweep(LADDER, [flat(b) for b in LADDER])
    line = rl.diagnosis.check_sweep(LADDER, [5e-3 + 1e-4 * b for b in LADDER])
    assert (level.fit.shape, line.fit.shape) == ("flat", "line")
    for found in (level, line):
        assert found.verdict == "normal"
        assert found.floor_s == pytest.approx(5e-3)
        assert found.marginal_s == pytest.approx(1e-4)
        assert found.knee == pytest.approx(50)
        assert found.saturated == pytest.approx(1e4)
    assert level.recommended == (50, 100)
    assert line.recommended == (200, 256)


def test_one_stray_point_moves_nothing() -> None:
    times = [flat(b) for b in LADDER]
    times[3] *= 1.4
    assert rl.diagnosis.check_sweep(LADDER, times).knee == pytest.approx(50, rel=0.02)
    times = [5e-3 + 1e-4 * b for b in LADDER]
    times[6] *= 1.3
    assert rl.diagnosis.check_sweep(LADDER, times).marginal_s == pytest.approx(1e-4, rel=0.02)


@given(
    floor=st.floats(1e-5, 1.0),
    knee=st.floats(4, 100),
    noise=st.lists(st.floats(-0.02, 0.02), min_size=len(LADDER), max_size=len(LADDER)),
)
def test_floor_and_slope_are_found_again(floor: float, knee: float, noise: list[float]) -> None:
    times = [max(floor, floor / knee * b) * (1 + n) for b, n in zip(LADDER, noise, strict=True)]
    found = rl.diagnosis.check_sweep(LADDER, times)
    assert found.floor_s == pytest.approx(floor, rel=0.15)
    assert found.marginal_s == pytest.approx(floor / knee, rel=0.15)


@pytest.mark.parametrize(
    ("times", "verdict", "word"),
    [
        ([1, 1, 1.01, 1], "flat", "nearly free"),
        ([1, 2, 4, 8], "saturated", "from the first on"),
        ([1, 2, 4, 20], "falling", "throughput falls"),
        ([5, 1, 1.2, 1.5], "unsteady", "warm-up"),
        ([1, 9, 2, 20], "unsteady", "synchronise"),
    ],
)
def test_what_a_sweep_says(times: list[float], verdict: str, word: str) -> None:
    found = rl.diagnosis.check_sweep([1, 2, 4, 8], times)
    assert found.verdict == verdict
    assert word in found.reading
    assert "\n" not in str(found)


def test_order_does_not_matter_and_repeats_are_averaged() -> None:
    found = rl.diagnosis.check_sweep([8, 1, 2, 1], ["8 ms", "3 ms", "4 ms", 0.001])
    assert found.batches == (1, 2, 8)
    assert found.times == pytest.approx((2e-3, 4e-3, 8e-3))


@pytest.mark.parametrize(
    ("batches", "times", "match"),
    [
        ([1, 2], [1, 2], "2 different batches"),
        ([1, 1, 1, 2], [1, 1, 1, 2], "2 different batches"),
        ([1, 2, 3], [1, 2], "3 batches and 2 times"),
        ([1, 2, 3], [1, 0, 2], "above zero"),
        ([1, 2, 3], [1, -1, 2], "above zero"),
        ([1, 2, 3], [1, float("nan"), 2], "finite"),
        ([1, 2, 3], [1, float("inf"), 2], "finite"),
        ([0, 2, 3], [1, 1, 2], "batch 0"),
        ([float("nan"), 2, 3], [1, 1, 2], "batch=nan"),
        ([1, 2, 3], ["1 ms", "2 kg", "3 ms"], "unit"),
        ([], [], "0 different batches"),
    ],
)
def test_inputs_that_are_no_sweep(batches: list[float], times: list[Any], match: str) -> None:
    with pytest.raises(rl.RooflineError, match=match) as error:
        rl.diagnosis.check_sweep(batches, times)
    assert "\n" not in str(error.value)


def test_a_long_sweep_is_quick_and_exact() -> None:
    batches = np.arange(1, 20_001)
    found = rl.diagnosis.check_sweep(batches.tolist(), [flat(b) for b in batches.tolist()])
    assert found.knee == pytest.approx(50, rel=0.05)


def test_numpy_arrays_are_taken() -> None:
    assert rl.diagnosis.check_sweep(np.array([1, 2, 4]), np.array([1.0, 1.0, 4.0])).batches == (1, 2, 4)  # type: ignore[arg-type]


# --- beside a chip ---


def mlp() -> rl.Graph:

    b = rl.ops.Builder("mlp", "bf16")
    x = b.input("x", (rl.ops.symbol("B"), 4096))
    for _ in range(4):
        x = b.op("linear", x, b.weight("w", (4096, 4096)))
    return b.graph([x], items=rl.ops.symbol("B"), item="row")


def test_a_sweep_beside_its_chip() -> None:
    batches = [1, 16, 64, 256, 1024, 4096, 8192]
    expected = rl.estimate(mlp(), "h100-sxm", B=batches, mode="graph")
    found = rl.diagnosis.check_sweep(batches, [1.1 * t for t in expected.time], mlp(), "h100-sxm", mode="graph")
    assert found.predicted is not None
    assert found.predicted.time.tolist() == expected.time.tolist()
    assert found.ridge is not None
    assert 100 < found.ridge < 1000
    assert f"the ridge is at batch {found.ridge}" in found.comparison[0]
    assert "where it belongs" in found.comparison[0]
    assert "7 of 7 times are in the expected range" in found.comparison[1]
    assert "1.1 times" in found.comparison[1]


def test_the_ridge_is_that_of_the_best_batch() -> None:
    choice = rl.best_batch(mlp(), "h100-sxm", mode="graph")
    times = [1e-3] * 3
    found = rl.diagnosis.check_sweep([1, 64, 256], times, mlp(), "h100-sxm", mode="graph")
    assert found.ridge == choice.ridge


@pytest.mark.parametrize(("factor", "added", "word"), [(1.0, 3e-3, "later"), (8.0, 0.0, "earlier")])
def test_a_knee_elsewhere_says_which_part_is_off(factor: float, added: float, word: str) -> None:
    batches = [1, 64, 512, 1024, 2048, 4096, 8192, 16384]
    expected = rl.estimate(mlp(), "h100-sxm", B=batches, mode="graph").time
    times = [max(t, expected[0]) + added + (factor - 1) * max(t - expected[0], 0) for t in expected]
    found = rl.diagnosis.check_sweep(batches, times, mlp(), "h100-sxm", mode="graph")
    assert word in found.comparison[0]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"program": mlp()}, "give both"),
        ({"chip": "h100-sxm"}, "give both"),
        ({"S": 128}, "only with a program"),
        ({"program": mlp().bind(B=4), "chip": "h100-sxm"}, "no symbol B"),
    ],
)
def test_programs_that_cannot_be_compared(options: dict[str, Any], match: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=match):
        rl.diagnosis.check_sweep([1, 2, 4], [1, 1, 2], **options)


def test_only_batches_span_an_axis() -> None:
    with pytest.raises(rl.errors.UsageError, match="over batches alone"):
        rl.diagnosis.check_sweep([1, 2, 4], [1, 1, 2], rl.model("gpt2"), "h100-sxm", S=[64, 128])
    with pytest.raises(rl.errors.UsageError, match="whole batches"):
        rl.diagnosis.check_sweep([1, 2.5, 4], [1, 1, 2], mlp(), "h100-sxm")


def test_the_record_is_plain_data() -> None:
    alone = rl.diagnosis.check_sweep(LADDER, [flat(b) for b in LADDER])
    beside = rl.diagnosis.check_sweep(LADDER, [flat(b) for b in LADDER], mlp(), "h100-sxm")
    assert {row["expected_s"] for row in json.loads(json.dumps(alone.record()))["rows"]} == {None}
    record = json.loads(json.dumps(beside.record()))
    assert [row["batch"] for row in record["rows"]] == LADDER
    assert all(row["expected_s"] > 0 and row["fitted_s"] > 0 for row in record["rows"])
    assert record["verdict"] == "normal"
    assert repr(alone) == "<SweepVerdict normal, knee 50>"


def test_a_fit_goes_through_its_points() -> None:
    batches = np.array([1.0, 2.0, 4.0, 8.0])
    assert fit(batches, 2 + batches).at(batches).tolist() == (2 + batches).tolist()


# --- files ---


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("batch,time_ms\n1,5\n2,6\n", (5e-3, 6e-3)),
        ("batch,time_us\n1,5\n2,6\n", (5e-6, 6e-6)),
        ("batch,latency (ms)\n1,5\n2,6\n", (5e-3, 6e-3)),
        ("Batch Size,Time [s]\n1,5\n2,6\n", (5.0, 6.0)),
        ("bs;ms\n1;5\n2;6\n", (5e-3, 6e-3)),
        ("# a note\nbatch\tduration_ns\n1\t5\n\n2\t6\n", (5e-9, 6e-9)),
        ("batch,time\n1,5 ms\n2,6 us\n", (5e-3, 6e-6)),
        ("batch,time_ms\n1,5\n2,6\n4,\n", (5e-3, 6e-3)),
        ("\ufeffbatch,time_ms\r\n1,5\r\n2,6\r\n", (5e-3, 6e-3)),
    ],
)
def test_files_of_many_makers(tmp_path: Path, text: str, times: tuple[float, ...]) -> None:
    file = tmp_path / "sweep.csv"
    file.write_text(text, encoding="utf-8")
    assert rl.diagnosis.read_sweep(file) == ((1.0, 2.0), pytest.approx(times))


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "no header"),
        ("size,time_ms\n1,5\n", "no column 'batch'"),
        ("batch,speed\n1,5\n", "no column of times"),
        ("batch,time\n1,5\n", "no unit"),
        ("batch,time_ms\nx,5\n", "row 1: batch='x'"),
        ("batch,time_ms\n1,5\n2,0\n", "row 2: time_ms='0'"),
        ("batch,time_ms\n1,fast\n", "row 1: time_ms='fast'"),
    ],
)
def test_files_that_are_no_sweep(tmp_path: Path, text: str, match: str) -> None:
    file = tmp_path / "sweep.csv"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(rl.errors.UsageError, match=match) as error:
        rl.diagnosis.read_sweep(file)
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(rl.errors.UsageError, match="cannot be read"):
        rl.diagnosis.read_sweep(tmp_path / "none.csv")
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00batch")
    with pytest.raises(rl.errors.UsageError, match="not CSV text"):
        rl.diagnosis.read_sweep(tmp_path / "bytes.csv")


def test_the_knee_of_a_line_is_half_of_what_large_batches_approach() -> None:
    # 7 ms and 0.125 ms per item: both meet at 56, throughput b / (7 + b / 8) approaches 8 per ms, with b / (56 + b) of
    # it at b: half at 56, 80 % at 224, 90 % at 504, 69.6 % at the largest. From 64 to 128 it gains 30 %.
    found = rl.diagnosis.check_sweep(LADDER[:8], [7e-3 + 1.25e-4 * b for b in LADDER[:8]])
    assert LADDER[7] == 128
    assert found.knee == pytest.approx(56)
    assert found.fit.share(56) == pytest.approx(0.5)
    assert found.batch_by_share == pytest.approx({"80%": 224, "90%": 504})
    assert found.record()["saturated_share"] == pytest.approx(128 / 184)
    for word in ("at 50% of the 8000 per second", "80% from batch 224", "90% from 504", "128, has 70%"):
        assert word in found.reading
    assert "saturated" not in str(found)


def test_a_knee_below_the_first_batch_is_no_saturation() -> None:
    # The first batch has 64 / (40 + 64) = 62 % of the limit only, though the knee is below it.
    found = rl.diagnosis.check_sweep([64, 96, 128], [4e-3 + 1e-4 * b for b in (64, 96, 128)])
    assert found.verdict == "normal"
    assert "80% from batch 160" in found.reading


def test_a_knee_above_the_last_batch_is_said_with_the_share() -> None:
    found = rl.diagnosis.check_sweep([1, 2, 4, 8], [10 + b for b in (1, 2, 4, 8)])
    # 26 for 16 items where 8 take 18: not free
    assert (found.verdict, found.knee) == ("normal", pytest.approx(10))
    assert "twice that takes 44% longer: the knee is not reached" in found.reading
    free = rl.diagnosis.check_sweep([1, 2, 4, 8], [100 + b for b in (1, 2, 4, 8)])
    assert (free.verdict, free.knee) == ("flat", pytest.approx(100))
    assert "twice that takes 7% longer: a bigger one is nearly free" in free.reading
    assert "whatever the batch" not in found.reading
    assert "batch 8 has 44% of the 1 per second" in found.reading


@given(floor=st.floats(1e-3, 1.0), item=st.floats(1e-4, 1e-1), offset=st.floats(0, 1), share=st.floats(0.05, 0.95))
def test_the_batch_of_a_share_has_it(floor: float, item: float, offset: float, share: float) -> None:
    for shape, start in (("line", floor), ("flat", min(offset, floor))):
        curve = Fit(shape, floor, item, start)
        batch = curve.batch_for(share)
        assert batch is not None
        assert curve.share(batch) == pytest.approx(share)


def test_whole_batches_read_as_whole_numbers() -> None:
    found = rl.diagnosis.check_sweep([1, 2.5, 4], [1.0, 1.0, 1.0])
    assert [row["batch"] for row in found.csv_rows()] == [1, 2.5, 4]
    assert [type(row["batch"]) for row in found.records()] == [int, float, int]
