"""The most that fits: the longest context of some sequences, the most sequences of a context."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from roofline.analysis.serving.kvcache import KVCache, kv_cache, sensible
from roofline.counting.memory import RESERVE, Memory, footprint_text
from roofline.counting.memory import memory as itemise
from roofline.frontends.source import Program, as_graph
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import DoesNotFit, UsageError
from roofline.ir.graph import Graph
from roofline.ir.sizes import by_symbol, maximum
from roofline.ir.units import format_bytes, parse
from roofline.passes.formats.cast import retype

#: Neither a context nor a number of sequences above this is looked at.
MOST = 2**30

#: Numbers between two that are looked at together.
SECTIONS = 512

#: Number formats that would shrink a program, from the mildest.
SMALLER: Sequence[Mapping[str, str]] = (
    {"cache": "int8"}, {"weights": "int8"}, {"weights": "int8", "cache": "int8"}, {"weights": "int4-g128"},
    {"weights": "int4-g128", "cache": "int8"},
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Largest:
    """The most that fits, and what it takes.

    Attributes:
        what: ``context`` or ``concurrency``.
        value: Positions of each sequence, or sequences.
        graph: The decode step.
        chip: Where it runs.
        memory: What the largest takes [byte].
        room: What it may take [byte].
        cache: Its cache, as stored and as reserved.
        limit: ``memory``, or ``size`` where nothing above :data:`MOST` is looked at.
    """

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
        """What is left of the room [byte]."""
        return self.room - float(self.memory.total)

    def record(self) -> dict[str, Any]:
        """Plain numbers."""
        sizes = self.cache.grid.values
        return {
            "model": self.graph.title,
            "chip": self.chip.name,
            "what": self.what,
            "value": self.value,
            "limit": self.limit,
            "batch": sizes["B"],
            "context": sizes["C"],
            "block": self.cache.block,
            "shared_prefix": self.cache.shared_prefix,
            "memory_bytes": {**self.memory.parts(), "total": self.memory.total},
            "cache_used_bytes": self.cache.used,
            "room_bytes": self.room,
        }

    def __repr__(self) -> str:
        sizes, thing = self.cache.grid.values, "positions" if self.what == "context" else "sequences"
        other = f"batch {sizes['B']}" if self.what == "context" else f"a context of {sizes['C']:,}"
        total = f"{format_bytes(float(self.memory.total))} of {format_bytes(self.room)}"
        where = f"{self.what} of {self.graph.name} on {self.chip.name}"
        return f"<Largest {where}: {self.value:,} {thing} at {other}, {total}>"


@dataclass(frozen=True)
class _Ask:
    """A decode step that is to fit, with whatever else is fixed; ``beside`` is what reading a prompt's chunk needs."""

    graph: Graph
    chip: Chip
    room: float
    reserve: float
    block: int | None
    shared_prefix: int
    sizes: Mapping[str, Any]
    beside: Memory | None

    def cache(self, batch: Any, context: Any) -> KVCache:
        """One of the two may be an array."""
        prefix = min(self.shared_prefix, int(np.min(context)))
        return kv_cache(self.graph, context, batch=batch, block=self.block, shared_prefix=prefix, **self.sizes)

    def need(self, batch: Any, context: Any) -> Memory:
        need = with_cache(self.graph, self.cache(batch, context), self.reserve)
        if self.beside is None:
            return need
        held = {name: maximum(getattr(need, name), getattr(self.beside, name)) for name in ("inputs", "activations")}
        return replace(need, **held)

    def fits(self, batch: Any, context: Any) -> Any:
        return np.asarray(self.need(batch, context).total <= self.room)


