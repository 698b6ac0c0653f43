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
from roofline.ops.gradients import Rule, Tape, back_in_place, options, runs
from roofline.ops.registry import Array, Op, Work, axes_of, by_option, declare, op, per_element
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


@op("cross_entropy", "... c, ... -> ...", "rowwise", formula=per_element(CROSS_ENTROPY_FLOPS),
    gradient=runs("cross_entropy_grad", "x", 1, "dy"))  # fmt: skip
def cross_entropy(call: Call, x: Array, labels: Array) -> Array:
    """``log(sum(exp(x))) - x[label]`` of each row as one kernel that writes only the losses."""
    peak = x.max(axis=-1)
    chosen = np.take_along_axis(x, indices(labels, x.shape[-1])[..., None], axis=-1)[..., 0]
    return peak + np.log(np.exp(x - peak[..., None]).sum(axis=-1)) - chosen


@op("cross_entropy_grad", "... c, ..., ... -> ... c", "rowwise", formula=per_element(CROSS_ENTROPY_FLOPS + 3))
def cross_entropy_grad(call: Call, x: Array, labels: Array, grad: Array) -> Array:
    """Backward of the cross-entropy, from logits, labels and the gradients of the losses: the softmax once more."""
    hot = call.arange(x.shape[-1]) == indices(labels, x.shape[-1])[..., None]
    return (softmax(call, x) - hot) * grad[..., None]


declare(Op(
    "softmax_grad", "... c, ... c -> ... c", "rowwise", "Backward of a softmax, from gradient and probabilities.",
    per_element(SOFTMAX_GRAD_FLOPS), lambda call, grad, y: y * (grad - (grad * y).sum(axis=-1, keepdims=True)),
))  # fmt: skip


# --- norms ------------------------------------------------------------------------------------------------------------

Over = Callable[[Array], tuple[int, ...]]


def _row(x: Array) -> tuple[int, ...]:
    return (-1,)


