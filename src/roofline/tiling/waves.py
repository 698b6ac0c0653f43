"""What the concurrent blocks of a matmul on a GPU move at shared memory, the last-level cache and main memory.

Every block loads its own tiles into shared memory. Loads of neighbouring cores that ask for the same lines at the same
time reach the cache as one. What of it comes from main memory follows from the order of the blocks: ``group`` rows of
them walk over all columns together, so that rows are read once, and the columns once for each group, unless the next
one touches them before the cache has lost them, or several groups run at a time and in step.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from roofline.tiling.schedule import Schedule

#: Of an SM of compute capability 9.0: shared memory, registers, threads, blocks (CUDA C++ Programming Guide, technical
#: specifications per compute capability: https://docs.nvidia.com/cuda/cuda-c-programming-guide/#compute-capabilities);
#: what the system keeps of the shared memory for each block (the Hopper tuning guide, 1.4.2.2: ``227 KB``).
SHARED, REGISTERS, THREADS, BLOCKS, RESERVED = 228 * 1024, 65536, 2048, 32, 1024
#: Rows of a block from which Triton multiplies by warp groups, straight from shared memory.
WARP_GROUP_ROWS = 64
#: Elements of a row to which Triton must know it aligned to load 16 bytes at a time. Where those of the second operand
#: are not, neighbours go to threads far apart, and each element asks the cache for a sector of so many bytes.
ALIGNED, SECTOR = 16, 32.0
#: Bytes at a cache of two halves for a byte of main memory that is read or written: half of them cross to the other
#: half, which keeps a copy (https://developer.nvidia.com/blog/nvidia-ampere-architecture-in-depth/: each partition
#: "caches data for memory accesses from SMs in the GPCs directly connected to the partition").
HALVED = 1.5
#: Share of a cache that holds what is touched again, with copies in both halves counted; how sharply what comes back
#: after more than that is lost; blocks of a core until those that started together have drifted apart; how sharp their
#: phases are: read off the rows of Triton's matmul in measurements/h100-sxm/onchip/traffic.csv.
HELD, SHARPNESS, DRIFT, PHASE = 0.8, 12.0, 35.0, 0.05
#: Share of the loads that neighbours ask for as well which requests save where blocks run in one wave, and in many:
#: of blocks whose warps multiply as a group and so wait for each other, of other blocks, and of a library's beyond
#: what the multicast in a cluster saves; read off the same rows.
GROUPS, WARPS, LIBRARY = (0.5, 0.2), (0.17, 0.07), (0.35, 0.05)
#: Edges of a library's tiles, the largest tile, and the columns and rows of work that a tile's start and end are worth:
#: the fewest rounds of the least work load as much as 247 of cuBLAS's choices in measurements/h100-sxm/ops.csv to 6 %
#: (median; mean 15 %). Two blocks in a cluster read the longer side of their tiles once.
EDGES, LARGEST, BORDER, CLUSTER, ALONG = (16, 32, 64, 128, 192, 256), 192 * 192, 50.0, 2, 8
_PAIRS = [(rows, columns) for rows in EDGES for columns in EDGES if rows * columns <= LARGEST and rows + columns >= 80]
#: Rows and columns of a library's tiles.
TILES = np.array(_PAIRS, dtype=np.float64).T


@dataclass(frozen=True, slots=True)
class Gpu:
    """Figures of a GPU that decide about waves.

    Attributes:
        cores: Its SMs.
        cache: Capacity of the last-level cache, 0 where it has none [byte].
        crossing: Bytes at the cache for a byte of main memory: :data:`HALVED` where it has two halves, else 1.
        shared: Shared memory of a core [byte].
        registers: Registers of a core, of four bytes.
    """

    cores: float
    cache: float
    crossing: float = HALVED
    shared: float = SHARED
    registers: float = REGISTERS

    @property
    def room(self) -> float:
        """Bytes of data touched again, by cores on both sides, that the cache holds."""
        return max(self.cache * HELD / self.crossing, 1.0)


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
    schedule: Schedule, m: Any, n: Any, k: Any, gpu: Gpu, *, element: float = 2.0, result: float = 2.0, batch: Any = 1.0
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
        batch: Matmuls of this size in the launch.

    Returns:
        Bytes by level; the shapes of schedules and sizes broadcast.

    Example:
        >>> moved = traffic(Schedule(128, 128, 64, group=8, warps=8), 4096, 4096, 4096, Gpu(132, 50 * 2**20))
        >>> float(moved.shared / 1e9), bool(moved.read > 2 * 4096 * 4096 * 2)
        (2.18103808, True)
    """
    held = resident(schedule, gpu, element)
    row = np.asarray(k, dtype=np.float64) * element
    walk = _Walk((m, n, row, result, batch), (schedule.bm, schedule.bn), schedule.group, held * gpu.cores, gpu)
    by_group = (np.asarray(schedule.bm) >= WARP_GROUP_ROWS) & (np.asarray(k) % ALIGNED == 0) & (n % ALIGNED == 0)
    saved = [np.where(by_group, *pair) for pair in zip(GROUPS, WARPS, strict=True)]
    apart = np.where(np.asarray(n) % ALIGNED, SECTOR / element, 1.0)
    return walk.waves(walk.requests(saved, 1.0, 1 / apart), held)


