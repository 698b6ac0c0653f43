"""Graph to counts: which kernels run, how much each computes and how many bytes cross its boundary.

Bytes are compulsory traffic: every tensor that enters a kernel is read once and every tensor that leaves it is
written once. Tensors that live and die inside a kernel never reach memory, and views move nothing. Equal kernels
(the same layer thirty-two times) are counted once and multiplied.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from roofline.counting.grid import added
from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import UnboundSize
from roofline.ir.graph import Graph, Kind, Node, Tensor, once_per_graph
from roofline.ir.report import Report, title
from roofline.ir.sizes import Dim, Number, evaluate, maximum, minimum, size_names
from roofline.ir.units import format_si
from roofline.ops.aliases import aliases
from roofline.ops.registry import OPS, OpKind, Work, get_op, node_work

#: Operator kinds from the one that names a kernel first to the one that does last.
_RANK: tuple[OpKind, ...] = (
    "attention",
    "moe",
    "conv",
    "matmul",
    "network",
    "transfer",
    "rowwise",
    "reduction",
    "move",
    "pointwise",
    "view",
)
_CONTRACTIONS: frozenset[OpKind] = frozenset({"matmul", "conv", "attention", "moe"})


@dataclass(frozen=True, slots=True, eq=False)
class Kernel:
    """One distinct kernel, symbolic in the graph's sizes; equal only to itself, so that it can be a key.

    Attributes:
        name: Label of its first occurrence.
        names: Labels of all occurrences.
        nodes: The nodes of the first occurrence.
        main: The node that gives the kernel its character (the contraction, if there is one).
        kind: Operator class of ``main``.
        shapes: Input shapes of ``main``.
        count: How often it runs in one run of the graph.
        flops: Contraction FLOPs of one launch, by the number format they run in.
        vector: Other floating-point operations of one launch, by number format.
        sizes: The axes of ``main`` by name, as its operator's signature binds them.
        inputs: Input tensors of ``main``.
        stored: Formats that they have in memory: those that the kernel dequantises are narrower than ``inputs`` say.
        output: Output tensor of ``main``.
        operands: Tensors that cross the boundary inwards, each of the kind of what it looks at.
        inner: Views that its nodes read of what its own nodes write: views are no nodes of a kernel.
        strided: Whether one of them is a part cut out of rows, or repeated along an axis: not contiguous.
        read: Bytes read by one launch [byte].
        read_flow: Those of them that other kernels of the run have written [byte].
        write: Bytes written by one launch [byte].
    """

    name: str
    names: tuple[str, ...]
    nodes: tuple[Node, ...]
    main: Node
    kind: OpKind
    shapes: tuple[tuple[Number, ...], ...]
    sizes: Mapping[str, Number]
    inputs: tuple[Tensor, ...]
    stored: tuple[str, ...]
    output: Tensor
    operands: tuple[Tensor, ...]
    inner: tuple[Tensor, ...]
    strided: bool
    count: int
    flops: Mapping[str, Number]
    vector: Mapping[str, Number]
    read: Number
    read_flow: Number
    write: Number

    def at(self, sizes: Mapping[str, Number]) -> KernelCount:
        """Evaluate on numbers or arrays."""
        return KernelCount(
            self,
            {dtype: evaluate(value, sizes) for dtype, value in self.flops.items()},
            {dtype: evaluate(value, sizes) for dtype, value in self.vector.items()},
            evaluate(self.read, sizes),
            evaluate(self.write, sizes),
            evaluate(self.read_flow, sizes),
            {axis: evaluate(value, sizes) for axis, value in self.sizes.items()},
            sizes,
        )

    @property
    def attrs(self) -> dict[str, Any]:
        """Options of ``main``."""
        return dict(self.main.attrs)


@dataclass(frozen=True, slots=True)
class KernelCount:
    """A kernel's counts at given sizes, for one launch; numbers or arrays.

    ``sizes`` are those of the axes of its main operator, ``symbols`` those of the graph.
    """

    kernel: Kernel
    flops_by: Mapping[str, Number]
    vector_by: Mapping[str, Number]
    read: Number
    write: Number
    read_flow: Number = 0
    sizes: Mapping[str, Number] = field(default_factory=dict)
    symbols: Mapping[str, Number] = field(default_factory=dict)

    @property
    def flops(self) -> Number:
        """Contraction FLOPs."""
        return sum(self.flops_by.values())

    @property
    def vector(self) -> Number:
        """Other floating-point operations."""
        return sum(self.vector_by.values())

    @property
    def arithmetic(self) -> Number:
        """Contraction FLOPs; of a kernel without contractions, its other arithmetic."""
        return self.flops if self.flops_by else self.vector

    @property
    def bytes(self) -> Number:
        """Bytes that cross the kernel's boundary."""
        return self.read + self.write


