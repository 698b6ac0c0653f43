"""Symbolic sizes of PyTorch (sympy expressions) as sizes of roofline."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any

from roofline.ir.sizes import Size, maximum, minimum, prod, symbol


class Untranslated(Exception):
    """An expression that roofline's sizes cannot hold."""


def _power(base: Any, exponent: Any) -> Any:
    if not isinstance(exponent, int) or exponent < 1:
        raise Untranslated(f"power {exponent}")
    return prod([base] * exponent)


def _modulo(a: Any, b: Any) -> Any:
    return a - (a // b) * b


#: Functions in sympy's and PyTorch's expressions by the name of their class.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Add": lambda *parts: reduce(lambda a, b: a + b, parts),
    "Mul": lambda *parts: prod(parts),
    "Pow": _power, "PowByNatural": _power,
    "FloorDiv": lambda a, b: a // b, "CleanDiv": lambda a, b: a // b,
    "CeilDiv": lambda a, b: (a + b - 1) // b,
    "Mod": _modulo, "PythonMod": _modulo,
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
