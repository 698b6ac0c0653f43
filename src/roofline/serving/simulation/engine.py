"""One server: requests that wait, that are read and that are answered, one engine step after the other.

The policy is that of :mod:`roofline.serving.steady`. A step adds a token to every sequence that is being answered, and
reads prompts with what is left of the budget of tokens, first come, first served, in chunks (Sarathi-Serve, Agrawal et
al. 2024, arXiv:2403.02310). A request is admitted when the paged cache has blocks for its prompt and all its new
tokens. Beyond the closed forms: without that reserve it is admitted with blocks for its prompt; when there are none for
the next tokens, the request that was admitted last gives its blocks back and is read again later, with the tokens that
it has (recomputation, Kwon et al. 2023, arXiv:2309.06180, section 4.5). Prompts that begin with blocks of an earlier
one read the rest only; blocks that nobody uses stay until others need their room, the least recent first.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import inf, isfinite, nan
from typing import Any

import numpy as np

from roofline.ir.errors import UsageError
from roofline.serving.prefix_cache import PrefixCache
from roofline.serving.steady import PLAIN, Speculation

#: The time of a step [s] by tokens of prompts, their past, sequences that decode, their context, and prompts.
Clock = Callable[[int, float, int, float, int], float]
#: Steps of a server that are simulated at most.
MAX_STEPS = 5_000_000
#: What is recorded of each step.
COLUMNS = ("start_s", "step_s", "decodes", "prefill_tokens", "emitted", "waiting", "running", "cache_tokens")


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
    speculation: Speculation = PLAIN
    hashed: int = 512
    reserve: bool = True
    mixed: bool = True

    def blocks(self, tokens: int) -> int:
        """Return the blocks that tokens lie in."""
        return -(-tokens // self.block)


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way; ``target`` tokens are to be read before the next token comes, ``read`` of them are."""

    prompt: int
    output: int
    ids: Sequence[int]
    arrival_s: float
    admitted_s: float = nan
    first_s: float = nan
    done_s: float = nan
    target: int = 0
    read: int = 0
    produced: int = 0
    shared: int = 0  # ids of blocks that it holds together with others
    own: int = 0  # blocks of its own while it is read
    cached: int = 0
    preempted: int = 0
    order: int = 0
    left: Any = None  # the event that its server is done with it


class _Answers:
    """Requests that are answered, with columns of positions in their cache, tokens to come, positions that they share.

    The last one takes the place of one that leaves, so that the columns have no gaps.
    """

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.columns = np.zeros((3, 0))

    def add(self, job: Job, shared: int) -> None:
        self.columns = np.column_stack([self.columns, (job.target, job.output - job.produced, shared)])
        self.jobs.append(job)

    def remove(self, at: int) -> Job:
        """Take one off, and return it with the tokens that it has got."""
        job = self.jobs[at]
        job.produced = job.output - round(self.columns[1, at])
        self.jobs[at], self.columns[:, at] = self.jobs[-1], self.columns[:, -1]
        self.jobs.pop()
        self.columns = self.columns[:, :-1]
        return job

    def blocks(self, size: int, further: int) -> float:
        """Return blocks that they hold alone, once each has up to ``further`` positions more."""
        positions, left, shared = self.columns
        return float(np.ceil((positions - shared + np.minimum(left, further)) / size).sum())

    def advance(self, gain: Any) -> tuple[float, list[Job]]:
        """Give each its tokens; return how many come, and take those off that are complete."""
        positions, left, _ = self.columns
        gain = np.minimum(gain, left)
        left -= gain
        positions += gain
        return float(gain.sum()), [self.remove(at) for at in np.flatnonzero(left <= 0)[::-1].tolist()]


