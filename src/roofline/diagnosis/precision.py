"""In which number format a time would be possible: what to say of one that is impossible in the given format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from roofline.diagnosis.lower_bound import speed_limit
from roofline.diagnosis.reference import Meant
from roofline.hardware.chip import Chip
from roofline.ir.errors import RooflineError
from roofline.ir.units import format_si
from roofline.passes.formats.cast import retype

#: Formats that arithmetic is narrowed to without a change of the program's code, the mildest first.
NARROWER = ("tf32", "bf16", "fp16", "fp8")


@dataclass(frozen=True, slots=True)
class Scenario:
    """A program in another format.

    Attributes:
        dtype: The format.
        limit_s: The least that any run takes in it [s].
        at_peak_s: Its contractions at the format's peak [s].
    """

    dtype: str
    limit_s: float
    at_peak_s: float


def scenarios(meant: Meant, seconds: float) -> tuple[Scenario, ...]:
    """Formats in which a time is possible that the chip has units for, the mildest first.

    Args:
        meant: The program and where it ran.
        seconds: The measured time [s].

    Example:
        >>> import roofline as rl
        >>> gemm = rl.workload([{"op": "gemm", "m": 8192, "n": 8192, "k": 8192}], dtype="fp32")
        >>> meant = Meant(gemm, rl.chip("a100-80gb-sxm"), "graph", False, {})
        >>> [scenario.dtype for scenario in scenarios(meant, 5e-3)]
        ['bf16', 'fp16']
    """
    return tuple(one for one in _scenarios(meant) if one.limit_s <= seconds)


def _scenarios(meant: Meant) -> Iterator[Scenario]:
    given = at_peak(meant)
    for dtype in NARROWER:
        if dtype in meant.contracts_in or not _has(meant.chip, dtype):
            continue
        try:
            other = _in(meant, dtype)
            once, limit = at_peak(other), speed_limit(other.expected)
        except RooflineError:
            continue  # an operator that the chip cannot run in this format
        if once < given:
            yield Scenario(dtype, limit, once)


def _has(chip: Chip, dtype: str) -> bool:
    """Whether a chip has units for a format, rather than running it as another one."""
    return dtype not in chip.fallback and (dtype in chip.matrix or dtype in chip.vector)


def _in(meant: Meant, dtype: str) -> Meant:
    if dtype == "tf32":
        return replace(meant, tf32=True)
    return replace(meant, graph=retype(meant.graph, dtype), tf32=False)


def at_peak(meant: Meant) -> float:
    """The contractions at the peak of their format [s]."""
    return float(meant.expected.mfu * meant.expected.time)


def possible_in(meant: Meant, seconds: float) -> str:
    """A clause that names the formats in which a time is possible; empty where there is none.

    Example:
        >>> import roofline as rl
        >>> gemm = rl.workload([{"op": "gemm", "m": 8192, "n": 8192, "k": 8192}], dtype="fp32")
        >>> possible_in(Meant(gemm, rl.chip("t4"), "graph", False, {}), 0.05)
        'possible in fp16 (at least 16.9 ms at its peak)'
    """
    found = [f"{one.dtype} (at least {format_si(one.at_peak_s, 's')} at its peak)" for one in scenarios(meant, seconds)]
    return f"possible in {' or '.join(found)}" if found else ""
