"""The operations of one function as lines of StableHLO, and the functions of a module.

The spelling of each operation is that of https://github.com/openxla/stablehlo/blob/main/docs/spec.md in the short form
that MLIR prints.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import ShapeError, UnknownDType

#: The element type of each plain number format; tf32 is stored as fp32.
ELEMENTS = {
    "fp64": "f64", "fp32": "f32", "tf32": "f32", "fp16": "f16", "bf16": "bf16", "fp8": "f8E4M3FN", "fp4": "f4E2M1FN",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8", "int4": "i4", "int2": "i2", "b1": "i1", "bool": "i1",
}  # fmt: skip
#: From narrow to wide: of two operands the later one's type is that of the result.
_ORDER = ("i1", "i2", "i4", "i8", "i16", "i32", "i64", "f4E2M1FN", "f8E4M3FN", "f16", "bf16", "f32", "f64")
#: Exponent bits of infinity, and the digits of a constant's pattern.
_INFINITE = {"f16": (0x7C00, 4), "bf16": (0x7F80, 4), "f32": (0x7F800000, 8), "f64": (0x7FF0000000000000, 16)}
#: Elements of a constant that is written out.
_MOST = 2**14


@dataclass(frozen=True, slots=True)
class Stored:
    """How a number format lies in memory.

    Attributes:
        element: Type of what is stored for each element.
        group: Elements along the last axis that share a scale; 0 for none.
        rows: Rows that share them, too.
        scale: Type of a scale.
        zero: Type of a zero point; empty for none.
    """

    element: str
    group: int = 0
    scale: str = ""
    zero: str = ""
    rows: int = 1


#: Formats with blocks: the Microscaling formats have a power of two for each 32 elements (OCP MX v1.0), DeepSeek-V3's
#: fp8 a scale for each 128 x 128 of a matrix (arXiv 2412.19437, section 3.3).
_BLOCKS = {
    "mxfp4": Stored("f4E2M1FN", 32, "f8E8M0FNU"), "mxfp8": Stored("f8E4M3FN", 32, "f8E8M0FNU"),
    "fp8-block": Stored("f8E4M3FN", 128, "f32", rows=128),
}  # fmt: skip


def stored(name: str, where: str = "") -> Stored:
    """Return how a number format lies in memory.

    Raises:
        UnknownDType: StableHLO has no type of that kind: codebooks, and blocks with scales of scales.

    Example:
        >>> stored("bf16").element, stored("int4-g128").zero, stored("int8-g64-sym-s32").scale
        ('bf16', 'bf16', 'f32')
    """
    if name in ELEMENTS:
        return Stored(ELEMENTS[name])
    if name in _BLOCKS:
        return _BLOCKS[name]
    match = re.fullmatch(r"(int[248]|fp[48])(?:-g(\d+)(?:-(sym|z4))?(?:-s32)?)", name)
    if match is None:
        place = f"{where}: " if where else ""
        raise UnknownDType(
            f"{place}StableHLO has no type for the number format {name!r}; plain formats and intN-gM have"
        )
    element, group, zero = match[1], int(match[2]), match[3]
    scale = "f32" if name.endswith("-s32") else "bf16"
    symmetric = zero == "sym" or DTYPES[name].overhead_bits == (32 if scale == "f32" else 16)
    return Stored(ELEMENTS[element], group, scale, "" if symmetric else "i4" if zero else "bf16")


def tensor(shape: Sequence[int], element: str) -> str:
    """Return the type of a tensor.

    Example:
        >>> tensor((2, 3), "f32"), tensor((), "i1")
        ('tensor<2x3xf32>', 'tensor<i1>')
    """
    return f"tensor<{''.join(f'{size}x' for size in shape)}{element}>"


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of a function.

    Attributes:
        name: With its ``%``.
        shape: Its sizes.
        element: Type of its elements.
        scale: What its elements are to be multiplied by, one along the last axis for each group of them.
        zero: What is to be subtracted before.
        block: Rows and elements along them that share a scale.
    """

    name: str
    shape: tuple[int, ...]
    element: str
    scale: Value | None = None
    zero: Value | None = None
    block: tuple[int, int] = (1, 1)

    @property
    def type(self) -> str:
        """Its type."""
        return tensor(self.shape, self.element)


