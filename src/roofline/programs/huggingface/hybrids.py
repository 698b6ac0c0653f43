"""Decoders with state-space, recurrent or convolutional layers, alone or among layers of attention."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from roofline.programs.huggingface import experts, groups
from roofline.programs.huggingface.keys import MAX_LAYERS, Keys, Kind, Reader

#: Words of ``layer_types`` and ``layers_block_type`` that several classes share.
_WORDS = {"attention": "full", "hybrid": "full"}

_DENSE: tuple[Reader, ...] = (groups.body, groups.heads, groups.activation, groups.inner)


def _mamba(c: Keys) -> dict[str, Any]:
    """Mamba-1: channels from the expansion, rank of the step projection from the width where it is ``auto``."""
    hidden, rank = c.needed("hidden_size"), c.get("time_step_rank")
    c.get("expand")
    channels = c.size("intermediate_size") if c.table.get("intermediate_size") else None
    return {
        "ssm_inner": channels or c.needed("expand") * hidden,
        "ssm_state": c.needed("state_size"),
        "ssm_conv": c.needed("conv_kernel"),
        "ssm_rank": -(-hidden // 16) if rank == "auto" else c.needed("time_step_rank"),
        "ssm_bias": c.switch("use_bias"),
        "ssm_conv_bias": c.switch("use_conv_bias"),
    }


def _mamba2(c: Keys) -> dict[str, Any]:
    """Mamba-2 in the words of its own class."""
    c.used |= {"time_step_rank", "time_step_limit", "hidden_act"}
    inner, heads = c.needed("expand") * c.needed("hidden_size"), c.needed("num_heads")
    if (width := c.needed("head_dim")) * heads != inner:
        c.fail("head_dim", f"{width} x {heads} heads is not expand x hidden_size = {inner}")
    return {
        "ssm_inner": inner,
        "ssm_heads": heads,
        "ssm_state": c.needed("state_size"),
        "ssm_groups": c.needed("n_groups"),
        "ssm_conv": c.needed("conv_kernel"),
        "ssm_bias": c.switch("use_bias"),
        "ssm_conv_bias": c.switch("use_conv_bias"),
        "ssm_chunk": c.needed("chunk_size"),
    }


def _mamba2_beside(c: Keys) -> dict[str, Any]:
    """Mamba-2 in the words of models that have attention as well (Bamba, Granite 4, Falcon-H1)."""
    heads, width = c.needed("mamba_n_heads"), c.get("mamba_d_head")
    inner = c.size("mamba_d_ssm") or c.needed("mamba_expand") * c.needed("hidden_size")
    if width not in (None, "auto") and c.needed("mamba_d_head") * heads != inner:
        c.fail("mamba_d_head", f"{width} x {heads} heads is not the {inner} channels of the mixer")
    c.get("time_step_limit"), c.get("mamba_expand")
    return {
        "ssm_inner": inner,
        "ssm_heads": heads,
        "ssm_state": c.needed("mamba_d_state"),
        "ssm_groups": c.needed("mamba_n_groups"),
        "ssm_conv": c.needed("mamba_d_conv"),
        "ssm_bias": c.switch("mamba_proj_bias"),
        "ssm_conv_bias": c.switch("mamba_conv_bias"),
        "ssm_chunk": c.needed("mamba_chunk_size"),
    }


def _jamba(c: Keys) -> dict[str, Any]:
    """Mamba-1 with normed step, B and C, and attention in one layer of every so many."""
    hidden, rank = c.needed("hidden_size"), c.get("mamba_dt_rank")
    step, at = c.needed("attn_layer_period"), c.size("attn_layer_offset", least=0) or 0
    c.used |= {"layers_block_type", "layer_types"}
    return {
        "pattern": groups.full_unless(c, step, at, "mamba"),
        "ssm_inner": c.needed("mamba_expand") * hidden,
        "ssm_state": c.needed("mamba_d_state"),
        "ssm_conv": c.needed("mamba_d_conv"),
        "ssm_rank": -(-hidden // 16) if rank == "auto" else c.needed("mamba_dt_rank"),
        "ssm_bias": c.switch("mamba_proj_bias"),
        "ssm_conv_bias": c.switch("mamba_conv_bias"),
    }


def _bamba(c: Keys) -> dict[str, Any]:
    """Attention in the layers that are listed."""
    listed = set(c.sizes("attn_layer_indices") or [])
    c.used |= {"layers_block_type", "layer_types"}
    return {
        "pattern": ["full" if i in listed else "mamba2" for i in range(c.needed("num_hidden_layers", MAX_LAYERS))],
        **_mamba2_beside(c),
    }


def _listed(c: Keys) -> dict[str, Any]:
    """Mixers from ``layer_types``; what its class takes where there is none."""
    listed = c.words("layer_types")
    usual = c.kind.pattern(c) if c.kind.pattern else []
    c.used |= {"layers_block_type"}
    return groups.layer_types(c, listed, None) if listed is not None else {"pattern": usual}


def _all_mamba2(c: Keys) -> list[str]:
    return ["mamba2"]


def _granite_positions(c: Keys) -> dict[str, Any]:
    """Granite 4 rotates only where it says so."""
    return {"rope": c.get("position_embedding_type") == "rope"}


def _falcon_h1(c: Keys) -> dict[str, Any]:
    c.used |= {"ssm_multipliers", "mlp_multipliers", "mamba_norm_before_gate", "layers_block_type", "layer_types",
               "mamba_use_mlp", "attn_layer_indices", "key_multiplier", "ssm_in_multiplier",
               "ssm_out_multiplier"}  # fmt: skip
    bias = c.switch("projectors_bias")
    return {**_mamba2_beside(c), "pattern": ["full+mamba2"], "ssm_norm": c.switch("mamba_rms_norm"),
            "ssm_bias": c.switch("mamba_proj_bias") or bias}  # fmt: skip


def _nemotron_h(c: Keys) -> dict[str, Any]:
    """Layers that are a mixer or a feed-forward block, by a string of letters or a list of words."""
    kinds = experts.nemotron_kinds(c)
    mixers = {"mamba": "mamba2", "attention": "full"}
    feeds = {"mlp": "dense", "moe": "moe"}
    c.used |= {"time_step_limit", "expand", "mamba_num_groups", "mtp_layers_block_type", "mtp_hybrid_override_pattern",
               "moe_shared_expert_overlap", "mamba_hidden_act", "num_hidden_layers", "sliding_window",
               "attention_head_dim"}  # fmt: skip
    return {
        "hidden": c.needed("hidden_size"), "vocab": c.needed("vocab_size"), "tied": c.switch("tie_word_embeddings"),
        "layers": len(kinds),
        "pattern": [mixers.get(kind, "none") for kind in kinds],
        "feeds": [feeds.get(kind, "none") for kind in kinds],
        "intermediate": c.needed("intermediate_size"),
        "activation": c.one_of("mlp_hidden_act", groups.ACTIVATIONS),
        "ssm_inner": c.needed("mamba_num_heads") * c.needed("mamba_head_dim"),
        "ssm_heads": c.needed("mamba_num_heads"),
        "ssm_state": c.needed("ssm_state_size"),
        "ssm_groups": c.needed("n_groups"),
        "ssm_conv": c.needed("conv_kernel"),
        "ssm_bias": c.switch("mamba_proj_bias") or c.switch("use_bias"),
        "ssm_conv_bias": c.switch("use_conv_bias"),
        "ssm_chunk": c.needed("chunk_size"),
        "ssm_dtype": str(c.get("mamba_ssm_cache_dtype") or ""),
    }  # fmt: skip


def _recurrent_gemma(c: Keys) -> dict[str, Any]:
    """Griffin: two recurrent blocks and one of attention to a window, in turn."""
    kinds = {"recurrent": "recurrent", "attention": "sliding"}
    words = c.words("block_types") or ["recurrent", "recurrent", "attention"]
    for word in words:
        if word not in kinds:
            c.fail("block_types", f"{word!r} is not understood; allowed: {', '.join(kinds)}")
    c.used |= {"layers_block_type", "_block_types"}
    return {
        "pattern": [kinds[word] for word in words],
        "window": c.needed("attention_window_size"),
        "intermediate": c.needed("intermediate_size") // 2,
        "ssm_inner": c.size("lru_width") or c.needed("hidden_size"),
        "ssm_conv": c.needed("conv1d_width"),
        "logit_softcap": c.number("logits_soft_cap"),
        "qkv_bias": c.switch("attention_bias"),
    }


def _lfm2(c: Keys) -> dict[str, Any]:
    """Short convolutions between layers of attention."""
    return {"ssm_conv": c.needed("conv_L_cache"), "ssm_bias": c.switch("conv_bias")}


def _lfm2_inner(c: Keys) -> dict[str, Any]:
    """Two thirds of the size that is given, times a factor, rounded up to a multiple."""
    size = c.size("block_ff_dim") or c.needed("intermediate_size")
    c.used |= {"intermediate_size"}
    factor, multiple = c.get("block_ffn_dim_multiplier"), c.needed("block_multiple_of")
    if not c.switch("block_auto_adjust_ff_dim"):
        return {"intermediate": size}
    size = 2 * size // 3
    if factor is not None:
        size = int(c.real("block_ffn_dim_multiplier", factor) * size)
        size = -(-size // multiple) * multiple
    return {"intermediate": size}


def _lfm2_pattern(c: Keys) -> list[str]:
    listed = c.sizes("full_attn_idxs")
    layers = range(c.needed("num_hidden_layers", MAX_LAYERS))
    return ["full" if listed is None or layer in set(listed) else "conv" for layer in layers]


def _lfm2_tied(c: Keys) -> dict[str, Any]:
    return {"tied": c.switch("tie_embedding" if "tie_embedding" in c.table else "tie_word_embeddings")}


def _delta(c: Keys) -> dict[str, Any]:
    """The gated delta rule's heads, and attention with a gate."""
    return {
        "delta_keys": c.needed("linear_num_key_heads"),
        "delta_values": c.needed("linear_num_value_heads"),
        "delta_key_dim": c.needed("linear_key_head_dim"),
        "delta_value_dim": c.needed("linear_value_head_dim"),
        "ssm_conv": c.needed("linear_conv_kernel_dim"),
    }


