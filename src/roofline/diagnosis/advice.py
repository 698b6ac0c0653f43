"""What would make a program faster: the causes of its time first, then changes of the program, each estimated.

Each change is estimated alone and together with those above it. Of changes that exclude each other (two formats, two
ways to run) only the first counts towards the sum. :func:`break_even` tells when a change that costs time has paid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

import numpy as np

from roofline.diagnosis.causes import GUESS, Advice, Cause
from roofline.diagnosis.reference import Reference, faster, replays
from roofline.ir.dtypes import DTYPES
from roofline.ir.errors import RooflineError, UsageError
from roofline.ir.numbers import as_list
from roofline.ir.report import Report
from roofline.ir.units import format_si, parse
from roofline.passes.formats.cast import cast
from roofline.passes.formats.quantize import quantize
from roofline.passes.fusion.flash import flash
from roofline.passes.rewriting.layouts import images, layout
from roofline.passes.rewriting.prune import prune

#: Savings below this share are not worth saying.
WORTH = 0.01
#: What compiling takes, for the steps after which it has paid [s]: medium models take half a minute (measurements/).
COMPILE_S = 30.0


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a program.

    Attributes:
        text: What to change.
        kind: Changes of one kind exclude each other.
        apply: The changed program, ``None`` where it does not apply.
        option: The command-line option that estimates it.
        call: The same in Python.
        note: What to keep in mind.
    """

    text: str
    kind: str
    apply: Callable[[Reference], Reference | None]
    option: str
    call: str
    note: str = ""


def advice(reference: Reference, seconds: float, causes: Sequence[Cause] = ()) -> tuple[Advice, ...]:
    """Return changes that save time, those of the measured time first, then most saving first.

    Alone, a change saves what it saves of the program as it ran; with those above it, what is left of the measured time
    once its causes are gone changes in the proportion that the estimates have, and what is unknown stays.

    Args:
        reference: The program.
        seconds: The measured time [s].
        causes: What it was lost to.
    """
    first, left = [], seconds
    for cause in causes:
        if cause.label != "unknown" and cause.share >= WORTH:
            left -= cause.explains_s
            saves = _uncovered(reference, cause)
            first.append(Advice(cause.fix, seconds - saves, saves, left, _note(cause), cause.option, cause.call))
    unknown = sum(cause.explains_s for cause in causes if cause.label == "unknown")
    own = max(seconds - sum(cause.explains_s for cause in causes), 0.0)
    # Without the causes, so that no change promises the same again.
    labels = {cause.label for cause in causes}
    mode = reference.mode
    if mode == "eager" and "launch_bound" in labels:
        mode = "graph" if replays(reference.chip) else "compiled"
    tf32 = True if "precision" in labels and reference.has_tf32 else reference.tf32
    cured = replace(reference, mode=mode, tf32=tf32)
    scale = own / _time(cured)
    pace = own / float(cured.expected.device_time) if causes else scale  # launches are among the causes
    return (*first, *(_measured(one, seconds, pace, scale * one.together_s + unknown)
                      for one in _changes(cured, reference, pace)))  # fmt: skip


def _measured(one: Advice, seconds: float, pace: float, together: float) -> Advice:
    """Return advice in seconds of the measured time: alone, it saves no more than with all that stands above it."""
    saves = min(pace * one.saves_s, seconds - together)
    return replace(one, time_s=seconds - saves, saves_s=saves, together_s=together)


def _uncovered(reference: Reference, cause: Cause) -> float:
    """Return what a cause costs alone: a slow format next to nothing where launches take longer [s]."""
    if cause.label == "precision" and reference.has_tf32 and reference.expected.bound == "host":
        return min(cause.explains_s, _saves(reference, replace(reference, tf32=True)))
    return cause.explains_s


def _note(cause: Cause) -> str:
    return f"if it is {cause.label}, a guess" if cause.evidence.startswith(GUESS) else f"removes {cause.label}"


