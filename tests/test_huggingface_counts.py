"""Parameters of each ``model_type`` against those that transformers itself counts on the meta device.

The configs are written by hand, small where the class allows, with every switch that changes the count. Each is read
three ways: as it stands, as transformers writes it out in full, and with all of its keys absent.
"""

from __future__ import annotations

import dataclasses
import os
import warnings
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import roofline as rl  # noqa: E402
from roofline.programs.huggingface import KINDS  # noqa: E402
from roofline.programs.huggingface.keys import DEFAULTS  # noqa: E402

SMALL = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 8, "vocab_size": 128,
    "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GPT = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 32, "vocab_size": 128}
LATENT = {"kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
          "num_key_value_heads": 8}  # fmt: skip
KIMI = {"num_experts_per_token": 2, "moe_intermediate_size": 48}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 48}


def small(*without: str, **more: Any) -> dict[str, Any]:
    return {key: value for key, value in {**SMALL, **more}.items() if key not in without}


DECODERS: dict[str, dict[str, Any]] = {
    "llama": small(model_type="llama"),
    "llama-biases": small(model_type="llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True,
                          head_dim=16),
    "arcee": small(model_type="arcee", mlp_bias=True),
    "internlm3": small(model_type="internlm3", qkv_bias=True, bias=True),
    "helium": small(model_type="helium", head_dim=8, attention_bias=True),
    "mistral": small(model_type="mistral", head_dim=16),
    "ministral": small(model_type="ministral", head_dim=8),
    "ministral3": small(model_type="ministral3"),
    "mixtral": small(model_type="mixtral", num_local_experts=4),
    "seed_oss": small(model_type="seed_oss", attention_bias=True, attention_out_bias=True, mlp_bias=True),
    "ernie4_5": small(model_type="ernie4_5", use_bias=True),
    "ernie4_5_moe": small(model_type="ernie4_5_moe", moe_num_experts=4, moe_k=2, moe_intermediate_size=48),
    "smollm3": small(model_type="smollm3"),
    "granite": small(model_type="granite", attention_bias=True),
    "granitemoe": small(model_type="granitemoe", num_local_experts=4),
    "granitemoeshared": small(model_type="granitemoeshared", num_local_experts=4, shared_intermediate_size=32),
    "hunyuan_v1_dense": small(model_type="hunyuan_v1_dense", attention_bias=True, head_dim=8),
    "hunyuan_v1_moe": small(model_type="hunyuan_v1_moe", num_experts=4, moe_topk=2, head_dim=8),
    "llama4_text": small(model_type="llama4_text", intermediate_size_mlp=128, interleave_moe_layer_step=2, head_dim=8,
                         num_local_experts=4),
    "exaone": small(model_type="exaone"),
    "iquestcoder": small(model_type="iquestcoder", attention_bias=True, head_dim=8),
    "cwm": small(model_type="cwm", head_dim=8),
    "hyperclovax": small(model_type="hyperclovax", mlp_bias=True),
    "jais2": small(model_type="jais2"),
    "glm4_moe_lite": small(model_type="glm4_moe_lite", kv_lora_rank=32, q_lora_rank=24, qk_nope_head_dim=16,
                           qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=4, num_key_value_heads=8, **EXPERTS),
    "sarvam_moe": small(model_type="sarvam_moe", n_routed_experts=4, head_dim=8, **EXPERTS),
    "solar_open": small("intermediate_size", model_type="solar_open", n_routed_experts=4, head_dim=8, **EXPERTS),
    "minicpm3": small(model_type="minicpm3", kv_lora_rank=32, q_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8,
                      num_key_value_heads=8),
    "youtu": small(model_type="youtu", kv_lora_rank=32, q_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8,
                   v_head_dim=16, num_key_value_heads=8),
    "exaone_moe": small(model_type="exaone_moe", num_experts=4, **EXPERTS),
    "hy_v3": small(model_type="hy_v3", num_experts=4, head_dim=8, **EXPERTS),
    "kolibri1": small("intermediate_size", model_type="kolibri1", num_experts=4, head_dim=8,
                      shared_expert_intermediate_size=40, **EXPERTS),
    "laguna": small(model_type="laguna", num_experts=4, head_dim=16, shared_expert_intermediate_size=40,
                    attention_bias=True, num_attention_heads_per_layer=[8, 4, 6],
                    layer_types=["full_attention", "sliding_attention", "full_attention"], **EXPERTS),
    "laguna-wide": small(model_type="laguna", num_experts=4, head_dim=16, gating="per-element",
                         shared_expert_intermediate_size=40, mlp_layer_types=["dense", "dense", "sparse"], **EXPERTS),
    "mimo_v2_flash": small(model_type="mimo_v2_flash", num_hidden_layers=7, head_dim=24, v_head_dim=16,
                           n_routed_experts=4, attention_bias=True, **EXPERTS),
    "mimo_v2_flash-published": small(
        model_type="mimo_v2_flash", head_dim=24, v_head_dim=16, n_routed_experts=4, n_shared_experts=None,
        sliding_window_size=128, layer_types=["full_attention", "sliding_attention", "sliding_attention"], **EXPERTS),
    "beam": small(model_type="beam", num_hidden_layers=7, num_experts=4, n_group=1, topk_group=1, head_dim=16,
                  attention_bias=True, **EXPERTS),
    "aria_text": small(model_type="aria_text", moe_num_experts=4, attention_bias=True, mlp_bias=True),
    "deepseek_v32": small(model_type="deepseek_v32", first_k_dense_replace=1, n_routed_experts=4, n_group=1,
                          topk_group=1, index_n_heads=3, index_head_dim=12, attention_bias=True, **LATENT, **EXPERTS),
    "glm_moe_dsa": small(model_type="glm_moe_dsa", num_hidden_layers=7, first_k_dense_replace=1, n_routed_experts=4,
                         index_n_heads=3, index_head_dim=12, index_topk_freq=4, index_skip_topk_offset=3, **LATENT,
                         **EXPERTS),
    "glm_moe_dsa-pattern": small(model_type="glm_moe_dsa", mlp_layer_types=["dense", "sparse", "sparse"],
                                 index_topk_pattern="FSF", n_routed_experts=4, index_head_dim=8, **LATENT, **EXPERTS),
    "minimax_m3_vl_text": small(model_type="minimax_m3_vl_text", num_local_experts=4, num_experts_per_tok=2,
                                head_dim=16, rotary_dim=8, dense_intermediate_size=80, shared_intermediate_size=40,
                                index_n_heads=2, index_head_dim=24, mlp_layer_types=["dense", "sparse", "sparse"],
                                layer_types=["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"]),
    "minimax_m3_vl_text-published": small(
        model_type="minimax_m3_vl_text", num_local_experts=4, num_experts_per_tok=2, head_dim=16, rotary_dim=8,
        dense_intermediate_size=80, shared_intermediate_size=40, moe_layer_freq=[0, 1, 1],
        sparse_attention_config={"sparse_num_index_heads": 2, "sparse_index_dim": 24, "sparse_block_size": 8,
                                 "sparse_topk_blocks": 2, "sparse_attention_freq": [0, 1, 1]}),
    "longcat_flash": small("num_hidden_layers", "intermediate_size", model_type="longcat_flash", num_layers=2,
                           ffn_hidden_size=96, expert_ffn_hidden_size=48, n_routed_experts=4, zero_expert_num=2,
                           moe_topk=2, attention_bias=True, **LATENT),
    "sarvam_mla": small(model_type="sarvam_mla", kv_lora_rank=32, qk_nope_head_dim=16, qk_rope_head_dim=8,
                        v_head_dim=16, num_experts=4, num_shared_experts=2, num_key_value_heads=8, **EXPERTS),
    "axk1": small(model_type="axk1", kv_lora_rank=32, q_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8,
                  v_head_dim=16, n_routed_experts=4, n_group=1, topk_group=1, num_key_value_heads=8,
                  attention_bias=True, **EXPERTS),
    "flex_olmo": small(model_type="flex_olmo", num_experts=4, num_experts_per_tok=2),
    "gpt-sw3": {"model_type": "gpt-sw3", **GPT},
    "qwen2": small(model_type="qwen2"),
    "qwen3": small(model_type="qwen3", attention_bias=True),
    "qwen2_moe": small(model_type="qwen2_moe", num_experts=4, shared_expert_intermediate_size=40, **EXPERTS),
    "qwen2_moe-step": small(model_type="qwen2_moe", num_experts=4, decoder_sparse_step=2, qkv_bias=False, **EXPERTS),
    "qwen3_moe": small(model_type="qwen3_moe", num_experts=4, mlp_only_layers=[1], **EXPERTS),
    "phi": small(model_type="phi", qk_layernorm=True),
    "phi-2": {"model_type": "phi", "hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 2,
              "num_attention_heads": 32, "vocab_size": 51200, "partial_rotary_factor": 0.4},
    "phi3": small(model_type="phi3"),
    "phimoe": small(model_type="phimoe", attention_bias=True, lm_head_bias=True, num_local_experts=4),
    "glm": small(model_type="glm", head_dim=8),
    "glm4": small(model_type="glm4", head_dim=8),
    "glm4_moe": small(model_type="glm4_moe", n_routed_experts=4, use_qk_norm=True, head_dim=8, attention_bias=True,
                      **EXPERTS),
    "gemma": small(model_type="gemma"),
    "gemma2": small(model_type="gemma2"),
    "gemma3_text": small(model_type="gemma3_text"),
    "vaultgemma": small(model_type="vaultgemma"),
    "deepseek_v2": small(model_type="deepseek_v2", first_k_dense_replace=1, kv_lora_rank=32, q_lora_rank=None,
                         qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=4,
                         num_key_value_heads=8, **EXPERTS),
    "deepseek_v3": small(model_type="deepseek_v3", first_k_dense_replace=1, kv_lora_rank=32, q_lora_rank=24,
                         qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=8, n_group=2,
                         topk_group=1, attention_bias=True, num_key_value_heads=8, **EXPERTS),
    "dots1": small(model_type="dots1", n_routed_experts=4, n_shared_experts=2, first_k_dense_replace=1, **EXPERTS),
    "gpt_oss": small(model_type="gpt_oss", num_local_experts=4, num_experts_per_tok=2, head_dim=16),
    "minimax": small(model_type="minimax", num_local_experts=4),
    "minimax_m2": small(model_type="minimax_m2", num_local_experts=4, num_experts_per_tok=2, head_dim=16),
    "olmo": small(model_type="olmo"),
    "olmo2": small(model_type="olmo2"),
    "olmo3": small(model_type="olmo3"),
    "olmoe": small(model_type="olmoe", num_experts=4, num_experts_per_tok=2),
    "exaone4": small(model_type="exaone4"),
    "cohere": small(model_type="cohere", use_qk_norm=True),
    "cohere2": small(model_type="cohere2"),
    "nemotron": small(model_type="nemotron", head_dim=8, attention_bias=True, mlp_bias=True),
    "starcoder2": small(model_type="starcoder2"),
    "starcoder2-no-bias": small(model_type="starcoder2", use_bias=False),
    "stablelm": small(model_type="stablelm", qk_layernorm=True, use_qkv_bias=True),
    "stablelm-parallel": small(model_type="stablelm", use_parallel_residual=True),
    "persimmon": {**small(model_type="persimmon"), "num_key_value_heads": None},
    "gpt_neox": {"model_type": "gpt_neox", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
                 "intermediate_size": 96, "vocab_size": 128},
    "gpt_neox-serial": {"model_type": "gpt_neox", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
                        "intermediate_size": 96, "vocab_size": 128, "use_parallel_residual": False,
                        "attention_bias": False},
    "falcon-7b": {"model_type": "falcon", "hidden_size": 568, "num_hidden_layers": 2, "num_attention_heads": 71,
                  "vocab_size": 128},
    "falcon-40b": {"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
                   "num_kv_heads": 2, "vocab_size": 128, "new_decoder_architecture": True},
    "falcon-rw": {"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
                  "vocab_size": 128, "alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    "falcon-11b": {"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
                   "num_kv_heads": 2, "vocab_size": 128, "new_decoder_architecture": True,
                   "num_ln_in_parallel_attn": 1, "ffn_hidden_size": 200},
    "gpt2": {"model_type": "gpt2", **GPT},
    "gpt2-small": {"model_type": "gpt2"},
    "gpt_bigcode": {"model_type": "gpt_bigcode", **GPT, "n_inner": 100},
    "gpt_bigcode-heads": {"model_type": "gpt_bigcode", **GPT, "multi_query": False},
    "openai-gpt": {"model_type": "openai-gpt", **GPT},
    "gptj": {"model_type": "gptj", **GPT, "rotary_dim": 8},
    "codegen": {"model_type": "codegen", **GPT, "rotary_dim": 8},
    "gpt_neo": {"model_type": "gpt_neo", "hidden_size": 64, "num_layers": 4, "num_heads": 4, "vocab_size": 128,
                "attention_types": [[["global", "local"], 2]], "max_position_embeddings": 32},
    "opt": {"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 96,
            "vocab_size": 128, "word_embed_proj_dim": 64},
    "opt-350m": {"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                 "ffn_dim": 96, "vocab_size": 128, "word_embed_proj_dim": 32, "do_layer_norm_before": False},
    "opt-galactica": {"model_type": "opt", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
                      "ffn_dim": 96, "vocab_size": 128, "enable_bias": False, "layer_norm_elementwise_affine": False},
    "biogpt": {"model_type": "biogpt", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
               "intermediate_size": 96, "vocab_size": 128},
    "xglm": {"model_type": "xglm", "d_model": 64, "num_layers": 2, "attention_heads": 4, "ffn_dim": 96,
             "vocab_size": 128},
    "ctrl": {"model_type": "ctrl", "n_embd": 64, "n_layer": 2, "n_head": 4, "dff": 96, "vocab_size": 128},
    "bloom": {"model_type": "bloom", "hidden_size": 64, "n_layer": 2, "n_head": 8, "vocab_size": 128},
    "mpt": {"model_type": "mpt", "d_model": 64, "n_heads": 8, "n_layers": 2, "vocab_size": 128},
    # Real sizes.
    "Llama-2-7B": {"model_type": "llama"},
    "Mistral-7B": {"model_type": "mistral"},
    "Qwen1.5-MoE": {"model_type": "qwen2_moe"},
    "Gemma-2-2B": {"model_type": "gemma2"},
    "GPT-NeoX-20B": {"model_type": "gpt_neox"},
    "GPT-J-6B": {"model_type": "gptj"},
    "Falcon-7B": {"model_type": "falcon"},
    "Command-R": {"model_type": "cohere"},
    "GLM-4-9B": {"model_type": "glm"},
    "gpt-oss-120b": {"model_type": "gpt_oss"},
    "DeepSeek-V3": {"model_type": "deepseek_v3"},
    # Rows of one class each.
    "apertus": small(model_type="apertus", attention_bias=True),
    "apertus-silu": small(model_type="apertus", hidden_act="silu"),
    "diffllama": small(model_type="diffllama", head_dim=16, attention_bias=True),
    "doge": small(model_type="doge", attention_bias=True, mlp_bias=True),
    "bitnet": small(model_type="bitnet", attention_bias=True),
    "nanochat": small(model_type="nanochat", attention_bias=True),
    "granite_swa": small(model_type="granite_swa", attention_bias=True, mlp_bias=True, num_hidden_layers=5),
    "granite_swa-bases": small(model_type="granite_swa", layer_rope_theta=[0, 1e4, 1e6]),
    "granitemoe_swa": small(model_type="granitemoe_swa", num_local_experts=4),
    "granitemoe_swa-shared": small(model_type="granitemoe_swa", num_local_experts=4, shared_intermediate_size=32,
                                   attention_bias=True),
    "mellum": small(model_type="mellum", num_experts=4, head_dim=16, attention_bias=True, **EXPERTS),
    "mellum-dense": small(model_type="mellum", num_experts=4, mlp_layer_types=["dense", "sparse", "dense"],
                          layer_types=["sliding_attention", "full_attention", "sliding_attention"], **EXPERTS),
    "flint": small(model_type="flint", num_experts=4, head_dim=16, shared_expert_intermediate_size=40, **EXPERTS),
    "flint-step": small(model_type="flint", num_experts=4, num_hidden_layers=5, mlp_only_layers=[2],
                        decoder_sparse_step=2, attention_bias=True, **EXPERTS),
    "lara_mini": small("intermediate_size", model_type="lara_mini", num_hidden_layers=5, num_experts=4, head_dim=16,
                       linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
                       linear_value_head_dim=16, attention_bias=True, shared_expert_intermediate_size=40, **EXPERTS),
    "cohere2_moe": small(model_type="cohere2_moe", num_experts=4, num_experts_per_tok=2, head_dim=16,
                         attention_bias=True, tie_word_embeddings=False, rms_norm_eps=1e-5),
    "cohere2_moe-dense": small(model_type="cohere2_moe", num_experts=4, num_experts_per_tok=2, num_shared_experts=2,
                               first_k_dense_replace=1, prefix_dense_intermediate_size=80,
                               expert_selection_fn="sigmoid"),
    "afmoe": small(model_type="afmoe", num_experts=4, head_dim=16, num_hidden_layers=4, mup_enabled=True, **EXPERTS),
    "afmoe-dense": small(model_type="afmoe", num_experts=4, num_dense_layers=2, num_shared_experts=1, **EXPERTS),
    "dbrx": {"model_type": "dbrx", "d_model": 64, "n_heads": 8, "n_layers": 2, "vocab_size": 128,
             "attn_config": {"kv_n_heads": 2, "clip_qkv": 8, "rope_theta": 5e5},
             "ffn_config": {"ffn_hidden_size": 96, "moe_num_experts": 8, "moe_top_k": 4}},
    "jetmoe": small("num_attention_heads", model_type="jetmoe", num_local_experts=4, num_experts_per_tok=2,
                    kv_channels=16),
    "gpt_neox_japanese": {"model_type": "gpt_neox_japanese", "hidden_size": 64, "num_hidden_layers": 3,
                          "num_attention_heads": 8, "vocab_size": 128, "intermediate_multiple_size": 3},
    "modernbert-decoder": small("num_key_value_heads", model_type="modernbert-decoder", num_hidden_layers=4),
    "modernbert-decoder-biases": small("num_key_value_heads", model_type="modernbert-decoder", attention_bias=True,
                                       mlp_bias=True, norm_bias=True, classifier_bias=True, decoder_bias=False,
                                       tie_word_embeddings=False),
}  # fmt: skip

HYBRIDS: dict[str, dict[str, Any]] = {
    "mamba": {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128},
    "mamba-biases": {"model_type": "mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128,
                     "use_bias": True, "use_conv_bias": False, "time_step_rank": 8, "tie_word_embeddings": False},
    "mamba-130m": {"model_type": "mamba"},
    "falcon_mamba": {"model_type": "falcon_mamba", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128},
    "mamba2": {"model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 128, "num_heads": 16,
               "head_dim": 8, "state_size": 16, "n_groups": 2},
    "mamba2-7b": {"model_type": "mamba2"},
    "jamba": small(model_type="jamba", num_hidden_layers=4, attn_layer_period=4, attn_layer_offset=2, num_experts=4),
    "jamba-dense": small(model_type="jamba", num_experts=1, attn_layer_period=3, attn_layer_offset=2),
    "bamba": small(model_type="bamba", attn_layer_indices=[1], mamba_n_heads=16, mamba_d_state=16),
    "granitemoehybrid": small(model_type="granitemoehybrid", layer_types=["mamba", "mamba", "attention"],
                              mamba_n_heads=16, mamba_d_state=16, num_local_experts=4, shared_intermediate_size=40),
    "granitemoehybrid-dense": small(model_type="granitemoehybrid", layer_types=["mamba", "mamba", "attention"],
                                    mamba_n_heads=16, mamba_d_state=16, num_local_experts=0,
                                    shared_intermediate_size=40),
    "falcon_h1": small(model_type="falcon_h1", mamba_d_ssm=128, mamba_n_heads=16, mamba_d_state=16),
    "nemotron_h": {**small(model_type="nemotron_h", hybrid_override_pattern="M-M*M-M*", mamba_num_heads=4,
                           mamba_head_dim=32, n_groups=2, ssm_state_size=16, head_dim=8), "num_hidden_layers": 8},
    "nemotron_h-moe": {**small(model_type="nemotron_h", hybrid_override_pattern="MEM*", mamba_num_heads=4,
                               mamba_head_dim=32, n_groups=2, ssm_state_size=16, head_dim=8, n_routed_experts=4,
                               moe_shared_expert_intermediate_size=40, **EXPERTS), "num_hidden_layers": 4},
    "recurrent_gemma": small(model_type="recurrent_gemma"),
    "recurrent_gemma-2b": {"model_type": "recurrent_gemma"},
    "lfm2": small(model_type="lfm2", full_attn_idxs=[1]),
    "lfm2_moe": small(model_type="lfm2_moe", layer_types=["conv", "conv", "full_attention"], num_experts=4,
                      num_dense_layers=1, **EXPERTS),
    "qwen3_5_text": small(model_type="qwen3_5_text", num_hidden_layers=4, linear_num_key_heads=2,
                          linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=16, head_dim=16),
    "qwen3_5_moe_text": small("intermediate_size", model_type="qwen3_5_moe_text", num_hidden_layers=4, head_dim=16,
                              num_experts=4,
                              linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
                              linear_value_head_dim=16, shared_expert_intermediate_size=40, **EXPERTS),
    "qwen3_next": small(model_type="qwen3_next", num_hidden_layers=4, num_experts=4, linear_num_key_heads=2,
                        linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=16, head_dim=16,
                        shared_expert_intermediate_size=40, **EXPERTS),
    "olmo_hybrid": small(model_type="olmo_hybrid", num_hidden_layers=4, pad_token_id=0),
    "olmo_hybrid-sizes": small(model_type="olmo_hybrid", pad_token_id=0, linear_num_key_heads=2, attention_bias=True,
                               linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=24,
                               layer_types=["linear_attention", "full_attention", "linear_attention"]),
    "lfm3": small(model_type="lfm3", num_hidden_layers=5, head_dim=8, pad_token_id=0),
    "lfm3-biases": small(model_type="lfm3", layer_types=["conv", "sliding_attention", "full_attention"], head_dim=8,
                         pad_token_id=0, conv_bias=True, attention_bias=True, use_sandwich_norm=False,
                         use_attention_gate=False),
    "kimi_linear": small(model_type="kimi_linear", num_hidden_layers=5, linear_num_heads=2, linear_head_dim=8,
                         num_experts=4, pad_token_id=0, **LATENT, **KIMI),
    "kimi_linear-published": small(model_type="kimi_linear", num_experts=4, pad_token_id=0, first_k_dense_replace=2,
                                   linear_attn_config={"num_heads": 2, "head_dim": 8, "short_conv_kernel_size": 3,
                                                       "full_attn_layers": [2], "kda_layers": [1, 3]}, **LATENT,
                                   **KIMI),
    "bailing_hybrid": small(model_type="bailing_hybrid", layer_group_size=2, head_dim=8, num_experts=4,
                            pad_token_id=0, **LATENT, **KIMI),
    "gemma4_text": small(model_type="gemma4_text", head_dim=8, num_hidden_layers=12, num_kv_shared_layers=4,
                         use_double_wide_mlp=True, hidden_size_per_layer_input=16, vocab_size_per_layer_input=100,
                         global_head_dim=16),
    "gemma4_text-keys": small(model_type="gemma4_text", head_dim=8, hidden_size_per_layer_input=0, global_head_dim=16,
                              num_global_key_value_heads=1, attention_k_eq_v=True),
    "gemma4_text-real": {"model_type": "gemma4_text"},
    "gemma3n_text": small(model_type="gemma3n_text", head_dim=8, num_hidden_layers=12, num_kv_shared_layers=5,
                          hidden_size_per_layer_input=8, vocab_size_per_layer_input=100, laurel_rank=4,
                          altup_num_inputs=3, intermediate_size=[96] * 6 + [64] * 6),
    # google/gemma-3n-E2B-it; E4B is as the class has it
    "gemma3n_text-e2b": {"model_type": "gemma3n_text", "num_hidden_layers": 30, "num_kv_shared_layers": 10,
                         "intermediate_size": 8192},
    "gemma3n_text-real": {"model_type": "gemma3n_text"},
    "xlstm": {"model_type": "xlstm", "hidden_size": 128, "num_hidden_layers": 2, "num_heads": 2, "vocab_size": 128},
    "xlstm-7b": {"model_type": "xlstm"},
}  # fmt: skip


BERT = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4,
        "vocab_size": 128, "max_position_embeddings": 32}  # fmt: skip
