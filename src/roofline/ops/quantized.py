"""To and from narrow number formats: what quantised programs do around their matmuls.

A comparison, a rounding and a lookup count nothing, as everywhere; a scale is one multiplication per element, a zero
point one subtraction more. In numpy numbers are not rounded.
"""

from __future__ import annotations

from typing import Any

from roofline.ops.arrays import same
from roofline.ops.axes import broadcast_axes
from roofline.ops.registry import OPS, Op, Work, declare, per_element

#: Matmuls whose second operand has the summed axis last but one.
_COLUMNS = frozenset({"matmul", "bmm"})


def summed_axes(op: str, ndim: int) -> tuple[int, ...]:
    """Return the axes of an operator's weights that one output sums over: of convolutions, all but the first.

    Example:
        >>> summed_axes("linear", 2), summed_axes("matmul", 2)
        ((1,), (0,))
    """
    if OPS[op].kind == "conv":
        return tuple(range(1, ndim))
    return (ndim - 2 if op in _COLUMNS else ndim - 1,)


def _dequantized(batch: Any, flops: int = 1, elements: Any = None) -> Work:
    if elements is None:
        return Work(vector=flops * batch)
    return Work(vector=flops * elements, reads={0: elements}, writes=elements)


declare(Op(
    "dequantize", "..., * -> ...", "pointwise",
    "Narrow to wide: ``flops`` operations per element (scale, zero), of all or of the ``elements`` that are used.",
    _dequantized, same, rule=broadcast_axes,
))  # fmt: skip
declare(Op(
    "quantize", "..., * -> ...", "pointwise",
    "Wide to narrow with a scale known in advance: a multiplication per element; clamping and rounding are free.",
    per_element(1), same, rule=broadcast_axes,
))  # fmt: skip
declare(Op(
    "quantize_rows", "... c -> ... c", "rowwise",
    "Wide to narrow with a scale per row: a maximum (comparisons), a division per row, a multiplication per element.",
    lambda batch, c: Work(vector=batch * (c + 1)), same,
))  # fmt: skip
