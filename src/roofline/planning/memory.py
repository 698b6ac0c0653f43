"""Where the tensors of a program lie while it runs, what that costs, and what loading ahead hides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.analysis.estimates import Estimate, Mode, estimate
from roofline.analysis.remedies import FORMATS, SHARED, Change, Remedy, changed, remedies, would_fit
from roofline.analysis.timeline import kernel_runs
from roofline.cost.machine import machine
from roofline.counting.grid import one_point
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.hardware.parts import MemoryLevel
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph
from roofline.ir.numbers import whole_number
from roofline.ir.report import Report, subject
from roofline.ir.text import shown
from roofline.planning.lives import Life, Stay, Traffic, lives, stays, traffic
from roofline.planning.placement import ALIGNMENT, Arena, Block, live_bytes, place
from roofline.planning.prefetch import Loaded, Pace, ahead, pace


@dataclass(frozen=True, slots=True)
class Placed:
    """A tensor, or a part of its life, at a place.

    Attributes:
        tensor: Its name.
        kind: ``weight``, ``buffer``, ``cache``, ``input`` or ``activation``; ``loaded ahead`` for the weights of a
            kernel that come while the one before it runs.
        level: The memory, by the chip's own name.
        offset_bytes: Where it begins [byte].
        size_bytes: How large it is [byte].
        first: Number of the first kernel that needs it there.
        last: Number of the last one.
        spilled: Whether it goes out to main memory and comes back, though a kernel hands it to another.
    """

    tensor: str
    kind: str
    level: str
    offset_bytes: int
    size_bytes: int
    first: int
    last: int
    spilled: bool = False

    @property
    def block(self) -> Block:
        """Bytes and steps of it."""
        return Block(self.size_bytes, self.first, self.last)

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.offset_bytes + self.size_bytes


@dataclass(frozen=True, slots=True)
class LevelUse:
    """What a plan takes of one memory.

    Attributes:
        level: By the chip's own name.
        capacity_bytes: What there is; ``None`` where nobody published it [byte].
        stored_bytes: What is there before the run, one behind the other: weights, caches, inputs [byte].
        arena_bytes: Behind that, what tensors share that come and go [byte].
        live_bytes: The most that these need at once: no plan of the same tensors has a smaller arena [byte].
    """

    level: str
    capacity_bytes: float | None
    stored_bytes: int
    arena_bytes: int
    live_bytes: int

    @property
    def peak_bytes(self) -> int:
        """The end of the last block: what the plan needs [byte]."""
        return self.stored_bytes + self.arena_bytes

    @property
    def fragmentation(self) -> float:
        """Arena over the most that it holds at once, 1 where nothing is lost between blocks."""
        return self.arena_bytes / self.live_bytes if self.live_bytes else 1.0

    @property
    def fits(self) -> bool | None:
        """True where the peak is within the capacity, ``None`` where nobody knows that."""
        return None if self.capacity_bytes is None else self.peak_bytes <= self.capacity_bytes

    def record(self) -> dict[str, Any]:
        """Return all of it by name."""
        return {
            **asdict(self), "peak_bytes": self.peak_bytes, "fragmentation": self.fragmentation, "fits": self.fits,
        }  # fmt: skip


@dataclass(frozen=True)
class MemoryPlan(Report):
    """Where each tensor of a run lies and when, what is spilled, and what that costs.

    From :func:`roofline.memory_plan`.

    Attributes:
        graph: The program as it runs.
        chip: Where.
        mode: How.
        sizes: Its sizes, by symbol.
        kernels: Labels of its kernels in their order; ``first`` and ``last`` of a row count them from 0.
        placed: What lies where and when.
        levels: What is taken of main memory, and of the level on chip where there is one.
        moves: Bytes by kernel.
        pace: What kernels take.
        on_chip_s: The run if all that kernels hand to kernels stayed on chip, loading nothing ahead [s].
        in_time_s: The run as planned, each kernel loading its weights while it runs [s].
        time_s: The run with weights loaded ahead [s].
    """

    graph: Graph
    chip: Chip
    mode: str
    sizes: dict[str, Any]
    kernels: tuple[str, ...]
    placed: tuple[Placed, ...]
    levels: tuple[LevelUse, ...]
    moves: Traffic
    pace: Pace
    on_chip_s: float
    in_time_s: float
    time_s: float
    schema = "memory_plan"

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Time of each kernel, with what it loads and spills while it runs [s]."""
        return np.asarray(np.maximum(self.pace.alone(self.moves), self.moves.main / self.pace.main))

    @property
    def spill_cost_s(self) -> float:
        """Time that spills add to a run, before anything is loaded ahead [s]."""
        return self.in_time_s - self.on_chip_s

    @property
    def hidden_s(self) -> float:
        """Time that loading weights ahead saves [s]."""
        return self.in_time_s - self.time_s

    @property
    def spilled_bytes(self) -> float:
        """Bytes that go out, and those that come back [byte]."""
        return float(self.moves.out.sum() + self.moves.back.sum())

    def subject(self) -> dict[str, Any]:
        """Return the program, where and how it runs, and its sizes."""
        return subject(self.graph, self.chip.name, self.mode, self.sizes)

    def summary(self) -> dict[str, Any]:
        """Return what each level holds, spills and their cost, what comes ahead and what that hides, and the time."""
        loaded = [each.size_bytes for each in self.placed if each.kind == LOADED]
        return {
            "kernels": len(self.kernels),
            "levels": [use.record() for use in self.levels],
            "spilled_tensors": len({each.tensor for each in self.placed if each.spilled}),
            "spilled_out_bytes": float(self.moves.out.sum()), "spilled_back_bytes": float(self.moves.back.sum()),
            "spill_s": self.spilled_bytes / self.pace.main, "spill_cost_s": self.spill_cost_s,
            "weights_bytes": float(self.moves.weights.sum()), "loaded_ahead_bytes": sum(loaded),
            "hidden_s": self.hidden_s, "main_bytes": float(self.moves.main.sum()), "on_chip_s": self.on_chip_s,
            "time_s": self.time_s,
        }  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per tensor and level that it lies in, with the kernels that need it there."""
        return [
            {**asdict(each), "first_kernel": self.kernels[each.first], "last_kernel": self.kernels[each.last]}
            for each in self.placed
        ]

    def __repr__(self) -> str:
        taken = ", ".join(f"{use.level} {use.peak_bytes:,} B" for use in self.levels)
        return f"<MemoryPlan {self.graph.name} on {self.chip.name}: {taken}>"


#: The kind of weights that come while the kernel before theirs runs.
LOADED = "loaded ahead"


def memory_plan(
    program: Program,
    chip: AnyChip,
    *,
    level: str | None = None,
    alignment: int = ALIGNMENT,
    mode: Mode = "eager",
    tf32: bool | None = None,
    phase: str | None = None,
    dtype: str | None = None,
    **sizes: Any,
) -> MemoryPlan:
    """Plan where the tensors of a program lie while it runs: on chip or in main memory, at which offset, from when on.

    What kernels hand to kernels stays on chip as far as it finds room there; the rest goes out and comes back, its cost
    in ``spill_cost_s``. Weights come from main memory, ahead of their kernel where that is idle and there is room.

    Args:
        program: A graph, a shipped name, or the path of a model file, workload, config or script.
        chip: A name, a path or a chip.
        level: The memory on chip, by its name in the chip's file, or ``main`` for none; by default the cache that the
            whole chip shares, of a chip that is no GPU else the memories of its cores.
        alignment: What offsets are multiples of [byte].
        mode: ``eager`` and ``graph`` for the kernels as they are, ``compiled`` for chains as one.
        tf32: As for :func:`roofline.estimate`.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        sizes: ``batch``, ``seq``, ``context`` and any other size of the program, single numbers.

    Returns:
        A row per tensor and level, what each level holds, and the time with spills and with what comes ahead.

    Raises:
        UsageError: Not one point, a pipeline, or a level that the chip has not or has no capacity of.
        MissingFigure: The chip has no bandwidth of its main memory, or no rate for a number format.

    Example:
        >>> plan = memory_plan("mobilenet-v2", "tpu-v5e", batch=1)
        >>> [use.level for use in plan.levels], plan.spilled_bytes
        (['HBM', 'VMEM'], 0.0)
    """
    graph, where = as_graph(program, phase, dtype), find_chip(chip)
    alignment = whole_number("alignment", alignment, most=2**30)
    if graph.info.pipeline:
        raise UsageError(f"{graph.name}: a memory plan is of one device, and the stages of a pipeline are on several")
    near = _near(where, level)
    est = estimate(graph, where, mode=mode, tf32=tf32, **sizes)
    one_point(est.axis_names, "memory is planned for")
    return _planned(est, near, alignment)


def _planned(est: Estimate, near: MemoryLevel | None, alignment: int) -> MemoryPlan:
    """Choose what stays on chip, place everything, and time the run."""
    steps = [run.kernel for run in kernel_runs(est)]
    every, speed = lives(est, steps), pace(est, steps, near.bandwidth if near else None)
    room = Arena(alignment, float(near.capacity or 0) if near else 0.0)
    handed = [life for life in every if life.kind == "activation"]
    chosen = stays(handed, len(steps), room) if near else []
    moves = traffic(every, chosen, len(steps))
    whole = [Stay(life, life.uses[0], life.uses[-1]) for life in handed if life.waits]
    on_chip = traffic(every, whole, len(steps))
    in_time = speed.seconds(moves)
    time, loaded = ahead(moves, speed, room) if near else (in_time, [])
    placed, levels = _in_main(every, chosen, est.chip.main, alignment)
    if near is None:  # nothing goes out where there is nowhere else to be
        nothing = np.zeros(len(steps))
        moves, placed = replace(moves, out=nothing, back=nothing), [replace(each, spilled=False) for each in placed]
    else:
        inner = [*_on_chip(chosen, near.name), *_ahead(loaded, steps, near.name)]
        levels, placed = (*levels, _use(near, inner)), [*placed, *inner]
    return MemoryPlan(
        est.graph, est.chip, est.mode, dict(est.grid.values), tuple(steps), tuple(placed), levels, moves, speed,
        speed.seconds(on_chip) if near else in_time, in_time, time,
    )  # fmt: skip


@would_fit.register
def _of_plan(plan: MemoryPlan) -> tuple[Remedy, ...]:
    main = plan.levels[0]
    if main.fits is not False or main.capacity_bytes is None:
        return ()

    def need(change: Change) -> float:
        est = estimate(changed(plan.graph, change), plan.chip, mode=plan.mode, **plan.sizes)  # type: ignore[arg-type]
        return float(_planned(est, None, ALIGNMENT).levels[0].peak_bytes)

    return remedies(need, main.capacity_bytes, (FORMATS, SHARED))


def _near(chip: Chip, name: str | None) -> MemoryLevel | None:
    """Return the memory on chip that a plan fills, ``None`` where it fills none."""
    inner = [level for level in chip.memory[1:] if level.capacity]
    if name is None:
        mine = [level for level in inner if not machine(chip).is_gpu]
        return chip.cache if chip.cache in inner else next(iter(mine), None)
    if not isinstance(name, str):
        raise UsageError(f"level={shown(name)}: expected the name of a memory: {_named(chip)}")
    if chip.level(name) is chip.main:
        return None
    if chip.level(name) not in inner:
        raise UsageError(f"level {name!r}: {chip.name} states no capacity of it; with one: {_named(chip)}")
    return chip.level(name)


def _named(chip: Chip) -> str:
    return ", ".join(["main", *(level.name for level in chip.memory[1:] if level.capacity)])


def _in_main(
    every: Sequence[Life], chosen: Sequence[Stay], level: MemoryLevel, alignment: int
) -> tuple[list[Placed], tuple[LevelUse, ...]]:
    """Place what main memory holds: what is stored, and behind it what is not on chip all its life."""
    whole = {stay.life.name for stay in chosen if (stay.first, stay.last) == (stay.life.first, stay.life.last)}
    stored = [life for life in every if life.kind != "activation"]
    moving = [life for life in every if life.kind == "activation" and (life.stays or life.name not in whole)]
    fixed = _laid(stored, level.name, alignment, 0)
    end = int(Arena(alignment).aligned(max((each.end for each in fixed), default=0)))
    shared = _laid(moving, level.name, alignment, end)
    return fixed + shared, (_use(level, shared, end),)


def _laid(every: Sequence[Life], level: str, alignment: int, base: int) -> list[Placed]:
    """Place tensors in main memory from an offset on."""
    offsets = place([Block(life.size, life.first, life.last) for life in every], Arena(alignment))
    return [
        Placed(life.name, life.kind, level, base + int(offset or 0), life.size, life.first, life.last,
               life.kind == "activation" and not life.stays and bool(life.waits))
        for life, offset in zip(every, offsets, strict=True)
    ]  # fmt: skip


def _on_chip(chosen: Sequence[Stay], level: str) -> list[Placed]:
    return [
        Placed(stay.life.name, stay.life.kind, level, stay.offset, stay.life.size, stay.first, stay.last)
        for stay in chosen
    ]


def _ahead(loaded: Sequence[Loaded], steps: Sequence[str], level: str) -> list[Placed]:
    return [
        Placed(f"weights of {steps[one.step]}", LOADED, level, one.offset, one.size, one.step - 1, one.step)
        for one in loaded
    ]


def _use(level: MemoryLevel, shared: Sequence[Placed], stored: int = 0) -> LevelUse:
    """Return what a level holds: behind what is stored, tensors that share the rest."""
    steps = max((each.last for each in shared), default=0) + 1
    live = int(np.max(live_bytes([each.block for each in shared], steps), initial=0))
    arena = max((each.end - stored for each in shared), default=0)
    return LevelUse(level.name, level.capacity, stored, arena, live)
