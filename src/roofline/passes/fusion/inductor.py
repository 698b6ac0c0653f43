"""Kernels as torch.compile's inductor makes them: relabelling only.

The rules, and where PyTorch 2.13 has them (``torch/_inductor``; docs/compile.md says more):

1. *Patterns*, ``fx_passes/``: attention written out (matmul, scale, mask, softmax, matmul) becomes one library
   kernel (``fuse_attention.py``); a plain matmul whose sum with an array is not only read pointwise takes
   the sum along (``post_grad.py``: ``addmm``, ``should_prefer_unfused_addmm``).
2. *Inlining*, ``graph.py: run_node`` and ``ir.py: StorageBox``: pointwise work (also gathers, joins, copies, small
   windows, reductions of fewer than 8 elements) is computed where it is read, whatever views lie between. It is
   written out where it is an output, where a library or an in-place write wants it, where a window reads an expression
   of several reads, where it is used again and has more than 4 reads or 30 operations, or has more than 8 reads.
   Reductions are always written out.
3. *Fusing*, ``scheduler.py: fuse_nodes, _can_fuse`` and ``codegen/simd.py: can_fuse``: pairs of loops that touch the
   same data the same way, best first: pointwise with pointwise before mixed pairs, then by the bytes they share, then
   by distance. Pointwise loops need equal sizes; reductions equal rows and columns; a reduction takes pointwise loops
   of all its elements or of its rows. A consumer must read what the producer wrote at the same index, or broadcast
   along the axes that were reduced. Neighbours without a dependency need 10 bytes in common and lie within 64 loops.
   No fusion may make kernels wait for each other; 64 loops at most share a kernel.
4. *Libraries*: matmuls, convolutions, attention, ``topk``, long sorts and unknown operations are kernels of their own;
   nothing fuses into them. Scatters take in the values that they write and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from roofline.ir.graph import Graph, Lifetimes, Node
from roofline.ops.registry import OPS
from roofline.passes.fusion.inlining import Inliner, Loop, Read
from roofline.passes.fusion.order import Order, topological_order
from roofline.passes.history import graph_pass

#: config.score_fusion_memory_threshold: neighbours that share less are left apart [byte].
MIN_SHARED = 10
#: Scheduler.are_long_distant_nodes.
MAX_DISTANCE = 64
#: config.max_fusion_size and config.max_fusion_buffer_group_pairwise_attempts.
MAX_LOOPS = NEIGHBOURS_TRIED = 64
#: Scheduler.fuse_nodes.
ROUNDS = 10


@graph_pass
def inductor(graph: Graph) -> Graph:
    """Group a graph's operators into the kernels that torch.compile makes of them.

    FLOPs and outputs stay; bytes never grow. An operator that inductor would compute again in several kernels belongs
    to the first of them and is written for the others. Kernels that the graph already has stay as they are.

    Args:
        graph: The program, a kernel per operator.

    Returns:
        The same program under other kernel labels, with ``info.grouped == "inductor"``.

    Raises:
        UnknownOp: A node's operator is not registered.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> from roofline import count
        >>> b = Builder("norm", "fp32")
        >>> x = b.input("x", (64, 1024))
        >>> y = b.op("sub", x, b.op("reduce", x, axes=(-1,), keepdim=True))
        >>> z = b.op("linear", b.op("relu", y), b.weight("w", (8, 1024)))
        >>> count(inductor(b.graph([z]))).launches
        2
    """
    if graph.info.grouped == "inductor":
        return graph
    matched = _patterns(graph)
    inliner = Inliner(matched)
    kernels = _Scheduler(inliner).kernels()
    labels: dict[str, str] = {}
    for kernel in kernels:
        label = kernel[0].nodes[0].label
        for node in (node for loop in kernel for node in (*loop.nodes, *loop.inlined)):
            labels.setdefault(node.name, label)
    nodes = tuple(_labelled(node, labels.get(node.name)) for node in matched.nodes)
    return replace(matched, nodes=nodes).with_info(grouped="inductor", lifetimes=Lifetimes(planned=True))


def _labelled(node: Node, label: str | None) -> Node:
    return node if label in (None, node.label) else replace(node, kernel=str(label))


# --- patterns ---------------------------------------------------------------------------------------------------------

#: What may lie between the matmuls of attention: a scale, then a mask.
_SCALES, _MASKS = ("mul_scalar", "mul", "div"), ("add",)


def _patterns(graph: Graph) -> Graph:
    """Operators that a library kernel takes together, under one label."""
    labels: dict[str, str] = {}
    for node in graph.nodes:
        if len(graph.kernels[node.label]) == 1:
            members = _attention(graph, node) or _addmm(graph, node)
            free = all(other.name not in labels and len(graph.kernels[other.label]) == 1 for other in members)
            if free and len({other.count for other in members}) == 1:
                labels.update(dict.fromkeys((other.name for other in members), node.label))
    return replace(graph, nodes=tuple(_labelled(node, labels.get(node.name)) for node in graph.nodes))


def _only_reader(graph: Graph, node: Node, through: bool = True) -> Node | None:
    """The one reader of a node whose result nobody else sees; through views that keep the order of elements."""
    name = node.outputs[0]
    readers = graph.consumers.get(name, ())
    if len(readers) != 1 or name in graph.outputs:
        return None
    if through and readers[0].op in ("view", "expand"):
        return _only_reader(graph, readers[0])
    return readers[0]


def _attention(graph: Graph, node: Node) -> tuple[Node, ...]:
    """Scores, scale, mask, softmax and values, each read by the next alone."""
    if node.op != "bmm":
        return ()
    chain = [node]
    for allowed in (_SCALES, _MASKS, ("softmax",), ("cast", "copy"), ("bmm",)):
        reader = _only_reader(graph, chain[-1])
        if reader is not None and reader.op in allowed:
            chain.append(reader)
    ops = [step.op for step in chain]
    if "softmax" not in ops or ops[-1] != "bmm" or len(ops) < 3:
        return ()
    # The patterns know matmuls of four axes with a scale, and no others.
    heads = len(graph.tensors[chain[ops.index("softmax")].inputs[0]].shape) == 4
    return tuple(chain) if heads and ops[1] in _SCALES else ()


def _addmm(graph: Graph, node: Node) -> tuple[Node, ...]:
    """A matmul of two matrices and the sum that its library kernel starts from."""
    flat = len(graph.tensors[node.outputs[0]].shape) == 2
    if node.op not in ("linear", "matmul") or len(node.inputs) != 2 or not flat:
        return ()
    reader = _only_reader(graph, node, through=False)
    if reader is None or reader.op != "add" or len(set(reader.inputs)) != 2:
        return ()
    if graph.tensors[reader.outputs[0]].shape != graph.tensors[node.outputs[0]].shape:
        return ()
    return () if _read_pointwise(graph, reader.outputs[0]) else (node, reader)


def _read_pointwise(graph: Graph, name: str) -> bool:
    """Tell whether all that reads a tensor, through views, is pointwise."""
    if name in graph.outputs:
        return False
    return all(
        _read_pointwise(graph, reader.outputs[0])
        if OPS[reader.op].kind == "view"
        else OPS[reader.op].kind == "pointwise"
        for reader in graph.consumers.get(name, ())
    )


# --- fusing -----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Kernel:
    """Loops that run together."""

    loops: list[Loop]
    first: int
    last: int
    reduces: bool
    rows: Any
    total: Any
    shape: tuple[Any, ...]
    waits: set[int]

    @property
    def fusible(self) -> bool:
        return all(loop.fusible for loop in self.loops)

    def fits(self, other: _Kernel) -> bool:
        """Tell whether one nest of loops can run both (simd.py, can_fuse)."""
        if self.loops[0].count != other.loops[0].count:
            return False
        if self.reduces and other.reduces:
            return bool(self.rows == other.rows and self.total == other.total)
        if self.reduces == other.reduces:
            return bool(self.total == other.total)
        outer, inner = (self, other) if self.reduces else (other, self)
        return bool(inner.total == outer.total or inner.total == outer.rows)


class _Scheduler:
    """Pairs of kernels fuse, best first, until no pair is left that may."""

    def __init__(self, inliner: Inliner) -> None:
        self.inliner = inliner
        self.loops = inliner.loops()
        self.writer = {name: loop for loop in self.loops for node in loop.nodes for name in node.outputs}
        self.of = [
            _Kernel([loop], loop.order, loop.order, loop.reduces, loop.rows, loop.total, loop.shape, set(loop.waits))
            for loop in self.loops
        ]
        self.order = Order([loop.waits for loop in self.loops])
        nodes, start = inliner.graph.nodes, inliner.graph.backward_start
        #: Forward and backward are two programs (torch/_functorch/partitioners.py).
        self.backward = frozenset(node.name for node in (nodes[start:] if start is not None else ()))

    def kernels(self) -> list[list[Loop]]:
        """Fuse, then list the kernels in an order in which they can run."""
        for _ in range(ROUNDS):
            if not self._round():
                break
        kernels = {kernel.first: kernel for kernel in self.of}
        waits = {at: {self.of[place].first for place in kernel.waits} for at, kernel in kernels.items()}
        return [kernels[at].loops for at in topological_order(waits)]

    def _round(self) -> bool:
        changed = False
        for a, b in self._pairs():
            left, right = self.of[a], self.of[b]
            if left is not right and self._may_fuse(left, right):
                self._fuse(left, right)
                changed = True
        return changed

    def _pairs(self) -> list[tuple[int, int]]:
        """Kernels that touch the same tensor, the best pairs first (choices.py, score_fusion)."""
        touching: dict[str, dict[int, None]] = {}
        for loop in self.loops:
            names = [*(name for name, _ in loop.reads), *(name for node in loop.nodes for name in node.outputs)]
            for name in names if loop.fusible else ():
                touching.setdefault(name, {})[self.of[loop.order].first] = None
        pairs = dict.fromkeys(pair for places in touching.values() for pair in _near(sorted(places)))
        return sorted(pairs, key=lambda pair: self._score(*pair), reverse=True)

    def _score(self, a: int, b: int) -> tuple[bool, float, int]:
        left, right = self.of[a], self.of[b]
        shared = self._shared(left, right)
        distance = max(abs(left.first - right.last), abs(right.first - left.last))
        return left.reduces == right.reduces and shared > 0, shared, -distance

    # --- what two kernels have in common ------------------------------------------------------------------------------

    def _shared(self, a: _Kernel, b: _Kernel) -> float:
        """Bytes that both touch at the same index."""
        same_loop = a.total == b.total and _turn_alike(a, b)
        flexible = not (a.reduces and b.reduces)
        common = _by_buffer(a, flexible) & _by_buffer(b, flexible) if same_loop else set()
        total = sum(self.inliner.nbytes(name) for name in {name for name, _ in common})
        return total + self._handed(a, b) + self._handed(b, a)

    def _handed(self, producer: _Kernel, consumer: _Kernel) -> float:
        """Bytes that the second reads where the first wrote them."""
        made = {name for loop in producer.loops for node in loop.nodes for name in node.outputs}
        reads = {read for loop in consumer.loops for read in loop.reads if read[0] in made}
        return sum(self.inliner.nbytes(name) for name, path in reads if self._aligned(name, path, consumer))

    def _aligned(self, name: str, path: tuple[Any, ...], consumer: _Kernel) -> bool:
        """Tell whether a reader needs an element when its writer has it (scheduler.py, fusable_read_and_write)."""
        writer = self.writer[name]
        producer = self.of[writer.order]
        if all(step[0] == "permute" for step in path):
            return _turn_alike(producer, consumer) and not (path and producer.reduces and consumer.reduces)
        along = len(path) == 1 and path[0] == ("rep", writer.shape)
        return along and not writer.split and bool(consumer.total == writer.total)

    # --- whether two kernels may be one -------------------------------------------------------------------------------

    def _may_fuse(self, a: _Kernel, b: _Kernel) -> bool:
        if not (a.fusible and b.fusible and a.fits(b)) or len(a.loops) + len(b.loops) > MAX_LOOPS:
            return False
        if len({kernel.loops[0].nodes[0].name in self.backward for kernel in (a, b)}) > 1:
            return False
        a_waits, b_waits = self.order.waits_for(a.first, b.first), self.order.waits_for(b.first, a.first)
        far = max(abs(a.first - b.last), abs(b.first - a.last)) > MAX_DISTANCE
        if (far and not a_waits and not b_waits) or self.order.between(a.first, b.first):
            return False
        if a_waits or b_waits:
            producer, consumer = (b, a) if a_waits else (a, b)
            return self._follows(producer, consumer)
        return self._shared(a, b) >= MIN_SHARED

    def _follows(self, producer: _Kernel, consumer: _Kernel) -> bool:
        """Tell whether the consumer reads all of the producer's results at the same index."""
        made = {name for loop in producer.loops for node in loop.nodes for name in node.outputs}
        reads = {read for loop in consumer.loops for read in loop.reads if read[0] in made}
        return all(self._aligned(name, path, consumer) for name, path in reads)

    def _fuse(self, a: _Kernel, b: _Kernel) -> None:
        outer = b if b.reduces and not a.reduces else a
        waits = {place for place in a.waits | b.waits if self.of[place] not in (a, b)}
        loops = sorted([*a.loops, *b.loops], key=lambda loop: loop.order)
        reduces = a.reduces or b.reduces
        first, last = min(a.first, b.first), max(a.last, b.last)
        fused = _Kernel(loops, first, last, reduces, outer.rows, outer.total, outer.shape, waits)
        for loop in loops:
            self.of[loop.order] = fused
        self.order.join((a.first, b.first))


def _near(places: list[int]) -> Iterable[tuple[int, int]]:
    if len(places) <= NEIGHBOURS_TRIED:
        return combinations(places, 2)
    return ((a, b) for at, a in enumerate(places) for b in places[at + 1 : at + 1 + NEIGHBOURS_TRIED])


def _turn_alike(a: _Kernel, b: _Kernel) -> bool:
    """Tell whether two kernels can sweep an array in one order: pointwise loops can reorder their axes."""
    return not (a.reduces and b.reduces) or a.shape == b.shape


def _by_buffer(kernel: _Kernel, flexible: bool) -> set[Read]:
    """Return what a kernel reads and at which index; a pointwise loop can reorder its axes."""
    reads: set[Read] = set()
    for loop in kernel.loops:
        if loop.total == kernel.total:
            reads |= {(name, _turned(path) if flexible else path) for name, path in loop.reads}
    return reads


def _turned(path: tuple[Any, ...]) -> tuple[Any, ...]:
    return () if all(step[0] == "permute" for step in path) else path
