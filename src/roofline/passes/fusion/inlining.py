"""What torch.compile's inductor does before it fuses: pointwise work moves into its readers, the rest becomes loops.

A *loop* is what the scheduler sees: one write of an array that exists in memory, or a call of a library. Everything
that is inlined into a loop comes with it. The rules are those of ``inductor``, which fuses loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from roofline.ir.dtypes import DTYPES
from roofline.ir.graph import Graph, Node
from roofline.ir.sizes import evaluate, prod
from roofline.ops.pointwise import POINTWISE
from roofline.ops.registry import OPS, axes_of, get_op

#: A tensor in memory, and how its reader indexes it: the steps between them that change an index.
Read = tuple[str, tuple[Any, ...]]

_ROLE_OF_KIND = {"pointwise": "inline", "rowwise": "reduce", "reduction": "reduce", "view": "view"}
_ROLE_OF_OP = {
    **dict.fromkeys(("cat", "embedding", "gather", "gather_rows", "take", "rearrange", "transpose_copy", "upsample2d",
                     "pool_grad"), "inline"),
    **dict.fromkeys(("pool", "maxpool2d", "avgpool2d"), "window"),
    **dict.fromkeys(("scatter_add", "embedding_grad", "cache_update", "put", "state_update"), "scatter"),
    # Hand-written kernels of state-space models, and what inductor leaves to a library.
    **dict.fromkeys(("topk", "causal_conv", "selective_scan", "ssd_scan", "delta_scan", "linear_recurrence"), "extern"),
}  # fmt: skip

#: config.realize_reads_threshold: with more reads, an expression that is used again is written out.
READS_TO_REUSE = 4
#: config._realize_acc_reads_threshold_default: with more reads, an expression is written out anyway.
MAX_READS = 8
#: config._realize_opcount_threshold_default: with more operations, an expression that is used again is written out.
OPERATIONS_TO_REUSE = 30
#: graph.py, has_large_inner_fn(threshold=100): with more operations, an expression is written out anyway.
MAX_OPERATIONS = 100
#: config.unroll_reductions_threshold: shorter reductions are written out as sums of terms.
UNROLLED_BELOW = 8
#: lowering.py, max_pool2d and avg_pool2d: larger windows are left to a library.
MAX_WINDOW = 25
#: ir.py, Sort.create: longer rows are left to a library.
MAX_SORTED = 512
#: ir.py, Reduction.num_splits: a longer reduction to one number takes two kernels.
SPLIT_ABOVE = 8192
#: Stand-in for symbolic sizes where they only rank choices (inductor takes a size hint).
_HINT = 64


@dataclass(slots=True)
class Loop:
    """One loop, or one call of a library.

    Attributes:
        nodes: What it writes to memory; several where a kernel was given by hand.
        order: Its place in the program.
        role: ``inline`` (pointwise), ``reduce``, ``scatter`` or ``extern``.
        rows: Iterations outside a reduction; all of a pointwise loop.
        total: Iterations inside and out.
        shape: What of a reduction's input is kept and what is reduced, outermost first.
        count: How often it runs.
        reads: What it reads from memory.
        inlined: Nodes computed inside that are not written.
        waits: Places of the loops that write what it reads.
    """

    nodes: tuple[Node, ...]
    order: int
    role: str
    rows: Any
    total: Any
    shape: tuple[Any, ...]
    count: int
    reads: frozenset[Read] = frozenset()
    inlined: tuple[Node, ...] = ()
    waits: frozenset[int] = frozenset()
    split: bool = field(default=False)

    @property
    def fusible(self) -> bool:
        """Tell whether the scheduler may put it into a kernel with others."""
        return self.role in ("inline", "reduce")

    @property
    def reduces(self) -> bool:
        """Tell whether it is a reduction."""
        return self.role == "reduce"


class Inliner:
    """Loops of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tensors = graph.tensors
        self.producer, self.by_label = graph.producer, graph.kernels
        self.roles = {node.name: self._role(node) for node in graph.nodes}
        self.read_of: dict[str, frozenset[Read]] = {}
        self.operations: dict[str, int] = {}
        self.realized: set[str] = set()
        for node in graph.nodes:
            self._decide(node)

    # --- roles --------------------------------------------------------------------------------------------------------

    def _role(self, node: Node) -> str:
        kind = get_op(node.op, node.name).kind
        role = _ROLE_OF_OP.get(node.op) or _ROLE_OF_KIND.get(kind, "extern")
        if node.op == "put" and len(node.inputs) == 2:
            return "inline"  # slice_scatter: a choice between two values at each place
        if node.op == "scan" and dict(node.attrs).get("flops", 1) == 0:
            return "reduce" if _at_most(self._numel(node.inputs[0], -1), MAX_SORTED) else "extern"
        if role == "reduce" and kind == "reduction" and _at_most(self._columns(node), UNROLLED_BELOW - 1):
            return "inline"
        if role == "window":
            return role if _at_most(self.taps(node), MAX_WINDOW) else "extern"
        return role

    def _numel(self, name: str, axis: int | None = None) -> Any:
        tensor = self.tensors[name]
        return tensor.numel if axis is None else (tensor.shape or (1,))[axis]

    def _columns(self, node: Node) -> Any:
        runs = kept_of(node, self.tensors[node.inputs[0]].shape)
        return prod(size for what, size in runs if what == "rep")

    def taps(self, node: Node) -> Any:
        """Count the elements of its first input that one element of a result reads."""
        attrs = dict(node.attrs)
        if "r" in attrs:
            r = attrs["r"]
            return r[0] * r[1] if isinstance(r, tuple) else r * r
        if node.op == "pool":
            read, made = self._numel(node.inputs[0]), self._numel(node.outputs[0])
            return max(1, read // made) if isinstance(read, int) and isinstance(made, int) else 4
        return self._columns(node) if OPS[node.op].kind == "reduction" else 1

    # --- reads --------------------------------------------------------------------------------------------------------

    def to_memory(self, name: str, path: tuple[Any, ...] = ()) -> tuple[str, tuple[Any, ...]]:
        """Through views to the tensor that was written, with their steps."""
        node = self.producer.get(name)
        while node is not None and self.roles[node.name] == "view":
            path += self._view_step(node)
            name = node.inputs[0]
            node = self.producer.get(name)
        return name, path

    def _view_step(self, node: Node) -> tuple[Any, ...]:
        read, made = self.tensors[node.inputs[0]].shape, self.tensors[node.outputs[0]].shape
        if node.op == "slice":
            return (("part", node.outputs[0]),)
        if node.op == "expand":
            return (("rep", segments(read, made)),)
        if node.op == "permute":
            axes = [axis for axis in dict(node.attrs)["axes"] if read[axis] != 1]
            return () if axes == sorted(axes) else (("permute", tuple(axes)),)
        return ()

    def _steps(self, node: Node, at: int) -> list[tuple[Any, ...]]:
        """Return how a node indexes one of its inputs, once for each element of a window."""
        read, made = self.tensors[node.inputs[at]].shape, self.tensors[node.outputs[0]].shape
        if at == 0 and self.roles[node.name] != "reduce" and OPS[node.op].kind == "reduction":
            taps = self.taps(node)
            return [(("tap", node.name, tap),) for tap in range(taps if isinstance(taps, int) else 4)]
        fixed = _STEPS.get(node.op)
        if fixed is not None and at in fixed:
            return [((fixed[at], node.name, at),)]
        if node.op == "cat":
            return [(("part", node.name, at),)]
        full = self.tensors[node.inputs[0]].shape if self.roles[node.name] == "reduce" else made
        same = prod(read) == prod(full)
        return [() if same else (("rep", broadcast_segments(read, full)),)]

    def reads(self, node: Node) -> Iterator[Read]:
        """Yield what a node reads from memory, through what is inlined into it."""
        for at, name in enumerate(node.inputs):
            for step in self._steps(node, at):
                base, path = self.to_memory(name, step)
                producer = self.producer.get(base)
                if producer is None or producer.name in self.realized:
                    yield base, path
                else:
                    yield from ((deep, path + rest) for deep, rest in self.read_of[producer.name])

    # --- what is written out ------------------------------------------------------------------------------------------

    def readers(self, node: Node) -> list[Node]:
        """Nodes that read what a node writes, through views."""
        readers: dict[str, Node] = {}
        stack = list(node.outputs)
        while stack:
            for reader in self.graph.consumers.get(stack.pop(), ()):
                if self.roles[reader.name] == "view":
                    stack.extend(reader.outputs)
                else:
                    readers[reader.name] = reader
        return list(readers.values())

    @cached_property
    def kept(self) -> frozenset[str]:
        """Tensors that outlive the run, or views of them do."""
        return frozenset(self.to_memory(name)[0] for name in self.graph.outputs)

    def _decide(self, node: Node) -> None:
        role = self.roles[node.name]
        if role == "view":
            return
        self.read_of[node.name] = frozenset(self.reads(node))
        inlined = (self.to_memory(name)[0] for name in node.inputs)
        before = (self.producer[name].name for name in inlined if name in self.producer)
        self.operations[node.name] = 1 + max(1, POINTWISE.get(node.op, 1)) + sum(
            self.operations[name] for name in dict.fromkeys(before) if name not in self.realized
        )  # fmt: skip
        if role not in ("inline", "window") or self._written_out(node):
            self.realized.add(node.name)
            self.operations[node.name] = 0

    def _written_out(self, node: Node) -> bool:
        """Tell whether a pointwise expression becomes an array of its own."""
        readers, reads, work = self.readers(node), len(self.read_of[node.name]), self.operations[node.name]
        reused = len(readers) > 1 and (reads > READS_TO_REUSE or work > OPERATIONS_TO_REUSE)
        return (
            not readers
            or reused
            or reads > MAX_READS
            or work > MAX_OPERATIONS
            or len(self.by_label[node.label]) > 1
            or not self.kept.isdisjoint(node.outputs)
            or any(self._wants_memory(node, reader, reads) for reader in readers)
        )

    def _wants_memory(self, node: Node, reader: Node, reads: int) -> bool:
        """Libraries, in-place writes to it, kernels given by hand and windows over an expression want an array."""
        role = self.roles[reader.name]
        target = role == "scatter" and OPS[reader.op].alias is not None
        written = target and self.producer.get(self.to_memory(reader.inputs[0])[0]) is node
        by_hand = len(self.by_label[reader.label]) > 1
        windowed = role == "window" and reads > 1
        return role == "extern" or written or by_hand or windowed or reader.count != node.count

    # --- loops --------------------------------------------------------------------------------------------------------

    def loops(self) -> list[Loop]:
        """The loops in the program's order."""
        loops: list[Loop] = []
        writer: dict[str, int] = {}
        for label in dict.fromkeys(node.label for node in self.graph.nodes):
            nodes = tuple(node for node in self.by_label[label] if node.name in self.realized)
            if nodes:
                loops.append(self._loop(nodes))
        loops.sort(key=lambda loop: loop.order)
        for place, loop in enumerate(loops):
            writer.update({name: place for node in loop.nodes for name in node.outputs})
        for place, loop in enumerate(loops):
            loop.order = place
            loop.waits = frozenset(writer[name] for name, _ in loop.reads if name in writer) - {place}
        return loops

    def _loop(self, nodes: tuple[Node, ...]) -> Loop:
        roles = {self.roles[node.name] for node in nodes}
        role = next((role for role in ("extern", "scatter", "reduce") if role in roles), "inline")
        if role == "scatter" and len(nodes) > 1:
            role = "extern"
        main = next(node for node in nodes if self.roles[node.name] == role or role in ("inline", "extern"))
        inside = {name for node in nodes for name in node.outputs}
        reads = frozenset(read for node in nodes for read in self.read_of[node.name] if read[0] not in inside)
        written = self.tensors[main.outputs[0]]
        loop = Loop(
            nodes, self._place[nodes[0].name], role, written.numel, written.numel, (), main.count, reads,
            tuple(self._inlined(nodes)),
        )  # fmt: skip
        if role == "reduce":
            loop.total = self._numel(main.inputs[0])
            loop.shape = kept_of(main, self.tensors[main.inputs[0]].shape)
            loop.rows = prod(size for what, size in loop.shape if what == "keep")
            loop.split = loop.rows == 1 and not _at_most(loop.total, SPLIT_ABOVE)
        return loop

    @cached_property
    def _place(self) -> dict[str, int]:
        return {node.name: at for at, node in enumerate(self.graph.nodes)}

    def _inlined(self, nodes: Iterable[Node]) -> Iterator[Node]:
        seen: set[str] = set()
        stack = [name for node in nodes for name in node.inputs]
        while stack:
            producer = self.producer.get(self.to_memory(stack.pop())[0])
            if producer is not None and producer.name not in self.realized and producer.name not in seen:
                seen.add(producer.name)
                stack.extend(producer.inputs)
                yield producer

    def nbytes(self, name: str) -> float:
        """Bytes of a tensor, symbols at a stand-in size."""
        tensor = self.tensors[name]
        numel = evaluate(tensor.numel, dict.fromkeys(self.graph.symbols, _HINT))
        return float(numel * DTYPES[tensor.dtype].bytes)


#: Steps that no other read shares, by operator and input.
_STEPS: dict[str, dict[int, str]] = {
    **{op: {0: "gathered"} for op in ("embedding", "gather", "gather_rows", "take")},
    **{op: {0: "moved"} for op in ("rearrange", "upsample2d", "resample", "pool_grad", "recurrent_cell",
                                   "recurrent_cell_grad")},
    "transpose_copy": {0: "permute"},
    "put": {1: "part"},
}  # fmt: skip

#: Axes that operators reduce, where it is not the last one.
_REDUCED: dict[str, Callable[[int], tuple[int, ...]]] = {
    "layernorm2d": lambda rank: (1,),
    "batchnorm_train": lambda rank: (0, *range(2, rank)),
    "channelnorm_grad": lambda rank: (0, *range(2, rank)),
    "global_avgpool": lambda rank: (2, 3),
}


def _at_most(size: Any, limit: int) -> bool:
    return isinstance(size, int) and size <= limit


def kept_of(node: Node, shape: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return what of its first input a reduction keeps and reduces, as :func:`segments`."""
    attrs, rank = dict(node.attrs), len(shape)
    if node.op == "groupnorm" and isinstance(attrs.get("groups"), int):
        groups = attrs["groups"]
        return segments((shape[0], groups, 1), (shape[0], groups, prod(shape[1:]) // groups))
    if node.op == "reduce":
        axes = axes_of(rank, attrs.get("axes"))
    else:
        axes = _REDUCED[node.op](rank) if node.op in _REDUCED else (rank - 1,)
    return segments(tuple(1 if at in axes else size for at, size in enumerate(shape)), shape)


def segments(small: tuple[Any, ...], full: tuple[Any, ...]) -> tuple[Any, ...]:
    """Runs of axes that two shapes share (``keep``) and of axes that only the second has (``rep``).

    Example:
        >>> segments((4, 5, 1), (4, 5, 6)), segments((1, 6), (4, 6))
        ((('keep', 20), ('rep', 6)), (('rep', 4), ('keep', 6)))
    """
    runs: list[tuple[str, Any]] = []
    for have, want in zip(small, full, strict=True):
        what = "rep" if have == 1 else "keep"
        if want == 1:
            continue
        if runs and runs[-1][0] == what:
            runs[-1] = (what, runs[-1][1] * want)
        else:
            runs.append((what, want))
    return tuple(runs)


def broadcast_segments(small: tuple[Any, ...], full: tuple[Any, ...]) -> tuple[Any, ...]:
    """Segments of arrays that fit by numpy's rule, by rows (the index of a table) or by channels."""
    missing = len(full) - len(small)
    ways = [(*(1,) * missing, *small), (*small, *(1,) * missing)]
    if len(small) == 1 and len(full) > 2:
        ways.append((1, *small, *(1,) * (len(full) - 2)))
    for way in ways:
        if len(way) == len(full) and all(have in (1, want) for have, want in zip(way, full, strict=True)):
            return segments(way, full)
    return (("other", small, full),)
