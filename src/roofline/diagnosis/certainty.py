"""How sure a predicted gain is, by the ranges of the two predictions that it is the difference of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: From the surest.
WORDS = ("sure", "likely", "unsure")


@dataclass(frozen=True, slots=True)
class Gain:
    """What a change saves.

    Attributes:
        saves_s: Expected [s].
        low_s: The least, where both predictions err alike: by as much as the ends of their ranges [s].
        high_s: The most [s].
        certainty: ``sure`` where the two ranges are apart, ``likely`` where they overlap and both ends of the range
            save time, else ``unsure``.
    """

    saves_s: float
    low_s: float
    high_s: float
    certainty: str


def gain(before: Any, after: Any, share: float = 1.0) -> Gain:
    """Return what a change saves, by two predictions (``time_s``, ``low_s``, ``high_s``).

    The two are of one program on one chip, so what makes one too slow makes the other too slow as well.

    Args:
        before: Without it.
        after: With it.
        share: Of the work of ``after`` that ``before`` does.

    Example:
        >>> from types import SimpleNamespace as S
        >>> gain(S(time_s=10.0, low_s=8.0, high_s=12.0), S(time_s=9.0, low_s=7.5, high_s=11.0))
        Gain(saves_s=1.0, low_s=0.5, high_s=1.0, certainty='likely')
    """
    ends = [getattr(before, end) - share * getattr(after, end) for end in ("time_s", "low_s", "high_s")]
    apart = share * after.high_s < before.low_s
    word = WORDS[0] if apart else WORDS[1] if min(ends) > 0 else WORDS[2]
    return Gain(ends[0], min(ends), max(ends), word)
