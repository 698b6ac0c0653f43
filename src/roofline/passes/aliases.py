"""Which tensors are the same memory: views, and what is updated in place."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from roofline.ir.graph import Graph, Node
from roofline.ops.registry import get_op


def is_view(node: Node) -> bool:
    """Whether a node only looks at its input in another way."""
    return get_op(node.op, node.name).kind == "view"


def in_place(node: Node) -> bool:
    """Whether a node writes into the storage of an input."""
    return get_op(node.op, node.name).alias is not None and not is_view(node)


class Storage:
    """Which tensors of a graph share storage, and which of it is written in place.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("seen", "fp32")
        >>> graph = b.graph([b.op("relu", b.op("view", b.weight("w", (4, 4)), shape=(16,), name="flat"))])
        >>> Storage(graph).root("flat"), Storage(graph).sharing("w")
        ('w', ('w', 'flat'))
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._root: dict[str, str] = {}
        for node in graph.nodes:
            alias = get_op(node.op, node.name).alias
            if alias is not None:
                self._root.update(dict.fromkeys(node.outputs, self.root(node.inputs[alias])))

    def root(self, name: str) -> str:
        """The tensor whose storage this one lives in."""
        return self._root.get(name, name)

    def sharing(self, root: str) -> tuple[str, ...]:
        """All tensors that live in the storage of one."""
        return self._sharing[root]

    @cached_property
    def written(self) -> frozenset[str]:
        """Storage that some node writes into in place."""
        return frozenset(self.root(name) for node in self._graph.nodes if in_place(node) for name in node.outputs)

    @cached_property
    def _sharing(self) -> Mapping[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for name in self._graph.tensors:
            found[self.root(name)] = (*found.get(self.root(name), ()), name)
        return found
