"""How operators become StableHLO: by name, from their numpy meaning, or by a rule of their own.

By name: an elementwise function that StableHLO has too. From the meaning: :data:`IN_PLACE` where that is a line or two
(views, arithmetic), else a ``composite`` called ``roofline.OPERATOR``, whose decomposition is the meaning, computed in
fp32, and which tells a reader what it is. By a rule: what StableHLO has one operation for that numpy writes otherwise
(products, convolutions, windows, rows of a table), and narrow numbers with scales.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from roofline.codegen.stablehlo import body as hlo
from roofline.codegen.stablehlo.arrays import Recorded
from roofline.codegen.stablehlo.body import Body, Stored, Value, Window
from roofline.ir.errors import UnknownOp
from roofline.ops.arrays import Call, mix, updated
from roofline.ops.convolution import inferred_stride
from roofline.ops.einsum import axis_roles, factored_terms
from roofline.ops.moves import flat_places
from roofline.ops.registry import OPS
from roofline.ops.windows import paddings, per_axis


@dataclass(frozen=True, slots=True)
class Site:
    """A node as its rule sees it.

    Attributes:
        body: The function that it stands in.
        call: Its options and the shape of its result; what the graph leaves open is drawn as the executor does.
        inputs: What it reads.
        out: How its result lies in memory.
    """

    body: Body
    call: Call
    inputs: Sequence[Value]
    out: Stored

    def wide(self, at: int, element: str = "") -> Value:
        """Return an operand as numbers of the result's type, with its scales multiplied in."""
        return widened(self.body, self.inputs[at], element or self.out.element)

    def per_axis(self, option: str, default: Any, axes: int) -> tuple[Any, ...]:
        """Return an option axis by axis."""
        return per_axis(self.call.attrs.get(option, default), axes)


Rule = Callable[[Site], Value]


def widened(body: Body, x: Value, element: str) -> Value:
    """Return the numbers that narrow ones stand for: ``(q - zero) scale``."""
    out = hlo.convert(body, x, element)
    for op, part in (("subtract", x.zero), ("multiply", x.scale)):
        if part is not None:
            out = hlo.binary(body, op, out, _by_element(body, hlo.convert(body, part, element), x.shape, x.block))
    return out


def _by_element(body: Body, scale: Value, shape: tuple[int, ...], block: tuple[int, int]) -> Value:
    """Repeat what a block shares for each of its elements; the last one may be cut."""
    if scale.shape[-1] == 1 and block[0] == 1:
        return hlo.expand(body, scale, shape)
    *lead, groups = scale.shape
    apart: tuple[int, ...] = (*lead, groups, block[1])
    axes = list(range(len(scale.shape)))
    if block[0] > 1:
        apart, axes = (*lead, block[0], groups, block[1]), [*axes[:-1], axes[-1] + 1]
    wide = hlo.broadcast(body, scale, apart, axes)
    full = (*shape[:-2], *((lead[-1] * block[0],) if block[0] > 1 else shape[-2:-1]), groups * block[1])
    return hlo.cut(body, hlo.reshape(body, wide, full), (0,) * len(shape), shape, (1,) * len(shape))


# --- from the numpy meaning -------------------------------------------------------------------------------------------


class RecordedCall(Call):
    """A call whose numpy meaning is recorded: what it counts with is recorded, too."""

    __slots__ = ("body",)

    body: Body

    def arange(self, size: int) -> Any:
        """Return the whole numbers from 0."""
        return Recorded(self.body, hlo.iota(self.body, size))


def _recorded_call(call: Call, body: Body) -> RecordedCall:
    own = RecordedCall(call.name, call.op, call.attrs, call.shape, call.dtype, call.seed)
    object.__setattr__(own, "body", body)
    return own