@dataclass(slots=True)
class Module:
    """The functions that a module has beside its first.

    Attributes:
        functions: Their names, by what they are after their names.
    """

    functions: dict[str, str] = field(default_factory=dict)

    def function(self, name: str, text: str) -> str:
        """Return the name of a function; equal ones are one."""
        if text not in self.functions:
            number = sum(other == name or other.startswith(f"{name}_") for other in self.functions.values())
            self.functions[text] = f"{name}_{number}" if number else name
        return self.functions[text]


@dataclass(slots=True)
class Body:
    """The lines of a function.

    Attributes:
        module: Whose function it is.
        place: What every line ends in: its location, if it has one.
        lines: So far.
        constants: Those so far, by their text.
        numbers: What those are that are one number, by their names.
    """

    module: Module
    place: str = ""
    lines: list[str] = field(default_factory=list)
    constants: dict[str, Value] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    _number: int = 0

    def add(self, text: str, shape: Sequence[int], element: str) -> Value:
        """Add an operation and return what it gives."""
        value = Value(f"%{self._number}", tuple(shape), element)
        self._number += 1
        self.lines.append(f"{value.name} = {text}{self.place}")
        return value


def finished(body: Body, end: str) -> list[str]:
    """Return the lines of a function, ``end`` last, without constants that are only read in a larger shape."""
    lines = [*body.lines, end]
    read = Counter(re.findall(r"%\d+\b", "\n".join(lines)))
    return [line for line in lines if " = stablehlo.constant" not in line or read[line.partition(" ")[0]] > 1]


def simple(body: Body, op: str, *operands: Value) -> Value:
    """Add an operation whose operands and result have one type."""
    names, first = ", ".join(each.name for each in operands), operands[0]
    prefix = "" if "." in op else "stablehlo."
    arrow = f"{first.type} -> {first.type}" if prefix == "" else first.type
    return body.add(f"{prefix}{op} {names} : {arrow}", first.shape, first.element)


# --- constants --------------------------------------------------------------------------------------------------------


def literal(number: float, element: str) -> str:
    """Return a number as MLIR writes it."""
    if element == "i1":
        return "true" if number else "false"
    if element.startswith("i"):
        return str(int(number))
    if not math.isfinite(number):
        return _pattern(float(number), element)
    text = repr(float(number))
    return text if "." in text else text.replace("e", ".0e")


def _pattern(number: float, element: str) -> str:
    bits, digits = _INFINITE[element]
    if math.isnan(number):
        bits |= bits >> 1
    elif number < 0:
        bits |= 1 << (4 * digits - 1)
    return f"0x{bits:0{digits}X}"


def constant(body: Body, value: Any, element: str, shape: Sequence[int] = ()) -> Value:
    """Return a number, or an array filled with it, or a small array."""
    array = np.asarray(value)
    if array.ndim and array.size and (array == array.flat[0]).all():
        shape, array = array.shape, np.asarray(array.flat[0])
    if array.ndim:
        if array.size > _MOST:
            raise ShapeError(f"a constant of {array.size} numbers; allowed: at most {_MOST}")
        shape, text, number = array.shape, _nested(array.tolist(), element), None
    else:
        text = literal(array.item(), element)
        number = array.item()
    line = f"stablehlo.constant dense<{text}> : {tensor(shape, element)}"
    if line not in body.constants:
        made = body.constants[line] = body.add(line, shape, element)
        if number is not None:
            body.numbers[made.name] = number
    return body.constants[line]


def _nested(numbers: Any, element: str) -> str:
    if not isinstance(numbers, list):
        return literal(numbers, element)
    return f"[{', '.join(_nested(each, element) for each in numbers)}]"


def iota(body: Body, size: int, element: str = "i32") -> Value:
    """Return the whole numbers from 0."""
    return body.add(f"stablehlo.iota dim = 0 : {tensor((size,), element)}", (size,), element)


# --- elements ---------------------------------------------------------------------------------------------------------


def convert(body: Body, x: Value, element: str) -> Value:
    """Return a tensor with another type of elements."""
    if x.element == element:
        return x
    if x.name in body.numbers:
        return constant(body, body.numbers[x.name], element, x.shape)
    if element == "i1":  # a flag, not the last bit
        return compare(body, "NE", x, constant(body, 0, x.element, x.shape))
    return body.add(f"stablehlo.convert {x.name} : ({x.type}) -> {tensor(x.shape, element)}", x.shape, element)


def wider(*elements: str) -> str:
    """Return the type that operands of several types have in common."""
    return max(elements, key=_ORDER.index)


def is_float(element: str) -> bool:
    """Tell whether elements are floating-point numbers."""
    return not element.startswith("i")


