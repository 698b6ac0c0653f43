"""``roofline estimate``: time, range, bound, memory and throughput of a program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
from rich.table import Table
from rich.text import Text

from roofline.analysis.estimates import Estimate
from roofline.analysis.estimates import estimate as predict
from roofline.analysis.mapping import GridMapping, mapping
from roofline.analysis.provenance import PassHistory, pass_history
from roofline.cli import options as opt
from roofline.cli import tables
from roofline.cli.app import PREDICT, command
from roofline.cli.tables import heading, percent, size_text, table, time_text
from roofline.cli.train import show_step, step_of
from roofline.cost.silicon import LEVELS
from roofline.diagnosis.reference import replays
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph
from roofline.ir.report import WORDS
from roofline.ir.units import format_si

_Chips = Annotated[str, opt.argument(
    "CHIP", "A shipped name, a chip .toml or a cluster; several with commas.", opt.complete_chips)]  # fmt: skip
_ByLevel = Annotated[bool, opt.option(
    "--by-level", "What the slowest kernels move at each memory level, and what bounds them.", "Output")]  # fmt: skip
#: Kernels that are listed at most.
_MOST = 5


@command(PREDICT, "roofline estimate llama-3-8b h100-sxm --phase decode -B 1,8,32 -S 2048")
def estimate(
    model: opt.Model,
    chip: _Chips,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    copies: opt.CopyOptions,
    run: opt.RunOptions,
    output: opt.ChartOptions,
    by_level: _ByLevel = False,
) -> None:
    """Predict time, bound, memory and throughput."""
    if program.is_training:
        return show_step(step_of(model, chip, program, sizes, copies, run), output, at=" with roofline train")
    graph, est = estimate_of(model, chip, program, sizes, copies, run)
    if est.shape:
        if by_level:
            raise UsageError("--by-level lists the kernels of one point; give one chip and each size one number")
        return output.write(est, _points(est))
    parts, more, drawn = [*_point(est)], tables.would_fit_record(est), []
    if by_level:
        parts += ["", _levels(est)]
        more["kernels"] = est.kernel_rows()
    if est.chip.grid is not None:
        spread = mapping(est)
        parts += ["", _spread(spread)]
        more["mapping"] = spread.records()
    if graph.history:
        history = pass_history(graph, est.chip, mode=est.mode, **est.grid.values)  # type: ignore[arg-type]
        parts += ["", _steps(history)]
        more["history"], drawn = history.records(), [history]
    return output.write(est, parts, drawn=drawn, **more)


def estimate_of(
    model: str, chip: str, program: opt.ProgramOptions, sizes: opt.SizeOptions, copies: opt.CopyOptions,
    run: opt.RunOptions,
) -> tuple[Graph, Estimate]:  # fmt: skip
    """Return the program that options describe and its estimate, of one point or of many."""
    copies.refuse_training()
    cluster = run.cluster(chip)
    graph, chips = program.graph(model, cluster), run.chips(chip)
    values = copies.share(sizes.of(graph, len(chips)), program.tp * program.pp * program.ep, cluster)
    return graph, predict(graph, chips if len(chips) > 1 else chips[0], **run.keywords, **values)


# --- one point --------------------------------------------------------------------------------------------------------


def _point(est: Estimate) -> Iterator[Any]:
    """Show time, memory and the largest kernels of one point."""
    yield heading(est)
    yield tables.facts(_summary(est))
    yield from ("", tables.memory_table(est.memory.parts(), est.chip.main.capacity, est.chip.name))
    yield from tables.would_fit_facts(est)
    yield from ("", _kernels(est), "", *tables.provenance(est))


def _summary(est: Estimate) -> Iterator[tuple[str, Any]]:
    host = f", host {time_text(est.host_time)}" if est.mode == "eager" else ""
    yield "time", Text(tables.time_and_range(est), style="bold")
    yield "wide because of", est.wide_because()
    yield "floor", f"{time_text(est.floor)} at the datasheet's rates"
    yield "bound", est.bound
    if est.bound == "host" and replays(est.chip):
        yield "CUDA graph", f"{time_text(est.device_time)} with --mode graph: the time above is the host's"
    yield "made of", f"{est.launches:,} kernels: device {time_text(est.device_time)}{host}"
    yield "throughput", tables.rate(est.throughput, est.graph.item)
    yield "MFU, MBU", f"{percent(est.mfu)}, {percent(est.mbu)}"
    yield "work", f"{format_si(est.flops, 'FLOP')}, {format_si(est.bytes, 'B')}, {est.intensity:.3g} FLOP/B"


def _kernels(est: Estimate) -> Table:
    kernels = est.kernel_rows()
    rows = [
        (row["kernel"], f"{row['count']:,}", time_text(row["time_s"]), percent(row["share"]), row["bound"],
         row["dtype"])
        for row in kernels[:_MOST]
    ]  # fmt: skip
    title = f"slowest {len(rows)} of {len(kernels)} kernels" if len(kernels) > _MOST else "kernels"
    return table(f"<{title}|runs|time|?share|?<bound|?<format", rows)


def _levels(est: Estimate) -> Table:
    """Show for each of the slowest kernels a row a level, and one for its arithmetic."""
    kernels = est.kernel_rows()[:_MOST]
    rows = [
        (kernel["kernel"] if at == 0 else "", *cells)
        for kernel in kernels for at, cells in enumerate(_level_cells(kernel))
    ]  # fmt: skip
    return table("<by level, of one launch|<level|moves|?FLOP/B|at its roof|share|<", rows)


def _level_cells(kernel: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield level, bytes, intensity, time at its roof, which share of that is reached, and whether it is the bound."""
    peak = {
        "level": "compute",
        "floor_s": kernel["compute_floor_s"],
        "share": kernel["compute_floor_s"] / kernel["each_s"],
    }
    for level in (*kernel["levels"], peak):
        floor = level["floor_s"]
        roof = ("", "") if floor is None else (time_text(floor), percent(level["share"]))
        amount = (
            size_text(level["bytes"])
            if "bytes" in level
            else format_si(kernel["flops"] or kernel["vector_flops"], "FLOP")
        )
        intensity = f"{level['intensity']:.3g}" if "intensity" in level else ""
        yield level["level"], amount, intensity, *roof, "bound" if level["level"] == kernel["bound_level"] else ""


