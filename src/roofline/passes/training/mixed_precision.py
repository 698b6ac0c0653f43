"""One step of training on one device: forward, backward and update as one program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph, Node
from roofline.ops.builder import Builder
from roofline.ops.registry import OPS
from roofline.passes.formats.autocast import autocast
from roofline.passes.formats.cast import cast
from roofline.passes.history import graph_pass
from roofline.passes.training.backward import backward
from roofline.passes.training.optimizer import optimizer as add_optimizer


@dataclass(frozen=True)
class Precision:
    """Number formats of a training step.

    Attributes:
        stored: Of weights and of what flows, as in the program when empty.
        lower: That matmuls run in under autocast; empty for none.
        master: Whether the optimizer keeps an fp32 copy of the weights.
    """

    stored: str = ""
    lower: str = ""
    master: bool = False


#: What a step may run in. ``amp``: fp32 weights under autocast; ``mixed``: 16-bit weights beside an fp32 copy, as
#: Megatron-LM trains; a format alone: everything in it, the optimizer's states too.
PRECISIONS = {
    "fp32": Precision("fp32"),
    "bf16": Precision("bf16"),
    "fp16": Precision("fp16"),
    "amp-bf16": Precision("fp32", "bf16"),
    "amp-fp16": Precision("fp32", "fp16"),
    "mixed-bf16": Precision("bf16", master=True),
    "mixed-fp16": Precision("fp16", master=True),
}


@graph_pass
def training_graph(
    graph: Graph,
    *,
    optimizer: str | None = "adamw",
    precision: str | None = None,
    recompute: str | Iterable[str] = "none",
    gradients: str | None = None,
    micro_batches: int = 1,
    clip: bool = False,
) -> Graph:
    """Add backward and update to a forward program: a whole step of training, as a framework runs it on one device.

    Args:
        graph: A forward program, best of phase ``train``, which has dropout and a loss.
        optimizer: As in :func:`roofline.passes.optimizer`; ``None`` for no update.
        precision: ``fp32``, ``bf16``, ``fp16``, ``amp-bf16``, ``amp-fp16``, ``mixed-bf16`` or ``mixed-fp16``; as the
            program is when absent.
        recompute: As in :func:`roofline.passes.backward`.
        gradients: Number format of the weights' gradients, theirs when absent.
        micro_batches: Forward and backward runs whose gradients are added up before the update; the program's batch is
            that of one of them.
        clip: Scale gradients to a largest norm.

    Returns:
        The program of one step.

    Raises:
        UsageError: No such precision or optimizer, or no whole number of micro-batches from 1.

    Example:
        >>> import roofline as rl
        >>> step = training_graph(rl.model("gpt2", phase="train"), precision="amp-bf16")
        >>> forward = rl.count(rl.model("gpt2", phase="train"), B=1, S=1024).flops
        >>> round(rl.count(step, B=1, S=1024).flops / forward, 2)  # fused attention multiplies five times for two
        3.04
    """
    if precision is not None and precision not in PRECISIONS:
        near = did_you_mean(precision, PRECISIONS)
        raise UsageError(f"precision={precision!r}; allowed: {', '.join(PRECISIONS)}{near}")
    if isinstance(micro_batches, bool) or not isinstance(micro_batches, int) or micro_batches < 1:
        raise UsageError(f"micro_batches={micro_batches!r}: expected a whole number from 1")
    formats = PRECISIONS[precision] if precision else Precision()
    if formats.stored:
        graph = cast(graph, formats.stored)
    if formats.lower:
        graph = autocast(graph, formats.lower)
    graph = backward(graph, recompute=recompute, gradients=gradients)
    if micro_batches > 1:
        graph = accumulate(graph, micro_batches)
    if optimizer is not None:
        graph = add_optimizer(graph, optimizer, master=formats.master, clip=clip)
    return graph


@graph_pass
def accumulate(graph: Graph, micro_batches: int, *, fused: bool = False) -> Graph:
    """Run forward and backward several times, each on a micro-batch, and add the gradients up.

    Args:
        graph: A program with its backward.
        micro_batches: How often.
        fused: Matmuls of weights' gradients add to what is there themselves, as Megatron-LM's do
            (``gradient_accumulation_fusion``); else a kernel of its own does, as autograd's.

    Returns:
        The program whose outputs are the sums, for ``micro_batches`` times the items.

    Raises:
        UsageError: The graph has no backward.

    Example:
        >>> import roofline as rl
        >>> once = rl.passes.backward(rl.model("gpt2", phase="train", layers=1))
        >>> rl.count(accumulate(once, 4), B=2, S=64).flops == 4 * rl.count(once, B=2, S=64).flops
        True
    """
    gradients = graph.info.training.gradients
    if gradients is None:
        raise UsageError(f"{graph.name}: has no backward; add it with backward(graph)")
    b = Builder.of(graph, dtype="fp32")
    sums: dict[str, list[str]] = {}  # two weights that are added up have one gradient, and a sum each
    pairs: list[tuple[str, str]] = []
    for weight, gradient in gradients:
        tensor = graph.tensors[gradient]
        total = b.source(f"{weight}.grad_kept", tensor.shape, "buffer", tensor.dtype)
        pairs.append((weight, b.op("update", total, gradient, name=f"{weight}.grad_added")))
        sums.setdefault(gradient, []).append(pairs[-1][1])
    outputs = dict.fromkeys(each for name in graph.outputs for each in sums.get(name, [name]))
    whole = b.graph(outputs, graph.items * micro_batches)
    whole = replace(whole, nodes=_added_at_once(whole, frozenset(name for _, name in pairs)))
    labels = _matmuls(graph, sums) if fused else {}
    nodes = tuple(
        replace(node, count=node.count * micro_batches, kernel=labels.get(node.name, node.kernel))
        for node in whole.nodes
    )
    return replace(whole, nodes=nodes).with_info(gradients=tuple(pairs), micro_batches=micro_batches)


def _matmuls(graph: Graph, sums: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """For each sum of a matmul's result, the kernel of that matmul."""
    made = graph.producer
    return {
        total: made[name].label for name, totals in sums.items() for total in totals
        if name in made and OPS[made[name].op].kind in ("matmul", "conv")
    }  # fmt: skip


def _added_at_once(graph: Graph, sums: frozenset[str]) -> tuple[Node, ...]:
    """The nodes with each gradient added to its sum where it is made, so that nothing waits for the end."""
    adding: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if sums.intersection(node.outputs):
            adding.setdefault(node.inputs[1], []).append(node)
    handed_in = (name for name in adding if name not in graph.producer)  # what somebody else works out
    nodes = [added for name in handed_in for added in adding[name]]
    for node in graph.nodes:
        if not sums.intersection(node.outputs):
            nodes += [node, *(added for name in node.outputs for added in adding.get(name, ()))]
    return tuple(nodes)
