"""A table of measured times that a person wrote: a name and a time per row, its unit in the header or in the cells."""

from __future__ import annotations

import re
from collections.abc import Sequence

from roofline.ir.errors import TraceError
from roofline.traces.events import Kind, Recorder
from roofline.traces.formats.quantities import TIMES, column_of_times, number, plural, split_timed
from roofline.traces.formats.tables import Row, Table

EXAMPLE = """\
name,time_us,calls,dtype,shape
mm,41.5,2,bf16,64x64
relu,3.5,4,bf16,64x64
"""

NAMES = ("name", "op", "operator", "kernel", "kernel name", "operation", "op name", "op_name", "kernel_name", "layer")
COUNTS = ("count", "calls", "# of calls", "instances", "num calls", "launches")

#: Words of a column of times, the one that is most surely the device's first.
_TIMES = (
    "self cuda", "self device", "kernel", "device", "gpu", "cuda", "time", "duration", "latency", "elapsed", "self cpu",
)  # fmt: skip
#: Of these a column without a unit is one of times too, whose cells have the unit.
_SURE = ("self cuda", "self device", "cuda total", "time", "duration", "latency", "elapsed", "self cpu")
#: Of these a row has the sum over all launches.
_SUMS = ("total", "sum", "self")
_NO_TIMES = ("%", "name", "avg", "std", "min", "max", "median", "start")

_CELL = re.compile(r"\s*([\d.,'eE+-]+)\s*([a-zµμ]+)\s*", re.IGNORECASE)


def claims(columns: Sequence[str]) -> bool:
    """Tell whether there are a name and a time among the columns."""
    return _name(columns) >= 0 and _time(columns)[0] >= 0


def _name(columns: Sequence[str]) -> int:
    low = [column.casefold() for column in columns]
    return next((low.index(name) for name in NAMES if name in low), -1)


def _time(columns: Sequence[str]) -> tuple[int, str]:
    """Return position and unit of the column of times; the unit is empty where the cells have it."""
    name = _name(columns)

    def accepts(at: int, label: str, unit: str) -> bool:
        timed = bool(unit) or any(word in label for word in _SURE)
        return at != name and timed and not any(word in label for word in _NO_TIMES)

    return column_of_times(columns, _TIMES, accepts)


def read(table: Table, rows: Recorder, devices: dict[int, str]) -> list[str]:
    """Read the rows; return notes on what was left out."""
    name, (time, unit) = _name(table.columns), _time(table.columns)
    label = split_timed(table.columns[time])[0]
    others = {c: i for i, c in enumerate(table.columns) if c and i not in (name, time)}
    sums = any(word in label for word in _SUMS)
    skipped = 0
    for row in table:
        cells = row.cells
        seconds = _seconds(row, unit, time)
        if seconds is None or seconds < 0 or not cells[name].strip():
            skipped += 1
            continue
        known = {column: cells[i].strip() for column, i in others.items() if cells[i].strip()}
        launches = max(row.whole(*COUNTS, default=1, limit=2**62), 1) if sums else 1
        rows.add(Kind.KERNEL, cells[name].strip(), 0.0, seconds, device=0, count=launches, detail=rows.detail(known))
    notes = [f"times from column {table.columns[time]!r}"]
    return notes + ([f"skipped {plural(skipped, 'row')} without a name and a time"] if skipped else [])


def _seconds(row: Row, unit: str, time: int) -> float | None:
    cell = row.cells[time]
    match = _CELL.fullmatch(cell)
    if not unit and match and match[2] in TIMES:
        cell, unit = match[1], match[2]
    value = number(cell)
    if value is None or unit:
        return None if value is None else value * TIMES[unit]
    raise TraceError(
        f"{row.table.name}, line {row.line:,}: column {row.table.columns[time]!r} has no unit; "
        f"name it such as 'time_us' or 'duration (ms)'"
    )
