"""``rl.timeline``: a program on the engines of a chip, what overlaps, and which path sets the pace."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from roofline.analysis.engines.scheduler import Placed, chain, loads, longest_ways, schedule
from roofline.analysis.engines.splitting import OVERLAPS, Overlapped, overlapped
from roofline.analysis.engines.tasks import ENGINES, STREAM, Task, tasks_of, with_host
from roofline.analysis.engines.tracefile import write_trace
from roofline.analysis.engines.weights import Streamed, streamed
from roofline.analysis.estimates import Estimate, Mode, estimate
from roofline.frontends.source import Program
from roofline.hardware.library import AnyChip
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.numbers import whole_number
from roofline.ir.report import Report
from roofline.ir.text import shown
from roofline.ir.units import format_si

#: Streams, layers ahead and parts of a matmul at most.
MOST = 64
#: Below this share of the whole, a difference of two sums is rounding.
ROUNDING = 1e-9
#: What a timeline leaves out, said with every one.
NOT_MODELLED = (
    "multiprocessors that collectives and copies take from kernels", "caches that kernels of several streams share",
)  # fmt: skip


@dataclass(frozen=True, eq=False, repr=False)
class EngineTimeline(Report):
    """What runs when, and where, from :func:`roofline.timeline`.

    Attributes:
        estimate: Of the program, kernel by kernel.
        tasks: Everything that runs, each after all that it needs.
        places: When and where each of them runs.
        streams: Streams of kernels.
        serial: Everything one after the other [s].
        streamed: Weights that come from the host, where they do.
        overlap: Collectives beside matmuls, where they may be.
        method: How they are.
    """

    estimate: Estimate
    tasks: tuple[Task, ...]
    places: tuple[Placed, ...]
    streams: int
    serial: float
    streamed: Streamed | None = None
    overlap: Overlapped | None = None
    method: str | None = None
    schema = "engine_timeline"

    # --- times [s] ---

    @cached_property
    def time(self) -> float:
        """From the first start to the last end [s]."""
        return max(place.end for place in self.places)

    @property
    def low(self) -> float:
        """The time with kernels at the fast end of the estimate's range [s]."""
        return self.time * float(self.estimate.low) / float(self.estimate.time)

    @property
    def high(self) -> float:
        """The time with kernels at the slow end [s]."""
        return self.time * float(self.estimate.high) / float(self.estimate.time)

    @property
    def gain(self) -> float:
        """Time that overlap saves against everything one after the other [s]."""
        return self.serial - self.time

    @cached_property
    def longest_path(self) -> float:
        """The longest path through what must follow each other, nothing slowing anything down [s]."""
        return max(longest_ways(self.tasks))

    @cached_property
    def loads(self) -> dict[str, float]:
        """Least time of each engine, and of the chip's arithmetic units and memory, for all of its work [s]."""
        return loads(self.tasks, {STREAM: self.streams})

    @property
    def busiest(self) -> str:
        """The engine or resource that needs the most time."""
        return max(self.loads, key=lambda name: self.loads[name])

    @property
    def least(self) -> float:
        """No order of these tasks on these engines takes less: the longest path, or the busiest engine [s]."""
        least = max(self.longest_path, self.loads[self.busiest])
        return self.time if abs(least - self.time) <= ROUNDING * self.time else least

    # --- engines ---

    @cached_property
    def lanes(self) -> tuple[str, ...]:
        """Names of the engines that something runs on; those of streams are numbered."""
        used = {(task.engine, place.lane) for task, place in zip(self.tasks, self.places, strict=True)}
        return tuple(lane_name(*pair) for pair in sorted(used, key=lambda pair: (ENGINES.index(pair[0]), pair[1])))

    def engines(self) -> list[dict[str, Any]]:
        """Return one row per engine: what it runs, how long it is busy and how long it waits."""
        rows = {lane: [0, 0.0] for lane in self.lanes}
        for task, place in zip(self.tasks, self.places, strict=True):
            row = rows[lane_name(task.engine, place.lane)]
            row[0] += 1
            row[1] += place.end - place.start
        critical = self.critical_seconds("engine")
        return [{"engine": lane, "tasks": number, "busy_s": busy, "idle_s": max(self.time - busy, 0.0),
                 "share": busy / self.time if self.time else 0.0, "critical_s": critical.get(lane, 0.0)}
                for lane, (number, busy) in rows.items()]  # fmt: skip

    # --- the critical path ---

    @cached_property
    def critical(self) -> tuple[int, ...]:
        """Positions of the tasks that the end waits for, each starting when the one before ends."""
        return tuple(chain(self.places))

    def critical_seconds(self, by: str) -> dict[str, float]:
        """Return how much of the critical path each ``engine``, ``layer`` or ``op`` takes, the most first [s]."""
        seconds: dict[str, float] = {}
        for at in self.critical:
            task, place = self.tasks[at], self.places[at]
            name = lane_name(task.engine, place.lane) if by == "engine" else str(getattr(task, by))
            seconds[name] = seconds.get(name, 0.0) + place.end - place.start
        return dict(sorted(seconds.items(), key=lambda pair: -float(f"{pair[1]:.6g}")))  # equal ones in their order

    # --- as data ---

    def subject(self) -> dict[str, Any]:
        """Return the program, where and how it runs, and its sizes."""
        more = {"streams": self.streams, "prefetch": self.streamed and self.streamed.depth, "overlap": self.method}
        return self.estimate.subject() | more

    def summary(self) -> dict[str, Any]:
        """Return the time, its bounds, the engines and the critical path."""
        critical = {f"critical_{by}s_s": self.critical_seconds(by) for by in ("engine", "layer", "op")}
        weights = self.streamed
        return {
            "time_s": self.time, "low_s": self.low, "high_s": self.high, "serial_s": self.serial,
            "gain_s": self.gain, "least_s": self.least, "longest_path_s": self.longest_path,
            "busiest": self.busiest, "loads_s": self.loads, **critical, "engines": self.engines(),
            "host_bytes": weights and weights.bytes, "buffer_bytes": weights and weights.buffers,
            "in_parts": self.overlap and self.overlap.split, "left_whole": self.overlap and self.overlap.whole,
            "calibrated": self.estimate.calibrated, "not_modelled": list(NOT_MODELLED),
        }  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return one row per task, in the order in which they start."""
        critical = frozenset(self.critical)
        rows = []
        for at in sorted(range(len(self.tasks)), key=lambda at: (self.places[at].start, self.places[at].end, at)):
            task, place = self.tasks[at], self.places[at]
            rows.append({
                "name": task.name, "op": task.op, "kind": task.kind, "engine": lane_name(task.engine, place.lane),
                "layer": task.layer, "start_s": place.start, "end_s": place.end, "time_s": place.end - place.start,
                "alone_s": task.seconds, "bound": task.bound, "critical": at in critical,
                "waits_for": self.tasks[place.after].name if place.after >= 0 else None,
            })  # fmt: skip
        return rows

    def save(self, target: str | os.PathLike[str]) -> None:
        """Write a Chrome trace, which https://ui.perfetto.dev and ``rl.traces.read_trace`` open.

        Args:
            target: The file, such as ``trace.json``, written whole or not at all.

        Raises:
            UsageError: It cannot be written there.
        """
        write_trace(target, self.estimate.chip.name, self.tasks, self.places, self.lanes, self.critical)

    def __repr__(self) -> str:
        where = f"<EngineTimeline {self.estimate.graph.name} on {self.estimate.chip.name}: "
        return (f"{where}{format_si(self.time, 's')}, one after the other {format_si(self.serial, 's')}, "
                f"at least {format_si(self.least, 's')}>")  # fmt: skip


def lane_name(engine: str, lane: int) -> str:
    """Return what an engine is called, streams by their number."""
    return f"{engine} {lane}" if engine == STREAM else engine


def timeline(
    program: Program,
    chip: AnyChip,
    *,
    streams: int = 1,
    prefetch: int | None = None,
    overlap: str | None = None,
    chunks: int | None = None,
    mode: Mode = "eager",
    **options: Any,
) -> EngineTimeline:
    """Place a program's kernels, copies and collectives on the engines of a chip, side by side where they may be.

    Kernels run on ``streams``, copies from and to the host on an engine each, collectives on the network, and in mode
    ``eager`` the host launches them one by one. Each starts when all that it needs has ended and its engine is free,
    the one with the longest way to the end first. Kernels side by side share the chip: each keeps busy the resource
    that bounds it and a share of the other, and where shares add up to more than the chip has, all of them slow down.

    Args:
        program: A graph, a shipped name, or the path of a model file, workload, config or script; for collectives, what
            one device runs (:func:`roofline.what_if` with ``tp`` or ``ep``).
        chip: A name or a chip.
        streams: Streams of kernels.
        prefetch: Weights stay on the host and come over layer by layer, so many layers ahead: 0 waits for each, 1 is
            double buffering. The weights are on the device where absent.
        overlap: Let collectives of tensor parallelism run beside the matmuls around them, both in parts: ``tp``, or
            ``ring`` (sends to the next device in place of an all-gather or reduce-scatter).
        chunks: Parts; 4, or as many as devices in a ring, where absent.
        mode: As for :func:`roofline.estimate`.
        options: ``phase``, ``dtype``, ``tf32``, ``regime`` and ``host`` as for :func:`roofline.estimate`; ``batch``,
            ``seq``, ``context`` and any other size of the program, one whole number each.

    Returns:
        What runs when, the time with its lower bounds, the critical path, and what each engine waits.

    Raises:
        UsageError: Several points, the stages of a pipeline, or a number or word that is none of these.
        MissingFigure: The chip lacks a rate or a link that the program needs.

    Example:
        >>> import roofline as rl
        >>> line = rl.timeline("llama-3-8b", "h100-sxm", phase="prefill", mode="graph", batch=1, seq=512, prefetch=1)
        >>> line.busiest, line.least <= line.time <= line.serial
        ('copy in', True)
    """
    streams = _from(1, "streams", streams)
    if prefetch is not None:
        prefetch = _from(0, "prefetch", prefetch)
    _check_overlap(overlap, chunks)
    est = estimate(program, chip, mode=mode, **options)
    if est.shape:
        raise UsageError("a timeline is of one point: give one chip and one number for each size")
    return _placed(est, streams, prefetch, overlap, chunks)


def _placed(
    est: Estimate, streams: int, prefetch: int | None, overlap: str | None, chunks: int | None
) -> EngineTimeline:
    tasks, weights, split = tasks_of(est), None, None
    if prefetch is not None:
        tasks, weights = streamed(tasks, est, prefetch)
    launch = float(est.host_time) / max(sum(task.launches for task in tasks), 1.0)
    serial = sum(task.seconds + launch * task.launches for task in tasks)
    if overlap is not None:
        tasks, split = overlapped(tasks, est, overlap, chunks)
    tasks = with_host(tasks, launch) if launch else tasks
    places = schedule(tasks, {STREAM: streams})
    end = max(place.end for place in places)
    serial = end if abs(serial - end) <= ROUNDING * end else serial
    return EngineTimeline(est, tuple(tasks), places, streams, serial, weights, split, overlap)


def _from(least: int, name: str, value: Any) -> int:
    return whole_number(name, value, least, most=MOST)


def _check_overlap(overlap: str | None, chunks: int | None) -> None:
    if overlap is not None and overlap not in OVERLAPS:
        raise UsageError(
            f"overlap={shown(overlap)}: allowed: {', '.join(OVERLAPS)}{did_you_mean(str(overlap), OVERLAPS)}"
        )
    if chunks is not None:
        _from(2, "chunks", chunks)
        if overlap is None:
            raise UsageError(
                f"chunks={chunks} are those of a matmul beside a collective: give overlap too, such as 'tp'"
            )
