"""Fronts over layers and formats."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl

ITEM = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=4)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(ITEM, min_size=1, max_size=5))
def test_front_is_that_of_trying_every_combination(items):
    sums = {tuple(map(sum, zip(*choice, strict=True))) for choice in product(*items)}
    unbeaten = sorted(one for one in sums if not any(o != one and o[0] <= one[0] and o[1] <= one[1] for o in sums))
    front = rl.quant.front(*([[pair[part] for pair in item] for item in items] for part in (0, 1)))
    assert list(zip(front.costs, front.errors, strict=True)) == unbeaten
    assert front.gap == 0
    for cost, error, choice in zip(front.costs, front.errors, front.choices, strict=True):
        assert (cost, error) == tuple(
            map(sum, zip(*(item[at] for item, at in zip(items, choice, strict=True)), strict=True))
        )


def test_a_thinned_front_stays_within_its_gap():
    dice = np.random.default_rng(0)
    costs, errors = dice.uniform(0, 1, (2, 60, 4))
    exact, thin = rl.quant.front(costs, errors), rl.quant.front(costs, errors, most=100)
    assert exact.gap == 0
    assert len(thin.costs) <= 101 < len(exact.costs)
    assert 0 < thin.gap < 0.3 * exact.costs[-1]
    for cost, error in zip(exact.costs, exact.errors, strict=True):
        assert thin.costs[thin.errors <= error + 1e-9].min() <= cost + thin.gap


@pytest.mark.parametrize(("costs", "errors"), [([[]], [[]]), ([[1, 2]], [[1]]), ([[1.0]], [[float("nan")]])])
def test_front_refuses_what_cannot_be_summed(costs, errors):
    with pytest.raises(rl.errors.UsageError, match="item 0"):
        rl.quant.front(costs, errors)
