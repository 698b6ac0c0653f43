"""When a change that costs time once pays off."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import roofline as rl

TIME = st.floats(1e-6, 1e3)


@given(once=st.floats(0, 1e4), before=TIME, after=TIME)
def test_nothing_is_saved_or_lost_at_the_break_even(once: float, before: float, after: float) -> None:
    found = rl.diagnosis.break_even(once, before, after)
    if after >= before:
        assert found.never
    else:
        assert found.steps * (before - after) == pytest.approx(once, rel=1e-9)
        assert found.saves(math.ceil(found.steps) + 1) > -1e-6 * once
    assert json.loads(json.dumps(found.record()))["rows"][0]["steps"] == (None if found.never else found.steps)


def test_first_steps_count_against_those_of_before() -> None:
    whole = rl.diagnosis.break_even("10 s", 0.04, 0.02)
    assert rl.diagnosis.break_even(0, 0.04, 0.02, first_after=[10.04]).steps == pytest.approx(whole.steps)
    assert rl.diagnosis.break_even(0, 0.04, 0.02, first_before=[1.04], first_after=[11.04]).steps == pytest.approx(
        whole.steps
    )
    # A slow first step that only the change avoids.
    assert rl.diagnosis.break_even("10 s", 0.04, 0.02, first_before=[1.02]).overhead_s == pytest.approx(9)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((0, 2.0, 1.0), "pays off at once"),
        ((3.0, 2.0, 1.0), "pays off after 3 steps: 3 s once, then 1 s instead of 2 s per step (2.00x)"),
        ((3.0, 1.0, 1.0), "never pays off: a step takes 1 s after and 1 s before (1.00x)"),
        ((0, 1.0, 2.0), "never pays off"),
    ],
)
def test_the_sentence(given: tuple[float, float, float], words: str) -> None:
    assert words in str(rl.diagnosis.break_even(*given))


def test_a_cheaper_start_pays_at_once() -> None:
    found = rl.diagnosis.break_even(0, 2.0, 1.0, first_before=[9.0], first_after=[1.0])
    assert (found.overhead_s, found.steps) == (-8.0, 0.0)


@pytest.mark.parametrize(
    ("given", "options", "match"),
    [
        ((1, 0, 1), {}, "before_s"),
        ((1, 1, 0), {}, "after_s"),
        ((-1, 1, 1), {}, "compile_s"),
        ((1, float("nan"), 1), {}, "finite"),
        ((1, "1 parsec", 1), {}, "unit"),
        ((1, 2, 1), {"first_after": [-1]}, "first_after"),
    ],
)
def test_times_that_are_none(given: tuple[float, float, float], options: dict[str, list[float]], match: str) -> None:
    with pytest.raises(rl.RooflineError, match=match) as error:
        rl.diagnosis.break_even(*given, **options)  # type: ignore[arg-type]
    assert "\n" not in str(error.value)
