"""Time, throughput and memory of a program over its batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.analysis.batches import BatchChoice, best_of, ridge_batches
from roofline.analysis.estimates import Estimate
from roofline.analysis.estimates import estimate as evaluate
from roofline.ir.errors import UsageError
from roofline.ir.numbers import as_list, finite_number
from roofline.ir.units import format_bytes, format_si
from roofline.view.charts.chart import Chart
from roofline.view.charts.marks import Axis, Band, Drawing, Line, Mark, Panel, Points, Region, Rule, stacked
from roofline.view.charts.points import faster_text, quantity
from roofline.view.charts.roof import about

Array = NDArray[np.float64]

#: Points drawn at most; a longer sweep is thinned evenly in the logarithm.
DRAWN = 256


@dataclass(frozen=True, slots=True)
class Measured:
    """One measured batch: its time, its throughput, and the datasheet floor there [s, items/s, s]."""

    batch: float
    seconds: float
    rate: float
    floor: float

    def above(self, slack: float) -> bool:
        """Tell whether it was faster than the datasheet allows."""
        return self.seconds * slack < self.floor


@dataclass(frozen=True, eq=False, repr=False)
class BatchSweep(Chart):
    """Time, throughput and memory over the batch, made by :func:`plot_batch`.

    Attributes:
        estimate: Over the batch alone.
        memory_limit: Memory that may be used, the chip's capacity if ``None`` [byte].
        latency_limit: Time that one run may take [s].
        measured: What was measured.
        ridge: Batch at which the program turns compute-bound.
        best: Batch to run.
        full: The largest batch that fits, where that is known although no larger one is in the sweep.
    """

    schema = "batch_sweep"

    estimate: Estimate
    memory_limit: float | None
    latency_limit: float | None
    measured: tuple[Measured, ...]
    ridge: float | None
    best: float | None
    full: float | None = None

    @cached_property
    def batches(self) -> Array:
        """The batches, rising."""
        return np.sort(np.asarray(self.estimate.grid.values["B"], dtype=np.float64), kind="stable")

    @cached_property
    def memory(self) -> dict[str, Array]:
        """Memory over the rising batch, by part [byte]."""
        return {name: self.along(value) for name, value in self.estimate.memory.parts().items()}

    def along(self, value: Any) -> Any:
        """Return a figure of the estimate over the rising batch."""
        batches = np.asarray(self.estimate.grid.values["B"])
        return np.broadcast_to(np.asarray(value), batches.shape)[np.argsort(batches, kind="stable")]

    @property
    def limit(self) -> float:
        """Memory that may be used [byte]."""
        return self.estimate.chip.capacity if self.memory_limit is None else self.memory_limit

    @property
    def largest(self) -> float | None:
        """The batch that fills the memory, between two of the sweep; ``None`` where that is not known."""
        over = self.along(self.estimate.memory.total) - self.limit
        return self.full if (at := _crossing(self.batches, over)) is None else at

    @property
    def in_time(self) -> float | None:
        """The batch that takes as long as it may, between two of the sweep; ``None`` if there is none within it."""
        if self.latency_limit is None:
            return None
        return _crossing(self.batches, self.along(self.estimate.time) - self.latency_limit)

    @property
    def feasible(self) -> tuple[float, str]:
        """The batch beyond which a limit is broken, and what is wrong there; infinite where nothing is."""
        est = self.estimate
        too_large, too_slow = self.largest, self.in_time
        if float(self.along(est.memory.total)[0]) > self.limit:
            too_large = 0.0
        if self.latency_limit is not None and float(self.along(est.time)[0]) > self.latency_limit:
            too_slow = 0.0
        ends = [(at, text) for at, text in ((too_large, "does not fit"), (too_slow, "too slow")) if at is not None]
        return min(ends, default=(np.inf, ""))

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """One line for each measured batch that is faster than the datasheet allows."""
        chip = self.estimate.chip
        return tuple(
            faster_text(f"batch {point.batch:g}", point.seconds, point.floor, chip)
            for point in self.measured
            if point.above(chip.clock_slack)
        )

    def subject(self) -> dict[str, Any]:
        """Return what the estimate is of."""
        return self.estimate.subject()

    def records(self) -> list[dict[str, Any]]:
        """Return one row per batch, then one for each that was measured."""
        est = self.estimate
        rate, total = f"{est.graph.item}s_per_s", self.along(est.memory.total)
        columns = {
            "batch": self.batches.astype(np.int64),
            **{f"{name}_s": self.along(getattr(est, name)) for name in ("time", "low", "high", "floor")},
            rate: self.along(est.throughput), "bound": self.along(est.bound),
            **{f"{name}_bytes": values for name, values in self.memory.items()},
            "memory_bytes": total, "fits": total <= self.limit,
        }  # fmt: skip
        rows = zip(*(values.tolist() for values in columns.values()), strict=True)
        expected = [{"kind": "expected", **dict(zip(columns, row, strict=True))} for row in rows]
        return expected + [
            {"kind": "measured", "batch": int(m.batch), "time_s": m.seconds, "floor_s": m.floor, rate: m.rate}
            for m in self.measured
        ]

    def drawing(self) -> Drawing:
        """Return the panels of time, throughput and memory."""
        est, at = self.estimate, thinned(self.batches)
        x = Axis("batch size", log=2, high=self._end())
        panels = (
            Panel((*_stops(self, True), *_time_marks(self, at)), x, Axis("time of one run", "s", log=10), 1.15),
            Panel((*_stops(self), *_rate_marks(self, at)), x, Axis(f"throughput [{est.graph.item}s/s]", log=10)),
            Panel((*_stops(self), *_memory_marks(self, at)), x, Axis("memory", "B"), 1.15),
        )
        return Drawing(panels, f"{est.graph.name} on {est.chip.name} by batch size", about(est), size=(8.0, 8.6))

    def _end(self) -> float | None:
        """Return the end of the axis, with some room for what is not feasible where the sweep ends at a limit."""
        last = max([self.batches[-1], *(point.batch for point in self.measured), self.ridge or 0, self.best or 0])
        at_limit = self.feasible[0] < np.inf
        return float(last) * (1.5 if at_limit and self.feasible[0] > last / 1.5 else 1.12)

    def __repr__(self) -> str:
        name, chip = self.estimate.graph.name, self.estimate.chip.name
        return f"<BatchSweep of {name} on {chip}: batch {self.batches[0]:.0f} to {self.batches[-1]:.0f}>"


def plot_batch(
    estimate: Estimate | BatchChoice,
    memory_limit: str | float | None = None,
    latency_limit: str | float | None = None,
    measured: Sequence[tuple[float, str | float]] | None = None,
    ridge: float | None = None,
    best: float | None = None,
) -> BatchSweep:
    """Describe a chart of time, throughput and memory over the batch.

    Args:
        estimate: One with the batch ``B`` as its only axis, or what :func:`roofline.best_batch` chose.
        memory_limit: Memory that may be used; that of the choice, or the chip's capacity, by default [byte].
        latency_limit: Time that one run may take; that of the choice by default [s].
        measured: Pairs of a batch and its time [s].
        ridge: Batch at which the program turns compute-bound; the first of the sweep that is by default.
        best: Batch to run; that of the sweep with the best throughput within the limits by default.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: The estimate has other axes, or a value that cannot be.

    Example:
        >>> import roofline as rl
        >>> est = rl.estimate(rl.model("gpt2", phase="decode"), "a100-80gb-sxm", B=[1, 8, 64], S=512)
        >>> plot_batch(est, latency_limit="20 ms").latency_limit
        0.02
    """
    if isinstance(estimate, BatchChoice):
        choice = estimate
        chart = plot_batch(
            choice.curve, choice.memory_limit if memory_limit is None else memory_limit,
            choice.latency_limit if latency_limit is None else latency_limit, measured,
            choice.ridge if ridge is None else ridge, choice.best if best is None else best,
        )  # fmt: skip
        return replace(chart, full=float(choice.largest) if choice.limit == "memory" else None)
    if not isinstance(estimate, Estimate):
        raise UsageError(
            f"expected an Estimate over batches, as of rl.estimate(..., batch=[1, 8]), given {repr(estimate)[:60]}"
        )
    if estimate.axis_names != ("B",):
        axes = f"the axes {estimate.axis_names}" if estimate.shape else "no axis"
        raise UsageError(f"a batch sweep needs an estimate with the axis B alone, given {axes}; give B a sequence")
    room = None if memory_limit is None else quantity(memory_limit, "B", "memory_limit")
    patience = None if latency_limit is None else quantity(latency_limit, "s", "latency_limit")
    return BatchSweep(
        estimate,
        room,
        patience,
        _measured_batches(estimate, measured or ()),
        ridge_batches(estimate)[0] if ridge is None else _batch(ridge, "ridge"),
        best_of(estimate, room or estimate.chip.capacity, patience) if best is None else _batch(best, "best"),
    )


def _batch(value: Any, what: str) -> float:
    if (number := finite_number(what, value)) < 1:
        raise UsageError(f"{what}: {repr(value)[:100]} is not a batch from 1")
    return number


def _measured_batches(estimate: Estimate, measured: Sequence[Any]) -> tuple[Measured, ...]:
    """Return pairs of batch and seconds, with the floor and the throughput there."""
    for pair in as_list("measured", measured):
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise UsageError(f"measured: allowed are pairs of batch and seconds, given {repr(pair)[:100]}")
    if not measured:
        return ()
    batches = [_batch(batch, "measured") for batch, _ in measured]
    seconds = [quantity(value, "s", "measured") for _, value in measured]
    sizes: dict[str, Any] = {**estimate.grid.values, "B": batches}
    there = evaluate(estimate.graph, estimate.chip, mode="graph", tf32=estimate.tf32, **sizes)
    rows = zip(batches, seconds, there.throughput * there.time, there.floor, strict=True)
    return tuple(Measured(batch, time, float(items) / time, float(floor)) for batch, time, items, floor in rows)


def thinned(batch: Array) -> NDArray[np.intp]:
    """Return indices of at most about :data:`DRAWN` batches, the ends among them."""
    if batch.size <= DRAWN:
        return np.arange(batch.size)
    even = np.geomspace(batch[0], batch[-1], DRAWN)
    return np.unique(np.clip(np.searchsorted(batch, even), 0, batch.size - 1))


# --- marks ------------------------------------------------------------------------------------------------------------


def _crossing(batches: Array, over: Array) -> float | None:
    """Return where something first rises above nothing, between two batches; ``None`` where it does not."""
    at = int(np.argmax(over > 0))
    if not over[at] > 0 or at == 0:
        return None
    return float(np.interp(0.0, over[at - 1 : at + 1], batches[at - 1 : at + 1]))


def _stops(chart: BatchSweep, named: bool = False) -> Iterator[Mark]:
    """Yield what is not feasible, and lines at the batches that matter, with their names in one of the panels."""
    end, why = chart.feasible
    if end < np.inf:
        yield Region(x0=end or None, colour="red", label=why if named else "", strength=0.08)
    stops = [(chart.ridge, "ridge"), (chart.best, "best")]
    lines = [(at, f"{name} {at:,.0f}") for at, name in stops if at is not None]
    if chart.largest is not None:
        lines.append((chart.largest, f"memory full above {np.floor(chart.largest):,.0f}"))
    if chart.in_time is not None:
        lines.append((chart.in_time, f"too slow above {np.floor(chart.in_time):,.0f}"))
    for at, text in lines:
        yield Rule(x=at, label=text if named else "", dotted=True)


def _time_marks(chart: BatchSweep, at: NDArray[np.intp]) -> Iterator[Mark]:
    batch, est = chart.batches[at], chart.estimate
    time, low, high, floor = (chart.along(getattr(est, name))[at] for name in ("time", "low", "high", "floor"))
    yield Band(batch, low, high, "compute", label="range", toggle="range")
    yield Line(batch, time, "compute", label="expected", bold=True, width=2.0, toggle="expected")
    yield Line(batch, floor, "soft", label="datasheet floor", dash=True, width=1.1, toggle="datasheet floor")
    if chart.latency_limit is not None:
        yield Rule(y=chart.latency_limit, label=f"limit {format_si(chart.latency_limit, 's')}", colour="red", bold=True)
    yield from _measured_marks(chart, [point.seconds for point in chart.measured])


def _rate_marks(chart: BatchSweep, at: NDArray[np.intp]) -> Iterator[Mark]:
    yield Line(chart.batches[at], chart.along(chart.estimate.throughput)[at], "compute", width=2.0, toggle="expected")
    yield from _measured_marks(chart, [point.rate for point in chart.measured])


def _measured_marks(chart: BatchSweep, values: Sequence[float]) -> Iterator[Points]:
    """Yield what was measured, with rings around what is faster than the datasheet allows."""
    if not values:
        return
    slack = chart.estimate.chip.clock_slack
    batches = [point.batch for point in chart.measured]
    yield Points(batches, values, "ink", "X", 7.5, "measured", edge="back")
    above = [i for i, point in enumerate(chart.measured) if point.above(slack)]
    if above:
        text = "faster than the datasheet: check timing or count"
        yield Points([batches[i] for i in above], [values[i] for i in above], "red", "o", 13.0, text, filled=False)


def _memory_marks(chart: BatchSweep, at: NDArray[np.intp]) -> Iterator[Mark]:
    """Yield the parts on top of each other, what they are together, and what there is."""
    batch = chart.batches[at]
    parts = {name: values[at] for name, values in chart.memory.items() if values[-1]}
    words = {name: name.replace("_", " ").replace("kv", "KV") for name in parts}
    said = [f"{words[name]} {format_bytes(values[-1])}" for name, values in parts.items()]
    for band, name in zip(stacked(batch, parts, list(parts), said), parts, strict=True):
        yield replace(band, name="", toggle=words[name])
    total = np.sum(list(parts.values()), axis=0)
    yield Line(batch, total, width=0.8, label=f"batch {batch[-1]:,.0f}: {format_bytes(total[-1])}", toggle="memory")
    limit = "capacity" if chart.memory_limit is None else "limit"
    yield Rule(y=chart.limit, label=f"{limit} {format_bytes(chart.limit)}", colour="red", bold=True)