DISTIL = {"model_type": "distilbert", "dim": 64, "n_layers": 3, "n_heads": 4, "hidden_dim": 96, "vocab_size": 128,
          "max_position_embeddings": 32}  # fmt: skip
MASKED, LABELS = "AutoModelForMaskedLM", "AutoModelForSequenceClassification"

ENCODERS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("AutoModel", {"model_type": "bert", **BERT}),
    "bert-base": ("AutoModel", {"model_type": "bert"}),
    "bert-masked": (MASKED, {"model_type": "bert", **BERT}),
    "bert-labels": (LABELS, {"model_type": "bert", **BERT, "num_labels": 5}),
    "bert-tokens": ("AutoModelForTokenClassification", {"model_type": "bert", **BERT, "num_labels": 9}),
    "bert-answers": ("AutoModelForQuestionAnswering", {"model_type": "bert", **BERT}),
    "roberta": ("AutoModel", {"model_type": "roberta", **BERT, "type_vocab_size": 1}),
    "roberta-masked": (MASKED, {"model_type": "roberta", **BERT}),
    "roberta-labels": (LABELS, {"model_type": "roberta", **BERT, "num_labels": 3}),
    "data2vec-text": (LABELS, {"model_type": "data2vec-text", **BERT}),
    "roberta-prelayernorm": (MASKED, {"model_type": "roberta-prelayernorm", **BERT}),
    "xlm-roberta-xl": (MASKED, {"model_type": "xlm-roberta-xl", **BERT}),
    "megatron-bert": (LABELS, {"model_type": "megatron-bert", **BERT}),
    "camembert": ("AutoModel", {"model_type": "camembert", **BERT}),
    "xlm-roberta": (MASKED, {"model_type": "xlm-roberta", **BERT}),
    "distilbert": ("AutoModel", DISTIL),
    "distilbert-masked": (MASKED, DISTIL),
    "distilbert-labels": (LABELS, {**DISTIL, "num_labels": 2}),
    "electra": ("AutoModel", {"model_type": "electra", **BERT, "embedding_size": 32}),
    "electra-masked": (MASKED, {"model_type": "electra", **BERT, "embedding_size": 32}),
    "albert": ("AutoModel", {"model_type": "albert", **BERT, "embedding_size": 32}),
    "albert-groups": ("AutoModel", {"model_type": "albert", **BERT, "embedding_size": 32, "num_hidden_groups": 3}),
    "albert-masked": (MASKED, {"model_type": "albert", **BERT, "embedding_size": 32}),
    "albert-xxlarge": ("AutoModel", {"model_type": "albert"}),
    "mpnet": ("AutoModel", {"model_type": "mpnet", **BERT}),
    "mpnet-masked": (MASKED, {"model_type": "mpnet", **BERT}),
    "modernbert": ("AutoModel", {"model_type": "modernbert", **BERT, "pad_token_id": 0}),
    "modernbert-masked": (MASKED, {"model_type": "modernbert", **BERT, "pad_token_id": 0}),
    "clip_text_model": ("CLIPTextModel", {"model_type": "clip_text_model", **BERT}),
    "clip_text_projected": ("CLIPTextModelWithProjection", {"model_type": "clip_text_model", **BERT,
                                                            "projection_dim": 48}),
    "siglip_text_model": ("SiglipTextModel", {"model_type": "siglip_text_model", **BERT}),
}  # fmt: skip

