"""``roofline batch``: the best batch under limits of memory and latency."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
from rich.table import Table
from rich.text import Text

from roofline.analysis.batches import SHARES, BatchChoice, best_batch, two_ridges
from roofline.cli import options as opt
from roofline.cli import tables
from roofline.cli.app import PREDICT, command
from roofline.cli.tables import heading, percent, size_text, time_text
from roofline.ir.units import format_si, share

_Near = Annotated[str | None, opt.limit(
    "--near SHARE", "Take the smallest batch with this share of the best throughput, such as 90%.",
    default="99% where throughput no longer grows")]  # fmt: skip
#: What limits the batch, in words.
_LIMITS = {
    "memory": "memory: a batch of {next} no longer fits in {room}",
    "latency": "latency: a batch of {next} takes longer than {patience}",
    "size": "size: no larger batch is looked at",
}


@command(PREDICT, "roofline batch llama-3-8b h100-sxm --phase decode -S 2048 --latency-limit 50ms")
def batch(
    model: opt.Model,
    chip: opt.OneChip,
    program: opt.ProgramOptions,
    lengths: opt.LengthOptions,
    limits: opt.LimitOptions,
    run: opt.RunOptions,
    output: opt.ChartOptions,
    near: _Near = None,
) -> None:
    """Choose the best batch under limits of memory and latency."""
    memory, latency = limits.limits()
    part = None if near is None else share(near, "--near")
    graph = program.graph(model, run.cluster(chip))
    sizes = lengths.point(graph, "a curve over the batch")
    sizes.pop("B", None)
    choice = best_batch(
        graph, run.device(chip), memory_limit=memory, latency_limit=latency, near=part, **run.keywords, **sizes
    )
    output.write(choice, _choice(choice))


def _choice(choice: BatchChoice) -> Iterator[Any]:
    """Show the best batch, why, and the curve."""
    est = choice.estimate
    why = _LIMITS[choice.limit].format(
        next=f"{choice.limit_batch + 1:,}",
        room=size_text(choice.memory_limit),
        patience=time_text(choice.latency_limit) if choice.latency_limit else "",
    )
    ridge = two_ridges(choice.ridge, choice.ridge_datasheet).removeprefix("ridge is ")
    if choice.ridge_share is not None:
        ridge += f"; the calibrated one has {percent(choice.ridge_share)} of the best throughput"
    if _differs(choice):
        ridge += "; the ridge is of all kernels in sum, a bound of the kernels that take most of the time"
    shares = ", ".join(f"{part:.0%} from batch {choice.batch_for(part):,}" for part in SHARES)
    best = f"{percent(choice.share(choice.best))} of the best throughput within the limits"
    yield heading(choice)
    yield tables.facts([
        ("best batch", Text(f"{choice.best}", style="bold green").append(f", {best}", style="none")),
        ("limit", why),
        ("shares", f"{shares} of {tables.rate(choice.peak, est.graph.item)}"),
        ("ridge", ridge),
        ("there", f"{tables.time_and_range(est)}, {est.bound}-bound"),
        ("throughput", tables.rate(est.throughput, est.graph.item)),
    ])  # fmt: skip
    yield from ("", _curve(choice), "", *tables.provenance(choice.curve))


def _differs(choice: BatchChoice) -> bool:
    """Return whether a bound that is listed is not the side of the ridge on which its batch is."""
    bounds = [choice.curve.bound[int(np.searchsorted(choice.batches, batch))] for batch in choice.shown()]
    past = [choice.ridge is not None and batch >= choice.ridge for batch in choice.shown()]
    return any(bound == ("memory" if over else "compute") for bound, over in zip(bounds, past, strict=True))


def _curve(choice: BatchChoice) -> Table:
    curve, marks = choice.curve, {
        choice.largest: "largest", choice.limit_batch: "limit", choice.ridge_datasheet: "datasheet ridge",
        choice.ridge: "calibrated ridge", choice.best: "best",
    }  # fmt: skip
    total = np.broadcast_to(np.asarray(curve.memory.total, dtype=float), curve.shape)
    rows = []
    for batch in choice.shown():
        at = int(np.searchsorted(choice.batches, batch))
        cells = (
            f"{batch:,}", time_text(curve.time[at]), tables.span(curve.low[at], curve.high[at]),
            format_si(float(curve.throughput[at]), ""), size_text(total[at]), curve.bound[at], marks.get(batch, ""),
        )  # fmt: skip
        rows.append([Text(str(cell), style="bold" if batch == choice.best else "") for cell in cells])
    return tables.table(f"batch|time|?range|{curve.graph.item}/s|?memory|?<bound|<", rows)
