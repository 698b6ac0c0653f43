"""One collective by itself: its time, the bytes on the wire, its steps and the algorithm that carries it out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.cost import Launch, half_width, kernel_time, launch
from roofline.cost import network as net
from roofline.cost.algorithms import Plan, factor
from roofline.counting.counts import kernels
from roofline.counting.grid import plain
from roofline.hardware.chip import Chip
from roofline.hardware.cluster import Cluster, cluster
from roofline.hardware.library import AnyChip
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.graph import Graph
from roofline.ir.numbers import whole_number
from roofline.ir.report import Report
from roofline.ir.sizes import ceil_div, symbol
from roofline.ir.units import format_si, parse
from roofline.ops.builder import Builder
from roofline.ops.communication import COLLECTIVES


@dataclass(frozen=True)
class Collective(Report):
    """What to expect of a collective; numbers, or arrays over the sizes of its message.

    From :func:`roofline.analysis.collective`.

    Attributes:
        op: Which.
        bytes: The message: the larger side of what a device gives and gets [byte].
        devices: Of the group.
        nodes: That it spans.
        algorithm: What carries it out.
        seconds: Expected time [s].
        low: The fast end of its range, never under the floor [s].
        high: The slow end [s].
        floor: Least time on the wire [s].
        wire_bytes: What a device sends to others of its node [byte].
        node_bytes: What its network card sends to other nodes [byte].
        steps: One after the other, all of them.
        node_steps: Those of them that leave the node.
        chip: Name of the chip.
    """

    op: str
    bytes: Any
    devices: int
    nodes: int
    algorithm: Any
    seconds: Any
    low: Any
    high: Any
    floor: Any
    wire_bytes: Any
    node_bytes: Any
    steps: Any
    node_steps: Any
    chip: str = ""
    schema = "collective"

    def subject(self) -> dict[str, Any]:
        """Return the collective, where it runs and among how many."""
        return {"op": self.op, "chip": self.chip, "devices": self.devices, "nodes": self.nodes}

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per message."""
        columns = {
            "message_bytes": self.bytes, "algorithm": self.algorithm, "time_s": self.seconds, "low_s": self.low,
            "high_s": self.high, "floor_s": self.floor, "bus_bytes_per_s": self.busbw, "wire_bytes": self.wire_bytes,
            "node_bytes": self.node_bytes, "steps": self.steps, "node_steps": self.node_steps,
        }  # fmt: skip
        rows = zip(*np.broadcast_arrays(*map(np.atleast_1d, columns.values())), strict=True)
        return [dict(zip(columns, map(plain, row), strict=True)) for row in rows]

    @property
    def algbw(self) -> Any:
        """Bytes of the message over the time [byte/s]."""
        return self.bytes / self.seconds

    @property
    def busbw(self) -> Any:
        """The same times the collective's factor, which compares to the link (NVIDIA nccl-tests) [byte/s]."""
        return self.algbw * factor(self.op, self.devices)

    def __str__(self) -> str:
        if np.ndim(self.seconds):
            return repr(self)
        across = f" on {self.nodes} nodes" * (self.nodes > 1)
        return (
            f"{self.op} of {format_si(self.bytes, 'B')} among {self.devices}{across}: "
            f"{format_si(self.seconds, 's')} by {self.algorithm}, {format_si(self.busbw, 'B/s')} on the bus"
        )


def collective(
    chip: AnyChip | Cluster,
    op: str,
    size: Any,
    devices: int,
    *,
    algorithm: str | None = None,
    stride: int = 1,
    queued: bool = False,
    ideal: bool = False,
) -> Collective:
    """Predict one collective.

    Args:
        chip: A cluster, or a chip, which here stands for one node of as many as it takes; by name, file or value.
        op: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``alltoall``, ``broadcast`` or ``send``.
        size: The message [byte], a number, text or an array: the larger side of what a device gives and gets.
        devices: Of the group; 2 for a send.
        algorithm: An algorithm of :data:`~roofline.cost.algorithms.ALGORITHMS`; ``nccl`` takes the fastest that
            NCCL has, as when nothing is given; ``serving`` also the kernels of serving stacks that read small
            messages from all peers at once; ``fastest`` those at any size, and what switches can do.
        stride: Distance between members of the group, which decides how many nodes it spans.
        queued: Launched by a framework, not by a graph that was captured: the host's time is a lower bound.
        ideal: Links at their datasheet rate and stated latency, and nothing else (the alpha-beta model of
            textbooks).

    Returns:
        Time and its range, algorithm, steps, and bytes on the wire.

    Raises:
        UsageError: No such collective or algorithm, or a group that the cluster cannot hold.
        MissingFigure: The chip has no link.

    Example:
        >>> found = collective("h100-sxm", "all_reduce", "1 GiB", 8, ideal=True)
        >>> found.algorithm, found.steps, f"{found.seconds:.6f}"
        ('ring', 14, '0.004176')
        >>> round(found.busbw / 1e9)
        450
    """
    devices, stride = whole_number("devices", devices), whole_number("stride", stride)
    where, nodes = _place(chip, devices, stride, op)
    sizes = _message(op, size)
    (kernel,) = kernels(_graph(op, devices, nodes, algorithm or ""))
    row = kernel.at({"N": sizes})
    work = launch(row, where, False, "cold" if queued else "program")
    message = np.asarray(net.message(work), dtype=np.float64)  # all-gather's is a whole number of equal parts
    time = kernel_time(row, where, regime=work.regime)
    candidates = net.plans(work)
    each = {name: _seconds(work, plan, ideal) for name, plan in candidates.items()}
    floor = np.asarray(time.floor)
    expected = np.minimum.reduce(list(each.values())) if ideal else np.asarray(time.expected)
    spread = 1.0 if ideal else np.exp(half_width(time.uncertainty) / time.expected)
    chosen = np.argmin(np.stack([np.broadcast_to(each[name], message.shape) for name in candidates]), axis=0)
    return Collective(
        op, plain(message), devices, nodes, plain(np.asarray(list(candidates))[chosen]), plain(expected),
        plain(np.maximum(expected / spread, np.minimum(floor, expected))), plain(expected * spread), plain(floor),
        **_counts(candidates, chosen, message), chip=where.name,
    )  # fmt: skip


