"""Decoders with attention in every layer: one row a ``model_type``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from roofline.programs.huggingface import experts, gemmas, groups
from roofline.programs.huggingface.keys import MAX_LAYERS, Keys, Kind, Reader

#: Ends of class names: with the head, and without.
CAUSAL = {"ForCausalLM": {}, "ForConditionalGeneration": {}, "LMHeadModel": {}, "Model": {"head": False}}

_NO_GATE = {"gated": False}
_LAYERNORM = {"norm": "layernorm"}
_BIASED = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
_NORMED = {"embedding_scale": True, "post_norms": True}
_GPT = {**_LAYERNORM, **_NO_GATE, **_BIASED, "rope": False, "tied": True}
_AFTER = {"pre_norms": False, "post_norms": True}
_GPT_NAMES = {
    "hidden_size": "n_embd", "num_hidden_layers": "n_layer", "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions", "intermediate_size": "n_inner", "hidden_act": "activation_function",
}  # fmt: skip

_BASE: tuple[Reader, ...] = (groups.body, groups.heads, groups.activation)
_LLAMA: tuple[Reader, ...] = (*_BASE, groups.inner, groups.rotary)
_GPT2: tuple[Reader, ...] = (*_BASE, groups.inner_or_four)


# --- readers of one class --------------------------------------------------------------------------------------------


def _falcon(c: Keys) -> dict[str, Any]:
    """Multi-query, grouped or full; blocks in parallel from one norm or two."""
    new, parallel = c.switch("new_decoder_architecture"), c.switch("parallel_attn")
    norms = c.size("num_ln_in_parallel_attn") or (2 if new else 1)
    heads, one = c.needed("num_attention_heads"), c.switch("multi_query") and not new
    given = c.size("num_kv_heads") or heads
    side_by_side = "parallel_norms" if new and norms == 2 else "parallel"
    return {
        "heads": heads,
        "head_dim": c.size("head_dim"),
        "kv_heads": 1 if one else given,
        "block": side_by_side if parallel or (new and norms == 2) else "serial",
        "alibi": c.switch("alibi"),
        "rope": not c.switch("alibi"),
        "intermediate": c.size("ffn_hidden_size"),
    }


def _mpt(c: Keys) -> dict[str, Any]:
    """Sizes in words of its own, attention in a table of its own."""
    attention = c.mapping("attn_config")
    c.used |= {"no_bias", "norm_type", "embedding_fraction", "init_device", "expansion_ratio"}
    ratio = c.size("expansion_ratio") or 4
    alibi = attention.get("alibi", True)
    if not isinstance(alibi, bool):
        c.fail("attn_config", f"alibi: wanted true or false, given {str(alibi)[:60]!r}")
    return {"intermediate": ratio * c.needed("hidden_size"), "alibi": alibi}


def _multi_query(c: Keys) -> dict[str, Any]:
    return {"kv_heads": 1 if c.switch("multi_query") else None}


def _opt(c: Keys) -> dict[str, Any]:
    """Norms before or after; a narrower token table with projections."""
    before, width = c.switch("do_layer_norm_before"), c.size("word_embed_proj_dim")
    return {
        "pre_norms": before,
        "sum_norms": not before,
        "final_norm": before and not c.switch("_remove_final_layer_norm"),
        "embed_width": 0 if width in (None, c.needed("hidden_size")) else width,
        "norm_scale": c.get("layer_norm_elementwise_affine") is not False,
    }


def _gpt_neo(c: Keys) -> dict[str, Any]:
    """``[[["global", "local"], 12]]``: kinds of attention and how often they repeat."""
    groups_of = c.get("attention_types") or [[["global", "local"], 12]]
    c.words("attention_layers")
    kinds = {"global": "full", "local": "sliding"}
    found: list[str] = []
    try:
        for names, times in groups_of:
            found += [kinds[name] for name in names] * min(int(times), MAX_LAYERS)
    except (TypeError, ValueError, KeyError):
        c.fail("attention_types", f'{str(groups_of)[:60]} is not understood; allowed: [[["global", "local"], n]]')
    if len(found) != (layers := c.needed("num_hidden_layers")):
        c.fail("attention_types", f"names {len(found)} layers, and num_layers is {layers}")
    return {"pattern": found, "window": c.needed("window_size")}


def _residual(c: Keys) -> dict[str, Any]:
    """GPT-NeoX: both branches from the residual, each with its norm, or one after the other."""
    return {"block": "parallel_norms" if c.switch("use_parallel_residual") else "serial"}


def _stablelm(c: Keys) -> dict[str, Any]:
    normed = c.switch("qk_layernorm")
    return {
        "block": "parallel" if c.switch("use_parallel_residual") else "serial",
        "qkv_bias": c.switch("use_qkv_bias"),
        "qk_norm": normed,
    }


def _prefix(c: Keys) -> dict[str, Any]:
    """PaliGemma: an image and its question see each other whole."""
    if c.switch("use_bidirectional_attention"):
        c.notes.append("use_bidirectional_attention: prefill is counted with causal attention")
    return {}


def _query_norm(key: str) -> Reader:
    return groups.option("qk_norm", key)


def _no_shared(c: Keys) -> dict[str, Any]:
    return {"out_bias": c.switch("attention_out_bias")}


def _gpt_oss(c: Keys) -> dict[str, Any]:
    c.used |= {"swiglu_alpha", "swiglu_limit", "experts_per_token", "hidden_act"}
    return {"router_bias": True, "expert_bias": True, "sinks": True, "activation": "clamped_swiglu"}


def _dots(c: Keys) -> dict[str, Any]:
    return experts.deepseek(c)


def _linear_turns(c: Keys) -> list[str]:
    """MiniMax-01: full attention in the first layer of every two."""
    return ["full" if (layer + 1) % 2 else "linear" for layer in range(c.needed("num_hidden_layers", MAX_LAYERS))]


def _minimax(c: Keys) -> dict[str, Any]:
    c.used |= {f"{kind}_{greek}_factor" for kind in ("full_attn", "linear_attn", "mlp") for greek in ("alpha", "beta")}
    c.used |= {"attn_type_list"}
    return {"ssm_chunk": c.needed("block_size")}


def _minicpm3(c: Keys) -> dict[str, Any]:
    """Latent attention whose values are as wide as a head where the config does not say; constants as in muP."""
    c.used |= {"scale_emb", "scale_depth", "dim_model_base"}
    width = c.size("v_head_dim") or c.needed("hidden_size") // c.needed("num_attention_heads")
    latent = experts.latent(replace(c, defaults={**c.defaults, "v_head_dim": width}))
    return {**latent, "embedding_scale": True, "residual_scale": True, "logit_scale": True}


def _laguna(c: Keys) -> dict[str, Any]:
    """Query heads of each layer, and a gate of attention for each head or for each of its columns."""
    gates = {"True": "head", "per-head": "head", "False": "width", "per-element": "width"}
    given, listed = str(c.get("gating")), c.sizes("num_attention_heads_per_layer")
    if given not in gates:
        c.fail("gating", f"{given[:60]!r} is not understood; allowed: true, per-head, per-element")
    if listed is not None and (len(listed) != c.needed("num_hidden_layers") or not all(listed)):
        c.fail("num_attention_heads_per_layer", f"wanted a number from 1 for each layer, given {str(listed)[:60]}")
    c.notes.append("rope_parameters: heads are counted as rotated whole in all layers")
    return {"output_gate": gates[given], "heads_pattern": listed}


def _mimo(c: Keys) -> dict[str, Any]:
    """Layers with a window have twice the key-value heads, and the window may be given without the query itself."""
    size = c.size("sliding_window_size")
    found = groups.window(replace(c, table={**c.table, "sliding_window": size + 1}) if size else c)
    kv = c.needed("num_key_value_heads")
    twice = [kv * (1 + (mixer == "sliding")) for mixer in found.get("pattern", ("full",))]
    return {**found, "kv_pattern": twice, "value_width": c.needed("v_head_dim"),
            "value_scale": c.number("attention_value_scale") not in (0, 1)}  # fmt: skip


def _first_and_every_sixth(c: Keys) -> list[str]:
    layers = range(c.needed("num_hidden_layers", MAX_LAYERS))
    return ["full" if layer == 0 or (layer + 1) % 6 == 0 else "sliding" for layer in layers]


def _every_sixth_and_last(c: Keys) -> list[str]:
    layers = c.needed("num_hidden_layers", MAX_LAYERS)
    return ["full" if (layer + 1) % 6 == 0 or layer == layers - 1 else "sliding" for layer in range(layers)]


def _doge(c: Keys) -> dict[str, Any]:
    """A bias of the scores from the values, which drops all but the ``keep_window_size`` largest of longer contexts."""
    c.used |= {"num_experts", "num_experts_per_tok"}
    if c.switch("is_moe"):
        c.fail("is_moe", "experts found by product keys are not understood yet; allowed: false")
    c.notes.append(f"keep_window_size = {c.needed('keep_window_size')}: longer contexts are counted as attended whole")
    return {}


def _jetmoe(c: Keys) -> dict[str, Any]:
    """A set of ``num_key_value_heads`` query heads for each expert that a token is sent to."""
    c.used |= {"num_attention_heads"}
    kv = c.needed("num_key_value_heads")
    return {"heads": kv * c.needed("num_experts_per_tok"), "kv_heads": kv, "head_dim": c.needed("head_dim")}


def _flint_turns(c: Keys) -> list[str]:
    """Full attention in the first two layers, in every fourth and in the last."""
    layers = c.needed("num_hidden_layers", MAX_LAYERS)
    return ["full" if i < 2 or i % 4 == 1 or i == layers - 1 else "sliding" for i in range(layers)]


def _all_full(c: Keys) -> list[str]:
    return ["full"]


def _afmoe(c: Keys) -> dict[str, Any]:
    """A gate of attention beside the queries, without a bias of its own; embeddings scaled as muP has it."""
    c.used |= {"global_attn_every_n_layers"}
    if c.switch("attention_bias"):
        c.fail("attention_bias", "biases beside a gate without one are not understood yet; allowed: false")
    return {"embedding_scale": c.switch("mup_enabled")}


def _afmoe_turns(c: Keys) -> list[str]:
    step = c.size("global_attn_every_n_layers", most=MAX_LAYERS) or 4
    return ["sliding"] * (step - 1) + ["full"]


def _cohere2_moe(c: Keys) -> dict[str, Any]:
    """RMSNorm where its epsilon is given; layers that see all rotate only in the dense ones before the experts."""
    c.used |= {"layer_norm_eps", "rms_norm_eps"}
    layers, prefix = range(c.needed("num_hidden_layers", MAX_LAYERS)), c.size("prefix_dense_sliding_window_pattern")
    mixers, feeds = groups.window(c).get("pattern") or ["full"], experts.cohere(c).get("feeds") or ["moe"]
    turns = [mixers[i % len(mixers)] == "sliding" or (feeds[i % len(feeds)] == "dense" and prefix == 1) for i in layers]
    return {"norm": "rmsnorm" if c.get("rms_norm_eps") is not None else "layernorm", "rope_pattern": turns}


def _cohere2_moe_turns(c: Keys) -> list[str]:
    """Full attention in every so-manieth layer, counted in the dense ones at the start and again in the others."""
    layers, first = c.needed("num_hidden_layers", MAX_LAYERS), c.size("first_k_dense_replace", least=0) or 0
    steps = (c.needed("prefix_dense_sliding_window_pattern"), c.needed("sliding_window_pattern"))
    counts = (min(first, layers), layers - min(first, layers))
    each = zip(steps, counts, strict=True)
    return ["sliding" if (i + 1) % step else "full" for step, count in each for i in range(count)]


def _japanese(c: Keys) -> dict[str, Any]:
    return {"intermediate": c.needed("intermediate_multiple_size") * c.needed("hidden_size")}


def _modernbert_decoder(c: Keys) -> dict[str, Any]:
    """Windows of half of ``local_attention`` but in every third layer, as listed or as a period."""
    c.used |= {"sliding_window", "classifier_activation", "global_rope_theta", "local_rope_theta"}
    listed, size = c.words("layer_types"), (c.size("local_attention", least=0) or 0) // 2
    step = c.size("global_attn_every_n_layers", most=MAX_LAYERS) or 3
    found = {"window": size, "pattern": ["full"] + ["sliding"] * (step - 1)}
    return {
        **(groups.layer_types(c, listed, size) if listed else found),
        "norm_bias": c.switch("norm_bias"),
        "head_bias": c.switch("decoder_bias"),
        "head_transform_bias": c.switch("classifier_bias"),
    }


def _one_then_three(c: Keys) -> list[str]:
    return ["full", "sliding", "sliding", "sliding"]


# --- rows ------------------------------------------------------------------------------------------------------------

_GEMMA2 = (*_LLAMA, groups.window, groups.biases, groups.softcaps)
_DEEPSEEK = (groups.body, groups.activation, groups.inner, groups.rotary, experts.latent, experts.deepseek)
_GPTJ = (*_GPT2, groups.rotary_dim)
_GPTJ_FIXED = {**_LAYERNORM, **_NO_GATE, "mlp_bias": True, "head_bias": True, "block": "parallel"}
_COHERE_FIXED = {**_LAYERNORM, "norm_bias": False, "block": "parallel", "logit_scale": True,
                 "qk_norm_kind": "layernorm", "qk_norm_over": "heads"}  # fmt: skip
_PLAIN_EXPERTS = {"n_routed_experts": "num_experts", "n_shared_experts": "num_shared_experts"}
_FAIRSEQ = {**_GPT, "embedding_scale": True}

DECODERS: dict[str, Kind] = {
    # Llama and what differs from it in a key or two.
    "llama": Kind((*_LLAMA, groups.biases, groups.mlp_bias)),
    "arcee": Kind((*_LLAMA, groups.biases, groups.mlp_bias), _NO_GATE),
    "internlm3": Kind((*_LLAMA, groups.biases, groups.mlp_bias),
                      names={"attention_bias": "qkv_bias", "mlp_bias": "bias"}),
    "helium": Kind((*_LLAMA, groups.input_biases, groups.mlp_bias)),
    "mistral": Kind((*_LLAMA, groups.window)),
    "ministral": Kind((*_LLAMA, groups.window)),
    "ministral3": Kind((*_LLAMA, groups.window)),
    "mixtral": Kind((*_LLAMA, groups.window, experts.mixtral)),
    "seed_oss": Kind((*_LLAMA, groups.input_biases, _no_shared, groups.mlp_bias)),
    "ernie4_5": Kind((*_LLAMA, groups.all_biases("use_bias"))),
    "ernie4_5_moe": Kind((*_LLAMA, groups.all_biases("use_bias"), experts.ernie)),
    "smollm3": Kind((*_LLAMA, groups.window, groups.no_rope, groups.biases, groups.mlp_bias)),
    "granite": Kind((*_LLAMA, groups.biases, groups.mlp_bias, groups.multipliers)),
    "granitemoe": Kind((*_LLAMA, groups.biases, groups.multipliers, experts.mixtral)),
    "granitemoeshared": Kind((*_LLAMA, groups.biases, groups.multipliers, experts.granite_shared)),
    "hunyuan_v1_dense": Kind((*_LLAMA, groups.biases), {"qk_norm": True}),
    "hunyuan_v1_moe": Kind((*_LLAMA, groups.biases, experts.hunyuan), {"qk_norm": True}),
    "llama4_text": Kind((*_BASE, groups.rotary, groups.no_rope, groups.chunks, groups.biases, experts.llama4),
                        {"router": "sigmoid"}, types={"chunked_attention": "sliding"}),
    "exaone": Kind((*_LLAMA, groups.biases, groups.mlp_bias),
                   names={"num_hidden_layers": "num_layers", "hidden_act": "activation_function"}),
    "iquestcoder": Kind((*_LLAMA, groups.biases, groups.mlp_bias)),
    "cwm": Kind((*_LLAMA, groups.window, groups.mlp_bias), pattern=_one_then_three),
    "apertus": Kind((*_LLAMA, groups.biases), {**_NO_GATE, "qk_norm": True}),
    "diffllama": Kind((*_LLAMA, groups.biases), {"differential": True}),
    "doge": Kind((*_LLAMA, groups.window, groups.biases, groups.mlp_bias, _doge),
                 {"qk_norm": True, "value_bias": True, "residual_weights": True}),
    "bitnet": Kind((*_LLAMA, groups.biases), {"sub_norms": True}),
    "nanochat": Kind((*_LLAMA, groups.biases, groups.softcaps),
                     {**_NO_GATE, "norm_scale": False, "embed_norm": True, "qk_norm": True, "qk_norm_scale": False}),
    "granite_swa": Kind((*_LLAMA, groups.window, groups.thetas, groups.biases, groups.mlp_bias, groups.multipliers),
                        {"sinks": True}, pattern=_one_then_three),
    "granitemoe_swa": Kind((*_LLAMA, groups.window, groups.thetas, groups.biases, groups.multipliers,
                            experts.granite_shared), {"sinks": True}, pattern=_one_then_three),
    "hyperclovax": Kind((*_LLAMA, groups.biases, groups.mlp_bias, groups.multipliers,
                         groups.option("post_norms", "use_post_norm"))),
    "jais2": Kind((*_LLAMA, groups.biases, groups.mlp_bias), {**_LAYERNORM, **_NO_GATE}),
    # Qwen, Phi, GLM.
    "qwen2": Kind((*_LLAMA, groups.window), {"qkv_bias": True}, pattern=groups.after_the_first),
    "qwen3": Kind((*_LLAMA, groups.window, groups.biases), {"qk_norm": True}, pattern=groups.after_the_first),
    "qwen2_moe": Kind((*_LLAMA, groups.window, groups.input_biases, experts.qwen), names={"attention_bias": "qkv_bias"},
                      pattern=groups.after_the_first),
    "qwen3_moe": Kind((*_LLAMA, groups.window, groups.biases, experts.qwen), {"qk_norm": True},
                      names={"num_experts": "num_local_experts"}, pattern=groups.after_the_first),
    "mellum": Kind((*_LLAMA, groups.window, groups.biases, experts.mellum), {"qk_norm": True},
                   names={"num_experts": "num_local_experts"}, pattern=_all_full),
    "flint": Kind((*_LLAMA, groups.window, groups.rope_in_windows, groups.biases, experts.shared_whole),
                  {"qk_norm": True, "sinks": True}, defaults={"mlp_only_layers": [0, 1]}, pattern=_flint_turns),
    # The language models of Qwen's multimodal models.
    "qwen2_vl_text": Kind((*_LLAMA, groups.window), {"qkv_bias": True}, pattern=groups.after_the_first),
    "qwen2_5_vl_text": Kind((*_LLAMA, groups.window), {"qkv_bias": True}, pattern=groups.after_the_first),
    "qwen3_vl_text": Kind((*_LLAMA, groups.biases), {"qk_norm": True}),
    "qwen3_vl_moe_text": Kind((*_LLAMA, groups.biases, experts.qwen), {"qk_norm": True},
                              names={"num_experts": "num_local_experts"}),
    "phi": Kind((*_LLAMA, _query_norm("qk_layernorm")),
                {**_LAYERNORM, **_NO_GATE, **_BIASED, "head_bias": True, "block": "parallel",
                 "qk_norm_kind": "layernorm", "qk_norm_bias": True}, defaults={"partial_rotary_factor": 0.5}),
    "phi3": Kind((*_LLAMA, groups.window)),
    "phimoe": Kind((*_LLAMA, groups.window, groups.biases, experts.mixtral,
                    groups.option("head_bias", "lm_head_bias")), _LAYERNORM),
    "glm": Kind((*_LLAMA, groups.input_biases), defaults={"partial_rotary_factor": 0.5}),
    "glm4": Kind((*_LLAMA, groups.input_biases), {"post_norms": True}, defaults={"partial_rotary_factor": 0.5}),
    "glm4_moe": Kind((*_LLAMA, groups.input_biases, _query_norm("use_qk_norm"), experts.deepseek),
                     {"router": "sigmoid"}, defaults={"partial_rotary_factor": 0.5}),
    "glm4_moe_lite": Kind(_DEEPSEEK, {"router": "sigmoid"}, defaults={"first_k_dense_replace": 1}),
    "sarvam_moe": Kind((*_LLAMA, groups.input_biases, _query_norm("use_qk_norm"), experts.deepseek),
                       {"router": "sigmoid"}, names={"n_routed_experts": "num_experts",
                                                     "n_shared_experts": "num_shared_experts"}),
    "solar_open": Kind((*_BASE, groups.rotary, groups.input_biases, experts.deepseek), {"router": "sigmoid"}),
    "kolibri1": Kind((*_BASE, groups.rotary, groups.window, experts.qwen),
                     {"qk_norm": True, "post_norms": True, "router": "sigmoid", "shared_gate": False},
                     names={"num_experts": "num_local_experts"}, pattern=groups.every(5)),
    "laguna": Kind((*_BASE, groups.inner, groups.window, groups.biases, experts.laguna, _laguna),
                   {"qk_norm": True, "router": "sigmoid", "score_bias": True, "output_gate_activation": "softplus"},
                   names=_PLAIN_EXPERTS, defaults={"first_k_dense_replace": 1}, pattern=_all_full),
    "mimo_v2_flash": Kind((*_LLAMA, groups.input_biases, _mimo, experts.mimo),
                          {"router": "sigmoid", "sinks": True, "sink_layers": "sliding"},
                          defaults={"partial_rotary_factor": 0.334}, pattern=_first_and_every_sixth,
                          idle=frozenset({"hybrid_layer_pattern", "hybrid_block_size", "add_swa_attention_sink_bias",
                                          "swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim",
                                          "swa_v_head_dim"})),
    "beam": Kind((*_LLAMA, groups.window, groups.rope_in_windows, groups.biases, groups.softcaps, experts.deepseek),
                 {"qk_norm": True, "post_norms": True, "router": "sigmoid", "residual_scale": True,
                  "output_gate": "width", "output_gate_bias": True},
                 names=_PLAIN_EXPERTS, defaults={"first_k_dense_replace": 3}, pattern=_every_sixth_and_last),
    "aria_text": Kind((*_LLAMA, groups.biases, groups.mlp_bias, experts.aria)),
    # Gemma.
    "gemma": Kind((*_LLAMA, groups.biases, _prefix), {"embedding_scale": True}),
    "gemma2": Kind(_GEMMA2, _NORMED, pattern=groups.every(2), idle=frozenset({"sliding_window_size"})),
    "gemma3_text": Kind(_GEMMA2, {**_NORMED, "qk_norm": True}, pattern=groups.every(6)),
    "gemma4_text": Kind((groups.body, groups.heads, groups.activation, groups.inner, groups.rotary, groups.biases,
                         groups.softcaps, gemmas.gemma4),
                        {**_NORMED, "qk_norm": True, "value_norm": True, "layer_scale": True}),
    "vaultgemma": Kind(_GEMMA2, {"embedding_scale": True}, pattern=groups.every(2)),
    # Latent attention, experts.
    "deepseek_v2": Kind((*_DEEPSEEK, groups.mlp_bias), defaults={"moe_layer_freq": 1}),
    "deepseek_v3": Kind(_DEEPSEEK, {"router": "sigmoid"}, defaults={"moe_layer_freq": 1}),
    "deepseek_v32": Kind((*_DEEPSEEK, experts.index), {"router": "sigmoid"}),
    "glm_moe_dsa": Kind((*_DEEPSEEK, experts.index_shared), {"router": "sigmoid"}),
    "longcat_flash": Kind((groups.body, groups.activation, groups.inner, groups.rotary, experts.latent,
                           experts.longcat),
                          names={"num_hidden_layers": "num_layers", "num_experts_per_tok": "moe_topk",
                                 "intermediate_size": "ffn_hidden_size",
                                 "moe_intermediate_size": "expert_ffn_hidden_size"}),
    "sarvam_mla": Kind(_DEEPSEEK, {"router": "sigmoid"}, names=_PLAIN_EXPERTS, idle=frozenset({"q_head_dim"})),
    "axk1": Kind(_DEEPSEEK, {"router": "sigmoid", "expert_norm": True}, defaults={"first_k_dense_replace": 1}),
    "minicpm3": Kind((groups.body, groups.activation, groups.inner, groups.rotary, _minicpm3, groups.mlp_bias)),
    "youtu": Kind((groups.body, groups.activation, groups.inner, groups.rotary, experts.latent)),
    "exaone_moe": Kind((*_LLAMA, groups.window, groups.rope_in_windows, experts.deepseek),
                       {"qk_norm": True, "router": "sigmoid"}, names=_PLAIN_EXPERTS, pattern=groups.every(4)),
    "hy_v3": Kind((*_LLAMA, groups.biases, groups.mlp_bias, experts.deepseek), {"qk_norm": True, "router": "sigmoid"},
                  names=_PLAIN_EXPERTS, defaults={"first_k_dense_replace": 1}),
    "dots1": Kind((*_LLAMA, groups.window, groups.biases, _dots), {"qk_norm": True, "router": "sigmoid"},
                  pattern=groups.after_the_first),
    "gpt_oss": Kind((groups.body, groups.heads, groups.inner, groups.rotary, groups.window, groups.biases,
                     experts.mixtral, _gpt_oss), pattern=groups.every(2)),
    "minimax": Kind((*_LLAMA, groups.window, experts.mixtral, _minimax), types={"linear_attention": "linear"},
                    pattern=_linear_turns),
    "minimax_m2": Kind((*_LLAMA, experts.mixtral, groups.rotary_dim),
                       {"qk_norm": True, "qk_norm_over": "width", "router": "sigmoid"},
                       idle=frozenset({"mlp_intermediate_size", "mtp_transformer_layers", "num_mtp_modules",
                                       "use_routing_bias"})),
    "minimax_m3_vl_text": Kind((groups.body, groups.heads, groups.rotary_dim, experts.minimax_m3),
                               {"qk_norm": True, "router": "sigmoid", "activation": "clamped_swiglu"}),
    # Norms of another kind or in another place, branches side by side.
    "olmo": Kind((*_LLAMA, groups.biases), {**_LAYERNORM, "norm_scale": False}),
    "olmo2": Kind((*_LLAMA, groups.biases), {**_AFTER, "qk_norm": True, "qk_norm_over": "width"}),
    "olmo3": Kind((*_LLAMA, groups.window, groups.biases), {**_AFTER, "qk_norm": True, "qk_norm_over": "width"},
                  pattern=groups.every(4)),
    "olmoe": Kind((*_LLAMA, groups.biases, experts.olmoe), {"qk_norm": True, "qk_norm_over": "width"}),
    "flex_olmo": Kind((*_LLAMA, groups.biases, experts.olmoe), {**_AFTER, "qk_norm": True, "qk_norm_over": "width"}),
    "exaone4": Kind((*_LLAMA, groups.window, groups.rope_in_windows), {**_AFTER, "qk_norm": True},
                    pattern=groups.every(4)),
    "cohere": Kind((*_LLAMA, groups.biases, _query_norm("use_qk_norm")), _COHERE_FIXED),
    "cohere2": Kind((*_LLAMA, groups.biases, groups.window, groups.rope_in_windows), _COHERE_FIXED,
                    pattern=groups.every(4), idle=frozenset({"use_parallel_block", "use_parallel_embedding"})),
    "cohere2_moe": Kind((*_BASE, groups.rotary, groups.biases, groups.window, experts.cohere, _cohere2_moe),
                        {"norm_bias": False, "block": "parallel", "logit_scale": True}, names=_PLAIN_EXPERTS,
                        pattern=_cohere2_moe_turns),
    "jetmoe": Kind((groups.body, groups.activation, groups.inner, groups.rotary, _jetmoe, experts.mixtral),
                   {"expert_attention": True, "expert_sum_bias": True},
                   names={"head_dim": "kv_channels", "hidden_act": "activation_function"}),
    "afmoe": Kind((*_LLAMA, groups.window, groups.rope_in_windows, _afmoe, experts.afmoe),
                  {"qk_norm": True, "attention_gate": True, "post_norms": True}, pattern=_afmoe_turns),
    "dbrx": Kind((groups.body, groups.heads, groups.rotary, experts.dbrx), {**_LAYERNORM, "norm_bias": False},
                 names={"hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}),
    "nemotron": Kind((*_LLAMA, groups.biases, groups.mlp_bias), {**_LAYERNORM, **_NO_GATE},
                     defaults={"partial_rotary_factor": 0.5}),
    "starcoder2": Kind((*_LLAMA, groups.window, groups.all_biases("use_bias")), {**_LAYERNORM, **_NO_GATE}),
    "stablelm": Kind((*_LLAMA, _stablelm), {**_LAYERNORM, "qk_norm_kind": "layernorm", "qk_norm_over": "heads"},
                     defaults={"partial_rotary_factor": 0.25}),
    "persimmon": Kind((*_LLAMA, _query_norm("qk_layernorm")),
                      {**_LAYERNORM, **_NO_GATE, **_BIASED, "qk_norm_kind": "layernorm", "qk_norm_bias": True},
                      defaults={"partial_rotary_factor": 0.5}),
    "gpt_neox": Kind((*_LLAMA, _residual, groups.biases), {**_LAYERNORM, **_NO_GATE, "mlp_bias": True},
                     defaults={"partial_rotary_factor": 0.25}),
    "gpt_neox_japanese": Kind((*_BASE, groups.rotary, _japanese),
                              {**_LAYERNORM, **_NO_GATE, "last_out_bias": True}),
    "modernbert-decoder": Kind((*_LLAMA, groups.biases, groups.mlp_bias, _modernbert_decoder),
                               {**_LAYERNORM, "embed_norm": True, "first_norm": False, "head_transform": True}),
    "falcon": Kind((groups.body, groups.activation, groups.rotary, _falcon, groups.all_biases("bias")),
                   {**_LAYERNORM, **_NO_GATE}, names={"hidden_act": "activation"}),
    # GPT-2 and its like: learned positions, or biases beside the scores.
    "gpt2": Kind((*_GPT2, groups.positions), _GPT, names=_GPT_NAMES),
    "gpt-sw3": Kind((*_GPT2, groups.positions), _GPT, names=_GPT_NAMES),
    "gpt_bigcode": Kind((*_GPT2, groups.positions, _multi_query), _GPT, names=_GPT_NAMES),
    "openai-gpt": Kind((*_BASE, groups.positions),
                       {**_GPT, "pre_norms": False, "sum_norms": True, "final_norm": False},
                       names={**_GPT_NAMES, "hidden_act": "afn"}),
    "gptj": Kind(_GPTJ, _GPTJ_FIXED, names=_GPT_NAMES),
    "codegen": Kind(_GPTJ, _GPTJ_FIXED, names=_GPT_NAMES),
    "gpt_neo": Kind((*_GPT2, groups.positions, _gpt_neo), {**_GPT, "qkv_bias": False},
                    names={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers",
                           "hidden_act": "activation_function"}),
    "opt": Kind((*_BASE, groups.inner, groups.offset_positions, _opt, groups.all_biases("enable_bias")),
                {**_LAYERNORM, **_NO_GATE, "rope": False},
                names={"hidden_act": "activation_function", "intermediate_size": "ffn_dim"}),
    "biogpt": Kind((*_BASE, groups.inner, groups.offset_positions), _FAIRSEQ),
    "xglm": Kind((*_BASE, groups.inner), {**_FAIRSEQ, "fixed_positions": True},
                 names={"hidden_size": "d_model", "num_hidden_layers": "num_layers", "intermediate_size": "ffn_dim",
                        "num_attention_heads": "attention_heads", "hidden_act": "activation_function"}),
    "ctrl": Kind((groups.body, groups.heads, groups.inner),
                 {**_FAIRSEQ, "fixed_positions": True, "head_bias": True, "activation": "relu"},
                 names={**_GPT_NAMES, "intermediate_size": "dff"}),
    "bloom": Kind(_BASE, {**_GPT, "alibi": True, "embed_norm": True},
                  names={"hidden_size": "n_embed", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
                  defaults={"hidden_act": "gelu_new"},
                  idle=frozenset({"bias_dropout_fusion", "skip_bias_add", "skip_bias_add_qkv"})),
    "mpt": Kind((*_BASE, _mpt), {**_LAYERNORM, **_NO_GATE, "norm_bias": False, "rope": False, "tied": True},
                names={"hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
                defaults={"hidden_act": "gelu"}),
}  # fmt: skip
