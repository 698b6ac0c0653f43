"""What a roofline shows: ceilings of the chip, and the points beneath them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from roofline.analysis.estimates import Estimate
from roofline.cost import vector_peak
from roofline.hardware.chip import Chip
from roofline.hardware.parts import MemoryLevel
from roofline.ir.dtypes import dtype as find_dtype
from roofline.ir.errors import MissingFigure, UsageError
from roofline.ir.units import format_bytes, format_si, parse

Kind = Literal["kernel", "program", "measured"]


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
        kind: A predicted kernel, the predicted program, or something measured.
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
        """Achieved rate [FLOP/s]."""
        return self.work / self.seconds if self.seconds else 0.0

    @property
    def roof(self) -> float:
        """The most that the datasheet allows at this intensity [FLOP/s]."""
        return self.work / self.floor if self.floor else math.inf

    def above(self, slack: float) -> bool:
        """Whether it was faster than the datasheet allows."""
        return self.kind == "measured" and self.seconds * slack < self.floor

    def row(self, slack: float) -> dict[str, Any]:
        """The point as a row of the table behind the plot."""
        return {
            "kind": self.kind, "name": self.name, "op": self.op, "count": self.count, "dtype": self.dtype,
            "bound": self.bound, "flops": self.flops, "vector_flops": self.vector_flops, "bytes": self.bytes,
            "intensity": self.intensity, "each_s": self.seconds, "time_s": self.seconds * self.count,
            "share": self.share, "flops_per_s": self.rate, "roof_flops_per_s": self.roof, "floor_s": self.floor,
            "above_roof": self.above(slack),
        }  # fmt: skip


# --- ceilings ---


def formats(estimate: Estimate) -> list[str]:
    """Number formats that a program contracts in, the one with the most FLOPs first."""
    totals: dict[str, float] = {}
    for row in estimate.rows:
        for name, flops in row.flops_by.items():
            totals[name] = totals.get(name, 0.0) + row.kernel.count * float(flops)
    return sorted(totals, key=lambda name: -totals[name])


def default_precisions(chip: Chip, estimate: Estimate | None) -> tuple[str, ...]:
    """The program's formats, then common ones that the chip has a rate for.

    Raises:
        MissingFigure: The chip has no rate at all.
    """
    used = formats(estimate) if estimate else []
    common = ["bf16", "fp16", "fp32"] if estimate else ["bf16", "fp16", "fp8", "tf32", "fp32"]
    known = [name for name in [*used, *common] if _has_rate(chip, name)]
    wanted = known or [*chip.matrix, *chip.vector][:3]
    if not wanted:
        chip.matmul_peak("bf16")
    return tuple(dict.fromkeys(wanted))


def _has_rate(chip: Chip, name: str) -> bool:
    try:
        return chip.matmul_peak(name) > 0
    except MissingFigure:
        return False


def ceilings(chip: Chip, precisions: Sequence[str], tf32: bool) -> tuple[Ceiling, ...]:
    """Compute roofs of the chip, those of one height as one; the first is the main one."""
    found: dict[float, list[str]] = {}
    for name in precisions:
        labels = found.setdefault(chip.matmul_peak(name, tf32), [])
        if (label := _ceiling_label(chip, name, tf32)) not in labels:
            labels.append(label)
    share = chip.efficiency.compute
    return tuple(Ceiling(_joined(labels), flops, flops * share) for flops, labels in found.items())


def _joined(labels: Sequence[str]) -> str:
    """Labels as one, the unit said once."""
    if all(label.endswith(" vector") for label in labels):
        return ", ".join(label.removesuffix(" vector") for label in labels) + " vector"
    return ", ".join(labels)


def _ceiling_label(chip: Chip, name: str, tf32: bool) -> str:
    """Such as ``bf16``, ``fp32 as tf32`` or ``fp32 vector``."""
    told = find_dtype(name).name
    runs, unit = chip.matmul_runs_as(name, tf32).split(" (")[0].split()
    return told + (f" as {runs}" if runs != told else "") + (" vector" if unit == "vector" else "")


def slopes(chip: Chip, levels: Sequence[str] | None) -> tuple[Slope, ...]:
    """Memory roofs of the chip, the main memory first; all levels with a known bandwidth unless named.

    Raises:
        MissingFigure: A level without a bandwidth.
    """
    chosen = [chip.level(name) for name in levels] if levels is not None else [v for v in chip.memory if v.bandwidth]
    if levels is None and chip.main not in chosen:
        chosen = [chip.main, *chosen]
    if not chosen:
        raise UsageError(f"levels: none given; {chip.name} has: {', '.join(level.name for level in chip.memory)}")
    return tuple(_slope(chip, level) for level in chosen)


def _slope(chip: Chip, level: MemoryLevel) -> Slope:
    is_main = level == chip.main
    bandwidth = chip.bandwidth if is_main else level.bandwidth
    if bandwidth is None:
        raise MissingFigure(f"{chip.name} has no published bandwidth of its {level.name}")
    return Slope(level.name, bandwidth, bandwidth * chip.efficiency.memory if is_main else None)


# --- points ---


def kernel_points(estimate: Estimate) -> tuple[Point, ...]:
    """The distinct kernels, the slowest first.

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
    """The whole program at its expected time, or at a measured one."""
    name = estimate.graph.name if kind == "program" else "measured"
    time = float(estimate.time) if seconds is None else seconds
    bound = estimate.bound if kind == "program" else ""
    return Point(
        kind, name, "", 1, "+".join(formats(estimate)), bound, float(estimate.flops), float(estimate.vector_flops),
        float(estimate.bytes), time, 1.0, float(estimate.floor),
    )  # fmt: skip


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
        "measured: wanted seconds of the whole program or a list of (label, flops, bytes, seconds), given "
        f"{repr(entry)[:100]}"
    )


def quantity(value: Any, unit: str, what: str, zero: bool = False) -> float:
    """Read a positive number, with or without a unit.

    Example:
        >>> quantity("41 ms", "s", "latency_limit")
        0.041
    """
    number = parse(value if isinstance(value, str) or not hasattr(value, "__float__") else float(value), unit)
    if number < 0 or (number == 0 and not zero):
        raise UsageError(f"{what}: {value!r} is not {'zero or more' if zero else 'positive'}")
    return number


def _peak_of(label: str, chip: Chip, estimate: Estimate | None, precisions: Sequence[str]) -> tuple[float, str]:
    """The compute peak that holds for a label: of the kernel of that name, or else the highest in question."""
    tf32 = estimate.tf32 if estimate else False
    row = next((row for row in estimate.rows if label in row.kernel.names), None) if estimate else None
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
