"""Continuous batching step by step: the policy of the closed forms, as a discrete-event simulation.

The policy is that of :mod:`roofline.serving.steady`. A server runs one engine step after the other. A step adds a token
to every sequence that is being answered, and reads prompts with what is left of the budget of tokens, first come, first
served, in chunks (Sarathi-Serve, Agrawal et al. 2024, arXiv:2403.02310). A request is admitted when the paged cache has
blocks for its prompt and all its new tokens. Beyond the closed forms: without that reserve it is admitted with blocks
for its prompt; when there are none for the next tokens, the request that was admitted last gives its blocks back and is
read again later, with the tokens that it has (recomputation, Kwon et al. 2023, arXiv:2309.06180, section 4.5). Prompts
that begin with blocks of an earlier one read the rest only; blocks that nobody uses stay until others need their room,
the least recent first.

Times of steps come from ``Deployment.steps()`` or from anything with its method ``seconds``.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import repeat
from math import ceil, inf, isfinite, log2, nan
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from roofline.ir.errors import DoesNotFit, MissingExtra, UsageError
from roofline.ir.graph import check_positions
from roofline.ir.numbers import finite_number, whole_number
from roofline.ir.report import Report, subject
from roofline.ir.text import shown
from roofline.ir.units import format_si, parse
from roofline.serving.deployment import Deployment
from roofline.serving.request_traces import MAX_REQUESTS, MAX_TOKENS, RequestTrace, made_requests, read_requests
from roofline.serving.service import Service
from roofline.serving.steady import Speculation
from roofline.serving.steps import CONTEXTS

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Steps that are simulated at most, and points of the timeline that a record lists.
MAX_STEPS, LISTED = 5_000_000, 128
#: Requests of users in a closed loop at most.
MAX_USED = 200_000
#: The contexts between which times of answers are interpolated, as a list for bisection.
_CONTEXTS = CONTEXTS.tolist()
#: Percentiles of a summary.
PERCENTILES = (50, 90, 99)
#: Share of the requests, the first ones, that an open loop does not measure.
WARM_UP = 0.1


_ONE = Speculation()


class Times(Protocol):
    """What says how long a step takes, as ``StepTimes`` does."""

    def seconds(
        self, prefill_tokens: Any, past: Any, decodes: Any, context: Any, prompts: Any = 1, queries: Any = 1
    ) -> Any:
        """Return the time of a step [s].

        Args:
            prefill_tokens: Tokens of prompts that it reads.
            past: Positions of each prompt before them.
            decodes: Sequences that get a token.
            context: Positions that each of them attends to, in the mean.
            prompts: Prompts that the tokens belong to, in equal shares.
            queries: Tokens of each of the sequences: one, and those that are drafted for it.
        """


@dataclass(frozen=True)
class Policy:
    """How steps are made up.

    Given to :func:`roofline.serving.simulate`; a deployment has one of its own.

    Attributes:
        chunk: Tokens of a step at most, those of answers first.
        block: Tokens of a block of the cache.
        room: Tokens for which the cache has blocks; endless by default.
        sequences: Requests at a time.
        speculation: What is drafted for each sequence in each step.
        hashed: Tokens of a block of a shared prefix.
        reserve: Whether a request is admitted only with blocks for all its tokens, so that none is ever evicted.
        mixed: Whether prompts are read in the steps that decode; else a step with prompts does nothing else.
    """

    chunk: int = 2048
    block: int = 1
    room: float = inf
    sequences: int = 10**6
    speculation: Speculation = _ONE
    hashed: int = 512
    reserve: bool = True
    mixed: bool = True

    def blocks(self, tokens: Any) -> Any:
        """Return the blocks that tokens lie in."""
        return -(-tokens // self.block)


@dataclass(slots=True, eq=False)
class _Job:
    """A request on its way; ``target`` tokens are to be read before the next token comes, ``read`` of them are."""

    number: int
    prompt: int
    output: int
    ids: Sequence[int]
    arrival: float = nan
    target: int = 0
    read: int = 0
    produced: int = 0
    shared: int = 0  # ids of blocks that it holds together with others
    own: int = 0  # blocks of its own while it is read
    cached: int = 0
    preempted: int = 0
    admitted: float = nan
    first: float = nan
    done: float = nan
    order: int = 0
    finished: Any = None


class _Prefixes:
    """Blocks that prompts share: how many sequences hold each, and those that nobody holds, the least recent first."""

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()

    def leading(self, ids: Sequence[int]) -> int:
        """Count the first blocks that are there."""
        return next((at for at, each in enumerate(ids) if each not in self.held and each not in self.idle), len(ids))

    def hold(self, ids: Sequence[int]) -> None:
        for each in ids:
            self.idle.pop(each, None)
            self.held[each] = self.held.get(each, 0) + 1

    def release(self, ids: Sequence[int]) -> None:
        for each in reversed(ids):
            self.held[each] -= 1
            if not self.held[each]:
                del self.held[each]
                self.idle[each] = None

    def evict(self, most: int) -> None:
        """Drop idle blocks until no more than ``most`` are left."""
        while len(self.idle) > max(most, 0):
            self.idle.popitem(last=False)


class _Steps:
    """What each step was, in arrays of 8 bytes a number."""

    names = ("start_s", "step_s", "decodes", "prefill_tokens", "emitted", "waiting", "running", "cache_tokens")

    def __init__(self) -> None:
        self.columns = {name: array("d") for name in self.names}
        self._appends = [column.append for column in self.columns.values()]

    def add(self, *values: float) -> None:
        for append, value in zip(self._appends, values, strict=True):
            append(value)

    def __len__(self) -> int:
        return len(self.columns["start_s"])


class _Server:
    """One engine: requests that wait, that are read, and that are answered."""

    def __init__(
        self, env: Any, times: Callable[..., float], policy: Policy, draw: Any, leave: Callable[[_Job], None],
        *, hand_over: bool = False,
    ) -> None:  # fmt: skip
        self.env, self.times, self.policy, self.leave, self.hand_over = env, times, policy, leave, hand_over
        self.most = 1 + policy.speculation.drafted  # tokens that an answer may get in a step
        self.draw, self.steps, self.prefixes, self.idle = draw, _Steps(), _Prefixes(), None
        self.waiting: deque[_Job] = deque()
        self.reading: list[_Job] = []
        self.answering: list[_Job] = []
        self.held = self.order = 0  # blocks of requests that are read; requests admitted so far
        # of each request that is answered: positions in its cache, tokens to come, positions that it shares
        self.positions, self.left, self.apart = (np.zeros(64) for _ in range(3))

    @property
    def load(self) -> int:
        """Requests that are here."""
        return len(self.waiting) + len(self.reading) + len(self.answering)

    def submit(self, job: _Job) -> None:
        job.target = job.target or job.prompt
        self.waiting.append(job)
        if self.idle is not None and not self.idle.triggered:
            self.idle.succeed()

    def run(self) -> Iterator[Any]:
        """Run one step after the other, as a process of the simulation."""
        while True:
            self._make_room()
            pieces = self._pieces()
            if not (pieces or self.answering):
                self.idle = self.env.event()
                yield self.idle
                continue
            decodes = len(self.answering) if self.policy.mixed or not pieces else 0
            start, seconds = self.env.now, self._seconds(pieces, decodes)
            tokens = self._blocks(self.most) * self.policy.block
            yield self.env.timeout(seconds)
            self.steps.add(start, seconds, decodes, *self._complete(pieces, decodes), tokens)
            if len(self.steps) > MAX_STEPS:
                raise UsageError(f"more than {MAX_STEPS:,} steps; simulate fewer requests or a shorter time")
            yield self.env.timeout(0)  # those whose last token has come may ask again before the next step

    # --- memory ---

    def _blocks(self, further: int = 0) -> float:
        """Blocks that are in use, once every answer has up to ``further`` positions more."""
        # blocks that were reserved for all tokens are held from the admission on
        n, block = 0 if self.policy.reserve else len(self.answering), self.policy.block
        alone = self.positions[:n] - self.apart[:n] + np.minimum(self.left[:n], further)
        return float(np.ceil(alone / block).sum()) + self.held + len(self.prefixes.held) * self.policy.hashed / block

    def _fits(self, blocks: float) -> bool:
        """Tell whether some blocks more fit, and drop idle prefixes to make them fit."""
        free = self.policy.room - (blocks + self._blocks(self.most)) * self.policy.block
        if free >= 0 and self.prefixes.idle and isfinite(free):
            self.prefixes.evict(int(free // self.policy.hashed))
        return free >= 0

    def _make_room(self) -> None:
        """Let the last requests give their blocks back where the next tokens have no room."""
        while self.answering and self._blocks(self.most) * self.policy.block > self.policy.room:
            self._preempt(max((*self.reading, *self.answering), key=lambda job: job.order))

    def _preempt(self, job: _Job) -> None:
        if job in self.reading:
            self.reading.remove(job)
        else:
            at = self.answering.index(job)
            job.produced = job.output - round(self.left[at])
            self._remove(at)
        self._release(job)
        job.target, job.read, job.preempted = job.prompt + job.produced, 0, job.preempted + 1
        self.waiting.appendleft(job)

    def _release(self, job: _Job) -> None:
        self._give(job, job.own)
        self.prefixes.release(job.ids[: job.shared])
        job.shared = 0

    def _give(self, job: _Job, blocks: int) -> None:
        """Give blocks back that a request holds alone."""
        blocks = min(blocks, job.own)
        self.held -= blocks
        job.own -= blocks

    def _remove(self, at: int) -> None:
        """Take one off the answers; the last one fills its place."""
        last = len(self.answering) - 1
        for column in (self.positions, self.left, self.apart):
            column[at] = column[last]
        self.answering[at] = self.answering[last]
        self.answering.pop()

    # --- a step ---

    def _pieces(self) -> list[tuple[_Job, int]]:
        """Choose what is read: the rest of prompts that are begun, then those that can be admitted."""
        budget = self.policy.chunk - len(self.answering) * self.most * self.policy.mixed
        pieces: list[tuple[_Job, int]] = []
        for job in self.reading:
            if budget <= 0:
                return pieces
            size = min(budget, job.target - job.read)
            pieces.append((job, size))
            budget -= size
        while budget > 0 and self.waiting and self.load - len(self.waiting) < self.policy.sequences:
            job = self.waiting[0]
            if not self._admit(job):
                break
            self.waiting.popleft()
            size = min(budget, job.target - job.read)
            if size:
                self.reading.append(job)
                pieces.append((job, size))
                budget -= size
        return pieces

    def _admit(self, job: _Job) -> bool:
        """Reserve the blocks of a prompt, those that are there from others apart; false where there is no room."""
        policy, elsewhere = self.policy, job.read == job.target
        shared = 0 if elsewhere else self.prefixes.leading(job.ids)
        shared = min(shared, (job.target - 1) // policy.hashed)  # one token is always computed, for its output
        self.prefixes.hold(job.ids[:shared])
        length = job.prompt + job.output if policy.reserve else job.target
        own = int(policy.blocks(length - shared * policy.hashed))
        if not self._fits(own):
            self.prefixes.release(job.ids[:shared])
            return False
        job.shared, job.own, self.held = shared, own, self.held + own
        job.read = job.target if elsewhere else shared * policy.hashed
        self.order += 1
        job.order = self.order
        if not job.admitted >= 0:
            job.admitted, job.cached = self.env.now, job.cached or shared * policy.hashed
        if elsewhere:
            self._answer(job)
        return True

    def _seconds(self, pieces: list[tuple[_Job, int]], decodes: int) -> float:
        tokens, prompts = sum(size for _, size in pieces), len(pieces)
        # equal shares that begin at this position attend to as many pairs as the pieces do
        pairs = sum(size * (job.read + size / 2) for job, size in pieces)
        past = max(pairs / tokens - tokens / prompts / 2, 0.0) if tokens else 0.0
        context = float(self.positions[:decodes].mean()) + 1 if decodes else 1.0
        return self.times(tokens, past, decodes, context, prompts)

    def _complete(self, pieces: list[tuple[_Job, int]], decodes: int) -> tuple[float, ...]:
        """Take in what a step has done; return tokens read, tokens that came, requests that wait and that run."""
        waiting, running = len(self.waiting), self.load - len(self.waiting)
        emitted = self._advance() if decodes else 0.0
        for job, size in pieces:
            job.read += size
            if job.read == job.target:
                emitted += 1
                self.reading.remove(job)
                self._first_token(job)
        return sum(size for _, size in pieces), emitted, waiting, running

    def _advance(self) -> float:
        """Give every answer its tokens, and let those leave that are complete."""
        n = len(self.answering)
        gain = self._accepted(n)
        left = self.left[:n]
        gain = np.minimum(gain, left)
        left -= gain
        self.positions[:n] += gain
        if left.min() <= 0:
            for at in np.flatnonzero(left <= 0)[::-1].tolist():
                job = self.answering[at]
                self._remove(at)
                self._finish(job)
        return float(gain.sum())

    def _accepted(self, n: int) -> Any:
        """Draw the tokens that each answer gets: one, and drafts up to the first wrong one."""
        drafted, accepted = self.policy.speculation.drafted, self.policy.speculation.accepted
        if not drafted:
            return np.ones(n)
        right = self.draw.random((n, drafted)) < accepted
        return 1.0 + np.logical_and.accumulate(right, axis=1).sum(axis=1)

    def _first_token(self, job: _Job) -> None:
        """Take in a prompt that is read: its blocks can be shared from now on, and it has its next token."""
        job.produced += 1
        if not job.first >= 0:
            job.first = self.env.now
        whole = min(len(job.ids), job.prompt // self.policy.hashed)
        if whole > job.shared:
            self.prefixes.hold(job.ids[job.shared : whole])
            self._give(job, int((whole - job.shared) * self.policy.hashed // self.policy.block))
            job.shared = whole
        if job.produced >= job.output or self.hand_over:
            self._finish(job)
        else:
            self._answer(job)

    def _answer(self, job: _Job) -> None:
        n = len(self.answering)
        if n == len(self.left):
            self.positions, self.left, self.apart = (
                np.concatenate([c, np.zeros(n)]) for c in (self.positions, self.left, self.apart)
            )
        if not self.policy.reserve:
            self._give(job, job.own)
        self.positions[n], self.left[n] = job.target, job.output - job.produced
        self.apart[n] = job.shared * self.policy.hashed
        self.answering.append(job)

    def _finish(self, job: _Job) -> None:
        self._release(job)
        self.leave(job)


class _Clock:
    """Times of single steps, looked up: those of answers alone in tables over the context, all others once each."""

    def __init__(self, times: Times, speculation: Speculation) -> None:
        self.times, self.speculation = times, speculation
        self.tables: dict[int, list[float]] = {}
        self.others: dict[tuple[float, ...], float] = {}

    def __call__(self, tokens: int, past: float, decodes: int, context: float, prompts: int) -> float:
        if not tokens:
            return self._decode(decodes, context)
        # a context within 1 % and a past within 2 % of the one that was evaluated: attention is a part of a step
        key = (tokens, prompts, _rounded(past, 32), decodes, _rounded(context, 64))
        if key not in self.others:
            self.others[key] = float(self._exact(tokens, key[2], decodes, key[4], prompts))
        return self.others[key]

    def _decode(self, decodes: int, context: float) -> float:
        """Interpolate between the contexts at which times of steps are evaluated."""
        table = self.tables.get(decodes)
        if table is None:
            table = self.tables[decodes] = np.broadcast_to(
                self._exact(0, 0, decodes, CONTEXTS, 0), CONTEXTS.shape
            ).tolist()
        at = min(max(bisect_right(_CONTEXTS, context) - 1, 0), len(table) - 2)
        share: float = (context - _CONTEXTS[at]) / (_CONTEXTS[at + 1] - _CONTEXTS[at])
        return float(table[at] + share * (table[at + 1] - table[at]))

    def _exact(self, tokens: int, past: float, decodes: int, context: Any, prompts: int) -> Any:
        drafted, drafting = self.speculation.drafted, self.speculation.seconds if decodes else None
        more = drafting(decodes, context) if drafting is not None else 0.0
        queries = {"queries": drafted + 1} if drafted else {}
        return self.times.seconds(tokens, past, decodes, context, max(prompts, 1), **queries) + more


def _rounded(value: float, steps: int) -> float:
    """Round to a whole number, and that to one of so many steps from a number to twice it."""
    return round(value) if value < steps else float(round(2 ** (round(log2(value) * steps) / steps)))


# --- where requests come from -----------------------------------------------------------------------------------------


class _World:
    """Servers, the link between those that read and those that answer, and where requests go."""

    def __init__(self, plan: _Plan) -> None:
        simpy = _simpy()
        self.env, self.plan = simpy.Environment(), plan
        draw = np.random.default_rng([plan.seed, 1])
        self.answering = [self._server(plan.times, plan.policy, draw, self._end) for _ in range(plan.servers)]
        self.entry, self.link = self.answering, simpy.Resource(self.env, plan.servers)
        self.blocks: Any = None  # of the servers that answer, for requests that others read
        if plan.readers is not None:
            if isfinite(room := plan.policy.room * plan.servers):
                self.blocks = simpy.Container(self.env, room, room)
            self.entry = [self._server(*plan.readers, draw, self._send, hand_over=True) for _ in range(plan.reading)]

    def _server(self, times: Times, policy: Policy, draw: Any, leave: Callable[[_Job], None], **how: bool) -> _Server:
        server = _Server(self.env, _Clock(times, policy.speculation), policy, draw, leave, **how)
        server.prefixes.hold(self.plan.pinned)
        self.env.process(server.run())
        return server

    @property
    def servers(self) -> list[_Server]:
        return [*dict.fromkeys((*self.entry, *self.answering))]

    def submit(self, job: _Job) -> None:
        """Send a request to the server with the fewest; first it waits for blocks, where others read prompts."""
        if self.blocks is None:
            self._enter(job)
        else:
            self.env.process(self._when_there_are_blocks(job))

    def _enter(self, job: _Job) -> None:
        min(self.entry, key=lambda server: server.load).submit(job)

    def _when_there_are_blocks(self, job: _Job) -> Iterator[Any]:
        yield self.blocks.get(self._tokens(job))
        self._enter(job)

    def _tokens(self, job: _Job) -> int:
        """Tokens of the blocks that a request takes in the end."""
        return int(self.plan.policy.blocks(job.prompt + job.output)) * self.plan.policy.block

    def _send(self, job: _Job) -> None:
        """Move the cache of a prompt to a server that answers."""
        if job.produced >= job.output:
            self._end(job)
        else:
            self.env.process(self._transfer(job))

    def _transfer(self, job: _Job) -> Iterator[Any]:
        with self.link.request() as turn:
            yield turn
            yield self.env.timeout(self.plan.transfer(job.prompt))
        min(self.answering, key=lambda server: server.load).submit(job)

    def _end(self, job: _Job) -> None:
        job.done = self.env.now
        if self.blocks is not None:
            self.blocks.put(self._tokens(job))
        if job.finished is not None:
            job.finished.succeed()

    def open_loop(self, jobs: Sequence[_Job]) -> Iterator[Any]:
        """Send each request when it comes."""
        for job in jobs:
            if (wait := job.arrival + self.plan.before - self.env.now) > 0:
                yield self.env.timeout(wait)
            self.submit(job)

    def user(self, jobs: Iterator[_Job], until: float) -> Iterator[Any]:
        """Send a request as soon as the one before is answered."""
        for job in jobs:
            if self.env.now > until:
                return
            job.arrival, job.finished = self.env.now, self.env.event()
            if self.plan.before:
                yield self.env.timeout(self.plan.before)
            self.submit(job)
            yield job.finished


@dataclass(frozen=True)
class _Plan:
    """What is simulated; ``before`` is the time from a request's arrival until a server has it [s]."""

    times: Times
    policy: Policy
    seed: int
    before: float = 0.0
    servers: int = 1
    readers: tuple[Times, Policy] | None = None
    reading: int = 1
    transfer: Callable[[int], float] = lambda tokens: 0.0
    pinned: tuple[int, ...] = ()

    def run(self, jobs: list[_Job], users: int, until: float) -> tuple[dict[str, Floats], dict[str, Floats]]:
        """Run all requests, and return columns of requests and of steps."""
        world = _World(self)
        if users:
            shared = iter(jobs)
            for _ in range(users):
                world.env.process(world.user(shared, until))
        else:
            world.env.process(world.open_loop(jobs))
        world.env.run()
        return _columns([job for job in jobs if job.done >= 0]), _steps(world.servers)


