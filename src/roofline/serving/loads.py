"""What a benchmark of a server measures: times of requests that a number of users send, each the next at once.

A closed loop of ``users``, of whom ``n`` run; the others wait for blocks of the cache. A request brings ``r`` tokens of
prompt, read in ``k`` pieces, and ``D`` decode steps. Each of the others' prompts stalls it once:

    per token = decode + (n / groups - 1) / D * (mixed - decode)

where groups of attention data parallelism read a prompt each at the same time, and a decode step that verifies drafted
tokens counts as many times less as it yields tokens. A prompt waits for the rest of the step
that it finds, and behind others as in a queue of random arrivals and constant times (Pollaczek and Khinchine):

    first token = decode / 2 + rho / (2 (1 - rho)) * mixed + mixed

All users start at once: :data:`FIRST` of the requests are read in that wave. Where prompts have steps of their own and
all requests are of one length, each cycle is such a wave; lengths that differ by a share ``spread`` pull it apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.serving.deployment import Deployment
from roofline.serving.steady import PLAIN, Speculation

Floats = NDArray[np.float64]

#: Share of a benchmark's requests that come at once at its start: it sends ten for each user
#: (https://github.com/SemiAnalysisAI/InferenceX, ``--num-prompts $((CONC * 10))``).
FIRST = 0.1
#: Load of a queue at most.
BUSIEST = 0.95


@dataclass(frozen=True)
class Loads:
    """Requests of a benchmark; arrays that broadcast.

    Attributes:
        prompt: Tokens of a prompt, on average.
        new_tokens: Tokens that a request gets, on average.
        users: Requests in the system.
        spread: How much lengths differ, as a share of the longest.
    """

    prompt: Floats
    new_tokens: Floats
    users: Floats
    spread: Floats


@dataclass(frozen=True)
class Terms:
    """Times of the steps that loads are served by, without any overhead [s].

    Attributes:
        decode: Of a decode step.
        mixed: Of the steps that read one prompt of each group beside it, together.
        alone: Of those without the decoding sequences.
        batch: Of a prompt among as many as a step holds.
        running: Requests that run.
        pieces: Steps that a prompt takes.
        together: Prompts that a step holds.
        tokens: Tokens that a decode step yields each sequence.
    """

    decode: Floats
    mixed: Floats
    alone: Floats
    batch: Floats
    running: Floats
    pieces: Floats
    together: Floats
    tokens: Floats


@dataclass(frozen=True)
class Server:
    """A deployment of a model of so many equal layers, known from two that have fewer.

    All of its times and bytes are sums over layers, and the passes over a program take as long as it is deep.

    Attributes:
        short: With few layers.
        long: With some more.
        layers: Layers of the model.
        share: What is left to ``layers`` from ``short`` on, as a share of what ``long`` has more.
        speculation: Tokens that a module of one more layer drafts.
    """

    short: Deployment
    long: Deployment
    layers: int
    share: float
    speculation: Speculation = PLAIN

    def __call__(self, figure: Callable[[Deployment], Any]) -> Any:
        """Return a figure of the whole model."""
        few, more = figure(self.short), figure(self.long)
        return few + (more - few) * self.share

    @property
    def groups(self) -> int:
        """Groups that attend to sequences of their own."""
        return self.short.attention_dp

    @property
    def tokens(self) -> float:
        """Tokens of the cache, over all groups."""
        some = np.asarray([1024 * self.short.block])
        free = self.short.room - self(lambda served: float(served.memory().total))
        each = self(lambda served: float(served.cache_bytes(some)[0][0])) / some[0]
        return float(self.groups * max(free, 0.0) / max(each, 1e-9))


def terms(server: Server, loads: Loads, whole: bool) -> Terms:
    """Work out the steps of some loads.

    Args:
        server: What serves them.
        loads: Requests.
        whole: Whether blocks are kept for all tokens that a request will get, instead of those that it has.
    """
    groups, chunk, drafted = server.groups, server.short.chunk, server.speculation.drafted

    def time(tokens: Any, past: Any, n: Any, context: Any, prompts: Any = 1, queries: int = 1) -> Any:
        step = (tokens, past, n, context, prompts, queries)
        return server(lambda served: served.steps(exact=True).seconds(*step))

    prompt, new = loads.prompt, loads.new_tokens
    context = prompt + new / 2
    most = server.tokens / (prompt + new if whole else context)
    n = np.minimum(loads.users, np.maximum(most, 1))
    pieces = np.ceil(prompt / chunk)
    piece = prompt / pieces
    together = np.maximum(np.minimum(np.floor(chunk / piece), np.ceil(n / groups)), 1.0)
    mixed, alone = np.zeros_like(n), np.zeros_like(n)
    drafting = drafted * time(0, 0, n, context) / server.layers if drafted else 0.0
    for number in range(int(pieces.max())):
        there = number < pieces
        past = piece * number
        step = time(piece * groups, past, n, context, groups, queries=drafted + 1) + drafting
        mixed = mixed + there * step
        alone = alone + there * time(piece * groups, past, 0, 1, groups)
    batch = time(together * groups * piece, 0, 0, 1, together * groups) / together * pieces
    decode = time(0, 0, n, context, queries=drafted + 1) + drafting
    return Terms(decode, mixed, alone, batch, n, pieces, together, np.full_like(n, server.speculation.tokens))


@dataclass(frozen=True)
class Stack:
    """What a serving stack does, and adds to the time of its kernels.

    Attributes:
        mixed: Whether prompts are read in the steps that decode.
        whole: Whether blocks are kept for all tokens that a request will get.
        step: Time of each step beside its kernels, for each layer; negative where kernels are fused that are counted
            apart [s].
        sequence: Time of each step for each sequence that runs: its token's way out [s].
        request: Time before a request is read [s].
    """

    mixed: bool = True
    whole: bool = False
    step: float = 0.0
    sequence: float = 0.0
    request: float = 0.0


def seconds(stack: Stack, t: Terms, loads: Loads, layers: float, groups: int) -> tuple[Any, Any]:
    """Return the time to the first token and that of each further one [s]."""
    over = stack.step * layers + stack.sequence * t.running
    step = np.maximum(t.decode + over, t.decode / 2)  # fusing saves a part of a step
    decode = step / t.tokens
    alone = t.mixed if stack.mixed else t.alone
    read = np.maximum(alone + over * t.pieces, alone / 2)
    stall = np.maximum(read - step, 0.0) if stack.mixed else read
    batch = t.batch
    after, each = np.maximum(loads.new_tokens - 1, 1), t.running / groups
    waves = np.maximum(each / t.together, 1)
    wave, first_wave = each * batch, (waves + 1) / 2 * t.together * batch
    per_token = decode + np.maximum(each - 1, 0) / after * stall
    if not stack.mixed:
        synced = np.clip(1 - loads.spread * per_token * after / np.maximum(wave, 1e-9), 0, 1)
        in_turns = decode + np.maximum(wave - first_wave, 0) / after
        per_token = synced * in_turns + (1 - synced) * per_token
    life = per_token * after
    rho = np.minimum(np.maximum(each - 1, 0) * batch / life, BUSIEST)  # of the others
    first = step / 2 + rho / (2 * (1 - rho)) * read + read
    if not stack.mixed:
        first = synced * np.maximum(first_wave, read) + (1 - synced) * first
    first = (1 - FIRST) * first + FIRST * np.maximum(first_wave, read)
    waiting = np.maximum(loads.users / t.running - 1, 0) * (life + first)
    return first + waiting + stack.request, per_token
