"""Pages as a reader has them: in Chromium, with a slider, a keyboard, a narrow screen, a dark one, a printer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from made_traces import Made, chain

import roofline as rl
from roofline.ir.units import format_si
from roofline.view.charts.style import THEME, readable
from roofline.view.pages.fleet import fleet_page
from roofline.view.pages.page import Page

BATCHES = [1, 8, 64]
#: Most that the page's thread may work until all charts are there, whatever else the machine does [s].
SOON = 2.0
#: Contrast of text that WCAG 2.2 asks for (https://www.w3.org/TR/WCAG22/#contrast-minimum).
CONTRAST = 4.5

Opened = Callable[..., Any]


@pytest.fixture(scope="module")
def decode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = rl.report("gpt2", "a100-80gb-sxm", phase="decode", mode="graph", batch=BATCHES, context=512)
    return saved(page, tmp_path_factory.mktemp("decode"))


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judged")
    calls: list[Any] = [("aten::mm", [[4096, 4096], [4096, 4096]], 400.0, {}), ("aten::relu", [[4096, 4096]], 45.0, {})]
    trace = chain(Made("NVIDIA H100 80GB HBM3"), calls, gap=20.0).write(folder)
    program = rl.workload([{"op": "gemm", "m": 4096, "n": 4096, "k": 4096}], dtype="bf16")
    return saved(rl.report(rl.check(program, "h100-sxm", "3 ms"), trace=trace), folder)


def saved(page: Page, folder: Path) -> Path:
    page.save(folder / "page.html")
    return folder / "page.html"


@contextmanager
def opened(browser: Any, path: Path, width: int = 1200, scheme: str = "light") -> Iterator[Any]:
    """Open a page and expect that it is there soon, loads nothing and complains of nothing."""
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said: list[str] = []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: said.append(request.url) if not request.url.startswith("file:///") else None)
    session = tab.context.new_cdp_session(tab)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    tab.goto(path.as_uri())
    tab.wait_for_function("[...document.querySelectorAll('.plot')].every(box => box.querySelector('.main-svg'))")
    metrics = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    yield tab
    tab.close()
    assert not said
    assert metrics["TaskDuration"] < SOON


@pytest.fixture(scope="module")
def tab(browser: Any, decode: Path) -> Iterator[Any]:
    """Open the page of a prediction once for several tests, each of which begins wherever the last one ended."""
    with opened(browser, decode) as tab:
        yield tab


def bars(tab: Any, chart: str) -> Any:
    """Return what Plotly shows of a chart: the x and the y of its traces."""
    return tab.evaluate(f"document.getElementById('chart-{chart}').data.map(trace => [trace.x, trace.y])")


def contrast(front: str, back: str) -> float:
    """Return the contrast of two colours as WCAG defines it."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((light(front), light(back)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_the_slider_moves_every_number_and_chart(tab: Any) -> None:
    points = [rl.estimate("gpt2", "a100-80gb-sxm", phase="decode", mode="graph", batch=b, context=512) for b in BATCHES]
    slider, main = tab.get_by_role("slider", name="Batch"), tab.locator("main")
    states = []
    for at, point in enumerate(points):
        slider.fill(str(at))
        assert slider.get_attribute("aria-valuetext") == f"batch {BATCHES[at]}"
        text = main.inner_text()
        slowest = point.kernel_rows()[0]
        span = f"({format_si(point.low, 's')} to {format_si(point.high, 's')})"
        assert f"{format_si(point.time, 's')} {span}" in text
        assert format_si(point.throughput, "token/s") in text
        row = tab.locator("#kernel-rows tbody tr").first
        assert slowest["kernel"] in row.inner_text()
        assert format_si(slowest["time_s"], "s") in row.inner_text()
        tab.wait_for_timeout(100)
        states.append([json.dumps(bars(tab, chart)) for chart in ("roofline", "memory")])
    assert all(len(set(chart)) == len(BATCHES) for chart in zip(*states, strict=True))
    filled = json.loads(states[-1][1])
    assert points[-1].memory.weights == pytest.approx(filled[0][0][0], rel=1e-4)