T5 = {"d_model": 64, "d_kv": 16, "d_ff": 96, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4,
      "vocab_size": 128}  # fmt: skip
BART = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
        "decoder_attention_heads": 8, "encoder_ffn_dim": 96, "decoder_ffn_dim": 112, "vocab_size": 128,
        "max_position_embeddings": 32, "pad_token_id": 0, "decoder_start_token_id": 1, "eos_token_id": 2}  # fmt: skip
SEQ2SEQ = "AutoModelForSeq2SeqLM"

SEQ2SEQS: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": (SEQ2SEQ, {"model_type": "t5", **T5}),
    "t5-small": (SEQ2SEQ, {"model_type": "t5"}),
    "t5-v1.1": (SEQ2SEQ, {"model_type": "t5", **T5, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}),
    "t5-bare": ("T5Model", {"model_type": "t5", **T5}),
    "mt5": (SEQ2SEQ, {"model_type": "mt5", **T5}),
    "umt5": (SEQ2SEQ, {"model_type": "umt5", **T5}),
    "bart": (SEQ2SEQ, {"model_type": "bart", **BART}),
    "bart-large": (SEQ2SEQ, {"model_type": "bart"}),
    "mbart": (SEQ2SEQ, {"model_type": "mbart", **BART}),
    "pegasus": (SEQ2SEQ, {"model_type": "pegasus", **BART}),
    "blenderbot": (SEQ2SEQ, {"model_type": "blenderbot", **BART}),
    "marian": (SEQ2SEQ, {"model_type": "marian", **BART}),
    "marian-apart": (SEQ2SEQ, {"model_type": "marian", **BART, "share_encoder_decoder_embeddings": False,
                               "decoder_vocab_size": 100, "tie_word_embeddings": False}),
    "m2m_100": (SEQ2SEQ, {"model_type": "m2m_100", **BART}),
    "whisper": ("AutoModelForSpeechSeq2Seq", {"model_type": "whisper", **BART, "num_mel_bins": 40,
                                              "max_source_positions": 30, "max_target_positions": 20}),
    "whisper-tiny": ("AutoModelForSpeechSeq2Seq", {"model_type": "whisper"}),
}  # fmt: skip

