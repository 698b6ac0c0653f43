"""A sweep over batches: the floor, the cost per item, the batch where they meet, and a comparison with the chip.

Two shapes are fitted, both robust against a stray point (medians of slopes), and the better one counts. ``flat``: up
to some batch every run takes the same, then a straight line. ``line``: a fixed cost and a cost per item from the first
batch on. Either way the *knee* is the batch whose items take as long as the fixed cost: below it a bigger batch is
nearly free. It is not where throughput ends: on a line, half of what large batches approach is there, 80 % at four
times the knee and 90 % at nine times (``b / (knee + b)``), so shares are said beside it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf, isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.analysis.batches import ridge_batches, two_ridges
from roofline.analysis.estimates import Estimate, estimate
from roofline.diagnosis.timetable import time_column
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.csvfile import read_table
from roofline.ir.errors import RooflineError, UsageError
from roofline.ir.graph import Graph, advice_on
from roofline.ir.numbers import finite_number
from roofline.ir.report import Report
from roofline.ir.units import format_si, parse

Floats = NDArray[np.float64]

#: Fewer distinct batches have no shape.
MIN_BATCHES = 3
#: The flat shape has one parameter more, so its error must be smaller by this factor.
PREFER = 0.8
#: A floor below this share of the first time is none, a slope that adds less over all batches neither.
SMALL = 0.05
#: Throughput that falls from its best by more is no saturation but a loss.
FALLS = 0.85
#: Twice the batch is nearly free where it takes less longer.
NEARLY_FREE = 0.2
#: Up to this many times the knee the floor still shows in the time.
ROUNDED = 1.5
#: The ridge is looked for up to this many times the largest batch.
RIDGE_REACH = 8
#: Batches over which slopes are taken pair by pair; longer sweeps are thinned to as many.
MAX_BATCHES = 400
#: Shares of the throughput that large batches approach: the batches of each are said, and recommended.
SHARES = (0.8, 0.9)
#: Recommended batches over the knee: of the flat shape from where it ends on, of a line those with 80 to 90 %.
RECOMMENDED = {"flat": (1.0, 2.0), "line": (4.0, 9.0)}
#: Headers of the batch in a file.
BATCH = ("batch", "batch size", "batch_size", "batchsize", "bs", "b", "n", "concurrency")


def per_second(rate: float) -> str:
    """Write a rate without a power of ten.

    Example:
        >>> per_second(8000.0), per_second(10362.4), per_second(0.5)
        ('8000', '10,362', '0.5')
    """
    return f"{rate:,.0f}" if rate >= 1e4 else f"{rate:.4g}"


@dataclass(frozen=True, slots=True)
class Fit:
    """Time over batch in three numbers.

    Attributes:
        shape: ``flat`` (level, then a line) or ``line`` (from the first batch on).
        floor: Fixed cost [s].
        marginal: Cost per item [s].
        offset: Where the line of ``flat`` starts [s].
        error: Mean relative error of the fit.
    """

    shape: str
    floor: float
    marginal: float
    offset: float
    error: float = 0.0

    @property
    def knee(self) -> float | None:
        """Batch whose items take as long as the fixed cost; ``None`` where no cost per item is seen."""
        return self.floor / self.marginal if self.marginal else None

    def share(self, batch: float) -> float:
        """Return the share of the throughput of large batches that a batch has; 0 where they have no limit."""
        return self.marginal * batch / float(self.at(batch))

    def batch_for(self, share: float) -> float | None:
        """Return the batch that has a share of the throughput of large batches; ``None`` where they have no limit.

        Example:
            >>> Fit("line", 5.0, 1.0, 5.0).batch_for(0.5), Fit("flat", 5.0, 1.0, 0.0).batch_for(0.8)
            (5.0, 4.0)
        """
        level = self.floor if self.shape == "flat" else 0.0
        return max(share * level, share / (1 - share) * self.offset) / self.marginal if self.marginal else None

    def at(self, batches: Any) -> Any:
        """Return fitted times [s]."""
        line = self.offset + self.marginal * np.asarray(batches, dtype=np.float64)
        return np.maximum(self.floor, line) if self.shape == "flat" else line

    def scored(self, batches: Floats, times: Floats) -> Fit:
        """Return the same with its error on some points."""
        return replace(self, error=float(np.mean(np.abs(self.at(batches) / times - 1))))


@dataclass(frozen=True, repr=False)
class SweepVerdict(Report):
    """The answer of :func:`check_sweep`.

    Attributes:
        verdict: ``normal``, ``flat`` (more batch is nearly free), ``saturated`` (the first batch has 90 %
            of the throughput that large ones approach), ``falling`` (throughput falls) or ``unsteady`` (no shape fits,
            or a smaller batch takes longer).
        reading: That in plain words.
        batches: Sorted, each once.
        times: Measured, means of what was given twice [s].
        fit: The shape that fits.
        recommended: Least and most batch to run.
        predicted: The estimate at the same batches, with a program and a chip.
        ridge: First batch whose compute time exceeds its memory time at calibrated rates, or ``None``.
        ridge_datasheet: The same at the datasheet's rates.
        comparison: Measured against predicted, in plain words.
    """

    schema = "sweep"

    verdict: str
    reading: str
    batches: tuple[float, ...]
    times: tuple[float, ...]
    fit: Fit
    recommended: tuple[int, int]
    predicted: Estimate | None = None
    ridge: int | None = None
    ridge_datasheet: int | None = None
    comparison: tuple[str, ...] = ()

    @property
    def floor_s(self) -> float:
        """Latency floor [s]."""
        return self.fit.floor

    @property
    def marginal_s(self) -> float:
        """Cost per item [s]."""
        return self.fit.marginal

    @property
    def knee(self) -> float | None:
        """Batch where both meet, or ``None``."""
        return self.fit.knee

    @property
    def saturated(self) -> float | None:
        """Throughput that ever larger batches approach, by the fit [items/s]; ``None`` where no limit is seen."""
        return 1 / self.fit.marginal if self.fit.marginal else None

    @property
    def batch_by_share(self) -> dict[str, float | None]:
        """Batch that has 80 and 90 % of that throughput, by the fit."""
        return {f"{share:.0%}": self.fit.batch_for(share) for share in SHARES}

    @property
    def best(self) -> float:
        """Best throughput measured [items/s]."""
        return max(batch / time for batch, time in zip(self.batches, self.times, strict=True))

    def subject(self) -> dict[str, Any]:
        """Return the program and the chip that it was compared with, where there are."""
        about = self.predicted.subject() if self.predicted is not None else {}
        return about | ({"sizes": {**about["sizes"], "batch": list(map(_whole, self.batches))}} if about else {})

    def summary(self) -> dict[str, Any]:
        """Return the verdict, floor, cost per item and knee."""
        return {
            "verdict": self.verdict, "reading": self.reading, "floor_s": self.floor_s, "marginal_s": self.marginal_s,
            "knee_batch": self.knee, "ridge_batch": self.ridge, "ridge_batch_datasheet": self.ridge_datasheet,
            "saturated_items_per_s": self.saturated, "saturated_share": self.fit.share(self.batches[-1]),
            "batch_by_share": self.batch_by_share, "best_items_per_s": self.best,
            "recommended_batches": list(self.recommended), "fit_shape": self.fit.shape,
            "fit_error": self.fit.error, "comparison": list(self.comparison),
        }  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per batch: measured, fitted and expected time."""
        expected = [None] * len(self.batches) if self.predicted is None else self.predicted.time.tolist()
        rows = zip(map(_whole, self.batches), self.times, self.fit.at(self.batches).tolist(), expected, strict=True)
        keys = ("batch", "measured_s", "fitted_s", "expected_s")
        return [{**dict(zip(keys, row, strict=True)), "items_per_s": row[0] / row[1]} for row in rows]

    def __str__(self) -> str:
        return "; ".join((f"{self.verdict}: {self.reading}", *self.comparison))

    def __repr__(self) -> str:
        return f"<SweepVerdict {self.verdict}, knee {'none' if self.knee is None else f'{self.knee:.3g}'}>"


