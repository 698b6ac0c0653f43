"""What loops allow: whether their turns may run in another order, side by side, or together with those of others.

The tests are on the safe side. Elements are told apart by their indices alone; what a body only reduces into, by one
operation and without reading it, may be reduced in any order.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from roofline.codegen.loops.form import Loop, Statement, loads, loops, stores
from roofline.codegen.loops.index import Apply, Index, factor_of, index, variables

Body = tuple[Statement, ...]
Place = tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Access:
    """How a body touches a buffer: at which indices, by which ways of writing, and whether it reads it."""

    places: frozenset[Place] = frozenset()
    ways: frozenset[str] = frozenset()
    read: bool = False

    @property
    def reduced(self) -> bool:
        """Tell whether the body only reduces into it, by one operation."""
        return len(self.ways) == 1 and "" not in self.ways and not self.read


def accesses(body: Body) -> dict[str, Access]:
    """Return how a body touches each buffer."""
    seen: dict[str, Access] = {}
    for store in stores(body):
        own = seen.get(store.buffer, Access())
        seen[store.buffer] = replace(own, places=own.places | {store.index}, ways=own.ways | {store.how})
        for name, place in loads(store):
            own = seen.get(name, Access())
            seen[name] = replace(own, places=own.places | {place}, read=True)
    return seen


def unordered(body: Body, moved: Sequence[Loop]) -> bool:
    """Tell whether the turns of some loops around a body may run in any order."""
    inner = {loop.var for loop in loops(body)}
    return all(
        not access.ways or access.reduced
        or (len(access.places) == 1 and _injective(next(iter(access.places)), moved, inner))
        for access in accesses(body).values()
    )  # fmt: skip


def _injective(place: Place, moved: Sequence[Loop], inner: Iterable[str]) -> bool:
    """Tell whether different turns touch different elements: each axis is a number of mixed radix in variables."""
    left = {loop.var: loop for loop in moved if loop.trips != 1}
    for each in place:
        names = variables(each)
        if names.isdisjoint(inner) and all(factor_of(each, name) is not None for name in names):
            digits = sorted((abs(factor_of(each, var) or 0), var) for var in names & left.keys())
            if _radix([(factor, left[var]) for factor, var in digits]):
                for _, var in digits:
                    _resolve(left, var)
    return not left


def _radix(digits: Sequence[tuple[int, Loop]]) -> bool:
    """Tell whether each digit, the lowest first, steps over all that the lower ones reach."""
    reach = 0
    for at, (factor, loop) in enumerate(digits):
        if factor * loop.step <= reach or (loop.trips is None and at < len(digits) - 1):
            return False
        reach += factor * loop.step * max((loop.trips or 1) - 1, 0)
    return True


def _resolve(left: dict[str, Loop], var: str) -> None:
    """Take a variable that the element tells out, and the loops over tiles that it then tells too."""
    loop = left.pop(var)
    outer = next((other for other in left.values() if within(loop, other)), None)
    if outer is not None:
        _resolve(left, outer.var)


def within(loop: Loop, outer: Loop) -> bool:
    """Tell whether a loop runs over the step of another: from its variable to the next one at most."""
    end = index(outer.var) + outer.step
    ends = [loop.stop]
    if len(loop.stop.terms) == 1 and isinstance(atom := loop.stop.terms[0][0], Apply) and atom.kind == "min":
        ends += atom.args
    return loop.start == index(outer.var) and end in ends


def sliced(places: Iterable[Place], loop: Loop, body: Body) -> bool:
    """Tell whether each turn of a loop touches a slice of its own: along one axis all indices are equal, and tell."""
    inner = list(loops(body))
    telling = {loop.var}
    for each in inner:  # outer ones first
        if any(within(each, other) for other in (loop, *inner) if other.var in telling):
            telling.add(each.var)
    blind = {each.var for each in inner} - telling

    def tells(axis: Index) -> bool:
        names = variables(axis)
        return names.isdisjoint(blind) and len(names & telling) == 1 and bool(factor_of(axis, *(names & telling)))

    return any(len(set(along)) == 1 and tells(along[0]) for along in zip(*places, strict=True))


def side_by_side(loop: Loop) -> bool:
    """Tell whether the turns of a loop may run at once: what one writes, no other touches."""
    return all(not access.ways or sliced(access.places, loop, loop.body) for access in accesses(loop.body).values())


def together(first: Loop, second: Loop) -> bool:
    """Tell whether each turn of a loop may run right after that of another: what both touch is sliced by turn."""
    one, other = accesses(first.body), accesses(second.body)
    shared = [(one[name], other[name]) for name in one.keys() & other.keys() if one[name].ways or other[name].ways]
    body = (*first.body, *second.body)
    return all(sliced([*a.places, *b.places], first, body) for a, b in shared)


def independent(first: Statement, second: Statement) -> bool:
    """Tell whether two statements may change places: what one writes, the other does not touch."""
    one, other = accesses((first,)), accesses((second,))
    return not any(one[name].ways or other[name].ways for name in one.keys() & other.keys())
