"""Device memory, itemised: weights, KV cache, inputs, activations by last use, workspace, reserve."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import reduce

from roofline.counting.arguments import arguments
from roofline.counting.counts import kernel_boundaries, nbytes
from roofline.hardware.chip import Chip
from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Tensor, once_per_graph
from roofline.ir.sizes import Number, evaluate, maximum, terms
from roofline.ir.units import parse
from roofline.ops.aliases import aliases
from roofline.ops.registry import OPS

#: cuBLAS scratch that PyTorch keeps: 32 MiB on Hopper and later, 8 MiB (2 x 4096 KiB) before (PyTorch docs,
#: CUBLAS_WORKSPACE_CONFIG). One figure for all chips, the larger.
WORKSPACE = 32 * 2**20
#: Driver context, loaded kernels and the framework's own state. An assumption: vendors publish no figure, and it
#: changes with driver and framework.
RESERVE = 2**30


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes by part; numbers or arrays.

    Attributes:
        weights: Parameters and constant buffers, shared ones once.
        kv_cache: Kept state.
        inputs: What the caller hands in.
        activations: The most that is alive at once of what kernels write.
        workspace: Scratch of libraries.
        reserve: Driver context and framework.
    """

    weights: Number
    kv_cache: Number
    inputs: Number
    activations: Number
    workspace: Number = WORKSPACE
    reserve: Number = RESERVE

    @property
    def total(self) -> Number:
        """All parts together [byte]."""
        return sum(getattr(self, part.name) for part in fields(self))

    def parts(self) -> dict[str, Number]:
        """Parts by name, in order."""
        return {part.name: getattr(self, part.name) for part in fields(self)}

    def map(self, function: Callable[[Number], Number]) -> Memory:
        """Apply a function to each part."""
        return type(self)(**{name: function(value) for name, value in self.parts().items()})


@dataclass(frozen=True, slots=True)
class TrainingMemory(Memory):
    """Bytes by part of a training step.

    Attributes:
        gradients: Of all weights. Where they were seen to come and go with the backward, ``activations`` are what the
            fullest moment has beyond them.
        optimizer: States, and the fp32 copy of the weights where there is one.
    """

    gradients: Number = 0
    optimizer: Number = 0


def reserved(reserve: str | float) -> float:
    """Return what driver and framework keep, as a number [byte].

    Args:
        reserve: A number [byte], or text with its unit.

    Raises:
        UnitError: A text without a unit of bytes.
        UsageError: Below zero.

    Example:
        >>> reserved("2 GB")
        2000000000.0
    """
    size = parse(reserve, "B", "reserve")
    if size < 0:
        raise UsageError(f"reserve={reserve!r}: expected a size from 0")
    return size


#: What operators take while they run: the labels of their kernels, and bytes.
Scratch = Iterable[tuple[Iterable[str], Number]]


def memory(
    graph: Graph, sizes: Mapping[str, Number], reserve: float = RESERVE, scratch: Scratch = ()
) -> Memory:  # fmt: skip
    """Itemise what a run of a graph needs.

    Args:
        graph: The program.
        sizes: A value for each symbol, numbers or arrays.
        reserve: Driver context and framework [byte].
        scratch: What operators take while they run, besides their results: the labels of their kernels, and bytes,
            numbers or arrays.

    Returns:
        Bytes by part; of a training step with gradients and optimizer [byte].

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("gemm", "bf16")
        >>> y = b.op("linear", b.input("x", (8, 64)), b.weight("w", (64, 64)))
        >>> need = memory(b.graph([y]), {})
        >>> need.weights, need.inputs, need.activations
        (8192, 1024, 1024)
    """
    graph = _on_one_device(graph)
    stored = _stored(graph)
    gradients = {kind: sum(nbytes(tensor) for tensor in each) for kind, each in _gradients(graph).items()}
    seen = gradients["activation"] if graph.info.lifetimes.freed else 0
    parts = {
        "kv_cache": evaluate(stored["cache"], sizes),
        "inputs": evaluate(stored["input"], sizes),
        "activations": _largest(_peaks(graph, sizes, scratch)) - evaluate(seen, sizes),
        "reserve": reserve,
    }
    resident, training = stored["weight"] + stored["buffer"], graph.info.training
    if training.gradients is None and not training.optimizer:
        return Memory(weights=evaluate(resident, sizes), **parts)
    states = sum(nbytes(graph.tensors[name]) for name in training.optimizer_states)
    return TrainingMemory(
        weights=evaluate(resident - states - gradients["buffer"], sizes),
        gradients=evaluate(sum(gradients.values()), sizes),
        optimizer=evaluate(states, sizes),
        **parts,
    )


@once_per_graph
def _gradients(graph: Graph) -> Mapping[str, list[Tensor]]:
    """Tensors that the weights' gradients are in, by kind: those that are added up are buffers."""
    names = dict.fromkeys(aliases(graph).root(name) for _, name in graph.info.training.gradients or ())
    every: dict[str, list[Tensor]] = {"activation": [], "buffer": []}
    for name in names:
        every.setdefault(graph.tensors[name].kind, []).append(graph.tensors[name])
    return every


@once_per_graph
def _on_one_device(graph: Graph) -> Graph:
    """Return what a device holds: of a pipeline the stage that stores most, with every size at one."""

    def stored(stage: Graph) -> float:
        at = dict.fromkeys(stage.symbols, 1)
        resident = [t for t in stage.tensors.values() if t.kind in ("weight", "buffer", "cache")]
        return float(sum(evaluate(t.numel, at) * float(DTYPES[t.dtype].bytes) for t in resident))

    return max(graph.info.pipeline, key=stored, default=graph)


