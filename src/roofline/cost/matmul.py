"""Matmuls: the fastest of a few tile shapes and splits of K, on the chip's cores.

A tile of ``tm x tn`` outputs walks K in steps of 64 elements on one core. Tiles run in waves over the cores; a small
tile re-reads its operands from the cache more often and feeds the matrix units worse. The choice among tiles is the
library's (cuBLAS has dozens); the model tries the shapes of :data:`TILES` and keeps the best.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from roofline.cost import serving_stack
from roofline.cost.machine import Machine, fits, knee, vector_peak
from roofline.cost.parameters import Group, Parameter
from roofline.cost.serving_stack import SCALED
from roofline.cost.tiles import fastest
from roofline.cost.work import REGIMES, Launch
from roofline.ir.dtypes import DTYPES
from roofline.ops.registry import OPS

#: Tile shapes, in elements of the output. Tall and skinny ones serve decode shapes.
TILES = ((64, 8), (64, 16), (64, 32), (64, 64), (64, 128), (128, 64), (128, 128), (128, 192), (128, 256), (256, 128),
         (192, 192))  # fmt: skip
#: The tiles in both orientations.
ORIENTED = tuple(dict.fromkeys([*TILES, *((columns, rows) for rows, columns in TILES)]))
#: Ways to split K over cores; each split adds a reduction of partial sums.
SPLITS = (1, 2, 4, 16, 64)
#: Elements of a large tile, of which a last wave is made.
LARGEST = 128 * 256
#: All choices of tile rows, columns and parts of K.
CHOICES = np.array([(rows, columns, parts) for rows, columns in ORIENTED for parts in SPLITS], dtype=np.float64)
#: Formats and regimes whose library kernels do not split K: torch._int_mm, and the fp8 kernels of serving stacks.
UNSPLIT = frozenset(
    {("int8", regime) for regime in REGIMES} | {("fp8", "warm"), ("fp8_block", "warm"), ("fp4", "warm")}
)
#: Layers of the same size that the measured stacks run in turn, so that one finds its weights in the cache only if all
#: fit it; 1 where the same layer runs again.
COPIES = {"bf16": 6, "fp8": 6}
#: Bytes along K of an operand's row that a core works on at a time: one cache line.
STEP = 128
#: Pace of loads that are not aligned where the right operand is stored by row, to where both are stored along K: cuBLAS
#: runs tiles of 256 x 128 there, which load three quarters as much per multiply-add as its 128 x 128 (both matmuls
#: of the backward of a head of 50257 columns: 4.50 and 4.28 ms on the H100; its forward: 6.63 ms).
BY_ROW = 4 / 3
#: Formats in which cuBLAS multiplies a matrix by a vector with kernels of their own (gemvx, gemv2T), not with tiles.
GEMV = frozenset({"fp32", "tf32"})
#: Parts of K at most in kernels for fp32, and for rows that are not aligned, that add a bias, to more rows than
#: gemmSN takes.
BIASED, FEW = 2, 8
#: Edge of the smallest tile of the kernels for rows that are not aligned (cutlass_75_tensorop_*_64x64_*_align1).
NARROW_EDGE = 64
#: Bytes to which a row must be aligned for the wide loads that the matrix units are fed by.
ALIGNMENT = 16
#: Kernels with a scale per row (torch._scaled_mm, aten/src/ATen/native/cuda/RowwiseScaledMM.cu) have no tiles below
#: these edges and do not split K; their deep pipelines keep more bytes of a core in flight.
BY_ROW_EDGE, BY_ROW_COLUMNS, BY_ROW_SKINNY = 64, 128, 0.3
#: Rows served by a weight once dequantised: for more rows Marlin runs its largest kernel, of 64 rows,
#: several times over (IST-DASLab/marlin, issue 2, its author).
DEQUANTIZED_ROWS = 64
#: Rows that a weight serves once it is loaded, on vector units: llama.cpp's matrix-vector kernels take up to 8
#: (ggml/src/ggml-cuda/mmvq.cuh, MMVQ_MAX_BATCH_SIZE).
VECTOR_ROWS = 8

GROUP = Group(
    "matmul",
    # Priors are medians of nine chips' fits (aiconfigurator-core 0.12.0, see their files). Of what a chip states,
    # launch is the least time of a kernel, of which a matmul takes two; compute is what the best lone matmul reaches,
    # which loses a tenth at the edges of its tiles and by the power cap.
    launch=Parameter(2e-6, 0.5e-6, 2e-5, "s", "fixed cost of one launch: start, fill and drain", "launch", 2.0),
    share=Parameter(0.9, 0.2, 1.2, "share", "of the datasheet peak inside a large tile", "compute", 1.11),
    tile_half=Parameter(6.5, 1.0, 300.0, "elements", "tile edge at which the matrix units are half fed"),
    dram=Parameter(0.85, 0.4, 1.0, "share", "of main memory's bandwidth for operands", follows="memory"),
    cache=Parameter(2.8, 0.2, 50.0, "share", "of the cache's bandwidth for operands that tiles read again"),
    step=Parameter(8e-8, 5e-9, 1e-6, "s", "latency of one step along K"),
    knee=Parameter(2.6, 1.0, 8.0, "exponent", "sharpness of the knee between resources"),
    split=Parameter(2.5e-6, 0.2e-6, 2e-5, "s", "cost of adding up the parts of a split K"),
    skinny=Parameter(0.25, 0.05, 2.0, "exponent", "how bandwidth falls when fewer tiles than cores are in flight"),
    tail=Parameter(0.15, 0.05, 1.0, "share", "of a part-filled last wave that costs as much as a full one"),
    throttle=Parameter(0.15, 0.0, 1.0, "share", "slowdown of long compute-bound runs under the power cap"),
    narrow=Parameter(7e9, 5e8, 1e12, "loads/s", "loads per core when rows are not aligned to 16 bytes"),
    store=Parameter(
        0.8, 0.1, 1.0, "share", "of main memory's bandwidth for results, which a tile writes when it is done"
    ),
    fill=Parameter(
        0.0, 0.0, 3e-6, "s", "for tiles to start and end on all cores; less, by its root, on a share of them"
    ),
    knee_memory=Parameter(1.0, 0.3, 5.0, "ratio", "sharpness of the knee between main memory and the rest, to knee"),
    trail=Parameter(
        1.0, 1.0, 8.0, "exponent", "knee between results of all waves but one and the tiles; 1: they add up"
    ),
    kept=Parameter(2.0, 0.3, 10.0, "ratio", "pace of results that stay in the cache, against main memory's bandwidth"),
    resident=Parameter(0.5, 0.01, 1.0, "share", "of the cache that keeps operands from one launch to the next"),
    share_fp16=Parameter(1.0, 0.5, 1.5, "ratio", "fp16 against bf16"),
    share_fp8=Parameter(1.0, 0.2, 1.5, "ratio", "fp8 against bf16, each of its own peak"),
    share_fp4=Parameter(1.0, 0.2, 1.5, "ratio", "fp4 against bf16, each of its own peak"),
    share_fp8_block=Parameter(0.8, 0.1, 1.5, "ratio", "block-scaled fp8 against bf16, each of its own peak"),
    share_int8=Parameter(0.5, 0.2, 1.5, "ratio", "int8 against bf16, each of its own peak"),
    share_tf32=Parameter(0.9, 0.2, 1.5, "ratio", "tf32 against bf16, each of its own peak"),
    share_fp32=Parameter(1.0, 0.2, 1.5, "ratio", "vector fp32 against bf16, each of its own peak"),
    step_fp32=Parameter(3.0, 0.3, 20.0, "ratio", "a step along K on the vector units against one on the matrix units"),
    step_fp4=Parameter(1.0, 0.3, 20.0, "ratio", "a step along K of the fp4 kernels against the others"),
    step_tf32=Parameter(1.5, 0.3, 20.0, "ratio", "a step along K of the tf32 kernels against the others"),
    **serving_stack.PARAMETERS,
    step_int8=Parameter(2.0, 0.3, 20.0, "ratio", "a step along K of the int8 kernels against the others"),
    # Weights that kernels dequantise: between what fits tinygemm on an H100 best (quantized.csv: 0.042
    # and 1.3 cycles) and Marlin on an A100, whose time for the four matmuls of a layer of Llama-13B is 140 us for one
    # row, 290 us for 64, 9.07 ms for 2048 (bench.py of IST-DASLab/marlin, in vllm-project/vllm pull request 2497).
    dequantize=Parameter(0.03, 0.002, 2.0, "cycles", "for one core to dequantise a weight"),
    dequantize_group=Parameter(1.2, 0.0, 50.0, "cycles", "for one core to fetch a group's scale and zero point"),
    # Median of eighteen groups (chip, stack, kernel) of blocks of experts in w4a16_mxfp4 and int4_wo, all of whose
    # experts are read for 4 to 10 rows each: H100, H200, B200; vLLM 0.24, SGLang 0.5.14, TensorRT-LLM 1.3.0rc20
    # (moe_perf.parquet of aiconfigurator-core 0.12.0).
    dequantize_scale=Parameter(0.5, 0.0, 50.0, "cycles", "the same for a scale alone, of experts"),
    share_dequantized=Parameter(0.6, 0.1, 1.2, "ratio", "matrix units fed with dequantised weights against 16-bit"),
    tinygemm=Parameter(0.03, 0.005, 1.0, "share", "of the 16-bit peak that tinygemm, PyTorch's int4 kernel, reaches"),
)

#: Fixed cost of a launch that finds all operands in the cache, on the same weights as the one before: cuDNN's steps of
#: recurrent layers take 2.2 us less their steps along K in measurements/h100-sxm/zoo/ops.csv, where 2.7 are charged to
#: one that waits for main memory.
AGAIN = 0.81

#: Seconds after which a run counts as long for the power cap.
SUSTAINED = 3e-4


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of a launch by where they lie.

    Attributes:
        read: From main memory [byte].
        near: From the cache [byte].
        written: To main memory [byte].
        kept: Written to the cache, where the next launch writes over them [byte].
    """

    read: Any
    near: Any
    written: Any
    kept: Any

    def load(self, chip: Machine, share: Any) -> Any:
        """Time to read the operands, at a share of main memory's bandwidth where they lie there [s]."""
        return self.read / (chip.bandwidth * share) + self.near / chip.cache_bandwidth

    def store(self, chip: Machine, share: Any, cached: float) -> Any:
        """Time to write the results, at shares of main memory's bandwidth [s]."""
        return (self.written / share + self.kept / cached) / chip.bandwidth


