"""Encoder-only language models of the BERT kind, as Hugging Face's BertModel runs them, without padding."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from roofline.ir.graph import Graph, Info
from roofline.ops.builder import Builder
from roofline.programs.architectures.config import Count, Family, Layers, PositionKeys, Positive
from roofline.programs.layers.attention import Attention, RelativeBias
from roofline.programs.layers.base import Chain, Layer, Norm, Residual, Run
from roofline.programs.layers.feedforward import MLP
from roofline.programs.layers.primitives import activate, cross_entropy, drop, embed, linear

#: A layer of a config by its place in the depth.
Compose = Callable[[Any, int], Layer]


class EncoderConfig(PositionKeys):
    """Sizes and options of an encoder."""

    hidden: Positive  #: Width of the residual stream.
    layers: Layers  #: Number of blocks.
    heads: Positive  #: Attention heads.
    vocab: Positive  #: Rows of the token table.
    positions: Count  #: Rows of the position table, 0 for none.
    segments: Count = 2  #: Rows of the segment table, 0 for none.
    #: Width of the tables where it is not ``hidden``, with a projection after them; 0 for the same.
    embed_width: Count = 0
    embed_norm: bool = True  #: A norm of the embeddings.
    intermediate: Positive | None = None  #: Inner size of the feed-forward block, ``4 * hidden`` when absent.
    #: Of the feed-forward block.
    activation: Literal["gelu", "gelu_tanh", "gelu_new", "relu", "silu", "quick_gelu"] = "gelu"
    pre_norms: bool = False  #: Norms before each branch and at the end, instead of after each sum.
    window: Count = 0  #: Positions that a sliding layer attends to, 0 for all.
    #: Kinds of layers in turn, repeated over the depth.
    pattern: tuple[Literal["sliding", "full"], ...] = Field(("sliding",), min_length=1, max_length=2000)
    causal: bool = False  #: Whether a position sees only those before it (CLIP's text tower).
    pooler: bool = True  #: Whether a dense layer and a tanh follow on the first token.
    #: What follows: ``masked``, logits of the vocabulary at each position; ``pooled``, labels from the pooler;
    #: ``dense``, labels from a dense layer on the first token; ``each``, labels at each position; ``project``, a
    #: projection of one position.
    head: Literal["none", "masked", "pooled", "dense", "each", "project"] = "none"
    labels: Count = 2  #: Outputs of the last three.
    head_bias: bool = True  #: Bias of the last layer.
    dense_bias: bool = True  #: Bias of the dense layer before a ``masked`` or ``dense`` head.
    fused_qkv: bool = False  #: One projection for q, k and v; BertModel runs three.
    attention: Literal["sdpa", "naive"] = "sdpa"  #: ``sdpa`` (one kernel) or ``naive`` (scores written out).
    #: Whether training drops attention probabilities, the outputs of attention and feed-forward, embeddings and the
    #: pooled token.
    dropout: bool = False


@dataclass(frozen=True)
class Encoder:
    """A stack of layers on the sum of token, segment and position embeddings."""

    config: EncoderConfig  #: Sizes of the tables, what follows the layers, options of the run.
    blocks: Sequence[Layer]  #: The layers.
    norm: Norm  #: The norm of embeddings, of the end and of the head.
    relative: RelativeBias | None = None  #: A bias of relative positions that all layers add to their scores.
    rotates: bool = False  #: Whether layers rotate queries and keys.

    def __call__(self, b: Builder, phase: str) -> Graph:
        c, width = self.config, self.config.embed_width or self.config.hidden
        run = Run(b, phase, width=c.hidden, naive=c.attention == "naive", dropout=c.dropout)
        run.table = b.weight("embed.weight", (c.vocab, width))
        x = self.embeddings(run, width)
        if self.rotates:
            run.cos, run.sin = (b.input(name, (run.new, c.hidden // c.heads)) for name in ("cos", "sin"))
        run.bias = self.relative(run) if self.relative else ""
        for layer, block in enumerate(self.blocks):
            with b.scope(f"layers.{layer}"):
                x = block(run, x)
        if c.pre_norms:
            x = self.norm(run, x)
        outputs = self.outputs(run, x)
        return b.graph(outputs, run.batch * run.new, "token", Info(layers=c.layers, positions=c.limit))

    def embeddings(self, run: Run, width: int) -> str:
        """Return the sum of the tables' rows."""
        b, c = run.b, self.config
        x = embed(b, run.table, b.input("ids", (run.batch, run.new), "int64"), "embed")
        if c.segments:
            kinds = b.input("segment_ids", (run.batch, run.new), "int64")
            rows = embed(b, b.weight("segments.weight", (c.segments, width)), kinds, "segments")
            x = b.op("add", x, rows, name="embed_segments")
        if c.positions:
            places = b.input("position_ids", (run.new,), "int64")
            rows = embed(b, b.weight("positions.weight", (c.positions, width)), places, "positions")
            x = b.op("add", x, rows, name="embed_positions")
        if c.embed_norm:
            x = self.norm.named("embed_norm")(run, x)
        x = run.drop(x, "embed_dropout")
        return linear(b, x, c.hidden, "embed_projection", True) if c.embed_width else x

    def outputs(self, run: Run, x: str) -> list[str]:
        """Return what the model ends in: hidden states, a pooled token, logits, in training their loss."""
        b, c = run.b, self.config
        outputs = [x]
        if c.pooler:
            first = b.op("slice", x, name="first", shape=(run.batch, c.hidden))
            pooled = b.op("tanh", linear(b, first, c.hidden, "pooler", bias=True), name="pooled")
            outputs.append(drop(b, pooled, "pooled_dropout") if run.drops and c.head == "pooled" else pooled)
        if c.head == "none":
            return outputs
        logits = HEADS[c.head](run, c, outputs[-1], self.norm)
        return [cross_entropy(b, logits) if run.phase == "train" else logits]


