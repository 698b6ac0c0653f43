"""Charts: their rows are the numbers of the result, their labels cover nothing, and both renderers have them all."""

from __future__ import annotations

import csv
import importlib
import io
import itertools
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Run, fails

import roofline as rl
from roofline.analysis.timeline import kernel_runs, memory_over_time
from roofline.view.charts import trace_memory
from roofline.view.charts.chart import Chart
from roofline.view.charts.labels import overlaps
from roofline.view.charts.marks import Bars, Line, Points, Rule

charts = rl.charts
ROOT = Path(__file__).resolve().parent.parent
TRACE = ROOT / "examples" / "attention_naive.json.gz"
BEFORE, AFTER, RANKS = (
    ROOT / "examples" / name for name in ("block_before.json.gz", "block_after.json.gz", "two_ranks")
)
DECODE: dict[str, Any] = {"phase": "decode", "mode": "graph", "context": 512}
ROWS = [
    {"op": "gemm", "dtype": "bf16", "shape": '{"m": 64, "n": 4096, "k": 4096}', "kernel_us": "20"},
    {"op": "relu", "dtype": "bf16", "shape": '{"n": 33554432}', "kernel_us": "46"},
    {"op": "relu", "dtype": "bf16", "shape": '{"n": 1048576}', "kernel_us": "4000"},
]
SWEEP = ([5, 30, 50, 100, 200, 400], ["15.91 ms", "15.02 ms", "17.63 ms", "33.46 ms", "61.5 ms", "119.85 ms"])


@cache
def estimate() -> rl.Estimate:
    return rl.estimate("gpt2", "h100-sxm", batch=8, **DECODE)


@cache
def comparison() -> Any:
    return rl.compare("gpt2", ["h100-sxm", "l4", "grayskull-e150"], batch=[1, 64], what_if={}, **DECODE)


@cache
def step() -> Any:
    return rl.training.train("gpt2", "h100-sxm", batch=16, seq=256, dp=2, zero=1)


@cache
def service() -> Any:
    return rl.serving.serve("gpt2", "h100-sxm", prompt=64, new_tokens=40, concurrency=[1, 8, 64, 512], tpot="0.6 ms")


@cache
def simulated() -> Any:
    served = rl.serving.deployment("gpt2", "h100-sxm")
    return rl.serving.simulate(served, prompt=64, new_tokens=10, qps=50, requests=40, ttft="40 ms")


@cache
def kept() -> Any:
    trace = rl.serving.made_requests([0, 1, 2], 600, 10, ids=[[1, 2], [1, 3], [1, 2]])
    ways = {"caches": ("bf16", "int8"), "trace": trace, "host": "8 GiB"}
    return rl.serving.cache_policies("gpt2", "h100-sxm", prompt=64, new_tokens=40, **ways)


@cache
def request() -> Any:
    return rl.serving.request("gpt2", "h100-sxm", prompt=64, new_tokens=40, batch=4, block=16)


@cache
def planned() -> rl.serving.Plan:
    options: dict[str, Any] = {"weights": ["own"], "cache": ["own"], "chunks": [2048], "counts": [1], "points": 6}
    prices = {"h100-sxm": 2.5, "l4": 0.7}
    return rl.serving.plan("gpt2", ["h100-sxm", "l4"], prompt=64, new_tokens=8, tpot="5 ms", prices=prices, **options)


@cache
def scaling() -> Any:
    return rl.scaling("llama-3-8b", "l4", (1, 2, 4), batch=1, **DECODE)


@cache
def verdict() -> Any:
    return rl.check("gpt2", "h100-sxm", "40 ms", batch=8, **DECODE)


@cache
def history() -> Any:
    small = rl.what_if("gpt2", phase="decode", weights="int8", fuse="chains")
    return rl.analysis.pass_history(small, "h100-sxm", mode="graph", batch=1, context=512)


@cache
def sweep() -> Any:
    return rl.diagnosis.check_sweep(*SWEEP, "resnet50", "t4", dtype="fp16")


@cache
def diff() -> Any:
    return rl.diagnosis.compare_traces(BEFORE, AFTER)


@cache
def ranks() -> Any:
    return rl.diagnosis.ranks_report(RANKS)


@cache
def validation() -> Any:
    return rl.validate(ROWS, "h100-sxm")