def seconds(work: Launch, p: Mapping[str, float]) -> Any:
    """Time of one launch of a matmul [s]."""
    b, m, n, k = (np.asarray(size, dtype=np.float64) for size in OPS[work.op].matmuls(work.sizes))
    return tiled_seconds(work, p, b, m, n, k)


def tiled_seconds(work: Launch, p: Mapping[str, float], b: Any, m: Any, n: Any, k: Any, width: Any = None) -> Any:
    """Time of ``b`` matmuls of ``m x k`` by ``k x n`` with the traffic of ``work`` [s].

    ``width`` is the share of a 16-byte load that their rows allow, where that does not follow from ``n`` and ``k``.
    """
    kind = _kind(work)
    host = serving_stack.host_seconds(work, p, kind, m, n, k)
    peak = work.peak * p["share"] * p.get(f"share_{kind}", 1.0)
    peak = peak * p["share_dequantized"] if _is_dequantized(work) else peak
    step = p["step"] * p.get(f"step_{kind}", 1.0)
    if kind == "fp8_block":
        n, k = np.ceil(n / SCALED) * SCALED, np.ceil(k / SCALED) * SCALED
    if width is None:
        width = _width(work, n, m if work.row.kernel.attrs.get("turned") else k, m * n * k / (m * k + n * k + m * n))
    traffic = _traffic(work, p, (b, m, n, k, width))
    split = (kind, work.regime) not in UNSPLIT and not _scaled_by_row(work)
    choices = _choices(split, _is_dequantized(work), _scaled_by_row(work))

    def timed(tiles: tuple[Any, Any, Any], values: Sequence[Any]) -> Any:
        return _tiled(work, p, tuple(values[:5]), tiles, Traffic(*values[5:]), peak, step)

    alone = m if all(np.size(each) == 1 for each in (b, n, k, width)) else None
    moved = (traffic.read, traffic.near, traffic.written, traffic.kept)
    best = fastest(timed, choices, (b, m, n, k, width, *moved), alone)
    if _is_dequantized(work) or not work.machine.has_matrix:
        best = np.minimum(best, _by_vectors(work, p, (b, m, n, k), traffic))
    if kind in GEMV and np.any(np.minimum(m, n) == 1):
        vector = _by_vectors(work, p, (b, m, n, k), traffic)
        best = np.where(np.minimum(m, n) == 1, np.minimum(best, vector), best)
    begin = p["launch"] * (AGAIN if work.row.kernel.attrs.get("recurrent") else 1.0)
    time = begin + best + serving_stack.entry_seconds(work, p, kind, m, k)
    return np.maximum(host, time * (1 + _throttled(work, p, time)))


