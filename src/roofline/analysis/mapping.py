"""How the products of a program are spread over a chip that is a grid of cores, and which level sets the pace."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from roofline.analysis.estimates import Estimate
from roofline.cost import launch, values
from roofline.cost.silicon import LEVELS, is_spread, spreads, vector_seconds
from roofline.cost.silicon.mapping import Product, Spread, named
from roofline.counting.grid import one_point
from roofline.ir.errors import MissingFigure, UsageError
from roofline.ir.report import Report, title
from roofline.ir.text import shown
from roofline.ir.units import format_si


@dataclass(frozen=True, eq=False)
class GridMapping(Report):
    """How products are spread over a grid of cores, made by :func:`mapping`.

    Attributes:
        estimate: Of the program on the chip.
    """

    schema = "mapping"

    estimate: Estimate

    def subject(self) -> dict[str, Any]:
        """Return the program, the chip and the sizes."""
        return self.estimate.subject()

    def records(self) -> list[dict[str, Any]]:
        """Return one row per product of each distinct kernel: its way, and time and traffic by level, slowest first."""
        return self._rows

    @cached_property
    def _rows(self) -> list[dict[str, Any]]:
        return sorted(self._products(), key=lambda row: -row["count"] * row["time_s"])

    def _products(self) -> Iterator[dict[str, Any]]:
        est = self.estimate
        for row in est.rows:
            work = launch(row, est.chip, est.tf32, est.regime)
            if is_spread(work):
                about = {"kernel": row.kernel.name, "op": row.kernel.main.op, "count": row.kernel.count}
                every = spreads(work, values(est.chip, row.kernel.kind, est.regime))
                vector = vector_seconds(work, every[0][0]) / sum(each.seconds for _, each in every)
                for product, each in every:
                    yield about | self._row(product, each, work.peak, float(vector * each.seconds))

    def _row(self, product: Product, best: Spread, peak: float, vector: float) -> dict[str, Any]:
        grid, sizes = self.estimate.chip.grid, {axis: float(getattr(product, axis)) for axis in "bmnk"}
        assert grid is not None
        times = {level: float(best.by_level[level]) for level in LEVELS} | {"vector": vector}
        slowest = max(times, key=lambda level: times[level])
        return {
            **sizes, "mapping": named(int(best.choice), grid), "level": slowest, "time_s": times[slowest],
            **{f"{level.lower()}_s": time for level, time in times.items()},
            "level_bytes": {level: float(total) for level, total in best.bytes.items()},
            "engine_share": 2 * prod(sizes.values()) / peak / times[slowest],
        }  # fmt: skip

    def __repr__(self) -> str:
        lines = [f"<GridMapping {title(self.subject())}:"]
        for row in self.records()[:10]:
            size = " x ".join(f"{row[axis]:,.6g}" for axis in "bmnk")
            pace = (
                f"{format_si(row['time_s'], 's')}, {row['level']} sets the pace, {row['engine_share']:.0%} of the peak"
            )
            lines.append(f"{row['kernel']} ({size}): {row['mapping']}; {pace}")
        return "\n  ".join(lines) + ">"


def mapping(estimate: Estimate) -> GridMapping:
    """Say how the products of a program are spread over a chip that is a grid of cores.

    Args:
        estimate: Of one point, on a chip whose file describes a ``[grid]``.

    Returns:
        For each product of a matmul, a convolution or attention what goes over rows and columns of the grid, what stays
        in a core's memory, and time [s] and traffic [byte] by level.

    Raises:
        MissingFigure: The chip's file describes no grid.
        UsageError: Several points or chips.

    Example:
        >>> import roofline as rl
        >>> one = rl.workload([{"op": "gemm", "m": 4096, "n": 4096, "k": 4096}])
        >>> mapping(rl.estimate(one, "wormhole-n150")).records()[0]["level"]
        'engine'
    """
    if not isinstance(estimate, Estimate):
        raise UsageError(f"mapping: expected an estimate of rl.estimate, given {shown(estimate)}")
    one_point(estimate.axis_names, "products are spread for")
    if estimate.chip.grid is None:
        raise MissingFigure(f"{estimate.chip.name} describes no grid of cores; give it a [grid], as wormhole-n150 has")
    return GridMapping(estimate)
