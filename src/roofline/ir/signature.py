"""Shape signatures in the manner of einops: ``"... k, n k, [n] -> ... n"``.

``...`` stands for any number of leading axes and is handed to formulas as their product ``batch``; an input in
square brackets may be absent. The same name is the same size everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from roofline.ir.errors import ShapeError
from roofline.ir.sizes import Size, prod

Shape = tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class Signature:
    """The axes of each input and output of an operator."""

    text: str
    inputs: tuple[tuple[str, ...], ...]
    optional: tuple[bool, ...]
    outputs: tuple[tuple[str, ...], ...]

    def bind(self, shapes: Sequence[Shape]) -> dict[str, Any]:
        """Match shapes to axes.

        Returns:
            Sizes by axis name, with ``...`` as a tuple and ``batch`` as its product.

        Raises:
            ShapeError: Wrong number of inputs or axes, or one name with two sizes.
        """
        needed = self.optional.count(False)
        if not needed <= len(shapes) <= len(self.inputs):
            raise ShapeError(f"takes {self.text!r} but got {len(shapes)} inputs")
        sizes: dict[str, Any] = {}
        for axes, shape in zip(self.inputs, shapes, strict=False):
            _bind_one(self.text, axes, shape, sizes)
        sizes["batch"] = prod(sizes.get("...", ()))
        return sizes

    def shapes(self, sizes: dict[str, Any]) -> tuple[Shape, ...]:
        """The output shapes for bound sizes."""
        return tuple(
            tuple(size for axis in axes for size in (sizes[axis] if axis == "..." else (sizes[axis],)))
            for axes in self.outputs
        )


def _bind_one(text: str, axes: tuple[str, ...], shape: Shape, sizes: dict[str, Any]) -> None:
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


def _show(shape: Shape) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


@cache
def signature(text: str) -> Signature:
    """Parse ``"... k, n k, [n] -> ... n"``."""
    left, right = text.split("->")
    inputs = [part.strip() for part in left.split(",")] if left.strip() else []
    outputs = [part.strip() for part in right.split(",")]
    return Signature(
        text,
        tuple(tuple(part.strip("[]").split()) for part in inputs),
        tuple(part.startswith("[") for part in inputs),
        tuple(tuple(part.split()) for part in outputs),
    )
