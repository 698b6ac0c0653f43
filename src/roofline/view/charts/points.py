"""What a roofline shows: ceilings of the chip, and the points beneath them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

from roofline.analysis.estimates import Estimate
from roofline.cost import uses_tf32, vector_peak
from roofline.diagnosis.op_summary import OpSummary
from roofline.hardware.chip import Chip
from roofline.ir.dtypes import dtype as find_dtype
from roofline.ir.errors import MissingFigure, UsageError, did_you_mean
from roofline.ir.text import shown
from roofline.ir.units import format_bytes, format_si, parse

Kind = Literal["kernel", "program", "measured", "operator"]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A compute roof: its label, the datasheet rate and the achievable one [FLOP/s]."""

    label: str
    flops: float
    achievable: float


@dataclass(frozen=True, slots=True)
class Slope:
    """A memory roof: its label, the bandwidth, and the achievable one where that is known [B/s]."""

    label: str
    bandwidth: float
    achievable: float | None


@dataclass(frozen=True, slots=True)
class Point:
    """One point beneath the roof, for one run of it.

    Attributes:
        kind: A predicted kernel, the predicted program, something measured, or a measured operator of a trace.
        name: What it is called.
        op: Operator of a kernel.
        count: How often it runs.
        dtype: Number formats.
        bound: What bounds it, where that was predicted.
        flops: Contraction FLOPs; all FLOPs of something measured.
        vector_flops: Other floating-point operations.
        bytes: Traffic [byte].
        seconds: Time of one run: expected, or measured [s].
        share: Of the program's device time, 0 to 1.
        floor: Datasheet speed of light [s].
        traffic: What it moves at each memory level, where that is known [byte].
    """

    kind: Kind
    name: str
    op: str
    count: int
    dtype: str
    bound: str
    flops: float
    vector_flops: float
    bytes: float
    seconds: float
    share: float
    floor: float
    traffic: tuple[tuple[str, float], ...] = ()

    @property
    def work(self) -> float:
        """All floating-point operations."""
        return self.flops + self.vector_flops

    @property
    def intensity(self) -> float:
        """Arithmetic intensity [FLOP/byte]."""
        return self.work / self.bytes if self.bytes else math.inf if self.work else 0.0

    @property
    def rate(self) -> float:
        """Rate in the predicted time, or in the measured one [FLOP/s]."""
        return self.work / self.seconds if self.seconds else 0.0

    @property
    def roof(self) -> float:
        """The most that the datasheet allows at this intensity [FLOP/s]."""
        return self.work / self.floor if self.floor else math.inf

    @property
    def is_part(self) -> bool:
        """Tell whether it is a part of a program, with a share of its time."""
        return self.kind in ("kernel", "operator")

    @property
    def is_measured(self) -> bool:
        """Tell whether its time was measured, not predicted."""
        return self.kind in ("measured", "operator")

    def above(self, slack: float) -> bool:
        """Tell whether it is faster than the datasheet allows."""
        return self.seconds * slack < self.floor

    def row(self, slack: float) -> dict[str, Any]:
        """Return the point as a row of the table behind the chart."""
        return {
            "kind": self.kind, "name": self.name, "op": self.op, "count": self.count, "dtype": self.dtype,
            "bound": self.bound, "flops": self.flops, "vector_flops": self.vector_flops, "bytes": self.bytes,
            "intensity": self.intensity, "each_s": self.seconds, "time_s": self.seconds * self.count,
            "share": self.share, "flops_per_s": self.rate, "roof_flops_per_s": self.roof, "floor_s": self.floor,
            "above_roof": self.above(slack),
        }  # fmt: skip


#: Columns of the table behind a roofline, also when it is empty.
COLUMNS = tuple(Point("kernel", "", "", 1, "", "", 0, 0, 0, 0, 0, 0).row(1.0))


# --- ceilings ---------------------------------------------------------------------------------------------------------


def formats(estimate: Estimate) -> list[str]:
    """Return the number formats that a program contracts in, the one with the most FLOPs first."""
    totals: dict[str, float] = {}
    for row in estimate.rows:
        in_tf32 = estimate.tf32 is None and uses_tf32(row, estimate.chip, None) and "tf32" in estimate.chip.matrix
        for name, flops in row.flops_by.items():
            name = "tf32" if in_tf32 and name == "fp32" else name
            totals[name] = totals.get(name, 0.0) + row.kernel.count * float(flops)
    return sorted(totals, key=lambda name: -totals[name])


