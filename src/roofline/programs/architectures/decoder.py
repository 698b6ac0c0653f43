"""Decoder-only language models: GPT, OPT, Llama, Mistral, Qwen, Gemma, Phi, Mixtral, DeepSeek, gpt-oss, Mamba, hybrids.

Phases: ``forward`` (all positions, no cache, logits everywhere), ``prefill`` (keys and values written to the cache,
logits of the last position unless the file says otherwise) and ``decode`` (one new token per sequence against a cache
of ``C`` positions, all attended, the new one included); ``train`` (all positions, dropout where the file has it, and
the loss; what follows from it is added by :func:`roofline.passes.backward`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from roofline.ir.graph import Graph, Info
from roofline.ir.sizes import symbol
from roofline.ops.builder import Builder
from roofline.programs.architectures.config import Family
from roofline.programs.architectures.decoder_keys import DecoderConfig
from roofline.programs.layers import state
from roofline.programs.layers.attention import Attention, Beside, HeadNorm, LatentAttention
from roofline.programs.layers.base import Chain, Layer, Norm, Parallel, Residual, Run, Scaled
from roofline.programs.layers.feedforward import MLP, Experts, WithShared
from roofline.programs.layers.primitives import cross_entropy, embed

#: A layer of a config by its place in the depth.
Compose = Callable[[Any, int], Layer]


@dataclass(frozen=True)
class Embeddings:
    """Rows of the token table, with positions where they are learned."""

    hidden: int
    scaled: bool = False
    positions: int = 0
    norm: Norm | None = None

    def __call__(self, run: Run, ids: str) -> str:
        x = self.place(run, self.tokens(run, ids))
        return run.drop(self.norm.named("embed_norm")(run, x) if self.norm else x, "embed_dropout")

    @property
    def width(self) -> int:
        """Columns of the token table."""
        return self.hidden

    def tokens(self, run: Run, ids: str) -> str:
        """Return the embeddings of tokens."""
        x = embed(run.b, run.table, ids, "embed")
        return run.b.op("mul_scalar", x, name="embed_scaled") if self.scaled else x

    def place(self, run: Run, x: str) -> str:
        """Add positions."""
        if not self.positions:
            return x
        table = run.b.weight("positions.weight", (self.positions, self.hidden))
        rows = embed(run.b, table, run.b.input("position_ids", (run.new,), "int64"), "positions")
        return run.b.op("add", x, rows, name="embed_positions")


@dataclass(frozen=True)
class Head:
    """Logits of the vocabulary."""

    vocab: int
    tied: bool = False
    bias: bool = False
    scaled: bool = False
    softcap: bool = False

    def __call__(self, run: Run, x: str) -> str:
        b, x = run.b, self.transform(run, x)
        weights = [run.table if self.tied else b.weight("head.weight", (self.vocab, b.shape(run.table)[1]))]
        if self.bias:
            weights.append(b.weight("head.bias", (self.vocab,)))
        logits = b.op("linear", x, *weights, name="head")
        if self.scaled:
            logits = b.op("mul_scalar", logits, name="logits_scaled")
        return b.op("softcap", logits, name="logit_softcap") if self.softcap else logits

    def transform(self, run: Run, x: str) -> str:
        """Return the head's input."""
        return x


@dataclass(frozen=True)
class Decoder:
    """A stack of layers between a token table and a head."""

    config: DecoderConfig  #: Sizes of the tables and options of the run.
    embeddings: Embeddings  #: Tokens to the residual stream.
    blocks: Sequence[Layer]  #: The layers.
    norm: Layer | None  #: A norm at the end.
    head: Layer | None  #: Logits, where the model has them.
    widths: Sequence[int] = ()  #: Widths of heads that are rotated by tables of their own.

    def __call__(self, b: Builder, phase: str) -> Graph:
        c, run = self.config, self.run(b, phase)
        run.table = b.weight("embed.weight", (c.vocab, self.embeddings.width))
        run.ids = b.input("ids", (run.batch, run.new), "int64")
        x = self.embeddings(run, run.ids)
        for layer, block in enumerate(self.blocks):
            with b.scope(f"layers.{layer}"):
                x = block(run, x)
        if phase == "prefill" and c.prefill_logits == "last":
            x = b.op("slice", x, name="last", shape=(run.batch, 1, c.hidden))
        x = self.norm(run, x) if self.norm else x
        x = self.head(run, x) if self.head else x
        if phase == "train" and self.head:
            x = cross_entropy(b, x)
        return b.graph([x, *run.caches], run.batch * run.new, "token", Info(layers=c.layers, positions=c.limit))

    def run(self, b: Builder, phase: str) -> Run:
        """Return what the layers share, with the inputs that all of them read."""
        c, length, context = self.config, symbol("S"), symbol("C")
        decode, naive = phase == "decode", c.attention == "naive"
        new, held = (1, context) if decode else (length, length)
        return Run(
            b, phase, symbol("B"), new, held, c.hidden, naive, c.dropout, c.kv_policy == "windowed",
            c.linear_dtype, c.expert_dtype,
            cos=b.input("cos", (new, c.rotary)) if c.rope else "",
            sin=b.input("sin", (new, c.rotary)) if c.rope else "",
            mask=b.input("mask", (new, held), "bool") if naive and not decode else "",
            bias=b.input("alibi", (c.heads, 1, held)) if c.alibi else "",
            tables={
                width: (b.input(f"cos_{width}", (new, width)), b.input(f"sin_{width}", (new, width)))
                for width in self.widths if c.rope
            },
        )  # fmt: skip


