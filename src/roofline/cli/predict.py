"""``roofline predict``: a CSV file of operators or models to the same file with predictions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from roofline.analysis.prediction import output_columns, predict_rows
from roofline.cli import options as opt
from roofline.cli.app import PREDICT, command
from roofline.cli.output import json_text, note_failed, quieten, reader_may_leave, write_json
from roofline.cli.progress import progress
from roofline.cli.tables import Rows
from roofline.cost import REGIME
from roofline.ir.csvfile import read_rows, write_rows
from roofline.ir.files import whole_file
from roofline.view.charts.accuracy import Compared, compared, plot_predictions
from roofline.view.charts.chart import checked_suffix

_Input = Annotated[Path, opt.argument(
    "IN.csv", "Columns op, dtype, shape, or m, n, k, or model, phase, mode, dtype, batch, seq, context; - for stdin."
)]  # fmt: skip
_Output = Annotated[str, opt.option("--output -o OUT.csv", "Where to write; - for stdout.", default="-")]
_Json = Annotated[bool, opt.option("--json", "Print JSON.", "Output")]
_Csv = Annotated[bool, opt.option("--csv", "Print CSV, as where nothing is said.", "Output")]
_NoCalibration = Annotated[bool, opt.option("--no-calibration", "Generic prior instead of fitted figures.")]

#: Different reasons that are counted.
_MOST_REASONS = 1000
#: Rows that a chart compares with what was measured at most.
_MOST_POINTS = 100_000


@command(PREDICT, "roofline predict rows.csv h100-sxm -o predicted.csv")
def predict(
    table: _Input,
    chip: opt.MaybeChip = None,
    ran_on: opt.RanOn = None,
    what_if: opt.ChipOptions = opt.ChipOptions(),  # noqa: B008
    output: _Output = "-",
    regime: opt.Regime = None,
    tf32: opt.Tf32 = None,
    no_calibration: _NoCalibration = False,
    as_json: _Json = False,
    as_csv: _Csv = False,
    quiet: opt.Quiet = False,
    plot: opt.Plot = None,
) -> None:
    """Predict every row of a CSV file, as CSV where nothing is said; exit with 1 where a row could not be."""
    opt.exclusive(json=as_json, csv=as_csv)
    if plot is not None:
        checked_suffix(plot)
    points: list[Compared] = []
    if quiet:
        quieten()
    name = opt.one_chip(chip, ran_on)
    where = what_if.some(name)
    faults: dict[str, int] = {}
    with read_rows(table) as (columns, rows), progress("predict", count_lines(table)) as update:
        how: dict[str, Any] = {"regime": regime or REGIME, "tf32": tf32}
        predicted = predict_rows(rows, where, calibration=not no_calibration, progress=update, **how)
        counted = counted_rows(predicted if plot is None else _compared(predicted, points), faults)
        if as_json:
            about = {"chip": where.name if where is not None else None, **how}
            _write_json(output, Rows("predict", list(counted), about))
        else:
            with reader_may_leave():
                write_rows(output, output_columns(columns), counted)
    if plot is not None:
        opt.save_chart(plot_predictions(points), plot)
    if faults:
        note_failed(faults, "predicted")
        raise typer.Exit(1)


def _write_json(output: str, rows: Rows) -> None:
    """Write the rows as JSON, a file whole or not at all."""
    if output == "-":
        return write_json(rows.record())
    with whole_file(output) as stream:
        stream.write(json_text(rows.record()))


def _compared(rows: Iterable[Mapping[str, Any]], points: list[Compared]) -> Iterator[Mapping[str, Any]]:
    """Collect what a chart compares, up to a limit."""
    for row in rows:
        if len(points) < _MOST_POINTS and (point := compared(row)) is not None:
            points.append(point)
        yield row


def counted_rows(rows: Iterable[Mapping[str, Any]], faults: dict[str, int]) -> Iterator[Mapping[str, Any]]:
    """Count the reasons of rows that could not be predicted, each with the first row that has it."""
    said: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        if row["error"]:
            reason = row["error"] if row["error"] in said or len(said) < _MOST_REASONS else "other reasons"
            text = said.setdefault(reason, f"{reason} (first in row {number:,})")
            faults[text] = faults.get(text, 0) + 1
        yield row


def count_lines(path: Path) -> int | None:
    """Return about how many rows a file has."""
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(2**20), b""))
