"""Measure quantised products on an NVIDIA GPU: weight-only kernels, 8-bit products, what they cost around them.

    python benchmarks/silicon/quantized.py OUT_FOLDER [--seconds 330]

``quantized.csv``: one operator a row, summed kernel duration with a cold cache (as ``measure_ops.py`` does it).
``quantized_decode.csv``: one decode step of eight layers of Llama-3-8B as a CUDA graph, by format.

| op | kernel | runs |
|---|---|---|
| gemm | torch | ``F.linear`` in bf16, the line to beat |
| gemm | tinygemm | ``torch._weight_int4pack_mm``: bf16 activations, int4 weights with a scale and a zero a group |
| gemm | int8pack | ``torch._weight_int8pack_mm``: bf16 activations, int8 weights with a scale a row |
| gemm | scaled_mm | ``torch._scaled_mm``: both operands fp8, one scale a tensor, or one a row |
| gemm | int_mm | ``torch._int_mm``: both operands int8 |
| gemm | compiled | ``F.linear(x, w.to(bf16)) * scale`` under ``torch.compile`` |
| dequantize | eager, compiled | narrow weights to bf16 in memory |
| quantize_rows | eager, compiled | activations to 8 bits with a scale a row |
| quantize_static | compiled | activations to 8 bits with a scale known before |
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from measure_llama import graphed, kernel_sum, timed
from measure_ops import kernels_of

ROWS = (1, 4, 16, 64, 256, 2048)
#: K and N of Llama-3-8B: qkv, output, gate and up, down, head.
MATRICES = ((4096, 6144), (4096, 4096), (4096, 28672), (14336, 4096), (4096, 128256))
BF16, FP8, INT8 = torch.bfloat16, torch.float8_e4m3fn, torch.int8
LARGEST = {FP8: 448.0, INT8: 127.0}
Run = Callable[[], object]
Case = tuple[dict[str, object], Callable[[], Run]]


def rand(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=BF16)


def ints(*shape: int) -> torch.Tensor:
    return torch.randint(-127, 127, shape, device="cuda", dtype=INT8)


def fp8(*shape: int) -> torch.Tensor:
    return rand(*shape).to(FP8)


# --- products ---------------------------------------------------------------------------------------------------------


def packed(n: int, k: int, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """int4 weights as tinygemm wants them, and scales and zeros."""
    raw = torch.randint(0, 255, (n, k // 2), device="cuda", dtype=torch.uint8)
    return torch._convert_weight_to_int4pack(raw, 8), rand(k // group, n, 2)


def plain(m: int, k: int, n: int) -> Run:
    x, w = rand(m, k), rand(n, k)
    return lambda: F.linear(x, w)


def tinygemm(m: int, k: int, n: int, group: int) -> Run:
    x, (w, scales) = rand(m, k), packed(n, k, group)
    return lambda: torch._weight_int4pack_mm(x, w, group, scales)


def int8pack(m: int, k: int, n: int) -> Run:
    x, w, scale = rand(m, k), ints(n, k), rand(n)
    return lambda: torch._weight_int8pack_mm(x, w, scale)


def scaled(m: int, k: int, n: int, by_row: bool) -> Run:
    a, b = fp8(m, k), fp8(n, k).t()
    one = torch.ones((), device="cuda")
    scales = (torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")) if by_row else (one, one)
    return lambda: torch._scaled_mm(a, b, *scales, out_dtype=BF16, use_fast_accum=by_row)


def int_mm(m: int, k: int, n: int) -> Run:
    a, b = ints(m, k), ints(n, k).t()
    return lambda: torch._int_mm(a, b)


def widened_linear(x: torch.Tensor, w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return F.linear(x, w.to(x.dtype)) * scale


def compiled_linear(m: int, k: int, n: int, stored: torch.dtype) -> Run:
    x, w, scale = rand(m, k), fp8(n, k) if stored is FP8 else ints(n, k), rand(n)
    run = torch.compile(widened_linear, dynamic=False)
    return lambda: run(x, w, scale)


# --- around products --------------------------------------------------------------------------------------------------


def widen(w: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return w.to(BF16) * scale


def unpack(w: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> torch.Tensor:
    """Two 4-bit numbers a byte, a scale and a zero a group of 128."""
    n, half = w.shape
    both = torch.stack((w & 15, w >> 4), -1).view(n, half * 2 // 128, 128)
    return ((both.to(BF16) - zero) * scale).view(n, half * 2)


def dequantize(k: int, n: int, stored: str, how: str) -> Run:
    if stored == "int4-g128":
        w = torch.randint(0, 255, (n, k // 2), device="cuda", dtype=torch.uint8)
        operands = (w, rand(n, k // 128, 1), rand(n, k // 128, 1))
        function: Callable[..., torch.Tensor] = unpack
    else:
        operands = (fp8(n, k) if stored == "fp8" else ints(n, k), rand(n, 1))
        function = widen
    run = torch.compile(function, dynamic=False) if how == "compiled" else function
    return lambda: run(*operands)


def by_rows_fp8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float() / LARGEST[FP8]
    return (x / scale).clamp(-LARGEST[FP8], LARGEST[FP8]).to(FP8), scale


def by_rows_int8(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(-1, keepdim=True).float() / LARGEST[INT8]
    return (x / scale).round().clamp(-LARGEST[INT8], LARGEST[INT8]).to(INT8), scale


def by_constant(x: torch.Tensor) -> torch.Tensor:
    return (x * 3.5).clamp(-LARGEST[FP8], LARGEST[FP8]).to(FP8)


QUANTISERS = {"fp8": by_rows_fp8, "int8": by_rows_int8}


def quantize(m: int, k: int, function: Callable, how: str) -> Run:
    x = rand(m, k)
    run = torch.compile(function, dynamic=False) if how == "compiled" else function
    return lambda: run(x)


def case(op: str, kernel: str, weights: str, compute: str, shape: dict, build: Callable[[], Run]) -> Case:
    keys = {"op": op, "kernel": kernel, "weights": weights, "compute": compute, "shape": json.dumps(shape)}
    return keys, build


def products() -> Iterator[Case]:
    """Every product that needs no compiler, by rows of activations."""
    for k, n in MATRICES:
        for m in ROWS:
            at = {"m": m, "n": n, "k": k}
            yield case("gemm", "torch", "bf16", "bf16", at, lambda m=m, k=k, n=n: plain(m, k, n))
            groups = (32, 64, 128, 256) if n == 28672 or (k == 14336 and m in (1, 64)) else (128,)
            for group in groups:
                name = f"int4-g{group}"
                yield case("gemm", "tinygemm", name, "bf16", at, lambda m=m, k=k, n=n, g=group: tinygemm(m, k, n, g))
            yield case("gemm", "int8pack", "int8", "bf16", at, lambda m=m, k=k, n=n: int8pack(m, k, n))
            for by_row in (False, True):
                name = "scaled_mm_row" if by_row else "scaled_mm"
                yield case("gemm", name, "fp8", "fp8", at, lambda m=m, k=k, n=n, r=by_row: scaled(m, k, n, r))
            if m > 16:
                yield case("gemm", "int_mm", "int8", "int8", at, lambda m=m, k=k, n=n: int_mm(m, k, n))


def around() -> Iterator[Case]:
    """Dequantisation in memory, and quantisation of activations."""
    for how in ("eager", "compiled"):
        for k, n in MATRICES:
            for stored in ("int8", "fp8", "int4-g128"):
                at = {"n": n, "k": k}
                yield case(
                    "dequantize", how, stored, "bf16", at, lambda k=k, n=n, s=stored, h=how: dequantize(k, n, s, h)
                )
        for k in (4096, 14336):
            for m in ROWS:
                for name, function in QUANTISERS.items():
                    at = {"rows": m, "cols": k}
                    yield case(
                        "quantize_rows", how, name, name, at, lambda m=m, k=k, f=function, h=how: quantize(m, k, f, h)
                    )
    for m in ROWS:
        at = {"rows": m, "cols": 4096}
        yield case(
            "quantize_static", "compiled", "fp8", "fp8", at, lambda m=m: quantize(m, 4096, by_constant, "compiled")
        )


def compiled_products() -> Iterator[Case]:
    """What a compiler makes of 8-bit weights: one fused kernel for a single row, two kernels for more."""
    for k, n in MATRICES:
        for name, stored in (("int8", INT8), ("fp8", FP8)):
            for m in (1, 16):
                at = {"m": m, "n": n, "k": k}
                yield case(
                    "gemm", "compiled", name, "bf16", at, lambda m=m, k=k, n=n, s=stored: compiled_linear(m, k, n, s)
                )


def measure(keys: dict[str, object], build: Callable[[], Run], flush: torch.Tensor) -> dict[str, object]:
    launches = kernels_of(build(), flush, True)
    sums = sorted(sum(us for _, us in launch) for launch in launches)
    middle = sums[len(sums) // 2]
    return {
        **keys, "kernel_us": round(middle, 3), "n_kernels": len(launches[-1]),
        "spread": round((sums[-2] - sums[1]) / middle, 3), "kernels": "|".join(name[:60] for name, _ in launches[-1]),
    }  # fmt: skip


# --- one decode step ------------------------------------------------------------------------------------------------

LAYERS, HIDDEN, HEADS, KV, DIM, FFN = 8, 4096, 32, 8, 128, 14336
CONTEXT = 2048
LINEAR = (((HEADS + 2 * KV) * DIM, HIDDEN), (HIDDEN, HEADS * DIM), (2 * FFN, HIDDEN), (HIDDEN, FFN))
Linear = Callable[[torch.Tensor], torch.Tensor]


def linear_of(kind: str, n: int, k: int) -> Linear:
    """A linear layer with weights of a kind."""
    if kind == "bf16":
        w = rand(n, k) * 0.02
        return lambda x: F.linear(x, w)
    if kind == "int4-g128":
        w4, scales = packed(n, k, 128)
        return lambda x: torch._weight_int4pack_mm(x, w4, 128, scales)
    if kind == "int8":
        w8, scale = ints(n, k), rand(n) * 1e-3
        return lambda x: widened_linear(x, w8, scale)
    w, by_column = fp8(n, k).t(), torch.ones(1, n, device="cuda")

    def scaled_linear(x: torch.Tensor) -> torch.Tensor:
        rows, scale = by_rows_fp8(x)
        return torch._scaled_mm(rows, w, scale, by_column, out_dtype=BF16, use_fast_accum=True)

    return scaled_linear


class Layers:
    """Eight layers without embedding and head, in the words of ``measure_llama.py``."""

    def __init__(self, kind: str, batch: int) -> None:
        self.norms = [(rand(HIDDEN), rand(HIDDEN)) for _ in range(LAYERS)]
        self.linears = [tuple(linear_of(kind, n, k) for n, k in LINEAR) for _ in range(LAYERS)]
        self.cache = [(rand(batch, KV, CONTEXT, DIM), rand(batch, KV, CONTEXT, DIM)) for _ in range(LAYERS)]
        self.cos, self.sin, self.at = rand(1, DIM), rand(1, DIM), torch.tensor([CONTEXT - 1], device="cuda")

    def rope(self, x: torch.Tensor) -> torch.Tensor:
        x1, x2 = x.chunk(2, -1)
        return x * self.cos + torch.cat((-x2, x1), -1) * self.sin

    def step(self, x: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0]
        for (n1, n2), (qkv, out, up, down), (keys, values) in zip(self.norms, self.linears, self.cache, strict=True):
            h = qkv(F.rms_norm(x, (HIDDEN,), n1))
            q, k, v = h.split([HEADS * DIM, KV * DIM, KV * DIM], -1)
            q, k, v = (t.view(batch, 1, -1, DIM).transpose(1, 2) for t in (q, k, v))
            q, k = self.rope(q), self.rope(k)
            keys.index_copy_(2, self.at, k)
            values.index_copy_(2, self.at, v)
            a = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
            x = x + out(a.transpose(1, 2).reshape(batch, -1))
            g, u = up(F.rms_norm(x, (HIDDEN,), n2)).chunk(2, -1)
            x = x + down(F.silu(g) * u)
        return x


def decode_steps(end: float) -> Iterator[dict[str, object]]:
    """Eager kernels first, compiled ones as time allows."""
    eager = [("eager", kind, batch) for kind in ("bf16", "int4-g128", "fp8") for batch in (1, 16, 64)]
    compiled = [("compiled", kind, 1) for kind in ("bf16", "int4-g128", "int8", "fp8")]
    for how, kind, batch in [*eager, *compiled]:
        if time.time() > end:
            print("out of time before", how, kind, batch)
            return
        try:
            layers, x = Layers(kind, batch), rand(batch, HIDDEN)
            step = torch.compile(layers.step, dynamic=False) if how == "compiled" else layers.step
            graph = graphed(lambda step=step, x=x: step(x))
            busy, launches = kernel_sum(graph.replay)
            row = {
                "mode": how, "weights": kind, "layers": LAYERS, "batch": batch, "context": CONTEXT,
                "wall_us": round(timed(graph.replay, 0.7), 1), "kernel_sum_us": round(busy, 1), "kernels": launches,
            }  # fmt: skip
            print(row, flush=True)
            yield row
        except Exception as error:
            print("failed", how, kind, batch, str(error)[:200], flush=True)
        layers = graph = step = None
        torch.cuda.empty_cache()
        torch._dynamo.reset()


def write(path: Path, rows: list[dict[str, object]]) -> None:
    """Write what there is, so that a cut-off run leaves its rows."""
    if rows:
        with open(path, "w", newline="") as file:
            writer = csv.DictWriter(file, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--seconds", type=float, default=330)
    args = parser.parse_args()
    folder, end = Path(args.folder), time.time() + args.seconds
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    flush = torch.zeros(64 * 2**20, dtype=torch.int32, device="cuda")
    done: list[dict[str, object]] = []

    def take(cases: Iterator[Case], until: float) -> None:
        for keys, build in cases:
            if time.time() > until:
                print("out of time at", keys)
                break
            try:
                done.append(measure(keys, build, flush))
            except Exception as error:
                print("failed", *keys.values(), str(error)[:160].replace("\n", " "), flush=True)
            torch._dynamo.reset()
        write(folder / "quantized.csv", done)
        print(len(done), "rows at", round(end - time.time()), "s left", flush=True)

    take(products(), end - 0.45 * args.seconds)
    steps: list[dict[str, object]] = []
    for row in decode_steps(end - 0.25 * args.seconds):
        steps.append(row)
        write(folder / "quantized_decode.csv", steps)
    take(around(), end - 0.1 * args.seconds)
    take(compiled_products(), end)


if __name__ == "__main__":
    main()
