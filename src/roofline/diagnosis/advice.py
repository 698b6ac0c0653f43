"""What would make a program faster: the table of causes read in the other direction."""

from __future__ import annotations

from roofline.diagnosis.meant import Meant
from roofline.diagnosis.words import Advice


def advice(meant: Meant) -> tuple[Advice, ...]:
    return ()
