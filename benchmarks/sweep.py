"""Configurations a second: Llama-3-8B decode over 1,024 batches x 64 contexts on one chip, one core.

python benchmarks/sweep.py

The baseline, in the same run, is the textbook's roofline by hand: for each of the program's distinct kernels a line of
numpy over all points, count * max(FLOPs / peak, bytes / bandwidth). Times are of the process, the least of many, which
other processes disturb little.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import roofline as rl

RUNS = 40


def seconds(run: Callable[[], Any]) -> list[float]:
    """Process time of each of some runs, the shortest first [s]."""
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return sorted(times)


def main() -> None:
    """Time the sweep, its first run (nothing cached), the baseline and the peak memory."""
    graph, chip = rl.model("llama-3-8b", phase="decode"), rl.chip("h100-sxm")
    batches, contexts = np.arange(1, 1025), np.arange(128, 128 * 65, 128)
    points = batches.size * contexts.size

    def sweep() -> Any:
        est = rl.estimate(graph, chip, B=batches, C=contexts, mode="graph")
        assert est.time.shape == est.bound.shape == est.memory.total.shape == (1024, 64)
        return est

    start = time.process_time()
    rows = sweep().counts.rows
    first = time.process_time() - start
    peak, bandwidth = chip.matmul_peak("bf16"), chip.bandwidth
    full = [
        (row.kernel.count, *(np.broadcast_to(np.asarray(n, float), (1024, 64)).copy() for n in (row.flops, row.bytes)))
        for row in rows
    ]

    def by_hand() -> Any:
        return sum(count * np.maximum(flops / peak, moved / bandwidth) for count, flops, moved in full)

    ours, naive = seconds(sweep), seconds(by_hand)
    print(f"{points} configurations: {ours[0] * 1e3:.1f} ms ({ours[RUNS // 2] * 1e3:.1f} median), "
          f"{points / ours[0] / 1e6:.1f} million configurations a second")  # fmt: skip
    print(f"the textbook's roofline by hand, {len(full)} kernels: {naive[0] * 1e3:.1f} ms; "
          f"ours takes {ours[0] / naive[0]:.2f} of that")  # fmt: skip
    print(f"first run, kernels not yet counted: {first * 1e3:.1f} ms")
    print(f"peak memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MiB")


if __name__ == "__main__":
    main()
