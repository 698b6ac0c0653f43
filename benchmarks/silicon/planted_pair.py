"""Programs on two GPUs with a known cause: what collectives cost when nothing hides them, and when something does.

    python benchmarks/silicon/planted_pair.py OUT_FOLDER

As planted.py, run by two processes over NCCL; times and traces are those of the first.
"""

from __future__ import annotations

import csv
import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from planted import PROGRAMS, Run, gemm, planted, rand, steady, synced, trace

PROGRAMS.clear()


def reduce(elements: int, **more: int) -> dict[str, object]:
    """An entry of work."""
    return {"op": "all_reduce", "devices": 2, "elements": elements, **more}


@planted("ok", work=[gemm(8192, 8192, 8192), reduce(2**24)])
def all_reduce_behind_matmul() -> Run:
    a, b, gradient = rand(8192, 8192), rand(8192, 8192), rand(2**24)

    def run() -> object:
        waiting = dist.all_reduce(gradient, async_op=True)
        out = a @ b
        waiting.wait()
        return out

    return run


@planted("ok", op="all_reduce", devices=2, elements=2**27)
def one_large_all_reduce() -> Run:
    x = rand(2**27)
    return lambda: dist.all_reduce(x)


@planted("communication", work=[gemm(2048, 8192, 8192, count=4)])
def partial_sums_reduced_after_each_layer() -> Run:
    a, w = rand(2048, 8192), rand(8192, 8192)

    def run() -> object:
        for _ in range(4):
            out = a @ w
            for _ in range(4):
                dist.all_reduce(out)
        return out

    return run


@planted("communication", op="all_reduce", devices=2, elements=2**24)
def gradients_reduced_one_by_one() -> Run:
    gradients = rand(2**24).split(2**24 // 512)
    return lambda: [dist.all_reduce(gradient) for gradient in gradients]


@planted("communication", work=[gemm(4096, 4096, 4096)])
def weights_gathered_in_fp32() -> Run:
    shard, x = rand(2048, 4096, dtype=torch.float32), rand(4096, 4096)
    whole = torch.empty(4096, 4096, device="cuda")

    def run() -> object:
        for _ in range(6):
            dist.all_gather_into_tensor(whole, shard)
        return x @ whole.to(torch.bfloat16)

    return run


def work(rank: int, folder: str) -> None:
    """Measure all programs; only the first process writes."""
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    out, rows = Path(folder), []
    for name, program in PROGRAMS.items():
        run = program.make()
        for _ in range(4):
            run()
        times = steady(run, fixed=20), synced(run)
        target = out / "traces" / f"{name}.json.gz" if rank == 0 else Path("/dev/shm") / f"{name}.json.gz"
        trace(run, target)
        rows.append([name, program.label, json.dumps(program.work), program.dtype, *(f"{t:.1f}" for t in times)])
        if rank == 0:
            print(f"{name}: {program.label} {times[0]:.1f} us", flush=True)
    if rank == 0:
        with open(out / "planted.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(["case", "label", "work", "dtype", "wall_us", "synced_us"])
            writer.writerows(rows)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    (Path(sys.argv[1]) / "traces").mkdir(parents=True, exist_ok=True)
    mp.spawn(work, args=(sys.argv[1],), nprocs=2)
