"""The cheapest or the smallest chip that meets a target over some programs.

The chips are the outer product of the figures' values, each program timed on all of them at once
(:mod:`roofline.analysis.chip_sweep`) and each priced part by part (:mod:`roofline.codesign.silicon`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.analysis.chip_sweep import POINTS, FigureSweep, sweep_chip
from roofline.analysis.comparison import compare
from roofline.analysis.estimates import MODES
from roofline.analysis.whatif import what_if
from roofline.codesign.silicon import Silicon, energy, silicon
from roofline.codesign.technology import Technology
from roofline.counting.grid import unbeaten
from roofline.frontends.source import Program, load_program
from roofline.hardware.chip import Chip
from roofline.hardware.lanes import chips_of
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.hardware.settings import Place, factor_of
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph
from roofline.ir.report import Report
from roofline.ir.sizes import one_of
from roofline.ir.text import shown
from roofline.ir.units import format_si, parse
from roofline.ir.units import limit as most
from roofline.programs.modelfile import PHASES

Floats = NDArray[np.float64]
OBJECTIVES = {"area": "mm2", "cost": "USD", "energy": "J"}
#: Words of a goal for sizes, and for options of :func:`roofline.what_if`.
_SIZES = {"batch": "B", "B": "B", "seq": "S", "S": "S", "context": "C", "C": "C"}
_OPTIONS = {"tp": int, "pp": int, "ep": int, "weights": str, "activations": str, "cache": str, "dtype": str}
#: Other names of figures: all matrix peaks in proportion, by the fastest 16-bit one, and main memory's bandwidth.
_FLOPS, _NAMES = "flops", {"bandwidth": "memory_bandwidth", "capacity": "memory_capacity"}


@dataclass(frozen=True, eq=False)
class Goal:
    """A program, and the time that one run of it may take.

    Attributes:
        program: A graph, or what :func:`roofline.load_program` takes.
        seconds: The time; ``None`` for a program that only counts in the sum.
        phase: Of a program given by name.
        mode: As for :func:`roofline.estimate`.
        weight: How much it counts beside the others, such as runs per second.
        sizes: ``batch``, ``seq``, ``context``, and options of :func:`roofline.what_if` such as ``tp``.

    Example:
        >>> Goal.read("llama-3-8b decode batch=8 context=2048 tp=2: 20ms").seconds
        0.02
    """

    program: Program
    seconds: float | None = None
    phase: str | None = None
    mode: str = "graph"
    weight: float = 1.0
    sizes: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        most("seconds", self.seconds, "s")

    @classmethod
    def read(cls, text: str) -> Goal:
        """Read ``PROGRAM [PHASE] [NAME=VALUE ...][: TIME]``.

        Raises:
            UsageError: No program, or words that are none of these.
        """
        head, _, limit = text.rpartition(": ") if ": " in text else (text, "", "")
        name, *words = head.split() or [""]
        phase = words.pop(0) if words and words[0] in PHASES else None
        values: dict[str, Any] = {"mode": "graph", "weight": 1.0}
        sizes: dict[str, Any] = {}
        for word in words:
            key, equals, value = word.partition("=")
            if not (equals and value) or key not in (*values, *_SIZES, *_OPTIONS):
                allowed = [*PHASES, *_SIZES, *_OPTIONS, "mode", "weight"]
                raise UsageError(f"target {shown(text)}: {shown(word)}: expected a phase, or NAME=VALUE of "
                                 f"{', '.join(allowed[3:])}{did_you_mean(key, allowed)}")  # fmt: skip
            if key in values:
                values[key] = value if key == "mode" else _number(text, key, value)
            else:
                sizes[key] = value if _OPTIONS.get(key) is str else int(_number(text, key, value))
        if not name:
            raise UsageError("target: expected a program and a time, such as 'llama-3-8b decode context=2048: 20ms'")
        return cls(name, most("target", limit, "s") if limit.strip() else None, phase, sizes=sizes, **values)

    @cached_property
    def graph(self) -> Graph:
        """The program, changed as its options say."""
        options = {name: value for name, value in self.sizes.items() if name in _OPTIONS and name != "dtype"}
        graph = self.program
        if not isinstance(graph, Graph):
            graph = load_program(graph, self.phase, self.sizes.get("dtype"))
        return what_if(graph, **options) if options else graph

    @property
    def point(self) -> dict[str, int]:
        """The sizes that its graph has; a batch of one where none is given."""
        sizes = {_SIZES[name]: size for name, size in self.sizes.items() if name in _SIZES}
        sizes.setdefault("B", 1)
        if "C" in self.graph.symbols and "C" not in sizes and "S" in sizes:
            sizes["C"] = sizes["S"]
        return {name: size for name, size in sizes.items() if name in self.graph.symbols}

    @property
    def name(self) -> str:
        """Its name in results."""
        words = [f"{name}={value}" for name, value in self.sizes.items()]
        return " ".join([self.graph.title, self.graph.info.phase or "", *words]).replace("  ", " ").strip()


def _number(text: str, key: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    is_whole = key in _SIZES or key in _OPTIONS
    if not 0 < number < 1e15 or (is_whole and number != int(number)):
        what = "a whole number from 1" if is_whole else "a number above zero"
        raise UsageError(f"target {shown(text)}: {key}={shown(value)}: expected {what}")
    return number


@dataclass(frozen=True, eq=False, repr=False)
class CoDesign(Report):
    """Chips that were looked at for a target, from :func:`search`.

    Attributes:
        base: The chip that they differ from.
        goals: The programs and their limits.
        sweeps: Times of each program over the chips.
        chips: What they take: area, yield and cost, arrays over all chips.
        objective: What is least: ``area``, ``cost`` or ``energy``.
        values: The objective of each chip.
    """

    schema = "codesign"

    base: Chip
    goals: tuple[Goal, ...]
    sweeps: tuple[FigureSweep, ...]
    chips: Silicon
    objective: str
    values: Floats

    @cached_property
    def times(self) -> Floats:
        """Times of each program (down) on each chip (across) [s]."""
        return np.stack([sweep.time.ravel() for sweep in self.sweeps])

    @cached_property
    def pace(self) -> Floats:
        """The worst of the programs' times over their limits, for each chip; their weighed sum where none has one."""
        limits = np.array([np.nan if goal.seconds is None else goal.seconds for goal in self.goals])
        ratio = self.times / limits[:, None]
        if np.isnan(limits).all():
            return np.asarray(np.array([goal.weight for goal in self.goals]) @ self.times)
        return np.asarray(np.nanmax(ratio, axis=0))

    @cached_property
    def fits(self) -> Any:
        """True for each chip in whose memory all programs fit."""
        return np.all([np.ravel(sweep.results["fits"] == True) for sweep in self.sweeps], axis=0)  # noqa: E712

    @cached_property
    def able(self) -> Any:
        """Numbers of the chips that can be made and in whose memory all programs fit, the smallest first."""
        area = np.broadcast_to(self.chips.area, self.values.shape)
        able = np.flatnonzero(self.fits & np.broadcast_to(self.chips.can_be_made, self.values.shape))
        return able[np.argsort(area[able], kind="stable")]

    @cached_property
    def misses(self) -> list[tuple[str, Any]]:
        """Each limit, and True for each chip that misses it: ``die``, ``memory``, and the time of each program."""
        late = [(goal.name, times / goal.seconds > 1) for goal, times in zip(self.goals, self.times, strict=True)
                if goal.seconds is not None]  # fmt: skip
        return [("die", ~np.broadcast_to(self.chips.can_be_made, self.values.shape)), ("memory", ~self.fits), *late]

    def missed_at(self, number: int) -> list[str]:
        """Return the limits that a chip misses."""
        return [name for name, missed in self.misses if missed[number]]

    @cached_property
    def meets(self) -> Any:
        """True for each chip that can be made and meets all limits, of time and of memory."""
        return ~np.any([missed for _, missed in self.misses], axis=0)

    @cached_property
    def best(self) -> int | None:
        """Number of the chip with the least objective that meets all limits, the faster of equals, if any."""
        able = self.able[self.meets[self.able]]
        return int(able[np.lexsort((self.pace[able], self.values[able]))[0]]) if able.size else None

    @cached_property
    def nearest(self) -> int:
        """Number of the best chip, or of the one that misses the limits least."""
        return self.front[-1] if self.best is None else self.best

    @cached_property
    def front(self) -> tuple[int, ...]:
        """Numbers of the chips that can be made, fit, and that no other one beats in both objective and time.

        Where none can be made or fits, those of all chips; :attr:`misses` says why.
        """
        able = self.able if self.able.size else np.arange(self.values.size)
        return tuple(able[unbeaten(self.values[able], self.pace[able])].tolist())

    def figures_at(self, number: int) -> dict[str, str]:
        """Return the figures of a chip in words."""
        return {name: text for name, _, text in self._at(number)}

    def text_at(self, number: int) -> str:
        """Return them in a line."""
        return ", ".join(f"{name} {text}" for name, _, text in self._at(number))

    def design_at(self, number: int) -> dict[str, float]:
        """Return the figures of a chip in SI units; of those that are factors, the factors."""
        return {name: value for name, value, _ in self._at(number)}

    def _at(self, number: int) -> Iterator[tuple[str, float, str]]:
        """Yield the figures of a chip: name, value and text; all matrix peaks by the fastest of 16 bits."""
        for each, at in zip(self.sweeps[0].figures, np.unravel_index(number, self.sweeps[0].shape), strict=True):
            if each.name == "peak" and not {"bf16", "fp16"}.isdisjoint(self.base.matrix):
                rate = _rate(self.chip_at(number))
                yield _FLOPS, rate, format_si(rate, "FLOP/s")
            else:
                value = float(each.values[at])
                yield each.name, value, each.text(value)

    def chip_at(self, number: int) -> Chip:
        """Return a chip by its number."""
        return self.sweeps[0].chip_at(*(int(at) for at in np.unravel_index(number, self.sweeps[0].shape)))

    @cached_property
    def sensitivity(self) -> dict[str, dict[str, float]]:
        """Share of the time that one per cent more of a figure saves [%/%], by program, and weighed over all."""
        chip, each = self.chip_at(self.nearest), {}
        for goal in self.goals:
            row = compare(goal.graph, chip, mode=goal.mode, what_if={}, **goal.point).rows[0]  # type: ignore[arg-type]
            each[goal.name] = dict(row.elasticity)
        weights = [goal.weight * time for goal, time in zip(self.goals, self.times[:, self.nearest], strict=True)]
        names = dict.fromkeys(name for own in each.values() for name in own)
        whole = {name: float(np.average([own.get(name, 0.0) for own in each.values()], weights=weights))
                 for name in names}  # fmt: skip
        return {**each, "all": whole}

    def silicon_at(self, number: int) -> Silicon:
        """Return what one chip takes."""
        made = self.chips
        return silicon(self.chip_at(number), made.technology, yield_model=made.yield_model, dies=made.dies)

    def subject(self) -> dict[str, Any]:
        """Return the base, the technology, what is least, and the programs."""
        tech = self.chips.technology
        return {"chip": self.base.name, "node": tech.node, "memory_kind": tech.memory, "objective": self.objective,
                "programs": [goal.name for goal in self.goals],
                "limits_s": [goal.seconds for goal in self.goals]}  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """Return the best chip, what it takes, and what its figures buy."""
        made = self.silicon_at(self.nearest)
        parts = {row["part"]: row["area_mm2"] for row in made.records()}
        return {"chips": int(self.values.size), "meeting": int(np.sum(self.meets)), "met": self.best is not None,
                "best_row": self._row(self.nearest), "parts_mm2": parts,
                "left_out": list(made.left_out), "sensitivity": self.sensitivity}  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return one row per chip of the front."""
        return [self._row(number) for number in self.front]

    def _row(self, number: int) -> dict[str, Any]:
        costs = {"area_mm2": self.chips.area, "cost_usd": self.chips.cost}
        numbers = {name: float(np.broadcast_to(value, self.values.shape)[number]) for name, value in costs.items()}
        times = {goal.name: float(time) for goal, time in zip(self.goals, self.times[:, number], strict=True)}
        energy_j = float(self.values[number]) if self.objective == "energy" else None
        return {"design": self.design_at(number), **numbers, "energy_j": energy_j, "pace": float(self.pace[number]),
                "times_s": times, "meets_all": bool(self.meets[number]),
                "misses": self.missed_at(number)}  # fmt: skip

    def __repr__(self) -> str:
        row = self._row(self.nearest)
        how = "meets" if self.best is not None else "comes nearest to"
        return (f"<CoDesign of {self.values.size:,} chips: {self.text_at(self.nearest)} {how} "
                f"{len(self.goals)} targets, {row['area_mm2']:.0f} mm2, {row['cost_usd']:,.0f} USD>")  # fmt: skip


def search(
    programs: Goal | str | Iterable[Goal | str],
    figures: Mapping[str, Any],
    *,
    base: AnyChip = "h100-sxm",
    objective: str = "area",
    node: str | Technology = "N5",
    memory_kind: str | None = None,
    own: Any = None,
    points: int = POINTS,
    yield_model: str = "negative_binomial",
    dies: int = 1,
) -> CoDesign:
    """Find the chip with the least area, cost or energy that meets a target over some programs.

    Args:
        programs: Goals, or texts such as ``"llama-3-8b decode batch=8 context=2048: 10ms"``.
        figures: By name, as for :func:`roofline.sweep_chip`, values or ranges; ``flops`` is all matrix peaks in
            proportion, by the fastest of 16 bits, and ``bandwidth`` that of main memory.
        base: The chip that the others differ from.
        objective: ``area``, ``cost`` or ``energy`` (of a weighed run of all programs).
        node: As for :func:`silicon`.
        memory_kind: As for :func:`technology`.
        own: As for :func:`technology`.
        points: Values of a range.
        yield_model: As for :func:`silicon`.
        dies: As for :func:`silicon`.

    Returns:
        The best chip, what every figure of it buys, and the front of the objective against time.

    Raises:
        UsageError: No program, no figure of that name, or another objective.
        UnknownChip: No chip of that name.

    Example:
        >>> figures = {"bandwidth": "1..4TB/s", "flops": "200T..1P"}
        >>> found = search("gpt2 decode batch=8 context=512: 2ms", figures, points=4)
        >>> found.best is not None, bool(found.times[0, found.best] <= 2e-3)
        (True, True)
    """
    one_of("objective", objective, OBJECTIVES)
    chip, goals = find_chip(base), tuple(_goals(programs))
    ranges = dict(_figures(chip, figures))
    sweeps = tuple(_swept(goal, chip, ranges, points) for goal in goals)
    made = silicon(_many(sweeps[0]), node, memory_kind=memory_kind, own=own, yield_model=yield_model, dies=dies)
    number = int(sweeps[0].time.size)
    if objective == "energy":
        least: Any = _energy(goals, sweeps, made)
    else:
        least = made.area if objective == "area" else made.cost
    return CoDesign(chip, goals, sweeps, made, objective, np.array(np.broadcast_to(least, number)))


def _goals(programs: Any) -> Iterator[Goal]:
    goals = [programs] if isinstance(programs, Goal | str) else list(programs)
    if not goals:
        raise UsageError("codesign: no program; give one, such as 'llama-3-8b decode context=2048: 20ms'")
    for each in goals:
        yield Goal.read(each) if isinstance(each, str) else each


def _swept(goal: Goal, chip: Chip, figures: Mapping[str, Any], points: int) -> FigureSweep:
    one_of("mode", goal.mode, MODES)
    options: dict[str, Any] = {"points": points, "mode": goal.mode, **goal.point}
    return sweep_chip(goal.graph, chip, figures, **options)


def _figures(chip: Chip, figures: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield figures by the names of a sweep of chips."""
    if not isinstance(figures, Mapping) or not figures:
        raise UsageError("codesign: no figure to vary; give one, such as {'bandwidth': '1..8TB/s'} (--set)")
    for name, values in figures.items():
        if name.lower() != _FLOPS:
            is_bare = (
                isinstance(values, str) and name.lower() == "bandwidth" and re.search(r"\d\s*[kMGTP]$", values.strip())
            )
            yield _NAMES.get(name.lower(), name), _bytes(values) if is_bare else values
        elif isinstance(values, str):
            yield "peak", "".join(_factors(re.split(r"\s*(\.\.|,)\s*", values.strip()), _rate(chip)))
        else:
            yield "peak", list(_factors(list(values), _rate(chip)))


