"""``roofline schedules``: how a matmul may be blocked on a GPU, the fastest first."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from roofline.analysis.schedules import FIGURES, Row, Schedules
from roofline.analysis.schedules import schedules as rank
from roofline.cli import options as opt
from roofline.cli.app import COMPILE, command
from roofline.cli.tables import facts, heading, percent, span, table, time_text
from roofline.frontends.source import load_program
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.units import format_si

_Op = Annotated[str, opt.argument(
    "OP", "One matmul: an operator with its sizes, 'gemm m=4096 n=4096 k=4096 dtype=bf16', or a MODEL that is one."
)]  # fmt: skip
_Top = Annotated[
    int | None,
    opt.option("--top N", "So many of the fastest; a chart has all where nothing is said.", default="10", min=1),
]
_Space = Annotated[str | None, opt.option(
    "--space FIGURES", "What to price, such as 'bm=64,128 bn=256 bk=64'; all combinations, of the usual figures where "
    "one is not given.", default="powers of two")]  # fmt: skip
_Format = Annotated[opt.Text, opt.option(
    "--dtype FORMAT", "Of the operands, where OP names none.", default="bf16", complete=opt.complete_formats
)]  # fmt: skip

#: Schedules of a table, and those that cannot run of which it shows the reason.
_SHOWN, _MOST = 10, 5


@command(COMPILE, "roofline schedules 'gemm m=4096 n=4096 k=4096 dtype=bf16' h100-sxm --top 10")
def schedules(
    op: _Op,
    chip: opt.OneChip,
    output: opt.ChartOptions,
    what_if: opt.ChipOptions,
    top: _Top = None,
    space: _Space = None,
    dtype: _Format = None,
    tf32: opt.Tf32 = None,
) -> None:
    """Rank the tiles, warps, stages and order of blocks of a matmul on a GPU."""
    result = rank(load_program(op, dtype=dtype), what_if.device(chip), read_space(space), tf32=tf32,
                  top=top or (None if output.plot else _SHOWN))  # fmt: skip
    output.write(result, _parts(result, top or _SHOWN))


def read_space(text: str | None) -> dict[str, list[int]] | None:
    """Read values by figure, such as ``bm=64,128 bk=32``."""
    if text is None:
        return None
    space: dict[str, list[int]] = {}
    for name, _, values in (pair.partition("=") for pair in text.split()):
        if name not in FIGURES or name in space:
            why = (
                f"{name[:40]} twice" if name in space else f"unknown figure {name[:40]!r}{did_you_mean(name, FIGURES)}"
            )
            raise UsageError(f"--space: {why}; allowed: {', '.join(FIGURES)}, each once")
        cells = values.split(",")
        if not all(cell.isascii() and cell.isdigit() and len(cell) < 10 for cell in cells):
            raise UsageError(f"--space {name}={values[:40]}: expected whole numbers with commas, such as {name}=64,128")
        space[name] = [int(cell) for cell in cells]
    return space


def _parts(result: Schedules, shown: int) -> Iterator[Any]:
    """Show the fastest, what they are held against, and why others cannot run."""
    b, m, n, k = result.sizes
    yield heading(result)
    refused = f", {len(result.refused):,} cannot run" if result.refused else ""
    yield facts([
        ("matmul", f"{f'{b:,} of ' if b > 1 else ''}{m:,} x {n:,} x {k:,}, all in main memory when it starts"),
        ("priced", f"{result.searched:,} schedules{refused}"),
        ("floor", time_text(result.floor)),
        ("library", f"{time_text(result.library)}, its own choice"),
    ])  # fmt: skip
    columns = "bm|bn|bk|group|warps|stages|time|?range|?waves|?on a core|?idle|?DRAM|?L2|?<bound|?registers|?shared"
    yield from ("", table(columns, [_cells(row) for row in result.rows[:shown]]))
    if result.refused:
        yield ""
    for row in result.refused[:_MOST]:
        yield f"cannot run: {row.figures}: {row.problem}"
    if len(result.refused) > _MOST:
        yield f"cannot run: {len(result.refused) - _MOST:,} more"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        *(str(getattr(row, name)) for name in FIGURES), time_text(row.time_s), span(row.low_s, row.high_s),
        f"{row.waves:.2f}", str(row.blocks_per_core), percent(row.tail), format_si(row.dram_bytes, "B"),
        format_si(row.l2_bytes, "B"), row.bound, str(row.registers), format_si(row.shared_bytes, "B"),
    )  # fmt: skip
