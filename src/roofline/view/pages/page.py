"""A trace's report and a verdict as one page each."""

from __future__ import annotations

import os

from roofline.diagnosis.causes import Verdict
from roofline.diagnosis.report import REASON_WORDS, TraceReport
from roofline.ir.errors import RooflineError
from roofline.view.charts import plot_roofline
from roofline.view.charts.inline import inline
from roofline.view.pages.render import render

#: Operators that a page lists at most.
MOST = 200
#: Width and height of the roofline [inch].
ROOFLINE_SIZE = (10.0, 5.8)


def trace_page(report: TraceReport) -> str:
    """Return a trace's report as a page that loads nothing.

    Args:
        report: From :func:`roofline.diagnosis.trace_report`.
    """
    where = report.chip.name if report.chip is not None else "chip unknown"
    partial = " (partial)" if report.partial else ""
    title = f"{os.path.basename(report.source)} on {where}{partial}"
    return render("trace", title=title, report=report, most=MOST, reasons=REASON_WORDS, roofline=_roofline(report))


def verdict_page(verdict: Verdict, report: TraceReport | None = None) -> str:
    """Return a verdict as a page that loads nothing.

    Args:
        verdict: From :func:`roofline.check`.
        report: Of the trace that it rests on, whose operators are listed below it.
    """
    est = verdict.estimate
    title = f"{verdict.verdict.replace('_', ' ')}: {est.graph.name} on {est.chip.name}"
    picture = _roofline(report) if report is not None else ""
    return render(
        "verdict", title=title, verdict=verdict, report=report, most=MOST, reasons=REASON_WORDS, roofline=picture
    )


def _roofline(report: TraceReport) -> str:
    """Draw the operators of a trace; nothing where the chip has no roofs or no operator has arithmetic."""
    from markupsafe import Markup

    try:
        chart = plot_roofline(report)
    except RooflineError:
        return ""
    return Markup(inline(chart, f"roofline of the operators on {chart.chip.name}", ROOFLINE_SIZE))
