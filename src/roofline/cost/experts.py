"""A block of experts on one rank: routed tokens through gate and up, activation, down, and back into place.

Which experts a rank must read, and how many tokens its busiest rank gets, follow from the routing
(:func:`routed`). The GEMMs of all experts run as one grouped kernel: each expert's tokens are padded to a tile, its
weights are read once if any token chose it. Around them, kernels sort the tokens, quantise, gather and add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from roofline.cost.machine import fits, knee
from roofline.cost.parameters import Group, Parameter
from roofline.cost.work import Launch
from roofline.ir.dtypes import DTYPES
from roofline.ops.contraction import routing_exponent

GROUP = Group(
    "moe",
    launch=Parameter(2e-5, 5e-6, 2e-4, "s", "fixed cost of the block's kernels in 16 bits"),
    launch_fp8=Parameter(1.0, 0.2, 5.0, "ratio", "that cost with 8- or 4-bit activations against 16-bit"),
    launch_block=Parameter(1.4, 0.2, 5.0, "ratio", "that cost in block-scaled fp8 against 16-bit"),
    dram=Parameter(0.88, 0.05, 1.0, "share", "of main memory's bandwidth for the experts' weights", follows="memory"),
    dram_fp8=Parameter(0.83, 0.05, 1.0, "share", "the same with 8- or 4-bit activations"),
    dram_block=Parameter(0.92, 0.05, 1.0, "share", "the same in block-scaled fp8"),
    coarse=Parameter(0.93, 0.2, 1.0, "ratio", "that bandwidth for more tokens than experts, in tiles of more rows"),
    share=Parameter(0.5, 0.03, 1.5, "share", "of the matrix peak in 16 bits, all experts in one kernel"),
    share_fp8=Parameter(0.5, 0.03, 1.5, "share", "of the matrix peak with 8- or 4-bit activations"),
    share_block=Parameter(0.3, 0.03, 1.5, "share", "of the matrix peak in block-scaled fp8"),
    expert=Parameter(1.3e-7, 1e-9, 2e-5, "s", "for the kernels to turn to another expert"),
    expert_fp8=Parameter(1.1e-7, 1e-9, 2e-5, "s", "the same with 8- or 4-bit activations"),
    expert_block=Parameter(1.1e-7, 1e-9, 2e-5, "s", "the same in block-scaled fp8"),
    step=Parameter(8e-8, 1e-9, 1e-6, "s", "latency of 64 elements along K of either GEMM"),
    moved=Parameter(0.5, 0.05, 2.0, "share", "of main memory's bandwidth for activations between the kernels"),
    moved_fp8=Parameter(0.5, 0.05, 2.0, "share", "the same with 8- or 4-bit activations"),
    moved_block=Parameter(0.5, 0.05, 2.0, "share", "the same in block-scaled fp8"),
    near=Parameter(0.17, 0.02, 3.0, "share", "of the cache's bandwidth for activations that stay there"),
    spread=Parameter(0.24, 0.005, 2.0, "share", "of other ranks' tokens that these kernels process anyway"),
    spread_fp8=Parameter(0.1, 0.005, 2.0, "share", "the same with 8- or 4-bit activations"),
    spread_block=Parameter(0.5, 0.005, 2.0, "share", "the same in block-scaled fp8"),
    cache=Parameter(0.96, 0.05, 3.0, "share", "of the cache's bandwidth for weights that stay there from run to run"),
    resident=Parameter(0.56, 0.05, 1.5, "share", "of the cache that keeps them"),
    lump=Parameter(0.01, 0.01, 1.0, "share", "of a few skewed picks that land on the busiest rank"),
)

#: Rows to which the tokens of an expert are padded: the height of the smallest tiles of the matrix units.
TILE = 16.0
#: Elements along K that one ``step`` takes.
STEP = 64
#: Kernels that hand activations on: the cache holds those of one at a time.
PASSES = 3
#: Width of an expert at which its GEMMs run at half speed [elements].
HALF = 50.0
#: Sharpness of the knee between GEMMs and weights.
KNEE = 1.5
#: Busiest of ``2**x`` ranks, in standard deviations of a rank's load, is about ``BUSIEST * x**0.8``.
BUSIEST, GROWTH = 0.75, 0.8
#: Heaviest expert of a skewed routing before normalisation, as a share of the tokens; against the lightest where there
#: are no more picks than experts (aiconfigurator, collector/helper.py, ``_generate_power_law_distribution``).
HEAVIEST, WIDEST_FEW = 0.8, 200.0
#: Share of the experts that so few skewed picks are counted as few.
FEW = 0.08
#: Quantiles at which a skewed popularity is sampled.
QUANTILES = (np.arange(32) + 0.5) / 32


@dataclass(frozen=True)
class Routed:
    """What the busiest rank gets: (token, expert) pairs, and experts that at least one token chose."""

    pairs: Any
    touched: Any


def routed(distribution: str, tokens: Any, picks: Any, experts: Any, ranks: Any, lump: float = 0.0) -> Routed:
    """The load of the busiest of ``ranks`` that share the experts, for ``tokens`` of all ranks together.

    Balanced: each expert gets as many. Uniform: tokens draw at random. Power law: the popularity of experts is drawn
    from a density ``x**-a`` between 1 and 0.8 ``tokens``, or 0.01 and 2 where there are no more picks than experts (as
    NVIDIA aiconfigurator draws the routings of its tables); ranks then differ by how many popular experts they hold.

    Args:
        distribution: ``balanced``, ``uniform`` or ``power_law_X``.
        tokens: Of all ranks.
        picks: Experts that each token chooses.
        experts: Of all ranks.
        ranks: That the experts are split over.
        lump: Share of a few skewed picks that meet on one rank.
    """
    local, each = experts / ranks, tokens * picks / experts
    few = _fewest(tokens, picks, local, ranks)
    alpha = routing_exponent(distribution)
    if not alpha:
        missed = np.log1p(-np.minimum(picks / experts, 1 - 1e-9))
        known = few if distribution == "balanced" else local * -np.expm1(tokens * missed)
        return Routed(few, np.minimum(known, np.minimum(local, few)))
    sparse = np.minimum(tokens, experts / picks)  # tokens that pick each expert once on average
    load = _skewed(alpha, HEAVIEST * tokens, each, few, local, ranks)
    least = _skewed(alpha, WIDEST_FEW, sparse * picks / experts, _fewest(sparse, picks, local, ranks), local, ranks)
    many, lumped = tokens > sparse, lump * np.minimum(tokens * picks, FEW * experts)
    pairs = np.maximum(np.where(many, np.maximum(load.pairs, least.pairs), least.pairs), lumped)
    pairs = np.minimum(pairs, tokens * np.minimum(picks, local))
    touched = np.where(many, np.maximum(load.touched, least.touched), least.touched)
    return Routed(pairs, np.minimum(np.maximum(touched, lumped), np.minimum(local, pairs)))


def _fewest(tokens: Any, picks: Any, local: Any, ranks: Any) -> Any:
    """Pairs of a rank where all get as many."""
    return np.minimum(np.ceil(tokens * picks / ranks), tokens * np.minimum(picks, local))


def _skewed(alpha: float, widest: Any, each: Any, few: Any, local: Any, ranks: Any) -> Routed:
    """The load of the busiest rank where an expert gets ``each`` tokens on average, the heaviest ``widest`` times the
    lightest's.
    """
    popular = _popularity(alpha, widest)
    deviation = np.sqrt(np.maximum((popular**2).mean(-1) - 1, 0.0))
    apart = BUSIEST * np.log2(np.maximum(ranks, 1.0)) ** GROWTH / np.sqrt(local)
    busiest = np.maximum(np.minimum(1 + deviation * apart, np.minimum(popular[..., -1], ranks)), 1.0)
    share = np.minimum((each * busiest)[..., None] * popular, 1.0).mean(-1)
    return Routed(np.maximum(each * local * busiest, few), np.maximum(share * local, 1.0))


def _popularity(alpha: float, widest: Any) -> Any:
    """Popularity of experts at :data:`QUANTILES`, in the last axis; their mean is 1."""
    power = 1 - alpha if abs(1 - alpha) > 1e-6 else 1e-6
    widest = np.maximum(np.asarray(widest, dtype=np.float64), 2.0)
    drawn = ((widest**power - 1)[..., None] * QUANTILES + 1) ** (1 / power)
    return drawn / drawn.mean(-1, keepdims=True)


def seconds(work: Launch, p: Mapping[str, float]) -> Any:
    """Time of one block of experts on the busiest rank [s]."""
    s = {axis: np.asarray(size, dtype=np.float64) for axis, size in work.sizes.items()}
    t, h, i, u = np.broadcast_arrays(s["t"], s["h"], s["i"], s["u"])
    experts, picks = s["e"] * s["ranks"], s["picks"]
    load = routed(str(work.row.kernel.attrs["distribution"]), t, picks, experts, s["ranks"], p["lump"])
    kind = _kind(work)
    padded = np.maximum(load.pairs + load.touched * TILE / 2, load.touched * TILE)
    gemms = 2 * padded * h * (u + i) * (1 + HALF / i) / (work.peak * p[f"share{kind}"])
    stored = load.touched * h * (u + i) * float(DTYPES[work.row.kernel.stored[1]].bytes)
    time = knee([gemms, _reading(work, p, stored, t > s["e"])], KNEE) + p["step"] * (h + i) / STEP
    start = p["launch"] * (p[f"launch{kind}"] if kind else 1.0) + p[f"expert{kind}"] * load.touched
    return start + time + _between(work, p, load, (t, h, i, u, picks))


def _reading(work: Launch, p: Mapping[str, float], stored: Any, many: Any) -> Any:
    """Time to read weights, which a warm cache keeps from run to run if they fit it [s].

    For more tokens than experts kernels take tiles of more rows, that read weights slower: 64 x 64 x 32 instead of
    16 x 32 x 64 in vLLM (``get_default_config`` of vllm/model_executor/layers/fused_moe/fused_moe.py).
    """
    chip, dram = work.machine, p[f"dram{_kind(work)}"] * np.where(many, p["coarse"], 1.0)
    near = stored * fits(stored, chip.cache * p["resident"]) if work.regime == "warm" else 0.0
    return (stored - near) / (chip.bandwidth * dram) + near / (chip.cache_bandwidth * p["cache"])


def _between(work: Launch, p: Mapping[str, float], load: Routed, sizes: tuple[Any, ...]) -> Any:
    """Activations that pass from kernel to kernel, through the cache if they fit it [s].

    In and out, results written, activated and read, added up.
    """
    (t, h, i, u, picks), chip, kind = sizes, work.machine, _kind(work)
    rows = load.pairs + p[f"spread{kind}"] * np.maximum(t * picks - load.pairs, 0.0)
    total = (2 * t * h + rows * (2 * h + 2 * u + 2 * i)) * work.element
    near = total * fits(total / PASSES, chip.cache * p["resident"])
    return (total - near) / (chip.bandwidth * p[f"moved{kind}"]) + near / (chip.cache_bandwidth * p["near"])


def _kind(work: Launch) -> str:
    """Suffix of the parameters for the format of the weights; 4-bit weights alone run as 16 bits."""
    stored = work.row.kernel.stored[1]
    if stored == "fp8-block":
        return "_block"
    return "_fp8" if DTYPES[work.dtype].bits <= 8 else ""
