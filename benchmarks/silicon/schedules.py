"""Time schedules of a blocked matmul on an NVIDIA GPU, and read the counters of kernels.

    python benchmarks/silicon/schedules.py times OUT.csv LIBRARY.csv [--seconds 240]
    python benchmarks/silicon/schedules.py traffic OUT.csv [--seconds 240]

``times``: every schedule of ``space`` on the shapes of ``SHAPES``, the kernel of Triton's matmul tutorial
(https://triton-lang.org/main/getting-started/tutorials/03-matrix-multiplication.html) in bf16 with sums in fp32, both
operands stored by row, L2 written over before each launch; median and the 20th and 80th percentile of nine launches
between two events. ``traffic``: ``cases`` under Nsight Compute with the clocks left alone, which flushes the caches
before each replay. The columns are those of ``measurements/h100-sxm/onchip``. Needs PyTorch, Triton and ncu.
"""

from __future__ import annotations

import argparse
import csv
import io
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import measure_ops
import torch
import triton
import triton.language as tl

#: Shared memory that a block may take [byte].
SHARED = 232448
#: m, n, k; the last three were measured on an H100 too.
SHAPES = (
    (3072, 3072, 3072), (8192, 1024, 2048), (512, 512, 4096), (128, 16384, 4096), (20480, 640, 2560),
    (6000, 1111, 1500), (2048, 2048, 2048), (1000, 1000, 1000), (64, 4096, 4096), (1536, 8960, 1536),
    (384, 384, 8192), (8192, 8192, 1024), (4096, 1024, 4096), (32, 11008, 4096), (32768, 256, 512), (5000, 3000, 800),
    (1024, 1024, 1024), (512, 4096, 4096), (4096, 4096, 4096),
)  # fmt: skip
#: Shapes on which schedules outside the first space are timed too.
WIDER = ((3072, 3072, 3072), (512, 512, 4096), (128, 16384, 4096), (8192, 1024, 2048))
TILES = (
    (16, 128, 4), (16, 256, 4), (32, 64, 4), (32, 128, 4), (32, 256, 4), (32, 256, 8), (64, 32, 4), (64, 64, 4),
    (64, 128, 4), (64, 128, 8), (64, 256, 4), (64, 256, 8), (128, 32, 4), (128, 64, 4), (128, 64, 8), (128, 128, 4),
    (128, 128, 8), (128, 256, 8), (256, 32, 4), (256, 32, 8), (256, 64, 4), (256, 64, 8), (256, 128, 8),
)  # fmt: skip
MORE_TILES = (
    (16, 32, 4),
    (16, 64, 4),
    (32, 32, 4),
    (64, 16, 4),
    (128, 16, 4),
    (64, 64, 8),
    (32, 64, 2),
    (128, 128, 16),
)

Config = tuple[int, int, int, int, int, int]


