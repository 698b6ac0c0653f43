"""Number formats carried out: arrays to codes with scales and zero points, and back, as :mod:`roofline.ir.dtypes` says.

==================  ==============================================================================================
``int8-g128-sym``   code times scale; one scale a group, or a row
``int4-g128-z4``    (code - zero point) times scale: a whole zero point, the range reaches to 0 (GPTQ, AWQ, ONNX)
``int4-g128``       (code - 8) times scale plus zero, both 16 bits: HQQ and tinygemm (PyTorch, int4mm.cu)
``fp8``             e4m3 with one scale; ``e5m2`` likewise
``mxfp8, mxfp4``    blocks of 32, scale 2^(floor(log2(largest magnitude)) - largest exponent of the element) (OCP
                    Microscaling v1.0, section 6.3)
``nvfp4``           blocks of 16, e4m3 scales, and one fp32 scale a tensor that puts the largest of them at 448
                    (NVIDIA, arXiv:2509.25149, appendix on the quantisation procedure)
``nf4, fp8-block``  levels of QLoRA over blocks of 64; e4m3 over 128 x 128
==================  ==============================================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from roofline.ir.dtypes import DTYPES, dtype
from roofline.ir.errors import ShapeError, UsageError, did_you_mean
from roofline.ops.elements import E2M1, E4M3, E5M2, NF4, Array, Element, Integer, integer

Axis = int | tuple[int, ...]
Per = Literal["tensor", "channel", "group", "block"]


@dataclass(frozen=True)
class Format:
    """How numbers are stored: their elements, who shares a scale, and the scale's own format.

    Attributes:
        name: As printed.
        element: What one element can be.
        per: Who shares a scale: a ``tensor``, a ``channel`` (all that one output sums over, or a row), a ``group``
            along it, or a square ``block`` of a matrix.
        group: Elements of a group, or along an edge of a block; 0 otherwise.
        scale: Format of the scale: ``fp32``, ``fp16``, ``bf16``, ``e8m0`` or ``e4m3``.
        zero: ``none`` (symmetric), ``integer`` zero points, or ``float`` ones.
        overhead: Bits of scale and zero point, together [bit].

    Example:
        >>> number_format("int4-g128-z4").zero, number_format("mxfp4").scale, number_format("fp8").element.largest
        ('integer', 'e8m0', 448.0)
    """

    name: str
    element: Element
    per: Per
    group: int = 0
    scale: str = "fp32"
    zero: Literal["none", "integer", "float"] = "none"
    overhead: int = 32

    def __str__(self) -> str:
        return self.name

    @property
    def symmetric(self) -> bool:
        """Tell whether there is no zero point."""
        return self.zero == "none"


@dataclass(frozen=True)
class Quantized:
    """An array in a format: codes, scales, zero points; ``np.asarray`` of it is what they stand for.

    From :func:`roofline.quant.round_to`.

    Attributes:
        format: The format.
        codes: Stored elements, in the array's shape: int8 of symmetric whole numbers, else uint8 (bit patterns, or
            places among levels).
        scale: One for each group, in the order of the array's other axes and then along the rounded ones.
        zero: Zero points likewise, or ``None``.
        axis: Axes that one output sums over; groups lie along them.
        tensor_scale: A scale of all the scales (nvfp4), else 1.
    """

    format: Format
    codes: Array
    scale: Array
    zero: Array | None
    axis: tuple[int, ...]
    tensor_scale: float = 1.0

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the array's shape."""
        return tuple(self.codes.shape)

    @cached_property
    def values(self) -> Array:
        """Return what is stored as numbers in double precision."""
        rows = rows_of(self.codes, self.axis)
        wide, zero = self.spread(self.scale * self.tensor_scale), None if self.zero is None else self.spread(self.zero)
        return rows_back(decoded(self.format, rows, wide, zero), self.shape, self.axis)

    @property
    def bits(self) -> int:
        """Return what it takes to store [bit]."""
        whole = 32 if self.format.scale == "e4m3" else 0
        return int(self.codes.size * self.format.element.bits + self.scale.size * self.format.overhead + whole)

    def spread(self, each: Array) -> Array:
        """Return what belongs to each scale so that it broadcasts over rows (:func:`rows_of`)."""
        return spread(self.format, each, rows_of(self.codes, self.axis).shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.asarray(self.values, dtype=dtype)


# --- rows: the rounded axes last, as one -----------------------------------------------------------------------------


def axes_of(axis: Axis, ndim: int) -> tuple[int, ...]:
    """Return axes counted from 0, refused where there are none such.

    Raises:
        ShapeError: An axis that the array has not.
    """
    axes = axis if isinstance(axis, tuple | list) else (axis,)
    if not axes or any(type(each) is not int or not -ndim <= each < ndim for each in axes):
        raise ShapeError(f"axis={axis!r}: the array has {ndim} axes")
    return tuple(sorted({each % ndim for each in axes}))


def rows_of(x: Array, axis: tuple[int, ...]) -> Array:
    """Return an array with some axes last, as one."""
    moved = np.moveaxis(x, axis, range(-len(axis), 0))
    return moved.reshape(*moved.shape[: moved.ndim - len(axis)], -1)


def rows_back(rows: Array, shape: tuple[int, ...], axis: tuple[int, ...]) -> Array:
    """Undo :func:`rows_of`."""
    others = tuple(size for at, size in enumerate(shape) if at not in axis)
    moved = rows.reshape(*others, *(shape[at] for at in axis))
    return np.moveaxis(moved, range(-len(axis), 0), axis)


def spread(form: Format, each: Array, shape: tuple[int, ...]) -> Array:
    """Return what belongs to each scale, repeated for rows of a shape."""
    if form.per == "group":
        return np.repeat(each, form.group, axis=-1)[..., : shape[-1]]
    if form.per == "block":
        wide = np.repeat(np.repeat(each, form.group, axis=-2), form.group, axis=-1)
        return wide[..., : shape[-2], : shape[-1]]
    return each


def shared(form: Format, rows: Array, reduce: np.ufunc) -> Array:
    """Reduce (``np.maximum``, ``np.minimum``, ``np.add``) over all that share a scale."""
    if form.per == "tensor":
        return np.asarray(reduce.reduce(rows, axis=None)).reshape((1,) * rows.ndim)
    if form.per == "channel":
        return reduce.reduce(rows, axis=-1, keepdims=True)
    if form.per == "block":
        rows = reduce.reduceat(rows, range(0, rows.shape[-2], form.group), axis=-2)
    return reduce.reduceat(rows, range(0, rows.shape[-1], form.group), axis=-1)


# --- scales ----------------------------------------------------------------------------------------------------------


def scales(form: Format, low: Array, high: Array, tensor_scale: float = 1.0) -> tuple[Array, Array | None]:
    """Return scales and zero points for ranges of numbers, rounded to the formats that they are stored in."""
    largest = np.maximum(np.abs(low), np.abs(high))
    if form.symmetric:
        return _stored_scale(form, largest / (form.element.largest * tensor_scale), largest), None
    if form.zero == "integer":  # 0 is stored exactly
        low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    steps = form.element.largest
    scale = _stored_scale(form, (high - low) / steps, largest)
    if form.zero == "integer":
        return scale, np.clip(np.rint(-low / scale), 0, steps)
    middle = (steps + 1) / 2
    return scale, _rounded_scale(form.scale, low + middle * scale)


def whole_scale(form: Format, largest: float) -> float:
    """Return the scale of a whole tensor with a largest magnitude: nvfp4 has one, others 1."""
    if form.scale != "e4m3":
        return 1.0
    return float(_rounded_scale("fp32", np.asarray(largest / (form.element.largest * E4M3.largest)))) or 1.0


def _stored_scale(form: Format, exact: Array, largest: Array) -> Array:
    """Round a scale to its format; what is all 0 has scale 1, and no scale becomes 0.

    Equal numbers with a zero point have the smallest scale, so that the zero point says what they are; gpt-fast clamps
    the range likewise (https://github.com/pytorch-labs/gpt-fast/blob/main/quantize.py, ``get_group_qparams``).
    """
    if form.scale == "e8m0":
        emax = np.frexp(form.element.largest)[1] - 1
        power = np.frexp(largest)[1] - 1 - emax
        return np.where(largest > 0, np.ldexp(1.0, np.clip(power, -127, 127)), 1.0)
    tiny = _SMALLEST[form.scale]
    return np.where(largest > 0, np.maximum(_rounded_scale(form.scale, exact), tiny), 1.0)


#: Smallest number that a scale can be.
_SMALLEST = {"fp32": 2.0**-126, "bf16": 2.0**-126, "fp16": 2.0**-24, "e4m3": 2.0**-9}


def _rounded_scale(name: str, x: Array) -> Array:
    if name == "e4m3":
        return E4M3.decode(E4M3.encode(x))
    with np.errstate(over="ignore"):
        rounded = np.asarray(x).astype(np.float16 if name == "fp16" else np.float32)
        if name == "bf16":  # the upper half of fp32, rounded to even
            bits = rounded.view(np.uint32).astype(np.uint64)
            rounded = (bits + 0x7FFF + (bits >> 16 & 1) >> 16 << 16).astype(np.uint32).view(np.float32)
    if np.isinf(rounded).any():
        raise UsageError(
            f"a scale or zero point of {np.abs(x).max():.3g} is beyond {name}, which it is stored in; scale the "
            "numbers down, or take a format with fp32 scales, such as int8-tensor"
        )
    return rounded.astype(np.float64)


# --- codes -----------------------------------------------------------------------------------------------------------


def encoded(form: Format, x: Array, scale: Array, zero: Array | None) -> Array:
    """Return the codes nearest to numbers; scales and zero points broadcast."""
    if zero is None:
        return form.element.encode(x / scale)
    if form.zero == "integer":
        return form.element.encode(np.rint(x / scale) + zero)
    return form.element.encode((x - zero) / scale + (form.element.largest + 1) / 2)


def decoded(form: Format, codes: Array, scale: Array, zero: Array | None) -> Array:
    """Return what codes stand for; scales and zero points broadcast."""
    plain = form.element.decode(codes)
    if zero is None:
        return plain * scale
    if form.zero == "integer":
        return (plain - zero) * scale
    return (plain - (form.element.largest + 1) / 2) * scale + zero


def round_rows(form: Format, rows: Array, low: Array | None = None, high: Array | None = None) -> tuple[Any, ...]:
    """Return codes, scales, zero points and the tensor's scale of rows, for their own ranges or given ones."""
    low = shared(form, rows, np.minimum) if low is None else low
    high = shared(form, rows, np.maximum) if high is None else high
    tensor_scale = whole_scale(form, float(max(np.abs(low).max(initial=0.0), np.abs(high).max(initial=0.0))))
    scale, zero = scales(form, low, high, tensor_scale)
    wide = spread(form, scale * tensor_scale, rows.shape)
    codes = encoded(form, rows, wide, None if zero is None else spread(form, zero, rows.shape))
    return codes, scale, zero, tensor_scale


def quantized(
    x: Array, form: Format, axis: Axis = -1, low: Array | None = None, high: Array | None = None
) -> Quantized:
    """Round an array to a format.

    Args:
        x: Finite numbers.
        form: The format.
        axis: The axis, or axes, that one output sums over.
        low: Smallest number of each group instead of that of the array.
        high: Largest number of each group.

    Raises:
        UsageError: Numbers that are not finite, or groups that do not divide the rows.
        ShapeError: No such axis.
    """
    x = np.asarray(x, dtype=np.float64)
    if not np.isfinite(x).all():
        raise UsageError(
            f"{form}: {int((~np.isfinite(x)).sum())} of {x.size} numbers are not finite; nothing to round to"
        )
    axes = axes_of(axis, x.ndim)
    if not x.size:
        raise UsageError(f"{form}: an array of shape {list(x.shape)} has no numbers to round")
    rows = rows_of(x, axes)
    if form.per == "block" and rows.ndim < _MATRIX:
        raise UsageError(f"{form}: square blocks need a matrix, not a vector of {x.size}")
    if form.per == "group" and rows.shape[-1] % form.group:
        raise UsageError(f"{form}: groups of {form.group} do not divide rows of {rows.shape[-1]}")
    codes, scale, zero, tensor_scale = round_rows(form, rows, low, high)
    return Quantized(form, rows_back(codes, x.shape, axes), scale, zero, axes, tensor_scale)


# --- names -----------------------------------------------------------------------------------------------------------

_GROUPED = re.compile(r"(int[2-8]|nf4|fp4|fp8)-g(\d+)-(sym|z(\d+))(?:-s(\d+))?")
_BITS = {"fp32": 32, "fp16": 16, "bf16": 16, "e8m0": 8, "e4m3": 8}
_SCALES = {8: "e4m3", 16: "fp16", 32: "fp32"}
_ELEMENTS: dict[str, Element] = {"nf4": NF4, "fp4": E2M1, "fp8": E4M3}
#: Formats of the table that their names do not describe: as grouped names, and what differs.
_NAMED: dict[str, tuple[str, dict[str, Any]]] = {
    "int4-g32": ("int4-g32-z16", {"scale": "bf16"}), "int4-g32-sym": ("int4-g32-sym", {}),
    "int4-g64": ("int4-g64-z16", {}), "int4-g128": ("int4-g128-z16", {}), "int8-g128": ("int8-g128-sym", {}),
    "q8_0": ("int8-g32-sym", {}), "nf4": ("nf4-g64-sym-s32", {}), "mxfp8": ("fp8-g32-sym-s8", {"scale": "e8m0"}),
    "mxfp4": ("fp4-g32-sym-s8", {"scale": "e8m0"}), "nvfp4": ("fp4-g16-sym-s8", {}),
    "fp8-block": ("fp8-g128-sym-s32", {"per": "block"}),
}  # fmt: skip


@lru_cache(maxsize=512)
def number_format(name: str, per: Per | None = None, symmetric: bool | None = None) -> Format:
    """Return a format that numbers can be rounded to.

    Args:
        name: As everywhere: ``int8``, ``int4-g128``, ``int3-g64-z3``, ``fp8``, ``mxfp4``, ``nvfp4``, ``nf4``. Words
            after it say more: ``-e5m2`` fp8 with 5 bits of exponent, ``-tensor`` one scale for all, ``-asym`` a zero
            point.
        per: Who shares a scale in formats whose name does not say: ``channel`` by default, or ``tensor``.
        symmetric: Whether whole numbers have no zero point; by default as the name says, and without one where it
            does not.

    Returns:
        The format.

    Raises:
        UnknownDType: No such format.
        UsageError: One that nothing says how to round to, or a ``per`` that its name contradicts.

    Example:
        >>> print(number_format("int8-tensor", symmetric=False))
        int8-tensor-asym
    """
    words = name.strip().lower().split("-")
    five, asym, whole = (words[1:].count(suffix) for suffix in ("e5m2", "asym", "tensor"))
    base = "-".join(word for at, word in enumerate(words) if not at or word not in _SUFFIXES)
    form = _by_name(dtype(base).name)
    if five or base == "e5m2":
        form = _five(form)
    if (whole and per is None) or (per is not None and per != form.per):
        form = _whole(form, name, per or "tensor")
    if asym and symmetric is None:
        symmetric = False
    return form if symmetric in (None, form.symmetric) else _with_zero(form, bool(symmetric))


_SUFFIXES = frozenset({"e5m2", "asym", "tensor"})


def _five(form: Format) -> Format:
    if form.element is not E4M3:
        raise UsageError(f"{form}-e5m2: only fp8 formats come with 5 bits of exponent")
    return replace(form, name=f"{form.name}-e5m2", element=E5M2)


def _whole(form: Format, name: str, per: str) -> Format:
    if form.per != "channel" or per != "tensor":
        raise UsageError(
            f"{name!r} has a scale per {form.per}, not per {per}; allowed: per='channel' or 'tensor' of int8, int4, fp8"
        )
    return replace(form, name=f"{form.name}-tensor", per="tensor")


def _with_zero(form: Format, symmetric: bool) -> Format:
    if not isinstance(form.element, Integer):
        raise UsageError(f"{form}: only whole numbers have zero points")
    bits, scale = form.element.bits, _BITS[form.scale]
    if symmetric:
        name = f"int{bits}-g{form.group}-sym" if form.group else form.name.removesuffix("-asym")
        return replace(form, name=name, element=integer(bits, True), zero="none", overhead=scale)
    name = f"int{bits}-g{form.group}-z{bits}" if form.group else f"{form.name}-asym"
    return replace(form, name=name, element=integer(bits, False), zero="integer", overhead=scale + bits)


def format_of(name: str, per: Per = "channel") -> Format | None:
    """Return the format of a tensor of a program; ``None`` of one that is not rounded to: wider, flags, sparse.

    Args:
        name: Its number format.
        per: Who shares a scale where the format says nothing of scales: each ``channel``, or the ``tensor``.

    Example:
        >>> print(format_of("int8-g64-sym"), format_of("fp8", "tensor"), format_of("bf16"))
        int8-g64-sym fp8-tensor None
    """
    entry = DTYPES[name]
    if entry.bits > _WIDEST or name in ("bool", "b1") or name.endswith("-2:4"):
        return None
    form = number_format(name)
    return number_format(name, per=per) if form.per == "channel" else form


#: What is narrow enough to be rounded to [bit].
_WIDEST = 8
_MATRIX = 2


def _by_name(name: str) -> Format:
    described, other = _NAMED.get(name, (name, {}))
    match = _GROUPED.fullmatch(described)
    if match is None:
        return _plain(name)
    stored, group, _, zero, scale = match.groups()
    element = _ELEMENTS.get(stored) or integer(int(stored[-1]), zero is None)
    kind: Any = "none" if zero is None else "float" if int(zero) >= 16 else "integer"
    form = Format(
        name, element, "group", int(group), _SCALES[int(scale or 16)], kind, int(scale or 16) + int(zero or 0)
    )
    return replace(form, **other)


def _plain(name: str) -> Format:
    element = {"int8": integer(8, True), "int4": integer(4, True), "fp8": E4M3, "fp4": E2M1}.get(name)
    if element is None:
        allowed = ["int8", "int4", "fp8", *_NAMED, "int3-g64-z3"]
        raise UsageError(
            f"{name!r}: no rounding is defined; allowed: {', '.join(allowed)}" + did_you_mean(name, allowed)
        )
    return Format(name, element, "channel")
