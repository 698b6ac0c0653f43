"""CSV of profilers: the header found wherever it stands, columns by name, rows one by one."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator
from decimal import Decimal
from typing import NamedTuple

from roofline.ir.errors import TraceError
from roofline.traces.events import MAX_EVENTS, Recorder
from roofline.traces.formats.bytestream import ByteStream
from roofline.traces.formats.quantities import exact, number, scale, split_header, whole

DELIMITERS = (",", ";", "\t")
#: Lines, and characters, that are searched for a header, and words of which every header has one.
SEARCHED, SEARCHED_TEXT = 20_000, 2**26
_WORDS = ("name", "op", "kernel", "layer", "range")
#: Characters of a line that are read at once, and columns of a table.
_LONGEST, _COLUMNS = 2**20, 20_000


class _Places(dict[tuple[tuple[str, ...], str], tuple[int, float]]):
    """Position of the first of some columns of a table, -1 of none, and what one of its unit is in SI, found once."""

    def __init__(self, table: Table) -> None:
        super().__init__()
        self._table = table

    def __missing__(self, key: tuple[tuple[str, ...], str]) -> tuple[int, float]:
        labels, unit = key
        at = self._table.index(*labels)
        self[key] = place = (at, scale(self._table.unit(at) or unit))
        return place


class Row(NamedTuple):
    """A row of a table, whose cells are read by the labels of their columns."""

    table: Table
    line: int
    cells: list[str]
    places: _Places

    def text(self, *labels: str) -> str:
        """Return the text in the first of these columns that is there; empty where none is."""
        at, _ = self.places[labels, ""]
        return self.cells[at].strip() if at >= 0 else ""

    def number(self, *labels: str, unit: str = "") -> float | None:
        """Return the number in SI in the first of these columns that is there; ``unit`` is that of a bare header."""
        at, factor = self.places[labels, unit]
        value = number(self.cells[at]) if at >= 0 and self.cells[at] else None
        return None if value is None else value * factor

    def start(self, label: str, unit: str) -> Decimal | None:
        """Return a start as it is written [us]; ``unit`` is that of a bare header."""
        at, _ = self.places[(label,), ""]
        return exact(self.cells[at], self.table.unit(at) or unit) if at >= 0 else None

    def whole(self, *labels: str, default: int = -1, limit: int = 2**31) -> int:
        """Return the whole number in the first of these columns that is there; see :func:`whole`."""
        return whole(self.text(*labels), default, limit)


class Table:
    """A table whose header is known; iterate over it for its rows.

    Attributes:
        name: The file, as errors name it.
        columns: The header's cells.
    """

    def __init__(self, name: str, columns: tuple[str, ...], rows: Iterator[tuple[int, list[str]]]) -> None:
        self.name = name
        self.columns = columns
        self._rows = rows

    def __iter__(self) -> Iterator[Row]:
        places = _Places(self)
        return (Row(self, line, cells, places) for line, cells in self._rows)

    def index(self, *labels: str) -> int:
        """Return the position of the first of these labels, whatever unit follows it; -1 of none."""
        plain = [split_header(column)[0].casefold() for column in self.columns]
        exact = [column.casefold() for column in self.columns]
        for label in labels:
            for names in (exact, plain):
                if label.casefold() in names:
                    return names.index(label.casefold())
        return -1

    def unit(self, index: int) -> str:
        """Return the unit of a column; empty where it names none."""
        return split_header(self.columns[index])[1] if index >= 0 else ""


def lines(source: ByteStream) -> Iterator[str]:
    """Yield the lines of a text in UTF-8 or UTF-16 (as PowerShell redirects it); a line without end is cut."""
    head = source.head(4)
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    stream = io.TextIOWrapper(io.BufferedReader(source), encoding, errors="replace", newline="")
    while line := stream.readline(_LONGEST):
        source.unended = line[-1] not in "\r\n"
        yield line
    stream.detach()


def cells_of(line: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the cells of a line that may be a header, for each delimiter that stands in it, with the delimiter."""
    low = line.casefold()
    if not any(word in low for word in _WORDS):
        return
    for delimiter in DELIMITERS:
        if delimiter in line:
            try:
                cells = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
            except csv.Error:
                continue
            yield delimiter, tuple(cell.strip() for cell in cells[:_COLUMNS])


def rows(
    source: ByteStream, text: Iterator[str], delimiter: str, width: int, first: int, recorder: Recorder
) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows up to the first blank line, after which another table may begin.

    Args:
        source: The file.
        text: Its lines after the header.
        delimiter: Between cells.
        width: Number of columns; shorter rows are filled, longer ones cut.
        first: Number of the header's line.
        recorder: Where the rows go; there are no more once it is full.
    """
    reader = csv.reader(text, delimiter=delimiter, skipinitialspace=True)
    for count in itertools.count():
        try:
            cells = next(reader, None)
        except csv.Error as error:
            raise TraceError(f"{source.name}, line {first + reader.line_num}: not CSV text: {error}") from None
        if cells is None or not any(cell.strip() for cell in cells):
            return
        if len(cells) < width and source.unended:
            source.fault = f"the last row is cut (line {first + reader.line_num:,})"
            return
        if stop := recorder.limit or (count >= MAX_EVENTS and f"stopped after {MAX_EVENTS:,} rows"):
            source.fault = stop
            return
        yield first + reader.line_num, (cells + [""] * width)[:width]
