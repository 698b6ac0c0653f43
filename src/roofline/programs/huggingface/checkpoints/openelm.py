"""OpenELM: heads and inner sizes that grow from layer to layer (arXiv 2404.14619, section 2.1).

The published code is remote: https://huggingface.co/apple/OpenELM-270M/blob/main/modeling_openelm.py.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from roofline.programs.architectures import decoder as parts
from roofline.programs.architectures.config import Positive, in_turn
from roofline.programs.architectures.decoder_keys import DecoderConfig
from roofline.programs.huggingface import groups
from roofline.programs.huggingface.keys import MAX_SIZE, Keys, row
from roofline.programs.layers.base import Layer


class UnevenConfig(DecoderConfig):
    """A decoder's keys, and sizes of each layer."""

    heads_pattern: tuple[Positive, ...] = Field((), max_length=2000)  #: Query heads of each layer, in turn.
    #: Inner size of the feed-forward block in each layer, in turn.
    inner_pattern: tuple[Positive, ...] = Field((), max_length=2000)


def _attention(c: UnevenConfig, layer: int) -> Layer:
    return parts.attention(c.model_copy(update={"heads": in_turn(c.heads_pattern, layer, c.heads)}), layer)


def _feed(c: UnevenConfig, layer: int) -> Layer:
    return parts.mlp(c, in_turn(c.inner_pattern, layer, c.inner))


def _each(c: Keys, key: str) -> list[int]:
    """Return a size of each layer."""
    listed = c.sizes(key)
    if listed is None or len(listed) != len(c.layers) or not all(listed):
        c.fail(key, f"expected a number from 1 for each of {len(c.layers)} layers, given {str(listed)[:60]}")
    return listed


def _inner(c: Keys) -> list[int]:
    """Return multiples of the width, rounded to a multiple of a divisor, and up where that loses more than a tenth."""
    factors = c.items("ffn_multipliers", "numbers", lambda factor: True) or []
    if len(factors) != len(c.layers):
        c.fail("ffn_multipliers", f"expected a number for each of {len(c.layers)} layers, given {str(factors)[:60]}")
    hidden, unit = c.needed("hidden_size"), c.needed("ffn_dim_divisor")
    sizes = []
    for factor in factors:
        size = min(c.real("ffn_multipliers", factor) * hidden, MAX_SIZE)
        rounded = max(unit, int(size + unit / 2) // unit * unit)
        sizes.append(rounded + unit * (rounded < 0.9 * size))
    return sizes


def _openelm(c: Keys) -> dict[str, Any]:
    """Read lists of heads and of multiples of the width."""
    c.ignore("qkv_multipliers", "num_gqa_groups")  # the lists follow from them
    heads, inner = _each(c, "num_query_heads"), _inner(c)
    if c.get("normalization_layer_name") not in (None, "rms_norm"):
        c.fail("normalization_layer_name", "allowed: rms_norm")
    if c.get("ffn_with_glu") is False:
        c.fail("ffn_with_glu", "blocks without a gate are not understood; allowed: true")
    return {
        "heads": heads[0], "heads_pattern": heads, "kv_pattern": _each(c, "num_kv_heads"), "inner_pattern": inner,
        **c.needs(head_dim="head_dim"), **c.switches(qk_norm="normalize_qk_projections"),
    }  # fmt: skip


ROWS = {
    "openelm": row(
        groups.body, groups.activation, _openelm,
        names={"hidden_size": "model_dim", "num_hidden_layers": "num_transformer_layers",
               "hidden_act": "activation_fn_name", "tie_word_embeddings": "share_input_output_layers"},
        family=parts.variant(UnevenConfig, attend=_attention, feed=_feed),
    ),
}  # fmt: skip
