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
from roofline.cli.output import note
from roofline.cli.progress import progress
from roofline.hardware.library import chip as find_chip
from roofline.ir.csvfile import read_rows, write_rows

_Input = Annotated[Path, opt.argument(
    "IN.csv", "Columns op, dtype, shape, or model, phase, mode, dtype, batch, seq, context; - for stdin.")]  # fmt: skip
_Output = Annotated[str, opt.option("--output -o OUT.csv", "Where to write; - for stdout.", default="-")]
_Regime = Annotated[str, opt.option(
    "--regime REGIME", "cold: operands in main memory; warm: in the cache if they fit.", default="cold",
    complete=("cold", "warm"))]  # fmt: skip
_NoCalibration = Annotated[bool, opt.option("--no-calibration", "Generic prior instead of fitted figures.")]

#: Different reasons that are counted.
_MOST_REASONS = 1000


@command(PREDICT, "roofline predict rows.csv --chip h100-sxm -o predicted.csv")
def predict(
    table: _Input,
    chip: opt.RanOn = None,
    output: _Output = "-",
    regime: _Regime = "cold",
    no_calibration: _NoCalibration = False,
) -> None:
    """Predict every row of a CSV file; exit with 1 where a row could not be."""
    where = find_chip(chip) if chip is not None else None
    faults: dict[str, int] = {}
    with read_rows(table) as (columns, rows), progress("predict", _lines(table)) as update:
        predicted = predict_rows(rows, where, calibration=not no_calibration, regime=regime, progress=update)
        write_rows(output, output_columns(columns), _counted(predicted, faults))
    if faults:
        reason, often = max(faults.items(), key=lambda pair: pair[1])
        note(f"{sum(faults.values()):,} rows could not be predicted, {often:,} of them: {reason}")
        raise typer.Exit(1)


def _counted(rows: Iterable[Mapping[str, Any]], faults: dict[str, int]) -> Iterator[Mapping[str, Any]]:
    for row in rows:
        if row["error"]:
            reason = row["error"] if row["error"] in faults or len(faults) < _MOST_REASONS else "other reasons"
            faults[reason] = faults.get(reason, 0) + 1
        yield row


def _lines(path: Path) -> int | None:
    """Return about how many rows a file has."""
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as stream:
        return sum(block.count(b"\n") for block in iter(lambda: stream.read(2**20), b""))
