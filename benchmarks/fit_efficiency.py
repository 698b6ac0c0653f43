"""Fit a chip's [efficiency] block (compute, memory, launch and their range) to measured operators.

    python benchmarks/fit_efficiency.py [CHIP] [OPS.csv]

Each figure is a median that can be checked by hand:

- launch: the measured time of single kernels whose work takes under 1 us at the datasheet;
- compute: datasheet time over measured time of kernels that are compute-bound by 2x and take over 300 us at peak;
- memory: the same of kernels that are memory-bound by 2x.

The range holds the middle four fifths of measured over predicted of the rows whose work takes over 300 us at the
datasheet. Odd rows are fitted, even rows judge; whole-model rows are never looked at.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np

import roofline as rl
from roofline.cost import compute_seconds
from roofline.hardware.library import data_dir


def measured_rows(path: Path, chip: rl.Chip) -> list[dict[str, np.ndarray | float]]:
    """Per row: seconds at peak, seconds at bandwidth, kernels of each, and the measured seconds."""
    rows = []
    for line in csv.DictReader(path.open()):
        if line["stable"] != "1" or not line["kernel_us"]:
            continue
        tf32 = line["dtype"] == "tf32"
        entry = {"op": line["op"], **json.loads(line["shape"])}
        counts = rl.count(rl.workload([entry], dtype="fp32" if tf32 else line["dtype"])).rows
        rows.append(
            {
                "op": line["op"],
                "count": np.array([row.kernel.count for row in counts]),
                "compute": np.array([float(compute_seconds(row, chip, tf32)) for row in counts]),
                "memory": np.array([float(row.bytes) / chip.bandwidth for row in counts]),
                "measured": float(line["kernel_us"]) * 1e-6,
            }
        )
    return rows


def predict(rows: list[dict], compute: float, memory: float, launch: float) -> np.ndarray:
    """Seconds of each row."""
    return np.array(
        [
            np.sum(r["count"] * np.maximum(np.maximum(r["compute"] / compute, r["memory"] / memory), launch))
            for r in rows
        ]
    )


def log_ratio(rows: list[dict], *figures: float) -> np.ndarray:
    """Log of measured over predicted."""
    return np.log(np.array([r["measured"] for r in rows]) / predict(rows, *figures))


def fit(rows: list[dict]) -> tuple[float, float, float]:
    """Compute share, memory share and launch floor [s]."""
    single = [r for r in rows if len(r["count"]) == 1]
    compute, memory, measured = (
        np.array([float(np.ravel(r[key])[0]) for r in single]) for key in ("compute", "memory", "measured")
    )
    ideal = np.maximum(compute, memory)
    long = ideal > 300e-6
    return (
        float(np.median((compute / measured)[long & (compute > 2 * memory)])),
        float(np.median((memory / measured)[long & (memory > 2 * compute)])),
        float(np.median(measured[ideal < 1e-6])),
    )


def main() -> None:
    chip = rl.chip(sys.argv[1] if len(sys.argv) > 1 else "h100-sxm")
    path = Path(sys.argv[2]) if len(sys.argv) > 2 else data_dir("measurements") / chip.name / "ops.csv"
    rows = measured_rows(path, chip)
    train, judge = rows[1::2], rows[::2]
    figures = fit(train)
    print(f"{chip.name}: {len(train)} rows fitted, {len(judge)} rows judged")
    print(f"compute = {figures[0]:.3f}\nmemory = {figures[1]:.3f}\nlaunch = {figures[2] * 1e6:.2f} us")
    residual = log_ratio(
        [r for r, ideal in zip(train, predict(train, 1.0, 1.0, 0.0), strict=True) if ideal > 300e-6], *figures
    )
    low, high = np.exp(np.quantile(residual, [0.1, 0.9]))
    print(f"low = {low:.2f}\nhigh = {high:.2f}")
    error = np.abs(np.exp(-log_ratio(judge, *figures)) - 1)
    print(f"judged: mean {error.mean():.1%}, median {np.median(error):.1%}, p90 {np.quantile(error, 0.9):.1%}")
    for op in sorted({r["op"] for r in judge}):
        part = [r for r in judge if r["op"] == op]
        print(f"  {op:18}{len(part):4}  mean {np.abs(np.exp(-log_ratio(part, *figures)) - 1).mean():.0%}"
              f"  measured/predicted median {np.exp(np.median(log_ratio(part, *figures))):.2f}")  # fmt: skip


if __name__ == "__main__":
    main()
