"""Plots: what they hold, where their labels lie, and the files that they become."""

from __future__ import annotations

import dataclasses
import io
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_traces import Made, chain

import roofline as rl
from roofline.cost import BOUNDS
from roofline.ir import files
from roofline.view.charts import chart as kit
from roofline.view.charts.chart import Chart
from roofline.view.charts.labels import crosses, overlaps, place, spread
from roofline.view.charts.points import Point
from roofline.view.charts.roof_marks import LABELLED

SIZES = [(8, 5.4), (16, 9), (6, 4.2)]


def program(kernels: int = 15, rows: Any = 512, name: str = "net") -> rl.Graph:
    """Linear layers of rising width, a few cheap kernels and a copy."""
    b = rl.ops.Builder(name, "bf16")
    x = b.input("x", (rows, 256))
    for i in range(kernels - 3):
        x = b.op("linear", x, b.weight(f"w{i}", (256 * (i + 2), 256 * (i + 1))), name=f"blocks.{i}.mlp.linear")
    x = b.op("layernorm", x, name="norm")
    x = b.op("relu", x, name="act")
    x = b.op("transpose_copy", x, name="swap_axes")
    return b.graph([x], items=rows, item="row")


@pytest.fixture(scope="module")
def point() -> rl.Estimate:
    return rl.estimate(program(), "h100-sxm", mode="graph")


@pytest.fixture(scope="module")
def line() -> rl.Estimate:
    return rl.estimate(program(rows=rl.ops.symbol("B")), "h100-sxm", mode="graph", B=[2**k for k in range(13)])


@pytest.fixture(params=["roofline", "batch"])
def picture(request: pytest.FixtureRequest, point: rl.Estimate, line: rl.Estimate) -> Chart:
    return (
        rl.charts.plot_roofline(point) if request.param == "roofline" else rl.charts.plot_batch(line, ridge=64, best=32)
    )


def texts(figure: Any, prefix: str) -> list[Any]:
    return [text for ax in figure.axes for text in ax.texts if str(text.get_gid()).startswith(prefix)]


def drawn(spec: Chart, size: tuple[float, float] | None = None) -> Any:
    """The figure, with all of its texts at their final place."""
    figure = spec.figure(size)
    figure.draw_without_rendering()
    return figure


def box(text: Any) -> tuple[float, ...]:
    """Of the text alone, without its leader."""
    from matplotlib.text import Text

    return tuple(Text.get_window_extent(text).extents)


def inside_rotated(text: Any) -> np.ndarray:
    """Points all over a text that may be rotated [pixel]."""
    angle = text.get_rotation()
    corner = np.asarray(text.get_transform().transform(text.get_position()))
    text.set_rotation(0)
    x0, y0, x1, y1 = box(text)
    text.set_rotation(angle)
    grid = np.stack(np.meshgrid(np.linspace(0, 1, 40), np.linspace(0.1, 0.9, 6)), axis=-1).reshape(-1, 2)
    turn = np.radians(angle)
    turned = np.asarray([[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]])
    return np.asarray(corner + (grid * (x1 - x0, y1 - y0)) @ turned)


# --- what a plot holds ---


def test_specs_are_immutable(picture: Chart) -> None:
    for field in dataclasses.fields(picture):  # type: ignore[arg-type]
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(picture, field.name, None)


def test_frame_rows_are_the_kernels(point: rl.Estimate) -> None:
    table = rl.charts.plot_roofline(point).frame()
    kernels = table[table.kind == "kernel"]
    known = point.kernels()
    assert list(kernels.name) == list(known.kernel)
    assert np.allclose(kernels.time_s, known.time_s)
    assert np.allclose(kernels.intensity, known.intensity)
    work = kernels.flops + kernels.vector_flops
    assert np.allclose(kernels.flops_per_s, work / known.each_s)
    assert (kernels.flops_per_s <= kernels.roof_flops_per_s * (1 + 1e-9)).all()
    program_row = table[table.kind == "program"].iloc[0]
    assert program_row.time_s == pytest.approx(point.time)
    assert program_row.flops == pytest.approx((kernels.flops * kernels["count"]).sum())


def test_csv_is_the_frame(tmp_path: Path, picture: Chart) -> None:
    import pandas as pd

    picture.to_csv(tmp_path / "points.csv")
    table = picture.frame()
    back = pd.read_csv(tmp_path / "points.csv")
    assert list(back.columns) == list(table.columns)
    assert len(back) == len(table)
    with pytest.raises(rl.errors.UsageError, match="no directory"):
        picture.to_csv(tmp_path / "missing" / "points.csv")


@pytest.mark.parametrize("name", ["h100-sxm", "a100-80gb-sxm", "mi300x", "tpu-v5e"])
def test_ridge_is_the_chips(name: str) -> None:
    chip = rl.chip(name)
    spec = rl.charts.plot_roofline(chip, precisions=["bf16"])
    assert spec.ridge == chip.ridge("bf16")
    ax = spec.figure().axes[0]
    upright = [line for line in ax.lines if line.get_linestyle() == ":"]
    assert [set(line.get_xdata()) for line in upright] == [{chip.ridge("bf16")}]
    assert f"{chip.ridge('bf16'):.3g}" in texts(ax.figure, "mark")[0].get_text()


def test_ceilings(point: rl.Estimate) -> None:
    chip = point.chip
    spec = rl.charts.plot_roofline(point)
    assert [ceiling.label for ceiling in spec.ceilings] == ["bf16, fp16", "fp32 vector"]
    assert spec.ceilings[0].flops == chip.peak("bf16")
    assert spec.ceilings[0].achievable == pytest.approx(chip.peak("bf16") * chip.efficiency.compute)
    assert [slope.label for slope in spec.slopes] == ["HBM", "L2"]
    assert spec.slopes[0].achievable == pytest.approx(chip.bandwidth * chip.efficiency.memory)
    assert [slope.label for slope in rl.charts.plot_roofline(point, levels=["main"]).slopes] == ["HBM"]
    assert rl.charts.plot_roofline(point, precisions="fp8").ceilings[0].label == "fp8"


