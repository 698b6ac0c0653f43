"""A step of training in the making: every device's virtual stages, their schedule, what passes between devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from roofline.analysis.collectives import collective, timers
from roofline.analysis.estimates import Mode, estimate
from roofline.analysis.scale_out import with_topology
from roofline.analysis.training.footprint import Bytes
from roofline.analysis.training.plan import Plan
from roofline.analysis.training.virtual_stage import (
    AGAIN,
    BACKWARD,
    FORWARD,
    VirtualStage,
    lowered,
    stored,
    virtual_stage,
)
from roofline.cost.pipelines import Pipeline, data_parallel, divided_among, pipeline
from roofline.counting.memory import WORKSPACE, TrainingMemory
from roofline.hardware.chip import Chip
from roofline.hardware.cluster import Cluster
from roofline.ir.graph import Graph
from roofline.passes.parallel.shard import shard
from roofline.passes.parallel.stage import stage

Parts = Mapping[str, float]


@dataclass(frozen=True)
class Run:
    """A model, where and how it is trained.

    Attributes:
        graph: The forward program, as one device would run it.
        cluster: The devices.
        plan: The layout.
        mode: As for :func:`roofline.estimate`.
        sizes: Of a micro-batch.
        reserve: Memory that driver and framework keep [byte].
    """

    graph: Graph
    cluster: Cluster
    plan: Plan
    mode: Mode
    sizes: Mapping[str, int]
    reserve: float

    @property
    def chip(self) -> Chip:
        """One device."""
        return self.cluster.device

    # --- what a device runs ---------------------------------------------------------------------------------------

    @cached_property
    def virtual_stages(self) -> tuple[VirtualStage, ...]:
        """Virtual stages of all devices in order; those of equal programs are worked out once."""
        plan = self.plan
        graph = stored(self.graph, plan.precision)
        if plan.tp > 1 or plan.ep > 1:
            graph = shard(graph, tp=plan.tp, sp=plan.sp, ep=plan.ep, algorithm="nccl")
            graph = with_topology(graph, self.cluster, plan.tp)
        graph = lowered(graph, plan.precision)
        number = plan.pp * plan.interleave
        parts = [stage(graph, number, at) for at in range(number)]
        known: dict[Any, VirtualStage] = {}
        for at, part in enumerate(parts):
            key = _alike(part, at, number)
            if key not in known:
                known[key] = virtual_stage(graph, part, self.chip, plan, self.mode, self.sizes)
        return tuple(known[_alike(part, at, number)] for at, part in enumerate(parts))

    @cached_property
    def devices(self) -> tuple[tuple[VirtualStage, ...], ...]:
        """Virtual stages of each device of a pipeline."""
        return tuple(self.virtual_stages[device :: self.plan.pp] for device in range(self.plan.pp))

    @cached_property
    def parts(self) -> tuple[Parts, ...]:
        """Seconds by part of a micro-batch on each device of a pipeline."""
        return tuple(
            {part: sum(one.seconds[part] for one in stages) for part in stages[0].seconds} for stages in self.devices
        )

    @property
    def slow(self) -> Parts:
        """Seconds by part of the device that all others wait for."""
        return max(self.parts, key=_total)

    # --- time ---------------------------------------------------------------------------------------------------------

    def seconds(self) -> dict[str, float]:
        """Time of a step by part [s]."""
        plan, slow = self.plan, self.slow
        seconds = {part: plan.micro_batches * value for part, value in slow.items()}
        seconds["sends"] = float(self.schedule.sending)
        # The first micro-batch passes all other devices too, and so does the last on its way back.
        seconds["bubble"] = (sum(map(_total, self.parts)) - _total(slow)) / plan.interleave
        seconds["data_parallel"] = self._exchanged()
        seconds["optimizer"] = max(map(self._update, self.devices))
        return seconds

    @cached_property
    def schedule(self) -> Pipeline:
        """The pipeline, as if all stages took as long as the slowest."""
        plan, slow = self.plan, self.slow
        busy = _total(slow)
        ahead = busy * slow[FORWARD] / (slow[FORWARD] + slow[BACKWARD] + slow[AGAIN])
        return pipeline(ahead, busy - ahead, plan.pp, plan.micro_batches, send=self._sent(), schedule=plan.schedule,
                        interleave=plan.interleave)  # fmt: skip

    def _sent(self) -> float:
        """Activations of a micro-batch on their way to the next stage [s].

        What all devices of a tensor-parallel group have whole, each sends a part of, and the group that receives it
        puts it together again (Narayanan et al. 2021, section 4.1).
        """
        plan, size = self.plan, self.virtual_stages[0].sent
        if plan.pp == 1:
            return 0.0
        parts = 1 if plan.sp else plan.tp
        seconds = float(collective(self.cluster, "send", size / parts, 2, stride=plan.tp * plan.dp).seconds)
        if parts > 1:
            seconds += float(collective(self.cluster, "all_gather", size, plan.tp).seconds)
        return seconds

    def _update(self, stages: Sequence[VirtualStage]) -> float:
        """The update of what a device holds; of its share where the replicas divide the states [s]."""
        mode: Mode = "graph" if self.mode == "compiled" else self.mode
        return sum(float(estimate(one.footprint.update, self.chip, mode=mode).time) for one in stages)

    # --- between replicas of the model ------------------------------------------------------------------------------

    def _exchanged(self) -> float:
        """Return the time that gradients and sharded weights hold up [s]: of replicas, of experts in their groups."""
        plan = self.plan
        dense = self._exposed(lambda one: one.footprint.dense, plan.dp, plan.tp)
        return dense + self._exposed(lambda one: one.footprint.routed, plan.dp // plan.ep, plan.tp * plan.ep)

    def _exposed(self, part: Callable[[VirtualStage], Bytes], replicas: int, stride: int) -> float:
        held = [[part(one) for one in stages] for stages in self.devices]
        gradients = max(sum(one.gradients for one in each) for each in held)
        if replicas == 1 or not gradients:
            return 0.0
        plan, slow = self.plan, self.slow
        timed: dict[str, Any] = timers(self.cluster, replicas, stride=stride)
        layers = sum(
            (1 if one.forward_graph.info.layers is None else one.forward_graph.info.layers) or 1
            for one in self.devices[0]
        )
        exchange = data_parallel(
            max(sum(one.weights for one in each) for each in held), gradients, plan.zero, forward=slow[FORWARD],
            backward=slow[AGAIN] + slow[BACKWARD], layers=layers, micro_batches=plan.micro_batches,
            overlap=plan.overlap, bucket=plan.bucket(replicas), **timed,
        )  # fmt: skip
        return float(exchange.exposed)

    # --- memory -------------------------------------------------------------------------------------------------------

    def memory(self) -> TrainingMemory:
        """Return the memory of the device that needs the most, by part [byte]."""
        needs = map(self._on, self.devices, self.schedule.in_flight)
        return max(needs, key=lambda need: float(need.total))

    def _on(self, stages: Sequence[VirtualStage], in_flight: float) -> TrainingMemory:
        plan = self.plan

        def divided(part: str) -> float:
            """Bytes of a part, of which ZeRO gives each copy a share."""
            replicas = [divided_among(part, among, plan.zero) for among in (plan.dp, plan.dp // plan.ep)]
            each = ((getattr(one.footprint.dense, part), getattr(one.footprint.routed, part)) for one in stages)
            return float(sum(dense / replicas[0] + routed / replicas[1] for dense, routed in each))

        return TrainingMemory(
            weights=divided("weights"), gradients=divided("gradients"), optimizer=divided("optimizer"),
            activations=in_flight * sum(one.saved for one in stages) + max(one.transient for one in stages),
            kv_cache=0, inputs=max(one.inputs for one in stages), workspace=WORKSPACE, reserve=self.reserve,
        )  # fmt: skip

    # --- work ---------------------------------------------------------------------------------------------------------

    def flops(self) -> tuple[float, float]:
        """Return the FLOPs of contractions of a step on all devices: those of the model, and those run."""
        times = self.plan.micro_batches * self.plan.dp * self.plan.tp
        model, hardware = (
            sum(getattr(one, what) for one in self.virtual_stages) for what in ("model_flops", "hardware_flops")
        )
        return times * model, times * hardware

    def peak(self) -> float:
        """Peak of the format that most matmuls run in [FLOP/s]."""
        by: dict[str, float] = {}
        for row in (row for one in self.virtual_stages for row in one.estimate.rows):
            for dtype, flops in row.flops_by.items():
                by[dtype] = by.get(dtype, 0.0) + row.kernel.count * float(flops)
        return self.chip.matmul_peak(max(by, key=lambda dtype: by[dtype]), tf32=bool(self.plan.tf32))


def _alike(part: Graph, at: int, number: int) -> Any:
    """Equal for stages that do the same work: as many nodes and parameters, and both at the same end or at none."""
    return len(part.nodes), part.parameters, at if at in (0, number - 1) else None


def _total(parts: Parts) -> float:
    return sum(parts.values())
