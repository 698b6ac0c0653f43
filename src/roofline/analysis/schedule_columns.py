"""Rows of a table that say how a matmul is blocked: the columns ``bm bn bk group warps stages``.

Empty cells leave the choice to the library. A row with a schedule is a ``gemm`` whose kernel its author wrote.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from roofline.ir.errors import UsageError
from roofline.tiling.schedule import Schedule

#: The columns, the first three of which a schedule needs, and what stands for the others where they are empty.
COLUMNS: Mapping[str, int | None] = {"bm": None, "bn": None, "bk": None, "group": 1, "warps": 4, "stages": 3}
#: The operator that has schedules.
SCHEDULED = "gemm"
#: The largest figure of a schedule: no core holds a tile of more rows.
MOST = 2**16


def schedule_of(row: Mapping[str, Any]) -> tuple[int, ...] | None:
    """Return the figures of a row's schedule in the order of :data:`COLUMNS`; ``None`` where it has none.

    Raises:
        UsageError: Part of a schedule, figures that are no whole numbers from 1, or an operator that has no schedule.

    Example:
        >>> schedule_of({"op": "gemm", "bm": "128", "bn": "64", "bk": "32", "group": "8"})
        (128, 64, 32, 8, 4, 3)
    """
    if "bm" not in row and "bn" not in row and "bk" not in row:
        return None
    cells = {name: row.get(name) for name in COLUMNS}
    if all(_is_empty(cell) for cell in cells.values()):
        return None
    if (op := str(row.get("op") or "").strip()) != SCHEDULED:
        raise UsageError(f"{op}: columns {' '.join(COLUMNS)} are for op {SCHEDULED!r}; leave them empty")
    if missing := [name for name, usual in COLUMNS.items() if usual is None and _is_empty(cells[name])]:
        raise UsageError(f"a schedule needs {', '.join(missing)}; or leave all of {' '.join(COLUMNS)} empty")
    return tuple(_figure(name, cell, COLUMNS[name]) for name, cell in cells.items())


def _is_empty(cell: Any) -> bool:
    return (
        cell is None or (isinstance(cell, str) and not cell.strip()) or (isinstance(cell, float) and math.isnan(cell))
    )


def _figure(name: str, cell: Any, usual: int | None) -> int:
    if usual is not None and _is_empty(cell):
        return usual
    try:
        number = float(cell)
    except (TypeError, ValueError):
        number = math.nan
    if not 1 <= number <= MOST or number != int(number):
        raise UsageError(f"{name}={str(cell)[:40]!r}: expected a whole number from 1 to {MOST}")
    return int(number)


def as_schedule(figures: Sequence[tuple[int, ...]]) -> Schedule:
    """Return schedules of many rows as one, a column each."""
    return Schedule(*np.array(figures, dtype=np.float64).T)