def test_tf32_is_said() -> None:
    b = rl.ops.Builder("net", "fp32")
    graph = b.graph([b.op("linear", b.input("x", (512, 512)), b.weight("w", (512, 512)))])
    spec = rl.charts.plot_roofline(rl.estimate(graph, "h100-sxm", tf32=True))
    assert spec.ceilings[0].label == "fp32 as tf32"
    assert spec.ridge == rl.chip("h100-sxm").ridge("fp32", tf32=True)


def test_every_chip_has_a_roof() -> None:
    kinds = {}
    for name in rl.chips():
        chip = rl.chip(name)
        if chip.main.bandwidth is None or not {**chip.matrix, **chip.vector}:
            with pytest.raises(rl.errors.MissingFigure):
                rl.charts.plot_roofline(chip)
            continue
        spec = rl.charts.plot_roofline(chip)
        assert spec.ridge > 0
        kinds[len(spec.ceilings), len(spec.slopes)] = spec
    for spec in kinds.values():
        spec.figure()


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda p, s: rl.charts.plot_roofline(s), rl.errors.UsageError, "index the axes"),
        (lambda p, s: rl.charts.plot_roofline("h100"), rl.errors.UnknownChip, "matches several"),
        (lambda p, s: rl.charts.plot_roofline(p, precisions=["int4"]), rl.errors.MissingFigure, "int4"),
        (lambda p, s: rl.charts.plot_roofline(p, precisions=[]), rl.errors.UsageError, "at least one"),
        (lambda p, s: rl.charts.plot_roofline(p, levels=["L9"]), rl.errors.MissingFigure, "L9"),
        (lambda p, s: rl.charts.plot_roofline("l4", levels=["SRAM"]), rl.errors.MissingFigure, "bandwidth of its SRAM"),
        (lambda p, s: rl.charts.plot_roofline("h100-sxm", measured=0.1), rl.errors.UsageError, "need an estimate"),
        (
            lambda p, s: rl.charts.plot_roofline(p, measured=[("a", 1, 2)]),
            rl.errors.UsageError,
            "label, flops, bytes, seconds",
        ),
        (lambda p, s: rl.charts.plot_roofline(p, measured=[("a", 1, 1, 0)]), rl.errors.UsageError, "not positive"),
        (lambda p, s: rl.charts.plot_roofline(p, measured=-1.0), rl.errors.UsageError, "not positive"),
        (lambda p, s: rl.charts.plot_roofline(p, measured=float("nan")), rl.errors.UnitError, "finite"),
        (lambda p, s: rl.charts.plot_batch(p), rl.errors.UsageError, "axis B alone"),
        (lambda p, s: rl.charts.plot_batch(s, memory_limit="3 parsecs"), rl.errors.UnitError, "parsecs"),
        (lambda p, s: rl.charts.plot_batch(s, latency_limit=0), rl.errors.UsageError, "latency_limit"),
        (lambda p, s: rl.charts.plot_batch(s, measured=[1, 2]), rl.errors.UsageError, "pairs of batch and seconds"),
        (lambda p, s: rl.charts.plot_batch(s, measured=[(0, 1.0)]), rl.errors.UsageError, "batch from 1"),
        (lambda p, s: rl.charts.plot_batch(s, best="many"), rl.errors.UsageError, "best"),
        (lambda p, s: rl.charts.plot_batch(s).on([None]), rl.errors.UsageError, "needs 3 axes"),
    ],
)
def test_bad_arguments(point: rl.Estimate, line: rl.Estimate, call: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words) as caught:
        call(point, line)
    assert "\n" not in str(caught.value)


# --- points above the roof ---


def test_points_above_the_roof_are_told(point: rl.Estimate) -> None:
    fine = rl.charts.plot_roofline(point, measured=point.floor)
    assert fine.warnings == ()
    legend = fine.figure().axes[0].get_legend()
    assert not [text for text in legend.get_texts() if "above" in text.get_text()]
    wrong = rl.charts.plot_roofline(point, measured=point.floor / 2)
    assert len(wrong.warnings) == 1
    assert "2 times as fast" in wrong.warnings[0]
    assert wrong.frame().above_roof.tolist()[-1]
    ax = wrong.figure().axes[0]
    assert "above the roof: check timing or count" in [text.get_text() for text in ax.get_legend().get_texts()]
    rings = [c for c in ax.collections if len(c.get_edgecolor()) and np.allclose(c.get_edgecolor()[0], _red())]
    assert len(rings) == 1


def _red() -> Any:
    from matplotlib.colors import to_rgba

    from roofline.view.charts.style import ALERT

    return to_rgba(ALERT)


def test_slack_is_the_chips(point: rl.Estimate) -> None:
    slack = point.chip.clock_slack
    assert not rl.charts.plot_roofline(point, measured=point.floor / slack * 1.001).warnings
    assert rl.charts.plot_roofline(point, measured=point.floor / slack * 0.999).warnings


def test_a_kernel_is_held_against_its_own_format() -> None:
    b = rl.ops.Builder("two", "bf16")
    x = b.op("linear", b.input("x", (4096, 4096)), b.weight("w", (4096, 4096)), name="half")
    y = b.op("linear", b.input("x32", (4096, 4096), "fp32"), b.weight("w32", (4096, 4096), "fp32"), name="full",
             dtype="fp32")  # fmt: skip
    est = rl.estimate(b.graph([x, y]), "h100-sxm")
    rate = 300e12
    timed = 2 * 4096**3 / rate
    named = rl.charts.plot_roofline(est, measured=[(n, 2 * 4096**3, 2e8, timed) for n in ("half", "full", "else")])
    assert [text.split(":")[0] for text in named.warnings] == ["full"]


