"""Convolutions by the kernels that libraries have for them, in the layout that these want.

An implicit GEMM of ``n*p*q`` rows, ``o`` columns and depth ``i*r*s`` on the matrix units; a matmul where the window is
one point; the same on the vector units between two layout copies where the format has no matrix units; a direct kernel
without either, also for images of few channels; and, where every channel is its own group, taps over the input. The
copies around kernels of the matrix units are kernels of their own (:mod:`roofline.cost.lowering.convolution`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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
#: Elements of K that a core works on at a time, and those that kernels load together.
STEP, LOADED = 64, 32
#: Channels that kernels on vector units take at a time.
SLAB = 8.0
#: Elements of K that a tile on vector units takes to start and to write its results; in kernels for few channels.
FILL, FILL_FEW = 40.0, 10.0
#: Sharpness of the knee between resources: on the vector units, on the matrix units.
KNEE, KNEE_MATRIX = 3.0, 2.0
#: Rate of kernels on vector units that take channels last, against those that take channels first.
DIRECT = 0.5
#: Channels and depth of a convolution up to which cuDNN leaves the matrix units idle: ``implicit_convolve_sgemm`` runs
#: 3x3 and 4x4 windows of 3 channels in measurements/h100-sxm/zoo/ops.csv, 7x7 and 16x16 windows have padded channels.
#: One channel stays off them whatever the window.
FEW, SHALLOW = 4, 64
#: Columns that a depthwise kernel loads beside each row of a window.
BESIDE = 4
#: Taps of PyTorch's depthwise kernel that take as long as the addresses of an output.
ADDRESS = 10
#: Longest edge of a tile that is transformed at once.
SPECTRUM = 64.0
#: Bytes to which channels are padded for the matrix units, and to which cuDNN's matmuls of other rows are aligned.
ALIGNMENT, LEAST = 16, 2

GROUP = Group(
    "conv",
    launch=Parameter(3e-6, 0.5e-6, 2e-5, "s", "fixed cost of one launch", follows="launch"),
    extra=Parameter(2e-6, 0.2e-6, 1e-5, "s", "fixed cost of a layout copy around kernels of the vector units"),
    share=Parameter(0.8, 0.2, 1.1, "share", "of the matrix peak inside a large tile", follows="compute"),
    vector=Parameter(0.65, 0.2, 1.2, "share", "of the vector peak for convolutions without matrix units"),
    tap=Parameter(64.0, 8.0, 256.0, "channels", "to which each tap of a window is padded"),
    begin=Parameter(1e-6, 1e-8, 1e-5, "s", "for a tile on the matrix units to start and to write its results"),
    step=Parameter(1e-7, 5e-9, 1e-6, "s", "latency of one step along K on the matrix units"),
    narrow=Parameter(3e-7, 1e-8, 3e-6, "s", "the same where a step has the few channels of one tap"),
    dram=Parameter(0.88, 0.4, 1.0, "share", "of main memory's bandwidth", follows="memory"),
    cache=Parameter(1.2, 0.2, 1.5, "share", "of the cache's bandwidth for operands that tiles read again"),
    layout=Parameter(0.7, 0.1, 1.0, "share", "of main memory's bandwidth for these copies"),
    spectral=Parameter(0.5, 0.05, 1.0, "share", "of vector peak and bandwidth through Fourier transforms"),
    taps=Parameter(0.3, 0.01, 1.0, "share", "of the fp32 vector peak of depthwise taps"),
    plain=Parameter(0.145, 0.01, 2.0, "cycles", "a core's work per depthwise tap where channels lie first"),
    share_tf32=Parameter(0.9, 0.2, 1.5, "ratio", "tf32 against bf16, each of its own peak"),
    share_fp16=Parameter(1.0, 0.5, 1.5, "ratio", "fp16 against bf16"),
)


@dataclass(frozen=True)
class _Gemm:
    """A convolution as GEMMs: groups, rows, columns, channels per tap, taps per window, pixels per image."""

    groups: Any
    rows: Any
    columns: Any
    channels: Any
    window: Any
    plane: Any


def seconds(work: Launch, p: Mapping[str, float]) -> Any:
    """Time of one launch of a convolution [s]."""
    gemm = _gemm(work)
    if not work.on_matrix:
        time = np.minimum(np.minimum(_on_vector(work, p, gemm), _direct(work, p, gemm)), _spectral(work, p, gemm))
    elif is_point(work.row.kernel):
        time = _matmul(work, gemm)
    else:
        time = _direct(work, p, gemm) if is_direct(work.row.kernel) else _implicit(work, p, gemm)
    single = np.asarray((gemm.channels == 1) & (gemm.columns == 1))
    return np.where(single, np.minimum(time, _depthwise(work, p, gemm)), time) if np.any(single) else time


def is_direct(kernel: Kernel) -> bool:
    """Tell whether the channels of an image are too few for the matrix units: in 16 bits, where channels lie first."""
    depth, attrs = kernel.shapes[1][1:], kernel.attrs
    if DTYPES[kernel.inputs[0].dtype].bits > 16 or attrs.get("channels_last", True) or not _is_plain(kernel):
        return False
    known = all(isinstance(size, int) for size in depth) and attrs.get("groups", 1) == 1
    return known and (depth[0] == 1 or (depth[0] <= FEW and prod(depth) <= SHALLOW))


def is_point(kernel: Kernel) -> bool:
    """Tell whether a convolution is a matmul of the channels: a window of one point that steps by one."""
    plain = kernel.attrs.get("groups", 1) == 1 and _is_plain(kernel)
    return plain and all(size == 1 for size in (*kernel.shapes[1][2:], *per_axis(kernel.attrs.get("stride", 1), 3)))


def _is_plain(kernel: Kernel) -> bool:
    """Tell whether every point of the output sums up a window of the input; a gradient or a transposed one does not."""
    return kernel.main.op in ("conv1d", "conv2d", "conv3d")


def _gemm(work: Launch) -> _Gemm:
    s = {axis: np.asarray(size, dtype=np.float64) for axis, size in work.sizes.items()}
    groups = float(work.row.kernel.attrs.get("groups", 1))
    window = s["r"] * s.get("s", 1.0) * s.get("t", 1.0)
    if work.op in ("conv_transpose2d", "conv_transpose3d"):
        one, plane = np.asarray(1.0), s.get("d", 1.0) * s["h"] * s["w"]
        return _Gemm(groups, s["n"] * plane, s["o"] * window, s["c"] / groups, one, plane)
    rows = s["n"] * s["p"] * s.get("q", 1.0) * s.get("e", 1.0)
    return _Gemm(groups, rows, s["o"] / groups, s["i"], window, rows / s["n"])


def _matmul(work: Launch, gemm: _Gemm) -> Any:
    """As a matmul: of all points where channels lie last, of each image's where its points do [s]."""
    p, one = values(work.chip, matmul.GROUP), np.asarray(1.0)
    if work.row.kernel.attrs.get("channels_last", True):
        return matmul.tiled_seconds(work, p, one, gemm.rows, gemm.columns, gemm.channels)
    whole = ALIGNMENT / work.element
    width = np.where(gemm.plane % whole == 0, 1.0, np.where(gemm.plane % LEAST == 0, LEAST, 1) / whole)
    return matmul.tiled_seconds(work, p, gemm.rows / gemm.plane, gemm.columns, gemm.plane, gemm.channels, width)


