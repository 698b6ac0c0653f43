"""Published configs of types whose code is remote, against published counts, FLOPs and caches by hand."""

from __future__ import annotations

from typing import Any

import pytest
from mutators import json_mutated, mutants, refused
from profiles import examples

import roofline as rl

#: https://huggingface.co/moonshotai/Kimi-K2-Instruct/blob/main/config.json
KIMI_K2 = {
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "aux_loss_alpha": 0.001, "ep_size": 1,
    "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 7168, "intermediate_size": 18432,
    "kv_lora_rank": 512, "max_position_embeddings": 131072, "model_type": "kimi_k2", "moe_intermediate_size": 2048,
    "moe_layer_freq": 1, "n_group": 1, "n_routed_experts": 384, "n_shared_experts": 1, "norm_topk_prob": True,
    "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0, "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06, "rope_theta": 50000.0, "routed_scaling_factor": 2.827,
    "rope_scaling": {"factor": 32.0, "original_max_position_embeddings": 4096, "type": "yarn"}, "seq_aux": True,
    "scoring_func": "sigmoid", "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16", "v_head_dim": 128, "vocab_size": 163840,
}  # fmt: skip
#: https://huggingface.co/internlm/internlm2_5-7b-chat/blob/main/config.json
INTERNLM2 = {
    "architectures": ["InternLM2ForCausalLM"], "attn_implementation": "eager", "bias": False, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "internlm2",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rope_scaling": {"factor": 2.0, "type": "dynamic"}, "rope_theta": 1000000, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "vocab_size": 92544,
}  # fmt: skip
#: https://huggingface.co/THUDM/chatglm2-6b/blob/main/config.json
CHATGLM2 = {
    "model_type": "chatglm", "architectures": ["ChatGLMModel"], "add_bias_linear": False, "add_qkv_bias": True,
    "apply_query_key_layer_scaling": True, "apply_residual_connection_post_layernorm": False,
    "attention_dropout": 0.0, "attention_softmax_in_fp32": True, "bias_dropout_fusion": True,
    "ffn_hidden_size": 13696, "fp32_residual_connection": False, "hidden_dropout": 0.0, "hidden_size": 4096,
    "kv_channels": 128, "layernorm_epsilon": 1e-05, "multi_query_attention": True, "multi_query_group_num": 2,
    "num_attention_heads": 32, "num_layers": 28, "original_rope": True, "padded_vocab_size": 65024,
    "post_layer_norm": True, "rmsnorm": True, "seq_length": 32768, "torch_dtype": "float16",
    "tie_word_embeddings": False,
}  # fmt: skip
#: https://huggingface.co/apple/OpenELM-270M/blob/main/config.json
OPENELM = {
    "activation_fn_name": "swish", "architectures": ["OpenELMForCausalLM"], "ffn_dim_divisor": 256,
    "ffn_multipliers": [0.5, 0.73, 0.97, 1.2, 1.43, 1.67, 1.9, 2.13, 2.37, 2.6, 2.83, 3.07, 3.3, 3.53, 3.77, 4.0],
    "ffn_with_glu": True, "head_dim": 64, "max_context_length": 2048, "model_dim": 1280, "model_type": "openelm",
    "normalization_layer_name": "rms_norm", "normalize_qk_projections": True, "num_gqa_groups": 4,
    "num_kv_heads": [3] * 5 + [4] * 7 + [5] * 4, "num_query_heads": [12] * 5 + [16] * 7 + [20] * 4,
    "num_transformer_layers": 16, "qkv_multipliers": [0.5, 1.0], "rope_freq_constant": 10000,
    "rope_max_length": 4096, "share_input_output_layers": True, "torch_dtype": "float32", "vocab_size": 32000,
}  # fmt: skip
#: https://huggingface.co/apple/OpenELM-3B/blob/main/config.json
OPENELM_3B = {
    **OPENELM, "ffn_multipliers": [round(0.5 + 0.1 * layer, 1) for layer in range(36)], "head_dim": 128,
    "model_dim": 3072, "num_kv_heads": [3] * 4 + [4] * 14 + [5] * 12 + [6] * 6, "num_transformer_layers": 36,
    "num_query_heads": [12] * 4 + [16] * 14 + [20] * 12 + [24] * 6,
}  # fmt: skip


