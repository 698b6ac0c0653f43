"""Loops of the operators that are no contractions: elementwise, rows, windows, moves."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from roofline.codegen.loops.arithmetic import apply, traced
from roofline.codegen.loops.contractions import convolution, inside, padded, visible
from roofline.codegen.loops.form import Const, Load, Loop, Store, Value, nest
from roofline.codegen.loops.index import Fetch, Index, divided, index, remainder
from roofline.codegen.loops.writer import Axis, Indices, Rule, Writer, attrs, variables
from roofline.ir.errors import UsageError
from roofline.ir.graph import Node
from roofline.ops.attention import SCALE
from roofline.ops.pointwise import POINTWISE
from roofline.ops.registry import GRADIENTS, axes_of, get_op
from roofline.ops.rowwise import EPSILON
from roofline.ops.windows import per_axis

# --- elementwise ------------------------------------------------------------------------------------------------------


def pointwise(w: Writer, node: Node) -> None:
    """Write what the operator's formula in numpy does to an element."""
    call, out = w.call(node), node.outputs[0]
    if node.op == "elementwise" and str(call.attrs.get("what", "")) not in GRADIENTS:
        raise UsageError(f"{node.name}: nothing says which function this elementwise operator computes")
    axes = w.axes(w.shape(out))
    at = variables(axes)
    formula = get_op(node.op).reference
    assert formula is not None
    value = traced(lambda *x: formula(call, *x), *(w.broadcast(name, at) for name in node.inputs))
    w.store(axes, w.place(out, at), value)


def _filled(w: Writer, node: Node) -> None:
    axes = w.axes(w.shape(node.outputs[0]))
    w.store(axes, w.place(node.outputs[0], variables(axes)), Const(w.call(node).free("value")))


# --- rows -------------------------------------------------------------------------------------------------------------


class _Rows:
    """An operand with the axes that stay and those that are reduced."""

    def __init__(self, w: Writer, node: Node, over: Sequence[int]) -> None:
        self.w, self.node = w, node
        self.shape = w.shape(node.inputs[0])
        self.over = axes_of(len(self.shape), tuple(over)) if over else ()
        self.length = math.prod(self.shape[at] for at in self.over)
        self.dtype = "fp64" if w.dtype(node.inputs[0]) == "fp64" else "fp32"

    def axes(self) -> tuple[list[Axis], Indices, list[Axis], Indices]:
        """Return fresh loops over the operand and, of them, over its rows, each with its variables."""
        axes = self.w.axes(self.shape)
        rows = [axis for at, axis in enumerate(axes) if at not in self.over]
        return axes, variables(axes), rows, variables(rows)

    def statistic(self, name: str) -> str:
        """Return a local buffer with a number for each row."""
        return self.w.local(name, [size for at, size in enumerate(self.shape) if at not in self.over], self.dtype)

    def reduced(self, name: str, how: str, start: Value, of: Callable[[Indices], Value]) -> str:
        """Write a reduction of each row into a local buffer."""
        into = self.statistic(name)
        self.of_row(into, lambda _: start)
        axes, at, rows, row = self.axes()
        order = [*rows, *(axis for axis in axes if axis not in rows)]
        self.w.store(order, (into, row), of(at), how)
        return into

    def of_row(self, into: str, value: Callable[[Indices], Value]) -> None:
        """Write a number for each row from others of that row."""
        _, _, rows, row = self.axes()
        self.w.store(rows, (into, row), value(row), account="rows")

    def row(self, at: Indices) -> Indices:
        """Return the row of an element."""
        return tuple(each for axis, each in enumerate(at) if axis not in self.over)


def _norm(over: Callable[[int], tuple[int, ...]], along: int, centred: bool = True) -> Rule:
    """Make the rule of a norm over some axes, with scale and shift along one."""

    def rule(w: Writer, node: Node) -> None:
        rows, x = _Rows(w, node, over(len(w.shape(node.inputs[0])))), node.inputs[0]
        mean = rows.reduced("mean", "add", Const(0.0), lambda at: w.load(x, at)) if centred else ""
        rest = w.local("rest", rows.shape, rows.dtype) if centred else ""
        if centred:
            rows.of_row(mean, lambda row: apply("mul", Load(mean, row), 1 / rows.length))
            axes, at, *_ = rows.axes()
            w.store(axes, (rest, at), apply("sub", w.load(x, at), Load(mean, rows.row(at))))

        def value(at: Indices) -> Value:
            return Load(rest, at) if centred else w.load(x, at)

        _normalised(rows, value, along)

    return rule


