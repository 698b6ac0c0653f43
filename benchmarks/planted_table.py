"""Label against top cause for the planted programs, with and without their traces.

    python benchmarks/planted_table.py [SET ...]

The sets are the folders of tests/planted (see its README). A cause counts from 15 % of the measured time; a program
without one is ``ok``.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import roofline as rl

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "planted"
#: Where each set was measured.
CHIPS = {"reference": "h100-sxm", "first": "h100-sxm", "first-h200": "h200-sxm", "second": "h200-sxm",
         "third": "h100-sxm", "fourth": "h100-sxm", "pair": "h200-sxm"}  # fmt: skip
#: Share of the measured time from which a cause counts.
COUNTS = 0.15


@dataclass(frozen=True)
class Planted:
    """A program with a known cause."""

    group: str
    case: str
    label: str
    graph: rl.Graph
    tf32: bool
    seconds: float

    @property
    def trace(self) -> Path:
        """Its trace, which not every set has."""
        return FOLDER / self.group / "traces" / f"{self.case}.json.gz"

    def judged(self, with_trace: bool) -> rl.Verdict:
        """What the tool says."""
        trace = self.trace if with_trace else None
        return rl.check(self.graph, CHIPS[self.group], self.seconds, trace=trace, tf32=self.tf32)


def read(group: str) -> Iterator[Planted]:
    """The programs of a set."""
    with open(FOLDER / group / "planted.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            graph = rl.workload(json.loads(row["work"]), row["dtype"], row["case"])
            tf32 = row["dtype"] == "tf32"
            yield Planted(group, row["case"], row["label"], graph, tf32, float(row["wall_us"]) * 1e-6)


def top(found: rl.Verdict) -> str:
    """The cause that explains most, ``ok`` where none explains much."""
    first = next((cause for cause in found.causes if cause.label != "unknown"), None)
    return first.label if first is not None and first.share > COUNTS else "ok"


def table(groups: list[str], with_trace: bool) -> None:
    """Print who was taken for what."""
    start, seen = time.perf_counter(), Counter[tuple[str, str]]()
    wrong: list[str] = []
    for group in groups:
        for one in read(group):
            if with_trace and not one.trace.is_file():
                continue
            found = top(one.judged(with_trace))
            seen[one.label, found] += 1
            if found != one.label:
                wrong.append(f"{one.group}/{one.case}: {one.label} taken for {found}")
    right, number = sum(n for (label, found), n in seen.items() if label == found), sum(seen.values())
    what = "with" if with_trace else "without"
    print(f"\n{', '.join(groups)} {what} traces: {right} of {number} ({right / number:.0%}), "
          f"{time.perf_counter() - start:.1f} s")  # fmt: skip
    for label in dict.fromkeys(label for label, _ in seen):
        found = {top: n for (own, top), n in seen.items() if own == label}
        others = ", ".join(f"{top} {n}" for top, n in sorted(found.items(), key=lambda pair: -pair[1]) if top != label)
        print(
            f"  {label:14} {found.get(label, 0):3} of {sum(found.values()):3}" + (f"   else {others}" if others else "")
        )
    if with_trace:
        print(*(f"  {line}" for line in wrong), sep="\n")


def main(groups: list[str]) -> None:
    """Both tables of each set."""
    for group in groups or list(CHIPS):
        if (FOLDER / group / "traces").is_dir():
            table([group], with_trace=True)
        table([group], with_trace=False)


if __name__ == "__main__":
    main(sys.argv[1:])
