"""Collectives between devices, and copies between the host and a device.

A collective starts, passes its steps and moves its bytes over the link, by one of the algorithms of
:mod:`roofline.cost.algorithms`: the fastest that the library has, or the one that the node's ``algorithm``
names. Small messages travel in a low-latency protocol that needs no handshake but wastes most of the link; large ones
pay a handshake and then use the link well; the library takes whichever is faster. ``S``, the message, is the larger
side: what all-gather returns and what reduce-scatter is given.

A group that spans several ``nodes`` also passes the link between them, each device by its own network card. Nothing
was measured there: those figures are priors, from the constants by which NCCL itself chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

import numpy as np

from roofline.cost.algorithms import ALGORITHMS, SERVED, Plan, choices, least
from roofline.cost.machine import knee
from roofline.cost.parameters import Group, Parameter, values
from roofline.cost.work import Launch
from roofline.hardware.chip import Chip
from roofline.hardware.parts import Link
from roofline.ir.errors import MissingFigure

GROUP = Group(
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

#: Across nodes, from public figures: NCCL's own cost model (NVIDIA/nccl, src/graph/tuning.cc: a step of the low-latency
#: protocol over a network takes 2.7 us in a ring and 5 us in a tree, one of the bandwidth protocol 14 us; trees reach
#: 0.92 x 0.85 of a ring's bandwidth) and what its authors measure of a 50 GB/s adapter: 46 to 48 (nccl-tests#290).
ACROSS = Group(
    "internode",
    hop=Parameter(2.7e-6, 5e-7, 3e-5, "s", "latency of one step between nodes where the node link gives none"),
    turn=Parameter(1.85, 1.0, 5.0, "ratio", "latency of a step of a tree between nodes against one of a ring"),
    post=Parameter(1.13e-5, 1e-6, 5e-5, "s", "added by the bandwidth protocol to a step between nodes"),
    share=Parameter(0.94, 0.1, 1.0, "share", "of the node link in the bandwidth protocol"),
    tree=Parameter(0.78, 0.3, 1.0, "ratio", "bandwidth of a tree against a ring"),
)

TRANSFER = Group(
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
#: Devices of a group that serving stacks let read from each other over the host.
PAIR = 2
#: Devices beyond which a group's bandwidth does not change any more: the most that was measured.
WIDEST = 8
#: Algorithms in the switch: share of the link (476 GB/s on the bus of eight H100, NVIDIA/nccl-tests#290) and start [s]
#: (NVIDIA/nccl, src/graph/tuning.cc).
SWITCH_SHARE, SWITCH_START = 0.68, 2.5e-5
#: Sharpness of the choice between protocols, and of the knee between host and device.
CHOICE = 8.0
#: Sharpness of the knee between the cost of a copy and its bytes.
COPY_KNEE = 2.0
#: Pageable bytes at which a copy is half out of the host's cache, and bytes that start the staging pipeline [byte].
HOST_CACHE, STAGE = 64e6, 64e3


def device_link(chip: Chip) -> Link:
    """The link that devices of a node talk over: between them, or through the host where there is none.

    Raises:
        MissingFigure: The chip lists no link.
    """
    links = sorted((link for link in chip.links if link.kind != "node"), key=lambda link: link.kind != "device")
    if not links:
        raise MissingFigure(f"{chip.name} has no published link; give one with --set link_bandwidth=..., in Python "
                            "chip.replace(link_bandwidth=...)")  # fmt: skip
    return links[0]


def host_link(chip: Chip) -> Link:
    """The link to the host.

    Raises:
        MissingFigure: The chip lists none.
    """
    for link in chip.links:
        if link.kind == "host":
            return link
    raise MissingFigure(f"{chip.name} has no published host link; give one with --set host_bandwidth=..., in Python "
                        "chip.replace(host_bandwidth=...)")  # fmt: skip


def node_link(chip: Chip) -> Link:
    """The link between nodes, one network card a device.

    Raises:
        MissingFigure: The chip lists none; a cluster's device has one.
    """
    for link in chip.links:
        if link.kind == "node":
            return link
    raise MissingFigure(f"{chip.name} has no link between nodes; name a cluster, see roofline.clusters()")


def link_rate(chip: Chip, devices: Any) -> Any:
    """Return what a device can send to ``devices - 1`` others, one direction [byte/s]."""
    link = device_link(chip)
    return np.minimum(link.bandwidth, (link.per_peer or link.bandwidth) * np.maximum(devices - 1, 1))


def span(work: Launch) -> tuple[Any, Any]:
    """Devices of the group in each node, and the nodes that it spans."""
    nodes = np.maximum(np.asarray(work.sizes.get("nodes", 1), dtype=np.float64), 1.0)
    devices = np.maximum(np.asarray(work.sizes["devices"], dtype=np.float64), 1.0)
    return np.maximum(devices / nodes, 1.0), nodes


def crosses(work: Launch) -> bool:
    """Tell whether a launch leaves its node."""
    return bool(np.any(np.greater(work.sizes.get("nodes", 1), 1)))


def measured(work: Launch) -> bool:
    """Tell whether a collective is of the kind that was measured: in one node, by the library's or a stack's choice."""
    return not crosses(work) and _algorithm(work) in ("", "nccl", "ring", "direct", "serving")


def _algorithm(work: Launch) -> str:
    """The algorithm that the node names, or its way to choose."""
    return str(work.row.kernel.attrs.get("algorithm") or "")


def plans(work: Launch) -> dict[str, Plan]:
    """The algorithms that a collective may take, with what each has a device do.

    Raises:
        UsageError: The node names an algorithm that the collective does not have.
    """
    inside, nodes = span(work)
    names = choices(
        work.op, _algorithm(work), nodes, any(link.reduces for link in work.chip.links if link.kind == "device")
    )
    made = {name: ALGORITHMS[name](work.op, inside, nodes) for name in names}
    if _algorithm(work) != "serving" or _meets_all(work.chip, float(np.max(inside))):
        return made
    return {name: plan for name, plan in made.items() if plan.kind != "shot"}


def _meets_all(chip: Chip, devices: float) -> bool:
    """Tell whether every device of a group reads from every other directly: over a switch, over links of their own, or
    from one over the host (vllm-project/vllm, custom_all_reduce.py, ``fully_connected``).
    """
    link = device_link(chip)
    if link.kind != "device":
        return devices <= PAIR
    return link.per_peer is None or link.per_peer * (devices - 1) <= link.bandwidth


def message(work: Launch) -> Any:
    """The larger side of what a device gives and gets [byte]."""
    return np.maximum(*_sides(work))


def _sides(work: Launch) -> tuple[Any, Any]:
    """Return what a device gives and gets, without what else a fused kernel moves [byte]."""
    if "g" not in work.sizes:  # a send has a kernel of its own
        return work.row.read, work.row.write
    return work.sizes["e"] * work.element, work.sizes["g"] * work.element


def _local_seconds(work: Launch) -> Any:
    """Time to move what a kernel reads and writes beside the message: residuals of a fused norm [s]."""
    return np.maximum(work.row.read + work.row.write - sum(_sides(work)), 0.0) / work.chip.bandwidth


def _rate(chip: Chip, inside: Any) -> Any:
    """Bandwidth inside the node; infinite for a group that has one device in each [byte/s]."""
    return np.inf if np.all(np.equal(inside, 1)) else link_rate(chip, inside)


def floor_seconds(work: Launch) -> Any:
    """Least time on the wire; switches that add in the network halve an all-reduce's [s]."""
    inside, nodes = span(work)
    here, there = least(work.op, inside, nodes)
    inner = here * message(work) / _rate(work.chip, inside)
    if not crosses(work):
        return inner
    return np.maximum(inner, there * message(work) / node_link(work.chip).bandwidth)