def default_precisions(chip: Chip, estimate: Estimate | None) -> tuple[str, ...]:
    """Return the program's formats, then common ones that the chip has a rate for.

    Raises:
        MissingFigure: The chip has no rate at all.
    """
    used = formats(estimate) if estimate else []
    common = ["bf16", "fp16", "fp32"] if estimate else ["bf16", "fp16", "fp8", "tf32", "fp32"]
    known = [name for name in [*used, *common] if _has_rate(chip, name)] or [*chip.matrix, *chip.vector][:3]
    if not known:
        chip.matmul_peak("bf16")
    return tuple(dict.fromkeys(known))


def _has_rate(chip: Chip, name: str) -> bool:
    try:
        return chip.matmul_peak(name) > 0
    except MissingFigure:
        return False


def ceilings(chip: Chip, precisions: Sequence[str], tf32: bool) -> tuple[Ceiling, ...]:
    """Return the compute roofs of a chip, those of one height as one; the first is the main one."""
    return _merged(chip, [(_ceiling_label(chip, name, tf32), chip.matmul_peak(name, tf32)) for name in precisions])


def _ceiling_label(chip: Chip, name: str, tf32: bool) -> str:
    """Name a roof, such as ``bf16``, ``fp32 as tf32`` or ``fp32 vector``."""
    own = find_dtype(name).name
    runs, unit = chip.matmul_runs_as(name, tf32).split(" (")[0].split()
    return own + (f" as {runs}" if runs != own else "") + (" vector" if unit == "vector" else "")


def trace_ceilings(chip: Chip, ops: Sequence[OpSummary]) -> tuple[Ceiling, ...]:
    """Return the roofs of a trace: peaks of the formats that contractions use, and of the vector units.

    Args:
        chip: Where the operators ran.
        ops: The slowest first; of those that contract nothing, the first says in which format.

    Returns:
        The highest first; formats of the same rate are one.
    """
    contracted = dict.fromkeys(dtype for row in ops if row.flops for dtype in row.dtype.split("+"))
    other = [row.dtype for row in ops if not row.flops and row.dtype.startswith(("fp", "bf"))][:1]
    peaks = []
    for dtype in contracted:
        with suppress(MissingFigure):
            peaks.append((dtype, chip.matmul_peak(dtype)))
    for dtype in other:
        with suppress(MissingFigure):
            peaks.append((f"{dtype} vector", chip.vector_peak(dtype)))
    return tuple(sorted(_merged(chip, peaks), key=lambda ceiling: -ceiling.flops))


def _merged(chip: Chip, peaks: Iterable[tuple[str, float]]) -> tuple[Ceiling, ...]:
    """Make one roof of those of one height, the unit said once."""
    by_height: dict[float, list[str]] = {}
    for label, flops in peaks:
        by_height.setdefault(flops, []).append(label)
    share, merged = chip.efficiency.compute, []
    for flops, names in by_height.items():
        labels = list(dict.fromkeys(names))
        if all(label.endswith(" vector") for label in labels):
            labels = [*(label.removesuffix(" vector") for label in labels[:-1]), labels[-1]]
        merged.append(Ceiling(", ".join(labels), flops, flops * share))
    return tuple(merged)


def slopes(chip: Chip, levels: Sequence[str] | None, inside: bool = False) -> tuple[Slope, ...]:
    """Return the memory roofs of a chip, the main memory first; all levels with a known bandwidth unless named.

    Beside a cache that all cores share, what a core has for itself is a roof only ``inside``: where kernels have dots
    below it.

    Raises:
        MissingFigure: A level without a bandwidth.
    """
    usual = [
        level for level in chip.memory if level.bandwidth and (inside or not chip.cache or level.shared_by == "chip")
    ]
    chosen = [chip.level(name) for name in levels] if levels is not None else usual
    if levels is None and chip.main not in chosen:
        chosen = [chip.main, *chosen]
    if not chosen:
        raise UsageError(f"levels: none given; {chip.name} has: {', '.join(level.name for level in chip.memory)}")
    roofs = []
    for level in chosen:
        is_main = level == chip.main
        bandwidth = chip.bandwidth if is_main else level.bandwidth
        if bandwidth is None:
            raise MissingFigure(f"{chip.name} has no published bandwidth of its {level.name}")
        roofs.append(Slope(level.name, bandwidth, bandwidth * chip.efficiency.memory if is_main else None))
    return tuple(roofs)


