"""How long one kernel takes on a chip, and how well that is known. The only place that turns counts into seconds.

Each class of kernel has a formula in a module of its own, with parameters that have a physical meaning, a prior and
fitted values in the chip's ``[efficiency.parameters]``. The same counts against the datasheet itself give the floor,
of these kernels, run one after the other, which no prediction goes under.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roofline.cost import (
    attention,
    channels,
    convolution,
    cpu,
    experts,
    gradients,
    matmul,
    network,
    onchip,
    parameters,
    plain,
    power,
    rowwise,
    silicon,
    stream,
)
from roofline.cost.lowering import EAGER, lowered, separate, word
from roofline.cost.machine import machine, vector_peak
from roofline.cost.parameters import Group, Parameter
from roofline.cost.spread import CERTAINTY, PROGRAM, half_width, kernel_classes, provenance, spread
from roofline.cost.spread import GROUP as SPREAD
from roofline.cost.work import REGIME, REGIMES, Launch, checked_regime, launch, sparse_weights, uses_tf32
from roofline.counting.counts import Kernel, KernelCount
from roofline.counting.grid import added
from roofline.hardware.chip import Chip
from roofline.ops.registry import OpKind

__all__ = [
    "BOUNDS",
    "CERTAINTY",
    "COMMUNICATION",
    "COMPUTE",
    "EAGER",
    "GROUPS",
    "HOST",
    "LAUNCH",
    "MEMORY",
    "REGIME",
    "REGIMES",
    "Group",
    "KernelTime",
    "Launch",
    "Parameter",
    "Part",
    "checked_regime",
    "compute_seconds",
    "formula",
    "half_width",
    "kernel_time",
    "launch",
    "not_modelled",
    "sparse_weights",
    "spread",
    "traffic_seconds",
    "uncertainty",
    "under_power_cap",
    "uses_tf32",
    "values",
    "vector_peak",
]  # fmt: skip

#: What a kernel or a run can be bound by, in the order of the codes in :attr:`KernelTime.bound`.
BOUNDS = ("compute", "memory", "communication", "launch", "host")
COMPUTE, MEMORY, COMMUNICATION, LAUNCH, HOST = range(len(BOUNDS))

#: Stands for no time, where there is something to divide by [s].
TINY = 1e-30
#: What the time model leaves out, said with every estimate.
NOT_MODELLED = ("other kernels running at the same time",)

Formula = Callable[[Launch, Mapping[str, float]], Any]

#: For each class of kernel: its parameters and its formula.
FORMULAS: dict[OpKind, tuple[Group, Formula]] = {
    "matmul": (matmul.GROUP, matmul.seconds),
    "conv": (convolution.GROUP, convolution.seconds),
    "attention": (attention.GROUP, attention.seconds),
    "rowwise": (rowwise.GROUP, rowwise.seconds),
    "reduction": (rowwise.GROUP, rowwise.seconds),
    "pointwise": (stream.GROUP, stream.seconds),
    "move": (stream.GROUP, stream.seconds),
    "moe": (experts.GROUP, experts.seconds),
    "network": (network.GROUP, network.seconds),
    "transfer": (network.TRANSFER, network.transfer_seconds),
}

#: All parameters of the time model, by the names of their groups in a chip's ``[efficiency.parameters]``.
GROUPS: dict[str, Group] = {
    each.name: each
    for each in (
        attention.GROUP, matmul.GROUP, network.GROUP, network.ACROSS, network.TRANSFER, stream.GROUP, rowwise.GROUP,
        convolution.GROUP, channels.GROUP, cpu.MATMUL, cpu.STREAM, experts.GROUP, gradients.GROUP, power.GROUP, SPREAD,
        PROGRAM,
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Seconds of one launch, numbers or arrays.

    Attributes:
        expected: The prediction [s].
        floor: Datasheet speed of light: peak arithmetic, peak bandwidth, no launch cost [s].
        compute: Arithmetic at its achievable rate [s].
        memory: Traffic at its achievable rate [s].
        bound: Index into :data:`BOUNDS` of what sets the pace.
        uncertainty: By class of kernels, its time [s] times the half-width of the range as a natural logarithm.
        calibrated: ``measured``, ``transferred`` or ``prior``.
        launches: Kernels that run.
        parts: They, where the runtime launches several, or another than the operator's own; at one point.
    """

    expected: Any
    floor: Any
    compute: Any
    memory: Any
    bound: Any
    uncertainty: Mapping[str, Any]
    calibrated: str
    launches: Any = 1
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True)
class Part:
    """A kernel that a runtime launches for an operator.

    Attributes:
        name: What it does.
        op: The operator that it is timed as.
        count: How often it runs for one operator.
        time: Of one launch.
    """

    name: str
    op: str
    count: int
    time: KernelTime


