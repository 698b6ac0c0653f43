"""Convolutions by the kernels that libraries have for them, in the layout that these want.

An implicit GEMM of ``n*p*q`` rows, ``o`` columns and depth ``i*r*s`` on the matrix units; a matmul where the window is
one point; the same on the vector units between two layout copies where the format has no matrix units; a direct kernel
without either, also for images of few channels; and, where every channel is its own group, taps over the input. The
copies around kernels of the matrix units are kernels of their own (:mod:`roofline.cost.lowering.convolution`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from roofline.cost import matmul
from roofline.cost.machine import knee, vector_peak
from roofline.cost.parameters import Group, Parameter, values
from roofline.cost.work import Launch
from roofline.counting.counts import Kernel
from roofline.ir.dtypes import DTYPES
from roofline.ir.sizes import prod
from roofline.ops.windows import per_axis

#: Tile shapes, in rows and columns of the output.
TILES = ((64, 64), (128, 64), (256, 64), (64, 128), (128, 128), (256, 128), (128, 256))
#: Tile of the kernels on vector units.
VECTOR_TILES = ((64, 64), (128, 64), (128, 128))
#: Tiles of those for images of few channels.
FEW_TILES = ((128, 32), (64, 64))
#: Points of a window, and steps between them, from which cuDNN 9 takes kernels of the generation before the H100's.
#: They load by 32 elements of K for tiles of :data:`USUAL` squared (``cutlass_tensorop_..._s16816fprop`` in ops.csv).
TAPS, FAR, USUAL = 32, 16, 128.0
#: Elements of K that a core works on at a time, and those that kernels load together.
STEP, LOADED = 64, 32
#: Channels of a group from which groups fill all that a core works on at a time, not only what it loads together.
PACKED = 16
#: Channels that kernels on vector units take at a time.
SLAB = 8.0
#: Elements of K that a tile on vector units takes to start and to write its results; in kernels for few channels.
FILL, FILL_FEW = 40.0, 22.0
#: Time of the direct kernel for volumes (``implicit_convolveNd_sgemm``) against that for planes.
VOLUME = 1.5
#: Sharpness of the knee between resources: on the vector units, on the matrix units.
KNEE, KNEE_MATRIX = 3.0, 2.0
#: Rate of kernels on vector units that take channels last, against those that take channels first.
DIRECT = 0.5
#: Steps along K that a direct kernel waits for an element of K: of images of few channels, of one group of many. The
#: latter is what calls take; single kernels took 1.3 when they were profiled.
CHAIN, CHAIN_ALONE = 1.15, 1.55
#: Rate of tf32 matmuls with instructions of the generation before (``cutlass_80_tensorop_s1688gemm``), of the others',
#: which cuDNN takes for windows of one point: so that measurements/h100-sxm/zoo/ops.csv and
#: h200-sxm/convolutions.csv fit; arXiv 2402.13499 compares the two kinds of instructions.
MMA_SYNC = 0.63
#: Channels and depth of a convolution up to which cuDNN leaves the matrix units idle: ``implicit_convolve_sgemm`` runs
#: 3x3 and 4x4 windows of 3 channels in measurements/h100-sxm/zoo/ops.csv, 7x7 and 16x16 windows have padded channels.
#: One channel stays off them whatever the window, and so do volumes and what is small: FLOPs times depth, between
#: 1.2e11 and 1.8e11 in measurements/h200-sxm/convolutions.csv and the zoos.
FEW, SHALLOW, SHALLOW_ONE, SHALLOW_LAST, SMALL = 4, 64, 200, 36, 1.5e11
#: Columns that a depthwise kernel loads beside each row of a window.
BESIDE = 4
#: Elements that kernels for 32 bits load for each tap.
UNSHARED = 3.4
#: Square windows that PyTorch's depthwise kernel has a template for
#: (https://github.com/pytorch/pytorch/blob/v2.11.0/aten/src/ATen/native/cuda/DepthwiseConv2d.cu,
#: ``conv_depthwise2d_forward_out``), and its taps that take as long as the addresses of an output; in loops over other
#: windows as long as those of an output, of a row and of a tap; and steps that a row waits for.
UNROLLED, ADDRESS, LOOPED, LOOPED_ROW = (1, 3, 5), 10, (15, 3, 0.7), 5
#: Longest edge of a tile that is transformed at once.
SPECTRUM = 64.0
#: Bytes to which channels are padded for the matrix units, and to which cuDNN's matmuls of other rows are aligned.
ALIGNMENT, LEAST = 16, 2

#: Operators whose points sum up windows of their images.
PLAIN = ("conv1d", "conv2d", "conv3d")
TRANSPOSED = ("conv_transpose2d", "conv_transpose3d")
#: Operators whose points spread over windows.
SPREADING = (*TRANSPOSED, "conv2d_grad_input")

GROUP = Group(
    "conv",
    launch=Parameter(3e-6, 0.5e-6, 2e-5, "s", "fixed cost of one launch", "launch", 3.0),
    light=Parameter(2.2e-6, 3e-7, 2e-5, "s", "fixed cost of one launch of a kernel without tiles of the matrix units"),
    extra=Parameter(2e-6, 0.2e-6, 1e-5, "s", "fixed cost of a layout copy around kernels of the vector units"),
    share=Parameter(0.8, 0.2, 1.1, "share", "of the matrix peak inside a large tile", follows="compute"),
    vector=Parameter(0.65, 0.2, 1.2, "share", "of the vector peak for convolutions without matrix units"),
    tap=Parameter(64.0, 8.0, 256.0, "channels", "to which each tap of a window is padded"),
    begin=Parameter(1e-6, 1e-8, 1e-5, "s", "for a tile on the matrix units to start and to write its results"),
    step=Parameter(1e-7, 5e-9, 1e-6, "s", "latency of one step along K on the matrix units"),
    scatter=Parameter(0.2, 0.01, 3.0, "cycles", "a core's work per point of a result that it writes with gaps"),
    older=Parameter(3e-7, 1e-8, 3e-6, "s", "the same of kernels for many or far taps or few channels"),
    dram=Parameter(0.88, 0.4, 1.0, "share", "of main memory's bandwidth", follows="memory"),
    cache=Parameter(1.2, 0.2, 1.5, "share", "of the cache's bandwidth for operands that tiles read again"),
    layout=Parameter(0.7, 0.1, 1.0, "share", "of main memory's bandwidth for these copies"),
    spectral=Parameter(0.5, 0.05, 1.0, "share", "of vector peak and bandwidth through Fourier transforms"),
    taps=Parameter(0.35, 0.01, 1.0, "share", "of the fp32 vector peak of depthwise taps"),
    plain=Parameter(0.13, 0.01, 2.0, "cycles", "a core's work per depthwise tap where channels lie first"),
    share_tf32=Parameter(0.9, 0.2, 1.5, "ratio", "tf32 against bf16, each of its own peak"),
    share_fp16=Parameter(1.0, 0.5, 1.5, "ratio", "fp16 against bf16"),
)


@dataclass(frozen=True)
class _Gemm:
    """A convolution as GEMMs.

    Groups, rows, columns, channels per tap, taps per window, points per image of the result, and of those, how many a
    step of one apart there are: fewer where the windows of an image's points are spread further.
    """

    groups: Any
    rows: Any
    columns: Any
    channels: Any
    window: Any
    plane: Any
    steps: Any


def seconds(work: Launch, p: Mapping[str, float]) -> Any:
    """Time of one launch of a convolution [s]."""
    gemm = as_gemm(work)
    if not work.on_matrix:
        time = np.minimum(np.minimum(_on_vector(work, p, gemm), _direct(work, p, gemm)), _spectral(work, p, gemm))
    elif is_point(work.row.kernel):
        time = _matmul(work, gemm)
    else:
        time, kernel = _implicit(work, p, gemm), work.row.kernel
        few = has_few_last if kernel.attrs.get("channels_last", True) else has_few
        direct = kernel.attrs.get("direct") or (may_be_direct(kernel) and few(work.sizes))
        if np.any(direct) and vector_peak(work.chip, "fp32") is not None:
            time = np.where(direct, _direct(work, p, gemm), time)
    single = np.asarray((gemm.channels == 1) & (gemm.columns == 1))
    if not np.any(single):
        return time
    by_channel = _depthwise(work, p, gemm)
    return np.where(single, by_channel if gemm.groups > 1 else np.minimum(time, by_channel), time)


def may_be_direct(kernel: Kernel) -> bool:
    """Tell whether cuDNN has a direct kernel for images of few channels: where these lie first, or windows step on."""
    narrow = DTYPES[kernel.inputs[0].dtype].bits <= 32 and kernel.attrs.get("groups", 1) == 1
    stepping = len(kernel.shapes[1]) == 4 and min(per_axis(kernel.attrs.get("stride", 1), 2)) > 1
    return narrow and kernel.main.op in PLAIN and (not kernel.attrs.get("channels_last", True) or stepping)


def has_few(sizes: Mapping[str, Any]) -> Any:
    """Tell whether an image whose channels lie first has too few of them for the matrix units."""
    channels, depth = np.asarray(sizes["i"]), prod(sizes[axis] for axis in "irst" if axis in sizes)
    small = 2.0 * depth**2 * prod(sizes[axis] for axis in "noepq" if axis in sizes) < SMALL
    shallow = (depth <= SHALLOW) | ((channels == 1) & (depth <= SHALLOW_ONE))
    return (channels <= FEW) & (shallow | small | ("t" in sizes))


def has_few_last(sizes: Mapping[str, Any]) -> Any:
    """Tell the same where its channels lie last, which else are padded."""
    return (np.asarray(sizes["i"]) <= FEW) & (prod(sizes[axis] for axis in "irst" if axis in sizes) <= SHALLOW_LAST)


def is_point(kernel: Kernel) -> bool:
    """Tell whether a convolution is a matmul of the channels: a window of one point that steps by one."""
    plain = kernel.attrs.get("groups", 1) == 1 and kernel.main.op in PLAIN
    return plain and all(size == 1 for size in (*kernel.shapes[1][2:], *per_axis(kernel.attrs.get("stride", 1), 3)))


def as_gemm(work: Launch) -> _Gemm:
    """Return a convolution as GEMMs."""
    s = {axis: np.asarray(size, dtype=np.float64) for axis, size in work.sizes.items()}
    groups = float(work.row.kernel.attrs.get("groups", 1))
    window = s["r"] * s.get("s", 1.0) * s.get("t", 1.0)
    if work.op in SPREADING:
        # Every point of the image spreads over a window of the result: one of these sums up a part of the window.
        result, points = ("epq", "dhw") if work.op in TRANSPOSED else ("dhw", "epq")
        plane, image = (prod(s[axis] for axis in axes if axis in s) for axes in (result, points))
        channels, columns = (s["c"], s["o"] * groups) if work.op in TRANSPOSED else (s["o"], s["c"])
        return _Gemm(groups, s["n"] * plane, columns / groups, channels / groups, window * image / plane, plane, image)
    rows = s["n"] * s["p"] * s.get("q", 1.0) * s.get("e", 1.0)
    return _Gemm(groups, rows, s["o"] / groups, s["i"], window, rows / s["n"], rows / s["n"])


def _matmul(work: Launch, gemm: _Gemm) -> Any:
    """As a matmul: of all points where channels lie last, of each image's where its points do [s]."""
    p, one = values(work.chip, matmul.GROUP), np.asarray(1.0)
    work = replace(work, peak=work.peak * MMA_SYNC) if work.dtype == "tf32" else work
    if work.row.kernel.attrs.get("channels_last", True):
        return matmul.tiled_seconds(work, p, one, gemm.rows, gemm.columns, gemm.channels)
    whole = ALIGNMENT / work.element
    width = np.where(gemm.plane % whole == 0, 1.0, np.where(gemm.plane % LEAST == 0, LEAST, 1) / whole)
    return matmul.tiled_seconds(work, p, gemm.rows / gemm.plane, gemm.columns, gemm.plane, gemm.channels, width)


