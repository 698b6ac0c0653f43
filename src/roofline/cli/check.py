"""``roofline check``: does a measured time make sense, and if not, what was it lost to?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.padding import Padding
from rich.text import Text

from roofline.analysis.training.program import step_program
from roofline.cli import options as opt
from roofline.cli.app import JUDGE, command
from roofline.cli.output import width
from roofline.cli.tables import COLOURS, facts, provenance, table, time_and_range, time_text
from roofline.cli.trace import read
from roofline.cli.train import step_of
from roofline.diagnosis import Verdict
from roofline.diagnosis import check as judge
from roofline.diagnosis.causes import Cause
from roofline.ir.errors import UsageError
from roofline.ir.report import title
from roofline.traces.events import Trace

_Trace = Annotated[Path | None, opt.option(
    "--trace FILE", "A profiler's file of the run; the formats are those of roofline trace.")]  # fmt: skip
#: Characters of the longest bar, and of a time and a share before it.
_BAR, _FIGURES = 30, 20
#: Causes below this share of the time are listed and not explained.
_EXPLAINED = 0.02
#: Candidates and changes that are shown.
_SHOWN = 6


@command(JUDGE, "roofline check llama-3-8b h100-sxm --phase decode -B 32 -S 2048 --mode graph --measured 41ms")
def check(
    model: opt.Model,
    chip: opt.OneChip,
    program: opt.ProgramOptions,
    sizes: opt.SizeOptions,
    copies: opt.CopyOptions,
    run: opt.RunOptions,
    output: opt.ChartOptions,
    measured: opt.Measured = None,
    trace: _Trace = None,
    html: opt.Html = None,
) -> None:
    """Judge a measured time, with causes and advice; exit with 1 where it is not as expected."""
    if measured is None and trace is None:
        raise UsageError("check needs --measured, such as --measured 41ms, or --trace FILE, or both")
    if program.is_training:
        graph, values = step_program(step_of(model, chip, program, sizes, copies, run)), dict[str, Any]()
    else:
        copies.refuse_training()
        cluster = run.cluster(chip)
        graph = program.graph(model, cluster)
        values = sizes.point(graph, "a measured time")
        values = copies.share(values, program.tp * program.pp * program.ep, cluster)
    opt.measured_time(measured)
    events = read(trace) if trace is not None else None
    verdict = judge(graph, run.device(chip), measured, trace=events, **run.keywords, **values)
    if html is not None:
        _write_page(html, verdict, events)
    output.write(verdict, verdict_parts(verdict), drawn=[events] if events is not None else ())
    if not verdict.ok:
        raise typer.Exit(1)


def _write_page(path: Path, verdict: Verdict, events: Trace | None) -> None:
    from roofline.view.pages.report import verdict_page

    verdict_page(verdict, events).save(path)


def verdict_parts(verdict: Verdict) -> Iterator[Any]:
    """Show the verdict first, then where the time went, then what to do."""
    est, colour = verdict.estimate, COLOURS[verdict.verdict]
    yield Text(f"{verdict.verdict.replace('_', ' ')}: ", style=f"bold {colour}").append(verdict.reason, style=colour)
    yield facts([
        ("program", title(est.subject())),
        ("measured", f"{time_text(verdict.measured)}, {verdict.ratio:.3g} times the expected"),
        ("expected", f"{time_and_range(est)}, {est.bound}-bound"),
        ("lower bound", f"{time_text(verdict.lower_bound)}, however it is run"),
    ])  # fmt: skip
    yield from _waterfall(verdict)
    for cause in verdict.causes:
        yield from _cause(cause)
    yield from _candidates(verdict)
    yield from _advice(verdict)
    yield from _sentences("this is normal", verdict.normal)
    yield from _sentences("note", verdict.notes)
    yield from ("", *provenance(est))


def _waterfall(verdict: Verdict) -> Iterator[Any]:
    """Show the parts of the time: each begins where the one above ends."""
    if not verdict.waterfall:
        return
    labels = max(map(len, ("where it went", *(f"{part}?" for part, _ in verdict.waterfall))))
    rows, start, longest = [], 0.0, max(min(_BAR, width() - labels - _FIGURES), 1)
    for part, seconds in verdict.waterfall:
        share = seconds / verdict.measured
        rows.append(
            (
                f"{part}?" if part in verdict.guesses else part,
                time_text(seconds),
                f"{share:.1%}",
                _bar(start, share, longest),
            )
        )
        start += share
    rows.append(("measured", time_text(verdict.measured), "100%", _bar(0.0, 1.0, longest)))
    yield from ("", table("<where it went|time|share|?<", rows))


def _bar(start: float, share: float, longest: int) -> str:
    """Return a bar that begins at a share of the whole and is never invisible."""
    left = min(round(longest * start), longest - 1)
    return " " * left + "█" * max(round(longest * (start + share)) - left, 1) if share > 0 else ""


def _cause(cause: Cause) -> Iterator[Any]:
    if cause.share < _EXPLAINED:
        return
    yield Text(f"\n{cause.label}", style="bold").append(f", {cause.share:.0%}: {cause.evidence}", style="not bold")
    option = f" ({cause.option})" if cause.option else ""
    yield Padding(Text(f"{cause.fix}{option}; then {time_text(cause.expected_after_s)}"), (0, 0, 0, 2))


def _candidates(verdict: Verdict) -> Iterator[Any]:
    """Without a trace: show what else it may be, and how far each is from the measured time."""
    if not verdict.candidates or not any(cause.label != "unknown" for cause in verdict.causes):
        return
    rows = [
        (one.label, f"{time_text(one.low_s)} to {time_text(one.high_s)}",
         "fits" if one.gap == 1 else f"{one.gap:.2g}x", f"{one.right} of {one.named}" if one.named else "untested",
         one.question)
        for one in verdict.candidates[:_SHOWN]
    ]  # fmt: skip
    yield from ("", table("<candidate|would take|?gap|right|<question", rows))


def _advice(verdict: Verdict) -> Iterator[Any]:
    rows = [
        (
            f"{one.change} ({one.option})" if one.option else one.change,
            time_text(one.time_s),
            time_text(one.saves_s),
            time_text(one.together_s),
            one.note,
        )
        for one in verdict.advice[:_SHOWN]
    ]
    if rows:
        yield from ("", table("<what would help|alone|saves|?with those above|?<note", rows))


def _sentences(head: str, texts: Iterable[str]) -> Iterator[Any]:
    for text in texts:
        yield Text(f"{head}: ", style="cyan").append(text, style="default")
