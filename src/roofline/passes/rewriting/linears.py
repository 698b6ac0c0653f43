"""Join linear layers that read the same input into one: query, key and value; gate and up (horizontal fusion)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Node
from roofline.ops.builder import Builder
from roofline.passes.history import graph_pass
from roofline.passes.rewriting.clean import Constants, fold_constants, rewritten


@graph_pass
def merge_linears(graph: Graph, where: str = "*") -> Graph:
    """Join linear layers that read the same tensor: one matmul with the joined weights, of which each gets its part.

    FLOPs stay; the input is read once instead of once per layer, and fewer, larger kernels run. The joined weights are
    put together ahead (``info.folded``) and take no more room.

    Args:
        graph: The program.
        where: Names of the layers to consider, with ``*`` and ``?`` as in file names.

    Returns:
        The program with fewer, wider linear layers.

    Raises:
        UsageError: No two of these layers read the same tensor and have weights of the same format of their own.

    Example:
        >>> import roofline as rl
        >>> before = rl.model("bert-base-uncased", layers=1)
        >>> after = merge_linears(before)
        >>> [sum(node.op == "linear" for node in graph.nodes) for graph in (before, after)]
        [7, 5]
    """
    constants = Constants(graph)
    views = {name: node for node in graph.nodes if node.op in ("view", "permute") for name in node.outputs}
    groups: dict[Any, list[Node]] = {}
    for node in graph.nodes:
        fits = node.op == "linear" and len(graph.kernels[node.label]) == 1 and fnmatchcase(node.name, where)
        if fits and all(_stored_for(graph, constants, name, node) for name in node.inputs[1:]):
            groups.setdefault(_kin(graph, views, node), []).append(node)
    joined = [group for group in groups.values() if len(group) > 1]
    if not joined:
        raise UsageError(
            f"{graph.name}: no two linear layers called {where!r} read the same tensor with weights of their own"
        )
    b = Builder.of(graph)
    for group in joined:
        _join(b, group)
    after = fold_constants(b.graph())
    return rewritten(
        after, f"{sum(map(len, joined))} linear layers joined to {len(joined)} by the input that they read"
    )


def _stored_for(graph: Graph, constants: Constants, name: str, layer: Node) -> bool:
    """Tell whether a tensor is a parameter, as it is stored, of this layer alone."""
    return graph.tensors[name].kind != "activation" and constants.owned(name, layer)


def _kin(graph: Graph, views: Mapping[str, Node], node: Node) -> Any:
    """Equal for layers that can be joined: same input (seen the same way), options, formats, with or without bias."""
    formats = tuple(graph.tensors[name].dtype for name in (*node.inputs[1:], *node.outputs))
    return _seen(views, node.inputs[0]), node.attrs, node.count, formats, graph.tensors[node.inputs[1]].shape[1:]


def _seen(views: Mapping[str, Node], name: str) -> Any:
    """Equal for tensors that are the same elements in the same order: importers give each layer a view of its own."""
    chain = []
    while name in views:
        chain.append((views[name].op, views[name].attrs))
        name = views[name].inputs[0]
    return name, tuple(chain)


def _join(b: Builder, layers: Sequence[Node]) -> None:
    """One matmul where the first layer stood, and views of its parts."""
    first, name = layers[0], _common(layers)
    parts = zip(*(node.inputs[1:] for node in layers), strict=True)
    with b.before(first):
        operands = [
            b.op("cat", *names, name=f"{name}.{part}", axis=0)
            for part, names in zip(("weight", "bias"), parts, strict=False)
        ]
        dtype = b.tensor(first.outputs[0]).dtype
        matmul = b.op("linear", first.inputs[0], *operands, name=name, dtype=dtype, count=first.count,
                       **dict(first.attrs))  # fmt: skip
        start: Any = 0
        for node in layers:
            shape = b.shape(node.outputs[0])
            b.op("slice", matmul, replacing=node, axis=len(shape) - 1, start=start, shape=shape)
            start += shape[-1]


def _common(layers: Sequence[Node]) -> str:
    """``layers.0.attn.q_k_v`` of ``layers.0.attn.q`` and its neighbours."""
    scopes, names = zip(*(node.name.rpartition(".")[::2] for node in layers), strict=True)
    last = "_".join(names) if len(names) < 5 else f"{names[0]}_to_{names[-1]}"
    return f"{scopes[0]}.{last}" if scopes[0] else last