def _implicit(work: Launch, p: Mapping[str, float], gemm: _Gemm) -> Any:
    """As a GEMM on the matrix units that looks its operands up in the image, channels last [s]."""
    align, gemm = ALIGNMENT / work.element, _packed(gemm)
    padded = np.ceil(gemm.channels / align) * align
    few, older = padded <= align, (gemm.window > TAPS) | (_reach(work) >= FAR)
    loaded = np.ceil(gemm.channels / LOADED) * LOADED
    whole = np.maximum(np.ceil(gemm.channels / STEP) * STEP, p["tap"])
    depth = np.where(gemm.window > 1, whole, loaded) * gemm.window
    rate = work.peak * p["share"] * p.get(f"share_{work.dtype}", 1.0)
    memory = work.row.bytes / (work.machine.bandwidth * p["dram"])
    best: Any = np.inf
    for tile in TILES:
        waves, walk, reread = _tile(work, p, gemm, (depth, padded * gemm.window), tile, rate)
        gaps = np.where(gemm.steps < gemm.plane, tile[0] * tile[1] * p["scatter"] / work.machine.clock, 0.0)
        walk = np.maximum(walk, p["step"] * np.ceil(gemm.channels / STEP) * gemm.window)
        pace = np.maximum(tile[0] * tile[1] / USUAL**2, np.where(few, 1.0, 0.0))
        walk = np.where(few | older, p["older"] * pace * loaded / LOADED * gemm.window, walk) + p["begin"] + gaps
        best = np.minimum(best, knee([waves * walk, reread, memory], KNEE_MATRIX))
    return p["launch"] + best