@lru_cache(maxsize=8)
def _choices(split: bool, dequantized: bool, by_row: bool) -> Any:
    """Tile shapes and splits that kernels of a kind have."""
    choices = CHOICES if split else CHOICES[CHOICES[:, 2] == 1]
    choices = choices[choices[:, :2].min(axis=1) >= BY_ROW_EDGE] if by_row else choices
    choices = choices[choices[:, 1] >= BY_ROW_COLUMNS] if by_row else choices
    return choices[choices[:, 0] <= DEQUANTIZED_ROWS] if dequantized else choices


def _throttled(work: Launch, p: Mapping[str, float], time: Any) -> Any:
    """Slowdown of a long launch under the power cap; :mod:`roofline.cost.power` adds that of a long program."""
    busy = np.minimum(work.row.flops / work.peak / time, 1.0)  # share of the time at the matrix units' peak
    return p["throttle"] * busy**2 * time / (time + SUSTAINED)


def _kind(work: Launch) -> str:
    """The format that parameters are named by."""
    stored = work.row.kernel.inputs[0].dtype
    return "fp8_block" if stored == "fp8-block" else work.dtype


def _width(work: Launch, n: Any, k: Any, intensity: Any) -> Any:
    """Share of a 16-byte load that rows of ``n`` and ``k`` elements allow: 1 where they are aligned.

    A left operand that is stored by column (the matmul of a weight's gradient) has rows of ``m`` instead of ``k``.
    torch.compile pads ``n`` where it takes the matmul to be bound by arithmetic: more multiply-adds to an element than
    half of the chip's FLOPs to a byte (``is_mm_compute_bound``, torch/_inductor/fx_passes/pad_mm.py) and finds it
    faster; where ``k`` is not aligned it seldom did (measurements/h200-sxm/padding.csv), so that these stay here.
    """
    stored = DTYPES[work.row.kernel.inputs[0].dtype]
    # Scales lie apart from the rows; the parameters of block-scaled fp8 were fitted with them inside.
    whole = ALIGNMENT / (work.element if stored.name == "fp8-block" else float(stored.bits) / 8)
    width = np.ones(np.broadcast(n, k, intensity).shape)
    for size in (2, 4, 8, 16):
        if size <= whole:
            width = np.where((n % size == 0) & (k % size == 0), float(size), width)
    padded = work.row.kernel.attrs.get("padded")
    if padded == "every":
        width = np.full(width.shape, whole)
    elif padded:
        width = np.where((k % whole == 0) & (intensity > work.peak / work.machine.bandwidth / 2), whole, width)
    return width / whole


