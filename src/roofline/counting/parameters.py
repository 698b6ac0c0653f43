"""Parameters that a token uses."""

from __future__ import annotations

from roofline.ir.graph import Graph


def active_parameters(graph: Graph) -> int:
    """Parameters that one token uses: all of them but the experts it is not sent to and what nothing reads."""
    read = {name for node in graph.nodes for name in node.inputs}
    idle: int = sum(t.numel for name, t in graph.tensors.items() if t.kind == "weight" and name not in read)
    for node in graph.nodes:
        if node.op == "expert_linear":
            top_k = dict(node.attrs)["top_k"]
            for name in node.inputs[1:]:
                tensor = graph.tensors[name]
                idle += tensor.numel * (tensor.shape[0] - top_k) // tensor.shape[0]
    return graph.parameters - idle
