"""MiMo-V2: values of a width of their own, sinks and twice the key-value heads in layers with a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from roofline.programs.architectures import decoder as parts
from roofline.programs.architectures.config import Positive
from roofline.programs.architectures.decoder_keys import DecoderConfig
from roofline.programs.huggingface import experts, groups
from roofline.programs.huggingface.keys import Keys, row
from roofline.programs.layers.attention import Attention
from roofline.programs.layers.base import Layer, Run, become


class MiMoConfig(DecoderConfig):
    """A decoder's keys and MiMo's own."""

    value_width: Positive | None = None  #: Width of a value head, that of a key head when absent.
    value_scale: bool = False  #: Whether values are multiplied by a constant.


@dataclass(frozen=True)
class MiMoAttention(Attention):
    """Attention whose values have a width of their own and may be scaled."""

    value_width: int = 0
    value_scale: bool = False

    @property
    def widths(self) -> tuple[int, int, int]:
        """Columns of queries, keys and values."""
        return self.heads * self.width, self.kv_heads * self.width, self.kv_heads * self.value_width

    def values(self, run: Run, v: str) -> str:
        """Return the values as they are attended to."""
        return run.b.op("mul_scalar", v, name="v_scaled") if self.value_scale else v


def _attend(c: MiMoConfig, layer: int) -> Layer:
    return become(MiMoAttention, parts.attention(c, layer), sinks=c.sinks and c.window_of(layer) > 0,
                  value_width=c.value_width or c.width, value_scale=c.value_scale)  # fmt: skip


def _mimo(c: Keys) -> dict[str, Any]:
    """Read the window, which may be given without the query itself, and the heads that follow from it."""
    size = c.size("sliding_window_size")
    mixers = groups.window(c.having(sliding_window=size + 1) if size else c)
    kv = c.needed("num_key_value_heads")
    twice = [kv * (1 + (mixer == "sliding")) for mixer in mixers.get("pattern", ("full",))]
    return {**mixers, "kv_pattern": twice, "value_width": c.needed("v_head_dim"),
            "value_scale": c.number("attention_value_scale") not in (0, 1)}  # fmt: skip


def _experts(c: Keys) -> dict[str, Any]:
    """Read experts in all layers but the first, or where a later spelling or an earlier one says."""
    c.ignore("topk_method", "scoring_func", "routed_scaling_factor", "n_shared_experts")
    kinds = c.words("mlp_layer_types") or experts.flags(
        c, "moe_layer_freq", c.get("moe_layer_freq"), ("dense", "sparse"))  # fmt: skip
    kinds = c.per_layer("mlp_layer_types", kinds, ("dense", "sparse"))
    feeds = experts.sparse(c, lambda layer: kinds[layer] == "sparse" if kinds else layer > 0)
    return experts.routed(c, "n_routed_experts", "num_experts_per_tok", feeds, c.needed("moe_intermediate_size"))


def _first_and_every_sixth(c: Keys) -> list[str]:
    return ["full" if layer == 0 or (layer + 1) % 6 == 0 else "sliding" for layer in c.layers]


ROWS = {
    "mimo_v2_flash": row(
        *groups.LLAMA, groups.input_biases, _mimo, _experts, router="sigmoid", sinks=True,
        defaults={"partial_rotary_factor": 0.334}, mixers=_first_and_every_sixth,
        idle={"hybrid_layer_pattern", "hybrid_block_size", "add_swa_attention_sink_bias",
              "swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim"},
        family=parts.variant(MiMoConfig, attend=_attend),
    ),
}  # fmt: skip
