"""Results that keep their number format whatever the rest of the program is in, such as a loss."""

from __future__ import annotations

from dataclasses import replace

from roofline.ir.graph import Graph, Node, Tensor

#: The option of a node whose result stays in the format that it names.
OPTION = "keeps"


def keep_formats(graph: Graph) -> Graph:
    """Give nodes with the option ``keeps`` their format back, with a cast before them where they read another one.

    A cast that has become one of a format to itself goes.
    """
    if not any(_kept(node) for node in graph.nodes):
        return graph
    tensors, nodes, instead = dict(graph.tensors), list[Node](), dict[str, str]()
    for node in graph.nodes:
        inputs = tuple(instead.get(name, name) for name in node.inputs)
        kept = _kept(node)
        if kept and node.op == "cast" and tensors[inputs[0]].dtype == kept:
            instead[node.outputs[0]] = inputs[0]
            tensors.pop(node.outputs[0])
            continue
        if kept and node.op != "cast":
            inputs = tuple(_as(kept, name, node, tensors, nodes) for name in inputs)
        for name in node.outputs:
            tensors[name] = replace(tensors[name], dtype=kept or tensors[name].dtype)
        nodes.append(replace(node, inputs=inputs))
    return replace(graph, tensors=tensors, nodes=tuple(nodes))


def _kept(node: Node) -> str:
    return str(dict(node.attrs).get(OPTION, ""))


def _as(dtype: str, name: str, node: Node, tensors: dict[str, Tensor], nodes: list[Node]) -> str:
    tensor = tensors[name]
    if tensor.dtype == dtype or tensor.dtype in ("int64", "bool"):
        return name
    path = f"{node.name}.{dtype}"
    tensors[path] = Tensor(path, tensor.shape, dtype)
    nodes.append(Node(path, "cast", (name,), (path,), ((OPTION, dtype),), scope=node.scope))
    return path
