"""Where blocks of memory lie that are needed at different times: offsets without overlap, and the least that can do.

Dynamic storage allocation: blocks of known sizes and lives, none of which may share a byte with another one while both
are needed. The largest block comes first, into the smallest gap that it fits between those that live at the same time
(Greedy by Size for Offset Calculation, Pisarchyk and Lee 2020, https://arxiv.org/abs/2001.03288).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: What offsets are multiples of: what ``cudaMalloc`` aligns to at least, "256 bytes"
#: (https://docs.nvidia.com/cuda/cuda-c-programming-guide/#device-memory-accesses).
ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Block:
    """Bytes that are needed from one step of a run to another.

    Attributes:
        size: How many [byte].
        first: The first step.
        last: The last step, itself included.
    """

    size: int
    first: int
    last: int


class Arena:
    """Blocks in one memory, each at its offset.

    Args:
        alignment: What offsets are multiples of [byte].
        capacity: Bytes that there are.
    """

    def __init__(self, alignment: int = ALIGNMENT, capacity: float = math.inf) -> None:
        self.alignment, self.capacity = alignment, capacity
        self._placed: NDArray[np.int64] = np.empty((64, 4), dtype=np.int64)  # first, last, start, end
        self._count = 0

    def aligned(self, size: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """Return the next multiple of the alignment."""
        return np.asarray(-(-np.asarray(size, dtype=np.int64) // self.alignment) * self.alignment)

    def gaps(self, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return where there is room from one step to another, and how much [byte]; the capacity ends the last gap."""
        placed = self._placed[: self._count]
        alive = placed[(placed[:, 0] <= last) & (placed[:, 1] >= first)]
        alive = alive[np.argsort(alive[:, 2], kind="stable")]
        starts = self.aligned(np.concatenate([[0], np.maximum.accumulate(alive[:, 3])]))
        ends = np.concatenate([alive[:, 2].astype(np.float64), [self.capacity]])
        return starts, ends - starts

    def place(self, block: Block) -> int | None:
        """Put a block into the smallest gap that it fits; ``None`` where it fits none.

        Returns:
            Its offset [byte].
        """
        starts, room = self.gaps(block.first, block.last)
        fits = np.flatnonzero(room >= block.size)
        if not len(fits):
            return None
        offset = int(starts[fits[np.argmin(room[fits])]])
        if self._count == len(self._placed):
            self._placed = np.concatenate([self._placed, np.empty_like(self._placed)])
        self._placed[self._count] = block.first, block.last, offset, offset + block.size
        self._count += 1
        return offset


def place(blocks: Sequence[Block], arena: Arena) -> list[int | None]:
    """Put blocks into a memory, the largest first; of equal ones that with the longest life.

    Returns:
        The offset of each [byte], ``None`` for those that found no room.

    Example:
        >>> place([Block(4, 0, 2), Block(4, 3, 8), Block(8, 0, 8)], Arena(alignment=4))
        [8, 8, 0]
    """
    order = sorted(range(len(blocks)), key=lambda at: (-blocks[at].size, blocks[at].first - blocks[at].last, at))
    offsets = {at: arena.place(blocks[at]) for at in order}
    return [offsets[at] for at in range(len(blocks))]


def live_bytes(blocks: Sequence[Block], steps: int) -> NDArray[np.int64]:
    """Return the bytes needed in each step; the most of them is the least memory that can do [byte].

    Example:
        >>> live_bytes([Block(4, 0, 2), Block(8, 1, 1)], 3).tolist()
        [4, 12, 4]
    """
    change = np.zeros(steps + 1, dtype=np.int64)
    for block in blocks:
        change[block.first] += block.size
        change[block.last + 1] -= block.size
    return np.cumsum(change)[:steps]


def overlaps(blocks: Sequence[Block], offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the pairs of blocks that share bytes while both are needed: none, of a plan that is sound.

    Works each pair out by itself, apart from how they were placed.

    Example:
        >>> list(overlaps([Block(4, 0, 2), Block(4, 2, 3)], [0, 2]))
        [(0, 1)]
    """
    pairs = zip(blocks, offsets, strict=True)
    table = np.array([(block.first, block.last, at, at + block.size) for block, at in pairs], dtype=np.int64)
    for at, (first, last, start, end) in enumerate(table):
        rest = table[at + 1 :]
        both = (rest[:, 0] <= last) & (first <= rest[:, 1]) & (rest[:, 2] < end) & (start < rest[:, 3])
        yield from ((at, at + 1 + int(other)) for other in np.flatnonzero(both))
