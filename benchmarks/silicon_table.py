"""Published matmuls of grids of cores beside what is predicted: ``python benchmarks/silicon_table.py [--all]``.

``published_matmuls.csv`` holds the device utilisation of the N150 (tuned by hand, the 8 x 8 cores) and of the P150 (as
it comes, traced, 11 x 10 cores) in Tenstorrent's report
(https://github.com/tenstorrent/tt-metal/blob/06bd3735/tech_reports/GEMM_FLOPS/GEMM_FLOPS.md): the share of the engines'
cycles that a matmul needs, by shape, format and fidelity phases. Of these rows one figure went into each chip's file:
the best share of the four-phase matmuls of the N150, of the two-phase ones of the P150.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

import roofline as rl

#: Rate of one core in one fidelity phase [FLOP per cycle], and the clocks [Hz].
PHASE, CLOCKS = 4096, {"wormhole-n150": 1.0e9, "blackhole-p150": 1.35e9}
#: Formats that the chips have a peak for, by the formats of the report.
RUNS_AS = {("wormhole-n150", "bf16"): "fp16"}


def rows() -> Iterator[tuple[dict[str, str], float, float]]:
    """Yield each row with its published and its predicted utilisation."""
    with open(Path(__file__).parent / "published_matmuls.csv", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield row, float(row["utilisation"]) / 100, predicted(row)


def predicted(row: dict[str, Any]) -> float:
    """Return the utilisation of the cores that compute by the prediction."""
    chip = rl.chip(row["chip"])
    core = PHASE / int(row["phases"]) * CLOCKS[chip.name]
    fmt = RUNS_AS.get((chip.name, row["dtype"]), row["dtype"])
    chip = chip.replace(**{fmt: core * chip.cores})
    m, k, n = (int(row[axis]) for axis in "mkn")
    program = rl.workload([{"op": "gemm", "m": m, "n": n, "k": k, "dtype": row["dtype"]}])
    seconds = rl.estimate(program, chip, mode="graph").time
    return 2 * m * n * k / seconds / (core * chip.grid.cores)


def main(every: bool) -> None:
    """Print the rows, or their error by chip and format."""
    errors = defaultdict(list)
    for row, published, found in rows():
        errors[row["chip"], row["format"], row["phases"]].append(found / published - 1)
        if every:
            shape = "{m} x {k} x {n}".format(**row)
            print(f"{row['chip']:14} {row['format']} {row['phases']} {shape:24} {published:6.1%} {found:6.1%}")
    errors["all", "", ""] = [one for each in errors.values() for one in each]
    for (chip, fmt, phases), each in errors.items():
        sizes = [abs(one) for one in each]
        name = f"{chip} {fmt}{f', {phases} phases' if phases else ''}".strip()
        figures = f"mean {mean(sizes):5.1%}  median {median(sizes):5.1%}  bias {median(each):+6.1%}"
        print(f"{name:32} {len(each):3} rows  {figures}")


if __name__ == "__main__":
    main("--all" in sys.argv)