def _delta_turns(c: Keys) -> list[str]:
    step = c.size("full_attention_interval", most=MAX_LAYERS) or 4
    layers = range(c.needed("num_hidden_layers", MAX_LAYERS))
    return ["delta" if (layer + 1) % step else "full" for layer in layers]


def _lara(c: Keys) -> dict[str, Any]:
    """Mixers in turn, with a window; layers that see all do not rotate."""
    listed, size = c.words("layer_types"), c.needed("sliding_window")
    usual = ["delta", "sliding", "delta", "full", "sliding"]
    found: dict[str, Any]
    found = groups.layer_types(c, listed, size) if listed is not None else {"window": size, "pattern": usual}
    return {**found, "rope_pattern": [mixer != "full" for mixer in found.get("pattern", ["full"])]}


def _olmo_delta(c: Keys) -> dict[str, Any]:
    """The same with heads as in attention where the config leaves them out; norms before it, after attention."""
    heads = c.needed("num_attention_heads")
    keys = c.size("linear_num_key_heads") or heads
    width = c.size("linear_key_head_dim") or int(0.75 * c.needed("hidden_size") / keys)
    pattern = _listed(c).get("pattern") or ["full"]
    c.used |= {"linear_allow_neg_eigval"}
    return {
        "delta_keys": keys,
        "delta_values": c.size("linear_num_value_heads") or heads,
        "delta_key_dim": width,
        "delta_value_dim": c.size("linear_value_head_dim") or 2 * width,
        "ssm_conv": c.needed("linear_conv_kernel_dim"),
        "pattern": pattern,
        "norms_after": [mixer == "full" for mixer in pattern],
        "rope": c.mapping("rope_parameters").get("rope_theta", 0) is not None,
    }


