"""Which shown rows hand tensors to which, with hidden layers replaced by those that stand for them."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.ir.graph import Tensor
from roofline.view.listing.rows import Listed


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor from one shown row, or from outside (``source`` is ``None``), to another.

    ``is_to_next`` marks one that only exists between a block and the next equal one.
    """

    source: int | None
    target: int
    tensor: Tensor
    is_to_next: bool = False


def edges(listed: Listed) -> list[Edge]:
    """Return all edges between shown rows; weights have none, being part of the node that reads them."""
    nodes, shown = listed.graph.nodes, listed.shown
    writer = {name: shown[index] for index, node in enumerate(nodes) for name in node.outputs}
    joined: dict[tuple[int | None, int, str], Edge] = {}
    for row in listed.rows:
        for tensor in row.inputs:
            if tensor.name in writer or tensor.kind not in ("weight", "buffer"):
                source = writer.get(tensor.name)
                joined[source, row.index, tensor.name] = Edge(source, row.index, tensor)
    pairs = {(source, target) for source, target, _ in joined if source is not None}
    outputs = {row.index: row.outputs for row in listed.rows}
    for index, node in enumerate(nodes):
        for name in node.inputs if shown[index] != index else ():
            if name in writer and (writer[name], shown[index]) not in pairs:
                source, target = writer[name], shown[index]
                pairs.add((source, target))
                joined[source, target, name] = Edge(source, target, outputs[source][0], is_to_next=True)
    return list(joined.values())
