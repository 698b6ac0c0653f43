"""Sizes as text: ``"4 * hidden"``, ``"ceil_div(S, 2)"``. A small parser with a whitelist; nothing is evaluated as code.

Allowed are whole numbers, names, parentheses, ``+ - * / // % **``, and ``min``, ``max``, ``ceil_div``. The names B, S
and C stand for batch, sequence and context and stay symbolic.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import reduce
from typing import Any

from roofline.ir.errors import ModelDataError, did_you_mean
from roofline.ir.sizes import Dim, Size, ceil_div, maximum, minimum, symbol

#: The sizes that are given only when a program is counted.
SYMBOLS: Mapping[str, Dim] = {name: symbol(name) for name in ("B", "S", "C")}

MAX_LENGTH = 200
MAX_EXPONENT = 64
#: Values and coefficients beyond this are a mistake, not a size.
MAX_VALUE = 10**30
MAX_TERMS = 64


def parse(text: str | int, names: Mapping[str, Size], where: str = "expression") -> Size:
    """The size that an expression stands for.

    Args:
        text: The expression, or a whole number already.
        names: Sizes by name, beside B, S and C.
        where: File and key, for errors.

    Returns:
        A whole number, or a :class:`~roofline.ir.sizes.Dim` when a symbol is in it.

    Raises:
        ModelDataError: Not an allowed expression, an unknown name, or not a whole number.

    Example:
        >>> parse("4 * hidden // heads", {"hidden": 768, "heads": 12})
        256
        >>> parse("B * (S + 1)", {})
        B*S + B
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    if not isinstance(text, str):
        raise ModelDataError(f"{where}: {text!r} is neither a whole number nor an expression")
    tree = _tree(text, where)
    try:
        value: Size = _value(tree.body, {**SYMBOLS, **names}, where)
    except RecursionError:
        raise ModelDataError(f"{where}: {text!r} is nested too deeply") from None
    if isinstance(value, Fraction):
        raise ModelDataError(f"{where}: {text!r} is {value}, not a whole number")
    return value


def _tree(text: str, where: str) -> ast.Expression:
    if len(text) > MAX_LENGTH:
        raise ModelDataError(f"{where}: an expression of {len(text)} characters; at most {MAX_LENGTH} are allowed")
    try:
        return ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise ModelDataError(f"{where}: {text!r} is not an expression such as '4 * hidden'") from None


def _value(node: ast.expr, names: Mapping[str, Size], where: str) -> Any:
    handler = _NODES.get(type(node))
    if handler is None:
        raise ModelDataError(f"{where}: {ast.unparse(node)!r} is not allowed; use + - * / // % **, names and numbers")
    return _bounded(handler(node, names, where), node, where)


def _bounded(value: Any, node: ast.expr, where: str) -> Any:
    if isinstance(value, Fraction) and value.denominator == 1:
        value = value.numerator
    if _too_large(value):
        raise ModelDataError(f"{where}: {ast.unparse(node)!r} is too large to be a size")
    return value


def _too_large(value: Any) -> bool:
    terms = value.terms if isinstance(value, Dim) else (((), value),)
    return len(terms) > MAX_TERMS or any(abs(factor) > MAX_VALUE for _, factor in terms)


def _constant(node: Any, names: Mapping[str, Size], where: str) -> Any:
    if type(node.value) is not int:
        raise ModelDataError(f"{where}: {node.value!r} is not a whole number")
    return node.value


def _name(node: Any, names: Mapping[str, Size], where: str) -> Any:
    if node.id not in names:
        hint = did_you_mean(node.id, names)
        raise ModelDataError(f"{where}: unknown size {node.id!r}; known: {', '.join(names)}" + hint)
    return names[node.id]


def _unary(node: Any, names: Mapping[str, Size], where: str) -> Any:
    value = _value(node.operand, names, where)
    if isinstance(node.op, ast.USub):
        return value * -1
    if isinstance(node.op, ast.UAdd):
        return value
    raise ModelDataError(f"{where}: {ast.unparse(node)!r} is not allowed")


def _binary(node: Any, names: Mapping[str, Size], where: str) -> Any:
    function = _OPERATORS.get(type(node.op))
    if function is None:
        raise ModelDataError(f"{where}: {ast.unparse(node)!r} is not allowed; use + - * / // % **")
    try:
        return function(_value(node.left, names, where), _value(node.right, names, where))
    except ZeroDivisionError:
        raise ModelDataError(f"{where}: {ast.unparse(node)!r} divides by zero") from None
    except (TypeError, ValueError) as error:
        raise ModelDataError(f"{where}: {ast.unparse(node)!r}: {error}") from None


def _call(node: Any, names: Mapping[str, Size], where: str) -> Any:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name not in _CALLS or node.keywords:
        raise ModelDataError(f"{where}: {ast.unparse(node)!r} is not allowed; functions are {', '.join(_CALLS)}")
    args = [_value(arg, names, where) for arg in node.args]
    if len(args) < 2 or (name == "ceil_div" and len(args) != 2):
        raise ModelDataError(f"{where}: {ast.unparse(node)!r} has {len(args)} arguments; {name} takes two")
    try:
        return reduce(_CALLS[name], args)
    except ZeroDivisionError:
        raise ModelDataError(f"{where}: {ast.unparse(node)!r} divides by zero") from None


def _divide(a: Any, b: Any) -> Any:
    if isinstance(b, Dim):
        raise ValueError("a division by a symbolic size needs // or ceil_div")
    return a / b if isinstance(a, Dim) else Fraction(a) / b


def _floor(a: Any, b: Any) -> Any:
    if isinstance(b, Dim) and not isinstance(a, Dim):
        raise ValueError("a number divided by a symbolic size is not a size")
    return a // b


def _modulo(a: Any, b: Any) -> Any:
    return a - _floor(a, b) * b


def _power(a: Any, b: Any) -> Any:
    if type(b) is not int or not 0 <= b <= MAX_EXPONENT:
        raise ValueError(f"exponents are whole numbers from 0 to {MAX_EXPONENT}")
    product: Any = 1
    for _ in range(b):
        product = a * product
        if _too_large(product):
            break  # refused by the caller
    return product


_OPERATORS: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divide,
    ast.FloorDiv: _floor,
    ast.Mod: _modulo,
    ast.Pow: _power,
}

_CALLS: dict[str, Callable[[Any, Any], Any]] = {"min": minimum, "max": maximum, "ceil_div": ceil_div}

_NODES: dict[type, Callable[[Any, Mapping[str, Size], str], Any]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.Call: _call,
}
