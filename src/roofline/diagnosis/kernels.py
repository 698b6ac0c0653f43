"""The kernels of a trace, each with how often it ran and how long."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from roofline.ir.report import Report
from roofline.traces.linking import Launch

#: Operators that a row names.
_NAMED = 5


@dataclass(frozen=True)
class KernelTimes:
    """All launches of one kernel, or calls of one operator on a CPU.

    Attributes:
        kernel: Its name, in full.
        role: ``kernel``, ``copy_in``, ``copy_out``, ``communication`` or ``layout``; ``host`` on the CPU.
        op: The operators that launched it.
        launches: Launches per iteration.
        time_s: From start to end of all launches, per iteration [s].
        mean_s: Of one launch [s].
        share: Of the time of all kernels.
    """

    kernel: str
    role: str
    op: str
    launches: float
    time_s: float
    mean_s: float
    share: float


@dataclass(frozen=True, repr=False)
class KernelTable(Report):
    """The kernels of a trace, those that took the most time first.

    From :func:`roofline.diagnosis.trace_report`, as its ``kernels``.

    Attributes:
        source: The file.
        rows: The kernels.
    """

    schema = "trace_kernels"

    source: str
    rows: tuple[KernelTimes, ...]

    def subject(self) -> dict[str, Any]:
        """Return the file."""
        return {"source": self.source}

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per kernel, the one that took the most time first."""
        return [asdict(row) for row in self.rows]

    def __repr__(self) -> str:
        return f"<KernelTable {self.source}: {len(self.rows)} kernels>"


def kernel_table(source: str, launches: Sequence[Launch], iterations: int) -> KernelTable:
    """Put the launches of each kernel together, per iteration."""
    same: dict[tuple[str, str], list[Launch]] = defaultdict(list)
    for launch in launches:
        same[launch.name, launch.role].append(launch)
    total = sum(launch.duration for launch in launches) or 1.0
    rows = []
    for (name, role), each in same.items():
        seconds, count = sum(launch.duration for launch in each), sum(launch.count for launch in each)
        ops = list(dict.fromkeys(launch.op for launch in each if launch.op))
        named = ", ".join(ops[:_NAMED]) + (f" and {len(ops) - _NAMED} more" if len(ops) > _NAMED else "")
        rows.append(
            KernelTimes(name, role, named, count / iterations, seconds / iterations, seconds / count, seconds / total)
        )
    return KernelTable(source, tuple(sorted(rows, key=lambda row: (-row.time_s, row.kernel))))
