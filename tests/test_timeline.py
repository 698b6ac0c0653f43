"""Kernels, copies and collectives on their engines: schedules by hand and at random, against what no order can beat."""

from __future__ import annotations

import itertools
import json
from itertools import pairwise, permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Run, fails
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.analysis.engines.scheduler import Placed, chain, loads, longest_ways, schedule
from roofline.analysis.engines.tasks import Task, tasks_of
from roofline.traces.events import DEVICE
from roofline.traces.linking import launches

LLAMA: dict[str, Any] = {"phase": "prefill", "batch": 1, "seq": 4096, "mode": "graph"}
SMALL: dict[str, Any] = {"batch": 1, "seq": 4096, "mode": "graph"}
GPT2 = rl.model("gpt2", phase="decode", layers=2)


def task(engine: str, seconds: float, *needs: int, compute: float = 0.0, memory: float = 0.0) -> Task:
    return Task(f"t{seconds}", "op", "", engine, seconds, needs, compute, memory)


def split(tp: int = 4, sp: bool = True, layers: int = 2) -> rl.Graph:
    return rl.passes.shard(rl.model("llama-3-8b", phase="prefill", layers=layers), tp=tp, sp=sp)


# --- the scheduler ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "two", "ends"),
    [
        # both fill the same units: each goes half as fast, and together they take the sum
        ({"compute": 1.0}, {"compute": 1.0}, (4.0, 4.0)),
        # different roofs, a quarter of the other's each: 1.25 of each roof is asked for
        ({"compute": 1.0, "memory": 0.25}, {"compute": 0.25, "memory": 1.0}, (2.5, 2.5)),
        # neither fills anything, as kernels that their launch bounds: side by side for nothing
        ({"compute": 0.3, "memory": 0.3}, {"compute": 0.3, "memory": 0.3}, (2.0, 2.0)),
        # what uses no memory is not slowed by a memory that is too full
        ({"compute": 0.5}, {"memory": 1.0}, (2.0, 2.0)),
    ],
)
def test_two_kernels_share_the_chip(one: dict[str, float], two: dict[str, float], ends: tuple[float, ...]) -> None:
    places = schedule([task("stream", 2.0, **one), task("stream", 2.0, **two)], {"stream": 2})
    assert [place.end for place in places] == pytest.approx(ends)


def test_what_is_left_alone_speeds_up_again() -> None:
    # 1 s and 3 s of memory side by side: 2 s for the first, then 2 s of the second are left
    places = schedule([task("stream", 1.0, memory=1.0), task("stream", 3.0, memory=1.0)], {"stream": 2})
    assert sorted(place.end for place in places) == pytest.approx([2.0, 4.0])


def test_the_longest_way_to_the_end_goes_first() -> None:
    tasks = [task("stream", 2.0), task("stream", 1.0), task("network", 5.0, 1)]
    assert [(place.start, place.end) for place in schedule(tasks, {})] == [(1.0, 3.0), (0.0, 1.0), (1.0, 6.0)]


SHARE = st.sampled_from([0.0, 0.25, 0.5, 1.0])


@st.composite
def programs(draw: st.DrawFn, most: int = 12) -> list[Task]:
    tasks = list[Task]()
    for at in range(draw(st.integers(1, most))):
        needs = draw(st.sets(st.integers(0, at - 1), max_size=3)) if at else set()
        engine = draw(st.sampled_from(["stream", "network", "copy in"]))
        seconds = draw(st.one_of(st.integers(0, 5).map(float), st.floats(1e-9, 1e3)))
        tasks.append(task(engine, seconds, *sorted(needs), compute=draw(SHARE), memory=draw(SHARE)))
    return tasks


def check_valid(tasks: list[Task], places: tuple[Placed, ...], lanes: dict[str, int]) -> float:
    end = max(place.end for place in places)
    slack = 1e-9 * (1 + end)
    by_lane: dict[tuple[str, int], list[Placed]] = {}
    for each, place in zip(tasks, places, strict=True):
        assert place.end - place.start >= each.seconds - slack
        assert all(places[need].end <= place.start for need in each.needs)
        assert 0 <= place.lane < lanes.get(each.engine, 1)
        by_lane.setdefault((each.engine, place.lane), []).append(place)
    for lane in by_lane.values():
        lane.sort(key=lambda place: (place.start, place.end))
        assert all(one.end <= two.start for one, two in pairwise(lane))
    return end


