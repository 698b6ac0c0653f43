"""The shipped models: parameter counts, caches and FLOPs against published figures and hand arithmetic."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import roofline as rl
from roofline.hardware.library import data_dir, spelling
from roofline.ir.sizes import evaluate
from roofline.ops.registry import node_work
from roofline.programs.library import find_model
from roofline.programs.modelfile import ModelFile, load_model_file

NAMES = rl.models()
SIZES = {"B": 2, "S": 64, "C": 96}
TEXT = ("forward", "prefill", "decode")


def phases(file: ModelFile) -> tuple[str, ...]:
    return {"decoder": TEXT, "seq2seq": ("forward", "decode")}.get(file.family, ("forward",))


def flops(graph: rl.Graph, ops: tuple[str, ...] = (), **sizes: Any) -> Any:
    """Contraction FLOPs of a graph, of some operators only when named."""
    total = 0
    for node in graph.nodes:
        if not ops or node.op in ops:
            shapes = [graph.tensors[name].shape for name in node.inputs]
            total += evaluate(node_work(node, shapes).flops, sizes) * node.count
    return total


def cache_bytes(graph: rl.Graph, **sizes: int) -> Any:
    held = [tensor for tensor in graph.tensors.values() if tensor.kind == "cache"]
    return sum(evaluate(tensor.numel, sizes) * rl.ops.dtype(tensor.dtype).bytes for tensor in held)


# --- every model ----------------------------------------------------------------------------------------------------


def test_there_are_many() -> None:
    assert len(NAMES) >= 80


@pytest.mark.parametrize("name", NAMES)
def test_every_model_builds_with_its_published_parameters(name: str) -> None:
    path = find_model(name)
    file = load_model_file(path)
    assert file.name == path.stem == name
    assert file.parameters_source
    assert file.source
    for phase in phases(file):
        graph = rl.model(name, phase).validate()
        assert graph.parameters == file.parameters, phase
        assert flops(graph, **SIZES) > 0
        assert graph.info.phase == phase
        assert graph.symbols <= {"B", "S", "C"}
        assert not any(tensor.kind == "cache" for tensor in graph.tensors.values()) or phase != "forward"


def test_names_and_aliases_are_distinct() -> None:
    owner: dict[str, str] = {}
    for name in NAMES:
        file = load_model_file(find_model(name))
        for spelled in {spelling(other) for other in (file.name, *file.aliases)}:
            assert owner.setdefault(spelled, name) == name, spelled


PUBLISHED = {  # model cards, torchvision metadata, papers: typed here again, apart from the files
    "gpt2": 124_439_808, "gpt-3-175b": 174_604_259_328, "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320,
    "llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496, "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400, "llama-3.2-1b-untied": 1_498_482_688, "mixtral-8x7b": 46_702_792_704,
    "qwen2.5-7b": 7_615_616_512, "qwen2.5-72b": 72_706_203_648, "deepseek-v3": 671_026_419_200,
    "bert-base-uncased": 109_482_240, "bert-large-uncased": 335_141_888, "resnet18": 11_689_512,
    "resnet50": 25_557_032, "resnet101": 44_549_160, "vgg16": 138_357_544, "mobilenet-v2": 3_504_872,
    "vit-b-16": 86_567_656, "t5-base": 222_903_552, "opt-125m": 125_239_296,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_typed_a_second_time(name: str) -> None:
    assert rl.model(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize(
    ("name", "active"),
    [
        ("mixtral-8x7b", 12_879_925_248),
        # Published in billions: DeepSeek-V3 37, Qwen3 22 and 3.3, gpt-oss 5.1 without the token table (0.58).
        ("deepseek-v3", pytest.approx(37e9, rel=0.02)),
        ("qwen3-235b-a22b", pytest.approx(22e9, rel=0.02)),
        ("qwen3-30b-a3b", pytest.approx(3.3e9, rel=0.02)),
        ("gpt-oss-120b", pytest.approx(5.1e9 + 201088 * 2880, rel=0.02)),
        ("kimi-k2.5", pytest.approx(32e9, rel=0.03)),  # the model's card, as those below
        ("glm-5", pytest.approx(40e9 + 154880 * 6144, rel=0.03)),
        ("qwen3.5-397b-a17b", pytest.approx(17e9, rel=0.03)),
        ("llama-3-8b", 8_030_261_248),
    ],
)
def test_active_parameters(name: str, active: Any) -> None:
    assert rl.model(name).info.active_parameters == active


def test_unet_by_hand() -> None:
    levels = [64, 128, 256, 512, 1024]
    down = sum(9 * a * b + b + 9 * b * b + b for a, b in zip([1, *levels], levels, strict=False))
    up = sum(4 * 2 * c * c + c + 9 * 2 * c * c + c + 9 * c * c + c for c in levels[:-1])
    assert rl.model("unet").parameters == down + up + 64 * 2 + 2


def test_unet_output_is_388() -> None:
    graph = rl.model("unet")
    assert [evaluate(size, {"B": 1}) for size in graph.tensors[graph.outputs[0]].shape] == [1, 2, 388, 388]


# --- KV cache -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("gpt-3-175b", 4_718_592), ("opt-13b", 819_200), ("llama-2-7b", 524_288), ("llama-2-13b", 819_200),
        ("llama-2-70b", 327_680), ("llama-3-8b", 131_072), ("llama-3-70b", 327_680), ("llama-3.1-405b", 516_096),
        ("mixtral-8x7b", 131_072), ("qwen2.5-7b", 57_344), ("qwen2.5-72b", 327_680), ("qwen3-235b-a22b", 192_512),
        ("deepseek-v3", 70_272), ("deepseek-v2", 69_120), ("gpt-oss-120b", 73_728),
    ],
)  # fmt: skip
@pytest.mark.parametrize("phase", ["prefill", "decode"])
def test_kv_bytes_per_token(name: str, per_token: int, phase: str) -> None:
    assert cache_bytes(rl.model(name, phase), B=1, S=1, C=1) == per_token


def test_declared_head_dim_wins() -> None:
    """Mistral-Small: 5120 / 32 = 160, but head_dim is 128 (A22)."""
    assert cache_bytes(rl.model("mistral-small-24b", "decode"), B=1, C=1) == 2 * 40 * 8 * 128 * 2


def test_two_kv_policies_of_gpt_oss() -> None:
    """Sliding layers hold min(window, C), or all C where an engine reserves equal pages (A20)."""
    sizes = {"B": 32, "C": 8192}
    assert cache_bytes(rl.model("gpt-oss-20b", "decode"), **sizes) == 12 * 2 * 8 * 64 * 2 * (8192 + 128) * 32
    full = rl.model("gpt-oss-20b", "decode", kv_policy="full")
    assert cache_bytes(full, **sizes) == 12.0 * 2**30


def test_both_policies_attend_the_same() -> None:
    ideal, full = (rl.model("gpt-oss-20b", "decode", kv_policy=policy) for policy in ("windowed", "full"))
    for context in (1, 64, 128, 5000):
        assert flops(ideal, B=2, C=context) == flops(full, B=2, C=context)


def test_leftover_latent_sizes_do_not_turn_mla_on() -> None:
    """Only the switch does (A35)."""
    graph = rl.model("llama-3-8b", "decode", layers=1, kv_lora=32, rope_dim=64, value_dim=128)
    assert cache_bytes(graph, B=1, C=1) == 4096


def test_bert_and_images_have_no_cache() -> None:
    assert cache_bytes(rl.model("bert-base-uncased")) == cache_bytes(rl.model("vit-b-16")) == 0


# --- FLOPs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "macs"),
    [
        ("resnet50", 4_089_184_256),
        ("resnet18", 1_814_073_344),
        ("vgg16", 15_470_264_320),
        ("mobilenet-v2", 300_774_272),
        ("vit-b-16", 17_563_828_224),
        # torchvision's GMAC, rounded there
        ("resnet101", pytest.approx(7.801e9, rel=1e-3)),
        ("resnet152", pytest.approx(11.514e9, rel=1e-3)),
        ("vit-l-16", pytest.approx(61.555e9, rel=1e-3)),
    ],
)
def test_macs_of_an_image(name: str, macs: Any) -> None:
    assert flops(rl.model(name), B=1) / 2 == macs


@pytest.mark.parametrize(
    ("name", "per_token"),
    [
        ("llama-2-7b", 13_214_154_752),
        ("llama-2-13b", 25_703_219_200),
        ("llama-3-8b", 15_009_316_864),
        ("llama-3-70b", 139_003_428_864),
        ("llama-3.1-405b", 807_495_794_688),
        ("mixtral-8x7b", 25_497_174_016),
    ],
)
def test_decode_flops_of_the_matrices(name: str, per_token: int) -> None:
    """Two for each weight that a token meets: matrices, router and head, no token table."""
    assert flops(rl.model(name, "decode"), ("linear", "expert_linear"), B=1, C=1) == per_token


def test_decode_attention_by_hand() -> None:
    attention = ("attention_scores", "attention_values")
    assert flops(rl.model("llama-3-8b", "decode"), attention, B=3, C=1000) == 32 * 3 * 2 * 2 * 32 * 128 * 1000
    latent = flops(rl.model("deepseek-v3", "decode"), attention, B=1, C=1000)
    assert latent == 61 * 2 * 128 * (576 + 512) * 1000
    absorb = flops(rl.model("deepseek-v3", "decode"), ("bmm",), B=1, C=1000)
    assert absorb == 61 * 2 * 128 * 2 * 128 * 512


def test_prefill_attention_is_causal() -> None:
    attention = ("attention_scores", "attention_values")
    pairs = 100 * 101 // 2
    assert flops(rl.model("llama-3-8b"), attention, B=1, S=100) == 32 * 2 * 2 * 32 * 128 * pairs
    naive = flops(rl.model("llama-3-8b", attention="naive"), attention, B=1, S=100)
    assert naive == 32 * 2 * 2 * 32 * 128 * 100 * 100


@pytest.mark.parametrize("phase", TEXT)
def test_tying_changes_parameters_and_nothing_else(phase: str) -> None:
    """A15: the lookup costs nothing and the head the same, tied or not."""
    tied, untied = (rl.model("qwen3-0.6b", phase, tied=flag) for flag in (True, False))
    assert untied.parameters - tied.parameters == 151936 * 1024
    assert flops(tied, **SIZES) == flops(untied, **SIZES)
    head = next(node for node in tied.nodes if node.name == "head")
    work = node_work(head, [tied.tensors[name].shape for name in head.inputs])
    assert evaluate(work.flops, {"B": 1, "S": 1}) == 311_164_928


@pytest.mark.parametrize("option", ["fused_qkv", "fused_gate_up"])
def test_fused_projections_change_no_count(option: str) -> None:
    fused, apart = rl.model("llama-3-8b"), rl.model("llama-3-8b", **{option: False})
    assert fused.parameters == apart.parameters
    assert flops(fused, **SIZES) == flops(apart, **SIZES)
    assert len(fused.nodes) != len(apart.nodes)


def test_experts_read_grow_with_the_batch() -> None:
    """E (1 - (1 - k/E)^B) of them: 2, 5.469 and 7.920 of Mixtral's 8 at batch 1, 4 and 16."""
    graph = rl.model("mixtral-8x7b", "decode", layers=1)
    node = next(node for node in graph.nodes if node.name.endswith("moe.down"))
    reads = node_work(node, [graph.tensors[name].shape for name in node.inputs]).reads[1]
    seen = [evaluate(reads, {"B": batch}) / (4096 * 14336) for batch in (1, 4, 16)]
    assert seen == pytest.approx([2, 5.46875, 7.919819234])


