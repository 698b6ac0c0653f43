"""Predictions beside measurements: the error by class, the share inside the range, and whether it got worse.

An error is predicted over measured less 1. The truth of an operator is ``kernel_us`` (cold launches), or ``p50_us``
where a file has no other (warm launches of a serving stack); that of a model is ``wall_us``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from roofline.analysis.prediction import MEASURED, named, predict_rows, text
from roofline.cost import REGIME
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip, data_dir
from roofline.hardware.library import chip as find_chip
from roofline.ir.csvfile import read_rows
from roofline.ir.datafile import read_toml
from roofline.ir.errors import ModelDataError, UsageError, did_you_mean
from roofline.ir.files import whole_file
from roofline.ir.report import Report

#: A figure may be worse than the recorded one by this before a check fails [percentage points; 0.01 of a ratio].
SLACK = 1.0
#: Rows that a section names as its worst.
WORST = 5
#: Names of the files that a chip is judged by.
SHIPPED = ("ops.csv", "models.csv", "serving_stack.csv")
#: Figures where more is better; of the others less is.
MORE_IS_BETTER = frozenset({"inside", "predicted"})

_HEADER = """\
# What the predictions reach on measurements that ship with roofline, written by `roofline validate --record`, of whole
# programs by `benchmarks/zoo.py --record`. CI runs both with --check, which fails when a figure is worse than here by
# more than one point.
# mean, median, p90: absolute errors [%]; inside: measured times inside the range [%]; spread: median high over low;
# predicted: rows that could be predicted [%].
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """How good predictions are over some rows.

    Attributes:
        rows: How many.
        mean: Mean absolute error [%].
        median: Median absolute error [%].
        p90: 90th percentile of the absolute error [%].
        bias: Median error with its sign [%].
        inside: Share of the measured values inside the range [%]; ``None`` where there is no range.
        spread: Median of high over low; ``None`` where there is no range.
    """

    rows: int
    mean: float
    median: float
    p90: float
    bias: float
    inside: float | None = None
    spread: float | None = None


@dataclass(frozen=True)
class Section:
    """Rows that are judged together.

    Attributes:
        chip: Where they were measured.
        name: ``operators``, ``operators, warm``, ``models, device``, ``models, host_or_mixed``, ``activation memory``.
        total: Over all of them.
        classes: By operator and format, or model and phase.
        worst: The rows with the largest errors, that first.
        predicted: Share of the measured rows that could be predicted [%].
    """

    chip: str
    name: str
    total: Figures
    classes: Mapping[str, Figures]
    worst: tuple[Mapping[str, Any], ...]
    predicted: float


