"""Measure Llama-3-8B on an NVIDIA GPU: prefill in eager mode, decode as a CUDA graph, and what graphs add to kernels.

    python benchmarks/silicon/measure_llama.py OUT.csv

The model is a plain PyTorch program: RMSNorm, one fused qkv linear, rotary embedding in plain operators,
scaled_dot_product_attention, a fused gate-up linear. ``wall_us`` is the median of a full queue.
"""

from __future__ import annotations

import csv
import sys
import time
from functools import partial

import torch
import torch.nn.functional as F

LAYERS, HIDDEN, HEADS, KV, DIM, FFN, VOCAB = 32, 4096, 32, 8, 128, 14336, 128256


def weight(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02


class Llama:
    """Random weights and the two programs."""

    def __init__(self) -> None:
        self.embed, self.head, self.norm = weight(VOCAB, HIDDEN), weight(VOCAB, HIDDEN), weight(HIDDEN)
        self.layers = [
            (weight(HIDDEN), weight((HEADS + 2 * KV) * DIM, HIDDEN), weight(HIDDEN, HEADS * DIM), weight(HIDDEN),
             weight(2 * FFN, HIDDEN), weight(HIDDEN, FFN))
            for _ in range(LAYERS)
        ]  # fmt: skip

    @staticmethod
    def rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x1, x2 = x.chunk(2, -1)
        return x * cos + torch.cat((-x2, x1), -1) * sin

    def run(
        self, tokens: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, cache: list | None, at: torch.Tensor
    ) -> torch.Tensor:
        batch, seq = tokens.shape
        x = F.embedding(tokens, self.embed)
        for i, (n1, qkv, out, n2, up, down) in enumerate(self.layers):
            h = F.linear(F.rms_norm(x, (HIDDEN,), n1), qkv)
            q, k, v = h.split([HEADS * DIM, KV * DIM, KV * DIM], -1)
            q, k, v = (t.view(batch, seq, -1, DIM).transpose(1, 2) for t in (q, k, v))
            q, k = self.rope(q, cos, sin), self.rope(k, cos, sin)
            if cache is not None:
                k, v = cache[i][0].index_copy_(2, at, k), cache[i][1].index_copy_(2, at, v)
            a = F.scaled_dot_product_attention(q, k, v, is_causal=seq > 1, enable_gqa=True)
            x = x + F.linear(a.transpose(1, 2).reshape(batch, seq, -1), out)
            g, u = F.linear(F.rms_norm(x, (HIDDEN,), n2), up).chunk(2, -1)
            x = x + F.linear(F.silu(g) * u, down)
        return F.linear(F.rms_norm(x[:, -1], (HIDDEN,), self.norm), self.head)


def timed(run: object, seconds: float = 1.0) -> float:
    """Microseconds of one run in a full queue: median over blocks."""
    run()
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    each = time.perf_counter() - start
    block = max(1, int(seconds / 7 / each))
    found = []
    for _ in range(7):
        start = time.perf_counter()
        for _ in range(block):
            run()
        torch.cuda.synchronize()
        found.append((time.perf_counter() - start) / block)
    return sorted(found)[3] * 1e6


def kernel_sum(run: object) -> tuple[float, int]:
    """Summed kernel microseconds and kernels of one run."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        run()
        torch.cuda.synchronize()
    events = [e for e in trace.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return sum(e.time_range.elapsed_us() for e in events), len(events)


def graphed(run: object) -> torch.cuda.CUDAGraph:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph


@torch.inference_mode()
def main() -> None:
    model, rows = Llama(), []
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)

    def record(phase: str, mode: str, batch: int, context: int, run: object) -> None:
        base = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        wall = timed(run)
        peak = torch.cuda.max_memory_allocated() - base
        busy, launches = kernel_sum(run)
        rows.append({"model": "llama-3-8b", "phase": phase, "mode": mode, "dtype": "bf16", "batch": batch,
                     "seq": context if phase == "prefill" else 1, "context": context, "wall_us": round(wall, 1),
                     "kernel_sum_us": round(busy, 1), "kernels": launches, "activation_bytes": peak})  # fmt: skip
        print(rows[-1], flush=True)

    for batch, seq in ((1, 128), (1, 512), (1, 2048), (4, 2048), (1, 8192)):
        cos, sin = weight(seq, DIM), weight(seq, DIM)
        tokens = torch.randint(VOCAB, (batch, seq), device="cuda")
        record("prefill", "eager", batch, seq, lambda t=tokens, c=cos, s=sin: model.run(t, c, s, None, None))
    for context in (2048, 8192):
        for batch in (1, 2, 4, 8, 16, 32, 64, 128):
            if batch * context > 128 * 2048:
                continue
            cache = [(weight(batch, KV, context, DIM), weight(batch, KV, context, DIM)) for _ in range(LAYERS)]
            tokens = torch.randint(VOCAB, (batch, 1), device="cuda")
            at, cos, sin = torch.tensor([context - 1], device="cuda"), weight(1, DIM), weight(1, DIM)
            graph = graphed(partial(model.run, tokens, cos, sin, cache, at))
            record("decode", "cudagraph", batch, context, graph.replay)
            graph, cache = None, []
            torch.cuda.empty_cache()
    with open(sys.argv[1], "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
