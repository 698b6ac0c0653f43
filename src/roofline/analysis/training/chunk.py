"""What one device runs for one micro-batch through one chunk of layers: time by part, memory, FLOPs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from roofline.analysis.estimates import Estimate, Mode, estimate
from roofline.analysis.training.footprint import Held, held
from roofline.analysis.training.plan import Plan
from roofline.counting.counts import count_graph, nbytes
from roofline.hardware.chip import Chip
from roofline.ir.graph import Graph
from roofline.ir.sizes import evaluate
from roofline.passes.formats.autocast import autocast
from roofline.passes.formats.cast import retype
from roofline.passes.training.backward import backward
from roofline.passes.training.mixed_precision import PRECISIONS, accumulate
from roofline.passes.training.saved import saved

#: Where the time of a micro-batch goes.
FORWARD, BACKWARD, AGAIN, SHARED = "forward", "backward", "recompute", "communication"


@dataclass(frozen=True)
class Chunk:
    """One micro-batch through one chunk of layers, forward and backward.

    Attributes:
        forward_graph: Its layers, as one device has them.
        estimate: Of forward and backward, with gradients added up.
        seconds: By part: forward, backward, recompute, communication [s].
        model_flops: Three times the products of the forward, the numerator of MFU: each has two gradients.
        hardware_flops: All products that run, the numerator of HFU.
        held: Its parameters, gradients and states.
        kept: Activations between forward and backward [byte].
        passing: The most that lives beside them while one micro-batch runs [byte].
        inputs: What the caller hands in [byte].
        sent: To the next chunk in the forward; as much comes back in the backward [byte].
    """

    forward_graph: Graph
    estimate: Estimate
    seconds: Mapping[str, float]
    model_flops: float
    hardware_flops: float
    held: Held
    kept: float
    passing: float
    inputs: float
    sent: float

    @property
    def time(self) -> float:
        """All parts [s]."""
        return sum(self.seconds.values())


def chunk(graph: Graph, own: Graph, chip: Chip, plan: Plan, mode: Mode, sizes: Mapping[str, Any]) -> Chunk:
    """Work out one chunk of a model.

    Args:
        graph: The forward program of one device of a tensor-parallel group, formats set.
        own: The chunk of it.
        chip: The device.
        plan: The layout.
        mode: As for :func:`roofline.estimate`.
        sizes: Of one micro-batch.
    """
    given = [name for name in _boundary(graph, own) if own.tensors[name].kind == "input"]
    master = PRECISIONS[plan.precision].master  # then gradients are added up in fp32, as Megatron-LM adds them
    both = backward(own, recompute=plan.recompute, gradients="fp32" if master else None, wrt=given)
    whole = accumulate(both, 1, fused=master) if plan.micro_batches > 1 else both
    est = estimate(_without_sends(whole), chip, mode=mode, **sizes)
    sent = _bytes(own, [node.inputs[0] for node in own.nodes if node.op == "send"], sizes)
    received = _bytes(own, given, sizes)  # kept for the backward too, of every micro-batch
    kept = float(sum(evaluate(total, sizes) for total in saved(both).values()))
    forward = float(count_graph(own, **sizes).flops)
    return Chunk(
        own, est, _by_part(est, len(own.nodes)), 3 * forward, float(est.flops), _held(own, plan), kept + received,
        max(float(est.memory.activations) - kept, 0.0), float(est.memory.inputs) - received, sent,
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


def _held(graph: Graph, plan: Plan) -> Held:
    copies = (plan.dp, plan.dp // plan.ep) if plan.zero else (1, 1)
    return held(graph, plan.optimizer, plan.precision, *copies)


def stored(graph: Graph, precision: str) -> Graph:
    """The forward program with its weights in the format of a precision."""
    dtype = PRECISIONS[precision].stored
    return retype(graph, dtype) if dtype else graph


def lowered(graph: Graph, precision: str) -> Graph:
    """The forward program with the casts of a precision; they hide which product has which weight, so shard before."""
    dtype = PRECISIONS[precision].lower
    return autocast(graph, dtype) if dtype else graph


def _boundary(graph: Graph, own: Graph) -> list[str]:
    """Tensors that a stage before sends."""
    return [name for name in own.tensors if name in graph.tensors and graph.tensors[name].kind == "activation"]


def _by_part(est: Estimate, forward: int) -> dict[str, float]:
    """Seconds by part; kernels of the forward are those of the first nodes."""
    first = {node.label for node in est.graph.nodes[:forward]}
    found = dict.fromkeys((FORWARD, BACKWARD, AGAIN, SHARED), 0.0)
    for row, time in zip(est.rows, est.times[0], strict=True):
        each = row.kernel.count * float(time.expected) / len(row.kernel.names)
        for label in row.kernel.names:
            found[_part(row.kernel.kind, label, label in first)] += each
    waited = max(float(est.time) - sum(found.values()), 0.0)  # for the host, in eager mode
    busy = found[FORWARD] + found[BACKWARD] + found[AGAIN]
    for part in (FORWARD, BACKWARD, AGAIN):
        found[part] *= 1 + waited / busy if busy else 1.0
    return found


def _part(kind: str, label: str, is_forward: bool) -> str:
    if kind == "network":
        return SHARED
    return AGAIN if label.endswith(".again") else FORWARD if is_forward else BACKWARD
