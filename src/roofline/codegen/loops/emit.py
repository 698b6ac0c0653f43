"""What MLIR texts share: constants, whole numbers and arithmetic of one element, in SSA form.

Arithmetic runs in f32, or in f64 where a format is fp64, or in integers where all formats are: narrower numbers are
widened as they are loaded and rounded as they are stored.
"""

from __future__ import annotations

import math
import re
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import reduce

from roofline.codegen.loops.form import Buffer, Const, Guard, Load, Op, Store, Value, loads, values
from roofline.codegen.loops.index import Atom, Fetch, Index
from roofline.ir.errors import UsageError

#: Types of elements by number format; formats with scales have none.
TYPES = {
    "fp64": "f64", "fp32": "f32", "tf32": "f32", "fp16": "f16", "bf16": "bf16", "fp8": "f8E4M3FN", "fp4": "f4E2M1FN",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "int4": "i4", "bool": "i8",
}  # fmt: skip
_FLOAT = {
    "add": "arith.addf", "sub": "arith.subf", "mul": "arith.mulf", "div": "arith.divf", "max": "arith.maximumf",
    "min": "arith.minimumf", "neg": "arith.negf", "abs": "math.absf", "pow": "math.powf", "exp": "math.exp",
    "exp2": "math.exp2", "log": "math.log", "log1p": "math.log1p", "expm1": "math.expm1", "tanh": "math.tanh",
    "erf": "math.erf", "sqrt": "math.sqrt", "rsqrt": "math.rsqrt", "sin": "math.sin", "cos": "math.cos",
}  # fmt: skip
_WHOLE = {"add": "arith.addi", "sub": "arith.subi", "mul": "arith.muli", "max": "arith.maxsi", "min": "arith.minsi"}
_INDEX = {"div": "arith.floordivsi", "mod": "arith.remsi", "min": "arith.minsi", "max": "arith.maxsi"}
_COMPARE = {"gt": ("ogt", "sgt"), "ge": ("oge", "sge")}


def element(buffer: Buffer) -> str:
    """Return the type of a buffer's elements.

    Raises:
        UsageError: Its format is no type of MLIR.
    """
    if buffer.dtype not in TYPES:
        raise UsageError(
            f"{buffer.name}: MLIR has no type for {buffer.dtype}, only for {', '.join(TYPES)}; formats with scales are "
            "lowered to stablehlo, or the program before it is quantised"
        )
    return TYPES[buffer.dtype]


def symbol(name: str) -> str:
    """Return a name with only what a symbol or a value may have."""
    clean = re.sub(r"\W", "_", name, flags=re.ASCII)
    return clean if clean[:1].isalpha() or clean[:1] == "_" else f"_{clean}"


def unique(names: Iterable[str]) -> dict[str, str]:
    """Return a symbol for each name, all different."""
    used: dict[str, str] = {}
    for name in names:
        stem = symbol(name)
        used[name] = next(n for n in (stem, *(f"{stem}_{at}" for at in range(len(used) + 1))) if n not in used.values())
    return used


def literal(value: float, kind: str) -> str:
    """Return a number as MLIR writes it."""
    if kind.startswith("i"):
        return str(int(value))
    if not math.isfinite(value):
        code, width = ("d", 16) if kind == "f64" else ("f", 8)
        bits = struct.unpack(">Q" if code == "d" else ">I", struct.pack(f">{code}", value))[0]
        return f"0x{bits:0{width}X}"
    text = repr(float(value))
    return text if "." in text else text.replace("e", ".0e") if "e" in text else f"{text}.0"


