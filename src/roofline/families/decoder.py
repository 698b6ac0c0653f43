"""Decoder-only language models: GPT, OPT, Llama, Mistral, Qwen, Gemma, Phi, Mixtral, DeepSeek, gpt-oss.

Phases: ``forward`` (all positions, no cache, logits everywhere), ``prefill`` (keys and values written to the cache,
logits of the last position unless the file says otherwise) and ``decode`` (one new token a sequence against a cache
of ``C`` positions, all attended, the new one included).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from pydantic import Field, model_validator

from roofline.build import Builder
from roofline.families import blocks
from roofline.families.config import Config, Count, Family, Layers, Positive
from roofline.graph import Graph
from roofline.sizes import Size, minimum, symbol

#: Activations that a file may name; ``clamped_swiglu`` is gpt-oss's.
Activation = Literal["silu", "gelu", "gelu_tanh", "gelu_new", "relu", "clamped_swiglu"]


class DecoderConfig(Config):
    """Sizes and options of a decoder.

    Attributes:
        hidden: Width of the residual stream.
        layers: Number of blocks.
        heads: Query heads.
        vocab: Rows of the token table.
        kv_heads: Key-value heads, ``heads`` when absent.
        head_dim: Width of a head, ``hidden / heads`` when absent (which must then be whole).
        intermediate: Inner size of the dense feed-forward block, ``4 * hidden`` when absent.
        positions: Rows of a learned position table, 0 for none.
        norm: Kind of norm.
        activation: Of the feed-forward block.
        gated: Whether the feed-forward block has a gate.
        rope: Whether queries and keys are rotated.
        qkv_bias: Biases of the q, k and v projections.
        out_bias: Bias of the attention output projection.
        mlp_bias: Biases of the feed-forward block.
        qk_norm: RMSNorm of each query and key head.
        post_norms: Norms after attention and feed-forward, beside those before.
        embedding_scale: Whether embeddings are multiplied by a constant.
        attention_softcap: Soft bound of the scores, 0 for none.
        logit_softcap: Soft bound of the logits, 0 for none.
        tied: Whether the head is the token table.
        fused_qkv: One projection for q, k and v. Checkpoints often store three, but serving stacks and the measured
            programs run one; the parameters are the same.
        fused_gate_up: One projection for gate and up, for the same reason.
        window: Positions that a sliding layer attends to, 0 for all.
        pattern: Kinds of layers in turn, repeated over the depth; all sliding when there is a window.
        kv_policy: ``windowed``: sliding layers keep ``min(C, window)`` positions; ``full``: all C, as an engine
            with one page size for all layers reserves.
        attention: ``sdpa`` (one kernel) or ``naive`` (scores written out, every step its own kernel).
        sinks: One learned logit a head in the softmax.
        experts: Routed experts a layer, 0 for a dense model.
        top_k: Experts a token.
        expert_intermediate: Inner size of an expert, ``intermediate`` when absent.
        shared_intermediate: Inner size of the shared experts together, 0 for none.
        shared_gate: Whether the shared experts' output is gated by a learned scalar.
        dense_layers: First layers that stay dense in a model with experts.
        router: Over the router's logits.
        router_bias: Bias of the router.
        score_bias: Learned bias of the scores (DeepSeek-V3).
        expert_bias: Biases of the experts.
        mla: Multi-head latent attention. Only this switch turns it on; the five sizes below do not.
        q_lora: Rank of the query projection, 0 for a full one.
        kv_lora: Rank of the key-value latent.
        nope_dim: Head width without position.
        rope_dim: Head width that is rotated, one key for all heads.
        value_dim: Head width of values.
        prefill_logits: Whether a prefill computes logits of the ``last`` position or of ``all``.
        linear_dtype: Number format of the layers' matrices, where it is not the file's.
        expert_dtype: Number format of the experts' matrices, where it is not the file's.
    """

    hidden: Positive
    layers: Layers
    heads: Positive
    vocab: Positive
    kv_heads: Positive | None = None
    head_dim: Positive | None = None
    intermediate: Positive | None = None
    positions: Count = 0
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    activation: Activation = "silu"
    gated: bool = True
    rope: bool = True
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    embedding_scale: bool = False
    attention_softcap: float = Field(0.0, ge=0)
    logit_softcap: float = Field(0.0, ge=0)
    tied: bool = False
    fused_qkv: bool = True
    fused_gate_up: bool = True
    window: Count = 0
    pattern: tuple[Literal["sliding", "full"], ...] = Field(("sliding",), min_length=1, max_length=2000)
    kv_policy: Literal["windowed", "full"] = "windowed"
    attention: Literal["sdpa", "naive"] = "sdpa"
    sinks: bool = False
    experts: Count = 0
    top_k: Count = 0
    expert_intermediate: Positive | None = None
    shared_intermediate: Count = 0
    shared_gate: bool = False
    dense_layers: Count = 0
    router: Literal["softmax", "sigmoid"] = "softmax"
    router_bias: bool = False
    score_bias: bool = False
    expert_bias: bool = False
    mla: bool = False
    q_lora: Count = 0
    kv_lora: Count = 0
    nope_dim: Count = 0
    rope_dim: Count = 0
    value_dim: Count = 0
    prefill_logits: Literal["last", "all"] = "last"
    linear_dtype: str = ""
    expert_dtype: str = ""

    @model_validator(mode="after")
    def _consistent(self) -> DecoderConfig:
        if self.heads % self.kv:
            raise ValueError(f"heads = {self.heads} is no multiple of kv_heads = {self.kv}")
        if not self.mla and self.head_dim is None and self.hidden % self.heads:
            raise ValueError(f"head_dim is absent, and hidden / heads = {self.hidden} / {self.heads} is not whole")
        if self.rope and (self.rope_dim if self.mla else self.width) % 2:
            raise ValueError("rotary embedding needs an even head width")
        if self.experts and not 1 <= self.top_k <= self.experts:
            raise ValueError(f"top_k = {self.top_k} must be between 1 and experts = {self.experts}")
        if self.mla and not all((self.kv_lora, self.nope_dim, self.rope_dim, self.value_dim)):
            raise ValueError("mla = true needs kv_lora, nope_dim, rope_dim and value_dim")
        return self

    @property
    def kv(self) -> int:
        """Key-value heads."""
        return self.kv_heads or self.heads

    @property
    def width(self) -> int:
        """Width of a head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def inner(self) -> int:
        """Inner size of the dense feed-forward block."""
        return self.intermediate or 4 * self.hidden

    @property
    def expert_inner(self) -> int:
        """Inner size of one expert."""
        return self.expert_intermediate or self.inner

    def window_of(self, layer: int) -> int:
        """Positions that a layer attends to, 0 for all."""
        return self.window if self.pattern[layer % len(self.pattern)] == "sliding" else 0


