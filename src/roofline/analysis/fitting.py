"""Fit the parameters of the time model to measured operators, and say how well they predict rows they have not seen.

The parameters, their bounds and priors are those of :mod:`roofline.cost`. A fit minimises the logarithm of
predicted over measured with a loss that outliers cannot rule, and holds each parameter near where it started as far as
the rows say nothing about it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.analysis.bulk import Rows, group_rows
from roofline.cost import EAGER, GROUPS, Launch, compute_seconds, formula, launch, traffic_seconds, values
from roofline.cost.lowering import lowered
from roofline.counting.counts import KernelCount
from roofline.hardware.chip import Chip
from roofline.ir.dtypes import dtype as number_format
from roofline.ir.errors import MissingExtra, UsageError

#: Values of the parameters by group and name.
Parameters = Mapping[str, Mapping[str, float]]

#: Relative errors beyond this count less and less.
OUTLIER = 0.1
#: Pull of each parameter's start, against one row's relative error.
PULL = 0.02


@dataclass(frozen=True)
class Sample:
    """One measured operator.

    Attributes:
        op: Its word, as in :data:`roofline.programs.workload.WORDS`.
        dtype: Its number format.
        shape: Its sizes.
        seconds: What it took [s].
    """

    op: str
    dtype: str
    shape: Mapping[str, Any]
    seconds: float

    @property
    def side(self) -> int:
        """Half that it belongs to: 0 or 1, by a hash of what it is."""
        return zlib.crc32(f"{self.op}{self.dtype}{json.dumps(dict(self.shape))}".encode()) & 1


@dataclass(frozen=True, slots=True)
class Effort:
    """How a fit goes about it.

    Attributes:
        widen: Factor by which a parameter may leave its usual bounds, for machines unlike those that these are for.
        only: Names of the parameters that move; all when ``None``.
        most: Steps before the fit gives up.
        tolerance: Relative change of the loss below which it is done.
        pull: Of each parameter to where it started, against one row's relative error.
    """

    widen: float = 1.0
    only: frozenset[str] | None = None
    most: int = 60
    tolerance: float = 1e-8
    pull: float = PULL


#: A fit of all parameters within their bounds.
FULL = Effort()


@dataclass(frozen=True)
class Part:
    """A kernel of samples that share a graph.

    Attributes:
        index: Where the samples stand.
        work: The launch, a column for each sample.
        group: The group of its parameters.
        seconds: Its formula.
        count: How often each sample launches it, a number or a column.
        floor: Its least time [s].
    """

    index: NDArray[np.intp]
    work: Launch
    group: str
    seconds: Callable[[Launch, Mapping[str, float]], Any]
    count: Any
    floor: NDArray[np.float64]


@dataclass(frozen=True)
class Pieces:
    """Samples taken apart into kernels, once for many evaluations.

    Attributes:
        index: Where the samples stand that the time model knows.
        measured: What they took [s].
        parts: Their kernels.
        skipped: Where the others stand, with the reason.
    """

    index: tuple[int, ...]
    measured: NDArray[np.float64]
    parts: tuple[Part, ...]
    skipped: Mapping[int, str]

    @property
    def groups(self) -> tuple[str, ...]:
        """Groups of parameters that the samples depend on."""
        used = {part.group for part in self.parts}
        return tuple(name for name in GROUPS if name in used)

    def predict(self, parameters: Parameters) -> NDArray[np.float64]:
        """The time of each sample with these parameters [s]."""
        total = np.zeros(len(self.index))
        for part in self.parts:
            time = np.maximum(part.seconds(part.work, parameters[part.group]), part.floor)
            total[part.index] += part.count * time
        return total


def take_apart(samples: Iterable[Sample], chip: Chip, regime: str = "cold") -> Pieces:
    """Find the kernels of samples on a chip.

    Raises:
        MissingFigure: The chip has no rate for a format.
    """
    listed = list(samples)
    _, errors = group_rows([(s.op, s.dtype, s.shape) for s in listed])
    index = tuple(at for at in range(len(listed)) if at not in errors)
    groups, _ = group_rows([(listed[at].op, listed[at].dtype, listed[at].shape) for at in index])
    parts = [part for group in groups for part in _parts(group, chip, regime)]
    return Pieces(index, np.array([listed[at].seconds for at in index]), tuple(parts), errors)


def _parts(rows: Rows, chip: Chip, regime: str) -> Iterable[Part]:
    tf32 = number_format(rows.dtype).name == "tf32"
    for row, share, inside in _launched(rows, chip, regime, tf32):
        work = launch(row, chip, tf32, regime, inside)
        name, seconds = formula(work)
        floor = np.maximum(compute_seconds(row, chip, tf32), traffic_seconds(work))
        yield Part(rows.index, work, name, seconds, row.kernel.count * share, floor)


def _launched(rows: Rows, chip: Chip, regime: str, tf32: bool) -> Iterable[tuple[KernelCount, Any, bool]]:
    """Yield the kernels that PyTorch launches, for which samples (1) or not (0), and whether as parts of others."""
    for row in rows.counts():
        left: Any = 1.0
        kinds = lowered(row.kernel, chip, "" if regime == "warm" else EAGER, regime == "program", tf32)
        for at, kernels in kinds:
            share = left * (1.0 if at is None else np.asarray(at(row.sizes), dtype=np.float64))
            yield from ((kernel.at(row.symbols), share, True) for kernel in kernels)
            left = left - share
        if np.any(left):
            yield row, left, False


def start(chip: Chip) -> dict[str, dict[str, float]]:
    """The parameters that a chip has before a fit: its own, its shares, priors."""
    return {name: dict(values(chip, name)) for name in GROUPS}


def fit(pieces: Pieces, chip: Chip, groups: Sequence[str] = (), effort: Effort = FULL) -> dict[str, dict[str, float]]:
    """Fit parameters to all samples.

    Args:
        pieces: The samples.
        chip: Where they were measured; gives the start.
        groups: Groups to fit; those that the samples depend on when empty.
        effort: Which parameters move, how far, and when the fit stops.

    Returns:
        All groups; those that were not fitted as they started.

    Raises:
        MissingExtra: scipy is not installed.
        UsageError: No samples, or an unknown group.
    """
    least_squares = need_scipy()
    if not pieces.index:
        raise UsageError("nothing to fit: no sample that the time model knows")
    first, names = start(chip), _names(groups or pieces.groups, effort.only)
    lower, upper = _bounds(names, effort.widen)
    x0 = np.clip(np.log([max(first[g][k], 1e-12) for g, k in names]), lower + 1e-6, upper - 1e-6)
    measured = pieces.measured

    def residual(x: NDArray[np.float64]) -> NDArray[np.float64]:
        error = np.log(np.maximum(pieces.predict(_with(first, names, x)), 1e-12) / measured)
        return np.append(error, effort.pull * (x - x0))

    result = least_squares(
        residual, x0, bounds=(lower, upper), loss="soft_l1", f_scale=OUTLIER, diff_step=1e-3,
        max_nfev=effort.most, ftol=effort.tolerance, xtol=effort.tolerance,
    )  # fmt: skip
    return _with(first, names, result.x)


def need_scipy() -> Any:
    """Return scipy's least squares, which a fit needs.

    Raises:
        MissingExtra: scipy is not installed.
    """
    try:
        from scipy.optimize import least_squares
    except ImportError:
        raise MissingExtra('a fit needs scipy: pip install "roofline[calibrate]"') from None
    return least_squares


def _names(groups: Sequence[str], only: frozenset[str] | None) -> list[tuple[str, str]]:
    for name in groups:
        if name not in GROUPS:
            raise UsageError(f"unknown group {name!r}; allowed: {', '.join(GROUPS)}")
    return [(group, key) for group in groups for key in GROUPS[group] if only is None or key in only]


def _bounds(names: Sequence[tuple[str, str]], widen: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    known = [GROUPS[group][key] for group, key in names]
    low = np.log([max(parameter.low, 1e-12) / widen for parameter in known])
    return low, np.log([parameter.high * widen for parameter in known])


def _with(
    first: Parameters, names: Sequence[tuple[str, str]], logarithms: NDArray[np.float64]
) -> dict[str, dict[str, float]]:
    made = {group: dict(table) for group, table in first.items()}
    for (group, key), value in zip(names, np.exp(logarithms), strict=True):
        made[group][key] = float(value)
    return made


def held_out(
    samples: Sequence[Sample],
    chip: Chip,
    regime: str = "cold",
    groups: Sequence[str] = (),
    effort: Effort = FULL,
) -> dict[int, float]:
    """Predict each half of the samples with parameters fitted to the other half.

    Args:
        samples: The samples.
        chip: Where they were measured.
        regime: Where operands lay when they started.
        groups: Groups to fit; those that the samples depend on when empty.
        effort: Which parameters move, how far, and when a fit stops.

    Returns:
        For the position of each sample that the time model knows, predicted over measured less 1.
    """
    error: dict[int, float] = {}
    for side in (0, 1):
        judged = [at for at, sample in enumerate(samples) if sample.side == side]
        taught = take_apart((sample for sample in samples if sample.side != side), chip, regime)
        pieces = take_apart((samples[at] for at in judged), chip, regime)
        if not taught.index or not pieces.index:
            continue
        fitted = fit(taught, chip, groups, effort)
        ratio = pieces.predict(fitted) / pieces.measured - 1
        error |= dict(zip((judged[at] for at in pieces.index), ratio.tolist(), strict=True))
    return error
