"""A program on one, two, four or more devices: time, communication, memory, and where more devices stop paying.

Each count is an estimate of the program that one of so many devices runs (the pass ``shard``), so
that time, memory and the collectives' share come from the same counts and formulas as everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from roofline.analysis.estimates import Estimate, Mode, estimate
from roofline.cost import REGIME
from roofline.counting.grid import one_point
from roofline.counting.memory import RESERVE, Memory
from roofline.frontends.source import Program, as_graph
from roofline.hardware.cluster import Cluster
from roofline.hardware.cluster import cluster as find_cluster
from roofline.hardware.library import AnyChip
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, Node, sizes_of
from roofline.ir.numbers import as_list, finite_number, whole_number
from roofline.ir.report import Report, subject
from roofline.ir.units import format_bytes, format_si
from roofline.ops.communication import COLLECTIVES
from roofline.passes.parallel.shard import shard

#: A next step must cut the time by at least this share to pay.
LEAST_GAIN = 0.1


@dataclass(frozen=True, repr=False)
class ScalingPoint:
    """What to expect of one number of devices.

    Attributes:
        devices: How many.
        estimate: Of the program that each of them runs.
        speed_up: Throughput over that of the fewest devices.
        efficiency: Speed-up over the growth in devices.
        groups: Groups of devices with a batch of their own (more than one where only experts are shared).
    """

    devices: int
    estimate: Estimate
    speed_up: float
    efficiency: float
    groups: int = 1

    @property
    def time(self) -> float:
        """Expected time of one run [s]."""
        return float(self.estimate.time)

    @cached_property
    def communication(self) -> float:
        """Time in collectives [s]."""
        return communication_time(self.estimate)

    @property
    def share(self) -> float:
        """Collectives' share of the device's time."""
        return self.communication / float(self.estimate.device_time)

    @property
    def memory(self) -> Memory:
        """Bytes by part on each device."""
        return self.estimate.memory

    @property
    def fits(self) -> bool:
        """True where that stays within a device's capacity."""
        return bool(self.estimate.fits)

    @property
    def throughput(self) -> float:
        """Items (tokens, images) per second of all devices together."""
        return float(self.estimate.throughput) * self.groups

    def record(self) -> dict[str, Any]:
        """Stable keys, plain numbers."""
        est, item = self.estimate, self.estimate.graph.item
        return {
            "devices": self.devices,
            "time_s": self.time,
            "low_s": float(est.low),
            "high_s": float(est.high),
            "bound": str(est.bound),
            "speed_up": self.speed_up,
            "efficiency": self.efficiency,
            "communication_s": self.communication,
            "communication_share": self.share,
            "memory_bytes": {
                **{name: float(value) for name, value in self.memory.parts().items()},
                "total": float(self.memory.total),
            },
            "fits": self.fits,
            f"{item}s_per_s": self.throughput,
            f"{item}s_per_s_per_device": self.throughput / self.devices,
        }


