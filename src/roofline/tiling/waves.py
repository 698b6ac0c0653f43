"""What the concurrent blocks of a matmul on a GPU move at shared memory, the last-level cache and main memory.

Every block loads its own tiles into shared memory. Loads of neighbouring cores that ask for the same lines at the same
time reach the cache as one. What of it comes from main memory follows from the order of the blocks: ``group`` rows of
them walk over all columns together, so that rows are read once, and the columns once for each group, unless the next
one touches them before the cache has lost them, or several groups run at a time and in step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from roofline.tiling.schedule import Schedule

#: Of an SM of compute capability 9.0: shared memory, registers, threads, blocks (CUDA C++ Programming Guide, technical
#: specifications per compute capability: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities);
#: what the system keeps of the shared memory for each block (the Hopper tuning guide, 1.4.2.2: ``227 KB``).
SHARED, REGISTERS, THREADS, BLOCKS, RESERVED = 228 * 1024, 65536, 2048, 32, 1024
#: Rows of a block from which Triton multiplies by warp groups, straight from shared memory.
WARP_GROUP_ROWS = 64
#: Share of a cache in two halves that data holds which cores on both sides read: each half has a copy of what is at
#: home in the other (https://developer.nvidia.com/blog/nvidia-ampere-architecture-in-depth/: each partition "caches
#: data for memory accesses from SMs in the GPCs directly connected to the partition"); how sharply data that
#: comes back after more than that is lost; blocks of a core until those that started together have drifted apart:
#: read off measurements/h100-sxm/onchip/traffic.csv.
KEPT, SHARPNESS, DRIFT = 0.53, 12.0, 35.0
#: Share of the loads of tiles which neighbours ask for as well that their requests save, where blocks run in one wave
#: and where in many; read off the same rows.
TOGETHER, APART = 0.5, 0.2
#: Bytes at the cache for a byte of main memory that is read or written: half of them cross to the other half of it.
CROSSING = 1.5


@dataclass(frozen=True, slots=True)
class Gpu:
    """Figures of a GPU that decide about waves.

    Attributes:
        cores: Its SMs.
        cache: Capacity of the last-level cache, 0 where it has none [byte].
        shared: Shared memory of a core [byte].
        registers: Registers of a core, of four bytes.
    """

    cores: float
    cache: float
    shared: float = SHARED
    registers: float = REGISTERS


@dataclass(frozen=True, slots=True)
class Waves:
    """Traffic of a launch; numbers or arrays.

    Attributes:
        shared: Into shared memory, and the results out of the cores [byte].
        l2: Read and written at the last-level cache, with what crosses between its halves [byte].
        read: From main memory [byte].
        written: To main memory; what is still in the cache when the launch ends is not [byte].
        resident: Blocks that a core holds at a time.
        waves: Blocks to those that run at a time.
    """

    shared: Any
    l2: Any
    read: Any
    written: Any
    resident: Any
    waves: Any

    @property
    def dram(self) -> Any:
        """Main memory's bytes, read and written."""
        return self.read + self.written


def resident(schedule: Schedule, gpu: Gpu, element: float = 2.0) -> Any:
    """Return how many blocks of a schedule a core holds, from 1 on.

    Args:
        schedule: How the matmul is blocked.
        gpu: Where it runs.
        element: Bytes of an element of the operands.
    """
    warps = np.asarray(schedule.warps, dtype=np.float64)
    by_registers = np.floor(gpu.registers / (registers(schedule) * 32 * warps))
    by_shared = np.floor(gpu.shared / (shared_bytes(schedule, element) + RESERVED))
    return np.clip(np.minimum(by_registers, by_shared), 1.0, np.minimum(THREADS / 32 / warps, BLOCKS))


def shared_bytes(schedule: Schedule, element: float = 2.0) -> Any:
    """Shared memory of a block [byte]: buffers of both operands, one less where they are multiplied from registers."""
    buffers = np.asarray(schedule.stages) - (np.asarray(schedule.bm) < WARP_GROUP_ROWS)
    return np.maximum(buffers, 1) * (np.asarray(schedule.bm) + schedule.bn) * schedule.bk * element


def registers(schedule: Schedule) -> Any:
    """Registers of a thread: its sums, and addresses and fragments that grow with the step (a line through 376 kernels
    as Triton 3.6 compiled them, measurements/h100-sxm/onchip/triton_matmul.csv).
    """
    sums = np.asarray(schedule.bm) * np.asarray(schedule.bn) / (32.0 * np.asarray(schedule.warps))
    by_group = 12 + 1.3 * sums + 0.5 * np.asarray(schedule.bk)
    by_warp = 20 + 2.0 * sums + 0.35 * np.asarray(schedule.bk)
    used = np.where(np.asarray(schedule.bm) >= WARP_GROUP_ROWS, by_group, by_warp)
    return np.clip(np.ceil(used / 8) * 8, 24, 255)


