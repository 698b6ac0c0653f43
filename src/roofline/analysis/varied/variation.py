"""``rl.analysis.vary``: the time of a program whose sizes, depth or trips differ from run to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from roofline.analysis.estimates import Estimate, Mode, checked_mode, runs_as
from roofline.analysis.varied.distribution import Distribution, Numbers
from roofline.analysis.varied.experts import imbalance
from roofline.cost import REGIME, checked_regime
from roofline.counting.grid import Points, grid
from roofline.counting.memory import RESERVE, reserved
from roofline.frontends.source import Program, as_graph
from roofline.hardware.library import AnyChip, chip_list, with_host
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, sizes_of
from roofline.ir.numbers import finite_number, whole_number
from roofline.ir.report import WORDS, Report, subject
from roofline.ir.sizes import SIZE_WORDS
from roofline.ir.text import shown
from roofline.ir.units import format_si

#: Draws at most, and where nobody says how many.
MOST, SAMPLES = 100_000, 2000
#: Percentiles of every quantity.
PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, eq=False, repr=False)
class Variation(Report):
    """How long a program takes, over many draws of what differs from run to run; from :func:`vary`.

    Attributes:
        about: The program, chip and mode, and what each quantity is drawn from.
        times: One expected time per draw [s].
        low: Each at the fast end of its range [s].
        high: Each at the slow end [s].
        drawn: What was drawn, by name: sizes, layers that run, the load of the busiest device, trips.
        at_means: Time with every size at the mean of what was drawn, all layers, an even load and the mean of trips
            [s].
        seed: Of the draws.
        notes: What a reader should know.
    """

    about: Mapping[str, Any]
    times: Numbers
    low: Numbers
    high: Numbers
    drawn: Mapping[str, Numbers]
    at_means: float
    seed: int
    notes: tuple[str, ...] = field(default=())
    schema = "variation"

    @cached_property
    def mean(self) -> float:
        """Mean time [s]."""
        return float(self.times.mean())

    @property
    def error(self) -> float:
        """Standard error of the mean, since draws are finite [s]."""
        spread = self.times.std(ddof=1) if np.ptp(self.times) else 0.0  # of equal times rounding is none
        return float(spread / np.sqrt(len(self.times)))

    def percentile(self, percent: float) -> float:
        """Return the time that so many of 100 runs stay below [s]."""
        return float(np.percentile(self.times, finite_number("percentile", percent, 0, 100)))

    def subject(self) -> dict[str, Any]:
        """Return the program, where it runs, and what its sizes are drawn from."""
        return dict(self.about)

    def summary(self) -> dict[str, Any]:
        """Return the mean and the percentiles of the time."""
        return {
            "time_s": self.mean, "low_s": float(self.low.mean()), "high_s": float(self.high.mean()),
            "error_s": self.error, **{f"p{each}_s": self.percentile(each) for each in PERCENTILES},
            "at_means_s": self.at_means, "samples": len(self.times), "seed": self.seed,
        }  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return one row per quantity: the time, and all that was drawn."""
        every = {"time_s": self.times, **self.drawn}
        return [
            {"quantity": name, "mean": float(values.mean()),
             **{f"p{each}": float(np.percentile(values, each)) for each in PERCENTILES},
             "least": float(values.min()), "most": float(values.max())}
            for name, values in every.items()
        ]  # fmt: skip

    def __repr__(self) -> str:
        what = f"<Variation of {self.about['model']} on {self.about['chip']}: mean {format_si(self.mean, 's')}"
        return f"{what}, p50 {format_si(self.percentile(50), 's')}, p95 {format_si(self.percentile(95), 's')}>"


