"""A simulated server over time: requests that wait and run, the cache, and how long first tokens took."""

from __future__ import annotations

from typing import Any

import numpy as np

from roofline.ir.units import format_si
from roofline.serving.simulation.result import Simulation
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Band, Drawing, Line, Panel, Points, Rule

#: Requests that are drawn at most.
MOST = 600


class SimulatedServer(ResultChart[Simulation]):
    """A server over time, made by :func:`plot_simulation`."""

    kind, made_by, schema = Simulation, "rl.serving.simulate", "simulated_server"

    def drawing(self) -> Drawing:
        """Return requests in the server, the cache, and the time to the first token of each request that came."""
        run, line = self.result, self.result.timeline()
        time, x = line["time_s"], Axis("time", "s", low=0.0)
        requests = (
            Band(time, np.zeros_like(time), line["running"], "compute", strength=0.35),
            Line(time, line["running"], "compute", label="running"),
            Line(time, line["waiting"], "red", label="waiting"),
        )
        panels = [Panel(requests, x, Axis("requests", low=0.0), title="in the server")]
        if np.isfinite(line["cache"]).all():
            cache = (Band(time, np.zeros_like(time), line["cache"], "kv_cache", strength=0.35),
                     Line(time, line["cache"], "kv_cache", label="reserved"))  # fmt: skip
            panels.append(Panel(cache, x, Axis("KV cache", "%", low=0.0), title="share of the cache's blocks"))
        panels.append(Panel(self._first_tokens(), x, Axis("first token", "s", log=10), title="time to the first token"))
        first, then = (format_si(run.percentile(name, 99), "s") for name in ("ttft_s", "tpot_s"))
        under = (
            f"99th percentiles {first} to the first token, {then} per further token; {run.tokens_per_s:,.0f} tokens/s"
        )
        return Drawing(tuple(panels), f"Simulated: {run.title}", under, size=(8.0, 2.1 + 2.1 * len(panels)))

    def _first_tokens(self) -> tuple[Any, ...]:
        """Return a point for each request, and the limit."""
        ours, run = self.result.requests, self.result
        at = np.unique(np.linspace(0, len(ours["done_s"]) - 1, MOST).astype(int))
        waits = (ours["first_s"] - ours["arrival_s"])[at]
        came, prompts = ours["arrival_s"][at], ours["prompt"][at]
        hover = [f"came at {format_si(when, 's')}, {tokens:,.0f} tokens; first token {format_si(wait, 's')} later"
                 for when, wait, tokens in zip(came, waits, prompts, strict=True)]  # fmt: skip
        points = Points(came, waits, "compute", size=3.0, edge="compute", hover=hover)
        limit = () if run.ttft is None else (Rule(y=run.ttft, colour="red", dash=True, label="limit"),)
        return (points, *limit)


def plot_simulation(simulation: Simulation) -> SimulatedServer:
    """Describe a chart of a simulated server over time: requests that wait and run, the cache, first tokens.

    Args:
        simulation: From :func:`roofline.serving.simulate`.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No simulation.

    Example:
        >>> import roofline as rl
        >>> served = rl.serving.deployment("llama-3-8b", "h100-sxm")
        >>> run = rl.serving.simulate(served, prompt=1000, new_tokens=20, qps=4, requests=50)
        >>> len(plot_simulation(run).drawing().panels)
        3
    """
    return SimulatedServer(simulation)
