"""Control flow of jax: calls inlined, loops counted by trips, the branch that costs most, what devices exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roofline.frontends.call import TYPICAL_SIZE, with_options
from roofline.frontends.jax.sizes import shape_of, size_of, total
from roofline.frontends.jax.walk import Call, Constant, Result, Rule, Value, Walk, place
from roofline.ir.sizes import evaluate, prod, symbols
from roofline.ops.registry import node_work

#: Parameters in which calls keep the function that they call.
_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")


def inline(call: Call) -> Result:
    """A call, with its function's name as scope."""
    body = next((call.params[key] for key in _BODIES if key in call.params), None)
    if body is None:
        return call.unknown()
    scope = str(call.params.get("name", "")) if call.what in ("jit", "pjit", "composite") else ""
    return call.walk.inline(body, call.values, scope)


# --- loops ------------------------------------------------------------------------------------------------------------


def _trips(call: Call, known: int | None, why: str = "trip count unknown") -> int:
    """Return how often a loop runs: as it says itself, as the caller says, or once with a note."""
    if known is not None:
        return known
    w, name = call.walk, call.b.prefix
    at = len(w.trips.loops)
    trips = w.trips.of(name)
    if trips is None:
        w.notes.append(
            f"{name} loop at {place(call.eqn)}: {why}, counted once; give trips={{{name!r}: n}} or {{{at}: n}}"
        )
    return trips or 1


def _carried(call: Call, value: Value) -> str:
    """Return what one turn of a loop gets from the one before: a name of its own for the same storage."""
    x = call.walk.tensor(value)
    return call.b.op("view", x, name="carry", shape=call.b.shape(x))


def _tie(w: Walk, before: Sequence[Value], after: Sequence[Value], test: Sequence[Value] = ()) -> None:
    """Let what a turn hands to the next one live if that reads it, and the loop's condition with either."""
    conditions = [value for value in test if isinstance(value, str)]
    for old, new in zip(before, after, strict=True):
        handed = [new] if isinstance(new, str) else []
        for name in [value for value in (old, new) if isinstance(value, str)]:
            w.follows.setdefault(name, []).extend([*handed, *conditions])


def scan(call: Call) -> Result:
    """The body once, its nodes as often as the loop runs; what it reads of ``xs`` is a slice, ``ys`` are written in."""
    p, values, w = call.params, call.values, call.walk
    length = total([size_of(p["length"])])
    consts, carry = p["num_consts"], p["num_consts"] + p["num_carry"]
    with call.b.scope("scan"):
        times = _trips(call, length, f"length {p['length']} is symbolic")
        start = [_carried(call, value) for value in values[consts:carry]]
        stacked = [call.shaped("empty", name="ys", at=at) for at in call.outs[p["num_carry"] :]]
        with call.b.repeat(times):
            xs = [_cut(call, value, call.shape(at)[1:], "x") for at, value in enumerate(values[carry:], carry)]
            out = w.inline(p["jaxpr"], [*values[:consts], *start, *xs])
            rows = out[p["num_carry"] :]
            ys = [call.b.op("put", into, w.tensor(row), name="write", dtype=call.b.tensor(into).dtype)
                  for into, row in zip(stacked, rows, strict=True)]  # fmt: skip
        ends = out[: p["num_carry"]]
        _tie(w, start, ends)
    return [*ends, *ys]


def while_loop(call: Call) -> Result:
    """Condition and body once, their nodes as often as the loop runs, if its bounds or the caller say how often."""
    p, w = call.params, call.walk
    conds, consts = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
    values, carry = call.values, call.values[consts:]
    known = p.get("trips") or _static_trips(p, values[:conds], carry)
    if known is not None and known < 1:
        return carry
    with call.b.scope("while"):
        times = _trips(call, known)
        start = [value if _is_constant(p, at) else _carried(call, value) for at, value in enumerate(carry)]
        with call.b.repeat(times):
            test = w.inline(p["cond_jaxpr"], [*values[:conds], *start])
            ends = w.inline(p["body_jaxpr"], [*values[conds:consts], *start])
        _tie(w, start, ends, test)
    return ends


def _is_constant(p: Any, at: int) -> bool:
    """Tell whether every turn hands on a value as it got it."""
    body = p["body_jaxpr"].jaxpr
    return body.outvars[at] is body.invars[p["body_nconsts"] + at]


def _static_trips(p: Any, consts: Sequence[Value], carry: Sequence[Value]) -> int | None:
    """Return the trips of ``while i < n: i += step`` where the program says start, bound and step."""
    test = p["cond_jaxpr"].jaxpr
    if (
        len(test.eqns) != 1
        or test.eqns[0].primitive.name not in _COMPARES
        or test.outvars[0] not in test.eqns[0].outvars
    ):
        return None
    fixed = [value if _is_constant(p, at) else None for at, value in enumerate(carry)]
    numbers = [*_numbers(p["cond_jaxpr"].consts), *consts, *fixed]
    known = dict(zip([*test.constvars, *test.invars], numbers, strict=True))
    left, right = test.eqns[0].invars
    at = next((at for at, var in enumerate(test.invars[len(consts) :]) if var is left), None)
    if at is None or fixed[at] is not None:
        return None
    start, step = _number(carry[at]), _step(p, at)
    bound = _number(right.val) if hasattr(right, "val") else _number(known.get(right))
    if start is None or bound is None or not step:
        return None
    return max(_COMPARES[test.eqns[0].primitive.name](start, bound, step), 0)