def traffic(
    schedule: Schedule, m: Any, n: Any, k: Any, gpu: Gpu, *, element: float = 2.0, result: float = 2.0
) -> Waves:
    """Return what a matmul of ``m x k`` by ``k x n`` moves at each level, for one schedule or arrays of them.

    Args:
        schedule: How it is blocked.
        m: Rows of the first operand.
        n: Columns of the second.
        k: What is summed over.
        gpu: Where it runs.
        element: Bytes of an element of the operands.
        result: Bytes of an element of the result.

    Returns:
        Bytes by level; the shapes of schedules and sizes broadcast.

    Example:
        >>> moved = traffic(Schedule(128, 128, 64, group=8, warps=8), 4096, 4096, 4096, Gpu(132, 50 * 2**20))
        >>> float(moved.shared / 1e9), bool(moved.read > 2 * 4096 * 4096 * 2)
        (2.18103808, True)
    """
    m, n, k = (np.asarray(size, dtype=np.float64) for size in (m, n, k))
    rows, columns = np.ceil(m / schedule.bm), np.ceil(n / schedule.bn)
    blocks, held = rows * columns, resident(schedule, gpu, element)
    first, second, written = m * k * element, n * k * element, m * n * result
    loaded = columns * first, rows * second
    running = np.minimum(held * gpu.cores, blocks)
    share = _missed(schedule, (rows, columns), (m, n, k, element, result), running, gpu)
    read = first + second * np.maximum(np.ceil(rows / np.minimum(schedule.group, rows)) * share, 1.0)
    waves = blocks / running
    saved = APART + (TOGETHER - APART) / waves
    l2 = sum(part * np.where(users > 1, 1 - saved, 1.0) for part, users in zip(loaded, (columns, rows), strict=True))
    l2 = np.maximum(l2, first + second) + (CROSSING - 1) * read + CROSSING * written
    out = written - left(written, read, running * schedule.bm * schedule.bn * result, gpu)
    return Waves(sum(loaded) + written, l2, read, out, held, waves)


def _missed(schedule: Schedule, blocks: tuple[Any, Any], shape: tuple[Any, ...], running: Any, gpu: Gpu) -> Any:
    """Return for which share of the groups of rows the second operand comes from main memory.

    Groups that run at a time and in step read it together. Those that have drifted apart find what another touched
    within the time in which the cache takes up as much as it holds: with ``f`` of them at random phases, gaps are
    longer than a share ``t`` of a group's time with the probability ``(1 - t)^(f - 1)``.
    """
    (rows, columns), (_, n, k, element, result) = blocks, shape
    group = np.minimum(schedule.group, rows)
    flying = np.clip(running / (group * columns), 1.0, np.ceil(rows / group))
    own = group * schedule.bm * (k * element + n * result)
    second = n * k * element
    room = np.maximum(gpu.cache * KEPT, 1.0)
    within = _span(second, own, flying, room)
    drifted = np.maximum(1 - within, 0.0) ** (flying - 1) / (1 + within**SHARPNESS)
    in_step = np.minimum(1 / flying, 1 / (1 + (room / (own + second)) ** SHARPNESS))
    drift = 1 - np.exp(-rows * columns / gpu.cores / DRIFT)
    return in_step + drift * np.maximum(drifted - in_step, 0.0)


def _span(second: Any, own: Any, flying: Any, room: Any) -> Any:
    """Return the time in which groups in flight touch as much as the cache holds, to the time that a group runs.

    In a time ``t`` they touch ``second (1 - (1 - t)^f) + f t own`` bytes, found again by bisection.
    """
    whole = second + flying * own
    low, high = np.zeros(np.broadcast(whole, room).shape), np.ones(np.broadcast(whole, room).shape)
    for _ in range(24):
        middle = (low + high) / 2
        full = second * (1 - (1 - middle) ** flying) + flying * middle * own > room
        low, high = np.where(full, low, middle), np.where(full, middle, high)
    return np.where(whole < room, 1 + (room - whole) / (flying * own), high)


def left(written: Any, read: Any, last: Any, gpu: Gpu) -> Any:
    """Return how much of the results is still in the cache when a launch ends [byte]: of what passed through it last.

    Args:
        written: Results [byte].
        read: From main memory [byte].
        last: Results of the blocks that end the launch, whose operands came before them [byte].
        gpu: Where it runs.
    """
    share = written / np.maximum(written + read, 1.0)
    return np.minimum(written, np.maximum(gpu.cache / CROSSING * share, np.minimum(last, gpu.cache * KEPT)))