def _bytes(values: str) -> str:
    """Return rates as they are typed in short, ``1T..8T``, with their unit.

    Example:
        >>> _bytes("1T..8T")
        '1TB/s..8TB/s'
    """
    return re.sub(r"(?<=[0-9kMGTP])(?=\s*(\.\.|,|$))", "B/s", re.sub(r"(?<=[0-9])\s+(?=[kMGTP])", "", values.strip()))


def _rate(chip: Chip) -> float:
    """Return the fastest matrix peak of 16 bits, by which all others are scaled [FLOP/s]."""
    peaks = [chip.matrix[fmt].flops for fmt in ("bf16", "fp16") if fmt in chip.matrix]
    if not peaks:
        raise UsageError(f"set flops: {chip.name} lists no matrix peak of 16 bits; give peak=x0.5..x2 instead")
    return max(peaks)


def _factors(texts: Sequence[Any], rate: float) -> Iterator[str]:
    """Yield rates, and factors, as factors of one; marks between them as they are."""
    units = (match[0] for text in reversed(texts) if (match := re.search(r"[A-Za-z/]+$", str(text).strip())))
    unit = next(units, "FLOP/s")
    for text in texts:
        if text in ("..", ","):
            yield str(text)
            continue
        if (factor := factor_of(text)) is None:
            whole = text if not isinstance(text, str) or re.search(r"[A-DF-Za-df-z]", text) else f"{text}{unit}"
            if isinstance(whole, str) and re.fullmatch(r"[0-9.eE+-]+[kMGTPE]", whole):
                whole += "FLOP/s"
            factor = parse(whole, "FLOP/s", "set flops") / rate
        if factor <= 0:
            raise UsageError(f"set flops={shown(text)}: expected values above zero")
        yield f"x{factor!r}"


