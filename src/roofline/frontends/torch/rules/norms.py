"""Softmax and norms, forwards and backwards."""

from __future__ import annotations

from typing import Any

from roofline.frontends import emit
from roofline.frontends.call import with_options
from roofline.frontends.torch import forms
from roofline.frontends.torch.walk import Call, Result, Row, rows
from roofline.ir.sizes import prod


@with_options
def _along(call: Call, op: str, *keys: str) -> Result:
    """An operator along one axis, which is brought to the end and back where it is another one."""
    operands = [call.tensor(key) for key in keys]
    rank = len(call.b.shape(operands[0]))
    if rank == 0:
        return call.op(op, *operands)
    axis, copied = call.get("dim", -1) % rank, call.copied(*keys)
    return call.along(axis, lambda *rows: call.op(op, *rows, **copied), *operands, last="last", back="back")


def _rows(call: Call, key: str, axes: int) -> str:
    """Return an array whose last axes are joined."""
    shape = call.shape(key)
    return call.view(call.tensor(key), (*shape[: len(shape) - axes], prod(shape[len(shape) - axes :])), "rows")


def _scales(call: Call, *keys: str) -> list[str]:
    return [call.view(name, (prod(call.b.shape(name)),), "scale") for name in call.given(*keys)]


@with_options
def _norm(call: Call, op: str, key: str, *scales: str, results: int) -> Result:
    """A layer or RMS norm over the last axes, and statistics that nobody can use."""
    axes = call.get("axes", 1) if key == "x" else len(call.get("normalized_shape"))
    out = call.op(op, _rows(call, key, axes), *_scales(call, *scales), **call.copied(key))
    return (call.view(out, call.out.shape, "normed"), *[None] * (results - 1))


def _sums(call: Call, gradient: str, source: str | None, axes: int, name: str) -> str:
    """Add the gradient of a scale (with the input) or of a shift: a sum over all rows."""
    rows = call.b.op("elementwise", gradient, source, name=f"{name}_terms", flops=3) if source else gradient
    return emit.reduce(call.b, "sum", rows, tuple(range(len(call.b.shape(rows)) - axes)), name=name)


def _layernorm_backward(call: Call) -> Result:
    axes = len(call.get("normalized_shape"))
    gradient, source = call.tensor("grad_out"), call.tensor("input")
    needed = call.get("output_mask", (True, True, True))
    rows = _rows(call, "grad_out", axes), _rows(call, "input", axes)
    copied = call.copied("grad_out", "input")
    first = call.op("layernorm_grad", *rows, *_scales(call, "weight"), **copied) if needed[0] else None
    with call.b.kernel("layernorm_grad_weight"):
        return (
            call.view(first, call.shape("input"), "normed") if first else None,
            _sums(call, gradient, source, axes, "grad_weight") if needed[1] else None,
            _sums(call, gradient, None, axes, "grad_bias") if needed[2] else None,
        )


def _rmsnorm_backward(call: Call) -> Result:
    axes = call.get("axes", 1)
    out = call.op("rmsnorm_grad", _rows(call, "grad", axes), _rows(call, "x", axes), *_scales(call, "weight"))
    first = call.view(out, call.shape("x"), "normed")
    if call.maybe("weight") is None:
        return first, None
    with call.b.kernel("rmsnorm_grad_weight"):
        return first, _sums(call, call.tensor("grad"), call.tensor("x"), axes, "grad_weight")


def _batchnorm(call: Call) -> Result:
    """At inference the running statistics are all that it needs; in training it takes those of the batch."""
    image, layout = call.tensor("input"), _layout(call)
    if call.get("training", call.what != "_native_batch_norm_legit_no_training"):
        return call.op("batchnorm_train", image, *_scales(call, "weight", "bias"), **layout), None, None
    scales = _scales(call, "weight", "bias", "running_mean", "running_var")
    return call.op("batchnorm2d", image, *scales, **layout), None, None


def _layout(call: Call) -> dict[str, Any]:
    """Tell whether channels lie innermost; without image axes they always do."""
    image = call.value("input")
    return {"channels_last": image is None or len(image.shape) == 2 or image.channels_last}


def _groupnorm(call: Call) -> Result:
    scales = _scales(call, "weight", "bias")
    return call.op("groupnorm", call.tensor("input"), *scales, groups=call.get("group"), **_layout(call)), None, None


@with_options
def _channels_backward(call: Call, grad_key: str) -> Result:
    gradient, image = call.tensor(grad_key), call.tensor("input")
    needed = call.get("output_mask", (True, True, True))
    axes = [at for at in range(len(call.b.shape(image))) if at != 1]
    own: dict[str, Any] = {} if "group" in call.what else {"batch_norm": True, **_layout(call)}
    first = call.op("channelnorm_grad", gradient, image, *_scales(call, "weight"), **own) if needed[0] else None
    with call.b.kernel("norm_grad_weight"):
        terms = call.b.op("elementwise", gradient, image, name="grad_weight_terms", flops=3, **own) if needed[1] else ""
        return (
            first,
            emit.reduce(call.b, "sum", terms, axes, name="grad_weight") if needed[1] else None,
            emit.reduce(call.b, "sum", gradient, axes, name="grad_bias") if needed[2] else None,
        )


def _weight_norm_backward(call: Call) -> Result:
    """Gradients of a weight's direction, element by element, and of its length, a sum."""
    gradient, direction, length = (call.tensor(key) for key in ("grad_w", "saved_v", "saved_g"))
    axes = [at for at, size in enumerate(call.b.shape(length)) if size == 1]
    terms = call.op("elementwise", gradient, direction, name="grad_direction", flops=6)
    return terms, emit.reduce(call.b, "sum", terms, axes, True, name="grad_length")


ROWS: dict[str, Row] = {
    **rows("_softmax softmax _log_softmax log_softmax _safe_softmax", _along("softmax", "self"), forms.cast),
    **rows("_softmax_backward_data _log_softmax_backward_data", _along("softmax_grad", "grad_output", "output"),
           forms.like("grad_output")),
    **rows("_weight_norm_interface_backward", _weight_norm_backward, forms.untold),
    **rows("native_layer_norm", _norm("layernorm", "input", "weight", "bias", results=3), forms.like("input")),
    **rows("native_layer_norm_backward", _layernorm_backward, forms.by_rule),
    **rows("rms_norm", _norm("rmsnorm", "x", "weight", results=1)),
    **rows("_fused_rms_norm", _norm("rmsnorm", "input", "weight", results=2), forms.like("input")),
    **rows("rms_norm_backward", _rmsnorm_backward, forms.by_rule),
    **rows("native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm "
           "_batch_norm_with_update _batch_norm_no_update", _batchnorm, forms.like("input")),
    **rows("_native_batch_norm_legit_functional", _batchnorm),
    **rows("native_group_norm", _groupnorm, forms.like("input")),
    **rows("native_batch_norm_backward native_group_norm_backward batch_norm_backward",
           _channels_backward("grad_out"), forms.by_rule),
    **rows("cudnn_batch_norm_backward", _channels_backward("grad_output"), forms.by_rule),
}  # fmt: skip