# --- what the axes span -----------------------------------------------------------------------------------------------

#: Share of the time that points beyond either end of an axis may take.
OUTSIDE = 0.01
#: How far from the highest roof, and from its ridge, the axes may reach.
FARTHEST = 1e7


@dataclass(frozen=True, slots=True)
class Window:
    """What the axes of a roofline span: intensities [FLOP/byte] and rates [FLOP/s]."""

    left: float
    right: float
    bottom: float
    top: float

    def holds(self, point: Point) -> bool:
        """Tell whether a point has a place on the axes."""
        return self.left <= point.intensity <= self.right and self.bottom <= point.rate <= self.top


def window(points: Sequence[Point], ceilings: Sequence[Ceiling], slopes: Sequence[Slope]) -> Window:
    """Return axes around the ridge that hold the whole program, what was measured, and the parts that take the time."""
    shown = [point for point in points if point.rate > 0 and point.bytes > 0]
    ridge, highest = ceilings[0].flops / slopes[0].bandwidth, max(ceiling.flops for ceiling in ceilings)
    x0, x1 = _spanned(shown, lambda point: point.intensity, (ridge / 30, ridge * 10))
    left, right = max(x0 / 2, ridge / FARTHEST), min(x1 * 2.5, ridge * FARTHEST)
    lowest = min(slopes[0].bandwidth * left, *(ceiling.achievable for ceiling in ceilings))
    bottom, top = _spanned(shown, lambda point: point.rate, (lowest, highest))
    return Window(left, right, max(bottom / 1.8, highest / FARTHEST), min(top * 2.2, highest * FARTHEST))


def _spanned(
    points: Sequence[Point], value: Callable[[Point], float], base: tuple[float, float]
) -> tuple[float, float]:
    """Widen a range to hold points, but for those at its ends that together take next to no time."""
    measured = sum(point.seconds for point in points if point.kind == "measured")
    values = [*base]
    for sign in (1, -1):
        beyond = 0.0
        for point in sorted(points, key=lambda point: sign * value(point)):
            beyond += point.seconds / measured if point.kind == "measured" else point.share
            if beyond > OUTSIDE:
                values.append(value(point))
                break
    return min(values), max(values)


def off_axes(points: Sequence[Point], window: Window) -> dict[str, tuple[int, ...]]:
    """Return numbers of the points without a place on the axes, by the reason."""
    rows: dict[str, list[int]] = {"no FLOPs": [], "FLOPs not known": [], "outside the axes": []}
    for i, point in enumerate(points):
        if not window.holds(point):
            unknown = point.work != point.work
            rows["FLOPs not known" if unknown else "outside the axes" if point.work else "no FLOPs"].append(i)
    return {reason: tuple(at) for reason, at in rows.items() if at}


# --- points -----------------------------------------------------------------------------------------------------------


def kernel_points(estimate: Estimate) -> tuple[Point, ...]:
    """Return the distinct kernels, the slowest first.

    Raises:
        UsageError: The estimate is not one point.
    """
    return tuple(
        Point(
            "kernel", row["kernel"], row["op"], row["count"], row["dtype"], row["bound"], float(row["flops"]),
            float(row["vector_flops"]), row["bytes"], row["each_s"], row["share"], row["floor_s"],
        )
        for row in estimate.kernel_rows()
    )  # fmt: skip


def program_point(estimate: Estimate, kind: Kind = "program", seconds: float | None = None) -> Point:
    """Return the whole program at its expected time, or at a measured one."""
    name = estimate.graph.name if kind == "program" else "measured"
    time = float(estimate.time) if seconds is None else seconds
    bound = estimate.bound if kind == "program" else ""
    return Point(
        kind, name, "", 1, "+".join(formats(estimate)), bound, float(estimate.flops), float(estimate.vector_flops),
        float(estimate.bytes), time, 1.0, float(estimate.floor),
    )  # fmt: skip


