"""``roofline serve --bench``: a table of deployments to the same table with predictions."""

from __future__ import annotations

from pathlib import Path

import typer

from roofline.cli.output import note, note_failed, reader_may_leave
from roofline.cli.predict import count_lines, counted_rows
from roofline.cli.progress import progress
from roofline.ir.csvfile import read_rows, write_rows
from roofline.serving.benchmarks import NEEDED, bench_columns, bench_rows, misspelt


def write_bench(table: Path, output: str) -> None:
    """Predict every row of a table and write it; exit with 1 where a row could not be.

    Args:
        table: The file, ``-`` for stdin.
        output: Where to write, ``-`` for stdout.
    """
    faults: dict[str, int] = {}
    with (
        read_rows(table, (NEEDED,)) as (columns, rows),
        progress("serve", count_lines(table)) as update,
        reader_may_leave(),
    ):
        for text in misspelt(columns):
            note(text)
        write_rows(output, bench_columns(columns), counted_rows(bench_rows(rows, update), faults))
    if faults:
        note_failed(faults, "predicted")
        raise typer.Exit(1)
