"""What a framework launches for each operator of a program: kernels, how often, how long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roofline.analysis.estimates import Estimate
from roofline.cost import BOUNDS, Part
from roofline.cost.lowering import word
from roofline.counting.grid import one_point
from roofline.ir.errors import UsageError
from roofline.ir.report import Report


@dataclass(frozen=True)
class Launched(Report):
    """The kernels of a program by the operator that launches them, in the order in which they first run.

    From :func:`roofline.analysis.launched`.

    Attributes:
        estimate: The program, the chip and the sizes.
    """

    estimate: Estimate
    schema = "graph_kernels"

    def subject(self) -> dict[str, Any]:
        """Return the program, where and how it runs, and its sizes."""
        return self.estimate.subject()

    def summary(self) -> dict[str, Any]:
        """Return operators, kernels and the time of all."""
        return {
            "operators": self.estimate.counts.launches, "launches": int(self.estimate.launches),
            "time_s": float(self.estimate.device_time),
        }  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per distinct operator and kernel of it; none where nothing is launched."""
        rows = []
        for row, time in self.estimate.timed:
            op = word(row.kernel) or row.kernel.main.op
            alone = Part(row.kernel.name.rpartition(".")[2], op, 1, time)
            parts = time.parts or ((alone,) if time.launches else ())
            rows += [_row(row.kernel.name, op, row.kernel.count, part) for part in parts]
        return [{**row, "share": row["time_s"] / float(self.estimate.device_time)} for row in rows]


def _row(operator: str, op: str, times: int, part: Part) -> dict[str, Any]:
    each, count = float(part.time.expected), times * part.count
    return {
        "operator": operator, "op": op, "operators": times, "kernel": part.name, "runs_as": part.op, "count": count,
        "each_s": each, "time_s": count * each, "bound": BOUNDS[int(part.time.bound)],
    }  # fmt: skip


def launched(estimate: Estimate) -> Launched:
    """List what a framework launches for each operator of a program.

    Args:
        estimate: Of one point on one chip, from :func:`roofline.estimate`; what runs is the same in the modes
            ``eager`` and ``graph``, and a kernel an operator in mode ``compiled``.

    Returns:
        Kernels by operator, with their number and their time.

    Raises:
        UsageError: Not an estimate, or not of one point.

    Example:
        >>> import roofline as rl
        >>> runs = launched(rl.estimate("gpt2", "h100-sxm", phase="prefill", batch=1, seq=128))
        >>> runs.summary()["launches"] == sum(row["count"] for row in runs.records())
        True
    """
    if not isinstance(estimate, Estimate):
        raise UsageError(f"expected an Estimate, as of rl.estimate(...), given {repr(estimate)[:60]}")
    one_point(estimate.axis_names, "launches are listed for")
    return Launched(estimate)
