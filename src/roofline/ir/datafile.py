"""TOML and JSON files that a stranger wrote: bounded in size, depth and numbers, their faults named with the file."""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable
from datetime import date, datetime, time
from pathlib import Path
from typing import Any

from roofline.ir.errors import ModelDataError, RooflineError
from roofline.ir.files import read_file
from roofline.ir.text import one_line, shown, visible

#: The largest files that are read [byte].
MAX_TOML, MAX_JSON = 2**20, 4 * 2**20
#: Tables and lists in each other, and parts of a dotted key: the parsers' time and memory grow with their squares.
MAX_DEPTH = 64
#: The most values of a JSON file, which take twenty times the room that their text takes.
MAX_VALUES = 5_000_000
#: No whole number of a TOML file is larger, as its specification has it.
_LARGEST = 2**63 - 1
#: Digits of a number of JSON at most.
_DIGITS = 400

#: Strings and comments of TOML, in which dots mean nothing; one that has no end goes on to the end of its line.
_NO_KEYS = re.compile(
    r'"""[\s\S]*?(?:"""|\Z)|' r"'''[\s\S]*?(?:'''|\Z)|" r'"(?:[^"\\\n]|\\.)*+"?|' r"'[^'\n]*'?|" r"#[^\n]*"
)
_DOTTED = re.compile(r"(?:\.[ \t]*+[^\s.=\[\]{},]*+[ \t]*+)" + f"{{{MAX_DEPTH}}}")


def read_toml(path: Path, error: type[RooflineError], most: int = MAX_TOML) -> dict[str, Any]:
    """Read a TOML file.

    Args:
        path: The file.
        error: What to raise when it is not a readable TOML file.
        most: The largest file that is read [byte].
    """
    data = read_file(path, most, "a TOML file", error)
    try:
        text = data.decode()
        if _DOTTED.search(_NO_KEYS.sub("_", text)):
            raise ValueError(f"a key of more than {MAX_DEPTH} parts")
        table: dict[str, Any] = _checked(tomllib.loads(text), _toml_number)
    except (ValueError, RecursionError) as problem:
        raise error(f"{path}: not valid TOML: {_why(problem)}") from None
    return table


def read_json(path: Path, most: int = MAX_JSON, error: type[RooflineError] = ModelDataError) -> Any:
    """Read a JSON file, with the bare ``Infinity`` and ``NaN`` that Python's own writer puts there.

    Args:
        path: The file.
        most: The largest file that is read [byte].
        error: What to raise when it is not a readable JSON file (names line and column).
    """
    data = read_file(path, most, "a JSON file", error)
    try:
        if sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES:,} values")
        return _checked(json.loads(data.decode("utf-8-sig"), parse_int=_json_int), lambda *_: None)
    except json.JSONDecodeError as problem:
        raise error(f"{path}: line {problem.lineno}, column {problem.colno}: {problem.msg}") from None
    except (ValueError, RecursionError) as problem:
        raise error(f"{path}: cannot be read: {_why(problem)}") from None


def _why(problem: Exception) -> str:
    return "nested too deeply" if isinstance(problem, RecursionError) else one_line(str(problem), 200)


def _json_int(text: str) -> int | float:
    """Return a whole number, a larger one than any size can be as the float that JSON's own language takes it for."""
    if len(text) > _DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text) if len(text) < 20 else float(text)


def _toml_number(value: Any, where: tuple[str, ...]) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{'.'.join(where)}: {value} is no figure")
    if isinstance(value, int) and abs(value) > _LARGEST:
        raise ValueError(f"{'.'.join(where)}: {shown(value)} is too large; allowed: 64 bits")


def _checked(value: Any, number: Callable[[Any, tuple[str, ...]], None], where: tuple[str, ...] = ()) -> Any:
    """Return data with its numbers checked and its text made printable.

    Raises:
        RecursionError: Tables and lists are in each other too often.
        ValueError: As ``number`` raises it.
    """
    if len(where) >= MAX_DEPTH:
        raise RecursionError
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(key): _checked(item, number, (*where, key)) for key, item in value.items()}
    if isinstance(value, list):
        return [_checked(item, number, (*where, str(at))) for at, item in enumerate(value)]
    if isinstance(value, date | datetime | time):
        return str(value)
    number(value, where)
    return value
