"""Checkpoints with norms, experts, tables or heads of their own: what they add, and a row for each."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from roofline.ir.sizes import Size
from roofline.programs.architectures import decoder as parts
from roofline.programs.architectures import encoder as encoders
from roofline.programs.architectures.config import Count
from roofline.programs.architectures.decoder_keys import DecoderConfig
from roofline.programs.huggingface import experts, groups
from roofline.programs.huggingface.checkpoints.attention import attention_as
from roofline.programs.huggingface.encoders import body
from roofline.programs.huggingface.keys import MAX_LAYERS, Keys, row
from roofline.programs.layers.attention import Attention, QueryGatedAttention
from roofline.programs.layers.base import Chain, Layer, Norm, Run, become
from roofline.programs.layers.feedforward import MLP, Experts, Routed
from roofline.programs.layers.primitives import activate, linear, part, rope, split_heads

# --- a norm, a bias or a gate: BitNet, A.X-K1, OLMo-Hybrid, GPT-NeoX Japanese, Qwen3-Next ----------------------------


@dataclass(frozen=True)
class NormedAttention(Attention):
    """Attention with a norm before its output projection (BitNet)."""

    def output(self, run: Run, y: str) -> str:
        """Norm and project back to the width of the residual stream."""
        return super().output(run, Norm(name="sub_norm")(run, y))


@dataclass(frozen=True)
class NormedMLP(MLP):
    """A feed-forward block with a norm before its last projection (BitNet)."""

    def down(self, run: Run, y: str, width: Size) -> str:
        """Norm and project back to the width of the input."""
        return super().down(run, Norm(name="sub_norm")(run, y), width)


def _norm_of_experts(c: DecoderConfig, layer: int) -> Layer:
    """Compose experts with a norm of what routed and shared ones add up to."""
    feed = parts.feed(c, layer)
    return Chain((feed, parts.norm_of(c).named("experts_norm"))) if c.feed_of(layer) == "moe" else feed


def _norms_after_attention(c: DecoderConfig, layer: int, *rest: Any) -> Layer:
    """Compose a layer with norms after the branches where it attends, and before them elsewhere."""
    after = c.mixer_of(layer) == "full"
    return parts.block(c.model_copy(update={"pre_norms": not after, "post_norms": after}), layer, *rest)


BITNET = parts.variant(
    attend=attention_as(NormedAttention),
    feed=lambda c, layer: become(NormedMLP, parts.mlp(c, c.inner)),
)
NORM_OF_EXPERTS = parts.variant(feed=_norm_of_experts)
NORMS_AFTER_ATTENTION = parts.variant(block=_norms_after_attention)
#: The output projection of attention has a bias in the last layer alone (GPT-NeoX Japanese).
LAST_BIAS = parts.variant(
    attend=lambda c, layer: replace(parts.attention(c, layer), out_bias=layer == c.layers - 1)
)  # fmt: skip


class QueryGateConfig(DecoderConfig):
    """A decoder's keys and the switch of the gate."""

    query_gate: bool = True  #: Whether a second half of the query projection gates attention's output.


def _query_gated(c: QueryGateConfig, layer: int) -> Layer:
    return become(QueryGatedAttention, parts.attention(c, layer)) if c.query_gate else parts.attention(c, layer)


QUERY_GATE = parts.variant(QueryGateConfig, attend=_query_gated)
#: What a model file may name.
FAMILIES = {"decoder-query-gate": QUERY_GATE}


# --- JetMoE: attention whose heads are experts (section 2.3), experts whose sum has a bias ---------------------------


@dataclass(frozen=True)
class BiasedExperts(Experts):
    """Experts with a bias of what they add up to."""

    def combine(self, run: Run, y: str, routed: Routed) -> str:
        """Add up and add the bias."""
        y = super().combine(run, y, routed)
        return run.b.op("add", y, run.b.weight("sum.bias", (run.width,)), name="combined_biased")


