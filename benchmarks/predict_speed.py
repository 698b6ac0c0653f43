"""Rows a second of bulk prediction: 100,000 operator rows of all sorts and sizes, CSV to CSV.

python benchmarks/predict_speed.py [ROWS]

The baseline, in the same run, reads and writes as many cells and predicts nothing: the csv and json modules alone.
Times are of the process, which other processes disturb little.
"""

from __future__ import annotations

import csv
import json
import random
import resource
import sys
import tempfile
import time
from pathlib import Path

import roofline as rl
from roofline.analysis.prediction import output_columns, predict_rows
from roofline.hardware.library import data_dir
from roofline.ir.csvfile import read_rows, write_rows

#: Sizes that choose among kernels; the others are scaled.
KEPT = {"groups", "stride", "padding", "dilation", "r", "s", "heads", "kv_heads", "head_dim", "causal", "channels_last"}


def make(path: Path, rows: int) -> None:
    """Write rows with the words and formats of the shipped measurements and random sizes near theirs."""
    with (data_dir("measurements") / "h100-sxm" / "ops.csv").open() as stream:
        shipped = [(row["op"], row["dtype"], json.loads(row["shape"])) for row in csv.DictReader(stream)]
    shipped = [row for row in shipped if row[2].get("groups", 1) == 1]
    rng = random.Random(0)
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["op", "dtype", "shape", "kernel_us"])
        for op, dtype, shape in rng.choices(shipped, k=rows):
            sizes = {key: value if key in KEPT else value + rng.randrange(value + 1) for key, value in shape.items()}
            writer.writerow([op, dtype, json.dumps(sizes), 1.0])


def copy(source: Path, target: Path) -> None:
    """Read a table, parse its shapes and write it with as many columns more as a prediction has, all empty."""
    with source.open(newline="") as stream, target.open("w", newline="") as out:
        rows = csv.DictReader(stream)
        names = output_columns(list(rows.fieldnames or ()))
        writer = csv.writer(out)
        writer.writerow(names)
        for row in rows:
            json.loads(row["shape"])
            writer.writerow([row.get(name, 1.0) for name in names])


def main() -> None:
    """Predict and print rows a second, the ratio to a bare copy and the peak memory."""
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.csv"), Path(folder, "out.csv")
        make(source, rows)
        start = time.process_time()
        copy(source, target)
        bare = time.process_time() - start
        start = time.process_time()
        with read_rows(source) as (columns, table):
            write_rows(target, output_columns(columns), predict_rows(table, rl.chip("h100-sxm")))
        seconds = time.process_time() - start
        with target.open(newline="") as stream:
            failed = sum(1 for row in csv.DictReader(stream) if row["error"])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10
    print(f"{rows:,} rows in {seconds:.2f} s: {rows / seconds:,.0f} rows a second; {failed} failed; {peak:.0f} MiB")
    print(f"read, parsed and written without a prediction: {bare:.2f} s; ours takes {seconds / bare:.1f} times that")


if __name__ == "__main__":
    main()
