"""Shapes and number formats of a jaxpr in the words of roofline; symbolic sizes become polynomials."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable
from functools import reduce
from typing import Any

from roofline.ir.dtypes import dtype as number_format
from roofline.ir.errors import ShapeError
from roofline.ir.sizes import call, maximum, minimum, symbol

#: What jax's many formats are stored as: the first prefix that fits. A complex number is as wide as two reals.
_FORMATS = (
    ("bool", "bool"), ("float8", "fp8"), ("float4", "fp4"), ("complex64", "fp64"),
    ("uint64", "int64"), ("uint32", "int32"), ("uint16", "int16"), ("uint8", "int8"), ("uint4", "int4"),
    ("int2", "int4"), ("uint2", "int4"), ("key", "int64"), ("float0", "bool"),
)  # fmt: skip


def format_of(dtype: Any) -> str:
    """Return the number format of a jax dtype.

    Raises:
        UnknownDType: Roofline has no such format.

    Example:
        >>> format_of("bfloat16"), format_of("uint8"), format_of("float8_e4m3fn")
        ('bf16', 'int8', 'fp8')
    """
    text = str(dtype)
    known = next((name for prefix, name in _FORMATS if text.startswith(prefix)), text)
    return number_format(known).name


def shape_of(aval: Any) -> tuple[Any, ...]:
    """Return the shape of an abstract value; what has none, such as a token, is a scalar."""
    return tuple(size_of(dim) for dim in getattr(aval, "shape", ()))


def size_of(dim: Any) -> Any:
    """Return a size: a number, or a polynomial from what jax prints of its own.

    jax keeps its polynomials private but documents their text, so the text is read.

    Raises:
        ShapeError: The text holds something else than sums, products and the four functions of jax.

    Example:
        >>> size_of(4), size_of("4*b + floordiv(s^2, 2) + -1")
        (4, 4*b + floordiv(s*s, 2) - 1)
    """
    if hasattr(dim, "__index__") and not hasattr(dim, "get_vars"):
        return int(dim)
    text = str(dim)
    try:
        return _read(ast.parse(text.replace("^", "**"), mode="eval").body)
    except (SyntaxError, KeyError, TypeError):
        raise ShapeError(f"the size {text!r} is no polynomial that roofline can parse") from None


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "floordiv": lambda a, b: call("floordiv", a, b),
    "mod": lambda a, b: a - call("floordiv", a, b) * b,
    "max": lambda *sizes: reduce(maximum, sizes),
    "min": lambda *sizes: reduce(minimum, sizes),
    "non_negative": lambda a: maximum(a, 0),
}
_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Pow: lambda a, b: reduce(lambda x, y: x * y, [a] * b),
}


def _read(node: Any) -> Any:
    match node:
        case ast.Constant(value=int(value)):
            return value
        case ast.Name(id=name):
            return symbol(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _read(operand) * -1
        case ast.BinOp(left=left, op=operator, right=right):
            return _OPERATORS[type(operator)](_read(left), _read(right))
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*map(_read, args))
    raise KeyError(node)


def total(sizes: Iterable[Any]) -> int | None:
    """Return the product of sizes that are all numbers, else nothing."""
    numbers = list(sizes)
    return math.prod(numbers) if all(isinstance(size, int) for size in numbers) else None
