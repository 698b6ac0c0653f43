"""Which matmuls of a program run on faster units than 16-bit ones would, and why the others do not.

Quantising changes two things that are easily confused: the bytes that a matmul reads, which always pays where memory
bounds it, and the units that multiply, which pays where arithmetic bounds it and only on a chip that has such units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from roofline.cost import values
from roofline.cost.machine import machine
from roofline.counting.counts import Kernel, kernels
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.hardware.rates import WHOLE, rate
from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import MissingFigure
from roofline.ir.report import Report, subject
from roofline.ops.registry import OPS

#: Widths that count as narrow [bit].
_NARROW = 16


@dataclass(frozen=True, slots=True)
class FastPath:
    """One distinct matmul of a program on a chip.

    Attributes:
        kernel: Its name.
        op: Its operator.
        count: How often it runs.
        stored: Format of its second operand in memory: weights, keys.
        multiplied: Format that it multiplies in.
        unit: What multiplies, such as ``"fp8 matrix"``; empty where the chip has nothing.
        peak: Of that [FLOP/s]; ``None`` where the chip has nothing.
        plain: Peak of bf16 matmuls, or of fp16 or fp32 ones where the chip has no rate for those [FLOP/s].
        reached: The share of both peaks' ratio that the library kernels are known to reach.
        faster: Whether arithmetic takes less time than in 16 bits.
        why: Why, or why not, in a sentence.
    """

    kernel: str
    op: str
    count: int
    stored: str
    multiplied: str
    unit: str
    peak: float | None
    plain: float
    reached: float
    faster: bool
    why: str

    @property
    def speedup(self) -> float:
        """Speed-up of arithmetic against 16 bits, by the peaks and what kernels reach of them; 0 without units."""
        return self.peak / self.plain * self.reached if self.peak else 0.0


@dataclass(frozen=True, repr=False)
class FastPaths(Report, Sequence[FastPath]):
    """The matmuls of a program, in the order in which they first run.

    From :func:`roofline.analysis.fast_paths`.
    """

    schema = "fast_paths"

    rows: tuple[FastPath, ...]
    about: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def subject(self) -> dict[str, Any]:
        """Return the program and the chip."""
        return dict(self.about)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def missing(self) -> tuple[FastPath, ...]:
        """Matmuls that the chip cannot be promised to run: no units and no documented fallback."""
        return tuple(row for row in self.rows if row.peak is None)

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per matmul."""
        names = [name for name in FastPath.__slots__ if name != "__weakref__"]
        return [{**{name: getattr(row, name) for name in names}, "speedup": row.speedup} for row in self.rows]

    def __repr__(self) -> str:
        faster = sum(row.count for row in self.rows if row.faster)
        return f"<FastPaths: {faster} of {sum(row.count for row in self.rows)} matmuls on faster units>"


def fast_paths(program: Program, chip: AnyChip, *, phase: str | None = None, dtype: str | None = None) -> FastPaths:
    """Say for each matmul in which format it is stored and multiplied, on which units, and whether that is faster.

    Args:
        program: A graph, a shipped name, or the path of a model file, workload, config or script; quantised or not.
        chip: A name or a chip.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.

    Returns:
        One row per distinct matmul.

    Raises:
        UnknownChip: No chip of that name.
        MissingFigure: The chip has no figure for matmuls in bf16, fp16 or fp32 either.

    Example:
        >>> import roofline as rl
        >>> from roofline.passes.formats.quantize import quantize
        >>> narrow = quantize(rl.model("llama-3-8b", phase="decode"), weights="int4-g128")
        >>> print(fast_paths(narrow, "h100-sxm")[0].why)
        weight-only: fewer bytes, the same bf16 arithmetic; helps where it is memory-bound
    """
    graph, where = as_graph(program, phase, dtype), find_chip(chip)
    apart = {node.outputs[0]: graph.tensors[node.inputs[0]].dtype for node in graph.nodes if node.op == "dequantize"}
    rows = tuple(_path(kernel, where, apart) for kernel in kernels(graph) if kernel.flops)
    return FastPaths(rows, subject(graph, where.name))


def _path(kernel: Kernel, chip: Chip, dequantised: Mapping[str, str]) -> FastPath:
    """The row of one kernel; ``dequantised`` are the tensors that come out of dequantisations and what they were."""
    multiplied = max(kernel.flops, key=lambda name: DTYPES[name].bits)
    second = kernel.main.inputs[1] if len(kernel.main.inputs) > 1 else ""
    stored = dequantised.get(second) or (kernel.stored[1] if second else multiplied)
    plain = chip.matmul_peak(_plain(chip))
    try:
        peak, unit = chip.matmul_peak(multiplied), chip.matmul_runs_as(multiplied)
    except MissingFigure:
        peak, unit = None, ""
    reached = _reached(kernel, chip, multiplied)
    faster = peak is not None and DTYPES[multiplied].bits < _NARROW and peak * reached > plain
    why = _why(kernel, chip, (stored, multiplied, unit), peak, plain, reached)
    if second in dequantised and kernel.stored[1] != stored:
        why = f"dequantised to {multiplied} by a separate kernel, whose result the matmul reads: slower than 16 bits"
    return FastPath(
        kernel.name, kernel.main.op, kernel.count, stored, multiplied, unit, peak, plain, reached, faster, why
    )


def _plain(chip: Chip) -> str:
    """Return the format that others are compared with: the first of a whole program's that the chip multiplies."""
    return next((name for name in WHOLE if rate(name, chip.matrix, chip.vector, chip.fallback)), WHOLE[0])


def _reached(kernel: Kernel, chip: Chip, multiplied: str) -> float:
    """Return what a GPU's kernels of a format reach of their peak against bf16 ones of theirs."""
    if OPS[kernel.main.op].kind != "matmul" or not machine(chip).is_gpu:
        return 1.0
    return float(values(chip, "matmul").get(f"share_{multiplied}", 1.0))


def _why(
    kernel: Kernel, chip: Chip, formats: tuple[str, str, str], peak: float | None, plain: float, reached: float
) -> str:
    stored, multiplied, unit = formats
    if peak is None:
        return f"{chip.name} has no units for {multiplied} and no documented fallback, so no time is given"
    if multiplied in chip.fallback:
        return f"{chip.name} runs {multiplied} as {unit}"
    narrow = DTYPES[stored].bits < _NARROW
    if DTYPES[multiplied].bits >= _NARROW:
        if not narrow:
            return f"{multiplied} as before"
        what = "keys and values" if kernel.kind == "attention" else "weight-only"
        return f"{what}: fewer bytes, the same {multiplied} arithmetic; helps where it is memory-bound"
    than = f"{peak / plain:.3g} times the {_plain(chip)} peak"
    if peak * reached > plain:
        return f"{unit} units: {than}, of which kernels reach {min(reached, 1.0):.0%}"
    return f"{unit} units have {than}, but kernels reach {reached:.0%} of it"
