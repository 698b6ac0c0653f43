"""Encoder-decoder models of the T5, BART and Whisper kinds, as Hugging Face runs them.

``forward`` runs ``S`` encoder and ``S`` decoder positions. ``decode`` adds one token a sequence against a decoder
cache of ``C`` positions and cross-attention keys and values of ``S`` encoder positions, kept from the first step. An
encoder of sound has a fixed number of positions instead of ``S``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from pydantic import model_validator

from roofline.ir.graph import Graph, Info
from roofline.ir.sizes import Size, symbol
from roofline.ops.builder import Builder
from roofline.programs.families import blocks
from roofline.programs.families.config import Config, Count, Family, Layers, Positive
from roofline.programs.families.encoder import qkv


class Seq2SeqConfig(Config):
    """Sizes and options of an encoder-decoder.

    Attributes:
        hidden: Width of the residual stream.
        encoder_layers: Blocks of the encoder.
        decoder_layers: Blocks of the decoder.
        heads: Attention heads.
        decoder_heads: Attention heads of the decoder, ``heads`` when absent.
        head_dim: Width of a head; heads together need not be as wide as ``hidden``.
        intermediate: Inner size of the feed-forward block.
        decoder_intermediate: That of the decoder, ``intermediate`` when absent.
        vocab: Rows of the token table.
        encoder_vocab: Rows of the encoder's own token table, 0 where both stacks share one.
        buckets: Rows of each stack's table of relative positions, 0 for none.
        layer_buckets: Whether every layer has its own such table (UMT5).
        positions: Rows of the encoder's table of positions, 0 for none.
        decoder_positions: Rows of the decoder's.
        fixed_positions: Whether positions that are not learned are added (M2M-100).
        mel_bins: Rows of a spectrogram that two convolutions bring to ``source`` positions (Whisper), 0 for tokens.
        source: Positions of an encoder of sound.
        norm: Kind of norm.
        post_norms: Norms after each sum instead of before each branch (BART).
        embed_norm: A norm of the embeddings of both stacks.
        final_norm: A norm at the end of both stacks.
        bias: Biases of attention and feed-forward.
        k_bias: Whether those of the key projections are among them.
        activation: Of the feed-forward block.
        gated: Whether the feed-forward block has a gate (T5 1.1).
        tied: Whether the head is the token table.
        logit_scale: Whether a tied head's input is multiplied by a constant, as T5's is.
        head: Whether there is a head.
        fused_qkv: One projection for q, k and v; T5 runs three.
    """

    hidden: Positive
    encoder_layers: Layers
    decoder_layers: Layers
    heads: Positive
    decoder_heads: Positive | None = None
    head_dim: Positive
    intermediate: Positive
    decoder_intermediate: Positive | None = None
    vocab: Positive
    encoder_vocab: Count = 0
    buckets: Count = 32
    layer_buckets: bool = False
    positions: Count = 0
    decoder_positions: Count = 0
    fixed_positions: bool = False
    mel_bins: Count = 0
    source: Count = 0
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    post_norms: bool = False
    embed_norm: bool = False
    final_norm: bool = True
    bias: bool = False
    k_bias: bool = True
    activation: Literal["relu", "gelu_tanh", "gelu", "silu"] = "relu"
    gated: bool = False
    tied: bool = True
    logit_scale: bool = True
    head: bool = True
    fused_qkv: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Seq2SeqConfig:
        if self.mel_bins and not self.source:
            raise ValueError("mel_bins needs source, the positions of the encoder")
        return self


@dataclass(frozen=True)
class _Stack:
    """One of the two stacks: its sizes, and what its layers share."""

    heads: int
    width: int
    inner: int
    layers: int
    queries: Size
    keys: Size
    bias: str | None = None


def _build(phase: str, b: Builder, c: Seq2SeqConfig) -> Graph:
    batch, decode = symbol("B"), phase == "decode"
    source: Size = c.source if c.mel_bins else symbol("S")
    new, held = (1, symbol("C")) if decode else (symbol("S"), symbol("S"))
    table = b.weight("embed.weight", (c.vocab, c.hidden))
    memory = _memory(b, c, table, batch, source, decode)
    caches: list[str] = []
    heads = c.decoder_heads or c.heads
    with b.scope("decoder"):
        x = blocks.embed(b, table, b.input("ids", (batch, new), "int64"), "embed")
        x = _positions(b, c, x, c.decoder_positions, new)
        stack = _Stack(heads, _width(c, heads), c.decoder_intermediate or c.intermediate, c.decoder_layers, new, held,
                       _relative_bias(b, c, heads, new, held))  # fmt: skip
        for layer in range(stack.layers):
            with b.scope(f"layers.{layer}"):
                x = _self_attention(b, c, stack, x, True, held if decode else None, caches)
                x = _cross_attention(b, c, stack, x, memory, source)
                x = _feed_forward(b, c, stack, x)
        x = _norm(b, c, x, "norm") if c.final_norm else x
    if c.head:
        x = _head(b, c, x, table)
    info = Info(layers=c.encoder_layers + c.decoder_layers)
    return b.graph([x, *caches], batch * new, "token", info)


def _head(b: Builder, c: Seq2SeqConfig, x: str, table: str) -> str:
    if c.tied and c.logit_scale:
        x = b.op("mul_scalar", x, name="scaled")
    return b.op("linear", x, table if c.tied else b.weight("head.weight", (c.vocab, c.hidden)), name="head")


def _width(c: Seq2SeqConfig, heads: int) -> int:
    """Columns of all heads: the encoder's heads fix them where the decoder has another number."""
    return c.heads * c.head_dim if heads != c.heads else heads * c.head_dim