def _changes(cured: Reference, reference: Reference, pace: float) -> Iterable[Advice]:
    """Return changes of a program, in estimates.

    Args:
        cured: The program without the causes of its time: what changes are chosen by, and add up in.
        reference: The program as it ran: what each saves alone.
        pace: Seconds of the measured time in a second of the estimates.
    """
    time = _time(cured)
    options = []
    for change in CHANGES:
        after = applied(change, cured)
        if after is not None and (took := _time(after)) < (1 - WORTH) * time:
            options.append((took, change))
    combined: dict[str, Change] = {}
    together = cured
    for _, change in sorted(options, key=lambda option: option[0]):
        saves = _saves(reference, applied(change, reference))
        if saves == 0:
            continue  # a cause hides all that it would save: the cause comes first
        more = applied(change, together) if change.kind not in combined else None
        combined.setdefault(change.kind, change)
        if more is not None and _time(more) < _time(together):
            together = more
        note = change.note.format(steps=math.ceil(COMPILE_S / ((pace or 1.0) * saves)))
        yield Advice(change.text, 0.0, saves, _time(together), note, change.option, change.call)
    if halved := _halved(cured):
        way, half = halved
        if _time(half) < (1 - WORTH) * time:
            together = _all(combined.values(), half)
            saves = _saves(reference, replace(reference, graph=half.graph))
            yield Advice(HALVES[way], 0.0, saves, _time(together), HALF_NOTE,
                         f"--prune {way}=0.5", f"rl.passes.prune(graph, {way}=0.5)")  # fmt: skip
    yield from _other_batch(cured, reference, together)


def _saves(reference: Reference, after: Reference | None) -> float:
    """Return what a change saves of the program as it ran, nothing where something else takes the time [s]."""
    return max(_time(reference) - _time(after), 0.0) if after is not None else 0.0


def _all(changes: Iterable[Change], reference: Reference) -> Reference:
    """Apply the changes that help one after the other."""
    for change in changes:
        after = applied(change, reference)
        reference = after if after is not None and _time(after) < _time(reference) else reference
    return reference


def applied(change: Change, reference: Reference) -> Reference | None:
    """Return a program after a change; ``None`` where it does not apply or the chip has no figure for it."""
    try:
        after = change.apply(reference)
        return after if after is not None and np.all(after.expected.time > 0) else None
    except RooflineError:
        return None


def _time(reference: Reference) -> float:
    return float(reference.expected.time)


# --- changes ---


def _mode(mode: str, of: tuple[str, ...]) -> Callable[[Reference], Reference | None]:
    return lambda reference: replace(reference, mode=mode) if reference.mode in of else None


def _replay(reference: Reference) -> Reference | None:
    return replace(reference, mode="graph") if reference.mode == "eager" and replays(reference.chip) else None


def _tf32(reference: Reference) -> Reference | None:
    allowed = not reference.tf32 and "fp32" in reference.contracts_in and reference.has_tf32
    return replace(reference, tf32=True) if allowed else None


def _everything(dtype: str, reference: Reference) -> Reference | None:
    """Put all tensors in another format, where contractions run faster in it or fewer bytes move."""
    formats = reference.contracts_in
    wide = {"fp32", "fp64"} & (formats | {tensor.dtype for tensor in reference.graph.tensors.values()})
    if not wide or not all(faster(reference.chip, dtype, than) for than in formats):
        return None
    return replace(reference, graph=cast(reference.graph, dtype))


def narrow_matmuls(dtype: str, reference: Reference) -> Reference | None:
    """Put weights and activations of matmuls in a narrow format that the chip multiplies faster."""
    unit, formats = str(DTYPES[dtype].compute), reference.contracts_in
    if not formats or not all(faster(reference.chip, unit, than) for than in formats):
        return None
    return replace(reference, graph=quantize(reference.graph, activations=dtype))


def _stored(weights: str, cache: str | None, reference: Reference) -> Reference | None:
    """Narrow the weights, and the cache of a program that has one; arithmetic stays."""
    if (cache is not None) != any(tensor.kind == "cache" for tensor in reference.graph.tensors.values()):
        return None
    return replace(reference, graph=quantize(reference.graph, weights=weights, cache=cache))


def _flash(reference: Reference) -> Reference | None:
    graph = flash(reference.graph)
    return replace(reference, graph=graph) if graph is not reference.graph else None


def _channels_last(reference: Reference) -> Reference | None:
    """Put images channels last, where some kernel has them first."""
    if all(images(reference.graph).free.values()):
        return None
    return replace(reference, graph=layout(reference.graph, "channels_last"))


