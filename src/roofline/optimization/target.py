"""What is asked of a plan: the figure to improve, the limits, and the figures of any plan on the chip at hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from roofline.analysis.estimates import Estimate, estimate
from roofline.analysis.evaluation import weakest
from roofline.analysis.training import train
from roofline.hardware.chip import Chip
from roofline.hardware.cluster import Cluster
from roofline.ir.errors import MissingFigure, UsageError
from roofline.ir.graph import Graph
from roofline.optimization.rounding import state_error
from roofline.optimization.steps import RUN, State, Step, applied

#: Settings of a run that :func:`roofline.estimate` takes.
_OF_ESTIMATES = ("mode", "tf32", "regime")


@dataclass(frozen=True, slots=True)
class Figures:
    """What a plan takes.

    Part of what :func:`roofline.optimize` returns.

    Attributes:
        time_s: Expected time of one run [s].
        low_s: The fast end of its range [s].
        high_s: The slow end [s].
        memory_bytes: Memory of a device [byte].
        items_per_s: Tokens, images or runs of all devices [1/s].
        devices: How many.
        batch: Of one run; ``None`` where the program has no batch to choose.
        noise: Over signal, of its formats against the program as given.
        bound: What bounds it.
        calibrated: Where the efficiencies come from: measured, transferred or prior.
    """

    time_s: float
    low_s: float
    high_s: float
    memory_bytes: float
    items_per_s: float
    devices: int
    batch: int | None
    noise: float
    bound: str
    calibrated: str

    @property
    def rate(self) -> float:
        """Items of one device [1/s]."""
        return self.items_per_s / self.devices


@dataclass(frozen=True)
class Target:
    """Where a program is to run, what is to be improved, and within which limits.

    Attributes:
        before: The program as given.
        cluster: Where it runs.
        objective: One of :data:`OBJECTIVES`.
        sizes: Of the program, by symbol, without the batch where that is open.
        batches: Batches that are allowed, the one to begin with first; empty where the program has none.
        memory_limit: Of a device [byte].
        latency_limit: Of one run [s].
        error_budget: Noise over signal that formats may cause.
        watts: Of a device [W].
        price: Of a device for an hour.
        devices: How many there are at most.
        training: Whether it is a step of training.
        known: Estimates that have been made.
        made: What steps have made of programs.
    """

    before: Graph
    cluster: Cluster
    objective: str
    sizes: Mapping[str, Any]
    batches: tuple[int, ...]
    memory_limit: float
    latency_limit: float
    error_budget: float
    watts: float | None
    price: float | None
    devices: int = 1
    training: bool = False
    known: dict[Any, tuple[Figures, ...]] = field(default_factory=dict, repr=False, compare=False)
    made: dict[tuple[int, Step], tuple[Graph, Graph]] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def chip(self) -> Chip:
        """One device."""
        return self.cluster.device

    def applied(self, state: State, step: Step) -> State:
        """Take one step of a plan; a pass runs once on each program."""
        if step.name == RUN:
            return applied(state, step)
        key = (id(state.graph), step)
        if key not in self.made:  # the program itself is held too, so that its number stays its own
            self.made[key] = (state.graph, applied(state, step, self.cluster).graph)
        return replace(state, graph=self.made[key][1], steps=(*state.steps, step))

    def start(self, state: State) -> Figures:
        """Return the figures of a plan at the batch to begin with, or at the one that it sets."""
        batch = state.run.get("batch", self.batches[0] if self.batches else None)
        return next(each for each in self.figures(state) if each.batch == batch)

    def best(self, state: State) -> Figures:
        """Return the best figures of a plan over the batches: of those within the limits, if there are any."""
        return min(self.figures(state), key=lambda each: (not self.allows(each), self.excess(each), self.value(each)))

    def figures(self, state: State) -> tuple[Figures, ...]:
        """Return the figures of a plan at every batch that is allowed."""
        run = {key: value for key, value in state.run.items() if key != "batch"}
        key = (state.graph, tuple(sorted(run.items())))
        if key not in self.known:
            made = (self._step if self.training else self._estimated)(state.graph, run)
            self.known[key] = tuple(replace(each, noise=state_error(self.before, state)) for each in made)
        return self.known[key]

    def estimate(self, graph: Graph, run: Mapping[str, Any]) -> Estimate:
        """Return the estimate of a program over the batches."""
        settings: dict[str, Any] = {name: run[name] for name in _OF_ESTIMATES if name in run}
        batches: dict[str, Any] = {"B": list(self.batches)} if self.batches else {}
        return estimate(graph, self.chip, **settings, **self.sizes, **batches)

    def _estimated(self, graph: Graph, run: Mapping[str, Any]) -> tuple[Figures, ...]:
        est = self.estimate(graph, run)
        at = graph.info.devices
        columns = (est.time, est.low, est.high, est.memory.total, np.asarray(est.throughput) * at.ep, est.bound)
        rows = zip(*(np.broadcast_to(column, est.shape or (1,)) for column in columns), strict=True)
        origin, batches = weakest(est.times[0]), self.batches or (None,)
        return tuple(
            Figures(float(time), float(low), float(high), float(memory), float(rate), at.tp * at.ep, batch, 0.0,
                    str(bound), origin)
            for (time, low, high, memory, rate, bound), batch in zip(rows, batches, strict=True)
        )  # fmt: skip

    def _step(self, graph: Graph, run: Mapping[str, Any]) -> tuple[Figures, ...]:
        lengths = {name: size for name, size in self.sizes.items() if name != "B"}
        steps = [(batch, train(graph, self.cluster, batch=batch, **run, **lengths)) for batch in self.batches]
        return tuple(
            Figures(step.time, step.low, step.high, float(step.memory.total), step.items / step.time, step.devices,
                    batch, 0.0, max(step.seconds, key=lambda part: step.seconds[part]),
                    weakest(step.virtual_stages[0].estimate.times[0]))
            for batch, step in steps
        )  # fmt: skip

    def value(self, figures: Figures) -> float:
        """Return what is to be made small."""
        return OBJECTIVES[self.objective].value(figures, self)

    def allows(self, figures: Figures) -> bool:
        """Tell whether a plan is within all limits."""
        return not self.broken(figures)

    def broken(self, figures: Figures) -> list[str]:
        """Name the limits that a plan is not within."""
        return [name for name, most in self._limits(figures) if most > 1]

    def excess(self, figures: Figures) -> float:
        """Return how far a plan is beyond the limit that it breaks most; 1 within all of them."""
        return max(1.0, *(most for _, most in self._limits(figures)))

    def _limits(self, figures: Figures) -> list[tuple[str, float]]:
        budget = figures.noise / self.error_budget if self.error_budget else math.inf if figures.noise else 0.0
        return [("memory", figures.memory_bytes / self.memory_limit), ("latency", figures.time_s / self.latency_limit),
                ("error", budget)]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Objective:
    """A figure to improve.

    Attributes:
        what: In words.
        unit: Of :attr:`value`, as tables show it.
        value: What is to be made small.
    """

    what: str
    unit: str
    value: Callable[[Figures, Target], float]


def _watts(target: Target) -> float:
    watts = target.chip.tdp if target.watts is None else target.watts
    if watts is None:
        raise MissingFigure(
            f"{target.chip.name}: its power is not published; give watts=700 (--watts 700), of a device"
        )
    return watts


def _price(target: Target) -> float:
    if target.price is None:
        raise UsageError("objective='cost' needs the price of a device for an hour: price=2.5 (--price 2.5)")
    return target.price


#: Energy is that of a device at its power limit, the most that it can take.
OBJECTIVES: Mapping[str, Objective] = {
    "time": Objective("time of one run", "s", lambda f, _: f.time_s),
    "memory": Objective("memory of a device", "B", lambda f, _: f.memory_bytes),
    "throughput": Objective("time of a device for an item", "s", lambda f, _: 1 / f.rate),
    "energy": Objective("energy of an item, at the power limit", "J", lambda f, target: _watts(target) / f.rate),
    "cost": Objective("cost of a million items", "", lambda f, target: 1e6 * _price(target) / 3600 / f.rate),
}  # fmt: skip