def _olmo_turns(c: Keys) -> list[str]:
    layers = c.needed("num_hidden_layers", MAX_LAYERS)
    turns = ["full" if layer % 4 == 3 else "delta" for layer in range(layers)]
    return turns if "full" in turns else [*turns[:-1], "full"]


def _kimi(c: Keys) -> dict[str, Any]:
    """Kimi's delta rule in a table of its own or at the top, gates of the rank of a head."""
    own = replace(c, table=c.mapping("linear_attn_config"), defaults={}, used=set())
    heads = own.size("num_heads") or c.needed("linear_num_heads")
    width = own.size("head_dim") or c.needed("linear_head_dim")
    kernel = own.size("short_conv_kernel_size") or c.needed("linear_conv_kernel_dim")
    full = own.sizes("full_attn_layers")
    own.sizes("kda_layers")
    own.unread()
    c.used |= {f"linear_{key}" for key in ("num_heads", "head_dim", "conv_kernel_dim")}
    layers = range(c.needed("num_hidden_layers", MAX_LAYERS))
    usual = ["full" if (layer % 4 == 0 and layer if full is None else layer + 1 in full) else "kda" for layer in layers]
    return {
        "pattern": usual if c.get("layer_types") is None else _listed(c).get("pattern"),
        **_kda(heads, width),
        "delta_rank": width,
        "ssm_conv": kernel,
    }


