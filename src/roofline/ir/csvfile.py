"""CSV tables in and out: rows streamed, faults of a file named with the file, outputs whole or not at all."""

from __future__ import annotations

import csv
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TextIO

from roofline.ir.errors import UsageError, did_you_mean

#: One of these sets of columns makes a table predictable.
NEEDED = (("op", "dtype", "shape"), ("model",))


@contextmanager
def read_rows(source: str | os.PathLike[str]) -> Iterator[tuple[list[str], Iterator[dict[str, Any]]]]:
    """Open a CSV file of operators or models.

    Args:
        source: A file, or ``-`` for the standard input.

    Yields:
        Its columns and its rows.

    Raises:
        UsageError: No such file, not CSV text in UTF-8, or without the columns that a prediction needs.
    """
    name = os.fspath(source)
    stream = sys.stdin if name == "-" else _open(name)
    try:
        reader = csv.DictReader(stream, restval="")
        yield _columns(name, reader), _rows(name, reader)
    finally:
        if stream is not sys.stdin:
            stream.close()


def _open(name: str) -> TextIO:
    try:
        return open(Path(name).expanduser(), encoding="utf-8-sig", newline="")
    except (OSError, ValueError) as error:
        raise UsageError(f"{name[:200]}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _columns(name: str, reader: csv.DictReader[str]) -> list[str]:
    try:
        columns = [column.strip() for column in reader.fieldnames or ()]
    except (csv.Error, ValueError) as error:
        raise UsageError(f"{name}: not CSV text in UTF-8: {error}") from None
    reader.fieldnames = columns
    twice = sorted({column for column in columns if columns.count(column) > 1})
    if twice:
        raise UsageError(f"{name}: duplicate column {twice[0]!r}")
    if not any(set(needed) <= set(columns) for needed in NEEDED):
        names = " or ".join(", ".join(needed) for needed in NEEDED)
        header = next((c for c in columns if c.lower() in ("ops", "operator", "models")), "")
        near = did_you_mean(header, ["op", "model"])
        raise UsageError(f"{name}: wanted the columns {names}; it has {', '.join(columns)[:200] or 'none'}{near}")
    return columns


def _rows(name: str, reader: csv.DictReader[str]) -> Iterator[dict[str, Any]]:
    try:
        yield from reader
    except (csv.Error, ValueError) as error:
        raise UsageError(f"{name}, line {reader.line_num + 1}: not CSV text in UTF-8: {error}") from None


def cell(value: Any) -> Any:
    """A value as a cell: numbers with six digits, nothing for ``None``.

    Example:
        >>> cell(12.3456789), cell(4194304), cell(None)
        ('12.3457', 4194304, '')
    """
    return "" if value is None else f"{value:.6g}" if isinstance(value, float) else value


def write_rows(target: str | os.PathLike[str], columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as CSV, the whole file or nothing.

    Args:
        target: A file, or ``-`` for the standard output.
        columns: Its columns, in order.
        rows: A dictionary each.
    """
    if os.fspath(target) == "-":
        _write(sys.stdout, columns, rows)
        return
    with whole_file(target) as stream:
        _write(stream, columns, rows)


def _write(stream: TextIO, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([cell(row.get(column)) for column in columns] for row in rows)


@contextmanager
def whole_file(target: str | os.PathLike[str], mode: Literal["w", "wb"] = "w") -> Iterator[Any]:
    """Open a file that takes its place only when it was written to its end.

    Args:
        target: The file; an old one is replaced.
        mode: Text in UTF-8, or bytes.

    Yields:
        The open file.

    Raises:
        UsageError: It cannot be written there.
    """
    path = Path(target).expanduser()
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "a directory; name a file")
        if not path.parent.is_dir():
            raise FileNotFoundError(2, f"there is no directory {str(path.parent)!r}")
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be written: {getattr(error, 'strerror', None) or error}") from None
    try:
        text: dict[str, Any] = {"encoding": "utf-8", "newline": ""} if mode == "w" else {}
        with open(handle, mode, **text) as stream:
            yield stream
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
