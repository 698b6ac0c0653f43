"""Signatures: one name is one size, and errors say what was expected and given."""

from __future__ import annotations

import pytest

import roofline as rl
from roofline.ir.signature import signature

B = rl.ops.symbol("B")


def test_leading_axes_are_collected_and_multiplied() -> None:
    sizes = signature("... k, n k, [n] -> ... n").bind([(2, B, 64), (128, 64)])
    assert (sizes["..."], sizes["batch"], sizes["k"], sizes["n"]) == ((2, B), 2 * B, 64, 128)
    assert signature("... k, n k, [n] -> ... n").shapes(sizes) == ((2, B, 128),)


def test_no_leading_axes_are_a_batch_of_one() -> None:
    assert signature("... c -> ... c").bind([(5,)])["batch"] == 1


@pytest.mark.parametrize(
    ("text", "shapes", "fault"),
    [
        ("m k, k n -> m n", [(2, 3), (4, 5)], "axis 'k' is both 3 and 4"),
        ("m k, k n -> m n", [(2, 3)], "got 1 inputs"),
        ("m k, k n -> m n", [(2, 3), (3, 4), (4,)], "got 3 inputs"),
        ("m k -> m", [(2, 3, 4)], r"got the shape \[2, 3, 4\]"),
        ("... m k -> ... m", [(2,)], r"got the shape \[2\]"),
        ("... k, ... k -> ...", [(2, 3), (3, 3)], r"axis '...' is both \(2,\) and \(3,\)"),
        ("m k, k n -> m n", [(2, B), (B + 1, 4)], r"axis 'k' is both B and B \+ 1"),
    ],
)
def test_contradictions_are_refused(text: str, shapes: list[tuple[int, ...]], fault: str) -> None:
    with pytest.raises(rl.errors.ShapeError, match=fault):
        signature(text).bind(shapes)


def test_an_optional_input_may_be_absent_but_must_agree() -> None:
    with pytest.raises(rl.errors.ShapeError, match="axis 'n' is both 128 and 64"):
        signature("... k, n k, [n] -> ... n").bind([(2, 32), (128, 32), (64,)])


# --- products of axes -------------------------------------------------------------------------------------------------

SCORES = "b h=(g r) q d, b g k d -> b h q k"


def test_a_product_is_solved_for_the_factor_that_is_missing() -> None:
    sizes = signature(SCORES).bind([(2, 8, B, 16), (2, 4, B, 16)])
    assert (sizes["h"], sizes["g"], sizes["r"]) == (8, 4, 2)
    assert signature("b (g r) d, g d -> b g r").shapes(
        signature("b (g r) d, g d -> b g r").bind([(2, 6, 5), (3, 5)])
    ) == ((2, 3, 2),)


def test_a_product_of_known_factors_is_known() -> None:
    assert signature("c o, [f] -> f=(g o)").bind([(4, 3)], {"g": 5})["f"] == 15
    assert signature("a b -> (a b)").shapes(signature("a b -> (a b)").bind([(4, B)])) == ((4 * B,),)


def test_symbols_are_divided_where_they_can_be() -> None:
    assert signature(SCORES).bind([(2, 6 * B, 5, 16), (2, B, 7, 16)])["r"] == 6
    assert "r" not in signature(SCORES).bind([(2, B, 5, 16), (2, 3, 7, 16)])


@pytest.mark.parametrize(
    ("shapes", "nouns", "fault"),
    [
        ([(2, 8, 5, 16), (2, 3, 7, 16)], {}, "has 8 as axis 'h', which is not a multiple of 3 'g'"),
        ([(2, 8, 5, 16), (2, 3, 7, 16)], {"h": "query heads", "g": "key-value heads"},
         "has 8 query heads, which is not a multiple of 3 key-value heads"),
    ],
)  # fmt: skip
def test_a_product_that_does_not_divide_is_refused(
    shapes: list[tuple[int, ...]], nouns: dict[str, str], fault: str
) -> None:
    with pytest.raises(rl.errors.ShapeError, match=fault):
        signature(SCORES).bind(shapes, None, nouns)


def test_a_product_that_contradicts_its_factors_is_refused() -> None:
    with pytest.raises(rl.errors.ShapeError, match="has 6 as axis 'c', but 2 'g' of 4 'i'"):
        signature("n c=(g i), o i -> n o").bind([(1, 6), (8, 4)], {"g": 2})


def test_no_inputs_at_all() -> None:
    assert signature(" -> n").bind([]) == {"batch": 1}