def check_sweep(
    batches: Sequence[float],
    times: Sequence[str | float],
    program: Program | None = None,
    chip: AnyChip | None = None,
    *,
    phase: str | None = None,
    dtype: str | None = None,
    **options: Any,
) -> SweepVerdict:
    """Read the floor, the cost per item and the knee from measured times over batches.

    Args:
        batches: At least three different ones, in any order; times of the same batch are averaged.
        times: Of one run each, in seconds or such as ``"15.9 ms"``.
        program: What to compare with, its batch open: a graph, a shipped name, or the path of a model file, workload,
            config or script.
        chip: Where it ran.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        options: As for :func:`roofline.estimate`: ``mode``, ``tf32``, ``regime``, ``seq``, ``context``.

    Returns:
        Floor, cost per item, knee, and a verdict on the shape of the curve.

    Raises:
        UsageError: Too few points, a time that is not above zero, a program without a chip or without B.

    Example:
        >>> import roofline as rl
        >>> sweep = rl.diagnosis.check_sweep([1, 8, 16, 64, 128], ["5 ms", "5 ms", "5 ms", "16 ms", "32 ms"])
        >>> sweep.verdict, sweep.fit.shape, round(sweep.knee), sweep.recommended
        ('normal', 'flat', 20, (20, 40))
    """
    if (program is None) != (chip is None):
        raise UsageError("to compare with the chip give both, a program and a chip")
    graph = as_graph(program, phase, dtype) if program is not None else None
    if graph is not None and "B" not in graph.symbols:
        raise UsageError(f"{graph.name} has no symbol B: its batch is fixed{advice_on(graph, 'B')}")
    if graph is None and options:
        raise UsageError(f"{', '.join(sorted(options))}: of use only with a program and a chip")
    sizes, seconds = _points(batches, times)
    best = fit(sizes, seconds)
    verdict, reading = _reading(best, sizes, seconds)
    recommended = _recommended(best, sizes, seconds)
    measured = SweepVerdict(verdict, reading, tuple(sizes.tolist()), tuple(seconds.tolist()), best, recommended)
    return measured if graph is None or chip is None else _compared(measured, graph, find_chip(chip), options)


