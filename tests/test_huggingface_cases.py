"""Configs that other tools read wrongly: spellings, nested towers, patterns, quantised checkpoints, hostile input."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutators import json_mutated, mutants, refused
from profiles import LONG, examples

import roofline as rl
from roofline.counting.memory import memory
from roofline.programs.huggingface import COMPOSITES, KINDS
from roofline.programs.huggingface.keys import DEFAULTS, Keys, Kind
from roofline.programs.huggingface.modules import modules, patterns
from roofline.programs.modelfile import ModelFile, build_model

TOY = {"model_type": "llama", "hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 4,
       "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000}  # fmt: skip
ATTENTION, MLP = 64 * 64 * 2 + 2 * 64 * 16, 3 * 64 * 192
LAYERS, REST = 4 * (ATTENTION + MLP), 4 * 2 * 64 + 64 + 2 * 1000 * 64


def kv_bytes(config: dict[str, Any], context: int, batch: int = 1, **options: Any) -> float:
    graph = rl.from_config(config, phase="decode", **options)
    return float(rl.estimate(graph, "h100-sxm", B=batch, C=context).memory.kv_cache)


def weight_bytes(config: dict[str, Any], **options: Any) -> float:
    return float(memory(rl.from_config(config, **options), {"B": 1, "S": 8}).weights)


# Spellings.


def test_names_of_gpt2() -> None:
    """mlxcel#927: n_embd and friends, n_inner null, tied by default."""
    toy = {"model_type": "gpt2", "n_embd": 96, "n_head": 6, "n_layer": 3, "n_positions": 256, "n_ctx": 256,
           "n_inner": None, "vocab_size": 500}  # fmt: skip
    assert rl.from_config(toy).parameters == 408_288
    assert kv_bytes(toy, 100, dtype="fp16") == 100 * 1152
    # The cache alone: GPT-2 has 1,024 positions, so that no step reads so many.
    published = rl.from_config({"model_type": "gpt2", "torch_dtype": "float16"}, phase="decode")
    assert rl.serving.kv_cache(published, 8192).ideal == 301_989_888


def test_the_other_spelling_of_a_key_is_understood_too() -> None:
    toy = {"model_type": "gpt2", "hidden_size": 96, "num_attention_heads": 6, "num_hidden_layers": 3,
           "max_position_embeddings": 256, "vocab_size": 500}  # fmt: skip
    assert rl.from_config(toy).parameters == 408_288


@pytest.mark.parametrize("absent", [{}, {"num_key_value_heads": None, "head_dim": None}])
def test_key_value_heads_that_are_absent_or_null(absent: dict[str, Any]) -> None:
    """AMD-SHARK-ModelDev#388: as many as there are heads; Phi has null."""
    config = {key: value for key, value in TOY.items() if key != "num_key_value_heads"} | absent
    assert rl.from_config(config).parameters == 341_568
    assert kv_bytes(config, 1) == kv_bytes({**config, "model_type": "phi"}, 1) == 1024


def test_key_value_heads_of_each_layer() -> None:
    graph = rl.from_config({**TOY, "num_key_value_heads": [1, 2, 4, 8]})
    assert graph.parameters == 4 * (64 * 64 * 2 + MLP) + 2 * 64 * 8 * (1 + 2 + 4 + 8) + REST
    assert kv_bytes({**TOY, "num_key_value_heads": [1, 2, 4, 8]}, 1) == (1 + 2 + 4 + 8) * 2 * 8 * 2
    with pytest.raises(rl.errors.ModelDataError, match="num_key_value_heads: expected 4 numbers from 1, one per layer"):
        rl.from_config({**TOY, "num_key_value_heads": [1, 2]})


def test_heads_that_are_wider_than_their_share() -> None:
    """DeepSpeed#8389."""
    config = {**TOY, "model_type": "qwen3", "head_dim": 16}
    assert kv_bytes(config, 1) == 512
    norms_of_heads = 4 * 2 * 16
    assert rl.from_config(config).parameters == 357_952 + norms_of_heads


def test_experts_in_three_spellings() -> None:
    """trl#7069, with Qwen's rule for the step: layer i when i + 1 is a multiple of it."""
    few = {**TOY, "num_experts_per_tok": 2}
    mixtral = rl.from_config({**few, "model_type": "mixtral", "num_local_experts": 8, "tie_word_embeddings": False})
    assert (mixtral.parameters, mixtral.info.active_parameters) == (1_351_232, 466_496)
    qwen = rl.from_config({**few, "model_type": "qwen2_moe", "num_experts": 8, "moe_intermediate_size": 48,
                        "shared_expert_intermediate_size": 96, "decoder_sparse_step": 2,
                        "mlp_only_layers": []})  # fmt: skip
    assert (qwen.parameters, qwen.info.active_parameters) == (429_120, 318_528)
    assert [f"layers.{i}.moe.router.weight" in qwen.tensors for i in range(4)] == [False, True, False, True]
    config = {**few, "model_type": "deepseek_v2", "num_key_value_heads": 8, "n_routed_experts": 8,
              "n_shared_experts": 1, "moe_intermediate_size": 48, "first_k_dense_replace": 1, "moe_layer_freq": 1,
              "kv_lora_rank": 32, "q_lora_rank": None, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8,
              "v_head_dim": 16}  # fmt: skip
    deepseek = rl.from_config(config)
    assert (deepseek.parameters, deepseek.info.active_parameters) == (540_864, 374_976)
    assert kv_bytes(config, 1) == 320
    sparse = rl.from_config({**config, "moe_layer_freq": 2})
    assert [f"layers.{i}.moe.router.weight" in sparse.tensors for i in range(4)] == [False, False, True, False]


