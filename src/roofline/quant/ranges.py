"""Ranges of numbers from calibration batches: extremes, percentiles, or the clip with the least squared error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from roofline.ir.errors import UsageError
from roofline.ir.numbers import finite_number
from roofline.ir.sizes import one_of
from roofline.ir.text import shown
from roofline.ops.elements import Array
from roofline.ops.rounding import Axis, Format, axes_of, quantized, rows_of, shared
from roofline.quant.arrays import array, batches_of, finite
from roofline.quant.words import as_format

Method = Literal["minmax", "percentile", "mse"]
#: Of the numbers, that are within [%].
PERCENTILE = 99.9
#: Shares of the full range that the least squared error is searched among.
_CLIPS = np.linspace(1.0, 0.2, 81)


@dataclass(frozen=True)
class Range:
    """Smallest and largest number that a format has to hold, for each that has a scale of its own.

    From :func:`roofline.quant.calibrate`.

    Attributes:
        low: Smallest numbers.
        high: Largest numbers.
    """

    low: Array
    high: Array

    def __post_init__(self) -> None:
        for end in ("low", "high"):
            object.__setattr__(self, end, finite(array(getattr(self, end), end), f"a range's {end}"))
        if np.shape(self.low) != np.shape(self.high) or (self.low > self.high).any():
            raise UsageError(
                f"a range from {shown(self.low)} to {shown(self.high)}: expected as many numbers, from low to high"
            )


def calibrate(
    batches: Any, format: str | Format, method: Method = "minmax", *, axis: Axis = -1, percentile: float = PERCENTILE
) -> Range:
    """Find the range that numbers are rounded within.

    Args:
        batches: An array or a tensor, or several with the same axes: what a tensor was in each calibration batch.
            Several need a format with one scale a tensor.
        format: What they will be rounded to: ``int8-tensor``, ``int8-tensor-asym``, ``fp8-tensor``, ``int4-g128``, ...
        method: ``minmax``; ``percentile``, which leaves out the largest magnitudes, with a zero point as many numbers
            at either end; ``mse``, the clip that rounds with the least squared error, out of 81 between the whole range
            and a fifth of it.
        axis: The axis, or axes, that groups and rows lie along.
        percentile: Of the numbers, that are within [%].

    Returns:
        The range, for :func:`round_to`.

    Raises:
        UnknownDType: No such format.
        UsageError: No numbers, some that are not finite, several batches for several scales, an unknown method or a
            percentile out of range.

    Example:
        >>> import numpy as np
        >>> r = calibrate([np.array([1.0, -3.0]), np.array([2.0, 0.5])], "int8-tensor-asym")
        >>> r.low.item(), r.high.item()
        (-3.0, 2.0)
    """
    one_of("method", method, _METHODS)
    percentile = finite_number("percentile", percentile, 50.0, 100.0, above=True)
    arrays = [finite(each, "calibrate") for each in batches_of(batches)]
    rows = [rows_of(each, axes_of(axis, each.ndim)) for each in arrays]
    form = as_format(format, rows[0].shape[-1])
    if len(rows) > 1 and form.per != "tensor":
        raise UsageError(f"{form}: several batches have one range for all; use a format with -tensor, or one array")
    whole = rows[0] if len(rows) == 1 else np.concatenate([each.ravel() for each in rows])[None]
    return _METHODS[method](form, whole, percentile)


def within(x: Array, form: Format, method: Method, axis: Axis = -1, percentile: float = PERCENTILE) -> Range | None:
    """Return the range to round within; ``None`` for the whole one, which rounding finds by itself."""
    return None if method == "minmax" else calibrate(x, form, method, axis=axis, percentile=percentile)


def _minmax(form: Format, rows: Array, percentile: float = 100.0) -> Range:
    return Range(shared(form, rows, np.minimum), shared(form, rows, np.maximum))


def _percentile(form: Format, rows: Array, percentile: float) -> Range:
    if form.per == "block":
        raise UsageError(f"{form}: percentiles go along rows; use method='mse'")
    if form.per == "group":
        rows = rows.reshape(*rows.shape[:-1], -1, form.group)
    axis = None if form.per == "tensor" else -1
    cut = (100 - percentile) / 2  # at either end
    if form.symmetric:
        high = np.percentile(np.abs(rows), percentile, axis=axis, keepdims=form.per != "group")
        return Range(-high, high)
    low, high = np.percentile(rows, [cut, 100 - cut], axis=axis, keepdims=form.per != "group")
    return Range(low, high)


def _mse(form: Format, rows: Array, percentile: float = 100.0) -> Range:
    """Try every clip for all groups at once, and take for each the best."""
    full = _minmax(form, rows)
    least, best = np.full(np.shape(full.low), np.inf), np.ones(np.shape(full.low))
    for clip in _CLIPS:
        values = quantized(rows, form, -1, full.low * clip, full.high * clip).values
        error = shared(form, (values - rows) ** 2, np.add)
        best = np.where(error < least, clip, best)
        least = np.minimum(error, least)
    return Range(full.low * best, full.high * best)


_METHODS = {"minmax": _minmax, "percentile": _percentile, "mse": _mse}
