"""Ranks of one program: who comes last, whose clock is ahead, what is exposed, on traces with known times."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import Run, fails
from made_traces import Made

import roofline as rl

ROOT = Path(__file__).resolve().parent.parent
X = [[512, 512], [512, 512]]
US = 1e-6


def rank(number: int, world: int = 2, clock: float = 0.0) -> Made:
    """The trace of a rank whose clock is ahead by so much [us]."""
    made = Made()
    made.document["distributedInfo"] = {"backend": "nccl", "rank": number, "world_size": world}
    made.document["baseTimeNanoseconds"] = 10**18 + round(1000 * clock)
    return made


def step(made: Made, at: float, compute: float, ends: float, **options: Any) -> float:
    """Compute, then an all-reduce that ends at a given moment; when the step ends."""
    begin = made.call("aten::mm", X, at, compute)
    made.collective("allreduce", begin, ends - begin, **options)
    return made.call("aten::relu", X[:1], ends, 10)


def pair(*compute: float, clock: float = 0.0, steps: int = 3) -> list[Made]:
    """Two ranks of so much compute a step; an all-reduce takes 20 us once both are there."""
    traces = []
    for number, own in enumerate(compute):
        made = rank(number, clock=clock * number)
        at = 1000.0
        for _ in range(steps):
            at = step(made, at, own, at + max(compute) + 20, rank=number)
        traces.append(made)
    return traces


def report(folder: Path, traces: list[Made]) -> rl.diagnosis.RanksReport:
    found = rl.diagnosis.ranks_report(made.write(folder, f"rank{at}.json") for at, made in enumerate(traces))
    json.dumps(found.record(), allow_nan=False)
    return found


def test_who_comes_last_and_by_how_much(tmp_path: Path) -> None:
    found = report(tmp_path, pair(100, 130))
    first, second = found.ranks
    assert (first.last, second.last) == (0, 1)
    assert first.wait_s == second.late_s == pytest.approx(30 * US)
    assert first.late_s == second.wait_s == pytest.approx(0, abs=1e-12)
    assert first.exposed_s == pytest.approx(50 * US)
    assert second.exposed_s == pytest.approx(20 * US)
    (row,) = found.rows
    assert (row.collective, row.group, row.ranks, row.order, row.calls) == ("allreduce", "0", (0, 1), 0, 1)
    assert (row.last_rank, row.last, row.elements, row.dtype) == (1, 1, 1024, "BFloat16")
    assert row.spread_s == row.late_s == pytest.approx(30 * US)
    assert row.transfer_s == pytest.approx(20 * US)
    assert row.exposed_s == pytest.approx(35 * US)  # of 50 and 20
    assert row.exposed_wait_s == row.wait_s == pytest.approx(15 * US)  # of 30 and 0
    assert found.notes == ()


@pytest.mark.parametrize("clock", [0.0, 7.0, -250.0, 3e6])
def test_clocks_are_set_by_the_ends(tmp_path: Path, clock: float) -> None:
    found = report(tmp_path, pair(100, 130, clock=clock))
    assert found.ranks[1].clock_offset_s == pytest.approx(clock * US, abs=1e-9)
    assert found.ranks[1].clock_spread_s == pytest.approx(0, abs=1e-9)
    assert found.ranks[0].wait_s == pytest.approx(30 * US, abs=1e-9)
    assert found.rows[0].last_rank == 1


@pytest.mark.parametrize("drift", [20e-6, -1e-3])
def test_clocks_that_run_apart(tmp_path: Path, drift: float) -> None:
    first, second = pair(100, 130, clock=50.0, steps=40)
    for event in second.events:
        event["ts"] += drift * (event["ts"] - 1000)  # of the 6 ms that the trace takes
        event["dur"] *= 1 + drift
    found = report(tmp_path, [first, second])
    assert found.ranks[1].clock_drift == pytest.approx(drift, rel=0.02)
    assert found.ranks[1].clock_offset_s == pytest.approx(50 * US, abs=0.1 * US)
    assert found.ranks[0].wait_s == pytest.approx(30 * US, rel=0.01)
    assert found.ranks[1].last == 1


def test_what_the_clocks_do_not_tell_is_not_said(tmp_path: Path) -> None:
    traces = []
    for number, jitter in enumerate(([0, 0, 0, 0], [3, -3, 2, -2])):
        made, at = rank(number), 1000.0
        for late in jitter:
            at = step(made, at, 100, at + 120 + late, rank=number) - late
        traces.append(made)
    found = report(tmp_path, traces)
    assert found.ranks[1].clock_spread_s > 1 * US
    assert found.rows[0].last_rank == -1  # both come at once, within what the ends differ by
    assert found.ranks[0].last == found.ranks[1].last == 0


def test_imbalance_of_compute(tmp_path: Path) -> None:
    found = report(tmp_path, pair(100, 130))
    # 100 + 10 and 130 + 10 us a step: the mean is 125.
    assert [one.compute_s for one in found.ranks] == pytest.approx([110 * US, 140 * US])
    assert found.imbalance == pytest.approx(140 / 125 - 1)
    grew = {row.op: row.change_s for row in found.imbalance_by_operator().rows if row.role == "kernel"}
    assert grew == {"aten::mm": pytest.approx(30 * US), "aten::relu": pytest.approx(0, abs=1e-12)}


def test_what_a_kernel_hides_is_not_exposed(tmp_path: Path) -> None:
    traces = []
    for number in range(2):
        made = rank(number)
        made.call("aten::mm", X, 1000, 100)
        made.collective("allreduce", 1100, 60, rank=number)
        made.call("aten::mm", X, 1110, 30)  # beside the collective, 30 us of it
        made.collective("reduce_scatter", 1160, 40, rank=number)
        made.call("aten::relu", X[:1], 1200, 10)
        traces.append(made)
    found = report(tmp_path, traces)
    assert {row.collective: round(row.exposed_s * 1e6, 6) for row in found.rows} == {
        "allreduce": 30, "reduce_scatter": 40,
    }  # fmt: skip
    # What is exposed by collective adds up to what is exposed.
    assert sum(row.exposed_s * row.calls for row in found.rows) == pytest.approx(found.ranks[0].exposed_s)


def ordered(made: Made, number: int, kinds: list[tuple[str, int | None]]) -> Made:
    at = 1000.0
    for name, sequence in kinds:
        at = made.collective(name, made.call("aten::mm", X, at, 50 + number), 20 - number, rank=number,
                             sequence=sequence)  # fmt: skip
    made.call("aten::relu", X[:1], at, 10)
    return made


def test_sequence_numbers_count_before_the_order(tmp_path: Path) -> None:
    # Rank 1 began to record one collective later.
    first = ordered(rank(0), 0, [("allreduce", 5), ("allgather", 6), ("allreduce", 7)])
    second = ordered(rank(1), 1, [("allgather", 6), ("allreduce", 7)])
    found = report(tmp_path, [first, second])
    assert sum(row.calls for row in found.rows) == 2
    assert "1 of 5 collectives have no counterpart on another rank" in found.notes


def test_without_numbers_equal_places_must_be_equal(tmp_path: Path) -> None:
    first = ordered(rank(0), 0, [("allreduce", None), ("allgather", None), ("allreduce", None)])
    second = ordered(rank(1), 1, [("allgather", None), ("allreduce", None)])
    found = report(tmp_path, [first, second])
    assert found.rows == ()
    assert "5 of 5 collectives have no counterpart on another rank" in found.notes


def test_steps_that_the_profiler_marked(tmp_path: Path) -> None:
    traces = []
    for number, steps in enumerate(([3, 4], [4, 5])):  # they share step 4 only
        made, at = rank(number), 1000.0
        for mark in steps:
            begin = at
            at = step(made, at, 100 + 10 * number + mark, at + 140 + mark, rank=number)
            made.slice("user_annotation", f"ProfilerStep#{mark}", begin - 55, at - begin)
        traces.append(made)
    found = report(tmp_path, traces)
    assert len(found.rows) == 1
    assert found.rows[0].transfer_s == pytest.approx(30 * US)  # both of step 4
    assert "2 of 4 collectives have no counterpart on another rank" in found.notes


def test_groups_of_some_ranks(tmp_path: Path) -> None:
    """Four ranks, two groups of tensor and two of data parallelism; rank 3 is slow and its clock is far ahead."""
    traces = []
    for number in range(4):
        made = rank(number, 4, clock=number * 1000.0)
        own = 160.0 if number == 3 else 100.0
        tensor = (0, 1) if number < 2 else (2, 3)
        first = made.call("aten::mm", X, 1000, own)
        ends = 1000 + (160 if number > 1 else 100) + 10
        made.collective("allreduce", first, ends - first, rank=number, ranks=tensor, group=f"tp{tensor[0]}")
        data = (number % 2, number % 2 + 2)
        made.collective("reduce_scatter", ends, 1190 - ends, rank=number, ranks=data, group=f"dp{data[0]}", stream=21)
        made.call("aten::relu", X[:1], 1190, 10)
        traces.append(made)
    found = report(tmp_path, traces)
    assert [one.clock_offset_s for one in found.ranks] == pytest.approx([0, 1e-3, 2e-3, 3e-3], abs=1e-9)
    assert {(row.group, row.ranks) for row in found.rows} == {
        ("tp0", (0, 1)), ("tp2", (2, 3)), ("dp0", (0, 2)), ("dp1", (1, 3)),
    }  # fmt: skip
    slow = next(row for row in found.rows if row.group == "tp2")
    assert (slow.last_rank, slow.spread_s) == (3, pytest.approx(60 * US))
    assert next(row for row in found.rows if row.group == "tp0").last_rank == -1
    # Ranks 0 and 1 wait for those whose group had to wait for rank 3.
    assert next(row for row in found.rows if row.group == "dp0").last_rank == 2


def test_a_pipeline_sends_and_receives(tmp_path: Path) -> None:
    traces = []
    for number in range(3):
        made = rank(number, 3)
        at = made.call("aten::mm", X, 1000, 50)
        if number > 0:
            at = made.collective("recv", at, 1000 + 70 * number - at, rank=number, ranks=(0, 1, 2),
                                 **{"Src Rank": number - 1})  # fmt: skip
        if number < 2:
            at = made.collective("send", 1060 + 70 * number, 10, rank=number, ranks=(0, 1, 2), elements=2048,
                                 **{"Dst Rank": number + 1})  # fmt: skip
        made.call("aten::relu", X[:1], at, 10)
        traces.append(made)
    found = report(tmp_path, traces)
    assert sorted(row.ranks for row in found.rows) == [(0, 1), (1, 2)]
    assert not any("no counterpart" in note for note in found.notes)


def test_kernels_whose_facts_were_not_recorded(tmp_path: Path) -> None:
    traces = pair(100, 130)
    for made in traces:
        for event in made.events:
            for key in [key for key in event["args"] if key.startswith(("Coll", "Proc", "In msg", "Out msg"))]:
                del event["args"][key]
    found = report(tmp_path, traces)
    assert found.rows[0].collective == "ncclDevKernel_allreduce_Sum_bf16_RING_LL"
    assert found.ranks[0].wait_s == pytest.approx(30 * US)
    assert any("known by their kernel only" in note for note in found.notes)


def without_ranks(traces: list[Made]) -> list[Made]:
    for made in traces:
        del made.document["distributedInfo"]
    return traces


def five_steps(traces: list[Made]) -> list[Made]:
    return [traces[0], pair(100, 130, steps=5)[1]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_ranks, "2 traces do not say their rank"),
        (five_steps, "ranks differ in their number of iterations (3, 5)"),
        (lambda traces: [*map(eight, traces)], "2 of 8 ranks are here"),
    ],
)  # fmt: skip
def test_what_limits_it_is_said(tmp_path: Path, change: Callable[[list[Made]], list[Made]], words: str) -> None:
    found = report(tmp_path, change(pair(100, 130)))
    assert any(words in note for note in found.notes)
    assert found.ranks[0].wait_s > 0


def eight(made: Made) -> Made:
    made.document["distributedInfo"]["world_size"] = 8
    return made


def test_ranks_without_collectives(tmp_path: Path) -> None:
    traces = []
    for number in range(2):
        made = rank(number)
        made.call("aten::mm", X, 1000, 50 + 50 * number)
        traces.append(made)
    found = report(tmp_path, traces)
    assert found.rows == ()
    assert found.imbalance == pytest.approx(100 / 75 - 1)
    assert any(note.startswith("no collective ran on a device") for note in found.notes)


def test_ranks_on_the_processor(tmp_path: Path) -> None:
    traces = []
    for number in range(2):
        made = rank(number)
        made.slice("cpu_op", "aten::mm", 1000, 50 + 50 * number, **{"External id": 1})
        made.slice("user_annotation", "gloo:all_reduce", 1200, 50)
        traces.append(made)
    found = report(tmp_path, traces)
    assert [one.compute_s for one in found.ranks] == pytest.approx([50 * US, 100 * US])
    assert any(note.startswith("no collective ran on a device") for note in found.notes)


# --- the command ------------------------------------------------------------------------------------------------------


def folder(path: Path) -> Path:
    for number, made in enumerate(pair(100, 130)):
        made.write(path, f"rank{number}.json")
    return path


def test_a_folder_and_its_files(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    path = folder(tmp_path)
    out = run("trace", path).out
    assert max(map(len, out.splitlines())) <= 80
    for words in ("2 ranks on h100-sxm", "30 us for rank 1 alone", "what rank 1 computes more", "1 by 30 us"):
        assert words in out
    data = run("trace", path, "--json").data
    assert data["schema"]["name"] == "trace_ranks"
    assert data == run("trace", path / "rank1.json", path / "rank0.json", "--json").data
    assert len(run("trace", path, "--csv").out.splitlines()) == len(data["rows"]) + 1


def test_ranks_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for name in ("rank10.json", "rank9.json.gz", "rank1.json", "notes.txt"):
        (tmp_path / name).write_text("")
    from roofline.diagnosis.ranks import rank_files

    assert [path.name for path in rank_files(tmp_path)] == ["rank1.json", "rank9.json.gz", "rank10.json"]


def test_wrong_use(run: Run, tmp_path: Path) -> None:
    path = folder(tmp_path)
    fails(run("trace", path / "rank0.json", path / "rank0.json"), "both of rank 0", "--diff")
    fails(run("trace", path, "--html", path / "x.html"), "--html is of one trace")
    empty = tmp_path / "empty"
    empty.mkdir()
    fails(run("trace", empty), "no folder with traces")
    with pytest.raises(rl.errors.UsageError, match="two on"):
        rl.diagnosis.ranks_report([path / "rank0.json"])
    with pytest.raises(rl.errors.UsageError, match="no folder"):
        rl.diagnosis.ranks_report(path / "nowhere")


def test_two_recorded_ranks() -> None:
    """Rank 1 had half as many rows again, and both clocks are of one machine (scripts/record_examples.py)."""
    found = rl.diagnosis.ranks_report(ROOT / "examples" / "two_ranks")
    assert [one.rank for one in found.ranks] == [0, 1]
    assert abs(found.ranks[1].clock_offset_s) < 50 * US
    assert found.ranks[1].late_s > 100 * US > found.ranks[0].late_s
    assert found.ranks[1].compute_s > 1.3 * found.ranks[0].compute_s
    assert [row.calls for row in found.rows] == [1, 1, 1, 1]
    exposed = sum(row.exposed_s * row.calls for row in found.rows)
    assert exposed == pytest.approx(sum(one.exposed_s for one in found.ranks) / 2, rel=1e-6)
    assert found.notes == ()
