"""Results of a fleet: Parquet files in a folder, read back, weighed, and ranked by what there is to gain."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

from roofline.ir.csvfile import read_table
from roofline.ir.errors import MissingExtra, UsageError, did_you_mean
from roofline.ir.files import user_path, whole_file
from roofline.ir.report import Report
from roofline.ir.sizes import one_of
from roofline.ir.text import shown

#: Columns of the files, each with its type of Parquet.
COLUMNS = {
    "model": "string", "program_path": "string", "chip": "string", "phase": "string", "mode": "string",
    "formats": "string", "item": "string", "batch": "int64", "seq": "int64", "context": "int64",
    "under": "string", "limit": "string",
    "time_s": "double", "low_s": "double", "high_s": "double", "floor_s": "double", "device_s": "double",
    "host_s": "double", "bound": "string", "memory_bytes": "double", "capacity_bytes": "double", "fits": "bool",
    "items_per_s": "double", "mfu": "double", "mbu": "double", "calibrated": "string", "run_s": "double",
    "formats_s": "double", "kernels_s": "double", "potential_s": "double", "change": "string", "option": "string",
    "change_time_s": "double", "error": "string", "key": "string", "written": "double",
}  # fmt: skip
#: What tells a row from others; of equals the last one written counts.
IDENTITY = ("model", "chip", "phase", "mode", "formats", "batch", "seq", "context", "under", "key")
#: Files and rows that are read at most.
MAX_FILES, MAX_ROWS = 1_000_000, 20_000_000


@dataclass(frozen=True, repr=False)
class Fleet(Report):
    """Programs on chips, worked out by :func:`roofline.fleet.run`.

    Attributes:
        folder: Where the results are.
        rows: A row for each program, chip, phase and batch or limit, in the columns of
            the files, and ``program_weight``.
        interrupted: Whether the run was stopped before its end.
    """

    schema = "fleet"

    folder: str
    rows: tuple[dict[str, Any], ...]
    interrupted: bool = False

    @cached_property
    def failed(self) -> tuple[dict[str, Any], ...]:
        """Rows of what could not be worked out."""
        return tuple(row for row in self.rows if row["error"] is not None)

    @cached_property
    def unmet(self) -> tuple[dict[str, Any], ...]:
        """Rows of limits that not even a batch of one meets."""
        return tuple(row for row in self.rows if row["time_s"] is None and row["error"] is None)

    @cached_property
    def too_large(self) -> tuple[dict[str, Any], ...]:
        """Rows of what does not fit in the chip's memory: its time is that of a chip with more."""
        return tuple(row for row in self.rows if row["time_s"] is not None and row["fits"] is False)

    @cached_property
    def timed(self) -> tuple[dict[str, Any], ...]:
        """Rows of what runs, each with its time."""
        return tuple(row for row in self.rows if row["time_s"] is not None and row["fits"] is not False)

    def subject(self) -> dict[str, Any]:
        """Return where the results are, and the chips."""
        return {"folder": self.folder, "chip": list(dict.fromkeys(row["chip"] for row in self.rows))}

    def summary(self) -> dict[str, Any]:
        """Return how many programs and answers there are, and what they could save."""
        rows = self.ranked()
        return {"programs": len({row["program_path"] for row in self.rows}), "answers": len(self.timed),
                "too_large": len(self.too_large), "unmet": len(self.unmet), "failed": len(self.failed),
                "interrupted": self.interrupted, "above_floor_s": sum(row["lost"] for row in rows),
                "could_save_s": sum(row["gain"] for row in rows)}  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per row, what there is most to gain from first."""
        return [dict(row) for row in (*self.ranked(), *self.too_large, *self.unmet, *self.failed)]

    def ranked(self, by: str = "gain") -> list[dict[str, Any]]:
        """Return the rows of what runs, what to optimise first at the top; a batch that limits choose too once.

        Args:
            by: ``gain``: seconds that the changes save together; ``lost``: seconds above the floor. Both of one item of
                the batch, times the weight of the program.

        Raises:
            UsageError: By anything else.
        """
        one_of("by", by, ("gain", "lost"))
        once: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in self.timed:
            same = tuple(row.get(name) for name in ("program_path", *IDENTITY) if name not in ("under", "key"))
            under = dict.fromkeys(each["under"] for each in (once.get(same, {}), row) if each.get("under"))
            once[same] = row | {"under": "; ".join(under) or None, "lost": _lost(row), "gain": _gain(row)}
        return sorted(once.values(), key=lambda row: -float(row[by]))

    def weighed(self, weights: str | os.PathLike[str] | Mapping[str, float]) -> Fleet:
        """Return the same with weights of the programs, such as requests a day.

        Args:
            weights: By program; or a CSV file with the columns ``model`` and ``weight``, and ``chip`` where it differs.

        Raises:
            UsageError: No such file or columns, a weight that is not a number from 0, a program twice, or a program or
                chip that the fleet, if it is whole, does not have.
        """
        table = _weights(weights)
        if not self.interrupted:
            for which, names in (("model", {name for name, _ in table}), ("chip", {chip for _, chip in table} - {""})):
                known = list(dict.fromkeys(row[which] for row in self.rows))
                if unknown := sorted(names - set(known)):
                    raise UsageError(f"weights: {which} {shown(unknown[0])} is not in this fleet"
                                     f"{did_you_mean(unknown[0], known)}")  # fmt: skip
        rows = (row | {"program_weight": table.get((row["model"], row["chip"]), table.get((row["model"], ""), 0.0))}
                for row in self.rows)  # fmt: skip
        return replace(self, rows=tuple(rows))

    def __repr__(self) -> str:
        counts = self.summary()
        return f"<Fleet of {counts['programs']:,} programs: {counts['answers']:,} answers, {counts['failed']:,} failed>"


def _lost(row: Mapping[str, Any]) -> float:
    """Weighed seconds above the floor of one item of a batch."""
    return float(row["program_weight"] * max(row["time_s"] - row["floor_s"], 0.0) / (row["batch"] or 1))


def _gain(row: Mapping[str, Any]) -> float:
    """Weighed seconds that the changes save together, of one item of a batch."""
    after = row["time_s"] if row["potential_s"] is None else row["potential_s"]
    return float(row["program_weight"] * max(row["time_s"] - after, 0.0) / (row["batch"] or 1))


def _weights(weights: str | os.PathLike[str] | Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Return weights by program and chip; an empty chip stands for all."""
    if isinstance(weights, Mapping):
        rows: Sequence[Mapping[str, Any]] = [{"model": name, "weight": value} for name, value in weights.items()]
        name = "weights"
    else:
        name = str(weights)
        columns, rows = read_table(weights)
        if missing := [column for column in ("model", "weight") if column not in columns]:
            raise UsageError(f"{name}: no column {missing[0]!r}; expected model, weight, and chip where it differs")
    table: dict[tuple[str, str], float] = {}
    for row in rows:
        try:
            weight = float(row["weight"])
        except (TypeError, ValueError):
            weight = -1.0
        if not 0 <= weight < float("inf"):
            raise UsageError(f"{name}: weight {shown(row['weight'])} of {shown(row['model'])}: a number from 0")
        key = str(row["model"]), str(row.get("chip") or "")
        if key in table:
            raise UsageError(f"{name}: {', '.join(filter(None, key))} stands there twice")
        table[key] = weight
    return table


