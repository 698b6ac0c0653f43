"""A program's way through a compiler: captured, cleaned, fused, planned, scheduled, with what each stage saves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from roofline.analysis.estimates import estimate
from roofline.analysis.provenance import PassHistory
from roofline.analysis.schedules import FIGURES as FIGURES_OF_SCHEDULES
from roofline.analysis.schedules import Row, fastest
from roofline.counting.counts import Kernel, count_graph, kernels
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import ShapeError, UsageError
from roofline.ir.graph import Graph
from roofline.ir.report import Report, subject
from roofline.ir.sizes import evaluate
from roofline.ir.units import format_bytes, format_si
from roofline.ops.registry import OPS
from roofline.passes.fusion.fuse import fuse, unfuse
from roofline.passes.rewriting.clean import clean
from roofline.planning.memory import MemoryPlan, memory_plan
from roofline.tiling.moves import compulsory
from roofline.tiling.operators import of_operator
from roofline.tiling.search import best

#: Figures of a stage that the next one may make smaller.
FIGURES = ("nodes", "kernels", "bytes", "memory_bytes", "time_s", "expected_s")


@dataclass(frozen=True, slots=True)
class Stage:
    """A program at one point of its way.

    Attributes:
        name: ``captured``, ``cleaned``, ``fused``, ``planned`` or ``scheduled``.
        what: What was done.
        nodes: Operators.
        kernels: Launches of a run.
        flops: Contraction FLOPs.
        bytes: Traffic of main memory [byte].
        memory_bytes: Peak of main memory, tensors placed at offsets [byte].
        time_s: Kernels at the achievable rates of memories and engines, as :func:`roofline.memory_plan` has it [s].
        expected_s: What the time model expects of the kernels; ``None`` behind the stages that it knows [s].
    """

    name: str
    what: str
    nodes: int
    kernels: int
    flops: float
    bytes: float
    memory_bytes: float
    time_s: float
    expected_s: float | None


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of a contraction that moves the least through main memory.

    Attributes:
        kernel: The kernel, of the first of its name.
        count: How often it runs.
        tile: Elements along each axis.
        order: Axes from the outermost loop inwards.
        compulsory_bytes: Its operands and its result once [byte].
        moved_bytes: What the tile moves [byte].
    """

    kernel: str
    count: int
    tile: dict[str, int]
    order: tuple[str, ...]
    compulsory_bytes: float
    moved_bytes: float

    @property
    def text(self) -> str:
        """Write the tile as ``m=128 n=64``, axes of one element left out."""
        return " ".join(f"{axis}={size}" for axis, size in self.tile.items() if size > 1) or "1"

    def record(self) -> dict[str, Any]:
        """Return all of it by name."""
        return {**asdict(self), "tile": self.text, "order": " ".join(self.order)}


@dataclass(frozen=True, slots=True)
class Blocks:
    """The fastest schedule of a matmul, and what its library is expected to take: both from main memory.

    Attributes:
        kernel: The kernel, of the first of its name.
        count: How often it runs.
        best: The fastest schedule, and what it takes.
        library_s: Of a launch of the library's own choice, with what is fused into it [s].
    """

    kernel: str
    count: int
    best: Row
    library_s: float

    def record(self) -> dict[str, Any]:
        """Return all of it by name."""
        chosen = {name: getattr(self.best, name) for name in (*FIGURES_OF_SCHEDULES, "time_s")}
        return {"kernel": self.kernel, "count": self.count, **chosen, "library_s": self.library_s}


