"""How primitives of jax translate: elementwise arithmetic, moves, reductions, windows, random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from roofline.frontends import emit
from roofline.frontends.jax.sizes import format_of, shape_of, size_of, total
from roofline.frontends.jax.walk import Constant, Rule, Value, Walk, floating
from roofline.ir.sizes import prod

#: Primitives that are an elementwise operator of the registry under another name, or the same.
POINTWISE = {
    "add": "add", "add_any": "add", "sub": "sub", "mul": "mul", "div": "div", "neg": "neg", "exp": "exp", "log": "log",
    "tanh": "tanh", "sin": "sin", "cos": "cos", "sqrt": "sqrt", "rsqrt": "rsqrt", "pow": "pow", "erf": "erf",
    "square": "square", "logistic": "sigmoid", "max": "maximum", "min": "minimum", "abs": "abs", "copy": "copy",
    "clamp": "clamp",
}  # fmt: skip

#: Elementwise primitives without a name there, by operations an element: a transcendental one, comparisons none.
ELEMENTWISE = {
    **dict.fromkeys((
        "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cosh", "sinh", "tan", "exp2", "expm1",
        "log1p", "erfc", "erf_inv", "lgamma", "digamma", "igamma", "igammac", "bessel_i0e", "bessel_i1e", "polygamma",
        "zeta", "rem", "conj",
    ), 1),
    **dict.fromkeys((
        "eq", "ne", "lt", "le", "gt", "ge", "eq_to", "lt_to", "le_to", "and", "or", "xor", "not", "sign", "floor",
        "ceil", "round", "is_finite", "nextafter", "shift_left", "shift_right_logical", "shift_right_arithmetic",
        "population_count", "clz", "mulhi", "real", "imag", "complex", "reduce_precision", "select_n",
    ), 0),
}  # fmt: skip

#: What changes nothing but what jax knows about a value.
IDENTITIES = (
    "stop_gradient", "copy_p", "optimization_barrier", "name", "sharding_constraint", "layout_constraint", "reshard",
    "device_put", "pvary", "pbroadcast", "mesh_cast", "random_clone", "tie",
    "vary_unreduced_cast_p", "to_edtype", "from_edtype", "dce_sink",
)  # fmt: skip

#: Reductions by name in the vocabulary of importers.
REDUCTIONS = {
    "reduce_sum": "sum", "reduce_prod": "prod", "reduce_max": "max", "reduce_min": "min", "reduce_and": "all",
    "reduce_or": "any", "reduce_xor": "any", "argmax": "argmax", "argmin": "argmin",
}  # fmt: skip

#: Running reductions along an axis, by operations an element.
RUNNING = {"cumsum": 1, "cumprod": 1, "cummax": 0, "cummin": 0, "cumlogsumexp": 3}

#: Pooling by operations on each element of a window.
WINDOWS = {"reduce_window_sum": 1, "reduce_window_max": 0, "reduce_window_min": 0, "select_and_gather_add": 0}

#: Writes into a part of an array, by operations on each element written.
SCATTERS = {
    "scatter": 0, "scatter-add": 1, "scatter_add": 1, "scatter-sub": 1, "scatter_sub": 1, "scatter-mul": 1,
    "scatter_mul": 1, "scatter-max": 0, "scatter_max": 0, "scatter-min": 0, "scatter_min": 0,
}  # fmt: skip

#: What makes values out of nothing, or of a key.
GENERATORS = ("iota", "random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform", "random_gamma")


# --- elementwise ------------------------------------------------------------------------------------------------------


def _named(op: str) -> Rule:
    def rule(w: Walk, eqn: Any, values: list[Value]) -> Value:
        if floating(eqn.outvars[0].aval):
            return w.sweep(eqn, op, values)
        return w.sweep(eqn, "elementwise", values, flops=0)

    return rule


def _counted(flops: int) -> Rule:
    def rule(w: Walk, eqn: Any, values: list[Value]) -> Value:
        return w.sweep(eqn, "elementwise", values, flops=flops if floating(eqn.outvars[0].aval) else 0)

    return rule


def _power(w: Walk, eqn: Any, values: list[Value]) -> Value:
    """By squaring, as compilers do; a negative power ends in a division."""
    power = eqn.params["y"]
    products = max(abs(power).bit_length() + abs(power).bit_count() - 2, 0) + (power < 0)
    return w.sweep(eqn, "elementwise", values, flops=products if floating(eqn.outvars[0].aval) else 0)


def _select(w: Walk, eqn: Any, values: list[Value]) -> Value:
    return w.sweep(eqn, "where", values)


def _identity(w: Walk, eqn: Any, values: list[Value]) -> list[Value]:
    return values[: len(eqn.outvars)]


def _convert(w: Walk, eqn: Any, values: list[Value]) -> Value:
    x = w.tensor(values[0])
    same = w.b.tensor(x).dtype == format_of(eqn.outvars[0].aval.dtype)
    return x if same else w.out(eqn, "cast", x)


def _bitcast(w: Walk, eqn: Any, values: list[Value]) -> Value:
    """The same bytes read as another format; where widths differ the last axis splits or joins."""
    return w.shaped(eqn, "slice", w.tensor(values[0]))


# --- the same storage -------------------------------------------------------------------------------------------------


def _reshape(w: Walk, eqn: Any, values: list[Value]) -> Value:
    return w.view(w.tensor(values[0]), shape_of(eqn.outvars[0].aval))


def _transpose(w: Walk, eqn: Any, values: list[Value]) -> Value:
    return w.permute(w.tensor(values[0]), eqn.params["permutation"])


def _broadcast(w: Walk, eqn: Any, values: list[Value]) -> Value:
    """Each axis of the operand to the one that the primitive names, size 1 elsewhere, then repeated."""
    shape = shape_of(eqn.outvars[0].aval)
    x = w.tensor(values[0])
    sizes: list[Any] = [1] * len(shape)
    for axis, size in zip(eqn.params["broadcast_dimensions"], w.b.shape(x), strict=True):
        sizes[int(axis)] = size
    return w.expand(w.view(x, sizes), shape)


def _slice(w: Walk, eqn: Any, values: list[Value]) -> Value:
    x, shape = w.tensor(values[0]), shape_of(eqn.outvars[0].aval)
    return x if w.b.shape(x) == shape else w.op("slice", x, name="slice", shape=shape)


def _split(w: Walk, eqn: Any, values: list[Value]) -> list[Value]:
    x = w.tensor(values[0])
    return [w.op("slice", x, name="split", shape=shape_of(var.aval)) for var in eqn.outvars]


# --- moves ------------------------------------------------------------------------------------------------------------


def _rearrange(w: Walk, eqn: Any, values: list[Value]) -> Value:
    return w.shaped(eqn, "rearrange", *[value for value in values if isinstance(value, str)])


def _reverse(w: Walk, eqn: Any, values: list[Value]) -> Value:
    out = w.shaped(eqn, "rearrange", w.tensor(values[0]))
    w.mirrors[out] = w.tensor(values[0])
    return out


def _join(w: Walk, eqn: Any, values: list[Value]) -> Value:
    tensors = [w.tensor(value) for value in values]
    return w.out(eqn, "cat", *tensors, axis=int(eqn.params["dimension"])) if len(tensors) > 1 else tensors[0]


def _stack(w: Walk, eqn: Any, values: list[Value]) -> Value:
    return w.shaped(eqn, "rearrange", *[w.tensor(value) for value in values])


def _gather(w: Walk, eqn: Any, values: list[Value]) -> Value:
    """Whole rows of a table are an embedding; anything else reads what it returns."""
    table, index = w.tensor(values[0]), w.tensor(values[1])
    dims, shape = eqn.params["dimension_numbers"], w.b.shape(table)
    rows = dims.collapsed_slice_dims == (0,) == tuple(dims.start_index_map) and len(shape) == 2
    rows = rows and tuple(dims.offset_dims) == (len(w.b.shape(index)) - 1,)
    if rows and tuple(shape_of(eqn.outvars[0].aval))[-1] == shape[1]:
        return w.out(eqn, "embedding", table, w.view(index, w.b.shape(index)[:-1]))
    return w.shaped(eqn, "take", table, index)


def _put(flops: int, update: int, first_index: int) -> Rule:
    def rule(w: Walk, eqn: Any, values: list[Value]) -> Value:
        indices = [value for value in values[first_index:] if isinstance(value, str) and value != values[update]]
        cost = flops if floating(eqn.outvars[0].aval) else 0
        return w.out(eqn, "put", w.tensor(values[0]), w.tensor(values[update]), *indices, flops=cost)

    return rule


def _generate(w: Walk, eqn: Any, values: list[Value]) -> list[Value]:
    return [w.shaped(eqn, "fill", at=at) for at in range(len(eqn.outvars))]


def _empty(w: Walk, eqn: Any, values: list[Value]) -> Value:
    return w.shaped(eqn, "empty")


def _key(w: Walk, eqn: Any, values: list[Value]) -> list[Value]:
    """New keys from a key: a few integers."""
    tensors = [value for value in values if isinstance(value, str)]
    return [w.shaped(eqn, "rearrange", *tensors)]


# --- along axes -------------------------------------------------------------------------------------------------------


def _reduce(how: str) -> Rule:
    def rule(w: Walk, eqn: Any, values: list[Value]) -> Value:
        x, axes = w.tensor(values[0]), [int(axis) for axis in eqn.params["axes"]]
        if not axes:
            return x
        if floating(eqn.invars[0].aval):
            dtype = format_of(eqn.outvars[0].aval.dtype)
            return emit.reduce(w.b, how, x, axes, name=eqn.primitive.name, dtype=dtype)
        return w.out(eqn, "reduce", x, axes=tuple(axes), flops=0)

    return rule


def _reduce_by(w: Walk, eqn: Any, values: list[Value]) -> list[Value]:
    """A reduction by a function of the user's: as many operations an element as it has floating-point equations."""
    axes = tuple(int(axis) for axis in eqn.params["dimensions"])
    cost = sum(floating(inner.outvars[0].aval) for inner in eqn.params["jaxpr"].eqns)
    return [
        w.out(eqn, "reduce", w.tensor(values[at]), at=at, axes=axes, flops=cost if at == 0 else 0)
        for at in range(len(eqn.outvars))
    ]


