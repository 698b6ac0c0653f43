"""An ONNX graph on its way to a graph of roofline: what its tensors stand for, and a node as its rule sees it."""

from __future__ import annotations

import math
from collections import ChainMap, Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from copy import copy
from typing import Any

import numpy as np

from roofline.frontends.call import BaseCall
from roofline.frontends.onnx.known import UNKNOWN, Value
from roofline.frontends.onnx.names import Names
from roofline.frontends.onnx.read import SMALL, clean
from roofline.frontends.onnx.tensors import Tensors, readers
from roofline.ir.errors import ModelDataError, UnknownOp
from roofline.ir.sizes import Dim, Size, terms
from roofline.ops.builder import Builder

#: Axes of a tensor, and terms of its element count, beyond which a file is no model but an attack on the reader.
_MAX_AXES = 64
_MAX_TERMS = 4096


class Undetermined(ModelDataError):
    """A size that follows from what the program is handed."""


#: What a rule returns: for each output the name of a tensor, something known, or nothing.
Result = str | Value | Sequence[str | Value | None]
Rule = Callable[["Call"], Result]


class Walk:
    """The state of an import.

    Args:
        model: The parsed model.
        builder: Where nodes go.
        names: How names of sizes are read.
        policy: What to do with an operation without a rule.
        where: What to call the file in errors.
        translate: How to add a node of the file.
    """

    def __init__(
        self, model: Any, builder: Builder, names: Names, policy: str, where: str,
        translate: Callable[[Walk, Any], None],
    ) -> None:  # fmt: skip
        self.b = builder
        self.file = Tensors(model, names, where)
        self.policy = policy
        self.where = where
        self.notes: dict[str, None] = {}
        #: Tensors that live as long as another one does: what a loop hands to its next turn.
        self.together: dict[str, list[str]] = {}
        #: Nodes that follow from the file alone, by operator.
        self.folded: Counter[str] = Counter()
        self.versions = {each.domain: each.version for each in model.opset_import}
        self.values: MutableMapping[str, Value] = {}
        self._translate = translate
        self._tensors: dict[int, tuple[Value, str]] = {}
        self._outer: Walk | None = None
        self._readers: dict[str, list[str]] = {}

    def trial(self) -> Walk:
        """Return a walk from here on that builds elsewhere, to see what comes out."""
        twin = copy(self)
        twin.b, twin._tensors, twin._outer = Builder("trial", self.b.dtype), {}, self
        twin.notes, twin.together = {}, {}
        return twin

    def tensor(self, value: Value) -> str:
        """Return a value as a tensor of the builder, declared when it is first read."""
        if id(value) not in self._tensors:
            kind, dtype = value.kind, value.stored or value.dtype
            if self._outer is not None and id(value) in self._outer._tensors:
                outer = self._outer.b.tensor(self._outer._tensors[id(value)][1])
                kind, dtype = outer.kind, outer.dtype
            kind = "input" if kind == "activation" else kind
            name = self.b.source(clean(value.name) or "constant", value.shape, kind, dtype)
            self._tensors[id(value)] = (value, name)
        return self._tensors[id(value)][1]

    def computed(self, name: str, tensor: str, dtype: str, const: bool = False) -> Value:
        """Return a value that a node of the builder writes."""
        shape = self.b.shape(tensor)
        if any(isinstance(size, int) and size < 0 for size in shape):
            raise ModelDataError(f"{self.where}: {name!r} has the shape {list(shape)}; sizes are not negative")
        if len(shape) > _MAX_AXES or math.prod(len(list(terms(size))) for size in shape) > _MAX_TERMS:
            raise ModelDataError(f"{self.where}: {name!r} has {len(shape)} axes or unreasonable sizes")
        value = Value(name, shape, dtype, const=const)
        self._tensors[id(value)] = (value, tensor)
        return value

    def readers(self, name: str) -> list[str]:
        """Return the operators that read a tensor; empty text for the caller and for graphs inside nodes."""
        return self._readers.get(name, [])

    def graph(self, graph: Any, inputs: Sequence[Value] | None = None) -> list[Value]:
        """Add a graph, at the top or with the inputs that a node gives it; returns its outputs."""
        outer, outer_readers = self.values, self._readers
        self.values = ChainMap({}, outer) if inputs is not None else self.values
        self._readers = readers(graph)
        try:
            for tensor in graph.initializer:
                self.values[tensor.name] = self.file.stored(tensor, tensor.name)
            for sparse in graph.sparse_initializer:
                value = self.values[sparse.values.name] = self.file.sparse(sparse, sparse.values.name)
                self.notes[f"{value.name}: stored sparse, counted dense"] = None
            for at, info in enumerate(graph.input):
                if info.name not in self.values or inputs is not None:
                    self.values[info.name] = self.file.input(info) if inputs is None else inputs[at]
            for node in graph.node:
                self._translate(self, node)
            return [self.lookup(info.name, "the graph's outputs") for info in graph.output]
        finally:
            self.values, self._readers = outer, outer_readers

    def lookup(self, name: str, reader: str) -> Value:
        """Return the value of a name in the file.

        Raises:
            ModelDataError: No node before writes it.
        """
        if name not in self.values:
            raise ModelDataError(f"{self.where}: {reader} read {name!r}, which nothing before writes")
        return self.values[name]


