"""A captured PyTorch program: calls of aten operators on values with symbolic shapes. Knows no roofline operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from roofline.frontends.torch.layout import Layout
from roofline.ir.errors import ShapeError
from roofline.ir.graph import Kind
from roofline.ir.sizes import Dim, Size, maximum, minimum, prod, substitute, symbol, symbols


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the program at one moment; writing to it in place makes another.

    Attributes:
        number: Unique in its program.
        name: What the user calls it: a parameter's path, an argument's name; empty for what is computed.
        shape: Sizes, symbolic or not.
        dtype: Name of the number format.
        kind: ``weight``, ``buffer``, ``input`` or ``activation``.
        layout: Sizes and strides of its axes at the sizes of the capture; ``None`` where they are not known.
        memory: Number of the memory that it lies in, which views of it and writes to it share.
    """

    number: int
    name: str
    shape: tuple[Size, ...]
    dtype: str
    kind: Kind
    layout: Layout | None = None
    memory: int = 0

    @property
    def channels_last(self) -> bool:
        """Tell whether an image lies with its channels innermost."""
        channels = self.layout[1] if self.layout and len(self.layout) in (4, 5) else (1, 0)
        return channels[0] != 1 and channels[1] == 1


@dataclass(frozen=True, slots=True)
class Write:
    """An argument that a call writes to.

    Attributes:
        before: What it was.
        after: What it is now.
        base: The tensor that it is a part of, and what that is now; ``None`` where it is all of it.
    """

    before: Value
    after: Value
    base: tuple[Value, Value] | None = None


@dataclass(frozen=True, slots=True)
class Updates:
    """What a training step does to its weights; values by their numbers.

    Attributes:
        gradients: Each weight with its gradient.
        states: Values that the optimizer keeps, as they are before the step.
        optimizer: Its class, in small letters; empty where there is none.
    """

    gradients: tuple[tuple[int, int], ...] = ()
    states: tuple[int, ...] = ()
    optimizer: str = ""


@dataclass(frozen=True, slots=True)
class AtenCall:
    """One aten call.

    Attributes:
        target: Such as ``aten.add.Tensor``.
        args: Arguments by the names of the operator's schema; tensors are values, sizes are symbolic.
        outs: What it returns, ``None`` for what is no tensor.
        scope: Path of the module that ran it, such as ``layers.0.attn``.
        writes: Arguments that it wrote to.
        kernel: The call over lists of tensors, or of a fused optimizer, that it is a part of.
    """

    target: str
    args: Mapping[str, Any]
    outs: tuple[Value | None, ...]
    scope: str
    writes: tuple[Write, ...] = ()
    kernel: str = ""

    @property
    def name(self) -> str:
        """Return the operator without namespace and overload, such as ``add``."""
        return self.target.split(".")[1]

    def get(self, key: str, default: Any = None) -> Any:
        """Return a plain argument."""
        value = self.args.get(key)
        return default if value is None else value

    def sizes(self, *keys: str) -> tuple[int, ...]:
        """Return a list of whole numbers, under the first of some names.

        Raises:
            ShapeError: It is absent.
        """
        key = next((key for key in keys if self.get(key) is not None), keys[-1])
        sizes = self.get(key)
        if not isinstance(sizes, tuple) or not all(isinstance(size, int) for size in sizes):
            raise ShapeError(f"{self.name}: {key} is not given")
        return sizes

    def tensor(self, key: str = "self") -> Value:
        """Return a tensor argument.

        Raises:
            ShapeError: It is absent.
        """
        value = self.args.get(key)
        if not isinstance(value, Value):
            raise ShapeError(f"{self.name}: {key} is not given")
        return value

    @property
    def tensors(self) -> tuple[Value, ...]:
        """Return all tensor arguments in order, those in lists too."""
        each = [value if isinstance(value, tuple) else (value,) for value in self.args.values()]
        return tuple(value for values in each for value in values if isinstance(value, Value))

    @property
    def first(self) -> Value:
        """Return the first tensor argument."""
        if not self.tensors:
            raise ShapeError(f"{self.name}: no tensor is given")
        return self.tensors[0]