def test_prefill_logits() -> None:
    """The last position only, except where the file says that the program computes all."""
    assert str(rl.model("llama-3-8b").tensors["head"].shape[1]) == "1"
    assert str(rl.model("gpt2").tensors["head"].shape[1]) == "S"
    assert str(rl.model("llama-3-8b", prefill_logits="all").tensors["head"].shape[1]) == "S"


# --- the program is the measured one ---------------------------------------------------------------------------------


def test_a_llama_layer_is_the_measured_program() -> None:
    graph = rl.model("llama-3-8b", "decode", layers=1)
    kernels = list(dict.fromkeys(node.label for node in graph.nodes if node.op not in ("view", "slice")))
    rope = [f"{{}}.{step}" for step in ("x_cos", "neg_x2", "turned", "turned_sin", "out")]
    layer = ["attn.norm", "attn.qkv"]
    layer += [step.format(f"attn.rope_{x}") for x in "qk" for step in rope]
    layer += ["attn.k_cache_update", "attn.v_cache_update", "attn.sdpa", "attn.out", "attn.residual"]
    layer += ["mlp.norm", "mlp.gate_up", "mlp.silu", "mlp.gated", "mlp.down", "mlp.residual"]
    assert kernels == ["embed", *(f"layers.0.{name}" for name in layer), "norm", "head"]


