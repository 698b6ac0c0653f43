"""Ranking the schedules of a matmul: which tiles, warps, stages and order of blocks are fast, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from itertools import islice, product
from typing import Any

import numpy as np

from roofline.analysis.estimates import Estimate, estimate
from roofline.cost.schedules import BOUNDS, HIGH, LOW, Priced, price, problems
from roofline.counting.counts import Kernel, KernelCount
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import MissingFigure, UsageError, did_you_mean
from roofline.ir.graph import Graph
from roofline.ir.numbers import whole_number
from roofline.ir.report import Report, subject
from roofline.ir.text import shown
from roofline.ir.units import format_si
from roofline.ops.registry import OPS
from roofline.tiling.schedule import Schedule

#: What a schedule is made of, in order, and the least that may be given.
FIGURES = tuple(each.name for each in fields(Schedule))
#: What each figure may be where nothing is said: powers of two that kernels of Hopper are tuned over.
USUAL: Mapping[str, tuple[int, ...]] = {
    "bm": (16, 32, 64, 128, 256), "bn": (32, 64, 128, 256), "bk": (32, 64, 128), "group": (1, 8), "warps": (4, 8),
    "stages": (2, 3, 4),
}  # fmt: skip
#: Results of the smallest usual tile, from which eight warps have enough to do, and of a thread at most.
SMALLEST, FOR_EIGHT, OF_THREAD = 2048, 8192, 128
#: Schedules of one call, and the largest figure of one.
MOST, LARGEST = 100_000, 2**16

#: A program of one matmul, or an entry of a workload.
Operator = Program | Mapping[str, Any]
#: What is searched.
Space = Schedule | Iterable[Schedule] | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Row:
    """A schedule and what it takes.

    Attributes:
        bm: Rows of a block.
        bn: Columns of it.
        bk: Elements of K that a step loads.
        group: Rows of blocks walked together.
        warps: Warps of a block.
        stages: Steps whose operands are loaded ahead.
        time_s: Expected time of a launch whose operands lie in main memory; ``None`` where it cannot run [s].
        low_s: Lower end of its range [s].
        high_s: Upper end [s].
        bound: What takes longest: compute, shared (memory of a core), latency, cache, memory or launch.
        blocks: Blocks of the launch.
        blocks_per_core: Blocks that a core has room for.
        waves: Blocks to those that all cores have room for.
        tail: Share of the cores' time that is idle since the blocks do not divide evenly among them.
        registers: Registers of a thread, the least that the compiler is expected to need.
        shared_bytes: Shared memory of a block [byte].
        dram_bytes: Read from and written to main memory [byte].
        l2_bytes: At the cache that all cores share [byte].
        problem: Why it cannot run; empty where it can.
    """

    bm: int
    bn: int
    bk: int
    group: int
    warps: int
    stages: int
    time_s: float | None
    low_s: float | None
    high_s: float | None
    bound: str
    blocks: int
    blocks_per_core: int
    waves: float
    tail: float
    registers: int
    shared_bytes: int
    dram_bytes: float
    l2_bytes: float
    problem: str = ""

    @property
    def schedule(self) -> Schedule:
        """The schedule."""
        return Schedule(*(getattr(self, name) for name in FIGURES))

    @property
    def figures(self) -> str:
        """It in words, as a space is written: ``bm=128 bn=256 bk=64 group=8 warps=8 stages=3``."""
        return " ".join(f"{name}={getattr(self, name)}" for name in FIGURES)


@dataclass(frozen=True)
class Schedules(Report):
    """Schedules of a matmul by their expected time.

    From :func:`roofline.schedules`.

    Attributes:
        graph: The matmul.
        chip: Where it runs.
        sizes: How many matmuls, their m, n and k.
        dtype: What they are multiplied in.
        floor: No schedule is faster [s].
        library: Expected time of the library's own choice, cold [s].
        searched: How many schedules were priced.
        rows: The fastest first.
        refused: Those that cannot run, with the reason.
    """

    schema = "schedules"

    graph: Graph
    chip: Chip
    sizes: tuple[int, int, int, int]
    dtype: str
    floor: float
    library: float
    searched: int
    rows: tuple[Row, ...]
    refused: tuple[Row, ...] = ()

    @property
    def best(self) -> Row:
        """The fastest.

        Raises:
            UsageError: None of the schedules can run.
        """
        if not self.rows:
            raise UsageError(
                f"none of {self.searched} schedules can run on {self.chip.name}: {self.refused[0].problem}"
            )
        return self.rows[0]

    def subject(self) -> dict[str, Any]:
        """Return the matmul and where it runs."""
        named = {"dtype": self.dtype, "sizes": dict(zip("bmnk", self.sizes, strict=True))}
        return {**subject(self.graph, self.chip.name), **named}

    def summary(self) -> dict[str, Any]:
        """Return the floor, the library's time and how many schedules there were."""
        return {"floor_s": self.floor, "library_s": self.library, "searched": self.searched}

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per schedule, those that cannot run last."""
        names = [each.name for each in fields(Row)]
        return [
            {name: getattr(row, name) for name in names[:9]} | {"floor_s": self.floor}
            | {name: getattr(row, name) for name in names[9:]}
            for row in (*self.rows, *self.refused)
        ]  # fmt: skip

    def __repr__(self) -> str:
        b, m, n, k = self.sizes
        what = f"<Schedules of {f'{b} x ' if b > 1 else ''}{m} x {n} x {k} on {self.chip.name}: {self.searched}"
        return (
            f"{what}, best {self.best.figures}, {format_si(self.best.time_s or 0.0, 's')}>" if self.rows else f"{what}>"
        )


def schedules(
    op: Operator,
    chip: AnyChip,
    space: Space | None = None,
    *,
    top: int | None = None,
    tf32: bool | None = None,
    **sizes: Any,
) -> Schedules:
    """Price and rank how a matmul may be blocked on a GPU.

    The kernel is that of Triton's matmul tutorial, its operands stored by row and all in main memory when it starts.

    Args:
        op: A program of one matmul: ``"gemm m=4096 n=4096 k=4096 dtype=bf16"``, an entry of a workload, a graph, ...
        chip: A GPU of NVIDIA's.
        space: Schedules to price: one of numbers or arrays, several, or values for each figure (``{"bm": [64, 128]}``),
            of which all combinations are taken; figures that are not given are the usual ones. Without it, the usual
            combinations of powers of two.
        top: So many of the fastest; all by default.
        tf32: Let fp32 operands use the tf32 matrix units.
        sizes: Of a program with symbols.

    Returns:
        The schedules, fastest first, with what bounds them; those that cannot run apart, with the reason.

    Raises:
        UsageError: Not one matmul, or a schedule that is none.
        MissingFigure: The chip's cores are no SMs, or it lacks a figure.

    Example:
        >>> import roofline as rl
        >>> found = rl.schedules("gemm m=512 n=4096 k=4096 dtype=bf16", "h100-sxm")
        >>> found.best.figures
        'bm=128 bn=128 bk=64 group=8 warps=4 stages=4'
        >>> big = rl.schedules("gemm m=64 n=64 k=64", "h100-sxm", rl.tiling.Schedule(256, 256, 128, warps=8, stages=4))
        >>> big.refused[0].problem
        '256 registers a thread for sums of 255'
    """
    device = find_chip(chip)
    graph = as_graph(_entry(op)) if isinstance(op, Mapping) else as_graph(op)
    est = estimate(graph, device, mode="graph", regime="cold", tf32=tf32, **sizes)
    limit = None if top is None else whole_number("top", top)
    priced = priced_of(est, _schedule(space))
    b, m, n, k = (int(size) for size in priced.sizes)
    rows = _rows(priced, problems(priced), float(est.floor))
    runs = sorted((row for row in rows if not row.problem), key=lambda row: row.time_s or 0.0)
    refused = tuple(row for row in rows if row.problem)
    dtype, floor, library = str(next(iter(est.rows[0].flops_by))), float(est.floor), float(est.time)
    return Schedules(graph, device, (b, m, n, k), dtype, floor, library, len(rows), tuple(runs[:limit]), refused)


def _entry(op: Mapping[str, Any]) -> Graph:
    from roofline.programs.workload import workload

    return workload([op], name=str(op.get("op", "workload"))[:60])


def priced_of(est: Estimate, schedule: Schedule) -> Priced:
    """Price schedules of the matmul that a program is, at its sizes.

    Raises:
        UsageError: It is not one matmul.
        MissingFigure: The chip's cores are no SMs, or it lacks a figure.
    """
    rows = est.rows
    kernel = rows[0].kernel
    if len(rows) != 1 or kernel.count != 1 or not is_matmul(kernel):
        what = ", ".join(f"{row.kernel.main.op} x {row.kernel.count}" for row in rows[:4])
        raise UsageError(
            f"{est.graph.name}: schedules are of one matmul, its kernels are {what}; give one matmul, such as "
            "'gemm m=4096 n=4096 k=4096 dtype=bf16'"
        )
    narrow = _dequantised(kernel)
    if narrow:
        raise UsageError(
            f"{kernel.name}: schedules are of operands that are multiplied in the format that they are stored in, not "
            f"of {narrow}"
        )
    return _priced(rows[0], est, schedule)


def is_matmul(kernel: Kernel) -> bool:
    """Tell whether a kernel is around a product of matrices."""
    return kernel.kind == "matmul" and OPS[kernel.main.op].gemm is not None


def _dequantised(kernel: Kernel) -> str | None:
    """Return the format of an operand that the kernel widens before it multiplies."""
    pairs = zip(kernel.inputs, kernel.stored, strict=True)
    return next((stored for tensor, stored in pairs if DTYPES[stored].bits != DTYPES[tensor.dtype].bits), None)


def _multiplied_in(row: KernelCount, est: Estimate) -> str:
    dtype = str(next(iter(row.flops_by)))
    return "tf32" if dtype == "fp32" and est.tf32 and "tf32" in est.chip.matrix else dtype


def _priced(row: KernelCount, est: Estimate, schedule: Schedule) -> Priced:
    return price(schedule, OPS[row.kernel.main.op].matmuls(row.sizes), est.chip, _multiplied_in(row, est))


def fastest(est: Estimate) -> Iterator[tuple[Kernel, Row, float]]:
    """Yield each matmul of a program with its best usual schedule and the time of the library's own choice [s].

    Those that dequantise, those that no matrix unit multiplies, and all on a chip whose schedules are not priced, are
    left out.

    Args:
        est: Of one point, cold, as schedules are: all operands lie in main memory.
    """
    for row, time in est.timed:
        if is_matmul(row.kernel) and not _dequantised(row.kernel) and _multiplied_in(row, est) in est.chip.matrix:
            with suppress(MissingFigure):
                priced = _priced(row, est, usual())
                runs = (each for each in _rows(priced, problems(priced), float(time.floor)) if not each.problem)
                yield row.kernel, min(runs, key=lambda each: each.time_s or 0.0), float(time.expected)


def usual() -> Schedule:
    """Return the usual schedules: powers of two whose tiles keep warps busy and fit a thread's registers."""
    bm, bn, bk, group, warps, stages = _combined(USUAL).T
    tile = bm * bn
    useful = (tile >= SMALLEST) & (tile <= OF_THREAD * 32 * warps) & ((warps == 4) | (tile >= FOR_EIGHT))
    return Schedule(*(figure[useful] for figure in (bm, bn, bk, group, warps, stages)))


