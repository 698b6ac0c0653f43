"""What a device holds of a chunk's parameters: weights, gradients, optimizer states, and their update."""

from __future__ import annotations

from dataclasses import dataclass, replace

from roofline.count import nbytes
from roofline.graph import Graph, Tensor
from roofline.passes.optimizer import optimizer
from roofline.passes.tape import DISCRETE
from roofline.passes.training import PRECISIONS
from roofline.sizes import ceil_div


@dataclass(frozen=True)
class Held:
    """Parameters of a chunk of layers on one device.

    Attributes:
        parameters: Their number.
        weights: Their bytes, constants included [byte].
        gradients: Those of their gradients [byte].
        states: Those of the optimizer's states, an fp32 copy of the weights among them [byte].
        update: The program that updates them.
    """

    parameters: int
    weights: float
    gradients: float
    states: float
    update: Graph


def held(graph: Graph, kind: str, precision: str, among: int = 1) -> Held:
    """Count what a forward program's parameters take in training.

    Args:
        graph: The forward program of a chunk, in its formats.
        kind: The optimizer.
        precision: One of :data:`~roofline.passes.training.PRECISIONS`.
        among: Devices that divide the update between them (ZeRO), each for its rows of every weight.

    Example:
        >>> from roofline.build import Builder
        >>> b = Builder("gemm", "bf16")
        >>> y = b.op("linear", b.input("x", (8, 64)), b.weight("w", (64, 64)))
        >>> one = held(b.graph([y]), "adamw", "mixed-bf16")
        >>> one.weights / 64**2, one.gradients / 64**2, one.states / 64**2
        (2.0, 4.0, 12.0)
    """
    master = PRECISIONS[precision].master
    weights = [t for t in graph.tensors.values() if t.kind == "weight" and t.dtype not in DISCRETE]
    stored = [t for t in graph.tensors.values() if t.kind in ("weight", "buffer")]
    gradients = [Tensor(f"{t.name}.grad", t.shape, "fp32" if master else t.dtype, "input") for t in weights]
    whole = optimizer(_program(graph, weights, gradients), kind, master=master)
    share = optimizer(_program(graph, *(_rows(each, among) for each in (weights, gradients))), kind, master=master)
    states = [whole.tensors[name] for name in whole.info["optimizer_states"]]
    update = whole if among == 1 else share
    return Held(graph.parameters, _bytes(stored), _bytes(gradients), _bytes(states), update)


def _bytes(tensors: list[Tensor]) -> float:
    return float(sum(nbytes(tensor) for tensor in tensors))


def _rows(tensors: list[Tensor], among: int) -> list[Tensor]:
    return [replace(t, shape=(ceil_div(t.shape[0], among), *t.shape[1:])) if t.shape else t for t in tensors]


def _program(graph: Graph, weights: list[Tensor], gradients: list[Tensor]) -> Graph:
    """The parameters and their gradients, with nothing done to them yet."""
    pairs = tuple((w.name, g.name) for w, g in zip(weights, gradients, strict=True))
    return Graph(f"{graph.name} update", {t.name: t for t in (*weights, *gradients)}, (), info={"gradients": pairs})