CASES: dict[str, Callable[[], Chart]] = {
    "memory": lambda: charts.plot_memory(estimate()),
    "memory of several": lambda: charts.plot_memory(rl.estimate("gpt2", ["h100-sxm", "l4"], batch=[1, 64], **DECODE)),
    "memory of a request": lambda: charts.plot_memory(request()),
    "memory over time": lambda: charts.plot_memory_over_time(estimate()),
    "layers": lambda: charts.plot_layers(estimate()),
    "layers of a step": lambda: charts.plot(step(), "layers"),
    "timeline": lambda: charts.plot_timeline(estimate(), layer="layers.0"),
    "timeline of engines": lambda: charts.plot(rl.timeline("llama-3-8b", "l4", prefetch=1, batch=1, **DECODE)),
    "times that differ": lambda: charts.plot(
        rl.analysis.vary("gpt2", "h100-sxm", phase="decode", samples=50, batch=1, context="uniform:low=1,high=900")
    ),
    "timeline of a trace": lambda: charts.plot_timeline(TRACE),
    "verdict": lambda: charts.plot_verdict(verdict()),
    "impossible": lambda: charts.plot_verdict(rl.check("gpt2", "h100-sxm", "1 us", batch=8, **DECODE)),
    "verdict of a trace": lambda: charts.plot_verdict(rl.diagnosis.trace_report(TRACE)),
    "changes": lambda: charts.plot_diff(diff()),
    "ranks": lambda: charts.plot_ranks(ranks()),
    "memory of a trace": lambda: charts.plot_trace_memory(rl.diagnosis.trace_report(BEFORE)),
    "predictions": lambda: charts.plot_predictions(validation()),
    "pareto": lambda: charts.plot_pareto(comparison()),
    "chips": lambda: charts.plot_comparison(comparison()),
    "elasticity": lambda: charts.plot_elasticity(comparison()),
    "scaling": lambda: charts.plot_scaling(scaling()),
    "plan": lambda: charts.plot_plan(planned()),
    "request": lambda: charts.plot_request(request()),
    "service": lambda: charts.plot_service(service()),
    "server": lambda: charts.plot_simulation(simulated()),
    "cache": lambda: charts.plot_cache_policies(kept()),
    "step": lambda: charts.plot_step(step()),
    "passes": lambda: charts.plot_passes(history()),
    "sweep": lambda: charts.plot_sweep(sweep()),
}


@pytest.fixture(params=CASES)
def chart(request: pytest.FixtureRequest) -> Chart:
    return CASES[request.param]()


# --- what all of them hold --------------------------------------------------------------------------------------------


def test_a_chart_has_its_rows_as_csv_and_is_drawn_by_both(chart: Chart, tmp_path: Path) -> None:
    rows = chart.records()
    chart.to_csv(tmp_path / "rows.csv")
    read = list(csv.DictReader(io.StringIO((tmp_path / "rows.csv").read_text(encoding="utf-8"))))
    assert len(read) == len(rows)
    drawing = chart.drawing()
    names = {mark.name for panel in drawing.panels for mark in panel.marks if getattr(mark, "name", "")}
    page = json.loads(chart.plotly().to_json())
    assert {trace["name"] for trace in page["data"] if trace.get("showlegend")} >= names
    assert json.dumps(chart.record(), allow_nan=False)


@pytest.mark.parametrize("width", [8.0, 5.0])
def test_labels_cover_nothing_and_stay_on_the_page(chart: Chart, width: float) -> None:
    size = chart.drawing().size
    figure = chart.figure((width, size[1]))
    figure.draw_without_rendering()
    page = figure.bbox
    for ax in figure.axes:
        written = [text for text in ax.texts if text.get_text().strip() and text.get_rotation() == 0]
        boxes = [tuple(text.get_window_extent().extents) for text in written]
        for (one, a), (other, b) in itertools.combinations(zip(written, boxes, strict=True), 2):
            assert not overlaps([a], [b]).any(), (one.get_text(), other.get_text())
        for text, (x0, y0, x1, y1) in zip(written, boxes, strict=True):
            assert x0 >= page.x0 - 2, text.get_text()
            assert x1 <= page.x1 + 8, text.get_text()
            assert y0 >= page.y0 - 2, text.get_text()
            assert y1 <= page.y1 + 2, text.get_text()


