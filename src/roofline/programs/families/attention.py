"""How decoders attend: multi-head and grouped attention, and multi-head latent attention, with their caches."""

from __future__ import annotations

from dataclasses import dataclass, field

from roofline.ir.sizes import Size, minimum
from roofline.ops.builder import Builder
from roofline.programs.families import blocks
from roofline.programs.families.decoder_config import DecoderConfig


@dataclass(frozen=True)
class Run:
    """One build: what the layers share.

    ``new`` positions are computed against ``context`` positions; ``mask`` is set for naive causal attention, ``alibi``
    where a bias is added to the scores. ``tables`` has the cosines and sines of heads of other widths, ``held`` the
    keys and values of the last layer of each kind.
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
    alibi: str = ""
    tables: dict[int, tuple[str, str]] = field(default_factory=dict)
    held: dict[str, tuple[str, str]] = field(default_factory=dict)

    @property
    def caches(self) -> bool:
        """Whether keys, values and states are kept for later positions."""
        return self.phase in ("prefill", "decode")

    @property
    def drops(self) -> bool:
        """Whether dropout runs."""
        return self.phase == "train" and self.c.dropout


# --- multi-head and grouped attention -------------------------------------------------------------------------------


def _projections(run: Run, x: str, layer: int) -> tuple[str, str, str]:
    """Queries, keys and values, all heads beside each other; the queries twice as wide where half of them is a gate."""
    b, c = run.b, run.c
    heads, width, kv = c.heads_of(layer), c.width_of(layer), c.kv_of(layer)
    widths = (heads * width * (1 + c.attention_gate), kv * width, kv * (c.value_width or width))
    if c.shares(layer):
        return blocks.linear(b, x, widths[0], "q", c.qkv_bias, c.linear_dtype), "", ""
    if c.keys_as_values and not c.window_of(layer):
        qk = blocks.linear(b, x, widths[0] + widths[1], "qk", c.qkv_bias, c.linear_dtype)
        q, k = blocks.part(b, qk, widths[0], "q"), blocks.part(b, qk, widths[1], "k")
        return q, k, k
    sizes = tuple(zip("qkv", widths, strict=True))
    if c.fused_qkv:
        qkv = blocks.linear(b, x, sum(widths), "qkv", c.qkv_bias, c.linear_dtype)
        q, k, v = (blocks.part(b, qkv, w, n) for n, w in sizes)
    else:
        q, k, v = (blocks.linear(b, x, w, n, c.qkv_bias, c.linear_dtype) for n, w in sizes)
    return q, k, v


def _normed_heads(run: Run, x: str, heads: int, name: str) -> str:
    """Split into heads, normed before or after as the model does."""
    b, c = run.b, run.c
    if not c.qk_norm:
        return blocks.split_heads(b, x, heads, f"{name}_heads")
    if c.qk_norm_over == "width":
        x = blocks.norm(b, x, c.qk_norm_kind, f"{name}_norm", c.qk_norm_bias)
        return blocks.split_heads(b, x, heads, f"{name}_heads")
    x = blocks.split_heads(b, x, heads, f"{name}_heads")
    if c.qk_norm_over == "head":
        return blocks.norm(b, x, c.qk_norm_kind, f"{name}_norm", c.qk_norm_bias, c.qk_norm_scale)
    plain = b.op(c.qk_norm_kind, x, name=f"{name}_norm")
    scale = b.weight(f"{name}_norm.weight", (heads, 1, c.width))
    return b.op("mul", plain, scale, name=f"{name}_norm_scaled")


def attention(run: Run, x: str, layer: int, caches: list[str]) -> str:
    """Multi-head, grouped or multi-query attention, to a window or to all positions."""
    b, c = run.b, run.c
    heads, gate, window = c.heads_of(layer), "", c.window_of(layer)
    q, k, v = _projections(run, x, layer)
    if c.attention_gate:
        width = heads * c.width_of(layer)
        q, gate = blocks.part(b, q, width, "q_part"), blocks.part(b, q, width, "gate")
    q = _positioned(run, _normed_heads(run, q, heads, "q"), layer, "rope_q")
    if not c.shares(layer):
        run.held[c.mixer_of(layer)] = _keys_and_values(run, k, v, layer, caches)
    if c.indexes(layer):
        _index(run, x, x, caches)
    keys, values = run.held[c.mixer_of(layer)]
    sinks = b.weight("sinks", (heads,)) if c.sinks_in(layer) else None
    attend = _difference if c.differential else _attend
    bias = _value_bias(run, values, c.kv_of(layer)) if c.value_bias else None
    y = blocks.merge_heads(b, _gated(run, x, attend(run, q, keys, values, window, sinks, bias)))
    if gate:
        y = b.op("mul", y, b.op("sigmoid", gate, name="gate_sigmoid"), name="gated")
    if c.sub_norms:
        y = blocks.norm(b, y, c.norm, "sub_norm")
    return blocks.linear(b, y, c.hidden, "out", c.out_bias_of(layer), c.linear_dtype)


def _gated(run: Run, x: str, y: str) -> str:
    """Attention's output times a gate with a projection of its own, where the model has one."""
    b, c = run.b, run.c
    if c.output_gate == "none":
        return y
    heads, width = b.shape(y)[1], b.shape(y)[3] if c.output_gate == "width" else 1
    gate = blocks.linear(b, x, heads * width, "output_gate", dtype=c.linear_dtype)
    gate = b.op("view", gate, name="output_gate_heads", shape=(run.batch, heads, run.new, width))
    if c.output_gate_bias:
        gate = b.op("add", gate, b.weight("output_gate.bias", (heads, 1, 1)), name="output_gate_biased")
    return b.op("mul", y, b.op(c.output_gate_activation, gate, name="output_gate_act"), name="output_gated")


