"""Chips side by side on one program: times, what bounds them, what fits, and what a better figure would buy.

The elasticity of the time to a figure is the share of the time that one per cent more of it saves, in per cent:
``-d log(time) / d log(figure)`` for a rate or a capacity, ``d log(time) / d log(figure)`` for a cost. It is 1 where
the figure alone sets the pace and 0 where it does not matter. It is a central difference over :data:`STEP`, since tiles
and waves make the time a little uneven. A changed figure keeps everything else of its chip: efficiencies, their
provenance, and figures that nobody published and that the time model derives from others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, inf, log
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.analysis.estimates import Estimate, Mode, estimate
from roofline.cost import GROUPS, values
from roofline.cost.cpu import is_described
from roofline.cost.machine import machine
from roofline.counting.memory import RESERVE
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip, chip_list
from roofline.hardware.parts import FrozenDict, Link, MemoryLevel
from roofline.ir.errors import MissingFigure, UsageError, did_you_mean
from roofline.ir.graph import Graph
from roofline.ir.report import Report, subject
from roofline.ir.units import format_bytes, format_si

if TYPE_CHECKING:
    import pandas as pd

#: Factor by which a figure is changed up and down for its elasticity.
STEP = 1.02

Change = Callable[[Chip, float], Chip]


@dataclass(frozen=True)
class Figure:
    """A figure of a chip that can be changed alone.

    Attributes:
        words: What it is.
        change: The chip with the figure multiplied.
        known: Whether a chip lists it.
        cost: Whether less of it is better.
    """

    words: str
    change: Change
    known: Callable[[Chip], bool]
    cost: bool = False


# --- changing one figure ----------------------------------------------------------------------------------------------


def _with(chip: Chip, **parts: Any) -> Chip:
    """The chip with other parts; unlike a what-if by :meth:`Chip.replace` its efficiencies keep their provenance."""
    return chip.model_copy(update=parts)


def _peaks(chip: Chip, unit: str, factor: float, only: str = "") -> Chip:
    peaks = {
        name: peak.model_copy(update={"flops": peak.flops * factor}) if only in ("", name) else peak
        for name, peak in getattr(chip, unit).items()
    }
    return _with(chip, **{unit: FrozenDict(peaks)})


def _levels(chip: Chip, change: Callable[[int, MemoryLevel], Mapping[str, Any]]) -> Chip:
    return _with(chip, memory=tuple(level.model_copy(update=change(at, level)) for at, level in enumerate(chip.memory)))


def _bandwidth(chip: Chip, factor: float) -> Chip:
    """Main memory alone: a cache's bandwidth that is derived from it stays where it was."""
    cache_bandwidth = machine(chip).cache_bandwidth

    def change(at: int, level: MemoryLevel) -> Mapping[str, Any]:
        if at == 0:
            return {"bandwidth": chip.bandwidth * factor}
        return {"bandwidth": cache_bandwidth} if level is chip.cache and level.bandwidth is None else {}

    return _levels(chip, change)


def _cache(figure: str) -> Change:
    def change(chip: Chip, factor: float) -> Chip:
        return _levels(
            chip, lambda _, level: {figure: getattr(level, figure) * factor} if level is chip.cache else {}
        )  # fmt: skip

    return change


def _sram(chip: Chip, factor: float) -> Chip:
    """The capacity of everything on the chip."""
    return _levels(chip, lambda at, level: {"capacity": level.capacity * factor} if at and level.capacity else {})


def _links(kind: str) -> Change:
    def scaled(link: Link, factor: float) -> Link:
        peer = link.per_peer and link.per_peer * factor
        return link.model_copy(update={"bandwidth": link.bandwidth * factor, "per_peer": peer})

    def change(chip: Chip, factor: float) -> Chip:
        return _with(chip, links=tuple(scaled(link, factor) if link.kind == kind else link for link in chip.links))

    return change


def _launch(chip: Chip, factor: float) -> Chip:
    """The fixed cost of a kernel, in every class of kernels."""
    own = chip.efficiency.parameters
    tables = {name: dict(table) for name, table in own.items()}
    for name, known in GROUPS.items():
        if "launch" in known and (name in own or is_described(chip) or not name.startswith("cpu_")):
            tables.setdefault(name, {})["launch"] = values(chip, name).get("launch", 0.0)
    changed = {
        name: FrozenDict({key: value * factor if key == "launch" else value for key, value in table.items()})
        for name, table in tables.items()
    }
    update = {"launch": chip.efficiency.launch * factor, "parameters": FrozenDict(changed)}
    return _with(chip, efficiency=chip.efficiency.model_copy(update=update))


