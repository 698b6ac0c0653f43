"""How a training step runs on many devices: pipeline schedules, data parallelism and ZeRO, from numbers to numbers.

Nothing here knows a graph or a chip: times of stages and of collectives come in, the time of a step and the memory of a
device go out. Numbers may be arrays that broadcast.

A pipeline of ``p`` stages takes ``m`` micro-batches a step, in one of three schedules (Narayanan et al. 2021,
https://arxiv.org/abs/2104.04473, section 2.2): ``gpipe``, all forwards before all backwards; ``1f1b``, one forward and
one backward in turn, which holds at most ``p`` micro-batches; and ``interleaved``, each device holding ``v`` chunks of
layers instead of one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from roofline.counting.grid import plain
from roofline.ir.errors import UsageError, did_you_mean

Schedule = Literal["1f1b", "gpipe", "interleaved"]
SCHEDULES: tuple[str, ...] = get_args(Schedule)

#: Seconds of a collective of so many bytes.
Timer = Callable[[float], Any]

#: Gradients that PyTorch's DistributedDataParallel reduces at a time (``bucket_cap_mb``) [byte].
BUCKET = 25 * 2**20


def megatron_bucket(copies: int) -> float:
    """Parameters that Megatron-core reduces at a time: more among more copies, so that latency does not set the pace.

    ``bucket_size`` in NVIDIA/Megatron-LM, megatron/core/distributed/distributed_data_parallel_config.py.

    Example:
        >>> megatron_bucket(8), megatron_bucket(128)
        (40000000.0, 128000000.0)
    """
    return max(40e6, 1e6 * copies)


# --- pipeline --------------------------------------------------------------------------------------------------------


def bubble(stages: Any, micro_batches: Any, interleave: Any = 1) -> Any:
    """Idle time of a pipeline over its ideal time: ``(p - 1) / (v m)`` (Narayanan et al. 2021, section 2.2).

    Args:
        stages: Devices in the pipeline, ``p``.
        micro_batches: Micro-batches of a step, ``m``.
        interleave: Chunks of layers on each device, ``v``.

    Example:
        >>> bubble(8, 64), bubble(8, 64, interleave=2)
        (0.109375, 0.0546875)
    """
    return (stages - 1) / (interleave * micro_batches)


def in_flight(stage: int, stages: int, micro_batches: int, schedule: str = "1f1b", interleave: int = 1) -> float:
    """Micro-batches whose activations a stage holds at its peak, each counted as one pass through all its layers.

    ``m`` in GPipe; ``min(m, p - i)`` in 1F1B; interleaved ``(2 (p - i - 1) + (v - 1) p + 1) / v``, which is
    ``p (1 + (p - 1) / (p v))`` at the first stage (Korthikanti et al. 2022, https://arxiv.org/abs/2205.05198, section
    4.2.3).

    Args:
        stage: Counted from 0.
        stages: Devices in the pipeline, ``p``.
        micro_batches: Micro-batches of a step, ``m``.
        schedule: One of :data:`SCHEDULES`.
        interleave: Chunks of layers on each device, ``v``.

    Raises:
        UsageError: Sizes that no schedule has.

    Example:
        >>> [in_flight(i, 4, 8) for i in range(4)], in_flight(0, 4, 8, "gpipe")
        ([4.0, 3.0, 2.0, 1.0], 8.0)
        >>> in_flight(0, 4, 8, "interleaved", interleave=2) == 4 * (1 + 3 / (4 * 2))
        True
    """
    check_pipeline(stages, micro_batches, schedule, interleave)
    if not 0 <= stage < stages:
        raise UsageError(f"pipeline: stage {stage}; allowed: 0 to {stages - 1}")
    held = {
        "gpipe": float(micro_batches),
        "1f1b": float(stages - stage),
        "interleaved": (2 * (stages - stage - 1) + (interleave - 1) * stages + 1) / interleave,
    }[schedule]
    return min(float(micro_batches), held)


def check_pipeline(stages: int, micro_batches: int, schedule: str, interleave: int = 1) -> None:
    """Refuse a pipeline that cannot run.

    Raises:
        UsageError: Unknown schedule, or sizes that it does not take, with the nearest that it does.

    Example:
        >>> check_pipeline(4, 8, "1f1b", 2)
        Traceback (most recent call last):
        roofline.ir.errors.UsageError: pipeline: 2 chunks a device in 1f1b; allowed: 1, or schedule interleaved
    """
    if schedule not in SCHEDULES:
        near = did_you_mean(str(schedule), SCHEDULES)
        raise UsageError(f"pipeline: unknown schedule {schedule!r}; allowed: {', '.join(SCHEDULES)}{near}")
    for what, size in (("stages", stages), ("micro-batches", micro_batches), ("chunks a device", interleave)):
        if size < 1:
            raise UsageError(f"pipeline: {size} {what}; allowed: 1 or more")
    if schedule != "interleaved":
        if interleave != 1:
            raise UsageError(
                f"pipeline: {interleave} chunks a device in {schedule}; allowed: 1, or schedule interleaved"
            )
    elif micro_batches % stages:
        low = micro_batches // stages * stages
        near = f"{low} or {low + stages}" if low else str(stages)
        raise UsageError(
            f"pipeline: {micro_batches} micro-batches interleaved over {stages} stages; "
            f"allowed: multiples of {stages}; nearest {near}"
        )


@dataclass(frozen=True)
class Pipeline:
    """A step of a pipeline.

    Attributes:
        seconds: From the first forward to the last backward [s].
        ideal: The work of the slowest stage alone [s].
        idle: What filling and draining adds [s].
        sending: Sends that no computation hides [s].
        in_flight: Micro-batches whose activations each stage holds at its peak.
    """

    seconds: Any
    ideal: Any
    idle: Any
    sending: Any
    in_flight: tuple[float, ...]

    @property
    def bubble(self) -> Any:
        """Idle over ideal time."""
        return self.idle / self.ideal


def pipeline(
    forward: Any,
    backward: Any,
    stages: int,
    micro_batches: int,
    *,
    send: Any = 0.0,
    schedule: str = "1f1b",
    interleave: int = 1,
    blocking: bool = False,
) -> Pipeline:
    """Time of one step of a pipeline whose stages take equally long: ``(m + (p - 1) / v) (f + b)`` and its sends.

    The first micro-batch is back at the first stage after ``p (f + b)`` and ``2 (v p - 1)`` sends, which are waited for
    once, while the pipeline fills and drains. Later ones take that long too; with as many in flight as the schedule
    holds, they wait for what it exceeds the work of all of these. Blocking sends hold up every micro-batch instead,
    once a chunk and direction.

    Args:
        forward: Of one micro-batch through all layers of the slowest stage [s].
        backward: The same backward, 0 for inference [s].
        stages: Devices in the pipeline, ``p``.
        micro_batches: Micro-batches of a step, ``m``.
        send: Of one micro-batch's activations to the next stage [s].
        schedule: One of :data:`SCHEDULES`.
        interleave: Chunks of layers on each device, ``v``.
        blocking: The device computes nothing while it sends or receives.

    Raises:
        UsageError: Sizes that no schedule has.

    Example:
        >>> step = pipeline(1.0, 2.0, stages=4, micro_batches=12)
        >>> step.seconds, step.bubble, step.in_flight
        (45.0, 0.25, (4.0, 3.0, 2.0, 1.0))
    """
    check_pipeline(stages, micro_batches, schedule, interleave)
    ideal = micro_batches * (forward + backward)
    idle = bubble(stages, micro_batches, interleave) * ideal
    held = tuple(in_flight(stage, stages, micro_batches, schedule, interleave) for stage in range(stages))
    ways = 1 + np.greater(backward, 0).astype(int)
    sending = ways * (interleave * stages - 1) * (stages > 1) * send
    if blocking and stages > 1:
        sending = sending + ways * (micro_batches - 1) * interleave * send
    elif stages > 1:
        sending = sending + (micro_batches - 1) * _wait(forward, backward, stages, send, schedule, interleave)
    return Pipeline(plain(ideal + idle + sending), plain(ideal), plain(idle), plain(sending), held)


def _wait(forward: Any, backward: Any, stages: int, send: Any, schedule: str, interleave: int) -> Any:
    """Time that a micro-batch waits on its way to the last stage and back, beyond the others' work in flight [s]."""
    if schedule == "gpipe":
        return 0.0 * send
    both = forward + backward
    loop = stages * both + 2 * (interleave * stages - 1) * send
    most = stages + (stages - 1) / interleave * (schedule == "interleaved")
    return np.where(np.greater(backward, 0), np.maximum(loop / most - both, 0.0), 0.0)