VIT = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96,
       "image_size": 32, "patch_size": 8}  # fmt: skip
DINO = {key: value for key, value in VIT.items() if key != "intermediate_size"}
IMAGES = "AutoModelForImageClassification"

VISION: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet": ("AutoModelForImageClassification", {"model_type": "resnet"}),
    "resnet-basic": ("AutoModelForImageClassification",
                     {"model_type": "resnet", "depths": [2, 2, 2, 2], "hidden_sizes": [64, 128, 256, 512],
                      "layer_type": "basic", "num_labels": 1000}),
    "convnext": ("AutoModelForImageClassification", {"model_type": "convnext", "image_size": 32}),
    "vit": ("AutoModel", {"model_type": "vit", **VIT}),
    "vit-base": (IMAGES, {"model_type": "vit", "num_labels": 1000}),
    "vit-no-bias": (IMAGES, {"model_type": "vit", **VIT, "qkv_bias": False, "num_labels": 7}),
    "deit": ("AutoModel", {"model_type": "deit", **VIT}),
    "deit-labels": ("DeiTForImageClassification", {"model_type": "deit", **VIT, "num_labels": 7}),
    "dinov2": ("AutoModel", {"model_type": "dinov2", **DINO}),
    "dinov2-giant": ("AutoModel", {"model_type": "dinov2", **DINO, "use_swiglu_ffn": True}),
    "dinov2-labels": (IMAGES, {"model_type": "dinov2", **DINO, "num_labels": 7}),
    "dinov2_with_registers": ("AutoModel", {"model_type": "dinov2_with_registers", **DINO}),
    "beit": ("AutoModel", {"model_type": "beit", **VIT}),
    "beit-labels": (IMAGES, {"model_type": "beit", **VIT, "num_labels": 7, "use_absolute_position_embeddings": True,
                             "use_mask_token": True}),
    "clip_vision_model": ("CLIPVisionModel", {"model_type": "clip_vision_model", **VIT}),
    "clip_vision_projected": ("CLIPVisionModelWithProjection", {"model_type": "clip_vision_model", **VIT}),
    "siglip_vision_model": ("SiglipVisionModel", {"model_type": "siglip_vision_model", **VIT}),
    "siglip_vision_bare": ("SiglipVisionModel", {"model_type": "siglip_vision_model", **VIT,
                                                 "vision_use_head": False}),
    "pixtral": ("AutoModel", {"model_type": "pixtral", **VIT}),
}  # fmt: skip

