"""Fused attention: tiles of queries walk blocks of keys on the cores, beside the traffic of keys and values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roofline.cost.machine import knee, vector_peak
from roofline.cost.matmul import VECTOR_ROWS
from roofline.cost.parameters import Group, Parameter
from roofline.cost.work import Launch
from roofline.counting.counts import Kernel
from roofline.ir.dtypes import DTYPES
from roofline.ops.registry import OPS

GROUP = Group(
    "attention",
    # Priors of the arithmetic: medians of nine chips' fits, or the H100's cold ones (see their files).
    launch=Parameter(3e-6, 0.5e-6, 4e-5, "s", "fixed cost of one launch", "launch", 3.0),
    share=Parameter(0.86, 0.1, 2.0, "share", "of the matrix peak inside a block of keys"),
    exp=Parameter(0.05, 0.005, 1.0, "share", "of the fp32 vector peak at which exponentials run"),
    start=Parameter(2.4, 1.0, 2000.0, "keys", "work of a tile apart from its keys: loading queries, writing results"),
    begin=Parameter(1e-7, 1e-9, 1e-5, "s", "for one core to switch to another sequence or key-value head"),
    pack=Parameter(
        1.0, 0.01, 1.0, "share", "how far heads on the same keys share tiles outside plain decode, without pages"
    ),
    pad=Parameter(32.0, 4.0, 128.0, "queries", "to which a smaller tile is padded"),
    step=Parameter(8e-8, 1e-8, 5e-6, "s", "latency of a block of keys"),
    split=Parameter(3e-6, 0.1e-6, 2e-5, "s", "cost of combining the parts where keys are split over cores"),
    parts=Parameter(64.0, 1.0, 128.0, "parts", "into which the keys of a decode step are split at most"),
    dram=Parameter(0.92, 0.4, 1.0, "share", "of main memory's bandwidth", follows="memory"),
    cache=Parameter(0.7, 0.1, 20.0, "share", "of the cache's bandwidth for what it holds from before"),
    hold=Parameter(0.6, 0.2, 1.5, "share", "of the cache that still serves what it holds from before"),
    ramp=Parameter(5e-6, 0.1e-6, 5e-5, "s", "lost until main memory streams, reached by one cache-full"),
    append=Parameter(
        1.0, 1.0, 10.0, "ratio", "traffic of new keys and values to reading them once; more if the call caches them"
    ),
    token=Parameter(5e-8, 1e-9, 1e-5, "s", "of one core per new token, as often as append exceeds one"),
    kv8=Parameter(1.0, 0.3, 2.0, "ratio", "arithmetic with 8-bit keys and values against 16-bit"),
    odd=Parameter(0.9, 0.005, 1.0, "share", "of the arithmetic left for 8-bit keys of odd width: no kernel of its own"),
)

#: Plain matmuls that attention can begin with.
_WRITTEN_OUT = frozenset({"bmm", "matmul"})
#: Keys of the block that a tile works on at a time.
BLOCK = 128
#: Queries of a tile for each multiplication and addition that a core's matrix units do in a cycle. A tile reads its
#: keys from shared memory, at 128 bytes per cycle on every chip, so faster units need more queries for each key.
PACE = 1 / 32
#: Smallest and largest tile of queries.
LEAST, MOST = 64.0, 256.0
#: Tiles on a core at a time: one computes while another waits.
RESIDENT = 2.0
#: Keys of the smallest matrix instruction.
FRAGMENT = 8
#: Extra launches of a decode step on kernels that cannot bring heads on the same keys together themselves, or that
#: unpack 8-bit keys [s].
GATHER = 4.5e-6
#: Elements of new keys that a token's conversion to 8 bits is priced at; it grows with the root of their number.
FRESH = 1024.0
#: Cost of a new 16-bit token, which is copied, against one that is converted to 8 bits.
COPY = 0.15
#: How sharply a cache stops serving what exceeds it.
SPILL = 6.0
#: Traffic after which main memory streams, where the cache's size is unknown [byte].
FILL = 5e7
#: Sharpness of the knee between matmuls and exponentials, which hide each other in part.
OVERLAP = 2.0
#: Sharpness of the knee between arithmetic and traffic.
KNEE = 1.5
#: Width of a head at most; latents that all heads share are wider.
LATENT = 256
#: Cycles of a core to dequantise an element of a cache whose groups have scales, as for the weights of a matmul.
WIDEN = 0.03
#: Cycles of a core to load and add an element of a mask, in rows that are aligned to 16 bytes and in others, and the
#: queries that a tile has of it at least; cuDNN's kernels in measurements/h200-sxm/zoo/ops.csv: 1.6 us more for
#: each 128 x 128 of a mask of 256 keys than without one, 5.8 us for 64 x 128 in rows of 49.
MASK, MASK_ODD, MASK_LEAST, MASK_ALIGNED = 0.19, 1.4, 64, 16
#: How arithmetic slows where heads are wider than a tile's registers hold.
WIDE = 0.3
#: PyTorch's memory efficient kernel in fp32 multiplies each number as three of tf32 (``OpMultiplyAddFastF32`` in
#: aten/src/ATen/native/transformers/cuda/mem_eff_attention/gemm_kernel_utils.h of https://github.com/pytorch/pytorch):
#: FLOPs of a core per cycle, as a share of its tf32 matrix units at most, cycles of a core per pair of query and key
#: for the softmax, which hides nothing, and how much longer a block takes a tile that has its core to itself.
#: In measurements/h200-sxm/networks.csv (``fmha_cutlassF_f32_aligned_64x64_rf_sm80`` and ``64x128``).
FAST_FP32, FAST_SHARE, FAST_SOFTMAX, FAST_ALONE = 286.0, 0.72 / 3, 1.13, 1.55


@dataclass(frozen=True)
class _Kernel:
    """How the usual kernel for a chip's matrix units works.

    Attributes:
        tile: Queries that a tile holds.
        span: Keys of a block.
        share: How far heads on the same keys share a tile: 0 not, 1 as many as it holds.
        always: Whether they do so where one head would fill it, so that a tile covers fewer positions.
        full: Queries that every tile is padded to.
        split: Where the keys of a few queries are split over cores.
        gather: Extra launches, in those of a decode step.
    """

    tile: float
    span: Any
    share: Any
    always: bool
    full: float
    split: Any
    gather: Any


@dataclass(frozen=True)
class _Tiles:
    """Tiles of a launch: how many, queries in one, blocks of keys of all tiles of a head and of the longest."""

    count: Any
    queries: Any
    blocks: Any
    longest: Any


def seconds(work: Launch, p: Mapping[str, float]) -> Any:
    """Time of one launch of a fused attention kernel [s]."""
    s = {axis: np.asarray(size, dtype=np.float64) for axis, size in work.sizes.items()}
    kernel = _kernel(work, p, s)
    step = p["step"] if np.isfinite(work.machine.clock) else 0.0  # cycles of an unknown length
    if fast := is_fast_fp32(work):
        kernel = _Kernel(LEAST, np.where(s["d"] > LEAST, BLOCK, BLOCK / 2), 0.0, False, LEAST, np.False_, 0.0)
    tiles = _tiles(s, work.row.kernel.attrs, kernel)
    block, memory = _block(work, p, kernel, tiles.queries, s), _memory(work, p, s)
    if fast:
        block = _fast_fp32_block(work, kernel.span, s)
        step = (FAST_ALONE - 1) * block
    cores, start = work.machine.units, p["start"] / kernel.span
    parts = np.clip(cores / tiles.count, 1.0, np.clip(tiles.longest * kernel.span / BLOCK / 2, 1.0, p["parts"]))
    parts = np.where(kernel.split, parts, 1.0)
    others = [memory, *_dequantizing(work, tiles.blocks * kernel.span * 2 * s["d"])]
    whole = knee([_schedule(tiles, block, step, start, 1.0, cores), *others], KNEE)
    split = knee([_schedule(tiles, block, step, start, parts, cores), *others], KNEE)
    least = np.minimum(np.minimum(whole, split + p["split"] * (1 - 1 / parts)), _by_vectors(work, p, s, memory))
    other = (_fresh(work, p, s) + p["begin"] * tiles.count) / cores
    return p["launch"] + least + other + kernel.gather * GATHER


def _by_vectors(work: Launch, p: Mapping[str, float], s: Mapping[str, Any], memory: Any) -> Any:
    """Time of a few queries where no matrix unit takes the format: keys stream by, as for a matmul of few rows [s]."""
    few = (s["q"] <= VECTOR_ROWS) & (not work.on_matrix)
    if not np.any(few):
        return np.inf
    arithmetic = 4 * s["b"] * s["h"] * s["q"] * s["k"] * s["d"] / (work.peak * p["share"])
    return np.where(few, knee([arithmetic, memory], KNEE), np.inf)


def is_written_out(kernel: Kernel) -> bool:
    """Tell whether a kernel is attention of plain matmuls: two of them, with a reduction or a softmax between."""
    kinds = [OPS[node.op].kind for node in kernel.nodes]
    return (
        kernel.main.op in _WRITTEN_OUT and kinds.count("matmul") == 2 and not {"rowwise", "reduction"}.isdisjoint(kinds)
    )


def written_out_seconds(work: Launch, p: Mapping[str, float]) -> Any:
    """The same for attention of plain matmuls; the first gives the sizes, and every batch counts as a head [s]."""
    s = work.sizes
    sizes = {"b": s["batch"] if work.op == "bmm" else 1, "h": 1, "g": 1, "q": s["m"], "k": s["n"], "d": s["k"]}
    if work.op == "matmul":
        sizes["q"] = s["batch"] * s["m"]
    return seconds(replace(work, row=replace(work.row, sizes=sizes)), p)


def walk(work: Launch, p: Mapping[str, float], arithmetic: float) -> Any:
    """Time of the tiles alone, with so many times the matmuls of a forward, the keys in one part [s]."""
    s = {axis: np.asarray(size, dtype=np.float64) for axis, size in work.sizes.items()}
    kernel = _kernel(work, p, s)
    tiles = _tiles(s, work.row.kernel.attrs, kernel)
    block = _block(work, {**p, "share": p["share"] / arithmetic}, kernel, tiles.queries, s)
    step = p["step"] if np.isfinite(work.machine.clock) else 0.0
    return _schedule(tiles, block, step, p["start"] / kernel.span, 1.0, work.machine.units)


def walks(work: Launch, p: Mapping[str, float], s: Mapping[str, Any]) -> Any:
    """Return how often tiles of queries load the keys and values of all heads."""
    kernel = _kernel(work, p, s)
    tiles = _tiles(s, work.row.kernel.attrs, kernel)
    return tiles.blocks * kernel.span / (s["b"] * s["g"] * s["k"])


def _kernel(work: Launch, p: Mapping[str, float], s: Mapping[str, Any]) -> _Kernel:
    """Return the kernel that runs: it follows from the pace of the matrix units and the width of keys in memory."""
    pace = work.peak / work.machine.units / work.machine.clock
    tile = float(np.clip(2.0 ** np.round(np.log2(max(pace * PACE, 1.0))), LEAST, MOST))
    group, small = s["h"] / s["g"], s["q"] < tile
    plain = (s["q"] == 1) & (not work.row.kernel.attrs.get("window", 0))
    if tile > LEAST:
        # The widest tiles are shared in decode steps only; others wherever there is room, over pages always.
        some = 1.0 if _paged(p) or _eight(work) else p["pack"]
        share = np.where(s["q"] == 1, 1.0, 0.0) if tile == MOST else np.where(plain, 1.0, some)
        return _Kernel(tile, np.float64(BLOCK), share, False, 0.0, small, 0.0)
    if _eight(work):
        # 8-bit keys have a kernel of their own, which unpacks smaller blocks for tiles of all heads on them.
        return _Kernel(2 * LEAST, np.float64(BLOCK / 2), 1.0, True, 0.0, s["q"] < 2 * LEAST, (s["q"] == 1) & _paged(p))
    # A tile has one head; the heads on the same keys of a decode step become queries of one. Over pages of cached keys
    # that takes launches of its own, a tile is computed whole, and nothing else is split. Blocks fill shared memory.
    span = np.clip(BLOCK * 128 / 2.0 ** np.ceil(np.log2(s["d"])), BLOCK / 2, BLOCK * 2)
    turned = plain & (group > 1)
    gather = turned & (s["g"] > 1) & (s["b"] > 1) & _paged(p)
    full = tile if _paged(p) and work.on_matrix else 0.0
    return _Kernel(tile, span, np.where(plain, 1.0, 0.0), False, full, small & (turned | (not _paged(p))), gather)


def _paged(p: Mapping[str, float]) -> bool:
    """Tell whether the call also caches new keys, as serving stacks do: their kernels have tiles of one size."""
    return p["append"] > 1


def _tiles(s: Mapping[str, Any], attrs: Mapping[str, Any], kernel: _Kernel) -> _Tiles:
    causal, window = attrs.get("causal", False), attrs.get("window", 0)
    tile, span, group = kernel.tile, kernel.span, s["h"] / s["g"]
    together = np.clip(tile / s["q"], 1.0, group) ** kernel.share
    positions = np.maximum(tile / group, 1.0) if kernel.always else tile
    rows = np.ceil(s["q"] / tile)
    band = np.ceil((window + np.minimum(s["q"], positions) - 1) / span) if window else np.inf
    longest = np.minimum(np.ceil(s["k"] / span), band)
    blocks = rows * longest
    if causal:
        # From the last tile upwards each sees as many keys less as a tile is long; a window caps what they see. Where
        # tiles are shorter than blocks, half of the difference is seen in vain.
        step, grain = tile / span, np.minimum(tile, span)
        keys = np.ceil(s["k"] / grain) * grain / span + np.maximum(1 - step, 0.0) / 2
        walked = np.minimum(rows, np.ceil(keys / step))
        capped = np.clip(np.ceil((keys - band) / step), 0.0, walked)
        free = (walked - capped) * keys - (walked * (walked - 1) - capped * (capped - 1)) / 2 * step
        seen = free + np.where(capped > 0, capped * longest, 0.0)
        blocks = np.where(s["q"] < tile, blocks, np.maximum(seen, rows))
    heads = s["b"] * s["h"] / together
    queries = np.maximum(np.minimum(s["q"] * together, tile), kernel.full)
    return _Tiles(heads * rows, queries, heads * blocks, longest)


def _block(work: Launch, p: Mapping[str, float], kernel: _Kernel, queries: Any, s: Mapping[str, Any]) -> Any:
    """Arithmetic of a block of keys for one tile on one core [s]."""
    attrs = work.row.kernel.attrs
    cores, d, window = work.machine.units, np.maximum(s["d"], attrs.get("lanes", 0)), attrs.get("window", 0)
    # In 8 bits there are kernels for widths that are powers of two, and for latents, which are wider than heads are
    # (576: https://github.com/deepseek-ai/FlashMLA).
    native = (np.log2(d) % 1 == 0) | (d > LATENT) if _eight(work) else np.True_
    # The widest tiles have no kernel for odd widths: a portable one takes tiles of any size.
    tiled = (native | (kernel.tile < MOST)) & work.on_matrix
    padded = np.maximum(queries, np.where(tiled, p["pad"], 1.0))
    pairs = padded * np.where(tiled & _paged(p), kernel.span, np.clip(s["k"], FRAGMENT, kernel.span))
    eighth = np.where(native, p["kv8"], p["kv8"] * p["odd"]) if _eight(work) else 1.0
    share = p["share"] * eighth * np.maximum(d / 128, 1.0) ** -WIDE
    matrix = pairs * 4 * d / (work.peak / cores * share)
    vector = vector_peak(work.chip, "fp32")
    seen = np.minimum(s["k"], window + np.minimum(s["q"], kernel.tile) - 1) if window else s["k"]
    unmasked = padded * np.clip(seen, FRAGMENT, kernel.span)
    exps = unmasked / (vector / cores * p["exp"]) if vector else np.zeros_like(matrix)
    return knee([matrix, exps], OVERLAP) + _masking(work, queries, kernel.span, s)


def is_fast_fp32(work: Launch) -> bool:
    """Tell whether PyTorch's memory efficient kernel multiplies fp32 on tf32 matrix units."""
    known = work.chip.vendor == "NVIDIA" and "tf32" in work.chip.matrix and bool(np.isfinite(work.machine.clock))
    return known and work.dtype == "fp32" and work.op == "attention_scores"


