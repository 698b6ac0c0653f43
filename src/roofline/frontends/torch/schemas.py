"""Arguments that a profiler recorded, under the names of the operator's signature; PyTorch is not needed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from roofline.frontends.torch.program import Value
from roofline.ir.errors import ShapeError
from roofline.traces.events import Signature

#: Signatures as PyTorch writes them, from ``scripts/torch_schemas.py``.
FILE = Path(__file__).parent / "schemas.txt"

#: Number formats as profilers spell them.
FORMATS = {
    "float": "fp32", "double": "fp64", "c10::Half": "fp16", "c10::BFloat16": "bf16", "bool": "bool",
    "long int": "int64", "long": "int64", "long long": "int64", "int64_t": "int64", "int": "int32",
    "short int": "int16", "short": "int16", "signed char": "int8", "unsigned char": "int8", "char": "int8",
    "unsigned short": "int16", "unsigned int": "int32", "unsigned long": "int64", "c10::complex<float>": "fp64",
    "c10::qint8": "int8", "c10::quint8": "int8", "c10::qint32": "int32", "c10::Float4_e2m1fn_x2": "fp8",
    **dict.fromkeys(("c10::Float8_e4m3fn", "c10::Float8_e5m2", "c10::Float8_e4m3fnuz", "c10::Float8_e5m2fnuz",
                     "c10::Float8_e8m0fnu"), "fp8"),
}  # fmt: skip

#: ``c10::ScalarType`` by number, as a ``dtype`` argument is recorded.
SCALAR_TYPES = {
    0: "int8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "fp16", 6: "fp32", 7: "fp64", 9: "fp64", 11: "bool",
    12: "int8", 13: "int8", 14: "int32", 15: "bf16", 23: "fp8", 24: "fp8", 25: "fp8", 26: "fp8", 27: "int16",
    28: "int32", 29: "int64",
}  # fmt: skip

#: The type of a list of tensors.
_LIST = "TensorList"

#: What takes an argument that is no tensor, by its recorded type.
_KINDS = {_LIST: "list", "ScalarList": "numbers", "Scalar": "plain"}

_WORDS = {"True": True, "False": False, "None": None, "": None}

#: Longest text of an argument and most axes of a tensor that are read; what is beyond is no record of PyTorch's.
_LONGEST, _AXES = 100_000, 16


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an operator.

    Attributes:
        name: Its name.
        kind: ``tensor``, ``list`` of tensors, ``plain`` or ``numbers``, a list of plain ones.
        default: What it is where nothing is given.
        result: Whether the result goes there.
    """

    name: str
    kind: str
    default: Any
    result: bool


@cache
def overloads(op: str) -> tuple[tuple[Parameter, ...], ...]:
    """Return the parameters of each overload of an operator.

    Example:
        >>> [p.name for p in overloads("aten::bmm")[0]]
        ['self', 'mat2']
    """
    return tuple(_parameters(text) for text in _lines().get(op, ()))


@cache
def _lines() -> Mapping[str, tuple[str, ...]]:
    signatures: dict[str, tuple[str, ...]] = {}
    for line in FILE.read_text(encoding="utf-8").splitlines():
        name = re.split(r"[.(]", line, maxsplit=1)[0]
        signatures[name] = (*signatures.get(name, ()), line[line.index("(") :])
    return signatures


_PARAMETER = re.compile(
    r"(?P<type>[A-Za-z_.]+)(?P<alias>\([^)]*\))?(?P<rest>[\[\]?0-9]*) (?P<name>\w+)(?:=(?P<default>.*))?"
)


def _parameters(text: str) -> tuple[Parameter, ...]:
    parameters, keyword = [], False
    for part in re.split(r", (?![^\[]*\])", text.removeprefix("(").removesuffix(")")):
        keyword = keyword or part == "*"
        match = _PARAMETER.fullmatch(part)
        if match is not None:
            parameters.append(_parameter(match, keyword))
    return tuple(parameters)