def wire_seconds(work: Launch) -> Any:
    """Least time on the link of a collective or copy, 0 for all other kernels [s]."""
    if work.row.kernel.kind == "network":
        return floor_seconds(work)
    if work.row.kernel.kind == "transfer":
        return np.asarray(work.row.read, dtype=np.float64) / host_link(work.chip).bandwidth
    return 0.0


def seconds(work: Launch, p: Mapping[str, float]) -> Any:
    """Time of one collective in a node, started by a graph or, in the regime ``cold``, by a framework's queue [s]."""
    return _seconds(work, p, values(work.chip, ACROSS, work.regime))


def seconds_unmeasured(work: Launch, q: Mapping[str, float]) -> Any:
    """Time of one collective across nodes, or by an algorithm that was not measured [s]."""
    return _seconds(work, values(work.chip, GROUP, work.regime), q)


def _seconds(work: Launch, p: Mapping[str, float], q: Mapping[str, float]) -> Any:
    time = reduce(np.minimum, (plan_seconds(work, plan, p, q) for plan in plans(work).values()))
    if work.regime == "cold":
        time = knee([np.full_like(time, p["queue"]), time], CHOICE)
    return np.maximum(time, floor_seconds(work)) + _local_seconds(work)


def plan_seconds(work: Launch, plan: Plan, p: Mapping[str, float], q: Mapping[str, float]) -> Any:
    """Time of one algorithm on a launch [s].

    Args:
        work: The collective.
        plan: What the algorithm has a device do.
        p: Parameters of the group ``network``.
        q: Those of the group ``internode``.
    """
    return _PLANS[plan.kind](work, plan, p, q)


