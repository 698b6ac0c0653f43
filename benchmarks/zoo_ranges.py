"""How wide the ranges of whole programs must be: half-widths by class of kernels, from programs left out.

    python benchmarks/zoo_ranges.py [FOLDER] [--chip CHIP] [--inside SHARE] [--cache FILE]

A program's residual, ln(measured / predicted), is taken as the sum of one error for each class of its kernels, as large
as the class's share of the time, and one of the whole program; all errors are independent. Their half-widths are fitted
to all programs but one (every setting of a program is left out with it), scaled so that ``--inside`` of those lie
inside, and judged on that one. Programs are those of FOLDER (as in benchmarks/zoo.py) and the rows of models.csv whose
pace the device sets. Prints the table for the chip's ``[efficiency.parameters.program]``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zoo
from scipy.optimize import minimize

import roofline as rl
from roofline.analysis.prediction import model_estimate
from roofline.cost import GROUPS, spread
from roofline.hardware.chip import Chip

#: Degrees of freedom of the errors' distribution: some programs are far off, and must not set the width of all others.
FREEDOM = 4
#: Standard deviation of a half-width about its prior, in the logarithm: a class that few programs use stays near it.
LOOSE = 0.5
NAMES = tuple(GROUPS["program"])


@dataclass(frozen=True)
class Program:
    """One setting of a program: what it is a setting of, its error, and the classes' shares of the predicted time."""

    kind: str
    name: str
    what: str
    residual: float
    shares: Mapping[str, float]
    low: float
    high: float


def program(kind: str, name: str, what: str, measured: float, est: rl.Estimate) -> Program:
    """Set a measured time [us] beside an estimate."""
    chip, seconds = est.chip, Counter[str]()
    for row, time in est.timed:
        for group, part in time.uncertainty.items():
            seconds[group] += row.kernel.count * float(part) / spread(chip, group, "program")
    total = float(est.device_time)
    shares = {group: each / total for group, each in seconds.items()}
    ends = (math.log(float(end) / total) for end in (est.low, est.high))
    return Program(kind, name, what, math.log(measured * 1e-6 / total), shares, *ends)


def gathered(folder: Path, chip: Chip) -> list[Program]:
    """Capture and estimate every program."""
    own, made = zoo.modules(folder), []
    for row in zoo.rows_of(folder, "models.csv"):
        if row["mode"] != "cudagraph":
            measured = min(float(row["kernel_us"] or "inf"), float(row["wall_us"]))
            est = rl.estimate(zoo.capture(row, own), chip, mode="graph")
            kind = "training steps" if row["mode"].startswith("train") else "programs of strangers"
            made.append(program(kind, row["model"], " ".join(row[key] for key in zoo.KEYS), measured, est))
    for row in zoo.rows_of(folder.parent, "models.csv"):
        if row["regime"] == "device":
            est = model_estimate({**row, "mode": {"eager": "graph"}.get(row["mode"], row["mode"])}, chip)
            what = " ".join(row[key] for key in ("model", "phase", "mode", "dtype", "batch", "seq", "context"))
            made.append(program("shipped models", row["model"], what, float(row["wall_us"]), est))
    return made


class Table:
    """The programs as arrays, each program counting as one however many settings it has."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self.names = np.array([each.name for each in programs])
        self.size = np.abs([each.residual for each in programs])
        self.squares = np.array([[each.shares.get(name, 0.0) ** 2 for name in NAMES] for each in programs])
        self.squares[:, NAMES.index("whole_program")] = 1.0
        settings = Counter(self.names.tolist())
        self.weight = np.array([1 / settings[name] for name in self.names.tolist()])

    def half_widths(self, logs: Any) -> Any:
        """Half-width of each setting's range for half-widths of the classes, all in the logarithm."""
        return np.sqrt(self.squares @ np.exp(2 * logs))


