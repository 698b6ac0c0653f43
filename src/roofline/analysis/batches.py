"""The best batch under limits of memory and latency, the batch of a share of the throughput, and the ridge.

Three different things. The *limit* is the largest batch that memory and latency allow. The batch of a *share* is the
smallest that has so much of the best throughput within the limits. The *ridge* is the first batch whose arithmetic
takes longer than its traffic, by the datasheet's rates and by calibrated ones: throughput still grows there.

The best batch is the limit, where throughput grows up to it. Where it no longer does - past the ridge, or where half
the limit has 99 % of the best throughput, because traffic that grows with the batch fills the memory long before any
ridge - a bigger batch buys nothing but latency, and the best is the smallest that has 99 %.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any

import numpy as np

from roofline.analysis.estimates import Estimate, Mode, estimate
from roofline.analysis.remedies import does_not_fit, of_program
from roofline.cost import REGIME
from roofline.cost.scratch import memory_on
from roofline.counting.grid import grid, one_point
from roofline.counting.memory import RESERVE, Memory, reserved
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import DoesNotFit, UsageError
from roofline.ir.graph import Graph, advice_on, sizes_of
from roofline.ir.report import Report
from roofline.ir.units import format_si
from roofline.ir.units import limit as most
from roofline.ir.units import share as parse_share

#: No batch above this is looked at.
LARGEST_BATCH = 2**20
#: Every batch up to this is looked at, larger ones within a percent of each other, and powers of two.
EVERY_BATCH = 8192
#: Larger ones are multiples of this, where tiles are full and throughput has its peaks.
ROWS = 64
#: Throughput within this share of the best counts as the best.
NEAR_BEST = 0.99
#: Shares of the best throughput whose batches are said.
SHARES = (0.8, 0.9)


@dataclass(frozen=True, repr=False)
class BatchChoice(Report):
    """The best batch and why.

    From :func:`roofline.best_batch`.

    Attributes:
        best: The batch to run.
        limit: What limits the batch: ``memory``, ``latency`` or ``size`` (no batch above :data:`LARGEST_BATCH` is
            looked at).
        limit_batch: The largest batch within the limits; where ``best`` is smaller, a larger one gains next to nothing.
        near: Share of the best throughput within the limits that counts as the best.
        ridge: First batch whose compute time exceeds its memory time at calibrated rates; ``None`` up to ``largest``.
        ridge_datasheet: The same at the datasheet's rates.
        ridge_by_kernel: The calibrated ridge of each distinct kernel.
        largest: The most that the memory limit allows.
        curve: The estimate over batches from 1 to ``largest``: each up to :data:`EVERY_BATCH`, then a percent apart.
        memory_limit: Bytes that the program may use.
        latency_limit: Seconds that one run may take, or ``None``.
    """

    schema = "batch"

    best: int
    limit: str
    limit_batch: int
    near: float
    ridge: int | None
    ridge_datasheet: int | None
    ridge_by_kernel: dict[str, int | None]
    largest: int
    curve: Estimate
    memory_limit: float
    latency_limit: float | None

    @cached_property
    def estimate(self) -> Estimate:
        """The estimate at the best batch."""
        return self.at(self.best)

    @cached_property
    def batches(self) -> Any:
        """The batches of :attr:`curve`."""
        return _batches(self.curve)

    def at(self, batch: int) -> Estimate:
        """Return the estimate of a batch of :attr:`curve`.

        Args:
            batch: One of :attr:`batches`.

        Raises:
            UsageError: A batch that was not looked at; names the nearest.
        """
        place = min(int(np.searchsorted(self.batches, batch)), len(self.batches) - 1)
        if self.batches[place] != batch:
            nearest = int(min(self.batches[max(place - 1, 0) : place + 1], key=lambda other: abs(other - batch)))
            raise UsageError(f"batch={batch}: not among the batches up to {self.largest:,} that were looked at; "
                             f"the nearest is {nearest:,}")  # fmt: skip
        return self.curve[place]

    @cached_property
    def _rates(self) -> Any:
        """Throughput of each batch within the limits [1/s]."""
        return self.curve.throughput[: int(np.searchsorted(self.batches, self.limit_batch)) + 1]

    @cached_property
    def peak(self) -> float:
        """The best throughput within the limits [1/s]."""
        return float(self._rates.max())

    def share(self, batch: int) -> float:
        """Return the share of :attr:`peak` that a batch up to :attr:`largest` has."""
        return float(np.interp(batch, self.batches, self.curve.throughput)) / self.peak

    @property
    def ridge_share(self) -> float | None:
        """Share of :attr:`peak` at the calibrated ridge, where that is within the limits."""
        return self.share(self.ridge) if self.ridge is not None and self.ridge <= self.limit_batch else None

    def batch_for(self, share: str | float) -> int:
        """Return the smallest batch within the limits that has a share of :attr:`peak`.

        Args:
            share: Such as ``"90%"`` or 0.9.

        Raises:
            UnitError: No share above 0 up to 1.
        """
        enough = self._rates >= parse_share(share, "share") * self.peak
        return _first(enough, self.batches[: enough.size]) or self.limit_batch

    def __repr__(self) -> str:
        time, limit = format_si(float(self.estimate.time), "s"), f"{self.limit} allows {self.limit_batch}"
        return f"<BatchChoice {self.curve.graph.name}: batch {self.best}, {limit}, {time}>"

    def subject(self) -> dict[str, Any]:
        """Return the program, where and how it runs, and its sizes but the batch."""
        about = self.curve.subject()
        return {**about, "sizes": {name: size for name, size in about["sizes"].items() if name != "batch"}}

    def summary(self) -> dict[str, Any]:
        """Return the best batch, what limits it, and what it takes."""
        return {
            "best_batch": self.best,
            "near": self.near,
            "best_share": self.share(self.best),
            "peak_items_per_s": self.peak,
            "batch_by_share": {f"{share:.0%}": self.batch_for(share) for share in SHARES},
            "ridge_batch": self.ridge,
            "ridge_batch_datasheet": self.ridge_datasheet,
            "ridge_share": self.ridge_share,
            "limit": self.limit,
            "limit_batch": self.limit_batch,
            "largest_batch": self.largest,
            "memory_limit_bytes": self.memory_limit,
            "latency_limit_s": self.latency_limit,
            "ridge_by_kernel": self.ridge_by_kernel,
            "best": self.estimate.records()[0],
        }

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per batch of :meth:`shown`: its time, throughput and memory; ``curve`` has them all."""
        rate = f"{self.curve.graph.item}s_per_s"
        names = ("batch", "time_s", "low_s", "high_s", "tokens_per_s", rate, "bound", "memory_bytes", "fits")
        points = [self.at(batch).records()[0] for batch in self.shown()]
        return [{name: at[name] for name in dict.fromkeys(names)} for at in points]

    def shown(self) -> list[int]:
        """Batches worth listing: powers of two, the ridges, the best, the limit and the largest."""
        ladder = [2**k for k in range(self.largest.bit_length())]
        marks = (self.ridge, self.ridge_datasheet, self.best, self.limit_batch, self.largest)
        return sorted({*ladder, *(batch for batch in marks if batch)})


