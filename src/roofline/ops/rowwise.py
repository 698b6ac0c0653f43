"""Along an axis: softmax, norms, reductions, pooling, and their gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from roofline.ir.graph import Node
from roofline.ir.signature import Shape
from roofline.ir.sizes import prod
from roofline.ops.arrays import Call, indices, mix
from roofline.ops.axes import reduced_axes, same_places
from roofline.ops.gradients import Rule, Tape, options, repeated, runs
from roofline.ops.registry import Array, Reference, Work, axes_of, op, per_element, shape_option
from roofline.ops.windows import padded, per_axis, positions, taps

#: Maximum excluded: subtract, exponential, sum, divide, and the scale before it (Yuan et al. 2024 count the same 5).
SOFTMAX_FLOPS = 5
#: Of the logits, maximum excluded: subtract, exponential, sum.
CROSS_ENTROPY_FLOPS = 3
#: Mean, centre, square, sum, normalise, scale, shift (the 7 of Yuan et al. 2024).
LAYERNORM_FLOPS = 7
#: Square, sum, normalise, scale.
RMSNORM_FLOPS = 4
#: ``y (dy - sum(y dy))``.
SOFTMAX_GRAD_FLOPS = 4
#: ``rstd (g dy - mean(g dy) - n mean(g dy n))`` with ``n = (x - mean) rstd``: 2 for n, 1 for g dy, 3 for the two sums,
#: 4 for the rest.
LAYERNORM_GRAD_FLOPS = 10
#: The same without the means: 1 for n, 1 for g dy, 2 for the sum, 3 for the rest.
RMSNORM_GRAD_FLOPS = 7

#: Added to a variance before its root where the node carries no ``eps``: the default of PyTorch's norms.
EPSILON = 1e-5


# --- softmax ----------------------------------------------------------------------------------------------------------


@op("softmax", "... c -> ... c", "rowwise", formula=per_element(SOFTMAX_FLOPS), gradient=runs("softmax_grad", "y"))
def softmax(call: Call, x: Array) -> Array:
    """Softmax along the last axis."""
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    total: Array = weights / weights.sum(axis=-1, keepdims=True)
    return total


@op("softmax_grad", "... c, ... c -> ... c", "rowwise", formula=per_element(SOFTMAX_GRAD_FLOPS))
def softmax_grad(call: Call, grad: Array, y: Array) -> Array:
    """Backward of a softmax, from the gradient and the probabilities."""
    return y * (grad - (grad * y).sum(axis=-1, keepdims=True))


def _cross_entropy_gradient(t: Tape, node: Node, dy: str) -> None:
    """``(softmax(x) - one_hot) dy``, from the logits."""
    x, labels = node.inputs
    t.give(x, t.op("cross_entropy_grad", t.kept(x), labels, dy, name="grad", like=x))


@op("cross_entropy", "... c, ... -> ...", "rowwise", formula=per_element(CROSS_ENTROPY_FLOPS),
    gradient=_cross_entropy_gradient)  # fmt: skip
def cross_entropy(call: Call, x: Array, labels: Array) -> Array:
    """``log(sum(exp(x))) - x[label]`` of each row as one kernel that writes only the losses."""
    peak = x.max(axis=-1)
    chosen = np.take_along_axis(x, indices(labels, x.shape[-1])[..., None], axis=-1)[..., 0]
    return peak + np.log(np.exp(x - peak[..., None]).sum(axis=-1)) - chosen


@op("cross_entropy_grad", "... c, ..., ... -> ... c", "rowwise", formula=per_element(CROSS_ENTROPY_FLOPS + 3))
def cross_entropy_grad(call: Call, x: Array, labels: Array, grad: Array) -> Array:
    """Backward of the cross-entropy, from logits, labels and the gradients of the losses: the softmax once more."""
    hot = np.arange(x.shape[-1]) == indices(labels, x.shape[-1])[..., None]
    return np.asarray((softmax(call, x) - hot) * grad[..., None])


# --- norms ------------------------------------------------------------------------------------------------------------


def normalised(x: Array, axes: tuple[int, ...], call: Call, centred: bool = True) -> tuple[Array, Array]:
    """Return ``(x - mean) rstd`` and ``rstd``."""
    rest = x - x.mean(axis=axes, keepdims=True) if centred else x
    variance = (rest * rest).mean(axis=axes, keepdims=True)
    rstd = 1 / np.sqrt(variance + float(call.attrs.get("eps", EPSILON)))
    return rest * rstd, rstd


def _scaled(x: Array, scales: tuple[Array, ...], axis: int) -> Array:
    """Multiply by the first vector and add the second, along an axis."""
    shape = [1] * x.ndim
    shape[axis] = -1
    parts = [each.reshape(shape) for each in scales]
    return x * parts[0] + (parts[1] if len(parts) > 1 else 0) if parts else x


def _over_rows(x: Array) -> tuple[int, ...]:
    return (-1,)


def _over_batch(x: Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _scale(axes: Callable[[Array], tuple[int, ...]], centred: bool) -> Reference:
    """Multiply the gradient by the normalised input, before the sum over rows."""
    return lambda call, dy, x: dy * normalised(x, axes(x), call, centred)[0]


def _norm_gradient(grad: str, channels: bool = False) -> Rule:
    """Make the backward of a norm: to the input by a kernel of its own, to scale and shift sums over all rows."""

    def rule(t: Tape, node: Node, dy: str) -> None:
        x, *weights = node.inputs
        if t.wants(x):
            attrs = options(node, "groups", "eps")
            t.give(x, t.op(grad, dy, t.kept(x), *weights[:1], name="grad_x", like=x, **attrs))
        _scale_and_shift(t, node, weights[:2], t.kept(x), dy, channels)

    return rule


def _scale_and_shift(t: Tape, node: Node, weights: list[str], x: str, dy: str, channels: bool) -> None:
    rank = len(t.shape(x))
    axes, what = (0, *range(2, rank)) if channels else tuple(range(rank - 1)), f"{node.op}_scale"
    with t.kernel("grad_w"):
        for at, name in enumerate(weights):
            if t.wants(name):
                terms = dy if at else t.op("elementwise", dy, x, name="grad_terms", like=name, flops=3, what=what)
                t.give(name, t.op("reduce", terms, name=f"grad_{'wb'[at]}", like=name, axes=axes, how="sum"))


def _fixed_norm_gradient(t: Tape, node: Node, dy: str) -> None:
    """Batch normalisation by statistics that are kept: a product."""
    x, *weights = node.inputs
    if t.wants(x):
        t.give(x, t.op("elementwise", dy, name="grad_x", like=x, flops=1))
    _scale_and_shift(t, node, weights[:2], t.kept(x), dy, True)


@op("layernorm", "... c, [c], [c] -> ... c", "rowwise", formula=per_element(LAYERNORM_FLOPS),
    gradient=_norm_gradient("layernorm_grad"), gradients={"layernorm_scale": _scale(_over_rows, True)})  # fmt: skip
def layernorm(call: Call, x: Array, *scales: Array) -> Array:
    """Layer normalisation along the last axis."""
    return _scaled(normalised(x, (-1,), call)[0], scales, -1)


@op("rmsnorm", "... c, [c] -> ... c", "rowwise", formula=per_element(RMSNORM_FLOPS),
    gradient=_norm_gradient("rmsnorm_grad"), gradients={"rmsnorm_scale": _scale(_over_rows, False)})  # fmt: skip
def rmsnorm(call: Call, x: Array, *scales: Array) -> Array:
    """Root-mean-square normalisation along the last axis."""
    return _scaled(normalised(x, (-1,), call, centred=False)[0], scales, -1)


@op("groupnorm", "n c=(g e) ..., [c], [c] -> n c ...", "rowwise", formula=per_element(LAYERNORM_FLOPS),
    options={"groups": "g"}, defaults={"groups": 1}, nouns={"c": "channels", "g": "groups"},
    gradient=_norm_gradient("channelnorm_grad", channels=True))  # fmt: skip
def groupnorm(call: Call, x: Array, *scales: Array) -> Array:
    """Group normalisation of channels that come first; one group where the node does not say how many."""
    grouped = x.reshape(len(x), call.attrs.get("groups", 1), -1)
    return _scaled(normalised(grouped, (-1,), call)[0].reshape(x.shape), scales, 1)


@op("layernorm2d", "n c h w, [c], [c] -> n c h w", "rowwise", formula=per_element(LAYERNORM_FLOPS),
    gradient=_norm_gradient("channelnorm_grad", channels=True))  # fmt: skip
def layernorm2d(call: Call, x: Array, *scales: Array) -> Array:
    """Layer normalisation over the channels of an image."""
    return _scaled(normalised(x, (1,), call)[0], scales, 1)


@op("batchnorm2d", "n c ..., [c], [c], [c], [c] -> n c ...", "pointwise", formula=per_element(2),
    gradient=_fixed_norm_gradient)  # fmt: skip
def batchnorm2d(call: Call, x: Array, *parts: Array) -> Array:
    """Batch normalisation at inference: one scale and one shift per element.

    The vectors are scale, shift, mean, variance; two of them are the latter two, which are always there.
    """
    *scales, mean, variance = parts if len(parts) > 1 else (*parts, np.zeros(x.shape[1]), np.ones(x.shape[1]))
    rstd = 1 / np.sqrt(variance + float(call.attrs.get("eps", EPSILON)))
    return _scaled(_scaled(x, (rstd, -mean * rstd), 1), tuple(scales), 1)


@op("batchnorm_train", "n c ..., [c], [c] -> n c ...", "rowwise", formula=per_element(LAYERNORM_FLOPS),
    gradient=_norm_gradient("channelnorm_grad", channels=True),
    gradients={"batchnorm_train_scale": _scale(_over_batch, True)})  # fmt: skip
def batchnorm_train(call: Call, x: Array, *scales: Array) -> Array:
    """Batch normalisation in training: the statistics of each channel over the batch, then as a norm."""
    return _scaled(normalised(x, _over_batch(x), call)[0], scales, 1)


def _norm_grad(call: Call, grad: Array, x: Array, axes: tuple[int, ...], centred: bool = True) -> Array:
    """``rstd (dy - mean(dy) - n mean(dy n))`` with the normalised ``n``; without the first mean where none is taken."""
    n, rstd = normalised(x, axes, call, centred)
    rest = grad - n * (grad * n).mean(axis=axes, keepdims=True)
    return rstd * (rest - grad.mean(axis=axes, keepdims=True) if centred else rest)


@op("layernorm_grad", "... c, ... c, [c] -> ... c", "rowwise", formula=per_element(LAYERNORM_GRAD_FLOPS))
def layernorm_grad(call: Call, grad: Array, x: Array, *scale: Array) -> Array:
    """Backward of a layer norm to its input; those of scale and shift are sums of their own."""
    return _norm_grad(call, _scaled(grad, scale[:1], -1), x, (-1,))


@op("rmsnorm_grad", "... c, ... c, [c] -> ... c", "rowwise", formula=per_element(RMSNORM_GRAD_FLOPS))
def rmsnorm_grad(call: Call, grad: Array, x: Array, *scale: Array) -> Array:
    """Backward of an RMS norm to its input."""
    return _norm_grad(call, _scaled(grad, scale[:1], -1), x, (-1,), centred=False)


@op("channelnorm_grad", "n c ..., n c ..., [c] -> n c ...", "rowwise", formula=per_element(LAYERNORM_GRAD_FLOPS))
def channelnorm_grad(call: Call, grad: Array, x: Array, *scale: Array) -> Array:
    """Backward of a batch or group norm to its input."""
    return _norm_grad(call, _scaled(grad, scale[:1], 1), x, _over_batch(x))


# --- reductions -------------------------------------------------------------------------------------------------------


def _sum_gradient(t: Tape, node: Node, dy: str) -> None:
    x = node.inputs[0]
    t.give(x, repeated(t, dy, x, (len(t.shape(x)) - 1,)))


@op("sum", "... c -> ...", "reduction", formula=per_element(1), gradient=_sum_gradient)
def sum_(call: Call, x: Array) -> Array:
    """Sum along the last axis."""
    return np.asarray(x.sum(axis=-1))


def _mean_gradient(t: Tape, node: Node, dy: str) -> None:
    x = node.inputs[0]
    spread, columns = repeated(t, dy, x, (len(t.shape(x)) - 1,)), t.shape(x)[-1]
    value = {"value": 1 / columns} if isinstance(columns, int) else {}
    t.give(x, t.op("mul_scalar", spread, name="grad", like=x, **value))


@op("mean", "... c -> ...", "reduction", formula=per_element(1), gradient=_mean_gradient)
def mean(call: Call, x: Array) -> Array:
    """Mean along the last axis."""
    return np.asarray(x.mean(axis=-1))


#: Reductions by the option ``how``.
REDUCTIONS: dict[str, Callable[..., Array]] = {
    "sum": np.sum, "mean": np.mean, "prod": np.prod, "max": np.max, "min": np.min, "var": np.var, "std": np.std,
}  # fmt: skip


def _reduced(shapes: Sequence[Shape], axes: Any = None, keepdim: bool = False) -> Shape:
    gone = axes_of(len(shapes[0]), axes)
    return tuple(1 if at in gone else size for at, size in enumerate(shapes[0]) if keepdim or at not in gone)


def _columns(shapes: Sequence[Shape], axes: Any = None) -> dict[str, Any]:
    return {"c": prod([shapes[0][at] for at in axes_of(len(shapes[0]), axes)])}


def _reduce_gradient(t: Tape, node: Node, dy: str) -> None:
    x = node.inputs[0]
    t.give(x, repeated(t, dy, x, axes_of(len(t.shape(x)), dict(node.attrs).get("axes"))))


@op("reduce", None, "reduction", shape=_reduced, derive=_columns, gradient=_reduce_gradient, rule=reduced_axes,
    formula=lambda batch, c, flops=1: Work(vector=flops * batch * c))  # fmt: skip
def reduce(call: Call, x: Array) -> Array:
    """Any reduction over ``axes``, all where none are named: ``flops`` operations per element read.

    The option ``how`` says which; without one, a sum times a number of the node's own.
    """
    axes, how = call.attrs.get("axes"), call.attrs.get("how")
    along = axes if isinstance(axes, int) else tuple(axes or range(x.ndim))
    keep = bool(call.attrs.get("keepdim", False))
    if how in REDUCTIONS:
        return np.asarray(REDUCTIONS[how](x, axis=along, keepdims=keep))
    return np.asarray(call.free("factor") * x.sum(axis=along, keepdims=keep))


@op("scan", "... c -> ... c", "rowwise", gradient=runs("scan", carried=("flops",)),
    formula=lambda batch, c, flops=1: Work(vector=flops * batch * c))  # fmt: skip
def scan(call: Call, x: Array) -> Array:
    """A running sum, a sort, or another function of rows to rows: ``flops`` operations per element.

    Nothing says which one: a running sum times a number of the node's own.
    """
    return call.free("factor") * np.cumsum(x, axis=-1)


@op("argmax", "... c -> ...", "reduction")
def argmax(call: Call, x: Array) -> Array:
    """Index of the largest along the last axis: comparisons only."""
    return np.asarray(x.argmax(axis=-1), dtype=np.float64)


def places_gradient(t: Tape, node: Node, dy: str) -> None:
    """Put single elements that were picked back in their places among zeros."""
    x, *picks = node.inputs
    t.give(x, t.placed(x, dy, *picks))


@op("topk", "... c -> ... k", "rowwise", options={"k": "k"}, fixed="k", gradient=places_gradient)
def topk(call: Call, x: Array) -> Array:
    """The ``k`` largest along the last axis, largest first: comparisons only."""
    return -np.sort(-x, axis=-1)[..., : call.attrs["k"]]


# --- pooling ----------------------------------------------------------------------------------------------------------


def _pool_sizes(h: Any, w: Any, r: Any, stride: Any = None, padding: Any = 0) -> dict[str, Any]:
    axes = zip("pq", (h, w), *(per_axis(each, 2) for each in (r, stride or r, padding)), strict=True)
    return {axis: positions(*each) for axis, *each in axes}


def _windowed(call: Call, x: Array, outside: float) -> list[Array]:
    """Return what each tap of the windows sees."""
    sizes = per_axis(call.attrs["r"], 2)
    steps = per_axis(call.attrs.get("stride") or sizes, 2)
    around = padded(x, call.attrs.get("padding", 0), outside)
    return [around[:, :, *places] for _, places in taps(sizes, steps, (1, 1), call.shape[2:])]


@op("maxpool2d", "n c h w -> n c p q", "reduction", derive=_pool_sizes, fixed="h w p q",
    gradient=runs("pool_grad", "x", shaped=True))  # fmt: skip
def maxpool2d(call: Call, x: Array) -> Array:
    """Maximum over windows: comparisons only."""
    return np.maximum.reduce(_windowed(call, x, -np.inf))


@op("avgpool2d", "n c h w -> n c p q", "reduction", derive=_pool_sizes, fixed="h w p q",
    formula=lambda n, c, p, q, r: Work(vector=n * c * p * q * prod(per_axis(r, 2))),
    gradient=runs("pool_grad", shaped=True))  # fmt: skip
def avgpool2d(call: Call, x: Array) -> Array:
    """Mean over windows; it counts the padding, as PyTorch's does."""
    seen = _windowed(call, x, 0.0)
    return np.add.reduce(seen) / len(seen)


@op("global_avgpool", "n c h w -> n c", "reduction", formula=per_element(1), gradient=runs("pool_grad", shaped=True))
def global_avgpool(call: Call, x: Array) -> Array:
    """Mean over the image."""
    return np.asarray(x.mean(axis=(2, 3)))


@op("pool", None, "reduction", shape=shape_option, derive=lambda shapes: {"c": 1}, rule=same_places,
    formula=lambda batch, flops=0: Work(vector=flops * batch), gradient=runs("pool_grad", "x", shaped=True),
)  # fmt: skip
def pool(call: Call, *arrays: Array) -> Array:
    """Any pooling to ``shape``: ``flops`` operations per point of the result, none for a maximum."""
    return mix(call, *arrays)


@op("pool_grad", None, "move", shape=shape_option, rule=same_places, formula=per_element(1))
def pool_grad(call: Call, *arrays: Array) -> Array:
    """Backward of a pooling window: each gradient goes back to the elements that its window kept."""
    return mix(call, *arrays)
