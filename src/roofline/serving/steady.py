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

Closed loop, with ``n`` running, ``D`` decode steps a request, and prompts that fill ``x`` steps each. All users begin
at once, so that prompts follow each other without a gap: one comes with the end of a step, in whose successor the one
before it may still be read, and takes ``1 + x`` steps in the mean. In the next round the first of them begin together
with a step, as many as it has room for: ``m = floor(f)`` of ``f = 1 / (x - ceil(x) + 1)`` prompts then take ``ceil(x)``
steps each and end before the next ones come. The first one that straddles two steps comes a step later from then on,
and the next group begins with it: every ``m / (f - m)`` prompts one straddles, and a round puts so many in order. With
the share ``g`` of those in order, on average over the rounds that count:

    first token = g * ceil(x) * t(group) + (1 - g) * (1 + x) * t(full)
    mixed steps = g * n / m * (m * (ceil(x) - 1) + 1) + (1 - g) * n * x
    cycle = mixed steps, and plain decode steps up to D and those before the first token

Where all tokens fill more steps, all are mixed and full, the cycle has ``n (r + D) / chunk`` of them, and what is left
of it after ``D`` decode steps passes before the first token. Requests that find no blocks wait: by Little's law (1961,
"A Proof for the Queuing Formula L = lambda W") ``users = rate * (first token + (new tokens - 1) * per token)``.

Requests that differ in their decode steps, by their lengths or by drafts that are accepted, come apart: after ``k``
answers the ends of those that began together have ``k`` times the variance of one, and are about normal, so that two of
them end in the same step with probability ``1 / (2 sqrt(pi) s)``, and in the end with that of any two steps of a life.
Prompts that come together are read together; each of the others' prompts stalls a request once where it decodes, ``m``
of them in a step:

    (new tokens - 1) * per token = D * t(decode) + (n - 1) * share of a life * (t(mixed, m) - t(decode)) / m

and one that finds others from earlier steps waits as in a queue of constant times (Pollaczek and Khinchine), counted in
steps. A step has just ended when its user asks again, unless the server adds to each request: then it comes in a step,
in a long one more likely, and waits ``mean(t^2) / (2 mean(t))`` for its end (Kleinrock 1975, Queueing Systems, 5.2).

