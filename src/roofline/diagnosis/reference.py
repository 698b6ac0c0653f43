"""The program that a measured time is compared with, the least that any run of it takes, and in which formats.

A list of operators says what is computed and not by which kernels, so its chains may run as one. A model or a captured
program has its own kernels. Either way row lengths are taken as aligned, fp32 contractions as tf32 where the chip has
it, fp64 as fp32, and gathers as if they read neighbours: what a program loses by being otherwise is a cause.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from roofline.analysis.estimates import Estimate, estimate
from roofline.cost import REGIME, sparse_weights, uses_tf32
from roofline.cost.cpu import is_cpu
from roofline.cost.machine import machine
from roofline.cost.onchip import least_of_matmul
from roofline.counting.counts import KernelCount, kernel_boundaries, nbytes
from roofline.hardware.chip import Chip
from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import MissingFigure, RooflineError
from roofline.ir.graph import Graph
from roofline.ir.sizes import evaluate
from roofline.ir.units import format_si
from roofline.ops.registry import OPS, node_work
from roofline.passes.formats.cast import cast
from roofline.passes.fusion.fuse import fuse
from roofline.passes.rewriting.options import pad_matmuls
from roofline.programs.workload import is_listed

#: Operators that read single elements or rows from anywhere.
SCATTERED = frozenset({"gather", "embedding", "gather_rows", "scatter_add"})
#: Least time of a launch that moves next to nothing [s].
LAUNCH_COST = 3e-6


@dataclass(frozen=True)
class Reference:
    """A program, where it ran and how, with the estimates that a diagnosis needs.

    Attributes:
        graph: The program as it was given.
        chip: Where it ran.
        mode: How it ran.
        tf32: Whether fp32 contractions were said to use tf32; ``None`` as PyTorch runs them.
        sizes: Values of its symbols.
        regime: Where operands lie when a kernel starts.
    """

    graph: Graph
    chip: Chip
    mode: str
    tf32: bool | None
    sizes: Mapping[str, Any]
    regime: str = REGIME

    def estimate(self, graph: Graph | None = None, **changes: Any) -> Estimate:
        """Return an estimate with something changed."""
        options = {"mode": self.mode, "tf32": self.tf32, "regime": self.regime, **self.sizes, **changes}
        return estimate(self.plain if graph is None else graph, self.chip, **options)

    @property
    def captured(self) -> bool:
        """True if the graph is of the program that ran (PyTorch, JAX, ONNX), not of one that should have."""
        info = self.graph.info
        return info.method is not None or info.source == "jax" or bool(info.opset)

    @cached_property
    def plain(self) -> Graph:
        """The kernels that it should have: the given ones, or chains of listed operators as one."""
        kernels = pad_matmuls(fuse(self.graph) if is_listed(self.graph) else self.graph, every=True)
        return replace(kernels, history=self.graph.history)  # what the reference does was not done to the program

    @cached_property
    def expected(self) -> Estimate:
        """The estimate of the run."""
        return self.estimate()

    @property
    def contracts_in(self) -> frozenset[str]:
        """Formats that its contractions run in."""
        return frozenset(dtype for row in self.expected.rows for dtype in row.flops_by)

    @property
    def has_tf32(self) -> bool:
        """True if tf32 is there and faster than fp32."""
        return faster(self.chip, "tf32", "fp32")

    @cached_property
    def ideal(self) -> Estimate:
        """The same work on the device alone, in the format that the chip is made for."""
        wide = any(tensor.dtype == "fp64" for tensor in self.plain.tensors.values())
        graph = cast(self.plain, "fp32") if wide else self.plain
        return self.estimate(graph, mode="graph", tf32=True if self.has_tf32 else self.tf32)

    def shapes(self, row: KernelCount) -> list[tuple[int, ...]]:
        """Return the shapes of a kernel's operands, in numbers."""
        values = self.ideal.grid.sizes
        return [tuple(int(evaluate(size, values)) for size in shape) for shape in row.kernel.shapes]

    @cached_property
    def attainable(self) -> float:
        """Time of good kernels on the device [s]."""
        return float(self.ideal.device_time) - self.scattered

    @cached_property
    def in_own_format(self) -> float:
        """Time of good kernels in the program's own format, without tf32 that it does not use [s]."""
        return float(self.estimate(mode="graph").device_time) - self.scattered

    @property
    def attainable_high(self) -> float:
        """Upper end of the time of good kernels [s]."""
        return self.attainable * float(self.ideal.high) / float(self.ideal.device_time)

    @cached_property
    def floor(self) -> float:
        """Speed of light of those kernels [s]."""
        return min(float(self.ideal.floor), self.attainable)

    @cached_property
    def scattered(self) -> float:
        """Time of gathers beyond reading the same bytes in order [s]."""
        return sum(
            row.kernel.count * max(float(time.expected) - float(time.memory) - LAUNCH_COST, 0.0)
            for row, time in zip(self.ideal.rows, self.ideal.times[0], strict=True)
            if row.kernel.main.op in SCATTERED
        )

    @property
    def at_peak(self) -> float:
        """Time of the contractions at the peak of their format [s]."""
        return float(self.expected.mfu * self.expected.time)


