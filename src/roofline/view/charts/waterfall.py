"""Parts that add up to a whole: where a measured time went, and the panel that other charts of parts share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from roofline.diagnosis.causes import Verdict
from roofline.diagnosis.report import TraceReport
from roofline.ir.errors import UsageError
from roofline.ir.report import title
from roofline.ir.text import shown
from roofline.ir.units import format_si
from roofline.view.charts.chart import Chart
from roofline.view.charts.marks import Axis, Bars, Drawing, Mark, Panel, Region, Rule
from roofline.view.charts.style import clean, part_colours

#: A limit that is further away than this many times the whole is said and not drawn to scale.
NEAR = 4.0
#: Height of a bar, and of all that is around the bars of a chart [inch].
BAR, AROUND = 0.36, 1.5


def words(name: str) -> str:
    """Return what a reader calls a part.

    Example:
        >>> words("kv_cache"), words("data_parallel")
        ('KV cache', 'data parallel')
    """
    return name.replace("kv_", "KV ").replace("_", " ")


def waterfall(
    parts: Mapping[str, float],
    colours: Sequence[str],
    axis: Axis,
    whole: str = "total",
    marks: Sequence[Mark] = (),
    hover: Sequence[str] = (),
    written: Callable[[str], str] = words,
    **panel: Any,
) -> Panel:
    """Return a bar for each part, each beginning where the one above it ends, and one for the whole.

    Args:
        parts: By name, in order.
        colours: Name of the colour of each.
        axis: What they are parts of, from left to right.
        whole: Name of the last bar.
        marks: What else is on the panel, below the bars.
        hover: What else to say of each part.
        written: What a reader calls a part.
        panel: As for :class:`~roofline.view.charts.marks.Panel`.
    """
    sizes, total = list(parts.values()), sum(parts.values())
    texts = [f"{axis.text(size)}, {_share(size / total)}" if total else axis.text(size) for size in sizes]
    more = hover or [""] * len(sizes)
    said = [f"{written(name)}: {text}" + (f"\n{note}" if note else "")
            for name, text, note in zip(parts, texts, more, strict=True)]  # fmt: skip
    bars = (
        Bars(range(len(sizes)), sizes, [0.0, *accumulate(sizes)][:-1], list(colours), texts=texts, hover=said),
        Bars([len(sizes)], [total], colour="soft", texts=[axis.text(total)], hover=[f"{whole}: {axis.text(total)}"]),
    )
    names = Axis(categories=(*(clean(written(name)) for name in parts), whole))
    return Panel((*marks, *bars), axis, names, **panel)


def _share(share: float) -> str:
    return f"{share:.1%}" if share >= 0.0005 or not share else "<0.1%"


def height(rows: int) -> float:
    """Return how high a chart of so many bars is [inch]."""
    return AROUND + BAR * rows


@dataclass(frozen=True, eq=False, repr=False)
class Waterfall(Chart):
    """Where a measured time went, made by :func:`plot_verdict`.

    Attributes:
        of: The verdict, or the report of a trace.
    """

    schema = "waterfall"

    of: Verdict | TraceReport

    @property
    def parts(self) -> dict[str, float]:
        """Time by part, from the floor up [s]; empty where the time is impossible."""
        return dict(self.of.waterfall)

    @property
    def measured(self) -> float:
        """The whole [s]."""
        return self.of.measured if isinstance(self.of, Verdict) else self.of.seconds

    def subject(self) -> dict[str, Any]:
        """Return what was measured."""
        return self.of.subject()

    def summary(self) -> dict[str, Any]:
        """Return the measured time, and what was expected."""
        if isinstance(self.of, TraceReport):
            return {"measured_s": self.measured}
        est = self.of.estimate
        limits = {"expected_s": est.time, "low_s": est.low, "high_s": est.high, "lower_bound_s": self.of.lower_bound}
        return {"verdict": self.of.verdict, "measured_s": self.measured, **limits}

    def records(self) -> list[dict[str, Any]]:
        """Return one row per part: where it begins, its time and share, what shows it and what to do."""
        about = {cause.label: cause for cause in self.of.causes}
        starts = [0.0, *accumulate(self.parts.values())]
        return [
            {"part": part, "start_s": start, "time_s": seconds, "share": seconds / self.measured}
            | {key: getattr(about.get(part), key, "") for key in ("evidence", "fix")}
            for start, (part, seconds) in zip(starts, self.parts.items(), strict=False)
        ]

    def drawing(self) -> Drawing:
        """Return a bar for each part, the measured time, and what was expected."""
        guesses = self.of.guesses if isinstance(self.of, Verdict) else frozenset()
        parts = {f"{name}?" if name in guesses else name: seconds for name, seconds in self.parts.items()}
        hover = ["\n".join(filter(None, (row["evidence"], row["fix"]))) for row in self.records()]
        high = max([self.measured, *(end for end in self._ends() if end < NEAR * self.measured or not self.parts)])
        axis = Axis("time", "s", low=0.0, high=1.12 * high)
        panel = waterfall(parts, part_colours(list(self.parts)), axis, "measured", self._limits(), hover)
        if not parts:  # an impossible time has no parts
            bar = Bars([0], [self.measured], colour="red", texts=[f"{format_si(self.measured, 's')}: impossible"],
                       hover=[str(self.of)])  # fmt: skip
            panel = Panel((*self._limits(), bar), axis, Axis(categories=("measured",)))
        return Drawing((panel,), *self._title(), size=(8.0, height(len(parts) + 1)), legend=False)

    def _ends(self) -> tuple[float, ...]:
        if isinstance(self.of, TraceReport):
            return ()
        return float(self.of.estimate.high), self.of.lower_bound

    def _limits(self) -> list[Mark]:
        """Return the expected time with its range, and the time below which no run is."""
        if isinstance(self.of, TraceReport):
            return []
        est, bound = self.of.estimate, self.of.lower_bound
        marks: list[Mark] = [
            Region(x0=float(est.low), x1=float(est.high), colour="compute"),
            Rule(x=float(est.time), label=f"expected {format_si(float(est.time), 's')}", colour="compute", dash=True),
        ]
        if not self.of.waterfall:
            marks.append(Rule(x=bound, label=f"no run takes less than {format_si(bound, 's')}", colour="red"))
        return marks

    def _title(self) -> tuple[str, str]:
        if isinstance(self.of, TraceReport):
            name = os.path.basename(self.of.source)
            return f"Where the time of {name} went", str(self.of).partition(" on ")[2]
        est = self.of.estimate
        return f"{self.of.verdict.replace('_', ' ')}: {est.graph.name} on {est.chip.name}", title(self.subject())

    def __repr__(self) -> str:
        return f"<Waterfall of {self.of!r}>"


def plot_verdict(verdict: Verdict | TraceReport) -> Waterfall:
    """Describe a chart of where a measured time went: from the floor over each cause to what was measured.

    Args:
        verdict: From :func:`roofline.check`, or the report of a trace.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: Neither of the two.

    Example:
        >>> import roofline as rl
        >>> verdict = rl.check("gpt2", "h100-sxm", "40 ms", phase="decode", mode="graph", batch=8, context=512)
        >>> [row["part"] for row in plot_verdict(verdict).records()][:2]
        ['floor', 'efficiency']
    """
    if not isinstance(verdict, Verdict | TraceReport):
        raise UsageError(f"expected a Verdict of rl.check or a TraceReport, given {shown(verdict)}")
    return Waterfall(verdict)