def _fast_fp32_block(work: Launch, span: Any, s: Mapping[str, Any]) -> Any:
    """Time of a block of keys for one of that kernel's tiles [s]."""
    cores, clock = work.machine.units, work.machine.clock
    rate = min(FAST_FP32, work.chip.peak("tf32") * FAST_SHARE / cores / clock)
    return LEAST * span * (4 * s["d"] / rate + FAST_SOFTMAX) / clock + _masking(work, LEAST, span, s)


def _masking(work: Launch, queries: Any, span: Any, s: Mapping[str, Any]) -> Any:
    """Time of a core to add a mask to a block of scores, which hides nothing else [s]."""
    if not work.machine.is_gpu or not any(node.op == "add" for node in work.row.kernel.nodes):
        return 0.0
    cycles = np.where(s["k"] * work.element % MASK_ALIGNED == 0, MASK, MASK_ODD)
    return np.maximum(queries, MASK_LEAST) * span * cycles / work.machine.clock


def _eight(work: Launch) -> bool:
    return DTYPES[work.row.kernel.stored[1]].bits <= 8


def _dequantizing(work: Launch, elements: Any) -> list[Any]:
    """Time to dequantise keys and values with scales of their own, again for each tile of queries [s].

    One scale for all is part of the softmax's, and what 8-bit kernels reach says what their conversions cost.
    """
    scaled = bool(DTYPES[work.row.kernel.stored[1]].group)
    return [elements * WIDEN / (work.machine.clock * work.machine.units)] if scaled else []


