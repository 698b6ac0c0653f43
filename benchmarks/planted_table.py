"""Label against top cause for the planted programs, with and without their traces.

    python benchmarks/planted_table.py [SET ...]
    python benchmarks/planted_table.py --ranges [SET ...]
    python benchmarks/planted_table.py --record

The sets are the folders of tests/planted (see its README). A cause counts from 15 % of the measured time; a program
without one is ``ok``. With ``--ranges``, what the programs of each label say of the ranges of its hypotheses: how many
times lie within, and the middle 80 % of the figures that the times would need. With ``--record``, how often each
hypothesis was the one that fitted a time best, and how often rightly, goes to measurements/hypotheses.csv, which
``check`` quotes.
"""

from __future__ import annotations

import csv
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

import roofline as rl
from roofline.diagnosis.hypotheses import HYPOTHESES, RANGES, Hypothesis
from roofline.diagnosis.reference import Reference

FOLDER = Path(__file__).resolve().parents[1] / "tests" / "planted"
RECORD = FOLDER.parents[1] / "measurements" / "hypotheses.csv"
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
    work: str
    dtype: str
    seconds: float

    @cached_property
    def graph(self) -> rl.Graph:
        return rl.workload(json.loads(self.work), self.dtype, self.case)

    @property
    def trace(self) -> Path:
        """Its trace, which not every set has."""
        return FOLDER / self.group / "traces" / f"{self.case}.json.gz"

    def judged(self, with_trace: bool) -> rl.diagnosis.Verdict:
        """What the tool says."""
        trace = self.trace if with_trace else None
        return rl.check(self.graph, CHIPS[self.group], self.seconds, trace=trace)


def read(group: str) -> Iterator[Planted]:
    """The programs of a set."""
    with open(FOLDER / group / "planted.csv", newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield Planted(group, row["case"], row["label"], row["work"], row["dtype"], float(row["wall_us"]) * 1e-6)


def top(found: rl.diagnosis.Verdict) -> str:
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


def ranges(groups: list[str]) -> None:
    """Print what the programs of each label say of its hypotheses' ranges."""
    programs = [one for group in groups for one in read(group)]
    for hypothesis in HYPOTHESES:
        own = [one for one in programs if one.label == hypothesis.label]
        figures = [figure for one in own if (figure := needed(hypothesis, one)) is not None]
        cost = RANGES[hypothesis.range]
        within = sum(inside for _, inside in figures)
        low, high = np.quantile([figure for figure, _ in figures], [0.1, 0.9]) if figures else (np.nan, np.nan)
        text = f"{cost.low:.3g} to {cost.high:.3g} {cost.unit}"
        print(f"{hypothesis.label:14} {hypothesis.range:12} {text:32} {within:3} of {len(figures):3} within, "
              f"{low:.3g} to {high:.3g}")  # fmt: skip


def record(judged: Mapping[Planted, rl.diagnosis.Verdict]) -> dict[str, tuple[int, int]]:
    """Return how often each hypothesis was right, and how often it was the one that fitted a time best."""
    right, named = Counter[str](), Counter[str]()
    for one, found in judged.items():
        if top(found) == "ok" or found.candidates[0].label != top(found):
            continue
        best = found.candidates[0]
        named[best.question] += 1
        right[best.question] += best.label == one.label
    return {hypothesis.question: (right[hypothesis.question], named[hypothesis.question]) for hypothesis in HYPOTHESES}


def write_record(groups: list[str]) -> None:
    """Write the record of every hypothesis over all programs; times on another chip are no other programs."""
    programs = [one for group in groups if group != "first-h200" for one in read(group)]
    rows = record({one: one.judged(with_trace=False) for one in programs})
    with RECORD.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([("label", "question", "right", "named"),
                          *((each.label, each.question, *rows[each.question]) for each in HYPOTHESES)])  # fmt: skip


def needed(hypothesis: Hypothesis, one: Planted) -> tuple[float, bool] | None:
    """Return the figure that explains a program's time, and whether its time is within; ``None``: does not apply."""
    reference = Reference(one.graph, rl.chip(CHIPS[one.group]), "eager", None, {})
    cost = RANGES[hypothesis.range]
    try:
        span = hypothesis.span(reference, cost)
    except rl.errors.RooflineError:
        return None
    if span is None or span[1] <= reference.attainable:
        return None
    place = (one.seconds - span[0]) / (span[1] - span[0])  # times are linear in the figure
    return cost.low + place * (cost.high - cost.low), span[0] <= one.seconds <= span[1]


def main(groups: list[str]) -> None:
    """Both tables of each set, or what they say of the ranges."""
    if groups == ["--record"]:
        return write_record(list(CHIPS))
    if groups[:1] == ["--ranges"]:
        return ranges(groups[1:] or list(CHIPS))
    for group in groups or list(CHIPS):
        if (FOLDER / group / "traces").is_dir():
            table([group], with_trace=True)
        table([group], with_trace=False)


if __name__ == "__main__":
    main(sys.argv[1:])
