"""Chips that are no GPU and have no figures of their own: CPUs, systolic arrays, dataflow processors.

The other modules know how GPUs run a kernel: tiles and waves, warps, rows in flight, wide loads. None of that is
charged to a chip whose file names other cores. Its kernels take what the file states: their arithmetic and their
traffic, each at the achievable share, and the least time of a launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.cost.machine import knee, vector_peak
from roofline.cost.work import Launch

#: Sharpness of the knee between arithmetic and traffic, where a class of kernels has none of its own.
KNEE = 2.0


def seconds(work: Launch, p: Mapping[str, float]) -> Any:
    """Time of one launch of any kernel [s]."""
    chip, row, shares = work.chip, work.row, work.chip.efficiency
    steps = sum(flops / peak for dtype, flops in row.vector_by.items() if (peak := vector_peak(chip, dtype)))
    matmuls = row.flops / (work.peak * p.get("share", shares.compute))
    traffic = row.bytes / (work.machine.bandwidth * p.get("dram", shares.memory))
    return p.get("launch", shares.launch) + knee([matmuls, steps / shares.compute, traffic], p.get("knee", KNEE))