def test_a_page_holds_the_figure_and_loads_nothing(tmp_path: Path) -> None:
    CASES["scaling"]().save(tmp_path / "scaling.html")
    page = (tmp_path / "scaling.html").read_text(encoding="utf-8")
    assert "Plotly.newPlot" in page
    assert "kernels that compute" in page
    assert "<script src" not in page
    assert "<link" not in page


def test_a_result_names_its_charts() -> None:
    assert next(iter(charts.charts_of(comparison()))) == "chips"
    assert isinstance(charts.plot(step()), charts.StepParts)
    assert isinstance(charts.plot(step(), "timeline"), charts.Timeline)
    for result in (
        comparison(),
        step(),
        request(),
        service(),
        scaling(),
        verdict(),
        history(),
        sweep(),
        validation(),
        diff(),
        ranks(),
    ):
        for make in charts.charts_of(result).values():
            assert make().records()
    with pytest.raises(rl.errors.UsageError, match=r"allowed: chips, elasticity, pareto; did you mean elasticity\?"):
        charts.plot(comparison(), "elasticities")
    with pytest.raises(rl.errors.UsageError, match="Graph has no chart"):
        charts.plot(rl.model("gpt2"))


# --- numbers ----------------------------------------------------------------------------------------------------------


def test_kernels_in_their_order_are_those_of_the_estimate() -> None:
    est = estimate()
    runs = kernel_runs(est)
    assert sum(run.seconds for run in runs) == pytest.approx(est.device_time)
    assert len(runs) == est.counts.launches
    assert all(a.end == pytest.approx(b.start) for a, b in itertools.pairwise(runs))
    by_name = {row["kernel"]: row for row in est.kernel_rows()}
    some = next(run for run in runs if run.kernel in by_name)
    assert some.seconds == pytest.approx(by_name[some.kernel]["each_s"])
    layers = charts.plot_layers(est).records()
    assert sum(row["time_s"] for row in layers) == pytest.approx(est.device_time)
    one = next(row for row in layers if row["layer"] == "layers.3")
    assert one["time_s"] == pytest.approx(sum(run.seconds for run in runs if run.kernel.startswith("layers.3.")))
    assert one["time_s"] == pytest.approx(
        sum(value for key, value in one.items() if key.endswith("_s")) - one["time_s"]
    )


@pytest.mark.parametrize("make", [
    estimate, lambda: rl.estimate("resnet50", "h100-sxm", batch=16),
    lambda: rl.estimate("llama-3-8b", "h100-sxm", phase="prefill", batch=1, seq=2048, mode="compiled"),
    lambda: step().virtual_stages[0].estimate,
])  # fmt: skip
def test_the_peak_over_time_is_the_memory_of_the_estimate(make: Callable[[], rl.Estimate]) -> None:
    est = make()
    over = memory_over_time(est)
    assert sum(over.always.values()) + max(over.live) == pytest.approx(float(est.memory.total))
    assert all(size <= max(over.live) for size in over.largest.values())
    assert min(over.always.values()) >= 0


def test_memory_says_what_does_not_fit() -> None:
    big = charts.plot_memory(rl.estimate("llama-3-70b", ["h100-sxm", "l4"], batch=1, **DECODE))
    assert {row["fits"] for row in big.records()} == {False}
    texts = [text for mark in big.drawing().panels[0].marks if isinstance(mark, Bars) for text in mark.texts]
    assert sum("does not fit" in text for text in texts) == 2
    one = charts.plot_memory(step()).records()
    assert sum(row["bytes"] for row in one) == pytest.approx(float(step().memory.total))
    peak = charts.plot_memory(request()).records()
    assert sum(row["bytes"] for row in peak) == pytest.approx(request().peak)


def test_a_waterfall_adds_up_to_the_measured_time() -> None:
    for made in (verdict(), rl.diagnosis.trace_report(TRACE)):
        rows = charts.plot_verdict(made).records()
        whole = made.measured if isinstance(made, rl.diagnosis.Verdict) else made.seconds
        assert sum(row["time_s"] for row in rows) == pytest.approx(whole)
        assert [row["start_s"] for row in rows] == pytest.approx(np.cumsum([0, *[row["time_s"] for row in rows]])[:-1])
        assert [row["part"] for row in rows] == [part for part, _ in made.waterfall]