@dataclass(frozen=True)
class AsGiven(Reference):
    """A program as it was given: no kernel is taken for a better one."""

    @cached_property
    def plain(self) -> Graph:
        return self.graph


def replays(chip: Chip) -> bool:
    """Tell whether a chip runs launches that a CUDA or HIP graph has recorded: GPUs of vendors that have them.

    A chip of nobody's in particular counts as one. Others compile whole programs, or replay in ways of their own.
    """
    return not is_cpu(chip) and chip.vendor in ("NVIDIA", "AMD", "")


def has_units(chip: Chip, form: str) -> bool:
    """Tell whether a chip multiplies a format as it is; one with a scale a block only where it has fp4 units."""
    unit = "fp4" if DTYPES[form].group else str(DTYPES[form].compute)
    return unit in chip.matrix and unit not in chip.fallback


def faster(chip: Chip, dtype: str, than: str) -> bool:
    """Tell whether a chip multiplies faster in one format than in another.

    Example:
        >>> import roofline as rl
        >>> faster(rl.chip("h100-sxm"), "tf32", "fp32"), faster(rl.chip("v100-sxm-16gb"), "bf16", "fp32")
        (True, False)
    """
    try:
        return chip.matmul_peak(dtype, tf32=dtype == "tf32") > chip.matmul_peak(than, tf32=False)
    except MissingFigure:
        return False


# --- the lower bound --------------------------------------------------------------------------------------------------

#: No kernel ends sooner after the one before it; the smallest ones measured take 1.1 us (h100-sxm/ops.csv).
LAUNCH_LIMIT = 0.5e-6
#: Multiplications of a 3x3 convolution that Winograd's F(4x4, 3x3) leaves (Lavin and Gray 2015): 36 for 144.
WINOGRAD = 1 / 4


def lower_bound(expected: Estimate) -> float:
    """Return the least time of any run of a program [s]; a shorter measured time is impossible.

    The larger of two sums, with the chip's own slack for clocks above the listed boost. Of its kernels one after the
    other: each takes its contractions at the datasheet peak, its traffic through the last-level cache, or what that
    cache can neither hold before nor keep after, from main memory, and never less than :data:`LAUNCH_LIMIT`. Of the
    program as a whole: all contractions, and what must come from main memory. What a matmul must read again, since the
    chip cannot hold its operands, counts in both. A compiler may fuse further than the
    graph says, so in mode ``compiled`` only the whole counts.

    Args:
        expected: The estimate of the program.
    """
    chip = expected.chip
    cached = max((level.capacity or 0.0 for level in chip.memory[1:]), default=0.0)
    compute = [row.kernel.count * _least_compute(row, expected) for row in expected.rows]
    room = machine(chip).on_chip
    moved = max(compulsory_bytes(expected) - cached, sum(_from_sources(row, room) for row in expected.rows), 0.0)
    whole = max(sum(compute), moved / chip.bandwidth)
    if expected.mode == "compiled":
        return float(whole / chip.clock_slack)
    each = sum(
        row.kernel.count * max(least / row.kernel.count, _least_traffic(row, chip, cached), LAUNCH_LIMIT)
        for row, least in zip(expected.rows, compute, strict=True)
    )
    return float(max(whole, each) / chip.clock_slack)


def _least_traffic(row: KernelCount, chip: Chip, cached: float) -> float:
    """Return the time of what must cross the cache, and of what the chip cannot hold, in a launch [s].

    A matmul reads its operands again where they do not fit (:mod:`roofline.tiling.bounds`).
    """
    level, room = chip.cache, machine(chip).on_chip
    moving = (float(least_of_matmul(row, room)) - min(float(row.write), room)) / chip.bandwidth
    if level is None:
        return moving
    near = float(row.bytes) / level.bandwidth if level.bandwidth else 0.0
    return max(near, moving, max(float(row.bytes) - 2 * cached, 0.0) / chip.bandwidth)


