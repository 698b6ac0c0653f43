"""Memory that a runtime takes while an operator runs, besides its results, and what a program needs with it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import numpy as np

from roofline.cost.lowering import EAGER, At, lowered_graphs
from roofline.cost.work import uses_tf32
from roofline.counting.counts import Kernel, KernelCount, kernel_boundaries, kernels, nbytes
from roofline.counting.memory import RESERVE, Memory, memory, undominated
from roofline.hardware.chip import Chip
from roofline.ir.graph import Graph, once_per_graph
from roofline.ir.sizes import Number, evaluate, maximum
from roofline.ops.registry import OPS

#: What is added up inside an operator is added in place: the bias of a convolution (``output.add_``), the mask of
#: attention (``attn.add_``); Convolution.cpp and transformers/attention.cpp in aten/src/ATen/native. A masked fill
#: fills its copy (cuda/Indexing.cu).
_IN_PLACE = frozenset({"add", "mask"})


def memory_on(
    graph: Graph, sizes: Mapping[str, Number], chip: Chip | None, runtime: str = EAGER, tf32: bool | None = None,
    reserve: float = RESERVE,
) -> Memory:  # fmt: skip
    """Itemise what a run of a graph needs on a chip, with what the kernels of its operators hand on to each other.

    Args:
        graph: The program.
        sizes: A value for each symbol, numbers or arrays.
        chip: Where it runs; ``None`` for operators that are one kernel each.
        runtime: What launches it, of :data:`~roofline.cost.lowering.RUNTIMES`.
        tf32: Let fp32 contractions use the tf32 matrix units; by default as PyTorch does.
        reserve: Driver context and framework [byte]; of a chip whose memory is SRAM alone the default is nothing, since
            its driver is on the host.
    """
    if chip is not None and chip.main.name == "SRAM" and reserve == RESERVE:
        reserve = 0.0
    return memory(graph, sizes, reserve, taken_on(graph, sizes, chip, runtime, tf32))


def taken_on(
    graph: Graph, sizes: Mapping[str, Number], chip: Chip | None, runtime: str = EAGER, tf32: bool | None = None
) -> list[tuple[tuple[str, ...], Number]]:
    """Return what operators take while they run: the labels of their kernels, and bytes; as for :func:`memory_on`."""
    rows = () if chip is None else _taken(graph, chip, runtime, tf32)
    return [(kernel.names, _at(kernel, kinds, sizes)) for kernel, kinds in rows]


#: At which sizes an operator becomes some kernels (``None``: at all), and the bytes that these can take at most.
_Kind = tuple[At, tuple[Number, ...]]


@once_per_graph
def _taken(graph: Graph, chip: Chip, runtime: str, tf32: bool | None) -> tuple[tuple[Kernel, tuple[_Kind, ...]], ...]:
    """Return the operators that take memory while they run."""
    every = []
    for kernel in kernels(graph):
        on_units = uses_tf32(KernelCount(kernel, {}, {}, 0, 0), chip, tf32)
        kinds = lowered_graphs(kernel, chip, runtime, flowing=True, tf32=on_units)
        sizes = tuple((at, scratch(each)) for at, each in kinds)
        if any(peaks for _, peaks in sizes):
            every.append((kernel, sizes))
    return tuple(every)


def _at(kernel: Kernel, kinds: tuple[_Kind, ...], sizes: Mapping[str, Number]) -> Number:
    """Return the bytes that an operator takes while it runs, numbers or arrays."""
    axes = {axis: evaluate(value, sizes) for axis, value in kernel.sizes.items()}
    taken: Number = 0
    for at, peaks in reversed(kinds):
        peak = reduce(maximum, (evaluate(each, sizes) for each in peaks), 0)
        taken = peak if at is None else np.where(at(axes), peak, taken)
    return taken


def scratch(graph: Graph) -> tuple[Number, ...]:
    """Return what can be the most bytes that an operator's kernels have allocated besides its results.

    What a variable of the runtime's own code holds lives until the call returns, unless the next result of that size
    takes its place.

    Args:
        graph: The kernels that the operator becomes; what none of them reads is a result.
    """
    root, written = kernel_boundaries(graph).root, _written(graph)
    reads = {root(name): node for node in graph.nodes if OPS[node.op].kind != "view" for name in node.inputs}
    last = {written[name]: node for name, node in reads.items() if name in written}
    results = {memory for name, memory in written.items() if name not in reads}
    live, peaks = dict[str, Number](), list[Number]()
    for node in graph.nodes:
        size, own = nbytes(graph.tensors[node.outputs[0]]), written.get(node.outputs[0], "")
        if own and own not in results:
            live[own] = size
            peaks.append(sum(live.values()))
        replaced = [old for old in live if own and old != own and last[old] is node and live[old] == size]
        live = {old: taken for old, taken in live.items() if old not in replaced}
    return undominated(peaks)


def _written(graph: Graph) -> Mapping[str, str]:
    """Return what is allocated, each with the tensor in whose memory it is written."""
    scope, own = kernel_boundaries(graph), dict[str, str]()
    for node in graph.nodes:
        name, first = node.outputs[0], scope.root(node.inputs[0]) if node.inputs else ""
        if scope.root(name) == name and OPS[node.op].kind != "view" and node.op != "empty":
            adds = node.op in _IN_PLACE and first in own and nbytes(graph.tensors[first]) == nbytes(graph.tensors[name])
            if adds or scope.leaves(name, node.label):
                own[name] = own[first] if adds else name
    return own
