"""What a listing is made of: rows of nodes, blocks of rows, rows of kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from roofline.counting.counts import Counts
from roofline.ir.graph import Graph, Tensor
from roofline.ir.sizes import Dim

#: What tensors are read that no node of the program writes.
STORED = frozenset({"weight", "buffer", "cache"})


@dataclass(frozen=True, slots=True)
class Row:
    """One node. Counts are those of one launch.

    Attributes:
        index: Position in the graph, from 0.
        name: Of the node.
        op: Operator name.
        meaning: What the operator does, in a line.
        inputs: Tensors read.
        outputs: Tensors written.
        options: Of the operator, in order.
        flops: Contraction FLOPs.
        vector: Other floating-point operations.
        read: Its share of what enters its kernel [byte].
        write: Its share of what leaves its kernel [byte].
        bytes_alone: What it would move as a kernel of its own [byte].
        kernel: Label of its kernel; empty for a view, which runs in none.
        number: Of the row of its kernel, from 1; 0 for none.
        step: Which node of its kernel it is, from 1.
        steps: Nodes of its kernel.
        launches: How often it runs back to back.
        count: How often it runs in a run of the program, in all the layers that this row stands for.
    """

    index: int
    name: str
    op: str
    meaning: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    options: tuple[tuple[str, Any], ...]
    flops: Any
    vector: Any
    read: Any
    write: Any
    bytes_alone: Any
    kernel: str
    number: int
    step: int
    steps: int
    launches: int
    count: int

    @property
    def bytes(self) -> Any:
        """Its share of the bytes that cross its kernel's boundary [byte]."""
        return self.read + self.write

    @property
    def unknown(self) -> bool:
        """Whether no rule says what the operation computes."""
        return self.op == "unknown"

    @property
    def title(self) -> str:
        """The operator, or what the source called one without a rule."""
        return f"unknown: {dict(self.options)['what']}" if self.unknown else self.op

    @property
    def place(self) -> str:
        """The number of its kernel, and its step there where there are several."""
        return "-" if not self.number else f"{self.number}.{self.step}" if self.steps > 1 else str(self.number)


@dataclass(frozen=True, slots=True)
class Block:
    """Rows with a common path, one run of which is counted here and ``times`` in what contains it.

    Attributes:
        name: Last part of its path; of folded blocks, the first's.
        last: Of folded blocks, the last's name; else the same.
        path: Dotted path of the first.
        times: How many equal ones it stands for.
        items: What is in it, in execution order.
        flops: Contraction FLOPs of one.
        vector: Other floating-point operations of one.
        bytes: Its share of the bytes over kernel boundaries [byte].
    """

    name: str
    last: str
    path: str
    times: int
    items: tuple[Item, ...]
    flops: Any
    vector: Any
    bytes: Any

    @property
    def title(self) -> str:
        """The name, or the first and the last."""
        return self.name if self.times == 1 else f"{self.name} ... {self.last}"

    def rows(self) -> Iterator[Row]:
        """The nodes in it, in execution order."""
        return walk(self.items)


Item = Row | Block


def walk(items: tuple[Item, ...]) -> Iterator[Row]:
    """All rows, in execution order."""
    for item in items:
        if isinstance(item, Row):
            yield item
        else:
            yield from walk(item.items)


def folds(items: tuple[Item, ...]) -> Iterator[Block]:
    """All blocks that stand for several."""
    for item in items:
        if isinstance(item, Block):
            if item.times > 1:
                yield item
            yield from folds(item.items)


@dataclass(frozen=True, slots=True)
class KernelRow:
    """One distinct kernel. Counts are those of one launch.

    Attributes:
        number: From 1, in order of first appearance.
        name: Label of its first occurrence.
        ops: Its operators in order.
        count: How often it runs in a run of the program.
        flops: Contraction FLOPs.
        vector: Other floating-point operations.
        bytes: Over its boundary [byte].
    """

    number: int
    name: str
    ops: tuple[str, ...]
    count: int
    flops: Any
    vector: Any
    bytes: Any

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity [FLOP/byte]; ``None`` where a size has no value."""
        return intensity(self.flops, self.vector, self.bytes)


def intensity(flops: Any, vector: Any, moved: Any) -> float | None:
    """Contraction FLOPs, or other arithmetic where there are none, over bytes."""
    work = flops if isinstance(flops, Dim) or flops else vector
    return None if isinstance(work, Dim) or isinstance(moved, Dim) or not moved else float(work / moved)


@dataclass(frozen=True)
class Listed:
    """A program, node by node.

    Attributes:
        graph: The program.
        sizes: Values of its symbols, those that were given.
        items: Rows and blocks, in execution order.
        kernels: The distinct kernels.
        counts: What :func:`roofline.count` counts: the sums of everything.
        shown: For each node of the graph, the index of the node whose row stands for it.
        unknown: Operations without a rule, with their calls.
    """

    graph: Graph
    sizes: Mapping[str, int]
    items: tuple[Item, ...]
    kernels: tuple[KernelRow, ...]
    counts: Counts
    shown: tuple[int, ...]
    unknown: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def rows(self) -> tuple[Row, ...]:
        """The rows of all blocks."""
        return tuple(walk(self.items))

    @cached_property
    def folds(self) -> tuple[Block, ...]:
        """The blocks that stand for several."""
        return tuple(folds(self.items))

    @cached_property
    def dtype(self) -> str:
        """The number format that most outputs have."""
        found = Counter(tensor.dtype for row in self.rows for tensor in row.outputs)
        return found.most_common(1)[0][0] if found else ""

    @property
    def symbols(self) -> tuple[str, ...]:
        """Sizes without a value."""
        return tuple(sorted(self.graph.symbols - self.sizes.keys()))

    @property
    def intensity(self) -> float | None:
        """Arithmetic intensity of the program [FLOP/byte]."""
        return intensity(self.counts.flops, self.counts.vector_flops, self.counts.bytes)

    @cached_property
    def meanings(self) -> dict[str, str]:
        """What each operator does, in order of appearance."""
        return {row.op: row.meaning for row in self.rows}
