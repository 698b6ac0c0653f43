"""JetMoE: attention whose heads are experts (section 2.3), and experts whose sum has a bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roofline.programs.architectures import decoder as parts
from roofline.programs.architectures.decoder_keys import DecoderConfig
from roofline.programs.huggingface import experts, groups
from roofline.programs.huggingface.keys import Keys, row
from roofline.programs.layers.base import Layer, Run, become
from roofline.programs.layers.feedforward import Experts, Routed
from roofline.programs.layers.primitives import part, rope, split_heads


@dataclass(frozen=True)
class BiasedExperts(Experts):
    """Experts with a bias of what they add up to."""

    def combine(self, run: Run, y: str, routed: Routed) -> str:
        """Add up and add the bias."""
        y = super().combine(run, y, routed)
        return run.b.op("add", y, run.b.weight("sum.bias", (run.width,)), name="combined_biased")


@dataclass(frozen=True)
class ExpertAttention(BiasedExperts):
    """Each token's chosen experts give it a set of query heads and project their outputs; keys and values are shared.

    ``inner`` is the width of a set, ``width`` that of one of its heads.
    """

    width: int = 1
    qkv_bias: bool = False
    rotates: bool = True
    window: int = 0

    def __call__(self, run: Run, x: str) -> str:
        b, routed, kv = run.b, self.route(run, x), self.inner // self.width
        pairs = routed.tokens * self.top_k
        q = self.linear(run, b.op("gather_rows", routed.rows, routed.index, name="routed"), self.inner, "q")
        q = b.op("scatter_add", q, name="q_in_order", t=pairs)
        q = b.op("view", q, name="q_heads", shape=(run.batch, kv * self.top_k, run.new, self.width))
        both = run.linear(x, 2 * self.inner, "kv", self.qkv_bias)
        k, v = (split_heads(b, part(b, both, self.inner, n), kv, f"{n}_heads") for n in ("k", "v"))
        if self.rotates:
            q, k = rope(b, q, run.cos, run.sin, "rope_q"), rope(b, k, run.cos, run.sin, "rope_k")
        keys, values = run.store(k, "k_cache", self.window), run.store(v, "v_cache", self.window)
        y = run.attend(q, keys, values, window=self.window)
        y = b.op("view", y, name="by_pair", shape=(pairs, self.inner))
        y = self.linear(run, b.op("gather_rows", y, routed.index, name="y_routed"), run.width, "out")
        return b.op("view", self.combine(run, y, routed), name="whole", shape=b.shape(x))


def _attend(c: DecoderConfig, layer: int) -> Layer:
    kv = c.kv_of(layer)
    if not c.experts or c.heads != kv * c.top_k:
        raise ValueError("attention by experts needs experts, and heads = kv_heads * top_k")
    return ExpertAttention(c.experts, c.top_k, kv * c.width, router=c.router, width=c.width, qkv_bias=c.qkv_bias,
                           rotates=c.rotates(layer), window=c.window_of(layer))  # fmt: skip


def _feed(c: DecoderConfig, layer: int) -> Layer:
    return parts.with_shared(c, become(BiasedExperts, parts.experts(c)))


def _jetmoe(c: Keys) -> dict[str, Any]:
    """Read a set of ``num_key_value_heads`` query heads for each expert that a token is sent to."""
    c.ignore("num_attention_heads")
    kv = c.needed("num_key_value_heads")
    return {"heads": kv * c.needed("num_experts_per_tok"), "kv_heads": kv, "head_dim": c.needed("head_dim")}


ROWS = {
    "jetmoe": row(groups.body, groups.activation, groups.inner, groups.rotary, _jetmoe, experts.mixtral,
        names={"head_dim": "kv_channels", "hidden_act": "activation_function"},
        family=parts.variant(attend=_attend, feed=_feed)),
}  # fmt: skip
