"""Calls of modules, told by the scopes of nodes, and the tensors that they are given."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from roofline.ir.graph import Graph, Node
from roofline.ops.aliases import aliases


def arguments(graph: Graph) -> Iterator[tuple[str, int]]:
    """Yield tensors that the modules of a forward are given, each with the last node of the outermost such call.

    PyTorch refers to the arguments of a module until its forward has returned: ``_call_impl`` of
    https://github.com/pytorch/pytorch/blob/v2.11.0/torch/nn/modules/module.py.
    """
    root, nodes = aliases(graph).root, graph.nodes
    starts = _bounds(nodes)
    ends = [[len(nodes) - 1 - at for at in bounds] for bounds in reversed(_bounds(nodes[::-1]))]
    made = {name: at for at, node in enumerate(nodes) for name in node.outputs}
    for at, node in enumerate(nodes):
        for name in node.inputs if node.phase == "forward" else ():
            calls = (end for start, end in zip(starts[at], ends[at], strict=True) if start > made.get(root(name), at))
            end = next(calls, at)
            if end > at:
                yield name, end


def _bounds(nodes: Sequence[Node]) -> list[list[int]]:
    """Return where the calls that a node is in begin, outermost first, for each node."""
    bounds: list[list[int]] = []
    before: list[str] = []
    for at, node in enumerate(nodes):
        path = node.scope.split(".") if node.scope else []
        same = next((depth for depth, (a, b) in enumerate(zip(path, before, strict=False)) if a != b),
                    min(len(path), len(before)))  # fmt: skip
        bounds.append([*(bounds[-1][:same] if bounds else []), *[at] * (len(path) - same)])
        before = path
    return bounds
