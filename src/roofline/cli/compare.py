"""``roofline compare``: chips side by side, what sets the pace on each, and what better figures would buy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from roofline.analysis.comparison import WHAT_IF, Comparison, Contender
from roofline.analysis.comparison import compare as side_by_side
from roofline.cli import options as opt
from roofline.cli.output import show, write_csv, write_json
from roofline.cli.tables import facts, heading, percent, table, time_text
from roofline.ir.errors import UsageError
from roofline.ir.units import format_bytes, format_si, parse

_Chips = Annotated[str, typer.Option(
    "--chips", metavar="A,B,C", help="Shipped names or chip files, with commas.", show_default=False)]  # fmt: skip

#: Columns of the table of elasticities, and the figure of each; ``peak_`` stands for the formats in use.
_PULLS = {
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


def compare(
    model: opt.Model,
    chips: _Chips,
    batch: opt.Batches = None,
    seq: opt.Seq = None,
    context: opt.Context = None,
    phase: opt.Phase = None,
    mode: opt.RunMode = "eager",
    dtype: opt.DType = None,
    weights: opt.Weights = None,
    cache: opt.Cache = None,
    tf32: opt.TF32 = False,
    as_json: opt.AsJson = False,
    as_csv: opt.AsCsv = False,
) -> None:
    """Put chips side by side, and say what better figures of each would buy."""
    opt.exclusive(json=as_json, csv=as_csv)
    graph, found = opt.program(model, phase, dtype, weights, cache), opt.chips(chips)
    where = found if isinstance(found, list) else [found]
    sizes = opt.sizes(graph, batch, seq, context, len(where))
    lists = [f"-{name}" for name, value in sizes.items() if isinstance(value, list)]
    if len(lists) > 1:
        raise UsageError(f"compare: one size may be several numbers; given {' and '.join(lists)}")
    result = side_by_side(graph, where, mode=mode, tf32=tf32, **sizes)  # type: ignore[arg-type]
    if as_csv:
        write_csv(result.record()["rows"])
    elif as_json:
        write_json(result.record())
    else:
        show(*_tables(result, sizes))


def _tables(result: Comparison, sizes: dict[str, Any]) -> list[Any]:
    fixed = "".join(f", {name}={value:,}" for name, value in sizes.items() if isinstance(value, int))
    axis = next((name for name, value in sizes.items() if isinstance(value, list)), "")
    timed = [row for row in result.rows if row.estimate is not None]
    parts: list[Any] = [
        heading(f"{result.graph.name}, {result.mode} mode{fixed}"),
        "",
        _times(result.rows, axis, result.graph.item),
    ]
    if timed:
        parts += ["", _elasticities(timed, axis), "", _what_ifs(timed, axis)]
    why = [(_place(row, axis), row.reason) for row in result.rows if row.reason]
    return [*parts, *(["", facts(why)] if why else [])]


def _place(row: Contender, axis: str) -> str:
    return " ".join([row.chip.name, *([f"{axis}={_at(row, axis)}"] if axis and row.estimate is not None else [])])


def _at(row: Contender, axis: str) -> str:
    return "-" if row.estimate is None else f"{row.estimate.grid.values[axis]:,}"


def _where(row: Contender, axis: str) -> list[str]:
    return [row.chip.name, *([_at(row, axis)] if axis else [])]


def _times(rows: Sequence[Contender], axis: str, item: str) -> Any:
    cells = []
    for row in rows:
        est = row.estimate
        if est is None:
            cells.append([*_where(row, axis), *["-"] * 5, Text("?", style="red")])
            continue
        number, unit = time_text(est.high).split(" ")
        low = float(f"{float(est.low) / parse('1 ' + unit, 's'):.3g}")
        fit = Text("yes") if row.runs else Text("no", style="red")
        cells.append([
            *_where(row, axis), time_text(est.time), f"{low:g}-{number} {unit}", est.bound,
            format_si(float(est.throughput), "").strip(), format_bytes(float(est.memory.total)), fit,
        ])  # fmt: skip
    return table("|".join(["<chip", *([axis] if axis else []), f"time|range|<bound|{item}/s|memory|<fits"]), cells)


def _elasticities(rows: Sequence[Contender], axis: str) -> Any:
    felt = {word for word in _PULLS if any(_pull(row, word) not in ("-", "0.00") for row in rows)}
    shown = [word for word in _PULLS if word in _ALWAYS or word in felt]
    cells = [[*_where(row, axis), *_shares(row), *(_pull(row, word) for word in shown)] for row in rows]
    columns = "|".join(["<chip", *([axis] if axis else []), "MFU", "MBU", *shown])
    return table(columns, cells, "per cent of the time saved by one per cent more (or less cost)")


def _shares(row: Contender) -> tuple[str, str]:
    return ("-", "-") if row.estimate is None else (percent(row.estimate.mfu), percent(row.estimate.mbu))


def _pull(row: Contender, word: str) -> str:
    key = _PULLS[word]
    found = [value for name, value in row.elasticity.items() if name == key or key == "peak_" == name[:5]]
    return f"{max(found) + 0.0:.2f}" if found else "-"


def _what_ifs(rows: Sequence[Contender], axis: str) -> Any:
    cells = [[*_where(row, axis), *(_speedup(row, name) for name in WHAT_IF)] for row in rows]
    columns = "|".join(["<chip", *([axis] if axis else []), *WHAT_IF])
    return table(columns, cells, "how many times faster with")


def _speedup(row: Contender, name: str) -> str:
    if row.estimate is None or name not in row.what_if:
        return "-"
    return f"{float(row.estimate.time) / row.what_if[name]:.3g}x"