# --- a config to layers ----------------------------------------------------------------------------------------------


def norm_of(c: DecoderConfig) -> Norm:
    """Compose the norm that a decoder has everywhere."""
    return Norm(c.norm, c.norm_bias, c.norm_scale)


def attention(c: DecoderConfig, layer: int) -> Attention:
    """Compose a layer's multi-head, grouped or multi-query attention."""
    if c.rotary_dim > c.width:
        raise ValueError(f"rotary_dim = {c.rotary_dim} is more than a head's {c.width}")
    norm = HeadNorm(c.qk_norm_kind, c.qk_norm_over, c.qk_norm_bias, c.qk_norm_scale) if c.qk_norm else None
    return Attention(
        c.heads, c.kv_of(layer), c.width, c.window_of(layer), rotates=c.rotates(layer), fused=c.fused_qkv,
        qkv_bias=c.qkv_bias, out_bias=c.out_bias, norm=norm, softcap=c.attention_softcap, sinks=c.sinks,
        clip=c.qkv_clip,
    )  # fmt: skip


def latent_attention(c: DecoderConfig, layer: int) -> LatentAttention:
    """Compose a layer's latent attention."""
    return LatentAttention(
        c.heads, c.q_lora, c.kv_lora, c.nope_dim, c.rope_dim, c.value_dim, rotates=c.rope, qkv_bias=c.qkv_bias,
        out_bias=c.out_bias, norm=c.norm, softcap=c.attention_softcap,
    )  # fmt: skip


def attend(c: DecoderConfig, layer: int) -> Layer:
    """Compose a layer's attention of either kind."""
    return latent_attention(c, layer) if c.mla else attention(c, layer)


def mlp(c: DecoderConfig, inner: int) -> MLP:
    """Compose a dense feed-forward block."""
    return MLP(inner, c.activation, c.gated, c.fused_gate_up, c.mlp_bias)


def experts(c: DecoderConfig) -> Experts:
    """Compose a layer's routed experts."""
    if not c.experts:
        raise ValueError("feeds has moe, and there are no experts")
    if not 1 <= c.top_k <= c.experts:
        raise ValueError(f"top_k = {c.top_k} must be between 1 and experts = {c.experts}")
    gated = c.gated if c.expert_gated is None else c.expert_gated
    return Experts(c.experts, c.top_k, c.expert_intermediate or c.inner, c.activation, gated, c.router, c.router_bias,
                   c.score_bias, c.expert_bias)  # fmt: skip


def with_shared(c: DecoderConfig, routed: Layer) -> Layer:
    """Put the shared experts beside routed ones, where there are any."""
    return WithShared(routed, mlp(c, c.shared_intermediate), c.shared_gate) if c.shared_intermediate else routed


def feed(c: DecoderConfig, layer: int) -> Layer:
    """Compose what follows a layer's mixer: a dense block or experts."""
    return with_shared(c, experts(c)) if c.feed_of(layer) == "moe" else mlp(c, c.inner)


def _convolution(c: DecoderConfig, bias: bool) -> state.Convolution:
    return state.Convolution(c.ssm_conv, bias, c.ssm_conv_kept == "kernel", c.ssm_conv_dtype)


#: Each kind of mixer with a state: the keys that it needs, and how it is composed.
MIXERS: Mapping[str, tuple[tuple[str, ...], Callable[[DecoderConfig], Layer]]] = {
    "mamba": (("ssm_inner", "ssm_state", "ssm_rank"), lambda c: state.Mamba(
        c.ssm_inner, c.ssm_state, c.ssm_rank, _convolution(c, c.ssm_conv_bias), c.ssm_bias, c.ssm_inner_norms,
        c.ssm_dtype)),
    "mamba2": (("ssm_inner", "ssm_state", "ssm_heads"), lambda c: state.Mamba2(
        c.ssm_inner, c.ssm_state, c.ssm_heads, c.ssm_groups, c.ssm_chunk, _convolution(c, c.ssm_conv_bias), c.ssm_bias,
        c.ssm_norm, c.ssm_dtype)),
    "delta": (("delta_keys", "delta_values", "delta_key_dim", "delta_value_dim"), lambda c: state.Delta(
        c.delta_keys, c.delta_values, c.delta_key_dim, c.delta_value_dim, _convolution(c, False), c.ssm_dtype)),
    "kda": (("delta_keys", "delta_values", "delta_key_dim", "delta_value_dim"), lambda c: state.KimiDelta(
        c.delta_keys, c.delta_values, c.delta_key_dim, c.delta_value_dim, _convolution(c, False), c.ssm_dtype,
        c.delta_rank)),
    "mlstm": (("delta_keys", "delta_key_dim", "delta_value_dim"), lambda c: state.MatrixLSTM(
        c.delta_keys, c.delta_key_dim, c.delta_value_dim, c.ssm_chunk, c.ssm_dtype)),
    "conv": ((), lambda c: state.ShortConvolution(_convolution(c, c.ssm_bias), c.ssm_bias)),
    "linear": ((), lambda c: state.LightningAttention(c.heads, c.width, c.ssm_chunk, c.ssm_dtype)),
    "recurrent": (("ssm_inner",), lambda c: state.GatedRecurrence(
        c.ssm_inner, c.heads, _convolution(c, True), c.ssm_dtype)),
}  # fmt: skip


