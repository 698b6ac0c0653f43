"""How long one kernel takes on a chip, and how well that is known. The only place that turns counts into seconds.

A kernel takes as long as its slowest resource: arithmetic at an achievable share of the peak, traffic at an
achievable share of the bandwidth, or the floor under any launch. The same counts against the datasheet itself give
the floor of these kernels, run one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from roofline.chip import Chip
from roofline.count import KernelCount
from roofline.errors import MissingFigure

#: What a kernel or a run can be bound by, in the order of the codes in :attr:`KernelTime.bound`.
BOUNDS = ("compute", "memory", "launch", "host")
COMPUTE, MEMORY, LAUNCH, HOST = range(len(BOUNDS))

#: The host's share of a step varies this much between machines, runs and frameworks' module layers: over the host-bound
#: rows of the shipped models.csv an eager launch costs 21 to 67 us (middle nine tenths of every second row).
HOST_LOW, HOST_HIGH = 0.5, 3.0

#: What the present time model leaves out, said with every estimate.
NOT_MODELLED = (
    "tile and wave quantisation, alignment, split-K",
    "reuse in cache between kernels",
    "sustained clocks under a power cap",
)


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Seconds of one launch, numbers or arrays.

    Attributes:
        expected: The prediction [s].
        floor: Datasheet speed of light: peak arithmetic, peak bandwidth, no launch cost [s].
        compute: Arithmetic at its achievable rate [s].
        memory: Traffic at its achievable rate [s].
        bound: Index into :data:`BOUNDS` of the largest.
    """

    expected: Any
    floor: Any
    compute: Any
    memory: Any
    bound: Any


def kernel_time(row: KernelCount, chip: Chip, tf32: bool = False) -> KernelTime:
    """Predict one kernel.

    Args:
        row: Its counts.
        chip: Where it runs.
        tf32: Let fp32 contractions use the tf32 matrix units.

    Raises:
        MissingFigure: The chip has no rate for the format that a contraction runs in.
    """
    at_peak = compute_seconds(row, chip, tf32)
    at_bandwidth = row.bytes / chip.bandwidth
    share = chip.efficiency
    compute, memory = at_peak / share.compute, at_bandwidth / share.memory
    worked = np.maximum(compute, memory)
    bound = np.where(worked <= share.launch, LAUNCH, np.where(compute > memory, COMPUTE, MEMORY))
    return KernelTime(
        expected=np.maximum(worked, share.launch),
        floor=np.maximum(at_peak, at_bandwidth),
        compute=compute,
        memory=memory,
        bound=bound,
    )


def compute_seconds(row: KernelCount, chip: Chip, tf32: bool = False) -> Any:
    """Time of the arithmetic at peak: matrix and vector units work side by side [s]."""
    matrix = sum(flops / chip.matmul_peak(dtype, tf32=tf32) for dtype, flops in row.flops_by.items())
    vector = sum(flops / peak for dtype, flops in row.vector_by.items() if (peak := vector_peak(chip, dtype)))
    return np.maximum(matrix, vector)


def vector_peak(chip: Chip, dtype: str) -> float | None:
    """Peak of elementwise arithmetic [FLOP/s], or ``None`` where the vendor publishes none."""
    try:
        return chip.vector_peak(dtype)
    except MissingFigure:
        return None


def not_modelled(chip: Chip) -> tuple[str, ...]:
    """What a prediction for this chip leaves out."""
    silent = vector_peak(chip, "fp32") is None
    extra = (f"elementwise arithmetic (no vector peak published for {chip.name})",) if silent else ()
    return NOT_MODELLED + extra