def test_a_cache_may_explain_it() -> None:
    spec = rl.charts.plot_roofline(
        "h100-sxm", measured=[("small", "10 MFLOP", "20 MB", "3 us"), ("copy", 0, "2 GB", "0.3 ms")]
    )
    assert "fit in L2" in spec.warnings[0]
    assert "fit in L2" not in spec.warnings[1]
    spec.figure()


# --- labels ---


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("kernels", "measured"), [(4, 1e-7), (15, None), (15, 0.001), (40, 0.001)])
def test_labels_do_not_collide(size: tuple[float, float], measured: float | None, kernels: int) -> None:
    est = rl.estimate(program(kernels), "h100-sxm")
    figure = drawn(rl.charts.plot_roofline(est, measured=measured), size)
    ax = figure.axes[0]
    labels, below = texts(figure, "label"), texts(figure, "strip")
    named = [text for text in below if "-" in text.get_gid()]
    assert min(LABELLED, kernels) + 1 + (measured is not None) <= len(labels) + len(named)
    assert len(named) >= sum("of the time" in text.get_text() for text in below)  # the first of each row, at least
    rows = [box(text) for text in (*below, *ax.get_legend().get_texts())]
    assert not any(overlaps([a], [b]).any() for a, b in combinations(rows, 2))
    boxes = [box(text) for text in labels]
    for (i, a), (j, b) in combinations(enumerate(boxes), 2):
        assert not overlaps([a], [b]).any(), (labels[i].get_text(), labels[j].get_text())
    frame = ax.get_window_extent()
    assert all(x0 >= frame.x0 and y0 >= frame.y0 and x1 <= frame.x1 and y1 <= frame.y1 for x0, y0, x1, y1 in boxes)
    for bubble in ax.collections:
        reach = np.sqrt(bubble.get_sizes()[0]) / 2 * figure.dpi / 72 if len(bubble.get_offsets()) else 0
        x, y = bubble.get_offset_transform().transform(bubble.get_offsets())[0]
        assert not overlaps(boxes, [(x - reach, y - reach, x + reach, y + reach)]).any()
    for text in (t for t in ax.texts if t.get_rotation()):
        xs, ys = inside_rotated(text).T
        for x0, y0, x1, y1 in boxes:
            assert not ((xs > x0) & (xs < x1) & (ys > y0) & (ys < y1)).any(), text.get_text()


@pytest.mark.parametrize("size", SIZES)
def test_margin_labels_do_not_collide(size: tuple[float, float], point: rl.Estimate, line: rl.Estimate) -> None:
    roof = rl.charts.plot_roofline("h100-sxm", precisions=["bf16", "fp8", "tf32", "fp32", "fp64", "int8"])
    roof = drawn(roof, size)
    right = roof.axes[0].get_window_extent().x1
    found = [box(text) for text in roof.axes[0].texts if box(text)[0] > right]
    assert len(found) == 4
    assert not any(overlaps([a], [b]).any() for a, b in combinations(found, 2))
    sweep = rl.charts.plot_batch(line, latency_limit=1e-3, ridge=64, best=60)
    sweep = drawn(sweep, (8, 8.6))
    for prefix in ("margin", "mark"):
        found = [box(text) for text in texts(sweep, prefix)]
        assert len(found) > 1
        assert not any(overlaps([a], [b]).any() for a, b in combinations(found, 2))


@pytest.mark.parametrize("size", SIZES)
def test_all_text_is_on_the_page(size: tuple[float, float], point: rl.Estimate, line: rl.Estimate) -> None:
    spec = rl.charts.plot_roofline(point, measured=point.floor / 3)
    sweep = rl.charts.plot_batch(line, ridge=64, best=32, latency_limit=1e-3)
    figures = [drawn(spec, size), drawn(sweep, (size[0], 8.6))]
    for figure in figures:
        for ax in figure.axes:
            found = [box(t) for t in [*ax.texts, *(ax.get_legend().get_texts() if ax.get_legend() else [])]]
            for x0, y0, x1, y1 in found:
                assert min(x0, y0) >= 0
                assert x1 <= figure.bbox.x1 + 1
                assert y1 <= figure.bbox.y1 + 1


def test_kernels_without_flops_are_below_the_axes(point: rl.Estimate) -> None:
    """A rate of nothing has no height: act and swap_axes stand in a row of their own, with their share of the time."""
    spec = rl.charts.plot_roofline(point)
    row = spec.off_axes["no FLOPs"]
    assert sorted(spec.points[i].name for i in row) == ["act", "swap_axes"]
    figure = drawn(spec)
    ax = figure.axes[0]
    share = sum(spec.points[i].share for i in row)
    assert [text.get_text() for text in ax.texts if text.get_gid() == "strip"] == [f"no FLOPs: {share:.1%} of the time"]
    markers = {str(c.get_gid()): c for c in ax.collections if str(c.get_gid()).startswith("point-")}
    assert len(markers) == len(spec.points)
    for i in range(len(spec.points)):
        marker = markers[f"point-{i}"]
        x, y = marker.get_offset_transform().transform(marker.get_offsets())[0]
        assert (i in row) == (not ax.get_window_extent().contains(x, y))


def timed(work: float, share: float, kind: Any = "kernel", moved: float = 1e9) -> Point:
    return Point(kind, "k", "", 1, "bf16", "memory", work, 0.0, moved, 1e-3, share, 1e-6)