def _last(w: Walk, x: str, axis: int) -> tuple[str, tuple[int, ...]]:
    """The tensor with an axis moved to the end, and the order that moves it back."""
    rank = len(w.b.shape(x))
    order = (*(at for at in range(rank) if at != axis), axis)
    return w.permute(x, order), tuple(order.index(at) for at in range(rank))


def _running(flops: int) -> Rule:
    def rule(w: Walk, eqn: Any, values: list[Value]) -> Value:
        x, back = _last(w, w.tensor(values[0]), int(eqn.params["axis"]))
        return w.permute(w.out(eqn, "scan", x, flops=flops if floating(eqn.outvars[0].aval) else 0), back)

    return rule


def _sort(w: Walk, eqn: Any, values: list[Value]) -> list[Value]:
    """Comparisons count nothing; operands after the first follow it."""
    results: list[Value] = []
    for at, value in enumerate(values):
        x, back = _last(w, w.tensor(value), int(eqn.params["dimension"]))
        results.append(w.permute(w.out(eqn, "scan", x, at=at, flops=0), back))
    return results


def _top(w: Walk, eqn: Any, values: list[Value]) -> list[Value]:
    rank = len(w.shape(values[0]))
    axis = int(eqn.params.get("axis", eqn.params.get("reduction_dimension", -1))) % rank
    x, back = _last(w, w.tensor(values[0]), axis)
    k = shape_of(eqn.outvars[0].aval)[axis]
    return [w.permute(w.out(eqn, "topk", x, k=k), back), w.shaped(eqn, "fill", at=1)]