@dataclass(frozen=True)
class ExpertAttention(BiasedExperts):
    """Each token's chosen experts give it a set of query heads and project their outputs; keys and values are shared.

    ``inner`` is the width of a set, ``width`` that of one of its heads.
    """

    width: int = 1
    qkv_bias: bool = False
    rotates: bool = True
    window: int = 0

    def __call__(self, run: Run, x: str) -> str:
        b, routed, kv = run.b, self.route(run, x), self.inner // self.width
        pairs = routed.tokens * self.top_k
        q = self.linear(run, b.op("gather_rows", routed.rows, routed.index, name="routed"), self.inner, "q")
        q = b.op("scatter_add", q, name="q_in_order", t=pairs)
        q = b.op("view", q, name="q_heads", shape=(run.batch, kv * self.top_k, run.new, self.width))
        both = run.linear(x, 2 * self.inner, "kv", self.qkv_bias)
        k, v = (split_heads(b, part(b, both, self.inner, n), kv, f"{n}_heads") for n in ("k", "v"))
        if self.rotates:
            q, k = rope(b, q, run.cos, run.sin, "rope_q"), rope(b, k, run.cos, run.sin, "rope_k")
        keys, values = run.store(k, "k_cache", self.window), run.store(v, "v_cache", self.window)
        y = run.attend(q, keys, values, window=self.window)
        y = b.op("view", y, name="by_pair", shape=(pairs, self.inner))
        y = self.linear(run, b.op("gather_rows", y, routed.index, name="y_routed"), run.width, "out")
        return b.op("view", self.combine(run, y, routed), name="whole", shape=b.shape(x))


def _expert_attention(c: DecoderConfig, layer: int) -> Layer:
    kv = c.kv_of(layer)
    if not c.experts or c.heads != kv * c.top_k:
        raise ValueError("attention by experts needs experts, and heads = kv_heads * top_k")
    return ExpertAttention(c.experts, c.top_k, kv * c.width, router=c.router, width=c.width, qkv_bias=c.qkv_bias,
                           rotates=c.rotates(layer), window=c.window_of(layer))  # fmt: skip


def _jetmoe(c: Keys) -> dict[str, Any]:
    """Read a set of ``num_key_value_heads`` query heads for each expert that a token is sent to."""
    c.ignore("num_attention_heads")
    kv = c.needed("num_key_value_heads")
    return {"heads": kv * c.needed("num_experts_per_tok"), "kv_heads": kv, "head_dim": c.needed("head_dim")}


# --- LongCat-Flash: experts that return their input, a dense block beside every other layer's ------------------------


class LongCatConfig(DecoderConfig):
    """A decoder's keys and LongCat's own."""

    zero_experts: Count = 0  #: Experts beside the others that return their input, counted as if no token went there.


@dataclass(frozen=True)
class WithZeroExperts(Experts):
    """Experts beside some that do nothing: places in the router, and rows of the up-projection that nothing reads."""

    zero: int = 0

    @property
    def places(self) -> int:
        """Outputs of the router."""
        return self.experts + self.zero

    def up(self, run: Run, x: str) -> str:
        """Return the activated inner columns of the experts that rows are sent to."""
        y = super().up(run, x)
        if self.zero:
            shape = (self.zero, (1 + self.gated) * self.inner, run.width)
            run.b.weight("gate_up.idle", shape, run.expert_dtype or run.dtype or None)
        return y


def _longcat_feed(c: LongCatConfig, layer: int) -> Layer:
    if c.feed_of(layer) != "moe":
        return parts.mlp(c, c.inner)
    return parts.with_shared(c, become(WithZeroExperts, parts.experts(c), zero=c.zero_experts))


def _longcat(c: Keys) -> dict[str, Any]:
    """Read layers of which each is two: one with a dense block beside the experts, and one without experts.

    The experts' output joins the residual after the second, which costs as much.
    """
    if c.name("num_hidden_layers") == "num_hidden_layers":
        c.fail("num_hidden_layers", "twice num_layers; expected num_layers itself")
    zero = c.size("zero_expert_num", least=0) or 0
    if zero:
        c.notes.append(f"zero_expert_num = {zero}: tokens are counted as sent to none of the experts that do nothing")
    feeds = ["moe", "dense"]
    routed = experts.routed(c, "n_routed_experts", "num_experts_per_tok", feeds, c.needed("moe_intermediate_size"))
    return {**routed, "feeds": feeds, "layers": 2 * len(c.layers), "zero_experts": zero,
            "shared_intermediate": c.needed("intermediate_size"), "router_bias": c.switch("router_bias")}  # fmt: skip


