"""A walk over the equations of a jaxpr that adds operators to a builder: values, scopes, calls, loops' counts."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from roofline.frontends import emit
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
Rule = Callable[["Walk", Any, list[Value]], "Value | list[Value]"]


class Trips:
    """How often loops run, as the caller says.

    Args:
        given: A number by a loop's name or by its index among the loops whose bounds the program does not say.
    """

    def __init__(self, given: Mapping[str | int, int]) -> None:
        for key, count in given.items():
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise UsageError(f"trips[{key!r}]={count!r}; wanted a whole number of 1 or more")
        self.given = dict(given)
        self.loops: list[str] = []
        self._used: set[str | int] = set()

    def of(self, name: str) -> int | None:
        """The trips of the next loop, called ``name``; ``None`` where nobody said."""
        keys: tuple[str | int, ...] = (name, len(self.loops))
        self.loops.append(name)
        found = next((key for key in keys if key in self.given), None)
        if found is None:
            return None
        self._used.add(found)
        return self.given[found]

    def check(self) -> None:
        """Refuse a trip count for a loop that does not exist.

        Raises:
            UsageError: Names the loops.
        """
        for key in self.given:
            if key not in self._used:
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
        self.follows: dict[str, list[str]] = {}
        self.mirrors: dict[str, str] = {}
        self._captured: dict[int, Value] = {}

    # --- the walk ---

    def run(self, jaxpr: Any, consts: Sequence[Value], args: Sequence[Value]) -> list[Value]:
        """Add the equations of an open jaxpr and return what its results stand for."""
        known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

        def read(atom: Any) -> Value:
            return self.captured(atom.val, atom.aval) if hasattr(atom, "val") else known[atom]

        for eqn in jaxpr.eqns:
            with self._within(_parts(str(eqn.source_info.name_stack))):
                known.update(zip(eqn.outvars, self._apply(eqn, [read(atom) for atom in eqn.invars]), strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def call(self, jaxpr: Any, args: Sequence[Value], name: str = "") -> list[Value]:
        """Inline a jaxpr, open or closed, with its name as scope."""
        closed = hasattr(jaxpr, "consts")
        inner = jaxpr.jaxpr if closed else jaxpr
        values = zip(inner.constvars, jaxpr.consts, strict=True) if closed else ()
        consts = [self.captured(value, var.aval) for var, value in values]
        with self._within(_parts(name)):
            return self.run(inner, consts, args)

    def _apply(self, eqn: Any, values: list[Value]) -> list[Value]:
        name = eqn.primitive.name
        rule = self.rules.get(name)
        if rule is None:
            return self.unknown(eqn, values)
        if values and name not in _EVEN_CONSTANT and all(isinstance(value, Constant) for value in values):
            return [self.folded(name, var.aval, values) for var in eqn.outvars]
        try:
            out = rule(self, eqn, values)
        except (KeyError, AttributeError, TypeError) as error:
            # Options of primitives are no public interface of jax.
            why = f"{type(error).__name__}: {str(error)[:100]}"
            raise UsageError(f"{place(eqn)}: {name} as this jax writes it is not understood ({why})") from error
        results = out if isinstance(out, list) else [out]
        return [self._checked(name, value, var.aval) for value, var in zip(results, eqn.outvars, strict=True)]

    def _checked(self, name: str, value: Value, aval: Any) -> Value:
        wanted = shape_of(aval)
        if isinstance(value, Constant) or self.b.shape(value) == wanted:
            return value
        if total(wanted) is not None:
            raise ShapeError(f"{value}: the rule for {name} gives {self.b.shape(value)}, jax {wanted}")
        # The same symbolic size written in two ways: jax's own is the one that later equations use.
        return self.view(value, wanted)

    @property
    def state(self) -> tuple[Any, ...]:
        """What was built and noted so far, to come back to by :meth:`restore`."""
        return self.b.state, dict(self._captured), tuple(self.notes)

    def restore(self, state: tuple[Any, ...]) -> None:
        """Forget, or put back, what was built since or until then."""
        built, captured, notes = state
        self.b.restore(built)
        self._captured, self.notes = dict(captured), list(notes)

    @contextmanager
    def _within(self, parts: Sequence[str]) -> Iterator[None]:
        with ExitStack() as stack:
            for part in parts:
                stack.enter_context(self.b.scope(part))
            yield

    # --- values ---

    def folded(self, name: str, aval: Any, values: Sequence[Value]) -> Constant:
        """What is computed from constants alone, as the compiler does before the program runs."""
        known = [value.value if isinstance(value, Constant) else None for value in values]
        function = _FOLDS.get(name)
        whole = all(value is not None and getattr(value, "shape", ()) == () for value in known)
        value = function(*known) if function is not None and whole else None
        return Constant(shape_of(aval), format_of(aval.dtype), value)

    def captured(self, value: Any, aval: Any) -> Value:
        """A number or array that the function closes over: scalars are constants, floating arrays weights."""
        shape = shape_of(aval)
        if not shape:
            return Constant((), format_of(aval.dtype), value)
        if id(value) not in self._captured:
            kind: Any = "weight" if floating(aval) else "buffer"
            name = f"constants.{len(self._captured)}"
            self._captured[id(value)] = self.b.source(name, shape, kind, format_of(aval.dtype))
        return self._captured[id(value)]

    def tensor(self, value: Value) -> str:
        """A value as a tensor; a constant is written out."""
        if isinstance(value, str):
            return value
        return self.op("fill", name="constant", dtype=value.dtype, shape=value.shape)

    def shape(self, value: Value) -> tuple[Any, ...]:
        """The shape of a value."""
        return value.shape if isinstance(value, Constant) else self.b.shape(value)

    # --- nodes ---

    def op(self, op: str, *inputs: str, name: str = "", dtype: str | None = None, **attrs: Any) -> str:
        """Add a node."""
        return self.b.op(op, *inputs, name=name, dtype=dtype, **attrs)

    def out(self, eqn: Any, op: str, *inputs: str, at: int = 0, **attrs: Any) -> str:
        """Add a node named after the primitive, in the number format of one of its results."""
        dtype = format_of(eqn.outvars[at].aval.dtype)
        return self.op(op, *inputs, name=eqn.primitive.name, dtype=dtype, **attrs)

    def shaped(self, eqn: Any, op: str, *inputs: str, at: int = 0, **attrs: Any) -> str:
        """The same for operators that are told their output's shape."""
        return self.out(eqn, op, *inputs, at=at, shape=shape_of(eqn.outvars[at].aval), **attrs)

    def sweep(self, eqn: Any, op: str, values: Sequence[Value], **attrs: Any) -> str:
        """An elementwise operator; constants are part of the kernel and no operand of it."""
        tensors = [value for value in values if isinstance(value, str)]
        shape = shape_of(eqn.outvars[0].aval)
        if broadcast([self.b.shape(each) for each in tensors]) != shape:
            tensors[0] = self.expand(tensors[0], shape)
        return self.out(eqn, op, *tensors, **attrs)

    def view(self, x: str, shape: Sequence[Any]) -> str:
        """The same elements under another shape."""
        target, base = tuple(shape), self.b.shape(x)
        if base == target:
            return x
        # Symbolic floors may hide that two counts are equal, and only a slice takes any shape.
        same = total(target) is not None or prod(target) == prod(base)
        return self.op("view" if same else "slice", x, name="view", shape=target)

    def permute(self, x: str, axes: Sequence[int]) -> str:
        """The axes in another order."""
        order = tuple(int(axis) for axis in axes)
        return x if order == tuple(range(len(order))) else self.op("permute", x, name="transpose", axes=order)

    def expand(self, x: str, shape: Sequence[Any]) -> str:
        """Broadcast to a shape."""
        base = self.b.shape(x)
        x = self.view(x, (1,) * (len(shape) - len(base)) + base)
        return x if self.b.shape(x) == tuple(shape) else self.op("expand", x, name="broadcast", shape=tuple(shape))

    def unknown(self, eqn: Any, values: Sequence[Value], title: str = "") -> list[Value]:
        """A primitive without a rule: an error, or its bytes alone."""
        what = str(eqn.primitive.name)
        title = title or _title(eqn)
        tensors = [value for value in values if isinstance(value, str)]
        formats = [(shape_of(var.aval), format_of(getattr(var.aval, "dtype", "bool"))) for var in eqn.outvars]
        shape, dtype = formats[0] if formats else ((), "bool")
        first = emit.unknown(
            self.b, title, tensors, shape,
            policy=self.policy, where=place(eqn), known=(), dtype=dtype, name=what,
        )  # fmt: skip
        others: list[Value] = [self.op("fill", name=what, dtype=dtype, shape=shape) for shape, dtype in formats[1:]]
        return [first, *others][: len(formats)]