def _parameter(match: re.Match[str], keyword: bool) -> Parameter:
    is_list = "[" in match["rest"]
    one, many = ("tensor", "list") if match["type"] == "Tensor" else ("plain", "numbers")
    default = plain(match["default"] or "")
    size = re.search(r"\[(\d+)\]", match["rest"])
    if size is not None and default is not None and not isinstance(default, tuple):
        default = (default,) * int(size[1])
    return Parameter(match["name"], many if is_list else one, default, keyword and "!" in (match["alias"] or ""))


def plain(text: str) -> Any:
    """Return a recorded argument that is no tensor; ``None`` where it is nothing that a shape depends on.

    Example:
        >>> plain("[1, -1]"), plain("0.125"), plain("False"), plain("cuda:0")
        ((1, -1), 0.125, False, None)
    """
    text = text.strip()
    if len(text) > _LONGEST:
        raise ShapeError("an argument is too long")
    if text.startswith("[") and text.endswith("]"):
        return tuple(plain(part) for part in text[1:-1].replace("[", "").replace("]", "").split(",") if part.strip())
    if text in _WORDS:
        return _WORDS[text]
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            continue
    return None


@dataclass(frozen=True)
class Arguments:
    """Arguments of a recorded call.

    Attributes:
        named: By name, tensors as values.
        strides: Of each value by its number, in elements; empty where they were not recorded.
    """

    named: dict[str, Any]
    strides: dict[int, tuple[int, ...]]


def arguments(op: str, signature: Signature, lists: str) -> Arguments | None:
    """Return arguments by name; ``None`` where no overload takes them.

    Args:
        op: Such as ``aten::addmm``.
        signature: What was recorded.
        lists: Number format of tensors in lists, which profilers do not record.

    Raises:
        ShapeError: A shape that is none.

    Example:
        >>> call = Signature(dims=((8, 4), (4, 2)), types=("float", "float"))
        >>> {name: value.shape for name, value in arguments("aten::mm", call, "fp32").named.items()}
        {'self': (8, 4), 'mat2': (4, 2)}
    """
    types = signature.types
    fits = [each for each in overloads(op) if len(each) >= len(types) and all(map(_takes, each, types))]
    if not fits:
        return None
    call = Arguments({}, {})
    for at, parameter in enumerate(sorted(fits, key=len)[0]):
        if not parameter.result:
            call.named[parameter.name] = _argument(parameter, signature, at, lists, call.strides)
    return call


def _takes(parameter: Parameter, type_: str) -> bool:
    """Tell whether a parameter takes what was recorded as this type, which is empty for what was left out."""
    return not type_ or parameter.kind == _KINDS.get(type_, "tensor" if type_ in FORMATS else "plain")


def _argument(
    parameter: Parameter, signature: Signature, at: int, lists: str, strides: dict[int, tuple[int, ...]]
) -> Any:
    if at >= len(signature.types):
        return parameter.default
    dims, type_ = signature.dims[at], signature.types[at]
    if parameter.kind in ("plain", "numbers"):
        concrete = plain(signature.concrete[at]) if at < len(signature.concrete) else None
        if concrete is None and type_ == "ScalarList":  # a stride or an axis that its default would get wrong
            raise ShapeError(f"{parameter.name} was not recorded")
        return parameter.default if concrete is None else concrete
    if not type_:
        return None
    steps = signature.strides[at] if at < len(signature.strides) else ()
    if type_ != _LIST:
        return value_of(dims, steps, FORMATS[type_], parameter.name, strides)
    every = steps if len(steps) == len(dims) else ((),) * len(dims)
    return tuple(value_of(shape, step, lists, parameter.name, strides) for shape, step in zip(dims, every, strict=True))


def value_of(shape: Any, steps: Any, dtype: str, name: str, strides: dict[int, tuple[int, ...]]) -> Value:
    """Return a recorded tensor; its strides are noted by its number.

    Raises:
        ShapeError: The shape is none.
    """
    if not isinstance(shape, tuple) or len(shape) > _AXES or not all(type(size) is int and size >= 0 for size in shape):
        raise ShapeError(f"{name}: no shape of a tensor")
    number = len(strides)
    strides[number] = steps if isinstance(steps, tuple) and len(steps) == len(shape) else ()
    layout = tuple(zip(shape, strides[number], strict=True)) if strides[number] or not shape else None
    return Value(number, name, shape, dtype, "input", layout)
