"""A step of training on many devices: time and memory by part, MFU, and the time for so many tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from roofline.analysis.estimates import Mode
from roofline.analysis.remedies import Kind, Remedy, among, offloaded, remedies, would_fit
from roofline.analysis.training.plan import Plan
from roofline.analysis.training.run import Run
from roofline.analysis.training.virtual_stage import VirtualStage
from roofline.counting.memory import RESERVE, TrainingMemory, reserved
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.cluster import Cluster
from roofline.hardware.cluster import cluster as find_cluster
from roofline.hardware.library import AnyChip
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, advice_on, positions_note, sizes_of
from roofline.ir.numbers import whole_number
from roofline.ir.report import Report, subject
from roofline.ir.sizes import evaluate
from roofline.ir.units import format_bytes, format_si

DAY = 86400.0

#: Precision of a step for a program in each format; fp32 for any other.
_PRECISION = {"bf16": "mixed-bf16", "fp16": "mixed-fp16"}


def usual_precision(graph: Graph) -> str:
    """Return the precision that a program is trained in by default: by the format of its largest weight.

    Example:
        >>> import roofline as rl
        >>> usual_precision(rl.model("llama-3-8b", phase="train"))
        'mixed-bf16'
    """
    weights = [tensor for tensor in graph.tensors.values() if tensor.kind == "weight"]
    return _PRECISION.get(max(weights, key=lambda tensor: tensor.numel).dtype, "fp32") if weights else "fp32"


@dataclass(frozen=True, repr=False)
class TrainingStep(Report):
    """What to expect of one step of training.

    From :func:`roofline.training.train`.

    Attributes:
        name: The model.
        program: Its forward program, as one device would run it.
        cluster: Where it runs.
        plan: The layout.
        mode: How it runs.
        seconds: Time by part; the parts add up to :attr:`time` [s]: forward, backward, recompute, communication (of
            tensor, sequence and expert parallelism), sends (between stages, what nothing hides), bubble (filling and
            draining the pipeline), data_parallel (gradients and sharded weights, what nothing hides), optimizer.
        low: The fast end of its range [s].
        high: The slow end [s].
        memory: Return the memory of the device that needs the most, by part [byte].
        capacity: Of a device [byte]; None where nobody published it.
        model_flops: Of all devices: three times the matmuls of the forward; what MFU counts.
        hardware_flops: Of all devices: all matmuls that run; what HFU counts.
        peak: Of one device, in the format of its matmuls [FLOP/s].
        items: Tokens or images of a step.
        item: Their word.
        virtual_stages: What each virtual stage of layers takes, in order.
        notes: What a reader should know.
    """

    schema = "train"

    name: str
    program: Graph
    cluster: Cluster
    plan: Plan
    mode: str
    seconds: Mapping[str, float]
    low: float
    high: float
    memory: TrainingMemory
    capacity: float | None
    model_flops: float
    hardware_flops: float
    peak: float
    items: float
    item: str
    virtual_stages: tuple[VirtualStage, ...]
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
    def fits(self) -> bool | None:
        """True where the device that needs the most has room, None where nobody published how much it has."""
        return None if self.capacity is None else float(self.memory.total) <= self.capacity

    @property
    def throughput(self) -> float:
        """Items per second of all devices."""
        return self.items / self.time

    def seconds_for(self, items: float) -> float:
        """Return the time to train on so many tokens or images [s].

        Raises:
            UsageError: Not a positive number.
        """
        if not items > 0:
            raise UsageError(f"{items!r} {self.item}s to train on; expected a positive number")
        return items / self.throughput

    def days(self, items: float) -> float:
        """Return the same in days."""
        return self.seconds_for(items) / DAY

    def subject(self) -> dict[str, Any]:
        """Return the model, the devices and the layout."""
        layout = {**asdict(self.plan), "micro_batches": self.plan.micro_batches}
        first = self.virtual_stages[0].estimate
        about = subject(first.graph, self.chip.name, self.mode, first.grid.values)
        sizes = {**about["sizes"], "batch": layout.pop("batch"), "micro_batch": layout.pop("micro_batch")}
        return {**about, "phase": "train", "sizes": sizes, "devices": self.devices, "layout": layout}

    def summary(self) -> dict[str, Any]:
        """Return time, memory and throughput of the whole."""
        parts = {name: float(value) for name, value in self.memory.parts().items()}
        return {
            "time_s": self.time, "low_s": self.low, "high_s": self.high,
            "memory_bytes": {**parts, "total": sum(parts.values())}, "capacity_bytes": self.capacity,
            "fits": self.fits, "model_flops": self.model_flops, "hardware_flops": self.hardware_flops,
            "mfu": self.mfu, "hfu": self.hfu, f"{self.item}s": self.items,
            f"{self.item}s_per_s": self.throughput, "notes": list(self.notes),
        }  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per part of the time."""
        return [{"part": part, "time_s": value, "share": value / self.time} for part, value in self.seconds.items()]

    def __repr__(self) -> str:
        time, low, high = (format_si(value, "s") for value in (self.time, self.low, self.high))
        room = "" if self.capacity is None else f" in {format_bytes(self.capacity)}"
        fit = {True: "fits", False: "does not fit", None: "capacity unknown"}[self.fits]
        need = format_bytes(float(self.memory.total))
        return (
            f"<TrainingStep {self.name} on {self.devices} x {self.chip.name}: {time} ({low} to {high}), "
            f"MFU {100 * self.mfu:.1f}%, {need} per device ({fit}{room})>"
        )