def _normalised(rows: _Rows, value: Callable[[Indices], Value], along: int) -> None:
    """Divide by the root of the mean square, then scale and shift."""
    w, node = rows.w, rows.node
    eps = float(attrs(node).get("eps", EPSILON))
    root = rows.reduced("root", "add", Const(0.0), lambda at: apply("mul", value(at), value(at)))
    mean = 1 / rows.length

    def inverse(row: Indices) -> Value:
        return apply("div", 1.0, apply("sqrt", apply("add", apply("mul", Load(root, row), mean), eps)))

    rows.of_row(root, inverse)
    axes, at, *_ = rows.axes()
    result = apply("mul", value(at), Load(root, rows.row(at)))
    for name, what in zip(node.inputs[1:], ("mul", "add"), strict=False):
        result = apply(what, result, w.load(name, (at[along],)))
    w.store(axes, w.place(node.outputs[0], at), result)


def _softmax(w: Writer, node: Node) -> None:
    _weights(w, node, 1.0, ())


def _attention_softmax(w: Writer, node: Node) -> None:
    _weights(w, node, float(attrs(node).get("scale", SCALE)), node.inputs[1:])


def _weights(w: Writer, node: Node, scale: float, sinks: Sequence[str]) -> None:
    """Write a softmax with powers of two, ``2^(c x - c max)``: five operations per element with the scale."""
    if scale < 0:
        raise UsageError(f"{node.name}: scale={scale:g}; a softmax over loops takes a scale of at least 0")
    x, out, by = node.inputs[0], node.outputs[0], scale * math.log2(math.e)
    rows = _Rows(w, node, (-1,))
    visit = _Visible(rows)

    def scaled(at: Indices) -> Value:
        return apply("mul", w.load(x, at), by)

    def sink(row: Indices) -> Value:
        return apply("mul", w.load(sinks[0], (row[1],)), math.log2(math.e))

    peak = visit.reduced("peak", "max", lambda row: Const(-math.inf), lambda at: w.load(x, at))
    rows.of_row(peak, lambda row: apply("mul", Load(peak, row), by))
    if sinks:
        rows.of_row(peak, lambda row: apply("max", Load(peak, row), sink(row)))
    e = w.local("weights", rows.shape, rows.dtype)
    visit.each((e, None), lambda at: apply("exp2", apply("sub", scaled(at), Load(peak, rows.row(at)))))
    rest: Callable[[Indices], Value] = lambda row: apply("exp2", apply("sub", sink(row), Load(peak, row)))  # noqa: E731
    total = visit.reduced("total", "add", rest if sinks else lambda row: Const(0.0), lambda at: Load(e, at))
    if visit.hides:  # what the mask hides is zero
        axes, at, *_ = rows.axes()
        w.store(axes, w.place(out, at), Const(0.0))
    visit.each((out, w), lambda at: apply("div", Load(e, at), Load(total, rows.row(at))))


class _Visible:
    """Loops over the part of each row that a mask leaves."""

    def __init__(self, rows: _Rows) -> None:
        self.rows, self.options = rows, attrs(rows.node)
        self.hides = len(rows.shape) > 1 and bool(visible(Index(), rows.shape[-2], rows.shape[-1], self.options))

    def _loops(self, axes: list[Axis], store: Store) -> Loop:
        (key, keys), body = axes[-1], nest([], store)
        bounds = visible(index(axes[-2][0]), axes[-2][1], keys, self.options) if self.hides else None
        start, stop = bounds or (Index(), index(keys))
        loop = nest(axes[:-1], Loop(key, start, stop, (body,)))  # type: ignore[arg-type]
        assert isinstance(loop, Loop)
        return loop

    def each(self, target: tuple[str, Writer | None], value: Callable[[Indices], Value]) -> None:
        axes, at, *_ = self.rows.axes()
        name, writer = target
        buffer, place = writer.place(name, at) if writer else (name, at)
        self.rows.w.body.append(self._loops(axes, Store(buffer, place, value(at))))

    def reduced(
        self, name: str, how: str, start: Callable[[Indices], Value], of: Callable[[Indices], Value]
    ) -> str:  # fmt: skip
        into = self.rows.statistic(name)
        self.rows.of_row(into, start)
        axes, at, _, row = self.rows.axes()
        self.rows.w.body.append(self._loops(axes, Store(into, row, of(at), how)))
        return into


