"""Judge a measured time: the verdict, what the time went to, and what would save some."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

from roofline.analysis.estimates import Estimate, Mode
from roofline.counting.counts import unknown_operations
from roofline.diagnosis import traced
from roofline.diagnosis.advice import advice
from roofline.diagnosis.causes import FIXES, Candidate, Cause, Verdict
from roofline.diagnosis.expected_behaviour import normal
from roofline.diagnosis.groups import is_processor
from roofline.diagnosis.hypotheses import candidates
from roofline.diagnosis.lower_bound import speed_limit
from roofline.diagnosis.precision import at_peak, possible_in
from roofline.diagnosis.reference import Meant
from roofline.diagnosis.traced import Run, on_processor
from roofline.hardware.chip import Chip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import TraceError, UsageError
from roofline.ir.graph import Graph
from roofline.ir.units import format_si, parse
from roofline.traces.events import Trace
from roofline.traces.reading import read_trace

#: From here on a time is very slow.
VERY_SLOW = 10.0
#: Programs of a kind differ so much between machines and library versions, whatever the range says: no verdict on less.
USUAL = 1.25
#: The same where a trace shows the meant kernels and no cause that matters.
WITNESSED = 1.6
#: Without a trace, so much more than good kernels take needs no cause.
TOLERANCE = 1.35
#: What to do about time that a trace does not explain.
TRACED_UNKNOWN = "compare the measured time with the trace's own (roofline trace): is it of the same run?"
#: An iteration of the trace that is busy for so many times the measured time was another run.
DIFFERS = 1.1
#: An iteration with so many times the products, or so few, may be of another program.
OTHER_WORK = 3.0
#: Shares of the measured time that the verdict's sentence names.
MATTERS = 0.15


def check(
    graph: Graph,
    chip: str | Chip,
    measured: str | float | None = None,
    *,
    trace: Trace | str | os.PathLike[str] | None = None,
    mode: Mode = "eager",
    tf32: bool = False,
    **sizes: Any,
) -> Verdict:
    """Judge a measured time.

    Args:
        graph: The program that was meant to run.
        chip: Where it ran.
        measured: The time of one run, such as ``"41 ms"`` or seconds; that of the trace when absent.
        trace: A profiler's file of it, or what :func:`read_trace` made of one; causes are then measured, not guessed.
        mode: How it ran.
        tf32: Whether fp32 contractions used tf32.
        sizes: ``B``, ``S``, ``C`` as single numbers.

    Raises:
        UsageError: A time that is not above zero, neither a time nor a trace, or sizes that span axes.
        TraceError: A file that is no trace, or one of a device's program without its device events.

    Example:
        >>> import roofline as rl
        >>> decode = rl.model("llama-3-8b", phase="decode")
        >>> rl.check(decode, "h100-sxm", "1 ms", B=1, S=2048).verdict
        'impossible'
    """
    if measured is None and trace is None:
        raise UsageError("check: give a measured time, a trace, or both")
    seconds = parse(measured, "s") if measured is not None else None
    if seconds is not None and not seconds > 0:
        raise UsageError(f"measured={measured!r}: a time is above zero")
    meant = Meant(graph, find_chip(chip), mode, tf32, sizes)
    if meant.expected.shape:
        raise UsageError("a measured time belongs to one point; give single numbers for B, S and C")
    ran = traced.run(_read(trace), meant.chip, seconds) if trace is not None else None
    if ran is not None and not is_processor(meant.chip) and on_processor(ran.trace) and traced.launched(ran.trace):
        raise TraceError(
            f"{ran.trace.path}: the host launched kernels, and the trace has no device events; "
            "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        )
    if seconds is None:
        assert ran is not None
        seconds = ran.seconds
        if not seconds > 0:
            raise UsageError(f"{ran.trace.path}: nothing in it took time; give a measured time")
    return _judge(_likely(meant, seconds), seconds, ran)


def _read(trace: Trace | str | os.PathLike[str]) -> Trace:
    found, others = traced.one_device(trace if isinstance(trace, Trace) else read_trace(trace))
    return replace(found, notes=(*found.notes, others)) if others else found


def _likely(meant: Meant, seconds: float) -> Meant:
    """With tf32 where convolutions in fp32 were faster than fp32 can be: cuDNN uses it unless told not to.

    What is faster than expected in fp32 and possible is not slow in tf32: more time is never a better verdict.
    """
    products = [row for row in meant.expected.rows if "fp32" in row.flops_by]
    flops = sum(row.kernel.count * float(row.flops) for row in products)
    convolved = sum(row.kernel.count * float(row.flops) for row in products if row.kernel.kind == "conv")
    if meant.tf32 or not meant.has_tf32 or convolved <= flops / 2 or seconds >= float(meant.expected.low):
        return meant
    other = replace(meant, tf32=True)
    return other if seconds <= float(other.expected.high) or seconds < speed_limit(meant.expected) else meant


def _judge(meant: Meant, seconds: float, ran: Run | None) -> Verdict:
    expected = meant.expected
    bottom = speed_limit(expected)
    possible = seconds >= bottom
    found = candidates(meant, seconds) if possible and ran is None else ()
    split = Split(meant.floor, 0.0, ())
    if possible:
        split = _guessed(meant, seconds, found) if ran is None else _measured(meant, seconds, ran)
    verdict, reason = _verdict(expected, seconds, bottom, ran is not None and not _large(split.causes))
    if seconds < at_peak(meant) and (other := possible_in(meant, seconds)):
        reason += f"; {other}"
    if missing := unknown_operations(expected.graph):
        reason += f"; expected without the arithmetic of {', '.join(missing)}, which no rule translates"
    return Verdict(
        verdict=verdict,
        reason=reason + _named(split.causes),
        measured=seconds,
        ratio=seconds / expected.time,
        impossible_below=bottom,
        estimate=expected,
        floor_s=split.floor,
        efficiency_s=split.efficiency,
        causes=split.causes,
        candidates=found,
        advice=advice(meant, seconds, split.causes) if possible else (),
        normal=normal(meant, seconds) if possible else (),
        notes=_notes(meant, ran, seconds),
        traced=ran is not None,
    )


def _large(causes: tuple[Cause, ...]) -> tuple[Cause, ...]:
    """The causes that matter."""
    return tuple(cause for cause in causes if cause.share > MATTERS and cause.label != "unknown")


def _named(causes: tuple[Cause, ...]) -> str:
    """The causes that matter, for the end of a sentence."""
    named = ", ".join(f"{cause.share:.0%} {cause.label}" for cause in _large(causes))
    return f"; {named}" if named else ""


def _notes(meant: Meant, ran: Run | None, seconds: float) -> tuple[str, ...]:
    if ran is None:
        return ()
    partial = ("the trace is partial, and so is this answer",) if ran.trace.partial else ()
    return (*partial, *ran.trace.notes, f"trace: {ran.iterations.how}", *_disagreement(meant, ran, seconds))


def _disagreement(meant: Meant, ran: Run, seconds: float) -> tuple[str, ...]:
    """What to say where trace and time may be of different runs."""
    busy = format_si(ran.busy, "s")
    if on_processor(ran.trace) and not is_processor(ran.chip):
        return ("no device ran anything in the trace; of a program on a device, record CUDA activities as well",)
    found = []
    if ran.busy > DIFFERS * seconds:
        found.append(f"busy for {busy} in the trace, longer than the measured time: parts are scaled; the same run?")
    wanted, done = float(meant.expected.flops), sum(one.flops for one in ran.groups if one.role == "kernel")
    if (done or wanted) and not 1 / OTHER_WORK < (done + 1) / (wanted + 1) < OTHER_WORK:
        counts = f"{format_si(done, 'FLOP')} of products, the program has {format_si(wanted, 'FLOP')}"
        found.append(f"an iteration of the trace has {counts}: is it the same program?")
    return tuple(found)


def _verdict(expected: Estimate, seconds: float, bottom: float, witnessed: bool) -> tuple[str, str]:
    """The verdict in a word and in a sentence; ``witnessed`` where a trace shows the meant kernels and little else."""
    time, low, high = (format_si(value, "s") for value in (expected.time, expected.low, expected.high))
    given, ratio = format_si(seconds, "s"), seconds / expected.time
    if seconds < bottom:
        limit = format_si(bottom, "s")
        return "impossible", (
            f"{given} is less than {limit}, the least that {expected.graph.name} can take on {expected.chip.name}: "
            "look for a missing synchronise, another size or format than said, or work that was cached or skipped"
        )
    if seconds <= max(expected.high, (WITNESSED if witnessed else USUAL) * expected.time):
        ease = _ease(expected, seconds, witnessed)
        return "as_expected", f"{given} against {time} expected ({low} to {high}){ease}; {expected.bound}-bound"
    word = "very_slow" if ratio >= VERY_SLOW else "slow"
    return word, f"{given} is {ratio:.3g} times the {time} expected ({low} to {high})"


def _ease(expected: Estimate, seconds: float, witnessed: bool) -> str:
    """What to say of a time that is as expected and not in the range."""
    if seconds < expected.low:
        return ", faster than the range but possible: check size and format"
    if seconds <= expected.high:
        return ""
    return ", above the range, but the trace shows no fault" if witnessed else ", a little above the range"


# --- where the time went ---


@dataclass(frozen=True)
class Split:
    """Parts that add up to the measured time [s]."""

    floor: float
    efficiency: float
    causes: tuple[Cause, ...]


def _guessed(meant: Meant, seconds: float, found: tuple[Candidate, ...]) -> Split:
    """From the time alone: the likeliest counterfactual, as far as it reaches."""
    floor = min(meant.floor, seconds)
    if seconds <= max(meant.attainable_high, TOLERANCE * meant.attainable) or not found:
        return Split(floor, seconds - floor, ())
    best = found[0]
    # What the program's own format costs is known, whatever else is wrong with it.
    own = 0.0 if best.label == "precision" else max(min(meant.in_own_format, seconds) - meant.attainable, 0.0)
    over = seconds - meant.attainable - own
    explained = min(max(best.high_s - meant.attainable, 0.0), over)
    parts = [(best.label, explained, _evidence(best, seconds)), ("precision", own, "the format that the program is in")]
    parts = sorted(parts, key=lambda part: -part[1])
    return Split(floor, meant.attainable - floor, _closed(parts, over + own, seconds))


def _measured(meant: Meant, seconds: float, ran: Run) -> Split:
    """From a trace: what each launch and each gap was good for."""
    needed, lost = traced.causes(meant, ran, seconds)
    floor = min(meant.floor, seconds)
    for at, (label, part, why) in enumerate(lost):  # what was meant was done in the losses, the largest first
        taken = max(min(part, floor - needed), 0.0)
        lost[at], needed = (label, part - taken, why), needed + taken
    floor = min(floor, needed)  # kernels may be faster than the floor: Winograd, a warm cache, clocks
    return Split(floor, needed - floor, _closed(lost, seconds - needed, seconds, TRACED_UNKNOWN))


def _closed(
    parts: list[tuple[str, float, str]], over: float, seconds: float, fix: str = FIXES["unknown"]
) -> tuple[Cause, ...]:
    """Causes whose parts are ``over`` together: what is left is unknown, with its own fix, and never spread."""
    causes = [cause(label, part, seconds, why) for label, part, why in parts if part > 0]
    left = over - sum(one.explains_s for one in causes)
    if left > 1e-9 * seconds:
        rest = cause("unknown", left, seconds, "nothing that was looked for explains it")
        causes.append(replace(rest, fix=fix))
    return tuple(causes)


def cause(label: str, explains: float, seconds: float, evidence: str) -> Cause:
    """A cause with what follows from its part."""
    return Cause(label, explains, explains / seconds, evidence, FIXES[label], seconds - explains)


def _evidence(best: Candidate, seconds: float) -> str:
    low, high, given = (format_si(value, "s") for value in (best.low_s, best.high_s, seconds))
    fit = f"as is the measured {given}" if best.gap == 1 else f"{best.gap:.2g} times off the measured {given}"
    return f"{best.question} Then {low} to {high} are expected, {fit}; a guess from the time alone"
