"""Number formats: bits per element (scales included), the unit that multiplies them, names people type.

A group-wise format stores ``bits`` per element plus ``overhead_bits`` per group of ``group`` elements for scales and
zero points; :attr:`DType.bits_per_element` is the sum, so ``int4-g128`` is 4.25 bits and never 4. Beside the table,
``int4-g32-z4`` (16-bit scale and 4-bit zero point a group of 32) and the like describe themselves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

from roofline.ir.errors import UnknownDType, did_you_mean


@dataclass(frozen=True)
class DType:
    """A number format.

    Attributes:
        name: The name that roofline prints.
        bits: Stored bits of one element [bit].
        compute: The format that arithmetic on it runs in: itself, or for storage-only formats ``None``.
        accumulate: The format that sums are accumulated in.
        group: Elements that share one scale, or 0.
        overhead_bits: Bits of scale and zero point a group [bit].
        source: Where the layout is written down.
    """

    name: str
    bits: Fraction
    compute: str | None
    accumulate: str
    group: int = 0
    overhead_bits: int = 0
    source: str = ""

    @cached_property
    def bits_per_element(self) -> Fraction:
        """Bits that one element takes with its share of the group's scale [bit].

        Example:
            >>> float(dtype("int4-g128").bits_per_element)
            4.25
        """
        shared = Fraction(self.overhead_bits, self.group) if self.group else Fraction(0)
        return self.bits + shared

    @cached_property
    def bytes(self) -> int | Fraction:
        """Bytes that one element takes with its share of the group's scale, exactly [byte]."""
        size = self.bits_per_element / 8
        return size.numerator if size.denominator == 1 else size


def _plain(name: str, bits: int, accumulate: str) -> DType:
    return DType(name, Fraction(bits), name, accumulate)


def _grouped(name: str, bits: int, group: int, overhead: int, source: str, compute: str | None = None) -> DType:
    return DType(name, Fraction(bits), compute, "fp32", group, overhead, source)


_GGUF = "llama.cpp ggml-common.h block structs"
_OCP = "OCP Microscaling Formats (MX) v1.0"
_TABLE = (
    _plain("fp64", 64, "fp64"),
    _plain("fp32", 32, "fp32"),
    DType("tf32", Fraction(32), "tf32", "fp32", source="stored as fp32, multiplied with a 10-bit mantissa"),
    _plain("fp16", 16, "fp32"),
    _plain("bf16", 16, "fp32"),
    _plain("fp8", 8, "fp32"),
    _plain("fp4", 4, "fp32"),
    _plain("int64", 64, "int64"),
    _plain("int32", 32, "int32"),
    _plain("int16", 16, "int32"),
    _plain("int8", 8, "int32"),
    _plain("int4", 4, "int32"),
    _plain("b1", 1, "int32"),
    DType("bool", Fraction(8), None, "int32"),
    # Group-wise weight formats: stored small, multiplied in the activations' format after dequantisation.
    _grouped("int4-g32", 4, 32, 32, "gpt-fast: bf16 scale and bf16 zero per group of 32"),
    _grouped("int4-g32-sym", 4, 32, 16, "fp16 scale per group of 32 (symmetric)"),
    _grouped("int4-g32-z4", 4, 32, 20, "GPTQ/AWQ: fp16 scale and a 4-bit zero per group of 32"),
    _grouped("int4-g64", 4, 64, 32, "fp16 scale and fp16 zero per group of 64"),
    _grouped("int4-g128", 4, 128, 32, "fp16 scale and fp16 zero per group of 128"),
    _grouped("int4-g128-sym", 4, 128, 16, "fp16 scale per group of 128 (symmetric)"),
    _grouped("int4-g128-z4", 4, 128, 20, "GPTQ/AWQ: fp16 scale and a 4-bit zero per group of 128"),
    _grouped("int8-g128", 8, 128, 16, "fp16 scale per group of 128"),
    _grouped("nf4", 4, 64, 32, "Dettmers et al. 2023 (QLoRA), fp32 absmax per block of 64"),
    DType("nf4-dq", Fraction(4), None, "fp32", 64 * 256, 256 * 8 + 32, "QLoRA double quantisation: 8-bit absmax, "
          "one fp32 constant per 256 blocks"),
    _grouped("mxfp4", 4, 32, 8, _OCP, "fp4"),
    _grouped("mxfp8", 8, 32, 8, _OCP, "fp8"),
    _grouped("nvfp4", 4, 16, 8, "NVIDIA Blackwell: e4m3 scale per block of 16, one fp32 scale per tensor", "fp4"),
    DType("fp8-block", Fraction(8), "fp8", "fp32", 128 * 128, 32, "DeepSeek-V3: fp32 scale per 128x128 weights"),
    _grouped("q4_0", 4, 32, 16, _GGUF), _grouped("q4_1", 4, 32, 32, _GGUF),
    _grouped("q5_0", 5, 32, 16, _GGUF), _grouped("q5_1", 5, 32, 32, _GGUF), _grouped("q8_0", 8, 32, 16, _GGUF),
    _grouped("q2_k", 2, 256, 160, _GGUF), _grouped("q3_k", 3, 256, 112, _GGUF), _grouped("q4_k", 4, 256, 128, _GGUF),
    _grouped("q5_k", 5, 256, 128, _GGUF), _grouped("q6_k", 6, 256, 144, _GGUF),
)  # fmt: skip