@dataclass(frozen=True)
class Counts(Report):
    """Totals of a run of a graph; numbers or arrays.

    From :func:`roofline.count`.

    ``flops`` are contractions at two per multiply-add; ``vector_flops`` all other arithmetic; ``bytes`` the traffic
    over all kernel boundaries; ``launches`` the kernels run.

    Attributes:
        rows: The distinct kernels.
        about: What was counted, at which sizes.
    """

    rows: tuple[KernelCount, ...]
    about: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)
    schema = "count"

    def subject(self) -> dict[str, Any]:
        """Return the program and its sizes."""
        return dict(self.about)

    def summary(self) -> dict[str, Any]:
        """Return the totals."""
        return {name: getattr(self, name) for name in ("flops", "vector_flops", "bytes", "launches", "intensity")}

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per distinct kernel, over all of its launches."""
        return [
            {
                "name": row.kernel.name, "op": row.kernel.main.op, "count": row.kernel.count,
                "flops": row.kernel.count * row.flops, "vector_flops": row.kernel.count * row.vector,
                "bytes": row.kernel.count * row.bytes, "read_bytes": row.kernel.count * row.read,
                "write_bytes": row.kernel.count * row.write,
            }
            for row in self.rows
        ]  # fmt: skip

    def __repr__(self) -> str:
        if np.ndim(self.bytes):
            return f"<Counts of {len(self.rows)} distinct kernels at {np.size(self.bytes)} points>"
        work = f"{format_si(float(self.arithmetic), 'FLOP')}, {format_si(float(self.bytes), 'B')}"
        return f"<Counts {title(self.about)}: {work}, {self.launches:,} launches>"

    @cached_property
    def flops(self) -> Number:
        """Contraction FLOPs, two per multiply-add."""
        return added(row.kernel.count * row.flops for row in self.rows)

    @cached_property
    def vector_flops(self) -> Number:
        """All other floating-point operations."""
        return added(row.kernel.count * row.vector for row in self.rows)

    @cached_property
    def bytes(self) -> Number:
        """Traffic over all kernel boundaries [byte]."""
        return added(row.kernel.count * row.bytes for row in self.rows)

    @property
    def launches(self) -> int:
        """Kernels run."""
        return sum(row.kernel.count for row in self.rows)

    @property
    def arithmetic(self) -> Number:
        """Contraction FLOPs; of a program without contractions, its other arithmetic."""
        return self.flops if any(row.flops_by for row in self.rows) else self.vector_flops

    @property
    def intensity(self) -> Number:
        """Arithmetic intensity: ``arithmetic`` over ``bytes`` [FLOP/byte]."""
        return self.arithmetic / self.bytes


def count_graph(graph: Graph, **sizes: Number) -> Counts:
    """Count a graph at given sizes.

    Args:
        graph: The program.
        sizes: A value for each symbol of the graph; exact integers stay exact.

    Raises:
        UnboundSize: Symbols have no value; all of them are named.

    Example:
        >>> from roofline.ops.builder import Builder
        >>> b = Builder("gemm", "bf16")
        >>> y = b.op("linear", b.input("x", (4096, 4096)), b.weight("w", (4096, 4096)))
        >>> totals = count_graph(b.graph([y]))
        >>> totals.flops, totals.bytes
        (137438953472, 100663296)
    """
    missing = sorted(graph.symbols - sizes.keys())
    if missing:
        raise UnboundSize(f"{graph.name} needs a value for {size_names(set(missing))}")
    return Counts(tuple(kernel.at(sizes) for kernel in kernels(graph)))


def unknown_operations(graph: Graph) -> dict[str, int]:
    """Operations of an imported program that no rule translates, with their calls: their arithmetic is not counted."""
    calls: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "unknown":
            what = str(dict(node.attrs)["what"])
            calls[what] = calls.get(what, 0) + node.count
    return calls


@once_per_graph
def kernels(graph: Graph) -> tuple[Kernel, ...]:
    """Return the distinct kernels of a graph in order of first appearance; views are none."""
    boundaries = kernel_boundaries(graph)
    distinct: dict[Hashable, list[tuple[str, tuple[Node, ...]]]] = {}
    for label, nodes in graph.kernels.items():
        if any(OPS[node.op].kind != "view" for node in nodes):
            distinct.setdefault(boundaries.fingerprint(nodes), []).append((label, nodes))
    return tuple(_kernel(boundaries, same) for same in distinct.values())


def _kernel(boundaries: Boundaries, same: Sequence[tuple[str, tuple[Node, ...]]]) -> Kernel:
    label, nodes = same[0]
    works = [node_work(node, boundaries.shapes(node)) for node in nodes]
    main = min(zip(nodes, works, strict=True), key=lambda pair: _RANK.index(OPS[pair[0].op].kind))[0]
    flops: dict[str, Number] = {}
    vector: dict[str, Number] = {}
    for node, work in zip(nodes, works, strict=True):
        if OPS[node.op].kind in _CONTRACTIONS or work.flops != 0:  # scans in chunks multiply matrices too
            _add(flops, boundaries.compute_dtype(node), work.flops)
        _add(vector, boundaries.tensors[node.outputs[0]].dtype, work.vector)
    touched = _touched(boundaries, nodes, works)
    known = {*touched, *(name for node in nodes for name in node.outputs)}
    inner = dict.fromkeys(name for node in nodes for name in node.inputs if name not in known)
    return Kernel(
        name=label,
        names=tuple(name for name, _ in same),
        nodes=nodes,
        main=main,
        kind=OPS[main.op].kind,
        shapes=tuple(boundaries.shapes(main)),
        sizes=_axes(main, boundaries.shapes(main)),
        inputs=tuple(boundaries.tensors[name] for name in main.inputs),
        stored=_stored(boundaries, nodes, main),
        output=boundaries.tensors[main.outputs[0]],
        operands=tuple(replace(boundaries.tensors[name], kind=boundaries.kind(name)) for name in touched),
        inner=tuple(boundaries.tensors[name] for name in inner),
        strided=any(boundaries.strided(name) for name in touched),
        count=len(same) * main.count,
        flops=flops,
        vector=vector,
        read=_read_bytes(boundaries, touched),
        read_flow=_read_bytes(boundaries, touched, flowing=True),
        write=_write_bytes(boundaries, nodes, works),
    )


def _stored(boundaries: Boundaries, nodes: Sequence[Node], main: Node) -> tuple[str, ...]:
    narrow = {node.outputs[0]: node.inputs[0] for node in nodes if node.op == "dequantize"}
    return tuple(boundaries.tensors[narrow.get(name, name)].dtype for name in main.inputs)


@dataclass(frozen=True, slots=True)
class Share:
    """What one node adds to a launch of its kernel.

    Attributes:
        flops: Contraction FLOPs.
        vector: Other floating-point operations.
        read: Bytes that enter the kernel for it and for no node before it [byte].
        write: Bytes that leave the kernel from it [byte].
    """

    flops: Number = 0
    vector: Number = 0
    read: Number = 0
    write: Number = 0


def shares(boundaries: Boundaries, nodes: Sequence[Node]) -> tuple[Share, ...]:
    """Each node's part of its kernel; the parts sum to the kernel's counts.

    A tensor that several nodes read enters the kernel once and is laid to the first of them; to a view only where no
    other node reads what it looks at.
    """
    works = [node_work(node, boundaries.shapes(node)) for node in nodes]
    order = sorted(range(len(nodes)), key=lambda at: OPS[nodes[at].op].kind == "view")
    parts: dict[int, Share] = {}
    before: Number = 0
    for n, at in enumerate(order, 1):
        first = ([nodes[i] for i in order[:n]], [works[i] for i in order[:n]])
        entered = _read_bytes(boundaries, _touched(boundaries, *first))
        flops = works[at].flops if OPS[nodes[at].op].kind in _CONTRACTIONS else 0
        write = _write_bytes(boundaries, nodes[at : at + 1], works[at : at + 1])
        parts[at], before = Share(flops, works[at].vector, entered - before, write), entered
    return tuple(parts[at] for at in range(len(nodes)))


@once_per_graph
def moved(graph: Graph) -> Mapping[str, tuple[Mapping[str, Number], Mapping[str, Number]]]:
    """Return the bytes that one launch of each kernel reads and writes, by the storage that they lie in [byte].

    Together they are the kernel's ``read`` and ``write``.
    """
    boundaries = kernel_boundaries(graph)
    return {label: _moved(boundaries, nodes) for label, nodes in graph.kernels.items()}


def _moved(boundaries: Boundaries, nodes: Sequence[Node]) -> tuple[dict[str, Number], dict[str, Number]]:
    works = [node_work(node, boundaries.shapes(node)) for node in nodes]
    read: dict[str, Number] = {}
    write: dict[str, Number] = {}
    for base, elements in _by_base(boundaries, _touched(boundaries, nodes, works)).items():
        _add(read, boundaries.root(base), nbytes(boundaries.tensors[base], elements))
    for node, work in zip(nodes, works, strict=True):
        _add(write, boundaries.root(node.outputs[0]), _write_bytes(boundaries, [node], [work]))
    return read, write


def _add(totals: dict[str, Number], key: str, value: Number) -> None:
    if isinstance(value, int) and value == 0:
        return
    totals[key] = totals[key] + value if key in totals else value


def _axes(node: Node, shapes: Sequence[tuple[Number, ...]]) -> dict[str, Any]:
    sizes = get_op(node.op).sizes(shapes, dict(node.attrs))
    return {axis: size for axis, size in sizes.items() if not isinstance(size, tuple)}


def _touched(boundaries: Boundaries, nodes: Sequence[Node], works: Sequence[Work]) -> dict[str, Number]:
    """Elements read of each tensor from outside the kernel."""
    inside = {name for node in nodes for name in node.outputs}
    touched: dict[str, Number] = {}
    for node, work in zip(nodes, works, strict=True):
        for position, name in enumerate(node.inputs):
            if boundaries.base(name) not in inside:
                elements = work.reads.get(position, boundaries.tensors[name].numel)
                touched[name] = maximum(touched[name], elements) if name in touched else elements
    return touched


def _by_base(boundaries: Boundaries, touched: Mapping[str, Number]) -> dict[str, Number]:
    """Elements read of what the touched tensors look at, no more than it has."""
    by_base: dict[str, Number] = {}
    for name, elements in touched.items():
        _add(by_base, boundaries.base(name), elements)
    return {base: _at_most(elements, boundaries.tensors[base]) for base, elements in by_base.items()}


def _read_bytes(boundaries: Boundaries, touched: Mapping[str, Number], flowing: bool = False) -> Number:
    total: Number = 0
    for base, elements in _by_base(boundaries, touched).items():
        if not flowing or boundaries.kind(base) == "activation":
            total = total + nbytes(boundaries.tensors[base], elements)
    return total


def _at_most(elements: Number, tensor: Tensor) -> Number:
    """No more than the whole tensor, however many views, or broadcast ones, touch it."""
    most = tensor.numel
    share = _share(elements, most)
    if share is None:
        return minimum(elements, most)
    return elements if share <= 1 else most


def _share(a: Number, b: Number) -> Number:
    """``a / b`` where both are numbers, or multiples of the same monomial; else ``None``."""
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return Fraction(a) / b
    if isinstance(a, Dim) and isinstance(b, Dim) and len(a.terms) == len(b.terms) == 1:
        (left, x), (right, y) = a.terms[0], b.terms[0]
        return Fraction(x) / y if left == right else None
    return None


def _write_bytes(boundaries: Boundaries, nodes: Sequence[Node], works: Sequence[Work]) -> Number:
    total: Number = 0
    for node, work in zip(nodes, works, strict=True):
        for name in node.outputs:
            if OPS[node.op].kind != "view" and boundaries.leaves(name, node.label):
                elements = work.writes if work.writes is not None else boundaries.tensors[name].numel
                total = total + nbytes(boundaries.tensors[name], elements)
    return total


def nbytes(tensor: Tensor, elements: Number = None) -> Number:
    """Bytes of a tensor, or of some of its elements, with their share of scales; symbolic or not [byte]."""
    return _times(tensor.numel if elements is None else elements, DTYPES[tensor.dtype].bytes)


@lru_cache(maxsize=4096, typed=True)  # 2 and 2.0 are equal keys, and a count of whole numbers stays whole
def _times(elements: Number, size: Number) -> Number:
    return elements * size


class Boundaries:
    """What crosses the boundaries of a graph's kernels, and in which formats; from :func:`kernel_boundaries`."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.tensors = graph.tensors
        self.gradients = frozenset(gradient for _, gradient in graph.info.training.gradients or ())
        self.aliases = aliases(graph)
        self.base, self.root = self.aliases.base, self.aliases.root

    def shapes(self, node: Node) -> list[tuple[Number, ...]]:
        """Return the input shapes of a node."""
        return [self.tensors[name].shape for name in node.inputs]

    def kind(self, name: str) -> Kind:
        """Return what a tensor, or what it looks at, is to the memory count."""
        root = self.root(name)  # gradients that an update is handed, the run before it has written
        return "activation" if root in self.gradients else self.tensors[root].kind

    def strided(self, name: str) -> bool:
        """Tell whether a view on the way to the tensor skips or repeats elements of its base."""
        node = self.graph.producer.get(name)
        if node is None or OPS[node.op].kind != "view":
            return False
        base, rest = self.tensors[node.inputs[0]].shape, self.tensors[name].shape[1:]
        skips = node.op == "slice" and base[len(base) - len(rest) :] != rest
        return skips or node.op == "expand" or self.strided(node.inputs[0])

    def leaves(self, name: str, label: str) -> bool:
        """Tell whether a tensor written in kernel ``label`` is needed outside it, or by nobody at all."""
        in_place = OPS[self.graph.producer[name].op].alias is not None
        return in_place or self.aliases.readers.get(name, frozenset()) != {label}

    def compute_dtype(self, node: Node) -> str:
        """Return the number format a contraction runs in: the one it names, or the widest of its operands."""
        named = dict(node.attrs).get("compute")
        if named is not None:
            return str(named)
        formats = [DTYPES[self.tensors[name].dtype] for name in node.inputs[:2]]
        runs = [DTYPES[f.compute] for f in formats if f.compute is not None]
        return max(runs or [DTYPES[self.tensors[node.outputs[0]].dtype]], key=lambda f: f.bits).name

    def fingerprint(self, nodes: Iterable[Node]) -> Hashable:
        """Return what is equal for kernels that do the same work on tensors of the same shapes and formats."""
        local: dict[str, int] = {}

        def tensor(name: str) -> Hashable:
            return local.setdefault(self.base(name), len(local)), local.setdefault(name, len(local)), self.alike[name]

        return tuple(
            (node.op, node.attrs, node.count, tuple(tensor(name) for name in node.inputs),
             tuple((tensor(name), self.leaves(name, node.label)) for name in node.outputs))
            for node in nodes
        )  # fmt: skip

    @cached_property
    def alike(self) -> dict[str, int]:
        """A number for each tensor, equal for those of the same shape and format on bases of the same shape."""
        numbers: dict[Hashable, int] = {}
        return {
            name: numbers.setdefault((this.shape, this.dtype, self.tensors[self.base(name)].shape), len(numbers))
            for name, this in self.tensors.items()
        }


@once_per_graph
def kernel_boundaries(graph: Graph) -> Boundaries:
    """Return what crosses the boundaries of a graph's kernels."""
    return Boundaries(graph)
