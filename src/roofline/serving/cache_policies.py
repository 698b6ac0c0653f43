"""What is done with a KV cache: blocks, formats, prefixes kept on the device or on the host, compared.

A prompt whose first tokens were seen before needs not read them again where their keys and values are still there. On
the device they take memory from sequences that run; on the host they have to come back over its link, which pays from
some length on, since reading a prompt takes more than a time in proportion to its length, and copying does not
(LMCache, https://docs.lmcache.ai; Mooncake, Qin et al. 2024, arXiv:2407.00079, section 3; vLLM's offloading connector,
https://docs.vllm.ai/en/latest/features). Blocks share whole blocks only and waste half a block of each sequence in the
mean (PagedAttention, Kwon et al. 2023, arXiv:2309.06180). Narrow formats hold more, and cost accuracy
(:mod:`roofline.serving.cache_accuracy`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache as cached
from functools import partial
from itertools import product
from math import log2
from typing import Any

import numpy as np

from roofline.analysis.estimates import estimate
from roofline.frontends.source import Program
from roofline.hardware.library import AnyChip
from roofline.ir.dtypes import dtype
from roofline.ir.errors import UsageError
from roofline.ir.graph import Graph, check_positions
from roofline.ir.numbers import as_list, finite_number, whole_number
from roofline.ir.report import Report, subject
from roofline.ir.sizes import symbol
from roofline.ir.units import format_bytes, parse
from roofline.ops.builder import Builder
from roofline.serving.cache_accuracy import cache_error
from roofline.serving.deployment import Deployment, deployment
from roofline.serving.kvcache import kv_cache
from roofline.serving.prefix_cache import HitCurve, hit_curve
from roofline.serving.request_traces import Floats, RequestTrace
from roofline.serving.service import too_large

_Hits = Callable[[float, float], tuple[float, float]]

#: Where the keys and values of prompts that were read stay: nowhere, on the device, or on the device and then the host.
PLACES = ("none", "device", "host")
#: Lengths at which a copy is held against reading again.
LENGTHS = np.unique(np.round(2 ** (np.arange(18 * 8 + 1) / 8)))


@dataclass(frozen=True)
class CachePolicy:
    """A format, a block and a place, and what they come to, as in :func:`roofline.serving.cache_policies`.

    Attributes:
        cache: Number format of keys and values.
        block: Tokens of a block.
        place: Where those of prompts that were read stay: ``none``, ``device`` or ``host``.
        bytes_per_token: On one device [byte].
        waste: Share of the blocks that no token uses.
        prefix_lost: Tokens of the shared prefix that lie in a block of their own for each sequence.
        sequences: That fit, each at its longest.
        room: Tokens for prompts that were read, on the device beside sequences that run, and on the host.
        device_hits: Share of a prompt's tokens that are there.
        host_hits: Share that comes back from the host.
        fetch: Time for that of one prompt [s].
        first_token: Time to read the rest and to fetch, one request alone [s].
        recompute: Time to read all of it [s].
        step: Time of a decode step of the sequences that run, no more than fit [s].
        break_even: Tokens from which on a copy from the host takes less time than it saves; ``None`` where none does.
        sqnr_db: Of the output of attention [dB]; ``None`` for 16 bits and more.
    """

    cache: str
    block: int
    place: str
    bytes_per_token: float
    waste: float
    prefix_lost: int
    sequences: int
    room: float
    device_hits: float
    host_hits: float
    fetch: float
    first_token: float
    recompute: float
    step: float
    break_even: int | None
    sqnr_db: float | None


@dataclass(frozen=True, repr=False, eq=False)
class CachePolicies(Report):
    """Ways to keep a cache, compared, as from :func:`roofline.serving.cache_policies`.

    Attributes:
        title: What is served, and where.
        about: The model, the chip, the layout, and the sizes of the requests.
        policies: One for each format, block and place.
        curve: Hits over room, where a trace says.
        lengths: Tokens at the beginning of a prompt.
        saved_s: Time that its reading is shorter where so many are there [s].
        fetch_s: Time to copy so many from the host, by format [s].
    """

    schema = "cache_policies"

    title: str
    about: dict[str, Any]
    policies: tuple[CachePolicy, ...]
    curve: HitCurve | None
    lengths: Floats
    saved_s: Floats
    fetch_s: dict[str, Floats]

    def subject(self) -> dict[str, Any]:
        """Return what is served, and its requests."""
        return self.about

    @property
    def sizes(self) -> dict[str, int]:
        """Prompt, new tokens, sequences that run, and the prefix that all prompts share."""
        return dict(self.about["sizes"])

    def summary(self) -> dict[str, Any]:
        """Return hits over room, and copies against reading again over lengths."""
        points = zip(self.curve.tokens.tolist(), self.curve.hits.tolist(), strict=True) if self.curve else ()
        hits = [{"room_tokens": tokens, "hits": share} for tokens, share in points]
        lengths = [
            {"prefix_tokens": int(n), "saved_s": float(self.saved_s[i]),
             "copies_s": {name: float(column[i]) for name, column in self.fetch_s.items()}}
            for i, n in enumerate(self.lengths) if log2(n).is_integer()
        ]  # fmt: skip
        return {"hit_curve": hits, "lengths": lengths}

    def records(self) -> list[dict[str, Any]]:
        """Return one dictionary per policy."""
        return [
            {"cache_format": p.cache, "block": p.block, "prompts_stay": p.place, "bytes_per_token": p.bytes_per_token,
             "waste": p.waste, "prefix_lost_tokens": p.prefix_lost, "sequences": p.sequences, "room_tokens": p.room,
             "device_hits": p.device_hits, "host_hits": p.host_hits, "fetch_s": p.fetch,
             "time_to_first_token_s": p.first_token, "recompute_s": p.recompute, "step_s": p.step,
             "break_even_tokens": p.break_even, "sqnr_db": p.sqnr_db}
            for p in self.policies
        ]  # fmt: skip

    def __repr__(self) -> str:
        best = min(self.policies, key=lambda p: p.first_token)
        return (f"<CachePolicies of {self.title}: {len(self.policies)}, fastest to a first token {best.cache} on "
                f"{best.place} in blocks of {best.block}, {format_bytes(best.bytes_per_token)} per token>")  # fmt: skip


def cache_policies(
    model: Program, chip: AnyChip, *, prompt: int, new_tokens: int, concurrency: int = 1,
    blocks: Sequence[int] | int = 16, caches: Sequence[str] | str = "bf16", hit: float | None = None,
    trace: RequestTrace | str | os.PathLike[str] | None = None, host: str | float | None = None,
    shared_prefix: int = 0, **options: Any,
) -> CachePolicies:  # fmt: skip
    """Compare what can be done with a cache: block sizes, formats, and prompts kept on the device or on the host.

    Args:
        model: A shipped name, or the path of a model file or config.
        chip: A name or a chip.
        prompt: Tokens of a prompt.
        new_tokens: Tokens of an answer.
        concurrency: Sequences that run; the rest of the device's room is for prompts that were read.
        blocks: Tokens of a block, one or several.
        caches: Number formats of the cache, one or several.
        hit: Share of a prompt's tokens that were read before and are still there.
        trace: In its place requests with ids of blocks, of which an LRU cache of the room there is says it.
        host: Memory of the host for each device [byte], a number or text such as ``"256 GiB"``; none by default.
        shared_prefix: First tokens that all prompts have in common.
        options: As for :func:`roofline.serving.deployment`, such as ``tp=4, weights="fp8"``.

    Returns:
        A policy for each format, block and place, all figures side by side.

    Raises:
        DoesNotFit: Not one sequence fits; the message says what would.
        UsageError: Both a share and a trace, or a size out of range.
        MissingFigure: A chip without a published link to the host.

    Example:
        >>> both = cache_policies("llama-3-8b", "h100-sxm", prompt=8000, new_tokens=200, caches=["bf16", "int8"],
        ...                       hit=0.5, host="256 GiB")
        >>> none, device, host = both.policies[:3]
        >>> device.first_token < host.first_token < none.first_token
        True
    """
    numbers = {"prompt": prompt, "new_tokens": new_tokens, "concurrency": concurrency}
    sizes = {name: whole_number(name, value, 1, 10**7) for name, value in numbers.items()}
    if hit is not None and trace is not None:
        raise UsageError("hit and trace: a trace says itself how much is there; give one of them")
    curve = None if trace is None else hit_curve(trace)
    hits = partial(_hits, curve, 0.0 if hit is None else finite_number("hit", hit, 0, 1))
    room = 0.0 if host is None else finite_number("host", parse(host, "B", "host"), 0)
    formats = [caches] if isinstance(caches, str) else as_list("caches", caches)
    sides = [blocks] if isinstance(blocks, int) else as_list("blocks", blocks)
    made = []
    for name, block in product(formats, sides):
        stored = name if _narrow(name) else None
        served = deployment(model, chip, block=block, cache=stored, shared_prefix=shared_prefix, **options)
        made.append(_compared(served, name, sizes, hits, room))
    if not made:
        raise UsageError("caches, blocks: give at least one format and one size of a block")
    fetch = {name: seconds for each in made for name, seconds in each.fetch_s.items()}
    rows = tuple(row for each in made for row in each.policies)
    return replace(made[-1], about=made[0].about, policies=rows, curve=curve, fetch_s=fetch)


def _narrow(name: str) -> bool:
    return name != "own" and dtype(name).bits < 16


def _hits(curve: HitCurve | None, share: float, near: float, far: float) -> tuple[float, float]:
    """Return the share of a prompt that is there with room on the device, and with some on the host too."""
    if curve is not None:
        return curve.at(near), curve.at(near + far)
    there = share if near + far > 0 else 0.0
    return (0.0 if far else there), there  # a share that is given comes from the host whole


def _compared(served: Deployment, name: str, sizes: dict[str, Any], hits: _Hits, host: float) -> CachePolicies:
    """Return the policies of one format and one size of blocks."""
    check_positions(served.shown, {"C": sizes["prompt"] + sizes["new_tokens"] - 1})
    if served.shared_prefix > sizes["prompt"]:
        raise UsageError(f"prefix={served.shared_prefix}: longer than the prompt of {sizes['prompt']} tokens")
    if served.sequences_that_fit(sizes["prompt"] + sizes["new_tokens"]) < 1:
        raise too_large(served, sizes["prompt"] + sizes["new_tokens"])
    lengths = LENGTHS[sizes["prompt"] > LENGTHS]
    saved, fetch = _saved(served, sizes["prompt"], lengths), {name: _fetch(served, lengths)} if host else {}
    base = _costs(served, sizes, name, _break_even(lengths, fetch[name], saved) if host else None)
    placed = [_policy(base, served, place, hits, sizes, host) for place in PLACES[1 : 3 if host else 2]]
    title = f"{served.shown.title} on {served.devices} x {served.chip.name}"
    about = subject(served.shown, served.chip.name) | {
        "phase": "serving", "sizes": {**sizes, "shared_prefix": served.shared_prefix},
        "devices": served.devices, "tp": served.tp, "passes": [],  # formats of the cache are in the rows
    }  # fmt: skip
    return CachePolicies(title, about, (base, *placed), None, lengths, saved, fetch)


def _costs(served: Deployment, sizes: dict[str, Any], name: str, break_even: int | None) -> CachePolicy:
    """Return what a format and a block come to where nothing is reused."""
    prompt, new, running = sizes["prompt"], sizes["new_tokens"], sizes["concurrency"]
    contexts = np.unique(np.linspace(prompt, prompt + new, min(new + 1, 256)).astype(np.int64)).tolist()
    prefix, fit = served.shared_prefix, int(served.sequences_that_fit(prompt + new))
    held = [kv_cache(stage, contexts, batch=running, block=served.block, shared_prefix=prefix)
            for stage in served.decode_stages]  # fmt: skip
    fullest = max(held, key=lambda each: float(each.bytes_per_token))
    recompute = _read(served, prompt, 0)
    return CachePolicy(
        name, served.block, "none", float(fullest.bytes_per_token), float(np.mean(fullest.waste)),
        prefix % served.block, fit, 0.0, 0.0, 0.0, 0.0, recompute, recompute,
        float(served.steps().decode(min(running, fit), prompt + new / 2)), break_even,
        cache_error(served.model, name).sqnr_db if _narrow(name) else None,
    )  # fmt: skip


def _policy(
    base: CachePolicy, served: Deployment, place: str, hits: _Hits, sizes: dict[str, Any], host: float
) -> CachePolicy:  # fmt: skip
    """Return what keeping prompts at a place comes to."""
    prompt = sizes["prompt"]
    near = max(base.sequences - sizes["concurrency"], 0) * (prompt + sizes["new_tokens"])
    far = host / base.bytes_per_token if place == "host" else 0.0
    here, there = hits(near, far)
    back = round(prompt * (there - here))
    fetch = float(_fetch(served, np.asarray([back]))[0]) if back else 0.0
    first = fetch + _read(served, prompt, min(round(prompt * there), prompt - 1))
    return replace(base, place=place, room=near + far, device_hits=here, host_hits=there - here, fetch=fetch,
                   first_token=first)  # fmt: skip


# --- times ------------------------------------------------------------------------------------------------------------


def _read(served: Deployment, prompt: int, cached: int) -> float:
    """Return the time to read what is not there of a prompt, in steps of the server [s]."""
    chunk = served.chunk * served.attention_dp * served.pp
    starts = np.arange(cached, prompt, chunk)
    seconds = served.steps().prefill(np.minimum(prompt - starts, chunk), starts)
    return float(np.sum(seconds)) + served.overhead.request


def _saved(served: Deployment, prompt: int, lengths: Floats) -> Floats:
    """Return the time that a prompt's reading is shorter where its first tokens are there [s]."""
    return _read(served, prompt, 0) - np.asarray([_read(served, prompt, int(length)) for length in lengths])


def _fetch(served: Deployment, tokens: Any) -> Floats:
    """Return the time to copy so many tokens' keys and values from the host, each device its own over its link [s]."""
    each, _ = replace(served, shared_prefix=0).cache_bytes(tokens)
    return np.asarray(estimate(_copy(), served.chip, mode="graph", E=np.asarray(each, dtype=np.int64).tolist()).time)


@cached
def _copy() -> Graph:
    b = Builder("copy from the host", "int8")
    return b.graph([b.op("memcpy_h2d", b.input("x", (symbol("E"),)))])


def _break_even(lengths: Floats, fetch: Floats, saved: Floats) -> int | None:
    """Return the tokens from which on a copy takes less time than it saves; ``None`` where the longest does not."""
    slower = np.flatnonzero(fetch >= saved)
    at = 0 if not slower.size else int(slower[-1]) + 1
    return int(lengths[at]) if at < len(lengths) else None
