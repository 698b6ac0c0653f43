"""Reductions, running sums, sorts, pooling and losses."""

from __future__ import annotations

from typing import Any

from roofline.frontends import emit
from roofline.frontends.call import with_options
from roofline.frontends.torch import forms
from roofline.frontends.torch.layout import is_outer
from roofline.frontends.torch.walk import Call, Result, Row, rows
from roofline.ir.sizes import prod


@with_options
def _reduce(call: Call, how: str, pair: bool = False) -> Result:
    """One result, or a ``pair`` of one kernel such as the largest element and its index."""
    source, axes, keepdim = call.tensors()[0], call.get("dim"), bool(call.get("keepdim", False))
    if not call.b.shape(source):
        return (source, source) if pair else source
    if not pair:
        return call.view(call.reduce(how, source, axes, keepdim, outer=_is_outer(call, axes)), call.out.shape, "kept")
    with call.b.kernel(call.name):
        return tuple(call.reduce(how, source, axes, keepdim, dtype=value.dtype) for value in call.outs)


def _is_outer(call: Call, axes: Any) -> bool:
    layout, named = call.record.first.layout, (axes,) if isinstance(axes, int) else axes
    return layout is not None and bool(named) and is_outer(layout, named)


@with_options
def _scan(call: Call, flops: int) -> Result:
    source = call.tensors()[0]
    if not call.b.shape(source):
        return source
    with call.b.kernel(call.name):
        return tuple(call.op("scan", source, dtype=value.dtype, flops=flops) for value in call.outs)


def _topk(call: Call) -> Result:
    """Values and indices, chosen at once."""
    source, axis = call.tensor(), call.get("dim", -1)
    rank = len(call.b.shape(source))
    source = call.permute(source, (*(at for at in range(rank) if at != axis % rank), axis % rank), "last")
    with call.b.kernel(call.name):
        names = [call.op("topk", source, name=name, dtype=dtype, k=call.get("k"))
                 for name, dtype in (("topk", call.dtype), ("indices", "int64"))]  # fmt: skip
    return tuple(call.view(name, value.shape, "back") for name, value in zip(names, call.outs, strict=True))


@with_options
def _pool(call: Call, average: bool) -> Result:
    window = call.get("kernel_size")
    flops = prod(window * (1 if len(window) > 1 else 2)) if average else 0
    image = call.value("self" if call.value("self") else "input")
    layout: dict[str, Any] = {"channels_last": bool(image and image.channels_last)}
    return call.op("pool", call.tensor(), shape=call.out.shape, flops=flops, **layout), None


def _adaptive_pool(call: Call) -> Result:
    """To a given size: over the whole image where that is one point."""
    source = call.tensor()
    axes = tuple(range(len(call.out.shape)))[-len(call.get("output_size")) :]
    if all(call.out.shape[axis] == 1 for axis in axes):
        return call.reduce("mean", source, axes, True)
    return call.op("pool", source, shape=call.out.shape, flops=1), None


def _pool_backward(call: Call) -> Result:
    """Spread gradients over windows; of maxima, to the points that were found."""
    images = (call.tensor("self"),) if "max_pool" in call.what else ()
    return call.op("pool_grad", call.tensor("grad_output"), *images, shape=call.out.shape)


def _nll(call: Call) -> Result:
    """Picks one logarithm per row and adds them up."""
    picked = call.op("take", call.tensor(), call.tensor("target"), name="picked", shape=call.shape("target"))
    return (emit.reduce(call.b, "sum", picked, name=call.name) if not call.out.shape else picked), None


#: Interpolations whose gradient adds up what each point was used for.
_RESAMPLED = (*(f"{name}{axes}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for axes in (1, 2, 3)),
              "upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_bicubic2d",
              "upsample_trilinear3d")  # fmt: skip

ROWS: dict[str, Row] = {
    **rows("sum", _reduce("sum"), forms.reduced("sum")),
    **rows("prod", _reduce("prod"), forms.reduced("sum")),
    **rows("nansum", _reduce("max"), forms.reduced("sum")),
    **{key: row for name in ("mean", "var", "std", "logsumexp")
       for key, row in rows(name, _reduce(name), forms.reduced("same")).items()},
    **{key: row for name in ("any", "all") for key, row in rows(name, _reduce(name), forms.reduced("bool")).items()},
    **{key: row for name in ("argmax", "argmin")
       for key, row in rows(name, _reduce(name), forms.reduced("index")).items()},
    **rows("amax amin median", _reduce("max"), forms.reduced("same")),
    **rows("count_nonzero", _reduce("max"), forms.reduced("index")),
    **rows("equal", _reduce("max"), forms.reduced("bool")),
    **rows("linalg_vector_norm norm linalg_norm", _reduce("norm"), forms.reduced("same")),
    **rows("max min mode kthvalue", _reduce("max", pair=True), forms.reduced("pair")),
    **rows("aminmax", _reduce("max", pair=True), forms.reduced("two")),
    **rows("var_mean std_mean", _reduce("var", pair=True), forms.reduced("two")),
    # How often values occur: each element is read, the bins are written.
    **rows("histc bincount", lambda call: call.op("rearrange", call.tensors()[0], shape=call.out.shape), forms.untold),
    **rows("cumsum cumprod logcumsumexp", _scan(1), forms.cast),
    **rows("sort argsort cummax cummin msort", _scan(0), forms.ordered),
    **rows("topk", _topk, forms.topk),
    **rows("max_pool1d max_pool2d max_pool3d max_pool2d_with_indices max_pool3d_with_indices", _pool(average=False),
           forms.pooled),
    **rows("adaptive_max_pool2d adaptive_max_pool3d", _pool(average=False), forms.resized),
    **rows("fractional_max_pool2d", _pool(average=False), forms.untold),
    **rows("avg_pool1d avg_pool2d avg_pool3d", _pool(average=True), forms.pooled),
    **rows("_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool2d adaptive_avg_pool1d "
           "mkldnn_adaptive_avg_pool2d", _adaptive_pool, forms.resized),
    **rows("max_pool2d_with_indices_backward max_pool3d_with_indices_backward avg_pool2d_backward avg_pool3d_backward "
           "adaptive_max_pool2d_backward adaptive_max_pool3d_backward _adaptive_avg_pool2d_backward "
           "_adaptive_avg_pool3d_backward", _pool_backward, forms.like("self")),
    **rows("fractional_max_pool2d_backward", _pool_backward, forms.untold),
    **rows((f"{name}_backward" for name in _RESAMPLED), _pool_backward, forms.sized("input_size")),
    **rows("nll_loss_forward nll_loss2d_forward nll_loss", _nll, forms.loss),
    **rows("nll_loss_backward nll_loss2d_backward", lambda call: call.op(
        "rearrange", call.tensor("grad_output"), call.tensor("target"), shape=call.out.shape), forms.like("self")),
}  # fmt: skip
