"""Memory over the time of a trace: the peak and who made what lay in it, on events written out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import Run
from made_traces import Made

import roofline as rl

MB = 1_000_000
ROOT = Path(__file__).resolve().parent.parent


def timeline(made: Made, folder: Path) -> rl.diagnosis.MemoryTimeline:
    memory = rl.diagnosis.trace_report(made.write(folder)).memory
    assert memory is not None
    return memory


def steps() -> Made:
    """Weights of 10 MB from before; a matmul makes 4 MB, an addition 2 MB and 1 MB that goes at once."""
    made = Made()
    made.call("aten::mm", [[1000, 1000], [1000, 2000]], 1100, 50, issued=1002, host=20)  # on the host from 1001 to 1021
    made.slice("cpu_op", "aten::empty", 1004, 4, **{"External id": 50})
    made.memory(1005, 4 * MB, 14 * MB, 0xA)
    made.call("aten::add", [[1000, 1000], [1000, 1000]], 1200, 50, issued=1032, host=20)
    made.memory(1035, 1 * MB, 15 * MB, 0xB)
    made.memory(1036, 2 * MB, 17 * MB, 0xC)
    made.memory(1040, -1 * MB, 16 * MB, 0xB)
    made.memory(1060, -3 * MB, 13 * MB, 0xF)  # of before
    made.memory(1070, 500, 13 * MB + 500, 0xD)  # outside of operators
    return made


def test_the_peak_and_what_lay_in_it(tmp_path: Path) -> None:
    memory = timeline(steps(), tmp_path)
    assert (memory.device, memory.peak, memory.peak_op) == (0, 17 * MB, "aten::add")
    assert memory.peak_s == pytest.approx(35e-6)  # the first event begins at 1001
    assert [(one.op, one.shapes, one.blocks, one.bytes) for one in memory.held] == [
        ("before the recording", "", 0, 10 * MB),
        ("aten::mm", "1000x1000, 1000x2000", 1, 4 * MB),  # not aten::empty, which only makes room
        ("aten::add", "1000x1000, 1000x1000", 2, 3 * MB),
    ]
    assert sum(one.bytes for one in memory.held) == memory.peak
    assert sum(one.share for one in memory.held) == pytest.approx(1)


def test_its_rows_are_the_steps(tmp_path: Path) -> None:
    memory = timeline(steps(), tmp_path)
    rows = memory.records()
    assert [row["allocated_bytes"] for row in rows] == [14 * MB, 15 * MB, 17 * MB, 16 * MB, 13 * MB, 13 * MB + 500]
    assert [row["op"] for row in rows] == ["aten::mm", "aten::add", "aten::add", "aten::add", "", ""]
    assert rows[2]["reserved_bytes"] == 34 * MB
    assert np.all(np.diff(memory.time) >= 0)
    assert list(memory.frame().columns) == list(rows[0])
    json.dumps(memory.record(), allow_nan=False)


def test_events_in_any_order_of_the_file(tmp_path: Path) -> None:
    made = steps()
    made.events.reverse()
    assert timeline(made, tmp_path).record() == timeline(steps(), tmp_path).record()


def test_a_device_counts_before_the_host(tmp_path: Path) -> None:
    made = steps()
    made.memory(1037, 900 * MB, 900 * MB, 0xE, device=-1)
    assert timeline(made, tmp_path).peak == 17 * MB
    alone = Made()
    alone.slice("cpu_op", "aten::mm", 1000, 100, **{"External id": 1})
    alone.memory(1037, 900 * MB, 900 * MB, 0xE, device=-1)
    memory = timeline(alone, tmp_path)
    assert (memory.device, memory.peak, memory.peak_op) == (-1, 900 * MB, "aten::mm")


def test_without_totals_the_steps_are_added_up(tmp_path: Path) -> None:
    made = steps()
    for event in made.events:
        if event["name"] == "[memory]":
            del event["args"]["Total Allocated"]
    memory = timeline(made, tmp_path)
    # From the 4 MB on: 4, 5, 7, 6, 3, as if nothing had been there before.
    assert memory.allocated.tolist() == [4 * MB, 5 * MB, 7 * MB, 6 * MB, 3 * MB, 3 * MB + 500]
    assert sum(one.bytes for one in memory.held) == memory.peak


def test_broken_events_are_said(tmp_path: Path) -> None:
    made = steps()
    made.events[-1]["args"]["Bytes"] = "many"
    made.events.append({"ph": "i", "name": "[memory]", "ts": "x", "args": {"Bytes": 1}})
    report = rl.diagnosis.trace_report(made.write(tmp_path))
    assert report.memory is not None
    assert len(report.memory.records()) == 5
    assert any("2 memory events without a time or a size" in note for note in report.notes)


def test_none_was_recorded(tmp_path: Path) -> None:
    made = Made()
    made.call("aten::mm", [[8, 8], [8, 8]], 1100, 50)
    report = rl.diagnosis.trace_report(made.write(tmp_path))
    assert report.memory is None
    assert report.record()["memory_peak"] is None


def test_a_recorded_trace(run: Run) -> None:
    path = ROOT / "examples" / "block_before.json.gz"
    memory = rl.diagnosis.trace_report(path).memory
    assert memory is not None
    # Scores of 8 x 16 heads of 1024 x 1024 in bf16 are 256 MiB, and two such tensors lie in memory at once.
    scores = 8 * 16 * 1024 * 1024 * 2
    assert [one.bytes for one in memory.held[:2]] == [scores, scores]
    assert {one.op for one in memory.held[:2]} == {"aten::bmm", "aten::mul"}
    found = run("trace", path, "--json").data["memory_peak"]
    assert found["peak_bytes"] == memory.peak
    out = run("trace", path).out
    assert "256.00 MiB" in out
    assert "before the recording" in out