def _from_sources(row: KernelCount, room: float) -> float:
    """Return what the launches of a matmul read of operands that no kernel of the program writes, however fused."""
    first = {tensor.name for tensor in row.kernel.inputs[:2]}
    if any(tensor.kind == "activation" for tensor in row.kernel.operands if tensor.name in first):
        return 0.0
    return row.kernel.count * max(float(least_of_matmul(row, room)) - float(row.write), 0.0)


def _least_compute(row: KernelCount, expected: Estimate) -> float:
    """Return the time of a launch's contractions by the fastest algorithm and format that its operands allow [s]."""
    if not row.flops_by:
        return 0.0
    kernel, chip, tf32 = row.kernel, expected.chip, uses_tf32(row, expected.chip, expected.tf32)
    rates = [chip.matmul_peak(dtype, tf32=tf32) for dtype in row.flops_by]
    stored = {DTYPES[expected.graph.tensors[name].dtype].compute for name in kernel.main.inputs}
    for dtype in stored - {None}:
        try:
            rates.append(chip.matmul_peak(str(dtype), tf32=tf32))
        except MissingFigure:
            continue
    if sparse_weights(row) is not None:
        rates += [chip.sparse_peak(dtype, tf32=tf32) or 0.0 for dtype in row.flops_by]
    options = {"stride": 1, "dilation": 1, **dict(kernel.main.attrs)}
    dense = all(options[key] in (1, (1, 1)) for key in ("stride", "dilation"))
    winograd = kernel.main.op == "conv2d" and tuple(kernel.shapes[1][2:]) == (3, 3) and dense
    return float(row.flops) * (WINOGRAD if winograd else 1.0) / max(rates)


def compulsory_bytes(expected: Estimate) -> float:
    """Return the bytes of the program's sources that some node reads, each once: of a table the rows asked for."""
    scope, sizes = kernel_boundaries(expected.graph), expected.grid.sizes
    most: dict[str, float] = {}
    for node in expected.graph.nodes:
        if OPS[node.op].kind == "view":
            continue
        reads = node_work(node, scope.shapes(node)).reads
        for position, name in enumerate(node.inputs):
            source = scope.tensors[scope.root(name)]
            if source.kind != "activation":
                elements = evaluate(reads.get(position, scope.tensors[name].numel), sizes)
                most[source.name] = max(most.get(source.name, 0.0), float(elements))
    whole = {name: float(evaluate(scope.tensors[name].numel, sizes)) for name in most}
    return float(sum(nbytes(scope.tensors[name], min(read, whole[name])) for name, read in most.items()))


# --- number formats in which a time is possible -----------------------------------------------------------------------

#: Formats that arithmetic is narrowed to without a change of the program's code, the mildest first.
NARROWER = ("tf32", "bf16", "fp16", "fp8")


def possible_formats(reference: Reference, seconds: float) -> dict[str, float]:
    """Return the formats that the chip has units for in which a time is possible, the mildest first.

    Args:
        reference: The program and where it ran.
        seconds: The measured time [s].

    Returns:
        The time of its contractions at the peak of each [s].

    Example:
        >>> import roofline as rl
        >>> gemm = rl.workload([{"op": "gemm", "m": 8192, "n": 8192, "k": 8192}], dtype="fp32")
        >>> list(possible_formats(Reference(gemm, rl.chip("a100-80gb-sxm"), "graph", False, {}), 5e-3))
        ['bf16', 'fp16']
    """
    chip, formats = reference.chip, {}
    for dtype in NARROWER:
        # A fallback runs as another format: the chip has no units of its own for it.
        units = dtype not in chip.fallback and (dtype in chip.matrix or dtype in chip.vector)
        if dtype in reference.contracts_in or not units:
            continue
        try:
            change = {"tf32": True} if dtype == "tf32" else {"graph": cast(reference.graph, dtype), "tf32": False}
            other = replace(reference, **change)
            possible = other.at_peak < reference.at_peak and lower_bound(other.expected) <= seconds
        except RooflineError:
            continue  # an operator that the chip cannot run in this format
        if possible:
            formats[dtype] = other.at_peak
    return formats


def possible_in(reference: Reference, seconds: float) -> str:
    """Name the formats in which a time is possible, in a clause; empty where there is none.

    Example:
        >>> import roofline as rl
        >>> gemm = rl.workload([{"op": "gemm", "m": 8192, "n": 8192, "k": 8192}], dtype="fp32")
        >>> possible_in(Reference(gemm, rl.chip("t4"), "graph", False, {}), 0.05)
        'possible in fp16 (at least 16.9 ms at its peak)'
    """
    peaks = possible_formats(reference, seconds).items()
    options = " or ".join(f"{dtype} (at least {format_si(peak, 's')} at its peak)" for dtype, peak in peaks)
    return f"possible in {options}" if options else ""
