"""What a blocked matmul may vary: the edges of its blocks, the order of its loops, packing, and who multiplies blocks.

Every variant computes the same product; a kernel is one function of :data:`KERNELS`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from importlib.util import find_spec
from itertools import permutations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from roofline.ir.errors import MissingExtra, UsageError, did_you_mean

Array = NDArray[Any]
Call = Callable[[], Array]

#: Edges of blocks in elements; those beyond a matrix are left out but for the first that holds all of it.
EDGES = (16, 32, 64, 128, 256, 512, 1024)
#: Orders of the three loops over blocks, the outermost first.
ORDERS = tuple("".join(order) for order in permutations("mnk"))


@dataclass(frozen=True, slots=True, order=True)
class Variant:
    """One way to block a matmul.

    Attributes:
        kernel: Who multiplies two blocks, a name of :data:`KERNELS`.
        bm: Rows of a block of the result.
        bn: Columns of it.
        bk: Elements of K that a step adds up.
        order: Of the loops over blocks, the outermost first.
        packed: Whether blocks of the second operand are copied into one piece each before they are used.
        unroll: Elements of K that the innermost loop adds up before it stores.
    """

    kernel: str
    bm: int
    bn: int
    bk: int
    order: str
    packed: bool = False
    unroll: int = 1

    def __str__(self) -> str:
        more = f"{' packed' if self.packed else ''}{f' unrolled by {self.unroll}' if self.unroll > 1 else ''}"
        return f"{self.kernel} {self.bm}x{self.bn}x{self.bk} {self.order}{more}"


FIELDS = tuple(field.name for field in fields(Variant))


@dataclass(frozen=True)
class Problem:
    """A matmul of ``m x k`` by ``k x n``.

    Attributes:
        m: Rows of the result.
        n: Columns of it.
        k: Elements that each adds up.
        dtype: ``fp32`` or ``fp64``.
    """

    m: int
    n: int
    k: int
    dtype: str = "fp32"

    @property
    def flops(self) -> float:
        """Two per multiply-add."""
        return 2.0 * self.m * self.n * self.k

    def __str__(self) -> str:
        return f"{self.m} x {self.n} x {self.k} {self.dtype}"


# --- kernels ----------------------------------------------------------------------------------------------------------

#: Corners and far corners of the blocks of one step: rows, columns and elements of K.
Step = tuple[int, int, int, int, int, int]


def steps(problem: Problem, variant: Variant) -> Iterator[Step]:
    """Yield the steps of a variant in its order."""
    sizes = {"m": (problem.m, variant.bm), "n": (problem.n, variant.bn), "k": (problem.k, variant.bk)}
    loops = [_spans(*sizes[axis]) for axis in variant.order]
    for spans in product(*loops):
        at = dict(zip(variant.order, spans, strict=True))
        yield (*at["m"], *at["n"], *at["k"])


def _spans(size: int, edge: int) -> list[tuple[int, int]]:
    return [(at, min(at + edge, size)) for at in range(0, size, edge)]


def _blocks_of(b: Array, variant: Variant) -> dict[tuple[int, int], Array]:
    """Copy the second operand into blocks, each in one piece."""
    k, n = b.shape
    return {
        (row, column): np.ascontiguousarray(b[row : row + variant.bk, column : column + variant.bn])
        for row in range(0, k, variant.bk) for column in range(0, n, variant.bn)
    }  # fmt: skip


def _numpy(problem: Problem, variant: Variant, a: Array, b: Array) -> Call:
    """Blocks are multiplied by the BLAS that numpy calls, and added to the result."""
    walk = tuple(steps(problem, variant))

    def call() -> Array:
        c, part = np.zeros((problem.m, problem.n), a.dtype), np.empty(variant.bm * variant.bn, a.dtype)
        packed = _blocks_of(b, variant) if variant.packed else None
        for top, bottom, left, right, first, last in walk:
            second = packed[first, left] if packed else b[first:last, left:right]
            out = part[: (bottom - top) * (right - left)].reshape(bottom - top, right - left)
            c[top:bottom, left:right] += np.matmul(a[top:bottom, first:last], second, out=out)
        return c

    return call


def _numba(problem: Problem, variant: Variant, a: Array, b: Array) -> Call:
    """Blocks are multiplied by loops that numba compiles, once for all edges; there is no packing."""
    walk, blocked = np.array(list(steps(problem, variant)), dtype=np.int64), _compiled(variant.unroll)

    def call() -> Array:
        c = np.zeros((problem.m, problem.n), a.dtype)
        blocked(walk, a, b, c)
        return c

    return call


@lru_cache(maxsize=2)
def _compiled(unroll: int) -> Any:
    from numba import njit

    @njit(fastmath=True)
    def plain(a: Array, b: Array, c: Array, i: int, first: int, last: int, left: int, right: int) -> None:
        out = c[i][left:right]  # slices of a row are known to be contiguous
        for p in range(first, last):
            factor, row = a[i, p], b[p][left:right]
            for j in range(len(out)):
                out[j] += factor * row[j]

    @njit(fastmath=True)
    def by_four(a: Array, b: Array, c: Array, i: int, first: int, last: int, left: int, right: int) -> None:
        whole, out = first + (last - first) // 4 * 4, c[i][left:right]
        for p in range(first, whole, 4):
            w, x, y, z = a[i, p], a[i, p + 1], a[i, p + 2], a[i, p + 3]
            b0, b1, b2, b3 = b[p][left:right], b[p + 1][left:right], b[p + 2][left:right], b[p + 3][left:right]
            for j in range(len(out)):
                out[j] += w * b0[j] + x * b1[j] + y * b2[j] + z * b3[j]
        plain(a, b, c, i, whole, last, left, right)

    row = {1: plain, 4: by_four}[unroll]

    @njit(fastmath=True)
    def blocked(walk: Array, a: Array, b: Array, c: Array) -> None:
        for at in range(walk.shape[0]):
            top, bottom, left, right, first, last = walk[at]
            for i in range(top, bottom):
                row(a, b, c, i, first, last, left, right)

    return blocked


@dataclass(frozen=True, slots=True)
class Kernel:
    """Who multiplies blocks.

    Attributes:
        make: Returns the call that multiplies two matrices in a variant.
        package: What it needs.
        packed: Whether it can copy blocks of the second operand first.
        unroll: By how much its innermost loop can be unrolled.
    """

    make: Callable[[Problem, Variant, Array, Array], Call]
    package: str
    packed: tuple[bool, ...] = (False,)
    unroll: tuple[int, ...] = (1,)


KERNELS = {"numpy": Kernel(_numpy, "numpy", packed=(False, True)), "numba": Kernel(_numba, "numba", unroll=(1, 4))}


def available() -> tuple[str, ...]:
    """Return the kernels whose packages are installed."""
    return tuple(name for name, kernel in KERNELS.items() if find_spec(kernel.package) is not None)


def checked_kernels(names: Iterable[str] | None) -> tuple[str, ...]:
    """Return kernels by name; compiled loops, or the BLAS where numba is not installed, where there is none.

    Raises:
        UsageError: No kernel of that name.
        MissingExtra: Its package is not installed.
    """
    chosen = available()[-1:] if names is None else tuple(names)
    for name in chosen:
        if name not in KERNELS:
            allowed = ", ".join(KERNELS)
            raise UsageError(f"kernel {name!r}; allowed: {allowed}{did_you_mean(str(name), KERNELS)}")
        if name not in available():
            raise MissingExtra(f'kernel {name!r} needs {KERNELS[name].package}: pip install "roofline[tune]"')
    if not chosen:
        raise UsageError(f"no kernels; allowed: {', '.join(KERNELS)}")
    return chosen


def runner(problem: Problem, variant: Variant, a: Array, b: Array) -> Call:
    """Return the call that multiplies ``a`` by ``b`` in a variant."""
    return KERNELS[variant.kernel].make(problem, variant, a, b)


# --- the space --------------------------------------------------------------------------------------------------------


def space(problem: Problem, kernels: Sequence[str], most_steps: int = 2**15) -> tuple[Variant, ...]:
    """List the variants of a problem.

    Args:
        problem: What is multiplied.
        kernels: Of :data:`KERNELS`.
        most_steps: Variants with more steps are left out: each costs a call.
    """
    edges = [_edges(size) for size in (problem.m, problem.n, problem.k)]
    some = (
        Variant(kernel, bm, bn, bk, order, packed, unroll)
        for kernel in kernels for bm, bn, bk in product(*edges) for order in ORDERS
        for packed in KERNELS[kernel].packed for unroll in KERNELS[kernel].unroll
    )  # fmt: skip
    return tuple(each for each in some if _steps(problem, each) <= most_steps)


def _edges(size: int) -> tuple[int, ...]:
    """Return the edges that a size may be cut by: all below it, and the first that holds it."""
    return tuple(edge for before, edge in zip((0, *EDGES), EDGES, strict=False) if before < size)


def _steps(problem: Problem, variant: Variant) -> int:
    return -(-problem.m // variant.bm) * -(-problem.n // variant.bn) * -(-problem.k // variant.bk)


def neighbours(variant: Variant, known: frozenset[Variant]) -> Iterator[Variant]:
    """Yield the variants of a space that differ in one choice: an edge by one step, or anything else at all."""
    for name in ("bm", "bn", "bk"):
        at = EDGES.index(getattr(variant, name))
        for edge in EDGES[max(at - 1, 0) : at + 2]:
            change: dict[str, Any] = {name: edge}
            yield from _if_known(replace(variant, **change), known)
    for other in ORDERS:
        yield from _if_known(replace(variant, order=other), known)
    for packed, unroll in product(KERNELS[variant.kernel].packed, KERNELS[variant.kernel].unroll):
        yield from _if_known(replace(variant, packed=packed, unroll=unroll), known)


def crossed(first: Variant, second: Variant, takes: Sequence[bool]) -> Variant:
    """Return a variant with each choice of one of two."""
    values = (getattr(first if mine else second, name) for name, mine in zip(FIELDS, takes, strict=True))
    return Variant(*values)


def _if_known(variant: Variant, known: frozenset[Variant]) -> Iterator[Variant]:
    if variant in known:
        yield variant
