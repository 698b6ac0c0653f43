"""Write the texts of this folder: what jax prints before XLA's passes (.mlir) and after them, for a CPU (.txt).

``python tests/hlo/make.py`` with jax 0.10.2; names of source files and stack frames are left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

HERE = Path(__file__).parent


def f32(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, "float32")


def mlp(w1: Any, w2: Any, x: Any) -> Any:
    return jax.nn.softmax(jax.nn.gelu(x @ w1) @ w2)


def attention(q: Any, k: Any, v: Any) -> Any:
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


def conv_net(x: Any, w: Any) -> Any:
    y = lax.conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return lax.reduce_window(jax.nn.relu(y), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def loops(x: Any) -> Any:
    return lax.fori_loop(0, 5, lambda _, y: jnp.sin(y) @ x, x), lax.scan(lambda c, row: (c + row, c * row), x[0], x)


PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "mlp": (mlp, (f32(64, 128), f32(128, 32), f32(8, 64))),
    "attention": (attention, (f32(2, 16, 4, 8),) * 3),
    "conv_net": (conv_net, (f32(2, 16, 16, 3), f32(3, 3, 3, 8))),
    "loops": (loops, (f32(8, 8),)),
}


def plain(text: str) -> str:
    """Text without tables of source files, and without what refers to them."""
    text = re.sub(r"\n(FileNames|FunctionNames|FileLocations|StackFrames)\n(?:\d+ .*\n)*", "\n", text)
    return re.sub(r" stack_frame_id=\d+", "", re.sub(r"\n{3,}", "\n\n", text)).strip() + "\n"


if __name__ == "__main__":
    jax.config.update("jax_platforms", "cpu")
    for name, (function, args) in PROGRAMS.items():
        lowered = jax.jit(function).lower(*args)
        (HERE / f"{name}.mlir").write_text(plain(lowered.as_text()))
        (HERE / f"{name}.txt").write_text(plain(lowered.compile().as_text()))
