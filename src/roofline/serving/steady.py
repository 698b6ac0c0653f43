"""Steady state of a server that batches continuously: closed forms of one policy, vectorised over its load.

The policy, which :mod:`roofline.serving.simulation` replays event by event:

1. The server runs one step after the other. A step has a budget of ``chunk`` tokens (times the groups of attention data
   parallelism and the stages of a pipeline, each of which has a budget of its own).
2. Sequences that decode come first: a token each, ``K + 1`` where ``K`` are drafted for them.
3. What is left of the budget goes to prompts in the order in which they came, as many tokens of each as there is room
   for, so that a step may end one prompt, hold others whole and begin a last one. (Not ``mixed``: a step with prompts
   holds no decoding sequence, and has precedence.)
4. A request is admitted, in order of arrival, when no more than ``running`` requests run with it: those whose prompts
   and all of whose new tokens fit the blocks of the cache, so that none is ever evicted (``GUARANTEED_NO_EVICT`` of
   TensorRT-LLM, https://nvidia.github.io/TensorRT-LLM/performance/performance-tuning-guide/useful-runtime-flags.html).
5. The step that reads the last token of a prompt yields its first new token; each later step yields one, or what is
   accepted. A sequence leaves at the end of the step of its last token, and its blocks are free for the next step.
6. Closed loop: ``users`` send a request each at once and the next one when the last token has come. Open loop: requests
   come at random at a rate.

That is how vLLM schedules (https://docs.vllm.ai/en/v0.10.0/configuration/optimization.html, "Chunked prefill").

Closed loop, with ``n`` running, prompts of ``r`` tokens that no cache holds, ``D`` decode steps a request and ``c``
tokens of prompts in a step: requests whose prompts end in the same step end in the same step, so that their successors'
prompts come together again. A request's life is ``k = ceil(r / c)`` steps of reading and ``D`` of decoding; the ``n``
prompts of that time take ``s`` mixed steps. Where ``s`` is less than ``k + D``, the others are plain decode steps:

    cycle = s * t(mixed) + (k + D - s) * t(decode)
    first token = k * t(mixed);  per token = (cycle - first token) / (new tokens - 1)

Else all steps are mixed and full, the cycle has as many as hold all tokens, ``n (r + D) / chunk``, and what is left of
it after ``D`` decode steps passes before the first token. Requests that find no blocks wait: by Little's law (1961,
"A Proof for the Queuing Formula L = lambda W") ``users = rate * (first token + (new tokens - 1) * per token)``.

Requests whose lengths differ by a share ``spread`` of the longest come apart: a prompt comes when another request ends,
together with ``(n - 1) / (spread * D)`` others in the first round and fewer in each later one. Each of the others'
prompts stalls a request once where it decodes, ``m`` of them in a step:

    (new tokens - 1) * per token = D * t(decode) + (n - 1) * share of a life * (t(mixed, m) - t(decode)) / m

and one that finds others before it waits as in a queue of constant times (Pollaczek and Khinchine, without vacations: a
step has just ended when its user asks again, unless the server adds to each request).

Open loop: a prompt in the queue takes ``S = t(full) * r / c``, and waits by the formula of Pollaczek and Khinchine with
the decode steps in between as vacations (Fuhrmann and Cooper 1985, "Stochastic Decompositions in the M/G/1 Queue with
Generalized Vacations"; Bertsekas and Gallager, Data Networks, 3.5.2):

    wait = rate * S^2 / (2 * (1 - rate * S)) + t(decode) / 2

Where a step holds several prompts, one waits for the rest of the step that it finds and is read in the next with all
that came meanwhile. Sequences that decode share the engine (:func:`_shared`); those that find no blocks wait as for as
many servers (Allen and Cunneen's approximation, Gross and Harris, Fundamentals of Queueing Theory, 5.1.5). It is stable
while ``rate * S < 1`` and the sequences that decode, ``rate * D * t``, fit the blocks.

Prompts and answers on different chips: ``x`` servers read prompts, ``y`` decode, and between them a cache is sent.
Throughput is the least of what the readers, the decoders' blocks and the users allow (asymptotic bounds, Lazowska et
al. 1984, Quantitative System Performance, 5.2), and whoever does not fit waits before the first token.

Speculative decoding (Leviathan et al. 2023, arXiv:2211.17192, equation 1): ``K`` drafted tokens, each accepted with
probability ``a``, yield ``(1 - a^(K+1)) / (1 - a)`` tokens a step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.ir.errors import UsageError
from roofline.serving.steps import StepTimes, Times

Floats = NDArray[np.float64]

#: Rounds in which the sequences beside a chunk are found, and requests of a first wave that are looked at.
ROUNDS, SAMPLES = 60, 64
#: Largest share of time that a queue may be busy for figures to be worked out.
BUSY = 1 - 1e-9
#: Requests that began together end within ``spread * D`` steps, and further apart in each round, as the square root of
#: how many there were; on average over a measurement of ten rounds.
WIDER = 1.9
#: Load at most of a queue in a closed loop, whose requests are too few to make it endless.
BUSIEST = 0.95
#: Passes in which prompts that come together, and wait for each other, are found; and what stands for nothing.
PASSES, TINY = 3, 1e-30
#: To what share the largest rate is found.
PRECISE = 1e-4


@dataclass(frozen=True)
class Speculation:
    """Drafted tokens that a step verifies.

    From :func:`roofline.serving.serve`, or ``Speculation(3, 0.8)``.

    Attributes:
        drafted: Tokens that are drafted for each sequence, K.
        accepted: Probability that one is accepted where those before it are.
        seconds: Time to draft them for so many sequences at a context [s]; ``None`` for no time at all.
    """

    drafted: int = 0
    accepted: float = 0.0
    seconds: Callable[[Any, Any], Floats] | None = None

    @property
    def tokens(self) -> float:
        """Tokens that a step yields on average.

        Example:
            >>> round(Speculation(5, 0.8).tokens, 2), Speculation().tokens
            (3.69, 1.0)
        """
        return float(sum(self.accepted**i for i in range(self.drafted + 1)))

    def step(self, steps: Times, tokens: Any, past: Any, decodes: Any, context: Any, prompts: Any = 1) -> Floats:
        """Return the time of a step that verifies what is drafted, and of drafting it [s].

        Args:
            steps: Times of steps.
            tokens: Tokens of prompts that it reads.
            past: Tokens of each prompt before them.
            decodes: Sequences that get tokens.
            context: Positions that each of them attends to, on average.
            prompts: Prompts that the tokens belong to.
        """
        seconds = steps.seconds(tokens, past, decodes, context, prompts, self.drafted + 1)
        if self.seconds is not None:
            seconds = seconds + np.where(np.asarray(decodes) > 0, self.seconds(decodes, context), 0.0)
        return np.asarray(seconds)


#: No token is drafted.
PLAIN = Speculation()


def speculation(spec: str) -> Speculation:
    """Read ``K:ACCEPT``: tokens drafted, and the probability that one is accepted.

    Raises:
        UsageError: It is no such pair.
    """
    count, _, share = str(spec).partition(":")
    try:
        drafted, accepted = int(count), float(share)
    except ValueError:
        drafted, accepted = 0, -1.0
    if not (1 <= drafted <= 64 and 0 <= accepted <= 1):
        raise UsageError(
            f"spec={str(spec)[:40]!r}: expected K:ACCEPT, such as 3:0.8: 1 to 64 tokens, a probability up to 1"
        )
    return Speculation(drafted, accepted)


@dataclass(frozen=True)
class Work:
    """Requests that are all alike, and what a server may do at a time.

    Attributes:
        prompt: Tokens of a prompt.
        new_tokens: Tokens that a request gets.
        chunk: Tokens of a step at most, of all groups and stages.
        running: Requests that run at a time at most.
        cached: First tokens of a prompt that the cache holds already.
        mixed: Whether prompts are read in the steps that decode.
        speculation: What is drafted.
        request_seconds: What the server adds to each request [s].
        spread: How much lengths differ, as a share of the longest: they lie evenly between it and ``1 - spread`` of it,
            and those of prompts and answers have nothing to do with each other.
        lanes: Groups and stages, each of which reads prompts of its own at the same time.
    """

    prompt: float
    new_tokens: float
    chunk: float
    running: float
    cached: float = 0.0
    mixed: bool = True
    speculation: Speculation = Speculation()
    request_seconds: float = 0.0
    spread: float = 0.0
    lanes: int = 1

    @property
    def reads(self) -> float:
        """Tokens of a prompt that are computed."""
        return max(self.prompt - self.cached, 1.0)

    @property
    def decode_steps(self) -> float:
        """Steps after the first token."""
        return (self.new_tokens - 1) / self.speculation.tokens

    @property
    def context(self) -> float:
        """Positions that a decode step attends to, on average."""
        return self.prompt + self.new_tokens / 2

    def room(self, decodes: Any) -> Floats:
        """Return tokens of prompts that a step has room for beside decoding sequences."""
        decoding = np.asarray(decodes, dtype=np.float64) * (self.speculation.drafted + 1) * self.mixed
        return np.asarray(np.maximum(self.chunk - decoding, 1.0))


@dataclass(frozen=True)
class Steady:
    """What a load comes to; arrays over users or rates. Times are infinite where a queue grows without end.

    Attributes:
        users: Requests that are in the system, waiting or running.
        running: Requests that run.
        decoding: Sequences in a decode step.
        first_token: Time to the first token [s].
        first_wave: That of the requests that all come at once, at the start of a closed loop [s].
        per_token: Time of each later token [s].
        rate: Requests in a second.
        mixed_share: Share of the steps that read prompts.
        mixed_step: Time of those [s].
        decode_step: Time of the others [s].
        prefill_bound: Whether every step is full of prompts.
    """

    users: Floats
    running: Floats
    decoding: Floats
    first_token: Floats
    first_wave: Floats
    per_token: Floats
    rate: Floats
    mixed_share: Floats
    mixed_step: Floats
    decode_step: Floats
    prefill_bound: NDArray[np.bool_]

    def over(self, requests: float) -> Floats:
        """Return the mean time to the first token where users who begin together send so many requests each [s].

        Args:
            requests: Of each user; the first is one of the first wave, the others are in the steady state.
        """
        return np.asarray((self.first_wave + (requests - 1) * self.first_token) / requests)


@dataclass(frozen=True)
class _Engine:
    """Times of the steps of some work."""

    steps: StepTimes
    work: Work

    def decode(self, decodes: Any) -> Floats:
        return self.work.speculation.step(self.steps, 0, 0, decodes, self.work.context)

    def mixed(self, tokens: Any, decodes: Any, prompts: Any) -> Floats:
        work = self.work
        prompts = np.maximum(prompts, 1.0)
        # A prompt that takes several steps finds on average half of what the others read.
        past = work.cached + np.maximum(work.reads - tokens / prompts, 0.0) / 2
        decodes = np.asarray(decodes) * work.mixed
        return work.speculation.step(self.steps, tokens, past, decodes, work.context, prompts)


def closed_loop(steps: StepTimes, work: Work, users: Any, waves: bool = True) -> Steady:
    """Work out what users come to who each send a request, and the next one when the last token has come.

    Args:
        steps: Seconds of the server's steps.
        work: Their requests, and what the server may do at a time.
        users: How many there are: a number or an array.
        waves: Whether the first wave is worked out; else it is as the steady state.

    Example:
        >>> import roofline as rl
        >>> steps = rl.serving.deployment("llama-3-8b", "h100-sxm").steps()
        >>> one = closed_loop(steps, Work(2000, 100, chunk=8192, running=100), 1)
        >>> bool(one.first_token == steps.prefill(2000)), float(one.running)
        (True, 1.0)
    """
    users = np.asarray(users, dtype=np.float64)
    engine, n = _Engine(steps, work), np.minimum(users, max(work.running, 1))
    wave = last = np.zeros_like(n)
    if waves or not work.mixed:
        wave, last = _first_wave(engine, n)
    if work.spread:
        state = _at_random(engine, n)
    else:
        state = _side_by_side(engine, n) if work.mixed else _in_turns(engine, n, wave, last)
    wave = wave if waves or not work.mixed else state.first_token
    cycle = state.first_token + state.per_token * max(work.new_tokens - 1, 1) + work.request_seconds
    # Those who find no blocks wait; by Little's law all users are somewhere.
    waiting = np.maximum(users / n - 1, 0.0) * cycle
    turns = np.floor((users - 1) / n)  # before the last of a first wave
    behind = (turns - (turns + 1) * turns / 2 * n / users) * cycle
    return replace(
        state, users=users, first_token=state.first_token + waiting + work.request_seconds,
        first_wave=wave + behind + work.request_seconds, rate=n / cycle,
    )  # fmt: skip


def _side_by_side(engine: _Engine, n: Floats) -> Steady:
    """Prompts in the steps that decode: some of the steps of a request's life, or all of them."""
    work, read, each = engine.work, engine.work.reads, engine.work.decode_steps
    own, together, steps = _mixed_steps(work, n)
    life = own + each
    full = n * (read + each * (work.speculation.drafted + 1)) / work.chunk
    bound = (steps > life) & (full > life)
    length, plain = np.where(bound, full, life), engine.decode(n)
    # Full steps, and one with the prompts that are left; where a prompt takes several, all are alike.
    whole = np.where(own > 1, steps, np.floor(n / together + 1e-9))
    rest = np.where(own > 1, 0.0, n - whole * together)
    reading = n * own / steps
    tokens, at_once = np.where(own > 1, n * read / steps, together * read), np.where(own > 1, reading, together)
    mixed = engine.mixed(tokens, n - np.where(own > 1, reading, together), at_once)
    left = np.where(rest > 0, engine.mixed(np.maximum(rest, 1) * read, n - rest, rest), 0.0)
    first = np.where(own > 1, own * mixed, (whole * together * mixed + rest * left) / n)
    spent = whole * mixed + left + (length - steps) * plain
    # All steps full: what is left of the cycle after its decode steps passes before the first token.
    decoding = n * each / length
    packed = engine.mixed(work.room(decoding), decoding, np.maximum(work.room(decoding) / read, 1.0))
    first, spent = np.where(bound, (length - each) * packed, first), np.where(bound, length * packed, spent)
    mixed, steps = np.where(bound, packed, mixed), np.where(bound, length, steps)
    per_token = (spent - first) / max(work.new_tokens - 1, 1)
    return Steady(n, n, n * each / length, first, first, per_token, n / spent, np.minimum(steps / length, 1.0), mixed,
                  plain, bound)  # fmt: skip


