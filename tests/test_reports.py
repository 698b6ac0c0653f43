"""Pages: whole by themselves, nothing of a trace becomes markup, every part is drawn and labelled."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from made_traces import Made, chain

import roofline as rl
from roofline.diagnosis.causes import Advice
from roofline.view.pages.page import trace_page, verdict_page
from roofline.view.pages.roofplot import roofplot
from roofline.view.pages.waterfall import colours, stacked, waterfall

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
    assert "nan" not in re.findall(r"[a-z]+", "".join(re.findall(r'(?:x|y|width|cx|cy|r)="([^"]*)"', page)))
    return seen


def report(tmp_path: Path, *, device: str = "NVIDIA H100 80GB HBM3", calls: Any = CALLS) -> rl.diagnosis.TraceReport:
    return rl.diagnosis.trace_report(chain(Made(device), calls, gap=20.0).write(tmp_path))


def test_page_of_a_trace(tmp_path: Path) -> None:
    seen = whole(trace_page(report(tmp_path)))
    for wanted in ("on h100-sxm", "Busy and idle", "Where the time went", "Roofline", "Operators",
                   "floor", "efficiency", "per iteration", "arithmetic intensity", "aten::gelu",
                   "989 TFLOP/s", "3.35 TB/s", "and so not drawn"):  # fmt: skip
        assert wanted in seen.text
    assert seen.tags.count("circle") == 2  # relu only compares
    assert "prefers-color-scheme:dark" in trace_page(report(tmp_path))


def test_page_of_an_unknown_device(tmp_path: Path) -> None:
    seen = whole(trace_page(report(tmp_path, device="Frobnicator")))
    assert "chip unknown" in seen.text
    assert "circle" not in seen.tags


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
    assert re.search(r'<text [^>]*class="bad strong halo">1 mm</text>', page)
    assert 'style="fill:var(--red);stroke:var(--red)"' in page
    assert "above the roof: wrong chip, format or cache" in page
    assert '<tr class=bad><td class="n">1</td>' in page


def test_roofplot_labels_do_not_meet(tmp_path: Path) -> None:
    calls = [("aten::mm", [[4096, 4096 + 8 * at], [4096 + 8 * at, 4096]], 200.0 + at, {}) for at in range(10)]
    found = report(tmp_path, calls=calls)
    assert found.chip is not None
    picture = roofplot(found.chip, found.ops)
    places = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="halo">(\d[^<]*)</text>', picture)
    assert len(places) >= 8
    boxes = [(float(x), float(y) - 11, float(x) + 7.4 * len(words), float(y) + 3) for x, y, words in places]
    for at, (left, top, right, bottom) in enumerate(boxes):
        for other in boxes[:at]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top


def test_waterfall_adds_up_and_labels_tiny_parts() -> None:
    picture = waterfall((("floor", 0.5), ("efficiency", 0.2), ("sync", 1e-7), ("unfused", 0.3)), "measured")
    for wanted in ("floor", "efficiency", "sync", "unfused", "measured", "100 ns (0.0%)", "1 s (100.0%)"):
        assert wanted in picture
    bars = re.findall(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', picture)
    starts, widths = [float(x) for x, _ in bars], [float(width) for _, width in bars]
    assert len(bars) == 5
    assert min(widths) == 2
    assert starts == [*sorted(starts[:-1]), starts[0]]
    assert starts[3] + widths[3] == pytest.approx(starts[4] + widths[4], abs=0.2)
    assert max(start + width for start, width in zip(starts, widths, strict=True)) <= 850
    assert waterfall(()) == stacked(()) == ""


def test_same_part_same_colour() -> None:
    assert colours(["launch_bound", "sync"]) == colours(["launching", "synchronisation"])
    assert len(set(colours(["unfused", "precision", "alignment", "materialised"]))) == 4


def test_page_of_a_verdict(tmp_path: Path) -> None:
    program = rl.workload([{"op": "gemm", "m": 4096, "n": 4096, "k": 4096}], dtype="bf16")
    verdict = rl.check(program, "h100-sxm", "3 ms")
    advice = Advice("use <fp8>", 1e-4, 1e-4, 1e-4, "needs scaling")
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