def _simpy() -> Any:
    try:
        import simpy
    except ImportError:
        raise MissingExtra("a simulation needs the package simpy: pip install 'roofline[serve]'") from None
    return simpy


def _jobs(trace: RequestTrace, plan: _Plan) -> list[_Job]:
    ids = trace.blocks() if len(trace.ids) else repeat(plan.pinned, len(trace))
    columns = zip(trace.prompt.tolist(), trace.output.tolist(), ids, trace.arrival.tolist(), strict=True)
    return [_Job(number, *row) for number, row in enumerate(columns)]


def _columns(jobs: Sequence[_Job]) -> dict[str, Floats]:
    names = {"arrival_s": "arrival", "admitted_s": "admitted", "first_s": "first", "done_s": "done", "prompt": "prompt",
             "output": "output", "cached": "cached", "preempted": "preempted"}  # fmt: skip
    return {name: np.asarray([getattr(job, own) for job in jobs], float) for name, own in names.items()}


def _steps(servers: Sequence[_Server]) -> dict[str, Floats]:
    """Join the steps of all servers in the order of their beginnings."""
    joined = {name: np.concatenate([server.steps.columns[name] for server in servers]) for name in _Steps.names}
    joined["server"] = np.repeat(np.arange(len(servers)), [len(server.steps) for server in servers])
    order = np.argsort(joined["start_s"], kind="stable")
    return {name: np.asarray(column)[order] for name, column in joined.items()}


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


