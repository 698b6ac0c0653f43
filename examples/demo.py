"""The main job in one screen: predict Llama-3-8B on an H100, compare with silicon, choose a batch, draw.

python examples/demo.py [OUTPUT_FOLDER]
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

import roofline as rl
from roofline.hardware.library import data_dir
from roofline.ir.units import format_bytes, format_si

CHIP, MODEL, CONTEXT = "h100-sxm", "llama-3-8b", 2048
#: What the measurements call a mode, and what roofline calls it.
MODES = {"eager": "eager", "cudagraph": "graph"}


@dataclass(frozen=True)
class Measured:
    """A measured run of the model."""

    phase: str
    mode: str
    batch: int
    size: int
    seconds: float


def measured_runs() -> Iterator[Measured]:
    """The shipped measurements of the model; no efficiency was fitted on any of them."""
    for name in ("models.csv", "llama-3-8b.csv"):
        with (data_dir("measurements") / CHIP / name).open() as file:
            for row in csv.DictReader(file):
                if row["model"] == MODEL and row["mode"] in MODES:
                    seconds = float(row["wall_us"]) * 1e-6
                    yield Measured(row["phase"], MODES[row["mode"]], int(row["batch"]), int(row["context"]), seconds)


def asked(run: Measured) -> bool:
    """Prefill of one prompt of the context, and decode at every batch against it."""
    what = (run.phase, run.mode)
    return run.size == CONTEXT and (what == ("decode", "graph") or (what == ("prefill", "eager") and run.batch == 1))


def compare(console: Console) -> None:
    """Prediction beside measurement, row by row, with the verdict."""
    title = f"{MODEL} bf16 on {CHIP}, context {CONTEXT}: predicted beside measured [ms]"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("run", "batch", "expected", "range", "measured", "ratio", "verdict"):
        table.add_column(heading, justify="left" if heading in ("run", "verdict") else "right", no_wrap=True)
    for run in sorted(filter(asked, measured_runs()), key=lambda r: (r.phase, r.batch)):
        graph = rl.model(MODEL, phase=run.phase)
        verdict = rl.check(graph, CHIP, run.seconds, mode=run.mode, batch=run.batch, seq=run.size)
        est = verdict.estimate
        table.add_row(
            f"{run.phase}, {run.mode}", str(run.batch), _ms(est.time), f"{_ms(est.low)}-{_ms(est.high)}",
            _ms(run.seconds), f"{est.time / run.seconds:.2f}", verdict.verdict,
        )  # fmt: skip
    console.print(table)
    console.print("ratio = expected / measured; rows of the same batch are runs on different days\n")


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g}"


def sweep(console: Console) -> rl.analysis.BatchChoice:
    """Decode at batches 1 to 128, and the best batch."""
    graph = rl.model(MODEL, phase="decode")
    est = rl.estimate(graph, CHIP, batch=2 ** np.arange(8), context=CONTEXT, mode="graph")
    table = Table(
        title=f"decode, context {CONTEXT}, CUDA graph", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1)
    )
    for heading in ("batch", "time", "tokens/s", "memory", "bound"):
        table.add_column(heading, justify="right")
    for at, batch in enumerate(2 ** np.arange(8)):
        table.add_row(
            str(batch), format_si(est.time[at], "s"), f"{est.throughput[at]:,.0f}",
            format_bytes(est.memory.total[at]), est.bound[at],
        )  # fmt: skip
    console.print(table)
    choice = rl.best_batch(graph, CHIP, context=CONTEXT, mode="graph")
    console.print(
        f"best batch {choice.best}, {choice.limit} allows {choice.limit_batch}: "
        f"{choice.estimate.throughput:,.0f} tokens/s at "
        f"{format_si(choice.estimate.time, 's')} a step; ridge batch {choice.ridge or 'beyond memory'}\n"
    )
    return choice


def draw(console: Console, choice: rl.analysis.BatchChoice, folder: Path) -> None:
    """A roofline of the prefill and a sweep of the decode batches, each as PNG and SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    prefill = rl.estimate(rl.model(MODEL, phase="prefill"), CHIP, batch=1, seq=CONTEXT)
    runs = list(measured_runs())
    whole = next(r.seconds for r in runs if r.phase == "prefill" and (r.batch, r.size) == (1, CONTEXT))
    points = [(r.batch, r.seconds) for r in runs if r.phase == "decode" and r.mode == "graph" and r.size == CONTEXT]
    charts = {
        "roofline": rl.charts.plot_roofline(prefill, measured=whole),
        "batch": rl.charts.plot_batch(choice.curve, best=choice.best, ridge=choice.ridge, measured=points),
    }
    for name, chart in charts.items():
        for suffix in ("png", "svg"):
            path = folder / f"{MODEL}-{name}.{suffix}"
            chart.save(path)
            console.print(f"wrote {path}")


def main() -> None:
    """Run all parts."""
    console = Console(width=80, highlight=False)
    compare(console)
    choice = sweep(console)
    draw(console, choice, Path(sys.argv[1] if len(sys.argv) > 1 else "out"))


if __name__ == "__main__":
    main()
