"""A program's kernels counted and timed at the points of a grid of chips and sizes: what an estimate is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np

from roofline.cost import (
    CERTAINTY,
    EAGER,
    REGIME,
    KernelTime,
    kernel_time,
    not_modelled,
    sparse_weights,
    under_power_cap,
    uses_tf32,
)
from roofline.cost.scratch import memory_on
from roofline.counting.counts import Counts, KernelCount, kernels, unknown_operations
from roofline.counting.grid import Grid, added, plain
from roofline.counting.memory import Memory
from roofline.hardware.chip import Chip
from roofline.hardware.cluster import NODE
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, positions_note

#: Results of which one of many points has a part.
_OF_A_POINT = frozenset(
    {"device_time", "host_time", "time", "low", "high", "floor", "throughput", "mfu", "mbu", "memory"}
)


@dataclass(frozen=True)
class Evaluation:
    """What a program does on one chip or several, at one point or over a grid of sizes.

    Results have the axes of what was given as a sequence, in the order chip, B, S, C. What was given as a single
    value has no axis, and with no axis left results are plain numbers.

    Attributes:
        graph: The program as it runs (already fused in mode ``compiled``).
        chips: Where it runs.
        many_chips: Whether chips are an axis.
        mode: How it runs.
        grid: The sizes.
        tf32: Whether fp32 contractions use tf32; ``None`` as PyTorch does, in convolutions on NVIDIA's chips alone.
        reserve: Memory that driver and framework keep [byte].
        regime: Where operands lie when a kernel starts, one of :data:`~roofline.cost.REGIMES`.
    """

    graph: Graph
    chips: tuple[Chip, ...]
    many_chips: bool
    mode: str
    grid: Grid
    tf32: bool | None
    reserve: float
    regime: str = REGIME

    @cached_property
    def rows(self) -> tuple[KernelCount, ...]:
        """Counts of each distinct kernel."""
        return tuple(kernel.at(self.grid.sizes) for kernel in kernels(self.graph))

    @cached_property
    def times(self) -> tuple[tuple[KernelTime, ...], ...]:
        """Times of each distinct kernel in this program, one tuple per chip."""
        if self.regime != REGIME:
            return self.alone
        each = zip(self.alone, self.chips, self.hosts, strict=True)
        return tuple(under_power_cap(self.rows, times, chip, self.tf32, host) for times, chip, host in each)

    @property
    def hosts(self) -> Sequence[Any]:
        """Time that the host needs for a run at least, for each chip [s]."""
        return [0.0] * len(self.chips)

    @cached_property
    def alone(self) -> tuple[tuple[KernelTime, ...], ...]:
        """Times of each distinct kernel before the power cap of the program, one tuple per chip."""
        how = starts(self)
        return tuple(tuple(kernel_time(row, chip, self.tf32, *how) for row in self.rows) for chip in self.chips)

    @cached_property
    def tf32_kinds(self) -> tuple[str, ...]:
        """Classes of kernels whose fp32 contractions run on tf32 units on some chip."""
        kinds = (row.kernel.kind for row in self.rows if "fp32" in row.flops_by
                 for chip in self.chips if "tf32" in chip.matrix and uses_tf32(row, chip, self.tf32))  # fmt: skip
        return tuple(dict.fromkeys(kinds))

    @property
    def timed(self) -> list[tuple[KernelCount, KernelTime]]:
        """Counts and times of each distinct kernel on the first chip."""
        return list(zip(self.rows, self.times[0], strict=True))

    # --- shape ---

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of every result."""
        return (len(self.chips), *self.grid.shape) if self.many_chips else self.grid.shape

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Names of the axes of every result."""
        return (("chip",) if self.many_chips else ()) + self.grid.axes

    def __getitem__(self, index: int | tuple[int, ...]) -> Self:
        """Return the evaluation at one index of the grid."""
        where = index if isinstance(index, tuple) else (index,)
        if len(where) != len(self.shape):
            raise UsageError(f"this estimate has the axes {self.axis_names}; index all of them")
        which, inner = (where[0], where[1:]) if self.many_chips else (0, where)
        inner = tuple(range(n)[i] for n, i in zip(self.grid.shape, inner, strict=True))
        return replace(self, chips=(self.chips[which],), many_chips=False, grid=Grid(self.grid.point(inner)))

    def per_chip(self, values: Iterable[Any]) -> Any:
        """Shape one value per chip like a result."""
        full = [np.broadcast_to(np.asarray(value), self.grid.shape) for value in values]
        return plain(np.stack(full) if self.many_chips else full[0])

    def on_all(self, value: Any) -> Any:
        """Shape a value that does not depend on the chip like a result."""
        return value if not self.shape else self.per_chip([value] * len(self.chips))

    def total(self, part: str, times: Sequence[KernelTime]) -> Any:
        """Add up a part of the times of all kernels."""
        return added(row.kernel.count * getattr(time, part) for row, time in zip(self.rows, times, strict=True))

    # --- counts ---

    @cached_property
    def launches(self) -> Any:
        """Kernels that the runtime launches in one run; ``counts.launches`` are the program's operators."""
        return self.per_chip(self.total("launches", times) for times in self.times)

    @cached_property
    def counts(self) -> Counts:
        """Counts by kernel."""
        return Counts(self.rows)

    @cached_property
    def flops(self) -> Any:
        """Contraction FLOPs, two per multiply-add."""
        return self.on_all(self.counts.flops)

    @cached_property
    def vector_flops(self) -> Any:
        """All other floating-point operations."""
        return self.on_all(self.counts.vector_flops)

    @cached_property
    def bytes(self) -> Any:
        """Traffic over all kernel boundaries [byte]."""
        return self.on_all(self.counts.bytes)

    @cached_property
    def intensity(self) -> Any:
        """Contractions, or the other arithmetic where there are none, over ``bytes`` [FLOP/byte]."""
        return self.on_all(self.counts.intensity)

    @cached_property
    def memory(self) -> Memory:
        """Bytes by part."""
        every = [memory_on(self.graph, self.grid.sizes, chip, runtime_of(self.mode), self.tf32, self.reserve)
                 for chip in self.chips]  # fmt: skip
        rest = every[0].map(self.on_all)
        return replace(rest, activations=self.per_chip(each.activations for each in every))

    @cached_property
    def capacity(self) -> Any:
        """Memory of the chip [byte]."""
        return self.per_chip(chip.capacity for chip in self.chips)

    @cached_property
    def fits(self) -> Any:
        """True where the total stays within the capacity, None where nobody published one."""
        rooms = [chip.main.capacity for chip in self.chips]
        fits = np.asarray(self.memory.total) <= np.asarray(self.per_chip(room or 0.0 for room in rooms))
        unknown = self.per_chip(room is None for room in rooms)
        return plain(np.where(unknown, np.array(None), fits)) if None in rooms else plain(fits)

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
        """Origin of the efficiencies: ``measured``, ``transferred`` or ``prior``; the weakest of all kernels."""
        return min(map(weakest, self.times), key=CERTAINTY.index)

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """Notes on what the prediction leaves out, and formats that run some other way than by units of their own."""
        return tuple(dict.fromkeys(note for chip in self.chips for note in self.left_out(chip)))

    def left_out(self, chip: Chip) -> list[str]:
        """List what the prediction leaves out on one chip."""
        calls = (f"{name} ({n} call{'s' * (n > 1)})" for name, n in unknown_operations(self.graph).items())
        untranslated = ", ".join(calls)
        notes = [f"arithmetic of {untranslated}"] if untranslated else []
        if self.graph.info.phase == "train" and self.graph.backward_start is None:
            notes.append("backward and update: this is the forward of a step, which roofline.training.train predicts")
        devices = self.graph.info.devices
        if devices.number > NODE and not devices.cluster:
            notes.append(f"links between nodes: {devices.number} devices taken as one node; what_if takes a cluster")
        if beyond := positions_note(self.graph, self.grid.values):
            notes.append(beyond)
        formats = dict.fromkeys(dtype for row in self.rows for dtype in row.flops_by if dtype in chip.fallback)
        notes += not_modelled(chip)
        notes += [f"units for {name}: on {chip.name} it runs as {chip.matmul_runs_as(name)}" for name in formats]
        sparse = {dtype for row in self.rows if sparse_weights(row) is not None for dtype in row.flops_by}
        dense = sorted(dtype for dtype in sparse if chip.sparse_peak(dtype, bool(self.tf32)) is None)
        return notes + [
            f"2:4 sparsity in {name}: no sparse peak of {chip.name} is on file; timed as dense" for name in dense
        ]


