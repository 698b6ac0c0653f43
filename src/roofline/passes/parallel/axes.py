"""Which axes of a graph's tensors have their size for the same reason, and what follows when one of them changes.

An axis is made of *atoms*: it is one, a product of several (4096 = 8 key-value heads x 4 queries x 128), or a sum of
segments (a fused projection). Resizing an atom resizes everything that contains it: weights, activations, caches and
the options of the nodes in between. What an operator does not explain is frozen, and says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from roofline.ir.errors import ShapeError, UsageError
from roofline.ir.graph import Graph, Node
from roofline.ir.signature import Shape
from roofline.ir.sizes import Dim, Size, prod
from roofline.ir.unify import PRODUCT, Cell
from roofline.ops.registry import get_op
from roofline.passes.parallel.axis_rules import read


@dataclass(frozen=True, slots=True)
class Atom:
    """A size that is not made of others.

    Attributes:
        number: Tells atoms of one analysis apart.
        size: What it is now.
        where: The first axis that contains it, such as ``layers.0.attn.qkv.weight[0]``.
        frozen: Why it cannot change, empty if it can.
    """

    number: int
    size: Size
    where: str
    frozen: str = ""


@dataclass(frozen=True, slots=True)
class Span:
    """What an axis is made of.

    Attributes:
        kind: ``atom``, ``product`` or ``sum``; an axis of size 1 is a product of nothing.
        parts: Factors from the outermost to the innermost, or segments in order.
        size: What it is now.
    """

    kind: Literal["atom", "product", "sum"]
    parts: tuple[Span | Atom, ...]
    size: Size

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """Its atoms in order, each once."""
        return tuple(dict.fromkeys(self._all()))

    def _all(self) -> Iterator[Atom]:
        for part in self.parts:
            if isinstance(part, Atom):
                yield part
            else:
                yield from part._all()

    def at(self, sizes: Mapping[Atom, int]) -> Size:
        """Return the size when some atoms have others."""
        values: list[Any] = [
            sizes.get(part, part.size) if isinstance(part, Atom) else part.at(sizes) for part in self.parts
        ]
        if self.kind == "sum":
            total: Size = sum(values[1:], values[0])
            return total
        product: Size = prod(values)
        return product


class Axes:
    """The structure of all axes of a graph.

    Args:
        graph: The program.

    Raises:
        UnknownOp: A node's operator is not registered.

    Example:
        >>> import roofline as rl
        >>> axes = Axes(rl.model("llama-3-8b", layers=1))
        >>> [atom.size for atom in axes.atoms("layers.0.attn.k_heads", 1)]
        [8]
        >>> heads = axes.atoms("layers.0.attn.k_heads", 1)[0]
        >>> axes.resize({heads: 6}).tensors["layers.0.attn.qkv.weight"].shape
        (4608, 4096)
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._cells, self._options = read(graph)
        self._atoms = 0
        self._known: dict[int, Span] = {}
        self._push_frozen()
        self._spans = {
            name: tuple(self._span(each, name, at) for at, each in enumerate(cells))
            for name, cells in self._cells.items()
        }

    def _push_frozen(self) -> None:
        """Freeze the parts of what is frozen as a whole."""
        stack = [each.root for cells in self._cells.values() for each in cells]
        seen: set[tuple[int, bool]] = set()
        while stack:
            root = stack.pop()
            if (id(root), bool(root.frozen)) in seen:
                continue
            seen.add((id(root), bool(root.frozen)))
            for part in (part.root for part in root.parts):
                part.frozen = part.frozen or root.frozen
                stack.append(part)

    def _span(self, own: Cell, name: str, at: int) -> Span:
        root = own.root
        if id(root) not in self._known:
            if root.size == 1:
                span = Span("product", (), 1)
            elif root.parts:
                parts = [self._span(part, name, at) for part in root.parts]
                kind: Literal["product", "sum"] = "product" if root.kind == PRODUCT else "sum"
                span = Span(kind, tuple(_flat(kind, parts)), root.size)
            else:
                why = f"{root.size} is symbolic" if isinstance(root.size, Dim) else root.frozen
                self._atoms += 1
                span = Span("atom", (Atom(self._atoms - 1, root.size, f"{name}[{at}]", why),), root.size)
            self._known[id(root)] = span
        return self._known[id(root)]

    def spans(self, tensor: str) -> tuple[Span, ...]:
        """Return what each axis of a tensor is made of.

        Raises:
            UsageError: The graph has no such tensor.
        """
        if tensor not in self._spans:
            raise UsageError(f"{self.graph.name} has no tensor {tensor!r}")
        return self._spans[tensor]

    def atoms(self, tensor: str, axis: int) -> tuple[Atom, ...]:
        """Return the atoms of an axis in order, each once; none for an axis of size 1."""
        return self.spans(tensor)[axis].atoms

    @cached_property
    def _users(self) -> Mapping[Atom, tuple[tuple[str, int], ...]]:
        users: dict[Atom, list[tuple[str, int]]] = {}
        for name, spans in self._spans.items():
            for at, span in enumerate(spans):
                for atom in span.atoms:
                    users.setdefault(atom, []).append((name, at))
        return {atom: tuple(axes) for atom, axes in users.items()}

    def users(self, atom: Atom) -> tuple[tuple[str, int], ...]:
        """Return the axes that contain an atom, as (tensor, axis)."""
        return self._users.get(atom, ())

    def resize(self, sizes: Mapping[Atom, int]) -> Graph:
        """Return the program with some atoms of other sizes; every node's output is inferred again.

        Raises:
            UsageError: An atom that is frozen or of another analysis, a size below 1, or a node that the new sizes
                contradict; names the node and the axis.
        """
        for atom, size in sizes.items():
            self._check(atom, size)
        changed = {atom: size for atom, size in sizes.items() if size != atom.size}
        if not changed:
            return self.graph
        names = {name for atom in changed for name, _ in self.users(atom)}
        tensors = {
            name: replace(self.graph.tensors[name], shape=tuple(span.at(changed) for span in self._spans[name]))
            for name in names
        }
        graph = self.graph.with_tensors(tensors.values())
        nodes = tuple(self._adapted(graph, node, changed, names) for node in graph.nodes)
        return replace(graph, nodes=nodes).with_info(lifetimes=self.graph.info.lifetimes.resized(self.graph, graph))

    def _check(self, atom: Atom, size: int) -> None:
        if atom not in self._users:
            raise UsageError(f"{self.graph.name}: resizes an atom of another graph ({atom.where}, {atom.size})")
        if atom.frozen:
            raise UsageError(f"{atom.where}: the size {atom.size} cannot change: {atom.frozen}")
        if size < 1:
            raise UsageError(f"{atom.where}: resized from {atom.size} to {size}; allowed: at least 1")

    def _adapted(self, graph: Graph, node: Node, sizes: Mapping[Atom, int], names: set[str]) -> Node:
        options = self._options.get(node.name, {})
        if not options and names.isdisjoint(node.inputs) and names.isdisjoint(node.outputs):
            return node
        attrs = dict(node.attrs)
        for option, own in options.items():
            cells = own if isinstance(own, tuple) else (own,)
            values = tuple(self._span(each, node.name, 0).at(sizes) for each in cells)
            attrs[option] = values if isinstance(own, tuple) else values[0]
        shape = graph.tensors[node.outputs[0]].shape
        if "shape" in attrs:
            attrs["shape"] = shape
        _lay_out(attrs, [(self.graph.tensors[name].shape, graph.tensors[name].shape) for name in _operands(node)])
        _agree(node, attrs, [graph.tensors[name].shape for name in node.inputs], shape)
        return replace(node, attrs=tuple(sorted(attrs.items())))


