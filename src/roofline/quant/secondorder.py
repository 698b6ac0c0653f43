"""GPTQ (Frantar et al. 2022, arXiv:2210.17323): round column by column, and let the columns to come make up for it.

For a linear layer with weights W and calibration inputs X, the squared error of the outputs is quadratic in W with
Hessian ``H = 2 X^T X``. After a column is rounded, the rest moves by the error times the row of the inverse's Cholesky
factor (their equation 3 and algorithm 1); columns go in blocks, so that the rest is a matmul.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np

from roofline.ir.errors import ShapeError, UsageError
from roofline.ir.numbers import finite_number
from roofline.ir.sizes import one_of
from roofline.ops.elements import Array
from roofline.ops.rounding import (
    Axis,
    Format,
    Quantized,
    axes_of,
    decoded,
    encoded,
    rows_back,
    rows_of,
    scales,
    spread,
)  # fmt: skip
from roofline.quant.arrays import array, batches_of
from roofline.quant.formats import round_to
from roofline.quant.ranges import PERCENTILE, Method, Range, calibrate, within
from roofline.quant.words import as_format

Order = Literal["natural", "activation"]
_BLOCK = 128


def hessian(inputs: Any) -> Array:
    """Return ``2 X^T X / n`` of calibration inputs.

    Args:
        inputs: What a linear layer read: ``[..., in]``, one array or several.

    Returns:
        ``[in, in]``, in double precision.

    Raises:
        UsageError: No inputs.
        ShapeError: Batches of several widths.

    Example:
        >>> hessian([[1.0, 2.0], [3.0, 4.0]]).tolist()
        [[10.0, 14.0], [14.0, 20.0]]
    """
    is_nested = isinstance(inputs, list) and bool(inputs) and not hasattr(inputs[0], "shape")
    batches = batches_of([inputs] if is_nested else inputs, "inputs")
    widths = {each.shape[-1:] for each in batches}
    if len(widths) > 1 or () in widths:
        raise ShapeError(f"inputs: expected batches of one width, not of {sorted(widths)}")
    flat = [each.reshape(-1, each.shape[-1]) for each in batches]
    total: Array = sum(each.T @ each for each in flat)
    return 2.0 * total / sum(map(len, flat))


def gptq(
    weights: Any,
    inputs: Any = None,
    format: str | Format = "int4-g128",
    *,
    axis: Axis = -1,
    second: Any = None,
    damping: float = 0.01,
    order: Order = "natural",
    ranges: Method = "minmax",
    percentile: float = PERCENTILE,
) -> Quantized:
    """Round the weights of a linear layer so that its outputs on calibration inputs change least.

    Each row of the result is GPTQ's or the nearest rounding, whichever changes the outputs less, so that none is worse.

    Args:
        weights: ``[out, in]``, an array or a tensor.
        inputs: What the layer reads in calibration: ``[..., in]``, one array or several.
        format: A format or its name, as for :func:`as_format`.
        axis: The axis, or axes, of ``in``.
        second: A Hessian from :func:`hessian` instead of ``inputs``.
        damping: Share of the mean of the Hessian's diagonal that is added to it.
        order: Of columns: ``natural``, with scales of a group taken when its turn comes; ``activation``, those with the
            largest inputs first (act-order), with scales of the weights as they were.
        ranges: How scales are found, as for :func:`calibrate`.
        percentile: For these ranges, of the numbers that are within [%].

    Returns:
        The weights in the format.

    Raises:
        UnknownDType: No such format.
        UsageError: No inputs, numbers that are not finite, an unknown word.
        ShapeError: Inputs of another width than the weights.

    Example:
        >>> dice = np.random.default_rng(0)
        >>> w, x = dice.standard_normal((8, 64)), dice.standard_normal((256, 64)) @ dice.standard_normal((64, 64))
        >>> def error(q): return float((((q.values - w) @ x.T) ** 2).sum())
        >>> from roofline.quant import round_to
        >>> error(gptq(w, x, "int4-g32-sym")) < 0.5 * error(round_to(w, "int4-g32-sym"))
        True
    """
    _check_words(inputs is None and second is None, order, damping)
    whole = array(weights, "weights")
    axes = axes_of(axis, whole.ndim)
    rows = rows_of(whole, axes)
    form = as_format(format, rows.shape[-1])
    moment = checked_moment(hessian(inputs) if second is None else array(second, "second"), rows.shape[-1], "gptq")
    flat = rows.reshape(-1, rows.shape[-1])
    nearest = round_to(flat, form, within=within(flat, form, ranges, percentile=percentile))
    find = partial(calibrate, format=form, method=ranges, percentile=percentile)
    best = _better_rows(flat, moment, nearest, _by_column(flat, moment, nearest, damping, order, find))
    return replace(
        best, axis=axes, codes=rows_back(best.codes.reshape(rows.shape), whole.shape, axes),
        scale=_led(form, best.scale, rows.ndim, rows.shape[:-1]),
        zero=None if best.zero is None else _led(form, best.zero, rows.ndim, rows.shape[:-1]),
    )  # fmt: skip


def _check_words(blind: bool, order: str, damping: float) -> None:
    if blind:
        raise UsageError("gptq: give calibration inputs, or their second moment")
    one_of("order", order, get_args(Order))
    finite_number("damping", damping, 0.0, 1.0)


def checked_moment(moment: Array, width: int, where: str) -> Array:
    """Return a second moment of calibration inputs, refused where it does not go with rows of some width."""
    if moment.shape != (width, width):
        raise ShapeError(f"{where}: rows of {width} weights need inputs of that width, not {len(moment)}")
    if not np.isfinite(moment).all():
        raise UsageError(f"{where}: calibration inputs are not finite")
    return moment


def _led(form: Format, each: Array, ndim: int, lead: tuple[int, ...]) -> Array:
    """Give scales of flattened rows the axes that the rows had."""
    if form.per == "tensor":
        return each.reshape((1,) * ndim)
    return each if form.per == "block" else each.reshape(*lead, -1)


def _by_column(
    flat: Array, moment: Array, nearest: Quantized, damping: float, order: str, find: Callable[[Array], Range]
) -> Quantized:
    """Round column after column of ``[out, in]``, each with what the ones before it left to make up for.

    Columns lie as rows here, one after the other in memory.
    """
    form, width = nearest.format, flat.shape[1]
    turn = np.argsort(-np.diag(moment), kind="stable") if order == "activation" else np.arange(width)
    upper = _factor(moment[np.ix_(turn, turn)], damping)
    group = form.group if order == "natural" and form.per == "group" and form.group < width else width
    block = group * max(1, _BLOCK // group) if group < width else _BLOCK
    work, codes = np.ascontiguousarray(flat.T[turn]), np.empty(flat.T.shape, dtype=nearest.codes.dtype)
    scale, zero = nearest.scale.copy(), None if nearest.zero is None else nearest.zero.copy()
    wide, zeros = _of_columns(form, scale * nearest.tensor_scale, flat), _of_columns(form, zero, flat)
    for start in range(0, width, block):
        stop = min(start + block, width)
        errors = np.empty((stop - start, flat.shape[0]))
        for at in range(start, stop):
            if group < width and at % group == 0:
                limits = find(work[at : at + group].T)
                own, shift = scales(form, limits.low, limits.high, nearest.tensor_scale)
                place = slice(at // group, at // group + 1)
                scale[:, place], wide[at : at + group] = own, own.T * nearest.tensor_scale
                if zero is not None:
                    zero[:, place], zeros[at : at + group] = shift, shift.T  # type: ignore[union-attr]
            column = turn[at]
            both = wide[column], None if zero is None else zeros[column]
            codes[column] = encoded(form, work[at], *both)
            errors[at - start] = (work[at] - decoded(form, codes[column], *both)) / upper[at, at]
            work[at + 1 : stop] -= np.outer(upper[at, at + 1 : stop], errors[at - start])
        work[stop:] -= upper[start:stop, stop:].T @ errors
    return replace(nearest, codes=np.ascontiguousarray(codes.T), scale=scale, zero=zero)


def _of_columns(form: Format, each: Array | None, flat: Array) -> Array:
    """Return what belongs to each scale for every column, as rows; nothing of nothing."""
    if each is None:
        return np.empty(0)
    return np.array(np.broadcast_to(spread(form, each, flat.shape), flat.shape).T, order="C")


def _factor(moment: Array, damping: float) -> Array:
    """Return the upper Cholesky factor of the inverse, through that of the matrix read backwards."""
    damped = moment + np.eye(len(moment)) * damping * np.diag(moment).mean()
    still = np.diag(damped) == 0  # inputs that are always 0: any rounding will do, so the nearest
    damped[still, still] = 1.0
    try:
        lower = np.linalg.cholesky(damped[::-1, ::-1])
    except np.linalg.LinAlgError:
        raise UsageError(
            f"gptq: the inputs' second moment has no inverse at damping={damping:g}; raise damping"
        ) from None
    return np.linalg.inv(lower[::-1, ::-1])


def _better_rows(flat: Array, moment: Array, nearest: Quantized, other: Quantized) -> Quantized:
    """Take for each output the rounding whose squared error on the calibration inputs is smaller."""
    old, new = (output_error(each.values - flat, moment) for each in (nearest, other))
    take = (new < old)[:, None]
    own = nearest.format.per in ("channel", "group")  # a scale for each row; others are the same in both
    scale = np.where(take, other.scale, nearest.scale) if own else nearest.scale
    zero = np.where(take, other.zero, nearest.zero) if own and nearest.zero is not None else nearest.zero
    return replace(nearest, codes=np.where(take, other.codes, nearest.codes), scale=scale, zero=zero)


def output_error(change: Array, moment: Array) -> Array:
    """Return for each row of a change of weights the mean squared change of its output, twice."""
    return np.einsum("oi,oi->o", change @ moment, change)
