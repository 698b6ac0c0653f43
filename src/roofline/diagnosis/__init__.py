"""Does a measured time make sense, and if not why: verdict, causes that add up, advice; a trace on its own."""

from __future__ import annotations

from roofline.diagnosis.causes import Advice, Candidate, Cause, Verdict
from roofline.diagnosis.groups import is_processor
from roofline.diagnosis.report import TraceReport, trace_report
from roofline.diagnosis.verdict import check

__all__ = ["Advice", "Candidate", "Cause", "TraceReport", "Verdict", "check", "is_processor", "trace_report"]
