"""``roofline sweep`` and ``roofline ops``: several measured times at once, over batches or of operators."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from roofline.cli import options as opt
from roofline.cli.output import show, write_csv, write_json
from roofline.cli.tables import COLOURS, facts, table, time_text
from roofline.diagnosis.op_times import OpVerdict, OpVerdicts, check_ops
from roofline.diagnosis.sweep import SweepVerdict, check_sweep, read_sweep
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import UsageError

_Sweep = Annotated[Path, typer.Argument(
    metavar="FILE.csv", help="Columns batch and a time with its unit, such as time_ms.",
    show_default=False)]  # fmt: skip
_Program = Annotated[str | None, typer.Argument(
    metavar="[MODEL]", help="What was measured, to compare with what the chip should do.",
    show_default=False)]  # fmt: skip
_Where = Annotated[str | None, typer.Argument(metavar="[CHIP]", help="Where it ran.", show_default=False)]
_ChipOfOps = Annotated[str | None, typer.Argument(
    metavar="[CHIP]", help="Where the rows ran that have no column chip.", show_default=False)]  # fmt: skip
_Format = Annotated[str | None, typer.Option(
    "--dtype", metavar="FORMAT", help="Number format of rows that have no column dtype.",
    show_default=False)]  # fmt: skip
_Ops = Annotated[Path, typer.Argument(
    metavar="FILE.csv", help="Columns op, dtype, the sizes and a time with its unit, such as time_us.",
    show_default=False)]  # fmt: skip
_Top = Annotated[int, typer.Option("--top", metavar="N", min=1, help="Operators to show.")]


def sweep(
    file: _Sweep,
    model: _Program = None,
    chip: _Where = None,
    seq: opt.Seq = None,
    context: opt.Context = None,
    phase: opt.Phase = None,
    mode: opt.RunMode = "eager",
    dtype: opt.DType = None,
    tf32: opt.TF32 = False,
    as_json: opt.AsJson = False,
) -> None:
    """Read latency floor, cost of an item and knee from times over batches, and compare them with the chip."""
    if (model is None) != (chip is None):
        raise UsageError("to compare with the chip give both, MODEL and CHIP")
    batches, times = read_sweep(file)
    options: dict[str, Any] = {}
    if model is not None and chip is not None:
        graph = opt.program(model, phase, dtype, None, None)
        sizes = opt.single(opt.sizes(graph, None, seq, context), "a sweep over batches")
        sizes.pop("B", None)
        options = {"program": graph, "chip": find_chip(chip), "mode": mode, "tf32": tf32, **sizes}
    found = check_sweep(batches, times, **options)
    return write_json(found.record()) if as_json else show(*_sweep(found))


def _sweep(found: SweepVerdict) -> Iterable[Any]:
    style = "green" if found.verdict in ("normal", "flat", "saturated") else "yellow"
    yield Text(f"{found.verdict}: ", style=f"bold {style}").append(found.reading, style=style)
    yield facts(
        [
            ("floor", f"{time_text(found.floor_s)} whatever the batch"),
            ("an item", time_text(found.marginal_s)),
            ("knee", f"batch {found.knee:.3g}" if found.knee is not None else "not reached"),
            ("ridge", f"batch {found.ridge}, where the chip's arithmetic takes over" if found.ridge else ""),
            ("run", "batch {} to {}".format(*found.recommended)),
        ]
    )
    fitted = found.fit.at(found.batches).tolist()
    expected = found.predicted.time.tolist() if found.predicted is not None else None
    rows = [
        (f"{batch:g}", time_text(time), time_text(fit), *((time_text(expected[at]),) if expected else ()),
         f"{batch / time:.4g}")
        for at, (batch, time, fit) in enumerate(zip(found.batches, found.times, fitted, strict=True))
    ]  # fmt: skip
    yield from ("", table("batch|measured|fitted|" + ("expected|" if expected else "") + "items/s", rows))
    yield from (Text(sentence) for sentence in found.comparison)


def ops(
    file: _Ops,
    chip: _ChipOfOps = None,
    dtype: _Format = None,
    top: _Top = 10,
    as_json: opt.AsJson = False,
    as_csv: opt.AsCsv = False,
) -> None:
    """Judge a table of measured operators, those that lose the most time first; exit with 1 where one is impossible."""
    opt.exclusive(json=as_json, csv=as_csv)
    found = check_ops(file, find_chip(chip) if chip is not None else None, dtype=dtype)
    if as_csv:
        write_csv([row.record() for row in found.rows])
    elif as_json:
        write_json(found.record())
    else:
        show(*_ops(found, top))
    if "impossible" in found.counts:
        raise typer.Exit(1)


def _ops(found: OpVerdicts, top: int) -> Iterable[Any]:
    yield Text(str(found), style="bold")
    yield from ("", table("row|<op|<format|<sizes|measured|expected|ratio|<verdict", map(_op, found.rows[:top])))
    if len(found.rows) > top:
        yield Text(f"{len(found.rows) - top} more rows: --top, --csv or --json", style="dim")


def _op(row: OpVerdict) -> tuple[Any, ...]:
    sizes = " ".join(f"{key}={value}" for key, value in row.shape.items())
    times = (time_text(value) if value is not None else "-" for value in (row.measured_s, row.expected_s))
    ratio = f"{row.ratio:.3g}" if row.ratio is not None else "-"
    verdict = Text(row.verdict.replace("_", " "), style=COLOURS.get(row.verdict, ""))
    return row.row, row.op, row.dtype, sizes, *times, ratio, verdict
