"""Encoder-decoder language models of the T5 kind, as Hugging Face's T5ForConditionalGeneration runs them.

``forward`` runs ``S`` encoder and ``S`` decoder positions. ``decode`` adds one token a sequence against a decoder
cache of ``C`` positions and cross-attention keys and values of ``S`` encoder positions, kept from the first step.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from roofline.build import Builder
from roofline.families import blocks
from roofline.families.config import Config, Family, Layers, Positive
from roofline.families.encoder import qkv
from roofline.graph import Graph
from roofline.sizes import Size, symbol


class Seq2SeqConfig(Config):
    """Sizes and options of an encoder-decoder.

    Attributes:
        hidden: Width of the residual stream.
        encoder_layers: Blocks of the encoder.
        decoder_layers: Blocks of the decoder.
        heads: Attention heads.
        head_dim: Width of a head; heads together need not be as wide as ``hidden``.
        intermediate: Inner size of the feed-forward block.
        vocab: Rows of the token table.
        buckets: Rows of each stack's table of relative positions.
        activation: Of the feed-forward block.
        gated: Whether the feed-forward block has a gate (T5 1.1).
        tied: Whether the head is the token table, with the logits scaled.
        fused_qkv: One projection for q, k and v; T5 runs three.
    """

    hidden: Positive
    encoder_layers: Layers
    decoder_layers: Layers
    heads: Positive
    head_dim: Positive
    intermediate: Positive
    vocab: Positive
    buckets: Positive = 32
    activation: Literal["relu", "gelu_tanh", "gelu", "silu"] = "relu"
    gated: bool = False
    tied: bool = True
    fused_qkv: bool = False


def _build(phase: str, b: Builder, c: Seq2SeqConfig) -> Graph:
    batch, source, decode = symbol("B"), symbol("S"), phase == "decode"
    new, held = (1, symbol("C")) if decode else (source, source)
    table = b.weight("embed.weight", (c.vocab, c.hidden))
    memory = _memory_weights(b, c, table, batch, source, decode)
    caches: list[str] = []
    with b.scope("decoder"):
        x = blocks.embed(b, table, b.input("ids", (batch, new), "int64"), "embed")
        bias = _relative_bias(b, c, new, held)
        for layer in range(c.decoder_layers):
            with b.scope(f"layers.{layer}"):
                x = _self_attention(b, c, x, bias, True, held if decode else None, caches)
                x = _cross_attention(b, c, x, memory, source)
                x = _feed_forward(b, c, x)
        x = blocks.norm(b, x, "rmsnorm", "norm")
    if c.tied:
        x = b.op("mul_scalar", x, name="scaled")
    logits = b.op("linear", x, table if c.tied else b.weight("head.weight", (c.vocab, c.hidden)), name="head")
    info = {"layers": c.encoder_layers + c.decoder_layers}
    return b.graph([logits, *caches], batch * new, "token", info)


def _memory_weights(b: Builder, c: Seq2SeqConfig, table: str, batch: Size, source: Size, decode: bool) -> str:
    """Run the encoder; a decode step has its result cached, but the weights are still in memory."""
    with b.scope("encoder"):
        if decode:
            _idle_encoder(b, c)
            return ""
        x = blocks.embed(b, table, b.input("ids", (batch, source), "int64"), "embed")
        bias = _relative_bias(b, c, source, source)
        for layer in range(c.encoder_layers):
            with b.scope(f"layers.{layer}"):
                x = _feed_forward(b, c, _self_attention(b, c, x, bias, False, None, []))
        return blocks.norm(b, x, "rmsnorm", "norm")


def _idle_encoder(b: Builder, c: Seq2SeqConfig) -> None:
    width, ups = c.heads * c.head_dim, ("gate_up",) if c.gated else ("up",)
    b.weight("relative.weight", (c.buckets, c.heads))
    for layer in range(c.encoder_layers):
        with b.scope(f"layers.{layer}"):
            for name in ("q", "k", "v"):
                b.weight(f"attn.{name}.weight", (width, c.hidden))
            b.weight("attn.out.weight", (c.hidden, width))
            b.weight(f"mlp.{ups[0]}.weight", ((1 + c.gated) * c.intermediate, c.hidden))
            b.weight("mlp.down.weight", (c.hidden, c.intermediate))
            b.weight("attn.norm.weight", (c.hidden,))
            b.weight("mlp.norm.weight", (c.hidden,))
    b.weight("norm.weight", (c.hidden,))


def _relative_bias(b: Builder, c: Seq2SeqConfig, queries: Size, keys: Size) -> str:
    """The bias of all layers of a stack: rows of one small table by the distance of query and key."""
    buckets = b.input("buckets", (queries, keys), "int64")
    rows = blocks.embed(b, b.weight("relative.weight", (c.buckets, c.heads)), buckets, "relative")
    return b.op("view", rows, name="relative_bias", shape=(c.heads, queries, keys))


def _self_attention(
    b: Builder, c: Seq2SeqConfig, x: str, bias: str, causal: bool, cached: Size | None, caches: list[str]
) -> str:
    with b.scope("attn"):
        y = blocks.norm(b, x, "rmsnorm", "norm")
        q, k, v = qkv(b, y, c.heads, c.heads * c.head_dim, c.fused_qkv, False)
        if cached is not None:
            k, v = _cached(b, k, cached, "k_cache"), _cached(b, v, cached, "v_cache")
            caches += [k, v]
        y = blocks.attention(b, q, k, v, causal=causal and cached is None, bias=bias)
        y = blocks.linear(b, blocks.merge_heads(b, y), c.hidden, "out")
        return b.op("add", x, y, name="residual")


def _cached(b: Builder, new: str, length: Size, name: str) -> str:
    batch, heads, _, width = b.shape(new)
    return b.op("cache_update", b.cache(name, (batch, heads, length, width)), new, name=f"{name}_update")


def _cross_attention(b: Builder, c: Seq2SeqConfig, x: str, memory: str, source: Size) -> str:
    width = c.heads * c.head_dim
    with b.scope("cross"):
        y = blocks.norm(b, x, "rmsnorm", "norm")
        q = blocks.split_heads(b, blocks.linear(b, y, width, "q"), c.heads, "q_heads")
        if memory:
            k, v = (blocks.split_heads(b, blocks.linear(b, memory, width, n), c.heads, f"{n}_heads") for n in "kv")
        else:
            for name in "kv":
                b.weight(f"{name}.weight", (width, c.hidden))
            k, v = (b.cache(f"{n}_cache", (b.shape(x)[0], c.heads, source, c.head_dim)) for n in "kv")
        y = blocks.linear(b, blocks.merge_heads(b, blocks.attention(b, q, k, v)), c.hidden, "out")
        return b.op("add", x, y, name="residual")


def _feed_forward(b: Builder, c: Seq2SeqConfig, x: str) -> str:
    with b.scope("mlp"):
        y = blocks.norm(b, x, "rmsnorm", "norm")
        y = blocks.mlp(b, y, c.intermediate, c.activation, is_gated=c.gated)
        return b.op("add", x, y, name="residual")


FAMILIES = {
    "seq2seq": Family("seq2seq", Seq2SeqConfig, {phase: partial(_build, phase) for phase in ("forward", "decode")})
}