def _in_turns(engine: _Engine, n: Floats, wave: Floats, last: Floats) -> Steady:
    """Prompts in steps of their own, before any decoding: all requests of one length stay in step."""
    work, plain = engine.work, engine.decode(n)
    room = np.minimum(work.room(0.0), n * work.reads)
    per_token = plain * work.decode_steps / max(work.new_tokens - 1, 1)
    # A request's share of the time before the last of the wave is read, while nobody decodes, is in its first token or
    # after it: those read early wait for the others.
    per_token = per_token + (last - wave) / max(work.new_tokens - 1, 1)
    steps = np.ceil(n * work.reads / room)
    share = steps / (steps + work.decode_steps)
    return Steady(n, n, n, wave, wave, per_token, n / (last + plain * work.decode_steps), share,
                  engine.mixed(room, 0.0, room / work.reads), plain, np.zeros_like(n, dtype=bool))  # fmt: skip


def _at_random(engine: _Engine, n: Floats) -> Steady:
    """Requests of different lengths: a prompt comes whenever another request ends."""
    work, running = engine.work, n
    lanes = np.minimum(work.lanes, n)
    each, after = n / lanes, max(work.decode_steps, TINY)
    same = np.minimum(1 + (each - 1) / (work.spread * after * WIDER), each)  # of those that began together
    for _ in range(PASSES):
        room = work.room(running) / work.lanes
        own = np.ceil(work.reads / room)
        piece = work.reads / own
        most = np.maximum(np.minimum(np.floor(room / piece), each), 1.0)
        plain = engine.decode(np.maximum(running, 1.0))
        alone, packed = (own * engine.mixed(piece * many * lanes, running, many * lanes) for many in (1.0, most))
        usual = own * plain * work.mixed
        first, life = alone, after * plain
        for _ in range(ROUNDS):
            cycle = first + life
            many = np.clip(each / cycle * alone / own, same, each)  # prompts that come in a step
            batch = np.minimum(many, most)
            read = alone + (packed - alone) * (batch - 1) / np.maximum(most - 1, 1.0)
            more = np.maximum(read - usual, 0.0) / batch  # of each prompt, for those that decode
            others = (each - many) * life / cycle + (many - batch) / 2
            busy = np.minimum((each - many) / cycle * packed / most, BUSIEST)
            waits = busy / (2 * (1 - busy)) * read / batch + (plain / 2 if work.request_seconds else 0.0)
            life = (life + after * plain + others * more) / 2
            first = (first + (many / batch + 1) / 2 * read + waits) / 2
        running = n * life / (first + life)
    cycle, reading = first + life, each * own / batch
    share = np.minimum(reading / (after + reading * (not work.mixed)), 1.0)
    per_token = life / max(work.new_tokens - 1, 1)
    return Steady(n, n, running, first, first, per_token, n / cycle, share, read / own, plain, busy >= BUSIEST)


