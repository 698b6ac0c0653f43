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
from roofline.programs.workload import CONCRETE, FROM_ZERO, MAX_SIZE, WORDS, checked_entry, operator_graph


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
    alike: dict[Any, list[int]] = {}
    for at, (op, dtype, shape) in enumerate(entries):
        alike.setdefault((op, dtype, *shape), []).append(at)
    shapes: list[Mapping[str, Any]] = [shape for _, _, shape in entries]
    groups: dict[Any, list[int]] = {}
    errors: dict[int, str] = {}
    for members in alike.values():
        sort = _by_column if _are_plain(members, entries) else _by_row
        sort(members, entries, shapes, groups, errors)
    rows: list[Rows] = []
    for (op, dtype, *_), members in groups.items():
        rows += _build(op, dtype, members, shapes, errors)
    return rows, errors


Entries = Sequence[tuple[str, str, Mapping[str, Any]]]
#: Sizes that are checked against others.
_TOGETHER = frozenset({"heads", "top_k"})
#: Sizes whose equality decides about kernels: rows in which they are equal share one symbol for both.
_EQUAL = (("q_len", "kv_len"), ("heads", "kv_heads"))


def _by_row(
    members: Sequence[int], entries: Entries, shapes: list[Mapping[str, Any]], groups: dict[Any, list[int]],
    errors: dict[int, str],
) -> None:  # fmt: skip
    """Check rows one by one."""
    for at in members:
        op, dtype, shape = entries[at]
        try:
            shapes[at] = checked_entry(op, shape)
        except RooflineError as error:
            errors[at] = str(error)
            continue
        groups.setdefault(_key(op, dtype, shapes[at]), []).append(at)


def _are_plain(members: Sequence[int], entries: Entries) -> bool:
    """Tell whether rows with the same keys are valid wherever one of them is: whole numbers in range, and switches."""
    op, _, first = entries[members[0]]
    if op not in WORDS or not _TOGETHER.isdisjoint(first):
        return False
    for key, values in zip(first, zip(*(entries[at][2].values() for at in members), strict=True), strict=True):
        kinds, least = set(map(type, values)), 0 if key in FROM_ZERO else 1
        most = 1 if key == "groups" else MAX_SIZE
        if kinds != {bool} and (kinds != {int} or not least <= min(values) <= max(values) <= most):
            return False
    return True


def _by_column(
    members: Sequence[int], entries: Entries, shapes: list[Mapping[str, Any]], groups: dict[Any, list[int]],
    errors: dict[int, str],
) -> None:  # fmt: skip
    """Check the keys of rows by the first one."""
    op, dtype, first = entries[members[0]]
    try:
        checked = checked_entry(op, first)
    except RooflineError as error:
        errors.update(dict.fromkeys(members, str(error)))
        return
    if any(type(value) is not type(first[key]) for key, value in checked.items()):  # 1 for true
        return _by_row(members, entries, shapes, groups, errors)
    fixed = [key for key, value in first.items() if _is_fixed(op, key, value, {})]
    kind = (op, dtype, tuple(sorted(checked)))
    for at in members:
        shape = shapes[at]
        groups.setdefault((*kind, tuple([(key, shape[key]) for key in fixed])), []).append(at)


def _key(op: str, dtype: str, shape: Mapping[str, Any]) -> Any:
    fixed = tuple((key, value) for key, value in sorted(shape.items()) if _is_fixed(op, key, value, shape))
    return op, dtype, tuple(sorted(shape)), fixed, tuple(_same(shape))


def _same(shape: Mapping[str, Any]) -> dict[str, str]:
    """Return sizes that are equal to another one that decides with them, by their names."""
    return {other: key for key, other in _EQUAL if other in shape and shape[other] == shape.get(key)}


def _is_fixed(op: str, key: str, value: Any, shape: Mapping[str, Any]) -> bool:
    grouped = shape.get("groups", 1) != 1 and key in ("c_in", "c_out")
    return isinstance(value, bool) or key in CONCRETE or (op == "rope" and key == "head_dim") or grouped


def _build(
    op: str, dtype: str, members: Iterable[int], shapes: Sequence[Mapping[str, Any]], errors: dict[int, str]
) -> list[Rows]:
    rows = list(members)
    first = shapes[rows[0]]
    varying = [key for key, value in first.items() if not _is_fixed(op, key, value, first)]
    same = _same(first)
    symbolic = {key: symbol(same.get(key, key)) if key in varying else value for key, value in first.items()}
    try:
        graph = operator_graph(op, dtype, symbolic)
    except RooflineError as error:
        errors.update(dict.fromkeys(rows, str(error)))
        return []
    sizes = {key: np.array([shapes[at][key] for at in rows], dtype=np.float64) for key in varying if key not in same}
    return [Rows(np.array(rows), op, dtype, graph, sizes)]
