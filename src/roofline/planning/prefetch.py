"""How long a plan takes, and what of it loading ahead hides.

A kernel takes the longest of its arithmetic, its traffic on chip, its traffic with main memory and the least time of a
launch: a roofline of levels, at the shares of the peaks that the chip's file calls achievable. While a kernel leaves
main memory idle, the weights of the next one can come, as far as they find a free gap on chip beside all that lies
there (double buffering).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from roofline.analysis.estimates import Estimate
from roofline.planning.lives import Traffic
from roofline.planning.placement import Arena, Block


@dataclass(frozen=True, slots=True)
class Loaded:
    """Weights that come ahead of their kernel.

    Attributes:
        step: The kernel that reads them; they come while the one before it runs.
        size: How many [byte].
        offset: Where they lie [byte].
    """

    step: int
    size: int
    offset: int

    @property
    def block(self) -> Block:
        """Bytes and steps of it."""
        return Block(self.size, self.step - 1, self.step)


@dataclass(frozen=True, slots=True)
class Pace:
    """What steps take without the traffic of main memory, and how fast that is.

    Attributes:
        busy: The least time of each step: arithmetic, launch [s].
        chip: Bandwidth of the level on chip; infinite where nobody published it [byte/s].
        main: Achievable bandwidth of main memory [byte/s].
    """

    busy: NDArray[np.float64]
    chip: float
    main: float

    def alone(self, moves: Traffic) -> NDArray[np.float64]:
        """Return the time of each step without the traffic of main memory [s]."""
        return np.asarray(np.maximum(self.busy, moves.chip / self.chip))

    def seconds(self, moves: Traffic) -> float:
        """Return the time of a run where each kernel loads all that it reads while it runs [s]."""
        return float(np.maximum(self.alone(moves), moves.main / self.main).sum())


def pace(estimate: Estimate, steps: list[str], chip_bandwidth: float | None) -> Pace:
    """Return the pace of the kernels of an estimate.

    Args:
        estimate: Of one point on one chip.
        steps: Labels of its kernels in their order.
        chip_bandwidth: Of the level on chip; ``None`` where there is no figure [byte/s].
    """
    share = estimate.chip.efficiency
    times = {
        name: row.kernel.main.count * max(float(time.compute), float(time.launches) * share.launch)
        for row, time in estimate.timed for name in row.kernel.names
    }  # fmt: skip
    busy = np.array([times[label] for label in steps])
    return Pace(busy, chip_bandwidth or float("inf"), estimate.chip.bandwidth * share.memory)


def ahead(moves: Traffic, at: Pace, arena: Arena) -> tuple[float, list[Loaded]]:
    """Return the time of a run whose weights come ahead where they can [s], and those that do.

    Args:
        moves: What the run moves.
        at: How fast.
        arena: The memory on chip with what stays there; what comes ahead is put there too.
    """
    alone, total, came, loaded = at.alone(moves), 0.0, 0, list[Loaded]()
    for step, main in enumerate(moves.main):
        traffic = (main - came) / at.main
        seconds = max(float(alone[step]), float(traffic))
        total += seconds
        came = 0
        if step + 1 < len(moves.main):
            idle = int((seconds - traffic) * at.main)
            room = arena.gaps(step, step + 1)[1].max()
            came = int(max(min(moves.weights[step + 1], idle, room), 0))
            came = came if came >= arena.alignment else 0
            if came:
                offset = arena.place(Block(came, step, step + 1))
                assert offset is not None
                loaded.append(Loaded(step + 1, came, offset))
    return total, loaded
