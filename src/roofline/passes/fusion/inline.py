"""Compute something again where it is read, instead of writing it out and reading it back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph, Node, Tensor
from roofline.ops.registry import OPS, get_op
from roofline.passes.history import recorded


@recorded
def inline(graph: Graph, node: str) -> Graph:
    """Compute a node again inside every kernel that reads it.

    Its result is no longer moved; its inputs are read, and its arithmetic done, once a reader. FLOPs grow where
    several kernels read it.

    Args:
        graph: The program.
        node: Name of the node.

    Raises:
        UsageError: No such node, nothing reads it, or a reader runs another number of times.
        UnknownOp: A node's operator is not registered.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> from roofline.counting.counts import count
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
    nodes = tuple(made for other in graph.nodes for made in copies.around(other))
    if not copies.tensors:
        raise UsageError(f"{graph.name}: nothing reads {node!r}; there is no kernel to compute it in")
    return replace(graph, tensors={**graph.tensors, **copies.tensors}, nodes=nodes).validate()


class _Copies:
    """Copies of a node and of the views of its result, one a kernel that reads them."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node
        self.tensors: dict[str, Tensor] = {}
        self.made: dict[str, Node] = dict.fromkeys(node.outputs, node)
        for other in graph.nodes:
            if get_op(other.op, other.name).kind == "view" and other.inputs[0] in self.made:
                self.made.update(dict.fromkeys(other.outputs, other))

    def around(self, other: Node) -> Iterator[Node]:
        """A node, with the copies that it reads before it; the original only where its result outlives the run."""
        if other.outputs[0] in self.made:
            if not self.made.keys().isdisjoint(self.graph.outputs):
                yield other
            return
        read = [name for name in dict.fromkeys(other.inputs) if name in self.made]
        for name in read:
            yield from self._copy(name, other)
        yield replace(other, inputs=tuple(self._name(n, other) if n in read else n for n in other.inputs))

    def _name(self, tensor: str, reader: Node) -> str:
        return f"{tensor}@{reader.label}"

    def _copy(self, name: str, reader: Node) -> Iterator[Node]:
        """The copy of what makes a tensor, for one reader, unless its kernel has it."""
        copied = self._name(name, reader)
        if copied in self.tensors:
            return
        if self.node.count != reader.count:
            raise UsageError(
                f"{self.node.name} and its reader {reader.name} run {self.node.count} and {reader.count} times; "
                "only nodes that run equally often share a kernel"
            )
        maker = self.made[name]
        inputs = maker.inputs
        if maker is not self.node:
            yield from self._copy(inputs[0], reader)
            inputs = (self._name(inputs[0], reader), *inputs[1:])
        outputs = tuple(self._name(made, reader) for made in maker.outputs)
        for made, to in zip(maker.outputs, outputs, strict=True):
            self.tensors[to] = replace(self.graph.tensors[made], name=to)
        label = maker.kernel if OPS[maker.op].kind == "view" else reader.label
        yield replace(maker, name=f"{maker.name}@{reader.label}", inputs=inputs, outputs=outputs, kernel=label)
