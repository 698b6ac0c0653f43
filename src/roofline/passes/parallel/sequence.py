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
from roofline.ops.pointwise import POINTWISE
from roofline.ops.registry import OPS, get_op
from roofline.passes.parallel.partitioner import Writer

#: Operators that treat rows, and so positions, apart from each other.
_BY_ROW = frozenset({
    *POINTWISE, "elementwise", "softmax", "layernorm", "rmsnorm", "topk", "linear", "expert_linear", "embedding",
    "gather_rows", "scatter_add",
})  # fmt: skip


def over_positions(graph: Graph, devices: int) -> Graph:
    """Replace the all-reduces of a tensor-parallel program by reduce-scatters and all-gathers.

    Raises:
        UsageError: A program without an axis of positions, or a width that the devices cannot share.
    """
    return _Positions(graph, devices).run()


class _Positions(Writer):
    """The walk: ``parts`` are tensors of a share of the positions, ``given`` what was gathered and all that follows."""

    def __init__(self, graph: Graph, devices: int) -> None:
        super().__init__(graph)
        self.devices = devices
        self.length = {name: symbol(name) / devices for name in graph.symbols - {"B"}}
        self.producer = graph.producer
        self.now: dict[str, str] = {}
        self.parts: dict[str, tuple[Size, ...]] = {}
        self.given: set[str] = set()
        self.whole: dict[str, str] = {}
        self.cuts: dict[str, str] = {}
        self.pending: dict[str, Node] = {}

    def run(self) -> Graph:
        for node in self.graph.nodes:
            self._node(node)
        if not self.parts:
            raise UsageError(
                f"sp=True: {self.graph.name} has no axis of positions that its layers could share (a decode step has "
                "one position); use sp=False"
            )
        self.nodes.extend(self.pending.values())
        return self.finish(tuple(self._gathered(self.now.get(name, name)) for name in self.graph.outputs))

    def _node(self, node: Node) -> None:
        if not node.inputs and self._has_positions(node.outputs[0]):
            self.pending[node.outputs[0]] = node  # a mask is drawn for those positions that its reader treats
            return
        names = [self.now.get(name, name) for name in node.inputs]
        if node.op == "all_reduce" and self._is_stream(node.inputs[0]):
            self.now[node.outputs[0]] = self._scatter(node, names[0])
        elif node.op == "parallel_input":
            self._give(node, names[0])
        elif any(name in self.given for name in names):
            self._write(node, [self._gathered(name) for name in names])
            self.given.update(node.outputs)
        elif any(name in self.parts for name in names):
            self._share(node, names)
        else:
            self._write(node, names)

    def _write(self, node: Node, names: list[str]) -> None:
        for name in names:
            if name in self.pending:
                self.nodes.append(self.pending.pop(name))
        self.nodes.append(replace(node, inputs=tuple(names)))

    def _has_positions(self, name: str) -> bool:
        return any(symbols(size) & self.length.keys() for size in self.graph.tensors[name].shape)

    def _is_stream(self, flat: str) -> bool:
        """Whether a flat tensor is the sum of a branch, ``(B, S, h)``, and no number a row."""
        node = self.producer.get(flat)
        return node is not None and node.op == "view" and self._has_positions(node.inputs[0])

    def _scatter(self, node: Node, flat: str) -> str:
        whole = self.graph.tensors[node.outputs[0]].shape
        part = self.add("reduce_scatter", flat, name=node.name.replace("all_reduce", "reduce_scatter"),
                        devices=self.devices)  # fmt: skip
        if self.tensors[part].shape != self._part(whole):
            raise UsageError(f"sp=True: {node.name} has a width that {self.devices} devices cannot share")
        self.parts[part] = whole
        return part

    def _give(self, node: Node, name: str) -> None:
        if name in self.parts:
            self.now[node.outputs[0]] = self._gathered(name)
        else:
            self._write(node, [name])
        self.given.add(self.now.get(node.outputs[0], node.outputs[0]))

    def _share(self, node: Node, names: list[str]) -> None:
        """Run a node on a share of the positions if it treats them apart, else on all of them."""
        attrs = {key: self._substituted(value) for key, value in node.attrs}
        shape = self._shape_of_share(node, names, attrs)
        if shape is None:
            self._write(node, [self._gathered(name) for name in names])
            return
        inputs = tuple(self._cut(name) for name in names)
        self.nodes.append(replace(node, inputs=inputs, attrs=tuple(sorted(attrs.items()))))
        for name in node.outputs:
            self._become(name, shape)

    def _become(self, name: str, shape: tuple[Size, ...]) -> None:
        self.parts[name] = self.tensors[name].shape
        self.tensors[name] = replace(self.tensors[name], shape=shape)

    def _shape_of_share(self, node: Node, names: list[str], attrs: dict[str, Any]) -> tuple[Size, ...] | None:
        apart = node.op in _BY_ROW or OPS[node.op].kind == "view" or self._joins_columns(node)
        if not apart or not self._has_positions(node.outputs[0]):
            return None
        try:
            found = get_op(node.op, node.name).output([self._part_of(name) for name in names], attrs)
        except ShapeError:
            return None
        return found if found == self._part(self.graph.tensors[node.outputs[0]].shape) else None

    def _joins_columns(self, node: Node) -> bool:
        """Whether arrays are joined along another axis than that of the positions."""
        axis = dict(node.attrs).get("axis", -1)
        return node.op == "cat" and not symbols(self.graph.tensors[node.outputs[0]].shape[axis]) & self.length.keys()

    def _part_of(self, name: str) -> tuple[Size, ...]:
        shape = self.tensors[name].shape
        return shape if name in self.parts else self._part(shape)

    def _part(self, shape: tuple[Size, ...]) -> tuple[Size, ...]:
        return tuple(substitute(size, self.length) for size in shape)

    def _substituted(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._substituted(item) for item in value)
        return substitute(value, self.length)

    def _cut(self, name: str) -> str:
        """A device's share of the positions of a tensor that it has whole."""
        part = self._part_of(name)
        if name in self.pending:
            node = self.pending.pop(name)
            attrs = tuple((key, self._substituted(value)) for key, value in node.attrs)
            self.nodes.append(replace(node, attrs=attrs))
            self._become(name, part)
        if name in self.parts or part == self.tensors[name].shape:
            return name
        if name not in self.cuts:
            self.cuts[name] = self.add("slice", name, name=f"{name}.positions", shape=part)
        return self.cuts[name]

    def _gathered(self, name: str) -> str:
        """All positions, gathered once; a view of what was gathered is one."""
        if name not in self.parts:
            return name
        if name not in self.whole:
            node = self.producer.get(name)
            source = self.now.get(node.inputs[0], node.inputs[0]) if node is not None and node.op == "view" else ""
            if source in self.parts and len(self.parts[source]) > 1:
                self.whole[name] = self.add(
                    "view", self._gathered(source), name=f"{name}.whole", shape=self.parts[name]
                )
            else:
                self.whole[name] = self.exchange("all_gather", name, self.devices, self.parts[name])
        return self.whole[name]
