"""CSV tables in and out: rows streamed, faults of a file named with the file, outputs whole or not at all."""

from __future__ import annotations

import csv
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from itertools import chain, islice
from typing import Any, TextIO

from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.files import user_path, whole_file
from roofline.ir.text import shown, visible

#: One of these sets of columns makes a table predictable.
NEEDED = (("op", "dtype", "shape"), ("model",), ("m", "n", "k"))
#: The longest row [character] and the most columns; of a table that is read as a whole also the most rows and cells.
MAX_ROW, MAX_COLUMNS, MAX_ROWS, MAX_CELLS = 2**16, 500, 10**6, 10**7
#: What a spreadsheet takes for the beginning of a formula (https://owasp.org/www-community/attacks/CSV_Injection).
_FORMULA = frozenset("=+-@\t")


class _Lines:
    """Lines of a stream, of which a row takes no more than :data:`MAX_ROW` characters, on one line or on several."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.row = 0

    def __iter__(self) -> Iterator[str]:
        while line := self.stream.readline(MAX_ROW + 1):
            self.row += len(line)
            if self.row > MAX_ROW:
                raise ValueError(f"a row of more than {MAX_ROW:,} characters")
            yield line

    def content(self) -> Iterator[str]:
        """Yield the lines that are neither empty nor remarks."""
        for line in self:
            if line.strip() and not line.startswith("#"):
                yield line
            else:
                self.row = 0


@contextmanager
def read_rows(
    source: str | os.PathLike[str], needed: Sequence[Sequence[str]] = NEEDED
) -> Iterator[tuple[list[str], Iterator[dict[str, Any]]]]:
    """Open a CSV file of operators or models.

    Args:
        source: A file, or ``-`` for the standard input.
        needed: Columns, of which it must have one of these sets.

    Yields:
        Its columns and its rows.

    Raises:
        UsageError: No such file, not CSV text in UTF-8, or without the columns that a prediction needs.
    """
    with _opened(source) as (name, stream):
        lines = _Lines(stream)
        columns, rows = _table(name, lines, lines)
        _check_needed(name, columns, needed)
        yield columns, rows


def read_table(source: str | os.PathLike[str]) -> tuple[list[str], list[dict[str, str]]]:
    """Read a table that people made: with commas, semicolons or tabs, empty lines, and remarks that begin with ``#``.

    Args:
        source: A file, or ``-`` for the standard input.

    Returns:
        Its columns and its rows, a text for each column.

    Raises:
        UsageError: No such file, not CSV text in UTF-8 with a header, or too large.
    """
    with _opened(source) as (name, stream):
        lines = _Lines(stream)
        content = lines.content()
        first = _first(name, content)
        delimiter = max(",;\t", key=first.count)
        columns, rows = _table(name, lines, chain([first], content), delimiter=delimiter, skipinitialspace=True)
        listed = list(islice(rows, min(MAX_ROWS, MAX_CELLS // max(len(columns), 1))))
        if next(rows, None) is not None:
            raise UsageError(f"{name}: more than {len(listed):,} rows of {len(columns)} columns")
    return columns, [{column: row[column].strip() for column in columns} for row in listed]


@contextmanager
def _opened(source: str | os.PathLike[str]) -> Iterator[tuple[str, TextIO]]:
    """Open a file or the standard input for reading, with the name that messages call it."""
    path = user_path(source)
    if str(path) == "-":
        yield "-", sys.stdin or StringIO()
        return
    try:
        stream = open(path, encoding="utf-8-sig", newline="")  # noqa: SIM115
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    with stream:
        yield str(path), stream


@contextmanager
def open_lines(source: str | os.PathLike[str]) -> Iterator[tuple[str, Iterator[tuple[int, str]]]]:
    """Open text of which every line is a row: CSV without line breaks in its cells, or an object of JSON on each.

    Args:
        source: A file, or ``-`` for the standard input.

    Yields:
        Its name for messages, and each line with its number; empty ones and remarks that begin with ``#`` left out.

    Raises:
        UsageError: No such file, no text in UTF-8, or a line of more than :data:`MAX_ROW` characters.
    """
    with _opened(source) as (name, stream):
        yield name, _numbered(name, _Lines(stream))


def _numbered(name: str, lines: _Lines) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        for number, line in enumerate(lines, start=1):
            lines.row = 0
            if line.strip() and not line.startswith("#"):
                yield number, line
    except (OSError, ValueError) as error:
        raise _fault(name, number + 1, error) from None


def _first(name: str, lines: Iterator[str]) -> str:
    try:
        return next(lines)
    except StopIteration:
        raise UsageError(f"{name}: no header") from None
    except (OSError, ValueError) as error:
        raise _fault(name, 1, error) from None


def _table(
    name: str, lines: _Lines, content: Iterable[str], **form: Any
) -> tuple[list[str], Iterator[dict[Any, Any]]]:  # fmt: skip
    """Return columns and rows of ``content``, which comes from ``lines``."""
    rows = _rows(name, lines, csv.reader(content, **form))
    columns = [column.strip() for column in next(rows, [])]
    if len(columns) > MAX_COLUMNS:
        raise UsageError(f"{name}: {len(columns):,} columns; allowed: at most {MAX_COLUMNS}")
    twice = sorted(column for column, often in Counter(columns).items() if often > 1)
    if twice:
        raise UsageError(f"{name}: duplicate column {shown(twice[0])}")
    return columns, (_by_column(columns, cells) for cells in rows)


def _rows(name: str, lines: _Lines, reader: Any) -> Iterator[list[str]]:
    """Yield the cells of each row that is not empty."""
    try:
        for cells in reader:
            lines.row = 0
            if cells:
                yield cells
    except (csv.Error, OSError, ValueError) as error:
        raise _fault(name, reader.line_num + 1, error) from None


def _by_column(columns: Sequence[str], cells: Sequence[str]) -> dict[Any, Any]:
    """Return cells by column; the first one beyond the columns stands under ``None``."""
    row: dict[Any, Any] = dict.fromkeys(columns, "")
    row.update(zip(columns, cells, strict=False))
    return row if len(cells) <= len(columns) else {**row, None: cells[len(columns) :][:1]}


def _fault(name: str, line: int, error: Exception) -> UsageError:
    return UsageError(f"{name}, line {line}: not CSV text in UTF-8: {getattr(error, 'strerror', None) or error}")


def _check_needed(name: str, columns: Sequence[str], choices: Sequence[Sequence[str]]) -> None:
    """Refuse a table without the columns that are needed."""
    if any(set(needed) <= set(columns) for needed in choices):
        return
    names = " or ".join(", ".join(needed) for needed in choices)
    header = next((c for c in columns if c.lower() in ("ops", "operator", "models")), "")
    near = did_you_mean(header, ["op", "model"])
    raise UsageError(f"{name}: expected the columns {names}; it has {', '.join(columns)[:200] or 'none'}{near}")


def cell(value: Any) -> Any:
    """Return a value as a cell: numbers with six digits, nothing for ``None``, text as :func:`text_cell`.

    Example:
        >>> cell(12.3456789), cell(4194304), cell(None)
        ('12.3457', 4194304, '')
    """
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return text_cell(value) if isinstance(value, str) else value


def text_cell(value: Any) -> Any:
    """Return text so that no terminal obeys it and no spreadsheet takes it for a formula; anything else as it is.

    Example:
        >>> text_cell("=1+1"), text_cell("-5"), text_cell("gelu\\x1b[31m"), text_cell(8)
        ("'=1+1", '-5', 'gelu\\\\x1b[31m', 8)
    """
    if not isinstance(value, str):
        return value
    if value[:1] not in _FORMULA and value.isprintable():
        return value
    text = visible(value)
    return f"'{text}" if text[:1] in _FORMULA and len(text) > 1 and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def csv_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows without nesting as the text of a CSV file, numbers with all their digits."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    buffer = StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(map(text_cell, columns))
    writer.writerows([text_cell(row.get(column)) for column in columns] for row in rows)
    return buffer.getvalue()


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
    writer.writerow(map(text_cell, columns))
    writer.writerows(
        [f"{v:.6g}" if type(v) is float else v if type(v) is int else cell(v) for v in map(row.get, columns)]
        for row in rows
    )
