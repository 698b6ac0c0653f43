"""Sizes as given: whole numbers from 1, alone or in one-dimensional sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import roofline as rl
from roofline.counting.grid import grid

BSC = frozenset("BSC")


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (0, r"batch \(B\)=0"),
        (-1, r"batch \(B\)=-1"),
        (1.5, r"batch \(B\)=1.5"),
        (float("nan"), r"batch \(B\)=nan"),
        (float("inf"), r"batch \(B\)=inf"),
        (2**60, "whole numbers from 1 to"),
        (10**400, "not a whole number"),
        ([1, 0], r"batch \(B\) holds 0"),
        ([1, -3, 2], r"batch \(B\) holds -3"),
        ([1, 2.5], r"batch \(B\) holds 2.5"),
        ([1, float("nan")], r"batch \(B\) holds nan"),
        ([[1, 2], [3, 4]], r"shape \(2, 2\)"),
        ([], r"shape \(0,\)"),
        (np.zeros((0, 3)), r"shape \(0, 3\)"),
        ("8", "not a whole number"),
        ("abc", "not a whole number"),
        (["1", "2"], "not a whole number"),
        (b"8", "not a whole number"),
        (True, "not a whole number"),
        ([True, False], "not a whole number"),
        (1 + 2j, "not a whole number"),
        (np.array([1 + 2j]), "not a whole number"),
        ([[1], [2, 3]], "not a whole number"),
        ({"a": 1}, "not a whole number"),
        (object(), "not a whole number"),
        (np.array(["2024-01-01"], dtype="datetime64[D]"), "not a whole number"),
    ],
)
def test_what_is_no_size_is_refused(value: Any, fault: str) -> None:
    with pytest.raises(rl.errors.UsageError, match=fault):
        grid(frozenset("B"), {"B": value})


@pytest.mark.parametrize("value", [3, 3.0, np.int64(3), np.float32(3), np.array(3)])
def test_whole_numbers_of_any_kind_are_integers(value: Any) -> None:
    found = grid(frozenset("B"), {"B": value})
    assert (found.values["B"], found.shape, type(found.values["B"])) == (3, (), int)


@pytest.mark.parametrize("value", [[1, 2], (1, 2), range(1, 3), np.array([1, 2]), np.array([1.0, 2.0])])
def test_sequences_of_any_kind_are_axes(value: Any) -> None:
    found = grid(frozenset("B"), {"B": value})
    assert (found.axes, found.shape) == (("B",), (2,))
    assert found.point((1,)) == {"B": 2}


def test_a_sequence_of_one_is_still_an_axis() -> None:
    assert grid(frozenset("B"), {"B": [5]}).shape == (1,)


def test_axes_are_in_the_documented_order_however_given() -> None:
    found = grid(BSC | {"A", "T"}, {"T": [1, 2], "C": [1] * 3, "A": [1] * 4, "S": 7, "B": [1] * 5})
    assert (found.axes, found.shape) == (("B", "C", "A", "T"), (5, 3, 4, 2))
    assert {name: np.shape(value) for name, value in found.sizes.items()} == {
        "B": (5, 1, 1, 1), "S": (), "C": (3, 1, 1), "A": (4, 1), "T": (2,),
    }  # fmt: skip


def test_a_context_is_what_a_decode_step_calls_its_sequence() -> None:
    assert grid(frozenset("BC"), {"B": 1, "S": 2048}).values == {"B": 1, "C": 2048}
    assert grid(frozenset("BC"), {"B": 1, "S": 2048, "C": 5}).values["C"] == 5
    with pytest.raises(rl.errors.UnboundSize, match="needs a value for context"):
        grid(BSC, {"B": 1, "S": 2048})  # here S means something else


def test_sizes_that_a_program_has_not_are_dropped() -> None:
    assert grid(frozenset("B"), {"B": 2, "S": 2048, "C": [1, 2]}).axes == ()


def test_all_missing_sizes_are_named_with_what_was_given() -> None:
    with pytest.raises(rl.errors.UnboundSize, match=r"needs a value for batch \(B\), context \(C\) \(given: S\)"):
        grid(BSC, {"S": 3, "B": None})
    with pytest.raises(rl.errors.UnboundSize, match=r"needs a value for batch \(B\) \(given: none\)"):
        grid(frozenset("B"), {})


def test_an_unknown_size_is_refused_with_the_near_one() -> None:
    with pytest.raises(rl.errors.UsageError, match=r"unknown size 'tokens'; .* batch \(B\), token; did you mean token"):
        grid(frozenset({"B", "token"}), {"B": 1, "tokens": 2})
    with pytest.raises(
        rl.errors.UsageError, match=r"unknown size 'bach'; .* batch \(B\), seq \(S\); did you mean batch"
    ):
        rl.estimate(rl.model("gpt2", layers=1), "h100-sxm", bach=1, S=3)


def test_words_stand_for_the_symbols_of_a_program() -> None:
    assert grid(BSC, {"batch": 2, "seq": [1, 2], "context": 7}).values.keys() == {"B", "S", "C"}
    assert grid(frozenset("BC"), {"batch": 1, "seq": 2048}).values == {"B": 1, "C": 2048}
    assert grid(frozenset({"batch", "S"}), {"batch": 3, "seq": 4}).values == {"batch": 3, "S": 4}
    decode = rl.model("gpt2", phase="decode", layers=1)
    words = rl.estimate(decode, "h100-sxm", batch=4, context=[128, 256])
    assert (words.time == rl.estimate(decode, "h100-sxm", B=4, C=[128, 256]).time).all()


@pytest.mark.parametrize(
    ("symbols", "sizes", "says"),
    [
        ("BS", {"batch": 1, "B": 1, "seq": 2}, "given twice, as B and by its word"),
        ("BS", {"batch": 1, "context": 2}, r"no context; its sizes are batch \(B\), seq \(S\)"),
        ("", {"batch": 1}, "no batch; its sizes are all fixed"),
    ],
)
def test_a_word_for_a_size_that_a_program_does_not_have_is_refused(
    symbols: str, sizes: dict[str, int], says: str
) -> None:
    with pytest.raises(rl.errors.UsageError, match=says):
        grid(frozenset(symbols), sizes)


def test_errors_reach_the_user_from_every_door() -> None:
    graph = rl.model("gpt2", layers=1)
    for bad in (0, -1, 1.5, float("nan"), 2**60, "8", [], [[1]]):
        with pytest.raises(rl.errors.UsageError):
            rl.estimate(graph, "h100-sxm", B=bad, S=16)
        with pytest.raises(rl.errors.UsageError):
            rl.check(graph, "h100-sxm", "1 ms", B=1, S=bad)
        with pytest.raises(rl.errors.UsageError):
            rl.best_batch(graph, "h100-sxm", S=bad)
