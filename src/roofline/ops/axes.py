"""What operators say about the axes of their tensors beyond a signature: which have their size for the same reason.

A rule gets the cells of a node's axes (:mod:`roofline.ir.unify`) and unifies those that belong together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from roofline.ir.sizes import prod
from roofline.ir.unify import ONE, Cell, align, freeze, joined, product, unify
from roofline.ops.registry import axes_of

Cells = Sequence[Cell]


@dataclass(slots=True)
class Site:
    """The axes of a node's tensors.

    Attributes:
        name: Of the node.
        op: Its operator.
        attrs: Its options.
        inputs: The cells of each input's axes.
        output: The cells of the output's axes.
        reorders: Whether a view may stand for a change of order, as model families write it.
        axes: Cells by the names of a signature.
        options: Options that are sizes of axes, as cells.
        cuts: Parts cut out of an axis of the first input, with the axis: one part, or its two factors. What several
            nodes cut out of one axis together is read when all are known.
    """

    name: str
    op: str
    attrs: Mapping[str, Any]
    inputs: Sequence[Cells]
    output: Cells
    reorders: bool = False
    axes: dict[str, Cell] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    cuts: list[tuple[int, Cells]] = field(default_factory=list)

    def same(self, left: Iterable[Cell], right: Iterable[Cell]) -> None:
        """Unify axes pair by pair."""
        for one, other in zip(left, right, strict=True):
            unify(one, other, self.name)

    def freeze(self, cells: Iterable[Cell]) -> None:
        """Let nobody resize these."""
        freeze((each for each in cells if each is not ONE), f"{self.op} {self.name}")


def frozen(site: Site) -> None:
    """Say nothing, so that no axis may change."""
    site.freeze(each for cells in (*site.inputs, site.output) for each in cells)


def free(site: Site) -> None:
    """Tie no axis to another."""


def broadcast_axes(site: Site) -> None:
    """Unify axes from the last, but for those of size 1."""
    for cells in site.inputs:
        for own, other in zip(reversed(cells), reversed(site.output), strict=False):
            if own is not ONE:
                unify(other, own, site.name)


def same_places(site: Site) -> None:
    """Unify equal axes at the same place; the others are not to be touched."""
    out = site.output
    for source in site.inputs:
        aligned = len(source) == len(out)
        for at, each in enumerate(source):
            if aligned and each.size == out[at].size:
                unify(each, out[at], site.name)
            else:
                site.freeze((each, out[at]) if aligned and each is not ONE else (each,))
        if not aligned:
            site.freeze(out)


# --- views ------------------------------------------------------------------------------------------------------------


def reshaped_axes(site: Site) -> None:
    """Cut both shapes where they have the same elements before them; in between, cancel and factor.

    Model families write a change of order as a view, too. Of sizes that happen to be equal, a length that is also the
    number of heads, they mean those that they change the order of.
    """
    source, out, why = site.inputs[0], site.output, site.name
    if site.reorders:
        if not _by_head(source, out, why) and not _by_head(out, source, why):
            align(*cancelled(*_transposed(source, out, why), why), why)
        return
    for left, right in _runs(source, out):
        align(*cancelled(left, right, why), why)


def _by_head(whole: Cells, heads: Cells, why: str) -> bool:
    """Read ``(B, S, h d)`` seen as ``(B, h, S, d)``; false where the shapes are others."""
    if (len(whole), len(heads)) != (3, 4):
        return False
    (batch, length, width), (lead, number, middle, each) = whole, heads
    if batch.size != lead.size or length.size != middle.size or width.size != number.size * each.size:
        return False
    for one, other in ((batch, lead), (length, middle), (width, product([number, each]))):
        unify(one, other, why)
    return True


def _transposed(source: Cells, out: Cells, why: str) -> tuple[list[Cell], list[Cell]]:
    """Keep the innermost axis of a view if its size stays; of what is then left, two may have changed places."""
    left, right = ([each for each in side if each is not ONE] for side in (source, out))
    if left and right and left[-1].size == right[-1].size:
        unify(left.pop(), right.pop(), why)
        if [each.size for each in left] == [each.size for each in reversed(right)]:
            for each, other in zip(left, reversed(right), strict=True):
                unify(each, other, why)
            return [], []
    return left, right


def _runs(left: Cells, right: Cells) -> list[tuple[list[Cell], list[Cell]]]:
    before, behind = ([each for each in side if each is not ONE] for side in (left, right))
    ends = {prod(each.size for each in behind[: at + 1]): at + 1 for at in range(len(behind))}
    runs, start, begin = [], 0, 0
    total: Any = 1
    for at, each in enumerate(before):
        total = total * each.size
        if total in ends:
            runs.append((before[start : at + 1], behind[begin : ends[total]]))
            start, begin = at + 1, ends[total]
    return runs


def cancelled(left: Cells, right: Cells, why: str) -> tuple[list[Cell], list[Cell]]:
    """Unify axes of the same size, in order; return what is left over on both sides."""
    rest = [each for each in right if each.size != 1]
    over = []
    for each in (each for each in left if each.size != 1):
        match = next((at for at, other in enumerate(rest) if other.size == each.size), None)
        if match is None:
            over.append(each)
        else:
            unify(each, rest.pop(match), why)
    return over, rest


def permuted_axes(site: Site) -> None:
    """Follow each axis to its new place."""
    site.same((site.inputs[0][at] for at in site.attrs["axes"]), site.output)


def expanded_axes(site: Site) -> None:
    """Keep the axes that are not repeated."""
    for own, out in zip(site.inputs[0], site.output, strict=True):
        if own is not ONE:
            unify(own, out, site.name)


def sliced_axes(site: Site) -> None:
    """Pair the axes that stay; remember the one that is cut, to be read with the other parts of it."""
    source, out = site.inputs[0], site.output
    pairs = _matched(source, out)
    if pairs is None:
        _regrouped(site)
        return
    cut = [(at, to) for at, to in pairs if to is None or source[at].size != out[to].size]
    for at, to in pairs:
        if to is not None and (at, to) not in cut:
            unify(source[at], out[to], site.name)
    if len(cut) == 1:
        at, to = cut[0]
        site.cuts.append((at, [ONE if to is None else out[to]]))
    else:
        freeze((each for at, to in cut for each in (source[at], ONE if to is None else out[to])), site.name)


def _matched(source: Cells, out: Cells) -> list[tuple[int, int | None]] | None:
    """Pair axes of a source with those of its slice, one of which may be gone; ``None`` where they do not line up."""
    if len(source) == len(out):
        return [(at, at) for at in range(len(out))]
    pairs: list[tuple[int, int | None]] = []
    left = len(out) - 1
    for at in range(len(source) - 1, -1, -1):
        if left >= 0 and source[at].size == out[left].size:
            pairs.append((at, left))
            left -= 1
        else:
            pairs.append((at, None))
    return pairs if left < 0 and len(out) < len(source) else None


def _regrouped(site: Site) -> None:
    """Read a slice that also takes an axis apart: ``(h (n + v), l)`` to ``(h, n, l)``."""
    left, right = cancelled(site.inputs[0], site.output, site.name)
    at = [axis for axis, each in enumerate(site.inputs[0]) if any(each is other for other in left)]
    if len(at) == 1 and len(right) == 2:
        site.cuts.append((at[0], right))
    else:
        freeze((*left, *right), site.name)


# --- others -----------------------------------------------------------------------------------------------------------


def joined_axes(site: Site) -> None:
    """Add up the axis along which arrays are joined."""
    along = site.attrs.get("axis", -1) % len(site.output)
    for at, whole in enumerate(site.output):
        for part in site.inputs if at != along else ():
            unify(whole, part[at], site.name)
    unify(site.output[along], joined([part[along] for part in site.inputs]), site.name)


def reduced_axes(site: Site) -> None:
    """Keep the axes that are not reduced."""
    source, out = site.inputs[0], site.output
    gone = axes_of(len(source), site.attrs.get("axes"))
    left = [each for at, each in enumerate(out) if at not in gone] if site.attrs.get("keepdim") else list(out)
    site.same([each for at, each in enumerate(source) if at not in gone], left)


def taken_axes(site: Site) -> None:
    """Read rows by index, an entry of each row, or another gather.

    Rows keep what follows the first axis, entries what comes before the last; of any other gather only what stays in
    place is known.
    """
    table, out = site.inputs[0], site.output
    index = site.inputs[1] if len(site.inputs) > 1 else ()
    for left in ((*index, *table[1:]), table[:-1]):
        if index and [each.size for each in left] == [each.size for each in out]:
            site.same(left, out)
            return
    same_places(site)
