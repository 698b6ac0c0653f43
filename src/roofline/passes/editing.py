"""What rewriting passes share: a graph in which some nodes give way to others."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence
from dataclasses import replace
from itertools import chain, count
from typing import Any

from roofline.ir.errors import ShapeError
from roofline.ir.graph import Graph, Node, Tensor
from roofline.ops.registry import get_op


def unused(wanted: str, taken: Container[str]) -> str:
    """A name that nothing has yet: the wanted one, or it with a number.

    Example:
        >>> unused("y", {"x"}), unused("x", {"x", "x_2"})
        ('y', 'x_3')
    """
    names = chain([wanted], (f"{wanted}_{number}" for number in count(2)))
    return next(name for name in names if name not in taken)


class Editor:
    """Collects what is put in the place of nodes; shapes of new tensors come from the registry.

    Args:
        graph: The program before.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("one", "fp32")
        >>> y = b.op("relu", b.input("x", (8,)), name="y")
        >>> editor = Editor(b.graph([y]))
        >>> old = editor.before.nodes[0]
        >>> editor.put([editor.node("gelu", ["x"], "y", output=y)], instead_of=[old], at=old)
        >>> editor.graph().nodes[0].op
        'gelu'
    """

    def __init__(self, graph: Graph) -> None:
        self.before = graph
        self.tensors: dict[str, Tensor] = dict(graph.tensors)
        self._names = {node.name for node in graph.nodes} | set(graph.tensors)
        self._instead: dict[str, Sequence[Node]] = {}

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        name: str,
        *,
        output: str = "",
        dtype: str = "",
        kernel: str = "",
        count: int = 1,
        **attrs: Any,
    ) -> Node:
        """A new node and its output, called as the node unless told otherwise, in the format of its first input.

        Raises:
            ShapeError: The inputs contradict the operator, or a tensor that others read would change its shape.
        """
        written, spec = output or name, get_op(op, name)
        try:
            shape = spec.output([self.tensors[each].shape for each in inputs], attrs)
        except ShapeError as error:
            raise ShapeError(f"{name}: {op} {error}") from None
        old = self.before.tensors.get(written)
        if old is not None and old.shape != shape:
            raise ShapeError(f"{name}: {op} gives {list(shape)} where the program has {list(old.shape)}")
        self.tensors[written] = Tensor(written, shape, dtype or self.tensors[inputs[0]].dtype)
        return Node(
            name, op, tuple(inputs), (written,), tuple(sorted(attrs.items())), kernel, count, name.rpartition(".")[0]
        )

    def fresh(self, wanted: str) -> str:
        """A name that nothing has yet."""
        name = unused(wanted, self._names)
        self._names.add(name)
        return name

    def put(self, new: Sequence[Node], *, instead_of: Iterable[Node], at: Node) -> None:
        """Put new nodes in the place of one; it and the others, with what only they write, are gone."""
        gone = tuple(instead_of)
        kept = {name for node in new for name in node.outputs}
        for node in gone:
            self._instead[node.name] = ()
            for name in node.outputs:
                if name not in kept:
                    self.tensors.pop(name)
        self._instead[at.name] = tuple(new)

    def graph(self) -> Graph:
        """The program as it is now, validated."""
        nodes = (new for node in self.before.nodes for new in self._instead.get(node.name, (node,)))
        return replace(self.before, tensors=self.tensors).with_nodes(nodes)
