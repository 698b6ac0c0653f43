"""A whole request: the prompt is read once, then one token after the other, while the context grows.

The prefill yields the first new token, so ``n`` new tokens take a prefill and ``n - 1`` decode steps, as benchmarks of
servers count them. Step ``i`` attends ``prompt + i`` positions; all steps are estimated at once, over the vector of
their contexts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from roofline.analysis.estimates import Estimate, Mode, estimate, runs_as
from roofline.analysis.evaluation import runtime_of
from roofline.analysis.remedies import (
    FORMATS,
    SHARED,
    Change,
    Remedy,
    before_compiled,
    changed,
    offloaded,
    remedies,
    smaller,
    would_fit,
)
from roofline.cost import REGIME
from roofline.cost.scratch import memory_on
from roofline.counting.grid import grid
from roofline.counting.memory import RESERVE, Memory
from roofline.frontends.source import Program
from roofline.hardware.chip import Chip
from roofline.hardware.library import AnyChip
from roofline.hardware.library import chip as find_chip
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph
from roofline.ir.numbers import finite_number, whole_number
from roofline.ir.report import Report, subject
from roofline.ir.units import format_bytes, format_si
from roofline.serving.kvcache import Formats, KVCache, checked_layout, in_formats, kv_cache

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]

#: Tokens of one request that are estimated at most.
LARGEST_REQUEST = 2**17
#: Tokens that a record lists at most.
LISTED = 64

#: What a prediction of a request leaves out.
NOT_MODELLED = (
    "waiting for other requests, sampling and server overhead between steps",
    "a shared prefix saves memory here but no time: every prompt is computed in full",
)


@dataclass(frozen=True, repr=False)
class Request(Report):
    """What a request takes, token by token.

    From :func:`roofline.serving.request`.

    The first token is the prefill's; every other one is a decode step's.

    Attributes:
        prefill: The estimate of the prompt.
        decode: The estimate of all decode steps, ``None`` for a single new token.
        cache: Keys and values while each token is computed.
        prompt: Tokens of the prompt of each sequence.
        new_tokens: Tokens that each sequence gets.
        batch: Sequences that run together.
    """

    schema = "request"

    prefill: Estimate
    decode: Estimate | None
    cache: KVCache
    prompt: int
    new_tokens: int
    batch: int

    # --- time [s] ---

    def _each(self, name: str) -> Floats:
        """A figure of the prefill and of each decode step."""
        first = np.asarray([float(getattr(self.prefill, name))])
        if self.decode is None:
            return first
        rest = np.broadcast_to(np.asarray(getattr(self.decode, name), dtype=np.float64), (self.new_tokens - 1,))
        return np.concatenate([first, rest])

    @cached_property
    def token_times(self) -> Floats:
        """Time of each token, the prefill first [s]."""
        return self._each("time")

    @property
    def steps(self) -> Floats:
        """Time of each decode step [s]; empty for a single new token."""
        return self.token_times[1:]

    @property
    def time_to_first_token(self) -> float:
        """The prefill [s]."""
        return float(self.token_times[0])

    @property
    def time(self) -> float:
        """Prefill and all decode steps [s]."""
        return float(self.token_times.sum())

    @cached_property
    def low(self) -> float:
        """Lower end of the expected range [s]."""
        return float(self._each("low").sum())

    @cached_property
    def high(self) -> float:
        """Upper end of the expected range [s]."""
        return float(self._each("high").sum())

    @property
    def time_per_token(self) -> float | None:
        """Mean of the decode steps [s]; ``None`` for a single new token."""
        return float(self.steps.mean()) if self.steps.size else None

    def percentile(self, percent: float) -> float | None:
        """Return a percentile of the decode steps [s]; ``None`` for a single new token.

        Raises:
            UsageError: Not between 0 and 100.
        """
        at = finite_number("percentile", percent, 0, 100)
        return float(np.percentile(self.steps, at)) if self.steps.size else None

    @property
    def tokens_per_s(self) -> float:
        """New tokens of all sequences over the whole time."""
        return self.batch * self.new_tokens / self.time

    # --- memory [byte] ---

    @cached_property
    def memory(self) -> Memory:
        """Bytes by part while each token is computed, the prefill first."""
        first, reserved = self._parts(self.prefill), np.asarray(self.cache.reserved, dtype=np.float64)
        rest = self._parts(self.decode) if self.decode is not None else first
        steps = self.new_tokens - 1
        joined = {
            name: np.concatenate([[float(first[name])], np.broadcast_to(np.asarray(rest[name], float), (steps,))])
            for name in first
        }
        return replace(Memory(**joined), kv_cache=np.broadcast_to(reserved, (self.new_tokens,)))

    @staticmethod
    def _parts(est: Estimate) -> dict[str, Any]:
        return memory_on(est.graph, est.grid.sizes, est.chip, runtime_of(est.mode), est.tf32, est.reserve).parts()

    @property
    def peak(self) -> float:
        """The most memory at any token [byte]."""
        return float(np.max(self.memory.total))

    @property
    def peak_token(self) -> int:
        """The first token with the most memory: 0 is the prefill's."""
        return int(np.argmax(self.memory.total))

    @property
    def fits(self) -> bool | None:
        """True where the peak stays within the chip's capacity, None where nobody published one."""
        room = self.chip.main.capacity
        return None if room is None else self.peak <= room

    @property
    def chip(self) -> Chip:
        """The chip that it runs on."""
        return self.prefill.chip

    @property
    def not_modelled(self) -> tuple[str, ...]:
        """Notes on what the prediction leaves out."""
        own = NOT_MODELLED if self.cache.shared_prefix else NOT_MODELLED[:1]
        decode = self.decode.not_modelled if self.decode is not None else ()
        return tuple(dict.fromkeys((*self.prefill.not_modelled, *decode, *own)))

    # --- as data ---

    def columns(self) -> dict[str, Any]:
        """Return the figures of every token by name: its time, when it is done, the cache, the memory by part."""
        tokens = np.arange(self.new_tokens)
        cache = {name: np.broadcast_to(np.asarray(getattr(self.cache, name), float), tokens.shape)
                for name in ("ideal", "used", "reserved")}  # fmt: skip
        parts = {f"{name}_bytes": value for name, value in self.memory.parts().items() if name != "kv_cache"}
        return {
            "token": tokens + 1,
            "context": self.prompt + tokens,
            "time_s": self.token_times,
            "low_s": self._each("low"),
            "high_s": self._each("high"),
            "done_s": np.cumsum(self.token_times),
            **{f"cache_{name}_bytes": value for name, value in cache.items()},
            **parts,
            "total_bytes": self.memory.total,
        }

    def frame(self) -> pd.DataFrame:
        """Return one row per token: its time, when it is done, the cache, the memory by part."""
        from roofline.ir.frame import frame

        return frame(self.columns())

    def subject(self) -> dict[str, Any]:
        """Return the model, where and how it runs, and the request."""
        about = subject(self.prefill.graph, self.chip.name, self.prefill.mode) | {"regime": self.prefill.regime}
        sizes = {"batch": self.batch, "prompt": self.prompt, "new_tokens": self.new_tokens}
        layout = {"block": self.cache.block, "shared_prefix": self.cache.shared_prefix}
        return {**about, "phase": "prefill and decode", "sizes": sizes, **layout}

    def summary(self) -> dict[str, Any]:
        """Return the times and the memory of the whole."""
        return {
            "time_s": self.time, "low_s": self.low, "high_s": self.high,
            "time_to_first_token_s": self.time_to_first_token,
            "time_per_token_s": self.time_per_token,
            "time_per_token_p50_s": self.percentile(50),
            "time_per_token_p99_s": self.percentile(99),
            "tokens_per_s": self.tokens_per_s, "decode_steps": self.new_tokens - 1,
            "peak_bytes": self.peak, "peak_token": self.peak_token + 1,
            "memory_bytes": {name: float(value[self.peak_token]) for name, value in self.memory.parts().items()},
            "capacity_bytes": self.chip.main.capacity, "fits": self.fits, "not_modelled": list(self.not_modelled),
        }  # fmt: skip

    def records(self) -> list[dict[str, Any]]:
        """Return at most 64 of its tokens, a dictionary each."""
        columns = self.columns()
        shown = np.unique(np.linspace(0, self.new_tokens - 1, min(LISTED, self.new_tokens)).astype(int))
        return [{name: np.asarray(value)[i].item() for name, value in columns.items()} for i in shown]

    def __repr__(self) -> str:
        step = f", then {format_si(self.time_per_token, 's')} per token" if self.time_per_token is not None else ""
        return (
            f"<Request {self.prefill.graph.title} on {self.chip.name}: "
            f"{format_si(self.time_to_first_token, 's')} to the first of {self.new_tokens:,} tokens{step}; "
            f"{format_si(self.time, 's')} ({format_si(self.low, 's')} to {format_si(self.high, 's')}), "
            f"{format_bytes(self.peak)} at most{', which does not fit' if self.fits is False else ''}>"
        )


