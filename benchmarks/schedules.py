"""Schedules of a matmul as predicted and as measured: how much is lost by the choice that is ranked first.

    python benchmarks/schedules.py [--held-out]

A row for each shape of ``measurements/*/onchip/triton_matmul.csv``: the measured time of the schedule that is ranked
first, of the best of the eight ranked first, and of a fixed 128 x 256 x 64, all to the best that was measured; the rank
correlation; the mean error of times. ``--held-out`` fits the figures of ``cost/schedules.py`` anew for each shape, to
all others (a minute or two); rows on the H200 are then paced by one factor more, which is fitted and not shipped.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares
from scipy.stats import spearmanr

from roofline.cost.schedules import ALIGNED, FITTED, price
from roofline.hardware.library import chip
from roofline.tiling.schedule import Schedule

HOME = Path(__file__).parent.parent / "measurements"
CHIPS = ("h100-sxm", "h200-sxm")
FIGURES = ["bm", "bn", "bk", "group", "warps", "stages"]
SIZES = ["chip", "m", "n", "k"]
#: What is fitted to shapes whose rows are aligned, within which bounds where they matter, and to the others.
ALIGNED_FIGURES = ("launch", "sync", "latency", "load", "cache", "memory", "knee", "begin", "store")
BOUNDS: Mapping[str, tuple[float, float]] = {"cache": (0.3, 1.6), "memory": (0.4, 1.0), "knee": (3.5, 8.0)}
LOOSE_FIGURES = ("by_row", "by_column", "spill")
#: The schedule that a fixed choice would be, and the number ranked first that a tuner would try.
FIXED, TRIED = {"bm": 128, "bn": 256, "bk": 64}, 8


def read() -> pd.DataFrame:
    """Return the measured schedules of both chips, sizes in columns of their own."""
    tables = [pd.read_csv(HOME / name / "onchip" / "triton_matmul.csv").assign(chip=name) for name in CHIPS]
    rows = pd.concat(tables, ignore_index=True)
    sizes = pd.DataFrame(rows.pop("shape").map(json.loads).tolist())
    rows = rows.join(sizes)
    return rows.assign(loose=(rows.k % ALIGNED > 0) | (rows.n % ALIGNED > 0))


def seconds(rows: pd.DataFrame, p: Mapping[str, float]) -> Any:
    """Predict the rows; ``pace`` stretches what the H200 takes beyond a launch."""
    times = np.zeros(len(rows))
    for name in CHIPS:
        at = (rows.chip == name).to_numpy()
        part = rows[at]
        schedule = Schedule(*(part[figure].to_numpy() for figure in FIGURES))
        times[at] = price(schedule, (1, part.m, part.n, part.k), chip(name), "bf16", {**FITTED, **p}).seconds
    begin = {**FITTED, **p}["launch"]
    return np.where(rows.chip == CHIPS[1], begin + (times - begin) * p.get("pace", 1.0), times)


def fit(rows: pd.DataFrame, names: tuple[str, ...], p: Mapping[str, float]) -> dict[str, float]:
    """Fit figures to rows, by the error of their logarithms; disturbed launches count little."""
    start = np.log([{**FITTED, "pace": 0.97, **p}[name] for name in names])
    low, high = (
        np.array([np.log(BOUNDS[name][end]) if name in BOUNDS else value + (5 * end - 2.5)
                  for name, value in zip(names, start, strict=True)]) for end in (0, 1)
    )  # fmt: skip
    measured = np.log(rows.us.to_numpy() * 1e-6)

    def missed(x: Any) -> Any:
        return np.log(seconds(rows, {**p, **dict(zip(names, np.exp(x), strict=True))})) - measured

    inside = np.clip(start, low + 1e-3, high - 1e-3)
    found = least_squares(missed, inside, loss="soft_l1", f_scale=0.1, bounds=(low, high))
    return {**p, **dict(zip(names, np.exp(found.x).tolist(), strict=True))}


def figures(rows: pd.DataFrame) -> dict[str, float]:
    """Fit all figures to rows, those for unaligned shapes last."""
    p = fit(rows[~rows.loose], (*ALIGNED_FIGURES, "pace"), {})
    return fit(rows[rows.loose], LOOSE_FIGURES, p)


def held_out(rows: pd.DataFrame) -> Any:
    """Predict each shape, on either chip, with figures fitted to all others."""
    times = np.zeros(len(rows))
    for _, some in rows.groupby(["m", "n", "k"], sort=False):
        others = rows.drop(some.index)
        times[some.index] = seconds(some, {**figures(others), "pace": 1.0})
    return times


def judged(rows: pd.DataFrame, times: Any) -> pd.DataFrame:
    """Return a row for each shape: what the choice loses, rank correlation, mean error."""
    found = []
    for key, some in rows.groupby(SIZES, sort=False):
        time, us = times[some.index], some.us.to_numpy()
        order, best = np.argsort(time, kind="stable"), us.min()
        fixed = np.logical_and.reduce([some[name] == value for name, value in FIXED.items()])
        found.append((*key, us[order[0]] / best, us[order[:TRIED]].min() / best, np.median(us[fixed]) / best,
                      spearmanr(time, us)[0], np.mean(np.abs(time * 1e6 / us - 1))))  # fmt: skip
    return pd.DataFrame(found, columns=[*SIZES, "first", "best of 8", "fixed", "rank", "error"])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--held-out", action="store_true", help="fit anew for each shape, to all others")
    parser.add_argument("--fit", action="store_true", help="print the figures fitted to all rows")
    args = parser.parse_args()
    rows = read()
    if args.fit:
        print({name: float(f"{value:.3g}") for name, value in figures(rows).items()})
    table = judged(rows, held_out(rows) if args.held_out else seconds(rows, {}))
    loose = (table.n % ALIGNED > 0) | (table.k % ALIGNED > 0)
    print(table.round(3).to_string(index=False))
    print(
        table.assign(aligned=~loose).groupby(["chip", "aligned"])[list(table.columns[4:])].mean().round(3).to_string()
    )


if __name__ == "__main__":
    main()