@pytest.mark.parametrize(
    ("model_type", "key", "value"),
    [("longcat_flash", "num_hidden_layers", 56), ("laguna", "gating", "odd"), ("glm_moe_dsa", "indexer_types", ["F"]),
     ("laguna", "num_attention_heads_per_layer", [48] * 3), ("minimax_m3_vl_text", "moe_layer_freq", [2]),
     ("mimo_v2_flash", "mlp_layer_types", ["odd"] * 48)],
)  # fmt: skip
def test_values_of_recent_mixtures_that_make_no_sense(model_type: str, key: str, value: Any) -> None:
    with pytest.raises(rl.errors.ModelDataError, match=key):
        rl.from_config({"model_type": model_type, key: value})


def test_keys_of_an_indexer_are_cached_and_attention_is_whole() -> None:
    latent = {"kv_lora_rank": 32, "q_lora_rank": 24, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16}
    config = {**TOY, **latent, "model_type": "deepseek_v32", "n_routed_experts": 4, "num_experts_per_tok": 2,
              "index_n_heads": 2, "index_head_dim": 12, "moe_intermediate_size": 48}  # fmt: skip
    assert kv_bytes(config, 100) == 100 * 4 * 2 * (32 + 8 + 12)
    assert any("index_topk" in note for note in rl.from_config(config).info.notes)


# Rotation.


@pytest.mark.parametrize(
    ("extra", "columns"),
    [
        ({}, 8),
        ({"model_type": "phi"}, 4),
        ({"model_type": "phi", "partial_rotary_factor": 0.25}, 2),
        ({"model_type": "phi", "rope_parameters": {"partial_rotary_factor": 0.75, "rope_type": "default"}}, 6),
        ({"model_type": "gpt_neox", "num_key_value_heads": 8, "rotary_pct": 0.5}, 4),
        ({"model_type": "stablelm"}, 2),
        ({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 4.0}}, 8),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "rope_theta": 5e5}}, 8),
        ({"model_type": "gemma3_text", "head_dim": 8, "rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, 8),
    ],
)
def test_columns_that_are_rotated(extra: dict[str, Any], columns: int) -> None:
    config = {key: value for key, value in {**TOY, **extra}.items() if "neox" not in extra.get("model_type", "") or
              key != "num_key_value_heads"}  # fmt: skip
    assert rl.from_config(config).tensors["cos"].shape[-1] == columns


def test_layers_that_do_not_rotate() -> None:
    graph = rl.from_config({**TOY, "model_type": "smollm3", "no_rope_layers": [1, 0, 1, 1]})
    turned = {name.split(".")[1] for name in graph.tensors if "rope_q" in name}
    assert turned == {"0", "2", "3"}


# Towers.


def test_a_nested_language_model_wins_over_the_top() -> None:
    """lm-polygraph#435: the top level holds the sizes of the vision tower; dtype and tie flag live inside."""
    config = {"model_type": "toy_vl", "architectures": ["ToyVLForConditionalGeneration"], "num_hidden_layers": 9,
              "hidden_size": 48, "vision_config": {"num_hidden_layers": 9, "hidden_size": 48},
              "text_config": {**TOY, "dtype": "bfloat16", "tie_word_embeddings": True}}  # fmt: skip
    graph = rl.from_config(config)
    assert (graph.parameters, graph.info.dtype) == (252_992, "bf16")
    assert weight_bytes(config) == 505_984
    assert graph.info.notes == ("vision_config is not modelled",)
    for tower in ("vision", "all"):
        with pytest.raises(rl.errors.ModelDataError, match="tower: that of model_type 'toy_vl' is not modelled"):
            rl.from_config(config, tower=tower)