def request(
    program: Program | None = None,
    chip: AnyChip | None = None,
    *,
    prompt: int,
    new_tokens: int,
    batch: int = 1,
    prefill: Program | None = None,
    decode: Program | None = None,
    block: int | None = None,
    shared_prefix: int = 0,
    mode: Mode = "graph",
    tf32: bool | None = None,
    regime: str = REGIME,
    reserve: str | float = RESERVE,
    dtype: str | None = None,
    weights: str | None = None,
    cache: str | None = None,
    **overrides: Any,
) -> Request:
    """Predict a whole request: the time to the first token, every further token's time, and memory as it grows.

    Args:
        program: A shipped name, or the path of a model file or config; or give ``prefill`` and ``decode``.
        chip: A name or a chip.
        prompt: Tokens of the prompt of each sequence.
        new_tokens: Tokens that each sequence gets: the first from the prefill, the others from decode steps.
        batch: Sequences that run together.
        prefill: The program that reads the prompt, quantised or sharded as you like.
        decode: The program that adds a token; of the same model.
        block: Tokens of a block of the cache (16 in vLLM); absent for one without blocks.
        shared_prefix: First tokens of the prompt that all sequences have in common, kept once.
        mode: As for :func:`roofline.estimate`; servers replay their steps as graphs.
        tf32: As for :func:`roofline.estimate`.
        regime: As for :func:`roofline.estimate`.
        reserve: Memory that driver and framework keep [byte], a number or text such as ``"1 GiB"``.
        dtype: Number format of everything.
        weights: Number format of the weights alone.
        cache: Number format of the KV cache alone.
        overrides: Sizes and options of the model, such as ``layers=8``.

    Returns:
        Time and memory, token by token.

    Raises:
        UsageError: Neither a model nor both programs, programs of different models, or a size out of range.

    Example:
        >>> import roofline as rl
        >>> one = request("llama-3-8b", "h100-sxm", prompt=2048, new_tokens=256, block=16)
        >>> one.time_to_first_token > 5 * one.time_per_token, bool(one.steps[-1] > one.steps[0]), one.fits
        (True, True, True)
    """
    first, then = _programs(program, prefill, decode, (dtype, weights, cache), overrides)
    prompt, new_tokens, batch, (block, shared_prefix, _) = _checked(prompt, new_tokens, batch, block, shared_prefix)
    how = {"mode": mode, "tf32": tf32, "regime": regime, "reserve": reserve}
    kv = kv_cache(then, prompt + np.arange(new_tokens), batch=batch, block=block, shared_prefix=shared_prefix)
    read = estimate(first, _given(chip), B=batch, S=prompt, **how)  # type: ignore[arg-type]
    steps = estimate(then, read.chip, B=batch, C=prompt + np.arange(1, new_tokens), **how) if new_tokens > 1 else None  # type: ignore[arg-type]
    return Request(read, steps, kv, prompt, new_tokens, batch)