def test_axes_hold_what_takes_the_time() -> None:
    """On an H100 the roofs meet at 989.4 / 3.35 = 295 FLOP/byte; a kernel of 0.5 % at 1 GFLOP/s is left outside."""
    chip = rl.charts.plot_roofline("h100-sxm", precisions=["bf16"], levels=["main"])
    whole, most, little = timed(1e11, 1.0, "program"), timed(1e11, 0.99), timed(1e6, 0.005, moved=1e6)
    spec = dataclasses.replace(chip, points=(whole, most, little))
    assert spec.off_axes == {"outside the axes": (2,)}
    assert spec.window.bottom > 1e12
    ax = drawn(spec).axes[0]
    assert texts(ax.figure, "strip")[0].get_text() == "outside the axes: 0.5% of the time"
    shown = dataclasses.replace(chip, points=(whole, most, dataclasses.replace(little, share=0.05)))
    assert shown.off_axes == {}
    assert shown.window.bottom < 1e9
    # Of what was measured the time itself is the weight.
    work = [("a", "1 TFLOP", "10 GB", "10 ms"), ("b", "10 FLOP", "1 GB", "10 us")]
    assert rl.charts.plot_roofline("h100-sxm", measured=work).off_axes == {"outside the axes": (1,)}
    # What moves nothing has no intensity, and what nobody can count no rate.
    lost = dataclasses.replace(chip, points=(timed(1e9, 0.5, moved=0.0), timed(float("nan"), 0.5)))
    assert lost.off_axes == {"FLOPs not known": (1,), "outside the axes": (0,)}
    drawn(lost)


def test_axes_say_what_was_measured(point: rl.Estimate) -> None:
    cases = [
        (rl.charts.plot_roofline(point), "predicted rate [FLOP/s]"),
        (rl.charts.plot_roofline(point, measured=point.time), "rate [FLOP/s]"),
        (rl.charts.plot_roofline("h100-sxm", measured=[("a", 1e9, 1e6, 1.0)]), "measured rate [FLOP/s]"),
        (rl.charts.plot_roofline("h100-sxm"), "rate [FLOP/s]"),
    ]
    for spec, words in cases:
        assert spec.figure().axes[0].get_ylabel() == words
    assert "predicted" in cases[0][0].subtitle
    labels = [text.get_text() for text in texts(drawn(cases[1][0]), "label")]
    assert any(text.startswith("predicted, ") for text in labels)
    assert any(text.startswith("measured, ") for text in labels)


def test_subtitles_use_the_words_for_sizes() -> None:
    decode = rl.model("gpt2", phase="decode", layers=1)
    spec = rl.charts.plot_roofline(rl.estimate(decode, "h100-sxm", batch=32, context=1024))
    assert spec.subtitle.startswith("eager mode, batch 32, context 1,024: predicted ")


def test_bubbles_show_share_and_bound(point: rl.Estimate) -> None:
    from roofline.view.charts.style import BOUND_COLOURS, BOUND_MARKERS

    spec = rl.charts.plot_roofline(point)
    ax = spec.figure().axes[0]
    areas = {c.get_gid(): c.get_sizes()[0] for c in ax.collections if c.get_gid()}
    big = [i for i, p in enumerate(spec.points) if p.kind == "kernel" and p.share > 0.05]
    ratio = [areas[f"point-{i}"] / spec.points[i].share for i in big]
    assert len(big) > 3
    assert np.allclose(ratio, ratio[0])
    assert len(set(BOUND_COLOURS.values())) == len(set(BOUND_MARKERS.values())) == len(BOUNDS) + 2


def test_place_covers_only_when_it_must() -> None:
    rng = np.random.default_rng(1)
    for _ in range(20):
        anchors = [tuple(p) for p in rng.uniform(20, 480, (8, 2))]
        bubbles = [(x - 10, y - 10, x + 10, y + 10) for x, y in anchors]
        centres = place(anchors, [(90, 12)] * 8, bubbles, [(0, 0, 500, 500)], (0, 0, 500, 500))
        boxes = [(x - 45, y - 6, x + 45, y + 6) for x, y in centres]
        assert not overlaps(boxes, bubbles).any()
        assert not (overlaps(boxes, boxes) & ~np.eye(8, dtype=bool)).any()
    assert len(place([(5, 5)] * 3, [(90, 12)] * 3, [], [], (0, 0, 20, 20))) == 3


def test_crosses_and_spread() -> None:
    assert crosses([[0, 5, 10, 5]], [[2, 4, 3, 6]]).all()
    assert not crosses([[0, 5, 1, 5]], [[2, 4, 3, 6]]).any()
    assert crosses([], [[0, 0, 1, 1]]).shape == (0, 1)
    placed = spread([50.0] * 5, [10.0] * 5, 0.0, 100.0)
    assert np.allclose(np.diff(sorted(placed)), 10)


# --- of a trace ---

CALLS: list[Any] = [
    ("aten::mm", [[8192, 4096], [4096, 4096]], 400.0, {}), ("aten::gelu", [[8192, 4096], []], 50.0, {}),
    ("aten::relu", [[8192, 4096]], 45.0, {}),
]  # fmt: skip


def recorded(tmp_path: Path, device: str = "NVIDIA H100 80GB HBM3", calls: Any = CALLS) -> rl.diagnosis.TraceReport:
    return rl.diagnosis.trace_report(chain(Made(device), calls, gap=20.0).write(tmp_path))


def test_labels_of_operators_do_not_meet(tmp_path: Path) -> None:
    calls = [("aten::mm", [[4096, 4096 + 8 * at], [4096 + 8 * at, 4096]], 200.0 + at, {}) for at in range(10)]
    labels = texts(drawn(rl.charts.plot_roofline(recorded(tmp_path, calls=calls))), "label-")
    assert len(labels) == 10
    boxes = [box(label) for label in labels]
    assert not any(overlaps([a], [b]).any() for a, b in combinations(boxes, 2))


