"""The most that fits: the longest context of some sequences, the most sequences of a context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roofline.analysis.remedies import Remedy, does_not_fit, of_program
from roofline.cost.scratch import memory_on
from roofline.counting.memory import RESERVE, Memory, reserved
from roofline.frontends.source import Program
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, advice_on, check_positions, positions_note, sizes_of
from roofline.ir.numbers import whole_number
from roofline.ir.report import Report, subject
from roofline.ir.sizes import maximum
from roofline.ir.units import format_bytes, limit
from roofline.serving.kvcache import Formats, KVCache, checked_layout, in_formats, kv_cache

#: Neither a context nor a number of sequences above this is looked at.
LARGEST = 2**30

#: Numbers between two that are looked at together.
SECTIONS = 512


@dataclass(frozen=True, repr=False)
class Largest(Report):
    """The most that fits, and what it takes, as from :func:`largest_context` and :func:`largest_concurrency`.

    Attributes:
        what: ``context`` or ``concurrency``.
        value: Positions of each sequence, or sequences.
        graph: The decode step.
        chip: Where it runs.
        memory: What the largest takes [byte].
        room: What it may take [byte].
        cache: Its cache, as stored and as reserved.
        limit: ``memory``, ``positions`` where the model has no more, each a row of a table, or ``size`` where nothing
            above :data:`LARGEST` is looked at.
    """

    schema = "largest"

    what: str
    value: int
    graph: Graph
    chip: Chip
    memory: Memory
    room: float
    cache: KVCache
    limit: str

    @property
    def free(self) -> float:
        """Memory that is left of the room [byte]."""
        return self.room - float(self.memory.total)

    @property
    def note(self) -> str:
        """Say where the context is longer than the model is made for; empty where it is not."""
        return positions_note(self.graph, self.cache.grid.values)

    def subject(self) -> dict[str, Any]:
        """Return the program, where it runs, and the point that fits."""
        return subject(self.graph, self.chip.name, sizes=self.cache.grid.values)

    def records(self) -> list[dict[str, Any]]:
        """Return the largest as one row."""
        sizes = self.cache.grid.values
        return [{
            "what": self.what, "value": self.value, "limit": self.limit, "batch": sizes["B"], "context": sizes["C"],
            "block": self.cache.block, "shared_prefix": self.cache.shared_prefix,
            "memory_bytes": {**self.memory.parts(), "total": self.memory.total},
            "cache_used_bytes": self.cache.used, "room_bytes": self.room,
        }]  # fmt: skip

    def __repr__(self) -> str:
        sizes, thing = self.cache.grid.values, "positions" if self.what == "context" else "sequences"
        other = f"batch {sizes['B']}" if self.what == "context" else f"a context of {sizes['C']:,}"
        total = f"{format_bytes(float(self.memory.total))} of {format_bytes(self.room)}"
        where = f"{self.what} of {self.graph.name} on {self.chip.name}"
        note = f"; {self.note}" if self.note else ""
        return f"<Largest {where}: {self.value:,} {thing} at {other}, {total}{note}>"


@dataclass(frozen=True)
class _Step:
    """A decode step that is to fit, with whatever else is fixed; ``reading`` is what a prompt's chunk needs."""

    graph: Graph
    chip: Chip
    room: float
    reserve: float
    block: int | None
    shared_prefix: int
    sizes: Mapping[str, Any]
    reading: Memory | None

    @property
    def most_positions(self) -> int:
        """Positions that the model has, a row of a table for each; as many as are looked at where it has none."""
        limit = self.graph.info.positions
        return limit.most if limit is not None and limit.hard else LARGEST

    def cache(self, batch: Any, context: Any) -> KVCache:
        """Return the cache; one of batch and context may be an array."""
        prefix = min(self.shared_prefix, int(np.min(context)))
        return kv_cache(self.graph, context, batch=batch, block=self.block, shared_prefix=prefix, **self.sizes)

    def need(self, batch: Any, context: Any) -> Memory:
        need = with_cache(self.graph, self.cache(batch, context), self.chip, self.reserve)
        if self.reading is None:
            return need
        larger = {part: maximum(getattr(need, part), getattr(self.reading, part)) for part in ("inputs", "activations")}
        return replace(need, **larger)

    def fits(self, batch: Any, context: Any) -> Any:
        return np.asarray(self.need(batch, context).total <= self.room)

    def largest(self, what: str, batch: int, context: int, least: int) -> Largest:
        """Search what fits of ``context`` or ``concurrency``, the other being fixed.

        Raises:
            DoesNotFit: Not even the least; the message itemises it and says what would.
        """

        def fits(value: Any) -> Any:
            return self.fits(batch, value) if what == "context" else self.fits(value, context)

        check_positions(self.graph, {"C": context})
        if not fits(least):
            where = f"{self.graph.name} on {self.chip.name}: batch {batch} at a context of {context:,}"
            raise does_not_fit(where, self.need(batch, context), self.room, self._remedies(batch, context))
        most = self.most_positions if what == "context" else LARGEST
        value = _most(fits, least, most + 1)
        batch, context = (batch, value) if what == "context" else (value, context)
        limit = "memory" if value < most else "size" if value == LARGEST else "positions"
        need, cache = self.need(batch, context), self.cache(batch, context)
        return Largest(what, value, self.graph, self.chip, need, self.room, cache, limit)

    def _remedies(self, batch: int, context: int) -> tuple[Remedy, ...]:
        """Name the first changes that would make it fit: smaller formats, more devices, a shorter context, fewer."""

        def count(graph: Graph, sizes: Mapping[str, Any]) -> Memory:
            return replace(self, graph=graph).need(sizes["B"], sizes["C"])

        return of_program(self.graph, {"B": batch, "C": context}, count, self.room, self.chip)


