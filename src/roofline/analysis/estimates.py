"""Counts and a chip to time, range, bound, memory and throughput: the estimate."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from roofline.cost import (
    BOUNDS,
    CERTAINTY,
    HOST,
    HOST_HIGH,
    HOST_LOW,
    HOST_TRAINING,
    KernelTime,
    kernel_time,
    not_modelled,
    sparse_weights,
    spread,
    values,
)
from roofline.counting.counts import Counts, KernelCount, count_graph, kernels, unknown_operations
from roofline.counting.grid import Grid, grid, plain
from roofline.counting.memory import RESERVE, Memory, memory
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip, chip_list
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph
from roofline.ir.report import WORDS, Report, subject
from roofline.ir.sizes import by_symbol, evaluate
from roofline.ir.units import format_si, parse
from roofline.passes.fusion.fuse import fuse
from roofline.passes.rewriting.pad import pad

if TYPE_CHECKING:
    import pandas as pd

Mode = Literal["eager", "graph", "compiled"]
#: How a program runs: one framework op at a time; the same kernels replayed without the host; fused first.
MODES: tuple[str, ...] = get_args(Mode)


@dataclass(frozen=True)
class Estimate(Report):
    """What to expect of a program on a chip, at one point or over a grid of them.

    Results have the axes of what was given as a sequence, in the order chip, B, S, C. What was given as a single
    value has no axis, and with no axis left results are plain numbers.

    Attributes:
        graph: The program as it runs (already fused in mode ``compiled``).
        chips: Where it runs.
        many_chips: Whether chips are an axis.
        mode: How it runs.
        grid: The sizes.
        rows: Counts of each distinct kernel.
        times: Times of each distinct kernel, one tuple a chip.
        tf32: Whether fp32 contractions use tf32.
        reserve: Memory that driver and framework keep [byte].
    """

    schema = "estimate"

    graph: Graph
    chips: tuple[Chip, ...]
    many_chips: bool
    mode: str
    grid: Grid
    rows: tuple[KernelCount, ...]
    times: tuple[tuple[KernelTime, ...], ...]
    tf32: bool
    reserve: float

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of every result."""
        return (len(self.chips), *self.grid.shape) if self.many_chips else self.grid.shape

    def _by_chip(self, values: Iterable[Any]) -> Any:
        """Shape one value a chip like a result."""
        full = [np.broadcast_to(np.asarray(value), self.grid.shape) for value in values]
        return plain(np.stack(full) if self.many_chips else full[0])

    def _same(self, value: Any) -> Any:
        """Shape a value that does not depend on the chip like a result."""
        return value if not self.shape else self._by_chip([value] * len(self.chips))

    def _total(self, part: str, times: Sequence[KernelTime]) -> Any:
        return sum(row.kernel.count * getattr(time, part) for row, time in zip(self.rows, times, strict=True))

    # --- time [s] ---

    @cached_property
    def device_time(self) -> Any:
        """Sum of the kernels [s]."""
        return self._by_chip(self._total("expected", times) for times in self.times)

    @cached_property
    def host_time(self) -> Any:
        """What the host needs to launch them in eager mode, while the device works [s]."""
        share = HOST_TRAINING if self.graph.backward_start is not None else 1.0
        return self._by_chip(share * self._launching(chip) if self.mode == "eager" else 0 for chip in self.chips)

    def _launching(self, chip: Chip) -> float:
        """A framework takes longer to queue a collective than a kernel of its own [s]."""
        host, queued = chip.efficiency.host, sum(row.kernel.count for row in self.rows if row.kernel.kind == "network")
        return (self.launches - queued) * host + queued * max(values(chip, "network", "program")["queue"], host)

    @property
    def launches(self) -> int:
        """Kernels of one run."""
        return sum(row.kernel.count for row in self.rows)

    @cached_property
    def time(self) -> Any:
        """Expected time of one run: the slower of device and host [s]."""
        return plain(np.maximum(self.device_time, self.host_time))

    @cached_property
    def low(self) -> Any:
        """Lower end of the expected range, never under the floor [s]."""
        device = np.asarray(self.device_time) / self._factor
        return plain(np.maximum(np.maximum(device, self.floor), np.asarray(self.host_time) * HOST_LOW))

    @cached_property
    def high(self) -> Any:
        """Upper end of the expected range [s]."""
        device = np.asarray(self.device_time) * self._factor
        # A compiled program still launches its kernels from the host unless it was captured.
        host = self._by_chip(self.launches * chip.efficiency.host * (self.mode == "compiled") for chip in self.chips)
        return plain(np.maximum(device, np.maximum(np.asarray(self.host_time), host) * HOST_HIGH))

    @cached_property
    def _factor(self) -> Any:
        """Half-width of the range as a factor: distinct kernels err independently, the program's own error on top."""
        return np.exp(
            self._by_chip(self._spread(chip, times) for chip, times in zip(self.chips, self.times, strict=True))
        )

    def _spread(self, chip: Chip, times: Sequence[KernelTime]) -> Any:
        parts = [
            (row.kernel.count * time.expected * time.spread) ** 2 for row, time in zip(self.rows, times, strict=True)
        ]
        own = spread(chip, "program") if self.launches > 1 else 0.0
        return np.sqrt(sum(parts) / self._total("expected", times) ** 2 + own**2)

    @cached_property
    def floor(self) -> Any:
        """Datasheet speed of light of these kernels, one after the other [s]."""
        return self._by_chip(self._total("floor", times) for times in self.times)

    @cached_property
    def bound(self) -> Any:
        """What most of the time goes to: one of :data:`~roofline.cost.BOUNDS`."""
        device = self._by_chip(np.argmax(np.stack(self._by_bound(times)), axis=0) for times in self.times)
        codes = np.where(np.asarray(self.host_time) > np.asarray(self.device_time), HOST, device)
        names = np.asarray(BOUNDS)[codes]
        return str(names) if names.ndim == 0 else names

    def _by_bound(self, times: Sequence[KernelTime]) -> list[Any]:
        """Device time by what bounds its kernels, in the order of BOUNDS."""
        totals = [np.zeros(self.grid.shape) for _ in range(HOST)]
        for row, time in zip(self.rows, times, strict=True):
            for code in range(HOST):
                hit = time.bound == code
                if np.any(hit):
                    totals[code] += row.kernel.count * np.where(hit, time.expected, 0.0)
        return totals

    # --- counts ---

    @cached_property
    def counts(self) -> Counts:
        """Counts by kernel."""
        return Counts(self.rows)

    @cached_property
    def flops(self) -> Any:
        """Contraction FLOPs, two a multiply-add."""
        return self._same(self.counts.flops)

    @cached_property
    def vector_flops(self) -> Any:
        """All other floating-point operations."""
        return self._same(self.counts.vector_flops)

    @cached_property
    def bytes(self) -> Any:
        """Traffic over all kernel boundaries [byte]."""
        return self._same(self.counts.bytes)

    @cached_property
    def intensity(self) -> Any:
        """Contractions, or the other arithmetic where there are none, over ``bytes`` [FLOP/byte]."""
        return self._same(self.counts.intensity)

    @cached_property
    def mfu(self) -> Any:
        """Model FLOPs utilisation: contractions at the peak of their format, over the time."""
        return plain(_ratio(self._by_chip(self._at_peak(chip) for chip in self.chips), self.time))

    def _at_peak(self, chip: Chip) -> Any:
        return sum(
            row.kernel.count * flops / chip.matmul_peak(dtype, tf32=self.tf32)
            for row in self.rows
            for dtype, flops in row.flops_by.items()
        )

    @cached_property
    def mbu(self) -> Any:
        """Memory bandwidth utilisation: traffic at the datasheet bandwidth, over the time."""
        return plain(_ratio(self._by_chip(self.counts.bytes / chip.bandwidth for chip in self.chips), self.time))

    @cached_property
    def throughput(self) -> Any:
        """Items (tokens, images: ``graph.item``) a second."""
        return plain(_ratio(self._same(evaluate(self.graph.items, self.grid.sizes)), self.time))

    @cached_property
    def memory(self) -> Memory:
        """Bytes by part."""
        return memory(self.graph, self.grid.sizes, self.reserve).map(self._same)

    @cached_property
    def capacity(self) -> Any:
        """Memory of the chip [byte]."""
        return self._by_chip(chip.capacity for chip in self.chips)

    @cached_property
    def fits(self) -> Any:
        """Whether the total stays within the capacity."""
        return plain(np.asarray(self.memory.total) <= np.asarray(self.capacity))

    # --- provenance ---

    @property
    def chip(self) -> Chip:
        """The chip, where there is one.

        Raises:
            UsageError: There are several.
        """
        if len(self.chips) != 1:
            raise UsageError(f"this estimate spans {len(self.chips)} chips; index it first")
        return self.chips[0]

    @property
    def calibrated(self) -> str:
        """Where the efficiencies come from: ``measured``, ``transferred`` or ``prior``; the weakest of all kernels."""
        return min((_calibrated(times) for times in self.times), key=CERTAINTY.index)

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """What the prediction leaves out, and formats that run some other way than by units of their own."""
        return tuple(dict.fromkeys(note for chip in self.chips for note in self._left_out(chip)))

    def _left_out(self, chip: Chip) -> list[str]:
        without_rule = unknown_operations(self.graph)
        calls = ", ".join(f"{what} ({n} call{'s' * (n > 1)})" for what, n in without_rule.items())
        return [*([f"arithmetic of {calls}"] if calls else []), *not_modelled(chip), *self._stand_ins(chip)]

    def _stand_ins(self, chip: Chip) -> list[str]:
        formats = dict.fromkeys(dtype for row in self.rows for dtype in row.flops_by if dtype in chip.fallback)
        named = [f"units for {dtype}: on {chip.name} it runs as {chip.matmul_runs_as(dtype)}" for dtype in formats]
        zeros = {dtype for row in self.rows if sparse_weights(row) is not None for dtype in row.flops_by}
        dense = sorted(dtype for dtype in zeros if chip.sparse_peak(dtype, self.tf32) is None)
        return named + [f"2:4 sparsity in {d}: no sparse peak of {chip.name} is on file; timed as dense" for d in dense]

    # --- one point ---

    def __getitem__(self, index: int | tuple[int, ...]) -> Estimate:
        """The estimate at one index of the grid."""
        where = index if isinstance(index, tuple) else (index,)
        if len(where) != len(self.shape):
            raise UsageError(f"this estimate has the axes {self.axis_names}; index all of them")
        which, inner = (where[0], where[1:]) if self.many_chips else (0, where)
        inner = tuple(range(n)[i] for n, i in zip(self.grid.shape, inner, strict=True))
        return _evaluate(replace(self, chips=(self.chips[which],), many_chips=False, grid=Grid(self.grid.point(inner))))

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Names of the axes of every result."""
        return (("chip",) if self.many_chips else ()) + self.grid.axes

    def kernel_rows(self) -> list[dict[str, Any]]:
        """One row a distinct kernel, the slowest first.

        Raises:
            UsageError: The estimate is not one point.
        """
        if self.shape:
            raise UsageError(f"kernels are listed for one point; index the axes {self.axis_names} first")
        pairs = zip(self.rows, self.times[0], strict=True)
        rows = [_kernel_row(row, time, self.device_time) for row, time in pairs]
        return sorted(rows, key=lambda row: -row["time_s"])

    def kernels(self) -> pd.DataFrame:
        """The distinct kernels as a table, the slowest first."""
        import pandas as pd

        return pd.DataFrame(self.kernel_rows())

    def top(self, n: int = 5) -> pd.DataFrame:
        """The ``n`` distinct kernels that take the most time."""
        return self.kernels()[["kernel", "op", "count", "time_s", "share", "bound"]].head(n)

    # --- all points ---

    def subject(self) -> dict[str, Any]:
        """Return the program, where and how it runs, and its sizes."""
        chips = [chip.name for chip in self.chips]
        return subject(self.graph, chips if self.many_chips else chips[0], self.mode, self.grid.values)

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per point, with the stable keys of ``roofline estimate --json``."""
        return [self._record(index) for index in np.ndindex(self.shape)]

    def _record(self, index: tuple[int, ...]) -> dict[str, Any]:
        def pick(value: Any) -> Any:
            figure = np.asarray(value)[index]
            return figure.item() if isinstance(figure, np.generic) else figure

        chip = self.chips[index[0]] if self.many_chips else self.chips[0]
        sizes = self.grid.point(index[1:] if self.many_chips else index)
        rate = pick(self.throughput)
        numbers = {key: pick(getattr(self, name)) for key, name in _RECORD.items()}
        memory_bytes = {name: pick(value) for name, value in self.memory.parts().items()}
        return {
            "model": self.graph.title,
            "chip": chip.name,
            "phase": self.graph.info.phase or "forward",
            "mode": self.mode,
            **{word: sizes.get(symbol) for symbol, word in WORDS.items()},
            **numbers,
            "tokens_per_s": rate if self.graph.item == "token" else None,
            f"{self.graph.item}s_per_s": rate,
            "memory_bytes": {**memory_bytes, "total": sum(memory_bytes.values())},
            "capacity_bytes": chip.capacity,
            "fits": pick(self.fits),
            "calibrated": _calibrated(self.times[index[0] if self.many_chips else 0]),
            "not_modelled": self._left_out(chip),
        }

    def frame(self) -> pd.DataFrame:
        """Return one row per point, columns as in :meth:`records` with memory flattened."""
        return super().frame().drop(columns="not_modelled")

    def _without_rule(self) -> str:
        found = unknown_operations(self.graph)
        calls = sum(found.values())
        return f", {calls} operation{'s' * (calls > 1)} without a rule" if found else ""

    def __repr__(self) -> str:
        where = f"<Estimate {self.graph.name} on {', '.join(chip.name for chip in self.chips)}, {self.mode}: "
        if self.shape:
            return where + f"axes {dict(zip(self.axis_names, self.shape, strict=True))}>"
        time, low, high = (format_si(value, "s") for value in (self.time, self.low, self.high))
        return where + f"{time} ({low} to {high}), {self.bound}-bound{self._without_rule()}>"


