"""Contractions and convolutions as loops: what follows from a signature, one rule for all of them.

The loops are the axes of the signature, products as their factors; the result is set to the bias or to zero, then each
point of all axes adds one product. A mask bounds the loop over keys by the query.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from roofline.codegen.loops.arithmetic import apply
from roofline.codegen.loops.form import Const, Guard, Load, Loop, Statement, Store, Value
from roofline.codegen.loops.index import Index, index, largest, least
from roofline.codegen.loops.writer import Axis, Indices, Writer, attrs, variables
from roofline.ir.graph import Node
from roofline.ir.signature import Term
from roofline.ops.registry import get_op
from roofline.ops.windows import paddings, per_axis


class _Space:
    """The loops of an operator by the axes of its signature."""

    def __init__(self, w: Writer, node: Node) -> None:
        op = get_op(node.op)
        assert op.signature is not None
        self.signature = op.signature
        self.sizes: Mapping[str, Any] = op.sizes([w.shape(name) for name in node.inputs], attrs(node))
        self.loops: dict[str, list[Axis]] = {}
        self._writer = w

    def axes(self, term: Term) -> list[Axis]:
        """Return the loops of a term, ``...`` as several."""
        return [axis for name in self.signature.factors(term) for axis in self._of(name)]

    def _of(self, name: str) -> list[Axis]:
        if name not in self.loops:
            size = self.sizes[name]
            self.loops[name] = self._writer.axes(size, "x") if name == "..." else [self._writer.axis(name, int(size))]
        return self.loops[name]

    def index(self, term: Term) -> Indices:
        """Return where an operand is read or written: a product of axes is one index of its factors."""
        return tuple(each for axis in term for each in self._along(axis))

    def _along(self, axis: str) -> Indices:
        factors = self.signature.composites.get(axis)
        if factors is None:
            return variables(self._of(axis))
        total = Index()
        for factor in factors:
            total = total * int(self.sizes[factor]) + index(self._of(factor)[0][0])
        return (total,)


def contraction(w: Writer, node: Node) -> None:
    """Write a contraction of two operands that adds to the bias, or to zero."""
    space = _Space(w, node)
    left, right = space.signature.inputs[:2]
    out, target = _started(w, node, space, node.inputs[2:])
    product = [w.load(name, space.index(term)) for name, term in zip(node.inputs, (left, right), strict=False)]
    summed = [axis for axis in space.axes((*left, *right)) if axis not in out]
    axes = list(dict.fromkeys([*out, *summed]))
    bounds = _mask(space, attrs(node))
    if bounds:
        (query,), (key,) = space.loops["q"], space.loops["k"]
        axes.remove(query)
        axes.insert(axes.index(key), query)
    w.body.append(_bounded(axes, Store(*target, apply("mul", *product), "add", "flops"), bounds))


def _started(w: Writer, node: Node, space: _Space, bias: Sequence[str]) -> tuple[list[Axis], tuple[str, Indices]]:
    """Set the result to the bias, whose axis is the output's of the signature, or to zero; return loops and place."""
    term = space.signature.outputs[0]
    axes, at = space.axes(term), space.index(term)
    target, start = w.place(node.outputs[0], at), Const(0.0)
    first: Value = start
    if bias:
        own = space.index(space.signature.inputs[2])
        first = w.load(bias[0], own)
    w.store(axes, target, first)
    return axes, target


def _bounded(axes: Sequence[Axis], store: Store, bounds: Mapping[str, tuple[Index, Index]]) -> Statement:
    body: Statement = store
    for var, size in reversed(axes):
        start, stop = bounds.get(var, (Index(), index(size)))
        body = Loop(var, start, stop, (body,))
    return body


def _mask(space: _Space, options: Mapping[str, Any]) -> dict[str, tuple[Index, Index]]:
    if "q" not in space.loops or "k" not in space.loops:
        return {}
    (query, queries), (key, keys) = space.loops["q"][0], space.loops["k"][0]
    bounds = visible(index(query), queries, keys, options)
    return {key: bounds} if bounds else {}


def visible(query: Index, queries: int, keys: int, options: Mapping[str, Any]) -> tuple[Index, Index] | None:
    """Return the first key that a query sees and the one behind the last (:func:`roofline.ops.attention.visible`)."""
    causal, window = bool(options.get("causal", False)), int(options.get("window", 0))
    place = query + (keys - queries)
    if causal:
        return largest(place - (window - 1), 0) if window else Index(), largest(least(place + 1, keys), 0)
    if not window:
        return None
    start = largest(least(place - window // 2, max(0, keys - window)), 0)
    return start, least(start + window, keys)


#: Axes of the image, the window and the result of a convolution, by how many it has.
_IMAGES = {3: (("x",), ("r",), ("p",)), 4: (("h", "w"), ("r", "s"), ("p", "q")),
           5: (("d", "h", "w"), ("t", "r", "s"), ("e", "p", "q"))}  # fmt: skip


def convolution(w: Writer, node: Node) -> None:
    """Write a direct convolution: what the padding adds is zero, and is multiplied as it is counted."""
    space, options = _Space(w, node), attrs(node)
    image, kernel = space.signature.inputs[:2]
    out, target = _started(w, node, space, node.inputs[2:])
    names = _IMAGES[len(image)]
    rank = len(names[0])
    steps, gaps = (per_axis(options.get(key, 1), rank) for key in ("stride", "dilation"))
    before = [each[0] for each in paddings(options.get("padding", 0), rank)]
    seen = [space.index((to,))[0] * step + space.index((by,))[0] * gap - pad
            for to, by, step, gap, pad in zip(names[2], names[1], steps, gaps, before, strict=True)]  # fmt: skip
    at = (*space.index(image[:2]), *seen)
    value = inside(w.load(node.inputs[0], at), seen, w.shape(node.inputs[0])[2:], padded(options, rank))
    weight = w.load(node.inputs[1], space.index(kernel))
    axes = list(dict.fromkeys([*out, *space.axes(kernel)]))
    w.store(axes, target, apply("mul", value, weight), "add", "flops")


def padded(options: Mapping[str, Any], rank: int) -> bool:
    """Tell whether a window reaches beyond its image."""
    return any(any(each) for each in paddings(options.get("padding", 0), rank))


def inside(value: Load, at: Sequence[Index], sizes: Sequence[int], needed: bool, outside: float = 0.0) -> Value:
    """Read only inside an image; beyond it stands a number."""
    if not needed:
        return value
    conditions = [each for place, size in zip(at, sizes, strict=True) for each in (place, index(size - 1) - place)]
    return Guard(tuple(conditions), value, Const(outside))
