"""How long `rl.from_torch` takes: a 28-layer language model, DenseNet-121, and its first use in a process.

python benchmarks/capture_speed.py

The baseline, in the same run, is the module itself, run eagerly on the meta device: every call of PyTorch's without
data and without a recorder. Times are of the process, the least of several, which other processes disturb little.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

RUNS = 5
#: In a new interpreter: what the first capture needs beyond the import of PyTorch.
FIRST = """
import time
import torch
layer, x = torch.nn.Linear(8, 8), torch.zeros(2, 8)
start = time.process_time()
import roofline as rl
rl.from_torch(layer, x)
print(time.process_time() - start)
"""


def least(run: Callable[[], Any]) -> float:
    """Process time of the fastest of some runs [s]."""
    times = []
    for _ in range(RUNS):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return min(times)


def language_model() -> tuple[Any, Any]:
    """Qwen2-7B, 28 layers, and 128 tokens (its config.json: https://huggingface.co/Qwen/Qwen2-7B)."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4,
        vocab_size=152064,
    )  # fmt: skip
    with torch.device("meta"):
        return Qwen2ForCausalLM(config).eval(), torch.zeros(1, 128, dtype=torch.long, device="meta")


def densenet() -> tuple[Any, Any]:
    """DenseNet-121 (Huang et al., arXiv 1608.06993, table 1) as torchvision writes it, and eight images."""
    import torch
    from torch import nn

    class Layer(nn.Module):  # type: ignore[misc]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.norm1, self.conv1 = nn.BatchNorm2d(width), nn.Conv2d(width, 128, 1, bias=False)
            self.norm2, self.conv2 = nn.BatchNorm2d(128), nn.Conv2d(128, 32, 3, padding=1, bias=False)

        def forward(self, features: list[Any]) -> Any:
            inner = self.conv1(torch.relu(self.norm1(torch.cat(features, 1))))
            return self.conv2(torch.relu(self.norm2(inner)))

    class Block(nn.ModuleList):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            features = [x]
            for layer in self:
                features.append(layer(features))
            return torch.cat(features, 1)

    parts: list[Any] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    width = 64
    for at, depth in enumerate((6, 12, 24, 16)):
        parts.append(Block(Layer(width + 32 * layer) for layer in range(depth)))
        width += 32 * depth
        parts += [nn.BatchNorm2d(width), nn.ReLU()]
        if at < 3:
            parts += [nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2, 2)]
            width //= 2
    parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 1000)]
    return nn.Sequential(*parts).to("meta").eval(), torch.zeros(8, 3, 224, 224, device="meta")


def main() -> None:
    """Print each capture and its ratio to the module run eagerly on the meta device."""
    import torch

    import roofline as rl

    first = min(
        float(subprocess.run([sys.executable, "-c", FIRST], check=True, capture_output=True, text=True).stdout)
        for _ in range(RUNS)
    )
    print(f"first use of from_torch beyond the import of PyTorch: {first:.2f} s")
    for name, made in (("Qwen2-7B, 28 layers", language_model()), ("DenseNet-121", densenet())):
        module, x = made
        with torch.no_grad():
            eager = least(lambda module=module, x=x: module(x))  # type: ignore[misc]
        start = time.process_time()
        graph = rl.from_torch(module, x)
        cold = time.process_time() - start
        ours = least(lambda module=module, x=x: rl.from_torch(module, x))  # type: ignore[misc]
        print(f"{name}: {ours:.2f} s ({cold:.2f} the first time), {len(graph.nodes):,} operators; "
              f"eager on the meta device {eager:.2f} s, ours takes {ours / eager:.1f} times that")  # fmt: skip


if __name__ == "__main__":
    main()