def _many(sweep: FigureSweep) -> Chip:
    """Return all chips of a sweep as one whose figures are arrays."""
    axes = [axis.ravel() for axis in np.meshgrid(*(each.values for each in sweep.figures), indexing="ij")]
    start = sweep.chip_at(*(0 for _ in sweep.figures))
    lanes: dict[Place, Floats] = {}
    for each, values in zip(sweep.figures, axes, strict=True):
        lanes |= each.lanes(sweep.base.chip, values)
    return chips_of(start, lanes)


def _energy(goals: Sequence[Goal], sweeps: Sequence[FigureSweep], made: Silicon) -> Any:
    """Return the energy of a weighed run of all programs on each chip [J]: arithmetic, traffic, and static power."""
    total: Any = 0.0
    for goal, sweep in zip(goals, sweeps, strict=True):
        flops: dict[str, float] = {}
        for row in sweep.base.rows:
            for name, number in row.flops_by.items():
                flops[name] = flops.get(name, 0.0) + row.kernel.count * float(number)
        moved, *on_chip = (sweep.moved[level.name].ravel() for level in made.chip.memory if level.name in sweep.moved)
        total += goal.weight * energy(made, flops, moved, sum(on_chip), sweep.time.ravel())
    return total


def words(value: float, objective: str) -> str:
    """Write an objective with its unit."""
    return format_si(value, "J") if objective == "energy" else f"{value:,.0f} {OBJECTIVES[objective]}"
