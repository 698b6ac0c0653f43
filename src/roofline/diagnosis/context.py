"""What is known about a traced iteration: the meant program, what ran and what was waited for; shapes of calls."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from roofline.diagnosis.groups import Group
from roofline.diagnosis.idle import Idle
from roofline.diagnosis.reference import Meant
from roofline.ir.sizes import evaluate

Shape = tuple[int, ...]

#: Classes of kernels that only sweep or move.
SWEEPS = ("pointwise", "rowwise", "reduction", "move")


@dataclass(frozen=True)
class Scene:
    """A traced iteration beside the program that was meant.

    Attributes:
        meant: The meant program, ``None`` where only the trace is known.
        groups: What ran.
        idle: What the device waited for.
    """

    meant: Meant | None
    groups: Sequence[Group]
    idle: Idle

    def _rows(self, kinds: Iterable[str]) -> list[tuple[Any, Any]]:
        """Meant kernels of some classes with their times."""
        if self.meant is None:
            return []
        est = self.meant.reference
        return [pair for pair in zip(est.rows, est.times[0], strict=True) if pair[0].kernel.kind in kinds]

    def budget(self, *kinds: str) -> float:
        """What the meant kernels of some classes take [s]; without a meant program anything may be meant."""
        if self.meant is None:
            return float("inf")
        spent = sum(row.kernel.count * float(time.expected) for row, time in self._rows(kinds))
        return float(spent) - (self.meant.scattered if "move" in kinds else 0.0)

    def launches(self, *kinds: str) -> int:
        """Launches of meant kernels of some classes."""
        return sum(int(row.kernel.count) for row, _ in self._rows(kinds))

    @property
    def flops(self) -> float:
        """Contraction FLOPs of the meant program; nan where none is known."""
        return float(self.meant.reference.flops) if self.meant is not None else float("nan")

    @property
    def launched(self) -> int:
        """All launches of the meant program."""
        return int(self.meant.reference.launches) if self.meant is not None else 0

    @cached_property
    def attention(self) -> frozenset[Shape]:
        """Query length, key length and head size of each attention that was meant."""
        if self.meant is None:
            return frozenset()
        operands = [self.meant.shapes(row) for row, _ in self._rows(("attention",))]
        return frozenset((queries[2], keys[2], queries[3]) for queries, keys, *_ in operands)

    def is_score(self, shape: Shape) -> bool:
        """Whether a tensor is as large as attention scores, those of a part of the queries included."""
        if len(shape) < 3:
            return False
        if self.meant is None:
            return shape[-2:] in self._softmaxed
        rows, columns = shape[-2:]
        return any(columns == keys and rows <= queries and rows != size for queries, keys, size in self.attention)

    @cached_property
    def _softmaxed(self) -> frozenset[Shape]:
        """Trailing sizes of a product's result that a softmax reads: attention written by hand."""
        made = {shape[-2:] for one in self.groups if one.kind == "matmul" for shape in results(one)}
        soft = {shape[-2:] for one in self.groups if "softmax" in one.op for shape in shapes(one)[:1] if len(shape) > 2}
        return frozenset(made & soft)


def shapes(one: Group) -> list[Shape]:
    """Shapes of the tensors that a call was given, those in lists too."""
    found: list[Shape] = []
    for dims in one.signature.dims if one.signature is not None else ():
        nested = bool(dims) and isinstance(dims[0], tuple)
        found += [tuple(shape) for shape in dims] if nested else [tuple(dims)]
    return [shape for shape in found if shape]


def strides(one: Group) -> list[Shape]:
    """Strides of those tensors, where they were recorded."""
    return [tuple(stride) for stride in one.signature.strides if stride] if one.signature is not None else []


def results(one: Group) -> list[Shape]:
    """Shapes of what a call returns, by its formula."""
    if one.graph is None:
        return []
    return [tuple(int(evaluate(size, {})) for size in one.graph.tensors[name].shape) for name in one.graph.outputs]


def largest(one: Group) -> list[int]:
    """The shape of a call's largest operand."""
    return list(max(shapes(one), key=prod, default=()))
