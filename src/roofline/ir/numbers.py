"""Numbers as they come in: checked once to be numbers, finite and in a stated range, plain Python from then on."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from numbers import Integral, Real
from typing import Any

from roofline.ir.errors import UsageError
from roofline.ir.text import shown

#: No whole number that comes in is larger unless its range says so: it and its square stay far inside float64.
LARGEST = 10**15

#: Most values of a sequence that is given as one option.
MOST_VALUES = 10**6


def whole_number(name: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Return a value as the whole number that it has to be.

    Args:
        name: Of the option, for the message.
        value: As it was given: an integer of Python or numpy, no truth value.
        least: The smallest that is allowed.
        most: The largest; 10**15 when absent.

    Raises:
        UsageError: Not a whole number, or out of range.

    Example:
        >>> whole_number("block", 16)
        16
    """
    top = LARGEST if most is None else most
    if isinstance(value, Integral) and not isinstance(value, bool) and least <= (number := int(value)) <= top:
        return number
    upper = f" to {top:,}" if most is not None or (isinstance(value, Integral) and int(value) > top) else ""
    raise UsageError(f"{name}={shown(value)}: expected a whole number from {least}{upper}")


def finite_number(name: str, value: Any, least: float = -1e300, most: float = 1e300, *, above: bool = False) -> float:
    """Return a value as the float that it has to be.

    Args:
        name: Of the option, for the message.
        value: As it was given: a number of Python or numpy, no truth value, no text.
        least: The smallest that is allowed.
        most: The largest.
        above: Whether ``least`` itself is too small.

    Raises:
        UsageError: Not a number, not finite, or out of range.

    Example:
        >>> finite_number("share", 0.25, 0, 1)
        0.25
    """
    number = as_float(value)
    if least <= number <= most and not (above and number == least):
        return number
    lower = f"above {least:g}" if above else f"from {least:g}"
    bounds = f"{lower} to {most:g}" if most < 1e300 else lower if least > -1e300 else "that is finite"
    raise UsageError(f"{name}={shown(value)}: expected a number {bounds}")


def as_list(name: str, value: Any) -> list[Any]:
    """Return a sequence of values, which no text is, as a list.

    Raises:
        UsageError: No sequence, or one of more than a million values.

    Example:
        >>> as_list("devices", (1, 2))
        [1, 2]
    """
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise UsageError(f"{name}={shown(value)}: expected a sequence, such as a list")
    values = list(islice(value, MOST_VALUES + 1))
    if len(values) > MOST_VALUES:
        raise UsageError(f"{name}: expected at most {MOST_VALUES:,} values")
    return values


def as_float(value: Any) -> float:
    """Return a number of any kind as a float; NaN for what is none, such as text or a truth value.

    Example:
        >>> as_float(8), as_float(True), as_float("8"), as_float(10**400)
        (8.0, nan, nan, inf)
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf
