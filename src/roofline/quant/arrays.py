"""Numbers of a user: numpy arrays or PyTorch tensors, and what comes back is of the same kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from roofline.ir.errors import ShapeError, UsageError, did_you_mean
from roofline.ir.text import shown
from roofline.ops.deviation import Deviation as Deviation
from roofline.ops.deviation import deviation_of
from roofline.ops.elements import Array


def array(x: Any, what: str = "an array") -> Array:
    """Return numbers as a numpy array in double precision.

    Args:
        x: An array, a PyTorch tensor of any format, or nested lists.
        what: Named in errors.

    Raises:
        UsageError: No numbers.
    """
    try:
        if hasattr(x, "detach"):
            x = x.detach().cpu()
            x = (x if x.is_complex() else x.double()).numpy()
        numbers = np.asarray(x)
        if np.iscomplexobj(numbers):
            raise TypeError
        return numbers.astype(np.float64, copy=False)
    except (TypeError, ValueError, NotImplementedError):  # the last of a meta tensor
        raise UsageError(f"{what}: expected an array of numbers, not {shown(x)}") from None


def finite(x: Array, what: str) -> Array:
    """Return numbers that are all finite.

    Raises:
        UsageError: Some are not.
    """
    if not np.isfinite(x).all():
        raise UsageError(f"{what}: {int((~np.isfinite(x)).sum())} of {x.size} numbers are not finite")
    return x


def check_given(weights: Mapping[str, Any], names: Iterable[str], program: str) -> None:
    """Refuse weights that lack some of a program's."""
    for name in names:
        if name not in weights:
            raise UsageError(f"{program}: weights has no numbers for {name!r}{did_you_mean(name, weights)}")


def is_whole(x: Any) -> bool:
    """Tell whether an array, or a tensor, is of a format of whole numbers or flags: packed codes, places, masks."""
    if hasattr(x, "is_floating_point"):
        return not x.is_floating_point()
    return getattr(getattr(x, "dtype", None), "kind", "f") in "iub"


def like(values: Array, x: Any) -> Any:
    """Return values as what ``x`` is: a tensor of its format and device, or the array itself."""
    if not hasattr(x, "detach"):
        return values
    import torch

    return torch.from_numpy(np.ascontiguousarray(values)).to(dtype=x.dtype, device=x.device)


def batches_of(x: Any, what: str = "batches") -> list[Array]:
    """Return one array, or several, as a list of arrays.

    Raises:
        UsageError: None at all.
    """
    several = isinstance(x, Iterable) and not hasattr(x, "shape")
    arrays = [array(each, what) for each in x] if several else [array(x, what)]
    arrays = [each for each in arrays if each.size]
    if not arrays:
        raise UsageError(f"{what}: there are none")
    return arrays


def listed(x: Any, what: str, of: str) -> list[Any]:
    """Return several things as a list; one array or one text is none.

    Raises:
        UsageError: Not several.
    """
    if not isinstance(x, Iterable) or isinstance(x, str | Mapping) or hasattr(x, "shape"):
        raise UsageError(f"{what}: expected several {of}, in a list, not {shown(x)}")
    return list(x)


def by_name(x: Any, what: str) -> Mapping[str, Any]:
    """Return a mapping of names.

    Raises:
        UsageError: Something else.
    """
    if not isinstance(x, Mapping) or not all(isinstance(name, str) for name in x):
        raise UsageError(f"{what}: expected arrays by name, not {shown(x)}")
    return x


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
