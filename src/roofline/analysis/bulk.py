"""Many operator rows at once: rows of one kind become one symbolic graph, evaluated on columns of sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.counting.counts import KernelCount, kernels
from roofline.ir.errors import RooflineError
from roofline.ir.graph import Graph
from roofline.ir.sizes import symbol
from roofline.programs.workload import CONCRETE, checked_entry, operator_graph


@dataclass(frozen=True)
class Rows:
    """Rows that share a graph.

    Attributes:
        index: Where they stand in the input.
        op: Their operator word.
        dtype: Their number format, as given.
        graph: The operator, symbolic in what varies.
        sizes: A column for each symbol.
    """

    index: NDArray[np.intp]
    op: str
    dtype: str
    graph: Graph
    sizes: Mapping[str, NDArray[np.float64]]

    def counts(self) -> tuple[KernelCount, ...]:
        """Counts of each kernel of the operator, a column each."""
        return tuple(kernel.at(self.sizes) for kernel in kernels(self.graph))


def group_rows(entries: Sequence[tuple[str, str, Mapping[str, Any]]]) -> tuple[list[Rows], dict[int, str]]:
    """Group ``(op, dtype, shape)`` rows by what they share.

    Returns:
        The groups, and for each row that is not a valid operator the reason.
    """
    groups: dict[Any, list[int]] = {}
    shapes: list[dict[str, Any]] = [{} for _ in entries]
    errors: dict[int, str] = {}
    for at, (op, dtype, shape) in enumerate(entries):
        try:
            shapes[at] = checked_entry(op, shape)
        except RooflineError as error:
            errors[at] = str(error)
            continue
        groups.setdefault(_key(op, dtype, shapes[at]), []).append(at)
    rows: list[Rows] = []
    for (op, dtype, *_), members in groups.items():
        rows += _build(op, dtype, members, shapes, errors)
    return rows, errors


def _key(op: str, dtype: str, shape: Mapping[str, Any]) -> Any:
    fixed = tuple((key, value) for key, value in sorted(shape.items()) if _is_fixed(op, key, value, shape))
    return op, dtype, tuple(sorted(shape)), fixed


def _is_fixed(op: str, key: str, value: Any, shape: Mapping[str, Any]) -> bool:
    grouped = shape.get("groups", 1) != 1 and key in ("c_in", "c_out")
    return isinstance(value, bool) or key in CONCRETE or (op == "rope" and key == "head_dim") or grouped


def _build(
    op: str, dtype: str, members: Iterable[int], shapes: Sequence[Mapping[str, Any]], errors: dict[int, str]
) -> list[Rows]:
    rows = list(members)
    first = shapes[rows[0]]
    varying = [key for key, value in first.items() if not _is_fixed(op, key, value, first)]
    symbolic = {key: symbol(key) if key in varying else value for key, value in first.items()}
    try:
        graph = operator_graph(op, dtype, symbolic)
    except RooflineError as error:
        errors.update(dict.fromkeys(rows, str(error)))
        return []
    sizes = {key: np.array([shapes[at][key] for at in rows], dtype=np.float64) for key in varying}
    return [Rows(np.array(rows), op, dtype, graph, sizes)]
