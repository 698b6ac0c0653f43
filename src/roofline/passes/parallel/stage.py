"""Cut a graph into the stages of a pipeline."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Node, Tensor, once_per_graph
from roofline.ir.sizes import python_number
from roofline.ops.builder import Builder
from roofline.passes.history import added_for_training, graph_pass


def stages(graph: Graph, pp: int, *, weights: Mapping[str, float] | None = None, nodes: int = 1) -> tuple[Graph, ...]:
    """Cut a graph into pipeline stages, each a graph of its own.

    Whole layers (``layers.3``, ``h.3``, ``stage2.0``) go to a stage, the same number to each or one more to those in
    the middle; what comes before the first layer goes to the first stage and what comes after the last to the last.
    What a stage computes and a later one reads is sent on, stage by stage. No kernel is cut in two.

    Args:
        graph: The program.
        pp: How many stages.
        weights: Work of nodes by name, to balance by instead of layers; needed for a graph without layers.
        nodes: 2 where the next stage is in another node of the cluster, which sends are told.

    Returns:
        The stages in order; their FLOPs add up to the graph's, and their weights too but for those that several
        stages read (a tied embedding table), which each of them holds.

    Raises:
        UsageError: More stages than layers, or neither layers nor weights.

    Example:
        >>> import roofline as rl
        >>> first, last = stages(rl.model("gpt2", phase="prefill"), 2)
        >>> first, [node.op for node in first.nodes][-1]
        (<Graph gpt2 prefill, stage 1 of 2: 172 nodes, 81,911,040 parameters, sizes B, S>, 'send')
        >>> last.info.notes
        ('embed.weight is replicated on stages 1 and 2',)
    """
    pp = python_number(pp)
    return tuple(
        stage(graph, pp, at, weights=weights, nodes=nodes) for at in range(max(pp, 1) if isinstance(pp, int) else 1)
    )


@graph_pass
def stage(graph: Graph, pp: int, index: int, *, weights: Mapping[str, float] | None = None, nodes: int = 1) -> Graph:
    """Cut out one stage of those that :func:`stages` cuts.

    Args:
        graph: The program.
        pp: How many stages.
        index: Which, from 0.
        weights: Work of nodes by name, to balance by instead of layers.
        nodes: 2 where the next stage is in another node.

    Returns:
        The program of that stage, with what it sends.

    Raises:
        UsageError: More stages than layers, neither layers nor weights, no such stage, or a program that cannot be cut
            any more.

    Example:
        >>> import roofline as rl
        >>> stage(rl.model("gpt2", phase="prefill"), 2, 0).history
        (stage(pp=2, index=0),)
    """
    if pp == 1 and index == 0:
        return graph
    _refuse(graph)
    pp, index = python_number(pp), python_number(index)
    cuts = _known_cuts(graph, pp) if weights is None else _cuts(graph, pp, weights)
    if not 0 <= index < pp:
        raise UsageError(f"{graph.name}: stage {index} of {pp}; allowed: 0 to {pp - 1}")
    ends = [0, *cuts, len(graph.nodes)]
    arriving = _crossing(graph, ends[index]) if index else ()
    leaving = _crossing(graph, ends[index + 1]) if index + 1 < pp else ()
    own = graph.nodes[ends[index] : ends[index + 1]]
    tensors = _tensors(graph, own, arriving, leaving, ends[index] == 0)
    part = replace(graph, name=f"{graph.name}, stage {index + 1} of {pp}", tensors=tensors)
    b = Builder.of(part, nodes=own)
    sent = [b.op("send", name, name=f"{name}.sent", nodes=nodes) for name in leaving]
    written = {name for node in own for name in node.outputs}
    outputs = (*(name for name in graph.outputs if name in written), *sent)
    return _described(b.graph(outputs), graph, own, ends, index)


def _refuse(graph: Graph) -> None:
    """Refuse a program whose layers no longer stand in a row."""
    if graph.info.devices.pp > 1:
        raise UsageError(f"{graph.name} is already cut into {graph.info.devices.pp} stages; cut the whole program")
    if part := added_for_training(graph):
        raise UsageError(f"{graph.name} has its {part} already; cut the forward program into stages, then add it")


def shares(graph: Graph, pp: int) -> list[int]:
    """Layers of each of ``pp`` stages.

    Example:
        >>> import roofline as rl
        >>> shares(rl.model("gpt2", phase="prefill"), 5)
        [2, 3, 3, 2, 2]
    """
    return _shares(len(_layers(graph)), pp)


# --- where to cut ----------------------------------------------------------------------------------------------------


@once_per_graph
def _cuts_by_stages(graph: Graph) -> dict[int, list[int]]:
    """Keep where stages of whole layers begin, by how many there are; filled in on demand."""
    return {}


def _known_cuts(graph: Graph, pp: int) -> list[int]:
    """Return where stages of whole layers begin, found once for all of them."""
    if not isinstance(pp, int):  # nonsense is refused below, and equal to no number that is known
        return _cuts(graph, pp, None)
    known = _cuts_by_stages(graph)
    if pp not in known:
        known[pp] = _cuts(graph, pp, None)
    return known[pp]


def _cuts(graph: Graph, pp: int, weights: Mapping[str, float] | None) -> list[int]:
    """Return where stages begin, as indexes of nodes.

    Raises:
        UsageError: Names the nearest number of stages that there can be.
    """
    layers = _layers(graph) if weights is None else []
    if weights is None and not layers:
        raise UsageError(
            f"{graph.name}: no layers to cut at (names such as layers.0.mlp); give the work of each node by weights"
        )
    if weights is not None and not any(weights.get(node.name, 0) > 0 for node in graph.nodes):
        raise UsageError(f"{graph.name}: weights name no node that has any; they go by the names of nodes")

    def attempt(stages: int) -> list[int] | None:
        if weights is None:
            return _cuts_by_layer(graph, layers, stages)
        return _cuts_by_weight(graph, weights, stages)

    cuts = attempt(pp) if isinstance(pp, int) and pp > 0 else None
    if cuts is None:
        most = min(pp if isinstance(pp, int) else 1, len(layers) or len(graph.nodes))
        nearest = next((fewer for fewer in range(most, 1, -1) if attempt(fewer) is not None), 1)
        has = f"{len(layers)} layers" if weights is None else f"{len(graph.nodes)} nodes"
        raise UsageError(f"{graph.name}: {pp!r} pipeline stages of {has} whose kernels stay whole; nearest {nearest}")
    return cuts


def _layers(graph: Graph) -> list[int]:
    """Return where each layer begins, in the order they run."""
    starts: dict[str, int] = {}
    for at, node in enumerate(graph.nodes):
        if layer := node.layer:
            starts.setdefault(layer, at)
    return list(starts.values())


def _cuts_by_layer(graph: Graph, layers: Sequence[int], pp: int) -> list[int] | None:
    """Stages of as many layers each as can be; ``None`` where there are too few."""
    if pp > len(layers):
        return None
    begins = list(accumulate(_shares(len(layers), pp)))[:-1]
    return _allowed(graph, [layers[at] for at in begins])


def _shares(layers: int, pp: int) -> list[int]:
    """Layers of each stage; what is over goes to the middle, since the ends also hold the embedding and the head."""
    each, over = divmod(layers, pp)
    by_need = sorted(range(pp), key=lambda at: (at in (0, pp - 1), at == pp - 1))
    return [each + (at in by_need[:over]) for at in range(pp)]


def _cuts_by_weight(graph: Graph, weights: Mapping[str, float], pp: int) -> list[int] | None:
    """Stages that have their share of the work each, to the nearest node; ``None`` where they cannot."""
    before = [0.0, *accumulate(float(weights.get(node.name, 0.0)) * node.count for node in graph.nodes)]
    return _allowed(graph, [_nearest(before, before[-1] * part / pp) for part in range(1, pp)])


def _nearest(ascending: Sequence[float], value: float) -> int:
    at = bisect_left(ascending, value)
    around = [each for each in (at - 1, at) if 0 <= each < len(ascending)]
    return min(around, key=lambda each: abs(ascending[each] - value))


def _allowed(graph: Graph, targets: Sequence[int]) -> list[int] | None:
    """The nearest places at which no kernel is cut in two; ``None`` where two of them are one."""
    last = {node.label: at for at, node in enumerate(graph.nodes)}
    reach, places = -1, []
    for at, node in enumerate(graph.nodes):
        if at and reach < at:
            places.append(at)
        reach = max(reach, last[node.label])
    cuts = [places[_nearest(places, at)] for at in targets] if places or not targets else None
    return cuts if cuts is not None and len(set(cuts)) == len(targets) else None


# --- what a stage has ------------------------------------------------------------------------------------------------


def _crossing(graph: Graph, cut: int) -> tuple[str, ...]:
    """Tensors that nodes before a cut write and nodes after it read, in the order they are written."""
    read = {name for node in graph.nodes[cut:] for name in node.inputs}
    return tuple(name for node in graph.nodes[:cut] for name in node.outputs if name in read)


def _tensors(
    graph: Graph, own: Iterable[Node], arriving: Iterable[str], leaving: Iterable[str], first: bool
) -> dict[str, Tensor]:
    """The tensors of a stage: what arrives is an input, what nobody reads stays with the first stage."""
    used = {name for node in own for name in (*node.inputs, *node.outputs)} | set(arriving) | set(leaving)
    if first:
        used |= {
            name
            for name, tensor in graph.tensors.items()
            if tensor.kind != "activation" and name not in graph.consumers
        }
    received = set(arriving)

    def kept(tensor: Tensor) -> Tensor:
        return replace(tensor, kind="input") if tensor.name in received else tensor

    return {name: kept(tensor) for name, tensor in graph.tensors.items() if name in used}


def _described(part: Graph, graph: Graph, own: Sequence[Node], ends: Sequence[int], index: int) -> Graph:
    """The stage with what is known of it, which is less than of the whole model."""
    layers = len({node.layer for node in own} - {""})
    part = part.with_info(
        parameters_published=None, parameters_source="", active_parameters=None, stage=index, stages=len(ends) - 1,
        layers=graph.info.layers and (layers or graph.info.layers),
    )  # fmt: skip
    return part.with_notes(*_shared(graph, own, ends))


def _shared(graph: Graph, own: Sequence[Node], ends: Sequence[int]) -> Iterable[str]:
    """A word for each weight of this stage that others hold too."""
    holders = _holders(graph, ends)
    for name in dict.fromkeys(name for node in own for name in node.inputs):
        at = holders.get(name, ())
        if len(at) > 1:
            yield f"{name} is replicated on stages {' and '.join(str(stage + 1) for stage in at)}"


def _holders(graph: Graph, ends: Sequence[int]) -> dict[str, tuple[int, ...]]:
    """For each weight, the stages that read it."""
    holders: dict[str, dict[int, None]] = {}
    for at, (begin, end) in enumerate(pairwise(ends)):
        for node in graph.nodes[begin:end]:
            for name in node.inputs:
                if graph.tensors[name].kind in ("weight", "buffer"):
                    holders.setdefault(name, {})[at] = None
    return {name: tuple(stages) for name, stages in holders.items()}