def starts(of: Evaluation) -> tuple[str, str]:
    """Return where operands lie when a kernel of a program starts, and what launches it."""
    runtime = "" if of.regime == "warm" else runtime_of(of.mode)  # whose figures are those of serving stacks
    return "cold" if of.regime == REGIME and _is_alone(of.rows) else of.regime, runtime


def runtime_of(mode: str) -> str:
    """Return what launches the kernels of a program that runs in a mode."""
    return "" if mode == "compiled" else EAGER


def _at(value: Any, where: tuple[int, ...]) -> Any:
    return plain(np.asarray(value)[where])


def _is_alone(rows: Sequence[KernelCount]) -> bool:
    """Tell whether a program is one kernel, with nothing around it; a collective is launched as its mode says."""
    one = [row.kernel.count for row in rows] == [1] and rows[0].kernel.kind != "network"
    return one and not np.any(rows[0].read_flow)  # the update of a step follows its backward


def weakest(times: Sequence[KernelTime]) -> str:
    """Return the least certain origin of some kernels' efficiencies."""
    return min((time.calibrated for time in times), key=CERTAINTY.index)


def known_at(whole: Evaluation, index: tuple[int, ...]) -> Any:
    """Return the evaluation at one index with what is known of the whole, to the last digit or two of a sum."""
    point = whole[index]
    for name in _OF_A_POINT & vars(whole).keys():
        value = vars(whole)[name]
        at = value.map(lambda part: _at(part, index)) if isinstance(value, Memory) else _at(value, index)
        vars(point)[name] = at
    return point