def operator_points(ops: Sequence[OpSummary], most: int) -> tuple[Point, ...]:
    """Return the operators of a trace, all calls of one iteration as one run; FLOPs are nan where there is no formula.

    Args:
        ops: The slowest first; points are named by their number in this order.
        most: How many at most.
    """
    drawn = [(at, row) for at, row in enumerate(ops, 1) if row.seconds > 0][:most]
    return tuple(
        Point(
            "operator", f"{at} {row.op.removeprefix('aten::')}", f"{row.op} {row.shapes}", 1, row.dtype, row.bound,
            row.flops if row.arithmetic or row.formula != "none" else math.nan, 0.0 if row.flops else row.arithmetic,
            row.bytes, row.lasted_s, row.share, row.floor_s,
        )
        for at, row in drawn
    )  # fmt: skip


def together(points: Sequence[Point]) -> Point:
    """Return several parts as one: what all of their runs compute and move, and how long they take."""
    runs = [(point, float(point.count)) for point in points]
    flops, vector, moved, seconds, floor = (
        sum(getattr(point, name) * count for point, count in runs)
        for name in ("flops", "vector_flops", "bytes", "seconds", "floor")
    )
    share = sum(point.share for point in points)
    name = f"{len(points)} others, together"
    return Point("kernel", name, "", 1, "", "", flops, vector, moved, seconds, share, floor)


#: Share of the time from which a kernel is drawn at each level of the memory as it is predicted.
LEAST_BY_LEVEL = 0.05


def predicted_traffic(estimate: Estimate) -> dict[str, dict[str, float]]:
    """Return what kernels that take some of the time move at levels of a known bandwidth, by name [byte]."""
    roofs = {level.name for level in estimate.chip.memory if level.bandwidth}
    return {
        row["kernel"]: {each["level"]: each["bytes"] for each in row["levels"] if each["level"] in roofs}
        for row in estimate.kernel_rows() if row["share"] >= LEAST_BY_LEVEL
    }  # fmt: skip


def with_traffic(points: tuple[Point, ...], traffic: Any, chip: Chip) -> tuple[Point, ...]:
    """Give kernels what they move at each memory level.

    Args:
        points: Kernels and others.
        traffic: Of kernels by name: bytes by the name of the level.
        chip: Whose levels.

    Raises:
        UsageError: Something else, or a name that no kernel has.
        MissingFigure: A level that the chip has not.
    """
    if traffic is None:
        return points
    if not isinstance(traffic, Mapping) or not all(isinstance(levels, Mapping) for levels in traffic.values()):
        raise UsageError(f"traffic: expected bytes by level for kernels by name; given {shown(traffic)}")
    names = [point.name for point in points if point.kind == "kernel"]
    for name in traffic:
        if name not in names:
            raise UsageError(f"traffic: there is no kernel {shown(name)}{did_you_mean(str(name), names)}")
    known = {
        name: tuple((chip.level(level).name, quantity(moved, "B", f"traffic of {name}")) for level, moved in of.items())
        for name, of in traffic.items()
    }
    return tuple(replace(point, traffic=known.get(point.name, ())) for point in points)


def measured_points(
    measured: Any, chip: Chip, estimate: Estimate | None, precisions: Sequence[str]
) -> tuple[Point, ...]:
    """Read what was measured.

    Args:
        measured: Seconds of the whole program, or a sequence of (label, flops, bytes, seconds).
        chip: Where.
        estimate: Of the program, if any.
        precisions: Whose peak counts for what no kernel of the estimate names.

    Raises:
        UsageError: Anything else.
        UnitError: A quantity that does not parse.
    """
    if measured is None:
        return ()
    if isinstance(measured, str) or hasattr(measured, "__float__"):
        if estimate is None:
            raise UsageError("measured: seconds alone need an estimate; for a chip give (label, flops, bytes, seconds)")
        return (program_point(estimate, "measured", quantity(measured, "s", "measured")),)
    if not isinstance(measured, Iterable):
        raise _not_measured(measured)
    return tuple(_measured_point(entry, chip, estimate, precisions) for entry in measured)


