"""Carry plans out on PyTorch modules: what each step gains as measured, beside what was predicted.

    python benchmarks/optimize_device.py [--chip h100-sxm] [--budget 1]

Runs on CUDA where there is one, where the chip is looked up by the device's name; else on the CPU, small and for a chip
that is given. The modules: an MLP of odd widths, a convnet in channels first, a block of a decoder, all in fp32.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import torch
from torch import nn

import roofline as rl


class Block(nn.Module):
    """A block of a decoder: attention and a gated MLP, with norms before them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.gate, self.down = (
            nn.Linear(width, 4 * width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (each.view(batch, length, self.heads, -1).transpose(1, 2)
                   for each in self.qkv(self.norms[0](x)).chunk(3, -1))  # fmt: skip
        heads = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(heads.transpose(1, 2).reshape(batch, length, width))
        y = self.norms[1](x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def mlp(scale: int) -> nn.Module:
    widths = [1023 // scale, 4099 // scale, 2047 // scale, 1001 // scale]
    layers = [each for a, b in pairwise(widths) for each in (nn.Linear(a, b), nn.GELU())]
    return nn.Sequential(*layers[:-1])


def convnet(scale: int) -> nn.Module:
    widths = [3, 64 // scale, 128 // scale, 256 // scale]
    layers = [each for a, b in pairwise(widths)
              for each in (nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())]  # fmt: skip
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 1000 // scale))


def cases(scale: int) -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    return {
        "mlp": (mlp(scale), (512 // scale, 1023 // scale)),
        "convnet": (convnet(scale), (64 // scale, 3, 224 // scale, 224 // scale)),
        "block": (Block(2048 // scale, 16), (8, 1024 // scale, 2048 // scale)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chip")
    parser.add_argument("--budget", type=float, default=1.0)
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    device, scale = ("cuda", 1) if cuda else ("cpu", 8)
    chip = options.chip or (torch.cuda.get_device_name() if cuda else "epyc-9654")
    torch.manual_seed(0)
    for name, (module, shape) in cases(scale).items():
        module, x = module.to(device).eval(), torch.randn(shape, device=device)
        program = rl.from_torch(module, x)
        for mode, without in (("as found", ()), ("from the host", ("run",))):
            best = rl.optimize(program, chip, error_budget="1%", without=without)
            run = best.measured(module, x, budget=options.budget)
            print(f"\n{name}, {mode}: {run.gain:.2f}x measured, {run.predicted_gain:.2f}x predicted; checked: "
                  f"{best.validation.agrees}")  # fmt: skip
            print(run)
            for row in run.records():
                keys = [key for key in ("noise", "measured_low_s", "measured_high_s") if row[key] is not None]
                print("   ", row["step"], *(f"{key}={row[key]:.3g}" for key in keys), row["reason"])


if __name__ == "__main__":
    main()
