"""``roofline validate``: predictions beside measurements, and whether they got worse than recorded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from roofline.analysis.validation import Figures, Section, Validation, record, recorded_path, worse
from roofline.analysis.validation import validate as judge
from roofline.cli import options as opt
from roofline.cli.output import note, show, write_json
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import UsageError
from roofline.ir.units import format_bytes, format_si

_Input = Annotated[Path | None, typer.Argument(
    metavar="[IN.csv]", help="Operators with kernel_us or p50_us, or models with wall_us; those that ship when absent.",
    show_default=False)]  # fmt: skip
_Chip = Annotated[str, typer.Option("--chip", metavar="CHIP", help="Where rows were measured that name no chip.")]
_Check = Annotated[bool, typer.Option("--check", help="Exit with 1 where a figure is worse than recorded.")]
_Record = Annotated[bool, typer.Option("--record", help="Record the figures for --check.")]


def validate(
    source: _Input = None,
    chip: _Chip = "h100-sxm",
    as_json: opt.AsJson = False,
    check: _Check = False,
    record_figures: _Record = False,
) -> None:
    """Set predictions beside measurements: error by class, share inside the range."""
    opt.exclusive(check=check, record=record_figures)
    if source is not None and (check or record_figures):
        raise UsageError("--check and --record are for the measurements that ship; leave the file away")
    found = judge(source, find_chip(chip))
    if as_json:
        write_json(found.record())
    else:
        show(*_parts(found))
    if record_figures:
        note(f"{record(found)}: figures recorded")
    if check:
        _compare(found)


def _compare(found: Validation) -> None:
    lines = worse(found)
    for line in lines:
        note(f"worse: {line}")
    if lines:
        raise typer.Exit(1)
    note(f"no figure is worse than in {recorded_path().name} by more than a point")


def _parts(found: Validation) -> list[Any]:
    parts: list[Any] = []
    for section in found.sections:
        parts += [_title(section), _classes(section), "", "worst rows", _worst(section), ""]
    if found.unstable:
        parts.append(f"{found.unstable} rows are marked as not stable and left out")
    parts += [f"{often} rows not predicted: {reason}" for reason, often in found.failed.items()]
    return parts


def _title(section: Section) -> str:
    some = f", {section.predicted:.3g}% of the rows" if section.predicted < 100 else ""
    return f"{section.name} on {section.chip}{some}"


def _classes(section: Section) -> Table:
    rows = [("all", section.total), *section.classes.items()]
    cells = [(name, *_cells(figures)) for name, figures in rows]
    return table("<error in %|rows|mean|median|p90|bias|inside|high:low", cells)


def _cells(figures: Figures) -> tuple[str, ...]:
    inside = "-" if figures.inside is None else f"{figures.inside:.0f}%"
    spread = "-" if figures.spread is None else f"{figures.spread:.2f}"
    errors = (f"{value:.1f}" for value in (figures.mean, figures.median, figures.p90))
    return (str(figures.rows), *errors, f"{figures.bias:+.1f}", inside, spread)


def _worst(section: Section) -> Table:
    def shown(row: Any, what: str) -> str:
        return (
            format_bytes(row[f"{what}_bytes"]) if f"{what}_bytes" in row else format_si(row[f"{what}_us"] * 1e-6, "s")
        )

    rows = [
        (row["row"], shown(row, "measured"), shown(row, "predicted"), f"{row['error']:+.0f}%") for row in section.worst
    ]
    return table("<row|measured|predicted|error", rows)


def table(columns: str, rows: Iterable[Sequence[str]]) -> Table:
    """A table; a column whose name begins with ``<`` is text, all others are numbers to the right."""
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for name in columns.split("|"):
        made.add_column(name.lstrip("<"), justify="left" if name.startswith("<") else "right", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made
