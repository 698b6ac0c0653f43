"""Quantised modules of ``torch.ao``: integers in, integers out, scales as arguments; weights packed out of sight.

https://docs.pytorch.org/docs/stable/quantization-support.html
"""

from __future__ import annotations

from typing import Any

from roofline.frontends import emit
from roofline.frontends.call import with_options
from roofline.frontends.torch import forms
from roofline.frontends.torch.walk import Call, Result, Row, rows
from roofline.ir.errors import UnknownOp


def _packed(call: Call) -> tuple[str, str | None, Any]:
    """Return weight and bias of the object that holds them, and the object."""
    held = next((call.args[key] for key in ("W_prepack", "packed_weight") if key in call.args), None)
    unpack = getattr(held, "unpack", None)
    if unpack is None:
        raise UnknownOp(f"{call.record.target}: its packed weight cannot be read")
    weight, bias = unpack()
    form = {"torch.qint8": "int8", "torch.quint8": "int8", "torch.float16": "fp16"}.get(str(weight.dtype), "fp32")
    named = call.b.source("weight", tuple(map(int, weight.shape)), "weight", form)
    return named, bias if bias is None else call.b.source("bias", (int(bias.shape[0]),), "weight", "fp32"), held


@with_options
def _linear(call: Call, dynamic: bool = False) -> Result:
    """One kernel; a dynamic one first finds the range of its input and rounds it."""
    weight, bias, _ = _packed(call)
    x, form = call.tensor("X"), call.b.tensor(weight).dtype
    if dynamic and form == "int8":
        x = call.op("cast", x, name="quantised", dtype="int8")
    with call.b.kernel(call.name):
        out = call.op("linear", x, weight, *([bias] if bias else []), name="linear")
        return call.op("relu", out, name="relu") if "relu" in call.what else out


def _convolution(call: Call) -> Result:
    weight, bias, held = _packed(call)
    with call.b.kernel(call.name):
        out = emit.convolution(
            call.b, call.tensor("qx"), weight, bias, stride=held.stride(), padding=held.padding(),
            dilation=held.dilation(), groups=held.groups(),
        )  # fmt: skip
        return call.op("relu", out, name="relu") if "relu" in call.what else out


def _pointwise(call: Call) -> Result:
    """Both operands to one scale, the operation, and rounding."""
    return call.op("elementwise", *call.tensors(), flops=1)


ROWS: dict[str, Row] = {
    **rows("quantize_per_tensor quantize_per_tensor_dynamic quantize_per_channel dequantize", lambda call: call.op(
        "cast", call.tensors()[0]), forms.by_rule),
    **rows("int_repr", lambda call: call.op("copy", call.tensor()), forms.by_rule),
    **rows("linear_dynamic linear_dynamic_fp16 linear_relu_dynamic linear_relu_dynamic_fp16", _linear(dynamic=True),
           forms.by_rule),
    **rows("linear_relu", _linear(), forms.by_rule),
    **rows("conv1d_relu conv2d_relu conv3d_relu", _convolution, forms.by_rule),
    **rows("add_relu mul_relu", _pointwise, forms.by_rule),
    # Called as others of aten.
    **rows("quantized.linear", _linear(), forms.by_rule),
    **rows("quantized.conv1d quantized.conv2d quantized.conv3d", _convolution, forms.by_rule),
    **rows("quantized.add quantized.mul", _pointwise, forms.by_rule),
}  # fmt: skip