def binary(body: Body, op: str, x: Value, y: Value) -> Value:
    """Add an operation of two operands, which broadcast as in numpy."""
    shape = np.broadcast_shapes(x.shape, y.shape)
    element = wider(x.element, y.element)
    return simple(body, op, *(expand(body, convert(body, each, element), shape) for each in (x, y)))


def compare(body: Body, how: str, x: Value, y: Value) -> Value:
    """Compare two operands, which broadcast as in numpy."""
    shape = np.broadcast_shapes(x.shape, y.shape)
    element = wider(x.element, y.element)
    a, b = (expand(body, convert(body, each, element), shape) for each in (x, y))
    text = f"stablehlo.compare {how}, {a.name}, {b.name} : ({a.type}, {b.type}) -> {tensor(shape, 'i1')}"
    return body.add(text, shape, "i1")


def select(body: Body, condition: Value, x: Value, y: Value) -> Value:
    """Choose between two operands; all three broadcast as in numpy."""
    shape = np.broadcast_shapes(condition.shape, x.shape, y.shape)
    element = wider(x.element, y.element)
    a, b = (expand(body, convert(body, each, element), shape) for each in (x, y))
    c = expand(body, convert(body, condition, "i1"), shape)
    return body.add(f"stablehlo.select {c.name}, {a.name}, {b.name} : {c.type}, {a.type}", shape, element)


# --- shapes -----------------------------------------------------------------------------------------------------------


def reshape(body: Body, x: Value, shape: Sequence[int]) -> Value:
    """Return the same elements in another shape."""
    if tuple(shape) == x.shape:
        return x
    return body.add(f"stablehlo.reshape {x.name} : ({x.type}) -> {tensor(shape, x.element)}", shape, x.element)


def transpose(body: Body, x: Value, axes: Sequence[int]) -> Value:
    """Return a tensor with its axes in another order."""
    if list(axes) == list(range(len(axes))):
        return x
    shape = tuple(x.shape[at] for at in axes)
    dims = ", ".join(map(str, axes))
    return body.add(
        f"stablehlo.transpose {x.name}, dims = [{dims}] : ({x.type}) -> {tensor(shape, x.element)}", shape, x.element
    )


def broadcast(body: Body, x: Value, shape: Sequence[int], axes: Sequence[int]) -> Value:
    """Lay a tensor's axes along some of those of a larger one."""
    dims = ", ".join(map(str, axes))
    text = f"stablehlo.broadcast_in_dim {x.name}, dims = [{dims}] : ({x.type}) -> {tensor(shape, x.element)}"
    return body.add(text, shape, x.element)


def expand(body: Body, x: Value, shape: Sequence[int]) -> Value:
    """Broadcast to a shape as in numpy."""
    if tuple(shape) == x.shape:
        return x
    if x.name in body.numbers:
        return constant(body, body.numbers[x.name], x.element, shape)
    return broadcast(body, x, shape, range(len(shape) - len(x.shape), len(shape)))


