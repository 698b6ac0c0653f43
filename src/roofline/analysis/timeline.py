"""A run in its order: each kernel when it starts and what takes its time, each moment with the memory in use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from roofline.analysis.estimates import Estimate
from roofline.analysis.evaluation import runtime_of
from roofline.cost import BOUNDS, KernelTime
from roofline.cost.scratch import taken_on
from roofline.counting.counts import KernelCount, nbytes
from roofline.counting.grid import one_point
from roofline.counting.memory import allocations
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Node
from roofline.ir.sizes import evaluate
from roofline.ir.text import shown

#: Tensors that are named where the memory is fullest.
NAMED = 8


@dataclass(frozen=True, slots=True)
class KernelRun:
    """One kernel in its turn; a node that runs several times back to back is one.

    Attributes:
        kernel: Its label.
        op: Its main operator.
        layer: The layer that it is in, or the first module around it.
        phase: ``forward`` or ``backward``.
        start: When it starts, where kernels follow each other [s].
        seconds: How long it takes [s].
        bound: What bounds it, one of :data:`~roofline.cost.BOUNDS`.
        is_collective: Whether it talks to other devices.
    """

    kernel: str
    op: str
    layer: str
    phase: str
    start: float
    seconds: float
    bound: str
    is_collective: bool

    @property
    def end(self) -> float:
        """When it ends [s]."""
        return self.start + self.seconds


def kernel_runs(estimate: Estimate) -> tuple[KernelRun, ...]:
    """List the kernels of a run in their order, one after the other as the model times them.

    Returns:
        One entry per kernel that runs; their times add up to ``estimate.device_time``.

    Raises:
        UsageError: No estimate, or one that is not one point.

    Example:
        >>> import roofline as rl
        >>> est = rl.estimate("gpt2", "h100-sxm", phase="decode", batch=1, context=512)
        >>> runs = kernel_runs(est)
        >>> runs[0].layer, abs(runs[-1].end / est.device_time - 1) < 1e-9
        ('embed', True)
    """
    runs, start = list[KernelRun](), 0.0
    for each in timed_kernels(estimate):
        is_collective = each.row.kernel.kind == "network"
        runs.append(KernelRun(each.label, each.main.op, each.layer, each.main.phase, start, each.seconds,
                              BOUNDS[int(each.time.bound)], is_collective))  # fmt: skip
        start += each.seconds
    return tuple(runs)


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """A kernel in its place in the program, with the counts and the time of one launch.

    Attributes:
        label: Its own, where others are equal to it.
        main: Its main node, which may run several times back to back.
        row: Counts of one launch.
        time: Of one launch.
    """

    label: str
    main: Node
    row: KernelCount
    time: KernelTime

    @property
    def seconds(self) -> float:
        """Time of all its launches [s]."""
        return self.row.kernel.main.count * float(self.time.expected)

    @property
    def layer(self) -> str:
        """The layer that it is in, or the first module around it."""
        return self.main.layer or (self.main.scope or self.main.name).partition(".")[0]


def timed_kernels(estimate: Estimate) -> tuple[TimedKernel, ...]:
    """Return the kernels of a program in its order, as :func:`kernel_runs`, with all that is known of them."""
    if not isinstance(estimate, Estimate):
        raise UsageError(f"expected an Estimate, as of rl.estimate, given {shown(estimate)}")
    one_point(estimate.axis_names, "kernels are put in order for")
    timed = {name: pair for pair in estimate.timed for name in pair[0].kernel.names}
    kernels = ((label, nodes, *timed[label]) for label, nodes in estimate.graph.kernels.items() if label in timed)
    return tuple(
        TimedKernel(label, next((node for node in nodes if node.op == row.kernel.main.op), nodes[0]), row, time)
        for label, nodes, row, time in kernels
    )


@dataclass(frozen=True, slots=True)
class MemoryOverTime:
    """Memory while a program runs.

    Attributes:
        runs: The kernels in their order.
        always: What stays for the whole run, by part of the memory [byte].
        live: While each kernel runs, what was written and is still needed, with what the kernel takes itself [byte].
        largest: The largest tensors in use where that is most, by name [byte].
    """

    runs: tuple[KernelRun, ...]
    always: Mapping[str, float]
    live: tuple[float, ...]
    largest: Mapping[str, float]

    @property
    def peak(self) -> int:
        """The first kernel with the most memory."""
        return int(np.argmax(self.live))


def memory_over_time(estimate: Estimate) -> MemoryOverTime:
    """Follow the memory through a run; its peak is ``estimate.memory.total``.

    Returns:
        What stays, and what is alive while each kernel runs.

    Raises:
        UsageError: The estimate is not one point, or its stages run on several devices.

    Example:
        >>> import roofline as rl
        >>> est = rl.estimate("gpt2", "h100-sxm", phase="prefill", batch=1, seq=512)
        >>> over = memory_over_time(est)
        >>> sum(over.always.values()) + max(over.live) == est.memory.total
        True
    """
    runs, graph = kernel_runs(estimate), estimate.graph
    if graph.info.pipeline:
        raise UsageError(
            f"{graph.name}: memory over time is of one device, and the stages of a pipeline are on several"
        )
    number = {run.kernel: at for at, run in enumerate(runs)}
    live, alive = _live(estimate, number)
    always = {name: float(value) for name, value in estimate.memory.parts().items() if name != "activations"}
    if "gradients" in always:  # those that come and go with the backward are alive, not there all the time
        always["gradients"] -= float(max(live)) - float(estimate.memory.activations)
    return MemoryOverTime(runs, always, tuple(live.tolist()), alive)


def _live(estimate: Estimate, number: Mapping[str, int]) -> tuple[np.ndarray, dict[str, float]]:
    """Return the bytes in use while each kernel runs, and the largest tensors of the fullest."""
    graph, sizes = estimate.graph, estimate.grid.sizes
    every = [
        (tensor, first, last, float(evaluate(nbytes(tensor), sizes))) for tensor, first, last in allocations(graph)
    ]
    change = np.zeros(len(graph.nodes) + 2)
    for _, first, last, size in every:
        change[first] += size
        change[last + 1] -= size
    at_node = np.cumsum(change)[: len(graph.nodes)]
    turns = _turns(graph, number)
    live = np.zeros(len(number))
    np.maximum.at(live, turns, at_node)
    ends = {node.label: float(size) for node, size in zip(graph.nodes, at_node, strict=True)}
    runtime = runtime_of(estimate.mode)
    for labels, taken in taken_on(graph, sizes, estimate.chip, runtime, estimate.tf32):
        for label in labels:
            live[number[label]] = max(live[number[label]], ends[label] + float(taken))
    fullest = [at for at, turn in enumerate(turns) if turn == int(np.argmax(live))]
    moment = max(fullest, key=lambda at: at_node[at])
    alive = {tensor.name: size for tensor, first, last, size in every if first <= moment <= last}
    return live, dict(sorted(alive.items(), key=lambda each: -each[1])[:NAMED])


def _turns(graph: Graph, number: Mapping[str, int]) -> list[int]:
    """Return the kernel in whose turn each node runs; a view belongs to the kernel before it."""
    turns, now = list[int](), 0
    for node in graph.nodes:
        now = number.get(node.label, now)
        turns.append(now)
    return turns
