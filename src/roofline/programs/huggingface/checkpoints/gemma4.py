"""Gemma 4: layers whose heads, key-value heads and inner sizes differ, shared caches, embeddings per layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import Field

from roofline.programs.architectures import decoder as parts
from roofline.programs.architectures.config import Count, Positive, in_turn
from roofline.programs.architectures.decoder_keys import DecoderConfig
from roofline.programs.huggingface import groups
from roofline.programs.huggingface.keys import Keys, row
from roofline.programs.layers.attention import Attention
from roofline.programs.layers.base import Chain, Layer, Norm, Run, Scaled, become
from roofline.programs.layers.primitives import activate, embed, linear, norm, part


class Gemma4Config(DecoderConfig):
    """A decoder's keys and Gemma 4's own."""

    width_pattern: tuple[Positive, ...] = Field((), max_length=2000)  #: Width of a head in each layer, in turn.
    #: Inner size of the feed-forward block in each layer, in turn.
    inner_pattern: tuple[Positive, ...] = Field((), max_length=2000)
    #: Whether layers that attend to all positions have no value projection: values are the projected keys.
    keys_as_values: bool = False
    #: Last layers that have no keys and values of their own, but those of the last layer of their kind before them.
    shared_layers: Count = 0
    layer_embed: Count = 0  #: Width of embeddings that each layer adds of its own, 0 for none.
    layer_vocab: Positive | None = None  #: Rows of their table, ``vocab`` when absent.


@dataclass(frozen=True)
class Gemma4Attention(Attention):
    """Attention with normed values, whose keys and values may be those of an earlier layer."""

    borrows: bool = False  #: Whether the layer attends to what another has left.
    keys_as_values: bool = False  #: Whether values are the projected keys.
    kind: str = ""  #: What layers of the same kind leave theirs under.

    def project(self, run: Run, x: str) -> tuple[str, str, str]:
        """Return queries, and keys and values where the layer has them."""
        b, (queries, keys, _) = run.b, self.widths
        if self.borrows:
            return run.linear(x, queries, "q", self.qkv_bias), "", ""
        if not self.keys_as_values:
            return super().project(run, x)
        qk = run.linear(x, queries + keys, "qk", self.qkv_bias)
        q, k = part(b, qk, queries, "q"), part(b, qk, keys, "k")
        return q, k, k

    def keys_and_values(self, run: Run, k: str, v: str) -> tuple[str, str]:
        """Return what the last layer of the kind with keys and values of its own attends to."""
        if not self.borrows:
            run.shared[self.kind] = super().keys_and_values(run, k, v)
        keys, values = run.shared[self.kind]
        return keys, values

    def values(self, run: Run, v: str) -> str:
        """Return the values normed, without a weight."""
        return norm(run.b, v, "rmsnorm", "v_norm", scale=False)


@dataclass(frozen=True)
class LayerTable(parts.Embeddings):
    """The token table, and one of what each layer adds: its rows and a projection of the embeddings, for all layers."""

    layers: int = 0
    width_of_layer: int = 0
    vocab: int = 0

    def __call__(self, run: Run, ids: str) -> str:
        x = super().__call__(run, ids)
        if self.width_of_layer:
            with run.b.scope("layer_embed"):
                run.shared["layer_embed"] = self.of_layers(run, ids, x)
        return x

    def of_layers(self, run: Run, ids: str, x: str) -> str:
        """Return the embeddings of all layers, beside each other."""
        b, columns = run.b, self.layers * self.width_of_layer
        table = b.weight("embed.weight", (self.vocab, columns))
        rows = b.op("mul_scalar", embed(b, table, ids, "embed"), name="embed_scaled")
        shape = (run.batch, run.new, self.layers, self.width_of_layer)
        projected = b.op("mul_scalar", linear(b, x, columns, "project"), name="project_scaled")
        normed = norm(b, b.op("view", projected, name="by_layer", shape=shape), "rmsnorm", "norm")
        both = b.op("add", normed, b.op("view", rows, name="rows_by_layer", shape=shape), name="sum")
        return b.op("view", b.op("mul_scalar", both, name="scaled"), name="all", shape=(run.batch, run.new, columns))


@dataclass(frozen=True)
class OwnEmbeddings:
    """A layer's own embeddings, gated by the residual and projected to its width."""

    width: int
    activation: str
    norm: Norm

    def __call__(self, run: Run, x: str) -> str:
        b = run.b
        with b.scope("layer_embed"):
            gate = activate(b, run.linear(x, self.width, "gate"), self.activation)
            own = part(b, run.shared["layer_embed"], self.width, "own")
            y = run.linear(b.op("mul", gate, own, name="gated"), run.width, "project")
            return b.op("add", x, self.norm(run, y), name="residual")