class Server:
    """One engine, as a process of a simulation; ``hand_over`` lets requests leave with their first token."""

    def __init__(self, env: Any, times: Clock, policy: Policy, draw: np.random.Generator, hand_over: bool) -> None:
        self.env, self.times, self.policy, self.draw, self.hand_over = env, times, policy, draw, hand_over
        self.most = 1 + policy.speculation.drafted  # tokens that an answer may get in a step
        self.prefixes, self.answers, self.idle = PrefixCache(), _Answers(), env.event()
        self.waiting: deque[Job] = deque()
        self.reading: list[Job] = []
        self.held = self.order = 0  # blocks of requests that are read, or reserved; requests admitted so far
        self.steps = array("d")  # a row of COLUMNS for each

    @property
    def running(self) -> int:
        """Requests that are read or answered."""
        return len(self.reading) + len(self.answers.jobs)

    def submit(self, job: Job) -> Any:
        """Let a request wait for its turn, and return the event that it leaves."""
        job.target, job.left = job.target or job.prompt, self.env.event()
        self.waiting.append(job)
        if not self.idle.triggered:
            self.idle.succeed()
        return job.left

    def run(self) -> Iterator[Any]:
        """Run one step after the other."""
        while True:
            while self.answers.jobs and self._cache() > self.policy.room:
                self._preempt(max((*self.reading, *self.answers.jobs), key=lambda job: job.order))
            pieces = self._pieces()
            if not (pieces or self.answers.jobs):
                self.idle = self.env.event()
                yield self.idle
                continue
            decodes = len(self.answers.jobs) if self.policy.mixed or not pieces else 0
            tokens = sum(size for _, size in pieces)
            start, seconds, cache = self.env.now, self._seconds(pieces, tokens, decodes), self._cache()
            yield self.env.timeout(seconds)
            waiting, running = len(self.waiting), self.running
            emitted = self._complete(pieces, decodes)
            self.steps.extend((start, seconds, decodes, tokens, emitted, waiting, running, cache))
            if len(self.steps) > MAX_STEPS * len(COLUMNS):
                raise UsageError(f"more than {MAX_STEPS:,} steps; simulate fewer requests or a shorter time")
            yield self.env.timeout(0)  # those whose last token has come may ask again before the next step

    # --- memory ---

    def _cache(self, further: float = 0.0) -> float:
        """Return tokens of the blocks that are in use after the next step, and some blocks more."""
        policy = self.policy
        # blocks that were reserved for all tokens are held from the admission on
        alone = 0.0 if policy.reserve else self.answers.blocks(policy.block, self.most)
        shared = len(self.prefixes.held) * policy.hashed / policy.block
        return (further + (alone + self.held + shared)) * policy.block

    def _fits(self, blocks: int) -> bool:
        """Tell whether some blocks more fit, and drop idle prefixes to make them fit."""
        free = self.policy.room - self._cache(blocks)
        if free >= 0 and isfinite(free):
            self.prefixes.evict(int(free // self.policy.hashed))
        return free >= 0

    def _preempt(self, job: Job) -> None:
        """Take the blocks of a request; it waits to be read again."""
        if job in self.reading:
            self.reading.remove(job)
        else:
            self.answers.remove(self.answers.jobs.index(job))
        self._release(job)
        job.target, job.read, job.preempted = job.prompt + job.produced, 0, job.preempted + 1
        self.waiting.appendleft(job)

    def _release(self, job: Job) -> None:
        self._give(job, job.own)
        self.prefixes.release(job.ids[: job.shared])
        job.shared = 0

    def _give(self, job: Job, blocks: int) -> None:
        """Give blocks back that a request holds alone."""
        blocks = min(blocks, job.own)
        self.held -= blocks
        job.own -= blocks

    # --- a step ---

    def _pieces(self) -> list[tuple[Job, int]]:
        """Choose how much is read of which prompts."""
        budget = self.policy.chunk - len(self.answers.jobs) * self.most * self.policy.mixed
        prompts, pieces = self._prompts(), []
        while budget > 0 and (job := next(prompts, None)):
            if size := min(budget, job.target - job.read):
                pieces.append((job, size))
                budget -= size
        return pieces

    def _prompts(self) -> Iterator[Job]:
        """Yield those that are begun, then admit one after the other."""
        yield from tuple(self.reading)
        while self.waiting and self.running < self.policy.sequences and self._admit(self.waiting[0]):
            yield self.waiting.popleft()

    def _admit(self, job: Job) -> bool:
        """Reserve the blocks of a prompt, those that are there from others apart; false where there is no room."""
        policy, elsewhere = self.policy, job.read == job.target
        shared = 0 if elsewhere else self.prefixes.leading(job.ids)
        shared = min(shared, (job.target - 1) // policy.hashed)  # one token is always computed, for its output
        self.prefixes.hold(job.ids[:shared])
        length = job.prompt + job.output if policy.reserve else job.target
        own = policy.blocks(length - shared * policy.hashed)
        if not self._fits(own):
            self.prefixes.release(job.ids[:shared])
            return False
        self.held, self.order = self.held + own, self.order + 1
        job.shared, job.own, job.order = shared, own, self.order
        job.read = job.target if elsewhere else shared * policy.hashed
        if not job.admitted_s >= 0:
            job.admitted_s, job.cached = self.env.now, shared * policy.hashed
        if elsewhere:
            self._answer(job)
        else:
            self.reading.append(job)
        return True

    def _seconds(self, pieces: list[tuple[Job, int]], tokens: int, decodes: int) -> float:
        # equal shares that begin at this position attend to as many pairs as the pieces do
        pairs, prompts = sum(size * (job.read + size / 2) for job, size in pieces), len(pieces)
        past = max(pairs / tokens - tokens / prompts / 2, 0.0) if tokens else 0.0
        context = float(self.answers.columns[0].mean()) + 1 if decodes else 1.0
        return self.times(tokens, past, decodes, context, prompts)

    def _complete(self, pieces: list[tuple[Job, int]], decodes: int) -> float:
        """Take in what a step has done; return the tokens that came."""
        emitted, done = self.answers.advance(self._accepted(decodes)) if decodes else (0.0, [])
        for job in done:
            self._finish(job)
        for job, size in pieces:
            job.read += size
            if job.read == job.target:
                emitted += 1
                self.reading.remove(job)
                self._first_token(job)
        return emitted

    def _accepted(self, n: int) -> Any:
        """Draw the tokens that each answer gets: one, and drafts up to the first wrong one."""
        drafted, accepted = self.policy.speculation.drafted, self.policy.speculation.accepted
        if not drafted:
            return 1.0
        right = self.draw.random((n, drafted)) < accepted
        return 1.0 + np.logical_and.accumulate(right, axis=1).sum(axis=1)

    def _first_token(self, job: Job) -> None:
        """Take in a prompt that is read: its blocks can be shared from now on, and it has its next token."""
        job.produced += 1
        if not job.first_s >= 0:
            job.first_s = self.env.now
        whole = min(len(job.ids), job.prompt // self.policy.hashed)
        if whole > job.shared:
            self.prefixes.hold(job.ids[job.shared : whole])
            self._give(job, (whole - job.shared) * self.policy.hashed // self.policy.block)
            job.shared = whole
        if job.produced >= job.output or self.hand_over:
            self._finish(job)
        else:
            self._answer(job)

    def _answer(self, job: Job) -> None:
        if not self.policy.reserve:
            self._give(job, job.own)
        self.answers.add(job, job.shared * self.policy.hashed)

    def _finish(self, job: Job) -> None:
        self._release(job)
        job.left.succeed()
