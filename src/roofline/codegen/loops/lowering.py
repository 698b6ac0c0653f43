"""A graph as loop nests, kernel by kernel."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from roofline.codegen.loops.contractions import contraction
from roofline.codegen.loops.elements import RULES
from roofline.codegen.loops.form import Buffer, Kernel, rebuffered, straight
from roofline.codegen.loops.writer import Rule, Writer
from roofline.ir.errors import UnboundSize, UnknownOp
from roofline.ir.graph import Graph, Node
from roofline.ir.sizes import size_names
from roofline.ops.aliases import aliases
from roofline.ops.einsum import einsum
from roofline.ops.registry import OPS, get_op


@dataclass(frozen=True)
class Call:
    """One launch of a kernel.

    Attributes:
        kernel: What runs.
        operands: The storage that it is handed, in the order of its operands.
        times: How often, on other data each time.
    """

    kernel: Kernel
    operands: tuple[str, ...]
    times: int = 1


@dataclass(frozen=True)
class LoopProgram:
    """A program as loop nests.

    Attributes:
        name: What it is called.
        buffers: All storage, by name: what the caller hands in, what the program returns, what lies between.
        calls: Launches, in order; equal kernels are one.
        inputs: Storage that the caller fills.
        outputs: Storage that outlives the run.
    """

    name: str
    buffers: Mapping[str, Buffer]
    calls: tuple[Call, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The distinct kernels, in order of first launch."""
        return tuple(dict.fromkeys(call.kernel for call in self.calls))


def loop_nests(graph: Graph, seed: int = 0) -> LoopProgram:
    """Write a program as loop nests, a function for each distinct kernel.

    Args:
        graph: The program, without symbols: bind its sizes first.
        seed: Of what operators leave open, as for :func:`roofline.ops.execute`.

    Returns:
        The loops, before any of the passes on them.

    Raises:
        UnboundSize: A size is a symbol.
        UnknownOp: No rule writes loops for an operator.
        UsageError: An operator that does not say what it computes.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("gemm", "fp32")
        >>> y = b.op("linear", b.input("x", (4, 8)), b.weight("w", (6, 8)), name="y")
        >>> program = loop_nests(b.graph([y]))
        >>> [buffer.shape for buffer in program.kernels[0].operands]
        [(4, 6), (4, 8), (6, 8)]
    """
    if graph.symbols:
        raise UnboundSize(f"{graph.name} needs a value for {size_names(graph.symbols)} before it becomes loops")
    calls = _shared(_call(graph, label, nodes, seed) for label, nodes in _launched(graph))
    roots = aliases(graph).root
    names = dict.fromkeys(name for call in calls for name in call.operands)
    outputs = tuple(dict.fromkeys(roots(name) for name in graph.outputs))
    buffers = {name: _storage(graph, name) for name in (*names, *outputs)}
    inputs = tuple(name for name, tensor in graph.tensors.items() if name in buffers and tensor.kind != "activation")
    return LoopProgram(graph.name, buffers, tuple(calls), inputs, outputs)


def _shared(calls: Iterable[Call]) -> list[Call]:
    """Let equal kernels be one, of the first name."""
    first: dict[Hashable, Kernel] = {}
    return [
        replace(call, kernel=first.setdefault((call.kernel.buffers, call.kernel.body), call.kernel)) for call in calls
    ]


def _storage(graph: Graph, name: str) -> Buffer:
    tensor = graph.tensors[name]
    return Buffer(name, tuple(int(size) for size in tensor.shape), tensor.dtype)  # type: ignore[arg-type]


def _launched(graph: Graph) -> Iterator[tuple[str, tuple[Node, ...]]]:
    """Yield kernels in an order in which all that one reads is written: at their last nodes."""
    last = {node.label: at for at, node in enumerate(graph.nodes)}
    for label in sorted(graph.kernels, key=last.__getitem__):
        if any(OPS[node.op].kind != "view" for node in graph.kernels[label]):
            yield label, graph.kernels[label]


def rule_of(node: Node) -> Rule:
    """Return what writes the loops of a node.

    Raises:
        UnknownOp: No rule does.
    """
    op = get_op(node.op, node.name)
    if op.reference is einsum:
        return contraction
    if node.op not in RULES:
        raise UnknownOp(f"{node.name}: no rule writes loops for {node.op}")
    return RULES[node.op]


def _call(graph: Graph, label: str, nodes: tuple[Node, ...], seed: int) -> Call:
    writer = Writer(graph, label, seed)
    for node in nodes:
        if OPS[node.op].kind != "view":
            if OPS[node.op].alias is None:
                writer.place(node.outputs[0], ())  # what is written comes before what is read
            rule_of(node)(writer, node)
    handed = [name for name, buffer in writer.buffers.items() if not buffer.local]
    local = [name for name, buffer in writer.buffers.items() if buffer.local]
    to = {name: f"arg{at}" for at, name in enumerate(handed)} | {name: f"tmp{at}" for at, name in enumerate(local)}
    buffers = tuple(replace(writer.buffers[name], name=to[name]) for name in (*handed, *local))
    body = tuple(rebuffered(each, to) for each in straight(tuple(writer.body)))
    return Call(Kernel(label, buffers, body), tuple(handed), nodes[0].count)
