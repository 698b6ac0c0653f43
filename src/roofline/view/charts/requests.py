"""A request token by token: when each comes, and how the KV cache grows."""

from __future__ import annotations

from typing import Any

import numpy as np

from roofline.ir.report import size_words
from roofline.ir.units import format_bytes, format_si
from roofline.serving.requests import Request
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Band, Drawing, Line, Panel, Points
from roofline.view.charts.sweep import DRAWN


class RequestTokens(ResultChart[Request]):
    """Time and cache by token, made by :func:`plot_request`."""

    kind, made_by, schema = Request, "rl.serving.request", "request_tokens"

    def records(self) -> list[dict[str, Any]]:
        """Return one row per token that is drawn, as of the request."""
        columns = self.result.columns()
        return [{name: np.asarray(value)[i].item() for name, value in columns.items()} for i in self._shown()]

    def _shown(self) -> list[int]:
        """Return the tokens that are drawn: all, or some of very many."""
        last = self.result.new_tokens - 1
        shown: list[int] = np.unique(np.linspace(0, last, min(last + 1, DRAWN)).astype(int)).tolist()
        return shown

    def drawing(self) -> Drawing:
        """Return the time of each token, the first one apart, and below it the KV cache."""
        rows, one = self.records(), self.result
        token = [row["token"] for row in rows]
        low, time, high = ([row[key] for row in rows] for key in ("low_s", "time_s", "high_s"))
        first = f"first token {format_si(time[0], 's')}"
        hover = [f"token {row['token']:,}: {format_si(row['time_s'], 's')}, done at {format_si(row['done_s'], 's')}\n"
                 f"attends {row['context']:,} positions" for row in rows]  # fmt: skip
        times = (
            *((Band(token[1:], low[1:], high[1:], "compute"),
               Line(token[1:], time[1:], "compute", hover=hover[1:], label="each further token", bold=True))
              if len(rows) > 1 else ()),
            Points(token[:1], time[:1], one.prefill.bound, "*", 13.0, labels=[first],
                   hover=[f"{first} ({format_si(low[0], 's')} to {format_si(high[0], 's')})"]),
        )  # fmt: skip
        x = Axis("new token")
        panels = (
            Panel(times, x, Axis("time", "s", log=10), title="time of each token"),
            Panel(self._cache(token, rows), x, Axis("KV cache", "B", low=0.0), title="keys and values"),
        )
        step = f", then {format_si(one.time_per_token, 's')} each" if one.time_per_token is not None else ""
        fits = {True: ", fits", False: ", DOES NOT FIT", None: ""}[one.fits]
        said = (f"{first}{step}; all {one.new_tokens:,} in {format_si(one.time, 's')}; "
                f"peak {format_bytes(one.peak)}{fits}")  # fmt: skip
        about = self.subject()
        said += f"; {', '.join(size_words(about))}, {about['mode']} mode"
        return Drawing(panels, f"A request of {about['model']} on {one.chip.name}", said, size=(8.0, 6.4))

    def _cache(self, token: list[int], rows: list[dict[str, Any]]) -> tuple[Band | Line, ...]:
        reserved, used = ([row[f"cache_{key}_bytes"] for row in rows] for key in ("reserved", "used"))
        hover = [f"token {t:,}: {format_bytes(r)} reserved, {format_bytes(u)} used"
                 for t, r, u in zip(token, reserved, used, strict=True)]  # fmt: skip
        whole = (Band(token, [0.0] * len(token), reserved, "kv_cache", strength=0.35),
                 Line(token, reserved, "kv_cache", label="reserved", hover=hover))  # fmt: skip
        return (*whole, Line(token, used, "ink", label="used", dash=True, width=1.1)) if reserved != used else whole


def plot_request(request: Request) -> RequestTokens:
    """Describe a chart of a request: the time of the first token and of each further one, and the growing KV cache.

    Args:
        request: From :func:`roofline.serving.request`.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No request.

    Example:
        >>> import roofline as rl
        >>> chart = plot_request(rl.serving.request("llama-3-8b", "h100-sxm", prompt=2048, new_tokens=64))
        >>> chart.records()[0]["time_s"] == chart.result.time_to_first_token
        True
    """
    return RequestTokens(request)
