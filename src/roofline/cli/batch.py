"""``roofline batch``: the best batch under limits of memory and latency."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from roofline.analysis.batches import BatchChoice, best_batch
from roofline.cli import options as opt
from roofline.cli import tables
from roofline.cli.app import PREDICT, command
from roofline.cli.tables import heading, size_text, time_text
from roofline.ir.units import format_si

#: Why a batch is the best, in words.
_LIMITS = {
    "memory": "memory: a batch of {next} no longer fits in {room}",
    "latency": "latency: a batch of {next} takes longer than {patience}",
    "saturated": "throughput plateau: a bigger batch gains next to no throughput",
    "size": "size: no larger batch is looked at",
    "ridge": "ridge: a bigger batch takes longer and gains next to no throughput",
}


@command(PREDICT, "roofline batch llama-3-8b h100-sxm --phase decode -S 2048 --latency-limit 50ms")
def batch(
    model: opt.Model,
    chip: opt.OneChip,
    program: opt.ProgramOptions,
    lengths: opt.LengthOptions,
    limits: opt.LimitOptions,
    run: opt.RunOptions,
    output: opt.OutputOptions,
) -> None:
    """Choose the best batch under limits of memory and latency."""
    memory, latency = limits.limits()
    graph = program.graph(model, opt.cluster_of(chip))
    sizes = lengths.point(graph, "a curve over the batch")
    sizes.pop("B", None)
    choice = best_batch(graph, opt.device(chip), memory_limit=memory, latency_limit=latency, **run.keywords, **sizes)
    output.write(choice, _choice(choice))


def _choice(choice: BatchChoice) -> Iterator[Any]:
    """Show the best batch, why, and the curve."""
    est = choice.estimate
    why = _LIMITS[choice.limit].format(
        next=choice.best + 1,
        room=size_text(choice.memory_limit),
        patience=time_text(choice.latency_limit) if choice.latency_limit else "",
    )
    ridge = f"from batch {choice.ridge} arithmetic takes longer than memory"
    if choice.ridge is None:
        ridge = f"not reached: memory takes longer than arithmetic at every batch up to {choice.largest}"
    yield heading(choice)
    yield tables.facts([
        ("best batch", Text(f"{choice.best}", style="bold green")),
        ("stopped at", why),
        ("ridge", ridge),
        ("there", f"{tables.time_and_range(est)}, {est.bound}-bound"),
        ("throughput", tables.rate(est.throughput, est.graph.item)),
    ])  # fmt: skip
    yield from ("", _curve(choice), "", *tables.provenance(choice.curve))


def _curve(choice: BatchChoice) -> Table:
    curve, marks = choice.curve, {choice.largest: "largest", choice.ridge: "ridge", choice.best: "best"}
    total = np.broadcast_to(np.asarray(curve.memory.total, dtype=float), curve.shape)
    rows = []
    for batch in choice.shown():
        at = batch - 1
        cells = (
            f"{batch:,}", time_text(curve.time[at]), tables.span(curve.low[at], curve.high[at]),
            format_si(float(curve.throughput[at]), ""), size_text(total[at]), curve.bound[at], marks.get(batch, ""),
        )  # fmt: skip
        rows.append([Text(str(cell), style="bold" if batch == choice.best else "") for cell in cells])
    return tables.table(f"batch|time|?range|{curve.graph.item}/s|?memory|?<bound|<", rows)
