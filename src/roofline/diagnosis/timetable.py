"""Tables of times that people measured: CSV with the unit in a header such as ``time_ms`` or ``latency (us)``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from roofline.ir.errors import UsageError
from roofline.ir.units import parse
from roofline.traces.formats.quantities import TIMES, column_of_times, number, split_timed

#: Words of a header of times, the surest first; a header that is a unit alone comes last.
WORDS = (
    "kernel", "device", "gpu", "cuda", "p50", "median", "time", "duration", "latency", "elapsed", "wall", "measured",
    "mean", "avg", "",
)  # fmt: skip
#: Of these a column without a unit is one of times too, whose cells have the unit.
SURE = ("time", "duration", "latency", "elapsed", "measured")
#: Words of columns that have a unit of time and are not the measured time.
_OTHERS = re.compile(r"std|\bdev\b|\bmin|max|p\d+|pred|low|high|floor|expect|start|end|compile|sync", re.I)


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """A column of times.

    Attributes:
        name: Its header.
        scale: What one of its unit is [s]; 0 where each cell names its own.
    """

    name: str
    scale: float

    def seconds(self, row: Mapping[str, Any]) -> float | None:
        """Return the time of a row [s], or ``None`` where the cell is empty.

        Raises:
            UsageError: The cell is no time above zero.
        """
        cell = row.get(self.name)
        text = "" if cell is None else str(cell).strip()
        if not text or text == "nan":
            return None
        value = number(text)
        if not self.scale and value is not None:
            raise UsageError(f"column {self.name!r} has no unit; name it such as 'time_us' or 'duration (ms)'")
        seconds = (value or 0.0) * self.scale if self.scale else parse(text, "s")
        if not 0 < seconds < math.inf:
            raise UsageError(f"{self.name}={text[:40]!r}: expected a time above zero")
        return seconds


def time_column(columns: Sequence[str], name: str | None = None) -> TimeColumn:
    """Find the column of measured times.

    Args:
        columns: Headers.
        name: The one to take, where several have times.

    Raises:
        UsageError: There is none.

    Example:
        >>> time_column(["batch", "latency (ms)"])
        TimeColumn(name='latency (ms)', scale=0.001)
        >>> time_column(["op", "p20_us", "p50_us", "kernel_us"]).name
        'kernel_us'
    """
    if name is not None:
        if name not in columns:
            raise UsageError(f"no column {name!r}; there are {_listed(columns)}")
        return TimeColumn(name, TIMES.get(split_timed(name)[1], 0.0))

    def accepts(at: int, label: str, unit: str) -> bool:
        word = next(word for word in WORDS if word in label)
        return bool(unit or word in SURE) and (word == "p50" or not _OTHERS.search(label))

    at, unit = column_of_times(columns, WORDS, accepts)
    if at < 0:
        raise UsageError(f"no column of times, such as 'time_us' or 'latency (ms)'; there are {_listed(columns)}")
    return TimeColumn(columns[at], TIMES.get(unit, 0.0))


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(map(str, columns))[:200] or "none"
