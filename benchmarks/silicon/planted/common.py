"""Register programs with a known cause of slowness; and the parts that several sets make them of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Run = Callable[[], object]
BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@dataclass(frozen=True)
class Planted:
    """A program: its label, what it is meant to compute, and how to make one iteration."""

    name: str
    label: str
    work: list[dict[str, Any]]
    dtype: str
    make: Callable[[], Run]


PROGRAMS: dict[str, Planted] = {}


def planted(label: str, dtype: str = "bf16", work: list[dict[str, Any]] | None = None, **entry: Any) -> Any:
    """Register a program; ``entry`` is its work where that is one operator or model."""

    def register(make: Callable[[], Run]) -> Callable[[], Run]:
        name = make.__name__
        PROGRAMS[name] = Planted(name, label, work or [entry], dtype, make)
        return make

    return register


def rand(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Random numbers on the device."""
    return torch.randn(*shape, device="cuda", dtype=dtype)


def gemm(m: int, n: int, k: int, **more: Any) -> dict[str, Any]:
    """An entry of work."""
    return {"op": "gemm", "m": m, "n": n, "k": k, **more}


def attention(batch: int, heads: int, kv_heads: int, q_len: int, kv_len: int, head_dim: int, causal: bool) -> Any:
    """An entry of work."""
    shape = {"batch": batch, "heads": heads, "kv_heads": kv_heads, "q_len": q_len, "kv_len": kv_len}
    return {"op": "attention", **shape, "head_dim": head_dim, "causal": causal}


def no_grad(run: Run) -> Run:
    def quiet() -> object:
        with torch.no_grad():
            return run()

    return quiet


def resnet_net(dtype: torch.dtype) -> Any:
    import torchvision

    return torchvision.models.resnet50().cuda().to(dtype, memory_format=torch.channels_last).eval()


def resnet(batch: int, dtype: torch.dtype) -> Run:
    net = resnet_net(dtype)
    x = rand(batch, 3, 224, 224, dtype=dtype).to(memory_format=torch.channels_last)
    return no_grad(lambda: net(x))


def bert(batch: int, seq: int, dtype: torch.dtype) -> Run:
    from transformers import BertConfig, BertModel

    net = BertModel(BertConfig()).eval().cuda().to(dtype)
    ids = torch.zeros(batch, seq, dtype=torch.int64, device="cuda")
    return no_grad(lambda: net(ids))


def gpt2(batch: int, seq: int) -> Run:
    from transformers import GPT2Config, GPT2LMHeadModel

    net = GPT2LMHeadModel(GPT2Config()).eval().cuda().to(BF16)
    ids = torch.zeros(batch, seq, dtype=torch.int64, device="cuda")
    return no_grad(lambda: net(ids, use_cache=False))
