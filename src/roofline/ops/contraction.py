"""Matrix products, and blocks of experts."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from roofline.ir.errors import ShapeError
from roofline.ir.sizes import ceil_div, distinct, minimum
from roofline.ir.units import MAC
from roofline.ops.registry import Work, op


@op("linear", "... k, n k, [n] -> ... n", "matmul")
def linear(batch: Any, k: Any, n: Any) -> Work:
    """``x W^T + b``; the bias starts the accumulator and costs nothing."""
    return Work(flops=MAC * batch * k * n)


@op("matmul", "... m k, k n, [n] -> ... m n", "matmul")
def matmul(batch: Any, m: Any, k: Any, n: Any) -> Work:
    """``a @ b`` with one right-hand matrix; ``turned``: ``a`` is stored by column."""
    return Work(flops=MAC * batch * m * k * n)


@op("bmm", "... m k, ... k n -> ... m n", "matmul")
def bmm(batch: Any, m: Any, k: Any, n: Any) -> Work:
    """``a @ b`` with both operands batched."""
    return Work(flops=MAC * batch * m * k * n)


@op("expert_linear", "t k, e n k, [e n] -> t n", "matmul")
def expert_linear(t: Any, k: Any, e: Any, n: Any, top_k: int) -> Work:
    """One matmul for each routed token; reads the experts that at least one token picked.

    ``t`` counts (token, expert) pairs, so ``t / top_k`` tokens draw ``top_k`` of ``e`` experts each. With uniform
    routing they touch ``E (1 - (1 - k/E)^T)`` distinct ones.
    """
    touched = distinct(e, top_k, _ratio(t, top_k)) * n
    return Work(flops=MAC * t * k * n, reads={1: touched * k, 2: touched})


@op("triangular_solve", "... n n, ... n m -> ... n m", "matmul")
def triangular_solve(batch: Any, n: Any, m: Any) -> Work:
    """``L^-1 B`` by substitution: half of the matrix, each element in a multiply-add a column (LAPACK's trsm)."""
    return Work(flops=MAC // 2 * batch * m * n * (n + 1))


@op("expert_linear_grad", "t n, t k -> e n k", "matmul", derive=lambda experts: {"e": experts})
def expert_linear_grad(t: Any, k: Any, n: Any) -> Work:
    """Gradients of all experts' matrices, each from the rows that were sent to it."""
    return Work(flops=MAC * t * k * n)


def routing_exponent(distribution: str) -> float:
    """The exponent of a routing such as ``power_law_1.2``; 0 for ``balanced`` and ``uniform``.

    Raises:
        ShapeError: None of these.

    Example:
        >>> routing_exponent("power_law_1.2"), routing_exponent("balanced")
        (1.2, 0.0)
    """
    if distribution in ("balanced", "uniform"):
        return 0.0
    head, _, tail = distribution.rpartition("_")
    found = float(tail) if head == "power_law" and tail.replace(".", "", 1).isdecimal() else 0.0
    if not 0 < found < 10:
        raise ShapeError(f"distribution {distribution!r}; allowed: balanced, uniform, power_law_X with 0 < X < 10")
    return found


def _moe_sizes(top_k: Any, ranks: Any) -> dict[str, Any]:
    return {"picks": top_k, "ranks": ranks}


@op("moe", "t h, e u h, e h i -> t h", "moe", derive=_moe_sizes)
def moe(t: Any, h: Any, e: Any, u: Any, i: Any, picks: Any, ranks: Any, distribution: str = "uniform") -> Work:
    """The experts of one of ``ranks`` ranks, for ``t`` tokens of all ranks that choose ``picks`` experts each.

    Counts what a rank gets on average: every one as many (token, expert) pairs. Read are the experts that at least one
    token chose: evenly routed all that there are pairs for, at random ``E (1 - (1 - k/E)^T)``, and at least half of
    that where some experts are more popular. The time model works out the busiest rank.
    """
    pairs = ceil_div(t * picks, ranks)
    touched = ceil_div(distinct(e * ranks, picks, t), ranks)
    if distribution == "balanced":
        touched = minimum(e, pairs)
    elif distribution != "uniform":
        touched = touched * Fraction(1, 2)
    return Work(flops=MAC * pairs * h * (u + i), reads={1: touched * u * h, 2: touched * h * i})


def _ratio(a: Any, b: int) -> Any:
    return a // b if isinstance(a, int) and a % b == 0 else a / b