def mixer(c: DecoderConfig, layer: int, attend: Compose) -> Layer:
    """Compose what mixes positions in a layer."""
    kind = c.mixer_of(layer)
    if (name := kind.removeprefix("full+")) not in MIXERS:
        return attend(c, layer)
    needs, compose = MIXERS[name]
    if lacking := [key for key in needs if not getattr(c, key)]:
        raise ValueError(f"a layer of kind {kind} needs {', '.join(lacking)}")
    return compose(c) if name == kind else Beside(attend(c, layer), compose(c))


def block(
    c: DecoderConfig, layer: int, attend: Compose = attend, feed: Compose = feed, residual: type[Residual] = Residual
) -> Layer:  # fmt: skip
    """Compose a layer: mixer, then feed-forward, each added to the residual; or both side by side.

    Args:
        c: The config.
        layer: The layer's place in the depth.
        attend: Composes its attention.
        feed: Composes what follows.
        residual: How what they return joins the residual stream.
    """
    norm, kind, follows = norm_of(c), c.mixer_of(layer), c.feed_of(layer)
    feed_scope = "moe" if follows == "moe" else "mlp"
    if c.block != "serial":
        if follows == "none":
            raise ValueError(f"block = {c.block} needs a feed-forward block in every layer")
        return Parallel(mixer(c, layer, attend), feed(c, layer), norm, feed_scope, c.block == "parallel_norms")
    after: list[Layer] = [norm.named("post_norm")] if c.post_norms else []
    after += [Scaled("residual_scaled")] if c.residual_scale else []
    before, of_sum = norm if c.pre_norms else None, norm.named("sum_norm") if c.sum_norms else None
    rest: dict[str, Any] = {"after": Chain(after) if after else None, "of_sum": of_sum}
    parts: list[Layer] = []
    if kind != "none":
        normed = before if c.first_norm or layer else None
        scope = "attn" if kind in ("sliding", "full") else "mixer"
        parts.append(residual(scope, mixer(c, layer, attend), normed, **rest))
    if follows != "none":
        parts.append(residual(feed_scope, feed(c, layer), before, **rest))
    return Chain(parts)


def embeddings(c: DecoderConfig) -> Embeddings:
    """Compose what comes before the layers."""
    return Embeddings(c.hidden, c.embedding_scale, c.positions, norm_of(c) if c.embed_norm else None)


def head(c: DecoderConfig) -> Head:
    """Compose the logits."""
    return Head(c.vocab, c.tied, c.head_bias, c.logit_scale, c.logit_softcap > 0)


def decoder(
    c: DecoderConfig,
    *,
    attend: Compose = attend,
    feed: Compose = feed,
    block: Callable[..., Layer] = block,
    embeddings: Callable[[Any], Embeddings] = embeddings,
    head: Callable[[Any], Layer] = head,
    residual: type[Residual] = Residual,
    widths: Sequence[int] = (),
) -> Decoder:
    """Compose a decoder; what a checkpoint has of its own takes the place of the usual parts.

    Args:
        c: The config.
        attend: Composes a layer's attention.
        feed: Composes its feed-forward block or experts.
        block: Composes a layer of both.
        embeddings: Composes what comes before the layers.
        head: Composes the logits.
        residual: How what a branch returns joins the residual stream.
        widths: Widths of heads that are rotated by tables of their own.

    Raises:
        ValueError: Sizes that do not fit together.
    """
    blocks = [block(c, layer, attend, feed, residual) for layer in range(c.layers)]
    if c.rope and (c.rotary % 2 or any(width % 2 for width in widths)):
        raise ValueError("rotary embedding needs an even head width")
    return Decoder(c, embeddings(c), blocks, norm_of(c) if c.final_norm else None, head(c) if c.head else None, widths)


def variant(config: type[DecoderConfig] = DecoderConfig, **parts: Any) -> Family:
    """Return the family with keys or parts of a checkpoint's own, as :func:`decoder` takes them."""
    return replace(FAMILIES["decoder"], config=config, compose=partial(decoder, **parts))


FAMILIES = {"decoder": Family("decoder", DecoderConfig, decoder, ("forward", "prefill", "decode", "train"), "prefill")}
