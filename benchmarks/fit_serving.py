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
from roofline.serving.backends import BACKENDS
from roofline.serving.loads import Loads, Stack, Terms, seconds, terms

#: What is fitted, and the unit of each step [s].
FITTED = {"step": 1e-5, "sequence": 1e-5, "request": 1e-2}
#: Share of error of a time per token, and of a time to the first, that counts as one; beyond it errors count linearly.
TOLERANCES = (0.05, 0.5)
CONFIGURATION = ("model_path", "system", "backend", "precision", "tp_size", "isl", "osl")
Row = dict[str, str]


@dataclass(frozen=True)
class Point:
    """A row with the times of its steps: single numbers."""

    row: Row
    terms: Terms
    loads: Loads
    layers: int
    groups: int


def part(row: Row, parts: int, salt: str = "") -> int:
    """The part that a row's configuration falls into."""
    name = "|".join(row[column] for column in CONFIGURATION)
    return int(hashlib.sha256((salt + name).encode()).hexdigest(), 16) % parts


def points(rows: Sequence[Row]) -> list[Point]:
    """Work out the steps of each row; those that cannot be predicted are left out."""
    groups: dict[Any, list[tuple[Row, Any]]] = {}
    for row in rows:
        try:
            key, load = bench.read_row(row)
        except RooflineError:
            continue
        groups.setdefault(key, []).append((row, load))
    found = []
    for key, members in groups.items():
        try:
            server = bench.server_of(key)
            loads = bench.loads_of([load for _, load in members])
            each = terms(server, loads, BACKENDS[key.backend].stack.whole)
        except RooflineError:
            continue
        for at, (row, _) in enumerate(members):
            one, own = (type(some)(**{name: np.broadcast_to(value, loads.users.shape)[at] for name, value in
                                      vars(some).items()}) for some in (each, loads))  # fmt: skip
            found.append(Point(row, one, own, server.layers, server.groups))
    return found


def stacked(some: Sequence[Point]) -> tuple[Terms, Loads, Any, Any]:
    """Points as arrays."""
    both = [type(first)(**{name: np.array([getattr(each, name) for each in column]) for name in vars(first)})
            for column in zip(*((p.terms, p.loads) for p in some), strict=True) for first in column[:1]]  # fmt: skip
    return both[0], both[1], np.array([p.layers for p in some]), np.array([p.groups for p in some])


def ratios(stack: Stack, some: Sequence[Point]) -> tuple[Any, Any]:
    """Predicted over measured times: per token, and to the first."""
    first, each = seconds(stack, *stacked(some))
    measured = [[float(p.row[name]) / 1e3 for p in some] for name in ("silicon_tpot_ms", "silicon_ttft_ms")]
    return each / np.array(measured[0]), first / np.array(measured[1])


def fit(backend: str, some: Sequence[Point]) -> Stack:
    """Fit the figures of a backend."""
    base = BACKENDS[backend].stack

    def stack(x: Sequence[float]) -> Stack:
        return replace(
            base, **{name: float(value) * unit for (name, unit), value in zip(FITTED.items(), x, strict=True)}
        )

    def errors(x: Sequence[float]) -> Any:
        logs = (np.log(np.maximum(ratio, 1e-6)) for ratio in ratios(stack(x), some))
        return np.concatenate([log / tolerance for log, tolerance in zip(logs, TOLERANCES, strict=True)])

    lowest = [-np.inf if name == "step" else 0.0 for name in FITTED]
    start = [0.0 if name == "step" else 1.0 for name in FITTED]
    return stack(least_squares(errors, start, bounds=(lowest, np.inf), loss="soft_l1", diff_step=1e-3).x)


def apart(backend: str, some: Sequence[Point], what: Callable[[Row], Any]) -> Any:
    """Ratios of the time per token, each group predicted by figures that were fitted to the others."""
    found = np.ones(len(some))
    names = np.array([str(what(p.row)) for p in some])
    for name in set(names) if len(set(names)) > 1 else ():
        rest, own = ([p for p, keep in zip(some, names == name, strict=True) if keep == here] for here in (False, True))
        found[names == name] = ratios(fit(backend, rest), own)[0]
    return found


def main() -> None:
    with open(sys.argv[1], encoding="utf-8", newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if part(row, 2) == 0]
    known = points(rows)
    print(f"{len(known)} of {len(rows)} rows of the first half")
    for backend in BACKENDS:
        some = [p for p in known if p.row["backend"] == backend]
        stack, left_out = fit(backend, some), 1 / apart(backend, some, lambda row: part(row, 5, "fifth"))
        low, high = np.quantile(left_out, (0.1, 0.9))
        figures = ", ".join(f"{name}={getattr(stack, name):.3g}" for name in FITTED)
        print(f"{backend}: {figures}; range {low:.2f} to {high:.2f} ({len(some)} rows)")
        for option, column in (("--by-chip", "system"), ("--by-model", "model_path")):
            if option in sys.argv:
                for name in sorted({p.row[column] for p in some}):
                    rest, own = ([p for p in some if (p.row[column] == name) == here] for here in (False, True))
                    if rest:
                        error = np.abs(ratios(fit(backend, rest), own)[0] - 1)
                        mean, middle = error.mean(), np.median(error)
                        print(f"  without {name} ({len(own)} rows): mean {mean:.1%}, median {middle:.1%}")


if __name__ == "__main__":
    main()