def _implicit(work: Launch, p: Mapping[str, float], gemm: _Gemm) -> Any:
    """As a GEMM on the matrix units that looks its operands up in the image, channels last [s]."""
    align = ALIGNMENT / work.element
    padded = np.ceil(gemm.channels / align) * align
    loaded = np.ceil(gemm.channels / LOADED) * LOADED
    depth = np.where(gemm.window > 1, np.maximum(loaded, p["tap"]), loaded) * gemm.window
    step = np.where(padded <= align, p["narrow"], p["step"])
    rate = work.peak * p["share"] * p.get(f"share_{work.dtype}", 1.0)
    memory = work.row.bytes / (work.machine.bandwidth * p["dram"])
    best: Any = np.inf
    for tile in TILES:
        waves, walk, reread = _tile(work, p, gemm, (depth, padded * gemm.window), tile, rate)
        walk = np.maximum(walk, step * np.ceil(gemm.channels / STEP) * gemm.window) + p["begin"]
        best = np.minimum(best, knee([waves * walk, reread, memory], KNEE_MATRIX))
    return p["launch"] + best


def _on_vector(work: Launch, p: Mapping[str, float], gemm: _Gemm) -> Any:
    """As GEMMs on the vector units, which want channels first, with the copies that they need [s]."""
    padded = np.ceil(gemm.channels / SLAB) * SLAB
    time = _tiled(work, p, gemm, padded * gemm.window, VECTOR_TILES, work.peak * p["vector"])
    time = knee([time, work.row.bytes / (work.machine.bandwidth * p["dram"])], KNEE)
    if not work.row.kernel.attrs.get("channels_last", True):
        return p["launch"] + time
    copies = np.where(gemm.window > 1, 3.0, 2.0)
    moved = 2 * work.row.bytes / (work.machine.bandwidth * p["layout"])
    return p["launch"] + time + copies * p["extra"] + moved


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
    depth, few = gemm.channels * gemm.window, DTYPES[work.dtype].bits <= 16
    rate = vector * p["vector"] * DIRECT
    time = _tiled(work, p, gemm, depth, VECTOR_TILES[:1], rate, FILL_FEW if few else FILL)
    return p["launch"] + knee([time, work.row.bytes / (work.machine.bandwidth * p["dram"])], KNEE)


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
    return p["launch"] + 7 * p["extra"] + multiply + moved / work.machine.bandwidth


def _area(work: Launch, option: str) -> int:
    value = work.row.kernel.attrs.get(option, 1)
    return int(value**2 if isinstance(value, int) else value[0] * value[-1])


def _depthwise(work: Launch, p: Mapping[str, float], gemm: _Gemm) -> Any:
    """One tap after the other over the input of each channel; a stride leaves neighbours nothing to share [s]."""
    if not work.row.kernel.attrs.get("channels_last", True):
        return _plain_depthwise(work, p, gemm)
    s = work.sizes
    loaded = s["r"] * (s.get("s", 1) + BESIDE) * _area(work, "stride")
    vector = vector_peak(work.chip, "fp32") or work.peak
    taps = 2 * gemm.rows * gemm.groups * loaded / (vector * p["taps"])
    chain = p["launch"] + p["step"] * gemm.window
    return chain + knee([taps, work.row.bytes / (work.machine.bandwidth * p["dram"])], KNEE)


def _plain_depthwise(work: Launch, p: Mapping[str, float], gemm: _Gemm) -> Any:
    """PyTorch's own kernel for channels first: a thread for each output reads its window [s]."""
    taps = gemm.rows * gemm.groups * (gemm.window + ADDRESS) * p["plain"] / (work.machine.units * work.machine.clock)
    return p["launch"] + knee([taps, work.row.bytes / (work.machine.bandwidth * p["dram"])], KNEE)
