"""Results that keep their number format whatever the rest of the program is in, such as a loss."""

from __future__ import annotations

from dataclasses import replace

from roofline.ir.graph import Graph, Node
from roofline.ops.builder import Builder

#: The option of a node whose result stays in the format that it names.
OPTION = "keeps"


def keep_formats(graph: Graph) -> Graph:
    """Give nodes with the option ``keeps`` their format back, with a cast before them where they read another one.

    A cast that has become one of a format to itself goes.
    """
    if not any(_format(node) for node in graph.nodes):
        return graph
    b, instead = Builder.of(graph, nodes=()), dict[str, str]()
    for node in graph.nodes:
        inputs, dtype = [instead.get(name, name) for name in node.inputs], _format(node)
        if dtype and node.op == "cast" and b.tensor(inputs[0]).dtype == dtype:
            instead[node.outputs[0]] = inputs[0]
            continue
        if dtype and node.op != "cast":
            inputs = [_cast(b, name, dtype, node) for name in inputs]
        for name in node.outputs:
            b.restate(name, dtype=dtype)
        b.place(replace(node, inputs=tuple(inputs)))
    return b.graph()


def _format(node: Node) -> str:
    return str(dict(node.attrs).get(OPTION, ""))


def _cast(b: Builder, name: str, dtype: str, node: Node) -> str:
    if b.tensor(name).dtype in (dtype, "int64", "bool"):
        return name
    return b.op("cast", name, name=f"{node.name}.{dtype}", dtype=dtype, keeps=dtype)
