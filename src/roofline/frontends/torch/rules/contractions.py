"""Matmuls and convolutions, forwards and backwards."""

from __future__ import annotations

from typing import Any

from roofline.frontends import emit
from roofline.frontends.call import with_options
from roofline.frontends.torch import forms
from roofline.frontends.torch.walk import Call, Result, Row, Rule, rows
from roofline.ir.sizes import prod


def _matmul(call: Call, left: str, right: str, bias: str | None = None) -> str:
    """Add ``left @ right``; against a matrix that is stored the other way round a linear layer."""
    stored = call.walk.transposed.get(right)
    if stored is not None and len(call.b.shape(stored)) == 2:
        return call.op("linear", left, stored, *([bias] if bias else []))
    return call.matmul(left, right, bias)


def _addmm(call: Call) -> Result:
    added, left, right = call.tensor(), call.tensor("mat1"), call.tensor("mat2")
    if call.b.shape(added) == call.out.shape[-1:]:
        return _matmul(call, left, right, added)
    return call.op("add", _matmul(call, left, right), added, name="add")


def _addmm_activation(call: Call) -> Result:
    """A linear layer with its activation, which the library's matmul does before it writes."""
    with call.b.kernel(call.name):
        rows = _matmul(call, call.tensor("mat1"), call.tensor("mat2"), call.tensor())
        return call.op("gelu_tanh" if call.get("use_gelu") else "relu", rows, name="activation")


def _addbmm(call: Call) -> Result:
    """A batched matmul and a sum; ``addbmm`` sums the whole batch first."""
    out = call.op("bmm", call.tensor("batch1"), call.tensor("batch2"))
    if call.what == "addbmm":
        out = emit.reduce(call.b, "sum", out, (0,), name="sum")
    return out if call.get("beta") == 0 else call.op("add", out, call.tensor(), name="add")


def _plain(second: str) -> Rule:
    return lambda call: call.matmul(call.tensor(), call.tensor(second))


def _by_row(call: Call, matrices: str) -> str:
    """``(experts, k, n)`` as linear layers store it, ``(experts, n, k)``."""
    stored = call.walk.transposed.get(matrices)
    if stored is not None:
        return stored
    experts, k, n = call.b.shape(matrices)
    return call.b.op("view", matrices, name="by_row", shape=(experts, n, k))


@with_options
def _grouped_mm(call: Call, rows: str, matrices: str) -> Result:
    """Rows sorted by expert against one matrix an expert, ``(rows, k) @ (experts, k, n)``."""
    return call.op("expert_linear", call.tensor(rows), _by_row(call, call.tensor(matrices)), top_k=1)


def _grouped_mm_backward(call: Call) -> Result:
    """Gradient of the rows by the same matrices; that of each matrix from the rows of its expert."""
    grad, rows, matrices = (call.tensor(key) for key in ("grad", "rows", "matrices"))
    first = call.op("expert_linear", grad, matrices, name="grad_rows", top_k=1)
    second = call.op("expert_linear_grad", grad, rows, name="grad_matrices", experts=call.b.shape(matrices)[0])
    return first, call.b.op("view", second, name="by_column", shape=call.b.shape(matrices))


def _convolution(call: Call) -> Result:
    image = call.value("input")
    return emit.convolution(
        call.b, call.tensor("input"), call.tensor("weight"), call.maybe("bias"),
        stride=call.get("stride"), padding=call.get("padding"), dilation=call.get("dilation"),
        groups=call.get("groups", 1), transposed=call.get("transposed", False),
        output_padding=call.get("output_padding", ()), channels_last=bool(image and image.channels_last),
        name=call.name,
    )  # fmt: skip


def _layout(call: Call) -> dict[str, Any]:
    image = call.value("input")
    return {"channels_last": bool(image and image.channels_last)}


def _plane(call: Call, name: str) -> str:
    """Return an array of any number of image axes as one of two: all but the last are joined."""
    first, second, *axes = call.b.shape(name)
    return call.view(name, (first, second, prod(axes[:-1]), axes[-1]), "plane")