def test_attention_is_one_kernel_or_many() -> None:
    for name in NAMES:
        graph = rl.model(name)
        by_kernel: dict[str, int] = {}
        for node in graph.nodes:
            if node.op == "attention_scores":
                by_kernel[node.label] = by_kernel.get(node.label, 0) + 1
        assert set(by_kernel.values()) <= {1}, name
    naive = rl.model("gpt2", attention="naive")
    assert not any(node.kernel for node in naive.nodes)


def test_caches_outlive_the_run() -> None:
    for phase in ("prefill", "decode"):
        graph = rl.model("llama-3-8b", phase)
        assert len(graph.outputs) == 1 + 2 * 32


# --- lookup ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "stem"),
    [*((name, "llama-3-8b") for name in (
        "llama-3-8b", "LLAMA 3 8B", "llama_3_8b", "llama3-8b", "meta-llama/Meta-Llama-3-8B")),
     ("Llama-3.1-8B", "llama-3.1-8b")],
)  # fmt: skip
def test_names_in_any_spelling(name: str, stem: str) -> None:
    assert find_model(name).stem == stem


@pytest.mark.parametrize("name", ["vit_b_16", "mobilenet_v2", "convnext_tiny", "resnet-50", "google/gemma-2-9b"])
def test_names_of_other_libraries(name: str) -> None:
    assert rl.model(name).parameters > 0


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("lama-3-8b", "did you mean llama-3-8b"),
        ("llama-3-9b", "llama-3-8b"),
        ("", "not known"),
        ("resnet5", "resnet50"),
        ("no/such/file.toml", "no model"),
        ("no/such", "no model"),
        ("a\x00b", "not known"),
        ("x" * 5000, "not known"),
    ],
)
def test_unknown_names_list_the_near_ones(name: str, says: str) -> None:
    with pytest.raises(rl.errors.UnknownModel, match=says) as caught:
        rl.model(name)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_several_matches_pick_none() -> None:
    with pytest.raises(rl.errors.UnknownModel, match="matches several"):
        rl.model("llama-2")