def _spread(result: GridMapping) -> Table:
    """Show how products are spread over the cores of a grid, and how long each level takes for them."""
    rows = [
        (row["kernel"], row["mapping"], row["level"], *(time_text(row[f"{level.lower()}_s"]) for level in LEVELS))
        for row in result.records()[:_MOST]
    ]
    return table(f"<product|over the cores|<bound by|{'|'.join(f'?{level}' for level in LEVELS)}", rows)


def _steps(history: PassHistory) -> Table:
    """Show what each pass did: figures after it, the program as it was first."""
    rows = [("(as given)", *_state(history.states[0]))]
    words = (step.replace("(", " ").removesuffix(")").replace("'", "") for step in history.steps)
    rows += [(step, *_state(state)) for step, state in zip(words, history.states[1:], strict=True)]
    return table("<after|?params|?kernels|FLOP|moved|memory|time", rows)


def _state(state: dict[str, Any]) -> tuple[str, ...]:
    time = state["time_s"]
    return (
        format_si(float(state["parameters"]), ""), f"{state['kernels']:,}", format_si(float(state["flops"]), ""),
        size_text(state["bytes"]), size_text(state["memory_bytes"]), "" if time is None else time_text(time),
    )  # fmt: skip


# --- several points ---------------------------------------------------------------------------------------------------


def _points(est: Estimate) -> Iterator[Any]:
    """Show one row per point; a table per chip where batches or lengths vary too."""
    yield heading(est)
    if not est.grid.shape:
        yield from ("", _rows(est, np.ndindex(est.shape), ("chip",)))
    else:
        starts: list[tuple[int, ...]] = [(at,) for at in range(len(est.chips))] if est.many_chips else [()]
        for start, chip in zip(starts, est.chips, strict=True):
            indices = (start + index for index in np.ndindex(est.grid.shape))
            yield from ("", _rows(est, indices, est.grid.axes, chip.name))
    for index in map(tuple, np.argwhere(np.equal(est.fits, False))[:1].tolist()):
        sizes = ", ".join(f"{WORDS.get(name, name)} {size}" for name, size in est[index].grid.values.items())
        yield from tables.would_fit_facts(est[index], f" on {est[index].chip.name} at {sizes}")
    yield from ("", *tables.provenance(est))


def _rows(est: Estimate, indices: Iterable[tuple[int, ...]], axes: tuple[str, ...], title: str = "") -> Table:
    results = (est.time, est.low, est.high, est.bound, est.mfu, est.mbu, est.throughput, est.memory.total, est.fits)
    rows: list[Sequence[Any]] = []
    for index in indices:
        time, low, high, bound, mfu, mbu, rate, total, fits = (np.asarray(value)[index] for value in results)
        cells = (time_text(time), tables.span(low, high), str(bound), format_si(float(rate), ""), size_text(total),
                 tables.yes_or_no(fits), percent(mfu), percent(mbu))  # fmt: skip
        rows.append((*_place(est, index, axes), *cells))
    names = "|".join("<chip" if name == "chip" else WORDS.get(name, name) for name in axes)
    return table(f"{names}|time|?range|?<bound|{est.graph.item}/s|?memory|<fits|?MFU|?MBU", rows, title)


def _place(est: Estimate, index: tuple[int, ...], axes: tuple[str, ...]) -> list[str]:
    if axes == ("chip",):
        return [est.chips[index[0]].name]
    sizes = est.grid.point(index[1:] if est.many_chips else index)
    return [str(sizes[name]) for name in axes]
