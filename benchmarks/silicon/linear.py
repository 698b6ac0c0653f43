"""Measure linear layers with and without a bias, cold: fp32, tf32, and bf16 whose rows are not aligned.

    python benchmarks/silicon/linear.py OUT.csv

256 MiB are overwritten before each launch; ``kernel_us`` adds up the kernels of a call, the median of three of each.
``what``: ``linear_bias`` and ``linear`` are ``torch.nn.functional.linear``, ``mm`` has its weights stored by column.
"""

from __future__ import annotations

import csv
import random
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator

import torch
from torch.profiler import ProfilerActivity, profile

SHAPES = (
    (1, 768, 768), (1, 3072, 768), (1, 768, 3072), (1, 1000, 512), (1, 4096, 4096), (2, 1024, 1024), (4, 1000, 512),
    (8, 768, 3072), (16, 512, 512), (16, 4096, 1024), (32, 1000, 2048), (32, 768, 768), (64, 512, 512), (64, 3072, 768),
    (64, 256, 1024), (128, 256, 256), (128, 512, 2048), (196, 384, 1536), (197, 768, 768), (256, 1024, 1024),
    (512, 512, 512), (784, 192, 768), (1024, 768, 768), (1024, 3072, 768), (2048, 512, 512), (3136, 384, 96),
    (4096, 64, 256), (4096, 1024, 1024), (100, 10, 784), (256, 128, 784), (64, 4096, 25088),
)  # fmt: skip
MARK = "bitwise_not"


def odd_shapes(number: int = 36) -> Iterator[tuple[int, int, int]]:
    """Shapes at random with an odd N or K."""
    random.seed(5)
    for _ in range(number):
        m, n, k = (int(2 ** random.uniform(low, high)) for low, high in ((4, 11.5), (5, 11.5), (5, 11)))
        yield (m, n, k | 1) if random.random() < 0.5 else (m, n | 1, k)


def kernels(call: Callable[[], object], flush: torch.Tensor, runs: int = 3) -> dict[str, tuple[float, float]]:
    """Launches and microseconds of a call by kernel."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(runs):
            flush.bitwise_not_()
            call()
        torch.cuda.synchronize()
    found: dict[str, list[float]] = defaultdict(list)
    for event in profiled.events():
        if event.device_type == torch.autograd.DeviceType.CUDA and MARK not in event.name:
            found[event.name].append(event.device_time)
    return {name: (len(each) / runs, sorted(each)[len(each) // 2] * len(each) / runs) for name, each in found.items()}


def calls(m: int, n: int, k: int, dtype: torch.dtype) -> dict[str, Callable[[], object]]:
    """A shape's calls by name."""
    x, w, b = (torch.randn(*shape, device="cuda", dtype=dtype) for shape in ((m, k), (n, k), (n,)))
    turned, linear = w.t().contiguous(), torch.nn.functional.linear
    return {"linear_bias": lambda: linear(x, w, b), "linear": lambda: linear(x, w), "mm": lambda: x @ turned}


def main() -> None:
    """Measure all and write one row a call."""
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    jobs = [("fp32", shape) for shape in SHAPES] + [("tf32", shape) for shape in SHAPES]
    jobs += [("bf16", shape) for shape in odd_shapes()]
    with open(sys.argv[1], "w", newline="", encoding="utf-8") as file, torch.no_grad():
        writer = csv.writer(file)
        writer.writerow(("what", "dtype", "m", "n", "k", "kernel_us", "n_kernels", "kernels"))
        for dtype, shape in jobs:
            torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
            for name, call in calls(*shape, torch.bfloat16 if dtype == "bf16" else torch.float32).items():
                found = sorted(kernels(call, flush).items(), key=lambda each: -each[1][1])
                total, launches = (sum(each[at] for _, each in found) for at in (1, 0))
                names = "|".join(kernel[:70] for kernel, _ in found)
                writer.writerow((name, dtype, *shape, f"{total:.2f}", f"{launches:.0f}", names))


if __name__ == "__main__":
    main()
