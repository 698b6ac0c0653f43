"""The bound of what fusing can save: everything around a contraction in its kernel, whatever the chip could hold.

Rows of any length, tiles of any shape and registers without end: no compiler makes these kernels. What they move is the
least that any grouping with one contraction a kernel moves here: each input in once, each output out once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from roofline.graph import Graph, Node
from roofline.ops import OPS, get_op
from roofline.passes.chains import chains
from roofline.passes.flash import flash
from roofline.passes.inductor import inductor
from roofline.passes.recorded import recorded

#: What joins others freely: at most one kernel of any other kind is in a group.
_FREE = frozenset({"pointwise", "rowwise", "reduction", "move"})
#: Moves that are a program's own affair, and scans whose chunks are matrix products.
_ALONE = frozenset({"unknown", "ssd_scan", "delta_scan"})


@recorded
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
        >>> from roofline.build import Builder
        >>> from roofline.count import count
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
    return replace(graph, nodes=tuple(groups.labelled(node) for node in graph.nodes))


class _Groups:
    """Kernels in the making, by the place of their first node; each knows whom it reads from and who reads from it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.place = {node.name: at for at, node in enumerate(graph.nodes)}
        self.above = list(range(len(graph.nodes)))  # union-find: the place that a place was joined to
        self.last = list(range(len(graph.nodes)))
        self.counts = [node.count for node in graph.nodes]
        self.free = [get_op(node.op, node.name).kind in _FREE and node.op not in _ALONE for node in graph.nodes]
        self.real = [OPS[node.op].kind != "view" for node in graph.nodes]
        self.before: list[set[int]] = [set() for _ in graph.nodes]
        self.after: list[set[int]] = [set() for _ in graph.nodes]
        self._connect()

    def _connect(self) -> None:
        """Who waits for whom; a view belongs to nobody, its readers wait for whoever wrote the data."""
        writer: dict[str, int] = {}
        for at, node in enumerate(self.graph.nodes):
            if not self.real[at]:
                writer.update({name: writer[node.inputs[0]] for name in node.outputs if node.inputs[0] in writer})
                continue
            for name in node.inputs:
                if name in writer:
                    self.before[at].add(writer[name])
                    self.after[writer[name]].add(at)
            writer.update(dict.fromkeys(node.outputs, at))

    def find(self, at: int) -> int:
        """The group of a place."""
        while self.above[at] != at:
            self.above[at] = at = self.above[self.above[at]]
        return at

    # --- joining ------------------------------------------------------------------------------------------------------

    def adopt(self, graph: Graph) -> None:
        """Join what shares a kernel in another grouping of the same nodes."""
        first: dict[str, int] = {}
        for at, node in enumerate(graph.nodes):
            if self.real[at]:
                self.join(first.setdefault(node.label, at), at)

    def join(self, a: int, b: int) -> None:
        """Make two groups one, and with them whatever lies between: they would wait for each other otherwise."""
        a, b = self.find(a), self.find(b)
        if a == b:
            return
        between = self.between(a, b) | self.between(b, a)
        # Loops of other lengths cannot join; then the bound stands for kernels that no order of launches gives.
        same = all(self.counts[other] == self.counts[a] for other in between)
        for other in sorted({a, b, *(between if same else ())})[1:]:
            self._absorb(min(a, b, *(between if same else ())), other)

    def _absorb(self, a: int, b: int) -> None:
        self.above[b] = a
        self.last[a] = max(self.last[a], self.last[b])
        self.free[a] = self.free[a] and self.free[b]
        for sides in (self.before, self.after):
            sides[a] = {found for other in sides[a] | sides[b] if (found := self.find(other)) != a}
            sides[b] = set()

    def between(self, a: int, b: int) -> set[int]:
        """Groups on a way from one group to another."""
        down = self._reach(a, self.after, lambda at: at <= self.last[b])
        up = self._reach(b, self.before, lambda at: self.last[at] >= a)
        return (down & up) - {a, b}

    def _reach(self, start: int, sides: Sequence[set[int]], near: Callable[[int], bool]) -> set[int]:
        seen: set[int] = set()
        stack = [start]
        while stack:
            for other in map(self.find, sides[stack.pop()]):
                if other not in seen and other != start and near(other):
                    seen.add(other)
                    stack.append(other)
        return seen

    def may_join(self, a: int, b: int) -> bool:
        """Whether two groups can be one without anything that would wait in between."""
        return self.counts[a] == self.counts[b] and not (self.between(a, b) or self.between(b, a))

    def groups(self) -> list[int]:
        """All groups, in order of their first nodes."""
        return [at for at in range(len(self.above)) if self.above[at] == at and self.real[at]]

    def join_free(self) -> None:
        """Join groups without contractions with those that they read from."""
        for at in self.groups():
            if self.free[at]:
                self._join_first(at, (other for other in sorted(self.before[at], reverse=True) if self.free[other]))

    def join_contractions(self) -> None:
        """Join what is left with the latest contraction that it reads from, else with the first that reads from it."""
        for sides, latest in ((self.before, True), (self.after, False)):
            for at in self.groups():
                if self.find(at) == at and self.free[at]:
                    others = sorted({self.find(other) for other in sides[at]}, reverse=latest)
                    self._join_first(at, [other for other in others if self._takes(other)], only_one=True)

    def _takes(self, at: int) -> bool:
        """Whether a kernel is a contraction: not one that moves data between devices, or that nobody knows."""
        node = self.graph.nodes[at]
        return not self.free[at] and OPS[node.op].kind not in ("network", "transfer") and node.op != "unknown"

    def _join_first(self, at: int, others: Iterable[int], only_one: bool = False) -> None:
        for other in others:
            a, b = self.find(at), self.find(other)
            if a != b and self.may_join(a, b):
                self.join(a, b)
                if only_one:
                    return

    def labelled(self, node: Node) -> Node:
        """A node under the label of its group."""
        at = self.place[node.name]
        label = self.graph.nodes[self.find(at)].label if self.real[at] else node.label
        return node if label == node.label else replace(node, kernel=label)
