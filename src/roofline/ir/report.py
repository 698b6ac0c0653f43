"""The base of every result: its rows, one record for JSON, a frame and a table for notebooks.

A result says what it is a result of (:meth:`Report.subject`), lists its rows as dictionaries in SI units
(:meth:`Report.records`), and may add figures of the whole (:meth:`Report.summary`). JSON, CSV, data frames and the
tables of notebooks follow from these. The same thing has the same key in every result: ``time_s``, ``context``, ...
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar

from roofline.ir import notebook
from roofline.ir.excelfile import about, write_excel
from roofline.ir.graph import positions_note
from roofline.ir.sizes import SIZE_WORDS

if TYPE_CHECKING:
    import pandas as pd

    from roofline.ir.graph import Graph

#: What the usual symbols of a graph are called in records.
WORDS = {symbol: word for word, symbol in SIZE_WORDS.items()}


class Report(ABC):
    """A result that can be shown, saved and read by a program.

    Attributes:
        schema: Name of the record's schema.
        version: Its version: raised when a key changes its name or its meaning.
    """

    __slots__ = ()
    schema: str = "report"
    version: ClassVar[int] = 1

    def subject(self) -> dict[str, Any]:
        """Return what this is a result of: chip, program, passes, mode, sizes."""
        return {}

    def summary(self) -> dict[str, Any]:
        """Return the figures of the whole, those that belong to no row."""
        return {}

    @abstractmethod
    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per row, in SI units."""

    def record(self) -> dict[str, Any]:
        """Return everything as one object of plain types, as ``--json`` prints it.

        Returns:
            ``schema`` (``name`` and ``version``), the subject, the summary and ``rows``.
        """
        schema = {"name": self.schema, "version": self.version}
        return {"schema": schema, **plain({**self.subject(), **self.summary(), "rows": self.records()})}

    def csv_rows(self) -> list[dict[str, Any]]:
        """Return the rows without nesting, each with what it is a row of, as ``--csv`` prints them."""
        about = plain(self.subject())
        about.pop("notes", None)  # texts without a column
        columns = flat(about | about.pop("sizes", {}))
        return [columns | flat(plain(row)) for row in self.records()]

    def sheets(self) -> dict[str, list[dict[str, Any]]]:
        """Return the sheets of a workbook: the rows, and the figures of the whole."""
        return {"rows": [flat(plain(row)) for row in self.records()], "about": list(about(self.record()))}

    def to_excel(self, target: str | os.PathLike[str]) -> None:
        """Write a workbook of Excel, the whole file or nothing.

        Args:
            target: The file, such as ``kernels.xlsx``.

        Raises:
            MissingExtra: openpyxl is not installed: ``pip install 'roofline[excel]'``.
        """
        write_excel(target, self.sheets())

    def frame(self) -> pd.DataFrame:
        """Return the rows as a table; nested figures become columns of their own."""
        from roofline.ir.frame import frame

        return frame([flat(row) for row in self.records()])

    def _repr_html_(self) -> str:
        return notebook.page(title(self.subject()) or type(self).__name__, self.summary(), self.records())


def subject(
    graph: Graph, chip: Any = None, mode: str | None = None, sizes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Describe what a result of a program is a result of.

    Args:
        graph: The program.
        chip: The name of a chip, or a list of names; left out where there is none.
        mode: How it runs; left out where that makes no difference.
        sizes: Its sizes, by symbol.

    Returns:
        ``model``, ``phase``, ``dtype``, ``chip``, ``cluster`` (of a program placed on one), ``mode``, ``passes``,
        ``sizes`` and ``notes``.
    """
    values = {name: size for name in (*WORDS, *(sizes or {})) if (size := (sizes or {}).get(name)) is not None}
    placed = (("chip", chip), ("cluster", graph.info.devices.cluster or None), ("mode", mode))
    where = {name: value for name, value in placed if value is not None}
    return {
        "model": graph.title, "phase": graph.info.phase, "dtype": graph.info.dtype,
        **where, "passes": [repr(step) for step in graph.history],
        "sizes": {WORDS.get(name, name): _whole(size) for name, size in values.items()},
        "notes": [note for note in (*graph.info.notes, positions_note(graph, sizes or {})) if note],
    }  # fmt: skip


def _whole(size: Any) -> int | list[int]:
    return list(map(int, size)) if hasattr(size, "__len__") else int(size)


def title(subject: Mapping[str, Any]) -> str:
    """Return a subject as a line of text.

    Example:
        >>> title({"model": "gpt2", "phase": "decode", "chip": "t4", "mode": "graph", "sizes": {"batch": 1}})
        'gpt2 decode on t4, graph mode, batch 1'
    """
    name = " ".join(str(subject[key]) for key in ("model", "phase") if subject.get(key))
    where = subject.get("chip")
    chips = ", ".join(where) if isinstance(where, list | tuple) else where
    chips = f"{chips} of {subject['cluster']}" if chips and subject.get("cluster") else chips
    steps = subject.get("passes", ())
    parts = [
        f"{name} on {chips}".strip() if chips else name,
        f"{subject['mode']} mode" if subject.get("mode") else "",
        f"fp32 {subject['tf32']} in tf32" if subject.get("tf32") else "",
        f"regime {subject['regime']}" if subject.get("regime", "program") != "program" else "",
        *size_words(subject),
        f"after {', '.join(steps)}" if steps else "",
    ]
    return ", ".join(part for part in parts if part)


def size_words(subject: Mapping[str, Any], single: bool = False) -> list[str]:
    """Return the sizes of a subject as text, of all or of those with a single value.

    Example:
        >>> size_words({"sizes": {"batch": [1, 64], "context": 2048}}), size_words({"sizes": {"batch": [1, 2]}}, True)
        (['batch 1 to 64', 'context 2,048'], [])
    """
    sizes = subject.get("sizes", {})
    return [f"{key} {_size(value)}" for key, value in sizes.items() if not (single and isinstance(value, list | tuple))]


def _size(value: Any) -> str:
    if not isinstance(value, list | tuple):
        return f"{value:,.12g}"
    return f"{min(value):,.12g} to {max(value):,.12g}" if len(value) > 1 else f"{value[0]:,.12g}"


def plain(value: Any) -> Any:
    """Return a value as what JSON has.

    Example:
        >>> plain({"a": (Fraction(4, 2), float("nan"))})
        {'a': [2, None]}
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, str | bool | int | None):
        return value
    if isinstance(value, Fraction):
        return value.numerator if value.denominator == 1 else float(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return [plain(item) for item in value]


def flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a row without nesting: nested tables become columns, lists become text with semicolons."""
    columns: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            columns |= flat(value, f"{prefix}{key}_")
        else:
            is_list = isinstance(value, Sequence) and not isinstance(value, str)
            columns[prefix + key] = "; ".join(map(_word, value)) if is_list else value
    return columns


def _word(item: Any) -> str:
    return str(item.get("name", item) if isinstance(item, Mapping) else item)
