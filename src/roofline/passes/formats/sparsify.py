"""Zeros in weights: two of every four, which some chips skip, or anywhere, which none does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from roofline.ir.dtypes import DTYPES, dtype, two_of_four
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph, Node
from roofline.passes.history import order_hint
from roofline.passes.rewriting.amounts import matches

#: Matmuls that libraries run on 2:4 weights (cuSPARSELt: one structured operand of a matmul), with the axis
#: of the weight that is summed over, along which the groups of four lie.
_SUMMED = {"linear": 1, "matmul": 0}
_PATTERN = "2:4"

_UNSTRUCTURED = (
    "dense kernels multiply zeros too, so FLOPs, bytes and time stay, and memory shrinks only if weights are "
    "stored compressed"
)
_STRUCTURED = (
    "2:4 sparse weights are counted as dense FLOPs; only a chip with a published 2:4 peak multiplies them faster, and "
    "its kernels reach less of that peak than dense kernels of theirs"
)
_MISSING = (
    "matmul with weights of its own that could be 2:4 sparse (tables that rows are looked up in and "
    "convolutions stay dense)"
)


def sparsify(graph: Graph, sparsity: str | float, where: Sequence[str]) -> Graph:
    """Store the weights of matmuls two of four, or note that zeros anywhere change nothing.

    Args:
        graph: The program.
        sparsity: ``"2:4"``, or the share of zeros between 0 and 1.
        where: Patterns over node names.

    Raises:
        UsageError: Another pattern, no weight that could, or formats that have no such kernels.
    """
    if isinstance(sparsity, float) and 0 < sparsity < 1:
        return graph.with_notes(f"{sparsity:.0%} zeros without a pattern: {_UNSTRUCTURED}")
    if sparsity != _PATTERN:
        near = did_you_mean(str(sparsity), [_PATTERN])
        raise UsageError(f"sparsity={sparsity!r}; allowed: '2:4', or a share of zeros above 0 and below 1{near}")
    chosen = _weights(graph, where)
    if not chosen:
        raise UsageError(f"{graph.name}: where={'|'.join(where)!r} has no {_MISSING}{order_hint(graph, 'prune')}")
    tensors = [replace(graph.tensors[name], dtype=_stored(graph, name)) for name in chosen]
    dense = [node.name for node in graph.nodes if node.op in ("conv2d", "conv1d", "conv3d", "expert_linear")
             and matches(node.name, where)]  # fmt: skip
    graph = graph.with_tensors(tensors).with_notes(_STRUCTURED)
    return graph.with_notes(f"{dense[0]} and the like stay dense: 2:4 kernels multiply matrices") if dense else graph


def _weights(graph: Graph, where: Sequence[str]) -> list[str]:
    """Weights that only matmuls read, and whose summed axis comes in fours; with the views that turn them."""
    turned = {node.outputs[0]: node for node in graph.nodes if node.op == "permute"}
    weights: dict[str, None] = {}
    for node in graph.nodes:
        if node.op in _SUMMED and matches(node.name, where) and len(node.inputs) > 1:
            chain = [node.inputs[1]]
            while chain[-1] in turned:
                chain.append(turned[chain[-1]].inputs[0])
            size = graph.tensors[chain[0]].shape[_SUMMED[node.op]]
            fours = isinstance(size, int) and size % 4 == 0
            if fours and graph.tensors[chain[-1]].kind == "weight" and all(_alone(graph, name) for name in chain):
                weights.update(dict.fromkeys(chain))
    return list(weights)


def _alone(graph: Graph, name: str) -> bool:
    """Tell whether matmuls read a tensor as their weights, and nothing else does but a view on the way there."""
    readers: tuple[Node, ...] = graph.consumers[name]
    views = [reader for reader in readers if reader.op == "permute"]
    matmuls = [reader for reader in readers if reader.op in _SUMMED and reader.inputs[1] == name]
    return len(views) + len(matmuls) == len(readers) and len(views) <= 1 and (not views or not matmuls)


def _stored(graph: Graph, name: str) -> str:
    base = graph.tensors[name].dtype
    if two_of_four(f"{base}-2:4") is None:
        fitting = [each for each in DTYPES if two_of_four(f"{each}-2:4") is not None]
        raise UsageError(f"{name}: weights in {base} have no 2:4 kernels; allowed: {', '.join(fitting)}")
    return dtype(f"{base}-2:4").name