def recorded(site: Site, body: Body, values: Sequence[Value]) -> Value:
    """Run the numpy meaning of an operator on tensors of a function.

    Raises:
        UnknownOp: It says nothing of what is computed, or does what no rule writes down.
    """
    call = site.call
    reference = OPS[call.op].reference
    if reference is None or reference in (mix, updated):
        raise UnknownOp("the graph does not say what it computes")
    try:
        result = reference(_recorded_call(call, body), *(Recorded(body, value) for value in values))
    except (TypeError, AttributeError, IndexError) as error:
        raise UnknownOp(f"its numpy meaning is not written as functions of arrays ({error})") from None
    if isinstance(result, Recorded):
        return result.value
    return hlo.constant(body, result, site.out.element if hlo.is_float(site.out.element) else "f32")


def in_place(site: Site) -> Value:
    """Write the meaning out where the node stands, in the type of its result."""
    if any(each.scale is not None for each in site.inputs):
        raise UnknownOp("numbers with scales")
    floats = hlo.is_float(site.out.element) and site.out.element != "f8E4M3FN"
    moved = OPS[site.call.op].kind in ("view", "move")
    values = [each if moved or not floats else hlo.convert(site.body, each, site.out.element) for each in site.inputs]
    return recorded(site, site.body, values)


def composite(site: Site) -> Value:
    """Write the meaning as a function of its own, which computes in fp32 or wider, and refer to it."""
    return wrapped(site, lambda inner: recorded(inner, inner.body, [
        hlo.convert(inner.body, each, _computed(each.element)) for each in inner.inputs
    ]))  # fmt: skip


def _computed(element: str) -> str:
    """Return the type that numbers are computed in: whole numbers, flags and fp64 as they are, others fp32."""
    return element if element == "f64" or not hlo.is_float(element) else "f32"


def wrapped(site: Site, rule: Rule) -> Value:
    """Write what a rule makes as a function of its own, and refer to it by the operator's name."""
    inputs = [hlo_wide(site.body, each) for each in site.inputs]
    inner = Body(site.body.module)
    values = [Value(f"%arg{at}", each.shape, each.element) for at, each in enumerate(inputs)]
    made = hlo.convert(inner, rule(replace(site, body=inner, inputs=values)), site.out.element)
    parameters = ", ".join(f"{each.name}: {each.type}" for each in values)
    lines = "\n".join(f"  {line}" for line in hlo.finished(inner, f"return {made.name} : {made.type}"))
    name = site.body.module.function(site.call.op, f"({parameters}) -> {made.type} {{\n{lines}\n}}")
    attributes = ", ".join(f"{key} = {_attribute(value)}" for key, value in site.call.attrs.items())
    attributes = f"composite_attributes = {{{attributes}}}, " if attributes else ""
    operands, types = ", ".join(each.name for each in inputs), ", ".join(each.type for each in inputs)
    return site.body.add(
        f'stablehlo.composite "roofline.{site.call.op}" {operands} {{{attributes}decomposition = @{name}}} : '
        f"({types}) -> {made.type}", made.shape, made.element,
    )  # fmt: skip


def hlo_wide(body: Body, x: Value) -> Value:
    """Return a tensor without scales."""
    return x if x.scale is None else widened(body, x, x.scale.element if x.scale.element in ("f16", "f32") else "bf16")


def _attribute(value: Any) -> str:
    """Return an option as an attribute of MLIR."""
    if isinstance(value, bool | np.bool_):
        return "true" if value else "false"
    if isinstance(value, int | np.integer):
        return f"{int(value)} : i64"
    if isinstance(value, tuple):
        return f"[{', '.join(map(_attribute, value))}]"
    if isinstance(value, str) or value is None:
        return hlo.quoted(value or "")
    return f"{hlo.literal(float(value), 'f64')} : f64"


# --- products ---------------------------------------------------------------------------------------------------------


def contraction(site: Site) -> Value:
    """Contract as the signature says; narrow whole numbers are added up in 32 bits and scaled after that."""
    x, y, *bias = site.inputs
    out = _narrow_product(site) if _has_narrow_product(site) else _product(site, *_alike(site, x, y), site.out.element)
    for at in range(2, 2 + len(bias)):
        out = hlo.binary(site.body, "add", out, site.wide(at))
    return out


