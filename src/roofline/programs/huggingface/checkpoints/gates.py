"""Laguna, Beam, LFM3 and Bailing's hybrid: a gate of attention's output that has a projection of its own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

from pydantic import Field

from roofline.programs.architectures import decoder as parts
from roofline.programs.architectures.config import Positive, in_turn
from roofline.programs.architectures.decoder_keys import DecoderConfig
from roofline.programs.huggingface import experts, groups
from roofline.programs.huggingface.keys import Keys, row
from roofline.programs.layers.attention import OutputGate
from roofline.programs.layers.base import Layer


class GateConfig(DecoderConfig):
    """A decoder's keys and those of the gate."""

    output_gate: Literal["none", "head", "width"] = "none"  #: One number for each ``head``, or for the whole ``width``.
    #: Query heads of each layer, in turn, where they are not all ``heads``.
    heads_pattern: tuple[Positive, ...] = Field((), max_length=2000)


def gated(**options: Any) -> parts.Compose:
    """Return a composer of attention of either kind with a gate of its output."""

    def attend(c: GateConfig, layer: int) -> Layer:
        gate = OutputGate(c.output_gate == "width", **options) if c.output_gate != "none" else None
        if c.mla:
            return replace(parts.latent_attention(c, layer), gate=gate)
        return replace(parts.attention(c, layer), heads=in_turn(c.heads_pattern, layer, c.heads), gate=gate)

    return attend


def _laguna(c: Keys) -> dict[str, Any]:
    """Read query heads of each layer, and a gate of attention for each head or for each of its columns."""
    gates = {"True": "head", "per-head": "head", "False": "width", "per-element": "width"}
    gating, listed = str(c.get("gating")), c.sizes("num_attention_heads_per_layer")
    if gating not in gates:
        c.fail("gating", f"{gating[:60]!r} is not understood; allowed: true, per-head, per-element")
    if listed is not None and (len(listed) != len(c.layers) or not all(listed)):
        c.fail("num_attention_heads_per_layer", f"wanted a number from 1 for each layer, given {str(listed)[:60]}")
    c.notes.append("rope_parameters: heads are counted as rotated whole in all layers")
    return {"output_gate": gates[gating], "heads_pattern": listed}


def _laguna_experts(c: Keys) -> dict[str, Any]:
    """Read experts where ``mlp_layer_types`` says, and a shared block of its own size."""
    routed = experts.deepseek(c)
    return {**routed, "shared_intermediate": c.size("shared_expert_intermediate_size", least=0) or 0} if routed else {}


def _every_sixth_and_last(c: Keys) -> list[str]:
    return ["full" if (layer + 1) % 6 == 0 or layer == len(c.layers) - 1 else "sliding" for layer in c.layers]


ROWS = {
    "laguna": row(*groups.BASE, groups.inner, groups.window, groups.biases, _laguna_experts, _laguna, qk_norm=True,
        router="sigmoid", score_bias=True, names=groups.PLAIN_EXPERTS, defaults={"first_k_dense_replace": 1},
        mixers=groups.all_full, family=parts.variant(GateConfig, attend=gated(activation="softplus"))),
    "beam": row(*groups.LLAMA, groups.window, groups.rope_in_windows, groups.biases, groups.softcaps, experts.deepseek,
        qk_norm=True, post_norms=True, router="sigmoid", residual_scale=True, output_gate="width",
        names=groups.PLAIN_EXPERTS, defaults={"first_k_dense_replace": 3}, mixers=_every_sixth_and_last,
        family=parts.variant(GateConfig, attend=gated(bias=True))),
}  # fmt: skip