def test_rows_of_a_trace_are_its_operators(tmp_path: Path) -> None:
    report = recorded(tmp_path)
    table = rl.charts.plot_roofline(report).frame()
    assert list(table.time_s) == pytest.approx([op.seconds for op in report.ops], rel=1e-12)
    assert list(table.intensity) == [op.intensity for op in report.ops[:2]] + [0.0]  # relu only compares
    assert list(table.above_roof) == [op.above for op in report.ops]


def test_a_trace_without_a_chip_or_arithmetic_has_no_roofline(tmp_path: Path) -> None:
    with pytest.raises(rl.errors.UsageError, match="chip of this trace is not known"):
        rl.charts.plot_roofline(recorded(tmp_path, device="Frobnicator"))
    with pytest.raises(rl.errors.UsageError, match="no operator with a formula"):
        rl.charts.plot_roofline(recorded(tmp_path, calls=CALLS[2:]))


# --- rooflines upon each other, groups, levels ---


def traced(calls: int = 80) -> rl.charts.Roofline:
    """The roofline of a trace with many operators, from its points alone."""
    rng = np.random.default_rng(3)
    chart = rl.charts.plot_roofline("h100-sxm", precisions=["bf16", "fp32"])
    share = np.sort(rng.dirichlet(np.full(calls, 0.3)))[::-1]
    points = [
        Point("operator", f"{i + 1} op_{i}", f"aten::op_{i} [[4096, 4096]]", 1, "bf16", "", work, 0.0, moved,
              max(work / 6e14, moved / 3e12) * slow, float(share[i]), max(work / 9.894e14, moved / 3.35e12))
        for i, (work, moved, slow) in enumerate(zip(
            10 ** rng.uniform(6, 12, calls) * (rng.random(calls) > 0.2), 10 ** rng.uniform(5, 9, calls),
            rng.uniform(1, 9, calls), strict=True))
    ]  # fmt: skip
    return dataclasses.replace(chart, points=tuple(points), title="Operators", subtitle="as measured")


def dense() -> dict[str, Chart]:
    """The charts with the most on them."""
    many = rl.estimate(program(40), "h100-sxm")
    slow = rl.estimate(program(40), "a100-80gb-sxm")
    kernel = many.kernel_rows()[0]
    formats = ["bf16", "fp8", "tf32", "fp32"]
    levels = {kernel["kernel"]: {"L2": 4 * kernel["bytes"], "HBM": kernel["bytes"]}}
    return {
        "kernels": rl.charts.plot_roofline(many, measured=0.004),
        "formats and levels": rl.charts.plot_roofline(many, precisions=formats, traffic=levels),
        "trace": traced(),
        "two chips": rl.charts.plot_roofline(many, slow),
        "four programs": rl.charts.plot_roofline(*(rl.estimate(program(n), "h100-sxm") for n in (4, 9, 15, 40))),
    }


@pytest.fixture(scope="module")
def crowded() -> dict[str, Chart]:
    return dense()


@pytest.mark.parametrize("size", [(8, 5.4), (6, 4.6)])
@pytest.mark.parametrize("name", ["kernels", "formats and levels", "trace", "two chips", "four programs"])
def test_labels_cover_no_roof_no_point_and_no_label(
    crowded: dict[str, Chart], name: str, size: tuple[float, float]
) -> None:
    figure = drawn(crowded[name], size)
    (ax,) = figure.axes
    labels = texts(figure, "label")
    boxes = [box(text) for text in labels]
    assert len(boxes) > 4
    assert not any(overlaps([a], [b]).any() for a, b in combinations(boxes, 2))
    inside = [np.add(b, [1, 1, -1, -1]) for b in boxes]
    roofs = [
        ax.transData.transform(np.column_stack(line.get_data())) for line in ax.lines if line.get_linestyle() != ":"
    ]
    segments = [(*start, *end) for roof in roofs for start, end in pairwise(roof) if len(roof) == 2]
    assert len(segments) >= 6
    covered = crosses(segments, inside)
    assert not covered.any(), [labels[i].get_text() for i in np.flatnonzero(covered.any(axis=0))]
    for bubble in ax.collections:
        (x, y), reach = bubble.get_offset_transform().transform(bubble.get_offsets())[0], np.sqrt(bubble.get_sizes()[0])
        reach *= figure.dpi / 144
        assert not overlaps(inside, [(x - reach, y - reach, x + reach, y + reach)]).any()


@pytest.mark.parametrize("name", ["kernels", "trace", "two chips"])
def test_the_interactive_chart_has_the_same_content(crowded: dict[str, Chart], name: str) -> None:
    chart, page = crowded[name], crowded[name].plotly(dark=True)
    said = " ".join(
        str(text) for trace in page.data for text in np.ravel(trace.hovertext) if trace.hovertext is not None
    )
    said += " ".join(str(note.hovertext) for note in page.layout.annotations)
    hints = {key: text for key, text in chart.hints().items() if "<" not in text}
    assert len(hints) > 15
    assert all(text in said for text in hints.values())
    entries = {trace.name for trace in page.data if trace.showlegend}
    assert {"h100-sxm L2 8.9 TB/s" if name == "two chips" else "L2 8.9 TB/s"} <= entries
    assert page.layout.paper_bgcolor == "#14181e"


