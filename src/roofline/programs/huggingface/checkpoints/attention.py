"""Checkpoints that attend in a way of their own: the layers, how their configs are read, one row per ``model_type``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from roofline.programs.architectures import decoder as parts
from roofline.programs.architectures.config import Count, Positive, in_turn
from roofline.programs.architectures.decoder_keys import DecoderConfig
from roofline.programs.huggingface import experts, groups
from roofline.programs.huggingface.keys import Keys, row
from roofline.programs.layers.attention import Attention, OutputGate
from roofline.programs.layers.base import Chain, Layer, Norm, Residual, Run, Scaled, become
from roofline.programs.layers.primitives import activate, embed, linear, merge_heads, norm, part, rope, split_heads


def attention_as(kind: type[Attention]) -> parts.Compose:
    """Return a composer of the usual attention as one of a derived class."""
    return lambda c, layer: become(kind, parts.attention(c, layer))


def full_every(c: Keys, step: int, also: int) -> list[str]:
    """Return full attention in every ``step``-th layer and in one more, windows in the others."""
    return ["full" if (layer + 1) % step == 0 or layer == also else "sliding" for layer in c.layers]


# --- DiffLlama, in the order of transformers (Differential Transformer, 2024) ----------------------------------------


@dataclass(frozen=True)
class DifferentialAttention(Attention):
    """``(softmax(q1 k1) - lambda softmax(q2 k2)) v`` with values twice as wide.

    It runs as two attentions over all heads, one for each half of the values.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % 2 or self.kv_heads % 2:
            raise ValueError("differential attention needs an even number of heads and of key-value heads")

    def attend(self, run: Run, q: str, k: str, v: str, bias: str = "") -> str:
        """Add both attentions and their difference."""
        b = run.b
        batch, heads, new, width = b.shape(q)
        halves = []
        for name in ("first", "second"):
            with b.scope(name):
                half = b.op("slice", v, name="v_half", shape=(batch, b.shape(v)[1] // 2, *b.shape(v)[2:]))
                halves.append(super().attend(run, q, k, b.op("cat", half, half, name="v_twice", axis=1), bias))
        both = b.op("cat", *halves, name="both")
        shape = (batch, heads // 2, new, 2 * width)
        first, second = (b.op("slice", both, name=name, shape=shape) for name in ("kept", "taken"))
        y = b.op("sub", first, b.op("mul", second, self.weight(run), name="weighted"), name="difference")
        y = b.op("mul_scalar", b.op("rmsnorm", y, name="pair_norm"), name="pair_scaled")
        return b.op("view", y, name="pairs", shape=(batch, heads, new, width))

    def weight(self, run: Run) -> str:
        """Return ``exp(q1 . k1) - exp(q2 . k2)`` plus a constant of the layer."""
        b, shares = run.b, []
        for index in (1, 2):
            q, k = (b.weight(f"lambda_{name}{index}", (self.width,)) for name in "qk")
            total = b.op("reduce", b.op("mul", q, k, name=f"lambda{index}_qk"), name=f"lambda{index}_sum", keepdim=True)
            shares.append(b.op("exp", total, name=f"lambda{index}"))
        return b.op("add_scalar", b.op("sub", *shares, name="lambda_difference"), name="lambda")


# --- Doge: a bias of the scores from the values, and a weighted residual ---------------------------------------------


@dataclass(frozen=True)
class DynamicMaskAttention(Attention):
    """Attention with a mask ``exp(a * softplus(values W))`` for each key and key-value head, before what it drops."""

    def attend(self, run: Run, q: str, k: str, v: str, bias: str = "") -> str:
        """Attend with the mask as a bias of the scores."""
        return super().attend(run, q, k, v, self.mask(run, v))

    def mask(self, run: Run, values: str) -> str:
        """Return the mask ``(B, heads, 1, K)``."""
        b, kv = run.b, self.kv_heads
        batch, _, held, _ = b.shape(values)
        steps = run.linear(merge_heads(b, values, "values_whole"), kv, "dt", self.qkv_bias)
        scaled = b.op("mul", b.op("softplus", steps, name="dt_softplus"), b.weight("dt.a", (kv,)), name="dt_scaled")
        mask = b.op("view", b.op("exp", scaled, name="dt_exp"), name="dt_heads", shape=(batch, kv, 1, 1, held))
        mask = b.op("expand", mask, name="dt_all", shape=(batch, kv, self.heads // kv, 1, held))
        return b.op("view", mask, name="dt_mask", shape=(batch, self.heads, 1, held))


@dataclass(frozen=True)
class WeightedResidual(Residual):
    """A residual that is multiplied by a learned vector before something is added."""

    def carry(self, run: Run, x: str) -> str:
        """Return the weighted residual."""
        return run.b.op("mul", x, run.b.weight("residual.weight", (run.width,)), name="residual_weighted")


def _doge(c: Keys) -> dict[str, Any]:
    """Check what is not understood: the mask drops all but the ``keep_window_size`` largest of longer contexts."""
    c.ignore("num_experts", "num_experts_per_tok")
    if c.switch("is_moe"):
        c.fail("is_moe", "experts found by product keys are not understood yet; allowed: false")
    c.notes.append(f"keep_window_size = {c.needed('keep_window_size')}: longer contexts are counted as attended whole")
    return {}


# --- Llama 4: queries and keys normed where they are rotated, queries scaled by their position where not -------------


class Llama4Config(DecoderConfig):
    """A decoder's keys and Llama 4's own."""

    tempered: bool = False  #: Whether queries of layers that do not rotate are scaled by their position.


@dataclass(frozen=True)
class TemperedAttention(Attention):
    """Attention whose queries are scaled by their position."""

    def position(self, run: Run, x: str, name: str) -> str:
        """Scale queries."""
        return x if name != "rope_q" else run.b.op("mul", x, run.b.input("temperature", (run.new, 1)), name="tempered")


def _llama4_attention(c: Llama4Config, layer: int) -> Layer:
    usual = parts.attention(c, layer)
    if usual.rotates:
        return usual
    return become(TemperedAttention if c.tempered else Attention, replace(usual, norm=None))


LLAMA4 = parts.variant(Llama4Config, attend=_llama4_attention)


# --- Laguna, Beam, LFM3, Bailing: a gate of the output with a projection of its own ----------------------------------


class GateConfig(DecoderConfig):
    """A decoder's keys and those of the gate."""

    output_gate: Literal["none", "head", "width"] = "none"  #: One number for each ``head``, or for the whole ``width``.
    #: Query heads of each layer, in turn, where they are not all ``heads``.
    heads_pattern: tuple[Positive, ...] = Field((), max_length=2000)


def gated(**options: Any) -> parts.Compose:
    """Return a composer of attention of either kind with a gate of its output."""

    def attend(c: GateConfig, layer: int) -> Layer:
        gate = OutputGate(c.output_gate == "width", **options) if c.output_gate != "none" else None
        if c.mla:
            return replace(parts.latent_attention(c, layer), gate=gate)
        return replace(parts.attention(c, layer), heads=in_turn(c.heads_pattern, layer, c.heads), gate=gate)

    return attend


def _laguna(c: Keys) -> dict[str, Any]:
    """Read query heads of each layer, and a gate of attention for each head or for each of its columns."""
    gates = {"True": "head", "per-head": "head", "False": "width", "per-element": "width"}
    gating, listed = str(c.get("gating")), c.sizes("num_attention_heads_per_layer")
    if gating not in gates:
        c.fail("gating", f"{gating[:60]!r} is not understood; allowed: true, per-head, per-element")
    if listed is not None and (len(listed) != len(c.layers) or not all(listed)):
        c.fail("num_attention_heads_per_layer", f"expected a number from 1 for each layer, given {str(listed)[:60]}")
    c.notes.append("rope_parameters: heads are counted as rotated whole in all layers")
    return {"output_gate": gates[gating], "heads_pattern": listed}


def _laguna_experts(c: Keys) -> dict[str, Any]:
    """Read experts where ``mlp_layer_types`` says, and a shared block of its own size."""
    routed = experts.deepseek(c)
    return {**routed, "shared_intermediate": c.size("shared_expert_intermediate_size", least=0) or 0} if routed else {}


# --- MiMo-V2: values of a width of their own, twice the key-value heads in windows -----------------------------------


class MiMoConfig(DecoderConfig):
    """A decoder's keys and MiMo's own."""

    value_width: Positive | None = None  #: Width of a value head, that of a key head when absent.
    value_scale: bool = False  #: Whether values are multiplied by a constant.


@dataclass(frozen=True)
class MiMoAttention(Attention):
    """Attention whose values have a width of their own and may be scaled."""

    value_width: int = 0
    value_scale: bool = False

    @property
    def widths(self) -> tuple[int, int, int]:
        """Columns of queries, keys and values."""
        return self.heads * self.width, self.kv_heads * self.width, self.kv_heads * self.value_width

    def values(self, run: Run, v: str) -> str:
        """Return the values as they are attended to."""
        return run.b.op("mul_scalar", v, name="v_scaled") if self.value_scale else v


def _mimo_attention(c: MiMoConfig, layer: int) -> Layer:
    return become(MiMoAttention, parts.attention(c, layer), sinks=c.sinks and c.window_of(layer) > 0,
                  value_width=c.value_width or c.width, value_scale=c.value_scale)  # fmt: skip


def _mimo(c: Keys) -> dict[str, Any]:
    """Read the window, which may be given without the query itself, and the heads that follow from it."""
    size = c.size("sliding_window_size")
    mixers = groups.window(c.having(sliding_window=size + 1) if size else c)
    kv = c.needed("num_key_value_heads")
    twice = [kv * (1 + (mixer == "sliding")) for mixer in mixers.get("pattern", ("full",))]
    return {**mixers, "kv_pattern": twice, "value_width": c.needed("v_head_dim"),
            "value_scale": c.number("attention_value_scale") not in (0, 1)}  # fmt: skip


def _mimo_experts(c: Keys) -> dict[str, Any]:
    """Read experts in all layers but the first, or where a later spelling or an earlier one says."""
    c.ignore("topk_method", "scoring_func", "routed_scaling_factor", "n_shared_experts")
    kinds = experts.listed(c)
    feeds = experts.sparse(c, lambda layer: kinds[layer] == "sparse" if kinds else layer > 0)
    return experts.routed(c, "n_routed_experts", "num_experts_per_tok", feeds, c.needed("moe_intermediate_size"))


# --- DeepSeek-V3.2, GLM-MoE-DSA, MiniMax-M3: a small attention picks the positions -----------------------------------


# Its projections, its keys in the cache and its scores are counted; attention itself still reads all positions.


class IndexConfig(DecoderConfig):
    """A decoder's keys and those of the small attention."""

    index_heads: Count = 0  #: Its heads, 0 for none.
    index_dim: Count = 0  #: Width of these heads.
    #: ``weighted``: queries from the query latent, weighted over the heads; ``heads``: queries and keys normed, a
    #: choice for each head (MiniMax-M3).
    index_kind: Literal["weighted", "heads"] = "weighted"
    #: Whether a layer has one, in turn over the depth.
    index_pattern: tuple[bool, ...] = Field((True,), min_length=1, max_length=2000)


@dataclass(frozen=True)
class Indexer:
    """Scores of all positions by a small attention with one key for all heads (DeepSeek-V3.2, section 2.1)."""

    heads: int
    width: int
    weighted: bool = True

    def __call__(self, run: Run, source: str, x: str) -> None:
        b = run.b
        with b.scope("index"):
            q = split_heads(b, run.linear(source, self.heads * self.width, "q"), self.heads, "q_heads")
            key = norm(b, run.linear(x, self.width, "k"), "layernorm" if self.weighted else "rmsnorm", "k_norm")
            q = q if self.weighted else norm(b, q, "rmsnorm", "q_norm")
            key = split_heads(b, key, 1, "k_head")
            q, key = rope(b, q, run.cos, run.sin, "rope_q"), rope(b, key, run.cos, run.sin, "rope_k")
            keys, causal = run.store(key, "index_cache"), not run.decodes and not run.naive
            if self.weighted:
                self.score(run, x, q, keys, causal)
            else:
                b.op("attention_scores", q, keys, name="scores", causal=causal)

    def score(self, run: Run, x: str, q: str, keys: str, causal: bool) -> None:
        """Add up the rectified scores of the heads by weights that each position finds."""
        b, rows, held = run.b, run.batch * run.new, run.b.shape(keys)[2]
        weights = b.op("view", run.linear(x, self.heads, "weights"), name="by_row", shape=(rows, 1, self.heads))
        with b.kernel("scoring"):
            scores = b.op("relu", b.op("attention_scores", q, keys, name="scores", causal=causal), name="relu")
            scores = b.op("view", scores, name="scores_by_row", shape=(rows, self.heads, held))
            b.op("bmm", weights, scores, name="summed")


def _indexed(c: IndexConfig, layer: int) -> Layer:
    index = None
    if c.index_heads:
        if c.index_dim < c.rotary:
            raise ValueError(f"index_dim = {c.index_dim} is less than the {c.rotary} columns that are rotated")
        if c.index_kind == "weighted" and not (c.mla and c.q_lora):
            raise ValueError("index_kind = weighted needs mla = true and q_lora")
        if in_turn(c.index_pattern, layer, True):
            index = Indexer(c.index_heads, c.index_dim, c.index_kind == "weighted")
    if c.mla:
        return replace(parts.latent_attention(c, layer), index=index)
    return replace(parts.attention(c, layer), index=index)


def _index(c: Keys) -> dict[str, Any]:
    c.ignore("layer_types")
    chosen = c.needed("index_topk")
    c.notes.append(f"index_topk = {chosen}: the scores that pick positions are counted, and attention to all of them")
    return c.needs(index_heads="index_n_heads", index_dim="index_head_dim")


def _index_shared(c: Keys) -> dict[str, Any]:
    """Read which layers take the choice of one before: listed, in letters, or all but every n-th."""
    words = {"full": True, "shared": False, "F": True, "S": False}
    letters = c.get("index_topk_pattern")
    listed = c.words("indexer_types") or (list(letters) if isinstance(letters, str) else c.words("index_topk_pattern"))
    step, offset = c.size("index_topk_freq", least=0) or 1, c.get("index_skip_topk_offset")
    offset = 2 if offset is None else c.size("index_skip_topk_offset", least=0) or 0
    listed = c.per_layer("indexer_types", listed, words)
    every = [max(layer - offset + 1, 0) % step == 0 for layer in c.layers]
    return {**_index(c), "index_pattern": [words[word] for word in listed] if listed else every}


#: MiniMax-M3's keys, and what they are called in the table of the published checkpoint.
_M3_TABLE = {"index_n_heads": "sparse_num_index_heads", "index_head_dim": "sparse_index_dim",
             "index_block_size": "sparse_block_size", "index_topk_blocks": "sparse_topk_blocks"}  # fmt: skip


def _minimax_m3(c: Keys) -> dict[str, Any]:
    """Read experts as wide as ``intermediate_size``, dense layers and shared ones of their own size, picked blocks."""
    table = c.mapping("sparse_attention_config")
    c = c.having(**{key: table[own] for key, own in _M3_TABLE.items() if own in table})
    frequency, sparse = table.get("sparse_attention_freq"), ("full_attention", "minimax_m3_sparse")
    mixers = c.words("layer_types") or experts.flags(c, "sparse_attention_config", frequency, sparse)
    kinds = experts.listed(c)
    picks = [word == "minimax_m3_sparse" for word in c.per_layer("layer_types", mixers, sparse) or ()]
    feeds = experts.sparse(c, lambda i: kinds is None or kinds[i] == "sparse")
    c.ignore("swiglu_alpha", "swiglu_limit", "hidden_act", "index_local_blocks")
    block, chosen = c.needed("index_block_size"), c.needed("index_topk_blocks")
    picked = {**c.needs(index_heads="index_n_heads", index_dim="index_head_dim"), "index_kind": "heads",
              "index_pattern": picks}  # fmt: skip
    if any(picks):
        blocks = f"index_topk_blocks = {chosen} of {block} positions"
        c.notes.append(f"{blocks}: the scores that pick blocks are counted, and attention to all of them")
    routed = experts.routed(c, "num_local_experts", "num_experts_per_tok", feeds, c.needed("intermediate_size"))
    return {"intermediate": c.needed("dense_intermediate_size"), **(picked if any(picks) else {}), **routed,
            "shared_intermediate": c.size("shared_intermediate_size", least=0) or 0}  # fmt: skip


_SPARSE = parts.variant(IndexConfig, attend=_indexed)
#: What a model file may name.
FAMILIES = {"decoder-indexer": _SPARSE}
_DEEPSEEK = (*groups.LATENT, experts.deepseek)


# --- Gemma 4: heads and inner sizes by layer, shared caches, embeddings per layer ------------------------------------


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


def gemma4_attention(c: Gemma4Config, layer: int) -> Layer:
    """Compose a layer's attention, to keys and values of its own or of the last of its kind that has any."""
    borrows, kind = layer >= c.layers - c.shared_layers, c.mixer_of(layer)
    if borrows and kind not in {c.mixer_of(other) for other in range(c.layers - c.shared_layers)}:
        raise ValueError(f"shared_layers = {c.shared_layers} leaves no {kind} layer to share with")
    attention = replace(parts.attention(c, layer), width=in_turn(c.width_pattern, layer, c.width))
    same = c.keys_as_values and not attention.window
    return become(Gemma4Attention, attention, borrows=borrows, keys_as_values=same, kind=kind)


def _gemma4_block(c: Gemma4Config, layer: int, *rest: Any) -> Layer:
    own = [OwnEmbeddings(c.layer_embed, c.activation, parts.norm_of(c))] if c.layer_embed else []
    return Chain([parts.block(c, layer, *rest), *own, Scaled("layer_scaled")])


def _gemma4_model(c: Gemma4Config) -> parts.Decoder:
    widths = sorted(set(c.width_pattern) - {c.width})
    return parts.decoder(
        c, attend=gemma4_attention, block=_gemma4_block, widths=widths,
        feed=lambda c, layer: parts.mlp(c, in_turn(c.inner_pattern, layer, c.inner)),
        embeddings=lambda c: become(LayerTable, parts.embeddings(c), layers=c.layers, width_of_layer=c.layer_embed,
                                    vocab=c.layer_vocab or c.vocab),
    )  # fmt: skip


def _gemma4(c: Keys) -> dict[str, Any]:
    """Read which layers attend to what, with heads of which width, and whose keys and values."""
    if c.switch("enable_moe_block"):
        c.fail("enable_moe_block", "experts beside a dense block are not understood yet; allowed: false")
    c.ignore("num_experts", "top_k_experts", "moe_intermediate_size")
    pattern = _gemma4_pattern(c)
    width, kv = c.needed("head_dim"), c.needed("num_key_value_heads")
    same, wide = c.switch("attention_k_eq_v"), c.size("global_head_dim") or 512
    few = (c.size("num_global_key_value_heads") if same else None) or kv
    shared, inner = c.size("num_kv_shared_layers", least=0) or 0, c.needed("intermediate_size")
    double = c.switch("use_double_wide_mlp")
    shapes = _gemma4_shapes(c, [(wide, few) if mixer == "full" else (width, kv) for mixer in pattern], (width, kv))
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


def _gemma4_pattern(c: Keys) -> list[str]:
    """Return five windows and full attention in turn, and always full attention at the end."""
    listed = c.words("layer_types")
    if listed is None:
        return full_every(c, 6, len(c.layers) - 1)
    mixers = groups.layer_types(c, listed, c.size("sliding_window")).get("pattern") or ["full"] * len(c.layers)
    return [*mixers[:-1], "full"]


def _gemma4_shapes(c: Keys, usual: list[tuple[int, int]], base: tuple[int, int]) -> list[tuple[int, int]]:
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
    "diffllama": row(*groups.LLAMA, groups.biases, family=parts.variant(attend=attention_as(DifferentialAttention))),
    "doge": row(*groups.LLAMA, groups.window, groups.biases, groups.mlp_bias, _doge, qk_norm=True,
        family=parts.variant(attend=attention_as(DynamicMaskAttention), residual=WeightedResidual)),
    "laguna": row(*groups.BASE, groups.inner, groups.window, groups.biases, _laguna_experts, _laguna, qk_norm=True,
        router="sigmoid", score_bias=True, names=groups.PLAIN_EXPERTS, defaults={"first_k_dense_replace": 1},
        mixers=groups.turns("full"), family=parts.variant(GateConfig, attend=gated(activation="softplus"))),
    "beam": row(*groups.LLAMA, groups.window, groups.rope_in_windows, groups.biases, groups.softcaps, experts.deepseek,
        qk_norm=True, post_norms=True, router="sigmoid", residual_scale=True, output_gate="width",
        names=groups.PLAIN_EXPERTS, defaults={"first_k_dense_replace": 3},
        mixers=lambda c: full_every(c, 6, len(c.layers) - 1),
        family=parts.variant(GateConfig, attend=gated(bias=True))),
    "mimo_v2_flash": row(
        *groups.LLAMA, groups.input_biases, _mimo, _mimo_experts, router="sigmoid", sinks=True,
        defaults={"partial_rotary_factor": 0.334}, mixers=lambda c: full_every(c, 6, 0),
        idle={"hybrid_layer_pattern", "hybrid_block_size", "add_swa_attention_sink_bias",
              "swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim", "swa_v_head_dim"},
        family=parts.variant(MiMoConfig, attend=_mimo_attention),
    ),
    "deepseek_v32": row(*_DEEPSEEK, _index, router="sigmoid", family=_SPARSE),
    "glm_moe_dsa": row(*_DEEPSEEK, _index_shared, router="sigmoid", family=_SPARSE),
    "minimax_m3_vl_text": row(groups.body, groups.heads, groups.rotary_dim, _minimax_m3, qk_norm=True, router="sigmoid",
        activation="clamped_swiglu", family=_SPARSE),
    "gemma4_text": row(groups.body, groups.heads, groups.activation, groups.inner, groups.rotary, groups.biases,
        groups.softcaps, _gemma4, embedding_scale=True, post_norms=True, qk_norm=True,
        family=replace(parts.FAMILIES["decoder"], config=Gemma4Config, compose=_gemma4_model)),
}  # fmt: skip
