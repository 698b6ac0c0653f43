"""The best deployment of a model under limits, and why: chips, their number, layout, formats, users and chunks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.counting.grid import unbeaten
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip, chip_list
from roofline.ir.errors import MissingFigure, RooflineError, UsageError, did_you_mean
from roofline.ir.numbers import as_list, finite_number, whole_number
from roofline.ir.report import Report
from roofline.ir.units import format_bytes, format_si, parse
from roofline.passes.formats.quantize import weight_matrices
from roofline.programs.library import find_model
from roofline.programs.modelfile import load_model_file
from roofline.serving.backends import per_token_range
from roofline.serving.deployment import Deployment
from roofline.serving.plans.flags import BACKENDS, Launch, Server, launch
from roofline.serving.plans.search import SAME, Arrangement, Load, Rows, searched
from roofline.serving.plans.space import CHUNKS, Space
from roofline.serving.steady import largest_rate

Floats = NDArray[np.float64]

#: Points of a front, and answers of chips, that are listed at most.
LISTED = 12
#: Share of the sequences that fit from which on memory is full.
FULL = 0.99
#: Chips of an arrangement, and numbers of them that are allowed, at most.
MOST_CHIPS, MOST_COUNTS = 10**6, 4096
#: What a plan leaves out; the last without a backend.
NOT_MODELLED = (
    "whether narrower formats keep the model's accuracy: roofline.quant measures that",
    "requests that differ in length",
    "groups that share layers over more than a node of eight",
    "time of the server between steps, unless a backend is given",
)


@dataclass(frozen=True, repr=False)
class Answer:
    """One arrangement of chips at one load; from :func:`roofline.serving.plan`.

    Attributes:
        arrangement: Its servers.
        copies: How many such arrangements share the requests.
        users: Requests in the system, of all copies.
        ttft: Time to the first token [s].
        tpot: Time per further token [s].
        rate: Requests in a second, of all copies.
        running: Requests that may run at a time in each server that decodes.
        prompt_share: Share of prompts in the tokens of the mean step that decodes.
        new_tokens: Tokens of a request.
        price: Of all chips for an hour; ``None`` without prices.
        context: Positions of a sequence at most.
        at_random: Whether requests come at random, so that users are a mean and not a limit.
    """

    arrangement: Arrangement
    copies: int
    users: float
    ttft: float
    tpot: float
    rate: float
    running: float
    prompt_share: float
    new_tokens: int
    price: float | None
    context: int
    at_random: bool = False

    @property
    def engine(self) -> Deployment:
        """The server that decodes."""
        return self.arrangement.engine

    @property
    def devices(self) -> int:
        """All chips."""
        return self.arrangement.devices * self.copies

    @property
    def tokens_per_s_per_chip(self) -> float:
        """New tokens in a second for each chip."""
        return self.rate * self.new_tokens / self.devices

    @property
    def tokens_per_s_per_user(self) -> float:
        """Tokens that a user sees in a second once they come."""
        return 1 / self.tpot if self.tpot else np.inf

    @cached_property
    def factors(self) -> tuple[float, float]:
        """High over expected of the times to the first token and per further token, of the steps alone."""
        first = _half_widths(self.arrangement.reading or self.engine)[1]
        decoding, reading = _half_widths(self.engine)
        return float(np.exp(first)), float(np.exp(decoding + (reading - decoding) * self.prompt_share))

    @property
    def ttft_range(self) -> tuple[float, float]:
        """Low and high over expected of the time to the first token."""
        return 1 / self.factors[0], self.factors[0]

    @property
    def tpot_range(self) -> tuple[float, float]:
        """The same of the time per further token; of a serving stack as measured ones scatter."""
        return per_token_range(self.engine.stack, self.factors[1])

    @property
    def cost_per_million(self) -> float | None:
        """Price of a million new tokens; ``None`` without prices."""
        return None if self.price is None else self.price / 3600 / (self.rate * self.new_tokens) * 1e6

    @property
    def memory(self) -> float:
        """Bytes that a device of a server that decodes holds while as many run as there are users."""
        held = self.context - self.new_tokens / 2 * self.engine.evicts
        each, once = self.engine.cache_bytes(held)
        servers = self.arrangement.servers[1] * self.copies
        sequences = np.ceil(min(self.users / servers, self.running) / self.engine.attention_dp)
        return float(self.engine.memory().total + sequences * float(each) + float(once))

    @property
    def chips(self) -> str:
        """Names of its chips."""
        reading = self.arrangement.reading
        names = [self.engine.chip.name] if reading is None else [reading.chip.name, self.engine.chip.name]
        return " + ".join(dict.fromkeys(names))

    @property
    def layout(self) -> str:
        """Say its servers in words."""
        one, reading, (readers, decoders) = (
            self.engine,
            self.arrangement.reading,
            self.arrangement.servers,
        )
        if reading is None:
            return f"{self.copies} x ({_words(one)})"
        times = f"{self.copies} x " if self.copies > 1 else ""
        return f"{times}({readers} prefill {_words(reading)}; {decoders} decode {_words(one)})"

    @property
    def short(self) -> str:
        """Say the same in few columns: ``2 x tp4``, or ``3 x tp1 > 2 x tp4`` where the first only read prompts."""
        one, reading, (readers, decoders) = (
            self.engine,
            self.arrangement.reading,
            self.arrangement.servers,
        )
        first = [] if reading is None else [f"{readers * self.copies} x {_words(reading, '')}"]
        return " > ".join([*first, f"{decoders * self.copies} x {_words(one, '')}"])

    @property
    def formats(self) -> str:
        """Say its number formats."""
        return f"{self.engine.weights or 'own'}/{self.engine.cache or 'own'}"

    def servers(self, model: str) -> list[Server]:
        """Return its servers in the words of :mod:`roofline.serving.plans.flags`."""
        readers, decoders = self.arrangement.servers
        users = np.inf if self.at_random else np.ceil(self.users / (decoders * self.copies))
        decode = _server(self, self.engine, model, "both" if self.arrangement.reading is None else "decode",
                         decoders * self.copies, int(min(users, self.running)))  # fmt: skip
        if self.arrangement.reading is None:
            return [decode]
        reading = self.arrangement.reading
        at_once = max(int(reading.budget // max(self.context - self.new_tokens, 1)), 1)
        return [
            _server(self, reading, model, "prefill", readers * self.copies, at_once),
            decode,
        ]

    def record(self) -> dict[str, Any]:
        """Return it as plain data."""
        one, reading, (readers, decoders) = (
            self.engine,
            self.arrangement.reading,
            self.arrangement.servers,
        )
        return {
            "chip": one.chip.name, "devices": self.devices, "copies": self.copies, **_layout(one),
            "weights": one.weights, "activations": one.activations, "cache": one.cache, "chunk": one.chunk,
            "prefill": None if reading is None else {"chip": reading.chip.name, "servers": readers,
                                                     "decode_servers": decoders, **_layout(reading)},
            "users": self.users, **_with_range("ttft", self.ttft, self.ttft_range),
            **_with_range("tpot", self.tpot, self.tpot_range), "rate_per_s": self.rate,
            "tokens_per_s_per_chip": self.tokens_per_s_per_chip,
            "tokens_per_s_per_user": _finite(self.tokens_per_s_per_user),
            "running_limit": int(self.running), "cost_per_million": self.cost_per_million,
        }  # fmt: skip

    def __repr__(self) -> str:
        return (f"<Answer {self.devices} x {self.chips}, {self.layout}, {self.formats}, {self.users:g} users: "
                f"{self.tokens_per_s_per_chip:,.0f} tokens/s/chip, {format_si(self.ttft, 's')} to the first, "
                f"{format_si(self.tpot, 's')} per token>")  # fmt: skip


@lru_cache(maxsize=256)
def _half_widths(one: Deployment) -> tuple[float, float]:
    """Return the ranges of a decode step and of a prefill, natural logarithms of a factor."""
    return one.steps().half_widths()


def _with_range(name: str, seconds: float, ends: tuple[float, float]) -> dict[str, float]:
    return {f"{name}_s": seconds, f"{name}_low_s": seconds * ends[0], f"{name}_high_s": seconds * ends[1]}


def _layout(one: Deployment) -> dict[str, int]:
    return {"tp": one.tp, "pp": one.pp, "ep": one.ep, "attention_dp": one.attention_dp}


def _words(one: Deployment, space: str = " ") -> str:
    shown = {"tp": one.tp, "pp": one.pp, "dp": one.attention_dp, "ep": one.ep}
    return " ".join(f"{name}{space}{size}" for name, size in shown.items() if size > 1 or name == "tp")


def _server(answer: Answer, one: Deployment, model: str, role: str, instances: int, running: int) -> Server:
    need, capacity = one.memory(), float(one.chip.capacity)
    cache = max(one.room - float(need.total), 0.0)
    return Server(
        model, one.tp, one.pp, one.ep, one.attention_dp, one.weights, one.cache, one.chunk, running, answer.context,
        one.block, one.memory_share, (cache + float(need.weights)) / capacity, cache / (capacity - float(need.total)),
        one.mixed, role, instances,
    )  # fmt: skip


@dataclass(frozen=True, repr=False)
class Plan(Report):
    """The best arrangement under limits, and what else there is.

    From :func:`roofline.serving.plan`.

    Attributes:
        model: The model.
        checkpoint: Its name where servers find it.
        load: What users ask for.
        space: What was searched.
        rows: Every candidate.
        prices: Of a chip for an hour, by name; empty without.
        seconds: What the search took [s].
        nothing: Where nothing was found, what is nearest and what would do, in a line.
        backend: The serving stack whose times these are; ``""`` for no certain one.
        left_out: Chips that were not looked at, and why.
    """

    schema = "plan"

    model: str
    checkpoint: str
    load: Load
    space: Space
    rows: Rows
    prices: Mapping[str, float]
    nothing: str = ""
    backend: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)

    # --- which candidates ---

    @cached_property
    def value(self) -> Floats:
        """Tokens in a second for each chip, or for a unit of money an hour where there are prices."""
        per = self.rows.prices(self.prices) if self.prices else self.rows.devices
        return np.asarray(self.rows.rate * self.rows.copies * self.load.new_tokens / per)

    @cached_property
    def meets(self) -> NDArray[np.bool_]:
        """True for candidates within all limits."""
        return np.asarray(self.in_time & (self.rows.tpot <= self.load.tpot))

    @cached_property
    def in_time(self) -> NDArray[np.bool_]:
        """True for those that give the first token in time."""
        rows, load = self.rows, self.load
        return np.asarray(np.isfinite(rows.ttft) & (rows.ttft <= load.ttft) & (rows.rate > 0))

    def answer(self, at: int) -> Answer:
        """Return a candidate."""
        rows, copies = self.rows, int(self.rows.copies[at])
        one = rows.arrangements[int(rows.which[at])]
        price = one.price(self.prices) * copies if self.prices else None
        read = self.load.prompt * float(rows.mixed_share[at])
        share = read / max(read + float(rows.decoding[at]), 1e-30)
        return Answer(one, copies, float(rows.users[at]) * copies, float(rows.ttft[at]), float(rows.tpot[at]),
                      float(rows.rate[at]) * copies, float(rows.running[at]), share, self.load.new_tokens, price,
                      self.load.prompt + self.load.new_tokens, self.load.qps is not None)  # fmt: skip

    def _best(self, among: NDArray[np.bool_]) -> int | None:
        """Return the best of some candidates: the most for the money or the chips, of as much the fastest."""
        if not among.any():
            return None
        at = np.flatnonzero(among)
        value, tpot = (np.round(np.log(np.maximum(each[at], 1e-30)), 9) for each in (self.value, self.rows.tpot))
        return int(at[np.lexsort((self.rows.ttft[at], tpot, -value))[0]])  # but for rounding

    @cached_property
    def _order(self) -> int | None:
        return self._best(self.meets)

    @cached_property
    def best(self) -> Answer | None:
        """The best within all limits; ``None`` where there is none."""
        return None if self._order is None else self.answer(self._order)

    @cached_property
    def runner_up(self) -> Answer | None:
        """The best of another layout, format or chip."""
        if self._order is None:
            return None
        keys = np.asarray([hash(_key(one)) for one in self.rows.arrangements])
        other = self._best(self.meets & (keys[self.rows.which] != keys[self.rows.which[self._order]]))
        return None if other is None else self.answer(other)

    @cached_property
    def by_chip(self) -> tuple[Answer, ...]:
        """The best of each chip alone."""
        names = np.asarray([_chips(one) for one in self.rows.arrangements])[self.rows.which]
        best = (self._best(self.meets & (names == chip.name)) for chip in self.space.chips)
        return tuple(self.answer(at) for at in best if at is not None)

    @cached_property
    def front(self) -> tuple[int, ...]:
        """Candidates with the first token in time that no other beats in both rates; the fastest user's first."""
        return front(1 / np.maximum(self.rows.tpot, 1e-30), self.value, self.in_time)

    # --- why ---

    @cached_property
    def binding(self) -> str:
        """Say which limit keeps more users, or fewer chips, from the best."""
        if self._order is None:
            return ""
        rows, at, load = self.rows, self._order, self.load
        if load.qps is not None:
            return self._with_fewer()
        better = (rows.users > rows.users[at]) & (rows.rate > rows.rate[at] * (1 + SAME))
        more = np.flatnonzero((rows.which == rows.which[at]) & better)
        if more.size:
            name, seconds = _exceeded(rows, int(more[0]), load) or ("", "")
            users = rows.users[more[0]] * rows.copies[more[0]]
            return (
                f"{name}: with {users:,.0f} users it would be {seconds}" if name else "none: more give no more tokens"
            )
        full = rows.arrangements[int(rows.which[at])].servers[1] * rows.running[at]
        if rows.decoding[at] < FULL * full:
            return "prompts: those that read them are busy, and more users only wait"
        return f"memory: no more than {rows.running[at]:,.0f} sequences fit each server that decodes"

    def _with_fewer(self) -> str:
        """Say what the nearest with fewer chips, or at a lower price, does not meet."""
        rows, at = self.rows, self._order or 0
        size = rows.prices(self.prices) if self.prices else rows.devices
        over = np.where(size < size[at], _over(rows, self.load), np.inf)
        near = int(np.argmin(over))
        if not (size < size[at]).any():
            return f"none: nothing {'cheaper' if self.prices else 'smaller'} was looked at"
        if not np.isfinite(over[near]):
            return f"--qps: nothing {'cheaper' if self.prices else 'smaller'} answers so many requests"
        name, seconds = _exceeded(rows, near, self.load) or ("", "")
        return f"{name}: with {_named(self.answer(near))} it would be {seconds}"

    @property
    def backends(self) -> tuple[str, ...]:
        """The serving stack, or all of them where none was given."""
        return (self.backend,) if self.backend else tuple(BACKENDS)

    def launches(self, backend: str | None = None) -> list[Launch]:
        """Return how backends start the best.

        Args:
            backend: ``vllm``, ``sglang`` or ``trtllm``; the plan's when absent, of none all of them.

        Raises:
            UsageError: No such backend, or nothing was found.
        """
        if self.best is None:
            raise UsageError(f"no flags: {self.nothing}")
        names = self.backends if backend is None else (backend,)
        return [launch(server, name) for name in names for server in self.best.servers(self.checkpoint)]

    # --- as data ---

    def subject(self) -> dict[str, Any]:
        """Return the model, the chips and what is asked for."""
        load = self.load
        limits = {
            "ttft_s": _finite(load.ttft),
            "tpot_s": _finite(load.tpot),
            "qps": load.qps,
        }
        return {"model": self.model, "phase": "serving", "chip": [chip.name for chip in self.space.chips],
                "sizes": {"prompt": load.prompt, "new_tokens": load.new_tokens}, "limits": limits,
                "backend": self.backend or None}  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """Return the best and why, the runner-up, the best of each chip, and launch flags."""

        def one(answer: Answer | None) -> dict[str, Any] | None:
            return None if answer is None else answer.record()

        return {
            "candidates": self.rows.size, "within_limits": int(self.meets.sum()), "binding": self.binding,
            "best": one(self.best), "runner_up": one(self.runner_up), "by_chip": [a.record() for a in self.by_chip],
            "nothing": self.nothing, "chips_left_out": dict(self.left_out), "prices": dict(self.prices) or None,
            "launches": [] if self.best is None else [each.record() for each in self.launches()],
            "not_modelled": list(NOT_MODELLED[:-1] if self.backend else NOT_MODELLED),
        }  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return the front, a row for each point."""
        return [{**self.answer(at).record(), "meets": bool(self.meets[at])} for at in self.front]

    def __repr__(self) -> str:
        best = self.nothing if self.best is None else repr(self.best)
        return f"<Plan for {self.model}: {self.rows.size:,} candidates, {best}>"


def _finite(value: float) -> float | None:
    return None if value == np.inf else value


def _key(one: Arrangement) -> tuple[Any, ...]:
    """Return what tells arrangements apart: chips, layouts, formats, who reads; not the chunk or numbers."""
    every = [one.engine] if one.reading is None else [one.engine, one.reading]
    return tuple((each.chip.name, *_layout(each).values(), each.weights, each.cache) for each in every)


def _chips(one: Arrangement) -> str:
    names = {one.engine.chip.name, *([one.reading.chip.name] if one.reading else [])}
    return "+".join(sorted(names))


def _exceeded(rows: Rows, at: int, load: Load) -> tuple[str, str] | None:
    """Return the limit that a candidate does not meet, and its time; the one that is furthest away."""
    parts = [(float(rows.tpot[at]), load.tpot, "--tpot"), (float(rows.ttft[at]), load.ttft, "--ttft")]
    seconds, limit, name = max(parts, key=lambda part: part[0] / part[1])
    return (name, format_si(seconds, "s")) if seconds > limit else None


def _over(rows: Rows, load: Load) -> Floats:
    """Return how far each candidate is beyond the limits, as a factor; infinite where requests come too fast."""
    goes = (rows.rate > 0) & np.isfinite(rows.ttft)
    first, each = (np.where(goes, values, 0.0) for values in (rows.ttft, rows.tpot))
    return np.where(goes, np.maximum(first / load.ttft, each / load.tpot), np.inf)


def _named(one: Answer) -> str:
    return f"{one.devices} x {one.chips}, {one.layout}, {one.formats},"


def front(x: Floats, y: Floats, among: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return the points of which no other has more of both, the largest of ``x`` first.

    Example:
        >>> front(np.array([3.0, 2.0, 1.0]), np.array([1.0, 0.5, 2.0]), np.array([True, True, True]))
        (0, 2)
    """
    at = np.flatnonzero(among)
    return tuple(at[unbeaten(-x[at], -y[at])].tolist())


