"""Pages: whole by themselves, nothing of a trace becomes markup, every part is drawn and labelled."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from made_traces import Made, chain
from matplotlib.text import Text

import roofline as rl
from roofline.view.charts.inline import inline
from roofline.view.charts.labels import overlaps
from roofline.view.charts.style import THEME, part_colours
from roofline.view.pages.page import trace_page, verdict_page
from roofline.view.pages.render import bars

CALLS: list[Any] = [
    ("aten::mm", [[8192, 4096], [4096, 4096]], 400.0, {}),
    ("aten::gelu", [[8192, 4096], []], 50.0, {}),
    ("aten::relu", [[8192, 4096]], 45.0, {}),
]


class Seen(HTMLParser):
    """What a page has: tags, what it would load, and whether every tag is closed."""

    VOID = frozenset({"meta"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [name for name, _ in attrs if name in ("src", "href", "xlink:href", "action")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def whole(page: str) -> Seen:
    """A page that loads nothing, runs nothing and is well nested."""
    assert "http://" not in page
    assert "https://" not in page
    assert "url(" not in page
    assert "@import" not in page
    seen = Seen(page)
    assert not seen.loads
    assert not seen.handlers
    assert not seen.open
    assert not {"script", "iframe", "img", "link", "object", "base"} & set(seen.tags)
    assert "nan" not in re.findall(r"[a-z]+", " ".join(re.findall(r'(?:x|y|d|transform|style)="([^"]*)"', page)))
    return seen


def report(tmp_path: Path, *, device: str = "NVIDIA H100 80GB HBM3", calls: Any = CALLS) -> rl.diagnosis.TraceReport:
    return rl.diagnosis.trace_report(chain(Made(device), calls, gap=20.0).write(tmp_path))


def test_page_of_a_trace(tmp_path: Path) -> None:
    seen = whole(trace_page(report(tmp_path)))
    for wanted in ("on h100-sxm", "Busy and idle", "Where the time went", "Roofline", "Operators",
                   "floor", "efficiency", "per iteration", "arithmetic intensity", "aten::gelu",
                   "989.4 TFLOP/s", "3.35 TB/s", "3 of 3 operators", "no FLOPs: 9.1% of the time"):  # fmt: skip
        assert wanted in seen.text
    page = trace_page(report(tmp_path))
    assert len(re.findall(r'class="point-\d+"', page)) == 3  # relu only compares: below the axes
    assert "prefers-color-scheme:dark" in page
    assert page == trace_page(report(tmp_path))


def test_page_of_an_unknown_device(tmp_path: Path) -> None:
    seen = whole(trace_page(report(tmp_path, device="Frobnicator")))
    assert "chip unknown" in seen.text
    assert "svg" not in seen.tags


def test_page_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("name,time_us\nmm,30\nrelu,10\n", encoding="utf-8")
    seen = whole(trace_page(rl.diagnosis.trace_report(path, "h100-sxm")))
    assert "no formula" in seen.text


EVIL = "</title><script>alert(1)</script><img src=x onerror=alert(2)>\"'&\x1b[0m"


def test_names_do_not_become_markup(tmp_path: Path) -> None:
    calls = [(EVIL, [[4096, 4096]], 100.0, {"kernel": EVIL}), *CALLS]
    page = trace_page(report(tmp_path, device=EVIL, calls=calls))
    seen = whole(page)
    assert "<script>" in seen.text
    assert "\x1b" not in page
    page = trace_page(rl.diagnosis.trace_report(chain(Made(EVIL), calls).write(tmp_path, "<b>&.json"), "h100-sxm"))
    assert whole(page).tags.count("b") == 0


def test_above_the_roof_is_red_and_named(tmp_path: Path) -> None:
    found = report(tmp_path, calls=[("aten::mm", [[4096, 4096], [4096, 4096]], 50.0, {})])
    page = trace_page(found)
    whole(page)
    label = page[page.index('class="label-0"') :][:900]
    assert "var(--red)" in label
    assert "1 mm" in label
    assert "above the roof: check chip, format or cache" in page
    assert re.search(r'<tr class="bad"><td class="n">1</td>', page)


def test_a_chart_in_a_page_takes_its_colours_from_the_page(tmp_path: Path) -> None:
    page = trace_page(report(tmp_path))
    assert set(re.findall(r"var\(--([\w-]+)\)", page)) <= set(THEME)
    (picture,) = re.findall(r"<svg.*?</svg>", page, re.S)
    assert not re.findall(r"#[0-9a-f]{3,6}", picture)
    assert not re.findall(r'<(?:use|defs|style)|\bid="|clip-path', picture)
    assert len({light for light, _ in THEME.values()}) == len(THEME)


def test_names_in_a_chart_do_not_become_markup(tmp_path: Path) -> None:
    chart = rl.charts.plot_roofline(report(tmp_path))
    evil = replace(chart, title=EVIL, subtitle=EVIL, slopes=tuple(replace(slope, label=EVIL) for slope in chart.slopes))
    evil = replace(evil, points=tuple(replace(point, name=f"1 {EVIL}", op=EVIL) for point in chart.points))
    seen = whole(picture := inline(evil, EVIL))
    assert "<script>" in seen.text
    assert "\x1b" not in picture


def test_labels_of_operators_do_not_meet(tmp_path: Path) -> None:
    calls = [("aten::mm", [[4096, 4096 + 8 * at], [4096 + 8 * at, 4096]], 200.0 + at, {}) for at in range(10)]
    figure = rl.charts.plot_roofline(report(tmp_path, calls=calls)).figure()
    figure.draw_without_rendering()
    labels = [text for text in figure.axes[0].texts if str(text.get_gid()).startswith("label-")]
    assert len(labels) == 10
    boxes = [Text.get_window_extent(label).extents for label in labels]
    assert not any(overlaps([a], [b]).any() for a, b in combinations(boxes, 2))


def test_a_trace_without_a_chip_or_arithmetic_has_no_roofline(tmp_path: Path) -> None:
    with pytest.raises(rl.errors.UsageError, match="chip of this trace is not known"):
        rl.charts.plot_roofline(report(tmp_path, device="Frobnicator"))
    with pytest.raises(rl.errors.UsageError, match="no operator with a formula"):
        rl.charts.plot_roofline(report(tmp_path, calls=[("aten::relu", [[8192, 4096]], 45.0, {})]))


def test_rows_of_a_trace_are_its_operators(tmp_path: Path) -> None:
    found = report(tmp_path)
    table = rl.charts.plot_roofline(found).frame()
    assert list(table.time_s) == pytest.approx([op.seconds for op in found.ops], rel=1e-12)
    assert list(table.intensity) == [op.intensity for op in found.ops[:2]] + [0.0]  # relu only compares
    assert list(table.above_roof) == [op.above for op in found.ops]


def test_waterfall_adds_up_and_labels_tiny_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    program = rl.workload([{"op": "gemm", "m": 4096, "n": 4096, "k": 4096}], dtype="bf16")
    parts = (("floor", 0.5), ("efficiency", 0.2), ("sync", 1e-7), ("unfused", 0.3))
    verdict = rl.check(program, "h100-sxm", "3 ms")
    monkeypatch.setattr(type(verdict), "waterfall", parts)
    page = verdict_page(verdict)
    for wanted in ("floor", "efficiency", "sync", "unfused", "measured", "100 ns (0.0%)", "1 s (100.0%)"):
        assert wanted in page
    starts = [float(share) for share in re.findall(r'class="gap" style="width:([\d.]+)%', page)]
    widths = [float(share) for share in re.findall(r'class="bar" style="width:([\d.]+)%', page)]
    assert starts == [0.0, 50.0, 70.0, 70.0]
    assert widths == [50.0, 20.0, 0.0, 30.0, 100.0]
    assert "min-width:2px" in page
    assert not list(bars(()))


def test_same_part_same_colour() -> None:
    assert part_colours(["launch_bound", "sync"]) == part_colours(["launching", "synchronisation"])
    assert len(set(part_colours(["unfused", "precision", "alignment", "materialised"]))) == 4


def test_page_of_a_verdict(tmp_path: Path) -> None:
    program = rl.workload([{"op": "gemm", "m": 4096, "n": 4096, "k": 4096}], dtype="bf16")
    verdict = rl.check(program, "h100-sxm", "3 ms")
    advice = rl.diagnosis.Advice("use <fp8>", 1e-4, 1e-4, 1e-4, "needs scaling")
    verdict = replace(verdict, advice=(advice,), normal=("a gap & no fault",), notes=("partial trace",))
    seen = whole(verdict_page(verdict))
    for wanted in ("slow", "Where the time went", "measured", "Causes", "use <fp8>", "a gap & no fault", "partial"):
        assert wanted in seen.text
    assert verdict.causes[0].fix in seen.text
    assert "Operators" not in seen.text
    both = whole(verdict_page(verdict, report(tmp_path)))
    assert "Operators" in both.text
    assert "Roofline" in both.text


def test_page_of_an_impossible_time() -> None:
    program = rl.workload([{"op": "gemm", "m": 4096, "n": 4096, "k": 4096}], dtype="bf16")
    assert "impossible" in whole(verdict_page(rl.check(program, "h100-sxm", "1 us"))).text