def _attend(c: Gemma4Config, layer: int) -> Layer:
    borrows, kind = layer >= c.layers - c.shared_layers, c.mixer_of(layer)
    if borrows and kind not in {c.mixer_of(other) for other in range(c.layers - c.shared_layers)}:
        raise ValueError(f"shared_layers = {c.shared_layers} leaves no {kind} layer to share with")
    attention = replace(parts.attention(c, layer), width=in_turn(c.width_pattern, layer, c.width))
    same = c.keys_as_values and not attention.window
    return become(Gemma4Attention, attention, borrows=borrows, keys_as_values=same, kind=kind)


def _feed(c: Gemma4Config, layer: int) -> Layer:
    return parts.mlp(c, in_turn(c.inner_pattern, layer, c.inner))


def _block(c: Gemma4Config, layer: int, *rest: Any) -> Layer:
    own = [OwnEmbeddings(c.layer_embed, c.activation, parts.norm_of(c))] if c.layer_embed else []
    return Chain([parts.block(c, layer, *rest), *own, Scaled("layer_scaled")])


def _embeddings(c: Gemma4Config) -> LayerTable:
    return become(LayerTable, parts.embeddings(c), layers=c.layers, width_of_layer=c.layer_embed,
                  vocab=c.layer_vocab or c.vocab)  # fmt: skip


def _compose(c: Gemma4Config) -> parts.Decoder:
    widths = sorted(set(c.width_pattern) - {c.width})
    return parts.decoder(c, attend=_attend, feed=_feed, block=_block, embeddings=_embeddings, widths=widths)


# --- the config ------------------------------------------------------------------------------------------------------


def _gemma4(c: Keys) -> dict[str, Any]:
    """Read which layers attend to what, with heads of which width, and whose keys and values."""
    if c.switch("enable_moe_block"):
        c.fail("enable_moe_block", "experts beside a dense block are not understood yet; allowed: false")
    c.ignore("num_experts", "top_k_experts", "moe_intermediate_size")
    pattern = _pattern(c)
    width, kv = c.needed("head_dim"), c.needed("num_key_value_heads")
    same, wide = c.switch("attention_k_eq_v"), c.size("global_head_dim") or 512
    few = (c.size("num_global_key_value_heads") if same else None) or kv
    shared, inner = c.size("num_kv_shared_layers", least=0) or 0, c.needed("intermediate_size")
    double = c.switch("use_double_wide_mlp")
    shapes = _listed(c, [(wide, few) if mixer == "full" else (width, kv) for mixer in pattern], (width, kv))
    if c.get("use_bidirectional_attention"):
        c.notes.append("use_bidirectional_attention: prefill is counted with causal attention")
    return {
        "head_dim": shapes[0][0],
        "width_pattern": [shape[0] for shape in shapes],
        "kv_pattern": [shape[1] for shape in shapes],
        "inner_pattern": [inner * (1 + (double and layer >= len(c.layers) - shared)) for layer in c.layers],
        "pattern": pattern,
        "window": c.size("sliding_window") or None,
        "keys_as_values": same,
        "shared_layers": shared,
        "layer_embed": c.size("hidden_size_per_layer_input", least=0) or 0,
        "layer_vocab": c.size("vocab_size_per_layer_input"),
    }


def _pattern(c: Keys) -> list[str]:
    """Return five windows and full attention in turn, and always full attention at the end."""
    listed = c.words("layer_types")
    if listed is None:
        usual = ["full" if (layer + 1) % 6 == 0 else "sliding" for layer in c.layers]
    else:
        usual = groups.layer_types(c, listed, c.size("sliding_window")).get("pattern") or ["full"] * len(c.layers)
    return [*usual[:-1], "full"]


def _listed(c: Keys, usual: list[tuple[int, int]], base: tuple[int, int]) -> list[tuple[int, int]]:
    """Return head widths and key-value heads from a table of what differs in each layer, where there is one."""
    table = c.mapping("per_layer_config")
    if not table:
        return usual
    by_layer = {int(key): own for key, own in table.items() if str(key).isdecimal() and len(str(key)) < 6}
    shapes = []
    for layer in range(len(usual)):
        own = by_layer.get(layer) or {}
        if not isinstance(own, Mapping) or set(own) - {"head_dim", "num_key_value_heads"}:
            c.fail("per_layer_config", f"{str(own)[:60]!r} is not understood; allowed: head_dim, num_key_value_heads")
        inside = Keys(c.where, own, {"head_dim": base[0], "num_key_value_heads": base[1]}, c.kind)
        shapes.append((inside.needed("head_dim"), inside.needed("num_key_value_heads")))
    return shapes


ROWS = {
    "gemma4_text": row(groups.body, groups.heads, groups.activation, groups.inner, groups.rotary, groups.biases,
        groups.softcaps, _gemma4, embedding_scale=True, post_norms=True, qk_norm=True,
        family=replace(parts.FAMILIES["decoder"], config=Gemma4Config, compose=_compose)),
}  # fmt: skip
