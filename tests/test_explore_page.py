"""The explorer as a reader has it: in Chromium, by mouse and keyboard, two readers at once, on a narrow screen."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

import roofline as rl
from roofline.ir.units import format_si
from roofline.view.charts.style import THEME

pytest.importorskip("dash", reason="dash is not installed")

from roofline.view.explore.app import make_app, make_server

#: A small program, so that every answer is there at once.
SMALL = "?model=gpt2&seq=512&against="
CONFIG = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4,
          "num_attention_heads": 8, "vocab_size": 1000}  # fmt: skip


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with make_server(make_app()) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.port}/"
        server.shutdown()
        thread.join()


@contextmanager
def opened(browser: Any, address: str, query: str = SMALL, width: int = 1200, scheme: str = "light") -> Iterator[Any]:
    """Open a page and expect that it loads nothing from elsewhere and complains of nothing."""
    tab = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    said: list[str] = []
    own = (address, "data:", "blob:")
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: None if request.url.startswith(own) else said.append(request.url))
    tab.goto(f"{address}{query}")
    tab.locator("#chips-chart .main-svg").first.wait_for()
    settle(tab)
    yield tab
    tab.close()
    assert not said


def settle(tab: Any) -> None:
    """Wait until nothing on the page waits for an answer."""
    quiet = 0
    while quiet < 3:
        tab.wait_for_timeout(15)
        quiet = 0 if tab.locator("[data-dash-is-loading=true]").count() else quiet + 1


@pytest.fixture(scope="module")
def tab(browser: Any, address: str) -> Iterator[Any]:
    """Open the page once for several tests, each of which says what it begins with."""
    with opened(browser, address) as tab:
        yield tab


def type_in(tab: Any, label: str, text: str, expect: str = "") -> None:
    """Type into a field, and wait for a text in the line that says what the numbers are of."""
    field = tab.get_by_label(label, exact=True)
    field.fill(text)
    field.press("Enter")
    tab.locator("#about", has_text=expect).wait_for()
    settle(tab)


def charts(tab: Any) -> list[str]:
    names = ("roofline", "memory", "chips")
    plot = "document.querySelector('#' + name + '-chart .js-plotly-plot')"
    return [json.dumps(tab.evaluate(f"name => {plot}.data.map(trace => [trace.x, trace.y])", name)) for name in names]


def shown(tab: Any) -> dict[str, str]:
    """Return everything that the page says of a state."""
    names = ("headline", "about", "facts", "kernels", "code", "batch-said", "chips-said")
    return {name: tab.locator(f"#{name}").inner_text() for name in names} | {"charts": str(charts(tab))}


def test_a_change_moves_numbers_and_charts(tab: Any) -> None:
    before = charts(tab)
    type_in(tab, "Batch", "64", "batch 64")
    est = rl.estimate("gpt2", "h100-sxm", phase="decode", mode="graph", batch=64, context=512)
    assert tab.locator("#headline").inner_text().startswith(format_si(est.time, "s"))
    assert all(old != new for old, new in zip(before, charts(tab), strict=True))
    tab.get_by_role("slider").press("ArrowRight")
    tab.locator("#about", has_text="batch 128").wait_for()
    settle(tab)
    assert tab.get_by_label("Batch", exact=True).input_value() == "128"
    tab.go_back()
    tab.locator("#about", has_text="batch 64").wait_for()
    settle(tab)
    assert tab.get_by_label("Batch", exact=True).input_value() == "64"


def test_a_link_restores_the_page_and_two_readers_have_their_own(browser: Any, tab: Any, address: str) -> None:
    type_in(tab, "Format of weights", "int8", "int8")
    link, here = tab.url, shown(tab)
    with opened(browser, address, link.removeprefix(address)) as other:
        assert shown(other) == here
        assert other.get_by_label("Format of weights").input_value() == "int8"
        assert other.get_by_role("slider").get_attribute("aria-valuenow") == "6"
        assert other.url == link
        type_in(other, "Batch", "16", "batch 16")
        type_in(tab, "Format of weights", "", "batch 64")
        said = [one.locator("#about").inner_text() for one in (tab, other)]
    assert [("batch 64" in text, "batch 16" in text, "int8" in text) for text in said] == [
        (True, False, False), (False, True, True),
    ]  # fmt: skip


def test_a_figure_of_the_chip_is_a_knob(tab: Any) -> None:
    tab.get_by_text("Figures of the chip").click()
    before = tab.locator("#headline").inner_text()
    type_in(tab, "HBM bandwidth", "6.7 TB/s", "what-if")
    assert tab.locator("#headline").inner_text() != before
    assert "replace(memory_bandwidth='6.7 TB/s')" in tab.locator("#code").inner_text()
    here = charts(tab)
    type_in(tab, "HBM bandwidth", "6.7 TB")
    assert "expected B/s" in tab.locator("#figure-faults").inner_text()
    assert len(here) == len(charts(tab))
    tab.get_by_role("button", name="As published").click()
    tab.locator("#about:not(:has-text('what-if'))").wait_for()
    settle(tab)
    assert tab.get_by_label("HBM bandwidth").input_value() == ""
    assert tab.locator("#headline").inner_text() == before


def test_nonsense_is_said_beside_its_field_and_charts_stay(tab: Any) -> None:
    type_in(tab, "Batch", "many")
    field = tab.locator(".field", has=tab.locator("#batch"))
    assert "expected a whole number from 1" in field.inner_text()
    assert all(json.loads(chart) for chart in charts(tab))
    type_in(tab, "Batch", "4", "batch 4")
    assert "expected" not in field.inner_text()


def test_another_model_and_chip_from_the_lists(tab: Any) -> None:
    for label, name in (("Model", "resnet18"), ("Chip", "l4")):
        tab.get_by_role("group", name=label, exact=True).get_by_role("button").click()
        tab.locator(".dash-dropdown-search").fill(name)
        tab.get_by_role("option", name=name, exact=True).first.click()
        tab.locator("#about", has_text=name).wait_for()
    settle(tab)
    assert "resnet18 forward on l4" in tab.locator("#about").inner_text()
    assert tab.locator("#figures").get_by_text("GDDR bandwidth").count() == 1


def test_files_that_are_dropped(tab: Any, address: str) -> None:
    config = {"name": "config.json", "mimeType": "application/json", "buffer": json.dumps(CONFIG).encode()}
    times = {"name": "times.csv", "mimeType": "text/csv", "buffer": b"name,time_us\nmm,30\nrelu,10\n"}
    script = {"name": "run.py", "mimeType": "text/x-python", "buffer": b"1/0"}
    tab.locator("#file input").set_input_files(config)
    tab.locator("#about", has_text="uploaded").wait_for()
    settle(tab)
    reply = tab.request.get(f"{address}{tab.locator('#download-explore').get_attribute('href')}")
    assert reply.text().strip() == tab.locator("#code").inner_text().strip()
    tab.locator("#file input").set_input_files(script)
    tab.locator("#trace-file input").set_input_files(times)
    tab.locator("#trace-said", has_text="times.csv").wait_for()
    type_in(tab, "Time of one run", "9 ms")
    assert "slow" in tab.locator("#verdict-said").inner_text()
    assert all(tab.locator(f"#{name}-chart .main-svg").count() for name in ("trace", "verdict"))


def expect_names(tab: Any) -> None:
    """Expect that whoever cannot see the page is told what each control is."""
    unnamed = tab.evaluate(
        "[...document.querySelectorAll('input,button,[role=group],[role=img],[role=region]')].filter(part =>"
        " !part.closest('.js-plotly-plot') && getComputedStyle(part).visibility !== 'hidden'"
        " && part.getAttribute('aria-hidden') !== 'true' && getComputedStyle(part).display !== 'none'"
        " && !(part.getAttribute('aria-label') || part.labels?.length || part.textContent.trim()"
        " || document.getElementById(part.getAttribute('aria-labelledby')?.split(' ')[0])?.textContent.trim()"
        " || part.closest('[role=group]'))).map(part => part.outerHTML.slice(0, 90))"
    )
    assert unnamed == []


def expect_colours(tab: Any, dark: bool) -> None:
    """Expect that the page and its charts are light, or dark."""
    back = THEME["back"][dark]
    settle(tab)
    plot = "document.querySelector('#roofline-chart .js-plotly-plot').layout.paper_bgcolor"
    assert tab.evaluate(plot) == back
    body = tab.evaluate("getComputedStyle(document.body).backgroundColor")
    assert body == f"rgb({int(back[1:3], 16)}, {int(back[3:5], 16)}, {int(back[5:], 16)})"


def test_for_every_reader(tab: Any) -> None:
    expect_names(tab)
    for width in (1200, 400):
        tab.set_viewport_size({"width": width, "height": 900})
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        assert tab.locator("#headline").is_visible()
    expect_colours(tab, False)
    tab.emulate_media(color_scheme="dark")
    expect_colours(tab, True)
    tab.get_by_text("Light", exact=True).click()
    expect_colours(tab, False)
    tab.set_viewport_size({"width": 1200, "height": 900})


def test_by_keyboard_alone(tab: Any) -> None:
    tab.locator("h1").click()
    seen = []
    for _ in range(60):
        tab.keyboard.press("Tab")
        seen.append(tab.evaluate("document.activeElement.id || document.activeElement.textContent"))
        if seen[-1] == "download-report":
            break
    assert [name for name in seen if name in ("model", "dtype", "batch", "chip", "tp", "measured")] == [
        "model", "dtype", "batch", "chip", "tp", "measured",
    ]  # fmt: skip
