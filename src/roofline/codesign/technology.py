"""Figures of what silicon takes, each with its source: shipped ones, and a user's own over them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import isfinite
from pathlib import Path
from typing import Any

from roofline.ir.datafile import read_toml
from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.files import user_path
from roofline.ir.text import shown

SHIPPED = Path(__file__).parent / "technology.toml"
#: Tables of tables of figures, tables of figures, and what else the file has.
_NESTED, _FLAT = ("node", "core", "memory", "link"), ("part", "systolic", "energy", "yield")
_OTHER = ("sources", "copies", "die")


@dataclass(frozen=True, eq=False)
class Technology:
    """Figures of a technology node, and of a kind of memory, from :func:`technology`.

    Attributes:
        tables: As in ``technology.toml``.
        node: One of its nodes.
        memory: One of its kinds of memory.
    """

    tables: Mapping[str, Any]
    node: str
    memory: str

    def figure(self, *path: str) -> float | None:
        """Return a figure, ``None`` where nobody published one.

        Example:
            >>> technology("N7").figure("node", "wafer"), technology("N7").figure("energy", "fp8")
            (9346.0, None)
        """
        entry = self._entry(path)
        return None if entry is None else float(entry["value"])

    def source(self, *path: str) -> str:
        """Return where a figure comes from, with what there is to say about it, and where it was read if second-hand.

        Example:
            >>> technology("N5").source("node", "defects").split()[0]
            'https://www.anandtech.com/show/16028/better-yield-on-5nm-than-7nm-tsmc-update-on-defect-rates-for-n5'
        """
        entry = self._entry(path) or {}
        source = str(entry.get("source", ""))
        note = f" ({entry['note']})" if entry.get("note") else ""
        copy = f", read in: {self.tables['copies'][source]}" if source in self.tables["copies"] else ""
        return f"{self.tables['sources'].get(source, source)}{note}{copy}"

    def _entry(self, path: tuple[str, ...]) -> Mapping[str, Any] | None:
        table, *rest = path
        names = {"node": self.node, "memory": self.memory}
        where = self.tables[table]
        for name in (*((names[table],) if table in names else ()), *rest):
            where = where.get(name, {})
        return where or None

    def __repr__(self) -> str:
        return f"<Technology {self.node}, {self.memory}>"


def technology(
    node: str = "N5", memory_kind: str | None = None, own: str | os.PathLike[str] | Mapping[str, Any] | None = None
) -> Technology:
    """Return the figures of a technology node.

    Args:
        node: ``N16``, ``N7``, ``N6``, ``N5``, or one that ``own`` adds.
        memory_kind: ``hbm2``, ``hbm2e``, ``hbm3``, ``ddr5``, or one that ``own`` adds; the node's usual when absent.
        own: Figures over the shipped ones: the path of a TOML file of the same form, or the same as a mapping; a plain
            number stands for a figure.

    Returns:
        The figures, each with its source.

    Raises:
        UsageError: No node or memory of that name, or a file or figure that is none.

    Example:
        >>> cheap = technology("N5", own={"node": {"N5": {"wafer": 12000}}})
        >>> cheap.figure("node", "wafer"), cheap.source("node", "wafer")
        (12000.0, 'given')
    """
    figures = {} if own is None else own if isinstance(own, Mapping) else read_toml(user_path(own), UsageError)
    tables = _with_own(_shipped(), figures)
    memory = memory_kind or {"N16": "hbm2", "N7": "hbm2e", "N6": "hbm2e"}.get(node, "hbm3")
    for table, name in (("node", node), ("memory", memory)):
        if name not in tables[table]:
            allowed = list(tables[table])
            raise UsageError(f"technology: {table} {shown(name)}: allowed: {', '.join(allowed)}"
                             f"{did_you_mean(str(name), allowed)}")  # fmt: skip
    return Technology(tables, node, memory)


@lru_cache(maxsize=1)
def _shipped() -> dict[str, Any]:
    return read_toml(SHIPPED, UsageError)


def _with_own(shipped: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the shipped tables with a user's figures over them."""
    allowed = (*_NESTED, *_FLAT, *_OTHER)
    for name, table in own.items():
        if name not in allowed or not isinstance(table, Mapping):
            raise UsageError(f"technology: {shown(name)}: expected tables {', '.join(allowed)}"
                             f"{did_you_mean(str(name), allowed)}")  # fmt: skip
    tables = dict(shipped)
    for name in _NESTED:
        known = list(dict.fromkeys(figure for table in shipped[name].values() for figure in table))
        new = {key: {**shipped[name].get(key, {}), **_figures(f"{name}.{key}", table, known)}
               for key, table in own.get(name, {}).items()}  # fmt: skip
        tables[name] = {**shipped[name], **new}
    for name in _FLAT:
        known = [*shipped[name], *(DTYPES if name == "energy" else ())]
        tables[name] = {**shipped[name], **_figures(name, own.get(name, {}), known)}
    for name in _OTHER:
        tables[name] = {**shipped[name], **own.get(name, {})}
    return tables


def _figures(where: str, table: Any, known: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return figures as tables of a value and its source.

    Raises:
        UsageError: A figure that nothing uses, or a value that is not a number above zero.
    """
    if not isinstance(table, Mapping):
        raise UsageError(f"technology: {where}={shown(table)}: expected a table of figures")
    figures = {}
    for name, entry in table.items():
        if name not in known:
            raise UsageError(f"technology: {where}.{shown(name)}: allowed: {', '.join(known)}"
                             f"{did_you_mean(str(name), known)}")  # fmt: skip
        figure = dict(entry) if isinstance(entry, Mapping) else {"value": entry, "source": "given"}
        value = figure.get("value")
        if isinstance(value, bool) or not isinstance(value, int | float) or not (isfinite(value) and value > 0):
            raise UsageError(f"technology: {where}.{name}={shown(value)}: expected a number above zero")
        figures[name] = {"source": "given", **figure}
    return figures