def test_an_impossible_time_is_called_out() -> None:
    panel = CASES["impossible"]().drawing().panels[0]
    bars = [mark for mark in panel.marks if isinstance(mark, Bars)]
    assert [mark.colour for mark in bars] == ["red"]
    assert "impossible" in bars[0].texts[0]
    bound = next(mark for mark in panel.marks if isinstance(mark, Rule) and "no run takes less" in mark.label)
    assert bound.x is not None
    assert panel.x.high is not None
    assert bound.x < panel.x.high


def test_predictions_are_those_of_validate() -> None:
    rows = CASES["predictions"]().records()
    assert [row["measured"] for row in rows] == pytest.approx([20e-6, 46e-6, 4e-3])
    table = rl.predict(ROWS, "h100-sxm")
    assert [row["predicted"] * 1e6 for row in rows] == pytest.approx(list(table.predicted_us))
    assert [row["low"] * 1e6 for row in rows] == pytest.approx(list(table.low_us))
    assert [row["place"] for row in rows][1:] == ["inside", "outside"]
    assert charts.plot_predictions(table).records()[2]["error"] == pytest.approx(rows[2]["error"])
    judged = rl.diagnosis.check_ops(
        [{**row, "time_us": row["kernel_us"]} for row in ROWS], "h100-sxm", column="time_us"
    )
    by_row = {row["name"].partition(":")[0]: row for row in charts.plot_predictions(judged).records()}
    assert by_row["row 3"]["measured"] == pytest.approx(4e-3)
    fast = rl.diagnosis.check_ops([{**ROWS[1], "time_us": "1"}], "h100-sxm", column="time_us")
    assert charts.plot_predictions(fast).records()[0]["place"] == "impossible"


def test_the_front_beats_every_other_option() -> None:
    chart = charts.plot_pareto(rl.estimate("llama-3-8b", ["h100-sxm", "l4"], batch=[1, 8, 64, 1024], **DECODE))
    rows = chart.records()
    front = [row for row in rows if row["on_front"]]
    for row in rows:
        beaten = any(
            one["latency_s"] <= row["latency_s"] and one["tokens_per_s"] >= row["tokens_per_s"] and one is not row
            for one in front
        )
        assert row["on_front"] or beaten or row["fits"] is False
    assert not any(row["on_front"] and row["fits"] is False for row in rows)
    assert {row["fits"] for row in rows} == {True, False}


def test_a_price_turns_throughput_into_what_money_buys() -> None:
    est = rl.estimate("gpt2", ["h100-sxm", "l4"], batch=[1, 64], **DECODE)
    rows = charts.plot_pareto(est, price={"h100-sxm": 4.0, "l4": 0.5}).records()
    assert rows[0]["tokens_per_price"] == pytest.approx(float(est.throughput[0, 0]) * 3600 / 4)
    with pytest.raises(rl.errors.UsageError, match="price has none of l4; given: h100-sxm"):
        charts.plot_pareto(est, price={"h100-sxm": 4.0})


def test_chips_are_those_of_the_comparison() -> None:
    rows = charts.plot_comparison(comparison()).records()
    known = comparison().records()
    assert [row["time_s"] for row in rows] == [row["time_s"] for row in known]
    assert rows[-1]["reason"] == known[-1]["reason"] != ""
    assert rows[0]["label"] == "h100-sxm, batch 1"
    pulls = {(row["label"], row["figure"]): row["elasticity"] for row in charts.plot_elasticity(comparison()).records()}
    assert pulls["h100-sxm, batch 64", "memory_bandwidth"] == known[1]["elasticity"]["memory_bandwidth"]
    bars = [mark for mark in charts.plot_elasticity(comparison()).drawing().panels[0].marks if isinstance(mark, Bars)]
    drawn = sum(np.asarray(mark.length)[0] for mark in bars)
    assert drawn == pytest.approx(sum(known[0]["elasticity"].values()), abs=0.02)


def test_scaling_adds_up_and_marks_what_does_not_fit() -> None:
    chart = charts.plot_scaling(scaling())
    for row, point in zip(chart.records(), scaling().points, strict=True):
        assert row["time_s"] == point.time
        parts = (row["computing_s"], row["communication_s"], row["waiting_for_host_s"])
        assert sum(parts) == pytest.approx(point.time)
    assert [row["ideal"] for row in chart.records()] == [1, 2, 4]
    big = charts.plot_scaling(rl.scaling("llama-3-70b", "h100-sxm", (1, 2), batch=1, **DECODE))
    rings = [mark for mark in big.drawing().panels[0].marks if isinstance(mark, Points) and not mark.filled]
    assert [list(mark.x) for mark in rings] == [[0]]