#: Rules that see to constants themselves.
_EVEN_CONSTANT = frozenset({
    "scan", "while", "cond", "jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call",
    "custom_vjp_call_jaxpr", "custom_lin", "remat", "remat2", "checkpoint", "composite", "shard_map", "random_bits",
    "threefry2x32", "rng_bit_generator", "rng_uniform",
})  # fmt: skip


#: Functions of numbers that bounds of loops and choices of branches are computed with.
_FOLDS: dict[str, Callable[..., Any]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "max": max, "min": min, "neg": operator.neg,
    "clamp": lambda low, x, high: min(max(low, x), high),
    **{name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")},
    **dict.fromkeys(("convert_element_type", "broadcast_in_dim", "reshape", "squeeze", "stop_gradient"), lambda x: x),
}  # fmt: skip


def floating(aval: Any) -> bool:
    """Whether arithmetic on a value is floating-point; integers index and compare, and count nothing."""
    return str(getattr(aval, "dtype", "")).startswith(("float", "bfloat", "complex"))


def _parts(stack: str) -> list[str]:
    """The scopes of a name stack such as ``block/vmap(bsd,dhk->bshk)``, each a plain word."""
    words = re.split(r"/(?![^(]*\))", stack)
    return [word for word in (re.sub(r"\W+", "_", part).strip("_") for part in words) if word]


def _title(eqn: Any) -> str:
    """What to call an operation without a rule: a custom kernel by its own name."""
    p = eqn.params
    named = getattr(p.get("name_and_src_info"), "name", None) or p.get("name") or p.get("target_name")
    return f"{eqn.primitive.name} {named}" if isinstance(named, str) and named else str(eqn.primitive.name)


def place(eqn: Any) -> str:
    """Where an equation comes from in the user's source, as far as jax knows."""
    try:
        from jax._src.source_info_util import summarize

        found = str(summarize(eqn.source_info)).replace("\\", "/").rpartition("/")[2]
    except (ImportError, AttributeError, TypeError):
        found = ""
    # A jax function imported as it is has no line of the user's, only that of the importer.
    return str(eqn.primitive.name) if not found or found.endswith("_trace.<locals>.flat)") else found
