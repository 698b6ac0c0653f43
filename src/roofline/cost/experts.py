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

from roofline.cost.machine import knee
from roofline.cost.parameters import Group, Parameter
from roofline.cost.work import Launch
from roofline.ir.dtypes import DTYPES
from roofline.ops.contraction import routing_exponent

GROUP = Group(
    "moe",
    launch=Parameter(2.5e-5, 8e-6, 1e-4, "s", "fixed cost of the block's kernels in 16 bits"),
    launch_fp8=Parameter(1.0, 0.4, 2.5, "ratio", "that cost with 8- or 4-bit activations against 16-bit"),
    launch_block=Parameter(1.4, 0.4, 2.5, "ratio", "that cost in block-scaled fp8 against 16-bit"),
    dram=Parameter(0.88, 0.05, 1.0, "share", "of main memory's bandwidth for the experts' weights", follows="memory"),
    dram_fp8=Parameter(0.85, 0.05, 1.0, "share", "the same for fp8 weights with one scale"),
    ramp=Parameter(5e-6, 1e-6, 3e-5, "s", "lost before the GEMMs stream, reached after as long"),
    share=Parameter(0.45, 0.05, 1.0, "share", "of the matrix peak in 16 bits, all experts in one kernel"),
    share_fp8=Parameter(0.5, 0.03, 1.0, "share", "of the matrix peak with 8- or 4-bit activations"),
    share_block=Parameter(0.25, 0.03, 1.0, "share", "of the matrix peak in block-scaled fp8"),
    moved=Parameter(0.6, 0.25, 1.5, "share", "of main memory's bandwidth for activations between the kernels"),
    spread=Parameter(0.1, 0.01, 1.5, "share", "of other ranks' tokens that these kernels process anyway"),
    spread_fp8=Parameter(0.1, 0.01, 1.5, "share", "the same with 8- or 4-bit activations"),
    lump=Parameter(0.1, 0.01, 1.0, "share", "of a few skewed picks that land on the busiest rank"),
)

#: Tokens of an expert to which its GEMMs are padded.
TILE = 24.0
#: Width of an expert at which its GEMMs run at half speed [elements].
HALF = 50.0
#: Sharpness of the knee between GEMMs and weights.
KNEE = 1.5
#: Busiest of ``2**x`` ranks, in standard deviations of a rank's load, is about ``BUSIEST * x**0.8``.
BUSIEST, GROWTH = 0.75, 0.8
#: Heaviest expert of a skewed routing before normalisation, as a share of the tokens.
HEAVIEST = 0.8
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
    from a density ``x**-a`` between 1 and 0.8 ``tokens`` (as NVIDIA aiconfigurator draws the routings of its tables);
    ranks then differ by how many popular experts they hold.

    Args:
        distribution: ``balanced``, ``uniform`` or ``power_law_X``.
        tokens: Of all ranks.
        picks: Experts that each token chooses.
        experts: Of all ranks.
        ranks: That the experts are split over.
        lump: Share of a few skewed picks that meet on one rank.
    """
    local, each = experts / ranks, tokens * picks / experts
    few = np.minimum(np.ceil(tokens * picks / ranks), tokens * np.minimum(picks, local))
    alpha = routing_exponent(distribution)
    if not alpha:
        missed = np.log1p(-np.minimum(picks / experts, 1 - 1e-9))
        known = few if distribution == "balanced" else local * -np.expm1(tokens * missed)
        return Routed(few, np.minimum(known, np.minimum(local, few)))
    popular = _popularity(alpha, tokens)
    deviation = np.sqrt(np.maximum((popular**2).mean(-1) - 1, 0.0))
    apart = BUSIEST * np.log2(np.maximum(ranks, 1.0)) ** GROWTH / np.sqrt(local)
    busiest = np.maximum(np.minimum(1 + deviation * apart, np.minimum(popular[..., -1], ranks)), 1.0)
    share = np.minimum((each * busiest)[..., None] * popular, 1.0).mean(-1)
    lumped = lump * np.minimum(tokens * picks, FEW * experts)
    pairs = np.maximum(np.maximum(each * local * busiest, few), lumped)
    pairs = np.minimum(pairs, tokens * np.minimum(picks, local))
    return Routed(pairs, np.minimum(np.maximum(np.maximum(share * local, 1.0), lumped), np.minimum(local, pairs)))


def _popularity(alpha: float, tokens: Any) -> Any:
    """Popularity of experts at :data:`QUANTILES`, in the last axis; their mean is 1."""
    power = 1 - alpha if abs(1 - alpha) > 1e-6 else 1e-6
    widest = np.maximum(HEAVIEST * np.asarray(tokens, dtype=np.float64), 2.0)
    drawn = ((widest**power - 1)[..., None] * QUANTILES + 1) ** (1 / power)
    return drawn / drawn.mean(-1, keepdims=True)


def seconds(work: Launch, p: Mapping[str, float]) -> Any:
    """Time of one block of experts on the busiest rank [s]."""
    s = {axis: np.asarray(size, dtype=np.float64) for axis, size in work.sizes.items()}
    t, h, i, u = np.broadcast_arrays(s["t"], s["h"], s["i"], s["u"])
    experts, picks = s["e"] * s["ranks"], s["picks"]
    load = routed(str(work.row.kernel.attrs["distribution"]), t, picks, experts, s["ranks"], p["lump"])
    kind = _kind(work)
    dram = p["dram_fp8"] if kind == "_fp8" else p["dram"]
    weights = load.touched * h * (u + i) * float(DTYPES[work.row.kernel.stored[1]].bytes)
    padded = np.maximum(load.pairs + load.touched * TILE / 2, load.touched * TILE)
    gemms = 2 * padded * h * (u + i) * (1 + HALF / i) / (work.peak * p[f"share{kind}"])
    time = knee([gemms, weights / (work.machine.bandwidth * dram)], KNEE)
    start = p["launch"] * (p[f"launch{kind}"] if kind else 1.0)
    return start + time + p["ramp"] * time / (time + p["ramp"]) + _between(work, p, load, (t, h, i, u, picks))


def _between(work: Launch, p: Mapping[str, float], load: Routed, sizes: tuple[Any, ...]) -> Any:
    """Activations that pass from kernel to kernel: in and out, results written, activated and read, added up [s]."""
    t, h, i, u, picks = sizes
    spread = p["spread_fp8" if _kind(work) else "spread"]
    rows = load.pairs + spread * np.maximum(t * picks - load.pairs, 0.0)
    elements = 2 * t * h + rows * (2 * h + 2 * u + 2 * i)
    return elements * work.element / (work.machine.bandwidth * p["moved"])


def _kind(work: Launch) -> str:
    """Suffix of the parameters for the format of the weights; 4-bit weights alone run as 16 bits."""
    stored = work.row.kernel.stored[1]
    if stored == "fp8-block":
        return "_block"
    return "_fp8" if DTYPES[work.dtype].bits <= 8 else ""
