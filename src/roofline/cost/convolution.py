"""Convolutions by algorithm: what the library can run for a layout and format is tried, and the fastest kept.

An implicit GEMM of ``n*p*q`` rows, ``o`` columns and depth ``i*r*s`` on the matrix units; the same on the
vector units between two layout copies where the format has no matrix units; a direct kernel without either; and, where
every channel is its own group, taps over the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from roofline.cost.machine import knee, vector_peak
from roofline.cost.parameters import Group, Parameter
from roofline.cost.work import Launch
from roofline.ir.dtypes import DTYPES

#: Tile shapes, in rows and columns of the output.
TILES = ((64, 64), (128, 64), (128, 128), (256, 64), (256, 128))
#: Tile of the kernels on vector units.
VECTOR_TILES = ((64, 64), (128, 64), (128, 128))
#: Elements of K that a core works on at a time.
STEP = 64
#: Channels that kernels on vector units take at a time.
SLAB = 8.0
#: Tile edge at which the matrix units are half fed [elements].
HALF = 20.0
#: Elements of K that a tile takes to start and to write its results.
FILL = 40.0
#: Sharpness of the knee between resources.
KNEE = 3.0
#: Rate of kernels on vector units that take channels last, against those that take channels first.
DIRECT = 0.5
#: Columns that a depthwise kernel loads beside each row of a window.
BESIDE = 4
#: Longest edge of a tile that is transformed at once.
SPECTRUM = 64.0
#: Bytes to which channels are padded for the matrix units.
ALIGNMENT = 16

GROUP = Group(
    "conv",
    launch=Parameter(3e-6, 0.5e-6, 2e-5, "s", "fixed cost of one launch", follows="launch"),
    extra=Parameter(2e-6, 0.2e-6, 1e-5, "s", "fixed cost of a layout copy, or of the address table of a window"),
    share=Parameter(0.8, 0.2, 0.95, "share", "of the matrix peak inside a large tile", follows="compute"),
    vector=Parameter(0.65, 0.2, 1.2, "share", "of the vector peak for convolutions without matrix units"),
    tap=Parameter(64.0, 8.0, 256.0, "channels", "to which each tap of a window is padded"),
    step=Parameter(1e-7, 5e-9, 1e-6, "s", "latency of one step along K on the matrix units"),
    dram=Parameter(0.88, 0.4, 1.0, "share", "of main memory's bandwidth", follows="memory"),
    cache=Parameter(1.2, 0.2, 1.5, "share", "of the cache's bandwidth for operands that tiles read again"),
    layout=Parameter(0.7, 0.1, 1.0, "share", "of main memory's bandwidth for layout copies"),
    spectral=Parameter(0.5, 0.05, 1.0, "share", "of vector peak and bandwidth through Fourier transforms"),
    taps=Parameter(0.3, 0.01, 1.0, "share", "of the fp32 vector peak of depthwise taps"),
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
    single = np.asarray((gemm.channels == 1) & (gemm.columns == 1))
    dense = np.minimum(np.minimum(_gemms(work, p, gemm), _direct(work, p, gemm)), _spectral(work, p, gemm))
    return np.where(single, np.minimum(dense, _depthwise(work, p, gemm)), dense)


def _gemm(work: Launch) -> _Gemm:
    s = {axis: np.asarray(size, dtype=np.float64) for axis, size in work.sizes.items()}
    groups = float(work.row.kernel.attrs.get("groups", 1))
    window = s["r"] * s.get("s", 1.0) * s.get("t", 1.0)
    if work.op in ("conv_transpose2d", "conv_transpose3d"):
        one, plane = np.asarray(1.0), s.get("d", 1.0) * s["h"] * s["w"]
        return _Gemm(groups, s["n"] * plane, s["o"] * window, s["c"] / groups, one, plane)
    rows = s["n"] * s["p"] * s.get("q", 1.0) * s.get("e", 1.0)
    return _Gemm(groups, rows, s["o"] / groups, s["i"], window, rows / s["n"])


def _gemms(work: Launch, p: Mapping[str, float], gemm: _Gemm) -> Any:
    """As GEMMs, on the matrix units or the vector units, with the layout copies that they need [s]."""
    on_vector = not work.on_matrix
    share = p["vector"] if on_vector else p["share"] * p.get(f"share_{work.dtype}", 1.0)
    align = SLAB if on_vector else ALIGNMENT / work.element
    padded = np.ceil(gemm.channels / align) * align
    channels = padded if on_vector else np.where(gemm.window > 1, np.maximum(padded, p["tap"]), padded)
    depth = channels * gemm.window
    tiles = VECTOR_TILES if on_vector else TILES
    step = 0.0 if on_vector else p["step"]
    time = _tiled(work, p, gemm, (depth, padded * gemm.window), tiles, work.peak * share, step)
    time = knee([time, work.row.bytes / (work.machine.bandwidth * p["dram"])], KNEE)
    copies, moved = _copies(work, gemm, on_vector, padded)
    return p["launch"] + time + copies * p["extra"] + moved / (work.machine.bandwidth * p["layout"])


def _copies(work: Launch, gemm: _Gemm, on_vector: bool, padded: Any) -> tuple[Any, Any]:
    """Layout copies besides the GEMM, and their traffic [byte].

    Kernels of the matrix units want channels last and padded; those of the vector units want channels first.
    """
    last = bool(work.row.kernel.attrs.get("channels_last", True))
    bytes_ = work.row.bytes
    turn = np.where(gemm.window > 1, 3.0, 2.0) * np.ones_like(padded)
    if on_vector:
        return (turn, 2 * bytes_) if last else (np.zeros_like(padded), np.zeros_like(padded) * bytes_)
    if not last:
        aligned = gemm.plane * work.element % ALIGNMENT == 0
        needed = (gemm.window > 1) | ~aligned
        return np.where(needed, turn, 0.0), np.where(needed, 2 * bytes_, 0.0)
    table = np.where(gemm.window > 1, 1.0, 0.0)
    wider = padded > gemm.channels
    return np.where(wider, 2.0, table), np.where(wider, work.row.read * (1 + padded / gemm.channels), 0.0)


def _tiled(
    work: Launch, p: Mapping[str, float], gemm: _Gemm, depths: tuple[Any, Any], tiles: Any, rate: Any, step: float
) -> Any:
    """Time of the GEMMs on the best of some tile shapes; ``depths`` of K as computed and as read [s]."""
    chip, (depth, read) = work.machine, depths
    half = HALF if step else 0.0
    best: Any = np.inf
    for high, wide in tiles:
        count = gemm.groups * np.ceil(gemm.rows / high) * np.ceil(gemm.columns / wide)
        fed = 1 / (1 + half * (1 / high + 1 / wide) / 2)
        walk = (depth + FILL) * 2 * high * wide / (rate / chip.units * fed)
        edges = np.minimum(high, gemm.rows) + np.minimum(wide, gemm.columns)
        reread = count * edges * read * work.element / (chip.cache_bandwidth * p["cache"])
        waves = np.ceil(count / chip.units)
        time = knee([waves * np.maximum(walk, step * np.ceil(depth / STEP)), reread], KNEE)
        best = np.minimum(best, time)
    return best


def _direct(work: Launch, p: Mapping[str, float], gemm: _Gemm) -> Any:
    """On the vector units, without copies [s]."""
    vector = vector_peak(work.chip, "fp32")
    if vector is None or DTYPES[work.dtype].bits > 32:
        return np.inf
    depth = gemm.channels * gemm.window
    rate = vector * p["vector"] * DIRECT * min(work.element / 4, 1.0)
    time = _tiled(work, p, gemm, (depth, depth), VECTOR_TILES[:1], rate, 0.0)
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
    s = work.sizes
    loaded = s["r"] * (s.get("s", 1) + BESIDE) * _area(work, "stride")
    vector = vector_peak(work.chip, "fp32") or work.peak
    taps = 2 * gemm.rows * gemm.groups * loaded / (vector * p["taps"])
    chain = p["launch"] + p["step"] * gemm.window
    return chain + knee([taps, work.row.bytes / (work.machine.bandwidth * p["dram"])], KNEE)
