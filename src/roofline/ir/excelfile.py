"""Rows as a workbook of Excel: text is always text, numbers are numbers, and heads name their units."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from roofline.ir.errors import MissingExtra
from roofline.ir.files import whole_file
from roofline.ir.text import visible

if TYPE_CHECKING:
    from openpyxl.worksheet.worksheet import Worksheet

#: Rows of a sheet, its head among them, and characters of a cell:
#: https://support.microsoft.com/en-us/office/excel-specifications-and-limits-1672b34d-7043-467e-8e27-269d656771c3
MAX_ROWS, MAX_TEXT = 1_048_576, 32_767
#: What a name of a sheet may not hold, and how long it may be (the same page).
_NO_NAME, _LONGEST_NAME = str.maketrans(dict.fromkeys("[]:*?/\\", "_")), 31
#: What a spreadsheet takes for the beginning of a formula (https://owasp.org/www-community/attacks/CSV_Injection).
_FORMULA = "=+-@\t\r"
#: Narrowest and widest column, and rows that are looked at for that.
_WIDTHS, _LOOKED_AT = (8, 60), 500
#: How figures of a unit are shown; the file has all their digits.
_FORMATS = {"%": "0.0%", "B": "#,##0", "FLOP": "##0.000E+0", "s": "##0.000E+0"}


def write_excel(target: str | os.PathLike[str], sheets: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Write a workbook, the whole file or nothing.

    Args:
        target: The file.
        sheets: Rows without nesting by the name of their sheet; those without rows are left out.

    Raises:
        MissingExtra: openpyxl is not installed.
        UsageError: It cannot be written there.
    """
    try:
        from openpyxl import Workbook
    except ImportError:
        raise MissingExtra("a workbook of Excel needs the package openpyxl: pip install 'roofline[excel]'") from None
    with whole_file(target, "wb") as stream:
        book = Workbook(write_only=True)
        for name, rows in sheets.items():
            if rows:
                _fill(book.create_sheet(name.translate(_NO_NAME)[:_LONGEST_NAME]), rows)
        if not book.worksheets:
            book.create_sheet("empty")
        book.save(stream)


def _fill(sheet: Worksheet, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write the rows below a head that stays in sight and filters."""
    from openpyxl.utils import get_column_letter

    columns = list(dict.fromkeys(key for row in rows for key in row))
    last = min(len(rows) + 1, MAX_ROWS)
    sheet.freeze_panes = "A2"
    sheet.auto_filter.ref = f"A1:{get_column_letter(len(columns))}{last}"
    for at, key in enumerate(columns, 1):
        texts = (_shown(row.get(key)) for row in rows[:_LOOKED_AT])
        longest = max(len(_head(key)) + 3, *map(len, texts))  # 3 for the arrow of the filter
        sheet.column_dimensions[get_column_letter(at)].width = min(max(longest + 1, _WIDTHS[0]), _WIDTHS[1])
    sheet.append([_cell(sheet, _head(key), bold=True) for key in columns])
    for row in islice(rows, MAX_ROWS - 2 if len(rows) >= MAX_ROWS else None):
        sheet.append([_cell(sheet, row.get(key), unit_of(key)) for key in columns])
    if len(rows) >= MAX_ROWS:
        sheet.append([f"{len(rows) - MAX_ROWS + 2:,} more rows than a sheet has room for"])


def _cell(sheet: Worksheet, value: Any, unit: str = "", bold: bool = False) -> Any:
    """Return a cell: nothing where nothing is known, and text as text even where it looks like a formula."""
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.styles import Font

    if value is None or value == "" or (isinstance(value, float) and not math.isfinite(value)):
        return None
    cell = WriteOnlyCell(sheet, value=value if isinstance(value, bool | int | float) else None)
    if cell.value is None:
        cell.value, cell.data_type = visible(str(value))[:MAX_TEXT], "s"
        if str(value)[:1] in _FORMULA:
            cell.number_format, cell.quotePrefix = "@", True  # stays text when somebody edits it
    elif not isinstance(value, bool) and unit:
        cell.number_format = _FORMATS.get(unit, "##0.000E+0")
    if bold:
        cell.font = Font(bold=True)
    return cell


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else "" if value is None else str(value)


def _head(key: str) -> str:
    """Return a key as the head of a column, with its unit.

    Example:
        >>> _head("time_s"), _head("flops_per_s"), _head("peak_bytes"), _head("shapes")
        ('time [s]', 'flops [FLOP/s]', 'peak bytes [B]', 'shapes')
    """
    unit = unit_of(key)
    words = key.removesuffix("_per_s").removesuffix("_s").replace("_", " ")
    return f"{words} [{unit}]" if unit and unit != "%" else words


#: Keys that hold shares of a whole.
SHARES = frozenset({"share", "mfu", "mbu", "hfu", "communication_share", "efficiency"})
#: Units of the rates of items that are not called what their unit is.
_ITEMS = {"byte": "B", "flop": "FLOP"}


def unit_of(key: str) -> str:
    """Return the unit of the figures that a key names; ``%`` of a share, empty where there is none.

    Example:
        >>> unit_of("time_s"), unit_of("tokens_per_s"), unit_of("memory_bytes_total"), unit_of("mfu"), unit_of("batch")
        ('s', 'token/s', 'B', '%', '')
    """
    if key in SHARES or key.endswith("_share"):
        return "%"
    if key.endswith("s_per_s"):
        item = key.removesuffix("s_per_s").rpartition("_")[2]
        return f"{_ITEMS.get(item, item)}/s"
    if key.endswith("_s"):
        return "s"
    if "bytes" in key.split("_"):
        return "B"
    return "FLOP" if key.endswith("flops") else ""


def about(record: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row per figure of a whole that is not a list or a table."""
    for key, value in record.items():
        if not isinstance(value, list | dict) and value is not None:
            yield {"figure": key, "value": value, "unit": unit_of(key)}
