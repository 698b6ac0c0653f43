"""Decoders with state-space, recurrent or convolutional layers, alone or among layers of attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from roofline.programs.architectures.decoder import variant
from roofline.programs.huggingface import experts, groups
from roofline.programs.huggingface.checkpoints import blocks
from roofline.programs.huggingface.checkpoints.attention import GateConfig, gated
from roofline.programs.huggingface.groups import BASE, LATENT, biases, body, heads, inner, mlp_bias, options, rotary
from roofline.programs.huggingface.keys import MAX_LAYERS, Keys, Kind, Reader, row

#: Words of ``layer_types`` and ``layers_block_type`` that several classes share.
_WORDS = {"attention": "full", "hybrid": "full"}
_MIXERS = ("layers_block_type", "layer_types")


def _rank(c: Keys, key: str) -> int:
    """Return the rank of Mamba's step projection, a sixteenth of the width where it is ``auto``."""
    return -(-c.needed("hidden_size") // 16) if c.get(key) == "auto" else c.needed(key)


def _mamba(c: Keys) -> dict[str, Any]:
    """Mamba-1: channels from the expansion."""
    c.get("expand")
    channels = c.size("intermediate_size") if c.table.get("intermediate_size") else None
    return {
        "ssm_inner": channels or c.needed("expand") * c.needed("hidden_size"), "ssm_rank": _rank(c, "time_step_rank"),
        **c.needs(ssm_state="state_size", ssm_conv="conv_kernel"),
        **c.switches(ssm_bias="use_bias", ssm_conv_bias="use_conv_bias"),
    }  # fmt: skip


def _mamba2(c: Keys) -> dict[str, Any]:
    """Mamba-2 in the words of its own class."""
    c.ignore("time_step_rank", "time_step_limit", "hidden_act")
    channels, heads = c.needed("expand") * c.needed("hidden_size"), c.needed("num_heads")
    if (width := c.needed("head_dim")) * heads != channels:
        c.fail("head_dim", f"{width} x {heads} heads is not expand x hidden_size = {channels}")
    return {
        "ssm_inner": channels, "ssm_heads": heads,
        **c.needs(ssm_state="state_size", ssm_groups="n_groups", ssm_conv="conv_kernel", ssm_chunk="chunk_size"),
        **c.switches(ssm_bias="use_bias", ssm_conv_bias="use_conv_bias"),
    }  # fmt: skip


def _mamba2_beside(c: Keys) -> dict[str, Any]:
    """Mamba-2 in the words of models that have attention as well (Bamba, Granite 4, Falcon-H1)."""
    heads, width = c.needed("mamba_n_heads"), c.get("mamba_d_head")
    channels = c.size("mamba_d_ssm") or c.needed("mamba_expand") * c.needed("hidden_size")
    if width not in (None, "auto") and c.needed("mamba_d_head") * heads != channels:
        c.fail("mamba_d_head", f"{width} x {heads} heads is not the {channels} channels of the mixer")
    c.ignore("time_step_limit", "mamba_expand")
    return {
        "ssm_inner": channels, "ssm_heads": heads,
        **c.needs(ssm_state="mamba_d_state", ssm_groups="mamba_n_groups", ssm_conv="mamba_d_conv",
                  ssm_chunk="mamba_chunk_size"),
        **c.switches(ssm_bias="mamba_proj_bias", ssm_conv_bias="mamba_conv_bias"),
    }  # fmt: skip


def _jamba(c: Keys) -> dict[str, Any]:
    """Mamba-1 with normed step, B and C, and attention in one layer of each period."""
    c.ignore(*_MIXERS)
    step, at = c.needed("attn_layer_period"), c.size("attn_layer_offset", least=0) or 0
    return {
        "pattern": groups.full_at(c, step, at, "mamba"),
        "ssm_inner_norms": "none" if c.get("mamba_inner_layernorms") is False else "scaled",
        "ssm_inner": c.needed("mamba_expand") * c.needed("hidden_size"),
        "ssm_rank": _rank(c, "mamba_dt_rank"), **c.needs(ssm_state="mamba_d_state", ssm_conv="mamba_d_conv"),
        **c.switches(ssm_bias="mamba_proj_bias", ssm_conv_bias="mamba_conv_bias"),
    }  # fmt: skip


def _bamba(c: Keys) -> dict[str, Any]:
    """Attention in the layers that are listed."""
    listed = set(c.sizes("attn_layer_indices") or [])
    c.ignore(*_MIXERS)
    return {"pattern": ["full" if i in listed else "mamba2" for i in c.layers], **_mamba2_beside(c)}


def _listed(c: Keys) -> dict[str, Any]:
    """Mixers from ``layer_types``; what its class takes where there is none."""
    listed = c.words("layer_types")
    usual = c.kind.mixers(c) if c.kind.mixers else []
    c.ignore("layers_block_type")
    return groups.layer_types(c, listed, None) if listed is not None else {"pattern": usual}


def _falcon_h1(c: Keys) -> dict[str, Any]:
    c.ignore(*_MIXERS, "embedding_multiplier", "lm_head_multiplier", "ssm_multipliers",
             "mlp_multipliers", "mamba_norm_before_gate", "mamba_use_mlp",
             "attn_layer_indices", "key_multiplier", "ssm_in_multiplier", "ssm_out_multiplier")  # fmt: skip
    bias = c.switch("projectors_bias")
    return {**_mamba2_beside(c), "pattern": ["full+mamba2"], "ssm_norm": c.switch("mamba_rms_norm"),
            "ssm_bias": c.switch("mamba_proj_bias") or bias, "embedding_scale": True, "logit_scale": True}  # fmt: skip


#: Letters of Nemotron-H's pattern, words of its later list, and the mixer and feed-forward block that they stand for.
_NEMOTRON_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
_NEMOTRON_WORDS = {
    "mamba": ("mamba2", "none"), "linear_attention": ("mamba2", "none"), "attention": ("full", "none"),
    "full_attention": ("full", "none"), "mlp": ("none", "dense"), "moe": ("none", "moe"),
}  # fmt: skip


def _nemotron_kinds(c: Keys) -> list[tuple[str, str]]:
    """Return what each layer of Nemotron-H is: a mixer or a feed-forward block, never both."""
    letters = c.get("hybrid_override_pattern")
    words = c.words("layers_block_type") or c.words("layer_types")
    c.ignore(*_MIXERS)
    if words is None and letters is None:
        words = ["linear_attention", "moe", "full_attention", "mlp"]
    if words is None:
        if not isinstance(letters, str) or not 0 < len(letters) <= MAX_LAYERS or set(letters) - set(_NEMOTRON_LETTERS):
            allowed = " ".join(_NEMOTRON_LETTERS)
            c.fail("hybrid_override_pattern", f"{str(letters)[:60]!r} is not understood; allowed letters: {allowed}")
        words = [_NEMOTRON_LETTERS[letter] for letter in letters]
    for word in words:
        if word not in _NEMOTRON_WORDS:
            c.fail("layers_block_type", f"{word!r} is not understood; allowed: {', '.join(_NEMOTRON_WORDS)}")
    layers = c.size("num_hidden_layers", most=MAX_LAYERS)
    if layers is not None and layers != len(words):
        c.fail("num_hidden_layers", f"{layers}, and the pattern has {len(words)} layers")
    return [_NEMOTRON_WORDS[word] for word in words]


def _nemotron_h(c: Keys) -> dict[str, Any]:
    """Layers that are a mixer or a feed-forward block, by a string of letters or a list of words."""
    kinds = _nemotron_kinds(c)
    c.ignore("time_step_limit", "expand", "mamba_num_groups", "mtp_layers_block_type", "mtp_hybrid_override_pattern",
             "moe_shared_expert_overlap", "mamba_hidden_act", "num_hidden_layers", "sliding_window",
             "attention_head_dim")  # fmt: skip
    return {
        "layers": len(kinds), "pattern": [mixer for mixer, _ in kinds], "feeds": [feed for _, feed in kinds],
        **c.needs(hidden="hidden_size", vocab="vocab_size", intermediate="intermediate_size",
                  ssm_heads="mamba_num_heads", ssm_state="ssm_state_size", ssm_groups="n_groups",
                  ssm_conv="conv_kernel", ssm_chunk="chunk_size"),
        **c.switches(tied="tie_word_embeddings", ssm_conv_bias="use_conv_bias"),
        "activation": c.one_of("mlp_hidden_act", groups.ACTIVATIONS),
        "ssm_inner": c.needed("mamba_num_heads") * c.needed("mamba_head_dim"),
        "ssm_bias": c.switch("mamba_proj_bias") or c.switch("use_bias"),
    }  # fmt: skip


def _nemotron_experts(c: Keys) -> dict[str, Any]:
    """Experts without gates, of their own size, and one shared block."""
    if ("none", "moe") not in _nemotron_kinds(c):
        c.ignore("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "n_shared_experts",
                 "moe_shared_expert_intermediate_size", "moe_latent_size")  # fmt: skip
        return {}
    if c.size("moe_latent_size"):
        c.fail("moe_latent_size", "experts in a latent space are not understood yet; allowed: null")
    c.ignore("n_shared_experts")
    width, shared = c.needed("moe_intermediate_size"), c.size("moe_shared_expert_intermediate_size", least=0) or 0
    routed = experts.routed(c, "n_routed_experts", "num_experts_per_tok", inner=width, router="sigmoid")
    return {**routed, "shared_intermediate": shared}


def _recurrent_gemma(c: Keys) -> dict[str, Any]:
    """Griffin: two recurrent blocks and one of attention to a window, in turn."""
    kinds = {"recurrent": "recurrent", "attention": "sliding"}
    words = c.words("block_types") or ["recurrent", "recurrent", "attention"]
    for word in words:
        if word not in kinds:
            c.fail("block_types", f"{word!r} is not understood; allowed: {', '.join(kinds)}")
    c.ignore("layers_block_type", "_block_types")
    return {
        "pattern": [kinds[word] for word in words], "intermediate": c.needed("intermediate_size") // 2,
        "ssm_inner": c.size("lru_width") or c.needed("hidden_size"), "qkv_bias": c.switch("attention_bias"),
        **c.needs(window="attention_window_size", ssm_conv="conv1d_width"),
        "logit_softcap": c.number("logits_soft_cap"),
    }  # fmt: skip


def _lfm2_inner(c: Keys) -> dict[str, Any]:
    """Two thirds of the size that the config has, times a factor, rounded up to a multiple."""
    size = c.size("block_ff_dim") or c.needed("intermediate_size")
    c.ignore("intermediate_size")
    factor, multiple = c.get("block_ffn_dim_multiplier"), c.needed("block_multiple_of")
    if not c.switch("block_auto_adjust_ff_dim"):
        return {"intermediate": size}
    size = 2 * size // 3
    if factor is not None:
        size = int(c.real("block_ffn_dim_multiplier", factor) * size)
        size = -(-size // multiple) * multiple
    return {"intermediate": size}


def _lfm2_mixers(c: Keys) -> list[str]:
    listed = c.sizes("full_attn_idxs")
    return ["full" if listed is None or layer in set(listed) else "conv" for layer in c.layers]


def _lfm2_tied(c: Keys) -> dict[str, Any]:
    return {"tied": c.switch("tie_embedding" if "tie_embedding" in c.table else "tie_word_embeddings")}


def _lfm3_mixers(c: Keys) -> list[str]:
    """Two short convolutions, then one layer of attention to a window or to all, in turn."""
    turns = {0: "sliding", 2: "full"}
    return ["conv", *(turns.get(layer % 4, "conv") for layer in c.layers[1:])]


def _lara(c: Keys) -> dict[str, Any]:
    """Mixers in turn, with a window; layers that see all do not rotate."""
    listed, size = c.words("layer_types"), c.needed("sliding_window")
    usual: dict[str, Any] = {"window": size, "pattern": ["delta", "sliding", "delta", "full", "sliding"]}
    mixers = groups.layer_types(c, listed, size) if listed is not None else usual
    return {**mixers, "rope_pattern": [mixer != "full" for mixer in mixers.get("pattern", ["full"])]}


def _olmo_delta(c: Keys) -> dict[str, Any]:
    """The gated delta rule with heads as in attention where the config leaves them out."""
    keys = c.size("linear_num_key_heads") or c.needed("num_attention_heads")
    width = c.size("linear_key_head_dim") or int(0.75 * c.needed("hidden_size") / keys)
    c.ignore("linear_allow_neg_eigval")
    return {
        "delta_keys": keys, "delta_values": c.size("linear_num_value_heads") or c.needed("num_attention_heads"),
        "delta_key_dim": width, "delta_value_dim": c.size("linear_value_head_dim") or 2 * width,
        "ssm_conv": c.needed("linear_conv_kernel_dim"), "pattern": _listed(c).get("pattern") or ["full"],
        "rope": c.mapping("rope_parameters").get("rope_theta", 0) is not None,
    }  # fmt: skip


def _olmo_mixers(c: Keys) -> list[str]:
    mixers = ["full" if layer % 4 == 3 else "delta" for layer in c.layers]
    return mixers if "full" in mixers else [*mixers[:-1], "full"]


def _kimi(c: Keys) -> dict[str, Any]:
    """Kimi's delta rule in a table of its own or at the top, gates of the rank of a head."""
    own = replace(c, table=c.mapping("linear_attn_config"), defaults={}, used=set())
    heads = own.size("num_heads") or c.needed("linear_num_heads")
    width = own.size("head_dim") or c.needed("linear_head_dim")
    taps = own.size("short_conv_kernel_size") or c.needed("linear_conv_kernel_dim")
    full = own.sizes("full_attn_layers")
    own.sizes("kda_layers")
    own.unread()
    c.ignore("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim")
    usual = ["full" if (i % 4 == 0 and i if full is None else i + 1 in full) else "kda" for i in c.layers]
    return {**_kda(c, usual, heads, width), "delta_rank": width, "ssm_conv": taps}


def _bailing(c: Keys) -> dict[str, Any]:
    """Kimi's delta rule with heads as in attention and full gates, latent attention in each group's last layer."""
    step = c.needed("layer_group_size", MAX_LAYERS)
    usual = ["kda" if (layer + 1) % step else "full" for layer in c.layers]
    c.ignore("linear_num_heads", "linear_conv_kernel_dim")
    width = c.size("linear_head_dim") or c.needed("head_dim")
    return {**_kda(c, usual, c.needed("num_attention_heads"), width), "ssm_conv": c.needed("short_conv_kernel_size")}


def _kda(c: Keys, usual: list[str], heads: int, width: int) -> dict[str, Any]:
    pattern = usual if c.get("layer_types") is None else _listed(c).get("pattern")
    return {"pattern": pattern, "delta_keys": heads, "delta_values": heads, "delta_key_dim": width,
            "delta_value_dim": width}  # fmt: skip


def _xlstm(c: Keys) -> dict[str, Any]:
    """Widths as shares of the residual's, the inner one rounded up to a multiple."""
    hidden, heads, multiple = c.needed("hidden_size"), c.needed("num_heads"), c.needed("ffn_round_up_to_multiple_of")
    keys, values = (int(hidden * c.number(f"{name}_dim_factor")) for name in ("qk", "v"))
    if keys % heads or values % heads:
        c.fail("num_heads", f"{heads} heads do not divide the {keys} columns of keys and {values} of values")
    if c.switch("use_bias"):
        c.fail("use_bias", "biases are not understood yet; allowed: false")
    for key, same in (("embedding_dim", hidden), ("num_blocks", len(c.layers))):
        if (size := c.size(key)) not in (None, same):
            c.fail(key, f"{size} is not what hidden_size and num_hidden_layers say, {same}")
    c.ignore("chunkwise_kernel", "sequence_kernel", "step_kernel", "max_inference_chunksize")
    return {
        "heads": heads, "delta_keys": heads, "delta_values": heads, "delta_key_dim": keys // heads,
        "delta_value_dim": values // heads, "ssm_chunk": c.needed("chunk_size"),
        "intermediate": -(-int(hidden * c.number("ffn_proj_factor")) // multiple) * multiple,
        "logit_softcap": c.number("output_logit_soft_cap"), "final_norm": c.get("add_out_norm") is not False,
    }  # fmt: skip


def _query_gate(c: Keys) -> dict[str, Any]:
    """The gate beside the queries; the kind of the delta rule's own gate costs the same."""
    c.ignore("output_gate_type")
    return {"query_gate": c.get("attn_output_gate") is not False}


#: What published configs repeat under other names.
_LFM2: dict[str, Any] = {
    "types": {"conv": "conv"}, "mixers": _lfm2_mixers, "qk_norm": True,
    "idle": ("block_dim", "block_norm_eps", "block_use_swiglu", "block_use_xavier_init", "conv_dim", "conv_dim_out",
             "conv_use_xavier_init", "num_heads"),
}  # fmt: skip
#: Of routing, which costs the same.
_KIMI: dict[str, Any] = {
    "idle": ("num_expert_group", "moe_router_enable_expert_bias", "num_experts_per_group", "mtp_loss_scaling_factor",
             "kda_safe_gate"),
    "names": {**groups.PLAIN_EXPERTS, "num_experts_per_tok": "num_experts_per_token"},
    "types": {"linear_attention": "kda"}, "router": "sigmoid",
}  # fmt: skip
#: Short convolutions between layers of attention.
_SHORT: tuple[Reader, ...] = (groups.needs(ssm_conv="conv_L_cache"), options(ssm_bias="conv_bias"))
#: The gated delta rule's heads.
_DELTA = groups.needs(delta_keys="linear_num_key_heads", delta_values="linear_num_value_heads",
               delta_key_dim="linear_key_head_dim", delta_value_dim="linear_value_head_dim",
               ssm_conv="linear_conv_kernel_dim")  # fmt: skip
_DENSE: tuple[Reader, ...] = (*BASE, inner)
_PURE: dict[str, Any] = {"heads": 1, "feeds": ["none"], "rope": False}
_QWEN: dict[str, Any] = {
    "types": {"linear_attention": "delta"}, "mixers": groups.one_in(4, "full_attention_interval", "delta"),
    "defaults": {"partial_rotary_factor": 0.25}, "qk_norm": True, "family": blocks.QUERY_GATE,
}  # fmt: skip
_GATED = variant(GateConfig, attend=gated())

_ROWS: dict[str, Kind] = {
    "mamba": row(body, _mamba, **_PURE, pattern=["mamba"], idle={"d_inner", "n_layer"}),
    "falcon_mamba": row(body, _mamba, **_PURE, pattern=["mamba"], ssm_inner_norms="plain"),
    "mamba2": row(body, _mamba2, **_PURE, pattern=["mamba2"], idle={"intermediate_size"}),
    "jamba": row(*_DENSE, _jamba, experts.jamba, rope=False),
    "bamba": row(*_DENSE, rotary, _bamba, biases, mlp_bias, defaults={"partial_rotary_factor": 0.5}),
    "granitemoehybrid": row(*_DENSE, rotary, _listed, _mamba2_beside, biases, groups.multipliers, experts.granite,
        lambda c: {"rope": c.get("position_embedding_type") == "rope"},  # it rotates only where it says so
        types={**_WORDS, "mamba": "mamba2", "linear_attention": "mamba2"},
        mixers=groups.turns("mamba2")),
    "falcon_h1": row(*_DENSE, rotary, _falcon_h1, biases, mlp_bias),
    "nemotron_h": row(heads, _nemotron_h, biases, mlp_bias, _nemotron_experts, gated=False, rope=False,
        idle={"time_step_rank"}),
    "recurrent_gemma": row(*BASE, rotary, _recurrent_gemma, embedding_scale=True, out_bias=True, mlp_bias=True,
        defaults={"partial_rotary_factor": 0.5}, idle={"embeddings_scale_by_sqrt_dim"}),
    "lfm2": row(body, heads, rotary, *_SHORT, _listed, _lfm2_inner, _lfm2_tied, **_LFM2),
    "lfm2_moe": row(body, heads, inner, rotary, groups.ignored("use_expert_bias"), *_SHORT, _listed,
        experts.after_dense, _lfm2_tied, **_LFM2),
    "qwen3_5_text": row(*_DENSE, rotary, _listed, biases, _DELTA, _query_gate, **_QWEN),
    "qwen3_5_moe_text": row(*BASE, rotary, _listed, biases, _DELTA, _query_gate, experts.qwen, **_QWEN),
    "lara_mini": row(*BASE, rotary, _lara, biases, _DELTA, experts.qwen, qk_norm=True, shared_gate=False,
        types={"linear_attention": "delta"}),
    "qwen3_next": row(*_DENSE, rotary, _listed, biases, _DELTA, _query_gate, experts.qwen, **_QWEN),
    "xlstm": row(body, _xlstm, pattern=["mlstm"], rope=False),
    "olmo_hybrid": row(*_DENSE, biases, _olmo_delta, qk_norm=True, qk_norm_over="width",
        types={"linear_attention": "delta"}, mixers=_olmo_mixers, family=blocks.NORMS_AFTER_ATTENTION),
    "lfm3": row(body, heads, inner, rotary, groups.window, biases, *_SHORT, options(post_norms="use_sandwich_norm"),
        lambda c: {"output_gate": "head" if c.switch("use_attention_gate") else "none"},
        qk_norm=True, types={"conv": "conv"}, mixers=_lfm3_mixers, family=_GATED),
    "kimi_linear": row(*LATENT, experts.deepseek, _kimi, rope=False, **_KIMI,
        defaults={"n_routed_experts": 256, "first_k_dense_replace": 1, "moe_layer_freq": 1}),
    "bailing_hybrid": row(*LATENT, experts.deepseek, _bailing, output_gate="head", **_KIMI,
        defaults={"n_routed_experts": 512}, family=_GATED),
}  # fmt: skip

HYBRIDS = {name: replace(kind, readers=(*kind.readers, groups.state_format)) for name, kind in _ROWS.items()}
