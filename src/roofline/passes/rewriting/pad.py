"""Pad matrix products to aligned rows, as a compiler does (torch.compile's shape padding)."""

from __future__ import annotations

from dataclasses import replace

from roofline.ir.graph import Graph, Node
from roofline.ops.registry import OPS
from roofline.passes.history import recorded


@recorded
def pad(graph: Graph) -> Graph:
    """Mark every matrix product as padded: its kernel may load whole rows whatever their length.

    FLOPs, bytes and outputs stay; only the time model reads the mark.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("head", "bf16")
        >>> y = b.op("linear", b.input("x", (8, 768)), b.weight("w", (50257, 768)))
        >>> dict(pad(b.graph([y])).nodes[0].attrs)
        {'padded': True}
    """
    return replace(graph, nodes=tuple(_padded(node) for node in graph.nodes))


def _padded(node: Node) -> Node:
    if OPS[node.op].kind not in ("matmul", "attention") or node.op == "attention_softmax":
        return node
    return replace(node, attrs=tuple(sorted({**dict(node.attrs), "padded": True}.items())))