def _host(chip: Chip, factor: float) -> Chip:
    return _with(chip, efficiency=chip.efficiency.model_copy(update={"host": chip.efficiency.host * factor}))


def _has_link(kind: str) -> Callable[[Chip], bool]:
    return lambda chip: any(link.kind == kind for link in chip.links)


def _has_cache(figure: str) -> Callable[[Chip], bool]:
    return lambda chip: chip.cache is not None and getattr(chip.cache, figure) is not None


#: Figures by name; the matrix peak of each format in use is one more, ``peak_bf16``.
FIGURES: dict[str, Figure] = {
    "peak": Figure("matrix peaks", lambda chip, f: _peaks(chip, "matrix", f), lambda chip: bool(chip.matrix)),
    "vector_peak": Figure("vector peaks", lambda chip, f: _peaks(chip, "vector", f), lambda chip: bool(chip.vector)),
    "memory_bandwidth": Figure("memory bandwidth", _bandwidth, lambda chip: chip.main.bandwidth is not None),
    "cache_capacity": Figure("capacity of the shared cache", _cache("capacity"), _has_cache("capacity")),
    "cache_bandwidth": Figure("bandwidth of the shared cache", _cache("bandwidth"), _has_cache("bandwidth")),
    "sram": Figure("capacity of all memory on the chip", _sram, lambda chip: len(chip.memory) > 1),
    "link_bandwidth": Figure("links to other devices", _links("device"), _has_link("device")),
    "host_bandwidth": Figure("link to the host", _links("host"), _has_link("host")),
    "launch": Figure("fixed cost of a kernel", _launch, lambda _: True, cost=True),
    "host": Figure("host time of a launch", _host, lambda _: True, cost=True),
}
#: Figures whose elasticity is a part of another's.
_SUMS = ("peak", "sram")

#: What-ifs that every comparison answers: by name, the figures and their factors.
WHAT_IF: dict[str, dict[str, float]] = {
    "peak x2": {"peak": 2, "vector_peak": 2},
    "bandwidth x2": {"memory_bandwidth": 2},
    "SRAM x4": {"sram": 4},
    "links x2": {"link_bandwidth": 2},
    "launch /2": {"launch": 0.5},
    "host /2": {"host": 0.5},
}


def changed(chip: Chip, **factors: float) -> Chip:
    """A chip with some figures multiplied and everything else as it was, its efficiencies and their provenance too.

    Args:
        chip: The chip.
        factors: By the names of :data:`FIGURES`, or ``peak_bf16`` and the like for the peak of one format.

    Raises:
        UsageError: No figure of that name, or a factor that is not above zero.
        MissingFigure: The chip does not list it.

    Example:
        >>> import roofline as rl
        >>> better = changed(rl.chip("h100-sxm"), memory_bandwidth=2, peak_bf16=1.5)
        >>> better.bandwidth / rl.chip("h100-sxm").bandwidth, better.efficiency.calibrated
        (2.0, 'measured')
    """
    for name, factor in factors.items():
        if not (isinstance(factor, int | float) and 0 < factor < float("inf")):
            raise UsageError(f"{name}={factor!r}: a factor above zero is wanted")
        figure = _figure(name)
        if not figure.known(chip):
            raise MissingFigure(f"{chip.name} lists no {figure.words}; nothing to change")
        chip = figure.change(chip, float(factor))
    return chip


def _figure(name: str) -> Figure:
    if name in FIGURES:
        return FIGURES[name]
    if name.startswith("peak_"):
        fmt = name.removeprefix("peak_")
        return Figure(f"{fmt} matrix peak", lambda chip, f: _peaks(chip, "matrix", f, fmt), lambda c: fmt in c.matrix)
    allowed = [*FIGURES, "peak_bf16"]
    raise UsageError(f"unknown figure {name!r}; allowed: {', '.join(allowed)}{did_you_mean(name, allowed)}")


# --- the comparison ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """One chip at one point.

    Attributes:
        chip: The chip.
        estimate: What to expect there, ``None`` where there is no figure to say it by.
        elasticity: By figure, the share of the time that one per cent better saves [%/%].
        what_if: By name, the time with the changed figures [s].
        reason: Why there is no time, or why it does not run; empty where it does.
    """

    chip: Chip
    estimate: Estimate | None
    elasticity: Mapping[str, float] = field(default_factory=dict)
    what_if: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    @property
    def runs(self) -> bool:
        """True where it has a time and fits."""
        return self.estimate is not None and not self.reason

    def record(self) -> dict[str, Any]:
        """Plain numbers: the estimate's, elasticities and what-ifs."""
        if self.estimate is None:
            return {"chip": self.chip.name, "time_s": None, "fits": None, "reason": self.reason}
        figures = _record(self.estimate)
        return {
            **figures,
            "reason": self.reason,
            "elasticity": dict(self.elasticity),
            "what_if": {
                name: {"time_s": time, "speedup": float(self.estimate.time) / time}
                for name, time in self.what_if.items()
            },
        }


