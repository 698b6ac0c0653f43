"""Seconds of a matmul on an NVIDIA GPU for given blocks: what a kernel's author, or an auto-tuner, chooses among.

A block walks K in steps. It waits for operands that it asked for ``stages - 1`` steps before and multiplies them. The
blocks of a core share its matrix units, its shared memory and its way to the cache; a block alone waits for memory,
which stages and more blocks on the core hide (Little's law). A block also begins with a wait for its first operands and
ends with its results, which is hidden only by other blocks. All cores share the cache and main memory.

The kernel is that of Triton's matmul tutorial: both operands are stored by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from roofline.cost.levels import gpu
from roofline.cost.machine import knee, machine
from roofline.hardware.chip import Chip
from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import MissingFigure
from roofline.tiling.schedule import Schedule
from roofline.tiling.waves import ALIGNED, RESERVED, THREADS, WARP_GROUP_ROWS, Gpu, Waves, registers, traffic

#: Fitted to 22 shapes, 376 schedules each: six on an H100 (measurements/h100-sxm/onchip/triton_matmul.csv) and sixteen
#: on an H200 (measurements/h200-sxm/onchip/triton_matmul.csv, whose clock and cache run 4 % faster), cold, between two
#: events; the last three to three shapes on the H200 whose rows are not aligned (``benchmarks/schedules.py --fit``).
FITTED: Mapping[str, float] = MappingProxyType({
    "launch": 4.37e-6,  # a launch between two events [s]
    "sync": 0.33,  # of the matrix units' peak where each warp multiplies from its registers (mma.sync)
    "latency": 6.18e-7,  # until operands arrive [s]
    "load": 0.761,  # of the 64 bytes a cycle from the cache into a core
    "cache": 1.31,  # of the cache's bandwidth
    "memory": 0.582,  # of main memory's bandwidth
    "knee": 3.5,  # between what cores do, the cache and main memory
    "begin": 1.29e-6,  # for a block to start, with its first wait [s]
    "store": 0.181,  # of 64 bytes a cycle, at which a core's results leave it
    "by_row": 0.9,  # cycles of a core for 32 elements of the first operand, loaded one by one
    "by_column": 13.0,  # the same of the second, whose neighbours Triton then gives to threads far apart
    "spill": 8.7,  # cycles of a core for 32 registers that do not fit, in each step
})  # fmt: skip
#: What most measured times lie between, to the predicted one: of ten held-out times, eight.
LOW, HIGH = 0.84, 1.13
#: How sharp a maximum is of what happens side by side in a core.
SHARP = 8.0
#: Bytes a cycle: of a core's shared memory, and from the cache into a core (NVIDIA's Ampere and Hopper SMs: 128 bytes a
#: cycle of L1, https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities; 64 from L2,
#: https://developer.nvidia.com/blog/nvidia-ampere-architecture-in-depth/, "5120 bytes/clk" of 2 x 40 slices).
SHARED_WIDTH, LOAD_WIDTH = 128.0, 64.0
#: L1 and shared memory of a core from which warp groups multiply straight from shared memory (Hopper, and Blackwell of
#: data centres), and what a kernel cannot take of it: 228 of 256 KB, 164 of 192, 100 of 128 (the same guide).
GROUP_MEMORY, WITHHELD = 256 * 1024, 28 * 1024
#: What the matrix units' rows, columns and steps are multiples of (``tl.dot``: https://triton-lang.org/main/python-api/
#: generated/triton.language.dot.html), registers of a thread, and registers that a thread takes for each element loaded
#: alone (the unaligned shapes).
EDGE, MOST_REGISTERS, LOOSE = 16, 255, 3.5
#: What may set the pace, in the order of :attr:`Priced.bound`.
BOUNDS = ("compute", "shared", "latency", "cache", "memory", "launch")


@dataclass(frozen=True, slots=True)
class Cores:
    """A GPU as schedules see it.

    Attributes:
        gpu: Its cores and caches.
        clock: Of its cores [Hz].
        rate: Of one core's matrix units at that clock [FLOP/s].
        cache: Bandwidth of the shared cache [byte/s].
        memory: Bandwidth of main memory [byte/s].
        by_group: Whether warp groups multiply from shared memory.
        element: Bytes of an element.
    """

    gpu: Gpu
    clock: float
    rate: float
    cache: float
    memory: float
    by_group: bool
    element: float


def cores(chip: Chip, dtype: str) -> Cores:
    """Read a GPU's figures.

    Raises:
        MissingFigure: Its cores are no SMs, or it has no rate for the format, no clock or no memory of a core.
    """
    machine_, own = machine(chip), next((each.capacity for each in chip.memory[1:] if each.shared_by == "core"), None)
    if chip.core_name != "SM":
        raise MissingFigure(f"{chip.name}: schedules are those of NVIDIA's SMs; its cores are {chip.core_name}s")
    if not chip.cores or not chip.clock or not own:
        figures = {"number of cores": chip.cores, "clock": chip.clock, "memory of its cores": own}
        missing = " and no ".join(name for name, figure in figures.items() if not figure)
        raise MissingFigure(f"{chip.name} has no published {missing}, on which schedules depend")
    rate, known = chip.matmul_peak(dtype), chip.matrix.get(chip.matmul_format(dtype))
    pace = chip.clock / known.clock if known and known.clock else 1.0
    a_core = own / chip.cores
    return Cores(
        replace(gpu(chip), shared=a_core - WITHHELD),
        chip.clock, rate * pace / chip.cores, machine_.cache_bandwidth, chip.bandwidth, a_core >= GROUP_MEMORY,
        float(DTYPES[dtype].bytes),
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Priced:
    """What schedules take; numbers or arrays that broadcast.

    Attributes:
        schedule: The blocks.
        sizes: How many matmuls, their m, n and k.
        cores: Where they run.
        p: Figures in the place of :data:`FITTED`.
    """

    schedule: Schedule
    sizes: tuple[Any, Any, Any, Any]
    cores: Cores
    p: Mapping[str, float]

    @cached_property
    def by_group(self) -> Any:
        """Tell whether warp groups multiply it."""
        return self.cores.by_group & (self.schedule.bm >= WARP_GROUP_ROWS)

    @cached_property
    def loose(self) -> tuple[Any, Any]:
        """Elements of either operand that a thread loads alone in a step, since rows are not aligned."""
        s, (_, _, n, k) = self.schedule, self.sizes
        threads = 32.0 * s.warps
        return np.where(k % ALIGNED, s.bm * s.bk / threads, 0.0), np.where(n % ALIGNED, s.bn * s.bk / threads, 0.0)

    @cached_property
    def is_loose(self) -> Any:
        """Tell whether a step waits for what it loads."""
        return sum(self.loose) > 0

    @cached_property
    def needs(self) -> Any:
        """Registers that a thread would take."""
        return registers(self.schedule) + LOOSE * sum(self.loose)

    @cached_property
    def shared(self) -> Any:
        """Shared memory of a block [byte]: an operand that threads load themselves has one buffer."""
        s = self.schedule
        buffers = np.maximum(s.stages - ~self.by_group, 1)
        first, second = (np.where(loose > 0, 1, buffers) for loose in self.loose)
        return (first * s.bm + second * s.bn) * s.bk * self.cores.element

    @cached_property
    def resident(self) -> Any:
        """Blocks that a core has room for: its registers are given to four groups of warps, 256 at a time."""
        s, gpu = self.schedule, self.cores.gpu
        of_warp = np.ceil(np.ceil(np.minimum(self.needs, MOST_REGISTERS) / 8) * 8 * 32 / 256) * 256
        by_registers = np.floor(np.floor(gpu.registers / of_warp / 4) * 4 / s.warps)
        by_shared = np.floor(gpu.shared / (self.shared + RESERVED))
        return np.clip(np.minimum(by_registers, by_shared), 1.0, np.minimum(THREADS / 32 / s.warps, 32.0))

    @cached_property
    def blocks(self) -> Any:
        """Blocks of the launch."""
        b, m, n, _ = self.sizes
        return b * np.ceil(m / self.schedule.bm) * np.ceil(n / self.schedule.bn)

    @cached_property
    def of_core(self) -> Any:
        """Blocks of the core that gets most."""
        return np.ceil(self.blocks / self.cores.gpu.cores)

    @cached_property
    def waves(self) -> Any:
        """Blocks to those that all cores have room for."""
        return self.blocks / (self.cores.gpu.cores * self.resident)

    @cached_property
    def tail(self) -> Any:
        """Share of the cores' time that is idle because blocks do not divide evenly among them."""
        return 1 - self.blocks / (self.cores.gpu.cores * self.of_core)

    @cached_property
    def moved(self) -> Waves:
        """Bytes by level."""
        b, m, n, k = self.sizes
        element = self.cores.element
        return traffic(self.schedule, m, n, k, self.cores.gpu, element=element, result=max(element, 2.0), batch=b)

    @cached_property
    def steps(self) -> Any:
        """Steps of a block along K."""
        return np.ceil(self.sizes[3] / self.schedule.bk)

    @cached_property
    def step(self) -> Any:
        """Seconds of a block's step: on the matrix units, of shared memory, to load, and for elements one by one."""
        s, at, p = self.schedule, self.cores, self.p
        load = (s.bm + s.bn) * s.bk * at.element
        share = np.where(self.by_group | (not at.by_group), 1.0, p["sync"])
        first, second = self.loose
        spilled = np.maximum(self.needs - MOST_REGISTERS, 0.0) * self.is_loose
        alone = s.warps * (p["by_row"] * first + p["by_column"] * second + p["spill"] * spilled)
        return (
            2 * s.bm * s.bn * s.bk / (at.rate * share),
            (self._operands + load) / (SHARED_WIDTH * at.clock),
            load / (LOAD_WIDTH * at.clock * p["load"]),
            alone / at.clock,
        )

    @property
    def _operands(self) -> Any:
        """Bytes that matrix units read of shared memory in a step.

        A warp group multiplies 64 rows by up to 256 columns, each time with its own read of both; four rows of warps by
        as many columns share what they read.
        """
        s = self.schedule
        groups = np.maximum(s.warps / 4, 1.0)
        along = np.minimum(np.maximum(s.bm / WARP_GROUP_ROWS, 1.0), groups)
        wide = np.minimum(s.bn * along / groups, 256.0)
        by_group = s.bm / WARP_GROUP_ROWS * (s.bn / wide) * (WARP_GROUP_ROWS + wide)
        rows = np.where(s.bm >= 32, 2.0, 1.0)
        by_warp = s.bm * (s.warps / rows) + s.bn * rows
        return np.where(self.by_group, by_group, by_warp) * s.bk * self.cores.element

    @cached_property
    def parts(self) -> tuple[Any, ...]:
        """Seconds of each of :data:`BOUNDS`, as if alone."""
        (multiply, shared, load, alone), (waits, _) = self.step, self.phases
        steps = self.of_core * self.steps
        rounds = np.ceil(self.of_core / np.minimum(self.resident, self.of_core))
        return (
            steps * multiply, steps * (np.maximum(shared, load) + alone), rounds * waits,
            self.moved.l2 / (self.cores.cache * self.p["cache"]), self.main_bytes / self._main_rate, self.p["launch"],
        )  # fmt: skip

    @property
    def _main_rate(self) -> float:
        return self.cores.memory * self.p["memory"]

    @cached_property
    def main_bytes(self) -> Any:
        """Return what main memory gives and takes, results that are still in the cache at the end among it [byte]."""
        b, m, n, _ = self.sizes
        return self.moved.read + b * m * n * max(self.cores.element, 2.0)

    @cached_property
    def phases(self) -> tuple[Any, Any]:
        """Seconds of a block alone on its core, and what it takes of a core that it shares."""
        p, s = self.p, self.schedule
        multiply, shared, load, alone = self.step
        busy = knee([multiply, shared, load], SHARP) + alone
        ahead = np.where(self.is_loose, 1.0, np.maximum(s.stages - 1.0, 1.0))
        waits = knee([(p["latency"] + load) / ahead, multiply], SHARP)
        waits = waits + np.where(self.is_loose, alone + multiply, 0.0)
        store = s.bm * s.bn * max(self.cores.element, 2.0) / (LOAD_WIDTH * self.cores.clock * p["store"])
        return self.steps * waits + p["begin"] + store, self.steps * busy + store / 2

    @cached_property
    def seconds(self) -> Any:
        """Seconds of the launch."""
        room = np.minimum(self.resident, self.of_core)
        rounds = np.floor(self.of_core / room)
        rest = self.of_core - rounds * room
        waits, busy = self.phases
        body = rounds * knee([room * busy, waits], SHARP)
        body = body + np.where(rest > 0, knee([np.maximum(rest, 1.0) * busy, waits], SHARP), 0.0)
        *_, cache, memory, launch = self.parts
        return launch + knee([body, cache, memory], self.p["knee"])

    @cached_property
    def bound(self) -> Any:
        """Index into :data:`BOUNDS` of what takes longest."""
        return np.argmax(np.stack(np.broadcast_arrays(*self.parts)), axis=0)