@would_fit.register
def _of_request(one: Request) -> tuple[Remedy, ...]:
    if one.fits is not False:
        return ()
    room, least = float(one.chip.capacity), max(one.cache.shared_prefix, 1)
    peak = one.memory.map(lambda part: np.broadcast_to(part, (one.new_tokens,))[one.peak_token])
    sizes = (smaller("prompt", one.prompt, least), smaller("batch", one.batch))
    return remedies(lambda change: _changed(one, change).peak, room, (FORMATS, SHARED, *sizes),
                    offloaded(peak, room, one.chip))  # fmt: skip


def _changed(one: Request, change: Change) -> Request:
    """Return a request of changed programs and sizes."""
    prompt, batch = change.get("prompt", one.prompt), change.get("batch", one.batch)
    options = {name: value for name, value in change.items() if name != "prompt"}

    def again(est: Estimate, **sizes: Any) -> Estimate:
        graph = runs_as(changed(before_compiled(est), options), est.mode)
        return replace(est, graph=graph, grid=grid(graph.symbols, {"B": batch, **sizes}))

    tokens = prompt + np.arange(one.new_tokens)
    then = None if one.decode is None else again(one.decode, C=tokens[1:])
    cache = kv_cache(
        changed(one.cache.graph, options),
        tokens,
        batch=batch,
        block=one.cache.block,
        shared_prefix=one.cache.shared_prefix,
    )
    return replace(one, prefill=again(one.prefill, S=prompt), decode=then, cache=cache, prompt=prompt, batch=batch)


def _given(chip: AnyChip | None) -> Chip:
    if chip is None:
        raise UsageError("request: no chip given; give a name or a Chip")
    return find_chip(chip)


def _programs(
    program: Program | None, prefill: Program | None, decode: Program | None, formats: Formats,
    overrides: Mapping[str, Any],
) -> tuple[Graph, Graph]:  # fmt: skip
    """The two programs of a request, built or as given.

    Raises:
        UsageError: Neither a name nor both, or two that are not the same model.
    """
    own = (prefill is not None) + (decode is not None)
    if isinstance(program, Graph) or own != (2 if program is None else 0):
        raise UsageError("request: give a program by name, with both phases, or both prefill=... and decode=...")
    first = in_formats(program if prefill is None else prefill, formats, "prefill", **overrides)  # type: ignore[arg-type]
    then = in_formats(program if decode is None else decode, formats, "decode", **overrides)  # type: ignore[arg-type]
    names = [graph.title for graph in (first, then)]
    if names[0] != names[1] and None not in (first.info.model, then.info.model):
        raise UsageError(f"request: prefill of {names[0]} and decode of {names[1]} are not the same model")
    if "S" not in first.symbols:
        raise UsageError(f"request: {first.name} has no symbol S for the length of the prompt")
    return first, then


def _checked(
    prompt: Any, new_tokens: Any, batch: Any, block: Any, shared_prefix: Any
) -> tuple[int, int, int, tuple[int | None, int, int | None]]:
    """Return sizes, and the layout of the cache, as numbers of Python; refuse those that cannot be."""
    first = whole_number("prompt", prompt, most=10**9)
    new = whole_number("new_tokens", new_tokens, most=LARGEST_REQUEST)
    together = whole_number("batch", batch, most=10**9)
    return first, new, together, checked_layout(block, shared_prefix, longest=first)
