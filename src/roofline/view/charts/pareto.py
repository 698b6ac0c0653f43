"""Throughput against latency, and which points no other one beats in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from roofline.analysis.batches import BatchChoice
from roofline.analysis.comparison import Comparison
from roofline.analysis.estimates import Estimate
from roofline.counting.grid import unbeaten
from roofline.ir.errors import UsageError
from roofline.ir.numbers import finite_number
from roofline.ir.report import title
from roofline.ir.text import shown
from roofline.ir.units import format_si
from roofline.view.charts.chart import Chart
from roofline.view.charts.marks import Axis, Drawing, Line, Mark, Panel, Points
from roofline.view.charts.memory import each_point
from roofline.view.charts.style import short

#: Points of the front that have a label.
LABELLED = 9


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run.

    Attributes:
        label: What it is.
        chip: Where it runs.
        latency: Time of one run [s].
        throughput: Items per second, or per unit of money.
        fits: Whether it fits in memory; ``None`` where nobody knows.
    """

    label: str
    chip: str
    latency: float
    throughput: float
    fits: bool | None


@dataclass(frozen=True, eq=False, repr=False)
class Pareto(Chart):
    """Throughput against latency, made by :func:`plot_pareto`.

    Attributes:
        about: What the points are of.
        options: The points.
        item: What is put through.
        priced: Whether throughput is per unit of money instead of per second.
    """

    schema = "pareto"

    about: Mapping[str, Any]
    options: tuple[Option, ...]
    item: str
    priced: bool

    @cached_property
    def front(self) -> frozenset[int]:
        """Numbers of the options that fit and that no other one beats in both."""
        able = [i for i, one in enumerate(self.options) if one.fits is not False]
        ends = [(self.options[i].latency, -self.options[i].throughput) for i in able]
        return frozenset(able[at] for at in unbeaten(*zip(*ends, strict=True))) if able else frozenset()

    def subject(self) -> dict[str, Any]:
        """Return what the points are of."""
        return dict(self.about)

    def records(self) -> list[dict[str, Any]]:
        """Return one row per option: its latency, its throughput, and whether it is on the front."""
        rate = f"{self.item}s_per_{'price' if self.priced else 's'}"
        return [
            {"option": one.label, "chip": one.chip, "latency_s": one.latency, rate: one.throughput, "fits": one.fits,
             "on_front": i in self.front}
            for i, one in enumerate(self.options)
        ]  # fmt: skip

    def drawing(self) -> Drawing:
        """Return the front as a line with its options, and the others muted."""
        front = sorted(self.front, key=lambda i: self.options[i].latency)
        beaten = [i for i, one in enumerate(self.options) if one.fits is not False and i not in self.front]
        large = [i for i, one in enumerate(self.options) if one.fits is False]
        marks: list[Mark] = []
        if large:
            marks.append(self._points(large, "red", "does not fit", 5.0, filled=False))
        if beaten:
            marks.append(self._points(beaten, "unknown", "another one is better in both", 4.5))
        if front:
            line = ([self.options[i].latency for i in front], [self.options[i].throughput for i in front])
            marks.append(Line(*line, "compute", width=1.3))
            marks.append(self._points(front, "compute", "no other one is better in both", 7.0, _spread(front)))
        what = f"{self.item}s per unit of money" if self.priced else f"throughput [{self.item}s/s]"
        panel = Panel(tuple(marks), Axis("time of one run", "s", log=10), Axis(what, log=10))
        return Drawing((panel,), "Throughput against latency", title(self.about), size=(8.0, 5.6))

    def _points(
        self, at: Sequence[int], colour: str, name: str, size: float, labelled: frozenset[int] = frozenset(),
        filled: bool = True,
    ) -> Points:  # fmt: skip
        some = [self.options[i] for i in at]
        unit = "unit of money" if self.priced else "s"
        hover = [
            f"{one.label}\n{format_si(one.latency, 's')}, {short(one.throughput)} {self.item}s/{unit}" for one in some
        ]
        return Points([one.latency for one in some], [one.throughput for one in some], colour, "o", size, name,
                      [one.label if i in labelled else "" for i, one in zip(at, some, strict=True)], hover,
                      filled=filled)  # fmt: skip

    def __repr__(self) -> str:
        return f"<Pareto of {len(self.options)} options, {len(self.front)} on the front>"


def _spread(front: Sequence[int]) -> frozenset[int]:
    """Choose which options of the front are labelled: both ends, and some between."""
    return frozenset(front[i] for i in np.unique(np.linspace(0, len(front) - 1, LABELLED).astype(int)))


def plot_pareto(
    of: Estimate | BatchChoice | Comparison | Sequence[Estimate], *, price: Mapping[str, float] | None = None
) -> Pareto:
    """Describe a chart of throughput against latency: which chip and batch no other one beats in both.

    Args:
        of: Estimates over chips, batches or both, the choice of a batch, or a comparison.
        price: Of one device for an hour, by the name of its chip, in any currency; then throughput is what a unit of
            money buys. No price ships with the library.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: Something else, no point with a time, or a chip without a price.

    Example:
        >>> import roofline as rl
        >>> chips = ["h100-sxm", "l4"]
        >>> est = rl.estimate("gpt2", chips, phase="decode", mode="graph", batch=[1, 8, 64], context=512)
        >>> plot_pareto(est).front == {0, 1, 2}
        True
    """
    every = list(_estimates(of))
    if not every or not all(isinstance(est, Estimate) for est in every):
        raise UsageError(f"expected estimates, a BatchChoice or a Comparison with a time, given {shown(of)}")
    points = [point for whole in every for point in _points(whole)]
    one = {est.chip.name for est, _ in points}
    start = f"{next(iter(one))}, " if len(one) == 1 else ""  # what all have in common says nothing
    options = tuple(_option(est, label.removeprefix(start), price) for est, label in points)
    about = of.subject() if isinstance(of, Estimate | BatchChoice | Comparison) else every[0].subject()
    return Pareto(about, options, every[0].graph.item, price is not None)


def _estimates(of: Any) -> Sequence[Estimate]:
    if isinstance(of, Comparison):
        return [row.estimate for row in of.rows if row.estimate is not None]
    if isinstance(of, BatchChoice):
        return [of.at(batch) for batch in of.shown()]
    return [of] if isinstance(of, Estimate) else list(of) if isinstance(of, Sequence) else []


def _points(whole: Estimate) -> Sequence[tuple[Estimate, str]]:
    if not whole.shape:
        sizes = whole.subject()["sizes"]
        return [
            (whole, ", ".join([whole.chip.name, *(f"batch {sizes[name]:,}" for name in ("batch",) if name in sizes)]))
        ]
    return each_point(whole)


def _option(est: Estimate, label: str, price: Mapping[str, float] | None) -> Option:
    rate = float(est.throughput)
    if price is not None:
        if not isinstance(price, Mapping):
            raise UsageError(f"price={shown(price)}: expected prices by the names of chips, such as {{'l4': 0.8}}")
        if est.chip.name not in price:
            raise UsageError(f"price has none of {est.chip.name}; given: {', '.join(map(str, price)) or 'none'}")
        rate *= 3600 / finite_number(f"price of {est.chip.name}", price[est.chip.name], 1e-9)
    fits = est.fits
    return Option(label, est.chip.name, float(est.time), rate, None if fits is None else bool(fits))
