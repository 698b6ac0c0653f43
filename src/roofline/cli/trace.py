"""``roofline trace``: where the time of a profiler's file went, what two differ in, or what ranks wait for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

from rich.table import Table
from rich.text import Text

from roofline.cli import options as opt
from roofline.cli.app import JUDGE, command
from roofline.cli.output import note
from roofline.cli.progress import progress
from roofline.cli.tables import facts, heading, percent, size_text, table, time_text
from roofline.cli.trace_sets import cut, diff_parts, notes, ranks_parts
from roofline.diagnosis.groups import short
from roofline.diagnosis.op_summary import OpSummary
from roofline.diagnosis.ranks import rank_files, ranks_report
from roofline.diagnosis.report import REASON_WORDS, TraceReport, trace_report
from roofline.diagnosis.trace_diff import compare_traces
from roofline.hardware.chip import Chip
from roofline.ir.errors import UsageError
from roofline.ir.report import Report
from roofline.ir.units import format_si
from roofline.traces.events import Trace
from roofline.traces.reading import read_trace
from roofline.view.charts.points import trace_ceilings
from roofline.view.listing.wording import safe

_Files = Annotated[list[str], opt.argument(
    "FILE", "Chrome JSON of torch.profiler, CSV of nsys, ncu or ops_perf_results, or a table of times; "
    "several, or a folder, of the ranks of one program; two to compare with --diff. A chip after it: where it ran.")
]  # fmt: skip
_Diff = Annotated[bool, opt.option("--diff", "Compare two traces of one program, or of one that was changed.")]
_Kernels = Annotated[bool, opt.option("--kernels", "List kernels by name instead of operators.")]
_Chip = Annotated[str | None, opt.option(
    "--chip NAME", "Where it ran.", default="by the device's name in the trace", complete=opt.complete_chips)
]  # fmt: skip
_Top = Annotated[
    int | None, opt.option("--top N", "Operators to show.", min=1, default="5; of several traces 10, of kernels 20")
]
#: Lines without a formula, causes and host operators that are shown.
_MOST = 5
#: Longest name of an operator in a table; the lines below have it in full.
_NAME = 18
#: Longest name of a kernel in their table.
_KERNEL = 36
#: Colour of what bounds an operator.
_COLOURS = {"compute": "green", "memory": "cyan", "launch": "yellow", "link": "red", "communication": "red"}


@command(JUDGE, "roofline trace examples/attention_naive.json.gz --top 3")
def trace(
    files: _Files,
    output: opt.ChartOptions,
    what_if: opt.ChipOptions,
    ran_on: _Chip = None,
    diff: _Diff = False,
    kernels: _Kernels = False,
    top: _Top = None,
    html: opt.Html = None,
) -> None:
    """Say where the time of a trace went, what two traces differ in, or which rank the others wait for."""
    words, last = _paths(files)
    paths = [path for word in words for path in (rank_files(word) if word.is_dir() else [word])]
    name = opt.one_chip(last, ran_on)
    where = what_if.some(name)  # a wrong name is told before a large file is read
    if kernels and output.plot is not None:
        raise UsageError("--kernels prints a table, of which there is no chart; leave out --kernels or --plot")
    if len(paths) > 1 or diff:
        _refuse_several(html=html, kernels=kernels)
        output.write(*_several(paths, where, diff, top or 10))
        return
    events = read(paths[0])
    report = trace_report(events, where)
    if html is not None:
        from roofline.view.pages.report import trace_page

        trace_page(report, events).save(html)
    if kernels:
        return output.write(report.kernels, _kernels(report, top or 20))
    parts = _parts(report, top or 5) if html is None else [f"{html}: report of {safe(report.source)}"]
    output.write(report, parts, drawn=[events])
    if report.partial:
        note(f"{report.source} is cut; the report is partial")


def _paths(words: Sequence[str]) -> tuple[list[Path], str | None]:
    """Return the files, and the chip where the last word is one and no file."""
    last = words[-1]
    is_file = os.path.exists(last) or os.sep in last or last.endswith((".json", ".gz", ".csv"))
    if len(words) > 1 and (last.endswith(".toml") or not is_file):
        return [Path(word) for word in words[:-1]], last
    return [Path(word) for word in words], None


def _refuse_several(**options: object) -> None:
    for name, value in options.items():
        if value:
            raise UsageError(f"--{name} is of one trace; leave it out")


def _several(paths: Sequence[Path], chip: Chip | None, diff: bool, top: int) -> tuple[Report, Iterator[Any]]:
    """Compare two traces, or put those of several ranks together."""
    if not diff:
        ranks = ranks_report((read(path) for path in paths), chip)
        return ranks, ranks_parts(ranks, top)
    if len(paths) != 2:
        raise UsageError(f"--diff compares two traces, given {len(paths)}: roofline trace BEFORE AFTER --diff")
    before, after = (trace_report(read(path), chip) for path in paths)
    result = compare_traces(before, after)
    return result, diff_parts(result, top)


def read(path: Path) -> Trace:
    """Read a trace; a bar shows how far where that takes longer than a second."""
    size = os.path.getsize(path) if os.path.isfile(path) else None
    with progress("trace", size) as update:
        return read_trace(path, lambda done, total: update(done))


def _parts(report: TraceReport, top: int) -> Iterator[Any]:
    """Show time, the slowest operators and what to do about each, causes, notes."""
    shown = [line for line in report.ops if line.formula != "free" or line.share >= 0.01][:top]
    yield heading(_title(report))
    yield facts(_summary(report))
    yield from ("", _ops(report, shown), "", _advice(shown)) if shown else ()
    for part in (_unknown(report, shown), _host(report), _causes(report), _memory(report)):
        yield from ("", part) if part is not None else ()
    yield from notes(report.notes)


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
    """Return the peaks of the formats in use and the memory's bandwidth."""
    chip = report.chip
    if chip is None:
        return ""
    peaks = [f"{roof.label} {format_si(roof.flops, 'FLOP/s')}" for roof in trace_ceilings(chip, report.ops)]
    memory = [f"{chip.main.name} {format_si(chip.main.bandwidth, 'B/s')}"] if chip.main.bandwidth else []
    return ", ".join((*peaks, *memory))


