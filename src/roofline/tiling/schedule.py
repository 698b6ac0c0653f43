"""How a kernel for a matmul is blocked: what its author, or an auto-tuner, may choose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Schedule:
    """Tiles of a matmul and the order in which they run; numbers, or arrays that broadcast.

    Blocks of ``bm x bn`` outputs accumulate over K in steps of ``bk``.

    Attributes:
        bm: Rows of the output that a block computes.
        bn: Columns of it.
        bk: Elements of K that a step loads.
        group: Rows of blocks that are walked together, so that they share columns of the second operand in the cache;
            1 walks the output row by row (``GROUP_SIZE_M`` of Triton's matmul tutorial,
            https://triton-lang.org/main/getting-started/tutorials/03-matrix-multiplication.html).
        warps: Warps of a block.
        stages: Steps along K whose operands are loaded ahead, the one in work among them.

    Example:
        >>> Schedule(128, 256, 64, group=8, warps=8).bm
        128
    """

    bm: Any
    bn: Any
    bk: Any
    group: Any = 1
    warps: Any = 4
    stages: Any = 3