def vary(
    program: Program,
    chip: AnyChip,
    *,
    samples: int = SAMPLES,
    seed: int = 0,
    experts: Distribution | str | None = None,
    leave: float | Sequence[float] = 0.0,
    trips: Distribution | str | int | None = None,
    mode: Mode = "eager",
    **options: Any,
) -> Variation:
    """Predict the time of a program whose sizes differ from run to run: mean and percentiles over many draws.

    All draws are points of one estimate, kernels one after the other (:func:`roofline.estimate`).

    Args:
        program: As for :func:`roofline.estimate`.
        chip: A name or a chip.
        samples: How many draws.
        seed: The same seed gives the same draws.
        experts: Draw the tokens of each device's experts (of a program with ``ep``): ``even``, or what the popularity
            of an expert is drawn from. The device with the most tokens sets the pace of its layer.
        leave: Chance that a sequence leaves after a layer (early exit), one for all layers or one each. A batch runs
            until its last sequence leaves; then comes what follows the layers.
        trips: How often the program runs, for a loop around it: a whole number or what it is drawn from.
        mode: As for :func:`roofline.estimate`.
        options: ``phase``, ``dtype``, ``tf32``, ``regime`` and ``host`` as for :func:`roofline.estimate`, and sizes:
            each a whole number, a :class:`Distribution` or its text. What is drawn is rounded, and at least 1.

    Returns:
        The time of each draw, its mean and percentiles, and all that was drawn.

    Raises:
        UsageError: A size or option that is none of these, or a program without what is to be drawn.

    Example:
        >>> import roofline as rl
        >>> some = vary("gpt2", "h100-sxm", phase="decode", mode="graph", batch=8, context="uniform:low=1,high=1023")
        >>> bool(some.percentile(50) < some.percentile(95)), round(float(some.drawn["context"].mean()), -2)
        (True, 500.0)
    """
    samples, seed = whole_number("samples", samples, 2, most=MOST), whole_number("seed", seed, 0, most=2**31)
    graph = as_graph(program, options.pop("phase", None), options.pop("dtype", None))
    how = {name: options.pop(name, None) for name in ("tf32", "regime", "host")}
    sizes = _Sizes(graph, options, samples, seed)
    est = _estimate(graph, chip, mode, Points(sizes.values, samples), **how)
    run = _Run(est, seed)
    if experts is not None:
        run.draw_experts(None if experts == "even" else distribution("experts", experts))
    if np.any(np.asarray(leave, dtype=object)):
        run.draw_depth(leave)
    trip = _trips(trips, samples, seed)
    run.drawn |= {} if trips is None else {"trips": trip}
    middle = float(np.ravel(_estimate(graph, chip, mode, sizes.means, **how).time)[0]) * float(np.mean(trip))
    texts = {"experts": experts, "leave": leave if "layers" in run.drawn else None, "trips": trips}
    return _result(graph, run, sizes, run.time * trip, middle, texts)


def _result(
    graph: Graph, run: _Run, sizes: _Sizes, times: Numbers, at_means: float, texts: Mapping[str, Any]
) -> Variation:
    est = run.est
    low, high = (times * np.asarray(end) / np.asarray(est.time) for end in (est.low, est.high))
    about = subject(graph, est.chip.name, est.mode, sizes.fixed) | {
        "drawn": sizes.texts | {name: str(value) for name, value in texts.items() if value is not None}
    }
    return Variation(about, times, low, high, sizes.drawn | run.drawn, at_means, run.seed, sizes.notes)


def distribution(name: str, value: Any) -> Distribution:
    """Return a distribution, given as one or as text.

    Raises:
        UsageError: Neither.
    """
    if isinstance(value, Distribution):
        return value
    if not isinstance(value, str):
        raise UsageError(f"{name}={shown(value)}: expected a Distribution or its text, such as uniform:low=1,high=8")
    return Distribution.parse(value)


def _trips(trips: Distribution | str | int | None, samples: int, seed: int) -> Numbers:
    if trips is None or isinstance(trips, int):
        return np.full(samples, float(whole_number("trips", 1 if trips is None else trips)))
    return np.maximum(np.rint(distribution("trips", trips).draw(samples, seed, "trips")), 1.0)


def _estimate(
    graph: Graph, chip: AnyChip, mode: str, points: Points, *, tf32: bool | None, regime: str | None, host: Any
) -> Estimate:
    checked_mode(mode)
    chips = tuple(with_host(each, host) for each in chip_list(chip))
    if len(chips) != 1:
        raise UsageError("sizes are drawn for one chip; give one")
    return Estimate(runs_as(graph, mode), chips, False, mode, points, tf32, reserved(RESERVE),
                    checked_regime(regime or REGIME))  # fmt: skip


class _Sizes:
    """The sizes of all draws.

    Attributes:
        values: By symbol, a column for each.
        drawn: Those that were drawn, by word.
        texts: What they were drawn from, by word.
        fixed: The others, by symbol.
        notes: What a reader should know.
    """

    def __init__(self, graph: Graph, sizes: Mapping[str, Any], samples: int, seed: int) -> None:
        own = {name: Distribution.parse(value) if isinstance(value, str) else value for name, value in sizes.items()}
        spread = {name: value for name, value in own.items() if isinstance(value, Distribution)}
        columns = {name: np.maximum(np.rint(value.draw(samples, seed, SIZE_WORDS.get(name, name))), 1.0)
                   for name, value in spread.items()}  # fmt: skip
        columns, self.notes = _within_positions(graph, columns)
        named = sizes_of(graph, {**own, **columns})
        self.values = {name: np.broadcast_to(np.asarray(value, dtype=np.float64), samples)
                       for name, value in _bound(graph, named, samples).items()}  # fmt: skip
        self.drawn = {WORDS.get(name, name): values for name, values in columns.items()}
        self.texts = {WORDS.get(name, name): str(value) for name, value in spread.items()}
        self.fixed = {name: int(value[0]) for name, value in self.values.items() if np.ptp(value) == 0}

    @property
    def means(self) -> Points:
        """One point, every size at the mean of what was drawn."""
        return Points({name: np.array([round(float(np.mean(value)))]) for name, value in self.values.items()}, 1)