def _mixed_steps(work: Work, n: Floats) -> tuple[Floats, Floats, Floats]:
    """Return the steps that one prompt takes, prompts that a step holds, and the steps of all running requests'."""
    decoding = np.zeros_like(n)
    for _ in range(ROUNDS):
        room = work.room(decoding)
        own = np.ceil(work.reads / room)
        together = np.where(own > 1, room / work.reads, np.minimum(np.floor(room / work.reads), n))
        steps = np.maximum(np.where(own > 1, n / together, np.ceil(n / together - 1e-9)), own)
        decoding = (decoding + np.maximum(n * (1 - own / steps), 0.0)) / 2
    return own, together, steps


def _first_wave(engine: _Engine, n: Floats) -> tuple[Floats, Floats]:
    """Mean time to the first token of requests that all come at once, and that of the last of them [s]."""
    work, all_of = engine.work, n[..., None]
    place = np.append((np.arange(SAMPLES) + 0.5) / SAMPLES, 1.0)
    which = np.ceil(all_of * place)  # the first, the second, ... of all
    room = np.minimum(work.room(which / 2), all_of * work.reads)
    steps, every = np.ceil(which * work.reads / room - 1e-9), np.ceil(all_of * work.reads / room - 1e-9)
    rest = np.clip(all_of * work.reads - (every - 1) * room, 1.0, room)
    decoding = np.where(steps > 1, which / 2, 0.0)
    each = engine.mixed(room, decoding, np.maximum(room / work.reads, 1.0))
    last = engine.mixed(rest, decoding, np.maximum(rest / work.reads, 1.0))
    times = np.where(steps < every, steps * each, (steps - 1) * each + last)
    return np.asarray(times[..., :-1].mean(axis=-1)), np.asarray(times[..., -1])


