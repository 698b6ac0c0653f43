"""How a product is spread over a grid of cores: which axis goes over rows and columns, what stays in a core's memory.

Every way is tried and the fastest taken. A way is a split in space (each of batch, rows, columns and depth of the
product may go over rows or columns of the grid, or over both) and an order in time: the result of a block stays while
depth streams by, or a strip of the left or of the right operand stays while the other passes. The memory of a core has
to hold what stays and two steps of what streams.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np

from roofline.cost.silicon.engines import cycles, granularity, reads
from roofline.hardware.grid import CoreGrid
from roofline.ir.errors import ChipDataError
from roofline.ir.units import format_bytes

AXES = ("batch", "m", "n", "k")
#: What stays in a core's memory, and how many tiles of rows of the result with it (none: as many as fit).
STAYS = ("output", "left", "right")
#: Largest number of rows of tiles of a block that stays, as a power of two.
LADDER = 10
#: Bytes of a partial sum.
PARTIAL = 4.0
#: How little time a level's idleness may cost, to tell ways apart that take as long; depth over cores, as four levels.
SLACK, SPLIT = 1e-9, 4.0
#: What can set the pace, from the inside out.
LEVELS = ("engine", "SRAM", "NoC", "DRAM")


@dataclass(frozen=True)
class Product:
    """A product of matrices to be spread.

    Attributes:
        b: How many, of ``m x k`` by ``k x n``.
        m: Rows.
        n: Columns.
        k: Depth.
        left: Bytes of an element of the left operand.
        right: Bytes of an element of the right one.
        out: Bytes of an element of the result.
        moved: What has to come from main memory and go there at least [byte].
        distinct: Elements of the left operand by those of ``m x k``: fewer in a convolution, whose windows overlap.
        rereads: Whether operands come from main memory again where they do not stay; not in a fused kernel, which keeps
            what is between its products.
    """

    b: Any
    m: Any
    n: Any
    k: Any
    left: float
    right: float
    out: float
    moved: Any
    distinct: Any = 1.0
    rereads: bool = True


@dataclass(frozen=True)
class Rates:
    """What a grid does in a second.

    Attributes:
        cycle: Time of a cycle of an engine at its achievable rate [s].
        dram: Achievable bandwidth of main memory [byte/s].
        share: Of its bandwidth, how much is achievable.
    """

    cycle: Any
    dram: Any
    share: float = 1.0


@dataclass(frozen=True)
class Spread:
    """The fastest way to spread a product.

    Attributes:
        seconds: Its time [s].
        by_level: Time by level [s].
        bytes: Traffic by level, of all cores together [byte].
        choice: Number of the way.
    """

    seconds: Any
    by_level: Mapping[str, Any]
    bytes: Mapping[str, Any]
    choice: Any


def spread(grid: CoreGrid, work: Product, rates: Rates) -> Spread:
    """Find the fastest way to spread a product over a grid, at each of its sizes.

    Engines, local memories, network and main memory work side by side, on steps that are fetched ahead: the slowest of
    them sets the pace.

    Raises:
        ChipDataError: The memory of a core holds no way at all.
    """
    levels, moved, fits = _levels(grid, work, rates)
    inside = np.maximum(np.maximum(levels["engine"], levels["SRAM"]), levels["NoC"])
    total = np.where(fits, np.maximum(inside, levels["DRAM"]), np.inf)
    # Of ways that take as long, one without a split depth, and that leaves the most room where nothing sets the pace.
    split = SPLIT * (_ways()[:, 3] > 0).reshape(-1, *(1,) * (total.ndim - 1))
    best = np.argmin(total * (1 + SLACK * (split + sum(levels.values()) / np.maximum(total, 1e-30))), axis=0)

    def at(value: Any) -> Any:
        full = np.broadcast_to(value, total.shape)
        return np.take_along_axis(full, best[None], axis=0)[0]

    return Spread(
        at(total), {name: at(value) for name, value in levels.items()},
        {name: at(value) for name, value in moved.items()}, best,
    )  # fmt: skip


def _levels(grid: CoreGrid, work: Product, rates: Rates) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Return seconds and bytes by level for every way, and whether it fits."""
    figures = (work.b, work.m, work.n, work.k, work.moved, rates.cycle, rates.dram, grid.sram, grid.rows, grid.columns,
               grid.sram_bandwidth, grid.noc_bandwidth, grid.channels, grid.channel_bandwidth,
               grid.engine.count)  # fmt: skip
    dims = max(map(np.ndim, figures))
    ways = _ways().reshape(-1, _ways().shape[1], *(1,) * dims)
    parts = _over(ways[:, :4], grid)
    units = (1, *granularity(grid.engine))
    sizes = (work.b, work.m, work.n, work.k)
    b, m, n, k = (np.ceil(np.ceil(size / unit) / parts[:, at]) * unit
                  for at, (size, unit) in enumerate(zip(sizes, units, strict=True)))  # fmt: skip
    m, n, k = np.minimum(m, work.m), np.minimum(n, work.n), np.minimum(k, work.k)
    again_left, again_right, fits = _passes(grid, work, ways[:, 4], ways[:, 5], (m, n, k))
    cores = [parts[:, at] for at in range(4)]
    partial = np.where(cores[3] > 1, b * m * n * PARTIAL, 0.0)
    left = work.left * work.distinct
    received = b * (m * k * left * again_left + k * n * work.right * again_right) + partial
    sent = b * m * n * work.out / cores[3] + partial
    network = np.maximum(received, sent)
    share = 1.0 if grid.multicast else cores[2], 1.0 if grid.multicast else cores[1]
    more = work.b * (work.m * work.k * left * (again_left * share[0] - 1)
                     + work.k * work.n * work.right * (again_right * share[1] - 1))  # fmt: skip
    dram = work.moved + (more if work.rereads else 0.0)
    local = reads(grid.engine, b, m, n, k, work.left, work.right)
    if not grid.noc_bandwidth:  # partial sums have no way from core to core
        fits = fits & (cores[3] == 1)
    levels = {
        "engine": cycles(grid.engine, b, m, n, k) * rates.cycle,
        "SRAM": local / grid.sram_bandwidth if grid.sram_bandwidth else np.zeros(()),
        "NoC": network / grid.noc_bandwidth if grid.noc_bandwidth else np.zeros(()),
        "DRAM": dram / _dram(grid, rates, ways[:, :4], sizes, units),
    }
    used: Any = 1.0
    for part, size, unit in zip(cores, sizes, units, strict=True):
        used = used * np.minimum(part, np.ceil(size / unit))
    return levels, {"SRAM": local * used, "NoC": network * used, "DRAM": dram + np.zeros(())}, fits


