"""Fit the parameters of the time model to measured operators and print the held-out error by class.

    python benchmarks/fit.py OPS.csv --chip h100-sxm [--group matmul] [--regime cold] [--write]

Rows with ``stable`` 0 are left out. The rows are split in two by a hash of their contents; each half is predicted with
parameters fitted on the other, and the error of those predictions is printed. ``--write`` then fits on all rows and
prints the parameter tables for the chip's TOML.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import roofline as rl
from roofline.analysis.fitting import Sample, fit, held_out, take_apart


def load(path: Path, chip: str | None) -> list[Sample]:
    """The stable rows of a chip with a measured time."""
    found = []
    with path.open() as stream:
        for row in csv.DictReader(stream):
            seconds = float(row.get("kernel_us") or row.get("p50_us") or 0) * 1e-6
            here = chip is None or row.get("chip", chip) == chip
            if here and seconds > 0 and row.get("stable", "1") == "1":
                found.append(Sample(row["op"], row["dtype"], json.loads(row["shape"]), seconds))
    return found


def summary(error: np.ndarray) -> str:
    """Number, mean, median and 90th percentile of absolute errors."""
    size = np.abs(error)
    return f"n {len(size):4} mean {size.mean():6.1%} median {np.median(size):6.1%} p90 {np.quantile(size, 0.9):6.1%}"


def report(samples: Sequence[Sample], error: np.ndarray, worst: int) -> None:
    """Print the held-out error of all rows, of each class, and the worst rows."""
    print("held out, all:", summary(error))
    kinds = np.array([f"{s.op} {s.dtype}" for s in samples])
    for kind in sorted(set(kinds)):
        print(f"  {kind:24}", summary(error[kinds == kind]), f"bias {np.median(error[kinds == kind]):+.1%}")
    for at in np.argsort(-np.abs(error))[:worst]:
        s = samples[at]
        print(f"{error[at]:+6.0%} {s.op} {s.dtype} {json.dumps(s.shape)} {s.seconds * 1e6:.1f} us")


def main() -> None:
    """Read, fit, print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("file", type=Path)
    parser.add_argument("--chip", default="h100-sxm")
    parser.add_argument("--group", default="")
    parser.add_argument("--op", default="")
    parser.add_argument("--regime", default="cold")
    parser.add_argument("--worst", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    chip = rl.chip(args.chip)
    samples = [s for s in load(args.file, args.chip) if not args.op or s.op in args.op.split(",")]
    pieces = take_apart(samples, chip, args.regime)
    for at, why in list(pieces.skipped.items())[:5]:
        print("skipped", samples[at], why)
    groups = [g for g in (args.group.split(",") if args.group else pieces.groups) if g in pieces.groups]
    error = held_out(samples, chip, args.regime, groups)
    report([samples[at] for at in error], np.array(list(error.values())), args.worst)
    if args.write:
        final = fit(pieces, chip, groups)
        for group in groups:
            print(f"[efficiency.parameters.{group}]")
            for key, value in final[group].items():
                print(f"{key} = {value:.4g}")


if __name__ == "__main__":
    main()