def train(
    program: Program,
    chip: AnyChip | Cluster,
    *,
    batch: int, micro_batch: int | None = None, tp: int = 1, sp: bool = False, pp: int = 1, interleave: int = 1,
    dp: int = 1, ep: int = 1, zero: int = 0, recompute: str = "none", optimizer: str = "adamw",
    precision: str | None = None, tf32: bool | None = None, overlap: bool = True, overlap_experts: bool = False,
    accumulation: str = "fused", mode: Mode = "eager", reserve: str | float = RESERVE, **sizes: int,
) -> TrainingStep:  # fmt: skip
    """Predict a step of training: forward, backward and update, on one device or many.

    The forward program is sharded, cut into stages and differentiated, and each device's program estimated by kernel;
    a pipeline's schedule and the exchange between replicas come on top (:mod:`roofline.cost.pipelines`).

    Args:
        program: A graph of the forward, best of phase ``train`` (dropout and a loss), or what ``as_graph`` takes.
        chip: A chip, or a cluster where a group of devices is larger than a node.
        batch: Sequences or images per step, of all devices together.
        micro_batch: What a device runs at once; all of its share, or 1 in a pipeline, when absent.
        tp: Devices that share every layer.
        sp: Share the positions of norms, dropouts and residuals too.
        pp: Stages of a pipeline.
        interleave: Virtual stages that each device of a pipeline holds.
        dp: Replicas of the model.
        ep: Groups of replicas that share the experts.
        zero: What replicas divide between them: 1 optimizer states, 2 gradients too, 3 weights too.
        recompute: Of activations, in the backward: ``none``, ``selective`` (attention's scores), ``full`` (layers).
        optimizer: ``sgd``, ``momentum``, ``adamw``, ``adafactor`` or ``adam8bit``.
        precision: ``fp32``, ``bf16``, ``fp16``, ``amp-bf16``, ``amp-fp16``, ``mixed-bf16`` or ``mixed-fp16`` (16-bit
            weights, fp32 master copy and gradients); by the model's format when absent.
        tf32: As for :func:`roofline.estimate`.
        overlap: Let gradients and sharded weights travel during the computation.
        overlap_experts: Let tokens travel to experts beside another micro-batch (DualPipe, arXiv 2412.19437).
        accumulation: Of gradients in ``mixed`` precision: ``fused`` (Megatron-LM) or ``separate`` (DeepSpeed).
        mode: As for :func:`roofline.estimate`.
        reserve: Memory that driver and framework keep [byte], a number or text such as ``"1 GiB"``.
        sizes: ``seq`` and any other size of the program but the batch.

    Returns:
        Time and memory by part, MFU, and the time for so many tokens.

    Raises:
        UsageError: A layout that cannot be; what is allowed and the nearest.

    Example:
        >>> step = train("gpt2", "h100-sxm", batch=8, seq=1024, precision="amp-bf16")
        >>> step.devices, step.fits, 0.03 < step.time < 0.12
        (1, True, True)
    """
    cluster, graph = find_cluster(chip), _program(program)
    each = _whole_share(batch, pp, dp) if micro_batch is None else micro_batch
    at = {**sizes_of(graph, {**sizes, "batch": batch}), "B": each}
    plan = Plan(
        batch=batch, micro_batch=each, tp=tp, sp=sp, pp=pp, interleave=interleave, dp=dp, ep=ep, zero=zero,
        recompute=recompute, optimizer=optimizer, overlap=overlap, overlap_experts=overlap_experts,
        accumulation=accumulation, precision=usual_precision(graph) if precision is None else precision, tf32=tf32,
    )  # fmt: skip
    plan.check(cluster)
    plan.check_positions(at.get("S") if "S" in graph.symbols else None)
    return _step(Run(graph, cluster, plan, mode, {n: at[n] for n in graph.symbols if n in at}, reserved(reserve)))