def parameters(work: Launch) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """The parameters of :func:`plan_seconds`: of the groups ``network`` and ``internode``."""
    return values(work.chip, GROUP, work.regime), values(work.chip, ACROSS, work.regime)


def ideal_seconds(work: Launch, plan: Plan) -> Any:
    """Time of one algorithm in the alpha-beta model: datasheet rates, stated latencies, nothing else [s]."""
    inside, _ = span(work)
    size = message(work)
    time = _stated(work.chip, "device") * plan.steps
    here, there = size * plan.wire / _rate(work.chip, inside), 0.0
    if crosses(work):
        there = size * plan.node_wire / node_link(work.chip).bandwidth
        time = time + _stated(work.chip, "node") * plan.node_steps
    return time + (np.maximum(here, there) if plan.overlap else here + there)


def _stated(chip: Chip, kind: str) -> float:
    """Latency that a link states; 0 where none does [s]."""
    return next((link.latency for link in chip.links if link.kind == kind and link.latency is not None), 0.0)


def _library(work: Launch, plan: Plan, p: Mapping[str, float], q: Mapping[str, float]) -> Any:
    inside, _ = span(work)
    direct = work.op == "alltoall"
    start = p["launch"] + _hop(work, p, direct) * plan.steps
    low = high = _fitted_rate(work.chip, inside, p)
    kind = p["direct"] if direct else 1.0 if work.op in ("all_reduce", "broadcast", "send") else ONE_WAY
    low, high = low * p["low"] * (LOW_DIRECT if direct else 1.0), high * p["share"] * kind
    post = p["post" if direct else "handshake"]
    if not crosses(work):
        size = message(work) * plan.wire / (q["tree"] if plan.tree else 1.0)
        return knee([start + size / low, start + post + size / high], -CHOICE)
    link = node_link(work.chip)
    start = start + (q["hop"] if link.latency is None else link.latency) * plan.node_steps * (
        q["turn"] if plan.tree else 1.0
    )
    post = post + q["post"] * plan.node_steps
    small = start + _both(work, plan, q, low, link.bandwidth * p["low"])
    return knee([small, start + post + _both(work, plan, q, high, link.bandwidth * q["share"])], -CHOICE)


def _both(work: Launch, plan: Plan, q: Mapping[str, float], rate: Any, node_rate: float) -> Any:
    """Time of the bytes on both links, at once or one after the other [s]."""
    size = message(work) / (q["tree"] if plan.tree else 1.0)
    here, there = size * plan.wire / rate, size * plan.node_wire / node_rate
    return np.maximum(here, there) if plan.overlap else here + there


def _fitted_rate(chip: Chip, inside: Any, p: Mapping[str, float]) -> Any:
    """Bandwidth of a group inside a node, as it grows or shrinks with each doubling of two devices [byte/s]."""
    if np.all(np.equal(inside, 1)):
        return np.inf
    if device_link(chip).kind == "device":
        return link_rate(chip, inside) * p["wide"] ** np.log2(np.clip(inside / 2, 1.0, WIDEST / 2))
    return link_rate(chip, inside) * (p["wide"] * THROUGH_HOST) ** np.log2(np.maximum(inside / 2, 1.0))


def _hop(work: Launch, p: Mapping[str, float], direct: bool = False) -> float:
    """Latency of a step inside a node: what the link states, or what was fitted [s]."""
    if direct:
        return p["peer"]
    stated = [link.latency for link in work.chip.links if link.kind == "device" and link.latency is not None]
    return stated[0] if stated else p["hop"]


def _shot(work: Launch, plan: Plan, p: Mapping[str, float], q: Mapping[str, float]) -> Any:
    """One kernel that waits for all others, reads their messages and, in two shots, does so again."""
    rate, size = _fitted_rate(work.chip, span(work)[0], p) * p["share"], message(work)
    time = p["launch"] + _hop(work, p) * plan.steps + size * plan.wire / rate
    return np.where(size > SERVED, np.inf, time) if _algorithm(work) == "serving" else time


def _switch(work: Launch, plan: Plan, p: Mapping[str, float], q: Mapping[str, float]) -> Any:
    rate = link_rate(work.chip, span(work)[0]) * SWITCH_SHARE
    return SWITCH_START + _hop(work, p) * plan.steps + message(work) * plan.wire / rate


_PLANS = {"library": _library, "shot": _shot, "switch": _switch}


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