#: Trips of a loop by its comparison, from start, bound and step; none where the step leads away from the bound.
_COMPARES = {
    "lt": lambda start, bound, step: -((start - bound) // step) if step > 0 else -1,
    "le": lambda start, bound, step: (bound - start) // step + 1 if step > 0 else -1,
    "gt": lambda start, bound, step: -((start - bound) // step) if step < 0 else -1,
    "ge": lambda start, bound, step: (bound - start) // step + 1 if step < 0 else -1,
}


def _step(p: Any, at: int) -> int | None:
    """Return what a turn adds to a counter."""
    body = p["body_jaxpr"].jaxpr
    counter, out = body.invars[p["body_nconsts"] + at], body.outvars[at]
    made = next((eqn for eqn in body.eqns if out in eqn.outvars), None)
    if made is None or made.primitive.name not in ("add", "sub") or made.invars[0] is not counter:
        return None
    step = _number(made.invars[1].val) if hasattr(made.invars[1], "val") else None
    return -step if step is not None and made.primitive.name == "sub" else step


def _number(value: Any) -> int | None:
    """Return a whole number that is known before the program runs."""
    number = value.value if isinstance(value, Constant) else value
    if number is None or isinstance(number, str) or getattr(number, "shape", ()) != ():
        return None
    try:
        return int(number) if int(number) == number else None
    except (TypeError, ValueError):
        return None


def _numbers(values: Sequence[Any]) -> list[Any]:
    return [Constant((), "int32", value) if getattr(value, "shape", ()) == () else None for value in values]


# --- branches ---------------------------------------------------------------------------------------------------------


def cond(call: Call) -> Result:
    """The branch that costs most, in FLOPs and then in nodes; a branch that the program's own numbers pick alone."""
    return choose(call, _number(call.values[0]), [(branch, call.values[1:]) for branch in call.params["branches"]])


def choose(call: Call, picked: int | None, branches: Sequence[tuple[Any, Sequence[Value]]]) -> Result:
    """Inline one of several functions with its arguments: the one picked, else the one that costs most."""
    w = call.walk
    if picked is not None or len(branches) == 1:
        return w.inline(*branches[min(max(picked or 0, 0), len(branches) - 1)], "cond")
    before = w.state
    first = len(w.b.nodes)
    tried = []
    for branch, values in branches:
        w.restore(before)
        out = w.inline(branch, values, "cond")
        tried.append((_cost(w, first), w.state, out))
    best = max(range(len(tried)), key=lambda at: tried[at][0])
    w.restore(tried[best][1])
    w.notes.append(f"cond at {place(call.eqn)}: counted as branch {best} of {len(branches)}, the most expensive")
    return tried[best][2]


def _cost(w: Walk, first: int) -> tuple[float, int]:
    """Return the FLOPs of the nodes from the ``first`` one at typical sizes, and how many they are."""
    flops: Any = 0
    nodes = w.b.nodes[first:]
    for node in nodes:
        work = node_work(node, [w.b.shape(name) for name in node.inputs])
        flops = flops + (work.flops + work.vector) * node.count
    return float(evaluate(flops, dict.fromkeys(symbols(flops), TYPICAL_SIZE))), len(nodes)


# --- several devices --------------------------------------------------------------------------------------------------


def shard_map(call: Call) -> Result:
    """The part of one device: inputs are cut, and collectives know how many devices an axis has."""
    w, body = call.walk, call.params["jaxpr"]
    outer, sizes = w.axes, {str(name): int(size) for name, size in dict(call.params["mesh"].shape).items()}
    inputs = [_cut(call, value, shape_of(var.aval)) for value, var in zip(call.values, body.invars, strict=True)]
    w.axes = {**outer, **sizes}
    try:
        out = w.inline(body, inputs, "shard_map")
    finally:
        w.axes = outer
    w.notes.append(f"shard_map over {sizes}: counted for one device")
    return [_cut(call, value, call.out_shape(at)) for at, value in enumerate(out)]


def _cut(call: Call, value: Value, shape: tuple[Any, ...], part: str = "shard") -> Value:
    """Return a part of a value: one device's, or one turn's."""
    return Constant(shape, value.dtype, value.value) if isinstance(value, Constant) else call.part(value, shape, part)


def _devices(call: Call) -> int | None:
    p, axes = call.params, call.walk.axes
    named = p.get("axes", p.get("axis_name", ()))
    names = [named] if isinstance(named, str) else list(named)
    if p.get("axis_index_groups"):
        return len(p["axis_index_groups"][0])
    return prod(axes[name] for name in names) if all(name in axes for name in names) else None


@with_options
def _collective(call: Call, op: str) -> Result:
    devices = _devices(call)
    if devices is None:
        return call.unknown()
    return [_exchange(call, op, at, devices) for at in range(len(call.values))]


def _exchange(call: Call, op: str, at: int, devices: int) -> Value:
    x = call.tensor(at)
    if devices > 1:
        x = call.op(op, call.view(x, (prod(call.b.shape(x)),)), dtype=call.out_dtype(at), devices=devices)
    return call.view(x, call.out_shape(at))


_CALLS = (
    "jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
    "remat", "remat2", "checkpoint", "composite",
)  # fmt: skip
_COLLECTIVES = {
    "psum": "all_reduce", "psum2": "all_reduce", "psum_invariant": "all_reduce", "pmax": "all_reduce",
    "pmin": "all_reduce", "all_gather": "all_gather", "all_gather_invariant": "all_gather",
    "reduce_scatter": "reduce_scatter", "all_to_all": "alltoall",
}  # fmt: skip

RULES: dict[str, Rule] = {
    **dict.fromkeys(_CALLS, inline),
    **{name: _collective(op) for name, op in _COLLECTIVES.items()},
    "scan": scan,
    "while": while_loop,
    "cond": cond,
    "shard_map": shard_map,
    "axis_index": lambda call: Constant((), call.dtype),
}
