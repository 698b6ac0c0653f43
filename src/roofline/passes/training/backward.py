"""From a forward program to a training step's forward and backward, derived operator by operator."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from roofline.ir.dtypes import dtype as number_format
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph, Node
from roofline.ops.registry import OPS
from roofline.passes.history import graph_pass
from roofline.passes.training.tape import Tape, frozen, kernel_order

#: What is recomputed in the backward instead of being saved: nothing, the attention core, or whole layers.
RECOMPUTE = ("none", "selective", "full")
#: What sequence parallelism gathers is gathered again instead of saved (Korthikanti et al. 2022, section 4.2.2).
_GATHERED = frozenset({"all_gather"})


@graph_pass
def backward(
    graph: Graph,
    *,
    recompute: str | Iterable[str] = "none",
    gradients: str | None = None,
    wrt: Iterable[str] = (),
) -> Graph:
    """Add the backward to a program: one graph of both, whose outputs are the program's and all weights' gradients.

    A loss (an output of one element) starts from one; of any other output the gradient is an input. FLOPs follow from
    each operator's own derivative: a linear layer runs two matmuls of its size, and only one where its input needs no
    gradient; one kernel's backward is one kernel, which recomputes what the forward kernel never stored (fused
    attention: five matmuls for the forward's two, Dao et al., arXiv 2205.14135).

    Args:
        graph: A forward program.
        recompute: ``none``: all that the backward reads is saved; ``selective``: attention between queries, keys and
            values, and its output, is recomputed (Korthikanti et al. 2022, arXiv 2205.05198, section 5); ``full``:
            each layer saves its input only; or operators whose results are recomputed, by name.
        gradients: Number format of the weights' gradients, each weight's own when absent.
        wrt: Inputs whose gradient is computed too, such as what a pipeline stage is sent.

    Returns:
        The program of both; ``info.training.gradients`` pairs each weight with its gradient.

    Raises:
        UsageError: An operator without a backward (names the node), a program with a cache, or nothing to recompute.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> from roofline import count
        >>> b = Builder("two layers", "bf16")
        >>> x = b.op("linear", b.input("x", (8, 64)), b.weight("w1", (64, 64)), name="one")
        >>> step = backward(b.graph([b.op("linear", x, b.weight("w2", (64, 64)), name="two")]))
        >>> [node.name for node in step.nodes if node.op == "matmul"]
        ['two.grad_x', 'two.grad_w', 'one.grad_w']
        >>> count(step).flops // (2 * 8 * 64 * 64)
        5
    """
    if graph.backward_start is not None:
        raise UsageError(f"{graph.name}: has a backward already")
    inputs = frozenset(wrt)
    _check(graph, inputs)
    scopes, operators, notes = _choose(graph, recompute)
    tape = Tape(graph, scopes, operators | _GATHERED, gradients and number_format(gradients).name, inputs)
    _seed(tape)
    for node in reversed(kernel_order(graph)):
        _differentiate(tape, node)
    return _finish(tape, inputs, (*notes, *frozen(graph)))


def _differentiate(tape: Tape, node: Node) -> None:
    with tape.at(node):
        gradient = tape.total(node.outputs[0])
        if gradient is None or not any(tape.needs_grad(name) for name in node.inputs):
            return
        rule = OPS[node.op].gradient
        if rule is None:
            known = [name for name, op in OPS.items() if op.gradient is not None]
            near = did_you_mean(node.op, known)
            raise UsageError(f"{node.name}: no backward is known for {node.op!r}{near}; known: {len(known)} operators")
        tape.enter()
        rule(tape, node, gradient)


def _seed(tape: Tape) -> None:
    """Gradients that the backward starts from."""
    for name in tape.graph.outputs:
        if not tape.needs_grad(name):
            continue
        tensor = tape.b.tensor(name)
        if tensor.numel == 1:
            gradient = tape.b.op("fill", name=f"{name}.grad_one", dtype=tensor.dtype, shape=tensor.shape, value=1)
        else:
            gradient = tape.b.source(f"{name}.grad_in", tensor.shape, "input", tensor.dtype)
        tape.accumulate(name, gradient)
    if not tape.pieces:
        raise UsageError(f"{tape.graph.name}: no output depends on a weight; there is no backward")


def _finish(tape: Tape, wrt: frozenset[str], notes: tuple[str, ...]) -> Graph:
    graph = tape.graph
    totals: list[tuple[str, str]] = []
    for name, tensor in graph.tensors.items():
        if (tensor.kind == "weight" or name in wrt) and name in tape.pieces:
            with tape.at(Node(name, "", (), (name,), kernel=next(iter(tape.groups)))), tape.kernel(""):
                total = tape.total(name)
            assert total is not None
            totals.append((name, total))
    weights = tuple(pair for pair in totals if graph.tensors[pair[0]].kind == "weight")
    outputs = (*graph.outputs, *(gradient for _, gradient in totals))
    return tape.b.graph(outputs).with_info(phase="train", gradients=weights).with_notes(*notes)


def _check(graph: Graph, wrt: frozenset[str]) -> None:
    cached = next((name for name, tensor in graph.tensors.items() if tensor.kind == "cache"), None)
    if cached is not None:
        raise UsageError(f"{graph.name}: has a cache ({cached}), which is not trained through; allowed: phase='train'")
    inputs = [name for name, tensor in graph.tensors.items() if tensor.kind == "input"]
    for name in sorted(wrt - set(inputs)):
        raise UsageError(f"{graph.name}: wrt={name!r} is no input{did_you_mean(name, inputs)}; has {', '.join(inputs)}")


# --- recomputation ---------------------------------------------------------------------------------------------------


def _choose(graph: Graph, recompute: str | Iterable[str]) -> tuple[dict[str, str], frozenset[str], tuple[str, ...]]:
    """Return the blocks that are recomputed, the operators that are, and remarks."""
    if not isinstance(recompute, str):
        ops, there = frozenset(recompute), {node.op for node in graph.nodes}
        for op in sorted(ops - there):
            raise UsageError(f"{graph.name}: recompute={op!r}: no such operator in it{did_you_mean(op, there)}")
        return {}, ops, ()
    if recompute not in RECOMPUTE:
        near = did_you_mean(recompute, (*RECOMPUTE, *OPS))
        raise UsageError(f"recompute={recompute!r}; allowed: {', '.join(RECOMPUTE)}, or a list of operators{near}")
    if recompute == "full":
        layers = {node.name: node.layer for node in graph.nodes if node.layer}
        if not layers:
            raise UsageError(f"{graph.name}: recompute='full' needs layers (names such as layers.0.mlp); it has none")
        return layers, frozenset(), ()
    if recompute == "selective":
        return _attention_cores(graph)
    return {}, frozenset(), ()


def _attention_cores(graph: Graph) -> tuple[dict[str, str], frozenset[str], tuple[str, ...]]:
    """Nodes between the scores and the values' matmul, of attention that is no kernel of its own already."""
    blocks: dict[str, str] = {}
    fused = 0
    for node in graph.nodes:
        if node.op == "attention_values":
            core = _core(node, graph.producer)
            if len({member.label for member in core}) == 1:
                fused += 1
            else:
                blocks.update({member.name: node.name for member in core})
    if not blocks and not fused:
        raise UsageError(f"{graph.name}: recompute='selective' needs attention; it has none")
    note = "attention is already one kernel, which saves no scores: selective recomputation changes nothing there"
    return blocks, frozenset(), (note,) if fused else ()


def _core(values: Node, makers: Mapping[str, Node]) -> list[Node]:
    """A matmul with values and what leads to it from the scores, with the masks that are drawn on the way."""
    core = [values]
    node = makers.get(values.inputs[0])
    while node is not None:
        drawn = (makers[name] for name in node.inputs if name in makers)
        core.extend((node, *(each for each in drawn if not each.inputs)))
        if node.op == "attention_scores":
            return core
        node = makers.get(node.inputs[0]) if node.inputs else None
    return []
