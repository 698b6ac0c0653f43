"""``roofline sweep-chip``: a program on all chips that differ from one in some figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated, Any

import numpy as np
from rich.table import Table
from rich.text import Text

from roofline.analysis.chip_sweep import POINTS, FigureSweep
from roofline.analysis.chip_sweep import sweep_chip as sweep
from roofline.cli import options as opt
from roofline.cli.app import PREDICT, command
from roofline.cli.tables import facts, heading, span, table, time_text
from roofline.ir.errors import UsageError
from roofline.ir.units import format_si

_Points = Annotated[int, opt.option("--points N", "Values of a range A..B.", "Chip", default=str(POINTS))]
#: Chips that a table lists at most; the others are in --csv and --json.
_MOST = 64


@command(PREDICT, "roofline sweep-chip gpt2 h100-sxm -B 8 -S 1024 --set l2=1MiB..64MiB --set memory_bandwidth=1..8TB/s")
def sweep_chip(
    model: opt.Model,
    chip: opt.OneChip,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    run: opt.RunOptions,
    output: opt.ChartOptions,
    points: _Points = POINTS,
) -> None:
    """Vary figures of a chip, each --set NAME=A..B or NAME=A,B,C, and say what they buy."""
    every = run.settings or []
    varied = [text for text in every if ".." in text or "," in text]
    if not varied:
        raise UsageError("sweep-chip: no figure varies; give one, such as --set memory_bandwidth=1..8TB/s")
    run = replace(run, settings=[text for text in every if text not in varied])
    graph = program.graph(model, run.cluster(chip))
    figures = dict(opt.varied_figure(text) for text in varied)
    if len(figures) < len(varied):
        raise UsageError("sweep-chip: a figure varies twice; give it once, such as --set l2=1MiB..64MiB")
    values = sizes.point(graph, "a sweep of chips")
    result = sweep(graph, run.device(chip), figures, points=points, **run.keywords, **values)
    output.write(result, _parts(result))


def _parts(result: FigureSweep) -> Iterator[Any]:
    """Show the chip as it is, every chip of a small sweep, and what each figure buys."""
    base = result.base
    yield heading(result)
    yield facts([("as it is", f"{time_text(base.time)}, {base.bound}-bound"), ("chips", f"{result.time.size:,}")])
    if result.time.size <= _MOST:
        yield from ("", _every(result))
    elif len(result.figures) == 2:
        yield from ("", _crossed(result))
    yield from ("", *(Text(text) for text in result.readings))


def _every(result: FigureSweep) -> Table:
    """Return a row per chip."""
    out, rows = result.results, []
    for index in np.ndindex(result.shape):
        named = [each.text(each.values[at]) for each, at in zip(result.figures, index, strict=True)]
        rows.append([*named, time_text(out["time"][index]), span(out["low"][index], out["high"][index]),
                     str(out["bound"][index]), format_si(float(out["throughput"][index]), "").strip()])  # fmt: skip
    heads = "|".join(each.name for each in result.figures)
    return table(f"{heads}|time|?range|?<bound|{result.base.graph.item}/s", rows)


def _crossed(result: FigureSweep) -> Table:
    """Return times of some values of two figures against each other."""
    down, across = result.figures
    lines, columns = (np.unique(np.linspace(0, len(each.values) - 1, most).astype(int))
                      for each, most in ((down, 12), (across, 5)))  # fmt: skip
    rows = [[down.text(down.values[i]), *(time_text(result.time[i, j]) for j in columns)] for i in lines]
    heads = "|".join(across.text(across.values[j]) for j in columns)
    return table(f"{down.name}|{heads}", rows, f"time with {across.name}")
