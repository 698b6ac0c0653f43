"""Judge a measured time: the verdict, what the time went to, and what would save some."""

from __future__ import annotations

from typing import Any

from roofline.chip import Chip
from roofline.count import unknown_operations
from roofline.data import chip as find_chip
from roofline.diagnosis.advice import advice
from roofline.diagnosis.limit import speed_limit
from roofline.diagnosis.meant import Meant
from roofline.diagnosis.suspects import candidates
from roofline.diagnosis.words import FIXES, Candidate, Cause, Verdict
from roofline.errors import UsageError
from roofline.estimate import Estimate, Mode
from roofline.graph import Graph
from roofline.units import format_si, parse

#: From here on a time is very slow.
VERY_SLOW = 10.0
#: Without a trace, so much more than good kernels take needs no cause.
TOLERANCE = 1.35
#: Parts of the measured time that are smaller are not worth a cause.
SMALL = 0.01


def check(
    graph: Graph,
    chip: str | Chip,
    measured: str | float,
    *,
    mode: Mode = "eager",
    tf32: bool = False,
    **sizes: Any,
) -> Verdict:
    """Judge a measured time.

    Args:
        graph: The program that was meant to run.
        chip: Where it ran.
        measured: The time of one run, such as ``"41 ms"`` or seconds.
        mode: How it ran.
        tf32: Whether fp32 contractions used tf32.
        sizes: ``B``, ``S``, ``C`` as single numbers.

    Raises:
        UsageError: A time that is not above zero, or sizes that span axes.

    Example:
        >>> import roofline as rl
        >>> decode = rl.model("llama-3-8b", phase="decode")
        >>> rl.check(decode, "h100-sxm", "1 ms", B=1, S=2048).verdict
        'impossible'
    """
    seconds = parse(measured, "s")
    if not seconds > 0:
        raise UsageError(f"measured={measured!r}: a time is above zero")
    meant = Meant(graph, find_chip(chip), mode, tf32, sizes)
    if meant.expected.shape:
        raise UsageError("a measured time belongs to one point; give single numbers for B, S and C")
    return _judge(_likely(meant, seconds), seconds)


def _likely(meant: Meant, seconds: float) -> Meant:
    """With tf32 where a program in fp32 was faster than fp32 can be: convolutions use it unless told not to."""
    if not meant.tf32 and "fp32" in meant.contracts_in and meant.has_tf32 and seconds < speed_limit(meant.expected):
        return Meant(meant.graph, meant.chip, meant.mode, True, meant.sizes)
    return meant


def _judge(meant: Meant, seconds: float) -> Verdict:
    expected = meant.expected
    bottom = speed_limit(expected)
    verdict, reason = _verdict(expected, seconds, bottom)
    possible = verdict != "impossible"
    found = candidates(meant, seconds) if possible else ()
    if missing := unknown_operations(expected.graph):
        reason += f"; expected without the arithmetic of {', '.join(missing)}, which no rule translates"
    floor, efficiency, causes = _split(meant, seconds, found) if possible else (meant.floor, 0.0, ())
    return Verdict(
        verdict=verdict,
        reason=reason,
        measured=seconds,
        ratio=seconds / expected.time,
        impossible_below=bottom,
        estimate=expected,
        floor_s=floor,
        efficiency_s=efficiency,
        causes=causes,
        candidates=found,
        advice=advice(meant) if possible else (),
    )


def _verdict(expected: Estimate, seconds: float, bottom: float) -> tuple[str, str]:
    time, low, high = (format_si(value, "s") for value in (expected.time, expected.low, expected.high))
    given = format_si(seconds, "s")
    if seconds < bottom:
        limit = format_si(bottom, "s")
        return "impossible", (
            f"{given} is less than {limit}, the least that {expected.graph.name} can take on {expected.chip.name}: "
            "look for a missing synchronise, another size or format than said, or work that was cached or skipped"
        )
    if seconds <= expected.high:
        ease = "" if seconds >= expected.low else ", faster than the range but possible: check size and format"
        return (
            "as_expected",
            f"{given} against {time} expected ({low} to {high}){ease}; {expected.bound}-bound",
        )
    ratio = seconds / expected.time
    word = "very_slow" if ratio >= VERY_SLOW else "slow"
    return word, f"{given} is {ratio:.3g} times the {time} expected ({low} to {high})"


def _split(meant: Meant, seconds: float, found: tuple[Candidate, ...]) -> tuple[float, float, tuple[Cause, ...]]:
    """Floor, efficiency and causes, which add up to the measured time."""
    floor = min(meant.floor, seconds)
    if seconds <= max(meant.attainable_high, TOLERANCE * meant.attainable) or not found:
        return floor, seconds - floor, ()
    over = seconds - meant.attainable
    best = found[0]
    explained = min(max(best.high_s, meant.attainable) - meant.attainable, over)
    parts = [(best.label, explained, _evidence(best, seconds))]
    if over - explained > SMALL * seconds:
        parts.append(("unknown", over - explained, "no counterfactual reaches the measured time"))
    else:
        parts = [(best.label, over, parts[0][2])]
    return floor, meant.attainable - floor, tuple(cause(label, part, seconds, why) for label, part, why in parts)


def cause(label: str, explains: float, seconds: float, evidence: str) -> Cause:
    """A cause with what follows from its part."""
    return Cause(label, explains, explains / seconds, evidence, FIXES[label], seconds - explains)


def _evidence(best: Candidate, seconds: float) -> str:
    low, high, given = (format_si(value, "s") for value in (best.low_s, best.high_s, seconds))
    fit = f"as is the measured {given}" if best.gap == 1 else f"{best.gap:.2g} times off the measured {given}"
    return f"{best.question} Then {low} to {high} are expected, {fit}; a guess from the time alone"