def open_loop(steps: StepTimes, work: Work, rate: Any) -> Steady:
    """Work out what requests come to that arrive at random, at a mean rate.

    Args:
        steps: Seconds of the server's steps.
        work: The requests, and what the server may do at a time.
        rate: Requests in a second: a number or an array.

    Example:
        >>> import roofline as rl
        >>> steps = rl.serving.deployment("llama-3-8b", "h100-sxm").steps()
        >>> at = open_loop(steps, Work(2000, 100, chunk=8192, running=100), [0.1, 5, 100])
        >>> bool(at.first_token[0] < at.first_token[1]), float(at.first_token[2])
        (True, inf)
    """
    rate = np.asarray(rate, dtype=np.float64)
    server, often = _Server.of(_Engine(steps, work)), rate[..., None]
    first = waiting = np.zeros_like(rate)
    for _ in range(PASSES):
        # As many prompts come together as in a step; and those that wait when a prompt is read go on to delay it.
        state = server.at(often, np.clip(waiting, 1.0, None)[..., None], (rate * first)[..., None])
        waiting, first = rate * state.mean(state.step), state.mean(state.first)
    decodes, most = state.mean(server.decodes), server.decodes[-1]
    # Those that no blocks are free for: a queue of as many servers, half as long as for random lengths.
    beyond = state.share[..., -1] * state.load / np.maximum(1 - state.load, 1 - BUSY) ** 2 / 2
    stable = (state.load < BUSY) & (state.mean(state.busy) < BUSY)
    first = np.where(stable, first + beyond / np.maximum(rate, TINY) + work.request_seconds, np.inf)
    per_token = np.where(stable, decodes / np.maximum(rate * max(work.new_tokens - 1, 1), TINY), np.inf)
    users = rate * first + decodes
    reading = np.minimum(rate * state.mean(server.own) * state.mean(state.step), 1.0)
    return Steady(users, np.minimum(users, most), decodes, first, first, per_token, np.where(stable, rate, 0.0),
                  reading, state.mean(state.mixed), state.mean(server.plain), ~stable)  # fmt: skip