def _whole_share(batch: int, pp: int, dp: int) -> int:
    """Return the share of a replica's batch that it runs at once where nothing is said: one in a pipeline, else all."""
    replicas = whole_number("dp", dp)
    return 1 if whole_number("pp", pp) > 1 else max(whole_number("batch", batch) // replicas, 1)


def _program(program: Program) -> Graph:
    graph = as_graph(program, implied="train")
    if "B" not in graph.symbols:
        raise UsageError(f"{graph.name} has no symbol B: its batch is fixed; a step needs a program with a batch"
                         f"{advice_on(graph, 'B')}")  # fmt: skip
    if graph.backward_start is not None:
        raise UsageError(f"{graph.name} has a backward already; give the forward program")
    return graph


def _step(run: Run) -> TrainingStep:
    plan, seconds, memory = run.plan, run.seconds(), run.memory()
    total = sum(seconds.values())
    # Parts of one chip err together: the widest of their ranges is that of the whole.
    parts = [one.estimate for one in run.virtual_stages]
    low, high = min(float(e.low) / float(e.time) for e in parts), max(float(e.high) / float(e.time) for e in parts)
    model_flops, hardware_flops = run.flops()
    return TrainingStep(
        name=run.graph.title, program=run.graph, cluster=run.cluster, plan=plan, mode=run.mode, seconds=seconds,
        low=total * low, high=total * high, memory=memory, capacity=run.chip.main.capacity, model_flops=model_flops,
        hardware_flops=hardware_flops, peak=run.peak(), item=run.graph.item,
        virtual_stages=run.virtual_stages, notes=_notes(run),
        items=float(evaluate(run.graph.items, {**run.sizes, "B": plan.batch})),
    )  # fmt: skip


@would_fit.register
def _of_step(step: TrainingStep) -> tuple[Remedy, ...]:
    if step.fits is not False or step.capacity is None:
        return ()
    plan, sizes = asdict(step.plan), step.virtual_stages[0].estimate.grid.values
    own = _whole_share(plan["batch"], plan["pp"], plan["dp"]) != plan["micro_batch"]

    def need(change: Mapping[str, Any]) -> float:
        options = {**plan, **({} if own else {"micro_batch": None}), **{"seq": sizes.get("S")}, **change}
        options = {name: value for name, value in options.items() if name != "seq" or value is not None}
        run = train(step.program, step.cluster, mode=step.mode, reserve=step.memory.reserve, **options)  # type: ignore[arg-type]
        return float(run.memory.total)

    states = offloaded(step.memory, step.capacity, step.chip)
    return remedies(need, step.capacity, _kinds(step.plan, sizes), states, most=2)


def _kinds(plan: Plan, sizes: Mapping[str, Any]) -> tuple[Kind, ...]:
    """Return the kinds of changes of a step: what runs at once, recomputation, ZeRO, devices, formats, sequences."""
    share, length = plan.micro_batch, int(sizes.get("S", 1))
    copies = [{"zero": stage} for stage in (1, 2, 3)] if plan.dp > 1 else [{"dp": n, "zero": 3} for n in (2, 4, 8)]
    return (
        among(*({"micro_batch": n} for n in range(share - 1, 0, -1) if share % n == 0)),
        among({"recompute": "selective"}, {"recompute": "full"}),
        among(*copies),
        among(*({"tp": n} for n in (2, 4, 8) if n > plan.tp)),
        among({"optimizer": "adam8bit"}, {"precision": "bf16"}, {"optimizer": "adam8bit", "precision": "bf16"}),
        among(*({"seq": length // n} for n in (2, 4, 8) if length >= n)),
    )


def _notes(run: Run) -> tuple[str, ...]:
    notes = list(run.virtual_stages[0].estimate.graph.info.notes)
    if beyond := positions_note(run.graph, run.sizes):
        notes.append(beyond)
    return tuple(dict.fromkeys(notes))
