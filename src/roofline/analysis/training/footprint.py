"""Memory of a virtual stage's parameters on a device: weights, gradients, optimizer states, and their update."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from roofline.counting.counts import nbytes
from roofline.ir.graph import Graph, Tensor
from roofline.ir.sizes import ceil_div
from roofline.passes.training.mixed_precision import PRECISIONS
from roofline.passes.training.optimizer import optimizer
from roofline.passes.training.tape import DISCRETE

#: Operators whose weights are experts, which groups of copies of the model share.
_EXPERTS = frozenset({"expert_linear", "moe"})


@dataclass(frozen=True)
class Bytes:
    """Of some parameters: weights and constants, gradients, and optimizer states with an fp32 copy [byte]."""

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0


@dataclass(frozen=True)
class Footprint:
    """Parameters of a virtual stage on one device.

    Attributes:
        parameters: Their number.
        dense: Bytes of those that every copy of the model has.
        routed: Bytes of experts, which only the copies of their group have.
        update: The program that updates them, or this device's share.
    """

    parameters: int
    dense: Bytes
    routed: Bytes
    update: Graph


def footprint(graph: Graph, kind: str, precision: str, dense: int = 1, routed: int = 1) -> Footprint:
    """Count what a forward program's parameters take in training.

    Args:
        graph: The forward program of a virtual stage, in its formats.
        kind: The optimizer.
        precision: One of :data:`~roofline.passes.training.mixed_precision.PRECISIONS`.
        dense: Devices that divide the update between them (ZeRO), each for its rows of every weight.
        routed: The same of experts.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("gemm", "bf16")
        >>> y = b.op("linear", b.input("x", (8, 64)), b.weight("w", (64, 64)))
        >>> one = footprint(b.graph([y]), "adamw", "mixed-bf16").dense
        >>> one.weights / 64**2, one.gradients / 64**2, one.optimizer / 64**2
        (2.0, 4.0, 12.0)
    """
    experts = {name for node in graph.nodes if node.op in _EXPERTS for name in node.inputs[1:]}
    master = PRECISIONS[precision].master
    stored = [t for t in graph.tensors.values() if t.kind in ("weight", "buffer")]
    trained = [t for t in stored if t.kind == "weight" and t.dtype not in DISCRETE]
    whole = _update(graph, trained, kind, master)

    def of(which: Callable[[str], bool]) -> Bytes:
        names = {t.name for t in trained if which(t.name)}
        gradients = (whole.tensors[f"{name}.grad"] for name in names)
        states = (
            whole.tensors[name] for name in whole.info.training.optimizer_states if name.rpartition(".")[0] in names
        )
        return Bytes(_total(t for t in stored if which(t.name)), _total(gradients), _total(states))

    share = whole
    if dense > 1 or routed > 1:

        def rows(tensor: Tensor) -> Tensor:
            among = routed if tensor.name in experts else dense
            return (
                replace(tensor, shape=(ceil_div(tensor.shape[0], among), *tensor.shape[1:])) if tensor.shape else tensor
            )

        share = _update(graph, list(map(rows, trained)), kind, master)
    return Footprint(graph.parameters, of(lambda name: name not in experts), of(lambda name: name in experts), share)


def _total(tensors: Iterable[Tensor]) -> float:
    return float(sum(nbytes(tensor) for tensor in tensors))


def _update(graph: Graph, weights: list[Tensor], kind: str, master: bool) -> Graph:
    """The update of parameters from gradients that are handed in."""
    gradients = [Tensor(f"{t.name}.grad", t.shape, "fp32" if master else t.dtype, "input") for t in weights]
    pairs = tuple((w.name, g.name) for w, g in zip(weights, gradients, strict=True))
    program = Graph(f"{graph.name} update", {t.name: t for t in (*weights, *gradients)}, ()).with_info(gradients=pairs)
    return optimizer(program, kind, master=master)