# --- files ------------------------------------------------------------------------------------------------------------


def need_pyarrow() -> Any:
    """Return the package.

    Raises:
        MissingExtra: It is not installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra("results of a fleet need the package pyarrow: pip install 'roofline[fleet]'") from None
    return pyarrow


def write_part(folder: Path, rows: Sequence[Mapping[str, Any]], now: float) -> None:
    """Write rows as one more file, whole or not at all."""
    arrow = need_pyarrow()
    types = {"string": arrow.string(), "double": arrow.float64(), "int64": arrow.int64(), "bool": arrow.bool_()}
    schema = arrow.schema([(name, types[kind]) for name, kind in COLUMNS.items()])
    table = arrow.Table.from_pylist([{**row, "written": now} for row in rows], schema=schema)
    with whole_file(folder / f"part-{uuid4().hex}.parquet", "wb") as stream:
        arrow.parquet.write_table(table, stream)


def _parts(folder: Path) -> list[Path]:
    parts = sorted(folder.glob("part-*.parquet"))
    if len(parts) > MAX_FILES:
        raise UsageError(f"{folder}: more than {MAX_FILES:,} files of results")
    return parts


def _table(path: Path, columns: Collection[str]) -> Any:
    arrow = need_pyarrow()
    try:
        table = arrow.parquet.read_table(path, columns=list(columns))
    except (OSError, arrow.ArrowException) as problem:
        raise UsageError(f"{path}: not a file of results: {problem}; remove it") from None
    if missing := [column for column in columns if column not in table.column_names]:
        raise UsageError(f"{path}: not a file of results: no column {missing[0]!r}; remove it")
    return table


def known_keys(folder: Path) -> set[str]:
    """Return the keys of all answers in a folder."""
    return {key for part in _parts(folder) for key in _table(part, ["key"])["key"].to_pylist()}


def read(
    folder: str | os.PathLike[str],
    weights: str | os.PathLike[str] | Mapping[str, float] | None = None,
    *,
    keys: Collection[str] | None = None,
    interrupted: bool = False,
) -> Fleet:
    """Read the results of a fleet.

    Args:
        folder: Where :func:`run` wrote them.
        weights: Of the programs, as for :meth:`Fleet.weighed`; 1 each when absent.
        keys: Of the answers that count; of each program, chip and question the last when absent.
        interrupted: Whether they are of a run that was stopped.

    Returns:
        The results, whole.

    Raises:
        UsageError: No results there, a file that is none, or bad weights.
        MissingExtra: pyarrow is not installed.

    Example:
        >>> import tempfile
        >>> from roofline.fleet.run import run
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     before = run("gpt2", "l4", folder, workers=0)
        ...     read(folder, {"gpt2": 1000.0}).rows[0]["program_weight"]
        1000.0
    """
    place = user_path(folder)
    if not (parts := _parts(place)) and keys is None:
        raise UsageError(f"{place}: no results of a fleet; expected part-*.parquet as roofline fleet writes them")
    latest: dict[tuple[Any, ...], dict[str, Any]] = {}
    for part in parts:
        for row in _table(part, COLUMNS).to_pylist():
            if keys is not None and row["key"] not in keys:
                continue
            name = tuple(row[column] for column in (IDENTITY if keys is not None else IDENTITY[:-1]))
            if name not in latest or latest[name]["written"] <= row["written"]:
                latest[name] = row | {"program_weight": 1.0}
    fleet = Fleet(str(folder), tuple(sorted(latest.values(), key=_order)), interrupted)
    return fleet if weights is None else fleet.weighed(weights)


def _order(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{row[name] or 0:012d}" if name == "batch" else str(row[name] or "") for name in IDENTITY)
