"""What each request and each step of a simulated server took: percentiles, throughput, goodput, figures over time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import isfinite, nan
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from roofline.ir.errors import UsageError
from roofline.ir.report import Report
from roofline.ir.units import format_si

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

#: Points of the timeline that a record lists.
LISTED = 128
#: Percentiles of a summary.
PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, repr=False, eq=False)
class Simulation(Report):
    """What each request and each step took, as from :func:`roofline.serving.simulate`.

    Attributes:
        about: What was served and where, where requests came from, and how steps were made up.
        requests: Columns with a row for each request: when it came, was admitted, had its first and its last token [s],
            tokens of its prompt and of its answer, tokens that were there, and how often it gave its blocks back.
        steps: Columns with a row for each step: when it began, how long it took [s], sequences that got a token, tokens
            of prompts read, tokens that came out, requests waiting and running, tokens for which blocks were reserved.
        measured: Which requests count: not those that came while the server filled or emptied.
        window: Between which times tokens are counted [s].
        room: Tokens for which the cache has blocks.
        ttft: Limit of the time to the first token [s], or ``None``.
        tpot: Limit of the time per further token [s], or ``None``.
    """

    schema = "simulation"

    about: dict[str, Any]
    requests: dict[str, Floats]
    steps: dict[str, Floats]
    measured: NDArray[np.bool_]
    window: tuple[float, float]
    room: float
    ttft: float | None = None
    tpot: float | None = None

    @cached_property
    def latencies(self) -> dict[str, Floats]:
        """Times of the requests that count: to the first token, per further token, and in all [s]."""
        return {name: column[self.measured] for name, column in _latencies(self.requests).items()}

    def percentile(self, what: str, percent: float) -> float:
        """Return a percentile of ``ttft_s``, ``tpot_s`` or ``latency_s`` [s]; NaN where no request has it.

        Raises:
            UsageError: No such time, or not between 0 and 100.
        """
        values = self.latencies.get(what)
        if values is None or not 0 <= percent <= 100:
            raise UsageError(f"percentile({what!r}, {percent!r}): allowed: {', '.join(self.latencies)}, 0 to 100")
        return float(np.nanpercentile(values, percent)) if np.isfinite(values).any() else nan

    def mean(self, what: str) -> float:
        """Return the mean of ``ttft_s``, ``tpot_s`` or ``latency_s`` [s]; NaN where no request has it."""
        values = self.latencies[what]
        return float(np.nanmean(values)) if np.isfinite(values).any() else nan

    @property
    def tokens_per_s(self) -> float:
        """New tokens a second."""
        start, end = self.window
        ends = self.steps["start_s"] + self.steps["step_s"]
        return float(self.steps["emitted"][(ends > start) & (ends <= end)].sum()) / (end - start)

    @property
    def requests_per_s(self) -> float:
        """Answers that were completed a second."""
        done, (start, end) = self.requests["done_s"], self.window
        return float(np.count_nonzero((done > start) & (done <= end))) / (end - start)

    @property
    def good(self) -> float | None:
        """Share of the requests within both limits; ``None`` without limits."""
        limits = {"ttft_s": self.ttft, "tpot_s": self.tpot}
        late = [self.latencies[name] > limit for name, limit in limits.items() if limit is not None]
        return float(1 - np.any(late, axis=0).mean()) if late else None

    @property
    def goodput(self) -> float | None:
        """Answers a second within both limits; ``None`` without limits."""
        return None if self.good is None else self.good * self.requests_per_s

    def timeline(self, points: int = LISTED) -> dict[str, Floats]:
        """Return means over equal spans of time: requests waiting and running, share of the cache reserved, tokens/s.

        Args:
            points: Spans.

        Returns:
            Columns ``time_s`` (the middle of each), ``waiting``, ``running``, ``cache``, ``tokens_per_s``.
        """
        steps, servers = self.steps, range(1 + int(self.steps["server"].max()))
        edges = np.linspace(0.0, float((steps["start_s"] + steps["step_s"]).max()), points + 1)
        waiting, running, cache, tokens = (
            np.sum([_by_span(steps, name, server, edges) for server in servers], axis=0)
            for name in ("waiting", "running", "cache_tokens", "emitted")
        )
        cache = cache / len(servers) / self.room if isfinite(self.room) else np.full(points, nan)
        return {"time_s": (edges[1:] + edges[:-1]) / 2, "waiting": waiting, "running": running, "cache": cache,
                "tokens_per_s": tokens}  # fmt: skip

    # --- as data ---

    def frame(self) -> pd.DataFrame:
        """Return one row per request, also of those that do not count."""
        from roofline.ir.frame import frame

        return frame({**self.requests, **_latencies(self.requests), "measured": self.measured})

    def subject(self) -> dict[str, Any]:
        """Return what was served, where requests came from, and how steps were made up."""
        return self.about

    @property
    def title(self) -> str:
        """The model, and the chip."""
        return " on ".join(str(self.about[key]) for key in ("model", "chip") if key in self.about)

    def summary(self) -> dict[str, Any]:
        """Return throughput, goodput, the queue and the cache, and all of it over time."""
        steps, spans = self.steps, self.steps["step_s"]
        running, waiting = (float((steps[name] * spans).sum()) / float(spans.sum()) for name in ("running", "waiting"))
        return {
            "requests": int(self.measured.sum()), "steps": len(spans),
            "duration_s": float((steps["start_s"] + spans).max()),
            "tokens_per_s": self.tokens_per_s, "requests_per_s": self.requests_per_s,
            "ttft_limit_s": self.ttft, "tpot_limit_s": self.tpot, "good": self.good, "goodput": self.goodput,
            "running_mean": running, "waiting_mean": waiting, "waiting_most": float(steps["waiting"].max()),
            "cache_room_tokens": self.room if isfinite(self.room) else None,
            "cache_most_tokens": float(steps["cache_tokens"].max()),
            "cached_share": float(self.requests["cached"].sum() / self.requests["prompt"].sum()),
            "preempted": int(self.requests["preempted"].sum()),
            "timeline": {name: column.tolist() for name, column in self.timeline().items()},
        }  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per time: its mean, its percentiles, and its largest value."""
        return [
            {"time": name.removesuffix("_s"), "mean_s": self.mean(name),
             **{f"p{q}_s": self.percentile(name, q) for q in PERCENTILES}, "max_s": self.percentile(name, 100)}
            for name in self.latencies
        ]  # fmt: skip

    def __repr__(self) -> str:
        first, then = (self.percentile(name, 50) for name in ("ttft_s", "tpot_s"))
        late = self.percentile("ttft_s", 99)
        return (f"<Simulation of {self.title}: {int(self.measured.sum()):,} requests, first token "
                f"{format_si(first, 's')} (p99 {format_si(late, 's')}), then {format_si(then, 's')} each; "
                f"{self.tokens_per_s:,.0f} tokens/s>")  # fmt: skip


def _latencies(requests: dict[str, Floats]) -> dict[str, Floats]:
    further = np.where(requests["output"] > 1, requests["output"] - 1, nan)
    return {
        "ttft_s": requests["first_s"] - requests["arrival_s"],
        "tpot_s": (requests["done_s"] - requests["first_s"]) / further,
        "latency_s": requests["done_s"] - requests["arrival_s"],
    }


def _by_span(steps: dict[str, Floats], name: str, server: int, edges: Floats) -> Floats:
    """Return the mean of a figure of a server's steps over spans of time; of tokens that came out, by the second."""
    ours = steps["server"] == server
    start, seconds, values = (steps[key][ours] for key in ("start_s", "step_s", name))
    total = np.cumsum(values if name == "emitted" else values * seconds)
    ends = np.column_stack([start, start + seconds]).ravel()
    sums = np.column_stack([np.concatenate([[0.0], total[:-1]]), total]).ravel()
    return np.asarray(np.diff(np.interp(edges, ends, sums)) / np.diff(edges))
