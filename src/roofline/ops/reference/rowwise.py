"""What operators along an axis compute: softmax, norms, reductions, and their gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from roofline.ops.reference.calls import Array, Call, indices, means, mix

#: Added to a variance before its root where the node carries no ``eps``: the default of PyTorch's norms.
EPSILON = 1e-5


def _epsilon(call: Call) -> float:
    return float(call.attrs.get("eps", EPSILON))


def normalised(x: Array, axes: tuple[int, ...], eps: float, centred: bool = True) -> tuple[Array, Array]:
    """``(x - mean) rstd`` and ``rstd``."""
    rest = x - x.mean(axis=axes, keepdims=True) if centred else x
    rstd = 1 / np.sqrt((rest * rest).mean(axis=axes, keepdims=True) + eps)
    return rest * rstd, rstd


def _scaled(x: Array, scales: tuple[Array, ...], axis: int) -> Array:
    """Times the first vector, plus the second, along an axis."""
    shape = [1] * x.ndim
    shape[axis] = -1
    parts = [each.reshape(shape) for each in scales]
    return x * parts[0] + (parts[1] if len(parts) > 1 else 0) if parts else x


@means("softmax")
def softmax(call: Call, x: Array) -> Array:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    total: Array = weights / weights.sum(axis=-1, keepdims=True)
    return total


@means("layernorm")
def layernorm(call: Call, x: Array, *scales: Array) -> Array:
    return _scaled(normalised(x, (-1,), _epsilon(call))[0], scales, -1)


@means("rmsnorm")
def rmsnorm(call: Call, x: Array, *scales: Array) -> Array:
    return _scaled(normalised(x, (-1,), _epsilon(call), centred=False)[0], scales, -1)


@means("layernorm2d")
def layernorm2d(call: Call, x: Array, *scales: Array) -> Array:
    return _scaled(normalised(x, (1,), _epsilon(call))[0], scales, 1)


@means("groupnorm")
def groupnorm(call: Call, x: Array, *scales: Array) -> Array:
    """One group where the node does not say how many."""
    grouped = x.reshape(len(x), call.attrs.get("groups", 1), -1)
    return _scaled(normalised(grouped, (-1,), _epsilon(call))[0].reshape(x.shape), scales, 1)


@means("batchnorm2d")
def batchnorm(call: Call, x: Array, *parts: Array) -> Array:
    """Scale, shift, mean, variance; two vectors are the latter two, which are always there."""
    *scales, mean, variance = parts if len(parts) > 1 else (*parts, np.zeros(x.shape[1]), np.ones(x.shape[1]))
    rstd = 1 / np.sqrt(variance + _epsilon(call))
    return _scaled(_scaled(x, (rstd, -mean * rstd), 1), tuple(scales), 1)


@means("batchnorm_train")
def batchnorm_train(call: Call, x: Array, *scales: Array) -> Array:
    axes = (0, *range(2, x.ndim))
    return _scaled(normalised(x, axes, _epsilon(call))[0], scales, 1)


@means("sum")
def total(call: Call, x: Array) -> Array:
    return np.asarray(x.sum(axis=-1))


@means("mean")
def mean(call: Call, x: Array) -> Array:
    return np.asarray(x.mean(axis=-1))


#: Reductions by the option ``how``.
REDUCTIONS: dict[str, Callable[..., Array]] = {
    "sum": np.sum, "mean": np.mean, "prod": np.prod, "max": np.max, "min": np.min, "var": np.var, "std": np.std,
}  # fmt: skip


@means("reduce")
def reduce(call: Call, x: Array) -> Array:
    """The option ``how`` says which; without one, a sum times a number of the node's own."""
    axes, how = call.attrs.get("axes"), call.attrs.get("how")
    along = axes if isinstance(axes, int) else tuple(axes or range(x.ndim))
    keep = bool(call.attrs.get("keepdim", False))
    if how in REDUCTIONS:
        return np.asarray(REDUCTIONS[how](x, axis=along, keepdims=keep))
    return np.asarray(call.free("factor") * x.sum(axis=along, keepdims=keep))


@means("scan")
def scan(call: Call, x: Array) -> Array:
    """Nothing says which function of a row: a running sum times a number of the node's own."""
    return call.free("factor") * np.cumsum(x, axis=-1)


@means("argmax")
def argmax(call: Call, x: Array) -> Array:
    return np.asarray(x.argmax(axis=-1), dtype=np.float64)


@means("topk")
def topk(call: Call, x: Array) -> Array:
    """The values, largest first."""
    return -np.sort(-x, axis=-1)[..., : call.attrs["k"]]


@means("global_avgpool")
def global_avgpool(call: Call, x: Array) -> Array:
    return np.asarray(x.mean(axis=(2, 3)))


@means("pool", "pool_grad")
def pool(call: Call, *arrays: Array) -> Array:
    """Nothing says which windows: a fixed function of all that is read."""
    return mix(call, arrays, call.shape)


@means("cross_entropy")
def cross_entropy(call: Call, x: Array, labels: Array) -> Array:
    """Of each row, ``log(sum(exp(x))) - x[label]``."""
    peak = x.max(axis=-1)
    chosen = np.take_along_axis(x, indices(labels, x.shape[-1])[..., None], axis=-1)[..., 0]
    return peak + np.log(np.exp(x - peak[..., None]).sum(axis=-1)) - chosen


@means("cross_entropy_grad")
def cross_entropy_grad(call: Call, x: Array, labels: Array, grad: Array) -> Array:
    weights = softmax(call, x)
    hot = np.arange(x.shape[-1]) == indices(labels, x.shape[-1])[..., None]
    return np.asarray((weights - hot) * grad[..., None])


@means("softmax_grad")
def softmax_grad(call: Call, grad: Array, y: Array) -> Array:
    return y * (grad - (grad * y).sum(axis=-1, keepdims=True))


def norm_grad(grad: Array, x: Array, axes: tuple[int, ...], eps: float, centred: bool = True) -> Array:
    """``rstd (dy - mean(dy) - n mean(dy n))`` with the normalised ``n``; without the first mean where none is taken."""
    n, rstd = normalised(x, axes, eps, centred)
    rest = grad - n * (grad * n).mean(axis=axes, keepdims=True)
    return rstd * (rest - grad.mean(axis=axes, keepdims=True) if centred else rest)


@means("layernorm_grad")
def layernorm_grad(call: Call, grad: Array, x: Array, *scale: Array) -> Array:
    return norm_grad(_scaled(grad, scale[:1], -1), x, (-1,), _epsilon(call))


@means("rmsnorm_grad")
def rmsnorm_grad(call: Call, grad: Array, x: Array, *scale: Array) -> Array:
    return norm_grad(_scaled(grad, scale[:1], -1), x, (-1,), _epsilon(call), centred=False)


@means("channelnorm_grad")
def channelnorm_grad(call: Call, grad: Array, x: Array, *scale: Array) -> Array:
    axes = (0, *range(2, x.ndim))
    return norm_grad(_scaled(grad, scale[:1], 1), x, axes, _epsilon(call))