def read_sweep(path: str | os.PathLike[str]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Read batches and times [s] from a CSV file, the unit in the header: ``batch, time_ms``.

    Args:
        path: The file.

    Returns:
        Batches, and a time for each [s].

    Raises:
        UsageError: No such file, no column of batches or of times, or a cell that is none.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "sweep.csv")
        ...     _ = file.write_text("batch,latency (ms)\\n1,5\\n8,6\\n64,20\\n")
        ...     read_sweep(file)
        ((1.0, 8.0, 64.0), (0.005, 0.006, 0.02))
    """
    columns, rows = read_table(path)
    batch = next((column for word in BATCH for column in columns if column.casefold() == word), None)
    if batch is None:
        raise UsageError(f"{os.fspath(path)}: no column 'batch'; there are {', '.join(columns)[:200]}")
    time = time_column([column for column in columns if column != batch])
    sizes, seconds = [], []
    for at, row in enumerate(rows, 1):
        try:
            size, value = float(row[batch]), time.seconds(row)
        except RooflineError as error:
            raise UsageError(f"{os.fspath(path)}, row {at}: {error}") from None
        except ValueError:
            text = f"batch={row[batch][:40]!r}: expected a number"
            raise UsageError(f"{os.fspath(path)}, row {at}: {text}") from None
        if value is not None:
            sizes.append(size)
            seconds.append(value)
    return tuple(sizes), tuple(seconds)


def _points(batches: Sequence[float], times: Sequence[str | float]) -> tuple[Floats, Floats]:
    """Return sorted batches, each once, with the mean of its times."""
    for name, values in (("batches", batches), ("times", times)):
        if isinstance(values, str) or not hasattr(values, "__len__"):
            raise UsageError(f"{name}={repr(values)[:60]}: expected a sequence, a value for each point")
    if len(batches) != len(times):
        raise UsageError(f"{len(batches)} batches and {len(times)} times; expected as many of both")
    together: dict[float, list[float]] = {}
    for batch, time in zip(batches, times, strict=True):
        size, seconds = finite_number("batch", batch), parse(time, "s", "time")
        if not size > 0:
            raise UsageError(f"batch {batch!r}: expected a batch above zero")
        if not seconds > 0:
            raise UsageError(f"time {time!r} of batch {batch!r}: expected a time above zero")
        together.setdefault(size, []).append(seconds)
    if len(together) < MIN_BATCHES:
        raise UsageError(f"{len(together)} different batches; a sweep has at least {MIN_BATCHES}")
    sizes = sorted(together)
    return np.array(sizes), np.array([np.mean(together[size]) for size in sizes])


# --- the fit ---


def fit(batches: Floats, times: Floats) -> Fit:
    """Return the shape that fits sorted points best.

    Example:
        >>> best = fit(np.array([1.0, 2.0, 4.0, 8.0]), np.array([3.0, 4.0, 6.0, 10.0]))
        >>> best.shape, best.floor, best.marginal
        ('line', 2.0, 1.0)
    """
    if len(batches) > MAX_BATCHES:
        rows = np.unique(np.linspace(0, len(batches) - 1, MAX_BATCHES).astype(int))
        batches, times = batches[rows], times[rows]
    line = _line(batches, times)
    # At least two points may be level, since the first alone is no floor; at most 64 numbers of them are tried.
    levels = np.unique(np.linspace(2, len(batches), min(len(batches) - 1, 64)).astype(int))
    flat = min((_flat(batches, times, int(level)) for level in levels), key=lambda option: option.error)
    return _past_the_knee(flat, batches, times) if flat.error < PREFER * line.error else line


def _past_the_knee(flat: Fit, batches: Floats, times: Floats) -> Fit:
    """Take the cost per item from points where the floor no longer shows: around the knee both add up a little."""
    past = batches >= ROUNDED * (flat.knee or inf)
    if past.sum() < 2:
        return flat
    slope = _slope(batches[past], times[past])
    offset = float(np.median(times[past] - slope * batches[past]))
    return Fit("flat", flat.floor, slope, offset).scored(batches, times) if slope > 0 else flat


def _slope(batches: Floats, times: Floats) -> float:
    """Return the median of the slopes of all pairs (Theil and Sen): one stray point in four does not move it."""
    pairs = list(combinations(range(len(batches)), 2))
    first, second = (np.array(side) for side in zip(*pairs, strict=True))
    return float(np.median((times[second] - times[first]) / (batches[second] - batches[first])))


def _line(batches: Floats, times: Floats) -> Fit:
    slope = max(_slope(batches, times), 0.0)
    if slope * (batches[-1] - batches[0]) < SMALL * float(np.median(times)):
        slope = 0.0
    floor = float(np.median(times - slope * batches))
    if slope and floor < SMALL * times[0]:
        floor, slope = 0.0, float(np.median(times / batches))
    return Fit("line", floor, slope, floor).scored(batches, times)


def _flat(batches: Floats, times: Floats, level: int) -> Fit:
    """Fit the first points level, the others on a line that does not start below zero."""
    floor = float(np.median(times[:level]))
    sizes, rest = batches[level:], times[level:]
    slope = _slope(sizes, rest) if len(sizes) > 1 else 0.0
    offset = float(np.median(rest - slope * sizes)) if len(sizes) else floor
    if len(sizes) == 1 or (len(sizes) and offset < 0):
        slope, offset = float(np.median(rest / sizes)), 0.0
    return Fit("flat", floor, max(slope, 0.0), offset).scored(batches, times)


# --- what it says ---


def _recommended(best: Fit, batches: Floats, times: Floats) -> tuple[int, int]:
    """Return batches with most of the throughput and no more latency than that needs, within what was measured."""
    most = batches[-1]
    if best.knee is None:
        return int(most), int(most)
    if batches[-1] / times[-1] < FALLS * np.max(batches / times):
        most = batches[int(np.argmax(batches / times))]
    low, high = (min(max(factor * best.knee, batches[0]), most) for factor in RECOMMENDED[best.shape])
    return max(round(low), 1), max(round(high), 1)


def _reading(best: Fit, batches: Floats, times: Floats) -> tuple[str, str]:
    """Return the verdict and its reading."""
    rate = batches / times
    top = int(np.argmax(rate))
    floor, item = format_si(best.floor, "s"), format_si(best.marginal, "s")
    if best.error > 0.25 or times[0] > 1.5 * np.min(times[1:]):
        return "unsteady", (
            f"times do not follow the batch (the best fit is {best.error:.0%} off): measure again after a warm-up, "
            "with a synchronise, and several runs per batch"
        )
    if rate[-1] < FALLS * rate[top]:
        return "falling", (
            f"throughput falls from {rate[top]:.4g} per second at batch {batches[top]:g} to {rate[-1]:.4g} at "
            f"{batches[-1]:g}, which no roofline does: look for memory that is swapped or recomputed, or falling clocks"
        )
    if best.knee is None:
        return "flat", (
            f"a run takes about {floor} whatever the batch, up to {batches[-1]:g}: launches, or weights that are read "
            "once for all items; a bigger batch is nearly free"
        )
    fixed = f"a fixed {floor} (launches, or weights that are read once), then {item} per item"
    limit = f"{per_second(1 / best.marginal)} per second that large batches approach"
    last = f"batch {batches[-1]:g} has {best.share(batches[-1]):.0%} of the {limit}"
    if best.knee > batches[-1]:
        longer = float(best.at(2 * batches[-1]) / best.at(batches[-1])) - 1
        costs = "a bigger one is nearly free" if longer < NEARLY_FREE else "the knee is not reached"
        return "flat" if longer < NEARLY_FREE else "normal", (
            f"{fixed}; both meet near batch {best.knee:.3g}: {last}; twice that takes {longer:.0%} longer: {costs}"
        )
    if best.share(batches[0]) >= SHARES[-1]:
        return "saturated", (
            f"normal roofline behaviour: time grows with the batch from the first on, {item} per item: batch "
            f"{batches[0]:g} has {best.share(batches[0]):.0%} of the {limit}, and a bigger one only waits longer"
        )
    (low, first), (high, then) = ((share, best.batch_for(share) or 0) for share in SHARES)
    return "normal", (
        f"normal roofline behaviour: {fixed}; both meet near batch {best.knee:.3g}, at {best.share(best.knee):.0%} of "
        f"the {limit}: {low:.0%} from batch {first:.3g}, {high:.0%} from {then:.3g}; the largest measured, "
        f"{batches[-1]:g}, has {best.share(batches[-1]):.0%}"
    )


def _whole(batch: float) -> float:
    """Return a whole batch as an integer, so that it reads as one."""
    return int(batch) if batch == int(batch) else batch


# --- compared with the chip ---


def _compared(measured: SweepVerdict, graph: Graph, chip: Chip, options: dict[str, Any]) -> SweepVerdict:
    if any(size != int(size) for size in measured.batches):
        raise UsageError("expected whole batches to compare with a program")
    batches = np.array(measured.batches, dtype=np.int64)
    predicted = estimate(graph, chip, B=batches, **options)
    if predicted.axis_names != ("B",):
        raise UsageError("a sweep is over batches alone; give single numbers for seq and context")
    own = fit(batches.astype(np.float64), np.asarray(predicted.time, dtype=np.float64))
    # Batches on which the ridge is looked for, at most a hundredth apart.
    top = RIDGE_REACH * int(batches[-1])
    ladder = np.concatenate([np.arange(1, min(top, 512) + 1), np.geomspace(1, top, 2048).astype(np.int64)])
    ridge, datasheet = ridge_batches(estimate(graph, chip, B=np.unique(ladder), **options))
    measured = replace(measured, predicted=predicted, ridge=ridge, ridge_datasheet=datasheet)
    return replace(measured, comparison=(_meeting(measured, own, predicted), _distance(measured, own, predicted)))


def _meeting(measured: SweepVerdict, own: Fit, predicted: Estimate) -> str:
    """Compare the measured knee with the predicted one and the ridge."""
    turn = f"the {two_ridges(measured.ridge, measured.ridge_datasheet)}"
    knee = "no knee" if own.knee is None else f"a knee near batch {own.knee:.3g}"
    expected = f"{predicted.graph.name} on {predicted.chip.name} should have {knee}, and {turn}"
    if measured.knee is None or own.knee is None or not isfinite(own.knee):
        return expected
    ratio = measured.knee / own.knee if own.knee else inf
    where = "where it belongs"
    if ratio > 2:
        where = "later, so the fixed cost is larger than it should be"
    elif ratio < 0.5:
        where = "earlier, so an item costs more than it should"
    return f"{expected}: the measured {measured.knee:.3g} is {where}"


def _distance(measured: SweepVerdict, own: Fit, predicted: Estimate) -> str:
    """Say how far measured times are from predicted ones, and in which part."""
    times = np.array(measured.times)
    ratio = float(np.median(times / predicted.time))
    inside = int(np.sum((times >= predicted.low) & (times <= predicted.high)))
    floor, due = format_si(measured.floor_s, "s"), format_si(own.floor, "s")
    item, due_item = format_si(measured.marginal_s, "s"), format_si(own.marginal, "s")
    return (
        f"{inside} of {len(times)} times are in the expected range; the median is {ratio:.3g} times the expected time "
        f"(fixed cost {floor} where {due} is expected, {item} per item where {due_item} is)"
    )