def _tiled(
    work: Launch,
    p: Mapping[str, float],
    shape: tuple[Any, ...],
    tile: tuple[Any, Any, Any],
    traffic: Traffic,
    peak: Any,
    step: Any,
) -> Any:
    """Time on each tile shape and split, without the launch [s].

    A tile's results leave when its last step along K is done, so their time adds to that of the steps; where tiles
    follow each other on a core, the next one may start meanwhile.
    """
    (b, m, n, k, width), (rows, columns, parts) = shape, tile
    chip = work.machine
    tiles = np.ceil(m / rows) * np.ceil(n / columns) * b * parts
    deep = STEP * 8 / float(DTYPES[work.dtype].bits)
    steps = np.ceil(k / parts / deep)
    fed = 1 / (1 + p["tile_half"] * (1 / rows + 1 / columns) / 2)
    waves = np.maximum(tiles / chip.cores, 1.0)
    waves = waves + p["tail"] * (np.ceil(waves) - waves)
    compute = waves * 2 * rows * columns * steps * deep / (peak / chip.cores * fed)
    busy = np.minimum(tiles / chip.cores, 1.0)
    flying = busy ** p["skinny"]
    if _scaled_by_row(work):  # tiles of the same columns read the same weights: more rows are no faster
        flying = np.minimum(np.ceil(n / columns) * b * parts / chip.cores, 1.0) ** BY_ROW_SKINNY
    share = p["dram"] * flying
    memory = traffic.load(chip, share)
    loaded = tiles * (rows * work.element + columns * _second(work)) * steps * deep
    reread = loaded / (chip.cache_bandwidth * p["cache"])
    times = [compute, reread, step * steps]
    if _is_dequantized(work):
        times.append(waves * columns * steps * deep * _dequantizing(work, p))
    if _library(work) == "tinygemm":
        times.append(_tinygemm(work, p, (b, m, n, k)))
    if np.any(width < 1):
        odd = _narrow_loads(work, rows, columns, tiles, waves, (m, n)) * k / parts * work.element / (ALIGNMENT * width)
        pace = p["narrow"] * (BY_ROW if work.op == "matmul" else 1.0)
        times.append(np.where((width < 1) & (np.minimum(m, n) > 1), odd / pace, 0.0))
    time = _with_memory(times, memory, p)
    if p["fill"]:
        time = time + p["fill"] * np.sqrt(busy)
    partial = 2 * parts * b * m * n * 4 / (chip.cache_bandwidth * p["cache"])
    time = time + np.where(parts > 1, p["split"] + partial, 0.0)
    if _has_bias(work):
        time = np.where(
            (parts > BIASED) & ((width < 1) | (work.dtype == "fp32")) & (np.minimum(m, n) > FEW), np.inf, time
        )
    return _with_results(time, traffic.store(chip, p["store"], p["kept"]), work, p)