@dataclass(frozen=True)
class _Server:
    """Times of steps by how many sequences decode, 0 to the most; ``own`` steps read one prompt."""

    engine: _Engine
    decodes: Floats
    room: Floats
    own: Floats
    plain: Floats
    queued: Floats

    @staticmethod
    def of(engine: _Engine) -> _Server:
        work = engine.work
        d = np.arange(max(int(work.running), 1) + 1, dtype=np.float64)
        room = work.room(d)
        plain = np.where(d > 0, engine.decode(np.maximum(d, 1)), 0.0)
        full = engine.mixed(room, d, np.maximum(room / work.reads, 1.0))
        return _Server(engine, d, room, np.ceil(work.reads / room), plain, full * work.reads / room)

    def at(self, rate: Floats, together: Floats, ahead: Floats) -> _Open:
        """Return the states at a rate, where prompts are read so many together and find so many ahead of them."""
        work, read = self.engine.work, self.engine.work.reads
        shares = self.room >= 2 * read
        together = np.where(shares, np.minimum(together, np.maximum(self.room / read, 1.0)), 1.0)
        mixed = self.engine.mixed(np.minimum(read, self.room) * together, self.decodes, together)
        # What a prompt adds to the time of those that decode.
        more = self.own * (mixed - self.plain * work.mixed) / together
        each, busy = max(work.decode_steps, TINY), rate * self.queued
        step = (self.plain + ahead * more / each * (self.plain > 0)) / np.maximum(1 - rate * more, 1 - BUSY)
        share, load = _shared(rate * work.decode_steps * step[..., 1:] / self.decodes[1:])
        alone = (self.plain + rate * self.queued**2 / np.maximum(1 - busy, 1 - BUSY)) / 2 + self.own * mixed
        # A step as an arrival finds it is longer than the mean one: who came in one step are read in the next.
        long = step + rate * more**2 / np.maximum(1 - (rate * more) ** 2, 1 - BUSY)
        first = np.where(shares, long / 2 + self.plain + more * (1 + rate * long), alone)
        return _Open(share, load, step, mixed, first, busy)


