"""How primitives of jax translate: elementwise arithmetic, moves, reductions, windows, random numbers."""

from __future__ import annotations

from typing import Any

from roofline.frontends.aliases import POINTWISE
from roofline.frontends.call import with_options
from roofline.frontends.jax.sizes import size_of, total
from roofline.frontends.jax.walk import Call, Constant, Result, Rule, Value, floating
from roofline.ir.sizes import prod

#: Elementwise primitives of jax alone, by operations per element.
_OWN = {
    **dict.fromkeys(("igamma", "igammac", "polygamma", "conj"), 1),
    **dict.fromkeys(("nextafter", "real", "imag", "complex"), 0),
}

#: What changes nothing but what jax knows about a value.
IDENTITIES = (
    "stop_gradient", "copy_p", "optimization_barrier", "name", "sharding_constraint", "layout_constraint", "reshard",
    "device_put", "pvary", "pbroadcast", "mesh_cast", "random_clone", "tie",
    "vary_unreduced_cast_p", "to_edtype", "from_edtype", "dce_sink",
)  # fmt: skip

#: Reductions by the names that all frontends share.
REDUCTIONS = {
    "reduce_sum": "sum", "reduce_prod": "prod", "reduce_max": "max", "reduce_min": "min", "reduce_and": "all",
    "reduce_or": "any", "reduce_xor": "any", "argmax": "argmax", "argmin": "argmin",
}  # fmt: skip

#: Running reductions along an axis, by operations per element.
RUNNING = {"cumsum": 1, "cumprod": 1, "cummax": 0, "cummin": 0, "cumlogsumexp": 3}

#: Pooling by operations on each element of a window.
WINDOWS = {"reduce_window_sum": 1, "reduce_window_max": 0, "reduce_window_min": 0, "select_and_gather_add": 0}

#: Writes into a part of an array, by operations on each element written; jax has spelt them in two ways.
SCATTERS = {
    f"scatter{sign}{how}": flops
    for how, flops in {"add": 1, "sub": 1, "mul": 1, "max": 0, "min": 0}.items()
    for sign in ("-", "_")
}

#: What makes values out of nothing, or of a key.
GENERATORS = ("iota", "random_bits", "threefry2x32", "rng_bit_generator", "rng_uniform", "random_gamma")


# --- elementwise ------------------------------------------------------------------------------------------------------


@with_options
def _pointwise(call: Call, what: str | int) -> Result:
    """An operator of the registry, or operations per element; of integers neither is floating-point arithmetic."""
    op, flops = (what, 0) if isinstance(what, str) else ("elementwise", what)
    if op != "elementwise" and call.cost(1):
        return call.pointwise(op)
    return call.pointwise("elementwise", flops=call.cost(flops))


def _power(call: Call) -> Result:
    """Powers by squaring, as compilers do; a negative one ends in a division."""
    power = call.params["y"]
    flops = max(abs(power).bit_length() + abs(power).bit_count() - 2, 0) + (power < 0)
    return call.pointwise("elementwise", flops=call.cost(flops))


def _convert(call: Call) -> Result:
    x = call.tensor()
    return x if call.b.tensor(x).dtype == call.dtype else call.op("cast", x)


# --- the same storage -------------------------------------------------------------------------------------------------


def _broadcast(call: Call) -> Result:
    """Each axis of the operand to the one that the primitive names, size 1 elsewhere, then repeated."""
    shape, x = call.out_shape(), call.tensor()
    sizes: list[Any] = [1] * len(shape)
    for axis, size in zip(call.params["broadcast_dimensions"], call.b.shape(x), strict=True):
        sizes[int(axis)] = size
    return call.expand(call.view(x, sizes), shape)


def _split(call: Call) -> Result:
    x = call.tensor()
    return [call.b.op("slice", x, name="split", shape=call.out_shape(at)) for at in call.outs]


# --- moves ------------------------------------------------------------------------------------------------------------


def _reverse(call: Call) -> Result:
    out = call.shaped("rearrange", call.tensor())
    call.walk.mirrors[out] = call.tensor()
    return out


def _join(call: Call) -> Result:
    tensors = [call.tensor(at) for at in range(len(call.values))]
    return call.op("cat", *tensors, axis=int(call.params["dimension"])) if len(tensors) > 1 else tensors[0]


def _gather(call: Call) -> Result:
    """Whole rows of a table are an embedding; anything else reads what it returns."""
    table, index = call.tensor(0), call.tensor(1)
    dims, shape = call.params["dimension_numbers"], call.b.shape(table)
    rows = dims.collapsed_slice_dims == (0,) == tuple(dims.start_index_map) and len(shape) == 2
    rows = rows and tuple(dims.offset_dims) == (len(call.b.shape(index)) - 1,)
    if rows and call.out_shape()[-1] == shape[1]:
        return call.op("embedding", table, call.view(index, call.b.shape(index)[:-1]))
    return call.shaped("take", table, index)


@with_options
def _put(call: Call, flops: int, update: int, first_index: int) -> Result:
    indices = [v for v in call.values[first_index:] if isinstance(v, str) and v != call.values[update]]
    return call.op("put", call.tensor(), call.tensor(update), *indices, flops=call.cost(flops))


# --- along axes -------------------------------------------------------------------------------------------------------


