"""Compute something again where it is read, instead of writing it out and reading it back."""

from __future__ import annotations

from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph, Node
from roofline.ops.aliases import is_view
from roofline.ops.builder import Builder
from roofline.passes.history import graph_pass


@graph_pass
def inline(graph: Graph, node: str) -> Graph:
    """Compute a node again inside every kernel that reads it.

    Its result is no longer moved; its inputs are read, and its arithmetic done, once per reader. FLOPs grow where
    several kernels read it.

    Raises:
        UsageError: No such node, nothing reads it, or a reader runs another number of times.
        UnknownOp: A node's operator is not registered.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> from roofline import count
        >>> b = Builder("shared", "fp32")
        >>> h = b.op("elementwise", b.input("x", (1000,)), name="h", flops=200)
        >>> graph = b.graph([b.op("relu", h), b.op("exp", h)])
        >>> [(c.bytes, c.vector_flops) for c in (count(graph), count(inline(graph, "h")))]
        [(24000, 201000), (16000, 401000)]
    """
    named = {other.name: other for other in graph.nodes}
    if node not in named:
        raise UsageError(f"{graph.name} has no node {node[:60]!r}{did_you_mean(node, named)}")
    copies = _Copies(graph, named[node])
    readers = [other for other in graph.nodes if other.name not in copies.of and copies.reads(other)]
    if not readers:
        raise UsageError(f"{graph.name}: nothing reads {node!r}; there is no kernel to compute it in")
    for reader in readers:
        copies.put_before(reader)
    return copies.graph()


class _Copies:
    """Copies of a node and of the views of its result, one per kernel that reads them."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.before, self.node, self.b = graph, node, Builder.of(graph)
        self.of: dict[str, Node] = {node.name: node}
        self.made: dict[str, Node] = dict.fromkeys(node.outputs, node)
        self.copied: dict[tuple[str, str], str] = {}
        for other in graph.nodes:
            if is_view(other) and other.inputs[0] in self.made:
                self.of[other.name] = other
                self.made.update(dict.fromkeys(other.outputs, other))

    def reads(self, node: Node) -> bool:
        return not self.made.keys().isdisjoint(node.inputs)

    def put_before(self, reader: Node) -> None:
        """Let a node read copies, which its kernel computes."""
        with self.b.before(reader):
            inputs = tuple(self._copy(name, reader) if name in self.made else name for name in reader.inputs)
        self.b.change(reader, inputs=inputs)

    def _copy(self, name: str, reader: Node) -> str:
        """The copy of a tensor for one reader, unless its kernel has it."""
        if (name, reader.label) in self.copied:
            return self.copied[name, reader.label]
        if self.node.count != reader.count:
            raise UsageError(
                f"{self.node.name} and its reader {reader.name} run {self.node.count} and {reader.count} times; "
                "only nodes that run equally often can share a kernel"
            )
        maker, old = self.made[name], self.b.tensor(name)
        inputs = maker.inputs
        if maker is not self.node:
            inputs = (self._copy(inputs[0], reader), *inputs[1:])
        with self.b.inside(maker.kernel if is_view(maker) else reader.label):
            copy = self.b.op(maker.op, *inputs, name=f"{name}@{reader.label}", dtype=old.dtype, count=maker.count,
                             **dict(maker.attrs))  # fmt: skip
        self.b.restate(copy, old.shape)
        self.copied[name, reader.label] = copy
        return copy

    def graph(self) -> Graph:
        """The program; the original stays only where its result outlives the run."""
        if self.made.keys().isdisjoint(self.before.outputs):
            self.b.drop(*self.of.values())
        return self.b.graph()
