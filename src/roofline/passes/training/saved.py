"""Activations that a training step keeps: what the forward wrote and the backward reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from roofline.counting.counts import kernel_boundaries, nbytes
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, check_graph, sizes_of
from roofline.ir.sizes import evaluate
from roofline.ops.registry import OPS


def saved_tensors(graph: Graph) -> dict[str, str]:
    """The stored tensors that stay between forward and backward, each with the layer whose backward reads it.

    A layer's input belongs to that layer, not to the one that wrote it; what no layer reads is under ``""``. Weights
    and inputs are stored anyway and are none of them; statistics of norms and of softmax, one number per row, are not
    counted.

    Raises:
        UsageError: It has none.
    """
    nodes = graph.nodes
    first = graph.backward_start
    if first is None:
        raise UsageError(f"{graph.name}: has no backward; add it with backward(graph)")
    scope = kernel_boundaries(graph)
    written = {scope.root(name) for node in nodes[:first] if OPS[node.op].kind != "view" for name in node.outputs}
    layers: dict[str, str] = {}
    for node in nodes[first:]:
        if OPS[node.op].kind == "view":
            continue
        for name in node.inputs:
            root = scope.root(name)
            if root in written and graph.tensors[root].kind == "activation":
                layers[root] = node.layer
    return layers


def saved(graph: Graph, **sizes: Any) -> Mapping[str, Any]:
    """Count the bytes of activations saved for the backward, by layer.

    With a GPT's dropout and written-out attention this is ``s b h (34 + 5 a s / h)`` per layer (Korthikanti et al.
    2022, arXiv 2205.05198, equation 2).

    Args:
        graph: A program with its backward, from :func:`roofline.passes.backward`.
        sizes: Values of its symbols; sizes that are not given stay symbolic.

    Returns:
        Bytes by layer, symbolic without sizes; ``""`` has what no layer reads [byte].

    Raises:
        UsageError: The graph has no backward.

    Example:
        >>> import roofline as rl
        >>> from roofline.passes.training.backward import backward
        >>> gpt = rl.model("gpt2", phase="train", dtype="fp16", attention="naive", activation="gelu", layers=2)
        >>> step = backward(gpt)
        >>> by_layer = saved(step, B=1, S=1024)
        >>> by_layer["layers.1"] == 1024 * 768 * (34 + 5 * 12 * 1024 / 768)
        True
    """
    check_graph(graph, "saved")
    totals: dict[str, Any] = {}
    for name, layer in saved_tensors(graph).items():
        totals[layer] = totals.get(layer, 0) + nbytes(graph.tensors[name])
    if not sizes:
        return totals
    return {layer: evaluate(total, sizes_of(graph, sizes)) for layer, total in totals.items()}
