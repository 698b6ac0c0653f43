"""``roofline graph``: a program node by node, as text, a table, a Graphviz file or a page."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from roofline.cli import options as opt
from roofline.cli.output import as_json as json_text
from roofline.cli.output import rendered, width, write
from roofline.cli.validate import table
from roofline.ir.csvfile import whole_file
from roofline.ir.errors import UsageError, did_you_mean
from roofline.passes.fusion.fuse import fuse as fused
from roofline.view.listing import wording as words
from roofline.view.listing.listing import Listing, listing
from roofline.view.listing.rows import Row
from roofline.view.listing.text import folded, heading, lines, subheading, totals

_Program = Annotated[str, typer.Argument(
    metavar="MODEL_OR_SCRIPT",
    help="A shipped name, a model .toml, a workload .json, a config.json or its folder, an .onnx file; or script.py or "
         "script.py:name. A script is your own code and is run, as by python script.py.")]  # fmt: skip
_Format = Annotated[str | None, typer.Option(
    "--format", "-f", metavar="FORMAT", help="text, table, dot or html. [default: by the suffix of -o, else text]",
    show_default=False)]  # fmt: skip
_All = Annotated[bool, typer.Option("--all", help="Show every layer; equal ones are folded to one otherwise.")]
_Fuse = Annotated[bool, typer.Option("--fuse", help="Show the kernels of a fusing compiler.")]
_Output = Annotated[Path | None, typer.Option(
    "--output", "-o", metavar="FILE", help="Write here instead, the whole file or nothing.",
    show_default=False)]  # fmt: skip
_Seq = Annotated[str | None, typer.Option(
    "--seq", "-S", metavar="N", help="Prompt length in prefill, context in decode; a symbol when absent.",
    show_default=False)]  # fmt: skip
_Batch = Annotated[str | None, typer.Option(
    "--batch", "-B", metavar="N", help="Batch; a symbol when absent.", show_default=False)]  # fmt: skip

#: Colour of each mark of a line.
_STYLES = {"head": "bold", "module": "cyan", "unknown": "bold red", "dim": "dim", "": ""}


def graph(
    model: _Program,
    format: _Format = None,
    batch: _Batch = None,
    seq: _Seq = None,
    context: opt.Context = None,
    phase: opt.Phase = None,
    every: _All = False,
    fuse: _Fuse = False,
    dtype: opt.DType = None,
    weights: opt.Weights = None,
    cache: opt.Cache = None,
    as_json: opt.AsJson = False,
    output: _Output = None,
) -> None:
    """Print a program node by node: operations, shapes, FLOPs, bytes, kernels."""
    form = _form(format, as_json, output)
    program = opt.program(model, phase, dtype, weights, cache, step=False)
    sizes = opt.some_sizes(program, batch, seq, context)
    found = listing(fused(program) if fuse else program, fold=not every, **sizes)  # type: ignore[arg-type]
    text = FORMATS[form](found, output is not None)
    if output is None or os.fspath(output) == "-":
        write(text)
        return
    with whole_file(output) as stream:
        stream.write(text)
    write(f"{output}: {form} of {words.safe(program.name)}\n")


def _form(format: str | None, as_json: bool, output: Path | None) -> str:
    """The format: as told, else by the file's suffix."""
    opt.exclusive(json=as_json, format=format is not None)
    if as_json:
        return "json"
    if format is None:
        return _SUFFIXES.get(output.suffix.lower(), "text") if output else "text"
    if format not in FORMATS:
        near = did_you_mean(format, FORMATS)
        raise UsageError(f"--format {format[:60]!r}; allowed: {', '.join(FORMATS)}{near}")
    return format


# --- for a terminal ---------------------------------------------------------------------------------------------------


def _text(found: Listing, plain: bool) -> str:
    text = Text("\n", end="").join(Text(line.text, style=_STYLES[line.mark]) for line in lines(found, width()))
    return rendered(text, plain=plain)


#: Where a narrow table breaks the names of nodes, at dots and underscores.
_NAME_WIDTH = 24

#: Columns of the table: from how wide a terminal on, its head (text if it begins with ``<``), its cell.
_COLUMNS: tuple[tuple[int, str, Callable[[Row], str]], ...] = (
    (0, "#", lambda row: str(row.index)),
    (0, "<node", lambda row: "\n".join(folded(words.safe(row.name), _NAME_WIDTH, 0, 2))),
    (0, "<operation", lambda row: words.safe(row.title)),
    (170, "<what it does", lambda row: row.meaning),
    (120, "<inputs", lambda row: "\n".join(f"{t.kind} {words.tensor(t)}" for t in row.inputs)),
    (170, "<options", lambda row: words.options(row.options)),
    (0, "<output", lambda row: "\n".join(map(words.tensor, row.outputs))),
    (0, "FLOP", lambda row: words.amount(row.flops)),
    (100, "vector", lambda row: words.amount(row.vector)),
    (0, "bytes", lambda row: words.amount(row.bytes)),
    (140, "alone", lambda row: words.amount(row.bytes_alone)),
    (0, "<kernel", lambda row: row.place),
    (0, "runs", lambda row: f"{row.count:,}"),
)


def _table(found: Listing, plain: bool) -> str:
    room = width()
    columns = [(head, cell) for least, head, cell in _COLUMNS if room >= least]
    rows: Table = table("|".join(head for head, _ in columns), ())
    for row in found.rows:
        rows.add_row(*(cell(row) for _, cell in columns), style="bold red" if row.unknown else None)
    ends = [Text(line.text, style=_STYLES[line.mark]) for line in totals(found, room)]
    parts: list[Any] = [Text(heading(found), style="bold"), Text(subheading(found)), "", rows, "", *ends]
    return rendered(*parts, plain=plain)


def _dot(found: Listing, plain: bool) -> str:
    return f"{found.dot()}\n"


def _html(found: Listing, plain: bool) -> str:
    return found.html()


def _json(found: Listing, plain: bool) -> str:
    return json_text(found.record())


#: What ``--format`` may be.
FORMATS: dict[str, Callable[[Listing, bool], str]] = {
    "text": _text, "table": _table, "dot": _dot, "html": _html, "json": _json,
}  # fmt: skip
_SUFFIXES = {".html": "html", ".htm": "html", ".dot": "dot", ".gv": "dot", ".json": "json"}
