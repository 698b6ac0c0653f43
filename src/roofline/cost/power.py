"""The power cap of a program: the more of its time the matrix units are busy, the slower they run.

A chip keeps its power at the cap by lowering the clock. A kernel of some microseconds does not meet it, a program that
multiplies most of the time does; kernels between the matmuls, or a host that is late with launches, let the clock
recover. The same matmul of 4096 x 8192 x 2048 takes 182 us on an H100 in a program that has the matrix units at peak
for 43 % of its time, and 214 us in one that has them for 54 % (measurements/h100-sxm/zoo, Pythia and OPT).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np

from roofline.cost.parameters import Group, Parameter
from roofline.counting.grid import added

# Device-bound programs on an H100 (models.csv, zoo) run their matmuls as lone ones up to a share of 0.41, 6 % slower at
# 0.45 and 20 % at 0.53; matmuls with pauses between them in a graph on an H200 up to 0.55, 6 % slower at 0.6, 18 % at
# 0.69.
GROUP = Group(
    "power",
    capped=Parameter(0.5, 0.1, 1.0, "share", "of a program's time at the matrix units' peak that the power cap allows"),
    ratio=Parameter(0.6, 0.0, 3.0, "ratio", "slowdown of its matrix kernels by the share beyond that"),
)

#: Seconds of work at peak around a launch from which on a program counts as long.
LONG = 3e-4


def heated(counts: Sequence[int], peaks: Sequence[Any]) -> Any:
    """Return how far a program is long enough to meet the cap: 0 where one launch is all that multiplies, up to 1.

    Args:
        counts: How often each kernel is launched.
        peaks: Seconds that its arithmetic takes at the matrix units' peak.
    """
    around = added(count * peak for count, peak in zip(counts, peaks, strict=True)) - reduce(np.maximum, peaks)
    return np.maximum(around, 0.0) / (np.maximum(around, 0.0) + LONG)


def slowed(
    counts: Sequence[int], times: Sequence[Any], peaks: Sequence[Any], p: Mapping[str, Any], idle: Any
) -> list[Any]:
    """Return by which factor the power cap slows each kernel of a program.

    Args:
        counts: How often each is launched.
        times: Seconds of a launch without the cap.
        peaks: Seconds that its arithmetic takes at the matrix units' peak; 0 where it runs elsewhere.
        p: Parameters of :data:`GROUP`.
        idle: Time that a run takes at least, since the host needs it [s].
    """
    # What follows the clock: a kernel that is at peak for longer than the cap allows as a whole, others in part.
    pairs = zip(times, peaks, strict=True)
    held = [np.minimum(1.0, peak / (p["capped"] * np.maximum(time, 1e-30))) for time, peak in pairs]
    excess = p["ratio"] * np.maximum(_busy(counts, times, peaks, held, p, idle) - p["capped"], 0.0)
    return [1 + excess * share if np.any(share) else 1.0 for share in held]


def _busy(
    counts: Sequence[int],
    times: Sequence[Any],
    peaks: Sequence[Any],
    held: Sequence[Any],
    p: Mapping[str, Any],
    idle: Any,
) -> Any:
    """Share of the time at peak, of the time that a run then takes.

    ``t = m (1 + ratio (b / t - capped)) + o``, solved for ``t``: ``b`` seconds at peak, ``m`` that the cap slows, ``o``
    others.
    """
    total, peak, follows = (
        added(count * each for count, each in zip(counts, seconds, strict=True))
        for seconds in (
            times,
            peaks,
            [time * share if np.any(share) else 0.0 for time, share in zip(times, held, strict=True)],
        )
    )
    free = total - follows * p["ratio"] * p["capped"]
    time = (free + np.sqrt(free**2 + 4 * p["ratio"] * follows * peak)) / 2
    return peak / np.maximum(np.maximum(time, idle), 1e-30)