@dataclass(frozen=True)
class _Run:
    """One build: what the layers share.

    ``new`` positions are computed against ``context`` positions; ``mask`` is set for naive causal attention.
    """

    b: Builder
    c: DecoderConfig
    phase: str
    batch: Size
    new: Size
    context: Size
    cos: str = ""
    sin: str = ""
    mask: str = ""


def _start(b: Builder, c: DecoderConfig, phase: str) -> _Run:
    batch, length, context = symbol("B"), symbol("S"), symbol("C")
    decode = phase == "decode"
    new, held = (1, context) if decode else (length, length)
    rotary = (new, c.rope_dim if c.mla else c.width)
    return _Run(
        b, c, phase, batch, new, held,
        cos=b.input("cos", rotary) if c.rope else "",
        sin=b.input("sin", rotary) if c.rope else "",
        mask=b.input("mask", (new, held), "bool") if c.attention == "naive" and not decode else "",
    )  # fmt: skip


def _build(phase: str, b: Builder, c: DecoderConfig) -> Graph:
    run = _start(b, c, phase)
    table = b.weight("embed.weight", (c.vocab, c.hidden))
    x = _embeddings(run, table)
    caches: list[str] = []
    for layer in range(c.layers):
        with b.scope(f"layers.{layer}"):
            x = _layer(run, x, layer, caches)
    logits = _head(run, x, table)
    items = run.batch * run.new
    info = {"layers": c.layers, "kv_policy": c.kv_policy, "attention": c.attention}
    return b.graph([logits, *caches], items=items, item="token", info=info)


