"""A program as one of several devices runs it: partial sums are added up, shards gathered, experts' tokens sent.

The walk goes over a program whose weights were already cut (``splits``). A product that sums over an
axis that was cut leaves a *partial sum*; it stays one through everything linear, so that the branches of a parallel
block, or experts and the shared expert beside them, are added up in one all-reduce, and is reduced before anything
else reads it. What a device is given whole before it computes a share of it passes ``parallel_input``: free in the
forward, and its backward adds up what the devices return (Shoeybi et al. 2019, figure 3, the operators g and f).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import Any

from roofline.ir.graph import Graph, Node, Tensor
from roofline.ir.sizes import Size, prod
from roofline.ops.registry import OPS, get_op
from roofline.passes.editing import unused

#: Products with a weight as second operand, of which the last axis of the first is summed.
PRODUCTS = frozenset({"linear", "matmul", "bmm", "expert_linear"})
#: Linear in each operand alone: a partial sum passes where no other operand is one.
_SCALES = frozenset({"mul", "mul_scalar", "neg", "div", "scatter_add", "gather_rows", "alltoall"})
#: Linear in all operands together: partial sums pass where all are.
_SUMS = frozenset({"add", "sub"})
#: Moves of whole rows: what a device is given whole may be given before them.
_MOVES = frozenset({"view", "permute", "gather_rows"})

#: Norms of rows: over an axis that was cut they run on the gathered row, as vLLM runs OLMo 2's (models/olmo2.py).
NORMS = frozenset({"rmsnorm", "layernorm"})
#: What reads logits for a loss: as one kernel, or as a softmax from which the labels' entries are taken.
LOSSES = ("cross_entropy", "softmax")
#: What devices with shares of the logits exchange for it, a number a row each: the largest logit, the label's, and the
#: sum of the exponentials (Megatron-LM, tensor_parallel/cross_entropy.py).
LOSS_EXCHANGES = 3


class Writer:
    """A graph written anew, node by node, with others between."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tensors: dict[str, Tensor] = dict(graph.tensors)
        self.nodes: list[Node] = []
        self.names = {node.name for node in graph.nodes} | set(graph.tensors)

    def add(self, op: str, *inputs: str, name: str, **attrs: Any) -> str:
        """Add a node; returns its output."""
        path = unused(name, self.names)
        self.names.add(path)
        shape = get_op(op, path).output([self.tensors[each].shape for each in inputs], attrs)
        self.tensors[path] = Tensor(path, shape, self.tensors[inputs[0]].dtype)
        self.nodes.append(Node(path, op, inputs, (path,), tuple(sorted(attrs.items())), scope=path.rpartition(".")[0]))
        return path

    def exchange(self, op: str, tensor: str, devices: int, shape: tuple[Size, ...] | None = None) -> str:
        """A collective on a tensor of any rank; ``shape`` is that of the result where it is another."""
        before = self.tensors[tensor].shape
        flat = tensor if len(before) == 1 else self.add("view", tensor, name=f"{tensor}.flat", shape=(prod(before),))
        given = self.add(op, flat, name=f"{tensor}.{op}", devices=devices)
        after = before if shape is None else shape
        return given if len(after) == 1 else self.add("view", given, name=f"{tensor}.{op}_whole", shape=after)

    def finish(self, outputs: tuple[str, ...], **changes: Any) -> Graph:
        """The validated graph; tensors that nothing writes any more are gone."""
        written = {name for node in self.nodes for name in node.outputs}
        kept = {name: t for name, t in self.tensors.items() if t.kind != "activation" or name in written}
        return replace(self.graph, tensors=kept, nodes=tuple(self.nodes), outputs=outputs, **changes).validate()