def test_a_request_is_token_by_token() -> None:
    rows = charts.plot_request(request()).records()
    assert [row["time_s"] for row in rows] == request().token_times.tolist()
    assert rows[-1]["done_s"] == pytest.approx(request().time)
    assert [row["cache_reserved_bytes"] for row in rows] == np.asarray(request().cache.reserved).tolist()
    one = charts.plot_request(rl.serving.request("gpt2", "h100-sxm", prompt=64, new_tokens=1))
    assert len(one.records()) == 1
    one.figure()


def test_charts_do_without_a_capacity_that_nobody_published() -> None:
    one = rl.serving.request("gpt2", "xeon-8480", prompt=8, new_tokens=2)
    assert one.fits is None
    for chart in (charts.plot_request(one), charts.plot_memory(one), charts.plot_memory(one.prefill)):
        chart.figure()
    assert charts.plot_memory(one).records()[0]["fits"] is None
    charts.plot_memory_over_time(one.prefill).figure()


def test_a_step_has_all_its_parts() -> None:
    rows = charts.plot_step(step()).records()
    time = {row["part"]: row["time_s"] for row in rows if row["of"] == "time"}
    assert time == dict(step().seconds)
    assert sum(row["bytes"] for row in rows if row["of"] == "memory") == pytest.approx(float(step().memory.total))


def test_passes_are_against_the_program_as_given() -> None:
    bars = [mark for mark in charts.plot_passes(history()).drawing().panels[0].marks if isinstance(mark, Bars)]
    traffic = next(mark for mark in bars if mark.name == "traffic")
    states = history().states
    assert list(traffic.length) == pytest.approx([state["bytes"] / states[0]["bytes"] for state in states])


def test_a_sweep_has_what_was_measured_and_expected() -> None:
    rows = charts.plot_sweep(sweep()).records()
    assert [row["measured_s"] for row in rows] == list(sweep().times)
    alone = charts.plot_sweep(rl.diagnosis.check_sweep(*SWEEP))
    assert [row["expected_s"] for row in alone.records()] == [None] * 6
    alone.figure()


def test_a_timeline_of_a_trace_has_its_streams_and_its_gaps() -> None:
    chart = charts.plot_timeline(TRACE)
    report = rl.diagnosis.trace_report(TRACE)
    lanes = {row["lane"] for row in chart.records()}
    assert "idle" in lanes
    assert any(lane.startswith("stream") for lane in lanes)
    busy = sum(row["time_s"] for row in chart.records() if row["lane"] != "idle")
    assert busy == pytest.approx(report.busy, rel=0.02)
    idle = sum(row["time_s"] for row in chart.records() if row["lane"] == "idle")
    assert idle == pytest.approx(sum(report.idle.values()), rel=0.5)


def bars_of(chart: Chart, panel: int) -> list[Bars]:
    return [mark for mark in chart.drawing().panels[panel].marks if isinstance(mark, Bars)]


@pytest.mark.parametrize("panel", [0, 1])
def test_changes_of_operators_and_of_causes_add_up_to_the_difference(panel: int) -> None:
    *changes, whole = bars_of(charts.plot(diff()), panel)
    assert whole.length == [pytest.approx(diff().change_s)]
    assert sum(size for bars in changes for size in bars.length) == pytest.approx(diff().change_s, rel=1e-4)
    assert {bars.name: {size > 0 for size in bars.length} for bars in changes} == {"grew": {True}, "shrank": {False}}


def test_bars_of_a_rank_fill_its_iteration() -> None:
    chart = charts.plot(ranks())
    parts = np.asarray([bars.length for bars in bars_of(chart, 0)])
    assert parts.sum(axis=0) == pytest.approx([rank.time_s for rank in ranks().ranks])
    waits, late = bars_of(chart, 1)
    assert list(waits.length) == [rank.wait_s for rank in ranks().ranks]
    assert list(late.length) == [rank.late_s for rank in ranks().ranks]
    assert "rank 1 is last" in chart.drawing().subtitle


