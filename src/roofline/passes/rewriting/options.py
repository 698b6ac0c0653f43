"""Passes that change options of nodes and nothing else."""

from __future__ import annotations

from dataclasses import replace

from roofline.ir.graph import Graph, Node
from roofline.ops.registry import OPS
from roofline.passes.history import graph_pass

_MASKS = frozenset({"causal", "window"})


@graph_pass
def drop_mask(graph: Graph) -> Graph:
    """Count attention as if no causal mask and no window left pairs out, as model cards and FlopCounterMode do.

    A flash kernel skips the pairs that a mask hides, so they are neither counted nor timed. Published counts, and the
    usual MFU, have them all.

    Args:
        graph: The program.

    Returns:
        The program whose attention sees every key.

    Example:
        >>> import roofline as rl
        >>> graph = rl.model("gpt2", phase="forward", layers=1)
        >>> full, half = (rl.count(g, B=1, S=128).flops for g in (rl.passes.drop_mask(graph), graph))
        >>> full - half == 2 * 768 * 128 * 127
        True
    """

    def unmasked(node: Node) -> Node:
        attrs = tuple((key, value) for key, value in node.attrs if key not in _MASKS)
        return node if attrs == node.attrs else replace(node, attrs=attrs)

    return replace(graph, nodes=tuple(map(unmasked, graph.nodes)))


@graph_pass
def pad_matmuls(graph: Graph, *, every: bool = False) -> Graph:
    """Mark every matmul as one that torch.compile may pad: its kernel loads whole rows where that pays.

    FLOPs, bytes and outputs stay; only the time model reads the mark, and says which of them are padded.

    Args:
        graph: The program.
        every: All are padded, as by hand, whatever torch.compile would do.

    Returns:
        The program with its matmuls and attention marked.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("head", "bf16")
        >>> y = b.op("linear", b.input("x", (8, 768)), b.weight("w", (50257, 768)))
        >>> dict(pad_matmuls(b.graph([y])).nodes[0].attrs)
        {'padded': True}
    """

    mark = "every" if every else True

    def padded(node: Node) -> Node:
        if OPS[node.op].kind not in ("matmul", "attention") or node.op == "attention_softmax":
            return node
        return replace(node, attrs=tuple(sorted({**dict(node.attrs), "padded": mark}.items())))

    return replace(graph, nodes=tuple(map(padded, graph.nodes)))