@dataclass(frozen=True, repr=False)
class Comparison(Report):
    """Chips side by side.

    From :func:`roofline.compare`.

    Attributes:
        graph: The program.
        mode: How it runs.
        rows: One contender a chip and point, in the order that was asked for.
    """

    schema = "compare"

    graph: Graph
    mode: str
    rows: tuple[Candidate, ...]

    @property
    def best(self) -> Candidate | None:
        """The fastest that runs by throughput, ``None`` where none does."""
        running = [row for row in self.rows if row.runs]
        return max(running, key=lambda row: float(row.estimate.throughput)) if running else None  # type: ignore[union-attr]

    def subject(self) -> dict[str, Any]:
        """Return the program, the chips, how it runs, and its sizes."""
        chips = list(dict.fromkeys(row.chip.name for row in self.rows))
        sizes: dict[str, Any] = {}
        for row in self.rows:
            for name, size in row.estimate.grid.values.items() if row.estimate is not None else ():
                sizes.setdefault(name, {})[size] = None
        points = {name: next(iter(values)) if len(values) == 1 else list(values) for name, values in sizes.items()}
        return subject(self.graph, chips, self.mode, points)

    def summary(self) -> dict[str, Any]:
        """Return the chip of the best throughput."""
        best = self.best
        return {"best_chip": best.chip.name if best else None}

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per chip and point; elasticities and what-ifs by name."""
        return [row.record() for row in self.rows]

    def frame(self) -> pd.DataFrame:
        """Return one row per chip and point; elasticities and what-ifs are columns."""
        return super().frame().drop(columns="not_modelled", errors="ignore")

    def __repr__(self) -> str:
        lines = [f"  {_line(row)}" for row in self.rows]
        return "\n".join([f"<Comparison {self.graph.name}, {self.mode}:", *lines]) + ">"


def _line(row: Candidate) -> str:
    if row.estimate is None:
        return f"{row.chip.name}: {row.reason}"
    est = row.estimate
    time, low, high = (format_si(float(value), "s") for value in (est.time, est.low, est.high))
    most = max(row.elasticity, key=lambda name: row.elasticity[name], default="")
    pull = f", {row.elasticity[most]:.2f} by {_figure(most).words}" if most else ""
    why = f"; {row.reason}" if row.reason else ""
    sizes = "".join(f" {name}={value:,}" for name, value in est.grid.values.items() if isinstance(value, int))
    return f"{row.chip.name}{sizes}: {time} ({low} to {high}), {est.bound}-bound{pull}{why}"


def _record(est: Estimate) -> dict[str, Any]:
    """The estimate's own record, also of a chip whose capacity nobody published."""
    if est.chip.main.capacity is not None:
        return est.records()[0]
    endless = _levels(est.chip, lambda at, _: {} if at else {"capacity": inf})
    return {**replace(est, chips=(endless,)).records()[0], "capacity_bytes": None, "fits": None}


def compare(
    program: Program,
    chips: AnyChip | Sequence[AnyChip],
    *,
    mode: Mode = "eager",
    tf32: bool = False,
    reserve: float = RESERVE,
    what_if: Mapping[str, Mapping[str, float]] | None = None,
    phase: str | None = None,
    dtype: str | None = None,
    weights: str | None = None,
    cache: str | None = None,
    **sizes: Any,
) -> Comparison:
    """Put chips side by side on one program, and say what better figures of each would buy.

    A chip that lacks a figure, or on which the program does not fit, stays in the table with the reason.

    Args:
        program: A graph, a shipped name, or the path of a model file, workload, config or script.
        chips: Names or chips.
        mode: As for :func:`roofline.estimate`.
        tf32: As for :func:`roofline.estimate`.
        reserve: Memory that driver and framework keep [byte].
        what_if: By name, figures of :data:`FIGURES` and their factors; :data:`WHAT_IF` by default.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of everything; the program's own when absent.
        weights: Number format of the weights.
        cache: Number format of the KV cache.
        sizes: ``batch``, ``seq``, ``context`` and any other size of the program; one of them may be a list.

    Returns:
        One row per chip and point: estimate, elasticities, what-ifs, or the reason why there is none.

    Raises:
        UsageError: No chip, a figure that does not exist, or more than one size that is a list.
        UnknownChip: No chip of that name.

    Example:
        >>> found = compare("llama-3-8b", ["h100-sxm", "h200-sxm"], phase="decode", mode="graph", batch=1, context=2048)
        >>> found.best.chip.name
        'h200-sxm'
        >>> found.rows[0].elasticity["memory_bandwidth"] > 0.7
        True
    """
    graph = as_graph(program, phase, dtype, weights, cache)
    questions = WHAT_IF if what_if is None else what_if
    _check_what_ifs(questions)
    how = {"mode": mode, "tf32": tf32, "reserve": reserve, **sizes}
    rows = [row for chip in chip_list(chips) for row in _candidates(graph, chip, questions, how)]
    return Comparison(graph, mode, tuple(rows))


