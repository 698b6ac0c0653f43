"""rl.measure on whole PyTorch programs on an NVIDIA GPU: does one line say whether the runtime makes sense?

    python benchmarks/silicon/measure_programs.py OUT.csv

The programs are those of tests/torch_programs.py and two of the transformers library, forwards and backwards, eager,
as a CUDA graph and compiled. Prints the verdict of each and writes one row a program.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from torch_programs import Block, Classifier, Llama, ResNet50

import roofline as rl

BF16 = torch.bfloat16


def programs() -> Iterator[tuple[str, Any, tuple[Any, ...], dict[str, Any]]]:
    """Name, program, arguments and options of :func:`roofline.measure`; made when they are asked for."""
    for batch in (8, 128):
        net = ResNet50().eval().cuda().to(BF16, memory_format=torch.channels_last)
        x = torch.randn(batch, 3, 224, 224, device="cuda", dtype=BF16).to(memory_format=torch.channels_last)
        yield f"resnet50 bf16 channels-last b{batch}", net, (x,), {}
        yield f"resnet50 bf16 channels-last b{batch}, graph", net, (x,), {"mode": "graph"}
    yield "resnet50 fp32 b32", ResNet50().eval().cuda(), (torch.randn(32, 3, 224, 224, device="cuda"),), {}
    yield from _llama()
    yield from _library()
    x, w = (torch.randn(8192, 8192, device="cuda", dtype=BF16) for _ in range(2))
    yield "matmul 8192 bf16", torch.matmul, (x, w), {}
    q = torch.randn(8, 16, 2048, 64, device="cuda", dtype=BF16)
    yield "attention b8 h16 s2048 d64 causal", F.scaled_dot_product_attention, (q, q, q), {"is_causal": True}
    yield "attention written out", _written_out, (q, q, q), {}
    lstm = Classifier(512, 512).eval().cuda()
    yield "lstm 2x512 b64 s128", lstm, (torch.randn(64, 128, 512, device="cuda"),), {}


def _llama() -> Iterator[tuple[str, Any, tuple[Any, ...], dict[str, Any]]]:
    turns = [torch.randn(2048, 128, device="cuda", dtype=BF16) for _ in "cs"]
    with torch.device("cuda"):
        net = Llama(layers=8).to(BF16)
    ids = torch.zeros(1, 2048, dtype=torch.int64, device="cuda")
    yield "llama 8 layers 1x2048", net, (ids, *turns), {}
    yield "llama 8 layers 1x2048, graph", net, (ids, *turns), {"mode": "graph"}
    yield "llama 8 layers 1x2048, compiled", torch.compile(net), (ids, *turns), {}
    with torch.device("cuda"):
        block = Block(4096, 32, 8, 14336).to(BF16)
    x = torch.randn(2, 2048, 4096, device="cuda", dtype=BF16)
    yield "llama block 2x2048, backward", block, (x, *turns), {"backward": True}


def _library() -> Iterator[tuple[str, Any, tuple[Any, ...], dict[str, Any]]]:
    try:
        from transformers import BertConfig, BertModel, GPT2Config, GPT2LMHeadModel
    except ImportError:
        return
    ids = torch.zeros(32, 512, dtype=torch.int64, device="cuda")
    for attention in ("sdpa", "eager"):
        bert = BertModel(BertConfig(attn_implementation=attention)).eval().cuda().to(BF16)
        yield f"bert base {attention} 32x512 bf16", bert, (ids,), {}
        gpt2 = GPT2LMHeadModel(GPT2Config(attn_implementation=attention)).eval().cuda().to(BF16)
        yield f"gpt2 {attention} 8x1024 bf16", gpt2, (ids.view(16, 1024)[:8],), {"use_cache": False}


def _written_out(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = q @ k.transpose(-1, -2) * 0.125
    return scores.softmax(-1) @ v


def main(path: str) -> None:
    """Measure all programs."""
    rows = []
    for name, program, args, options in programs():
        try:
            found = rl.measure(program, *args, **options)
        except Exception as error:
            print(f"{name}: FAILED {type(error).__name__}: {str(error)[:300]}", flush=True)
            continue
        print(f"{name}: {found}", flush=True)
        times = (found.seconds, found.low, found.high)
        counts = rl.count(found.graph)
        rows.append([name, found.estimate.mode, *(f"{each * 1e6:.1f}" for each in times), found.runs, counts.flops,
                     counts.bytes])  # fmt: skip
        torch.cuda.empty_cache()
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["program", "mode", "measured_us", "low_us", "high_us", "runs", "flops", "bytes"])
        writer.writerows(rows)


if __name__ == "__main__":
    main(sys.argv[1])