# --- the public function ----------------------------------------------------------------------------------------------


def plan(
    model: Program, chips: AnyChip | Sequence[AnyChip], *, prompt: int, new_tokens: int,
    ttft: str | float | None = None, tpot: str | float | None = None, qps: float | None = None,
    prices: Mapping[str, float] | None = None, counts: Iterable[int] = range(1, 17),
    weights: Sequence[str] | None = None, cache: Sequence[str] | None = None, split: bool = True,
    chunks: Sequence[int] | None = None, backend: str | None = None, points: int = 64, link: str | float = 50e9,
    **fixed: Any,
) -> Plan:  # fmt: skip
    """Search chips, numbers, layouts, formats, users and chunks for the best deployment within limits.

    Args:
        model: A shipped name, or the path of a model file or config.
        chips: Names or chips that may serve it.
        prompt: Tokens of a prompt.
        new_tokens: Tokens that a request gets.
        ttft: Time to the first token at most [s], a number or text such as ``"2 s"``.
        tpot: Time per further token at most [s].
        qps: Requests in a second that come at random: then the fewest chips, or the cheapest, that answer them. Without
            it, a closed loop of as many users as gives the most tokens a second for each chip.
        prices: Of a chip for an hour by its name, in any currency; no price ships with the library.
        counts: Numbers of chips that are allowed.
        weights: Formats of weights; those that a chip has units for when absent, ``""`` for the model's own.
        cache: Formats of the cache, likewise.
        split: Whether servers that read prompts and others that decode are looked at.
        chunks: Tokens of a step of a group at most that are looked at.
        backend: A serving stack, ``vllm``, ``sglang`` or ``trtllm``: its policy, overhead, range and flags, and nothing
            that it certainly cannot do. None, without overhead, when absent.
        points: Numbers of users that are looked at between one and what fits; more in the best arrangements.
        link: Way of a cache from a chip that reads to one that decodes [byte/s].
        fixed: Other options of :func:`roofline.serving.deployment`, such as ``block``.

    Returns:
        The best and why, what is next to it, and the front of rates.

    Raises:
        UsageError: A limit, a price or a number that cannot be, or no layout.

    Example:
        >>> found = plan("gpt2", "h100-sxm", prompt=200, new_tokens=20, tpot="20 ms", counts=[1], points=8)
        >>> found.best.tpot <= 0.02, found.binding.split(":")[0] in ("--tpot", "memory", "none")
        (True, True)
    """
    listed, gaps = _complete(dict.fromkeys(chip_list(chips)))
    numbers = sorted({whole_number("counts", count, most=MOST_CHIPS) for count in counts})
    load = Load(
        whole_number("prompt", prompt, most=10**7), whole_number("new_tokens", new_tokens, most=10**7),
        _limit("ttft", ttft), _limit("tpot", tpot), None if qps is None else finite_number("qps", qps, 1e-9),
        parse(link, "B/s", "link"),
    )  # fmt: skip
    if not 0 < len(numbers) <= MOST_COUNTS:
        raise UsageError(f"counts: {len(numbers):,} numbers of chips; allowed: 1 to {MOST_COUNTS:,}")
    graph = as_graph(model, None, fixed.get("dtype"), implied="decode")
    own = {graph.tensors[matrix.root].dtype for matrix in weight_matrices(graph)}
    formats = [_formats(*pair, own) for pair in (("weights", weights), ("cache", cache))]
    space = Space(listed, tuple(numbers), weights=formats[0], cache=formats[1], split=split, points=points,
                  chunks=CHUNKS if chunks is None else tuple(chunks))  # fmt: skip
    rows, every = searched(model, space, load, {**fixed, "backend": backend})
    made = Plan(graph.title, _checkpoint(model), load, space, rows, _prices(prices, listed), backend=backend or "",
                left_out=gaps)  # fmt: skip
    return made if made.best is not None else replace(made, nothing=_nearest(made, every))


