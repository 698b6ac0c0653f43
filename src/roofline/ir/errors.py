"""Every error that roofline raises, and the near-match helper that their messages share.

RooflineError
├── UsageError        a size, option or argument that cannot be (also a ValueError)
├── UnitError         text that is not a quantity of the expected unit (also a ValueError)
├── ShapeError        shapes that contradict each other or the operator (also a ValueError)
├── UnboundSize       a symbolic size that nobody gave (also a ValueError)
├── UnknownOp         no operator of that name (also a LookupError)
├── UnknownChip       no chip of that name (also a LookupError)
├── UnknownModel      no model of that name (also a LookupError)
├── UnknownDType      no number format of that name (also a LookupError)
├── ChipDataError     a chip file that does not say what a chip file must
├── ModelDataError    a model or workload file that does not say what it must
├── TraceError        a profiler's file that is none, or holds nothing that can be used (also a ValueError)
├── MissingFigure     a figure that the vendor does not publish (also a LookupError)
├── DoesNotFit        a program larger than the memory it is given
└── MissingExtra      an optional dependency that is not installed (also an ImportError)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from roofline.ir.text import one_line

__all__ = [
    "ChipDataError",
    "DoesNotFit",
    "MissingExtra",
    "MissingFigure",
    "ModelDataError",
    "RooflineError",
    "ShapeError",
    "TraceError",
    "UnboundSize",
    "UnitError",
    "UnknownChip",
    "UnknownDType",
    "UnknownModel",
    "UnknownOp",
    "UsageError",
]


def __dir__() -> list[str]:
    return __all__


class RooflineError(Exception):
    """Base of all errors raised on purpose; the message is one line, fit for a terminal.

    Raised by every function, such as :func:`roofline.estimate`.
    """

    def __str__(self) -> str:
        # Messages repeat names and cells from files: whoever raises them, they come out as one printable line.
        return one_line(super().__str__())


class UsageError(RooflineError, ValueError):
    """A size, option or argument outside what is allowed."""


class UnitError(RooflineError, ValueError):
    """Text that does not parse as a quantity of the expected unit."""


class ShapeError(RooflineError, ValueError):
    """Shapes that contradict each other or the operator's signature."""


class UnboundSize(RooflineError, ValueError):
    """A symbolic size without a value."""


class UnknownOp(RooflineError, LookupError):
    """No operator of that name."""


class UnknownChip(RooflineError, LookupError):
    """No chip of that name, or more than one."""


class UnknownModel(RooflineError, LookupError):
    """No model of that name, or more than one."""


class UnknownDType(RooflineError, LookupError):
    """No number format of that name."""


class ChipDataError(RooflineError):
    """A chip description that is not valid."""


class ModelDataError(RooflineError):
    """A model or workload description that is not valid."""


class TraceError(RooflineError, ValueError):
    """A file that no profiler wrote, or that holds nothing to use."""


class MissingFigure(RooflineError, LookupError):
    """A figure that is not published for this chip; never derived."""


class DoesNotFit(RooflineError):
    """A program larger than the memory it is given."""


class MissingExtra(RooflineError, ImportError):
    """An optional dependency that is not installed."""


#: Longer names are like none, and no more are compared: the time grows with the product of both.
_LONGEST_NAME, _MOST_NAMES = 200, 10_000


def did_you_mean(name: str, names: Iterable[str], limit: int = 4) -> str:
    """Return ``"; did you mean a, b?"``, or an empty string when nothing is near.

    Example:
        >>> did_you_mean("lama-3-8b", ["llama-3-8b", "gpt2"])
        '; did you mean llama-3-8b?'
    """
    if len(name) > _LONGEST_NAME:
        return ""
    pool = sorted({other for other in names if len(other) <= _LONGEST_NAME})[:_MOST_NAMES]
    low, written = name.lower(), {other.lower(): other for other in pool}
    near = [written[other] for other in difflib.get_close_matches(low, written, n=limit, cutoff=0.6)]
    near += [other for other in pool if low and low in other.lower() and other not in near]
    return f"; did you mean {', '.join(near[:limit])}?" if near else ""