def library_traffic(
    m: Any, n: Any, k: Any, gpu: Gpu, *, element: float = 2.0, result: float = 2.0, batch: Any = 1.0
) -> Waves:
    """Return the same for a library's kernel: persistent blocks in clusters, on the tile that it would take.

    It walks :data:`ALONG` rows of tiles together, or columns where tiles are wider than high, as cuBLAS's kernels do by
    their names (``256x128_..._1x2_h``, ``192x192_..._2x1_v``).
    """
    bm, bn = library_tile(m, n, batch, gpu)
    wide = bn > bm
    sizes = np.where(wide, n, m), np.where(wide, m, n), np.asarray(k, dtype=np.float64) * element, result, batch
    walk = _Walk(sizes, (np.maximum(bm, bn), np.minimum(bm, bn)), ALONG, gpu.cores, gpu)
    square = bm == bn
    requests = walk.requests(LIBRARY, np.where(square, 1, CLUSTER), np.where(square, CLUSTER, 1))
    return walk.waves(requests, 1.0)


def library_tile(m: Any, n: Any, batch: Any, gpu: Gpu) -> tuple[Any, Any]:
    """Return rows and columns of the tile that a library takes: the fewest rounds of tiles of the least work."""
    m, n, batch = np.broadcast_arrays(m, n, batch)
    rows, columns = (edges.reshape(-1, *(1,) * m.ndim) for edges in TILES)
    tiles = np.ceil(m / rows) * np.ceil(n / columns) * batch
    best = (np.ceil(tiles / gpu.cores) * (rows * columns + BORDER * (rows + columns))).argmin(axis=0)
    return TILES[0][best], TILES[1][best]


