"""A result as the table of a notebook: units, a bar for each share, few columns, at most a screen of rows."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from roofline.ir.excelfile import unit_of
from roofline.ir.units import format_bytes, format_si

#: Rows, columns and characters of a cell that a notebook shows.
ROWS, COLUMNS, CHARACTERS = 14, 10, 44
#: Figures of the whole that stand above the table, and characters of one that is text.
FIGURES, WORDS = 8, 160
#: What is drawn as a bar, where a table has it.
_BARS = ("share", "time_s")
_RANGE = "range_s"
#: A number with its unit, or a range of them.
_NUMBER = re.compile(r"[-+]?[0-9][0-9.,]*( ?[A-Za-z%/]+)?( to [0-9].*)?")
_RULED = "border-bottom:1px solid rgba(128,128,128,.35);padding:2px 10px;vertical-align:top"
#: Ends of the keys that name a unit, which the cells have.
_UNITS = ("_per_s", "_s", "_us", "_bytes", "_flops")


def head(key: str) -> str:
    """Return a key as the head of a column: the cells say the unit.

    Example:
        >>> head("time_s"), head("memory_bytes"), head("tokens_per_s"), head("share")
        ('time', 'memory', 'tokens', 'share')
    """
    bare = next((key.removesuffix(unit) for unit in _UNITS if key.endswith(unit)), key)
    return (bare or key).replace("_", " ")


def text_of(key: str, value: Any) -> str:
    """Return a value of a row as text, with the unit that its key names.

    Example:
        >>> text_of("time_s", 0.041), text_of("memory_bytes_total", 2**30), text_of("share", 0.25), text_of("batch", 8)
        ('41 ms', '1.00 GiB', '25%', '8')
    """
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "-"
    if isinstance(value, bool) or not hasattr(value, "__float__"):
        return str(value)
    if (unit := unit_of(key)) == "%":
        return f"{100 * float(value):.3g}%"
    if unit == "B":
        return format_bytes(float(value))
    if unit:
        return format_si(float(value), unit)
    return f"{value:,}" if isinstance(value, int) and value < 1e7 else short(float(value))


def short(value: float) -> str:
    """Write a plain number with three or four digits."""
    if abs(value) >= 1e5:
        return format_si(value, "").strip()
    return f"{value:,.0f}" if value == round(value) else f"{value:,.3g}" if abs(value) < 1 else f"{value:,.4g}"


def page(title: str, summary: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a result as HTML.

    Args:
        title: What it is a result of.
        summary: Figures of the whole; those that are single numbers or short words are shown.
        rows: Its rows.
    """
    figures = [
        f"{escape(head(key))} <b>{escape(cut(text_of(key, value), WORDS))}</b>"
        for key, value in summary.items() if not isinstance(value, list | tuple | Mapping) and value not in (None, "")
    ]  # fmt: skip
    above = f"<p>{' &middot; '.join(figures[:FIGURES])}</p>\n" if figures else ""
    cells = [_single(row) for row in rows]
    body = _upright(cells[0]) if len(cells) == 1 else _table(cells) if cells else ""
    return f"<p><b>{escape(title)}</b></p>\n{above}{body}"


def cut(text: str, most: int) -> str:
    """Shorten a text to so many characters."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _single(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return single values: of what is nested its total, and low and high as one range."""
    flat = {key: value.get("total") if isinstance(value, Mapping) else value for key, value in row.items()}
    single = {key: value for key, value in flat.items() if not isinstance(value, list | tuple) and not _is_empty(value)}
    if {"low_s", "high_s"} <= single.keys():
        ends = single["low_s"], single.pop("high_s")
        return {_RANGE if key == "low_s" else key: ends if key == "low_s" else value for key, value in single.items()}
    return single


def _text(key: str, value: Any) -> str:
    return " to ".join(text_of(key, end) for end in value) if key == _RANGE else str(text_of(key, value))


def _is_empty(value: Any) -> bool:
    return value is None or value == "" or (isinstance(value, float) and not math.isfinite(value))


def _upright(row: Mapping[str, Any]) -> str:
    lines = (
        f"<tr><th {_style()}>{escape(head(key))}</th>{_cell(_text(key, value))}</tr>" for key, value in row.items()
    )
    return f"<table>{''.join(lines)}</table>"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of the columns that differ from row to row; what is left out is said below it."""
    keys = [key for key in dict.fromkeys(key for row in rows for key in row) if _differs(rows, key)]
    shown = keys[:COLUMNS]
    bar = next((key for key in _BARS if key in shown), None)
    most = max((float(row.get(bar) or 0) for row in rows), default=0.0) if bar else 0.0
    lines = ["<tr>" + "".join(f"<th {_style()}>{escape(head(key))}</th>" for key in shown) + "</tr>"]
    for row in _shown(rows):
        width = {bar: float(row.get(bar) or 0) / most} if bar and most > 0 else {}
        cells = [_cell(_text(key, row[key]) if key in row else "", width.get(key, 0)) for key in shown]
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table>{''.join(lines)}</table>{_left_out(len(rows), keys[COLUMNS:])}"


def _differs(rows: Sequence[Mapping[str, Any]], key: str) -> bool:
    return key in _BARS or any(row.get(key) != rows[0].get(key) for row in rows)


def _shown(rows: Sequence[Mapping[str, Any]]) -> Iterable[Mapping[str, Any]]:
    half = ROWS // 2
    return rows if len(rows) <= ROWS else [*rows[:half], *rows[-half:]]


def _left_out(count: int, keys: Sequence[str]) -> str:
    rows = f"{count - ROWS:,} rows in the middle" if count > ROWS else ""
    columns = f"columns {', '.join(head(key) for key in keys)}" if keys else ""
    what = " and ".join(part for part in (rows, columns) if part)
    return f"<p><small>left out: {escape(cut(what, WORDS))}; <code>.frame()</code> has all</small></p>" if what else ""


def _style(more: str = "") -> str:
    return f'style="{_RULED};text-align:left{more}"'


def _cell(text: str, width: float = 0.0) -> str:
    """Return a cell; numbers stand right, and a bar behind one is as wide as its share of the largest."""
    more = ";text-align:right;white-space:nowrap" if _NUMBER.fullmatch(text) else ""
    if width > 0:
        more += f";background:linear-gradient(90deg,rgba(0,114,178,.28) {100 * width:.0f}%,transparent 0)"
    hint = f' title="{escape(text)}"' if len(text) > CHARACTERS else ""
    return f"<td {_style(more)}{hint}>{escape(cut(text, CHARACTERS))}</td>"
