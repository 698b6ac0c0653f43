"""Programs in plain PyTorch that tests capture: what a user would write, without any model library."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    """Grouped attention of Llama with one projection for q, k and v."""

    def __init__(self, hidden: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.width = heads, kv_heads, hidden // heads
        self.qkv = nn.Linear(hidden, (heads + 2 * kv_heads) * self.width, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        sizes = [self.heads * self.width, self.kv_heads * self.width, self.kv_heads * self.width]
        q, k, v = (part.view(batch, length, -1, self.width).transpose(1, 2) for part in self.qkv(x).split(sizes, -1))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding, ``x * cos + cat(-x2, x1) * sin``."""
    first, second = x.chunk(2, -1)
    straight = x * cos
    return straight + torch.cat((-second, first), -1) * sin


class SwiGLU(nn.Module):
    """Feed-forward block with gate and up in one projection."""

    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(hidden, 2 * inner, bias=False)
        self.down = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(functional.silu(gate) * up)


class Block(nn.Module):
    """One layer of Llama."""

    def __init__(self, hidden: int, heads: int, kv_heads: int, inner: int) -> None:
        super().__init__()
        self.attn_norm, self.attn = nn.RMSNorm(hidden), Attention(hidden, heads, kv_heads)
        self.mlp_norm, self.mlp = nn.RMSNorm(hidden), SwiGLU(hidden, inner)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attn(self.attn_norm(x), cos, sin)
        return x + self.mlp(self.mlp_norm(x))


class Llama(nn.Module):
    """Llama 3 in its plainest form; the sizes of the 8B model by default."""

    def __init__(
        self, hidden: int = 4096, layers: int = 32, heads: int = 32, kv_heads: int = 8, inner: int = 14336,
        vocab: int = 128256,
    ) -> None:  # fmt: skip
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden)
        self.layers = nn.ModuleList(Block(hidden, heads, kv_heads, inner) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(hidden), nn.Linear(hidden, vocab, bias=False)

    def forward(self, ids: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))


def bottleneck(wide: int, inner: int, out: int, stride: int) -> nn.Module:
    """The three convolutions of a residual block of ResNet-50."""
    return nn.Sequential(
        nn.Conv2d(wide, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
        nn.Conv2d(inner, inner, 3, stride, 1, bias=False), nn.BatchNorm2d(inner), nn.ReLU(inplace=True),
        nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out),
    )  # fmt: skip


class Residual(nn.Module):
    """A block with its shortcut."""

    def __init__(self, wide: int, inner: int, stride: int) -> None:
        super().__init__()
        out = 4 * inner
        self.body = bottleneck(wide, inner, out, stride)
        same = stride == 1 and wide == out
        self.short = (
            nn.Identity() if same else nn.Sequential(nn.Conv2d(wide, out, 1, stride, bias=False), nn.BatchNorm2d(out))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.body(x) + self.short(x), inplace=True)


class ResNet50(nn.Module):
    """ResNet-50 with the stride in the 3x3 convolution, as torchvision has it (25,557,032 parameters)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
        )
        blocks, wide = [], 64
        for inner, depth, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for at in range(depth):
                blocks.append(Residual(wide, inner, stride if at == 0 else 1))
                wide = 4 * inner
        self.blocks, self.pool, self.head = nn.Sequential(*blocks), nn.AdaptiveAvgPool2d(1), nn.Linear(wide, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.blocks(self.stem(x))).flatten(1))


class ConvNet(nn.Module):
    """Grouped, strided, dilated, depthwise and transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
            nn.Conv2d(32, 64, 3, padding=2, dilation=2, groups=4), nn.MaxPool2d(2),
            nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.Conv2d(64, 32, 1),
            nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)

    #: Multiply-adds of an image of 64 x 64 by layer, worked out from the sizes.
    PRODUCTS = (
        32 * 32 * 32 * 3 * 9, 64 * 32 * 32 * 8 * 9, 64 * 16 * 16 * 9,
        32 * 16 * 16 * 64, 32 * 16 * 16 * 16 * 16, 16 * 10,
    )  # fmt: skip


class Experts(nn.Module):
    """A mixture of experts as it is first written: a loop over experts, each on the tokens that chose it."""

    def __init__(self, hidden: int = 64, inner: int = 96, experts: int = 4, top_k: int = 2) -> None:
        super().__init__()
        self.router = nn.Linear(hidden, experts, bias=False)
        self.experts = nn.ModuleList(SwiGLU(hidden, inner) for _ in range(experts))
        self.top_k = top_k

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        share, chosen = self.router(x).softmax(-1).topk(self.top_k, -1)
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, slot = torch.where(chosen == number)
            if token.numel():
                y.index_add_(0, token, expert(x[token]) * share[token, slot, None])
        return y


class Classifier(nn.Module):
    """An LSTM over a sequence and a linear layer on its last state."""

    def __init__(self, inputs: int = 32, hidden: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, layers, batch_first=True)
        self.head = nn.Linear(hidden, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])