#: https://huggingface.co/Qwen/Qwen-7B/blob/main/config.json
QWEN = {
    "architectures": ["QWenLMHeadModel"], "attn_dropout_prob": 0.0, "bf16": False, "emb_dropout_prob": 0.0,
    "fp16": False, "fp32": False, "hidden_size": 4096, "intermediate_size": 22016, "kv_channels": 128,
    "layer_norm_epsilon": 1e-06, "max_position_embeddings": 32768, "model_type": "qwen", "no_bias": True,
    "num_attention_heads": 32, "num_hidden_layers": 32, "onnx_safe": None, "rotary_emb_base": 10000,
    "rotary_pct": 1.0, "scale_attn_weights": True, "seq_length": 8192, "tie_word_embeddings": False,
    "use_dynamic_ntk": True, "use_flash_attn": "auto", "use_logn_attn": True, "vocab_size": 151936,
}  # fmt: skip
#: https://huggingface.co/baichuan-inc/Baichuan2-7B-Base/blob/main/config.json
BAICHUAN2 = {
    "architectures": ["BaichuanForCausalLM"], "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 11008,
    "max_position_embeddings": 4096, "model_max_length": 4096, "model_type": "baichuan", "num_attention_heads": 32,
    "num_hidden_layers": 32, "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 125696,
    "z_loss_weight": 0,
}  # fmt: skip
#: https://huggingface.co/openbmb/MiniCPM-2B-sft-bf16/blob/main/config.json
MINICPM = {
    "architectures": ["MiniCPMForCausalLM"], "hidden_act": "silu", "hidden_size": 2304, "intermediate_size": 5760,
    "max_position_embeddings": 4096, "num_attention_heads": 36, "num_hidden_layers": 40,
    "num_key_value_heads": 36, "rms_norm_eps": 1e-05, "rope_scaling": None, "torch_dtype": "bfloat16",
    "vocab_size": 122753, "scale_emb": 12, "dim_model_base": 256, "scale_depth": 1.4,
}  # fmt: skip
#: https://huggingface.co/deepseek-ai/deepseek-moe-16b-base/blob/main/config.json
DEEPSEEK_MOE = {
    "architectures": ["DeepseekForCausalLM"], "attention_bias": False, "aux_loss_alpha": 0.001,
    "first_k_dense_replace": 1, "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10944,
    "max_position_embeddings": 4096, "model_type": "deepseek", "moe_intermediate_size": 1408, "moe_layer_freq": 1,
    "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": False, "num_attention_heads": 16,
    "num_experts_per_tok": 6, "num_hidden_layers": 28, "num_key_value_heads": 16, "pretraining_tp": 1,
    "scoring_func": "softmax", "seq_aux": True, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "vocab_size": 102400,
}  # fmt: skip


