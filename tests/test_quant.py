"""Quantisation carried out, against what others compute: bit patterns, integers, second-order rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl

#: OCP Microscaling v1.0, table 5: e2m1 by code.
FP4 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
FORMATS = (
    "int8",
    "int4-g32",
    "int4-g32-sym",
    "int3-g32-z3",
    "fp8",
    "fp8-e5m2",
    "mxfp8",
    "mxfp4",
    "nvfp4",
    "int8-tensor-asym",
)

#: Formats whose products are whole numbers that int64 holds.
EXACT = tuple(word for word in FORMATS if "e5m2" not in word)


def numbers(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize(("word", "name"), [("fp8-tensor", "float8_e4m3fn"), ("fp8-tensor-e5m2", "float8_e5m2")])
def test_floats_of_8_bits_have_the_bit_patterns_of_torch(word: str, name: str) -> None:
    torch = pytest.importorskip("torch")
    element = rl.quant.number_format(word).element
    codes = np.arange(256, dtype=np.uint8)
    expected = torch.from_numpy(codes).view(getattr(torch, name)).float().numpy()
    finite = np.isfinite(expected)
    assert (element.decode(codes)[finite] == expected[finite]).all()
    stored = np.unique(expected[finite])
    halves = (stored[1:].astype(np.float64) + stored[:-1]) / 2
    spread = numbers(0, 20_000) * 10.0 ** np.random.default_rng(1).uniform(-8, 5, 20_000)
    x = np.clip(np.concatenate([halves, spread, [0.0, -0.0]]), -element.largest, element.largest).astype(np.float32)
    assert (element.encode(x) == torch.from_numpy(x).to(getattr(torch, name)).view(torch.uint8).numpy()).all()
    assert element.decode(element.encode(np.array([1e9, -np.inf]))).tolist() == [element.largest, -element.largest]


def test_floats_of_4_bits_are_those_of_the_specification() -> None:
    element = rl.quant.number_format("mxfp4").element
    assert element.decode(np.arange(16)).tolist() == [*FP4, *(-each for each in FP4)]
    middles = [0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]
    assert element.decode(element.encode(np.array(middles))).tolist() == [0.0, 1.0, 1.0, 2.0, 2.0, 4.0, 4.0]


def test_matmul_is_exact_in_its_integers() -> None:
    a, b = rl.quant.round_to(numbers(0, 5, 96), "int8"), rl.quant.round_to(numbers(1, 7, 96), "int8")
    assert (rl.quant.matmul(a, b).integers[:, 0] == a.codes.astype(np.int64) @ b.codes.T.astype(np.int64)).all()


@pytest.mark.parametrize("right", EXACT)
@pytest.mark.parametrize("left", ["int8", "int8-tensor-asym", "fp8", "mxfp8", "nvfp4"])
def test_matmul_of_any_two_formats_is_that_of_their_numbers(left: str, right: str) -> None:
    a, b = rl.quant.round_to(numbers(0, 2, 3, 64), left), rl.quant.round_to(numbers(1, 5, 64) + 0.5, right)
    assert np.allclose(rl.quant.matmul(a, b).values, a.values @ b.values.T, rtol=1e-12, atol=1e-12)


@settings(max_examples=examples(20))
@given(st.sampled_from(FORMATS), st.integers(0, 1000))
def test_gptq_is_never_worse_than_the_nearest(word: str, seed: int) -> None:
    w, x = numbers(seed, 6, 32), numbers(seed + 1, 40, 32) @ numbers(seed + 2, 32, 32)
    nearest, better = rl.quant.round_to(w, word), rl.quant.gptq(w, x, word)
    errors = [(((each.values - w) @ x.T) ** 2).sum() for each in (better, nearest)]
    assert errors[0] <= errors[1] * (1 + 1e-12)