@dataclass(frozen=True)
class _Open:
    """How likely so many sequences decode, and what holds then."""

    share: Floats
    load: Floats
    step: Floats
    mixed: Floats
    first: Floats
    busy: Floats

    def mean(self, value: Floats) -> Floats:
        return np.asarray((self.share * value).sum(axis=-1))


def _shared(load: Floats) -> tuple[Floats, Floats]:
    """Return how likely 0, 1, 2, ... sequences decode at a time, and the load with the most of them.

    They share the engine equally, whose pace depends on how many there are: of such a queue only the means matter,
    ``p(d) ~ load(1) * ... * load(d)`` (Kelly 1979, Reversibility and Stochastic Networks, 3.3: symmetric queues).
    """
    steps = np.cumsum(np.log(np.maximum(load, TINY)), axis=-1)
    logs = np.concatenate([np.zeros((*load.shape[:-1], 1)), steps], axis=-1)
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    tail = weights[..., -1] * load[..., -1] / np.maximum(1 - load[..., -1], 1 - BUSY)
    share = weights / (weights.sum(axis=-1) + tail)[..., None]
    share[..., -1] += 1 - share.sum(axis=-1)
    return share, load[..., -1]


@dataclass(frozen=True)
class Apart:
    """Servers that read prompts and others that decode, with the way of a cache between them.

    From :func:`roofline.serving.serve`.

    Attributes:
        reading: Seconds of the steps of those that read.
        chunk: Tokens of a step of theirs at most.
        servers: How many read, and how many decode.
        transfer: Time in which the cache of a request gets from one to the other [s].
    """

    reading: StepTimes
    chunk: float
    servers: tuple[int, int]
    transfer: float

    def reader(self, work: Work) -> Work:
        """Return what one of those that read does."""
        return replace(work, new_tokens=1, chunk=self.chunk, running=self.chunk, speculation=Speculation())

    def times(self, work: Work) -> tuple[float, float]:
        """Return the time of a prompt alone, and of one among many that fill the steps of all that read [s]."""
        reader = self.reader(work)
        engine, tokens = _Engine(self.reading, reader), min(reader.reads, reader.chunk)
        together = max(np.floor(reader.chunk / reader.reads), 1.0)
        own = np.ceil(reader.reads / reader.chunk)
        alone, packed = engine.mixed(tokens, 0.0, 1.0), engine.mixed(tokens * together, 0.0, together)
        return float(own * alone), float(own * packed / together / self.servers[0])


