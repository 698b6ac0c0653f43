"""``roofline fleet``: thousands of programs on chips under limits over processes, and what to optimise first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from roofline.cli import options as opt
from roofline.cli.app import PREDICT, command
from roofline.cli.output import interrupted, note_failed
from roofline.cli.progress import progress
from roofline.cli.tables import facts, percent, table, time_text
from roofline.fleet.question import Question
from roofline.fleet.results import Fleet, read
from roofline.fleet.run import run
from roofline.ir.errors import UsageError
from roofline.programs.modelfile import PHASES

#: Rows that are shown.
SHOWN = 15
#: The page in a folder of results.
PAGE = "index.html"

_Models = Annotated[list[str] | None, opt.argument(
    "MODELS...", "Folders of configs, model files and workloads, lists (.txt, a name or a path a line), shipped names, "
    "files.", opt.complete_models)]  # fmt: skip
_Chips = Annotated[opt.Text, opt.option(
    "--chips A,B,C", "Shipped names or chip files, with commas.", "Chip", complete=opt.complete_chips)]  # fmt: skip
_Into = Annotated[Path | None, opt.option(
    "--output -o FOLDER", "Where results go, and are taken from where they are there.", "Output")]  # fmt: skip
_Page = Annotated[Path | None, opt.option("--page FOLDER", "Only make the page of the results there.", "Output")]
_Limits = Annotated[list[str] | None, opt.limit(
    "--limits LIMITS", "Choose the best batch: latency=50ms, memory=40GiB, or both with a comma; again for more.",
)]  # fmt: skip
_Batch = Annotated[str, opt.option("--batch -B N", "Batches, such as 1,8,64.", "Sizes", default="1")]
_Phase = Annotated[opt.Text, opt.option(
    "--phase PHASES", "Each program in those of them that it has: decode, or prefill,decode.", "Program",
    complete=PHASES, default="the model's")]  # fmt: skip
_Gains = Annotated[bool, opt.option(
    "--gains/--no-gains", "Work out what fusion, formats and replayed graphs would save.", "Run",
    default="on, most of the time of a run")]  # fmt: skip
_Scheduler = Annotated[opt.Text, opt.option(
    "--scheduler ADDRESS", "A Dask scheduler that you trust, tcp:// or tls://.", "Run", default="local processes",
)]  # fmt: skip
_Workers = Annotated[int | None, opt.option(
    "--workers N", "Local processes; 0 works in this one.", "Run", default="as many as cores")]  # fmt: skip
_Requests = Annotated[Path | None, opt.option(
    "--requests FILE.csv", "Weights of the programs: columns model, weight, and chip where it differs.", "Run",
    default="1 each")]  # fmt: skip


@command(PREDICT, "roofline fleet gpt2 resnet-50 --chips h100-sxm,l4 --limits latency=20ms --workers 0 -o results")
def fleet(
    program: opt.FormatOptions,
    lengths: opt.LengthOptions,
    output: opt.ChartOptions,
    models: _Models = None,
    chips: _Chips = None,
    into: _Into = None,
    page: _Page = None,
    limits: _Limits = None,
    batch: _Batch = "1",
    phase: _Phase = None,
    mode: opt.Mode = "eager",
    gains: _Gains = True,
    scheduler: _Scheduler = None,
    workers: _Workers = None,
    requests: _Requests = None,
) -> None:
    """Work out many programs on chips under limits, and rank what to optimise first; what Ctrl-C stops can go on.

    Exit with 1 where nothing could be worked out.
    """
    if page is not None:
        if models or into is not None:
            raise UsageError(f"--page {page} is of results that are there; leave out MODELS and --output")
        result, folder = read(page, requests), page
    else:
        if not models or chips is None or into is None:
            missing = "MODELS" if not models else "--chips" if chips is None else "--output"
            raise UsageError(f"fleet: no {missing}; such as roofline fleet models/ --chips h100-sxm,l4 -o results")
        question = Question(
            phases=tuple(opt.names(phase) if phase else ()), batches=tuple(opt.several(batch, "-B")),
            limits=tuple(limits or ()), mode=mode, gains=gains, **program.formats, **_lengths(lengths),
        )  # fmt: skip
        folder, names = into, opt.names(chips)
        with progress("fleet", 1.0) as update:
            result = run(models, names, into, question, scheduler=scheduler, workers=workers, progress=update)
        result = result if requests is None else result.weighed(requests)
    _save_page(result, folder)
    output.write(result, _parts(result))
    if result.interrupted:
        interrupted(f"with {len(result.rows):,} answers")
    if len(result.failed) == len(result.rows):
        raise typer.Exit(1)


def _lengths(lengths: opt.LengthOptions) -> dict[str, Any]:
    """Return the lengths that were given, one number each."""
    numbers_of = {}
    for name, text, option in (("seq", lengths.seq, "-S"), ("context", lengths.context, "-C")):
        if text is not None:
            numbers = opt.several(text, option)
            if len(numbers) > 1:
                raise UsageError(f"{option} {text[:60]}: a fleet is of one length; give {option} one number")
            numbers_of[name] = numbers[0]
    return numbers_of


def _save_page(result: Fleet, folder: Path) -> None:
    from roofline.view.pages.fleet import fleet_page

    fleet_page(result).save(folder / PAGE)


def _parts(result: Fleet) -> Iterator[Any]:
    counts = result.summary()
    failed: dict[str, int] = {}
    for row in result.failed:
        failed[row["error"] or ""] = failed.get(row["error"] or "", 0) + 1
    note_failed(failed, "worked out")
    said = f"{counts['programs']:,} on {len(result.subject()['chip']):,} chips: {counts['answers']:,} answers"
    more = (f"{counts['too_large']:,} that do not fit, {counts['unmet']:,} limits that no batch meets, "
            f"{counts['failed']:,} failed")  # fmt: skip
    yield facts([("programs", f"{said}, {more}"), ("page", f"{Path(result.folder) / PAGE}")])
    rows = result.ranked("gain" if counts["could_save_s"] else "lost")[:SHOWN]
    heads = "<program|<chip|?<phase|batch|time|bound|saves|<first"
    if rows:
        yield from ("", table(heads, map(_cells, rows), "what to optimise first"))


def _cells(row: dict[str, Any]) -> list[Any]:
    saves = "" if row["potential_s"] is None else percent(1 - row["potential_s"] / row["time_s"])
    return [row["model"], row["chip"], row["phase"], row["batch"] or "", time_text(row["time_s"]), row["bound"], saves,
            row["option"] or ""]  # fmt: skip
