"""Times that cannot be, more digits than a float has, values of the wrong type: repaired, and said with the time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import roofline as rl

#: Microseconds since 1970, as torch.profiler writes them; ten hours of uptime.
EPOCH, UPTIME = 1_778_000_000_000_000, 36_000_000_000


def kernel(start: Any, duration: Any = 100, stream: Any = 7, name: str = "gemm", **args: Any) -> dict[str, Any]:
    args = {"device": 0, "stream": stream, **args}
    return {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": duration, "args": args}


def read(folder: Path, events: Any) -> rl.traces.Trace:
    path = folder / "trace.json"
    path.write_text(events if isinstance(events, str) else json.dumps({"traceEvents": events}), encoding="utf-8")
    return rl.traces.read_trace(path)


def csv(folder: Path, *rows: str) -> rl.traces.Trace:
    head = "Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,Device,Ctx,Strm,Name"
    path = folder / "trace.csv"
    path.write_text("\n".join((head, *rows)) + "\n", encoding="utf-8")
    return rl.traces.read_trace(path)


def said(trace: rl.traces.Trace, words: str) -> bool:
    return any(words in note for note in trace.notes)


# --- times that cannot be ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clock", [EPOCH, UPTIME])
@pytest.mark.parametrize("lost", [0, -5, 0.0, "0"])
def test_a_start_at_zero_is_none(tmp_path: Path, clock: int, lost: Any) -> None:
    trace = read(tmp_path, [kernel(lost, 50), *(kernel(clock + 1000 * at, 900) for at in range(4))])
    assert trace.events.duration.tolist() == pytest.approx([900e-6] * 4)
    assert trace.events.start.tolist() == pytest.approx([0, 1e-3, 2e-3, 3e-3])
    assert said(trace, "skipped 1 kernel starting at zero, long before all others (50 us)")
    report = rl.diagnosis.trace_report(trace)
    assert report.seconds * report.iterations <= 4e-3
    assert "skipped 1 kernel starting at zero, long before all others (50 us)" in report.record()["notes"]


def test_zero_is_a_start_like_any_other_where_clocks_begin_there(tmp_path: Path) -> None:
    assert len(read(tmp_path, [kernel(0, 5), kernel(40_000_000, 5)]).events) == 2  # a wait of 40 s is one
    assert len(csv(tmp_path, "0,1000,1,,,,,,,,d (0),1,7,a", "5000,1000,1,,,,,,,,d (0),1,7,a").events) == 2


@pytest.mark.parametrize("odd", [EPOCH * 1000, EPOCH + 10**12, 10**12])
def test_a_start_years_away_is_none(tmp_path: Path, odd: int) -> None:
    trace = read(tmp_path, [kernel(odd, 30), *(kernel(EPOCH + 200 * at) for at in range(3))])
    assert trace.events.start.tolist() == pytest.approx([0, 2e-4, 4e-4])
    assert said(trace, "skipped 1 kernel starting over a day before or after most others (30 us)")


def test_kernels_stay_where_host_and_device_have_other_clocks(tmp_path: Path) -> None:
    host = [{**kernel(UPTIME + 10 * at, 5), "cat": "cpu_op", "name": "aten::mm", "args": {}} for at in range(9)]
    trace = read(tmp_path, host + [kernel(EPOCH + 110 * at) for at in range(3)])
    assert len(trace.events) == 3
    assert said(trace, "skipped 9 operators starting over a day before or after most others (45 us)")


def test_no_kernel_starts_a_second_before_its_launch(tmp_path: Path) -> None:
    def launch(start: int, number: int) -> dict[str, Any]:
        return {**kernel(start, 5, correlation=number), "cat": "cuda_runtime", "name": "cudaLaunchKernel"}

    calls = [launch(EPOCH + 200 * at, at + 1) for at in range(5)]
    ran = [kernel(EPOCH + 200 * at + 20, correlation=at + 1) for at in range(5)]
    wrong = [*ran[:4], {**ran[4], "ts": EPOCH - 3_000_000}]
    trace = read(tmp_path, calls + wrong)
    assert said(trace, "skipped 1 kernel starting over a second before the call that launched it (100 us)")
    # Where all are early the clocks of host and device differ, and nothing is left out.
    shifted = [{**one, "ts": one["ts"] - 3_000_000} for one in ran]
    assert len(read(tmp_path, calls + shifted).events) == 10


def test_a_duration_ends_where_the_next_of_its_stream_starts(tmp_path: Path) -> None:
    trace = read(tmp_path, [kernel(0, 5000), kernel(100, 50), kernel(200, 50), kernel(120, 500, stream=8)])
    assert trace.events.duration.tolist() == pytest.approx([100e-6, 50e-6, 500e-6, 50e-6])
    assert said(trace, "cut 1 duration at the start of the next on the stream (4.9 ms)")
    table = csv(tmp_path, "0,5000,1,,,,,,,,d (0),1,7,a", "100,50,2,,,,,,,,d (0),1,7,b", "100,50,2,,,,,,,,d (0),2,7,b")
    assert table.events.duration.tolist() == pytest.approx([1e-7, 5e-8, 5e-8])
    # Whole microseconds overlap by rounding, and dependent launches by less: cut as well, and no fault.
    rounded = read(tmp_path, [kernel(0, 3), kernel(2, 1)])
    assert rounded.notes == ()
    assert rounded.events.duration.tolist() == pytest.approx([2e-6, 1e-6])


def test_a_duration_of_days_is_none(tmp_path: Path) -> None:
    trace = read(tmp_path, [kernel(EPOCH), {**kernel(EPOCH + 300, 2e12, stream=9)}])
    assert len(trace.events) == 1
    assert said(trace, "skipped 1 kernel longer than a day")


# --- digits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["{}", '"{}"', "{}0000000000"])
def test_times_since_1970_keep_their_fraction(tmp_path: Path, form: str) -> None:
    # A kernel of 1.125 us each 1.125 us: busy all the time. In float64 1.778e15 us has steps of a quarter.
    starts = [f"{EPOCH + at * 9 // 8}.{at * 1125 % 1000:03d}" for at in range(64)]
    events = ",".join(json.dumps(kernel(-1, 1.125)).replace("-1", form.format(start), 1) for start in starts)
    trace = read(tmp_path, f'{{"traceEvents": [{events}]}}')
    assert trace.events.start.tolist() == pytest.approx([at * 1.125e-6 for at in range(64)], abs=1e-15)
    report = rl.diagnosis.trace_report(trace)
    assert report.busy == pytest.approx(report.seconds, rel=1e-9)
    assert sum(report.idle.values()) == 0
    assert report.causes == ()


def test_nanoseconds_since_1970_keep_their_last_digit(tmp_path: Path) -> None:
    rows = (f"{EPOCH * 1000 + 1125 * at},1125,1,,,,,,,,d (0),1,7,a" for at in range(8))
    trace = csv(tmp_path, *rows)
    assert trace.events.start.tolist() == pytest.approx([at * 1.125e-6 for at in range(8)], abs=1e-15)
    assert trace.notes == ()


# --- values of the wrong type -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["nan", "-nan", "inf", "-inf", "NaN", "-Infinity", "nan(ind)", "None", "INF"])
def test_a_bare_nan_loses_its_value_and_no_event(tmp_path: Path, word: str) -> None:
    odd = json.dumps(kernel(10, 5, occupancy="x", **{"warps per SM": 4})).replace('"x"', word)
    trace = read(tmp_path, f'{{"baseTime": {word}, "traceEvents": [{odd}, {odd}, {json.dumps(kernel(30, 5))}]}}')
    assert len(trace.events) == 3
    assert trace.events.details[trace.events.detail[0]] == {"warps per SM": 4}
    assert said(trace, "read 2 events with NaN, Infinity or a bare word, a value that is left out")
    assert "nan" in read(tmp_path, json.dumps([kernel(1, 2, name="nan, inf")])).events.names[0]


@pytest.mark.parametrize("dims", [
    [["8", 4], [4, 2]], [[8, 4], {"a": 1}], [[8, -4]], [[8, 4.5]], [[True]], [[[3], "x"]], {"a": 1}, 7, "8x4",
    [10**400], [[2**50]], [[2**40] * 4], [[[[1]]]], [None],
])  # fmt: skip
def test_arguments_that_are_no_shapes_are_left_out(tmp_path: Path, dims: Any) -> None:
    args = {"External id": 1, "Input Dims": dims, "Input type": ["float", "float"]}
    op = {**kernel(0, 40), "cat": "cpu_op", "name": "aten::mm", "args": args}
    trace = read(tmp_path, [op, kernel(10, 40, **{"External id": 1})])
    wrong = isinstance(dims, list)  # what is no list at all is not recorded
    assert said(trace, "left out the arguments of 1 operator that are no shapes and types (40 us)") == wrong
    assert rl.diagnosis.trace_report(trace, "h100-sxm").seconds == pytest.approx(50e-6)


@pytest.mark.parametrize("value", [{"a": 1}, [[1]], ["x"], 10**400, [1.5]])
def test_facts_of_the_wrong_type_are_left_out(tmp_path: Path, value: Any) -> None:
    trace = read(tmp_path, [kernel(0, 5, name="ncclDevKernel_AllReduce", **{"Group size": value, "grid": [1, 2, 3]})])
    assert trace.events.details[trace.events.detail[0]] == {"grid": (1, 2, 3)}
    assert said(trace, "left out 1 fact that is no text, number or list of them (5 us)")
    assert "on" not in rl.diagnosis.trace_report(trace).ops[0].counters.split()


# --- records that say the same, or that cannot be told apart ----------------------------------------------------------


def test_what_is_recorded_twice_counts_once(tmp_path: Path) -> None:
    trace = read(tmp_path, [one for at in range(5) for one in [kernel(EPOCH + 110 * at, correlation=at + 1)] * 2])
    assert said(trace, "skipped 5 kernels recorded twice (500 us)")
    report = rl.diagnosis.trace_report(trace)
    assert (report.iterations, report.seconds) == (5, pytest.approx(110e-6))
    # Operators may lie in equal ones that start and end with them, unless they have the same number.
    op = {**kernel(0, 40), "cat": "cpu_op", "name": "aten::to"}
    assert len(read(tmp_path, [{**op, "args": {}}] * 2).events) == 2
    assert len(read(tmp_path, [{**op, "args": {"External id": at}} for at in (1, 1, 2)]).events) == 2


def test_a_kernel_without_duration_cuts_none(tmp_path: Path) -> None:
    trace = read(tmp_path, [kernel(0), kernel(50, 0), kernel(110)])
    assert trace.events.duration.tolist() == pytest.approx([100e-6, 0, 100e-6])
    assert trace.notes == ()


def test_nanoseconds_since_1970_are_told(tmp_path: Path) -> None:
    trace = read(tmp_path, [kernel(EPOCH * 1000 + 110_125 * at, 100_500) for at in range(4)])
    assert trace.events.start.tolist() == pytest.approx([at * 110.125e-6 for at in range(4)], abs=1e-15)
    assert trace.events.duration.tolist() == pytest.approx([100.5e-6] * 4)
    assert said(trace, "read 4 events whose times are in nanoseconds (402 us)")


def test_streams_with_names_are_queues_too(tmp_path: Path) -> None:
    trace = read(tmp_path, [kernel(0, 500, "first"), kernel(100, 50, "first"), kernel(120, 30, "second")])
    assert trace.events.duration.tolist() == pytest.approx([100e-6, 50e-6, 30e-6])
    assert (read(tmp_path, [kernel(0, stream=[1]), kernel(50, stream=None)]).events.stream == -1).all()


def test_one_gap_or_launch_that_is_all_of_the_time_is_asked_about(tmp_path: Path) -> None:
    def notes(*events: Any) -> str:
        return " ".join(rl.diagnosis.trace_report(read(tmp_path, list(events))).notes)

    run = [kernel(EPOCH + 110 * at) for at in range(3)]
    assert "a gap of 3600 s before gemm: is its start right?" in notes(*run, kernel(EPOCH + 3_600_000_000))
    assert "one launch of 5000 s of gemm: is its duration right?" in notes(*run, kernel(EPOCH + 330, 5e9))
    assert "nearly all" not in notes(*run)
