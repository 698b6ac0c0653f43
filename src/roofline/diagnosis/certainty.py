"""How sure a predicted gain is, by the ranges of the two predictions that it is the difference of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


def gain(before: Sequence[float], after: Sequence[float]) -> Gain:
    """Return what a change saves, by two predictions: of each the expected time, the low end and the high one [s].

    The two are of one program on one chip, so what makes one too slow makes the other too slow as well.

    Example:
        >>> gain((10.0, 8.0, 12.0), (9.0, 7.5, 11.0))
        Gain(saves_s=1.0, low_s=0.5, high_s=1.0, certainty='likely')
    """
    ends = [was - now for was, now in zip(before, after, strict=True)]
    word = WORDS[0] if after[2] < before[1] else WORDS[1] if min(ends) > 0 else WORDS[2]
    return Gain(ends[0], min(ends), max(ends), word)
