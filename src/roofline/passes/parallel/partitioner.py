"""SPMD partitioner: a program as one of several devices runs it, with the collectives between.

The walk goes over a program whose weights were already cut (:mod:`roofline.passes.parallel.plan`). A matmul that sums
over an axis that was cut leaves a *partial sum*; it stays one through everything linear, so that the branches of a
parallel block, or experts and the shared expert next to them, are added up in one all-reduce, and is reduced before
anything else reads it. What is *replicated*, whole on every device, before a device computes a share of it passes
``parallel_input``: free in the forward, and its backward adds up what the devices return (Shoeybi et al. 2019,
figure 3, the operators g and f). Rows of tokens are *away* while they are on the devices of their experts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from roofline.ir.graph import Graph, Node
from roofline.ir.sizes import Size, prod
from roofline.ops.builder import Builder
from roofline.ops.registry import OPS

#: Matmuls with a weight as second operand, of which the last axis of the first is summed.
MATMULS = frozenset({"linear", "matmul", "bmm", "expert_linear"})
#: Linear in each operand alone: a partial sum passes where no other operand is one.
_SCALES = frozenset({"mul", "mul_scalar", "neg", "div", "scatter_add", "gather_rows", "alltoall"})
#: Linear in all operands together: partial sums pass where all are.
_SUMS = frozenset({"add", "sub"})
#: Moves of whole rows: what is replicated may be so before them.
_MOVES = frozenset({"view", "permute", "gather_rows"})

#: Norms of rows: over an axis that was cut they run on the gathered row, as vLLM runs OLMo 2's (models/olmo2.py).
NORMS = frozenset({"rmsnorm", "layernorm"})
#: What reads logits for a loss: as one kernel, or as a softmax from which the labels' entries are taken.
LOSSES = ("cross_entropy", "softmax")
#: What devices with shares of the logits exchange for it, one number per row each: the largest logit, the label's, and
#: the sum of the exponentials (Megatron-LM, tensor_parallel/cross_entropy.py).
LOSS_EXCHANGES = 3


def exchange(b: Builder, op: str, tensor: str, devices: int, shape: tuple[Size, ...] | None = None) -> str:
    """Add a collective on a tensor of any rank; ``shape`` is that of the result where it is another."""
    before = b.shape(tensor)
    after = before if shape is None else shape
    flat = tensor if len(before) == 1 else b.op("view", tensor, name=f"{tensor}.flat", shape=(prod(before),))
    result = b.op(op, flat, name=f"{tensor}.{op}", devices=devices)
    return result if len(after) == 1 else b.op("view", result, name=f"{tensor}.{op}_whole", shape=after)


@dataclass(frozen=True)
class ShardedProgram:
    """A program with its weights cut, and what was cut.

    Attributes:
        graph: The program with its weights cut.
        whole: The program before.
        cut: Tells whether an axis of a tensor was cut for tensor parallelism.
        tp: Devices that share every layer.
        ep: Groups of them that share the experts.
        heads: Outputs of matmuls with a share of the vocabulary, and their whole last axis.
        tables: Embedding tables of which a device holds a share of the rows.
    """

    graph: Graph
    whole: Graph
    cut: Callable[[str, int], bool]
    tp: int
    ep: int
    heads: Mapping[str, Size]
    tables: frozenset[str]

    def is_cut(self, name: str) -> bool:
        """Tell whether a device has a share of a tensor."""
        return any(self.cut(name, axis) for axis in range(len(self.graph.tensors[name].shape)))

    def last_is_cut(self, name: str) -> bool:
        """Tell whether a device has a share of the last axis of a tensor."""
        return self.cut(name, len(self.graph.tensors[name].shape) - 1)

    def leaves_partial_sum(self, node: Node) -> bool:
        """Tell whether a node sums over an axis that was cut."""
        if node.op == "embedding":
            return node.inputs[0] in self.tables
        return node.op in MATMULS and self.last_is_cut(node.inputs[0])

    def has_gradient(self, name: str) -> bool:
        """Tell whether something learned has a gradient by this tensor: no mask, index or table of positions."""
        dtype = self.graph.tensors[name].dtype
        return name in self._computed_from_weights and not dtype.startswith("int") and dtype != "bool"

    @cached_property
    def _computed_from_weights(self) -> frozenset[str]:
        weights = {name for name, tensor in self.graph.tensors.items() if tensor.kind == "weight"}
        names = set(weights)
        for node in self.graph.nodes:
            if not names.isdisjoint(node.inputs):
                names.update(node.outputs)
        return frozenset(names - weights)

    @cached_property
    def replicated_inputs(self) -> Mapping[str, tuple[int, ...]]:
        """For each node the inputs that every device needs whole, found from the last node to the first."""
        places: dict[str, tuple[int, ...]] = {}
        before_move: set[str] = set()  # tensors that are better replicated before the move that makes them
        for node in reversed(self.graph.nodes):
            if node.op in _MOVES and node.op != "view" and self._all_replicate(node.outputs[0], places):
                before_move.add(node.outputs[0])
                places[node.name] = (0,) if self.has_gradient(node.inputs[0]) else ()
            else:
                places[node.name] = self._whole_for_a_share(node)
        return {
            node.name: tuple(at for at in places[node.name] if node.inputs[at] not in before_move)
            for node in self.graph.nodes
        }

    def _all_replicate(self, name: str, places: Mapping[str, tuple[int, ...]]) -> bool:
        readers = self.graph.consumers.get(name, ())
        needs = [at in places.get(n.name, ()) for n in readers for at, i in enumerate(n.inputs) if i == name]
        return bool(needs) and all(needs) and name not in self.graph.outputs

    def _whole_for_a_share(self, node: Node) -> tuple[int, ...]:
        """Inputs that are whole where the output is a share."""
        if self.tp == 1 or not (self.is_cut(node.outputs[0]) or node.outputs[0] in self.heads):
            return ()
        return tuple(at for at, name in enumerate(node.inputs) if not self.is_cut(name) and self.has_gradient(name))


def partition(program: ShardedProgram) -> Graph:
    """Write the program of one device."""
    return _Partitioner(program).run()


class _Partitioner:
    """The walk.

    Attributes:
        now: For tensors of the program, the one that holds them from here on.
        partial: Partial sums.
        away: Tensors whose rows are on their experts' devices.
        split: Kernels that end where the devices exchange something.
    """

    def __init__(self, program: ShardedProgram) -> None:
        self.program, self.graph, self.tp, self.ep = program, program.graph, program.tp, program.ep
        self.b = Builder.of(self.graph, nodes=())
        self.now: dict[str, str] = {}
        self.partial: set[str] = set()
        self.away: set[str] = set()
        self.split: set[str] = set()
        self._replicas: dict[str, str] = {}
        self._exchanged: dict[tuple[str, str], str] = {}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self._node(node)
        return self.b.graph(self._reduced(self.now.get(name, name)) for name in self.graph.outputs)

    def _node(self, node: Node) -> None:
        needs = self.program.replicated_inputs[node.name]
        names = [self._replica(i) if at in needs else self.now.get(i, i) for at, i in enumerate(node.inputs)]
        names, away = self._sent(node, names)
        names, partial = self._summed(node, names)
        if node.op in NORMS and self.program.last_is_cut(node.inputs[0]):
            self._norm(node, names)
            return
        attrs = node.attrs
        if away and node.op == "expert_linear":
            attrs = tuple((key, share(value, self.ep) if key == "top_k" else value) for key, value in attrs)
        # A kernel ends where the devices talk.
        kernel = f"{node.kernel}.rest" if node.label in self.split else node.kernel
        self.b.place(replace(node, inputs=tuple(names), attrs=attrs, kernel=kernel))
        if partial or self.program.leaves_partial_sum(node):
            self.partial.update(node.outputs)
        if away:
            self.away.update(node.outputs)
        if node.op in ("cross_entropy", "take") and self.program.last_is_cut(node.inputs[0]):
            self._exchange_loss(node)
        for name in node.outputs:
            if name in self.program.heads:
                self.now[name] = self._gathered(name, self.program.heads[name])

    def _exchange_loss(self, node: Node) -> None:
        here = node.outputs[0]
        if self.program.is_cut(here):
            return
        for _ in range(LOSS_EXCHANGES):
            here = exchange(self.b, "all_reduce", here, self.tp)
        self.now[node.outputs[0]] = here
        if len(self.graph.kernels[node.label]) > 1:
            self.split.add(node.label)

    def _gathered(self, name: str, last: Size) -> str:
        """All of the last axis; what was added to make the shards equal, or is held twice, is left out."""
        *lead, part = self.b.shape(name)
        padded = part * self.tp
        whole = exchange(self.b, "all_gather", name, self.tp, (*lead, padded))
        return whole if last == padded else self.b.op("slice", whole, name=f"{name}.unpadded", shape=(*lead, last))

    def _norm(self, node: Node, names: list[str]) -> None:
        """Gather the rows, norm them whole, and go on with a share."""
        out, whole = node.outputs[0], self.program.whole.tensors
        part = self.b.shape(out)
        rows = self._gathered(names[0], whole[node.inputs[0]].shape[-1])
        for name in (*node.inputs[1:], out):
            self.b.restate(name, whole[name].shape)
        self.b.place(replace(node, inputs=(rows, *names[1:])))
        self.now[out] = self.b.op("slice", out, name=f"{out}.share", shape=part)

    def _once(self, op: str, name: str, devices: int) -> str:
        """The result of a collective, which runs once per tensor."""
        if (op, name) not in self._exchanged:
            self._exchanged[op, name] = exchange(self.b, op, name, devices)
        return self._exchanged[op, name]

    # --- partial sums -----------------------------------------------------------------------------------------------

    def _summed(self, node: Node, names: list[str]) -> tuple[list[str], bool]:
        """Inputs with their partial sums reduced, unless they pass; and whether they pass."""
        partial = [name in self.partial for name in names]
        if any(partial) and self._passes(node, partial):
            return [name if p or not self.program.has_gradient(i) else self._replica(i)
                    for i, name, p in zip(node.inputs, names, partial, strict=True)], True  # fmt: skip
        return [self._reduced(name) for name in names], False

    def _passes(self, node: Node, partial: list[bool]) -> bool:
        if len(self.graph.kernels[node.label]) > 1 or not all(
            len(self.graph.consumers.get(name, ())) == 1 and name not in self.graph.outputs
            for name, p in zip(node.inputs, partial, strict=True)
            if p
        ):
            return False
        if node.op in _SUMS:
            return all(partial)
        return (OPS[node.op].kind == "view" or node.op in _SCALES) and partial[0] and sum(partial) == 1

    def _reduced(self, name: str) -> str:
        """A partial sum added up over the devices; anything else as it is."""
        return self._once("all_reduce", name, self.tp) if name in self.partial else name

    def _replica(self, name: str) -> str:
        """A tensor as every device gets it, once; a view of one is a view of what they get."""
        if name not in self._replicas:
            here, node, path = self.now.get(name, name), self.graph.producer.get(name), f"{name}.given"
            computed = node is not None and node.op == "view" and node.inputs[0] in self.graph.producer
            if computed and here == name and here not in self.partial and node is not None:
                source, shape = self._replica(node.inputs[0]), self.graph.tensors[name].shape
                self._replicas[name] = self.b.op("view", source, name=path, shape=shape)
            else:
                self._replicas[name] = self.b.op("parallel_input", self._reduced(here), name=path, devices=self.tp)
        return self._replicas[name]

    # --- experts on other devices -----------------------------------------------------------------------------------

    def _sent(self, node: Node, names: list[str]) -> tuple[list[str], bool]:
        """Rows that go to the experts' devices or come back; and whether what the node writes is with them."""
        if self.ep == 1:
            return names, False
        if node.op == "expert_linear":
            rows = names[0] if names[0] in self.away else exchange(self.b, "alltoall", names[0], self.ep)
            self.away.add(rows)
            return [rows, *names[1:]], True
        rows_only = [name for name in names if self.b.tensor(name).kind == "activation"]
        if self.away.isdisjoint(names):
            return names, False
        if self.away.issuperset(rows_only) and OPS[node.op].kind in ("pointwise", "view"):
            return names, True
        return [self._home(name) if name in self.away else name for name in names], False

    def _home(self, name: str) -> str:
        rows = self._once("alltoall", name, self.ep)
        if name in self.partial:
            self.partial.add(rows)
        return rows


def share(value: int, devices: int) -> int | Fraction:
    """Divide a number among devices; whole where it comes out even."""
    part = Fraction(value, devices)
    return part.numerator if part.denominator == 1 else part