def _memory(b: Builder, c: Seq2SeqConfig, table: str, batch: Size, source: Size, decode: bool) -> str:
    """Run the encoder; a decode step has its result cached, but the weights are still in memory."""
    with b.scope("encoder"):
        own = b.weight("embed.weight", (c.encoder_vocab, c.hidden)) if c.encoder_vocab else table
        if not decode:
            return _encoder(b, c, own, batch, source)
        aside = Builder("aside", b.dtype)
        with aside.scope("encoder"):
            shared = aside.input("table", b.shape(own))
            _encoder(aside, c, shared, batch, source)
        for tensor in aside.graph([]).tensors.values():
            if tensor.kind == "weight":
                b.weight(tensor.name.removeprefix("encoder."), tensor.shape)
        return ""


def _encoder(b: Builder, c: Seq2SeqConfig, table: str, batch: Size, source: Size) -> str:
    if c.mel_bins:
        x = _sound(b, c, batch)
    else:
        x = blocks.embed(b, table, b.input("ids", (batch, source), "int64"), "embed")
    x = _positions(b, c, x, c.positions, source)
    stack = _Stack(c.heads, c.heads * c.head_dim, c.intermediate, c.encoder_layers, source, source,
                   _relative_bias(b, c, c.heads, source, source))  # fmt: skip
    for layer in range(stack.layers):
        with b.scope(f"layers.{layer}"):
            x = _feed_forward(b, c, stack, _self_attention(b, c, stack, x, False, None, []))
    return _norm(b, c, x, "norm") if c.final_norm else x


def _sound(b: Builder, c: Seq2SeqConfig, batch: Size) -> str:
    """Whisper: two convolutions of three taps, the second over every other position."""
    x = b.input("spectrogram", (batch, c.mel_bins, 2 * c.source))
    for name, channels, stride in (("conv1", c.mel_bins, 1), ("conv2", c.hidden, 2)):
        weights = b.weight(f"{name}.weight", (c.hidden, channels, 3)), b.weight(f"{name}.bias", (c.hidden,))
        x = b.op("conv1d", x, *weights, name=name, stride=stride, padding=1)
        x = b.op("gelu", x, name=f"{name}_gelu")
    return b.op("view", x, name="sound", shape=(batch, c.source, c.hidden))


def _positions(b: Builder, c: Seq2SeqConfig, x: str, rows: int, length: Size) -> str:
    if rows:
        places = b.input("position_ids", (length,), "int64")
        found = blocks.embed(b, b.weight("positions.weight", (rows, c.hidden)), places, "positions")
        x = b.op("add", x, found, name="embed_positions")
    if c.fixed_positions:
        x = b.op("add", x, b.input("position_rows", (length, c.hidden)), name="embed_positions")
    return _norm(b, c, x, "embed_norm") if c.embed_norm else x