def with_cache(graph: Graph, kept: KVCache, reserve: float = RESERVE) -> Memory:
    """What a step of a graph needs, its cache as reserved."""
    sizes = {"C": kept.grid.sizes["C"], "S": kept.grid.sizes["C"], **kept.grid.sizes}
    return replace(itemise(graph, sizes, reserve), kv_cache=kept.reserved)


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
    reserve: float = RESERVE,
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
        reserve: Memory that driver and framework keep [byte].
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
    formats = {"dtype": dtype, "weights": weights, "cache": cache}
    beside = _beside(program, prefill, chunk, formats)
    ask = _ask(program, chip, block, shared_prefix, memory_limit, reserve, sizes, formats, beside)
    _number("batch", batch)
    least = max(shared_prefix, 1)
    if not ask.fits(batch, least):
        raise DoesNotFit(_why_not(ask, batch, least))
    value = _most(lambda context: ask.fits(batch, context), least)
    return _largest("context", value, ask, batch, value)


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
    reserve: float = RESERVE,
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
        chunk: Tokens of a prompt that a step may read at once (2,048 or more in servers), whose activations have to fit
            too; 0 for decode steps alone.
        prefill: The program that reads them, where ``program`` is a graph.
        memory_limit: Such as ``"72 GiB"`` [byte]; the chip's capacity by default.
        reserve: Memory that driver and framework keep [byte].
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
    formats = {"dtype": dtype, "weights": weights, "cache": cache}
    beside = _beside(program, prefill, chunk, formats)
    ask = _ask(program, chip, block, shared_prefix, memory_limit, reserve, sizes, formats, beside)
    _number("context", context)
    if "B" not in ask.graph.symbols:
        raise UsageError(f"{ask.graph.name} has no symbol B: its batch is fixed, there is nothing to choose")
    if shared_prefix > context:
        raise UsageError(f"shared_prefix={shared_prefix}: longer than the context of {context} positions")
    if not ask.fits(1, context):
        raise DoesNotFit(_why_not(ask, 1, context))
    value = _most(lambda batch: ask.fits(batch, context), 1)
    return _largest("concurrency", value, ask, value, context)


def _ask(
    program: Program, chip: AnyChip, block: int | None, shared_prefix: int, memory: str | float | None,
    reserve: float, sizes: Mapping[str, int], formats: Mapping[str, str | None], beside: Memory | None,
) -> _Ask:  # fmt: skip
    graph = as_graph(program, **formats, implied="decode")
    sensible(block, shared_prefix)
    target = find_chip(chip)
    room = parse(memory, "B") if memory is not None else target.capacity
    if room <= 0:
        raise UsageError(f"memory_limit={memory!r}: a size above zero is wanted")
    return _Ask(graph, target, room, reserve, block, shared_prefix, by_symbol(sizes, graph.symbols), beside)


def _beside(program: Program, prefill: Program | None, chunk: int, formats: Mapping[str, str | None]) -> Memory | None:
    """What reading a chunk of one prompt needs."""
    if chunk == 0 and prefill is None:
        return None
    _number("chunk", chunk)
    if prefill is None and not isinstance(program, Graph):
        prefill = program
    graph = as_graph(prefill, **formats, implied="prefill") if prefill is not None else None
    if graph is None or "S" not in graph.symbols:
        raise UsageError(f"chunk={chunk}: which program reads it? Give prefill=..., a graph with the symbol S")
    return itemise(graph, {"B": 1, "S": chunk})


def _number(name: str, value: Any) -> None:
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not 1 <= value <= MOST:
        raise UsageError(f"{name}={value!r}: one whole number from 1 is wanted")


def _most(fits: Callable[[Any], Any], least: int, below: int = MOST + 1) -> int:
    """The largest number from ``least`` that fits, under ``below``; 0 where not even that does.

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


def _largest(what: str, value: int, ask: _Ask, batch: int, context: int) -> Largest:
    limit = "size" if value >= MOST else "memory"
    kept = ask.cache(batch, context)
    return Largest(what, value, ask.graph, ask.chip, ask.need(batch, context), ask.room, kept, limit)


def _why_not(ask: _Ask, batch: int, context: int) -> str:
    """Itemised footprint, and the first changes that would make it fit."""
    need = ask.need(batch, context)
    total, options = format_bytes(float(need.total)), _what_fits(ask, batch, context, need)
    return (
        f"{ask.graph.name} on {ask.chip.name}: batch {batch} at a context of {context:,} needs {total}, "
        f"{format_bytes(ask.room)} are allowed ({footprint_text(need)}); "
        f"what would fit: {', or '.join(options) or 'nothing'}"
    )


def _what_fits(ask: _Ask, batch: int, context: int, need: Memory) -> list[str]:
    fewer = _most(lambda n: ask.fits(n, context), 1, batch) if batch > 1 else 0
    least = max(ask.shared_prefix, 1)
    shorter = _most(lambda n: ask.fits(batch, n), least, context) if context > least else 0
    found = [f"batch {fewer:,}"] * (fewer > 0) + [f"a context of {shorter:,}"] * (shorter > 0)
    for change in SMALLER:
        if len(found) < 3 and replace(ask, graph=retype(ask.graph, **change)).fits(batch, context):
            found.append(" and ".join(f"{part} in {fmt}" for part, fmt in change.items()))
    fixed = float(need.reserve) + float(need.workspace)
    if ask.room > fixed:
        found.append(
            f"{ceil((float(need.total) - fixed) / (ask.room - fixed))} such chips with everything split evenly"
        )
    return found
