"""A table of measured operators, each judged on its own: impossible, as expected or slow, and what it costs.

Rows are predicted in bulk, as by :func:`roofline.predict`. Only a row that is faster than expected is looked at on its
own, to tell whether it is impossible.
"""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from roofline.analysis.estimates import estimate
from roofline.analysis.prediction import parse_shape, predict_rows, text
from roofline.cost import REGIME
from roofline.diagnosis.reference import lower_bound
from roofline.diagnosis.timetable import TimeColumn, time_column
from roofline.diagnosis.verdict import VERY_SLOW
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.csvfile import read_table
from roofline.ir.errors import RooflineError, UsageError
from roofline.ir.report import Report
from roofline.ir.units import format_si
from roofline.programs.workload import WORDS, checked_entry, operator_graph

if TYPE_CHECKING:
    import pandas as pd

#: Column of how often an operator ran, where a table has one.
COUNTS = ("count", "calls")
#: Verdicts from the worst; ``unknown`` is a row that could not be predicted.
VERDICTS = ("impossible", "very_slow", "slow", "as_expected", "unknown")

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OpVerdict:
    """A row and what to say of it.

    Attributes:
        row: Its number in the table, from 1.
        op: Operator word.
        dtype: Its number format.
        shape: Its sizes.
        count: How often it ran.
        verdict: One of :data:`VERDICTS`.
        reason: In one sentence.
        measured_s: The measured time of one launch [s]; ``None`` where there is none.
        expected_s: Expected [s].
        low_s: Lower end of the range [s].
        high_s: Upper end of the range [s].
        floor_s: Speed of light [s].
        ratio: Measured over expected.
        bound: What bounds it.
        lost_s: What all its launches take beyond what is expected [s].
        chip: Where it ran; empty where nothing says.
        error: Why it could not be judged (its verdict is then ``unknown``), or ``None``.
    """

    row: int
    op: str
    dtype: str
    shape: Mapping[str, Any]
    count: int
    verdict: str
    reason: str
    measured_s: float | None = None
    expected_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    floor_s: float | None = None
    ratio: float | None = None
    bound: str | None = None
    lost_s: float = 0.0
    chip: str = ""
    error: str | None = None