def _bound(graph: Graph, named: Mapping[str, Any], samples: int) -> dict[str, Any]:
    """Return a value for each symbol of a program.

    Raises:
        UnboundSize: A symbol has none; all of them are named.
        UsageError: A sequence, where one number or a distribution is expected.
    """
    if several := next((name for name, value in named.items() if np.ndim(value) and len(value) != samples), None):
        raise UsageError(f"{WORDS.get(several, several)}: give one number, or what it is drawn from")
    grid(graph.symbols, {name: value if np.ndim(value) == 0 else 1 for name, value in named.items()})
    return dict(named)


def _within_positions(graph: Graph, columns: dict[str, Numbers]) -> tuple[dict[str, Numbers], tuple[str, ...]]:
    """Cut lengths to the positions of a model that has no more."""
    positions, notes = graph.info.positions, list[str]()
    if positions is not None and positions.hard:
        for name in ("seq", "context", "S", "C"):
            beyond = int((columns[name] > positions.most).sum()) if name in columns else 0
            if beyond:
                notes.append(f"{beyond:,} of {len(columns[name]):,} draws of {WORDS.get(name, name)} cut to the "
                             f"{positions.most:,} positions of {graph.title}")  # fmt: skip
                columns = {**columns, name: np.minimum(columns[name], positions.most)}
    return columns, tuple(notes)


class _Run:
    """The times of all draws, layer by layer.

    Attributes:
        drawn: What was drawn beside the sizes.
        layers: Names of the layers, in their order.
        kernels: How often each layer runs each kernel; a last row of what is in no layer.
        device: Time of each layer for each draw, likewise [s].
        runs: Whether a layer runs in a draw.
    """

    def __init__(self, est: Estimate, seed: int) -> None:
        self.est, self.seed = est, seed
        self.drawn: dict[str, Numbers] = {}
        points = int(np.prod(est.shape))
        number = {name: at for at, row in enumerate(est.rows) for name in row.kernel.names}
        where = {label: nodes[0].layer for label, nodes in est.graph.kernels.items() if label in number}
        self.layers = list(dict.fromkeys(layer for layer in where.values() if layer))
        self.kernels = np.zeros((len(self.layers) + 1, len(est.rows)))
        for label, layer in where.items():
            at = number[label]
            self.kernels[self.layers.index(layer) if layer else -1, at] += est.rows[at].kernel.main.count
        self.seconds = np.stack([np.broadcast_to(np.asarray(each.expected, dtype=np.float64), points)
                                 for each in est.times[0]])  # fmt: skip
        self.launches = np.stack([np.broadcast_to(np.asarray(each.launches, dtype=np.float64), points)
                                  for each in est.times[0]])  # fmt: skip
        self.device = self.kernels @ self.seconds
        self.runs = np.ones_like(self.device, dtype=np.bool_)

    def draw_experts(self, popular: Distribution | None) -> None:
        """Let the device with the most tokens set the pace of each layer with experts."""
        rows, factors, longer = imbalance(self.est, popular, self.seed)
        for place, (layer, members) in enumerate(rows.items()):
            at = self.layers.index(layer) if layer else -1
            more = self.seconds[members] * (longer[members, place] - 1)
            self.device[at] += self.kernels[at, members] @ more
        self.drawn["busiest_device"] = factors.mean(axis=0)

    def draw_depth(self, leave: float | Sequence[float]) -> None:
        """Let each layer run only if some sequence of the batch has not left before it."""
        number = len(self.layers)
        if not number:
            raise UsageError(f"leave: {self.est.graph.name} has no layers that a sequence could leave after")
        chance = _chances(leave, number)
        left = 1 - np.cumprod(1 - chance[:-1])  # by the end of each layer but the last, which all leave
        batch = np.asarray(self.est.grid.sizes.get("B", 1.0), dtype=np.float64)
        draws = np.random.default_rng([self.seed, number]).random(self.device.shape[1])
        depth = np.searchsorted(left, draws ** (1 / batch), side="left") + 1
        self.runs[:-1] = np.arange(number)[:, None] < depth
        self.drawn["layers"] = depth.astype(np.float64)

    @property
    def time(self) -> Numbers:
        """Time of each draw: the slower of device and host [s]."""
        device = (self.device * self.runs).sum(axis=0)
        launched = self.kernels @ self.launches
        share = (launched * self.runs).sum(axis=0) / np.maximum(launched.sum(axis=0), 1.0)
        return np.asarray(np.maximum(device, np.asarray(self.est.host_time) * share))


def _chances(leave: float | Sequence[float], number: int) -> Numbers:
    """Return the chance to leave after each layer.

    Raises:
        UsageError: No chance from 0 to 1, or not one per layer.
    """
    try:
        chance = np.asarray(leave, dtype=np.float64)
    except (TypeError, ValueError):
        chance = np.full(1, np.nan)
    if chance.shape not in ((), (number,)) or not np.all((chance >= 0) & (chance <= 1)):
        raise UsageError(f"leave={shown(leave)}: expected a chance from 0 to 1, or one for each of {number} layers")
    return np.broadcast_to(chance, number)