def _limit(name: str, value: str | float | None) -> float:
    limit = np.inf if value is None else parse(value, "s", name)
    if limit <= 0:
        raise UsageError(f"{name}={value!r}: limits must be positive")
    return float(limit)


def _complete(chips: Iterable[Chip]) -> tuple[tuple[Chip, ...], dict[str, str]]:
    """Return the chips whose memory is known, and why the others are left out.

    Raises:
        MissingFigure: No chip's memory is known.
    """
    gaps: dict[str, MissingFigure] = {}
    for chip in (chips := tuple(chips)):
        try:
            _ = chip.capacity, chip.bandwidth
        except MissingFigure as error:
            gaps[chip.name] = error
    known = tuple(chip for chip in chips if chip.name not in gaps)
    if not known:
        raise next(iter(gaps.values()))
    return known, {name: str(error) for name, error in gaps.items()}


def _formats(what: str, names: Sequence[str] | None, own: Set[str]) -> tuple[str, ...] | None:
    """Return formats to look at, ``""`` for the model's own; ``None`` for the usual ones."""
    listed = None if names is None else as_list(what, names)
    if listed == []:
        raise UsageError(f"{what}: no format given; own is the model's")
    return None if listed is None else tuple("" if name == "own" or {name} == own else name for name in listed)