class Call(BaseCall):
    """A node of the file as its rule sees it.

    Args:
        walk: The import.
        what: Its operator, ``com.microsoft.Gelu`` or ``MatMul``.
        name: Its name in the result.
        inputs: Its operands, ``None`` where one is left out.
        outputs: Names of its results in the file.
        attrs: Its attributes.
        version: Of its operator set.
    """

    permuted = "permuted"

    def __init__(
        self, walk: Walk, what: str, name: str, inputs: list[Value | None], outputs: list[str],
        attrs: Mapping[str, Any], version: int,
    ) -> None:  # fmt: skip
        self.walk, self.b = walk, walk.b
        self.dtype = "fp32"
        self.what = what
        self.name = name
        self.inputs = inputs
        self.outputs = outputs
        self.attrs = attrs
        self.version = version

    def on(self, walk: Walk) -> Call:
        """Return the same node in another walk."""
        twin = copy(self)
        twin.walk, twin.b = walk, walk.b
        return twin

    def label(self, part: str) -> str:
        """Return the name of a node that does a part of the operation: names in a file have no scopes."""
        return f"{self.name}.{part}"

    # --- operands -----------------------------------------------------------------------------------------------------

    def has(self, at: int) -> bool:
        """Tell whether an operand is given."""
        return 0 <= at < len(self.inputs) and self.inputs[at] is not None

    def value(self, at: int) -> Value:
        """Return an operand.

        Raises:
            ModelDataError: It is left out.
        """
        value = self.inputs[at] if self.has(at) else None
        if value is None:
            raise ModelDataError(f"{self.name}: {self.what} lacks its input {at}")
        return value

    def shape(self, at: int = 0) -> tuple[Size, ...]:
        """Return the shape of an operand."""
        return self.value(at).shape

    def tensor(self, at: int = 0) -> str:
        """Return an operand as a tensor of the builder."""
        return self.walk.tensor(self.value(at))

    def maybe(self, at: int) -> str | None:
        """Return an operand that may be left out."""
        return self.tensor(at) if self.has(at) else None

    def tensors(self, *at: int) -> list[str]:
        """Return those of some operands that are given, of all where none are named."""
        return [self.tensor(i) for i in at or range(len(self.inputs)) if self.has(i)]

    def data(self, at: int) -> np.ndarray[Any, Any] | None:
        """Return the elements of an operand where they are known."""
        return self.value(at).data if self.has(at) else None

    @property
    def const(self) -> bool:
        """Tell whether all operands follow from the file alone."""
        return all(value is None or value.const for value in self.inputs)

    # --- attributes ---------------------------------------------------------------------------------------------------

    def attr(self, name: str, default: Any = None) -> Any:
        """Return an attribute."""
        return self.attrs.get(name, default)

    def number(self, name: str, default: int | None = None) -> int:
        """Return an attribute that is a whole number.

        Raises:
            ModelDataError: It is none, or missing.
        """
        value = self.attrs.get(name, default)
        if not isinstance(value, int):
            raise ModelDataError(f"{self.name}: {self.what}: {name}={value!r}; allowed: a whole number")
        return value

    def sizes(self, at: int, name: str = "") -> list[Any] | None:
        """Return whole numbers or sizes that an attribute holds in old operator sets, and an operand in new ones.

        Returns:
            ``None`` where neither is given.

        Raises:
            ModelDataError: They follow from what the program is handed.
        """
        if name and name in self.attrs:
            values = self.attrs[name]
            if not isinstance(values, list) or len(values) > SMALL:
                raise ModelDataError(f"{self.name}: {self.what}: {name}; allowed: at most {SMALL} whole numbers")
            return list(values)
        if not self.has(at):
            return None
        data = self.data(at)
        if data is None or any(element is UNKNOWN for element in data.reshape(-1)):
            raise Undetermined(f"{self.name}: {self.what} depends on values known only at run time")
        return list(data.reshape(-1))

    def integers(self, at: int, name: str = "") -> list[int] | None:
        """Return the same where they must be numbers."""
        values = self.sizes(at, name)
        if values is not None and any(isinstance(value, Dim) for value in values):
            raise Undetermined(f"{self.name}: {self.what} has sizes {values}; allowed: numbers")
        return None if values is None else [int(value) for value in values]

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """Return an axis counted from the front.

        Raises:
            ModelDataError: The tensor has no such axis.
        """
        at = self.number(name, default)
        if not -rank <= at < max(rank, 1):
            raise ModelDataError(f"{self.name}: {self.what} asks for axis {at} of {rank}")
        return at % rank if rank else 0

    # --- results ------------------------------------------------------------------------------------------------------

    def is_read(self, at: int) -> bool:
        """Tell whether a node, or the caller, reads a result."""
        return at < len(self.outputs) and bool(self.outputs[at] and self.walk.readers(self.outputs[at]))

    def rearrange(self, shape: Sequence[Size], *inputs: str, dtype: str = "", part: str = "") -> str:
        """Add a kernel that writes an array in another order, or out of nothing."""
        name = self.label(part) if part else ""
        return self.op("rearrange" if inputs else "fill", *inputs, dtype=dtype, name=name, shape=tuple(shape))

    def declared(self, at: int = 0) -> tuple[Size, ...]:
        """Return the shape that the file, or the shape inference of onnx, gives a result.

        Raises:
            ModelDataError: Neither knows it.
        """
        shape = self.walk.file.declared(self.outputs[at], self.walk.notes)
        if shape is None:
            name = self.outputs[at]
            raise ModelDataError(f"{self.name}: {self.what}: the shape of its result {name!r} is not known")
        return shape

    def note(self, text: str) -> None:
        """Note something that a reader of the result should know."""
        self.walk.notes[text] = None

    def missing(self, why: str) -> UnknownOp:
        """Return an error for what a rule does not cover."""
        return UnknownOp(f"{self.walk.where}: {self.name}: {self.what}: {why}")