def test_small_parts_are_one_group(point: rl.Estimate) -> None:
    spec = traced()
    (panel,) = spec.drawing().panels
    (rest,) = [mark for mark in panel.marks if getattr(mark, "name", "") == "others, together"]
    alone = {key for mark in panel.marks for key in getattr(mark, "ids", ()) if key.startswith("point-")} - set(
        rest.ids
    )
    on = [i for i, p in enumerate(spec.points) if spec.window.holds(p)]
    grouped = [spec.points[i] for i in on if f"point-{i}" not in alone]
    assert len(alone & {f"point-{i}" for i in on}) <= 20
    assert rest.labels[0].startswith(f"{len(grouped)} others, ")
    assert rest.x[0] == pytest.approx(sum(p.flops for p in grouped) / sum(p.bytes for p in grouped))
    assert rest.y[0] == pytest.approx(sum(p.flops for p in grouped) / sum(p.seconds for p in grouped))
    assert len(spec.records()) == 80  # the table has each


def test_a_kernel_that_takes_much_is_switched_by_itself(point: rl.Estimate, crowded: dict[str, Chart]) -> None:
    page = rl.charts.plot_roofline(point).plotly()
    slowest = [row["kernel"] for row in point.kernel_rows() if row["flops"]][:LABELLED]
    entries = [trace.name for trace in page.data if trace.showlegend]
    assert set(slowest) <= set(entries)
    assert f"{point.kernel_rows()[0]['bound']}-bound" in entries  # what the colour stands for
    first = [trace for trace in page.data if trace.legendgroup == slowest[0]]
    assert {len(trace.x) for trace in first if trace.mode == "markers"} == {1}
    assert any(slowest[0] in trace.text[0] for trace in first if trace.mode == "text")  # its label goes with it
    several = {trace.name for trace in crowded["two chips"].plotly().data if trace.showlegend}
    assert not any("mlp.linear" in name for name in several)  # there a whole program is switched


def test_dots_of_a_kernel_are_joined_by_level(point: rl.Estimate) -> None:
    first = point.kernel_rows()[0]
    moved = {"L2": 3 * first["bytes"], "HBM": float(first["bytes"])}
    spec = rl.charts.plot_roofline(point, traffic={first["kernel"]: moved})
    marks = {getattr(mark, "name", ""): mark for mark in spec.drawing().panels[0].marks}
    line, near, far = (marks[f"traffic {what}"] for what in ("by level", "at L2", "at HBM"))
    work = float(first["flops"]) + float(first["vector_flops"])
    assert list(line.x) == pytest.approx([work / moved["L2"], work / moved["HBM"]]) == [near.x[0], far.x[0]]
    assert "FLOP/byte of L2" in near.hover[0]
    assert near.marker != far.marker
    with pytest.raises(rl.errors.UsageError, match=r"no kernel .*blocks"):
        rl.charts.plot_roofline(point, traffic={first["kernel"] + "x": moved})
    with pytest.raises(rl.errors.MissingFigure, match="L9"):
        rl.charts.plot_roofline(point, traffic={first["kernel"]: {"L9": 1}})
    with pytest.raises(rl.errors.UsageError, match="bytes by level"):
        rl.charts.plot_roofline(point, traffic=[1])


def test_an_estimate_says_what_its_kernels_move_by_level(point: rl.Estimate) -> None:
    spec = rl.charts.plot_roofline(point, traffic=True)
    assert [slope.label for slope in spec.slopes] == ["HBM", "L2", "SRAM"]
    assert [slope.label for slope in rl.charts.plot_roofline(point).slopes] == ["HBM", "L2"]
    marks = {getattr(mark, "name", ""): mark for mark in spec.drawing().panels[0].marks}
    slow = [row for row in point.kernel_rows() if row["share"] >= 0.05 and row["flops"]]
    intensity = {round(each["intensity"], 6) for row in slow for each in row["levels"] if each["level"] == "L2"}
    assert intensity <= {round(x, 6) for x in marks["traffic at L2"].x}
    with pytest.raises(rl.errors.UsageError, match="traffic=True draws what an estimate predicts"):
        rl.charts.plot_roofline("h100-sxm", traffic=True)


def test_rooflines_upon_each_other(point: rl.Estimate, tmp_path: Path) -> None:
    slow = rl.estimate(point.graph, "l4", mode="graph")
    both = rl.charts.plot_roofline(point, slow)
    assert both.names == ("h100-sxm", "l4")
    rows = both.records()
    assert len(rows) == len(point.kernel_rows()) + len(slow.kernel_rows()) + 2
    assert {row["of"] for row in rows} == {"h100-sxm", "l4"}
    said = [text.get_text() for text in drawn(both).axes[0].texts]
    for chart in both.charts:
        assert any(f"ridge {chart.ridge:.3g}" in text and chart.chip.name in text for text in said)
    other = rl.charts.plot_roofline(point, rl.estimate(program(6, name="small"), "h100-sxm", mode="graph"))
    assert other.names == ("net", "small")
    assert rl.charts.plot_roofline(point, point).names == ("1 net", "2 net")
    with pytest.raises(rl.errors.UsageError, match="at most 4"):
        rl.charts.plot_roofline(*[point] * 5)


def test_an_arrow_leads_from_the_prediction_to_the_measurement(point: rl.Estimate) -> None:
    first = point.kernel_rows()[0]
    entry = (first["kernel"], first["flops"], first["bytes"], 2 * first["each_s"])
    for spec, times in ((rl.charts.plot_roofline(point, measured=2 * point.time), "2.00"),
                        (rl.charts.plot_roofline(point, measured=[entry]), "2.00")):  # fmt: skip
        (arrow,) = [mark for mark in spec.drawing().panels[0].marks if type(mark).__name__ == "Arrow"]
        assert arrow.y0 / arrow.y1 == pytest.approx(2)
        assert f"measured {times} x" in arrow.hover