LLAVA: dict[str, Any] = {
    "model_type": "llava", "dtype": "bfloat16", "text_config": TOY,
    "vision_config": {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 64,
                      "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 28, "patch_size": 7},
}  # fmt: skip


def test_towers_apart_and_together() -> None:
    text, vision, both = (rl.from_config(LLAVA, tower=tower) for tower in ("text", "vision", "all"))
    assert text.parameters + vision.parameters == both.parameters
    assert (text.item, vision.item, both.item) == ("token", "image", "token")
    flops = [rl.count(graph, B=2, S=16).flops for graph in (text, vision, both)]
    assert flops[0] + flops[1] == flops[2]
    projector = [str(node.name) for node in vision.nodes if "projector.linear" in node.name]
    assert projector == ["projector.linear_1", "projector.linear_2"]
    assert vision.tensors["projector.linear_2"].shape[-2:] == (16, 64)  # 4 x 4 patches, without the class token


def test_a_decode_step_holds_the_vision_tower_but_does_not_run_it() -> None:
    text, both = (rl.from_config(LLAVA, tower=tower, phase="decode") for tower in ("text", "all"))
    assert len(text.nodes) == len(both.nodes)
    assert both.parameters > text.parameters


def test_a_text_tower_is_the_default_and_the_vision_tower_is_named() -> None:
    graph = rl.from_config(LLAVA)
    assert graph.info.notes == ('vision_config is left out; rl.from_config(..., tower="all") builds both',)
    with pytest.raises(rl.errors.UsageError, match="tower: 'visoin'; allowed: text, vision, all; did you mean vision"):
        rl.from_config(LLAVA, tower="visoin")


def test_old_configs_of_qwen_have_the_language_model_at_the_top() -> None:
    config = {**TOY, "model_type": "qwen2_vl", "vision_config": {"depth": 1, "embed_dim": 32, "num_heads": 2,
              "hidden_size": 64, "in_chans": 3, "spatial_patch_size": 14}, "image_token_id": 5,
              "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]}}  # fmt: skip
    assert rl.from_config(config).parameters == 341_568 - 2 * 4 * 64 * 48 + 4 * 96
    assert rl.from_config(config, tower="all").parameters > rl.from_config(config).parameters
    assert "vision_config" not in rl.from_config(config, tower="all").info.ignored


def test_a_nested_config_that_is_no_table() -> None:
    with pytest.raises(rl.errors.ModelDataError, match="text_config: expected a table of keys, given '5'"):
        rl.from_config({**LLAVA, "text_config": 5})


# Windows and patterns.


def test_windows_and_full_layers_in_turn() -> None:
    """hf-mem#70, with the words of gpt-oss."""
    types = ["sliding_attention", "full_attention"] * 2
    config = {**TOY, "model_type": "gpt_oss", "num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 16,
              "sliding_window": 16, "layer_types": types}  # fmt: skip
    assert kv_bytes(config, 256) == 69_632
    assert kv_bytes(config, 256, kv_policy="full") == 131_072
    with pytest.raises(rl.errors.ModelDataError, match="layer_types: expected 4 entries"):
        rl.from_config({**config, "layer_types": types[:3]})


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ({"model_type": "gemma2", "sliding_window": 8}, "sfsf"),
        ({"model_type": "gemma3_text", "sliding_window": 8, "sliding_window_pattern": 3}, "ssfs"),
        ({"model_type": "cohere2", "sliding_window": 8}, "sssf"),
        ({"model_type": "exaone4", "sliding_window": 8, "sliding_window_pattern": "LLLG"}, "sssf"),
        ({"model_type": "exaone4", "sliding_window": None}, "ffff"),
        ({"model_type": "qwen2", "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 3}, "fffs"),
        ({"model_type": "phi3", "sliding_window": 8}, "ssss"),
        ({"model_type": "gpt_neo", "attention_types": [[["global", "local"], 2]], "window_size": 8,
          "max_position_embeddings": 32}, "fsfs"),
    ],
)  # fmt: skip
def test_which_layers_have_a_window(config: dict[str, Any], kinds: str) -> None:
    graph = rl.from_config({**TOY, **config}, phase="decode").bind(B=1, C=32)
    held = [graph.tensors[f"layers.{layer}.attn.k_cache"].shape[2] for layer in range(4)]
    assert held == [8 if kind == "s" else 32 for kind in kinds]


def test_a_bare_infinity_in_an_unused_key(tmp_path: Path) -> None:
    """dynamo#3043: legal where no size is wanted, refused by name where one is; never in what we print."""
    hybrid = '{"model_type": "nemotron_h", "hidden_size": 64, "hybrid_override_pattern": "M-*", "time_step_limit": '
    (tmp_path / "config.json").write_text(hybrid + '[0.0, Infinity], "num_hidden_layers": 3}')
    assert rl.load_program(tmp_path / "config.json").parameters > 0
    (tmp_path / "config.json").write_text(hybrid + '[0.0, 1.0], "intermediate_size": Infinity}')
    with pytest.raises(rl.errors.ModelDataError, match="intermediate_size: expected a whole number"):
        rl.from_config(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"hybrid_override_pattern": "MX*"}, "hybrid_override_pattern: 'MX*' is not understood; allowed letters"),
        ({"num_hidden_layers": 5}, "num_hidden_layers: 5, and the pattern has 3 layers"),
        ({"layers_block_type": ["mamba", "attn"]}, "layers_block_type: 'attn' is not understood"),
        ({"moe_latent_size": 8, "hybrid_override_pattern": "ME*"}, "moe_latent_size"),
    ],
)
def test_patterns_that_are_not_understood(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(rl.errors.ModelDataError) as caught:
        rl.from_config({"model_type": "nemotron_h", "hybrid_override_pattern": "M-*", **changes})
    assert words in str(caught.value)


# Quantised checkpoints (ome#638 and others). Four layers of 188,416 weights; tables, norms and head in 16 bits.


def rows(bits: int) -> float:
    """Bytes of a scale or zero of some bits for each row of a matrix, by the lengths of the rows."""
    per_layer = [(64, 64 + 2 * 16), (64, 64), (64, 2 * 192), (192, 64)]
    return 4 * sum(outputs for _, outputs in per_layer) * bits / 8


def compressed(**weights: Any) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}  # fmt: skip


#: GPTQ's ``g_idx``: four bytes per column of each of q, k, v, o, gate, up (64 columns) and down (192), in 4 layers.
INDEX = 4 * 4 * (6 * 64 + 192)
SCHEMES = [
    ({"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False}, LAYERS * (1 / 2 + 20 / 8 / 32) + INDEX),
    ({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True}, LAYERS * (1 / 2 + 20 / 8 / 128) + INDEX),
    ({"quant_method": "gptq", "bits": 8, "group_size": -1}, LAYERS + rows(16 + 8) + INDEX),
    ({"quant_method": "gptq", "bits": 3, "group_size": 64}, LAYERS * (3 / 8 + 19 / 8 / 64) + INDEX),
    ({"quant_method": "gptq", "bits": 2, "group_size": 64}, LAYERS * (2 / 8 + 18 / 8 / 64) + INDEX),
    (compressed(num_bits=4, type="int", group_size=32, symmetric=True, actorder="group"),
     LAYERS * (1 / 2 + 2 / 32) + INDEX),
    (compressed(num_bits=4, type="int", group_size=32, symmetric=True, actorder="weight"), LAYERS * (1 / 2 + 2 / 32)),
    ({"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True}, LAYERS * (1 / 2 + 20 / 8 / 64)),
    ({"quant_method": "awq", "w_bit": 4, "q_group_size": 64}, LAYERS * (1 / 2 + 20 / 8 / 64)),
    ({"quant_method": "bitsandbytes", "load_in_8bit": True}, LAYERS + rows(32)),
    ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}, LAYERS * (1 / 2 + 4 / 64)),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "fp4"}, LAYERS * (1 / 2 + 4 / 64)),
    ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4",
      "bnb_4bit_use_double_quant": True}, LAYERS * (1 / 2 + 1 / 64 + 4 / 64 / 256)),
    (compressed(num_bits=4, type="int", group_size=32, symmetric=True), LAYERS * (1 / 2 + 2 / 32)),
    (compressed(num_bits=4, type="int", group_size=32, symmetric=False), LAYERS * (1 / 2 + 20 / 8 / 32)),
    (compressed(num_bits=8, type="int", strategy="channel", symmetric=True), LAYERS + rows(16)),
    (compressed(num_bits=8, type="float", strategy="channel", symmetric=True), LAYERS + rows(16)),
    (compressed(num_bits=8, type="float", strategy="tensor", symmetric=True), LAYERS),
    (compressed(num_bits=8, type="float", strategy="block", block_structure=[128, 128]),
     LAYERS * (1 + 4 / 128 / 128)),
    (compressed(num_bits=4, type="float", strategy="tensor_group", group_size=16), LAYERS * (1 / 2 + 1 / 16)),
    ({"quant_method": "fp8", "weight_block_size": [128, 128]}, LAYERS * (1 + 4 / 128 / 128)),
    ({"quant_method": "fp8", "weight_block_size": [64, 64]}, LAYERS * (1 + 4 / 64 / 64)),
    ({"quant_method": "fp8", "activation_scheme": "static"}, LAYERS),
    ({"quant_method": "fbgemm_fp8"}, LAYERS + rows(32)),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, LAYERS * (1 / 2 + 1 / 16)),
]  # fmt: skip