def fit(table: Table, of: Any, prior: Any) -> Any:
    """Half-widths of the classes, up to a factor: the likeliest for the settings ``of``, with the prior."""

    def loss(logs: Any) -> float:
        scale = table.half_widths(logs)[of] / 2
        each = np.log(scale) + (FREEDOM + 1) / 2 * np.log1p((table.size[of] / scale) ** 2 / FREEDOM)
        return float((table.weight[of] * each).sum() + (((logs - prior) / LOOSE) ** 2).sum() / 2)

    return minimize(loss, prior, method="L-BFGS-B").x


def quantile(values: Any, weights: Any, share: float) -> float:
    """The value below which a share of the weight lies."""
    order = np.argsort(values)
    return float(np.interp(share, np.cumsum(weights[order]) / weights.sum(), values[order]))


def left_out(table: Table, prior: Any) -> Any:
    """Half-width of each setting from a fit without its program, up to a factor."""
    widths = np.empty(len(table.names))
    for name in dict.fromkeys(table.names.tolist()):
        of = table.names == name
        widths[of] = table.half_widths(fit(table, ~of, prior))[of]
    return widths


def judged(table: Table, widths: Any, inside: float) -> Any:
    """Half-widths scaled, each without its program, so that a share of all others lies inside."""
    ratio, scaled = table.size / widths, np.empty_like(widths)
    for name in dict.fromkeys(table.names.tolist()):
        of = table.names == name
        scaled[of] = widths[of] * quantile(ratio[~of], table.weight[~of], inside)
    return scaled


def figures(programs: Sequence[Program], widths: Any) -> str:
    """Shares inside and widths of the ranges, left out and as shipped."""
    inside = np.mean([abs(each.residual) <= width for each, width in zip(programs, widths, strict=True)])
    shipped = np.mean([each.low <= each.residual <= each.high for each in programs])
    ratio, now = math.exp(2 * np.median(widths)), math.exp(np.median([each.high - each.low for each in programs]))
    return f"left out: inside {inside:.0%} at median high:low {ratio:.2f}; shipped: {shipped:.0%} at {now:.2f}"


def show(programs: Sequence[Program], share: float) -> None:
    """Print the settings that lie outside, the figures and the table."""
    table = Table(programs)
    prior = np.log(np.log([GROUPS["program"][name].prior for name in NAMES]) / 2)
    widths = left_out(table, prior)
    scaled = judged(table, widths, share)
    for each, width in zip(programs, scaled, strict=True):
        if abs(each.residual) > width:
            parts = ", ".join(f"{name} {part:.0%}" for name, part in Counter(each.shares).most_common(3))
            print(f"outside: {each.what[:60]:60s} {each.residual:+.2f}, half-width {width:.2f}: {parts}")
    for kind in dict.fromkeys(each.kind for each in programs):
        of = [at for at, each in enumerate(programs) if each.kind == kind]
        print(f"{len(of):3d} {kind}, {figures([programs[at] for at in of], scaled[of])}")
    scale = math.log(quantile(table.size / widths, table.weight, share))
    print("\n[efficiency.parameters.program]")
    for name, log in zip(NAMES, fit(table, np.ones(len(programs), dtype=bool), prior) + scale, strict=True):
        users = len({each.name for each in programs if each.shares.get(name, 0.0) > 0.1})
        print(f"{name} = {math.exp(math.exp(log)):.3g}  # {users} programs with a tenth of their time")


def main() -> None:
    """Fit, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=zoo.FOLDER)
    parser.add_argument("--chip", default="h100-sxm")
    parser.add_argument("--inside", type=float, default=0.92)
    parser.add_argument("--cache", type=Path, help="what was captured and predicted: read if it is there, else written")
    options = parser.parse_args()
    if options.cache and options.cache.exists():
        programs = [Program(**each) for each in json.loads(options.cache.read_text(encoding="utf-8"))]
    else:
        programs = gathered(options.folder, rl.chip(options.chip))
    if options.cache:
        options.cache.write_text(json.dumps([asdict(each) for each in programs]), encoding="utf-8")
    show(programs, options.inside)


if __name__ == "__main__":
    main()
