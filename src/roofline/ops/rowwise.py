"""Along an axis: softmax, norms, reductions, pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from roofline.ir.signature import Shape
from roofline.ir.sizes import prod
from roofline.ops.registry import Work, axes_of, op, pair, positive, window

#: Maximum excluded: subtract, exponential, sum, divide, and the scale before it (Yuan et al. 2024 count the same 5).
SOFTMAX_FLOPS = 5
#: Of the logits, maximum excluded: subtract, exponential, sum.
CROSS_ENTROPY_FLOPS = 3
#: Mean, centre, square, sum, normalise, scale, shift (the 7 of Yuan et al. 2024).
LAYERNORM_FLOPS = 7
#: Square, sum, normalise, scale.
RMSNORM_FLOPS = 4


@op("softmax", "... c -> ... c", "rowwise")
def softmax(batch: Any, c: Any) -> Work:
    """Softmax along the last axis."""
    return Work(vector=SOFTMAX_FLOPS * batch * c)


@op("cross_entropy", "... c, ... -> ...", "rowwise")
def cross_entropy(batch: Any, c: Any) -> Work:
    """``log(sum(exp(x))) - x[label]`` of each row as one kernel that writes only the losses."""
    return Work(vector=CROSS_ENTROPY_FLOPS * batch * c)


@op("layernorm", "... c, [c], [c] -> ... c", "rowwise")
def layernorm(batch: Any, c: Any) -> Work:
    """Layer normalisation along the last axis."""
    return Work(vector=LAYERNORM_FLOPS * batch * c)


@op("rmsnorm", "... c, [c] -> ... c", "rowwise")
def rmsnorm(batch: Any, c: Any) -> Work:
    """Root-mean-square normalisation along the last axis."""
    return Work(vector=RMSNORM_FLOPS * batch * c)


@op("groupnorm", "n c ..., [c], [c] -> n c ...", "rowwise")
def groupnorm(n: Any, c: Any, batch: Any) -> Work:
    """Group normalisation of channels that come first."""
    return Work(vector=LAYERNORM_FLOPS * n * c * batch)


@op("layernorm2d", "n c h w, [c], [c] -> n c h w", "rowwise")
def layernorm2d(n: Any, c: Any, h: Any, w: Any) -> Work:
    """Layer normalisation over the channels of an image."""
    return Work(vector=LAYERNORM_FLOPS * n * c * h * w)


@op("batchnorm2d", "n c ..., [c], [c], [c], [c] -> n c ...", "pointwise")
def batchnorm2d(n: Any, c: Any, batch: Any) -> Work:
    """Batch normalisation at inference: one scale and one shift an element."""
    return Work(vector=2 * n * c * batch)


@op("batchnorm_train", "n c ..., [c], [c] -> n c ...", "rowwise")
def batchnorm_train(n: Any, c: Any, batch: Any) -> Work:
    """Batch normalisation in training: the statistics of each channel over the batch, then as a norm."""
    return Work(vector=LAYERNORM_FLOPS * n * c * batch)


@op("sum", "... c -> ...", "reduction")
def sum_(batch: Any, c: Any) -> Work:
    """Sum along the last axis."""
    return Work(vector=batch * c)


@op("mean", "... c -> ...", "reduction")
def mean(batch: Any, c: Any) -> Work:
    """Mean along the last axis."""
    return Work(vector=batch * c)


def _reduced(shapes: Sequence[Shape], axes: Any = None, keepdim: bool = False) -> Shape:
    gone = axes_of(len(shapes[0]), axes)
    kept = tuple(1 if at in gone else size for at, size in enumerate(shapes[0]) if keepdim or at not in gone)
    return kept


def _columns(shapes: Sequence[Shape], axes: Any = None) -> dict[str, Any]:
    return {"c": prod([shapes[0][at] for at in axes_of(len(shapes[0]), axes)])}


@op("reduce", None, "reduction", shape=_reduced, derive=_columns)
def reduce(batch: Any, c: Any, flops: int = 1) -> Work:
    """Any reduction over ``axes``, all where none are named: ``flops`` operations an element read."""
    return Work(vector=flops * batch * c)


@op("scan", "... c -> ... c", "rowwise")
def scan(batch: Any, c: Any, flops: int = 1) -> Work:
    """A running sum, a sort, or another function of rows to rows: ``flops`` operations an element."""
    return Work(vector=flops * batch * c)


@op("argmax", "... c -> ...", "reduction")
def argmax() -> Work:
    """Index of the largest along the last axis: comparisons only."""
    return Work()


@op("topk", "... c -> ... k", "rowwise", derive=lambda k: {"k": k})
def topk() -> Work:
    """The ``k`` largest along the last axis: comparisons only."""
    return Work()


def _pool_sizes(h: Any, w: Any, r: Any, stride: Any = None, padding: Any = 0) -> dict[str, Any]:
    (rh, rw), (sh, sw), (ph, pw) = pair(r), pair(stride or r), pair(padding)
    return {"p": positive(window(h, rh, sh, ph)), "q": positive(window(w, rw, sw, pw))}


@op("maxpool2d", "n c h w -> n c p q", "reduction", derive=_pool_sizes)
def maxpool2d() -> Work:
    """Maximum over windows: comparisons only."""
    return Work()


@op("pool", None, "reduction", shape=lambda shapes, shape: tuple(shape), derive=lambda shapes: {"c": 1})
def pool(batch: Any, flops: int = 0) -> Work:
    """Any pooling to ``shape``: ``flops`` operations a point of the result, none for a maximum."""
    return Work(vector=flops * batch)


@op("avgpool2d", "n c h w -> n c p q", "reduction", derive=_pool_sizes)
def avgpool2d(n: Any, c: Any, p: Any, q: Any, r: Any) -> Work:
    """Mean over windows."""
    return Work(vector=n * c * p * q * pair(r)[0] * pair(r)[1])


@op("global_avgpool", "n c h w -> n c", "reduction")
def global_avgpool(n: Any, c: Any, h: Any, w: Any) -> Work:
    """Mean over the image."""
    return Work(vector=n * c * h * w)


# --- backwards: what reaches the input, for what reaches the output ---------------------------------------------------

#: ``y (dy - sum(y dy))``.
SOFTMAX_GRAD_FLOPS = 4
#: ``rstd (g dy - mean(g dy) - n mean(g dy n))`` with ``n = (x - mean) rstd``: 2 for n, 1 for g dy, 3 for the two sums,
#: 4 for the rest.
LAYERNORM_GRAD_FLOPS = 10
#: The same without the means: 1 for n, 1 for g dy, 2 for the sum, 3 for the rest.
RMSNORM_GRAD_FLOPS = 7


@op("softmax_grad", "... c, ... c -> ... c", "rowwise")
def softmax_grad(batch: Any, c: Any) -> Work:
    """Backward of a softmax, from the gradient and the probabilities."""
    return Work(vector=SOFTMAX_GRAD_FLOPS * batch * c)


@op("cross_entropy_grad", "... c, ..., ... -> ... c", "rowwise")
def cross_entropy_grad(batch: Any, c: Any) -> Work:
    """Backward of the cross-entropy, from logits, labels and the gradients of the losses: the softmax once more."""
    return Work(vector=(CROSS_ENTROPY_FLOPS + 3) * batch * c)


@op("layernorm_grad", "... c, ... c, [c] -> ... c", "rowwise")
def layernorm_grad(batch: Any, c: Any) -> Work:
    """Backward of a layer norm to its input; those of scale and shift are sums of their own."""
    return Work(vector=LAYERNORM_GRAD_FLOPS * batch * c)


@op("rmsnorm_grad", "... c, ... c, [c] -> ... c", "rowwise")
def rmsnorm_grad(batch: Any, c: Any) -> Work:
    """Backward of an RMS norm to its input."""
    return Work(vector=RMSNORM_GRAD_FLOPS * batch * c)


@op("channelnorm_grad", "n c ..., n c ..., [c] -> n c ...", "rowwise")
def channelnorm_grad(n: Any, c: Any, batch: Any) -> Work:
    """Backward of a batch or group norm to its input."""
    return Work(vector=LAYERNORM_GRAD_FLOPS * n * c * batch)


@op("pool_grad", None, "move", shape=lambda shapes, shape: tuple(shape))
def pool_grad(shapes: Any) -> Work:
    """Backward of a pooling window: each gradient goes back to the elements that its window kept."""
    return Work(vector=prod(shapes[0]))