Open loop: a prompt in the queue takes ``S = t(full) * r / c``, and waits by the formula of Pollaczek and Khinchine with
the decode steps in between as vacations (Fuhrmann and Cooper 1985, "Stochastic Decompositions in the M/G/1 Queue with
Generalized Vacations"; Bertsekas and Gallager, Data Networks, 3.5.2):

    wait = rate * S^2 / (2 * (1 - rate * S)) + t(decode) / 2

Where a step holds several prompts, one waits for the rest of the step that it finds, as likely one with prompts as they
have of the time, and is read in the next with all that came in it: after a step of time ``t`` with prompts, the next
holds ``rate * t`` of them in the mean, or with ``exp(-rate * t)`` none. Sequences that decode share the engine
(:func:`_shared`); those that find no blocks wait as for as many servers (Allen and Cunneen's approximation, Gross and
Harris, Fundamentals of Queueing Theory, 5.1.5). It is stable below the rate of a closed loop in which somebody always
waits to be admitted: a queue that never ends is that.

Sequences that fill a step leave no room for the prompts of others, so that fewer decode and the room is back. With
steps full of ``d`` sequences and the rest of prompts, as many come as leave, ``d / D = (chunk - d (K + 1)) / r``: more
than ``d = chunk * D / (r + (K + 1) D)`` never decode for long, however many run.

Prompts and answers on different chips: ``x`` servers read prompts, ``y`` decode, and between them a cache is sent. A
request goes to the server with the fewest, so that those of a kind are served from one queue, and share their blocks.
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
#: Rounds of a closed loop over which means are taken: of ten, without two in which the server fills.
COUNTED = np.arange(3, 11)
#: Passes in which prompts that come together, and wait for each other, are found; and what stands for nothing.
PASSES, TINY = 3, 1e-30


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

    @property
    def variance(self) -> float:
        """Variance of the tokens of a step."""
        return float(sum((2 * i + 1) * self.accepted**i for i in range(self.drafted + 1))) - self.tokens**2

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
        polls: Decode steps from one look for new requests to the next, where lengths differ.
        patience: Decode steps that a prompt waits for others that are read with it, where lengths differ.
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
    polls: float = 1.0
    patience: float = 0.0

    @property
    def reads(self) -> float:
        """Tokens of a prompt that are computed."""
        return max(self.prompt - self.cached, 1.0)

    @property
    def decode_steps(self) -> float:
        """Steps after the first token."""
        return (self.new_tokens - 1) / self.speculation.tokens

    @property
    def variance(self) -> float:
        """Variance of the decode steps of a request, from lengths and drafts that are accepted (renewals)."""
        width = self.spread / (1 - self.spread / 2) * self.decode_steps
        return width**2 / 12 + self.decode_steps * self.speculation.variance / self.speculation.tokens**2

    @property
    def context(self) -> float:
        """Positions that a decode step attends to, on average."""
        return self.prompt + self.new_tokens / 2

    def room(self, decodes: Any) -> Floats:
        """Return tokens of prompts that a step has room for beside decoding sequences.

        However many run, no more decode in the long run than full steps keep supplied: a sequence that decodes was read
        first, so of the tokens of a request, which fill the steps, those of its prompt have their share.
        """
        width = (self.speculation.drafted + 1) * self.mixed
        most = self.chunk * self.decode_steps / (self.reads + width * self.decode_steps)
        return np.asarray(self.chunk - np.minimum(np.asarray(decodes, dtype=np.float64), most) * width)


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
    if work.variance:
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


def in_copies(solve: Callable[[Any], Steady], load: Any, copies: int, users: bool = True) -> Steady:
    """Work out what a load comes to that copies of a server share: users as evenly as they go, requests at random.

    Args:
        solve: Work one copy out, for an array of its load.
        load: Users or requests in a second, of all copies.
        copies: How many there are.
        users: Whether the load is users.
    """
    if copies == 1:
        return solve(load)
    each = np.asarray(load, dtype=np.float64) / copies
    few = np.floor(each) if users else each
    states, more = [solve(np.maximum(few, 1.0) if users else each), solve(few + 1)], np.rint((each - few) * copies)
    shares = (copies - more) * (few > 0), more  # copies with so many users, and with one more

    def total(name: str, parts: Any) -> Floats:
        values = (n * np.where(n > 0, getattr(one, name), 0.0) for n, one in zip(parts, states, strict=True))
        return np.asarray(sum(values))

    answers = [n * np.maximum(one.rate, TINY) for n, one in zip(shares, states, strict=True)]
    sums = {name: total(name, shares) for name in ("users", "running", "decoding", "rate")}
    names = ("first_token", "first_wave", "per_token", "mixed_share", "mixed_step", "decode_step")
    return Steady(**sums, **{name: total(name, answers) / sum(answers) for name in names},
                  prefill_bound=np.where(more > 0, states[1].prefill_bound, states[0].prefill_bound))  # fmt: skip


def _side_by_side(engine: _Engine, n: Floats) -> Steady:
    """Prompts in the steps that decode: some of the steps of a request's life, or all of them."""
    work, read, each = engine.work, engine.work.reads, engine.work.decode_steps
    span = _span(work, n)
    own = np.ceil(span - 1e-9)
    fit = 1 / (span - own + 1)
    whole = np.floor(fit + 1e-9)
    size = np.minimum(whole, n)
    # Groups, of which the last may be smaller; and prompts one behind the other.
    groups, rest = np.floor(n / size + 1e-9), n % size
    long, step = _group(engine, n, own, size)
    short, left = _group(engine, n, own, rest)
    packed = engine.mixed(np.minimum(read / span, n * read), np.maximum(n - 1 - 1 / span, 0.0), 1 / span + 1)
    # A round puts in order what comes before the first prompt that straddles, where the steps suffice.
    apart, close = groups * long + short, n * span
    spare = np.clip((each + own - close) / np.maximum(apart - close, TINY), 0.0, 1.0)
    pace = size / (n * np.maximum(fit - whole, TINY))
    order = np.minimum(np.minimum(pace[..., None] * (COUNTED - 1), 1.0).mean(axis=-1), spare)

    def mean(grouped: Floats, straddling: Floats) -> Floats:
        return np.asarray(order * grouped + (1 - order) * straddling)

    steps, reading = mean(apart, close), mean(groups * long * step + short * left, close * packed)
    first = mean(own * (groups * size * step + rest * left) / n, (1 + span) * packed)
    plain = engine.decode(n)
    bound, length, full = _full(engine, n, each + mean(own, 1 + span))
    spent, mixed = reading + np.maximum(length - steps, 0.0) * plain, reading / steps
    first, spent = np.where(bound, (length - each) * full, first), np.where(bound, length * full, spent)
    mixed, steps = np.where(bound, full, mixed), np.where(bound, length, steps)
    first = first if each else spent  # a single token is the first
    per_token = (spent - first) / max(work.new_tokens - 1, 1)
    return Steady(n, n, n * each / length, first, first, per_token, n / spent, np.minimum(steps / length, 1.0), mixed,
                  plain, bound)  # fmt: skip


def _full(engine: _Engine, n: Floats, life: Floats) -> tuple[NDArray[np.bool_], Floats, Floats]:
    """Tell where all tokens fill more steps than a life has; return the steps of a cycle, and the time of a full one.

    What is left of a cycle of full steps after those in which a request decodes passes before its first token.
    """
    work = engine.work
    full = n * (work.reads + work.decode_steps * (work.speculation.drafted + 1)) / work.chunk
    length = np.maximum(full, life)
    decoding = n * work.decode_steps / length
    room = work.room(decoding)
    return full > life, length, engine.mixed(room, decoding, np.maximum(room / work.reads, 1.0))


def _span(work: Work, n: Floats) -> Floats:
    """Return the steps that a prompt fills, beside all who decode while one is read and the next one begun."""
    span = np.full_like(n, work.reads / work.chunk)
    for _ in range(ROUNDS):
        span = (span + work.reads / work.room(np.maximum(n - 1 - 1 / span, 0.0))) / 2
    return span


def _group(engine: _Engine, n: Floats, own: Floats, size: Floats) -> tuple[Floats, Floats]:
    """Return the steps of prompts in a group, where the last step of each is the first of the next; the time of one."""
    steps = size * (own - 1) + 1
    time = engine.mixed(np.maximum(size, 1.0) * engine.work.reads / steps, n - size * own / steps, size * own / steps)
    return np.where(size > 0, steps, 0.0), time


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
    for _ in range(PASSES):
        room = work.room(running) / work.lanes
        span = work.reads / room
        own, fit = np.ceil(span - 1e-9), np.clip(1 / span, 1.0, each)
        plain = engine.decode(np.maximum(running, 1.0))
        piece = work.reads / own
        alone, packed = (own * engine.mixed(piece * many * lanes, running, many * lanes) for many in (1.0, fit))
        came = each / (after + own)  # requests in a decode step
        gathered = (work.polls - 1 + work.patience) * came  # before somebody looks at them
        many = np.minimum(1 + (each - 1) * _meeting(work, each * span, after + own) + gathered, each)  # in a step
        batch = np.minimum(many, fit)
        read = alone + (packed - alone) * (batch - 1) / np.maximum(fit - 1, TINY)
        more = np.maximum(read - own * plain * work.mixed, 0.0) / batch  # of each prompt, for those that decode
        late = _late(each - many, span, own, after) * work.mixed
        first = (many / batch + 1) / 2 * read + late * packed / own
        with_it = work.patience * came  # that come while the first of them waits
        first += ((work.polls - 1) / 2 + work.patience * (1 + with_it / 2) / (1 + with_it)) * plain
        if work.request_seconds:  # it comes in the midst of a step, more likely of a long one
            share, long = np.minimum(each * own / batch / (after + own), 1.0), read / own
            first += (share * long**2 + (1 - share) * plain**2) / (share * long + (1 - share) * plain) / 2
        life = after * plain
        for _ in range(ROUNDS):
            others = (each - many) * life / (first + life) + (many - batch) / 2
            life = (life + after * plain + others * more) / 2
        running = n * life / (first + life)
    bound, length, full = _full(engine, n, after + own)
    bound &= work.mixed
    first, life = np.where(bound, (length - after) * full, first), np.where(bound, after * full, life)
    cycle, reading = first + life, each * own / batch
    share = np.minimum(reading / (after + reading * (not work.mixed)), 1.0)
    per_token = life / max(work.new_tokens - 1, 1)
    return Steady(n, n, running, first, first, per_token, n / cycle, share, read / own, plain, bound)


def _late(others: Floats, span: Floats, own: Floats, after: float) -> Floats:
    """Return the steps that a prompt waits for those that came in earlier steps: as many as make the others so rare.

    All take as long (Pollaczek and Khinchine); half of those that come in the same step are before it, and no wait.
    """
    low, high = np.zeros_like(span), others * span + own
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        busy = others * span / (after + own + middle)
        ahead = (busy / np.maximum(1 - busy, TINY) - busy * span / own) / 2 * span
        low, high = np.where(ahead > middle, middle, low), np.where(ahead > middle, high, middle)
    return low


def _meeting(work: Work, wave: Floats, cycle: Floats) -> Floats:
    """Return how likely a request ends in the step of another one, on average over the rounds that count.

    Args:
        work: The requests.
        wave: Steps over which the first prompts are read, all of which come at once.
        cycle: Steps of a request's life, any of which is as likely in the end.
    """
    variance = (COUNTED - 1) * work.variance + wave[..., None] ** 2 / 12
    return np.asarray(np.clip(0.5 / np.sqrt(np.pi * variance), 1 / cycle[..., None], 1.0).mean(axis=-1))


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
    engine = _Engine(steps, work)
    server, often, load = _Server.of(engine), rate[..., None], rate / _saturated(engine)
    first, together = np.zeros_like(rate), np.ones_like(rate)
    for _ in range(PASSES):
        # Those that wait when a prompt is read go on to delay it.
        rest = (each[..., None] for each in (np.minimum(load, BUSY), together, rate * first))
        state = server.at(often, *rest)
        first = state.mean(state.first)
        # Prompts come together that came in one step: of the step with prompts before, else of one without.
        came, few = (np.maximum(rate * state.mean(each), TINY) for each in (state.mixed, server.plain))
        together = came + np.exp(-came) * few / -np.expm1(-few)
    decodes, most = state.mean(server.decodes), server.decodes[-1]
    # Those that no blocks are free for: a queue of as many servers, half as long as for random lengths.
    beyond = state.share[..., -1] * load / np.maximum(1 - load, 1 - BUSY) / 2
    stable = load < BUSY
    first = np.where(stable, first + beyond / np.maximum(rate, TINY) + work.request_seconds, np.inf)
    per_token = np.where(stable, decodes / np.maximum(rate * max(work.new_tokens - 1, 1), TINY), np.inf)
    users = rate * first + decodes
    reading = np.minimum(rate * state.mean(server.own) * state.mean(state.step), 1.0)
    return Steady(users, np.minimum(users, most), decodes, first, first, per_token, np.where(stable, rate, 0.0),
                  reading, state.mean(state.mixed), state.mean(server.plain), ~stable)  # fmt: skip


def _saturated(engine: _Engine) -> float:
    """Return the most requests in a second: those of a closed loop, where another one always waits to be admitted."""
    running = max(engine.work.running, 1)
    users = np.append(2.0 ** np.arange(np.ceil(np.log2(running))), running)
    return float(closed_loop(engine.steps, engine.work, users, waves=False).rate.max())


@dataclass(frozen=True)
class _Server:
    """Times of steps by how many sequences decode, 0 to the most; ``own`` read one ``alone``, ``full`` hold most."""

    engine: _Engine
    decodes: Floats
    room: Floats
    own: Floats
    plain: Floats
    alone: Floats
    full: Floats

    @staticmethod
    def of(engine: _Engine) -> _Server:
        work = engine.work
        d = np.arange(max(int(work.running), 1) + 1, dtype=np.float64)
        room = work.room(d)
        own = np.ceil(work.reads / room)
        plain = np.where(d > 0, engine.decode(np.maximum(d, 1)), 0.0)
        alone, full = engine.mixed(work.reads / own, d, 1.0), engine.mixed(room, d, np.maximum(room / work.reads, 1.0))
        return _Server(engine, d, room, own, plain, alone, full)

    def at(self, rate: Floats, load: Floats, together: Floats, ahead: Floats) -> _Open:
        """Return the states at a rate, where prompts are read so many together and find so many ahead of them.

        No queue is busier than the server at that load, and no step is longer than a full one.
        """
        work, read = self.engine.work, self.engine.work.reads
        shares, most = self.room >= 2 * read, np.maximum(self.room / read, 1.0)
        together = np.where(shares, np.minimum(together, most), 1.0)
        further = (self.full - self.alone) / np.maximum(most - 1, TINY)
        mixed = self.alone + further * (together - 1)
        # What a prompt adds to the time of those that decode.
        more = self.own * (mixed - self.plain * work.mixed) / together
        each, queued = max(work.decode_steps, TINY), self.full * read / self.room
        added, busy = np.minimum(rate * more, np.where(shares, BUSY, load)), np.minimum(rate * queued, load)
        step = (self.plain + ahead * more / each * (self.plain > 0)) / (1 - added)
        step = np.minimum(step, self.full) if work.mixed else step
        share = _shared(rate * work.decode_steps * step[..., 1:] / self.decodes[1:], load[..., 0])
        wait = _queue(busy, np.where(shares, most, 1.0)) * queued
        # An arrival meets a step, one with prompts for their part of the time, and is read with all that came in it;
        # it waits for the end of that step at least, and no less than if a place were free as soon as a prompt is read.
        reading = np.minimum(rate * mixed / together, 1.0)
        current = reading * mixed + (1 - reading) * self.plain
        shared = np.maximum(wait, current / 2) + self.alone + further * np.minimum(rate * current, most - 1)
        first = np.where(shares, shared, wait + self.plain / 2 + self.own * mixed)
        return _Open(share, step, mixed, first)


@dataclass(frozen=True)
class _Open:
    """How likely so many sequences decode, and what holds then."""

    share: Floats
    step: Floats
    mixed: Floats
    first: Floats

    def mean(self, value: Floats) -> Floats:
        return np.asarray((self.share * value).sum(axis=-1))


def _shared(load: Floats, most: Floats) -> Floats:
    """Return how likely 0, 1, 2, ... sequences decode at a time, where the most of them keep a server so busy.

    They share the engine equally, whose pace depends on how many there are: of such a queue only the means matter,
    ``p(d) ~ load(1) * ... * load(d)`` (Kelly 1979, Reversibility and Stochastic Networks, 3.3: symmetric queues).
    """
    steps = np.cumsum(np.log(np.maximum(load, TINY)), axis=-1)
    logs = np.concatenate([np.zeros((*load.shape[:-1], 1)), steps], axis=-1)
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    weights[..., -1] /= 1 - most  # and those that wait for a place
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


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
    rate, servers = np.asarray(rate, dtype=np.float64), apart.servers[1]
    # Those that read have no other work: one queue for prompts that all take as long.
    alone, each = apart.times(work)
    busy = rate * each
    wait = _queue(busy, apart.servers[0]) * each
    d = np.arange(max(int(work.running * servers), 1) + 1, dtype=np.float64)
    plain = _Engine(steps, work).decode(np.maximum(np.ceil(d / servers), 1.0))
    loads = rate[..., None] * work.decode_steps * plain[1:] / d[1:]
    load = loads[..., -1]
    share = _shared(loads, np.minimum(load, BUSY))
    decodes, stable = (share * d).sum(axis=-1), (load < BUSY) & (busy < BUSY)
    beyond = share[..., -1] * load / np.maximum(1 - load, 1 - BUSY) / 2
    first = np.where(stable, alone + wait + work.request_seconds + beyond / np.maximum(rate, TINY), np.inf)
    answer = decodes / np.maximum(rate, TINY) + apart.transfer
    per_token = np.where(stable, answer / max(work.new_tokens - 1, 1), np.inf)
    users, none = rate * (first + answer), np.zeros_like(rate)
    return Steady(users, users, decodes, first, first, per_token, np.where(stable, rate, 0.0), none,
                  none + alone, (share * plain).sum(axis=-1), ~stable)  # fmt: skip


def _queue(busy: Floats, servers: Any) -> Floats:
    """Return the mean wait for one of some servers, in the time between requests that all of them can take.

    Half of that for random times, where all take as long (Sakasegawa 1977, "An approximation formula L_q = alpha
    rho^beta / (1 - rho)"; Gross and Harris, Fundamentals of Queueing Theory, 5.1.5); Pollaczek and Khinchine's of one.
    """
    busy = np.minimum(busy, BUSY)
    return np.asarray(busy ** (np.sqrt(2 * servers + 2) - 1) / (1 - busy) / 2)


def largest_rate(steps: StepTimes, work: Work, apart: Apart | None = None) -> float:
    """Return the requests in a second beyond which a queue grows without end.

    Args:
        steps: Seconds of the server's steps.
        work: The requests, and what the server may do at a time.
        apart: Servers that read the prompts, where others do.
    """
    if apart is None:
        return _saturated(_Engine(steps, work))
    most = max(work.running, 1)
    decoding = work.decode_steps * float(_Engine(steps, work).decode(most)) / (most * apart.servers[1])
    return float(1 / max(apart.times(work)[1], decoding))
