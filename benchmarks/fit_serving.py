"""Fit what serving stacks add to the time of their kernels: the figures of roofline/serving/backends.py.

    python benchmarks/fit_serving.py SERVING.csv [--by-chip] [--by-model]

Takes the table of whole deployments of aiconfigurator (``silicon_sample.csv``: NVIDIA, Apache-2.0,
https://github.com/ai-dynamo/aiconfigurator). Whole configurations (model, chip, backend, precision, devices, lengths)
fall into one of two halves by a hash of their names; three figures of each backend are fitted to the first half, times
per token weighing three times as much as times to the first. The range of a backend holds 80 % of the first half, each
fifth of its configurations predicted by figures that were fitted to the others. ``--by-chip`` and ``--by-model`` leave
each chip or model out instead and say how well it is predicted.
"""

from __future__ import annotations

import csv
import hashlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from roofline.ir.errors import RooflineError
from roofline.serving import benchmarks as bench
from roofline.serving.backends import BACKENDS, Backend
from roofline.serving.repeated import layers_of
from roofline.serving.steady import Work
from roofline.serving.steps import StepTimes

#: What is fitted, and the unit of each step [s].
FITTED = {"step": 1e-5, "sequence": 1e-5, "request": 1e-2}
#: Where the search for a figure starts at least, in its unit.
LEAST = 0.01
#: Share of error of a time per token, and of a time to the first, that counts as one; beyond it errors count linearly.
TOLERANCES = (0.05, 0.5)
CONFIGURATION = ("model_path", "system", "backend", "precision", "tp_size", "isl", "osl")
Row = dict[str, str]


@dataclass(frozen=True)
class Points:
    """Rows of requests of the same lengths to the same server."""

    rows: tuple[Row, ...]
    users: Any
    work: Work
    steps: StepTimes
    layers: int
    stream: int

    @property
    def row(self) -> Row:
        """One of them, for what they have in common."""
        return self.rows[0]


def part(row: Row, parts: int, salt: str = "") -> int:
    """The part that a row's configuration falls into."""
    name = "|".join(row[column] for column in CONFIGURATION)
    return int(hashlib.sha256((salt + name).encode()).hexdigest(), 16) % parts


def points(rows: Sequence[Row]) -> list[Points]:
    """Read rows; those that cannot be predicted are left out."""
    groups: dict[Any, list[tuple[Row, Any]]] = {}
    for row in rows:
        try:
            key, load = bench.read_row(row)
        except RooflineError:
            continue
        # rows of a key and lengths may be configurations of different names
        groups.setdefault((key, *(row[column] for column in CONFIGURATION)), []).append((row, load))
    known = []
    for (key, *_), members in groups.items():
        try:
            served = bench.served_by(key)
            layers = layers_of(str(served.model), served.dtype, served.options)
            for work, places, users in bench.works(served, key, [load for _, load in members]):
                some = tuple(members[at][0] for at in places)
                known.append(Points(some, users, work, served.steps(), layers, key.recipe.stream))
        except RooflineError:
            continue
    return known


def ratios(stack: Backend, some: Sequence[Points]) -> tuple[Any, Any]:
    """Predicted over measured times: per token, and to the first."""
    both = []
    for p in some:
        steps = replace(p.steps, overhead=(stack.step * p.layers, stack.sequence / p.stream))
        first, each = bench.times(steps, replace(p.work, request_seconds=stack.request), p.users)
        measured = (np.array([float(row[f"silicon_{name}_ms"]) / 1e3 for row in p.rows]) for name in ("tpot", "ttft"))
        both.append([ours / theirs for ours, theirs in zip((each, first), measured, strict=True)])
    per_token, first_token = (np.concatenate(column) for column in zip(*both, strict=True))
    return per_token, first_token


def fit(backend: str, some: Sequence[Points]) -> Backend:
    """Fit the figures of a backend."""
    base = BACKENDS[backend]

    def stack(x: Sequence[float]) -> Backend:
        fitted: Any = {name: float(value) * unit for (name, unit), value in zip(FITTED.items(), x, strict=True)}
        return replace(base, **fitted)

    def errors(x: Sequence[float]) -> Any:
        return np.concatenate([(r - 1) / most for r, most in zip(ratios(stack(x), some), TOLERANCES, strict=True)])

    start = [max(getattr(base, name) / unit, LEAST) for name, unit in FITTED.items()]
    return stack(least_squares(errors, start, bounds=(0.0, np.inf), loss="soft_l1", diff_step=1e-3, ftol=1e-4).x)


def apart(backend: str, some: Sequence[Points], what: Callable[[Row], Any]) -> Any:
    """Ratios of the time per token, each group predicted by figures that were fitted to the others."""
    names = sorted({str(what(p.row)) for p in some})
    halves = (([p for p in some if (str(what(p.row)) == name) == here] for here in (False, True)) for name in names)
    return np.concatenate([ratios(fit(backend, rest), own)[0] for rest, own in halves])


def main() -> None:
    with open(sys.argv[1], encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if part(row, 2) == 0]
    known = points(rows)
    print(f"{sum(len(p.rows) for p in known)} of {len(rows)} rows of the first half")
    for backend in BACKENDS:
        some = [p for p in known if p.row["backend"] == backend]
        stack, left_out = fit(backend, some), 1 / apart(backend, some, lambda row: part(row, 5, "fifth"))
        low, high = np.floor(100 * np.quantile(left_out, 0.1)) / 100, np.ceil(100 * np.quantile(left_out, 0.9)) / 100
        figures = ", ".join(f"{name}={getattr(stack, name):.3g}" for name in FITTED)
        print(f"{backend}: {figures}; range {low:.2f} to {high:.2f} ({len(left_out)} rows)")
        for option, column in (("--by-chip", "system"), ("--by-model", "model_path")):
            if option in sys.argv:
                for name in sorted({p.row[column] for p in some}):
                    rest, own = ([p for p in some if (p.row[column] == name) == here] for here in (False, True))
                    if rest:
                        error = np.abs(ratios(fit(backend, rest), own)[0] - 1)
                        mean, middle = error.mean(), np.median(error)
                        print(f"  without {name} ({len(error)} rows): mean {mean:.1%}, median {middle:.1%}")


if __name__ == "__main__":
    main()