def _window(flops: int) -> Rule:
    def rule(w: Walk, eqn: Any, values: list[Value]) -> Value:
        size = prod(map(size_of, eqn.params["window_dimensions"]))
        cost = flops if floating(eqn.outvars[0].aval) else 0
        return w.shaped(eqn, "pool", w.tensor(values[0]), flops=cost * size)

    return rule


def _window_by(w: Walk, eqn: Any, values: list[Value]) -> list[Value]:
    size, count = prod(map(size_of, eqn.params["window_dimensions"])), len(eqn.outvars)
    cost = sum(floating(inner.outvars[0].aval) for inner in eqn.params["jaxpr"].eqns)
    costs = [cost, *[0] * (count - 1)]
    return [w.shaped(eqn, "pool", w.tensor(values[at]), at=at, flops=costs[at] * size) for at in range(count)]


def _window_back(w: Walk, eqn: Any, values: list[Value]) -> Value:
    """The gradient of a max pooling: reads the gradient and the image that chose."""
    return w.shaped(eqn, "pool_grad", *[w.tensor(value) for value in values[:2]])


def _fourier(w: Walk, eqn: Any, values: list[Value]) -> Value:
    """``5 N log2 N`` for a transform of ``N`` complex numbers; of real ones half, since half the spectrum is enough."""
    x, size = w.tensor(values[0]), total(map(size_of, eqn.params["fft_lengths"]))
    if size is None:
        return w.unknown(eqn, values)[0]
    shape = shape_of(eqn.outvars[0].aval)
    real = not str(eqn.invars[0].aval.dtype).startswith("complex")
    cost = round((2.5 if real else 5) * max(size.bit_length() - 1, 1))
    out = w.out(eqn, "scan", x, flops=cost)
    return out if w.b.shape(out) == shape else w.op("slice", out, name="spectrum", shape=shape)


