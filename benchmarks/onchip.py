"""Measured beside predicted bytes at main memory and at the cache, by class of kernel and case, on an H100.

python benchmarks/onchip.py [--leave-out] [FILE.csv]

The rows are hardware counters of single kernels (measurements/README.md); a case that launches several is judged by
their sum. ``--leave-out`` chooses each figure that was read off these rows anew without the shape that is judged. The
last table holds the bytes of a 4096^3 matmul against the least that any schedule moves through a cache of this size.

In these rows ``add`` and ``attention_sdpa`` were given one tensor for all operands: their counters read it once.
A shape does not say so, and ``roofline predict`` takes operands of their own; the tables below have both.
"""

from __future__ import annotations

import csv
import itertools
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import roofline as rl
from roofline.analysis.levels import run_bytes
from roofline.analysis.prediction import predict_rows
from roofline.cost import levels
from roofline.hardware.library import data_dir
from roofline.ops.builder import Builder
from roofline.tiling import matmul_lower_bound, waves

CHIP = "h100-sxm"
#: Operators that were given one tensor for all operands.
ONE_TENSOR = ("add", "attention_sdpa")
#: Figures that were read off the rows: where they stand, and what else they may have been.
FIGURES: tuple[tuple[Any, str, tuple[Any, ...]], ...] = (
    (waves, "HELD", (0.7, 0.75, 0.8, 0.85, 0.9)), (waves, "DRIFT", (15.0, 25.0, 35.0, 50.0, 80.0)),
    (waves, "SHARPNESS", (6.0, 12.0, 20.0)),
    (waves, "GROUPS", tuple(itertools.product((0.4, 0.5, 0.6), (0.1, 0.2, 0.3)))),
    (waves, "WARPS", tuple(itertools.product((0.1, 0.17, 0.25), (0.03, 0.07, 0.12)))),
    (waves, "LIBRARY", tuple(itertools.product((0.25, 0.35, 0.45), (0.0, 0.05, 0.1)))),
    (levels, "LAUNCH", (0.0, 0.7e6, 1.45e6, 2e6)), (levels, "FIRST_LEVEL", (4e4, 75e3, 15e4)),
    (levels, "IN_STEP", (0.1, 0.3, 0.5)), (levels, "UNEVEN", (0.0, 0.05, 0.2)), (levels, "TAPS", (0.3, 0.5, 0.7)),
    (levels, "EDGES", (0.4, 0.8, 1.2)), (levels, "NEAR", (0.0, 0.1, 0.2)), (levels, "EVICTED", (3.0, 6.0, 12.0)),
)  # fmt: skip
LEVELS = ("dram_bytes", "l2_bytes")
Case = dict[str, Any]


def cases(path: Path) -> list[Case]:
    """Return the cases of a file: a row to predict, its class, and the bytes of all of its kernels."""
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    found = []
    for name, group in itertools.groupby(rows, key=lambda row: row["case"]):
        kernels = list(group)
        row = {key: kernels[0][key] for key in ("op", "dtype", "shape", "bm", "bn", "bk", "group", "warps", "stages")}
        total = {
            key: sum(float(each[key]) for each in kernels)
            for key in ("dram_read_bytes", "dram_write_bytes", "l2_bytes")
        }
        measured = (total["dram_read_bytes"] + total["dram_write_bytes"], total["l2_bytes"])
        kind = "gemm, Triton" if row["bm"] else "gemm, cuBLAS" if row["op"] == "gemm" else row["op"]
        found.append({"name": name, "class": kind, "row": row, "measured": np.array(measured)})
    return found


def predicted(some: Sequence[Case], as_run: bool = True) -> Any:
    """Return the predicted bytes of cases at both levels, a line each; with operands of their own unless ``as_run``."""
    rows = predict_rows([case["row"] for case in some], CHIP)
    plain = np.array([[float(row[level]) for level in LEVELS] for row in rows])
    for at, case in enumerate(some):
        if as_run and case["row"]["op"] in ONE_TENSOR:
            plain[at] = on_one_tensor(case["row"])
    return plain


def on_one_tensor(row: Mapping[str, str]) -> list[float]:
    """Return the predicted bytes of an operator whose operands are one tensor; heads on the same keys share theirs."""
    shape, b = json.loads(row["shape"]), Builder(row["op"], row["dtype"])
    if row["op"] == "add":
        x = b.input("x", (shape["n"],))
        out = b.op("add", x, x)
    else:
        q = b.input("q", tuple(shape[key] for key in ("batch", "heads", "q_len", "head_dim")))
        k = b.input("k", tuple(shape[key] for key in ("batch", "kv_heads", "kv_len", "head_dim")))
        q = k if b.shape(q) == b.shape(k) else q
        mask = {"causal": shape["causal"], "window": 0}
        with b.kernel("sdpa"):
            weights = b.op("attention_softmax", b.op("attention_scores", q, k, **mask), **mask)
            out = b.op("attention_values", weights, k, **mask)
    (moved,) = run_bytes(rl.estimate(b.graph([out]), CHIP, mode="graph"))
    return [float(moved[level]) for level in ("HBM", "L2")]