@given(programs(), st.integers(1, 3))
@settings(max_examples=examples(300), deadline=None)
def test_a_schedule_keeps_to_its_bounds(tasks: list[Task], streams: int) -> None:
    lanes = {"stream": streams}
    places = schedule(tasks, lanes)
    end = check_valid(tasks, places, lanes)
    least = max(*loads(tasks, lanes).values(), *longest_ways(tasks))
    assert least <= end * (1 + 1e-9)
    assert end <= sum(each.seconds for each in tasks) * (1 + 1e-9)
    path = chain(places)
    assert places[path[0]].start == 0.0
    assert places[path[-1]].end == end
    assert all(places[one].end == places[two].start for one, two in pairwise(path))


def best(tasks: list[Task]) -> float:
    """The best of all orders: in each, whatever comes next starts as soon as its engine and its needs allow."""
    ends = list[float]()
    for order in permutations(range(len(tasks))):
        done: dict[int, float] = {}
        free: dict[str, float] = {}
        for at in order:
            if not all(need in done for need in tasks[at].needs):
                break
            engine = tasks[at].engine
            start = max([free.get(engine, 0.0), *(done[need] for need in tasks[at].needs)])
            done[at] = free[engine] = start + tasks[at].seconds
        else:
            ends.append(max(done.values()))
    return min(ends)


@given(programs(most=5))
@settings(max_examples=examples(60), deadline=None)
def test_no_schedule_beats_the_best_of_all_orders(tasks: list[Task]) -> None:
    alone = [Task(each.name, "op", "", each.engine, each.seconds, each.needs) for each in tasks]
    end, optimum = max(place.end for place in schedule(alone, {})), best(alone)
    assert optimum <= end * (1 + 1e-9)
    assert end <= optimum * len({each.engine for each in alone}) * (1 + 1e-9)  # some engine works at any moment


# --- programs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt2", "resnet18", "mixtral-8x7b", "t5-small"])
@pytest.mark.parametrize("mode", ["graph", "compiled"])
def test_one_stream_takes_the_time_of_the_estimate(name: str, mode: Any) -> None:
    graph = rl.model(name)
    sizes: dict[str, Any] = dict.fromkeys(graph.symbols, 64)
    est = rl.estimate(graph, "h100-sxm", mode=mode, **sizes)
    line = rl.timeline(graph, "h100-sxm", mode=mode, **sizes)
    assert line.time == pytest.approx(est.time, rel=1e-9)
    assert line.serial == pytest.approx(est.time, rel=1e-9)
    assert line.gain == 0.0
    assert (line.low, line.high) == pytest.approx((est.low, est.high), rel=1e-9)
    assert line.loads["stream"] == pytest.approx(est.time, rel=1e-9)


def test_collectives_wait_and_are_waited_for_without_overlap() -> None:
    graph = rl.passes.shard(rl.model("gpt2", phase="decode", layers=2), tp=2)
    est = rl.estimate(graph, "h100-sxm", mode="graph", batch=8, context=512)
    line = rl.timeline(graph, "h100-sxm", mode="graph", batch=8, context=512)
    runs = {row["name"]: row for row in line.records()}
    assert {row["engine"] for row in runs.values()} == {"stream 0", "network"}
    assert line.time <= est.time * (1 + 1e-9)
    reduce = runs["layers.0.attn.out.all_reduce"]
    assert reduce["start_s"] == runs["layers.0.attn.out"]["end_s"]
    assert reduce["waits_for"] == "layers.0.attn.out"


def test_the_host_is_an_engine_of_eager_programs() -> None:
    est = rl.estimate(GPT2, "h100-sxm", batch=1, context=64)
    line = rl.timeline(GPT2, "h100-sxm", batch=1, context=64)
    assert line.loads["host"] == pytest.approx(est.host_time)
    assert max(est.time, line.longest_path) <= line.time * (1 + 1e-9)
    assert line.time <= est.time + est.device_time
    assert line.busiest == "host"
    assert sum(line.critical_seconds("engine").values()) == pytest.approx(line.time)


def test_streams_run_independent_kernels_side_by_side() -> None:
    one, two = (rl.timeline(GPT2, "h100-sxm", mode="graph", streams=n, batch=1, context=512) for n in (1, 2))
    assert two.least <= two.time < one.time == pytest.approx(two.serial)
    assert {row["engine"] for row in two.engines()} == {"stream 0", "stream 1"}
    for line in (one, two):
        for row in line.engines():
            assert row["busy_s"] + row["idle_s"] == pytest.approx(line.time)


def test_what_is_overwritten_waits_for_its_readers() -> None:
    step = rl.passes.training_graph(rl.model("gpt2", phase="train", layers=1), optimizer="sgd")
    tasks = tasks_of(rl.estimate(step, "h100-sxm", mode="graph", batch=1, seq=32))
    at = {each.name: place for place, each in enumerate(tasks)}
    before = list[set[int]]()
    for each in tasks:
        before.append(set(each.needs).union(*(before[need] for need in each.needs)))
    readers = {node.label for node in step.consumers["layers.0.mlp.up.weight"]}
    (update,) = (label for label in readers if label.startswith("optimizer"))
    assert {"layers.0.mlp.up", "layers.0.mlp.up.grad_x"} < readers
    assert {at[label] for label in readers - {update}} <= before[at[update]]


