"""How wide the ranges of whole programs must be: half-widths by class of kernels, from programs left out.

    python benchmarks/zoo_ranges.py [FOLDER] [--chip CHIP] [--inside SHARE] [--cache FILE]

A program's residual, ln(measured / predicted), is taken as the sum of one error for each class of its kernels, as large
as the class's share of the time, and one of the whole program; all errors are independent. Their half-widths minimise
the interval score (Gneiting and Raftery, Strictly proper scoring rules, 2007, section 6.2: the width, and how far what
lies outside is from it over the share that may) over all programs but one, every setting of which is left out with it,
and are judged on that one. Programs are those of FOLDER (as in benchmarks/zoo.py) and the rows of models.csv whose pace
the device sets. Prints the tables of docs/accuracy.md and the chip's ``[efficiency.parameters.program]``.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zoo
from scipy.optimize import minimize
from scipy.special import expit

import roofline as rl
from roofline.analysis.prediction import model_estimate
from roofline.cost import GROUPS, spread
from roofline.hardware.chip import Chip

#: Standard deviation of a half-width, in the logarithm, about half of that of a chip without figures: a class that few
#: programs use stays near it.
LOOSE = 0.5
#: Classes of which hardly an operator was measured alone: about the whole of it. What is known of them was learnt from
#: these programs.
FEW_ROWS = frozenset({"conv_other", "strided", "training", "unmeasured"})
#: What the scores of a program are in units of, against that; and over what the edge of a range is smoothed.
UNIT, EDGE = 0.3, 0.02
#: Settings that are listed.
WORST = 12
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
            made.append(program(zoo.kind_of(row), row["model"], " ".join(row[key] for key in zoo.KEYS), measured, est))
    whole = folder.parent / "models.csv"
    for row in zoo.rows_of(folder.parent, "models.csv") if whole.exists() else ():
        if row["regime"] == "device":
            est = model_estimate({**row, "mode": {"eager": "graph"}.get(row["mode"], row["mode"])}, chip)
            what = " ".join(row[key] for key in ("model", "phase", "mode", "dtype", "batch", "seq", "context"))
            made.append(program("models of models.csv", row["model"], what, float(row["wall_us"]), est))
    return made


class Table:
    """The programs as arrays; a program with more settings counts for more, but not in proportion."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self.names = np.array([each.name for each in programs])
        self.size = np.abs([each.residual for each in programs])
        self.squares = np.array([[each.shares.get(name, 0.0) ** 2 for name in NAMES] for each in programs])
        self.squares[:, NAMES.index("whole_program")] = 1.0
        settings = Counter(self.names.tolist())
        self.weight = np.array([settings[name] ** -0.5 for name in self.names.tolist()])

    def half_widths(self, logs: Any) -> Any:
        """Half-width of each setting's range for half-widths of the classes, all in the logarithm."""
        return np.sqrt(self.squares @ np.exp(2 * logs))


def fit(table: Table, of: Any, inside: float) -> Any:
    """Logarithms of the classes' half-widths, from the settings ``of``."""
    known = [GROUPS["program"][name] for name in NAMES]
    prior = np.log([math.log(GROUPS["program"][name].prior) / (1 if name in FEW_ROWS else 2) for name in NAMES])
    most = [math.log(math.log(each.high)) for each in known]

    def loss(logs: Any) -> tuple[float, Any]:
        half = table.half_widths(logs)[of]
        over = (table.size[of] - half) / EDGE
        score = table.weight[of] @ (half + EDGE * np.logaddexp(0, over) / (1 - inside)) / UNIT
        slope = table.weight[of] * (1 - expit(over) / (1 - inside)) / half / UNIT
        off = (logs - prior) / LOOSE
        return score + off @ off / 2, slope @ table.squares[of] * np.exp(2 * logs) + off / LOOSE

    return minimize(loss, prior, jac=True, method="L-BFGS-B", bounds=[(-5, each) for each in most]).x


def left_out(table: Table, inside: float) -> Any:
    """Half-width of each setting's range from a fit without its program."""
    widths = np.empty(len(table.names))
    for name in dict.fromkeys(table.names.tolist()):
        of = table.names == name
        widths[of] = table.half_widths(fit(table, ~of, inside))[of]
    return widths


def figures(programs: Sequence[Program], widths: Any) -> str:
    """A row of a table: errors, and how many the ranges hold and how wide they are, left out and as shipped."""
    size = 100 * np.abs([math.exp(-each.residual) - 1 for each in programs])
    inside = np.mean([abs(each.residual) <= width for each, width in zip(programs, widths, strict=True)])
    shipped = np.mean([each.low <= each.residual <= each.high for each in programs])
    ratio, now = math.exp(2 * np.median(widths)), math.exp(np.median([each.high - each.low for each in programs]))
    errors = f"{size.mean():.1f} / {np.median(size):.1f} / {np.quantile(size, 0.9):.1f} %"
    return f"{len(programs)} | {errors} | {inside:.0%} at {ratio:.2f} | {shipped:.0%} at {now:.2f} |"


def tables(programs: Sequence[Program], widths: Any) -> Iterator[str]:
    """Figures by kind of program and the settings that are furthest off, as docs/accuracy.md has them."""
    yield "| programs | settings | error: mean / median / p90 | inside, left out, at high:low | inside as shipped |"
    yield "|---|---|---|---|---|"
    models = np.array([each.kind.startswith("models") for each in programs])
    steps = np.array([each.kind.startswith("training") for each in programs])
    groups = {
        kind: np.array([each.kind == kind for each in programs]) for kind in dict.fromkeys(p.kind for p in programs)
    }
    for name, of in {"all eager programs": ~models & ~steps, **groups}.items():
        yield f"| {name} | " + figures([one for one, has in zip(programs, of, strict=True) if has], widths[of])
    yield "\n| setting | error | within a factor of | made of |\n|---|---|---|---|"
    strangers = [at for at in np.argsort([-abs(each.residual) for each in programs]) if not models[at]]
    for at in strangers[:WORST]:
        one = programs[at]
        parts = ", ".join(f"{name} {part:.0%}" for name, part in Counter(one.shares).most_common(3))
        yield f"| {one.what} | {math.exp(-one.residual) - 1:+.0%} | {math.exp(widths[at]):.2f} | {parts} |"


def show(programs: Sequence[Program], inside: float) -> None:
    """Print the tables and the fitted half-widths."""
    table = Table(programs)
    print("\n".join(tables(programs, left_out(table, inside))))
    print("\n[efficiency.parameters.program]")
    for name, log in zip(NAMES, fit(table, np.ones(len(programs), dtype=bool), inside), strict=True):
        users = len({each.name for each in programs if each.shares.get(name, 0.0) > 0.1})
        print(f"{name} = {math.exp(math.exp(log)):.3g}  # {users} programs with a tenth of their time")


def main() -> None:
    """Fit, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=zoo.FOLDER)
    parser.add_argument("--chip", default="h100-sxm")
    parser.add_argument("--inside", type=float, default=0.9)
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
