"""ModernBERT as an encoder and as a decoder: windows in two layers of three, no norm before the first attention."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from roofline.programs.architectures import decoder as parts
from roofline.programs.architectures import encoder as encoders
from roofline.programs.architectures.decoder_keys import DecoderConfig
from roofline.programs.huggingface import groups
from roofline.programs.huggingface.encoders import body
from roofline.programs.huggingface.keys import MAX_LAYERS, Keys, row
from roofline.programs.layers.attention import Attention
from roofline.programs.layers.base import Norm, Run, become
from roofline.programs.layers.feedforward import MLP
from roofline.programs.layers.primitives import activate, linear

# --- the encoder -----------------------------------------------------------------------------------------------------


class ModernBertConfig(encoders.EncoderConfig):
    """An encoder's keys and ModernBERT's own."""

    norm_bias: bool = True  #: Shift of the norms.
    qkv_bias: bool = True  #: Biases of the q, k and v projections.
    out_bias: bool = True  #: Bias of the attention output projection.
    mlp_bias: bool = True  #: Biases of the feed-forward block.


def _attention(c: ModernBertConfig, layer: int) -> Attention:
    return replace(encoders.attention(c, layer), rotates=True, qkv_bias=c.qkv_bias, out_bias=c.out_bias)


def _mlp(c: ModernBertConfig, layer: int) -> MLP:
    return replace(encoders.mlp(c, layer), gated=True, bias=c.mlp_bias)


def _encoder(c: ModernBertConfig) -> encoders.Encoder:
    if encoders.head_width(c) % 2:
        raise ValueError("rotary embedding needs an even head width")
    return encoders.encoder(c, attention=_attention, mlp=_mlp, norm=Norm("layernorm", c.norm_bias), first_norm=False,
                            rotates=True)  # fmt: skip


def _modernbert(c: Keys) -> dict[str, Any]:
    """Read windows of ``local_attention`` but in every third layer, as listed or as a period."""
    listed, size = c.words("layer_types"), c.needed("local_attention")
    c.ignore("classifier_activation", "deterministic_flash_attn", "global_rope_theta", "local_rope_theta")
    step = c.size("global_attn_every_n_layers") or 3
    mixers = groups.layer_types(c, listed, size) if listed else {"pattern": ["full"] + ["sliding"] * (step - 1)}
    return {
        "window": size, **{key: value for key, value in mixers.items() if value},
        **c.switches(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias", norm_bias="norm_bias",
                     head_bias="decoder_bias", dense_bias="classifier_bias"),
    }  # fmt: skip


# --- the decoder -----------------------------------------------------------------------------------------------------


class ModernBertDecoderConfig(DecoderConfig):
    """A decoder's keys and ModernBERT's own."""

    head_transform_bias: bool = False  #: Bias of the projection before the head.


@dataclass(frozen=True)
class TransformedHead(parts.Head):
    """Logits from a projection, the activation and a norm."""

    transform_bias: bool = False
    activation: str = "gelu"
    norm: Norm = field(default_factory=Norm)

    def transform(self, run: Run, x: str) -> str:
        """Return the head's input."""
        x = linear(run.b, x, run.width, "transform", self.transform_bias)
        return self.norm.named("transform_norm")(run, activate(run.b, x, self.activation))


def _head(c: ModernBertDecoderConfig) -> parts.Head:
    return become(TransformedHead, parts.head(c), transform_bias=c.head_transform_bias, activation=c.activation,
                  norm=parts.norm_of(c))  # fmt: skip


def _modernbert_decoder(c: Keys) -> dict[str, Any]:
    """Read windows of half of ``local_attention`` but in every third layer, as listed or as a period."""
    c.ignore("sliding_window", "classifier_activation", "global_rope_theta", "local_rope_theta")
    listed, size = c.words("layer_types"), (c.size("local_attention", least=0) or 0) // 2
    step = c.size("global_attn_every_n_layers", most=MAX_LAYERS) or 3
    usual = {"window": size, "pattern": ["full"] + ["sliding"] * (step - 1)}
    return {
        **(groups.layer_types(c, listed, size) if listed else usual),
        **c.switches(norm_bias="norm_bias", head_bias="decoder_bias", head_transform_bias="classifier_bias"),
    }


ENCODERS = {
    "modernbert": row(body, groups.activation, groups.rotary, _modernbert, pooler=False, segments=0, positions=0,
        pre_norms=True, fused_qkv=True,
        family=replace(encoders.FAMILIES["encoder"], config=ModernBertConfig, compose=_encoder),
        ends={"Model": {}, "ForMaskedLM": {"head": "masked"}}),
}  # fmt: skip
ROWS = {
    "modernbert-decoder": row(*groups.LLAMA, groups.biases, groups.mlp_bias, _modernbert_decoder, norm="layernorm",
        embed_norm=True, first_norm=False, family=parts.variant(ModernBertDecoderConfig, head=_head)),
}  # fmt: skip
