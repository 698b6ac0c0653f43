"""``roofline graph``: a program node by node, as text, a table, a Graphviz file or a page."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

from rich.text import Text

from roofline.analysis.estimates import estimate
from roofline.analysis.launched import Launched, launched
from roofline.cli import options as opt
from roofline.cli.app import LOOK_UP, command, completion
from roofline.cli.output import json_text, rendered, width, write
from roofline.cli.tables import heading as title
from roofline.cli.tables import percent, table, time_text
from roofline.ir.csvfile import csv_text
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.files import whole_file
from roofline.ir.graph import Graph
from roofline.view.listing import wording as words
from roofline.view.listing.listing import Listing, listing
from roofline.view.listing.rows import Row
from roofline.view.listing.text import folded, heading, lines, subheading, totals

_Program = Annotated[str, opt.argument(
    "MODEL_OR_SCRIPT",
    "A shipped name, a model .toml, a workload .json, a config.json or its folder, an .onnx file; or script.py or "
    "script.py:name. A script is your own code and is run, as by python script.py.",
    opt.complete_models)]  # fmt: skip
_Format = Annotated[str | None, opt.option(
    "--format -f FORMAT", "text, table, dot or html.", "Output", default="by the suffix of -o, else text",
    complete=completion(lambda: FORMATS))]  # fmt: skip
_All = Annotated[bool, opt.option("--all", "Show every layer; equal ones are folded to one otherwise.")]
_Chip = Annotated[str | None, opt.argument(
    "[CHIP]", "With --kernels, where it runs: a shipped name, a chip .toml.", opt.complete_chips)]  # fmt: skip
_Kernels = Annotated[bool, opt.option("--kernels", "List what a framework launches on CHIP, by operator.")]
_Output = Annotated[Path | None, opt.option(
    "--output -o FILE", "Write here instead, the whole file or nothing.", "Output")]  # fmt: skip
#: Colour of each mark of a line.
_STYLES = {"head": "bold", "module": "cyan", "unknown": "bold red", "dim": "dim", "": ""}


@command(LOOK_UP, "roofline graph llama-3-8b --phase decode --format table")
def graph(
    model: _Program,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    output: opt.OutputOptions,
    what_if: opt.ChipOptions,
    chip: _Chip = None,
    kernels: _Kernels = False,
    format: _Format = None,
    every: _All = False,
    file: _Output = None,
) -> None:
    """Print a program node by node: operations, shapes, FLOPs, bytes, kernels; sizes not given stay symbols."""
    what_if.need(chip)
    if kernels or chip is not None:
        _refuse_without_launches(chip, kernels, format=format is not None, all=every, output=file is not None)
        result = _launched(program.graph(model, step=False), str(chip), sizes, what_if)
        return output.write(result, _launches(result))
    form = _form(format, output, file)
    built = program.graph(model, step=False)
    shown = listing(built, fold=not every, **sizes.some(built))  # type: ignore[arg-type]
    if output.xlsx is not None:
        shown.to_excel(output.xlsx)
    text = FORMATS[form](shown, file is not None)
    if file is None or os.fspath(file) == "-":
        return write(text)
    with whole_file(file) as stream:
        stream.write(text)
    return write(f"{file}: {form} of {words.safe(built.name)}\n")


def _form(format: str | None, output: opt.OutputOptions, file: Path | None) -> str:
    """Return the format: as given, else by the file's suffix."""
    opt.exclusive(json=output.as_json, csv=output.as_csv, format=format is not None)
    if output.as_json or output.as_csv:
        return "json" if output.as_json else "csv"
    if format is None:
        return _SUFFIXES.get(file.suffix.lower(), "text") if file else "text"
    if format not in FORMATS:
        near = did_you_mean(format, FORMATS)
        raise UsageError(f"--format {format[:60]!r}; allowed: {', '.join(FORMATS)}{near}")
    return format


# --- what a framework launches ----------------------------------------------------------------------------------------


def _refuse_without_launches(chip: str | None, kernels: bool, **others: bool) -> None:
    """Refuse a chip without ``--kernels``, the reverse, and options that are about the listing of nodes."""
    if chip is None or not kernels:
        one = "--kernels" if kernels else chip
        raise UsageError(f"{one}: what is launched takes a chip and --kernels; give both, or neither")
    opt.exclusive(kernels=True, **others)


