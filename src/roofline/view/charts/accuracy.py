"""Predicted against measured: a point for each row, with its range."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.analysis.prediction import text
from roofline.analysis.validation import Validation, measured_time
from roofline.diagnosis.op_times import OpVerdicts
from roofline.ir.errors import UsageError
from roofline.ir.text import shown
from roofline.view.charts.chart import Chart
from roofline.view.charts.marks import Axis, Drawing, Line, Mark, Panel, Points

if TYPE_CHECKING:
    import pandas as pd

MICRO = 1e-6
#: Rows with the largest errors, which have a label.
LABELLED = 4
#: Letters of a label.
NAME = 36
#: What a shape in JSON has that says nothing.
_JSON = str.maketrans({'"': "", "{": "", "}": "", ":": "=", ",": ""})
#: Points that are drawn at most; of more, every so many.
DRAWN = 5000


@dataclass(frozen=True, slots=True)
class Compared:
    """A measured value and its prediction.

    Attributes:
        name: What was measured.
        group: What it is judged with.
        measured: Time [s] or memory [byte].
        predicted: The same, as expected.
        low: Low end of the range; ``None`` where there is none.
        high: High end.
        impossible: Whether nothing can be as fast as measured.
    """

    name: str
    group: str
    measured: float
    predicted: float
    low: float | None = None
    high: float | None = None
    impossible: bool = False

    @property
    def error(self) -> float:
        """Predicted over measured less 1."""
        return self.predicted / self.measured - 1

    @property
    def place(self) -> str:
        """Place of the measured value: ``impossible``, ``inside`` or ``outside`` of the range, or ``no range``."""
        if self.impossible:
            return "impossible"
        if self.low is None or self.high is None:
            return "no range"
        return "inside" if self.low <= self.measured <= self.high else "outside"


#: How each place is drawn: colour, marker, and what the legend says.
PLACES = {
    "inside": ("compute", "o", "measured inside the range"),
    "outside": ("link", "D", "outside of it"),
    "no range": ("unknown", "o", "no range"),
    "impossible": ("red", "X", "impossible: check timing or count"),
}


@dataclass(frozen=True, eq=False, repr=False)
class Accuracy(Chart):
    """Predicted against measured, made by :func:`plot_predictions`.

    Attributes:
        times: Of time.
        memory: Of memory.
        about: What they are of.
    """

    schema = "accuracy"

    times: tuple[Compared, ...]
    memory: tuple[Compared, ...] = ()
    about: str = ""

    def records(self) -> list[dict[str, Any]]:
        """Return one row per point: measured, predicted, range, error, and where the measured value lies."""
        return [
            {"name": one.name, "group": one.group, "unit": unit, "measured": one.measured, "predicted": one.predicted,
             "low": one.low, "high": one.high, "error": one.error, "place": one.place}
            for unit, part in (("s", self.times), ("B", self.memory)) for one in part
        ]  # fmt: skip

    def drawing(self) -> Drawing:
        """Return the points on logarithmic axes, with their ranges and the line on which they would be."""
        parts = ((self.times, "s", "time"), (self.memory, "B", "activation memory"))
        panels = tuple(_panel(part, unit, what) for part, unit, what in parts if part)
        errors = np.abs([one.error for one in self.times or self.memory])
        said = f"{len(errors):,} rows, off by {np.median(errors):.1%} in the median, {errors.mean():.1%} on average"
        ranged = [one for one in self.times if one.place != "no range"]
        if ranged:
            said += f"; {sum(one.place == 'inside' for one in ranged) / len(ranged):.0%} inside their range"
        return Drawing(panels, f"Predicted and measured{self.about}", said, size=(8.0, 6.4 * len(panels)))

    def __repr__(self) -> str:
        return f"<Accuracy of {len(self.times) + len(self.memory)} predictions{self.about}>"


def _panel(points: Sequence[Compared], unit: str, what: str) -> Panel:
    every = -(-len(points) // DRAWN)
    shown = sorted(points[::every], key=lambda one: list(PLACES).index(one.place))
    ends = [value for one in shown for value in (one.measured, one.predicted)]
    line = [min(ends) / 1.5, max(ends) * 1.5]
    marks: list[Mark] = [Line(line, line, "soft", "measured as predicted", width=1.1, solid=False)]
    worst = {id(one) for one in sorted(shown, key=lambda one: -abs(np.log(one.predicted / one.measured)))[:LABELLED]}
    for place, (colour, marker, name) in PLACES.items():
        part = [one for one in shown if one.place == place]
        if part:
            marks.append(Points(
                [one.measured for one in part], [one.predicted for one in part], colour, marker, 4.5, name,
                labels=[one.name[:NAME] if id(one) in worst else "" for one in part],
                hover=[_said(one, unit) for one in part], edge="back",
                low=[one.predicted if one.low is None else one.low for one in part],
                high=[one.predicted if one.high is None else one.high for one in part],
            ))  # fmt: skip
    x, y = (
        Axis(f"{how} {what}", unit, 2 if unit == "B" else 10, line[0], line[1]) for how in ("measured", "predicted")
    )
    return Panel(tuple(marks), x, y)


def _said(one: Compared, unit: str) -> str:
    words = Axis(unit=unit).text
    ranged = f" ({words(one.low)} to {words(one.high)})" if one.low is not None and one.high is not None else ""
    return f"{one.name}\nmeasured {words(one.measured)}, predicted {words(one.predicted)}{ranged}, {one.error:+.0%}"


def plot_predictions(
    of: Validation | OpVerdicts | pd.DataFrame | Iterable[Mapping[str, Any] | Compared],
) -> Accuracy:
    """Describe a chart of predictions against measurements, on logarithmic axes, with ranges and the 1:1 line.

    Args:
        of: From :func:`roofline.validate`, :func:`roofline.diagnosis.check_ops`, or the rows of
            :func:`roofline.predict` of a table with a measured time: ``kernel_us``, ``p50_us`` or ``wall_us``.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: Something else, or no row that was both measured and predicted.

    Example:
        >>> import roofline as rl
        >>> rows = [{"op": "relu", "dtype": "bf16", "shape": '{"n": 33554432}', "kernel_us": "46"}]
        >>> plot_predictions(rl.validate(rows, "h100-sxm")).records()[0]["place"]
        'inside'
    """
    if isinstance(of, Validation):
        chart = Accuracy(_of_validation(of, False), _of_validation(of, True), _chips(one.chip for one in of.points))
    elif isinstance(of, OpVerdicts):
        chart = Accuracy(_of_verdicts(of), about=_chips(row.chip for row in of.rows))
    else:
        rows: Any = of.to_dict("records") if hasattr(of, "to_dict") else of
        if isinstance(rows, str | Mapping) or not hasattr(rows, "__iter__"):
            raise UsageError(f"expected a Validation, OpVerdicts or rows of rl.predict, given {shown(of)}")
        points = (row if isinstance(row, Compared) else compared(row) for row in rows)
        chart = Accuracy(tuple(point for point in points if point is not None))
    if not chart.times and not chart.memory:
        raise UsageError("no row was both measured and predicted; a measured time is kernel_us, p50_us or wall_us")
    return chart


def _chips(names: Iterable[str]) -> str:
    some = list(dict.fromkeys(name for name in names if name))
    return f" on {', '.join(some)}" if some else ""


def _of_validation(of: Validation, memory: bool) -> tuple[Compared, ...]:
    scale = 1.0 if memory else MICRO
    return tuple(
        Compared(_plain(one.what), one.kind, one.measured * scale, one.predicted * scale,
                 None if one.low is None else one.low * scale, None if one.high is None else one.high * scale)
        for one in of.points if one.predicted and (one.section == "activation memory") == memory
    )  # fmt: skip


def _of_verdicts(of: OpVerdicts) -> tuple[Compared, ...]:
    return tuple(
        Compared(f"row {row.row}: {row.op} {row.dtype} {' '.join(f'{k}={v}' for k, v in row.shape.items())}", row.op,
                 row.measured_s, row.expected_s, row.low_s, row.high_s, row.verdict == "impossible")
        for row in of.rows if row.measured_s and row.expected_s
    )  # fmt: skip


def _plain(name: str) -> str:
    """Return a name with the sizes of an operator as people write them.

    Example:
        >>> _plain('gemm bf16 {"m": 64, "n": 4096}')
        'gemm bf16 m=64 n=4096'
    """
    return name.translate(_JSON).replace("= ", "=")


def compared(row: Mapping[str, Any]) -> Compared | None:
    """Return a row of a table of predictions, ``None`` where nothing was measured or predicted."""
    if not isinstance(row, Mapping):
        raise UsageError(f"{shown(row)}: a row is a dictionary")
    predicted, measured = row.get("predicted_us"), measured_time(row)
    if not measured or not predicted or predicted != predicted:
        return None
    names = ("op", "model", "phase", "mode", "dtype", "shape", "batch", "seq", "context")
    what = " ".join(filter(None, (text(row, name) for name in names)))
    low, high = (MICRO * float(row[key]) for key in ("low_us", "high_us"))
    return Compared(
        _plain(what), text(row, "op") or text(row, "model"), MICRO * measured, MICRO * float(predicted), low, high
    )
