"""Predicted times of public deployments beside the measured ones: the table of docs/serving.md.

    python benchmarks/serving_table.py SERVING.csv [--all]

Takes the table of whole deployments of aiconfigurator (``silicon_sample.csv``: NVIDIA, Apache-2.0,
https://github.com/ai-dynamo/aiconfigurator) and judges on the half of its configurations that nothing was fitted to
(``fit_serving.py`` says which); ``--all`` on every row. Errors are of the predicted over the measured time.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from fit_serving import part

from roofline.serving.benchmarks import bench_rows

Row = dict[str, Any]


def line(name: str, rows: Sequence[Row]) -> str:
    """Mean and median error of both times and how many times per token lie in their range."""
    known = [row for row in rows if not row["error"]]
    cells = [f"{name:<34}{len(rows):>5}{len(known):>7}"]
    for ours in ("tpot_ms", "ttft_ms"):
        errors = np.abs([row[ours] / float(row[f"silicon_{ours}"]) - 1 for row in known])
        cells.append(f"{np.mean(errors):>8.1%}{np.median(errors):>8.1%}" if known else "")
    inside = [row["tpot_low_ms"] <= float(row["silicon_tpot_ms"]) <= row["tpot_high_ms"] for row in known]
    return "".join([*cells, f"{np.mean(inside):>8.0%}" if known else ""])


def main() -> None:
    began = time.perf_counter()
    with open(sys.argv[1], encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    found = [row for row in bench_rows(rows) if "--all" in sys.argv or part(row, 2) == 1]
    print(f"{len(rows)} rows in {time.perf_counter() - began:.0f} s; judged on {len(found)}")
    print(f"{'':<34}{'rows':>5}{'known':>7}{'tpot':>8}{'median':>8}{'ttft':>8}{'median':>8}{'inside':>8}")
    print(line("all", found))
    for columns in (("backend",), ("backend", "system"), ("backend", "model_path")):
        groups: dict[str, list[Row]] = {}
        for row in found:
            groups.setdefault(" ".join(row[column].rpartition("/")[2] for column in columns), []).append(row)
        print(*(line(name, groups[name]) for name in sorted(groups)), sep="\n")


if __name__ == "__main__":
    main()
