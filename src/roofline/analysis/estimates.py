"""Counts and a chip to time, range, bound, memory and throughput: the estimate."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from roofline.analysis.evaluation import Evaluation, weakest
from roofline.analysis.levels import by_level
from roofline.cost import (
    BOUNDS,
    HOST,
    REGIME,
    KernelTime,
    checked_regime,
    half_width,
    spread,
    uncertainty,
    uses_tf32,
    values,
)
from roofline.cost import host as on_host
from roofline.cost.cpu import is_cpu
from roofline.counting.counts import Counts, KernelCount, count_graph, unknown_operations
from roofline.counting.grid import added, grid, one_point, plain
from roofline.counting.memory import RESERVE, reserved
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip, chip_list, with_host
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph, sizes_of
from roofline.ir.report import WORDS, Report, subject
from roofline.ir.sizes import evaluate
from roofline.ir.units import format_si
from roofline.passes.fusion.fuse import fuse
from roofline.passes.rewriting.options import pad_matmuls

if TYPE_CHECKING:
    import pandas as pd

Mode = Literal["eager", "graph", "compiled"]
#: How a program runs: one framework op at a time; the same kernels replayed without the host; fused first.
MODES: tuple[str, ...] = get_args(Mode)
#: High over low from which on a range is explained, and the least share of it that is named.
WIDE, LEAST_NAMED = 1.6, 0.1


class Estimate(Evaluation, Report):
    """What to expect of a program on a chip, at one point or over a grid of them: time, bound, throughput, memory.

    Results have the axes of what was given as a sequence, in the order chip, B, S, C; see :func:`roofline.estimate`.
    """

    schema = "estimate"

    # --- time [s] ---

    @cached_property
    def device_time(self) -> Any:
        """Sum of the kernels [s]."""
        return self.per_chip(self.total("expected", times) for times in self.times)

    @cached_property
    def host_time(self) -> Any:
        """Time that the host needs to call and launch them in eager mode, while the device works [s]."""
        return self.per_chip(self.hosts)

    @cached_property
    def hosts(self) -> Sequence[Any]:
        """That of each chip [s]."""
        each = zip(self.chips, self.alone, strict=True)
        return [self._on_host(*pair) if self.mode == "eager" else 0.0 for pair in each]

    def _on_host(self, chip: Chip, times: Sequence[KernelTime]) -> Any:
        if is_cpu(chip):  # what it calls runs there and then
            return self.counts.launches * chip.efficiency.host
        queue = values(chip, "network", "program")["queue"]
        return on_host.seconds(self.graph, self.rows, self.total("launches", times), chip.efficiency.host, queue)

    @cached_property
    def time(self) -> Any:
        """Expected time of one run: the slower of device and host [s]."""
        return plain(np.maximum(self.device_time, self.host_time))

    @cached_property
    def low(self) -> Any:
        """Lower end of the expected range, never under the floor [s]."""
        device = np.asarray(self.device_time) / self._factor
        return plain(
            np.maximum(np.maximum(device, self.floor), np.asarray(self.host_time) / on_host.error_of(self.graph))
        )

    @cached_property
    def high(self) -> Any:
        """Upper end of the expected range [s]."""
        device = np.asarray(self.device_time) * self._factor
        # A compiled program still launches its kernels from the host unless it was captured.
        hosts = [(1 + on_host.LAUNCH) * chip.efficiency.host * (self.mode == "compiled") for chip in self.chips]
        launched = self.per_chip(
            self.total("launches", times) * each for times, each in zip(self.times, hosts, strict=True)
        )
        return plain(
            np.maximum(device, np.maximum(np.asarray(self.host_time), launched) * on_host.error_of(self.graph))
        )

    @cached_property
    def _factor(self) -> Any:
        """Half-width of the range of the device's time as a factor."""
        return np.exp(self.per_chip(half_width(parts) for parts in self._uncertainty))

    @cached_property
    def _uncertainty(self) -> tuple[dict[str, Any], ...]:
        """Half-widths by class of kernels, as a natural logarithm; ``whole_program`` is the rest; one per chip."""

        def of(chip: Chip, times: Sequence[KernelTime]) -> dict[str, Any]:
            pairs = ((row.kernel.count, time) for row, time in zip(self.rows, times, strict=True))
            expected = self.total("expected", times)
            own = np.where(self.total("launches", times) > 1, spread(chip, "whole_program", "program"), 0.0)
            parts = {name: _ratio(seconds, expected) for name, seconds in uncertainty(pairs).items()}
            return parts | {"whole_program": own}

        return tuple(map(of, self.chips, self.times))

    @cached_property
    def uncertainty(self) -> dict[str, Any]:
        """Shares of the classes of kernels in how wide the device's range is; ``whole_program`` is the rest."""
        names = dict.fromkeys(name for parts in self._uncertainty for name in parts)
        return {
            name: self.per_chip(_ratio(parts.get(name, 0.0), half_width(parts)) ** 2 for parts in self._uncertainty)
            for name in names
        }

    def wide_because(self) -> str:
        """Say what makes the range of one point wide; nothing where high is less than :data:`WIDE` times low."""
        one_point(self.axis_names, "a range is explained for")
        if self.high < WIDE * self.low:
            return ""
        if self.high > self.device_time * self._factor:
            return "what a launch costs the host"
        largest = sorted(self.uncertainty.items(), key=lambda part: -part[1])
        return ", ".join(f"{name.replace('_', ' ')} {share:.0%}" for name, share in largest[:3] if share >= LEAST_NAMED)

    @cached_property
    def floor(self) -> Any:
        """Datasheet speed of light of these kernels, one after the other [s]."""
        return self.per_chip(self.total("floor", times) for times in self.times)

    @cached_property
    def bound(self) -> Any:
        """The resource that most of the time goes to: one of :data:`~roofline.cost.BOUNDS`."""
        device = self.per_chip(map(self._longest_bound, self.times))
        codes = np.where(np.asarray(self.host_time) > np.asarray(self.device_time), HOST, device)
        names = np.asarray(BOUNDS)[codes]
        return str(names) if names.ndim == 0 else names

    def _longest_bound(self, times: Sequence[KernelTime]) -> Any:
        """Index into BOUNDS of what bounds the kernels that most of the device's time goes to; the first of equals."""
        each = [(row.kernel.count * time.expected, time.bound) for row, time in zip(self.rows, times, strict=True)]
        longest, codes = np.zeros(()), np.zeros((), dtype=np.int8)
        for code in range(HOST):
            hits = ((seconds, bound == code) for seconds, bound in each)
            total = added(s if np.all(hit) else s * hit for s, hit in hits if np.any(hit))
            codes = np.where(total > longest, np.int8(code), codes)
            longest = np.maximum(longest, total)
        return codes

    # --- rates ---

    @cached_property
    def mfu(self) -> Any:
        """Model FLOPs utilisation: contractions at the peak of their format, over the time."""

        def at_peak(chip: Chip) -> Any:
            peaks = ((row, flops, chip.matmul_peak(dtype, tf32=uses_tf32(row, chip, self.tf32)))
                     for row in self.rows for dtype, flops in row.flops_by.items())  # fmt: skip
            return sum(row.kernel.count * flops / peak for row, flops, peak in peaks)

        return plain(_ratio(self.per_chip(map(at_peak, self.chips)), self.time))

    @cached_property
    def mbu(self) -> Any:
        """Memory bandwidth utilisation: traffic at the datasheet bandwidth, over the time."""
        return plain(_ratio(self.per_chip(self.counts.bytes / chip.bandwidth for chip in self.chips), self.time))

    @cached_property
    def throughput(self) -> Any:
        """Items (tokens, images: ``graph.item``) per second."""
        return plain(_ratio(self.on_all(evaluate(self.graph.items, self.grid.sizes)), self.time))

    # --- as data ---

    def kernel_rows(self) -> list[dict[str, Any]]:
        """Return one row per distinct kernel, the slowest first, with what it moves by memory level.

        Raises:
            UsageError: The estimate is not one point.
        """
        one_point(self.axis_names, "kernels are listed for")
        levels = by_level(self)
        rows = [_kernel_row(*pair, self.device_time) | of for pair, of in zip(self.timed, levels, strict=True)]
        return sorted(rows, key=lambda row: -row["time_s"])

    def kernels(self) -> pd.DataFrame:
        """Return the distinct kernels as a table, the slowest first."""
        from roofline.ir.frame import frame

        return frame([{key: row[key] for key in row if key != "levels"} for row in self.kernel_rows()])

    def top(self, n: int = 5) -> pd.DataFrame:
        """Return the ``n`` distinct kernels that take the most time."""
        return self.kernels()[["kernel", "op", "count", "time_s", "share", "bound"]].head(n)

    def subject(self) -> dict[str, Any]:
        """Return the program, where and how it runs, and its sizes."""
        chips = [chip.name for chip in self.chips]
        about = subject(self.graph, chips if self.many_chips else chips[0], self.mode, self.grid.values)
        tf32 = {"tf32": "contractions" if self.tf32 else "convolutions"} if self.tf32_kinds else {}
        return about | {"regime": self.regime} | tf32

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
            "uncertainty": {name: pick(share) for name, share in self.uncertainty.items()},
            "memory_bytes": {**memory_bytes, "total": sum(memory_bytes.values())},
            "capacity_bytes": chip.main.capacity,
            "fits": pick(self.fits),
            "calibrated": weakest(self.times[index[0] if self.many_chips else 0]),
            "not_modelled": self.left_out(chip),
        }

    def frame(self) -> pd.DataFrame:
        """Return one row per point, columns as in :meth:`records` with memory flattened."""
        return super().frame().drop(columns="not_modelled")

    def __repr__(self) -> str:
        where = f"<Estimate {self.graph.name} on {', '.join(chip.name for chip in self.chips)}, {self.mode}: "
        if self.shape:
            return where + f"axes {dict(zip(self.axis_names, self.shape, strict=True))}>"
        time, low, high = (format_si(value, "s") for value in (self.time, self.low, self.high))
        calls = sum(unknown_operations(self.graph).values())
        unknown = f", {calls} operation{'s' * (calls > 1)} without a rule" if calls else ""
        return where + f"{time} ({low} to {high}), {self.bound}-bound{unknown}>"