def _positioned(run: Run, x: str, layer: int, name: str) -> str:
    cos, sin = run.tables.get(run.c.width_of(layer), (run.cos, run.sin))
    return blocks.rope(run.b, x, cos, sin, name) if run.c.turns(layer) else x


def _keys_and_values(run: Run, k: str, v: str, layer: int, caches: list[str]) -> tuple[str, str]:
    """What a layer attends to: its keys and values, or in decode the caches that they are written to."""
    b, c = run.b, run.c
    kv, window = c.kv_of(layer), c.window_of(layer)
    k = _normed_heads(run, k, kv, "k")
    v = blocks.split_heads(b, v, kv, "v_heads")
    if c.value_norm:
        v = blocks.norm(b, v, c.qk_norm_kind, "v_norm", scale=False)
    if c.value_scale:
        v = b.op("mul_scalar", v, name="v_scaled")
    k = _positioned(run, k, layer, "rope_k")
    return _store(run, k, "k_cache", window, caches), _store(run, v, "v_cache", window, caches)


def _store(run: Run, new: str, name: str, window: int, caches: list[str]) -> str:
    """Write the new positions to the cache; returns what attention reads: the cache in decode, else ``new``."""
    if not run.caches:
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


def _attend(run: Run, q: str, k: str, v: str, window: int, sinks: str | None = None, bias: str | None = None) -> str:
    b, c = run.b, run.c
    bias = bias or run.alibi or None
    if c.attention == "naive":
        return blocks.naive_attention(
            b, q, k, v, mask=run.mask or None, softcap=c.attention_softcap, bias=bias, sinks=sinks, dropout=run.drops
        )
    decode = run.phase == "decode"
    # A windowed cache holds only what is attended, so there is nothing left to mask.
    window = 0 if decode and c.kv_policy == "windowed" else window
    return blocks.attention(
        b, q, k, v, causal=not decode, window=window, softcap=c.attention_softcap, bias=bias, sinks=sinks,
        dropout=run.drops,
    )  # fmt: skip


# --- the choice of positions (DeepSeek-V3.2, section 2.1) -------------------------------------------------------------


def _index(run: Run, source: str, x: str, caches: list[str]) -> None:
    """Scores of all positions by a small attention of its own, with one key for all heads."""
    b, c = run.b, run.c
    weighted = c.index_kind == "weighted"
    with b.scope("index"):
        q = blocks.linear(b, source, c.index_heads * c.index_dim, "q", dtype=c.linear_dtype)
        q = blocks.split_heads(b, q, c.index_heads, "q_heads")
        key = blocks.linear(b, x, c.index_dim, "k", dtype=c.linear_dtype)
        key = blocks.norm(b, key, "layernorm" if weighted else "rmsnorm", "k_norm")
        q = q if weighted else blocks.norm(b, q, "rmsnorm", "q_norm")
        key = blocks.split_heads(b, key, 1, "k_head")
        q, key = blocks.rope(b, q, run.cos, run.sin, "rope_q"), blocks.rope(b, key, run.cos, run.sin, "rope_k")
        keys, causal = _store(run, key, "index_cache", 0, caches), run.phase != "decode" and c.attention != "naive"
        if not weighted:
            b.op("attention_scores", q, keys, name="scores", causal=causal)
            return
        weights = blocks.linear(b, x, c.index_heads, "weights", dtype=c.linear_dtype)
        rows, held = run.batch * run.new, b.shape(keys)[2]
        weights = b.op("view", weights, name="by_row", shape=(rows, 1, c.index_heads))
        with b.kernel("scoring"):
            scores = b.op("relu", b.op("attention_scores", q, keys, name="scores", causal=causal), name="relu")
            scores = b.op("view", scores, name="scores_by_row", shape=(rows, c.index_heads, held))
            b.op("bmm", weights, scores, name="summed")


