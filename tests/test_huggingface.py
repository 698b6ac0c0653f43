"""Llama-like ``config.json`` files: keys to sizes, quirks of real configs, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from profiles import examples

import roofline as rl
from roofline.ir.datafile import read_json
from roofline.programs.huggingface import KINDS

TOY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 1000,
}
GQA = {**TOY, "num_key_value_heads": 2}


def kv_bytes(config: dict[str, Any], context: int) -> float:
    graph = rl.from_config(config, phase="decode")
    return float(rl.estimate(graph, "h100-sxm", B=1, C=context).memory.kv_cache)


# Parameters. The toys are the cases C03, C04, C05 and C12 of the bug reports that the project collects; each figure
# is the sum of its matrices.
ATTENTION = 64 * 64 * 2 + 2 * 64 * 16
MLP = 3 * 64 * 192


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        pytest.param(TOY, 341_568, id="kv heads missing (lm-polygraph#435)"),
        pytest.param({**TOY, "num_key_value_heads": None, "head_dim": None}, 341_568, id="null (lm-polygraph#435)"),
        pytest.param({**GQA, "head_dim": 16}, 357_952, id="wide heads (DeepSpeed#8389)"),
        pytest.param({**GQA, "tie_word_embeddings": True}, 252_992, id="tied"),
        pytest.param(
            {"model_type": "llava", "num_hidden_layers": 9, "hidden_size": 48, "vision_config": {"hidden_size": 48},
             "text_config": {**GQA, "tie_word_embeddings": True}},
            252_992, id="nested wins over the top level (hf text_config)"),
        pytest.param(
            {**GQA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2},
            1_351_232, id="mixtral (trl#7069)"),
        pytest.param(
            {**GQA, "model_type": "qwen2_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48,
             "shared_expert_intermediate_size": 96, "mlp_only_layers": [0, 1]},
            4 * (ATTENTION + 96 + 128) + 2 * MLP + 2 * (8 * 3 * 64 * 48 + 64 * 8 + 3 * 64 * 96 + 64) + 64 + 128_000,
            id="qwen2_moe, first layers dense"),
        pytest.param({**GQA, "attention_bias": True}, 4 * (ATTENTION + MLP + 128 + 160) + 128_064, id="biases"),
        pytest.param({**GQA, "mlp_bias": True}, 4 * (ATTENTION + MLP + 128 + 448) + 64 + 128_000, id="mlp biases"),
    ],
)  # fmt: skip
def test_parameters(config: dict[str, Any], parameters: int) -> None:
    assert rl.from_config(config).parameters == parameters


def test_active_parameters_of_mixtral() -> None:
    graph = rl.from_config({**GQA, "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2})
    assert graph.info.active_parameters == 466_496


# Published configs, reduced to the keys that sizes follow from, against the shipped models of the same name.
PUBLISHED: dict[str, dict[str, Any]] = {
    "llama-3-8b": {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "rope_theta": 500000.0,
        "max_position_embeddings": 8192, "hidden_act": "silu", "torch_dtype": "bfloat16", "bos_token_id": 128000,
        "attention_bias": False, "tie_word_embeddings": False, "architectures": ["LlamaForCausalLM"],
        "initializer_range": 0.02, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": None,
        "transformers_version": "4.40.0.dev0", "use_cache": True, "attention_dropout": 0.0},
    "mistral-7b": {
        "model_type": "mistral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "sliding_window": 4096,
        "torch_dtype": "bfloat16"},
    "qwen2.5-7b": {
        "model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064, "sliding_window": 131072,
        "use_sliding_window": False, "max_window_layers": 28, "torch_dtype": "bfloat16", "use_mrope": False},
    "qwen3-8b": {
        "model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936,
        "max_window_layers": 36, "sliding_window": None, "use_sliding_window": False, "dtype": "bfloat16"},
    "qwen3-30b-a3b": {
        "model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
        "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "norm_topk_prob": True, "torch_dtype": "bfloat16"},
    "qwen1.5-moe-a2.7b": {
        "model_type": "qwen2_moe", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
        "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 151936, "num_experts": 60,
        "num_experts_per_tok": 4, "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632,
        "decoder_sparse_step": 1, "torch_dtype": "bfloat16"},
    "phi-3-mini": {
        "model_type": "phi3", "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32064, "sliding_window": 2047,
        "original_max_position_embeddings": 4096, "torch_dtype": "bfloat16"},
    "mixtral-8x7b": {
        "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "num_local_experts": 8,
        "num_experts_per_tok": 2, "sliding_window": None, "router_aux_loss_coef": 0.02, "torch_dtype": "bfloat16"},
    "gemma-2-2b": {
        "model_type": "gemma2", "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "vocab_size": 256000,
        "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256, "torch_dtype": "bfloat16"},
    "gemma-3-4b-text": {
        "model_type": "gemma3", "mm_tokens_per_image": 256, "torch_dtype": "bfloat16",
        "architectures": ["Gemma3ForConditionalGeneration"], "vision_config": {"hidden_size": 1152},
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
                        "num_hidden_layers": 34, "sliding_window": 1024}},
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_published_config_is_the_shipped_model(name: str, phase: str) -> None:
    ours, theirs = rl.model(name, phase=phase), rl.from_config(PUBLISHED[name], phase=phase)
    assert theirs.parameters == ours.parameters
    at = {"B": 2, "S": 5000, "C": 5000}
    mine, other = rl.estimate(ours, "h100-sxm", **at), rl.estimate(theirs, "h100-sxm", **at)
    assert (other.flops, other.bytes, other.time) == (mine.flops, mine.bytes, mine.time)
    assert float(other.memory.total) == float(mine.memory.total)


def test_parts_that_are_left_out_are_named() -> None:
    graph = rl.from_config(PUBLISHED["gemma-3-4b-text"])
    assert graph.info.notes == ('vision_config is left out; rl.from_config(..., tower="all") builds both',)


# Windows.


@pytest.mark.parametrize(
    ("extra", "cache"),
    [
        pytest.param({"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": False}, 65_536, id="off"),
        pytest.param({"model_type": "mistral", "sliding_window": None}, 65_536, id="null"),
        pytest.param({"model_type": "mistral", "sliding_window": 16}, 4_096, id="on"),
        pytest.param(
            {"model_type": "qwen2", "sliding_window": 16, "use_sliding_window": True, "max_window_layers": 3},
            3 * 16_384 + 1_024, id="the last layer alone"),
    ],
)  # fmt: skip
def test_window(extra: dict[str, Any], cache: int) -> None:
    """transformers#38002: off or null means that the cache grows to the full context."""
    assert kv_bytes({**GQA, **extra}, 256) == cache