#: Group-wise formats beyond the table: stored format, group, scales of 16 bits and zero points of N unless said
#: otherwise. ``sym`` stores no zero point.
_GROUPED = re.compile(r"(int[2-8]|nf4|fp4|fp8)-g([1-9]\d{0,8})-(sym|z([1-9]|1[0-6]))(?:-s(8|16|32))?")


class _Formats(dict[str, DType]):
    """The table, and any group-wise format that its name describes in full."""

    def __missing__(self, name: str) -> DType:
        entry = grouped(name) or two_of_four(name)
        if entry is None:
            raise KeyError(name)
        return entry


@lru_cache(maxsize=512)
def grouped(name: str) -> DType | None:
    """The format that a name such as ``int4-g32-z4`` or ``fp8-g4096-sym-s32`` describes, or ``None``.

    Example:
        >>> float(grouped("int3-g128-z3").bits_per_element), grouped("int3")
        (3.1484375, None)
    """
    match = _GROUPED.fullmatch(name)
    if match is None:
        return None
    stored, group, _, zero, scale = match.groups()
    overhead = int(scale or 16) + int(zero or 0)
    source = f"a scale of {scale or 16} bits and a zero point of {zero or 0} per group of {group}"
    return DType(
        name, Fraction(int(stored[-1])), "fp8" if stored == "fp8" else None, "fp32", int(group), overhead, source
    )


#: Formats whose matrix units may skip the zeros of a 2:4 pattern.
_SKIPPED = ("fp32", "fp16", "bf16", "fp8", "int8")


@lru_cache(maxsize=64)
def two_of_four(name: str) -> DType | None:
    """The format that a name such as ``bf16-2:4`` describes, or ``None``.

    Of every four values two are stored, each with an index of 2 bits (Mishra et al. 2021, arXiv 2104.08378, section 3):
    9/16 of bf16, 5/8 of int8.

    Example:
        >>> two_of_four("bf16-2:4").bits_per_element, two_of_four("int64-2:4")
        (Fraction(9, 1), None)
    """
    base = name.removesuffix("-2:4")
    if base == name or base not in _SKIPPED:
        return None
    plain = DTYPES[base]
    source = "two of four values and two 2-bit indices (arXiv 2104.08378, section 3)"
    return DType(name, plain.bits / 2, plain.compute, plain.accumulate, 4, 4, source)


#: All number formats by name.
DTYPES: dict[str, DType] = _Formats({entry.name: entry for entry in _TABLE})

_ALIASES = {
    "float64": "fp64", "double": "fp64", "float32": "fp32", "float": "fp32", "f32": "fp32", "tensorfloat32": "tf32",
    "float16": "fp16", "half": "fp16", "f16": "fp16", "bfloat16": "bf16",
    "float8": "fp8", "float8_e4m3fn": "fp8", "float8_e5m2": "fp8", "e4m3": "fp8", "e5m2": "fp8",
    "float8_e4m3": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8_block": "fp8-block", "float4": "fp4",
    "long": "int64", "int": "int32", "i8": "int8", "u8": "int8", "uint8": "int8", "char": "int8", "i4": "int4",
    "w4": "int4", "w8": "int8", "q8": "int8", "binary": "b1",
}  # fmt: skip


#: How precisions of training begin that mix formats.
_PRECISIONS = ("amp-", "mixed-")


@lru_cache(maxsize=512)
def _lookup(text: str) -> DType:
    key = text.strip().lower().removeprefix("torch.").removeprefix("jnp.")
    key = _ALIASES.get(key, key)
    if key.startswith(_PRECISIONS):
        raise UnknownDType(
            f"{text!r} is a precision of a training step, not a format of tensors: give it to rl.passes.training_graph "
            "(--phase train); a forward under autocast is rl.passes.autocast(graph, 'bf16')"
        )
    if key not in DTYPES and grouped(key) is None and two_of_four(key) is None:
        raise UnknownDType(
            f"unknown number format {text!r}; allowed: {', '.join(DTYPES)}" + did_you_mean(key, [*DTYPES, *_ALIASES])
        )
    return DTYPES[key]


def dtype(name: object) -> DType:
    """Look up a number format by any of its names.

    Args:
        name: ``"bf16"``, ``"torch.bfloat16"``, ``torch.bfloat16`` itself, or a :class:`DType`.

    Returns:
        The number format.

    Raises:
        UnknownDType: No such format; the message lists the near ones.

    Example:
        >>> dtype("torch.bfloat16").name, float(dtype("q4_0").bytes)
        ('bf16', 0.5625)
    """
    return name if isinstance(name, DType) else _lookup(str(name))