def _idle(report: TraceReport) -> str:
    total = sum(report.idle.values())
    parts = [f"{REASON_WORDS[name]} {time_text(part)}" for name, part in report.idle.items() if part > 0.0005 * total]
    return f"{time_text(total)} ({percent(total / report.seconds)}): {', '.join(parts)}" if total else ""


#: Columns of the operators: head (text if it begins with ``<``), its cell.
_COLUMNS: tuple[tuple[str, Callable[[OpSummary], Any]], ...] = (
    ("<operator", lambda line: cut(line.op, _NAME)),
    ("?calls", lambda line: f"{line.calls:.4g}"),
    ("time", lambda line: time_text(line.seconds)),
    ("share", lambda line: percent(line.share)),
    ("?<bound", lambda line: Text(line.bound or "-", style=_COLOURS.get(line.bound, ""))),
    ("?peak", lambda line: _reached(line.flops_share)),
    ("?memory", lambda line: _reached(line.bytes_share)),
    ("expected", lambda line: f"{line.ratio:.2f}x" if line.ratio == line.ratio else "-"),
)


def _ops(report: TraceReport, shown: Sequence[OpSummary]) -> Table:
    title = f"slowest {len(shown)} of {len(report.ops)} operators"
    rows = [(str(at), *(cell(line) for _, cell in _COLUMNS)) for at, line in enumerate(shown, 1)]
    return table("|".join(("#", *(head for head, _ in _COLUMNS))), rows, title)


def _reached(share: float) -> Text:
    """Return a share of a roof, red where it cannot be."""
    if share != share:
        return Text("-")
    return Text(percent(share), style="bold red" if share > 1.05 else "")


def _advice(shown: Sequence[OpSummary]) -> Table:
    lines = Table.grid(padding=(0, 1))
    lines.add_column(justify="right", style="cyan")
    lines.add_column(overflow="fold")
    for at, line in enumerate(shown, 1):
        name = line.op if line.kernels in ("", line.op) else f"{line.op} [{line.kernels}]"
        details = [detail for detail in (line.shapes, line.dtype, _rates(line), line.counters) if detail]
        lines.add_row(str(at), Text(safe(name), style="bold"))
        if details:
            lines.add_row("", safe("; ".join(details)))
        if line.proposal:
            lines.add_row("", Text(f"-> {line.proposal}", style="red" if line.above else "green"))
    return lines


def _rates(line: OpSummary) -> str:
    """Return achieved rates, and what it should have taken."""
    rates = []
    if line.flops_per_s == line.flops_per_s:
        rates.append(format_si(line.flops_per_s, "FLOP/s"))
    if line.bytes_per_s == line.bytes_per_s:
        rates.append(format_si(line.bytes_per_s, "B/s"))
    if line.expected_s == line.expected_s:
        rates.append(f"{time_text(line.expected_s)} expected")
    return ", ".join(rates)


def _kernels(report: TraceReport, most: int) -> Iterator[Any]:
    """Show the kernels that took the most time."""
    rows = [
        (cut(short(row.kernel), _KERNEL), f"{row.launches:.4g}", time_text(row.time_s), time_text(row.mean_s),
         percent(row.share), cut(row.op, _KERNEL))
        for row in report.kernels.rows[:most]
    ]  # fmt: skip
    yield heading(_title(report))
    title = f"slowest {len(rows)} of {len(report.kernels.rows)} kernels, per iteration"
    yield table("<kernel|launches|time|each|share|?<operators", rows, title)
    yield from notes(report.notes)


def _unknown(report: TraceReport, shown: Sequence[OpSummary]) -> Table | None:
    rest = [line for line in report.unknown if line not in shown][:_MOST]
    if not rest:
        return None
    rows = [(cut(line.op, 40), f"{line.calls:.4g}", time_text(line.seconds), percent(line.share)) for line in rest]
    return table(f"<without a formula ({len(report.unknown)} in all)|?calls|time|share", rows)


def _host(report: TraceReport) -> Table | None:
    if not report.host_ops:
        return None
    rows = [(cut(name, 40), f"{calls:.4g}", time_text(seconds)) for name, calls, seconds in report.host_ops[:_MOST]]
    return table("<long on the CPU|?calls|time", rows)


def _causes(report: TraceReport) -> Table | None:
    rows = [
        (cause.label, time_text(cause.explains_s), percent(cause.share), Text(safe(cause.fix), style="green"))
        for cause in report.causes[:_MOST]
    ]
    return table("<lost to|time|share|<what to do", rows) if rows else None


def _memory(report: TraceReport) -> Table | None:
    memory = report.memory
    if memory is None:
        return None
    rows = [
        (cut(held.op, 40), safe(held.shapes), f"{held.blocks}" if held.blocks else "", size_text(held.bytes),
         percent(held.share))
        for held in memory.held[:_MOST]
    ]  # fmt: skip
    others = f"; {len(memory.held)} operators, the most first" if len(memory.held) > _MOST else ""
    return table("<in memory then, made by|?<of|?blocks|size|share", rows, f"memory: {safe(str(memory))}{others}")