def test_layer_types() -> None:
    """hf-mem#70: two sliding and two full layers, windowed and with a full reservation."""
    types = ["sliding_attention", "full_attention"] * 2
    config = {**GQA, "model_type": "qwen3", "head_dim": 16, "sliding_window": 16, "layer_types": types}
    assert kv_bytes(config, 256) == 69_632
    graph = rl.from_config(config, phase="decode", kv_policy="full")
    assert rl.estimate(graph, "h100-sxm", B=1, C=256).memory.kv_cache == 131_072


# Formats.


def test_dtype_of_the_config() -> None:
    assert rl.from_config({**TOY, "torch_dtype": "float16"}).info.dtype == "fp16"
    assert rl.from_config({**TOY, "dtype": "float32"}).info.dtype == "fp32"
    assert rl.from_config({**TOY, "dtype": "auto"}).info.notes == ("the config names no dtype: bf16 is assumed",)


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False}
PACKED = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {"weights": {"num_bits": 4, "type": "int", "group_size": 128, "symmetric": True}},
    },
    "ignore": ["lm_head"],
}


@pytest.mark.parametrize(("scheme", "group_bits", "index"), [(GPTQ, 16 + 4, 4 * (6 * 64 + 192) * 4), (PACKED, 16, 0)])
def test_quantised_checkpoint(scheme: dict[str, Any], group_bits: int, index: int) -> None:
    """ome#638: layers in 4 bits with a scale (GPTQ: and a zero point) a group; embeddings, norms and head in 16.

    GPTQ's index has 4 bytes for each of 64 columns of q, k, v, o, gate and up and 192 of down, in 4 layers.
    """
    graph = rl.from_config({**GQA, "quantization_config": scheme, "torch_dtype": "float16"})
    layers, rest = 4 * (ATTENTION + MLP), 4 * 2 * 64 + 64 + 2 * 1000 * 64
    wanted = layers / 2 + layers / 128 * group_bits / 8 + rest * 2 + index
    assert float(rl.estimate(graph, "h100-sxm", B=1, S=8).memory.weights) == wanted


