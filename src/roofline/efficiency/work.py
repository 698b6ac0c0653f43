"""What one launch asks of a machine, as arrays that broadcast: the input of every time formula."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roofline.chip import Chip
from roofline.count import KernelCount
from roofline.dtypes import DTYPES
from roofline.efficiency.machine import Machine, machine
from roofline.errors import MissingFigure

#: Where operands lie when a kernel starts. ``cold``: all in main memory. ``warm``: the same launch ran just before, so
#: what fits the cache is there. ``program``: activations come from the kernel before, weights from main memory.
REGIMES = ("cold", "warm", "program")


@dataclass(frozen=True)
class Launch:
    """A kernel launch on a machine.

    Attributes:
        row: Its counts.
        chip: Where it runs.
        dtype: The number format of its contraction, ``tf32`` where fp32 runs on tf32 units; of its output otherwise.
        peak: Of its contraction [FLOP/s]; infinity where it has none.
        regime: One of :data:`REGIMES`.
    """

    row: KernelCount
    chip: Chip
    dtype: str
    peak: float
    regime: str

    @property
    def machine(self) -> Machine:
        """The chip as numbers."""
        return machine(self.chip)

    @property
    def on_matrix(self) -> bool:
        """Whether its contraction runs on matrix units."""
        return " matrix" in self.chip.matmul_runs_as(self.dtype)

    @property
    def sizes(self) -> Mapping[str, Any]:
        """Axes of the main operator."""
        return self.row.sizes

    @property
    def op(self) -> str:
        """Name of the main operator."""
        return self.row.kernel.main.op

    @property
    def element(self) -> float:
        """Bytes of an element of the first operand."""
        return float(DTYPES[self.row.kernel.inputs[0].dtype if self.row.kernel.inputs else self.dtype].bytes)

    @property
    def cached(self) -> Any:
        """Bytes that may be read from the cache instead of main memory, if they fit it."""
        if self.regime == "warm":
            return self.row.read
        return self.row.read_flow if self.regime == "program" else 0.0


def launch(row: KernelCount, chip: Chip, tf32: bool, regime: str) -> Launch:
    """Collect what the formulas need.

    Raises:
        MissingFigure: The chip has no rate for the format of the contraction.
    """
    formats = list(row.flops_by)
    if not formats:
        return Launch(row, chip, row.kernel.output.dtype, float("inf"), regime)
    widest = max(formats, key=lambda name: DTYPES[name].bits)
    dtype = "tf32" if tf32 and widest == "fp32" and "tf32" in chip.matrix else widest
    return Launch(row, chip, dtype, chip.matmul_peak(widest, tf32=tf32), regime)


def vector_peak(chip: Chip, dtype: str) -> float | None:
    """Peak of elementwise arithmetic [FLOP/s], or ``None`` where the vendor publishes none."""
    try:
        return chip.vector_peak(dtype)
    except MissingFigure:
        return None
