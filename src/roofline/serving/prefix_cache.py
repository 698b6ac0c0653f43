"""A cache of the blocks that prompts begin with, the least recent evicted first, and what it hits over its room."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from roofline.ir.errors import UsageError
from roofline.ir.numbers import whole_number
from roofline.serving.request_traces import Floats, Ints, RequestTrace, read_requests

#: Points of a curve of hits over room.
CURVE = 24


class PrefixCache:
    """Blocks by id: how many sequences hold each, and those that nobody holds, the least recent first.

    The blocks of a sequence become idle from the last to the first, as in vLLM, so that an ending goes before what it
    follows (https://docs.vllm.ai/en/latest/design/prefix_caching.html). Then a larger cache holds all that a smaller
    one does (Mattson et al. 1970, Evaluation techniques for storage hierarchies).
    """

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.idle: OrderedDict[int, None] = OrderedDict()

    def leading(self, ids: Sequence[int]) -> int:
        """Count the first blocks that are there."""
        return next((at for at, each in enumerate(ids) if each not in self.held and each not in self.idle), len(ids))

    def hold(self, ids: Sequence[int]) -> None:
        """Keep blocks until they are released as often."""
        for each in ids:
            self.idle.pop(each, None)
            self.held[each] = self.held.get(each, 0) + 1

    def release(self, ids: Sequence[int]) -> None:
        """Let go of blocks that were held."""
        for each in reversed(ids):
            self.held[each] -= 1
            if not self.held[each]:
                del self.held[each]
                self.idle[each] = None

    def touch(self, ids: Sequence[int]) -> None:
        """Have blocks that nobody holds, as after they were held and released."""
        for each in reversed(ids):
            self.idle[each] = None
            self.idle.move_to_end(each)

    def evict(self, most: int) -> None:
        """Drop idle blocks until no more than ``most`` are left."""
        while len(self.idle) > max(most, 0):
            self.idle.popitem(last=False)


def lru_hits(trace: RequestTrace, blocks: int) -> Ints:
    """Count the leading blocks of each prompt that a cache holds when it arrives, the least recent ones evicted first.

    A larger cache holds all that a smaller one does.

    Args:
        trace: Requests with the ids of their blocks.
        blocks: That the cache has room for.

    Returns:
        Blocks for each request.

    Raises:
        UsageError: A trace without ids of blocks.

    Example:
        >>> import roofline as rl
        >>> trace = rl.serving.made_requests([0, 1, 2], 1024, 10, ids=[[1, 2], [3, 4], [1, 5]])
        >>> lru_hits(trace, 4).tolist(), lru_hits(trace, 2).tolist()
        ([0, 0, 1], [0, 0, 0])
    """
    if not len(trace.ids):
        raise UsageError(f"{trace.name}: no ids of blocks, so nothing says which prompts share a prefix; "
                         f"Mooncake's format has them, or give the share of hits")  # fmt: skip
    room, cache, hits = whole_number("blocks", blocks, 0), PrefixCache(), []
    for ids in trace.blocks():
        hits.append(cache.leading(ids))
        cache.touch(ids)
        cache.evict(room)
    return np.asarray(hits, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class HitCurve:
    """Share of the tokens of prompts that are there already, by the room of a cache.

    From :func:`roofline.serving.hit_curve`.

    Attributes:
        tokens: Rooms [token].
        hits: Share of all tokens of prompts at each.
        trace: The requests.
    """

    tokens: Floats
    hits: Floats
    trace: RequestTrace

    def at(self, tokens: float) -> float:
        """Return the share of hits with room for so many tokens, exactly."""
        return _share(self.trace, tokens)


def hit_curve(trace: RequestTrace | str | os.PathLike[str], points: int = CURVE) -> HitCurve:
    """Simulate a cache of prompts, the least recent blocks evicted first, for rooms up to that of all blocks.

    Args:
        trace: Requests with ids of blocks, or their file.
        points: Rooms, in equal ratios.

    Returns:
        Hits over room; more room never hits less.

    Raises:
        UsageError: A trace without ids of blocks.

    Example:
        >>> import roofline as rl
        >>> again = rl.serving.made_requests([0, 1, 2, 3], 1024, 1, ids=[[1, 2], [3, 4], [1, 2], [3, 4]])
        >>> hit_curve(again).hits[[0, -1]].round(2).tolist()
        [0.0, 0.5]
    """
    replay = trace if isinstance(trace, RequestTrace) else read_requests(trace)
    most = len(np.unique(replay.ids)) if len(replay.ids) else 1
    rooms = np.unique(np.geomspace(1, most, whole_number("points", points, 2, 1000)).round()) * replay.block
    return HitCurve(rooms, np.asarray([_share(replay, room) for room in rooms.tolist()]), replay)


def _share(trace: RequestTrace, tokens: float) -> float:
    """Return the share of the tokens of prompts that a cache of so many has."""
    room = min(tokens // trace.block, len(trace.ids)) if isfinite(tokens) else len(trace.ids)
    hits = lru_hits(trace, int(room)) * trace.block
    return float(np.minimum(hits, trace.prompt - 1).sum() / trace.prompt.sum())
