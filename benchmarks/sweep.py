"""Configurations a second: Llama-3-8B decode over 1,024 batches x 64 contexts on one chip, one core.

python benchmarks/sweep.py
"""

from __future__ import annotations

import resource
import time

import numpy as np

import roofline as rl


def main() -> None:
    """Time the sweep five times and print the median, the first run (nothing cached) and the peak memory."""
    graph = rl.model("llama-3-8b", phase="decode")
    batches, contexts = np.arange(1, 1025), np.arange(128, 128 * 65, 128)
    seconds = []
    for _ in range(6):
        start = time.perf_counter()
        est = rl.estimate(graph, "h100-sxm", B=batches, C=contexts, mode="graph")
        assert est.time.shape == est.bound.shape == est.memory.total.shape == (1024, 64)
        seconds.append(time.perf_counter() - start)
    median = float(np.median(seconds[1:]))
    points = batches.size * contexts.size
    print(f"{points} configurations: {median * 1e3:.1f} ms, {points / median:,.0f} configurations a second")
    print(f"first run, kernels not yet counted: {seconds[0] * 1e3:.1f} ms")
    print(f"peak memory of the process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MiB")


if __name__ == "__main__":
    main()
