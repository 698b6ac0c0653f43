"""The answer in plain data: the taxonomy of causes, the verdict, parts that add up, candidates and advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from roofline.analysis.estimates import Estimate
from roofline.diagnosis.reference import faster, replays
from roofline.hardware.chip import Chip
from roofline.ir.report import Report
from roofline.ir.units import format_si


@dataclass(frozen=True, slots=True)
class Fix:
    """What to do about something.

    Attributes:
        text: What to do, in words.
        option: The command-line option that estimates the program with it; empty where there is none.
        call: The same in Python; empty where there is none.
    """

    text: str
    option: str = ""
    call: str = ""


#: What a time can be lost to, with what to do about it. The last is what nothing explains.
FIXES: Mapping[str, Fix] = {
    "unfused": Fix("compile it, or call the fused operator, so that the chain is read and written once",
                   "--mode compiled", 'mode="compiled"'),
    "materialised": Fix("call scaled_dot_product_attention, whose kernel keeps the scores on the chip",
                        "--fuse flash", 'rl.passes.fuse(graph, "flash")'),
    "precision": Fix("cast to a 16-bit format, or allow tf32 (torch.set_float32_matmul_precision('high'), "
                     "torch.backends.cudnn.allow_tf32 = True)",
                     "--tf32", "tf32=True"),
    "alignment": Fix("pad the row length to a multiple of 8 elements"),
    "host_copy": Fix("keep tensors on the device; else pin host memory, copy with non_blocking and overlap it"),
    "launch_bound": Fix("batch the small calls, replay as a CUDA graph, or compile with mode='reduce-overhead'",
                        "--mode graph", 'mode="graph"'),
    "sync": Fix("read results back once at the end, not in every step"),
    "host_bound": Fix("prepare data in other processes and ahead of time, so that the device never waits"),
    "wasted_work": Fix("compute only what is asked for: index instead of multiplying, cut padding, do not repeat"),
    "layout_copy": Fix("keep one layout from end to end, such as channels_last"),
    "uncoalesced": Fix("read neighbours together: sort the indices, widen the rows, or change the order of the axes"),
    "reallocation": Fix("allocate once for the longest case and write in place"),
    "wrong_device": Fix("move the module and its inputs to the accelerator"),
    "clock_or_power": Fix("look at clocks, power cap and temperature; other work on the device?"),
    "kernel_choice": Fix("try another library, layout, batch or padded shape: the kernel does not suit this one"),
    "small_batch": Fix("run the pieces as one batch, so that weights are read once"),
    "communication": Fix("overlap collectives with compute, send fewer and larger ones, or narrow their format"),
    "unknown": Fix("record a trace (torch.profiler with record_shapes=True) and give it too",
                   "--trace FILE", "rl.check(..., trace=FILE)"),
}  # fmt: skip
LABELS: tuple[str, ...] = tuple(FIXES)
#: How evidence begins that is none: of a cause that fits the total time, and that nothing else points to.
GUESS = "a guess, "
#: The same where the usual one does not hold: on devices that replay no graphs, and on those without tf32.
WITHOUT_GRAPHS = Fix("batch the small calls, or compile them into fewer", "--mode compiled", 'mode="compiled"')
WITHOUT_TF32 = Fix("cast to a narrower format that the device multiplies faster")


def fix_of(label: str, chip: Chip | None = None) -> Fix:
    """Return what to do about a cause on a chip.

    Args:
        label: One of :data:`LABELS`.
        chip: Where it ran; ``None`` for a GPU.

    Example:
        >>> import roofline as rl
        >>> "CUDA graph" in fix_of("launch_bound").text, "CUDA graph" in fix_of("launch_bound", rl.chip("tpu-v5e")).text
        (True, False)
    """
    if chip is not None and label == "launch_bound" and not replays(chip):
        return WITHOUT_GRAPHS
    if chip is not None and label == "precision" and not faster(chip, "tf32", "fp32"):
        return WITHOUT_TF32
    return FIXES[label]


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that the time was lost to.

    One of :attr:`Verdict.causes`, from :func:`roofline.check`.

    Attributes:
        label: One of :data:`LABELS`.
        explains_s: Its part of the measured time [s]; the parts of all causes are disjoint.
        share: Of the measured time.
        evidence: What points to it.
        fix: What to do.
        expected_after_s: The measured time without it [s].
        option: The command-line option that estimates the program with the fix; empty where there is none.
        call: The same in Python.
    """

    label: str
    explains_s: float
    share: float
    evidence: str
    fix: str
    expected_after_s: float
    option: str = ""
    call: str = ""


def cause(
    label: str, explains: float, seconds: float, evidence: str, fix: Fix | None = None, chip: Chip | None = None
) -> Cause:
    """Return a cause with what follows from its part.

    Args:
        label: One of :data:`LABELS`.
        explains: Its part [s].
        seconds: The whole time [s].
        evidence: What points to it.
        fix: What to do, where it is not the label's.
        chip: Where it ran.
    """
    fix = fix or fix_of(label, chip)
    return Cause(
        label, explains, explains / seconds, evidence, fix.text, max(seconds - explains, 0.0), fix.option, fix.call
    )


