"""An all-reduce that goes on with the sum and the norm that read it, as kernels of serving stacks do."""

from __future__ import annotations

from dataclasses import replace

from roofline.ir.graph import Graph, Node
from roofline.ops.registry import OPS
from roofline.passes.history import graph_pass

#: Classes of operators that such a kernel goes on with.
_GOES_ON = frozenset({"pointwise", "rowwise", "reduction", "view"})


@graph_pass
def fuse_all_reduce(graph: Graph) -> Graph:
    """Run each all-reduce in the kernel of the residual sum and norm that follow it.

    TensorRT-LLM does so by default (``AllReduceFusionOp.RESIDUAL_RMS_NORM`` and its variants that quantise,
    https://github.com/NVIDIA/TensorRT-LLM, tensorrt_llm/functional.py). FLOPs and outputs stay; the sum over the
    devices is neither written nor read again, and a launch is saved. Apply it after :func:`roofline.passes.fuse`.

    Args:
        graph: What one device runs.

    Returns:
        The same nodes, all-reduces under the labels of the kernels that read them; the graph itself without any.

    Raises:
        UsageError: No graph: a pass takes no name.

    Example:
        >>> import roofline as rl
        >>> shard = rl.passes.fuse(rl.passes.shard(rl.model("llama-3-8b", phase="decode", layers=2), tp=2), "inductor")
        >>> rl.count(shard, B=1, C=64).launches - rl.count(fuse_all_reduce(shard), B=1, C=64).launches
        4
    """
    labels = {node.name: label for node in graph.nodes if (label := _next_kernel(graph, node))}
    if not labels:
        return graph
    nodes = (replace(node, kernel=labels.get(node.name, node.kernel)) for node in graph.nodes)
    return replace(graph, nodes=tuple(nodes))


def _next_kernel(graph: Graph, node: Node) -> str:
    """Return the label of the only kernel that reads an all-reduce, if it has no contraction; else nothing."""
    if node.op != "all_reduce" or node.kernel:
        return ""
    readers = graph.consumers.get(node.outputs[0], ())
    while len(readers) == 1 and OPS[readers[0].op].kind == "view" and not readers[0].kernel:
        readers = graph.consumers.get(readers[0].outputs[0], ())
    labels = {reader.label for reader in readers}
    label = labels.pop() if len(labels) == 1 else ""
    return label if label and all(OPS[other.op].kind in _GOES_ON for other in graph.kernels[label]) else ""
