"""Measure whole programs on an NVIDIA GPU: time, kernels by the operator that launched them, memory.

    python benchmarks/silicon/measure_zoo.py FOLDER OUT_FOLDER [--seconds 480]

FOLDER has ``programs.csv`` or ``models.csv`` (which programs, with which inputs; benchmarks/zoo.py says with which
words) and ``modules.py``. Writes ``models.csv`` and ``ops.csv`` with the columns of measurements/README.md, programs in
the order of the table until the time is out.
"""

from __future__ import annotations

import argparse
import csv
import gc
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from zoo import Row, build, modules, rows_of, runnable

#: An event of the profiler's own (roofline.diagnosis.idle knows its kin in traces).
BUFFER = "Activity Buffer Request"
KEYS = ("model", "inputs", "dtype", "layout", "mode")
MODELS = ("model", "build", "inputs", "dtype", "layout", "mode", "wall_us", "synced_us", "kernel_us", "n_kernels",
          "activation_bytes", "params", "note")  # fmt: skip
OPS = (*KEYS, "op", "shapes", "kernel", "count", "us")


def wall(run: Callable[[], Any], seconds: float = 0.5) -> float:
    """Microseconds per run in a full queue."""
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    number = max(3, min(50, int(seconds / max(time.perf_counter() - start, 1e-4))))
    start = time.perf_counter()
    for _ in range(number):
        run()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / number * 1e6


def synced(run: Callable[[], Any]) -> float:
    """Microseconds of one call and a synchronise, the median of five."""
    times = []
    for _ in range(5):
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def profiled(run: Callable[[], Any]) -> dict[tuple[str, str, str], tuple[int, float]]:
    """How often and how long each kernel ran, by the operator that launched it and its shapes [us].

    Kernels hang from every event that is linked to them: the profiler's own (a buffer that it asks for while a kernel
    is launched) have them a second time.
    """
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        run()
        torch.cuda.synchronize()
    found: dict[tuple[str, str, str], tuple[int, float]] = {}
    for event in profile.events():
        shapes = re.sub(r"(, \[\])+\]$", "]", str(event.input_shapes))
        for kernel in event.kernels if event.name != BUFFER else ():
            if not kernel.name.startswith(("Memcpy", "Memset")):
                key = (event.name, shapes, kernel.name[:60])
                count, us = found.get(key, (0, 0.0))
                found[key] = (count + 1, us + kernel.duration)
    return found


def peak(run: Callable[[], Any]) -> int:
    """Bytes that one call allocates at most, beyond what was there."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def measured(row: Row, own: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """One program."""
    module, args, kwargs = build(row, own, "cuda")
    program, training = runnable(row, module), row["mode"].startswith("train")

    def run() -> Any:
        with torch.set_grad_enabled(training):
            return program(*args, **kwargs)

    for _ in range(3):
        run()
    torch.cuda.synchronize()
    one = {"wall_us": wall(run), "synced_us": synced(run), "activation_bytes": peak(run)}
    kernels = profiled(run)
    ops = [
        {**{key: row[key] for key in KEYS}, "op": op, "shapes": shapes, "kernel": kernel,
         "count": count, "us": round(us, 2)}
        for (op, shapes, kernel), (count, us) in kernels.items()
    ]  # fmt: skip
    one |= {"kernel_us": sum(us for _, us in kernels.values()), "n_kernels": sum(n for n, _ in kernels.values())}
    one |= {"params": sum(weight.numel() for weight in module.parameters()), "note": ""}
    return {**row, **{key: round(value, 1) if isinstance(value, float) else value for key, value in one.items()}}, ops


def main() -> None:
    """Measure until the time is out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=480)
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    own = modules(options.folder)
    table = "programs.csv" if (options.folder / "programs.csv").exists() else "models.csv"
    with (options.out / "models.csv").open("w", newline="") as models, (options.out / "ops.csv").open("w") as kernels:
        programs, launches = csv.DictWriter(models, MODELS, extrasaction="ignore"), csv.DictWriter(kernels, OPS)
        programs.writeheader()
        launches.writeheader()
        for row in rows_of(options.folder, table):
            if row["mode"] == "cudagraph" or time.monotonic() > end:
                continue
            began = time.monotonic()
            try:
                program, ops = measured(row, own)
            except Exception as error:
                print(f"{row['model']} {row['inputs']} {row['mode']}: {type(error).__name__} {str(error)[:200]}")
                continue
            finally:
                gc.collect()
                torch.cuda.empty_cache()
            programs.writerow(program)
            launches.writerows(ops)
            models.flush()
            kernels.flush()
            print(f"{row['model']:18s} {row['inputs'][:30]:30s} {row['mode']:11s} wall {program['wall_us']:9.0f} "
                  f"kernels {program['kernel_us']:9.0f} {program['n_kernels']:5d} "
                  f"{time.monotonic() - began:5.1f} s", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
