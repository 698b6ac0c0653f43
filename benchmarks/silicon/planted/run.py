"""Time and trace programs with a known cause of slowness on NVIDIA GPUs: what ``roofline check`` is judged on.

    python benchmarks/silicon/planted/run.py SET OUT_FOLDER [NAME ...]

A set is a module beside this one: first, second, third, fourth, or pair (two processes over NCCL; times and traces are
those of the first). Writes ``planted.csv`` (case, label, what the program is meant to compute, format, steady and
synchronised time) and ``traces/CASE.json.gz``, a torch.profiler trace of two iterations with shapes.
"""

from __future__ import annotations

import csv
import gzip
import importlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from common import PROGRAMS, Run

HEAD = ["case", "label", "work", "dtype", "wall_us", "synced_us"]


def steady(run: Run, budget: float = 0.4, fixed: int = 0) -> float:
    """Time of one iteration with the queue kept full [us]; a fixed number of them where processes have to agree."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    run()
    torch.cuda.synchronize()
    number = fixed or int(min(max(budget / 3 / (time.perf_counter() - start), 1), 300))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(number):
            run()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / number)
    return sorted(times)[1] * 1e6


def synced(run: Run) -> float:
    """Time of one iteration and a synchronisation [us]."""
    times = []
    for _ in range(7):
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return sorted(times)[3] * 1e6


def trace(run: Run, path: Path) -> None:
    """Record two iterations."""
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], record_shapes=True) as profiler:
        for _ in range(2):
            run()
        torch.cuda.synchronize()
    plain = path.with_suffix("")
    profiler.export_chrome_trace(str(plain))
    recorded = json.loads(plain.read_text(encoding="utf-8"))
    plain.unlink()
    path.write_bytes(gzip.compress(json.dumps(trimmed(recorded), separators=(",", ":")).encode(), mtime=0))


#: What a trace is kept with, beside its events, and what of an event's arguments is a path of the machine.
KEPT, PATHS = ("schemaVersion", "deviceProperties", "record_shapes", "displayTimeUnit"), ("kernel_file",)


def trimmed(recorded: dict[str, Any]) -> dict[str, Any]:
    """Without flow arrows, names of processes and paths."""
    events = [event for event in recorded["traceEvents"] if event.get("ph") == "X"]
    for event in events:
        for name in PATHS:
            event.get("args", {}).pop(name, None)
    return {**{name: recorded[name] for name in KEPT if name in recorded}, "traceEvents": events}


def measured(name: str, traced: Path, fixed: int = 0) -> list[str]:
    """Make a program, time and trace it; return its row."""
    program = PROGRAMS[name]
    run = program.make()
    for _ in range(4):
        run()
    times = steady(run, fixed=fixed), synced(run)
    trace(run, traced)
    print(f"{name}: {program.label} {times[0]:.1f} us", flush=True)
    return [name, program.label, json.dumps(program.work), program.dtype, *(f"{each:.1f}" for each in times)]


def write(out: Path, rows: list[list[str]]) -> None:
    """Write the table of a set."""
    with open(out / "planted.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        writer.writerows(rows)


def single(out: Path, names: list[str]) -> None:
    """Measure on one GPU; a program that fails is named and left out."""
    rows = []
    for name in names:
        try:
            rows.append(measured(name, out / "traces" / f"{name}.json.gz"))
        except Exception as error:
            print(f"{name}: FAILED {type(error).__name__}: {str(error)[:300]}", flush=True)
        finally:
            torch.cuda.empty_cache()
    write(out, rows)


def pair(rank: int, out: Path, names: list[str]) -> None:
    """Measure in one of two processes; only the first writes."""
    importlib.import_module("pair")
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", rank=rank, world_size=2)
    folder = out / "traces" if rank == 0 else Path("/dev/shm")
    rows = [measured(name, folder / f"{name}.json.gz", fixed=20) for name in names]
    if rank == 0:
        write(out, rows)
    torch.distributed.destroy_process_group()


def main(group: str, folder: str, *names: str) -> None:
    """Measure all programs of a set, or the named ones."""
    importlib.import_module(group)
    out, chosen = Path(folder), list(names or PROGRAMS)
    (out / "traces").mkdir(parents=True, exist_ok=True)
    if group != "pair":
        return single(out, chosen)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    torch.multiprocessing.spawn(pair, args=(out, chosen), nprocs=2)


if __name__ == "__main__":
    main(*sys.argv[1:])
