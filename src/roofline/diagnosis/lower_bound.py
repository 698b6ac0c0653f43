"""The least time of any run of a program: what makes a measured time impossible."""

from __future__ import annotations

from roofline.analysis.estimates import Estimate
from roofline.cost import sparse_weights
from roofline.counting.counts import KernelCount, kernel_boundaries, nbytes
from roofline.hardware.chip import Chip
from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import MissingFigure
from roofline.ir.sizes import evaluate
from roofline.ops.registry import OPS, node_work


def speed_limit(expected: Estimate) -> float:
    """The least time of any run of the program [s].

    The larger of two sums, with the chip's own slack for clocks above the listed boost. Of its kernels one after the
    other: each takes its contractions at the datasheet peak, its traffic through the last-level cache, or what that
    cache can neither hold before nor keep after, from main memory, and never less than :data:`LAUNCH_LIMIT`. Of the
    program as a whole: all contractions, and what must come from main memory. A compiler may fuse further than the
    graph says, so in mode ``compiled`` only the whole counts.
    """
    chip = expected.chip
    kept = max((level.capacity or 0.0 for level in chip.memory[1:]), default=0.0)
    compute = [row.kernel.count * _least_compute(row, expected) for row in expected.rows]
    moved = max(_compulsory_bytes(expected) - kept, 0.0)
    whole = max(sum(compute), moved / chip.bandwidth)
    if expected.mode == "compiled":
        return float(whole / chip.clock_slack)
    each = sum(
        row.kernel.count * max(least / row.kernel.count, _least_traffic(row, chip, kept), LAUNCH_LIMIT)
        for row, least in zip(expected.rows, compute, strict=True)
    )
    return float(max(whole, each) / chip.clock_slack)


#: No kernel ends sooner after the one before it; the smallest ones measured take 1.1 us (h100-sxm/ops.csv).
LAUNCH_LIMIT = 0.5e-6


def _least_traffic(row: KernelCount, chip: Chip, kept: float) -> float:
    """Time of what must cross the cache, and of what it cannot keep, in one launch [s]; 0 where no cache is known."""
    level = chip.cache
    if level is None:
        return 0.0
    near = float(row.bytes) / level.bandwidth if level.bandwidth else 0.0
    return max(near, max(float(row.bytes) - 2 * kept, 0.0) / chip.bandwidth)


#: Multiplications of a 3x3 convolution that Winograd's F(4x4, 3x3) leaves (Lavin and Gray 2015): 36 for 144.
WINOGRAD = 1 / 4


def _least_compute(row: KernelCount, expected: Estimate) -> float:
    """Contractions of one launch by the fastest known algorithm, in the fastest format that its operands allow [s]."""
    if not row.flops_by:
        return 0.0
    rates = [expected.chip.matmul_peak(dtype, tf32=expected.tf32) for dtype in row.flops_by]
    stored = {DTYPES[tensor].compute for tensor in _operand_formats(row, expected)}
    for dtype in stored - {None}:
        try:
            rates.append(expected.chip.matmul_peak(str(dtype), tf32=expected.tf32))
        except MissingFigure:
            continue
    if sparse_weights(row) is not None:
        rates += [expected.chip.sparse_peak(dtype, tf32=expected.tf32) or 0.0 for dtype in row.flops_by]
    return float(row.flops) * _least_share(row) / max(rates)


def _operand_formats(row: KernelCount, expected: Estimate) -> set[str]:
    return {expected.graph.tensors[name].dtype for name in row.kernel.main.inputs}


def _least_share(row: KernelCount) -> float:
    """Share of the direct algorithm's contractions that the fastest known algorithm needs."""
    kernel = row.kernel
    options = {"stride": 1, "dilation": 1, **dict(kernel.main.attrs)}
    winograd = (
        kernel.main.op == "conv2d"
        and tuple(kernel.shapes[1][2:]) == (3, 3)
        and options["stride"] in (1, (1, 1))
        and options["dilation"] in (1, (1, 1))
    )
    return WINOGRAD if winograd else 1.0


def _compulsory_bytes(expected: Estimate) -> float:
    """Bytes of the program's sources that some node reads, each once: of a table only the rows asked for."""
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
