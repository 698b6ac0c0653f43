"""XLA's own count of JAX programs beside ours, as the Markdown table of docs/import-jax.md.

    python benchmarks/xla_counts.py

The programs are those of tests/test_jax.py. XLA counts what it has compiled for the processor; nothing is run.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import jax
import test_jax as programs
from jax import lax
from test_jax import DECODER, ENCODER, LSTM, NET, B, D, S, f32

MLP = ([f32(64, 256), f32(256, 32)], f32(16, 64))


def _exact(p: Any, x: Any, mask: Any) -> Any:
    return programs.encoder(p, x, mask, approximate=False)


def _again(p: Any, x: Any, mask: Any) -> Any:
    return jax.checkpoint(programs.encoder)(p, x, mask).sum()


def _net_loss(p: Any, x: Any) -> Any:
    return programs.net(p, x).sum()


def _ragged(rows: Any, matrices: Any) -> Any:
    sizes = jax.numpy.array([8, 8, 8, 8], dtype="int32")
    return lax.ragged_dot(rows, matrices, sizes)


#: Name, function, arguments.
ROWS = [
    ("encoder block, 4 x 128 x 512, mask, tanh GELU", programs.encoder, ENCODER),
    ("the same, its loss and gradients", jax.value_and_grad(programs.loss, (0, 1)), ENCODER),
    ("decoder block, grouped heads, rotary, SwiGLU", programs.decoder, (DECODER, f32(B, S, D))),
    ("convnet: strided, pooled, dilated, depthwise, grouped, transposed", programs.net, NET),
    ("two-layer MLP, loss and gradients", jax.value_and_grad(programs.mlp, (0, 1)), MLP),
    ("encoder block, exact GELU", _exact, ENCODER),
    ("encoder block, checkpointed, loss and gradients", jax.value_and_grad(_again, (0, 1)), ENCODER),
    ("convnet, gradients", jax.grad(_net_loss), NET),
    ("LSTM of 20 steps", programs.lstm, LSTM),
    ("3 x 3 on 28 x 28, padded", programs.conv((1, 1), "SAME"), (f32(4, 64, 28, 28), f32(64, 64, 3, 3))),
    ("products of experts, 32 rows to 4 of 64 x 48", _ragged, (f32(32, 64), f32(4, 64, 48))),
]


def main() -> None:
    """Print the table."""
    print("| program | XLA | roofline | ratio |\n|---|---|---|---|")
    for name, function, args in ROWS:
        found, (flops, apart) = programs.counts(function, *args), programs.xla(function, *args)
        ratio = (found.flops + found.vector_flops - apart) / flops
        theirs, ours = (" + ".join(f"{int(n):,}" for n in pair if n)
                        for pair in ((flops, apart), (found.flops, found.vector_flops)))  # fmt: skip
        print(f"| {name} | {theirs} | {ours} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
