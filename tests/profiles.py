"""How many examples a property test draws: a third by default, all of them with ``ROOFLINE_TESTS=long``, as CI does."""

from __future__ import annotations

import os

LONG = os.environ.get("ROOFLINE_TESTS") == "long"


def examples(most: int) -> int:
    """Return the examples to draw where a long run draws ``most``."""
    return most if LONG else max(most // 3, min(most, 5))
