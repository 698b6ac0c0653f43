"""Softmax, norms and reductions along rows: rows run in waves over the cores, each one a chain of dependent steps.

A library gives each row a number of threads (a warp, four, or a full block). A core holds a fixed number of threads
and registers, hence of rows; a row takes a fixed time for the reductions among its threads and a time for each load
that a thread waits for. A second pass over a row comes from the cache while the rows in flight fit there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roofline.cost.machine import knee
from roofline.cost.parameters import Group, Parameter
from roofline.cost.stream import transfer, waiting
from roofline.cost.work import Launch

#: Threads and registers that a core holds, and registers of a thread besides the elements that it keeps.
CORE_THREADS, CORE_REGISTERS, OWN_REGISTERS = 2048, 65536, 28
#: Threads of a warp and of the largest block.
WARP, BLOCK = 32, 1024
#: Rows in flight of a layer norm, whose running mean and variance take registers, to an RMS norm's.
WELFORD = 0.7
#: Longest rows that a softmax keeps in the registers of a warp, and of a block.
WARP_COLUMNS, BLOCK_COLUMNS = 2048, 10240
#: Longest rows of which a softmax has so many at a time in each part of a warp, which is as long as a row
#: (``softmax_warp_forward`` in aten/src/ATen/native/cuda/PersistentSoftmax.cuh of https://github.com/pytorch/pytorch),
#: and the loads in whose time a warp begins: read off measurements/h200-sxm/networks.csv.
SHORT_COLUMNS, SHORT_ROWS, SHORT_LOADS = 128, 2.0, 2.0
#: Threads of a reduction's block, and elements of one thread from which the whole block works on one row.
REDUCTION, REDUCTION_MOST = 512, 256
#: A core's work on a mean over a window where channels lie last, and on a maximum where they lie first, to one on the
#: others; read off the rows of measurements/h200-sxm/convolutions.csv.
MEANS_LAST, MAXIMA_FIRST = 2.0, 1.3

GROUP = Group(
    "rowwise",
    launch=Parameter(1.0e-6, 0.3e-6, 2e-5, "s", "fixed cost of one launch: start and end", follows="launch"),
    dram=Parameter(0.9, 0.4, 1.0, "share", "of main memory's bandwidth", follows="memory"),
    cache=Parameter(0.6, 0.1, 1.5, "share", "of the cache's bandwidth for what lies there"),
    near=Parameter(0.2, 0.02, 1.0, "share", "of the wait that is left where operands lie in the cache"),
    row=Parameter(0.9e-6, 0.1e-6, 1e-5, "s", "fixed time per row: index work and the reduction in a warp"),
    sync=Parameter(
        1e-6, 1e-8, 5e-6, "s", "extra time where a full block shares a row; in proportion for fewer threads"
    ),
    step=Parameter(2.8e-7, 5e-8, 3e-6, "s", "a thread's wait for one load, and the arithmetic on it"),
    layernorm=Parameter(1.5, 0.5, 5.0, "ratio", "a row of a layer norm (running mean and variance) to an RMS norm's"),
    softmax=Parameter(1.4, 0.5, 5.0, "ratio", "a row of a softmax to an RMS norm's"),
    argmax=Parameter(1.8, 0.5, 5.0, "ratio", "a row of an argmax to an RMS norm's"),
    sum=Parameter(1.5, 0.5, 5.0, "ratio", "a load of a sum, whose threads add in turn, to an RMS norm's"),
    narrow=Parameter(1.3, 0.5, 3.0, "ratio", "a load of elements under 4 bytes, which are converted, to one of fp32"),
    setup=Parameter(0.5e-6, 1e-8, 5e-6, "s", "extra fixed cost of a reduction's general kernel"),
    reread=Parameter(0.3, 0.02, 3.0, "share", "of the cache that rows in flight fill before half is read again"),
    pool=Parameter(3.5, 0.2, 50.0, "cycles", "a core's work per output of a pooling window"),
    pool_start=Parameter(1.5e-5, 1e-6, 1e-4, "s", "extra fixed cost of maxima of images whose channels lie last"),
    knee=Parameter(2.0, 1.0, 8.0, "exponent", "sharpness of the knee between traffic and waves of rows"),
    knee_softmax=Parameter(1.5, 1.0, 8.0, "exponent", "the same for softmax"),
)


#: Operators whose arithmetic hides what the cache saves, and whose reductions stay within warps.
SOFTMAX = ("softmax", "attention_softmax")
#: Operators whose rows are slower than an RMS norm's, and the parameter that says by what.
PACES = {
    "softmax": "softmax", "attention_softmax": "softmax", "argmax": "argmax", "topk": "argmax",
    "layernorm": "layernorm", "layernorm2d": "layernorm", "groupnorm": "layernorm",
    "sum": "sum", "mean": "sum", "global_avgpool": "sum", "reduce": "sum",
    "layernorm_grad": "layernorm",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Scheme:
    """How a library runs rows, numbers or arrays.

    Attributes:
        length: Of a row as the threads walk it, padding included.
        threads: For each row.
        held: Rows that a core has in flight.
        passes: Over each row; those after the first read it again, unless ``kept``.
        vector: Elements that a thread gets by one load.
        kept: Whether the row stays in registers.
        kernels: Launched one after the other, each over all rows.
    """

    length: Any
    threads: Any
    held: Any
    passes: Any
    vector: Any
    kept: Any
    kernels: Any = 1


def seconds(work: Launch, p: Mapping[str, float]) -> Any:
    """Time of one launch of a kernel along rows [s]."""
    if work.op in ("maxpool2d", "avgpool2d", "pool"):
        return _pool(work, p)
    rows, columns = (np.asarray(size, dtype=np.float64) for size in EXTENTS.get(work.op, EXTENTS[""])(work))
    scheme = SCHEMES.get(work.op, _reduction)(rows, columns, work.element)
    if work.row.kernel.kind == "reduction" or work.op == "groupnorm":
        rows, scheme = _shared(rows, scheme, work.machine.units)
    waves = np.maximum(rows / (work.machine.units * scheme.held), 1.0)
    row = scheme.kernels * _row(work, p, scheme)
    extra = np.where(scheme.kept, 0.0, (scheme.passes - 1) * _missed(work, p, rows, columns, scheme))
    memory = transfer(work, p, work.row.read * (scheme.kernels + extra))
    start = p["launch"] * scheme.kernels + (p["setup"] if work.row.kernel.kind == "reduction" else 0.0)
    sharpness = p["knee_softmax"] if work.op in SOFTMAX else p["knee"]
    return start + row + knee([memory, (waves - 1) * row], sharpness)


def rereads(work: Launch) -> tuple[Any, Any]:
    """Return how often rows are read beyond the first time, and the bytes of the rows that a core has in flight."""
    if work.op in ("maxpool2d", "avgpool2d", "pool"):
        return 0.0, 0.0
    rows, columns = (np.asarray(size, dtype=np.float64) for size in EXTENTS.get(work.op, EXTENTS[""])(work))
    scheme = SCHEMES.get(work.op, _reduction)(rows, columns, work.element)
    passes = scheme.kernels - 1 + np.where(scheme.kept, 0.0, scheme.passes - 1)
    return passes, np.minimum(rows / work.machine.units, scheme.held) * columns * work.element


def _shared(rows: Any, scheme: Scheme, units: float) -> tuple[Any, Scheme]:
    """Blocks of several cores share a long row where rows are few: pieces, and how they run."""
    most = np.minimum(units * scheme.held / rows, scheme.length / (REDUCTION * REDUCTION_MOST))
    parts = np.maximum(most, 1.0)
    return rows * parts, replace(scheme, length=scheme.length / parts)


def _row(work: Launch, p: Mapping[str, float], scheme: Scheme) -> Any:
    """Time of one row in one kernel: what is fixed, and a wait for each load of a thread [s]."""
    loads = np.maximum(scheme.length / scheme.threads / scheme.vector, 1.0) * scheme.passes
    softmax, pace = work.op in SOFTMAX, PACES.get(work.op, "")
    load = p["step"] * (1.0 if softmax or pace == "layernorm" else waiting(work, p))
    if pace == "sum":
        return p["row"] + p["sync"] * scheme.threads / BLOCK + load * p["sum"] * loads
    if work.element < 4 and pace != "layernorm":
        load = load * p["narrow"]
    fixed = 0.0 if softmax else p["row"]
    return (fixed + p["sync"] * scheme.threads / BLOCK + load * loads) * p.get(pace, 1.0)


def _missed(work: Launch, p: Mapping[str, float], rows: Any, columns: Any, scheme: Scheme) -> Any:
    """Share of a second read that main memory serves, because the rows in flight have pushed it out of the cache."""
    flying = np.minimum(rows, work.machine.units * scheme.held) * columns * work.element
    if not work.machine.cache:
        return 0.0
    return 1 / (1 + (p["reread"] * work.machine.cache / flying) ** 3)


def _pool(work: Launch, p: Mapping[str, float]) -> Any:
    """A thread a window; where channels lie last, threads of maxima walk the image, those of means read far apart."""
    last, means = (
        work.row.kernel.attrs.get("channels_last", True),
        work.op == "avgpool2d" or work.row.kernel.attrs.get("flops"),
    )
    cycles = p["pool"] * ((MEANS_LAST if means else 1.0) if last else (1.0 if means else MAXIMA_FIRST))
    compute = _pooled(work) * cycles / (work.machine.units * work.machine.clock)
    traffic = transfer(work, p, work.row.read)
    start = p["launch"] + (p["pool_start"] if last and not means else p["row"] + p["setup"])
    return start + knee([traffic, compute], p["knee"])


def _pooled(work: Launch) -> Any:
    """Outputs of a pooling window, without those of what is fused with it."""
    s = work.sizes
    return s["batch"] if work.op == "pool" else s["n"] * s["c"] * s["p"] * s["q"]


def _groups(work: Launch) -> tuple[Any, Any]:
    s, groups = work.sizes, work.row.kernel.attrs.get("groups", 32)
    return s["n"] * groups, s["c"] * s["batch"] / groups


#: Rows and columns of operators; "" for those that work along the last axis of ``... c``.
EXTENTS: dict[str, Callable[[Launch], tuple[Any, Any]]] = {
    "": lambda work: (work.sizes["batch"], work.sizes["c"]),
    "attention_softmax": lambda work: (work.sizes["b"] * work.sizes["h"] * work.sizes["q"], work.sizes["k"]),
    "attention_softmax_grad": lambda work: (work.sizes["b"] * work.sizes["h"] * work.sizes["q"], work.sizes["k"]),
    "groupnorm": _groups,
    "layernorm2d": lambda work: (work.sizes["n"] * work.sizes["h"] * work.sizes["w"], work.sizes["c"]),
    "global_avgpool": lambda work: (work.sizes["n"] * work.sizes["c"], work.sizes["h"] * work.sizes["w"]),
}


def _softmax_grad(rows: Any, columns: Any, element: float) -> Scheme:
    """As a softmax, without the pass for the maximum."""
    usual = _softmax(rows, columns, element)
    return replace(usual, passes=np.minimum(usual.passes, 2))


def _softmax(rows: Any, columns: Any, element: float) -> Scheme:
    """A warp a row while its registers hold it, then a block that does, then a block that reads three times.

    A warp has several short rows, and so few loads of each that others pass it in the time that it takes to begin.
    """
    warp, block, short = columns <= WARP_COLUMNS, columns <= BLOCK_COLUMNS, columns <= SHORT_COLUMNS
    threads = np.where(warp, WARP, BLOCK)
    length = np.where(warp, 2.0 ** np.ceil(np.log2(columns)), columns)
    together = np.where(short, SHORT_ROWS * np.maximum(WARP / length, 1.0), 1.0)
    length = np.where(short, SHORT_ROWS * np.maximum(length, WARP), length)
    registers = OWN_REGISTERS + np.where(block, length / threads, 0.0)
    held = np.minimum(CORE_THREADS / threads, np.floor(CORE_REGISTERS / threads / registers)) * together
    vector = np.where(block & ~warp, 2, 4)
    loads = length / threads / vector
    held = held * np.where(short, np.maximum(loads, 1.0) / (loads + SHORT_LOADS), 1.0)
    return Scheme(length, threads, held, np.where(block, 1, 3), vector, block)


def _norm(rows: Any, columns: Any, element: float) -> Scheme:
    """Four warps a row with vector loads, twice over it; rows that are not aligned take two kernels without."""
    aligned = columns % 4 == 0
    threads = np.where(aligned, 4 * WARP, REDUCTION)
    passes, vector, kernels = np.where(aligned, 2, 1), np.where(aligned, 4, 1), np.where(aligned, 1, 2)
    return Scheme(columns, threads, CORE_THREADS / threads, passes, vector, False, kernels)


def _layernorm(rows: Any, columns: Any, element: float) -> Scheme:
    """A norm whose running mean and variance take registers from three of ten rows."""
    usual = _norm(rows, columns, element)
    return replace(usual, held=np.where(usual.kernels == 1, usual.held * WELFORD, usual.held))


def _groupnorm(rows: Any, columns: Any, element: float) -> Scheme:
    """A whole block a row with vector loads, twice over it: a group of channels is long. Few rows share the cores."""
    return Scheme(columns, REDUCTION, CORE_THREADS / REDUCTION, 2, 4, False)


def _reduction(rows: Any, columns: Any, element: float) -> Scheme:
    """A warp a row, more threads where rows are few, the whole block where rows are long."""
    few = np.minimum(2.0 ** np.floor(np.log2(rows)), REDUCTION / WARP)
    threads = np.minimum(REDUCTION / few, np.maximum(2.0 ** np.floor(np.log2(columns)), WARP))
    long = columns / threads >= np.minimum(REDUCTION_MOST, few * 16)
    threads = np.where(long, REDUCTION, threads)
    return Scheme(columns, threads, CORE_THREADS / threads, 1, 4, True)


def _sum(rows: Any, columns: Any, element: float) -> Scheme:
    """A reduction whose loads are 16 bytes wide in every format."""
    return replace(_reduction(rows, columns, element), vector=16 / element)


def _argmax(rows: Any, columns: Any, element: float) -> Scheme:
    """A reduction of pairs, whose registers leave room for half the rows."""
    usual = _reduction(rows, columns, element)
    return replace(usual, held=usual.held / 2)


def _select(rows: Any, columns: Any, element: float) -> Scheme:
    """Radix selection: a block a row, a pass for each digit."""
    return Scheme(columns, BLOCK, CORE_THREADS / BLOCK, 4, 4, False)


def _quantize(rows: Any, columns: Any, element: float) -> Scheme:
    """A block a row that keeps it in registers between the maximum and the division, with 16-byte loads."""
    threads = np.clip(2.0 ** np.round(np.log2(columns * element / 16)), WARP, REDUCTION)
    return Scheme(columns, threads, CORE_THREADS / threads, 1, 16 / element, True)


#: How each operator runs its rows; reductions where it is not named.
SCHEMES: dict[str, Callable[[Any, Any, float], Scheme]] = {
    "softmax": _softmax, "attention_softmax": _softmax, "softmax_grad": _softmax_grad,
    "attention_softmax_grad": _softmax_grad,
    "topk": _select, "argmax": _argmax, "sum": _sum, "mean": _sum, "global_avgpool": _sum, "reduce": _sum,
    "rmsnorm": _norm, "rmsnorm_grad": _norm, "layernorm": _layernorm, "groupnorm": _groupnorm,
    "layernorm2d": _layernorm, "layernorm_grad": _layernorm, "quantize_rows": _quantize,
}  # fmt: skip
