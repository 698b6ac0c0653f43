"""``roofline timeline``: kernels, copies and collectives on their engines, what overlaps, what sets the pace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from roofline.analysis.engines.splitting import OVERLAPS
from roofline.analysis.engines.timeline import EngineTimeline
from roofline.analysis.engines.timeline import timeline as placed
from roofline.cli import options as opt
from roofline.cli.app import PREDICT, command
from roofline.cli.output import note
from roofline.cli.tables import facts, heading, percent, size_text, table, time_and_range, time_text

_Streams = Annotated[int, opt.option("--streams N", "Streams of kernels, which share the chip.", "Run", default="1")]
_Prefetch = Annotated[int | None, opt.option(
    "--prefetch N", "Weights come from the host so many layers ahead: 0 waits, 1 is double buffering.", "Run",
    default="on the device")]  # fmt: skip
_Overlap = Annotated[opt.Text, opt.option(
    "--overlap WAY", "Collectives beside the matmuls around them, in parts: tp, or ring (sends to the next device).",
    "Run", complete=OVERLAPS, default="none")]  # fmt: skip
_Chunks = Annotated[int | None, opt.option(
    "--chunks N", "Parts of --overlap.", "Run", default="4; in a ring as many as devices")]  # fmt: skip
_Trace = Annotated[Path | None, opt.option(
    "--output -o FILE", "Write a Chrome trace here, which ui.perfetto.dev opens.", "Output")]  # fmt: skip
#: Layers and tasks of the critical path that are listed at most.
_MOST = 5


@command(PREDICT, "roofline timeline llama-3-8b h100-sxm --phase prefill -S 4096 --tp 2 --mode graph --overlap tp")
def timeline(
    model: opt.Model,
    chip: opt.OneChip,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    run: opt.RunOptions,
    output: opt.ChartOptions,
    streams: _Streams = 1,
    prefetch: _Prefetch = None,
    overlap: _Overlap = None,
    chunks: _Chunks = None,
    trace: _Trace = None,
) -> None:
    """Place kernels, copies and collectives on their engines: what overlaps, what sets the pace, who waits."""
    graph = program.graph(model, run.cluster(chip))
    line = placed(
        graph, run.device(chip), streams=streams, prefetch=prefetch, overlap=overlap, chunks=chunks, **run.keywords,
        **sizes.point(graph, "a timeline"),
    )  # fmt: skip
    if trace is not None:
        line.save(trace)
        note(f"{trace}: a trace of {len(line.tasks):,} events, which https://ui.perfetto.dev opens")
    output.write(line, _parts(line))


def _parts(line: EngineTimeline) -> Iterator[Any]:
    yield heading(line)
    yield facts(_facts(line))
    engines = [(row["engine"], f"{row['tasks']:,}", time_text(row["busy_s"]), time_text(row["idle_s"]),
                percent(row["share"]), time_text(row["critical_s"])) for row in line.engines()]  # fmt: skip
    yield from ("", table("<engine|tasks|busy|idle|busy share|on the critical path", engines))
    for by, name in (("op", "operator"), ("layer", "layer")):
        every = list(line.critical_seconds(by).items())
        parts = [(each, time_text(seconds), percent(seconds / line.time)) for each, seconds in every[:_MOST]]
        more = f", {_MOST} of {len(every)}" if len(every) > _MOST else ""
        yield from ("", table(f"<critical path by {name}{more}|time|share", parts))
    critical = [row for row in line.records() if row["critical"]]
    longest = sorted(critical, key=lambda row: -float(f"{row['time_s']:.6g}"))[:_MOST]
    tasks = [(row["name"], row["engine"], time_text(row["start_s"]), time_text(row["time_s"]), row["waits_for"] or "-")
             for row in longest]  # fmt: skip
    yield from ("", table(f"<longest of {len(critical):,} on it|<engine|start|time|?<waits for", tasks))


def _facts(line: EngineTimeline) -> Iterator[tuple[str, Any]]:
    yield "time", time_and_range(line)
    share = line.gain / line.serial
    yield "one after the other", f"{time_text(line.serial)}; overlap saves {time_text(line.gain)} ({share:.1%})"
    busiest = f"the {line.busiest} needs {time_text(line.loads[line.busiest])}"
    yield "at least", f"{time_text(line.least)}: the longest path takes {time_text(line.longest_path)}, {busiest}"
    weights, split = line.streamed, line.overlap
    if weights is not None:
        yield (
            "weights",
            f"{size_text(weights.bytes)} from the host, {size_text(weights.buffers)} of buffers on the device",
        )
    if split is not None:
        whole = f"; {split.whole:,} would gain nothing" if split.whole else ""
        yield "in parts", f"{split.split:,} collectives and the matmuls beside them{whole}"