def _operands(node: Node) -> tuple[str, ...]:
    return (*node.outputs, *node.inputs)


def _lay_out(attrs: dict[str, Any], shapes: Sequence[tuple[Shape, Shape]]) -> None:
    """Give what a kernel was recorded to read apart the size that it has now: that of an axis, or of some joined.

    Args:
        attrs: Options of the node, changed in place.
        shapes: Of its tensors, before and after.
    """
    now: dict[Any, Any] = {}
    for before, after in shapes:
        for first in range(len(before)):
            for last in range(len(before), first, -1):
                now.setdefault(prod(before[first:last]), prod(after[first:last]))
    if "access" in attrs:
        *how, run = attrs["access"]
        attrs["access"] = (*how, now.get(run, run))
    if "copied" in attrs:
        attrs["copied"] = tuple((*way[:-1], now.get(way[-1], way[-1])) if way else way for way in attrs["copied"])


def _flat(kind: str, parts: Iterable[Span]) -> Iterator[Span | Atom]:
    """Yield products of products and sums of sums as one."""
    for part in parts:
        if part.kind in (kind, "atom"):
            yield from part.parts
        elif part.parts or kind == "sum":
            yield part


def _agree(node: Node, attrs: Mapping[str, Any], inputs: list[Shape], shape: Shape) -> None:
    """Refuse sizes that the operator contradicts."""
    try:
        inferred = get_op(node.op, node.name).output(inputs, attrs)
    except ShapeError as error:
        raise UsageError(f"{node.name}: {node.op} {error}, once resized") from None
    for axis, (have, want) in enumerate(zip(inferred, shape, strict=True)):
        if have != want:
            raise UsageError(f"{node.name}: {node.op} gives axis {axis} the size {have}, which would be {want}")
