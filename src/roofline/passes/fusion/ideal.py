"""The bound of what fusing can save: everything around a contraction in its kernel, whatever the chip could hold.

Rows of any length, tiles of any shape and registers without end: no compiler makes these kernels. What they move is the
least that any grouping with one contraction a kernel moves here: each input in once, each output out once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from roofline.ir.graph import Graph, Lifetimes, Node
from roofline.ops.aliases import aliases
from roofline.ops.registry import OPS, get_op
from roofline.passes.fusion.chains import chains
from roofline.passes.fusion.flash import flash
from roofline.passes.fusion.inductor import inductor
from roofline.passes.fusion.order import Order
from roofline.passes.history import graph_pass

#: What joins others freely: at most one kernel of any other kind is in a group.
_FREE = frozenset({"pointwise", "rowwise", "reduction", "move"})
#: Moves that are a program's own affair, and scans whose chunks are matmuls.
_ALONE = frozenset({"unknown", "ssd_scan", "delta_scan"})


@graph_pass
def ideal(graph: Graph) -> Graph:
    """Fuse whatever lies around a contraction into its kernel: the bound of what fusing can save.

    Starts from the kernels of all other policies together, so that it never moves more bytes than any of them; then
    joins elementwise and row-wise work, gathers and copies with each other, with the contraction that they follow and
    with the one that they feed. FLOPs and outputs stay.

    Args:
        graph: The program; kernels that it has already stay whole.

    Raises:
        UnknownOp: A node's operator is not registered.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> from roofline import count
        >>> b = Builder("mlp", "fp32")
        >>> h = b.op("gelu", b.op("linear", b.input("x", (64, 256)), b.weight("up", (1024, 256))))
        >>> y = b.op("linear", h, b.weight("down", (256, 1024)))
        >>> count(chains(b.graph([y]))).launches, count(ideal(b.graph([y]))).launches
        (3, 2)
    """
    groups = _Groups(graph)
    pointwise = chains(graph, frozenset({"pointwise"}))
    for policy in (graph, pointwise, chains(graph), inductor(graph), flash(graph)):
        groups.adopt(policy)
    groups.join_free()
    groups.join_contractions()
    nodes = tuple(groups.labelled(at, node) for at, node in enumerate(graph.nodes))
    return replace(graph.with_info(lifetimes=Lifetimes(planned=True)), nodes=nodes)


class _Groups:
    """Kernels in the making, by the place of their first node."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.free = [get_op(node.op, node.name).kind in _FREE and node.op not in _ALONE for node in graph.nodes]
        self.real = [OPS[node.op].kind != "view" for node in graph.nodes]
        self.order = Order(self._waits())

    def _waits(self) -> list[set[int]]:
        """For each node whom it waits for; a view belongs to nobody, its readers wait for who wrote the data."""
        base, place = aliases(self.graph).base, {node.name: at for at, node in enumerate(self.graph.nodes)}
        writer = {name: place[node.name] for name, node in self.graph.producer.items()}
        return [
            {writer[base(name)] for name in node.inputs if base(name) in writer} if real else set()
            for node, real in zip(self.graph.nodes, self.real, strict=True)
        ]

    # --- joining ------------------------------------------------------------------------------------------------------

    def adopt(self, graph: Graph) -> None:
        """Join what shares a kernel in another grouping of the same nodes."""
        first: dict[str, int] = {}
        for at, node in enumerate(graph.nodes):
            if self.real[at]:
                self.join(first.setdefault(node.label, at), at)

    def join(self, a: int, b: int) -> None:
        """Make two groups one, and with them whatever lies between: they would wait for each other otherwise."""
        a, b = self.order.find(a), self.order.find(b)
        if a != b:
            between = self.order.between(a, b)
            # Loops of other lengths cannot join; then the bound stands for kernels that no order of launches gives.
            same = all(self.count(other) == self.count(a) for other in between)
            members = {a, b, *(between if same else ())}
            free = all(self.free[at] for at in members)
            self.free[self.order.join(members)] = free

    def count(self, at: int) -> int:
        """Return how often a group runs."""
        return self.graph.nodes[at].count

    def groups(self) -> list[int]:
        """All groups, in order of their first nodes."""
        return [at for at, real in enumerate(self.real) if real and self.order.find(at) == at]

    def near(self, at: int, sides: Sequence[set[int]], latest: bool) -> list[int]:
        """Groups that a group reads from, or that read from it."""
        return sorted({self.order.find(other) for other in sides[self.order.find(at)]}, reverse=latest)

    def join_free(self) -> None:
        """Join groups without contractions with those that they read from."""
        for at in self.groups():
            for other in self.near(at, self.order.before, latest=True) if self.free[at] else ():
                if self.free[self.order.find(other)]:
                    self._join_if_possible(at, other)

    def join_contractions(self) -> None:
        """Join what is left with the latest contraction that it reads from, else with the first that reads from it."""
        for sides, latest in ((self.order.before, True), (self.order.after, False)):
            for at in self.groups():
                if self.order.find(at) == at and self.free[at]:
                    others = self.near(at, sides, latest)
                    any(self._takes(other) and self._join_if_possible(at, other) for other in others)

    def _takes(self, at: int) -> bool:
        """Tell whether a kernel is a contraction: not a collective, and no unknown operation."""
        node = self.graph.nodes[at]
        return not self.free[at] and OPS[node.op].kind not in ("network", "transfer") and node.op != "unknown"

    def _join_if_possible(self, a: int, b: int) -> bool:
        """Join two groups that run equally often, unless something between them would wait."""
        a, b = self.order.find(a), self.order.find(b)
        possible = a != b and self.count(a) == self.count(b) and not self.order.between(a, b)
        if possible:
            self.join(a, b)
        return possible

    def labelled(self, at: int, node: Node) -> Node:
        """A node under the label of its group."""
        label = self.graph.nodes[self.order.find(at)].label if self.real[at] else node.label
        return node if label == node.label else replace(node, kernel=label)
