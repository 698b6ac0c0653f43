"""``roofline serve --simulate`` and ``--trace``: the loads of a service step by step, beside the closed form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from roofline.cli import options as opt
from roofline.cli import tables
from roofline.cli.tables import percent, time_text
from roofline.ir.errors import UsageError
from roofline.serving import RequestTrace, Service, Simulation, read_requests
from roofline.serving import simulate as simulated


@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """What is simulated beside the closed form."""

    simulate: Annotated[bool, opt.option(
        "--simulate", "Simulate each load step by step too: percentiles, the queue, the cache.", "Simulation")
    ] = False  # fmt: skip
    trace: Annotated[Path | None, opt.option(
        "--trace FILE", "Replay requests: arrival,prompt,output, or a trace of Azure, BurstGPT or Mooncake; --qps "
        "gives them another rate.", "Simulation")] = None  # fmt: skip
    requests: Annotated[int | None, opt.option(
        "--requests N", "Requests that count; of a trace, the first of them.", "Simulation", min=1,
        default="1,000, or 4 for each user")] = None  # fmt: skip
    seconds: Annotated[opt.Text, opt.option(
        "--seconds TIME", "No request comes after this time, such as 60s.", "Simulation", default="any")
    ] = None  # fmt: skip
    seed: Annotated[int, opt.option("--seed N", "Of what is drawn.", "Simulation", default="0", min=0)] = 0

    def read(self) -> RequestTrace | None:
        """Return the requests to replay.

        Raises:
            UsageError: Options of a simulation without one.
        """
        opt.with_unit(self.seconds, "--seconds", "s")
        if self.trace is not None:
            return read_requests(self.trace, requests=self.requests)
        for name in ("requests", "seconds", "seed"):
            if not self.simulate and getattr(self, name):
                raise UsageError(
                    f"--{name} {getattr(self, name)} belongs to a simulation: give --simulate or --trace too"
                )
        return None

    def runs(self, service: Service, trace: RequestTrace | None) -> list[Simulation]:
        """Simulate each load of a service, or the trace at each of its rates."""
        if trace is None and not self.simulate:
            return []
        more: dict[str, Any] = {"requests": self.requests, "seconds": self.seconds, "seed": self.seed}
        if trace is not None:
            return [simulated(service, trace=trace, qps=_rate(trace, float(value)), **more) for value in service.values]
        if service.load == "users":
            return [simulated(service, concurrency=round(value), **more) for value in service.values.tolist()]
        return [simulated(service, qps=value, **more) for value in service.values.tolist()]


def lengths(trace: RequestTrace | None, prompt: int | None, new_tokens: int | None) -> tuple[int, int]:
    """Return the sizes of requests that are all alike: as given, or the means of a trace."""
    if trace is not None:
        for name, value in (("--prompt", prompt), ("--new-tokens", new_tokens)):
            if value is not None:
                raise UsageError(f"{name} {value}: a trace says itself how long its requests are")
        return max(round(trace.prompt.mean()), 1), max(round(trace.output.mean()), 1)
    if prompt is None or new_tokens is None:
        raise UsageError("give --prompt and --new-tokens, the tokens of every request, or --trace FILE")
    return prompt, new_tokens


def load_of(trace: RequestTrace | None, load: dict[str, Any]) -> dict[str, Any]:
    """Return the load of the closed form: as given, or the mean rate of a trace."""
    if trace is None or load["qps"] is not None:
        return load
    if load["concurrency"] is not None:
        raise UsageError("--concurrency: a trace says itself when its requests come; --qps gives them another rate")
    return {**load, "qps": trace.qps} if trace.qps is not None else {**load, "concurrency": [len(trace)]}


def _rate(trace: RequestTrace, value: float) -> float | None:
    return None if trace.qps is None or abs(value / trace.qps - 1) < 1e-9 else value


def parts(service: Service, runs: Sequence[Simulation]) -> Iterator[Any]:
    """Show each simulated load: means beside the closed form's, percentiles, the queue and the cache."""
    if not runs:
        return
    closed = service.load == "users"
    first, limited = runs[0], runs[0].good is not None
    columns = ["users" if closed else "requests/s", "first token", "p50", "p90", "p99", "per token", "?p50", "?p90",
               "p99", "tokens/s", "?waiting", "?cache", *(["within limits"] if limited else [])]  # fmt: skip
    yield from ("", tables.table("|".join(columns), [
        (f"{value:,.4g}", *_times(run, "ttft_s"), *_times(run, "tpot_s"), f"{run.tokens_per_s:,.0f}",
         f"{run.summary()['waiting_mean']:,.3g}", percent(run.summary()["cache_most_tokens"] / run.room),
         *([percent(run.good)] if limited else []))
        for value, run in zip(service.values, runs, strict=True)
    ], f"simulated, {int(first.measured.sum()):,} requests"))  # fmt: skip


def _times(run: Simulation, name: str) -> tuple[str, ...]:
    values = (run.mean(name), *(run.percentile(name, each) for each in (50, 90, 99)))
    return tuple("-" if value != value else time_text(value) for value in values)