# --- weights from the host --------------------------------------------------------------------------------------------


def test_weights_come_over_ahead_of_their_layer() -> None:
    lines = {n: rl.timeline("llama-3-8b", "h100-sxm", prefetch=n, **LLAMA) for n in (0, 1, 2)}
    copies = sum(each.seconds for each in lines[0].tasks if each.engine == "copy in")
    kernels = float(rl.estimate("llama-3-8b", "h100-sxm", **LLAMA).time)
    size = rl.estimate("llama-3-8b", "h100-sxm", **LLAMA).memory.weights
    for line in lines.values():
        assert line.serial == pytest.approx(copies + kernels)
        assert line.streamed is not None
        assert line.streamed.bytes == pytest.approx(size)
    assert lines[0].time > 0.95 * lines[0].serial  # nothing hides a copy into the only buffer
    assert lines[0].time > lines[1].time >= lines[2].time >= max(copies, kernels)
    assert lines[1].streamed.buffers < lines[2].streamed.buffers < size  # type: ignore[union-attr]
    assert lines[1].busiest == "copy in"


def test_a_buffer_is_free_before_the_next_layer_comes() -> None:
    line = rl.timeline("gpt2", "h100-sxm", prefetch=1, **SMALL | {"seq": 64, "phase": "prefill"})
    rows = {row["name"]: row for row in line.records()}
    copies = [row for row in rows.values() if row["kind"] == "copy"]
    for early, late in zip(copies, copies[2:], strict=False):
        readers = [row["end_s"] for row in rows.values() if row["layer"] == early["layer"] and row["op"] == "linear"]
        assert late["start_s"] >= max(readers, default=0.0) - 1e-12
    assert all(row["start_s"] >= rows[copy["name"]]["end_s"] - 1e-12 for copy in copies[1:-1]
               for row in rows.values() if row["layer"] == copy["layer"] and row["op"] == "linear")  # fmt: skip


# --- collectives beside matmuls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("overlap", "chunks"), [("tp", 2), ("tp", None), ("ring", None)])
def test_collectives_run_beside_the_matmuls_around_them(overlap: str, chunks: int | None) -> None:
    graph = split()
    whole = rl.timeline(graph, "h100-sxm", **SMALL)
    line = rl.timeline(graph, "h100-sxm", overlap=overlap, chunks=chunks, **SMALL)
    assert line.overlap is not None
    assert line.overlap.split > 0
    assert line.least <= line.time < whole.time
    parts = [row for row in line.records() if row["name"].startswith("layers.0.mlp.down ")]
    alone = next(each.seconds for each in whole.tasks if each.name == "layers.0.mlp.down")
    assert len(parts) == (chunks or 4)
    assert sum(row["alone_s"] for row in parts) > alone  # smaller matmuls are worse ones


def test_a_ring_sends_one_part_less_than_there_are_devices() -> None:
    line = rl.timeline(split(), "h100-sxm", overlap="ring", **SMALL)
    rows = line.records()
    sends = [row for row in rows if row["op"] == "send" and row["name"].startswith("layers.0.mlp.down")]
    assert len(sends) == 3
    ends = {row["name"]: row["end_s"] for row in rows}
    (last,) = [row for row in rows if row["name"] == "layers.0.mlp.residual"]
    assert last["start_s"] >= max(ends["layers.0.mlp.down 4/4"], *(row["end_s"] for row in sends))
    for at, send in enumerate(sends):
        assert send["start_s"] >= ends[f"layers.0.mlp.down {at + 1}/4"]


def test_parts_that_gain_nothing_stay_whole() -> None:
    line = rl.timeline(split(), "h100-sxm", overlap="tp", **SMALL | {"seq": 16})
    assert line.overlap is not None
    assert line.overlap.split == 0 < line.overlap.whole
    assert line.time == pytest.approx(rl.timeline(split(), "h100-sxm", **SMALL | {"seq": 16}).time)


def test_bounds_hold_to_the_last_digit() -> None:
    for streams, mode in itertools.product((1, 2), ("eager", "graph", "compiled")):
        line = rl.timeline("resnet18", "h100-sxm", batch=4, streams=streams, mode=mode)
        assert line.least <= line.time <= line.serial


# --- as a trace -------------------------------------------------------------------------------------------------------