def cut(body: Body, x: Value, starts: Sequence[int], ends: Sequence[int], steps: Sequence[int]) -> Value:
    """Return a part of a tensor."""
    shape = tuple(-(-(end - start) // step) for start, end, step in zip(starts, ends, steps, strict=True))
    if shape == x.shape:
        return x
    ranges = ", ".join(
        f"{start}:{end}" + (f":{step}" if step != 1 else "")
        for start, end, step in zip(starts, ends, steps, strict=True)
    )
    return body.add(f"stablehlo.slice {x.name} [{ranges}] : ({x.type}) -> {tensor(shape, x.element)}", shape, x.element)


def pad(body: Body, x: Value, around: Sequence[tuple[int, int]], value: float = 0.0) -> Value:
    """Lay a number around a tensor."""
    if not any(map(any, around)):
        return x
    filler = constant(body, value, x.element)
    shape = tuple(size + before + behind for size, (before, behind) in zip(x.shape, around, strict=True))
    low, high = (", ".join(str(each[at]) for each in around) for at in (0, 1))
    inside = ", ".join("0" for _ in shape)
    return body.add(
        f"stablehlo.pad {x.name}, {filler.name}, low = [{low}], high = [{high}], interior = [{inside}] : "
        f"({x.type}, {filler.type}) -> {tensor(shape, x.element)}", shape, x.element,
    )  # fmt: skip


def reverse(body: Body, x: Value, axes: Sequence[int]) -> Value:
    """Return a tensor with some axes in reverse order."""
    return body.add(f"stablehlo.reverse {x.name}, dims = [{', '.join(map(str, axes))}] : {x.type}", x.shape, x.element)


def concatenate(body: Body, parts: Sequence[Value], axis: int) -> Value:
    """Join tensors along an axis."""
    shape = list(parts[0].shape)
    axis %= len(shape)
    shape[axis] = sum(each.shape[axis] for each in parts)
    names, types = ", ".join(each.name for each in parts), ", ".join(each.type for each in parts)
    out = tensor(shape, parts[0].element)
    return body.add(f"stablehlo.concatenate {names}, dim = {axis} : ({types}) -> {out}", shape, parts[0].element)


def update(body: Body, x: Value, part: Value, starts: Sequence[int]) -> Value:
    """Return a tensor with a part of it written anew."""
    places = [constant(body, start, "i32") for start in starts]
    names = ", ".join(each.name for each in (x, part, *places))
    types = ", ".join(each.type for each in (x, part, *places))
    return body.add(f"stablehlo.dynamic_update_slice {names} : ({types}) -> {x.type}", x.shape, x.element)


def rows(body: Body, table: Value, places: Value) -> Value:
    """Return rows of a table by whole numbers."""
    rest, lead = table.shape[1:], places.shape
    shape, axes = (*lead, *rest), ", ".join(str(len(lead) + at) for at in range(len(rest)))
    offsets = f"offset_dims = [{axes}], " if rest else ""
    numbers = (
        f"#stablehlo.gather<{offsets}collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = {len(lead)}>"
    )
    sizes = ", ".join(map(str, (1, *rest)))
    return body.add(
        f'"stablehlo.gather"({table.name}, {places.name}) <{{dimension_numbers = {numbers}, '
        f"slice_sizes = array<i64: {sizes}>}}> : ({table.type}, {places.type}) -> {tensor(shape, table.element)}",
        shape, table.element,
    )  # fmt: skip


def scattered(body: Body, table: Value, places: Value, new: Value, add: bool) -> Value:
    """Return a table with rows of it written anew, or added to, by whole numbers."""
    lead, scalar = len(places.shape), tensor((), table.element)
    windows = ", ".join(str(lead + at) for at in range(len(table.shape) - 1))
    numbers = (
        f"#stablehlo.scatter<{f'update_window_dims = [{windows}], ' if windows else ''}inserted_window_dims = [0], "
        f"scatter_dims_to_operand_dims = [0], index_vector_dim = {lead}>"
    )
    result = f"  %c = stablehlo.add %a, %b : {scalar}\n  stablehlo.return %c" if add else "  stablehlo.return %b"
    return body.add(
        f'"stablehlo.scatter"({table.name}, {places.name}, {new.name}) '
        f"<{{scatter_dimension_numbers = {numbers}}}> ({{\n"
        f"^bb0(%a: {scalar}, %b: {scalar}):\n{result} : {scalar}\n"
        f"}}) : ({table.type}, {places.type}, {new.type}) -> {table.type}", table.shape, table.element,
    )  # fmt: skip


# --- along axes -------------------------------------------------------------------------------------------------------


def reduce(body: Body, x: Value, op: str, start: float, axes: Sequence[int], keep: bool = False) -> Value:
    """Reduce some axes by an operation of two numbers."""
    first = constant(body, start, x.element)
    shape = tuple(size for at, size in enumerate(x.shape) if at not in axes)
    out = body.add(
        f"stablehlo.reduce({x.name} init: {first.name}) applies stablehlo.{op} across dimensions = "
        f"[{', '.join(map(str, axes))}] : ({x.type}, {first.type}) -> {tensor(shape, x.element)}", shape, x.element,
    )  # fmt: skip
    return reshape(body, out, tuple(1 if at in axes else size for at, size in enumerate(x.shape))) if keep else out


def largest_first(body: Body, x: Value) -> Value:
    """Sort along the last axis, the largest first."""
    scalar, axis = tensor((), x.element), len(x.shape) - 1
    text = (
        f'"stablehlo.sort"({x.name}) <{{dimension = {axis} : i64, is_stable = true}}> ({{\n'
        f"^bb0(%a: {scalar}, %b: {scalar}):\n"
        f"  %c = stablehlo.compare GT, %a, %b : ({scalar}, {scalar}) -> tensor<i1>\n"
        f"  stablehlo.return %c : tensor<i1>\n"
        f"}}) : ({x.type}) -> {x.type}"
    )
    return body.add(text, x.shape, x.element)


def windows(
    body: Body, x: Value, op: str, start: float, sizes: Sequence[int], steps: Sequence[int],
    around: Sequence[tuple[int, int]],
) -> Value:  # fmt: skip
    """Reduce windows that slide over all axes."""
    first, scalar = constant(body, start, x.element), tensor((), x.element)
    axes = zip(x.shape, sizes, steps, around, strict=True)
    shape = tuple((size + sum(pad) - wide) // step + 1 for size, wide, step, pad in axes)
    pads = ", ".join(f"[{before}, {behind}]" for before, behind in around)
    text = (
        f'"stablehlo.reduce_window"({x.name}, {first.name}) <{{padding = dense<[{pads}]> : '
        f"tensor<{len(shape)}x2xi64>, window_dimensions = array<i64: {', '.join(map(str, sizes))}>, "
        f"window_strides = array<i64: {', '.join(map(str, steps))}>}}> ({{\n"
        f"^bb0(%a: {scalar}, %b: {scalar}):\n"
        f"  %c = stablehlo.{op} %a, %b : {scalar}\n"
        f"  stablehlo.return %c : {scalar}\n"
        f"}}) : ({x.type}, {first.type}) -> {tensor(shape, x.element)}"
    )
    return body.add(text, shape, x.element)


# --- products ---------------------------------------------------------------------------------------------------------

Axes = Sequence[int]


def dot(body: Body, x: Value, y: Value, batch: tuple[Axes, Axes], summed: tuple[Axes, Axes], element: str) -> Value:
    """Contract axes of two operands; the result has the batch axes, then those left of the first, of the second."""
    left, right = (
        [size for at, size in enumerate(each.shape) if at not in (*shared, *gone)]
        for each, shared, gone in ((x, batch[0], summed[0]), (y, batch[1], summed[1]))
    )
    shape = (*(x.shape[at] for at in batch[0]), *left, *right)
    batching = f"batching_dims = {list(batch[0])} x {list(batch[1])}, " if batch[0] else ""
    return body.add(
        f"stablehlo.dot_general {x.name}, {y.name}, {batching}contracting_dims = {list(summed[0])} x {list(summed[1])}"
        f" : ({x.type}, {y.type}) -> {tensor(shape, element)}", shape, element,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Window:
    """How a convolution's window moves, a number per axis.

    Attributes:
        stride: Steps between its places.
        around: Padding before and behind the image.
        spread: Steps between the points of the image.
        dilation: Steps between its taps.
        groups: Groups of channels.
        batches: Groups of the batch.
    """

    stride: Sequence[int]
    around: Sequence[tuple[int, int]]
    spread: Sequence[int]
    dilation: Sequence[int]
    groups: int = 1
    batches: int = 1


def convolve(
    body: Body, x: Value, kernel: Value, window: Window, shape: Sequence[int], layout: str = "bf oi bf"
) -> Value:  # fmt: skip
    """Add a convolution; ``layout`` names the first two axes of image, kernel and result."""
    places = ", ".join(map(str, range(len(shape) - 2)))
    left, right, out = (f"[{', '.join(pair)}, {places}]" for pair in layout.split())
    options = {"stride": window.stride, "lhs_dilate": window.spread, "rhs_dilate": window.dilation}
    parts = [f"{name} = {list(value)}" for name, value in options.items() if any(each != 1 for each in value)]
    if any(map(any, window.around)):
        parts.insert(int(bool(parts) and parts[0].startswith("stride")), f"pad = {[list(p) for p in window.around]}")
    return body.add(
        f"stablehlo.convolution({x.name}, {kernel.name}) dim_numbers = {left}x{right}->{out}, "
        f"window = {{{', '.join(parts)}}} {{batch_group_count = {window.batches} : i64, "
        f"feature_group_count = {window.groups} : i64}} : "
        f"({x.type}, {kernel.type}) -> {tensor(shape, x.element)}", shape, x.element,
    )  # fmt: skip


def quoted(text: str) -> str:
    """Return text as a string of MLIR.

    Example:
        >>> quoted('a "b"')
        '"a \\\\22b\\\\22"'
    """
    plain = "".join(c if c.isprintable() and c.isascii() and c not in '"\\' else _escaped(c) for c in text)
    return f'"{plain}"'


def _escaped(character: str) -> str:
    return "".join(f"\\{byte:02X}" for byte in character.encode("utf-8", "surrogatepass"))
