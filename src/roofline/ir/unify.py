"""Sizes that are equal for the same reason: a union-find whose members are products or sums of one another.

An axis of 4096 that a view takes apart into 32 heads of 128 *is* the product of two smaller sizes, and a fused
projection of 6144 that three slices share out *is* the sum of three. Where two such structures meet, both are refined:
products like the digits of a mixed radix (the longest common chain of divisors), sums at the union of their cuts. What
cannot be refined is frozen: nobody may resize it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from roofline.ir.sizes import Size, prod, quotient

PRODUCT, SUM = "product", "sum"


class Cell:
    """One size; ``parts`` are its factors or its segments, outermost first."""

    __slots__ = ("frozen", "kind", "link", "parts", "size")

    def __init__(self, size: Size, kind: str = "", parts: Sequence[Cell] = ()) -> None:
        self.size = size
        self.link: Cell | None = None
        self.kind = kind
        self.parts = tuple(parts)
        self.frozen = ""

    @property
    def root(self) -> Cell:
        """Return the one that stands for all that were unified with it."""
        root = self
        while root.link is not None:
            root = root.link
        at = self
        while at.link is not None:
            at.link, at = root, at.link
        return root


#: All axes of size 1 are one: they are broadcast or dropped at will and never resized.
ONE = Cell(1)


def cell(size: Size) -> Cell:
    """Return a size that nothing is known of."""
    return ONE if size == 1 else Cell(size)


def product(parts: Iterable[Cell]) -> Cell:
    """Return the size of several axes as one, the outermost first."""
    factors = [part for part in parts if part.size != 1]
    if len(factors) < 2:
        return factors[0] if factors else ONE
    return Cell(prod(part.size for part in factors), PRODUCT, factors)


def joined(parts: Sequence[Cell]) -> Cell:
    """Return the size of arrays joined along an axis."""
    total: Any = sum((part.size for part in parts[1:]), parts[0].size)
    return parts[0] if len(parts) == 1 else Cell(total, SUM, parts)


def freeze(cells: Iterable[Cell], why: str) -> None:
    """Let nobody resize these; the first reason stays."""
    for root in (each.root for each in cells):
        if root.size != 1:
            root.frozen = root.frozen or why


def unify(a: Cell, b: Cell, why: str) -> None:
    """Make two sizes one; ``why`` says where, for what cannot be refined."""
    a, b = a.root, b.root
    if a is b:
        return
    if a.size != b.size:
        freeze((a, b), why)
        return
    if not a.parts:
        a, b = b, a
    b.link = a
    a.frozen = a.frozen or b.frozen
    if b.parts:
        _reconcile(a, b, why)


def _reconcile(a: Cell, b: Cell, why: str) -> None:
    if a.kind == b.kind:
        (align if a.kind == PRODUCT else _align_sums)(a.parts, b.parts, why)
        return
    factors, segments = (a, b) if a.kind == PRODUCT else (b, a)
    inner = factors.parts[1:]
    shares = [quotient(each.size, prod(part.size for part in inner)) for each in segments.parts]
    if any(share is None for share in shares):
        freeze((*a.parts, *b.parts), why)
        return
    outer = [cell(share) for share in shares if share is not None]
    for segment, share in zip(segments.parts, outer, strict=True):
        unify(segment, product([share, *inner]), why)
    unify(factors.parts[0], joined(outer), why)


def align(left: Iterable[Cell], right: Iterable[Cell], why: str) -> None:
    """Split two shapes of the same elements in the same order at their common divisors."""
    ps = [part.root for part in left if part.size != 1]
    qs = [part.root for part in right if part.size != 1]
    while ps and qs:
        p, q = ps[0].root, qs[0].root
        if p.size == q.size:
            unify(p, q, why)
            del ps[0], qs[0]
        elif (rest := quotient(q.size, p.size)) is not None:
            _split(q, p, cell(rest), qs, why)
            del ps[0]
        elif (rest := quotient(p.size, q.size)) is not None:
            _split(p, q, cell(rest), ps, why)
            del qs[0]
        else:
            freeze((*ps, *qs), why)
            return


def _split(whole: Cell, first: Cell, rest: Cell, among: list[Cell], why: str) -> None:
    unify(whole, product([first, rest]), why)
    among[0] = rest


def _align_sums(left: Sequence[Cell], right: Sequence[Cell], why: str) -> None:
    ps, qs = list(left), list(right)
    while ps and qs:
        p, q = ps[0].root, qs[0].root
        if p.size == q.size:
            unify(p, q, why)
            del ps[0], qs[0]
        elif not (isinstance(p.size, int) and isinstance(q.size, int)):
            freeze((*ps, *qs), why)
            return
        else:
            large, small, among, done = (p, q, ps, qs) if p.size > q.size else (q, p, qs, ps)
            rest = cell(large.size - small.size)
            unify(large, joined([small, rest]), why)
            among[0] = rest
            del done[0]