#: ``{steps}`` in a note is the number of steps after which compiling has paid.
CHANGES: tuple[Change, ...] = (
    Change("replay as a CUDA graph", "run", _replay,
           "--mode graph", 'mode="graph"', "shapes must not change"),
    Change("compile: fuse elementwise chains", "run", _mode("compiled", ("eager", "graph")),
           "--mode compiled", 'mode="compiled"', f"pays after {{steps:,}} steps where compiling takes {COMPILE_S:g} s"),
    Change("allow tf32 for fp32 contractions", "math", _tf32,
           "--tf32", "tf32=True", "10 bits of mantissa in matmuls"),
    Change("everything in bf16", "math", partial(_everything, "bf16"),
           "--dtype bf16", 'rl.passes.cast(graph, "bf16")', "keep an fp32 copy of weights where you train"),
    Change("everything in fp16", "math", partial(_everything, "fp16"),
           "--dtype fp16", 'rl.passes.cast(graph, "fp16")', "narrow range: scale the loss where you train"),
    Change("matmuls in fp8", "matmuls", partial(narrow_matmuls, "fp8"), "--activations fp8",
           'rl.passes.quantize(graph, activations="fp8")', "scales per tensor or block; check the quality"),
    Change("matmuls in int8", "matmuls", partial(narrow_matmuls, "int8"), "--activations int8",
           'rl.passes.quantize(graph, activations="int8")', "activations quantised too; check the quality"),
    Change("weights in int8", "matmuls", partial(_stored, "int8", None), "--weights int8",
           'rl.passes.quantize(graph, weights="int8")', "with a fused weight-only kernel; otherwise slower"),
    Change("weights in int4-g128", "matmuls", partial(_stored, "int4-g128", None), "--weights int4-g128",
           'rl.passes.quantize(graph, weights="int4-g128")', "with a fused weight-only kernel; check the quality"),
    Change("weights in int8, cache in int8", "matmuls", partial(_stored, "int8", "int8"),
           "--weights int8 --cache int8", 'rl.passes.quantize(graph, weights="int8", cache="int8")',
           "with a fused weight-only kernel; otherwise slower"),
    Change("weights in int4-g128, cache in int8", "matmuls", partial(_stored, "int4-g128", "int8"),
           "--weights int4-g128 --cache int8", 'rl.passes.quantize(graph, weights="int4-g128", cache="int8")',
           "with a fused weight-only kernel; check the quality"),
    Change("one kernel for attention (flash)", "attention", _flash,
           "--fuse flash", 'rl.passes.fuse(graph, "flash")'),
    Change("images channels last (NHWC)", "layout", _channels_last, "--layout channels_last",
           'rl.passes.layout(graph, "channels_last")', "x.to(memory_format=torch.channels_last), weights too"),
)  # fmt: skip


# --- less of it ---


#: Ways to half the contractions, the one that keeps the depth first.
HALVES = {
    "channels": "prune whole channels, or distil, to half the contractions",
    "layers": "drop every other layer, or distil, to half the contractions",
}
HALF_NOTE = "single weights set to zero save nothing: dense kernels multiply them all the same"


def _halved(reference: Reference) -> tuple[str, Reference] | None:
    """Return the way to half of the contractions, where they are what takes the time, and the program without them."""
    graph = reference.graph
    for way in HALVES if reference.expected.bound == "compute" else ():
        try:
            less = prune(graph, channels=0.5) if way == "channels" else prune(graph, layers=0.5)
            return way, replace(reference, graph=less)
        except RooflineError:
            continue
    return None


def _other_batch(cured: Reference, reference: Reference, together: Reference) -> Iterable[Advice]:
    """Take twice the batch in less than twice the time, or half of it in half the time."""
    batch = cured.sizes.get("B")
    if not isinstance(batch, int):
        return
    time = _time(cured)

    def at(program: Reference, other: int) -> float:
        return float(program.estimate(B=other).time)

    if at(cured, 2 * batch) / 2 < 0.9 * time:
        saves = max(_time(reference) - at(reference, 2 * batch) / 2, 0.0)
        note = f"time for {batch} of the {2 * batch} items: more throughput, longer latency"
        yield Advice(f"batch {2 * batch}", 0.0, saves, at(together, 2 * batch) / 2, note,
                     f"--batch {2 * batch}", f"batch={2 * batch}")  # fmt: skip
    elif batch > 1:
        half = batch // 2
        rate = half * _time(reference) / (at(reference, half) * batch)
        saves = max(_time(reference) - at(reference, half), 0.0)
        note = f"shorter latency, {rate:.0%} of the throughput"
        yield Advice(f"batch {half} for latency", 0.0, saves, at(together, half), note,
                     f"--batch {half}", f"batch={half}")  # fmt: skip