def _with_memory(times: list[Any], memory: Any, p: Mapping[str, float]) -> Any:
    """Time of a tile's resources and main memory, which tiles of all cores read ahead of their steps [s]."""
    if p["knee_memory"] == 1:
        return knee([times[0], memory, *times[1:]], p["knee"])
    return knee([knee(times, p["knee"]), memory], max(1.0, p["knee"] * p["knee_memory"]))


def _with_results(time: Any, stored: Any, work: Launch, p: Mapping[str, float]) -> Any:
    """Time with that of the results: those of the last wave wait for its steps, others leave while tiles run [s]."""
    if p["trail"] == 1:
        return time + stored
    wave = work.machine.cores * LARGEST * work.element / (work.machine.bandwidth * p["store"])
    last = np.minimum(stored, wave)
    return knee([time, stored - last], p["trail"]) + last


def _by_vectors(work: Launch, p: Mapping[str, float], shape: tuple[Any, ...], traffic: Traffic) -> Any:
    """Time on the vector units, without the launch [s]: all cores stream weights, which serve a few rows at a time.

    No row is padded to a tile; more rows read the weights again, from the cache.
    """
    (b, m, n, k), chip = shape, work.machine
    peak = vector_peak(work.chip, "fp32") if work.on_matrix else work.peak * p["share"]
    if not peak:
        return np.inf
    times = [2 * b * m * n * k / peak, traffic.load(chip, p["dram"])]
    if _is_dequantized(work):
        times.append(b * n * k * _dequantizing(work, p) / chip.units)
    if not chip.has_matrix:
        reread = b * n * k * _second(work) * (np.ceil(m / VECTOR_ROWS) - 1)
        times.append(reread / (chip.cache_bandwidth * p["cache"]))
    if _library(work) == "tinygemm":
        times.append(_tinygemm(work, p, shape))
    few = work.on_matrix or not chip.has_matrix or m <= VECTOR_ROWS  # more rows than that take tiles
    return np.where(few, knee(times, p["knee"]) + traffic.store(chip, p["store"], p["kept"]), np.inf)


def _narrow_loads(work: Launch, rows: Any, columns: Any, tiles: Any, waves: Any, shape: tuple[Any, Any]) -> Any:
    """Rows and columns that a core loads in narrow pieces, where rows are not aligned.

    Kernels for formats of 16 bits and more have tiles from :data:`NARROW_EDGE` up and run in waves; in narrower
    formats there are none for such rows, and what serving stacks run spreads its loads over the cores.
    """
    chip, (m, n) = work.machine, shape
    if DTYPES[work.dtype].bits < 16:
        return (np.minimum(rows, m) + np.minimum(columns, n)) * tiles / chip.units
    edges = np.minimum(np.maximum(rows, NARROW_EDGE), m) + np.minimum(np.maximum(columns, NARROW_EDGE), n)
    return edges * waves * (chip.cores / chip.units)


