"""Encoder-only language models of the BERT kind, as Hugging Face's BertModel runs them, without padding."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from roofline.build import Builder
from roofline.families import blocks
from roofline.families.config import Config, Count, Family, Layers, Positive
from roofline.graph import Graph
from roofline.sizes import Size, symbol


class EncoderConfig(Config):
    """Sizes and options of an encoder.

    Attributes:
        hidden: Width of the residual stream.
        layers: Number of blocks.
        heads: Attention heads.
        vocab: Rows of the token table.
        positions: Rows of the position table.
        segments: Rows of the segment table, 0 for none.
        intermediate: Inner size of the feed-forward block, ``4 * hidden`` when absent.
        activation: Of the feed-forward block.
        pooler: Whether a dense layer and a tanh follow on the first token.
        fused_qkv: One projection for q, k and v; BertModel runs three.
        attention: ``sdpa`` (one kernel) or ``naive`` (scores written out).
    """

    hidden: Positive
    layers: Layers
    heads: Positive
    vocab: Positive
    positions: Positive
    segments: Count = 2
    intermediate: Positive | None = None
    activation: Literal["gelu", "gelu_tanh", "relu"] = "gelu"
    pooler: bool = True
    fused_qkv: bool = False
    attention: Literal["sdpa", "naive"] = "sdpa"

    @model_validator(mode="after")
    def _consistent(self) -> EncoderConfig:
        if self.hidden % self.heads:
            raise ValueError(f"hidden = {self.hidden} is no multiple of heads = {self.heads}")
        return self


def _build(b: Builder, c: EncoderConfig) -> Graph:
    batch, length = symbol("B"), symbol("S")
    x = _embeddings(b, c, batch, length)
    for layer in range(c.layers):
        with b.scope(f"layers.{layer}"):
            x = _layer(b, c, x)
    outputs = [x]
    if c.pooler:
        first = b.op("slice", x, name="first", shape=(batch, c.hidden))
        outputs.append(b.op("tanh", blocks.linear(b, first, c.hidden, "pooler", bias=True), name="pooled"))
    return b.graph(outputs, batch * length, "token", {"layers": c.layers, "attention": c.attention})


def _embeddings(b: Builder, c: EncoderConfig, batch: Size, length: Size) -> str:
    words = blocks.embed(
        b, b.weight("embed.weight", (c.vocab, c.hidden)), b.input("ids", (batch, length), "int64"), "embed"
    )
    x = words
    if c.segments:
        kinds = b.input("segment_ids", (batch, length), "int64")
        rows = blocks.embed(b, b.weight("segments.weight", (c.segments, c.hidden)), kinds, "segments")
        x = b.op("add", x, rows, name="embed_segments")
    places = b.input("position_ids", (length,), "int64")
    rows = blocks.embed(b, b.weight("positions.weight", (c.positions, c.hidden)), places, "positions")
    return blocks.norm(b, b.op("add", x, rows, name="embed_positions"), "layernorm", "embed_norm")


def qkv(b: Builder, x: str, heads: int, width: Size, fused: bool, bias: bool) -> list[str]:
    """Queries, keys and values ``(B, heads, S, d)`` of plain multi-head attention."""
    if fused:
        joined = blocks.linear(b, x, 3 * width, "qkv", bias)
        parts = [blocks.part(b, joined, width, name) for name in "qkv"]
    else:
        parts = [blocks.linear(b, x, width, name, bias) for name in "qkv"]
    return [blocks.split_heads(b, part, heads, f"{name}_heads") for part, name in zip(parts, "qkv", strict=True)]


def _layer(b: Builder, c: EncoderConfig, x: str) -> str:
    attend = blocks.attention if c.attention == "sdpa" else blocks.naive_attention
    with b.scope("attn"):
        y = attend(b, *qkv(b, x, c.heads, c.hidden, c.fused_qkv, True))
        y = blocks.linear(b, blocks.merge_heads(b, y), c.hidden, "out", bias=True)
        x = blocks.norm(b, b.op("add", x, y, name="residual"), "layernorm", "norm")
    with b.scope("mlp"):
        y = blocks.mlp(b, x, c.intermediate or 4 * c.hidden, c.activation, bias=True)
        return blocks.norm(b, b.op("add", x, y, name="residual"), "layernorm", "norm")


FAMILIES = {"encoder": Family("encoder", EncoderConfig, {"forward": _build})}
