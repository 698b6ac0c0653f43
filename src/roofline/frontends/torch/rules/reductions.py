"""Reductions, running sums, sorts, pooling and losses."""

from __future__ import annotations

from roofline.frontends import emit
from roofline.frontends.torch.lower import Result, Rule, Site
from roofline.ir.sizes import prod


def _axes(site: Site) -> tuple[int, ...] | None:
    dim = site.get("dim")
    if dim is None or dim == ():
        return None
    return dim if isinstance(dim, tuple) else (dim,)


def _reduce(how: str, outputs: int = 1) -> Rule:
    """``outputs`` results of one kernel, such as the largest element and its index."""

    def rule(site: Site) -> Result:
        source, axes, keep = site.tensors()[0], _axes(site), bool(site.get("keepdim", False))
        if not site.b.shape(source):
            return (source,) * outputs
        if outputs == 1:
            return _restored(site, emit.reduce(site.b, how, source, axes, keep, site.name, site.out.dtype))
        with site.b.kernel(site.name):
            values = [v for v in site.call.outs if v is not None]
            return tuple(emit.reduce(site.b, how, source, axes, keep, site.name, value.dtype) for value in values)

    return rule


def _restored(site: Site, name: str) -> str:
    return emit.view(site.b, name, site.out.shape, "kept")


def _scan(flops: int) -> Rule:
    def rule(site: Site) -> Result:
        source = site.tensors()[0]
        if not site.b.shape(source):
            return source
        with site.b.kernel(site.name):
            values = [value for value in site.call.outs if value is not None]
            return tuple(site.b.op("scan", source, name=site.name, dtype=v.dtype, flops=flops) for v in values)

    return rule


def _count(site: Site) -> Result:
    """How often values occur: each element is read, the bins are written."""
    return site.op("rearrange", site.tensors()[0], shape=site.out.shape)


def _topk(site: Site) -> Result:
    """Values and indices, chosen at once."""
    source, axis = site.tensor(), site.get("dim", -1)
    rank = len(site.b.shape(source))
    if axis % rank != rank - 1:
        axes = (*(at for at in range(rank) if at != axis % rank), axis % rank)
        source = site.b.op("permute", source, name="last", axes=axes)
    with site.b.kernel(site.name):
        found = [site.b.op("topk", source, name=name, dtype=dtype, k=site.get("k"))
                 for name, dtype in (("topk", site.out.dtype), ("indices", "int64"))]  # fmt: skip
    shapes = [value.shape for value in site.call.outs if value is not None]
    return tuple(emit.view(site.b, name, shape, "back") for name, shape in zip(found, shapes, strict=True))


def _pool(op: str) -> Rule:
    def rule(site: Site) -> Result:
        source = site.tensor()
        flops = prod(site.get("kernel_size") * (1 if len(site.get("kernel_size")) > 1 else 2)) if op == "avg" else 0
        out = site.op("pool", source, shape=site.out.shape, flops=flops)
        return out, None

    return rule


def _adaptive_pool(site: Site) -> Result:
    """To a given size: over the whole image where that is one point."""
    source = site.tensor()
    axes = tuple(range(len(site.out.shape)))[-len(site.get("output_size")) :]
    if all(site.out.shape[axis] == 1 for axis in axes):
        return emit.reduce(site.b, "mean", source, axes, True, site.name)
    return site.op("pool", source, shape=site.out.shape, flops=1), None


def _pool_backward(site: Site) -> Result:
    return site.op("pool_grad", site.tensor("grad_output"), shape=site.out.shape)


def _nll(site: Site) -> Result:
    """Picks one logarithm a row and adds them up."""
    picked = site.op("take", site.tensor(), site.tensor("target"), name="picked", shape=site.shape("target"))
    return (emit.reduce(site.b, "sum", picked, name=site.name) if not site.out.shape else picked), None


def _nll_backward(site: Site) -> Result:
    return site.op("rearrange", site.tensor("grad_output"), site.tensor("target"), shape=site.out.shape)


#: Interpolations whose gradient adds up what each point was used for.
_RESAMPLED = (*(f"upsample_nearest{axes}d" for axes in (1, 2, 3)),
              *(f"_upsample_nearest_exact{axes}d" for axes in (1, 2, 3)),
              "upsample_linear1d", "upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_bicubic2d",
              "upsample_trilinear3d")  # fmt: skip

RULES: dict[str, Rule] = {
    **{name: _reduce(name) for name in ("sum", "mean", "prod", "any", "all", "argmax", "argmin", "var", "std",
                                         "logsumexp")},
    **dict.fromkeys(("histc", "bincount"), _count),
    **dict.fromkeys(("amax", "amin", "nansum", "count_nonzero", "median", "equal"), _reduce("max")),
    **dict.fromkeys(("linalg_vector_norm", "norm", "linalg_norm"), _reduce("norm")),
    **dict.fromkeys(("max", "min"), _reduce("max", 2)),
    **dict.fromkeys(("aminmax", "mode", "kthvalue"), _reduce("max", 2)),
    **dict.fromkeys(("var_mean", "std_mean"), _reduce("var", 2)),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp"), _scan(1)),
    **dict.fromkeys(("sort", "argsort", "cummax", "cummin", "msort"), _scan(0)),
    "topk": _topk,
    **dict.fromkeys(("max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool2d", "max_pool1d", "max_pool3d",
                     "adaptive_max_pool2d", "adaptive_max_pool3d", "fractional_max_pool2d"), _pool("max")),
    **dict.fromkeys(("avg_pool1d", "avg_pool2d", "avg_pool3d"), _pool("avg")),
    **dict.fromkeys(("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "adaptive_avg_pool2d", "adaptive_avg_pool1d",
                     "mkldnn_adaptive_avg_pool2d"), _adaptive_pool),
    **dict.fromkeys(("max_pool2d_with_indices_backward", "avg_pool2d_backward", "_adaptive_avg_pool2d_backward",
                     "max_pool3d_with_indices_backward", "avg_pool3d_backward", "adaptive_max_pool2d_backward",
                     "adaptive_max_pool3d_backward", "_adaptive_avg_pool3d_backward", "fractional_max_pool2d_backward",
                     *(f"{name}_backward" for name in _RESAMPLED)), _pool_backward),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward", "nll_loss"), _nll),
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _nll_backward),
}  # fmt: skip
