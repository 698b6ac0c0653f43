"""Quantisation rewriter: tensors in other formats, and conversions in front of the nodes that read them."""

from __future__ import annotations

from typing import Any

from roofline.ir.graph import Graph, Node
from roofline.ops.aliases import aliases
from roofline.ops.builder import Builder
from roofline.ops.registry import OPS, node_work
from roofline.passes.formats.scales import operations


class Rewriter:
    """A program in the making.

    Args:
        graph: The program before.
        way: Where narrow operands are dequantised: ``fused``, ``separate`` or ``tinygemm``.
        scales: ``dynamic`` or ``static``.
    """

    def __init__(self, graph: Graph, way: str, scales: str) -> None:
        self.before, self.way, self.scales = graph, way, scales
        self.b = Builder.of(graph)
        self.notes: dict[str, None] = {}
        self._converted: dict[tuple[str, ...], str] = {}
        self._changed = False

    def graph(self) -> Graph:
        """Return the result; the graph itself where nothing changed."""
        return self.b.graph().with_notes(*self.notes) if self._changed else self.before

    def store(self, root: str, dtype: str) -> None:
        """Give a tensor, its views and what is updated in its place another format."""
        self._changed = True
        for name in aliases(self.before).sharing(root):
            self.b.restate(name, dtype=dtype)

    def change(self, node: Node, position: int | None = None, tensor: str = "", *, kernel: str = "", compute: str = "",
               ) -> None:  # fmt: skip
        """Let a node read another tensor, run in a named kernel, or compute in another format."""
        self._changed = True
        now = self.b.node(node.name)
        inputs = tuple(tensor if at == position else name for at, name in enumerate(now.inputs))
        attrs = tuple(sorted({**dict(now.attrs), "compute": compute}.items())) if compute else now.attrs
        self.b.change(now, inputs=inputs, attrs=attrs, kernel=kernel or now.kernel)

    def dequantize(self, node: Node, position: int, dtype: str) -> None:
        """Let a node read a narrow operand through a dequantisation; once for all nodes of a kernel."""
        name = node.inputs[position]
        inside = self.way != "separate" or OPS[node.op].kind in ("attention", "move")
        key = (node.label if inside else node.name, name, dtype)
        if key not in self._converted:
            works = node_work(node, [self.before.tensors[one].shape for one in node.inputs])
            touched: dict[str, Any] = {"elements": works.reads[position]} if position in works.reads else {}
            library: dict[str, Any] = (
                {"library": self.way} if self.way == "tinygemm" and OPS[node.op].kind == "matmul" else {}
            )
            if inside:  # the label must be named once a kernel has two nodes
                self.change(node, kernel=node.label)
            with self.b.before(self.b.node(node.name)), self.b.inside(node.label if inside else ""):
                self._converted[key] = self.b.op(
                    "dequantize", name, name=f"{node.name}.dequantize", dtype=dtype, count=node.count,
                    flops=operations(self.b.tensor(name).dtype), **touched, **library,
                )  # fmt: skip
        self.change(node, position, self._converted[key])

    def quantize(self, node: Node, position: int, dtype: str, by_row: bool, kernel: str = "") -> None:
        """Let a node read a wide operand quantised; once for all nodes that read the same."""
        name = node.inputs[position]
        key = (name, dtype, kernel)
        if key not in self._converted:
            with self.b.before(self.b.node(node.name)), self.b.inside(kernel):
                self._converted[key] = self.b.op(
                    "quantize_rows" if by_row else "quantize", name, name=f"{name}.quantize", dtype=dtype,
                    count=node.count,
                )  # fmt: skip
        self.change(node, position, self._converted[key])
