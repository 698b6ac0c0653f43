"""The same models from every source: true FLOPs and parameters beside ours, as a Markdown table.

    python benchmarks/import_table.py

True FLOPs are worked out by hand from the sizes, two a multiply-add, at B = 8 and S = 128 (Llama: B = 2, S = 2048, with
the pairs that its causal mask leaves). Needs torch, transformers, onnx, onnxscript and jax; nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
warnings.simplefilter("ignore")

import torch  # noqa: E402
import transformers  # noqa: E402
from torch_programs import Classifier, ConvNet, Experts, Llama, ResNet50  # noqa: E402

import roofline as rl  # noqa: E402

IDS, TEXT = torch.zeros(8, 128, dtype=torch.int64), {"B": 0, "S": 1}
IMAGES = torch.zeros(8, 3, 224, 224)
SIZES = {"B": 8, "S": 128}


def stack(layers: int, weights: int, width: int, tokens: int, pairs: int) -> int:
    """Products of a transformer's layers: their matrices on every token, scores and values on every pair."""
    return layers * (2 * tokens * weights + 4 * pairs * width)


BERT = stack(12, 12 * 768**2, 768, 1024, 8 * 128**2) + 2 * 8 * 768**2
GPT2 = stack(12, 12 * 768**2, 768, 1024, 8 * 128**2) + 2 * 1024 * 768 * 50257
LLAMA = (
    stack(32, 2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14336, 4096, 4096, 2 * 2048 * 2049 // 2)
    + 2 * 4096 * 4096 * 128256
)  # fmt: skip
VIT = stack(12, 12 * 768**2, 768, 8 * 197, 8 * 197**2) + 2 * 8 * (196 * 768 * 768 + 768 * 1000)
RESNET = 8 * 2 * 4_089_184_256
CONVNET = 8 * 2 * sum(ConvNet.PRODUCTS)
LSTM = 8 * (2 * 16 * 4 * 64 * ((32 + 64) + (64 + 64)) + 2 * 64 * 10)
EXPERTS = 2 * 40 * (64 * 4 + 2 * 3 * 64 * 96)
JAX_BLOCK = stack(1, 12 * 512**2, 512, 4 * 128, 4 * 128**2)


def empty(make: Callable[[], Any]) -> Any:
    """A module in evaluation mode on the meta device."""
    with torch.device("meta"):
        return make().eval()


def bert(attention: str = "sdpa") -> Any:
    return empty(lambda: transformers.BertModel(transformers.BertConfig(attn_implementation=attention)))


def gpt2(attention: str = "sdpa") -> Any:
    return empty(lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(attn_implementation=attention)))


def vit() -> Any:
    return empty(lambda: transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=1000)))


def text(model: Any, **options: Any) -> rl.Graph:
    return rl.from_torch(model, IDS, dynamic=TEXT, **options)


def image(model: Any, size: int = 224, **options: Any) -> rl.Graph:
    return rl.from_torch(model, IMAGES[..., :size, :size], dynamic={"B": 0}, **options)


def onnx(model: Any, *args: Any) -> rl.Graph:
    """Export to ONNX in memory, with random weights, since exporters join equal ones, and read that."""
    net = model.to_empty(device="cpu") if next(model.parameters()).is_meta else model
    for tensor in (*net.parameters(), *net.buffers()):
        if tensor.is_floating_point():
            torch.nn.init.uniform_(tensor.data, 0.5, 1.0)
    with contextlib.redirect_stdout(io.StringIO()):
        program = torch.onnx.export(net, args, dynamo=True, verbose=False)
    return rl.from_onnx(program.model_proto.SerializeToString())


def plain(make: Callable[[], Any], x: Any) -> rl.Graph:
    return rl.from_torch(make().eval(), x)


def llama() -> rl.Graph:
    net = empty(lambda: Llama().to(torch.bfloat16))
    turns = [torch.empty(64, 128, dtype=torch.bfloat16, device="meta") for _ in "cs"]
    where = {"B": {"ids": 0}, "S": {"ids": 1, "cos": 0, "sin": 0}}
    return rl.from_torch(net, torch.zeros(2, 64, dtype=torch.int64, device="meta"), *turns, dynamic=where)


LLAMA_CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip


def jax_block() -> rl.Graph:
    """A pre-norm encoder block of 512 with 8 heads, written out."""
    import jax
    import jax.numpy as jnp

    def norm(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)

    def block(p: dict[str, Any], x: Any) -> Any:
        q, k, v = (
            part.reshape(*x.shape[:2], 8, 64).transpose(0, 2, 1, 3) for part in jnp.split(norm(x) @ p["qkv"], 3, -1)
        )
        scores = jax.nn.softmax(q @ k.transpose(0, 1, 3, 2) / 8, -1)
        x = x + (scores @ v).transpose(0, 2, 1, 3).reshape(x.shape) @ p["out"]
        return x + jax.nn.gelu(norm(x) @ p["up"]) @ p["down"]

    shapes = {"qkv": (512, 1536), "out": (512, 512), "up": (512, 2048), "down": (2048, 512)}
    params = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}
    return rl.from_jax(block, params, jax.ShapeDtypeStruct((4, 128, 512), "float32"))


