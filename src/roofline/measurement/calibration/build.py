"""Measurements to a chip: peaks and bandwidths as the best seen, fitted parameters, a range from what was held out."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roofline.analysis.fitting import Effort, Sample, fit, held_out, take_apart
from roofline.cost import GROUPS
from roofline.hardware.chip import Chip
from roofline.ir.errors import UsageError
from roofline.ir.report import Report
from roofline.measurement.calibration.host import Host
from roofline.measurement.calibration.numpy_cpu import Level
from roofline.measurement.calibration.timing import Timing

#: A CPU without load clocks higher than one that was measured beside other programs.
CLOCK_SLACK = 1.3
#: The groups of parameters that describe a CPU, and how they are fitted: in as many steps as a person waits for.
CPU_GROUPS = ("cpu_matmul", "cpu_stream")
EFFORT = Effort(most=40, tolerance=1e-5)
#: Programs a thread beside which a machine counts as busy.
BUSY = 0.5
#: The stated range holds at least this, whatever was held out: a machine that others use is never the same twice.
LEAST_LOW, LEAST_HIGH, LEAST_SPREAD = 0.8, 1.3, 1.1
#: Mean held-out error above which a chip is refused: a quiet CPU has about 20 %, one of which others take half over
#: 100 % (docs/accuracy.md), and a verdict by such a chip means nothing.
MOST_ERROR = 0.5
#: Number formats of the units that also do elementwise arithmetic.
_VECTOR = ("fp32", "fp64")


@dataclass(frozen=True)
class Measured:
    """What was measured of a CPU.

    Attributes:
        host: The machine.
        samples: Operators, with typical times.
        timings: Of each of them.
        levels: Bandwidths of main memory and caches.
        overhead: What the least operator takes [s].
        software: What ran them, with versions.
        quick: Whether it was a short measurement.
        load: Other programs that ran on the machine, on average over the minute before.
    """

    host: Host
    samples: Sequence[Sample]
    timings: Sequence[Timing]
    levels: Sequence[Level]
    overhead: float
    software: Sequence[str]
    quick: bool
    load: float = 0.0


@dataclass(frozen=True)
class Calibration(Report):
    """A calibrated chip and how good it is.

    Attributes:
        chip: The chip.
        samples: What it was fitted to.
        error: Predicted over measured less 1 of each sample, when it was held out of the fit.
        remarks: What was measured, on what.
        seconds: How long it all took [s].
        busy: Whether other programs kept the machine from being measured well.
    """

    schema = "calibrate"

    chip: Chip
    samples: Sequence[Sample]
    error: Mapping[int, float]
    remarks: tuple[str, ...]
    seconds: float = 0.0
    busy: bool = False

    @property
    def held_out_error(self) -> float:
        """Mean error of operators that were held out of the fit, as the chip's file records it."""
        return self.chip.efficiency.held_out_error or 0.0

    def check(self, most: float = MOST_ERROR) -> None:
        """Refuse a chip whose held-out error is too large to judge anything by.

        Raises:
            UsageError: Says how large, what is allowed and what to do.
        """
        if self.held_out_error > most:
            why = "other programs kept this machine busy" if self.busy else "the times do not repeat"
            raise UsageError(
                f"calibrate: operators held out of the fit are {self.held_out_error:.0%} off on average (allowed: "
                f"{most:.0%}), so nothing is written: {why}; stop other programs, or leave them cores with a smaller "
                "OMP_NUM_THREADS, and measure again, without --quick (in Python quick=False)"
            )

    def by_class(self) -> dict[str, list[float]]:
        """Held-out errors by operator and format, all of them first."""
        errors: dict[str, list[float]] = {"all": list(self.error.values())}
        for at, error in sorted(self.error.items(), key=lambda pair: self.samples[pair[0]].op):
            errors.setdefault(f"{self.samples[at].op} {self.samples[at].dtype}", []).append(error)
        return errors

    def subject(self) -> dict[str, Any]:
        """Return the chip that was measured."""
        return {"chip": self.chip.name}

    def summary(self) -> dict[str, Any]:
        """Return how much was measured, and the figures that it gave."""
        return {
            "points": len(self.samples),
            "time_s": self.seconds,
            "peaks_flops_per_s": {name: peak.flops for name, peak in {**self.chip.vector, **self.chip.matrix}.items()},
            "bandwidth_bytes_per_s": {level.name: level.bandwidth for level in self.chip.memory},
            "held_out_error": self.held_out_error,
            "remarks": list(self.remarks),
        }

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per class of operators: errors when held out of the fit [%]."""
        return [{"class": name, **error_figures(errors)} for name, errors in self.by_class().items() if errors]


def error_figures(errors: Sequence[float]) -> dict[str, float]:
    """Number, mean, median and 90th percentile of absolute errors [%].

    Example:
        >>> error_figures([0.1, -0.3])["mean"]
        20.0
    """
    size = 100 * np.abs(np.asarray(errors))
    return {"rows": float(len(size)), "mean": float(size.mean()), "median": float(np.median(size)),
            "p90": float(np.quantile(size, 0.9))}  # fmt: skip


def build_chip(measured: Measured) -> Calibration:
    """Make a chip of measurements.

    Raises:
        UsageError: Too little was measured to fit anything.
        MissingExtra: scipy is not installed.
    """
    if len(measured.samples) < 8:
        raise UsageError(f"{len(measured.samples)} operators were measured; expected at least 8")
    calibration = finish(plain_chip(measured), measured.samples, _remarks(measured), EFFORT)
    return replace(calibration, busy=measured.load > BUSY * measured.host.threads)


def finish(chip: Chip, samples: Sequence[Sample], remarks: Sequence[str], effort: Effort) -> Calibration:
    """Fit a chip's parameters and range to samples, each group of parameters to those that it is about."""
    error: dict[int, float] = {}
    parameters = {group: dict(table) for group, table in chip.efficiency.parameters.items()}
    spreads: dict[str, float] = {}
    for group, index in _by_group(samples, chip).items():
        own = [samples[at] for at in index]
        errors = {index[at]: value for at, value in held_out(own, chip, groups=[group], effort=effort).items()}
        error |= errors
        if group in GROUPS["spread"] and errors:
            spreads[group] = _spread(list(errors.values()))
        final = fit(take_apart(own, chip), chip, [group], effort)[group]
        parameters[group] = {key: float(f"{value:.4g}") for key, value in final.items()}
    if not error:
        raise UsageError("too few operators were measured to hold out any")
    if spreads:
        parameters["spread"] = {**parameters.get("spread", {}), **spreads}
    source = (*remarks, _quality(list(error.values())))
    low, high = _range(list(error.values()))
    mean = round(float(np.mean(np.abs(list(error.values())))), 3)
    efficiency = {**chip.efficiency.model_dump(), "parameters": parameters, "low": low, "high": high,
                  "calibrated": "measured", "held_out_error": mean, "source": ". ".join(source)}  # fmt: skip
    return Calibration(Chip(**{**dict(chip), "efficiency": efficiency}), samples, error, source)


