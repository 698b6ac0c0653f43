"""Encoder-only language models of the BERT kind, as Hugging Face's BertModel runs them, without padding."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from pydantic import Field, model_validator

from roofline.ir.graph import Graph, Info
from roofline.ir.sizes import Size, symbol
from roofline.ops.builder import Builder
from roofline.programs.families import blocks
from roofline.programs.families.config import Config, Count, Family, Layers, Positive


class EncoderConfig(Config):
    """Sizes and options of an encoder.

    Attributes:
        hidden: Width of the residual stream.
        layers: Number of blocks.
        heads: Attention heads.
        vocab: Rows of the token table.
        positions: Rows of the position table, 0 for none.
        segments: Rows of the segment table, 0 for none.
        embed_width: Width of the tables where it is not ``hidden``, with a projection after them; 0 for the same.
        embed_norm: A norm of the embeddings.
        intermediate: Inner size of the feed-forward block, ``4 * hidden`` when absent.
        activation: Of the feed-forward block.
        gated: Whether the feed-forward block has a gate.
        norm_bias: Shift of the norms.
        qkv_bias: Biases of the q, k and v projections.
        out_bias: Bias of the attention output projection.
        mlp_bias: Biases of the feed-forward block.
        pre_norms: Norms before each branch and at the end, instead of after each sum.
        first_norm: Whether the first layer normalises before attention; ModernBERT's does not.
        rope: Whether queries and keys are rotated.
        window: Positions that a sliding layer attends to, 0 for all.
        pattern: Kinds of layers in turn, repeated over the depth.
        buckets: Rows of a table of relative positions that all layers add to their scores, 0 for none.
        causal: Whether a position sees only those before it (CLIP's text tower).
        shared: Layers that have the same weights as the one before, in groups of so many; 0 for none (ALBERT).
        pooler: Whether a dense layer and a tanh follow on the first token.
        head: What follows: ``masked``, logits of the vocabulary at each position; ``pooled``, labels from the pooler;
            ``dense``, labels from a dense layer on the first token; ``each``, labels at each position; ``project``, a
            projection of one position.
        labels: Outputs of the last three.
        head_bias: Bias of the last layer.
        dense_bias: Bias of the dense layer before a ``masked`` or ``dense`` head.
        fused_qkv: One projection for q, k and v; BertModel runs three.
        attention: ``sdpa`` (one kernel) or ``naive`` (scores written out).
        dropout: Whether training drops attention probabilities, the outputs of attention and feed-forward, embeddings
            and the pooled token.
    """

    hidden: Positive
    layers: Layers
    heads: Positive
    vocab: Positive
    positions: Count
    segments: Count = 2
    embed_width: Count = 0
    embed_norm: bool = True
    intermediate: Positive | None = None
    activation: Literal["gelu", "gelu_tanh", "gelu_new", "relu", "silu", "quick_gelu"] = "gelu"
    gated: bool = False
    norm_bias: bool = True
    qkv_bias: bool = True
    out_bias: bool = True
    mlp_bias: bool = True
    pre_norms: bool = False
    first_norm: bool = True
    rope: bool = False
    window: Count = 0
    pattern: tuple[Literal["sliding", "full"], ...] = Field(("sliding",), min_length=1, max_length=2000)
    buckets: Count = 0
    causal: bool = False
    shared: Count = 0
    pooler: bool = True
    head: Literal["none", "masked", "pooled", "dense", "each", "project"] = "none"
    labels: Count = 2
    head_bias: bool = True
    dense_bias: bool = True
    fused_qkv: bool = False
    attention: Literal["sdpa", "naive"] = "sdpa"
    dropout: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> EncoderConfig:
        if self.hidden % self.heads:
            raise ValueError(f"hidden = {self.hidden} is no multiple of heads = {self.heads}")
        if self.rope and self.hidden // self.heads % 2:
            raise ValueError("rotary embedding needs an even head width")
        return self

    def window_of(self, layer: int) -> int:
        """Positions that a layer attends to, 0 for all."""
        return self.window if self.pattern[layer % len(self.pattern)] == "sliding" else 0


def _build(phase: str, b: Builder, c: EncoderConfig) -> Graph:
    drops = phase == "train" and c.dropout
    batch, length = symbol("B"), symbol("S")
    table = b.weight("embed.weight", (c.vocab, c.embed_width or c.hidden))
    x = _embeddings(b, c, table, batch, length, drops)
    shared = _Shared(b, c, length, drops)
    for layer in range(c.layers):
        with b.scope(f"layers.{layer}"):
            x = _layer(b, c, x, layer, shared)
    if c.pre_norms:
        x = blocks.norm(b, x, "layernorm", "norm", c.norm_bias)
    outputs = [x]
    if c.pooler:
        first = b.op("slice", x, name="first", shape=(batch, c.hidden))
        pooled = b.op("tanh", blocks.linear(b, first, c.hidden, "pooler", bias=True), name="pooled")
        outputs.append(blocks.drop(b, pooled, "pooled_dropout") if drops and c.head == "pooled" else pooled)
    if c.head != "none":
        outputs = [HEADS[c.head](b, c, outputs[-1], table)]
        if phase == "train":
            outputs = [blocks.cross_entropy(b, outputs[0])]
    graph = b.graph(outputs, batch * length, "token", Info(layers=c.layers))
    return _share(graph, c) if c.shared else graph


class _Shared:
    """What all layers read: the rotary table and the bias of relative positions."""

    def __init__(self, b: Builder, c: EncoderConfig, length: Size, drops: bool) -> None:
        self.drops = drops
        width = c.hidden // c.heads
        self.cos = b.input("cos", (length, width)) if c.rope else ""
        self.sin = b.input("sin", (length, width)) if c.rope else ""
        self.bias: str | None = None
        if c.buckets:
            rows = blocks.embed(
                b, b.weight("relative.weight", (c.buckets, c.heads)), b.input("buckets", (length, length), "int64"),
                "relative",
            )  # fmt: skip
            self.bias = b.op("view", rows, name="relative_bias", shape=(c.heads, length, length))


def _embeddings(b: Builder, c: EncoderConfig, table: str, batch: Size, length: Size, drops: bool) -> str:
    width = c.embed_width or c.hidden
    x = blocks.embed(b, table, b.input("ids", (batch, length), "int64"), "embed")
    if c.segments:
        kinds = b.input("segment_ids", (batch, length), "int64")
        rows = blocks.embed(b, b.weight("segments.weight", (c.segments, width)), kinds, "segments")
        x = b.op("add", x, rows, name="embed_segments")
    if c.positions:
        places = b.input("position_ids", (length,), "int64")
        rows = blocks.embed(b, b.weight("positions.weight", (c.positions, width)), places, "positions")
        x = b.op("add", x, rows, name="embed_positions")
    if c.embed_norm:
        x = blocks.norm(b, x, "layernorm", "embed_norm", c.norm_bias)
    if drops:
        x = blocks.drop(b, x, "embed_dropout")
    return blocks.linear(b, x, c.hidden, "embed_projection", True) if c.embed_width else x


def qkv(b: Builder, x: str, heads: int, width: Size, fused: bool, bias: bool, k_bias: bool = True) -> list[str]:
    """Queries, keys and values ``(B, heads, S, d)`` of plain multi-head attention."""
    if fused:
        joined = blocks.linear(b, x, 3 * width, "qkv", bias)
        parts = [blocks.part(b, joined, width, name) for name in "qkv"]
    else:
        parts = [blocks.linear(b, x, width, name, bias and (k_bias or name != "k")) for name in "qkv"]
    return [blocks.split_heads(b, part, heads, f"{name}_heads") for part, name in zip(parts, "qkv", strict=True)]


def _layer(b: Builder, c: EncoderConfig, x: str, layer: int, shared: _Shared) -> str:
    inner = c.intermediate or 4 * c.hidden
    with b.scope("attn"):
        normed = c.pre_norms and (layer > 0 or c.first_norm)
        y = blocks.norm(b, x, "layernorm", "norm", c.norm_bias) if normed else x
        y = _attention(b, c, y, layer, shared)
        x = _sum(b, c, x, blocks.drop(b, y, "dropout") if shared.drops else y)
    with b.scope("mlp"):
        y = blocks.norm(b, x, "layernorm", "norm", c.norm_bias) if c.pre_norms else x
        y = blocks.mlp(b, y, inner, c.activation, is_gated=c.gated, bias=c.mlp_bias)
        return _sum(b, c, x, blocks.drop(b, y, "dropout") if shared.drops else y)


def _sum(b: Builder, c: EncoderConfig, x: str, y: str) -> str:
    x = b.op("add", x, y, name="residual")
    return x if c.pre_norms else blocks.norm(b, x, "layernorm", "norm", c.norm_bias)


def _attention(b: Builder, c: EncoderConfig, x: str, layer: int, shared: _Shared) -> str:
    q, k, v = qkv(b, x, c.heads, c.hidden, c.fused_qkv, c.qkv_bias)
    if c.rope:
        q, k = (blocks.rope(b, part, shared.cos, shared.sin, f"rope_{name}") for name, part in (("q", q), ("k", k)))
    if c.attention == "naive":
        y = blocks.naive_attention(b, q, k, v, bias=shared.bias, dropout=shared.drops)
    else:
        y = blocks.attention(
            b, q, k, v, causal=c.causal, window=c.window_of(layer), bias=shared.bias, dropout=shared.drops
        )
    return blocks.linear(b, blocks.merge_heads(b, y), c.hidden, "out", bias=c.out_bias)


# --- heads -----------------------------------------------------------------------------------------------------------


def _masked(b: Builder, c: EncoderConfig, x: str, table: str) -> str:
    """A dense layer, its activation and a norm, then the token table."""
    y = blocks.linear(b, x, c.embed_width or c.hidden, "transform", c.dense_bias)
    y = blocks.norm(b, blocks.activate(b, y, c.activation), "layernorm", "transform_norm", c.norm_bias)
    weights = [table, *([b.weight("head.bias", (c.vocab,))] if c.head_bias else [])]
    return b.op("linear", y, *weights, name="head")


def _pooled(b: Builder, c: EncoderConfig, x: str, table: str) -> str:
    return blocks.linear(b, x, c.labels, "head", c.head_bias)


def _dense(b: Builder, c: EncoderConfig, x: str, table: str) -> str:
    first = b.op("slice", x, name="first", shape=(b.shape(x)[0], c.hidden))
    y = b.op("tanh", blocks.linear(b, first, c.hidden, "dense", c.dense_bias), name="dense_tanh")
    return blocks.linear(b, y, c.labels, "head", c.head_bias)


def _project(b: Builder, c: EncoderConfig, x: str, table: str) -> str:
    one = b.op("slice", x, name="last", shape=(b.shape(x)[0], c.hidden))
    return blocks.linear(b, one, c.labels, "head", c.head_bias)


HEADS = {"masked": _masked, "pooled": _pooled, "dense": _dense, "each": _pooled, "project": _project}


def _share(graph: Graph, c: EncoderConfig) -> Graph:
    """Layers of a group read the weights of its first."""
    first = {
        name: name.replace(f"layers.{layer}.", f"layers.{layer // c.shared * c.shared}.", 1)
        for layer in range(c.layers)
        for name, tensor in graph.tensors.items()
        if tensor.kind == "weight" and name.startswith(f"layers.{layer}.")
    }
    nodes = tuple(replace(node, inputs=tuple(first.get(name, name) for name in node.inputs)) for node in graph.nodes)
    kept = {name: tensor for name, tensor in graph.tensors.items() if first.get(name, name) == name}
    return replace(graph, tensors=kept, nodes=nodes)


FAMILIES = {
    "encoder": Family("encoder", EncoderConfig, {phase: partial(_build, phase) for phase in ("forward", "train")})
}