def test_formats_that_are_asked_for_win() -> None:
    graph = rl.from_config({**GQA, "dtype": "bfloat16"}, phase="decode", weights="int8", cache="fp8")
    dtypes = {tensor.kind: tensor.dtype for tensor in graph.tensors.values() if tensor.kind == "cache"}
    assert dtypes == {"cache": "fp8"}
    assert graph.tensors["head.weight"].dtype == "int8"


# Refusals.


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({**TOY, "model_type": "rwkv"}, ["model_type", "rwkv", "llama"]),
        ({**TOY, "model_type": "lama"}, ["did you mean llama"]),
        ({**TOY, "model_type": None}, ["model_type: missing"]),
        ({**TOY, "hidden_size": float("inf")}, ["hidden_size", "inf"]),
        ({**TOY, "hidden_size": float("nan")}, ["hidden_size", "nan"]),
        ({**TOY, "hidden_size": -64}, ["hidden_size", "-64"]),
        ({**TOY, "hidden_size": "64"}, ["hidden_size", "'64'"]),
        ({**TOY, "hidden_size": True}, ["hidden_size"]),
        ({**TOY, "num_hidden_layers": 0}, ["num_hidden_layers"]),
        ({**TOY, "num_hidden_layers": 10**8}, ["num_hidden_layers", "2000"]),
        ({**TOY, "vocab_size": None}, ["vocab_size: missing"]),
        ({**TOY, "hidden_act": "slu"}, ["hidden_act", "did you mean silu"]),
        ({**TOY, "num_key_value_heads": 3}, ["kv_heads"]),
        ({**TOY, "sliding_window": 16}, ["sliding_window", "not understood for model_type 'llama'"]),
        ({**TOY, "num_experts": 8}, ["num_experts", "cost may depend"]),
        ({**TOY, "kv_lora_rank": 512}, ["kv_lora_rank"]),
        ({**TOY, "hybrid_override_pattern": "M-M*"}, ["hybrid_override_pattern"]),
        ({**TOY, "quantization_config": {"quant_method": "aqlm"}}, ["quantization_config", "aqlm", "gptq"]),
        ({**TOY, "quantization_config": 4}, ["quantization_config"]),
        ({**TOY, "architectures": ["LlamaForSequenceClassification"]}, ["architectures", "ForCausalLM"]),
        ({**TOY, "architectures": 5}, ["architectures"]),
        ({**TOY, "quantization_config": {"quant_method": "a\nb"}}, ["a b with 0 bits"]),
        ({**TOY, "num_experts": "a\x85b"}, ["num_experts"]),
        ({**TOY, "tie_word_embeddings": "yes"}, ["tie_word_embeddings", "true or false"]),
        ({**TOY, "torch_dtype": "bfloat61"}, ["dtype", "bf16"]),
        ({**TOY, "model_type": "qwen3", "layer_types": ["full_attention"]}, ["layer_types", "4 entries"]),
        ({**TOY, "model_type": "qwen3", "layer_types": ["linear_attention"] * 4}, ["layer_types", "linear_attention"]),
        ({**GQA, "model_type": "qwen2_moe", "decoder_sparse_step": 0}, ["decoder_sparse_step", "0"]),
        ({**GQA, "model_type": "qwen2_moe", "mlp_only_layers": "3"}, ["mlp_only_layers", "list"]),
    ],
)
def test_refused(config: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(rl.errors.ModelDataError) as caught:
        rl.from_config(config)
    for word in words:
        assert word in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_keys_without_a_cost_are_ignored() -> None:
    extra = {"_name_or_path": "toy", "auto_map": {"AutoConfig": "x"}, "unsloth_fixed": True, "time_limit": float("inf")}
    assert rl.from_config({**TOY, **extra, "num_labels": 2, "num_experts": 0}).parameters == 341_568


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)
KEYS = sorted({*TOY, *PUBLISHED["qwen1.5-moe-a2.7b"], "architectures", "quantization_config", "layer_types", "dtype",
               "head_dim", "text_config", "sliding_window", "mlp_only_layers", "hidden_activation"})  # fmt: skip