@dataclass(frozen=True, eq=False)
class _Walk:
    """The blocks of a launch in the order in which they run.

    Attributes:
        sizes: Rows and columns of the result, bytes of a row of an operand and of an element of the result, matmuls.
        tile: Rows and columns of a block.
        group: Rows of blocks that are walked together.
        most: Blocks that run at a time at most.
        gpu: Where they run.
    """

    sizes: tuple[Any, ...]
    tile: tuple[Any, Any]
    group: Any
    most: Any
    gpu: Gpu

    @cached_property
    def blocks(self) -> tuple[Any, Any]:
        """Rows and columns of blocks of one matmul."""
        return np.ceil(self.sizes[0] / self.tile[0]), np.ceil(self.sizes[1] / self.tile[1])

    @cached_property
    def running(self) -> Any:
        """Blocks that run at a time."""
        return np.minimum(self.most, self.count)

    @cached_property
    def count(self) -> Any:
        """All blocks."""
        return self.blocks[0] * self.blocks[1] * self.sizes[4]

    @cached_property
    def operands(self) -> tuple[Any, Any]:
        """Bytes of all first and of all second operands."""
        m, n, row, _, batch = self.sizes
        return m * row * batch, n * row * batch

    @cached_property
    def written(self) -> Any:
        """Bytes of the results."""
        m, n, _, result, batch = self.sizes
        return m * n * result * batch

    @cached_property
    def rows(self) -> Any:
        """Rows of blocks in a group."""
        return np.minimum(self.group, self.blocks[0])

    @cached_property
    def own(self) -> tuple[Any, Any]:
        """Bytes that a group reads of the first operand, and writes."""
        _, n, row, result, _ = self.sizes
        height = self.rows * self.tile[0]
        return height * row, height * n * result

    @cached_property
    def flying(self) -> Any:
        """Groups of one matmul in flight."""
        of_one = np.minimum(self.running, self.blocks[0] * self.blocks[1])
        return np.clip(of_one / (self.rows * self.blocks[1]), 1.0, np.ceil(self.blocks[0] / self.rows))

    @cached_property
    def within(self) -> Any:
        """Time in which groups in flight touch as much as the cache holds, to the time that a group runs.

        In a time ``t`` they touch ``second (1 - (1 - t)^f) + f t own`` bytes, found again by bisection.
        """
        second, own, flying, room = self.sizes[1] * self.sizes[2], sum(self.own), self.flying, self.gpu.room
        whole = second + flying * own
        low, high = np.zeros(np.shape(whole)), np.ones(np.shape(whole))
        for _ in range(16):
            middle = (low + high) / 2
            full = second * (1 - (1 - middle) ** flying) + flying * middle * own > room
            low, high = np.where(full, low, middle), np.where(full, middle, high)
        return np.where(whole < room, 1 + (room - whole) / (flying * own), high)

    @cached_property
    def missed(self) -> Any:
        """For which share of the groups of rows the second operand comes from main memory.

        Groups that run at a time and in step read it together. Those that have drifted apart find what another touched
        within the time in which the cache takes up as much as it holds: with ``f`` of them at random phases, gaps are
        longer than a share ``t`` of a group's time with the probability ``(1 - t)^(f - 1)``.
        """
        flying, second = self.flying, self.sizes[1] * self.sizes[2]
        drifted = np.maximum(1 - self.within, PHASE) ** (flying - 1) / (1 + self.within**SHARPNESS)
        in_step = 1 / flying / (1 + (self.gpu.room / (flying * sum(self.own) + second)) ** SHARPNESS)
        drift = 1 - np.exp(-self.count / self.gpu.cores / DRIFT)
        return in_step + drift * (drifted - in_step)

    @cached_property
    def walked_again(self) -> Any:
        """Times that the first operand comes from main memory: one, unless a group takes several waves in step."""
        width = np.maximum(self.running / self.rows, 1.0)
        touched = (self.own[0] + self.sizes[2] * self.tile[1] * width) + self.own[1] * width / self.blocks[1]
        lost = 1 / (1 + (self.gpu.room / touched) ** SHARPNESS)
        return 1 + np.maximum(self.blocks[1] / width - 1, 0.0) * lost * np.exp(-self.count / self.gpu.cores / DRIFT)

    @cached_property
    def read(self) -> Any:
        """Bytes from main memory."""
        groups = np.ceil(self.blocks[0] / self.rows)
        first = self.operands[0] * self.walked_again
        return first + self.operands[1] * np.maximum(groups * self.missed, 1.0)

    @cached_property
    def loads(self) -> tuple[Any, Any]:
        """Bytes of either operand that blocks load."""
        return self.blocks[1] * self.operands[0], self.blocks[0] * self.operands[1]

    def requests(self, saved: Any, *clusters: Any) -> Any:
        """Bytes of operands that cores ask the cache for.

        Args:
            saved: Share of the loads which neighbours ask for as well that is saved in one wave, and in many.
            clusters: Blocks that read each operand together; 1 where nothing is said.
        """
        one, many = saved
        share = 1 - many - (one - many) * self.running / self.count
        users = (self.blocks[1], self.blocks[0])
        loads = [
            load / np.minimum(size, use) for load, size, use in zip(self.loads, clusters or (1, 1), users, strict=True)
        ]
        requested = [load * np.where(use > 1, share, 1.0) for load, use in zip(loads, users, strict=True)]
        return np.maximum(requested[0], self.operands[0]) + np.maximum(requested[1], self.operands[1])

    @cached_property
    def left(self) -> Any:
        """Results that are still in the cache when the launch ends [byte]: those of the time that it holds, at least
        those of a last wave, whose operands came before.
        """
        last = (self.count / self.running - 1e-9) % 1 * self.running * self.tile[0] * self.tile[1] * self.sizes[3]
        recent = self.within * self.flying * self.own[1]
        return np.minimum(self.written, np.maximum(recent, np.minimum(last, self.gpu.room)))

    def waves(self, requests: Any, held: Any) -> Waves:
        """Return the traffic, with what crosses between the halves of the cache."""
        crossing = self.gpu.crossing
        l2 = np.maximum(requests, self.read) + (crossing - 1) * self.read + crossing * self.written
        shared = sum(self.loads) + self.written
        return Waves(shared, l2, self.read, self.written - self.left, held, self.count / self.running)