@dataclass(frozen=True, slots=True)
class Program:
    """Everything that a capture found.

    Attributes:
        name: What the program is called.
        method: How it was captured.
        sources: Parameters, buffers and inputs, in the order of the module and its arguments.
        calls: In order.
        outputs: What the program returns or keeps.
        guards: Conditions on the symbolic sizes under which the capture holds.
        notes: What a reader should know.
        updates: What it does to its weights, of a training step.
        freed: By the number of the memory, how many calls had run when PyTorch freed it; none for what it kept.
        operators: Calls of operators that compute.
        views: Calls that compute nothing.
    """

    name: str
    method: str
    sources: tuple[Value, ...]
    calls: tuple[AtenCall, ...]
    outputs: tuple[Value, ...]
    guards: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    updates: Updates = Updates()
    freed: Mapping[int, int] = field(default_factory=dict)
    operators: int = 0
    views: int = 0

    @property
    def symbols(self) -> set[str]:
        """Names of the sizes that its tensors have."""
        values = [*self.sources, *(out for call in self.calls for out in call.outs if out is not None)]
        return {name for value in values for size in value.shape for name in symbols(size)}

    def fixed(self, sizes: Mapping[str, Any]) -> Program:
        """The program with some symbols replaced, as the capture found that they must be."""
        if not sizes:
            return self
        known: dict[int, Value] = {}

        def settle(thing: Any) -> Any:
            if isinstance(thing, Value):
                if thing.number not in known:
                    known[thing.number] = replace(thing, shape=settle(thing.shape))
                return known[thing.number]
            if isinstance(thing, tuple):
                return tuple(settle(each) for each in thing)
            if isinstance(thing, Write):
                return Write(settle(thing.before), settle(thing.after), settle(thing.base))
            return substitute(thing, sizes) if isinstance(thing, Dim) else thing

        def call(one: AtenCall) -> AtenCall:
            args = {key: settle(value) for key, value in one.args.items()}
            return replace(one, args=args, outs=settle(one.outs), writes=settle(one.writes))

        return replace(
            self, sources=settle(self.sources), calls=tuple(map(call, self.calls)), outputs=settle(self.outputs)
        )


# --- symbolic sizes of PyTorch, which are sympy expressions ---------------------------------------------------------


class Untranslated(Exception):
    """An expression that roofline's sizes cannot hold."""


def _power(base: Any, exponent: Any) -> Any:
    if not isinstance(exponent, int) or exponent < 1:
        raise Untranslated(f"power {exponent}")
    return prod([base] * exponent)


#: Functions in sympy's and PyTorch's expressions by the name of their class.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda *parts: reduce(lambda a, b: a + b, parts),
    "Mul": lambda *parts: prod(parts),
    "Pow": _power, "PowByNatural": _power,
    "FloorDiv": lambda a, b: a // b, "CleanDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: (a + b - 1) // b,
    **dict.fromkeys(("Mod", "PythonMod"), lambda a, b: a - (a // b) * b),
    "Max": lambda *parts: reduce(maximum, parts), "Min": lambda *parts: reduce(minimum, parts),
    "ToFloat": lambda a: a, "TruncToInt": lambda a: a, "Identity": lambda a: a,
}  # fmt: skip


def to_size(expression: Any, names: Mapping[str, str]) -> Size:
    """Translate an expression.

    Args:
        expression: An integer or a sympy expression.
        names: roofline's name for each of PyTorch's symbols; others keep theirs.

    Raises:
        Untranslated: It holds a function that roofline's sizes have not.
    """
    if isinstance(expression, int):
        return expression
    kind = type(expression).__name__
    if getattr(expression, "is_Integer", False):
        return int(expression)
    if getattr(expression, "is_Symbol", False):
        return symbol(names.get(str(expression), str(expression)))
    if kind not in _FUNCTIONS:
        raise Untranslated(kind)
    result: Size = _FUNCTIONS[kind](*(to_size(part, names) for part in expression.args))
    return result
