"""CPUs: a few cores with wide vectors, libraries that pack and block, one call after the other.

Used for chips whose file has parameters of these groups, as ``roofline calibrate`` writes for the CPU at hand:
the tiles, waves and warps of the other groups are an accelerator's. The peaks of such a chip are the best measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from roofline.cost.machine import knee, vector_peak
from roofline.cost.parameters import Group, Parameter
from roofline.cost.work import Launch
from roofline.hardware.chip import Chip
from roofline.ops.registry import OPS, OpKind

MATMUL = Group(
    "cpu_matmul",
    launch=Parameter(2e-6, 1e-7, 1e-4, "s", "fixed cost of one call", follows="launch"),
    share=Parameter(0.95, 0.1, 1.2, "share", "of the best matmul's rate that matmuls reach"),
    pack=Parameter(1e-10, 1e-12, 1e-8, "s/byte", "for one core to copy an operand of a matmul into blocks"),
    pack16=Parameter(1.0, 0.05, 20.0, "ratio", "the same for 16-bit formats, which are rearranged, against fp32"),
    ragged=Parameter(1.0, 0.02, 16.0, "rows", "wasted in the last block of rows of a matmul"),
    conv=Parameter(0.6, 0.05, 1.0, "ratio", "a convolution's rate against a matmul's"),
    dram=Parameter(0.7, 0.02, 1.2, "share", "of the best bandwidth for operands in main memory", follows="memory"),
    knee=Parameter(2.0, 1.0, 8.0, "exponent", "sharpness of the knee between arithmetic and traffic"),
)
STREAM = Group(
    "cpu_stream",
    launch=Parameter(2e-6, 1e-7, 1e-4, "s", "fixed cost of one call", follows="launch"),
    dram=Parameter(0.7, 0.02, 1.2, "share", "of the best bandwidth for operands in main memory", follows="memory"),
    vector=Parameter(0.1, 0.001, 1.0, "share", "of the fp32 vector peak for arithmetic beyond one step per element"),
    special=Parameter(4.0, 0.05, 100.0, "steps", "per exponential, or per function built on one"),
    row=Parameter(5e-9, 1e-10, 1e-6, "s", "of one core per row of a softmax, norm or reduction"),
    knee=Parameter(2.0, 1.0, 8.0, "exponent", "sharpness of the knee between arithmetic and traffic"),
)

#: Operators that need an exponential for each element.
SPECIAL = frozenset({"exp", "gelu", "silu", "sigmoid", "tanh", "softmax", "attention_softmax"})
#: Classes of kernels that work along rows.
_ROWS: tuple[OpKind, ...] = ("rowwise", "reduction")
#: Operators whose operands are copied into blocks first.
_PACKED = frozenset({"linear", "matmul", "bmm", "expert_linear", "attention_scores", "attention_values"})


def is_cpu(chip: Chip) -> bool:
    """Tell whether a chip is what the host itself runs on."""
    return "CPU" in chip.form or is_described(chip)


def is_described(chip: Chip) -> bool:
    """Tell whether a chip's file has parameters of these groups."""
    return MATMUL.name in chip.efficiency.parameters


def matmul_seconds(work: Launch, p: Mapping[str, float]) -> Any:
    """Time of one call of a contraction [s]."""
    return p["launch"] + knee([_arithmetic(work, p), _memory(work, p["dram"])], p["knee"])


def stream_seconds(work: Launch, p: Mapping[str, float]) -> Any:
    """Time of one call of anything else [s]."""
    rows = _rows(work) * p["row"] / work.machine.cores
    return p["launch"] + rows + knee([_elementwise(work, p), _memory(work, p["dram"])], p["knee"])


def _arithmetic(work: Launch, p: Mapping[str, float]) -> Any:
    """Arithmetic of a contraction: matmuls at their rate, after their operands were copied into blocks [s]."""
    rate = work.peak * p["share"]
    if work.op == "conv2d":
        return work.row.flops / (rate * p["conv"])
    if work.op not in _PACKED:
        return work.row.flops / rate
    sizes = work.sizes  # experts' rows are packed together
    axes = (1, sizes["t"], sizes["n"], sizes["k"]) if work.op == "expert_linear" else OPS[work.op].matmuls(sizes)
    many, m, n, k = (np.asarray(size, dtype=np.float64) for size in axes)
    narrow = work.dtype in ("bf16", "fp16")
    packed = np.where(narrow | ((m > 1) & (n > 1)), many * (m + n) * k * work.element, 0.0)
    pack = p["pack"] * (p["pack16"] if narrow else 1.0) / work.machine.cores
    ragged = np.where(m > 1, (m + p["ragged"]) / m, 1.0)
    return work.row.flops / rate * ragged + packed * pack


def _elementwise(work: Launch, p: Mapping[str, float]) -> Any:
    """Arithmetic of all other kernels: special functions, and steps beyond the first, which hides behind a load [s]."""
    peak = vector_peak(work.chip, "fp32")
    if not peak:
        return 0.0
    elements = work.row.read / work.element
    special = elements * p["special"] if work.op in SPECIAL else 0.0
    return (np.maximum(work.row.vector - elements, 0.0) + special) / (peak * p["vector"])


def _rows(work: Launch) -> Any:
    """Rows that a kernel works along."""
    if work.row.kernel.kind not in _ROWS:
        return 0.0
    columns = work.sizes.get("c", work.sizes.get("n", 1))
    elements = work.row.read / work.element
    return elements / np.maximum(columns, 1)


def _memory(work: Launch, share: float) -> Any:
    """Time of the traffic: what the regime leaves in the last cache at its speed, the rest at main memory's [s]."""
    chip, total = work.machine, work.row.bytes
    fits = np.clip(2 - 2 * total / chip.cache, 0.0, 1.0) if chip.cache else 0.0
    near = work.cached * fits
    slow = chip.bandwidth * share
    return (total - near) / slow + near / max(chip.cache_bandwidth * share, slow)