#: Keys of a record and the results that they hold.
_RECORD = {
    "time_s": "time", "low_s": "low", "high_s": "high", "floor_s": "floor", "host_s": "host_time",
    "flops": "flops", "vector_flops": "vector_flops", "bytes": "bytes", "intensity": "intensity", "bound": "bound",
    "mfu": "mfu", "mbu": "mbu",
}  # fmt: skip


def _calibrated(times: Sequence[KernelTime]) -> str:
    return min((time.calibrated for time in times), key=CERTAINTY.index)


def _kernel_row(row: KernelCount, time: KernelTime, device_time: float) -> dict[str, Any]:
    kernel = row.kernel
    total = kernel.count * float(time.expected)
    return {
        "kernel": kernel.name,
        "op": kernel.main.op,
        "count": kernel.count,
        "time_s": total,
        "share": total / device_time,
        "each_s": float(time.expected),
        "floor_s": float(time.floor),
        "flops": row.flops,
        "vector_flops": row.vector,
        "bytes": float(row.bytes),
        "intensity": float(row.arithmetic / row.bytes) if row.bytes else 0.0,
        "bound": BOUNDS[int(time.bound)],
        "dtype": "+".join(row.flops_by) or "+".join(row.vector_by),
    }


def _ratio(a: Any, b: Any) -> Any:
    top, bottom = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    return np.divide(top, bottom, out=np.zeros(np.broadcast(top, bottom).shape), where=bottom != 0)