# --- heads -----------------------------------------------------------------------------------------------------------


def _masked(run: Run, c: EncoderConfig, x: str, norm: Norm) -> str:
    """Add a dense layer, its activation and a norm, then the token table."""
    b = run.b
    y = activate(b, linear(b, x, c.embed_width or c.hidden, "transform", c.dense_bias), c.activation)
    y = norm.named("transform_norm")(run, y)
    weights = [run.table, *([b.weight("head.bias", (c.vocab,))] if c.head_bias else [])]
    return b.op("linear", y, *weights, name="head")


def _labels(run: Run, c: EncoderConfig, x: str, norm: Norm) -> str:
    return linear(run.b, x, c.labels, "head", c.head_bias)


def _dense(run: Run, c: EncoderConfig, x: str, norm: Norm) -> str:
    b = run.b
    first = b.op("slice", x, name="first", shape=(run.batch, c.hidden))
    y = b.op("tanh", linear(b, first, c.hidden, "dense", c.dense_bias), name="dense_tanh")
    return _labels(run, c, y, norm)


def _project(run: Run, c: EncoderConfig, x: str, norm: Norm) -> str:
    return _labels(run, c, run.b.op("slice", x, name="last", shape=(run.batch, c.hidden)), norm)


HEADS = {"masked": _masked, "pooled": _labels, "dense": _dense, "each": _labels, "project": _project}


# --- a config to layers ----------------------------------------------------------------------------------------------


def head_width(c: Any) -> int:
    """Return the width of a head; heads together are as wide as the residual stream.

    Raises:
        ValueError: They cannot be.
    """
    if c.hidden % c.heads:
        raise ValueError(f"hidden = {c.hidden} is not a multiple of heads = {c.heads}")
    width: int = c.hidden // c.heads
    return width


def attention(c: EncoderConfig, layer: int) -> Attention:
    """Compose a layer's attention."""
    window = c.window if c.pattern[layer % len(c.pattern)] == "sliding" else 0
    return Attention(c.heads, c.heads, head_width(c), window, c.causal, rotates=False, fused=c.fused_qkv, qkv_bias=True,
                     out_bias=True)  # fmt: skip


def mlp(c: EncoderConfig, layer: int) -> MLP:
    """Compose a layer's feed-forward block."""
    return MLP(c.intermediate or 4 * c.hidden, c.activation, gated=False, bias=True)


def encoder(
    c: EncoderConfig,
    *,
    attention: Compose = attention,
    mlp: Compose = mlp,
    norm: Norm = Norm("layernorm"),  # noqa: B008 (a frozen value)
    first_norm: bool = True,
    relative: RelativeBias | None = None,
    rotates: bool = False,
) -> Encoder:
    """Compose an encoder; what a checkpoint has of its own takes the place of the usual parts.

    Args:
        c: The config.
        attention: Composes a layer's attention.
        mlp: Composes its feed-forward block.
        norm: The norm that it has everywhere.
        first_norm: Whether the first layer normalises before attention.
        relative: A bias of relative positions that all layers add to their scores.
        rotates: Whether layers rotate queries and keys.

    Raises:
        ValueError: Sizes that do not fit together.
    """
    before, after = (norm, None) if c.pre_norms else (None, norm)
    blocks = [
        Chain((
            Residual("attn", attention(c, layer), before if layer or first_norm else None, of_sum=after),
            Residual("mlp", mlp(c, layer), before, of_sum=after),
        ))
        for layer in range(c.layers)
    ]  # fmt: skip
    return Encoder(c, blocks, norm, relative, rotates)


FAMILIES = {"encoder": Family("encoder", EncoderConfig, encoder)}
