"""Collectives between devices, and copies between the host and a device.

A collective starts, passes its steps and moves its bytes over the link. Small messages travel in a low-latency
protocol that needs no handshake but wastes most of the link; large ones pay a handshake and then use the link well; the
library takes whichever is faster. What a device puts on the wire, of a message of ``S`` bytes among ``n`` devices
(NVIDIA nccl-tests, PERFORMANCE.md): all-reduce ``2 S (n-1)/n``, all-gather, reduce-scatter and all-to-all
``S (n-1)/n``, broadcast ``S``. ``S`` is the larger side: what all-gather returns and what reduce-scatter is given.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from roofline.chip import Chip
from roofline.chipparts import Link
from roofline.efficiency.machine import knee
from roofline.efficiency.parameters import Parameter, group
from roofline.efficiency.work import Launch
from roofline.errors import MissingFigure

GROUP = group(
    "network",
    launch=Parameter(7e-6, 1e-6, 5e-5, "s", "fixed cost of a collective in a graph or a busy queue"),
    queue=Parameter(4.5e-5, 2e-6, 2e-4, "s", "host time of a collective that a framework queues by itself"),
    hop=Parameter(1e-6, 5e-8, 1e-5, "s", "latency of one step of a ring, to the next device and on"),
    peer=Parameter(7e-7, 5e-8, 5e-6, "s", "latency that each further device adds to an all-to-all"),
    low=Parameter(0.2, 0.005, 1.0, "share", "of the link in the low-latency protocol of small messages"),
    handshake=Parameter(1.8e-5, 1e-6, 8e-5, "s", "start of the bandwidth protocol of large messages"),
    post=Parameter(8e-6, 1e-6, 6e-5, "s", "the same for an all-to-all, whose messages go straight to their peer"),
    share=Parameter(0.62, 0.02, 1.2, "share", "of the link, one direction, in the bandwidth protocol of two devices"),
    wide=Parameter(1.1, 0.2, 3.0, "ratio", "bandwidth of a device after a doubling of devices against before"),
    direct=Parameter(0.85, 0.3, 3.0, "ratio", "bandwidth of an all-to-all against an all-reduce"),
)

TRANSFER = group(
    "transfer",
    latency=Parameter(1.05e-5, 3e-6, 4e-5, "s", "fixed cost of a copy that is queued behind others"),
    share=Parameter(0.83, 0.2, 1.0, "share", "of the host link for page-locked memory"),
    staged=Parameter(0.2, 0.01, 1.0, "share", "of the host link for pageable memory, copied through a staging buffer"),
    spilled=Parameter(0.11, 0.01, 1.0, "share", "of it for pageable sources that outgrow the host's cache"),
    stage=Parameter(1.2e-5, 5e-6, 4e-5, "s", "start of the staging buffer's pipeline"),
    back=Parameter(6e-6, 1e-6, 1.5e-5, "s", "wait at the end of a copy to pageable memory"),
)

#: Bandwidth of all-gather and reduce-scatter against all-reduce, which adds on the way.
ONE_WAY = 0.9
#: Share of the link in an all-to-all's low-latency protocol against a ring's.
LOW_DIRECT = 0.05
#: How a doubling of devices divides a link that goes through the host, beside the parameter ``wide``.
THROUGH_HOST = 0.45
#: Sharpness of the choice between protocols, and of the knee between host and device.
CHOICE = 8.0
#: Sharpness of the knee between the cost of a copy and its bytes.
COPY_KNEE = 2.0
#: Pageable bytes at which a copy is half out of the host's cache, and bytes that start the staging pipeline [byte].
HOST_CACHE, STAGE = 64e6, 64e3


def factor(op: str, devices: Any) -> Any:
    """Bytes that a device puts on the wire, per byte of the message.

    Example:
        >>> factor("all_reduce", 8), factor("all_gather", 8), factor("broadcast", 8)
        (1.75, 0.875, 1)
    """
    if op == "broadcast":
        return 1
    return (2 if op == "all_reduce" else 1) * (devices - 1) / devices


def device_link(chip: Chip) -> Link:
    """The link that devices talk over: between them, or through the host where there is none.

    Raises:
        MissingFigure: The chip lists no link.
    """
    links = sorted(chip.links, key=lambda link: link.kind != "device")
    if not links:
        raise MissingFigure(f"{chip.name} has no published link; give one with chip.replace(link_bandwidth=...)")
    return links[0]


def host_link(chip: Chip) -> Link:
    """The link to the host.

    Raises:
        MissingFigure: The chip lists none.
    """
    for link in chip.links:
        if link.kind == "host":
            return link
    raise MissingFigure(f"{chip.name} has no published host link; give one with chip.replace(host_bandwidth=...)")


def link_rate(chip: Chip, devices: Any) -> Any:
    """What a device can send to ``devices - 1`` others, one direction [byte/s]."""
    link = device_link(chip)
    return np.minimum(link.bandwidth, (link.per_peer or link.bandwidth) * np.maximum(devices - 1, 1))


def _message(work: Launch) -> Any:
    """The larger side of a collective [byte]."""
    return np.maximum(work.row.read, work.row.write)


def floor_seconds(work: Launch) -> Any:
    """Least time on the wire; switches that add in the network halve an all-reduce's [s]."""
    devices = np.asarray(work.sizes["devices"], dtype=np.float64)
    return np.minimum(factor(work.op, devices), 1.0) * _message(work) / link_rate(work.chip, devices)


