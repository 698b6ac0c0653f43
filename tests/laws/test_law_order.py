"""Laws of the order of kernels: it stays one while kernels are joined, and what lies between is what a search finds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

from roofline.passes.fusion.order import Order

LAW = settings(deadline=None, max_examples=examples(300), derandomize=True, database=None)
ITEMS = 12


@st.composite
def programs(draw: st.DrawFn) -> list[set[int]]:
    """For each item what it waits for: some of a hidden order, so that numbers need not follow it."""
    hidden = draw(st.permutations(range(ITEMS)))
    waits: list[set[int]] = [set() for _ in range(ITEMS)]
    for at, item in enumerate(hidden):
        waits[item] = set(draw(st.lists(st.sampled_from(hidden[:at]), max_size=3))) if at else set()
    return waits


def ways(order: Order, start: int, forwards: bool) -> set[int]:
    """Everything before or after a group, by plain search."""
    edges = {at: {order.find(other) for other in order.before[at]} - {at} for at in map(order.find, range(ITEMS))}
    if forwards:
        edges = {at: {other for other, found in edges.items() if at in found} for at in edges}
    seen: set[int] = set()
    stack = [start]
    while stack:
        fresh = edges[stack.pop()] - seen
        seen |= fresh
        stack.extend(fresh)
    return seen


@LAW
@given(
    waits=programs(), pairs=st.lists(st.tuples(*[st.integers(0, ITEMS - 1)] * 2), max_size=12), collapse=st.booleans()
)
def test_between_is_what_a_search_finds(waits: list[set[int]], pairs: list[tuple[int, int]], collapse: bool) -> None:
    order = Order(waits)
    for pair in pairs:
        a, b = map(order.find, pair)
        if a == b:
            continue
        down = ways(order, a, True) & ways(order, b, False) | ways(order, b, True) & ways(order, a, False)
        assert order.between(a, b) == down
        assert order.waits_for(a, b) == (b in {order.find(at) for at in order.before[a]})
        if collapse or not down:
            leader = order.join({a, b} | down)
            assert leader == order.find(a) == order.find(b) == min({a, b} | down)
        for at in {order.find(at) for at in range(ITEMS)}:
            assert at not in ways(order, at, True)
