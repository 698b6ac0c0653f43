"""A result that several kernels read: written once and read by each, or computed again in each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roofline.analysis.estimates import Estimate, estimate
from roofline.counting.grid import one_point
from roofline.hardware.chip import Chip
from roofline.ir.graph import Graph
from roofline.ir.units import format_si
from roofline.passes.fusion.inline import inline


@dataclass(frozen=True)
class StoreOrRecompute:
    """Two ways to give a result to its readers.

    Attributes:
        node: What is computed.
        readers: Kernels that read it.
        store_s: Time of it and its readers at the datasheet's rates if it is written out [s].
        recompute_s: The same if each reader computes it again [s].
    """

    node: str
    readers: int
    store_s: float
    recompute_s: float

    @property
    def recompute(self) -> bool:
        """True where computing it again takes less."""
        return self.recompute_s < self.store_s

    def __str__(self) -> str:
        store, recomputed = format_si(self.store_s, "s"), format_si(self.recompute_s, "s")
        better = "is cheaper" if self.recompute else "costs more"
        return (
            f"{self.node} is read by {self.readers} kernels: recomputing it in each {better}, {recomputed} against "
            f"{store} at the datasheet's rates if it is written out"
        )


def store_or_recompute(graph: Graph, node: str, chip: str | Chip, **sizes: Any) -> StoreOrRecompute:
    """Decide whether a result is better written out or computed again where it is read.

    Fusing a producer into several consumers does its arithmetic once each and saves its write and their reads.

    Raises:
        UsageError: No such node, or nothing reads it.

    Example:
        >>> import roofline as rl
        >>> a100 = rl.Chip(name="a100", vector={"fp32": "19.5 TFLOP/s"}, memory_bandwidth="1.5 TB/s")
        >>> def choice(flops):
        ...     b = rl.ops.Builder("shared", "fp32")
        ...     h = b.op("elementwise", b.input("x", (10**7,)), name="h", flops=flops)
        ...     return store_or_recompute(b.graph([b.op("relu", h) for _ in range(3)]), "h", a100)
        >>> choice(100).recompute, choice(200).recompute
        (True, False)
    """
    inlined = inline(graph, node)
    touched = _kernels_of(graph, inlined)
    before, after = (estimate(program, chip, mode="graph", **sizes) for program in (graph, inlined))
    one_point(before.axis_names, "writing out and computing again are compared at")
    return StoreOrRecompute(node, len(touched) - 1, _floor(before, touched), _floor(after, touched))


def _kernels_of(graph: Graph, inlined: Graph) -> set[str]:
    """Kernels that change: the producer's and its readers'."""
    was = {node.name: node for node in graph.nodes}
    new = {node.label for node in inlined.nodes if was.get(node.name) != node}
    gone = {node.label for node in graph.nodes if node.name not in {other.name for other in inlined.nodes}}
    return new | gone


def _floor(est: Estimate, labels: set[str]) -> float:
    """Time of some kernels at the datasheet's rates [s]."""
    return sum(
        len(labels.intersection(row.kernel.names)) * row.kernel.main.count * float(time.floor)
        for row, time in zip(est.rows, est.times[0], strict=True)
    )