def _packed(gemm: _Gemm) -> _Gemm:
    """Groups of few channels share a tile, which multiplies them all."""
    filled = np.where(gemm.channels < PACKED, LOADED, STEP)
    together = np.where(gemm.groups > 1, np.clip(np.floor(filled / gemm.channels), 1.0, gemm.groups), 1.0)
    return replace(
        gemm, groups=np.ceil(gemm.groups / together), columns=gemm.columns * together, channels=gemm.channels * together
    )


def _reach(work: Launch) -> int:
    """Return by how much the taps of a window lie apart at most."""
    return int(max(per_axis(work.row.kernel.attrs.get("dilation", 1), 3)))


def _on_vector(work: Launch, p: Mapping[str, float], gemm: _Gemm) -> Any:
    """As GEMMs on the vector units, which want channels first, with the copies that they need [s]."""
    padded = np.ceil(gemm.channels / SLAB) * SLAB
    time = _tiled(work, p, gemm, padded * gemm.window, VECTOR_TILES, work.peak * p["vector"])
    time = knee([time, work.row.bytes / (work.machine.bandwidth * p["dram"])], KNEE)
    if not work.row.kernel.attrs.get("channels_last", True):
        return p["light"] + time
    copies = np.where(gemm.window > 1, 3.0, 2.0)
    moved = 2 * work.row.bytes / (work.machine.bandwidth * p["layout"])
    return p["light"] + time + copies * p["extra"] + moved


