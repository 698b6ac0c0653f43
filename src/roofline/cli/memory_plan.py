"""``roofline memory-plan``: where tensors lie while a program runs, what is spilled, and what loading ahead hides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

from roofline.cli import options as opt
from roofline.cli.app import COMPILE, command
from roofline.cli.tables import (
    facts,
    heading,
    size_text,
    table,
    time_text,
    would_fit_facts,
    would_fit_record,
    yes_or_no,
)
from roofline.planning.memory import LOADED, MemoryPlan, Placed
from roofline.planning.memory import memory_plan as planned
from roofline.planning.placement import ALIGNMENT

_Level = Annotated[str | None, opt.option(
    "--level NAME", "The memory on chip that is filled, as the chip's file calls it; main for none.",
    default="the shared cache; without a GPU's, the cores' memories")]  # fmt: skip
_Alignment = Annotated[int, opt.option("--alignment N", "What offsets are multiples of, in bytes.", default="256")]
#: Tensors that are listed, the largest first.
_MOST = 12


@command(COMPILE, "roofline memory-plan resnet50 tpu-v5e -B 64 --dtype bf16")
def memory_plan(
    model: opt.Model,
    chip: opt.OneChip,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    output: opt.ChartOptions,
    what_if: opt.ChipOptions,
    mode: opt.Mode = "eager",
    tf32: opt.Tf32 = None,
    level: _Level = None,
    alignment: _Alignment = ALIGNMENT,
) -> None:
    """Plan where tensors lie while a program runs: on chip or not, at which offset; spills and what hides them."""
    graph = program.graph(model, what_if.cluster(chip))
    plan = planned(
        graph, what_if.device(chip), level=level, alignment=alignment, mode=mode, tf32=tf32,  # type: ignore[arg-type]
        **sizes.point(graph, "a memory plan"),
    )  # fmt: skip
    output.write(plan, _parts(plan), **would_fit_record(plan))


def _parts(plan: MemoryPlan) -> Iterator[Any]:
    """Show what each level holds, the time with spills and what comes ahead, and the largest tensors."""
    about, near = plan.summary(), len(plan.levels) > 1
    yield heading(plan)
    yield from ("", table("<level|stored|arena|at once|?arena / at once|peak|capacity|<fits", [
        (use.level, size_text(use.stored_bytes), size_text(use.arena_bytes), size_text(use.live_bytes),
         f"{use.fragmentation:.3g}", size_text(use.peak_bytes),
         size_text(use.capacity_bytes) if use.capacity_bytes else "not published", yes_or_no(use.fits))
        for use in plan.levels
    ]), "")  # fmt: skip
    spilled = f"{about['spilled_tensors']:,} tensors, {size_text(about['spilled_out_bytes'])} out and "
    spilled += f"{size_text(about['spilled_back_bytes'])} back: {time_text(about['spill_s'])} of main memory"
    ahead = f"{size_text(about['loaded_ahead_bytes'])} of {size_text(about['weights_bytes'])} come while the kernel "
    ahead += f"before runs, and hide {time_text(plan.hidden_s)}"
    short = [f"{use.level}: {size_text(use.peak_bytes)} of {size_text(use.capacity_bytes)}"
             for use in plan.levels if use.fits is False]  # fmt: skip
    yield facts([
        ("does not fit", "; ".join(short)),
        ("spilled", spilled if plan.spilled_bytes else "nothing" if near else ""),
        ("all on chip", f"{time_text(plan.on_chip_s)}, if all that kernels hand on stayed there" if near else ""),
        ("spills cost", f"{time_text(plan.spill_cost_s)} beyond that" if plan.spilled_bytes else ""),
        ("weights ahead", ahead if near else ""),
        ("time", f"{time_text(plan.time_s)}, {size_text(about['main_bytes'])} through {plan.chip.main.name}"),
    ])  # fmt: skip
    yield from would_fit_facts(plan)
    yield from ("", _tensors(plan))


def _tensors(plan: MemoryPlan) -> Any:
    moving = [each for each in plan.placed if each.kind in ("activation", LOADED)]
    rows = [_row(each, plan) for each in sorted(moving, key=lambda each: -each.size_bytes)[:_MOST]]
    more = f"; the other {len(plan.placed) - len(rows):,} places with --csv" if len(plan.placed) > len(rows) else ""
    return table("<tensor|<level|offset|size|?<from kernel|?<to kernel|<spilled", rows,
                 f"the largest that come and go{more}")  # fmt: skip


def _row(each: Placed, plan: MemoryPlan) -> tuple[str, ...]:
    ends = (f"{at}: {plan.kernels[at]}" for at in (each.first, each.last))
    spilled = "yes" if each.spilled else ""
    return (each.tensor, each.level, f"{each.offset_bytes:,}", size_text(each.size_bytes), *ends, spilled)
