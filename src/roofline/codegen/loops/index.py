"""Whole numbers that loops compute: sums of loop variables with factors, their quotients, remainders and bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

Ranges = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Apply:
    """A quotient or remainder, rounded down, or the least or largest of several numbers."""

    kind: Literal["div", "mod", "min", "max"]
    args: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Fetch:
    """A whole number that is stored in a buffer: the row that a gather asks for."""

    buffer: str
    index: tuple[Index, ...]


Atom = str | Apply | Fetch


@dataclass(frozen=True, slots=True)
class Index:
    """A sum of loop variables and other atoms with factors.

    Attributes:
        terms: Atoms with their factors, none of them 0, each atom once, in a fixed order.
        const: What is added.
    """

    terms: tuple[tuple[Atom, int], ...] = ()
    const: int = 0

    def __add__(self, other: Index | int) -> Index:
        other = index(other)
        factors = dict(self.terms)
        for atom, factor in other.terms:
            factors[atom] = factors.get(atom, 0) + factor
        terms = sorted(((a, f) for a, f in factors.items() if f), key=lambda term: repr(term[0]))
        return Index(tuple(terms), self.const + other.const)

    def __mul__(self, factor: int) -> Index:
        return Index(tuple((a, f * factor) for a, f in self.terms), self.const * factor) if factor else Index()

    def __sub__(self, other: Index | int) -> Index:
        return self + index(other) * -1

    @property
    def number(self) -> int | None:
        """Its value where no variable is in it."""
        return None if self.terms else self.const


def index(value: Index | int | str) -> Index:
    """Return a number or a variable as an index."""
    if isinstance(value, Index):
        return value
    return Index(((value, 1),)) if isinstance(value, str) else Index((), value)


def span(value: Index, ranges: Ranges) -> tuple[int, int] | None:
    """Return the least and largest value for variables from 0 up to below their range; ``None`` where unknown."""
    low = high = value.const
    for atom, factor in value.terms:
        own = _atom_span(atom, ranges)
        if own is None:
            return None
        ends = sorted(end * factor for end in own)
        low, high = low + ends[0], high + ends[1]
    return low, high


def _atom_span(atom: Atom, ranges: Ranges) -> tuple[int, int] | None:
    if isinstance(atom, str):
        return (0, ranges[atom] - 1) if atom in ranges else None
    if isinstance(atom, Apply) and atom.kind == "mod":
        return 0, atom.args[1].const - 1
    own = [span(each, ranges) for each in atom.args] if isinstance(atom, Apply) else [None]
    known = [each for each in own if each is not None]
    if not isinstance(atom, Apply) or len(known) < len(own):
        return None
    if atom.kind == "div":
        return known[0][0] // known[1][0], known[0][1] // known[1][0]
    pick = min if atom.kind == "min" else max
    return pick(low for low, _ in known), pick(high for _, high in known)


def _parted(value: Index, by: int) -> tuple[Index, Index]:
    """Split into a multiple of a number, divided by it, and the rest."""
    whole = Index(tuple((a, f // by) for a, f in value.terms if f % by == 0), value.const // by)
    return whole, Index(tuple((a, f) for a, f in value.terms if f % by), value.const % by)


def divided(value: Index, by: int, ranges: Ranges) -> Index:
    """Return the quotient by a number, rounded down.

    Example:
        >>> divided(index("i") * 8 + index("j"), 8, {"j": 8}) == index("i")
        True
    """
    whole, rest = _parted(value, by)
    own = span(rest, ranges)
    if own is not None and own[0] // by == own[1] // by:
        return whole + own[0] // by
    return whole + Index(((Apply("div", (rest, index(by))), 1),))


def remainder(value: Index, by: int, ranges: Ranges) -> Index:
    """Return the remainder by a number, from 0 up."""
    rest = _parted(value, by)[1]
    own = span(rest, ranges)
    if own is not None and own[0] // by == own[1] // by:
        return rest - own[0] // by * by
    return Index(((Apply("mod", (rest, index(by))), 1),))


def least(*values: Index | int) -> Index:
    """Return the least of several."""
    return _extreme("min", *values)


def largest(*values: Index | int) -> Index:
    """Return the largest of several."""
    return _extreme("max", *values)


def _extreme(kind: Literal["min", "max"], *values: Index | int) -> Index:
    args = list(dict.fromkeys(map(index, values)))
    bases = {arg.terms for arg in args}
    if len(bases) == 1:  # the same variables: their constants decide
        pick = min if kind == "min" else max
        return Index(args[0].terms, pick(arg.const for arg in args))
    return Index(((Apply(kind, tuple(args)), 1),))


def substitute(value: Index, to: Mapping[str, Index]) -> Index:
    """Replace variables."""
    total = Index((), value.const)
    for atom, factor in value.terms:
        total = total + _substituted(atom, to) * factor
    return total


def _substituted(atom: Atom, to: Mapping[str, Index]) -> Index:
    if isinstance(atom, str):
        return to.get(atom, index(atom))
    if isinstance(atom, Fetch):
        return Index(((Fetch(atom.buffer, tuple(substitute(each, to) for each in atom.index)), 1),))
    args = [substitute(each, to) for each in atom.args]
    if atom.kind in ("min", "max"):
        return _extreme(atom.kind, *args)
    rule = divided if atom.kind == "div" else remainder
    return rule(args[0], args[1].const, {})


def atoms(value: Index) -> Iterator[Atom]:
    """Yield all atoms of an index, also those inside others."""
    for atom, _ in value.terms:
        yield atom
        if not isinstance(atom, str):
            for each in atom.index if isinstance(atom, Fetch) else atom.args:
                yield from atoms(each)


def variables(value: Index) -> frozenset[str]:
    """Return the loop variables that an index depends on."""
    return frozenset(atom for atom in atoms(value) if isinstance(atom, str))


def factor_of(value: Index, var: str) -> int | None:
    """Return the factor of a variable, 0 where it is not in it; ``None`` where it is inside another atom."""
    inside = any(var in variables(Index(((atom, 1),))) for atom, _ in value.terms if not isinstance(atom, str))
    return None if inside else dict(value.terms).get(var, 0)


Lookup = Callable[[str, tuple[int, ...]], int]


def evaluate(value: Index, at: Mapping[str, int], lookup: Lookup | None = None) -> int:
    """Return the number for given variables; ``lookup`` reads a buffer."""
    return value.const + sum(factor * _evaluated(atom, at, lookup) for atom, factor in value.terms)


def _evaluated(atom: Atom, at: Mapping[str, int], lookup: Lookup | None) -> int:
    if isinstance(atom, str):
        return at[atom]
    if isinstance(atom, Fetch):
        assert lookup is not None
        return lookup(atom.buffer, tuple(evaluate(each, at, lookup) for each in atom.index))
    args = [evaluate(each, at, lookup) for each in atom.args]
    return {"div": lambda: args[0] // args[1], "mod": lambda: args[0] % args[1],
            "min": lambda: min(args), "max": lambda: max(args)}[atom.kind]()  # fmt: skip


def flat(index_: tuple[Index, ...], shape: tuple[int, ...]) -> Index:
    """Return the place of an element in storage."""
    return sum((each * math.prod(shape[at + 1 :]) for at, each in enumerate(index_)), Index())


def unflat(place: Index, shape: tuple[int, ...], ranges: Ranges) -> tuple[Index, ...]:
    """Return the element that is at a place in storage."""
    axes = []
    for at, size in enumerate(shape):
        behind = math.prod(shape[at + 1 :])
        along = divided(place, behind, ranges)
        axes.append(remainder(along, size, ranges) if at else along)
    return tuple(axes)