def test_the_slider_by_keyboard(tab: Any) -> None:
    tab.get_by_role("slider", name="Batch").fill("0")
    tab.locator("h1").click()  # where the keyboard begins
    tab.keyboard.press("Tab")
    assert tab.evaluate("document.activeElement.getAttribute('href')") == "#summary"
    while tab.evaluate("document.activeElement.id") != "batch":
        tab.keyboard.press("Tab")
    tab.keyboard.press("ArrowRight")
    assert tab.locator("output[for=batch]").inner_text() == "8"
    tab.keyboard.press("End")
    assert tab.locator("output[for=batch]").inner_text() == "64"


def test_a_table_sorts_and_searches(tab: Any) -> None:
    table = tab.locator("#kernel-rows")
    heads = table.locator("thead th")
    names = heads.all_inner_texts()

    def column(name: str) -> list[float]:
        cells = f"[...document.querySelectorAll('#kernel-rows tbody tr')].map(row => row.cells[{names.index(name)}])"
        return [float(v) for v in tab.evaluate(f"{cells}.map(cell => cell.dataset.v ?? cell.textContent)")]

    assert heads.nth(names.index("time")).get_attribute("aria-sort") == "descending"
    assert column("time") == sorted(column("time"), reverse=True)
    table.get_by_role("button", name="floor").focus()
    tab.keyboard.press("Enter")
    assert column("floor") == sorted(column("floor"), reverse=True)
    tab.keyboard.press("Enter")
    assert column("floor") == sorted(column("floor"))
    assert heads.nth(names.index("floor")).get_attribute("aria-sort") == "ascending"
    assert heads.nth(names.index("time")).get_attribute("aria-sort") == "none"
    table.get_by_role("button", name="kernel").click()
    kernels = [text.split("\n")[0] for text in table.locator("tbody th").all_inner_texts()]
    assert kernels[0] == "embed"
    table.get_by_role("button", name="kernel").click()
    assert [text.split("\n")[0] for text in table.locator("tbody th").all_inner_texts()] == kernels[::-1]
    rows = table.locator("tbody tr")
    field = tab.get_by_role("searchbox", name="Search")
    field.fill("MLP linear")
    shown = [row.inner_text() for row in rows.all() if row.is_visible()]
    assert 0 < len(shown) < rows.count()
    assert all("mlp" in text and "linear" in text for text in shown)
    assert f"{len(shown)} of {rows.count()}" in tab.locator("main").inner_text()
    field.fill("")
    assert all(row.is_visible() for row in rows.all())


def test_a_chart_shows_and_hides(tab: Any) -> None:
    figure = tab.locator("figure:has(#chart-roofline)")
    figure.locator("summary").press("Enter")
    field = figure.locator("input").first
    name = field.get_attribute("value")

    def visible() -> list[Any]:
        plot = "document.getElementById('chart-roofline')"
        return tab.evaluate(
            f"name => {plot}.data.filter(t => t.legendgroup === name).map(t => t.visible ?? true)", name
        )

    assert set(visible()) == {True}
    field.press("Space")
    assert set(visible()) == {"legendonly"}
    tab.get_by_role("slider", name="Batch").fill("2")
    tab.wait_for_timeout(100)
    assert set(visible()) <= {"legendonly"}
    entry = tab.locator("#chart-roofline .traces").filter(has=tab.locator(f".legendtext:text-is('{name}')"))
    entry.locator(".legendtoggle").click()
    tab.wait_for_timeout(500)
    assert field.is_checked()
    assert set(visible()) == {True}