#: Keys of a record and the results that they hold.
_RECORD = {
    "time_s": "time", "low_s": "low", "high_s": "high", "floor_s": "floor", "host_s": "host_time",
    "device_s": "device_time",
    "flops": "flops", "vector_flops": "vector_flops", "bytes": "bytes", "intensity": "intensity", "bound": "bound",
    "mfu": "mfu", "mbu": "mbu",
}  # fmt: skip


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
    values = sizes_of(graph, sizes)
    try:
        np.broadcast_shapes(*map(np.shape, values.values()))
    except ValueError:
        shapes = ", ".join(f"{name} {np.shape(value)}" for name, value in values.items())
        raise UsageError(f"sizes of the shapes {shapes} do not broadcast against each other") from None
    flat = {name: value for name, value in values.items() if np.ndim(value) < 2}
    return replace(count_graph(graph, **values), about=subject(graph, sizes=flat))


def runs_as(graph: Graph, mode: str) -> Graph:
    """Return a program as it runs in a mode: fused, unless it is already, where it is compiled; compilers pad."""
    if graph.info.grouped:
        return pad_matmuls(graph)
    return pad_matmuls(fuse(graph)) if mode == "compiled" else graph


def estimate(
    program: Program,
    chip: AnyChip | Sequence[AnyChip],
    *,
    mode: Mode = "eager",
    tf32: bool | None = None,
    regime: str = REGIME,
    reserve: str | float = RESERVE,
    host: str | float | os.PathLike[str] | None = None,
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
        tf32: Let fp32 contractions use the tf32 matrix units where the chip has them; by default as PyTorch does,
            convolutions on NVIDIA's chips and nothing else.
        regime: Where operands lie when a kernel starts: ``program`` (activations in the cache, from the kernel before),
            ``cold`` (all in main memory, each kernel alone) or ``warm`` (what fits the cache is there).
        reserve: Memory that driver and framework keep [byte], a number or text such as ``"1 GiB"``.
        host: Who launches it in mode ``eager``: a factor on the chip's figure for that (0.5 is twice as fast), or
            a file that ``roofline calibrate`` wrote on that machine.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        sizes: ``batch``, ``seq``, ``context`` and any other size of the program: whole numbers, or sequences that span
            axes.

    Returns:
        Time, bound, throughput and memory, numbers or arrays over the axes.

    Raises:
        UnknownChip: No chip of that name.
        UnboundSize: A symbol of the graph has no value.
        UsageError: A size that is not a whole number from 1, or an unknown mode or regime.
        MissingFigure: The chip has no rate for a number format that the graph computes in.

    Example:
        >>> import roofline as rl
        >>> est = rl.estimate("llama-3-8b", "h100-sxm", phase="decode", batch=[1, 8], context=2048, mode="graph")
        >>> est.shape, bool(est.time[1] > est.time[0])
        ((2,), True)
    """
    graph, chips = as_graph(program, phase, dtype), tuple(with_host(each, host) for each in chip_list(chip))
    checked_mode(mode)
    runs = runs_as(graph, mode)
    many = not isinstance(chip, str | os.PathLike | Chip)
    points = grid(graph.symbols, sizes_of(graph, sizes))
    est = Estimate(runs, chips, many, mode, points, tf32, reserved(reserve), checked_regime(regime))
    if not est.rows:
        raise UsageError(f"{runs.name} has no kernel; there is nothing to time")
    assert est.times  # a figure that a chip lacks is missed here, not when somebody looks at the time
    return est


def checked_mode(mode: str) -> str:
    """Return a mode, refused where there is none of that name."""
    if mode not in MODES:
        raise UsageError(f"unknown mode {mode!r}; allowed: {', '.join(MODES)}" + did_you_mean(str(mode), MODES))
    return mode
