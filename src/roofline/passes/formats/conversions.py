"""A program in the making: tensors in other formats, and conversions in front of the nodes that read them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from roofline.ir.graph import Graph, Node, Tensor
from roofline.ops.aliases import aliases
from roofline.ops.registry import OPS, node_work
from roofline.passes.editing import unused
from roofline.passes.formats.scales import operations


class Rewrite:
    """A graph in the making: changed formats, changed nodes, nodes put before them."""

    def __init__(self, graph: Graph, way: str, scales: str) -> None:
        self.of, self.way, self.scales = graph, way, scales
        self.tensors: dict[str, Tensor] = dict(graph.tensors)
        self.nodes: dict[str, Node] = {node.name: node for node in graph.nodes}
        self.before: dict[str, list[Node]] = {}
        self.notes: dict[str, None] = {}
        self._made: dict[tuple[str, ...], str] = {}
        self._storage = aliases(graph)
        self.changed = False

    def graph(self) -> Graph:
        """The result; the graph itself where nothing changed."""
        if not self.changed:
            return self.of
        nodes = [new for node in self.of.nodes for new in (*self.before.get(node.name, ()), self.nodes[node.name])]
        return replace(self.of, tensors=self.tensors, nodes=tuple(nodes)).with_notes(*self.notes).validate()

    def store(self, root: str, stored: str) -> None:
        """Give a tensor, its views and what is updated in its place another format."""
        self.changed = True
        for name in self._storage.sharing(root):
            self.tensors[name] = replace(self.tensors[name], dtype=stored)

    def put_before(self, node: str, added: Node, output: Tensor) -> None:
        """Add a node in front of another."""
        self.changed = True
        self.tensors[output.name] = output
        self.before.setdefault(node, []).append(added)

    def rewire(self, node: str, position: int, tensor: str) -> None:
        """Let a node read another tensor."""
        this = self.nodes[node]
        inputs = tuple(tensor if at == position else name for at, name in enumerate(this.inputs))
        self.nodes[node] = replace(this, inputs=inputs)

    def compute_in(self, node: str, arithmetic: str) -> None:
        this = self.nodes[node]
        self.nodes[node] = replace(this, attrs=_with(this.attrs, compute=arithmetic))

    def widen(self, node: Node, position: int, wide: str) -> None:
        """Let a node read a narrow operand through a dequantisation to a wide format."""
        name = node.inputs[position]
        inside = self.way != "separate" or OPS[node.op].kind in ("attention", "move")
        made = (node.label, name, wide) if inside else (node.name, name, wide)
        if made not in self._made:
            self._made[made] = self._dequantize(node, position, wide, inside)
        self.rewire(node.name, position, self._made[made])

    def _dequantize(self, node: Node, position: int, wide: str, inside: bool) -> str:
        name = node.inputs[position]
        narrow = self.tensors[name]
        new = unused(f"{node.name}.dequantize", self.tensors)
        works = node_work(node, [self.of.tensors[one].shape for one in node.inputs])
        touched = {"elements": works.reads[position]} if position in works.reads else {}
        library = {"library": self.way} if self.way == "tinygemm" and OPS[node.op].kind == "matmul" else {}
        attrs = _with((), flops=operations(narrow.dtype), **touched, **library)
        kernel = node.label if inside else ""
        added = Node(new, "dequantize", (name,), (new,), attrs, kernel, node.count, node.scope)
        if inside:  # the label must be said once a kernel has two nodes
            self.nodes[node.name] = replace(self.nodes[node.name], kernel=node.label)
        self.put_before(node.name, added, Tensor(new, narrow.shape, wide))
        return new

    def narrow(self, node: Node, position: int, stored: str, by_row: bool, kernel: str = "") -> None:
        """Let a node read a wide operand quantised; once for all nodes that read the same."""
        name = node.inputs[position]
        made = (name, stored, kernel)
        if made not in self._made:
            new = unused(f"{name}.quantize", self.tensors)
            operator = "quantize_rows" if by_row else "quantize"
            added = Node(new, operator, (name,), (new,), (), kernel, node.count, node.scope)
            self.put_before(node.name, added, Tensor(new, self.tensors[name].shape, stored))
            self._made[made] = new
        self.rewire(node.name, position, self._made[made])


def _with(attrs: tuple[tuple[str, Any], ...], **more: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted({**dict(attrs), **more}.items()))
