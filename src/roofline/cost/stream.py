"""Elementwise kernels, copies, moves: bound by traffic or by the address work of what is not contiguous.

A kernel starts, waits for its first operands and streams. Elements that cannot be loaded in vectors (a broadcast or
strided operand, a widening cast) cost index arithmetic on the cores; a transposing copy pulls a sector of the cache
for every element; reads at random pull one from main memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from roofline.cost.machine import knee
from roofline.cost.parameters import Group, Parameter
from roofline.cost.work import Launch
from roofline.counting.counts import Kernel
from roofline.ir.dtypes import DTYPES
from roofline.ir.sizes import evaluate, prod
from roofline.ops.registry import OPS

#: Bytes that a read of a single element pulls.
SECTOR = 32
#: Threads of a block: a transposing copy of fewer rows than that finds its sectors in the block's own cache.
BLOCK = 128
#: Edge of the tiles that libraries transpose in shared memory; what is left of a tile is walked like a whole one.
TILE = 32
#: Elements side by side in a permuted kernel's result from which on none of their sectors is found again in time.
NEIGHBOURS = 256
#: What a thread takes where it works out addresses: bytes of elements, and elements at most.
THREAD_BYTES, THREAD_ELEMENTS = 8, 4
#: The same of cuDNN's ``elemWiseRNNcell``.
CELL_ELEMENTS = 2
#: What a launch touches, as a share of the cache, at which half of it is still there; how sharply that falls: fitted to
#: elementwise kernels of 30 programs on an H100, whose last-level cache holds 50 MB.
HELD, HELD_FALL = 0.9, 3.5
#: Rows of an embedding up to which one block fetches them one after the other.
SERIAL_ROWS = 16

#: Rearrangements that a framework writes as a copy of a view with so many axes.
COPIED = dict.fromkeys(("repeat", "tile", "pixel_shuffle", "pixel_unshuffle", "channel_shuffle"), ("strided", 4, 0))

GROUP = Group(
    "stream",
    launch=Parameter(1.0e-6, 0.3e-6, 2e-5, "s", "fixed cost of one launch: start and end", follows="launch"),
    latency=Parameter(0.6e-6, 0.1e-6, 5e-6, "s", "wait for the first operand from main memory"),
    ramp=Parameter(0.9e-6, 0.1e-6, 5e-6, "s", "streaming time over which reads reach full bandwidth"),
    dram=Parameter(0.9, 0.4, 1.0, "share", "of main memory's bandwidth where a kernel reads", follows="memory"),
    write=Parameter(0.98, 0.4, 1.0, "share", "of main memory's bandwidth where a kernel only writes"),
    cache=Parameter(1.2, 0.1, 2.0, "share", "of the cache's bandwidth for what lies there"),
    near=Parameter(0.1, 0.02, 1.0, "share", "of the wait that is left where operands lie in the cache"),
    index=Parameter(0.64, 0.05, 5.0, "cycles", "a core's address work per element that is not loaded in vectors"),
    axis=Parameter(
        0.09, 0.001, 1.0, "cycles", "more of it for each axis beyond two that addresses are worked out from"
    ),
    element=Parameter(
        1.2, 0.1, 10.0, "cycles", "a core's work per element of joins of what is not in order, and rolls"
    ),
    atomic=Parameter(2.2, 0.1, 20.0, "cycles", "a core's work per element that is added where others may add"),
    pick=Parameter(6.5e-8, 1e-9, 1e-6, "s", "of one core per row that is picked by an index"),
    setup=Parameter(0.4e-6, 0.02e-6, 3e-6, "s", "start of address work, per element of a thread"),
    library=Parameter(5e-6, 0.1e-6, 2e-5, "s", "extra fixed cost of special kernels: gather"),
    transpose=Parameter(2.0, 0.2, 10.0, "cycles", "a core's work per element with no neighbours to share its sector"),
    tiled=Parameter(
        0.38, 0.02, 3.0, "cycles", "the same where a library transposes whole tiles in shared memory, or pads"
    ),
    random=Parameter(0.3, 0.05, 1.0, "share", "of main memory's bandwidth for sectors at random"),
    knee=Parameter(2.5, 1.0, 8.0, "exponent", "sharpness of the knee between traffic and address work"),
)


def seconds(work: Launch, p: Mapping[str, float]) -> Any:
    """Time of one launch of a streaming kernel [s]."""
    traffic, cycles = _traffic(work, p), _cycles(work, p)
    start = p["launch"] + _begin(work, p, cycles is not None)
    if work.op == "gather":
        traffic = traffic + _random(work, p)
    if _picks_rows(work):
        picked = evaluate(work.row.kernel.inputs[1].numel, work.row.symbols)
        traffic = transfer(work, p, np.maximum(work.row.read, work.row.write))  # each row as often as it is picked
        return start + knee([traffic, picked * p["pick"] / work.machine.units], p["knee"])
    if cycles is None:
        return start + traffic
    rate = work.machine.units * work.machine.clock
    return start + knee([traffic, _elements(work) * cycles / rate], p["knee"])


def _picks_rows(work: Launch) -> bool:
    """Tell whether a kernel copies whole rows: of 16 bytes and multiples, others are picked by elements.

    ``fast_gather_kernel_eligible`` in aten/src/ATen/native/cuda/IndexKernelUtils.h of PyTorch.
    """
    table = work.row.kernel.inputs[0] if work.row.kernel.attrs.get("rows") else None
    return table is not None and bool(
        np.all(evaluate(prod(table.shape[1:]), work.row.symbols) * work.element % 16 == 0)
    )


def _begin(work: Launch, p: Mapping[str, float], addressed: bool) -> Any:
    """Time that passes between the start of a launch and its stream: the first read, address work, set-up [s]."""
    latency = p["latency"] * waiting(work, p) if work.row.kernel.operands else 0.0
    if work.op == "gather":
        return latency + p["library"]
    if work.op == "embedding":
        tokens = work.sizes["batch"]
        return latency + np.where(tokens <= SERIAL_ROWS, tokens * latency, 0.0)
    if work.op == "cat":
        return latency + p["setup"]
    if work.op != "transpose_copy" and addressed:
        most = THREAD_ELEMENTS if work.op != "recurrent_cell" else CELL_ELEMENTS
        return latency + p["setup"] * min(THREAD_BYTES / work.element, most)
    return latency


def _elements(work: Launch) -> Any:
    """Elements that cores work out addresses for: of a transposition by tiles, those of whole tiles."""
    if not work.row.kernel.attrs.get("tiled") or work.op != "transpose_copy":
        return outputs(work)
    s = work.sizes
    return np.asarray(s["batch"], np.float64) * np.ceil(s["r"] / TILE) * np.ceil(s["c"] / TILE) * TILE**2


def outputs(work: Launch) -> Any:
    """Elements that the kernel writes, in the format of its main output."""
    return work.row.write / float(DTYPES[work.row.kernel.output.dtype].bytes)


def held(work: Launch) -> Any:
    """Share of what a launch touches that the cache still has: most of what is well below its size, little above."""
    chip = work.machine
    if not chip.cache or (work.regime == "cold" and not work.inside):
        return 0.0
    return 1 / (1 + (work.row.bytes / (HELD * chip.cache)) ** HELD_FALL)


def hits(work: Launch) -> Any:
    """Share of the bytes read that the regime leaves in the cache."""
    return np.minimum(work.cached / np.maximum(work.row.read, 1e-9), 1.0) * held(work)


def waiting(work: Launch, p: Mapping[str, float]) -> Any:
    """A wait for the cache as a share of one for main memory, in the proportion that the launch has of both."""
    return 1 - (1 - p["near"]) * hits(work)


def transfer(work: Launch, p: Mapping[str, float], read: Any) -> Any:
    """Time to read some bytes and write the launch's, without ramp: in the cache what the regime leaves there [s].

    What is written stays in the cache too, for the next kernel or to be written over.
    """
    chip = work.machine
    near = hits(work) * read + held(work) * work.row.write
    slow = chip.bandwidth * p["dram"]
    return (read + work.row.write - near) / slow + near / np.maximum(chip.cache_bandwidth * p["cache"], slow)


def _traffic(work: Launch, p: Mapping[str, float]) -> Any:
    if not work.row.kernel.operands:
        return work.row.write / (work.machine.bandwidth * p["write"])
    time = transfer(work, p, work.row.read)
    return time + p["ramp"] * time / (time + p["ramp"])


def _cycles(work: Launch, p: Mapping[str, float]) -> Any:
    """A core's work on one output element; ``None`` where elements come in vectors."""
    if work.row.kernel.attrs.get("tiled"):
        return p["tiled"]
    if work.op == "take" and work.row.kernel.attrs.get("rows"):
        return p["element"]
    if work.op == "transpose_copy":
        apart = np.minimum(work.sizes["r"] / BLOCK, 1.0)
        return p["index"] + (p["transpose"] - p["index"]) * apart
    kernel, attrs = work.row.kernel, work.row.kernel.attrs
    if work.op in ("gather", "rearrange", "put"):
        flat = {"gather": "transpose", "roll": "element", "flip": "element", "put": "atomic"}
        kind = work.op if work.op == "gather" or (work.op == "put" and attrs.get("flops")) else attrs.get("what", "")
        if kind in flat:
            return p[flat[kind]]
    how, axes, run = attrs.get("access", COPIED.get(attrs.get("what", ""), ("", 2, 0)))
    if _fused(kernel) or how in ("", "vector"):
        return p["index"] if not how and not _vectorised(kernel) else None
    apart = (p["transpose"] - p["index"]) * min(run / NEIGHBOURS, 1.0)
    apart_from = work.op == "cat" and how != "cast"
    each = p["element"] if apart_from else p["index"] + p["axis"] * max(axes - 2, 0)
    return each + apart + (p["index"] if how == "mixed" else 0.0)


