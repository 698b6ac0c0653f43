"""Decoder-only language models: GPT, OPT, Llama, Mistral, Qwen, Gemma, Phi, Mixtral, DeepSeek, gpt-oss, Mamba, hybrids.

Phases: ``forward`` (all positions, no cache, logits everywhere), ``prefill`` (keys and values written to the cache,
logits of the last position unless the file says otherwise) and ``decode`` (one new token a sequence against a cache
of ``C`` positions, all attended, the new one included); ``train`` (all positions, dropout where the file has it, and
the loss; what follows from it is added by :func:`roofline.passes.backward`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from roofline.ir.graph import Graph, Info
from roofline.ir.sizes import symbol
from roofline.ops.builder import Builder
from roofline.programs.families import blocks, state
from roofline.programs.families.attention import Run, attention, expert_attention, latent_attention
from roofline.programs.families.config import Family
from roofline.programs.families.decoder_config import DecoderConfig

__all__ = ["FAMILIES", "DecoderConfig"]


def _start(b: Builder, c: DecoderConfig, phase: str) -> Run:
    batch, length, context = symbol("B"), symbol("S"), symbol("C")
    decode = phase == "decode"
    new, held = (1, context) if decode else (length, length)
    return Run(
        b, c, phase, batch, new, held,
        cos=b.input("cos", (new, c.rotary)) if c.rope else "",
        sin=b.input("sin", (new, c.rotary)) if c.rope else "",
        mask=b.input("mask", (new, held), "bool") if c.attention == "naive" and not decode else "",
        alibi=b.input("alibi", (c.heads, 1, held)) if c.alibi else "",
        tables={
            width: (b.input(f"cos_{width}", (new, width)), b.input(f"sin_{width}", (new, width)))
            for width in sorted(set(c.width_pattern) - {c.width}) if c.rope
        },
    )  # fmt: skip


def _build(phase: str, b: Builder, c: DecoderConfig) -> Graph:
    run = _start(b, c, phase)
    table = b.weight("embed.weight", (c.vocab, c.embed_width or c.hidden))
    ids = b.input("ids", (run.batch, run.new), "int64")
    x = _embeddings(run, table, ids)
    own = _layer_embeddings(run, x, ids) if c.layer_embed else ""
    caches: list[str] = []
    for layer in range(c.layers):
        with b.scope(f"layers.{layer}"):
            x = BLOCKS[c.block](run, x, layer, caches)
            if own:
                x = _add_embeddings(run, x, own)
            if c.layer_scale:
                x = b.op("mul_scalar", x, name="layer_scaled")
    logits = _head(run, x, table)
    if phase == "train" and c.head:
        logits = blocks.cross_entropy(b, logits)
    items = run.batch * run.new
    return b.graph([logits, *caches], items=items, item="token", info=Info(layers=c.layers))


def _embeddings(run: Run, table: str, ids: str) -> str:
    b, c = run.b, run.c
    x = blocks.embed(b, table, ids, "embed")
    if c.embed_width:
        x = blocks.linear(b, x, c.hidden, "project_in")
    if c.embedding_scale:
        x = b.op("mul_scalar", x, name="embed_scaled")
    if c.positions:
        places = b.weight("positions.weight", (c.positions, c.hidden))
        rows = blocks.embed(b, places, b.input("position_ids", (run.new,), "int64"), "positions")
        x = b.op("add", x, rows, name="embed_positions")
    if c.fixed_positions:
        x = b.op("add", x, b.input("position_rows", (run.new, c.hidden)), name="embed_positions")
    if c.embed_norm:
        x = _norm(run, x, "embed_norm")
    return _drop(run, x, "embed_dropout")


def _drop(run: Run, x: str, name: str) -> str:
    return blocks.drop(run.b, x, name) if run.drops else x


def _layer_embeddings(run: Run, x: str, ids: str) -> str:
    """What each layer adds: rows of a table of its own and a projection of the embeddings, for all layers at once."""
    b, c = run.b, run.c
    width = c.layers * c.layer_embed
    with b.scope("layer_embed"):
        table = b.weight("embed.weight", (c.layer_vocab or c.vocab, width))
        rows = b.op("mul_scalar", blocks.embed(b, table, ids, "embed"), name="embed_scaled")
        shape = (run.batch, run.new, c.layers, c.layer_embed)
        projected = b.op("mul_scalar", blocks.linear(b, x, width, "project"), name="project_scaled")
        normed = blocks.norm(b, b.op("view", projected, name="by_layer", shape=shape), "rmsnorm", "norm")
        both = b.op("add", normed, b.op("view", rows, name="rows_by_layer", shape=shape), name="sum")
        return b.op("view", b.op("mul_scalar", both, name="scaled"), name="all", shape=(run.batch, run.new, width))


def _add_embeddings(run: Run, x: str, own: str) -> str:
    """A layer's own embeddings, gated by the residual and projected to its width."""
    b, c = run.b, run.c
    with b.scope("layer_embed"):
        gate = blocks.activate(b, blocks.linear(b, x, c.layer_embed, "gate", dtype=c.linear_dtype), c.activation)
        gated = b.op("mul", gate, blocks.part(b, own, c.layer_embed, "own"), name="gated")
        y = _norm(run, blocks.linear(b, gated, c.hidden, "project", dtype=c.linear_dtype), "norm")
        return b.op("add", x, y, name="residual")


def _norm(run: Run, x: str, name: str) -> str:
    c = run.c
    return blocks.norm(run.b, x, c.norm, name, c.norm_bias, c.norm_scale)


# --- layers ----------------------------------------------------------------------------------------------------------


