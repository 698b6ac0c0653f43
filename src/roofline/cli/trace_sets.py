"""What ``roofline trace`` shows of several traces: the difference of two, or the ranks of one program."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from roofline.cli.tables import facts, heading, percent, signed, table, time_text
from roofline.diagnosis.ranks import Collective, Rank, RanksReport
from roofline.diagnosis.report import TraceReport
from roofline.diagnosis.trace_diff import IDLE, OpChange, PartChange, TraceDiff
from roofline.view.listing.wording import safe

#: Longest name of an operator in a table; the lines below have it in full.
_NAME = 24
#: A part is shown from this share of the longer iteration on.
_WORTH = 0.001


def cut(text: str, most: int) -> str:
    """Return a name of at most so many characters, without its namespace where it is too long.

    Example:
        >>> cut("aten::mm", 8), cut("aten::_scaled_dot_product", 12)
        ('aten::mm', '_scaled_dot~')
    """
    text = safe(text)
    if len(text) > most:
        text = text.removeprefix("aten::")
    return text if len(text) <= most else f"{text[: most - 1]}~"


def notes(texts: Sequence[str]) -> Iterator[Any]:
    """Show what limits a result, below an empty line."""
    if texts:
        yield ""
    yield from (Text(f"note: {safe(text)}", style="dim") for text in texts)


def diff_parts(diff: TraceDiff, top: int) -> Iterator[Any]:
    """Show the difference of two traces: the whole, its parts, and the operators that changed most."""
    shown = [row for row in diff.operators if row.change_s][:top]
    yield heading(_title(diff))
    yield facts(_whole(diff))
    yield from ("", _by_part(diff))
    if shown:
        yield from ("", _by_operator(diff, shown), "", _details(shown))
    yield from notes(diff.notes)


def _title(diff: TraceDiff) -> str:
    both = diff.before, diff.after
    names = [safe(os.path.basename(one.source)) for one in both]
    chips = dict.fromkeys(one.chip.name if one.chip is not None else "chip unknown" for one in both)
    return f"{names[0]} -> {names[1]} on {', '.join(chips)}"


def _whole(diff: TraceDiff) -> Iterator[tuple[str, Any]]:
    before, after = diff.before, diff.after
    time = Text(f"{time_text(before.seconds)} -> {time_text(after.seconds)} per iteration: ", style="bold")
    yield "time", time + signed(diff.change_s) + Text(f", {_speed(diff)}")
    yield "iterations", f"{before.iterations} -> {after.iterations}"
    yield "busy", f"{_busy(before)} -> {_busy(after)}" if before.timed and after.timed else ""


def _speed(diff: TraceDiff) -> str:
    faster = diff.ratio < 1
    return f"{1 / diff.ratio if faster else diff.ratio:.3g} times as {'fast' if faster else 'long'}"


def _busy(report: TraceReport) -> str:
    return f"{time_text(report.busy)} ({percent(report.busy / report.seconds)})" if report.seconds else "0 s"


def _by_part(diff: TraceDiff) -> Table:
    least = _WORTH * max(diff.before.seconds, diff.after.seconds)
    small = [part for part in diff.parts if max(part.time_before_s, part.time_after_s) < least]
    rows = [_times(part.part, part) for part in diff.parts if part not in small]
    rows += [_times("smaller ones", _sum("", small))] if small else []
    whole = _times("all", PartChange("", diff.before.seconds, diff.after.seconds))
    rows.append([cell if isinstance(cell, Text) else heading(cell) for cell in whole])
    return table("<what it went to|before|after|change", rows)


def _sum(name: str, parts: Sequence[PartChange | OpChange]) -> PartChange:
    return PartChange(name, sum(part.time_before_s for part in parts), sum(part.time_after_s for part in parts))


def _times(name: str, change: PartChange | OpChange) -> list[Any]:
    before, after = (time_text(time) if time else "-" for time in (change.time_before_s, change.time_after_s))
    return [name, before, after, signed(change.change_s)]


def _by_operator(diff: TraceDiff, shown: Sequence[OpChange]) -> Table:
    lines = [[str(at), *_times(cut(row.op, _NAME), row), row.outcome, _calls(row)] for at, row in enumerate(shown, 1)]
    rest = [row for row in diff.operators if row not in shown]
    if rest:
        others = PartChange(
            "", sum(row.time_before_s for row in rest), diff.after.seconds - sum(row.time_after_s for row in shown)
        )
        lines.append(["", *_times(f"{len(rest)} others", others), "", ""])
    title = f"what changed most of {len(diff.operators)} operators and reasons to be idle"
    return table("#|<operator|before|after|change|?<outcome|?<calls", lines, title)


def _calls(row: OpChange) -> str:
    before, after = f"{row.calls_before:.4g}", f"{row.calls_after:.4g}"
    if row.role == IDLE:
        return ""
    return before if before == after else f"{before} -> {after}"


def _details(shown: Sequence[OpChange]) -> Table:
    """Name the shapes, the place and the kernels of each operator that is shown."""
    lines = Table.grid(padding=(0, 1))
    lines.add_column(justify="right", style="cyan")
    lines.add_column(overflow="fold")
    for at, row in enumerate(shown, 1):
        kernels = " -> ".join(dict.fromkeys(filter(None, map(", ".join, (row.kernels_before, row.kernels_after)))))
        if kernels or row.shapes:
            lines.add_row(str(at), Text(safe(row.op), style="bold"))
        for detail in (row.shapes, f"in {row.place}" if row.place else "", kernels if kernels != row.op else ""):
            if detail:
                lines.add_row("", safe(detail))
    return lines


# --- ranks ------------------------------------------------------------------------------------------------------------

#: Longest name of a collective in a table.
_COLLECTIVE = 16
#: Ranks that are listed, the last to come first where there are more.
_RANKS = 16
#: From this share above the mean on, it is said what the rank with the most compute does more, in so many lines.
_UNEVEN, _LINES = 0.02, 3


def ranks_parts(report: RanksReport, top: int) -> Iterator[Any]:
    """Show the ranks of one program: each rank, its collectives, and what the rank with the most compute does more."""
    yield heading(_ranks_title(report))
    yield facts(_together(report))
    yield from ("", _by_rank(report))
    if report.rows:
        yield from ("", _by_collective(report, top))
    if report.imbalance > _UNEVEN:
        yield from ("", _imbalance(report))
    yield from notes(report.notes)


def _ranks_title(report: RanksReport) -> str:
    chips = dict.fromkeys(one.chip.name if one.chip is not None else "chip unknown" for one in report.reports)
    return f"{len(report.ranks)} ranks on {', '.join(chips)}"


def _together(report: RanksReport) -> Iterator[tuple[str, Any]]:
    ranks = report.ranks
    computes = sorted(ranks, key=lambda rank: rank.compute_s)
    yield "time", Text(f"{time_text(report.time_s)} per iteration of the slowest rank", style="bold")
    least, most = computes[0], computes[-1]
    share = f", {percent(report.imbalance)} above the mean" if report.imbalance == report.imbalance else ""
    yield (
        "compute",
        f"{time_text(least.compute_s)} (rank {least.rank}) to {time_text(most.compute_s)} (rank {most.rank}{share})",
    )
    exposed = [rank.exposed_s for rank in ranks]
    yield (
        "exposed",
        f"{time_text(min(exposed))} to {time_text(max(exposed))} of communication without compute beside it",
    )
    late = max(ranks, key=lambda rank: rank.late_s)
    alone = f"{time_text(late.late_s)} for rank {late.rank} alone, last to {percent(late.last)} of its collectives"
    yield "waiting", Text(alone, style="yellow") if late.late_s else ""
    ahead = max(ranks, key=lambda rank: abs(rank.clock_offset_s))
    offset = f"up to {time_text(abs(ahead.clock_offset_s))} apart (rank {ahead.rank} and {ranks[0].rank})"
    drift = max(abs(rank.clock_drift) for rank in ranks)
    apart = f"{offset}, {time_text(drift)} more each second" if drift else offset
    yield "clocks", f"{apart}, by the ends of collectives; set" if report.rows else "as recorded"


def _by_rank(report: RanksReport) -> Table:
    shown = sorted(report.ranks, key=lambda rank: -rank.late_s)[:_RANKS]
    rows = [
        (str(rank.rank), time_text(rank.time_s), time_text(rank.compute_s), time_text(rank.exposed_s),
         time_text(rank.wait_s), time_text(rank.late_s), percent(rank.last), time_text(rank.idle_s), _clock(rank))
        for rank in sorted(shown, key=lambda rank: rank.rank)
    ]  # fmt: skip
    title = (
        f"the {_RANKS} of {len(report.ranks)} ranks that others waited for most"
        if len(shown) < len(report.ranks)
        else ""
    )
    return table("rank|time|compute|exposed|waits|is late|?last to|?idle|?clock", rows, title)


def _clock(rank: Rank) -> str:
    if rank.clock_spread_s != rank.clock_spread_s:
        return "not set"
    return f"{rank.clock_offset_s * 1e6:+.3g} us" if rank.clock_offset_s else "0 us"


def _by_collective(report: RanksReport, top: int) -> Table:
    rows = [
        (str(at), cut(row.collective, _COLLECTIVE), _last(row), time_text(row.time_s), time_text(row.wait_s),
         time_text(row.transfer_s), time_text(row.exposed_s), f"{row.calls:.4g}", safe(row.group))
        for at, row in enumerate(report.rows[:top], 1)
    ]  # fmt: skip
    title = f"{len(rows)} of {len(report.rows)} collectives, by what they wait and expose"
    return table("#|<collective|last rank|time|waits|transfer|exposed|?calls|?<group", rows, title)


def _last(row: Collective) -> str:
    return f"{row.last_rank} by {time_text(row.late_s)}" if row.last_rank >= 0 else "none"


def _imbalance(report: RanksReport) -> Table:
    """Name the operators that the rank with the most compute spends the most more time in."""
    least, most = sorted(report.ranks, key=lambda rank: rank.compute_s)[:: len(report.ranks) - 1]
    by_name: dict[str, list[OpChange]] = defaultdict(list)
    for row in report.imbalance_by_operator().rows:
        if row.role in ("kernel", "layout", "host"):
            by_name[row.op].append(row)
    sums = sorted(((_sum(name, rows), name) for name, rows in by_name.items()), key=lambda pair: -pair[0].change_s)
    lines = [_times(cut(name, 40), change) for change, name in sums[:_LINES] if change.change_s > 0]
    return table(f"<what rank {most.rank} computes more|rank {least.rank}|rank {most.rank}|change", lines)