def _schedule(tiles: _Tiles, block: Any, step: Any, start: Any, parts: Any, cores: float) -> Any:
    """Time until the last core is done [s]."""
    units = tiles.count * parts
    mean = tiles.blocks / units + start
    longest = tiles.longest / parts + start
    full = units / cores
    rounds = np.ceil(full - 1e-9)
    # The longest tiles go first, and each round of them takes as long as its first: lengths fall evenly to the last.
    waves = rounds * longest - np.maximum(longest - mean, 0.0) * rounds * (rounds - 1) / full
    # A tile waits for its block, which a core with several tiles spends on another.
    return np.maximum(waves * np.maximum(block, (block + step) / RESIDENT), longest * (block + step))


def _fresh(work: Launch, p: Mapping[str, float], s: Mapping[str, Any]) -> Any:
    """Time of cores, added up, for the new tokens' way into the cache of keys and values [s]."""
    token = p["token"] * (s["g"] * s["d"] / FRESH) ** 0.5 * (1.0 if _eight(work) else COPY)
    return (p["append"] - 1) * token * s["b"] * np.minimum(s["q"], s["k"])


def _memory(work: Launch, p: Mapping[str, float], s: Mapping[str, Any]) -> Any:
    chip, total = work.machine, work.row.bytes
    q, k = (float(DTYPES[stored].bytes) for stored in work.row.kernel.stored[:2])
    fresh = 2 * s["b"] * s["g"] * np.minimum(s["q"], s["k"]) * s["d"] * (q + k)
    near = work.cached / (1 + (total / (chip.cache * p["hold"])) ** SPILL) if chip.cache else 0.0
    far = total - near + (p["append"] - 1) * fresh
    ramp = p["ramp"] * far / (far + (chip.cache or FILL))
    cached = np.maximum(chip.cache_bandwidth * p["cache"], chip.bandwidth * p["dram"])
    return far / (chip.bandwidth * p["dram"]) + near / cached + ramp