@dataclass(frozen=True, repr=False)
class OpVerdicts(Report):
    """All rows of a table, those that lose the most time first.

    From :func:`roofline.diagnosis.check_ops`.

    Attributes:
        rows: The rows.
        column: The column that the times are from.
        regime: Where operands were taken to lie when a launch starts.
    """

    schema = "ops"

    rows: tuple[OpVerdict, ...]
    column: str
    regime: str

    @property
    def counts(self) -> dict[str, int]:
        """Number of rows with each verdict."""
        number = Counter(row.verdict for row in self.rows)
        return {verdict: number[verdict] for verdict in VERDICTS if number[verdict]}

    @property
    def errors(self) -> dict[str, int]:
        """Number of rows that could not be judged, by the reason."""
        return dict(Counter(row.error for row in self.rows if row.error))

    @property
    def measured_s(self) -> float:
        """Time of all launches together, of rows that were judged [s]."""
        return sum(row.count * (row.measured_s or 0.0) for row in self.rows if row.verdict != "unknown")

    @property
    def lost_s(self) -> float:
        """Time of all launches beyond what is expected [s]."""
        return sum(row.lost_s for row in self.rows)

    def subject(self) -> dict[str, Any]:
        """Return where the rows ran, a list of chips where they ran on several."""
        chips = list(dict.fromkeys(row.chip for row in self.rows))
        return {"chip": chips[0] if len(chips) == 1 else chips}

    def summary(self) -> dict[str, Any]:
        """Return how many rows got which verdict, and what is lost."""
        names = ("column", "regime", "counts", "measured_s", "lost_s")
        return {name: getattr(self, name) for name in names}

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per row."""
        return [asdict(row) for row in self.rows]

    def __str__(self) -> str:
        counted = ", ".join(f"{number} {verdict}" for verdict, number in self.counts.items())
        lost, whole = format_si(self.lost_s, "s"), format_si(self.measured_s, "s")
        return f"{len(self.rows)} rows: {counted}; {lost} of {whole} beyond what is expected"

    def __repr__(self) -> str:
        return f"<OpVerdicts {self}>"


def check_ops(
    rows_or_path: Iterable[Row] | pd.DataFrame | str | os.PathLike[str],
    chip: AnyChip | None = None,
    *,
    column: str | None = None,
    regime: str | None = None,
    tf32: bool | None = None,
    dtype: str | None = None,
) -> OpVerdicts:
    """Judge a table of measured operators.

    Args:
        rows_or_path: A CSV file, a data frame or dictionaries, with ``op``, ``dtype``, the sizes (a JSON object
            ``shape``, or a column each, such as ``m``, ``n``, ``k``) and a time with its unit in the header
            (``time_us``, ``latency (ms)``); ``count`` and ``chip`` where they differ.
        chip: Where the rows ran that name no chip.
        column: The column of times, where there are several.
        regime: As for :func:`roofline.predict`; ``warm`` for times in ``p50_us`` where nothing is said.
        tf32: As for :func:`roofline.predict`.
        dtype: Number format of rows that name none.

    Returns:
        A verdict per row, those that lose the most time first.

    Raises:
        UsageError: No rows, no operators or no column of times.
        UnknownChip: No chip of that name.

    Example:
        >>> import roofline as rl
        >>> rows = [{"op": "gemm", "dtype": "bf16", "m": 4096, "n": 4096, "k": 4096, "time_us": time}
        ...         for time in (30, 190, 900)]
        >>> [(row.row, row.verdict) for row in rl.diagnosis.check_ops(rows, "h100-sxm").rows]
        [(3, 'slow'), (2, 'as_expected'), (1, 'impossible')]
    """
    columns, rows = _rows(rows_or_path)
    if not rows:
        raise UsageError("no rows; expected a table of operators with a time each")
    if "op" not in columns:
        raise UsageError(f"no column 'op'; there are {', '.join(map(str, columns))[:200]}")
    times = time_column([name for name in columns if name not in ("op", "dtype", "shape", "chip")], column)
    where = regime or ("warm" if times.name == "p50_us" else REGIME)
    if dtype is not None and all(text(row, "dtype") for row in rows):
        raise UsageError(f"dtype={dtype!r} (--dtype) is for rows that name no format, and each names its own")
    entries = [_entry(row, dtype) for row in rows]
    default = find_chip(chip) if chip is not None else None
    predicted = predict_rows(entries, default, regime=where, tf32=tf32)
    verdicts = [
        _judge(at, row, entry, guess, times, default)
        for at, (row, entry, guess) in enumerate(zip(rows, entries, predicted, strict=True), 1)
    ]
    order = sorted(verdicts, key=lambda one: (one.verdict == "unknown", -one.lost_s, one.row))
    return OpVerdicts(tuple(order), times.name, where)


def _rows(source: Any) -> tuple[list[str], Sequence[Row]]:
    if isinstance(source, str | os.PathLike):
        return read_table(source)
    if not hasattr(source, "__iter__"):
        raise UsageError(f"expected rows, a frame or the path of a table, given {repr(source)[:60]}")
    rows = source.to_dict("records") if hasattr(source, "to_dict") else list(source)
    wrong = next((row for row in rows if not isinstance(row, Mapping)), None)
    if wrong is not None:
        raise UsageError(f"{str(wrong)[:60]!r}: a row is a dictionary")
    return list(dict.fromkeys(str(key) for row in rows for key in row)), rows


# --- a row as an entry of a prediction ---


@cache
def _keys(op: str) -> frozenset[str]:
    """Return the size keys of an operator's word; none of what is no word."""
    if op not in WORDS:
        return frozenset()
    keys = inspect.signature(WORDS[op]).parameters.values()
    return frozenset(p.name.rstrip("_") for p in keys if p.name != "b" and p.kind is p.POSITIONAL_OR_KEYWORD)