def test_memory_of_a_trace_has_its_peak_and_what_lay_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    chart = charts.plot(rl.diagnosis.trace_report(BEFORE), "memory")
    monkeypatch.setattr(trace_memory, "DRAWN", 5)  # also where only some of the steps are drawn
    curve, peak = (next(mark for mark in chart.drawing().panels[0].marks if isinstance(mark, kind))
                   for kind in (Line, Points))  # fmt: skip
    assert max(curve.y) == peak.y[0] == chart.result.peak
    assert len(curve.x) == len(curve.y) == len(curve.hover) == 10
    held, whole = bars_of(chart, 1)
    assert sum(held.length) == whole.length[0] == chart.result.peak


def test_a_timeline_has_lanes_for_collectives_and_the_host() -> None:
    halves = rl.passes.shard(rl.model("gpt2", phase="decode"), tp=2)
    est = rl.estimate(halves, "h100-sxm", batch=1, context=512, mode="eager")
    rows = charts.plot_timeline(est).records()
    assert {row["lane"] for row in rows} == {"kernels", "communication", "host"}
    host = next(row for row in rows if row["lane"] == "host")
    assert host["time_s"] == pytest.approx(float(est.host_time))
    assert sum(row["time_s"] for row in rows if row["lane"] != "host") == pytest.approx(float(est.device_time))


def test_a_long_timeline_draws_thin_neighbours_as_one() -> None:
    est = rl.estimate("llama-3-70b", "h100-sxm", batch=1, **DECODE)
    chart = charts.plot_timeline(est)
    drawn = sum(len(mark.at) for mark in chart.drawing().panels[0].marks if isinstance(mark, Bars))
    assert len(chart.records()) == len(kernel_runs(est)) > 2 * drawn


# --- the gallery ------------------------------------------------------------------------------------------------------


def test_the_gallery_shows_every_chart_on_both_grounds() -> None:
    """Its code runs in test_docs.py; after a change of a chart: ``python scripts/pictures.py``."""
    sys.path.insert(0, str(ROOT / "scripts"))
    pictures = importlib.import_module("pictures")
    sys.path.pop(0)
    shown = pictures.pictures()
    files = [path for name, (_, suffix) in shown.items() for path in pictures.files(name, suffix)]
    assert all(path.is_file() for path in files)
    assert sum(path.stat().st_size for path in files) < 3e6
    page = pictures.PAGE.read_text(encoding="utf-8")
    assert page.count("```python") == len(shown), "code without a picture"
    missing = {name for name in charts.__all__ if name.startswith("plot_") and f"rl.charts.{name}(" not in page}
    assert not missing, "without a picture"


# --- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: charts.plot_memory("gpt2"), "expected an Estimate"),
        (lambda: charts.plot_verdict(estimate()), "expected a Verdict"),
        (lambda: charts.plot_comparison(estimate()), "expected a Comparison"),
        (lambda: charts.plot_scaling(estimate()), "expected a Scaling"),
        (lambda: charts.plot_plan(estimate()), "expected a Plan"),
        (lambda: charts.plot_request(estimate()), "expected a Request"),
        (lambda: charts.plot_service(estimate()), "expected a Service"),
        (lambda: charts.plot_simulation(estimate()), "expected a Simulation"),
        (lambda: charts.plot_cache_policies(estimate()), "expected CachePolicies"),
        (lambda: charts.plot_step(estimate()), "expected a TrainingStep"),
        (lambda: charts.plot_passes(estimate()), "expected a PassHistory"),
        (lambda: charts.plot_sweep(estimate()), "expected a SweepVerdict"),
        (lambda: charts.plot_pareto("gpt2"), "expected estimates"),
        (lambda: charts.plot_predictions("rows"), "expected a Validation"),
        (lambda: charts.plot_predictions([{"op": "relu"}]), "both measured and predicted"),
        (lambda: charts.plot_diff(estimate()), "expected a TraceDiff"),
        (lambda: charts.plot_ranks(estimate()), "expected a RanksReport"),
        (lambda: charts.plot_trace_memory(estimate()), "expected a TraceReport"),
        (lambda: charts.plot(rl.diagnosis.trace_report(TRACE), "memory"), "profile_memory=True"),
        (lambda: charts.plot_timeline(3), "expected an Estimate, a trace"),
        (lambda: charts.plot_timeline(estimate(), layer="layers.99"), "did you mean layers.9"),
        (lambda: charts.plot_timeline(TRACE, layer="layers.0"), "a trace has no layers"),
        (lambda: charts.plot_layers(rl.estimate("gpt2", "h100-sxm", batch=[1, 2], **DECODE)), "one point"),
        (lambda: charts.plot_elasticity(rl.compare("gpt2", "grayskull-e150", batch=1, **DECODE)), "no chip"),
        (lambda: charts.plot_memory_over_time(rl.estimate(rl.passes.pipelined(rl.model("gpt2", phase="decode"), 2),
                                                          "h100-sxm", batch=1, context=512)), "stages of a pipeline"),
        (lambda: charts.plot_passes(rl.analysis.pass_history("gpt2", batch=1, seq=64)), "no pass was applied"),
    ],
)  # fmt: skip
def test_what_has_no_such_chart_says_so(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=words):
        call()


