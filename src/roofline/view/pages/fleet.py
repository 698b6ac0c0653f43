"""A fleet as a page: what to optimise first, a chart of it, and what failed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from roofline.fleet.results import Fleet
from roofline.ir.units import format_si
from roofline.view.charts.fleet import plot_fleet
from roofline.view.pages.moves import Moves
from roofline.view.pages.page import Chapter, Page, chapter

#: Rows of each table at most: a browser sorts so many at once.
MOST = 5000


def fleet_page(fleet: Fleet) -> Page:
    """Return a fleet as a page that sorts, searches and loads nothing."""
    moves, counts = Moves(), fleet.summary()
    said = (
        f"{counts['programs']:,} programs, {counts['answers']:,} answers, {counts['failed']:,} failed; {fleet.folder}"
    )
    return Page("Fleet: what to optimise first", said, tuple(_chapters(fleet, moves)), moves)


def _chapters(fleet: Fleet, moves: Moves) -> Iterator[Chapter]:
    counts = fleet.summary()
    rows = fleet.ranked("gain" if counts["could_save_s"] else "lost")
    if rows:
        chart = moves.picture("fleet", [plot_fleet(fleet).drawing()], [
            f"Weighed time of the programs with most to gain. All could save {format_si(counts['could_save_s'], 's')}; "
            f"as they are they lose {format_si(counts['above_floor_s'], 's')} above their floors."])  # fmt: skip
        yield chapter("most", "Most to gain", "fleet", moves, chart=chart)
        yield chapter("ranking", "Ranking", "fleet", moves, rows=rows[:MOST], all=len(rows))
        yield chapter("kinds", "By bound and by change", "fleet", moves, bounds=_groups(rows, "bound"),
                      changes=_groups(rows, "change"))  # fmt: skip
    if without := _without(fleet):
        yield chapter("failed", "Without an answer", "fleet", moves, rows=without[:MOST], all=len(without))


def _without(fleet: Fleet) -> list[tuple[str, str, str, str]]:
    """Return what has no time, each program and reason once: name, path, reason, chips."""
    chips: dict[tuple[str, str, str], list[str]] = {}
    for row in (*fleet.failed, *fleet.too_large, *fleet.unmet):
        chips.setdefault((row["model"], row["program_path"], _why(row)), []).append(row["chip"])
    return [(*what, ", ".join(dict.fromkeys(names))) for what, names in chips.items()]


def _why(row: dict[str, Any]) -> str:
    if row["error"] is not None:
        return str(row["error"])
    if row["time_s"] is None:
        return f"no batch is within {row['under']}: {row['limit']}"
    of = f"batch {row['batch']}: " if row["batch"] else ""
    return f"{of}{format_si(row['memory_bytes'], 'B')} do not fit in {format_si(row['capacity_bytes'], 'B')}"


def _groups(rows: list[dict[str, Any]], column: str) -> list[tuple[str, int, float, float]]:
    """Return the values of a column, each with its rows, their weighed loss and gain."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[column] or "none", []).append(row)
    sums = [(name, len(own), sum(row["lost"] for row in own), sum(row["gain"] for row in own))
            for name, own in groups.items()]  # fmt: skip
    return sorted(sums, key=lambda each: -each[3])
