"""Operators measured by their job: predicted from their capture, against what was measured.

    python benchmarks/jobs.py FILE [--chip CHIP] [--half 0|1] [--rows]

FILE is a table of ``benchmarks/silicon/networks.py`` or ``convolutions.py``. Each operator is captured by
``rl.from_torch`` and estimated alone, with a cold cache as it was measured. ``--half`` takes the rows whose job has
this last bit of its CRC-32: one half to look at, the other to judge with. ``--rows`` lists every row.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import warnings
import zlib
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

import roofline as rl

sys.path.insert(0, str(Path(__file__).parent / "silicon"))
import networks

Job = dict[str, Any]


def subjects(job: Job) -> list[str]:
    """The classes that a job is of."""
    if job["op"] == "norm":
        return ["rows under 64 elements"]
    if job["op"] != "conv":
        return [{"rnn": "recurrent layers", "sdpa": "attention"}.get(job["op"], job["op"]) + " " + job["dtype"]]
    groups, spatial = job["groups"], "1-D" if job["hw"][0] == 1 < job["hw"][-1] else f"{len(job['hw'])}-D"
    spread = "depthwise" if groups == job["i"] > 1 else "grouped" if groups > 1 else "dense"
    layout = "channels last" if job["layout"] else "channels first"
    what = "transposed" if job["trans"] else spread
    return ["convolutions", f"{job['dtype']}, {layout}", f"{what}, {layout}", f"{spatial} {what}", job["dtype"]]


def predicted(job: Job, chip: str) -> float:
    """Time of the job's kernels in us."""
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        graph = rl.from_torch(networks.work(job, "meta"))
    return float(rl.estimate(graph, chip, mode="graph", regime="cold").device_time) * 1e6


def figures(ratios: list[float]) -> str:
    """Errors of some rows, by the ratio of predicted to measured."""
    error = np.abs(np.array(ratios) - 1)
    return (
        f"{len(error):4d}  mean {error.mean():6.1%}  median {np.median(error):6.1%}  "
        f"p90 {np.quantile(error, 0.9):6.1%}  bias {np.mean(ratios) - 1:+6.1%}"
    )


def main() -> None:
    """Compare every row, and sum up by class."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--chip", default="h200-sxm")
    parser.add_argument("--half", type=int, choices=(0, 1))
    parser.add_argument("--rows", action="store_true")
    options = parser.parse_args()
    ratios: dict[str, list[float]] = defaultdict(list)
    with options.file.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if options.half is not None and zlib.crc32(row["job"].encode()) % 2 != options.half:
                continue
            job, measured = json.loads(row["job"]), float(row["us"])
            ours = predicted(job, options.chip)
            if options.rows:
                words = " ".join(f"{key}={value}" for key, value in job.items() if value not in ("", 0))
                print(f"{ours / measured - 1:+6.0%} {measured:9.1f} {ours:9.1f}  {words}")
            for subject in subjects(job):
                ratios[subject].append(ours / measured)
    for subject in sorted(ratios):
        print(f"{subject:32s}{figures(ratios[subject])}")


if __name__ == "__main__":
    main()
