"""Operators through numpy, and the bandwidth of each memory level with as many threads as programs use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from roofline.measurement.calibration.host import Host
from roofline.measurement.calibration.timing import Call, Task, repeat

Array = NDArray[Any]

#: Number formats of numpy's matmuls that a BLAS runs, by our names.
FORMATS = {"fp32": np.float32, "fp64": np.float64}

#: m, n, k: square, skinny, short and long in k. The first few are the quick ones.
GEMMS = (
    (1024, 1024, 1024), (512, 512, 512), (256, 256, 256), (64, 1024, 1024), (1, 4096, 4096), (128, 128, 128),
    (256, 2048, 512), (32, 2048, 2048), (8, 4096, 1024), (64, 64, 64), (256, 1024, 1024), (1536, 1536, 1536),
    (2048, 2048, 2048), (384, 384, 384), (768, 768, 768), (2048, 256, 2048), (128, 2048, 2048), (16, 1024, 4096),
    (1, 1024, 1024), (4, 2048, 2048), (1000, 1000, 1000), (100, 500, 700), (333, 1111, 777), (2048, 2048, 128),
    (32, 32, 4096), (96, 3072, 768), (512, 4096, 1024), (700, 300, 2500), (48, 48, 48), (192, 192, 192),
)  # fmt: skip
#: Elements of flat tensors, and rows and columns of others; the first few are the quick ones. Results beyond 32 MiB are
#: mapped anew by the C library at each call, which would measure the operating system.
FLAT = (2**22, 2**20, 2**16, 2**18, 2**12, 3 * 2**21, 2**21, 2**14, 3 * 2**15, 3 * 2**18)
ROWS = (
    (4096, 1024), (1024, 256), (16384, 64), (64, 8192), (256, 50257), (2048, 4096), (128, 768), (8, 1024), (32768, 128),
    (512, 2048),
)  # fmt: skip


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(e / e.sum(axis=-1, keepdims=True))


#: Elementwise operators on flat arrays, as a numpy program writes them.
_ELEMENTWISE: dict[str, Callable[[Array], object]] = {
    "copy": lambda x: x.copy(),
    "add": lambda x: x + x,
    "mul_scalar": lambda x: x * 2.0,
    "relu": lambda x: np.maximum(x, 0.0),
    "exp": np.exp,
}
#: Operators along rows.
_ROWWISE: dict[str, Callable[[Array], object]] = {
    "sum": lambda x: x.sum(axis=-1),
    "softmax": _softmax,
}


def matmuls(quick: bool) -> list[Task]:
    """Matmuls in the formats that the BLAS supports."""
    shapes = {"fp32": GEMMS[: 11 if quick else None], "fp64": GEMMS[: 8 if quick else 20]}
    return [_gemm(dtype, *shape) for dtype, some in shapes.items() for shape in some]


def _gemm(dtype: str, m: int, n: int, k: int) -> Task:
    def make() -> Call:
        a, b = np.full((m, k), 0.5, FORMATS[dtype]), np.full((k, n), 0.5, FORMATS[dtype])
        return lambda: a @ b

    size = (m + n) * k * np.dtype(FORMATS[dtype]).itemsize
    return Task("gemm", dtype, {"m": m, "n": n, "k": k}, make, size, "numpy")


def streams(quick: bool) -> list[Task]:
    """Elementwise and row-wise operators in fp32."""
    flat, rows = FLAT[: 4 if quick else None], ROWS[: 4 if quick else None]
    made = [_on(op, call, {"n": n}, (n,)) for op, call in _ELEMENTWISE.items() for n in flat]
    sizes = [({"rows": r, "cols": c}, (r, c)) for r, c in rows]
    return made + [_on(op, call, shape, size) for op, call in _ROWWISE.items() for shape, size in sizes]


def _on(op: str, call: Callable[[Array], object], shape: Mapping[str, int], size: tuple[int, ...]) -> Task:
    def make() -> Call:
        x = np.full(size, 0.5, np.float32)
        if op == "add":
            y = x.copy()
            return lambda: x + y
        return lambda: call(x)

    return Task(op, "fp32", shape, make, 4 * prod(size), "numpy")


def overhead(budget: float = 0.05) -> float:
    """Time the smallest numpy operator [s]."""
    x = np.zeros(8, dtype=np.float32)
    many = 200

    def call() -> None:
        for _ in range(many):
            x + x

    return repeat([call], budget).typical / many


# --- memory levels ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Level:
    """The bandwidth of one memory level, reads and writes together.

    Attributes:
        level: Of the cache; 0 is main memory.
        bandwidth: Best of copy, scale, add and read, all threads together [byte/s].
        kernel: Which of them that was.
    """

    level: int
    bandwidth: float
    kernel: str


#: Arrays that each of them streams over, and the call.
_STREAM: dict[str, tuple[int, Callable[[Array, Array, Array], object]]] = {
    "copy": (2, lambda a, b, c: np.copyto(a, b)),
    "scale": (2, lambda a, b, c: np.multiply(b, 3.0, out=a)),
    "add": (3, lambda a, b, c: np.add(b, c, out=a)),
    "read": (1, lambda a, b, c: b.max()),
}


def levels(host: Host, budget: float) -> Iterable[Level]:
    """Measure main memory and each cache level.

    Args:
        host: The machine.
        budget: Time for all of it [s].
    """
    sizes = [(0, 4 * host.last_level // host.threads)]
    sizes += [(cache.level, cache.size // 2 // min(cache.shared, host.threads)) for cache in reversed(host.caches)]
    for level, size in sizes:
        yield bandwidth(level, min(size, 2**28), host.threads, budget / len(sizes))


def bandwidth(level: int, size: int, threads: int, budget: float) -> Level:
    """The best bandwidth over a working set of ``size`` bytes per thread.

    Args:
        level: Named in the result.
        size: Of the arrays of one thread, all together [byte].
        threads: Threads at work.
        budget: Time for all of it [s].
    """
    best = Level(level, 0.0, "")
    with ThreadPoolExecutor(threads) as pool:
        for name, (arrays, call) in _STREAM.items():
            n = max(size // arrays // 4, 256)
            repeats = max(2**22 // n, 1)
            views = [tuple(_swept(n, repeats) for _ in range(3)) for _ in range(threads)]

            def run(views: Sequence[tuple[Array, ...]] = views, call: Any = call) -> None:
                list(pool.map(lambda three: call(*three), views))

            time = repeat([run], budget / len(_STREAM)).typical
            rate = threads * arrays * n * repeats * 4 / time
            best = max(best, Level(level, rate, name), key=lambda fastest: fastest.bandwidth)
    return best


def _swept(n: int, repeats: int) -> Array:
    """``n`` floats that one call sweeps over ``again`` times: numpy's own cost would hide a small cache."""
    return as_strided(np.ones(n, dtype=np.float32), (repeats, n), (0, 4))