@pytest.mark.parametrize(("scheme", "layers"), SCHEMES, ids=[json.dumps(scheme)[:70] for scheme, _ in SCHEMES])
def test_bytes_of_a_quantised_checkpoint(scheme: dict[str, Any], layers: float) -> None:
    assert weight_bytes({**TOY, "dtype": "bfloat16", "quantization_config": scheme}) == pytest.approx(layers + 2 * REST)


def test_gptq_of_llama_2_by_hand() -> None:
    """Matrices of 32 layers: 6,476,005,376 elements in 4 bits, groups of 128 with a 16-bit scale and a 4-bit zero.

    ``g_idx``: (6 x 4096 + 11008) columns x 4 bytes x 32 layers = 4,554,752 bytes; tables and norms in 16 bits.
    """
    config = {**PUBLISHED_LLAMA_2, "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}
    graph = rl.from_config(config, phase="decode")
    bytes_ = rl.estimate(graph, "h100-sxm", B=1, C=1).memory.weights
    assert bytes_ == 6_476_005_376 * (4 + 20 / 128) / 8 + 4_554_752 + 2 * (2 * 32000 * 4096 + 65 * 4096)
    assert graph.parameters == 6_738_415_616  # an index is no parameter


PUBLISHED_LLAMA_2 = {
    "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "vocab_size": 32000, "torch_dtype": "float16",
}  # fmt: skip


@pytest.mark.parametrize(
    ("more", "cache"),
    [
        ({"kv_cache_scheme": None}, 2),
        ({"kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"}}, 1),
        ({"kv_cache_quant_algo": "FP8"}, 1),
    ],
)
def test_a_checkpoint_with_scales_of_the_cache(more: dict[str, Any], cache: int) -> None:
    """2 x 4 layers x 2 key-value heads x 8 columns x 16 positions."""
    scheme = {"quant_method": "modelopt", "quant_algo": "FP8", **more}
    graph = rl.from_config({**TOY, "dtype": "bfloat16", "quantization_config": scheme}, phase="decode")
    held = float(rl.estimate(graph, "h100-sxm", B=1, C=16).memory.kv_cache)
    assert held == pytest.approx(2 * 4 * 2 * 8 * 16 * cache, rel=0.3 if cache == 1 else 0)  # scales come on top


@pytest.mark.parametrize("key", ["dynamic", "extra_config", "transform_config", "sparsity_config"])
def test_schemes_that_differ_by_module_are_refused_by_name(key: str) -> None:
    scheme = {"quant_method": "awq", "bits": 4, "group_size": 64, key: {"layers.0": {"bits": 8}}}
    with pytest.raises(rl.errors.ModelDataError, match=key):
        rl.from_config({**TOY, "quantization_config": scheme})


def test_keys_of_a_scheme_that_are_not_known_are_noted() -> None:
    scheme = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "star_sign": "lion"}
    notes = rl.from_config({**TOY, "quantization_config": scheme}).info.notes
    assert [note for note in notes if "star_sign" in note]
    assert not [note for note in notes if "zero_point" in note]


def test_the_figures_of_the_report() -> None:
    """ome#638: 94,208 bytes of weights, 11,776 of scales and 257,152 that stay in 16 bits."""
    scheme = compressed(num_bits=4, type="int", group_size=32, symmetric=True)
    assert weight_bytes({**TOY, "dtype": "bfloat16", "quantization_config": scheme}) == 363_136


def test_experts_alone_in_mxfp4() -> None:
    kept = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    config = {**TOY, "model_type": "gpt_oss", "num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8,
              "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": kept}}  # fmt: skip
    found = Counter(tensor.dtype for tensor in rl.from_config(config).tensors.values() if tensor.kind == "weight")
    assert found["mxfp4"] == 4 * 2
    assert set(found) == {"mxfp4", "bf16"}


IGNORED = [
    (["lm_head", "model.embed_tokens"], []),
    (["re:.*self_attn.*"], ["attn.qkv", "attn.out"]),
    (["self_attn"], ["attn.qkv", "attn.out"]),
    (["model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.k_proj", "model.layers.0.self_attn.v_proj"],
     ["0.attn.qkv"]),
    (["re:.*(q|k|v)_proj$"], ["attn.qkv"]),
    (["re:model\\.layers\\.3\\..*"], ["3.attn.qkv", "3.attn.out", "3.mlp.gate_up", "3.mlp.down"]),
    (["down_proj"], ["mlp.down"]),
    (["re:.*mlp.gate$", "re:visual.*", "re:.*lm_head"], []),
    (["model.layers.61.self_attn"], []),
]  # fmt: skip