def _largest(values: list[Number]) -> Number:
    return reduce(maximum, values, 0)


@once_per_graph
def _stored(graph: Graph) -> dict[str, Number]:
    totals: dict[str, Number] = {"weight": 0, "buffer": 0, "cache": 0, "input": 0, "activation": 0}
    alike = {(tensor.kind, tensor.shape, tensor.dtype): tensor for tensor in graph.tensors.values()}
    numbers = Counter((tensor.kind, tensor.shape, tensor.dtype) for tensor in graph.tensors.values())
    for key, number in numbers.items():
        totals[key[0]] = totals[key[0]] + nbytes(alike[key]) * number
    return totals


def _peaks(graph: Graph, sizes: Mapping[str, Number], scratch: Scratch) -> list[Number]:
    """Return live bytes at the moments that can be the peak."""
    peaks = [evaluate(peak, sizes) for peak in _live_peaks(graph)]
    for labels, taken in scratch:
        moments = undominated(_live_at(graph)[label] for label in labels if label in _live_at(graph))
        peaks += [evaluate(live, sizes) + taken for live in moments]
    return peaks


@once_per_graph
def _live_peaks(graph: Graph) -> tuple[Number, ...]:
    """Return symbolic live bytes at the moments that can be the peak."""
    return undominated(_live(graph))


@once_per_graph
def _live_at(graph: Graph) -> Mapping[str, Number]:
    """Return symbolic live bytes while each kernel runs, by label."""
    return {node.label: live for node, live in zip(graph.nodes, _live(graph), strict=True)}


def _live(graph: Graph) -> Iterator[Number]:
    """Yield live activation bytes after each node's output is allocated."""
    made: dict[int, list[Number]] = {}
    frees: dict[int, list[Number]] = {}
    for tensor, first, last in allocations(graph):
        made.setdefault(first, []).append(nbytes(tensor))
        frees.setdefault(last, []).append(nbytes(tensor))
    live: Number = 0
    for at in range(len(graph.nodes)):
        live = sum(made.get(at, ()), start=live)
        yield live
        live = live - sum(frees.get(at, ()))


def allocations(graph: Graph) -> Iterator[tuple[Tensor, int, int]]:
    """Yield what is allocated, with the nodes before and after which it is allocated and freed.

    A tensor is allocated when its kernel writes it and freed after the last kernel that reads it or a view of it, later
    where the program was seen to refer to it for longer; one that never leaves its kernel is never allocated. Of a
    program that nobody saw running, it lives until the module that it was given to has returned.
    """
    ends = {node.label: at for at, node in enumerate(graph.nodes)}
    places = {node.name: at for at, node in enumerate(graph.nodes)}
    until = {"": len(graph.nodes), **{node.name: ends[node.label] for node in graph.nodes}}
    last = _last_uses(graph, until)
    if not graph.info.lifetimes.freed:  # gradients stay from step to step
        gradients = {tensor.name for tensor in _gradients(graph)["activation"]}
        last = {name: end for name, end in last.items() if name not in gradients}
    for name, node in graph.info.lifetimes.freed.items():
        if name in last:
            last[name] = max(last[name], until.get(node, 0))
    for name, end in last.items():
        yield graph.tensors[name], places[graph.producer[name].name], end
    for tensor, first, after in graph.info.lifetimes.unread:
        if first in places and after in until:
            yield tensor, places[first], max(places[first], until[after])


def _last_uses(graph: Graph, until: Mapping[str, int]) -> dict[str, int]:
    """For each allocated activation, the index of the node after which nothing reads it.

    Args:
        graph: The program.
        until: The last node of each node's kernel.
    """
    scope, last = kernel_boundaries(graph), dict[str, int]()
    for node in graph.nodes:
        for name in node.outputs:
            if scope.root(name) == name and OPS[node.op].kind != "view" and scope.leaves(name, node.label):
                last[name] = until[node.name]
    stored = {name for name, tensor in graph.tensors.items() if tensor.kind != "activation"}
    within = {name: owner for name, owner in graph.info.lifetimes.within.items() if owner in last or owner in stored}
    uses = [(name, last.pop(name)) for name in within if name in last]
    uses += [(name, until[node.name]) for node in graph.nodes for name in node.inputs]
    uses += [(name, len(graph.nodes)) for name in graph.outputs]
    if not graph.info.lifetimes:
        uses += [(name, until[graph.nodes[at].name]) for name, at in arguments(graph)]
    for name, end in uses:
        root = scope.root(name)
        root = within.get(root, root)
        if root in last:
            last[root] = max(last[root], end)
    return last


def undominated(values: Iterable[Number]) -> tuple[Number, ...]:
    """Drop polynomials that another one exceeds term by term, whatever the (positive) sizes."""
    largest: list[Number] = []
    for value in dict.fromkeys(values):
        if not any(_dominates(other, value) for other in largest):
            largest = [other for other in largest if not _dominates(value, other)] + [value]
    return tuple(largest)


def _dominates(a: Number, b: Number) -> bool:
    left, right = dict(terms(a)), dict(terms(b))
    return all(left.get(key, 0) >= right.get(key, 0) for key in left.keys() | right.keys())


def fits(need: Memory, chip: Chip) -> Number:
    """Tell whether the total stays within the chip's capacity."""
    return need.total <= chip.capacity


def footprint_text(need: Memory) -> str:
    """One line that itemises a scalar footprint in GiB."""
    return ", ".join(f"{name} {float(value) / 2**30:.2f}" for name, value in need.parts().items()) + " GiB"
