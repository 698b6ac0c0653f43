"""Plots: the roofline of a chip with the kernels of a program beneath it, and a program over its batch.

A plot is an immutable description; nothing is drawn before it is shown or saved. The table behind each is its
``frame()``, or a file by ``to_csv(path)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from roofline.analysis.estimates import Estimate
from roofline.analysis.estimates import estimate as evaluate
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import UsageError
from roofline.ir.units import format_si
from roofline.view.charts import points as _points
from roofline.view.charts import roof as _roof
from roofline.view.charts import sweep as _sweep
from roofline.view.charts.output import Picture
from roofline.view.charts.points import Ceiling, Point, Slope, quantity
from roofline.view.charts.style import RC

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["BatchSweep", "Roofline", "plot_batch", "plot_roofline"]


@dataclass(frozen=True, eq=False, repr=False)
class Roofline(Picture):
    """A roofline, made by :func:`plot_roofline`.

    Attributes:
        chip: Whose roof it is.
        estimate: Whose kernels are beneath it, or ``None``.
        ceilings: Compute roofs, the main one first.
        slopes: Memory roofs, the main memory first.
        points: Kernels by falling time, then the whole program, then what was measured.
    """

    chip: Chip
    estimate: Estimate | None
    ceilings: tuple[Ceiling, ...]
    slopes: tuple[Slope, ...]
    points: tuple[Point, ...]

    @property
    def ridge(self) -> float:
        """Where the main compute and memory roofs meet [FLOP/byte]."""
        return self.ceilings[0].flops / self.slopes[0].bandwidth

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """One line for each measured point that is above the roof."""
        wrong = (point for point in self.points if point.above(self.chip.clock_slack))
        return tuple(_points.above_text(point, self.chip) for point in wrong)

    def frame(self) -> pd.DataFrame:
        """One row a point: its counts, its time, its rate and the roof over it."""
        import pandas as pd

        return pd.DataFrame([point.row(self.chip.clock_slack) for point in self.points], columns=list(_COLUMNS))

    def on(self, ax: Axes) -> Axes:
        """Draw onto axes of your own and return them."""
        import matplotlib

        with matplotlib.rc_context(RC):
            _roof.draw_roof(ax, self._view())
        return ax

    def _draw(self, figure: Figure) -> None:
        self.on(figure.add_subplot())

    def _hints(self) -> dict[str, str]:
        return _roof.hints(self._view())

    def _view(self) -> _roof.RoofView:
        name = f"{self.estimate.graph.name} on {self.chip.name}" if self.estimate else self.chip.name
        share = self.chip.efficiency
        return _roof.RoofView(
            f"Roofline of {name}", _about(self.estimate), self.ceilings, self.slopes, self.points, self.ridge,
            self.chip.clock_slack, (share.compute, share.memory),
        )  # fmt: skip

    def __repr__(self) -> str:
        kernels = sum(point.kind == "kernel" for point in self.points)
        return f"<Roofline of {self.chip.name}: {kernels} kernels, ridge at {self.ridge:.3g} FLOP/byte>"


#: Columns of the table behind a roofline, also when it is empty.
_COLUMNS = tuple(Point("kernel", "", "", 1, "", "", 0, 0, 0, 0, 0, 0).row(1.0))


def _about(estimate: Estimate | None) -> str:
    """Second line of a title: mode, sizes, time."""
    if estimate is None:
        return "per device, dense rates"
    sizes = "".join(f", {name}={value}" for name, value in estimate.grid.values.items() if isinstance(value, int))
    if estimate.shape:
        return f"{estimate.mode} mode{sizes}"
    time, low, high = (format_si(value, "s") for value in (estimate.time, estimate.low, estimate.high))
    return f"{estimate.mode} mode{sizes}: {time} ({low} to {high}), {estimate.bound}-bound"


def plot_roofline(
    what: Estimate | AnyChip,
    precisions: Sequence[str] | None = None,
    levels: Sequence[str] | None = None,
    measured: Any = None,
) -> Roofline:
    """Describe a roofline plot of a chip, with the kernels of a program beneath it if given an estimate.

    Args:
        what: An estimate of one point, or a chip.
        precisions: Number formats with a ceiling, the main one first; those of the program and a few common ones
            by default.
        levels: Memory levels with a ceiling, the main memory first; all with a known bandwidth by default.
        measured: Seconds of the whole program, or a list of (label, flops, bytes, seconds) with or without units. The
            label of a kernel compares with the peak of its format.

    Raises:
        UsageError: The estimate spans a grid, or ``measured`` is something else.
        MissingFigure: A ceiling without a published figure.

    Example:
        >>> plot_roofline("h100-sxm", precisions=["bf16"])
        <Roofline of h100-sxm: 0 kernels, ridge at 295 FLOP/byte>
        >>> plot_roofline("h100-sxm", measured=[("gemm", "1 TFLOP", "10 GB", "1 ms")]).warnings
        ('gemm: 1 ms is 3 times as fast as the datasheet of h100-sxm allows (2.99 ms); check the timing or the count',)
    """
    est = what if isinstance(what, Estimate) else None
    if est is not None and est.shape:
        raise UsageError(f"a roofline shows one point; index the axes {est.axis_names} of the estimate first")
    chip = est.chip if est is not None else find_chip(what)  # type: ignore[arg-type]
    tf32 = est.tf32 if est is not None else False
    wanted = _names(precisions, "precisions") or _points.default_precisions(chip, est)
    predicted = (*_points.kernel_points(est), _points.program_point(est)) if est is not None else ()
    return Roofline(
        chip,
        est,
        _points.ceilings(chip, wanted, tf32),
        _points.slopes(chip, _names(levels, "levels") or None),
        predicted + _points.measured_points(measured, chip, est, wanted),
    )


def _names(given: Sequence[str] | None, what: str) -> tuple[str, ...]:
    """A sequence of names; a single one counts as one."""
    if given is None:
        return ()
    names = (given,) if isinstance(given, str) else tuple(given)
    if not names:
        raise UsageError(f"{what}: none given; name at least one, or leave it out")
    return names


@dataclass(frozen=True, eq=False, repr=False)
class BatchSweep(Picture):
    """Time, throughput and memory over the batch, made by :func:`plot_batch`.

    Attributes:
        estimate: Over the batch alone.
        memory_limit: Memory that may be used, the chip's capacity if ``None`` [byte].
        latency_limit: Time that one run may take [s].
        measured: What was measured.
        ridge: Batch at which the program turns compute-bound.
        best: Batch to run.
    """

    default_size: ClassVar[tuple[float, float]] = (8.0, 8.6)

    estimate: Estimate
    memory_limit: float | None
    latency_limit: float | None
    measured: tuple[_sweep.Measured, ...]
    ridge: float | None
    best: float | None

    @cached_property
    def _order(self) -> Any:
        return np.argsort(self._batches, kind="stable")

    @property
    def _batches(self) -> Any:
        return np.asarray(self.estimate.grid.values["B"], dtype=np.float64)

    @property
    def limit(self) -> float:
        """Memory that may be used [byte]."""
        return self.estimate.chip.capacity if self.memory_limit is None else self.memory_limit

    @property
    def largest(self) -> float | None:
        """Where the memory reaches the limit, between two batches; ``None`` if it does not within the sweep."""
        batch = self._batches[self._order]
        over = np.asarray(self.estimate.memory.total)[self._order] - self.limit
        at = int(np.argmax(over > 0))
        if not over[at] > 0 or at == 0:
            return None
        return float(np.interp(0.0, over[at - 1 : at + 1], batch[at - 1 : at + 1]))

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """One line for each measured batch that is faster than the datasheet allows."""
        chip = self.estimate.chip
        return tuple(
            _points.faster_text(f"batch {point.batch:g}", point.seconds, point.floor, chip)
            for point in self.measured
            if point.above(chip.clock_slack)
        )

    def frame(self) -> pd.DataFrame:
        """One row a batch, then one row each that was measured."""
        import pandas as pd

        est = self.estimate
        rate = f"{est.graph.item}s_per_s"
        memory = {f"{name}_bytes": value for name, value in est.memory.parts().items()}
        table: pd.DataFrame = pd.DataFrame(
            {"kind": "expected", "batch": self._batches.astype(np.int64), "time_s": est.time, "low_s": est.low,
             "high_s": est.high, "floor_s": est.floor, rate: est.throughput, "bound": est.bound, **memory,
             "memory_bytes": est.memory.total, "fits": np.asarray(est.memory.total) <= self.limit}
        ).iloc[self._order]  # fmt: skip
        seen = [
            {"kind": "measured", "batch": int(m.batch), "time_s": m.seconds, "floor_s": m.floor, rate: m.rate}
            for m in self.measured
        ]
        return pd.concat([table, pd.DataFrame(seen)], ignore_index=True) if seen else table.reset_index(drop=True)

    def on(self, axes: Sequence[Axes]) -> Sequence[Axes]:
        """Draw onto three axes of your own, from top to bottom, and return them."""
        import matplotlib

        panels = list(np.ravel(np.asarray(axes, dtype=object)))
        if len(panels) != 3:
            raise UsageError(f"a batch sweep needs three axes (time, throughput, memory), given {len(panels)}")
        with matplotlib.rc_context(RC):
            _sweep.draw_sweep(panels, self._view())
        return axes

    def _draw(self, figure: Figure) -> None:
        self.on(figure.subplots(3, 1, sharex=True, height_ratios=(1.15, 1, 1.15)))

    def _view(self) -> _sweep.SweepView:
        est, batch = self.estimate, self._batches
        keep = self._order[_sweep.thinned(batch[self._order])]

        def along(value: Any) -> Any:
            return np.broadcast_to(np.asarray(value, dtype=np.float64), batch.shape)[keep]

        return _sweep.SweepView(
            title=f"{est.graph.name} on {est.chip.name} by batch size",
            subtitle=_about(est),
            item=est.graph.item,
            **{name: along(getattr(est, name)) for name in ("time", "low", "high", "floor")},
            batch=along(batch),
            rate=along(est.throughput),
            parts={name: along(value) for name, value in est.memory.parts().items()},
            limit=self.limit,
            limit_label="capacity" if self.memory_limit is None else "limit",
            latency=self.latency_limit,
            measured=self.measured,
            marks=self._marks(),
            slack=est.chip.clock_slack,
        )

    def _marks(self) -> tuple[tuple[float, str], ...]:
        marks = ((self.ridge, "ridge"), (self.best, "best"))
        found = [(float(at), f"{name} {at:,.0f}") for at, name in marks if at is not None]
        if self.largest is not None:
            found.append((self.largest, f"memory full above {np.floor(self.largest):,.0f}"))
        return tuple(found)

    def __repr__(self) -> str:
        first, last = self._batches.min(), self._batches.max()
        name, chip = self.estimate.graph.name, self.estimate.chip.name
        return f"<BatchSweep of {name} on {chip}: batch {first:.0f} to {last:.0f}>"


def plot_batch(
    estimate: Estimate,
    memory_limit: str | float | None = None,
    latency_limit: str | float | None = None,
    measured: Sequence[tuple[float, str | float]] | None = None,
    ridge: float | None = None,
    best: float | None = None,
) -> BatchSweep:
    """Describe a plot of time, throughput and memory over the batch.

    Args:
        estimate: One with the batch ``B`` as its only axis.
        memory_limit: Memory that may be used; the chip's capacity by default [byte].
        latency_limit: Time that one run may take [s].
        measured: Pairs of a batch and its time [s].
        ridge: Batch at which the program turns compute-bound, as :func:`roofline.best_batch` finds it.
        best: Batch to run, as found there.

    Raises:
        UsageError: The estimate has other axes, or a value that cannot be.

    Example:
        >>> import roofline as rl
        >>> est = rl.estimate(rl.model("gpt2", phase="decode"), "a100-80gb-sxm", B=[1, 8, 64], S=512)
        >>> plot_batch(est, latency_limit="20 ms").latency_limit
        0.02
    """
    if estimate.axis_names != ("B",):
        axes = f"the axes {estimate.axis_names}" if estimate.shape else "no axis"
        raise UsageError(f"a batch sweep needs an estimate with the axis B alone, given {axes}; give B a sequence")
    return BatchSweep(
        estimate,
        None if memory_limit is None else quantity(memory_limit, "B", "memory_limit"),
        None if latency_limit is None else quantity(latency_limit, "s", "latency_limit"),
        _measured_batches(estimate, measured or ()),
        None if ridge is None else _batch(ridge, "ridge"),
        None if best is None else _batch(best, "best"),
    )


def _batch(value: Any, what: str) -> float:
    if isinstance(value, str | bool) or not hasattr(value, "__float__") or not 1 <= float(value) < float("inf"):
        raise UsageError(f"{what}: {repr(value)[:100]} is not a batch from 1")
    return float(value)


def _measured_batches(estimate: Estimate, measured: Sequence[Any]) -> tuple[_sweep.Measured, ...]:
    """Pairs of batch and seconds, with the floor and the throughput there."""
    for pair in measured:
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise UsageError(f"measured: wanted pairs of batch and seconds, given {repr(pair)[:100]}")
    if not measured:
        return ()
    batches = [_batch(batch, "measured") for batch, _ in measured]
    seconds = [quantity(value, "s", "measured") for _, value in measured]
    sizes: dict[str, Any] = {**estimate.grid.values, "B": batches}
    there = evaluate(estimate.graph, estimate.chip, mode="graph", tf32=estimate.tf32, **sizes)
    items = there.throughput * there.time
    rows = zip(batches, seconds, items, there.floor, strict=True)
    return tuple(_sweep.Measured(batch, time, float(n) / time, float(floor)) for batch, time, n, floor in rows)