def _check_what_ifs(questions: Any) -> None:
    if not isinstance(questions, Mapping) or not all(isinstance(factors, Mapping) for factors in questions.values()):
        raise UsageError("what_if: wanted factors of figures by name, such as {'twice': {'memory_bandwidth': 2}}")
    for factors in questions.values():
        for name in factors:
            _figure(name)


def _candidates(
    graph: Graph, chip: Chip, questions: Mapping[str, Mapping[str, float]], how: Any
) -> Iterator[Candidate]:
    """One chip at every point, with its elasticities and what-ifs."""
    try:
        base = estimate(graph, chip, **how)
        float(np.max(base.time))
    except MissingFigure as error:
        yield Candidate(chip, None, reason=str(error))
        return
    if len(base.shape) > 1:
        raise UsageError(f"compare: one size may be a list; given {', '.join(base.axis_names)}")
    names = [name for name in (*_formats(base), *FIGURES) if name not in _SUMS and _figure(name).known(chip)]
    then = {name: own for name, factors in questions.items() if (own := _listed(chip, factors))}
    steps = [{name: factor} for name in names for factor in (STEP, 1 / STEP)]
    ratios = _ratios(graph, [_pair(chip, changed(chip, **factors)) for factors in (*steps, *then.values())], how)
    slopes = -np.log(ratios[: len(steps) : 2] / ratios[1 : len(steps) : 2]) / (2 * log(STEP))
    for at in np.ndindex(base.shape):
        point = base[at] if base.shape else base
        pulls = {name: _sign(name) * float(slope[at]) + 0.0 for name, slope in zip(names, slopes, strict=True)}
        what_if = {name: float(point.time) * float(r[at]) for name, r in zip(then, ratios[len(steps) :], strict=True)}
        yield Candidate(chip, point, pulls, what_if, _reason(point))


def _ratios(graph: Graph, pairs: Sequence[tuple[Chip, Chip]], how: Any) -> Any:
    """Times on the second chips over those on the first, each distinct chip estimated once."""
    alike: dict[int, Chip] = {id(chip): chip for pair in pairs for chip in pair}
    # Chips hash by their names, and what is cached of many chips of one name is searched one by one.
    named = [_with(chip, name=f"{chip.name} {number}") for number, chip in enumerate(alike.values())]
    times = dict(zip(alike, np.asarray(estimate(graph, named, **how).time), strict=True)) if named else {}
    return np.asarray([times[id(other)] / times[id(chip)] for chip, other in pairs])


def _sign(name: str) -> float:
    return -1.0 if _figure(name).cost else 1.0


def _listed(chip: Chip, factors: Mapping[str, float]) -> dict[str, float]:
    """Keep the figures that the chip has."""
    return {name: factor for name, factor in factors.items() if _figure(name).known(chip)}


def _pair(chip: Chip, other: Chip) -> tuple[Chip, Chip]:
    """A chip and its what-if with equally many cores: the time model counts a core that more memory bandwidth feeds
    than a small one can use as several, and another bandwidth is not to change the machine.
    """
    units = machine(chip).units, machine(other).units
    if units[0] == units[1]:
        return chip, other
    return _with(chip, cores=ceil(max(units))), _with(other, cores=ceil(max(units)))


def _formats(est: Estimate) -> list[str]:
    """The matrix peaks that its contractions run at."""
    runs = (est.chip.matmul_runs_as(dtype, est.tf32).split(" ")[:2] for row in est.rows for dtype in row.flops_by)
    return list(dict.fromkeys(f"peak_{name}" for name, unit in runs if unit == "matrix"))


def _reason(est: Estimate) -> str:
    """Why a program does not run there: it is larger than the memory, or nobody published how large that is."""
    try:
        room = est.chip.capacity
    except MissingFigure as error:
        return str(error)
    need = float(est.memory.total)
    return "" if need <= room else f"does not fit: needs {format_bytes(need)}, has {format_bytes(room)}"
