"""Every arrangement of a space evaluated by the closed forms of a steady state: figures as columns, a row for each.

The figures are those of :func:`roofline.serving.serve`, worked out by the same functions
(:mod:`roofline.serving.steady`): a server's steps are evaluated once, all loads of it in one call.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from math import gcd
from multiprocessing import get_context
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.frontends.source import Program
from roofline.ir.errors import UsageError
from roofline.serving.deployment import Deployment, transfer_seconds
from roofline.serving.plans.space import Space, engines, formats, users_up_to
from roofline.serving.steady import (
    Apart,
    Steady,
    Work,
    closed_apart,
    closed_loop,
    open_apart,
    open_loop,
)

Floats = NDArray[np.float64]

#: Readers of prompts and servers that decode that are paired, of each chip and format of the cache.
PAIRED = 2
#: Servers of either kind in one arrangement at most; more chips are copies of it.
SERVERS = 64
#: Arrangements of each chip whose users are looked at more closely, and numbers of users that are looked at in each.
FEW, FINE = 8, 1024
#: Rates that differ by less are the same, but for rounding.
SAME = 1e-9
#: Pairs of chips and formats from which on a search is spread over processes.
LARGE = 8


@dataclass(frozen=True)
class Load:
    """What users ask for.

    Attributes:
        prompt: Tokens of a prompt.
        new_tokens: Tokens that a request gets.
        ttft: Time to the first token at most [s].
        tpot: Time per further token at most [s].
        qps: Requests in a second that come at random; ``None`` for a closed loop of as many users as is best.
        link: Way of a cache between chips that read and chips that decode, for each of them [byte/s].
    """

    prompt: int
    new_tokens: int
    ttft: float = np.inf
    tpot: float = np.inf
    qps: float | None = None
    link: float = 50e9


@dataclass(frozen=True)
class Arrangement:
    """Servers that are alike, or such that read prompts and others that decode.

    Attributes:
        engine: A server that decodes.
        reading: One that reads the prompts; ``None`` where the others do.
        servers: How many read, how many decode.
    """

    engine: Deployment
    reading: Deployment | None = None
    servers: tuple[int, int] = (0, 1)

    @property
    def devices(self) -> int:
        """Chips of one such arrangement."""
        reading = 0 if self.reading is None else self.servers[0] * self.reading.devices
        return reading + self.servers[1] * self.engine.devices

    def price(self, prices: Mapping[str, float]) -> float:
        """Return the price of its chips for an hour; of each chip one where there are no prices."""
        parts = [
            (self.engine, self.servers[1]),
            *([(self.reading, self.servers[0])] if self.reading else []),
        ]
        return sum(n * one.devices * prices.get(one.chip.name, 1.0) for one, n in parts)


@dataclass(frozen=True)
class Rows:
    """Candidates as columns.

    Attributes:
        arrangements: What is arranged.
        which: The arrangement of each candidate.
        copies: How many such arrangements share the requests.
        users: Requests in the system of each copy.
        ttft: Time to the first token [s].
        tpot: Time per further token [s].
        rate: Requests in a second of each copy.
        running: Requests that may run at a time in each server that decodes.
        decoding: Sequences in a decode step, of all servers of a copy.
        mixed_share: Share of the steps that read prompts.
    """

    arrangements: Sequence[Arrangement]
    which: NDArray[np.int64]
    copies: NDArray[np.int64]
    users: Floats
    ttft: Floats
    tpot: Floats
    rate: Floats
    running: Floats
    decoding: Floats
    mixed_share: Floats

    @cached_property
    def devices(self) -> NDArray[np.int64]:
        """Chips of all copies."""
        each = np.asarray([one.devices for one in self.arrangements], dtype=np.int64)
        return np.asarray(each[self.which] * self.copies)

    def prices(self, prices: Mapping[str, float]) -> Floats:
        """Return the price of all chips for an hour."""
        each = np.asarray([one.price(prices) for one in self.arrangements])
        return np.asarray(each[self.which] * self.copies)

    @property
    def size(self) -> int:
        """Candidates."""
        return int(self.which.size)


def search(engines: Sequence[Deployment], space: Space, load: Load) -> Rows:
    """Evaluate every arrangement of some servers.

    Args:
        engines: Servers, each with the first of the chunks.
        space: What is searched.
        load: What users ask for.
    """
    parts = list(_alike(engines, space, load))
    if space.split:
        parts += _split(engines, space, load)
    return _rows(_refined(parts, load) if load.qps is None else parts)


def searched(model: Program, space: Space, load: Load, fixed: Mapping[str, Any]) -> tuple[Rows, list[Deployment]]:
    """Search a space, its number formats over the cores of this machine: servers of two formats have nothing in common.

    Args:
        model: A name or a path.
        space: What is searched.
        load: What users ask for.
        fixed: Other options of :func:`roofline.serving.deployment`.

    Returns:
        Every candidate, and the servers that were looked at.

    Raises:
        UsageError: No layout at all; the reason of the first.
    """
    pairs = list(dict.fromkeys(pair for chip in space.chips for pair in formats(chip, space)))
    parts = [
        replace(space, weights=(weights,), cache=(cache,),
                chips=tuple(chip for chip in space.chips if (weights, cache) in formats(chip, space)))
        for weights, cache in pairs
    ]  # fmt: skip
    work = partial(_one, model, load=load, fixed=dict(fixed))
    cores = min(
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
        len(parts),
    )
    if cores > 1 and len(parts) * len(space.chips) >= LARGE:
        with ProcessPoolExecutor(cores, mp_context=get_context("fork")) as pool:
            every = list(pool.map(work, parts))
    else:
        every = [work(part) for part in parts]
    if not any(engines for _, engines, _ in every):
        raise UsageError(every[0][2])
    return _joined([rows for rows, _, _ in every]), [one for _, engines, _ in every for one in engines]


def _one(model: Program, space: Space, load: Load, fixed: Mapping[str, Any]) -> tuple[Rows, list[Deployment], str]:
    """Search one part of a space; with the reason where it has no layout."""
    try:
        every = list(engines(model, space, fixed))
    except UsageError as error:
        return _rows([]), [], str(error)
    return search(every, space, load), every, ""


def _joined(every: Sequence[Rows]) -> Rows:
    """Put candidates behind each other."""
    starts = np.cumsum([0, *(len(rows.arrangements) for rows in every)])
    which = np.concatenate([rows.which + start for rows, start in zip(every, starts[:-1], strict=True)])
    names = [one.name for one in fields(Rows)][2:]
    columns = {name: np.concatenate([getattr(rows, name) for rows in every]) for name in names}
    return Rows([one for rows in every for one in rows.arrangements], which, **columns)


@dataclass(frozen=True)
class _Part:
    """An arrangement, its copies at each point, the most requests that run, its loads, and what works them out."""

    arrangement: Arrangement
    copies: Any
    running: float
    loads: Floats
    solve: Callable[[Floats], Steady]

    @cached_property
    def state(self) -> Steady:
        """The steady state of each load."""
        return self.solve(self.loads)

    def best(self, load: Load) -> tuple[int, float]:
        """Return the fewest users with the highest rate within the limits, and the rate of the next number of users."""
        state = self.state
        meets = (state.first_token <= load.ttft) & (state.per_token <= load.tpot)
        rate = np.where(meets, state.rate, 0.0)
        at = int(np.argmax(rate >= rate.max() * (1 - SAME)))
        return at, float(state.rate[min(at + 1, rate.size - 1)]) if rate.max() else 0.0


def _refined(parts: Sequence[_Part], load: Load) -> list[_Part]:
    """Put the best number of users, of all that there can be, among those of the best arrangements of each chip."""
    groups: dict[Any, list[tuple[float, int]]] = {}
    for at, part in enumerate(parts):
        one = part.arrangement
        chips = (one.engine.chip.name, one.reading and one.reading.chip.name)
        groups.setdefault(chips, []).append((part.best(load)[1] / one.devices, at))
    few = {at for group in groups.values() for rate, at in sorted(group, reverse=True)[:FEW] if rate > 0}
    return [_closer(part, load) if at in few else part for at, part in enumerate(parts)]


def _closer(part: _Part, load: Load) -> _Part:
    """Add the best of more numbers of users to those of an arrangement, and the next to it on either side."""
    every = replace(part, loads=np.unique(np.linspace(1, part.loads[-1], FINE).round()))
    at, _ = every.best(load)
    return replace(part, loads=np.union1d(part.loads, every.loads[max(at - 1, 0) : at + 2]))


def _rows(parts: Sequence[_Part]) -> Rows:
    shapes = [part.state.first_token.size for part in parts]

    def column(values: Iterable[Any], kind: Any = np.float64) -> Any:
        full = [
            np.broadcast_to(np.asarray(value, dtype=kind), size) for value, size in zip(values, shapes, strict=True)
        ]
        return np.concatenate(full) if full else np.zeros(0, dtype=kind)

    states = [part.state for part in parts]
    return Rows(
        [part.arrangement for part in parts], column(range(len(parts)), np.int64),
        column((part.copies for part in parts), np.int64),
        column(state.users for state in states), column(state.first_token for state in states),
        column(state.per_token for state in states), column(state.rate for state in states),
        column(part.running for part in parts), column(state.decoding for state in states),
        column(state.mixed_share for state in states),
    )  # fmt: skip


def _alike(engines: Sequence[Deployment], space: Space, load: Load) -> Iterator[_Part]:
    """Yield servers that do everything, with each chunk."""
    for engine in engines:
        steps = engine.steps()
        for chunk in space.chunks:
            one = replace(engine, chunk=chunk)
            work = one.work(load.prompt, load.new_tokens)
            if work.running >= 1:
                copies, loads = _loads(one.devices, work.running, space, load)
                solve = partial(closed_loop, waves=False) if load.qps is None else open_loop
                if loads.size:
                    yield _Part(Arrangement(one), copies, work.running, loads, partial(solve, steps, work))


def _loads(devices: int, running: float, space: Space, load: Load) -> tuple[Any, Floats]:
    """Return how many copies there are at each point, and the load of each copy."""
    fit = [count // devices for count in space.counts if count % devices == 0]
    if load.qps is None:
        return fit[0] if fit else 1, np.asarray(users_up_to(int(running), space.points) if fit else [], dtype=float)
    return np.asarray(fit, dtype=np.int64), load.qps / np.asarray(fit, dtype=float)


# --- prompts read by other servers ------------------------------------------------------------------------------------


def _split(engines: Sequence[Deployment], space: Space, load: Load) -> Iterator[_Part]:
    """Yield servers that read prompts beside others that decode, in the ratio of their rates."""
    chunk = max(space.chunks)
    whole = [replace(engine, chunk=chunk) for engine in engines]
    works = [one.work(load.prompt, load.new_tokens) for one in whole]
    some = [(one, work) for one, work in zip(whole, works, strict=True) if work.running >= 1]
    steps = {id(one): engine.steps() for one, engine in zip(whole, engines, strict=True)}
    readers = _best_of(((one, _reading_rate(one, work, steps[id(one)], load)) for one, work in some))
    deciders = _best_of(((one, _decoding_rate(one, work, steps[id(one)], load)) for one, work in some))
    work_of = {id(one): work for one, work in some}
    for reading, reads in readers:
        for engine, decodes in deciders:
            if (reading.cache, reading.weights) == (engine.cache, engine.weights):
                yield from _paired(
                    reading,
                    engine,
                    reads,
                    decodes,
                    work_of[id(engine)],
                    steps,
                    space,
                    load,
                )


def _best_of(rated: Iterable[tuple[Deployment, float]]) -> list[tuple[Deployment, float]]:
    """Return the servers with the highest rates for a chip, of each chip and formats."""
    groups: dict[Any, list[tuple[Deployment, float]]] = {}
    for one, rate in rated:
        if rate > 0:
            groups.setdefault((one.chip.name, one.weights, one.cache), []).append((one, rate))
    best = (sorted(group, key=lambda pair: -pair[1] / pair[0].devices)[:PAIRED] for group in groups.values())
    return [pair for group in best for pair in group]


def _reading_rate(one: Deployment, work: Work, steps: Any, load: Load) -> float:
    """Prompts in a second of a server that only reads; none where one alone is late."""
    alone, busy = Apart(steps, one.budget, (1, 1), 0.0).times(work)
    return 1 / busy if alone <= load.ttft else 0.0


def _decoding_rate(one: Deployment, work: Work, steps: Any, load: Load) -> float:
    """Requests in a second of a server that only decodes, with as many as its cache holds and the limit allows."""
    users = np.asarray(users_up_to(int(work.running), 32), dtype=float)
    seconds = steps.decode(users, work.context)
    rates = np.where(seconds <= load.tpot, users / (seconds * max(work.decode_steps, 1e-9)), 0.0)
    return float(rates.max())


def _paired(
    reading: Deployment, engine: Deployment, reads: float, decodes: float, work: Work, steps: Mapping[int, Any],
    space: Space, load: Load,
) -> Iterator[_Part]:  # fmt: skip
    transfer = transfer_seconds(reading, engine, load.prompt, load.link)
    for servers in _ratios(reading.devices, engine.devices, decodes / reads, space.most):
        one = Arrangement(engine, reading, servers)
        apart = Apart(steps[id(reading)], reading.budget, servers, transfer)
        alone, busy = apart.times(work)  # whose prompts are on their way take no blocks of those that decode
        most = servers[1] * work.running + (alone + transfer) / busy
        copies, loads = _loads(one.devices, most, space, load)
        solve = partial(closed_apart, waves=False) if load.qps is None else open_apart
        if loads.size:
            yield _Part(one, copies, work.running, loads, partial(solve, steps[id(engine)], work, apart=apart))


def _ratios(reading: int, decoding: int, ratio: float, most: int) -> list[tuple[int, int]]:
    """Return numbers of servers that read and that decode, in the ratios nearest to that of their rates.

    Args:
        reading: Chips of one that reads.
        decoding: Chips of one that decodes.
        ratio: Servers that read for each that decodes.
        most: Chips at most.
    """
    every = [
        (x, y) for x in range(1, min(most // reading, SERVERS) + 1)
        for y in range(1, min((most - x * reading) // decoding, SERVERS) + 1) if gcd(x, y) == 1
    ]  # fmt: skip
    return sorted(every, key=lambda pair: abs(np.log(pair[0] / pair[1] / ratio)))[:2]
