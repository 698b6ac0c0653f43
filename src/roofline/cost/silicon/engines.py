"""Cycles of a matrix engine for a product: padding to its shape, and the fill and drain of a systolic array."""

from __future__ import annotations

from typing import Any

import numpy as np

from roofline.hardware.grid import Engine


def granularity(engine: Engine) -> tuple[int, int, int]:
    """Return what rows, columns and depth are padded to: whole tiles; of a systolic array the array, not its rows."""
    if engine.tile is not None:
        return engine.tile
    m, n, k = engine.shape
    return (1 if engine.dataflow == "systolic" else m), n, k


def _padded(engine: Engine, m: Any, n: Any, k: Any) -> tuple[Any, Any, Any]:
    high, across, deep = granularity(engine)
    return np.ceil(m / high) * high, np.ceil(n / across) * across, np.ceil(k / deep) * deep


def cycles(engine: Engine, b: Any, m: Any, n: Any, k: Any) -> Any:
    """Return the cycles that the engines of one core take for ``b`` products of ``m x k`` by ``k x n``.

    A systolic array holds one tile of weights while it loads the next: fewer rows than that takes cycles leave it
    waiting (Jouppi et al., https://arxiv.org/abs/1704.04760: "to hide the 256 cycles it takes to shift a tile in"). It
    fills and drains once (https://jax-ml.github.io/scaling-book/tpus, appendix B). Without overlap each tile takes its
    load, its rows, fill and drain: ``2 R + C + T - 2`` of SCALE-Sim (Samajdar et al., ISPASS 2020; ``runtime`` in
    https://github.com/scalesim-project/scale-sim-v2, scalesim/topology_utils.py). Several arrays share either the tiles
    of weights or the rows.

    Example:
        >>> mxu = Engine(shape=(1, 128, 128), dataflow="systolic", load=128)
        >>> int(cycles(mxu, 1, 1024, 128, 128)), int(cycles(mxu, 1, 8, 128, 128))
        (1280, 384)
    """
    rows, columns, depth = (
        np.ceil(size / unit) * unit for size, unit in zip((m, n, k), granularity(engine), strict=True)
    )
    across, deep = engine.shape[1], engine.shape[2]
    if engine.dataflow == "systolic":
        folds, load = b * np.ceil(columns / across) * np.ceil(depth / deep), engine.load

        def fold(rows: Any) -> Any:
            return np.maximum(rows, load or 0) if engine.overlap else (load or deep) + rows + across + deep - 2

        by_fold, by_row = np.ceil(folds / engine.count) * fold(rows), folds * fold(np.ceil(rows / engine.count))
        return np.minimum(by_fold, by_row) + (across + deep if engine.overlap else 0)
    high, across, deep = engine.shape
    return np.ceil(b * np.ceil(rows / high) * np.ceil(columns / across) * np.ceil(depth / deep) / engine.count)


def utilisation(engine: Engine, b: Any, m: Any, n: Any, k: Any) -> Any:
    """Return the share of an engine's multiplications that a product needs, 0 to 1.

    Example:
        >>> tensix = Engine(shape=(8, 16, 16), tile=(32, 32, 32))
        >>> float(utilisation(tensix, 1, 64, 64, 64)), float(utilisation(tensix, 1, 1, 64, 64))
        (1.0, 0.03125)
    """
    each = float(np.prod(engine.shape)) * engine.count
    return b * m * n * k / (cycles(engine, b, m, n, k) * each)


def reads(engine: Engine, b: Any, m: Any, n: Any, k: Any, left: float, right: float) -> Any:
    """Return the bytes that the engines of one core read from its memory.

    Every product of two tiles reads both; a systolic array reads weights once, and rows again for each of its folds.

    Args:
        engine: The engine.
        b: Products.
        m: Rows.
        n: Columns.
        k: Depth.
        left: Bytes of an element of the left operand.
        right: Bytes of an element of the right one.
    """
    rows, columns, depth = (
        np.ceil(size / unit) * unit for size, unit in zip((m, n, k), granularity(engine), strict=True)
    )
    macs = b * rows * columns * depth
    if engine.dataflow == "systolic":
        return macs * left / engine.shape[1] + b * columns * depth * right
    high, across, _ = granularity(engine)
    return macs * (left / across + right / high)