def _by_group(samples: Sequence[Sample], chip: Chip) -> dict[str, list[int]]:
    """Map each group of parameters to the samples whose main kernel it describes, by position."""
    pieces = take_apart(samples, chip)
    group_of: dict[int, str] = {}
    for part in pieces.parts:
        for at in part.index:
            group_of.setdefault(pieces.index[at], part.group)
    return {group: [at for at in sorted(group_of) if group_of[at] == group] for group in pieces.groups}


def _quality(errors: Sequence[float]) -> str:
    figures = error_figures(errors)
    return (
        f"{len(errors)} operators, each half predicted with parameters fitted to the other: mean error "
        f"{figures['mean']:.1f} %, median {figures['median']:.1f} %, 90th percentile {figures['p90']:.1f} %"
    )


def _spread(errors: Sequence[float]) -> float:
    """The factor within which nine of ten held-out measurements lie, at least the least range."""
    return round(float(max(np.exp(np.quantile(np.abs(np.log1p(errors)), 0.9)), LEAST_SPREAD)), 3)


def _range(errors: Sequence[float]) -> tuple[float, float]:
    """Factors on the prediction between which nine of ten held-out measurements lie, at least the least range."""
    low, high = np.quantile([1 / (1 + error) for error in errors], [0.05, 0.95])
    return round(float(min(low, LEAST_LOW)), 3), round(float(max(high, LEAST_HIGH)), 3)


