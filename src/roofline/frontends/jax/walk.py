"""A walk over the equations of a jaxpr that adds operators to a builder: values, scopes, calls, counts of loops."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from roofline.frontends.call import BaseCall, unknown
from roofline.frontends.jax.sizes import format_of, shape_of, total
from roofline.ir.errors import ShapeError, UsageError, did_you_mean
from roofline.ir.sizes import prod
from roofline.ops.builder import Builder
from roofline.ops.registry import broadcast


@dataclass(frozen=True)
class Constant:
    """A number that the compiler knows, or an array filled with it: stored nowhere until somebody needs it."""

    shape: tuple[Any, ...]
    dtype: str
    value: Any = None


#: What a variable of a jaxpr stands for: a tensor of the graph by name, or a constant.
Value = str | Constant
Result = Value | list[Value]
Rule = Callable[["Call"], Result]


class Trips:
    """How often loops run, as the caller says.

    Args:
        counts: A number by a loop's name or by its index among the loops whose bounds the program does not say.
    """

    def __init__(self, counts: Mapping[str | int, int]) -> None:
        for key, count in counts.items():
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise UsageError(f"trips[{key!r}]={count!r}; allowed: whole numbers from 1")
        self.counts = dict(counts)
        self.loops: list[str] = []
        self._used: set[str | int] = set()

    def of(self, name: str) -> int | None:
        """Return the trips of the next loop, called ``name``; ``None`` where the caller does not say."""
        keys: tuple[str | int, ...] = (name, len(self.loops))
        self.loops.append(name)
        key = next((key for key in keys if key in self.counts), None)
        if key is None:
            return None
        self._used.add(key)
        return self.counts[key]

    def check(self) -> None:
        """Refuse a trip count for a loop that does not exist.

        Raises:
            UsageError: Names the loops.
        """
        for key in [key for key in self.counts if key not in self._used]:
            loops = ", ".join(f"{name!r} (index {at})" for at, name in enumerate(self.loops)) or "none"
            near = did_you_mean(str(key), self.loops)
            raise UsageError(f"trips: no loop of unknown length is called {key!r}; there are: {loops}{near}")


class Walk:
    """The state of an import.

    Args:
        b: The builder.
        rules: How to translate a primitive, by its name.
        policy: What to do with a primitive that has no rule: ``error`` or ``report``.
        trips: How often loops run.
    """

    def __init__(self, b: Builder, rules: Mapping[str, Rule], policy: str, trips: Trips) -> None:
        self.b = b
        self.rules = rules
        self.policy = policy
        self.trips = trips
        self.axes: dict[str, int] = {}
        self.notes: list[str] = []
        #: Tensors that live as long as another one does: what a loop hands to its next turn.
        self.follows: dict[str, list[str]] = {}
        #: What a reversed tensor is the reverse of.
        self.mirrors: dict[str, str] = {}
        self._captured: dict[int, Value] = {}

    def run(self, jaxpr: Any, consts: Sequence[Value], args: Sequence[Value]) -> list[Value]:
        """Add the equations of an open jaxpr and return what its results stand for."""
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

        def read(atom: Any) -> Value:
            return self.captured(atom.val, atom.aval) if hasattr(atom, "val") else known[atom]

        for eqn in jaxpr.eqns:
            with self._within(_scopes(str(eqn.source_info.name_stack))):
                results = self._translated(Call(self, eqn, [read(atom) for atom in eqn.invars]))
                known.update(zip(eqn.outvars, results, strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def inline(self, jaxpr: Any, args: Sequence[Value], name: str = "") -> list[Value]:
        """Inline a jaxpr, open or closed, with its name as scope."""
        closed = hasattr(jaxpr, "consts")
        inner = jaxpr.jaxpr if closed else jaxpr
        values = zip(inner.constvars, jaxpr.consts, strict=True) if closed else ()
        consts = [self.captured(value, var.aval) for var, value in values]
        with self._within(_scopes(name)):
            return self.run(inner, consts, args)

    def _translated(self, call: Call) -> list[Value]:
        rule = self.rules.get(call.what)
        if rule is None:
            return call.unknown()
        if call.values and call.what not in _EVEN_CONSTANT and all(isinstance(v, Constant) for v in call.values):
            return [call.folded(at) for at in range(len(call.eqn.outvars))]
        self.b.dtype = call.dtype
        try:
            out = rule(call)
        except (KeyError, AttributeError, TypeError) as error:
            # Options of primitives are no public interface of jax.
            why = f"{type(error).__name__}: {str(error)[:100]}"
            raise UsageError(
                f"{place(call.eqn)}: {call.what} as this version of jax writes it is not understood ({why})"
            ) from error
        results = out if isinstance(out, list) else [out]
        return [call.checked(value, at) for at, value in enumerate(results)]

    @property
    def state(self) -> tuple[Any, ...]:
        """Return what was built and noted so far, to come back to by :meth:`restore`."""
        return self.b.state, dict(self._captured), tuple(self.notes)

    def restore(self, state: tuple[Any, ...]) -> None:
        """Forget, or put back, what was built since or until then."""
        built, captured, notes = state
        self.b.restore(built)
        self._captured, self.notes = dict(captured), list(notes)

    @contextmanager
    def _within(self, scopes: Sequence[str]) -> Iterator[None]:
        with ExitStack() as stack:
            for scope in scopes:
                stack.enter_context(self.b.scope(scope))
            yield

    def captured(self, value: Any, aval: Any) -> Value:
        """Return a number or array that the function closes over: scalars are constants, floating arrays weights."""
        shape = shape_of(aval)
        if not shape:
            return Constant((), format_of(aval.dtype), value)
        if id(value) not in self._captured:
            kind: Any = "weight" if floating(aval) else "buffer"
            name = f"constants.{len(self._captured)}"
            self._captured[id(value)] = self.b.source(name, shape, kind, format_of(aval.dtype))
        return self._captured[id(value)]

    def tensor(self, value: Value) -> str:
        """Return a value as a tensor; a constant is written out."""
        if isinstance(value, str):
            return value
        return self.b.op("fill", name="constant", dtype=value.dtype, shape=value.shape)


class Call(BaseCall):
    """An equation as its rule sees it.

    Args:
        walk: The import.
        eqn: The equation.
        values: Its operands.
    """

    permuted, expanded = "transpose", "broadcast"

    def __init__(self, walk: Walk, eqn: Any, values: list[Value]) -> None:
        self.walk = walk
        self.b = walk.b
        self.eqn = eqn
        self.what = self.name = str(eqn.primitive.name)
        self.params = eqn.params
        self.values = values
        self.dtype = self.out_dtype() if eqn.outvars else "bool"

    # --- operands and results ---

    def tensor(self, at: int = 0) -> str:
        """Return an operand as a tensor."""
        return self.walk.tensor(self.values[at])

    def shape(self, at: int = 0) -> tuple[Any, ...]:
        """Return the shape of an operand."""
        value = self.values[at]
        return value.shape if isinstance(value, Constant) else self.b.shape(value)

    @property
    def computed(self) -> list[str]:
        """Return the operands that are no constants."""
        return [value for value in self.values if isinstance(value, str)]

    def out_dtype(self, at: int = 0) -> str:
        """Return the number format of a result."""
        return format_of(getattr(self.eqn.outvars[at].aval, "dtype", "bool"))

    def out_shape(self, at: int = 0) -> tuple[Any, ...]:
        """Return the shape of a result."""
        return shape_of(self.eqn.outvars[at].aval)

    @property
    def outs(self) -> range:
        """Return the places of the results."""
        return range(len(self.eqn.outvars))

    def cost(self, flops: int) -> int:
        """Return the operations of arithmetic, none where the result is no floating-point number."""
        return flops if floating(self.eqn.outvars[0].aval) else 0

    # --- nodes ---

    def shaped(self, op: str, *inputs: str, at: int = 0, **attrs: Any) -> str:
        """Add a node of an operator that is told the shape of its output, one of the results."""
        return self.op(op, *inputs, dtype=self.out_dtype(at), shape=self.out_shape(at), **attrs)

    def pointwise(self, op: str, **attrs: Any) -> str:
        """Add an elementwise operator; constants are part of the kernel and no operand of it."""
        tensors, shape = self.computed, self.out_shape()
        if broadcast([self.b.shape(each) for each in tensors]) != shape:
            tensors[0] = self.expand(tensors[0], shape)
        return self.op(op, *tensors, **attrs)

    def view(self, x: str, shape: Sequence[Any], part: str = "view") -> str:
        """Return the same elements under another shape."""
        target, base = tuple(shape), self.b.shape(x)
        # Symbolic floors may hide that two counts are equal, and only a slice takes any shape.
        same = total(target) is not None or prod(target) == prod(base)
        return super().view(x, shape, part) if same else self.part(x, shape, part)

    def expand(self, x: str, shape: Sequence[Any], part: str = "") -> str:
        """Broadcast to a shape; axes of size 1 in front are a view."""
        base = self.b.shape(x)
        return super().expand(self.view(x, (1,) * (len(shape) - len(base)) + base), shape, part)

    def checked(self, value: Value, at: int) -> Value:
        """Return a result of a rule in the shape that jax gives it."""
        shape = self.out_shape(at)
        if isinstance(value, Constant) or self.b.shape(value) == shape:
            return value
        if total(shape) is not None:
            raise ShapeError(f"{value}: the rule for {self.what} gives {self.b.shape(value)}, jax {shape}")
        # The same symbolic size written in two ways: jax's own is the one that later equations use.
        return self.view(value, shape)

    def folded(self, at: int) -> Constant:
        """Return what is computed from constants alone, as the compiler does before the program runs."""
        numbers = [value.value if isinstance(value, Constant) else None for value in self.values]
        function = _FOLDS.get(self.what)
        whole = all(number is not None and getattr(number, "shape", ()) == () for number in numbers)
        value = function(*numbers) if function is not None and whole else None
        return Constant(self.out_shape(at), self.out_dtype(at), value)

    def unknown(self, title: str = "") -> list[Value]:
        """Refuse a primitive without a rule, or count its bytes alone."""
        shape = self.out_shape() if self.outs else ()
        first = unknown(
            self.b, title or _title(self.eqn), self.computed, shape,
            policy=self.walk.policy, where=place(self.eqn), dtype=self.dtype, name=self.what,
        )  # fmt: skip
        return [first, *(self.shaped("fill", at=at) for at in self.outs[1:])] if self.outs else []


#: Rules that see to constants themselves.
_EVEN_CONSTANT = frozenset({
    "scan", "while", "cond", "jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call",
    "custom_vjp_call_jaxpr", "custom_lin", "remat", "remat2", "checkpoint", "composite", "shard_map", "random_bits",
    "threefry2x32", "rng_bit_generator", "rng_uniform",
    "fusion", "call", "call_body", "branches", "custom_call",
})  # fmt: skip


#: Functions of numbers that bounds of loops and choices of branches are computed with.
_FOLDS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "max": max, "min": min, "neg": operator.neg,
    "clamp": lambda low, x, high: min(max(low, x), high),
    **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    **dict.fromkeys(("convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "stop_gradient"), lambda x: x),
}  # fmt: skip


def floating(aval: Any) -> bool:
    """Tell whether arithmetic on a value is floating-point; integers index and compare, and count nothing."""
    return str(getattr(aval, "dtype", "")).startswith(("float", "bfloat", "complex"))


def _scopes(stack: str) -> list[str]:
    """Return the scopes of a name stack such as ``block/vmap(bsd,dhk->bshk)``, each a plain word."""
    words = re.split(r"/(?![^(]*\))", stack)
    return [word for word in (re.sub(r"\W+", "_", part).strip("_") for part in words) if word]


def _title(eqn: Any) -> str:
    """Return what to call an operation without a rule: a custom kernel by its own name."""
    p = eqn.params
    named = getattr(p.get("name_and_src_info"), "name", None) or p.get("name") or p.get("target_name")
    return f"{eqn.primitive.name} {named}" if isinstance(named, str) and named else str(eqn.primitive.name)


def place(eqn: Any) -> str:
    """Return where an equation comes from in the user's source, as far as jax knows; of a text its line."""
    if hasattr(eqn, "line"):
        return f"line {eqn.line}"
    try:
        from jax._src.source_info_util import summarize

        line = str(summarize(eqn.source_info)).replace("\\", "/").rpartition("/")[2]
    except (ImportError, AttributeError, TypeError):
        line = ""
    # A jax function imported as it is has no line of the user's, only that of the importer.
    return str(eqn.primitive.name) if not line or line.endswith("_trace.<locals>.flat)") else line