# --- reductions -------------------------------------------------------------------------------------------------------

#: Reductions by the option ``how``: what combines, and from which number on.
_HOW = {
    "sum": ("add", 0.0), "mean": ("add", 0.0), "prod": ("mul", 1.0),
    "max": ("max", -math.inf), "min": ("min", math.inf),
}  # fmt: skip


def _reduction(how: str | None = None, over: tuple[int, ...] | None = None) -> Rule:
    """Make the rule of a reduction; of an operator that says how and over which axes itself, without them."""

    def rule(w: Writer, node: Node) -> None:
        options, x, out = attrs(node), node.inputs[0], node.outputs[0]
        own = how or options.get("how") or "free"
        if own not in (*_HOW, "free"):
            raise UsageError(f"{node.name}: no loops for a reduction by {own!r}; there are {', '.join(_HOW)}")
        rows = _Rows(w, node, over or axes_of(len(w.shape(x)), options.get("axes")))
        combine, first = _HOW.get(own, ("add", 0.0))
        factor = 1 / rows.length if own == "mean" else w.call(node).free("factor") if own == "free" else 1.0
        keep = bool(options.get("keepdim", False))

        def target(row: Indices) -> tuple[str, Indices]:
            left = iter(row)
            full = tuple(Index() if at in rows.over else next(left) for at in range(len(rows.shape)))
            return w.place(out, full if keep else row)

        _, _, outer, row = rows.axes()
        w.store(outer, target(row), Const(first), account="rows")
        axes, at, inner, row = rows.axes()
        w.store([*inner, *(axis for axis in axes if axis not in inner)], target(row), w.load(x, at), combine)
        if factor != 1:
            _, _, outer, row = rows.axes()
            w.store(outer, target(row), factor_of(target(row), factor), account="rows")

    return rule


def factor_of(target: tuple[str, Indices], factor: float) -> Value:
    """Return an element times a number."""
    return apply("mul", Load(*target), factor)


def _pool(how: str, first: float) -> Rule:
    """Make the rule of a pooling window; a mean counts the padding."""

    def rule(w: Writer, node: Node) -> None:
        options, x, out = attrs(node), node.inputs[0], node.outputs[0]
        sizes = per_axis(options["r"], 2)
        steps, before = per_axis(options.get("stride") or sizes, 2), per_axis(options.get("padding", 0), 2)
        before = tuple(each[0] if isinstance(each, tuple) else each for each in before)
        axes = w.axes(w.shape(out))
        w.store(axes, w.place(out, variables(axes)), Const(first), account="rows")
        axes, taps = w.axes(w.shape(out)), [w.axis("r", sizes[0]), w.axis("s", sizes[1])]
        at = variables(axes)
        seen = [at[2 + n] * steps[n] + index(taps[n][0]) - before[n] for n in range(2)]
        value = inside(w.load(x, (*at[:2], *seen)), seen, w.shape(x)[2:], padded(options, 2), first)
        w.store([*axes, *taps], w.place(out, at), value, how)
        if how == "add":
            axes = w.axes(w.shape(out))
            target = w.place(out, variables(axes))
            w.store(axes, target, factor_of(target, 1 / math.prod(sizes)), account="rows")

    return rule