def masked(site: Site) -> Value:
    """Contract; where a mask leaves a share of the pairs, say so."""
    if site.call.attrs.get("causal") or site.call.attrs.get("window"):
        return wrapped(site, contraction)
    return contraction(site)


def _alike(site: Site, x: Value, y: Value) -> tuple[Value, Value]:
    """Return operands of one floating-point type: their own where they have one, else that of the result."""
    plain = x.scale is None and y.scale is None
    element = x.element if plain and x.element == y.element else site.out.element
    element = element if hlo.is_float(element) else site.out.element
    return widened(site.body, x, element), widened(site.body, y, element)


def _product(site: Site, x: Value, y: Value, element: str) -> Value:
    op = OPS[site.call.op]
    assert op.signature is not None
    sizes = op.sizes([x.shape, y.shape], site.call.attrs)
    terms = [[each for axis in term for each in _places(axis, sizes)] for term in factored_terms(op.signature)]
    left, right, out = ([name for name, _ in term] for term in terms)
    x, y = (hlo.reshape(site.body, each, [size for _, size in term]) for each, term in zip((x, y), terms, strict=False))
    b, m, n, k = axis_roles(tuple(left), tuple(right), tuple(out))
    shared, gone = ((list(map(left.index, axes)), list(map(right.index, axes))) for axes in (b, k))
    made = hlo.dot(site.body, x, y, shared, gone, element)
    order = [*b, *m, *n]
    return hlo.reshape(site.body, hlo.transpose(site.body, made, list(map(order.index, out))), site.call.shape)


