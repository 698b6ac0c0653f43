"""Which shown rows hand tensors to which, with hidden layers replaced by those that stand for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from roofline.ir.graph import Node, Tensor
from roofline.view.listing.rows import Listed


@dataclass(frozen=True, slots=True)
class Edge:
    """A tensor from one shown row, or from outside (``source`` is ``None``), to another.

    ``again`` marks one that only exists between a block and the next equal one.
    """

    source: int | None
    target: int
    tensor: Tensor
    again: bool = False


def edges(listed: Listed) -> list[Edge]:
    """All edges between shown rows; weights are none, being part of the node that reads them."""
    found = {(edge.source, edge.target, edge.tensor.name): edge for edge in _direct(listed)}
    pairs = {(edge.source, edge.target) for edge in found.values() if edge.source is not None}
    by_index = {row.index: row for row in listed.rows}
    for source, target, name in _hidden(listed):
        if (source, target) not in pairs:
            pairs.add((source, target))
            found[source, target, name] = Edge(source, target, by_index[source].outputs[0], again=True)
    return list(found.values())


def _direct(listed: Listed) -> Iterator[Edge]:
    maker = _makers(listed)
    for row in listed.rows:
        for tensor in row.inputs:
            if tensor.name in maker:
                yield Edge(listed.shown[maker[tensor.name]], row.index, tensor)
            elif tensor.kind not in ("weight", "buffer"):
                yield Edge(None, row.index, tensor)


def _hidden(listed: Listed) -> Iterator[tuple[int, int, str]]:
    maker = _makers(listed)
    for index, node in enumerate(listed.graph.nodes):
        if listed.shown[index] != index:
            for name in node.inputs:
                if name in maker:
                    yield listed.shown[maker[name]], listed.shown[index], name


def _makers(listed: Listed) -> dict[str, int]:
    nodes: tuple[Node, ...] = listed.graph.nodes
    return {name: index for index, node in enumerate(nodes) for name in node.outputs}