def _zeros(w: Walk, eqn: Any, values: list[Value]) -> Value:
    return Constant(shape_of(eqn.outvars[0].aval), format_of(eqn.outvars[0].aval.dtype), 0)


def _token(w: Walk, eqn: Any, values: list[Value]) -> Value:
    """Only orders what has effects."""
    return Constant((), "bool")


def _nothing(w: Walk, eqn: Any, values: list[Value]) -> list[Value]:
    return []


def _each(names: tuple[str, ...], rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names, rule)


def _table(costs: dict[str, Any], make: Callable[[Any], Rule]) -> dict[str, Rule]:
    return {name: make(cost) for name, cost in costs.items()}


RULES: dict[str, Rule] = {
    **_table(POINTWISE, _named),
    **_table(ELEMENTWISE, _counted),
    **_table(REDUCTIONS, _reduce),
    **_table(RUNNING, _running),
    **_table(WINDOWS, _window),
    **_table(SCATTERS, lambda flops: _put(flops, 2, 1)),
    **_each(IDENTITIES, _identity),
    **_each(GENERATORS, _generate),
    **_each(("random_seed", "random_split", "random_fold_in"), _key),
    **_each(("reshape", "squeeze", "expand_dims"), _reshape),
    **_each(("slice", "dynamic_slice"), _slice),
    **_each(("top_k", "approx_top_k"), _top),
    **_each(("empty", "empty2"), _empty),
    **_each(("create_token", "after_all"), _token),
    **_each(("debug_callback", "debug_print", "inspect_sharding"), _nothing),
    "integer_pow": _power,
    "select_n": _select,
    "convert_element_type": _convert,
    **_each(("bitcast_convert_type", "random_wrap", "random_unwrap"), _bitcast),
    "transpose": _transpose,
    "broadcast_in_dim": _broadcast,
    **_each(("split", "unstack"), _split),
    **_each(("pad", "tile"), _rearrange),
    "stack": _stack,
    "rev": _reverse,
    "concatenate": _join,
    "gather": _gather,
    "dynamic_update_slice": _put(0, 1, 2),
    "reduce": _reduce_by,
    "sort": _sort,
    "reduce_window": _window_by,
    "select_and_scatter_add": _window_back,
    "fft": _fourier,
    "zeros_like": _zeros,
}