# --- data parallelism ------------------------------------------------------------------------------------------------


#: The stage of ZeRO from which devices divide a part of the memory (Rajbhandari et al. 2020, section 5).
_DIVIDED_FROM = {"weights": 3, "gradients": 2, "optimizer": 1}


def divided_among(part: str, dp: Any, stage: int) -> Any:
    """Devices among which ZeRO divides ``weights``, ``gradients`` or ``optimizer`` states.

    Example:
        >>> [divided_among(part, 8, stage=2) for part in ("weights", "gradients", "optimizer")]
        [1, 8, 8]
    """
    return dp if stage >= _DIVIDED_FROM[part] else 1


@dataclass(frozen=True)
class ZeroMemory:
    """Memory of a device by part [byte]."""

    weights: Any
    gradients: Any
    optimizer: Any

    @property
    def total(self) -> Any:
        """All of them [byte]."""
        return self.weights + self.gradients + self.optimizer


def zero_memory(
    parameters: Any, dp: Any, stage: int = 0, *, weights: float = 2, gradients: float = 2, optimizer: float = 12
) -> ZeroMemory:
    """Memory of weights, gradients and optimizer states on each of ``dp`` devices (Rajbhandari et al. 2020).

    Stage 1 divides the optimizer states among the devices, stage 2 the gradients too, stage 3 the weights too
    (https://arxiv.org/abs/1910.02054, figure 1).

    Args:
        parameters: Of the model, or of a device's part of it.
        dp: Devices of the data-parallel group.
        stage: 0 to 3.
        weights: Bytes a parameter of the weights that compute.
        gradients: Bytes a parameter of the gradients.
        optimizer: Bytes a parameter of the optimizer states, the master copy among them: 12 for Adam in mixed
            precision.

    Raises:
        UsageError: No such stage.

    Example:
        >>> [round(zero_memory(7.5e9, 64, stage).total / 1e9, 1) for stage in range(4)]
        [120.0, 31.4, 16.6, 1.9]
    """
    _check_stage(stage)
    each = {"weights": weights, "gradients": gradients, "optimizer": optimizer}
    return ZeroMemory(**{part: parameters * size / divided_among(part, dp, stage) for part, size in each.items()})