# --- when a change that costs time has paid ---


@dataclass(frozen=True, slots=True)
class BreakEven(Report):
    """What a change costs once, what it saves per step, and after how many steps it has paid off.

    From :func:`roofline.diagnosis.break_even`.

    Attributes:
        overhead_s: What it costs once, beyond what the same steps took before [s].
        before_s: A steady step without it [s].
        after_s: A steady step with it [s].
        steps: Steady steps until it has paid off; infinite where it never does.
    """

    schema = "break_even"

    overhead_s: float
    before_s: float
    after_s: float
    steps: float

    @property
    def never(self) -> bool:
        """True if no number of steps is enough."""
        return math.isinf(self.steps)

    @property
    def speedup(self) -> float:
        """Steady step before over after; below 1 it is slower than before."""
        return self.before_s / self.after_s

    def saves(self, steps: int) -> float:
        """Return what a run of some steady steps saves [s]; negative where it loses."""
        return steps * (self.before_s - self.after_s) - self.overhead_s

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary; ``steps`` is infinite where it never pays off."""
        figures = {key: getattr(self, key) for key in ("overhead_s", "before_s", "after_s", "speedup", "steps")}
        return [{**figures, "reading": str(self)}]

    def __str__(self) -> str:
        before, after, once = (format_si(value, "s") for value in (self.before_s, self.after_s, self.overhead_s))
        if self.never:
            return f"never pays off: a step takes {after} after and {before} before ({self.speedup:.2f}x)"
        if not self.steps:
            return f"pays off at once: a step takes {after} instead of {before} ({self.speedup:.2f}x)"
        return (
            f"pays off after {math.ceil(self.steps):,} steps: {once} once, "
            f"then {after} instead of {before} per step ({self.speedup:.2f}x)"
        )


def break_even(
    compile_s: str | float,
    before_s: str | float,
    after_s: str | float,
    *,
    first_before: Sequence[str | float] = (),
    first_after: Sequence[str | float] = (),
) -> BreakEven:
    """Count the steps after which a change that costs time once has paid off.

    Args:
        compile_s: What it costs before the first step, such as ``"20 s"``; 0 where the first steps include it.
        before_s: A steady step without the change.
        after_s: A steady step with it.
        first_before: The first steps without it, where they took longer than a steady one.
        first_after: The first steps with it.

    Returns:
        The steps, with what the change costs and saves.

    Raises:
        UsageError: A steady step that does not take a time above zero, or a negative time.

    Example:
        >>> import roofline as rl
        >>> rl.diagnosis.break_even("30 s", "40 ms", "25 ms").steps
        2000.0
        >>> print(rl.diagnosis.break_even("30 s", "72 ms", "103 ms"))
        never pays off: a step takes 103 ms after and 72 ms before (0.70x)
    """
    before, after = _seconds("before_s", before_s, above=True), _seconds("after_s", after_s, above=True)
    slow = [_seconds("first_before", time) for time in as_list("first_before", first_before)]
    fast = [_seconds("first_after", time) for time in as_list("first_after", first_after)]
    overhead = _seconds("compile_s", compile_s) + math.fsum(
        (after if late is None else late) - (before if early is None else early)
        for early, late in zip_longest(slow, fast)
    )
    steps = max(overhead, 0.0) / (before - after) if after < before else math.inf
    return BreakEven(overhead, before, after, steps)


def _seconds(name: str, time: str | float, above: bool = False) -> float:
    value = parse(time, "s", name)
    if value < 0 or (above and not value):
        raise UsageError(f"{name}={time!r}: expected a time {'above zero' if above else 'from zero'}")
    return value