def best_batch(
    program: Program,
    chip: AnyChip,
    *,
    memory_limit: str | float | None = None,
    latency_limit: str | float | None = None,
    near: str | float | None = None,
    mode: Mode = "eager",
    tf32: bool | None = None,
    regime: str = REGIME,
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
        near: Choose the smallest batch that has this share of the best throughput within the limits, such as ``"90%"``
            or 0.9. Without it, the largest batch within the limits, or the smallest with 99 % where throughput no
            longer grows.
        mode: As for :func:`roofline.estimate`.
        tf32: As for :func:`roofline.estimate`.
        regime: As for :func:`roofline.estimate`.
        reserve: Memory that driver and framework keep [byte], a number or text such as ``"1 GiB"``.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        sizes: ``seq``, ``context`` and any other size but the batch, single numbers.

    Returns:
        The best batch, what limits it, and the estimate of every batch that fits.

    Raises:
        DoesNotFit: Not even batch 1 fits; the message itemises it and says what would.
        UsageError: The program has no batch to choose, or a limit is not above zero.
        UnitError: A limit without a unit, or a share that is none.

    Example:
        >>> import roofline as rl
        >>> choice = rl.best_batch("llama-3-8b", "h100-sxm", phase="decode", context=2048, mode="graph")
        >>> choice.limit, choice.best == choice.limit_batch, choice.ridge
        ('memory', True, None)
    """
    graph, target = as_graph(program, phase, dtype), find_chip(chip)
    fixed = sizes_of(graph, sizes)
    _check(graph, fixed)
    room = most("memory_limit", memory_limit, "B", target.capacity if memory_limit is None else 0.0)
    patience = most("latency_limit", latency_limit, "s")
    part = None if near is None else parse_share(near, "near")
    largest = _largest_batch(graph, target, fixed, room, reserved(reserve))
    options: dict[str, Any] = {"mode": mode, "tf32": tf32, "regime": regime, "reserve": reserve}
    curve, in_time = _estimated(
        lambda batches: estimate(graph, target, **options, B=batches, **fixed), largest, patience
    )
    limit = "latency" if in_time < largest else "memory" if largest < LARGEST_BATCH else "size"
    return _choice(curve, limit, min(in_time, largest), part, room, None if patience == inf else patience)


def _estimated(estimated: Callable[[Any], Estimate], largest: int, patience: float) -> tuple[Estimate, int]:
    """Return the curve up to the largest batch, and the last of its batches that is in time."""
    batches = _looked_at(largest)
    curve = estimated(batches)
    in_time = _in_time(curve, patience)
    late = batches[min(int(np.searchsorted(batches, in_time)) + 1, len(batches) - 1)]
    if late > in_time + 1:  # the limit lies between two batches that were looked at
        curve = estimated(np.union1d(batches, np.arange(in_time, late)))
        in_time = _in_time(curve, patience)
    return curve, in_time


def _looked_at(largest: int) -> Any:
    """Return the batches of a curve up to the largest."""
    if largest <= EVERY_BATCH:
        return np.arange(1, largest + 1)
    apart = np.geomspace(EVERY_BATCH, largest, 2 + int(np.log(largest / EVERY_BATCH) / np.log(1.005)))
    apart = (apart / ROWS).astype(int) * ROWS
    return np.unique([*range(1, EVERY_BATCH), *apart, *(2**k for k in range(largest.bit_length())), largest])


def _batches(curve: Estimate) -> Any:
    """Return the batches of an estimate over batches alone."""
    return np.ravel(curve.grid.sizes["B"])


def _in_time(curve: Estimate, patience: float) -> int:
    """Return the batch up to which every run is in time; steps of tiles let a larger one be a little faster again.

    Raises:
        DoesNotFit: Not even a batch of one is.
    """
    batches = _batches(curve)
    late = _first(curve.time > patience, range(len(batches)))
    if late == 0:
        raise DoesNotFit(
            f"{curve.graph.name} on {curve.chip.name}: batch 1 takes {format_si(float(curve.time[0]), 's')}, above the "
            f"latency limit of {format_si(patience, 's')}"
        )
    return int(batches[-1 if late is None else late - 1])


def _choice(
    curve: Estimate, limit: str, cap: int, near: float | None, room: float, patience: float | None
) -> BatchChoice:
    """Choose a batch of a curve, up to the largest that the limits allow."""
    ridge, datasheet = ridge_batches(curve)
    batches = _batches(curve)
    within = batches <= cap
    best = _choose(curve.throughput[within], batches[within], near, ridge is not None and ridge < cap)
    return BatchChoice(
        best,
        limit,
        cap,
        near or NEAR_BEST,
        ridge,
        datasheet,
        _by_kernel(curve),
        int(batches[-1]),
        curve,
        room,
        patience,
    )


def _check(graph: Graph, sizes: Mapping[str, Any]) -> None:
    """Refuse a program without a batch to choose, and sizes that span an axis."""
    if "B" not in graph.symbols:
        raise UsageError(f"{graph.name} has no symbol B: its batch is fixed, so there is nothing to choose"
                         f"{advice_on(graph, 'B')}")  # fmt: skip
    if "B" in sizes:
        raise UsageError(f"batch={sizes['B']}: the batch is what this chooses; leave it out")
    one_point(grid(graph.symbols, {"B": 1, **sizes}).axes, "a batch is chosen for")


def _choose(throughput: Any, batches: Any, near: float | None, past_ridge: bool) -> int:
    """Return the smallest batch that has a share of the best throughput, or the largest while throughput grows."""
    cap, top = int(batches[-1]), (near or NEAR_BEST) * throughput.max()
    enough = _first(throughput >= top, batches) or cap
    # Steps of tiles may leave the largest batch behind a smaller one.
    grows = near is None and not past_ridge and enough > cap // 2 and throughput[-1] >= top
    return cap if grows else enough


def ridge_batches(curve: Estimate) -> tuple[int | None, int | None]:
    """Return the first batch whose compute time exceeds its memory time, at calibrated and at the datasheet's rates.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> from roofline.ir.sizes import symbol
        >>> b = Builder("layer", "bf16")
        >>> y = b.op("linear", b.input("x", (symbol("B"), 4096)), b.weight("w", (4096, 4096)))
        >>> ridge_batches(estimate(b.graph([y]), "h100-sxm", B=np.arange(1, 400)))  # 345.1 by hand
        (277, 346)
    """
    share = curve.chip.efficiency
    compute, memory = (
        sum(row.kernel.count * getattr(time, part) for row, time in curve.timed) for part in ("compute", "memory")
    )
    past = (compute > memory, compute * share.compute > memory * share.memory)
    calibrated, datasheet = (_first(np.broadcast_to(hit, curve.shape), _batches(curve)) for hit in past)
    return calibrated, datasheet


def best_of(curve: Estimate, memory_limit: float, latency_limit: float | None = None) -> int | None:
    """Return the batch of a curve that :func:`best_batch` would choose among those within the limits.

    Args:
        curve: An estimate over batches alone.
        memory_limit: What the program may use [byte].
        latency_limit: What one run may take [s].

    Returns:
        The batch; ``None`` where not one is within the limits.

    Example:
        >>> best_of(estimate("gpt2", "h100-sxm", phase="decode", batch=[1, 2, 4], context=512), 80e9)
        4
    """
    order = np.argsort(_batches(curve), kind="stable")
    batches, rates = _batches(curve)[order], np.broadcast_to(curve.throughput, curve.shape)[order]
    over = np.broadcast_to(curve.memory.total > memory_limit, curve.shape) | (curve.time > (latency_limit or inf))
    within = int(np.argmax([*over[order], True]))
    ridge = ridge_batches(curve)[0]
    past = ridge is not None and within > 0 and ridge < batches[within - 1]
    return _choose(rates[:within], batches[:within], None, past) if within else None


def two_ridges(calibrated: int | None, datasheet: int | None) -> str:
    """Say both ridges in words, each by its name."""

    def said(batch: int | None, rates: str) -> str:
        return f"at batch {batch:,} by {rates}" if batch else f"at no batch looked at by {rates}"

    if calibrated is None and datasheet is None:
        return "ridge is at no batch looked at: memory takes longer than arithmetic"
    return f"ridge is {said(calibrated, 'calibrated rates')}, {said(datasheet, 'the datasheet')}"


def _by_kernel(curve: Estimate) -> dict[str, int | None]:
    """Return the calibrated ridge of each kernel."""
    return {
        row.kernel.name: _first(np.broadcast_to(time.compute > time.memory, curve.shape), _batches(curve))
        for row, time in curve.timed
    }


def _first(hits: Any, batches: Any) -> int | None:
    """Return the first of some batches that is hit."""
    hit = np.asarray(batches)[np.asarray(hits, dtype=bool)]
    return int(hit.min()) if hit.size else None


def _largest_batch(graph: Graph, chip: Chip, sizes: Mapping[str, Any], room: float, reserve: float) -> int:
    """Return the largest batch that fits, by bisection."""

    def count(program: Graph, at: Mapping[str, Any]) -> Memory:
        return memory_on(program, grid(program.symbols, {"B": 1, **at}).sizes, chip, reserve=reserve)

    def need(batch: int) -> Memory:
        return count(graph, {**sizes, "B": batch})

    if need(1).total > room:
        others = of_program(graph, sizes, count, room, chip)
        raise does_not_fit(f"{graph.name} on {chip.name}: batch 1", need(1), room, others)
    return bisect_left(range(1, LARGEST_BATCH + 1), True, key=lambda batch: need(batch).total > room)
