"""Compare arrays before and after."""

from __future__ import annotations

from typing import Any

from roofline.ir.errors import ShapeError
from roofline.ops.deviation import Deviation, deviation_of
from roofline.quant.arrays import array

__all__ = ["Deviation", "deviation"]


def deviation(before: Any, after: Any) -> Deviation:
    """Measure the error of an array against what it stands for.

    Args:
        before: Numbers: an array or a tensor.
        after: The same, rounded.

    Returns:
        SQNR [dB], cosine and largest error.

    Raises:
        ShapeError: Arrays of different shapes.
        UsageError: No numbers.

    Example:
        >>> deviation([3.0, 4.0], [3.0, 4.5]).sqnr_db
        20.0
    """
    x, y = array(before, "before"), array(after, "after")
    if x.shape != y.shape:
        raise ShapeError(f"deviation: {list(x.shape)} against {list(y.shape)}")
    return deviation_of(x, y)
