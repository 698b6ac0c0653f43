"""Norms over the channels of images, kernel by kernel, as PyTorch runs them: statistics, their use, their backward.

Where channels come first a block walks all points of a channel, an element a thread at a time, however few channels
there are; where they come last blocks share the channels and wait for each other at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from roofline.cost import stream
from roofline.cost.machine import knee
from roofline.cost.parameters import Group, Parameter
from roofline.cost.work import Launch
from roofline.ir.sizes import evaluate, prod

#: Threads of a block that walks a channel, and blocks of that size that a core holds.
#: ``batch_norm_collect_statistics_kernel`` in aten/src/ATen/native/cuda/Normalization.cuh, ``RowwiseMomentsCUDAKernel``
#: in group_norm_kernel.cu: a thread adds up every 512th element.
THREADS, HELD = 512, 4
#: What the backward walks: the elements of two tensors, then those again to write; to one walk of the statistics.
WALKS = 2.15
#: A core's work on an element of a backward, and of its sums alone, to that on one of the statistics.
BACKWARD, SUMS = 2.4, 0.75
#: A core's work on an element of 16 bits that is normalised where channels come last, to one where they come first.
LAST = 2 / 3
#: Channels that fill the rows of threads of a block where they come last.
FULL = 80
#: Threads of a block that interpolates, each a point of the result in all planes: ``upsample_bilinear2d_out_frame`` in
#: aten/src/ATen/native/cuda/UpSampleBilinear2d.cu. Where channels come last a thread has an element, whose work is so
#: much of that on an element of a norm; nearest points likewise, in either layout.
PIXELS, ELEMENTS = 1024, {"linear": 4.0, "nearest_last": 2.7, "nearest": 1.1}
#: Sharpness of the knee between traffic and work.
KNEE = 2.0

GROUP = Group(
    "channels",
    launch=Parameter(1.6e-6, 3e-7, 2e-5, "s", "fixed cost of one launch: start and end"),
    dram=Parameter(0.88, 0.4, 1.0, "share", "of main memory's bandwidth", follows="memory"),
    cache=Parameter(0.6, 0.1, 1.5, "share", "of the cache's bandwidth for what lies there"),
    wait=Parameter(4.2e-7, 5e-8, 4e-6, "s", "a lone thread's wait for an element of a channel's statistics"),
    wait_near=Parameter(0.55, 0.05, 1.0, "share", "of that wait that is left where the image lies in the cache"),
    block=Parameter(2.5e-6, 1e-7, 2e-5, "s", "for a block to start on a channel and to add up its threads"),
    settle=Parameter(6e-6, 5e-7, 5e-5, "s", "for blocks to wait for each other where channels come last"),
    statistic=Parameter(0.68, 0.05, 5.0, "cycles", "a core's work per element of statistics"),
    plane=Parameter(157.0, 10.0, 2000.0, "cycles", "a core's work per plane that is normalised by channel"),
    pixel=Parameter(3.8e-7, 2e-8, 4e-6, "s", "for a thread to interpolate its point of one plane after the other"),
    channel=Parameter(0.62, 0.05, 5.0, "cycles", "a core's work per element that is normalised by channel"),
)

Seconds = Callable[[Launch, Mapping[str, float]], Any]


def kernel_of(work: Launch) -> Seconds | None:
    """The formula of a kernel of a norm over channels; ``None`` for all others."""
    if work.row.kernel.attrs.get("enlarged"):
        return _enlarged
    if work.row.kernel.attrs.get("statistics"):
        return _backward if work.op == "channelnorm_grad" else _statistics
    return _normalised if work.op == "batchnorm2d" and len(work.row.kernel.nodes) == 1 else None


def seconds(work: Launch, p: Mapping[str, float]) -> Any:
    """Time of one launch of such a kernel [s]."""
    own = kernel_of(work)
    assert own is not None
    return own(work, p)


def _elements(work: Launch) -> Any:
    return np.asarray(evaluate(prod(work.row.kernel.shapes[0]), work.row.symbols), dtype=np.float64)


def _walk(work: Launch, p: Mapping[str, float], channels: Any) -> Any:
    """Time until the blocks have walked their channels, each thread waiting for an element after the other [s]."""
    waves = np.maximum(channels / (work.machine.units * HELD), 1.0)
    wait = p["wait"] * (1 - (1 - p["wait_near"]) * stream.hits(work))
    return waves * (p["block"] + _elements(work) / channels / THREADS * wait)


def _busy(work: Launch, p: Mapping[str, float], ratio: float = 1.0) -> Any:
    return _elements(work) * p["statistic"] * ratio / (work.machine.units * work.machine.clock)


def _statistics(work: Launch, p: Mapping[str, float]) -> Any:
    """Mean and variance of each channel, or the two sums of a backward."""
    sums = len(work.row.kernel.nodes) > 1
    moved = stream.transfer(work, p, work.row.read)
    busy = _busy(work, p, SUMS if sums else 1.0)
    if work.row.kernel.attrs.get("channels_last"):
        return p["launch"] + p["settle"] + knee([moved, busy], KNEE)
    channels = np.asarray(evaluate(prod(work.row.kernel.output.shape), work.row.symbols), dtype=np.float64)
    return p["launch"] + knee([moved, busy, _walk(work, p, channels)], KNEE)


def _backward(work: Launch, p: Mapping[str, float]) -> Any:
    """Backward of a batch norm whose channels come first, all in one kernel."""
    channels = np.asarray(work.sizes["c"], dtype=np.float64)
    moved = stream.transfer(work, p, 2 * work.row.read)
    return p["launch"] + knee([moved, _busy(work, p, BACKWARD), WALKS * _walk(work, p, channels)], KNEE)


def _normalised(work: Launch, p: Mapping[str, float]) -> Any:
    """A scale and a shift by channel; where channels come first, blocks walk planes of points."""
    last, rate = work.row.kernel.attrs.get("channels_last", True), work.machine.units * work.machine.clock
    element: Any = p["channel"] * (LAST if last and work.element <= 2 else 1.0)
    if last:
        element = element * np.maximum(FULL / np.asarray(work.sizes["c"], dtype=np.float64), 1.0)
    planes = 0.0 if last else np.asarray(work.sizes["n"] * work.sizes["c"], dtype=np.float64) * p["plane"] / rate
    moved = stream.transfer(work, p, work.row.read)
    return p["launch"] + knee([moved, _elements(work) * element / rate, planes], KNEE)


def _enlarged(work: Launch, p: Mapping[str, float]) -> Any:
    """An image that is enlarged: a thread for each point walks the planes, or one for each element."""
    kernel, chip = work.row.kernel, work.machine
    moved, how = stream.transfer(work, p, work.row.read), kernel.attrs["enlarged"]
    planes, points = (
        np.asarray(evaluate(prod(part), work.row.symbols), dtype=np.float64)
        for part in (kernel.output.shape[:2], kernel.output.shape[2:])
    )
    if how == "planes":
        wait = p["pixel"] * (1 - (1 - p["wait_near"]) * stream.hits(work))
        return p["launch"] + knee([moved, planes * wait * np.maximum(points / chip.units / PIXELS, 1.0)], KNEE)
    return p["launch"] + knee([moved, planes * points * p["channel"] * ELEMENTS[how] / chip.units / chip.clock], KNEE)