def _embeddings(run: _Run, table: str) -> str:
    b, c = run.b, run.c
    x = blocks.embed(b, table, b.input("ids", (run.batch, run.new), "int64"), "embed")
    if c.embedding_scale:
        x = b.op("mul_scalar", x, name="embed_scaled")
    if c.positions:
        places = b.weight("positions.weight", (c.positions, c.hidden))
        rows = blocks.embed(b, places, b.input("position_ids", (run.new,), "int64"), "positions")
        x = b.op("add", x, rows, name="embed_positions")
    return x


def _layer(run: _Run, x: str, layer: int, caches: list[str]) -> str:
    b, c = run.b, run.c
    attend = _latent_attention if c.mla else _attention
    with b.scope("attn"):
        y = attend(run, blocks.norm(b, x, c.norm, "norm"), layer, caches)
        if c.post_norms:
            y = blocks.norm(b, y, c.norm, "post_norm")
        x = b.op("add", x, y, name="residual")
    routed = c.experts and layer >= c.dense_layers
    with b.scope("moe" if routed else "mlp"):
        y = blocks.norm(b, x, c.norm, "norm")
        y = _experts(run, y) if routed else _mlp(run, y, c.inner)
        if c.post_norms:
            y = blocks.norm(b, y, c.norm, "post_norm")
        return b.op("add", x, y, name="residual")


def _mlp(run: _Run, x: str, inner: int) -> str:
    c = run.c
    return blocks.mlp(
        run.b, x, inner, c.activation,
        is_gated=c.gated, fused=c.fused_gate_up, bias=c.mlp_bias, dtype=c.linear_dtype,
    )  # fmt: skip


def _experts(run: _Run, x: str) -> str:
    b, c = run.b, run.c
    y = blocks.moe(
        b, x, experts=c.experts, top_k=c.top_k, inner=c.expert_inner, activation=c.activation, router=c.router,
        router_bias=c.router_bias, score_bias=c.score_bias, bias=c.expert_bias,
        dtype=c.expert_dtype or c.linear_dtype,
    )  # fmt: skip
    if not c.shared_intermediate:
        return y
    with b.scope("shared"):
        shared = _mlp(run, x, c.shared_intermediate)
        if c.shared_gate:
            gate = b.op("sigmoid", blocks.linear(b, x, 1, "gate_scalar"), name="sigmoid")
            shared = b.op("mul", shared, gate, name="scaled")
    return b.op("add", y, shared, name="with_shared")


def _head(run: _Run, x: str, table: str) -> str:
    b, c = run.b, run.c
    if run.phase == "prefill" and c.prefill_logits == "last":
        x = b.op("slice", x, name="last", shape=(run.batch, 1, c.hidden))
    x = blocks.norm(b, x, c.norm, "norm")
    weight = table if c.tied else b.weight("head.weight", (c.vocab, c.hidden))
    logits = b.op("linear", x, weight, name="head")
    return b.op("softcap", logits, name="logit_softcap") if c.logit_softcap else logits


# --- multi-head and grouped attention -------------------------------------------------------------------------------


