"""Symbolic sizes: a polynomial behaves like the number that it stands for."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.ir.sizes import Dim, ceil_div, distinct, evaluate, maximum, minimum, prod, substitute, symbol, symbols

B, S = symbol("B"), symbol("S")
LAW = settings(deadline=None, max_examples=examples(100), derandomize=True, database=None)


def expressions() -> st.SearchStrategy[Any]:
    """Pairs of a symbolic size and the same arithmetic on numbers."""
    leaf = st.one_of(
        st.integers(0, 9).map(lambda n: (n, lambda b, s: n)),
        st.just((B, lambda b, s: b)),
        st.just((S, lambda b, s: s)),
    )

    def grow(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        def join(args: Any) -> Any:
            name, (x, f), (y, g) = args
            if name == "min":
                return minimum(x, y), lambda b, s: min(f(b, s), g(b, s))
            if name == "max":
                return maximum(x, y), lambda b, s: max(f(b, s), g(b, s))
            if name == "halves":
                return (x + 1) // 2, lambda b, s: (f(b, s) + 1) // 2
            if name == "ceil":
                return ceil_div(x, 3), lambda b, s: -(-f(b, s) // 3)
            table = {"+": (x + y, lambda b, s: f(b, s) + g(b, s)), "-": (x - y, lambda b, s: f(b, s) - g(b, s)),
                     "*": (x * y, lambda b, s: f(b, s) * g(b, s))}  # fmt: skip
            return table[name]

        names = st.sampled_from(["+", "-", "*", "min", "max", "halves", "ceil"])
        return st.tuples(names, children, children).map(join)

    return st.recursive(leaf, grow, max_leaves=8)


@LAW
@given(pair=expressions(), b=st.integers(1, 50), s=st.integers(1, 50))
def test_a_size_equals_the_arithmetic_it_stands_for(pair: Any, b: int, s: int) -> None:
    size, plain = pair
    wanted = plain(b, s)
    assert evaluate(size, {"B": b, "S": s}) == wanted
    assert evaluate(substitute(substitute(size, {"B": b}), {"S": s}), {}) == wanted
    arrays = {"B": np.array([[float(b)], [1.0]]), "S": np.array([float(s), 2.0])}
    assert np.broadcast_to(evaluate(size, arrays), (2, 2))[0, 0] == pytest.approx(wanted)


def test_equal_polynomials_are_equal_and_hash_alike() -> None:
    assert (B + 1) * (B - 1) == B * B - 1
    assert hash(2 * B * S + B) == hash(B * (S + S + 1))
    assert B * S != B + S
    assert B - B == 0
    assert isinstance(B - B + 3, int)


def test_division_is_exact_where_every_coefficient_divides() -> None:
    assert (4 * B + 8) // 4 == B + 2
    assert B * S * 6 // 3 == 2 * B * S
    assert str((B + 1) // 2) == "floordiv(B + 1, 2)"
    assert (B / 2) * 2 == B


def test_an_integer_stays_exact_far_beyond_int64() -> None:
    assert evaluate(B * B * B * S, {"B": 2**40, "S": 3}) == 3 * 2**120


def test_fractions_come_out_whole_or_as_floats() -> None:
    assert evaluate(B * Fraction(17, 32), {"B": 64}) == 34
    assert isinstance(evaluate(B * Fraction(17, 32), {"B": 64}), int)
    assert evaluate(B * Fraction(17, 32), {"B": 1}) == 0.53125
    assert evaluate(Fraction(1, 2), {}) == 0.5


def test_missing_symbols_are_all_named() -> None:
    with pytest.raises(rl.errors.UnboundSize, match=r"needs a value for B, S$"):
        (B * S + minimum(B, S)).at({"C": 1})


def test_symbols_inside_functions_are_found() -> None:
    assert symbols(minimum(S, 4096) * 2 + ceil_div(B, 3)) == {"B", "S"}
    assert symbols(7) == frozenset()


def test_equal_arguments_need_no_function() -> None:
    assert minimum(B, B) is B
    assert maximum(2 * B, B + B) == 2 * B
    assert minimum(3, 5) == 3
    assert minimum(S, 4) != minimum(S, 5)


def test_expected_distinct_experts() -> None:
    # One draw touches exactly k; many draws touch all E. Two draws of 2 of 8: 8 (1 - (3/4)^2) = 3.5.
    assert distinct(8, 2, 1) == pytest.approx(2)
    assert distinct(8, 2, 2) == pytest.approx(3.5)
    assert distinct(8, 2, 10**6) == pytest.approx(8)
    assert distinct(8, 8, 1) == 8


def test_text_reads_like_the_formula() -> None:
    assert str(2 * B * (S - 1)) == "2*B*S - 2*B"
    assert repr(symbol("B") + 3) == "B + 3"


def test_products() -> None:
    assert prod([]) == 1
    assert prod([2, B, 3]) == 6 * B
    assert isinstance(prod([B, 1]), Dim)
    assert prod([B, 0]) == 0
