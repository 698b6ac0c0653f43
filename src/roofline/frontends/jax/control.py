"""Control flow of jax: calls inlined, loops counted by their trips, the dearest branch, and what devices exchange."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roofline.frontends.jax.sizes import format_of, shape_of, size_of, total
from roofline.frontends.jax.walk import Constant, Rule, Value, Walk, place
from roofline.ir.sizes import evaluate, prod, symbols
from roofline.ops.registry import node_work

#: Where calls keep the function that they call, and what it is called.
_BODIES = ("jaxpr", "call_jaxpr", "fun_jaxpr")

#: What a symbolic size is taken for where branches are compared.
_TYPICAL = 128


def inline(w: Walk, eqn: Any, values: list[Value]) -> list[Value]:
    """A call, with its function's name as scope."""
    body = next((eqn.params[key] for key in _BODIES if key in eqn.params), None)
    if body is None:
        return w.unknown(eqn, values)
    name = eqn.params.get("name", "")
    return w.call(body, values, str(name) if eqn.primitive.name in ("jit", "pjit", "composite") else "")


# --- loops ------------------------------------------------------------------------------------------------------------


def _trips(w: Walk, eqn: Any, known: int | None, why: str = "trip count unknown") -> int:
    """How often a loop runs: as it says itself, as the caller says, or once with a note."""
    if known is not None:
        return known
    name = w.b.prefix
    at = len(w.trips.loops)
    given = w.trips.of(name)
    if given is None:
        w.notes.append(f"{name} loop at {place(eqn)}: {why}, counted once; give trips={{{name!r}: n}} or {{{at}: n}}")
    return given or 1


def _carried(w: Walk, value: Value) -> str:
    """What one turn of a loop gets from the one before: a name of its own for the same storage."""
    x = w.tensor(value)
    return w.op("view", x, name="carry", shape=w.b.shape(x))


def _tie(w: Walk, before: Sequence[Value], after: Sequence[Value], test: Sequence[Value] = ()) -> None:
    """What a turn hands to the next one lives if that reads it, and the loop's condition with either."""
    conditions = [value for value in test if isinstance(value, str)]
    for old, new in zip(before, after, strict=True):
        handed = [new] if isinstance(new, str) else []
        for name in [value for value in (old, new) if isinstance(value, str)]:
            w.follows.setdefault(name, []).extend([*handed, *conditions])


def scan(w: Walk, eqn: Any, values: list[Value]) -> list[Value]:
    """The body once, its nodes as often as the loop runs; what it reads of ``xs`` is a slice, ``ys`` are written in."""
    p = eqn.params
    length = total([size_of(p["length"])])
    consts, carry = p["num_consts"], p["num_consts"] + p["num_carry"]
    with w.b.scope("scan"):
        times = _trips(w, eqn, length, f"length {p['length']} is symbolic")
        start = [_carried(w, value) for value in values[consts:carry]]
        stacked = [w.op("empty", name="ys", dtype=format_of(var.aval.dtype), shape=shape_of(var.aval))
                   for var in eqn.outvars[p["num_carry"]:]]  # fmt: skip
        with w.b.repeat(times):
            xs = [_row(w, value) for value in values[carry:]]
            out = w.call(p["jaxpr"], [*values[:consts], *start, *xs])
            rows = out[p["num_carry"] :]
            ys = [w.op("put", into, w.tensor(row), name="write", dtype=w.b.tensor(into).dtype)
                  for into, row in zip(stacked, rows, strict=True)]  # fmt: skip
        ends = out[: p["num_carry"]]
        _tie(w, start, ends)
    return [*ends, *ys]


def _row(w: Walk, value: Value) -> Value:
    shape = w.shape(value)[1:]
    if isinstance(value, Constant):
        return Constant(shape, value.dtype, value.value)
    return w.op("slice", value, name="x", shape=shape)


def while_loop(w: Walk, eqn: Any, values: list[Value]) -> list[Value]:
    """Condition and body once, their nodes as often as the loop runs, if its bounds or the caller say how often."""
    p = eqn.params
    conds, consts = p["cond_nconsts"], p["cond_nconsts"] + p["body_nconsts"]
    known = _static_trips(p, values[:conds], values[consts:])
    if known is not None and known < 1:
        return values[consts:]
    with w.b.scope("while"):
        times = _trips(w, eqn, known)
        start = [value if _is_kept(p, at) else _carried(w, value) for at, value in enumerate(values[consts:])]
        with w.b.repeat(times):
            test = w.call(p["cond_jaxpr"], [*values[:conds], *start])
            ends = w.call(p["body_jaxpr"], [*values[conds:consts], *start])
        _tie(w, start, ends, test)
    return ends


def _is_kept(p: Any, at: int) -> bool:
    """Whether every turn hands on a value as it got it."""
    body = p["body_jaxpr"].jaxpr
    return body.outvars[at] is body.invars[p["body_nconsts"] + at]