def _check_stage(stage: int) -> None:
    if stage not in (0, 1, 2, 3):
        near = min(3, max(0, stage)) if isinstance(stage, int) else 0
        raise UsageError(f"ZeRO stage {stage!r}; allowed: 0, 1, 2, 3; the nearest is {near}")


@dataclass(frozen=True)
class DataParallel:
    """Communication of one step of a data-parallel group.

    Attributes:
        seconds: All collectives, one after the other [s].
        exposed: What no computation hides, which the step takes longer [s].
        buckets: Collectives that the gradients take.
    """

    seconds: Any
    exposed: Any
    buckets: int


def data_parallel(
    weight_bytes: float,
    gradient_bytes: float,
    stage: int = 0,
    *,
    forward: Any,
    backward: Any,
    all_reduce: Timer,
    reduce_scatter: Timer,
    all_gather: Timer,
    layers: int = 1,
    micro_batches: int = 1,
    bucket: float = BUCKET,
    overlap: bool = True,
) -> DataParallel:
    """Communication of one step, and how much of it the step waits for.

    Gradients go in buckets that fill evenly while the backward runs, so that the last one always waits for its
    collective: ``exposed = max(t, k t - backward (k - 1) / k)`` for ``k`` buckets of ``t``. Stages 1 and 2 gather the
    new weights beside the next forward likewise. Stage 3 gathers each layer's weights while the layer before computes
    and keeps the last one's for the backward. What shares a device with a collective is taken to run no slower.

    Args:
        weight_bytes: Of the weights that compute, on a device before any ZeRO [byte].
        gradient_bytes: Of the gradients, likewise [byte].
        stage: Of ZeRO; 0 reduces all gradients everywhere.
        forward: Of one micro-batch [s].
        backward: Of one micro-batch [s].
        all_reduce: Seconds of an all-reduce of so many bytes.
        reduce_scatter: Of one that is given so many bytes; ``analysis.collectives.timers`` makes all three.
        all_gather: Of one that returns so many bytes.
        layers: Units that stage 3 gathers one by one.
        micro_batches: Whose gradients are added up before an optimizer step. Stages 0 and 1 reduce once, after the
            last; 2 and 3 with each one, and 3 also gathers with each one.
        bucket: Gradients that are reduced at a time [byte].
        overlap: Collectives run beside the computation.

    Raises:
        UsageError: No such stage.

    Example:
        >>> def ring(size): return size / 1e9
        >>> step = data_parallel(4e9, 4e9, forward=2.0, backward=4.0, bucket=1e9,
        ...                      all_reduce=ring, reduce_scatter=ring, all_gather=ring)
        >>> step.seconds, step.exposed, step.buckets
        (4.0, 1.0, 4)
    """
    _check_stage(stage)
    if stage == 3:
        return _fully_sharded(
            weight_bytes, gradient_bytes, forward, backward, reduce_scatter, all_gather, layers, micro_batches, overlap
        )
    count = max(1, int(np.ceil(gradient_bytes / bucket)))
    each = (all_reduce if stage == 0 else reduce_scatter)(gradient_bytes / count)
    times = micro_batches if stage == 2 else 1
    seconds, exposed = times * count * each, times * _exposed(count, each, backward, overlap)
    if stage > 0:
        gather = all_gather(weight_bytes / count)
        seconds, exposed = seconds + count * gather, exposed + _exposed(count, gather, forward, overlap)
    return DataParallel(plain(seconds), plain(exposed), count)


def _exposed(count: int, each: Any, window: Any, overlap: bool) -> Any:
    """Waiting for ``count`` collectives in a row that become ready evenly while a window of computation lasts [s]."""
    if not overlap:
        return count * each
    return np.maximum(each, count * each - window * (count - 1) / count)


def _fully_sharded(
    weight_bytes: float, gradient_bytes: float, forward: Any, backward: Any, reduce_scatter: Timer, all_gather: Timer,
    layers: int, micro_batches: int, overlap: bool,
) -> DataParallel:  # fmt: skip
    """Stage 3: each layer's weights come just before they are needed, forward and backward."""
    gather, scatter = all_gather(weight_bytes / layers), reduce_scatter(gradient_bytes / layers)
    seconds = micro_batches * ((2 * layers - 1) * gather + layers * scatter)
    if not overlap:
        return DataParallel(plain(seconds), plain(seconds), layers)
    ahead = gather + (layers - 1) * np.maximum(gather - forward / layers, 0.0)
    behind = (layers - 1) * np.maximum(gather + scatter - backward / layers, 0.0) + scatter
    return DataParallel(plain(seconds), plain(micro_batches * (ahead + behind)), layers)
