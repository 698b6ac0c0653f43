"""``roofline validate``: predictions beside measurements, and whether they got worse than recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from roofline.analysis.validation import Figures, Section, Validation, record, recorded_path, worse
from roofline.analysis.validation import validate as judge
from roofline.cli import options as opt
from roofline.cli.app import ACCURACY, command
from roofline.cli.output import note
from roofline.cli.tables import size_text, table, time_text
from roofline.ir.errors import UsageError

_Input = Annotated[Path | None, opt.argument(
    "[IN.csv]", "Operators with kernel_us or p50_us, or models with wall_us; those that ship when absent.")
]  # fmt: skip
_Chip = Annotated[str | None, opt.option(
    "--chip CHIP", "Where rows were measured that name no chip.", default="h100-sxm", complete=opt.complete_chips)
]  # fmt: skip
_Check = Annotated[bool, opt.option("--check", "Exit with 1 where a figure is worse than recorded.")]
_Record = Annotated[bool, opt.option("--record", "Record the figures for --check.")]


@command(ACCURACY, "roofline validate --chip h100-sxm")
def validate(
    output: opt.ChartOptions,
    what_if: opt.ChipOptions,
    source: _Input = None,
    where: opt.MaybeChip = None,
    chip: _Chip = None,
    check: _Check = False,
    record_figures: _Record = False,
) -> None:
    """Compare predictions with measurements: error by class, share inside the range."""
    opt.exclusive(check=check, record=record_figures)
    if source is not None and (check or record_figures):
        raise UsageError("--check and --record are for the measurements that ship; leave the file away")
    result = judge(source, what_if.chip(opt.one_chip(where, chip) or "h100-sxm"))
    output.write(result, _parts(result))
    if record_figures:
        note(f"{record(result)}: figures recorded")
    if check:
        _compare(result)


def _compare(result: Validation) -> None:
    lines = worse(result)
    for line in lines:
        note(f"worse: {line}")
    if lines:
        raise typer.Exit(1)
    note(f"no figure is worse than in {recorded_path().name} by more than a point")


def _parts(result: Validation) -> Iterator[Any]:
    for section in result.sections:
        some = f", {section.predicted:.3g}% of the rows" if section.predicted < 100 else ""
        classes = [(name, *_cells(figures)) for name, figures in [("all", section.total), *section.classes.items()]]
        yield f"{section.name} on {section.chip}{some}"
        yield table("<error in %|rows|mean|?median|p90|?bias|?inside|?high:low", classes)
        yield from ("", "worst rows", _worst(section), "")
    if result.unstable:
        yield f"{result.unstable} rows are marked as not stable and left out"
    yield from (f"{often} rows not predicted: {reason}" for reason, often in result.failed.items())


def _cells(figures: Figures) -> tuple[str, ...]:
    inside = "-" if figures.inside is None else f"{figures.inside:.0f}%"
    spread = "-" if figures.spread is None else f"{figures.spread:.2f}"
    errors = (f"{value:.1f}" for value in (figures.mean, figures.median, figures.p90))
    return (str(figures.rows), *errors, f"{figures.bias:+.1f}", inside, spread)


def _worst(section: Section) -> Any:
    def shown(row: Any, what: str) -> str:
        size = row.get(f"{what}_bytes")
        return time_text(row[f"{what}_us"] * 1e-6) if size is None else size_text(size)

    rows = [
        (row["row"], shown(row, "measured"), shown(row, "predicted"), f"{row['error']:+.0f}%") for row in section.worst
    ]
    return table("<row|measured|predicted|error", rows)
