"""The backward of a program in the making: gradients that have arrived, and what of the forward is still there.

A kernel's backward is a kernel: what the forward kernel kept to itself was never stored, so the backward kernel
computes it once more from what was. Of fused attention that gives the five matmuls of Dao et al. (arXiv 2205.14135,
algorithm 4) without a rule of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Node
from roofline.ir.sizes import Size
from roofline.ops.aliases import aliases
from roofline.ops.builder import Builder
from roofline.ops.registry import OPS
from roofline.passes.fusion.order import topological_order

#: Formats of indices and flags, which have no gradient.
DISCRETE = frozenset({"int64", "int32", "int16", "int8", "int4", "bool"})


#: Kinds of operator whose backward has several kernels.
_CONTRACTIONS = frozenset({"matmul", "conv", "moe"})
#: Elementwise kernels whose results have the format of what they are the gradient of.
_AS_GRADIENT = frozenset({"cast", "mixer_grad"})


@dataclass
class Pieces:
    """Gradients of one tensor that have arrived: of the whole of it, and of parts, with where they were cut out."""

    whole: list[str] = field(default_factory=list)
    parts: list[tuple[Any, str]] = field(default_factory=list)


class Tape:
    """A graph, and the backward nodes that are added to it.

    Args:
        graph: The forward program.
        scopes: For each node that is recomputed in the backward, the block that it is recomputed with; only
            backward nodes of that block read the copies, what leaves it stays.
        recomputed: Operators whose results are recomputed wherever they are read.
        gradients: Number format of the weights' gradients, each weight's own when ``None``.
        wrt: Inputs that need a gradient too.
    """

    def __init__(
        self,
        graph: Graph,
        scopes: Mapping[str, str],
        recomputed: frozenset[str],
        gradients: str | None,
        wrt: frozenset[str],
    ) -> None:
        self.graph, self.scopes, self.recomputed, self.gradients = graph, scopes, recomputed, gradients
        self.b = Builder.of(graph, dtype="fp32")
        self.b.phase = "backward"
        self.producer, self.groups = graph.producer, graph.kernels
        self.blocks: dict[str, list[Node]] = {}
        for node in graph.nodes:
            if node.name in scopes:
                self.blocks.setdefault(scopes[node.name], []).append(node)
        self.labels: dict[str, str] = {}
        self.pieces: dict[str, Pieces] = {}
        self.inner = _inner(graph)
        self._needs_grad = _needing_grad(graph, wrt)
        self._copies: dict[tuple[str, str], str] = {}
        self._entered: set[str] = set()
        self._node, self._group = Node("", "", (), ()), ""

    # --- what a rule asks for ---

    def shape(self, name: str) -> tuple[Size, ...]:
        """The shape of a tensor."""
        return self.b.shape(name)

    def needs_grad(self, name: str) -> bool:
        """Tell whether a tensor needs a gradient."""
        return name in self._needs_grad

    def format(self, name: str) -> str:
        """Number format of the gradient of a tensor."""
        tensor = self.b.tensor(name)
        if self.gradients and tensor.kind == "weight":
            return self.gradients
        return DTYPES[tensor.dtype].compute or tensor.dtype  # of a sparse weight the gradient is dense

    def saved(self, name: str) -> str:
        """Return a forward tensor as the backward finds it: itself, or a copy that is recomputed."""
        node = self.producer.get(name)
        if node is None:
            return name
        if OPS[node.op].kind == "view":
            base = self.saved(node.inputs[0])
            return name if base == node.inputs[0] else self._copy(name, node, "")
        if name in self.inner and node.label == self._node.label:
            return self._copy(name, node, self._group)
        block = self.scopes.get(node.name)
        if block is not None and block == self.scopes.get(self._node.name):
            return self._copies[name, block]
        return self._copy(name, node, _recompute_label(node, self.groups)) if node.op in self.recomputed else name

    def op(self, op: str, *inputs: str, name: str, like: str, **attrs: Any) -> str:
        """Add a backward node.

        Args:
            op: Operator.
            inputs: Tensors that it reads.
            name: What it adds to the name of the forward node.
            like: The tensor whose gradient it computes, which gives the number format.
            attrs: Options.
        """
        path = f"{self._node.name}.{name}"
        dtype, formats = "", [self.b.tensor(name).dtype for name in inputs]
        if OPS[op].kind == "view":  # the same numbers, whatever the gradient's format
            dtype = formats[0]
        elif OPS[op].kind == "pointwise" and op not in _AS_GRADIENT:  # the widest format that it reads
            dtype = max((f for f in formats if f not in DISCRETE), key=lambda f: DTYPES[f].bits, default="")
        with self.b.inside(self._group):
            made = self.b.op(op, *inputs, name=path, dtype=dtype or self.format(like), count=self._node.count, **attrs)
        if self._group:
            self.labels[made] = self._group
        return made

    def kernel(self, label: str) -> AbstractContextManager[None]:
        """Run what is added inside as one kernel; without a label every node as its own."""
        return self._inside(label and f"{self._node.name}.{label}")

    @contextmanager
    def _inside(self, group: str) -> Iterator[None]:
        outer, self._group = self._group, group
        try:
            yield
        finally:
            self._group = outer

    @property
    def attends(self) -> bool:
        """Tell whether the current kernel is an attention kernel, whose sums stay inside."""
        return bool(self._group) and any(OPS[n.op].kind == "attention" for n in self.groups[self._node.label])

    # --- gradients that arrive ---

    def accumulate(self, name: str, gradient: str) -> None:
        """Hand in a gradient of a tensor: the sum over its copies where it was broadcast, in the tensor's format."""
        self.pieces.setdefault(name, Pieces()).whole.append(self._cast(name, self._summed(name, gradient)))

    def accumulate_part(self, name: str, gradient: str, start: Any = None) -> None:
        """Hand in the gradient of a part that was cut out of a tensor."""
        self.pieces.setdefault(name, Pieces()).parts.append((start, self._cast(name, gradient)))

    def _cast(self, name: str, gradient: str) -> str:
        if self.b.tensor(gradient).dtype == self.format(name):
            return gradient
        return self.op("cast", gradient, name="grad_cast", like=name)

    def reshaped(self, gradient: str, shape: tuple[Size, ...], name: str = "shaped") -> str:
        """A view in another shape, none where it has that shape already."""
        if self.shape(gradient) == shape:
            return gradient
        return self.op("view", gradient, name=name, like=gradient, shape=shape)

    def _summed(self, name: str, gradient: str) -> str:
        have, want = self.shape(gradient), self.shape(name)
        if have == want:
            return gradient
        missing = len(have) - len(want)
        axes = tuple(at for at, size in enumerate(have) if at < missing or (want[at - missing] == 1 and size != 1))
        with self._inside(self._group if self.attends else ""):
            total = self.op("reduce", gradient, name="grad_sum", like=name, axes=axes, how="sum") if axes else gradient
            return self.reshaped(total, want)

    def total(self, name: str) -> str | None:
        """The gradient of a tensor, all that arrived added up; ``None`` where nothing did."""
        pieces = self.pieces.pop(name, None)
        if pieces is None:
            return None
        terms = [*pieces.whole, *self._joined(name, pieces.parts)]
        total = terms[0]
        for term in terms[1:]:
            apart = {self.labels.get(total), self.labels.get(term)} != {self._group}
            with self._inside("" if apart else self._group):
                tail = "" if name in self._node.outputs else f"_{name.rpartition('.')[2]}"
                total = self.op("add", total, term, name=f"grad_total{tail}", like=name)
        return total

    def _joined(self, name: str, cut: list[tuple[Any, str]]) -> list[str]:
        """Parts that make up the whole tensor side by side as one; others each in a tensor of zeros.

        Parts that do not say where they were cut out are taken to follow each other as the program lists them.
        """
        shape, parts = self.shape(name), [part for _, part in reversed(cut)]
        if all(isinstance(start, int) for start, _ in cut):
            parts = [part for _, part in sorted(cut)]
        if len(parts) > 1:
            for axis, size in enumerate(shape):
                shapes = [self.shape(part) for part in parts]
                same = all(len(s) == len(shape) and s[:axis] + s[axis + 1 :] == shape[:axis] + shape[axis + 1 :]
                           for s in shapes)  # fmt: skip
                if same and sum((s[axis] for s in shapes[1:]), shapes[0][axis]) == size:
                    return [self.op("cat", *parts, name="grad_parts", like=name, axis=axis)]
        return [self.placed(name, part) for part in parts]

    def placed(self, name: str, part: str, *picks: str) -> str:
        """The gradient of a few places of a tensor, zero elsewhere: two kernels, as autograd runs them."""
        with self.kernel(""):
            zeros = self.op("fill", name="grad_zeros", like=name, shape=self.shape(name), value=0)
            added = {"flops": 1} if picks else {}  # places that are picked twice get the sum
            return self.op("put", zeros, part, *picks, name="grad_placed", like=name, **added)

    # --- recomputation ---

    def enter(self) -> None:
        """Recompute the block of the current node, the first time that the backward reaches it."""
        block = self.scopes.get(self._node.name)
        if block is None or block in self._entered:
            return
        self._entered.add(block)
        for node in self.blocks[block]:
            inputs = tuple(self._copies.get((name, block), name) for name in node.inputs)
            self._copies[node.outputs[0], block] = self._clone(node, inputs, _recompute_label(node, self.groups))

    def _copy(self, name: str, node: Node, label: str) -> str:
        key = (name, label if label == self._group else "")
        if key not in self._copies:
            self._copies[key] = self._clone(node, tuple(self.saved(i) for i in node.inputs), label)
        return self._copies[key]

    def _clone(self, node: Node, inputs: tuple[str, ...], label: str) -> str:
        dtype = self.b.tensor(node.outputs[0]).dtype
        with self.b.inside(label):
            made = self.b.op(
                node.op, *inputs, name=f"{node.name}.again", dtype=dtype, count=node.count, **dict(node.attrs)
            )
        self.b.restate(made, self.shape(node.outputs[0]))
        if label:
            self.labels[made] = label
        return made

    # --- the walk ---

    @contextmanager
    def at(self, node: Node) -> Iterator[None]:
        """Work on the backward of a forward node: its kernel's, where it shares one."""
        self._node = node
        kinds = [kind for n in self.groups[node.label] if (kind := OPS[n.op].kind) != "view"]
        # What is fused to a contraction leaves it in the backward, whose two contractions are kernels of their own.
        together = len(kinds) > 1 and not _CONTRACTIONS.intersection(kinds)
        self._group = f"{node.label}.grad" if together else ""
        try:
            yield
        finally:
            self._group = ""