def _static_trips(p: Any, consts: Sequence[Value], carry: Sequence[Value]) -> int | None:
    """The trips of ``while i < n: i += step`` where start, bound and step are numbers of the program; else nothing."""
    test = p["cond_jaxpr"].jaxpr
    if (
        len(test.eqns) != 1
        or test.eqns[0].primitive.name not in _COMPARES
        or test.outvars[0] not in test.eqns[0].outvars
    ):
        return None
    kept = [value if _is_kept(p, at) else None for at, value in enumerate(carry)]
    known = dict(zip([*test.constvars, *test.invars], [*_numbers(p["cond_jaxpr"].consts), *consts, *kept], strict=True))
    left, right = test.eqns[0].invars
    at = next((at for at, var in enumerate(test.invars[len(consts) :]) if var is left), None)
    if at is None or kept[at] is not None:
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
    """What a turn adds to a counter."""
    body = p["body_jaxpr"].jaxpr
    counter, out = body.invars[p["body_nconsts"] + at], body.outvars[at]
    made = next((eqn for eqn in body.eqns if out in eqn.outvars), None)
    if made is None or made.primitive.name not in ("add", "sub") or made.invars[0] is not counter:
        return None
    step = _number(made.invars[1].val) if hasattr(made.invars[1], "val") else None
    return -step if step is not None and made.primitive.name == "sub" else step


def _number(value: Any) -> int | None:
    """A whole number that is known before the program runs."""
    given = value.value if isinstance(value, Constant) else value
    if given is None or isinstance(given, str) or getattr(given, "shape", ()) != ():
        return None
    try:
        return int(given) if int(given) == given else None
    except (TypeError, ValueError):
        return None


def _numbers(values: Sequence[Any]) -> list[Any]:
    return [Constant((), "int32", value) if getattr(value, "shape", ()) == () else None for value in values]


# --- branches ---------------------------------------------------------------------------------------------------------


def cond(w: Walk, eqn: Any, values: list[Value]) -> list[Value]:
    """The branch that costs most, in FLOPs and then in nodes; a branch that the program's own numbers pick alone."""
    branches = eqn.params["branches"]
    picked = _number(values[0])
    if picked is not None or len(branches) == 1:
        return w.call(branches[min(max(picked or 0, 0), len(branches) - 1)], values[1:], "cond")
    before = w.state
    first = len(w.b.nodes)
    tried = []
    for branch in branches:
        w.restore(before)
        out = w.call(branch, values[1:], "cond")
        tried.append((_cost(w, first), w.state, out))
    best = max(range(len(tried)), key=lambda at: tried[at][0])
    w.restore(tried[best][1])
    w.notes.append(f"cond at {place(eqn)}: counted as branch {best} of {len(branches)}, the one that costs most")
    return tried[best][2]


def _cost(w: Walk, first: int) -> tuple[float, int]:
    total: Any = 0
    nodes = w.b.nodes[first:]
    for node in nodes:
        work = node_work(node, [w.b.shape(name) for name in node.inputs])
        total = total + (work.flops + work.vector) * node.count
    return float(evaluate(total, dict.fromkeys(symbols(total), _TYPICAL))), len(nodes)


# --- several devices --------------------------------------------------------------------------------------------------


def shard_map(w: Walk, eqn: Any, values: list[Value]) -> list[Value]:
    """The part of one device: inputs are cut, and collectives know how many devices an axis has."""
    body, outer = eqn.params["jaxpr"], w.axes
    sizes = {str(name): int(size) for name, size in dict(eqn.params["mesh"].shape).items()}
    cut = [_cut(w, value, shape_of(var.aval)) for value, var in zip(values, body.invars, strict=True)]
    w.axes = {**outer, **sizes}
    try:
        out = w.call(body, cut, "shard_map")
    finally:
        w.axes = outer
    w.notes.append(f"shard_map over {sizes}: counted for one device")
    return [_cut(w, value, shape_of(var.aval)) for value, var in zip(out, eqn.outvars, strict=True)]


def _cut(w: Walk, value: Value, shape: tuple[Any, ...]) -> Value:
    if isinstance(value, Constant):
        return Constant(shape, value.dtype, value.value)
    return value if w.b.shape(value) == shape else w.op("slice", value, name="shard", shape=shape)


def _devices(w: Walk, eqn: Any) -> int | None:
    p = eqn.params
    named = p.get("axes", p.get("axis_name", ()))
    names = [named] if isinstance(named, str) else list(named)
    if p.get("axis_index_groups"):
        return len(p["axis_index_groups"][0])
    return prod(w.axes[name] for name in names) if all(name in w.axes for name in names) else None


def _collective(op: str) -> Rule:
    def rule(w: Walk, eqn: Any, values: list[Value]) -> list[Value]:
        devices = _devices(w, eqn)
        if devices is None:
            return w.unknown(eqn, values)
        return [_exchange(w, eqn, op, value, at, devices) for at, value in enumerate(values)]

    return rule


def _exchange(w: Walk, eqn: Any, op: str, value: Value, at: int, devices: int) -> Value:
    x = w.tensor(value)
    if devices == 1:
        return w.view(x, shape_of(eqn.outvars[at].aval))
    flat = w.view(x, (prod(w.b.shape(x)),))
    return w.view(w.out(eqn, op, flat, at=at, devices=devices), shape_of(eqn.outvars[at].aval))


def _axis_index(w: Walk, eqn: Any, values: list[Value]) -> Value:
    return Constant((), format_of(eqn.outvars[0].aval.dtype))


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
    "axis_index": _axis_index,
}