def _combined(values: Mapping[str, Any]) -> Any:
    """Return all combinations of figures, a schedule a line."""
    choices = [np.ravel(np.asarray(values[name], dtype=object)).tolist() for name in FIGURES]
    for name, choice in zip(FIGURES, choices, strict=True):
        _check(name, choice)
    number = int(np.prod([float(len(choice)) for choice in choices]))
    if number > MOST:
        raise UsageError(f"a space of {number:,} schedules; allowed: {MOST:,}")
    return np.array(list(product(*choices)))


def _schedule(space: Space | None) -> Schedule:
    """Return a space as one schedule of arrays, checked."""
    if space is None:
        return usual()
    if isinstance(space, Mapping):
        unknown = next((name for name in space if name not in FIGURES), None)
        if unknown is not None:
            near = did_you_mean(str(unknown), FIGURES)
            raise UsageError(f"space: unknown figure {shown(unknown)}; allowed: {', '.join(FIGURES)}{near}")
        return Schedule(*_combined({**USUAL, **space}).T)
    columns = _columns(space)
    for name, column in zip(FIGURES, columns, strict=True):
        _check(name, column.tolist())
    return Schedule(*columns)


def _columns(space: Any) -> list[Any]:
    """Return schedules of numbers or arrays as a column for each figure."""
    several = [space] if isinstance(space, Schedule) else []
    with suppress(TypeError):
        several = several or list(islice(iter(space), MOST + 1))
    if not several or not all(isinstance(each, Schedule) for each in several) or len(several) > MOST:
        raise UsageError(f"space: expected 1 to {MOST:,} of roofline.tiling.Schedule, or values by figure")
    try:
        broad = [np.broadcast_arrays(*(np.atleast_1d(getattr(each, name)) for name in FIGURES)) for each in several]
    except ValueError:
        raise UsageError("space: a schedule whose arrays have other lengths; expected one, or numbers") from None
    return [np.concatenate([np.ravel(each[at]) for each in broad]) for at in range(len(FIGURES))]