def _entry(row: Row, dtype: str | None) -> dict[str, Any]:
    """Return what a prediction needs of a row; sizes in columns of their own become its shape."""
    op = text(row, "op")
    entry = {"op": op, "dtype": text(row, "dtype") or dtype or "", "chip": text(row, "chip"), "shape": row.get("shape")}
    if not text(row, "shape"):
        entry["shape"] = {key: _size(text(row, key)) for key in sorted(_keys(op)) if text(row, key)}
    return entry


def _size(cell: str) -> Any:
    """Return a cell as a whole number, a truth value or the text that it is."""
    if cell.casefold() in ("true", "false"):
        return cell.casefold() == "true"
    try:
        value = float(cell)
    except ValueError:
        return cell
    return int(value) if value.is_integer() else value


def _count(row: Row) -> int:
    cell = next((text(row, name) for name in COUNTS if text(row, name)), "1")
    value = _size(cell)
    if not isinstance(value, int) or value < 1:
        raise UsageError(f"count={cell[:40]!r}: expected a whole number from 1")
    return value


# --- the verdict ---


def _judge(at: int, row: Row, entry: Row, guess: Row, times: TimeColumn, chip: Chip | None) -> OpVerdict:
    shape: Mapping[str, Any] = {}
    where = entry["chip"] or (chip.name if chip is not None else "")
    base: dict[str, Any] = {"row": at, "op": entry["op"], "dtype": entry["dtype"], "count": 1, "chip": where}
    try:
        shape = parse_shape(entry["shape"]) if entry["shape"] else {}
        base["count"] = 1 if "count" in shape or "count" in _keys(entry["op"]) else _count(row)
        seconds = times.seconds(row)
        if guess["error"]:
            raise UsageError(guess["error"])
        if seconds is None:
            raise UsageError(f"no time in {times.name!r}")
    except RooflineError as error:
        return OpVerdict(**base, shape=shape, verdict="unknown", reason=str(error), error=str(error))
    expected, low, high, floor = (guess[f"{name}_us"] * 1e-6 for name in ("predicted", "low", "high", "floor"))
    verdict, reason = _verdict(seconds, expected, low, high, entry, shape, chip)
    return OpVerdict(
        **base,
        shape=shape,
        verdict=verdict,
        reason=reason,
        measured_s=seconds,
        expected_s=expected,
        low_s=low,
        high_s=high,
        floor_s=floor,
        ratio=seconds / expected,
        bound=guess["bound"],
        lost_s=base["count"] * max(seconds - expected, 0.0),
    )


def _verdict(
    seconds: float, expected: float, low: float, high: float, entry: Row, shape: Row, chip: Chip | None
) -> tuple[str, str]:
    text, time, least, most = (format_si(value, "s") for value in (seconds, expected, low, high))
    if seconds < low:
        bottom = _lower_bound(entry, shape, chip)
        if seconds < bottom:
            return "impossible", (
                f"{text} is below its lower bound of {format_si(bottom, 's')}: look for a missing synchronise, or "
                "another size or format than said"
            )
        return "as_expected", f"{text} is faster than the {time} expected ({least} to {most}) but possible"
    if seconds <= high:
        return "as_expected", f"{text} against {time} expected ({least} to {most})"
    word = "very_slow" if seconds >= VERY_SLOW * expected else "slow"
    return word, f"{text} is {seconds / expected:.3g} times the {time} expected ({least} to {most})"


def _lower_bound(entry: Row, shape: Row, chip: Chip | None) -> float:
    """Return the lower bound of a row [s]; few need it, so the row is built on its own."""
    where = find_chip(entry["chip"]) if entry["chip"] else chip
    assert where is not None  # a row without a chip was not predicted
    graph = operator_graph(entry["op"], entry["dtype"], checked_entry(entry["op"], shape))
    return lower_bound(estimate(graph, where, mode="graph"))