def test_texts_of_an_svg_have_their_width(point: rl.Estimate) -> None:
    tree = ET.fromstring(rl.charts.plot_roofline(point)._repr_svg_())
    found = [element for element in tree.iter() if element.tag.endswith("}text")]
    assert len(found) > 20
    assert all(float(element.get("textLength", 0)) > 0 for element in found)
    (wide,) = [e for e in found if e.text == "arithmetic intensity [FLOP/byte]"]
    laid_out = drawn(rl.charts.plot_roofline(point)).axes[0].xaxis.label.get_window_extent().width
    assert float(wide.get("textLength", 0)) == pytest.approx(
        laid_out * 72 / 100, rel=0.05
    )  # which rounds glyphs to pixels


# --- batch ---


def test_best_and_ridge_are_always_drawn(line: rl.Estimate) -> None:
    spec = rl.charts.plot_batch(line)
    assert spec.ridge is not None
    assert line.bound[list(spec.batches).index(spec.ridge)] == "compute"
    assert spec.best == 4096
    tight = rl.charts.plot_batch(line, latency_limit=float(line.time[8]) * 1.001)
    assert tight.best == 256
    assert 256 <= tight.in_time <= 512
    said = [text.get_text() for text in texts(drawn(tight), "mark")]
    assert {"best 256", f"ridge {spec.ridge}", f"too slow above {int(tight.in_time)}"} <= set(said)
    shaded = [mark for mark in tight.drawing().panels[2].marks if type(mark).__name__ == "Region"]
    assert shaded[0].x0 == tight.in_time
    assert rl.charts.plot_batch(line, memory_limit="1 MiB").best is None


def test_the_chart_of_a_choice_has_its_limits() -> None:
    choice = rl.best_batch("gpt2", "l4", phase="decode", context=1024, mode="graph", latency_limit="1 s")
    spec = rl.charts.plot_batch(choice)
    assert (spec.best, spec.latency_limit, spec.memory_limit) == (choice.best, 1.0, choice.memory_limit)
    assert choice.limit == "memory"
    assert spec.feasible == (choice.largest, "does not fit")


def test_batch_frame(line: rl.Estimate) -> None:
    table = rl.charts.plot_batch(line, measured=[(4, "1 ms"), (24, 0.002)]).frame()
    expected = table[table.kind == "expected"]
    assert list(expected.batch) == [2**k for k in range(13)]
    assert np.allclose(expected.time_s, line.time)
    assert np.allclose(expected.memory_bytes, line.memory.total)
    measured = table[table.kind == "measured"]
    assert list(measured.batch) == [4, 24]
    assert np.allclose(measured.rows_per_s, [4 / 0.001, 24 / 0.002])


def test_batch_order_does_not_matter(line: rl.Estimate) -> None:
    mixed = rl.estimate(line.graph, line.chip, mode="graph", B=[64, 1, 16, 4096])
    assert list(rl.charts.plot_batch(mixed).frame().batch) == [1, 16, 64, 4096]
    assert rl.charts.plot_batch(mixed).render(".svg") == rl.charts.plot_batch(
        rl.estimate(line.graph, line.chip, mode="graph", B=[1, 16, 64, 4096])
    ).render(".svg")


def test_batch_limit(line: rl.Estimate) -> None:
    assert rl.charts.plot_batch(line).limit == line.chip.capacity
    assert rl.charts.plot_batch(line).largest is None
    between = (line.memory.total[5] + line.memory.total[6]) / 2
    spec = rl.charts.plot_batch(line, memory_limit=between)
    assert spec.largest == pytest.approx(48, rel=0.2)
    assert not spec.frame().fits.tolist()[-1]
    assert any("memory full" in text.get_text() for text in texts(spec.figure(), "mark"))


def test_far_limits_do_not_stretch_the_axes(line: rl.Estimate) -> None:
    """The program needs milliseconds and a few GiB: limits of 100 s and of 80 GiB are named at the ends of the axes."""
    axes = drawn(rl.charts.plot_batch(line, latency_limit=100.0)).axes
    said = [text.get_text() for ax in (axes[0], axes[2]) for text in ax.texts if "above the axis" in text.get_text()]
    assert [text.split()[0] for text in said] == ["limit", "capacity"]
    assert axes[0].get_ylim()[1] < 1
    assert axes[2].get_ylim()[1] < 10 * 2**30
    near = rl.charts.plot_batch(line, latency_limit=2 * float(line.high[-1]), memory_limit=2 * line.memory.total[-1])
    assert not any("axis" in text.get_text() for ax in drawn(near).axes for text in ax.texts)


def test_batch_above_the_roof(line: rl.Estimate) -> None:
    spec = rl.charts.plot_batch(line, measured=[(16, line.floor[4]), (48, line.floor[5] / 3)])
    assert len(spec.warnings) == 1
    assert spec.warnings[0].startswith("batch 48: ")
    legend = spec.figure().axes[-1].get_legend().get_texts()
    assert "faster than the datasheet: check timing or count" in [text.get_text() for text in legend]


@pytest.mark.parametrize("batches", [[1], [1, 2], [7, 9], list(range(1, 2000))])
def test_any_batches_can_be_drawn(line: rl.Estimate, batches: list[int]) -> None:
    spec = rl.charts.plot_batch(rl.estimate(line.graph, "h100-sxm", B=batches))
    axes = spec.figure().axes
    assert len(axes) == 3
    assert len(axes[0].lines[0].get_xdata()) <= 257
    assert len(spec.frame()) == len(batches)


def test_panels_share_the_batch(line: rl.Estimate) -> None:
    axes = rl.charts.plot_batch(line).figure().axes
    assert len({ax.get_xlim() for ax in axes}) == 1
    assert axes[0].get_xscale() == "log"
    heights = sum(layer.get_paths()[0].get_extents().height > 0 for layer in axes[2].collections)
    assert heights >= 4


