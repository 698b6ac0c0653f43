"""What happens when a reader turns a knob: plain functions of what the page sends.

The server remembers nothing of a page, so that any number of readers may look at once; what is cached are results by
the state that they follow from.
"""

from __future__ import annotations

import base64
import binascii
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from roofline.diagnosis.report import TraceReport, trace_report
from roofline.diagnosis.verdict import check
from roofline.ir.csvfile import csv_text
from roofline.ir.errors import RooflineError, TraceError, UsageError
from roofline.ir.report import flat, plain, title
from roofline.ir.units import format_si
from roofline.traces.events import Trace
from roofline.traces.reading import read_trace
from roofline.view.charts import (
    plot_batch,
    plot_comparison,
    plot_elasticity,
    plot_memory,
    plot_roofline,
    plot_verdict,
)
from roofline.view.charts.chart import Chart
from roofline.view.explore import results
from roofline.view.explore.code import code
from roofline.view.explore.results import Settled, fitting, settled
from roofline.view.explore.state import DEFAULT, MAX_TEXT, MAX_TRACE, TEXTS, State, from_query, from_texts, pack
from roofline.view.pages.prediction import COLUMNS, Prediction, headline, kernel_lines, summary
from roofline.view.pages.report import prediction_page

#: Positions of the slider of the batch: powers of two.
SLIDER = 12
#: Kernels that are listed, and columns of theirs.
KERNELS, SHOWN = 15, ("time", "share", "each", "floor", "FLOP", "bytes", "FLOP/B")


# --- the state --------------------------------------------------------------------------------------------------------


class Moved(NamedTuple):
    """A state after a change, and what is wrong with a file that was dropped."""

    state: State
    fault: str = ""


def moved(trigger: str, state: State, texts: Mapping[str, Any], altered: Mapping[str, Any], upload: Any) -> Moved:
    """Return the state after a reader changed something.

    Args:
        trigger: What was changed: a field, ``slider``, ``figure``, ``reset`` or ``file``.
        state: As it was, from the address.
        texts: The value of each control.
        altered: The value of each figure of the chip.
        upload: The name of a dropped file and its contents as the browser gives them.
    """
    values = {name: _text(value) for name, value in texts.items() if name in TEXTS}
    if trigger == "slider":
        values["batch"] = str(2 ** int(texts["slider"]))
    own = {} if trigger in ("chip", "reset") else {f"chip.{name}": v.strip() for name, v in altered.items() if v}
    file = "" if trigger == "model" else state.file
    if trigger == "file" and upload[1]:
        try:
            file = pack(upload[0], decoded(upload[1]))
        except UsageError as error:
            return Moved(state, str(error))
    try:
        new = from_texts({**values, "file": file, **own})
    except UsageError as error:
        return Moved(state, str(error))
    return Moved(fitting(new) if trigger in ("model", "file") else new)


def controls(state: State) -> dict[str, Any]:
    """Return the value of each control that a state gives one; the slider's is the power of two below the batch."""
    batch = int(state.batch) if state.batch.isdecimal() and len(state.batch) < MAX_TEXT else 1
    chosen = {name: getattr(state, name) for name in TEXTS if name not in ("file", "against")}
    return chosen | {
        "against": [name for name in state.against.split(",") if name],
        "slider": min(max(batch.bit_length() - 1, 0), SLIDER),
    }


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value or "").strip()


def decoded(contents: str) -> bytes:
    """Return what a browser sends of a dropped file.

    Raises:
        UsageError: It is no such thing.
    """
    try:
        return base64.b64decode(contents.partition(",")[2], validate=True)
    except (ValueError, binascii.Error):
        raise UsageError("the file did not arrive whole; drop it once more") from None


def read(query: str | None) -> Settled:
    """Return the state of an address, without what cannot be."""
    try:
        return settled(from_query(query or ""))
    except UsageError as error:
        return Settled(settled(DEFAULT).state, {"": str(error)})


# --- answers ----------------------------------------------------------------------------------------------------------


def answer(query: str | None) -> dict[str, Any]:
    """Return what a page says in words: the headline, facts, kernels, code and what is wrong by field."""
    state, faults = read(query)
    est = results.expected(state)
    one = Prediction(est)
    said = {name: cell.texts[0] for name, cell in summary(one)}
    at = [list(COLUMNS).index(name) for name in SHOWN]
    lines = [
        [line.name, f"{line.count:,}", *(line.figures[i].texts[0] for i in at), line.bound.texts[0]]
        for line in kernel_lines(one)[:KERNELS]
    ]
    missing = ", ".join(name for name in faults if name)
    return {
        "headline": headline(est), "about": title(est.subject()), "facts": said, "kernels": lines,
        "number": len(est.rows), "code": code(state), "faults": {**results.hints(state), **faults},
        "left_out": faults.get("", "") or (f"left out, since it cannot be: {missing}" if missing else ""),
    }  # fmt: skip


