"""``roofline compare``: chips side by side, what bounds each, and what better figures would buy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from rich.table import Table
from rich.text import Text

from roofline.analysis.comparison import WHAT_IF, Candidate, Comparison
from roofline.analysis.comparison import compare as side_by_side
from roofline.analysis.remedies import remedies_text, would_fit
from roofline.cli import options as opt
from roofline.cli.app import PREDICT, command
from roofline.cli.tables import facts, heading, percent, size_text, span, table, time_text, yes_or_no
from roofline.ir.errors import UsageError
from roofline.ir.report import WORDS
from roofline.ir.units import format_si

_Chips = Annotated[opt.Text, opt.argument("CHIPS", "Shipped names or chip files, with commas.", opt.complete_chips)]
_AsOption = Annotated[opt.Text, opt.option(
    "--chips A,B,C", "The same as an option.", complete=opt.complete_chips)]  # fmt: skip

#: Columns of the table of elasticities, and the figure of each; ``peak_`` stands for the formats in use.
_ELASTICITIES = {
    "peak": "peak_",
    "vector": "vector_peak",
    "memory": "memory_bandwidth",
    "cache size": "cache_capacity",
    "cache rate": "cache_bandwidth",
    "links": "link_bandwidth",
    "launch": "launch",
    "host": "host",
}
#: Columns that are shown even where they have no effect anywhere.
_ALWAYS = ("peak", "memory")


@command(PREDICT, "roofline compare gpt2 h100-sxm,a100-80gb-sxm,l4 -B 8 -S 1024")
def compare(
    model: opt.Model,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    run: opt.RunOptions,
    output: opt.ChartOptions,
    where: _Chips = None,
    as_option: _AsOption = None,
) -> None:
    """Put chips side by side, and say what better figures of each would buy."""
    names = opt.one_chip(where, as_option, "--chips")
    if names is None:
        raise UsageError("compare: no chips given; name some with commas, such as h100-sxm,l4")
    graph, chips = program.graph(model, run.cluster(names)), run.chips(names)
    values = sizes.of(graph, len(chips))
    lists = [name for name, value in values.items() if isinstance(value, list)]
    if len(lists) > 1:
        raise UsageError(
            f"compare: one size may be several numbers; given {' and '.join(f'-{name}' for name in lists)}"
        )
    result = side_by_side(graph, chips, **run.keywords, **values)
    output.write(result, _tables(result, lists[0] if lists else ""))


def _tables(result: Comparison, axis: str) -> Iterator[Any]:
    yield heading(result)
    yield from ("", _times(result.rows, axis, result.graph.item))
    timed = [row for row in result.rows if row.estimate is not None]
    if timed:
        yield from ("", _elasticities(timed, axis), "", _what_ifs(timed, axis))
    reasons = [(_place(row, axis), _reason(row)) for row in result.rows if row.reason]
    if reasons:
        yield from ("", facts(reasons))


def _reason(row: Candidate) -> str:
    """Say why a program does not run there, and what would fit."""
    others = would_fit(row.estimate) if row.estimate is not None and row.estimate.fits is False else ()
    return row.reason + (f"; what would fit: {remedies_text(others[:1])}" if others else "")


def _place(row: Candidate, axis: str) -> str:
    size = f" {WORDS.get(axis, axis)} {_at(row, axis)}" if axis and row.estimate is not None else ""
    return f"{row.chip.name}{size}"


def _at(row: Candidate, axis: str) -> str:
    return "-" if row.estimate is None else f"{row.estimate.grid.values[axis]:,}"


def _table(rows: Sequence[Candidate], axis: str, columns: str, cells: Any, title: str = "") -> Table:
    """Return a table whose rows begin with the chip, and with the size that varies."""
    heads = "|".join(["<chip", *([WORDS.get(axis, axis)] if axis else []), columns])
    return table(heads, [[row.chip.name, *([_at(row, axis)] if axis else []), *cells(row)] for row in rows], title)


def _times(rows: Sequence[Candidate], axis: str, item: str) -> Table:
    return _table(rows, axis, f"time|?range|?<bound|{item}/s|memory|<fits", _time_cells)


def _time_cells(row: Candidate) -> list[Any]:
    est = row.estimate
    if est is None:
        return [*["-"] * 5, Text("?", style="red")]
    return [
        time_text(est.time), span(est.low, est.high), est.bound, format_si(float(est.throughput), "").strip(),
        size_text(est.memory.total), yes_or_no(est.fits),
    ]  # fmt: skip


def _elasticities(rows: Sequence[Candidate], axis: str) -> Table:
    columns = [
        name for name in _ELASTICITIES
        if name in _ALWAYS or any(_elasticity(row, name) not in ("-", "0.00") for row in rows)
    ]  # fmt: skip

    def cells(row: Candidate) -> list[str]:
        est = row.estimate
        shares = ["-", "-"] if est is None else [percent(est.mfu), percent(est.mbu)]
        return [*shares, *(_elasticity(row, name) for name in columns)]

    heads = "|".join(["?MFU", "?MBU", *(name if name in _ALWAYS else f"?{name}" for name in columns)])
    return _table(rows, axis, heads, cells, "elasticity: % less time per 1 % improvement")


def _elasticity(row: Candidate, column: str) -> str:
    key = _ELASTICITIES[column]
    values = [value for name, value in row.elasticity.items() if name == key or key == "peak_" == name[:5]]
    return f"{max(values) + 0.0:.2f}" if values else "-"


def _what_ifs(rows: Sequence[Candidate], axis: str) -> Table:
    def cells(row: Candidate) -> list[str]:
        return [
            f"{float(row.estimate.time) / row.what_if[name]:.3g}x" if row.estimate and name in row.what_if else "-"
            for name in WHAT_IF
        ]

    return _table(rows, axis, "|".join(f"?{name}" for name in WHAT_IF), cells, "how many times faster with")
