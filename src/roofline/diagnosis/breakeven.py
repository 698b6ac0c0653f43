"""When a change that costs time once has paid off: compiling, fusing, converting, capturing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from roofline.ir.errors import UsageError
from roofline.ir.units import format_si, parse


@dataclass(frozen=True, slots=True)
class BreakEven:
    """What a change costs once, what it saves a step, and after how many steps it has paid off.

    Attributes:
        overhead_s: What it costs once, beyond what the same steps took before [s].
        before_s: A steady step without it [s].
        after_s: A steady step with it [s].
        steps: Steady steps until it has paid off; infinite where it never does.
    """

    overhead_s: float
    before_s: float
    after_s: float
    steps: float

    @property
    def never(self) -> bool:
        """Whether no number of steps is enough."""
        return math.isinf(self.steps)

    @property
    def speedup(self) -> float:
        """Of a steady step; below 1 it is slower than before."""
        return self.before_s / self.after_s

    def saves(self, steps: int) -> float:
        """What a run of so many steady steps saves [s]; negative where it loses."""
        return steps * (self.before_s - self.after_s) - self.overhead_s

    def record(self) -> dict[str, Any]:
        """Plain data; ``steps`` is ``None`` where it never pays off."""
        return {
            "overhead_s": self.overhead_s,
            "before_s": self.before_s,
            "after_s": self.after_s,
            "speedup": self.speedup,
            "steps": None if self.never else self.steps,
            "reading": str(self),
        }

    def __str__(self) -> str:
        before, after, once = (format_si(value, "s") for value in (self.before_s, self.after_s, self.overhead_s))
        if self.never:
            return f"never pays off: a step takes {after} after and {before} before ({self.speedup:.2f}x)"
        if not self.steps:
            return f"pays off at once: a step takes {after} instead of {before} ({self.speedup:.2f}x)"
        return (
            f"pays off after {math.ceil(self.steps):,} steps: {once} once, "
            f"then {after} instead of {before} a step ({self.speedup:.2f}x)"
        )


def break_even(
    compile_s: str | float,
    before_s: str | float,
    after_s: str | float,
    *,
    first_before: Sequence[str | float] = (),
    first_after: Sequence[str | float] = (),
) -> BreakEven:
    """After how many steps a change that costs time once has paid off.

    Args:
        compile_s: What it costs before the first step, such as ``"20 s"``; 0 where the first steps include it.
        before_s: A steady step without the change.
        after_s: A steady step with it.
        first_before: The first steps without it, where they took longer than a steady one.
        first_after: The first steps with it.

    Raises:
        UsageError: A steady step that does not take a time above zero, or a negative time.

    Example:
        >>> import roofline as rl
        >>> rl.diagnosis.break_even("30 s", "40 ms", "25 ms").steps
        2000.0
        >>> print(rl.diagnosis.break_even("30 s", "72 ms", "103 ms"))
        never pays off: a step takes 103 ms after and 72 ms before (0.70x)
    """
    before, after = _time("before_s", before_s, above=True), _time("after_s", after_s, above=True)
    slow = [_time("first_before", time) for time in first_before]
    fast = [_time("first_after", time) for time in first_after]
    overhead = _time("compile_s", compile_s) + math.fsum(
        (after if late is None else late) - (before if early is None else early)
        for early, late in zip_longest(slow, fast)
    )
    steps = max(overhead, 0.0) / (before - after) if after < before else math.inf
    return BreakEven(overhead, before, after, steps)


def _time(name: str, given: str | float, above: bool = False) -> float:
    value = parse(given, "s")
    if value < 0 or (above and not value):
        raise UsageError(f"{name}={given!r}: a time {'above zero' if above else 'from zero'} is wanted")
    return value