def _batchnorm(w: Writer, node: Node) -> None:
    """One multiply and one add per element; the two vectors are worked out once a channel."""
    x, *parts = node.inputs
    channels, eps = w.shape(x)[1], float(attrs(node).get("eps", EPSILON))
    *scales, mean, variance = parts if len(parts) > 1 else (*parts, "", "")
    dtype = "fp64" if w.dtype(x) == "fp64" else "fp32"
    scale, shift = w.local("scale", (channels,), dtype), w.local("shift", (channels,), dtype)
    axis = [w.axis("c", channels)]
    at = variables(axis)
    root: Value = Const((1 + eps) ** -0.5)
    if variance:
        root = apply("div", 1.0, apply("sqrt", apply("add", w.load(variance, at), eps)))
    w.store(axis, (scale, at), apply("mul", w.load(scales[0], at), root) if scales else root, account="rows")
    axis = [w.axis("c", channels)]
    at = variables(axis)
    start: Value = w.load(scales[1], at) if len(scales) > 1 else Const(0.0)
    moved = apply("sub", start, apply("mul", w.load(mean, at), Load(scale, at))) if mean else start
    w.store(axis, (shift, at), moved, account="rows")
    axes = w.axes(w.shape(x))
    at = variables(axes)
    value = apply("add", apply("mul", w.load(x, at), Load(scale, (at[1],))), Load(shift, (at[1],)))
    w.store(axes, w.place(node.outputs[0], at), value)


# --- moves ------------------------------------------------------------------------------------------------------------


def _joined(w: Writer, node: Node) -> None:
    out, start = node.outputs[0], 0
    along = int(attrs(node).get("axis", -1)) % len(w.shape(out))
    for name in node.inputs:
        axes = w.axes(w.shape(name))
        at = variables(axes)
        moved = tuple(each + start if axis == along else each for axis, each in enumerate(at))
        w.store(axes, w.place(out, moved), w.load(name, at))
        start += w.shape(name)[along]


def _transposed(w: Writer, node: Node) -> None:
    axes = w.axes(w.shape(node.outputs[0]))
    at = variables(axes)
    w.store(axes, w.place(node.outputs[0], at), w.load(node.inputs[0], (*at[:-2], at[-1], at[-2])))


def _rows_by_index(w: Writer, node: Node) -> None:
    """Read the rows that a list asks for, round again beyond the end of the table."""
    table, ids = node.inputs
    axes = w.axes(w.shape(node.outputs[0]))
    at = variables(axes)
    rank = len(w.shape(ids))
    buffer, place = w.place(ids, at[:rank])
    row = Index(((Fetch(buffer, place), 1),))
    w.store(axes, w.place(node.outputs[0], at), w.load(table, (remainder(row, w.shape(table)[0], {}), *at[rank:])))


def _cached(w: Writer, node: Node) -> None:
    """Write the new positions into the last places of a cache."""
    cache, new = (w.shape(name) for name in node.inputs)
    count = min(cache[2], new[2])
    axes = w.axes((*new[:2], count, new[3]))
    b, g, n, d = variables(axes)
    value = w.load(node.inputs[1], (b, g, n + (new[2] - count), d))
    w.store(axes, w.place(node.outputs[0], (b, g, n + (cache[2] - count), d)), value)


def _upsampled(w: Writer, node: Node) -> None:
    scale, axes = int(attrs(node)["scale"]), w.axes(w.shape(node.outputs[0]))
    at = variables(axes)
    seen = [divided(each, scale, w.ranges) for each in at[2:]]
    w.store(axes, w.place(node.outputs[0], at), w.load(node.inputs[0], (*at[:2], *seen)))


def _batch(rank: int) -> tuple[int, ...]:
    return (0, *range(2, rank))


#: The rule of each operator that has one of its own; contractions have theirs by their signature.
RULES: dict[str, Rule] = {
    **dict.fromkeys([*POINTWISE, "elementwise", "dequantize", "quantize"], pointwise), "fill": _filled,
    "softmax": _softmax, "attention_softmax": _attention_softmax,
    "layernorm": _norm(lambda rank: (rank - 1,), -1), "rmsnorm": _norm(lambda rank: (rank - 1,), -1, centred=False),
    "layernorm2d": _norm(lambda rank: (1,), 1), "batchnorm_train": _norm(_batch, 1), "batchnorm2d": _batchnorm,
    "reduce": _reduction(), "sum": _reduction("sum", (-1,)), "mean": _reduction("mean", (-1,)),
    "global_avgpool": _reduction("mean", (2, 3)), "maxpool2d": _pool("max", -math.inf), "avgpool2d": _pool("add", 0.0),
    "cat": _joined, "transpose_copy": _transposed, "embedding": _rows_by_index, "gather": _rows_by_index,
    "gather_rows": _rows_by_index, "cache_update": _cached, "upsample2d": _upsampled,
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), convolution),
}  # fmt: skip
