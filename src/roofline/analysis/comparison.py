"""Chips side by side on one program: times, what bounds them, what fits, and what a better figure would buy.

The elasticity of the time to a figure is the share of the time that one per cent more of it saves, in per cent:
``-d log(time) / d log(figure)`` for a rate or a capacity, ``d log(time) / d log(figure)`` for a cost. It is 1 where
the figure alone sets the pace and 0 where it does not matter. It is a central difference over :data:`STEP`, since tiles
and waves make the time a little uneven. A changed figure keeps everything else of its chip: efficiencies, their
provenance, and figures that nobody published and that the time model derives from others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, inf, log
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.analysis.estimates import Estimate, Mode, estimate
from roofline.analysis.evaluation import known_at
from roofline.cost import GROUPS, REGIME, uses_tf32, values
from roofline.cost.cpu import is_described
from roofline.cost.machine import machine
from roofline.counting.memory import RESERVE
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.figures import FIGURES, Edit, altered, figure
from roofline.hardware.library import AnyChip, chip_list
from roofline.hardware.library import chip as find_chip
from roofline.hardware.parts import FrozenDict
from roofline.ir.errors import MissingFigure, UsageError
from roofline.ir.graph import Graph
from roofline.ir.report import Report, size_words, subject
from roofline.ir.units import format_bytes, format_si

if TYPE_CHECKING:
    import pandas as pd

#: Factor by which a figure is changed up and down for its elasticity.
STEP = 1.02

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


def changed(chip: AnyChip, **factors: float) -> Chip:
    """Multiply figures of a chip and leave everything else as it was, its efficiencies and their provenance too.

    Args:
        chip: A name or a chip.
        factors: By the names of :data:`~roofline.hardware.figures.FIGURES`, or ``peak_bf16`` and the like for the peak
            of one format.

    Returns:
        The changed chip, under the same name.

    Raises:
        UnknownChip: No chip of that name.
        UsageError: No figure of that name, or a factor that is not above zero.
        MissingFigure: The chip does not list it.

    Example:
        >>> import roofline as rl
        >>> better = changed("h100-sxm", memory_bandwidth=2, peak_bf16=1.5)
        >>> better.bandwidth / rl.chip("h100-sxm").bandwidth, better.efficiency.calibrated
        (2.0, 'measured')
    """
    chip = find_chip(chip)
    for name, factor in factors.items():
        if not (isinstance(factor, int | float) and 0 < factor < inf):
            raise UsageError(f"{name}={factor!r}: expected a factor above zero")
        edits = figure(name).edits(chip, float(factor))
        if not edits:
            raise MissingFigure(f"{chip.name} lists no {figure(name).words}; nothing to change")
        if name in _DERIVED:
            edits += _DERIVED[name](chip, float(factor))
        chip = altered(chip, edits, alone=True)
    return chip


def _pinned_cache(chip: Chip, _: float) -> list[Edit]:
    """A cache's bandwidth that is derived from main memory's stays where it was."""
    if chip.cache is None or chip.cache.bandwidth is not None:
        return []
    return [("memory", chip.memory.index(chip.cache), "bandwidth", machine(chip).cache_bandwidth)]


def _launches(chip: Chip, factor: float) -> list[Edit]:
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
    return [("efficiency", "", "parameters", FrozenDict(changed))]


#: What else a figure changes, or holds in place, because the time model derives it.
_DERIVED: dict[str, Callable[[Chip, float], list[Edit]]] = {"memory_bandwidth": _pinned_cache, "launch": _launches}


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
        figures = self.estimate.records()[0]
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
        regimes = dict.fromkeys(row.estimate.regime for row in self.rows if row.estimate is not None)
        return subject(self.graph, chips, self.mode, points) | {"regime": next(iter(regimes), REGIME)}

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
    pull = f", {row.elasticity[most]:.2f} by {figure(most).words}" if most else ""
    why = f"; {row.reason}" if row.reason else ""
    sizes = "".join(f", {size}" for size in size_words(est.subject()))
    return f"{row.chip.name}{sizes}: {time} ({low} to {high}), {est.bound}-bound{pull}{why}"


def compare(
    program: Program,
    chips: AnyChip | Sequence[AnyChip],
    *,
    mode: Mode = "eager",
    tf32: bool | None = None,
    regime: str = REGIME,
    reserve: str | float = RESERVE,
    what_if: Mapping[str, Mapping[str, float]] | None = None,
    elasticity: bool = True,
    phase: str | None = None,
    dtype: str | None = None,
    **sizes: Any,
) -> Comparison:
    """Put chips side by side on one program, and say what better figures of each would buy.

    A chip that lacks a figure, or on which the program does not fit, stays in the table with the reason.

    Args:
        program: A graph, a shipped name, or the path of a model file, workload, config or script.
        chips: Names or chips.
        mode: As for :func:`roofline.estimate`.
        tf32: As for :func:`roofline.estimate`.
        regime: As for :func:`roofline.estimate`.
        reserve: Memory that driver and framework keep [byte], a number or text such as ``"1 GiB"``.
        what_if: By name, figures of :data:`FIGURES` and their factors; :data:`WHAT_IF` by default.
        elasticity: Whether to work out what one per cent more of each figure buys, which takes most of the time.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of everything; the program's own when absent.
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
        >>> found.rows[0].elasticity["memory_bandwidth"] > 0.6
        True
    """
    graph = as_graph(program, phase, dtype)
    questions = WHAT_IF if what_if is None else what_if
    _check_what_ifs(questions)
    how = {"mode": mode, "tf32": tf32, "regime": regime, "reserve": reserve, **sizes}
    rows = [row for chip in chip_list(chips) for row in _candidates(graph, chip, questions, elasticity, how)]
    return Comparison(graph, mode, tuple(rows))


def _check_what_ifs(questions: Any) -> None:
    if not isinstance(questions, Mapping) or not all(isinstance(factors, Mapping) for factors in questions.values()):
        raise UsageError("what_if: expected factors of figures by name, such as {'twice': {'memory_bandwidth': 2}}")
    for factors in questions.values():
        for name in factors:
            figure(name)


def _candidates(
    graph: Graph, chip: Chip, questions: Mapping[str, Mapping[str, float]], elasticity: bool, how: Any
) -> Iterator[Candidate]:
    """One chip at every point, with its elasticities and what-ifs."""
    try:
        base = estimate(graph, chip, **how)
        assert np.all(base.throughput > 0)
        assert base.memory
    except MissingFigure as error:
        yield Candidate(chip, None, reason=str(error))
        return
    if len(base.shape) > 1:
        raise UsageError(f"compare: one size may be a list; given {', '.join(base.axis_names)}")
    listed = (*_formats(base), *FIGURES) if elasticity else ()
    names = [name for name in listed if name not in _SUMS and figure(name).known(chip)]
    then = {name: own for name, factors in questions.items() if (own := _listed(chip, factors))}
    steps = [{name: factor} for name in names for factor in (STEP, 1 / STEP)]
    ratios = _ratios(graph, [_pair(chip, changed(chip, **factors)) for factors in (*steps, *then.values())], how)
    signs = [-1.0 if figure(name).cost else 1.0 for name in names]
    slopes = -np.log(ratios[: len(steps) : 2] / ratios[1 : len(steps) : 2]) / (2 * log(STEP))
    for at in np.ndindex(base.shape):
        point = known_at(base, at) if base.shape else base
        pulls = {name: sign * float(slope[at]) + 0.0 for name, sign, slope in zip(names, signs, slopes, strict=True)}
        what_if = {name: float(point.time) * float(r[at]) for name, r in zip(then, ratios[len(steps) :], strict=True)}
        yield Candidate(chip, point, pulls, what_if, _reason(point))


def _ratios(graph: Graph, pairs: Sequence[tuple[Chip, Chip]], how: Any) -> Any:
    """Times on the second chips over those on the first, each distinct chip estimated once."""
    alike: dict[int, Chip] = {id(chip): chip for pair in pairs for chip in pair}
    # Chips hash by their names, and what is cached of many chips of one name is searched one by one.
    named = [chip.model_copy(update={"name": f"{chip.name} {number}"}) for number, chip in enumerate(alike.values())]
    times = dict(zip(alike, np.asarray(estimate(graph, named, **how).time), strict=True)) if named else {}
    return np.asarray([times[id(other)] / times[id(chip)] for chip, other in pairs])


def _listed(chip: Chip, factors: Mapping[str, float]) -> dict[str, float]:
    """Keep the figures that the chip has."""
    return {name: factor for name, factor in factors.items() if figure(name).known(chip)}


def _pair(chip: Chip, other: Chip) -> tuple[Chip, Chip]:
    """A chip and its what-if with equally many cores: the time model counts a core that more memory bandwidth feeds
    than a small one can use as several, and another bandwidth is not to change the machine.
    """
    units = machine(chip).units, machine(other).units
    if units[0] == units[1]:
        return chip, other
    cores = {"cores": ceil(max(units))}
    return chip.model_copy(update=cores), other.model_copy(update=cores)


def _formats(est: Estimate) -> list[str]:
    """The matrix peaks that its contractions run at."""
    runs = (
        est.chip.matmul_runs_as(dtype, uses_tf32(row, est.chip, est.tf32)).split(" ")[:2]
        for row in est.rows
        for dtype in row.flops_by
    )
    return list(dict.fromkeys(f"peak_{name}" for name, unit in runs if unit == "matrix"))


def _reason(est: Estimate) -> str:
    """Why a program does not run there: it is larger than the memory, or nobody published how large that is."""
    try:
        room = est.chip.capacity
    except MissingFigure as error:
        return str(error)
    need = float(est.memory.total)
    return "" if need <= room else f"does not fit: needs {format_bytes(need)}, has {format_bytes(room)}"