def values(chip: Chip, name: str, regime: str = "cold") -> Mapping[str, float]:
    """Return the parameters of the group of that name for a chip."""
    return parameters.values(chip, GROUPS[name], regime)


def formula(work: Launch) -> tuple[str, Formula]:
    """Return the parameter group and the formula of a launch.

    Attention parts that run alone are matmuls, two matmuls with a softmax between them are attention; on a CPU
    everything is a matmul or a stream. Chips that are no GPU have one formula (:mod:`roofline.cost.plain`).
    """
    group, seconds = _formula(work)
    return group.name, seconds


def _formula(work: Launch) -> tuple[Group, Formula]:
    if cpu.is_described(work.chip):
        return (cpu.MATMUL, cpu.matmul_seconds) if work.row.flops_by else (cpu.STREAM, cpu.stream_seconds)
    kind = work.row.kernel.kind
    if silicon.is_spread(work):
        return FORMULAS[kind][0], silicon.seconds
    if not work.machine.is_gpu and kind not in ("network", "transfer"):
        return FORMULAS[kind][0], plain.seconds
    if channels.kernel_of(work) is not None:
        return channels.GROUP, channels.seconds
    if gradients.kernel_of(work) is not None:
        return gradients.GROUP, gradients.seconds
    if kind == "network" and not network.measured(work):
        return network.ACROSS, network.seconds_unmeasured
    if kind == "attention" and sum(node.op != "dequantize" for node in work.row.kernel.nodes) == 1:
        kind = "matmul"
    if kind == "matmul" and attention.is_written_out(work.row.kernel):
        return attention.GROUP, attention.written_out_seconds
    return FORMULAS[kind]


def kernel_time(
    row: KernelCount, chip: Chip, tf32: bool | None = None, regime: str = "program", runtime: str = ""
) -> KernelTime:
    """Predict the time of one launch of a kernel, or of one call of an operator that a runtime launches several for.

    Args:
        row: Its counts.
        chip: Where it runs.
        tf32: Let fp32 contractions use the tf32 matrix units; by default as PyTorch does (:func:`uses_tf32`).
        regime: Where operands lie when it starts, one of :data:`REGIMES`.
        runtime: What launches it, of :data:`~roofline.cost.lowering.RUNTIMES`; empty where an operator is one kernel.

    Raises:
        MissingFigure: The chip has no rate for the format that a contraction runs in.
    """
    time = _alone(row, chip, tf32, regime)
    kinds = lowered(row.kernel, chip, runtime, regime == "program", uses_tf32(row, chip, tf32))
    for at, kernels in reversed(kinds):
        apart = _together([_part(kernel.at(row.symbols), chip, tf32, regime) for kernel in kernels], time)
        time = apart if at is None else _either(at(row.sizes), apart, time)
    return time


def _part(row: KernelCount, chip: Chip, tf32: bool | None, regime: str) -> Part:
    return Part(row.kernel.name, row.kernel.main.op, row.kernel.count, _alone(row, chip, tf32, regime, inside=True))


