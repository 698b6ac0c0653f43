"""CSV of profilers: the header found wherever it stands, columns by name, rows one by one."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from roofline.ir.errors import TraceError
from roofline.traces.bytestream import ByteStream
from roofline.traces.quantities import number, scale, split_header

DELIMITERS = (",", ";", "\t")
#: Lines that are searched for a header, and words of which every header has one.
SEARCHED = 20_000
_WORDS = ("name", "op", "kernel", "layer", "range")
_LONGEST = 2**20


@dataclass(frozen=True)
class Table:
    """A table whose header is known.

    Attributes:
        name: The file, as errors name it.
        columns: Of the header.
        rows: Number of the line and the cells, as many as columns.
    """

    name: str
    columns: tuple[str, ...]
    rows: Iterator[tuple[int, list[str]]]

    def index(self, *labels: str) -> int:
        """Position of the first of these labels, whatever unit follows it; -1 of none."""
        plain = [split_header(column)[0].casefold() for column in self.columns]
        exact = [column.casefold() for column in self.columns]
        for label in labels:
            for names in (exact, plain):
                if label.casefold() in names:
                    return names.index(label.casefold())
        return -1

    def unit(self, index: int) -> str:
        """Unit of a column; empty where it names none."""
        return split_header(self.columns[index])[1] if index >= 0 else ""

    def reader(self, *labels: str, unit: str = "") -> Callable[[Sequence[str]], float | None]:
        """A function from cells to the number in SI in the first of these columns that is there.

        Args:
            labels: Of the columns.
            unit: Of a column that names none.
        """
        index = self.index(*labels)
        factor = scale(self.unit(index) or unit)

        def read(cells: Sequence[str]) -> float | None:
            value = number(cells[index]) if index >= 0 else None
            return None if value is None else value * factor

        return read

    def text(self, *labels: str) -> Callable[[Sequence[str]], str]:
        """A function from cells to the text in the first of these columns that is there."""
        index = self.index(*labels)
        return lambda cells: cells[index].strip() if index >= 0 else ""


def lines(source: ByteStream) -> Iterator[str]:
    """Lines of a text in UTF-8 or UTF-16 (as PowerShell redirects it); a line without end is cut."""
    head = source.head(4)
    encoding = "utf-16" if head[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    stream = io.TextIOWrapper(io.BufferedReader(source), encoding, errors="replace", newline="")
    while line := stream.readline(_LONGEST):
        source.unended = line[-1] not in "\r\n"
        yield line
    stream.detach()


def cells_of(line: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Cells of a line that may be a header, for each delimiter that stands in it, with the delimiter."""
    low = line.casefold()
    if not any(word in low for word in _WORDS):
        return
    for delimiter in DELIMITERS:
        if delimiter in line:
            try:
                found = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True), [])
            except csv.Error:
                continue
            yield delimiter, tuple(cell.strip() for cell in found)


def rows(
    source: ByteStream, text: Iterator[str], delimiter: str, width: int, first: int
) -> Iterator[tuple[int, list[str]]]:
    """Rows up to the first blank line, after which another table may begin.

    Args:
        source: The file.
        text: Its lines after the header.
        delimiter: Between cells.
        width: Number of columns; shorter rows are filled, longer ones cut.
        first: Number of the header's line.
    """
    reader = csv.reader(text, delimiter=delimiter, skipinitialspace=True)
    while True:
        try:
            found = next(reader, None)
        except csv.Error as error:
            raise TraceError(f"{source.name}, line {first + reader.line_num}: not CSV text: {error}") from None
        if found is None or not any(cell.strip() for cell in found):
            return
        if len(found) < width and source.unended:
            source.fault = f"the last row is cut (line {first + reader.line_num:,})"
            return
        yield first + reader.line_num, (found + [""] * width)[:width]