def _bailing(c: Keys) -> dict[str, Any]:
    """Kimi's delta rule with heads as in attention and full gates, latent attention in each group's last layer."""
    step = c.needed("layer_group_size", MAX_LAYERS)
    layers = range(c.needed("num_hidden_layers", MAX_LAYERS))
    usual = ["kda" if (layer + 1) % step else "full" for layer in layers]
    c.used |= {"linear_num_heads", "linear_conv_kernel_dim"}
    return {
        "pattern": usual if c.get("layer_types") is None else _listed(c).get("pattern"),
        **_kda(c.needed("num_attention_heads"), c.size("linear_head_dim") or c.needed("head_dim")),
        "ssm_conv": c.needed("short_conv_kernel_size"),
    }


def _kda(heads: int, width: int) -> dict[str, Any]:
    return {"delta_keys": heads, "delta_values": heads, "delta_key_dim": width, "delta_value_dim": width}


def _lfm3_turns(c: Keys) -> list[str]:
    """Two short convolutions, then one layer of attention to a window or to all, in turn."""
    turns = {0: "sliding", 2: "full"}
    return ["conv", *(turns.get(i % 4, "conv") for i in range(1, c.needed("num_hidden_layers", MAX_LAYERS)))]


def _lfm3_gate(c: Keys) -> dict[str, Any]:
    return {"output_gate": "head" if c.switch("use_attention_gate") else "none"}


def _xlstm(c: Keys) -> dict[str, Any]:
    """Widths as shares of the residual's, the inner one rounded up to a multiple."""
    hidden, heads, multiple = c.needed("hidden_size"), c.needed("num_heads"), c.needed("ffn_round_up_to_multiple_of")
    keys, values = (int(hidden * c.number(f"{name}_dim_factor")) for name in ("qk", "v"))
    if keys % heads or values % heads:
        c.fail("num_heads", f"{heads} heads do not divide the {keys} columns of keys and {values} of values")
    if c.switch("use_bias"):
        c.fail("use_bias", "biases are not understood yet; allowed: false")
    for key, same in (("embedding_dim", hidden), ("num_blocks", c.needed("num_hidden_layers"))):
        if (given := c.size(key)) not in (None, same):
            c.fail(key, f"{given} is not what hidden_size and num_hidden_layers say, {same}")
    c.used |= {"chunkwise_kernel", "sequence_kernel", "step_kernel",
               "max_inference_chunksize"}  # fmt: skip
    return {
        "heads": heads,
        "delta_keys": heads,
        "delta_values": heads,
        "delta_key_dim": keys // heads,
        "delta_value_dim": values // heads,
        "ssm_chunk": c.needed("chunk_size"),
        "ssm_dtype": str(c.get("inference_state_dtype") or ""),
        "intermediate": -(-int(hidden * c.number("ffn_proj_factor")) // multiple) * multiple,
        "logit_softcap": c.number("output_logit_soft_cap"),
    }


#: What published configs repeat under other names.
_LFM2_IDLE = frozenset({
    "block_dim", "block_norm_eps", "block_use_swiglu", "block_use_xavier_init", "conv_dim", "conv_dim_out",
    "conv_use_xavier_init", "num_heads",
})  # fmt: skip
#: Of routing, which costs the same.
_KIMI_IDLE = frozenset({
    "num_expert_group", "moe_router_enable_expert_bias", "num_experts_per_group", "mtp_loss_scaling_factor",
})  # fmt: skip
_EXPERT_NAMES = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts",
                 "num_experts_per_tok": "num_experts_per_token"}  # fmt: skip
_LATENT: tuple[Reader, ...] = (groups.body, groups.activation, groups.inner, groups.rotary, experts.latent,
                               experts.deepseek)  # fmt: skip
_PURE = {"heads": 1, "feeds": ["none"], "rope": False}
_DELTA_FIXED = {"qk_norm": True, "attention_gate": True}
_DELTA: dict[str, Any] = {
    "types": {"linear_attention": "delta"}, "pattern": _delta_turns, "defaults": {"partial_rotary_factor": 0.25},
}  # fmt: skip

