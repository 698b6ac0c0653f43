"""Vertical fusion of elementwise and row-wise chains, as a compiler does: relabelling only.

A node joins the kernel of a producer when both sweep the same elements as often, reduce over the same rows if they do,
and the joined kernel would not have to wait for something that waits for it. Contractions, attention kernels and cache
writes stay as they are: their kernels come from libraries.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from roofline.ir.graph import Graph, Lifetimes, Node
from roofline.ops.registry import OPS, get_op
from roofline.passes.fusion.inlining import kept_of

#: Kinds of operators that a kernel of its own makes of a chain.
FUSIBLE: frozenset[str] = frozenset({"pointwise", "rowwise", "reduction"})
#: A concatenation is a pointwise kernel with masked loads to a fusing compiler.
POINTWISE_LIKE = frozenset({"cat"})


class _Groups:
    """Kernels in the making: their label, the elements they sweep, and what they wait for."""

    def __init__(self, graph: Graph, kinds: frozenset[str]) -> None:
        self.graph = graph
        self.kinds = kinds
        self.of: dict[str, str] = {}
        self.turned: set[str] = set()  # tensors that a view gives with their axes in another order
        self.rows: dict[str, Any] = {}  # what the reductions of a kernel keep and reduce
        self.sweep: dict[str, Any] = {}
        self.count: dict[str, int] = {}
        self.readers: dict[str, set[str]] = {}  # for each kernel, those that wait for it
        self.shared = {label for label, nodes in graph.kernels.items() if len(nodes) > 1}
        self.backward = None if graph.backward_start is None else graph.nodes[graph.backward_start]

    def fusible(self, node: Node) -> bool:
        kind_fits = get_op(node.op, node.name).kind in self.kinds or node.op in POINTWISE_LIKE
        return kind_fits and node.label not in self.shared

    def elements(self, node: Node) -> Any:
        """Return what a node sweeps: the elements of its output, or of what a reduction reads."""
        names = node.inputs[:1] if OPS[node.op].kind == "reduction" else node.outputs
        return self.graph.tensors[names[0]].numel

    def host_for(self, node: Node, producers: list[str]) -> str | None:
        """The latest producer kernel that can take the node in."""
        for label in reversed(producers):
            same = self.sweep.get(label) == self.elements(node) or node.op in POINTWISE_LIKE
            same = same and self.count.get(label) == node.count and self.fits_rows(node, label)
            if label in self.sweep and same and not self.cycles(label, producers):
                return label
        return None

    def fits_rows(self, node: Node, label: str) -> bool:
        """Tell whether a node reads the elements of a kernel's rows in the order in which the kernel has them."""
        rows, own = self.rows.get(label), self.rows_of(node)
        turned = any(name in self.turned and self.of.get(name) == label for name in node.inputs)
        return (rows is None or own is None or rows == own) and not (turned and (rows or own))

    def rows_of(self, node: Node) -> Any:
        """Return what a reduction keeps and reduces; ``None`` for an elementwise operator."""
        if OPS[node.op].kind not in ("rowwise", "reduction"):
            return None
        return kept_of(node, self.graph.tensors[node.inputs[0]].shape)

    def cycles(self, label: str, producers: Iterable[str]) -> bool:
        """Tell whether another producer has to wait for a kernel; looks ahead from it, as it is seldom far back."""
        others = set(producers) - {label}
        seen: set[str] = set()
        stack = [label] if others else []
        while stack and seen.isdisjoint(others):
            fresh = self.readers.get(stack.pop(), set()) - seen
            seen |= fresh
            stack.extend(fresh)
        return not seen.isdisjoint(others)

    def place(self, node: Node) -> Node:
        """Give a node its kernel."""
        if node is self.backward:
            self.sweep.clear()  # a compiler's forward and backward are two programs; else nothing would be recomputed
        producers = list(dict.fromkeys(self.of[name] for name in node.inputs if name in self.of))
        joins = self.host_for(node, producers) if self.fusible(node) else None
        label = joins or node.label
        if OPS[node.op].kind == "view":
            # A view belongs to nobody: its readers wait for whoever wrote the data.
            self.of.update({name: self.of[node.inputs[0]] for name in node.outputs if node.inputs[0] in self.of})
            if node.op == "permute" or node.inputs[0] in self.turned:
                self.turned.update(node.outputs)
            return node
        if self.fusible(node):
            self.sweep[label], self.count[label] = self.elements(node), node.count
            self.rows[label] = self.rows.get(label) or self.rows_of(node)
        self.of.update(dict.fromkeys(node.outputs, label))
        for other in producers:
            if other != label:
                self.readers.setdefault(other, set()).add(label)
        return node if joins is None else replace(node, kernel=joins)


def chains(graph: Graph, kinds: frozenset[str] = FUSIBLE) -> Graph:
    """Fuse chains of operators of some kinds into single kernels; those that the graph has already stay as they are.

    Raises:
        UnknownOp: A node's operator is not registered.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("norm", "fp32")
        >>> y = b.op("relu", b.op("softmax", b.op("exp", b.input("x", (8, 64)))))
        >>> [len({n.label for n in chains(b.graph([y]), kinds).nodes}) for kinds in (FUSIBLE, frozenset({"pointwise"}))]
        [1, 3]
    """
    groups = _Groups(graph, kinds)
    # What is generated frees a tensor after its last use.
    return replace(
        graph.with_info(lifetimes=Lifetimes(planned=True)), nodes=tuple(groups.place(node) for node in graph.nodes)
    )
