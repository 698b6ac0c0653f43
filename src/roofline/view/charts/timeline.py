"""What runs when: the kernels of a predicted run, or the streams of a recorded one with the gaps between."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from roofline.analysis.engines.timeline import EngineTimeline, lane_name
from roofline.analysis.estimates import Estimate
from roofline.analysis.timeline import kernel_runs
from roofline.diagnosis.groups import short
from roofline.diagnosis.iteration import on_cpu, one_device, run_of
from roofline.diagnosis.report import NO_CHIP
from roofline.ir.errors import UsageError, did_you_mean
from roofline.ir.text import shown
from roofline.ir.units import format_si
from roofline.traces.events import Trace
from roofline.traces.linking import Launch
from roofline.traces.reading import read_trace
from roofline.view.charts.chart import Chart
from roofline.view.charts.marks import Axis, Bars, Drawing, Panel
from roofline.view.charts.roof import about
from roofline.view.charts.style import clean

#: Neighbours of one lane and colour that are shorter than this share of the whole are drawn as one.
THIN = 1 / 1500
#: Characters of a name in a bar that has a share of the whole; shorter bars say nothing.
LETTERS = 120
#: Colours of what a device runs, by role, and what a reader calls it.
ROLES = {
    "kernel": ("floor", "kernels"), "layout": ("memory", "changes of layout"), "copy_in": ("link", "host copies"),
    "copy_out": ("link", "host copies"), "communication": ("communication", "collectives"),
}  # fmt: skip
#: Name of the lane in which nothing runs.
IDLE = "idle"
#: Name of the lane of what the end waits for.
CRITICAL = "critical path"


@dataclass(frozen=True, slots=True)
class Span:
    """Something that runs for a while.

    Attributes:
        lane: Where.
        name: What.
        start: When it starts [s].
        seconds: How long it takes [s].
        colour: Name of its colour.
        kind: What the colour stands for.
        count: How many are drawn as one.
    """

    lane: str
    name: str
    start: float
    seconds: float
    colour: str
    kind: str
    count: int = 1

    @property
    def end(self) -> float:
        """When it ends [s]."""
        return self.start + self.seconds


@dataclass(frozen=True, eq=False, repr=False)
class Timeline(Chart):
    """What runs when, made by :func:`plot_timeline`.

    Attributes:
        about: What it is of.
        head: First line of its title.
        said: Second line.
        spans: In order of start.
    """

    schema = "timeline"

    about: Mapping[str, Any]
    head: str
    said: str
    spans: tuple[Span, ...]

    def subject(self) -> dict[str, Any]:
        """Return what it is of."""
        return dict(self.about)

    def records(self) -> list[dict[str, Any]]:
        """Return one row per kernel, copy, collective and gap: its lane, its start and its time."""
        return [{"lane": s.lane, "name": s.name, "kind": s.kind, "start_s": s.start, "time_s": s.seconds}
                for s in self.spans]  # fmt: skip

    def drawing(self) -> Drawing:
        """Return a lane for each thing that works on its own, with a bar for all that runs there."""
        lanes = tuple(dict.fromkeys(span.lane for span in self.spans))
        first, last = min(span.start for span in self.spans), max(span.end for span in self.spans)
        whole = last - first or 1.0
        drawn = list(_merged(self.spans, THIN * whole))
        kinds = {span.kind: span.colour for span in drawn}
        marks = [_bars([span for span in drawn if span.kind == kind], lanes, first, whole, colour, kind)
                 for kind, colour in kinds.items()]  # fmt: skip
        x = Axis("time", "s", low=0.0, high=whole)
        panel = Panel(tuple(marks), x, Axis(categories=tuple(clean(lane) for lane in lanes)))
        return Drawing((panel,), self.head, self.said, size=(10.0, 1.8 + 0.5 * len(lanes)))

    def __repr__(self) -> str:
        return f"<Timeline: {self.head}, {len(self.spans):,} spans>"


def _bars(spans: Sequence[Span], lanes: Sequence[str], first: float, whole: float, colour: str, kind: str) -> Bars:
    texts = [_fitting(span.name, span.seconds / whole) for span in spans]
    hover = [f"{span.name}{f' and {span.count - 1:,} more' * (span.count > 1)}\n{span.kind}, "
             f"{format_si(span.seconds, 's')} from {format_si(span.start - first, 's')} on"
             for span in spans]  # fmt: skip
    return Bars(
        [lanes.index(span.lane) for span in spans], [span.seconds for span in spans],
        [span.start - first for span in spans], colour, kind, texts=texts if any(texts) else (), hover=hover,
    )  # fmt: skip


def _fitting(name: str, share: float) -> str:
    """Return a name, or its last part, where a bar has room for it; else nothing."""
    room = int(LETTERS * share) - 1
    return next((word for word in (name, name.partition(": ")[0], name.rpartition(".")[2]) if len(word) <= room), "")


def _merged(spans: Iterable[Span], thin: float) -> Iterator[Span]:
    """Yield spans with thin neighbours of one lane and kind as one."""
    for lane in groupby(sorted(spans, key=lambda span: (span.lane, span.start)), key=lambda span: span.lane):
        last: Span | None = None
        for span in lane[1]:
            near = last is not None and last.kind == span.kind and span.start - last.end < thin
            if last is not None and near and last.seconds < thin:
                end = max(last.end, span.end)
                last = Span(last.lane, last.name, last.start, end - last.start, last.colour, last.kind, last.count + 1)
                continue
            if last is not None:
                yield last
            last = span
        if last is not None:
            yield last


def plot_timeline(
    of: Estimate | EngineTimeline | Trace | str | os.PathLike[str], *, layer: str | None = None
) -> Timeline:
    """Describe a chart of what runs when.

    Of an estimate, its kernels one after the other, as the model times them, with collectives in a lane of their own
    and the host's time in eager mode; of :func:`roofline.timeline`, a lane for each engine, and what the end waits for;
    of a trace, one iteration on each stream of the device, and when none works.

    Args:
        of: An estimate of one point on one chip, a timeline, or a profiler's file, read or not.
        layer: Show the kernels of this layer alone, such as ``layers.0``; of an estimate or a timeline.

    Returns:
        The chart; nothing is drawn before it is shown or saved.

    Raises:
        UsageError: The estimate is not one point, it has no such layer, or the trace has no starts or no device.
        TraceError: No profiler's file.

    Example:
        >>> import roofline as rl
        >>> est = rl.estimate("gpt2", "h100-sxm", phase="decode", batch=1, context=512, mode="graph")
        >>> chart = plot_timeline(est, layer="layers.0")
        >>> chart.records()[0]["name"], {row["lane"] for row in chart.records()}
        ('layers.0.attn.norm', {'kernels'})
    """
    if isinstance(of, Estimate):
        spans, what = _predicted(of, layer), f"{of.graph.name} on {of.chip.name}"
        return Timeline(of.subject(), f"{f'{layer} of ' if layer else ''}{what}, kernel by kernel", about(of), spans)
    if isinstance(of, EngineTimeline):
        what = f"{f'{layer} of ' if layer else ''}{of.estimate.graph.name} on the engines of {of.estimate.chip.name}"
        said = f"{format_si(of.time, 's')}, one after the other {format_si(of.serial, 's')}"
        return Timeline(of.subject(), what, said, _placed(of, layer))
    if not isinstance(of, Trace | str | os.PathLike):
        raise UsageError(f"expected an Estimate, a trace or the path of one, or a timeline, given {shown(of)}")
    if layer is not None:
        raise UsageError(f"layer={shown(layer)} is of an estimate; a trace has no layers")
    return _recorded(of if isinstance(of, Trace) else read_trace(of))


def _predicted(est: Estimate, layer: str | None) -> tuple[Span, ...]:
    runs = kernel_runs(est)
    _check_layer(layer, (run.layer for run in runs), est.graph.name)
    spans = [
        Span("communication" if run.is_collective else "kernels", run.kernel, run.start, run.seconds, run.bound,
             f"{run.bound}-bound")
        for run in runs if layer in (None, run.layer)
    ]  # fmt: skip
    host = float(est.host_time)
    if host and layer is None:
        spans.insert(0, Span("host", f"calls of {int(est.launches):,} kernels", 0.0, host, "host", "host"))
    return tuple(spans)


def _placed(line: EngineTimeline, layer: str | None) -> tuple[Span, ...]:
    """Return the spans of the engines, and of the critical path once more in a lane of its own."""
    _check_layer(layer, (task.layer for task in line.tasks), line.estimate.graph.name)
    spans = [
        Span(lane_name(task.engine, place.lane), task.name, place.start, place.end - place.start, task.bound,
             f"{task.bound}-bound")
        for task, place in zip(line.tasks, line.places, strict=True)
    ]  # fmt: skip
    lanes = sorted(range(len(spans)), key=lambda at: (line.lanes.index(spans[at].lane), spans[at].start))
    every = [(at, spans[at]) for at in lanes] + [(at, replace(spans[at], lane=CRITICAL)) for at in line.critical]
    return tuple(span for at, span in every if layer in (None, line.tasks[at].layer))


def _check_layer(layer: str | None, names: Iterable[str], program: str) -> None:
    layers = dict.fromkeys(names)
    if layer is not None and layer not in layers:
        raise UsageError(f"layer={shown(layer)}: {program} has none of that name{did_you_mean(str(layer), layers)}")


def _recorded(trace: Trace) -> Timeline:
    if not trace.timed:
        raise UsageError(f"{trace.path}: a timeline needs starts, and a file of the format {trace.format} has none")
    if on_cpu(trace):
        raise UsageError(f"{trace.path}: a timeline is of a device, and operators ran on the CPU")
    trace, _ = one_device(trace)
    run = run_of(trace, NO_CHIP)
    first = run.iterations.first
    end = first[1] - first[0] if len(first) > 1 else len(run.launches)
    launches = run.launches[:end]
    spans = [_span(launch) for launch in launches]
    until = run.launches[end].start if end < len(run.launches) else max(launch.end for launch in launches)
    spans += _gaps(launches, until)
    about = {"source": trace.path, "format": trace.format, "devices": list(trace.devices.values())}
    busy = until - launches[0].start - sum(span.seconds for span in spans if span.lane == IDLE)
    said = f"one of {run.iterations.count} iterations, busy {busy / (until - launches[0].start):.0%} of the time"
    ordered = tuple(sorted(spans, key=lambda span: (span.lane == IDLE, span.start)))
    name = os.path.basename(trace.path)
    return Timeline(about, f"{name} on {', '.join(about['devices']) or 'one device'}", said, ordered)


def _span(launch: Launch) -> Span:
    colour, kind = ROLES.get(launch.role, ROLES["kernel"])
    kernel = short(launch.name)
    name = f"{launch.op}: {kernel}" if launch.op else kernel
    return Span(f"stream {launch.stream}", clean(name, 80), launch.start, launch.duration, colour, kind)


def _gaps(launches: Sequence[Launch], until: float) -> Iterator[Span]:
    """Yield when nothing runs."""
    now = launches[0].start
    for start, end in [*((launch.start, launch.end) for launch in launches), (until, until)]:
        if start > now:
            yield Span(IDLE, "no kernel runs", now, start - now, "unknown", "idle")
        now = max(now, end)
