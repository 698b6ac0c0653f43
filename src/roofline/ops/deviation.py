"""How far numbers are from those that they stand for: SQNR, cosine, the largest error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roofline.ops.elements import Array


@dataclass(frozen=True, slots=True)
class Deviation:
    """The error of an array against what it stands for.

    From :func:`roofline.quant.deviation`.

    Attributes:
        sqnr_db: Signal to quantisation noise: ``10 log10(sum x^2 / sum (x' - x)^2)``; infinite where they agree [dB].
        cosine: Of the angle between both.
        largest: The largest error over the largest magnitude.
    """

    sqnr_db: float
    cosine: float
    largest: float

    def row(self) -> dict[str, float]:
        """Return the figures by name."""
        return {"sqnr_db": self.sqnr_db, "cosine": self.cosine, "largest_error": self.largest}


def deviation_of(before: Array, after: Array) -> Deviation:
    """Compare two arrays of one shape; what is the same infinity, or NaN, in both is left out."""
    finite = np.isfinite(before) & np.isfinite(after)
    if not np.array_equal(before[~finite], after[~finite], equal_nan=True):
        return Deviation(-np.inf, float("nan"), np.inf)
    if before.size and np.isnan(before).all():
        return Deviation(float("nan"), float("nan"), float("nan"))
    x, y = before[finite], after[finite]
    power = np.frexp(max(np.abs(x).max(initial=0.0), np.abs(y).max(initial=0.0)))[1]
    x, y = (each * 2.0 ** min(-int(power), 1000) for each in (x, y))  # so that no square overflows
    signal, noise = float((x * x).sum()), float(((y - x) ** 2).sum())
    return Deviation(decibels(signal, noise), _cosine(x, y), _largest(x, y))


def decibels(signal: float, noise: float) -> float:
    """Return ``10 log10(signal / noise)``, with its limits [dB].

    Example:
        >>> decibels(100.0, 1.0), decibels(0.0, 0.0), decibels(0.0, 1.0)
        (20.0, inf, -inf)
    """
    if noise <= 0:
        return float("inf")
    return float(10 * np.log10(signal / noise)) if signal > 0 else float("-inf")


def _cosine(x: Array, y: Array) -> float:
    length = float(np.sqrt((x * x).sum()) * np.sqrt((y * y).sum()))
    return float((x * y).sum()) / length if length else float(np.array_equal(x, y))


def _largest(x: Array, y: Array) -> float:
    return float(np.abs(x - y).max(initial=0.0) / (np.abs(x).max(initial=0.0) or 1.0))