def _places(axis: str, sizes: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the names and sizes of an axis, of which ``...`` stands for several."""
    if axis != "...":
        return [(axis, sizes[axis])]
    return [(f"...{at}", size) for at, size in enumerate(sizes[axis])]


def _has_narrow_product(site: Site) -> bool:
    """Tell whether rows of narrow numbers meet rows of narrow numbers, with a scale for a whole row at most."""
    x, y = site.inputs[:2]
    narrow = {x.element, y.element} <= {"i2", "i4", "i8"} or {x.element, y.element} == {"f8E4M3FN"}
    plain = all(
        each.zero is None and (each.scale is None or each.scale.shape[-1] == each.block[0] == 1) for each in (x, y)
    )
    return narrow and plain and (site.call.op == "linear" or (x.scale is None and y.scale is None))


def _narrow_product(site: Site) -> Value:
    x, y = site.inputs[:2]
    body, total = site.body, "f32" if hlo.is_float(x.element) else "i32"
    operands = [hlo.convert(body, each, hlo.wider(x.element, y.element)) for each in (x, y)]
    scales = [(each.scale, turned) for each, turned in ((x, False), (y, True)) if each.scale is not None]
    out = _product(site, operands[0], operands[1], total)
    if not scales:
        return hlo.convert(body, out, site.out.element)
    out = hlo.convert(body, out, "f32")
    for scale, turned in scales:  # of a row of the result, or of a column
        wide = hlo.convert(body, scale, "f32")
        out = hlo.binary(body, "multiply", out, hlo.reshape(body, wide, scale.shape[:1]) if turned else wide)
    return hlo.convert(body, out, site.out.element)


def by_expert(site: Site) -> Value:
    """Multiply row ``r`` by the matrix of expert ``r mod E``, as the executor does: a batched product."""
    x, w = _alike(site, *site.inputs[:2])
    body, experts, (rows, inner), wide = site.body, w.shape[0], x.shape, w.shape[1]
    turns = -(-rows // experts)
    grid = hlo.reshape(body, hlo.pad(body, x, [(0, turns * experts - rows), (0, 0)]), (turns, experts, inner))
    made = hlo.dot(body, grid, w, ((1,), (0,)), ((2,), (2,)), site.out.element)
    made = hlo.transpose(body, made, (1, 0, 2))
    for at in range(2, len(site.inputs)):
        made = hlo.binary(body, "add", made, site.wide(at))
    return hlo.cut(body, hlo.reshape(body, made, (turns * experts, wide)), (0, 0), (rows, wide), (1, 1))


def experts_gradient(site: Site) -> Value:
    """Multiply the rows of each expert, ``r mod E``: the gradient of its matrix."""
    body, number = site.body, site.call.shape[0]
    grids = []
    for at in (0, 1):
        rows, width = (x := site.wide(at)).shape
        turns = -(-rows // number)
        padded = hlo.pad(body, x, [(0, turns * number - rows), (0, 0)])
        grids.append(hlo.reshape(body, padded, (turns, number, width)))
    return hlo.dot(body, grids[0], grids[1], ((1,), (1,)), ((0,), (0,)), site.out.element)


def triangular_solve(site: Site) -> Value:
    """Solve with the lower triangle and ``1 + |d|`` on the diagonal, as the executor does."""
    body, size = site.body, site.inputs[0].shape[-1]
    matrix: Any = Recorded(body, site.wide(0))
    place: Any = Recorded(body, hlo.iota(body, size))
    row, column = place[:, None], place[None, :]
    lower: Any = np.where(row > column, matrix, np.where(row == column, 1 + np.abs(matrix), 0.0))
    a, b = lower.value, site.wide(1)
    return body.add(
        f'"stablehlo.triangular_solve"({a.name}, {b.name}) <{{left_side = true, lower = true, transpose_a = '
        f"#stablehlo<transpose NO_TRANSPOSE>, unit_diagonal = false}}> : ({a.type}, {b.type}) -> {b.type}",
        b.shape, b.element,
    )  # fmt: skip


def experts(site: Site) -> Value:
    """Send token ``t`` to the experts ``t``, ``t + 1``, ... ``mod E``, as the executor does: all, times 0 or 1."""
    body, element = site.body, _computed(site.out.element)
    x, up, down = (hlo.convert(body, each, element) for each in site.inputs)
    number, inner, picks = up.shape[0], down.shape[-1], int(site.call.attrs["top_k"])
    wide = Recorded(body, hlo.dot(body, x, up, ((), ()), ((1,), (2,)), element))  # tokens, experts, u
    gate: Any = wide[:, :, :inner]
    gate = gate * (0.5 * (1 + np.tanh(0.5 * gate)))
    hidden: Any = gate * wide[:, :, inner:] if wide.shape[-1] == 2 * inner else gate
    tokens, own = (Recorded(body, hlo.iota(body, size)) for size in (x.shape[0], number))
    chosen = np.remainder(own[None, :] - tokens[:, None], number) < picks
    hidden = np.where(chosen[:, :, None], hidden, 0.0)
    out: Any = Recorded(body, hlo.dot(body, hidden.value, down, ((), ()), ((1, 2), (0, 2)), element)) / picks
    return hlo.convert(body, out.value, site.out.element)


# --- convolutions -----------------------------------------------------------------------------------------------------


def convolution(site: Site) -> Value:
    """Convolve images whose channels come first."""
    x, w = _alike(site, *site.inputs[:2])
    axes = len(x.shape) - 2
    ones = (1,) * axes
    around = paddings(site.call.attrs.get("padding", 0), axes)
    steps, gaps = site.per_axis("stride", 1, axes), site.per_axis("dilation", 1, axes)
    window = Window(steps, around, ones, gaps, site.call.attrs.get("groups") or 1)
    return _biased(site, hlo.convolve(site.body, x, w, window, site.call.shape))


def transposed_convolution(site: Site) -> Value:
    """Spread every point of the input over a window: a convolution of the image with gaps and the kernel reversed."""
    x, w = _alike(site, *site.inputs[:2])
    axes, groups = len(x.shape) - 2, site.call.attrs.get("groups") or 1
    steps, gaps = site.per_axis("stride", 1, axes), site.per_axis("dilation", 1, axes)
    before = [first for first, _ in paddings(site.call.attrs.get("padding", 0), axes)]
    return _biased(site, _spread(site, x, w, steps, gaps, groups, before))


def image_gradient(site: Site) -> Value:
    """Spread the gradient of each point of the result over the image, as a transposed convolution does."""
    x, w = _alike(site, *site.inputs[:2])
    steps = inferred_stride(site.call, site.call.shape[2:], x.shape[2:])
    gaps, groups = site.per_axis("dilation", 1, 2), site.call.attrs.get("groups") or 1
    before = [first for first, _ in paddings(site.call.attrs.get("padding", 0), 2)]
    return _spread(site, x, w, steps, gaps, groups, before)


def kernel_gradient(site: Site) -> Value:
    """Convolve the image with the gradient, images as channels: what each tap saw times what it was added to."""
    x, grad = _alike(site, *site.inputs[:2])
    steps = inferred_stride(site.call, x.shape[2:], grad.shape[2:])
    gaps, groups = site.per_axis("dilation", 1, 2), site.call.attrs.get("groups") or 1
    axes = zip(site.call.shape[2:], gaps, grad.shape[2:], steps, x.shape[2:],
               paddings(site.call.attrs.get("padding", 0), 2), strict=True)  # fmt: skip
    around = [
        (first, (wide - 1) * gap + (points - 1) * step + 1 - size - first)
        for wide, gap, points, step, size, (first, _) in axes
    ]
    window = Window(gaps, around, (1, 1), steps, 1, groups)
    return hlo.convolve(site.body, x, grad, window, site.call.shape, "fb io fb")


def _spread(
    site: Site, x: Value, w: Value, steps: Sequence[int], gaps: Sequence[int], groups: int, before: Sequence[int]
) -> Value:
    body, (inner, outer, *window) = site.body, w.shape
    kernel = hlo.reverse(body, w, range(2, len(w.shape)))
    apart = hlo.reshape(body, kernel, (groups, inner // groups, outer, *window))
    kernel = hlo.transpose(body, apart, (1, 0, *range(2, len(apart.shape))))
    kernel = hlo.reshape(body, kernel, (inner // groups, groups * outer, *window))
    reach = [gap * (size - 1) for gap, size in zip(gaps, window, strict=True)]
    around = [
        (wide - first, size + first - (points - 1) * step - 1)
        for wide, first, size, points, step in zip(reach, before, site.call.shape[2:], x.shape[2:], steps, strict=True)
    ]
    moves = Window((1,) * len(window), around, steps, gaps, groups)
    return hlo.convolve(body, x, kernel, moves, site.call.shape, "bf io bf")


def _biased(site: Site, out: Value) -> Value:
    for at in range(2, len(site.inputs)):
        bias = hlo.broadcast(site.body, site.wide(at), out.shape, (1,))
        out = hlo.binary(site.body, "add", out, bias)
    return out


def batch_norm(site: Site) -> Value:
    """Normalise by statistics that are kept: StableHLO's own operation."""
    from roofline.ops.rowwise import EPSILON

    body, x = site.body, site.wide(0)
    vectors = [site.wide(at) for at in range(1, len(site.inputs))]
    one, zero = (hlo.constant(body, each, x.element, x.shape[1:2]) for each in (1.0, 0.0))
    *scales, mean, variance = vectors if len(vectors) > 1 else [*vectors, zero, one]
    scale, shift = [*scales, *[one, zero][len(scales) :]]
    epsilon = hlo.literal(float(site.call.attrs.get("eps", EPSILON)), "f32")
    parts = (x, scale, shift, mean, variance)
    return body.add(
        f'"stablehlo.batch_norm_inference"({", ".join(each.name for each in parts)}) '
        f"<{{epsilon = {epsilon} : f32, feature_index = 1 : i64}}> : "
        f"({', '.join(each.type for each in parts)}) -> {x.type}", x.shape, x.element,
    )  # fmt: skip


def pooling(op: str, start: float) -> Rule:
    """Make a rule that reduces windows of images."""

    def rule(site: Site) -> Value:
        x = site.wide(0)
        sizes = per_axis(site.call.attrs["r"], 2)
        steps = per_axis(site.call.attrs.get("stride") or sizes, 2)
        around = [(0, 0), (0, 0), *paddings(site.call.attrs.get("padding", 0), 2)]
        out = hlo.windows(site.body, x, op, start, (1, 1, *sizes), (1, 1, *steps), around)
        if op != "add":
            return out
        return hlo.binary(
            site.body, "divide", out, hlo.constant(site.body, float(np.prod(sizes)), x.element, out.shape)
        )

    return rule


# --- moves ------------------------------------------------------------------------------------------------------------


def table_rows(site: Site) -> Value:
    """Look rows up; numbers that are no indices are rounded and wrap around, as in the executor."""
    table, ids = site.inputs[0], site.inputs[1]
    ids = _whole(site.body, ids, table.shape[0])
    made = hlo.rows(site.body, table, ids)
    if table.scale is None:
        return hlo.convert(site.body, made, site.out.element)
    parts = [each and hlo.rows(site.body, each, ids) for each in (table.scale, table.zero)]
    return widened(site.body, replace(made, scale=parts[0], zero=parts[1], block=table.block), site.out.element)


def _whole(body: Body, ids: Value, size: int) -> Value:
    """Return indices; other numbers are rounded, and wrap around."""
    if not hlo.is_float(ids.element):
        return ids
    whole: Any = np.mod(np.rint(Recorded(body, ids)), size)
    return hlo.convert(body, whole.value, "i32")


def added_rows(site: Site) -> Value:
    """Add row ``r`` to row ``r mod t``, as the executor does."""
    body, x = site.body, site.wide(0)
    size, (number, width) = site.call.shape[0], x.shape
    turns = -(-number // size)
    grid = hlo.reshape(body, hlo.pad(body, x, [(0, turns * size - number), (0, 0)]), (turns, size, width))
    return hlo.reduce(body, grid, "add", 0, (0,))


def table_gradient(site: Site) -> Value:
    """Add rows into a table of zeros."""
    table = hlo.constant(site.body, 0, site.out.element, site.call.shape)
    return hlo.scattered(site.body, table, _whole(site.body, site.inputs[1], site.call.shape[0]), site.wide(0), True)


def put(site: Site) -> Value:
    """Write values into places of a tensor that the executor would write."""
    x, values, *picks = (Recorded(site.body, site.wide(at)) for at in range(len(site.inputs)))
    call = _recorded_call(site.call, site.body)
    places = flat_places(call, values.shape, x.size, picks).ravel()
    flat = hlo.scattered(site.body, x.ravel().value, places.value, values.ravel().value, bool(call.attrs.get("flops")))
    return hlo.reshape(site.body, flat, x.shape)


def cache_update(site: Site) -> Value:
    """Write the last positions of a cache anew, with their scales."""
    cache, new = site.inputs
    length = cache.shape[2]
    count = min(new.shape[2], length)

    def written(old: Value, part: Value | None) -> Value:
        assert part is not None
        part = hlo.convert(site.body, part, old.element)
        skip = part.shape[2] - count
        part = hlo.cut(site.body, part, (0, 0, skip, 0), part.shape, (1,) * 4)
        return hlo.update(site.body, old, part, (0, 0, length - count, 0))

    scale, zero = (old and written(old, part) for old, part in ((cache.scale, new.scale), (cache.zero, new.zero)))
    return replace(written(cache, new), scale=scale, zero=zero, block=cache.block)


def cast(site: Site) -> Value:
    """Convert; narrow numbers become what they stand for. Of several operands the sum, as in the executor."""
    return reduce(lambda x, y: hlo.binary(site.body, "add", x, y), map(site.wide, range(len(site.inputs))))


# --- narrow numbers ---------------------------------------------------------------------------------------------------

#: The largest number of a narrow type.
_LARGEST = {"i8": 127, "i4": 7, "i2": 1, "f8E4M3FN": 448.0, "f4E2M1FN": 6.0}


def quantized(site: Site) -> Value:
    """Round to narrow numbers, with a scale for each group where the format has scales, else as they are."""
    body, out = site.body, site.out
    x: Any = Recorded(body, site.wide(0, "f32"))
    if out.zero:
        raise UnknownOp("numbers with zero points are stored, not computed")
    largest, scale = _LARGEST.get(out.element), None
    if largest is None:
        return hlo.convert(body, x.value, out.element)
    if out.group:
        grouped = x.reshape((*x.shape[:-1], x.shape[-1] // out.group, out.group))
        scale = hlo.convert(body, (np.max(np.abs(grouped), axis=-1) / largest).value, out.scale)
        by_element = Recorded(body, _by_element(body, hlo.convert(body, scale, "f32"), x.shape, (1, out.group)))
        x = x / np.where(by_element == 0, 1.0, by_element)
    x = np.clip(x, -largest, largest) if hlo.is_float(out.element) else np.clip(np.rint(x), -largest, largest)
    return replace(hlo.convert(body, x.value, out.element), scale=scale, block=(1, out.group))


# --- the table --------------------------------------------------------------------------------------------------------

#: Elementwise functions of one array that StableHLO has itself.
NAMED = {
    "abs": "abs", "sqrt": "sqrt", "rsqrt": "rsqrt", "exp": "exponential", "log": "log", "tanh": "tanh", "cos": "cosine",
    "sin": "sine", "sigmoid": "logistic", "neg": "negate",
}  # fmt: skip

#: Written out where they stand.
IN_PLACE = (
    "add", "bias_add", "add_scalar", "sub", "mul", "mul_scalar", "div", "maximum", "minimum", "relu", "relu6", "square",
    "reciprocal", "copy", "identity", "dropout", "where", "mask", "clamp", "fill", "empty", "bernoulli", "view",
    "permute", "slice", "expand", "parallel_input", "cat", "transpose_copy", "upsample2d", "memcpy_h2d", "memcpy_d2h",
)  # fmt: skip


def _named(op: str) -> Rule:
    def rule(site: Site) -> Value:
        if len(site.inputs) > 1:
            return composite(site)
        return hlo.simple(site.body, op, site.wide(0))

    return rule


RULES: dict[str, Rule] = {
    **{name: _named(op) for name, op in NAMED.items()},
    **dict.fromkeys(IN_PLACE, in_place),
    **dict.fromkeys(("linear", "matmul", "bmm", "attention_keys_grad"), contraction),
    **dict.fromkeys(("attention_scores", "attention_values"), masked),
    "expert_linear": lambda site: wrapped(site, by_expert),
    "moe": lambda site: wrapped(site, experts),
    **{f"conv{axes}d": convolution for axes in (1, 2, 3)},
    **{f"conv_transpose{axes}d": transposed_convolution for axes in (2, 3)},
    "batchnorm2d": batch_norm,
    "maxpool2d": pooling("maximum", -float("inf")),
    "avgpool2d": pooling("add", 0.0),
    **dict.fromkeys(("embedding", "gather", "gather_rows"), table_rows),
    "scatter_add": lambda site: wrapped(site, added_rows),
    "cache_update": cache_update,
    "put": put,
    "embedding_grad": table_gradient,
    "conv2d_grad_input": image_gradient,
    "conv2d_grad_weight": kernel_gradient,
    "expert_linear_grad": lambda site: wrapped(site, experts_gradient),
    "triangular_solve": lambda site: wrapped(site, triangular_solve),
    **dict.fromkeys(("cast", "dequantize"), cast),
    **dict.fromkeys(("quantize", "quantize_rows"), quantized),
}
#: Exchanges between devices, which one device's module does not have.
REFUSED = {
    "network": "what devices exchange is not lowered; lower the program of one device without --tp, --pp and --ep",
}


def lowered(site: Site) -> Value:
    """Write a node.

    Raises:
        UnknownOp: There is no rule.
    """
    kind = OPS[site.call.op].kind
    if kind in REFUSED:
        raise UnknownOp(REFUSED[kind])
    return RULES.get(site.call.op, composite)(site)
