"""Matmuls of quantised arrays that are exact in their integers.

Products of codes are added up as whole numbers; scales come afterwards, once per block that has one of its own:

    sum_k (a_k - za) sa (b_k - zb) sb  =  sa sb [ sum a b - za sum b - zb sum a + K za zb ]

Sums run through float64, which holds whole numbers below 2^53 exactly, and are checked against what int32 holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from roofline.ir.errors import ShapeError, UsageError
from roofline.ir.text import shown
from roofline.ops.elements import Array, Element, Float, Integer
from roofline.ops.rounding import Quantized, rows_of

_INT32, _EXACT = 2**31, 2**53


@dataclass(frozen=True)
class Product:
    """A matmul of two quantised arrays.

    From :func:`roofline.quant.matmul`.

    Attributes:
        accumulators: What the units add up, products of codes, for each block with scales of its own:
            ``[..., blocks, n]``; int32 of whole numbers, int64 of floats, in multiples of ``unit``.
        integers: The same with zero points taken off.
        scale: Of each of the integers, broadcasting.
        offset: What zero points that are no whole numbers add, or 0.
        unit: What one of the integers stands for before scales: 1, of floats the product of their smallest numbers.
    """

    accumulators: Array
    integers: Array
    scale: Array
    offset: Array | float
    unit: float

    @cached_property
    def values(self) -> Array:
        """The product as numbers: integers times scales, summed over blocks, in double precision."""
        return np.asarray((self.integers * self.unit * self.scale).sum(axis=-2) + self.offset)


def matmul(a: Quantized, b: Quantized) -> Product:
    """Multiply activations ``[..., k]`` by weights ``[n, k]`` as the units do: codes first, scales afterwards.

    Args:
        a: Activations; rounded along their last axis.
        b: Weights; ``[n, k]`` rounded along the last axis, or ``[k, n]`` along the first.

    Returns:
        Accumulators, integers and scales; ``.values`` is ``[..., n]``.

    Raises:
        ShapeError: Rows of different lengths, or blocks that do not divide each other.
        UsageError: Elements that are no multiples of one number (nf4), square blocks, or sums beyond int32.

    Example:
        >>> from roofline.quant import round_to
        >>> a, b = round_to([[1.0, -2.0], [3.0, 0.5]], "int8"), round_to([[4.0, 1.0]], "int8")
        >>> matmul(a, b).integers.tolist()
        [[[4064]], [[16801]]]
    """
    for each, what in ((a, "a"), (b, "b")):
        if not isinstance(each, Quantized):
            raise UsageError(f"matmul: {what} is {shown(each)}; expected what round_to returns")
    left, right = rows_of(a.codes, a.axis), rows_of(b.codes, b.axis)
    length = left.shape[-1]
    if length != right.shape[-1]:
        raise ShapeError(f"matmul: rows of {length} against rows of {right.shape[-1]}")
    groups = [each.format.group if each.format.per == "group" else length for each in (a, b)]
    width = min(groups)
    if max(groups) % width:
        raise ShapeError(f"matmul: blocks of {groups[0]} and of {groups[1]} do not divide each other")
    x, y = (_blocks(each, rows, width) for each, rows in ((a, left), (b, right)))
    x, y = _Blocks(x.codes, *(each[..., None] for each in x.of_rows)), _Blocks(y.codes, *(each.T for each in y.of_rows))
    sums = np.moveaxis(np.matmul(x.codes, np.swapaxes(y.codes, 1, 2)), 0, 1)
    whole = sums - x.zero * y.total - y.zero * x.total + width * x.zero * y.zero
    units = _unit(a.format.element), _unit(b.format.element)
    x_sum, y_sum = (
        (each.total - width * each.zero) * each.scale * unit for each, unit in zip((x, y), units, strict=True)
    )
    offset = (x_sum * y.shift + x.shift * y_sum + width * x.shift * y.shift).sum(axis=-2)
    kind = np.int32 if units == (1, 1) else np.int64
    _check(x.codes, y.codes, sums, whole, kind)
    lead = left.shape[:-1]
    sums, whole = (each.astype(kind).reshape(*lead, *each.shape[1:]) for each in (sums, whole))
    scale = x.scale * y.scale
    return Product(sums, whole, scale.reshape(*lead, *scale.shape[1:]), offset.reshape(*lead, -1), units[0] * units[1])


@dataclass(frozen=True)
class _Blocks:
    """Codes as whole numbers, ``[blocks, rows, width]``, and what each block has: its sum, scale, zero point, shift."""

    codes: Array
    total: Array
    scale: Array
    zero: Array
    shift: Array

    @property
    def of_rows(self) -> tuple[Array, Array, Array, Array]:
        return self.total, self.scale, self.zero, self.shift


def _blocks(q: Quantized, rows: Array, width: int) -> _Blocks:
    if q.format.per == "block":
        raise UsageError(f"{q.format}: square blocks have scales along both axes; round to fp8-g128-sym-s32 instead")
    codes = (q.format.element.decode(rows) / _unit(q.format.element)).reshape(-1, rows.shape[-1] // width, width)

    def each(values: Array) -> Array:
        return np.broadcast_to(q.spread(values), rows.shape).reshape(codes.shape)[..., 0]

    scale, none = each(q.scale * q.tensor_scale), np.zeros(codes.shape[:2])
    zero, shift = none, none
    if q.zero is not None and q.format.zero == "integer":
        zero = each(q.zero)
    elif q.zero is not None:
        zero, shift = none + (q.format.element.largest + 1) / 2, each(q.zero)
    return _Blocks(np.moveaxis(codes, 1, 0), codes.sum(axis=-1), scale, zero, shift)


def _unit(element: Element) -> float:
    """Return the number that all of an element's are multiples of."""
    if isinstance(element, Float):
        return float(2.0 ** (1 - element.bias - element.mantissa))
    if isinstance(element, Integer):
        return 1.0
    raise UsageError(f"{element.name}: its levels are no multiples of one number; dequantise it (.values)")


def _check(x: Array, y: Array, sums: Array, whole: Array, kind: type) -> None:
    """Refuse what the accumulators would not hold."""
    if kind is np.int32:
        most = max(float(np.abs(each).max(initial=0.0)) for each in (sums, whole))
        if most >= _INT32:
            raise UsageError(f"matmul: a sum of {x.shape[-1]} products reaches {most:.4g}, beyond int32; use groups")
    elif float(np.abs(x).max(initial=0.0)) * float(np.abs(y).max(initial=0.0)) * x.shape[-1] >= _EXACT:
        raise UsageError(f"matmul: sums of {x.shape[-1]} products of these floats are not exact; use groups or e4m3")