class Drawn(NamedTuple):
    """A chart with what is said of it, and a table of texts: its head and its rows."""

    chart: Chart | None
    said: str = ""
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def _roofline(state: State) -> Drawn:
    return Drawn(plot_roofline(results.expected(state)), "Each bubble is a kernel, the larger the longer it takes.")


def _memory(state: State) -> Drawn:
    est = results.expected(state)
    return Drawn(plot_memory(est), dict(summary(Prediction(est)))["memory"].texts[0])


def _batch(state: State) -> Drawn:
    choice, curve, reason = results.sweep(state)
    if choice is not None:
        best = f"Best batch {choice.best:,}, of at most {choice.limit_batch:,} for {choice.limit}"
        return Drawn(plot_batch(choice), f"{best}: {format_si(choice.peak, f'{choice.curve.graph.item}/s')}.")
    return Drawn(plot_batch(curve, **results.limits(state)) if curve is not None else None, reason)


def _chips(state: State) -> Drawn:
    best = results.comparison(state).best
    said = f"The best throughput has {best.chip.name}." if best else "On none of them it runs."
    return Drawn(plot_comparison(results.comparison(state)), said)


def _elasticity(state: State) -> Drawn:
    return Drawn(plot_elasticity(results.elasticity(state)), "Less time for 1 % more of a figure, in per cent.")


def _verdict(state: State) -> Drawn:
    verdict = results.verdict(state)
    if verdict is None:
        return Drawn(None)
    rows = [
        (one.change, one.call or one.option, format_si(one.time_s, "s"), format_si(one.saves_s, "s"), one.note)
        for one in verdict.advice[:6]
    ]
    said = f"{verdict.verdict.replace('_', ' ')}: {verdict.reason}"
    return Drawn(plot_verdict(verdict), said, ("what would help", "how", "then", "saves", "note"), rows)


#: Charts of a state by name.
DRAWN: dict[str, Callable[[State], Drawn]] = {
    "verdict": _verdict, "roofline": _roofline, "batch": _batch, "memory": _memory, "chips": _chips,
    "elasticity": _elasticity,
}  # fmt: skip


def drawn(name: str, query: str | None) -> Drawn:
    """Return a chart of the state of an address, or why there is none."""
    try:
        return DRAWN[name](read(query).state)
    except RooflineError as error:
        return Drawn(None, str(error))


# --- a trace ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=2)
def traced(name: str, contents: str) -> Trace:
    """Read a profiler's file that was dropped, by the readers of the library and within their limits.

    Raises:
        UsageError: It is too large, or did not arrive whole.
        TraceError: No profiler's file.
    """
    data = decoded(contents)
    short = os.path.basename(name.replace("\\", "/"))[-80:]
    if len(data) > MAX_TRACE:
        raise UsageError(f"{short}: {len(data):,} bytes; allowed: at most {MAX_TRACE:,}")
    with tempfile.NamedTemporaryFile(prefix="roofline-") as file:
        file.write(data)
        file.flush()
        try:
            return replace(read_trace(file.name), path=short)
        except TraceError as error:
            raise TraceError(str(error).replace(file.name, short)) from None


def trace_drawn(name: str, contents: str, query: str | None) -> dict[str, Drawn]:
    """Return the charts of a dropped trace, with the verdict on the program that the page shows."""
    trace, state = traced(name, contents), read(query).state
    report = trace_report(trace, results.device(state))
    charts = {"trace": _lost(report, _judged(trace, state)), "operators": Drawn(None)}
    with suppress(RooflineError):  # no operator with arithmetic
        charts["operators"] = Drawn(plot_roofline(report), str(report))
    return charts


def _lost(report: TraceReport, said: str) -> Drawn:
    rows = [
        (cause.label, f"{cause.share:.1%}", format_si(cause.explains_s, "s"), cause.evidence, cause.fix)
        for cause in report.causes
    ]
    head = ("cause", "share", "time", "evidence", "what to do")
    return Drawn(plot_verdict(report) if report.seconds > 0 else None, f"{report}. {said}", head, rows)


def _judged(trace: Trace, state: State) -> str:
    graph = results.program(state)
    how, measured = results.how(state, graph), state.measured or None
    try:
        verdict = check(graph, results.device(state), measured, trace=trace, **how)
    except RooflineError as error:
        return f"As a run of {graph.name}: {error}"
    said = f"As a run of {graph.name}: {verdict.verdict.replace('_', ' ')}, {verdict.reason}"
    return ". Note: ".join([said, *verdict.notes])  # one of which asks whether it is the same program


# --- downloads --------------------------------------------------------------------------------------------------------


def _batches(state: State) -> str:
    curve = results.sweep(state).curve
    if curve is None:
        raise UsageError(results.sweep(state).reason)
    return csv_text(curve.csv_rows())


#: What can be taken away, by the file's name.
FILES: dict[str, Callable[[State], str]] = {
    "report.html": lambda state: prediction_page(results.expected(state)).html(),
    "chip.toml": lambda state: results.device(state).toml(),
    "kernels.csv": lambda state: csv_text([flat(plain(row)) for row in results.expected(state).kernel_rows()]),
    "batches.csv": _batches,
    "explore.py": code,
}
