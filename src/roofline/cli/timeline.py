"""``roofline timeline``: kernels, copies and collectives on their engines, what overlaps, what sets the pace."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from roofline.analysis.engines.splitting import OVERLAPS
from roofline.analysis.engines.timeline import EngineTimeline
from roofline.analysis.engines.timeline import timeline as placed
from roofline.analysis.varied.variation import SAMPLES, Variation, vary
from roofline.cli import options as opt
from roofline.cli.app import COMPILE, command
from roofline.cli.output import note
from roofline.cli.tables import facts, heading, percent, size_text, table, time_and_range, time_text
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph

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
_WHOLE = re.compile(r"[0-9]{1,15}", re.ASCII)
#: Layers and tasks of the critical path that are listed at most.
_MOST = 5


_drawn = partial(opt.option, panel="Drawn")


@dataclass(frozen=True, kw_only=True)
class DrawnOptions:
    """What differs from run to run, beside sizes."""

    experts: Annotated[opt.Text, _drawn(
        "--experts WHAT", "Draw the tokens of each device's experts: even, or what their popularity is drawn from.")
    ] = None  # fmt: skip
    leave: Annotated[opt.Text, _drawn(
        "--leave SHARE", "Chance that a sequence leaves after a layer, such as 0.05; or one per layer, with commas.")
    ] = None  # fmt: skip
    trips: Annotated[opt.Text, _drawn(
        "--trips WHAT", "How often it runs: 8, or what that is drawn from, such as geometric:mean=4.")
    ] = None  # fmt: skip
    samples: Annotated[int | None, _drawn("--samples N", "Draws.", default=f"{SAMPLES}")] = None
    seed: Annotated[int | None, _drawn("--seed N", "The same seed gives the same draws.", default="0")] = None

    @property
    def varies(self) -> bool:
        """Tell whether it says what differs, not only how often to draw."""
        return any(each is not None for each in (self.experts, self.leave, self.trips))

    @property
    def keywords(self) -> dict[str, Any]:
        """The same as keywords of the library; those that were not given are left out."""
        trips = int(self.trips) if self.trips is not None and _WHOLE.fullmatch(self.trips) else self.trips
        each = {"experts": self.experts, "trips": trips, "samples": self.samples, "seed": self.seed,
                "leave": None if self.leave is None else _chances(self.leave)}  # fmt: skip
        return {name: value for name, value in each.items() if value is not None}


@command(COMPILE, "roofline timeline llama-3-8b h100-sxm --phase prefill -S 4096 --tp 2 --mode graph --overlap tp")
def timeline(
    model: opt.Model,
    chip: opt.OneChip,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    run: opt.RunOptions,
    drawn: DrawnOptions,
    output: opt.ChartOptions,
    streams: _Streams = 1,
    prefetch: _Prefetch = None,
    overlap: _Overlap = None,
    chunks: _Chunks = None,
    trace: _Trace = None,
) -> None:
    """Place kernels, copies and collectives on their engines: what overlaps, what sets the pace, who waits."""
    graph = program.graph(model, run.cluster(chip))
    if drawn.varies or any(_is_drawn(text) for text in sizes.texts().values()):
        _refuse(streams=streams - 1 or None, prefetch=prefetch, overlap=overlap, chunks=chunks, output=trace)
        return _show_drawn(
            vary(graph, run.device(chip), **drawn.keywords, **run.keywords, **_drawn_sizes(graph, sizes)), output
        )
    if drawn.keywords:
        raise UsageError("--samples and --seed are of draws, and nothing is drawn: give a size what it is drawn from, "
                         "such as -S lognormal:mean=512,p95=1500, or --experts, --leave or --trips")  # fmt: skip
    line = placed(
        graph, run.device(chip), streams=streams, prefetch=prefetch, overlap=overlap, chunks=chunks, **run.keywords,
        **sizes.point(graph, "a timeline"),
    )  # fmt: skip
    if trace is not None:
        line.save(trace)
        note(f"{trace}: a trace of {len(line.tasks):,} events, which https://ui.perfetto.dev opens")
    return output.write(line, _parts(line))


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
    busiest = f"{line.busiest} needs {time_text(line.loads[line.busiest])}"
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


# --- sizes that are drawn ---------------------------------------------------------------------------------------------


def _is_drawn(text: str) -> bool:
    return text.lstrip()[:1].isalpha()


def _refuse(**options: Any) -> None:
    """Refuse what is of one run, where many are drawn."""
    for name, value in options.items():
        if value is not None:
            raise UsageError(f"--{name} is of one run; kernels run one after the other where sizes, depths or trips "
                             "are drawn: give each size one number, or leave it out")  # fmt: skip


def _drawn_sizes(graph: Graph, sizes: opt.SizeOptions) -> dict[str, Any]:
    """Return the sizes of a program: whole numbers, and texts of what is drawn."""
    texts = sizes.texts()
    words = {"B": "batch", "S": "seq", "C": "context"}
    numbers = opt.SizeOptions(**{words[name]: "1" if _is_drawn(text) else text for name, text in texts.items()})
    own = {("C" if name == "S" and "S" not in graph.symbols else name): text for name, text in texts.items()}
    return {name: own[name] if _is_drawn(own.get(name, "")) else value
            for name, value in numbers.point(graph, "a size that is not drawn").items()}  # fmt: skip


def _chances(text: str) -> float | list[float]:
    try:
        chances = [float(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"--leave {text[:60]!r}: expected a chance from 0 to 1, such as 0.05; or one per layer"
        ) from None
    return chances[0] if len(chances) == 1 else chances


def _show_drawn(some: Variation, output: opt.ChartOptions) -> None:
    for text in some.notes:
        note(text)
    output.write(some, _drawn_parts(some))


def _drawn_parts(some: Variation) -> Iterator[Any]:
    yield heading(some)
    yield facts([
        *((name, text) for name, text in some.about["drawn"].items()),
        ("mean time", f"{time_text(some.mean)}  ({time_text(some.low.mean())} to {time_text(some.high.mean())})"),
        ("draws", f"{len(some.times):,}; standard error of the mean {time_text(some.error)}"),
        ("at the means", f"{time_text(some.at_means)}, with every size at its mean"),
    ])  # fmt: skip
    figures = ("mean", "p50", "p95", "p99", "least", "most")
    time, *others = some.records()
    rows = [("time", *(time_text(time[figure]) for figure in figures)),
            *((row["quantity"], *(_figure(row[figure]) for figure in figures)) for row in others)]  # fmt: skip
    yield from ("", table("<drawn|mean|p50|p95|p99|?least|?most", rows))


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
