"""What a listing is made of: rows of nodes, blocks of rows, rows of kernels; each as plain data, too."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from roofline.counting.counts import Counts
from roofline.ir.graph import Graph, Tensor
from roofline.ir.report import Report, subject
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
        """Tell whether no rule says what the operation computes."""
        return self.op == "unknown"

    @property
    def title(self) -> str:
        """The operator, or what the source called one without a rule."""
        return f"unknown: {dict(self.options)['what']}" if self.unknown else self.op

    @property
    def place(self) -> str:
        """The number of its kernel, and its step there where there are several."""
        return "-" if not self.number else f"{self.number}.{self.step}" if self.steps > 1 else str(self.number)

    def record(self) -> dict[str, Any]:
        """Return the node as plain data; a polynomial as text."""
        return {
            "index": self.index, "name": self.name, "op": self.op, "meaning": self.meaning,
            "inputs": [_tensor(t) for t in self.inputs], "outputs": [_tensor(t) for t in self.outputs],
            "options": {str(key): _plain(value) for key, value in self.options}, "count": self.count,
            "flops": _plain(self.flops), "vector_flops": _plain(self.vector), "bytes": _plain(self.bytes),
            "read_bytes": _plain(self.read), "write_bytes": _plain(self.write),
            "bytes_alone": _plain(self.bytes_alone), "kernel": self.kernel or None,
            "kernel_number": self.number or None, "step": self.step, "steps": self.steps,
        }  # fmt: skip


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
        """Yield the nodes in it, in execution order."""
        return walk(self.items)

    def record(self) -> dict[str, Any]:
        """Return the block as plain data; a polynomial as text."""
        return {
            "path": self.path, "first": self.name, "last": self.last, "times": self.times,
            "nodes": [row.index for row in self.rows()],
            "flops": _plain(self.flops), "vector_flops": _plain(self.vector), "bytes": _plain(self.bytes),
        }  # fmt: skip


Item = Row | Block


def walk(items: tuple[Item, ...]) -> Iterator[Row]:
    """Yield all rows, in execution order."""
    for item in items:
        if isinstance(item, Row):
            yield item
        else:
            yield from walk(item.items)


def folds(items: tuple[Item, ...]) -> Iterator[Block]:
    """Yield all blocks that stand for several."""
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

    def record(self) -> dict[str, Any]:
        """Return the kernel as plain data; a polynomial as text."""
        return {
            "number": self.number, "name": self.name, "ops": list(self.ops), "count": self.count,
            "flops": _plain(self.flops), "vector_flops": _plain(self.vector), "bytes": _plain(self.bytes),
            "intensity": self.intensity,
        }  # fmt: skip


def _plain(value: Any) -> Any:
    """Return what JSON has as it is, and everything else as text."""
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Dim) else value


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "shape": _plain(tensor.shape), "dtype": tensor.dtype, "kind": tensor.kind}


def intensity(flops: Any, vector: Any, moved: Any) -> float | None:
    """Return contraction FLOPs, or other arithmetic where there are none, over bytes."""
    work = flops if isinstance(flops, Dim) or flops else vector
    return None if isinstance(work, Dim) or isinstance(moved, Dim) or not moved else float(work / moved)


@dataclass(frozen=True)
class Listed(Report):
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

    schema = "graph"

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
        dtypes = Counter(tensor.dtype for row in self.rows for tensor in row.outputs)
        return dtypes.most_common(1)[0][0] if dtypes else ""

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
        """A line about each operator, in order of appearance."""
        return {row.op: row.meaning for row in self.rows}

    def subject(self) -> dict[str, Any]:
        """Return the program and the sizes that are numbers."""
        return subject(self.graph, sizes=self.sizes)

    def summary(self) -> dict[str, Any]:
        """Return totals, folded blocks and kernels; a polynomial as text."""
        graph, counts = self.graph, self.counts
        return {
            "name": graph.name,
            "symbols": list(self.symbols),
            "totals": {
                "nodes": len(graph.nodes),
                "kernels": counts.launches,
                "parameters": _plain(graph.parameters),
                "flops": _plain(counts.flops),
                "vector_flops": _plain(counts.vector_flops),
                "bytes": _plain(counts.bytes),
                "intensity": self.intensity,
            },
            "blocks": [block.record() for block in self.folds],
            "kernels": [row.record() for row in self.kernels],
            "unknown": dict(self.unknown),
        }

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per node that is shown."""
        return [row.record() for row in self.rows]