def _prices(prices: Mapping[str, float] | None, chips: Sequence[Any]) -> dict[str, float]:
    """Return prices by the chips' own names, one of each chip."""
    if not prices:
        return {}
    priced = {name: finite_number(f"price of {name}", price, 1e-9) for name, price in prices.items()}
    missing = [chip.name for chip in chips if chip.name not in priced]
    if missing:
        near = did_you_mean(next((name for name in priced if name not in {chip.name for chip in chips}), ""), missing)
        raise UsageError(f"prices have none of {', '.join(missing)}; given: {', '.join(priced)}{near}")
    return priced


def _checkpoint(model: Program) -> str:
    """Return the name by which servers find a model: that of Hugging Face where there is one."""
    try:
        aliases = load_model_file(find_model(model)).aliases  # type: ignore[arg-type]
    except (RooflineError, TypeError, AttributeError):
        return str(model)
    named = [alias for alias in aliases if "/" in alias]
    return named[0] if named else str(model if isinstance(model, str | Path) else "MODEL")


def _nearest(made: Plan, every: Sequence[Any]) -> str:
    """Say what is nearest where nothing is within the limits, and what would do."""
    rows, load = made.rows, made.load
    if not rows.size:
        return _too_large(made, every)
    over = _over(rows, load)
    at = int(np.argmin(over))
    if not np.isfinite(over[at]):
        return _too_often(made, every)
    one = made.answer(at)
    slower = [f"--{name} {_at_least(value)}" for name, value, limit in
              (("ttft", one.ttft, load.ttft), ("tpot", one.tpot, load.tpot)) if value > limit]  # fmt: skip
    return (f"nothing meets the limits; nearest: {_named(one)} with "
            f"{format_si(one.ttft, 's')} to the first token and {format_si(one.tpot, 's')} per token; "
            f"what would: {' '.join(slower)}, or faster chips")  # fmt: skip