def _tiled(
    work: Launch, p: Mapping[str, float], gemm: _Gemm, depth: Any, tiles: Any, rate: Any, fill: float = FILL
) -> Any:
    """Time of the GEMMs on the vector units, on the best of some tile shapes [s]."""
    best: Any = np.inf
    for tile in tiles:
        waves, walk, reread = _tile(work, p, gemm, (depth + fill, depth), tile, rate)
        best = np.minimum(best, knee([waves * walk, reread], KNEE))
    return best


def _tile(
    work: Launch, p: Mapping[str, float], gemm: _Gemm, depths: tuple[Any, Any], tile: tuple[int, int], rate: Any
) -> tuple[Any, Any, Any]:
    """Waves of tiles, the arithmetic of one and the reads of all; ``depths`` of K as computed and as read [1, s, s]."""
    chip, (high, wide), (depth, read) = work.machine, tile, depths
    count = gemm.groups * np.ceil(gemm.rows / high) * np.ceil(gemm.columns / wide)
    edges = np.minimum(high, gemm.rows) + np.minimum(wide, gemm.columns)
    reread = count * edges * read * work.element / (chip.cache_bandwidth * p["cache"])
    return np.ceil(count / chip.units), depth * 2 * high * wide / (rate / chip.units), reread


def _direct(work: Launch, p: Mapping[str, float], gemm: _Gemm) -> Any:
    """On the vector units, without copies; 16-bit formats where channels are few [s]."""
    vector = vector_peak(work.chip, "fp32")
    if vector is None or DTYPES[work.dtype].bits > 32:
        return np.inf
    depth, alone = gemm.channels * gemm.window, bool(work.row.kernel.attrs.get("direct"))
    rate = vector * p["vector"] * DIRECT / (VOLUME if "t" in work.sizes else 1.0)
    tiles = VECTOR_TILES[1:2] if alone else FEW_TILES if work.on_matrix else VECTOR_TILES[:1]
    time = _tiled(work, p, gemm, depth, tiles, rate, FILL_FEW if work.on_matrix else FILL)
    if work.on_matrix:
        time = np.maximum(time, p["step"] * (CHAIN_ALONE if alone else CHAIN) * depth)
    return p["light"] + knee([time, work.row.bytes / (work.machine.bandwidth * p["dram"])], KNEE)


