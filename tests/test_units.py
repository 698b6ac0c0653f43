"""Units: GB is not GiB, text must be a finite quantity of the expected unit."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

import roofline as rl
from roofline.ir.text import shown
from roofline.ir.units import MAC, format_bytes, format_si, parse


def test_a_multiply_add_is_two_operations() -> None:
    assert MAC == 2


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("80 GB", "B", 80e9),
        ("80 GiB", "B", 80 * 1024**3),
        ("72GiB", "B", 72 * 2**30),
        ("512 MiB", "B", 512 * 2**20),
        ("64 kB", "B", 64e3),
        ("64 KiB", "B", 65536),
        ("3.35 TB/s", "B/s", 3.35e12),
        ("900 GB/s", "B/s", 9e11),
        ("400 Gbit/s", "B/s", 50e9),  # bits are eighths of bytes
        ("989.4 TFLOP/s", "FLOP/s", 989.4e12),
        ("989.4 TFLOPS", "FLOP/s", 989.4e12),
        ("1979 TOP/s", "FLOP/s", 1979e12),
        ("41 ms", "s", 0.041),
        ("41ms", "s", 0.041),
        ("3 us", "s", 3e-6),
        ("3 µs", "s", 3e-6),
        ("2 min", "s", 120.0),
        ("1.98 GHz", "Hz", 1.98e9),
        ("700 W", "W", 700.0),
        ("1_000 B", "B", 1000.0),
        ("1e12 B/s", "B/s", 1e12),
        (".5 s", "s", 0.5),
        (7, "s", 7.0),
        (0.041, "s", 0.041),
    ],
)
def test_parse(text: str | float, unit: str, value: float) -> None:
    assert parse(text, unit) == pytest.approx(value, rel=1e-15)


def test_decimal_and_binary_prefixes_are_never_the_same() -> None:
    assert parse("80 GiB", "B") / parse("80 GB", "B") == 1.073741824


@pytest.mark.parametrize(
    ("text", "unit", "fault"),
    [
        ("41 mss", "s", "unknown unit 'mss'; expected s, such as 41 ms"),
        ("80 gib", "B", "did you mean GiB"),
        ("80 GB", "B/s", "unknown unit 'GB'"),
        ("3 TB/s", "B", "unknown unit 'TB/s'"),
        ("989 TFLOPS", "B/s", "expected B/s"),
        ("41", "s", r"'41' has no unit: 41us, 41ms or 41s\?"),
        ("2e1", "s", r"'2e1' has no unit: 2e1us, 2e1ms or 2e1s\?"),
        ("1__0 GB", "B", "unknown unit '__0 GB'"),
        ("9" * 300 + " GB", "B", "not a finite number"),
        (10**400, "B", "not a finite number"),
        ("80", "B", r"'80' has no unit: 80GiB, 80GB or 80MiB\?"),
        ("fast", "s", "is not a quantity"),
        ("", "s", "is not a quantity"),
        ("ms", "s", "is not a quantity"),
        ("nan", "s", "is not a quantity"),
        ("inf s", "s", "is not a quantity"),
        ("1e999 s", "s", "not a finite number"),
        ("1,5 s", "s", "unknown unit"),
        ("1 2 s", "s", "unknown unit"),
        (float("nan"), "s", "not a finite number"),
        (float("inf"), "B", "not a finite number"),
        (True, "s", "is not a quantity"),
        (None, "s", "is not a quantity"),
        (b"41 ms", "s", "is not a quantity"),
        ("٤١ ms", "s", "is not a quantity"),
    ],
)
def test_what_is_no_quantity_is_refused(text: object, unit: str, fault: str) -> None:
    with pytest.raises(rl.errors.UnitError, match=fault):
        parse(text, unit)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (3.35e12, "B/s", "3.35 TB/s"),
        (999.9e9, "B/s", "1 TB/s"),  # three digits round up into the next prefix
        (999.4e9, "B/s", "999 GB/s"),
        (1e-3, "s", "1 ms"),
        (3.87e-6, "s", "3.87 us"),
        (120.0, "s", "120 s"),
        (0, "FLOP", "0 FLOP"),
        (-2e9, "B", "-2 GB"),
        (1234.5, "token/s", "1.23 ktoken/s"),
        (float("inf"), "s", "inf s"),
    ],
)
def test_format(value: float, unit: str, text: str) -> None:
    assert format_si(value, unit) == text


def test_more_digits_are_given_when_asked_for() -> None:
    assert format_si(1.23456789e12, "B/s", 9) == "1.23456789 TB/s"


@pytest.mark.parametrize(("value", "text"), [(80 * 2**30, "80.00 GiB"), (1536, "1.50 KiB"), (12, "12 B"), (0, "0 B")])
def test_bytes_are_written_in_binary_prefixes(value: int, text: str) -> None:
    assert format_bytes(value) == text


@pytest.mark.parametrize(
    "text",
    ["1__0 GB", "1_ GB", "_1 GB", "9" * 300 + " GB", "1e300 GB", "9" * 5000 + " GB", "1e61 B",
     10**300, 10**5000, 1e61, np.float16("inf"), np.bool_(True), 1j, [], {}, ["80 GB"]], ids=shown
)  # fmt: skip
def test_no_number_gets_past_the_edge_that_is_none_or_as_good_as_infinite(text: object) -> None:
    with pytest.raises(rl.errors.UnitError) as raised:
        parse(text, "B")  # type: ignore[arg-type]
    assert len(str(raised.value)) < 400


def test_numbers_of_numpy_and_fractions_become_floats_of_python() -> None:
    for value in (np.float32(0.5), np.int8(7), Fraction(1, 2), 10**50):
        assert type(parse(value, "s")) is float  # type: ignore[arg-type]