# --- OPT and fairseq's XGLM and CTRL: a narrow token table, positions that are not learned ---------------------------


class OPTConfig(DecoderConfig):
    """A decoder's keys and OPT's own."""

    #: Width of the token table where it is not ``hidden``, with a projection after it (OPT-350M); 0 for the same.
    embed_width: Count = 0


@dataclass(frozen=True)
class NarrowEmbeddings(parts.Embeddings):
    """Rows of a table that is narrower than the residual stream."""

    columns: int = 1

    @property
    def width(self) -> int:
        """Columns of the token table."""
        return self.columns

    def tokens(self, run: Run, ids: str) -> str:
        """Return the projected embeddings of tokens."""
        return linear(run.b, super().tokens(run, ids), self.hidden, "project_in")


@dataclass(frozen=True)
class NarrowHead(parts.Head):
    """Logits from a projection to the width of the token table."""

    columns: int = 1

    def transform(self, run: Run, x: str) -> str:
        """Return the head's input."""
        return linear(run.b, x, self.columns, "project_out")


@dataclass(frozen=True)
class FixedPositions(parts.Embeddings):
    """Rows of the token table with positions that are not learned."""

    def place(self, run: Run, x: str) -> str:
        """Add positions."""
        return run.b.op("add", x, run.b.input("position_rows", (run.new, self.hidden)), name="embed_positions")


def _narrowed(c: OPTConfig, kind: Any, usual: Any) -> Any:
    return become(kind, usual, columns=c.embed_width) if c.embed_width else usual


def _opt(c: Keys) -> dict[str, Any]:
    """Read norms before or after; a narrower token table with projections."""
    before, width = c.switch("do_layer_norm_before"), c.size("word_embed_proj_dim")
    return {
        "pre_norms": before,
        "sum_norms": not before,
        "final_norm": before and not c.switch("_remove_final_layer_norm"),
        "embed_width": 0 if width in (None, c.needed("hidden_size")) else width,
        "norm_scale": c.get("layer_norm_elementwise_affine") is not False,
    }


#: A token table of another width, or the usual one.
_NARROW = parts.variant(
    OPTConfig,
    embeddings=lambda c: _narrowed(c, NarrowEmbeddings, parts.embeddings(c)),
    head=lambda c: _narrowed(c, NarrowHead, parts.head(c)),
)
_FIXED = parts.variant(embeddings=lambda c: become(FixedPositions, parts.embeddings(c)))
_FAIRSEQ: dict[str, Any] = {**groups.GPT_FIXED, "embedding_scale": True}


# --- ModernBERT as an encoder and as a decoder: windows, no norm before the first attention --------------------------


class ModernBertConfig(encoders.EncoderConfig):
    """An encoder's keys and ModernBERT's own."""

    norm_bias: bool = True  #: Shift of the norms.
    qkv_bias: bool = True  #: Biases of the q, k and v projections.
    out_bias: bool = True  #: Bias of the attention output projection.
    mlp_bias: bool = True  #: Biases of the feed-forward block.


def _modernbert_model(c: ModernBertConfig) -> encoders.Encoder:
    if encoders.head_width(c) % 2:
        raise ValueError("rotary embedding needs an even head width")
    return encoders.encoder(
        c, norm=Norm("layernorm", c.norm_bias), first_norm=False, rotates=True,
        attention=lambda c, layer: replace(
            encoders.attention(c, layer), rotates=True, qkv_bias=c.qkv_bias, out_bias=c.out_bias),
        mlp=lambda c, layer: replace(encoders.mlp(c, layer), gated=True, bias=c.mlp_bias),
    )  # fmt: skip


def _modernbert(c: Keys) -> dict[str, Any]:
    """Read windows of ``local_attention`` but in every third layer, as listed or as a period."""
    listed, size = c.words("layer_types"), c.needed("local_attention")
    c.ignore("classifier_activation", "deterministic_flash_attn", "global_rope_theta", "local_rope_theta")
    step = c.size("global_attn_every_n_layers") or 3
    mixers = groups.layer_types(c, listed, size) if listed else {"pattern": ["full"] + ["sliding"] * (step - 1)}
    return {
        "window": size, **{key: value for key, value in mixers.items() if value},
        **c.switches(qkv_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias", norm_bias="norm_bias",
                     head_bias="decoder_bias", dense_bias="classifier_bias"),
    }  # fmt: skip