def _convolution_backward(call: Call) -> Result:
    """Gradients of image, kernel and bias: each of the first two has the FLOPs of the forward."""
    needed = call.get("output_mask", (True, True, True))
    gradients = (_image_gradient, _kernel_gradient, _bias_gradient)
    return tuple(gradient(call) if is_needed else None for gradient, is_needed in zip(gradients, needed, strict=True))


def _image_gradient(call: Call) -> str:
    """Add the gradient of the image; of a transposed convolution it is a plain one."""
    grad, image, weight = (call.tensor(key) for key in ("grad_output", "input", "weight"))
    groups = call.get("groups", 1)
    if call.get("transposed"):
        return emit.convolution(
            call.b, grad, weight, stride=call.get("stride"), padding=call.get("padding"),
            dilation=call.get("dilation"), groups=groups, name="grad_input", **_layout(call),
        )  # fmt: skip
    grad, plane, weight = (_plane(call, name) for name in (grad, image, weight))
    sizes = call.b.shape(plane)[1:]
    out = call.op("conv2d_grad_input", grad, weight, name="grad_input", image=sizes, groups=groups, **_layout(call))
    return call.view(out, call.b.shape(image), "image")


def _kernel_gradient(call: Call) -> str:
    """Add the gradient of the kernel; image and gradient change places where the convolution is transposed."""
    grad, image, weight = (_plane(call, call.tensor(key)) for key in ("grad_output", "input", "weight"))
    inner, outer = (grad, image) if call.get("transposed") else (image, grad)
    options = {"kernel": call.b.shape(weight)[1:], "groups": call.get("groups", 1), **_layout(call)}
    out = call.op("conv2d_grad_weight", inner, outer, name="grad_weight", **options)
    return call.view(out, call.shape("weight"), "kernel")


def _bias_gradient(call: Call) -> str:
    grad = call.tensor("grad_output")
    axes = [at for at in range(len(call.b.shape(grad))) if at != 1]
    return emit.reduce(call.b, "sum", grad, axes, name="grad_bias")


ROWS: dict[str, Row] = {
    **rows("mm _int_mm _scaled_mm _weight_int8pack_mm", lambda call: _matmul(
        call, call.tensor(), call.tensor("mat2"), call.maybe("bias")), forms.by_rule),
    **rows("addmm", _addmm, lambda call: (
        (*call.tensor("mat1").shape[:-1], *call.tensor("mat2").shape[-1:]), call.tensor("mat1").dtype)),
    **rows("_addmm_activation", _addmm_activation, lambda call: (
        (*call.tensor("mat1").shape[:-1], *call.tensor("mat2").shape[-1:]), call.tensor("mat1").dtype)),
    **rows("bmm", lambda call: call.op("bmm", call.tensor(), call.tensor("mat2")), forms.by_rule),
    **rows("baddbmm addbmm", _addbmm, forms.by_rule),
    **rows("linear", lambda call: call.op(
        "linear", call.tensor("input"), call.tensor("weight"), *call.given("bias")), forms.by_rule),
    **rows("matmul vdot", _plain("other"), forms.by_rule),
    **rows("mv", _plain("vec"), forms.by_rule),
    **rows("dot", _plain("tensor"), forms.by_rule),
    **rows("linalg_solve_triangular", lambda call: call.op(
        "triangular_solve", call.tensor(), call.tensor("B")), forms.by_rule),
    **rows("grouped_mm", _grouped_mm("rows", "matrices"), forms.by_rule),
    **rows("grouped_mm_fallback", _grouped_mm("input", "weight"), forms.by_rule),
    **rows("grouped_mm_backward", _grouped_mm_backward, forms.by_rule),
    **rows("convolution _convolution cudnn_convolution mkldnn_convolution", _convolution, forms.by_rule),
    **rows("convolution_backward", _convolution_backward, forms.by_rule),
}  # fmt: skip
