"""Chips that are a grid of cores: matmuls, convolutions and attention spread over them.

Everything follows from what the chip's file states: the engine's shape and rate, a core's memory and how fast its
engine reads it, the network's width, main memory. Nothing is fitted beyond the chip's achievable shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from roofline.cost.machine import vector_peak
from roofline.cost.silicon.mapping import LEVELS, Product, Rates, Spread, spread
from roofline.cost.work import Launch
from roofline.counting.counts import nbytes
from roofline.ir.dtypes import DTYPES
from roofline.ir.sizes import evaluate
from roofline.ops.registry import OPS

__all__ = ["LEVELS", "is_spread", "seconds", "spreads", "timed", "vector_seconds"]

#: Classes of kernels that are products of matrices.
KINDS = frozenset({"matmul", "conv", "attention"})


def is_spread(work: Launch) -> bool:
    """Tell whether a kernel is spread over a grid: products on its matrix engines, not on vector units."""
    kernel = work.row.kernel
    return (
        work.chip.grid is not None and kernel.kind in KINDS and bool(work.row.flops_by) and work.on_matrix
        and (kernel.main.op == "conv2d" or OPS[kernel.main.op].gemm is not None)
    )  # fmt: skip


def seconds(work: Launch, p: Mapping[str, float]) -> Any:
    """Time of one launch [s]: its products one after the other, and other arithmetic beside them."""
    return timed(work, p)[0]


def timed(work: Launch, p: Mapping[str, float]) -> tuple[Any, Any, Any]:
    """Return the time of one launch, and how much of it something on the chip and main memory set the pace [s]."""
    every = spreads(work, p)
    products: Any = sum(each.seconds for _, each in every)
    outside: Any = sum(np.where(each.by_level["DRAM"] >= each.seconds, each.seconds, 0.0) for _, each in every)
    vector = vector_seconds(work, every[0][0])
    launch = p.get("launch", work.chip.efficiency.launch)
    return launch + np.maximum(products, vector), np.maximum(products - outside, vector), outside


def vector_seconds(work: Launch, product: Product) -> Any:
    """Time of a kernel's other arithmetic, on the columns of its first product padded to the vector engine [s]."""
    chip, lanes = work.chip, work.chip.grid.lanes if work.chip.grid else None
    steps: Any = sum(flops / peak for dtype, flops in work.row.vector_by.items() if (peak := vector_peak(chip, dtype)))
    padded = np.ceil(product.n / lanes) * lanes / product.n if lanes else 1.0
    return steps * padded / chip.efficiency.compute


def spreads(work: Launch, p: Mapping[str, float]) -> list[tuple[Product, Spread]]:
    """Return each product of a kernel and how it is spread: one of a matmul, two of attention."""
    grid, chip = work.chip.grid, work.chip
    assert grid is not None
    shares = chip.efficiency
    each = 2.0 * float(np.prod(grid.engine.shape)) * grid.engine.count
    cycle = each * grid.rows * grid.columns / (work.peak * p.get("share", shares.compute))
    share = p.get("dram", shares.memory)
    rates = Rates(cycle, work.machine.bandwidth * share, share)
    return [(product, spread(grid, product, rates)) for product in _products(work)]


def _sizes(work: Launch) -> tuple[Any, Any, Any, Any]:
    """Return how many products a contraction is, their rows, columns and depth; a convolution by its windows."""
    s = work.sizes
    if work.op != "conv2d":
        return OPS[work.op].matmuls(s)
    return s["g"], s["batch"] * s["n"] * s["p"] * s["q"], s["u"], s["i"] * s["r"] * s["s"]


def _distinct(work: Launch, elements: Any) -> Any:
    """Return the elements of a convolution's image by those of the windows that are multiplied, 1 of others."""
    if work.op != "conv2d":
        return 1.0
    image = work.row.kernel.inputs[0]
    return np.minimum(1.0, evaluate(nbytes(image), work.row.symbols) / DTYPES[image.dtype].bytes / elements)


def _products(work: Launch) -> list[Product]:
    row = work.row
    stored = [float(DTYPES[name].bytes) for name in (*row.kernel.stored, work.dtype, work.dtype)]
    out = float(DTYPES[row.kernel.output.dtype].bytes)
    if not any(node.op == "attention_values" for node in row.kernel.nodes[1:]):
        b, m, n, k = (np.asarray(size, dtype=np.float64) for size in _sizes(work))
        return [Product(b, m, n, k, stored[0], stored[1], out, row.bytes, _distinct(work, b * m * k))]
    sizes = work.sizes
    b, h, g, q, keys, d = (np.asarray(sizes[axis], dtype=np.float64) for axis in "bhgqkd")
    groups, rows = b * g * sizes.get("batch", 1), q * h / g
    unmasked = row.flops / (4 * groups * rows * keys * d)  # of the pairs that a mask leaves; the others are skipped
    scores = Product(groups, rows, keys * unmasked, d, stored[0], stored[1], out, row.bytes / 2, rereads=False)
    return [scores, replace(scores, n=d, k=keys * unmasked)]