HYBRIDS: dict[str, Kind] = {
    "mamba": Kind((groups.body, _mamba), {**_PURE, "pattern": ["mamba"]}, idle=frozenset({"d_inner", "n_layer"})),
    "falcon_mamba": Kind((groups.body, _mamba), {**_PURE, "pattern": ["mamba"], "ssm_inner_norms": "plain"}),
    "mamba2": Kind((groups.body, _mamba2), {**_PURE, "pattern": ["mamba2"]}, idle=frozenset({"intermediate_size"})),
    "jamba": Kind((*_DENSE, _jamba, experts.jamba), {"rope": False, "ssm_inner_norms": "scaled"}),
    "bamba": Kind((*_DENSE, groups.rotary, _bamba, groups.biases, groups.mlp_bias),
                  defaults={"partial_rotary_factor": 0.5}),
    "granitemoehybrid": Kind(
        (*_DENSE, groups.rotary, _listed, _mamba2_beside, groups.biases, groups.multipliers, _granite_positions,
         experts.granite_shared),
        types={**_WORDS, "mamba": "mamba2", "linear_attention": "mamba2"}, pattern=_all_mamba2),
    "falcon_h1": Kind((*_DENSE, groups.rotary, _falcon_h1, groups.biases, groups.mlp_bias)),
    "nemotron_h": Kind((groups.heads, _nemotron_h, groups.biases, groups.mlp_bias, experts.nemotron_h),
                       {"gated": False, "rope": False}, idle=frozenset({"time_step_rank"})),
    "recurrent_gemma": Kind((groups.body, groups.heads, groups.activation, groups.rotary, _recurrent_gemma),
                            {"embedding_scale": True, "out_bias": True, "mlp_bias": True},
                            defaults={"partial_rotary_factor": 0.5}, idle=frozenset({"embeddings_scale_by_sqrt_dim"})),
    "lfm2": Kind((groups.body, groups.heads, groups.rotary, _lfm2, _listed, _lfm2_inner, _lfm2_tied),
                 {"qk_norm": True}, types={"conv": "conv"}, pattern=_lfm2_pattern, idle=_LFM2_IDLE),
    "lfm2_moe": Kind((groups.body, groups.heads, groups.inner, groups.rotary, _lfm2, _listed, experts.lfm2,
                      _lfm2_tied), {"qk_norm": True}, types={"conv": "conv"}, pattern=_lfm2_pattern, idle=_LFM2_IDLE),
    "qwen3_5_text": Kind((*_DENSE, groups.rotary, _listed, groups.biases, _delta), _DELTA_FIXED, **_DELTA),
    "qwen3_5_moe_text": Kind((groups.body, groups.heads, groups.activation, groups.rotary, _listed, groups.biases,
                              _delta, experts.qwen), _DELTA_FIXED, **_DELTA),
    "lara_mini": Kind((groups.body, groups.heads, groups.activation, groups.rotary, _lara, groups.biases, _delta,
                       experts.shared_whole), {"qk_norm": True}, types={"linear_attention": "delta"}),
    "qwen3_next": Kind((*_DENSE, groups.rotary, _listed, groups.biases, _delta, experts.qwen), _DELTA_FIXED,
                       **_DELTA),
    "xlstm": Kind((groups.body, _xlstm), {"pattern": ["mlstm"], "rope": False}),
    "olmo_hybrid": Kind((*_DENSE, groups.biases, _olmo_delta), {"qk_norm": True, "qk_norm_over": "width"},
                        types={"linear_attention": "delta"}, pattern=_olmo_turns),
    "lfm3": Kind((groups.body, groups.heads, groups.inner, groups.rotary, groups.window, groups.biases, _lfm2,
                  groups.option("post_norms", "use_sandwich_norm"), _lfm3_gate),
                 {"qk_norm": True}, types={"conv": "conv"}, pattern=_lfm3_turns),
    "kimi_linear": Kind((*_LATENT, _kimi), {"router": "sigmoid", "rope": False}, names=_EXPERT_NAMES,
                        defaults={"n_routed_experts": 256, "first_k_dense_replace": 1, "moe_layer_freq": 1},
                        types={"linear_attention": "kda"}, idle=_KIMI_IDLE),
    "bailing_hybrid": Kind((*_LATENT, _bailing), {"router": "sigmoid", "output_gate": "head"}, names=_EXPERT_NAMES,
                           defaults={"n_routed_experts": 512}, types={"linear_attention": "kda"}, idle=_KIMI_IDLE),
}  # fmt: skip
