"""A chip as the TOML file that describes it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from roofline.hardware.chip import Chip
from roofline.ir.csvfile import whole_file


def chip_toml(chip: Chip, remarks: Iterable[str] = ()) -> str:
    """Describe a chip in TOML; reading it gives the chip back.

    Args:
        chip: The chip.
        remarks: Lines for the top of the file.

    Example:
        >>> print(chip_toml(Chip(name="mine", matrix={"bf16": "1 TFLOP/s"}, memory_bandwidth="1 TB/s")).split()[2])
        "mine"
    """
    table = chip.model_dump(mode="json", exclude_none=True, exclude_defaults=True)
    lines = [*(f"# {' '.join(line.split())}" for line in remarks), *_table(table, ())]
    return "\n".join(lines).strip() + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterable[str]:
    """Lines of a table: its plain values first, then its tables."""
    tables = {key: value for key, value in table.items() if _is_table(value)}
    for key, value in table.items():
        if key not in tables:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in tables.items():
        inner = (*path, key)
        name = ".".join(map(_key, inner))
        for one in value if isinstance(value, list) else [value]:
            yield from ("", f"[[{name}]]" if isinstance(value, list) else f"[{name}]")
            yield from _table(one, inner)


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (isinstance(value, list) and bool(value) and isinstance(value[0], dict))


def _key(key: str) -> str:
    plain = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if plain else json.dumps(key)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # which TOML wants escaped
    return str(value)


def _number(value: float) -> str:
    """Six significant digits; TOML wants a point or an exponent."""
    digits = f"{value:.6g}"
    return digits if set(digits) & set("en.") else f"{digits}.0"


def write_chip(chip: Chip, path: str | os.PathLike[str], remarks: Iterable[str] = ()) -> Path:
    """Write a chip's file, whole or not at all.

    Returns:
        The file.
    """
    text = chip_toml(chip, remarks)
    with whole_file(path) as stream:
        stream.write(text)
    return Path(path)
