"""What changes on a page when its slider moves: texts, attributes and charts, a value of each for every batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup, escape

from roofline.view.charts import interactive
from roofline.view.charts.marks import Axis, Drawing, Panel
from roofline.view.charts.spans import spans
from roofline.view.listing.wording import safe

#: Digits of the numbers in a chart: more than anybody sees, fewer than would swell the page.
DIGITS = 5
#: Share of an axis that is added at both ends.
EDGE = 1e-3
#: Height of the title that a chart has where it stands alone [pixel].
TITLE = 36


class Cell(NamedTuple):
    """A figure of a page: a text for each batch, and the numbers by which a table sorts."""

    texts: tuple[str, ...]
    values: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart of a page: its name there, what it shows in words for each batch, what it can show or hide."""

    name: str
    labels: tuple[str, ...]
    height: int
    toggles: tuple[str, ...]


class Moves:
    """Collects what changes; a page without a slider has one batch, and nothing changes.

    Example:
        >>> moves = Moves(["1", "8"], 1)
        >>> moves(text=["1 ms", "8 ms"], data_v=[0.001, 0.008]), moves(text=["0 B", "0 B"])
        (Markup(' data-v="0.008" data-m="0 1"'), Markup(''))
        >>> moves.data()["moves"][0]
        ['text', ['1 ms', '8 ms']]
    """

    def __init__(self, labels: Sequence[str] = ("",), at: int = 0) -> None:
        """Take the positions of the slider, and the one at which the page opens."""
        self.labels, self.at = tuple(labels), at
        self.pictures: dict[str, Any] = {}
        self._numbers: dict[tuple[str, tuple[Any, ...]], int] = {}

    def __call__(self, **values: Sequence[Any]) -> Markup:
        """Write the attributes of an element as they are at first, and note those that change; ``text`` is inside."""
        written, changing = [], []
        for key, each in values.items():
            name, states = key.rstrip("_").replace("_", "-"), tuple(map(_plain, each))
            if states and name != "text":
                written.append(f' {name}="{escape(states[self.at])}"')
            if len(set(states)) > 1:
                changing.append(self._numbers.setdefault((name, states), len(self._numbers)))
        if changing:
            written.append(f' data-m="{" ".join(map(str, changing))}"')
        return Markup("".join(written))

    def figures(
        self, points: Iterable[Any], text: Callable[[Any], str], value: Callable[[Any], float] | None = None
    ) -> Cell:
        """Return a figure at each of some points, one for each batch."""
        points = list(points)
        return Cell(tuple(map(text, points)), tuple(map(value, points)) if value is not None else ())

    def picture(self, name: str, drawings: Sequence[Drawing], labels: Sequence[str], fixed: bool = True) -> Picture:
        """Take in a chart.

        Args:
            name: Its anchor on the page.
            drawings: What it shows at each batch.
            labels: The same in words.
            fixed: Let its axes span the same at each batch, so that it is the marks that move.
        """
        states = list(map(_state, steady(drawings) if fixed else drawings))
        name, first = f"chart-{name}", states[self.at]
        switches = toggles([trace for state in (first, *states) for trace in state["data"]])
        self.pictures[name] = {**first, "moves": list(differences(states))}
        return Picture(name, tuple(map(safe, labels)), round(first["layout"]["height"]), switches)

    def data(self) -> dict[str, Any]:
        """Return everything that the page's script needs."""
        moves = [[name, list(states)] for name, states in self._numbers]
        return {"labels": self.labels, "at": self.at, "moves": moves, "pictures": self.pictures}


def steady(drawings: Sequence[Drawing]) -> list[Drawing]:
    """Give the axes of some drawings the same ends, those that hold all of them.

    Example:
        >>> from roofline.view.charts.marks import Line, Panel
        >>> both = [Drawing((Panel((Line([1, 2], [1, end]),)),)) for end in (5, 10)]
        >>> [round(drawing.panels[0].y.high, 1) for drawing in steady(both)]
        [10.6, 10.6]
    """
    if len({len(drawing.panels) for drawing in drawings}) > 1:
        return list(drawings)
    ends = np.asarray([spans(drawing) for drawing in drawings])  # by drawing, panel, axis: low and high
    low, high = ends[..., 0].min(axis=0), ends[..., 1].max(axis=0)

    def held(axis: Axis, at: int, which: int) -> Axis:
        ends = low[at, which], high[at, which]
        return axis if axis.categories else replace(axis, low=float(ends[0]), high=float(ends[1]))

    def steadied(panel: Panel, at: int) -> Panel:
        return replace(panel, x=held(panel.x, at, 0), y=held(panel.y, at, 1))

    return [replace(one, panels=tuple(steadied(panel, at) for at, panel in enumerate(one.panels))) for one in drawings]


def _state(drawing: Drawing) -> dict[str, Any]:
    """Return a figure as plain data: without a title, which the page has, and as wide as the page."""
    figure = interactive.figure(replace(drawing, title="", subtitle=""))
    height, top = figure.layout.height - TITLE, figure.layout.margin.t - TITLE
    figure.update_layout(width=None, autosize=True, height=height, margin_t=top)
    state: dict[str, Any] = _rounded(json.loads(figure.to_json()))
    layout = state["layout"]
    layout.pop("template", None)  # the library's own look, nothing of which shows
    for axis in (layout[key] for key in layout if key[1:5] == "axis" and "range" in layout[key]):
        low, high = axis["range"]  # what lies at an end is still shown when it has been rounded
        axis["range"] = [low - EDGE * (high - low), high + EDGE * (high - low)]
    return state


def _plain(value: Any) -> Any:
    """Return a state as it is written into a page: rounded, or printable."""
    return safe(value) if isinstance(value, str) else float(f"{float(value):.{DIGITS}g}")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return {key: _rounded(item) for key, item in value.items()} if isinstance(value, dict) else value


def toggles(traces: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return the names in the legend of a figure that stand for marks."""
    shown = (trace for trace in traces if trace.get("legendgroup") and trace.get("x") != [None])
    return tuple(dict.fromkeys(trace["legendgroup"] for trace in shown))


def differences(states: Sequence[Any], path: tuple[str | int, ...] = ()) -> Iterable[list[Any]]:
    """Yield the places in which some trees of plain data differ, each with its value in every one of them.

    Example:
        >>> list(differences([{"a": [{"x": 1, "y": 5}]}, {"a": [{"x": 2, "y": 5}]}]))
        [[['a', 0, 'x'], [1, 2]]]
    """
    first = states[0]
    if all(state == first for state in states[1:]):
        return
    keys: Iterable[str | int] = ()
    if all(isinstance(state, dict) and state.keys() == first.keys() for state in states):
        keys = first.keys()
    elif all(isinstance(state, list) and len(state) == len(first) for state in states) and isinstance(first[0], dict):
        keys = range(len(first))
    else:
        yield [list(path), list(states)]
    for key in keys:
        yield from differences([state[key] for state in states], (*path, key))