@dataclass(frozen=True, repr=False)
class Pipeline(Report):
    """A program stage by stage, and what each stage saves.

    From :func:`roofline.diagnosis.pipeline`.

    Attributes:
        graph: The program with its kernels fused.
        chip: Where it runs.
        sizes: Its sizes, by symbol.
        stages: In order.
        tiles: Those of the last stage, a row per distinct contraction.
        plan: The plan of its memory.
        schedules: The fastest schedule of each distinct matmul, on NVIDIA's GPUs.
    """

    graph: Graph
    chip: Chip
    sizes: Mapping[str, Any]
    stages: tuple[Stage, ...]
    tiles: tuple[Tile, ...]
    plan: MemoryPlan
    schedules: tuple[Blocks, ...] = ()
    schema = "pipeline"

    def subject(self) -> dict[str, Any]:
        """Return the program, where it runs, and its sizes."""
        return {**subject(self.graph, self.chip.name, sizes=self.sizes), "passes": []}

    def summary(self) -> dict[str, Any]:
        """Return the tiles and schedules, and how much faster the last stage is than the first."""
        first, last = self.stages[0], self.stages[-1]
        tiles, blocks = [tile.record() for tile in self.tiles], [each.record() for each in self.schedules]
        return {"tiles": tiles, "matmuls": blocks, "speed_up": first.time_s / last.time_s}

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per stage: its figures, and what it saves of each against the stage before."""
        rows = []
        for before, stage in zip((self.stages[0], *self.stages), self.stages, strict=False):
            rows.append({**asdict(stage), "saves": {name: _saved(before, stage, name) for name in FIGURES}})
        return rows

    @property
    def history(self) -> PassHistory:
        """The stages as passes, for the chart of what each saved."""
        states = tuple(
            {"parameters": self.graph.parameters, "kernels": stage.kernels, "flops": stage.flops, "bytes": stage.bytes,
             "memory_bytes": stage.memory_bytes, "time_s": stage.time_s} for stage in self.stages
        )  # fmt: skip
        steps = tuple(stage.name for stage in self.stages[1:])
        return PassHistory(self.graph, self.chip.name, steps, ((),) * len(steps), states)

    def __repr__(self) -> str:
        lines = [
            f"{stage.name}: {stage.nodes:,} nodes, {stage.kernels:,} kernels, {format_bytes(stage.bytes)} moved, "
            f"{format_bytes(stage.memory_bytes)} of memory, {format_si(stage.time_s, 's')}" for stage in self.stages
        ]  # fmt: skip
        return "\n".join([f"{self.graph.title} on {self.chip.name}", *lines])


def _saved(before: Stage, after: Stage, figure: str) -> float | None:
    first, second = getattr(before, figure), getattr(after, figure)
    return None if first is None or second is None else first - second


def pipeline(
    program: Program,
    chip: AnyChip,
    *,
    policy: str = "inductor",
    level: str | None = None,
    tf32: bool | None = None,
    phase: str | None = None,
    dtype: str | None = None,
    **sizes: Any,
) -> Pipeline:
    """Follow a program from how it was captured to tiles, and say what each stage saves.

    Captured: a kernel for each operator, all operands from main memory and back. Cleaned: without equal nodes,
    constants and dead code. Fused: attention as one kernel, the rest by a policy. Planned: what kernels hand to kernels
    stays on chip as far as it fits, weights come ahead. Scheduled: each contraction in the tile that moves the least;
    what it reads more than once counts; on NVIDIA's GPUs each matmul with its fastest schedule beside the library.

    Args:
        program: A graph, a shipped name, or the path of a model file, workload, config or script.
        chip: A name, a path or a chip.
        policy: Which kernels are fused, as for :func:`roofline.passes.fuse`.
        level: The memory on chip that is filled, as for :func:`roofline.memory_plan`; ``main`` for none.
        tf32: As for :func:`roofline.estimate`.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        sizes: ``batch``, ``seq``, ``context`` and any other size of the program, single numbers.

    Returns:
        The stages.

    Raises:
        UsageError: Not one point, a pipeline of devices, an unknown policy or level.
        MissingFigure: The chip has no bandwidth of its main memory, or no rate for a number format.

    Example:
        >>> way = pipeline("gpt2", "h100-sxm", phase="decode", batch=8, context=512)
        >>> [stage.name for stage in way.stages], way.stages[0].kernels > way.stages[2].kernels
        (['captured', 'cleaned', 'fused', 'planned', 'scheduled'], True)
    """
    where = find_chip(chip)
    captured = _captured(as_graph(program, phase, dtype))
    cleaned = clean(captured)
    fused = fuse(fuse(cleaned, "flash"), policy)
    options = {"mode": "graph", "tf32": tf32, **sizes}
    rows = [
        _stage(name, what, graph, where, options)
        for name, what, graph in (("captured", "a kernel per operator", captured),
                                  ("cleaned", "no dead or equal nodes", cleaned), ("fused", f"flash, {policy}", fused))
    ]  # fmt: skip
    plan = memory_plan(fused, where, level=level, **options)
    placed = replace(rows[-1], name="planned", what=_filled(plan), bytes=float(plan.moves.main.sum()),
                     memory_bytes=float(plan.levels[0].peak_bytes), time_s=plan.time_s, expected_s=None)  # fmt: skip
    tiles = _tiles(plan)
    last = _scheduled(placed, plan, tiles)
    stages, listed = (*rows, placed, last), tuple(tile for _, tile in tiles)
    return Pipeline(fused, where, plan.sizes, stages, listed, plan, _blocks(fused, where, options))


def _captured(graph: Graph) -> Graph:
    """Run each operator as a kernel, but for those in whose kernel a dequantisation stands: no pass puts it back."""
    whole, apart = {node.kernel for node in graph.nodes if node.op == "dequantize"} - {""}, unfuse(graph)
    pairs = zip(graph.nodes, apart.nodes, strict=True)
    return replace(apart, nodes=tuple(own if own.kernel in whole else alone for own, alone in pairs))


def _stage(name: str, what: str, graph: Graph, chip: Chip, options: Mapping[str, Any]) -> Stage:
    """Return the figures of a program whose tensors all pass through main memory."""
    est = estimate(graph, chip, **options)
    plan, counts = memory_plan(graph, chip, level="main", **options), count_graph(graph, **est.grid.sizes)
    return Stage(
        name, what, len(graph.nodes), counts.launches, float(counts.flops), float(counts.bytes),
        float(plan.levels[0].peak_bytes), plan.time_s, float(est.time),
    )  # fmt: skip


def _filled(plan: MemoryPlan) -> str:
    near = plan.levels[1:]
    return f"{format_bytes(near[0].peak_bytes)} in {near[0].level}" if near else "all in main memory"


def _tiles(plan: MemoryPlan) -> list[tuple[Kernel, Tile]]:
    """Return the best tile of each kernel around one contraction, for the memory that the plan fills."""
    room = plan.levels[-1].capacity_bytes if len(plan.levels) > 1 else None
    every = ((kernel, _tile(kernel, float(room), plan.sizes)) for kernel in kernels(plan.graph)) if room else ()
    return [(kernel, tile) for kernel, tile in every if tile is not None]


def _tile(kernel: Kernel, room: float, sizes: Mapping[str, Any]) -> Tile | None:
    contractions = [node for node in kernel.nodes if OPS[node.op].kind in ("matmul", "conv", "attention", "moe")]
    if len(contractions) != 1 or kernel.kind not in ("matmul", "conv"):
        return None
    shapes = [tuple(int(evaluate(size, sizes)) for size in shape) for shape in kernel.shapes]
    widths = [*(DTYPES[stored].bytes for stored in kernel.stored), DTYPES[kernel.output.dtype].bytes]
    try:
        nest = of_operator(kernel.main.op, *shapes, widths=widths, **kernel.attrs)
        choice = best(nest, room)
    except (UsageError, ShapeError):  # no contraction by its signature alone, or no tile fits
        return None
    moved, least = float(choice.traffic.bytes), float(compulsory(nest))
    return Tile(kernel.name, kernel.count, dict(choice.tile), choice.order, least, max(moved, least))


def _blocks(graph: Graph, chip: Chip, options: Mapping[str, Any]) -> tuple[Blocks, ...]:
    """Return the fastest schedule of each matmul, where schedules are priced."""
    est = estimate(graph, chip, regime="cold", **options)
    return tuple(
        Blocks(kernel.name, kernel.count, row, library)
        for kernel, row, library in fastest(est)
        if row.time_s is not None
    )


def _scheduled(before: Stage, plan: MemoryPlan, tiles: list[tuple[Kernel, Tile]]) -> Stage:
    """Add what tiles read more than once to the traffic of their kernels, and what that takes to their times."""
    reread = {name: tile.moved_bytes - tile.compulsory_bytes for kernel, tile in tiles for name in kernel.names}
    extra = np.array([reread.get(label, 0.0) for label in plan.kernels])
    alone = plan.pace.alone(plan.moves)
    longer = float((np.maximum(alone, (plan.moves.main + extra) / plan.pace.main) - plan.seconds).sum())
    what = f"tiles for {plan.levels[-1].level}" if tiles else "no tiles"
    return replace(before, name="scheduled", what=what, bytes=before.bytes + float(extra.sum()),
                   time_s=before.time_s + longer)  # fmt: skip
