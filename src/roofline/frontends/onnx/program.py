"""An ONNX graph to nodes: node by node, what follows from the file alone first, then the rule of its operator."""

from __future__ import annotations

import math
import re
from collections import ChainMap, Counter
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from roofline.frontends import emit
from roofline.frontends.onnx.call import Call, Result, Undetermined
from roofline.frontends.onnx.fold import fold
from roofline.frontends.onnx.known import Value, array
from roofline.frontends.onnx.names import Names
from roofline.frontends.onnx.read import (  # fmt: skip
    ELEMENTS,
    MAX_SIZE,
    SMALL,
    attribute_value,
    clean,
    elements,
    library,
    one_line,
)
from roofline.frontends.onnx.rules import AS_THEY_ARE, LAYOUT, MOVES, RULES, result_dtype
from roofline.ir.errors import ModelDataError, RooflineError, UnknownOp
from roofline.ir.expressions import parse
from roofline.ir.sizes import Dim, Size, terms
from roofline.ops.builder import Builder

#: What a malformed attribute or operand makes plain Python raise in a rule.
MALFORMED = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError, AssertionError)
#: Integers of two axes or more in these formats are quantised weights, not indices.
_QUANTISED = frozenset({"int8", "int4", "fp8", "fp4"})
#: Axes of a tensor, and terms of its element count, beyond which a file is no model but an attack on the reader.
_MAX_AXES = 64
_MAX_TERMS = 4096
_STATE = re.compile(r"past|cache", re.IGNORECASE)


