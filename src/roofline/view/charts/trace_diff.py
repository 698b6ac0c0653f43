"""What grew and what shrank between two traces: by operator and by cause, each adding up to the difference."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Any

from roofline.diagnosis.trace_diff import OpChange, TraceDiff
from roofline.ir.units import format_si
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Bars, Drawing, Panel
from roofline.view.charts.style import clean
from roofline.view.charts.waterfall import height, words

#: Operators that have a bar of their own; the others share one.
MOST = 14
#: Longest name beside a bar.
_NAME = 34
#: Of the longer iteration, a change that is not drawn.
_NOTHING = 1e-6


@dataclass(frozen=True)
class _Change:
    """One bar: its name, the times, and what else to say of it."""

    name: str
    change: float
    said: str
    hover: str


class TraceChanges(ResultChart[TraceDiff]):
    """The difference of two traces, made by :func:`plot_diff`."""

    kind, made_by, schema = TraceDiff, "rl.diagnosis.compare_traces", "trace_changes"

    def records(self) -> list[dict[str, Any]]:
        """Return one row per operator and per cause; those of each kind add up to the difference."""
        times = ("time_before_s", "time_after_s", "change_s")
        operators = [{"of": "operator", "name": row.op, "shapes": row.shapes, "outcome": row.outcome}
                     | {name: getattr(row, name) for name in times} for row in self.result.operators]  # fmt: skip
        causes = [{"of": "cause", "name": part.part, "shapes": "", "outcome": ""}
                  | {name: getattr(part, name) for name in times} for part in self.result.parts]  # fmt: skip
        return operators + causes

    def drawing(self) -> Drawing:
        """Return a panel of operators and one of causes, each with the whole difference as its last bar."""
        operators, causes = self._operators(), self._causes()
        panels = tuple(
            self._panel(rows, title)
            for rows, title in ((operators, "by operator"), (causes, "by what it was needed for or lost to"))
        )
        before, after = self.result.before, self.result.after
        names = [os.path.basename(one.source) for one in (before, after)]
        times = " to ".join(format_si(one.seconds, "s") for one in (before, after))
        whole = f"{times} per iteration, {_signed(self.result.change_s)}"
        size = (8.6, height(len(operators) + len(causes) + 2) + 1.0)
        return Drawing(panels, f"From {names[0]} to {names[1]}", whole, size=size)

    def _operators(self) -> list[_Change]:
        rows = [row for row in self.result.operators if not self._none(row.change_s)]
        most, rest = (rows[:MOST], rows[MOST:]) if len(rows) > MOST + 1 else (rows, [])
        bars = [_Change(_named(row), row.change_s, f", {row.outcome}" if row.outcome != "same" else "", _about(row))
                for row in most]  # fmt: skip
        if rest:
            change = fsum(row.change_s for row in rest)
            bars.append(_Change(f"{len(rest)} others", change, "", "\n".join(_named(row) for row in rest[:MOST])))
        return bars

    def _causes(self) -> list[_Change]:
        parts = sorted(self.result.parts, key=lambda part: -abs(part.change_s))
        return [_Change(words(part.part), part.change_s, "", _times(part.time_before_s, part.time_after_s))
                for part in parts if not self._none(part.change_s)]  # fmt: skip

    def _none(self, change: float) -> bool:
        return abs(change) <= _NOTHING * max(self.result.before.seconds, self.result.after.seconds)

    def _panel(self, rows: Sequence[_Change], title: str) -> Panel:
        whole = self.result.change_s
        sides = (("grew", "other2", [i for i, row in enumerate(rows) if row.change > 0]),
                 ("shrank", "other1", [i for i, row in enumerate(rows) if row.change < 0]))  # fmt: skip
        bars = [
            Bars(at, [rows[i].change for i in at], colour=colour, name=name,
                 texts=[f"{_signed(rows[i].change)}{rows[i].said}" for i in at],
                 hover=[f"{rows[i].name}: {_signed(rows[i].change)}{rows[i].said}\n{rows[i].hover}" for i in at])
            for name, colour, at in sides if at
        ]  # fmt: skip
        said = f"difference: {_signed(whole)}"
        last = Bars([len(rows)], [whole], colour="soft", texts=[_signed(whole)], hover=[said])
        ends = [row.change for row in rows] + [whole, 0.0]
        room = (max(ends) - min(ends)) or 1e-6  # texts of short bars stand right of them
        x = Axis("time that an iteration takes more", "s", low=min(ends) - 0.04 * room, high=max(ends) + 0.3 * room)
        names = Axis(categories=(*(row.name for row in rows), "difference"))
        return Panel((*bars, last), x, names, height=len(rows) + 1.0, title=title)


def _named(row: OpChange) -> str:
    name = clean(f"{row.op} {row.shapes}", 400)
    return name if len(name) <= _NAME else f"{name[: _NAME - 1]}…"


def _about(row: OpChange) -> str:
    kernels = (", ".join(names) for names in (row.kernels_before, row.kernels_after))
    changed = " -> ".join(dict.fromkeys(filter(None, kernels)))
    return "\n".join(filter(None, (_times(row.time_before_s, row.time_after_s), row.shapes, row.place, changed)))


def _times(before: float, after: float) -> str:
    return f"{format_si(before, 's')} before, {format_si(after, 's')} after"


def _signed(seconds: float) -> str:
    return f"{'+' if seconds > 0 else ''}{format_si(seconds, 's')}"


def plot_diff(diff: TraceDiff) -> TraceChanges:
    """Describe a chart of the difference of two traces: what grew and what shrank, by operator and by cause.

    Args:
        diff: From :func:`roofline.diagnosis.compare_traces`.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No difference of two traces.

    Example:
        >>> import pathlib, tempfile
        >>> import roofline as rl
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     paths = [pathlib.Path(folder, name) for name in ("before.csv", "after.csv")]
        ...     for path, time in zip(paths, (30, 20)):
        ...         _ = path.write_text(f"name,time_us\\nmm,{time}\\nrelu,10\\n")
        ...     chart = plot_diff(rl.diagnosis.compare_traces(*paths))
        >>> [(row["name"], round(row["change_s"] * 1e6)) for row in chart.records() if row["of"] == "operator"]
        [('mm', -10), ('relu', 0)]
    """
    return TraceChanges(diff)