@dataclass(frozen=True)
class Validation(Report):
    """The result of :func:`validate`.

    Attributes:
        sections: What was judged.
        failed: Reasons why rows could not be predicted, with how often.
        unstable: Rows left out because their measurement is marked as not stable.
        points: Every measured value and its prediction.
    """

    schema = "validate"

    sections: tuple[Section, ...]
    failed: Mapping[str, int]
    unstable: int
    points: tuple[Point, ...] = ()

    def summary(self) -> dict[str, Any]:
        """Return what was judged, its worst rows, and what could not be judged."""
        sections = [
            {
                "chip": one.chip,
                "section": one.name,
                "predicted": one.predicted,
                "worst": [dict(row) for row in one.worst],
            }
            for one in self.sections
        ]
        return {"sections": sections, "failed": dict(self.failed), "unstable": self.unstable}

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per section and class of rows, ``all`` first: errors and ranges [%]."""
        return [
            {
                "chip": section.chip,
                "section": section.name,
                "class": name,
                **{figure: getattr(figures, figure) for figure in Figures.__slots__},
            }
            for section in self.sections
            for name, figures in {"all": section.total, **section.classes}.items()
        ]


@dataclass(frozen=True, slots=True)
class Point:
    """One measured value and its prediction: microseconds, bytes of activation memory."""

    chip: str
    section: str
    kind: str
    what: str
    measured: float
    predicted: float | None
    low: float | None
    high: float | None

    @property
    def error(self) -> float:
        """Predicted over measured less 1."""
        return (self.predicted or 0.0) / self.measured - 1


def validate(
    source: str | os.PathLike[str] | Iterable[Mapping[str, Any]] | None = None,
    chip: AnyChip = "h100-sxm",
    *,
    progress: Callable[[int], None] | None = None,
) -> Validation:
    """Set predictions beside measurements.

    Args:
        source: A CSV file or rows with measured times; the shipped measurements of the chip when absent.
        chip: Where the rows were measured that name no chip.
        progress: Called with the number of rows done.

    Returns:
        Errors and ranges, by chip, section and class of rows.

    Raises:
        UsageError: No measurement in the source, or none that ship for this chip.

    Example:
        >>> rows = [{"op": "relu", "dtype": "bf16", "shape": '{"n": 33554432}', "kernel_us": "46"}]
        >>> validate(rows, "h100-sxm").sections[0].total.rows
        1
    """
    where = find_chip(chip)
    rows = [row for table in _tables(source, where) for row in table]
    stable = [row for row in rows if text(row, "stable") not in ("0", "0.0")]
    truths = [_truth(row) for row in stable]
    measured = [(row, truth) for row, truth in zip(stable, truths, strict=True) if truth is not None]
    if not measured:
        raise UsageError("no measurement: a row has kernel_us or p50_us (operators) or wall_us (models)")
    points: list[Point] = []
    failed: dict[str, int] = {}
    for regime in ("cold", REGIME, "warm"):
        tf32 = None if regime == REGIME else False
        part = [(row, column) for row, (column, at) in measured if at == regime]
        predicted = predict_rows((row for row, _ in part), where, regime=regime, tf32=tf32)
        for (row, column), prediction in zip(part, predicted, strict=True):
            points += _points(row, column, prediction, where, regime)
            if prediction["error"]:
                failed[prediction["error"]] = failed.get(prediction["error"], 0) + 1
        if progress:
            progress(len(part))
    return Validation(sections(points), failed, len(rows) - len(stable), tuple(points))


def shipped(chip: Chip) -> list[Path]:
    """The measurements that ship for a chip.

    Raises:
        UsageError: There are none.
    """
    folder = data_dir("measurements")
    paths = [path for name in SHIPPED if (path := folder / chip.name / name).is_file()]
    if not paths:
        have = sorted({path.parent.name for path in folder.glob("*/*.csv")})
        known = f"there are some for {', '.join(have)}{did_you_mean(chip.name, have)}"
        raise UsageError(f"no measurements ship for {chip.name}; {known}; or give a file")
    return paths


def _tables(source: Any, chip: Chip) -> Iterable[Iterable[Mapping[str, Any]]]:
    if source is not None and not isinstance(source, str | os.PathLike):
        yield source
        return
    for path in [source] if source is not None else shipped(chip):
        with read_rows(path) as (_, rows):
            yield rows


def _truth(row: Mapping[str, Any]) -> tuple[str, str] | None:
    """The column that holds the measured time, and the regime it was taken in.

    Operators were measured alone, in the format that their row names; models as PyTorch runs them.
    """
    if text(row, "model"):
        return ("wall_us", REGIME) if _number(row, "wall_us") else None
    columns = (("kernel_us", "cold"), ("p50_us", "warm"))
    return next((pair for pair in columns if _number(row, pair[0])), None)


def measured_time(row: Mapping[str, Any]) -> float:
    """Return the measured time of a row [us], 0 where there is none."""
    truth = _truth(row)
    return _number(row, truth[0]) if truth is not None else 0.0


def _number(row: Mapping[str, Any], column: str) -> float:
    """A measured value, 0 where there is none."""
    try:
        value = float(text(row, column) or 0)
    except ValueError:
        raise UsageError(f"{column}={text(row, column)[:40]!r}: expected a number") from None
    return value if math.isfinite(value) and value > 0 else 0.0


def _points(
    row: Mapping[str, Any], column: str, prediction: Mapping[str, Any], chip: Chip, regime: str
) -> Iterable[Point]:
    where = find_chip(text(row, "chip")).name if text(row, "chip") and not prediction["error"] else chip.name
    time = (prediction["predicted_us"], prediction["low_us"], prediction["high_us"])
    if not text(row, "model"):
        name = "operators, warm" if regime == "warm" else "operators"
        row = named(row)
        kind, what = f"{row['op']} {row['dtype']}", f"{row['op']} {row['dtype']} {row['shape']}"
        yield Point(where, name, kind, what, _number(row, column), *time)
        return
    keys = ("model", "phase", "mode", "dtype", "batch", "seq", "context")
    kind, what = f"{row['model']} {text(row, 'phase')}".strip(), " ".join(filter(None, (text(row, k) for k in keys)))
    yield Point(where, f"models, {text(row, 'regime') or 'device'}", kind, what, _number(row, column), *time)
    activations = _number(row, "activation_bytes") or _number(row, MEASURED["activation_bytes"])
    if activations:
        yield Point(where, "activation memory", kind, what, activations, prediction["activation_bytes"], None, None)


def sections(points: Sequence[Point]) -> tuple[Section, ...]:
    names = dict.fromkeys((point.chip, point.section) for point in points)
    grouped = ((chip, name, [p for p in points if (p.chip, p.section) == (chip, name)]) for chip, name in names)
    return tuple(section for each in grouped if (section := _section(*each)))


def _section(chip: str, name: str, points: Sequence[Point]) -> Section | None:
    known = [point for point in points if point.predicted is not None]
    if not known:
        return None
    kinds = sorted({point.kind for point in known})
    worst = sorted(known, key=lambda point: -abs(point.error))[:WORST]
    unit = "bytes" if name == "activation memory" else "us"
    return Section(
        chip,
        name,
        _judge(known),
        {kind: _judge([point for point in known if point.kind == kind]) for kind in kinds},
        tuple(
            {"row": p.what, f"measured_{unit}": p.measured, f"predicted_{unit}": p.predicted, "error": 100 * p.error}
            for p in worst
        ),
        100 * len(known) / len(points),
    )


def _judge(points: Sequence[Point]) -> Figures:
    error = 100 * np.array([point.error for point in points])
    size = np.abs(error)
    ranged = [(p.low, p.measured, p.high) for p in points if p.low is not None and p.high is not None]
    inside = 100 * float(np.mean([low <= value <= high for low, value, high in ranged])) if ranged else None
    spread = float(np.median([high / low for low, _, high in ranged])) if ranged else None
    p90, bias = float(np.quantile(size, 0.9)), float(np.median(error))
    return Figures(len(points), float(size.mean()), float(np.median(size)), p90, bias, inside, spread)


# --- against what was recorded ----------------------------------------------------------------------------------------


def recorded_path() -> Path:
    """The file of recorded figures."""
    return data_dir("measurements") / "recorded.toml"


def figures(validation: Validation) -> dict[str, dict[str, dict[str, float]]]:
    """The figures that are recorded, by chip and section."""
    made: dict[str, dict[str, dict[str, float]]] = {}
    for section in validation.sections:
        total = section.total
        values = {"mean": total.mean, "median": total.median, "p90": total.p90, "inside": total.inside,
                  "spread": total.spread, "predicted": section.predicted}  # fmt: skip
        rounded = {name: round(value, 2) for name, value in values.items() if value is not None}
        made.setdefault(section.chip, {})[section.name] = rounded
    return made


def worse(validation: Validation, path: str | os.PathLike[str] | None = None) -> list[str]:
    """List what got worse than recorded by more than one point, a line each.

    Args:
        validation: The validation.
        path: The file of recorded figures; the shipped one when absent.

    Raises:
        ModelDataError: The file is no table of figures, or has none for these chips.
    """
    file, now = Path(path or recorded_path()), figures(validation)
    before = read_recorded(file)
    missing = sorted(now.keys() - before.keys())
    if missing:
        raise ModelDataError(f"{file}: no figures for {', '.join(missing)}; write them with validate --record")
    lines = []
    for chip in now:
        for section, values in before[chip].items():
            for name, value in values.items():
                lines += _worse(f"{chip}, {section}: {name}", name, value, now[chip].get(section, {}).get(name))
    return lines


def _worse(label: str, name: str, before: float, now: float | None) -> list[str]:
    if now is None:
        return [f"{label} was {before:g}, now missing"]
    scale = 0.01 if name == "spread" else 1.0
    step = (before - now) if name in MORE_IS_BETTER else (now - before)
    return [f"{label} was {before:g}, now {now:.4g}"] if step > SLACK * scale + 1e-9 else []


def read_recorded(path: Path) -> dict[str, dict[str, dict[str, float]]]:
    """Read recorded figures.

    Raises:
        ModelDataError: The file cannot be read or is no table of figures by chip and section.
    """
    if not path.exists():
        raise ModelDataError(f"{path}: no such file; write it with validate --record")
    try:
        table: Any = read_toml(path, ModelDataError)
        return {
            chip: {section: {name: float(value) for name, value in values.items()} for section, values in rows.items()}
            for chip, rows in table.items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise ModelDataError(f"{path}: not a table of figures by chip and section: {error}") from None


def record(validation: Validation, path: str | os.PathLike[str] | None = None) -> Path:
    """Write the figures down; those of other chips stay.

    Returns:
        The file.
    """
    file = Path(path or recorded_path())
    table = (read_recorded(file) if file.is_file() else {}) | figures(validation)
    with whole_file(file) as stream:
        stream.write(_HEADER)
        for chip, sections in sorted(table.items()):
            for section, values in sections.items():
                stream.write(f'\n["{chip}"."{section}"]\n')
                stream.writelines(f"{name} = {value:g}\n" for name, value in values.items())
    return file