# --- drawing and files ---


def test_on_own_axes(point: rl.Estimate, line: rl.Estimate) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 9))
    left, right = figure.subfigures(1, 2)
    ax = left.add_subplot()
    assert rl.charts.plot_roofline(point).on(ax) is ax
    axes = right.subplots(3, 1, sharex=True)
    assert rl.charts.plot_batch(line).on(axes) is axes
    assert all(ax.has_data() for ax in figure.axes)


def test_pyplot_is_not_touched() -> None:
    code = (
        "import sys, roofline as rl\n"
        "rl.charts.plot_roofline('h100-sxm').render('.png')\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_charts_does_not_load_matplotlib() -> None:
    modules = "roofline.view.charts.roof, roofline.view.charts.sweep, roofline.view.pages.page"
    code = f"import sys, {modules}; assert not {{'matplotlib', 'pandas', 'jinja2'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_users_settings_change_nothing(picture: Chart) -> None:
    import matplotlib

    plain = picture.render(".svg")
    with matplotlib.rc_context({"font.size": 20, "svg.fonttype": "path", "axes.linewidth": 4}):
        assert picture.render(".svg") == plain
        assert matplotlib.rcParams["font.size"] == 20


@pytest.mark.parametrize("suffix", [".PNG", ".svg", ".pdf"])
def test_files_are_the_same_twice(tmp_path: Path, picture: Chart, suffix: str) -> None:
    head = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}[suffix.lower()]
    picture.save(tmp_path / f"a{suffix}")
    picture.save(str(tmp_path / f"b{suffix}"))
    first, second = (tmp_path / f"a{suffix}").read_bytes(), (tmp_path / f"b{suffix}").read_bytes()
    assert first == second
    assert first.startswith(head)
    assert sorted(os.listdir(tmp_path)) == sorted([f"a{suffix}", f"b{suffix}"])


def test_pixels(picture: Chart, tmp_path: Path) -> None:
    for dpi in (100, 200):
        picture.save(tmp_path / "a.png", dpi=dpi)
        width = int.from_bytes((tmp_path / "a.png").read_bytes()[16:20], "big")
        assert width == 8 * dpi
    assert picture._repr_png_().startswith(b"\x89PNG")


def test_svg_holds_every_kernel(point: rl.Estimate) -> None:
    tree = ET.fromstring(rl.charts.plot_roofline(point)._repr_svg_())
    found = " ".join("".join(e.itertext()) for e in tree.iter() if e.tag.endswith(("}text", "}title")))
    for name in point.kernels().kernel:
        assert name in found
    labels = " ".join("".join(e.itertext()) for e in tree.iter() if e.tag.endswith("}text"))
    for name in point.top(5).kernel:
        assert name in labels


@pytest.mark.parametrize(
    "name", ["$x_1$", "<b>&amp;\"'", "a\x00\x1b[31mb\nc", "a\ud800\ufffeb\x9b", "x" * 500, "$\\frac{", "%s {0} ×"]
)
def test_odd_names(name: str, tmp_path: Path) -> None:
    b = rl.ops.Builder(name, "bf16")
    graph = b.graph([b.op("linear", b.input("x", (64, 64)), b.weight("w", (64, 64)), name=name)])
    spec = rl.charts.plot_roofline(rl.estimate(graph, "h100-sxm"), measured=[(name, 1e6, 1e6, 1.0)])
    ET.fromstring(spec._repr_svg_())
    spec.to_csv(tmp_path / "names.csv")
    assert (tmp_path / "names.csv").read_text(encoding="utf-8").replace("\n", "").isprintable()


@pytest.mark.parametrize("suffix", [".jpg", "", ".pngg", ".svgz"])
def test_other_suffixes_are_refused(tmp_path: Path, picture: Chart, suffix: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=r"allowed: \.png, \.svg, \.pdf"):
        picture.save(tmp_path / f"plot{suffix}")
    assert not os.listdir(tmp_path)


def test_bad_places(tmp_path: Path, picture: Chart) -> None:
    (tmp_path / "folder.png").mkdir()
    for path, words in [(tmp_path / "no" / "a.png", "no directory"), (tmp_path / "folder.png", "a directory")]:
        with pytest.raises(rl.errors.UsageError, match=words) as caught:
            picture.save(path)
        assert "\n" not in str(caught.value)
    with pytest.raises(rl.errors.UsageError, match="cannot be written"):
        picture.save(tmp_path / f"{'x' * 300}.png")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, picture: Chart, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.csv"
    target.write_bytes(b"old")

    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            super().write(data[:2])
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(files, "open", lambda handle, mode: os.close(handle) or Full(), raising=False)
        with pytest.raises(rl.errors.UsageError, match="No space left"):
            picture.to_csv(target)
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.csv"]

    def broken(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(files.os, "replace", broken)
        with pytest.raises(KeyboardInterrupt):
            picture.to_csv(target)
    assert target.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.csv"]


def test_a_failed_drawing_writes_nothing(tmp_path: Path, picture: Chart, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("cannot draw")

    monkeypatch.setattr(type(picture), "drawing", fail)
    with pytest.raises(RuntimeError):
        picture.save(tmp_path / "a.svg")
    assert not os.listdir(tmp_path)


def test_show_opens_a_browser(picture: Chart, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kit.tempfile, "tempdir", str(tmp_path))
    opened: list[str] = []
    monkeypatch.setattr(kit.webbrowser, "open", lambda url: not opened.append(url))
    picture.show()
    assert opened[0].startswith("file://")
    ET.parse(next(tmp_path.glob("*.svg")))
    monkeypatch.setattr(kit.webbrowser, "open", lambda url: False)
    with pytest.raises(rl.errors.UsageError, match=r"\.save"):
        picture.show()