def errors(some: Sequence[Case], as_run: bool = True) -> Any:
    """Return relative errors, a line a case and a column a level."""
    return np.abs(predicted(some, as_run) / np.array([case["measured"] for case in some]) - 1)


def left_out(some: Sequence[Case]) -> Any:
    """Return the errors of each case with every figure as the cases of other shapes have it best, one at a time."""
    tried: list[list[Any]] = []
    for module, name, choices in FIGURES:
        own = getattr(module, name)
        tried.append([])
        for value in choices:
            setattr(module, name, value)
            tried[-1].append(errors(some))
        setattr(module, name, own)
    result = np.zeros((len(some), len(LEVELS)))
    for shape in dict.fromkeys(case["row"]["shape"] for case in some):
        own = np.array([case["row"]["shape"] == shape for case in some])
        before = [(module, name, getattr(module, name)) for module, name, _ in FIGURES]
        for (module, name, choices), each in zip(FIGURES, tried, strict=True):
            setattr(module, name, choices[int(np.argmin([error[~own].mean() for error in each]))])
        result[own] = errors([case for case, mine in zip(some, own, strict=True) if mine])
        for module, name, value in before:
            setattr(module, name, value)
    return result


def summary(some: Sequence[Case], error: Any) -> Iterator[str]:
    """Say the errors by class and of all."""
    kinds = [case["class"] for case in some]
    parts = {kind: [each == kind for each in kinds] for kind in dict.fromkeys(kinds)} | {"all": [True] * len(kinds)}
    yield f"{'class':32}{'cases':>6}{'DRAM median':>13}{'mean':>8}{'L2 median':>12}{'mean':>8}"
    for name, members in parts.items():
        own = error[np.array(members)]
        if len(own):
            median, mean = np.median(own, axis=0), own.mean(axis=0)
            yield f"{name:32}{len(own):6}{median[0]:13.1%}{mean[0]:8.1%}{median[1]:12.1%}{mean[1]:8.1%}"


def listed(some: Sequence[Case]) -> Iterator[str]:
    """List measured beside predicted bytes [MB]."""
    yield f"{'case [MB]':40}{'DRAM':>10}{'predicted':>11}{'ratio':>7}{'L2':>11}{'predicted':>11}{'ratio':>7}"
    for case, (main, cache) in zip(some, predicted(some), strict=True):
        dram, l2 = case["measured"]
        of_cache = f"{l2 / 1e6:11.1f}{cache / 1e6:11.1f}{cache / l2:7.2f}"
        yield f"{case['name']:40}{dram / 1e6:10.1f}{main / 1e6:11.1f}{main / dram:7.2f}{of_cache}"


def against_bound(some: Sequence[Case]) -> Iterator[str]:
    """Hold each kernel of a 4096^3 matmul against what no schedule goes below with a cache of the chip's size."""
    capacity = rl.chip(CHIP).level("L2").capacity or 0.0
    shape = json.dumps({"m": 4096, "n": 4096, "k": 4096})
    least = float(matmul_lower_bound(4096, 4096, 4096, capacity, widths=2))
    own = [case for case in some if case["row"]["shape"] == shape]
    yield f"4096^3 in bf16 [MB]: at least {least / 1e6:.1f} through {capacity / 2**20:.0f} MiB"
    yield f"{'':40}{'DRAM':>10}{'to least':>10}{'predicted':>11}{'to least':>10}{'L2':>10}{'predicted':>11}"
    for case, (main, cache) in zip(own, predicted(own), strict=True):
        dram, l2 = case["measured"]
        of_main = f"{dram / 1e6:10.1f}{dram / least:10.2f}{main / 1e6:11.1f}{main / least:10.2f}"
        yield f"{case['name']:40}{of_main}{l2 / 1e6:10.1f}{cache / 1e6:11.1f}"
    wide = {"bm": 128, "bn": 256, "bk": 64, "group": 1, "warps": 8, "stages": 3}
    (row,) = predict_rows([{**own[0]["row"], **wide}], CHIP)
    main, cache = (row[level] for level in LEVELS)
    name = "triton, 128 x 256 row by row, unmeasured"
    yield f"{name:40}{'':20}{main / 1e6:11.1f}{main / least:10.2f}{'':10}{cache / 1e6:11.1f}"


def main() -> None:
    """Print the tables."""
    files = [Path(word) for word in sys.argv[1:] if not word.startswith("--")]
    some = cases(files[0] if files else data_dir("measurements") / CHIP / "onchip" / "traffic.csv")
    print(*listed(some), sep="\n", end="\n\n")
    print(*summary(some, errors(some)), sep="\n", end="\n\n")
    print("From the shapes alone:", *list(summary(some, errors(some, as_run=False)))[-1:], sep="\n", end="\n\n")
    if "--leave-out" in sys.argv:
        print("Left out, shape by shape:", *summary(some, left_out(some)), sep="\n", end="\n\n")
    print("\n".join(against_bound(some)))


if __name__ == "__main__":
    main()
