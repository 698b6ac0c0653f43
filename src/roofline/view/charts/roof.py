"""The roofline of a chip, with the kernels of a program or the operators of a trace beneath it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.analysis.estimates import Estimate
from roofline.diagnosis.report import TraceReport
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import UsageError
from roofline.ir.numbers import as_list
from roofline.ir.report import size_words
from roofline.ir.text import shown
from roofline.ir.units import format_si
from roofline.view.charts import points as read
from roofline.view.charts.classic import Classic
from roofline.view.charts.labels import Box, Label, first_free, margin_label, spread_margin, write_labels
from roofline.view.charts.points import COLUMNS, Ceiling, Point, Slope, Window
from roofline.view.charts.strip import Row, below
from roofline.view.charts.style import (
    ALERT,
    BACK,
    BOUND_COLOURS,
    BOUND_MARKERS,
    GRID,
    INK,
    MUTED,
    clean,
    head,
    lay_out,
    log_ticks,
    pixels,
    short,
    style_axes,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

#: Area of a bubble that is all of the time, and of the smallest one [point²].
LARGEST, SMALLEST = 1100.0, 22.0
#: Kernels with a label; of the operators of a trace those above the roof that have one as well, those with a number
#: alone, and those that are drawn at all.
LABELLED, ABOVE, NUMBERED, OPERATORS = 5, 10, 5, 80
#: Main roofs, other roofs, and dashes for what is achievable.
_MAIN: dict[str, Any] = {"color": INK, "lw": 2.0}
_OTHER: dict[str, Any] = {"color": MUTED, "lw": 0.9}
_DASHED: dict[str, Any] = {"lw": 0.9, "ls": (0, (5, 3))}


@dataclass(frozen=True, eq=False, repr=False)
class Roofline(Classic):
    """A roofline, made by :func:`plot_roofline`.

    Attributes:
        chip: Whose roof it is.
        estimate: Whose kernels are beneath it, or ``None``.
        ceilings: Compute roofs, the main one first.
        slopes: Memory roofs, the main memory first.
        points: By falling time; after kernels the whole program, then what was measured.
        title: First line.
        subtitle: Second line.
    """

    schema = "roofline"

    chip: Chip
    estimate: Estimate | None
    ceilings: tuple[Ceiling, ...]
    slopes: tuple[Slope, ...]
    points: tuple[Point, ...]
    title: str
    subtitle: str

    @property
    def ridge(self) -> float:
        """The intensity at which the main compute and memory roofs meet [FLOP/byte]."""
        return self.ceilings[0].flops / self.slopes[0].bandwidth

    @cached_property
    def window(self) -> Window:
        """The span of the axes: the roofs around the ridge, and the points that take the time."""
        return read.window(self.points, self.ceilings, self.slopes)

    @cached_property
    def off_axes(self) -> dict[str, tuple[int, ...]]:
        """Numbers of the points without a place on the axes, by the reason."""
        rows: dict[str, list[int]] = {"no FLOPs": [], "FLOPs not known": [], "outside the axes": []}
        for i, point in enumerate(self.points):
            if not self.window.holds(point):
                unknown = point.work != point.work
                rows["FLOPs not known" if unknown else "outside the axes" if point.work else "no FLOPs"].append(i)
        return {reason: tuple(at) for reason, at in rows.items() if at}

    def is_above(self, point: Point) -> bool:
        """Tell whether a point was faster than the datasheet of the chip allows."""
        return point.above(self.chip.clock_slack)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """One line for each measured point that is above the roof."""
        return tuple(read.above_text(point, self.chip) for point in self.points if self.is_above(point))

    def subject(self) -> dict[str, Any]:
        """Return what is beneath the roof, and whose roof it is."""
        return self.estimate.subject() if self.estimate else {"chip": self.chip.name}

    def records(self) -> list[dict[str, Any]]:
        """Return one row per point: its counts, its time, its rate and the roof over it."""
        return [point.row(self.chip.clock_slack) for point in self.points]

    def frame(self) -> pd.DataFrame:
        """Return the rows as a table, which has its columns also without a point."""
        import pandas as pd

        return pd.DataFrame(self.records(), columns=list(COLUMNS))

    def hints(self) -> dict[str, str]:
        """Say what each point is, by the id of its group in an SVG."""
        return {f"point-{i}": _hint(point) for i, point in enumerate(self.points)}

    def draw(self, ax: Axes) -> None:
        """Draw everything; labels last, when the place of all else is known."""
        _draw_axes(ax, self)
        titles = head(ax, self.title, self.subtitle)
        lines = _draw_lines(ax, self)
        spots = {i: _spot(self, i) for i, point in enumerate(self.points) if self.window.holds(point)}
        for i, spot in spots.items():
            _draw_point(ax, self, i, spot.at, ax.transData)
        strip = _captions(ax, self)
        _draw_legend(ax, self, sum(row.height for row in strip))
        margin = [_ceiling_label(ax, self, ceiling) for ceiling in self.ceilings]
        lay_out(ax, titles)
        spread_margin(ax, margin, gap=4, below=0, above=10)
        labelled = _labelled(self)
        _fill_strip(ax, self, strip, labelled)
        taken = [_bubble(ax, spot) for spot in spots.values()]
        taken.append(_ridge_label(ax, self, taken))
        for slope in self.slopes:
            taken += _slope_label(ax, self, slope, taken)
        x0, y0, x1, y1 = ax.get_window_extent().extents
        labels = [spots[i] for i in labelled if i in spots]
        write_labels(ax, labels, taken, lines, (x0 + 2, y0 + 2, x1 - 2, y1 - 2))

    def __repr__(self) -> str:
        parts = sum(point.is_part for point in self.points)
        kind = "operators" if any(point.kind == "operator" for point in self.points) else "kernels"
        return f"<Roofline of {self.chip.name}: {parts} {kind}, ridge at {self.ridge:.3g} FLOP/byte>"


def plot_roofline(
    what: Estimate | TraceReport | AnyChip,
    precisions: Sequence[str] | None = None,
    levels: Sequence[str] | None = None,
    measured: Any = None,
) -> Roofline:
    """Describe a roofline of a chip, with the kernels of a program or the operators of a trace beneath it.

    Args:
        what: An estimate of one point, the report of a trace, or a chip.
        precisions: Number formats with a ceiling, the main one first; those of the program and a few common ones
            by default.
        levels: Memory levels with a ceiling, the main memory first; all with a known bandwidth by default.
        measured: Seconds of the whole program, or a list of (label, flops, bytes, seconds) with or without units. The
            label of a kernel compares with the peak of its format.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: The estimate spans a grid, ``measured`` is something else, or no operator of a trace can be drawn.
        MissingFigure: A ceiling without a published figure.

    Example:
        >>> plot_roofline("h100-sxm", precisions=["bf16"])
        <Roofline of h100-sxm: 0 kernels, ridge at 295 FLOP/byte>
        >>> plot_roofline("h100-sxm", measured=[("gemm", "1 TFLOP", "10 GB", "1 ms")]).warnings
        ('gemm: 1 ms is 3 times as fast as the datasheet of h100-sxm allows (2.99 ms); check the timing or the count',)
    """
    levels = _names(levels, "levels") or None
    if isinstance(what, TraceReport):
        return _of_trace(what, levels)
    est = what if isinstance(what, Estimate) else None
    if est is not None and est.shape:
        raise UsageError(f"a roofline shows one point; index the axes {est.axis_names} of the estimate first")
    chip = est.chip if est is not None else find_chip(what)  # type: ignore[arg-type]
    names = _names(precisions, "precisions") or read.default_precisions(chip, est)
    predicted = (*read.kernel_points(est), read.program_point(est)) if est is not None else ()
    return Roofline(
        chip,
        est,
        read.ceilings(chip, names, bool(est and est.tf32)),
        read.slopes(chip, levels),
        predicted + read.measured_points(measured, chip, est, names),
        f"Roofline of {est.graph.name} on {chip.name}" if est is not None else f"Roofline of {chip.name}",
        about(est) if est is not None else "per device, dense rates",
    )


def _names(names: Sequence[str] | None, what: str) -> tuple[str, ...]:
    """Return a sequence of names; a single one counts as one."""
    if names is None:
        return ()
    names = (names,) if isinstance(names, str) else tuple(as_list(what, names))
    if not all(isinstance(name, str) for name in names):
        raise UsageError(f"{what}={shown(names)}: expected names")
    if not names:
        raise UsageError(f"{what}: none given; name at least one, or leave it out")
    return names


def _of_trace(report: TraceReport, levels: Sequence[str] | None) -> Roofline:
    """Describe the roofline of a trace: its slowest operators with arithmetic, at their measured time."""
    if report.chip is None:
        raise UsageError(f"{report.source}: the chip of this trace is not known; give trace_report its name")
    slopes, points = read.slopes(report.chip, levels), read.operator_points(report.ops, OPERATORS)
    ceilings = read.trace_ceilings(report.chip, [row for row in report.ops if row.intensity > 0])
    if not any(point.rate > 0 for point in points) or not ceilings:
        raise UsageError(f"{report.source}: there is no operator with a formula, arithmetic and a peak of its format")
    share = sum(point.share for point in points)
    said = f"{len(points)} of {len(report.ops)} operators as measured, {share:.1%} of the time"
    return Roofline(report.chip, None, ceilings, slopes, points, f"Operators on {report.chip.name}", said)


def about(estimate: Estimate) -> str:
    """Say in the second line of a title: mode, sizes, time."""
    said = ", ".join([f"{estimate.mode} mode", *size_words(estimate.subject(), single=True)])
    if estimate.shape:
        return said
    time, low, high = (format_si(value, "s") for value in (estimate.time, estimate.low, estimate.high))
    return f"{said}: predicted {time} ({low} to {high}), {estimate.bound}-bound"


def _hint(point: Point) -> str:
    name = f"{point.name.split()[0]}. {point.op}" if point.kind == "operator" else point.name
    times = f" x {point.count}" if point.count > 1 else ""
    bound = f", {point.bound}-bound" if point.bound else ""
    share = f", {point.share:.1%} of the time" if point.is_part else ""
    rate = "FLOPs not known" if point.work != point.work else "no FLOPs"
    if point.work > 0:
        rate = f"{format_si(point.rate, 'FLOP/s')} at {short(point.intensity)} FLOP/byte"
    return f"{clean(name, 200)}: {format_si(point.seconds, 's')}{times}{share}{bound}, {rate}"


# --- axes and lines ---------------------------------------------------------------------------------------------------


def _draw_axes(ax: Axes, chart: Roofline) -> None:
    """Set the limits and the ticks."""
    window = chart.window
    x, y = (window.left, window.right), (window.bottom, window.top)
    ax.set(xscale="log", yscale="log", xlim=x, ylim=y)
    ax.set_xlabel("arithmetic intensity [FLOP/byte]")
    ax.set_ylabel(f"{_how(chart.points)} rate [FLOP/s]".strip())
    style_axes(ax)
    log_ticks(ax.xaxis, *x, "")
    log_ticks(ax.yaxis, *y, "FLOP/s")


def _how(points: Sequence[Point]) -> str:
    """Say where the times of points are from, where all are from the same."""
    known = {point.is_measured for point in points}
    return "" if len(known) != 1 else "measured" if known == {True} else "predicted"


def _draw_lines(ax: Axes, chart: Roofline) -> list[Box]:
    """Draw the roofs and return them as segments in data coordinates."""
    drawn: list[Box] = []

    def line(x0: float, x1: float, y0: float, y1: float, look: dict[str, Any]) -> None:
        if x1 > x0:
            ax.plot([x0, x1], [y0, y1], zorder=2, solid_capstyle="round", **look)
            drawn.append((x0, y0, x1, y1))

    start, end, y0, main = chart.window.left, chart.window.right, chart.window.bottom, chart.slopes[0]
    highest = max(ceiling.flops for ceiling in chart.ceilings)
    reached = max(ceiling.achievable for ceiling in chart.ceilings)
    fastest = max(slope.bandwidth for slope in chart.slopes)
    for i, ceiling in enumerate(chart.ceilings):
        look = _OTHER if i else _MAIN
        line(ceiling.flops / fastest, end, ceiling.flops, ceiling.flops, look)
        left = ceiling.achievable / (main.achievable or main.bandwidth)
        line(left, end, ceiling.achievable, ceiling.achievable, look | _DASHED)
    for i, slope in enumerate(chart.slopes):
        look = _OTHER if i else _MAIN
        left = max(start, y0 / slope.bandwidth)
        line(left, highest / slope.bandwidth, slope.bandwidth * left, highest, look)
        if slope.achievable:
            left = max(start, y0 / slope.achievable)
            line(left, reached / slope.achievable, slope.achievable * left, reached, look | _DASHED)
    ax.plot([chart.ridge] * 2, [y0, chart.ceilings[0].flops], color=MUTED, lw=0.9, ls=":", zorder=1.5)
    return [*drawn, (chart.ridge, y0, chart.ridge, chart.ceilings[0].flops)]


# --- points -----------------------------------------------------------------------------------------------------------


def _spot(chart: Roofline, index: int) -> Label:
    """Return where a point is drawn, how large, and its label."""
    point = chart.points[index]
    text, look = _label(chart, index)
    return Label(text, (point.intensity, point.rate), _radius(chart, point), f"label-{index}", look)


def _label(chart: Roofline, index: int) -> tuple[str, dict[str, Any]]:
    """Return what the label of a point says, and how it is written."""
    point = chart.points[index]
    above = chart.is_above(point)
    numbered = point.kind == "operator" and index >= LABELLED and not above
    look = {"fontweight": "normal" if point.is_part else "bold", "color": ALERT if above else INK}
    return point.name.split()[0] if numbered else _text(point), look


def _radius(chart: Roofline, point: Point) -> float:
    """Return the radius of a marker, with the ring around one above the roof [point]."""
    radius = {"program": 7.0, "measured": 4.0}.get(point.kind, float(np.sqrt(_area(point))) / 2)
    return max(radius, 9.0) if chart.is_above(point) else radius


def _area(point: Point) -> float:
    """Return the area of a bubble [point²]."""
    return max(SMALLEST, LARGEST * point.share)


def _text(point: Point) -> str:
    times = f" ×{point.count}" if point.count > 1 else ""
    if point.is_part:
        return f"{clean(point.name)}{times}, {point.share:.0%}"
    return f"{'predicted' if point.kind == 'program' else clean(point.name)}, {format_si(point.seconds, 's')}"


def _labelled(chart: Roofline) -> list[int]:
    """Return which points get a label: what was measured, the program, the slowest parts, operators above the roof."""
    parts = [i for i, point in enumerate(chart.points) if point.is_part]
    others = [i for i, point in enumerate(chart.points) if not point.is_part]
    above = [i for i in parts[LABELLED:] if chart.is_above(chart.points[i])]
    numbered = [i for i in parts[LABELLED : LABELLED + NUMBERED] if chart.points[i].kind == "operator"]
    return list(dict.fromkeys(others[::-1] + parts[:LABELLED] + above[:ABOVE] + numbered))


def _draw_point(ax: Axes, chart: Roofline, index: int, at: tuple[float, float], transform: Any) -> None:
    point = chart.points[index]
    x, y = ([value] for value in at)
    look: dict[str, Any] = {"transform": transform, "zorder": 4 + index * 1e-3, "clip_on": False}
    mark = look | {"gid": f"point-{index}"}
    if point.is_part:
        mark |= {"c": BOUND_COLOURS[point.bound], "marker": BOUND_MARKERS[point.bound], "alpha": 0.8}
        ax.scatter(x, y, s=_area(point), edgecolors=INK, linewidths=0.6, **mark)
    elif point.kind == "program":
        ax.scatter(x, y, s=190, c=BACK, marker="*", edgecolors=INK, linewidths=1.3, **mark)
    else:
        ax.scatter(x, y, s=42, c=INK, marker="X", edgecolors=BACK, linewidths=0.6, **mark)
    if chart.is_above(point):
        area = max(260.0, 1.3 * _area(point) * point.is_part)
        ax.scatter(x, y, s=area, facecolors="none", edgecolors=ALERT, linewidths=2.0, **look)


def _bubble(ax: Axes, spot: Label) -> Box:
    (x, y), reach = spot.pixel(ax), spot.radius * pixels(ax) + 1.5
    return x - reach, y - reach, x + reach, y + reach


# --- below the axes ---------------------------------------------------------------------------------------------------


def _captions(ax: Axes, chart: Roofline) -> list[Row]:
    """Begin a row for each reason why points have no place on the axes."""
    rows: list[Row] = []
    for reason, numbers in chart.off_axes.items():
        points = [chart.points[i] for i in numbers]
        parts = [point.share for point in points if point.is_part]
        share = f"{sum(parts):.1%}" if sum(parts) >= 5e-4 else "less than 0.1%"
        text = f"{reason}: {share} of the time" if parts else reason
        radii = [_radius(chart, point) for point in points]
        rows.append(Row.begin(ax, text, numbers, radii, sum(row.height for row in rows)))
    return rows


def _fill_strip(ax: Axes, chart: Roofline, rows: Sequence[Row], labelled: Sequence[int]) -> None:
    """Draw the points of the rows below the axes; the layout has to be known."""
    for row in rows:
        texts = {i: _label(chart, i) for i in row.numbers if i in labelled or i == row.numbers[0]}
        for i, at in row.places(ax, texts):
            _draw_point(ax, chart, i, at, row.transform(ax))


def _draw_legend(ax: Axes, chart: Roofline, strip: float) -> None:
    from matplotlib.lines import Line2D

    def mark(marker: str, face: str, label: str, edge: str = INK, size: float = 8, width: float = 0.6) -> Line2D:
        look: dict[str, Any] = {"marker": marker, "mfc": face, "mec": edge, "ms": size, "mew": width}
        return Line2D([], [], ls="none", label=label, **look)

    kinds = {point.kind for point in chart.points}
    bounds = dict.fromkeys(point.bound for point in chart.points if point.is_part)
    entries = [mark(BOUND_MARKERS[b], BOUND_COLOURS[b], f"{b}-bound" if b else "bound not known") for b in bounds]
    if bounds:
        how = "measured" if "operator" in kinds else "predicted"
        entries.append(mark("o", GRID, f"{how}; area: share of time"))
    if "program" in kinds:
        entries.append(mark("*", BACK, "whole program", size=12, width=1.3))
    if "measured" in kinds:
        entries.append(mark("X", INK, "measured", edge=BACK))
    if any(map(chart.is_above, chart.points)):
        what = "check chip, format or cache" if "operator" in kinds else "check timing or count"
        entries.append(mark("o", "none", f"above the roof: {what}", ALERT, 12, 2.0))
    share = chart.chip.efficiency
    dashes = f"achievable: {share.compute:.0%} of peak, {share.memory:.0%} of {clean(chart.slopes[0].label)}"
    entries += [Line2D([], [], **_MAIN, label="datasheet"), Line2D([], [], **_MAIN | _DASHED, label=dashes)]
    figure, under = ax.figure, below(ax, strip)
    for columns in range(len(entries), 0, -1):
        legend = ax.legend(
            handles=entries, loc="upper left", bbox_to_anchor=(0.0, 0.0), bbox_transform=under, ncols=columns,
            frameon=False, fontsize=8, handletextpad=0.5, columnspacing=1.4, borderaxespad=0.0, handlelength=1.8,
        )  # fmt: skip
        if legend.get_window_extent().width < 0.8 * figure.bbox.width:
            break


# --- labels of lines --------------------------------------------------------------------------------------------------


def _ceiling_label(ax: Axes, chart: Roofline, ceiling: Ceiling) -> Any:
    text, main = f"{ceiling.label}\n{format_si(ceiling.flops, 'FLOP/s', 4)}", ceiling is chart.ceilings[0]
    return margin_label(ax, ceiling.flops, text, INK if main else MUTED, "bold" if main else "normal")


def _slope_label(ax: Axes, chart: Roofline, slope: Slope, taken: Sequence[Box]) -> list[Box]:
    """Write along a memory roof, at its first free place from the lower end; return boxes that cover the text."""
    px, is_main = pixels(ax), slope is chart.slopes[0]
    look = {"color": INK if is_main else MUTED, "fontweight": "bold" if is_main else "normal"}
    words = f"{clean(slope.label)} {format_si(slope.bandwidth, 'B/s')}"
    text = ax.text(0, 0, words, transform=ax.transAxes, fontsize=8, **look)  # type: ignore[arg-type]
    length = text.get_window_extent().width
    left = max(chart.window.left, chart.window.bottom / slope.bandwidth)
    stop = max(ceiling.flops for ceiling in chart.ceilings) / slope.bandwidth
    a, b = ax.transData.transform([(left, slope.bandwidth * left), (stop, slope.bandwidth * stop)])
    along = (b - a) / np.hypot(*(b - a))
    across = np.asarray([-along[1], along[0]])

    def covered(at: float) -> list[Box]:
        middles = [a + along * (at + length * t) + across * 8 * px for t in np.linspace(0, 1, 16)]
        return [(x - 6 * px, y - 6 * px, x + 6 * px, y + 6 * px) for x, y in middles]

    room = np.arange(10 * px, max(np.hypot(*(b - a)) - length, 11 * px), 10 * px)
    at = first_free([(float(at), covered(float(at))) for at in room], taken)
    text.set_position(tuple(ax.transAxes.inverted().transform(a + along * at + across * 3 * px)))
    text.set(rotation=float(np.degrees(np.arctan2(along[1], along[0]))), rotation_mode="anchor", ha="left", va="bottom")
    return covered(at)


def _ridge_label(ax: Axes, chart: Roofline, taken: Sequence[Box]) -> Box:
    """Name the ridge beside the foot of its line, or as far above as it is free."""
    text = ax.annotate(
        f"{chart.ceilings[0].label.split(',')[0]} ridge\n{short(chart.ridge)} FLOP/byte",
        (chart.ridge, ax.get_ylim()[0]), (5, 5), textcoords="offset points", fontsize=8, color=MUTED, va="bottom",
        linespacing=1.1, gid="ridge",
    )  # fmt: skip
    x0, low, x1, high = (float(edge) for edge in text.get_window_extent().extents)
    room = np.arange(0.0, ax.get_window_extent().height / 2, 8.0)
    rise = first_free([(float(up), [(x0, low + up, x1, high + up)]) for up in room], taken)
    text.set_position((5, 5 + rise / pixels(ax)))
    return x0, low + rise, x1, high + rise
