"""Bit widths per layer: the least predicted time or memory under an error, and the reverse, as a front.

Each layer takes one format of several. What it costs is the time of the whole program with this layer alone quantised
(:func:`roofline.estimate`), what it spoils is its error alone (:func:`roofline.quant.sensitivity`); both are added up
over layers, and the choices that no others beat are found exactly (:mod:`roofline.quant.fronts`). Sums are first-order,
and a chip at its power cap is not even that: the plans that are shown are estimated and measured again as wholes, those
whose estimate another one beats are left out, and a limit holds for what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NoReturn, get_args

import numpy as np

from roofline.analysis.estimates import Mode, estimate
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import DoesNotFit, UsageError
from roofline.ir.graph import Graph
from roofline.ir.numbers import finite_number
from roofline.ir.report import Report, subject
from roofline.ir.sizes import one_of, prod
from roofline.ir.units import format_si
from roofline.ir.units import limit as most
from roofline.passes.formats.quantize import chosen
from roofline.quant.fronts import MOST_POINTS, Front, front
from roofline.quant.sensitivities import Formats, Sensitivity, with_formats

Against = Literal["time", "memory"]
#: Points along a front against time that are estimated as wholes.
ESTIMATED = 48


@dataclass(frozen=True, slots=True)
class Plan:
    """A format for each layer, as a pass that can be replayed.

    From :func:`roofline.quant.mixed`.

    Attributes:
        formats: By the name of a layer's weight; all others stay as they are.
        activations: Format that quantised layers take their inputs in, or ``None``.
        time: Estimated, of the whole program [s].
        time_sum: The same as a sum over layers [s].
        weight_bytes: Of all weights of the program [byte].
        error_sum: Errors of the layers, added up.
        error: Measured, with all formats at once.
        score: What the evaluation gave for it; ``None`` without one.
    """

    formats: Formats
    activations: str | None
    time: float
    time_sum: float
    weight_bytes: float
    error_sum: float
    error: float
    score: float | None

    def apply(self, graph: Graph) -> Graph:
        """Quantise a program so; any with weights of these names."""
        return with_formats(graph, self.formats, self.activations)

    @property
    def call(self) -> str:
        """The same as a call of Python."""
        more = f", activations={self.activations!r}" if self.activations else ""
        return f"rl.passes.quantize(graph, weights={dict(self.formats)!r}{more})" if self.formats else "graph"


@dataclass(frozen=True, repr=False, eq=False)
class BitWidths(Report):
    """Formats per layer that no others beat, from :func:`roofline.quant.mixed`.

    Attributes:
        graph: The program that is timed.
        chip: Where.
        mode: How it runs.
        sizes: Its sizes.
        against: What the front holds against the error: ``time`` or ``memory``.
        plans: Some plans of the front, from the least error to the least time or memory.
        best: The plan for the limit that was given; ``None`` without one.
        limit: What was asked for, in words.
        points: How many choices the front has.
        gap: How far the sum of a plan may lie above the least one for its error [s or byte]; 0: the front is exact.
        measured: How errors were measured.
    """

    schema = "bit_widths"

    graph: Graph
    chip: Chip
    mode: str
    sizes: Mapping[str, Any]
    against: Against
    plans: tuple[Plan, ...]
    best: Plan | None
    limit: str
    points: int
    gap: float
    measured: str

    @property
    def additivity(self) -> float:
        """The largest difference of an estimate of a whole and the sum over its layers, over the estimate."""
        return max(abs(plan.time_sum / plan.time - 1) for plan in self.shown)

    @property
    def shown(self) -> tuple[Plan, ...]:
        """Plans along the front, and the best one behind them where it is none of them."""
        alone = self.best is not None and all(plan is not self.best for plan in self.plans)
        return (*self.plans, *([self.best] if self.best and alone else []))

    def subject(self) -> dict[str, Any]:
        """Return which program, where, and how errors were measured."""
        about = subject(self.graph, self.chip.name, self.mode, self.sizes)
        return {**about, "against": self.against, "limit": self.limit or None, "measured": self.measured}

    def summary(self) -> dict[str, Any]:
        """Return the size of the front, how exact it is, and the plan for the limit."""
        best = {"formats": dict(self.best.formats), "call": self.best.call} if self.best else None
        return {"points": self.points, "gap": self.gap, "additivity": self.additivity, "best": best}

    def records(self) -> list[dict[str, Any]]:
        """Return a row for each plan."""
        return [
            {"time_s": plan.time, "time_sum_s": plan.time_sum, "weight_bytes": plan.weight_bytes,
             "error": plan.error, "error_sum": plan.error_sum, "score": plan.score,
             "is_best": plan is self.best, "formats": counted(plan, self.graph)}
            for plan in self.shown
        ]  # fmt: skip

    def __str__(self) -> str:
        what = f"{self.points} choices that no others beat in error and {self.against}"
        head = f"{self.graph.name} on {self.chip.name}: {what}"
        lines = [head, f"{'time':>10} {'weights':>10} {'error':>10} {'sum':>10}  formats"]
        for plan in self.shown:
            formats = ", ".join(f"{number} {word}" for word, number in counted(plan, self.graph).items())
            mark = f" <- {self.limit}" if plan is self.best else ""
            lines.append(
                f"{format_si(plan.time, 's'):>10} {format_si(plan.weight_bytes, 'B'):>10} {plan.error:>10.2e} "
                f"{plan.error_sum:>10.2e}  {formats}{mark}"
            )
        exact = "exact" if not self.gap else f"within {format_si(self.gap, 's' if self.against == 'time' else 'B')}"
        lines.append(f"front of the sums: {exact}; sums of times differ from estimates by up to {self.additivity:.1%}")
        return "\n".join(lines)

    __repr__ = __str__


def counted(plan: Plan, graph: Graph) -> dict[str, int]:
    """Return how many layers have each format, those that stay among them."""
    layers = dict.fromkeys(matrix.root for matrix, _ in chosen(graph, "int8", None))
    words = [plan.formats.get(name, graph.tensors[name].dtype) for name in dict.fromkeys((*layers, *plan.formats))]
    return {word: words.count(word) for word in dict.fromkeys(words)}


def mixed(
    costs: Sensitivity,
    chip: AnyChip,
    *,
    program: Graph | None = None,
    mode: Mode = "graph",
    against: Against | None = None,
    error_limit: float | None = None,
    latency_limit: str | float | None = None,
    memory_limit: str | float | None = None,
    plans: int = 7,
    most: int = MOST_POINTS,
    **sizes: Any,
) -> BitWidths:
    """Choose a format for each layer: the least predicted time or memory for an error, and the reverse.

    Args:
        costs: From :func:`roofline.quant.sensitivity`.
        chip: A name, a path or a chip.
        program: What is timed, where that is another one with weights of these names: a decode step, say.
        mode: As for :func:`roofline.estimate`.
        against: What the front holds against the error: ``time``, or ``memory`` of the weights.
        error_limit: The largest error, measured with all formats at once; the best plan has the least time or memory.
        latency_limit: The largest estimated time [s], or text such as ``"2 ms"``; the best plan has the least error.
        memory_limit: The largest size of all weights [byte], or text such as ``"5 GB"``; as for ``latency_limit``.
        plans: How many plans of the front are estimated and measured as wholes.
        most: Points to carry from layer to layer before the front is thinned.
        sizes: Of the program that is timed: ``batch``, ``context``, ...

    Returns:
        Plans along the front, and the best one under the limit.

    Raises:
        UsageError: More than one limit, a program without a weight of ``costs``, or a number below 1 of plans.
        DoesNotFit: No plan holds the limit; says how near it comes.
        MissingFigure: The chip has no rate for a format.

    Example:
        >>> import torch
        >>> from roofline.quant import mixed, sensitivity
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(3)))
        >>> costs = sensitivity(net, [torch.randn(16, 128)], ["int8", "int4-g128"])
        >>> best = mixed(costs, "h100-sxm", memory_limit="40 kB", plans=2).best
        >>> sorted(best.formats.values()), best.weight_bytes
        (['int4-g128', 'int4-g128', 'int8'], 35584.0)
    """
    what, limit = one_limit({"error": error_limit, "latency": latency_limit, "memory": memory_limit})
    against = against or ("memory" if what == "memory" else "time")
    one_of("against", against, get_args(Against))
    if what and against != HELD.get(what, against):
        raise UsageError(f"{what}_limit holds on a front against {HELD[what]}, not against {against}")
    if isinstance(plans, bool) or not isinstance(plans, int) or plans < 1:
        raise UsageError(f"plans={plans!r}; allowed: a whole number from 1")
    work = _Choice(costs, find_chip(chip), program or costs.graph, mode, sizes, against, most)
    shown = tuple(work.plan(work.unbeaten[at]) for at in _spread(len(work.unbeaten), plans))
    best, within = (work.within(what, limit), f"{what} within {limit_text(what, limit)}") if what else (None, "")
    return BitWidths(work.program, work.chip, mode, sizes, against, shown, best, within, len(work.front.costs),
                     work.front.gap, costs.measured)  # fmt: skip


#: The front that a limit is a point of, and its unit.
HELD, _UNITS = {"latency": "time", "memory": "memory"}, {"latency": "s", "memory": "B"}


def one_limit(limits: Mapping[str, Any]) -> tuple[str, float]:
    """Return which limit there is and what it is in SI; an empty word for none."""
    limited = [word for word, limit in limits.items() if limit is not None]
    if len(limited) > 1:
        raise UsageError(f"{limited[0]}_limit and {limited[1]}_limit: give one; the front shows the others")
    if not limited:
        return "", 0.0
    what, limit = limited[0], limits[limited[0]]
    name = f"{what}_limit"
    return what, most(name, limit, _UNITS[what]) if what in _UNITS else finite_number(name, limit, 0.0)


def limit_text(what: str, limit: float) -> str:
    """Return a limit with its unit."""
    return format_si(limit, _UNITS[what]) if what in _UNITS else f"{limit:.3g}"


def _spread(points: int, some: int) -> list[int]:
    """Numbers of points along a front, from the least error on, both ends among them."""
    return sorted({int(at) for at in np.linspace(0, points - 1, min(some, points)).round()}, reverse=True)


class _Choice:
    """The front over layers of one program on one chip, and its points as plans."""

    def __init__(
        self, costs: Sensitivity, chip: Chip, program: Graph, mode: Mode, sizes: Mapping[str, Any], against: Against,
        most: int,
    ) -> None:  # fmt: skip
        self.costs, self.chip, self.program, self.mode, self.sizes = costs, chip, program, mode, sizes
        self.against = against
        self.layers = list(costs.layers)
        if missing := [name for name in self.layers if name not in program.tensors]:
            raise UsageError(f"{program.name} has no weight {missing[0]!r}, which the sensitivities are of")
        self.options = [("", *(row.format for row in rows)) for rows in costs.layers.values()]
        self.base, self.base_bytes = self._time({}), weight_bytes(program)
        self.times, self.bytes = self._changes()
        errors = [[0.0, *(max(row.error, 0.0) for row in rows)] for rows in costs.layers.values()]
        self.front: Front = front(self.times if against == "time" else self.bytes, errors, most)
        self._plans: dict[int, Plan] = {}
        self._known: dict[int, float] = {}

    def _quantized(self, formats: Formats) -> Graph:
        return with_formats(self.program, formats, self.costs.recipe.activations)

    def _time(self, formats: Formats) -> float:
        return float(estimate(self._quantized(formats), self.chip, mode=self.mode, **self.sizes).time)

    def _changes(self) -> tuple[list[list[float]], list[list[float]]]:
        """Work out what each format of each layer alone changes time and bytes by; once for layers that are alike."""
        known: dict[Any, tuple[float, float]] = {}
        kinds = _kinds(self.program)

        def change(name: str, word: str) -> tuple[float, float]:
            key = (kinds[name], word)
            if key not in known:
                narrow = weight_bytes(self._quantized({name: word}))
                known[key] = self._time({name: word}) - self.base, narrow - self.base_bytes
            return known[key]

        pairs = [
            [change(name, word) if word else (0.0, 0.0) for word in words]
            for name, words in zip(self.layers, self.options, strict=True)
        ]
        times, sizes = ([[pair[part] for pair in row] for row in pairs] for part in (0, 1))
        return times, sizes

    def time(self, at: int) -> float:
        """Estimate a point of the front as a whole."""
        if at not in self._known:
            self._known[at] = self._time(self.formats(at))
        return self._known[at]

    @cached_property
    def unbeaten(self) -> list[int]:
        """Points along the front that none with less error beats as a whole, either, by ascending cost."""
        points = len(self.front.costs)
        if self.against == "memory":
            return list(range(points))
        fastest, stay = np.inf, list[int]()
        for at in _spread(points, ESTIMATED):
            if self.time(at) < fastest:
                fastest = self.time(at)
                stay.append(at)
        return stay[::-1]

    def formats(self, at: int) -> dict[str, str]:
        """Return the formats of a point of the front."""
        picks = zip(self.layers, self.options, self.front.choices[at], strict=True)
        return {name: words[pick] for name, words, pick in picks if pick}

    def plan(self, at: int) -> Plan:
        """Estimate and measure a point of the front as a whole."""
        if at not in self._plans:
            formats = self.formats(at)
            time, size = (
                start + sum(row[pick] for row, pick in zip(rows, self.front.choices[at], strict=True))
                for start, rows in ((self.base, self.times), (self.base_bytes, self.bytes))
            )
            self._plans[at] = Plan(
                formats, self.costs.recipe.activations, self.time(at), time, size, float(self.front.errors[at]),
                *self.costs.measure(formats),
            )  # fmt: skip
        return self._plans[at]

    def within(self, what: str, limit: float) -> Plan:
        """Return the plan at the end of what a limit leaves of the front, by estimates and measurements of wholes."""
        if what == "error":
            return self._within_error(limit)
        last = len(self.front.costs) - 1
        if what == "memory":
            fits = int((self.front.costs + self.base_bytes <= limit).sum())
            return self.plan(fits - 1) if fits else self._refuse(what, self.base_bytes + self.front.costs[0], limit)
        fitting = [at for at in self.unbeaten if self.time(at) <= limit]
        if not fitting:
            self._refuse(what, min(map(self.time, self.unbeaten)), limit)
        at = fitting[-1]  # the least error of those that were estimated; there may be less before the next one
        beyond = next((each for each in self.unbeaten if each > at), last + 1) - at - 1
        more = _first(beyond, lambda back: self.time(at + beyond - back) <= limit, beyond // 2)
        return self.plan(at + beyond - more)

    def _within_error(self, limit: float) -> Plan:
        """Return the cheapest plan whose measured error holds, by its estimate as a whole."""
        last = len(self.front.costs) - 1  # the errors fall along the front
        at = _first(last, lambda point: self.plan(point).error <= limit, int((self.front.errors > limit).sum()))
        if self.plan(at).error > limit:
            self._refuse("error", self.plan(at).error, limit)
        others = [each for each in self.unbeaten if each > at] if self.against == "time" else []
        fast = sorted((each for each in others if self.time(each) < self.time(at)), key=self.time)
        return next((self.plan(each) for each in fast if self.plan(each).error <= limit), self.plan(at))

    def _refuse(self, what: str, least: float, limit: float) -> NoReturn:
        raise DoesNotFit(
            f"{self.program.name}: no choice of these formats has {what} within {limit_text(what, limit)}; "
            f"the least is {limit_text(what, least)}"
        )


def _first(last: int, holds: Callable[[int], bool], aim: int) -> int:
    """Return the first of the points 0..last that holds, all later ones holding too; the last one if none does."""
    low, high = 0, last
    probe = min(aim, last)
    while low < high:
        low, high = (low, probe) if holds(probe) else (probe + 1, high)
        probe = (low + high) // 2
    return low


def weight_bytes(graph: Graph) -> float:
    """Return the bytes of all weights as they are stored."""
    weights = (tensor for tensor in graph.tensors.values() if tensor.kind == "weight")
    return float(sum(prod(tensor.shape) * DTYPES[tensor.dtype].bits_per_element / 8 for tensor in weights))


def _kinds(graph: Graph) -> dict[str, Any]:
    """Tell weights apart that programs read differently: equal for layers that take as long, in any format."""

    def shapes(names: Sequence[str]) -> Any:
        return tuple((graph.tensors[name].shape, graph.tensors[name].dtype) for name in names)

    kinds: dict[str, list[Any]] = {}
    for matrix, _ in chosen(graph, "int8", ()):
        kernel = [(node.op, node.attrs, shapes(node.inputs)) for node in graph.kernels[matrix.node.label]]
        kinds.setdefault(matrix.root, []).append((matrix.position, graph.tensors[matrix.root].shape, tuple(kernel)))
    return {name: tuple(readers) for name, readers in kinds.items()}