def with_cache(graph: Graph, cache: KVCache, chip: Chip, reserve: float = RESERVE) -> Memory:
    """Return what a step of a graph needs, its cache as reserved."""
    sizes = {"C": cache.grid.sizes["C"], "S": cache.grid.sizes["C"], **cache.grid.sizes}
    return replace(memory_on(graph, sizes, chip, reserve=reserve), kv_cache=cache.reserved)


def largest_context(
    program: Program,
    chip: AnyChip,
    *,
    batch: int = 1,
    block: int | None = None,
    shared_prefix: int = 0,
    chunk: int = 0,
    prefill: Program | None = None,
    memory_limit: str | float | None = None,
    reserve: str | float = RESERVE,
    dtype: str | None = None,
    weights: str | None = None,
    cache: str | None = None,
    **sizes: int,
) -> Largest:
    """Find the longest context at which some sequences can take a decode step.

    Args:
        program: A graph of a decode step, a shipped name, or the path of a model file, config or script.
        chip: A name or a chip.
        batch: Sequences at a time.
        block: Tokens of a block of the cache, or ``None`` for one without blocks.
        shared_prefix: First tokens that all sequences have in common, kept once.
        chunk: Tokens of a prompt that a step may read at once (2,048 or more in servers), whose activations have to fit
            too; 0 for decode steps alone.
        prefill: The program that reads them, where ``program`` is a graph.
        memory_limit: Such as ``"72 GiB"`` [byte]; the chip's capacity by default.
        reserve: Memory that driver and framework keep [byte], a number or text such as ``"1 GiB"``.
        dtype: Number format of everything.
        weights: Number format of the weights.
        cache: Number format of the cache.
        sizes: Other sizes of the program.

    Returns:
        The largest, with its memory by part.

    Raises:
        DoesNotFit: Not even a context of one position fits; the message itemises it and says what would.
        UsageError: The program keeps no cache, or a size out of range.

    Example:
        >>> found = largest_context("llama-3-8b", "h100-sxm", batch=8, block=16)
        >>> found.value % 16, found.free < 8 * 16 * 131072
        (0, True)
    """
    step = _step(
        program, chip, memory_limit, (dtype, weights, cache), reserve, block, shared_prefix, prefill, chunk, sizes
    )
    least = max(step.shared_prefix, 1)
    return step.largest("context", whole_number("batch", batch, most=LARGEST), least, least)


