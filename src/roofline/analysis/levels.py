"""What a program moves at each level of the memory, and what that takes: the roofline by level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roofline.analysis.evaluation import Evaluation, starts
from roofline.cost import BOUNDS, COMPUTE, KernelTime
from roofline.cost.levels import bandwidth, traffic
from roofline.counting.counts import KernelCount
from roofline.counting.grid import added, one_point
from roofline.hardware.chip import Chip
from roofline.tiling.schedule import Schedule


def kernel_bytes(of: Evaluation, schedule: Schedule | None = None) -> list[list[dict[str, Any]]]:
    """Return what a launch of each distinct kernel moves by level, a list for each chip [byte].

    Args:
        of: The program, at one point or over a grid.
        schedule: How its matmuls are blocked; as the library does where none is given.
    """
    how = starts(of)
    return [[traffic(row, chip, of.tf32, *how, schedule) for row in of.rows] for chip in of.chips]


def run_bytes(of: Evaluation, schedule: Schedule | None = None) -> list[dict[str, Any]]:
    """Return what one run of a program moves by level, a dictionary for each chip [byte]."""
    return [_total(of, kernels) for kernels in kernel_bytes(of, schedule)]


def _total(of: Evaluation, kernels: list[dict[str, Any]]) -> dict[str, Any]:
    pairs = [(row.kernel.count, moved) for row, moved in zip(of.rows, kernels, strict=True)]
    levels = dict.fromkeys(level for moved in kernels for level in moved)
    return {level: added(count * moved.get(level, 0.0) for count, moved in pairs) for level in levels}


def by_level(of: Evaluation) -> list[dict[str, Any]]:
    """Return the roofline of each distinct kernel by level, in the order of its rows.

    Returns:
        ``levels``: of each its name, ``bytes`` of a launch, ``intensity`` [FLOP/byte], ``floor_s`` at its bandwidth and
        the ``share`` of that which the kernel reaches (``None`` without a published bandwidth); ``compute_floor_s`` at
        the peak of its format; and ``bound_level``: the level, or ``compute``, that takes longest.

    Raises:
        UsageError: It is not one point.
    """
    one_point(of.axis_names, "levels are listed for")
    chip, kernels = of.chips[0], kernel_bytes(of)[0]
    every = zip(of.rows, kernels, of.times[0], strict=True)
    return [_of_kernel(chip, row, moved, time) for row, moved, time in every]


def _of_kernel(chip: Chip, row: KernelCount, moved: Mapping[str, Any], time: KernelTime) -> dict[str, Any]:
    levels = [_at_level(chip, row, level, float(size), float(time.expected)) for level, size in moved.items()]
    at_peak = float(time.compute) * chip.efficiency.compute
    return {"levels": levels, "compute_floor_s": at_peak, "bound_level": longest(levels, at_peak)}


def _at_level(chip: Chip, row: KernelCount, level: str, size: float, expected: float) -> dict[str, Any]:
    rate = bandwidth(chip, level, row.kernel.kind)
    floor = size / rate if rate else None
    return {
        "level": level, "bytes": size, "intensity": float(row.arithmetic) / size if size else 0.0, "floor_s": floor,
        "share": floor / expected if floor is not None and expected else None,
    }  # fmt: skip


def longest(levels: Sequence[Mapping[str, Any]], at_peak: float) -> str:
    """Return the level whose roof is the lowest over a kernel, or ``compute``."""
    known = [(level["floor_s"], level["level"]) for level in levels if level["floor_s"] is not None]
    return str(max([(at_peak, BOUNDS[COMPUTE]), *known], key=lambda pair: pair[0])[1])
