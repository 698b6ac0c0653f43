"""Numbers and text at the edge: one check of what comes in, one way in which messages repeat it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.ir.numbers import finite_number, whole_number
from roofline.ir.text import LONGEST, one_line, safe, shown

NO_NUMBERS: tuple[Any, ...] = (None, True, np.bool_(True), "8", b"8", [8], {}, 8j, float("nan"), float("inf"),
                               np.float16("nan"), 10**400, 10**5000, -(10**400))  # fmt: skip


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, -1, 2.5, 2.0, Fraction(4, 2), 10**15 + 1], ids=shown)
def test_what_is_no_whole_number_in_range_is_refused_in_one_short_line(value: Any) -> None:
    with pytest.raises(rl.errors.UsageError, match=r"^block=.*: expected a whole number from 1") as raised:
        whole_number("block", value)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("value", [*NO_NUMBERS, -0.1, 1.5], ids=shown)
def test_what_is_no_finite_number_in_range_is_refused_in_one_short_line(value: Any) -> None:
    with pytest.raises(rl.errors.UsageError, match=r"^share=.*: expected a number from 0 to 1") as raised:
        finite_number("share", value, 0, 1)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("value", [8, np.int8(8), np.uint64(8), np.int64(8)])
def test_a_whole_number_is_one_of_python_from_then_on(value: Any) -> None:
    assert type(whole_number("block", value)) is int
    assert whole_number("block", value) ** 30 == 8**30  # an integer of numpy would wrap


@pytest.mark.parametrize("value", [1, 0.5, np.float16(0.5), np.int8(1), Fraction(1, 2)])
def test_a_finite_number_is_a_float_of_python_from_then_on(value: Any) -> None:
    assert type(finite_number("share", value, 0, 1)) is float


def test_a_bound_may_be_excluded() -> None:
    with pytest.raises(rl.errors.UsageError, match=r"time=0: expected a number above 0$"):
        finite_number("time", 0, 0, above=True)


@pytest.mark.parametrize(
    "text", ["\x1b[31m", "\x07", "\x9b2J", "\u202e", "\u2066", "\u200b", "\x00", "\ud800", "a\r\nb"]
)
def test_what_a_terminal_would_obey_is_shown(text: str) -> None:
    assert safe(text).isprintable()
    assert one_line(text).isprintable()
    assert shown(text).isprintable()


def test_every_error_is_one_printable_line_whoever_raises_it() -> None:
    for kind in (rl.errors.UsageError, rl.errors.MissingExtra, rl.errors.UnknownChip):
        message = str(kind("a\n\x1b[2J" + "x" * 10**5 + "the end"))
        assert message.isprintable()
        assert message.startswith("a \\x1b[2J")
        assert message.endswith("the end")
        assert len(message) <= LONGEST


class Silent:
    def __repr__(self) -> str:
        raise ValueError("no")


@pytest.mark.parametrize(
    "value",
    ["x" * 10**6, list(range(10**6)), 10**5000, -(10**5000), Silent(), [10**5000], {}],
    ids=["text", "list", "huge", "negative", "silent", "nested", "empty"],
)
def test_any_value_is_repeated_in_a_few_words(value: Any) -> None:
    assert len(shown(value)) <= 120


def test_the_digits_of_a_number_are_counted() -> None:
    assert [shown(10**n) for n in (40, 4999)] == ["a number of 41 digits", "a number of 5000 digits"]
    assert shown(10**300 - 1) == "a number of 300 digits"