def wire_seconds(work: Launch) -> Any:
    """Least time on the link of a collective or copy, 0 for all other kernels [s]."""
    if work.row.kernel.kind == "network":
        return floor_seconds(work)
    if work.row.kernel.kind == "transfer":
        return np.asarray(work.row.read, dtype=np.float64) / host_link(work.chip).bandwidth
    return 0.0


def seconds(work: Launch, p: Mapping[str, float]) -> Any:
    """Time of one collective, started by a graph or, in the regime ``cold``, by a framework's queue [s]."""
    devices = np.maximum(np.asarray(work.sizes["devices"], dtype=np.float64), 1.0)
    wire = factor(work.op, devices) * _message(work)
    direct = work.op == "alltoall"
    steps = (2 if work.op == "all_reduce" else 1) * (devices - 1)
    start = p["launch"] + (p["peer"] if direct else p["hop"]) * steps
    doubled = p["wide"] * (1.0 if device_link(work.chip).kind == "device" else THROUGH_HOST)
    rate = link_rate(work.chip, devices) * doubled ** np.log2(np.maximum(devices / 2, 1.0))
    low = start + wire / (rate * p["low"] * (LOW_DIRECT if direct else 1.0))
    kind = p["direct"] if direct else 1.0 if work.op in ("all_reduce", "broadcast") else ONE_WAY
    large = start + p["post" if direct else "handshake"] + wire / (rate * p["share"] * kind)
    time = knee([low, large], -CHOICE)
    if work.regime == "cold":
        time = knee([np.full_like(time, p["queue"]), time], CHOICE)
    return np.maximum(time, floor_seconds(work))


def transfer_seconds(work: Launch, p: Mapping[str, float]) -> Any:
    """Time of one copy between host and device, queued behind others [s]."""
    size, rate = np.asarray(work.row.read, dtype=np.float64), host_link(work.chip).bandwidth
    if work.row.kernel.attrs.get("pinned", True):
        moving = size / (rate * p["share"])
        return np.maximum(knee([np.full_like(moving, p["latency"]), moving], COPY_KNEE), size / rate)
    up = work.op == "memcpy_h2d"
    out = (size / HOST_CACHE) ** 2 if up else np.zeros_like(size)
    moving = size / rate * (1 / p["staged"] + out / p["spilled"]) / (1 + out)
    time = p["latency"] + moving + p["stage"] * size / (size + STAGE) + (0.0 if up else p["back"])
    return np.maximum(time, size / rate)
