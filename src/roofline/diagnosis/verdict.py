"""Judge a measured time: the verdict, what the time went to, and what would save some."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from roofline.analysis.estimates import Estimate, Mode
from roofline.cost import REGIME
from roofline.cost.cpu import is_cpu
from roofline.counting.counts import unknown_operations
from roofline.diagnosis.advice import advice
from roofline.diagnosis.causes import GUESS, Candidate, Cause, Fix, Verdict, cause
from roofline.diagnosis.expected_behaviour import normal
from roofline.diagnosis.groups import CONTRACTIONS
from roofline.diagnosis.hypotheses import candidates
from roofline.diagnosis.idle import TRACED_UNKNOWN, unknown_fix, without_host
from roofline.diagnosis.iteration import Run, launches_kernels, one_device, run_of
from roofline.diagnosis.reference import Reference, lower_bound, possible_in
from roofline.diagnosis.trace_causes import TraceContext, attribute
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip, with_host
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import TraceError, UsageError
from roofline.ir.graph import sizes_of
from roofline.ir.units import format_si, parse
from roofline.traces.events import Trace
from roofline.traces.reading import read_trace

#: From this many times the expected time on, a time is very slow.
VERY_SLOW = 10.0
#: Programs of a kind differ this much between machines and library versions: no verdict on less, whatever the range.
USUAL = 1.25
#: The same where a trace shows the expected kernels and no cause that matters.
WITNESSED = 1.6
#: Without a trace, this many times the time of good kernels needs no cause.
TOLERANCE = 1.35
#: An iteration of the trace that is busy for this many times the measured time was another run.
DIFFERS = 1.1
#: An iteration with this many times the contractions, or so few, may be of another program.
OTHER_WORK = 3.0
#: On zeros or equal tokens few bits toggle: matmuls draw less power and keep their clock. At 8192^3 an A100 reached 295
#: TFLOP/s on zeros and 257 on random numbers (https://www.thonking.ai/p/strangely-matrix-multiplications), an H200 in
#: bf16 894 and 788.
EVEN_DATA = 1.15
#: Shares of the measured time that the verdict's sentence names.
MATTERS = 0.15


def check(
    program: Program,
    chip: AnyChip,
    measured: str | float | None = None,
    *,
    trace: Trace | str | os.PathLike[str] | None = None,
    mode: Mode = "eager",
    tf32: bool | None = None,
    regime: str = REGIME,
    host: str | float | os.PathLike[str] | None = None,
    phase: str | None = None,
    dtype: str | None = None,
    **sizes: Any,
) -> Verdict:
    """Judge a measured time.

    Args:
        program: What should have run: a graph, a shipped name, or the path of a model file, workload, config or
            script.
        chip: Where it ran.
        measured: The time of one run, such as ``"41 ms"``, or a number of seconds; the trace's when absent.
        trace: A profiler's file of it, or what :func:`read_trace` made of one; causes are then measured, not inferred.
        mode: How it ran.
        tf32: Whether fp32 contractions used tf32; by default as PyTorch does, convolutions on NVIDIA's chips.
        regime: Where operands lay when a kernel started, as for :func:`roofline.estimate`.
        host: Who launched it, as for :func:`estimate`.
        phase: Of a program given by name; its default when absent.
        dtype: Number format of a program given by name; its own when absent.
        sizes: ``batch``, ``seq``, ``context`` and any other size of the program, single numbers.

    Returns:
        The verdict, with causes ranked by how much of the time they explain.

    Raises:
        UsageError: A time that is not above zero, neither a time nor a trace, or sizes that span axes.
        UnitError: A time as a text without a unit.
        TraceError: A file that is no trace, or one of a device's program without its device events.

    Example:
        >>> import roofline as rl
        >>> rl.check("llama-3-8b", "h100-sxm", "1 ms", phase="decode", batch=1, context=2048).verdict
        'impossible'
    """
    if measured is None and trace is None:
        raise UsageError("check: give a measured time, a trace, or both")
    seconds = parse(measured, "s", "measured") if measured is not None else None
    if seconds is not None and not seconds > 0:
        raise UsageError(f"measured={measured!r}: a time is above zero")
    graph = as_graph(program, phase, dtype)
    reference = Reference(graph, with_host(find_chip(chip), host), mode, tf32, sizes_of(graph, sizes), regime)
    if reference.expected.shape:
        raise UsageError("a measured time belongs to one point; give single numbers for batch, seq and context")
    run = _run(trace, reference, seconds) if trace is not None else None
    if seconds is None:
        assert run is not None
        seconds = run.seconds
        if not seconds > 0:
            raise UsageError(f"{run.trace.path}: nothing in it took time; give a measured time")
    return _judge(reference, seconds, run)


def _run(trace: Trace | str | os.PathLike[str], reference: Reference, seconds: float | None) -> Run:
    """Take a trace apart, after a look at whether it holds what ran on the chip."""
    chip = reference.chip
    trace, note = one_device(trace if isinstance(trace, Trace) else read_trace(trace))
    run = run_of(replace(trace, notes=(*trace.notes, note)) if note else trace, chip, seconds, _contractions(reference))
    if not is_cpu(chip) and run.on_cpu and launches_kernels(trace):
        raise TraceError(
            f"{trace.path}: the host launched kernels, and the trace has no device events; "
            "record with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
        )
    return run


def _contractions(reference: Reference) -> int:
    """Count the launches of the program that multiply matrices."""
    rows = (row for row in reference.expected.rows if row.kernel.kind in CONTRACTIONS)
    return sum(int(row.kernel.count) for row in rows)


def _judge(reference: Reference, seconds: float, run: Run | None) -> Verdict:
    expected = reference.expected
    bottom = lower_bound(expected)
    possible = seconds >= bottom
    options = candidates(reference, seconds) if possible and run is None else ()
    floor, efficiency, causes = reference.floor, 0.0, tuple[Cause, ...]()
    if possible and run is None:
        floor, efficiency, causes = _inferred(reference, seconds, options)
    elif possible and run is not None:
        floor, efficiency, causes = _measured(reference, seconds, run)
    large = [one for one in causes if one.share > MATTERS and one.label != "unknown"]
    verdict, reason = _verdict(expected, seconds, bottom, run is not None and not large)
    if seconds < reference.at_peak and (formats := possible_in(reference, seconds)):
        reason += f"; {formats}"
    if missing := unknown_operations(expected.graph):
        reason += f"; expected without the arithmetic of {', '.join(missing)}, which no rule translates"
    findings = [one for one in large if not one.evidence.startswith(GUESS)]
    if findings:
        reason += f"; {', '.join(f'{one.share:.0%} {one.label}' for one in findings)}"
    if options and verdict != "as_expected":
        reason += "; what the rest was lost to is a guess without a trace (--trace FILE, trace=FILE)"
    return Verdict(
        verdict=verdict,
        reason=reason,
        measured=seconds,
        ratio=seconds / expected.time,
        lower_bound=bottom,
        estimate=expected,
        floor_s=floor,
        efficiency_s=efficiency,
        causes=causes,
        candidates=options,
        advice=advice(reference, seconds, causes) if possible else (),
        normal=normal(reference, seconds) if possible else (),
        notes=(
            *_calibrated(reference.chip),
            *_assumed(reference),
            *(_notes(reference, run, seconds) if run is not None else ()),
        ),
        traced=run is not None,
    )


def _calibrated(chip: Chip) -> tuple[str, ...]:
    """Repeat how good the calibration of a chip file is."""
    error = chip.efficiency.held_out_error
    return (
        ()
        if error is None
        else (f"{chip.name} was calibrated with a mean error of {error:.0%} on operators that the fit had not seen",)
    )


def _assumed(reference: Reference) -> tuple[str, ...]:
    """Say in which format fp32 contractions are expected where nobody said so."""
    expected = reference.expected
    kinds = {row.kernel.kind for row in expected.rows if "fp32" in row.flops_by}
    if reference.tf32 is not None or not kinds or not reference.has_tf32:
        return ()
    formats = (f"convolutions in {'tf32' if expected.tf32_kinds else 'fp32'}" if "conv" in kinds else "",
               "matmuls in fp32" if kinds - {"conv"} else "")  # fmt: skip
    text = " and fp32 ".join(filter(None, formats))
    return (f"fp32 {text} are expected, as PyTorch runs them unless told otherwise; tf32=True or False "
            "(--tf32, --no-tf32) says what was on",)  # fmt: skip


def _notes(reference: Reference, run: Run, seconds: float) -> tuple[str, ...]:
    """Say what limits an answer from a trace, and where trace and time may be of different runs."""
    notes = ["the trace is partial, and so is this answer"] if run.trace.partial else []
    notes += [*run.trace.notes, f"trace: {run.iterations.how}", *without_host(run.trace)]
    if run.on_cpu and not is_cpu(run.chip):
        notes.append("no device ran anything in the trace; of a program on a device, record what ran there as well")
        return tuple(notes)
    if run.busy > DIFFERS * seconds:
        busy = format_si(run.busy, "s")
        notes.append(f"busy for {busy} in the trace, longer than the measured time: parts are scaled; the same run?")
    expected = float(reference.expected.flops)
    done = sum(group.flops for group in run.groups if group.role == "kernel")
    uncounted = any(group.contracts and group.estimate is None for group in run.groups)
    if (done or expected) and not uncounted and not 1 / OTHER_WORK < (done + 1) / (expected + 1) < OTHER_WORK:
        counts = f"{format_si(done, 'FLOP')} in contractions where the program has {format_si(expected, 'FLOP')}"
        notes.append(f"an iteration of the trace has {counts}: is it the same program?")
    return tuple(notes)


def _verdict(expected: Estimate, seconds: float, bottom: float, witnessed: bool) -> tuple[str, str]:
    """Return the verdict in a word and in a sentence; ``witnessed`` where a trace shows little but expected kernels."""
    time, low, high = (format_si(value, "s") for value in (expected.time, expected.low, expected.high))
    text, ratio = format_si(seconds, "s"), seconds / expected.time
    if seconds < bottom:
        return "impossible", (
            f"{text} is below {format_si(bottom, 's')}, the lower bound of {expected.graph.name} on "
            f"{expected.chip.name}: look for a missing synchronise, another size or format than said, or work that was "
            "cached or skipped"
        )
    if seconds <= max(expected.high, (WITNESSED if witnessed else USUAL) * expected.time):
        ease = ""
        if seconds < expected.low:
            ease = f", faster than the range but possible: check size and format{_even_data(expected, seconds)}"
        elif seconds > expected.high:
            ease = ", above the range, but the trace shows no fault" if witnessed else ", a little above the range"
        return "as_expected", f"{text} against {time} expected ({low} to {high}){ease}; {expected.bound}-bound"
    word = "very_slow" if ratio >= VERY_SLOW else "slow"
    return word, f"{text} is {ratio:.3g} times the {time} expected ({low} to {high})"


def _even_data(expected: Estimate, seconds: float) -> str:
    """Say that the data may be why matmuls are faster than on random numbers, where that is enough of a reason."""
    matmuls = sum(row.kernel.count * time.expected for row, time in expected.timed if row.kernel.kind in CONTRACTIONS)
    enough = seconds + (1 - 1 / EVEN_DATA) * float(matmuls) >= expected.low
    return (
        f", and the data: matmuls on zeros or equal tokens draw less power and run up to {EVEN_DATA - 1:.0%} faster"
        if enough
        else ""
    )


# --- where the time went ---


#: Floor, what good kernels lose against it [s], and causes; together they are the measured time.
Split = tuple[float, float, tuple[Cause, ...]]


def _inferred(reference: Reference, seconds: float, options: tuple[Candidate, ...]) -> Split:
    """Split the time without a trace: the likeliest counterfactual, as far as it reaches."""
    floor, attainable = min(reference.floor, seconds), reference.attainable
    if seconds <= max(reference.attainable_high, TOLERANCE * attainable) or not options:
        return floor, seconds - floor, ()
    best = options[0]
    # What the program's own format costs is known, whatever else is wrong with it.
    own = max(min(reference.in_own_format, seconds) - attainable, 0.0)
    over = seconds - attainable
    guess, known = (
        over - own if best.gap == 1 else 0.0,
        "the format that the program is in",
    )  # what does not fit is none
    host, launches = (0.0, None) if best.label == "launch_bound" else _host(reference, options, guess)
    rest = guess - host
    if best.label == "precision" and best.gap == 1:
        parts = [("precision", own + rest, known if own > rest else _evidence(best, own + rest, seconds))]
    else:
        parts = [("precision", own, known), (best.label, rest, _evidence(best, rest, seconds))]
    parts += [("launch_bound", host, _evidence(launches, host, seconds))] if launches is not None else []
    parts.sort(key=lambda part: -part[1])
    return floor, attainable - floor, _closed(parts, over, seconds, chip=reference.chip)


def _host(reference: Reference, options: tuple[Candidate, ...], most: float) -> tuple[float, Candidate | None]:
    """Return what the host's launches take beyond the kernels where the estimate is bound by them, and who says so."""
    fits = (option for option in options if option.label == "launch_bound" and option.gap == 1)
    launches = next(fits, None) if reference.expected.bound == "host" else None
    host = float(reference.expected.time) - reference.in_own_format if launches is not None else 0.0
    return min(max(host, 0.0), most), launches


