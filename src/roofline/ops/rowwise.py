"""Along an axis: softmax, norms, reductions, pooling."""

from __future__ import annotations

from typing import Any

from roofline.ops.registry import Work, op, pair, positive, window

#: Maximum excluded: subtract, exponential, sum, divide, and the scale before it (Yuan et al. 2024 count the same 5).
SOFTMAX_FLOPS = 5
#: Mean, centre, square, sum, normalise, scale, shift (the 7 of Yuan et al. 2024).
LAYERNORM_FLOPS = 7
#: Square, sum, normalise, scale.
RMSNORM_FLOPS = 4


@op("softmax", "... c -> ... c", "rowwise")
def softmax(batch: Any, c: Any) -> Work:
    """Softmax along the last axis."""
    return Work(vector=SOFTMAX_FLOPS * batch * c)


@op("layernorm", "... c, [c], [c] -> ... c", "rowwise")
def layernorm(batch: Any, c: Any) -> Work:
    """Layer normalisation along the last axis."""
    return Work(vector=LAYERNORM_FLOPS * batch * c)


@op("rmsnorm", "... c, [c] -> ... c", "rowwise")
def rmsnorm(batch: Any, c: Any) -> Work:
    """Root-mean-square normalisation along the last axis."""
    return Work(vector=RMSNORM_FLOPS * batch * c)


@op("groupnorm", "n c h w, [c], [c] -> n c h w", "rowwise")
def groupnorm(n: Any, c: Any, h: Any, w: Any) -> Work:
    """Group normalisation of an image."""
    return Work(vector=LAYERNORM_FLOPS * n * c * h * w)


@op("layernorm2d", "n c h w, [c], [c] -> n c h w", "rowwise")
def layernorm2d(n: Any, c: Any, h: Any, w: Any) -> Work:
    """Layer normalisation over the channels of an image."""
    return Work(vector=LAYERNORM_FLOPS * n * c * h * w)


@op("batchnorm2d", "n c h w, [c], [c], [c], [c] -> n c h w", "pointwise")
def batchnorm2d(n: Any, c: Any, h: Any, w: Any) -> Work:
    """Batch normalisation at inference: one scale and one shift an element."""
    return Work(vector=2 * n * c * h * w)


@op("sum", "... c -> ...", "reduction")
def sum_(batch: Any, c: Any) -> Work:
    """Sum along the last axis."""
    return Work(vector=batch * c)


@op("mean", "... c -> ...", "reduction")
def mean(batch: Any, c: Any) -> Work:
    """Mean along the last axis."""
    return Work(vector=batch * c)


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


@op("avgpool2d", "n c h w -> n c p q", "reduction", derive=_pool_sizes)
def avgpool2d(n: Any, c: Any, p: Any, q: Any, r: Any) -> Work:
    """Mean over windows."""
    return Work(vector=n * c * p * q * pair(r)[0] * pair(r)[1])


@op("global_avgpool", "n c h w -> n c", "reduction")
def global_avgpool(n: Any, c: Any, h: Any, w: Any) -> Work:
    """Mean over the image."""
    return Work(vector=n * c * h * w)
