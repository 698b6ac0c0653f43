"""Sizes, amounts, shapes and names as short text that is safe to print."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from roofline.ir.graph import Tensor
from roofline.ir.sizes import Dim, terms
from roofline.ir.text import safe as safe
from roofline.ir.units import format_si


def amount(value: Any) -> str:
    """Return a count with three digits and its prefix; a polynomial term by term.

    Example:
        >>> from roofline.ir.sizes import symbol
        >>> amount(137438953472), amount(16384 * symbol("B") * symbol("C") + 33554432)
        ('137G', '16.4k*B*C + 33.6M')
    """
    if not isinstance(value, Dim):
        return _short(value)
    return " + ".join(_term(monomial, factor) for monomial, factor in terms(value)).replace("+ -", "- ")


def _term(monomial: tuple[Any, ...], factor: Any) -> str:
    atoms = [str(atom) for atom in monomial]
    return "*".join(atoms if factor == 1 and atoms else [_short(factor), *atoms])


def _short(value: Any) -> str:
    return format_si(float(value), "").replace(" ", "")


def exact(value: Any) -> str:
    """Return a count with all its digits.

    Example:
        >>> exact(137438953472), exact(None)
        ('137,438,953,472', '-')
    """
    if value is None:
        return "-"
    if isinstance(value, Dim):
        return str(value)
    number = float(value) if isinstance(value, Fraction) and value.denominator != 1 else value
    if isinstance(number, float) and abs(number) < 1000 and not number.is_integer():
        return f"{number:.6g}"
    return f"{round(number):,}"


def ratio(value: Any) -> str:
    """Return operations per byte with three digits, or a dash where sizes are missing.

    Example:
        >>> ratio(1131.2), ratio(0.25), ratio(None)
        ('1130', '0.25', '-')
    """
    return "-" if value is None else f"{float(f'{value:.3g}'):g}"


def shape(sizes: Iterable[Any]) -> str:
    """Return a shape as it is written in Python, without the comma of a single size.

    Example:
        >>> shape((8, 1, 4096))
        '(8, 1, 4096)'
    """
    return f"({', '.join(map(str, sizes))})"


def tensor(value: Tensor) -> str:
    """Return the shape and the number format."""
    return f"{shape(value.shape)} {value.dtype}"


def options(pairs: Iterable[tuple[str, Any]]) -> str:
    """Return options as a person writes them.

    Example:
        >>> options([("padding", 1), ("causal", False), ("axes", (0, 2))])
        'padding=1, causal=no, axes=(0, 2)'
    """
    return ", ".join(f"{safe(str(key))}={_option(value)}" for key, value in pairs)


def _option(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return safe(shape(value) if isinstance(value, tuple) else str(value))


def sentence(doc: str) -> str:
    """Return the first sentence of a docstring, without markup.

    Example:
        >>> sentence("``x W^T + b``; the bias is free. More.\\n\\nDetails.")
        'x W^T + b; the bias is free'
    """
    first = " ".join(doc.partition("\n\n")[0].split()).replace("``", "")
    return first.partition(". ")[0].removesuffix(".")