@pytest.mark.parametrize(("ignore", "kept"), IGNORED)
def test_modules_that_are_left_out(ignore: list[str], kept: list[str]) -> None:
    scheme = {**compressed(num_bits=4, type="int", group_size=32, symmetric=True), "ignore": ignore}
    graph = rl.from_config({**TOY, "dtype": "bfloat16", "quantization_config": scheme})
    for name, tensor in graph.tensors.items():
        if tensor.kind == "weight" and name.startswith("layers.") and len(tensor.shape) == 2:
            stays = any(name.removesuffix(".weight").endswith(f".{end}") for end in kept)
            assert (tensor.dtype == "bf16") == stays, name


@pytest.mark.parametrize(
    ("scheme", "words"),
    [
        ({"quant_method": "hqq"}, "hqq with 0 bits in groups of 0 is not understood; allowed: gptq, awq"),
        ({"quant_method": "gptq", "bits": 5, "group_size": 32}, "gptq with 5 bits"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "in groups of 0"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "dynamic": {"-:.*": {}}}, "dynamic"),
        ({"quant_method": "bitsandbytes"}, "load_in_8bit"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size"),
        ({"quant_method": "modelopt", "quant_algo": "W4A8"}, "quant_algo"),
        (compressed(num_bits=6, type="int"), "compressed-tensors with 6 bits"),
        ({"quant_method": "compressed-tensors"}, "compressed-tensors with 0 bits"),
        ({**compressed(num_bits=8, type="int"), "ignore": ["model.layers.0.self_attn.q_proj"]}, "names a part"),
        ({**compressed(num_bits=8, type="int"), "ignore": ["model.layers.0.foo"]}, "'model.layers.0.foo'"),
        ({**compressed(num_bits=8, type="int"), "ignore": ["re:(a+)+$"]}, "the pattern 're:(a+)+$'"),
        ({**compressed(num_bits=8, type="int"), "ignore": 5}, "ignore: expected a list of names"),
    ],
)
def test_schemes_that_are_not_understood(scheme: dict[str, Any], words: str) -> None:
    with pytest.raises(rl.errors.ModelDataError) as caught:
        rl.from_config({**TOY, "quantization_config": scheme})
    assert "quantization_config" in str(caught.value)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_activations_that_are_quantised_set_the_arithmetic() -> None:
    plain = rl.from_config({**TOY, "quantization_config": {"quant_method": "gptq", "bits": 8, "group_size": 32}})
    eight = rl.from_config({**TOY, "quantization_config": {"quant_method": "fp8"}})
    at = {"B": 1, "S": 512}
    assert set(rl.estimate(plain, "h100-sxm", **at).records()[0])  # weights alone: products run in 16 bits
    runs = {dict(node.attrs).get("compute") for node in eight.nodes if node.op == "linear"}
    assert runs == {"fp8", None}  # None is the head
    assert rl.count(plain, **at).flops == rl.count(eight, **at).flops


def test_a_pattern_that_backtracks_is_refused_before_it_is_run() -> None:
    scheme = {**compressed(num_bits=8, type="int"), "ignore": ["re:" + ".*a" * 100 + "$"]}
    with pytest.raises(rl.errors.ModelDataError, match="left-out module"):
        rl.from_config({**TOY, "quantization_config": scheme})