def _alone(row: KernelCount, chip: Chip, tf32: bool | None, regime: str, inside: bool = False) -> KernelTime:
    """Return the time of one kernel."""
    work = launch(row, chip, tf32, regime, inside)
    name, seconds = formula(work)
    at_peak, at_bandwidth = compute_seconds(row, chip, tf32), traffic_seconds(replace(work, row=row))
    tiled, small = at_bandwidth, onchip.limited(work, row, at_peak)
    if small is not None:  # what is still on the chip when a warm launch starts, the bound allows for; and when it ends
        left = np.minimum(row.write, work.machine.on_chip) if regime == "warm" else 0.0
        at_bandwidth = np.maximum(at_bandwidth, (small.least - left) / chip.bandwidth)
        tiled = np.maximum(at_bandwidth, (small.tiled - left) / chip.bandwidth)
    on_wire = network.wire_seconds(work)
    floor = np.maximum(at_peak, at_bandwidth)
    floor = np.maximum(floor, on_wire) if np.any(on_wire) else floor
    figures = values(chip, name, regime)
    share = chip.efficiency
    compute, memory = at_peak / share.compute, tiled / share.memory
    taken, inside, outside = (
        silicon.timed(work, figures) if seconds is silicon.seconds else (seconds(work, figures), compute, memory)
    )
    expected = np.maximum(taken, floor)
    expected = np.maximum(expected, np.where(small.tiled > 0, memory, 0.0)) if small is not None else expected
    if "share" in figures and "share" not in parameters.fitted(chip, GROUPS[name], regime):
        expected = np.maximum(expected, compute)  # no prior lets a kernel exceed what the best lone matmul reaches
    certain = provenance(chip, name, regime)
    if certain != "measured" and regime != "warm" and _is_plain_attention(row.kernel, work):
        expected = np.minimum(expected, _in_parts(row, chip, tf32, regime))
    bound = _bound(inside, outside, on_wire, figures.get("launch", 0.0))
    shares = kernel_classes(work, name, memory / np.maximum(expected, TINY))
    doubt = {kind: expected * spread(chip, kind, regime) * share for kind, share in shares.items()}
    return KernelTime(expected, floor, compute, memory, bound, doubt, certain)


def _is_plain_attention(kernel: Kernel, work: Launch) -> bool:
    """Tell whether a kernel is fused attention; in fp32, and with an added mask, it was measured to be slow."""
    masked = any(node.op == "add" for node in kernel.nodes)
    return word(kernel) == "sdpa" and not masked and not attention.is_fast_fp32(work)


def _in_parts(row: KernelCount, chip: Chip, tf32: bool | None, regime: str) -> Any:
    """Return the time of the nodes of a kernel as a kernel each [s].

    Together they move more and compute as much: figures of another chip, or priors, do not say that fused takes longer.
    """
    parts = (
        _part(each.at(row.symbols), chip, tf32, regime) for each in separate(row.kernel, chip, regime == "program")
    )
    return added(part.count * part.time.expected for part in parts)


def _bound(compute: Any, memory: Any, on_wire: Any, launching: float) -> Any:
    """Return what sets the pace, in codes of one byte: there is one for every point of a sweep."""
    bound, busy = np.where(compute > memory, np.int8(COMPUTE), np.int8(MEMORY)), np.maximum(compute, memory)
    if np.any(on_wire):
        bound, busy = np.where(on_wire > busy, np.int8(COMMUNICATION), bound), np.maximum(busy, on_wire)
    return np.where(busy < launching, np.int8(LAUNCH), bound) if np.any(busy < launching) else bound


def _together(parts: Sequence[Part], operator: KernelTime) -> KernelTime:
    """Return the time of an operator from those of its kernels: their sum, bound as the longest is."""
    if not parts:
        nothing = np.zeros(np.shape(operator.floor))
        return KernelTime(nothing, nothing, nothing, nothing, operator.bound, {}, operator.calibrated, launches=0)
    each = np.stack(np.broadcast_arrays(*(part.count * part.time.expected for part in parts)))
    bounds = np.stack(np.broadcast_arrays(each[0], *(part.time.bound for part in parts))[1:]).astype(int)
    return KernelTime(
        expected=np.maximum(each.sum(axis=0), operator.floor),
        floor=operator.floor,
        compute=sum(part.count * part.time.compute for part in parts),
        memory=sum(part.count * part.time.memory for part in parts),
        bound=np.take_along_axis(bounds, each.argmax(axis=0)[None], axis=0)[0],
        uncertainty=uncertainty((part.count, part.time) for part in parts),
        calibrated=min((part.time.calibrated for part in parts), key=CERTAINTY.index),
        launches=sum(part.count for part in parts),
        parts=tuple(parts),
    )


def _either(holds: Any, first: KernelTime, second: KernelTime) -> KernelTime:
    """Return the first time where the condition holds and the second elsewhere."""
    numbers = ("expected", "floor", "compute", "memory", "bound", "launches")
    merged = {name: np.where(holds, getattr(first, name), getattr(second, name)) for name in numbers}
    parts = (first.uncertainty, second.uncertainty)
    doubt = {name: np.where(holds, *(part.get(name, 0.0) for part in parts)) for name in {**parts[0], **parts[1]}}
    calibrated = min((first.calibrated, second.calibrated), key=CERTAINTY.index)
    return KernelTime(
        **merged, uncertainty=doubt, calibrated=calibrated, parts=first.parts if np.all(holds) else second.parts
    )