@dataclass(frozen=True, slots=True)
class Candidate:
    """A counterfactual: what the program would take if this were what is wrong with it.

    One of :attr:`Verdict.candidates`, from :func:`roofline.check`.

    Attributes:
        label: One of :data:`LABELS`.
        question: What to look for.
        low_s: Least time with it [s].
        high_s: Most [s].
        gap: Measured over the nearest of these times: 1 inside.
        score: Logarithm of how well it fits, against the other candidates.
        right: Programs with a known cause whose time this explained best, and rightly so.
        named: Programs whose time it explained best.
    """

    label: str
    question: str
    low_s: float
    high_s: float
    gap: float
    score: float
    right: int = 0
    named: int = 0

    @property
    def record(self) -> str:
        """Say how often it was right."""
        return f"right {self.right} of {self.named} times" if self.named else "never put to the test"


@dataclass(frozen=True, slots=True)
class Advice:
    """A change, what the program would take with it and what that saves of the expected time.

    Attributes:
        change: What to change.
        time_s: What it would take, with this change alone [s].
        saves_s: Of the expected time, with this change alone [s].
        together_s: What it would take with this and all changes above it that combine [s].
        note: What to keep in mind.
        option: The command-line option that estimates the program with it; empty where there is none.
        call: The same in Python: an argument of :func:`roofline.check`, or a call on the graph.
    """

    change: str
    time_s: float
    saves_s: float
    together_s: float
    note: str = ""
    option: str = ""
    call: str = ""

    def __str__(self) -> str:
        how = f" ({self.call})" if self.call else ""
        note = f"; {self.note}" if self.note else ""
        return f"{self.change}{how}: {format_si(self.time_s, 's')}, saves {format_si(self.saves_s, 's')}{note}"


@dataclass(frozen=True, repr=False)
class Verdict(Report):
    """The answer to "does my time make sense?".

    From :func:`roofline.check`.

    Attributes:
        verdict: ``impossible``, ``as_expected``, ``slow`` or ``very_slow``.
        reason: Why, in one sentence.
        measured: The measured time [s].
        ratio: Measured over expected.
        lower_bound: No run of this program on this chip takes less [s].
        estimate: What was expected.
        floor_s: Speed of light of the program as it should run [s].
        efficiency_s: What good kernels lose against it [s].
        causes: What the rest was lost to, most first, ``unknown`` last: ``floor + efficiency + causes = measured``.
        candidates: Without a trace, every counterfactual, the likeliest first.
        advice: What would make it faster, most saving first.
        normal: What looks wrong and is not, a sentence each.
        notes: What limits this answer, such as a partial trace.
        traced: Whether causes were measured in a trace.
    """

    schema = "check"

    verdict: str
    reason: str
    measured: float
    ratio: float
    lower_bound: float
    estimate: Estimate
    floor_s: float
    efficiency_s: float
    causes: tuple[Cause, ...] = ()
    candidates: tuple[Candidate, ...] = ()
    advice: tuple[Advice, ...] = ()
    normal: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    traced: bool = False

    @property
    def ok(self) -> bool:
        """True if the time is as expected."""
        return self.verdict == "as_expected"

    @property
    def guesses(self) -> frozenset[str]:
        """Labels of causes that were inferred from the total time alone."""
        return frozenset(one.label for one in self.causes if one.evidence.startswith(GUESS))

    @property
    def waterfall(self) -> tuple[tuple[str, float], ...]:
        """Parts by name, from the floor up, that add up to the measured time [s]; none of an impossible one."""
        if self.verdict == "impossible":
            return ()
        return (
            ("floor", self.floor_s),
            ("efficiency", self.efficiency_s),
            *((cause.label, cause.explains_s) for cause in self.causes),
        )

    def subject(self) -> dict[str, Any]:
        """Return the program, where and how it ran, and its sizes."""
        return self.estimate.subject()

    def summary(self) -> dict[str, Any]:
        """Return the verdict, the expected times [s], causes, candidates and advice."""
        est, own = self.estimate, ("verdict", "reason", "ratio", "floor_s", "efficiency_s", "traced", "normal")
        listed = {name: [asdict(one) for one in getattr(self, name)] for name in ("causes", "candidates", "advice")}
        return {
            **{name: getattr(self, name) for name in own},
            "notes": [*est.graph.info.notes, *self.notes],
            "measured_s": self.measured,
            "expected_s": est.time,
            "low_s": est.low,
            "high_s": est.high,
            "lower_bound_s": self.lower_bound,
            "bound": est.bound,
            "estimate": est.records()[0],
            **listed,
        }

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per part of the measured time: what it is, its time, evidence and what to do."""
        about = {one.label: asdict(one) for one in self.causes}
        return [
            {"part": part, "time_s": seconds, "share": seconds / self.measured}
            | {key: about.get(part, {}).get(key, "") for key in ("evidence", "fix", "option", "call")}
            for part, seconds in self.waterfall
        ]

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}"

    def __repr__(self) -> str:
        return f"<Verdict {self}>"
