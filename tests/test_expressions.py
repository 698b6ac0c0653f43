"""Sizes as text: what is allowed, what it is worth, and that nothing else gets through."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.ir.expressions import parse
from roofline.ir.sizes import Dim, evaluate

NAMES = {"hidden": 768, "heads": 12}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4 * hidden", 3072),
        ("hidden // heads", 64),
        ("hidden / heads", 64),
        ("hidden * 3 / 2", 1152),
        ("(hidden + heads) * 2 - 1", 1559),
        ("2 ** 10", 1024),
        ("hidden % 100", 68),
        ("-(-7 // 2)", 4),
        ("+5", 5),
        ("min(hidden, 512, 1024)", 512),
        ("max(hidden, 1024)", 1024),
        ("ceil_div(hidden, 100)", 8),
        (" 7 ", 7),
        (7, 7),
    ],
)
def test_numbers(text: Any, value: int) -> None:
    assert parse(text, NAMES) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("B * S", 6),
        ("S ** 2 + 1", 10),
        ("ceil_div(S, 2)", 2),
        ("S // 2", 1),
        ("S % 2", 1),
        ("min(C, 4)", 4),
        ("C / 5", 2),
        ("hidden - C", 758),
        ("2 - C * -1", 12),
    ],
)
def test_symbols_stay_until_they_are_given(text: str, value: int) -> None:
    size = parse(text, NAMES)
    assert isinstance(size, Dim)
    assert evaluate(size, {"B": 2, "S": 3, "C": 10}) == value


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hiden * 2", "did you mean hidden"),
        ("1 / 0", "divides by zero"),
        ("1 // 0", "divides by zero"),
        ("ceil_div(1, 0)", "divides by zero"),
        ("hidden / 7", "not a whole number"),
        ("2 ** 100", "exponent"),
        ("2 ** -1", "exponent"),
        ("2 ** 65", "exponent"),
        ("10 ** 31", "too large"),
        ("(10 ** 30) ** 64", "too large"),
        ("2 ** B", "exponent"),
        ("99999999 ** 8", "too large"),
        ("1" * 40, "too large"),
        ("(B + S + C + 1) ** 8", "too large"),
        ("((B + S + C + 1) ** 8) ** 8", "too large"),
        ("1.5 * hidden", "whole number"),
        ("True", "whole number"),
        ("'a' * 3", "whole number"),
        ("None", "whole number"),
        ("__import__('os')", "not allowed"),
        ("hidden.bit_length()", "not allowed"),
        ("[1, 2]", "not allowed"),
        ("(1).__class__", "not allowed"),
        ("lambda: 1", "not allowed"),
        ("1 if 1 else 2", "not allowed"),
        ("1 < 2", "not allowed"),
        ("1 << 99", "not allowed"),
        ("~1", "not allowed"),
        ("not 1", "not allowed"),
        ("abs(1)", "functions are"),
        ("min(1)", "arguments"),
        ("ceil_div(1, 2, 3)", "arguments"),
        ("min(1, 2, key=3)", "not allowed"),
        ("min(*B)", "not allowed|arguments"),
        ("8 / B", "needs //"),
        ("8 // B", "is not a size"),
        ("", "not an expression"),
        ("1 +", "not an expression"),
        ("a; b", "not an expression"),
        ("x" * 300, "characters"),
        ("(" * 95 + "1" + ")" * 95, "not an expression|deep"),
        (True, "neither"),
        (1.5, "neither"),
        ([1], "neither"),
        ("1\x00", "not an expression"),
    ],
)
def test_everything_else_is_refused_in_one_line(text: Any, says: str) -> None:
    if text == "(" * 95 + "1" + ")" * 95:
        assert parse(text, NAMES) == 1  # deep but harmless
        return
    with pytest.raises(rl.errors.ModelDataError, match=says) as caught:
        parse(text, NAMES, "file.toml: sizes.x")
    assert str(caught.value).startswith("file.toml: sizes.x: ")
    assert "\n" not in str(caught.value)


@settings(max_examples=examples(300), deadline=None)
@given(st.text(alphabet="BSC ()+-*/%,0123456789hidenmax_'\".[]", max_size=40))
def test_any_text_is_a_size_or_one_known_error(text: str) -> None:
    try:
        result: Any = parse(text, NAMES)
    except rl.errors.ModelDataError as error:
        result = str(error)
    assert isinstance(result, int | Dim) or len(result) < 500


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6))
def test_same_as_python(a: int, b: int, c: int) -> None:
    names = {"a": a, "b": b, "c": c}
    assert parse("(a + b) * c - a // b + b % c", names) == (a + b) * c - a // b + b % c
    assert parse("ceil_div(a, b)", names) == -(-a // b)
