"""How what is read becomes a graph: jax's rules, and what jaxprs have not: kernels, calls by name, composites."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from roofline.frontends.call import MALFORMED
from roofline.frontends.hlo.program import DEEPEST, MOST_WRITTEN, Body, Program, numbers, refuse
from roofline.frontends.jax import RULES as JAX
from roofline.frontends.jax.contraction import dot_general
from roofline.frontends.jax.control import choose
from roofline.frontends.jax.walk import Call, Constant, Result, Rule, Trips, Value, Walk, floating
from roofline.ir.errors import RooflineError, ShapeError
from roofline.ir.graph import Node
from roofline.ops.builder import Builder
from roofline.ops.registry import OPS

#: Operations that compiled text has where somebody wants their result written, though it is another view of what is.
_MOVES = {"broadcast_in_dim", "transpose", "slice", "dynamic_slice"}
#: Custom calls that hand a product to a library, by how their names begin.
_PRODUCTS = ("__onednn$matmul", "__cublas$gemm", "__cublas$lt$matmul", "__triton_gemm")
#: Custom calls that change nothing.
_NOTHING = {"Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"}


class HloWalk(Walk):
    """A walk over what was read.

    Args:
        program: What was read.
        b: The builder.
        policy: What to do with an operation that has no rule.
        trips: How often loops run.
    """

    def __init__(self, program: Program, b: Builder, policy: str, trips: Trips) -> None:
        super().__init__(b, RULES, policy, trips)
        self.program = program
        self._depth = 0
        self._written = 0
        #: Whether an operation is a kernel, which writes its result, transposed or repeated as it may be.
        self.apart = program.compiled

    def run(self, jaxpr: Any, consts: Sequence[Value], args: Sequence[Value]) -> list[Value]:
        """Add the equations of a body, within limits: calls may double what is written out again and again."""
        self._depth += 1
        self._written += len(jaxpr.eqns)
        if self._depth > DEEPEST or self._written > MOST_WRITTEN:
            raise ShapeError(f"calls nested deeper than {DEEPEST}, or more than {MOST_WRITTEN} operations in all")
        try:
            return super().run(jaxpr, consts, args)
        finally:
            self._depth -= 1

    def function(self, name: str, line: int) -> Body:
        """Return a function by name."""
        if name not in self.program.functions:
            raise refuse(line, f"calls {name[:60]!r}, which the module has not")
        return self.program.functions[name]

    def _translated(self, call: Call) -> list[Value]:
        eqn = call.eqn
        call.name = eqn.name.rpartition(".")[2] or call.name
        with self.b.inside(eqn.kernel) if eqn.kernel else nullcontext():
            try:
                out = super()._translated(call)
            except RooflineError:
                raise
            except MALFORMED as error:
                raise refuse(eqn.line, f"{call.what} is not understood ({type(error).__name__}: {error})") from error
            return [_written(call, value) for value in out] if self.apart and call.what in _MOVES else out


def _written(call: Call, value: Value, kernel: str = "") -> Value:
    """Return a tensor of its own in place of a view, unless the kernel writes what it is a view of."""
    base = value
    while isinstance(base, str) and (node := _node(call, base)) is not None:
        if OPS[node.op].kind != "view":
            break
        base = node.inputs[0]
    made = _node(call, base) if isinstance(base, str) else None
    if not isinstance(value, str) or (base == value and made) or (made and kernel and made.kernel == kernel):
        return value
    return call.b.op("copy", value, name=call.name, dtype=call.b.tensor(value).dtype)


def _node(call: Call, name: str) -> Node | None:
    try:
        return call.b.node(name)
    except KeyError:  # what nothing computes
        return None


# --- calls ------------------------------------------------------------------------------------------------------------


def _fusion(call: Call) -> Result:
    """One kernel, which writes what it gives."""
    walk = call.walk
    assert isinstance(walk, HloWalk)
    apart, walk.apart = walk.apart, False
    with call.b.kernel(call.name) as label:
        try:
            return [_written(call, value, label) for value in walk.inline(call.params["jaxpr"], call.values)]
        finally:
            walk.apart = apart


def _called(call: Call) -> Result:
    """Inline a function of the module, with its name as scope."""
    walk, name = call.walk, call.params["function"]
    assert isinstance(walk, HloWalk)
    return walk.inline(walk.function(name, call.eqn.line), call.values, name)


def _composite(call: Call) -> Result:
    """An operator of ours with its options, as ``rl.lower`` names them; any other by what it is made of."""
    space, _, op = call.params["title"].partition(".")
    if space != "roofline" or op not in OPS:
        return _called(call)
    known = {*OPS[op].parameters, "scale", "value", "eps", "exponent", "cap", "low", "high", "how", "what", "compute"}
    attrs = {key: value for key, value in attributes(call.params["options"]).items() if key in known}
    return call.op(op, *(call.tensor(at) for at in range(len(call.values))), **attrs)


def _branches(call: Call) -> Result:
    """The branch that costs most; each has what it reads from around it, then operands of its own."""
    branches: Sequence[Body] = call.params["branches"]
    before = sum(len(each.captured) for each in branches)
    outside, rest = list(call.values[:before]), list(call.values[before + 1 :])
    pairs = []
    for each in branches:
        own = [outside.pop(0) for _ in each.captured]
        pairs.append((each, own + [rest.pop(0) for _ in each.invars[len(own) :]]))
    return choose(call, None, pairs)


def _custom(call: Call) -> Result:
    """Products that a library computes, annotations, and what nobody knows."""
    target, options = call.params["target"], call.params["options"]
    if target in _NOTHING:
        return call.values[: len(call.outs)]
    if target == "TopK":
        return JAX["top_k"](call)
    if target.startswith(_PRODUCTS) and len(call.values) > 1:
        rank = len(call.shape(0))
        summed = [_dimensions(side, "contracting", options) for side in ("lhs", "rhs")]
        batch = [_dimensions(side, "batch", options) for side in ("lhs", "rhs")]
        if not summed[0]:
            summed, batch = [(rank - 1,), (rank - 2,)], [tuple(range(rank - 2))] * 2
        call.params = {"dimension_numbers": (summed, batch)}
        out = dot_general(call)
        return [out, *(call.shaped("empty", at=at) for at in call.outs[1:])] if isinstance(out, str) else out
    return call.unknown(f"custom call {target}"[:80])


def _dimensions(side: str, which: str, options: str) -> tuple[int, ...]:
    match = re.search(rf'{side}_{which}_dimensions\W+(?:\[|":\[)([^\]]*)\]', options)
    return numbers(match[1]) if match else ()


# --- values -----------------------------------------------------------------------------------------------------------


def _array(call: Call) -> Result:
    """An array that the text holds: floating-point numbers are weights; one number everywhere is none."""
    kind: Any = "weight" if floating(call.eqn.outvars[0].aval) else "buffer"
    return call.b.source(call.name, call.out_shape(), kind, call.out_dtype())


def _bitcast(call: Call) -> Result:
    """The same bytes: in another shape, or as another format."""
    x = call.tensor()
    if call.b.tensor(x).dtype == call.dtype:
        return call.view(x, call.out_shape())
    return call.shaped("slice", x)


def _batch_norm(call: Call) -> Result:
    """Statistics that are kept: a scale and a shift per channel, which is brought to the second place."""
    axis, rank = call.params["feature_index"], len(call.shape())
    order = [0, axis, *(at for at in range(1, rank) if at != axis)] if axis else list(range(rank))
    x = call.permute(call.tensor(), order)
    out = call.op("batchnorm2d", x, *(call.tensor(at) for at in range(1, 5)))
    return call.permute(out, [order.index(at) for at in range(rank)])


_ATTRIBUTE = re.compile(
    r'\s*(?:(true|false)|"([^"\\]*+(?:\\.[^"\\]*+)*+)"|(\[)|(-?[0-9]+(?:\.[0-9]*(?:[eE][-+]?[0-9]+)?)?)\s*(?::\s*\w+)?)'
)


def attributes(text: str) -> dict[str, Any]:
    """Return the options of a composite: numbers, words, flags and lists of them.

    Example:
        >>> attributes('{composite_attributes = {causal = true, axes = [0 : i64, 2 : i64]}, decomposition = @f}')
        {'causal': True, 'axes': (0, 2)}
    """
    at = text.find("composite_attributes = {")
    made: dict[str, Any] = {}
    at += len("composite_attributes = {") if at >= 0 else len(text) + 1
    while match := re.compile(r"\s*,?\s*(\w+)\s*=").match(text, at):
        made[match[1]], at = _attribute(text, match.end(), 0)
    return made


def _attribute(text: str, at: int, depth: int) -> tuple[Any, int]:
    match = _ATTRIBUTE.match(text, at)
    if match is None or depth > DEEPEST:
        raise ShapeError(f"an option that is no number, word or list: {text[at : at + 40]!r}")
    flag, word, opens, number = match.groups()
    at = match.end()
    if not opens:
        return (flag == "true" if flag else word if word is not None else _plain(number)), at
    parts = []
    while not (end := re.compile(r"\s*,?\s*\]").match(text, at)):
        part, at = _attribute(text, (re.compile(r"\s*,?").match(text, at) or match).end(), depth + 1)
        parts.append(part)
    return tuple(parts), end.end()


def _plain(text: str) -> int | float:
    return float(text) if "." in text else int(text)


RULES: dict[str, Rule] = {
    **JAX,
    "fusion": _fusion,
    "call": _called,
    "call_body": lambda call: call.walk.inline(call.params["jaxpr"], call.values),
    "composite": _composite,
    "branches": _branches,
    "custom_call": _custom,
    "constant": _array,
    "bitcast": _bitcast,
    "batch_norm_inference": _batch_norm,
    **dict.fromkeys(("partition_id", "replica_id"), lambda call: Constant((), call.dtype)),
}
