"""What to optimise first in a fleet: the programs with most to gain, each with where its time goes."""

from __future__ import annotations

from typing import Any

from roofline.fleet.results import Fleet
from roofline.ir.errors import UsageError
from roofline.ir.text import shown
from roofline.ir.units import format_si
from roofline.view.charts.chart import ResultChart
from roofline.view.charts.marks import Axis, Bars, Drawing, Panel
from roofline.view.charts.waterfall import height

#: Programs that are shown, and characters of their names.
MOST, LONGEST = 20, 22
#: Parts of a program's time, from the left: what the changes leave, and what they save.
PARTS = (("stays", "compute"), ("saved by the changes", "launch"))


class FleetRanking(ResultChart[Fleet]):
    """The programs of a fleet with most to gain, made by :func:`plot_fleet`."""

    kind, made_by, schema = Fleet, "rl.fleet.run", "fleet_ranking"

    def drawing(self) -> Drawing:
        """Return a bar for each program: what would stay of its weighed time, and what would be saved."""
        rows = top(self.result)
        whole = [row["program_weight"] * row["time_s"] / (row["batch"] or 1) for row in rows]
        saved = [row["gain"] for row in rows]
        stays = [all_of - less for all_of, less in zip(whole, saved, strict=True)]
        hover = [f"{', '.join((row['model'], *_where(row)))}\n{format_si(row['time_s'], 's')} a run, "
                 f"{row['bound']}-bound\n{row['change'] or 'no change'} first" for row in rows]  # fmt: skip
        names, shared = _names(rows)
        texts = [f"{less / all_of:.0%}" if all_of else "" for all_of, less in zip(whole, saved, strict=True)]
        marks = (Bars(range(len(rows)), stays, 0.0, PARTS[0][1], PARTS[0][0], hover=hover),
                 Bars(range(len(rows)), saved, stays, PARTS[1][1], PARTS[1][0], texts, hover))  # fmt: skip
        panel = Panel(marks, Axis("weighed time of an item", "s", low=0.0), Axis(categories=names))
        counts = self.result.summary()
        under = f"{counts['programs']:,} programs, {counts['answers']:,} answers; the {len(rows)} with most to gain"
        under = ", ".join((under, *shared))
        return Drawing((panel,), "What to optimise first", under, size=(9.0, max(height(len(rows)) + 1.0, 3.4)))


def top(fleet: Fleet) -> list[dict[str, Any]]:
    """Return the rows with most to gain, each program and chip once."""
    best: dict[Any, dict[str, Any]] = {}
    for row in fleet.ranked():
        best.setdefault((row["program_path"], row["chip"], row["phase"]), row)
    return list(best.values())[:MOST]


def _where(row: dict[str, Any]) -> tuple[str, ...]:
    return row["phase"], row["chip"], f"batch {row['batch']:,}" if row["batch"] else ""


def _names(rows: list[dict[str, Any]]) -> tuple[tuple[str, ...], list[str]]:
    """Return a name for each bar, short enough for a narrow screen, and what would stand in all of them."""
    where = [_where(row) for row in rows]
    shared = [column[0] if len(set(column)) == 1 else "" for column in zip(*where, strict=True)]
    names = []
    for row, parts in zip(rows, where, strict=True):
        name = row["model"] if len(row["model"]) <= LONGEST else f"...{row['model'][3 - LONGEST :]}"
        names.append(", ".join((name, *(part for part, same in zip(parts, shared, strict=True) if part and not same))))
    return tuple(names), [part for part in shared if part]


def plot_fleet(fleet: Fleet) -> FleetRanking:
    """Describe a chart of what to optimise first in a fleet.

    Args:
        fleet: From :func:`roofline.fleet.run` or :func:`roofline.fleet.read`.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: No fleet, or one without a time.

    Example:
        >>> import roofline as rl, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fleet = rl.fleet.run("gpt2", ["l4", "t4"], folder, workers=0)
        >>> plot_fleet(fleet)
        <FleetRanking: What to optimise first>
    """
    chart = FleetRanking(fleet)
    if not fleet.timed:
        raise UsageError(f"no program of this fleet has a time: {shown(fleet)}")
    return chart
