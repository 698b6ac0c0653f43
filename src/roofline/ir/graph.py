"""The program: tensors, nodes and the graph that joins them. Knows no operator and no chip.

A node carries a *kernel label*: nodes with the same label run as one kernel, and only tensors that cross the boundary
of a kernel are moved. Fusion is relabelling; nothing else about a node changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Any, Literal

from roofline.ir.errors import ShapeError
from roofline.ir.sizes import Dim, Size, prod, substitute, symbols

#: What a tensor is to the memory count: stored parameters, stored constants that are no parameters (running
#: statistics), the KV cache or other kept state, what the caller hands in, or something computed on the way.
Kind = Literal["weight", "buffer", "cache", "input", "activation"]


# Layers repeat, so the same shapes are asked for over and over.
_numel = lru_cache(maxsize=4096)(prod)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array.

    Attributes:
        name: Unique in its graph.
        shape: Sizes, symbolic or not.
        dtype: Name of the number format.
        kind: ``weight``, ``buffer``, ``cache``, ``input`` or ``activation``.
    """

    name: str
    shape: tuple[Size, ...]
    dtype: str
    kind: Kind = "activation"

    @property
    def numel(self) -> Any:
        """Elements, symbolic or not."""
        return _numel(self.shape)


@dataclass(frozen=True, slots=True)
class Node:
    """One operator call.

    Attributes:
        name: Unique in its graph, dotted like a module path.
        op: Operator name in the registry.
        inputs: Names of the tensors read, in the operator's order.
        outputs: Names of the tensors written.
        attrs: Options of the operator as sorted pairs, so that nodes hash and compare.
        kernel: Label of the kernel that it runs in; empty means one of its own.
        count: How often it runs back to back, on other data each time.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: tuple[tuple[str, Any], ...] = ()
    kernel: str = ""
    count: int = 1

    @property
    def label(self) -> str:
        """The kernel that this node runs in."""
        return self.kernel or self.name


@dataclass(frozen=True, slots=True, eq=False)
class Applied:
    """A pass that was applied to a graph.

    Attributes:
        name: The pass.
        options: What it was told, as pairs.
        before: The program that it was given.
        notes: What a reader should know about what it did, or did not do.
    """

    name: str
    options: tuple[tuple[str, Any], ...]
    before: Graph
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(f'{key}={value!r}' for key, value in self.options)})"


@dataclass(frozen=True)
class Graph:
    """Tensors and nodes in execution order.

    Attributes:
        name: What the program is called.
        tensors: By name.
        nodes: In an order in which every tensor is written before it is read.
        outputs: Tensors that outlive the run.
        items: What one run produces, for throughput (``B*S`` tokens of a prefill, ``B`` of a decode step).
        item: The word for one of them: ``token``, ``image``, ``sample``.
        info: Provenance: model, phase, published parameter count, source.
        history: The passes that were applied, first to last; :func:`roofline.analysis.trail` says what each did.
    """

    name: str
    tensors: Mapping[str, Tensor]
    nodes: tuple[Node, ...]
    outputs: tuple[str, ...] = ()
    items: Size = 1
    item: str = "run"
    info: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Applied, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))
        object.__setattr__(self, "info", MappingProxyType(dict(self.info)))

    def __hash__(self) -> int:
        return id(self)

    @cached_property
    def symbols(self) -> frozenset[str]:
        """The sizes that need a value before anything can be counted."""
        return frozenset().union(*(symbols(size) for tensor in self.tensors.values() for size in tensor.shape))

    @cached_property
    def parameters(self) -> int:
        """Weight elements, each shared tensor once."""
        return sum(tensor.numel for tensor in self.tensors.values() if tensor.kind == "weight")

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Node, ...]]:
        """For each tensor, the nodes that read it."""
        readers: dict[str, list[Node]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                readers.setdefault(name, []).append(node)
        return {name: tuple(nodes) for name, nodes in readers.items()}

    def bind(self, **sizes: int) -> Graph:
        """The same program with some symbols replaced by numbers."""
        at = {name: replace(t, shape=tuple(substitute(s, sizes) for s in t.shape)) for name, t in self.tensors.items()}
        nodes = tuple(
            replace(node, attrs=tuple((key, _substitute_attr(value, sizes)) for key, value in node.attrs))
            for node in self.nodes
        )
        history = tuple(replace(step, before=step.before.bind(**sizes)) for step in self.history)
        info = {key: _bound(value, sizes) for key, value in self.info.items()}
        items = substitute(self.items, sizes)
        return replace(self, tensors=at, nodes=nodes, items=items, info=info, history=history)

    def with_nodes(self, nodes: Iterable[Node]) -> Graph:
        """The same program with other nodes, validated."""
        return replace(self, nodes=tuple(nodes)).validate()

    def with_tensors(self, tensors: Iterable[Tensor]) -> Graph:
        """The same program with some tensors replaced by name."""
        return replace(self, tensors={**self.tensors, **{tensor.name: tensor for tensor in tensors}})

    def validate(self) -> Graph:
        """Check that the graph is one: known tensors, single writers, no read before the write.

        Raises:
            ShapeError: Names the node and the tensor.
        """
        written = {name for name, tensor in self.tensors.items() if tensor.kind != "activation"}
        names: set[str] = set()
        for node in self.nodes:
            if node.name in names:
                raise ShapeError(f"{self.name}: two nodes are called {node.name!r}")
            names.add(node.name)
            for tensor in node.inputs:
                if tensor not in written:
                    raise ShapeError(f"{self.name}: node {node.name!r} reads {tensor!r} before anything writes it")
            for tensor in node.outputs:
                if tensor not in self.tensors:
                    raise ShapeError(f"{self.name}: node {node.name!r} writes {tensor!r}, which has no shape")
                if tensor in written:
                    raise ShapeError(f"{self.name}: node {node.name!r} writes {tensor!r} a second time")
                written.add(tensor)
        lost = [name for name in self.outputs if name not in written]
        if lost:
            raise ShapeError(f"{self.name}: output {lost[0]!r} is never written")
        return self

    def __repr__(self) -> str:
        sizes = f", sizes {', '.join(sorted(self.symbols))}" if self.symbols else ""
        return f"<Graph {self.name}: {len(self.nodes)} nodes, {self.parameters:,} parameters{sizes}>"


def _bound(value: Any, sizes: Mapping[str, int]) -> Any:
    """Graphs in what is known of a graph, such as the stages of a pipeline."""
    if isinstance(value, tuple):
        return tuple(_bound(each, sizes) for each in value)
    return value.bind(**sizes) if isinstance(value, Graph) else value


def _substitute_attr(value: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(value, tuple):
        return tuple(_substitute_attr(item, sizes) for item in value)
    return substitute(value, sizes) if isinstance(value, Dim) else value