def closed_apart(steps: StepTimes, work: Work, users: Any, apart: Apart, waves: bool = True) -> Steady:
    """Work out what users in a closed loop come to where other servers read their prompts.

    Args:
        steps: Seconds of the steps of a server that decodes.
        work: The requests, and what such a server may do at a time.
        users: How many there are: a number or an array.
        apart: Those that read.
        waves: Whether the first wave is worked out; else it is as the steady state.
    """
    users = np.asarray(users, dtype=np.float64)
    engine, most, each = _Engine(steps, work), apart.servers[1] * max(work.running, 1), work.decode_steps
    alone, busy = apart.times(work)
    decodes = np.minimum(users, most)
    each_step = engine.decode(np.arange(max(int(np.ceil(work.running)), 1)) + 1.0)
    for _ in range(ROUNDS):
        at = np.ceil(decodes / apart.servers[1] - 1e-6).astype(int)
        step = each_step[np.clip(at, 1, each_step.size) - 1]
        other = alone + apart.transfer + work.request_seconds
        rate = np.minimum(np.minimum(1 / busy, users / (other + each * step)), most / np.maximum(each * step, TINY))
        decodes = (decodes + rate * each * step) / 2
    per_token = (each * step + apart.transfer) / max(work.new_tokens - 1, 1)
    first = users / rate - per_token * max(work.new_tokens - 1, 1)
    wave = first
    if waves:
        wave, _ = _first_wave(_Engine(apart.reading, apart.reader(work)), np.maximum(users / apart.servers[0], 1.0))
    running, none = rate * (other + each * step), np.zeros_like(users)
    return Steady(users, running, decodes, first, np.maximum(wave, first), per_token, rate, none, none + alone, step,
                  rate * busy > 1 - 1e-6)  # fmt: skip


def open_apart(steps: StepTimes, work: Work, rate: Any, apart: Apart) -> Steady:
    """Work out what requests at random come to where other servers read their prompts.

    Args:
        steps: Seconds of the steps of a server that decodes.
        work: The requests, and what such a server may do at a time.
        rate: Requests in a second, spread over all servers.
        apart: Those that read.
    """
    rate = np.asarray(rate, dtype=np.float64)
    # A server that reads has no other work: a queue for prompts that all take as long (Pollaczek and Khinchine).
    alone, each = apart.times(work)
    busy = rate * each
    wait = busy * each * apart.servers[0] / (2 * np.maximum(1 - busy, 1 - BUSY))
    share_of = rate / apart.servers[1]
    d = np.arange(max(int(work.running), 1) + 1, dtype=np.float64)
    plain = _Engine(steps, work).decode(np.maximum(d, 1.0))
    share, load = _shared(share_of[..., None] * work.decode_steps * plain[1:] / d[1:])
    decodes, stable = (share * d).sum(axis=-1), (load < BUSY) & (busy < BUSY)
    beyond = share[..., -1] * load / np.maximum(1 - load, 1 - BUSY) ** 2 / 2
    read = alone + wait + work.request_seconds
    first = np.where(stable, read + beyond / np.maximum(share_of, TINY), np.inf)
    answer = decodes / np.maximum(share_of, TINY) + apart.transfer
    per_token = np.where(stable, answer / max(work.new_tokens - 1, 1), np.inf)
    users, none = rate * (first + answer), np.zeros_like(rate)
    return Steady(users, users, decodes * apart.servers[1], first, first, per_token, np.where(stable, rate, 0.0), none,
                  none + alone, (share * plain).sum(axis=-1), ~stable)  # fmt: skip


def largest_rate(steps: StepTimes, work: Work, apart: Apart | None = None) -> float:
    """Return the requests in a second beyond which a queue grows without end.

    Args:
        steps: Seconds of the server's steps.
        work: The requests, and what the server may do at a time.
        apart: Servers that read the prompts, where others do.
    """

    def stable(rate: float) -> bool:
        state = open_loop(steps, work, rate) if apart is None else open_apart(steps, work, rate, apart)
        return bool(np.isfinite(state.first_token))

    reads = _Engine(steps if apart is None else apart.reading, replace(work, speculation=Speculation()))
    low, high = 0.0, float(1 / reads.mixed(work.reads, 0.0, 1.0))
    while stable(high):
        low, high = high, 2 * high
    while high - low > PRECISE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if stable(middle) else (low, middle)
    return low
