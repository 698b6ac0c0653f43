"""The marks of a roofline, or of several upon each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from roofline.ir.units import format_si
from roofline.view.charts import points as read
from roofline.view.charts.marks import Arrow, Axis, Drawing, Line, Mark, Panel, Points, Region, Rule, Strip
from roofline.view.charts.points import Ceiling, Point, Roofs, Slope, Window
from roofline.view.charts.style import BOUND_MARKERS, clean, short

#: Area of a bubble that is all of the time, and of the smallest one [point²].
LARGEST, SMALLEST = 1100.0, 22.0
#: Parts with a label; of the operators of a trace those above the roof that have one as well, and those with a number.
LABELLED, ABOVE, NUMBERED = 5, 10, 5
#: Parts that are drawn one by one; the others, each of less than this share of the time, are one bubble.
ALONE, SMALL = 20, 0.01
#: Colours of the roofs of each chip, and shapes of the points of each program.
_ROOFS = ("ink", "other3", "other2", "other1")
_SHAPES = ("o", "s", "^", "D")


@dataclass(frozen=True, slots=True)
class _Layer:
    """One of the rooflines of a picture, and how it is told from the others."""

    chart: Roofs
    window: Window
    number: int
    name: str
    labelled: int

    @property
    def prefix(self) -> str:
        """Beginning of its texts, where there are several."""
        return f"{self.name}: " if self.name else ""

    def called(self, name: str) -> str:
        """Return a name in the legend; where there are several programs, each is switched on and off as a whole."""
        return self.name or name

    def id(self, index: int, what: str = "point") -> str:
        """Return the name of a point in an SVG."""
        return f"{what}-{index}" if not self.name else f"{what}-{self.number}-{index}"


def drawing(charts: Sequence[Roofs], title: str, subtitle: str, names: Sequence[str] = ()) -> Drawing:
    """Return the marks of rooflines.

    Args:
        charts: One, or several that lie upon each other.
        title: First line.
        subtitle: Second line.
        names: What each is called, where there are several.
    """
    windows = [chart.window for chart in charts]
    window = Window(
        min(w.left for w in windows), max(w.right for w in windows),
        min(w.bottom for w in windows), max(w.top for w in windows),
    )  # fmt: skip
    labelled = max(2, LABELLED - 1 - len(charts)) if names else LABELLED
    layers = [_Layer(c, window, i, names[i] if names else "", labelled) for i, c in enumerate(charts)]
    marks: list[Mark] = [*_roofs(layers, window), *_keys(layers)]
    for layer in layers:
        marks += _points(layer)
    marks += [mark for layer in layers for mark in _moves(layer)]
    marks += [strip for layer in layers for strip in _strips(layer)]
    points = [point for chart in charts for point in chart.points]
    x = Axis("arithmetic intensity [FLOP/byte]", log=10, low=window.left, high=window.right)
    y = Axis(f"{_how(points)} rate [FLOP/s]".strip(), "FLOP/s", log=10, low=window.bottom, high=window.top)
    return Drawing((Panel(tuple(marks), x, y),), title, subtitle, size=(8.0, 6.4 if names else 5.4))


def _keys(layers: Sequence[_Layer]) -> Iterator[Points]:
    """Yield entries of the legend: what the area of a bubble is; of several programs shapes and colours."""
    parts = [point for layer in layers for point in layer.chart.points if point.is_part]
    for layer in layers if parts and layers[0].name else ():
        yield Points([], [], "line", _SHAPES[layer.number], name=layer.name)
    for bound in dict.fromkeys(point.bound for point in parts) if layers[0].name else ():
        yield _key(bound, "o")
    if parts:
        yield Points([], [], "line", name=f"{_how(parts)}; area: share of time".removeprefix("; "))


def _key(bound: str, marker: str = "") -> Points:
    """Return an entry of the legend that says what a colour stands for."""
    return Points([], [], bound or "unknown", marker or BOUND_MARKERS[bound], name=_bound(bound))


def _bound(bound: str) -> str:
    return f"{bound}-bound" if bound else "bound not known"


def _how(points: Sequence[Point]) -> str:
    """Say where the times of points are from, where all are from the same."""
    known = {point.is_measured for point in points}
    return "" if len(known) != 1 else "measured" if known == {True} else "predicted"


# --- roofs ------------------------------------------------------------------------------------------------------------


def _roofs(layers: Sequence[_Layer], window: Window) -> Iterator[Mark]:
    """Yield zones, the roofs of each chip once, and the ridges."""
    by_chip: dict[str, _Layer] = {}
    for layer in layers:
        by_chip.setdefault(layer.chart.chip.name, layer)
    ridge = layers[0].chart.ridge
    if len(by_chip) == 1:
        yield Region(x1=ridge, colour="memory", label="memory-bound", strength=0.07)
        yield Region(x0=ridge, colour="compute", label="compute-bound", strength=0.07)
    for colour, layer in zip(_ROOFS, by_chip.values(), strict=False):
        yield from _of_chip(layer.chart, window, colour, layer.chart.chip.name if len(by_chip) > 1 else "")


def _of_chip(chart: Roofs, window: Window, colour: str, chip: str) -> Iterator[Mark]:
    """Yield the roofs of one chip: what the datasheet says solid, what kernels reach dashed; the main ones last."""
    name, share = f"{chip} " if chip else "", chart.chip.efficiency
    levels = [f"{clean(slope.label)} {format_si(slope.bandwidth, 'B/s')}" for slope in chart.slopes]
    # Of several chips the lines of memory are too close to each other to be named where they are.
    sheet = Line([], [], name=f"{name}datasheet" + (f": {', '.join(levels)}" if chip else ""))
    reached = f"{name}achievable: {share.compute:.0%} of peak, {share.memory:.0%} of {clean(chart.slopes[0].label)}"
    for ceiling in chart.ceilings[::-1]:
        line = _looks(sheet, ceiling is chart.ceilings[0], colour, chip)
        said = f"{name}{ceiling.label}"
        label = f"{said}\n{format_si(ceiling.flops, 'FLOP/s', 4)}"
        yield from _flat(chart, ceiling, window, replace(line, label=label, toggle=said), reached)
    for slope, level in zip(chart.slopes[::-1], levels[::-1], strict=True):
        line = replace(_looks(sheet, slope is chart.slopes[0], colour, chip), toggle=f"{name}{level}")
        yield from _rising(chart, slope, window, replace(line, label="" if chip else level, along=True), reached)
    first = chart.ceilings[0].label.split(",")[0]
    yield Rule(x=chart.ridge, label=f"{name}{first} ridge {short(chart.ridge)} FLOP/byte", dotted=True,
               colour=colour if chip else "soft", top=chart.ceilings[0].flops)  # fmt: skip


def _looks(line: Line, main: bool, colour: str, chip: str) -> Line:
    return replace(line, colour=colour if main or chip else "soft", width=2.0 if main else 0.9, bold=main)


def _flat(chart: Roofs, ceiling: Ceiling, window: Window, line: Line, reached: str) -> Iterator[Line]:
    """Yield a compute roof and what is achievable of it, each from the fastest memory that it meets."""
    fastest = max(slope.bandwidth for slope in chart.slopes)
    memory = chart.slopes[0].achievable or chart.slopes[0].bandwidth
    dashed = replace(line, name=reached, label="", dash=True, width=0.9)
    for mark, rate, slope in ((line, ceiling.flops, fastest), (dashed, ceiling.achievable, memory)):
        if (left := max(rate / slope, window.left)) < window.right:
            yield replace(mark, x=[left, window.right], y=[rate, rate])


def _rising(chart: Roofs, slope: Slope, window: Window, line: Line, reached: str) -> Iterator[Line]:
    """Yield a memory roof and what is achievable of it, each up to the highest compute roof."""
    dashed = replace(line, name=reached, label="", dash=True, width=0.9)
    tops = [max(getattr(ceiling, name) for ceiling in chart.ceilings) for name in ("flops", "achievable")]
    for mark, rate, top in ((line, slope.bandwidth, tops[0]), (dashed, slope.achievable, tops[1])):
        if rate and (left := max(window.left, window.bottom / rate)) < top / rate:
            yield replace(mark, x=[left, top / rate], y=[rate * left, top])


# --- points -----------------------------------------------------------------------------------------------------------


def _points(layer: _Layer) -> Iterator[Mark]:
    """Yield the bubbles of what takes most, of the others by bound, the whole program, and what was measured.

    Of a single program, each of the first can be switched off by itself where a reader can.
    """
    points = layer.chart.points
    on = [i for i, point in enumerate(points) if layer.window.holds(point)]
    parts = [i for i in on if points[i].is_part]
    alone = _alone(layer.chart, parts)
    own = [] if layer.name else alone[:LABELLED]
    for i in own:
        yield replace(_bubbles(layer, [i]), toggle=clean(points[i].name))
    for bound in dict.fromkeys(points[i].bound for i in alone):
        others = [i for i in alone if points[i].bound == bound and i not in own]
        yield _bubbles(layer, others) if others else _key(bound)
    yield from _by_level(layer, alone)
    rest = [points[i] for i in parts if i not in alone]
    if rest:
        yield _rest(layer, rest)
    for kind, name, look in _WHOLES:
        if numbers := [i for i in on if points[i].kind == kind]:
            yield _marked(layer, numbers, name, **look)
    if above := [i for i in on if layer.chart.is_above(points[i])]:
        what = "check chip, format or cache" if points[above[0]].kind == "operator" else "check timing or count"
        sizes = [max(16.0, 1.14 * _size(points[i])) for i in above]
        yield Points(
            [points[i].intensity for i in above], [points[i].rate for i in above], "red", "o", sizes,
            f"above the roof: {what}", [_label(layer, i) for i in above], ids=[layer.id(i, "ring") for i in above],
            filled=False, bold=not points[above[0]].is_part,
        )  # fmt: skip


#: How the whole program and what was measured are drawn.
_WHOLES = (
    ("program", "whole program", {"colour": "back", "marker": "*", "size": 14.0, "edge": "ink"}),
    ("measured", "measured", {"colour": "ink", "marker": "X", "size": 7.5, "edge": "back"}),
)


def _alone(chart: Roofs, parts: Sequence[int]) -> list[int]:
    """Return the parts that are drawn one by one: all if there are few small ones, else those that count."""
    points = chart.points
    small = [i for at, i in enumerate(parts)
             if (at >= ALONE or points[i].share < SMALL) and not chart.is_above(points[i])]  # fmt: skip
    return [i for i in parts if i not in small] if len(small) > 1 else list(parts)


def _bubbles(layer: _Layer, numbers: Sequence[int]) -> Points:
    """Return parts of one bound, their area by their share of the time."""
    bound = layer.chart.points[numbers[0]].bound
    marker = _SHAPES[layer.number] if layer.name else BOUND_MARKERS[bound]
    sizes = [_size(layer.chart.points[i]) for i in numbers]
    return _marked(layer, numbers, _bound(bound), colour=bound or "unknown", marker=marker, size=sizes)


def _marked(layer: _Layer, numbers: Sequence[int], name: str, **look: object) -> Points:
    points = [layer.chart.points[i] for i in numbers]
    # Of those above the roof the ring has the label.
    labels = ["" if layer.chart.is_above(layer.chart.points[i]) else _label(layer, i) for i in numbers]
    return Points(
        [point.intensity for point in points], [point.rate for point in points], name=layer.called(name), labels=labels,
        hover=[f"{layer.prefix}{_hint(point)}" for point in points], ids=[layer.id(i) for i in numbers],
        bold=not points[0].is_part, **look,  # type: ignore[arg-type]
    )  # fmt: skip


def _rest(layer: _Layer, rest: Sequence[Point]) -> Points:
    """Return the bubble of all that is small: what they compute, what they move and how long they take, together."""
    whole = read.together(rest)
    text = f"{len(rest)} others, {_percent(whole.share)}"
    return Points([whole.intensity], [whole.rate], "line", "o", [_size(whole)], layer.called("others, together"),
                  [text], [f"{layer.prefix}{_hint(whole)}"], [layer.id(len(layer.chart.points))], "soft")  # fmt: skip


def _by_level(layer: _Layer, numbers: Sequence[int]) -> Iterator[Mark]:
    """Yield the dots of parts whose traffic is known by level, a shape each below the roof of its level, joined."""
    parts = [point for point in (layer.chart.points[i] for i in numbers) if sum(b > 0 for _, b in point.traffic) > 1]
    for point in parts:
        xs = sorted(point.work / moved for _, moved in point.traffic if moved)
        yield Line([xs[0], xs[-1]], [point.rate] * 2, width=0.9, solid=False, name=layer.called("traffic by level"))
    for at, level in enumerate(dict.fromkeys(level for point in parts for level, moved in point.traffic if moved)):
        own = [
            (point, point.work / moved) for point in parts for name, moved in point.traffic if name == level and moved
        ]
        said = [f"{clean(point.name)}: {short(x)} FLOP/byte of {level}" for point, x in own]
        yield Points([x for _, x in own], [point.rate for point, _ in own], "ink", _SHAPES[at % len(_SHAPES)], 5.0,
                     layer.called(f"traffic at {level}"), hover=said, filled=False)  # fmt: skip


def _moves(layer: _Layer) -> Iterator[Arrow]:
    """Yield an arrow from each predicted point to what was measured of the same."""
    points = [point for point in layer.chart.points if layer.window.holds(point)]
    predicted = {"measured" if point.kind == "program" else point.name: point for point in points
                 if point.kind in ("kernel", "program")}  # fmt: skip
    for point in points:
        if point.kind == "measured" and (was := predicted.get(point.name)) is not None:
            said = f"{clean(was.name)}: measured {point.seconds / was.seconds:.2f} x of the predicted time"
            yield Arrow(was.intensity, was.rate, point.intensity, point.rate, "red", "predicted to measured", said)


# --- words ------------------------------------------------------------------------------------------------------------


def _size(point: Point) -> float:
    """Return the diameter of a marker [point]."""
    whole = {"program": 14.0, "measured": 7.5}.get(point.kind)
    return whole or float(np.sqrt(max(SMALLEST, LARGEST * point.share)))


def _label(layer: _Layer, index: int) -> str:
    """Return what the label of a point says: something of the whole, and of the parts that take most."""
    chart, point = layer.chart, layer.chart.points[index]
    above = chart.is_above(point)
    if not point.is_part or index < layer.labelled:
        return _text(point)
    if above and index < layer.labelled + ABOVE:
        return _text(point)
    is_numbered = point.kind == "operator" and index < layer.labelled + NUMBERED
    return point.name.split()[0] if is_numbered else ""


def _percent(share: float) -> str:
    return f"{share:.0%}" if share >= 0.005 or not share else "<1%"


def _text(point: Point) -> str:
    times = f" ×{point.count}" if point.count > 1 else ""
    if point.is_part:
        return f"{clean(point.name)}{times}, {_percent(point.share)}"
    return f"{'predicted' if point.kind == 'program' else clean(point.name)}, {format_si(point.seconds, 's')}"


def _hint(point: Point) -> str:
    name = f"{point.name.split()[0]}. {point.op}" if point.kind == "operator" else point.name
    times = f" x {point.count}" if point.count > 1 else ""
    bound = f", {point.bound}-bound" if point.bound else ""
    share = f", {point.share:.1%} of the time" if point.is_part else ""
    rate = "FLOPs not known" if point.work != point.work else "no FLOPs"
    if point.work > 0:
        rate = f"{format_si(point.rate, 'FLOP/s')} at {short(point.intensity)} FLOP/byte"
    return f"{clean(name, 200)}: {format_si(point.seconds, 's')}{times}{share}{bound}, {rate}"


# --- below the axes ---------------------------------------------------------------------------------------------------


def _strips(layer: _Layer) -> Iterator[Strip]:
    """Yield a row for each reason why points have no place on the axes; of several programs one row each."""
    rows = read.off_axes(layer.chart.points, layer.window)
    if layer.name and rows:
        rows = {f"{layer.name}: off the axes": tuple(sorted(at for numbers in rows.values() for at in numbers))}
    for reason, numbers in rows.items():
        parts = [layer.chart.points[i].share for i in numbers if layer.chart.points[i].is_part]
        share = f"{sum(parts):.1%}" if sum(parts) >= 5e-4 else "less than 0.1%"
        members = tuple(_in_strip(layer, i, at == 0) for at, i in enumerate(numbers))
        yield Strip(f"{reason}: {share} of the time" if parts else reason, members)


def _in_strip(layer: _Layer, index: int, first: bool) -> Points:
    point = layer.chart.points[index]
    look = next((look for kind, _, look in _WHOLES if kind == point.kind), None)
    mark = _marked(layer, [index], "", **look) if look else _bubbles(layer, [index])
    return replace(mark, labels=[_text(point)]) if first else mark