# --- on the command line ----------------------------------------------------------------------------------------------

SIZES = ("--phase", "decode", "-S", 64, "--mode", "graph")
FILES = {
    "ops.csv": "op,dtype,m,n,k,time_us\ngemm,bf16,4096,4096,4096,190\n",
    "sweep.csv": "batch,time_ms\n5,15.91\n30,15.02\n50,17.63\n100,33.46\n",
    "rows.csv": "op,dtype,shape,kernel_us\nrelu,bf16,\"{\"\"n\"\": 33554432}\",46\n",
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "args",
    [
        ("estimate", "gpt2", "h100-sxm", *SIZES), ("estimate", "gpt2", "h100-sxm", *SIZES, "--chart", "memory"),
        ("batch", "gpt2", "h100-sxm", *SIZES, "--memory-limit", "3GiB"),
        ("compare", "gpt2", "h100-sxm,l4", *SIZES), ("compare", "gpt2", "l4", *SIZES, "--chart", "elasticity"),
        ("scaling", "gpt2", "h100-sxm", *SIZES, "--devices", "1,2"),
        ("request", "gpt2", "h100-sxm", "--prompt", 8, "--new-tokens", 4),
        ("serve", "gpt2", "h100-sxm", "--prompt", 8, "--new-tokens", 4, "--qps", "1,2"),
        ("cache", "gpt2", "h100-sxm", "--prompt", 64, "--new-tokens", 4, "--hit", "0.5"),
        ("train", "gpt2", "h100-sxm", "-B", 1, "-S", 64), ("check", "gpt2", "h100-sxm", *SIZES, "--measured", "9ms"),
        ("trace", TRACE), ("trace", TRACE, "--chart", "timeline"), ("sweep", "sweep.csv"),
        ("trace", BEFORE, AFTER, "--diff"), ("trace", RANKS), ("trace", BEFORE, "--chart", "memory"),
        ("ops", "ops.csv", "h100-sxm"), ("validate", "rows.csv", "h100-sxm"), ("predict", "rows.csv", "h100-sxm"),
    ],
    ids=lambda args: " ".join(map(str, args[:1] + args[-2:])),
)  # fmt: skip
def test_a_command_draws_beside_what_it_prints(run: Run, folder: Path, args: tuple[object, ...]) -> None:
    result = run(*args, "--plot", "chart.svg")
    assert result.code in (0, 1)
    assert result.out
    assert (folder / "chart.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_what_is_printed_is_the_same_with_a_chart(run: Run, folder: Path) -> None:
    call = ("compare", "gpt2", "l4", *SIZES, "--json")
    assert run(*call, "--plot", "chart.html").out == run(*call).out
    assert "Plotly.newPlot" in (folder / "chart.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--plot", "chart.gif"), ("unknown suffix '.gif'", ".html")),
        (("--plot", "chart.svg", "--chart", "layer"), ("--chart 'layer'", "allowed: roofline, layers", "did you mean")),
        (("--chart", "layers"), ("--plot FILE",)),
        (("--plot", "none/chart.svg"), ("no directory",)),
    ],
)
def test_a_chart_that_cannot_be_is_one_line(run: Run, folder: Path, args: tuple[str, ...], words: list[str]) -> None:
    fails(run("estimate", "gpt2", "h100-sxm", *SIZES, *args), *words)


def test_a_note_names_the_other_charts(run: Run, folder: Path) -> None:
    result = run("compare", "gpt2", "l4", *SIZES, "--plot", "chart.svg")
    assert "chart.svg: chart chips; --chart has also elasticity, pareto" in result.err