def _batch(x: Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _epsilon(call: Call) -> float:
    return float(call.attrs.get("eps", EPSILON))


def normalised(x: Array, axes: tuple[int, ...], eps: float, centred: bool = True) -> tuple[Array, Array]:
    """Return ``(x - mean) rstd`` and ``rstd``."""
    rest = x - x.mean(axis=axes, keepdims=True) if centred else x
    rstd = 1 / np.sqrt((rest * rest).mean(axis=axes, keepdims=True) + eps)
    return rest * rstd, rstd


def _scaled(x: Array, scales: Sequence[Array], axis: int) -> Array:
    """Multiply by the first vector and add the second, along an axis."""
    shape = [1] * x.ndim
    shape[axis] = -1
    parts = [each.reshape(shape) for each in scales]
    return x * parts[0] + (parts[1] if len(parts) > 1 else 0) if parts else x


def _norm(name: str, axes: str, doc: str, over: Over, along: int, centred: bool = True, **fields: Any) -> None:
    """Declare a norm over some axes, with scale and shift along one."""

    def reference(call: Call, x: Array, *scales: Array) -> Array:
        return _scaled(normalised(x, over(x), _epsilon(call), centred)[0], scales, along)

    def terms(call: Call, dy: Array, x: Array) -> Array:
        return dy * normalised(x, over(x), _epsilon(call), centred)[0]

    follows: dict[str, Any] = {"reference": reference, "gradients": {f"{name}_scale": terms}} | fields
    flops = LAYERNORM_FLOPS if centred else RMSNORM_FLOPS
    declare(Op(name, axes, "rowwise", doc, per_element(flops), **follows))


def _norm_grad(name: str, axes: str, doc: str, over: Over, along: int, centred: bool = True) -> None:
    """Declare the backward of norms to their input, ``rstd (dy - mean(dy) - n mean(dy n))`` with the normalised ``n``.

    The first mean is left out where none is taken; the gradients of scale and shift are sums of their own.
    """

    def reference(call: Call, grad: Array, x: Array, *scale: Array) -> Array:
        dy, (n, rstd) = _scaled(grad, scale[:1], along), normalised(x, over(x), _epsilon(call), centred)
        rest = dy - n * (dy * n).mean(axis=over(x), keepdims=True)
        return rstd * (rest - dy.mean(axis=over(x), keepdims=True) if centred else rest)

    flops = LAYERNORM_GRAD_FLOPS if centred else RMSNORM_GRAD_FLOPS
    declare(Op(name, axes, "rowwise", doc, per_element(flops), reference))


def _scale_and_shift(t: Tape, node: Node, dy: str, channels: bool) -> None:
    """Sum the gradients of scale and shift over all rows, in one kernel."""
    x, *weights = node.inputs
    saved, rank = t.saved(x), len(t.shape(x))
    axes, what = (0, *range(2, rank)) if channels else tuple(range(rank - 1)), f"{node.op}_scale"
    with t.kernel("grad_w"):
        for at, name in enumerate(weights[:2]):
            if t.needs_grad(name):
                terms = dy if at else t.op("elementwise", dy, saved, name="grad_terms", like=name, flops=3, what=what)
                t.accumulate(name, t.op("reduce", terms, name=f"grad_{'wb'[at]}", like=name, axes=axes, how="sum"))


def _norm_gradient(grad: str, channels: bool = False) -> Rule:
    """Make the backward of a norm: a kernel for the input, another for scale and shift."""

    def rule(t: Tape, node: Node, dy: str) -> None:
        x, *weights = node.inputs
        if t.needs_grad(x):
            attrs = options(node, "groups", "eps")
            t.accumulate(x, t.op(grad, dy, t.saved(x), *weights[:1], name="grad_x", like=x, **attrs))
        _scale_and_shift(t, node, dy, channels)

    return rule


def _fixed_norm_gradient(t: Tape, node: Node, dy: str) -> None:
    """Multiply by the scale, as the statistics are kept."""
    if t.needs_grad(node.inputs[0]):
        t.accumulate(node.inputs[0], t.op("elementwise", dy, name="grad_x", like=node.inputs[0], flops=1))
    _scale_and_shift(t, node, dy, channels=True)


def _by_group(call: Call, x: Array, *scales: Array) -> Array:
    grouped = x.reshape(len(x), call.attrs.get("groups", 1), -1)
    return _scaled(normalised(grouped, (-1,), _epsilon(call))[0].reshape(x.shape), scales, 1)


_CHANNELS = _norm_gradient("channelnorm_grad", channels=True)
_norm("layernorm", "... c, [c], [c] -> ... c", "Layer normalisation along the last axis.", _row, -1,
      gradient=_norm_gradient("layernorm_grad"))  # fmt: skip
_norm("rmsnorm", "... c, [c] -> ... c", "Root-mean-square normalisation along the last axis.", _row, -1, centred=False,
      gradient=_norm_gradient("rmsnorm_grad"))  # fmt: skip
_norm("groupnorm", "n c=(g e) ..., [c], [c] -> n c ...",
      "Group normalisation of channels that come first; one group where the node does not say how many.", _batch, 1,
      reference=_by_group, gradient=_CHANNELS, gradients={}, options={"groups": "g"}, defaults={"groups": 1},
      nouns={"c": "channels", "g": "groups"})  # fmt: skip
_norm("layernorm2d", "n c h w, [c], [c] -> n c h w", "Layer normalisation over the channels of an image.",
      lambda x: (1,), 1, gradient=_CHANNELS, gradients={})  # fmt: skip
_norm("batchnorm_train", "n c ..., [c], [c] -> n c ...",
      "Batch normalisation in training: the statistics of each channel over the batch, then as a norm.", _batch, 1,
      gradient=_CHANNELS)  # fmt: skip
_norm_grad("layernorm_grad", "... c, ... c, [c] -> ... c", "Backward of a layer norm to its input.", _row, -1)
_norm_grad("rmsnorm_grad", "... c, ... c, [c] -> ... c", "Backward of an RMS norm to its input.", _row, -1, False)
_norm_grad("channelnorm_grad", "n c ..., n c ..., [c] -> n c ...", "Backward of a batch or group norm to its input.",
           _batch, 1)  # fmt: skip


@op("batchnorm2d", "n c ..., [c], [c], [c], [c] -> n c ...", "pointwise", formula=per_element(2),
    gradient=_fixed_norm_gradient)  # fmt: skip
def batchnorm2d(call: Call, x: Array, *parts: Array) -> Array:
    """Batch normalisation at inference: one scale and one shift per element.

    The vectors are scale, shift, mean, variance; two of them are the latter two, which are always there.
    """
    *scales, mean, variance = parts if len(parts) > 1 else (*parts, np.zeros(x.shape[1]), np.ones(x.shape[1]))
    rstd = 1 / np.sqrt(variance + _epsilon(call))
    return _scaled(_scaled(x, (rstd, -mean * rstd), 1), scales, 1)


# --- reductions -------------------------------------------------------------------------------------------------------

#: Reductions by name: operations on each element that is read. Comparisons count nothing; a variance centres, squares
#: and sums twice, a norm squares and sums, a log-sum-exp subtracts, exponentiates and sums.
PER_ELEMENT = {
    "sum": 1, "mean": 1, "prod": 1, "max": 0, "min": 0, "any": 0, "all": 0, "argmax": 0, "argmin": 0,
    "var": 4, "std": 4, "norm": 2, "logsumexp": 3, "sum_of_squares": 2, "sum_of_magnitudes": 1,
}  # fmt: skip
#: Reductions by the option ``how``.
REDUCTIONS: dict[str, Callable[..., Array]] = {
    "sum": np.sum, "mean": np.mean, "prod": np.prod, "max": np.max, "min": np.min, "var": np.var, "std": np.std,
}  # fmt: skip


def _reduced(shapes: Sequence[Shape], axes: Any = None, keepdim: bool = False) -> Shape:
    gone = axes_of(len(shapes[0]), axes)
    return tuple(1 if at in gone else size for at, size in enumerate(shapes[0]) if keepdim or at not in gone)


def _repeated(t: Tape, node: Node, dy: str, axes: tuple[int, ...]) -> str:
    """Lay a gradient along the axes that were summed up: a view."""
    x = node.inputs[0]
    shape = tuple(1 if at in axes else size for at, size in enumerate(t.shape(x)))
    return t.op("expand", t.reshaped(dy, shape), name="grad_repeated", like=x, shape=t.shape(x))


def _reduce_gradient(t: Tape, node: Node, dy: str) -> None:
    axes = -1 if node.op == "sum" else dict(node.attrs).get("axes")
    t.accumulate(node.inputs[0], _repeated(t, node, dy, axes_of(len(t.shape(node.inputs[0])), axes)))


def _mean_gradient(t: Tape, node: Node, dy: str) -> None:
    x, shape = node.inputs[0], t.shape(node.inputs[0])
    value = {"value": 1 / shape[-1]} if isinstance(shape[-1], int) else {}
    t.accumulate(x, t.op("mul_scalar", _repeated(t, node, dy, (len(shape) - 1,)), name="grad", like=x, **value))


@op("reduce", None, "reduction", shape=_reduced, gradient=_reduce_gradient, rule=reduced_axes,
    derive=lambda shapes, axes=None: {"c": prod([shapes[0][at] for at in axes_of(len(shapes[0]), axes)])},
    formula=lambda batch, c, how="sum", flops=None:
        Work(vector=(PER_ELEMENT.get(how, 1) if flops is None else flops) * batch * c))  # fmt: skip
def reduce(call: Call, x: Array) -> Array:
    """Any reduction over ``axes``, all where none are named: ``flops`` operations per element read, by ``how`` if none.

    The option ``how`` says which; without one, a sum times a number of the node's own.
    """
    axes, how = axes_of(x.ndim, call.attrs.get("axes")), call.attrs.get("how")
    keep = bool(call.attrs.get("keepdim", False))
    if how in REDUCTIONS:
        return REDUCTIONS[how](x, axis=axes, keepdims=keep)
    return call.free("factor") * x.sum(axis=axes, keepdims=keep)


declare(Op(
    "sum", "... c -> ...", "reduction", "Sum along the last axis.", per_element(1),
    lambda call, x: x.sum(axis=-1), gradient=_reduce_gradient,
))  # fmt: skip
declare(Op(
    "mean", "... c -> ...", "reduction", "Mean along the last axis.", per_element(1),
    lambda call, x: x.mean(axis=-1), gradient=_mean_gradient,
))  # fmt: skip
declare(Op(
    "scan", "... c -> ... c", "rowwise",
    "A running sum, a sort, or another function of rows to rows: ``flops`` operations per element. In numpy a running "
    "sum times a number of the node's own.",
    lambda batch, c, flops=1: Work(vector=flops * batch * c),
    lambda call, x: call.free("factor") * np.cumsum(x, axis=-1), gradient=runs("scan"),
))  # fmt: skip
declare(Op(
    "argmax", "... c -> ...", "reduction", "Index of the largest along the last axis: comparisons only.",
    reference=lambda call, x: np.argmax(x, axis=-1).astype(np.float64),
))  # fmt: skip
declare(Op(
    "topk", "... c -> ... k", "rowwise", "The ``k`` largest along the last axis, largest first: comparisons only.",
    reference=lambda call, x: -np.sort(-x, axis=-1)[..., : call.attrs["k"]], options={"k": "k"}, fixed="k",
    gradient=back_in_place,
))  # fmt: skip


# --- pooling ----------------------------------------------------------------------------------------------------------


def _pool_sizes(h: Any, w: Any, r: Any, stride: Any = None, padding: Any = 0) -> dict[str, Any]:
    axes = zip("pq", (h, w), *(per_axis(each, 2) for each in (r, stride or r, padding)), strict=True)
    return {axis: positions(*each) for axis, *each in axes}


def _windows(call: Call, x: Array, outside: float) -> list[Array]:
    """Return what each tap of the windows sees."""
    sizes = per_axis(call.attrs["r"], 2)
    steps = per_axis(call.attrs.get("stride") or sizes, 2)
    around = padded(x, call.attrs.get("padding", 0), outside)
    return [around[:, :, *places] for _, places in taps(sizes, steps, (1, 1), call.shape[2:])]


declare(Op(
    "maxpool2d", "n c h w -> n c p q", "reduction", "Maximum over windows: comparisons only.", derive=_pool_sizes,
    fixed="h w p q", reference=lambda call, x: np.maximum.reduce(_windows(call, x, -np.inf)),
    gradient=runs("pool_grad", "x"),
))  # fmt: skip
declare(Op(
    "avgpool2d", "n c h w -> n c p q", "reduction", "Mean over windows; it counts the padding, as PyTorch's does.",
    lambda n, c, p, q, r: Work(vector=n * c * p * q * prod(per_axis(r, 2))), derive=_pool_sizes, fixed="h w p q",
    reference=lambda call, x: np.mean(_windows(call, x, 0.0), axis=0), gradient=runs("pool_grad"),
))  # fmt: skip
declare(Op(
    "global_avgpool", "n c h w -> n c", "reduction", "Mean over the image.", per_element(1),
    lambda call, x: x.mean(axis=(2, 3)), gradient=runs("pool_grad"),
))  # fmt: skip
declare(Op(
    "pool", None, "reduction", "Any pooling to ``shape``: ``flops`` operations per point of the result.",
    lambda batch, flops=0: Work(vector=flops * batch), mix, by_option, derive=lambda shapes: {"c": 1},
    rule=same_places, gradient=runs("pool_grad", "x"),
))  # fmt: skip
declare(Op(
    "pool_grad", None, "move",
    "Backward of a pooling window: each gradient goes back to the elements that its window kept.",
    per_element(1), mix, by_option, rule=same_places,
))  # fmt: skip
