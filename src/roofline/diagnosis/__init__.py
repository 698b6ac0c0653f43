"""Does a measured time make sense, and if not why: verdict, causes that add up, advice; a trace on its own."""

from __future__ import annotations

from roofline.diagnosis.groups import is_processor
from roofline.diagnosis.judge import check
from roofline.diagnosis.report import TraceReport, trace_report
from roofline.diagnosis.words import Advice, Candidate, Cause, Verdict

__all__ = ["Advice", "Candidate", "Cause", "TraceReport", "Verdict", "check", "is_processor", "trace_report"]