def _measured_point(entry: Any, chip: Chip, estimate: Estimate | None, precisions: Sequence[str]) -> Point:
    if not isinstance(entry, tuple | list) or len(entry) != 4 or not isinstance(entry[0], str):
        raise _not_measured(entry)
    label = entry[0]
    flops = quantity(entry[1], "FLOP", f"measured {label!r}", zero=True)
    size = quantity(entry[2], "B", f"measured {label!r}")
    seconds = quantity(entry[3], "s", f"measured {label!r}")
    peak, dtype = _peak_of(label, chip, estimate, precisions)
    floor = max(flops / peak, size / chip.bandwidth)
    share = seconds / float(estimate.device_time) if estimate else 0.0
    return Point("measured", label, "", 1, dtype, "", flops, 0.0, size, seconds, share, floor)


def _not_measured(entry: Any) -> UsageError:
    return UsageError(
        "measured: allowed are seconds of the whole program or a list of (label, flops, bytes, seconds); given "
        f"{repr(entry)[:100]}"
    )


#: What is smaller is nothing on any axis, and what it is divided by leaves float64.
_LEAST = 1e-30


def quantity(value: Any, unit: str, what: str, zero: bool = False) -> float:
    """Read a positive number, with or without a unit.

    Example:
        >>> quantity("41 ms", "s", "latency_limit")
        0.041
    """
    number = parse(value, unit, what)
    if 0 < number < _LEAST:
        raise UsageError(f"{what}: {value!r} is too small to be drawn")
    if number < 0 or (number == 0 and not zero):
        raise UsageError(f"{what}: {value!r} is not {'zero or more' if zero else 'positive'}")
    return number


def _peak_of(label: str, chip: Chip, estimate: Estimate | None, precisions: Sequence[str]) -> tuple[float, str]:
    """Return the compute peak that holds for a label: of the kernel of that name, or else the highest in question."""
    row = next((row for row in estimate.rows if label in row.kernel.names), None) if estimate else None
    tf32 = bool(estimate and (uses_tf32(row, chip, estimate.tf32) if row else estimate.tf32))
    if row is not None and row.flops_by:
        names = list(row.flops_by)
    elif row is not None and (peaks := [peak for name in row.vector_by if (peak := vector_peak(chip, name))]):
        return max(peaks), "+".join(row.vector_by)
    else:
        names = (formats(estimate) if estimate else []) or list(precisions)
    return max(chip.matmul_peak(name, tf32) for name in names), "+".join(names)


def above_text(point: Point, chip: Chip) -> str:
    """Say how far a measured point is above the roof, and what may have happened."""
    text = faster_text(point.name, point.seconds, point.floor, chip)
    cache = chip.cache
    if cache is not None and cache.capacity is not None and point.bytes <= cache.capacity:
        text += f"; its {format_bytes(point.bytes)} fit in {cache.name} and may not have come from {chip.main.name}"
    return text


def faster_text(name: str, seconds: float, floor: float, chip: Chip) -> str:
    """Say that a time is under the floor."""
    return (
        f"{name}: {format_si(seconds, 's')} is {floor / seconds:.2g} times as fast as the datasheet of {chip.name} "
        f"allows ({format_si(floor, 's')}); check the timing or the count"
    )


# --- all together -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Roofs:
    """The roofs of a chip and what is beneath them.

    Attributes:
        chip: Whose roofs they are.
        estimate: Whose kernels are beneath them, or ``None``.
        ceilings: Compute roofs, the main one first.
        slopes: Memory roofs, the main memory first.
        points: By falling time; after kernels the whole program, then what was measured.
    """

    chip: Chip
    estimate: Estimate | None
    ceilings: tuple[Ceiling, ...]
    slopes: tuple[Slope, ...]
    points: tuple[Point, ...]

    @property
    def ridge(self) -> float:
        """The intensity at which the main compute and memory roofs meet [FLOP/byte]."""
        return self.ceilings[0].flops / self.slopes[0].bandwidth

    @cached_property
    def window(self) -> Window:
        """The span of the axes: the roofs around the ridge, and the points that take the time."""
        return window(self.points, self.ceilings, self.slopes)

    @cached_property
    def off_axes(self) -> dict[str, tuple[int, ...]]:
        """Numbers of the points without a place on the axes, by the reason."""
        return off_axes(self.points, self.window)

    def is_above(self, point: Point) -> bool:
        """Tell whether a point was faster than the datasheet of the chip allows."""
        return point.above(self.chip.clock_slack)

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """One line for each point that is above the roof."""
        return tuple(above_text(point, self.chip) for point in self.points if self.is_above(point))
