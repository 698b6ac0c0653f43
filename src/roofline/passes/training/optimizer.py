"""The update of a training step: what each optimizer keeps for a parameter, reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph, Tensor
from roofline.ir.sizes import Size
from roofline.ops.builder import Builder
from roofline.passes.history import graph_pass
from roofline.passes.training.tape import DISCRETE

Shape = tuple[Size, ...]


@dataclass(frozen=True)
class State:
    """A state of an optimizer for one parameter.

    Attributes:
        name: What it is called.
        flops: Operations of its update for an element of the gradient.
        dtype: Its number format; that of the parameter when empty.
        shape: Its shape from the parameter's, ``None`` where a parameter of that shape has none.
    """

    name: str
    flops: int
    dtype: str = ""
    shape: Callable[[Shape], Shape | None] = lambda shape: shape


@dataclass(frozen=True)
class Optimizer:
    """What an optimizer keeps, and the operations of its step on an element of the parameter."""

    states: tuple[State, ...]
    flops: int


def _row(shape: Shape) -> Shape | None:
    return shape[:-1] if len(shape) > 1 else None


def _column(shape: Shape) -> Shape | None:
    return (*shape[:-2], shape[-1]) if len(shape) > 1 else None


def _vector(shape: Shape) -> Shape | None:
    return shape if len(shape) < 2 else None


#: The optimizers. Momentum: 2 for ``m = b m + g``. Adam (Kingma and Ba 2014, algorithm 1, with decoupled decay): 3 for
#: the first moment, 4 for the second, 8 for the step. Adafactor (Shazeer and Stern 2018, algorithm 4): a row and a
#: column of means of squares for a matrix. 8-bit Adam (Dettmers et al. 2021): moments in blocks of 2048 with one fp32
#: scale each, which are not counted.
OPTIMIZERS: Mapping[str, Optimizer] = {
    "sgd": Optimizer((), 2),
    "momentum": Optimizer((State("momentum", 2),), 2),
    "adamw": Optimizer((State("m", 3), State("v", 4)), 8),
    "adafactor": Optimizer(
        (State("row", 2, "fp32", _row), State("column", 2, "fp32", _column), State("v", 4, "fp32", _vector)), 8
    ),
    "adam8bit": Optimizer((State("m", 6, "int8"), State("v", 7, "int8")), 8),
}


@graph_pass
def optimizer(graph: Graph, kind: str = "adamw", *, master: bool = False, clip: bool = False) -> Graph:
    """Add the update of all parameters: one kernel over all tensors, as fused optimizers run it.

    It reads gradients, weights and states and writes weights and states in place. After ``passes.backward`` it
    takes the gradients from there; otherwise the graph becomes that of the update alone, with gradients handed in.

    Args:
        graph: A program, with or without its backward.
        kind: ``sgd``, ``momentum``, ``adamw``, ``adafactor`` or ``adam8bit``. States are in the weights' format, in
            fp32 where there is a master copy.
        master: An fp32 copy of the weights that is updated in their place and cast to their format (Micikevicius et al.
            2017): the 12 bytes per parameter of mixed-precision Adam.
        clip: Scale gradients to a largest norm first: their squares are summed up, then each is scaled.

    Returns:
        The program with its update; of a program without gradients, the update alone, which reads them as inputs.

    Raises:
        UsageError: No such optimizer, an update that the graph has already, or no parameters.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> from roofline import count
        >>> b = Builder("gemm", "bf16")
        >>> y = b.op("linear", b.input("x", (8, 64)), b.weight("w", (64, 64)))
        >>> step = optimizer(b.graph([y]), "adamw", master=True)
        >>> count(step).bytes // 64**2  # reads g 2, m, v and master 12; writes m, v, master 12 and the weight 2
        28
    """
    if kind not in OPTIMIZERS:
        raise UsageError(f"optimizer {kind!r}; allowed: {', '.join(OPTIMIZERS)}{did_you_mean(kind, OPTIMIZERS)}")
    if graph.info.training.optimizer:
        raise UsageError(f"{graph.name}: has an update by {graph.info.training.optimizer} already")
    step = _Step(graph, OPTIMIZERS[kind], master)
    if not step.gradients:
        raise UsageError(f"{graph.name}: has no parameters to update")
    if clip:
        step.clip()
    step.run()
    return step.b.graph().with_info(optimizer=kind, optimizer_states=tuple(step.states))


class _Step:
    """The update in the making."""

    def __init__(self, graph: Graph, rule: Optimizer, master: bool) -> None:
        self.rule, self.master, self.states = rule, master, list[str]()
        known = dict(graph.info.training.gradients or ())
        if known:
            self.weights = {name: graph.tensors[name] for name in known}
        else:  # the update alone
            weights = (tensor for tensor in graph.tensors.values() if tensor.kind == "weight")
            self.weights = {weight.name: weight for weight in weights if weight.dtype not in DISCRETE}
            graph = replace(graph, tensors=self.weights, nodes=(), outputs=(), items=1, item="run")
        self.b = Builder.of(graph, dtype="fp32")
        self.gradients = {
            name: known.get(name) or self.b.input(f"{name}.grad", t.shape, t.dtype) for name, t in self.weights.items()
        }

    def clip(self) -> None:
        """The norm over all gradients, then each times its share; two passes."""
        with self.b.kernel("grad_norm"):
            parts = [
                self.b.op("reduce", gradient, name=f"{name}.grad_square", flops=2)
                for name, gradient in self.gradients.items()
            ]
            total = parts[0]
            for at, part in enumerate(parts[1:]):
                total = self.b.op("add", total, part, name=f"grad_square_{at}")
        with self.b.kernel("grad_clip"):
            for name, gradient in self.gradients.items():
                self.gradients[name] = self.b.op("update", gradient, total, name=f"{name}.grad_clipped")

    def run(self) -> None:
        with self.b.kernel("optimizer"):
            for name, weight in self.weights.items():
                self._update(name, weight)

    def _update(self, name: str, weight: Tensor) -> None:
        read = [self.gradients[name]]
        copied = self.master and DTYPES[weight.dtype].bits < DTYPES["fp32"].bits
        for state in self.rule.states:
            shape = state.shape(weight.shape)
            if shape is not None:
                dtype = state.dtype or ("fp32" if copied else weight.dtype)
                read.append(self._state(f"{name}.{state.name}", shape, dtype, read[:1], state.flops))
        if not copied:
            self.b.op("update", name, *read, name=f"{name}.updated", flops=self.rule.flops)
            return
        new = self._state(f"{name}.master", weight.shape, "fp32", read, self.rule.flops)
        self.b.op("put", name, new, name=f"{name}.updated")

    def _state(self, name: str, shape: Shape, dtype: str, read: list[str], flops: int) -> str:
        """A state, updated in place."""
        state = self.b.source(name, shape, "buffer", dtype)
        self.states.append(state)
        return self.b.op("update", state, *read, name=f"{name}_new", flops=flops)