def kimi_k2() -> int:
    """Add up 61 layers of latent attention, one dense block, 60 of 384 experts beside one shared."""
    attention = 7168 * 1536 + 1536 + 1536 * 64 * 192 + 7168 * 576 + 512 + 512 * 64 * 256 + 64 * 128 * 7168
    expert = 3 * 7168 * 2048
    return 61 * (attention + 2 * 7168) + 3 * 7168 * 18432 + 60 * (385 * expert + 384 * 7168) + 7168 + 2 * 163840 * 7168


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        # "1 trillion total parameters, 32 billion activated" (model card); the published file has the routers' 60 x 384
        # biases of the scores beside, which transformers keeps as buffers: 1,026,408,232,448.
        pytest.param(KIMI_K2, 1_026_408_232_448 - 60 * 384, id="kimi_k2"),
        # "7.7B": 92544 x 4096 x 2 + 32 x (4096 x 6144 + 4096 x 4096 + 3 x 4096 x 14336 + 8192) + 4096
        pytest.param(INTERNLM2, 7_737_708_544, id="internlm2"),
        # "6.2B": 65024 x 4096 x 2 + 28 x (4096 x 4608 + 4608 + 4096^2 + 3 x 4096 x 13696 + 8192) + 4096
        pytest.param(CHATGLM2, 6_243_584_000, id="chatglm"),
        # 151936 x 4096 x 2 + 32 x (4096 x 12288 + 12288 + 4096^2 + 3 x 4096 x 11008 + 8192) + 4096
        pytest.param(QWEN, 7_721_324_544, id="qwen"),
        # as Llama-2-7B with 125,696 rows: 32 x 202,383,360 + 2 x 125696 x 4096 + 4096
        pytest.param(BAICHUAN2, 7_505_973_248, id="baichuan"),
        # 122753 x 2304 + 40 x (4 x 2304^2 + 3 x 2304 x 5760 + 4608) + 2304
        pytest.param(MINICPM, 2_724_880_896, id="minicpm"),
        # "16.4B": 2 x 102400 x 2048 + 2048, 28 x (4 x 2048^2 + 4096), one dense block of 10944, 27 x (66 experts of
        # 1408, two of them shared, and a router)
        pytest.param(
            DEEPSEEK_MOE,
            2 * 102400 * 2048
            + 2048
            + 28 * (4 * 2048**2 + 4096)
            + 3 * 2048 * 10944
            + 27 * (66 * 3 * 2048 * 1408 + 64 * 2048),
            id="deepseek",
        ),
        # 8 experts: 122753 x 2304 + 40 x (4 x 2304^2 + 8 x (3 x 2304 x 5760 + 2304) + 4608) + 2304
        # in bf16 the 27.7 GB of https://huggingface.co/openbmb/MiniCPM-MoE-8x2B
        pytest.param({**MINICPM, "num_experts": 8, "num_experts_per_tok": 2}, 13_873_291_776, id="minicpm-moe"),
        # "270M": 271,527,168 in the published file
        pytest.param(OPENELM, 271_527_168, id="openelm"),
        # Other sizes of the same families.
        pytest.param(OPENELM_3B, 3_036_647_424, id="openelm-3b"),
        # 151552 x 4096 x 2 + 40 x (4096 x 4608 + 4608 + 4096^2 + 3 x 4096 x 13696 + 8192) + 4096
        pytest.param(
            {**CHATGLM2, "num_layers": 40, "padded_vocab_size": 151552, "ffn_hidden_size": 13696},
            9_399_951_360,
            id="glm-4-9b",
        ),
        # 152064 x 8192 x 2 + 80 x (8192 x 24576 + 24576 + 8192^2 + 3 x 8192 x 24576 + 16384) + 8192
        pytest.param(
            {
                **QWEN,
                "hidden_size": 8192,
                "num_hidden_layers": 80,
                "num_attention_heads": 64,
                "vocab_size": 152064,
                "intermediate_size": 49152,
            },
            72_287_920_128,
            id="qwen-72b",
        ),
    ],
)
def test_published_parameters(config: dict[str, Any], parameters: int) -> None:
    assert rl.from_config(config).parameters == parameters
    assert rl.from_config(config, phase="decode").parameters == parameters


def test_a_config_without_a_type_is_of_its_class() -> None:
    assert "model_type" not in MINICPM
    untied = {**MINICPM, "tie_word_embeddings": False}
    assert rl.from_config(untied).parameters - rl.from_config(MINICPM).parameters == 122753 * 2304
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4}
    small |= {"intermediate_size": 128, "vocab_size": 99}
    for name, other in (("Qwen2ForCausalLM", "qwen2"), ("LlamaForCausalLM", "llama")):
        assert (
            rl.from_config({**small, "architectures": [name]}).parameters
            == rl.from_config({**small, "model_type": other}).parameters
        )
    for named in (["OwnForCausalLM"], ["Llama"], [], [3], {"a": 1}, None):
        with pytest.raises(rl.errors.ModelDataError, match="model_type: missing"):
            rl.from_config({**small, "architectures": named})


def test_kimi_k2_by_hand() -> None:
    graph = rl.from_config(KIMI_K2)
    assert graph.parameters == kimi_k2()
    assert graph.info.active_parameters == kimi_k2() - 60 * (384 - 8) * 3 * 7168 * 2048


@pytest.mark.parametrize(
    ("config", "per_token"),
    [
        (KIMI_K2, 61 * 576 * 2),  # one latent and one rotated key for all heads
        (INTERNLM2, 2 * 32 * 8 * 128 * 2),
        (CHATGLM2, 2 * 28 * 2 * 128 * 2),
        (OPENELM, 2 * (5 * 3 + 7 * 4 + 4 * 5) * 64 * 4),
    ],
)
def test_bytes_of_a_token_in_the_cache(config: dict[str, Any], per_token: int) -> None:
    graph = rl.from_config(config, phase="decode")
    assert rl.estimate(graph, "h100-sxm", B=2, C=100).memory.kv_cache == 200 * per_token


