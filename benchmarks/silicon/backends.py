"""Set torch.compile backends beside their predictions on the device at hand.

    python benchmarks/silicon/backends.py OUT

A feed-forward block, a transformer encoder layer and a convolutional stage; writes OUT/backends.json, a record each.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import roofline as rl

BACKENDS = ("eager", "inductor", "cudagraphs", "aot_eager")


def cases() -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
    """Name, module and input."""
    feed = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024))
    yield "feed-forward", feed, torch.randn(4096, 1024)
    yield "encoder layer", nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True), torch.randn(16, 512, 1024)
    blocks = (nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()) for _ in range(4))
    yield "convolutions", nn.Sequential(*blocks), torch.randn(32, 64, 56, 56)


def main() -> None:
    found = []
    for name, module, x in cases():
        module, x = module.to("cuda", torch.bfloat16).eval(), x.to("cuda", torch.bfloat16)
        with torch.no_grad():
            compared = rl.measurement.compare_backends(module, x, backends=BACKENDS, budget=2.0)
        print(name, compared, sep="\n", flush=True)
        found.append({"case": name, **compared.record()})
    Path(sys.argv[1], "backends.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