@with_options
def _reduce(call: Call, how: str) -> Result:
    x, axes = call.tensor(), [int(axis) for axis in call.params["axes"]]
    if not axes:
        return x
    if floating(call.eqn.invars[0].aval):
        return call.reduce(how, x, axes)
    return call.op("reduce", x, axes=tuple(axes), flops=0)


def _function_cost(call: Call, at: int) -> int:
    """Count operations of a function of the user's: one per floating-point equation, all on the first result."""
    return sum(floating(inner.outvars[0].aval) for inner in call.params["jaxpr"].eqns) if at == 0 else 0


def _reduce_by(call: Call) -> Result:
    """A reduction by a function of the user's."""
    axes = tuple(int(axis) for axis in call.params["dimensions"])
    return [
        call.op("reduce", call.tensor(at), dtype=call.out_dtype(at), axes=axes, flops=_function_cost(call, at))
        for at in call.outs
    ]


@with_options
def _running(call: Call, flops: int) -> Result:
    axis = int(call.params["axis"])
    return call.along(axis, lambda x: call.op("scan", x, flops=call.cost(flops)), call.tensor())


def _sort(call: Call) -> Result:
    """Comparisons count nothing; operands after the first follow it."""

    def one(at: int) -> Value:
        axis = int(call.params["dimension"])
        return call.along(axis, lambda x: call.op("scan", x, dtype=call.out_dtype(at), flops=0), call.tensor(at))

    return [one(at) for at in range(len(call.values))]


def _top(call: Call) -> Result:
    axis = int(call.params.get("axis", call.params.get("reduction_dimension", -1))) % len(call.shape())
    values = call.along(axis, lambda x: call.op("topk", x, k=call.out_shape()[axis]), call.tensor())
    return [values, call.shaped("fill", at=1)]


@with_options
def _window(call: Call, flops: int) -> Result:
    size = prod(map(size_of, call.params["window_dimensions"]))
    return call.shaped("pool", call.tensor(), flops=call.cost(flops) * size)


def _window_by(call: Call) -> Result:
    size = prod(map(size_of, call.params["window_dimensions"]))
    return [call.shaped("pool", call.tensor(at), at=at, flops=_function_cost(call, at) * size) for at in call.outs]


def _fourier(call: Call) -> Result:
    """``5 N log2 N`` for a transform of ``N`` complex numbers; of real ones half, since half the spectrum is enough."""
    x, size = call.tensor(), total(map(size_of, call.params["fft_lengths"]))
    if size is None:
        return call.unknown()[0]
    real = not str(call.eqn.invars[0].aval.dtype).startswith("complex")
    flops = round((2.5 if real else 5) * max(size.bit_length() - 1, 1))
    return call.part(call.op("scan", x, flops=flops), call.out_shape(), "spectrum")


def _each(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(names.split(), rule)


RULES: dict[str, Rule] = {
    **{name: _pointwise(what) for name, what in {**POINTWISE, **_OWN}.items()},
    **{name: _reduce(how) for name, how in REDUCTIONS.items()},
    **{name: _running(flops) for name, flops in RUNNING.items()},
    **{name: _window(flops) for name, flops in WINDOWS.items()},
    **{name: _put(flops, 2, 1) for name, flops in {"scatter": 0, **SCATTERS}.items()},
    "dynamic_update_slice": _put(0, 1, 2),
    **dict.fromkeys(IDENTITIES, lambda call: call.values[: len(call.outs)]),
    **dict.fromkeys(GENERATORS, lambda call: [call.shaped("fill", at=at) for at in call.outs]),
    # New keys from a key: a few integers.
    **_each("random_seed random_split random_fold_in", lambda call: call.shaped("rearrange", *call.computed)),
    **_each("reshape squeeze expand_dims", lambda call: call.view(call.tensor(), call.out_shape())),
    **_each("slice dynamic_slice", lambda call: call.part(call.tensor(), call.out_shape(), "slice")),
    **_each("split unstack", _split),
    # The same bytes read as another format; where widths differ the last axis splits or joins.
    **_each("bitcast_convert_type random_wrap random_unwrap", lambda call: call.shaped("slice", call.tensor())),
    **_each("pad tile", lambda call: call.shaped("rearrange", *call.computed)),
    **_each("top_k approx_top_k", _top),
    **_each("empty empty2", lambda call: call.shaped("empty")),
    # Only orders what has effects.
    **_each("create_token after_all", lambda call: Constant((), "bool")),
    **_each("debug_callback debug_print inspect_sharding", lambda call: []),
    "integer_pow": _power,
    "select_n": lambda call: call.pointwise("where"),
    "convert_element_type": _convert,
    "transpose": lambda call: call.permute(call.tensor(), call.params["permutation"]),
    "broadcast_in_dim": _broadcast,
    "stack": lambda call: call.shaped("rearrange", *[call.tensor(at) for at in range(len(call.values))]),
    "rev": _reverse,
    "concatenate": _join,
    "gather": _gather,
    "reduce": _reduce_by,
    "sort": _sort,
    "reduce_window": _window_by,
    # The gradient of a max pooling reads the gradient and the image that chose.
    "select_and_scatter_add": lambda call: call.shaped("pool_grad", call.tensor(0), call.tensor(1)),
    "fft": _fourier,
    "zeros_like": lambda call: Constant(call.out_shape(), call.dtype, 0),
}
