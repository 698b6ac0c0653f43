"""Rates at which a chip multiplies each number format: by units of its own, or by a documented fallback."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from roofline.hardware.parts import Fallback, Peak
from roofline.ir.dtypes import DTYPES

#: Formats that a whole program may be in.
WHOLE = ("bf16", "fp16", "fp32")


@dataclass(frozen=True, slots=True)
class Rate:
    """How a chip multiplies a format.

    Attributes:
        flops: Dense peak of that [FLOP/s].
        runs_as: The format that its units multiply.
        unit: ``matrix`` or ``vector``.
        by: What the words behind a fallback say; empty where the format has units of its own.
    """

    flops: float
    runs_as: str
    unit: str
    by: str = ""

    def __str__(self) -> str:
        return f"{self.runs_as} {self.unit}" + (f" ({self.by})" if self.by else "")


Peaks = Mapping[str, Peak]


def rate(name: str, matrix: Peaks, vector: Peaks, fallback: Mapping[str, Fallback]) -> Rate | None:
    """Return the rate of a format: its matrix units', else its vector units', else its fallback's; ``None`` without."""
    for unit, peaks in (("matrix", matrix), ("vector", vector)):
        if name in peaks:
            return Rate(peaks[name].flops, name, unit)
    other = fallback.get(name)
    own = rate(other.runs_as, matrix, vector, {}) if other else None
    if other is None or own is None:
        return None
    passes = f", {other.passes} passes" if other.passes > 1 else ""
    return Rate(own.flops / other.passes, own.runs_as, own.unit, f"{name} {other.reason}{passes}")


def advice(name: str, matrix: Peaks, vector: Peaks, fallback: Mapping[str, Fallback]) -> str:
    """Say by which option a program in a format that a chip cannot multiply would run on it."""
    whole = [other for other in WHOLE if other != name and rate(other, matrix, vector, fallback)]
    if not whole:
        return ""
    if DTYPES[name].bits < 16:
        return f"; keep the activations in {' or '.join(whole)}: leave --activations out, in Python activations=None"
    return f"; run it in {' or '.join(whole)}: --dtype {whole[0]}, in Python dtype={whole[0]!r}"