def test_a_trace_reads_back_to_the_same_totals(tmp_path: Path) -> None:
    line = rl.timeline(split(layers=1), "h100-sxm", overlap="tp", prefetch=1, **SMALL | {"mode": "eager"})
    line.save(tmp_path / "x.json")
    trace = rl.traces.read_trace(tmp_path / "x.json")
    events = trace.events
    on_device = np.isin(events.kind, DEVICE)
    assert trace.devices == {0: "h100-sxm"}
    assert (events.start + events.duration).max() == pytest.approx(line.time)
    for row in line.engines():
        (thread,) = [thread for (_, thread), name in trace.threads.items() if name == row["engine"]]
        mine = (events.stream == thread) & on_device if row["engine"] != "host" else ~on_device
        assert mine.sum() == row["tasks"]
        assert events.duration[mine].sum() == pytest.approx(row["busy_s"])
    assert {"kernel", "communication", "copy_in"} == {launch.role for launch in launches(trace)}


def test_a_trace_is_json_that_a_viewer_opens(tmp_path: Path) -> None:
    line = rl.timeline(split(layers=1), "h100-sxm", **SMALL)
    line.save(tmp_path / "x.json")
    events = json.loads((tmp_path / "x.json").read_text())["traceEvents"]
    slices = [event for event in events if event["ph"] == "X"]
    assert len(slices) == len(line.tasks) + len(line.critical)
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    ends = {event["id"]: event for event in events if event["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert starts
    assert all(starts[number]["ts"] <= ends[number]["ts"] + 1e-9 for number in starts)
    named = {(event["pid"], event["tid"]) for event in events if event["name"] == "thread_name"}
    assert {(event["pid"], event["tid"]) for event in slices} <= named

    def at(event: dict[str, Any]) -> str:
        """Return the slice that an arrow starts or ends in: the last that has begun, as viewers have it."""
        mine = [one for one in slices if (one["pid"], one["tid"]) == (event["pid"], event["tid"])]
        last = max((one for one in mine if one["ts"] <= event["ts"]), key=lambda one: one["ts"])
        assert event["ts"] < last["ts"] + last["dur"]
        return str(last["name"])

    before: dict[str, set[str]] = {}
    for number in starts:
        before.setdefault(at(ends[number]).split()[-1], set()).add(at(starts[number]).split()[-1])
    waits = {row["name"]: row["waits_for"] for row in line.records() if row["waits_for"]}
    assert before.keys() == waits.keys()
    assert all(waits[name] in before[name] for name in waits)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"streams": 0}, "streams=0: expected a whole number from 1"), ({"streams": 65}, "streams=65"),
        ({"prefetch": -1}, "prefetch=-1"), ({"overlap": "tpp"}, "allowed: tp, ring; did you mean tp"),
        ({"overlap": "tp"}, "shard it first: --tp"), ({"chunks": 4}, "give overlap too"),
        ({"overlap": "tp", "chunks": 1}, "chunks=1"), ({"batch": [1, 2]}, "one point"),
    ],
)  # fmt: skip
def test_nonsense_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=words.replace("?", r"\?")):
        rl.timeline(GPT2, "h100-sxm", **{"batch": 1, "context": 8, **options})


def test_a_pipeline_and_a_chip_without_a_link_say_so() -> None:
    with pytest.raises(rl.errors.UsageError, match="stages of a pipeline"):
        rl.timeline(rl.what_if("gpt2", pp=2), "h100-sxm", seq=8, batch=1)
    bare = rl.Chip(name="bare", matrix={"fp32": "1 TFLOP/s"}, memory_bandwidth="1 GB/s", memory_capacity="9 GB")
    with pytest.raises(rl.errors.MissingFigure, match="host link"):
        rl.timeline(GPT2, bare, batch=1, context=8, prefetch=1)


def test_the_command_prints_draws_and_writes(run: Run, tmp_path: Path) -> None:
    call = ("timeline", "gpt2", "h100-sxm", "--phase", "prefill", "-S", "512", "--tp", "2", "--mode", "graph")
    out = run(*call, "--overlap", "tp", "-o", str(tmp_path / "x.json"), "--plot", str(tmp_path / "x.svg"))
    assert out.code == 0
    assert "one after the other" in out.out
    assert (tmp_path / "x.svg").stat().st_size > 1000
    data = run(*call, "--json").data
    graph = rl.what_if(rl.model("gpt2", phase="prefill"), tp=2)
    assert data["time_s"] == rl.timeline(graph, "h100-sxm", batch=1, seq=512, mode="graph").time
    fails(run(*call, "--overlap", "sideways"), "allowed: tp, ring")
    fails(run(*call, "-B", "1,2"), "one point")