# --- what came out ----------------------------------------------------------------------------------------------------


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
        if what not in self.latencies or not 0 <= percent <= 100:
            raise UsageError(f"percentile({what!r}, {percent!r}): allowed: {', '.join(self.latencies)}, 0 to 100")
        values = self.latencies[what]
        values = values[np.isfinite(values)]
        return float(np.percentile(values, percent)) if values.size else nan

    def mean(self, what: str) -> float:
        """Return the mean of ``ttft_s``, ``tpot_s`` or ``latency_s`` [s]; NaN where no request has it."""
        values = self.latencies[what]
        return float(np.nanmean(values)) if np.isfinite(values).any() else nan

    @property
    def tokens_per_s(self) -> float:
        """New tokens a second."""
        return self._in_window("emitted") / (self.window[1] - self.window[0])

    @property
    def requests_per_s(self) -> float:
        """Answers that were completed a second."""
        done, (start, end) = self.requests["done_s"], self.window
        return float(np.count_nonzero((done > start) & (done <= end))) / (end - start)

    @property
    def good(self) -> float | None:
        """Share of the requests within both limits; ``None`` without limits."""
        if self.ttft is None and self.tpot is None:
            return None
        slow = np.nan_to_num(self.latencies["tpot_s"]) > (self.tpot if self.tpot is not None else inf)
        late = self.latencies["ttft_s"] > (self.ttft if self.ttft is not None else inf)
        return float(1 - (slow | late).mean())

    @property
    def goodput(self) -> float | None:
        """Answers a second within both limits; ``None`` without limits."""
        return None if self.good is None else self.good * self.requests_per_s

    def _in_window(self, name: str) -> float:
        ends = self.steps["start_s"] + self.steps["step_s"]
        return float(self.steps[name][(ends > self.window[0]) & (ends <= self.window[1])].sum())

    def timeline(self, points: int = LISTED) -> dict[str, Floats]:
        """Return means over equal spans of time: requests waiting and running, share of the cache reserved, tokens/s.

        Args:
            points: Spans.

        Returns:
            Columns ``time_s`` (the middle of each), ``waiting``, ``running``, ``cache``, ``tokens_per_s``.
        """
        steps, servers = self.steps, range(1 + int(self.steps["server"].max()))
        edges = np.linspace(0.0, float((steps["start_s"] + steps["step_s"]).max()), points + 1)
        names = {"waiting": "waiting", "running": "running", "cache": "cache_tokens", "tokens_per_s": "emitted"}
        sums = {
            name: np.sum([_by_span(steps, own, server, edges) for server in servers], axis=0)
            for name, own in names.items()
        }
        sums["cache"] = sums["cache"] / len(servers) / self.room if isfinite(self.room) else np.full(points, nan)
        return {"time_s": (edges[1:] + edges[:-1]) / 2, **sums}

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
        steps, line = self.steps, self.timeline()
        busy = float(steps["step_s"].sum())
        running = float((steps["running"] * steps["step_s"]).sum()) / busy
        return {
            "requests": int(self.measured.sum()), "steps": len(steps["step_s"]),
            "duration_s": float((steps["start_s"] + steps["step_s"]).max()),
            "tokens_per_s": self.tokens_per_s, "requests_per_s": self.requests_per_s,
            "ttft_limit_s": self.ttft, "tpot_limit_s": self.tpot,
            "good": self.good, "goodput": self.goodput, "running_mean": running,
            "waiting_mean": float((steps["waiting"] * steps["step_s"]).sum()) / busy,
            "waiting_most": float(steps["waiting"].max()),
            "cache_room_tokens": self.room if isfinite(self.room) else None,
            "cache_most_tokens": float(steps["cache_tokens"].max()),
            "cached_share": float(self.requests["cached"].sum() / self.requests["prompt"].sum()),
            "preempted": int(self.requests["preempted"].sum()),
            "timeline": {name: column.tolist() for name, column in line.items()},
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


# --- simulate ---------------------------------------------------------------------------------------------------------


def simulate(
    served: Service | Deployment | Times,
    *,
    prompt: int | None = None,
    new_tokens: int | None = None,
    concurrency: int | None = None,
    qps: float | None = None,
    trace: RequestTrace | str | os.PathLike[str] | None = None,
    requests: int | None = None,
    seconds: str | float | None = None,
    seed: int = 0,
    policy: Policy | None = None,
    servers: int = 1,
    ttft: str | float | None = None,
    tpot: str | float | None = None,
) -> Simulation:
    """Simulate a server step by step: users who ask again and again, requests at random, or a recorded trace.

    Users in a closed loop begin all at once; their first two requests do not count, nor does the last one, which is
    answered while others no longer come. Of requests at random the first tenth does not count.

    Args:
        served: From :func:`roofline.serving.serve`, whose requests, load (the last one), limits and drafts count where
            none are given, and on whose chips prompts are read; from :func:`roofline.serving.deployment`; or anything
            that says what a step takes.
        prompt: Tokens of every prompt.
        new_tokens: Tokens of every answer.
        concurrency: Users, each of whom sends a request as soon as the one before is answered.
        qps: Requests a second, which come independently of each other (a Poisson process); with a trace, its mean rate.
        trace: Of :func:`roofline.serving.read_requests`, or its file.
        requests: That count; 1000, or four for each user where that is more. Of a trace, the first of them.
        seconds: No request comes after this time [s], a number or text such as ``"60 s"``.
        seed: Of what is drawn.
        policy: How steps are made up; the deployment's by default.
        servers: Copies of the deployment; each request goes to the one with the fewest.
        ttft: Limit of the time to the first token [s].
        tpot: Limit of the mean time per further token [s].

    Returns:
        Times of every request and step, percentiles, throughput, goodput, the queue and the cache over time.

    Raises:
        UsageError: Neither users, nor a rate, nor a trace; or a size out of range.
        DoesNotFit: A request longer than the cache.
        MissingExtra: simpy is not installed: ``pip install 'roofline[serve]'``.

    Example:
        >>> import roofline as rl
        >>> served = rl.serving.deployment("llama-3-8b", "h100-sxm", chunk=2048)
        >>> run = rl.serving.simulate(served, prompt=1000, new_tokens=100, concurrency=8, requests=100)
        >>> run.mean("latency_s") > run.mean("ttft_s") > 0, run.requests_per_s > 1
        (True, True)
    """
    source = _source(*_asked(served, prompt, new_tokens, concurrency, qps, trace), requests, seconds, seed)
    plan, about = _planned(served, policy, source.trace, seed, whole_number("servers", servers, 1, 10_000))
    _check_fits(source.trace, plan.policy, about["model"])
    columns, steps = plan.run(_jobs(source.trace, plan), source.users, source.until)
    about = {**about, "sizes": source.sizes, "requests_from": source.about, "server": _server(plan)}
    limits = _limits(served, ttft, tpot)
    return Simulation(about, columns, steps, *source.counted(columns), plan.policy.room, *limits)


def _limits(served: Any, ttft: Any, tpot: Any) -> list[float | None]:
    own = (served.limits.ttft, served.limits.tpot) if isinstance(served, Service) else (None, None)
    pairs = zip(("ttft", "tpot"), (ttft, tpot), own, strict=True)
    return [usual if limit is None else parse(limit, "s", name) for name, limit, usual in pairs]


@dataclass(frozen=True)
class _Source:
    """Requests, and who sends them: ``users`` in a closed loop, or nobody where they come at their times."""

    trace: RequestTrace
    users: int
    first: int
    last: int
    about: dict[str, Any]
    until: float = inf

    @property
    def sizes(self) -> dict[str, int]:
        """Mean tokens of the prompts and of the answers."""
        return {"prompt": round(self.trace.prompt.mean()), "new_tokens": round(self.trace.output.mean())}

    def counted(self, columns: dict[str, Floats]) -> tuple[NDArray[np.bool_], tuple[float, float]]:
        """Tell which requests count, and between which times tokens do."""
        order = np.argsort(columns["arrival_s"], kind="stable")
        measured = np.zeros(len(order), dtype=bool)
        measured[order[self.first : len(order) - self.last]] = True
        arrival = columns["arrival_s"][order]
        # users come back in the same order, so that whole rounds of all of them are cut where the next one begins
        rounds = (len(order) - 1 - self.first) // self.users * self.users if self.users else 0
        start, end = float(arrival[self.first]), float(arrival[self.first + rounds])
        end = end if self.users else float(columns["done_s"].max())
        return measured, (start, end if end > start else float(columns["done_s"].max()))


def _source(
    prompt: int | None, new_tokens: int | None, concurrency: int | None, qps: float | None, trace: Any,
    spread: float, requests: int | None, seconds: str | float | None, seed: int,
) -> _Source:  # fmt: skip
    """Check what requests are asked for, and draw them."""
    if trace is not None:
        return _replayed(trace, prompt, new_tokens, concurrency, qps, requests, seconds)
    if prompt is None or new_tokens is None or (concurrency is None) == (qps is None):
        raise UsageError("simulate: give prompt and new_tokens with concurrency (users) or qps (requests a second), "
                         "or a trace; --prompt, --new-tokens, --concurrency, --qps, --trace")  # fmt: skip
    sizes = whole_number("prompt", prompt, 1, MAX_TOKENS), whole_number("new_tokens", new_tokens, 1, MAX_TOKENS)
    draw = np.random.default_rng([whole_number("seed", seed, 0), 0])
    about: dict[str, Any] = {"seed": seed} | ({"spread": spread} if spread else {})
    lengths = partial(_lengths, sizes, spread, draw)
    until = inf if seconds is None else finite_number("seconds", parse(seconds, "s", "seconds"), 0, above=True)
    if concurrency is not None:
        return _closed(lengths, whole_number("concurrency", concurrency, 1, 100_000), requests, until, about)
    rate = finite_number("qps", qps, 0, above=True)
    count = whole_number("requests", 1000 if requests is None else requests, 1, MAX_REQUESTS)
    first = ceil(WARM_UP * count)
    arrival = np.cumsum(draw.exponential(1 / rate, count + first))
    arrival = arrival[arrival <= until]
    if len(arrival) <= first:
        raise UsageError(f"seconds={seconds}: {len(arrival)} requests come in that time, too few to count; "
                         f"give at least {(first + 2) / rate:.3g} s")  # fmt: skip
    return _Source(made_requests(arrival, *lengths(len(arrival))), 0, first, 0, {**about, "rate_per_s": rate})


def _lengths(sizes: tuple[int, int], spread: float, draw: np.random.Generator, count: int) -> list[Any]:
    """Return tokens of prompts and of answers, of the same mean each, which differ by a share of the longest."""
    half = spread / (2 - spread)
    return [np.maximum(np.round(draw.uniform(1 - half, 1 + half, count) * size), 1).astype(np.int64) if half else size
            for size in sizes]  # fmt: skip


def _closed(
    lengths: Callable[[int], list[Any]], users: int, requests: int | None, until: float, about: dict[str, Any]
) -> _Source:  # fmt: skip
    """Requests of users; the first two of each and the last one do not count."""
    usual = MAX_USED if isfinite(until) else max(1000, 4 * users)
    count = whole_number("requests", usual if requests is None else requests, 1, MAX_USED)
    trace = made_requests(np.zeros(count + 3 * users), *lengths(count + 3 * users))
    return _Source(trace, users, 2 * users, users, {**about, "users": users}, until)


def _replayed(
    trace: Any, prompt: int | None, new_tokens: int | None, concurrency: int | None, qps: float | None,
    requests: int | None, seconds: str | float | None,
) -> _Source:  # fmt: skip
    for name, value in (("prompt", prompt), ("new_tokens", new_tokens), ("concurrency", concurrency)):
        if value is not None:
            raise UsageError(f"{name}={value}: a trace says itself how long its requests are and when they come")
    replay = trace if isinstance(trace, RequestTrace) else read_requests(trace, requests=requests)
    replay = replay if qps is None else replay.at_rate(qps)
    count = len(replay) if requests is None else whole_number("requests", requests, 1, MAX_REQUESTS)
    if seconds is not None:
        count = min(count, int(np.searchsorted(replay.arrival, parse(seconds, "s", "seconds"), side="right")))
    replay = replay.head(count)
    return _Source(replay, 0, 0, 0, {**replay.subject(), "rate_per_s": replay.qps})


def _asked(
    served: Any, prompt: int | None, new_tokens: int | None, concurrency: int | None, qps: float | None, trace: Any
) -> tuple[Any, Any, Any, Any, Any, float]:  # fmt: skip
    """Return what requests are asked for; of a service its own, where nothing else is said."""
    if isinstance(served, Service) and trace is None:
        prompt = int(served.work.prompt) if prompt is None else prompt
        new_tokens = int(served.work.new_tokens) if new_tokens is None else new_tokens
        if concurrency is None and qps is None:
            last = float(served.values[-1])
            concurrency, qps = (round(last), None) if served.load == "users" else (None, last)
    return prompt, new_tokens, concurrency, qps, trace, served.work.spread if isinstance(served, Service) else 0.0


def _planned(
    served: Any, policy: Policy | None, trace: RequestTrace, seed: int, servers: int
) -> tuple[_Plan, dict[str, Any]]:  # fmt: skip
    """Return what is simulated, and what it is: times and policy of a deployment, or times and a policy as they are."""
    one = served.deployment if isinstance(served, Service) else served
    if not isinstance(one, Deployment):
        if not callable(getattr(one, "seconds", None)):
            raise UsageError(f"simulate: expected a deployment of rl.serving.deployment, given {shown(one)}")
        return _Plan(one, replace(policy or Policy(), hashed=trace.block), seed, servers=servers), {"model": "steps"}
    check_positions(one.shown, {"C": int((trace.prompt + trace.output).max()) - 1})
    whole = 0 if len(trace.ids) else one.shared_prefix // one.block * one.block
    policy = policy or _policy(one, trace.prompt + trace.output, whole)
    policy = replace(policy, hashed=whole or trace.block)
    about = subject(one.shown, one.chip.name) | {"phase": "serving"}
    plan = _Plan(one.steps(), policy, seed, one.overhead.request, servers, pinned=(0,) if whole else ())
    if isinstance(served, Service):
        plan = _with_readers(replace(plan, policy=replace(policy, speculation=served.work.speculation)), served)
    return plan, about


def _with_readers(plan: _Plan, served: Service) -> _Plan:
    """Let others read the prompts, where a service has them do so."""
    apart = served.apart
    if apart is None:
        return plan
    reader = Policy(chunk=int(apart.chunk), hashed=plan.policy.hashed)
    return replace(
        plan, servers=apart.servers[1], reading=apart.servers[0], readers=(apart.reading, reader),
        transfer=lambda tokens: apart.transfer * tokens / served.work.prompt,
    )  # fmt: skip


def _policy(served: Deployment, lengths: Ints, prefix: int) -> Policy:
    """Return the policy of a deployment; its cache has room for whole requests where all are alike."""
    longest, room = int(lengths.max()), served.tokens_that_fit()
    if lengths.min() == longest:
        fit = float(served.sequences_that_fit(longest))
        room = fit * (-(-longest // served.block) * served.block - prefix) + prefix
    return Policy(served.budget, served.block, room, served.max_sequences, reserve=not served.evicts,
                  mixed=served.mixed)  # fmt: skip


def _check_fits(trace: RequestTrace, policy: Policy, title: str) -> None:
    longest = int((trace.prompt + trace.output).max())
    if policy.blocks(longest) * policy.block > policy.room:
        raise DoesNotFit(f"{title}: a request of {longest:,} tokens, and the cache has room for {policy.room:,.0f}; "
                         f"a smaller format of weights or cache, more devices, or shorter requests")  # fmt: skip


def _server(plan: _Plan) -> dict[str, Any]:
    policy = plan.policy
    return {"chunk": policy.chunk, "block": policy.block, "servers": plan.servers,
            "readers": plan.reading if plan.readers else 0, "mixed": policy.mixed, "reserve": policy.reserve,
            "drafted": policy.speculation.drafted, "accepted": policy.speculation.accepted}  # fmt: skip
