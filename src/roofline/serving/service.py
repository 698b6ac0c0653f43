"""What a server gives its users, over the load: times, throughput, cost, and what bounds them.

The steady state of :mod:`roofline.serving.steady` for a deployment, in a closed loop of users or with random arrivals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.analysis.estimates import estimate
from roofline.analysis.remedies import FORMATS, SHARED, among, does_not_fit, remedies
from roofline.frontends.source import Program
from roofline.hardware.library import AnyChip
from roofline.ir.errors import UsageError
from roofline.ir.numbers import finite_number, whole_number
from roofline.ir.report import Report, subject
from roofline.ir.units import format_si, parse
from roofline.ir.units import limit as most_allowed
from roofline.serving.backends import per_token_range
from roofline.serving.deployment import BLOCK, Deployment, Overhead, copies, deployment, transfer_seconds
from roofline.serving.steady import (
    Apart,
    Speculation,
    Steady,
    Work,
    closed_apart,
    closed_loop,
    in_copies,
    largest_rate,
    open_apart,
    open_loop,
    speculation,
)

Floats = NDArray[np.float64]

#: Way of a cache from the chips that read prompts to those that decode, each its share: a network port of 400 Gb/s
#: for each GPU, https://docs.nvidia.com/dgx/dgxh100-user-guide/introduction-to-dgxh100.html.
LINK = 50e9
#: What the figures of a service leave out.
NOT_MODELLED = (
    "requests that differ in length, unless spread is given: a simulation takes any",
    "time of the server between steps, unless a backend or an overhead is given",
)
#: Points of a load at most.
MOST_POINTS = 10_000


@dataclass(frozen=True)
class Limits:
    """What the users and the owner ask for.

    From :func:`roofline.serving.serve`.

    Attributes:
        ttft: Time to the first token at most [s].
        tpot: Time per further token at most [s].
        price: Of an hour of one chip, in any currency.
        watts: Of one chip [W].
    """

    ttft: float | None = None
    tpot: float | None = None
    price: float | None = None
    watts: float | None = None


@dataclass(frozen=True, repr=False)
class Service(Report):
    """A server under load, a point for each number of users or rate of arrivals; all figures are arrays.

    From :func:`roofline.serving.serve`.

    Attributes:
        deployment: What decodes, and what reads the prompts too unless ``apart``.
        work: The requests.
        load: ``users`` of a closed loop, or ``rate`` of requests in a second.
        values: The load at each point.
        steady: What it comes to.
        limits: What is asked for.
        reading: What reads the prompts, where that is another deployment.
        apart: How many servers read and decode, and the time of a cache between them.
    """

    schema = "service"

    deployment: Deployment
    work: Work
    load: str
    values: Floats
    steady: Steady
    limits: Limits = Limits()
    reading: Deployment | None = None
    apart: Apart | None = None
    drafts: str = field(default="")

    # --- figures of each point ---

    @property
    def devices(self) -> int:
        """All chips."""
        return sum(number * one.devices for number, one in self._servers)

    @property
    def _servers(self) -> list[tuple[int, Deployment]]:
        """Each server, with how many there are of it."""
        if self.apart is None or self.reading is None:
            return [(1, self.deployment)]
        return list(zip(self.apart.servers, (self.reading, self.deployment), strict=True))

    @property
    def ttft(self) -> Floats:
        """Time to the first token in the steady state [s]; infinite where a queue grows without end."""
        return self.steady.first_token

    @property
    def tpot(self) -> Floats:
        """Time of each further token [s]."""
        return self.steady.per_token

    @cached_property
    def factors(self) -> tuple[Floats, Floats]:
        """High over expected of both times."""
        steps, state = self.deployment.steps(), self.steady
        reading = (self.reading or self.deployment).steps()
        return reading.factor(self.work.reads, 0.0), steps.factor(self.work.reads * state.mixed_share, state.decoding)

    @property
    def tpot_range(self) -> tuple[Any, Any]:
        """Low and high over expected of the time per token; of a serving stack as measured ones scatter."""
        return per_token_range(self.deployment.stack, self.factors[1])

    @property
    def tokens_per_s(self) -> Floats:
        """New tokens of all users in a second."""
        return self.steady.rate * self.work.new_tokens

    @property
    def tokens_per_s_per_chip(self) -> Floats:
        """The same for each chip."""
        return self.tokens_per_s / self.devices

    @property
    def tokens_per_s_per_user(self) -> Floats:
        """Tokens that a user sees in a second once they come."""
        return np.asarray(1 / self.tpot)

    @property
    def meets(self) -> NDArray[np.bool_]:
        """Tell whether both times are within their limits."""
        most = [(self.ttft, self.limits.ttft), (self.tpot, self.limits.tpot)]
        each = [value <= (np.inf if limit is None else limit) for value, limit in most]
        return np.asarray(each[0] & each[1] & (self.steady.rate > 0))

    @property
    def goodput(self) -> Floats:
        """Requests in a second that are answered within the limits; all alike, so all or none."""
        return np.where(self.meets, self.steady.rate, 0.0)

    @property
    def best(self) -> int | None:
        """The point with the most tokens a second of those within the limits; ``None`` where there is none."""
        return int(np.argmax(self.tokens_per_s * self.meets)) if self.meets.any() else None

    @property
    def cost_per_million(self) -> Floats | None:
        """Price of a million new tokens; ``None`` without a price of the chip."""
        if self.limits.price is None:
            return None
        return self.limits.price * self.devices / 3600 * self._seconds_per_million

    @property
    def energy_per_million(self) -> Floats | None:
        """Energy of a million new tokens [J], of stated watts or the chips' power limits; ``None`` without either."""
        watts = [(number * one.devices, _watts(one, self.limits)) for number, one in self._servers]
        known = [number * each for number, each in watts if each is not None]
        return sum(known) * self._seconds_per_million if len(known) == len(watts) else None

    @property
    def _seconds_per_million(self) -> Floats:
        """Time in which a million new tokens come [s]; infinite where none do."""
        some = self.tokens_per_s > 0
        return np.where(some, 1e6 / np.where(some, self.tokens_per_s, 1.0), np.inf)

    @cached_property
    def bound(self) -> list[str]:
        """Name what more load runs into: blocks of the cache, sequences, prompts, or what bounds the decode steps."""
        state, work = self.steady, self.work
        each_group = np.broadcast_to(state.decoding / self.deployment.attention_dp, self.values.shape)
        batches = np.unique(np.maximum(np.ceil(each_group), 1)).astype(int)
        graph, each = self.deployment.ends[-1][-1][0], self.deployment
        est = estimate(graph, each.chip, mode="graph", regime=each.regime, B=batches.tolist(), C=int(work.context))
        of_batch = dict(zip(batches.tolist(), np.atleast_1d(est.bound).tolist(), strict=True))
        mixed = state.mixed_share * state.mixed_step
        prompts = (mixed > (1 - state.mixed_share) * state.decode_step) | state.prefill_bound
        full = "cache" if work.running < each.max_sequences else "sequences"
        waits = (state.users > state.running * (1 + 1e-9)) & (self.load == "users") & (self.apart is None)
        return [full if queue else "prompts" if read else of_batch[max(int(np.ceil(d)), 1)]
                for queue, read, d in zip(waits, prompts, each_group, strict=True)]  # fmt: skip

    @cached_property
    def largest_rate(self) -> float:
        """Requests in a second beyond which a queue grows without end."""
        if self.apart is None:
            return copies(self.deployment) * largest_rate(self.deployment.copy.steps(), self.work)
        return largest_rate(self.deployment.steps(), self.work, self.apart)

    # --- as data ---

    def subject(self) -> dict[str, Any]:
        """Return the model, the chips, the layout and the requests."""
        one = self.deployment
        about = subject(one.shown, one.chip.name) | {"phase": "serving", "regime": one.regime}
        layout = {"tp": one.tp, "pp": one.pp, "ep": one.ep, "attention_dp": one.attention_dp, "devices": self.devices}
        formats = {name: getattr(one, name) for name in ("weights", "activations", "cache")}
        sizes = {"prompt": int(self.work.prompt), "new_tokens": int(self.work.new_tokens)}
        server = {"chunk": one.chunk, "block": one.block, "shared_prefix": one.shared_prefix,
                  "max_sequences": one.max_sequences, "mixed": one.mixed, "backend": one.backend or None}  # fmt: skip
        about["passes"] = [each for each in about["passes"] if not each.startswith("shard(")]  # the layout says it
        return {**about, "sizes": sizes, "layout": layout, "formats": formats, "server": server,
                "speculation": self._speculation(), "prefill": self._prefill()}  # fmt: skip

    def _speculation(self) -> dict[str, Any] | None:
        each = self.work.speculation
        if not each.drafted:
            return None
        return {"drafted": each.drafted, "accepted": each.accepted, "tokens_per_step": each.tokens,
                "draft": self.drafts}  # fmt: skip

    def _prefill(self) -> dict[str, Any] | None:
        if self.reading is None or self.apart is None:
            return None
        readers, decoders = self.apart.servers
        return {"chip": self.reading.chip.name, "tp": self.reading.tp, "servers": readers, "decode_servers": decoders,
                "transfer_s": self.apart.transfer}  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """Return what holds at every load, and the best point within the limits."""
        rows = self.records()
        return {
            "load": self.load, "running_limit": int(self.work.running) * copies(self.deployment),
            "largest_rate_per_s": self.largest_rate,
            "limits": {"ttft_s": self.limits.ttft, "tpot_s": self.limits.tpot},
            "price_per_chip_hour": self.limits.price, "watts_per_chip": _watts(self.deployment, self.limits),
            "best": None if self.best is None else rows[self.best], "not_modelled": list(self.not_modelled),
        }  # fmt: skip

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """Notes on what the figures leave out."""
        own = ("time and memory of the draft",) if self.work.speculation.drafted and not self.drafts else ()
        lengths, between = NOT_MODELLED
        alike = (lengths,) if not self.work.spread else ()
        return (*alike, *((between,) if self.deployment.overhead == Overhead() else ()), *own)

    def columns(self) -> dict[str, Any]:
        """Return the figures of every point by name."""
        state, first, (low, high) = self.steady, self.factors[0], self.tpot_range
        cost, energy = self.cost_per_million, self.energy_per_million
        return {
            "users": state.users, "rate_per_s": state.rate, "running": state.running, "decoding": state.decoding,
            "ttft_s": self.ttft, "ttft_low_s": self.ttft / first, "ttft_high_s": self.ttft * first,
            "ttft_first_wave_s": state.first_wave,
            "tpot_s": self.tpot, "tpot_low_s": self.tpot * low, "tpot_high_s": self.tpot * high,
            "tokens_per_s": self.tokens_per_s, "tokens_per_s_per_chip": self.tokens_per_s_per_chip,
            "tokens_per_s_per_user": self.tokens_per_s_per_user, "goodput_per_s": self.goodput,
            "mixed_share": state.mixed_share, "bound": self.bound, "meets": self.meets,
            "cost_per_million": cost, "energy_per_million_j": energy,
        }  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per load."""
        each = {name: np.broadcast_to(np.asarray(value), self.values.shape).tolist()
                for name, value in self.columns().items()}  # fmt: skip
        finite = [[None if value == np.inf else value for value in values] for values in each.values()]
        return [dict(zip(each, row, strict=True)) for row in zip(*finite, strict=True)]

    def __repr__(self) -> str:
        most, name = self.values.max(), "users" if self.load == "users" else "requests/s"
        at = int(np.argmax(self.tokens_per_s))
        return (
            f"<Service of {self.deployment.shown.title} on {self.devices} x {self.deployment.chip.name}, "
            f"up to {most:g} {name}: at most {self.tokens_per_s[at]:,.0f} tokens/s, {format_si(self.tpot[at], 's')} "
            f"per token, {format_si(self.ttft[at], 's')} to the first>"
        )


def _watts(one: Deployment, limits: Limits) -> float | None:
    """Return what a chip takes: as stated, else its power limit, where somebody published one."""
    return one.chip.tdp if limits.watts is None else limits.watts


def serve(
    model: Program | Deployment, chip: AnyChip | None = None, *, prompt: int, new_tokens: int,
    concurrency: int | Sequence[int] | None = None, qps: float | Sequence[float] | None = None, prefix: int = 0,
    spec: str | None = None, draft: str | float | None = None, prefill_chip: AnyChip | None = None,
    prefill_tp: int | None = None, servers: tuple[int, int] | None = None, link: str | float | None = None,
    spread: float = 0.0, ttft: str | float | None = None, tpot: str | float | None = None, price: float | None = None,
    watts: float | None = None, **layout: Any,
) -> Service:  # fmt: skip
    """Predict what a server of a model gives its users, over the load.

    Args:
        model: A shipped name, the path of a model file or config, or a deployment.
        chip: A name or a chip: each device.
        prompt: Tokens of each prompt, the prefix among them.
        new_tokens: Tokens that each request gets.
        concurrency: Users of a closed loop, each with a request at a time: a number or several; 1 to 256 when absent.
        qps: Requests in a second that come at random instead.
        prefix: First tokens that all prompts share and that the cache holds already.
        spec: Speculative decoding as ``K:ACCEPT``: tokens drafted, and the probability that one is accepted.
        draft: What drafts them: a model, or its time for one token as a share of a decode step's; free when absent.
        prefill_chip: Chips of servers that only read prompts; those of ``chip`` then only decode.
        prefill_tp: Devices of such a server; as many as of the others when absent.
        servers: How many read prompts and how many decode; one of each when absent.
        link: Way of a cache between them, for each chip [byte/s]; :data:`LINK` when absent.
        spread: How much lengths differ, as a share of the longest; those given are the mean then.
        ttft: Time to the first token that is allowed [s], a number or text such as ``"2 s"``.
        tpot: Time per further token that is allowed [s].
        price: Of a chip for an hour, in any currency.
        watts: Of each chip [W], for the energy; its power limit when absent.
        layout: As for :func:`roofline.serving.deployment`: ``tp``, ``weights``, ``chunk``, ``backend`` and so on.

    Returns:
        Times, throughput, cost and what bounds it at each load.

    Raises:
        DoesNotFit: Not one request fits; the message says what would.
        UsageError: A load, a limit or a layout that cannot be.

    Example:
        >>> served = serve("llama-3-8b", "h100-sxm", prompt=4000, new_tokens=500, concurrency=[1, 16, 64], tpot="20 ms")
        >>> served.meets.tolist(), bool(served.tokens_per_s[2] > 5 * served.tokens_per_s[0])
        ([True, True, False], True)
    """
    one = _deployed(model, chip, whole_number("prefix", prefix, 0, 10**9), layout)
    prompt, new_tokens = (whole_number(*pair, most=10**9) for pair in (("prompt", prompt), ("new_tokens", new_tokens)))
    if one.shared_prefix > prompt:
        raise UsageError(f"prefix={one.shared_prefix}: longer than the prompt of {prompt} tokens")
    if not 0 <= finite_number("spread", spread) < 1:
        raise UsageError(f"spread={spread!r}: expected a share of the longest, from 0 to below 1")
    work = one.copy.work(prompt, new_tokens, _speculation(one.copy, spec, draft), spread)
    if work.running < 1:
        raise too_large(one, prompt + new_tokens)
    reading, apart = _apart(one, prefill_chip, prefill_tp, servers, link, prompt)
    one = one if apart is None else one.copy  # all of whose copies are among the servers
    load, values = _load(concurrency, qps)
    steady = _steady(one, work, load == "users", values, apart)
    limits = Limits(limit("ttft", ttft), limit("tpot", tpot), _stated("price", price), _stated("watts", watts))
    return Service(one, work, load, values, steady, limits, reading, apart, "" if draft is None else str(draft))


def limit(name: str, value: str | float | None) -> float | None:
    """Return a limit [s]; ``None`` for none."""
    return None if value is None else most_allowed(name, value, "s")


def _steady(one: Deployment, work: Work, users: bool, values: Floats, apart: Apart | None) -> Steady:
    """Work out what users, or requests at random, come to."""
    steps = one.copy.steps()
    if apart is not None:
        return (closed_apart if users else open_apart)(steps, work, values, apart)
    return in_copies(partial(closed_loop if users else open_loop, steps, work), values, copies(one), users)


def _stated(name: str, value: float | None) -> float | None:
    return None if value is None else finite_number(name, value, 0)


def _deployed(model: Program | Deployment, chip: AnyChip | None, prefix: int, layout: dict[str, Any]) -> Deployment:
    if isinstance(model, Deployment):
        if chip is not None or layout:
            raise UsageError("serve: a deployment has its chip and its layout; give no others")
        return replace(model, shared_prefix=prefix) if prefix else model
    if chip is None:
        raise UsageError("serve: no chip given; give a name or a Chip")
    return deployment(model, chip, shared_prefix=prefix, **layout)


def _load(concurrency: Any, qps: Any) -> tuple[str, Floats]:
    """Return what the load is counted in, and its values."""
    if concurrency is not None and qps is not None:
        raise UsageError("concurrency and qps exclude each other: users in a closed loop, or requests at random")
    if qps is not None:
        values = np.atleast_1d(np.asarray(qps, dtype=np.float64))
        if not (np.isfinite(values).all() and (values > 0).all()):
            raise UsageError(f"qps={qps!r}: expected requests in a second, above zero")
    else:
        each = [2**i for i in range(9)] if concurrency is None else np.atleast_1d(np.asarray(concurrency)).tolist()
        values = np.asarray([whole_number("concurrency", value, most=10**6) for value in each], dtype=np.float64)
    if values.ndim != 1 or not 0 < values.size <= MOST_POINTS:
        raise UsageError(f"expected 1 to {MOST_POINTS:,} loads, given the shape {values.shape}")
    return ("users" if qps is None else "rate"), values


def _speculation(one: Deployment, spec: str | None, draft: str | float | None) -> Speculation:
    """Read ``K:ACCEPT``, and what drafts."""
    if spec is None:
        if draft is not None:
            raise UsageError(f"draft={draft!r} without spec: give how many tokens it drafts, such as spec='3:0.8'")
        return Speculation()
    read = speculation(spec)
    if draft is None:
        return read
    drafted = read.drafted
    try:
        part = float(draft)
    except ValueError:
        small = replace(one, model=str(draft), ep=one.attention_dp, options=()).steps()
        return replace(read, seconds=lambda batch, context: drafted * small.decode(batch, context))
    if not 0 <= part <= 1:
        raise UsageError(f"draft={draft!r}: expected a model, or a share of a decode step from 0 to 1")
    return replace(read, seconds=lambda batch, context: drafted * part * one.steps().decode(batch, context))


def _apart(
    one: Deployment,
    chip: AnyChip | None,
    tp: int | None,
    servers: tuple[int, int] | None,
    link: str | float | None,
    prompt: int,
) -> tuple[Deployment | None, Apart | None]:
    """Return what reads prompts on chips of its own, where that is asked for."""
    if chip is None:
        if any(value is not None for value in (tp, servers, link)):
            raise UsageError("prefill_tp, servers and link need prefill_chip, on the command line --prefill-chip: the "
                             "chips that read prompts")  # fmt: skip
        return None, None
    readers, decoders = (whole_number("servers", value) * copies(one) for value in servers or (1, 1))
    shared = {} if tp is None else {"tp": whole_number("prefill_tp", tp)}
    reading = replace(one.copy, chip=deployment(one.model, chip).chip, **shared)  # type: ignore[arg-type]
    transfer = transfer_seconds(reading, one.copy, prompt, LINK if link is None else parse(link, "B/s", "link"))
    return reading, Apart(reading.steps(), reading.budget, (readers, decoders), transfer)


def too_large(one: Deployment, context: int) -> Exception:
    """Return the error where not one request fits, with what would make it fit."""

    def need(change: Any) -> float:
        other = replace(one, **change)
        return float(other.memory().total) + float(sum(other.cache_bytes(context)))

    memory, cache = one.memory(), float(sum(one.cache_bytes(context)))
    where = f"{one.shown.title} on {one.devices} x {one.chip.name}: a request of {context:,} tokens"
    blocks = among(*[{"block": BLOCK}] * (one.block > BLOCK))
    chunks = among(*({"chunk": one.chunk // n} for n in (2, 4, 8, 16) if one.chunk >= n))
    changes = remedies(need, one.room, (blocks, FORMATS, SHARED, chunks))
    return does_not_fit(where, replace(memory, kv_cache=cache), one.room, changes)