def expect_colours(tab: Any, scheme: str) -> None:
    """Expect that page and charts have the colours of a scheme, or get them when it changes."""
    back, ink, soft = (THEME[name][scheme == "dark"] for name in ("back", "ink", "soft"))
    tab.emulate_media(color_scheme=scheme)
    tab.wait_for_timeout(100)
    layout = tab.evaluate("document.getElementById('chart-roofline').layout")
    assert layout["paper_bgcolor"] == back
    assert layout["font"]["color"] == ink
    bars = tab.evaluate(
        "document.getElementById('chart-memory').data.filter(trace => trace.insidetextfont)"
        ".map(bar => [bar.marker.color, bar.insidetextfont.color])"
    )
    written = [pair for colours, texts in bars for pair in zip(colours, texts, strict=True)]
    assert written
    assert all(text == readable(colour) for colour, text in written)
    body = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert body == f"rgb({int(back[1:3], 16)}, {int(back[3:5], 16)}, {int(back[5:], 16)})"
    assert min(contrast(ink, back), contrast(soft, back)) >= CONTRAST


def expect_room(tab: Any, width: int) -> None:
    """Expect that nothing is wider than the screen but what scrolls, and no table where there is room for it."""
    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    tables = tab.evaluate(
        "[...document.querySelectorAll('.scroll:has(table)')].map(box => box.scrollWidth - box.clientWidth)"
    )
    assert width < 1200 or tables == [0] * len(tables)
    assert max(tab.evaluate("[...document.querySelectorAll('.plot')].map(box => box.scrollWidth)")) <= width


def expect_names(tab: Any) -> None:
    """Expect that whoever cannot see the page is told what everything is, and finds it by headings and links."""
    unnamed = tab.evaluate(
        "[...document.querySelectorAll('[role=img],[role=region],input,table,button')].filter(part =>"
        " !part.closest('.js-plotly-plot') && !(part.getAttribute('aria-label')"
        " || document.getElementById(part.getAttribute('aria-labelledby'))?.textContent.trim()"
        " || part.labels?.length || part.caption?.textContent.trim() || part.textContent.trim()"
        " )).map(part => part.outerHTML.slice(0, 80))"
    )
    assert unnamed == []
    levels = tab.evaluate("[...document.querySelectorAll('h1,h2,h3')].map(head => Number(head.tagName[1]))")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert tab.get_by_role("navigation", name="Chapters").get_by_role("link").count() == levels.count(2)


def test_a_prediction_for_every_reader(tab: Any) -> None:
    expect_room(tab, 1200)
    expect_names(tab)
    expect_colours(tab, "light")


def test_a_verdict_for_every_reader(browser: Any, judged: Path) -> None:
    with opened(browser, judged) as tab:
        expect_room(tab, 1200)
        expect_names(tab)


def test_narrow_and_dark(browser: Any, decode: Path, judged: Path) -> None:
    with opened(browser, judged, 400, "dark") as tab:
        expect_room(tab, 400)
    with opened(browser, decode, 400, "dark") as tab:
        expect_room(tab, 400)
        expect_colours(tab, "dark")
        expect_colours(tab, "light")


def test_the_names_of_a_fleet_leave_half_of_a_narrow_screen_to_its_bars(browser: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    config = tmp_path / "the-model-that-answers-customers.json"
    config.write_text(json.dumps({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2}))
    about = rl.fleet.Question(phases=("decode",), seq=64)
    fleet = rl.fleet.run(["gpt2", str(config)], ["h100-sxm", "l4"], tmp_path / "out", about, workers=0)
    with opened(browser, saved(fleet_page(fleet), tmp_path), 400) as tab:
        expect_room(tab, 400)
        box = "document.querySelector('.plot')"
        assert tab.evaluate(f"{box}._fullLayout._size.w / {box}.clientWidth") > 0.5
        names = set(tab.evaluate(f"{box}.layout.yaxis.ticktext"))
    assert names == {
        f"{model}<br>{chip}" for model in ("gpt2", f"...{config.stem[-19:]}") for chip in ("h100-sxm", "l4")
    }


def test_prints_in_light_colours(tab: Any) -> None:
    expect_colours(tab, "dark")
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert tab.evaluate("document.getElementById('chart-roofline').layout.paper_bgcolor") == THEME["back"][0]
    tab.emulate_media(media="print")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not tab.locator("nav").is_visible()
    tab.emulate_media(media="screen")
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.evaluate("document.getElementById('chart-roofline').layout.paper_bgcolor") == THEME["back"][1]
    assert tab.pdf()[:5] == b"%PDF-"
