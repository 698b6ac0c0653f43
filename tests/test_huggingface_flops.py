"""FLOPs of imported models against those that torch counts when transformers runs them, attention written out."""

from __future__ import annotations

import os
import warnings
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

import test_huggingface_counts as configs  # noqa: E402

import roofline as rl  # noqa: E402

B, S = 2, 16

#: Classes of heads by the automatic class that builds them.
HEADS = {
    "AutoModelForMaskedLM": "ForMaskedLM", "AutoModelForSequenceClassification": "ForSequenceClassification",
    "AutoModelForImageClassification": "ForImageClassification", "AutoModel": "Model",
}  # fmt: skip


def counted(config: dict[str, Any], auto: str, **inputs: Any) -> int:
    """What torch's counter finds in one forward pass."""
    from torch.utils.flop_counter import FlopCounterMode

    transformers.logging.set_verbosity_error()
    table = {key: value for key, value in config.items() if key != "model_type"}
    found = transformers.models.auto.configuration_auto.CONFIG_MAPPING[config["model_type"]](**table)
    found._attn_implementation = "eager"
    found._experts_implementation = "eager"  # grouped products are unknown to the counter
    chosen, how = getattr(transformers, auto), {"attn_implementation": "eager", "experts_implementation": "eager"}
    with warnings.catch_warnings(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        warnings.simplefilter("ignore")
        model = (chosen.from_config(found, **how) if auto.startswith("Auto") else chosen(found)).eval()
        model(**inputs)
    return int(counter.get_total_flops())


def ours(config: dict[str, Any], **options: Any) -> int:
    return int(rl.count(rl.from_config(config, phase="forward", **options), B=B, S=S).flops)


def ids() -> Any:
    return torch.randint(3, 100, (B, S))


@pytest.mark.parametrize(
    "name",
    ["llama-biases", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "deepseek_v2", "deepseek_v3", "gpt_oss", "phi",
     "gemma2", "gemma3_text", "glm4_moe", "axk1", "deepseek_v32", "minimax_m3_vl_text", "laguna", "mimo_v2_flash",
     "beam", "olmoe", "cohere", "gpt_neox", "falcon-40b", "falcon-rw", "gpt2", "gptj", "gpt_neo", "opt-350m", "bloom",
     "mpt", "starcoder2", "nemotron", "apertus", "bitnet", "flint-step", "cohere2_moe-dense", "diffllama", "doge",
     "jetmoe", "afmoe", "gpt_neox_japanese", "modernbert-decoder"],
)  # fmt: skip
def test_decoders(name: str) -> None:
    config = configs.DECODERS[name]
    assert ours(config, attention="naive") == counted(config, "AutoModelForCausalLM", input_ids=ids())


@pytest.mark.parametrize("name", ["bert", "bert-masked", "roberta-labels", "distilbert", "electra", "albert", "mpnet",
                                  "modernbert-masked", "clip_text_model", "xlm-roberta-xl"])  # fmt: skip
def test_encoders(name: str) -> None:
    auto, config = configs.ENCODERS[name]
    named = {**config, "architectures": [HEADS.get(auto, "Model")]}
    assert ours(named, attention="naive") == counted(config, auto, input_ids=ids())


@pytest.mark.parametrize("name", ["vit", "deit-labels", "dinov2-giant", "dinov2_with_registers", "beit",
                                  "clip_vision_model", "siglip_vision_model"])  # fmt: skip
def test_vision(name: str) -> None:
    auto, config = configs.VISION[name]
    named = {**config, "architectures": [HEADS.get(auto, "ForImageClassification" if "labels" in name else "Model")]}
    assert ours(named, attention="naive") == counted(config, auto, pixel_values=torch.zeros(B, 3, 32, 32))


def test_a_convolutional_network() -> None:
    auto, config = configs.VISION["convnext"]
    graph = rl.from_config({**config, "architectures": ["ConvNextForImageClassification"]})
    assert rl.count(graph, B=B).flops == counted(config, auto, pixel_values=torch.zeros(B, 3, 32, 32))


@pytest.mark.parametrize("name", ["t5", "t5-v1.1", "umt5", "bart", "mbart", "whisper"])
def test_encoder_decoders(name: str) -> None:
    """The decoder's own attention counts the pairs that a causal mask leaves, torch all of them."""
    auto, config = configs.SEQ2SEQS[name]
    source = {"input_features": torch.zeros(B, 40, 60)} if name == "whisper" else {"input_ids": ids()}
    hidden = 3 * 2 * 2 * B * 64 * (S * S - S * (S + 1) // 2)  # layers, products, multiply-add
    assert ours(config) + hidden == counted(config, auto, decoder_input_ids=ids(), **source)


def test_gemma3n() -> None:
    config = configs.HYBRIDS["gemma3n_text"]
    assert ours(config, attention="naive") == counted(config, "AutoModelForCausalLM", input_ids=ids())


def test_mllama_with_an_image() -> None:
    """One image of four tiles: 4 x 17 positions, which the tower pads to 4 x 24."""
    config = configs.COMPOSITES["mllama"]
    inputs = {"input_ids": ids(), "pixel_values": torch.zeros(B, 1, 4, 3, 32, 32),
              "aspect_ratio_ids": torch.ones(B, 1, dtype=torch.long),
              "aspect_ratio_mask": torch.ones(B, 1, 4, dtype=torch.long),
              "cross_attention_mask": torch.ones(B, S, 1, 4, dtype=torch.long)}  # fmt: skip
    # transformers multiplies the mask of the tiles with its transpose as well: a matmul of one column
    mask = 2 * B * (4 * 24) ** 2
    counted_flops = counted(config, "AutoModelForImageTextToText", **inputs)
    assert ours(config, tower="all", attention="naive") + mask == counted_flops


def test_mamba_by_hand() -> None:
    # Two layers of 128 channels, 16 states and a rank of 4; the head is the table.
    layer = 64 * 256 + 128 * (4 + 2 * 16) + 4 * 128 + 128 * 64 + 128 * 4
    assert ours(configs.HYBRIDS["mamba"]) == 2 * B * S * (2 * layer + 64 * 128)


def test_mamba2_by_hand() -> None:
    # 16 heads of 8, two groups of 16 states; 16 positions are one chunk.
    projections = 64 * (2 * 128 + 2 * 2 * 16 + 16) + 128 * 64 + (128 + 2 * 2 * 16) * 4
    scan = 16 * 2 * 16 + 16 * 16 * 8 + 2 * 16 * 8 * 16
    assert ours(configs.HYBRIDS["mamba2"]) == 2 * B * S * (2 * (projections + scan) + 64 * 128)
