"""What operators with a state say of their axes: channels and heads that go through a convolution or a scan."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from roofline.ir.graph import Node
from roofline.passes.parallel.unify import ONE, Cell, cell, product, quotient, unify

#: For each tensor the cells of its axes.
Cells = Mapping[str, tuple[Cell, ...]]


def _same(left: tuple[Cell, ...], right: tuple[Cell, ...], why: str) -> None:
    for each, own in zip(left, right, strict=True):
        unify(each, own, why)


def _channels(cells: Cells, node: Node) -> None:
    """``(B, L, C)`` in and out, the channels first in a kernel ``(C, K)``, alone in a bias, second in a state."""
    first, *others = (cells[name] for name in node.inputs)
    _same(first, cells[node.outputs[0]], node.name)
    for at_input, other in enumerate(others):
        if node.op == "causal_conv" and at_input == 0:
            unify(first[-1], other[0], node.name)
        elif len(other) == len(first) and other[1].size == first[1].size:
            _same(first, other, node.name)
        else:
            at = 0 if len(other) == 1 else 1
            unify(first[-1], other[at], node.name)


def _scan_heads(cells: Cells, node: Node) -> None:
    """``X (B, L, H, P)`` in and out beside ``(B, L, G, N)`` twice, ``H`` a multiple of ``G``; numbers a head follow.

    Attention without a softmax is one, with values, keys and queries in that order.
    """
    x, keys, queries, *others = (cells[name] for name in node.inputs)
    _same(x, cells[node.outputs[0]], node.name)
    _same(keys, queries, node.name)
    _same(x[:2], keys[:2], node.name)
    heads, groups = x[2], keys[2]
    share = quotient(heads.size, groups.size)
    if share is not None and groups is not ONE:
        unify(heads, product([groups, cell(share)]), node.name)
    for other in others:
        at = {1: 0, 3: 2, 4: 1}.get(len(other))
        if at is not None and other[at].size == heads.size:
            unify(heads, other[at], node.name)


def _delta_heads(cells: Cells, node: Node) -> None:
    """Queries, keys ``(B, L, H, D)`` and values ``(B, L, H, E)``; decays and strengths a head, and a state, follow."""
    queries, keys, values, *others = (cells[name] for name in node.inputs)
    _same(values, cells[node.outputs[0]], node.name)
    _same(queries, keys, node.name)
    _same(queries[:3], values[:3], node.name)
    for other in others:
        at = 1 if len(other) == 4 and other[1].size == values[2].size and other[2].size != values[2].size else 2
        if len(other) > at and other[at].size == values[2].size:
            unify(values[2], other[at], node.name)


def _state(cells: Cells, node: Node) -> None:
    """A state ``(B, C, ...)`` that is kept of what was written for ``(B, L, C, ...)``."""
    state, written = (cells[name] for name in node.inputs[:2])
    _same(state, cells[node.outputs[0]], node.name)
    if len(state) > 1 and len(written) > 2 and state[1].size == written[2].size:
        unify(state[1], written[2], node.name)


#: The rule of each operator.
SCANS: Mapping[str, Callable[[Cells, Node], None]] = {
    "causal_conv": _channels,
    "linear_recurrence": _channels,
    "ssd_scan": _scan_heads,
    "delta_scan": _delta_heads,
    "state_update": _state,
}