def largest_concurrency(
    program: Program,
    chip: AnyChip,
    *,
    context: int,
    block: int | None = None,
    shared_prefix: int = 0,
    chunk: int = 0,
    prefill: Program | None = None,
    memory_limit: str | float | None = None,
    reserve: str | float = RESERVE,
    dtype: str | None = None,
    weights: str | None = None,
    cache: str | None = None,
    **sizes: int,
) -> Largest:
    """Find how many sequences of a context can take a decode step together.

    Args:
        program: A graph of a decode step, a shipped name, or the path of a model file, config or script.
        chip: A name or a chip.
        context: Positions that each sequence holds, the longest that it comes to.
        block: Tokens of a block of the cache, or ``None`` for one without blocks.
        shared_prefix: First tokens that all sequences have in common, kept once.
        chunk: Tokens of a prompt that a step may read at once, as for :func:`largest_context`.
        prefill: The program that reads them, where ``program`` is a graph.
        memory_limit: Such as ``"72 GiB"`` [byte]; the chip's capacity by default.
        reserve: Memory that driver and framework keep [byte], a number or text such as ``"1 GiB"``.
        dtype: Number format of everything.
        weights: Number format of the weights.
        cache: Number format of the cache.
        sizes: Other sizes of the program.

    Returns:
        The largest, with its memory by part.

    Raises:
        DoesNotFit: Not even one sequence fits; the message itemises it and says what would.
        UsageError: The program keeps no cache or has no batch, or a size out of range.

    Example:
        >>> alone = largest_concurrency("llama-3-8b", "h100-sxm", context=8192, block=16)
        >>> shared = largest_concurrency("llama-3-8b", "h100-sxm", context=8192, block=16, shared_prefix=4096)
        >>> shared.value > 1.5 * alone.value
        True
    """
    step = _step(
        program, chip, memory_limit, (dtype, weights, cache), reserve, block, shared_prefix, prefill, chunk, sizes
    )
    context = whole_number("context", context, most=LARGEST)
    if "B" not in step.graph.symbols:
        raise UsageError(f"{step.graph.name} has no symbol B: its batch is fixed, so there is nothing to choose"
                         f"{advice_on(step.graph, 'B')}")  # fmt: skip
    if step.shared_prefix > context:
        raise UsageError(f"shared_prefix={shared_prefix}: longer than the context of {context} positions")
    return step.largest("concurrency", 1, context, 1)


def _step(
    program: Program, chip: AnyChip, memory_limit: str | float | None, formats: Formats, reserve: str | float,
    block: Any, shared_prefix: Any, prefill: Program | None, chunk: int, sizes: Mapping[str, int],
) -> _Step:  # fmt: skip
    graph, target = in_formats(program, formats, "decode"), find_chip(chip)
    block, shared_prefix, _ = checked_layout(block, shared_prefix)
    room = limit("memory_limit", memory_limit, "B", target.capacity if memory_limit is None else 0.0)
    reading = _reading(program, prefill, chunk, formats, target)
    return _Step(graph, target, room, reserved(reserve), block, shared_prefix, sizes_of(graph, sizes), reading)


def _reading(
    program: Program, prefill: Program | None, chunk: int, formats: Formats, chip: Chip
) -> Memory | None:  # fmt: skip
    """Return what reading a chunk of one prompt needs; ``None`` where decode steps run alone."""
    if chunk == 0 and prefill is None:
        return None
    chunk = whole_number("chunk", chunk, most=LARGEST)
    source = program if prefill is None and not isinstance(program, Graph) else prefill
    graph = in_formats(source, formats, "prefill") if source is not None else None
    if graph is None or "S" not in graph.symbols:
        raise UsageError(f"chunk={chunk}: which program reads it? Give prefill=..., a graph with the symbol S")
    return memory_on(graph, {"B": 1, "S": chunk}, chip)


def _most(fits: Callable[[Any], Any], least: int, below: int = LARGEST + 1) -> int:
    """Return the largest number from ``least`` that fits, under ``below``; 0 where not even that does.

    What fits is an interval, so it is searched in sections: all doublings at once, then :data:`SECTIONS` between two.
    """
    low, high = 0, below
    candidates = np.unique([*(least * 2**k for k in range((below // least).bit_length()) if least * 2**k < below)])
    while candidates.size:
        good = candidates[np.broadcast_to(fits(candidates), candidates.shape)]
        if not good.size and low == 0:
            return 0
        low = int(good[-1]) if good.size else low
        later = candidates[candidates > low]
        high = int(later[0]) if later.size else high
        candidates = np.unique(np.linspace(low, high, min(high - low + 1, SECTIONS)).astype(np.int64))[1:-1]
    return low
