"""An explicit loop-nest form: buffers, loops with bounds, step and a mark, stores, the arithmetic of what is stored.

All of it is frozen data, so that two nests that do the same are equal. Statements say to which account their
arithmetic goes: ``flops`` are contractions, ``vector`` the arithmetic per element, as the counts of a graph have them;
``rows`` is what is done once a row (the root of a variance), which those leave out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Literal

from roofline.codegen.loops.index import Apply, Atom, Fetch, Index, atoms, substitute, variables

Account = Literal["flops", "vector", "rows"]
Mark = Literal["", "parallel", "vector"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """An array in memory.

    Attributes:
        name: Unique in its kernel.
        shape: Sizes of its axes.
        dtype: Name of the number format.
        local: Whether it lives and dies in the kernel.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    local: bool = False


@dataclass(frozen=True, slots=True)
class Const:
    """A number."""

    value: float


@dataclass(frozen=True, slots=True)
class Load:
    """An element of a buffer."""

    buffer: str
    index: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Op:
    """Arithmetic: ``add``, ``exp``, ``select``... (:data:`roofline.codegen.loops.arithmetic.SCALARS`)."""

    name: str
    args: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Guard:
    """A value where all of some indices are at least 0, else another; the value is not touched there."""

    conditions: tuple[Index, ...]
    value: Value
    otherwise: Value


Value = Const | Load | Op | Guard


