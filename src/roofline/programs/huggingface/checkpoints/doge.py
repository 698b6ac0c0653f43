"""Doge: a bias of the scores from the values, and a residual stream that is weighted before something is added."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roofline.programs.architectures import decoder as parts
from roofline.programs.architectures.decoder_keys import DecoderConfig
from roofline.programs.huggingface import groups
from roofline.programs.huggingface.keys import Keys, row
from roofline.programs.layers.attention import Attention
from roofline.programs.layers.base import Layer, Residual, Run, become
from roofline.programs.layers.primitives import merge_heads


@dataclass(frozen=True)
class DynamicMaskAttention(Attention):
    """Attention with a mask ``exp(a * softplus(values W))`` for each key and key-value head, before what it drops."""

    def attend(self, run: Run, q: str, k: str, v: str, bias: str = "") -> str:
        """Attend with the mask as a bias of the scores."""
        return super().attend(run, q, k, v, self.mask(run, v))

    def mask(self, run: Run, values: str) -> str:
        """Return the mask ``(B, heads, 1, K)``."""
        b, kv = run.b, self.kv_heads
        batch, _, held, _ = b.shape(values)
        steps = run.linear(merge_heads(b, values, "values_whole"), kv, "dt", self.qkv_bias)
        scaled = b.op("mul", b.op("softplus", steps, name="dt_softplus"), b.weight("dt.a", (kv,)), name="dt_scaled")
        mask = b.op("view", b.op("exp", scaled, name="dt_exp"), name="dt_heads", shape=(batch, kv, 1, 1, held))
        mask = b.op("expand", mask, name="dt_all", shape=(batch, kv, self.heads // kv, 1, held))
        return b.op("view", mask, name="dt_mask", shape=(batch, self.heads, 1, held))


@dataclass(frozen=True)
class WeightedResidual(Residual):
    """A residual that is multiplied by a learned vector before something is added."""

    def carry(self, run: Run, x: str) -> str:
        """Return the weighted residual."""
        return run.b.op("mul", x, run.b.weight("residual.weight", (run.width,)), name="residual_weighted")


def _attend(c: DecoderConfig, layer: int) -> Layer:
    return become(DynamicMaskAttention, parts.attention(c, layer))


def _doge(c: Keys) -> dict[str, Any]:
    """Check what is not understood: the mask drops all but the ``keep_window_size`` largest of longer contexts."""
    c.ignore("num_experts", "num_experts_per_tok")
    if c.switch("is_moe"):
        c.fail("is_moe", "experts found by product keys are not understood yet; allowed: false")
    c.notes.append(f"keep_window_size = {c.needed('keep_window_size')}: longer contexts are counted as attended whole")
    return {}


ROWS = {
    "doge": row(*groups.LLAMA, groups.window, groups.biases, groups.mlp_bias, _doge, qk_norm=True,
        family=parts.variant(attend=_attend, residual=WeightedResidual)),
}  # fmt: skip
