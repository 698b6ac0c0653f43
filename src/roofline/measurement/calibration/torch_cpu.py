"""Operators through PyTorch on the CPU, as a program calls them without gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

from roofline.measurement.calibration.numpy_cpu import FLAT, GEMMS, ROWS
from roofline.measurement.calibration.timing import Call, Task, repeat

#: Operators on flat tensors, as names in torch or torch.nn.functional.
FLAT_OPS = ("relu", "gelu", "add", "mul_scalar", "copy")
#: Operators along rows.
ROW_OPS = ("softmax", "layernorm", "sum")
#: Number formats of the matmuls, by our names.
FORMATS = {"fp32": "float32", "bf16": "bfloat16"}


def available() -> bool:
    """Tell whether torch can be imported."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


def matmuls(quick: bool) -> list[Task]:
    """Linear layers in fp32 and bf16."""
    return [_linear(dtype, *shape) for dtype in FORMATS for shape in GEMMS[: 10 if quick else None]]


def _linear(dtype: str, m: int, n: int, k: int) -> Task:
    def make() -> Call:
        import torch

        kind = getattr(torch, FORMATS[dtype])
        x, weight = torch.full((m, k), 0.5, dtype=kind), torch.full((n, k), 0.5, dtype=kind)
        return inference(lambda: torch.nn.functional.linear(x, weight))

    size = (m + n) * k * (2 if dtype == "bf16" else 4)
    return Task("gemm", dtype, {"m": m, "n": n, "k": k}, make, size, "torch")


def streams(quick: bool) -> list[Task]:
    """Elementwise and row-wise operators in fp32."""
    flat, rows = FLAT[: 4 if quick else None], ROWS[: 4 if quick else None]
    made = [_on(op, {"n": n}, (n,)) for op in FLAT_OPS for n in flat]
    return made + [_on(op, {"rows": r, "cols": c}, (r, c)) for op in ROW_OPS for r, c in rows]


def _on(op: str, shape: Mapping[str, int], size: tuple[int, ...]) -> Task:
    def make() -> Call:
        import torch

        return inference(caller(op, torch.full(size, 0.5)))

    return Task(op, "fp32", shape, make, 4 * prod(size), "torch")


def caller(op: str, x: Any) -> Call:
    """The call of an operator on a tensor."""
    import torch
    from torch.nn import functional

    y = x.clone() if op == "add" else None
    last = x.shape[-1:]
    calls: dict[str, Call] = {
        "relu": lambda: functional.relu(x),
        "gelu": lambda: functional.gelu(x),
        "silu": lambda: functional.silu(x),
        "add": lambda: x + y,
        "mul_scalar": lambda: x * 2.0,
        "copy": lambda: x.clone(),
        "softmax": lambda: torch.softmax(x, -1),
        "layernorm": lambda: functional.layer_norm(x, last),
        "sum": lambda: x.sum(-1),
    }
    return calls[op]


def inference(call: Callable[[], object]) -> Call:
    """The call without gradients."""
    import torch

    def run() -> object:
        with torch.inference_mode():
            return call()

    return run


def overhead(budget: float = 0.05) -> float:
    """Time the smallest operator [s]."""
    import torch

    x, many = torch.zeros(8), 200

    def call() -> None:
        for _ in range(many):
            x + x

    return repeat([inference(call)], budget).typical / many


def version() -> str:
    """Name and version, with the threads that it uses."""
    import torch

    return f"PyTorch {torch.__version__} on {torch.get_num_threads()} threads"
