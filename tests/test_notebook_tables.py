"""What a notebook shows of a result: units, bars, at most a screen, and nothing of a name becomes markup."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

import roofline as rl
from roofline.ir.units import format_si

DECODE = rl.model("gpt2", phase="decode", layers=2)
AT: dict[str, Any] = {"context": 64, "mode": "graph"}
RESULTS: dict[str, Callable[[], Any]] = {
    "estimate": lambda: rl.estimate(DECODE, "h100-sxm", batch=8, **AT),
    "batches": lambda: rl.estimate(DECODE, "h100-sxm", batch=range(1, 300), **AT),
    "choice": lambda: rl.best_batch(DECODE, "h100-sxm", **AT),
    "verdict": lambda: rl.check(DECODE, "h100-sxm", "9 ms", batch=8, **AT),
    "comparison": lambda: rl.compare(DECODE, ["h100-sxm", "mi300x"], batch=8, **AT),
    "scaling": lambda: rl.scaling(DECODE, "h100-sxm", (1, 2, 4), batch=8, **AT),
    "timeline": lambda: rl.timeline(DECODE, "h100-sxm", batch=8, **AT),
    "request": lambda: rl.serving.request("gpt2", "h100-sxm", prompt=64, new_tokens=100),
    "step": lambda: rl.training.train("gpt2", "h100-sxm", batch=2, seq=64),
    "kernels": lambda: rl.estimate(DECODE, "h100-sxm", batch=8, **AT).kernels(),
    "frame": lambda: rl.estimate(DECODE, "h100-sxm", batch=[1, 8], **AT).frame(),
    "counts": lambda: rl.count(DECODE, batch=8, context=64),
    "doctor": lambda: rl.measurement.doctor(),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_at_most_a_screen_and_every_number_is_short(name: str) -> None:
    html = RESULTS[name]()._repr_html_()
    text = re.sub(r"<[^>]*>", " ", html)
    assert html.count("<tr") <= 26
    assert not re.search(r"\d{7}|[1-9]\.\d{5}|\de\+\d", text)


def test_units_and_ranges_are_those_of_the_estimate() -> None:
    est = rl.estimate(DECODE, "h100-sxm", batch=8, **AT)
    html = est._repr_html_()
    assert f">{format_si(est.time, 's')}<" in html
    assert re.search(r">range<.*?>[\d.]+ us to [\d.]+ us<", html)


def test_the_longest_bar_is_the_largest_share() -> None:
    rows = rl.check(DECODE, "h100-sxm", "9 ms", batch=8, **AT)
    widths = [float(width) for width in re.findall(r"rgba\(0,114,178,.28\) (\d+)%", rows._repr_html_())]
    shares = [row["share"] for row in rows.records()]
    assert max(widths) == 100
    assert widths == [pytest.approx(100 * share / max(shares), abs=0.6) for share in shares if share]


def test_what_is_left_out_is_said() -> None:
    html = RESULTS["batches"]()._repr_html_()
    assert "285 rows in the middle" in html
    assert ".frame()" in html


def test_a_name_is_text() -> None:
    graph = rl.model("gpt2", phase="decode", layers=1)
    odd = rl.Chip(
        name="<script>x</script>", matrix={"fp32": "1 TFLOP/s"}, memory_bandwidth="1 GB/s", memory_capacity="9 GB"
    )
    assert "<script" not in rl.estimate(graph, odd, batch=1, context=8)._repr_html_()
    assert "<script" not in rl.estimate(graph, odd, batch=1, context=8).frame()._repr_html_()


def test_a_frame_is_still_a_plain_one() -> None:
    kernels = RESULTS["kernels"]()
    assert isinstance(kernels.time_s.iloc[0], float)
    assert type(kernels.head(2)) is type(kernels)
    assert kernels.groupby("bound").time_s.sum().sum() == pytest.approx(kernels.time_s.sum())


def test_a_frame_can_be_pickled() -> None:
    kernels = RESULTS["kernels"]()
    assert pickle.loads(pickle.dumps(kernels)).equals(kernels)