class ModernBertDecoderConfig(DecoderConfig):
    """A decoder's keys and ModernBERT's own."""

    head_transform_bias: bool = False  #: Bias of the projection before the head.


@dataclass(frozen=True)
class TransformedHead(parts.Head):
    """Logits from a projection, the activation and a norm."""

    transform_bias: bool = False
    activation: str = "gelu"
    norm: Norm = field(default_factory=Norm)

    def transform(self, run: Run, x: str) -> str:
        """Return the head's input."""
        x = linear(run.b, x, run.width, "transform", self.transform_bias)
        return self.norm.named("transform_norm")(run, activate(run.b, x, self.activation))


def _modernbert_decoder(c: Keys) -> dict[str, Any]:
    """Read windows of half of ``local_attention`` but in every third layer, as listed or as a period."""
    c.ignore("sliding_window", "classifier_activation", "global_rope_theta", "local_rope_theta")
    listed, size = c.words("layer_types"), (c.size("local_attention", least=0) or 0) // 2
    step = c.size("global_attn_every_n_layers", most=MAX_LAYERS) or 3
    usual = {"window": size, "pattern": ["full"] + ["sliding"] * (step - 1)}
    return {
        **(groups.layer_types(c, listed, size) if listed else usual),
        **c.switches(norm_bias="norm_bias", head_bias="decoder_bias", head_transform_bias="classifier_bias"),
    }


ENCODERS = {
    "modernbert": row(body, groups.activation, groups.rotary, _modernbert, pooler=False, segments=0, positions=0,
        pre_norms=True, fused_qkv=True,
        family=replace(encoders.FAMILIES["encoder"], config=ModernBertConfig, compose=_modernbert_model),
        ends={"Model": {}, "ForMaskedLM": {"head": "masked"}}),
}  # fmt: skip

ROWS = {
    "jetmoe": row(groups.body, groups.activation, groups.inner, groups.rotary, _jetmoe, experts.mixtral,
        names={"head_dim": "kv_channels", "hidden_act": "activation_function"},
        family=parts.variant(attend=_expert_attention,
            feed=lambda c, layer: parts.with_shared(c, become(BiasedExperts, parts.experts(c))))),
    "longcat_flash": row(
        *groups.LATENT, _longcat,
        names={"num_hidden_layers": "num_layers", "num_experts_per_tok": "moe_topk",
               "intermediate_size": "ffn_hidden_size", "moe_intermediate_size": "expert_ffn_hidden_size"},
        family=parts.variant(LongCatConfig, feed=_longcat_feed),
    ),
    "opt": row(*groups.BASE, groups.inner, groups.offset_positions, _opt, groups.all_biases("enable_bias"),
        norm="layernorm", gated=False, rope=False,
        names={"hidden_act": "activation_function", "intermediate_size": "ffn_dim"},
        family=_NARROW),
    "biogpt": row(*groups.BASE, groups.inner, groups.offset_positions, **_FAIRSEQ),
    "xglm": row(
        *groups.BASE, groups.inner, **_FAIRSEQ,
        names={"hidden_size": "d_model", "num_hidden_layers": "num_layers", "intermediate_size": "ffn_dim",
               "num_attention_heads": "attention_heads", "hidden_act": "activation_function"},
        family=_FIXED,
    ),
    "ctrl": row(groups.body, groups.heads, groups.inner, **_FAIRSEQ, head_bias=True, activation="relu",
        names={**groups.GPT_NAMES, "intermediate_size": "dff"}, family=_FIXED),
    "modernbert-decoder": row(*groups.LLAMA, groups.biases, groups.mlp_bias, _modernbert_decoder, norm="layernorm",
        embed_norm=True, first_norm=False, family=parts.variant(
            ModernBertDecoderConfig,
            head=lambda c: become(TransformedHead, parts.head(c), transform_bias=c.head_transform_bias,
                                  activation=c.activation, norm=parts.norm_of(c)))),
}  # fmt: skip
