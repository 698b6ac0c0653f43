"""The drawing kit: marks said once, drawn by matplotlib and by Plotly."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.view.charts import interactive
from roofline.view.charts.chart import Chart
from roofline.view.charts.marks import (
    Arrow,
    Axis,
    Band,
    Bars,
    Cells,
    Drawing,
    Line,
    Note,
    Panel,
    Points,
    Region,
    Rule,
    Strip,
    stacked,
)
from roofline.view.charts.spans import spans

ODD = "<b>&amp; %{x} $x_1$ \x1b[31m"
BATCH = np.asarray([1, 2, 4, 8])


@dataclass(frozen=True, eq=False, repr=False)
class Sample(Chart):
    """Any marks as a chart."""

    said: Drawing

    def records(self) -> list[dict[str, Any]]:
        return [{"a": 1}]

    def drawing(self) -> Drawing:
        return self.said


def sample() -> Sample:
    """Every kind of mark, with names that hold anything."""
    curves = Panel(
        (
            Region(x1=3, label="left", colour="memory", name="zone"),
            Band(BATCH, BATCH * 0.9, BATCH * 1.1, "compute", name="range", label="range"),
            Line(BATCH, BATCH, "compute", name=ODD, label="expected", bold=True),
            Line([1, 8], [1, 2], "soft", label="along", along=True, dash=True),
            Points(BATCH, BATCH * 2, "memory", "s", [5, 6, 7, 8], "measured", [ODD, "", "", "b"], [ODD] * 4,
                   ["point-0", "point-1", "point-2", "point-3"]),
            Points([2], [9], "red", filled=False, size=12),
            Arrow(1, 2, 2, 4, name="arrow", hover=ODD), Note(4, 2, "two\nlines"),
            Rule(x=2, label="two"), Rule(x=2.1, label="nearly two"), Rule(y=5, label="limit", colour="red"),
            Rule(y=1e6, label="far"),
            Strip("no place", (Points([0, 0], [0, 0], "host", "P", [9, 5], "no FLOPs", ["copy", ""]),)),
        ),
        Axis("batch", log=2), Axis("time", "s", log=10),
    )  # fmt: skip
    bars = Panel(
        (Bars([0, 1], [3, -1], [0, 3], ["compute", "launch"], "steps", [ODD, "minus"], ["x", "y"]),
         Rule(x=2, label="two")),
        Axis("memory", "B"), Axis(categories=(ODD, "second")), title="bars",
    )  # fmt: skip
    cells = Panel(
        (Cells([[1.0, float("nan")]], [["1", ""]], log=True),), Axis(categories=("a", "b")), Axis(categories=("c",))
    )
    return Sample(Drawing((curves, bars, cells), ODD, ODD, size=(8, 10)))


@pytest.mark.parametrize("dark", [False, True])
def test_every_mark_is_drawn_by_both(dark: bool) -> None:
    chart = sample()
    figure = chart.figure(dark=dark)
    assert figure.axes[0].get_xlim() == pytest.approx(spans(chart.said)[0][0])
    said = [text.get_text() for text in figure.axes[0].texts]
    assert {"expected", "limit", "far, above the axis", "two", "nearly two", "b", "two\nlines", "along"} <= set(said)
    page = chart.plotly(dark)
    words = " ".join([str(note.text) for note in page.layout.annotations] + [str(trace.text) for trace in page.data])
    for text in ("expected", "limit", "far, above the axis", "two", "nearly two", "'b'", "two<br>lines", "along"):
        assert text in words
    names = {trace.name for trace in page.data if trace.showlegend}
    assert {"zone", "range", "measured", "arrow", "steps"} <= names


def test_every_mark_has_a_painter() -> None:
    from typing import get_args

    from roofline.view.charts import marks, paint

    assert set(paint._PAINTERS) == set(interactive._PAINTERS) == set(get_args(marks.Mark))


def test_pages_load_nothing_and_hold_no_markup_of_others(tmp_path: Path) -> None:
    sample().save(tmp_path / "a.html")
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "<script src" not in page
    assert "<link" not in page
    data = sample().plotly().to_json()
    assert "<b>&amp; %" not in data.replace("\\u003c", "<").replace("\\u003e", ">").replace("\\u0026", "&")
    assert "\x1b" not in page
    sample().save(tmp_path / "b.html")
    assert (tmp_path / "b.html").read_text(encoding="utf-8") == page


def test_stacked_bands_are_the_parts() -> None:
    bands = stacked(BATCH, {"a": BATCH, "b": BATCH * 2}, ["weights", "kv_cache"], ["one", "two"])
    assert [band.label for band in bands] == ["one", "two"]
    assert np.allclose(bands[1].high, BATCH * 3)


def test_memory_parts_add_up() -> None:
    est = rl.estimate("gpt2", "h100-sxm", batch=1, seq=1024)
    chart = rl.charts.plot_memory(est)
    assert sum(row["bytes"] for row in chart.records()) == pytest.approx(float(est.memory.total))
    assert sum(row["share"] for row in chart.records()) == pytest.approx(1)
    bars, whole = (mark for mark in chart.drawing().panels[0].marks if isinstance(mark, Bars))
    assert bars.start[-1] + bars.length[-1] == pytest.approx(whole.length[0])
    with pytest.raises(rl.errors.UsageError, match="of 25 points; allowed: up to 24"):
        rl.charts.plot_memory(rl.estimate("gpt2", "h100-sxm", batch=range(1, 26), seq=1024))


def test_a_browser_lays_an_svg_out_as_it_was_drawn(browser: Any, tmp_path: Path) -> None:
    """Also in another font: texts keep their width and the space before a swatch, and nothing is loaded."""
    chart = sample()
    picture = chart._repr_svg_().replace("'DejaVu Sans', 'Verdana', 'Arial'", "'Liberation Serif', serif")
    (tmp_path / "a.svg").write_text(picture, encoding="utf-8")
    chart.save(tmp_path / "a.html", dark=True)
    asked: list[str] = []
    page = browser.new_page()
    page.on("request", lambda request: asked.append(request.url))
    page.goto((tmp_path / "a.svg").as_uri())
    script = "[...document.querySelectorAll('text')].map(t => [t.textLength.baseVal.value, t.getBBox().width])"
    widths = page.evaluate(script)
    page.goto((tmp_path / "a.html").as_uri())
    entries = page.locator(".legendtext").all_text_contents()
    page.close()
    assert len(widths) > 20
    assert [(said, drawn) for said, drawn in widths if drawn != pytest.approx(said, rel=0.02, abs=1.0)] == []
    assert "measured" in entries
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == []
    assert not re.search(r"<text[^>]*>[ \t]", picture)
