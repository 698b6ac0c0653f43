"""Programs, the kernels that torch.compile makes of them, and how to count those in the code that it generates."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch.nn import functional

import roofline as rl

WIDTH, HEADS, LENGTH, VOCABULARY = 32, 4, 16, 50


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.down(functional.gelu(self.up(x)))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.LayerNorm(WIDTH), Mlp()

    def forward(self, x: Any) -> Any:
        return x + self.mlp(self.norm(x))


class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: Any) -> Any:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = RmsNorm()
        self.gate, self.up = nn.Linear(WIDTH, 64, bias=False), nn.Linear(WIDTH, 64, bias=False)
        self.down = nn.Linear(64, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        h = self.norm(x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.conv2, self.norm2 = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        x = functional.max_pool2d(functional.relu(self.norm(self.conv(x))), 2)
        x = functional.relu(self.norm2(self.conv2(x)))
        return self.head(functional.adaptive_avg_pool2d(x, 1).flatten(1))


class BasicBlock(nn.Module):
    def __init__(self, given: int, made: int, stride: int) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(given, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made)
        self.conv2, self.norm2 = nn.Conv2d(made, made, 3, 1, 1, bias=False), nn.BatchNorm2d(made)
        side = [nn.Conv2d(given, made, 1, stride, bias=False), nn.BatchNorm2d(made)] if stride > 1 else []
        self.side = nn.Sequential(*side)

    def forward(self, x: Any) -> Any:
        return functional.relu(self.norm2(self.conv2(functional.relu(self.norm(self.conv(x))))) + self.side(x))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(BasicBlock(16, 16, 1), BasicBlock(16, 32, 2), BasicBlock(32, 32, 1))
        self.head = nn.Linear(32, 9)

    def forward(self, x: Any) -> Any:
        x = functional.max_pool2d(functional.relu(self.norm(self.conv(x))), 3, 2, 1)
        return self.head(functional.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1))


def split_heads(x: Any, heads: int) -> Any:
    return x.view(1, LENGTH, heads, WIDTH // HEADS).transpose(1, 2)


def join_heads(x: Any) -> Any:
    return x.transpose(1, 2).reshape(1, LENGTH, -1)


def turned(x: Any) -> Any:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


class PreNorm(nn.Module):
    """A layer of GPT-2."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm2, self.mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), Mlp()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def attention(self, x: Any) -> Any:
        q, k, v = (split_heads(part, HEADS) for part in self.qkv(x).split(WIDTH, -1))
        return self.out(join_heads(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.norm(x))
        return x + self.mlp(self.norm2(x))


class PostNorm(PreNorm):
    """A layer of BERT."""

    def forward(self, x: Any) -> Any:
        x = self.norm(x + self.attention(x))
        return self.norm2(x + self.mlp(x))


class Positions(nn.Module):
    """A language model with learned positions."""

    def __init__(self, layer: Callable[[], nn.Module], layers: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(layer() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids) + self.positions(torch.arange(LENGTH, device=ids.device))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Rotary(nn.Module):
    """A layer of Llama with two key-value heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = RmsNorm(), Gated()
        self.q, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.k, self.v = nn.Linear(WIDTH, 16, bias=False), nn.Linear(WIDTH, 16, bias=False)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        h = self.norm(x)
        q, k, v = split_heads(self.q(h), HEADS), split_heads(self.k(h), 2), split_heads(self.v(h), 2)
        q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.mlp(x + self.out(join_heads(out)))


class Llama(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(Rotary() for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.tokens(ids)
        angles = torch.arange(LENGTH, device=x.device)[:, None] * torch.arange(1, 5, device=x.device) * 0.1
        angles = torch.cat((angles, angles), -1)
        for layer in self.layers:
            x = layer(x, angles.cos().to(x.dtype), angles.sin().to(x.dtype))
        return self.head(self.norm(x))


def chain(x: Any, y: Any) -> Any:
    return torch.relu(torch.tanh(x * 2 + y) - x)


def attention(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2) * 0.25, -1) @ v


def masked_attention(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2) / 4 + mask, -1) @ v


def unscaled_attention(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(-1, -2), -1) @ v


def rotary(q: Any, k: Any, v: Any, cos: Any, sin: Any) -> Any:
    q, k = q * cos + turned(q) * sin, k * cos + turned(k) * sin
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def branches(x: Any, w: Any) -> Any:
    h = torch.sigmoid(x) * x
    a = h @ w
    return (torch.relu(h) + a).sum(-1), torch.tanh(a) * h


def standardised(x: Any) -> Any:
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True)


def rows_and_columns(x: Any, w: Any) -> Any:
    y = x @ w
    return y.relu(), y.sum(0), y.sum(-1), (y * 2).t().contiguous()


def put(x: Any, at: Any) -> Any:
    y = x.clone()
    y[at] = x[:3].relu()
    return y + 1


@dataclass(frozen=True)
class Case:
    """A program and its kernels, fused ones and calls of libraries.

    Attributes:
        name: What it is called.
        build: Makes the program and its arguments.
        gpu: Kernels counted on an H100 by PyTorch 2.11; Llama in bf16, for which it has grouped attention.
        cpu: Kernels on a processor where they differ, PyTorch 2.13.
        why: The reason for the difference.
        slow: Compiled by the benchmark only.
    """

    name: str
    build: Callable[[], tuple[Any, ...]]
    gpu: tuple[int, int]
    cpu: tuple[int, int] | None = None
    why: str = ""
    slow: bool = False


def _r(*shape: int) -> Any:
    return torch.randn(*shape)


def _image(module: nn.Module, size: int) -> tuple[Any, ...]:
    """Channels last, or the first convolution turns its operands in kernels of their own."""
    turn = {"memory_format": torch.channels_last}
    return module.eval().to(**turn), _r(2, 3, size, size).to(**turn)  # type: ignore[call-overload]


def _ids() -> Any:
    return torch.randint(0, VOCABULARY, (1, LENGTH))


def _qkv(*more: Any, length: int = 8) -> tuple[Any, ...]:
    return (*(_r(2, HEADS, length, 8) for _ in range(3)), *more)


#: codegen/cpp.py, _why_fuse_nodes: (512,) is not (16, 32).
_AXES = "a processor's code compares loops axis by axis, and a pointwise loop has merged its axes into one"
#: codegen/cpp.py, _get_outer_loop_fusion_depth: at least one common axis.
_SCALAR = "a processor's code fuses nothing behind a reduction to one number"

CASES = (
    Case("pointwise chain", lambda: (chain, _r(8, 64), _r(8, 64)), (1, 0)),
    Case("MLP", lambda: (Mlp(), _r(2, 8, WIDTH)), (1, 2)),
    Case("norm, MLP, residual", lambda: (Residual(), _r(2, 8, WIDTH)), (3, 2)),
    Case("attention in steps", lambda: (attention, *_qkv()), (0, 1)),
    Case("RMS norm, SwiGLU", lambda: (Gated(), _r(2, 8, WIDTH)), (3, 3)),
    Case("convnet", lambda: _image(ConvNet(), 16), (3, 3), (4, 3), _AXES),
    Case("rotary, attention", lambda: (rotary, *_qkv(_r(8, 8), _r(8, 8))), (1, 1)),
    Case("branches", lambda: (branches, _r(16, WIDTH), _r(WIDTH, WIDTH)), (2, 1), (3, 1), _AXES),
    Case("(x - mean) / std", lambda: (standardised, _r(16, WIDTH)), (1, 0)),
    Case("cross-entropy", lambda: (functional.cross_entropy, _r(16, 50), torch.arange(16)), (2, 0), (3, 0), _SCALAR),
    Case("product and sum", lambda: (lambda x, w: x.relu().exp() @ w + x.relu(), _r(16, 32), _r(32, 32)), (1, 1)),
    Case("top-k", lambda: (lambda x: x.relu().topk(3)[0].exp(), _r(16, 32)), (2, 1)),
    Case("in-place rows", lambda: (put, _r(16, 32), torch.arange(3)), (3, 0), slow=True),
    Case("masked attention in steps", lambda: (masked_attention, *_qkv(_r(64, 64), length=64)), (0, 1), slow=True),
    Case("attention without scale", lambda: (unscaled_attention, *_qkv(length=64)), (1, 2), slow=True),
    Case("softmax of a part", lambda: (lambda x: x.softmax(-1)[:, :4].exp(), _r(16, 32)), (2, 0), slow=True),
    Case("rows and columns", lambda: (rows_and_columns, _r(64, 64), _r(64, 64)), (2, 1), (4, 1), _AXES, slow=True),
    Case("join", lambda: (lambda x: torch.cat([x.relu(), x.exp()], -1), _r(16, 32)), (1, 0), slow=True),
    Case("GPT-2, 3 layers", lambda: (Positions(PreNorm, 3), _ids()), (10, 16), (11, 16), _AXES, slow=True),
    Case("GPT-2, 8 layers", lambda: (Positions(PreNorm, 8), _ids()), (25, 41), (28, 41), _AXES, slow=True),
    Case("BERT, 3 layers", lambda: (Positions(PostNorm, 3), _ids()), (10, 16), slow=True),
    Case("Llama, 3 layers", lambda: (Llama(3), _ids()), (16, 25), slow=True),
    Case("Llama, 8 layers", lambda: (Llama(8), _ids()), (41, 65), (44, 65), _AXES, slow=True),
    Case("ResNet, 3 blocks", lambda: _image(ResNet(), 32), (8, 9), (9, 9), _AXES, slow=True),
)

#: Where inductor decides by device, what it takes for a GPU.
AS_ON_A_GPU = {
    "force_pointwise_cat": True,  # joins are pointwise; a processor copies each part on its own
    "layout_optimization": False,  # a processor turns every image channels-last first
    "realize_acc_reads_threshold": 8,
    "realize_opcount_threshold": 30,
}

_CALL = re.compile(r"(cpp_fused\w*|triton_\w+\.run|extern_kernels\.\w+|torch\.ops\.[\w.]+)\(")


@contextmanager
def uncompiled() -> Iterator[None]:
    """Let generated code stand as it is: its kernels do nothing, so that no compiler of C++ runs."""
    from torch._inductor import async_compile, config

    settings = {"compile_threads": 1, "cpp.vec_isa_ok": True}
    nothing: Any = lambda *code, **how: lambda *args: None  # noqa: E731
    with config.patch(settings), mock.patch.object(async_compile.AsyncCompile, "cpp_pybinding", nothing):
        yield


@contextmanager
def one_function_a_kernel() -> Iterator[None]:
    """A processor's code has neighbouring kernels in one function; limit a function to one of them."""
    from torch._inductor.codegen.cpp import CppScheduling

    before = CppScheduling.MAX_FUSED_KERNEL_ARGS_NUM
    CppScheduling.MAX_FUSED_KERNEL_ARGS_NUM = 0
    try:
        yield
    finally:
        CppScheduling.MAX_FUSED_KERNEL_ARGS_NUM = before


def generated(program: Any, *args: Any, options: Any = None) -> tuple[int, int]:
    """Compile a program and count the calls in what was generated: of fused kernels, and of libraries."""
    from torch._inductor.utils import run_and_get_code

    torch._dynamo.reset()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's own while it compiles
        _, texts = run_and_get_code(torch.compile(program, options=options), *args)
    calls = [call for text in texts for call in _CALL.findall(_entry(text))]
    fused = sum(call.startswith(("cpp_fused", "triton")) for call in calls)
    return fused, len(calls) - fused


def _entry(text: str) -> str:
    """The function that runs the kernels, without the code that loads and times them."""
    return re.split(r"\ndef benchmark|\nrunner =", text[text.index("def call(") :])[0]


def ours(program: Any, *args: Any) -> tuple[int, int]:
    """The same of the graph."""
    graph = rl.from_torch(program, *args, mode="compiled")
    kernels: dict[str, set[str]] = {}
    for node in graph.nodes:
        if rl.ops.OPS[node.op].kind != "view":
            kernels.setdefault(node.label, set()).add(rl.ops.OPS[node.op].kind if node.op != "topk" else "library")
    assert len(kernels) == graph.info.kernels
    libraries = sum(not kinds.isdisjoint(("matmul", "conv", "attention", "library")) for kinds in kernels.values())
    return len(kernels) - libraries, libraries