def _check(name: str, column: list[Any]) -> None:
    if not 0 < len(column) <= MOST:
        raise UsageError(f"space: {len(column):,} schedules; allowed: 1 to {MOST:,}")
    for value in column:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 1 <= value <= LARGEST or value != int(value):
            raise UsageError(f"{name}={shown(value)}: expected a whole number from 1 to {LARGEST:,}")


def _rows(priced: Priced, why: list[str], floor: float) -> list[Row]:
    """Return a row for each schedule."""
    seconds = np.maximum(priced.seconds, floor)
    columns = {
        **{name: getattr(priced.schedule, name) for name in FIGURES},
        "time_s": seconds, "low_s": np.maximum(seconds * LOW, floor), "high_s": seconds * HIGH,
        "bound": priced.bound, "blocks": priced.blocks, "blocks_per_core": priced.resident, "waves": priced.waves,
        "tail": priced.tail, "registers": np.minimum(priced.needs, 255), "shared_bytes": priced.shared,
        "dram_bytes": priced.moved.dram, "l2_bytes": priced.moved.l2,
    }  # fmt: skip
    whole = {*FIGURES, "blocks", "blocks_per_core", "registers", "shared_bytes"}
    lists = {name: np.broadcast_to(column, len(why)).tolist() for name, column in columns.items()}
    rows = []
    for at, problem in enumerate(why):
        cells: dict[str, Any] = {name: int(cell[at]) if name in whole else cell[at] for name, cell in lists.items()}
        cells["bound"] = "" if problem else BOUNDS[cells["bound"]]
        if problem:
            cells.update(dict.fromkeys(("time_s", "low_s", "high_s")))
        rows.append(Row(**cells, problem=problem))
    return rows