@triton.jit
def mm(
    A,
    B,
    C,
    M,
    N,
    K,
    sam,
    sak,
    sbk,
    sbn,
    scm,
    scn,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    G: tl.constexpr,
):
    pid = tl.program_id(0)
    rows, columns = tl.cdiv(M, BM), tl.cdiv(N, BN)
    width = G * columns
    first = pid // width * G
    size = min(rows - first, G)
    pm = first + ((pid % width) % size)
    pn = (pid % width) // size
    om = (pm * BM + tl.arange(0, BM)) % M
    on = (pn * BN + tl.arange(0, BN)) % N
    ok = tl.arange(0, BK)
    a = A + om[:, None] * sam + ok[None, :] * sak
    b = B + ok[:, None] * sbk + on[None, :] * sbn
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        x = tl.load(a, mask=ok[None, :] < K - k * BK, other=0.0)
        y = tl.load(b, mask=ok[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(x, y, acc)
        a += BK * sak
        b += BK * sbk
    cm = pm * BM + tl.arange(0, BM)
    cn = pn * BN + tl.arange(0, BN)
    c = C + scm * cm[:, None] + scn * cn[None, :]
    tl.store(c, acc.to(tl.bfloat16), mask=(cm[:, None] < M) & (cn[None, :] < N))


@triton.jit
def marker(X):
    tl.store(X, 1)


def shared(config: Config) -> int:
    bm, bn, bk, _, _, stages = config
    return (stages if bm >= 64 else stages - 1) * (bm + bn) * bk * 2


def space(wider: bool = False) -> list[Config]:
    first = itertools.product(TILES, (32, 64, 128), (1, 8), (2, 3, 4))
    more = itertools.chain(
        itertools.product(MORE_TILES, (64, 128, 256), (1, 8), (2, 4)),
        itertools.product(TILES[7:], (64,), (4, 16), (3,)),
        itertools.product(TILES[:8], (64,), (8,), (5, 6)),
    )
    configs = [(bm, bn, bk, g, w, s) for (bm, bn, w), bk, g, s in (itertools.chain(first, more) if wider else first)]
    return [config for config in configs if shared(config) <= SHARED]


def launch(config: Config, a: Any, b: Any, c: Any, shape: tuple[int, int, int], run: bool = True) -> Any:
    (bm, bn, bk, g, w, s), (m, n, k) = config, shape
    args = (a, b, c, m, n, k, k, 1, n, 1, n, 1, bm, bn, bk, g)
    if not run:
        return mm.warmup(*args, num_warps=w, num_stages=s, grid=(1,))
    return mm[(triton.cdiv(m, bm) * triton.cdiv(n, bn),)](*args, num_warps=w, num_stages=s)


def compile_one(job: tuple[Config, tuple[int, int, int]]) -> None:
    kind = torch.bfloat16
    launch(job[0], kind, kind, kind, job[1], run=False)


def compile_all(jobs: list[tuple[Config, tuple[int, int, int]]]) -> None:
    kinds = {(config, tuple(size % 16 == 0 for size in shape)): (config, shape) for config, shape in jobs}
    start = time.time()
    with ProcessPoolExecutor(15, mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_one, kinds.values(), chunksize=8))
    print(f"compiled {len(kinds)} kernels in {time.time() - start:.0f} s", flush=True)


def timed(run: Any, flush: torch.Tensor, repeats: int = 9) -> list[float]:
    events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for before, after in events:
        flush.zero_()
        before.record()
        run()
        after.record()
    torch.cuda.synchronize()
    times = sorted(before.elapsed_time(after) * 1e3 for before, after in events)
    return [round(times[at], 2) for at in (repeats // 2, repeats // 5, repeats - 1 - repeats // 5)]


def matrices(shape: tuple[int, int, int]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    m, n, k = shape
    a, b = measure_ops.rand(m, k), measure_ops.rand(k, n)
    return a, b, torch.empty(m, n, device="cuda", dtype=torch.bfloat16)


def words(shape: tuple[int, int, int]) -> str:
    return json.dumps(dict(zip("mnk", shape, strict=True)))


def times(out: str, library: str, seconds: float) -> None:
    start = time.time()
    compile_all([(config, shape) for shape in SHAPES for config in space(shape in WIDER)])
    flush = torch.empty(512 << 20, device="cuda", dtype=torch.int8)
    with open(out, "w", newline="") as file, open(library, "w", newline="") as other:
        rows, cublas = csv.writer(file), csv.writer(other)
        rows.writerow(TIMED)
        cublas.writerow(["m", "n", "k", "us"])
        for shape in SHAPES:
            if time.time() - start > seconds:
                break
            a, b, c = matrices(shape)
            torch.mm(a, b)
            cublas.writerow([*shape, timed(lambda a=a, b=b: torch.mm(a, b), flush, 15)[0]])
            for config in space(shape in WIDER):
                kernel = launch(config, a, b, c, shape)
                figures = timed(lambda: launch(config, a, b, c, shape), flush)  # noqa: B023
                rows.writerow(
                    [
                        "gemm",
                        "bf16",
                        words(shape),
                        *config,
                        *figures,
                        kernel.n_regs,
                        kernel.n_spills,
                        kernel.metadata.shared,
                    ]
                )
            file.flush(), other.flush()
            error = float((c.float() - a.float() @ b.float()).norm() / c.float().norm())
            print(shape, f"{time.time() - start:.0f} s, error of the last {error:.1e}", flush=True)


# --- counters ---------------------------------------------------------------------------------------------------------

METRICS = {
    "us": "gpu__time_duration.sum", "dram_read_bytes": "dram__bytes_read.sum",
    "dram_write_bytes": "dram__bytes_write.sum", "l2_bytes": "lts__t_bytes.sum",
    "l2_hit_pct": "lts__t_sector_hit_rate.pct", "l1_bytes": "l1tex__t_bytes.sum",
    "instructions": "smsp__inst_executed.sum", "registers": "launch__registers_per_thread",
    "shared_bytes": "launch__shared_mem_per_block", "grid": "launch__grid_size", "block": "launch__block_size",
    "sm_pct": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram_pct": "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "l2_pct": "lts__throughput.avg.pct_of_peak_sustained_elapsed",
}  # fmt: skip
SCHEDULE = ("op", "dtype", "shape", "bm", "bn", "bk", "group", "warps", "stages")
HEAD = ("case", *SCHEDULE, "kernel")
TIMED = (*SCHEDULE, "us", "us_p20", "us_p80", "registers", "spills", "shared_bytes")
SCHEDULED = {
    (3072, 3072, 3072): [(128, 128, 64, 8, 8, 3), (64, 128, 64, 1, 4, 4), (128, 256, 64, 8, 8, 3),
                         (32, 64, 64, 8, 4, 3)],
    (8192, 1024, 2048): [(128, 128, 32, 1, 4, 3), (256, 64, 64, 8, 8, 2), (64, 256, 64, 1, 8, 3),
                         (16, 128, 64, 1, 4, 3)],
    (512, 512, 4096): [(64, 64, 128, 1, 4, 4), (128, 128, 64, 8, 8, 3)],
    (128, 16384, 4096): [(128, 128, 64, 1, 8, 4), (64, 256, 64, 8, 8, 3), (32, 128, 128, 1, 4, 3)],
    (20480, 640, 2560): [(128, 128, 64, 8, 8, 3), (256, 128, 64, 1, 8, 3)],
    (6000, 1111, 1500): [(128, 64, 64, 8, 4, 3)],
    (6144, 6144, 6144): [(128, 128, 64, 1, 8, 3), (128, 128, 64, 8, 8, 3), (64, 64, 64, 8, 4, 3),
                         (128, 256, 64, 16, 8, 3)],
    (12288, 12288, 2048): [(64, 64, 64, 1, 4, 3), (256, 128, 64, 8, 8, 3), (128, 128, 64, 4, 4, 3)],
}  # fmt: skip
SDPA = {"batch": 2, "heads": 24, "kv_heads": 24, "q_len": 4096, "kv_len": 4096, "head_dim": 128, "causal": False}
CONV = {"n": 32, "c_in": 128, "h": 28, "w": 28, "c_out": 256, "r": 3, "s": 3, "stride": 1, "padding": 1, "groups": 1}
SIMPLE: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("gemm", dict(zip("mnk", shape, strict=True))) for shape in (
        (3072, 3072, 3072), (8192, 1024, 2048), (512, 512, 4096), (128, 16384, 4096), (20480, 640, 2560),
        (6144, 6144, 6144), (12288, 12288, 2048), (32, 11008, 4096), (5000, 3000, 800), (4096, 14336, 4096))),
    ("bmm", {"b": 64, "m": 512, "n": 512, "k": 128}), ("bmm", {"b": 16, "m": 1024, "n": 1024, "k": 1024}),
    ("bmm", {"b": 256, "m": 128, "n": 64, "k": 128}), ("bmm", {"b": 8, "m": 2048, "n": 4096, "k": 512}),
    ("attention_sdpa", SDPA), ("attention_sdpa", {**SDPA, "causal": True}),
    ("attention_sdpa", {**SDPA, "batch": 32, "heads": 8, "kv_heads": 8, "q_len": 1024, "kv_len": 1024, "head_dim": 64}),
    ("attention_sdpa", {**SDPA, "batch": 8, "heads": 32, "kv_heads": 32, "q_len": 1, "kv_len": 4096}),
    ("attention_sdpa", {**SDPA, "batch": 1, "heads": 16, "kv_heads": 16, "q_len": 16384, "kv_len": 16384,
                        "head_dim": 64}),
    *((op, {"rows": rows, "cols": cols}) for rows, cols in ((16384, 2048), (512, 12288), (2048, 65536)) for op in (
        "layernorm", "rmsnorm", "softmax", "sum", "bias_add", "transpose_copy")),
    *((op, {"n": n}) for n in (1 << 22, 100_000_000) for op in ("add", "gelu", "copy")),
    *(("conv2d", {**CONV, "channels_last": last}) for last in (True, False)),
    *(("conv2d", {**CONV, "c_in": 256, "c_out": 64, "h": 56, "w": 56, "r": 1, "s": 1, "padding": 0,
                 "channels_last": last})
      for last in (True, False)),
    *(("conv2d", {**CONV, "c_in": 192, "c_out": 192, "h": 56, "w": 56, "groups": 192, "channels_last": last})
      for last in (True, False)),
    ("conv2d", {**CONV, "n": 8, "c_in": 64, "c_out": 128, "h": 112, "w": 112, "stride": 2, "channels_last": True}),
    ("embedding", {"vocab": 151936, "dim": 1024, "tokens": 32768}),
    ("embedding", {"vocab": 32000, "dim": 4096, "tokens": 8192}),
)  # fmt: skip


def simple(op: str, s: dict[str, Any]) -> Any:
    if op == "gemm":
        a, b, _ = matrices((s["m"], s["n"], s["k"]))
        return lambda: torch.mm(a, b)
    run = measure_ops.OPS[op](s, "bf16")
    torch.backends.cudnn.benchmark = False
    return run


def cases() -> Iterator[tuple[list[Any], Any]]:
    """Give the first columns of each case and what builds it."""
    for shape, configs in SCHEDULED.items():
        for config in configs:
            name = "_".join(map(str, ("triton", *shape, *config)))

            def build(shape: Any = shape, config: Any = config) -> Any:
                operands = matrices(shape)
                return lambda: launch(config, *operands, shape)

            yield [name, "gemm", "bf16", words(shape), *config], build
    for op, s in SIMPLE:
        name = "_".join(str(value) for value in (op, *s.values()))
        yield [name, op, "bf16", json.dumps(s), *[""] * 6], lambda op=op, s=s: simple(op, s)


def run_cases(seconds: float) -> None:
    start, mark = time.time(), torch.zeros(1, device="cuda", dtype=torch.int32)
    marker[(1,)](mark)
    for at, (head, build) in enumerate(cases()):
        if time.time() - start > seconds:
            break
        try:
            run = build()
            for _ in range(2):
                run()
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStart()
            marker[(at + 1,)](mark)
            run()
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStop()
        except Exception as error:  # a case that this PyTorch lacks
            print(head[0], str(error)[:200], file=sys.stderr)


def traffic(out: str, seconds: float) -> None:
    command = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--csv", "--page", "raw",
               "--print-units", "base", "--metrics", ",".join(METRICS.values()), sys.executable, __file__, "cases", "-",
               "--seconds", str(seconds)]  # fmt: skip
    with open(out + ".log", "w") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False)
    write_traffic(out)


def write_traffic(out: str) -> None:
    text = Path(out + ".log").read_text()
    table = list(csv.DictReader(io.StringIO(text[text.index('"ID"') :])))
    heads, head = [head for head, _ in cases()], None
    with open(out, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([*HEAD, *METRICS])
        for row in table:
            if not row["ID"]:
                continue
            number = {name: float(row[metric].replace(",", "") or "nan") for name, metric in METRICS.items()}
            if row["Kernel Name"].startswith("marker"):
                head = heads[int(number["grid"]) - 1]
                continue
            number["us"] = round(number["us"] / 1e3, 2)
            rows.writerow([*head, row["Kernel Name"][:90], *(f"{value:.10g}" for value in number.values())])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["times", "traffic", "cases", "table"])
    parser.add_argument("out")
    parser.add_argument("library", nargs="?", default="cublas_matmul.csv")
    parser.add_argument("--seconds", type=float, default=240.0)
    args = parser.parse_args()
    if args.what == "times":
        times(args.out, args.library, args.seconds)
    elif args.what == "traffic":
        traffic(args.out, args.seconds)
    elif args.what == "table":
        write_traffic(args.out)
    else:
        run_cases(args.seconds)


if __name__ == "__main__":
    main()
