"""Pages: whole by themselves, nothing of a trace becomes markup or script, every number is the estimate's."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from command_line import Run
from made_traces import Made, chain

import roofline as rl
from roofline.ir.units import format_bytes, format_si
from roofline.view.charts.style import THEME, part_colours, readable
from roofline.view.pages.moves import Moves, differences
from roofline.view.pages.page import Page
from roofline.view.pages.render import bars

CALLS: list[Any] = [
    ("aten::mm", [[8192, 4096], [4096, 4096]], 400.0, {}),
    ("aten::gelu", [[8192, 4096], []], 50.0, {}),
    ("aten::relu", [[8192, 4096]], 45.0, {}),
]
BATCHES = [1, 8, 64]
#: Tags that load or run something.
ACTIVE = {"iframe", "img", "link", "object", "base", "embed", "video", "audio", "form"}


class Seen(HTMLParser):
    """What a page has: tags, where it points, text, scripts, tables, and whether every tag is closed."""

    VOID = frozenset({"meta", "input", "wbr"})

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.points: list[str] = []
        self.handlers: list[str] = []
        self.open: list[str] = []
        self.ids: list[str] = []
        self.named: list[str] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.points += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.named += [value or "" for name, value in attrs if name in ("for", "aria-labelledby", "aria-controls")]
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.scripts[-1] += data
        else:
            self.text += data

    @property
    def data(self) -> dict[str, Any]:
        """What the slider and the charts are made from."""
        return json.loads(self.scripts[-2])


def whole(page: Page) -> Seen:
    """A page that loads nothing, whose only scripts are the library and our own, and that is well nested."""
    html = page.html()
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', html)
    assert policy
    assert policy[1] == "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:"
    seen = Seen(html)
    assert not [target for target in seen.points if not target.startswith("#")]
    assert {target[1:] for target in seen.points} <= set(seen.ids)
    assert set(seen.named) <= set(seen.ids)
    assert len(seen.ids) == len(set(seen.ids))
    assert not seen.handlers
    assert not seen.open
    assert not ACTIVE & set(seen.tags)
    assert "url(" not in html.partition("</style>")[0]
    assert "@import" not in html.partition("</style>")[0]
    assert len(seen.scripts) == 2 + bool(seen.data["pictures"])
    assert sum("plotly.js v" in script[:500] for script in seen.scripts) == bool(seen.data["pictures"])
    assert not re.findall(r'="[^"]*\bnan\b[^"]*"', re.sub(r"<script.*?</script>", "", html, flags=re.S))
    return seen


def recorded(tmp_path: Path, *, device: str = "NVIDIA H100 80GB HBM3", calls: Any = CALLS) -> Path:
    return chain(Made(device), calls, gap=20.0).write(tmp_path)


def found(tmp_path: Path, **more: Any) -> rl.diagnosis.TraceReport:
    return rl.diagnosis.trace_report(recorded(tmp_path, **more))


def verdict(measured: str = "3 ms") -> rl.diagnosis.Verdict:
    program = rl.workload([{"op": "gemm", "m": 4096, "n": 4096, "k": 4096}], dtype="bf16")
    return rl.check(program, "h100-sxm", measured)


@pytest.fixture(scope="module")
def decode() -> Page:
    return rl.report("gpt2", "a100-80gb-sxm", phase="decode", mode="graph", batch=BATCHES, context=512)


@pytest.fixture(scope="module")
def points() -> list[rl.Estimate]:
    return [rl.estimate("gpt2", "a100-80gb-sxm", phase="decode", mode="graph", batch=b, context=512) for b in BATCHES]


def column(data: dict[str, Any], name: str) -> Iterator[list[Any]]:
    return (states for attribute, states in data["moves"] if attribute == name)


# --- predictions ------------------------------------------------------------------------------------------------------


def test_every_number_is_the_estimates(decode: Page, points: list[rl.Estimate]) -> None:
    seen = whole(decode)
    texts = list(column(seen.data, "text"))
    assert seen.data["labels"] == ["1", "8", "64"]
    for figure in ("time", "low", "high"):
        times = [format_si(getattr(point, figure), "s") for point in points]
        assert any(all(time in text for time, text in zip(times, states, strict=True)) for states in texts), figure
    assert [format_si(point.throughput, "token/s") for point in points] in texts
    assert [f"{point.mfu:.1%}, {point.mbu:.1%}" for point in points] in texts
    assert [format_bytes(point.memory.total) for point in points] in texts
    assert [format_bytes(point.memory.kv_cache) for point in points] in texts
    tables = [{row["kernel"]: row for row in point.kernel_rows()} for point in points]
    for kernel in tables[0]:
        rows = [table[kernel] for table in tables]
        assert kernel in seen.text
        for figure in ("time_s", "each_s"):
            times = [format_si(row[figure], "s") for row in rows]
            assert times in texts if len(set(times)) > 1 else times[0] in seen.text
        if len({row["time_s"] for row in rows}) == len(rows):
            assert [pytest.approx(row["time_s"], rel=1e-4) for row in rows] in list(column(seen.data, "data-v"))


def test_parts_of_the_program_add_up(points: list[rl.Estimate]) -> None:
    from roofline.view.pages.prediction import predicted
    from roofline.view.pages.program import program_view

    for mode in ("graph", "compiled"):
        est = rl.estimate("gpt2", "a100-80gb-sxm", phase="decode", mode=mode, batch=BATCHES, context=512)
        view = program_view(predicted(est))
        for at, point in enumerate(est.device_time):
            assert sum(branch.heat.time.values[at] for branch in view.branches) == pytest.approx(point)
            assert sum(heat.time.values[at] for heat in view.heats.values()) == pytest.approx(point)
        layers = next(branch for branch in view.branches if branch.title == "layers")
        assert sum(block.times for block in layers.items) == 12


def test_chapters_of_a_prediction(decode: Page) -> None:
    seen = whole(decode)
    assert [one.name for one in decode.chapters] == [
        "summary", "roofline", "sweep", "memory", "layers", "program", "kernels", "sources",
    ]  # fmt: skip
    for text in ("At a glance", "datasheet's rates", "12 times", "efficiencies", "not modelled", "NVIDIA A100", "[1]"):
        assert text in seen.text
    assert seen.tags.count("caption") == seen.tags.count("table")
    assert seen.tags.count("figcaption") == seen.tags.count("figure") == len(seen.data["pictures"])
    assert decode.html() == decode.html()


def test_every_kernel_that_takes_much_at_some_batch_can_be_hidden(decode: Page, points: list[rl.Estimate]) -> None:
    html = decode.html()
    slowest = {point.kernel_rows()[0]["kernel"] for point in points}
    assert all(f'<input type="checkbox" value="{name}" checked' in html for name in slowest)


def test_passes_are_a_chapter_where_there_are_some() -> None:
    small = rl.passes.cast(rl.model("gpt2", phase="decode", layers=2), weights="int8")
    page = rl.report(small, "h100-sxm", batch=[1, 8], context=128)
    history = rl.analysis.pass_history(small, "h100-sxm", batch=8, context=128)
    assert "passes" in [one.name for one in page.chapters]
    times = [format_si(state["time_s"], "s") for state in history.states]
    for time in times:
        assert any(states[1] == time for states in column(whole(page).data, "text")) or time in page.html()


def test_the_slider_stands_where_the_estimate_is() -> None:
    small, chip = rl.model("gpt2", phase="decode", layers=2), rl.chip("l4").replace(memory_capacity="2 GiB")
    page = rl.report(small, chip, batch=24, context=1024)
    labels = [int(label.replace(",", "")) for label in page.moves.labels]
    assert labels[page.moves.at] == 24
    assert labels[:5] == [1, 2, 4, 8, 16]
    choice = rl.best_batch(small, chip, context=1024)
    assert {choice.best, choice.largest, 2 * choice.largest} <= set(labels)
    assert f"batch {choice.limit_batch:,}, for memory" in page.html()
    fits = [rl.estimate(small, chip, batch=batch, context=1024).fits for batch in labels]
    assert fits == [batch <= choice.largest for batch in labels]


def test_where_nothing_fits_the_slider_still_moves() -> None:
    chip = rl.chip("l4").replace(memory_capacity="100 MB")
    page = rl.report(rl.model("gpt2", phase="decode", layers=2), chip, batch=4, context=1024)
    assert page.moves.labels[:4] == ("1", "2", "4", "8")
    assert "it does not fit" in page.html()


def test_a_program_without_a_batch_has_no_slider() -> None:
    page = rl.report(rl.workload([{"op": "gemm", "m": 4096, "n": 4096, "k": 4096}], dtype="bf16"), "h100-sxm")
    assert page.moves.labels == ("1",)
    assert 'type="range"' not in page.html()
    assert not whole(page).data["moves"]


def test_a_chip_without_a_capacity_has_a_report() -> None:
    chip = rl.Chip(name="mine", matrix={"bf16": "400 TFLOP/s"}, vector={"bf16": "50 TFLOP/s", "fp32": "25 TFLOP/s"},
                   memory_bandwidth="2 TB/s")  # fmt: skip
    assert (
        "capacity of mine is not published" in whole(rl.report("gpt2", chip, phase="decode", batch=1, context=8)).text
    )


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rl.report("gpt2"), "needs a chip"),
        (lambda: rl.report("gpt2", ["l4", "t4"], batch=1, seq=8), "of one chip, given l4, t4"),
        (lambda: rl.report("gpt2", "l4", batch=1, seq=[8, 16]), "seq .* one number"),
        (lambda: Page("title", "", ()).save("report.png"), "ends in .html"),
    ],
)
def test_what_a_report_cannot_be_of(call: Any, message: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=message):
        call()


def test_command(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    words = ["report", "gpt2", "l4", "--phase", "decode", "-B", "1,4", "-S", "128", "-o"]
    assert f"{path}: report of gpt2 decode on l4" in run(*words, path).out
    assert path.read_text(encoding="utf-8") == rl.report("gpt2", "l4", phase="decode", batch=[1, 4], context=128).html()
    assert "ends in .html" in run(*words, tmp_path / "report.pdf").err
    assert run("report", "gpt2", "l4,t4", "-S", 128, "-o", path).code == 2


# --- traces and verdicts ----------------------------------------------------------------------------------------------


def test_page_of_a_trace(tmp_path: Path) -> None:
    seen = whole(page := rl.report(found(tmp_path)))
    for text in ("on h100-sxm", "Busy and idle", "Where the time went", "Roofline", "Operators", "floor", "efficiency",
                 "per iteration", "aten::gelu", "3 of 3 operators"):  # fmt: skip
        assert text in seen.text
    assert "prefers-color-scheme:dark" in page.html()
    assert page.html() == rl.report(found(tmp_path)).html()


def test_page_of_an_unknown_device(tmp_path: Path) -> None:
    seen = whole(rl.report(found(tmp_path, device="Frobnicator")))
    assert "chip unknown" in seen.text
    assert "operators_roofline" not in seen.ids


def test_page_of_a_table(tmp_path: Path) -> None:
    path = tmp_path / "times.csv"
    path.write_text("name,time_us\nmm,30\nrelu,10\n", encoding="utf-8")
    assert "no formula" in whole(rl.report(rl.diagnosis.trace_report(path, "h100-sxm"))).text


EVIL = "</title></script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&<!--\x1b[0m"


def test_names_do_not_become_markup(tmp_path: Path) -> None:
    calls = [(EVIL, [[4096, 4096]], 100.0, {"kernel": EVIL}), *CALLS]
    page = rl.report(found(tmp_path, device=EVIL, calls=calls))
    assert "<script>" in whole(page).text
    assert "\x1b" not in page.html()
    named = rl.report(rl.diagnosis.trace_report(chain(Made(EVIL), calls).write(tmp_path, "<b>&.json"), "h100-sxm"))
    assert whole(named).tags.count("b") == 0


def test_names_of_a_program_do_not_become_markup() -> None:
    name = EVIL.replace("\x1b", "").replace(".", "")
    builder = rl.ops.Builder(name, "bf16")
    x = builder.input("x", (8, 4096))
    for n in range(2):
        x = builder.op("linear", x, builder.weight(f"w{n}", (4096, 4096)), name=f"{name}{n}")
    page = rl.report(builder.graph([x]), "h100-sxm")
    seen = whole(page)
    assert "<script>alert(1)" in seen.text
    assert "alert(1)</script>" not in page.html()
    for picture in seen.data["pictures"].values():
        assert "<img" not in json.dumps(picture)


def test_above_the_roof_is_red(tmp_path: Path) -> None:
    page = rl.report(found(tmp_path, calls=[("aten::mm", [[4096, 4096], [4096, 4096]], 50.0, {})]))
    whole(page)
    assert re.search(r'<tr class="bad"><td class="n">1</td>', page.html())


def test_colours_of_a_page_are_the_themes(tmp_path: Path) -> None:
    seen = whole(page := rl.report(found(tmp_path)))
    assert set(re.findall(r"var\(--([\w-]+)\)", page.html())) <= set(THEME)
    assert len({light for light, _ in THEME.values()}) == len(THEME)
    colours = set(re.findall(r"#[0-9a-f]{6}|rgba\(\d+,\d+,\d+", json.dumps(seen.data["pictures"])))
    assert colours
    assert colours <= {*seen.data["dark"], readable("#ffffff")}


def test_page_of_a_verdict(tmp_path: Path) -> None:
    advice = rl.diagnosis.Advice("use <fp8>", 1e-4, 1e-4, 1e-4, "needs scaling")
    judged = replace(verdict(), advice=(advice,), normal=("a gap & no fault",), notes=("partial trace",))
    seen = whole(page := rl.report(judged))
    for text in ("slow", "Where the time went", "Causes", "use <fp8>", "a gap & no fault", "partial", "Prediction"):
        assert text in seen.text
    assert judged.causes[0].fix in seen.text
    assert "measured" in [trace["name"] for trace in seen.data["pictures"]["chart-roofline"]["data"]]
    assert "operators" not in [one.name for one in page.chapters]
    assert 'type="range"' not in page.html()
    both = rl.report(judged, trace=recorded(tmp_path))
    whole(both)
    assert [one.name for one in both.chapters] == [
        "verdict", "waterfall", "causes", "candidates", "advice", "normal", "trace", "idle", "timeline",
        "operators_roofline", "operators", "summary", "roofline", "memory", "program", "kernels", "sources",
    ]  # fmt: skip


def test_parts_of_a_verdict_add_up_and_tiny_ones_have_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = (("floor", 0.5), ("efficiency", 0.2), ("sync", 1e-7), ("unfused", 0.3))
    judged = replace(verdict(), measured=1.0)
    monkeypatch.setattr(type(judged), "waterfall", parts)
    html = rl.report(judged).html()
    rows = re.findall(r'<tr><th scope="row">([^<]*)</th><td class="n" data-v="([^"]*)">([^<]*)</td>', html)
    assert [(name, float(value), text) for name, value, text in rows[:4]] == [
        ("floor", 0.5, "500 ms"), ("efficiency", 0.2, "200 ms"), ("sync", 1e-7, "100 ns"), ("unfused", 0.3, "300 ms"),
    ]  # fmt: skip


def test_page_of_an_impossible_time() -> None:
    seen = whole(rl.report(verdict("1 us")))
    assert "impossible" in seen.text
    assert "times as fast as the datasheet of h100-sxm allows" in seen.text


# --- machinery --------------------------------------------------------------------------------------------------------


def test_bars_lie_end_to_end() -> None:
    laid = list(bars([("floor", 0.5), ("sync", 0.5)]))
    assert [(bar.start, bar.share) for bar in laid] == [(0.0, 0.5), (0.5, 0.5)]
    assert not list(bars(()))


def test_same_part_same_colour() -> None:
    assert part_colours(["launch_bound", "sync"]) == part_colours(["launching", "synchronisation"])
    assert len(set(part_colours(["unfused", "precision", "alignment", "materialised"]))) == 4


def test_differences_rebuild_every_state() -> None:
    states = [
        {"data": [{"x": [1, 2], "name": "a"}], "layout": {"title": "t", "shapes": [{"x0": 1}]}},
        {"data": [{"x": [1, 2, 3], "name": "a"}], "layout": {"title": "t", "shapes": [{"x0": 4}]}},
        {"data": [{"x": [5], "name": "a"}, {"x": []}], "layout": {"title": "t", "shapes": [{"x0": 4}]}},
    ]
    changes = list(differences(states))
    assert [path for path, _ in changes] == [["data"], ["layout", "shapes", 0, "x0"]]
    for at, state in enumerate(states):
        rebuilt = json.loads(json.dumps(states[0]))
        for path, values in changes:
            holder = rebuilt
            for key in path[:-1]:
                holder = holder[key]
            holder[path[-1]] = values[at]
        assert rebuilt == state


def test_equal_changes_are_written_once() -> None:
    moves = Moves(["1", "2"])
    assert moves(text=["a", "b"]) == moves(text=["a", "b"]) == ' data-m="0"'
    assert moves(text=["a", "a"], class_=["x", "y"]) == ' class="x" data-m="1"'
    assert moves(aria_label=['"<', "b"]) == ' aria-label="&#34;&lt;" data-m="2"'
