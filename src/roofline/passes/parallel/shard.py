"""Tensor, sequence, expert and vocabulary parallelism: the program that one of several devices runs.

Tensor parallelism after Shoeybi et al. 2019 (Megatron-LM): heads, inner widths and the vocabulary are cut, two
all-reduces per layer in the forward, one where attention and feed-forward stand side by side. Sequence parallelism
after Korthikanti et al. 2022: what lies between runs on a share of the positions. Expert parallelism after Lepikhin et
al. 2020 (GShard): each device holds some experts, and tokens travel to them and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from roofline.counting.counts import count_graph
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Node, Tensor
from roofline.ir.sizes import Size, ceil_div
from roofline.ops.communication import COLLECTIVES
from roofline.passes.history import added_for_training, graph_pass
from roofline.passes.parallel.axes import Atom, Axes
from roofline.passes.parallel.partitioner import LOSSES, ShardedProgram, partition
from roofline.passes.parallel.plan import ShardingPlan
from roofline.passes.parallel.sequence import sequence_parallel

#: A table with at least this share of the rows of the largest is one of the vocabulary; those of positions and
#: segments are short and stay whole.
TABLE = 0.5
#: Phases that run in serving stacks.
_SERVED = ("prefill", "decode")
#: Sizes at which the work of one device is held against that of all, and what of it is worth a word.
_TYPICAL, _NEXT_TO_NOTHING = 256, 1.1


@graph_pass
def shard(
    graph: Graph,
    *,
    tp: int = 1,
    sp: bool = False,
    ep: int = 1,
    vocab: bool = True,
    gather_logits: bool = True,
    algorithm: str | None = None,
) -> Graph:
    """Cut a program to what one of ``tp * ep`` devices runs, its collectives included.

    Args:
        graph: The program, as one device would run it.
        tp: Devices that share every layer: heads, inner widths, experts' inner widths and the vocabulary.
        sp: Run norms, dropouts and residuals on a ``tp``-th of the positions, so that all-reduces become
            reduce-scatters and all-gathers.
        ep: Groups of devices that share the experts. Sizes are then those of one group: it sends the row of each of its
            tokens to the groups that hold its ``top_k`` experts, all-to-all, gets as many (no expert is more popular
            than another) and sends them back.
        vocab: Cut embedding tables and the head by rows of the vocabulary too.
        gather_logits: Return the logits of the whole vocabulary on every device; else each returns its share. A loss
            is always worked out on shares.
        algorithm: What carries the collectives out, as for :func:`roofline.analysis.collective`; ``serving`` for a
            prefill or a decode step and ``nccl`` for all else when absent.

    Returns:
        The program of one device, with its collectives.

    Raises:
        UsageError: A number of devices that heads, widths or experts cannot be shared by, and those that can; or a
            program with nothing to share.

    Example:
        >>> import roofline as rl
        >>> half = shard(rl.model("llama-3-8b", phase="decode"), tp=2)
        >>> sum(node.op == "all_reduce" for node in half.nodes), half.parameters
        (65, 4015263744)
    """
    _check(graph, tp, sp, ep)
    if tp == ep == 1:
        return graph
    axes = Axes(graph)
    plan = ShardingPlan(axes)
    sizes = plan.sizes(tp) if tp > 1 else {}
    vocabulary = _vocabulary(plan, tp, gather_logits) if vocab and tp > 1 else Vocabulary()
    sizes.update(vocabulary.sizes)
    rows = {**vocabulary.rows, **(_experts(graph, ep) if ep > 1 else {})}
    small = axes.resize(sizes)
    small = small.with_tensors(
        [*_narrowed(small, {**_unread(small, tp), **rows}), *_narrow_heads(small, vocabulary, tp)]
    )

    def cut(name: str, axis: int) -> bool:
        return any(atom in sizes for atom in axes.atoms(name, axis))

    done = partition(ShardedProgram(small, graph, cut, tp, ep, vocabulary.heads, vocabulary.tables))
    done = _carried_out(sequence_parallel(done, tp) if sp else done, algorithm)
    return done.with_info(tp=tp, ep=ep).with_notes(*_notes(graph, done, plan, vocabulary, tp, ep))


def _carried_out(graph: Graph, algorithm: str | None) -> Graph:
    """Tell the collectives of a program what carries them out."""
    algorithm = algorithm or ("serving" if graph.info.phase in _SERVED else "")
    if not algorithm:
        return graph

    def told(node: Node) -> Node:
        attrs = {**dict(node.attrs), "algorithm": algorithm}
        return replace(node, attrs=tuple(sorted(attrs.items()))) if node.op in COLLECTIVES else node

    return replace(graph, nodes=tuple(map(told, graph.nodes)))


def _check(graph: Graph, tp: int, sp: bool, ep: int) -> None:
    """Refuse what is wrong whatever the program's sizes are."""
    for name, value in (("tp", tp), ("ep", ep)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UsageError(f"{name}={value!r}: expected a whole number of devices from 1")
    if sp and tp == 1:
        raise UsageError("sp=True needs tp > 1: the devices that share the layers share the positions too")
    if tp * ep > 1 and any(node.op in COLLECTIVES for node in graph.nodes):
        raise UsageError(f"{graph.name} is already sharded; shard the whole program")
    if tp * ep > 1 and (part := added_for_training(graph)):
        raise UsageError(f"{graph.name} has its {part} already; shard the forward program, then add it")
    if tp * ep > 1 and (pp := graph.info.devices.pp) > 1:
        raise UsageError(f"{graph.name} is already cut into {pp} stages; shard it first, then cut it")


def _unread(graph: Graph, tp: int) -> dict[str, int]:
    """Rows that a device holds of the matrices that this program stores but does not read (an encoder's in decode)."""
    return {
        name: _rows(graph, name) // tp for name, tensor in graph.tensors.items()
        if tensor.kind == "weight" and len(tensor.shape) > 1 and name not in graph.consumers
        and name not in graph.outputs and _rows(graph, name) % tp == 0
    }  # fmt: skip


# --- the vocabulary -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vocabulary:
    """What is cut by rows of the vocabulary.

    Attributes:
        rows: Rows that a device holds, by weight.
        heads: Outputs of the matmuls with them that are gathered, and their whole last axis.
        tables: Those that are looked up.
        sizes: New sizes of the logits that stay shares.
    """

    rows: Mapping[str, int] = field(default_factory=dict)
    heads: Mapping[str, Size] = field(default_factory=dict)
    tables: frozenset[str] = frozenset()
    sizes: Mapping[Atom, int] = field(default_factory=dict)


def _vocabulary(plan: ShardingPlan, tp: int, gather: bool) -> Vocabulary:
    """Tables of tokens, the heads that are them or have as many rows, and the heads' biases."""
    axes, graph = plan.axes, plan.graph
    looked_up = {node.inputs[0] for node in graph.nodes if node.op == "embedding"}
    tables = {name: _rows(graph, name) for name in looked_up if graph.tensors[name].kind == "weight"}
    heads = {n.outputs[0]: n.inputs[1:] for n in graph.nodes if n.op == "linear" and _is_head(plan, n, tables)}
    # Where there is a head, its rows are the vocabulary; else the largest table is one.
    known = [_rows(graph, weights[0]) for weights in heads.values()] or list(tables.values())
    least = max(tp, TABLE * max(known, default=0))

    def whole(name: str) -> bool:
        return _rows(graph, name) < least or not _only_looked_up(graph, name, heads)

    heads = {name: weights for name, weights in heads.items() if not whole(weights[0])}
    tables = {name: rows for name, rows in tables.items() if not whole(name)}
    own = {name for names in heads.values() for name in names}
    rows = {name: ceil_div(_rows(graph, name), tp) for name in own.union(tables)}
    shares: dict[Atom, int] = {}
    gathered: dict[str, Size] = {}
    for name in heads:
        last = axes.atoms(name, len(graph.tensors[name].shape) - 1)
        if any(atom.frozen for atom in last) or (gather and not plan.returned.isdisjoint(last)):
            gathered[name] = graph.tensors[name].shape[-1]
        else:
            shares.update({atom: ceil_div(atom.size, tp) for atom in last})
    return Vocabulary(rows, gathered, frozenset(tables), shares)


def _losses(axes: Axes) -> frozenset[Atom]:
    """Atoms of what a loss, or a softmax before one, runs along."""
    read = [node.inputs[0] for node in axes.graph.nodes if node.op in LOSSES]
    return frozenset(atom for name in read for atom in axes.spans(name)[-1].atoms)


def _rows(graph: Graph, name: str) -> int:
    rows = graph.tensors[name].shape[0]
    assert isinstance(rows, int)
    return rows


def _is_head(plan: ShardingPlan, node: Node, tables: Mapping[str, int]) -> bool:
    """Tell whether a matmul's weight has as many rows as a table, and the program returns its result or its loss."""
    graph, weight = plan.graph, node.inputs[1]
    if graph.tensors[weight].kind != "weight" or _rows(graph, weight) not in tables.values():
        return False
    last = set(plan.axes.spans(node.outputs[0])[-1].atoms)
    ends = plan.returned | _losses(plan.axes)
    return bool(last & ends) and last.isdisjoint(plan.attended | plan.summed)


def _only_looked_up(graph: Graph, name: str, heads: Mapping[str, Any]) -> bool:
    """Tell whether a weight is read by lookups and as the matrix of heads alone."""
    return all(
        (node.op == "embedding" and name not in node.inputs[1:])
        or (node.outputs[0] in heads and node.inputs[1] == name and node.inputs.count(name) == 1)
        for node in graph.consumers.get(name, ())
    )


def _narrow_heads(graph: Graph, vocabulary: Vocabulary, tp: int) -> list[Tensor]:
    """The outputs of the heads that are gathered, as wide as a device's share."""
    outputs = [(graph.tensors[name], whole) for name, whole in vocabulary.heads.items()]
    return [replace(tensor, shape=(*tensor.shape[:-1], ceil_div(whole, tp))) for tensor, whole in outputs]


def _narrowed(graph: Graph, rows: Mapping[str, int]) -> list[Tensor]:
    """Weights with fewer rows."""
    return [replace(graph.tensors[name], shape=(count, *graph.tensors[name].shape[1:])) for name, count in rows.items()]


# --- experts ----------------------------------------------------------------------------------------------------------


def _experts(graph: Graph, ep: int) -> dict[str, int]:
    """Experts that a device holds, by weight."""
    weights = {name: node.name for node in graph.nodes if node.op == "expert_linear" for name in node.inputs[1:]}
    if not weights:
        raise UsageError(f"ep={ep}: {graph.name} has no experts; allowed: 1")
    for name, where in weights.items():
        count = _rows(graph, name)
        if graph.tensors[name].kind != "weight":
            raise UsageError(f"ep={ep}: the experts of {where} are computed, not stored, and cannot be shared")
        if count % ep:
            fits = ", ".join(str(n) for n in range(2, count + 1) if count % n == 0)
            raise UsageError(f"ep={ep}: {where} has {count} experts, which {ep} groups cannot share; fits: {fits}")
    return {name: _rows(graph, name) // ep for name in weights}


# --- what a reader should know ----------------------------------------------------------------------------------------


def _notes(before: Graph, after: Graph, plan: ShardingPlan, vocabulary: Vocabulary, tp: int, ep: int) -> list[str]:
    notes = [_kept_whole(before, after)]
    replicas = plan.replicas(tp) if tp > 1 else 1
    if replicas > 1:
        where = f"on all {tp} devices" if replicas == tp else f"on {replicas} devices each"
        notes.append(f"KV heads ({plan.kv_heads}) < TP ({tp}): replicated {where}")
    padded = sorted({_rows(before, name) for name, rows in vocabulary.rows.items() if _rows(before, name) != rows * tp})
    notes += [f"a vocabulary of {rows} is padded to {ceil_div(rows, tp) * tp}" for rows in padded]
    if ep == 1:
        notes.append(_repeated(before, after, tp))
    if ep > 1:
        notes.append(f"sizes and throughput are per group: {ep} groups, each with its own tokens")
    return notes


def _repeated(before: Graph, after: Graph, tp: int) -> str:
    """Say how much more the devices work out together than one alone, empty where it is next to nothing."""
    sizes = dict.fromkeys(before.symbols, _TYPICAL)
    alone, share = (count_graph(graph, **sizes) for graph in (before, after))
    times = tp * share.flops / alone.flops if alone.flops else 1
    if times < _NEXT_TO_NOTHING:
        return ""
    before_by = {row.kernel.name: row.flops for row in alone.rows}
    rows = [row for row in share.rows if row.flops and row.flops == before_by.get(row.kernel.name)] or share.rows
    whole = max(rows, key=lambda row: row.kernel.count * row.flops)
    return (f"{tp} devices together run {float(times):.2g} times the FLOPs of one, with every size at {_TYPICAL}: "
            f"each works out the whole of what cannot be shared; the most goes to {whole.kernel.name}")  # fmt: skip


def _kept_whole(before: Graph, after: Graph) -> str:
    """Weights that every device has all of."""
    whole = [t for name, t in after.tensors.items() if t.kind == "weight" and t.shape == before.tensors[name].shape]
    held = sum(tensor.numel for tensor in whole)
    largest = max(whole, key=lambda tensor: tensor.numel, default=None)
    such = f", the largest {largest.name}" if largest else ""
    return f"{held:,} of {before.parameters:,} parameters are replicated on every device{such}"