def _too_often(made: Plan, every: Sequence[Any]) -> str:
    """Say how many servers answer requests that come too fast: of those that hold the most for each chip."""
    load = made.load
    works = [(one, one.work(load.prompt, load.new_tokens)) for one in every]
    one, work = max(works, key=lambda pair: pair[1].running / pair[0].devices)
    rate, qps = largest_rate(one.steps(), work), load.qps or 0.0
    servers = int(qps // rate) + 1
    return (f"{qps:,.12g} requests/s are more than {_chips_answer(made)}; what would, late or not: "
            f"--counts {servers * one.devices}: {servers:,} x {one.chip.name} ({_words(one)}), each of which answers "
            f"{rate:.3g} requests/s at most")  # fmt: skip


def _chips_answer(made: Plan) -> str:
    most = made.rows.devices.max()
    return f"{most:,} chips answer" if most > 1 else "1 chip answers"


def _at_least(seconds: float) -> str:
    """Return a limit that a time meets, in milliseconds rounded up.

    Example:
        >>> _at_least(0.0061301)
        '6.14ms'
    """
    scale = 10 ** (np.floor(np.log10(seconds * 1e3)) - 2)
    return f"{float(np.ceil(seconds * 1e3 / scale - 1e-9) * scale):.6g}ms"


def _too_large(made: Plan, every: Sequence[Any]) -> str:
    """Say what would fit where no server holds a single request."""
    load = made.load
    context = load.prompt + load.new_tokens
    one = max(
        every,
        key=lambda each: each.room - float(each.memory().total) - float(each.cache_bytes(context)[0]),
    )
    need = float(one.memory().total) + float(sum(one.cache_bytes(context)))
    tried = [2**k for k in range(context.bit_length())]
    fit = [length for length in tried if float(one.sequences_that_fit(length)) >= 1]
    more = int(2 ** np.ceil(np.log2(one.devices * need / one.room)))
    shorter = f"a context of {fit[-1]:,} tokens, or " if fit else ""
    narrower = ", or --weights int4-g128" if one.weights != "int4-g128" else ""
    sizes = f"needs {format_bytes(need)} of {format_bytes(one.room)}"
    return (f"nothing fits; nearest: {one.layout} on {one.devices} x {one.chip.name}, where one request {sizes}; "
            f"what would: {shorter}--counts 1..{more}{narrower}")  # fmt: skip
