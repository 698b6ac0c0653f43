"""Let attention see every key: the count of model cards and of FlopCounterMode, which know no masks."""

from __future__ import annotations

from dataclasses import replace

from roofline.ir.graph import Graph
from roofline.passes.history import recorded

_MASKS = frozenset({"causal", "window"})


@recorded
def unmask(graph: Graph) -> Graph:
    """Count attention as if no causal mask and no window left pairs out.

    A flash kernel skips the pairs that a mask hides, so they are neither counted nor timed. Published counts, and the
    usual MFU, have them all.

    Args:
        graph: The program.

    Example:
        >>> import roofline as rl
        >>> graph = rl.model("gpt2", phase="forward", layers=1)
        >>> full, half = (rl.count(g, B=1, S=128).flops for g in (rl.passes.unmask(graph), graph))
        >>> full - half == 2 * 768 * 128 * 127
        True
    """
    return replace(graph, nodes=tuple(
        replace(node, attrs=tuple((key, value) for key, value in node.attrs if key not in _MASKS))
        if _MASKS.intersection(dict(node.attrs)) else node
        for node in graph.nodes
    ))  # fmt: skip
