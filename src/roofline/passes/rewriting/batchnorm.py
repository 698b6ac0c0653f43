"""Fold batch normalisation into the weights of the layer before it, as inference does (Jacob et al. 2018, section 3.2).

At inference ``y = gamma (conv(x) + b - mean) / sqrt(var + eps) + beta`` is a convolution with the kernel ``gamma /
sqrt(var + eps)`` times the old one, and the bias ``beta + (b - mean) gamma / sqrt(var + eps)``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Node
from roofline.ops.builder import Builder
from roofline.passes.history import graph_pass
from roofline.passes.rewriting.clean import Constants, fold_constants, rewritten

#: Layers that a norm folds into, and the axis of their weight that output channels are on.
_LAYERS = {"conv1d": 0, "conv2d": 0, "conv3d": 0, "linear": 0, "conv_transpose2d": 1, "conv_transpose3d": 1}

#: Activations that libraries compute as the last step of a convolution's kernel.
_EPILOGUES = frozenset({"relu", "relu6", "silu", "sigmoid", "tanh", "hardswish", "hardsigmoid", "gelu", "clamp"})

#: Added to the variance where the norm carries no ``eps``: PyTorch's default.
_EPSILON = 1e-5


@dataclass(frozen=True, slots=True)
class _Pair:
    """A layer and the norm that is the only reader of its output."""

    layer: Node
    norm: Node


@graph_pass
def fold_batchnorm(graph: Graph, *, join: bool = False) -> Graph:
    """Fold each batch norm (at inference) into the convolution or linear layer before it.

    The norm's four vectors become one bias. What computes the new weights is kept in ``info.folded``.

    Args:
        graph: The program.
        join: Whether the activation behind the norm runs in the convolution's kernel too, as cuDNN, oneDNN and
            TensorRT do; without it stays a kernel of its own.

    Returns:
        The program without the norms that fold.

    Raises:
        UsageError: No batch norm follows a layer whose weight is its own.

    Example:
        >>> import roofline as rl
        >>> before = rl.model("resnet50")
        >>> after = fold_batchnorm(before)
        >>> sum(node.op == "batchnorm2d" for node in after.nodes), before.parameters - after.parameters
        (0, 26560)
    """
    pairs, left = _pairs(graph)
    if not pairs:
        raise UsageError(f"{graph.name}: {_why_none(graph, left)}")
    b = Builder.of(graph)
    for pair in pairs:
        _fold(b, pair)
    after = fold_constants(b.graph())
    after = _joined(after, {pair.layer.name for pair in pairs}) if join else after
    rest = f"{left} batch norms stay: the layer before has other readers, or no weight of its own" if left else ""
    return rewritten(after, f"{len(pairs)} batch norms folded into the weights before them", rest)


def _why_none(graph: Graph, left: int) -> str:
    if left:
        return f"none of its {left} batch norms follows a convolution or linear layer without other readers"
    training = any(node.op == "batchnorm_train" for node in graph.nodes)
    if training:
        return "its batch norms take the statistics of the batch (training), which cannot be folded"
    return "it has no batch norm; expected batchnorm2d behind a convolution or a linear layer"


def _pairs(graph: Graph) -> tuple[list[_Pair], int]:
    """The norms to fold with their layers, and how many others there are."""
    producer, constants = graph.producer, Constants(graph)
    norms = [node for node in graph.nodes if node.op == "batchnorm2d"]
    candidates = [_Pair(producer[n.inputs[0]], n) for n in norms if n.inputs[0] in producer]
    pairs = [pair for pair in candidates if _foldable(graph, pair, constants)]
    return pairs, len(norms) - len(pairs)


def _foldable(graph: Graph, pair: _Pair, constants: Constants) -> bool:
    layer, norm = pair.layer, pair.norm
    if layer.op not in _LAYERS or len(norm.inputs) != 5 or layer.count != norm.count:
        return False
    by_row = layer.op == "linear" and len(graph.tensors[layer.outputs[0]].shape) != 2  # the norm's channels come second
    grouped = _LAYERS[layer.op] == 1 and dict(layer.attrs).get("groups", 1) != 1
    seen_once = graph.consumers[layer.outputs[0]] == (norm,) and layer.outputs[0] not in graph.outputs
    own = all(constants.owned(name, layer) for name in layer.inputs[1:])
    return seen_once and own and not by_row and not grouped and constants.kind.keys() >= set(norm.inputs[1:])


def _fold(b: Builder, pair: _Pair) -> None:
    """The norm goes; the layer, where the norm stood, writes what it wrote."""
    layer, norm = pair.layer, pair.norm
    gamma, beta, mean, variance = norm.inputs[1:]
    weight, *bias = layer.inputs[1:]

    def step(op: str, *inputs: str, name: str, **attrs: Any) -> str:
        return b.op(op, *inputs, name=f"{weight}.{name}", **attrs)

    axis, rank = _LAYERS[layer.op], len(b.shape(weight))
    channels = b.shape(weight)[axis]
    eps = dict(norm.attrs).get("eps", _EPSILON)
    with b.before(norm):
        rstd = step("rsqrt", step("add_scalar", variance, name="var_eps", value=eps), name="rstd")
        scale = step("mul", gamma, rstd, name="scale")
        by_channel = tuple(channels if at == axis else 1 for at in range(rank))
        folded = step("mul", weight, step("view", scale, name="by_channel", shape=by_channel), name="folded")
        centred = step("sub" if bias else "neg", *bias, mean, name="centred")
        shift = step("add", beta, step("mul", centred, scale, name="centred_scaled"), name="folded_bias")
        b.place(replace(layer, inputs=(layer.inputs[0], folded, shift), outputs=norm.outputs))
    b.drop(layer, norm)


def _joined(graph: Graph, layers: set[str]) -> Graph:
    """Activations that only read a folded layer, in its kernel."""
    host = {node.outputs[0]: node for node in graph.nodes if node.name in layers}

    def placed(node: Node) -> Node:
        layer = host.get(node.inputs[0]) if node.inputs else None
        fits = (
            layer is not None
            and node.op in _EPILOGUES
            and len(node.inputs) == 1
            and len(graph.kernels[node.label]) == 1
        )
        if not fits or layer is None or len(graph.consumers[node.inputs[0]]) != 1:
            return node
        return replace(node, kernel=layer.label) if node.count == layer.count else node

    return replace(graph, nodes=tuple(map(placed, graph.nodes)))
