"""What one device runs for one micro-batch through one virtual stage: time by part, memory, FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from roofline.analysis.estimates import Estimate, Mode, estimate
from roofline.analysis.training.footprint import Footprint, footprint
from roofline.analysis.training.plan import Plan
from roofline.counting.counts import count_graph, nbytes
from roofline.hardware.chip import Chip
from roofline.ir.graph import Graph
from roofline.ir.sizes import evaluate
from roofline.passes.formats.autocast import autocast
from roofline.passes.formats.cast import cast
from roofline.passes.training.backward import backward
from roofline.passes.training.mixed_precision import PRECISIONS, accumulate
from roofline.passes.training.saved import saved

#: Where the time of a micro-batch goes.
FORWARD, BACKWARD, AGAIN, SHARED = "forward", "backward", "recompute", "communication"


@dataclass(frozen=True)
class VirtualStage:
    """One micro-batch through one virtual stage (a chunk of layers), forward and backward.

    Attributes:
        forward_graph: Its layers, as one device has them.
        estimate: Of forward and backward, with gradients added up.
        seconds: By part: forward, backward, recompute, communication [s].
        model_flops: Three times the matmuls of the forward, the numerator of MFU: each has two gradients.
        hardware_flops: All matmuls that run, the numerator of HFU.
        footprint: Its parameters, gradients and states.
        saved: Activations between forward and backward [byte].
        transient: The most that lives besides while one micro-batch runs [byte].
        inputs: What the caller hands in [byte].
        sent: To the next one in the forward; as much comes back in the backward [byte].
    """

    forward_graph: Graph
    estimate: Estimate
    seconds: Mapping[str, float]
    model_flops: float
    hardware_flops: float
    footprint: Footprint
    saved: float
    transient: float
    inputs: float
    sent: float

    @property
    def time(self) -> float:
        """All parts [s]."""
        return sum(self.seconds.values())


def virtual_stage(
    graph: Graph, own: Graph, chip: Chip, plan: Plan, mode: Mode, sizes: Mapping[str, Any]
) -> VirtualStage:
    """Work out one chunk of a model.

    Args:
        graph: The forward program of one device of a tensor-parallel group, formats set.
        own: The part of it.
        chip: The device.
        plan: The layout.
        mode: As for :func:`roofline.estimate`.
        sizes: Of one micro-batch.
    """
    # What the stage before sends: activations of the whole program that this part takes as inputs.
    inputs = [name for name, tensor in own.tensors.items() if tensor.kind == "input" and name in graph.tensors
              and graph.tensors[name].kind == "activation"]  # fmt: skip
    master = PRECISIONS[plan.precision].master  # then gradients are added up in fp32, as Megatron-LM adds them
    both = backward(own, recompute=plan.recompute, gradients="fp32" if master else None, wrt=inputs)
    fused = master and plan.accumulation == "fused"
    whole = accumulate(both, 1, fused=fused) if plan.micro_batches > 1 else both
    est = estimate(_without_sends(whole), chip, mode=mode, tf32=plan.tf32, **sizes)
    sent = _bytes(own, [node.inputs[0] for node in own.nodes if node.op == "send"], sizes)
    received = _bytes(own, inputs, sizes)  # kept for the backward too, of every micro-batch
    saved_bytes = float(sum(evaluate(total, sizes) for total in saved(both).values()))
    replicas = (plan.dp, plan.dp // plan.ep) if plan.zero else (1, 1)
    return VirtualStage(
        forward_graph=own, estimate=est, seconds=_by_part(est, len(own.nodes), plan.overlap_experts),
        model_flops=3 * float(count_graph(own, **sizes).flops), hardware_flops=float(est.flops),
        footprint=footprint(own, plan.optimizer, plan.precision, *replicas), saved=saved_bytes + received,
        transient=max(float(est.memory.activations) - saved_bytes, 0.0),
        inputs=float(est.memory.inputs) - received, sent=sent,
    )  # fmt: skip


def _bytes(graph: Graph, names: list[str], sizes: Mapping[str, Any]) -> float:
    return float(sum(evaluate(nbytes(graph.tensors[name]), sizes) for name in names))


def _without_sends(graph: Graph) -> Graph:
    """The program as if its neighbours were on the same device; what they send and this one reads is an input."""
    nodes = tuple(node for node in graph.nodes if node.op != "send")
    read = {name for node in nodes for name in node.inputs}
    sends = [node for node in graph.nodes if node.op == "send"]
    received = {name for node in sends for name in node.outputs}
    handed = {name for node in sends for name in node.inputs if graph.tensors[name].kind == "input"}
    tensors = {
        name: replace(tensor, kind="input") if name in received else tensor
        for name, tensor in graph.tensors.items()
        if name in read or name not in received | handed
    }
    outputs = tuple(name for name in graph.outputs if name not in received)
    return replace(graph, nodes=nodes, tensors=tensors, outputs=outputs)


def stored(graph: Graph, precision: str) -> Graph:
    """The forward program with its weights in the format of a precision."""
    dtype = PRECISIONS[precision].stored
    return cast(graph, dtype) if dtype else graph


def lowered(graph: Graph, precision: str) -> Graph:
    """The forward program with the casts of a precision; they hide which matmul has which weight, so shard before."""
    dtype = PRECISIONS[precision].lower
    return autocast(graph, dtype) if dtype else graph


def _by_part(est: Estimate, forward: int, overlap_experts: bool) -> dict[str, float]:
    """Return seconds by part; kernels of the forward are those of the first nodes.

    What tokens travel to their experts may hide behind the computation of another micro-batch, which takes as long.
    """
    first = {node.label for node in est.graph.nodes[:forward]}

    def part(kind: str, label: str) -> str:
        if kind == "network":
            return SHARED
        return AGAIN if label.endswith(".again") else FORWARD if label in first else BACKWARD

    seconds = dict.fromkeys((FORWARD, BACKWARD, AGAIN, SHARED), 0.0)
    for row, time in est.timed:
        each = row.kernel.count * float(time.expected) / len(row.kernel.names)
        for label in row.kernel.names:
            seconds[part(row.kernel.kind, label)] += each
    waited = max(float(est.time) - sum(seconds.values()), 0.0)  # for the host, in eager mode
    busy = seconds[FORWARD] + seconds[BACKWARD] + seconds[AGAIN]
    for name in (FORWARD, BACKWARD, AGAIN):
        seconds[name] *= 1 + waited / busy if busy else 1.0
    if overlap_experts:
        travelling = (row.kernel.count * float(time.expected) for row, time in est.timed
                      if row.kernel.main.op == "alltoall")  # fmt: skip
        seconds[SHARED] -= min(sum(travelling), busy + waited)
    return seconds