def test_lookup_by_stem_parses_one_file(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original: Callable[[str], Any] = tomllib.loads
    monkeypatch.setattr(tomllib, "loads", lambda text: (read.append(text), original(text))[1])
    load = find_model("opt-1.3b")
    assert load.stem == "opt-1.3b"
    assert not read


def test_folders_of_the_user_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (data_dir("models") / "gpt2.toml").read_text()
    (tmp_path / "gpt2.toml").write_text(text.replace("layers = 12", "layers = 2"))
    (tmp_path / "models").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.toml").write_text(text.replace('"gpt2"', '"mine"').replace("openai-community/", ""))
    (tmp_path / "other" / "broken.toml").write_text("family = ")
    (tmp_path / "other" / "chip.toml").write_text('name = "chip"')
    monkeypatch.setenv("ROOFLINE_PATH", str(tmp_path / "other"))
    assert "mine" in rl.models()
    assert "chip" not in rl.models()
    assert rl.model("mine").parameters == 124_439_808
    assert rl.model("meta-llama/Llama-2-7b").parameters == 6_738_415_616


# --- arguments ------------------------------------------------------------------------------------------------------


def test_overrides_replace_sizes() -> None:
    assert rl.model("llama-3-8b", layers=8).info.layers == 8
    assert flops(rl.model("resnet50", image=288), B=1) > 1.6 * flops(rl.model("resnet50"), B=1)


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ({"layer": 3}, "unknown size or option 'layer'.*did you mean layers"),
        ({"layers": 0}, "layers"),
        ({"layers": -1}, "layers"),
        ({"layers": 10**9}, "layers"),
        ({"layers": 2.5}, "layers"),
        ({"layers": True}, "layers"),
        ({"layers": "four"}, "four"),
        ({"kv_heads": 7}, "multiple"),
        ({"norm": "batchnorm"}, "norm"),
        ({"experts": 4}, "top_k"),
        ({"mla": True}, "kv_lora"),
        ({"B": 4}, "symbol"),
    ],
)
def test_bad_overrides(override: dict[str, Any], says: str) -> None:
    with pytest.raises((rl.errors.UsageError, ValueError), match=says) as caught:
        rl.model("llama-3-8b", **override)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("name", "phase"), [("bert-base-uncased", "decode"), ("resnet50", "prefill"), ("gpt2", "x")])