def test_many_patterns_are_matched_once_for_all_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred layers are alike, so that a pattern is compared with the names of one."""
    compared: Counter[str] = Counter()

    def compare(name: str, glob: str) -> bool:
        compared[glob] += 1
        return fnmatchcase(name, glob)

    monkeypatch.setattr("roofline.programs.huggingface.modules.fnmatchcase", compare)
    names = [f"re:.*mlp.*x{number}.*" for number in range(50)] + ["lm_head"]
    scheme = {**compressed(num_bits=8, type="int"), "ignore": names}
    with pytest.raises(rl.errors.ModelDataError, match="left-out module"):
        rl.from_config({**TOY, "num_hidden_layers": 100, "quantization_config": scheme})
    assert len(compared) == 51
    assert max(compared.values()) < 200


def test_names_of_modules() -> None:
    keys = Keys("here", {}, {}, Kind(()))
    assert [part[1] for part in modules("layers.2.attn.qkv.weight")] == [
        "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"]  # fmt: skip
    (one,) = patterns(keys, ["re:.*block_sparse_moe.experts.*"])
    assert all(one.names(part) for part in modules("layers.2.moe.gate_up.weight"))
    assert not one.names(modules("layers.2.mlp.gate_up.weight")[0])


# What a config may be, and what it may not.


class Config:
    """What a config object of transformers looks like from outside."""

    def __init__(self, table: Mapping[str, Any]) -> None:
        self.table = table

    def to_dict(self) -> dict[str, Any]:
        return dict(self.table)


class LlamaModel:
    """What a loaded model looks like from outside."""

    config = Config(TOY)


def test_a_config_object_and_a_loaded_model() -> None:
    assert rl.from_config(Config(TOY)).parameters == 316_992 - 64 * 1000 + 64 * 1000
    assert rl.from_config(LlamaModel()).parameters == rl.from_config(Config(TOY)).parameters - 64 * 1000  # no head


@pytest.mark.parametrize("source", [5, None, [], object(), Config, LlamaModel])
def test_what_is_no_config(source: Any) -> None:
    with pytest.raises(
        rl.errors.ModelDataError, match="expected a file, a folder, a table of keys, a config or a model"
    ):
        rl.from_config(source)


def test_ignored_keys_are_listed() -> None:
    graph = rl.from_config({**TOY, "initializer_range": 0.02, "auto_map": {"AutoModel": "evil.py"}, "custom": 7})
    assert graph.info.ignored == ("auto_map", "custom", "initializer_range")
    assert [note for note in graph.info.notes if "not understood" in note] == [
        "not understood, and by its name no cost depends on it: custom"
    ]


def test_a_command_prints_notes_and_has_them_in_its_json(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({**TOY, "dtype": "bfloat16", "custom": 7}))
    result = run("estimate", path, "h100-sxm", "-S", 8, "--json")
    note = "not understood, and by its name no cost depends on it: custom"
    assert result.err == f"roofline: note: mine prefill: {note}\n"
    assert json.loads(result.out)["notes"] == [note]
    assert json.loads(run("models", path, "--json").out)["notes"] == [note]
    step = run("train", path, "h100-sxm", "-B", 2, "-S", 8, "--json")  # whatever the file is called
    assert json.loads(step.out)["notes"] == [note]


@pytest.mark.parametrize(
    ("key", "value"),
    [("n_shared_experts", 1), ("attn_output_gate", True), ("kv_channels", 16), ("clip_qkv", 8.0), ("use_qk_norm", True),
     ("layer_types", ["full_attention", "sliding_attention"] * 2), ("index_topk", 2048), ("sliding_window", 4096)],
)  # fmt: skip
def test_keys_that_change_counts_are_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(rl.errors.ModelDataError, match=f"{key}: .* is not understood for model_type 'llama'"):
        rl.from_config({**TOY, key: value})


@pytest.mark.parametrize(
    ("config", "keys"),
    [
        # tencent/Hunyuan-7B-Instruct, MiniMaxAI/MiniMax-M2: norms that the class has anyway
        ({"model_type": "hunyuan_v1_dense"}, {"use_qk_norm": True, "use_cla": False, "cla_share_factor": 2}),
        ({"model_type": "hunyuan_v1_moe", "num_experts": 8, "moe_topk": 2},
         {"use_qk_norm": True, "num_shared_expert": 1, "use_mixed_mlp_moe": True, "moe_drop_tokens": False}),
        ({"model_type": "minimax_m2", "num_local_experts": 8}, {"use_qk_norm": True, "qk_norm_type": "per_layer"}),
        # baidu/ERNIE-4.5-21B-A3B-PT, moonshotai/Kimi-Linear-48B-A3B-Instruct, inclusionAI: routing costs the same
        ({"model_type": "ernie4_5_moe"}, {"moe_gate": "topk", "moe_capacity": [64, 64, 64], "moe_use_aux_free": True}),
        ({"model_type": "qwen3_moe"}, {"use_grouped_topk": True, "moe_router_topk_scaling_factor": 2.5}),
        # meta-llama/Llama-4-Scout-17B-16E as first published, with a number for a switch
        ({"model_type": "llama4_text", "num_local_experts": 4}, {"attn_temperature_tuning": 4}),
    ],
)  # fmt: skip
def test_keys_of_published_configs_that_change_nothing(config: dict[str, Any], keys: dict[str, Any]) -> None:
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 2, **config}
    assert rl.from_config({**config, **keys}).parameters == rl.from_config(config).parameters


def test_llama_4_norms_and_scales_queries() -> None:
    """Layers that rotate norm queries and keys, each fourth scales queries by their position instead."""
    config = {"model_type": "llama4_text", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 8,
              "num_key_value_heads": 2, "head_dim": 8, "num_local_experts": 4}  # fmt: skip

    def named(ending: str, **more: Any) -> int:
        return sum(node.name.endswith(ending) for node in rl.from_config({**config, **more}).nodes)

    assert (named("q_norm"), named("k_norm"), named("tempered")) == (3, 3, 1)
    assert named("q_norm", use_qk_norm=False) == named("tempered", attn_temperature_tuning=False) == 0


def test_layer_types_that_say_what_the_class_does_anyway() -> None:
    assert rl.from_config({**TOY, "layer_types": ["full_attention"] * 4}).parameters == rl.from_config(TOY).parameters


@pytest.mark.parametrize(
    ("config", "note"),
    [
        # deepseek-ai/DeepSeek-V3 and Qwen/Qwen3.5: modules that predict further tokens are no part of a forward pass
        ({"num_nextn_predict_layers": 1}, "num_nextn_predict_layers"),
        ({"mtp_num_hidden_layers": 1}, "mtp_num_hidden_layers"),
    ],
)
def test_layers_that_predict_further_tokens_are_noted(config: dict[str, Any], note: str) -> None:
    notes = rl.from_config({**TOY, **config}).info.notes
    assert f"layers that predict further tokens are left out: {note}" in notes


def test_keys_of_a_multilingual_bert() -> None:
    """google-bert/bert-base-multilingual-cased and bert-base-chinese name sizes of a pooler that no code reads."""
    more = {"pooler_fc_size": 768, "pooler_num_attention_heads": 12, "pooler_num_fc_layers": 3,
            "pooler_size_per_head": 128, "pooler_type": "first_token_transform", "directionality": "bidi"}  # fmt: skip
    config = {"model_type": "bert", "vocab_size": 119547}
    assert rl.from_config({**config, **more}).parameters == rl.from_config(config).parameters


# The state of Qwen3.5-27B (https://huggingface.co/Qwen/Qwen3.5-27B/blob/main/config.json): 48 of 64 layers keep
# 48 heads x 128 x 128 of the scan and 2 x 16 x 128 + 48 x 128 = 10,240 channels of the convolution.
QWEN_27B = {
    "model_type": "qwen3_5_text", "dtype": "bfloat16", "full_attention_interval": 4, "head_dim": 256,
    "hidden_size": 5120, "intermediate_size": 17408, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
    "linear_num_key_heads": 16, "linear_num_value_heads": 48, "linear_value_head_dim": 128,
    "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1, "attn_output_gate": True, "output_gate_type": "swish",
    "num_attention_heads": 24, "num_hidden_layers": 64, "num_key_value_heads": 4, "vocab_size": 248320,
}  # fmt: skip
SCAN, CHANNELS = 48 * 48 * 128 * 128, 48 * 10_240


def state_bytes(config: dict[str, Any], **options: Any) -> float:
    """Return what four sequences keep apart from keys and values, which are 16 x 2 x 4 x 256 elements a position."""
    return kv_bytes(config, 1, batch=4, **options) - 4 * 16 * 2 * 4 * 256 * 2


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        (QWEN_27B, {}, 4 * (SCAN * 4 + CHANNELS * 4 * 2)),
        ({**QWEN_27B, "mamba_ssm_dtype": "bfloat16"}, {}, 303 * 2**20),
        # llama.cpp keeps both in fp32 and three inputs: "size = 598.50 MiB (4 cells, 64 layers, 4 seqs),
        # R (f32): 22.50 MiB, S (f32): 576.00 MiB"
        (QWEN_27B, {"ssm_conv_kept": "kernel-1", "ssm_conv_dtype": "fp32"}, 598.5 * 2**20),
    ],
)
def test_the_state_has_the_format_that_the_config_names(
    config: dict[str, Any], options: dict[str, Any], expected: float
) -> None:
    assert state_bytes(config, **options) == expected


@pytest.mark.parametrize("key", ["mamba_ssm_dtype", "mamba_ssm_cache_dtype"])
def test_a_format_of_the_state_that_is_none(key: str) -> None:
    with pytest.raises(rl.errors.ModelDataError, match=f"{key}: "):
        rl.from_config({**QWEN_27B, "mamba_ssm_dtype": None, key: "float33"})


@pytest.mark.parametrize("names", [["in_proj_a", "in_proj_b"], ["in_proj_ba"]])
def test_modules_of_the_delta_rule_that_stay_as_they_are(names: list[str]) -> None:
    """Qwen/Qwen3.5-27B-FP8 stores b and a apart, Qwen3-Next as one: 48 layers of 2 x 48 x 5120 in 16 bits."""
    scheme = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    layers = [layer for layer in range(64) if (layer + 1) % 4]
    out = [f"model.language_model.layers.{layer}.linear_attn.{name}" for layer in layers for name in names]
    held = [
        weight_bytes({**QWEN_27B, "quantization_config": {**scheme, "modules_to_not_convert": left}})
        for left in (out, [])
    ]
    assert held[0] - held[1] == pytest.approx(48 * 2 * 48 * 5120 * (2 - 1 - 4 / 128**2))


def test_attention_without_its_gate() -> None:
    """16 layers of attention with 24 x 256 columns of gates from 5120."""
    gated, plain = (rl.from_config({**QWEN_27B, "attn_output_gate": on}).parameters for on in (True, False))
    assert gated - plain == 16 * 24 * 256 * 5120


def test_gemma3n_keeps_the_caches_of_twenty_layers() -> None:
    """google/gemma-3n-E4B-it: of 35 layers the last 15 attend to what layers before them hold; of the 20 four see all.

    Two key-value heads of 256 columns, bf16: 2 x 2 x 256 x 2 = 2,048 bytes a layer and position; windows hold 512.
    """
    nested = {"model_type": "gemma3n", "dtype": "bfloat16", "text_config": {"model_type": "gemma3n_text"},
              "vision_config": {"hidden_size": 2048}, "audio_config": {"hidden_size": 1536}}  # fmt: skip
    assert kv_bytes(nested, 4096) == 2048 * (4 * 4096 + 16 * 512)
    notes = rl.from_config(nested).info.notes
    assert {"vision_config is not modelled", "audio_config is not modelled"} <= set(notes)


def test_a_bound_of_queries_keys_and_values_is_a_kernel() -> None:
    """https://huggingface.co/allenai/OLMo-1.7-7B-hf/blob/main/config.json: clip_qkv = 8."""
    nodes = [node.op for node in rl.from_config({**TOY, "model_type": "olmo", "clip_qkv": 8.0}).nodes]
    assert nodes.count("clamp") == 4