def _recompute_label(node: Node, groups: Mapping[str, tuple[Node, ...]]) -> str:
    return f"{node.label}.again" if len(groups[node.label]) > 1 else ""


def _inner(graph: Graph) -> frozenset[str]:
    """Tensors that never leave their kernel, so that nothing is left of them."""
    shared, attention = aliases(graph), {node.label for node in graph.nodes if OPS[node.op].kind == "attention"}
    # A dropout kernel stores the mask that it draws; only fused attention keeps the generator's state and draws again.
    stored = {node.outputs[0] for node in graph.nodes if node.op == "bernoulli" and node.label not in attention}
    return frozenset(
        name for name, node in graph.producer.items()
        if name not in stored and shared.base(name) == name and shared.readers.get(name, frozenset()) == {node.label}
    )  # fmt: skip


def _needing_grad(graph: Graph, wrt: frozenset[str]) -> frozenset[str]:
    """Tensors that depend on a weight, or on an input that needs a gradient."""
    sources = {
        name for name, t in graph.tensors.items() if (t.kind == "weight" or name in wrt) and _has_gradient(t.dtype)
    }
    names = set(sources)
    for node in graph.nodes:
        if not names.isdisjoint(node.inputs):
            names.update(name for name in node.outputs if _has_gradient(graph.tensors[name].dtype))
    return frozenset(names)