def _fused(kernel: Kernel) -> bool:
    """Tell whether a compiler has put several operators together; writing into memory that is there is none."""
    return sum(OPS[node.op].kind != "view" and node.op != "put" for node in kernel.nodes) > 1


def _vectorised(kernel: Kernel) -> bool:
    """A compiler's fused kernel is; an eager one of contiguous operands of one shape, cast to no wider format.

    Elements of less than a byte are unpacked one by one.
    """
    if kernel.main.op == "dequantize":
        return DTYPES[kernel.stored[0]].bits >= 8
    if _fused(kernel):
        return True
    if kernel.strided or kernel.main.op in ("upsample2d", "scatter_add"):
        return False
    if kernel.kind != "pointwise" or not kernel.inputs:
        return True
    to_wider = kernel.main.op == "cast" and DTYPES[kernel.output.dtype].bits > DTYPES[kernel.inputs[0].dtype].bits
    return not to_wider and all(tensor.shape == kernel.output.shape for tensor in kernel.inputs)


def _random(work: Launch, p: Mapping[str, float]) -> Any:
    """Sectors that single elements pull from a table: each the first time, and again where the cache lost it [s]."""
    chip = work.machine
    table = np.asarray(work.sizes["v"] * work.element, dtype=np.float64)
    draws = np.asarray(outputs(work), dtype=np.float64)
    first = table / SECTOR * -np.expm1(-draws * SECTOR / table)
    missed = 1 - np.minimum(chip.cache / table, 1.0)
    return (first + (draws - first) * missed) * SECTOR / (chip.bandwidth * p["random"])