def count(program: Program, *, phase: str | None = None, dtype: str | None = None, **sizes: Any) -> Counts:
    """Count the FLOPs, bytes and launches of one run of a program.

    Args:
        program: A graph, a shipped name, or the path of a model file, workload, config or script.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        sizes: ``batch``, ``seq``, ``context`` and any other size of the program; exact integers stay exact.

    Returns:
        FLOPs, bytes and launches, in total and by kernel.

    Raises:
        UnboundSize: Sizes have no value; all of them are named.
        UsageError: Not a program, or a size that it does not have.

    Example:
        >>> decode = count("llama-3-8b", phase="decode", batch=1, context=2048)
        >>> decode.flops, decode.launches
        (16083058688, 739)
    """
    graph = as_graph(program, phase, dtype)
    return count_graph(graph, **by_symbol(sizes, graph.symbols))


def estimate(
    program: Program,
    chip: AnyChip | Sequence[AnyChip],
    *,
    mode: Mode = "eager",
    tf32: bool = False,
    reserve: str | float = RESERVE,
    phase: str | None = None,
    dtype: str | None = None,
    **sizes: Any,
) -> Estimate:
    """Predict how long a program takes on a chip, what bounds it and what memory it needs.

    Args:
        program: A graph, a shipped name, or the path of a model file, workload, config or script.
        chip: A name, a chip, or a sequence of them (then chips are the first axis of every result).
        mode: ``eager`` (a kernel a framework op, with its launch cost on the host), ``graph`` (the same kernels, no
            host cost) or ``compiled`` (elementwise and row-wise chains fused, no host cost).
        tf32: Let fp32 contractions use the tf32 matrix units.
        reserve: Memory that driver and framework keep [byte], a number or text such as ``"1 GiB"``.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        sizes: ``batch``, ``seq``, ``context`` and any other size of the program: whole numbers, or sequences that span
            axes.

    Returns:
        Time, bound, throughput and memory, numbers or arrays over the axes.

    Raises:
        UnknownChip: No chip of that name.
        UnboundSize: A symbol of the graph has no value.
        UsageError: A size that is not a whole number from 1, or an unknown mode.
        MissingFigure: The chip has no rate for a number format that the graph computes in.

    Example:
        >>> import roofline as rl
        >>> est = rl.estimate("llama-3-8b", "h100-sxm", phase="decode", batch=[1, 8], context=2048, mode="graph")
        >>> est.shape, bool(est.time[1] > est.time[0])
        ((2,), True)
    """
    graph = as_graph(program, phase, dtype)
    if mode not in MODES:
        raise UsageError(f"unknown mode {mode!r}; allowed: {', '.join(MODES)}" + did_you_mean(str(mode), MODES))
    chips, many = chip_list(chip), not isinstance(chip, str | os.PathLike | Chip)
    kept = parse(reserve, "B")
    if kept < 0:
        raise UsageError(f"reserve={reserve!r}: a size from 0 is wanted")
    runs = pad(graph if graph.info.grouped else fuse(graph)) if mode == "compiled" else graph
    return _evaluate(Estimate(runs, chips, many, mode, grid(graph.symbols, sizes), (), (), tf32, kept))


def _evaluate(blank: Estimate) -> Estimate:
    """Fill in the counts and times for the sizes and chips of an estimate."""
    rows = tuple(kernel.at(blank.grid.sizes) for kernel in kernels(blank.graph))
    if not rows:
        raise UsageError(f"{blank.graph.name} has no kernel; there is nothing to time")
    times = tuple(tuple(kernel_time(row, chip, blank.tf32) for row in rows) for chip in blank.chips)
    return replace(blank, rows=rows, times=times)