class Program:
    """An ONNX model on its way to a graph.

    Args:
        model: The parsed model.
        builder: Where nodes go.
        names: How names of sizes are read.
        policy: What to do with an operation without a rule.
        where: What to call the file in errors.
    """

    def __init__(self, model: Any, builder: Builder, names: Names, policy: str, where: str) -> None:
        self.onnx = library()
        self.model = model
        self.b = builder
        self.names = names
        self.policy = policy
        self.where = where
        self.notes: dict[str, None] = {}
        self.together: dict[str, list[str]] = {}
        self.folded: Counter[str] = Counter()
        self.versions = {each.domain: each.version for each in model.opset_import}
        self.values: MutableMapping[str, Value] = {}
        self._made: dict[int, tuple[Value, str]] = {}
        self._outer: tuple[Builder, dict[int, tuple[Value, str]]] | None = None
        self._readers: dict[str, list[str]] = {}
        self._shapes: dict[str, tuple[Any, ...]] | None = None

    # --- tensors ------------------------------------------------------------------------------------------------------

    def tensor(self, value: Value) -> str:
        """A value as a tensor of the builder, declared when it is first read."""
        if id(value) not in self._made:
            kind, dtype = value.kind, value.stored or value.dtype
            if self._outer is not None and id(value) in self._outer[1]:
                known = self._outer[0].tensor(self._outer[1][id(value)][1])
                kind, dtype = known.kind, known.dtype
            kind = "input" if kind == "activation" else kind
            name = self.b.source(clean(value.name) or "constant", value.shape, kind, dtype)
            self._made[id(value)] = (value, name)
        return self._made[id(value)][1]

    def computed(self, name: str, tensor: str, dtype: str, const: bool = False) -> Value:
        """A value that a node of the builder writes."""
        shape = self.b.shape(tensor)
        if any(isinstance(size, int) and size < 0 for size in shape):
            raise ModelDataError(f"{self.where}: {name!r} has the shape {list(shape)}; sizes are not negative")
        if len(shape) > _MAX_AXES or math.prod(len(list(terms(size))) for size in shape) > _MAX_TERMS:
            raise ModelDataError(f"{self.where}: {name!r} has {len(shape)} axes or sizes beyond reason")
        value = Value(name, shape, dtype, const=const)
        self._made[id(value)] = (value, tensor)
        return value

    @contextmanager
    def scratch(self) -> Iterator[Builder]:
        """Build something only to see what comes out."""
        kept = (self.b, self._made, self._outer, self.notes, self.together)
        self.b, self._made, self._outer = Builder("scratch", self.b.dtype), {}, kept[:2]
        self.notes, self.together = {}, {}
        try:
            yield self.b
        finally:
            self.b, self._made, self._outer, self.notes, self.together = kept

    def is_read(self, name: str) -> bool:
        """Whether a node, or the caller, reads a tensor of the file."""
        return bool(name) and bool(self._readers.get(name))

    def readers(self, name: str) -> list[str]:
        """Operators of the nodes that read a tensor; empty text for the caller and for graphs inside nodes."""
        return self._readers.get(name, [])

    # --- shapes that the file gives -----------------------------------------------------------------------------------

    def declared(self, name: str, call: Call) -> tuple[Size, ...]:
        """The shape that the file or the shape inference of onnx gives a tensor.

        Raises:
            ModelDataError: Neither knows it.
        """
        if name not in self.shapes:
            raise ModelDataError(f"{call.name}: {call.what}: the shape of its result {name!r} is not known")
        return tuple(self._declared_size(size, name, at) for at, size in enumerate(self.shapes[name]))

    @property
    def shapes(self) -> dict[str, tuple[Any, ...]]:
        """Shapes by name, from the file and from onnx; worked out when a rule first asks."""
        if self._shapes is None:
            self._shapes = _inferred_shapes(self.onnx, self.model)
        return self._shapes

    def alike(self, a: str, b: str) -> bool:
        """Whether the file gives two tensors the same shape, size by size."""
        shape = self.shapes.get(a, ())
        return bool(shape) and 0 not in shape and self.shapes.get(b) == shape

    def _declared_size(self, size: Any, name: str, at: int) -> Size:
        if isinstance(size, int) and size > 0:
            return size
        if isinstance(size, str) and size and not size.startswith("unk__"):
            if size in self.names.known:
                return self.names.known[size]
            try:
                return parse(size, self.names.known)
            except RooflineError:
                pass
        free = self.names.free(clean(name).replace(".", "_") + f"_{at}")
        self.notes[f"size {free} depends on values that only a run knows; give it like any other size"] = None
        return free

    def input(self, info: Any, kind: str = "input") -> Value:
        """Declare what the caller hands in.

        Raises:
            ModelDataError: It has no shape, or no format that is known.
        """
        where = f"{self.where}: input {info.name!r}"
        if not info.type.HasField("tensor_type"):
            raise ModelDataError(f"{where} is no tensor but a sequence, a map or an optional")
        kept = info.type.tensor_type
        if kept.elem_type not in ELEMENTS:
            raise ModelDataError(f"{where} holds elements of type {kept.elem_type}, which is no number format")
        if not kept.HasField("shape"):
            raise ModelDataError(f"{where} has no shape; export the model with the shapes of its inputs")
        shape = tuple(self._input_size(size, f"{info.name}_{at}", where) for at, size in enumerate(kept.shape.dim))
        floating = ELEMENTS[kept.elem_type][0] in "fb" and len(shape) > 2
        stays = floating and _STATE.search(info.name) is not None
        return Value(info.name, shape, ELEMENTS[kept.elem_type], kind="cache" if stays else "input")

    def _input_size(self, dim: Any, fallback: str, where: str) -> Size:
        if dim.HasField("dim_value"):
            if not 0 < dim.dim_value <= MAX_SIZE:
                raise ModelDataError(f"{where} has a size of {dim.dim_value}; sizes are 1 to 2**40")
            return int(dim.dim_value)
        return self.names.size(dim.dim_param or fallback)

    def stored(self, tensor: Any, name: str, from_node: bool = False) -> Value:
        """A tensor that the file holds: a weight, a buffer, or a small constant whose elements are known.

        Raises:
            ModelDataError: Its elements are no numbers.
        """
        if tensor.data_type not in ELEMENTS:
            raise ModelDataError(f"{self.where}: {name!r} holds elements of type {tensor.data_type}, no number format")
        if any(not 0 <= size <= MAX_SIZE for size in tensor.dims):
            raise ModelDataError(f"{self.where}: {name!r} has the shape {list(tensor.dims)}; sizes are 0 to 2**40")
        dtype, shape, count = ELEMENTS[tensor.data_type], tuple(int(size) for size in tensor.dims), elements(tensor)
        floating = dtype[0] in "fb" and dtype not in ("bool", *_QUANTISED)
        weight = (count > 1 and len(shape) > (1 if from_node else 0)) if floating else False
        weight = weight or (dtype in _QUANTISED and len(shape) > 1 and count > 1)
        value = Value(name, shape, dtype, const=True, kind="weight" if weight else "buffer")
        if count <= (1 if weight else SMALL):
            value.data = self._elements(tensor, dtype, shape)
        if weight and count <= 16:
            value.data = self._elements(tensor, dtype, shape)  # scales of a resize, limits of a clip
        return value

    def _elements(self, tensor: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        if tensor.data_location == 1:
            return None
        try:
            found = self.onnx.numpy_helper.to_array(tensor).reshape(-1)
            plain = float if dtype[0] in "f" or dtype == "bf16" else bool if dtype == "bool" else int
            return array([plain(element) for element in found], shape)
        except (*MALFORMED, self.onnx.checker.ValidationError) as error:
            raise ModelDataError(f"{self.where}: {tensor.name!r}: {one_line(error)}") from None

    # --- graphs -------------------------------------------------------------------------------------------------------

    def graph(self, graph: Any, given: Sequence[Value] | None = None) -> list[Value]:
        """Add a graph, at the top or in a node; returns its outputs."""
        outer, readers = self.values, self._readers
        self.values = ChainMap({}, outer) if given is not None else self.values
        self._readers = _readers(graph)
        try:
            for tensor in graph.initializer:
                self.values[tensor.name] = self.stored(tensor, tensor.name)
            for sparse in graph.sparse_initializer:
                self.values[sparse.values.name] = self._sparse(sparse)
            for at, info in enumerate(graph.input):
                if info.name not in self.values or given is not None:
                    self.values[info.name] = self.input(info) if given is None else given[at]
            for node in graph.node:
                self.node(node)
            return [self._lookup(info.name, "the graph's outputs") for info in graph.output]
        finally:
            self.values, self._readers = outer, readers

    def _sparse(self, sparse: Any) -> Value:
        value = self.stored(sparse.values, sparse.values.name)
        value.shape, value.data = tuple(int(size) for size in sparse.dims), None
        self.notes[f"{value.name}: stored sparse, counted dense"] = None
        return value

    def _lookup(self, name: str, reader: str) -> Value:
        if name not in self.values:
            raise ModelDataError(f"{self.where}: {reader} read {name!r}, which nothing before writes")
        return self.values[name]

    def node(self, node: Any) -> None:
        """Add one node of the file."""
        call = self._call(node)
        self.b.dtype = call.dtype
        try:
            known = fold(call)
            if known is None and call.what not in AS_THEY_ARE and call.inputs and self._all_const(call):
                known = self._precomputed(call)
            results = known if known is not None else self._emit(call)
        except RooflineError as error:
            if call.name in str(error):
                raise
            raise type(error)(f"{self.where}: {call.name}: {call.what}: {one_line(error)}") from None
        except MALFORMED as error:
            raise ModelDataError(f"{self.where}: {call.name}: malformed {call.what}: {one_line(error)}") from None
        self.folded[call.what] += known is not None
        const = call.what in LAYOUT and self._all_const(call)
        for name, result in zip(call.outputs, [results] if isinstance(results, str | Value) else results, strict=False):
            if name and isinstance(result, str):
                self.values[name] = self.computed(name, result, self.b.tensor(result).dtype, const)
                self.values[name].kind = call.value(0).kind if const else "activation"
            elif name and isinstance(result, Value):
                self.values[name] = result

    def _call(self, node: Any) -> Call:
        domain = "" if node.domain == "ai.onnx" else node.domain
        what = clean(f"{domain}.{node.op_type}")
        name = _node_name(node)
        inputs = [self._lookup(each, f"{name} ({what})") if each else None for each in node.input]
        attrs = {each.name: attribute_value(self.onnx, each) for each in node.attribute if not each.ref_attr_name}
        version = self.versions.get(node.domain, self.versions.get(domain, 1))
        call = Call(self, what, name, inputs, list(node.output), attrs, version)
        call.dtype = result_dtype(call)
        return call

    def _all_const(self, call: Call) -> bool:
        return all(value is None or value.const for value in call.inputs)

    def _precomputed(self, call: Call) -> list[Value] | None:
        """What follows from constants alone is computed once, when the program is loaded."""
        if call.what not in RULES:
            return None
        with self.scratch() as trial:
            found = RULES[call.what](call)
            names = [found] if isinstance(found, str | Value) else list(found)
            shapes = [trial.shape(each) if isinstance(each, str) else None for each in names]
        kept: list[Value] = []
        for name, result, shape in zip(call.outputs, names, shapes, strict=False):
            if not isinstance(result, str) or shape is None:
                return None
            if any(isinstance(size, Dim) for size in shape):
                return None
            kept.append(self._result_of_constants(call, name, shape))
        return kept

    def _result_of_constants(self, call: Call, name: str, shape: tuple[Size, ...]) -> Value:
        """Still the weight where it has its elements, in another format or scaled."""
        count = math.prod(int(size) for size in shape if isinstance(size, int))
        weights = [v for v in call.inputs if v is not None and v.kind == "weight"]
        same = len(weights) == 1 and math.prod(int(s) for s in weights[0].shape if isinstance(s, int)) == count
        label = weights[0].name if same else name
        return Value(label, shape, call.dtype, const=True, kind="weight" if same else "buffer")

    def _emit(self, call: Call) -> Result:
        if call.what in RULES:
            return self._apply(call)
        inputs = [self.tensor(value) for value in call.inputs if value is not None]
        shapes = [() if self.policy == "error" else self.declared(name, call) for name in call.outputs]
        first = emit.unknown(self.b, call.what, inputs, shapes[0] if shapes else (), policy=self.policy,
                             where=call.name, known=RULES, dtype=call.dtype)  # fmt: skip
        rest = [call.write(shape, part=f"result_{at}") for at, shape in enumerate(shapes[1:], 1) if call.outputs[at]]
        return [first, *rest]

    def _apply(self, call: Call) -> Result:
        """The rule; where a move is as large as values say, the shape that the file declares."""
        try:
            return RULES[call.what](call)
        except Undetermined:
            if call.what not in MOVES:
                raise
        inputs = [self.tensor(value) for value in call.inputs if value is not None]
        return [call.write(self.declared(name, call), *inputs) for name in call.outputs if name]

    def missing(self, call: Call, why: str) -> UnknownOp:
        """An error for what a rule does not cover."""
        return UnknownOp(f"{self.where}: {call.name}: {call.what}: {why}")

    def trip(self, name: str) -> int | None:
        """How often a loop runs, where ``sizes`` says so."""
        return self.names.trip(f"trip.{name}", "trip")


def _node_name(node: Any) -> str:
    """A dotted path: the module that an exporter notes, or the name in the file."""
    scopes: list[str] = []
    for entry in node.metadata_props:
        if entry.key == "pkg.torch.onnx.name_scopes":
            scopes = re.findall(r"'([^']*)'", entry.value)
    if len(scopes) > 1 and scopes[-2] and not scopes[-2].startswith("_"):
        return clean(f"{scopes[-2]}.{node.op_type}")
    if scopes:
        return clean(node.op_type)
    return clean(node.name) or clean(node.output[0] if node.output else "") or clean(node.op_type) or "node"


def _readers(graph: Any) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {info.name: [""] for info in graph.output}
    for node in graph.node:
        for name in node.input:
            found.setdefault(name, []).append(node.op_type)
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs]:
                for name in _names_inside(inner):
                    found.setdefault(name, []).append("")
    return found


def _names_inside(graph: Any) -> Iterator[str]:
    for info in graph.output:
        yield info.name
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            for inner in [attribute.g, *attribute.graphs]:
                yield from _names_inside(inner)


def _inferred_shapes(onnx: Any, model: Any) -> dict[str, tuple[Any, ...]]:
    """Shapes by name, from the file and from onnx; only asked for where no rule gives them."""
    with suppress(Exception):  # whatever the C++ part throws; the file's own shapes remain
        model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    found: dict[str, tuple[Any, ...]] = {}
    for info in [*model.graph.input, *model.graph.value_info, *model.graph.output]:
        kept = info.type.tensor_type
        if kept.HasField("shape"):
            found[info.name] = tuple(dim.dim_value or dim.dim_param or 0 for dim in kept.shape.dim)
    return found
