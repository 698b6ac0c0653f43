"""The program as it is meant: what the measured time is held against.

A list of operators says what is computed and not by which kernels, so its chains may run as one. A model or a captured
program has its own kernels. Either way row lengths are taken as aligned, fp32 contractions as tf32 where the chip has
it, fp64 as fp32, and gathers as if they read neighbours: what a program loses by being otherwise is a cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from roofline.analysis.estimates import Estimate, estimate
from roofline.counting.counts import KernelCount
from roofline.hardware.chip import Chip
from roofline.ir.errors import MissingFigure
from roofline.ir.graph import Graph
from roofline.ir.sizes import evaluate
from roofline.passes.formats.cast import retype
from roofline.passes.fusion.fuse import fuse
from roofline.passes.rewriting.pad import pad
from roofline.programs.workload import is_listed

#: Operators that read single elements or rows from anywhere.
SCATTERED = frozenset({"gather", "embedding", "gather_rows", "scatter_add"})


@dataclass(frozen=True)
class Meant:
    """A program, where it ran and how, with the estimates that a diagnosis needs.

    Attributes:
        graph: As it was given.
        chip: Where it ran.
        mode: How it ran.
        tf32: Whether fp32 contractions were said to use tf32.
        sizes: Values of its symbols.
    """

    graph: Graph
    chip: Chip
    mode: str
    tf32: bool
    sizes: Mapping[str, Any]

    def estimate(self, graph: Graph | None = None, **changes: Any) -> Estimate:
        """An estimate with something changed."""
        options = {"mode": self.mode, "tf32": self.tf32, **self.sizes, **changes}
        return estimate(self.plain if graph is None else graph, self.chip, **options)

    @cached_property
    def plain(self) -> Graph:
        """The kernels that it should have: the given ones, or chains of listed operators as one."""
        return pad(fuse(self.graph) if is_listed(self.graph) else self.graph)

    @cached_property
    def expected(self) -> Estimate:
        """What the run was expected to take."""
        return self.estimate()

    @property
    def contracts_in(self) -> frozenset[str]:
        """Formats that its contractions run in."""
        return frozenset(dtype for row in self.expected.rows for dtype in row.flops_by)

    @property
    def has_tf32(self) -> bool:
        """Whether tf32 is there and faster than fp32."""
        return faster(self.chip, "tf32", "fp32")

    @cached_property
    def reference(self) -> Estimate:
        """The same work on the device alone, in the format that the chip is made for."""
        wide = any(tensor.dtype == "fp64" for tensor in self.plain.tensors.values())
        graph = retype(self.plain, "fp32") if wide else self.plain
        return self.estimate(graph, mode="graph", tf32=self.tf32 or self.has_tf32)

    def shapes(self, row: KernelCount) -> list[tuple[int, ...]]:
        """Shapes of a kernel's operands, in numbers."""
        values = self.reference.grid.sizes
        return [tuple(int(evaluate(size, values)) for size in shape) for shape in row.kernel.shapes]

    @cached_property
    def attainable(self) -> float:
        """What good kernels take on the device [s]."""
        return float(self.reference.device_time) - self.scattered

    @cached_property
    def in_own_format(self) -> float:
        """What good kernels take in the format that the program is in, without tf32 that it does not use [s]."""
        return float(self.estimate(mode="graph").device_time) - self.scattered

    @property
    def attainable_high(self) -> float:
        """Upper end of that [s]."""
        return self.attainable * float(self.reference.high) / float(self.reference.device_time)

    @cached_property
    def floor(self) -> float:
        """Speed of light of those kernels [s]."""
        return min(float(self.reference.floor), self.attainable)

    @cached_property
    def scattered(self) -> float:
        """What gathers take beyond reading the same bytes in order [s]."""
        return sum(
            row.kernel.count * max(float(time.expected) - float(time.memory) - LAUNCH_COST, 0.0)
            for row, time in zip(self.reference.rows, self.reference.times[0], strict=True)
            if row.kernel.main.op in SCATTERED
        )


#: Least time of a launch that moves next to nothing [s].
LAUNCH_COST = 3e-6


def faster(chip: Chip, dtype: str, than: str) -> bool:
    """Whether a chip multiplies faster in one format than in another.

    Example:
        >>> import roofline as rl
        >>> faster(rl.chip("h100-sxm"), "tf32", "fp32"), faster(rl.chip("v100-sxm-16gb"), "bf16", "fp32")
        (True, False)
    """
    try:
        return chip.matmul_peak(dtype, tf32=dtype == "tf32") > chip.matmul_peak(than, tf32=False)
    except MissingFigure:
        return False