def timers(
    chip: AnyChip | Cluster, devices: int, *, stride: int = 1, algorithm: str | None = None
) -> dict[str, Callable[[float], float]]:
    """Seconds of the collectives of one group by size, as :func:`roofline.cost.pipelines.data_parallel` takes them.

    Args:
        chip: A cluster or a chip, by name, file or value.
        devices: Of the group; a group of one takes no time.
        stride: Distance between its members: for data parallelism, the devices of one model.
        algorithm: As in :func:`collective`; a way to choose, since not every collective has every algorithm.

    Example:
        >>> of = timers("dgx-h100", 4, stride=8)
        >>> sorted(of), of["all_reduce"](1e9) > of["reduce_scatter"](1e9)
        (['all_gather', 'all_reduce', 'reduce_scatter'], True)
    """

    def timer(op: str) -> Callable[[float], float]:
        def seconds(size: float) -> float:
            if devices == 1:
                return 0.0
            return float(collective(chip, op, max(size, 1.0), devices, stride=stride, algorithm=algorithm).seconds)

        return seconds

    return {op: timer(op) for op in ("all_reduce", "reduce_scatter", "all_gather")}


def _message(op: str, size: Any) -> NDArray[np.float64]:
    """Return the sizes of messages [byte]."""
    message = np.asarray(parse(size, "B", "size") if isinstance(size, str) else size)
    sizes = message.astype(np.float64) if message.dtype.kind in "iuf" else np.asarray(np.nan)
    if not np.all(np.isfinite(sizes) & (sizes >= 1)):
        raise UsageError(f"{op}: a message of {repr(size)[:60]} bytes; allowed: 1 or more")
    return sizes


def _place(on: Any, devices: int, stride: int, op: str) -> tuple[Chip, int]:
    """The device, and how many nodes the group spans."""
    if op not in COLLECTIVE_OPS:
        near = did_you_mean(str(op), COLLECTIVE_OPS)
        raise UsageError(f"collective: unknown {op!r}; allowed: {', '.join(COLLECTIVE_OPS)}{near}")
    if not isinstance(devices, int) or devices < 2 or (op == "send" and devices != 2):
        allowed = "2" if op == "send" else "2 or more; the nearest is 2"
        raise UsageError(f"{op}: a group of {devices!r} devices; allowed: {allowed}")
    where = cluster(on)
    if where.implied:
        return where.device, 1
    return where.device, where.span(devices, stride)


#: What :func:`collective` takes.
COLLECTIVE_OPS = (*COLLECTIVES, "send")


def _graph(op: str, devices: int, nodes: int, algorithm: str) -> Graph:
    b, size = Builder(op, "int8"), symbol("N")
    own = ceil_div(size, devices) if op == "all_gather" else size
    attrs: dict[str, Any] = {} if op == "send" else {"devices": devices}
    return b.graph([b.op(op, b.input("x", (own,)), nodes=nodes, algorithm=algorithm, **attrs)])


def _seconds(work: Launch, plan: Plan, ideal: bool) -> Any:
    if not ideal:
        return net.plan_seconds(work, plan, *net.parameters(work))
    return net.ideal_seconds(work, plan)


def _counts(candidates: Mapping[str, Plan], chosen: Any, message: Any) -> dict[str, Any]:
    """Steps and bytes of the algorithm that was chosen at each size."""

    def pick(what: str) -> Any:
        return np.asarray([float(np.asarray(getattr(plan, what))) for plan in candidates.values()])[chosen]

    inner, outer = pick("steps"), pick("node_steps")
    return {
        "wire_bytes": plain(pick("wire") * message),
        "node_bytes": plain(pick("node_wire") * message),
        "steps": plain((inner + outer).astype(np.int64)),
        "node_steps": plain(outer.astype(np.int64)),
    }
