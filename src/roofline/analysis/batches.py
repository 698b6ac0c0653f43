"""The best batch under limits of memory and latency, and the batch at which the program turns compute-bound.

Below the ridge a bigger batch is nearly free, because the weights are read once for all of it; the limits decide.
Above it the time grows with the batch, so a bigger one buys latency for little throughput: the best is then the
smallest batch whose throughput is within one per cent of the best attainable. The same holds where traffic that grows
with the batch saturates the memory long before any ridge (half the largest batch is then as good as all of it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.analysis.estimates import Estimate, Mode, estimate
from roofline.analysis.remedies import does_not_fit, formats_that_fit
from roofline.counting.grid import grid, one_point
from roofline.counting.memory import RESERVE, Memory, memory, reserved
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import DoesNotFit, UsageError
from roofline.ir.graph import Graph, advice_on, sizes_of
from roofline.ir.report import Report
from roofline.ir.units import format_si, parse
from roofline.passes.formats.cast import cast

if TYPE_CHECKING:
    import pandas as pd

#: No batch above this is looked at.
LARGEST_BATCH = 2**20
#: Throughput within this share of the best counts as the best.
NEAR_BEST = 0.99
#: Points that a printed curve keeps.
CURVE_POINTS = 64


@dataclass(frozen=True, repr=False)
class BatchChoice(Report):
    """The best batch and why.

    From :func:`roofline.best_batch`.

    Attributes:
        best: The batch to run.
        limit: What stopped it: ``memory``, ``latency``, ``ridge``, ``saturated`` (a larger batch gains next to nothing)
            or ``size`` (no batch above :data:`LARGEST_BATCH` is looked at).
        ridge: First batch whose compute time exceeds its memory time, or ``None`` up to the memory limit.
        ridge_by_kernel: The same for each distinct kernel.
        largest: The most that the memory limit allows.
        curve: The estimate over every batch from 1 to ``largest``.
        memory_limit: Bytes that the program may use.
        latency_limit: Seconds that one run may take, or ``None``.
    """

    schema = "batch"

    best: int
    limit: str
    ridge: int | None
    ridge_by_kernel: dict[str, int | None]
    largest: int
    curve: Estimate
    memory_limit: float
    latency_limit: float | None

    @cached_property
    def estimate(self) -> Estimate:
        """The estimate at the best batch."""
        return self.curve[self.best - 1]

    def __repr__(self) -> str:
        time = format_si(float(self.estimate.time), "s")
        return f"<BatchChoice {self.curve.graph.name}: batch {self.best}, limited by {self.limit}, {time}>"

    def subject(self) -> dict[str, Any]:
        """Return the program, where and how it runs, and its sizes but the batch."""
        about = self.curve.subject()
        return {**about, "sizes": {name: size for name, size in about["sizes"].items() if name != "batch"}}

    def summary(self) -> dict[str, Any]:
        """Return the best batch, what limits it, and what it takes."""
        return {
            "best_batch": self.best,
            "ridge_batch": self.ridge,
            "limit": self.limit,
            "largest_batch": self.largest,
            "memory_limit_bytes": self.memory_limit,
            "latency_limit_s": self.latency_limit,
            "ridge_by_kernel": self.ridge_by_kernel,
            "best": self.estimate.records()[0],
        }

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per batch of :meth:`shown`: its time, throughput and memory."""
        rate = f"{self.curve.graph.item}s_per_s"
        names = ("batch", "time_s", "low_s", "high_s", "tokens_per_s", rate, "bound", "memory_bytes", "fits")
        points = [self.curve[batch - 1].records()[0] for batch in self.shown()]
        return [{name: at[name] for name in dict.fromkeys(names)} for at in points]

    def shown(self) -> list[int]:
        """Batches worth listing: powers of two, the ridge, the best and the largest."""
        ladder = [2**k for k in range(self.largest.bit_length())]
        marks = [batch for batch in (self.ridge, self.best, self.largest) if batch]
        return sorted({*ladder, *marks})[:CURVE_POINTS]

    def frame(self) -> pd.DataFrame:
        """Time, range, throughput and memory of every batch."""
        import pandas as pd

        curve = self.curve
        return pd.DataFrame(
            {
                "batch": np.arange(1, self.largest + 1),
                "time_s": curve.time,
                "low_s": curve.low,
                "high_s": curve.high,
                f"{curve.graph.item}s_per_s": curve.throughput,
                "memory_bytes": curve.memory.total,
                "bound": curve.bound,
            }
        )