def _spectral(work: Launch, p: Mapping[str, float], gemm: _Gemm) -> Any:
    """Through Fourier transforms of tiles of the image: vector formats without stride only [s]."""
    s = work.sizes
    plain = work.op == "conv2d" and _area(work, "stride") == _area(work, "dilation") == 1
    if (
        work.dtype != "fp32"
        or work.on_matrix
        or not plain
        or s["r"] * s["s"] == 1
        or max(s["r"], s["s"]) > SPECTRUM / 2
    ):
        return np.inf
    high, wide = (np.asarray(s[axis], dtype=np.float64) for axis in "pq")
    edge = np.minimum(2 ** np.ceil(np.log2(np.maximum(high + s["r"], wide + s["s"]) - 1)), SPECTRUM)
    images = s["n"] * np.ceil(high / (edge - s["r"] + 1)) * np.ceil(wide / (edge - s["s"] + 1))
    points, channels = edge * (edge / 2 + 1), gemm.channels
    multiply = 8 * points * images * gemm.groups * channels * gemm.columns / (work.peak * p["spectral"])
    spectra = points * 8 * gemm.groups * (images * (channels + gemm.columns) + channels * gemm.columns)
    moved = 2 * spectra / p["spectral"] + 2 * work.row.bytes / p["layout"]
    return p["light"] + 7 * p["extra"] + multiply + moved / work.machine.bandwidth


def _area(work: Launch, option: str) -> int:
    value = work.row.kernel.attrs.get(option, 1)
    return int(value**2 if isinstance(value, int) else value[0] * value[-1])


def _depthwise(work: Launch, p: Mapping[str, float], gemm: _Gemm) -> Any:
    """One tap after the other over the input of each channel; a step along a row leaves neighbours less to share [s].

    Kernels for 32 bits share nothing. Each tap waits for its input and its weight.
    """
    if not work.row.kernel.attrs.get("channels_last", True):
        return _plain_depthwise(work, p, gemm)
    s, step = work.sizes, max(per_axis(work.row.kernel.attrs.get("stride", 1), 3))
    loaded = s["r"] * (s.get("s", 1) + BESIDE) * step if work.element <= 2 else UNSHARED * gemm.window
    vector = vector_peak(work.chip, "fp32") or work.peak
    taps = 2 * gemm.rows * gemm.groups * loaded / (vector * p["taps"])
    chain = p["light"] + np.where(work.element > 2, 1, 2) * p["step"] * gemm.window
    return chain + knee([taps, work.row.bytes / (work.machine.bandwidth * p["dram"])], KNEE)


def _plain_depthwise(work: Launch, p: Mapping[str, float], gemm: _Gemm) -> Any:
    """PyTorch's own kernel for channels first: a thread for each output reads its window [s].

    Squares of 1, 3 and 5 points are unrolled, other windows looped over, a row waiting for the other.
    """
    s = work.sizes
    high, wide = (s["r"], s["s"]) if "s" in s else (1, s["r"])
    unrolled = (high == wide) & np.isin(wide, UNROLLED)
    looped = LOOPED[0] + LOOPED[1] * high + LOOPED[2] * gemm.window
    cycles = np.where(unrolled, ADDRESS + gemm.window, looped) * p["plain"]
    taps = gemm.rows * gemm.groups * cycles / (work.machine.units * work.machine.clock)
    chain = np.where(unrolled, 0.0, p["step"] * (gemm.window / 2 + LOOPED_ROW * high))
    return p["light"] + knee([taps, chain, work.row.bytes / (work.machine.bandwidth * p["dram"])], KNEE)
