"""All-reduces inside a CUDA graph: NCCL's, and PyTorch's kernels that read from their peers.

    torchrun --standalone --nproc_per_node=2 benchmarks/silicon/collectives.py > collectives.csv

``alone_us`` is one of 64 in a row; ``between_us`` what one adds to each of 64 matmuls of a decode step. NCCL's start
is long and hidden behind the kernel before, so that it adds less than half of what it takes in a row.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from statistics import median

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

CALLS, REPEATS, REPLAYS = 64, 9, 3
ELEMENTS = (512, 2048, 8192, 32768, 131072, 524288, 2097152)


def timed(run: Callable[[], object]) -> float:
    """Microseconds of one of many calls in a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            run()
    times = []
    for _ in range(REPEATS):
        dist.barrier()
        torch.cuda.synchronize()
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        graph.replay()
        start.record()
        for _ in range(REPLAYS):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) / REPLAYS / CALLS * 1e3)
    return median(times)


def main() -> None:
    """Print a row for each algorithm and size."""
    rank, devices = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    group = dist.group.WORLD.group_name
    weight = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(1, 4096, device="cuda", dtype=torch.bfloat16)
    base = timed(lambda: torch.mm(x, weight))
    if rank == 0:
        print("algorithm,devices,bytes,alone_us,between_us", flush=True)
    for elements in ELEMENTS:
        shared = symmetric.empty(elements, dtype=torch.bfloat16, device="cuda").fill_(0)
        symmetric.rendezvous(shared, group)
        own = torch.zeros(elements, dtype=torch.bfloat16, device="cuda")
        calls: dict[str, Callable[[], object]] = {
            "nccl": lambda own=own: dist.all_reduce(own),
            "one_shot": lambda shared=shared: torch.ops.symm_mem.one_shot_all_reduce(shared, "sum", group),
            "two_shot": lambda shared=shared: torch.ops.symm_mem.two_shot_all_reduce_(shared, "sum", group),
        }
        for name, call in calls.items():
            alone, both = timed(call), timed(lambda call=call: (torch.mm(x, weight), call()))
            if rank == 0:
                print(f"{name},{devices},{2 * elements},{alone:.2f},{both - base:.2f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
