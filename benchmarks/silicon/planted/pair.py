"""Programs on two GPUs with a known cause: what collectives cost when nothing hides them, and when something does.

Run by two processes over NCCL; times and traces are those of the first.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from common import Run, gemm, planted, rand


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
