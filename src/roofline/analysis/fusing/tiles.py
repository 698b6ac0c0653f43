"""How flash attention tiles its work by on-chip memory, and the order of what it moves."""

from __future__ import annotations

from dataclasses import dataclass

from roofline.ir.errors import UsageError
from roofline.ir.sizes import ceil_div


@dataclass(frozen=True, slots=True)
class FlashTiles:
    """Blocks and input-output complexity of one head (Dao et al. 2022, arXiv 2205.14135, algorithm 1, theorem 2).

    Complexities are orders of growth without their constants: compare them with each other, never with a counter.

    Attributes:
        keys: Rows of a block of keys and values, ``Bc``.
        queries: Rows of a block of queries, ``Br``.
        passes: Blocks of queries, each of which walks all keys: how often keys and values are read.
        standard: ``N d + N^2``, of attention that writes its scores [element].
        flash: ``N^2 d^2 / M``, of attention in tiles [element].
    """

    keys: int
    queries: int
    passes: int
    standard: float
    flash: float


def flash_tiles(n: int, d: int, memory: float) -> FlashTiles:
    """Tiles of flash attention over ``n`` positions of heads ``d`` wide with ``memory`` elements on the chip.

    Args:
        n: Positions.
        d: Width of a head.
        memory: On-chip memory of a core [element].

    Raises:
        UsageError: A size below 1, or memory that does not hold the four rows of a block of one.

    Example:
        >>> tiles = flash_tiles(1024, 64, 51200)
        >>> tiles.keys, tiles.queries, tiles.passes, tiles.standard / tiles.flash
        (200, 64, 16, 13.28125)
    """
    if n < 1 or d < 1:
        raise UsageError(f"flash_tiles: n={n}, d={d}; allowed: sizes from 1")
    if memory < 4 * d:
        raise UsageError(f"flash_tiles: memory={memory:g} elements; a block of one row takes {4 * d}, four rows of {d}")
    keys = ceil_div(int(memory), 4 * d)
    queries = min(keys, d)
    return FlashTiles(keys, queries, ceil_div(n, queries), float(n * d + n * n), n * n * d * d / memory)
