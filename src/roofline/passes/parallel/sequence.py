"""Sequence parallelism (Korthikanti et al. 2022, section 4.2.2): norms, dropouts and residuals on a share of positions.

An all-reduce is a reduce-scatter and an all-gather. Between the two, whatever treats positions apart from each other
may run on each device's share of them: the same bytes on the wire, less memory and less work.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from roofline.ir.errors import ShapeError, UsageError
from roofline.ir.graph import Graph, Node
from roofline.ir.sizes import Size, substitute, symbol, symbols
from roofline.ops.builder import Builder
from roofline.ops.pointwise import POINTWISE
from roofline.ops.registry import OPS, get_op
from roofline.passes.parallel.partitioner import exchange

#: Operators that treat rows, and so positions, apart from each other.
_BY_ROW = frozenset({
    *POINTWISE, "elementwise", "softmax", "layernorm", "rmsnorm", "topk", "linear", "expert_linear", "embedding",
    "gather_rows", "scatter_add",
})  # fmt: skip


def sequence_parallel(graph: Graph, devices: int) -> Graph:
    """Replace the all-reduces of a tensor-parallel program by reduce-scatters and all-gathers.

    Raises:
        UsageError: A program without an axis of positions, or a width that the devices cannot share.
    """
    return _SequenceParallel(graph, devices).run()


class _SequenceParallel:
    """The walk.

    Attributes:
        now: For tensors of the program, the one that holds them from here on.
        parts: Tensors of a share of the positions, with their whole shapes.
        gathered: Tensors that hold all positions until the next reduce-scatter: what was gathered and all that follows.
        pending: Nodes without inputs, such as masks, which are drawn for those positions that their reader treats.
    """

    def __init__(self, graph: Graph, devices: int) -> None:
        self.graph, self.devices, self.b = graph, devices, Builder.of(graph, nodes=())
        self.length = {name: symbol(name) / devices for name in graph.symbols - {"B"}}
        self.now: dict[str, str] = {}
        self.parts: dict[str, tuple[Size, ...]] = {}
        self.gathered: set[str] = set()
        self.pending: dict[str, Node] = {}
        self._wholes: dict[str, str] = {}
        self._slices: dict[str, str] = {}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self._node(node)
        if not self.parts:
            raise UsageError(
                f"sp=True: {self.graph.name} has no axis of positions that its layers could share (a decode step has "
                "one position); use sp=False"
            )
        for node in self.pending.values():
            self.b.place(node)
        return self.b.graph(self._whole(self.now.get(name, name)) for name in self.graph.outputs)

    def _node(self, node: Node) -> None:
        if not node.inputs and self._has_positions(node.outputs[0]):
            self.pending[node.outputs[0]] = node
            return
        names = [self.now.get(name, name) for name in node.inputs]
        if node.op == "all_reduce" and self._is_stream(node.inputs[0]):
            self.now[node.outputs[0]] = self._scatter(node, names[0])
        elif node.op == "parallel_input" and names[0] in self.parts:
            self.now[node.outputs[0]] = self._whole(names[0])
            self.gathered.add(self.now[node.outputs[0]])
        elif node.op == "parallel_input" or not self.gathered.isdisjoint(names):
            self._place(node, [self._whole(name) for name in names])
            self.gathered.update(node.outputs)
        elif not self.parts.keys().isdisjoint(names):
            self._share(node, names)
        else:
            self._place(node, names)

    def _place(self, node: Node, names: list[str]) -> None:
        for name in names:
            if name in self.pending:
                self.b.place(self.pending.pop(name))
        self.b.place(replace(node, inputs=tuple(names)))

    def _has_positions(self, name: str) -> bool:
        return any(symbols(size) & self.length.keys() for size in self.graph.tensors[name].shape)

    def _is_stream(self, flat: str) -> bool:
        """Tell whether a flat tensor is the sum of a branch, ``(B, S, h)``, and not one number per row."""
        node = self.graph.producer.get(flat)
        return node is not None and node.op == "view" and self._has_positions(node.inputs[0])

    def _scatter(self, node: Node, flat: str) -> str:
        whole = self.graph.tensors[node.outputs[0]].shape
        name = node.name.replace("all_reduce", "reduce_scatter")
        part = self.b.op("reduce_scatter", flat, name=name, devices=self.devices)
        if self.b.shape(part) != self._at_share(whole):
            raise UsageError(f"sp=True: {node.name} has a width that {self.devices} devices cannot share")
        self.parts[part] = whole
        return part

    def _share(self, node: Node, names: list[str]) -> None:
        """Run a node on a share of the positions if it treats them apart, else on all of them."""
        attrs = {key: self._at_share(value) for key, value in node.attrs}
        shape = self._shape_of_share(node, names, attrs)
        if shape is None:
            self._place(node, [self._whole(name) for name in names])
            return
        inputs = tuple(self._part(name) for name in names)
        self.b.place(replace(node, inputs=inputs, attrs=tuple(sorted(attrs.items()))))
        for name in node.outputs:
            self._becomes_part(name, shape)

    def _becomes_part(self, name: str, shape: tuple[Size, ...]) -> None:
        self.parts[name] = self.b.shape(name)
        self.b.restate(name, shape)

    def _shape_of_share(self, node: Node, names: list[str], attrs: dict[str, Any]) -> tuple[Size, ...] | None:
        apart = node.op in _BY_ROW or OPS[node.op].kind == "view" or self._joins_columns(node)
        if not apart or not self._has_positions(node.outputs[0]):
            return None
        try:
            shape = get_op(node.op, node.name).output([self._shape_of_part(name) for name in names], attrs)
        except ShapeError:
            return None
        return shape if shape == self._at_share(self.graph.tensors[node.outputs[0]].shape) else None

    def _joins_columns(self, node: Node) -> bool:
        """Tell whether arrays are joined along another axis than that of the positions."""
        axis = dict(node.attrs).get("axis", -1)
        return node.op == "cat" and not symbols(self.graph.tensors[node.outputs[0]].shape[axis]) & self.length.keys()

    def _shape_of_part(self, name: str) -> tuple[Size, ...]:
        shape = self.b.shape(name)
        return shape if name in self.parts else self._at_share(shape)

    def _at_share(self, value: Any) -> Any:
        """A size, a shape or an option on a device's share of the positions."""
        return tuple(map(self._at_share, value)) if isinstance(value, tuple) else substitute(value, self.length)

    def _part(self, name: str) -> str:
        """A device's share of the positions of a tensor that it has whole."""
        shape = self._shape_of_part(name)
        if name in self.pending:
            node = self.pending.pop(name)
            self.b.place(replace(node, attrs=tuple((key, self._at_share(value)) for key, value in node.attrs)))
            self._becomes_part(name, shape)
        if name in self.parts or shape == self.b.shape(name):
            return name
        if name not in self._slices:
            self._slices[name] = self.b.op("slice", name, name=f"{name}.positions", shape=shape)
        return self._slices[name]

    def _whole(self, name: str) -> str:
        """All positions, gathered once; a view of what was gathered is one."""
        if name not in self.parts:
            return name
        if name not in self._wholes:
            node, shape = self.graph.producer.get(name), self.parts[name]
            source = self.now.get(node.inputs[0], node.inputs[0]) if node is not None and node.op == "view" else ""
            if source in self.parts and len(self.parts[source]) > 1:
                self._wholes[name] = self.b.op("view", self._whole(source), name=f"{name}.whole", shape=shape)
            else:
                self._wholes[name] = exchange(self.b, "all_gather", name, self.devices, shape)
        return self._wholes[name]
