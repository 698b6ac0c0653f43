"""The changes that would make a program fit that does not, and the message that names them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import ceil

from roofline.counting.memory import Memory, footprint_text
from roofline.ir.errors import DoesNotFit, UsageError
from roofline.ir.units import format_bytes

#: Weight and cache formats that would shrink a program, from the mildest.
SMALLER: Sequence[Mapping[str, str]] = (
    {"cache": "int8"}, {"weights": "int8"}, {"weights": "int8", "cache": "int8"}, {"weights": "int4-g128"},
    {"weights": "int4-g128", "cache": "int8"},
)  # fmt: skip


def formats_that_fit(fits: Callable[[Mapping[str, str]], bool]) -> Iterator[str]:
    """Name the smaller formats in which a program fits, the mildest first."""
    for change in SMALLER:
        fitting = False
        with suppress(UsageError):  # a program without a cache has none to shrink
            fitting = fits(change)
        if fitting:
            yield " and ".join(f"{part} in {dtype}" for part, dtype in change.items())


def does_not_fit(what: str, need: Memory, room: float, remedies: Sequence[str]) -> DoesNotFit:
    """Return the error on a program that does not fit: its footprint by part, and what would make it fit.

    Args:
        what: The program, where it runs, and the point that does not fit.
        need: Its footprint.
        room: The memory that it may use [byte].
        remedies: Changes that would make it fit; a split over several chips is added.
    """
    total, fixed = float(need.total), float(need.reserve) + float(need.workspace)
    split = [f"{ceil((total - fixed) / (room - fixed))} such chips with everything split evenly"] * (room > fixed)
    return DoesNotFit(
        f"{what} needs {format_bytes(total)}, {format_bytes(room)} are allowed ({footprint_text(need)}); "
        f"what would fit: {', or '.join([*remedies, *split]) or 'nothing'}"
    )
