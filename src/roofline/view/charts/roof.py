"""The roofline of a chip, with the kernels of a program or the operators of a trace beneath it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, overload

from roofline.analysis.estimates import Estimate
from roofline.diagnosis.report import TraceReport
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import UsageError
from roofline.ir.numbers import as_list
from roofline.ir.report import size_words
from roofline.ir.text import shown
from roofline.ir.units import format_si
from roofline.view.charts import points as read
from roofline.view.charts.chart import Chart
from roofline.view.charts.marks import Drawing
from roofline.view.charts.points import COLUMNS, Roofs
from roofline.view.charts.roof_marks import drawing as roof_drawing

if TYPE_CHECKING:
    import pandas as pd

#: Operators of a trace that are read at most.
OPERATORS = 80
#: Charts that one picture overlays at most: there are as many colours of roofs and shapes of points.
MOST = 4


@dataclass(frozen=True, eq=False, repr=False)
class Roofline(Roofs, Chart):
    """A roofline, made by :func:`plot_roofline`.

    Attributes:
        title: First line.
        subtitle: Second line.
    """

    schema = "roofline"

    title: str
    subtitle: str

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

    def drawing(self) -> Drawing:
        """Return roofs, zones and points."""
        return roof_drawing([self], self.title, self.subtitle)

    def __repr__(self) -> str:
        parts = sum(point.is_part for point in self.points)
        kind = "operators" if any(point.kind == "operator" for point in self.points) else "kernels"
        return f"<Roofline of {self.chip.name}: {parts} {kind}, ridge at {self.ridge:.3g} FLOP/byte>"


@dataclass(frozen=True, eq=False, repr=False)
class Overlay(Chart):
    """Several rooflines in one picture, made by :func:`plot_roofline`: programs, chips, a prediction and its trace.

    Attributes:
        charts: Those that lie upon each other.
        names: What each is called: what differs between them.
    """

    schema = "roofline_overlay"

    charts: tuple[Roofline, ...]
    names: tuple[str, ...]

    @property
    def warnings(self) -> tuple[str, ...]:
        """One line for each point that is above its roof."""
        return tuple(text for chart in self.charts for text in chart.warnings)

    def subject(self) -> dict[str, Any]:
        """Return what is laid upon each other."""
        return {"subjects": [chart.subject() for chart in self.charts]}

    def csv_rows(self) -> list[dict[str, Any]]:
        """Return the rows, each with what it is a row of."""
        rows = zip(self.names, self.charts, strict=True)
        return [{"of": name} | row for name, chart in rows for row in chart.csv_rows()]

    def records(self) -> list[dict[str, Any]]:
        """Return one row per point, with what it is a point of."""
        rows = zip(self.names, self.charts, strict=True)
        return [{"of": name, "chip": chart.chip.name} | row for name, chart in rows for row in chart.records()]

    def drawing(self) -> Drawing:
        """Return the roofs of each chip and the points of each program."""
        said = [_time(name, chart) for name, chart in zip(self.names, self.charts, strict=True)]
        return roof_drawing(
            self.charts, f"Roofline of {self._same()}{_listed(self.names)}", "; ".join(said), self.names
        )

    def _same(self) -> str:
        """Say what the charts have in common: the program, where the names are those of chips."""
        programs = {chart.estimate.graph.name if chart.estimate else "" for chart in self.charts}
        chips = {chart.chip.name for chart in self.charts}
        return f"{programs.pop()}: " if len(programs) == 1 < len(chips) and programs != {""} else ""

    def __repr__(self) -> str:
        return f"<Overlay of {_listed(self.names)}>"


def _time(name: str, chart: Roofline) -> str:
    where = "" if chart.chip.name in name else f" on {chart.chip.name}"
    est = chart.estimate
    return f"{name}{where}" + (f": {format_si(float(est.time), 's')}, {est.bound}-bound" if est else "")


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


@overload
def plot_roofline(
    what: Estimate | TraceReport | AnyChip,
    *,
    precisions: Sequence[str] | None = None,
    levels: Sequence[str] | None = None,
    measured: Any = None,
    traffic: Mapping[str, Mapping[str, str | float]] | bool | None = None,
) -> Roofline: ...


@overload
def plot_roofline(
    what: Estimate | TraceReport | AnyChip,
    second: Estimate | TraceReport | AnyChip,
    /,
    *others: Estimate | TraceReport | AnyChip,
    precisions: Sequence[str] | None = None,
    levels: Sequence[str] | None = None,
    measured: Any = None,
    traffic: Mapping[str, Mapping[str, str | float]] | bool | None = None,
) -> Overlay: ...


def plot_roofline(
    what: Estimate | TraceReport | AnyChip,
    *others: Estimate | TraceReport | AnyChip,
    precisions: Sequence[str] | None = None,
    levels: Sequence[str] | None = None,
    measured: Any = None,
    traffic: Mapping[str, Mapping[str, str | float]] | bool | None = None,
) -> Roofline | Overlay:
    """Describe a roofline of a chip, with the kernels of a program or the operators of a trace beneath it.

    Args:
        what: An estimate of one point, the report of a trace, or a chip.
        others: The same, to be laid upon the first: another program, another chip, the trace of a run.
        precisions: Number formats with a ceiling, the main one first; those of the program and a few common ones
            by default.
        levels: Memory levels with a ceiling, the main memory first; all with a known bandwidth by default.
        measured: Seconds of the whole (first) program, or a list of (label, flops, bytes, seconds) with or without
            units. The label of a kernel compares with the peak of its format.
        traffic: Of kernels by name, what each moves at each memory level, with or without units; a kernel is then a
            dot below each of these roofs, joined [byte]. ``True``: as the estimate predicts it, of kernels that take
            5 % of the time or more.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: The estimate spans a grid, ``measured`` is something else, no operator of a trace can be drawn,
            ``traffic`` names no kernel, or there are more than four things to overlay.
        MissingFigure: A ceiling without a published figure.

    Example:
        >>> plot_roofline("h100-sxm", precisions=["bf16"])
        <Roofline of h100-sxm: 0 kernels, ridge at 295 FLOP/byte>
        >>> plot_roofline("h100-sxm", measured=[("gemm", "1 TFLOP", "10 GB", "1 ms")]).warnings
        ('gemm: 1 ms is 3 times as fast as the datasheet of h100-sxm allows (2.99 ms); check the timing or the count',)
        >>> plot_roofline("h100-sxm", "a100-80gb-sxm")
        <Overlay of h100-sxm and a100-80gb-sxm>
    """
    if len(others) >= MOST:
        raise UsageError(f"a roofline overlays at most {MOST} programs or chips; given {1 + len(others)}")
    formats, chosen = _names(precisions, "precisions"), _names(levels, "levels") or None
    first = _roofline(what, formats, chosen, measured, traffic)
    if not others:
        return first
    every = traffic if isinstance(traffic, bool) else None
    charts = (first, *(_roofline(other, formats, chosen, None, every) for other in others))
    return Overlay(charts, _told_apart(charts))


def _roofline(
    what: Any, precisions: tuple[str, ...], levels: tuple[str, ...] | None, measured: Any, traffic: Any
) -> Roofline:
    if isinstance(what, TraceReport):
        return _of_trace(what, levels)
    est = what if isinstance(what, Estimate) else None
    if est is not None and est.shape:
        raise UsageError(f"a roofline shows one point; index the axes {est.axis_names} of the estimate first")
    chip = est.chip if est is not None else find_chip(what)
    if isinstance(traffic, bool):
        if traffic and est is None:
            raise UsageError("traffic=True draws what an estimate predicts; give one, or bytes by level for kernels")
        traffic = read.predicted_traffic(est) if traffic and est is not None else None
    names = precisions or read.default_precisions(chip, est)
    predicted = (*read.kernel_points(est), read.program_point(est)) if est is not None else ()
    return Roofline(
        chip,
        est,
        read.ceilings(chip, names, bool(est and est.tf32)),
        read.slopes(chip, levels, inside=bool(traffic)),
        read.with_traffic(predicted, traffic, chip) + read.measured_points(measured, chip, est, names),
        f"Roofline of {est.graph.name} on {chip.name}" if est is not None else f"Roofline of {chip.name}",
        about(est) if est is not None else "per device, dense rates",
    )


def _told_apart(charts: Sequence[Roofline]) -> tuple[str, ...]:
    """Name each chart by what differs: the program, the chip, or how it was run; by number where nothing does."""
    programs = [chart.estimate.graph.name if chart.estimate else "trace" if chart.points else "" for chart in charts]
    chips = [chart.chip.name for chart in charts]
    modes = [chart.estimate.mode if chart.estimate else "" for chart in charts]
    differ = [values for values in (programs, chips, modes) if len(set(values)) > 1] or [programs]
    names = [" ".join(filter(None, parts)) for parts in zip(*differ, strict=True)]
    return tuple(names) if len(set(names)) == len(names) else tuple(f"{at} {name}" for at, name in enumerate(names, 1))


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
