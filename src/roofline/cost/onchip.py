"""What contractions move to and from main memory where the memory on the chip is too small to hold their operands.

The least that any schedule moves is a part of the floor (:mod:`roofline.tiling.bounds`), the best tiles' traffic one of
the expected time. All memory on the chip counts as one, however it is cut up. On every shipped chip both stay below the
time of the arithmetic, and nothing changes; they matter to a chip with little memory for its arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from roofline.cost.work import Launch, sparse_weights
from roofline.counting.counts import KernelCount, nbytes
from roofline.ir.dtypes import DTYPES
from roofline.ir.sizes import evaluate
from roofline.ops.attention import attended
from roofline.ops.registry import get_op
from roofline.tiling.bounds import attention_bound, contraction_bound
from roofline.tiling.moves import stored_elements
from roofline.tiling.nest import Nest
from roofline.tiling.operators import STATISTICS, is_contraction, nest_of
from roofline.tiling.search import least_attention, least_contraction

#: The bound's first term to the time of the arithmetic, or to the operands, from which on tiles are looked at: the best
#: ones move up to 1.6 times as much.
NEAR = 1 / 1.6


@dataclass(frozen=True, slots=True)
class Limited:
    """Bytes of a launch that the memory on the chip limits, 0 where it does not; numbers or arrays.

    Attributes:
        least: What any schedule reads and writes [byte].
        tiled: What the best tiles do [byte].
    """

    least: Any
    tiled: Any


def limited(work: Launch, row: KernelCount, at_peak: Any) -> Limited | None:
    """Return what a contraction moves, or ``None`` where its arithmetic or its operands take longer.

    Args:
        work: The launch.
        row: Its counts.
        at_peak: Time of the arithmetic at peak [s].
    """
    room = work.machine.on_chip
    if not row.flops_by or not np.any(room):
        return None
    widths = prod(_width(dtype) for dtype in (*row.kernel.stored[:2], row.kernel.output.dtype))
    each, rate = np.sqrt(widths / np.maximum(room, 1.0)), NEAR * work.machine.bandwidth  # bytes of a FLOP at the bound
    free = row.flops * each <= np.maximum(at_peak * rate, row.bytes * NEAR)
    if len(row.flops_by) == 1 and sparse_weights(row) is None:
        free = free | (each * work.peak <= rate)
    limits = (np.asarray(room) > 0) & ~np.asarray(free)
    moved = _moved(row, np.maximum(room, 1.0)) if limits.any() else None
    if moved is None:
        return None
    least = np.where(limits, np.maximum(moved.least, row.bytes), 0.0)
    return Limited(least, np.where(limits, np.maximum(moved.tiled, least), 0.0))


def least_of_matmul(row: KernelCount, room: Any) -> Any:
    """Bound what any schedule of a matmul reads and writes, whatever is on the chip before [byte]; 0 for other kernels.

    Convolutions are left out: they may be run by algorithms that multiply less.
    """
    moved = _moved(row, np.maximum(room, 1.0)) if row.kernel.kind == "matmul" and np.any(room) else None
    return 0.0 if moved is None else np.maximum(moved.least, 0.0)


def _width(dtype: str) -> float:
    """Bytes of an element without its share of scales [byte]."""
    return float(DTYPES[dtype].bits) / 8


def _moved(row: KernelCount, room: Any) -> Limited | None:
    """Return the bytes of a contraction whose operands come from main memory, each element once."""
    kernel, what = row.kernel, get_op(row.kernel.main.op)
    if not _is_read(row) or sparse_weights(row) is not None:
        return None
    if kernel.kind == "attention" and any(node.op == "attention_values" for node in kernel.nodes[1:]):
        return _attention(row, room)
    if not is_contraction(what) or kernel.attrs.get("causal") or kernel.attrs.get("window"):
        return None
    widths = [*map(_width, kernel.stored[:2]), _width(kernel.output.dtype)]
    try:
        nest = nest_of(what, row.sizes, kernel.attrs, widths)
    except TypeError:  # an image of many sizes at once
        return None
    return _contraction(row, nest, room)


def _is_read(row: KernelCount) -> bool:
    """Tell whether both operands enter the kernel, and nothing that it reads is read twice or repeated."""
    kernel = row.kernel
    if kernel.inputs[0].name == kernel.inputs[1].name:
        return False
    crossing = {tensor.name for tensor in kernel.operands}
    entering = all(
        tensor.name in crossing or stored != tensor.dtype
        for tensor, stored in zip(kernel.inputs[:2], kernel.stored, strict=False)
    )
    whole = sum(evaluate(nbytes(tensor), row.symbols) for tensor in kernel.operands)
    return entering and bool(np.all(np.abs(whole - row.read) <= 1e-9 * whole))


def _contraction(row: KernelCount, nest: Nest, room: Any) -> Limited:
    """Return the bytes of a contraction; its result, which may be used up inside the kernel, costs no read at first."""
    reads = contraction_bound(nest, room)
    result = nest.operands[-1]
    made = stored_elements(nest, result) * result.width
    least = reads - made + row.write
    return Limited(least, least_contraction(nest, room) - made + row.write)


def _attention(row: KernelCount, room: Any) -> Limited:
    kernel, sizes = row.kernel, row.sizes
    b, h, g, q, k, d = (np.asarray(sizes[axis], dtype=np.float64) for axis in "bhgqkd")
    scores = b * h * attended(q, k, bool(kernel.attrs.get("causal")), int(kernel.attrs.get("window") or 0))
    query, key = (d * _width(dtype) for dtype in kernel.stored[:2])
    least = attention_bound(scores, query, key, room)
    working = query + 4 * d + STATISTICS + 4  # an output and a score in fp32
    tiled = least_attention(b * g, q * h / g, k, scores / (b * h * q * k), (2 * query, working, 2 * key), room)
    return Limited(least, tiled)
