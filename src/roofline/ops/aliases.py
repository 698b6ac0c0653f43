"""Alias analysis: which tensors are the same memory, by views and by updates in place."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from roofline.ir.graph import Graph, Node, once_per_graph
from roofline.ops.registry import OPS, get_op


def is_view(node: Node) -> bool:
    """Tell whether a node only looks at its input in another way."""
    return get_op(node.op, node.name).kind == "view"


def in_place(node: Node) -> bool:
    """Tell whether a node writes into the storage of an input."""
    return get_op(node.op, node.name).alias is not None and not is_view(node)


class Aliases:
    """Which tensors of a graph share storage, and which storage is written in place; from :func:`aliases`."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._base: dict[str, str] = {}
        self._root: dict[str, str] = {}
        for node in graph.nodes:
            op = get_op(node.op, node.name)
            if op.kind == "view":
                self._base.update(dict.fromkeys(node.outputs, self.base(node.inputs[0])))
            if op.alias is not None:
                self._root.update(dict.fromkeys(node.outputs, self.root(node.inputs[op.alias])))

    def base(self, name: str) -> str:
        """Return the tensor that a view looks at; itself for anything else."""
        return self._base.get(name, name)

    def root(self, name: str) -> str:
        """Return the tensor whose storage this one lives in, through views and updates in place."""
        return self._root.get(name, name)

    def sharing(self, root: str) -> tuple[str, ...]:
        """Return all tensors that live in the storage of one."""
        return self._sharing[root]

    @cached_property
    def written(self) -> frozenset[str]:
        """Storage that some node writes into in place."""
        return frozenset(self.root(name) for node in self._graph.nodes if in_place(node) for name in node.outputs)

    @cached_property
    def readers(self) -> Mapping[str, frozenset[str]]:
        """For each tensor, the kernels that read it, itself or through views; ``""`` stands for the caller."""
        readers: dict[str, set[str]] = {}
        for node in self._graph.nodes:
            if OPS[node.op].kind != "view":
                for name in node.inputs:
                    readers.setdefault(self.base(name), set()).add(node.label)
        for name in self._graph.outputs:
            readers.setdefault(self.base(name), set()).add("")
        return {name: frozenset(labels) for name, labels in readers.items()}

    @cached_property
    def _sharing(self) -> Mapping[str, tuple[str, ...]]:
        sharing: dict[str, list[str]] = {}
        for name in self._graph.tensors:
            sharing.setdefault(self.root(name), []).append(name)
        return {root: tuple(names) for root, names in sharing.items()}


@once_per_graph
def aliases(graph: Graph) -> Aliases:
    """Return which tensors of a graph share storage.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("seen", "fp32")
        >>> graph = b.graph([b.op("relu", b.op("view", b.weight("w", (4, 4)), shape=(16,), name="flat"))])
        >>> aliases(graph).root("flat"), aliases(graph).sharing("w")
        ('w', ('w', 'flat'))
    """
    return Aliases(graph)