def plain_chip(measured: Measured) -> Chip:
    """The chip without fitted parameters: the best of each figure."""
    source = "; ".join(_remarks(measured)[:2])
    peaks = {dtype: {"flops": rate, "source": f"best of the matmuls measured: {shape}"}
             for dtype, (rate, shape) in best_rates(measured.samples, measured.timings).items()}  # fmt: skip
    return Chip(
        name=measured.host.slug,
        vendor=measured.host.vendor,
        cores=measured.host.threads,
        core_name="thread",
        vector={dtype: peak for dtype, peak in peaks.items() if dtype in _VECTOR},
        matrix={dtype: peak for dtype, peak in peaks.items() if dtype not in _VECTOR},
        memory=_memory(measured),
        clock_slack=CLOCK_SLACK,
        source=source,
        notes="Peaks and bandwidths are the best measured, not a vendor's; an idle machine may exceed them.",
        efficiency=_shares(measured),
    )


def best_rates(samples: Sequence[Sample], timings: Sequence[Timing]) -> dict[str, tuple[float, str]]:
    """The best matmul rate of each format [FLOP/s] and where it was reached."""
    best: dict[str, tuple[float, str]] = {}
    for sample, timing in zip(samples, timings, strict=True):
        if sample.op == "gemm":
            m, n, k = (sample.shape[key] for key in "mnk")
            rate = (2.0 * m * n * k / timing.typical, f"m={m} n={n} k={k}")
            best[sample.dtype] = max(best.get(sample.dtype, rate), rate)
    return best


def _memory(measured: Measured) -> list[dict[str, Any]]:
    """Main memory, then caches from the outside in; an inner level is at least as fast as the next outer one."""
    host = measured.host
    rates = {level.level: level for level in measured.levels}
    rates[0] = _main_memory(measured)
    listed: list[dict[str, Any]] = []
    best = 0.0
    for level in [0, *sorted((key for key in rates if key), reverse=True)]:
        best = max(best, rates[level].bandwidth)
        entry: dict[str, Any] = {"name": f"L{level}" if level else "DRAM", "bandwidth": best,
                                 "source": f"measured: {rates[level].kernel}, {host.threads} threads"}  # fmt: skip
        cache = next((cache for cache in host.caches if cache.level == level), None)
        if cache is not None:
            entry |= {"capacity": float(host.total(cache)), "shared_by": "core" if cache.shared == 1 else "chip"}
        elif host.memory:
            entry["capacity"] = float(host.memory)
        listed.append(entry)
    return listed


def _main_memory(measured: Measured) -> Level:
    """The best bandwidth of main memory: of the streams, or of an operator that found its operands there."""
    best = next(level for level in measured.levels if level.level == 0)
    for sample, timing in zip(measured.samples, measured.timings, strict=True):
        if sample.op in ("copy", "relu", "mul_scalar") and sample.shape["n"] >= 2**16:
            rate = 2 * 4 * sample.shape["n"] / timing.typical
            best = max(best, Level(0, rate, f"{sample.op} of {sample.shape['n']}"), key=lambda level: level.bandwidth)
    return best


def _shares(measured: Measured) -> dict[str, Any]:
    """Shares of the best figures that large operators reach, and the cost of the least one."""
    best, bandwidth = best_rates(measured.samples, measured.timings), _main_memory(measured).bandwidth
    compute = [2.0 * s.shape["m"] * s.shape["n"] * s.shape["k"] / s.seconds / best[s.dtype][0]
               for s in measured.samples if s.op == "gemm" and min(s.shape.values()) >= 256]  # fmt: skip
    memory = [2 * 4 * s.shape["n"] / s.seconds / bandwidth
              for s in measured.samples if s.op in ("copy", "relu") and s.shape["n"] >= 2**22]  # fmt: skip
    return {
        "compute": _share(compute, 0.7),
        "memory": _share(memory, 0.6),
        "launch": measured.overhead,
        "host": measured.overhead,
        "parameters": {group: {} for group in CPU_GROUPS},
    }


def _share(values: Sequence[float], default: float) -> float:
    return float(np.clip(np.median(values), 0.02, 1.0)) if values else default


def _remarks(measured: Measured) -> tuple[str, ...]:
    host, day = measured.host, datetime.date.today().isoformat()
    how = "roofline calibrate --quick" if measured.quick else "roofline calibrate"
    scatter = 100 * float(np.median([timing.slow / timing.typical - 1 for timing in measured.timings]))
    return (
        f"measured {day} by {how} on {host.name}, {host.threads} threads, {host.system}",
        ", ".join(measured.software),
        f"operands in main memory, fastest tenth of the repeats; their upper quartile lies {scatter:.0f} % above "
        f"(median over the operators); other programs running before: {measured.load:.1f}, their time subtracted",
    )
