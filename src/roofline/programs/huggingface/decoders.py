"""Decoders with attention in every layer: one row per ``model_type``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from roofline.programs.architectures.config import in_turn
from roofline.programs.huggingface import experts, groups
from roofline.programs.huggingface.checkpoints import attention, blocks, gemma3n, mllama, openelm
from roofline.programs.huggingface.groups import BASE, GPT2, LATENT, LLAMA, biases, mlp_bias, options, rotary, window
from roofline.programs.huggingface.keys import MAX_LAYERS, Keys, Kind, Reader, row

#: Ends of class names: with the head, and without.
CAUSAL = {"ForCausalLM": {}, "ForConditionalGeneration": {}, "LMHeadModel": {}, "Model": {"head": False}}


# --- readers of one class --------------------------------------------------------------------------------------------


def _falcon(c: Keys) -> dict[str, Any]:
    """Multi-query, grouped or full; blocks in parallel from one norm or two."""
    new, parallel = c.switch("new_decoder_architecture"), c.switch("parallel_attn")
    norms = c.size("num_ln_in_parallel_attn") or (2 if new else 1)
    heads, single = c.needed("num_attention_heads"), c.switch("multi_query") and not new
    several = c.size("num_kv_heads") or heads
    two, alibi = new and norms == 2, c.switch("alibi")
    return {
        "heads": heads, "head_dim": c.size("head_dim"), "kv_heads": 1 if single else several,
        "block": "parallel_norms" if two else "parallel" if parallel else "serial", "alibi": alibi, "rope": not alibi,
        "intermediate": c.size("ffn_hidden_size"),
    }  # fmt: skip


def _mpt(c: Keys) -> dict[str, Any]:
    """Sizes in words of its own, attention in a table of its own."""
    attention = c.mapping("attn_config")
    c.ignore("no_bias", "norm_type", "embedding_fraction", "init_device")
    ratio = c.size("expansion_ratio") or 4
    alibi = attention.get("alibi", True)
    if not isinstance(alibi, bool):
        c.fail("attn_config", f"alibi: expected true or false, given {str(alibi)[:60]!r}")
    inside = replace(c, table=attention, defaults={})
    if inside.switch("qk_ln"):
        inside.fail("qk_ln", "norms of queries and keys are not understood yet; allowed: false")
    return {"intermediate": ratio * c.needed("hidden_size"), "alibi": alibi, **groups.clip(inside)}


def _parallel(block: str) -> Reader:
    """Return a reader of whether both branches start from the residual, or one follows the other."""
    return lambda c: {"block": block if c.switch("use_parallel_residual") else "serial"}


def _gpt_neo(c: Keys) -> dict[str, Any]:
    """``[[["global", "local"], 12]]``: kinds of attention and how often they repeat."""
    table = c.get("attention_types") or [[["global", "local"], 12]]
    c.words("attention_layers")
    kinds, mixers = {"global": "full", "local": "sliding"}, []
    try:
        for names, times in table:
            mixers += [kinds[name] for name in names] * min(int(times), MAX_LAYERS)
    except (TypeError, ValueError, KeyError):
        c.fail("attention_types", f'{str(table)[:60]} is not understood; allowed: [[["global", "local"], n]]')
    if len(mixers) != len(c.layers):
        c.fail("attention_types", f"names {len(mixers)} layers, and num_layers is {len(c.layers)}")
    return {"pattern": mixers, "window": c.needed("window_size")}


def _prefix(c: Keys) -> dict[str, Any]:
    """PaliGemma: an image and its question see each other whole."""
    if c.switch("use_bidirectional_attention"):
        c.notes.append("use_bidirectional_attention: prefill is counted with causal attention")
    return {}


def _minicpm3(c: Keys) -> dict[str, Any]:
    """Latent attention whose values are as wide as a head where the config does not say; constants as in muP."""
    c.ignore("scale_emb", "scale_depth", "dim_model_base")
    width = c.size("v_head_dim") or c.needed("hidden_size") // c.needed("num_attention_heads")
    sizes = groups.latent(replace(c, defaults={**c.defaults, "v_head_dim": width}))
    return {**sizes, "embedding_scale": True, "residual_scale": True, "logit_scale": True}


def _afmoe(c: Keys) -> dict[str, Any]:
    """A gate of attention beside the queries, without a bias of its own; embeddings scaled as muP has it."""
    c.ignore("global_attn_every_n_layers")
    if c.switch("attention_bias"):
        c.fail("attention_bias", "biases beside a gate without one are not understood yet; allowed: false")
    return {"embedding_scale": c.switch("mup_enabled")}


def _cohere2_experts(c: Keys) -> dict[str, Any]:
    """Experts as wide as ``intermediate_size`` after first dense layers of a size of their own."""
    width = c.needed("intermediate_size")
    c.ignore("shared_expert_combination_strategy")
    router = c.one_of("expert_selection_fn", {"softmax": "softmax", "sigmoid": "sigmoid"})
    return {**experts.deepseek(c.having(moe_intermediate_size=width)), "router": router,
            "intermediate": c.size("prefix_dense_intermediate_size") or width}  # fmt: skip


def _cohere2_moe(c: Keys) -> dict[str, Any]:
    """RMSNorm where its epsilon is given; layers that see all rotate only in the dense ones before the experts."""
    c.ignore("layer_norm_eps")
    dense_rotates = c.size("prefix_dense_sliding_window_pattern") == 1
    mixers, feeds = window(c).get("pattern") or ["full"], _cohere2_experts(c).get("feeds") or ["moe"]
    rotates = [in_turn(mixers, i, "") == "sliding" or (in_turn(feeds, i, "") == "dense" and dense_rotates)
               for i in c.layers]  # fmt: skip
    return {"norm": "rmsnorm" if c.get("rms_norm_eps") is not None else "layernorm", "rope_pattern": rotates}


def _cohere2_moe_turns(c: Keys) -> list[str]:
    """Full attention in every n-th layer, counted in the dense ones at the start and again in the others."""
    layers, first = len(c.layers), c.size("first_k_dense_replace", least=0) or 0
    steps = (c.needed("prefix_dense_sliding_window_pattern"), c.needed("sliding_window_pattern"))
    counts = (min(first, layers), layers - min(first, layers))
    parts = zip(steps, counts, strict=True)
    return ["sliding" if (i + 1) % step else "full" for step, count in parts for i in range(count)]


#: The class without a head is published with one: ``auto_map`` names it for every task.
_CHATGLM_ENDS: dict[str, Mapping[str, Any] | None] = {
    "Model": {}, "ForConditionalGeneration": {}, "ForCausalLM": {}, "ForSequenceClassification": None,
}  # fmt: skip


def _chatglm(c: Keys) -> dict[str, Any]:
    """ChatGLM2, ChatGLM3 and GLM-4 in their own words: groups of queries, half of a head rotated, always a gate.

    The published code is remote: https://huggingface.co/THUDM/chatglm3-6b/blob/main/modeling_chatglm.py.
    """
    if c.table.get("position_encoding_2d") is not None or "inner_hidden_size" in c.table:
        c.fail("position_encoding_2d", "the first ChatGLM is not understood; allowed: ChatGLM2 and later")
    c.ignore("bias_dropout_fusion", "num_hidden_layers", "vocab_size", "pre_seq_len", "prefix_projection", "seq_length",
             "hidden_dropout", "original_rope", "rope_ratio", "interleaved_qkv")  # fmt: skip
    heads, width = c.needed("num_attention_heads"), c.needed("kv_channels")
    both, qkv = c.switch("add_bias_linear"), c.switch("add_qkv_bias")
    return {
        "heads": heads, "head_dim": width, "rotary_dim": width // 2, "intermediate": c.needed("ffn_hidden_size"),
        "kv_heads": c.needed("multi_query_group_num") if c.switch("multi_query_attention") else heads,
        "qkv_bias": both or qkv, "out_bias": both, "mlp_bias": both,
        "norm": "layernorm" if c.get("rmsnorm") is False else "rmsnorm",
        "final_norm": c.get("post_layer_norm") is not False,
    }  # fmt: skip


def _qwen(c: Keys) -> dict[str, Any]:
    """Qwen 1 in its own words: biases of queries, keys and values, two matrices of half of the inner size.

    The published code is remote: https://huggingface.co/Qwen/Qwen-7B/blob/main/modeling_qwen.py.
    """
    c.ignore("no_bias", "seq_length", "rotary_emb_base", "rotary_pct")
    if c.get("no_bias") is False:
        c.fail("no_bias", "biases of the other matrices are not understood; allowed: true")
    inner, heads, width = c.needed("intermediate_size"), c.needed("num_attention_heads"), c.needed("kv_channels")
    if inner % 2:
        c.fail("intermediate_size", f"expected an even number, given {inner}")
    return {"heads": heads, "head_dim": width, "intermediate": inner // 2, "qkv_bias": True}


def _baichuan(c: Keys) -> dict[str, Any]:
    """Baichuan and Baichuan 2: the 13B, whose config has no positions of its own, adds biases by distance instead.

    The published code is remote: https://huggingface.co/baichuan-inc/Baichuan2-13B-Base/blob/main/modeling_baichuan.py.
    """
    c.ignore("z_loss_weight", "model_max_length")
    far = c.table.get("max_position_embeddings") is None
    return {"alibi": far, "rope": not far}


#: What DBRX's tables mean where they say nothing.
_DBRX = {"kv_n_heads": 1, "ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1}


def _dbrx(c: Keys) -> dict[str, Any]:
    """Sizes in tables of their own for attention and for experts, in every layer."""
    attention, feed = c.mapping("attn_config"), c.mapping("ffn_config")
    inside = replace(c, table={**feed, **attention}, defaults=_DBRX)
    act = inside.mapping("ffn_act_fn").get("name", "silu")
    return {
        "kv_heads": inside.needed("kv_n_heads"),
        **groups.clip(inside),
        "activation": c.having(ffn_act_fn=act).one_of("ffn_act_fn", groups.ACTIVATIONS),
        **experts.routed(inside, "moe_num_experts", "moe_top_k", inner=inside.needed("ffn_hidden_size")),
    }


# --- rows ------------------------------------------------------------------------------------------------------------

_GEMMA2 = (window, biases, groups.softcaps)
_ONE_THEN_THREE = groups.turns("full", "sliding", "sliding", "sliding")
_MINIMAX_SCALES = groups.ignored(
    "attn_type_list",
    *(f"{kind}_{greek}_factor" for kind in ("full_attn", "linear_attn", "mlp") for greek in ("alpha", "beta")),
)
_COHERE_FIXED: dict[str, Any] = {
    "norm": "layernorm", "norm_bias": False, "block": "parallel", "logit_scale": True, "qk_norm_kind": "layernorm",
    "qk_norm_over": "heads",
}  # fmt: skip

DECODERS: dict[str, Kind] = {
    # Llama and what differs from it in a key or two.
    "llama": row(*LLAMA, biases, mlp_bias),
    "arcee": row(*LLAMA, biases, mlp_bias, gated=False),
    "internlm3": row(*LLAMA, biases, mlp_bias, names={"attention_bias": "qkv_bias", "mlp_bias": "bias"}),
    "Yi": row(*LLAMA),
    "baichuan": row(*BASE, groups.inner, rotary, _baichuan),
    # Published files leave tie_word_embeddings to their class, https://huggingface.co/openbmb/MiniCPM-2B-sft-bf16.
    "minicpm": row(*LLAMA, groups.ignored("scale_emb", "scale_depth", "dim_model_base"), biases,
        experts.olmoe, defaults={"tie_word_embeddings": True}, embedding_scale=True, residual_scale=True,
        logit_scale=True),
    "qwen": row(groups.body, _qwen, activation="silu", idle={"use_dynamic_ntk", "use_logn_attn"}),
    "internlm2": row(*LLAMA, biases, names={"attention_bias": "bias"}),
    "chatglm": row(groups.body, _chatglm, ends=_CHATGLM_ENDS,
        names={"num_hidden_layers": "num_layers", "vocab_size": "padded_vocab_size"}),
    "helium": row(*LLAMA, groups.input_biases, mlp_bias),
    **dict.fromkeys(("mistral", "ministral", "ministral3"), row(*LLAMA, window)),
    "mixtral": row(*LLAMA, window, experts.mixtral),
    "seed_oss": row(*LLAMA, groups.input_biases, options(out_bias="attention_out_bias"), mlp_bias),
    "ernie4_5": row(*LLAMA, groups.all_biases("use_bias")),
    "ernie4_5_moe": row(*LLAMA, groups.all_biases("use_bias"), experts.ernie),
    "smollm3": row(*LLAMA, window, groups.no_rope, biases, mlp_bias),
    "granite": row(*LLAMA, biases, mlp_bias, groups.multipliers),
    "granitemoe": row(*LLAMA, biases, groups.multipliers, experts.mixtral),
    "granitemoeshared": row(*LLAMA, biases, groups.multipliers, experts.granite),
    "hunyuan_v1_dense": row(*LLAMA, biases, qk_norm=True),
    "hunyuan_v1_moe": row(*LLAMA, biases, experts.hunyuan, qk_norm=True),
    "llama4_text": row(*BASE, rotary, groups.no_rope, groups.chunks, biases, experts.llama4,
        options(qk_norm="use_qk_norm"),
        lambda c: {"tempered": c.get("attn_temperature_tuning") not in (None, False, 0)},
        router="sigmoid", qk_norm_scale=False,
        types={"chunked_attention": "sliding"}, family=attention.LLAMA4),
    "exaone": row(*LLAMA, biases, mlp_bias,
        names={"num_hidden_layers": "num_layers", "hidden_act": "activation_function"}),
    "iquestcoder": row(*LLAMA, biases, mlp_bias),
    "cwm": row(*LLAMA, window, mlp_bias, mixers=_ONE_THEN_THREE),
    "apertus": row(*LLAMA, biases, gated=False, qk_norm=True),
    "bitnet": row(*LLAMA, biases, family=blocks.BITNET),
    "nanochat": row(*LLAMA, biases, groups.softcaps, gated=False, norm_scale=False, embed_norm=True, qk_norm=True,
        qk_norm_scale=False),
    "granite_swa": row(*LLAMA, window, groups.thetas, biases, mlp_bias, groups.multipliers, sinks=True,
        mixers=_ONE_THEN_THREE),
    "granitemoe_swa": row(*LLAMA, window, groups.thetas, biases, groups.multipliers, experts.granite, sinks=True,
        mixers=_ONE_THEN_THREE),
    "hyperclovax": row(*LLAMA, biases, mlp_bias, groups.multipliers, options(post_norms="use_post_norm")),
    "jais2": row(*LLAMA, biases, mlp_bias, norm="layernorm", gated=False),
    # Qwen, Phi, GLM.
    "qwen2": row(*LLAMA, window, qkv_bias=True, mixers=groups.after_the_first),
    "qwen3": row(*LLAMA, window, biases, qk_norm=True, mixers=groups.after_the_first),
    "qwen2_moe": row(*LLAMA, window, groups.input_biases, experts.qwen, names={"attention_bias": "qkv_bias"},
        mixers=groups.after_the_first),
    "qwen3_moe": row(*LLAMA, window, biases, experts.qwen, qk_norm=True, names={"num_experts": "num_local_experts"},
        mixers=groups.after_the_first),
    "mellum": row(*LLAMA, window, biases, experts.mellum, qk_norm=True, names={"num_experts": "num_local_experts"},
        mixers=groups.turns("full")),
    "flint": row(*LLAMA, window, groups.rope_in_windows, biases, experts.qwen, qk_norm=True, sinks=True,
        shared_gate=False, defaults={"mlp_only_layers": [0, 1]},
        mixers=lambda c: ["full" if i < 2 or i % 4 == 1 or i == c.layers[-1] else "sliding" for i in c.layers]),
    # The language models of Qwen's multimodal models.
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text"),
                    row(*LLAMA, window, qkv_bias=True, mixers=groups.after_the_first)),
    "qwen3_vl_text": row(*LLAMA, biases, qk_norm=True),
    "qwen3_vl_moe_text": row(*LLAMA, biases, experts.qwen, qk_norm=True, names={"num_experts": "num_local_experts"}),
    "phi": row(*LLAMA, options(qk_norm="qk_layernorm"), norm="layernorm", gated=False, qkv_bias=True, out_bias=True,
        mlp_bias=True, head_bias=True, block="parallel", qk_norm_kind="layernorm", qk_norm_bias=True,
        defaults={"partial_rotary_factor": 0.5}),
    "phi3": row(*LLAMA, window),
    "phimoe": row(*LLAMA, window, biases, experts.mixtral, options(head_bias="lm_head_bias"), norm="layernorm"),
    "glm": row(*LLAMA, groups.input_biases, defaults={"partial_rotary_factor": 0.5}),
    "glm4": row(*LLAMA, groups.input_biases, post_norms=True, defaults={"partial_rotary_factor": 0.5}),
    "glm4_moe": row(*LLAMA, groups.input_biases, options(qk_norm="use_qk_norm"), experts.deepseek, router="sigmoid",
        defaults={"partial_rotary_factor": 0.5}),
    "glm4_moe_lite": row(*LATENT, experts.deepseek, router="sigmoid", defaults={"first_k_dense_replace": 1}),
    "sarvam_moe": row(*LLAMA, groups.input_biases, options(qk_norm="use_qk_norm"), experts.deepseek, router="sigmoid",
        names=groups.PLAIN_EXPERTS),
    "solar_open": row(*BASE, rotary, groups.input_biases, experts.deepseek, router="sigmoid"),
    "kolibri1": row(*BASE, rotary, window, experts.qwen, qk_norm=True, post_norms=True, router="sigmoid",
        shared_gate=False, names={"num_experts": "num_local_experts"}, mixers=groups.every(5)),
    "aria_text": row(*LLAMA, biases, mlp_bias, experts.aria),
    # Gemma.
    "gemma": row(*LLAMA, biases, _prefix, embedding_scale=True),
    "gemma2": row(*LLAMA, *_GEMMA2, embedding_scale=True, post_norms=True, mixers=groups.every(2),
        idle={"sliding_window_size"}),
    "gemma3_text": row(*LLAMA, *_GEMMA2, embedding_scale=True, post_norms=True, qk_norm=True, mixers=groups.every(6)),
    "vaultgemma": row(*LLAMA, *_GEMMA2, embedding_scale=True, mixers=groups.every(2)),
    # Latent attention, experts.
    "deepseek": row(*LLAMA, biases, experts.deepseek),
    "deepseek_v2": row(*LATENT, experts.deepseek, mlp_bias, defaults={"moe_layer_freq": 1}),
    "deepseek_v3": row(*LATENT, experts.deepseek, router="sigmoid", defaults={"moe_layer_freq": 1}),
    "kimi_k2": row(*LATENT, experts.deepseek, router="sigmoid", defaults={"moe_layer_freq": 1}),
    "sarvam_mla": row(*LATENT, experts.deepseek, router="sigmoid", names=groups.PLAIN_EXPERTS, idle={"q_head_dim"}),
    "axk1": row(*LATENT, experts.deepseek, router="sigmoid", defaults={"first_k_dense_replace": 1},
        family=blocks.NORM_OF_EXPERTS),
    "minicpm3": row(groups.body, groups.activation, groups.inner, rotary, _minicpm3, mlp_bias),
    "youtu": row(*LATENT),
    "exaone_moe": row(*LLAMA, window, groups.rope_in_windows, experts.deepseek, qk_norm=True, router="sigmoid",
        names=groups.PLAIN_EXPERTS, mixers=groups.every(4)),
    "hy_v3": row(*LLAMA, biases, mlp_bias, experts.deepseek, qk_norm=True, router="sigmoid", names=groups.PLAIN_EXPERTS,
        defaults={"first_k_dense_replace": 1}),
    "dots1": row(*LLAMA, window, biases, experts.deepseek, qk_norm=True, router="sigmoid",
        mixers=groups.after_the_first),
    "gpt_oss": row(groups.body, groups.heads, groups.inner, rotary, window, biases, experts.mixtral,
        groups.ignored("swiglu_alpha", "swiglu_limit", "experts_per_token", "hidden_act"), router_bias=True,
        expert_bias=True, sinks=True, activation="clamped_swiglu", mixers=groups.every(2)),
    "minimax": row(*LLAMA, window, experts.mixtral, groups.needs(ssm_chunk="block_size"), _MINIMAX_SCALES,
        types={"linear_attention": "linear"}, mixers=groups.turns("full", "linear")),
    "minimax_m2": row(*LLAMA, experts.mixtral, groups.rotary_dim, qk_norm=True, qk_norm_over="width", router="sigmoid",
        idle={"mlp_intermediate_size", "mtp_transformer_layers", "num_mtp_modules", "use_routing_bias"}),
    # Norms of another kind or in another place, branches side by side.
    "olmo": row(*LLAMA, biases, groups.clip, norm="layernorm", norm_scale=False),
    "olmo2": row(*LLAMA, biases, pre_norms=False, post_norms=True, qk_norm=True, qk_norm_over="width"),
    "olmo3": row(*LLAMA, window, biases, pre_norms=False, post_norms=True, qk_norm=True, qk_norm_over="width",
        mixers=groups.every(4)),
    "olmoe": row(*LLAMA, biases, groups.clip, experts.olmoe, qk_norm=True, qk_norm_over="width"),
    "flex_olmo": row(*LLAMA, biases, groups.clip, experts.olmoe, pre_norms=False, post_norms=True, qk_norm=True,
        qk_norm_over="width"),
    "exaone4": row(*LLAMA, window, groups.rope_in_windows, pre_norms=False, post_norms=True, qk_norm=True,
        mixers=groups.every(4)),
    "cohere": row(*LLAMA, biases, options(qk_norm="use_qk_norm"), **_COHERE_FIXED),
    "cohere2": row(*LLAMA, biases, window, groups.rope_in_windows, **_COHERE_FIXED, mixers=groups.every(4),
        idle={"use_parallel_block", "use_parallel_embedding"}),
    "cohere2_moe": row(*BASE, rotary, biases, window, _cohere2_experts, _cohere2_moe, norm_bias=False, block="parallel",
        logit_scale=True, names=groups.PLAIN_EXPERTS, mixers=_cohere2_moe_turns),
    "afmoe": row(*LLAMA, window, groups.rope_in_windows, _afmoe, experts.afmoe, qk_norm=True, post_norms=True,
        family=blocks.QUERY_GATE, mixers=groups.one_in(4, "global_attn_every_n_layers")),
    "dbrx": row(groups.body, groups.heads, rotary, _dbrx, norm="layernorm", norm_bias=False,
        names={"hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"}),
    "nemotron": row(*LLAMA, biases, mlp_bias, norm="layernorm", gated=False, defaults={"partial_rotary_factor": 0.5}),
    "starcoder2": row(*LLAMA, window, groups.all_biases("use_bias"), norm="layernorm", gated=False),
    "stablelm": row(*LLAMA, _parallel("parallel"), options(qkv_bias="use_qkv_bias", qk_norm="qk_layernorm"),
        norm="layernorm", qk_norm_kind="layernorm", qk_norm_over="heads", defaults={"partial_rotary_factor": 0.25}),
    "persimmon": row(*LLAMA, options(qk_norm="qk_layernorm"), norm="layernorm", gated=False, qkv_bias=True,
        out_bias=True, mlp_bias=True, qk_norm_kind="layernorm", qk_norm_bias=True,
        defaults={"partial_rotary_factor": 0.5}),
    "gpt_neox": row(*LLAMA, _parallel("parallel_norms"), biases, norm="layernorm", gated=False, mlp_bias=True,
        defaults={"partial_rotary_factor": 0.25}),
    "gpt_neox_japanese": row(*BASE, rotary,
        lambda c: {"intermediate": c.needed("intermediate_multiple_size") * c.needed("hidden_size")},
        norm="layernorm", gated=False, family=blocks.LAST_BIAS),
    "falcon": row(groups.body, groups.activation, rotary, _falcon, groups.all_biases("bias"), norm="layernorm",
        gated=False, names={"hidden_act": "activation"}),
    # GPT-2 and its like: learned positions, or biases beside the scores.
    **dict.fromkeys(("gpt2", "gpt-sw3"), row(*GPT2, groups.positions, **groups.GPT_FIXED, names=groups.GPT_NAMES)),
    "gpt_bigcode": row(*GPT2, groups.positions, lambda c: {"kv_heads": 1 if c.switch("multi_query") else None},
        **groups.GPT_FIXED, names=groups.GPT_NAMES),
    "openai-gpt": row(*BASE, groups.positions, **groups.GPT_FIXED, pre_norms=False, sum_norms=True, final_norm=False,
        names={**groups.GPT_NAMES, "hidden_act": "afn"}),
    **dict.fromkeys(("gptj", "codegen"), row(*GPT2, groups.rotary_dim, norm="layernorm", gated=False, mlp_bias=True,
        head_bias=True, block="parallel", names=groups.GPT_NAMES)),
    "gpt_neo": row(
        *GPT2, groups.positions, _gpt_neo, **{**groups.GPT_FIXED, "qkv_bias": False},
        names={"num_attention_heads": "num_heads", "num_hidden_layers": "num_layers",
               "hidden_act": "activation_function"},
    ),
    "bloom": row(*BASE, **groups.GPT_FIXED, alibi=True, embed_norm=True,
        names={"hidden_size": "n_embed", "num_attention_heads": "n_head", "num_hidden_layers": "n_layer"},
        defaults={"hidden_act": "gelu_new"}, idle={"bias_dropout_fusion", "skip_bias_add", "skip_bias_add_qkv"}),
    "mpt": row(*BASE, _mpt, norm="layernorm", gated=False, norm_bias=False, rope=False, tied=True,
        names={"hidden_size": "d_model", "num_attention_heads": "n_heads", "num_hidden_layers": "n_layers"},
        defaults={"hidden_act": "gelu"}),
    # Those with layers of their own.
    **attention.ROWS, **blocks.ROWS, **openelm.ROWS, **gemma3n.ROWS, **mllama.ROWS,
}  # fmt: skip