def test_phases_that_a_model_has_not(name: str, phase: str) -> None:
    with pytest.raises(rl.errors.UsageError, match="allowed: forward"):
        rl.model(name, phase)


def test_defaults_and_items() -> None:
    assert rl.model("llama-3-8b").info.phase == "prefill"
    assert rl.model("resnet50").info.phase == "forward"
    graph = rl.model("llama-3-8b", "decode")
    assert (str(graph.items), graph.item) == ("B", "token")
    graph = rl.model("llama-3-8b")
    assert (str(graph.items), graph.item) == ("B*S", "token")
    graph = rl.model("resnet50")
    assert (str(graph.items), graph.item) == ("B", "image")


def test_number_formats() -> None:
    """A requested format replaces the file's, whatever that was (A19)."""
    graph = rl.model("llama-3-70b", dtype="fp16")
    held = [tensor for tensor in graph.tensors.values() if tensor.kind == "weight"]
    assert sum(tensor.numel * rl.ops.dtype(tensor.dtype).bytes for tensor in held) == 2 * 70_553_706_496
    graph = rl.model("llama-3-8b", "decode", cache="fp8")
    assert cache_bytes(graph, B=1, C=1) == 65_536
    assert graph.tensors["head.weight"].dtype == "bf16"
    assert rl.model("deepseek-v3", dtype="bf16").tensors["layers.0.attn.q_a.weight"].dtype == "bf16"


# Positions: rows of a learned table, of which OPT and RoBERTa keep two for padding (transformers,
# OPTLearnedPositionalEmbedding and RobertaEmbeddings.padding_idx), or max_position_embeddings of the published config.
@pytest.mark.parametrize(
    ("name", "most", "hard"),
    [("gpt2", 1024, True), ("bert-base-uncased", 512, True), ("roberta-base", 512, True), ("opt-125m", 2048, True),
     ("llama-3-8b", 8192, False), ("llama-3.1-8b", 131_072, False), ("deepseek-v3", 163_840, False),
     ("Qwen/Qwen2.5-1.5B", 131_072, False), ("Qwen/Qwen2.5-1.5B-Instruct", 32_768, False)],
)  # fmt: skip
def test_positions_that_a_model_is_made_for(name: str, most: int, hard: bool) -> None:
    positions = rl.model(name).info.positions
    assert positions is not None
    assert (positions.most, positions.hard) == (most, hard)


def test_images_have_no_positions() -> None:
    assert rl.model("vit-b-16").info.positions is None
