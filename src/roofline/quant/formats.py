"""Round arrays to number formats: the words of :func:`roofline.passes.quantize`, carried out."""

from __future__ import annotations

from typing import Any

import numpy as np

from roofline.ir.errors import ShapeError, UsageError
from roofline.ir.text import shown
from roofline.ops.rounding import Axis, Format, Quantized, axes_of, number_format, quantized, rows_of, shared
from roofline.quant.arrays import array, like
from roofline.quant.ranges import Range
from roofline.quant.words import as_format

__all__ = ["Format", "Quantized", "as_format", "fake", "number_format", "round_to"]


def round_to(x: Any, format: str | Format, axis: Axis = -1, *, within: Range | None = None) -> Quantized:
    """Round an array to a format: codes, scales and zero points.

    Args:
        x: Numbers: a numpy array or a PyTorch tensor.
        format: A format or its name, as for :func:`as_format`.
        axis: The axis, or axes, that one output sums over: groups and rows lie along them. The last one of a linear
            layer's weights and of activations, ``(1, 2, 3)`` of a convolution's.
        within: Ranges from :func:`calibrate`; numbers beyond are clipped. By default each group's own.

    Returns:
        The array in the format; ``.values`` are numbers again.

    Raises:
        UnknownDType: No such format.
        UsageError: Numbers that are not finite, or groups that do not divide the rows.
        ShapeError: No such axis, or ranges of other groups.

    Example:
        >>> q = round_to([[-1.0, 0.5, 2.0, 0.0]], "int8")
        >>> q.codes.tolist(), q.scale.round(4).tolist()
        ([[-64, 32, 127, 0]], [[0.0157]])
    """
    numbers = array(x, "round_to")
    axes = axes_of(axis, numbers.ndim)
    row = 1
    for each in axes:
        row *= numbers.shape[each]
    form = as_format(format, row)
    if within is None:
        result = quantized(numbers, form, axes)
        if numbers.any() and not result.values.any():
            raise UsageError(
                f"{form}: the largest number, {abs(numbers).max():.3g}, rounds to 0 in the smallest scale of "
                f"{form.scale}; scale the numbers up, or take int8-tensor, whose scale is fp32"
            )
        return result
    _check_range(within, form, rows_of(numbers, axes))
    return quantized(numbers, form, axes, within.low, within.high)


def _check_range(within: Any, form: Format, rows: Any) -> None:
    if not isinstance(within, Range):
        raise UsageError(f"within={shown(within)}: expected a range from calibrate")
    ranges, scales = np.shape(within.low), np.shape(shared(form, rows, np.maximum))
    if np.size(within.low) != 1 and ranges != scales:
        raise ShapeError(f"within: ranges of shape {list(ranges)}; {form} has {list(scales)} scales here")


def fake(x: Any, format: str | Format, axis: Axis = -1, *, within: Range | None = None) -> Any:
    """Round an array to a format and back.

    Args:
        x: Numbers: a numpy array or a PyTorch tensor.
        format: A format or its name, as for :func:`as_format`.
        axis: The axis, or axes, that one output sums over.
        within: Ranges from :func:`calibrate`.

    Returns:
        The nearest numbers that the format has, as an array in double precision, or a tensor like the one given.

    Raises:
        UnknownDType: No such format.
        UsageError: Numbers that are not finite, or groups that do not divide the rows.
        ShapeError: No such axis.

    Example:
        >>> fake([0.3, 5.1, -7.0, 100.0] * 8, "mxfp4")[:4].tolist()
        [0.0, 8.0, -8.0, 96.0]
    """
    return like(round_to(x, format, axis, within=within).values, x)