@dataclass(frozen=True, repr=False)
class Scaling(Report):
    """The result of :func:`scaling`.

    Attributes:
        graph: The program, as one device would run it.
        cluster: Where it runs.
        points: By number of devices, the fewest first.
        skipped: Numbers of devices that cannot share it, with the reason.
        least_gain: Share of the time that more devices must save to pay.
    """

    schema = "scaling"

    graph: Graph
    cluster: Cluster
    points: tuple[ScalingPoint, ...]
    skipped: Mapping[int, str]
    least_gain: float

    def __getitem__(self, devices: int) -> ScalingPoint:
        """Return the point of so many devices.

        Raises:
            UsageError: It was not asked for, or skipped; says why.
        """
        for point in self.points:
            if point.devices == devices:
                return point
        have = ", ".join(str(point.devices) for point in self.points)
        raise UsageError(self.skipped.get(devices, f"devices={devices} was not evaluated") + f"; there are {have}")

    @property
    def stops_paying(self) -> int | None:
        """The number of devices at which more of them no longer save :attr:`least_gain` of the time of an item.

        Counted among those whose memory suffices; all, where none does. ``None`` where every step pays.
        """
        usable = [point for point in self.points if point.fits] or list(self.points)
        for now, more in pairwise(usable):
            if now.throughput > (1 - self.least_gain) * more.throughput:
                return now.devices
        return None

    def subject(self) -> dict[str, Any]:
        """Return the program, the cluster, how it runs, and its sizes."""
        first = self.points[0].estimate
        return {
            **subject(self.graph, self.cluster.chip.name, first.mode, first.grid.values),
            "cluster": self.cluster.name,
            "regime": first.regime,
        }

    def summary(self) -> dict[str, Any]:
        """Return where more devices stop paying, and what was skipped."""
        skipped = {str(number): why for number, why in self.skipped.items()}
        return {"stops_paying": self.stops_paying, "least_gain": self.least_gain, "skipped": skipped}

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per number of devices."""
        return [point.record() for point in self.points]

    def __repr__(self) -> str:
        lines = [f"<Scaling {self.graph.name} on {self.cluster.name}>", _HEADER]
        lines += [_line(point) for point in self.points]
        lines += [f"{devices:>7}  {why}" for devices, why in self.skipped.items()]
        stop = self.stops_paying
        last = (
            "every step pays"
            if stop is None
            else f"beyond {stop} devices, doubling saves less than {self.least_gain:.0%}"
        )
        return "\n".join(line.rstrip() for line in [*lines, last])


_HEADER = f"{'devices':>7} {'time':>9} {'speed-up':>8} {'efficient':>9} {'comm.':>6} {'memory':>10}  {'fits':4}"


def _line(point: ScalingPoint) -> str:
    return (
        f"{point.devices:>7} {format_si(point.time, 's'):>9} {point.speed_up:>8.2f} {point.efficiency:>9.0%} "
        f"{point.share:>6.1%} {format_bytes(point.memory.total):>10}  {'yes' if point.fits else 'no':4}"
    )


def communication_time(est: Estimate) -> float:
    """Return the time that an estimate of one point spends in collectives and sends [s].

    Raises:
        UsageError: It is not one point.
    """
    one_point(est.axis_names, "communication is summed for")
    network = [(row, time) for row, time in est.timed if row.kernel.kind == "network"]
    return sum((row.kernel.count * float(time.expected) for row, time in network), start=0.0)


def scaling(
    program: Program,
    chip: AnyChip | Cluster,
    devices: Sequence[int] = (1, 2, 4, 8),
    *,
    sp: bool = False,
    experts: bool = False,
    vocab: bool = True,
    least_gain: float = LEAST_GAIN,
    mode: Mode = "eager",
    tf32: bool | None = None,
    regime: str = REGIME,
    reserve: str | float = RESERVE,
    phase: str | None = None,
    dtype: str | None = None,
    **sizes: Any,
) -> Scaling:
    """Set a program on several numbers of devices beside each other.

    Args:
        program: What one device would run: a graph, a shipped name, or the path of a model file, workload, config or
            script.
        chip: A chip, or a cluster of them; a chip's name stands for one node.
        devices: How many, each at least 1.
        sp: Share the positions between the layers' matmuls too, see :func:`~roofline.passes.parallel.shard.shard`.
        experts: Share the experts alone; every device then has a batch of its own, of the given sizes.
        vocab: Share embedding tables and the head too.
        least_gain: Share of the time that more devices must save to pay.
        mode: As for :func:`roofline.estimate`.
        tf32: As for :func:`roofline.estimate`.
        regime: As for :func:`roofline.estimate`.
        reserve: Memory that driver and framework keep on each device [byte], a number or text such as ``"1 GiB"``.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        sizes: ``batch``, ``seq``, ``context`` and any other size of the program, single numbers.

    Returns:
        One point per number of devices, and where more of them stop paying.

    Raises:
        UsageError: No number of devices that could share the program, with the reason; or sizes that span axes.

    Example:
        >>> import roofline as rl
        >>> found = scaling("llama-3-70b", "h100-sxm", (1, 2), phase="decode", mode="graph", batch=1, context=2048)
        >>> [point.fits for point in found.points], found[2].speed_up > 1.5
        ([False, True], True)
    """
    if not finite_number("least_gain", least_gain, 0, 1) < 1:
        raise UsageError(f"least_gain={least_gain!r}: expected a share from 0 to below 1")
    graph, cluster = as_graph(program, phase, dtype), find_cluster(chip)
    at = sizes_of(graph, sizes)
    parts, skipped = _shared(graph, cluster, _numbers(devices), at.get("S"), sp=sp, experts=experts, vocab=vocab)
    how: dict[str, Any] = {"mode": mode, "tf32": tf32, "regime": regime, "reserve": reserve, **at}
    estimates = {number: estimate(part, cluster.device, **how) for number, part in parts.items()}
    for est in estimates.values():
        one_point(est.axis_names, "scaling is shown at")
    return Scaling(graph, cluster, tuple(_points(estimates, experts)), skipped, least_gain)


def _shared(
    graph: Graph, cluster: Cluster, numbers: Iterable[int], length: Any, *, sp: bool, experts: bool, vocab: bool
) -> tuple[dict[int, Graph], dict[int, str]]:
    """Return the program of one device by number of devices, and the numbers that cannot share it, with the reason.

    Raises:
        UsageError: No number can.
    """
    parts: dict[int, Graph] = {}
    skipped: dict[int, str] = {}
    for number in numbers:
        tp, ep = (1, number) if experts else (number, 1)
        try:
            _check_positions(length, tp if sp else 1)
            parts[number] = with_topology(shard(graph, tp=tp, ep=ep, sp=sp and tp > 1, vocab=vocab), cluster)
        except UsageError as error:
            skipped[number] = str(error)
    if not parts:
        raise UsageError(next(iter(skipped.values())))
    return parts, skipped


def _numbers(devices: int | Iterable[int]) -> list[int]:
    """Return the numbers of devices, each once, the fewest first."""
    numbers = as_list("devices", devices) if isinstance(devices, Iterable) else [devices]
    if not numbers:
        raise UsageError("devices=(): name at least one number of devices")
    return sorted({whole_number("devices", number) for number in numbers})


def _check_positions(length: Any, tp: int) -> None:
    """Refuse positions that devices cannot share evenly."""
    if isinstance(length, int) and length % tp:
        raise UsageError(
            f"sp=True: {tp} devices cannot share S={length} positions; the next that fit: {length + -length % tp}"
        )


def _points(estimates: Mapping[int, Estimate], experts: bool) -> Iterable[ScalingPoint]:
    """Compare each number of devices with the fewest; where experts alone are shared, each has a batch of its own."""
    fewest = min(estimates)
    for number, est in estimates.items():
        groups = number if experts else 1
        gain = float(est.throughput) * groups / (float(estimates[fewest].throughput) * (fewest if experts else 1))
        yield ScalingPoint(number, est, gain, gain * fewest / number, groups)


def with_topology(graph: Graph, cluster: Cluster, stride: int = 1) -> Graph:
    """Tell the collectives of a sharded program how many nodes of a cluster they span.

    Args:
        graph: The program of one device.
        cluster: Where it runs; neighbours share the layers.
        stride: Distance between the groups that exchange tokens with each other's experts, in devices.

    Raises:
        UsageError: More devices than the cluster has.
    """

    def placed(node: Node) -> Node:
        if node.op not in COLLECTIVES:
            return node
        attrs = dict(node.attrs)
        spans = cluster.span(attrs["devices"], stride if node.op == "alltoall" else 1)
        return node if spans == 1 else replace(node, attrs=tuple(sorted({**attrs, "nodes": spans}.items())))

    done = replace(graph, nodes=tuple(map(placed, graph.nodes)))
    return done if cluster.implied else done.with_info(cluster=cluster.name)