@pytest.mark.parametrize(
    ("config", "matrices", "attention"),
    [
        # two for each weight that a token meets (no token table, no norms, no biases), and per position attended
        # two for the score and two for the value of each column of each query head
        (INTERNLM2, 7_737_708_544 - 92544 * 4096 - 65 * 4096, 4 * 32 * 32 * 128),
        (CHATGLM2, 6_243_584_000 - 65024 * 4096 - 57 * 4096 - 28 * 4608, 4 * 28 * 32 * 128),
        (OPENELM, 271_527_168 - 16 * (2 * 1280 + 2 * 64) - 1280, 4 * (5 * 12 + 7 * 16 + 4 * 20) * 64),
    ],
)
def test_flops_of_a_decode_step(config: dict[str, Any], matrices: int, attention: int) -> None:
    graph = rl.from_config(config, phase="decode")
    assert rl.count(graph, B=1, C=1000).flops == 2 * matrices + 1000 * attention


def test_a_language_model_inside_has_the_head_of_its_own_class() -> None:
    """https://huggingface.co/OpenGVLab/InternVL2-8B/blob/main/config.json: InternVLChatModel around InternLM2."""
    outer = {"model_type": "internvl_chat", "architectures": ["InternVLChatModel"], "llm_config": INTERNLM2,
             "vision_config": {"hidden_size": 1024}}  # fmt: skip
    assert rl.from_config(outer).parameters == 7_737_708_544


def test_deepseek_moe_is_the_published_size() -> None:
    """16,375,728,128 parameters in the published file, of which 2.8 billion are active."""
    graph = rl.from_config(DEEPSEEK_MOE)
    assert graph.parameters == 16_375_728_128
    assert graph.info.active_parameters == 16_375_728_128 - 27 * 58 * 3 * 2048 * 1408


def test_the_larger_baichuan_has_biases_by_distance_instead_of_rotation() -> None:
    """https://huggingface.co/baichuan-inc/Baichuan2-13B-Base/blob/main/config.json has model_max_length alone."""
    large = {key: value for key, value in BAICHUAN2.items() if key != "max_position_embeddings"}
    tensors = [set(rl.from_config(config).tensors) for config in (BAICHUAN2, large)]
    assert [("cos" in names, "alibi" in names) for names in tensors] == [(True, False), (False, True)]


def test_half_of_a_head_of_chatglm_is_rotated() -> None:
    assert rl.from_config(CHATGLM2).tensors["cos"].shape[1] == 64


def test_inner_sizes_of_openelm_are_multiples_of_the_divisor() -> None:
    """0.5 x 1280 = 640 rounds to 768, 0.97 x 1280 = 1241.6 to 1280, 4 x 1280 is one."""
    graph = rl.from_config(OPENELM)
    sizes = [graph.tensors[f"layers.{layer}.mlp.down.weight"].shape[1] for layer in (0, 2, 15)]
    assert sizes == [768, 1280, 5120]


@pytest.mark.parametrize(
    ("config", "key"),
    [
        ({**CHATGLM2, "position_encoding_2d": True}, "position_encoding_2d"),
        ({**OPENELM, "num_kv_heads": [3, 4]}, "num_kv_heads"),
        ({**OPENELM, "num_query_heads": None}, "num_query_heads"),
        ({**OPENELM, "ffn_multipliers": [1.0] * 15}, "ffn_multipliers"),
        ({**OPENELM, "ffn_multipliers": ["x"] * 16}, "ffn_multipliers"),
        ({**OPENELM, "ffn_with_glu": False}, "ffn_with_glu"),
        ({**KIMI_K2, "kv_lora_rank": None}, "kv_lora_rank"),
        ({**QWEN, "no_bias": False}, "no_bias"),
        ({**QWEN, "intermediate_size": 11}, "intermediate_size"),
        ({key: value for key, value in INTERNLM2.items() if key != "hidden_size"}, "hidden_size"),
    ],
)
def test_what_is_missing_or_wrong_is_named(config: dict[str, Any], key: str) -> None:
    with pytest.raises(rl.errors.ModelDataError, match=f"{key}: "):
        rl.from_config(config)