def price(
    schedule: Schedule, sizes: tuple[Any, Any, Any, Any], chip: Chip, dtype: str = "bf16",
    p: Mapping[str, float] = FITTED,
) -> Priced:  # fmt: skip
    """Price schedules of a matmul.

    Args:
        schedule: One, or arrays.
        sizes: How many matmuls, their m, n and k; they broadcast with the schedules.
        chip: A GPU.
        dtype: Number format of the operands.
        p: Figures in the place of :data:`FITTED`.

    Returns:
        Seconds, and all that they follow from.

    Raises:
        MissingFigure: The chip's cores are no SMs, or it lacks a figure.

    Example:
        >>> from roofline.hardware.library import chip
        >>> found = price(Schedule(128, 256, 64, group=8, warps=8), (1, 4096, 4096, 4096), chip("h100-sxm"))
        >>> int(found.blocks), int(found.of_core), int(found.resident), 1.7e-4 < float(found.seconds) < 2.1e-4
        (512, 4, 1, True)
    """
    as_arrays = (np.asarray(value, dtype=np.float64) for value in (
        schedule.bm, schedule.bn, schedule.bk, schedule.group, schedule.warps, schedule.stages))  # fmt: skip
    b, m, n, k = (np.asarray(size, dtype=np.float64) for size in sizes)
    return Priced(Schedule(*as_arrays), (b, m, n, k), cores(chip, dtype), p)


