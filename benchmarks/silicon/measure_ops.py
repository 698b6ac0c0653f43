"""Measure operators on an NVIDIA GPU: summed kernel duration as the device's tracer reports it.

    python benchmarks/silicon/measure_ops.py ROWS.csv OUT.csv [--regime cold|warm] [--seconds 400]

ROWS.csv has the columns ``op, dtype, shape`` in the words of ``measurements/README.md``. ``cold``: 256 MiB are
overwritten before each launch, so that nothing is left in the cache. ``warm``: the launches follow each other. Each row
is launched seven times after two warm-ups; ``kernel_us`` is the median over launches of the summed kernel durations.
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F

LAUNCHES = 7
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "tf32": torch.float32}
MARK = "bitwise_not"


def rand(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=torch.float32 if dtype.itemsize == 1 else dtype)


def gemm(s: dict, dtype: str) -> Callable[[], object]:
    m, n, k = s["m"], s["n"], s["k"]
    if dtype == "fp8":
        a, b = rand(m, k).to(torch.float8_e4m3fn), rand(n, k).to(torch.float8_e4m3fn).t()
        one = torch.ones((), device="cuda")
        return lambda: torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16)
    if dtype == "int8":
        a = torch.randint(-128, 127, (m, k), device="cuda", dtype=torch.int8)
        b = torch.randint(-128, 127, (n, k), device="cuda", dtype=torch.int8).t()
        return lambda: torch._int_mm(a, b)
    kind = DTYPES[dtype]
    a = rand(m, k, dtype=kind)
    b = rand(n, k, dtype=kind).t() if dtype in ("bf16", "fp16") else rand(k, n, dtype=kind)
    return lambda: torch.mm(a, b)


def bmm(s: dict, dtype: str) -> Callable[[], object]:
    a, b = rand(s["b"], s["m"], s["k"], dtype=DTYPES[dtype]), rand(s["b"], s["k"], s["n"], dtype=DTYPES[dtype])
    return lambda: torch.bmm(a, b)


def flat(function: Callable, inputs: int = 1) -> Callable:
    def build(s: dict, dtype: str) -> Callable[[], object]:
        xs = [rand(s["n"], dtype=DTYPES[dtype]) for _ in range(inputs)]
        return lambda: function(*xs)

    return build


def rows(function: Callable) -> Callable:
    def build(s: dict, dtype: str) -> Callable[[], object]:
        x = rand(s["rows"], s["cols"], dtype=DTYPES[dtype])
        return lambda: function(x)

    return build


def bias_add(s: dict, dtype: str) -> Callable[[], object]:
    x, b = rand(s["rows"], s["cols"], dtype=DTYPES[dtype]), rand(s["cols"], dtype=DTYPES[dtype])
    return lambda: x + b


def qkv(s: dict, dtype: str) -> list[torch.Tensor]:
    kv = (s["batch"], s["kv_heads"], s["kv_len"], s["head_dim"])
    kind = DTYPES[dtype]
    return [
        rand(s["batch"], s["heads"], s["q_len"], s["head_dim"], dtype=kind),
        rand(*kv, dtype=kind),
        rand(*kv, dtype=kind),
    ]


def sdpa(s: dict, dtype: str) -> Callable[[], object]:
    q, k, v = qkv(s, dtype)
    gqa = s["heads"] != s["kv_heads"]
    return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=s["causal"], enable_gqa=gqa)


def naive(s: dict, dtype: str) -> Callable[[], object]:
    q, k, v = qkv(s, dtype)
    scale = s["head_dim"] ** -0.5
    mask = torch.ones(s["q_len"], s["kv_len"], device="cuda", dtype=torch.bool).triu(1)

    def run() -> object:
        scores = q @ k.transpose(-1, -2) * scale
        return torch.softmax(scores.masked_fill(mask, float("-inf")) if s["causal"] else scores, -1) @ v

    return run


def conv2d(s: dict, dtype: str) -> Callable[[], object]:
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, dtype == "tf32"
    layout = torch.channels_last if s.get("channels_last", True) else torch.contiguous_format
    x = rand(s["n"], s["c_in"], s["h"], s["w"], dtype=DTYPES[dtype]).to(memory_format=layout)
    w = rand(s["c_out"], s["c_in"] // s.get("groups", 1), s["r"], s["s"], dtype=DTYPES[dtype]).to(memory_format=layout)
    return lambda: F.conv2d(x, w, None, s["stride"], s["padding"], 1, s.get("groups", 1))


def batchnorm(s: dict, dtype: str) -> Callable[[], object]:
    x = rand(s["n"], s["c"], s["h"], s["w"], dtype=DTYPES[dtype]).to(memory_format=torch.channels_last)
    bn = torch.nn.BatchNorm2d(s["c"], device="cuda", dtype=torch.float32).eval()
    return lambda: bn(x)


def maxpool(s: dict, dtype: str) -> Callable[[], object]:
    x = rand(s["n"], s["c"], s["h"], s["w"], dtype=DTYPES[dtype]).to(memory_format=torch.channels_last)
    return lambda: F.max_pool2d(x, s["r"], s["stride"], s.get("padding", 0))


def swiglu(s: dict, dtype: str) -> Callable[[], object]:
    both = rand(s["rows"], 2 * s["cols"], dtype=DTYPES[dtype])
    g, u = both.chunk(2, -1)
    return lambda: F.silu(g) * u


def rope(s: dict, dtype: str) -> Callable[[], object]:
    x = rand(s["batch"], s["heads"], s["seq"], s["head_dim"], dtype=DTYPES[dtype])
    cos, sin = (rand(s["seq"], s["head_dim"], dtype=DTYPES[dtype]) for _ in range(2))

    def run() -> object:
        x1, x2 = x.chunk(2, -1)
        return x * cos + torch.cat((-x2, x1), -1) * sin

    return run


def gather(s: dict, dtype: str) -> Callable[[], object]:
    table, index = rand(s["table"], dtype=DTYPES[dtype]), torch.randint(s["table"], (s["n"],), device="cuda")
    return lambda: table[index]


def embedding(s: dict, dtype: str) -> Callable[[], object]:
    table, index = rand(s["vocab"], s["dim"]), torch.randint(s["vocab"], (s["tokens"],), device="cuda")
    return lambda: F.embedding(index, table)


def cat(s: dict, dtype: str) -> Callable[[], object]:
    a, b = rand(s["rows"], s["cols_a"], dtype=DTYPES[dtype]), rand(s["rows"], s["cols_b"], dtype=DTYPES[dtype])
    return lambda: torch.cat((a, b), -1)


def fill(s: dict, dtype: str) -> Callable[[], object]:
    x = rand(s["n"], dtype=DTYPES[dtype])
    return lambda: x.fill_(1.0)


OPS: dict[str, Callable] = {
    "gemm": gemm, "bmm": bmm, "add": flat(torch.add, 2), "copy": flat(torch.clone), "relu": flat(F.relu),
    "mul_scalar": flat(lambda x: x * 1.5), "gelu": flat(F.gelu), "silu": flat(F.silu), "exp": flat(torch.exp),
    "fill": fill,
    "cast_fp32": flat(lambda x: x.to(torch.bfloat16 if x.dtype == torch.float32 else torch.float32)),
    "softmax": rows(lambda x: torch.softmax(x, -1)), "layernorm": rows(lambda x: F.layer_norm(x, x.shape[-1:])),
    "rmsnorm": rows(lambda x: F.rms_norm(x, x.shape[-1:])), "sum": rows(lambda x: x.sum(-1)),
    "argmax": rows(lambda x: x.argmax(-1)), "transpose_copy": rows(lambda x: x.t().contiguous()), "bias_add": bias_add,
    "attention_sdpa": sdpa, "attention_naive": naive, "conv2d": conv2d, "batchnorm2d": batchnorm, "maxpool2d": maxpool,
    "swiglu": swiglu, "rope": rope, "gather": gather, "embedding": embedding, "cat": cat,
}  # fmt: skip


def kernels_of(run: Callable[[], object], flush: torch.Tensor, cold: bool) -> list[list[tuple[str, float]]]:
    """Kernels (name, microseconds) of each launch, told apart by the marker kernel between them."""
    mark = flush if cold else flush[:1024]
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        for _ in range(LAUNCHES):
            mark.bitwise_not_()
            run()
        torch.cuda.synchronize()
    launches: list[list[tuple[str, float]]] = []
    events = [e for e in trace.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    for event in sorted(events, key=lambda e: e.time_range.start):
        if MARK in event.name:
            launches.append([])
        elif launches:
            launches[-1].append((event.name, event.time_range.elapsed_us()))
    return [launch for launch in launches if launch]


def measure(row: dict, flush: torch.Tensor, regime: str) -> dict:
    torch.backends.cuda.matmul.allow_tf32 = row["dtype"] == "tf32"
    launches = kernels_of(OPS[row["op"]](json.loads(row["shape"]), row["dtype"]), flush, regime == "cold")
    sums = sorted(sum(us for _, us in launch) for launch in launches)
    middle = sums[len(sums) // 2]
    names = "|".join(name[:70] for name, _ in launches[-1])
    return {
        "op": row["op"], "dtype": row["dtype"], "shape": row["shape"], "kernel_us": round(middle, 3),
        "n_kernels": len(launches[-1]), "spread": round((sums[-2] - sums[1]) / middle, 3), "kernels": names,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rows")
    parser.add_argument("out")
    parser.add_argument("--regime", default="cold", choices=("cold", "warm"))
    parser.add_argument("--seconds", type=float, default=400)
    args = parser.parse_args()
    print(torch.cuda.get_device_name(), torch.__version__, flush=True)
    flush = torch.zeros(64 * 2**20, dtype=torch.int32, device="cuda")
    end, failed, done = time.time() + args.seconds, 0, []
    with open(args.rows) as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if time.time() > end:
            print("out of time")
            break
        try:
            done.append(measure(row, flush, args.regime))
        except (RuntimeError, torch.OutOfMemoryError) as error:
            failed += 1
            print("failed", row["op"], row["dtype"], row["shape"], str(error)[:100], flush=True)
        torch.cuda.empty_cache()
    with open(args.out, "w", newline="") as file:
        writer = csv.DictWriter(file, done[0].keys())
        writer.writeheader()
        writer.writerows(done)
    print(f"{len(done)} rows, {failed} failed, {args.out}")


if __name__ == "__main__":
    main()
