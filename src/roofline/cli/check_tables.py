"""A verdict in 80 columns: the sentence, the waterfall, causes, candidates, advice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from roofline.cli.tables import COLOURS, facts, fixed, provenance, table, time_text
from roofline.diagnosis import Verdict
from roofline.diagnosis.causes import Cause

#: Characters of the longest bar.
BAR = 30
#: Causes below this share of the time are listed and not explained.
EXPLAINED = 0.02
#: Candidates and changes that are shown.
SHOWN = 6


def verdict(found: Verdict) -> list[Any]:
    """The verdict first, then where the time went, then what to do."""
    est = found.estimate
    colour = COLOURS[found.verdict]
    return [
        Text(f"{found.verdict.replace('_', ' ')}: ", style=f"bold {colour}").append(found.reason, style=colour),
        facts(
            [
                ("program", f"{est.graph.name} on {est.chip.name}, {est.mode} mode{fixed(est)}"),
                ("measured", f"{time_text(found.measured)}, {found.ratio:.3g} times the expected"),
                (
                    "expected",
                    f"{time_text(est.time)} ({time_text(est.low)} to {time_text(est.high)}), {est.bound}-bound",
                ),
                ("lower bound", f"{time_text(found.lower_bound)}, however it is run"),
            ]
        ),
        *_parts(found),
        *(part for cause in found.causes for part in _cause(cause)),
        *_candidates(found),
        *_advice(found),
        *_sentences("this is normal", found.normal),
        *_sentences("note", found.notes),
        "",
        *provenance(est),
    ]


def _parts(found: Verdict) -> Iterable[Any]:
    """The waterfall: each part begins where the one above ends."""
    if not found.waterfall:
        return
    rows, start = [], 0.0
    for part, seconds in found.waterfall:
        share = seconds / found.measured
        rows.append((part, time_text(seconds), f"{share:.1%}", _bar(start, share)))
        start += share
    rows.append(("measured", time_text(found.measured), "100%", _bar(0.0, 1.0)))
    yield from ("", table("<where it went|time|share|<", rows))


def _bar(start: float, share: float) -> str:
    """A bar that begins at a share of the whole and is never invisible."""
    left = min(round(BAR * start), BAR - 1)
    return " " * left + "█" * max(round(BAR * (start + share)) - left, 1) if share > 0 else ""


def _cause(cause: Cause) -> Iterable[Any]:
    if cause.share < EXPLAINED:
        return
    yield Text(f"\n{cause.label}", style="bold").append(f", {cause.share:.0%}: {cause.evidence}", style="not bold")
    option = f" ({cause.option})" if cause.option else ""
    yield Padding(Text(f"{cause.fix}{option}; then {time_text(cause.expected_after_s)}"), (0, 0, 0, 2))


def _candidates(found: Verdict) -> Iterable[Any]:
    """Without a trace: what else it may be, and how far each is from the measured time."""
    if not found.candidates or not any(cause.label != "unknown" for cause in found.causes):
        return
    rows = [
        (one.label, f"{time_text(one.low_s)} to {time_text(one.high_s)}", _gap(one.gap), one.question)
        for one in found.candidates[:SHOWN]
    ]
    yield from ("", table("<candidate|would take|gap|<question", rows))


def _gap(gap: float) -> str:
    return "fits" if gap == 1 else f"{gap:.2g}x"


def _advice(found: Verdict) -> Iterable[Any]:
    if not found.advice:
        return
    shown = found.advice[:SHOWN]
    rows = [
        (f"{one.change} ({one.option})" if one.option else one.change, time_text(one.time_s), time_text(one.saves_s),
         time_text(one.together_s), one.note)
        for one in shown
    ]  # fmt: skip
    yield from ("", _narrow(rows))


def _narrow(rows: Iterable[tuple[str, ...]]) -> Table:
    return table("<what would help|alone|saves|with those above|<note", rows)


def _sentences(head: str, texts: Iterable[str]) -> Iterable[Any]:
    for text in texts:
        yield Text(f"{head}: ", style="cyan").append(text, style="default")
