"""Matmuls, and blocks of experts."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from roofline.ir.errors import ShapeError
from roofline.ir.sizes import ceil_div, distinct, minimum, share
from roofline.ir.unify import freeze, joined, unify
from roofline.ir.units import MAC
from roofline.ops.arrays import Call
from roofline.ops.axes import Site
from roofline.ops.einsum import contracted, contraction, multiply_adds
from roofline.ops.gradients import Tape
from roofline.ops.pointwise import sigmoid
from roofline.ops.registry import Array, Work, op

contraction(
    "linear", "... k, n k, [n] -> ... n", "matmul",
    "``x W^T + b``; the bias starts the accumulator and costs nothing.", "x w",
)  # fmt: skip
contraction(
    "matmul", "... m k, k n, [n] -> ... m n", "matmul",
    "``a @ b`` with one right-hand matrix; ``turned``: ``a`` is stored by column.", "a b",
)  # fmt: skip
contraction("bmm", "... m k, ... k n -> ... m n", "matmul", "``a @ b`` with both operands batched.", "a b")


# --- experts ----------------------------------------------------------------------------------------------------------


def _routed(t: Any, k: Any, e: Any, n: Any, top_k: int) -> Work:
    """Count one matmul per routed token; read the experts that at least one token picked.

    ``t`` counts (token, expert) pairs, so ``t / top_k`` tokens draw ``top_k`` of ``e`` experts each. With uniform
    routing they touch ``E (1 - (1 - k/E)^T)`` distinct ones.
    """
    tokens = t // top_k if isinstance(t, int) and t % top_k == 0 else t / top_k
    touched = distinct(e, top_k, tokens) * n
    return Work(flops=MAC * t * k * n, reads={1: touched * k, 2: touched})


def _matmul_by_expert(sizes: Mapping[str, Any]) -> tuple[Any, Any, Any, Any]:
    """One matmul for each expert that a token picked; those that none picked do not run."""
    groups = distinct(sizes["e"], 1, sizes["t"])
    return groups, sizes["t"] / groups, sizes["n"], sizes["k"]


def _bias_by_expert(t: Tape, bias: list[str], dy: str, axes: tuple[int, ...]) -> None:
    for name in bias:
        if t.needs_grad(name):
            t.accumulate(name, t.op("scatter_add", dy, name="grad_b", like=name, t=t.shape(name)[0]))


@op("expert_linear", "t k, e n k, [e n] -> t n", "matmul", formula=_routed, gemm=_matmul_by_expert,
    gradient=contracted("x", "w", bias=_bias_by_expert))  # fmt: skip
def expert_linear(call: Call, x: Array, weight: Array, *bias: Array) -> Array:
    """One matmul per routed token; row ``r`` belongs to expert ``r mod E``."""
    out = np.empty(call.shape)
    experts = len(weight)
    for expert in range(min(experts, len(x))):
        rows = slice(expert, None, experts)
        out[rows] = sum((each[expert] for each in bias), x[rows] @ weight[expert].T)
    return out


@op("expert_linear_grad", "t n, t k -> e n k", "matmul", formula=multiply_adds("t n, t k -> e n k"),
    options={"experts": "e"}, gemm=lambda s: (s["e"], s["n"], s["k"], s["t"] / s["e"]))  # fmt: skip
def expert_linear_grad(call: Call, grad: Array, x: Array) -> Array:
    """Gradients of all experts' matrices, each from the rows that were sent to it."""
    out = np.zeros(call.shape)
    for expert in range(min(len(out), len(x))):
        rows = slice(expert, None, len(out))
        out[expert] = grad[rows].T @ x[rows]
    return out


def routing_exponent(distribution: str) -> float:
    """Return the exponent of a routing such as ``power_law_1.2``; 0 for ``balanced`` and ``uniform``.

    Raises:
        ShapeError: None of these.

    Example:
        >>> routing_exponent("power_law_1.2"), routing_exponent("balanced")
        (1.2, 0.0)
    """
    if distribution in ("balanced", "uniform"):
        return 0.0
    head, _, tail = distribution.rpartition("_")
    exponent = float(tail) if head == "power_law" and tail.replace(".", "", 1).isdecimal() else 0.0
    if not 0 < exponent < 10:
        raise ShapeError(f"distribution {distribution!r}; allowed: balanced, uniform, power_law_X with 0 < X < 10")
    return exponent


def _blocks(t: Any, h: Any, e: Any, u: Any, i: Any, picks: Any, ranks: Any, distribution: str = "uniform") -> Work:
    """Count what one of ``ranks`` ranks gets on average: every one as many (token, expert) pairs.

    Read are the experts that at least one token chose: evenly routed all that there are pairs for, at random
    ``E (1 - (1 - k/E)^T)``, and at least half of that where some experts are more popular.
    """
    pairs = ceil_div(t * picks, ranks)
    touched = share(distinct(e * ranks, picks, t), ranks)
    if distribution == "balanced":
        touched = minimum(e, pairs)
    elif distribution != "uniform":
        touched = touched * Fraction(1, 2)
    return Work(flops=MAC * pairs * h * (u + i), reads={1: touched * u * h, 2: touched * h * i})


def _gate_and_up(site: Site) -> None:
    """Read whether the first matrix has a gate beside the up-projection."""
    up, inner = site.axes["u"], site.axes["i"]
    if up.size == inner.size:
        unify(up, inner, site.name)
    elif up.size == 2 * inner.size:
        unify(up, joined([inner, inner]), site.name)
    else:
        freeze((up, inner), site.name)


@op("moe", "t h, e u h, e h i -> t h", "moe", formula=_blocks, rule=_gate_and_up,
    derive=lambda top_k, ranks: {"picks": top_k, "ranks": ranks})  # fmt: skip
def moe(call: Call, x: Array, up: Array, down: Array) -> Array:
    """The experts of one of ``ranks`` ranks, for ``t`` tokens of all ranks that choose ``top_k`` experts each.

    Token ``t`` goes to the experts ``t``, ``t + 1``, ... ``mod E``, with equal shares; the time model works out the
    busiest rank.
    """
    experts, inner = len(up), down.shape[-1]
    picks = int(call.attrs["top_k"])
    out = np.zeros(call.shape)
    for expert in range(experts):
        chosen = (expert - np.arange(len(x))) % experts < picks
        wide = x[chosen] @ up[expert].T
        gate = wide[:, :inner] * sigmoid(wide[:, :inner])
        out[chosen] += (gate * wide[:, inner:] if wide.shape[1] == 2 * inner else gate) @ down[expert].T
    return out / picks


# --- others -----------------------------------------------------------------------------------------------------------


@op("triangular_solve", "... n n, ... n m -> ... n m", "matmul",
    formula=lambda batch, n, m: Work(flops=MAC // 2 * batch * m * n * (n + 1)),
    gemm=lambda s: (s["batch"], s["n"], s["m"], s["n"] / 2))  # fmt: skip
def triangular_solve(call: Call, matrix: Array, b: Array) -> Array:
    """``L^-1 B`` by substitution: half of the matrix, each element in a multiply-add per column (LAPACK's trsm).

    The diagonal counts as ``1 + |d|``, so that random matrices can be solved.
    """
    n = matrix.shape[-1]
    diagonal = np.eye(n) * (1 + np.abs(matrix))
    return np.linalg.solve(np.tril(matrix, -1) + diagonal, b)
