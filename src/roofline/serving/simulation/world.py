"""Servers, the link between those that read prompts and those that answer, and the users who send requests."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from math import isfinite, log2
from typing import Any

import numpy as np

from roofline.ir.errors import MissingExtra
from roofline.serving.request_traces import Floats, RequestTrace
from roofline.serving.simulation.engine import COLUMNS, Clock, Job, Policy, Server
from roofline.serving.steady import Speculation
from roofline.serving.steps import CONTEXTS, Times

#: The contexts between which times of decode steps are interpolated, as a list for bisection.
_CONTEXTS = CONTEXTS.tolist()
#: What is recorded of each request.
REQUESTS = ("arrival_s", "admitted_s", "first_s", "done_s", "prompt", "output", "cached", "preempted")


@dataclass(frozen=True)
class Group:
    """Servers that are all alike."""

    times: Times
    policy: Policy
    servers: int = 1


@dataclass(frozen=True)
class Plan:
    """What is simulated."""

    answering: Group
    seed: int
    before: float = 0.0  # time from a request's arrival until a server has it [s]
    reading: Group | None = None  # of the prompts, where those that answer do not read them
    transfer: Callable[[int], float] = float  # of the cache of so many tokens from one to the other [s]
    pinned: tuple[int, ...] = ()  # ids of blocks that no server ever drops


def run(plan: Plan, trace: RequestTrace, users: int, until: float) -> tuple[dict[str, Floats], dict[str, Floats]]:
    """Run all requests, and return columns of requests and of steps.

    Args:
        plan: What is simulated.
        trace: The requests.
        users: Who send them, each the next one when the last is answered; 0 where they come at their times.
        until: When users send no more [s].
    """
    ids = trace.blocks() if len(trace.ids) else repeat(plan.pinned)
    columns = zip(trace.prompt.tolist(), trace.output.tolist(), ids, trace.arrival.tolist(), strict=False)
    jobs = [Job(*row) for row in columns]
    world, upcoming = _World(plan), iter(jobs)
    for process in [world.user(upcoming, until) for _ in range(users)] or [world.open_loop(jobs)]:
        world.env.process(process)
    world.env.run()
    done = [job for job in jobs if job.done_s >= 0]
    requests = {name: np.asarray([getattr(job, name) for job in done], float) for name in REQUESTS}
    return requests, _steps([*world.reading, *world.answering])


def _steps(servers: Sequence[Server]) -> dict[str, Floats]:
    """Join the steps of all servers in the order of their beginnings."""
    each = [np.asarray(server.steps).reshape(-1, len(COLUMNS)) for server in servers]
    rows, server = np.concatenate(each), np.repeat(np.arange(len(servers)), [len(own) for own in each])
    order = np.argsort(rows[:, 0], kind="stable")
    return {**dict(zip(COLUMNS, np.ascontiguousarray(rows[order].T), strict=True)), "server": server[order]}


class _World:
    """Where requests go, and when."""

    def __init__(self, plan: Plan) -> None:
        try:
            import simpy
        except ImportError:
            raise MissingExtra("a simulation needs the package simpy: pip install 'roofline[serve]'") from None
        self.env, self.plan, self.draw = simpy.Environment(), plan, np.random.default_rng([plan.seed, 1])
        own, policy = plan.answering, plan.answering.policy
        self.link = simpy.Resource(self.env, own.servers)
        self.answering = self._started(own)
        self.reading = self._started(plan.reading, hand_over=True) if plan.reading else []
        # where others read prompts, a request waits for blocks of the servers that answer
        bounded = self.reading and isfinite(policy.room)
        self.blocks = simpy.Container(self.env, *2 * [policy.room * own.servers]) if bounded else None

    def _started(self, group: Group, *, hand_over: bool = False) -> list[Server]:
        times = clock(group.times, group.policy.speculation)
        servers = [Server(self.env, times, group.policy, self.draw, hand_over) for _ in range(group.servers)]
        for server in servers:
            server.prefixes.hold(self.plan.pinned)
            self.env.process(server.run())
        return servers

    def open_loop(self, jobs: Sequence[Job]) -> Iterator[Any]:
        """Send each request when it comes."""
        for job in jobs:
            if (wait := job.arrival_s + self.plan.before - self.env.now) > 0:
                yield self.env.timeout(wait)
            self.env.process(self._served(job))

    def user(self, jobs: Iterator[Job], until: float) -> Iterator[Any]:
        """Send a request as soon as the one before is answered."""
        for job in jobs:
            if self.env.now > until:
                return
            job.arrival_s = self.env.now
            if self.plan.before:
                yield self.env.timeout(self.plan.before)
            yield from self._served(job)

    def _served(self, job: Job) -> Iterator[Any]:
        """Take a request through the servers, to its last token."""
        policy = self.plan.answering.policy
        tokens = policy.blocks(job.prompt + job.output) * policy.block
        if self.blocks:
            yield self.blocks.get(tokens)
        yield _least(self.reading or self.answering).submit(job)
        if job.produced < job.output:
            with self.link.request() as turn:
                yield turn
                yield self.env.timeout(self.plan.transfer(job.prompt))
            yield _least(self.answering).submit(job)
        job.done_s = self.env.now
        if self.blocks:
            self.blocks.put(tokens)


def _least(servers: Sequence[Server]) -> Server:
    """Return the server with the fewest requests."""
    return min(servers, key=lambda server: len(server.waiting) + server.running)


def clock(times: Times, speculation: Speculation) -> Clock:
    """Return the time of a step, evaluated once: of a decode step at a few contexts, of others at rounded sizes.

    Args:
        times: What evaluates a step.
        speculation: What is drafted for each sequence in it.
    """

    @cache
    def reading(tokens: int, past: float, decodes: int, context: float, prompts: int) -> float:
        return float(speculation.step(times, tokens, past, decodes, context, prompts))

    @cache
    def decoding(decodes: int) -> list[float]:
        step = speculation.step(times, 0, 0, decodes, CONTEXTS)
        return list(np.broadcast_to(step, CONTEXTS.shape).tolist())

    def seconds(tokens: int, past: float, decodes: int, context: float, prompts: int) -> float:
        if tokens:
            # a context within 1 % and a past within 2 % of the one that is evaluated: attention is a part of a step
            return reading(tokens, _rounded(past, 32), decodes, _rounded(context, 64), prompts)
        table = decoding(decodes)
        at = min(max(bisect_right(_CONTEXTS, context) - 1, 0), len(table) - 2)
        share: float = (context - _CONTEXTS[at]) / (_CONTEXTS[at + 1] - _CONTEXTS[at])
        return table[at] + share * (table[at + 1] - table[at])

    return seconds


def _rounded(value: float, steps: int) -> float:
    """Round to a whole number, and that to one of so many steps from a number to twice it."""
    return round(value) if value < steps else float(round(2 ** (round(log2(value) * steps) / steps)))
