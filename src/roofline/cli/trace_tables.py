"""A trace's report as rich tables for a terminal of 80 columns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from roofline.cli.tables import facts, heading, percent, table, time_text
from roofline.diagnosis.op_summary import OpSummary
from roofline.diagnosis.report import REASON_WORDS, TraceReport
from roofline.ir.units import format_si
from roofline.view.listing.wording import safe
from roofline.view.pages.roofplot import ceilings

#: Lines without a formula, causes and host operators that are shown.
MOST = 5
#: Longest name of an operator in a table; the lines below have it in full.
_NAME = 18
#: Colour of what bounds an operator.
_COLOURS = {"compute": "green", "memory": "cyan", "launch": "yellow", "link": "red", "communication": "red"}


def trace(report: TraceReport, top: int) -> list[Any]:
    """The report: time, the slowest operators and what to do about each, causes, notes."""
    shown = [line for line in report.ops if line.formula != "free" or line.share >= 0.01][:top]
    parts: list[Any] = [heading(_title(report)), facts(_summary(report)), ""]
    parts += [_ops(report, shown), ""] if shown else []
    parts += [*_advice(shown), ""] if shown else []
    for part in (_unknown(report, shown), _host(report), _causes(report)):
        parts += [part, ""] if part is not None else []
    parts += [Text(f"note: {safe(note)}", style="dim") for note in report.notes]
    return parts if report.notes else parts[:-1]


def _title(report: TraceReport) -> str:
    where = report.chip.name if report.chip is not None else "chip unknown"
    partial = ", PARTIAL" if report.partial else ""
    return f"{safe(os.path.basename(report.source))} ({report.format}{partial}) on {where}"


def _summary(report: TraceReport) -> Iterator[tuple[str, Any]]:
    yield "roofs", _roofs(report)
    yield "device", safe(", ".join(report.devices)) or ("the CPU" if report.on_cpu else "")
    if not report.timed:
        yield "time", Text(f"{time_text(report.busy)} in kernels", style="bold")
        return
    yield "time", Text(f"{time_text(report.seconds)} per iteration", style="bold")
    yield "iterations", f"{report.iterations} ({report.found_by})"
    yield "busy", f"{time_text(report.busy)} ({percent(report.busy / report.seconds)})" if report.seconds else ""
    yield "idle", _idle(report)
    yield "communication", str(report.communication)
    yield "host copies", str(report.copies)


def _roofs(report: TraceReport) -> str:
    """Peaks of the formats in use and the memory's bandwidth."""
    chip = report.chip
    if chip is None:
        return ""
    peaks = [f"{name} {format_si(rate, 'FLOP/s')}" for name, rate in ceilings(chip, report.ops)]
    memory = [f"{chip.main.name} {format_si(chip.main.bandwidth, 'B/s')}"] if chip.main.bandwidth else []
    return ", ".join((*peaks, *memory))


def _idle(report: TraceReport) -> str:
    total = sum(report.idle.values())
    parts = [f"{REASON_WORDS[name]} {time_text(part)}" for name, part in report.idle.items() if part > 0.0005 * total]
    return f"{time_text(total)} ({percent(total / report.seconds)}): {', '.join(parts)}" if total else ""


#: Columns of the operators: head (text if it begins with ``<``), its cell.
_COLUMNS: tuple[tuple[str, Callable[[OpSummary], Any]], ...] = (
    ("<operator", lambda line: cut(line.op, _NAME)),
    ("calls", lambda line: f"{line.calls:.4g}"),
    ("time", lambda line: time_text(line.seconds)),
    ("share", lambda line: percent(line.share)),
    ("<bound", lambda line: Text(line.bound or "-", style=_COLOURS.get(line.bound, ""))),
    ("peak", lambda line: reached(line.flops_share)),
    ("memory", lambda line: reached(line.bytes_share)),
    ("expected", lambda line: f"{line.ratio:.2f}x" if line.ratio == line.ratio else "-"),
)


def _ops(report: TraceReport, shown: Sequence[OpSummary]) -> Table:
    title = f"slowest {len(shown)} of {len(report.ops)} operators"
    rows = [(str(at), *(cell(line) for _, cell in _COLUMNS)) for at, line in enumerate(shown, 1)]
    return table("|".join(("#", *(head for head, _ in _COLUMNS))), rows, title)


def cut(text: str, most: int) -> str:
    """A name of at most so many characters, without its namespace where it is too long.

    Example:
        >>> cut("aten::mm", 8), cut("aten::_scaled_dot_product", 12)
        ('aten::mm', '_scaled_dot~')
    """
    text = safe(text)
    if len(text) > most:
        text = text.removeprefix("aten::")
    return text if len(text) <= most else f"{text[: most - 1]}~"


def reached(share: float) -> Text:
    """A share of a roof, red where it cannot be."""
    if share != share:
        return Text("-")
    return Text(percent(share), style="bold red" if share > 1.05 else "")


def _advice(shown: Sequence[OpSummary]) -> Iterator[Any]:
    table = Table.grid(padding=(0, 1))
    table.add_column(justify="right", style="cyan")
    table.add_column(overflow="fold")
    for at, line in enumerate(shown, 1):
        name = line.op if line.kernels in ("", line.op) else f"{line.op} [{line.kernels}]"
        details = [detail for detail in (line.shapes, line.dtype, rates(line), line.counters) if detail]
        table.add_row(str(at), Text(safe(name), style="bold"))
        if details:
            table.add_row("", safe("; ".join(details)))
        if line.proposal:
            table.add_row("", Text(f"-> {line.proposal}", style="red" if line.above else "green"))
    yield table


def rates(line: OpSummary) -> str:
    """Achieved rates, and what it should have taken."""
    found = []
    if line.flops_per_s == line.flops_per_s:
        found.append(format_si(line.flops_per_s, "FLOP/s"))
    if line.bytes_per_s == line.bytes_per_s:
        found.append(format_si(line.bytes_per_s, "B/s"))
    if line.expected_s == line.expected_s:
        found.append(f"{time_text(line.expected_s)} expected")
    return ", ".join(found)


def _unknown(report: TraceReport, shown: Sequence[OpSummary]) -> Table | None:
    rest = [line for line in report.unknown if line not in shown][:MOST]
    if not rest:
        return None
    rows = [(cut(line.op, 40), f"{line.calls:.4g}", time_text(line.seconds), percent(line.share)) for line in rest]
    return table(f"<without a formula ({len(report.unknown)} in all)|calls|time|share", rows)


def _host(report: TraceReport) -> Table | None:
    if not report.host_ops:
        return None
    rows = [(cut(name, 40), f"{calls:.4g}", time_text(seconds)) for name, calls, seconds in report.host_ops[:MOST]]
    return table("<long on the CPU|calls|time", rows)


def _causes(report: TraceReport) -> Table | None:
    rows = [
        (cause.label, time_text(cause.explains_s), percent(cause.share), Text(safe(cause.fix), style="green"))
        for cause in report.causes[:MOST]
    ]
    return table("<lost to|time|share|<what to do", rows) if rows else None
