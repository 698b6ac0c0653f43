"""What is known of a tensor before the program runs: its shape, its format, and for small ones their elements.

Exporters spell shapes as programs: ``Concat(Gather(Shape(x), 0), 64)``. Elements of small tensors are therefore
followed as whole numbers and symbolic sizes, and whatever follows from the file and the shapes alone is no work.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from roofline.frontends.onnx.read import SMALL
from roofline.ir.graph import Kind
from roofline.ir.sizes import Dim, Size, maximum, minimum, quotient


class Unknown:
    """An element that follows from the file but has no form as a size."""

    def __repr__(self) -> str:
        return "?"


#: The one such element.
UNKNOWN = Unknown()
#: Whole numbers beyond this overflow in ONNX itself.
_LARGEST = 2**63
#: Terms of a size beyond which it is no size that anybody wrote.
_TERMS = 64


@dataclass(eq=False)
class Value:
    """A tensor of the file.

    Attributes:
        name: In the file.
        shape: Sizes, symbolic or not.
        dtype: Number format of its elements.
        data: Elements, where they are known: numbers, sizes, or ``UNKNOWN``.
        const: Whether it follows from the file alone.
        kind: What to declare it as, of a tensor that no node of the result computes.
        stored: Number format in memory, where that differs (quantised weights).
    """

    name: str
    shape: tuple[Size, ...]
    dtype: str
    data: np.ndarray[Any, Any] | None = None
    const: bool = False
    kind: Kind = "activation"
    stored: str = ""


def array(values: Any, shape: Sequence[int] | None = None) -> np.ndarray[Any, Any]:
    """Return elements as an array of Python objects, which numpy would else look into."""
    if shape is None:
        shape = (len(values),) if isinstance(values, list | tuple) else ()
    out = np.empty(tuple(shape), dtype=object)
    if out.ndim:
        out.reshape(-1)[:] = list(values)
    else:
        out[()] = values[0] if isinstance(values, list | tuple) else values
    return out


def constant(name: str, data: np.ndarray[Any, Any], dtype: str) -> Value:
    """Return a small tensor whose elements are known."""
    return Value(name, tuple(data.shape), dtype, data, const=True, kind="buffer")


def settle(value: Any) -> Any:
    """Return an element as a whole number where it is one, and ``UNKNOWN`` where it has no sensible form."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, Fraction) and value.denominator == 1:
        value = value.numerator
    if isinstance(value, int):
        return value if abs(value) <= _LARGEST else UNKNOWN
    if isinstance(value, Dim):
        return value if len(value.terms) <= _TERMS else UNKNOWN
    return value if isinstance(value, float | Fraction) and math.isfinite(value) else UNKNOWN


def each(function: Callable[..., Any], *operands: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Apply a function to elements, broadcast; ``None`` where the result would be large."""
    shape = np.broadcast_shapes(*(operand.shape for operand in operands))
    if math.prod(shape) > SMALL:
        return None
    rows = zip(*(np.broadcast_to(operand, shape).reshape(-1) for operand in operands), strict=True)
    return array([_apply(function, row) for row in rows], shape)


def _apply(function: Callable[..., Any], row: Sequence[Any]) -> Any:
    try:
        return settle(function(*(_exact(x) for x in row)))
    except (TypeError, ValueError, ArithmeticError, AttributeError):
        return UNKNOWN


def _exact(x: Any) -> Any:
    """Return floats that are whole numbers as such, which mix with sizes."""
    return int(x) if isinstance(x, float) and math.isfinite(x) and x.is_integer() else x


def divide(a: Any, b: Any) -> Any:
    """Divide whole numbers, exactly on sizes where it can be; fractions as they are."""
    if isinstance(a, Dim) or isinstance(b, Dim):
        exact = quotient(a, b)
        return a // b if exact is None else exact
    if isinstance(a, int) and isinstance(b, int):
        return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return a / b


def power(a: Any, b: Any) -> Any:
    """Return a power of bounded size."""
    if not isinstance(b, int) or isinstance(a, Dim) or not 0 <= b <= 64 or abs(a) > _LARGEST:
        raise ValueError
    return a**b


def equal(a: Any, b: Any) -> Any:
    """Compare for equality where it is certain: a symbolic size is at least 1."""
    if a is UNKNOWN or b is UNKNOWN:
        return UNKNOWN
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return a == b
    if a == b:
        return True
    plain = b if isinstance(a, Dim) else a
    return False if isinstance(plain, int) and plain < 1 else UNKNOWN


def select(condition: Any, a: Any, b: Any) -> Any:
    """Choose one of two elements, either where they are equal."""
    if isinstance(condition, bool | int):
        return a if condition else b
    return a if a is not UNKNOWN and equal(a, b) is True else UNKNOWN


def compare(less: Callable[[Any, Any], bool], a: Any, b: Any) -> Any:
    """Compare where it is certain: numbers, or a symbolic size with what is below 1."""
    if isinstance(a, Dim) and isinstance(b, int) and b < 1:
        return less(1, b)
    if isinstance(b, Dim) and isinstance(a, int) and a < 1:
        return less(a, 1)
    return less(a, b)


def _whole(rounding: Callable[[Any], int], x: Any) -> Any:
    """Round; a size with whole coefficients is whole already."""
    if isinstance(x, Dim):
        return x if all(isinstance(factor, int) for _, factor in x.terms) else UNKNOWN
    return rounding(x)


def cast(value: Any, dtype: str) -> Any:
    """Return an element in another format."""
    if value is UNKNOWN or isinstance(value, Dim):
        return value if dtype != "bool" else True if isinstance(value, Dim) else UNKNOWN
    if dtype == "bool":
        return bool(value)
    return int(value) if dtype.startswith("int") else value


#: Operations on known elements; any other elementwise one gives ``UNKNOWN`` elements.
ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mul": operator.mul, "Div": divide, "Pow": power, "Neg": lambda x: x * -1,
    "Mod": lambda a, b: a - b * (a // b), "Abs": lambda x: x if isinstance(x, Dim) else abs(x),
    "Equal": equal, "Less": partial(compare, operator.lt), "LessOrEqual": partial(compare, operator.le),
    "Greater": partial(compare, operator.gt), "GreaterOrEqual": partial(compare, operator.ge), "Where": select,
    "Not": lambda x: not x if isinstance(x, bool | int) else UNKNOWN,
    "And": lambda a, b: bool(a and b) if isinstance(a, bool) and isinstance(b, bool) else UNKNOWN,
    "Or": lambda a, b: bool(a or b) if isinstance(a, bool) and isinstance(b, bool) else UNKNOWN,
    "Floor": partial(_whole, math.floor), "Ceil": partial(_whole, math.ceil), "Round": partial(_whole, round),
    "Sqrt": lambda x: math.sqrt(x),
    "Identity": lambda x: x, "Max": maximum, "Min": minimum, "Sum": operator.add,
}  # fmt: skip
