"""``roofline trace``: where the time of a profiler's file went, as text, JSON, CSV or a page."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from roofline.cli import options as opt
from roofline.cli.output import note, show, write, write_csv, write_json
from roofline.cli.progress import progress
from roofline.diagnosis.report import TraceReport, trace_report
from roofline.hardware.library import chip as find_chip
from roofline.ir.csvfile import whole_file
from roofline.traces.events import Trace
from roofline.traces.reading import read_trace
from roofline.view.listing.wording import safe

_File = Annotated[Path, typer.Argument(
    metavar="FILE", help="Chrome JSON of torch.profiler, CSV of nsys, ncu or ops_perf_results, or a table of times.",
    show_default=False)]  # fmt: skip
_Chip = Annotated[str | None, typer.Option(
    "--chip", metavar="NAME", help="Where it ran. [default: by the device's name in the trace]",
    show_default=False)]  # fmt: skip
_Top = Annotated[int, typer.Option("--top", metavar="N", min=1, help="Operators to show.")]
Html = Annotated[Path | None, typer.Option(
    "--html", metavar="OUT.html", help="Write a page here as well, the whole file or nothing.",
    show_default=False)]  # fmt: skip


def trace(
    file: _File,
    chip: _Chip = None,
    top: _Top = 5,
    as_json: opt.AsJson = False,
    as_csv: opt.AsCsv = False,
    html: Html = None,
) -> None:
    """Say where the time of a trace went: idle time, the slowest operators, their roofs."""
    opt.exclusive(json=as_json, csv=as_csv)
    where = find_chip(chip) if chip is not None else None  # a wrong name is told before a large file is read
    report = trace_report(read(file), where)
    if html is not None:
        _write_page(report, html)
    if as_json:
        write_json(report.record())
    elif as_csv:
        write_csv(report.csv_rows())
    elif html is not None:
        write(f"{html}: report of {safe(report.source)}\n")
    else:
        from roofline.cli import trace_tables

        show(*trace_tables.trace(report, top))
    if report.partial:
        note(f"{report.source} is cut; the report is partial")


def read(path: Path) -> Trace:
    """Read a trace; a bar shows how far where that takes longer than a second."""
    size = os.path.getsize(path) if os.path.isfile(path) else None
    with progress("trace", size) as update:
        return read_trace(path, lambda done, total: update(done))


def _write_page(report: TraceReport, html: Path) -> None:
    from roofline.view.pages.page import trace_page

    with whole_file(html) as stream:
        stream.write(trace_page(report))
