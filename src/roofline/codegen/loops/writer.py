"""What writes the nests of a kernel: names, buffers, and where the elements of a tensor lie, through views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from roofline.codegen.loops.form import Account, Buffer, Load, Statement, Store, Value, nest
from roofline.codegen.loops.index import Index, flat, index, unflat
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Node
from roofline.ops.aliases import aliases
from roofline.ops.arrays import Call
from roofline.ops.registry import get_op
from roofline.ops.views import part_axes, reordering

Indices = tuple[Index, ...]
Axis = tuple[str, int]


class Writer:
    """Collects the nests of one kernel."""

    def __init__(self, graph: Graph, label: str, seed: int) -> None:
        self.graph, self.seed = graph, seed
        self.label = label
        self.body: list[Statement] = []
        self.ranges: dict[str, int] = {}
        self.buffers: dict[str, Buffer] = {}
        self._numbers: dict[str, int] = {}

    # --- names

    def axis(self, name: str, size: int) -> Axis:
        """Return a fresh loop variable of a size."""
        stem = "".join(char for char in name if char.isalnum()) or "x"
        number = self._numbers.get(stem, 0)
        self._numbers[stem] = number + 1
        var = f"{stem}{number}"
        self.ranges[var] = size
        return var, size

    def axes(self, shape: Sequence[int], name: str = "i") -> list[Axis]:
        """Return fresh loop variables over a shape."""
        return [self.axis(name, size) for size in shape]

    def local(self, name: str, shape: Sequence[int], dtype: str) -> str:
        """Return a fresh buffer that lives in the kernel."""
        number = sum(1 for each in self.buffers if each.startswith(f"{self.label}.{name}"))
        key = f"{self.label}.{name}{number or ''}"
        self.buffers[key] = Buffer(key, tuple(shape), dtype, local=True)
        return key

    # --- tensors

    def shape(self, tensor: str) -> tuple[int, ...]:
        """Return the sizes of a tensor."""
        return tuple(int(size) for size in self.graph.tensors[tensor].shape)  # type: ignore[arg-type]

    def dtype(self, tensor: str) -> str:
        """Return the number format of a tensor."""
        return self.graph.tensors[tensor].dtype

    def place(self, tensor: str, at: Indices) -> tuple[str, Indices]:
        """Return the buffer that holds a tensor, and where in it an element lies."""
        node = self.graph.producer.get(tensor)
        op = get_op(node.op) if node else None
        if node is None or op is None or op.alias is None:
            return self._buffer(tensor), at
        source = node.inputs[op.alias]
        if op.kind != "view":
            return self.place(source, at)
        return self.place(source, VIEWS[node.op](self, node, at))

    def _buffer(self, tensor: str) -> str:
        root = aliases(self.graph).root(tensor)
        producer = self.graph.producer.get(root)
        inside = producer is not None and producer.label == self.label
        local = inside and not leaves(self.graph, root, self.label)
        self.buffers.setdefault(root, Buffer(root, self.shape(root), self.dtype(root), local))
        return root

    def load(self, tensor: str, at: Indices) -> Load:
        """Return an element of a tensor."""
        return Load(*self.place(tensor, at))

    def broadcast(self, tensor: str, at: Indices) -> Load:
        """Return the element of a tensor that stands at a place of a larger one, by numpy's rules."""
        shape = self.shape(tensor)
        own = at[len(at) - len(shape) :]
        return self.load(tensor, tuple(each if size > 1 else Index() for each, size in zip(own, shape, strict=True)))

    def store(
        self, axes: Sequence[Axis], target: tuple[str, Indices], value: Value, how: str = "",
        account: Account = "vector",
    ) -> None:  # fmt: skip
        """Add a nest over some axes that stores a value."""
        self.body.append(nest(list(axes), Store(*target, value, how, account)))

    def call(self, node: Node) -> Call:
        """Return the node as its formula in numpy sees it."""
        out = node.outputs[0]
        return Call(node.name, node.op, dict(node.attrs), self.shape(out), self.dtype(out), self.seed)


def leaves(graph: Graph, tensor: str, label: str) -> bool:
    """Tell whether a tensor that a kernel writes is needed outside it, or by nobody at all."""
    return aliases(graph).readers.get(tensor, frozenset()) != {label}


def variables(axes: Sequence[Axis]) -> Indices:
    """Return loop variables as indices."""
    return tuple(index(var) for var, _ in axes)


# --- views: where an element lies in what is looked at ----------------------------------------------------------------


def _view(w: Writer, node: Node, at: Indices) -> Indices:
    shape, target = w.shape(node.inputs[0]), w.shape(node.outputs[0])
    before, order = reordering(shape, target) or (shape, tuple(range(len(shape))))
    turned = unflat(flat(at, target), tuple(before[axis] for axis in order), w.ranges)
    own = tuple(turned[order.index(axis)] for axis in range(len(before)))
    return own if before == shape else unflat(flat(own, before), shape, w.ranges)


def _permuted(w: Writer, node: Node, at: Indices) -> Indices:
    order = [axis % len(at) for axis in dict(node.attrs)["axes"]]
    return tuple(at[order.index(axis)] for axis in range(len(at)))


def _expanded(w: Writer, node: Node, at: Indices) -> Indices:
    return tuple(each if size > 1 else Index() for each, size in zip(at, w.shape(node.inputs[0]), strict=True))


def _sliced(w: Writer, node: Node, at: Indices) -> Indices:
    """Move on to where a part starts, as the executor does (:func:`roofline.ops.views.slice_`)."""
    shape, target, call = w.shape(node.inputs[0]), w.shape(node.outputs[0]), w.call(node)
    along = int(call.attrs.get("axis", -1)) % len(shape) if "start" in call.attrs else None
    axes = part_axes(shape, target, along)
    if axes is None:
        raise UsageError(f"{node.name}: a part {list(target)} of {list(shape)} is no run of any of its axes")
    own = []
    for axis, size in enumerate(shape):
        length = target[axes.index(axis)] if axis in axes else 1
        start = int(call.attrs["start"]) if axis == along else int(call.free(f"start {axis}", 0, size - length + 1))
        own.append(at[axes.index(axis)] + start if axis in axes else index(start))
    return tuple(own)


#: Index maps by view.
VIEWS: dict[str, Callable[[Writer, Node, Indices], Indices]] = {
    "view": _view, "permute": _permuted, "expand": _expanded, "slice": _sliced,
}  # fmt: skip

Rule = Callable[[Writer, Node], None]


def attrs(node: Node) -> dict[str, Any]:
    """Return the options of a node."""
    return dict(node.attrs)
