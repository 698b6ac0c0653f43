"""Record the traces of a block before and after a change, and of two ranks, that lie in ``examples``.

``python scripts/record_examples.py FOLDER`` on a machine with two NVIDIA GPUs. Those in ``examples`` are from two H200s
with PyTorch 2.11 and NCCL 2.28.9.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import distributed, multiprocessing, nn
from torch.profiler import ProfilerActivity, profile, schedule

ON_DEVICE: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}


def record(step: Callable[[], None], path: str) -> None:
    """Record two steps."""
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    with profile(
        activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA],
        record_shapes=True,
        profile_memory=True,
        schedule=schedule(wait=0, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda done: done.export_chrome_trace(path),
    ) as profiler:
        for _ in range(3):
            step()
            torch.cuda.synchronize()
            profiler.step()


def block(changed: bool) -> Callable[[], None]:
    """Return a block with its scores written out and its input on the host, or with flash attention on the device."""
    sizes = (1024, 3072), (1024, 1024), (1024, 4096), (4096, 1024)
    qkv, out, up, down = (nn.Linear(m, n, **ON_DEVICE) for m, n in sizes)
    norm = nn.LayerNorm(1024, **ON_DEVICE)
    on_host = torch.randn(8, 1024, 1024).bfloat16()
    there = on_host.cuda()

    def step() -> None:
        x = there if changed else on_host.cuda()
        q, k, v = (part.view(8, 1024, 16, 64).transpose(1, 2) for part in qkv(norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v) if changed else ((q @ k.mT) * 0.125).softmax(-1) @ v
        x = x + out(mixed.transpose(1, 2).flatten(2))
        x = x + down(F.gelu(up(x)))
        if not changed:
            x.sum().item()

    return step


def rank(number: int, world: int, folder: str) -> None:
    """Train three layers on this rank; rank 1 has half as many rows again."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.cuda.set_device(number)
    distributed.init_process_group("nccl", rank=number, world_size=world)
    group = distributed.new_group(list(range(world)))
    weights = [(torch.randn(4096, 4096, **ON_DEVICE) / 64).requires_grad_() for _ in range(3)]
    x = torch.randn(4096 + 2048 * number, 4096, **ON_DEVICE)

    def step() -> None:
        y = x
        for weight in weights:
            y = F.gelu(y @ weight)
        y.sum().backward()
        reducing = [distributed.all_reduce(weight.grad, async_op=True) for weight in weights]
        meanwhile = x[:4096] @ weights[0].detach()
        for one in reducing:
            one.wait()
        distributed.all_gather_into_tensor(torch.empty(4096 * world, 4096, **ON_DEVICE), meanwhile, group=group)
        for weight in weights:
            weight.grad = None

    record(step, f"{folder}/rank{number}.json")
    distributed.destroy_process_group()


if __name__ == "__main__":
    with torch.no_grad():
        record(block(False), f"{sys.argv[1]}/block_before.json")
        record(block(True), f"{sys.argv[1]}/block_after.json")
    multiprocessing.spawn(rank, (2, sys.argv[1]), nprocs=2)
