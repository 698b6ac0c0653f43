"""Signatures: one name is one size, and errors say what was wanted and given."""

from __future__ import annotations

import pytest

from roofline.ir.errors import ShapeError
from roofline.ir.signature import signature
from roofline.ir.sizes import symbol

B = symbol("B")


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
    with pytest.raises(ShapeError, match=fault):
        signature(text).bind(shapes)


def test_an_optional_input_may_be_absent_but_must_agree() -> None:
    with pytest.raises(ShapeError, match="axis 'n' is both 128 and 64"):
        signature("... k, n k, [n] -> ... n").bind([(2, 32), (128, 32), (64,)])


def test_no_inputs_at_all() -> None:
    assert signature(" -> n").bind([]) == {"batch": 1}