#: https://huggingface.co/meta-llama/Llama-3.2-11B-Vision/blob/main/config.json; the rest is as the class has it.
LLAMA_VISION: dict[str, Any] = {
    "model_type": "mllama", "architectures": ["MllamaForConditionalGeneration"], "torch_dtype": "bfloat16",
    "text_config": {"model_type": "mllama_text_model", "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38]},
    "vision_config": {"model_type": "mllama_vision_model", "image_size": 560, "patch_size": 14, "max_num_tiles": 4},
}  # fmt: skip


def test_llama_vision() -> None:
    """10,670,220,835 parameters in the published file ("10.6B"); an image is 4 x (40 x 40 + 1) positions.

    Of 40 layers 32 keep 2 x 8 heads x 128 columns for each token, and 8 for each position of the image.
    """
    assert rl.from_config(LLAMA_VISION, tower="all").parameters == 10_670_220_835
    graph = rl.from_config(LLAMA_VISION, phase="decode")
    assert rl.estimate(graph, "h100-sxm", B=2, C=100).memory.kv_cache == 2 * 4096 * (32 * 100 + 8 * 6404)
    assert any("8 layers attend to one image of 6404 positions" in note for note in graph.info.notes)


def test_llama_vision_on_text_alone() -> None:
    """The eight layers are skipped: what runs is the Llama-3.1-8B that it is made from, with all weights in memory."""
    text = rl.from_config(LLAMA_VISION, phase="decode", image_positions=0)
    llama = rl.model("llama-3.1-8b", phase="decode")
    assert rl.count(text, B=4, C=100).flops == rl.count(llama, B=4, C=100).flops
    assert text.parameters == rl.from_config(LLAMA_VISION, phase="decode").parameters


#: https://huggingface.co/openai/gpt-oss-20b/blob/main/config.json.
GPT_OSS: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "attention_bias": True, "experts_per_token": 4, "head_dim": 64,
    "hidden_size": 2880, "initial_context_length": 4096, "intermediate_size": 2880, "model_type": "gpt_oss",
    "num_attention_heads": 64, "num_experts_per_tok": 4, "num_key_value_heads": 8, "sliding_window": 128,
    "swiglu_limit": 7.0, "vocab_size": 201088, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": [
        "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("layers", "experts", "parameters", "gibibytes"),
    [(24, 32, 20_914_757_184, 12.8), (36, 128, 116_829_156_672, 60.8)],
)
def test_bytes_of_gpt_oss(layers: int, experts: int, parameters: int, gibibytes: float) -> None:
    """arXiv 2508.10925, Table 1: 20.9 and 116.8 billion parameters, checkpoints of 12.8 and 60.8 GiB.

    The smaller file names 13,761,264,768 bytes: experts in 4 bits with 8 bits of scale for 32, the rest in 16.
    """
    graph = rl.from_config({**GPT_OSS, "num_hidden_layers": layers, "num_local_experts": experts}, phase="decode")
    held = rl.estimate(graph, "h100-sxm", B=1, C=1).memory.weights
    assert graph.parameters == parameters
    assert held / 2**30 == pytest.approx(gibibytes, abs=0.05)
    matrices = layers * experts * (2 * 2880 * 2880 + 2880 * 2880)
    assert held == matrices * (4 + 8 / 32) / 8 + 2 * (parameters - matrices)


@pytest.mark.parametrize("config", [KIMI_K2, CHATGLM2, OPENELM, QWEN, LLAMA_VISION], ids=lambda c: c["model_type"])
def test_damaged_configs_are_built_or_refused_in_one_line(config: dict[str, Any]) -> None:
    small = {**config, **{key: 2 for key in ("num_hidden_layers", "num_layers") if key in config}}
    for made in mutants(json_mutated, small, examples(15)):
        refused(lambda made=made: rl.from_config(made, phase="decode"))


@pytest.mark.parametrize(
    ("part", "change", "key"),
    [
        ("vision_config", {"vision_output_dim": 7681}, "vision_output_dim"),
        ("vision_config", {"intermediate_layers_indices": [3, 7, 15, 23, 40]}, "intermediate_layers_indices"),
        ("vision_config", {"supported_aspect_ratios": 5}, "supported_aspect_ratios"),
        ("vision_config", {"image_size": [560, 280]}, "image_size"),
        ("text_config", {"cross_attention_layers": "3"}, "cross_attention_layers"),
    ],
)
def test_what_is_wrong_with_an_image_is_named(part: str, change: dict[str, Any], key: str) -> None:
    with pytest.raises(rl.errors.ModelDataError, match=f"{key}: "):
        rl.from_config({**LLAMA_VISION, part: {**LLAMA_VISION[part], **change}}, tower="all")
