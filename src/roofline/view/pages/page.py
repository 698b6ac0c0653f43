"""A trace's report and a verdict as one page each."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from roofline.diagnosis.causes import Advice, Candidate, Cause, Verdict
from roofline.diagnosis.op_summary import OpSummary
from roofline.diagnosis.report import REASON_WORDS, TraceReport
from roofline.ir.units import format_si
from roofline.view.pages.roofplot import roofplot
from roofline.view.pages.style import facts, page, paragraphs, table
from roofline.view.pages.waterfall import stacked, waterfall

#: Operators that a page lists at most.
MOST = 200


def trace_page(report: TraceReport) -> str:
    """A trace's report as a page that loads nothing.

    Args:
        report: From :func:`roofline.diagnosis.trace_report`.
    """
    where = report.chip.name if report.chip is not None else "chip unknown"
    partial = " (partial)" if report.partial else ""
    title = f"{os.path.basename(report.source)} on {where}{partial}"
    return page(title, [_summary(report), paragraphs(report.notes), *_trace(report, own=True)])


def verdict_page(verdict: Verdict, report: TraceReport | None = None) -> str:
    """A verdict as a page that loads nothing.

    Args:
        verdict: From :func:`roofline.check`.
        report: Of the trace that it rests on, whose operators are listed below it.
    """
    est = verdict.estimate
    title = f"{verdict.verdict.replace('_', ' ')}: {est.graph.name} on {est.chip.name}"
    parts = [
        paragraphs([verdict.reason], "good" if verdict.ok else "bad"),
        facts(_judged(verdict)),
        paragraphs(verdict.notes),
        f"<h2>Where the time went</h2>\n{waterfall(verdict.waterfall)}" if verdict.waterfall else "",
        _causes(verdict.causes),
        _candidates(verdict.candidates),
        _advice(verdict.advice),
        f"<h2>Looks wrong and is not</h2>\n{paragraphs(verdict.normal, '')}" if verdict.normal else "",
    ]
    if report is not None:
        parts += [f"<h2>Trace</h2>\n{_summary(report)}", paragraphs(report.notes), *_trace(report, own=False)]
    return page(title, parts)


def _judged(verdict: Verdict) -> Iterator[tuple[str, str]]:
    est = verdict.estimate
    yield "measured", _time(verdict.measured)
    yield "expected", f"{_time(float(est.time))} ({_time(float(est.low))} to {_time(float(est.high))})"
    yield "ratio", f"{verdict.ratio:.3g}"
    yield "lower bound", _time(verdict.lower_bound)
    if verdict.waterfall:
        yield "causes", "measured in the trace" if verdict.traced else "inferred from the total time, not measured"


# --- trace ------------------------------------------------------------------------------------------------------------


def _summary(report: TraceReport) -> str:
    pairs = [("format", report.format), ("device", ", ".join(report.devices))]
    if report.timed:
        share = f" ({report.busy / report.seconds:.1%})" if report.seconds else ""
        pairs += [
            ("time", f"{_time(report.seconds)} per iteration"),
            ("iterations", f"{report.iterations} ({report.found_by})"),
            ("busy", f"{_time(report.busy)}{share}"),
            ("communication", str(report.communication)),
            ("host copies", str(report.copies)),
        ]
    else:
        pairs.append(("time", f"{_time(report.busy)} in kernels"))
    return facts(pairs)


def _trace(report: TraceReport, own: bool) -> Iterator[str]:
    """Sections of a trace; without a verdict above them with a waterfall and causes of their own."""
    if report.timed and not report.on_cpu:
        idle = [(REASON_WORDS[name], part) for name, part in report.idle.items()]
        yield f"<h2>Busy and idle</h2>\n{stacked([('busy', report.busy), *idle])}"
    if own and report.seconds > 0:
        yield f"<h2>Where the time went</h2>\n{waterfall(report.waterfall, 'per iteration' if report.timed else 'all')}"
        yield _causes(report.causes)
    picture = roofplot(report.chip, report.ops) if report.chip is not None else ""
    if picture:
        yield f"<h2>Roofline</h2>\n{picture}"
    yield _ops(report.ops)
    if report.host_ops:
        rows = ((name, f"{calls:.4g}", _time(seconds)) for name, calls, seconds in report.host_ops[:MOST])
        yield f"<h2>Long on the CPU</h2>\n{table(('<<operator', 'calls', 'time'), rows)}"


_HEADS = ("#", "<<operator", "<<shapes", "calls", "time", "share", "<bound", "FLOP/s", "of peak", "B/s", "of memory",
          "expected", "<<what to do")  # fmt: skip


def _ops(ops: Sequence[OpSummary]) -> str:
    rows = (_op(at, line) for at, line in enumerate(ops[:MOST], 1))
    bad = {at for at, line in enumerate(ops[:MOST]) if line.above}
    more = f", the first {MOST} of {len(ops)}" if len(ops) > MOST else ""
    return f"<h2>Operators{more}</h2>\n{table(_HEADS, rows, bad)}"


def _op(at: int, line: OpSummary) -> tuple[str, ...]:
    name = line.op if line.kernels in ("", line.op) else f"{line.op} [{line.kernels}]"
    shapes = f"{line.shapes} {line.dtype}".strip()
    return (
        str(at), name, "; ".join(part for part in (shapes, line.counters) if part), f"{line.calls:.4g}",
        _time(line.seconds), f"{line.share:.1%}", line.bound or ("no formula" if line.formula == "none" else ""),
        _rate(line.flops_per_s, "FLOP/s"), _share(line.flops_share), _rate(line.bytes_per_s, "B/s"),
        _share(line.bytes_share), f"{line.ratio:.2f}x" if line.ratio == line.ratio else "", line.proposal,
    )  # fmt: skip


# --- tables -----------------------------------------------------------------------------------------------------------


def _causes(causes: Sequence[Cause]) -> str:
    heads = ("<lost to", "time", "share", "without it", "<<evidence", "<<what to do")
    rows = (
        (one.label, _time(one.explains_s), f"{one.share:.1%}", _time(one.expected_after_s), one.evidence, one.fix)
        for one in causes
    )
    return f"<h2>Causes</h2>\n{table(heads, rows)}" if causes else ""


def _candidates(candidates: Sequence[Candidate]) -> str:
    heads = ("<if it were", "from", "to", "off by", "<<what to look for")
    rows = ((one.label, _time(one.low_s), _time(one.high_s), f"{one.gap:.2g}x", one.question) for one in candidates)
    return f"<h2>What it may be</h2>\n{table(heads, rows)}" if candidates else ""


def _advice(advice: Sequence[Advice]) -> str:
    heads = ("<<change", "time", "saves", "with all above", "<<note")
    rows = ((one.change, _time(one.time_s), _time(one.saves_s), _time(one.together_s), one.note) for one in advice)
    return f"<h2>What would make it faster</h2>\n{table(heads, rows)}" if advice else ""


def _time(seconds: float) -> str:
    return format_si(seconds, "s")


def _rate(value: float, unit: str) -> str:
    return format_si(value, unit) if value == value else ""


def _share(value: float) -> str:
    return f"{value:.1%}" if value == value else ""