def _launched(built: Graph, chip: str, sizes: opt.SizeOptions, what_if: opt.ChipOptions) -> Launched:
    """Return the launches at one point; the chip is one."""
    return launched(estimate(built, what_if.device(chip), mode="graph", **sizes.of(built)))


def _launches(result: Launched) -> Iterator[Any]:
    """Show operators and, where they are others, the kernels under them."""
    rows: list[tuple[str, ...]] = []
    for operator, group in groupby(result.records(), lambda row: (row["operator"], row["op"], row["operators"])):
        kernels = list(group)
        name = "\n".join(folded(words.safe(operator[0]), _OPERATOR_WIDTH, 0, 2))
        op, times = operator[1], f"{operator[2]:,}"
        whole = len(kernels) == 1 and kernels[0]["runs_as"] == op
        rows += [] if whole else [(name, op, times, "", "", "")]
        rows += [
            (name if whole else f"  {words.safe(row['kernel'])}", row["runs_as"], f"{row['count']:,}",
             time_text(row["each_s"]), time_text(row["time_s"]), percent(row["share"]))
            for row in kernels
        ]  # fmt: skip
    about = result.summary()
    yield title(result)
    yield f"{about['operators']:,} operators launch {about['launches']:,} kernels: {time_text(about['time_s'])}"
    yield from ("", table("<operator, kernel|<runs as|runs|each|time|share", rows))


# --- for a terminal ---------------------------------------------------------------------------------------------------


def _text(result: Listing, plain: bool) -> str:
    text = Text("\n", end="").join(Text(line.text, style=_STYLES[line.mark]) for line in lines(result, width()))
    return rendered(text, plain=plain)


#: Where a narrow table breaks the names of nodes and of operators, at dots and underscores.
_NAME_WIDTH, _OPERATOR_WIDTH = 24, 30

#: Columns of the table: from how wide a terminal on, its head (text if it begins with ``<``), its cell.
_COLUMNS: tuple[tuple[int, str, Callable[[Row], str]], ...] = (
    (0, "#", lambda row: str(row.index)),
    (0, "<node", lambda row: "\n".join(folded(words.safe(row.name), _NAME_WIDTH, 0, 2))),
    (0, "<operation", lambda row: words.safe(row.title)),
    (170, "<what it does", lambda row: row.meaning),
    (120, "<inputs", lambda row: "\n".join(f"{t.kind} {words.tensor(t)}" for t in row.inputs)),
    (170, "<options", lambda row: words.options(row.options)),
    (0, "?<output", lambda row: "\n".join(map(words.tensor, row.outputs))),
    (0, "FLOP", lambda row: words.amount(row.flops)),
    (100, "vector", lambda row: words.amount(row.vector)),
    (0, "bytes", lambda row: words.amount(row.bytes)),
    (140, "alone", lambda row: words.amount(row.bytes_alone)),
    (0, "?<kernel", lambda row: row.place),
    (0, "?runs", lambda row: f"{row.count:,}"),
)


def _table(result: Listing, plain: bool) -> str:
    columns = [(head, cell) for least, head, cell in _COLUMNS if width() >= least]
    rows = [[Text(cell(row), style="bold red" if row.unknown else "") for _, cell in columns] for row in result.rows]
    ends = [Text(line.text, style=_STYLES[line.mark]) for line in totals(result, width())]
    nodes = table("|".join(head for head, _ in columns), rows)
    return rendered(Text(heading(result), style="bold"), Text(subheading(result)), "", nodes, "", *ends, plain=plain)


#: What ``--format`` may be.
FORMATS: dict[str, Callable[[Listing, bool], str]] = {
    "text": _text,
    "table": _table,
    "dot": lambda result, plain: f"{result.dot()}\n",
    "html": lambda result, plain: result.html(),
    "json": lambda result, plain: json_text(result.record()),
    "csv": lambda result, plain: csv_text(result.csv_rows()),
}
_SUFFIXES = {".html": "html", ".htm": "html", ".dot": "dot", ".gv": "dot", ".json": "json", ".csv": "csv"}
