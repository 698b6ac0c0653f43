"""``roofline sweep`` and ``roofline ops``: several measured times at once, over batches or of operators."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from roofline.analysis.batches import two_ridges
from roofline.cli import options as opt
from roofline.cli.app import JUDGE, command
from roofline.cli.output import note_failed
from roofline.cli.tables import COLOURS, facts, heading, table, time_text
from roofline.diagnosis.op_times import OpVerdict, OpVerdicts, check_ops
from roofline.diagnosis.sweep import SweepVerdict, check_sweep, per_second, read_sweep
from roofline.ir.errors import UsageError
from roofline.ir.report import title

_Sweep = Annotated[Path, opt.argument("FILE.csv", "Columns batch and a time with its unit, such as time_ms.")]
_Program = Annotated[str | None, opt.argument(
    "[MODEL]", "What was measured, to compare with what the chip should do.", opt.complete_models)]  # fmt: skip
_Format = Annotated[str | None, opt.option(
    "--dtype FORMAT", "Number format of rows that have no column dtype.", complete=opt.complete_formats)]  # fmt: skip
_Ops = Annotated[Path, opt.argument(
    "FILE.csv", "Columns op, dtype, the sizes and a time with its unit, such as time_us.")]  # fmt: skip
_Top = Annotated[int, opt.option("--top N", "Operators to show.", min=1, default="10")]


@command(JUDGE, "roofline sweep sweep.csv resnet50 t4 --dtype fp16")
def sweep(
    file: _Sweep,
    program: opt.ProgramOptions,
    lengths: opt.LengthOptions,
    run: opt.RunOptions,
    output: opt.ChartOptions,
    model: _Program = None,
    chip: opt.MaybeChip = None,
) -> None:
    """Read latency floor, cost per item and knee from times over batches, and compare them with the chip."""
    run.need(chip)
    if (model is None) != (chip is None):
        raise UsageError("to compare with the chip give both, MODEL and CHIP")
    batches, times = read_sweep(file)
    options: dict[str, Any] = {}
    if model is not None and chip is not None:
        graph = program.graph(model, run.cluster(chip))
        sizes = lengths.point(graph, "a sweep over batches")
        sizes.pop("B", None)
        options = {"program": graph, "chip": run.device(chip), **run.keywords, **sizes}
    verdict = check_sweep(batches, times, **options)
    output.write(verdict, _sweep(verdict))


def _shares(verdict: SweepVerdict) -> str:
    """Say what large batches approach, and from which batch on how much of it is there."""
    if verdict.saturated is None:
        return ""
    shares = ", ".join(f"{share} from batch {batch:.3g}" for share, batch in verdict.batch_by_share.items())
    return f"large batches approach {per_second(verdict.saturated)} per second: {shares}"


def _sweep(verdict: SweepVerdict) -> Iterator[Any]:
    style = "green" if verdict.verdict in ("normal", "flat", "saturated") else "yellow"
    ridge = two_ridges(verdict.ridge, verdict.ridge_datasheet)
    yield Text(f"{verdict.verdict}: ", style=f"bold {style}").append(verdict.reading, style=style)
    yield facts([
        ("program", heading(verdict).plain if verdict.predicted is not None else ""),
        ("floor", f"{time_text(verdict.floor_s)} whatever the batch"),
        ("per item", time_text(verdict.marginal_s)),
        ("knee", f"batch {verdict.knee:.3g}" if verdict.knee is not None else "not reached"),
        ("throughput", _shares(verdict)),
        ("ridge", ridge.removeprefix("ridge is ") if verdict.predicted is not None else ""),
        ("run", "batch {} to {}".format(*verdict.recommended)),
    ])  # fmt: skip
    expected = verdict.predicted is not None
    rows = [
        (f"{row['batch']:g}", *(time_text(row[f"{key}_s"]) for key in ("measured", "fitted")),
         *((time_text(row["expected_s"]),) if expected else ()), f"{row['items_per_s']:.4g}")
        for row in verdict.records()
    ]  # fmt: skip
    yield from ("", table("batch|measured|?fitted|" + ("expected|" if expected else "") + "items/s", rows))
    yield from (Text(sentence) for sentence in verdict.comparison)


@command(JUDGE, "roofline ops ops.csv h100-sxm")
def ops(
    file: _Ops,
    output: opt.ChartOptions,
    chip: opt.MaybeChip = None,
    ran_on: opt.RanOn = None,
    what_if: opt.ChipOptions = opt.ChipOptions(),  # noqa: B008
    dtype: _Format = None,
    regime: opt.Regime = None,
    tf32: opt.Tf32 = None,
    top: _Top = 10,
) -> None:
    """Judge a table of measured operators, those that lose the most time first.

    Exit with 1 where a row is impossible or could not be judged.
    """
    where = opt.one_chip(chip, ran_on)
    verdicts = check_ops(file, what_if.some(where), dtype=dtype, regime=regime, tf32=tf32)
    note_failed(verdicts.errors, "judged")
    output.write(verdicts, _ops(verdicts, top))
    if not verdicts.counts.keys().isdisjoint({"impossible", "unknown"}):
        raise typer.Exit(1)


def _ops(verdicts: OpVerdicts, top: int) -> Iterator[Any]:
    yield heading(f"{verdicts}, {title(verdicts.subject())}")
    rows = [_op(row) for row in verdicts.rows[:top]]
    yield from ("", table("row|<op|?<format|?<sizes|measured|expected|ratio|<verdict", rows))
    if len(verdicts.rows) > top:
        yield Text(f"{len(verdicts.rows) - top} more rows: --top, --csv or --json", style="dim")


def _op(row: OpVerdict) -> tuple[Any, ...]:
    sizes = " ".join(f"{key}={value}" for key, value in row.shape.items())
    times = (time_text(value) if value is not None else "-" for value in (row.measured_s, row.expected_s))
    ratio = f"{row.ratio:.3g}" if row.ratio is not None else "-"
    verdict = Text(row.verdict.replace("_", " "), style=COLOURS.get(row.verdict, ""))
    return row.row, row.op, row.dtype, sizes, *times, ratio, verdict
