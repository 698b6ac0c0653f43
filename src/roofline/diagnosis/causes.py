"""The answer in plain data: verdict, parts that add up, causes, candidates and advice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from roofline.analysis.estimates import Estimate

#: What a time can be lost to, with what to do about it. The last is what nothing explains.
FIXES: Mapping[str, str] = {
    "unfused": "compile it, or call the fused operator, so that the chain is read and written once",
    "materialised": "call scaled_dot_product_attention, whose kernel keeps the scores on the chip",
    "precision": "cast to a 16-bit format, or allow tf32 (torch.set_float32_matmul_precision('high'))",
    "alignment": "pad the row length to a multiple of 8 elements",
    "host_copy": "keep tensors on the device; else pin host memory, copy with non_blocking and overlap it",
    "launch_bound": "batch the small calls, replay as a CUDA graph, or compile with mode='reduce-overhead'",
    "sync": "read results back once at the end, not in every step",
    "host_bound": "prepare data in other processes and ahead of time, so that the device never waits",
    "wasted_work": "compute only what is asked for: index instead of multiplying, cut padding, do not repeat",
    "layout_copy": "keep one layout from end to end, such as channels_last",
    "uncoalesced": "read neighbours together: sort the indices, widen the rows, or change the order of the axes",
    "reallocation": "allocate once for the longest case and write in place",
    "wrong_device": "move the module and its inputs to the accelerator",
    "clock_or_power": "look at clocks, power cap and temperature; other work on the device?",
    "kernel_choice": "try another library, layout, batch or padded shape: the kernel does not suit this one",
    "small_batch": "run the pieces as one batch, so that weights are read once",
    "communication": "overlap collectives with compute, send fewer and larger ones, or narrow their format",
    "unknown": "record a trace (torch.profiler with record_shapes=True) and give it with --trace",
}
LABELS: tuple[str, ...] = tuple(FIXES)


@dataclass(frozen=True, slots=True)
class Cause:
    """Something that the time was lost to.

    Attributes:
        label: One of :data:`LABELS`.
        explains_s: Its part of the measured time [s]; the parts of all causes are disjoint.
        share: Of the measured time.
        evidence: What points to it.
        fix: What to do.
        expected_after_s: The measured time without it [s].
    """

    label: str
    explains_s: float
    share: float
    evidence: str
    fix: str
    expected_after_s: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """A counterfactual: what the program would take if this were what is wrong with it.

    Attributes:
        label: One of :data:`LABELS`.
        question: What to look for.
        low_s: Least time with it [s].
        high_s: Most [s].
        gap: Measured over the nearest of these times: 1 inside.
        score: Logarithm of how well it fits, against the other candidates.
    """

    label: str
    question: str
    low_s: float
    high_s: float
    gap: float
    score: float


@dataclass(frozen=True, slots=True)
class Advice:
    """A change, what the program would take with it and what that saves of the expected time.

    Attributes:
        change: What to change.
        time_s: What it would take, with this change alone [s].
        saves_s: Of the expected time, with this change alone [s].
        together_s: What it would take with this and all changes above it that combine [s].
        note: What to keep in mind.
    """

    change: str
    time_s: float
    saves_s: float
    together_s: float
    note: str = ""


@dataclass(frozen=True, repr=False)
class Verdict:
    """The answer to "does my time make sense?".

    Attributes:
        verdict: ``impossible``, ``as_expected``, ``slow`` or ``very_slow``.
        reason: Why, in one sentence.
        measured: The measured time [s].
        ratio: Measured over expected.
        impossible_below: No run of this program on this chip takes less [s].
        estimate: What was expected.
        floor_s: Speed of light of the program as it is meant [s].
        efficiency_s: What good kernels lose against it [s].
        causes: What the rest was lost to, most first, ``unknown`` last: ``floor + efficiency + causes = measured``.
        candidates: Without a trace, every counterfactual, the likeliest first.
        advice: What would make it faster, most saving first.
        normal: What looks wrong and is not, a sentence each.
        notes: What limits this answer, such as a partial trace.
        traced: Whether causes were measured in a trace.
    """

    verdict: str
    reason: str
    measured: float
    ratio: float
    impossible_below: float
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
        """Whether the time is as expected."""
        return self.verdict == "as_expected"

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

    def record(self) -> dict[str, Any]:
        """The stable keys of ``roofline check --json``."""
        return {
            **self.estimate.records()[0],
            "verdict": self.verdict,
            "reason": self.reason,
            "ratio": self.ratio,
            "measured_s": self.measured,
            "expected_s": float(self.estimate.time),
            "impossible_below_s": self.impossible_below,
            "traced": self.traced,
            "waterfall": [{"part": part, "seconds": seconds} for part, seconds in self.waterfall],
            "causes": [_fields(cause) for cause in self.causes],
            "candidates": [_fields(candidate) for candidate in self.candidates],
            "advice": [_fields(advice) for advice in self.advice],
            "normal": list(self.normal),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}"

    def __repr__(self) -> str:
        return f"<Verdict {self}>"


def _fields(thing: Any) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in thing.__slots__}