class Ranks(Writer):
    """The walk.

    Args:
        graph: The program with its weights cut.
        before: The whole program.
        cut: Whether an axis of a tensor was cut for tensor parallelism.
        tp: Devices that share every layer.
        ep: Groups of them that share the experts.
        heads: Outputs of products with a share of the vocabulary, and their whole last axis.
        tables: Embedding tables of which a device holds a share of the rows.
    """

    def __init__(
        self, graph: Graph, before: Graph, cut: Callable[[str, int], bool], tp: int, ep: int, heads: Mapping[str, Size],
        tables: frozenset[str],
    ) -> None:  # fmt: skip
        super().__init__(graph)
        self.before, self.cut, self.tp, self.ep, self.heads, self.tables = before, cut, tp, ep, heads, tables
        self.now: dict[str, str] = {}
        self.partial: set[str] = set()
        self.away: set[str] = set()
        self.given: dict[str, str] = {}
        self.reduced: dict[str, str] = {}
        self.back: dict[str, str] = {}
        self.broken: set[str] = set()
        self.producer = graph.producer
        self._learned = _learned(graph)
        self._wants = self._wanted()

    def run(self) -> Graph:
        """Write the program of one device."""
        for node in self.graph.nodes:
            self._node(node)
        return self.finish(tuple(self._out(name) for name in self.graph.outputs))

    def _out(self, name: str) -> str:
        here = self.now.get(name, name)
        return self.reduce(here) if here in self.partial else here

    # --- one node -------------------------------------------------------------------------------------------------

    def _node(self, node: Node) -> None:
        names = [self.now.get(name, name) for name in node.inputs]
        names = self._whole_given(node, names)
        names, away = self._sent(node, names)
        names, partial = self._sums(node, names)
        if node.op in NORMS and self._cut_last(node.inputs[0]):
            self._norm(node, names)
            return
        attrs = node.attrs
        if away and node.op == "expert_linear":
            attrs = tuple((key, share(value, self.ep) if key == "top_k" else value) for key, value in attrs)
        # A kernel ends where the devices talk.
        kernel = f"{node.kernel}.rest" if node.label in self.broken else node.kernel
        self.nodes.append(replace(node, inputs=tuple(names), attrs=attrs, kernel=kernel))
        if self._sums_over_cut(node) or partial:
            self.partial.update(node.outputs)
        if away:
            self.away.update(node.outputs)
        if node.op in ("cross_entropy", "take") and self._cut_last(node.inputs[0]):
            self._exchange_loss(node)
        for name in node.outputs:
            if name in self.heads:
                self._gather(name)

    def _exchange_loss(self, node: Node) -> None:
        here = node.outputs[0]
        if self._is_cut(here):
            return
        for _ in range(LOSS_EXCHANGES):
            here = self.exchange("all_reduce", here, self.tp)
        self.now[node.outputs[0]] = here
        if len(self.graph.kernels[node.label]) > 1:
            self.broken.add(node.label)

    def _sums_over_cut(self, node: Node) -> bool:
        """Whether a node leaves a partial sum."""
        if node.op == "embedding":
            return node.inputs[0] in self.tables
        return node.op in PRODUCTS and self._cut_last(node.inputs[0])

    def _gather(self, name: str) -> None:
        """Put the shards of a head's last axis together."""
        self.now[name] = self._whole_rows(name, self.heads[name])

    def _whole_rows(self, name: str, last: Size) -> str:
        """All of the last axis; what was added to make the shards equal, or is held twice, is left out."""
        *lead, part = self.tensors[name].shape
        padded = part * self.tp
        whole = self.exchange("all_gather", name, self.tp, (*lead, padded))
        return whole if last == padded else self.add("slice", whole, name=f"{name}.unpadded", shape=(*lead, last))

    def _norm(self, node: Node, names: list[str]) -> None:
        """Gather the rows, norm them whole, and go on with a share."""
        out = node.outputs[0]
        share = self.tensors[out].shape
        rows = self._whole_rows(names[0], self.before.tensors[node.inputs[0]].shape[-1])
        for name in (*node.inputs[1:], out):
            self.tensors[name] = self.before.tensors[name]
        self.nodes.append(replace(node, inputs=(rows, *names[1:])))
        self.now[out] = self.add("slice", out, name=f"{out}.share", shape=share)

    # --- partial sums -----------------------------------------------------------------------------------------------

    def _sums(self, node: Node, names: list[str]) -> tuple[list[str], bool]:
        """Inputs with their partial sums reduced, unless they pass; and whether they pass."""
        partial = [name in self.partial for name in names]
        if not any(partial):
            return names, False
        if self._passes(node, names, partial):
            return [name if p or not self._can_be_given(i) else self._give(i)
                    for i, name, p in zip(node.inputs, names, partial, strict=True)], True  # fmt: skip
        return [self.reduce(name) if name in self.partial else name for name in names], False

    def _passes(self, node: Node, names: list[str], partial: list[bool]) -> bool:
        if len(self.graph.kernels[node.label]) > 1 or not all(
            self._once(n) for n, p in zip(node.inputs, partial, strict=True) if p
        ):
            return False
        if node.op in _SUMS:
            return all(partial)
        return (OPS[node.op].kind == "view" or node.op in _SCALES) and partial[0] and sum(partial) == 1

    def _once(self, name: str) -> bool:
        readers = self.graph.consumers.get(name, ())
        return len(readers) == 1 and name not in self.graph.outputs

    def reduce(self, name: str) -> str:
        """A partial sum added up over the devices."""
        if name not in self.reduced:
            self.reduced[name] = self.exchange("all_reduce", name, self.tp)
        return self.reduced[name]

    # --- what a device is given whole -------------------------------------------------------------------------------

    def _whole_given(self, node: Node, names: list[str]) -> list[str]:
        wanted = self._wants.get(node.name, ())
        return [self._give(node.inputs[at]) if at in wanted else name for at, name in enumerate(names)]

    def _give(self, name: str) -> str:
        """A tensor as it is given to every device, once; a view of one is a view of what was given."""
        if name not in self.given:
            here = self.now.get(name, name)
            node = self.producer.get(name)
            if here in self.partial:
                here = self.reduce(here)
            elif node is not None and node.op == "view" and node.inputs[0] in self.producer and here == name:
                source = self._give(node.inputs[0])
                self.given[name] = self.add("view", source, name=f"{name}.given", shape=self._shape(name))
                return self.given[name]
            self.given[name] = self.add("parallel_input", here, name=f"{name}.given", devices=self.tp)
        return self.given[name]

    def _wanted(self) -> dict[str, tuple[int, ...]]:
        """For each node the inputs that it must be given whole, from the last node to the first."""
        wants: dict[str, tuple[int, ...]] = {}
        early: set[str] = set()  # tensors that are better given before the move that makes them
        for node in reversed(self.graph.nodes):
            if node.op in _MOVES and node.op != "view" and self._all_want(node.outputs[0], wants):
                early.add(node.outputs[0])
                wants[node.name] = (0,) if self._can_be_given(node.inputs[0]) else ()
                continue
            wants[node.name] = self._shares_of(node)
        for node in self.graph.nodes:
            wants[node.name] = tuple(at for at in wants[node.name] if node.inputs[at] not in early)
        return {name: places for name, places in wants.items() if places}

    def _all_want(self, name: str, wants: Mapping[str, tuple[int, ...]]) -> bool:
        readers = self.graph.consumers.get(name, ())
        asked = [at in wants.get(n.name, ()) for n in readers for at, i in enumerate(n.inputs) if i == name]
        return bool(asked) and all(asked) and name not in self.graph.outputs

    def _shares_of(self, node: Node) -> tuple[int, ...]:
        """Inputs that are whole where the output is a share."""
        if self.tp == 1 or not (self._is_cut(node.outputs[0]) or node.outputs[0] in self.heads):
            return ()
        return tuple(at for at, name in enumerate(node.inputs) if not self._is_cut(name) and self._can_be_given(name))

    def _can_be_given(self, name: str) -> bool:
        """Whether something learned has a gradient by this tensor: no mask, index or table of positions."""
        tensor = self.graph.tensors[name]
        return name in self._learned and not tensor.dtype.startswith("int") and tensor.dtype != "bool"

    def _cut_last(self, name: str) -> bool:
        return self.cut(name, len(self._shape(name)) - 1)

    def _is_cut(self, name: str) -> bool:
        return any(self.cut(name, axis) for axis in range(len(self._shape(name))))

    def _shape(self, name: str) -> tuple[Size, ...]:
        return self.graph.tensors[name].shape

    # --- experts on other devices -----------------------------------------------------------------------------------

    def _sent(self, node: Node, names: list[str]) -> tuple[list[str], bool]:
        """Rows that go to the experts' devices or come back; and whether what the node writes is with them."""
        if self.ep == 1:
            return names, False
        if node.op == "expert_linear":
            rows = names[0] if names[0] in self.away else self.exchange("alltoall", names[0], self.ep)
            self.away.add(rows)
            return [rows, *names[1:]], True
        away = [name in self.away for name in names]
        rows_only = [name for name in names if self.tensors[name].kind == "activation"]
        stays = all(name in self.away for name in rows_only) and OPS[node.op].kind in ("pointwise", "view")
        if stays or not any(away):
            return names, any(away)
        return [self._home(name) if name in self.away else name for name in names], False

    def _home(self, name: str) -> str:
        if name not in self.back:
            self.back[name] = self.exchange("alltoall", name, self.ep)
            if name in self.partial:
                self.partial.add(self.back[name])
        return self.back[name]


def _learned(graph: Graph) -> frozenset[str]:
    """What is computed from weights."""
    found = {name for name, tensor in graph.tensors.items() if tensor.kind == "weight"}
    weights = frozenset(found)
    for node in graph.nodes:
        if not found.isdisjoint(node.inputs):
            found.update(node.outputs)
    return frozenset(found) - weights


def share(value: int, devices: int) -> int | Fraction:
    """A number over the devices, whole where it is."""
    part = Fraction(value, devices)
    return part.numerator if part.denominator == 1 else part