class Emitter(ABC):
    """Writes the lines of one function; how elements are read is a dialect's own.

    Args:
        buffers: By name.
    """

    def __init__(self, buffers: Iterable[Buffer]) -> None:
        self.buffers = {buffer.name: buffer for buffer in buffers}
        self.lines: list[str] = []
        self.constants: dict[tuple[str, str], str] = {}
        self.indent = 2
        self.kind = "f32"
        self.variables: dict[str, str] = {}
        self._memory: dict[object, str] = {}
        self._count = 0

    # --- lines

    def line(self, text: str) -> None:
        """Add a line."""
        self.lines.append("  " * self.indent + text)

    def let(self, text: str) -> str:
        """Add a line that defines a value, and return it."""
        name = f"%{self._count}"
        self._count += 1
        self.line(f"{name} = {text}")
        return name

    def constant(self, value: float, kind: str) -> str:
        """Return a constant, all of which stand at the head of the function."""
        text = literal(value, kind) if kind != "index" else str(int(value))
        stem = "c_" if kind == "index" else f"c_{kind}_"
        return self.constants.setdefault((text, kind), f"%{stem}{re.sub('[^0-9A-Za-z]', '_', text.replace('-', 'm'))}")

    def head(self) -> list[str]:
        """Return the lines of the constants."""
        return [f"    {name} = arith.constant {text} : {kind}" for (text, kind), name in self.constants.items()]

    @contextmanager
    def region(self) -> Iterator[None]:
        """Write what is inside a region, whose values nothing outside may use."""
        outer, self._memory = self._memory, dict(self._memory)
        self.indent += 1
        yield
        self.indent -= 1
        self._memory = outer

    def forget(self) -> None:
        """Forget the values of the statement before: memory may have changed."""
        self._memory = {}

    def _once(self, key: object, text: str) -> str:
        if key not in self._memory:
            self._memory[key] = self.let(text)
        return self._memory[key]

    # --- whole numbers

    def index(self, value: Index) -> str:
        """Return a whole number."""
        total = ""
        for atom, factor in value.terms:
            own = self._atom(atom)
            if factor != 1:
                own = self._once(("*", own, factor), f"arith.muli {own}, {self.constant(factor, 'index')} : index")
            total = self._once(("+", total, own), f"arith.addi {total}, {own} : index") if total else own
        if value.const and total:
            added = self.constant(value.const, "index")
            return self._once(("+", total, added), f"arith.addi {total}, {added} : index")
        return total or self.constant(value.const, "index")

    def _atom(self, atom: Atom) -> str:
        if isinstance(atom, str):
            return self.variables[atom]
        if isinstance(atom, Fetch):
            kind = element(self.buffers[atom.buffer])
            return self._once(atom, f"arith.index_cast {self.read(atom.buffer, atom.index)} : {kind} to index")
        args = [self.index(each) for each in atom.args]
        return reduce(lambda a, b: self._once((atom.kind, a, b), f"{_INDEX[atom.kind]} {a}, {b} : index"), args)

    def holds(self, conditions: tuple[Index, ...]) -> str:
        """Return whether all indices are at least 0."""
        zero = self.constant(0, "index")
        flags = [
            self._once(("sge", each), f"arith.cmpi sge, {self.index(each)}, {zero} : index") for each in conditions
        ]
        return reduce(lambda a, b: self._once(("and", a, b), f"arith.andi {a}, {b} : i1"), flags)

    # --- elements

    @abstractmethod
    def read(self, buffer: str, index: tuple[Index, ...]) -> str:
        """Return an element as it is stored."""

    def choose(self, store: Store) -> None:
        """Choose the type that the arithmetic of a store runs in."""
        formats = [self.buffers[name].dtype for name in (store.buffer, *(name for name, _ in loads(store)))]
        kinds = [element(self.buffers[name]) for name in (store.buffer, *(name for name, _ in loads(store)))]
        ops = {each.name for each in values(store.value) if isinstance(each, Op)}
        if all(kind.startswith("i") for kind in kinds) and ops <= _WHOLE.keys() and "bool" not in formats:
            self.kind = "i64" if "i64" in kinds else "i32"
        else:
            self.kind = "f64" if "f64" in kinds else "f32"

    def typed(self, kind: str) -> str:
        """Return the type of values of a kind of element."""
        return kind

    def widened(self, name: str, kind: str) -> str:
        """Return a loaded value in the type of the arithmetic."""
        if kind == self.kind:
            return name
        whole = kind.startswith("i")
        how = "arith.extsi" if whole and self.kind.startswith("i") else "arith.sitofp" if whole else "arith.extf"
        text = f"{how} {name} : {self.typed(kind)} to {self.typed(self.kind)}"
        return self._once((how, name, self.typed(kind)), text)

    def narrowed(self, name: str, kind: str) -> str:
        """Return a computed value in the type of a buffer."""
        if kind == self.kind:
            return name
        whole = kind.startswith("i")
        how = "arith.trunci" if whole and self.kind.startswith("i") else "arith.fptosi" if whole else "arith.truncf"
        return self.let(f"{how} {name} : {self.typed(self.kind)} to {self.typed(kind)}")

    def value(self, value: Value) -> str:
        """Return a value in the type of the arithmetic; equal ones of a statement once."""
        key = (value, self.typed(self.kind))
        if key not in self._memory:
            self._memory[key] = self._value(value)
        return self._memory[key]

    def _value(self, value: Value) -> str:
        if isinstance(value, Const):
            return self.number(value.value)
        if isinstance(value, Load):
            return self.widened(self.read(value.buffer, value.index), element(self.buffers[value.buffer]))
        if isinstance(value, Guard):
            return self.guard(value)
        return self.arithmetic(value.name, value.args)

    def number(self, value: float) -> str:
        """Return a constant in the type of the arithmetic."""
        return self.constant(value, self.kind)

    @abstractmethod
    def guard(self, value: Guard) -> str:
        """Return one of two values."""

    def arithmetic(self, name: str, args: tuple[Value, ...]) -> str:
        """Return the result of an operation."""
        kind = self.typed(self.kind)
        if name == "select":
            flag, a, b = self.flag(args[0]), self.value(args[1]), self.value(args[2])
            return self.let(f"arith.select {flag}, {a}, {b} : {self.typed('i1')}, {kind}")
        if name in _COMPARE:
            return self.let(f"arith.uitofp {self.flag(Op(name, args))} : {self.typed('i1')} to {kind}")
        if name == "sign":
            below = Op("select", (Op("gt", (Const(0.0), args[0])), Const(-1.0), Const(0.0)))
            return self.value(Op("select", (Op("gt", (args[0], Const(0.0))), Const(1.0), below)))
        return self.combined(name, *map(self.value, args))

    def combined(self, name: str, *values: str) -> str:
        """Return the result of an operation on values."""
        table = _WHOLE if self.kind.startswith("i") else _FLOAT
        return self.let(f"{table[name]} {', '.join(values)} : {self.typed(self.kind)}")

    def flag(self, value: Value) -> str:
        """Return whether a value is above zero, as a bit."""
        compared = value if isinstance(value, Op) and value.name in _COMPARE else Op("gt", (value, Const(0.0)))
        word = _COMPARE[compared.name][self.kind.startswith("i")]
        how = "arith.cmpi" if self.kind.startswith("i") else "arith.cmpf"
        a, b = map(self.value, compared.args)
        return self._once((compared, "flag", self.typed("i1")), f"{how} {word}, {a}, {b} : {self.typed(self.kind)}")
