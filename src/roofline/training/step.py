"""A step of training on many devices: time and memory by part, MFU, and the time for so many tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from math import exp
from typing import TYPE_CHECKING, Any

import numpy as np

from roofline.chip import Chip
from roofline.cluster import Cluster
from roofline.cluster import cluster as find_cluster
from roofline.collective import collective, timers
from roofline.count import count
from roofline.errors import UsageError
from roofline.estimate import Mode, estimate
from roofline.graph import Graph
from roofline.memory import RESERVE, WORKSPACE, TrainingMemory
from roofline.modeldata import model as find_model
from roofline.passes.shard import shard
from roofline.passes.stage import shares
from roofline.scaling import placed
from roofline.schedule import data_parallel, pipeline
from roofline.sizes import evaluate
from roofline.training.chunk import AGAIN, BACKWARD, FORWARD, Chunk, chunk, lowered, stored
from roofline.training.plan import Plan
from roofline.units import format_bytes, format_si

if TYPE_CHECKING:
    import pandas as pd

DAY = 86400.0

#: Precision of a step for a program in each format.
_PRECISION = {"bf16": "mixed-bf16", "fp16": "mixed-fp16"}


@dataclass(frozen=True, repr=False)
class TrainingStep:
    """What to expect of one step of training.

    Attributes:
        name: The model.
        cluster: Where it runs.
        plan: The layout.
        mode: How it runs.
        seconds: Time by part; the parts add up to :attr:`time` [s]: forward, backward, recompute, communication (of
            tensor, sequence and expert parallelism), sends (between stages, what nothing hides), bubble (filling and
            draining the pipeline), data_parallel (gradients and sharded weights, what nothing hides), optimizer.
        low: The fast end of its range [s].
        high: The slow end [s].
        memory: Of the device that needs the most, by part [byte].
        capacity: Of a device [byte].
        model_flops: Of all devices: three times the products of the forward; what MFU counts.
        hardware_flops: Of all devices: all products that run; what HFU counts.
        peak: Of one device, in the format of its products [FLOP/s].
        items: Tokens or images of a step.
        item: Their word.
        chunks: What the first, a middle and the last chunk of layers take.
        notes: What a reader should know.
    """

    name: str
    cluster: Cluster
    plan: Plan
    mode: str
    seconds: Mapping[str, float]
    low: float
    high: float
    memory: TrainingMemory
    capacity: float
    model_flops: float
    hardware_flops: float
    peak: float
    items: float
    item: str
    chunks: tuple[Chunk, ...]
    notes: tuple[str, ...] = ()

    @property
    def chip(self) -> Chip:
        """One device."""
        return self.cluster.device

    @property
    def time(self) -> float:
        """Expected time of a step [s]."""
        return sum(self.seconds.values())

    @property
    def devices(self) -> int:
        """All of them."""
        return self.plan.devices

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation, without what is computed again (Chowdhery et al. 2022, appendix B)."""
        return self.model_flops / (self.time * self.devices * self.peak)

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation, with it (Korthikanti et al. 2022, section 5)."""
        return self.hardware_flops / (self.time * self.devices * self.peak)

    @property
    def fits(self) -> bool:
        """Whether the device that needs the most has room."""
        return float(self.memory.total) <= self.capacity

    @property
    def throughput(self) -> float:
        """Items a second of all devices."""
        return self.items / self.time

    def seconds_for(self, items: float) -> float:
        """Time to train on so many tokens or images [s].

        Raises:
            UsageError: Not a positive number.
        """
        if not items > 0:
            raise UsageError(f"{items!r} {self.item}s to train on; a positive number is wanted")
        return items / self.throughput

    def days(self, items: float) -> float:
        """The same in days."""
        return self.seconds_for(items) / DAY

    def record(self) -> dict[str, Any]:
        """The stable keys of ``roofline train --json``."""
        parts = {name: float(value) for name, value in self.memory.parts().items()}
        return {
            "model": self.name, "chip": self.chip.name, "devices": self.devices, "mode": self.mode,
            **asdict(self.plan), "micro_batches": self.plan.micro_batches,
            "time_s": self.time, "low_s": self.low, "high_s": self.high, "seconds": dict(self.seconds),
            "memory_bytes": {**parts, "total": sum(parts.values())}, "capacity_bytes": self.capacity,
            "fits": self.fits, "model_flops": self.model_flops, "hardware_flops": self.hardware_flops,
            "mfu": self.mfu, "hfu": self.hfu, f"{self.item}s": self.items,
            f"{self.item}s_per_s": self.throughput, "notes": list(self.notes),
        }  # fmt: skip

    def frame(self) -> pd.DataFrame:
        """Time by part as a table."""
        import pandas as pd

        rows = [(part, value, value / self.time) for part, value in self.seconds.items()]
        return pd.DataFrame(rows, columns=["part", "seconds", "share"])

    def __repr__(self) -> str:
        time, low, high = (format_si(value, "s") for value in (self.time, self.low, self.high))
        room = "fits" if self.fits else "does not fit"
        need = format_bytes(float(self.memory.total))
        return (
            f"<TrainingStep {self.name} on {self.devices} x {self.chip.name}: {time} ({low} to {high}), "
            f"MFU {100 * self.mfu:.1f}%, {need} a device ({room} in {format_bytes(self.capacity)})>"
        )


def train(
    model: str | os.PathLike[str] | Graph,
    on: str | os.PathLike[str] | Chip | Cluster,
    *,
    batch: int,
    micro_batch: int | None = None,
    tp: int = 1,
    sp: bool = False,
    pp: int = 1,
    interleave: int = 1,
    dp: int = 1,
    ep: int = 1,
    zero: int = 0,
    recompute: str = "none",
    optimizer: str = "adamw",
    precision: str | None = None,
    overlap: bool = True,
    mode: Mode = "eager",
    reserve: float = RESERVE,
    **sizes: int,
) -> TrainingStep:
    """Predict a step of training: forward, backward and update, on one device or many.

    The forward program is sharded, cut into stages and differentiated by the passes of this library, and each device's
    program estimated kernel by kernel; the schedule of the pipeline and the exchange between copies of the model
    come on top (:mod:`roofline.schedule`).

    Args:
        model: A model's name, or a forward program, best of phase ``train`` (dropout and a loss).
        on: A chip, or a cluster where a group of devices is larger than a node.
        batch: Sequences or images of a step, of all devices together.
        micro_batch: What a device runs at once; all of its share, or 1 in a pipeline, when absent.
        tp: Devices that share every layer.
        sp: Whether they share the positions of norms, dropouts and residuals too.
        pp: Stages of a pipeline.
        interleave: Chunks of layers that each device of a pipeline holds.
        dp: Copies of the model.
        ep: Groups of copies that share the experts.
        zero: What copies divide between them: 1 optimizer states, 2 gradients too, 3 weights too.
        recompute: Of activations, in the backward: ``none``, ``selective`` (attention's scores), ``full`` (layers).
        optimizer: ``sgd``, ``momentum``, ``adamw``, ``adafactor`` or ``adam8bit``.
        precision: ``fp32``, ``bf16``, ``fp16``, ``amp-bf16``, ``amp-fp16``, ``mixed-bf16`` or ``mixed-fp16`` (16-bit
            weights, fp32 master copy and gradients); by the model's format when absent.
        overlap: Whether gradients and sharded weights travel beside the computation.
        mode: As for :func:`roofline.estimate`.
        reserve: Memory that driver and framework keep [byte].
        sizes: ``S`` and any other symbol but ``B``.

    Raises:
        UsageError: A layout that cannot be; what is allowed and the nearest.
        UnboundSize: A symbol has no value.

    Example:
        >>> step = train("gpt2", "h100-sxm", batch=8, S=1024, precision="amp-bf16")
        >>> step.devices, step.fits, 0.03 < step.time < 0.12
        (1, True, True)
    """
    cluster = find_cluster(on)
    graph = _program(model)
    wanted = precision or _PRECISION.get(_format(graph), "fp32")
    each = micro_batch or (1 if pp > 1 else max(batch // max(dp, 1), 1))
    plan = Plan(batch, each, tp, sp, pp, interleave, dp, ep, zero, recompute, optimizer, wanted, overlap)
    plan.check(cluster)
    at = {**sizes, "B": each}
    run = _Run(graph, cluster, plan, mode, {n: at[n] for n in graph.symbols if n in at}, reserve)
    return run.step()


def _program(model: str | os.PathLike[str] | Graph) -> Graph:
    graph = model if isinstance(model, Graph) else find_model(model, phase="train")
    if "B" not in graph.symbols:
        raise UsageError(f"{graph.name} has no symbol B: its batch is fixed; a step needs a program with a batch")
    if "backward" in graph.info:
        raise UsageError(f"{graph.name} has a backward already; give the forward program")
    return graph


def _format(graph: Graph) -> str:
    found = [tensor for tensor in graph.tensors.values() if tensor.kind == "weight"]
    return max(found, key=lambda tensor: tensor.numel).dtype if found else ""


@dataclass(frozen=True)
class _Run:
    """A step in the making."""

    graph: Graph
    cluster: Cluster
    plan: Plan
    mode: Mode
    sizes: Mapping[str, int]
    reserve: float

    @property
    def chip(self) -> Chip:
        return self.cluster.device

    def step(self) -> TrainingStep:
        plan = self.plan
        first, middle, last = chunks = self._chunks()
        devices = self._devices(chunks)
        slow = max(devices, key=lambda parts: sum(parts.values()))
        seconds, held = self._pipeline(chunks, devices, slow)
        seconds["data_parallel"] = self._exchanged(chunks, slow)
        seconds["optimizer"] = max(self._update(chunks, device) for device in self._ends)
        total = sum(seconds.values())
        width = exp(max(float(np.log(float(c.estimate.high) / float(c.estimate.time))) for c in (first, last)))
        slots = plan.micro_batches * plan.dp
        inner = plan.pp * plan.interleave - 2
        counted = [first, *([middle] if inner > 0 else []), *([last] if inner >= 0 else [])]
        times = [1, *([inner] if inner > 0 else []), *([1] if inner >= 0 else [])]
        model, hardware = (
            sum(n * getattr(c, what) for n, c in zip(times, counted, strict=True))
            for what in ("model_flops", "hardware_flops")
        )
        exact = 3 * float(count(self._sharded, **self.sizes).flops) * slots * plan.tp  # stages may differ by a layer
        flops = (exact, hardware * (exact / model if model else slots * plan.tp))
        whole = {**self.sizes, "B": plan.batch}
        return TrainingStep(
            str(self.graph.info.get("model", self.graph.name)), self.cluster, plan, self.mode, seconds, total / width,
            total * width, self._memory(chunks, held), self.chip.capacity, flops[0], flops[1],
            self._peak(first), float(evaluate(self.graph.items, whole)), self.graph.item, chunks, self._notes(first),
        )  # fmt: skip

    # --- what a device runs ---------------------------------------------------------------------------------------

    def _chunks(self) -> tuple[Chunk, Chunk, Chunk]:
        """The first, the second and the last chunk; of those in the middle, none has more layers than the second."""
        plan, number = self.plan, self.plan.pp * self.plan.interleave
        second = min(1, number - 1)
        found = {
            at: chunk(self._sharded, self.chip, plan, at, self.mode, self.sizes)
            for at in dict.fromkeys((0, second, number - 1))
        }
        return found[0], found[second], found[number - 1]

    @cached_property
    def _sharded(self) -> Graph:
        """The forward program of one device of a tensor-parallel group, in its formats."""
        plan = self.plan
        graph = stored(self.graph, plan.precision)
        if plan.tp > 1 or plan.ep > 1:
            graph = shard(graph, tp=plan.tp, sp=plan.sp, ep=plan.ep)
            graph = graph if self.cluster.implied else placed(graph, self.cluster, plan.tp)
        return lowered(graph, plan.precision)

    def _devices(self, chunks: tuple[Chunk, Chunk, Chunk]) -> list[dict[str, float]]:
        """Seconds by part of a micro-batch on each device of the pipeline."""
        held = [self._holds(chunks, device) for device in range(self.plan.pp)]
        return [_sum([{part: share * t for part, t in one.seconds.items()} for one, share in each]) for each in held]

    def _sent(self, chunks: tuple[Chunk, Chunk, Chunk]) -> float:
        """Activations of a micro-batch on their way to the next stage [s].

        What all devices of a tensor-parallel group have whole, each sends a part of, and the group that receives it
        puts it together again (Narayanan et al. 2021, section 4.1).
        """
        plan, size = self.plan, chunks[0].sent
        if plan.pp == 1:
            return 0.0
        parts = 1 if plan.sp else plan.tp
        seconds = float(collective(self.cluster, "send", size / parts, 2, stride=plan.tp * plan.dp).seconds)
        if parts > 1:
            seconds += float(collective(self.cluster, "all_gather", size, plan.tp).seconds)
        return seconds

    def _pipeline(
        self, chunks: tuple[Chunk, Chunk, Chunk], devices: Sequence[Mapping[str, float]], slow: Mapping[str, float]
    ) -> tuple[dict[str, float], tuple[float, ...]]:
        """The parts of all micro-batches on the slowest device, the bubble and the sends."""
        plan, m = self.plan, self.plan.micro_batches
        seconds = {part: m * value for part, value in slow.items()}
        busy = sum(seconds.values()) / m
        behind = slow[FORWARD] / (slow[FORWARD] + slow[BACKWARD] + slow[AGAIN])
        found = pipeline(
            busy * behind, busy * (1 - behind), plan.pp, m, send=self._sent(chunks), schedule=plan.schedule,
            interleave=plan.interleave,
        )  # fmt: skip
        others = sum(sum(parts.values()) for parts in devices) - busy
        seconds["sends"], seconds["bubble"] = float(found.sending), others / plan.interleave
        return seconds, found.in_flight

    @property
    def _ends(self) -> tuple[int, ...]:
        """The devices of the pipeline that differ from those in the middle: the first and the last."""
        return (0, self.plan.pp - 1) if self.plan.pp > 1 else (0,)

    def _holds(self, chunks: tuple[Chunk, Chunk, Chunk], device: int) -> tuple[tuple[Chunk, float], ...]:
        """The chunks of a device, those in the middle as shares of the second one."""
        number, (first, middle, last) = self.plan.pp * self.plan.interleave, chunks
        if number == 1:
            return ((first, 1.0),)
        layers, ends = shares(self._sharded, number), {0: first, number - 1: last}
        places = range(device, number, self.plan.pp)
        return tuple((ends[at], 1.0) if at in ends else (middle, layers[at] / layers[1]) for at in places)

    def _update(self, chunks: tuple[Chunk, Chunk, Chunk], device: int) -> float:
        """The update of what a device holds; of its share where the copies divide the states [s]."""
        mode: Mode = "graph" if self.mode == "compiled" else self.mode
        return sum(
            share * float(estimate(one.held.update, self.chip, mode=mode).time)
            for one, share in self._holds(chunks, device)
        )

    # --- between copies of the model --------------------------------------------------------------------------------

    def _exchanged(self, chunks: tuple[Chunk, Chunk, Chunk], slow: Mapping[str, float]) -> float:
        """What gradients and sharded weights hold up [s]."""
        plan = self.plan
        if plan.dp == 1:
            return 0.0
        most = [self._holds(chunks, device) for device in self._ends]
        weights, gradients = (
            max(sum(share * getattr(one.held, what) for one, share in holds) for holds in most)
            for what in ("weights", "gradients")
        )
        again = slow[AGAIN] + slow[BACKWARD]
        layers = int(chunks[0].forward_graph.info.get("layers", 1)) or 1
        timed: dict[str, Any] = timers(self.cluster, plan.dp, stride=plan.tp)
        found = data_parallel(
            weights, gradients, plan.zero, forward=slow[FORWARD], backward=again, layers=layers,
            micro_batches=plan.micro_batches, bucket=plan.bucket, overlap=plan.overlap, **timed,
        )  # fmt: skip
        return float(found.exposed)

    # --- memory -----------------------------------------------------------------------------------------------------

    def _memory(self, chunks: tuple[Chunk, Chunk, Chunk], held: tuple[float, ...]) -> TrainingMemory:
        """Of the device that needs the most: the first keeps the most micro-batches, the last has the logits."""
        return max((self._on(chunks, device, held) for device in self._ends), key=lambda need: float(need.total))

    def _on(self, chunks: tuple[Chunk, Chunk, Chunk], device: int, held: tuple[float, ...]) -> TrainingMemory:
        plan, holds = self.plan, self._holds(chunks, device)
        end = max((one for one, _ in holds), key=lambda one: one.passing)
        kept = sum(share * one.kept for one, share in holds) * held[device]
        weights, gradients, states = (
            sum(share * getattr(one.held, what) for one, share in holds) / (plan.dp if plan.zero >= least else 1)
            for what, least in (("weights", 3), ("gradients", 2), ("states", 1))
        )
        return TrainingMemory(
            weights=weights, kv_cache=0, inputs=end.inputs, activations=kept + end.passing, workspace=WORKSPACE,
            reserve=self.reserve, gradients=gradients, optimizer=states,
        )  # fmt: skip

    # --- how sure, how well -----------------------------------------------------------------------------------------

    def _peak(self, one: Chunk) -> float:
        """Peak of the format that most products run in."""
        by: dict[str, float] = {}
        for row in one.estimate.rows:
            for dtype, flops in row.flops_by.items():
                by[dtype] = by.get(dtype, 0.0) + row.kernel.count * float(flops)
        return self.chip.matmul_peak(max(by, key=lambda dtype: by[dtype]))

    def _notes(self, one: Chunk) -> tuple[str, ...]:
        notes = list(one.estimate.graph.info.get("notes", ()))
        if self.cluster.implied and self.plan.devices > self.cluster.devices_per_node:
            notes.append(f"{self.plan.devices} {self.chip.name} as in one node; name a cluster for links between nodes")
        return tuple(dict.fromkeys(notes))


def _sum(chunks: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {part: sum(chunk[part] for chunk in chunks) for part in chunks[0]}
