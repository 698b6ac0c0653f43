"""SmoothQuant (Xiao et al. 2022, arXiv:2211.10438): move the outliers of activations into weights, exactly.

Channel ``j`` of what matmuls read is divided by ``s_j = max|X_j|^a / max|W_j|^(1 - a)`` (their equation 4) where it is
made: in the gain of a norm, or in the rows of the matmul before; the weights that read it are multiplied by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Node
from roofline.ir.numbers import finite_number
from roofline.ops.elements import Array
from roofline.passes.formats.quantize import Matrix, weight_matrices
from roofline.quant.arrays import array, by_name, check_given

#: Operators through which a positive factor of a channel passes; a view where it leaves the last axis alone.
_THROUGH = frozenset({"relu", "identity", "dropout", "cast", "view"})
_MATRIX = 2
_NORMS = frozenset({"layernorm", "rmsnorm"})


@dataclass(frozen=True)
class Joint:
    """Matmuls that read one tensor, and what makes its channels.

    Attributes:
        made: Weights whose channels are those of the tensor, with the axis of theirs: a norm's gain and shift, or the
            matmul before with its bias.
        readers: Weights that are multiplied by it, with the axis that is summed over.
    """

    made: tuple[tuple[str, int], ...]
    readers: tuple[tuple[str, int], ...]


def smooth(
    graph: Graph, weights: Mapping[str, Any], largest: Mapping[str, Any], strength: float = 0.5
) -> dict[str, Array]:
    """Even out channels of activations before rounding them; the program computes what it did.

    Args:
        graph: The program.
        weights: Arrays by the name of a weight.
        largest: Largest magnitude of each channel that a weight is multiplied by, by its name: ``Seen.largest`` of
            :func:`roofline.quant.observe`. Weights without are left alone, with those that read the same.
        strength: How much moves, between 0 and 1: the ``a`` of the paper.

    Returns:
        All weights by name, changed where norms, or matmuls, and only matmuls read what they make.

    Raises:
        UsageError: A strength out of range, a weight without numbers, or nothing to smooth.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("block", "fp32")
        >>> n = b.op("rmsnorm", b.input("x", (4, 2)), b.weight("gain", (2,)), name="norm")
        >>> g = b.graph([b.op("linear", n, b.weight("w", (3, 2)), name="y")])
        >>> new = smooth(g, {"gain": [1.0, 1.0], "w": np.ones((3, 2))}, {"w": [100.0, 1.0]})
        >>> new["gain"].tolist(), new["w"][0].tolist()
        ([0.1, 1.0], [10.0, 1.0])
    """
    finite_number("strength", strength, 0.0, 1.0)
    result = {name: array(each, name) for name, each in by_name(weights, "weights").items()}
    chosen = [joint for joint in joints(graph) if all(name in largest for name, _ in joint.readers)]
    if not chosen:
        raise UsageError(f"{graph.name}: no norm or matmul has channels that only matmuls read; nothing to smooth")
    for joint in chosen:
        check_given(result, (name for name, _ in (*joint.made, *joint.readers)), graph.name)
        factor = _factor(joint, result, largest, strength)
        for name, axis in joint.made:
            result[name] = result[name] / _along(factor, axis, result[name].ndim)
        for name, axis in joint.readers:
            result[name] = result[name] * _along(factor, axis, result[name].ndim)
    return result


def _factor(joint: Joint, weights: Mapping[str, Array], largest: Mapping[str, Any], strength: float) -> Array:
    """The factor of each channel; 1 where either side is 0."""
    tops = [array(largest[name], name) for name, _ in joint.readers]
    columns = [np.abs(weights[name]).max(axis=1 - axis) for name, axis in joint.readers]
    inputs, outputs = np.max(tops, axis=0), np.max(columns, axis=0)
    live = (inputs > 0) & (outputs > 0)
    inputs, outputs = np.where(live, inputs, 1.0), np.where(live, outputs, 1.0)
    return np.where(live, inputs**strength / outputs ** (1 - strength), 1.0)


def _along(factor: Array, axis: int, ndim: int) -> Array:
    return factor.reshape([-1 if at == axis else 1 for at in range(ndim)])


def joints(graph: Graph) -> list[Joint]:
    """Return every tensor whose channels only matmuls read, and what makes them."""
    matrices = {matrix.node.name: matrix for matrix in weight_matrices(graph) if _is_plain(graph, matrix)}
    makers = {name: node for node in graph.nodes for name in node.outputs}
    every = []
    for name in dict.fromkeys(matrix.node.inputs[0] for matrix in matrices.values()):
        readers = [matrices.get(node.name) for node in graph.consumers[name]]
        made = _made(graph, makers, name) if name not in graph.outputs else ()
        if made and all(each is not None and each.node.inputs[0] == name for each in readers):
            every.append(Joint(made, tuple((each.root, each.summed[0]) for each in readers if each is not None)))
    return every


def _is_plain(graph: Graph, matrix: Matrix) -> bool:
    """Tell whether a matmul reads its weight as it is stored, and nobody else does."""
    node = matrix.node
    linear = node.op in ("linear", "matmul") and matrix.position == 1 and matrix.root == node.inputs[1]
    return linear and len(graph.tensors[matrix.root].shape) == _MATRIX and len(graph.consumers[matrix.root]) == 1


def _made(graph: Graph, makers: Mapping[str, Node], name: str) -> tuple[tuple[str, int], ...]:
    """The weights that scale the channels of a tensor, if scaling them changes nothing else."""
    node = makers.get(name)
    if node is None or name in graph.outputs:
        return ()
    if node.op in _THROUGH or node.op == "mul":
        sources = [each for each in node.inputs if _only_here(graph, node, each)]
        return next((made for each in sources if (made := _made(graph, makers, each))), ())
    if node.op in _NORMS:
        parts = [(each, 0) for each in node.inputs[1:]]
    elif node.op in ("linear", "matmul"):
        parts = [(node.inputs[1], int(node.op == "matmul")), *((each, 0) for each in node.inputs[2:])]
    else:
        return ()
    if node.op not in _NORMS and len(graph.tensors[parts[0][0]].shape) != _MATRIX:
        return ()
    alone = all(graph.tensors[each].kind == "weight" and len(graph.consumers[each]) == 1 for each, _ in parts)
    return tuple(parts) if parts and alone else ()


def _only_here(graph: Graph, node: Node, name: str) -> bool:
    """Tell whether a node is all that reads a tensor, once, and channel by channel."""
    width = graph.tensors[node.outputs[0]].shape[-1]
    read = graph.tensors[name].shape[-1:]
    return len(graph.consumers[name]) == 1 and node.inputs.count(name) == 1 and read == (width,)
