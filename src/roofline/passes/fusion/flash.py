"""Attention as one kernel: the scores stay on the chip (Dao et al. 2022, FlashAttention, arXiv 2205.14135).

Found wherever a program has it: as attention scores, softmax and values, or as two matmuls with a softmax
between them, whole or taken apart, with scale, mask, bias and dropout around it. Relabelling only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from roofline.ir.graph import Graph, Node
from roofline.ops.aliases import is_view
from roofline.ops.registry import OPS
from roofline.passes.history import graph_pass

#: Matmuls that attention may begin with, and end with.
_SCORES = frozenset({"attention_scores", "bmm", "matmul"})
_VALUES = frozenset({"attention_values", "bmm", "matmul"})
#: What may lie between them: a softmax, or the steps that one is made of.
_BETWEEN = frozenset({"pointwise", "rowwise", "reduction", "move", "view"})
_SOFTMAX = frozenset({"softmax", "attention_softmax"})
#: Operators between the two matmuls at most: a softmax taken apart, scale, bias, mask, cap, casts, dropout.
_MAX_BETWEEN = 32


@graph_pass
def flash(graph: Graph) -> Graph:
    """Give each attention, from the scores to the values, one kernel.

    FLOPs and outputs stay; bytes never grow: where nobody else reads the scores and probabilities they are not moved.

    Returns:
        The graph itself where no attention is in parts.

    Raises:
        UnknownOp: A node's operator is not registered.

    Example:
        >>> import roofline as rl
        >>> naive = rl.workload([dict(op="attention_naive", batch=1, heads=8, q_len=512, kv_len=512, head_dim=64)])
        >>> rl.count(naive).launches, rl.count(flash(naive)).launches
        (4, 1)
    """
    labels: dict[str, str] = {}
    for chain in attentions(graph):
        if _may_join(graph, chain, labels):
            labels.update({part.name: f"{chain[0].name}.flash" for part in chain})
    if not labels:
        return graph
    nodes = tuple(replace(node, kernel=labels.get(node.name, node.kernel)) for node in graph.nodes)
    return replace(graph, nodes=nodes)


def attentions(graph: Graph) -> Iterator[tuple[Node, ...]]:
    """The attentions of a program: their operators from the scores to the values, views left out."""
    for node in graph.nodes:
        if node.op in _SCORES and (chain := _attention_from(graph, node)):
            yield chain


def _attention_from(graph: Graph, scores: Node) -> tuple[Node, ...]:
    """The operators of an attention that begins with this matmul, views left out; none where it is no attention."""
    between: dict[str, Node] = {}
    ends: dict[str, Node] = {}
    fresh, made = [scores], set(scores.outputs)
    while fresh:
        for name in fresh.pop().outputs:
            readers = graph.consumers.get(name, ())
            if name in graph.outputs or not readers:
                return ()
            for reader in readers:
                if reader.op in _VALUES:
                    ends[reader.name] = reader
                elif OPS[reader.op].kind not in _BETWEEN or len(between) > _MAX_BETWEEN:
                    return ()
                elif reader.name not in between:
                    between[reader.name] = reader
                    made.update(reader.outputs)
                    fresh.append(reader)
    if len(ends) != 1 or not _is_softmax(between):
        return ()
    (values,) = ends.values()
    if values.inputs[0] not in made or values.inputs[1] in made:
        return ()
    return (scores, *(node for node in between.values() if OPS[node.op].kind != "view"), values)


def _is_softmax(between: Mapping[str, Node]) -> bool:
    """A softmax, or an exponential between two reductions."""
    ops = [node.op for node in between.values()]
    reduces = sum(OPS[op].kind == "reduction" for op in ops)
    return not _SOFTMAX.isdisjoint(ops) or ("exp" in ops and reduces > 0)


def _may_join(graph: Graph, chain: tuple[Node, ...], labels: Mapping[str, str]) -> bool:
    """Tell whether the operators run in separate kernels that hold nothing else, and equally often."""
    names = {node.name for node in chain}
    apart = len({node.label for node in chain}) > 1
    whole = all(other.name in names or is_view(other) for node in chain for other in graph.kernels[node.label])
    return apart and whole and len({node.count for node in chain}) == 1 and names.isdisjoint(labels)