def _tinygemm(work: Launch, p: Mapping[str, float], shape: tuple[Any, ...]) -> Any:
    """Arithmetic of PyTorch's int4 kernel, whatever the tile [s]."""
    b, m, n, k = shape
    return 2 * b * m * n * k / (work.peak * p["tinygemm"])


def _has_bias(work: Launch) -> bool:
    """Tell whether the kernel adds a bias: cuBLASLt's fp32 kernels, and those for rows that are not aligned, then leave
    K whole (measurements/h200-sxm/linear.csv).
    """
    main = work.row.kernel.main
    return main.op == "linear" and len(main.inputs) > 2


def _scaled_by_row(work: Launch) -> bool:
    """Tell whether the first operand has a scale per row, on a chip that runs CUTLASS's kernel for that. ROCm's have
    small tiles and split K (EmbeddedLLM/vllm-rocmfork, csrc/fbgemm_fp8_rowwise/kernel/ops.h: ``16x16x32``, ``sk128``).
    """
    first = work.row.kernel.inputs[0]
    return work.chip.vendor == "NVIDIA" and DTYPES[first.dtype].group == first.shape[-1]


def _is_dequantized(work: Launch) -> bool:
    """Tell whether the kernel dequantizes its second operand itself: its numbers, not only how many of them are stored,
    are narrower than those that are multiplied. Units that multiply 4 bits take them beside 8-bit ones, too
    (``kind::mxf8f6f4``: https://docs.nvidia.com/cuda/parallel-thread-execution/, "Block Scaling for tcgen05.mma").
    """
    stored = [DTYPES[DTYPES[each].compute or each] for each in work.row.kernel.stored[1:2]]
    taken = DTYPES[work.dtype].bits == 8 and "fp4" in work.chip.matrix
    return any(each.bits < DTYPES[work.dtype].bits and not (taken and each.name == "fp4") for each in stored)


def _second(work: Launch) -> float:
    """Bytes of an element of the second operand, as tiles load it."""
    return float(DTYPES[work.row.kernel.stored[1]].bytes) if _is_dequantized(work) else work.element


def _dequantizing(work: Launch, p: Mapping[str, float]) -> float:
    """Time of a core to dequantise one weight, with its share of the group's scale [s]."""
    stored = DTYPES[work.row.kernel.stored[1]]
    scale_alone = stored.overhead_bits <= 16 or "sym" in stored.name
    fetched = p["dequantize_scale" if scale_alone and work.op == "expert_linear" else "dequantize_group"]
    return (p["dequantize"] + (fetched / stored.group if stored.group else 0.0)) / work.machine.clock


def _library(work: Launch) -> str:
    """The kernel that a dequantisation inside this one is told to run on."""
    inside = (dict(node.attrs) for node in work.row.kernel.nodes if node.op == "dequantize")
    return next((str(attrs["library"]) for attrs in inside if "library" in attrs), "")


def _traffic(work: Launch, p: Mapping[str, float], shape: tuple[Any, ...]) -> Traffic:
    """Split what a launch reads and writes by where it lies.

    A warm launch finds its activations and result in the cache if one launch fits it, its weights if all copies do.
    """
    chip, row = work.machine, work.row
    room = chip.cache * p["resident"]
    if row.kernel.attrs.get("recurrent"):  # a step after the other, on the same weights
        cached = fits(row.bytes, room)
        return Traffic(row.read * (1 - cached), row.read * cached, row.write * (1 - cached), row.write * cached)
    if work.regime != "warm" or not room:
        near = work.cached * fits(row.bytes, room)
        return Traffic(row.read - near, near, row.write, 0.0)
    b, _, n, k, _ = shape
    weights = np.minimum(b * n * k * _second(work), row.read)
    once = fits(row.bytes, room)
    near = weights * fits(row.bytes + (COPIES.get(_kind(work), 1) - 1) * weights, room) + (row.read - weights) * once
    return Traffic(row.read - near, near, row.write * (1 - once), row.write * once)