def _dram(grid: CoreGrid, rates: Rates, over: Any, sizes: tuple[Any, ...], units: tuple[int, ...]) -> Any:
    """Return main memory's bandwidth in each way: of the channels whose cores have work [byte/s]."""
    if not grid.channels:
        return rates.dram
    rate = rates.dram
    if grid.channel_bandwidth:
        rate = np.minimum(rate, rates.share * grid.channels * grid.channel_bandwidth)
    if grid.channel_serves == "all":
        return rate
    bit, lines = (1, grid.rows) if grid.channel_serves == "rows" else (2, grid.columns)
    busy: Any = 1.0
    for at, (size, unit) in enumerate(zip(sizes, units, strict=True)):
        busy = busy * np.where(over[:, at].astype(int) & bit, np.minimum(lines, np.ceil(size / unit)), 1)
    return rate * np.minimum(1.0, np.ceil(busy * grid.channels / lines) / grid.channels)


def _over(ways: Any, grid: CoreGrid) -> Any:
    """Return over how many cores each axis goes: 1 over rows, 2 over columns, 3 over both."""
    return np.where(ways % 2 == 1, grid.rows, 1) * np.where(ways >= 2, grid.columns, 1)


def _passes(
    grid: CoreGrid, work: Product, stays: Any, ladder: Any, block: tuple[Any, Any, Any]
) -> tuple[Any, Any, Any]:
    """Return how often each operand passes through a core's memory, and whether the way fits it."""
    m, n, k = block
    if not grid.sram:
        one = np.ones(np.broadcast_shapes(np.shape(m), np.shape(n)))
        return one, one, one > 0
    high, across, deep = granularity(grid.engine)
    step = 2.0 * deep  # two steps of depth, one of which is used while the other arrives
    rows = np.minimum(ladder * high, np.ceil(m / high) * high)
    columns = (grid.sram - step * rows * work.left) / (rows * PARTIAL + step * work.right)
    strip_left = (grid.sram - step * across * work.right) / (k * work.left + across * PARTIAL)
    strip_right = (grid.sram - step * high * work.left) / (k * work.right + high * PARTIAL)
    tall = np.select([stays == 0, stays == 1], [rows, np.floor(strip_left / high) * high], m)
    wide = np.select([stays == 0, stays == 2], [np.floor(columns / across) * across,
                                                np.floor(strip_right / across) * across], n)  # fmt: skip
    fits = (tall >= high) & (wide >= np.minimum(across, n))
    if not np.all(np.any(fits, axis=0)):
        least = step * (high * work.left + across * work.right) + high * across * PARTIAL
        raise ChipDataError(
            f"grid.sram of {format_bytes(float(np.min(grid.sram)))}: too small for this engine, whose tile of results "
            f"and two steps of operands take {format_bytes(least)}"
        )
    left = np.where(
        stays == 0, np.ceil(n / np.maximum(wide, 1)), np.where(stays == 2, np.ceil(n / np.maximum(wide, 1)), 1.0)
    )
    right = np.where(stays == 2, 1.0, np.ceil(m / np.maximum(tall, 1)))
    return np.maximum(left, 1.0), np.maximum(right, 1.0), fits


@lru_cache(maxsize=1)
def _ways() -> Any:
    """Return every way, a line each: what batch, m, n and k go over, what stays, and its rows of tiles."""
    lines = []
    for rows, columns in sorted(product(range(4), repeat=2), key=lambda pair: pair != (1, 2)):
        over = [(1 if at == rows else 0) + (2 if at == columns else 0) for at in range(4)]
        lines += [[*over, 0, 2**size] for size in range(LADDER)] + [[*over, 1, 1], [*over, 2, 1]]
    return np.array(lines, dtype=np.float64)


def named(choice: int, grid: CoreGrid) -> str:
    """Say what a way is.

    Example:
        >>> named(0, CoreGrid(rows=8, columns=8, engine={"shape": (1, 1, 1)}))
        'm over rows, n over columns; output stays'
    """
    *over, stays, _ = _ways()[choice].astype(int)
    there = (1 if grid.rows > 1 else 0) + (2 if grid.columns > 1 else 0)
    words = {1: "rows", 2: "columns", 3: "all cores"}
    places = [f"{axis} over {words[at & there]}" for axis, at in zip(AXES, over, strict=True) if at & there]
    return f"{', '.join(places) or 'one core'}; {STAYS[stays]} stays"
