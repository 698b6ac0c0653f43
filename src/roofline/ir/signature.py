"""Shape signatures in the manner of einops: ``"... k, n k, [n] -> ... n"``, ``"b (g r) q d, b g k d -> b (g r) q k"``.

``...`` stands for any number of leading axes and is handed to formulas as their product ``batch``; an input in square
brackets may be absent, and ``*`` at the end stands for any further inputs. The same name is the same size everywhere.
An axis in parentheses is the product of several; ``h=(g r)`` names it as well, so that it can be written ``h``
elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from roofline.ir.errors import ShapeError
from roofline.ir.sizes import Dim, Size, prod, quotient

Shape = tuple[Size, ...]
Term = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """The axes of each input and output of an operator.

    Attributes:
        text: As it is written.
        inputs: Names of the axes of each input.
        optional: Whether each input may be absent.
        outputs: Names of the axes of each output.
        composites: The factors of each axis that is a product of others, outermost first.
        more: Whether any further inputs may follow.
    """

    text: str
    inputs: tuple[Term, ...]
    optional: tuple[bool, ...]
    outputs: tuple[Term, ...]
    composites: Mapping[str, Term]
    more: bool = False

    def bind(
        self, shapes: Sequence[Shape], known: Mapping[str, Any] | None = None, nouns: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """Match shapes to axes.

        Returns:
            Sizes by axis name, with ``...`` as a tuple and ``batch`` as its product.

        Raises:
            ShapeError: Wrong number of inputs or axes, one name with two sizes, or an axis that its factors do not
                divide.
        """
        needed = self.optional.count(False)
        if len(shapes) < needed or (len(shapes) > len(self.inputs) and not self.more):
            raise ShapeError(f"takes {self.text!r} but got {len(shapes)} inputs")
        sizes: dict[str, Any] = dict(known or {})
        for axes, shape in zip(self.inputs, shapes, strict=False):
            _bind_one(self.text, axes, shape, sizes)
        for whole, factors in self.composites.items():
            _factor(whole, factors, sizes, nouns or {})
        sizes["batch"] = prod(sizes.get("...", ()))
        return sizes

    def shapes(self, sizes: Mapping[str, Any]) -> tuple[Shape, ...]:
        """Return the output shapes for bound sizes."""
        return tuple(
            tuple(size for axis in axes for size in (sizes[axis] if axis == "..." else (sizes[axis],)))
            for axes in self.outputs
        )

    def factors(self, axes: Term) -> Term:
        """Return the axes of a term with the factors of each product in its place."""
        return tuple(factor for axis in axes for factor in self.composites.get(axis, (axis,)))


def _bind_one(text: str, axes: Term, shape: Shape, sizes: dict[str, Any]) -> None:
    if "..." in axes:
        at = axes.index("...")
        extra = len(shape) - (len(axes) - 1)
        if extra < 0:
            raise ShapeError(f"takes {text!r} but got the shape {_show(shape)}")
        _agree(text, "...", shape[at : at + extra], sizes)
        shape, axes = shape[:at] + shape[at + extra :], axes[:at] + axes[at + 1 :]
    if len(shape) != len(axes):
        raise ShapeError(f"takes {text!r} but got the shape {_show(shape)}")
    for axis, size in zip(axes, shape, strict=True):
        _agree(text, axis, size, sizes)


def _agree(text: str, axis: str, size: Any, sizes: dict[str, Any]) -> None:
    if sizes.setdefault(axis, size) != size:
        raise ShapeError(f"takes {text!r} but axis {axis!r} is both {sizes[axis]} and {size}")


def _factor(whole: str, factors: Term, sizes: dict[str, Any], nouns: Mapping[str, str]) -> None:
    """Solve a product for the one factor that is not known, or for the whole; more than one is left open."""
    bound = [factor for factor in factors if factor in sizes]
    missing, product = [factor for factor in factors if factor not in sizes], prod(sizes[factor] for factor in bound)
    if whole not in sizes:
        if not missing:
            sizes[whole] = product
        return
    size, of = sizes[whole], " of ".join(f"{sizes[factor]} {nouns.get(factor, repr(factor))}" for factor in bound)
    noun = nouns.get(whole, f"as axis {whole!r}")
    if not missing and size != product:
        raise ShapeError(f"has {size} {noun}, but {of}")
    if len(missing) == 1:
        whole_numbers = isinstance(size, int) and isinstance(product, int)
        if whole_numbers and size % product:
            raise ShapeError(f"has {size} {noun}, which is not a multiple of {of}")
        symbolic = isinstance(size, Dim) or isinstance(product, Dim)
        share = quotient(size, product) if symbolic else size // product if whole_numbers else size / product
        if share is not None:
            sizes[missing[0]] = share


def _show(shape: Shape) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


#: One axis of a term: a name, a product of others, or both.
_AXIS = re.compile(r"(?:(\w+)=)?\(([^)]*)\)|\S+")


@cache
def signature(text: str) -> Signature:
    """Parse ``"... k, n k, [n] -> ... n"``.

    Example:
        >>> scores = signature("b (g r) q d, b g k d -> b (g r) q k")
        >>> scores.shapes(scores.bind([(2, 8, 5, 16), (2, 4, 7, 16)]))
        ((2, 8, 5, 7),)
    """
    composites: dict[str, Term] = {}

    def term(part: str) -> Term:
        axes = []
        for match in _AXIS.finditer(part.strip().strip("[]")):
            axes.append(match[1] or match[0])
            if match[2] is not None:
                composites[axes[-1]] = tuple(match[2].split())
        return tuple(axes)

    left, right = text.split("->")
    inputs = [part.strip() for part in left.split(",")] if left.strip() else []
    more = inputs[-1:] == ["*"]
    inputs = inputs[:-1] if more else inputs
    optional = tuple(part.startswith("[") for part in inputs)
    return Signature(text, tuple(map(term, inputs)), optional, tuple(map(term, right.split(","))), composites, more)
