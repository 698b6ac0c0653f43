"""Number formats: bits with their scales, and the names that people type."""

from __future__ import annotations

from fractions import Fraction

import pytest

import roofline as rl
from roofline.ir.dtypes import DTYPES


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("int4", Fraction(4)),
        ("int4-g128", Fraction(4) + Fraction(16 + 16, 128)),  # a 16-bit scale and a 16-bit zero a group of 128
        ("int4-g128-sym", Fraction(4) + Fraction(16, 128)),
        ("nf4", Fraction(9, 2)),  # 4 + 32 / 64
        ("mxfp4", Fraction(17, 4)),  # 4 + 8 / 32
        ("nvfp4", Fraction(9, 2)),  # 4 + 8 / 16
        ("q4_0", Fraction(18 * 8, 32)),  # block of 32: 16 bytes and a 2-byte scale
        ("q8_0", Fraction(34 * 8, 32)),
        ("q4_k", Fraction(144 * 8, 256)),  # super-block of 256: 144 bytes
        ("q6_k", Fraction(210 * 8, 256)),
        ("q5_k", Fraction(176 * 8, 256)),
        ("tf32", Fraction(32)),  # stored as fp32
        ("bool", Fraction(8)),
        ("fp8", Fraction(8)),
    ],
)
def test_bits_of_an_element_hold_its_share_of_the_scale(name: str, bits: Fraction) -> None:
    assert rl.ops.dtype(name).bits_per_element == bits
    assert Fraction(rl.ops.dtype(name).bytes) == bits / 8


@pytest.mark.parametrize(
    ("spelled", "name"),
    [("torch.bfloat16", "bf16"), ("BF16", "bf16"), (" float32 ", "fp32"), ("half", "fp16"), ("jnp.float16", "fp16"),
     ("torch.float8_e4m3fn", "fp8"), ("uint8", "int8"), ("long", "int64"), ("double", "fp64")],
)  # fmt: skip
def test_aliases(spelled: str, name: str) -> None:
    assert rl.ops.dtype(spelled).name == name
    assert rl.ops.dtype(rl.ops.dtype(spelled)) is rl.ops.dtype(name)


def test_framework_objects_are_read_by_their_text() -> None:
    class Fake:
        def __str__(self) -> str:
            return "torch.float16"

    assert rl.ops.dtype(Fake()).name == "fp16"


@pytest.mark.parametrize("bad", ["bf61", "", "fp", None, 16])
def test_unknown_formats_are_refused_with_what_is_allowed(bad: object) -> None:
    with pytest.raises(rl.errors.UnknownDType, match="allowed: fp64, fp32"):
        rl.ops.dtype(bad)


def test_near_names_are_offered() -> None:
    with pytest.raises(rl.errors.UnknownDType, match="did you mean bf16"):
        rl.ops.dtype("bf1")


@pytest.mark.parametrize("entry", DTYPES.values(), ids=list(DTYPES))
def test_every_format_computes_and_accumulates_in_a_known_one(entry: object) -> None:
    found = rl.ops.dtype(entry)
    assert found.compute is None or found.compute in DTYPES
    assert found.accumulate in DTYPES
    assert found.bits > 0
    assert isinstance(found.bytes, int | Fraction)
    assert bool(found.group) == bool(found.overhead_bits)