CONFIGS = {"bert": {"model_type": "bert", "architectures": ["BertModel"]},
           "gpt2": {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]},
           "vit": {"model_type": "vit", "architectures": ["ViTForImageClassification"],
                   "id2label": {str(n): str(n) for n in range(1000)}}}  # fmt: skip

#: Model, source, true FLOPs, true parameters, how to build it.
ROWS: list[tuple[str, str, int, int, Callable[[], rl.Graph]]] = [
    ("BERT base", "shipped file", BERT, 109_482_240, lambda: rl.model("bert-base-uncased")),
    ("", "config.json", BERT, 109_482_240, lambda: rl.from_config(CONFIGS["bert"])),
    ("", "torch, SDPA", BERT, 109_482_240, lambda: text(bert())),
    ("", "torch, eager attention", BERT, 109_482_240, lambda: text(bert("eager"))),
    ("", "torch.export", BERT, 109_482_240, lambda: text(bert(), method="export")),
    ("", "ONNX", BERT, 109_482_240, lambda: onnx(bert(), IDS)),
    ("GPT-2", "shipped file", GPT2, 124_439_808, lambda: rl.model("gpt2", phase="forward")),
    ("", "config.json", GPT2, 124_439_808, lambda: rl.from_config(CONFIGS["gpt2"], phase="forward")),
    ("", "torch, SDPA", GPT2, 124_439_808, lambda: text(gpt2(), use_cache=False)),
    ("", "torch, eager attention", GPT2, 124_439_808, lambda: text(gpt2("eager"), use_cache=False)),
    ("", "torch.export", GPT2, 124_439_808, lambda: text(gpt2(), use_cache=False, method="export")),
    ("ViT-B/16", "shipped file", VIT, 86_567_656, lambda: rl.model("vit-b-16")),
    ("", "config.json", VIT, 86_567_656, lambda: rl.from_config(CONFIGS["vit"])),
    ("", "torch, SDPA", VIT, 86_567_656, lambda: image(vit())),
    ("ResNet-50", "shipped file", RESNET, 25_557_032, lambda: rl.model("resnet50")),
    ("", "torch", RESNET, 25_557_032, lambda: image(empty(ResNet50))),
    ("", "torch.fx", RESNET, 25_557_032, lambda: image(empty(ResNet50), method="fx")),
    ("", "torch.export", RESNET, 25_557_032, lambda: image(empty(ResNet50), method="export")),
    ("", "ONNX (batch norms folded)", RESNET, 25_557_032 - 26_560, lambda: onnx(ResNet50().eval(), IMAGES)),
    ("ConvNet (grouped, strided, dilated, transposed)", "torch", CONVNET, 16_730,
     lambda: image(ConvNet().eval(), 64)),
    ("", "ONNX (batch norm folded)", CONVNET, 16_730 - 64, lambda: onnx(ConvNet().eval(), IMAGES[..., :64, :64])),
    ("Llama-3-8B, B = 2, S = 2048", "shipped file", LLAMA, 8_030_261_248,
     lambda: rl.model("llama-3-8b", phase="forward")),
    ("", "config.json", LLAMA, 8_030_261_248, lambda: rl.from_config(LLAMA_CONFIG, phase="forward")),
    ("", "torch module", LLAMA, 8_030_261_248, llama),
    ("Experts, 40 tokens to 2 of 4", "torch, data-dependent", EXPERTS, 73_984,
     lambda: plain(Experts, torch.randn(40, 64))),
    ("LSTM, 2 layers", "torch", LSTM, 59_018, lambda: plain(Classifier, torch.zeros(8, 16, 32))),
    ("Encoder block of 512, 4 x 128", "JAX", JAX_BLOCK, 12 * 512**2, jax_block),
]  # fmt: skip


def main() -> None:
    """Print the table."""
    print("| model | source | true FLOPs | ours | parameters | ours |\n|---|---|---|---|---|---|")
    for name, source, flops, parameters, build in ROWS:
        graph = rl.passes.drop_mask(build()) if flops == GPT2 else build()
        given = {"B": 2, "S": 2048} if flops == LLAMA else SIZES
        ours = rl.count(graph, **{size: given[size] for size in graph.symbols}).flops
        marks = ["same" if a == b else f"{b:,}" for a, b in ((flops, ours), (parameters, graph.parameters))]
        print(f"| {name} | {source} | {flops:,} | {marks[0]} | {parameters:,} | {marks[1]} |", flush=True)


if __name__ == "__main__":
    main()
