"""One node of the file as its rule sees it: operands, attributes, and the builder to add kernels to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from roofline.frontends import emit
from roofline.frontends.onnx.known import UNKNOWN, Value
from roofline.frontends.onnx.read import SMALL
from roofline.ir.errors import ModelDataError, UnknownOp
from roofline.ir.sizes import Dim, Size
from roofline.ops.builder import Builder


class Undetermined(ModelDataError):
    """A size that follows from what the program is handed."""


#: What a rule returns: for each output the name of a tensor, something known, or nothing.
Result = str | Value | Sequence[str | Value | None]
Rule = Callable[["Call"], Result]


class Host(Protocol):
    """What a rule may ask of the program that is being built."""

    b: Builder
    notes: dict[str, None]
    together: dict[str, list[str]]
    values: MutableMapping[str, Value]

    def tensor(self, value: Value) -> str:
        """A value as a tensor of the builder."""

    def computed(self, name: str, tensor: str, dtype: str, const: bool = False) -> Value:
        """A value that a node of the builder writes."""

    def scratch(self) -> AbstractContextManager[Builder]:
        """Build something only to see what comes out."""

    def is_read(self, name: str) -> bool:
        """Whether anybody reads a tensor of the file."""

    def readers(self, name: str) -> list[str]:
        """Operators of the nodes that read a tensor of the file."""

    def declared(self, name: str, call: Call) -> tuple[Size, ...]:
        """The shape that the file gives a tensor."""

    def alike(self, a: str, b: str) -> bool:
        """Whether the file gives two tensors the same shape, size by size."""

    def stored(self, tensor: Any, name: str, from_node: bool = False) -> Value:
        """A tensor that the file holds."""

    def graph(self, graph: Any, given: Sequence[Value] | None = None) -> list[Value]:
        """Add a graph inside a node."""

    def trip(self, name: str) -> int | None:
        """How often a loop runs, where the caller says so."""

    def missing(self, call: Call, why: str) -> UnknownOp:
        """An error for what a rule does not cover."""


class Call:
    """A node of the file.

    Args:
        program: What is being built.
        what: Its operator, ``com.microsoft.Gelu`` or ``MatMul``.
        name: Its name in the result.
        inputs: Its operands, ``None`` where one is left out.
        outputs: Names of its results in the file.
        attrs: Its attributes.
        version: Of its operator set.
    """

    def __init__(
        self, program: Host, what: str, name: str, inputs: list[Value | None], outputs: list[str],
        attrs: Mapping[str, Any], version: int,
    ) -> None:  # fmt: skip
        self.program = program
        self.what = what
        self.name = name
        self.inputs = inputs
        self.outputs = outputs
        self.attrs = attrs
        self.version = version
        self.dtype = "fp32"

    @property
    def b(self) -> Builder:
        """The builder."""
        return self.program.b

    def has(self, at: int) -> bool:
        """Whether an operand is given."""
        return at < len(self.inputs) and self.inputs[at] is not None

    def wants(self, at: int) -> bool:
        """Whether anybody reads a result."""
        return at < len(self.outputs) and self.program.is_read(self.outputs[at])

    def value(self, at: int) -> Value:
        """An operand.

        Raises:
            ModelDataError: It is left out.
        """
        found = self.inputs[at] if at < len(self.inputs) else None
        if found is None:
            raise ModelDataError(f"{self.name}: {self.what} lacks its input {at}")
        return found

    def shape(self, at: int) -> tuple[Size, ...]:
        """The shape of an operand."""
        return self.value(at).shape

    def x(self, at: int) -> str:
        """An operand as a tensor of the builder."""
        return self.program.tensor(self.value(at))

    def xs(self, *at: int) -> list[str]:
        """Those of some operands that are given."""
        return [self.x(i) for i in at if self.has(i)]

    def data(self, at: int) -> np.ndarray[Any, Any] | None:
        """The elements of an operand where they are known."""
        return self.value(at).data if self.has(at) else None

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute."""
        return self.attrs.get(name, default)

    def number(self, name: str, default: int | None = None) -> int:
        """An attribute that is a whole number.

        Raises:
            ModelDataError: It is none, or missing.
        """
        value = self.attrs.get(name, default)
        if not isinstance(value, int):
            raise ModelDataError(f"{self.name}: {self.what} wants a whole number as {name}, given {value!r}")
        return value

    def sizes(self, at: int, name: str = "") -> list[Any] | None:
        """Whole numbers or sizes that an attribute holds in old operator sets, and an operand in new ones.

        Returns:
            ``None`` where neither is given.

        Raises:
            ModelDataError: They follow from what the program is handed.
        """
        if name and name in self.attrs:
            found = self.attrs[name]
            if not isinstance(found, list) or len(found) > SMALL:
                raise ModelDataError(f"{self.name}: {self.what} wants at most {SMALL} whole numbers as {name}")
            return list(found)
        if not self.has(at):
            return None
        data = self.data(at)
        if data is None or any(element is UNKNOWN for element in data.reshape(-1)):
            raise Undetermined(f"{self.name}: {self.what} depends on values that only a run knows")
        return list(data.reshape(-1))

    def integers(self, at: int, name: str = "") -> list[int] | None:
        """The same where they must be numbers."""
        found = self.sizes(at, name)
        if found is not None and any(isinstance(value, Dim) for value in found):
            raise Undetermined(f"{self.name}: {self.what} wants numbers, given {found}")
        return None if found is None else [int(value) for value in found]

    def axis(self, default: int, rank: int, name: str = "axis") -> int:
        """An axis counted from the front.

        Raises:
            ModelDataError: The tensor has no such axis.
        """
        at = self.number(name, default)
        if not -rank <= at < max(rank, 1):
            raise ModelDataError(f"{self.name}: {self.what} asks for axis {at} of {rank}")
        return at % rank if rank else 0

    def op(self, op: str, *inputs: str, dtype: str = "", name: str = "", **options: Any) -> str:
        """Add a node that is called like this one."""
        return self.b.op(op, *inputs, name=name or self.name, dtype=dtype or self.dtype, **options)

    def see(self, x: str, shape: Sequence[Size], part: str = "view") -> str:
        """A tensor under another shape."""
        return emit.view(self.b, x, shape, f"{self.name}.{part}")

    def turn(self, x: str, axes: Sequence[int], part: str = "permuted") -> str:
        """A tensor with its axes in another order, read as it lies."""
        if list(axes) == sorted(axes):
            return x
        return self.b.op("permute", x, name=f"{self.name}.{part}", axes=tuple(axes))

    def cut(self, x: str, shape: Sequence[Size], part: str = "part") -> str:
        """A part of a tensor, read where it lies."""
        if tuple(shape) == self.b.shape(x):
            return x
        return self.b.op("slice", x, name=f"{self.name}.{part}", shape=tuple(shape))

    def write(self, shape: Sequence[Size], *inputs: str, dtype: str = "", part: str = "") -> str:
        """A kernel that writes an array in another order."""
        name = f"{self.name}.{part}" if part else ""
        return self.op("rearrange" if inputs else "fill", *inputs, dtype=dtype, name=name, shape=tuple(shape))

    def declared(self, at: int = 0) -> tuple[Size, ...]:
        """The shape that the file, or the shape inference of onnx, gives a result.

        Raises:
            ModelDataError: Neither knows it.
        """
        return self.program.declared(self.outputs[at], self)

    def note(self, text: str) -> None:
        """Something that a reader of the result should know."""
        self.program.notes[text] = None
