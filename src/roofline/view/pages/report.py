"""Reports: a prediction, a verdict or a trace as a page, each with the chapters that there are results for."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

from roofline.analysis.estimates import Estimate, Mode, estimate
from roofline.cost import BOUNDS, REGIME
from roofline.diagnosis.causes import Verdict
from roofline.diagnosis.report import REASON_WORDS, TraceReport, trace_report
from roofline.fleet.results import Fleet
from roofline.frontends.source import Program
from roofline.hardware.library import AnyChip
from roofline.ir.errors import RooflineError, UsageError
from roofline.ir.report import title
from roofline.ir.units import format_bytes, format_si
from roofline.traces.events import Trace
from roofline.traces.reading import read_trace
from roofline.view.charts import plot_roofline, plot_timeline, plot_trace_memory, plot_verdict
from roofline.view.charts.waterfall import words
from roofline.view.listing.drawing import BOX_HEIGHT, BOX_WIDTH
from roofline.view.pages import prediction as predict
from roofline.view.pages.fleet import fleet_page
from roofline.view.pages.moves import Moves, Picture
from roofline.view.pages.page import Chapter, Page, chapter
from roofline.view.pages.prediction import Prediction, predicted
from roofline.view.pages.program import program_view

#: Operators of a trace that a page lists at most.
MOST = 200


def report(
    what: Program | Estimate | Verdict | TraceReport | Fleet,
    chip: AnyChip | None = None,
    *,
    trace: Trace | str | os.PathLike[str] | None = None,
    mode: Mode = "eager",
    tf32: bool | None = None,
    regime: str = REGIME,
    host: str | float | os.PathLike[str] | None = None,
    phase: str | None = None,
    dtype: str | None = None,
    **sizes: Any,
) -> Page:
    """Make one page of a prediction, a verdict or a trace: interactive, in one file, which loads nothing.

    A prediction has a slider over batches, which moves every chart and number. Its positions are the batches that are
    given, or powers of two up to the first that does not fit.

    Args:
        what: A program (a graph, a shipped name, or the path of a model file, workload, config or script), an estimate,
            a verdict of :func:`roofline.check`, or a report of :func:`roofline.diagnosis.trace_report`.
        chip: Where a program runs, by name or as a chip; only with a program.
        trace: The profiler's file behind a verdict or a report of a trace, read or not: what ran when, and of a verdict
            the operators.
        mode: As for :func:`roofline.estimate`, as all that follow; only with a program.
        tf32: Let fp32 contractions use the tf32 matrix units.
        regime: Where operands lie when a kernel starts.
        host: Who launches it in mode ``eager``: a factor, or a file that ``roofline calibrate`` wrote there.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        sizes: ``batch``, ``seq``, ``context`` and any other size; the batch may be a sequence, which is the slider's.

    Returns:
        The page, with ``html()`` and ``save(path)``.

    Raises:
        UsageError: A program without a chip, a result with one, or an estimate that spans anything but batches.
        RooflineError: As :func:`roofline.estimate` raises.

    Example:
        >>> import roofline as rl
        >>> page = rl.report("gpt2", "a100-80gb-sxm", phase="decode", batch=[1, 8], context=512)
        >>> page.moves.labels, [chapter.title for chapter in page.chapters][:2]
        (('1', '8'), ['At a glance', 'Roofline'])
    """
    events = trace if trace is None or isinstance(trace, Trace) else read_trace(trace)
    if isinstance(what, Verdict):
        return verdict_page(what, events)
    if isinstance(what, TraceReport):
        return trace_page(what, events)
    if isinstance(what, Fleet):
        return fleet_page(what)
    if not isinstance(what, Estimate):
        if chip is None:
            raise UsageError("a report of a program needs a chip, such as rl.report('gpt2', 'h100-sxm', batch=1)")
        keywords: dict[str, Any] = {"mode": mode, "tf32": tf32, "regime": regime, "host": host}
        what = estimate(what, chip, phase=phase, dtype=dtype, **keywords, **sizes)
    return prediction_page(what)


def prediction_page(est: Estimate) -> Page:
    """Return an estimate as a page, with a slider over batches.

    Args:
        est: Of one point or over batches, on one chip.
    """
    prediction = predicted(est)
    moves = prediction.moves()
    chapters = tuple(_prediction(prediction, moves))
    graph, chip = est.graph, est.chip
    headline = prediction.cell(predict.headline)
    return Page(f"{graph.name} on {chip.name}", predict.subtitle(prediction), chapters, moves, headline)


def verdict_page(verdict: Verdict, trace: Trace | None = None) -> Page:
    """Return a verdict as a page, with the prediction that it rests on."""
    est, moves = verdict.estimate, Moves()
    chapters = [*_verdict(verdict, moves)]
    if trace is not None:
        chapters += _trace(trace_report(trace, est.chip), moves, trace, [])
    chapters += _prediction(predicted(est, slider=False), moves, "Prediction", verdict.measured)
    head = f"{verdict.verdict.replace('_', ' ')}: {est.graph.name} on {est.chip.name}"
    return Page(head, title(est.subject()), tuple(chapters), moves)


def trace_page(of: TraceReport, trace: Trace | None = None) -> Page:
    """Return a trace as a page.

    Args:
        of: From :func:`roofline.diagnosis.trace_report`.
        trace: The trace itself, for what ran when.
    """
    moves = Moves()
    where = of.chip.name if of.chip is not None else "chip unknown"
    partial = " (partial)" if of.partial else ""
    chapters = tuple(_trace(of, moves, trace, _lost(of, moves)))
    return Page(f"{os.path.basename(of.source)} on {where}{partial}", str(of), chapters, moves)


# --- chapters ---------------------------------------------------------------------------------------------------------


def _prediction(
    of: Prediction, moves: Moves, head: str = "At a glance", measured: float | None = None
) -> Iterator[Chapter]:
    """Yield the chapters of a prediction, the first with a heading of its own, and what was measured beside it [s]."""

    def made(name: str, title: str, **values: Any) -> Chapter:
        return chapter(name, title, "prediction", moves, **values)

    lines, rows = predict.kernel_lines(of), len(of.shown.rows)
    columns = [(name, "n") for name in predict.COLUMNS]
    yield made("summary", head, pairs=predict.summary(of), notes=of.shown.graph.info.notes)
    yield made("roofline", "Roofline", chart=predict.roofline(of, moves, measured))
    if sweep := predict.sweep(of, moves):
        yield made("sweep", "Over the batch", **sweep)
    yield made("memory", "Memory", **predict.memory(of, moves))
    if layers := predict.layers(of, moves):
        yield made("layers", "Layers", chart=layers)
    yield made("program", "Program", view=program_view(of), bounds=BOUNDS, box_width=BOX_WIDTH, box_height=BOX_HEIGHT)
    yield made("kernels", "Kernels", lines=lines, columns=columns, every=rows)
    if passes := predict.passes(of, moves):
        yield made("passes", "Passes", **passes)
    yield made("sources", "Where the figures come from", **predict.sources(of))


def _verdict(of: Verdict, moves: Moves) -> Iterator[Chapter]:
    """Yield the chapters of a verdict that have something to say."""

    def made(name: str, head: str, **values: Any) -> Chapter:
        return chapter(name, head, "verdict", moves, **values)

    yield made("verdict", "Verdict", of=of)
    yield made("waterfall", "Where the time went" if of.waterfall else "Measured and expected", **_parts(of, moves))
    if of.causes:
        yield made("causes", "Causes", rows=of.causes, guesses=of.guesses)
    if of.candidates:
        yield made("candidates", "What it may be", rows=of.candidates)
    if of.advice:
        yield made("advice", "What would make it faster", rows=of.advice)
    if of.normal:
        yield made("normal", "Looks wrong and is not", lines=of.normal)


def _trace(of: TraceReport, moves: Moves, trace: Trace | None, lost: Iterable[Chapter]) -> Iterator[Chapter]:
    """Yield the chapters of a trace, with those on what its time was lost to after the first."""

    def made(name: str, head: str, **values: Any) -> Chapter:
        return chapter(name, head, "trace", moves, **values)

    yield made("trace", "Trace", report=of)
    yield from lost
    if of.timed and not of.on_cpu:
        yield made("idle", "Busy and idle", report=of, reasons=REASON_WORDS)
        if trace is not None:
            yield made("timeline", "Timeline", chart=_timeline(trace, moves))
    if of.memory is not None:
        yield made(
            "memory_peak",
            "Memory",
            rows=[(one, format_bytes(one.bytes)) for one in of.memory.held[:MOST]],
            chart=_memory(of, moves),
        )
    chart = _operators(of, moves)
    if chart is not None:
        yield made("operators_roofline", "Roofline of the operators", chart=chart)
    yield made("operators", "Operators", report=of, most=MOST)
    if of.host_ops:
        yield made("host", "Long on the CPU", rows=of.host_ops[:MOST])


def _lost(of: TraceReport, moves: Moves) -> Iterator[Chapter]:
    """Yield what a trace says by itself of where its time went."""
    if of.seconds > 0:
        yield chapter("waterfall", "Where the time went", "verdict", moves, **_parts(of, moves))
    if of.causes:
        yield chapter("causes", "Causes", "verdict", moves, rows=of.causes)


def _parts(of: Verdict | TraceReport, moves: Moves) -> dict[str, Any]:
    """Return the parts of a measured time and their chart."""
    chart = plot_verdict(of)
    longest = sorted(of.waterfall, key=lambda part: -part[1])[:3]
    said = ", ".join(f"{words(name)} {seconds / chart.measured:.1%}" for name, seconds in longest)
    label = f"The measured {format_si(chart.measured, 's')}" + (f": most is {said}." if said else " cannot be.")
    picture = moves.picture("waterfall", [chart.drawing()], [label])
    return {"parts": of.waterfall, "whole": chart.measured, "chart": picture}


def _timeline(trace: Trace, moves: Moves) -> Picture:
    """Take in what ran when in one iteration."""
    chart = plot_timeline(trace)
    return moves.picture("timeline", [chart.drawing()], [f"Here: {chart.said}; zoom in to see single kernels."])


def _memory(of: TraceReport, moves: Moves) -> Picture:
    """Take in the memory over the trace."""
    return moves.picture("memory-peak", [plot_trace_memory(of).drawing()], [f"{of.memory}."])


def _operators(of: TraceReport, moves: Moves) -> Any:
    """Take in the roofline of a trace; nothing where the chip has no roofs or no operator has arithmetic."""
    try:
        chart = plot_roofline(of)
    except RooflineError:
        return None
    words = " ".join((f"{chart.subtitle}. The table of operators has every point.", *chart.warnings))
    return moves.picture("operators-roofline", [chart.drawing()], [words])
