"""A program on the devices of a pipeline, as one batch passes them one after the other."""

from __future__ import annotations

from dataclasses import replace

from roofline.ir.graph import Graph
from roofline.ops.builder import Builder
from roofline.passes.history import graph_pass
from roofline.passes.parallel.stage import stages


@graph_pass
def pipelined(graph: Graph, pp: int, *, nodes: int = 1) -> Graph:
    """Put the stages of a pipeline in a row, with what each sends to the next.

    The time is the latency of one batch; ``pp`` of them under way at once come out ``pp`` times as often, if the
    stages take equally long. The memory is that of the stage that stores most.

    Args:
        graph: The program.
        pp: How many stages.
        nodes: 2 where the next stage is in another node of the cluster.

    Returns:
        The program with its sends; ``info.pipeline`` has the stages.

    Raises:
        UsageError: More stages than layers.

    Example:
        >>> import roofline as rl
        >>> whole = rl.model("llama-3-70b", phase="decode")
        >>> parts = pipelined(whole, 4)
        >>> [node.inputs[0] for node in parts.nodes if node.op == "send"]
        ['layers.19.mlp.residual', 'layers.39.mlp.residual', 'layers.59.mlp.residual']
    """
    if pp == 1:
        return graph
    parts = stages(graph, pp, nodes=nodes)
    b, now = Builder.of(graph, nodes=()), dict[str, str]()
    for part in parts:
        sent: dict[str, str] = {}
        for node in part.nodes:
            inputs = tuple(now.get(name, name) for name in node.inputs)
            if node.op == "send":  # what passes through a stage is sent once more, under another name
                sent[node.inputs[0]] = b.op("send", *inputs, name=node.name, nodes=nodes)
            else:
                b.place(replace(node, inputs=inputs))
        now.update(sent)
    note = f"one batch in {pp} stages, one after the other; memory is that of the largest stage"
    whole = b.graph(now.get(name, name) for name in graph.outputs)
    return whole.with_info(pipeline=parts, pp=pp).with_notes(note)
