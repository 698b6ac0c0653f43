"""To and from narrow number formats: what quantised programs do around their products.

A comparison, a rounding and a lookup count nothing, as everywhere; a scale is one multiplication an element, a zero
point one subtraction more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roofline.ir.signature import Shape
from roofline.ops.registry import Work, op


def _first(shapes: Sequence[Shape]) -> Shape:
    return shapes[0]


@op("dequantize", None, "pointwise", shape=_first)
def dequantize(batch: Any, flops: int = 1, elements: Any = None) -> Work:
    """Narrow to wide: ``flops`` operations an element (scale, zero), of all or of the ``elements`` that are used."""
    if elements is None:
        return Work(vector=flops * batch)
    return Work(vector=flops * elements, reads={0: elements}, writes=elements)


@op("quantize", None, "pointwise", shape=_first)
def quantize(batch: Any) -> Work:
    """Wide to narrow with a scale that is known before: a product an element; clamping and rounding are free."""
    return Work(vector=batch)


@op("quantize_rows", "... c -> ... c", "rowwise")
def quantize_rows(batch: Any, c: Any) -> Work:
    """Wide to narrow with a scale a row: a maximum (comparisons), a division a row, a product an element."""
    return Work(vector=batch * (c + 1))