def _serial(run: Run, x: str, layer: int, caches: list[str]) -> str:
    """Mixer, then feed-forward, each added to the residual."""
    c, b = run.c, run.b
    if (mixer := c.mixer_of(layer)) != "none":
        with b.scope(_scope(mixer)):
            x = _residual(run, x, layer, lambda y: _mix(run, y, layer, caches), c.first_norm or layer > 0)
    if (feed := c.feed_of(layer)) != "none":
        with b.scope(FEED_SCOPES[feed]):
            x = _residual(run, x, layer, lambda y: FEEDS[feed](run, y, layer))
    return x


def _residual(run: Run, x: str, layer: int, branch: Callable[[str], str], normed: bool = True) -> str:
    b, c = run.b, run.c
    before, after = c.norms_of(layer)
    y = _drop(run, branch(_norm(run, x, "norm") if before and normed else x), "dropout")
    if after:
        y = _norm(run, y, "post_norm")
    if c.residual_scale:
        y = b.op("mul_scalar", y, name="residual_scaled")
    if c.residual_weights:
        x = b.op("mul", x, b.weight("residual.weight", (c.hidden,)), name="residual_weighted")
    x = b.op("add", x, y, name="residual")
    return _norm(run, x, "sum_norm") if c.sum_norms else x


def _parallel(run: Run, x: str, layer: int, caches: list[str]) -> str:
    """Mixer and feed-forward side by side, from one normed input or from two."""
    b, c = run.b, run.c
    feed = c.feed_of(layer)
    with b.scope("attn"):
        normed = _norm(run, x, "norm")
        mixed = _mix(run, normed, layer, caches)
    with b.scope(FEED_SCOPES[feed]):
        if c.block == "parallel_norms":
            normed = _norm(run, x, "norm")
        fed = FEEDS[feed](run, normed, layer)
    mixed, fed = _drop(run, mixed, "attn_dropout"), _drop(run, fed, "mlp_dropout")
    return b.op("add", x, b.op("add", mixed, fed, name="branches"), name="residual")


BLOCKS = {"serial": _serial, "parallel": _parallel, "parallel_norms": _parallel}


def _scope(mixer: str) -> str:
    return "attn" if mixer in ("sliding", "full") else "mixer"


def _mix(run: Run, x: str, layer: int, caches: list[str]) -> str:
    mixer = run.c.mixer_of(layer)
    if mixer == "full+mamba2":
        with run.b.scope("attn"):
            attended = attention(run, x, layer, caches)
        with run.b.scope("ssm"):
            scanned = state.mamba2(run, x, caches)
        return run.b.op("add", attended, scanned, name="mixed")
    if mixer in state.MIXERS:
        return state.MIXERS[mixer](run, x, caches)
    if run.c.expert_attention:
        return expert_attention(run, x, layer, caches)
    return (latent_attention if run.c.mla else attention)(run, x, layer, caches)


def _dense(run: Run, x: str, layer: int) -> str:
    return _mlp(run, x, run.c.inner_of(layer))


def _mlp(run: Run, x: str, inner: int) -> str:
    c = run.c
    return blocks.mlp(
        run.b, x, inner, c.activation,
        is_gated=c.gated, fused=c.fused_gate_up, bias=c.mlp_bias, dtype=c.linear_dtype,
        sub_norm=c.norm if c.sub_norms else "",
    )  # fmt: skip


def _experts(run: Run, x: str, _layer: int) -> str:
    y = _routed(run, x)
    return _norm(run, y, "experts_norm") if run.c.expert_norm else y


def _routed(run: Run, x: str) -> str:
    b, c = run.b, run.c
    y = blocks.moe(
        b, x, experts=c.experts, zero_experts=c.zero_experts, top_k=c.top_k, inner=c.expert_inner,
        activation=c.activation, router=c.router, router_bias=c.router_bias, score_bias=c.score_bias,
        bias=c.expert_bias, sum_bias=c.expert_sum_bias,
        is_gated=c.gated if c.expert_gated is None else c.expert_gated, dtype=c.expert_dtype or c.linear_dtype,
    )  # fmt: skip
    if not c.shared_intermediate:
        return y
    with b.scope("shared"):
        shared = _mlp(run, x, c.shared_intermediate)
        if c.shared_gate:
            gate = b.op("sigmoid", blocks.linear(b, x, 1, "gate_scalar"), name="sigmoid")
            shared = b.op("mul", shared, gate, name="scaled")
    return b.op("add", y, shared, name="with_shared")


FEEDS: dict[str, Callable[[Run, str, int], str]] = {"dense": _dense, "moe": _experts}
FEED_SCOPES = {"dense": "mlp", "moe": "moe"}


def _head(run: Run, x: str, table: str) -> str:
    b, c = run.b, run.c
    if run.phase == "prefill" and c.prefill_logits == "last":
        x = b.op("slice", x, name="last", shape=(run.batch, 1, c.hidden))
    if c.final_norm:
        x = _norm(run, x, "norm")
    if not c.head:
        return x
    if c.head_transform:
        x = blocks.linear(b, x, c.hidden, "transform", c.head_transform_bias)
        x = _norm(run, blocks.activate(b, x, c.activation), "transform_norm")
    if c.embed_width:
        x = blocks.linear(b, x, c.embed_width, "project_out")
    weights = [table if c.tied else b.weight("head.weight", (c.vocab, c.embed_width or c.hidden))]
    if c.head_bias:
        weights.append(b.weight("head.bias", (c.vocab,)))
    logits = b.op("linear", x, *weights, name="head")
    if c.logit_scale:
        logits = b.op("mul_scalar", logits, name="logits_scaled")
    return b.op("softcap", logits, name="logit_softcap") if c.logit_softcap else logits


FAMILIES = {
    "decoder": Family(
        "decoder",
        DecoderConfig,
        {phase: partial(_build, phase) for phase in ("forward", "prefill", "decode", "train")},
        "prefill",
    )
}