def _has_gradient(dtype: str) -> bool:
    """Tell whether numbers of a format are trained: not indices, and not what is only stored (int4, nf4)."""
    return dtype not in DISCRETE and DTYPES[dtype].compute is not None


def frozen(graph: Graph) -> tuple[str, ...]:
    """A word on weights that get no gradient, empty where all do."""
    weights = [t for t in graph.tensors.values() if t.kind == "weight" and not _has_gradient(t.dtype)]
    formats = ", ".join(sorted({tensor.dtype for tensor in weights}))
    return (f"{len(weights)} weights are not trained: {formats} is a storage format",) if weights else ()


def kernel_order(graph: Graph) -> tuple[Node, ...]:
    """The nodes kernel by kernel, each kernel after those that it waits for.

    Raises:
        UsageError: Two kernels wait for each other.
    """
    labels = list(graph.kernels)
    number = {label: at for at, label in enumerate(labels)}
    writer = {name: number[node.label] for name, node in graph.producer.items()}
    waits = {
        number[label]: {writer[name] for node in nodes for name in node.inputs if name in writer} - {number[label]}
        for label, nodes in graph.kernels.items()
    }
    order = topological_order(waits)
    if len(order) < len(labels):
        circle = next(label for label in labels if number[label] not in set(order))
        raise UsageError(f"{graph.name}: kernel {circle!r} is part of a dependency cycle; no backward")
    return tuple(node for at in order for node in graph.kernels[labels[at]])