@pytest.mark.parametrize(
    ("model_type", "keys"),
    [
        ("mamba", {"d_inner": 1536, "n_layer": 24}),  # state-spaces/mamba-130m-hf
        ("mamba2", {"intermediate_size": 8192}),
        ("nemotron_h", {"time_step_rank": 256}),
        ("gemma2", {"sliding_window_size": 4096}),
        ("minimax_m2", {"mlp_intermediate_size": 8192, "mtp_transformer_layers": 1, "num_mtp_modules": 3}),
        ("clip_vision_model", {"vocab_size": 32000}),  # towers of llava-1.5 and llava-next
        ("smolvlm_vision", {"max_image_size": {"longest_edge": 512}}),
        ("lfm2", {"block_dim": 2048, "block_norm_eps": 1e-5, "block_use_swiglu": True, "conv_dim": 2048}),
        ("bloom", {"bias_dropout_fusion": True, "skip_bias_add": True}),
        ("recurrent_gemma", {"embeddings_scale_by_sqrt_dim": True}),
        ("cohere2", {"use_parallel_block": True, "use_parallel_embedding": True}),
    ],
)
def test_keys_of_published_configs_that_no_code_reads(model_type: str, keys: dict[str, Any]) -> None:
    config = {"model_type": model_type, "dtype": "bfloat16"}
    graph = rl.from_config({**config, **keys})
    assert graph.parameters == rl.from_config(config).parameters
    assert graph.info.ignored == tuple(sorted(keys))


@pytest.mark.parametrize("key", ["parallel_attn", "use_parallel_residual", "add_qkv_bias", "add_cross_attention"])
def test_a_switch_that_is_on_and_not_understood(key: str) -> None:
    """True equals 1, which is off only as a number."""
    assert rl.from_config({**TOY, key: False}).parameters == rl.from_config({**TOY, key: 1}).parameters
    with pytest.raises(rl.errors.ModelDataError, match=f"{key}: True is not understood"):
        rl.from_config({**TOY, key: True})


def test_a_prefix_that_sees_itself_whole_is_noted() -> None:
    graph = rl.from_config({**TOY, "model_type": "gemma", "dtype": "bfloat16", "use_bidirectional_attention": True})
    assert graph.info.notes == ("use_bidirectional_attention: prefill is counted with causal attention",)


