"""Where simulated requests come from: users who ask again and again, random arrivals, or a recorded trace."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import ceil, inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.ir.errors import UsageError
from roofline.ir.numbers import finite_number, whole_number
from roofline.ir.units import parse
from roofline.serving.request_traces import MAX_REQUESTS, MAX_TOKENS, Floats, RequestTrace, made_requests, read_requests

#: Requests of users in a closed loop at most.
MAX_USED = 200_000
#: Share of the requests, the first ones, that an open loop does not measure.
WARM_UP = 0.1


@dataclass(frozen=True)
class Load:
    """What requests are asked for, as by the arguments of :func:`roofline.serving.simulate`."""

    prompt: int | None
    new_tokens: int | None
    concurrency: int | None
    qps: float | None
    trace: RequestTrace | str | os.PathLike[str] | None
    requests: int | None
    seconds: str | float | None
    seed: int
    spread: float = 0.0  # how much lengths differ, as a share of the longest

    def arrivals(self) -> Arrivals:
        """Check what is asked for, and draw the requests.

        Raises:
            UsageError: Neither users, nor a rate, nor a trace; or a size out of range.
        """
        if self.trace is not None:
            return self._replayed(self.trace)
        if self.prompt is None or self.new_tokens is None or (self.concurrency is None) == (self.qps is None):
            raise UsageError("simulate: give prompt and new_tokens with concurrency (users) or qps (requests a "
                             "second), or a trace; --prompt, --new-tokens, --concurrency, --qps, --trace")  # fmt: skip
        draw = np.random.default_rng([self.seed, 0])
        about: dict[str, Any] = {"seed": self.seed} | ({"spread": self.spread} if self.spread else {})
        seconds = self.seconds
        until = inf if seconds is None else finite_number("seconds", parse(seconds, "s", "seconds"), 0, above=True)
        if self.concurrency is not None:
            users = whole_number("concurrency", self.concurrency, 1, 100_000)
            count = self._count(MAX_USED if isfinite(until) else max(1000, 4 * users), MAX_USED)
            trace = self._drawn(np.zeros(count + 3 * users), draw)
            return Arrivals(trace, {**about, "users": users}, 2 * users, users, until)
        rate = finite_number("qps", self.qps, 0, above=True)
        first = ceil(WARM_UP * (count := self._count(1000, MAX_REQUESTS)))
        arrival = np.cumsum(draw.exponential(1 / rate, count + first))
        arrival = arrival[arrival <= until]
        if len(arrival) <= first:
            raise UsageError(f"seconds={seconds}: {len(arrival)} requests come in that time, too few to count; "
                             f"give at least {(first + 2) / rate:.3g} s")  # fmt: skip
        return Arrivals(self._drawn(arrival, draw), {**about, "rate_per_s": rate}, first)

    def _count(self, usual: int, most: int) -> int:
        return whole_number("requests", usual if self.requests is None else self.requests, 1, most)

    def _drawn(self, arrival: Floats, draw: np.random.Generator) -> RequestTrace:
        """Return requests of these sizes in the mean, which differ by a share of the longest."""
        half = self.spread / (2 - self.spread)

        def lengths(name: str) -> Any:
            mean = whole_number(name, getattr(self, name), 1, MAX_TOKENS)
            spans = draw.uniform(1 - half, 1 + half, len(arrival)) if half else 1
            return np.maximum(np.round(spans * mean), 1).astype(np.int64)

        return made_requests(arrival, lengths("prompt"), lengths("new_tokens"))

    def _replayed(self, trace: RequestTrace | str | os.PathLike[str]) -> Arrivals:
        for name in ("prompt", "new_tokens", "concurrency"):
            if (value := getattr(self, name)) is not None:
                raise UsageError(f"{name}={value}: a trace says itself how long its requests are and when they come")
        replay = trace if isinstance(trace, RequestTrace) else read_requests(trace, requests=self.requests)
        replay = replay if self.qps is None else replay.at_rate(self.qps)
        count = self._count(len(replay), MAX_REQUESTS)
        if self.seconds is not None:
            until = parse(self.seconds, "s", "seconds")
            count = min(count, int(np.searchsorted(replay.arrival, until, side="right")))
        replay = replay.head(count)
        return Arrivals(replay, {**replay.subject(), "rate_per_s": replay.qps})


@dataclass(frozen=True)
class Arrivals:
    """Requests, and who sends them."""

    trace: RequestTrace
    about: dict[str, Any]  # where they come from, as a record says it
    first: int = 0  # so many of them do not count
    users: int = 0  # each sends the next one when the last is answered, and the last one does not count; none: at times
    until: float = inf  # when users send no more [s]

    def counted(self, columns: dict[str, Floats]) -> tuple[NDArray[np.bool_], tuple[float, float]]:
        """Tell which requests count, and between which times tokens do [s].

        Args:
            columns: Of the requests that were answered.
        """
        order = np.argsort(columns["arrival_s"], kind="stable")
        measured = np.zeros(len(order), dtype=bool)
        measured[order[self.first : len(order) - self.users]] = True
        arrival = columns["arrival_s"][order]
        start, end = float(arrival[self.first]), 0.0
        filled = float(columns["done_s"][order[self.first]])
        if self.first and not self.users and filled < arrival[-1]:
            start, end = filled, float(arrival[-1])  # then it empties
        if self.users:
            # users come back in the same order, so that whole rounds of all are cut where the next one begins
            end = float(arrival[self.first + (len(order) - 1 - self.first) // self.users * self.users])
        return measured, (start, end if end > start else float(columns["done_s"].max()))