def _evidence(best: Candidate, explained: float, seconds: float) -> str:
    low, high, part, text = (format_si(value, "s") for value in (best.low_s, best.high_s, explained, seconds))
    return (
        f"{GUESS}{best.record}: {best.question} It would take {low} to {high}, and would explain {part} of {text}; "
        "inferred from the total time, not measured"
    )


def _measured(reference: Reference, seconds: float, run: Run) -> Split:
    """Split the time with a trace: what each launch and each gap was good for."""
    idle = run.idle.scaled(max(seconds - run.busy, 0.0))
    needed, lost = attribute(TraceContext(reference, run.groups, idle, run.calls))
    share = min(seconds / run.busy, 1.0) if run.busy else 1.0  # a trace that was busy for longer shrinks as a whole
    needed, lost = needed * share, [(label, part * share, why) for label, part, why in lost]
    floor = min(reference.floor, seconds)
    for at, (label, part, why) in enumerate(lost):  # expected work was done in the losses, the largest first
        taken = max(min(part, floor - needed), 0.0)
        lost[at], needed = (label, part - taken, why), needed + taken
    floor = min(floor, needed)  # kernels may be faster than the floor: Winograd, a warm cache, clocks
    unrecorded = any(label == "unknown" and part > 0 for label, part, _ in lost)
    fix = unknown_fix(run.trace, None if is_cpu(run.chip) else run.chip) if unrecorded else TRACED_UNKNOWN
    return floor, needed - floor, _closed(lost, seconds - needed, seconds, fix, reference.chip)


def _closed(
    parts: list[tuple[str, float, str]], over: float, seconds: float, fix: Fix | None = None, chip: Chip | None = None
) -> tuple[Cause, ...]:
    """Return causes whose parts are ``over`` together: the rest is unknown, with its own fix, and never spread."""
    unknown = [(part, why) for label, part, why in parts if label == "unknown" and part > 0]
    known = [one for one in parts if one[1] > 0 and one[0] != "unknown"]
    causes = [cause(label, part, seconds, why, chip=chip) for label, part, why in known]
    left = over - sum(one.explains_s for one in causes)
    if left > 1e-9 * seconds:
        why = "; ".join(why for _, why in unknown) or "none of the known causes explains it"
        causes.append(cause("unknown", left, seconds, why, fix, chip))
    return tuple(causes)
