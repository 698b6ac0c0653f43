"""Checkpoints that differ in a norm, a bias or a gate: BitNet, A.X-K1, OLMo-Hybrid, GPT-NeoX Japanese, Qwen3-Next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from roofline.ir.sizes import Size
from roofline.programs.architectures import decoder as parts
from roofline.programs.architectures.decoder_keys import DecoderConfig
from roofline.programs.layers.attention import Attention, QueryGatedAttention
from roofline.programs.layers.base import Chain, Layer, Norm, Run, become
from roofline.programs.layers.feedforward import MLP


@dataclass(frozen=True)
class NormedAttention(Attention):
    """Attention with a norm before its output projection (BitNet)."""

    def output(self, run: Run, y: str) -> str:
        """Norm and project back to the width of the residual stream."""
        return super().output(run, Norm(name="sub_norm")(run, y))


@dataclass(frozen=True)
class NormedMLP(MLP):
    """A feed-forward block with a norm before its last projection (BitNet)."""

    def down(self, run: Run, y: str, width: Size) -> str:
        """Norm and project back to the width of the input."""
        return super().down(run, Norm(name="sub_norm")(run, y), width)


def _norm_of_experts(c: DecoderConfig, layer: int) -> Layer:
    """Compose experts with a norm of what routed and shared ones add up to."""
    feed = parts.feed(c, layer)
    return Chain((feed, parts.norm_of(c).named("experts_norm"))) if c.feed_of(layer) == "moe" else feed


def _norms_after_attention(c: DecoderConfig, layer: int, *rest: Any) -> Layer:
    """Compose a layer with norms after the branches where it attends, and before them elsewhere."""
    after = c.mixer_of(layer) == "full"
    return parts.block(c.model_copy(update={"pre_norms": not after, "post_norms": after}), layer, *rest)


BITNET = parts.variant(
    attend=lambda c, layer: become(NormedAttention, parts.attention(c, layer)),
    feed=lambda c, layer: become(NormedMLP, parts.mlp(c, c.inner)),
)
NORM_OF_EXPERTS = parts.variant(feed=_norm_of_experts)
NORMS_AFTER_ATTENTION = parts.variant(block=_norms_after_attention)
#: The output projection of attention has a bias in the last layer alone (GPT-NeoX Japanese).
LAST_BIAS = parts.variant(
    attend=lambda c, layer: replace(parts.attention(c, layer), out_bias=layer == c.layers - 1)
)  # fmt: skip
QUERY_GATE = parts.variant(attend=lambda c, layer: become(QueryGatedAttention, parts.attention(c, layer)))
