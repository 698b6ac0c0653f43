"""What a program moves at each level of the memory, and what that takes: the roofline by level."""

from __future__ import annotations

from typing import Any

from roofline.analysis.evaluation import Evaluation, starts
from roofline.cost.levels import traffic
from roofline.counting.grid import added
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
