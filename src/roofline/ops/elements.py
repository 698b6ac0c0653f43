"""What one stored element can be: whole numbers, floats of a few bits, a table of levels; vectorised in numpy.

An element rounds numbers that are already divided by their scale: to the nearest it has, halves to the even code,
beyond its largest to the largest (saturation). Codes are what is stored.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

Array = Any


@dataclass(frozen=True)
class Element(ABC):
    """An element of a number format.

    Attributes:
        name: What it is called.
        bits: Stored bits [bit].
        largest: What a scale maps the largest magnitude of a group to.
    """

    name: str
    bits: int
    largest: float

    @abstractmethod
    def encode(self, x: Array) -> Array:
        """Return the codes of the nearest elements, as int8 (whole numbers with a sign) or uint8."""

    @abstractmethod
    def decode(self, codes: Array) -> Array:
        """Return what codes stand for, in double precision."""


@dataclass(frozen=True)
class Integer(Element):
    """Whole numbers, with a sign (``low`` below 0) or from 0."""

    low: int
    high: int

    def encode(self, x: Array) -> Array:
        """Round halves to even and clip."""
        return np.clip(np.rint(x), self.low, self.high).astype(np.int8 if self.low < 0 else np.uint8)

    def decode(self, codes: Array) -> Array:
        """Return the numbers themselves."""
        return np.asarray(codes, dtype=np.float64)


@dataclass(frozen=True)
class Levels(Element):
    """A table of levels: a code is a place in it.

    Attributes:
        levels: In the order of their codes.
    """

    levels: tuple[float, ...]

    @cached_property
    def _sorted(self) -> tuple[Array, Array, Array]:
        """Codes in ascending order of what they stand for, the middles between those, and whether a middle goes up."""
        levels = np.asarray(self.levels)
        codes = np.argsort(levels, kind="stable")
        codes = codes[np.concatenate([[True], np.diff(levels[codes]) > 0])]
        middles = (levels[codes][1:] + levels[codes][:-1]) / 2
        return codes.astype(np.uint8), middles, codes[1:] % 2 == 0

    def encode(self, x: Array) -> Array:
        """Take the nearest level; half-way, the one with the even code."""
        codes, middles, upwards = self._sorted
        x = np.asarray(x, dtype=np.float64)
        places = np.searchsorted(middles, x)  # a middle itself counts as below
        tie = places < len(middles)
        tie &= middles[np.minimum(places, len(middles) - 1)] == x
        return codes[places + (tie & upwards[np.minimum(places, len(middles) - 1)])]

    def decode(self, codes: Array) -> Array:
        """Look the levels up."""
        return np.asarray(self.levels)[codes]


@dataclass(frozen=True)
class Float(Element):
    """A float of a sign, ``exponent`` bits and ``mantissa`` bits, with subnormals; a code is its bit pattern.

    Numbers beyond the largest saturate, those that are none become no code: they are refused before. Codes beyond the
    largest number are none: infinity where the mantissa is 0 (of e5m2), the rest NaN.
    """

    exponent: int
    mantissa: int

    @property
    def bias(self) -> int:
        """The exponent's bias."""
        return int(2 ** (self.exponent - 1)) - 1

    def encode(self, x: Array) -> Array:
        """Round halves to the even mantissa and saturate."""
        magnitude = np.minimum(np.abs(np.asarray(x, dtype=np.float64)), self.largest)
        place = np.frexp(magnitude)[1] - 1
        place = np.where(magnitude > 0, np.maximum(place, 1 - self.bias), 1 - self.bias)  # of subnormals, the lowest
        units = np.rint(np.ldexp(magnitude, self.mantissa - place)).astype(np.int64)
        # A mantissa that rounded up to the next power of two carries into the exponent by itself.
        codes = (place + self.bias - 1 << self.mantissa) + units
        return (codes + (np.signbit(x).astype(np.int64) << self.bits - 1)).astype(np.uint8)

    def decode(self, codes: Array) -> Array:
        """Look the bit patterns up."""
        return self._values[codes]

    @cached_property
    def _values(self) -> Array:
        codes = np.arange(2**self.bits)
        fraction, power = codes & 2**self.mantissa - 1, codes >> self.mantissa & 2**self.exponent - 1
        normal = power > 0
        values = np.ldexp(fraction + normal * 2.0**self.mantissa, np.maximum(power, 1) - self.bias - self.mantissa)
        values[values > self.largest] = np.nan
        values[(fraction == 0) & np.isnan(values)] = np.inf
        return np.where(codes >> self.bits - 1, -values, values)


def integer(bits: int, symmetric: bool) -> Integer:
    """Return whole numbers of some bits.

    With 8 bits and symmetric, -127 to 127 and the largest magnitude at 127, as LLM.int8 (arXiv:2208.07339), SmoothQuant
    and vLLM have it. With fewer, all codes, whose middle is half a step below 0: the largest magnitude is at 7.5 steps
    of int4, as in GPTQ (arXiv:2210.17323, https://github.com/IST-DASLab/gptq) and compressed-tensors.
    """
    half = 2 ** (bits - 1)
    if not symmetric:
        return Integer(f"uint{bits}", bits, float(2 * half - 1), 0, 2 * half - 1)
    if bits == 8:
        return Integer("int8", bits, half - 1.0, 1 - half, half - 1)
    return Integer(f"int{bits}", bits, half - 0.5, -half, half - 1)


#: QLoRA's levels (Dettmers et al. 2023, arXiv:2305.14314, appendix E).
_NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
#: Bits of the mantissa of floats of 16 bits and more, which no scale goes with: IEEE 754, bfloat16, TF32.
WIDE = {"fp64": 52, "fp32": 23, "tf32": 10, "fp16": 10, "bf16": 7}
#: Floats: OCP 8-bit Floating Point Specification v1.0 (e4m3 has no infinities), OCP Microscaling v1.0 section 5.3
#: (https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf).
E4M3, E5M2 = Float("e4m3", 8, 448.0, 4, 3), Float("e5m2", 8, 57344.0, 5, 2)
E2M1 = Float("e2m1", 4, 6.0, 2, 1)
NF4 = Levels("nf4", 4, 1.0, _NF4)
