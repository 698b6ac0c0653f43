"""What matrix products and blocks of experts compute."""

from __future__ import annotations

import numpy as np

from roofline.ops.reference.calls import Array, Call, means
from roofline.ops.reference.pointwise import sigmoid


@means("linear")
def linear(call: Call, x: Array, weight: Array, *bias: Array) -> Array:
    return sum(bias, x @ weight.T)


@means("matmul", "bmm")
def matmul(call: Call, a: Array, b: Array, *bias: Array) -> Array:
    return sum(bias, a @ b)


@means("expert_linear")
def expert_linear(call: Call, x: Array, weight: Array, *bias: Array) -> Array:
    """Row ``r`` belongs to expert ``r mod E``."""
    out = np.empty(call.shape)
    experts = len(weight)
    for expert in range(min(experts, len(x))):
        rows = slice(expert, None, experts)
        out[rows] = sum((each[expert] for each in bias), x[rows] @ weight[expert].T)
    return out


@means("expert_linear_grad")
def expert_linear_grad(call: Call, grad: Array, x: Array) -> Array:
    out = np.zeros(call.shape)
    for expert in range(min(len(out), len(x))):
        rows = slice(expert, None, len(out))
        out[expert] = grad[rows].T @ x[rows]
    return out


@means("triangular_solve")
def triangular_solve(call: Call, matrix: Array, b: Array) -> Array:
    """The diagonal counts as ``1 + |d|``, so that random matrices can be solved."""
    n = matrix.shape[-1]
    diagonal = np.eye(n) * (1 + np.abs(matrix))
    return np.linalg.solve(np.tril(matrix, -1) + diagonal, b)


@means("moe")
def moe(call: Call, x: Array, up: Array, down: Array) -> Array:
    """Token ``t`` goes to the experts ``t``, ``t + 1``, ... ``mod E``, with equal shares."""
    experts, inner = len(up), down.shape[-1]
    picks = int(call.attrs["top_k"])
    out = np.zeros(call.shape)
    for expert in range(experts):
        chosen = (expert - np.arange(len(x))) % experts < picks
        wide = x[chosen] @ up[expert].T
        gate = wide[:, :inner] * sigmoid(wide[:, :inner])
        out[chosen] += (gate * wide[:, inner:] if wide.shape[1] == 2 * inner else gate) @ down[expert].T
    return out / picks