@dataclass(frozen=True, slots=True)
class Store:
    """An assignment to an element, or with ``how`` what is added to it, multiplied, or compared with it.

    Attributes:
        buffer: What it writes.
        index: Which element.
        value: What is stored.
        how: Empty, or ``add``, ``mul``, ``max``, ``min``: a reduction.
        account: Where its arithmetic is counted.
    """

    buffer: str
    index: tuple[Index, ...]
    value: Value
    how: str = ""
    account: Account = "vector"


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop.

    Attributes:
        var: Its variable.
        start: Its first value.
        stop: What it stays below.
        body: What is done for each value.
        step: What is added for the next.
        mark: ``parallel`` where the order does not matter, ``vector`` where all of them are done at once.
    """

    var: str
    start: Index
    stop: Index
    body: tuple[Statement, ...]
    step: int = 1
    mark: Mark = ""

    @property
    def trips(self) -> int | None:
        """Count how often it runs; ``None`` where outer variables decide."""
        number = (self.stop - self.start).number
        return None if number is None else max(0, -(-number // self.step))


Statement = Store | Loop


@dataclass(frozen=True, slots=True)
class Kernel:
    """Loop nests that run as one kernel.

    Attributes:
        name: What it is called.
        buffers: Those that it is handed, then the local ones.
        body: Loops and stores, in order.
    """

    name: str
    buffers: tuple[Buffer, ...]
    body: tuple[Statement, ...]

    def buffer(self, name: str) -> Buffer:
        """Return a buffer by name."""
        return next(each for each in self.buffers if each.name == name)

    @property
    def operands(self) -> tuple[Buffer, ...]:
        """Buffers that it is handed."""
        return tuple(each for each in self.buffers if not each.local)


# --- what is in what --------------------------------------------------------------------------------------------------


def values(value: Value) -> Iterator[Value]:
    """Yield a value and all that it is made of."""
    yield value
    if isinstance(value, Op):
        for each in value.args:
            yield from values(each)
    elif isinstance(value, Guard):
        yield from values(value.value)
        yield from values(value.otherwise)


def stores(body: tuple[Statement, ...]) -> Iterator[Store]:
    """Yield the stores of a body in order, those in loops too."""
    for each in body:
        if isinstance(each, Store):
            yield each
        else:
            yield from stores(each.body)


def loops(body: tuple[Statement, ...]) -> Iterator[Loop]:
    """Yield all loops of a body, outer ones first."""
    for each in body:
        if isinstance(each, Loop):
            yield each
            yield from loops(each.body)


def loads(store: Store) -> Iterator[tuple[str, tuple[Index, ...]]]:
    """Yield what a store reads, without the element that it reduces to."""
    for value in values(store.value):
        if isinstance(value, Load):
            yield value.buffer, value.index
        for each in _indices(value):
            yield from _fetched(each)
    for each in store.index:
        yield from _fetched(each)


def _indices(value: Value) -> tuple[Index, ...]:
    return value.index if isinstance(value, Load) else value.conditions if isinstance(value, Guard) else ()


def _fetched(index: Index) -> Iterator[tuple[str, tuple[Index, ...]]]:
    return ((atom.buffer, atom.index) for atom in atoms(index) if isinstance(atom, Fetch))


def used(store: Store) -> frozenset[str]:
    """Return the loop variables that a store depends on."""
    every = [*store.index, *(index for value in values(store.value) for index in _indices(value))]
    return frozenset().union(*map(variables, every))


# --- the same with something else -------------------------------------------------------------------------------------


def mapped(value: Value, change: Callable[[Index], Index]) -> Value:
    """Change every index of a value."""
    if isinstance(value, Load):
        return Load(value.buffer, tuple(map(change, value.index)))
    if isinstance(value, Op):
        return Op(value.name, tuple(mapped(each, change) for each in value.args))
    if isinstance(value, Guard):
        conditions = tuple(map(change, value.conditions))
        return Guard(conditions, mapped(value.value, change), mapped(value.otherwise, change))
    return value


def renamed(statement: Statement, to: dict[str, Index]) -> Statement:
    """Replace variables in a statement."""

    def change(index: Index) -> Index:
        return substitute(index, to)

    if isinstance(statement, Store):
        index, value = tuple(map(change, statement.index)), mapped(statement.value, change)
        return replace(statement, index=index, value=value)
    rest = {var: index for var, index in to.items() if var != statement.var}
    body = tuple(renamed(each, rest) for each in statement.body)
    return replace(statement, start=change(statement.start), stop=change(statement.stop), body=body)


def rebuffered(statement: Statement, to: Mapping[str, str]) -> Statement:
    """Give buffers other names in a statement."""

    def place(index: Index) -> Index:
        return Index(tuple((_refetched(atom, to, place), factor) for atom, factor in index.terms), index.const)

    def value(each: Value) -> Value:
        if isinstance(each, Load):
            return Load(to[each.buffer], tuple(map(place, each.index)))
        if isinstance(each, Op):
            return Op(each.name, tuple(map(value, each.args)))
        if isinstance(each, Guard):
            return Guard(tuple(map(place, each.conditions)), value(each.value), value(each.otherwise))
        return each

    if isinstance(statement, Loop):
        return replace(statement, body=tuple(rebuffered(each, to) for each in statement.body))
    index = tuple(map(place, statement.index))
    return replace(statement, buffer=to[statement.buffer], index=index, value=value(statement.value))


def _refetched(atom: Atom, to: Mapping[str, str], place: Callable[[Index], Index]) -> Atom:
    if isinstance(atom, Fetch):
        return Fetch(to[atom.buffer], tuple(map(place, atom.index)))
    return Apply(atom.kind, tuple(map(place, atom.args))) if isinstance(atom, Apply) else atom


def nest(axes: list[tuple[str, int]], store: Store) -> Statement:
    """Put a store into loops over some axes, the first outermost."""
    return reduce(lambda body, axis: Loop(axis[0], Index(), Index((), axis[1]), (body,)), reversed(axes), store)  # type: ignore[arg-type, return-value]


def straight(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Return a body without the loops that run once."""
    out: list[Statement] = []
    for each in body:
        if isinstance(each, Store):
            out.append(each)
        elif each.trips == 1:
            out += straight(tuple(renamed(inner, {each.var: each.start}) for inner in each.body))
        else:
            out.append(replace(each, body=straight(each.body)))
    return tuple(out)


def perfect(loop: Loop) -> tuple[list[Loop], tuple[Statement, ...]]:
    """Return the loops that stand directly in each other from one on, and the body of the innermost."""
    chain = [loop]
    while len(chain[-1].body) == 1 and isinstance(chain[-1].body[0], Loop):
        chain.append(chain[-1].body[0])
    return chain, chain[-1].body


def wrapped(chain: list[Loop], body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Put a body into loops, the first outermost."""
    for loop in reversed(chain):
        body = (replace(loop, body=body),)
    return body
