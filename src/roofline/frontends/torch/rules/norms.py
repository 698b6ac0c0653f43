"""Softmax and norms, forwards and backwards."""

from __future__ import annotations

from roofline.frontends import emit
from roofline.frontends.torch.lower import Result, Rule, Site
from roofline.ir.sizes import prod


def _along(op: str, keys: tuple[str, ...], axis_key: str = "dim") -> Rule:
    """An operator along one axis, which is brought to the end and back where it is another one."""

    def rule(site: Site) -> Result:
        operands = [site.tensor(key) for key in keys]
        rank = len(site.b.shape(operands[0]))
        axis = site.get(axis_key, -1) % max(rank, 1)
        if axis == rank - 1:
            return site.op(op, *operands)
        axes = (*(at for at in range(rank) if at != axis), axis)
        turned = [site.b.op("permute", name, name="last", axes=axes) for name in operands]
        back = tuple(axes.index(at) for at in range(rank))
        return site.b.op("permute", site.op(op, *turned), name="back", axes=back)

    return rule


def _rows(site: Site, key: str, axes: int) -> str:
    """An array whose last axes are joined."""
    shape = site.shape(key)
    return emit.view(site.b, site.tensor(key), (*shape[: len(shape) - axes], prod(shape[len(shape) - axes :])), "rows")


def _scales(site: Site, *keys: str) -> list[str]:
    found = [site.maybe(key) for key in keys]
    return [emit.view(site.b, name, (prod(site.b.shape(name)),), "scale") for name in found if name is not None]


def _layernorm(site: Site) -> Result:
    axes = len(site.get("normalized_shape"))
    out = site.op("layernorm", _rows(site, "input", axes), *_scales(site, "weight", "bias"))
    return emit.view(site.b, out, site.out.shape, "normed"), None, None


def _rmsnorm(site: Site) -> Result:
    out = site.op("rmsnorm", _rows(site, "x", site.get("axes", 1)), *_scales(site, "weight"))
    return emit.view(site.b, out, site.out.shape, "normed")


def _fused_rmsnorm(site: Site) -> Result:
    axes = len(site.get("normalized_shape"))
    out = site.op("rmsnorm", _rows(site, "input", axes), *_scales(site, "weight"))
    return emit.view(site.b, out, site.out.shape, "normed"), None


def _sums(site: Site, gradient: str, source: str | None, axes: int, name: str) -> str:
    """Gradient of a scale (with the input) or of a shift: a sum over all rows."""
    rows = site.b.op("elementwise", gradient, source, name=f"{name}_terms", flops=3) if source else gradient
    return emit.reduce(site.b, "sum", rows, tuple(range(len(site.b.shape(rows)) - axes)), name=name)


def _layernorm_backward(site: Site) -> Result:
    axes = len(site.get("normalized_shape"))
    gradient, source = site.tensor("grad_out"), site.tensor("input")
    wanted = site.get("output_mask", (True, True, True))
    rows = _rows(site, "grad_out", axes), _rows(site, "input", axes)
    first = site.op("layernorm_grad", *rows, *_scales(site, "weight")) if wanted[0] else None
    with site.b.kernel("layernorm_grad_weight"):
        return (
            emit.view(site.b, first, site.shape("input"), "normed") if first else None,
            _sums(site, gradient, source, axes, "grad_weight") if wanted[1] else None,
            _sums(site, gradient, None, axes, "grad_bias") if wanted[2] else None,
        )


def _rmsnorm_backward(site: Site) -> Result:
    axes = site.get("axes", 1)
    out = site.op("rmsnorm_grad", _rows(site, "grad", axes), _rows(site, "x", axes), *_scales(site, "weight"))
    first = emit.view(site.b, out, site.shape("x"), "normed")
    if site.maybe("weight") is None:
        return first, None
    with site.b.kernel("rmsnorm_grad_weight"):
        return first, _sums(site, site.tensor("grad"), site.tensor("x"), axes, "grad_weight")


def _batchnorm(site: Site) -> Result:
    """At inference the running statistics are all that it needs; in training it takes those of the batch."""
    image = site.tensor("input")
    training = site.get("training", site.call.name != "_native_batch_norm_legit_no_training")
    if training:
        return site.op("batchnorm_train", image, *_scales(site, "weight", "bias")), None, None
    given = _scales(site, "weight", "bias", "running_mean", "running_var")
    return site.op("batchnorm2d", image, *given), None, None


def _groupnorm(site: Site) -> Result:
    out = site.op("groupnorm", site.tensor("input"), *_scales(site, "weight", "bias"), groups=site.get("group"))
    return out, None, None


def _channels_backward(grad_key: str) -> Rule:
    def rule(site: Site) -> Result:
        gradient, image = site.tensor(grad_key), site.tensor("input")
        wanted = site.get("output_mask", (True, True, True))
        axes = [at for at in range(len(site.b.shape(image))) if at != 1]
        first = site.op("channelnorm_grad", gradient, image, *_scales(site, "weight")) if wanted[0] else None
        with site.b.kernel("norm_grad_weight"):
            terms = site.b.op("elementwise", gradient, image, name="grad_weight_terms", flops=3) if wanted[1] else ""
            return (
                first,
                emit.reduce(site.b, "sum", terms, axes, name="grad_weight") if wanted[1] else None,
                emit.reduce(site.b, "sum", gradient, axes, name="grad_bias") if wanted[2] else None,
            )

    return rule


def _weight_norm_backward(site: Site) -> Result:
    """Gradients of a weight's direction, element by element, and of its length, a sum."""
    gradient, direction, length = (site.tensor(key) for key in ("grad_w", "saved_v", "saved_g"))
    axes = [at for at, size in enumerate(site.b.shape(length)) if size == 1]
    terms = site.op("elementwise", gradient, direction, name="grad_direction", flops=6)
    return terms, emit.reduce(site.b, "sum", terms, axes, True, name="grad_length")


RULES: dict[str, Rule] = {
    **dict.fromkeys(("_softmax", "softmax", "_log_softmax", "log_softmax", "_safe_softmax"),
                    _along("softmax", ("self",))),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"),
                    _along("softmax_grad", ("grad_output", "output"))),
    "_weight_norm_interface_backward": _weight_norm_backward,
    "native_layer_norm": _layernorm,
    "native_layer_norm_backward": _layernorm_backward,
    "rms_norm": _rmsnorm,
    "_fused_rms_norm": _fused_rmsnorm,
    "rms_norm_backward": _rmsnorm_backward,
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
                     "cudnn_batch_norm", "_batch_norm_with_update", "_native_batch_norm_legit_functional",
                     "_batch_norm_no_update"), _batchnorm),
    "native_group_norm": _groupnorm,
    **dict.fromkeys(("native_batch_norm_backward", "native_group_norm_backward", "batch_norm_backward"),
                    _channels_backward("grad_out")),
    "cudnn_batch_norm_backward": _channels_backward("grad_output"),
}  # fmt: skip