@settings(max_examples=examples(150), deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3))
def test_no_value_breaks_it(model_type: str, changes: dict[str, Any]) -> None:
    try:
        found = rl.from_config({**TOY, "model_type": model_type, **changes}).parameters
    except rl.RooflineError as error:
        complaint = str(error)
    else:
        complaint = "" if found > 0 else "no parameters"
    assert len(complaint.splitlines()) <= 1


# Files.


def test_file_and_folder(tmp_path: Path) -> None:
    folder = tmp_path / "my-llama"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**TOY, "time_step_limit": [0.0, float("inf")]}))
    for source in (folder, folder / "config.json", str(folder)):
        graph = rl.from_config(source)
        assert (graph.info.model, graph.parameters) == ("my-llama", 341_568)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"model_type": "llama",\n "hidden_size": }', "line 2, column 17"),
        (b"[1, 2]", "expected a table"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"[" * 100_000, "nested too deeply"),
        (b"", "line 1, column 1"),
        (b'{"hidden_size": ' + b"9" * 5000 + b"}", "cannot be read"),
        (b" " * (4 * 2**20 + 1), "allowed: at most"),
    ],
)
def test_broken_file(tmp_path: Path, content: bytes, words: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(rl.errors.ModelDataError, match=words) as caught:
        rl.from_config(file)
    assert str(file) in str(caught.value)
    assert len(str(caught.value)) < 600


def test_missing_file_and_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(rl.errors.ModelDataError, match="no such file"):
        rl.from_config(tmp_path / "config.json")
    with pytest.raises(rl.errors.ModelDataError, match=r"without config\.json"):
        rl.from_config(tmp_path)
    with pytest.raises(rl.errors.ModelDataError, match="a directory"):
        read_json(tmp_path)


def test_byte_order_mark(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(TOY), encoding="utf-8-sig")
    assert rl.from_config(file).parameters == 341_568


YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("config", "most", "hard"),
    [
        pytest.param({**TOY, "max_position_embeddings": 8192}, 8192, False, id="rope"),
        # https://qwen.readthedocs.io/en/latest/deployment/vllm.html: 131,072 tokens with a factor of 4.
        pytest.param({**TOY, "max_position_embeddings": 32768, "rope_scaling": YARN}, 131_072, False, id="yarn"),
        pytest.param({**TOY, "model_type": "gpt2", "n_embd": 64, "n_head": 8, "n_layer": 2, "n_positions": 1024},
                     1024, True, id="learned"),
        pytest.param({**TOY, "model_type": "roberta", "max_position_embeddings": 514}, 512, True, id="padding"),
        pytest.param({"model_type": "whisper", "d_model": 64, "encoder_attention_heads": 4, "encoder_layers": 1,
                      "decoder_attention_heads": 4, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
                      "vocab_size": 100, "max_source_positions": 1500, "max_target_positions": 448},
                     448, True, id="the decoder's, where the encoder hears sound"),
    ],
)  # fmt: skip
def test_positions(config: dict[str, Any], most: int, hard: bool) -> None:
    positions = rl.from_config(config).info.positions
    assert positions is not None
    assert (positions.most, positions.hard) == (most, hard)