def _value_bias(run: Run, values: str, kv: int) -> str:
    """Doge's dynamic mask, ``exp(a * softplus(values W))`` for each key and key-value head, before what it drops."""
    b, c = run.b, run.c
    batch, _, held, _ = b.shape(values)
    steps = blocks.linear(b, blocks.merge_heads(b, values, "values_whole"), kv, "dt", c.qkv_bias, c.linear_dtype)
    scaled = b.op("mul", b.op("softplus", steps, name="dt_softplus"), b.weight("dt.a", (kv,)), name="dt_scaled")
    mask = b.op("view", b.op("exp", scaled, name="dt_exp"), name="dt_heads", shape=(batch, kv, 1, 1, held))
    mask = b.op("expand", mask, name="dt_all", shape=(batch, kv, c.heads // kv, 1, held))
    return b.op("view", mask, name="dt_mask", shape=(batch, c.heads, 1, held))


def _difference(
    run: Run, q: str, k: str, v: str, window: int, sinks: str | None = None, bias: str | None = None
) -> str:
    """``(softmax(q1 k1) - lambda softmax(q2 k2)) v`` with values twice as wide, as two attentions over all heads, one
    for each half of the values (Differential Transformer, 2024, in the order of transformers).
    """
    b = run.b
    batch, heads, new, width = b.shape(q)
    parts = []
    for name in ("first", "second"):
        with b.scope(name):
            half = b.op("slice", v, name="v_half", shape=(batch, b.shape(v)[1] // 2, *b.shape(v)[2:]))
            twice = b.op("cat", half, half, name="v_twice", axis=1)
            parts.append(_attend(run, q, k, twice, window, sinks, bias))
    both = b.op("cat", *parts, name="both")
    kept, taken = (
        b.op("slice", both, name=name, shape=(batch, heads // 2, new, 2 * width)) for name in ("kept", "taken")
    )
    y = b.op("sub", kept, b.op("mul", taken, _difference_weight(run), name="weighted"), name="difference")
    y = b.op("mul_scalar", b.op("rmsnorm", y, name="pair_norm"), name="pair_scaled")
    return b.op("view", y, name="pairs", shape=(batch, heads, new, width))


def _difference_weight(run: Run) -> str:
    """``exp(q1 . k1) - exp(q2 . k2)`` plus a constant of the layer."""
    b, shares = run.b, []
    for index in (1, 2):
        q, k = (b.weight(f"lambda_{name}{index}", (run.c.width,)) for name in "qk")
        total = b.op("reduce", b.op("mul", q, k, name=f"lambda{index}_qk"), name=f"lambda{index}_sum", keepdim=True)
        shares.append(b.op("exp", total, name=f"lambda{index}"))
    return b.op("add_scalar", b.op("sub", *shares, name="lambda_difference"), name="lambda")


# --- attention whose heads are experts (JetMoE, section 2.3) ---------------------------------------------------------


def expert_attention(run: Run, x: str, layer: int, caches: list[str]) -> str:
    """Each token's chosen experts give it a set of query heads and project their outputs; keys and values are shared
    between the sets.
    """
    b, c = run.b, run.c
    tokens = run.batch * run.new
    pairs, inner, dtype = tokens * c.top_k, c.kv * c.width, c.expert_dtype or c.linear_dtype
    rows = b.op("view", x, name="rows", shape=(tokens, c.hidden))
    scores = b.op(c.router, blocks.linear(b, rows, c.experts, "router"), name="scores")
    chosen = b.op("topk", scores, name="topk", k=c.top_k)
    index = b.op("view", chosen, name="index", shape=(pairs,))
    routed = b.op("gather_rows", rows, index, name="routed")
    q = blocks.expert_linear(b, routed, c.experts, inner, "q", c.top_k, False, dtype)
    q = b.op("scatter_add", q, name="q_in_order", t=pairs)
    q = b.op("view", q, name="q_heads", shape=(run.batch, c.heads, run.new, c.width))
    both = blocks.linear(b, x, 2 * inner, "kv", c.qkv_bias, c.linear_dtype)
    k, v = (blocks.split_heads(b, blocks.part(b, both, inner, n), c.kv, f"{n}_heads") for n in ("k", "v"))
    if c.turns(layer):
        q, k = blocks.rope(b, q, run.cos, run.sin, "rope_q"), blocks.rope(b, k, run.cos, run.sin, "rope_k")
    window = c.window_of(layer)
    keys, values = _store(run, k, "k_cache", window, caches), _store(run, v, "v_cache", window, caches)
    y = b.op("view", _attend(run, q, keys, values, window), name="by_pair", shape=(pairs, inner))
    y = b.op("gather_rows", y, index, name="y_routed")
    y = blocks.expert_linear(b, y, c.experts, c.hidden, "out", c.top_k, False, dtype)
    share = b.op("view", chosen, name="share", shape=(pairs, 1))
    y = b.op("scatter_add", b.op("mul", y, share, name="weighted"), name="combined", t=tokens)
    if c.expert_sum_bias:
        y = b.op("add", y, b.weight("sum.bias", (c.hidden,)), name="combined_biased")
    return b.op("view", y, name="whole", shape=(run.batch, run.new, c.hidden))


# --- multi-head latent attention (DeepSeek-V2, section 2.1; DeepSeek-V3, section 2.1.1) ------------------------------


def _query_latent(run: Run, x: str) -> str:
    """What queries are projected from: the normed latent, or the input itself where there is none."""
    b, c = run.b, run.c
    if not c.q_lora:
        return x
    return blocks.norm(b, blocks.linear(b, x, c.q_lora, "q_a", c.qkv_bias, c.linear_dtype), c.norm, "q_a_norm")


def _turned(run: Run, x: str, name: str) -> str:
    return blocks.rope(run.b, x, run.cos, run.sin, name) if run.c.rope else x


def _latent_queries(run: Run, x: str) -> tuple[str, str]:
    """Queries without and with position, ``(B, heads, S, nope)`` and ``(B, heads, S, rope)``."""
    b, c = run.b, run.c
    q = blocks.linear(b, x, c.heads * (c.nope_dim + c.rope_dim), "q_b", dtype=c.linear_dtype)
    heads = blocks.split_heads(b, q, c.heads, "q_heads")
    nope, turned = blocks.part(b, heads, c.nope_dim, "q_nope"), blocks.part(b, heads, c.rope_dim, "q_pe")
    return nope, _turned(run, turned, "rope_q")


def _latent(run: Run, x: str) -> tuple[str, str]:
    """The latent ``(B, S, kv_lora)`` and the rotated key that all heads share ``(B, 1, S, rope)``."""
    b, c = run.b, run.c
    both = blocks.linear(b, x, c.kv_lora + c.rope_dim, "kv_a", c.qkv_bias, c.linear_dtype)
    latent = blocks.norm(b, blocks.part(b, both, c.kv_lora, "kv_latent"), c.norm, "kv_a_norm")
    key = blocks.split_heads(b, blocks.part(b, both, c.rope_dim, "k_pe"), 1, "k_pe_head")
    return latent, _turned(run, key, "rope_k")


def latent_attention(run: Run, x: str, layer: int, caches: list[str]) -> str:
    """Multi-head latent attention; decode absorbs the up-projections into queries and output."""
    b, c = run.b, run.c
    source = _query_latent(run, x)
    nope, turned = _latent_queries(run, source)
    latent, key = _latent(run, x)
    up = b.weight("kv_b.weight", (c.heads * (c.nope_dim + c.value_dim), c.kv_lora), c.linear_dtype or None)
    if run.caches:
        joined = b.op("cat", blocks.split_heads(b, latent, 1, "latent_head"), key, name="latent_key")
        stored = _store(run, joined, "latent_cache", 0, caches)
    if c.indexes(layer):
        _index(run, source, x, caches)
    if run.phase == "decode":
        y = _absorbed(run, nope, turned, stored, up)
    else:
        y = _expanded(run, nope, turned, latent, key, up)
    y = blocks.merge_heads(b, _gated(run, x, y))
    return blocks.linear(b, y, c.hidden, "out", c.out_bias, c.linear_dtype)


def _expanded(run: Run, nope: str, turned: str, latent: str, key: str, up: str) -> str:
    """Keys and values of every head computed from the latent: the cheaper form for many queries."""
    b, c = run.b, run.c
    heads = blocks.split_heads(b, b.op("linear", latent, up, name="kv_b"), c.heads, "kv_heads")
    shared = b.op("expand", key, name="k_pe_all", shape=(run.batch, c.heads, run.new, c.rope_dim))
    k = b.op("cat", blocks.part(b, heads, c.nope_dim, "k_nope"), shared, name="k")
    q = b.op("cat", nope, turned, name="q")
    return _attend(run, q, k, blocks.part(b, heads, c.value_dim, "v"), 0)


def _absorbed(run: Run, nope: str, turned: str, cache: str, up: str) -> str:
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