def best_batch(
    program: Program,
    chip: AnyChip,
    *,
    memory_limit: str | float | None = None,
    latency_limit: str | float | None = None,
    mode: Mode = "eager",
    tf32: bool | None = None,
    reserve: str | float = RESERVE,
    phase: str | None = None,
    dtype: str | None = None,
    **sizes: int,
) -> BatchChoice:
    """Choose the batch with the best throughput that memory and latency allow.

    Args:
        program: A graph, a shipped name, or the path of a model file, workload, config or script; its batch is open.
        chip: A name or a chip.
        memory_limit: Such as ``"72 GiB"`` [byte]; the chip's capacity by default.
        latency_limit: Of one run, such as ``"50 ms"`` [s].
        mode: As for :func:`roofline.estimate`.
        tf32: As for :func:`roofline.estimate`.
        reserve: Memory that driver and framework keep [byte], a number or text such as ``"1 GiB"``.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        sizes: ``seq``, ``context`` and any other size but the batch, single numbers.

    Returns:
        The best batch, what limits it, and the estimate of every batch that fits.

    Raises:
        DoesNotFit: Not even batch 1 fits; the message itemises it and says what would.
        UsageError: The program has no batch to choose, or a limit is not above zero.

    Example:
        >>> import roofline as rl
        >>> choice = rl.best_batch("llama-3-8b", "h100-sxm", phase="decode", context=2048, mode="graph")
        >>> choice.limit in ("memory", "ridge") and choice.best <= choice.largest
        True
    """
    graph, target = as_graph(program, phase, dtype), find_chip(chip)
    fixed = sizes_of(graph, sizes)
    _check(graph, fixed)
    room = _limit("memory_limit", memory_limit, "B", target.capacity if memory_limit is None else 0.0)
    patience = _limit("latency_limit", latency_limit, "s", inf)
    largest = _largest_batch(graph, target, fixed, room, reserved(reserve))
    curve = estimate(graph, target, mode=mode, tf32=tf32, reserve=reserve, B=np.arange(1, largest + 1), **fixed)
    # The batch up to which every run is in time; steps of tiles let a larger one be a little faster again.
    in_time = (_first(curve.time > patience) or largest + 1) - 1
    if in_time == 0:
        raise DoesNotFit(
            f"{graph.name} on {target.name}: batch 1 takes {format_si(float(curve.time[0]), 's')}, above the latency "
            f"limit of {format_si(patience, 's')}"
        )
    ridge, by_kernel = _ridges(curve)
    best, limit = _choose(curve.throughput, ridge, largest, in_time)
    return BatchChoice(best, limit, ridge, by_kernel, largest, curve, room, None if patience == inf else patience)


def _check(graph: Graph, sizes: Mapping[str, Any]) -> None:
    """Refuse a program without a batch to choose, and sizes that span an axis."""
    if "B" not in graph.symbols:
        raise UsageError(f"{graph.name} has no symbol B: its batch is fixed, so there is nothing to choose"
                         f"{advice_on(graph, 'B')}")  # fmt: skip
    if "B" in sizes:
        raise UsageError(f"batch={sizes['B']}: the batch is what this chooses; leave it out")
    one_point(grid(graph.symbols, {"B": 1, **sizes}).axes, "a batch is chosen for")


def _limit(name: str, value: str | float | None, unit: str, absent: float) -> float:
    limit = absent if value is None else parse(value, unit, name)
    if limit <= 0:
        raise UsageError(f"{name}={value!r}: limits must be positive")
    return limit


def _choose(throughput: Any, ridge: int | None, largest: int, in_time: int) -> tuple[int, str]:
    """Return the batch to run and what limits it."""
    cap = min(in_time, largest)
    limit = "latency" if in_time < largest else "memory" if largest < LARGEST_BATCH else "size"
    top = NEAR_BEST * throughput[:cap].max()
    behind = throughput[cap - 1] < top  # a step of tiles leaves the largest batch behind a smaller one
    saturated = behind or throughput[max(cap // 2, 1) - 1] >= NEAR_BEST * throughput[cap - 1]
    past = ridge is not None and ridge < cap
    if not past and not saturated:
        return cap, limit
    best = max(_first(throughput[:cap] >= top) or 1, ridge if past and ridge else 1)
    return (best, "ridge" if past else "saturated") if best < cap else (cap, limit)


def _ridges(curve: Estimate) -> tuple[int | None, dict[str, int | None]]:
    """Return the first batch whose compute time exceeds its memory time, of all kernels and of each."""
    total_compute, total_memory = np.zeros(curve.shape), np.zeros(curve.shape)
    by_kernel: dict[str, int | None] = {}
    for row, time in curve.timed:
        total_compute += row.kernel.count * time.compute
        total_memory += row.kernel.count * time.memory
        by_kernel[row.kernel.name] = _first(np.broadcast_to(time.compute > time.memory, curve.shape))
    return _first(total_compute > total_memory), by_kernel


def _first(hits: Any) -> int | None:
    """Return the first batch of a curve that is hit."""
    at = np.flatnonzero(hits)
    return int(at[0]) + 1 if at.size else None


def _largest_batch(graph: Graph, chip: Chip, sizes: Mapping[str, Any], room: float, reserve: float) -> int:
    """Return the largest batch that fits, by bisection."""

    def need(batch: int, program: Graph = graph) -> Memory:
        return memory(program, grid(graph.symbols, {"B": batch, **sizes}).sizes, reserve)

    if need(1).total > room:
        remedies = islice(formats_that_fit(lambda change: need(1, cast(graph, **change)).total <= room), 2)
        raise does_not_fit(f"{graph.name} on {chip.name}: batch 1", need(1), room, list(remedies))
    low, high = 1, 2
    while high <= LARGEST_BATCH and need(high).total <= room:
        low, high = high, high * 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if need(middle).total <= room else (low, middle)
    return min(low, LARGEST_BATCH)