def _projections(run: _Run, x: str) -> tuple[str, str, str]:
    b, c = run.b, run.c
    q_width, kv_width = c.heads * c.width, c.kv * c.width
    if c.fused_qkv:
        qkv = blocks.linear(b, x, q_width + 2 * kv_width, "qkv", c.qkv_bias, c.linear_dtype)
        q, k, v = (blocks.part(b, qkv, w, n) for n, w in (("q", q_width), ("k", kv_width), ("v", kv_width)))
    else:
        sizes = (("q", q_width), ("k", kv_width), ("v", kv_width))
        q, k, v = (blocks.linear(b, x, w, n, c.qkv_bias, c.linear_dtype) for n, w in sizes)
    return (
        blocks.split_heads(b, q, c.heads, "q_heads"),
        blocks.split_heads(b, k, c.kv, "k_heads"),
        blocks.split_heads(b, v, c.kv, "v_heads"),
    )


def _attention(run: _Run, x: str, layer: int, caches: list[str]) -> str:
    b, c = run.b, run.c
    q, k, v = _projections(run, x)
    if c.qk_norm:
        q, k = blocks.norm(b, q, "rmsnorm", "q_norm"), blocks.norm(b, k, "rmsnorm", "k_norm")
    if c.rope:
        q, k = blocks.rope(b, q, run.cos, run.sin, "rope_q"), blocks.rope(b, k, run.cos, run.sin, "rope_k")
    window = c.window_of(layer)
    keys, values = _store(run, k, "k_cache", window, caches), _store(run, v, "v_cache", window, caches)
    sinks = b.weight("sinks", (c.heads,)) if c.sinks else None
    y = _attend(run, q, keys, values, window, sinks)
    return blocks.linear(b, blocks.merge_heads(b, y), c.hidden, "out", c.out_bias, c.linear_dtype)


def _store(run: _Run, new: str, name: str, window: int, caches: list[str]) -> str:
    """Write the new positions to the cache; returns what attention reads: the cache in decode, else ``new``."""
    if run.phase == "forward":
        return new
    b, c = run.b, run.c
    batch, heads, length, width = b.shape(new)
    kept = minimum(run.context, window) if window and c.kv_policy == "windowed" else run.context
    cache = b.cache(name, (batch, heads, kept, width))
    decode = run.phase == "decode"
    if not decode and kept != length:
        tail = b.op("slice", new, name=f"{name}_tail", shape=(batch, heads, kept, width))
    else:
        tail = new
    caches.append(b.op("cache_update", cache, tail, name=f"{name}_update"))
    return caches[-1] if decode else new


def _attend(run: _Run, q: str, k: str, v: str, window: int, sinks: str | None = None) -> str:
    b, c = run.b, run.c
    if c.attention == "naive":
        mask = run.mask or None
        return blocks.naive_attention(b, q, k, v, mask=mask, softcap=c.attention_softcap, sinks=sinks)
    decode = run.phase == "decode"
    # A windowed cache holds only what is attended, so there is nothing left to mask.
    window = 0 if decode and c.kv_policy == "windowed" else window
    return blocks.attention(
        b, q, k, v, causal=not decode, window=window, softcap=c.attention_softcap, sinks=sinks
    )  # fmt: skip


# --- multi-head latent attention (DeepSeek-V2, section 2.1; DeepSeek-V3, section 2.1.1) ------------------------------


def _latent_queries(run: _Run, x: str) -> tuple[str, str]:
    """Queries without and with position, ``(B, heads, S, nope)`` and ``(B, heads, S, rope)``."""
    b, c = run.b, run.c
    if c.q_lora:
        x = blocks.norm(b, blocks.linear(b, x, c.q_lora, "q_a", dtype=c.linear_dtype), c.norm, "q_a_norm")
    q = blocks.linear(b, x, c.heads * (c.nope_dim + c.rope_dim), "q_b", dtype=c.linear_dtype)
    heads = blocks.split_heads(b, q, c.heads, "q_heads")
    nope, turned = blocks.part(b, heads, c.nope_dim, "q_nope"), blocks.part(b, heads, c.rope_dim, "q_pe")
    return nope, blocks.rope(b, turned, run.cos, run.sin, "rope_q")