def uncertainty(times: Iterable[tuple[int, KernelTime]]) -> dict[str, Any]:
    """Return by how many seconds the classes of some kernels, each run so often, may be off together."""
    seconds: dict[str, list[Any]] = {}
    for count, time in times:
        for name, part in time.uncertainty.items():
            seconds.setdefault(name, []).append(count * part)
    return {name: added(parts) for name, parts in seconds.items()}


def under_power_cap(
    rows: Sequence[KernelCount], times: Sequence[KernelTime], chip: Chip, tf32: bool | None = None, idle: Any = 0.0
) -> tuple[KernelTime, ...]:
    """Return the times of a program's kernels, slowed where it keeps the matrix units busy (:mod:`.power`).

    Args:
        rows: Their counts.
        times: Their times, each by itself.
        chip: Where they run.
        tf32: As for :func:`kernel_time`.
        idle: Time that a run takes at least, since the host needs it [s].
    """
    alone = sum(row.kernel.count for row in rows) == 1
    if alone or cpu.is_described(chip) or not machine(chip).is_gpu:
        return tuple(times)
    figures = values(chip, "power", "program")
    peaks = [_matrix_seconds(row, chip, tf32) for row in rows] if figures["ratio"] else []
    if not any(np.any(peak) for peak in peaks):
        return tuple(times)
    counts, each = [row.kernel.count for row in rows], [time.expected for time in times]
    figures = {**figures, "ratio": figures["ratio"] * power.heated(counts, peaks)}
    factors = power.slowed(counts, each, peaks, figures, idle)
    return tuple(_stretched(*pair) for pair in zip(times, factors, strict=True))


def _stretched(time: KernelTime, factor: Any) -> KernelTime:
    """Return a time, with those of its parts, multiplied by a factor."""
    if not np.ndim(factor) and factor == 1.0:
        return time
    parts = tuple(replace(part, time=_stretched(part.time, factor)) for part in time.parts)
    doubt = {name: factor * part for name, part in time.uncertainty.items()}
    return replace(time, expected=time.expected * factor, uncertainty=doubt, parts=parts)


def _matrix_seconds(row: KernelCount, chip: Chip, tf32: bool | None) -> Any:
    """Time of the arithmetic on matrix units at their peak [s]."""
    if not row.flops_by or not launch(row, chip, tf32, "program").on_matrix:
        return 0.0
    fast = uses_tf32(row, chip, tf32)
    return sum(flops / chip.matmul_peak(dtype, tf32=fast) for dtype, flops in row.flops_by.items())


def traffic_seconds(work: Launch) -> Any:
    """Time of the traffic at the datasheet's rates; in a warm cache only what exceeds it comes from memory [s]."""
    total, chip = work.row.bytes, work.machine
    if work.regime != "warm":
        return total / chip.bandwidth
    near = np.minimum(total, chip.cache)
    return (total - near) / chip.bandwidth + near / chip.cache_roof if chip.cache else np.zeros(np.shape(total))


def compute_seconds(row: KernelCount, chip: Chip, tf32: bool | None = None) -> Any:
    """Time of the arithmetic at peak: matrix and vector units work side by side [s]."""
    tf32 = uses_tf32(row, chip, tf32)

    def peak_of(dtype: str) -> float:
        sparse = chip.sparse_peak(dtype, tf32) if sparse_weights(row) is not None else None
        return sparse or chip.matmul_peak(dtype, tf32=tf32)

    matrix = sum(flops / peak_of(dtype) for dtype, flops in row.flops_by.items())
    vector = sum(flops / peak for dtype, flops in row.vector_by.items() if (peak := vector_peak(chip, dtype)))
    return np.maximum(matrix, vector)


def not_modelled(chip: Chip) -> tuple[str, ...]:
    """Return what a prediction for this chip leaves out."""
    silent = vector_peak(chip, "fp32") is None
    extra = (f"elementwise arithmetic (no vector peak published for {chip.name})",) if silent else ()
    return NOT_MODELLED + extra
