"""A chip as the plain numbers that the time formulas use."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any

import numpy as np

from roofline.hardware.chip import Chip
from roofline.ir.errors import MissingFigure

#: Bandwidth of the last-level cache against main memory's, where it is not published: 2.0 to 3.5 on the NVIDIA chips
#: whose files have both.
CACHE_RATIO = 3.0
#: Main memory's bandwidth that one small core (SM, CU) can use; TPUs and NPUs have a few large ones [byte/s].
UNIT_BANDWIDTH = 60e9
#: Registers of a GPU's core at most: those of AMD's CDNA (https://rocm.docs.amd.com/en/latest/reference/gpu-specs.html,
#: ``VGPR File (KiB)``: 512); of an SM of NVIDIA's half of that (64 K registers of 32 bits: CUDA C++ Programming Guide,
#: technical specifications per compute capability) [byte].
REGISTERS = 512 * 2**10
#: What vendors call the cores of GPUs (NVIDIA, AMD, Intel, Apple), and a chip's file that does not say.
GPU_CORES, UNSTATED = frozenset({"SM", "CU", "Xe-core", "GPU core"}), "core"


@dataclass(frozen=True, slots=True)
class Machine:
    """Figures of a chip in SI; what is not published is replaced by what makes its effect vanish.

    Attributes:
        bandwidth: Of main memory [byte/s].
        cores: Compute units that share the work (1 where unknown: no quantisation).
        cache: Capacity of the last-level cache, 0 where unknown [byte].
        cache_bandwidth: Of that cache; :data:`CACHE_RATIO` times main memory's where unknown [byte/s].
        cache_roof: The published figure of it, infinity where there is none [byte/s].
        clock: Of the compute units, infinity where unknown [Hz].
        on_chip: Capacity of all memory before the main one, 0 where the chip's file does not list it all [byte].
        has_matrix: Whether some format is multiplied faster than the vector units do: by matrix units, which libraries
            feed with tiles. GPUs without stream.
        is_gpu: Whether its cores are a GPU's by their name, or none is stated and it has matrix units.
    """

    bandwidth: float
    cores: int
    cache: float
    cache_bandwidth: float
    cache_roof: float = float("inf")
    clock: float = float("inf")
    on_chip: float = 0.0
    has_matrix: bool = True
    is_gpu: bool = True

    @property
    def units(self) -> float:
        """Compute units of a GPU's size: a core that feeds on more than :data:`UNIT_BANDWIDTH` counts as several."""
        return max(self.cores, self.bandwidth / UNIT_BANDWIDTH)


@lru_cache(maxsize=256)
def machine(chip: Chip) -> Machine:
    """The numbers of a chip."""
    level = chip.cache
    has_matrix = any(peak.flops > (vector_peak(chip, name) or 0.0) for name, peak in chip.matrix.items())
    published = (level.bandwidth or 0.0) if level else 0.0
    return Machine(
        bandwidth=chip.bandwidth,
        cores=chip.cores or 1,
        cache=(level.capacity or 0.0) if level else 0.0,
        cache_bandwidth=published or chip.bandwidth * CACHE_RATIO,
        cache_roof=published or float("inf"),
        clock=chip.clock or float("inf"),
        on_chip=_on_chip(chip),
        has_matrix=has_matrix,
        is_gpu=chip.core_name in GPU_CORES or (chip.core_name == UNSTATED and has_matrix),
    )


def _on_chip(chip: Chip) -> float:
    """Return the capacity of all memory on a chip, 0 where its file does not list it all [byte].

    Files of GPUs list no registers, and some only the cache that all cores share; those of CPUs list the last cache.
    """
    inner = chip.memory[1:]
    if "CPU" in chip.form or not all(level.capacity for level in inner):
        return 0.0
    listed = sum(level.capacity or 0.0 for level in inner)
    if not inner or chip.core_name not in GPU_CORES:
        return listed
    whole = chip.cores and any(level.shared_by == "core" for level in inner)
    return listed + REGISTERS * (chip.cores or 0) if whole else 0.0


def vector_peak(chip: Chip, dtype: str) -> float | None:
    """Peak of elementwise arithmetic [FLOP/s], or ``None`` where the vendor publishes none."""
    try:
        return chip.vector_peak(dtype)
    except MissingFigure:
        return None


def knee(times: list[Any], sharpness: float) -> Any:
    """A maximum with a rounded knee: resources that are nearly balanced slow each other down.

    The ``sharpness``-norm of the times: their maximum where one dominates, more where several are equal.
    """
    stacked = [np.asarray(time, dtype=np.float64) for time in times]
    if len(stacked) == 2:
        low, high = np.minimum(*stacked), np.maximum(np.maximum(*stacked), 1e-30)
        return high * (1 + (low / high) ** sharpness) ** (1.0 / sharpness)
    top = np.maximum(reduce(np.maximum, stacked), 1e-30)
    total = sum((time / top) ** sharpness for time in stacked)
    return top * total ** (1.0 / sharpness)


def fits(total: Any, room: float) -> Any:
    """Share of data that a cache keeps until it is used again, when ``total`` bytes pass in between."""
    return np.clip(2 - total / room, 0.0, 1.0) if room else 0.0