def _latent(run: _Run, x: str) -> tuple[str, str]:
    """The latent ``(B, S, kv_lora)`` and the rotated key that all heads share ``(B, 1, S, rope)``."""
    b, c = run.b, run.c
    both = blocks.linear(b, x, c.kv_lora + c.rope_dim, "kv_a", dtype=c.linear_dtype)
    latent = blocks.norm(b, blocks.part(b, both, c.kv_lora, "kv_latent"), c.norm, "kv_a_norm")
    key = blocks.split_heads(b, blocks.part(b, both, c.rope_dim, "k_pe"), 1, "k_pe_head")
    return latent, blocks.rope(b, key, run.cos, run.sin, "rope_k")


def _latent_attention(run: _Run, x: str, layer: int, caches: list[str]) -> str:
    b, c = run.b, run.c
    nope, turned = _latent_queries(run, x)
    latent, key = _latent(run, x)
    up = b.weight("kv_b.weight", (c.heads * (c.nope_dim + c.value_dim), c.kv_lora), c.linear_dtype or None)
    if run.phase != "forward":
        joined = b.op("cat", blocks.split_heads(b, latent, 1, "latent_head"), key, name="latent_key")
        stored = _store(run, joined, "latent_cache", 0, caches)
    if run.phase == "decode":
        y = _absorbed(run, nope, turned, stored, up)
    else:
        y = _expanded(run, nope, turned, latent, key, up)
    return blocks.linear(b, blocks.merge_heads(b, y), c.hidden, "out", c.out_bias, c.linear_dtype)


def _expanded(run: _Run, nope: str, turned: str, latent: str, key: str, up: str) -> str:
    """Keys and values of every head computed from the latent: the cheaper form for many queries."""
    b, c = run.b, run.c
    heads = blocks.split_heads(b, b.op("linear", latent, up, name="kv_b"), c.heads, "kv_heads")
    shared = b.op("expand", key, name="k_pe_all", shape=(run.batch, c.heads, run.new, c.rope_dim))
    k = b.op("cat", blocks.part(b, heads, c.nope_dim, "k_nope"), shared, name="k")
    q = b.op("cat", nope, turned, name="q")
    return _attend(run, q, k, blocks.part(b, heads, c.value_dim, "v"), 0)


def _absorbed(run: _Run, nope: str, turned: str, cache: str, up: str) -> str:
    """The up-projection moved to the query and output side: attention reads only the latent."""
    b, c = run.b, run.c
    key_up = b.op("slice", up, name="kv_b_k", shape=(c.heads, c.nope_dim, c.kv_lora))
    value_up = b.op("slice", up, name="kv_b_v", shape=(c.heads, c.kv_lora, c.value_dim))
    by_head = b.op("view", nope, name="q_by_head", shape=(c.heads, run.batch, c.nope_dim))
    absorbed = b.op("bmm", by_head, key_up, name="absorb_k")
    absorbed = b.op("view", absorbed, name="q_latent", shape=(run.batch, c.heads, 1, c.kv_lora))
    q = b.op("cat", absorbed, turned, name="q")
    values = b.op("slice", cache, name="latent_values", shape=(*b.shape(cache)[:-1], c.kv_lora))
    y = _attend(run, q, cache, values, 0)
    y = b.op("view", y, name="y_by_head", shape=(c.heads, run.batch, c.kv_lora))
    y = b.op("bmm", y, value_up, name="absorb_v")
    return b.op("view", y, name="y", shape=(run.batch, c.heads, 1, c.value_dim))


FAMILIES = {
    "decoder": Family(
        "decoder",
        DecoderConfig,
        {phase: partial(_build, phase) for phase in ("forward", "prefill", "decode")},
        "prefill",
    )
}