def test_width_of_bloom_by_its_own_name() -> None:
    """bigscience/bloom-560m."""
    config = {"model_type": "bloom", "n_embed": 1024, "n_inner": None, "n_layer": 24, "num_attention_heads": 16}
    assert rl.from_config(config).parameters == 559_214_592


def test_defaults_that_are_taken_are_named() -> None:
    (note, *_) = rl.from_config({"model_type": "llama", "hidden_size": 64, "dtype": "bfloat16"}).info.notes
    assert "absent from the config, so the default of llama: num_hidden_layers = 32" in note


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**TOY, "model_type": "bert", "architectures": ["BertLMHeadModel"]}, "ForMaskedLM"),
        ({"model_type": "t5", "architectures": ["T5EncoderModel"]}, "architectures: 'T5EncoderModel'"),
        ({"model_type": "bert", "is_decoder": True}, "is_decoder"),
        ({"model_type": "albert", "num_hidden_groups": 5}, "num_hidden_groups"),
        ({"model_type": "albert", "inner_group_num": 2}, "inner_group_num"),
        ({"model_type": "vit", "image_size": [224, 448]}, "image_size: expected the edge of a square"),
        ({"model_type": "vit", "patch_size": 500}, "smaller than patch"),
        ({"model_type": "beit", "use_relative_position_bias": True}, "use_relative_position_bias"),
        ({"model_type": "bart", "d_model": 1000}, "encoder_attention_heads"),
        ({"model_type": "t5", "feed_forward_proj": "gated"}, "feed_forward_proj"),
        ({"model_type": "mamba2", "num_heads": 3}, "head_dim"),
        ({"model_type": "mamba", "time_step_rank": "some"}, "time_step_rank"),
        ({"model_type": "jamba", "attn_layer_offset": 9}, "attn_layer_offset"),
        ({"model_type": "falcon", "num_kv_heads": "many"}, "num_kv_heads"),
        ({"model_type": "mpt", "attn_config": 3}, "attn_config"),
        ({"model_type": "opt", "do_layer_norm_before": "no"}, "do_layer_norm_before"),
        ({"model_type": "gpt_neo", "attention_types": [["global"]]}, "attention_types"),
        ({"model_type": "llava", "text_config": TOY, "vision_feature_layer": [1, 2]}, "vision_feature_layer"),
    ],
)
def test_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(rl.errors.ModelDataError) as caught:
        rl.from_config(config, tower="all" if config["model_type"] in COMPOSITES else None)
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


WRONG = [None, "a\nb", -1, 0, 2.5, 10**12, float("nan"), True, ["x"], [1] * 3, {"a": 1}, [[]]]


def complaint(config: dict[str, Any], **options: Any) -> str:
    """What is wrong with a config, nothing where it makes a graph."""
    try:
        return "" if rl.from_config(config, **options).parameters > 0 else "no parameters\n"
    except rl.RooflineError as error:
        return str(error)


@pytest.fixture(scope="module")
def shared() -> Iterator[None]:
    """Builds of the same options are one: most wrong values never get that far, and many mean the same."""
    built: dict[str, Any] = {}

    def build(file: ModelFile, where: str, phase: str | None, overrides: Mapping[str, Any], kind: Any = None) -> Any:
        key = f"{kind} {file.model_dump()} {phase} {overrides}"
        if key not in built:
            built[key] = outcome(lambda: build_model(file, where, phase, overrides, kind))
        if isinstance(built[key], rl.RooflineError):
            raise built[key]
        return built[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("roofline.programs.huggingface.assemble.build_model", build)
        yield


def outcome(build: Callable[[], Any]) -> Any:
    try:
        return build()
    except rl.RooflineError as error:
        return error


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("model_type", sorted({*KINDS, *COMPOSITES}))
def test_no_wrong_type_of_any_key_breaks_it(model_type: str) -> None:
    """Every key that a row reads, with values of every kind: a graph, or one line that says what is wrong."""
    small = {key: 2 for key in DEFAULTS.get(model_type, {}) if "layers" in key or key == "depth"}
    options = {"tower": "all" if model_type in COMPOSITES else None, "phase": "forward"}
    keys = [*DEFAULTS.get(model_type, {}), "layer_types", "rope_parameters", "vision_config", "text_config",
            "architectures", "dtype", "id2label"]  # fmt: skip
    for at, key in enumerate(keys):
        for value in WRONG if LONG else (WRONG * 2)[at % len(WRONG) :][:3]:
            said = complaint({"model_type": model_type, **small, key: value}, **options)
            assert len(said.splitlines()) <= 1, (key, value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
QUANTISED_KEYS = ["quant_method", "bits", "group_size", "ignore", "config_groups", "weight_block_size", "load_in_4bit",
                  "modules_to_not_convert", "bnb_4bit_quant_type", "quant_algo", "lm_head"]  # fmt: skip


@settings(max_examples=examples(100), deadline=None)
@given(
    st.sampled_from(["gptq", "bitsandbytes", "compressed-tensors", "fp8", "mxfp4", "modelopt"]),
    st.dictionaries(st.sampled_from(QUANTISED_KEYS), JSON, max_size=4),
)
def test_no_scheme_breaks_it(method: str, changes: dict[str, Any]) -> None:
    config = {**TOY, "num_hidden_layers": 1, "quantization_config": {"quant_method": method, **changes}}
    assert len(complaint(config).splitlines()) <= 1


@pytest.mark.usefixtures("shared")
@pytest.mark.parametrize("scheme", [scheme for scheme, _ in SCHEMES], ids=lambda scheme: json.dumps(scheme)[:40])
def test_damaged_schemes_are_built_or_refused_in_one_line(scheme: dict[str, Any]) -> None:
    whole = {**TOY, "quantization_config": {**scheme, "kv_cache_scheme": {"num_bits": 8, "type": "float"}}}
    for made in mutants(json_mutated, whole, examples(8)):
        refused(lambda made=made: rl.from_config(made))
