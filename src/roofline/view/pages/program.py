"""The program on a page: a drawing whose boxes have the colour of what bounds them, and a tree with the times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from roofline.cost import BOUNDS
from roofline.view.listing.drawing import Drawing, drawing
from roofline.view.listing.listing import Listing, listing
from roofline.view.listing.rows import Item, Row
from roofline.view.listing.wording import tensor
from roofline.view.pages.moves import Cell
from roofline.view.pages.prediction import Prediction, seconds

#: Opacity of a box that takes no time, and of the one that takes most.
PALEST, DEEPEST = 0.06, 0.55


@dataclass(frozen=True, slots=True)
class Heat:
    """What a node or a module takes at each batch.

    Attributes:
        words: Time, share and bound.
        time: Its time [s].
        share: Of the time on the device.
        bound: What bounds it; empty for several.
        depth: Opacity of its colour.
    """

    words: Cell
    time: Cell
    share: Cell
    bound: Cell
    depth: Cell


@dataclass(frozen=True, slots=True)
class Branch:
    """A line of the tree: a module or a node, what it is, how often, what it takes, what is in it."""

    title: str
    what: str
    times: int
    heat: Heat
    items: tuple[Branch, ...] = ()


@dataclass(frozen=True)
class ProgramView:
    """A program as a page shows it.

    Attributes:
        listing: Its nodes.
        drawing: Its boxes and lines.
        heats: What each node takes, by its index.
        branches: Its modules.
    """

    listing: Listing
    drawing: Drawing
    heats: dict[int, Heat]
    branches: tuple[Branch, ...]


def program_view(prediction: Prediction) -> ProgramView:
    """Lay out a program with the time of each node at each batch; the batch stays a symbol in the shapes."""
    shown = prediction.shown
    sizes = {name: size for name, size in shown.grid.values.items() if name != "B" or not prediction.whole.shape}
    listed = listing(shown.graph, **sizes)  # type: ignore[arg-type]
    times = np.array([[float(time.expected) for _, time in point.timed] for point in prediction.points])
    bounds = np.array([[int(time.bound) for _, time in point.timed] for point in prediction.points])
    whole = np.array([float(point.device_time) for point in prediction.points])
    heater = _Heater(listed, times, bounds, whole)
    heats = {row.index: heater.of_row(row) for row in listed.rows if row.number}
    return ProgramView(listed, drawing(listed, whole=True), heats, tuple(map(heater.branch, listed.items)))


def _short(row: Row) -> str:
    return row.name.rpartition(".")[2] or row.name


class _Heater:
    """Works out what nodes and modules take, from the times of the kernels that they run in."""

    def __init__(self, listed: Listing, times: Any, bounds: Any, whole: Any) -> None:
        self.times, self.bounds, self.whole = times, bounds, whole
        self.mains = [row.kernel.nodes.index(row.kernel.main) + 1 for row in listed.counts.rows]
        self.homes = {row.kernel: _short(row) for row in listed.rows if self._is_main(row)}
        seconds = [self._seconds(row) for row in listed.rows]
        self.most = np.max(seconds, axis=0)

    def _seconds(self, row: Row) -> Any:
        """Return the time of a node, that of its kernel: all of which is its main node's."""
        return self.times[:, row.number - 1] * row.count if self._is_main(row) else np.zeros_like(self.whole)

    def _is_main(self, row: Row) -> bool:
        return bool(row.number) and row.step == self.mains[row.number - 1]

    def of_row(self, row: Row) -> Heat:
        """Return what a node takes, in the colour of its kernel."""
        bound = [BOUNDS[at] for at in self.bounds[:, row.number - 1]]
        inside = "" if self._is_main(row) else f"in the kernel of {self.homes.get(row.kernel, 'another')}"
        return self._heat(self._seconds(row), bound, inside)

    def _heat(self, spent: Any, bound: list[str], inside: str = "") -> Heat:
        share = spent / self.whole
        texts, shares = tuple(map(seconds, spent)), tuple(f"{part:.1%}" for part in share)
        # Times of modules may exceed that of the longest node, which is as deep as it gets.
        depth = PALEST + (DEEPEST - PALEST) * np.minimum(spent / self.most, 1.0)
        words = (inside or f"{time}, {part}" for time, part in zip(texts, shares, strict=True))
        return Heat(
            Cell(tuple(words)),
            Cell(texts, tuple(spent)),
            Cell(shares, tuple(share)),
            Cell(tuple(bound)),
            Cell(tuple(f"{value:.3f}" for value in depth)),
        )

    def branch(self, item: Item) -> Branch:
        """Return a module or a node, with the time of all the layers that it stands for."""
        if isinstance(item, Row):
            what = f"{item.title} {', '.join(map(tensor, item.outputs))}"
            heat = self.of_row(item) if item.number else self._heat(np.zeros_like(self.whole), [""] * len(self.whole))
            return Branch(_short(item), what, item.launches, heat)
        rows = [row for row in item.rows() if row.number]
        spent = np.sum([self._seconds(row) for row in rows] or [np.zeros_like(self.whole)], axis=0)
        return Branch(
            item.title, "", item.times, self._heat(spent, self._longest(rows)), tuple(map(self.branch, item.items))
        )

    def _longest(self, rows: list[Row]) -> list[str]:
        """Return what bounds most of the time of some nodes."""
        totals = np.zeros((len(BOUNDS), len(self.whole)))
        for row in rows:
            np.add.at(totals, (self.bounds[:, row.number - 1], np.arange(len(self.whole))), self._seconds(row))
        return [BOUNDS[at] for at in totals.argmax(axis=0)]