TEXT = {"hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 128, "pad_token_id": 0}  # fmt: skip
QWEN_ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 2, 2]}}
QWEN_TOWER = {"depth": 2, "num_heads": 4, "patch_size": 8}
QWEN3_5_TOWER = {**QWEN_TOWER, "hidden_size": 64, "intermediate_size": 96, "out_hidden_size": 48,
                 "num_position_embeddings": 16}  # fmt: skip
DELTA = {"head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
         "linear_value_head_dim": 16}  # fmt: skip


def towers(model_type: str, text_type: str | None, vision_type: str | None, **more: Any) -> dict[str, Any]:
    own = {"model_type": text_type} if text_type else {}
    seen = {"model_type": vision_type} if vision_type else {}
    given = {"text_config": {**own, **TEXT, **more.pop("text", {})}}
    return {"model_type": model_type, **given, "vision_config": {**seen, **more.pop("vision", VIT)}, **more}


COMPOSITES: dict[str, dict[str, Any]] = {
    "llava": towers("llava", "llama", "clip_vision_model"),
    "llava-no-bias": towers("llava", "mistral", "siglip_vision_model", multimodal_projector_bias=False),
    "llava_next": towers("llava_next", "mistral", "clip_vision_model"),
    "llava_onevision": towers("llava_onevision", "qwen2", "siglip_vision_model"),
    "paligemma": towers("paligemma", "gemma", "siglip_vision_model", projection_dim=48),
    "gemma3": towers("gemma3", "gemma3_text", "siglip_vision_model", mm_tokens_per_image=4),
    "gemma3-bare": towers("gemma3", "gemma3_text", "siglip_vision_model", mm_tokens_per_image=4,
                          vision={**VIT, "vision_use_head": False}),
    "mistral3": towers("mistral3", "mistral", "pixtral", text={"head_dim": 12}),
    "idefics3": towers("idefics3", "llama", None),
    "smolvlm": towers("smolvlm", "llama", None),
    "internvl": towers("internvl", "qwen2", None, vision={**VIT, "image_size": [32, 32], "patch_size": [8, 8]}),
    "llama4": towers("llama4", "llama4_text", None,
                     text={"intermediate_size_mlp": 80, "interleave_moe_layer_step": 2, "head_dim": 12,
                           "num_local_experts": 4},
                     vision={**VIT, "intermediate_size": 256, "projector_input_dim": 40, "projector_output_dim": 40,
                             "vision_output_dim": 40}),
    "qwen2_vl": towers("qwen2_vl", None, None, text=QWEN_ROPE,
                       vision={**QWEN_TOWER, "embed_dim": 64, "hidden_size": 48}),
    "qwen2_5_vl": towers("qwen2_5_vl", None, None, text=QWEN_ROPE,
                         vision={**QWEN_TOWER, "hidden_size": 64, "intermediate_size": 96, "out_hidden_size": 48}),
    "qwen3_vl": towers("qwen3_vl", None, None, text={**QWEN_ROPE, "head_dim": 12},
                       vision={**QWEN_TOWER, "hidden_size": 64, "intermediate_size": 96, "out_hidden_size": 48,
                               "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16}),
    "qwen3_vl_moe": towers("qwen3_vl_moe", None, None,
                           text={**QWEN_ROPE, "head_dim": 12, "num_experts": 4, "num_experts_per_tok": 2,
                                 "moe_intermediate_size": 32, "decoder_sparse_step": 1},
                           vision={**QWEN_TOWER, "hidden_size": 64, "intermediate_size": 96, "out_hidden_size": 48,
                                   "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16}),
    "qwen3_5": towers("qwen3_5", None, None, text={**DELTA, "num_hidden_layers": 4}, vision=QWEN3_5_TOWER),
    "qwen3_5_moe": towers("qwen3_5_moe", None, None,
                          text={**DELTA, "intermediate_size": None, "num_hidden_layers": 4, "num_experts": 4,
                                "num_experts_per_tok": 2,
                                "moe_intermediate_size": 32, "shared_expert_intermediate_size": 40},
                          vision=QWEN3_5_TOWER),
    "mllama": {
        "model_type": "mllama",
        "text_config": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 8,
                        "num_key_value_heads": 2, "vocab_size": 128, "cross_attention_layers": [1, 3],
                        "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        "vision_config": {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_global_layers": 2,
                          "attention_heads": 4, "image_size": 32, "patch_size": 8, "vision_output_dim": 96,
                          "intermediate_layers_indices": [1, 2]},
    },
    "clip": {"model_type": "clip", "text_config": BERT, "vision_config": VIT, "projection_dim": 40},
    "clip-base": {"model_type": "clip"},
    "siglip": {"model_type": "siglip", "text_config": BERT, "vision_config": VIT},
}  # fmt: skip


def build(config: dict[str, Any], auto: str) -> Any:
    """The model of transformers on the meta device."""
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")
        table = {key: value for key, value in config.items() if key != "model_type"}
        name = config["model_type"]
        found = transformers.models.auto.configuration_auto.CONFIG_MAPPING[name](**table)
        chosen = getattr(transformers, auto)
        return chosen.from_config(found) if auto.startswith("Auto") else chosen(found)


def counted(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def agree(config: dict[str, Any], auto: str) -> None:
    model = build(config, auto)
    wanted = counted(model)
    assert rl.from_config({**config, "architectures": [type(model).__name__]}).parameters == wanted
    assert rl.from_config({**model.config.to_dict(), "architectures": [type(model).__name__]}).parameters == wanted


@pytest.mark.parametrize("name", [*DECODERS, *HYBRIDS])
def test_decoders(name: str) -> None:
    agree({**DECODERS, **HYBRIDS}[name], "AutoModelForCausalLM")


@pytest.mark.parametrize("name", ENCODERS)
def test_encoders(name: str) -> None:
    auto, config = ENCODERS[name]
    agree(config, auto)


@pytest.mark.parametrize("name", SEQ2SEQS)
def test_encoder_decoders(name: str) -> None:
    auto, config = SEQ2SEQS[name]
    agree(config, auto)


@pytest.mark.parametrize("name", SEQ2SEQS)
def test_a_decode_step_keeps_all_weights_of_an_encoder_decoder(name: str) -> None:
    auto, config = SEQ2SEQS[name]
    head = {"architectures": ["T5Model"]} if auto == "T5Model" else {}
    assert (
        rl.from_config({**config, **head}, phase="decode").parameters == rl.from_config({**config, **head}).parameters
    )


@pytest.mark.parametrize("name", VISION)
def test_vision(name: str) -> None:
    auto, config = VISION[name]
    agree(config, auto)


@pytest.mark.parametrize("name", COMPOSITES)
def test_models_of_several_towers(name: str) -> None:
    config = COMPOSITES[name]
    model = build(config, "AutoModel" if config["model_type"] in ("clip", "siglip") else "AutoModelForImageTextToText")
    wanted, head = counted(model), {"architectures": [type(model).__name__]}
    assert rl.from_config({**config, **head}, tower="all").parameters == wanted
    assert rl.from_config({**model.config.to_dict(), **head}, tower="all").parameters == wanted
    if config["model_type"] not in ("clip", "siglip"):
        parts = (rl.from_config({**config, **head}, tower=tower).parameters for tower in ("text", "vision"))
        assert sum(parts) == wanted


@pytest.mark.parametrize("model_type", KINDS)
def test_defaults_are_those_of_the_installed_classes(model_type: str) -> None:
    """Written by scripts/huggingface_defaults.py; to be written again where transformers has changed its mind."""
    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    if model_type not in mapping:
        pytest.skip("unknown to the installed transformers")
    known = {field.name: field.default for field in dataclasses.fields(mapping[model_type])}
    for key, value in DEFAULTS[model_type].items():
        assert value == (list(known[key]) if isinstance(known[key], tuple) else known[key]), key
