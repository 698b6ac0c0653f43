"""A program on many chips that differ in some figures: what each figure buys, and where it stops paying.

The chips are the outer product of the figures' values, worked out at once (:mod:`roofline.hardware.lanes`); each gets
the time that :func:`roofline.estimate` gives it alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.analysis.estimates import Estimate, Mode, estimate
from roofline.analysis.levels import run_bytes
from roofline.cost import REGIME
from roofline.counting.grid import Points, one_point
from roofline.counting.memory import RESERVE
from roofline.frontends.source import Program
from roofline.hardware.chip import Chip
from roofline.hardware.lanes import chips_of, in_lanes
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.hardware.settings import Place, factor_of, place_of, placed, value_of, with_figure
from roofline.ir.errors import UsageError
from roofline.ir.report import Report
from roofline.ir.text import shown
from roofline.ir.units import format_bytes, format_si

Floats = NDArray[np.float64]

#: Chips of a sweep at most.
MAX_CHIPS = 1_000_000
#: Values of a range without a number of them.
POINTS = 9
#: Chips that are worked out together: larger temporaries leave the core's cache.
AT_ONCE = 1024
#: A figure no longer pays where more of it saves less than this share of the time.
LITTLE = 0.01
_RANGE = re.compile(r"\s*(.+?)\s*\.\.\s*([^.\s].*?)\s*")
#: Results that a sweep has, and their keys in a record.
_RESULTS = {
    "time": "time_s", "low": "low_s", "high": "high_s", "floor": "floor_s", "device_time": "device_s",
    "host_time": "host_s", "bound": "bound", "throughput": "", "fits": "fits",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Swept:
    """A figure that takes several values.

    Attributes:
        name: As it was given.
        places: Where it stands.
        values: In SI, ascending; factors where it stands for several figures.
        unit: Of the values.
        is_factor: Whether they are factors.
    """

    name: str
    places: tuple[Place, ...]
    values: Floats
    unit: str
    is_factor: bool

    def text(self, value: float) -> str:
        """Write a value of it."""
        if self.is_factor:
            return f"x{value:.4g}"
        if self.unit == "B" and self.values[0] % 1024 == 0:
            return format_bytes(value)
        return format_si(value, self.unit, 4) if self.unit else f"{value:,.6g}"

    def lanes(self, chip: Chip, values: Floats) -> dict[Place, Floats]:
        """Return what stands where in chips with these values."""
        return {each: values * (each.value(chip) or 0.0) if self.is_factor else values for each in self.places}

    def on(self, chip: Chip, value: float) -> Chip:
        """Return one chip with a value of it."""
        whole = self.places[0].is_count and not self.is_factor
        return with_figure(chip, self.name, f"x{value!r}" if self.is_factor else int(value) if whole else value)


@dataclass(frozen=True, eq=False)
class FigureSweep(Report):
    """Times of a program over figures of a chip, made by :func:`sweep_chip`.

    Attributes:
        base: The estimate for the chip without these changes.
        figures: What varies, an axis for each, in the order given.
        results: Arrays over the axes: ``time low high floor device_time host_time`` [s], ``bound``, ``throughput``,
            ``fits``.
    """

    schema = "sweep_chip"

    base: Estimate
    figures: tuple[Swept, ...]
    results: Mapping[str, Any]

    @property
    def time(self) -> Floats:
        """Expected times [s], an axis for each figure."""
        times: Floats = self.results["time"]
        return times

    @property
    def bound(self) -> Any:
        """Resource that bounds each chip."""
        return self.results["bound"]

    @cached_property
    def moved(self) -> dict[str, Floats]:
        """Traffic of a run at each level of the memory [byte], an axis for each figure."""
        return _results(self.base, self.figures, lambda part: run_bytes(part)[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values of each figure."""
        return tuple(len(figure.values) for figure in self.figures)

    def chip_at(self, *index: int) -> Chip:
        """Return the chip at an index of the axes."""
        chip = self.base.chip
        for figure, at in zip(self.figures, index, strict=True):
            chip = figure.on(chip, float(figure.values[at]))
        return chip

    @cached_property
    def readings(self) -> tuple[str, ...]:
        """Sentences on each figure: where it stops paying, or what a doubling at the end saves."""
        return tuple(text for axis in range(len(self.figures)) for text in self._read(axis))

    def _read(self, axis: int) -> Iterator[str]:
        """Read one figure where the others are at their least and at their most."""
        figure, others = self.figures[axis], [at for at in range(len(self.figures)) if at != axis]
        if len(figure.values) < 2:
            return
        for end in (0, -1) if others and any(self.shape[at] > 1 for at in others) else (-1,):
            where: list[Any] = [end] * len(self.figures)
            where[axis] = slice(None)
            at = ", ".join(
                f"{self.figures[o].name} {self.figures[o].text(self.figures[o].values[end])}" for o in others
            )
            yield f"{figure.name}{f' (with {at})' if at else ''}: {reading(figure, self.time[tuple(where)])}"

    def subject(self) -> dict[str, Any]:
        """Return the program, the chip and the sizes."""
        return self.base.subject()

    def summary(self) -> dict[str, Any]:
        """Return the time of the chip as it is, the figures that vary, and what they buy in words."""
        return {"base_s": float(self.base.time), "figures": [each.name for each in self.figures],
                "readings": list(self.readings)}  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return one row per chip: its figures, time, range, floor, bound, throughput."""
        item = f"{self.base.graph.item}s_per_s"
        axes = np.meshgrid(*(each.values for each in self.figures), indexing="ij")
        columns = {each.name: axis.ravel().tolist() for each, axis in zip(self.figures, axes, strict=True)}
        results = {_RESULTS[name] or item: values.ravel().tolist() for name, values in self.results.items()}
        return [
            {"value": {name: column[at] for name, column in columns.items()}}
            | {key: column[at] for key, column in results.items()}
            for at in range(self.time.size)
        ]  # fmt: skip

    def __repr__(self) -> str:
        axes = " x ".join(f"{each.name} {each.text(each.values[0])} to {each.text(each.values[-1])}"
                          for each in self.figures)  # fmt: skip
        lines = [f"<FigureSweep {self.base.graph.name} on {self.base.chip.name}: {axes}, {self.time.size:,} chips"]
        return "\n  ".join([*lines, *self.readings]) + ">"


def reading(figure: Swept, times: Floats) -> str:
    """Say what a figure buys along its values.

    Example:
        >>> cache = Swept("l2", (), np.array([1.0, 2.0, 4.0, 8.0]) * 2**20, "B", False)
        >>> reading(cache, np.array([4.0, 2.0, 1.0, 1.0]))
        'beyond 4.00 MiB nothing is gained; from 1.00 MiB to there the time falls from 4 s to 1 s'
    """
    first, last = figure.text(figure.values[0]), figure.text(figure.values[-1])
    best = float(times.min())
    if times.max() - best < LITTLE * best:
        return f"makes no difference from {first} to {last}"
    knee = next(at for at in range(len(times)) if float(times[at:].max()) < (1 + LITTLE) * best) if (
        times[-1] < (1 + LITTLE) * best) else len(times)  # fmt: skip
    start, end = format_si(float(times[0]), "s"), format_si(float(times[min(knee, len(times) - 1)]), "s")
    if knee == len(times):
        return f"best at {figure.text(figure.values[int(times.argmin())])} ({format_si(best, 's')}), {end} at {last}"
    if knee < len(times) - 1:
        at = figure.text(figure.values[knee])
        return f"beyond {at} nothing is gained; from {first} to there the time falls from {start} to {end}"
    slope = log(times[-1] / times[-2]) / log(figure.values[-1] / figure.values[-2])
    doubling = 1 - 2**slope
    return (
        f"pays up to the end: from {first} to {last} the time falls from {start} to {end}, and there a doubling still "
        f"saves {doubling:.0%}"
    )


def sweep_chip(
    program: Program,
    chip: AnyChip,
    figures: Mapping[str, Any],
    *,
    points: int = POINTS,
    mode: Mode = "eager",
    tf32: bool | None = None,
    regime: str = REGIME,
    reserve: str | float = RESERVE,
    phase: str | None = None,
    dtype: str | None = None,
    **sizes: Any,
) -> FigureSweep:
    """Predict a program on all chips that differ from one in some figures.

    Args:
        program: As for :func:`roofline.estimate`.
        chip: The chip that the others differ from.
        figures: By the name of a figure (``sram``, ``memory_bandwidth``, ``cores``, ``bf16``, ``memory.L2.capacity``:
            what ``--set`` takes) its values: a range such as ``"1MiB..64MiB"`` or ``"x0.5..x4"``, a list such as
            ``"1,2,4TB/s"``, or a sequence of texts or of numbers in SI.
        points: Values of a range, evenly spaced on a logarithmic scale.
        mode: As for :func:`roofline.estimate`.
        tf32: As for :func:`roofline.estimate`.
        regime: As for :func:`roofline.estimate`.
        reserve: As for :func:`roofline.estimate`.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        sizes: One whole number each.

    Returns:
        Times over the figures, and in words what each of them buys. A chip of the sweep is a what-if as
        ``chip.replace(...)`` makes it, its time what :func:`roofline.estimate` gives it alone.

    Raises:
        UsageError: No figure of that name, no values, too many chips, or sizes of several numbers.
        UnitError: A value without its unit.
        ChipDataError: A value that cannot be.

    Example:
        >>> swept = sweep_chip("gpt2", "h100-sxm", {"memory_bandwidth": "1..8TB/s"}, phase="decode", mode="graph",
        ...                    batch=8, context=512)
        >>> swept.shape, bool(swept.time[0] > swept.time[-1])
        ((9,), True)
    """
    base = find_chip(chip)
    if not isinstance(figures, Mapping) or not figures:
        raise UsageError("sweep_chip: no figure to vary; give one, such as {'memory_bandwidth': '1..8TB/s'}")
    swept = tuple(_swept(base, name, values, points) for name, values in figures.items())
    number = int(np.prod([len(each.values) for each in swept], dtype=np.float64))
    if number > MAX_CHIPS:
        raise UsageError(f"sweep_chip: {number:,} chips; allowed: at most {MAX_CHIPS:,}; give fewer points")
    est = estimate(program, base, mode=mode, tf32=tf32, regime=regime, reserve=reserve, phase=phase, dtype=dtype,
                   **sizes)  # fmt: skip
    one_point(est.axis_names, "chips are swept for")
    return FigureSweep(est, swept, _results(est, swept, lambda part: {name: getattr(part, name) for name in _RESULTS}))


def _results(est: Estimate, swept: Sequence[Swept], of: Callable[[Estimate], Mapping[str, Any]]) -> dict[str, Any]:
    """Work something out for all chips, some at once."""
    axes = [axis.ravel() for axis in np.meshgrid(*(each.values for each in swept), indexing="ij")]
    start = _checked(est.chip, swept)

    def work(lanes: NDArray[np.intp]) -> dict[str, Any]:
        figures: dict[Place, Floats] = {}
        for each, values in zip(swept, axes, strict=True):
            figures |= each.lanes(est.chip, values[lanes])
        many = chips_of(start, figures)
        sizes = Points(est.grid.values, len(lanes))
        part = Estimate(est.graph, (many,), False, est.mode, sizes, est.tf32, est.reserve, est.regime)
        vars(part)["rows"] = est.rows
        return {name: np.array(np.broadcast_to(np.asarray(value), len(lanes))) for name, value in of(part).items()}

    every = np.arange(axes[0].size)
    parts = [in_lanes(work, every[at : at + AT_ONCE]) for at in range(0, len(every), AT_ONCE)]
    shape = tuple(len(each.values) for each in swept)
    return {name: np.concatenate([part[name] for part in parts]).reshape(shape) for name in parts[0]}


def _checked(chip: Chip, swept: Sequence[Swept]) -> Chip:
    """Return the chip with the first value of each figure, once both ends were found to be possible."""
    for end in (-1, 0):
        start = chip
        for each in swept:
            start = each.on(start, float(each.values[end]))
    return start


# --- values -----------------------------------------------------------------------------------------------------------


def _swept(chip: Chip, name: str, values: Any, points: int) -> Swept:
    """Read the values of one figure."""
    texts = _texts(name, values, points)
    factors = [factor_of(text) for text in texts]
    if None in factors and any(factors):
        raise UsageError(f"set {name}={shown(values)}: some values are factors and some are not; give one kind")
    if factors[0] is not None:
        places, _ = placed(chip, name, texts[0])
        numbers, unit = [factor or 0.0 for factor in factors], ""
    else:
        places = [place_of(chip, name)]
        numbers, unit = [value_of(places[0], name, text) for text in texts], places[0].unit
    if not 0 < min(numbers) <= max(numbers) < inf:
        raise UsageError(f"set {name}={shown(values)}: expected values above zero")
    if isinstance(values, str) and _RANGE.fullmatch(values):
        low, high = sorted(numbers)
        numbers = [low, *np.geomspace(low, high, points)[1:-1], high]
    whole = places[0].is_count and factors[0] is None
    grid = np.unique(np.round(numbers) if whole else np.array(numbers, dtype=np.float64))
    return Swept(name, tuple(places), grid, unit, factors[0] is not None)


def _texts(name: str, values: Any, points: int) -> list[Any]:
    """Return the values that were given: the ends of a range, the parts of a list, or a sequence as it is."""
    if isinstance(points, bool) or not isinstance(points, int) or not 2 <= points <= MAX_CHIPS:
        raise UsageError(f"points={shown(points)}: expected a whole number from 2 to {MAX_CHIPS:,}")
    if not isinstance(values, str):
        try:
            listed = list(values)
        except TypeError:
            listed = []
        if not listed:
            raise UsageError(f"set {name}={shown(values)}: expected values, such as '1..8TB/s' or a list")
        return listed
    match = _RANGE.fullmatch(values)
    parts = list(match.groups()) if match else [part.strip() for part in values.split(",") if part.strip()]
    if not parts:
        raise UsageError(f"set {name}={shown(values)}: expected values, such as 1..8TB/s or 1,2,4TB/s")
    unit = re.sub(r"^[0-9.eE+\-]*", "", parts[-1].strip())
    shared = "" if factor_of(parts[-1]) is not None else unit
    return [part if re.search(r"[A-Za-z×]", part) else f"{part}{shared}" for part in parts]