def _norm(b: Builder, c: Seq2SeqConfig, x: str, name: str) -> str:
    return blocks.norm(b, x, c.norm, name)


def _relative_bias(
    b: Builder, c: Seq2SeqConfig, heads: int, queries: Size, keys: Size, own: bool = False
) -> str | None:
    """The bias of all layers of a stack: rows of one small table by the distance of query and key."""
    if not c.buckets or own != c.layer_buckets:
        return None
    buckets = b.input("buckets", (queries, keys), "int64")
    rows = blocks.embed(b, b.weight("relative.weight", (c.buckets, heads)), buckets, "relative")
    return b.op("view", rows, name="relative_bias", shape=(heads, queries, keys))


def _before(b: Builder, c: Seq2SeqConfig, x: str) -> str:
    return x if c.post_norms else _norm(b, c, x, "norm")


def _after(b: Builder, c: Seq2SeqConfig, x: str, y: str) -> str:
    x = b.op("add", x, y, name="residual")
    return _norm(b, c, x, "norm") if c.post_norms else x


def _self_attention(
    b: Builder, c: Seq2SeqConfig, stack: _Stack, x: str, causal: bool, cached: Size | None, caches: list[str]
) -> str:
    with b.scope("attn"):
        q, k, v = qkv(b, _before(b, c, x), stack.heads, stack.width, c.fused_qkv, c.bias, c.k_bias)
        bias = stack.bias or _relative_bias(b, c, stack.heads, stack.queries, stack.keys, own=True)
        if cached is not None:
            k, v = _cached(b, k, cached, "k_cache"), _cached(b, v, cached, "v_cache")
            caches += [k, v]
        y = blocks.attention(b, q, k, v, causal=causal and cached is None, bias=bias)
        return _after(b, c, x, blocks.linear(b, blocks.merge_heads(b, y), c.hidden, "out", c.bias))


def _cached(b: Builder, new: str, length: Size, name: str) -> str:
    batch, heads, _, width = b.shape(new)
    return b.op("cache_update", b.cache(name, (batch, heads, length, width)), new, name=f"{name}_update")


def _cross_attention(b: Builder, c: Seq2SeqConfig, stack: _Stack, x: str, memory: str, source: Size) -> str:
    with b.scope("cross"):
        y = _before(b, c, x)
        q = blocks.split_heads(b, blocks.linear(b, y, stack.width, "q", c.bias), stack.heads, "q_heads")
        if memory:
            k, v = (
                blocks.split_heads(
                    b, blocks.linear(b, memory, stack.width, n, c.bias and (c.k_bias or n != "k")), stack.heads,
                    f"{n}_heads",
                )
                for n in "kv"
            )  # fmt: skip
        else:
            k, v = (_kept(b, c, stack, name, b.shape(x)[0], source) for name in "kv")
        y = blocks.linear(b, blocks.merge_heads(b, blocks.attention(b, q, k, v)), c.hidden, "out", c.bias)
        return _after(b, c, x, y)


def _kept(b: Builder, c: Seq2SeqConfig, stack: _Stack, name: str, batch: Size, source: Size) -> str:
    """Keys or values of the encoder from the first step, and the weights that made them."""
    b.weight(f"{name}.weight", (stack.width, c.hidden))
    if c.bias and (c.k_bias or name != "k"):
        b.weight(f"{name}.bias", (stack.width,))
    return b.cache(f"{name}_cache", (batch, stack.heads, source, stack.width // stack.heads))


def _feed_forward(b: Builder, c: Seq2SeqConfig, stack: _Stack, x: str) -> str:
    with b.scope("mlp"):
        y = blocks.mlp(b, _before(b, c, x), stack.inner, c.activation, is_gated=c.gated, bias=c.bias)
        return _after(b, c, x, y)


FAMILIES = {
    "seq2seq": Family("seq2seq", Seq2SeqConfig, {phase: partial(_build, phase) for phase in ("forward", "decode")})
}