def problems(priced: Priced) -> list[str]:
    """Say of each schedule why it cannot run; empty where it can."""
    s, at = priced.schedule, priced.cores
    limit = at.gpu.shared - RESERVED
    sums = s.bm * s.bn / (32 * s.warps)
    edges = [(edge % EDGE > 0, edge, f"an edge of {{:.0f}}, matrix units take multiples of {EDGE}")
             for edge in (s.bm, s.bn, s.bk)]  # fmt: skip
    checks = (
        *edges,
        (s.warps > 32, s.warps, "{:.0f} warps of at most 32"),
        (sums > MOST_REGISTERS, sums, f"{{:,.0f}} registers a thread for sums of {MOST_REGISTERS}"),
        (priced.shared > limit, priced.shared, f"{{:,.0f}} bytes of shared memory of {limit:,.0f}"),
    )  # fmt: skip
    shape = np.broadcast_shapes(*(np.shape(failed) for failed, _, _ in checks))
    columns = [(np.broadcast_to(failed, shape).ravel(), np.broadcast_to(value, shape).ravel(), text)
               for failed, value, text in checks]  # fmt: skip
    return [
        next((text.format(value[at_]) for failed, value, text in columns if failed[at_]), "")
        for at_ in range(int(np.prod(shape)))
    ]
